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
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxrls.core.factors import (
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
        X, dtype = rows.points, jnp.dtype(self.dtype or rows.dtype)
        H = weights.scale(fixed.basis(fixed.rows, rows.shape[0]))
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
        parts = X, weights.root, H, self.landmarks.points
        near = Near.of(narrow, *(part.astype(dtype) for part in parts))
        floor = rounding_of_products(near.B).astype(rows.dtype)
        signs = self.signs(rows.shape[0], rows.dtype)  # 0 for rows of weight 0
        factor = IterativeGram(
            data=data,
            kernel=kernel,
            expansion=AtPoints(X),
            near=near,
            report=Report("iterative", floor, jnp.zeros((), rows.dtype)),
            signs=jnp.where(weights.used[:, None], signs, 0),
            iteration=self,
            block_size=block_size,
        )
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
        return run.why(where, "more landmarks, a larger λ, or float64")

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
    """The floor of products with K. No eigenvector is computed, so that rounding is that of one sum;
    eigenvalues are at most ‖BᵀB‖, which products with 8 random vectors tell to some 25 %.
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

        X, run = conjugate_gradients(
            apply,
            centred(B),
            inverse,
            measure=measure,
            tol=self.iteration.tol,
            steps=self.iteration.steps,
        )
        # Steps add, by rounding, what `apply` and hence `measure` do not see.
        return jnp.where(run.residuals <= USELESS, centred(X), jnp.nan), run

    def solved(self, solution, lams, probes: bool = True) -> "SolvedColumns":
        """Everything at λ (L, k), one iteration after another; results (…, L, t)."""

        def at_lam(lam, solution):
            results = self.solved_at(lam, solution, self.signs if probes else self.signs[:, :0])
            return replace(results, run=jax.tree.map(lambda a: a[..., None], results.run))

        of_lams = solution.at_each(lams, at_lam)
        of_lams = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -2), of_lams)
        # Columns of all λ and targets in one row; without columns, reshape cannot infer -1.
        columns = lambda a: a.reshape(*a.shape[:-3], math.prod(a.shape[-3:]))
        run = jax.tree.map(columns, of_lams.run)
        return replace(of_lams, run=replace(run, steps=jnp.max(run.steps)))

    def solved_at(self, lam, solution, signs) -> "SolvedColumns":
        """Everything at one λ, with probes of these signs."""
        Y, inverse = solution.state, self.near.at(jnp.maximum(lam, self.report.floor))
        X, run = self.solve_columns(lam, inverse, jnp.concatenate([Y, signs], axis=1))
        dual, solved = jnp.split(X, [Y.shape[1]], axis=1)
        if not signs.shape[1]:
            return SolvedColumns(dual, run)
        R, growth = self.leverages(lam, inverse, signs, solved, lam * dual)
        unscale = self.weights.unscale
        e = jax.vmap(lambda R, growth: unscale(lam * dual / R[:, None] * growth))(R, growth)
        dof = jnp.sum(jnp.where(self.weights.used, 1 - R[0], 0))
        return SolvedColumns(dual, run, dof[None], e[0], e[1:])

    def leverages(self, lam, inverse: NearInverse, signs, solved, residuals) -> "Calibrated":
        """The diagonal of R from what probes of these signs are solved to, of all probes and then
        without each of them; exactly where there are as many probes as rows.
        """
        used, (n, p) = self.weights.used, signs.shape
        if p == n:
            R = jnp.where(used, jnp.mean(lam * signs * solved, axis=1), 1)[None]
            return Calibrated(R, jnp.ones((1, residuals.shape[1]), R.dtype))
        diagonal = inverse.diagonal.astype(lam.dtype)
        near = jnp.clip(lam * diagonal, jnp.finfo(lam.dtype).eps, 1)
        probed = lam * signs * (solved - inverse(signs)) + near[:, None]
        return calibrated(probed, near, residuals, used)

    def dual(self, solution, lams):
        """c̃ alone, (n, L, t)."""
        return self.solved(solution, lams, probes=False).dual

    def coefficients(self, solution, lams):
        """c = √v c̃, and β of y − Kc."""
        expanded = self.expanded(solution, self.dual(solution, lams))
        return expanded.coef, expanded.beta

    def expanded(self, solution, dual) -> "Expanded":
        """Coefficients, β and Kc, all with λ leading."""
        coef = self.weights.scale(dual)
        (n, L, t), fitted = coef.shape, self.times_kernel(coef)
        beta = self.fixed.fit(self.weights, fitted.reshape(n, L * t))
        beta = solution.labels.start[:, None] - beta.reshape(self.fixed.count, L, t)
        return Expanded(coef.swapaxes(0, 1), beta.swapaxes(0, 1), fitted.swapaxes(0, 1))

    def residual_norm(self, solution, lams):
        """‖λ c̃‖²."""
        return jnp.sum((lams * self.dual(solution, lams)) ** 2, axis=0)

    def data_fit(self, solution, lams):
        """ỹᵀ c̃."""
        return jnp.sum(solution.state[:, None] * self.dual(solution, lams), axis=0)

    def residual_dof(self, solution, lams):
        """Σ λP̃ᵢᵢ, estimated."""
        return self.weights.count - solution.estimated(lams).dof

    def outcome(self, solution, lams, groups, fn):
        """All from one iteration; without probes, what needs them is None."""
        if groups is not None:
            self.view(solution, lams[0, 0])
        solved = self.solved(solution, lams)
        coef, beta, fitted = self.expanded(solution, solved.dual)
        coefficients = Coefficients(coef, *self.fixed.split(beta))
        if solved.e is None:
            return Outcome(coefficients, None, None, run=solved.run)
        e = solved.e.swapaxes(0, 1)
        if self.weights.values is not None:
            fitted = fitted + jax.vmap(partial(self.fixed.fitted, self.fixed.rows))(beta)
            e = jnp.where(self.weights.used[:, None], e, solution.labels.Y - fitted)
        total, error = (None, None) if fn is None else sum_and_error(solution, solved, fn)
        return Outcome(coefficients, e, solved.dof, total, error, solved.run)

    def _refuse(self, *asked, **how):
        """Raise: this would need entries of an inverse. `outcome` knows the variance of its
        diagonal.
        """
        raise ValueError(self.lacks("has no determinant, exact leverages or intervals"))

    logdet = sweep = _refuse


@pytree
class SolvedColumns:
    """Results of one iteration: c̃ at every λ, and how the iteration went.

    With probes also: degrees of freedom; held-out residuals; and the same without each probe.
    """

    dual: Float[Array, "n L t"]
    run: Run
    dof: Any = None  # (L, k)
    e: Any = None  # (n, L, t)
    others: Any = None  # (p, n, L, t)


class Expanded(NamedTuple):
    """Coefficients of f, those of the fixed effects, and Kc at the rows, all with λ leading."""

    coef: Float[Array, "L n t"]
    beta: Float[Array, "L q t"]
    fitted: Float[Array, "L n t"]


def sum_and_error(solution, solved: SolvedColumns, fn) -> tuple[Any, Any]:
    """Σ `fn` over held-out rows, and its standard error by the jackknife over probes."""
    over_lams = jax.vmap(fn, in_axes=(1, None, None))
    total = lambda e: over_lams(e, solution.labels.Y, solution.factor.weights.array)
    every, p = total(solved.e), max(len(solved.others), 1)

    def error(every, others):
        return jnp.sqrt((p - 1) / p * jnp.sum((others - every) ** 2, axis=0))

    return every, jax.tree.map(error, every, jax.lax.map(total, solved.others))


# leverages from probes
# --------------------------------------------------------------------------------------------------
# Let R be the diagonal of λP̃, and g a vector of random signs. g ∘ λP̃g is R on average, and so
# noisy that one cannot divide by it. So R is taken to be aρ, with ρ the diagonal of an
# approximation of λP̃ and a ratio a for each of a few groups of rows with similar ρ, the mean over
# its rows and all vectors. What this misses is not noise: with δ the relative deviation of R from
# aρ, squared residuals are (1 + mean δ²)³/(1 + mean δ)² times too small where δ is log-normal;
# means are over rows by their share of the loss. Products of two vectors tell δ² without bias.

GROUPS, FEWEST = 8, 64  # groups of similar rows, and how many rows one has at least
LEAST = 0.01  # a ratio, where noise would make it smaller or negative


class Calibrated(NamedTuple):
    """The diagonal of R, and by how much residuals/R are too small; of all probes, then without
    each of them.
    """

    R: Float[Array, "p+1 n"]
    growth: Float[Array, "p+1 t"]


def calibrated(
    probes: Float[Array, "n p"],
    near: Float[Array, " n"],
    residuals: Float[Array, "n t"],
    used: Bool[Array, " n"],
) -> Calibrated:
    """R from probes.

    Args:
        probes: λg ∘ P̃g of every random vector g.
        near: ρ.
        residuals: λc̃.
        used: rows of positive weight.
    """
    (n, p), dtype = probes.shape, probes.dtype
    groups = max(1, min(GROUPS, n // FEWEST))
    group = jnp.argsort(jnp.argsort(near)) * groups // n
    of_used = lambda a: jnp.where(used.reshape(n, *(1,) * (a.ndim - 1)), a, 0)
    by_group = lambda a: jax.ops.segment_sum(of_used(a), group, groups)
    count = jnp.maximum(by_group(jnp.ones(n, dtype)), 1)
    length = jnp.maximum(by_group(near), jnp.finfo(dtype).tiny)

    def estimate(kept):
        total = jnp.sum(kept)
        ratio = by_group(matmul(probes, kept) / total) / length
        R = jnp.where(used, jnp.minimum(near * jnp.maximum(ratio, LEAST)[group], 1), 1)
        deviations = of_used(probes / R[:, None] - 1) * kept
        sums = jnp.sum(deviations, axis=1)
        squares = (sums**2 - jnp.sum(deviations**2, axis=1)) / (total * (total - 1))
        loss = of_used(residuals / R[:, None]) ** 2
        loss = loss / jnp.maximum(jnp.sum(loss, axis=0), jnp.finfo(dtype).tiny)
        second = matmul(by_group(squares) / count, by_group(loss))
        first = matmul(sums, loss) / total
        return R, (1 + jnp.maximum(second, 0)) ** 1.5 / (1 + jnp.maximum(first, -0.5))

    without = 1 - jnp.eye(p, dtype=dtype)
    kept = jnp.concatenate([jnp.ones_like(without[:1]), without])
    return Calibrated(*jax.lax.map(estimate, kept))
