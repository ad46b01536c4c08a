"""Held-out residuals of pairs of rows: for each pair a solve with a 2×2 block of R, and sums over
millions of pairs.

Blocks of rows of R are computed at one λ after another and summed at once, so that only one block
is in memory at a time. The landmarks that are held out with their rows span a line or a plane, and
add to the 2×2 block the products of what the two rows have along it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import FixedEffects, FixedLevels
from jaxrls.core.leave_out import View
from jaxrls.core.linalg import default_block_size, matmul, panels, sum_rows, wide_block_size
from jaxrls.core.support import pytree, static, where_known


@where_known
def _check_different(pairs: Int[Array, "p 2"]) -> None:
    """Raise for a pair of one row."""
    same = np.flatnonzero(np.asarray(pairs[:, 0] == pairs[:, 1]))
    if same.size:
        raise ValueError(
            f"pairs must be of two different rows each, and pair {same[0]} is row "
            f"{pairs[same[0], 0]} twice"
        )


@pytree
class Pairs:
    """Pairs of rows: as they are listed, row by row of `first` and `second`, or every row of
    `first` with every row of `second`.

    >>> Pairs.of([[0, 2], [1, 2]]).second.tolist()
    [2, 2]
    """

    first: Int[Array, " a"]
    second: Int[Array, " b"]
    listed: bool = static()

    @classmethod
    def of(cls, pairs) -> "Pairs":
        """Pairs from row numbers (p, 2), checked where values are known."""
        if isinstance(pairs, Pairs):
            return pairs
        pairs = pairs if isinstance(pairs, jax.Array) else np.asarray(pairs)
        are_numbers = np.issubdtype(pairs.dtype, np.integer)
        if not are_numbers or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise ValueError(
                "pairs must have shape (p, 2), two row numbers each, and have shape "
                f"{pairs.shape} and dtype {pairs.dtype}"
            )
        pairs = jnp.asarray(pairs)
        _check_different(pairs)
        return cls(pairs[:, 0], pairs[:, 1], True)

    @classmethod
    def between(cls, first, second) -> "Pairs":
        """Every row of `first` with every row of `second`."""
        return cls(jnp.asarray(first), jnp.asarray(second), False)


class Held(NamedTuple):
    """One of the two rows of held-out pairs, its values shaped to broadcast with those of the other
    row; or columns of all rows.
    """

    label: Any  # (t, …)
    weight: Any
    event: Any = None  # whether a label that is a time is that of an event, where it is told
    residual: Any = None


class Entries(NamedTuple):
    """Of pairs of a row i and a row j: the 2×2 block of R and the residuals r, or what is added to
    them.
    """

    ii: Any  # R, (a, b)
    ij: Any
    jj: Any
    i: Any  # r, (t, a, b)
    j: Any


def sum_pairs(solution, terms, lams, pairs, events):
    """Sum a function over pairs of rows for every λ, with both rows of each pair left out together.

    Args:
        solution: a factor with labels, whose rows have a `View`.
        terms: `terms(first, second)`, both `Held`; what it gives must broadcast to the pairs, (t,
            a, b), and be 0 where a weight is 0.
        lams: λ (L,), or (L, t).
        pairs: which pairs; None for all, each once.
        events: what `Held` has of events, (n,).

    Returns:
        The sums, with leading axes (L, t).
    """
    weights = solution.factor.weights
    fixed = solution.factor.fixed
    levels = levels_of_two(fixed, weights)

    def sum_at(lam, targets):
        view = targets.factor.view(targets, lam)
        columns = Held(targets.labels.Y.T, weights.array, events)
        landmarks = None if view.constraints is None else PairLandmarks.of(view.constraints)
        inverse_root = weights.unscale(jnp.ones_like(weights.array))
        return PairSystem(terms, view, landmarks, levels, inverse_root, columns).sum(pairs)

    sums = solution.at_each(solution.lam_columns(lams), sum_at)
    if not fixed.has_constant or levels is not None:
        return sums
    enough = weights.count > 1 + fixed.rank
    return jax.tree.map(lambda total: jnp.where(enough, total, jnp.nan), sums)


def levels_of_two(fixed: FixedEffects, weights):
    """H (n, q) of the levels that have just two rows of positive weight, and leave with that pair,
    0 for others; None where fixed effects are no levels.
    """
    if not isinstance(fixed, FixedLevels):
        return None
    counts = fixed.gram(fixed.values, weights.used.astype(weights.dtype))
    H = weights.scale(fixed.basis(fixed.values, weights.n))
    return H * (counts == 2).astype(weights.dtype)


# pairs at one λ
# --------------------------------------------------------------------------------------------------


@pytree
class PairLandmarks:
    """Landmarks that leave with their rows, as `Constraints` have them, by directions of length 1;
    the last one, of length 0, stands for no landmark.
    """

    landmark_of_row: Int[Array, " n"]
    rows: Float[Array, "n m1"]  # what each row has along each direction
    labels: Float[Array, "t m1"]
    cosines: Float[Array, "m1 m1"]  # of angles between directions
    sines: Float[Array, "m1 m1"]

    @classmethod
    def of(cls, constraints) -> "PairLandmarks":
        """Of all landmarks."""
        planes = constraints.planes
        directions = planes / jnp.linalg.norm(planes, axis=1, keepdims=True)
        directions = jnp.pad(directions, ((0, 1), (0, 0)))
        along = lambda rows: matmul(rows, directions.T)
        rows = along(constraints.coordinates)
        labels = along(constraints.label_coordinates.T)
        return cls(constraints.landmark_of_row, rows, labels, *angles(directions))

    def added(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Entries:
        """What the landmarks of every row i and every row j, which leave together, add to R and r.

        An orthonormal basis of their plane is u, the direction of j's landmark, and v, what is left
        of the direction of i's at a right angle to it: (direction of i − cos · u)/sin. A row adds
        to an entry of R, and labels to r, the product of what both have along u, and along v.
        """
        rows_i = i[:, None]
        rows_j = j[None, :]
        of_i = self.landmark_of_row[rows_i]
        of_j = self.landmark_of_row[rows_j]
        cosine = self.cosines[of_i, of_j]
        sine = self.sines[of_i, of_j]
        # Of what has so much along the directions of i's landmark and of j's.
        along_v = lambda along_i, along_j: (along_i - cosine * along_j) / sine

        u_i = self.rows[rows_i, of_j]
        u_j = self.rows[rows_j, of_j]
        v_i = along_v(self.rows[rows_i, of_i], u_i)
        v_j = along_v(self.rows.T[of_i, rows_j], u_j)  # transposed, it is read in order
        u_labels = self.labels[:, of_j]
        v_labels = along_v(self.labels[:, of_i], u_labels)
        return Entries(
            u_i * u_i + v_i * v_i,
            u_i * u_j + v_i * v_j,
            u_j * u_j + v_j * v_j,
            u_i * u_labels + v_i * v_labels,
            u_j * u_labels + v_j * v_labels,
        )


def angles(directions: Float[Array, "m r"]) -> tuple[Float[Array, "m m"], Float[Array, "m m"]]:
    """Cosines and sines of angles between directions of length 1, the sines from differences where
    any two are nearly parallel; 1 for a direction with itself and with the last one, of length 0.
    """
    cosines = matmul(directions, directions.T)
    m, _ = directions.shape
    alone = jnp.eye(m, dtype=bool).at[-1].set(True).at[:, -1].set(True)
    eps = float(jnp.finfo(directions.dtype).eps)

    def by_differences(cosines):
        def squares_of_row(args):
            direction, sign = args
            distances = jnp.sum((directions - sign[:, None] * direction) ** 2, axis=1)
            return distances * (1 - distances / 4)

        signs = jnp.where(cosines < 0, -1.0, 1.0).astype(cosines.dtype)
        return jax.lax.map(squares_of_row, (directions, signs))

    near = jnp.any(~alone & (cosines**2 > 1 - eps**0.5))
    squares = jax.lax.cond(near, by_differences, lambda cosines: 1 - cosines**2, cosines)
    return cosines, jnp.sqrt(jnp.where(alone, 1, jnp.maximum(squares, eps**2)))


class PairSystem(NamedTuple):
    """What held-out residuals of pairs are solved from at one λ, columns of all rows, and the
    function of pairs that is summed.
    """

    terms: Callable
    view: View
    landmarks: PairLandmarks | None
    levels: Any  # H of those that leave with a pair, (n, q)
    inverse_root: Any  # 1/√v, 1 where v = 0
    columns: Held

    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Entries:
        """R and r of every row i with every row j, levels and landmarks eliminated that leave with
        the two.
        """
        ii, jj = _facing(self.view.diagonal, i, j)
        entries = Entries(ii, self.view.entries(i, j), jj, *_facing(self.view.residuals.T, i, j))
        if self.levels is not None:
            shared = matmul(self.levels[i], self.levels[j].T)  # 0 for rows of two levels
            squares = _facing(jnp.sum(self.levels**2, axis=1), i, j)
            added_i, added_j = (jnp.where(shared > 0, square, 0) for square in squares)
            entries = entries._replace(ii=ii + added_i, ij=entries.ij + shared, jj=jj + added_j)
        if self.landmarks is None:
            return entries
        return Entries(*map(jnp.add, entries, self.landmarks.added(i, j)))

    def held_out(self, i, j, counted) -> tuple[Held, Held]:
        """Every row i and every row j, with residuals that are finite also where a pair is not
        counted: R⁻¹r of its 2×2 block, over √v.
        """
        R = self.entries(i, j)
        inverse = 1 / jnp.where(counted, R.ii * R.jj - R.ij * R.ij, 1)
        root_i, root_j = _facing(self.inverse_root, i, j)
        first, second = _facing(self.columns, i, j)
        return (
            first._replace(residual=root_i * (R.jj * R.i - R.ij * R.j) * inverse),
            second._replace(residual=root_j * (R.ii * R.j - R.ij * R.i) * inverse),
        )

    def sum_block(self, counts, i, j):
        """The sum over every row i with every row j, of the pairs whose row numbers `counts` is
        true of.
        """
        counted = counts(i[:, None], j[None, :])
        first, second = self.held_out(i, j, counted)
        shape = first.residual.shape
        total = lambda a: jnp.sum(jnp.where(counted, jnp.broadcast_to(a, shape), 0), axis=(1, 2))
        return jax.tree.map(total, self.terms(first, second))

    def sum_rectangle(self, counts, first, second):
        """`sum_block`, in blocks of `first`."""
        size = wide_block_size(len(first), len(second) * self.view.residuals.dtype.itemsize)
        of_block = lambda i: self.sum_block(counts, i, second)
        return sum_rows(of_block, jnp.asarray(first), size)

    def sum(self, pairs):
        """The sum over pairs, (t,)."""
        if pairs is None:
            below = [
                self.sum_rectangle(jnp.greater, np.arange(*ends), jnp.arange(ends[1]))
                for ends in panels(len(self.inverse_root))
            ]
            return jax.tree.map(lambda *sums: sum(sums), *below)
        if not pairs.listed:
            return self.sum_rectangle(jnp.not_equal, pairs.first, pairs.second)

        def sum_listed(numbers):  # each pair is a rectangle of its own
            of_pair = lambda i, j: self.sum_block(jnp.not_equal, i[None], j[None])
            return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), jax.vmap(of_pair)(*numbers))

        row_bytes = self.view.width * self.view.residuals.dtype.itemsize
        size = default_block_size(len(pairs.first), 2 * row_bytes)
        return sum_rows(sum_listed, (pairs.first, pairs.second), size)


def _facing(columns, i, j):
    """Values of rows i and of rows j, shaped to broadcast to a rectangle of pairs."""
    of_i = jax.tree.map(lambda a: a[..., i][..., :, None], columns)
    return of_i, jax.tree.map(lambda a: a[..., j][..., None, :], columns)
