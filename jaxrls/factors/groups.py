"""Rows that are left out together: group labels as row numbers of fixed shape."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.support.checks import is_concrete
from jaxrls.support.pytrees import pytree, static


@pytree
class Folds:
    """Row numbers by fold, padded to the largest: what leaving groups out needs of group labels, with shapes that `jax.jit` can know.

    `inside` and `outside` are the rows of each group and all others, their masks 1 where a number counts and 0 where it pads.

    >>> import jaxrls as rls
    >>> rls.folds(["a", "b", "a"]).inside_mask.tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    inside: Int[Array, "k b"]
    inside_mask: Float[Array, "k b"]
    outside: Int[Array, "k a"]
    outside_mask: Float[Array, "k a"]
    rows: int = static()


def folds(groups) -> Folds:
    """Read group labels into `Folds`: on the host, before `jax.jit`.

    **Arguments**: `groups` (n,), any labels; rows of equal label are left out together. **Raises** `ValueError` unless there are
    at least two groups, or inside `jax.jit`. **Cost** O(n k). **Source**: as `kfold`.

    >>> folds([0, 1, 0]).inside.tolist()
    [[0, 2], [1, 1]]
    """
    if not is_concrete(groups):
        raise ValueError("groups has no values inside jax.jit: call jaxrls.folds(groups) outside, and pass its result")
    groups = np.asarray(groups)
    if groups.ndim != 1 or groups.size == 0:
        raise ValueError(f"groups must have shape (n,), one label per row, and has shape {groups.shape}")
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError("groups must be labels that can be sorted, with none missing, and holds NaN")
    try:
        labels, member = np.unique(groups, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups must be labels that can be sorted, with none missing: {error}") from None
    if len(labels) < 2:
        raise ValueError(f"groups holds one label only, {labels.tolist()[0]!r}: leaving it out would leave nothing to fit")
    inside = [np.flatnonzero(member == k) for k in range(len(labels))]
    outside = [np.flatnonzero(member != k) for k in range(len(labels))]
    return Folds(*_pad(inside), *_pad(outside), groups.size)


def _pad(lists) -> tuple[Array, Array]:
    width = max(map(len, lists))
    index = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in lists])
    mask = np.stack([np.arange(width) < len(rows) for rows in lists]).astype(np.float32)
    return jnp.asarray(index.astype(np.int32)), jnp.asarray(mask)
