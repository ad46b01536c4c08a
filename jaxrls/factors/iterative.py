"""The full kernel matrix without storing it, for more rows than K can be factored for: conjugate
gradients by products K·V in blocks, preconditioned by the fit on landmarks. Coefficients are
accurate to a tolerance, and the leave-one-out error is an estimate.

It needs the diagonal of P = (K̃ + λI)⁻¹, K̃ = √v K √v. A first part is exact: the diagonal of P̂ =
(K̂ + λ'I)⁻¹ on the landmarks, with λ' − λ the mean diagonal of K − K̂. The rest is the mean of
g ∘ (P − P̂)g over probes g, random vectors of ±1, which are solved for together with the labels.
More landmarks or probes make its standard error smaller.

Bias: a held-out residual c/p, and its loss, are not linear in p, so that they are biased even where
the estimate p̂ is not, and biases do not average out over rows. With v the variance of p̂, cp̂/(p̂²
+ v) corrects c/p to first order and is never larger than c/2√v; subtracting half the loss's second
derivative times the variance (cp̂)²v/(p̂² + v)³ corrects the loss. At λ far too small this noise
hides many rows, and the corrected residuals would look like a small error. The upward bias is then
kept."""

import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.factors.contract import Coefficients, Factor, Outcome, Report, Solver
from jaxrls.factors.expansion import AtPoints, Expansion
from jaxrls.factors.landmark_spectrum import solve_subset
from jaxrls.factors.solvers import check_no_landmarks
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import Run, conjugate_gradients
from jaxrls.linalg.products import matmul, transposed_matmul
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import as_landmarks, without_trace
from jaxrls.problem.weights import Weights
from jaxrls.rows.blocks import default_block_size, map_rows
from jaxrls.rows.gram import kernel_times
from jaxrls.rows.rows import Rows
from jaxrls.support.checks import check_whole
from jaxrls.support.pytrees import pytree, static

# Where the residual of any column is above this share of its right-hand side, what follows from it
# is NaN: not one digit would be right.
USELESS = 0.1
# Where the estimate of more than this share of rows is not twice its standard error, bias is left
# in: too large an error is chosen by nobody.
HIDDEN = 0.02


@pytree
class Iterative(Solver):
    """Solve with all of K by conjugate gradients that start from a fit on landmarks: for more rows
    than K can be factored for.

    (K̃ + λI) c̃ = √v y is solved for all λ, targets and probes together, K̃ = √v K √v. A probe is a
    random vector of ±1. Each step is a product of K with L (t + probes) columns.

    Args:
        landmarks: those of the preconditioner, as in `landmarks=` of `fit`; in `factorize` not as a
            number. Default 10√n, at most 3000.
        tol: the relative residual at which to stop.
        steps: the largest number of steps.
        probes: how many random vectors to use for the leave-one-out error, 2 or more; with as many
            as rows it is exact. 0 is cheaper, where λ is given or chosen by held-out rows: held-out
            residuals and degrees of freedom are then None.
        dtype: of K's entries and products, such as "float32", with vectors in that of X; by default
            that of X as well.
        key: a JAX random key for the probes, by default the same every time.

    **Source**: Rudi, Carratino and Rosasco 2017, with the landmarks' own fit as preconditioner;
    Epperly, Tropp and Webber 2024 for diagonals.

    >>> import jaxrls as rls
    >>> rls.Iterative(landmarks=500, steps=40, dtype="float32").probes
    32
    """

    landmarks: Any = None
    tol: float = static(default=1e-4)
    steps: int = static(default=200)
    probes: int = static(default=32)
    dtype: Any = static(default=None)
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        check_whole("steps", self.steps)
        if self.probes != 0:
            check_whole("probes", self.probes)
        if self.probes == 1:
            raise ValueError("probes must be 0, or at least 2 for a standard error, and is 1")
        if not 0 < self.tol < 1:
            raise ValueError(f"tol must be a number between 0 and 1, and is {self.tol!r}")
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(
                f"dtype must be 'float32' or 'float64', or None for that of X: found {self.dtype!r}"
            )

    def solve(self, kernel, rows, labels, weights, fixed, *, landmarks, leave, block_size):
        """Solve, starting from the fit on landmarks."""
        del leave
        check_no_landmarks(landmarks, self)
        if self.landmarks is None:
            raise ValueError(
                "Iterative() needs landmarks for its preconditioner, and has none: give "
                "Iterative(landmarks=…)"
            )
        if self.dtype == "float64" and rows.dtype != jnp.float64:
            raise ValueError(
                f"dtype must not be wider than that of X, {rows.dtype}, and is 'float64': leave it "
                "out, or give X in float64"
            )
        chosen = without_trace(as_landmarks(rows, self.landmarks))
        data = Labels.none(weights, fixed), weights, fixed
        options: dict = {"leave": False, "block_size": block_size}
        near: Any = solve_subset(kernel, rows, chosen, *data, **options).factor
        report = Report("iterative", near.report.floor, jnp.zeros((), rows.dtype))
        begun = near.left_vectors(), near.s, report, near.trace_residual
        signs = self.signs(rows.shape[0], rows.dtype)  # 0 for rows of weight 0
        own = jnp.where(weights.used[:, None], signs, 0), self, block_size
        factor = IterativeGram(kernel, rows, weights, fixed, AtPoints(rows.dense()), *begun, *own)
        return factor.solve_labels(labels)

    def enough(self, n: int) -> int:
        """The default number of landmarks for n rows."""
        return min(n, 3000, math.ceil(10 * n**0.5))

    def signs(self, n: int, dtype) -> Float[Array, "n p"]:
        """The random signs, one column for each probe; where there are at least as many probes as
        rows √n I, which gives the diagonal exactly.
        """
        if self.probes >= n:
            return n**0.5 * jnp.eye(n, dtype=dtype)
        key = jax.random.key(0) if self.key is None else self.key
        return jax.random.rademacher(key, (n, self.probes), dtype)


@pytree
class IterativeGram(Factor):
    """The factor of K̃ + λI by products alone: no matrix of n² numbers is stored, and a λ costs
    some tens of products of K with a few columns.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> factor = rls.factorize(rls.Gaussian(0.3), X, solver=rls.Iterative(jnp.arange(0, 30, 5)))
    >>> factor.route, factor.solve(jnp.sin(6 * X[:, 0])).coefficients(jnp.array([0.1])).coef.shape
    ('iterative', (1, 30, 1))
    """

    exact: ClassVar[bool] = False
    kernel: Kernel
    rows: Rows
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    U: Float[Array, "n r"]  # of the fit on landmarks: the preconditioner
    s: Float[Array, " r"]
    report: Report
    left_over: Float[Array, ""]  # what landmarks leave of the trace of K̃
    signs: Float[Array, "n p"]
    iteration: Iterative
    block_size: int | None = static()

    @property
    def has_residuals(self):
        """Whether there are probes."""
        return self.signs.shape[1] > 0

    @property
    def own(self) -> Float[Array, " n"]:
        """The diagonal of K̃."""
        return self.weights.array * self.kernel.diag(self.rows.dense())

    def trace(self):
        """Σ vᵢ Kᵢᵢ, an upper bound."""
        return jnp.sum(self.own)

    def times_kernel(self, V: Float[Array, "n *k"]):
        """K V, with entries and products in the dtype that was asked for."""
        dtype = self.iteration.dtype or self.dtype
        data = self.kernel, self.rows.dense(), V.reshape(self.n, -1)
        kernel, X, flat = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), data)
        return kernel_times(kernel, X, X, flat, self.block_size).astype(self.dtype).reshape(V.shape)

    def solve_columns(self, lams: Float[Array, " k"], B: Float[Array, "n k"]):
        """P̃ B with a λ for each column, NaN where its residual is too large to be of use; and how
        the iteration went.
        """
        centred = partial(self.fixed.project, self.weights)

        def apply(V):
            K_V = self.weights.scale(self.times_kernel(self.weights.scale(centred(V))))
            return centred(K_V) + lams * V

        tol, steps = self.iteration.tol, self.iteration.steps
        near = partial(self.near_inverse, lams)
        X, run = conjugate_gradients(apply, centred(B), near, tol=tol, steps=steps)
        return jnp.where(run.residuals <= USELESS, X, jnp.nan), run

    def kept(self, lams):
        """λ (k,), raised to the floor of the fit on landmarks, and s/(s + λ) of each, (r, k)."""
        lams = jnp.maximum(lams, self.report.floor)
        return lams, self.s[:, None] / (self.s[:, None] + lams)

    def near_inverse(self, lams, V: Float[Array, "n k"]):
        """P̂ V = (I − HHᵀ − U diag(s/(s + λ)) Uᵀ) V/λ, the inverse on landmarks, with a λ for each
        column.
        """
        lams, kept = self.kept(lams)
        across = matmul(self.U, kept * transposed_matmul(self.U, V))
        return (self.fixed.project(self.weights, V) - across) / lams

    def at(self, solution, lams, probes: bool = True) -> "SolvedColumns":
        """Everything at λ (L, k) by one iteration: columns of labels for every λ, then of signs."""
        (L, k), (n, t) = lams.shape, solution.state.shape
        p = self.signs.shape[1] if probes else 0
        labels, signs = jnp.tile(solution.state, (1, L)), jnp.tile(self.signs[:, :p], (1, L * k))
        of_labels, lam = jnp.broadcast_to(lams, (L, t)).ravel(), jnp.repeat(lams, p)
        columns = jnp.concatenate([labels, signs], axis=1)
        X, run = self.solve_columns(jnp.concatenate([of_labels, lam]), columns)
        dual, solved = X[:, : L * t].reshape(n, L, t), X[:, L * t :]
        if not p:
            return SolvedColumns(dual, run)
        # λ plus what landmarks leave out brings P̂ nearer to P̃, and its diagonal seldom far below.
        extra = self.left_over / self.weights.count
        probed = lam * signs * (solved - self.near_inverse(lam + extra, signs))
        probed = probed.reshape(n, L, k, p)
        h = self.fixed.leverage(self.fixed.rows, self.weights.array)
        left, flat = (1 - h)[:, None], lams.ravel()
        near, kept = self.kept(flat + extra)
        square = map_rows(
            lambda U: matmul(U * U, kept), self.U, default_block_size(n, 8 * len(self.s))
        )
        estimate = (flat / near * (left - square)).reshape(n, L, k)
        # A lower bound of λ diag P̃, by |a|⁴ ≤ (aᵀGa)(aᵀP̃a) with a the projection of a unit
        # vector off the fixed effects, where √aᵀK̃a ≤ √K̃ᵢᵢ + √(hᵢ tr K̃).
        far = (jnp.sqrt(self.own) + jnp.sqrt(h * self.trace()))[:, None] ** 2
        least = (left**2 * flat / (left * flat + far)).reshape(n, L, k)
        R = jnp.clip(estimate + jnp.mean(probed, axis=-1), least, 1)
        variance = jnp.var(probed, axis=-1, ddof=1) / p * int(p < n)
        hidden = jnp.sum(variance > R**2 / 4, axis=0, dtype=self.dtype)
        variance = jnp.where(hidden <= HIDDEN * self.weights.count, variance, 0)
        second = R**2 + variance
        e = self.weights.unscale(lams * dual * R / second)
        slope = (variance - R**2) / (second * R)
        changes = (e * slope)[..., None] * probed * int(p < n) / p**0.5
        spread = e * jnp.sqrt(variance / second)
        dof = jnp.sum(jnp.where(self.weights.used[:, None, None], 1 - R, 0), axis=0)
        return SolvedColumns(dual, run, dof, e, spread, changes)

    def dual(self, solution, lams):
        """c̃ alone, (n, L, t)."""
        return self.at(solution, lams, probes=False).dual

    def coefficients(self, solution, lams):
        """c = √v c̃, and β of y − Kc."""
        return self.found(solution, self.dual(solution, lams))[:2]

    def found(self, solution, dual):
        """Coefficients, β and Kc, all with λ leading."""
        coef = self.weights.scale(dual)
        (n, L, t), fitted = coef.shape, self.times_kernel(coef)
        beta = self.fixed.fit(self.weights, fitted.reshape(n, L * t))
        beta = solution.labels.start[:, None] - beta.reshape(self.fixed.count, L, t)
        return coef.swapaxes(0, 1), beta.swapaxes(0, 1), fitted.swapaxes(0, 1)

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
        at = self.at(solution, lams)
        coef, beta, fitted = self.found(solution, at.dual)
        coefficients = Coefficients(coef, *self.fixed.split(beta))
        if at.e is None:
            return Outcome(coefficients, None, None, run=at.run)
        e = at.e.swapaxes(0, 1)
        if self.weights.values is not None:
            fitted = fitted + jax.vmap(partial(self.fixed.fitted, self.fixed.rows))(beta)
            e = jnp.where(self.weights.used[:, None], e, solution.labels.Y - fitted)
        total, error = (None, None) if fn is None else _sums(solution, at, fn)
        return Outcome(coefficients, e, at.dof, total, error, at.run)

    def _refuse(self, *asked, **how):
        """Raise: this would need entries of an inverse. `outcome` knows the variance of its
        diagonal.
        """
        what = "has no determinant, exact leverages or intervals"
        raise ValueError(self._lacks(what))

    logdet = sweep = smoother = _refuse


@pytree
class SolvedColumns:
    """Results of one iteration: c̃ at every λ, and how the iteration went.

    With probes also: degrees of freedom; e = λc̃/(λ diag P̃ √v), corrected for the bias from the
    variance of the estimated diagonal; its standard deviation from that variance; and its
    first-order change with each probe.
    """

    dual: Float[Array, "n L t"]
    run: Run
    dof: Any = None  # (L, k)
    e: Any = None  # (n, L, t)
    spread: Any = None
    changes: Any = None  # (n, L, t, p)


def _sums(solution, at: SolvedColumns, fn):
    """Σ `fn` over held-out rows, corrected for the bias that the variance of residuals gives a
    curved loss; and its standard error, from how much it varies with the random signs.
    """
    over_lams = jax.vmap(fn, in_axes=(1, None, None))
    total = lambda e: over_lams(e, solution.labels.Y, solution.factor.weights.array)
    along = lambda change: lambda e: jax.jvp(total, (e,), (change,))[1]
    curvature = jax.jvp(along(at.spread), (at.e,), (at.spread,))[1]
    each = jax.vmap(lambda change: along(change)(at.e), in_axes=3)(at.changes)
    error = jax.tree.map(lambda a: jnp.std(a, axis=0, ddof=1), each)
    return jax.tree.map(lambda a, b: a - b / 2, total(at.e), curvature), error
