"""Pads few rows to a common number of rows, so that one compiled program serves several numbers.

The added rows have weight 0, or are copies of the last row.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# With more rows, padding costs too much: a padded fit has weights, which at 1000 rows make it take
# 1.5 times as long.
PADDED_UP_TO = 512


def common_size(n: int) -> int:
    """Return the number of rows to which n rows are padded.

    Up to PADDED_UP_TO this is the next multiple of 64, one of eight numbers. Above, it is n.
    """
    return n + -n % 64 if n <= PADDED_UP_TO else n


def pad_rows(values: Array | np.ndarray, missing: int, mode: str = "constant") -> Any:
    """Return an array with `missing` more rows, which are 0, or the last row for the mode "edge".

    The result is a copy of a NumPy array even if no row is missing, because the caller may change
    its array later.
    """
    if not missing and isinstance(values, jax.Array):
        return values
    pad: Any = jnp.pad if isinstance(values, jax.Array) else np.pad
    return pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)], mode=mode)


def first_rows(a: Array | np.ndarray, n: int) -> jax.Array:
    """Return the first n rows of an array that has values now, without compiling a program."""
    return jax.device_put(np.asarray(a)[:n])
