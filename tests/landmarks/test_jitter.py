"""The smallest jitter of 0, f, 4f, 16f … with which a Cholesky factor has pivots above f/2,
relative to the diagonal.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, array, assert_close

from jaxrls.landmarks.dictionary import LARGEST_JITTER, cholesky_with_jitter

M = 64
FLOOR = 2 * M**0.5 * EPS  # 16 eps: steps of it are told apart from rounding
factor = jax.jit(cholesky_with_jitter)


def nearly_dependent(excess, scale):
    """A diagonal matrix of powers of 4, but for two rows whose correlation is 1 + excess·f: the
    second pivot is 2(jitter − excess·f) of its entry.
    """
    root = scale * 2.0 ** np.linspace(-5, 5, M).round()
    K = np.diag(root**2)
    K[3, 60] = K[60, 3] = root[3] * root[60] * (1 + excess * FLOOR)
    return K.astype(DTYPE)


@pytest.mark.parametrize("scale", [1.0, 2.0**20])
@pytest.mark.parametrize(
    ("excess", "steps"),
    [
        (-1.0, 0.0),
        (-0.3, 0.0),
        (-0.2, 1.0),
        (0.0, 1.0),
        (0.5, 1.0),
        (1.5, 4.0),
        (3.0, 4.0),
        (8.0, 16.0),
        (40.0, 64.0),
    ],
)
def test_the_ridge_is_the_first_that_does(excess, steps, scale):
    K = nearly_dependent(excess, scale)
    L, jitter = factor(array(K))
    assert_close(jitter, steps * FLOOR, 4 * EPS)
    want = np.asarray(K, np.float64) + steps * FLOOR * np.diag(np.diag(K))
    size = np.sqrt(np.diag(want))
    assert_close(
        (np.asarray(L, np.float64) @ np.asarray(L, np.float64).T) / np.outer(size, size),
        want / np.outer(size, size),
        4 * EPS,
    )
    pivots = np.diagonal(np.asarray(L)) ** 2 / np.diag(K)
    assert (pivots >= FLOOR / 2).all()


def test_no_ridge_makes_an_indefinite_matrix_definite():
    """It is given up at a tenth of the diagonal."""
    L, jitter = factor(array([[1.0, 2.0], [2.0, 1.0]]))
    assert LARGEST_JITTER <= float(jitter) < 4 * LARGEST_JITTER and not jnp.isfinite(L).all()


def test_a_row_of_zeros_does_nothing():
    """It stands for itself, with the largest entry of the diagonal, wherever it is."""
    for zero in (0, 2):
        d = np.where(np.arange(3) == zero, 0.0, [4.0, 9.0, 16.0])
        L, jitter = factor(array(np.diag(d)))
        assert float(jitter) == 0
        assert_close(L, np.diag(np.sqrt(np.where(d > 0, d, d.max()))), EPS)
