"""Levels of a fit in float64, which rows in a narrower dtype would not have.

The kernel `Levels` compares numbers, and 0.1 in float32 is another number than 0.1 in float64.
"""

from typing import Any

import numpy as np
from jaxtyping import Int

from jaxrls.core.kernels import Kernel, Levels, On
from jaxrls.core.support import known_values

# Names of dtypes that are narrower than float64, and how PyArrow calls them.
NARROW = {
    "float16": "float16",
    "halffloat": "float16",
    "float32": "float32",
    "float": "float32",
}


def check_levels_fit_dtype(kernel: Kernel, fitted: Any, X: Any, name: str = "X") -> None:
    """Raise if the dtype of other rows rounds levels of the fitted rows, which are then not found.

    For example, 0.1 in float32 is not 0.1 in float64.

    Args:
        kernel: the kernel. The levels are the numbers in columns that some `Levels` in it compares.
        fitted: the fitted rows. Only an array with values is looked at.
        X: the other rows, as the caller gave them.
        name: the name of X in the error.
    """
    if getattr(X, "dtype", None) == np.float64 or getattr(fitted, "dtype", None) != np.float64:
        return
    if fitted.ndim != 2:
        return
    dtypes = _narrow_dtypes(X, fitted.shape[1])
    compared = _compared_columns(kernel, np.arange(fitted.shape[1]))
    narrow = [j for j in compared if dtypes[j] is not None]
    values = known_values(fitted) if narrow else None
    if not isinstance(values, np.ndarray):
        return
    for j in narrow:
        levels = values[:, j]
        rounded = levels[levels.astype(dtypes[j]) != levels]
        if len(rounded):
            raise ValueError(
                f"{name} has dtype {dtypes[j]}, which rounds levels of the fit such as "
                f"{rounded[0]}, and would have none of them: give float64, as the fit had"
            )


def _narrow_dtypes(X: Any, d: int) -> list[str | None]:
    """Return the dtype of each of d columns, None for one that is no narrower than float64."""
    given = getattr(X, "dtypes", None)  # of a data frame
    if given is None:
        given = getattr(getattr(X, "schema", None), "types", None)  # of a table of PyArrow
    if given is None:
        given = [getattr(X, "dtype", "")] * d
    dtypes = [NARROW.get(str(dtype).lower().removesuffix("[pyarrow]")) for dtype in given]
    return dtypes if len(dtypes) == d else [None] * d


def _compared_columns(kernel: Kernel, columns: Int[np.ndarray, " d"]) -> list[int]:
    """Return the columns, of those that a kernel takes, whose levels some `Levels` in it compares."""
    if isinstance(kernel, Levels):
        return columns.tolist()
    if isinstance(kernel, On):
        columns = columns[np.array(kernel.columns)]
    parts = kernel._parts().values()
    return sorted({j for part in parts for j in _compared_columns(part, columns)})
