"""The primal problem by Cholesky on landmarks that depend, and its memory; what it says, and its
derivatives, are in the contract.
"""

import jax
import numpy as np
import pytest
from support import DTYPE, array, assert_close

import jaxrls as rls

N, LAM = 40, 0.3
ROWS = np.array([3, 10, 20, 30, 39, 31, 32, 7, 9])


@pytest.mark.float64
def test_dependent_landmarks():
    """Points twice, and points that the kernel can hardly tell apart: the gradient is that without
    the doubles, and never NaN.
    """
    rng = np.random.default_rng(0)
    X, Y = array(rng.normal(size=(N, 3))), array(rng.normal(size=(N, 2)) + 1)
    gradient = jax.jit(
        jax.grad(
            lambda width, points: rls.objective(rls.Gaussian(width), X, Y, LAM, landmarks=points)
        )
    )
    once, twice = X[ROWS], X[np.concatenate([ROWS, ROWS])]
    assert_close(gradient(1.5, twice), gradient(1.5, once), 1e-8)
    assert np.isfinite(gradient(100.0, X))


@pytest.mark.float64  # bytes by the number of entries
def test_memory_does_not_grow_with_rows():
    """Value and gradient on ten times the rows take the same memory beside X, y and their
    cotangents.
    """
    m = 50

    def temporaries(n):
        shapes = [jax.ShapeDtypeStruct(shape, DTYPE) for shape in ((n, 3), (n,), (m, 3))]
        run = jax.grad(
            lambda w, X, y, P: rls.objective(
                rls.Gaussian(w), X, y, LAM, landmarks=P, block_size=1000
            )
        )
        return jax.jit(run).lower(1.0, *shapes).compile().memory_analysis().temp_size_in_bytes

    size = np.dtype(DTYPE).itemsize
    assert (
        temporaries(100_000) - temporaries(10_000) < 90_000 * 16 * size
    )  # a few columns of n, and no n×m array
