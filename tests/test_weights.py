"""Weights and labels as a weighted problem sees them: none at all, ones, and zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, array, wide

from jaxrls.problem.fixed_effects import as_fixed_effects
from jaxrls.problem.labels import Labels
from jaxrls.problem.weights import Weights

N, T = 6, 2
A = wide(np.random.default_rng(0).normal(size=(N, T)))
Y = wide(np.random.default_rng(1).normal(size=(N, T)) + 3)


def test_none_is_the_same_as_ones():
    """To the last digit, all that is computed of them."""
    none, ones = Weights.of(None, N, DTYPE), Weights.of(np.ones(N), N, DTYPE)
    for name in ("array", "root", "used", "count", "total", "log_product", "direction"):
        np.testing.assert_array_equal(getattr(none, name), getattr(ones, name))
    for name in ("scale", "unscale"):
        np.testing.assert_array_equal(getattr(none, name)(array(A)), getattr(ones, name)(array(A)))


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_derivatives_are_finite_at_weight_0(weight):
    def number(v):
        weights = Weights.of(v, N, DTYPE)
        rows = weights.unscale(weights.scale(array(A)) ** 2)
        return (
            jnp.sum(rows)
            + weights.log_product
            + jnp.sum(weights.scale_both(array(A @ A.T)))
            + jnp.sum(weights.direction)
        )

    v = array(np.where(np.arange(N) == 2, weight, 1.5))
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        assert np.isfinite(np.asarray(jax.jit(derivative(number))(v))).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, -1.0, 0.0], "weights must not be negative, and the smallest is -1.0"),
        ([1.0, 2.0], r"weights must have shape \(3,\), one per row, and has shape \(2,\)"),
        ([[1.0], [1.0], [1.0]], r"weights must have shape \(3,\)"),
        ([0.0, 0.0, 0.0], "weights are all zero"),
        ([1.0, float("nan"), 0.0], "weights holds 1 values that are NaN or infinite"),
        ([1.0, float("inf"), 0.0], "weights holds 1 values that are NaN or infinite"),
        (["a", "b", "c"], "weights must hold real numbers"),
        (1.0, r"weights must have shape \(3,\)"),
    ],
)
def test_what_is_refused(values, words, unchecked):
    with pytest.raises(ValueError, match=words):
        Weights.of(values, 3, DTYPE)


def labels_of(Y, weights, intercept=True):
    return Labels.of(Y, weights, as_fixed_effects(None, intercept, weights))


# labels
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "Y", [[1.0, 2.0], np.ones((2, 3)), np.ones((3, 2, 1)), 1.0, np.ones((3, 0))]
)
def test_labels_of_another_shape_are_refused(Y, unchecked):
    with pytest.raises(
        ValueError,
        match=r"Y must have shape \(3,\) or \(3, t\), one row per row of X, and has shape",
    ):
        labels_of(Y, Weights.of(None, 3, DTYPE))
