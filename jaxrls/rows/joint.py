"""Rows that are divided among many processes, each of which reads its own rows.

Every process calls the same functions in the same order on its own rows, and gets the same result.
Sums are taken over all processes, and every process holds all labels and weights. No rows leave
their process, except the sample and rows that are asked for by number.

In each round of a loop every process reports whether it continues, is done or has failed. An error
in one process is raised in all. A killed process closes its connections, which the others notice. A
hanging process sends no heartbeats, and `jax.distributed` ends the others after
`heartbeat_timeout_seconds`.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import SUM, Reduction
from jaxrls.rows.streamed import Known, StreamedRows, drawn_of, ends_of, together
from jaxrls.rows.tables import quoted


class OtherFailed(RuntimeError):
    """The error that another process has failed, or has ended."""


class Failure(NamedTuple):
    """What a process that failed reports to the others, in place of its results."""

    text: str


@contextmanager
def in_unison() -> Iterator[None]:
    """Raise an exception of one process in all processes.

    The other processes raise it when they next communicate.
    """
    try:
        yield
    except OtherFailed:
        raise
    except Exception as error:
        gather(Failure(f"{type(error).__name__}: {error}"))
        raise


def in_step(items: Iterable) -> Iterator:
    """Yield the items of this process, in as many rounds as the process with the most items needs.

    Use it inside `in_unison`.

    >>> list(in_step([1, 2]))
    [1, 2]
    """
    items = iter(items)
    while any(gather(bool(item := list(islice(items, 1))))):
        yield from item


def add_up(tree: Any) -> Any:
    """Return the sum over all processes of a pytree of arrays.

    The result is bitwise equal in all processes. It takes one all-reduce for each array.
    """
    if jax.process_count() == 1:
        return tree
    firsts = np.array(jax.devices()).reshape(jax.process_count(), -1)[:, 0]
    mesh = Mesh(firsts, ("processes",))
    local = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
    with _connected():
        spread = multihost_utils.host_local_array_to_global_array(local, mesh, P("processes"))
        total = jax.block_until_ready(_total(spread, everywhere=NamedSharding(mesh, P())))
        return multihost_utils.global_array_to_host_local_array(total, mesh, P())


@partial(jax.jit, static_argnames="everywhere")
def _total(spread: Any, *, everywhere: NamedSharding) -> Any:
    """Return the sums over processes, in every process."""
    sums = jax.tree.map(lambda leaf: leaf.sum(axis=0, dtype=leaf.dtype), spread)
    return jax.lax.with_sharding_constraint(sums, everywhere)


def gather(tree: Any) -> list:
    """Return a list of the pytrees of NumPy arrays of all processes, on the host.

    Shapes and dtypes may differ between processes. Raise if another process reports a `Failure`,
    unless this one does too.
    """
    pickled = np.frombuffer(pickle.dumps(tree), np.uint8)  # processes of one program are trusted
    sizes = _gathered(np.array([len(pickled)], np.int64).view(np.uint8)).view(np.int64)[:, 0]
    gathered = _gathered(np.pad(pickled, (0, int(sizes.max()) - len(pickled))))
    trees = [pickle.loads(a[:size].tobytes()) for a, size in zip(gathered, sizes, strict=True)]
    for i, other in enumerate(trees):
        if isinstance(other, Failure) and not isinstance(tree, Failure):
            raise OtherFailed(f"process {i} failed: {other.text}")
    return trees


def _gathered(array: np.ndarray) -> np.ndarray:
    """Return an array of each process, stacked. The arrays must have the same shape."""
    with _connected():
        every = np.asarray(multihost_utils.process_allgather(array))
    return every.reshape(jax.process_count(), *array.shape)


@contextmanager
def _connected() -> Iterator[None]:
    """Raise a readable error if another process has ended."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise OtherFailed(
            "another process has ended, or cannot be reached: see what it printed last; with "
            f"checkpoint= the same call continues: {error}"
        ) from error


class JointRows(StreamedRows):
    """Rows that are divided among many processes; `stream(…, distributed=True)` makes them.

    >>> import numpy as np, jaxrls as rls
    >>> blocks = [(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])]
    >>> rows = rls.rows.stream(blocks, distributed=True)  # of as many processes as there are: one
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    lies = "lies with several processes"
    own: Any = None
    in_step = staticmethod(in_step)

    def __init__(self, source: Iterable, *, seed: int = 0, checkpoint: Any = None, **options):
        index = jax.process_index()
        count = jax.process_count()
        if checkpoint is not None:
            checkpoint = f"{os.fspath(checkpoint)}.{index}-of-{count}"
        with in_unison():
            super().__init__(source, seed=[seed, index], checkpoint=checkpoint, **options)

    def _first_reading(self, sample: int, seed: Any) -> Known:
        """Read the rows of this process, and return what is kept of the rows of all processes.

        It also sets `own` and `first`: which rows this process reads.
        """
        known = super()._first_reading(sample, seed)
        everyones = gather(known)
        check_alike(everyones)
        check_named_alike(gather({"columns": self.column_names, "labels": self.target_names}))
        self.own = int(known.n)
        self.first = sum(int(other.n) for other in everyones[: jax.process_index()])
        return merged(everyones, sample)._replace(checksum=known.checksum)

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise in all processes if rows of one lie outside of the kernel's domain."""
        with in_unison():
            super().check(kernel, name, training=training)
        gather(None)  # pairs with the report of `in_unison` in a process that failed

    def read_blocks(self, reduction: Reduction, run: Callable, columns: Any) -> Any:
        """Read the rows of this process once, and return the results for the rows of all processes.

        It takes the arguments of `HostRows.read_blocks`. A sum takes one all-reduce for each array.
        The results of a map, a few numbers for each row, are gathered by all processes.
        """
        with in_unison():
            part = super().read_blocks(reduction, run, columns)
        if reduction is SUM:
            return add_up(part)
        gathered = gather(jax.tree.map(np.asarray, part))
        return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *gathered)

    def rows_here(self, indices: np.ndarray) -> Any:
        """Return the rows with these numbers, whichever processes read them."""
        with in_unison():
            rows = super().rows_here(indices)
        return sum(gather(rows))


def check_alike(everyones: list[Known]) -> None:
    """Raise if the rows of different processes do not match in columns, labels or weights."""
    parts = [(known.drawn.rows, known.labels, known.weights) for known in everyones]
    forms = [[part is not None and part.shape[1:] for part in of_process] for of_process in parts]
    for i, form in enumerate(forms):
        if form != forms[0]:
            raise ValueError(
                f"rows of process {i} do not match those of process 0: give all of them as many "
                "columns and labels, and weights to all or none"
            )


def check_named_alike(everyones: list[dict[str, tuple]]) -> None:
    """Raise if processes name their columns or labels differently, or in another order."""
    first: dict[str, tuple[int, tuple]] = {}
    for i, of_process in enumerate(everyones):
        for what, names in of_process.items():
            other, found = first.setdefault(what, (i, names)) if names else (i, names)
            if found != names:
                raise ValueError(
                    f"rows of process {i} have the {what} {quoted(names)}, and those of process "
                    f"{other} {quoted(found)}: give all of them the same ones in the same order"
                )


def merged(everyones: list[Known], most: int) -> Known:
    """Combine what the first reading found in each process.

    The sample is the same as a single process would have drawn from all rows with the same random
    numbers.
    """
    n = 0
    samples = []
    for known in everyones:
        samples.append(known.drawn._replace(numbers=known.drawn.numbers + n))
        n += int(known.n)
    return Known(
        n=n,
        labels=together([known.labels for known in everyones]),
        weights=together([known.weights for known in everyones]),
        drawn=drawn_of(samples, most),
        ends=ends_of([known.ends for known in everyones]),
        checksum=0,  # each process keeps that of its own rows
    )
