"""How sure a fit of two-sided data is: against the dense Gaussian process of all pairs,
refits, and many samples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, X64, array, assert_close
from test_kronecker import WIDE, draw, gaussian

import jaxrls as rls

LAM, WIDTHS = 0.2, (1.0, 1.5)
X1, X2 = draw(7, 6, 2), draw(8, 4, 1)
LISTED = np.array([[0, 1], [5, 3], [2, 2], [0, 0], [5, 0]])
TABLE = np.stack(np.divmod(np.arange(24), 4), axis=1)
KNOWN = np.stack([WIDE.row, WIDE.column], axis=1)


def fit(weighted=False, intercept=True, Y=WIDE.Y, **options):
    x1, x2, Y, *v = (np.asarray(part, DTYPE) for part in (WIDE.x1, WIDE.x2, Y, *WIDE.v))
    options = {
        "lams": [LAM],
        "keep": True,
        "weights": tuple(v) if weighted else None,
        "intercept": intercept,
    } | options
    return rls.fit_kronecker(rls.Gaussian(WIDTHS[0]), x1, rls.Gaussian(WIDTHS[1]), x2, Y, **options)


def new():
    return X1.astype(DTYPE), X2.astype(DTYPE)


def tolerance():
    return max(1e-9, 4 * WIDE.Y.size * EPS * (1 + np.linalg.norm(WIDE.K, 2) / LAM)) if X64 else 2e-4


def kernel(one, other):
    """k of pairs of rows."""
    return gaussian(WIDTHS[0], one[0], other[0]) * gaussian(WIDTHS[1], one[1], other[1])


def rows(pairs, x1=X1, x2=X2):
    return x1[pairs[:, 0]], x2[pairs[:, 1]]


def process(pairs, v, intercept, kept=slice(None), at=(X1, X2)):
    """Mean and covariance of f + b at pairs, by generalised least squares with a flat prior on b,
    from the labels that are kept.
    """
    known, y = rows(KNOWN[kept], WIDE.x1, WIDE.x2), WIDE.Y.ravel()[kept]
    P, across = (
        np.linalg.inv(kernel(known, known) + LAM * np.diag(1 / v[kept])),
        kernel(known, rows(pairs, *at)),
    )
    covariance = kernel(rows(pairs, *at), rows(pairs, *at)) - across.T @ P @ across
    if not intercept:
        return across.T @ P @ y, covariance
    u = P.sum(axis=0)
    b, slack = u @ y / u.sum(), 1 - u @ across
    return across.T @ P @ (y - b) + b, covariance + np.outer(slack, slack) / u.sum()


@pytest.mark.parametrize("hard", [True, False], ids=["weights and intercept", "neither"])
def test_the_gaussian_process_of_all_pairs(hard):
    """All new rows with all new columns, or some pairs of them by name: standard deviations, and
    covariances of pairs.
    """
    found, v = fit(hard, hard), WIDE.weights(hard)
    for pairs, listed, shape in ((None, TABLE, (6, 4)), (LISTED, LISTED, (5,))):
        mean, covariance = process(listed, v, hard)
        got, std = found.predict(*new(), pairs=pairs, return_std=True, scale=4)
        posterior = found.posterior(*new(), pairs=pairs, scale=4)
        want = 2 * np.sqrt(np.diag(covariance) + LAM).reshape(shape)
        assert std.dtype == DTYPE
        for one, other in (
            (got, mean.reshape(shape)),
            (found.predict(*new(), pairs=pairs), mean.reshape(shape)),
            (std, want),
            (posterior.mean, mean),
            (posterior.covariance, covariance),
            (posterior.label_std, want.ravel()),
        ):
            assert_close(np.reshape(one, np.shape(other)), other, tolerance())


def test_scales():
    """By the evidence where it is largest; by entries left out where they are as large as refits
    say they are, whatever λ was chosen by.
    """
    v, n = WIDE.weights(True), WIDE.Y.size
    y, known = WIDE.Y.ravel(), rows(KNOWN, WIDE.x1, WIDE.x2)
    P = np.linalg.inv(kernel(known, known) + LAM * np.diag(1 / v))
    u = P.sum(axis=0)
    P = P - np.outer(u, u) / u.sum()
    squares = []
    for i in range(n):
        mean, variance = process(KNOWN[[i]], v, True, np.arange(n) != i, (WIDE.x1, WIDE.x2))
        squares.append((y[i] - mean[0]) ** 2 / (variance[0, 0] + LAM / v[i]))
    for setting in ("entries", "rows"):
        found = fit(True, setting=setting).process
        assert_close(found.evidence, np.sqrt(y @ P @ y / (n - 1)), tolerance())
        assert_close(found.loo, np.sqrt(np.mean(squares)), tolerance())


def test_blocks_of_rows_are_one(monkeypatch):
    """On either side, and of pairs: of fewer rows, for which nothing was compiled yet."""
    found, (x1, x2), pairs = fit(), new(), LISTED[LISTED[:, 0] < 5]
    table = found.predict(x1, x2, return_std=True)
    monkeypatch.setattr("jaxrls.inference.two_sided.default_block_size", lambda n, row_bytes: 2)
    cut = found.predict(x1[:5], x2, return_std=True)
    listed = found.predict(x1[:5], x2, pairs=pairs, return_std=True)
    for whole, some, few in zip(table, cut, listed, strict=True):
        assert_close(some, whole[:5], 100 * EPS)
        assert_close(few, whole[pairs[:, 0], pairs[:, 1]], 100 * EPS)


@pytest.mark.float64
def test_inside_jit():
    """With pairs that have no values yet, and derivatives in new rows."""

    def narrow(x1, pairs):
        return jnp.sum(fit().predict(x1, array(X2), pairs=pairs, return_std=True)[1])

    value, slope = jax.jit(jax.value_and_grad(narrow))(array(X1), jnp.asarray(LISTED))
    assert_close(value, narrow(array(X1), LISTED), 1e-12)
    step = np.zeros_like(X1)
    step[5, 0] = 1e-4
    assert_close(
        slope[5, 0],
        (narrow(array(X1 + step), LISTED) - narrow(array(X1 - step), LISTED)) / 2e-4,
        1e-6,
    )


@pytest.mark.any_precision
@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"scale": "median"},
            "scale must be 'evidence', 'loo' or a positive number, .* and is 'median'",
        ),
        ({"pairs": [0, 1]}, r"pairs must have shape \(p, 2\).* has shape \(2,\)"),
        ({"pairs": np.zeros((0, 2), int)}, r"pairs must have shape \(p, 2\).* shape \(0, 2\)"),
        ({"pairs": [[0.0, 1.0]]}, "row numbers must be whole numbers .* have dtype float"),
        ({"pairs": [[0, 1], [6, 1]]}, "row numbers must be rows of X, 0 to 5, and include 6"),
        ({"pairs": [[0, -1]]}, "0 to 3, and include -1: negative ones"),
        ({"X1": X1[:, :1]}, "X1 must have 2 columns, as in the fit, and has 1"),
    ],
)
def test_what_cannot_be(named, message, unchecked):
    with pytest.raises(ValueError, match=message):
        fit().posterior(**{"X1": X1, "X2": X2, **named})


@pytest.mark.any_precision
def test_variances_take_more_than_a_model_keeps(unchecked):
    bare, words = fit(keep=False), "fit_kronecker with keep=True"
    for ask in (bare.posterior, lambda *new: bare.predict(*new, return_std=True)):
        with pytest.raises(ValueError, match=words):
            ask(X1, X2)
