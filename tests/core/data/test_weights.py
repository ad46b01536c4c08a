"""Weights and labels as a weighted problem sees them: none at all, ones, and zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, array, refused, wide

from jaxrls.core.data.data import Labels
from jaxrls.core.data.effects_made import as_fixed_effects
from jaxrls.core.data.weights import Weights

N, T = 6, 2
A = wide(np.random.default_rng(0).normal(size=(N, T)))


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_derivatives_are_finite_at_weight_0(weight):
    def number(v):
        weights = Weights.of(v, N, DTYPE)
        rows = weights.unscale(weights.scale(array(A)) ** 2)
        both = weights.scale_both(array(A @ A.T))
        return jnp.sum(rows) + weights.log_product + jnp.sum(both)

    v = array(np.where(np.arange(N) == 2, weight, 1.5))
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        assert np.isfinite(np.asarray(jax.jit(derivative(number))(v))).all()


def test_weights_and_labels_of_other_shapes_and_values_are_refused():
    none, shape = Weights.of(None, 3, DTYPE), r"weights must have shape \(3,\)"
    weights = lambda *values: lambda: Weights.of(values, 3, DTYPE)
    labels = lambda Y: lambda: Labels.of(Y, none, as_fixed_effects(None, True, none))
    not_finite = "weights holds 1 values that are NaN or infinite"
    refused(
        (weights(1.0, -1.0, 0.0), "weights must not be negative, and the smallest is -1.0"),
        (weights(1.0, 2.0), rf"{shape}, one per row, and has shape \(2,\)"),
        (weights([1.0], [1.0], [1.0]), shape),
        (weights(0.0, 0.0, 0.0), "weights are all zero"),
        (weights(1.0, np.nan, 0.0), not_finite),
        (weights(1.0, np.inf, 0.0), not_finite),
        (weights("a", "b", "c"), "weights must hold real numbers"),
        (lambda: Weights.of(1.0, 3, DTYPE), shape),
        *(
            (
                labels(Y),
                r"Y must have shape \(3,\) or \(3, t\), one row per row of X, and has shape",
            )
            for Y in ([1.0, 2.0], np.ones((2, 3)), np.ones((3, 2, 1)), 1.0, np.ones((3, 0)))
        ),
    )
