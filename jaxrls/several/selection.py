"""Greedy forward selection of columns of X: one after the other, each the one with which exact
leave-one-out error is smallest.
"""

# With h = √v/‖√v‖ and the columns x = √v X_j chosen so far, everything follows from
# Q = λ(Σ xxᵀ + λI)⁻¹ on the complement of h (of nothing without an intercept): r = Q√v y,
# q = diag Q = 1 − leverage, and e = r/(q√v). Q is C = I − hhᵀ at first, and with each column x
# that joins g aaᵀ is subtracted, a = Qx, g = 1/(λ + xᵀa). With the products a of all columns each
# of them is tried at once, and the one that joins changes
#
#     r − a g xᵀr,   q − g a∘a,   A − g a aᵀB,   B the columns and A = QB:
#
# O(n p (t + 1)) for each column. No 1/λ is formed.

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.criteria import LeaveOneOut, squared_error
from jaxrls.core.data import Labels, Weights, compiled
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.linalg import default_block_size, matmul, sum_rows
from jaxrls.core.support import (
    as_lam,
    check_whole,
    is_concrete,
    public_call,
    pytree,
    require_values,
)
from jaxrls.front import read_problem

# Times the rounding of num updates, √num·eps: a quantity that is smaller, relative to its first
# value, is not known to a few per cent, and counts as 0.
CERTAIN = 40


@pytree
class Selection:
    """The columns that `select_columns` chose, with the leave-one-out error after each choice.

    Args:
        columns: (num,), column numbers in the order of choice.
        errors: (num,) or (num, t), the error after each choice, for every target.
        error_without: () or (t,), the error before the first choice: of the intercept alone, or
            without one, of the prediction 0.

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
        """The linear kernel on the first `num` of the chosen columns.

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
    X, Y, num: int, lam, *, weights=None, intercept: bool = True, loss: Callable = squared_error
) -> Selection:
    """Choose `num` columns of X for a linear fit: greedy forward selection by exact leave-one-out.

    Each step tries every remaining column together with those already chosen, at this λ, and adds
    the one of the smallest Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, averaged over targets, with the held-out
    residuals e; on ties the first column. A row is held out with all of its weight.

    Columns are compared as they are: of two with the same information the one of larger scale is
    penalised less, so standardise columns that have different units.

    Args:
        X: rows (n, d), NumPy or JAX.
        Y: labels (n,) or (n, t).
        num: how many columns, at most d; static in `jax.jit`.
        lam: λ, one number above 0.
        weights: sample weights (n,), 0 or more.
        intercept: whether to fit a constant without penalty.
        loss: of held-out residuals, as in `LeaveOneOut`.

    Returns:
        A `Selection`, whose `kernel` is for `fit`, which may choose λ anew. Columns of zeros are
        never chosen, nor constant ones if there is an intercept, nor, for a tiny λ, those that the
        chosen ones span up to rounding. If fewer than `num` others exist, the result is shorter.
        Inside `jax.jit`, where the shape is fixed, it is filled up with columns that are never
        chosen.

    Raises:
        ValueError: for shapes that do not fit, NaN or infinity, λ ≤ 0, a source of rows or a sparse
            X.

    **Cost** O(num n d (t + 1)) time, 3nd numbers. **Fails**: the smallest error among very many
    columns is optimistic, because the choice has used it: measure the error on rows that the
    selection has not used. Where columns interpolate a row, so that 1 − leverage is rounding, the
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
    if not is_concrete(count):
        return chosen
    return replace(chosen, columns=chosen.columns[: int(count)], errors=chosen.errors[: int(count)])


class Search(NamedTuple):
    """What a search does not change, and how small its numbers may be before they are rounding."""

    total: Callable  # the loss of rows, times their weight
    weights: Weights
    labels: Any  # (n, t)
    lam: Any
    columns: Any  # √v X less its fit by the fixed effects, (n, p)
    least_inner: Any  # of xᵀQx, (p,)
    least_remaining: float  # of 1 − leverage
    tie: float  # of errors, relative to each other

    @classmethod
    def of(cls, problem, labels, lam, num) -> "Search":
        """A search for `num` columns."""
        X = problem.rows.dense()
        weights = problem.weights
        columns = weights.scale(problem.fixed.residual(weights, X))
        eps = jnp.finfo(X.dtype).eps
        least = CERTAIN * num**0.5 * float(eps)
        tie = 4 * len(X) ** 0.5 * float(eps)
        least_inner = least * jnp.linalg.norm(columns, axis=0)
        least_inner = least_inner * jnp.linalg.norm(weights.scale(X), axis=0)
        total: Any = problem.criterion.summand
        return cls(total, weights, labels.Y, lam, columns, least_inner, least, tie)


class State(NamedTuple):
    """What the choice changes, with Q as above."""

    products: Any  # Q times the columns, (n, p)
    residuals: Any  # r, (n, t)
    remaining: Any  # diag Q, (n,)
    chosen: Any  # which columns, (p,)


@compiled
def _choose(problem, lam, *, num) -> tuple[Selection, Int[Array, ""]]:
    """`num` of the columns of X, chosen one after the other, and how many were really chosen: a
    column that the chosen ones span up to rounding changes nothing, and fills the result up where
    there are no others.
    """
    fixed = problem.fixed
    weights = problem.weights
    labels = Labels.of(problem.Y, weights, fixed)
    search = Search.of(problem, labels, lam, num)
    columns = search.columns
    remaining = 1 - fixed.leverage(fixed.values, weights.array)
    start = State(columns, labels.scaled, remaining, jnp.zeros(columns.shape[1], bool))

    nothing = jnp.zeros_like(columns[0, :1]), jnp.zeros_like(labels.Y[:1])
    before = _errors(search, start._replace(products=columns[:, :1]), *nothing)[0]
    step = lambda state, _: _add_best(search, state)
    _, (indices, errors, independent) = jax.lax.scan(step, start, length=num)
    drop = labels.drop_axis
    selection = Selection(indices.astype(jnp.int32), drop(errors), drop(before))
    return selection, jnp.sum(independent, dtype=jnp.int32)


def _add_best(search, state) -> tuple[State, tuple]:
    """The state with the column that has the smallest error, averaged over targets; its number, the
    error with it for every target, and whether those before it do not span it.

    Errors that differ by rounding count as equal: the first of them is taken.
    """
    inner = jnp.sum(search.columns * state.products, axis=0)
    independent = inner > search.least_inner
    share = jnp.where(independent, 1 / jnp.where(independent, search.lam + inner, 1), 0)
    moves = matmul(search.columns.T, state.residuals) * share[:, None]
    errors = _errors(search, state, share, moves)
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


def _errors(search, state, share, moves) -> Float[Array, "p t"]:
    """The errors with each column a = Qx added to those chosen: infinite where 1 − leverage is
    rounding. Summed over blocks of rows.

    Args:
        share: g, 0 for columns that the chosen ones span, (p,).
        moves: g xᵀr, (p, t).
    """

    def sum_block(part):
        a, r, remaining, v, Y = part
        weights = search.weights.block(v, len(r))
        remaining = remaining[:, None] - a * a * share
        moved = r[:, :, None] - a[:, None, :] * moves.T
        left_out = weights.unscale(moved / remaining[:, None, :])
        unknown = (remaining <= search.least_remaining) & weights.used[:, None]
        losses = jax.vmap(search.total, in_axes=(2, None, None))(left_out, Y, weights.array)
        return losses, jnp.sum(unknown, axis=0)

    n, p = state.products.shape
    size = default_block_size(n, 4 * p * search.labels[0].nbytes)
    rows = *state[:3], search.weights.values, search.labels
    losses, unknown = sum_rows(sum_block, rows, size)
    known = (unknown == 0)[:, None] & jnp.isfinite(losses)
    return jnp.where(known, losses / search.weights.total, jnp.inf)
