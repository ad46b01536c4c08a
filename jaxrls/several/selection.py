"""Greedy forward selection of columns of X by exact leave-one-out error.

Begin with `select_columns`. It adds one column after another: the column with which the error is
smallest. The comment below derives what is updated when a column joins.
"""

# Let h = √v/‖√v‖, and let x = √v X_j be the columns chosen so far. Everything follows from
#
#     Q = λ(Σ xxᵀ + λI)⁻¹, restricted to the complement of h (to all vectors without an intercept):
#     r = Q√v y,   q = diag Q = 1 − leverage,   e = r/(q√v).
#
# With no column chosen, Q is I − hhᵀ. A column x that joins changes Q to
#
#     Q − g aaᵀ   with a = Qx and g = 1/(λ + xᵀa).
#
# Let B hold all p columns, and A = QB. Then A has the product a of each column, so that all columns
# are tried at once. The column that joins changes
#
#     r to r − a g xᵀr,   q to q − g a∘a,   A to A − g a aᵀB.
#
# This takes O(n p (t + 1)) for each column that joins. No 1/λ is formed.

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.criteria import LeaveOneOut, squared_error
from jaxrls.core.data import Labels, Weights, compiled
from jaxrls.core.factors import HeldOut, Summand
from jaxrls.core.fit import Numbers, Problem
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.linalg import Number, default_block_size, matmul, sum_rows
from jaxrls.core.support import (
    as_lam,
    check_whole,
    known_values,
    public_call,
    pytree,
    require_values,
)
from jaxrls.front import read_problem

# A quantity counts as 0 if it has fallen below CERTAIN·√num·eps times its first value. √num·eps is
# the rounding of num updates, so that such a quantity is not known to a few per cent.
CERTAIN = 40


@pytree
class Selection:
    """The columns that `select_columns` chose, with the leave-one-out error after each choice.

    Args:
        columns: (num,), column numbers in the order of choice.
        errors: (num,) or (num, t), the error after each choice, for every target.
        error_without: () or (t,), the error before the first choice. This is the error of the
            intercept alone, or of the prediction 0 without an intercept.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.array([[0.0, 1.0], [1.0, 1.5], [2.0, 0.0], [3.0, 1.0]])
    >>> found = rls.several.select_columns(X, 2 * X[:, 0], 1, lam=1e-3)
    >>> found.columns.tolist(), found.kernel
    ([0], On(kernel=Linear(), columns=(0,)))
    """

    columns: Int[Numbers, " num"]
    errors: Float[Numbers, "num *t"]
    error_without: Float[Numbers, "*t"]

    @property
    def kernel(self) -> Kernel:
        """The linear kernel on the chosen columns, for `fit(selection.kernel, X, Y)`."""
        return self.first(len(self.columns))

    def first(self, num: int) -> Kernel:
        """Return the linear kernel on the first `num` of the chosen columns.

        Raises:
            ValueError: for a `num` that is not 1 to the number of columns, and inside `jax.jit`.
        """
        require_values(
            "the columns have no values inside jax.jit, and a kernel's columns are static: "
            "make the kernel outside",
            self.columns,
        )
        check_whole("num", num, len(self.columns))
        return Linear().on(tuple(np.asarray(self.columns)[:num].tolist()))


@public_call(data="X")
def select_columns(
    X: Any,
    Y: Any,
    num: int,
    lam: Any,
    *,
    weights: Any = None,
    intercept: bool = True,
    loss: Callable = squared_error,
) -> Selection:
    """Choose `num` columns of X for a linear fit: greedy forward selection by exact leave-one-out.

    Each step tries every remaining column together with the chosen columns, at this λ. It adds the
    column with the smallest Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, averaged over targets, with the held-out
    residuals e. Of equal errors the first column is taken. A row is held out with all of its
    weight.

    Columns are compared as they are. Of two columns with the same information, the one of larger
    scale is penalised less. So standardise columns that have different units.

    Args:
        X: rows (n, d), NumPy or JAX.
        Y: labels (n,) or (n, t).
        num: how many columns, at most d; static in `jax.jit`.
        lam: λ, one number above 0.
        weights: sample weights (n,), 0 or more.
        intercept: whether to fit a constant without penalty.
        loss: a function of held-out residuals and labels, as in `LeaveOneOut`.

    Returns:
        A `Selection`. Its `kernel` is for `fit`, which may choose λ anew. Never chosen are:

        * columns of zeros;
        * constant columns, if there is an intercept;
        * columns that the chosen ones span up to rounding, which happens for a tiny λ.

        If fewer than `num` other columns exist, the result is shorter. Inside `jax.jit`, where its
        shape is fixed, the result is filled up with such columns.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, λ ≤ 0, a source of rows or a sparse
            X.

    **Cost** O(num n d (t + 1)) time, 3nd numbers. **Fails**: the smallest error among very many
    columns is optimistic, because the choice has used it. So measure the error on rows that the
    selection has not used. If columns interpolate a row, so that 1 − leverage is rounding, the
    error is infinite. Selection is forward only: a chosen column is never removed. **Source**:
    Pahikkala, Airola and Salakoski 2010, "Speeding up greedy forward selection for regularized
    least-squares".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.random.default_rng(0).normal(size=(40, 6))
    >>> y = 3 * X[:, 4] - X[:, 1] + 0.1 * X[:, 0] ** 2
    >>> found = rls.several.select_columns(X, y, 2, lam=1.0)
    >>> found.columns.tolist(), bool(found.errors[1] < found.errors[0] < found.error_without)
    ([4, 1], True)
    >>> rls.fit(found.kernel, X, y).model.coef.shape
    (2,)
    """
    problem = read_problem(
        Linear(), X, Y, weights=weights, intercept=intercept, criterion=LeaveOneOut(loss)
    )
    check_whole("num, how many columns,", num, problem.rows.shape[1])
    if not problem.rows.in_memory:
        raise ValueError(
            "X must be a dense matrix, whose columns are read at every step, and is "
            f"{type(problem.rows).__name__}"
        )
    chosen, count = _choose(problem, as_lam(lam, problem.rows.dtype), num=int(num))
    known = known_values(count)
    if known is None:
        return chosen
    return replace(chosen, columns=chosen.columns[: int(known)], errors=chosen.errors[: int(known)])


class Search(NamedTuple):
    """What stays the same during the selection, and the limits below which numbers are rounding."""

    summand: Summand  # the sum over rows of weight times loss
    weights: Weights
    labels: Any  # (n, t)
    lam: Any
    columns: Any  # B: √v X minus its fit by the fixed effects, (n, p)
    least_inner: Any  # below this xᵀQx is rounding, (p,)
    least_remaining: float  # below this 1 − leverage is rounding
    tie: float  # errors with a smaller relative difference count as equal

    @classmethod
    def of(cls, problem: Problem, labels: Labels, lam: Number, num: int) -> "Search":
        """Prepare the selection of `num` columns."""
        X = problem.rows.dense()
        weights = problem.weights
        columns = weights.scale(problem.fixed.residual(weights, X))
        eps = jnp.finfo(X.dtype).eps
        least = CERTAIN * num**0.5 * float(eps)
        tie = 4 * len(X) ** 0.5 * float(eps)
        least_inner = least * jnp.linalg.norm(columns, axis=0)
        least_inner = least_inner * jnp.linalg.norm(weights.scale(X), axis=0)
        summand: Any = problem.criterion.summand
        return cls(summand, weights, labels.Y, lam, columns, least_inner, least, tie)


class State(NamedTuple):
    """What changes with each chosen column. The comment at the top of this file defines Q."""

    products: Any  # A = QB, (n, p)
    residuals: Any  # r = Q√v y, (n, t)
    remaining: Any  # q = diag Q = 1 − leverage, (n,)
    chosen: Any  # whether each column was chosen, (p,)


@compiled
def _choose(problem: Problem, lam: Number, *, num: int) -> tuple[Selection, Int[Array, ""]]:
    """Choose `num` columns of X, one after the other.

    A column that the chosen ones span up to rounding changes nothing. Such columns fill the result
    up if there are no others.

    Returns:
        The selection, and how many of its columns are not such fillers, ().
    """
    fixed = problem.fixed
    weights = problem.weights
    labels = Labels.of(problem.Y, weights, fixed)
    search = Search.of(problem, labels, lam, num)
    columns = search.columns
    remaining = 1 - fixed.leverage(fixed.values, weights.array)
    start = State(columns, labels.scaled, remaining, jnp.zeros(columns.shape[1], bool))

    before = _error_without(search, start)
    step = lambda state, _: _add_best(search, state)
    _, (indices, errors, independent) = jax.lax.scan(step, start, length=num)
    drop = labels.drop_axis
    selection = Selection(indices.astype(jnp.int32), drop(errors), drop(before))
    return selection, jnp.sum(independent, dtype=jnp.int32)


def _add_best(search: Search, state: State) -> tuple[State, tuple]:
    """Add the column with the smallest error, averaged over targets.

    Of columns whose errors differ by rounding alone, the first is taken.

    Returns:
        (state, (column, errors, independent)): the new state, the number of the column, its error
        for every target (t,), and whether the columns chosen before do not span it.
    """
    inner = jnp.sum(search.columns * state.products, axis=0)
    independent = inner > search.least_inner
    share = jnp.where(independent, 1 / jnp.where(independent, search.lam + inner, 1), 0)
    moves = matmul(search.columns.T, state.residuals) * share[:, None]
    errors = _errors_with_each(search, state, share, moves)
    able = ~state.chosen & (independent | ~jnp.any(independent & ~state.chosen))
    mean = jnp.where(able, jnp.mean(errors, axis=1), jnp.inf)
    smallest = jnp.min(mean)
    best = jnp.argmax((mean <= smallest + search.tie * jnp.abs(smallest)) & able)

    a = state.products[:, best]
    joined = State(
        state.products - a[:, None] * (share[best] * matmul(a, search.columns)),
        state.residuals - a[:, None] * moves[best],
        state.remaining - a * a * share[best],
        state.chosen.at[best].set(True),
    )
    return joined, (best, errors[best], independent[best])


def _error_without(search: Search, state: State) -> Float[Array, " t"]:
    """Compute the error with the chosen columns alone."""
    alone = lambda r, remaining: (r[:, :, None], remaining[:, None])
    return _errors(search, alone, (state.residuals, state.remaining), 1)[0]


def _errors_with_each(
    search: Search, state: State, share: Float[Array, " p"], moves: Float[Array, "p t"]
) -> Float[Array, "p t"]:
    """Compute the error with each column added to the chosen ones.

    Args:
        search: what stays the same.
        state: the state before the column is added.
        share: g of each column, 0 for columns that the chosen ones span, (p,).
        moves: g xᵀr of each column, (p, t).
    """
    joined = lambda a, r, remaining: (
        r[:, :, None] - a[:, None, :] * moves.T,
        remaining[:, None] - a * a * share,
    )
    rows = state.products, state.residuals, state.remaining
    return _errors(search, joined, rows, len(share))


def _errors(search: Search, of_rows: Callable, rows: tuple, count: int) -> Float[Array, "k t"]:
    """Compute the errors of `count` sets of columns, in blocks of rows.

    An error is infinite if 1 − leverage of some row of positive weight is rounding.

    Args:
        search: what stays the same.
        of_rows: a function of a block of `rows`. It returns r (b, t, k) and 1 − leverage (b, k).
        rows: arrays with an entry for each row.
        count: the number k of sets.
    """

    def sum_block(part: tuple[Any, ...]) -> tuple[Float[Array, "k t"], Int[Array, " k"]]:
        block, v, Y = part
        r, remaining = of_rows(*block)
        weights = search.weights.block(v, len(r))
        left_out = weights.unscale(r / remaining[:, None, :])
        unknown = (remaining <= search.least_remaining) & weights.used[:, None]
        loss = lambda e: search.summand(HeldOut(e, None, Y, weights.array))
        losses = jax.vmap(loss, in_axes=2)(left_out)
        return losses, jnp.sum(unknown, axis=0)

    n = len(search.labels)
    size = default_block_size(n, 4 * count * search.labels[0].nbytes)
    losses, unknown = sum_rows(sum_block, (rows, search.weights.values, search.labels), size)
    known = (unknown == 0)[:, None] & jnp.isfinite(losses)
    return jnp.where(known, losses / search.weights.total, jnp.inf)
