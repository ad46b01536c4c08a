"""K and K·V in row blocks: the same numbers and derivatives as in one piece, without the n×m
buffer.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import DTYPE, EPS, array, assert_close

import jaxrls as rls

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
            rls.gram_matmul(kernel, X, Z, columns, block_size=size) for columns in (V, V[:, 0])
        )
        return (
            rls.gram(kernel, X, Z, block_size=size),
            rls.gram(kernel, X, block_size=size),
            *products,
        )

    K = kernel(X, Z)
    for got, want in zip(everything(X, Z, V), (K, kernel(X, X), K @ V, K @ V[:, 0]), strict=True):
        assert_close(got, want, 20 * EPS)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_square_gram_has_the_kernels_own_diagonal(kernel):
    X = data()[0]
    K, diagonal = jax.jit(lambda X: (rls.gram(kernel, X, block_size=5), kernel.diag(X)))(X)
    assert K.dtype == DTYPE
    assert (jnp.diagonal(K) == diagonal).all()
    assert_close(K, K.T, 4 * EPS, "symmetry")


@pytest.mark.float64
def test_derivatives_are_those_of_one_piece():
    """Gradient, forward derivative and Hessian-vector product, in parameters, X, Z and V
    together.
    """
    start, back = ravel_pytree((jax.tree.map(array, KERNELS["gaussian"]), *data()))
    direction = array(np.random.default_rng(1).normal(size=start.shape))

    def blocked(flat):
        kernel, X, Z, V = back(flat)
        return jnp.sum(jnp.sin(rls.gram_matmul(kernel, X, Z, V, block_size=5))) + jnp.sum(
            jnp.cos(rls.gram(kernel, X, block_size=5))
        )

    def whole(flat):
        kernel, X, Z, V = back(flat)
        off_diagonal = 1 - jnp.eye(len(X), dtype=X.dtype)
        return (
            jnp.sum(jnp.sin(kernel(X, Z) @ V))
            + jnp.sum(jnp.cos(kernel(X, X)) * off_diagonal)
            + jnp.sum(jnp.cos(kernel.diag(X)))
        )

    def everything(f):
        def derivatives(flat):
            return (
                f(flat),
                *jax.jvp(jax.grad(f), (flat,), (direction,)),
                jax.jvp(f, (flat,), (direction,))[1],
            )

        return jax.jit(derivatives)(start)

    for what, got, want in zip(
        ("value", "gradient", "Hessian-vector product", "jvp"),
        everything(blocked),
        everything(whole),
        strict=True,
    ):
        assert_close(got, want, 2000 * EPS, what)


def buffers(f, *arguments):
    """Bytes of temporaries of the compiled f, and the shapes in its program."""
    compiled = jax.jit(f).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes, compiled.as_text()


@pytest.mark.any_precision
def test_the_matrix_is_never_held():
    """The compiled product, and its gradient in everything, fit in far less than K: no n×m buffer
    is in the program.
    """
    n, m, size = 1000, 1010, 40
    kernel = jax.tree.map(array, rls.Gaussian(1.5))
    X, Z, V = data(n, m)
    matrix = n * m * X.dtype.itemsize

    def product(kernel, X, Z, V):
        return jnp.sum(rls.gram_matmul(kernel, X, Z, V, block_size=size) ** 2)

    def in_one_piece(kernel, X, Z, V):
        return jnp.sum((kernel(X, Z) @ V) ** 2)

    for f in (product, jax.grad(product, (0, 1, 2, 3))):
        temporaries, text = buffers(f, kernel, X, Z, V)
        assert temporaries < matrix / 4, f"{temporaries} bytes of temporaries, and K has {matrix}"
        assert not re.search(rf"\[{n},{m}\]", text)
    # so that the test can fail: the product in one piece does hold K
    temporaries, text = buffers(jax.grad(in_one_piece, (0, 1, 2, 3)), kernel, X, Z, V)
    assert temporaries >= matrix and re.search(rf"\[{n},{m}\]", text)


@pytest.mark.any_precision
@pytest.mark.parametrize("product", [False, True], ids=["gram", "gram_matmul"])
def test_messages(product):
    X, Z, V = data()

    def call(X, Z, size=None, V=V):
        kernel = rls.Linear()
        return (
            rls.gram_matmul(kernel, X, Z, V, block_size=size)
            if product
            else rls.gram(kernel, X, Z, block_size=size)
        )

    cases = [
        (lambda: call(X[:, 0], Z), "X must have shape (n, d), and has shape (12,)"),
        (lambda: call(X, Z[0]), "Z must have shape (n, d), and has shape (3,)"),
        (lambda: call(X, Z[:, :2]), "X and Z must have equally many columns, and have 3 and 2"),
        (lambda: call(X, Z, 0), "block_size must be a whole number of at least 1, and is 0"),
        (lambda: call(X, Z, 2.5), "block_size must be a whole number of at least 1, and is 2.5"),
        (lambda: call(X, Z, True), "block_size must be a whole number of at least 1, and is True"),
    ]
    if product:
        cases.append(
            (
                lambda: call(X, Z, V=V[:3]),
                "V must have 7 rows, one per column of K, and has shape (3, 2)",
            )
        )
    for case, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            case()
