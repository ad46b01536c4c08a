"""Rows of many processes, each of which reads its own: sums are taken over all processes, and small
arrays are known to all.

Every process calls the same functions in the same order on its own rows, and gets the same result.
No rows leave their process, except those that are asked for by number.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.rows.processes import add_up, gather, in_step, in_unison
from jaxrls.rows.streamed import Known, StreamedRows, drawn_of, together


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
        index, count = jax.process_index(), jax.process_count()
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
        own = slice(self.first, self.first + self.own)
        with in_unison():
            part = super().reading(kind, run, jax.tree.map(lambda a: a[own], columns))
        if kind == "sum":
            return add_up(part)
        gathered = gather(jax.tree.map(np.asarray, part))
        return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *gathered)

    def rows_here(self, indices):
        with in_unison():
            found = super().rows_here(indices)
        return sum(gather(found))


def check_alike(everyones: list[Known]) -> None:
    """Raise where rows of different processes do not match."""
    form = lambda known: [part is not None and part.shape[1:] for part in known[1:5]]
    for i, known in enumerate(everyones):
        if form(known) != form(everyones[0]):
            raise ValueError(
                f"rows of process {i} do not match those of process 0: give all of them as many "
                "columns and labels, and weights to all or none"
            )


def merged(everyones: list[Known], most: int) -> Known:
    """What is known of the rows of all processes, with the sample that a single process would have
    drawn from all of them.
    """
    counts = [int(known.n) for known in everyones]
    firsts = np.cumsum([0, *counts])
    drawn = [
        (known.drawn + first, known.sample, known.tickets)
        for known, first in zip(everyones, firsts, strict=False)
    ]
    labels, weights = (together([known[i] for known in everyones]) for i in (1, 2))
    return Known(sum(counts), labels, weights, *drawn_of(drawn, most), 0)
