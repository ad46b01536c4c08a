"""Which columns of X, or which rows as landmarks, a fit should see: greedy forward selection by
exact leave-one-out, one feature after the other, each the one with which the error of rows left out
is smallest.

With h = √v/‖√v‖ and the features x chosen so far, Q = λ(Σ xxᵀ + λI)⁻¹ on the complement of h (of
nothing without an intercept) holds all that is asked for: r = Q√v y, q = diag Q = 1 − leverage, and
e = r/(q√v). It begins as C = I − hhᵀ, and loses aaᵀ/(λ + xᵀa), a = Qx, with each x that joins.

Candidate j is column j of B, over √Eⱼⱼ: what is left of C√v K_TC and of K_CC when the features
chosen are taken off, as in a pivoted Cholesky factorization. Columns of X are candidates whose Gram
matrix is the identity, so that none takes from another. With A = QB all candidates are tried at
once, and the one that joins is taken off all others,

    r − Aⱼ(Bⱼᵀr)ρ,   q − Aⱼ∘Aⱼρ,   ρ = 1/(λEⱼⱼ + BⱼᵀAⱼ);    A − ρAⱼ(BᵀAⱼ + λE:ⱼ)ᵀ,   B − BⱼE:ⱼᵀ/Eⱼⱼ:

O(n p (t + 1)) for each feature. No 1/λ is formed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.criteria.losses import squared_error
from jaxrls.criteria.standard import LeaveOneOut
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import Landmarks, as_landmarks, check_evaluable
from jaxrls.rows.blocks import default_block_size, sum_rows
from jaxrls.rows.gram import gram
from jaxrls.search.grid import one_lam
from jaxrls.search.problem import Problem
from jaxrls.support.checks import (
    check_whole,
    in_words,
    is_concrete,
    memory_bytes,
)
from jaxrls.support.door import door
from jaxrls.support.pytrees import pytree

# Of the largest Eⱼⱼ that is left, what a candidate must have. Each that joins multiplies rounding
# by up to √(max E/Eⱼⱼ), and labels alone would have neighbours chosen, whose difference is a
# derivative: a tenth keeps leave-one-out errors of smooth kernels right to 2 % in float32, a
# hundredth to 30 %.
INDEPENDENT = 0.1
# Times what rounding makes of num updates, √num·eps: what is smaller, beside what it began as, is
# not known to a few per cent, and counts as nothing.
CERTAIN = 40


@pytree
class Selection:
    """What `select_columns` chose: `columns` in the order of choice, and `errors`, the
    leave-one-out error after each, for every target.

    `error_without` is that of no column at all, of the constant alone where there is an intercept.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.array([[0.0, 1.0], [1.0, 1.5], [2.0, 0.0], [3.0, 1.0]])
    >>> found = rls.select_columns(X, 2 * X[:, 0], 1, lam=1e-3)
    >>> found.columns.tolist(), found.kernel
    ([0], On(kernel=Linear(), columns=(0,)))
    """

    columns: Int[Array | np.ndarray, " num"]
    errors: Float[Array | np.ndarray, "num *t"]
    error_without: Float[Array | np.ndarray, "*t"]

    @property
    def kernel(self) -> Kernel:
        """The linear kernel on the columns chosen, to go on with: `fit(selection.kernel, X, Y)`."""
        return self.first(len(self.columns))

    def first(self, num: int) -> Kernel:
        """The linear kernel on the first `num` of them."""
        if not is_concrete(self.columns):
            raise ValueError(
                "the columns have no values inside jax.jit, and a kernel's columns are static: "
                "make the kernel outside"
            )
        check_whole("num", num, len(self.columns))
        return Linear().on(tuple(np.asarray(self.columns)[:num].tolist()))


@pytree
class LandmarkSelection:
    """What `select_landmarks` chose: `landmarks` for `fit`, and `errors`, the leave-one-out error
    after each, for every target.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 9)[:, None]
    >>> found = rls.select_landmarks(rls.Gaussian(0.5), X, np.sin(6 * X[:, 0]), 2, lam=1e-3)
    >>> found.landmarks.points.shape, found.errors.shape
    ((2, 1), (2,))
    """

    landmarks: Landmarks
    errors: Float[Array | np.ndarray, "num *t"]
    error_without: Float[Array | np.ndarray, "*t"]


@door("X")
def select_columns(
    X, Y, num: int, lam, *, weights=None, intercept: bool = True, loss: Callable = squared_error
) -> Selection:
    """Choose `num` columns of X for a linear fit: one after the other, each the one with which
    exact leave-one-out error is smallest.

    At every step each column that is left is tried beside those chosen before, at this λ, and Σᵢ vᵢ
    loss(eᵢ, yᵢ) / Σᵢ vᵢ, averaged over targets, decides; of equal errors the first column's. The
    intercept is never penalised, a row leaves with all of its weight. Columns are compared as they
    are: of two that say the same the one of larger scale is penalised less, so standardise what is
    in different units.

    **Arguments**: X (n, d), Y (n,) or (n, t), weights (n,) ≥ 0, NumPy or JAX; `num` static, at most
    d; `lam` one number. **Returns** a `Selection`, whose `kernel` is for `fit`, which may choose λ
    anew. Columns of zeros, constant ones beside an intercept, and, where λ is tiny, those that the
    chosen ones span up to rounding are never chosen: where there are not `num` others it has only
    those. Inside `jax.jit`, where the shape cannot follow, it is filled up with them. **Cost**
    O(num n d (t + 1)) time, 3nd numbers. **Raises** `ValueError` for shapes that do not fit, NaN or
    infinity, λ ≤ 0, a source of rows or a sparse X. **Fails**: a small error after a choice among
    very many columns is itself chosen, and too hopeful: hold rows out from the selection to know.
    Where columns interpolate a row, so that 1 − leverage is rounding, the error is infinite.
    Forward only: nothing that was chosen is given up. **Source**: Pahikkala, Airola and Salakoski
    2010, "Speeding up greedy forward selection for regularized least-squares".

    >>> import numpy as np, jaxrls as rls
    >>> X = np.random.default_rng(0).normal(size=(40, 6))
    >>> y = 3 * X[:, 4] - X[:, 1] + 0.1 * X[:, 0] ** 2
    >>> found = rls.select_columns(X, y, 2, lam=1.0)
    >>> found.columns.tolist(), bool(found.errors[1] < found.errors[0] < found.error_without)
    ([4, 1], True)
    >>> rls.fit(found.kernel, X, y).model.coef.shape
    (2,)
    """
    named = {"weights": weights, "intercept": intercept, "criterion": LeaveOneOut(loss)}
    problem = Problem.of(Linear(), X, Y, **named)
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
    """Choose `num` rows of X as landmarks by what they do for the labels: each the one with which
    exact leave-one-out error is smallest.

    The same greedy choice as `select_columns`, among features Eⱼ/√Eⱼⱼ with E = K − K̂ of the
    landmarks chosen before. `landmarks` looks at K alone, costs a candidate for each row and no
    labels; this one needs fewer landmarks for the same error where labels depend on few directions
    of K. The leave-one-out error is that of a fixed dictionary: a row that is a landmark stays one
    when its label is left out, as in `factorize(…, leave=False)`. `fit` on the result lets it
    leave.

    **Arguments**: X (n, d), Y (n,) or (n, t); `candidates` the row numbers to choose from, all by
    default; `num` static, at most their number p; `lam` one number. **Returns** a
    `LandmarkSelection`, whose `landmarks` are for `fit(…, landmarks=)`: fewer where no further row
    is independent, as in `landmarks`. A row takes part while Eⱼⱼ is at least a tenth of the largest
    there is, so that neighbours, whose difference is a derivative, do not ruin K_RR. **Cost** O(num
    n p (t + 1)) time, 3np numbers: a few thousand candidates. **Raises** as `select_columns`, for
    row numbers that X does not have, and where memory cannot hold it. **Fails** as
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
    named = {"weights": weights, "intercept": intercept, "criterion": LeaveOneOut(loss)}
    problem = Problem.of(kernel, X, Y, **named)
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
            "give fewer of them as candidates=, such as those that jaxrls.landmarks draws"
        )
    chosen, *errors = _chosen(problem, pool.points, lam, num)
    return LandmarkSelection(Landmarks(pool.indices[chosen], pool.points[chosen], None), *errors)


def _chosen(problem: Problem, points, lam, num: int):
    """Which candidates, in the order of choice, the errors after each, and that before the first;
    without filling, where it is known how many there are.
    """
    if not problem.rows.in_memory:
        raise ValueError(
            "X must be a dense matrix, whose columns are read at every step, and is "
            f"{type(problem.rows).__name__}"
        )
    indices, errors, before, count = _choose(
        problem, points, one_lam(lam, problem.rows.dtype), num=int(num)
    )
    most = int(count) if is_concrete(count) else num
    return indices[:most], errors[:most], before


@partial(jax.jit, static_argnames="num")
def _choose(problem: Problem, points, lam, *, num: int):
    """`num` of the columns of X, or of the points as landmarks, one after the other; the error
    after each, (num, t), and before the first, (t,); how many are more than filling.

    Errors are averaged over targets where one is chosen. A candidate that those before it span, up
    to rounding, changes nothing, and fills up where there are no others. Errors that rounding
    cannot tell apart are equal: of these the first is taken."""
    kernel, weights, X = problem.kernel, problem.weights, problem.rows.dense()
    labels = Labels.of(problem.Y, weights, problem.fixed)
    total: Any = problem.criterion.total
    B = X if points is None else gram(kernel, X, points)
    (n, p), dtype, eps = B.shape, B.dtype, float(jnp.finfo(B.dtype).eps)
    began = jnp.ones(p, dtype) if points is None else kernel.diag(points)
    lengths = jnp.linalg.norm(weights.scale(B), axis=0)
    remaining = jnp.ones(n, dtype)
    if problem.intercept:
        remaining = 1 - weights.direction**2
        for _ in range(2):  # as rounding of the first mean grows with the offset
            B = B - weights.mean(B)
    B = weights.scale(B)
    floor, tie = CERTAIN * num**0.5 * eps, 4 * n**0.5 * eps
    size = default_block_size(n, 4 * p * labels.Y.shape[1] * dtype.itemsize)

    def errors(A, residuals, remaining, share, moves) -> Float[Array, "p t"]:
        """With each of the columns of A beside those chosen: infinite where rounding has taken 1 −
        leverage. Blocks of rows, which add.
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
        """B and A = QB, diag E, features at the candidates (num, p), who was chosen, r and q."""
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
        a, across = A[:, j], jnp.zeros(p, dtype).at[j].set(jnp.where(alive[j], diag[j], 0))
        inner = matmul(a, B)
        if points is not None:
            inverse = jnp.where(alive[j], 1 / jnp.where(alive[j], diag[j], 1), 0)
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
    count = jnp.sum(real.astype(jnp.int32))
    return indices.astype(jnp.int32), labels.drop_axis(found), before, count
