"""What kernels are given: a block of rows, which is an array or another `Block`, and the functions of
blocks that kernels are made of.

Their defaults are those of arrays; a kind of block registers its own where it has a faster way.
"""

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg.products import matmul
from jaxrls.core.support.checks import as_array, check_matrix


class Block(ABC):
    """Rows (b, d) that are not stored as one array: a pytree, which kernels of a class with `sparse
    = True` get as it is, and others dense.
    """

    ndim = 2
    shape: Any  # (b, d)
    dtype: Any

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype) -> Any:
        """The same rows in another dtype; whole numbers, such as places of entries, keep theirs."""
        is_real = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if is_real(leaf) else leaf, self)

    @abstractmethod
    def dense(self) -> Float[Array, "b d"]:
        """The same rows in one array."""


def as_block(name: str, X) -> Any:
    """Rows (n, d) of a table, list or array, or a `Block` as it is."""
    X = X if isinstance(X, jax.Array | Block) else as_array(name, X)
    if X.ndim != 2:
        check_matrix(name, X)
    return X


def as_dense(X: Any) -> Any:
    """Rows in one array."""
    return X.dense() if isinstance(X, Block) else X


@singledispatch
def inner_products(X: Any, Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """⟨x, z⟩ of all rows."""
    return matmul(X, Z.T)


@singledispatch
def squared_lengths(X: Any) -> Float[Array, " n"]:
    """⟨x, x⟩ of every row."""
    return jnp.sum(X * X, axis=1)
