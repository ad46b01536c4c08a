"""The oracle: regularized least squares solved afresh by augmented least squares, one refit per row
or group left out; and kernels as features Φ, K = ΦΦᵀ, of the training and of new rows.

`features(gone)` are those when the rows `gone` have been left out: on landmarks that are rows of X
they are made of the landmarks that stay, everywhere else they do not depend on them."""

import numpy as np


def refit(Phi, Y, lam, weights=None, intercept=False):
    """Minimise ½ Σ vᵢ(yᵢ − φᵢw − b)² + (λ/2)‖w‖² by least squares on [√vΦ √v; √λI 0]. Returns w (r,
    t), b (t,).
    """
    n, r = Phi.shape
    v = np.ones(n) if weights is None else weights
    root = np.sqrt(v)[:, None]
    top, below = root * Phi, np.sqrt(lam) * np.eye(r)
    if intercept:
        top, below = np.hstack([top, root]), np.hstack([below, np.zeros((r, 1))])
    solution = np.linalg.lstsq(
        np.vstack([top, below]), np.vstack([root * Y, np.zeros((r, Y.shape[1]))]), rcond=None
    )[0]
    return (solution[:-1], solution[-1]) if intercept else (solution, np.zeros(Y.shape[1]))


def group_residuals(Phi, Y, lam, groups, weights=None, intercept=False):
    """Held-out residuals, each group left out in turn."""
    v = np.ones(len(Phi)) if weights is None else weights
    e = np.empty_like(Y)
    for g in np.unique(groups):
        rest = groups != g
        w, b = refit(Phi[rest], Y[rest], lam, v[rest], intercept)
        e[~rest] = Y[~rest] - Phi[~rest] @ w - b
    return e


def loo_residuals(Phi, Y, lam, weights=None, intercept=False):
    """Held-out residuals, each row left out in turn."""
    return group_residuals(Phi, Y, lam, np.arange(len(Phi)), weights, intercept)


def of_kernel(k, X, X_new):
    """Features of a kernel function: Φ = U√s, and of new rows k(x, X) U/√s."""
    s, U = np.linalg.eigh(k(X, X))
    used = s > 1e-13 * s[-1]
    s, U = s[used], U[:, used]
    Phi, Phi_new = U * np.sqrt(s), k(X_new, X) @ U / np.sqrt(s)
    return lambda gone: (Phi, Phi_new)


def of_landmarks(k, X, X_new, points, indices=None):
    """K_TR L⁻ᵀ of the landmarks that stay; `indices` are their rows of X, None where they are no
    rows, or do not leave.
    """

    def features(gone):
        stay = slice(None) if indices is None else ~np.isin(indices, gone)
        R = np.unique(points[stay], axis=0)
        L = np.linalg.cholesky(k(R, R))
        return np.linalg.solve(L, k(R, X)).T, np.linalg.solve(L, k(R, X_new)).T

    return features
