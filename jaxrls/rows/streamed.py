"""Rows that are read in blocks from somewhere else, as many as there are: once to get to know them,
and once for every sum after that.

The first reading counts the rows, refuses what cannot be fitted, and keeps what is small: labels,
weights, the mean and standard deviation of every column, and some rows drawn by chance, from which
landmarks are chosen. Each later reading is a loop on the host over blocks of equal size, in each of
which the sum of `DenseRows` is compiled, while a thread reads the next."""

import os
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxrls.rows.blocks import default_block_size
from jaxrls.rows.checkpoint import Checkpoint, key_of
from jaxrls.rows.deviations import Deviations, standardise
from jaxrls.rows.rows import DenseRows, added
from jaxrls.rows.sampled import SAMPLE, SampledRows
from jaxrls.support.ahead import ahead
from jaxrls.support.checks import check_squares, check_whole
from jaxrls.support.progress import progress_bar

BLOCK_BYTES = 32 * 2**20


class Piece(NamedTuple):
    """Some rows with their labels and weights, and where they stand, for messages."""

    X: Any
    Y: Any = None
    weights: Any = None
    place: str = ""
    first: int = 0  # the number there of the first row


class Known(NamedTuple):
    """What the first reading leaves."""

    shape: tuple[int, int]
    labels: Any
    weights: Any
    means: Any
    scales: Any
    checksum: int
    drawn: Any  # row numbers of the sample, ascending
    sample: Any
    tickets: Any  # what they were drawn by
    deviations: Deviations


@partial(jax.jit, static_argnames=("temporaries", "block_size"))
def _mapped(fn: Partial, x, *parts, temporaries: int, block_size: int | None):
    """One program for every function and size of blocks; what a function is bound to by `Partial`
    is data, and new such data find it ready.
    """
    return DenseRows(x).map(fn, *parts, temporaries=temporaries, block_size=block_size)


class StreamedRows(SampledRows):
    """Rows from a source that can be iterated again and again, as (X, Y[, weights]) in blocks: see
    `stream`.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])])
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    def __init__(
        self,
        source: Iterable,
        *,
        standardize: Any = False,
        sample: int = SAMPLE,
        seed: Any = 0,
        checkpoint: str | os.PathLike | None = None,
        block_size: int | None = None,
        progress: bool = False,
    ):
        if iter(source) is source:
            raise ValueError(
                "source can be read once only, as a generator: give a list of blocks, or an object whose __iter__ begins anew"
            )
        check_whole("sample", sample)
        self.source, self.block_size, self.progress, self.readings = source, block_size, progress, 0
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        survey = Survey(sample, seed)
        with self._watched(None) as reached:
            for piece in self.pieces():
                survey.add(piece)
                reached(survey.n)
        self.known = survey.known()
        self.means, self.scales = (
            (self.known.means, self.known.scales)
            if standardize is True
            else pair_of(standardize, self.shape[1])
        )

    @property
    def shape(self):
        """(n, d)."""
        return self.known.shape

    @property
    def host_dtype(self):
        """float32 where every block was, else float64."""
        return self.known.sample.dtype

    @property
    def dtype(self):
        """The same, or what JAX has in its place."""
        return jax.dtypes.canonicalize_dtype(self.host_dtype)

    @property
    def labels(self):
        """Those of all rows, (n,) or (n, t), None where the source has none."""
        return self.known.labels

    @property
    def row_weights(self):
        """Those of all rows, (n,), None where the source has none."""
        return self.known.weights

    def pieces(self):
        """What the source gives, as pieces."""
        return pieces(self.source)

    @property
    def block_sizes(self):
        """That of all blocks, and that of the rest where there is one."""
        n, d = self.shape
        size = min(
            n, self.block_size or default_block_size(n, d * self.host_dtype.itemsize, BLOCK_BYTES)
        )
        return (size, n % size) if n % size else (size,)

    def blocks(self):
        """The rows in blocks of equal size and a rest, the next one read while the last one is
        worked on.
        """
        for X in ahead(
            in_blocks(
                (self.standardized(piece.X) for piece in pieces(self.source)), self.block_sizes[0]
            )
        ):
            yield jnp.asarray(X)

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, compiled for a block."""
        hints = {"temporaries": temporaries, "block_size": block_size}
        run = jax.jit(lambda x, *parts: DenseRows(x).sum(fn, *parts, **hints))
        return (
            super().sum(run, *columns)
            if self.checkpoint is None
            else self._resumed(run, columns, self.checkpoint)
        )

    def _resumed(self, run, columns, checkpoint: Checkpoint):
        """The sum, from where the checkpoint has it: blocks before that are passed over."""
        key, done, total, start = "", 0, None, 0

        def once(x, *parts):
            nonlocal start
            start += len(x)
            return None if start <= done else run(x, *parts)

        for out in self._each(once, columns):
            if out is None:
                continue
            total = out if total is None else added(total, out)
            if not key:
                key = key_of(out, columns, self.known.checksum)
                if (before := checkpoint.find(key)) is not None:
                    done, leaves = before
                    total = jax.tree.unflatten(jax.tree.structure(out), map(jnp.asarray, leaves))
                    continue
            checkpoint.keep(key, start, total)
        return total

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, compiled for a block."""
        fn, hints = (
            fn if isinstance(fn, Partial) else Partial(fn),
            {"temporaries": temporaries, "block_size": block_size},
        )
        return super().map(lambda x, *parts: _mapped(fn, x, *parts, **hints), *columns)

    def _each(self, fn, columns):
        done = 0

        def counted(x, *parts):
            nonlocal done
            done += len(x)
            return fn(x, *parts)

        with self._watched(self.shape[0]) as reached:
            for out in super()._each(counted, columns):
                yield jax.block_until_ready(
                    out
                )  # else all blocks would be read before the first is done
                reached(done)

    def _watched(self, total: int | None):
        """A bar for one reading."""
        self.readings += 1
        return progress_bar(self.progress, total, f"reading {self.readings}", "row")

    @property
    def drawn(self):
        """Row numbers of the sample."""
        return self.known.drawn

    @property
    def sample(self):
        """Standardised."""
        return self.standardized(self.known.sample)

    def dense(self):
        """Not at once."""
        raise ValueError(
            "this needs all rows at once, and X is a stream: give landmarks= as a number or row numbers, without route=, or some rows as an array"
        )

    def take(self, indices):
        """The rows of these numbers: from the sample, or by reading all."""
        indices = np.asarray(indices)
        places = np.searchsorted(self.drawn, indices).clip(max=len(self.drawn) - 1)
        if (self.drawn[places] == indices).all():
            return self.candidates()[1][places]
        found, start = np.empty((len(indices), self.shape[1]), self.host_dtype), 0
        for piece in pieces(self.source):
            here = (start <= indices) & (indices < start + len(piece.X))
            found[here] = self.standardized(piece.X[indices[here] - start])
            start += len(piece.X)
        return jnp.asarray(found)

    def standardized(self, X):
        """Rows of the source as they are given on."""
        X = np.asarray(X, self.host_dtype)
        return X if self.means is None else standardise(X, self.means, self.scales)


def pair_of(standardize: Any, d: int) -> tuple[Any, Any]:
    """Means and deviations as given, None for both where there are to be none."""
    if standardize is False or standardize is None:
        return None, None
    try:
        means, scales = (np.asarray(part, np.float64) for part in standardize)
    except (TypeError, ValueError):
        means = scales = np.zeros(0)
    if (
        means.shape != (d,)
        or scales.shape != (d,)
        or not (scales > 0).all()
        or not np.isfinite(means).all()
    ):
        raise ValueError(
            f"standardize must be True, False or a pair (means, deviations above 0), each ({d},), and is {standardize!r}"
        )
    return means, scales


def pieces(source: Iterable) -> Iterator[Piece]:
    """What a source gives, as pieces."""
    for i, block in enumerate(source):
        if isinstance(block, Piece):
            yield block
        elif isinstance(block, tuple | list) and len(block) in (1, 2, 3):
            yield Piece(*block)._replace(place=f"block {i}")
        else:
            yield Piece(block, place=f"block {i}")


def in_blocks(arrays: Iterable, size: int) -> Iterator[np.ndarray]:
    """The same rows in arrays of `size` rows, the last one excepted."""
    held: list = []
    missing = size
    for X in arrays:
        while len(X):
            held.append(X[:missing])
            X, missing = X[missing:], missing - len(held[-1])
            if not missing:
                yield np.concatenate(held)
                held, missing = [], size
    if held:
        yield np.concatenate(held)


class Survey:
    """What becomes known of the rows while they are read for the first time."""

    def __init__(self, sample: int, seed: Any):
        self.most, self.rng, self.n, self.checksum = sample, np.random.default_rng(seed), 0, 0
        self.shapes: Any = None
        self.labels: list[Any] = []
        self.weights: list[Any] = []
        self.tickets, self.drawn = np.empty(0), np.empty(0, np.int64)
        self.sample: Any = None
        self.deviations = Deviations()

    def add(self, piece: Piece) -> None:
        """**Raises** `ValueError` that names the place of a number that is not finite, or of a
        block unlike those before it.
        """
        X, Y, v = (
            as_numbers(piece, name, part)
            for name, part in (("X", piece.X), ("Y", piece.Y), ("weights", piece.weights))
        )
        check_squares(f"{piece.place}: X", X)
        shapes = X.shape[1:], *(None if part is None else part.shape[1:] for part in (Y, v))
        if (
            X.ndim != 2
            or v is not None
            and v.ndim != 1
            or any(part is not None and part.shape[:1] != X.shape[:1] for part in (Y, v))
        ):
            raise ValueError(
                f"{piece.place}: a block must be X (b, d), Y (b,) or (b, t) and weights (b,), and has {shapes_of(X, Y, v)}"
            )
        if v is not None and (v < 0).any():
            raise ValueError(
                f"{piece.place}: weights must not be negative, and is {v[v < 0][0]} at row {piece.first + int((v < 0).argmax())}"
            )
        if self.shapes not in (None, shapes):
            raise ValueError(
                f"{piece.place} has {shapes_of(X, Y, v)}, which does not go on what came before it: d, t and what there is must be the same"
            )
        self.shapes = shapes
        self.labels.append(Y)
        self.weights.append(v)
        self.deviations.add(X, v)
        self._draw(X)
        self.checksum = zlib.crc32(np.ascontiguousarray(X).data, self.checksum)
        self.n += len(X)

    def _draw(self, X):
        """Keep the rows with the smallest of numbers drawn one a row: every row has the same
        chance, however they come.
        """
        tickets = np.concatenate([self.tickets, self.rng.random(len(X))])
        numbers = np.concatenate([self.drawn, np.arange(self.n, self.n + len(X))])
        kept = np.sort(np.argsort(tickets, kind="stable")[: self.most])
        old = 0 if self.sample is None else len(self.sample)
        new = X[kept[kept >= old] - old]
        self.sample = (
            new if self.sample is None else np.concatenate([self.sample[kept[kept < old]], new])
        )
        self.tickets, self.drawn = tickets[kept], numbers[kept]

    def known(self) -> Known:
        """All of it; raises where there was nothing."""
        if not self.n:
            raise ValueError("the source has no rows")
        labels, weights = (
            None if parts[0] is None else np.concatenate(parts)
            for parts in (self.labels, self.weights)
        )
        return Known(
            (self.n, self.sample.shape[1]),
            labels,
            weights,
            *self.deviations.known(),
            self.checksum,
            self.drawn,
            self.sample,
            self.tickets,
            self.deviations,
        )


def as_numbers(piece: Piece, name: str, part) -> Any:
    """float32 as it is and all other numbers as float64, None as it is; raises for what is no
    number, or not finite.
    """
    if part is None:
        return None
    part = np.asarray(part)
    if part.dtype.kind not in "fiub":
        raise ValueError(f"{piece.place}: {name} must hold numbers, and has dtype {part.dtype}")
    part = part if part.dtype == np.float32 else part.astype(np.float64)
    bad = np.argwhere(~np.isfinite(part))
    if len(bad):
        row, *column = bad[0]
        where = f", column {column[0]}" if column else ""
        raise ValueError(
            f"{piece.place}: {name} is {part[tuple(bad[0])]} at row {piece.first + row}{where}: fill it in, or drop the row"
        )
    return part


def shapes_of(X, Y, v) -> str:
    """In words."""
    return ", ".join(
        f"{name} {part.shape}"
        for name, part in (("X", X), ("Y", Y), ("weights", v))
        if part is not None
    )
