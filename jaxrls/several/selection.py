"""Greedy forward selection of columns of X, or of rows as landmarks: one feature after the other,
each the one with which exact leave-one-out error is smallest.
"""

# With h = √v/‖√v‖ and the features x chosen so far, everything follows from
# Q = λ(Σ xxᵀ + λI)⁻¹ on the complement of h (of nothing without an intercept): r = Q√v y,
# q = diag Q = 1 − leverage, and e = r/(q√v). Q is C = I − hhᵀ at first, and with each feature x
# that joins aaᵀ/(λ + xᵀa), a = Qx, is subtracted.
#
# Candidate j is column j of B, over √Eⱼⱼ: what remains of C√v K_TC and of K_CC when the chosen
# features are projected out, as in a pivoted Cholesky factorization. Columns of X are candidates
# whose Gram matrix is the identity, so that none changes another. With A = QB all candidates are
# tried at once, and the one that joins is projected out of all others,
#
#     r − Aⱼ(Bⱼᵀr)ρ,   q − Aⱼ∘Aⱼρ,   ρ = 1/(λEⱼⱼ + BⱼᵀAⱼ);
#     A − ρAⱼ(BᵀAⱼ + λE:ⱼ)ᵀ,   B − BⱼE:ⱼᵀ/Eⱼⱼ:
#
# O(n p (t + 1)) for each feature. No 1/λ is formed.

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.criteria.losses import squared_error
from jaxrls.core.criteria.standard import LeaveOneOut
from jaxrls.core.fit.model import Numbers
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels.inner import Linear
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.linalg.blocks import default_block_size, sum_rows
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.compiled import compiled
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.labels import Labels
from jaxrls.core.support.checks import as_lam, check_whole, in_words, is_concrete, memory_bytes
from jaxrls.core.support.door import door
from jaxrls.core.support.pytrees import pytree
from jaxrls.landmarks.points import Landmarks, as_landmarks, check_evaluable

# The share of the largest remaining Eⱼⱼ that a candidate must have. Each that joins multiplies
# rounding by up to √(max E/Eⱼⱼ), and labels alone would choose close neighbours, which differ by
# a derivative: a tenth keeps leave-one-out errors of smooth kernels right to 2 % in float32, a
# hundredth to 30 %.
INDEPENDENT = 0.1
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
    >>> found = rls.select_columns(X, 2 * X[:, 0], 1, lam=1e-3)
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
        if not is_concrete(self.columns):
            raise ValueError(
                "the columns have no values inside jax.jit, and a kernel's columns are static: "
                "make the kernel outside"
            )
        check_whole("num", num, len(self.columns))
        return Linear().on(tuple(np.asarray(self.columns)[:num].tolist()))


@pytree
class LandmarkSelection:
    """The landmarks that `select_landmarks` chose, with the leave-one-out error after each choice.

    Args:
        landmarks: `Landmarks`, for `fit(…, landmarks=)`.
        errors: (num,) or (num, t), the error after each choice, for every target.
        error_without: () or (t,), the error before the first choice.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 9)[:, None]
    >>> found = rls.select_landmarks(rls.Gaussian(0.5), X, np.sin(6 * X[:, 0]), 2, lam=1e-3)
    >>> found.landmarks.points.shape, found.errors.shape
    ((2, 1), (2,))
    """

    landmarks: Landmarks
    errors: Float[Numbers, "num *t"]
    error_without: Float[Numbers, "*t"]


@door("X")
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
    >>> found = rls.select_columns(X, y, 2, lam=1.0)
    >>> found.columns.tolist(), bool(found.errors[1] < found.errors[0] < found.error_without)
    ([4, 1], True)
    >>> rls.fit(found.kernel, X, y).model.coef.shape
    (2,)
    """
    problem = Problem.of(
        Linear(), X, Y, weights=weights, intercept=intercept, criterion=LeaveOneOut(loss)
    )
    check_whole("num, how many columns,", num, problem.rows.shape[1])
    return Selection(*_chosen(problem, None, lam, num))


@door("X")
def select_landmarks(
    kernel: Kernel,
    X,
    Y,
    num: int,
    lam,
    *,
    candidates=None,
    weights=None,
    intercept: bool = True,
    loss: Callable = squared_error,
) -> LandmarkSelection:
    """Choose `num` rows of X as landmarks by what they contribute to predicting the labels: greedy
    forward selection by exact leave-one-out.

    The same selection as `select_columns`, among features Eⱼ/√Eⱼⱼ with E = K − K̂ of the landmarks
    already chosen. `landmarks` uses K alone and no labels, and all rows are its candidates; this
    function needs fewer landmarks for the same error where labels depend on few directions of K.
    Landmarks are fixed while rows are held out: a row that is a landmark stays one when its label
    is held out, as in `factorize(…, leave=False)`. `fit` on the result holds it out as a landmark
    too.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), NumPy or JAX.
        Y: labels (n,) or (n, t).
        num: how many landmarks, at most the number p of candidates; static in `jax.jit`.
        lam: λ, one number above 0.
        candidates: row numbers (p,) to choose from, by default all rows.
        weights, intercept, loss: as in `select_columns`.

    Returns:
        A `LandmarkSelection`, whose `landmarks` are for `fit(…, landmarks=)`: fewer than `num`
        where no further row is independent, as in `landmarks`. A row is a candidate only while Eⱼⱼ
        is at least a tenth of the largest, since two close neighbours, whose difference is nearly a
        derivative, would make K_RR ill-conditioned.

    Raises:
        ValueError: as `select_columns`, for row numbers that X does not have, and where memory is
            too small.

    **Cost** O(num n p (t + 1)) time, 3np numbers: for a few thousand candidates. **Fails** as
    `select_columns`. **Source**: Pahikkala, Airola and Salakoski 2010, for columns; with the
    residual kernel matrix of Smola and Bartlett 2001, "Sparse greedy Gaussian process regression".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> found = rls.select_landmarks(rls.Gaussian(0.3), X, y, 4, lam=1e-3)
    >>> fit = rls.fit(rls.Gaussian(0.3), X, y, landmarks=found.landmarks)
    >>> bool(found.errors[3] < 0.1 * found.error_without), fit.num_landmarks
    (True, 4)
    """
    check_evaluable(kernel)
    problem = Problem.of(
        kernel, X, Y, weights=weights, intercept=intercept, criterion=LeaveOneOut(loss)
    )
    n = problem.rows.shape[0]
    pool = as_landmarks(problem.rows, np.arange(n) if candidates is None else candidates)
    if pool.indices is None:
        raise ValueError(
            "candidates must be row numbers (p,) of X, and are not whole numbers: pass points of "
            "your own to fit(landmarks=)"
        )
    p, limit = len(pool.points), memory_bytes()
    check_whole("num, how many landmarks,", num, p)
    needed = 3 * problem.rows.dtype.itemsize * n * p
    if limit is not None and needed > limit:
        raise ValueError(
            f"{p} candidates take about {in_words(needed)}, and this device has {in_words(limit)}: "
            "give fewer of them as candidates=, such as those that jaxrls.choose_landmarks draws"
        )
    chosen, *errors = _chosen(problem, pool.points, lam, num)
    return LandmarkSelection(Landmarks(pool.indices[chosen], pool.points[chosen], None), *errors)


def _chosen(problem: Problem, points, lam, num: int):
    """The chosen candidates in order, the errors after each and the error before the first; cut to
    those really chosen, where their number is known.
    """
    if not problem.rows.in_memory:
        raise ValueError(
            "X must be a dense matrix, whose columns are read at every step, and is "
            f"{type(problem.rows).__name__}"
        )
    lam = as_lam(lam, problem.rows.dtype)
    indices, errors, before, count = _choose(problem, points, lam, num=int(num))
    count = int(count) if is_concrete(count) else num
    return indices[:count], errors[:count], before


@compiled
def _choose(problem: Problem, points, lam, *, num: int):
    """`num` of the columns of X, or of the points as landmarks, chosen one after the other; the
    error after each, (num, t), and before the first, (t,); and how many were really chosen.

    Errors are averaged over targets to choose. A candidate that the chosen ones span up to rounding
    changes nothing, and fills the result up where there are no others. Errors that differ by
    rounding count as equal: the first of them is taken.
    """
    kernel, weights, X = problem.kernel, problem.weights, problem.rows.dense()
    labels = Labels.of(problem.Y, weights, problem.fixed)
    total: Any = problem.criterion.total
    B = X if points is None else gram(kernel, X, points)
    (n, p), dtype, eps = B.shape, B.dtype, float(jnp.finfo(B.dtype).eps)
    began = jnp.ones(p, dtype) if points is None else kernel.diag(points)
    lengths = jnp.linalg.norm(weights.scale(B), axis=0)
    fixed, v = problem.fixed, weights.array
    remaining = 1 - fixed.leverage(fixed.rows, v)
    B = weights.scale(fixed.residual(weights, B))
    floor, tie = CERTAIN * num**0.5 * eps, 4 * n**0.5 * eps
    size = default_block_size(n, 4 * p * labels.Y.shape[1] * dtype.itemsize)

    def errors(A, residuals, remaining, share, moves) -> Float[Array, "p t"]:
        """The errors with each of the columns of A added to those chosen: infinite where 1 −
        leverage is rounding. Summed over blocks of rows.
        """

        def block(part):
            A, r, q, v, Y = part
            some = weights.block(v, len(q))
            remaining = q[:, None] - A * A * share
            e = some.unscale((r[:, :, None] - A[:, None, :] * moves.T) / remaining[:, None, :])
            unresolved = jnp.sum((remaining <= floor) & some.used[:, None], axis=0)
            return jax.vmap(total, in_axes=(2, None, None))(e, Y, some.array), unresolved

        rows = A, residuals, remaining, weights.values, labels.Y
        found, unresolved = sum_rows(block, rows, size)
        return jnp.where(
            (unresolved == 0)[:, None] & jnp.isfinite(found), found / weights.total, jnp.inf
        )

    def step(state, slot):
        """B and A = QB, diag E, features at the candidates (num, p), which are chosen, r and q."""
        B, A, diag, basis, chosen, residuals, remaining = state
        inner = jnp.sum(B * A, axis=0)
        alive = diag > jnp.maximum(floor * began, INDEPENDENT * jnp.max(diag))
        alive &= inner > floor * jnp.linalg.norm(B, axis=0) * lengths
        share = jnp.where(alive, 1 / jnp.where(alive, lam * diag + inner, 1), 0)
        moves = matmul(B.T, residuals) * share[:, None]
        tried = errors(A, residuals, remaining, share, moves)
        able = ~chosen & (alive | ~jnp.any(alive & ~chosen))
        mean = jnp.where(able, jnp.mean(tried, axis=1), jnp.inf)
        least = jnp.min(mean)
        j = jnp.argmax((mean <= least + tie * jnp.abs(least)) & able)

        # It joins.
        a, own = A[:, j], jnp.where(alive[j], diag[j], 0)
        across = jnp.zeros(p, dtype).at[j].set(own)
        inner = matmul(a, B)
        if points is not None:
            inverse = jnp.where(alive[j], 1 / jnp.where(alive[j], own, 1), 0)
            across = kernel(points, points[j][None])[:, 0] - matmul(basis[:, j], basis)
            basis = basis.at[slot].set(across * jnp.sqrt(inverse))
            B = B - B[:, j, None] * (across * inverse)
            diag = jnp.maximum(diag - across**2 * inverse, 0).at[j].set(0)
        A = A - a[:, None] * (share[j] * (inner + lam * across))
        left = residuals - a[:, None] * moves[j], remaining - a * a * share[j]
        state = B, A, diag, basis, chosen.at[j].set(True), *left
        return state, (j, tried[j], alive[j])

    basis = None if points is None else jnp.zeros((num, p), dtype)
    left = labels.scaled, remaining
    start = B, B, began, basis, jnp.zeros(p, bool), *left
    nothing = jnp.zeros((n, 1), dtype), *left, jnp.zeros(1, dtype), jnp.zeros_like(labels.Y[:1])
    before = labels.drop_axis(errors(*nothing)[0])
    _, (indices, found, real) = jax.lax.scan(step, start, jnp.arange(num))
    count = jnp.sum(real, dtype=jnp.int32)
    return indices.astype(jnp.int32), labels.drop_axis(found), before, count
