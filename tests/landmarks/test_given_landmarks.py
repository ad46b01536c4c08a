"""Landmarks of a kernel matrix that is given: the fit on some of its columns, as of the kernel
itself.
"""

import jax
import numpy as np
import pytest
from contract import cases
from numpy.testing import assert_allclose
from oracle import loo_residuals, of_landmarks, refit
from support import DTYPE, EDGE, EPS, FLOAT64, assert_close, factorize, refused

import jaxrls as rls

N, LAM = 30, 0.3
RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(N, 2)), RNG.normal(size=(7, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=N)
CHOSEN = np.array([3, 0, 17, 8, 25, 12])


def gaussian(A, B):
    return cases.gaussian(A, B, 1.0).astype(DTYPE)


K = gaussian(X, X)


def test_landmarks_of_a_given_matrix_are_its_columns_and_leave_with_their_rows():
    """Against refits: predictions by all columns or by those of landmarks alone, and rows left out
    one by one, the landmarks among them.
    """
    fit = rls.fit(rls.Precomputed(), K, Y.astype(DTYPE), landmarks=CHOSEN, lams=[LAM])
    features, across = of_landmarks(gaussian, X, NEW, X[CHOSEN], CHOSEN), gaussian(NEW, X)
    Phi, Phi_new = features([])
    w, b = refit(Phi, Y[:, None], LAM, intercept=True)
    for new in (across, across[:, CHOSEN]):
        assert_close(fit.predict(new), (Phi_new @ w + b)[:, 0], 1e5 * EPS)
    for i in range(N):
        want = loo_residuals(features([i])[0], Y[:, None], LAM, intercept=True)[i, 0]
        assert abs(fit.loo_residuals[i] - want) <= 1e5 * EPS * np.abs(Y).max()


@FLOAT64
@EDGE
@pytest.mark.slow
def test_landmarks_of_a_given_matrix_are_chosen_as_those_of_its_kernel():
    """By pivoted Cholesky, with the trace that they leave; and `objective` has the same error at a
    λ.
    """
    kernel, options = rls.Gaussian(1.0), {"lams": [0.01, LAM], "landmarks": 6}
    ours, theirs = rls.fit(rls.Precomputed(), K, Y, **options), rls.fit(kernel, X, Y, **options)
    assert_allclose(ours.errors, theirs.errors, rtol=1e-9)
    assert_allclose(ours.trace_residual, theirs.trace_residual, rtol=1e-9)
    chosen = rls.choose_landmarks(rls.Precomputed(), K, 6, key=jax.random.key(0))
    assert (
        chosen.indices.tolist()
        == rls.choose_landmarks(kernel, X, 6, key=jax.random.key(0)).indices.tolist()
    )
    error = jax.jit(rls.objective)(rls.Precomputed(), K, Y, LAM, landmarks=chosen)
    assert_allclose(error, theirs.errors[1], rtol=1e-9)


@FLOAT64
@pytest.mark.slow
def test_whatever_reads_rows_reads_those_of_a_given_matrix():
    """Held-out rows, a search for λ, and eigenfunctions: as of the kernel that the matrix is of."""
    of_matrix, of_rows = (rls.Precomputed(), K), (rls.Gaussian(1.0), X)
    held, options = np.sin(2 * NEW[:, 0]), {"landmarks": CHOSEN, "lams": [LAM]}
    ours, theirs = (
        rls.fit(*data, Y, criterion=rls.holdout(new, held), **options)
        for data, new in ((of_matrix, gaussian(NEW, X)), (of_rows, NEW))
    )
    assert_allclose(ours.errors, theirs.errors, rtol=1e-9)
    tuned = rls.tune(*of_matrix, Y, landmarks=CHOSEN, steps=10)
    error = jax.jit(rls.objective)(*of_rows, Y, tuned.lam, landmarks=CHOSEN)
    assert_allclose(tuned.error, error, rtol=1e-9)
    eigenfunctions = jax.jit(rls.diagnostics.eigenfunctions, static_argnums=3)
    ours, theirs = (
        eigenfunctions(factorize(*data, landmarks=CHOSEN), *data, 2).functions.predict(new)
        for data, new in ((of_matrix, gaussian(NEW, X)), (of_rows, NEW))
    )
    assert_allclose(abs(ours), abs(theirs), rtol=1e-7)


@FLOAT64
def test_what_a_given_matrix_cannot_tell_is_said():
    fit = rls.fit(rls.Precomputed(), K, Y, landmarks=CHOSEN, lams=[LAM])
    refused(
        (
            lambda: fit.posterior(gaussian(NEW, X)),
            r"variances need k\(x, x\) of new rows, which a kernel matrix does not have",
        ),
        (lambda: fit.predict(gaussian(NEW, X)[:, :5]), "X must have 30 columns, .* and has 5"),
        (
            lambda: rls.fit(rls.Precomputed(), K, Y, landmarks=X[:4]),
            "landmarks of a kernel matrix must be row numbers, and are points",
        ),
        (
            lambda: rls.fit(rls.Precomputed(), K, Y, landmarks=CHOSEN, standardize=True),
            "standardize= is for columns of X, and X holds a kernel matrix",
        ),
    )
