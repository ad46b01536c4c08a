"""Rows of many processes, each of which reads its own: what they add up to is summed over all, and
what is small is known to all.

Every process calls the same functions in the same order, on its own part of the rows, and has the
same result. Rows never leave their process; labels, weights and the sample are told to all when the
rows are first read."""

import os
from collections.abc import Iterable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.rows.deviations import Deviations
from jaxrls.rows.streamed import SAMPLE, Known, StreamedRows, drawn_of, together
from jaxrls.support.processes import add_up, in_step, in_unison, tell_all


class OwnRows(StreamedRows):
    """Those of this process, block by block in step with the others."""

    def _equal_blocks(self):
        """In as many rounds as the process with the most blocks needs."""
        return in_step(super()._equal_blocks())

    def pieces(self):
        """As the source gives them, in step."""
        return in_step(super().pieces())


class JointRows(StreamedRows):
    """Rows that lie with many processes: see `stream(…, distributed=True)`.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])], distributed=True)  # of as many processes as there are: one
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    lies = "lies with several processes"

    def __init__(
        self,
        source: Iterable,
        *,
        standardize: Any = False,
        sample: int = SAMPLE,
        seed: int = 0,
        checkpoint: Any = None,
        **options,
    ):
        index, count = jax.process_index(), jax.process_count()
        if checkpoint is not None:
            checkpoint = f"{os.fspath(checkpoint)}.{index}-of-{count}"
        with in_unison():
            options |= {"sample": sample, "seed": [seed, index], "checkpoint": checkpoint}
            self.own = OwnRows(source, standardize=standardize, **options)
            check_alike(self.own.known)
            everyones = tell_all(self.own.known)
        self.start = sum(int(known.n) for known in everyones[:index])
        self._know(merged(everyones, sample), standardize)
        own = self.own
        own.means, own.scales, own.host_dtype = self.means, self.scales, self.host_dtype

    @property
    def block_sizes(self):
        """Those of this process."""
        return self.own.block_sizes

    def reading(self, kind, run, columns):
        """As `Rows.reading`: every process its own rows, with one all-reduce for each array of a sum;
        results of a map have a few numbers a row, and are told to all.
        """
        own = slice(self.start, self.start + self.own.shape[0])
        with in_unison():
            part = self.own.reading(kind, run, jax.tree.map(lambda a: a[own], columns))
        if kind == "sum":
            return add_up(part)
        told = tell_all(jax.tree.map(np.asarray, part))
        return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *told)

    def take(self, indices):
        """The rows of these numbers, each told by the process that has it."""
        indices = np.asarray(indices) - self.start
        here = (indices >= 0) & (indices < self.own.shape[0])
        with in_unison():
            found = np.zeros((len(indices), self.shape[1]), self.host_dtype)
            found[here] = np.asarray(self.own.take(indices[here]))
        return jnp.asarray(sum(tell_all(found)))


def check_alike(known: Known) -> None:
    """Raise where rows of different processes do not go together."""
    given = known.sample, known.labels, known.weights
    own = [(0, 0) if part is None else (part.ndim, part[0].size) for part in given]
    kinds = tell_all(np.array(own))
    for i, kind in enumerate(kinds):
        if (kind != kinds[0]).any():
            raise ValueError(
                f"rows of process {i} do not go together with those of process 0: give all of them "
                "as many columns and labels, and weights to all or none"
            )


def merged(everyones: list[Known], most: int) -> Known:
    """What is known of the rows of all processes: with the sample of one process that had read all
    of them.
    """
    counts = np.array([int(known.n) for known in everyones])
    before = np.cumsum(counts) - counts
    drawn = [
        (known.drawn + start, known.sample, known.tickets)
        for known, start in zip(everyones, before, strict=True)
    ]
    labels, weights = (together([known[i] for known in everyones]) for i in (1, 2))
    deviations = reduce(Deviations.join, (known.deviations for known in everyones))
    numbers, rows, tickets = drawn_of(drawn, most)
    return Known(counts.sum(), labels, weights, numbers, rows, tickets, deviations, 0)
