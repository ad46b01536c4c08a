"""One small problem for most tests, so that they share programs: what differs is data, not shape."""

import numpy as np

N, D, T, FOLDS = 40, 3, 2, 5
LAMS = np.array([1e-3, 1e-1, 10.0])


def rows(seed: int = 0) -> np.ndarray:
    """X (N, D)."""
    return np.random.default_rng(seed).normal(size=(N, D))


def labels(X: np.ndarray, seed: int = 1, noise: float = 0.1) -> np.ndarray:
    """y (N,): a smooth function of the first two columns, and noise."""
    drawn = np.random.default_rng(seed).normal(size=len(X))
    return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + noise * drawn


def several_labels(X: np.ndarray) -> np.ndarray:
    """Y (N, T)."""
    return np.column_stack([labels(X), labels(X[:, ::-1], seed=2)])


def weights(seed: int = 3) -> np.ndarray:
    """Weights (N,), between .5 and 2."""
    return np.random.default_rng(seed).uniform(0.5, 2.0, N)


def groups() -> np.ndarray:
    """FOLDS groups of equal size, (N,)."""
    return np.arange(N) % FOLDS
