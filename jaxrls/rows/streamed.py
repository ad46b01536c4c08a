"""Rows that are read in blocks from somewhere else, as many as there are: once to get to know them,
and once for every sum after that.

The first reading counts the rows, refuses what cannot be fitted, and keeps what is small: labels,
weights, the mean and standard deviation of every column, and some rows drawn by chance, from which
landmarks are chosen. Each later reading is a loop on the host over blocks of equal size, in each of
which the sum of `DenseRows` is compiled, while a thread reads the next."""

import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.rows.checkpoint import Checkpoint, key_of
from jaxrls.rows.deviations import Deviations, standardise
from jaxrls.rows.rows import DenseRows, Rows, added
from jaxrls.support.checks import check_inputs, check_whole
from jaxrls.support.pictures import progress_bar

SAMPLE = 10_000  # rows
END = object()


class Piece(NamedTuple):
    """Some rows with their labels and weights, and where they stand, for messages."""

    X: Any
    Y: Any = None
    weights: Any = None
    place: str = ""
    first: int = 0  # the number there of the first row


class Known(NamedTuple):
    """What the first reading leaves: `drawn` are the row numbers of the sample, ascending, and
    `tickets` what they were drawn by.
    """

    n: Any
    labels: Any
    weights: Any
    drawn: Any
    sample: Any
    tickets: Any
    deviations: Deviations
    checksum: Any


class StreamedRows(Rows):
    """Rows from a source that can be iterated again and again, as (X, Y[, weights]) in blocks: see
    `stream`.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])])
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    lies = "is a stream"

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
        self._know(survey.known(), standardize)

    def _know(self, known: Known, standardize: Any) -> None:
        """Take in what the first reading left, and standardise by means and deviations as they were
        found, as they are given, or not at all.
        """
        self.known, self.drawn = known, known.drawn
        self.shape = _, d = int(known.n), known.sample.shape[1]
        self.labels, self.row_weights = known.labels, known.weights
        self.host_dtype = known.sample.dtype  # float32 where every block was, else float64
        self.means: Any = None
        self.scales: Any = None
        if standardize is False or standardize is None:
            return
        pair = known.deviations.known() if standardize is True else standardize
        try:
            self.means, self.scales = (np.asarray(part, np.float64) for part in pair)
            good = self.means.shape == self.scales.shape == (d,) and (self.scales > 0).all()
        except (TypeError, ValueError):
            good = False
        if not good or not np.isfinite(self.means).all():
            raise ValueError(
                f"standardize must be True, False or a pair (means, deviations above 0), each ({d},), and is {standardize!r}"
            )

    @property
    def dtype(self):
        """float32 where every block was, else float64, or what JAX has in its place."""
        return jax.dtypes.canonicalize_dtype(self.host_dtype)

    @property
    def sample(self):
        """Some rows drawn by chance, on the host, standardised."""
        return self.standardized(self.known.sample)

    def standardized(self, X):
        """Rows of the source as they are given on."""
        X = np.asarray(X, self.host_dtype)
        return X if self.means is None else standardise(X, self.means, self.scales)

    def pieces(self) -> Iterator[Piece]:
        """What the source gives, as pieces."""
        for i, block in enumerate(self.source):
            if not isinstance(block, Piece):
                several = isinstance(block, tuple | list) and len(block) in (1, 2, 3)
                block = Piece(*(block if several else [block]))._replace(place=f"block {i}")
            yield block

    def blocks(self):
        """The rows as the source has them, standardised."""
        return (self.standardized(piece.X) for piece in StreamedRows.pieces(self))

    def _equal_blocks(self):
        """The next one read while the last one is worked on."""
        with self._watched(self.shape[0]) as reached:
            done = 0
            for x in ahead(super()._equal_blocks()):
                yield x
                done += len(x)
                reached(done)

    def _watched(self, total: int | None):
        """A bar for one reading."""
        self.readings += 1
        return progress_bar(self.progress, total, f"reading {self.readings}", "row")

    def reading(self, kind, run, columns):
        """As `Rows.reading`; a sum from where the checkpoint has it: blocks before are passed over."""
        if self.checkpoint is None or kind == "map":
            return super().reading(kind, run, columns)
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
                if (before := self.checkpoint.find(key)) is not None:
                    done, leaves = before
                    total = jax.tree.unflatten(jax.tree.structure(out), map(jnp.asarray, leaves))
                    continue
            self.checkpoint.keep(key, start, total)
        return total

    def check(self, kernel, name="X", *, training=True):
        """Raise for rows outside of the kernel's domain, as far as the sample has them; numbers
        were looked at when they were read.
        """
        kernel.check(self.candidates()[1])

    def candidates(self):
        """The sample, by row number."""
        return self.drawn, jnp.asarray(self.sample)

    def some(self, num):
        """Rows of the sample, spread evenly."""
        return DenseRows(self.candidates()[1]).some(num)

    def take(self, indices):
        """The rows of these numbers: from the sample, or by reading all."""
        indices = np.asarray(indices)
        places = np.searchsorted(self.drawn, indices).clip(max=len(self.drawn) - 1)
        if (self.drawn[places] == indices).all():
            return self.candidates()[1][places]
        return super().take(indices)


def ahead(items: Iterable, depth: int = 2) -> Iterator:
    """The same items in the same order, up to `depth` of them made before they are asked for; an
    error is raised where its item would come.

    >>> list(ahead(range(3)))
    [0, 1, 2]
    """
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        made = deque(thread.submit(next, source, END) for _ in range(depth))
        while (item := made.popleft().result()) is not END:
            made.append(thread.submit(next, source, END))
            yield item


class Survey:
    """What becomes known of the rows while they are read for the first time."""

    def __init__(self, sample: int, seed: Any):
        self.most, self.rng, self.n, self.checksum = sample, np.random.default_rng(seed), 0, 0
        self.shapes: Any = None
        self.labels: list[Any] = []
        self.weights: list[Any] = []
        self.drawn: Any = None
        self.deviations = Deviations()

    def add(self, piece: Piece) -> None:
        """**Raises** `ValueError` that names the place of a number that is not finite, or of a
        block unlike those before it.
        """
        parts = {"X": piece.X, "Y": piece.Y, "weights": piece.weights}
        given: dict[str, Any] = {
            k: as_numbers(piece, k, part) for k, part in parts.items() if part is not None
        }
        X, Y, v = given["X"], given.get("Y"), given.get("weights")
        check_inputs(f"{piece.place}: X", X)
        found = ", ".join(f"{name} {part.shape}" for name, part in given.items())
        same = all(part.shape[:1] == X.shape[:1] for part in given.values())
        if X.ndim != 2 or v is not None and v.ndim != 1 or not same:
            raise ValueError(
                f"{piece.place}: a block must be X (b, d), Y (b,) or (b, t) and weights (b,), and has {found}"
            )
        if v is not None and (v < 0).any():
            row = int((v < 0).argmax())
            raise ValueError(
                f"{piece.place}: weights must not be negative, and is {v[row]} at row {piece.first + row}"
            )
        shapes = {name: part.shape[1:] for name, part in given.items()}
        if self.shapes not in (None, shapes):
            raise ValueError(
                f"{piece.place} has {found}, which does not go on what came before it: d, t and what there is must be the same"
            )
        self.shapes = shapes
        self.labels.append(Y)
        self.weights.append(v)
        self.deviations = self.deviations.join(Deviations.of(X, v))
        new = np.arange(self.n, self.n + len(X)), X, self.rng.random(len(X))
        self.drawn = drawn_of([new] if self.drawn is None else [self.drawn, new], self.most)
        self.checksum = zlib.crc32(np.ascontiguousarray(X).data, self.checksum)
        self.n += len(X)

    def known(self) -> Known:
        """All of it; raises where there was nothing."""
        if not self.n:
            raise ValueError("the source has no rows")
        given: Any = map(together, (self.labels, self.weights))
        found: Any = (*given, *self.drawn, self.deviations, self.checksum)
        return Known(self.n, *found)


def together(parts: list) -> Any:
    """One array of several, None where they are."""
    return None if parts[0] is None else np.concatenate(parts)


def drawn_of(parts: list, most: int) -> tuple:
    """Numbers, rows and tickets of the rows with the smallest tickets, numbers drawn one a row:
    every row has the same chance, however they come.
    """
    whole = [np.concatenate(part) for part in zip(*parts, strict=True)]
    kept = np.sort(np.argsort(whole[2], kind="stable")[:most])
    return tuple(part[kept] for part in whole)


def as_numbers(piece: Piece, name: str, part) -> Any:
    """float32 as it is and all other numbers as float64; raises for what is no number, or not
    finite.
    """
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
