"""Rows of many processes, each of which reads its own: sums are taken over all processes, and small
arrays are known to all.

Every process calls the same functions in the same order on its own rows, and gets the same result.
No rows leave their process, except those that are asked for by number. In each round of a loop
every process reports that it continues, is done or has failed; an error in one is raised in all. A
killed process closes its connections, which the others notice; a hanging one sends no heartbeats,
and `jax.distributed` ends the others after `heartbeat_timeout_seconds`.
"""

import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrls.rows.streamed import Known, StreamedRows, drawn_of, together


class OtherFailed(RuntimeError):
    """Another process has failed, or has ended."""


@contextmanager
def in_unison():
    """An exception that one process raises inside is raised in all, where they next communicate."""
    try:
        yield
    except OtherFailed:
        raise
    except Exception as error:
        _meet(f"{type(error).__name__}: {error}")
        raise


def in_step(items: Iterable) -> Iterator:
    """The items of this process, in as many rounds as the process with the most items needs; to be
    used `in_unison`.

    >>> list(in_step([1, 2]))
    [1, 2]
    """
    items = iter(items)
    while any(_meet(bool(item := list(islice(items, 1))))):
        yield from item


def add_up(tree: Any) -> Any:
    """The sum over processes of a pytree of arrays, bitwise equal in all of them: one all-reduce
    for each array.
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
    sums = jax.tree.map(lambda leaf: leaf.sum(axis=0, dtype=leaf.dtype), spread)
    return jax.lax.with_sharding_constraint(sums, everywhere)


def gather(tree: Any) -> list:
    """The pytrees of NumPy arrays of all processes, on the host; shapes and dtypes may differ."""
    pickled = np.frombuffer(pickle.dumps(tree), np.uint8)  # processes of one program are trusted
    sizes = _gathered(np.array([len(pickled)], np.int64).view(np.uint8)).view(np.int64)[:, 0]
    gathered = _gathered(np.pad(pickled, (0, int(sizes.max()) - len(pickled))))
    return [pickle.loads(a[:size].tobytes()) for a, size in zip(gathered, sizes, strict=True)]


def _meet(state: bool | str) -> list:
    """The states of all processes: whether they go on, or what failed. Raises where another one
    has failed, unless this one has too.
    """
    states = gather(state)
    for i, other in enumerate(states):
        if isinstance(other, str) and not isinstance(state, str):
            raise OtherFailed(f"process {i} failed: {other}")
    return states


def _gathered(array: np.ndarray) -> np.ndarray:
    """Arrays of one shape of all processes, stacked."""
    with _connected():
        every = np.asarray(multihost_utils.process_allgather(array))
    return every.reshape(jax.process_count(), *array.shape)


@contextmanager
def _connected():
    """Raise a readable error where another process has ended."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise OtherFailed(
            "another process has ended, or cannot be reached: see what it printed last; with "
            f"checkpoint= the same call continues: {error}"
        ) from error


class JointRows(StreamedRows):
    """Rows that are divided among many processes: see `stream(…, distributed=True)`.

    >>> import numpy as np, jaxrls as rls
    >>> blocks = [(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])]
    >>> rows = rls.rows.stream(blocks, distributed=True)  # of as many processes as there are: one
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    lies = "lies with several processes"
    own: Any = None
    in_step = staticmethod(in_step)

    def __init__(self, source, *, seed: int = 0, checkpoint: Any = None, **options):
        index = jax.process_index()
        count = jax.process_count()
        if checkpoint is not None:
            checkpoint = f"{os.fspath(checkpoint)}.{index}-of-{count}"
        with in_unison():
            super().__init__(source, seed=[seed, index], checkpoint=checkpoint, **options)

    def _first_reading(self, sample, seed):
        known = super()._first_reading(sample, seed)
        everyones = gather(known)
        check_alike(everyones)
        self.own = int(known.n)
        self.first = sum(int(other.n) for other in everyones[: jax.process_index()])
        return merged(everyones, sample)._replace(checksum=known.checksum)

    def reading(self, kind, run, columns):
        """As `HostRows.reading`: every process reads its own rows. A sum takes one all-reduce for
        each array; the results of a map, a few numbers a row, are gathered by all.
        """
        with in_unison():
            part = super().reading(kind, run, columns)
        if kind == "sum":
            return add_up(part)
        gathered = gather(jax.tree.map(np.asarray, part))
        return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *gathered)

    def rows_here(self, indices):
        with in_unison():
            rows = super().rows_here(indices)
        return sum(gather(rows))


def check_alike(everyones: list[Known]) -> None:
    """Raise where rows of different processes do not match."""
    parts = [(known.drawn.rows, known.labels, known.weights) for known in everyones]
    forms = [[part is not None and part.shape[1:] for part in of_process] for of_process in parts]
    for i, form in enumerate(forms):
        if form != forms[0]:
            raise ValueError(
                f"rows of process {i} do not match those of process 0: give all of them as many "
                "columns and labels, and weights to all or none"
            )


def merged(everyones: list[Known], most: int) -> Known:
    """What is known of the rows of all processes, with the sample that a single process would have
    drawn from all of them.
    """
    n = 0
    samples = []
    for known in everyones:
        samples.append(known.drawn._replace(numbers=known.drawn.numbers + n))
        n += int(known.n)
    labels, weights = (together([known[i] for known in everyones]) for i in (1, 2))
    return Known(n, labels, weights, drawn_of(samples, most), 0)
