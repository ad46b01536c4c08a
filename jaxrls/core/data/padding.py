"""Few rows are padded by rows of weight 0, or by copies of the last one, so that one compiled
program serves several numbers of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# With more rows the weights of a padded fit cost too much: 1.5 times its time at 1000 rows.
PADDED_UP_TO = 512


def common_size(n: int) -> int:
    """The number of rows to which n are padded: one of eight."""
    return n + -n % 64 if n <= PADDED_UP_TO else n


def pad_rows(values: Array | np.ndarray, missing: int, mode: str = "constant") -> Any:
    """Arrays with `missing` more rows: 0, or with the mode "edge" the last one again. A NumPy array
    is copied also where none are missing: the caller may change it.
    """
    if not missing and isinstance(values, jax.Array):
        return values
    pad: Any = jnp.pad if isinstance(values, jax.Array) else np.pad
    return pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)], mode=mode)


def first_rows(a: Array | np.ndarray, n: int) -> jax.Array:
    """The first n rows of an array of known values, by no program."""
    return jax.device_put(np.asarray(a)[:n])
