"""Sums over millions of pairs of rows, where both rows of each pair are held out together.

The held-out residuals of a pair come from a solve with a 2×2 block of the residual operator R.
Begin with `sum_pairs`. R is computed in blocks, for one λ after another. Each block is summed at
once, so that only one block is in memory at a time. `PairLandmarks` is for rows that are landmarks,
whose coefficients are held out with the rows.

Theory: `docs/theory.md`, "One matrix".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data import FixedEffects, FixedLevels, Weights
from jaxrls.core.factors import Solution
from jaxrls.core.leave_out import Constraints, View
from jaxrls.core.linalg import (
    Number,
    default_block_size,
    matmul,
    panels,
    sum_rows,
    wide_block_size,
)
from jaxrls.core.support import check_row_numbers, pytree, where_known


class Pairs(ABC):
    """A set of pairs of rows: `AllPairs`, `PairsBetween` or `ListedPairs`."""

    @abstractmethod
    def sum(self, system: "PairSystem") -> Any:
        """Return the sum over all pairs of the set, (t,)."""

    def have_order(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether some row has its `low` below the `high` of another, for each of their columns.

        Both are (n, t), and infinite where a row does not count.
        """
        return low.min(axis=0) < high.max(axis=0)


@pytree
class AllPairs(Pairs):
    """All pairs of rows, each counted once."""

    def sum(self, system: "PairSystem") -> Any:
        """Return the sum over all pairs i > j, panel by panel of the triangle."""
        below = [
            system.sum_rectangle(jnp.greater, np.arange(*ends), jnp.arange(ends[1]))
            for ends in panels(len(system.inverse_root))
        ]
        return jax.tree.map(lambda *sums: sum(sums), *below)


@pytree
class PairsBetween(Pairs):
    """The pairs of every row of `first` with every row of `second`, such as those of two classes.

    No row is paired with itself.
    """

    first: Int[Array, " a"]
    second: Int[Array, " b"]

    def sum(self, system: "PairSystem") -> Any:
        """Return the sum over the rectangle of `first` and `second`."""
        return system.sum_rectangle(jnp.not_equal, self.first, self.second)


@pytree
class ListedPairs(Pairs):
    """Pairs that are listed: pair k is (first[k], second[k]).

    >>> ListedPairs.of([[0, 2], [1, 2]]).second.tolist()
    [2, 2]
    """

    first: Int[Array, " p"]
    second: Int[Array, " p"]

    @classmethod
    def of(cls, pairs: Any) -> "ListedPairs":
        """Make listed pairs from row numbers (p, 2).

        Raise for another shape or dtype. Raise for a pair of one row twice, if the numbers have
        values now (outside of `jax.jit`).
        """
        pairs = pairs if isinstance(pairs, jax.Array) else np.asarray(pairs)
        are_numbers = np.issubdtype(pairs.dtype, np.integer)
        if not are_numbers or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise ValueError(
                "pairs must have shape (p, 2), two row numbers each, and have shape "
                f"{pairs.shape} and dtype {pairs.dtype}"
            )
        pairs = jnp.asarray(pairs)
        _check_different(pairs)
        return cls(first=pairs[:, 0], second=pairs[:, 1])

    def sum(self, system: "PairSystem") -> Any:
        """Return the sum over the listed pairs, in blocks of pairs."""

        def sum_listed(numbers: tuple[Int[Array, " p"], Int[Array, " p"]]) -> Any:
            # Each pair is a rectangle of its own.
            of_pair = lambda i, j: system.sum_block(jnp.not_equal, i[None], j[None])
            return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), jax.vmap(of_pair)(*numbers))

        row_bytes = system.view.width * system.view.residuals.dtype.itemsize
        size = default_block_size(len(self.first), 2 * row_bytes)
        return sum_rows(sum_listed, (self.first, self.second), size)

    def have_order(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether one row of a listed pair has its `low` below the `high` of the other.

        Raise if a pair names a row that does not exist.
        """
        i = np.asarray(self.first)
        j = np.asarray(self.second)
        check_row_numbers(np.concatenate([i, j]), len(low))
        return ((low[i] < high[j]) | (low[j] < high[i])).any(axis=0)


@pytree
class PairsWithin(ListedPairs):
    """All pairs of two rows of the same group, as `pairs_within` lists them."""


@where_known
def _check_different(pairs: Int[Array, "p 2"]) -> None:
    """Raise if a pair consists of one row twice."""
    same = np.flatnonzero(np.asarray(pairs[:, 0] == pairs[:, 1]))
    if same.size:
        raise ValueError(
            f"pairs must be of two different rows each, and pair {same[0]} is row "
            f"{pairs[same[0], 0]} twice"
        )


class Held(NamedTuple):
    """The labels, weights, events and residuals of one of the two rows of held-out pairs.

    The arrays are shaped so that they broadcast with the arrays of the other row. `PairSystem` uses
    this class also for the columns of all rows, without residuals.
    """

    label: Any  # (t, …)
    weight: Any
    event: Any = None  # 1 for the time of an event, 0 for a censored time; None: not times
    residual: Any = None


class Entries(NamedTuple):
    """The 2×2 blocks of R and the residuals r, for all a × b pairs of a row i and a row j.

    `PairLandmarks.added` returns what is added to these numbers.
    """

    ii: Any  # Rᵢᵢ, which broadcasts to (a, b)
    ij: Any  # Rᵢⱼ
    jj: Any  # Rⱼⱼ
    r_i: Any  # rᵢ, which broadcasts to (t, a, b)
    r_j: Any  # rⱼ


def sum_pairs(
    solution: Solution,
    terms: Callable,
    lams: Float[Array, "L *k"],
    pairs: Pairs,
    events: Float[Array, " n"] | None,
) -> Any:
    """Sum a function over pairs of rows for every λ, with both rows of each pair left out together.

    Args:
        solution: a factor with labels, whose rows have a `View`.
        terms: the function `terms(first, second)` of two `Held`. Its results must broadcast to
            shape (t, a, b) of the pairs, and be 0 where a weight is 0.
        lams: λ (L,), or (L, t).
        pairs: the pairs.
        events: (n,), the field `event` of `Held`; None for labels that are not times.

    Returns:
        The sums of each result of `terms`, (L, t). They are NaN if a constant is fitted, alone or
        with columns, and fewer rows of positive weight remain without a pair than fixed effects.
    """
    weights = solution.factor.weights
    fixed = solution.factor.fixed
    levels = levels_of_two(fixed, weights)

    def sum_at(lam: Number, targets: Solution) -> Any:
        view = targets.factor.view(targets, lam)
        columns = Held(targets.labels.Y.T, weights.array, events)
        landmarks = None if view.constraints is None else PairLandmarks.of(view.constraints)
        inverse_root = weights.unscale(jnp.ones_like(weights.array))
        return pairs.sum(PairSystem(terms, view, landmarks, levels, inverse_root, columns))

    sums = solution.at_each(solution.lam_columns(lams), sum_at)
    if not fixed.has_constant or levels is not None:
        return sums
    enough = weights.count > 1 + fixed.rank
    return jax.tree.map(lambda total: jnp.where(enough, total, jnp.nan), sums)


def levels_of_two(fixed: FixedEffects, weights: Weights) -> Float[Array, "n q"] | None:
    """Return the columns H (n, q) of the levels that have just two rows of positive weight.

    Without this pair of rows nothing is known of such a level, so it leaves with the pair. The
    columns of all other levels are 0. Return None if the fixed effects are not levels.
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
    """The landmarks that are held out with their rows, prepared for pairs.

    Each of the m landmarks is a direction of length 1: its row of `Constraints.planes`, normalised.
    One more direction, the last, has length 0. It stands for a row that is not a landmark.
    """

    landmark_of_row: Int[Array, " n"]  # m for a row that is not a landmark
    rows: Float[Array, "n m1"]  # the inner product of each row of M with each direction
    labels: Float[Array, "t m1"]  # the inner product of Mᵀỹ with each direction
    cosines: Float[Array, "m1 m1"]  # of the angles between directions
    sines: Float[Array, "m1 m1"]

    @classmethod
    def of(cls, constraints: Constraints) -> "PairLandmarks":
        """Prepare the landmarks of the `Constraints` of a view."""
        planes = constraints.planes
        directions = planes / jnp.linalg.norm(planes, axis=1, keepdims=True)
        directions = jnp.pad(directions, ((0, 1), (0, 0)))
        along = lambda rows: matmul(rows, directions.T)
        rows = along(constraints.coordinates)
        labels = along(constraints.label_coordinates.T)
        return cls(constraints.landmark_of_row, rows, labels, *angles(directions))

    def added(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Entries:
        """Return what is added to R and r when the landmarks of rows i and j leave with the rows.

        Let a and u be the directions of the landmarks of i and j. With v = (a − cos·u)/sin, u and
        v are an orthonormal basis of the plane of a and u. For rows p and q of M,

            R_pq gains (M_p·u)(M_q·u) + (M_p·v)(M_q·v),
            r_p  gains (M_p·u)(Mᵀỹ·u) + (M_p·v)(Mᵀỹ·v).
        """
        rows_i = i[:, None]
        rows_j = j[None, :]
        of_i = self.landmark_of_row[rows_i]
        of_j = self.landmark_of_row[rows_j]
        cosine = self.cosines[of_i, of_j]
        sine = self.sines[of_i, of_j]
        # The inner product with v, from the inner products with a and with u.
        along_v = lambda along_i, along_j: (along_i - cosine * along_j) / sine

        u_i = self.rows[rows_i, of_j]
        u_j = self.rows[rows_j, of_j]
        v_i = along_v(self.rows[rows_i, of_i], u_i)
        v_j = along_v(self.rows.T[of_i, rows_j], u_j)  # transposed, memory is read in order
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
    """Return cosines and sines of the angles between directions of length 1.

    The sine is set to 1 for a direction with itself and with the last direction, of length 0. If
    any two directions a and b are nearly parallel, 1 − cos² would lose digits. Then sin² = d²(1 −
    d²/4) for all of them, with the length d of a − b, or of a + b if cos < 0.
    """
    cosines = matmul(directions, directions.T)
    m, _ = directions.shape
    alone = jnp.eye(m, dtype=bool).at[-1].set(True).at[:, -1].set(True)
    eps = float(jnp.finfo(directions.dtype).eps)

    def by_differences(cosines: Float[Array, "m m"]) -> Float[Array, "m m"]:
        def squares_of_row(
            args: tuple[Float[Array, " r"], Float[Array, " m"]],
        ) -> Float[Array, " m"]:
            direction, sign = args
            distances = jnp.sum((directions - sign[:, None] * direction) ** 2, axis=1)
            return distances * (1 - distances / 4)

        signs = jnp.where(cosines < 0, -1.0, 1.0).astype(cosines.dtype)
        return jax.lax.map(squares_of_row, (directions, signs))

    near = jnp.any(~alone & (cosines**2 > 1 - eps**0.5))
    squares = jax.lax.cond(near, by_differences, lambda cosines: 1 - cosines**2, cosines)
    return cosines, jnp.sqrt(jnp.where(alone, 1, jnp.maximum(squares, eps**2)))


class PairSystem(NamedTuple):
    """All that a sum over pairs needs at one λ.

    `terms` is the function that is summed. `view` has R and r.
    """

    terms: Callable
    view: View
    landmarks: PairLandmarks | None  # None: no coefficients leave with rows
    levels: Any  # H of the levels that leave with a pair, (n, q); None: there are no levels
    inverse_root: Any  # 1/√v, 1 where v = 0
    columns: Held  # of all rows

    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Entries:
        """Return R and r of every row i with every row j.

        The levels and landmarks that leave with the two rows are eliminated.
        """
        ii, jj = _facing(self.view.diagonal, i, j)
        entries = Entries(ii, self.view.entries(i, j), jj, *_facing(self.view.residuals.T, i, j))
        if self.levels is not None:
            shared = matmul(self.levels[i], self.levels[j].T)  # 0 for rows of different levels
            squares = _facing(jnp.sum(self.levels**2, axis=1), i, j)
            added_i, added_j = (jnp.where(shared > 0, square, 0) for square in squares)
            entries = entries._replace(ii=ii + added_i, ij=entries.ij + shared, jj=jj + added_j)
        if self.landmarks is None:
            return entries
        return Entries(*map(jnp.add, entries, self.landmarks.added(i, j)))

    def held_out(
        self, i: Int[Array, " a"], j: Int[Array, " b"], counted: Bool[Array, "a b"]
    ) -> tuple[Held, Held]:
        """Return every row i and every row j with their held-out residuals.

        The residuals are R⁻¹r of the 2×2 block of a pair, over √v. They are finite also for a pair
        that is not counted.
        """
        block = self.entries(i, j)
        determinant = block.ii * block.jj - block.ij * block.ij
        inverse = 1 / jnp.where(counted, determinant, 1)
        root_i, root_j = _facing(self.inverse_root, i, j)
        first, second = _facing(self.columns, i, j)
        e_i = root_i * (block.jj * block.r_i - block.ij * block.r_j) * inverse
        e_j = root_j * (block.ii * block.r_j - block.ij * block.r_i) * inverse
        return first._replace(residual=e_i), second._replace(residual=e_j)

    def sum_block(self, is_counted: Callable, i: Int[Array, " a"], j: Int[Array, " b"]) -> Any:
        """Return the sum over every row i with every row j, of pairs for which is_counted(i, j)."""
        counted = is_counted(i[:, None], j[None, :])
        first, second = self.held_out(i, j, counted)
        shape = first.residual.shape
        total = lambda a: jnp.sum(jnp.where(counted, jnp.broadcast_to(a, shape), 0), axis=(1, 2))
        return jax.tree.map(total, self.terms(first, second))

    def sum_rectangle(
        self, is_counted: Callable, first: Int[Array | np.ndarray, " a"], second: Int[Array, " b"]
    ) -> Any:
        """Return the sum over every row of `first` with every row of `second`, in blocks of rows.

        Only pairs for which is_counted(i, j) are summed.
        """
        size = wide_block_size(len(first), len(second) * self.view.residuals.dtype.itemsize)
        of_block = lambda i: self.sum_block(is_counted, i, second)
        return sum_rows(of_block, jnp.asarray(first), size)


def _facing(columns: Any, i: Int[Array, " a"], j: Int[Array, " b"]) -> tuple[Any, Any]:
    """Return the values of rows i, (…, a, 1), and of rows j, (…, 1, b), for a × b pairs."""
    of_i = jax.tree.map(lambda a: a[..., i][..., :, None], columns)
    return of_i, jax.tree.map(lambda a: a[..., j][..., None, :], columns)
