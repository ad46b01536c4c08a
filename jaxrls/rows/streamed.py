"""Rows that are read in blocks from a source: once to survey them, and once more for every sum.

The first reading keeps what is small: labels, weights and a random sample of rows. Later readings
are loops on the host over blocks of equal size. While one block is computed on, the next is read.
With a `Checkpoint` a sum continues after the process was killed.
"""

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxrls.core.data import Candidates, DenseRows
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import MAP, Reduction
from jaxrls.core.support import (
    as_floats,
    by_names,
    check_finite,
    check_index,
    check_inputs,
    check_unmasked,
    check_whole,
    column_names,
    labels_by_names,
    progress_bar,
)
from jaxrls.rows.files import read_arrays, reading, write_arrays
from jaxrls.rows.host import HostRows, added
from jaxrls.rows.readings import text_and_constants

SAMPLE = 10_000  # the number of rows in a sample, from which landmarks are chosen
END = object()  # marks the end of an iterator


class Piece(NamedTuple):
    """Some rows of a source, with their labels and weights."""

    X: Any
    Y: Any = None
    weights: Any = None
    place: str = ""  # where the rows come from, for messages
    texts: Any = ()  # columns of text: categories, groups, labels, kept columns, in this order
    numbers: Any = ()  # the numbers of the rows in their file, from 1


class StreamedRows(HostRows):
    """Rows from a source that can be iterated over again and again; `stream` makes them.

    The source yields blocks: X, (X, Y), (X, Y, weights), or a `Piece`.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.rows.stream([(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])])
    >>> rows.shape, rows.labels.tolist()
    ((4, 2), [0.0, 1.0, 0.0, 2.0])
    """

    lies = "is a stream"
    column_names: tuple = ()  # of X, from the files or the first block, () without names
    target_names: tuple = ()  # of the columns of labels, likewise
    in_step: Callable = staticmethod(iter)  # iterates over blocks, in `JointRows` in rounds

    def __init__(
        self,
        source: Iterable,
        *,
        sample: int = SAMPLE,
        seed: Any = 0,
        checkpoint: str | os.PathLike | None = None,
        block_size: int | None = None,
        progress: bool = False,
    ):
        if not isinstance(source, Iterable) or iter(source) is source:
            raise ValueError(
                f"source is a {type(source).__name__}, which cannot be read several times: give a "
                "list of blocks, or an object whose __iter__ begins anew"
            )
        check_whole("sample", sample)
        self.source = source
        self.block_size = block_size
        self.progress = progress
        self.column_names = getattr(source, "column_names", ())
        self.target_names = getattr(source, "target_names", ())
        self.readings = 0
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        known = self._first_reading(sample, seed)
        self.labels = known.labels
        self.row_weights = known.weights
        self.drawn = known.drawn.numbers
        self.sample = known.drawn.rows
        self.known_ends = known.ends
        self.checksum = known.checksum
        self.shape = int(known.n), self.sample.shape[1]
        self.host_dtype = self.sample.dtype  # float32 if every block was, else float64

    def _first_reading(self, sample: int, seed: Any) -> "Known":
        """Return what the first reading keeps, with a sample of `sample` rows."""
        return survey(self._watched(self.pieces(), None, lambda piece: len(piece.X)), sample, seed)

    @property
    def dtype(self):
        """float32 if every block was, else float64, or the dtype that JAX has in its place."""
        return jax.dtypes.canonicalize_dtype(self.host_dtype)

    def pieces(self) -> Iterator[Piece]:
        """Yield the blocks of the source, as pieces."""
        for i, block in enumerate(self.source):
            if not isinstance(block, Piece):
                several = isinstance(block, tuple | list) and len(block) in (1, 2, 3)
                block = Piece(*(block if several else [block]))
                place = f"block {i}"
                if not i:
                    self.column_names = column_names(block.X)
                    self.target_names = column_names(block.Y)
                X = by_names(f"{place}: X", block.X, self.column_names)
                Y = labels_by_names(block.Y, self.target_names)
                block = block._replace(X=X, Y=Y, place=place)
            yield block

    def select(self, names: Iterable) -> None:
        """Raise, because a stream cannot reorder its columns."""
        raise ValueError(
            "a stream has its columns in another order than those that were fitted, or more: name "
            f"these, stream(…, columns={[*names]})"
        )

    def blocks(self) -> Iterator:
        """Return an iterator over the rows, in blocks as the source has them."""
        start = self.first
        for piece in self.pieces():
            X = np.asarray(piece.X, self.host_dtype)
            self._check_again(piece.place, X, start)
            yield X
            start += len(X)

    def _check_again(self, place: str, X: np.ndarray, start: int) -> None:
        """Raise if rows that are in the sample are not those of the first reading.

        Labels were kept then, and would be paired with other rows.

        Args:
            place: where the rows come from.
            X: the rows that were read.
            start: the number of the first of them, among all rows.
        """
        among = slice(*np.searchsorted(self.drawn, [start, start + len(X)]))
        again = X[self.drawn[among] - start]
        before = self.sample[among]
        if again.shape != before.shape:
            return  # the number of columns is checked elsewhere
        rounding = 100 * np.finfo(X.dtype).eps * np.abs(self.known_ends).max(axis=0)
        if (changed := ~(np.abs(again - before) <= rounding).all(axis=1)).any():
            raise ValueError(
                f"{place}: row {self.drawn[among][changed][0]} differs from what it was in the "
                "first reading: let source yield the same rows in the same order every time"
            )

    def equal_blocks(self) -> Iterator:
        """Yield the rows in blocks of the sizes `block_sizes`, and read ahead in another thread."""
        return self._watched(ahead(super().equal_blocks()), self.own, len)

    def _watched(self, items: Iterable, total: int | None, size: Callable) -> Iterator:
        """Yield the items of one reading, and show its progress.

        Args:
            items: blocks or pieces.
            total: the number of rows, None if it is unknown.
            size: a function that returns the number of rows of an item.
        """
        self.readings += 1
        done = 0
        what = f"reading {self.readings}"
        with progress_bar(self.progress, total, what, "row") as reached:
            for item in self.in_step(items):
                yield item
                done += size(item)
                reached(done)

    def read_blocks(self, reduction: Reduction, run: Callable, columns: Any) -> Any:
        """Read all rows once, and sum or stack the results.

        The arguments are those of `HostRows.read_blocks`. With a checkpoint, a sum continues after
        the rows that it already contains.
        """
        if self.checkpoint is None or reduction is MAP:
            return super().read_blocks(reduction, run, columns)
        blocks = self.with_columns(columns)
        done, x, part = next(blocks)
        total = run(x, part)
        own = jax.tree.map(lambda a: a[self.first : self.first + self.own], columns)
        text, constants = text_and_constants(jax.make_jaxpr(run)(x, part))
        key = key_of(total, (own, self.block_sizes, constants), (text, self.checksum))
        if (before := self.checkpoint.find(key)) is None:
            self.checkpoint.keep(key, done, total)
        else:
            done, leaves = before
            total = jax.tree.unflatten(jax.tree.structure(total), map(jnp.asarray, leaves))
        for stop, x, part in blocks:
            if stop > done:
                total = added(total, run(x, part))
                self.checkpoint.keep(key, stop, total)
        return total

    def check(self, kernel: Kernel, name: str = "X", *, training: bool = True) -> None:
        """Raise if rows lie outside of the kernel's domain.

        They are looked at as `HostRows.check` does, after those of the sample. Whether numbers are
        finite was checked in the first reading.
        """
        kernel.check(self.candidates().rows)
        if len(self.sample) < self.shape[0]:
            super().check(kernel, name, training=training)

    @property
    def ends(self) -> np.ndarray:
        """The smallest and the largest number of every column, (2, d)."""
        return self.known_ends.astype(self.dtype)

    def candidates(self) -> Candidates:
        """Return the sample that the first reading drew."""
        return Candidates(self.drawn, jnp.asarray(self.sample))

    @property
    def few_at_most(self) -> int:
        """The number of rows in the sample."""
        return len(self.sample)

    def few_rows(self, num: int) -> Any:
        """Return at most `num` rows of the sample, spread evenly."""
        return DenseRows(self.candidates().rows).few_rows(num)

    def take(self, indices: Array | np.ndarray) -> Any:
        """Return the rows with these numbers.

        If the sample has all of them they come from it, else from one reading of all rows.
        """
        indices = np.asarray(indices)
        if np.isin(indices, self.drawn).all():
            return self.candidates().rows[np.searchsorted(self.drawn, indices)]
        return super().take(indices)


def ahead(items: Iterable, depth: int = 2) -> Iterator:
    """Yield the same items in the same order, up to `depth` of them made before they are asked for.

    A thread makes them. An error is raised where its item would come.

    >>> list(ahead(range(3)))
    [0, 1, 2]
    """
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        begun = deque(thread.submit(next, source, END) for _ in range(depth))
        while (item := begun.popleft().result()) is not END:
            begun.append(thread.submit(next, source, END))
            yield item


# The first reading
# --------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A random sample of rows.

    `numbers` are the row numbers, ascending, and `rows` the rows. `tickets` are the random numbers
    that chose them.
    """

    numbers: Any
    rows: Any
    tickets: Any


class Known(NamedTuple):
    """What the first reading keeps of all rows.

    It has their number n, the labels and weights (None if the source has none), the sample `drawn`,
    the smallest and the largest number of every column of X, and the checksum of X.
    """

    n: Any
    labels: Any
    weights: Any
    drawn: Drawn
    ends: Any
    checksum: Any


def _wide(name: str, part: Any) -> np.ndarray:
    """Return an array with float32 as it is, and all other real numbers as float64."""
    check_unmasked(name, part)
    part = np.asarray(part)
    other = part.dtype.kind in "fiub" and part.dtype != np.float32
    return part.astype(np.float64) if other else part


def survey(pieces: Iterable[Piece], most: int, seed: Any) -> Known:
    """Read all pieces once, and return what is kept, with a sample of at most `most` rows.

    Raise if there are no rows. Raise for a piece that is unusable or does not match the piece
    before it.
    """
    n = 0
    checksum = 0
    form = None
    kept: list[tuple] = []  # labels and weights of every piece
    drawn: list[Drawn] = []
    ends: list[np.ndarray] = []
    rng = np.random.default_rng(seed)
    for piece in pieces:
        arrays = _arrays_of(piece, form)
        form = _form_of(arrays)
        X = arrays["X"]
        kept.append((arrays.get("Y"), arrays.get("weights")))
        new = Drawn(np.arange(n, n + len(X)), X, rng.random(len(X)))
        drawn = [drawn_of([*drawn, new], most)]
        ends = [ends_of([*ends, X])] if len(X) else ends
        checksum = zlib.crc32(np.ascontiguousarray(X).data, checksum)
        n += len(X)
    if not n:
        raise ValueError("source has no rows: give files or blocks that have some")
    labels, weights = map(together, zip(*kept, strict=True))
    return Known(n, labels, weights, drawn[0], ends[0], checksum)


def ends_of(parts: list[np.ndarray]) -> np.ndarray:
    """Return the smallest and the largest number of every column of several arrays, (2, d)."""
    return np.stack([end([end(X, axis=0) for X in parts], axis=0) for end in (np.min, np.max)])


def _arrays_of(piece: Piece, form: dict | None) -> dict[str, np.ndarray]:
    """Return X, Y and weights of a piece by name, without those that it lacks.

    Raise if they are unusable, or if their form differs from `form`, the form of the piece before.
    """
    arrays = {}
    given = {"X": piece.X, "Y": piece.Y, "weights": piece.weights}
    try:
        check_index(given)
    except ValueError as error:
        raise ValueError(f"{piece.place}: {error}") from None
    for name, part in given.items():
        if part is not None:
            words = f"{piece.place}: {name}"
            arrays[name] = np.asarray(as_floats(words, _wide(words, part)))
    lengths = {part.shape[:1] for part in arrays.values()}
    new = _form_of(arrays)
    if len(new["X"]) != 1 or new.get("weights") or len(lengths) > 1 or form not in (None, new):
        held = ", ".join(f"{name} {part.shape}" for name, part in arrays.items())
        raise ValueError(
            f"{piece.place} has {held}: every block must be X (b, d), Y (b,) or (b, t) and "
            "weights (b,), in the form of the first; fit takes arrays as they are"
        )
    for name, part in arrays.items():
        (check_inputs if name == "X" else check_finite)(f"{piece.place}: {name}", part)
    return arrays


def _form_of(arrays: dict[str, np.ndarray]) -> dict[str, tuple]:
    """Return the shape that one row has in each array, by name."""
    return {name: part.shape[1:] for name, part in arrays.items()}


def together(parts: list | tuple) -> Any:
    """Return arrays joined in one; None if the first of them is None, as all are then."""
    return None if parts[0] is None else np.concatenate(parts)


def drawn_of(samples: list[Drawn], most: int) -> Drawn:
    """Return the sample of `most` rows from several samples.

    Each row has one random number as its ticket, and the rows with the smallest tickets are taken.
    So every row has the same chance, whatever the blocks are.
    """
    joined = Drawn(*map(np.concatenate, zip(*samples, strict=True)))
    kept = np.sort(np.argsort(joined.tickets, kind="stable")[:most])
    return Drawn(*(part[kept] for part in joined))


# Checkpoints
# --------------------------------------------------------------------------------------------------


class Checkpoint:
    """Partial sums on disk, from which a process that was killed continues with bitwise the same
    result.

    All sums of the process are written together. A sum is identified by all that it is made of: the
    program of a block and the arrays in it, such as parameters of the kernel, landmarks and
    coefficients; the columns, the size of blocks and the checksum of all rows; and its value on the
    first block, because a program may call functions that its text does not show. A file for
    another kernel, other landmarks or other rows is therefore not used. It is overwritten once that
    block is done.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        self.sums: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        if os.path.exists(self.path):
            with reading(path, "is no checkpoint, or is damaged (remove it to begin anew)"):
                arrays, header = read_arrays(self.path)
                for key, (rows, count) in header["sums"].items():
                    self.before[key] = rows, [arrays[f"{key}/{i}"] for i in range(count)]

    def find(self, key: str) -> tuple[int, list[np.ndarray]] | None:
        """Return the number of rows and the leaves of a sum that was begun earlier, or None.

        From then on this sum is written with the others.
        """
        if key in self.before:
            self.sums[key] = self.before.pop(key)
        return self.sums.get(key)

    def keep(self, key: str, rows: int, total: Any) -> None:
        """Write `total`, the sum over all rows before row number `rows`.

        The file is replaced whole or not at all.
        """
        self.sums[key] = rows, [np.asarray(leaf) for leaf in jax.tree.leaves(total)]
        arrays: dict[str, Any] = {}
        counts = {}
        for name, (count, leaves) in self.sums.items():
            arrays |= {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}
            counts[name] = count, len(leaves)
        write_arrays(self.path, arrays, {"sums": counts})


def key_of(first: Any, arrays: Any, texts: Any) -> str:
    """Return the text that identifies a sum, made from its first value and what it is made of."""
    key = hashlib.sha256(str((texts, jax.tree.structure(first))).encode())
    for leaf in jax.tree.leaves((first, arrays)):
        array = np.ascontiguousarray(leaf)
        key.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return key.hexdigest()[:32]
