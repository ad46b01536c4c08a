"""Communication between the processes of `jax.distributed`, so that none waits for one that has
failed.

All processes do the same at the same time. In each round of a loop every process reports that it
continues, is done or has failed; an error in one is raised in all. A killed process closes its
connections, which the others notice; a hanging one sends no heartbeats, and `jax.distributed` ends
the others after `heartbeat_timeout_seconds`.
"""

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

GOES_ON, DONE, FAILED = 0, 1, 2


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
        _meet(FAILED, f"{type(error).__name__}: {error}")
        raise


def in_step(items: Iterable) -> Iterator:
    """The items of this process, in as many rounds as the process with the most items needs; to be
    used `in_unison`.

    >>> list(in_step([1, 2]))
    [1, 2]
    """
    own = iter(items)
    while True:
        try:
            item, state = next(own), GOES_ON
        except StopIteration:
            item, state = None, DONE
        if set(_meet(state)) == {DONE}:
            return
        if state == GOES_ON:
            yield item


def add_up(tree: Any) -> Any:
    """The sum over processes of a pytree of arrays, bitwise equal in all of them: one all-reduce
    for each array.
    """
    if jax.process_count() == 1:
        return tree
    firsts = np.array(jax.devices()).reshape(jax.process_count(), -1)[:, 0]
    mesh = Mesh(firsts, ("processes",))
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
    with _connected():
        spread = multihost_utils.host_local_array_to_global_array(own, mesh, P("processes"))
        total = jax.block_until_ready(_total(spread, everywhere=NamedSharding(mesh, P())))
        return multihost_utils.global_array_to_host_local_array(total, mesh, P())


@partial(jax.jit, static_argnames="everywhere")
def _total(spread: Any, *, everywhere: NamedSharding) -> Any:
    sums = jax.tree.map(lambda leaf: leaf.sum(axis=0, dtype=leaf.dtype), spread)
    return jax.lax.with_sharding_constraint(sums, everywhere)


def gather(tree: Any) -> list:
    """The pytrees of NumPy arrays of all processes, on the host; shapes and dtypes may differ."""
    own = np.frombuffer(pickle.dumps(tree), np.uint8)  # processes of one program trust each other
    sizes = _gathered(np.array([len(own)], np.int64).view(np.uint8)).view(np.int64)[:, 0]
    gathered = _gathered(np.pad(own, (0, int(sizes.max()) - len(own))))
    return [pickle.loads(one[:size].tobytes()) for one, size in zip(gathered, sizes, strict=True)]


def _meet(state: int, words: str = "") -> list[int]:
    """Exchange states between all processes; raises where another one failed."""
    said = gather((state, words))
    for i, (other, words) in enumerate(said):
        if other == FAILED and state != FAILED:
            raise OtherFailed(f"process {i} failed: {words}")
    return [other for other, _ in said]


def _gathered(own: np.ndarray) -> np.ndarray:
    """Arrays of one shape of all processes, stacked."""
    with _connected():
        every = np.asarray(multihost_utils.process_allgather(own))
    return every.reshape(jax.process_count(), *own.shape)


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
