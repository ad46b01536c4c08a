"""Sums kept on disk while they grow, so that a run that was killed goes on where it was, and ends
as one that was not, to the bit.

A sum is known by what it makes of the first block, by its columns and by the checksum of all rows:
a file of another kernel, other landmarks or other rows is left alone until the first block is done,
and then written over."""

import hashlib
import os
from typing import Any

import jax
import numpy as np

from jaxrls.support.files import Damaged, read_arrays, write_arrays


class Checkpoint:
    """Sums by what they are known by, each with the number of rows that it holds; those that this
    process asked for are written together.
    """

    def __init__(self, path: str | os.PathLike):
        self.path, self.used = os.fspath(path), set[str]()
        self.sums: dict[str, Any] = read(self.path) if os.path.exists(self.path) else {}

    def find(self, key: str) -> tuple[int, list[np.ndarray]] | None:
        """Rows and leaves of a sum that was begun before, which from now on is written with the
        others.
        """
        self.used.add(key)
        return self.sums.get(key)

    def keep(self, key: str, rows: int, total: Any) -> None:
        """Write the sum of so many rows, whole or not at all."""
        self.sums[key] = rows, [np.asarray(leaf) for leaf in jax.tree.leaves(total)]
        arrays, counts = {}, {}
        for name in sorted(self.used & self.sums.keys()):
            count, leaves = self.sums[name]
            arrays.update({f"{name}/{i}": leaf for i, leaf in enumerate(leaves)})
            counts[name] = count, len(leaves)
        write_arrays(self.path, arrays, {"sums": counts})


def read(path: str) -> dict[str, tuple[int, list[np.ndarray]]]:
    """All sums of a file. **Raises** `ValueError` for one that is damaged, or something else."""
    try:
        arrays, header = read_arrays(path)
        return {
            key: (rows, [arrays[f"{key}/{i}"] for i in range(count)])
            for key, (rows, count) in header["sums"].items()
        }
    except (Damaged, KeyError) as error:
        raise ValueError(
            f"{path} is no checkpoint, or is damaged: {error}: remove it to begin anew"
        ) from None


def key_of(first: Any, columns: Any, checksum: int) -> str:
    """What a sum is known by."""
    found = hashlib.sha256(str((checksum, jax.tree.structure(first))).encode())
    for leaf in jax.tree.leaves((first, columns)):
        array = np.ascontiguousarray(leaf)
        found.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()[:32]
