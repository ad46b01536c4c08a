"""Weights and labels as a weighted problem sees them: none at all, ones, and zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, array, assert_close, wide

from jaxrls.problem.fixed_effects import as_fixed_effects
from jaxrls.problem.labels import Labels
from jaxrls.problem.weights import Weights

N, T = 6, 2
GIVEN = {
    "none": None,
    "ones": np.ones(N),
    "some": wide([0.5, 2.0, 1.0, 3.0, 0.25, 1.5]),
    "zeros": wide([0.5, 0.0, 1.0, 3.0, 0.0, 1.5]),
}
A = wide(np.random.default_rng(0).normal(size=(N, T)))
Y = wide(np.random.default_rng(1).normal(size=(N, T)) + 3)
TOLERANCE = 20 * EPS
each = pytest.mark.parametrize("kind", GIVEN)


def made(kind):
    """Weights of the library, and as NumPy has them."""
    v = np.ones(N) if GIVEN[kind] is None else GIVEN[kind]
    return Weights.of(GIVEN[kind], N, DTYPE), v


@each
def test_the_numbers(kind):
    weights, v = made(kind)
    used = v > 0
    np.testing.assert_array_equal(weights.array, v)
    np.testing.assert_array_equal(weights.used, used)
    assert float(weights.count) == used.sum() and weights.n == N
    assert_close(weights.root, np.sqrt(v), TOLERANCE)
    assert_close(weights.total, v.sum(), TOLERANCE)
    assert_close(weights.direction, np.sqrt(v / v.sum()), TOLERANCE)
    assert abs(float(weights.log_product) - np.log(v[used]).sum()) < TOLERANCE


@each
def test_everything_is_in_the_dtype_of_the_data(kind):
    weights, _ = made(kind)
    names = ("array", "root", "count", "total", "log_product", "direction")
    assert {getattr(weights, name).dtype for name in names} == {np.dtype(DTYPE)} == {weights.dtype}
    assert weights.used.dtype == bool


@each
def test_sums_and_means(kind):
    weights, v = made(kind)
    for values in (A, A[:, 0]):
        assert_close(weights.sum(array(values)), v @ values, TOLERANCE)
        assert_close(weights.mean(array(values)), v @ values / v.sum(), TOLERANCE)


@each
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_scaling_is_row_by_row(kind, axes):
    """√v A, and A/√v with 0 for rows of weight 0, for vectors, matrices and more."""
    weights, v = made(kind)
    values = np.random.default_rng(axes).normal(size=(N, 3, 2)[:axes]).astype(DTYPE)
    root = np.sqrt(v).reshape(-1, *[1] * (axes - 1))
    over = np.where(root > 0, values / np.where(root > 0, root, 1), 0)
    assert_close(weights.scale(array(values)), root * values, TOLERANCE)
    assert_close(weights.unscale(array(values)), over, TOLERANCE)
    assert_close(
        weights.unscale(weights.scale(array(values))), np.where(root > 0, values, 0), TOLERANCE
    )


@each
def test_scaling_on_both_sides(kind):
    weights, v = made(kind)
    K = A @ A.T
    assert_close(weights.scale_both(array(K)), np.sqrt(np.outer(v, v)) * K, TOLERANCE)


@each
def test_without_some_rows(kind):
    weights, v = made(kind)
    left = weights.without(jnp.array([0, 3]))
    np.testing.assert_array_equal(left.array, np.where(np.isin(np.arange(N), [0, 3]), 0, v))
    assert left.n == N and left.dtype == weights.dtype
    np.testing.assert_array_equal(weights.array, v)  # the old ones stay


@each
def test_those_of_a_block(kind):
    weights, v = made(kind)
    part = weights.block(None if weights.values is None else weights.values[2:5], 3)
    np.testing.assert_array_equal(part.array, v[2:5])
    assert part.n == 3 and part.dtype == weights.dtype


def test_none_is_the_same_as_ones():
    """To the last digit, all that is computed of them."""
    none, ones = Weights.of(None, N, DTYPE), Weights.of(np.ones(N), N, DTYPE)
    for name in ("array", "root", "used", "count", "total", "log_product", "direction"):
        np.testing.assert_array_equal(getattr(none, name), getattr(ones, name))
    for name in ("scale", "unscale"):
        np.testing.assert_array_equal(getattr(none, name)(array(A)), getattr(ones, name)(array(A)))
    for name in ("sum", "mean"):
        assert_close(getattr(none, name)(array(A)), getattr(ones, name)(array(A)), TOLERANCE)


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


def test_the_root_has_derivative_0_at_weight_0():
    slope = jax.grad(lambda v: jnp.sum(Weights.of(v, 2, DTYPE).root))(array([0.0, 4.0]))
    np.testing.assert_allclose(slope, [0, 0.25], rtol=TOLERANCE)


def test_what_is_taken():
    """Lists and arrays of any number type; weights as such pass through."""
    for values in (
        [1, 2, 0],
        (1.0, 2.0, 0.0),
        np.array([1, 2, 0]),
        np.array([1, 2, 0], np.float32),
        array([1, 2, 0]),
    ):
        weights = Weights.of(values, 3, DTYPE)
        assert weights.values.dtype == DTYPE and weights.array.tolist() == [1, 2, 0]
    assert Weights.of(weights, 3, DTYPE) is weights


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, -1.0, 0.0], "weights must not be negative, and the smallest is -1.0"),
        ([1.0, 2.0], r"weights must have shape \(3,\), one per row of X, and has shape \(2,\)"),
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


def test_weights_go_through_jit_and_vmap():
    """As a pytree whose structure says whether there are any."""
    total = jax.jit(lambda weights: weights.total)
    assert total(made("some")[0]) == total(made("some")[0]) and total(made("none")[0]) == N
    many = jax.vmap(lambda v: Weights.of(v, N, DTYPE).total)(
        array(np.stack([GIVEN["ones"], GIVEN["some"]]))
    )
    assert_close(many, [N, GIVEN["some"].sum()], TOLERANCE)


def labels_of(Y, weights, intercept=True):
    return Labels.of(Y, weights, as_fixed_effects(None, intercept, weights))


# labels
# ----------------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("intercept", [True, False])
def test_labels_are_centred_by_their_weighted_mean(kind, intercept):
    weights, v = made(kind)
    labels = labels_of(Y, weights, intercept)
    mean = v @ Y / v.sum() if intercept else np.zeros(T)
    assert_close(labels.Y, Y, 0)
    assert_close(np.broadcast_to(labels.mean, (1, T))[0], mean, TOLERANCE)
    assert_close(labels.scaled, np.sqrt(v)[:, None] * (Y - mean), TOLERANCE)
    assert not labels.flat and labels.given is labels.Y
    if intercept:
        assert np.abs(np.sqrt(v) @ np.asarray(labels.scaled)).max() < 10 * N * TOLERANCE


def test_labels_of_one_axis_lose_the_axis_of_targets_again():
    weights, _ = made("some")
    flat, column = labels_of(Y[:, 0], weights), labels_of(Y[:, :1], weights)
    assert flat.flat and not column.flat
    for name in ("Y", "mean", "scaled"):
        np.testing.assert_array_equal(getattr(flat, name), getattr(column, name))
    assert flat.given.shape == (N,) and column.given.shape == (N, 1)
    assert flat.drop_axis(jnp.ones((3, 4, 1))).shape == (3, 4) and column.drop_axis(
        jnp.ones((3, 4, 1))
    ).shape == (3, 4, 1)


def test_no_labels():
    weights = made("some")[0]
    none = Labels.none(weights, as_fixed_effects(None, True, weights))
    assert none.Y.shape == none.scaled.shape == (N, 0)


def test_lists_and_whole_numbers():
    weights = Weights.of(None, 3, DTYPE)
    for Y in ([1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3]), [True, False, True]):
        assert labels_of(Y, weights, False).Y.dtype == DTYPE


@pytest.mark.parametrize(
    "Y", [[1.0, 2.0], np.ones((2, 3)), np.ones((3, 2, 1)), 1.0, np.ones((3, 0))]
)
def test_labels_of_another_shape_are_refused(Y, unchecked):
    with pytest.raises(
        ValueError,
        match=r"Y must have shape \(3,\) or \(3, t\), one row per row of X, and has shape",
    ):
        labels_of(Y, Weights.of(None, 3, DTYPE))


def test_derivatives_in_labels_and_weights():
    """The mean moves with both."""

    def number(v, Y):
        return jnp.sum(labels_of(Y, Weights.of(v, N, DTYPE)).scaled ** 2)

    slope, _ = jax.jit(jax.grad(number, argnums=(0, 1)))(array(GIVEN["some"]), array(Y))
    v = GIVEN["some"]
    mean = v @ Y / v.sum()
    assert_close(slope, np.sum((Y - mean) ** 2, axis=1), 10 * TOLERANCE)
