"""What kernels are given: a block of rows, which is an array or another `Block`, and the functions
of blocks that kernels are made of.

Their defaults are those of arrays; a kind of block registers its own where it has a faster way.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.linalg import matmul
from jaxrls.core.support import as_array, check_matrix


class Block:
    """Rows (b, d) that are more than one array: a frozen pytree with `shape`, `values`, and what
    tells where these lie. Kernels of a class with `sparse = True` get it as it is, others dense.
    """

    ndim = 2
    shape: Any
    values: Any

    @property
    def dtype(self):
        """That of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype) -> Any:
        """The same rows in another dtype."""
        return replace(self, values=self.values.astype(dtype))  # type: ignore[type-var]

    def dense(self) -> Float[Array, "b d"]:
        """The same rows in one array."""
        return self.values


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
