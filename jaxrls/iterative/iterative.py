"""The full kernel matrix without storing it, for more rows than K can be factored for: conjugate
gradients by products K·V in blocks, with an approximate inverse from landmarks and blocks of near
rows. Predictions are accurate to a share of the residuals of the fit, and the leave-one-out error
is an estimate, from random vectors that are solved for together with the labels."""

import math
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.core.factors import (
    WITHOUT_K,
    AtPoints,
    Coefficients,
    Expansion,
    Factor,
    Holding,
    Outcome,
    Report,
    Solver,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import matmul, transposed_matmul
from jaxrls.core.problem import Data, kernel_times
from jaxrls.core.support import check_whole, pytree, static
from jaxrls.iterative.conjugate import Run, conjugate_gradients
from jaxrls.iterative.leverages import leverages_from_probes
from jaxrls.iterative.near_inverse import Near, NearInverse
from jaxrls.landmarks.solver import resolve_landmarks

# Where fitted values are off by more than this share of the residuals, what follows is NaN.
USELESS = 0.5
# Signs in all probes together that tell leverages well enough.
ENOUGH = 2**14


@pytree
class Iterative(Solver):
    """Solve with all of K by conjugate gradients, for more rows than K can be factored for.

    (K̃ + λI) c̃ = √v y with K̃ = √v K √v is solved for one λ after another, for targets and probes
    together. A probe is a random vector of ±1. Each step is a product of K with t + probes columns.
    An approximate inverse, from landmarks and from blocks of near rows, makes steps few: some tens.

    The leave-one-out error is an estimate. Its standard error says how much it depends on the draw
    of the probes. Where a λ far too small nearly interpolates the labels, it may be off by more.

    Args:
        landmarks: those of the preconditioner, as in `landmarks=` of `fit`. Default 10√n, at most
            3000.
        tol: how far fitted values may be off, as a share of the residuals of the fit, root mean
            square.
        steps: the largest number of steps.
        probes: how many random vectors to use for the leave-one-out error, 3 or more; with as many
            as rows it is exact. Default 8, and more for fewer than 2000 rows. 0 is cheaper, where λ
            is given or chosen by held-out rows: held-out residuals and degrees of freedom are then
            None.
        dtype: of K's entries and products, such as "float32", with vectors in that of X; by default
            that of X as well.
        key: a JAX random key for the probes, by default the same every time.

    **Source**: Snelson and Ghahramani 2007 for the approximate inverse; Hutchinson 1990 for random
    vectors; Epperly, Tropp and Webber 2024 for their control variate.

    >>> import jaxrls as rls
    >>> rls.Iterative(landmarks=500, steps=40, dtype="float32").tol
    0.02
    """

    landmarks: Any = None
    tol: float = static(default=0.02)
    steps: int = static(default=200)
    probes: int | None = static(default=None)
    dtype: Any = static(default=None)
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        check_whole("steps", self.steps)
        if self.probes:
            check_whole("probes", self.probes)
        if self.probes in (1, 2):
            raise ValueError(
                f"probes must be 0, or at least 3 for a standard error, and is {self.probes}"
            )
        if not 0 < self.tol < 1:
            raise ValueError(f"tol must be a number between 0 and 1, and is {self.tol!r}")
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(
                f"dtype must be 'float32' or 'float64', or None for that of X: found {self.dtype!r}"
            )

    def prepare(self, kernel, rows, weights, progress=False):
        """With landmarks of its preconditioner, by default as many as `enough` says."""
        wanted = self.enough(rows.count) if self.landmarks is None else self.landmarks
        chosen = resolve_landmarks(kernel, rows, wanted, weights, progress)
        return replace(self, landmarks=chosen)

    def solve(self, kernel, data, labels, *, block_size=None):
        """Solve, starting from the fit on landmarks."""
        rows, weights, fixed = data.rows, data.weights, data.fixed
        if self.dtype == "float64" and rows.dtype != jnp.float64:
            raise ValueError(
                f"dtype must not be wider than that of X, {rows.dtype}, and is 'float64': leave it "
                "out, or give X in float64"
            )
        rows.dense()  # raises where they are not in memory
        n, dtype = rows.shape[0], jnp.dtype(self.dtype or rows.dtype)
        H = weights.scale(fixed.basis(fixed.rows, n))
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
        parts = rows.points, weights.root, H, self.landmarks.points
        near = Near.of(narrow, *(part.astype(dtype) for part in parts))
        floor = rounding_of_products(near.B).astype(rows.dtype)
        report = Report("iterative", floor, jnp.zeros((), rows.dtype))
        signs = jnp.where(weights.used[:, None], self.signs(n, rows.dtype), 0)
        expansion = AtPoints(rows.points)
        factor = IterativeGram(data, kernel, expansion, near, report, signs, self, block_size)
        return factor.solve_labels(labels)

    def memory(self, shape):
        """Rows of landmarks, blocks of near rows, and vectors."""
        n, t, L = shape.rows, shape.targets, shape.lams or 100
        points = getattr(self.landmarks, "points", self.landmarks)
        m = np.shape(points)[0] if np.ndim(points) else points or self.enough(n)
        p = self.vectors(n)
        numbers = 4 * n * m + 3 * m**2 + n * (16 * (t + p) + p**2 + L * t * p)
        words = "rows of landmarks, blocks of near rows, and vectors for targets and probes"
        return Holding("iterative", m, max(numbers, n * m), words)

    def explain(self, run):
        """In units of the residuals of the fit."""
        where = "with fitted values off by {:.0%} of the residuals".format
        narrow = "float32" in (self.dtype, run.residuals.dtype)
        return run.why(where, f"more landmarks, or a larger λ{', or float64' * narrow}")

    def enough(self, n: int) -> int:
        """The default number of landmarks for n rows."""
        return min(n, 3000, math.ceil(10 * n**0.5))

    def vectors(self, n: int) -> int:
        """The number of probes for n rows."""
        return max(8, ENOUGH // n) if self.probes is None else self.probes

    def signs(self, n: int, dtype) -> Float[Array, "n p"]:
        """The random signs, one column for each probe; where there are at least as many probes as
        rows √n I, which gives the diagonal exactly.
        """
        probes = self.vectors(n)
        if probes >= n:
            return n**0.5 * jnp.eye(n, dtype=dtype)
        key = jax.random.key(0) if self.key is None else self.key
        return jax.random.rademacher(key, (n, probes), dtype)


def rounding_of_products(B: Float[Array, "n m"]) -> Float[Array, ""]:
    """The floor of products with K. No eigenvector is computed, so that rounding is that of one
    sum; eigenvalues are at most ‖BᵀB‖, which products with 8 random vectors tell to some 25 %.
    """
    drawn = jax.random.normal(jax.random.key(0), (B.shape[1], 8), B.dtype)
    largest = jnp.linalg.norm(transposed_matmul(B, matmul(B, drawn))) / 8**0.5
    return 2 * float(jnp.finfo(B.dtype).eps) * largest


@pytree
class IterativeGram(Factor):
    """The factor of K̃ + λI by products alone: no matrix of n² numbers is stored, and a λ costs
    some tens of products of K with a few columns.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, solver = jnp.linspace(0, 1, 30)[:, None], rls.Iterative(jnp.arange(0, 30, 5))
    >>> factor = jax.jit(lambda X: rls.factorize(rls.Gaussian(0.3), X, solver=solver))(X)
    >>> factor.route, factor.solve(jnp.sin(6 * X[:, 0])).coefficients(jnp.array([0.1])).coef.shape
    ('iterative', (1, 30, 1))
    """

    exact: ClassVar[bool] = False
    data: Data
    kernel: Kernel
    expansion: Expansion
    near: Near
    report: Report
    signs: Float[Array, "n p"]
    iteration: Iterative
    block_size: int | None = static()
    begin: Float[Array, "n k"] | None = None  # with which columns an iteration begins

    @property
    def has_residuals(self):
        """Whether there are probes."""
        return self.signs.shape[1] > 0

    def trace(self):
        """Σ vᵢ Kᵢᵢ, an upper bound."""
        return jnp.sum(self.weights.array * self.kernel.diag(self.data.rows.points))

    def times_kernel(self, V: Float[Array, "n *k"]):
        """K V, with entries and products in the dtype that was asked for."""
        kernel, X = self.near.kernel, self.near.X
        flat = V.reshape(self.n, -1).astype(X.dtype)
        return kernel_times(kernel, X, X, flat, self.block_size).astype(self.dtype).reshape(V.shape)

    def columns(self, solution) -> Float[Array, "n k"]:
        """What is solved for, of targets and probes."""
        return jnp.concatenate([solution.state, self.signs], axis=1)

    def solve_columns(self, lam, inverse: NearInverse, B: Float[Array, "n k"]):
        """P̃ B at λ, NaN where fitted values are too far off to be of use; and how the iteration
        went.

        With r what is left of b, fitted values are off by K̃P̃r = r − λP̃r.
        """
        centred = partial(self.fixed.project, self.weights)

        def apply(V):
            K_V = self.weights.scale(self.times_kernel(self.weights.scale(centred(V))))
            return centred(K_V) + lam * V

        def measure(X, R, near):
            off = jnp.linalg.norm(R - lam * near, axis=0)
            return jnp.where(off == 0, 0, off / (lam * jnp.linalg.norm(X, axis=0)))

        known = self.begin is not None and self.begin.shape == B.shape
        begin = self.begin if known else None
        X, run = conjugate_gradients(
            apply,
            centred(B),
            inverse,
            begin,
            measure=measure,
            tol=self.iteration.tol,
            steps=self.iteration.steps,
        )
        # Steps add, by rounding, what `apply` and hence `measure` do not see.
        return jnp.where(run.residuals <= USELESS, centred(X), jnp.nan), run

    def solved(self, solution, lams, signs) -> "Solved":
        """Everything at λ (L, k), one iteration after another, with probes of these signs."""
        return solution.at_each(lams, partial(self.solved_at, signs))

    def solved_at(self, signs, lam, solution) -> "Solved":
        """Everything at one λ for all targets."""
        Y, inverse = solution.state, self.near.inverse(jnp.maximum(lam, self.report.floor))
        X, run = self.solve_columns(lam, inverse, jnp.concatenate([Y, signs], axis=1))
        run = jax.tree.map(lambda a: a[..., None], run)
        dual, solved = jnp.split(X, [Y.shape[1]], axis=1)
        if not signs.shape[1]:
            return Solved(dual, run)
        used, unscale = self.weights.used, self.weights.unscale
        R, growth = leverages_from_probes(lam, inverse, signs, solved, lam * dual, used)
        e = jax.vmap(lambda R, growth: unscale(lam * dual / R[:, None] * growth))(R, growth)
        return Solved(dual, run, jnp.sum(jnp.where(used, 1 - R[0], 0))[None], e[0], e[1:], X)

    def dual(self, solution, lams):
        """c̃ alone, (L, n, t)."""
        return self.solved(solution, lams, self.signs[:, :0]).dual

    def coefficients(self, solution, lams):
        """c = √v c̃, and β of y − Kc."""
        return self.expanded(solution, self.dual(solution, lams))[:2]

    def expanded(self, solution, dual: Float[Array, "L n t"]) -> "Expanded":
        """Coefficients, β and Kc."""
        coef = jax.vmap(self.weights.scale)(dual)
        fitted = jnp.moveaxis(self.times_kernel(jnp.moveaxis(coef, 0, 1)), 1, 0)
        beta = solution.labels.start - jax.vmap(partial(self.fixed.fit, self.weights))(fitted)
        return Expanded(coef, beta, fitted)

    def residual_norm(self, solution, lams):
        """‖λ c̃‖²."""
        return jnp.sum((lams[:, None] * self.dual(solution, lams)) ** 2, axis=1)

    def data_fit(self, solution, lams):
        """ỹᵀ c̃."""
        return jnp.sum(solution.state * self.dual(solution, lams), axis=1)

    def residual_dof(self, solution, lams):
        """Σ λP̃ᵢᵢ, estimated."""
        return self.weights.count - solution.estimated(lams).dof

    def outcome(self, solution, lams, groups, fn):
        """All from one iteration; without probes, what needs them is None."""
        if groups is not None:
            self.view(solution, lams[0, 0])
        solved = self.solved(solution, lams, self.signs)
        coef, beta, fitted = self.expanded(solution, solved.dual)
        coefficients, run = Coefficients(coef, *self.fixed.split(beta)), in_one_row(solved.run)
        if not self.has_residuals:
            return Outcome(coefficients, None, None, run=run)
        e = solved.e
        if self.weights.values is not None:
            fitted = fitted + jax.vmap(partial(self.fixed.fitted, self.fixed.rows))(beta)
            e = jnp.where(self.weights.used[:, None], e, solution.labels.Y - fitted)
        total, error = (None, None) if fn is None else sum_and_error(solution, solved, fn)
        return Outcome(coefficients, e, solved.dof, total, error, run)

    def _refuse(self, *asked, **how):
        """Raise: this would need entries of an inverse. `outcome` knows the variance of its
        diagonal.
        """
        raise ValueError(self.lacks("has no determinant, exact leverages or intervals"))

    logdet = sweep = _refuse


class Solved(NamedTuple):
    """Results of an iteration for each λ: c̃, and how it went. With probes also degrees of freedom;
    held-out residuals; and the same without each probe.
    """

    dual: Any  # (L, n, t)
    run: Run
    dof: Any = None  # (L, k)
    e: Any = None  # (L, n, t)
    others: Any = None  # (L, p, n, t)
    columns: Any = None  # (L, n, t + p), of targets and probes


class Expanded(NamedTuple):
    """Coefficients of f, those of the fixed effects, and Kc at the rows."""

    coef: Float[Array, "L n t"]
    beta: Float[Array, "L q t"]
    fitted: Float[Array, "L n t"]


def in_one_row(run: Run) -> Run:
    """The columns of all λ and targets, (L, …, columns, targets), in one row."""
    history = jnp.moveaxis(run.history, 0, 1)
    history = history.reshape(len(history), -1)
    return Run(run.residuals.ravel(), history, jnp.max(run.steps), run.reason.ravel())


def sum_and_error(solution, solved: Solved, fn) -> tuple[Any, Any]:
    """Σ `fn` over held-out rows for each λ, and its standard error by the jackknife over probes."""
    labels, v = solution.labels.Y, solution.factor.weights.array
    total = jax.vmap(lambda e: fn(e, labels, v))
    every, p = total(solved.e), max(solved.others.shape[1], 1)

    def error(every, others):
        return jnp.sqrt((p - 1) / p * jnp.sum((others - every) ** 2, axis=0))

    others = jax.lax.map(total, jnp.moveaxis(solved.others, 1, 0))
    return every, jax.tree.map(error, every, others)


WITHOUT_K.append(Iterative)
