"""λ held fixed in a search: the kernel alone moves, to where errors by refits, or the likelihood in
NumPy, are smallest at that λ.
"""

import jax
import numpy as np
import oracle
import pytest
import scipy.optimize
from support import (
    ANY_PRECISION,
    DTYPE,
    FLOAT64,
    NEAR_FLOOR,
    X64,
    assert_close,
    no_fit,
    refused,
    wide,
)

import jaxrls as rls

RNG = np.random.default_rng(0)
N, LAM = 24, 0.3
X = wide(RNG.uniform(-2, 2, size=(N, 2)))
Y = wide(np.stack([np.sin(2 * X[:, 0]), X[:, 1]], axis=1) + 0.3 * RNG.normal(size=(N, 2)))
V = wide(np.where(np.arange(N) % 6 == 3, 0, RNG.uniform(0.5, 2, N)))
SQUARES = ((X[:, None] - X[None]) ** 2).sum(axis=2)
ONES = np.ones((N, 1))


def gram(width):
    return np.exp(-SQUARES / (2 * width**2))


def loo_error(width, lam=LAM):
    """Of refits without each row, both targets, with weights."""
    s, U = np.linalg.eigh(gram(width))
    Phi = U * np.sqrt(np.maximum(s, 0))
    return np.mean(V @ oracle.loo_residuals(Phi, Y, lam, V, True) ** 2) / V.sum()


def nats(width, sill=None, noise=LAM):
    """−log restricted likelihood of the first target: of a given sill, or of the best one with
    noise in proportion to it.
    """
    y = Y[:, 0]
    G = (sill or 1) * gram(width) + noise * np.eye(N)
    inverse = np.linalg.inv(G)
    inner = inverse.sum()
    left = y @ inverse @ y - inverse.sum(axis=0) @ y * (inverse.sum(axis=0) @ y) / inner
    logs = np.linalg.slogdet(G)[1] + np.log(inner)
    if sill is None:
        return 0.5 * (logs + (N - 1) * np.log(left / (N - 1)))
    return 0.5 * (logs + left)


def slope(f, *at):
    """The largest derivative in the logarithms of the arguments."""
    step = 1e-4
    moved = lambda k, h: f(*(a * np.exp(h * (i == k)) for i, a in enumerate(at)))
    return max(abs(moved(k, step) - moved(k, -step)) / (2 * step) for k in range(len(at)))


def close(tol):
    return tol if X64 else 0.02


def tuned(kernel=None, Y=Y, **options):
    kernel = rls.Gaussian(DTYPE(4.0)) if kernel is None else kernel
    options = {"lams": LAM, "tol": 1e-5 if X64 else 2e-3} | options
    return rls.tune(kernel, X.astype(DTYPE), Y.astype(DTYPE), **options)


@pytest.mark.parametrize("start", ["kernel", pytest.param("screen", marks=pytest.mark.slow)])
def test_the_width_is_best_at_that_lam(start):
    """Which is another than the best λ, where the error is smaller."""
    fit = tuned(weights=V.astype(DTYPE), start=start)
    assert fit.lam == DTYPE(LAM) and (fit.history.lams == DTYPE(LAM)).all()
    assert ", λ held fixed: gradient norm below tol" in fit.plan
    width = float(fit.kernel.width)
    assert slope(lambda w: np.log(loo_error(w)), width) < close(1e-4)
    assert_close(fit.error, loo_error(width), close(1e-8))
    assert slope(lambda lam: np.log(loo_error(width, lam)), LAM) > 0.02
    assert loo_error(width) < 0.95 * loo_error(4.0)


@pytest.mark.slow
def test_of_likelihoods_the_ratio_is_held_or_the_noise_where_the_kernel_has_a_scale():
    y = Y[:, 0]
    ratio = tuned(Y=y, criterion="evidence")
    assert ratio.lam == DTYPE(LAM) and ratio.amplitude is not None
    assert slope(nats, float(ratio.kernel.width)) < close(1e-3)
    noise = tuned(1.0 * rls.Gaussian(2.0), Y=y, criterion="evidence", lams=np.float64(0.05))
    at = float(noise.kernel.kernel.width), float(noise.kernel.scale)
    assert noise.lam == DTYPE(0.05) and noise.amplitude == 1
    for criterion in ("evidence", "log_predictive_density"):
        options = {"criterion": criterion, "lams": 0.05, "steps": 3, "keep": True}
        kept = tuned(1.0 * rls.Gaussian(2.0), Y=y, **options)
        deviations = kept.predict(X[:5], return_std=True)[1]
        of_field = kept.posterior(X[:5], scale=1).std
        assert_close(deviations**2, of_field**2 + 0.05, close(1e-8))  # the noise as it was given
    assert slope(lambda width, sill: nats(width, sill, 0.05), *at) < close(1e-3)
    free = scipy.optimize.minimize(lambda p: nats(*np.exp(p), 0.05), np.log(at))
    assert nats(*at, 0.05) < free.fun + close(1e-4)


@pytest.mark.slow
@NEAR_FLOOR
@FLOAT64
def test_it_stays_where_searches_move_it():
    """In random starts, on landmarks, and near the precision of K."""
    several = tuned(start="kernel", starts=2, key=jax.random.key(0), steps=3)
    on_few = tuned(landmarks=np.arange(8), steps=3)
    assert several.lam == on_few.lam == LAM
    smooth = np.sin(2 * X[:, 0])
    at_edge = tuned(Y=smooth, lams=1e-9, steps=5)
    assert at_edge.lam == 1e-9
    with pytest.warns(
        UserWarning, match="at λ = 1e-17, below the precision of .*: hold a larger λ"
    ):
        assert tuned(Y=smooth, lams=1e-17, steps=1, start="kernel").lam == 1e-17


@ANY_PRECISION
def test_what_cannot_be_held():
    scaled = 1.0 * rls.Gaussian(1.0)
    with no_fit():
        refused(
            (lambda: tuned(lams=10), r"lams is the whole number 10, .* give lams=10\.0 to hold"),
            (lambda: tuned(lams=True), "lams is the whole number True"),
            (lambda: tuned(lams=0.0), "lams must be positive, and the smallest is 0"),
            (lambda: tuned(lams=np.nan), "lams"),
            (
                lambda: tuned(scaled, criterion=rls.extend.Evidence("evidence")),
                "lams=0.3 holds the ratio of noise .* would undo it where scale='evidence' is",
            ),
        )
