"""Which columns of X, or which rows as landmarks, a fit should see: the choice by exact
leave-one-out, with labels and λ.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.criteria.left_out import LeaveOneOut
from jaxrls.criteria.losses import squared_error
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import Landmarks, as_landmarks, check_evaluable
from jaxrls.rows.gram import gram
from jaxrls.search.greedy import Candidates, Chosen, choose
from jaxrls.search.problem import Problem
from jaxrls.support.checks import (
    as_floats,
    check_lams,
    check_whole,
    in_words,
    is_concrete,
    memory_bytes,
)
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of
from jaxrls.support.pytrees import pytree


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
                "the columns have no values inside jax.jit, and a kernel's columns are static: make the kernel outside"
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


@on_any_mesh
@in_precision_of("X")
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
    problem, lam = _problem(
        Linear(), X, Y, lam, weights=weights, intercept=intercept, criterion=LeaveOneOut(loss)
    )
    check_whole("num, how many columns,", num, problem.rows.shape[1])
    chosen = _choose_columns(problem, lam, num=int(num)).cut()
    return Selection(chosen.indices, *_errors(problem, chosen))


@on_any_mesh
@in_precision_of("X")
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
    >>> bool(found.errors[3] < 0.1 * found.error_without), rls.fit(rls.Gaussian(0.3), X, y, landmarks=found.landmarks).num_landmarks
    (True, 4)
    """
    check_evaluable(kernel)
    problem, lam = _problem(
        kernel, X, Y, lam, weights=weights, intercept=intercept, criterion=LeaveOneOut(loss)
    )
    pool = as_landmarks(
        problem.rows, np.arange(problem.rows.shape[0]) if candidates is None else candidates
    )
    if pool.indices is None:
        raise ValueError(
            "candidates must be row numbers (p,) of X, and are not whole numbers: pass points of your own to fit(landmarks=)"
        )
    check_whole("num, how many landmarks,", num, len(pool.points))
    needed, limit = (
        3 * problem.rows.dtype.itemsize * problem.rows.shape[0] * len(pool.points),
        memory_bytes(),
    )
    if limit is not None and needed > limit:
        found = f"{len(pool.points)} candidates take about {in_words(needed)}, and this device has {in_words(limit)}"
        raise ValueError(
            f"{found}: give fewer of them as candidates=, such as those that jaxrls.landmarks draws"
        )
    chosen = _choose_landmarks(problem, pool.points, lam, num=int(num)).cut()
    picked = Landmarks(pool.indices[chosen.indices], pool.points[chosen.indices], None)
    return LandmarkSelection(picked, *_errors(problem, chosen))


def _problem(kernel, X, Y, lam, **options) -> tuple[Problem, Array]:
    """The problem and λ, checked."""
    problem = Problem.of(kernel, X, Y, **options)
    if not problem.rows.in_memory:
        raise ValueError(
            f"X must be a dense matrix, whose columns are read at every step, and is {type(problem.rows).__name__}"
        )
    lam = as_floats("lam", lam, problem.rows.dtype)
    if lam.shape != ():
        raise ValueError(
            f"lam must be one number, and has shape {lam.shape}: choose it by a fit to all columns, or try a few"
        )
    check_lams(lam, "lam")
    return problem, jnp.asarray(lam)


def _errors(problem: Problem, chosen: Chosen):
    """Errors, without the target axis where labels came without it."""
    flat = (lambda A: A[..., 0]) if problem.Y.ndim == 1 else (lambda A: A)
    return flat(chosen.errors), flat(chosen.before)


@partial(jax.jit, static_argnames="num")
def _choose_columns(problem: Problem, lam, *, num: int) -> Chosen:
    X = problem.rows.dense()
    candidates = Candidates.of(X, jnp.ones(X.shape[1], X.dtype), problem.weights, problem.intercept)
    return _choose(problem, candidates, lam, num)


@partial(jax.jit, static_argnames="num")
def _choose_landmarks(problem: Problem, points, lam, *, num: int) -> Chosen:
    kernel, diag = problem.kernel, problem.kernel.diag(points)
    K = gram(kernel, problem.rows.dense(), points)
    candidates = Candidates.of(K, diag, problem.weights, problem.intercept)
    return _choose(problem, candidates, lam, num, lambda j: kernel(points, points[j][None])[:, 0])


def _choose(
    problem: Problem, candidates: Candidates, lam, num: int, column: Callable | None = None
) -> Chosen:
    """The greedy choice among candidates."""
    labels = Labels.of(problem.Y, problem.weights, problem.fixed)
    total = problem.criterion.total
    assert total is not None
    return choose(
        candidates,
        labels,
        problem.weights,
        lam,
        intercept=problem.intercept,
        total=total,
        num=num,
        column=column,
    )
