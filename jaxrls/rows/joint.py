"""Rows of many processes, each of which reads its own: what they add up to is summed over all, and
what is small is known to all.

Every process calls the same functions in the same order, on its own part of the rows, and has the
same result. Rows never leave their process; labels, weights and the sample are told to all when the
rows are first read."""

import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.rows.deviations import Deviations
from jaxrls.rows.sampled import SAMPLE, SampledRows
from jaxrls.rows.streamed import StreamedRows
from jaxrls.support.processes import add_up, in_step, in_unison, tell_all


class OwnRows(StreamedRows):
    """Those of this process, block by block in step with the others."""

    def blocks(self):
        """As `StreamedRows.blocks`, in as many rounds as the process with the most blocks needs."""
        return in_step(super().blocks())

    def pieces(self):
        """As the source gives them, in step."""
        return in_step(super().pieces())


class JointRows(SampledRows):
    """Rows that lie with many processes: see `stream(…, distributed=True)`.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])], distributed=True)  # of as many processes as there are: one
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

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
        kept = None if checkpoint is None else f"{os.fspath(checkpoint)}.{index}-of-{count}"
        with in_unison():
            self.own = OwnRows(
                source,
                standardize=standardize,
                sample=sample,
                seed=[seed, index],
                checkpoint=kept,
                **options,
            )
            everyones = tell_all(told_of(self.own))
            check_alike(everyones)
        counts = [int(one["n"]) for one in everyones]
        self.start = sum(counts[:index])
        self.size = sum(counts), self.own.shape[1]
        self.labels, self.row_weights = (
            together(everyones, name) for name in ("labels", "weights")
        )
        self.drawn, self.raw_sample = merged_sample(everyones, counts, sample)
        self.own.known = self.own.known._replace(
            sample=self.own.known.sample.astype(self.raw_sample.dtype)
        )
        if standardize is True:
            self.own.means, self.own.scales = merged_deviations(everyones).known()
        self.means, self.scales = self.own.means, self.own.scales
        self.source, self.host_dtype, self.block_sizes = (
            source,
            self.own.host_dtype,
            self.own.block_sizes,
        )

    @property
    def shape(self):
        """(n, d) of all processes together."""
        return self.size

    @property
    def dtype(self):
        """float32 where every block of every process was, else float64, as JAX has it."""
        return self.own.dtype

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`: every process its own rows, and one all-reduce for each array of the
        sum.
        """
        with in_unison():
            part = self.own.sum(
                fn, *self._own_part(columns), temporaries=temporaries, block_size=block_size
            )
        return add_up(part)

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`: results have a few numbers a row, and are told to all."""
        with in_unison():
            part = self.own.map(
                fn, *self._own_part(columns), temporaries=temporaries, block_size=block_size
            )
        leaves, structure = jax.tree.flatten(part)
        everyones = tell_all({str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)})
        return jax.tree.unflatten(
            structure, [jnp.asarray(together(everyones, str(i))) for i in range(len(leaves))]
        )

    def _own_part(self, columns):
        """What of columns (n, …) belongs to the rows of this process."""
        return jax.tree.map(lambda a: a[self.start : self.start + self.own.shape[0]], columns)

    @property
    def sample(self):
        """Drawn by chance from the rows of all processes, standardised."""
        return self.own.standardized(self.raw_sample)

    def dense(self):
        """Not in one process."""
        raise ValueError(
            "this needs all rows at once, and they lie with several processes: give landmarks= as a number, row numbers or points, without route="
        )

    def take(self, indices):
        """The rows of these numbers, each told by the process that has it."""
        indices = np.asarray(indices)
        here = (self.start <= indices) & (indices < self.start + self.own.shape[0])
        with in_unison():
            found = np.zeros((len(indices), self.shape[1]), self.own.host_dtype)
            found[here] = np.asarray(self.own.take(indices[here] - self.start))
        return jnp.asarray(sum(one["found"] for one in tell_all({"found": found})))


def told_of(own: StreamedRows) -> dict[str, np.ndarray]:
    """What a process tells the others of its rows."""
    known = own.known
    found = {
        "n": np.array(known.shape[0]),
        "drawn": known.drawn,
        "tickets": known.tickets,
        "sample": known.sample,
    }
    given = {
        name: part
        for name, part in (("labels", known.labels), ("weights", known.weights))
        if part is not None
    }
    return {
        **found,
        **given,
        **{f"deviations/{name}": np.asarray(part) for name, part in vars(known.deviations).items()},
    }


def check_alike(everyones: list[dict]) -> None:
    """Raise where rows of different processes do not go together."""
    kinds = [
        (
            one["sample"].shape[1],
            *(one[name].shape[1:] if name in one else None for name in ("labels", "weights")),
        )
        for one in everyones
    ]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"rows of process {i} do not go together with those of process 0: columns, labels and weights are {kind} and {kinds[0]}"
            )


def together(everyones: list[dict], name: str) -> Any:
    """One array of those of all processes, None where they have none."""
    return np.concatenate([one[name] for one in everyones]) if name in everyones[0] else None


def merged_sample(
    everyones: list[dict], counts: list[int], most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and rows of the smallest tickets of all: the sample of one process that had read all
    rows.
    """
    offsets = np.cumsum([0, *counts[:-1]])
    tickets = np.concatenate([one["tickets"] for one in everyones])
    drawn = np.concatenate(
        [one["drawn"] + offset for one, offset in zip(everyones, offsets, strict=True)]
    )
    kept = np.sort(np.argsort(tickets, kind="stable")[:most])
    return drawn[kept], together(everyones, "sample")[kept]


def merged_deviations(everyones: list[dict]) -> Deviations:
    """Means and deviations of the rows of all."""
    whole = Deviations()
    for one in everyones:
        part = Deviations()
        vars(part).update({name: one[f"deviations/{name}"] for name in vars(part)})
        whole.join(part)
    return whole
