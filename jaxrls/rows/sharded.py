"""Rows on a mesh of devices. Each device reads its own rows in blocks, and sums are added up once.

Rows are cut into as many equal parts as there are devices. One loop reads blocks of all parts at
once, with nothing passed between parts. At its end it adds the sums of all parts. The compiler
therefore leaves rows where they are and makes one all-reduce, whose size does not grow with the
rows.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from jaxrls.core.data import KINDS_OF_ROWS, Candidates, DenseRows, Rows, Weights, pad_rows
from jaxrls.core.support import (
    Listed,
    as_array,
    as_floats,
    auto,
    check_index,
    check_matrix,
    check_scale,
    check_targets,
    check_weights,
    column_names,
    devices_of,
    pytree,
    shards_of,
    static,
    warn,
    with_index,
)
from jaxrls.front import ROUNDED_SHARE, warn_of_far_labels
from jaxrls.rows.streamed import SAMPLE


@pytree
class ShardedRows(DenseRows):
    """Rows of an array that is distributed over several devices; make them with `shard`.

    Args:
        X: (n, d), with the padding.
        shards: how many devices hold rows.
        sharding: the sharding of a column (n,), None if it is unknown.
        count: how many rows are not padding. The padding is at the end and has weight 0.
        labels: (n,) or (n, t), None without labels.
        row_weights: (n,), None without weights.
        column_names: the names of the columns, if X was a data frame or a table, else ().
        target_names: the names of the columns of labels, likewise.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    >>> rows = rls.rows.shard(jnp.ones((3, 2)), jnp.arange(3.0), mesh=mesh)
    >>> rows.count, rows.shape[0] % jax.device_count()
    (3, 0)
    """

    in_memory: ClassVar[bool] = False
    sharding: Any = static(default=None)  # of a column (n,), with Auto axes; None if unknown
    count: int = static(default=0)  # the number of rows without the padding
    labels: Float[Array, "n *t"] | None = None
    row_weights: Float[Array, " n"] | None = None
    column_names: tuple = static(default=())
    target_names: tuple = static(default=())

    @classmethod
    def takes(cls, X: Any) -> bool:
        """Whether X is an array that has values now and whose rows lie on several devices."""
        return devices_of(X) > 1 and X.ndim == 2 and X.size > 0 and shards_of(X) > 1

    @classmethod
    def read(cls, name: str, X: Any, dtype: Any = None) -> "ShardedRows":
        """Make `ShardedRows` of an array for which `takes` is true."""
        return cls.of(as_array(name, X, dtype))

    @classmethod
    def of(
        cls, X: Any, labels: Any = None, weights: Any = None, count: int | None = None
    ) -> "ShardedRows":
        """Make `ShardedRows` of an array whose rows lie on several devices.

        Raises:
            ValueError: if the columns are distributed too.
        """
        if X.sharding.shard_shape(X.shape)[1] != X.shape[1]:
            raise ValueError(
                "X must have whole rows on every device, and its columns are split too, by "
                f"{X.sharding}: split its first axis only"
            )
        named = isinstance(X.sharding, NamedSharding)
        sharding = NamedSharding(auto(X.sharding.mesh), P(X.sharding.spec[0])) if named else None
        return cls(X, shards_of(X), sharding, count or X.shape[0], labels, weights)

    def _placed(self, arrays: Any, whole: bool = False) -> Any:
        """Return arrays on the devices of the rows, or with `whole` on every device."""
        if self.sharding is None:
            return arrays
        place = NamedSharding(self.sharding.mesh, P()) if whole else self.sharding
        return jax.lax.with_sharding_constraint(arrays, place)

    def column(self, values: Any) -> Array:
        """Return an array that is distributed as the rows are, with 0 for padding."""
        values = pad_rows(values, self.shape[0] - self.count if len(values) == self.count else 0)
        fits = self.sharding is not None and len(values) == self.shape[0]
        return jax.device_put(values, self.sharding) if fits else jnp.asarray(values)

    def like(self, values: Float[Array, "n r"]) -> "ShardedRows":
        """Return other numbers for each row, on the same devices."""
        return replace(self, X=values, column_names=())

    def select(self, names: Iterable) -> "ShardedRows":
        """Return the rows with only the columns of these names, in this order."""
        numbers = np.array([self.column_names.index(name) for name in names])
        return replace(self, X=self.X[:, numbers], column_names=tuple(names))

    def candidates(self) -> Candidates:
        """Return a random sample, the same in every call."""
        random = np.random.default_rng(0)
        drawn = np.sort(random.choice(self.count, min(self.count, SAMPLE), replace=False))
        return Candidates(drawn, self.take(drawn))

    @property
    def lies(self) -> str:
        """Text for messages: on how many devices the rows lie."""
        return f"lies on {self.shards} devices"

    dense = Rows.dense


KINDS_OF_ROWS.append(ShardedRows)


def shard(
    X: Any,
    Y: Float[Array, "n *t"] | Listed | None = None,
    weights: Float[Array, " n"] | Listed | None = None,
    *,
    mesh: Mesh | None = None,
    axis: str | tuple[str, ...] | None = None,
) -> ShardedRows:
    """Distribute rows, with labels and weights, evenly over an axis of a mesh of devices.

    `fit(kernel, shard(X, Y, mesh=mesh), landmarks=…)` then runs on all devices of the axis. So does
    everything else that takes rows and does not need K of all pairs. If n is no multiple of the
    number of devices, rows of weight 0 are added at the end. Results have entries for these rows
    too: `np.asarray(fit.loo_residuals)[:n]` are the residuals of X.

    Args:
        X: rows (n, d), NumPy or JAX, or a data frame, whose column names are kept. They are stored
            in the precision that JAX is set to.
        Y: labels (n,) or (n, t).
        weights: (n,), by default ones.
        mesh: a mesh with Auto or Explicit axes. By default it is the mesh of an X that is already
            distributed, as `jax.make_array_from_process_local_data` returns it if each process has
            its own rows.
        axis: an axis of `mesh`, or several, by default the first.

    Returns:
        `ShardedRows`, to pass as X.

    Raises:
        ValueError: for shapes that do not fit, or without a mesh.

    **Warns** if that precision rounds away how a column or the labels vary. **Cost** of moving the
    rows; each of N devices holds 1/N of them. **Source**: the package's own.

    >>> import jax, numpy as np, jaxrls as rls
    >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    >>> X = np.linspace(-1, 1, 50, dtype=np.float32)[:, None]
    >>> rows = rls.rows.shard(X, X[:, 0] ** 2, mesh=mesh)
    >>> fit = rls.fit(rls.Gaussian(0.5), rows, landmarks=8, lams=[1e-3])
    >>> bool(fit.error < 1e-3), fit.predict(X).shape
    (True, (50,))
    """
    check_index({"X": X, "Y": Y, "weights": weights})
    array: Any = as_floats("X", X)
    check_matrix("X", array)
    n = len(array)
    dtype = array.dtype
    if isinstance(array, np.ndarray):
        _warn_of_rounding(array, jax.dtypes.canonicalize_dtype(dtype))
    sharding = _sharding(array, mesh, axis)
    devices = sharding.mesh.size
    missing = -n % (devices // sharding.shard_shape((devices,))[0])
    put = lambda part, mode="constant": jax.device_put(pad_rows(part, missing, mode), sharding)
    labels: Any = None
    if Y is not None:
        warn_of_far_labels(Y, Weights.of(None, n, jax.dtypes.canonicalize_dtype(dtype)))
        labels = as_floats("Y", Y)
        check_targets("Y", labels, n)
        check_scale("Y", labels, jax.dtypes.canonicalize_dtype(dtype))  # before they round to 0
        labels = as_floats("Y", labels, dtype)
        labels = put(labels)
    if weights is not None or missing:
        weights = as_floats("weights", np.ones(n) if weights is None else weights, dtype)
        check_weights(weights, n)
        weights = put(weights)
    rows = ShardedRows.of(put(array, "edge"), labels, weights, n)
    named = replace(rows, column_names=column_names(X), target_names=column_names(Y))
    return with_index(named, X)


def _warn_of_rounding(X: Float[np.ndarray, "n d"], dtype: Any) -> None:
    """Warn if columns lose more than `ROUNDED_SHARE` of their spread in the dtype of JAX."""
    if X.dtype == dtype:
        return
    rounded = []
    for j, column in enumerate(X.T):
        with np.errstate(over="ignore", invalid="ignore"):  # such values are refused later
            rounding = np.abs(column.astype(dtype) - column).max()
            spread = column.std()
            exact = 100 * np.finfo(X.dtype).eps * np.abs(column).max()
        if exact < spread < np.inf and rounding > ROUNDED_SHARE * spread:
            rounded.append((j, rounding, spread))
    if rounded:
        j, rounding, spread = rounded[0]
        warn(
            f"{dtype}, to which JAX is set, rounds {len(rounded)} of {X.shape[1]} columns of X, "
            f"number {j} by up to {rounding:.2g}, which varies by {spread:.2g}: take their means "
            "off first, or set jax_enable_x64"
        )


def _sharding(X: Any, mesh: Mesh | None, axis: Any) -> NamedSharding:
    """Return the sharding of rows over an axis of the mesh, or over the axis on which X lies."""
    if mesh is not None:
        return NamedSharding(mesh, P(axis or mesh.axis_names[0]))
    sharding = getattr(X, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec[:1]):
        raise ValueError(
            "mesh= is needed, as X does not lie on one: jax.make_mesh((jax.device_count(),), "
            "('rows',)) has all devices"
        )
    return NamedSharding(sharding.mesh, P(sharding.spec[0]))
