"""How sure a fit of two-sided data is: against the dense Gaussian process of all pairs,
refits, and many samples.
"""

import numpy as np
import pytest
from contract.cases import draw, gaussian
from extended import Truth
from support import ANY_PRECISION, DTYPE, EPS, X64, assert_close, refused

import jaxrls as rls
from two_sided.test_kronecker import WIDE

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
    return rls.two_sided.fit_kronecker(one, x1, other, x2, Y, **options)


def tolerance():
    return max(1e-9, 4 * WIDE.Y.size * EPS * (1 + np.linalg.norm(WIDE.K, 2) / LAM)) if X64 else 2e-4


def kernel(one, other):
    """k of pairs of rows."""
    return gaussian(one[0], other[0], WIDTHS[0]) * gaussian(one[1], other[1], WIDTHS[1])


def rows(pairs, x1=X1, x2=X2):
    return x1[pairs[:, 0]], x2[pairs[:, 1]]


def truth(hard):
    """The oracle of all pairs, with weights and an intercept or neither."""
    y, K = WIDE.Y.reshape(-1, 1), WIDE.K
    return Truth(
        lambda gone: (K, K, np.diagonal(K)), y, y, WIDE.weights(hard), np.array([LAM]), None, hard
    )


def process(pairs, hard):
    """Mean and covariance of f + b at pairs, with a flat prior on b."""
    known, new, fit = rows(KNOWN, *SIDES), rows(pairs), truth(hard).fit
    across, ones = kernel(new, known)[None], np.ones((len(pairs), int(hard)))
    mean = fit.predict(across, truth(hard).Y, ones)[0, 0, :, 0]
    return mean, fit.covariance(across, kernel(new, new), ones)[0, 0]


@pytest.mark.parametrize("hard", [True, False], ids=["weights and intercept", "neither"])
def test_the_gaussian_process_of_all_pairs(hard):
    """All new rows with all new columns, or some pairs of them by name: standard deviations, and
    covariances of pairs.
    """
    found = fit(hard, hard)
    for pairs, listed, shape in ((None, TABLE, (6, 4)), (LISTED, LISTED, (5,))):
        mean, covariance = process(listed, hard)
        got, std = found.predict(*NEW, pairs=pairs, return_std=True, scale=4)
        posterior = found.posterior(*NEW, pairs=pairs, scale=4)
        want = 2 * np.sqrt(np.diag(covariance) + LAM).reshape(shape)
        assert std.dtype == DTYPE
        for one, other in (
            (got, mean.reshape(shape)),
            (found.predict(*NEW, pairs=pairs), mean.reshape(shape)),
            (std, want),
            (posterior.mean, mean),
            (posterior.covariance, 4 * covariance),
            (posterior.label_std, want.ravel()),
        ):
            assert_close(np.reshape(one, np.shape(other)), other, tolerance())


def test_scales():
    """By the evidence where it is largest; by entries left out where they are as large as refits
    say they are, whatever λ was chosen by.
    """
    exact, n = truth(True), WIDE.Y.size
    squares = exact.held(np.arange(n))[0, :, 0] ** 2 / exact.deviations()[0]
    for setting in ("entries", "rows"):
        found = fit(True, setting=setting).process
        assert_close(found.evidence, np.sqrt(exact.data_fit[0, 0] / (n - 1)), tolerance())
        assert_close(found.loo, np.sqrt(np.mean(squares)), tolerance())


@ANY_PRECISION
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
        (posterior(pairs=[[0, 1], [6, 1]]), f"{rows} rows of X, 0 to 5, and include 6"),
        (posterior(pairs=[[0, -1]]), "0 to 3, and include -1: negative ones"),
        (posterior(X1[:, :1]), "X1 must have 2 columns, as in the fit, and has 1"),
        (lambda: bare.predict(X1, X2, scale="x"), "pass return_std=True, or leave them"),
        (lambda: bare.posterior(X1, X2), keep),
        (lambda: bare.predict(X1, X2, return_std=True), keep),
    )
