"""How sure a fit of two-sided data is: against the dense Gaussian process of all pairs,
refits, and many samples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import draw, gaussian
from support import DTYPE, EPS, X64, array, assert_close, refused
from test_kronecker import WIDE

import jaxrls as rls

LAM, WIDTHS = 0.2, (1.0, 1.5)
X1, X2 = draw(7, 6, 2), draw(8, 4, 1)
NEW, SIDES = (X1.astype(DTYPE), X2.astype(DTYPE)), (WIDE.x1, WIDE.x2)
LISTED = np.array([[0, 1], [5, 3], [2, 2], [0, 0], [5, 0]])
TABLE = np.stack(np.divmod(np.arange(24), 4), axis=1)
KNOWN = np.stack([WIDE.row, WIDE.column], axis=1)


def fit(weighted=False, intercept=True, Y=WIDE.Y, **options):
    x1, x2, Y, *v = (np.asarray(part, DTYPE) for part in (WIDE.x1, WIDE.x2, Y, *WIDE.v))
    weights = tuple(v) if weighted else None
    options = {"lams": [LAM], "keep": True, "weights": weights, "intercept": intercept} | options
    one, other = map(rls.Gaussian, WIDTHS)
    return rls.fit_kronecker(one, x1, other, x2, Y, **options)


def tolerance():
    return max(1e-9, 4 * WIDE.Y.size * EPS * (1 + np.linalg.norm(WIDE.K, 2) / LAM)) if X64 else 2e-4


def kernel(one, other):
    """k of pairs of rows."""
    return gaussian(one[0], other[0], WIDTHS[0]) * gaussian(one[1], other[1], WIDTHS[1])


def rows(pairs, x1=X1, x2=X2):
    return x1[pairs[:, 0]], x2[pairs[:, 1]]


def process(pairs, v, intercept, kept=slice(None), at=(X1, X2)):
    """Mean and covariance of f + b at pairs, by generalised least squares with a flat prior on b,
    from the labels that are kept.
    """
    known, new, y = rows(KNOWN[kept], *SIDES), rows(pairs, *at), WIDE.Y.ravel()[kept]
    P = np.linalg.inv(kernel(known, known) + LAM * np.diag(1 / v[kept]))
    across = kernel(known, new)
    covariance = kernel(new, new) - across.T @ P @ across
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
        got, std = found.predict(*NEW, pairs=pairs, return_std=True, scale=4)
        posterior = found.posterior(*NEW, pairs=pairs, scale=4)
        want = 2 * np.sqrt(np.diag(covariance) + LAM).reshape(shape)
        assert std.dtype == DTYPE
        for one, other in (
            (got, mean.reshape(shape)),
            (found.predict(*NEW, pairs=pairs), mean.reshape(shape)),
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
    y, known = WIDE.Y.ravel(), rows(KNOWN, *SIDES)
    P = np.linalg.inv(kernel(known, known) + LAM * np.diag(1 / v))
    u = P.sum(axis=0)
    P = P - np.outer(u, u) / u.sum()
    squares = []
    for i in range(n):
        mean, variance = process(KNOWN[[i]], v, True, np.arange(n) != i, SIDES)
        squares.append((y[i] - mean[0]) ** 2 / (variance[0, 0] + LAM / v[i]))
    for setting in ("entries", "rows"):
        found = fit(True, setting=setting).process
        assert_close(found.evidence, np.sqrt(y @ P @ y / (n - 1)), tolerance())
        assert_close(found.loo, np.sqrt(np.mean(squares)), tolerance())


def test_blocks_of_rows_are_one(monkeypatch):
    """On either side, and of pairs: of fewer rows, for which nothing was compiled yet."""
    found, (x1, x2), pairs = fit(), NEW, LISTED[LISTED[:, 0] < 5]
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

    found = fit()

    @jax.jit
    @jax.value_and_grad
    def narrow(x1, pairs):
        return jnp.sum(found.predict(x1, array(X2), pairs=pairs, return_std=True)[1])

    value, slope = narrow(array(X1), LISTED)
    std = found.predict(X1, X2, pairs=LISTED, return_std=True)[1]
    assert_close(value, np.sum(std), 1e-12)
    step = np.zeros_like(X1)
    step[5, 0] = 1e-4
    moved = (narrow(X1 + step, LISTED)[0] - narrow(X1 - step, LISTED)[0]) / 2e-4
    assert_close(slope[5, 0], moved, 1e-6)


@pytest.mark.any_precision
def test_what_cannot_be():
    posterior = lambda X1=X1, **named: lambda: fit().posterior(X1, X2, **named)
    bare, keep = fit(keep=False), "fit_kronecker with keep=True"
    rows = "row numbers must be"
    refused(
        (
            posterior(scale="median"),
            "scale must be 'evidence', 'loo' or a positive number, .* and is 'median'",
        ),
        (posterior(pairs=[0, 1]), r"pairs must have shape \(p, 2\).* has shape \(2,\)"),
        (
            posterior(pairs=np.zeros((0, 2), int)),
            r"pairs must have shape \(p, 2\).* shape \(0, 2\)",
        ),
        (posterior(pairs=[[0.0, 1.0]]), f"{rows} whole numbers .* have dtype float"),
        (posterior(pairs=[[0, 1], [6, 1]]), f"{rows} rows of X, 0 to 5, and include 6"),
        (posterior(pairs=[[0, -1]]), "0 to 3, and include -1: negative ones"),
        (posterior(X1[:, :1]), "X1 must have 2 columns, as in the fit, and has 1"),
        (lambda: bare.posterior(X1, X2), keep),
        (lambda: bare.predict(X1, X2, return_std=True), keep),
    )
