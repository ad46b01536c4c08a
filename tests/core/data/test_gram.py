"""K and K·V in row blocks: the same numbers and derivatives as in one piece, without the n×m
buffer.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from support import ANY_PRECISION, DTYPE, EPS, array, assert_close, refused

import jaxrls as rls
from jaxrls.core.data import square_times

gram_module = importlib.import_module("jaxrls.core.data.gram")
KERNELS = {
    "gaussian": rls.Gaussian(array([0.8, 1.5, 2.5])),
    "laplacian": rls.Laplacian(1.5),
    "multiple": 0.5 * rls.Matern(1.5, 1.25),
}


def data(n=12, m=7, t=2):
    rng = np.random.default_rng(0)
    return (
        array(rng.normal(size=(n, 3))),
        array(rng.normal(size=(m, 3))),
        array(rng.normal(size=(m, t))),
    )


@pytest.mark.parametrize(
    "size", [5, 100]
)  # of 12 rows: whole blocks, ragged ones, one block, more than there is
def test_blocks_change_nothing(size):
    kernel = KERNELS["gaussian"]
    X, Z, V = data()

    @jax.jit
    def everything(X, Z, V):
        products = (
            rls.extend.gram_matmul(kernel, X, Z, columns, block_size=size)
            for columns in (V, V[:, 0])
        )
        return (
            rls.extend.gram(kernel, X, Z, block_size=size),
            rls.extend.gram(kernel, X, block_size=size),
            *products,
        )

    K = kernel(X, Z)
    for got, want in zip(everything(X, Z, V), (K, kernel(X, X), K @ V, K @ V[:, 0]), strict=True):
        assert_close(got, want, 20 * EPS)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_of_rows_with_themselves_half_of_the_entries_are_made(monkeypatch, kernel):
    """By pairs of blocks, the last of which is not full: numbers and derivatives are those of all
    of K; of one target and of several; and K of a row of 0, which a kernel may not have, is not
    made.
    """
    monkeypatch.setattr(gram_module, "PAIR_ROWS", {4: 5, 8: 5})
    X, _, _ = data()
    V = array(np.random.default_rng(1).normal(size=(12, 2)))

    def product(kernel, X, V):
        return square_times(kernel, X, V)

    def whole(kernel, X, V):
        return kernel(X, X) @ V

    @jax.jit
    def both(kernel, X, V):
        of = lambda f: jax.grad(lambda *given: jnp.sum(jnp.sin(f(*given))), (0, 1, 2))
        return [
            (f(kernel, X, V), f(kernel, X, V[:, 0]), of(f)(kernel, X, V)) for f in (product, whole)
        ]

    got, want = both(kernel, X, V)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b, 100 * EPS)
    text = str(jax.make_jaxpr(product)(kernel, X, V))
    assert "[12,12]" not in text and "length=6" in text  # pairs of three blocks


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_square_gram_has_the_kernels_own_diagonal(kernel):
    X = data()[0]
    K, diagonal = jax.jit(lambda X: (rls.extend.gram(kernel, X, block_size=5), kernel.diag(X)))(X)
    assert K.dtype == DTYPE
    assert (jnp.diagonal(K) == diagonal).all()
    assert_close(K, K.T, 4 * EPS, "symmetry")


@ANY_PRECISION
def test_the_matrix_is_never_held():
    """The compiled product, and its gradient in everything, fit in far less than K: no n×m buffer
    is in the program.
    """
    n, m, size = 1000, 1010, 40
    kernel = jax.tree.map(array, rls.Gaussian(1.5))
    X, Z, V = data(n, m)
    matrix = n * m * X.dtype.itemsize

    def product(kernel, X, Z, V):
        return jnp.sum(rls.extend.gram_matmul(kernel, X, Z, V, block_size=size) ** 2)

    for f in (product, jax.grad(product, (0, 1, 2, 3))):
        compiled = jax.jit(f).lower(kernel, X, Z, V).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < matrix / 4
        assert f"[{n},{m}]" not in compiled.as_text()


@ANY_PRECISION
def test_messages():
    """Of rows alone in test_refusals.py."""
    X, Z, V = data()
    kernel, whole = rls.Linear(), "block_size must be a whole number of at least 1, and is "
    matmul = lambda *given, size=None: (
        lambda: rls.extend.gram_matmul(kernel, *given, block_size=size)
    )
    refused(
        (matmul(X, Z[:, :2], V), "X and Z must have equally many columns, and have 3 and 2"),
        (lambda: rls.extend.gram(kernel, X, Z[:, :2]), "X and Z must have equally many columns"),
        *((matmul(X, Z, V, size=size), f"{whole}{size}") for size in (0, 2.5, True)),
        (matmul(X, Z, V[:3]), r"V must have 7 rows, one per column of K, .* shape \(3, 2\)"),
    )


def test_a_product_has_the_wider_dtype_of_both(monkeypatch):
    """Of whole numbers too, by all of K and by half of it."""
    X = data()[0]
    want = KERNELS["gaussian"](X, X) @ np.ones(12, DTYPE)
    for rows in (512, 5):
        monkeypatch.setattr(gram_module, "PAIR_ROWS", {4: rows, 8: rows})
        got = rls.extend.gram_matmul(KERNELS["gaussian"], X, X, jnp.ones(12, jnp.float16))
        assert got.dtype == DTYPE
        assert_close(got, want, 100 * EPS)


def test_a_product_of_narrow_rows_with_themselves():
    """Whose dtypes have no size of blocks of their own."""
    for dtype in (jnp.float16, jnp.bfloat16):
        X = jnp.asarray([[1], [2]], dtype)
        product = rls.extend.gram_matmul(rls.Linear(), X, X, jnp.ones(2, dtype))
        assert product.astype(int).tolist() == [3, 6]


def test_columns_of_two_frames_are_those_of_the_same_names():
    """Of rows and landmarks too. Frames with other names are refused."""
    *rows, V = data()
    X, Z = map(np.asarray, rows)
    frame = lambda rows: pandas.DataFrame(rows, columns=[*"abc"])
    kernel, other = KERNELS["gaussian"], frame(Z)[[*"cab"]]
    want = kernel(X, Z)
    assert_close(rls.extend.gram(kernel, frame(X), other), want, 0)
    assert_close(kernel(frame(X), other), want, 0)
    assert_close(rls.extend.gram_matmul(kernel, frame(X), other, V), want @ V, 100 * EPS)
    factor, same = (rls.factorize(kernel, frame(X), landmarks=rows) for rows in (other, Z))
    assert_close(factor.s, same.s, 0)
    refused(
        (
            lambda: kernel(frame(X), other.rename(columns={"b": "d"})),
            "Z must have .* and 'b' is in",
        ),
    )
