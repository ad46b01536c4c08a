"""All of K by products alone: conjugate gradients on K·V in blocks, with the fit on landmarks as
preconditioner.

Coefficients come to a tolerance. Leave-one-out needs the diagonal of P = (K̃ + λI)⁻¹ too, which is
estimated: that of P̂ = (K̂ + λ'I)⁻¹ on the landmarks exactly, with λ' − λ what they leave out of
K's diagonal on average, and of the difference the mean of g ∘ (P − P̂)g over random signs g, solved
for together with the labels. With more landmarks or signs its standard error falls.

A held-out residual is c/p, and a loss of it: neither is linear in p, so that an estimate p̂ without
bias makes them biased, by more than their mean's standard error, as biases do not average out over
rows. With v the variance of p̂, cp̂/(p̂² + v) takes that of c/p away to first order and is never
larger than c/2√v; half the loss's second derivative times the variance (cp̂)²v/(p̂² + v)³ of that
takes the loss's away. Where many rows are hidden in the noise, as at λ far too small, what is left
of them would look like a small error: the bias, which is upwards, is then left in."""

import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.factors.contract import PROBES, Coefficients, Factor, Outcome, Report, Solver
from jaxrls.factors.expansion import Dual, Expansion
from jaxrls.factors.landmark_spectrum import solve_subset
from jaxrls.factors.spectrum import Spectrum
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import Run, conjugate_gradients
from jaxrls.linalg.products import matmul, transposed_matmul
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import as_landmarks, without_trace
from jaxrls.problem.weights import Weights
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
    """All of K by products with it, conjugate gradients that begin from a fit on landmarks: for more
    rows than K can be factored for.

    Solves (K̃ + λI) c̃ = √v y for all λ, targets and random signs together, a product of K with
    L (t + probes) columns a step. **Source**: Rudi, Carratino and Rosasco 2017, with the landmarks'
    own fit as preconditioner; Epperly, Tropp and Webber 2024 for diagonals.

    Args:
        landmarks: how many, or which, the preconditioner is made of: what `landmarks=` of `fit`
            takes, or in `factorize` but a number. Default 10√n, at most 3000.
        tol: the relative residual to reach.
        probes: random signs from `key`, by default the same every time, for leave-one-out; as many
            as rows make it exact. 0 makes none, which is cheaper where λ is chosen by rows held out:
            residuals left out and degrees of freedom are then NaN.
        steps: at most.
        dtype: of K's entries and products, such as "float32", with vectors in that of X; by default
            that of X as well.
        key: a JAX random key.

    >>> import jaxrls as rls
    >>> rls.Iterative(landmarks=500, steps=40, dtype="float32").probes
    32
    """

    landmarks: Any = None
    tol: float = static(default=1e-4)
    steps: int = static(default=200)
    probes: int = static(default=PROBES)
    dtype: Any = static(default=None)
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        check_whole("steps", self.steps)
        if self.probes != 0:
            check_whole("probes", self.probes)
        if self.probes == 1:
            raise ValueError(
                "probes must be 2 or more, from whose differences a standard error is told, or 0 for none, and is 1"
            )
        if not (isinstance(self.tol, int | float | np.number) and 0 < self.tol < 1):
            raise ValueError(
                f"tol must be a number between 0 and 1, the relative residual to reach, and is {self.tol!r}"
            )
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _width(self.dtype))

    def solve(self, kernel, rows, labels, weights, fixed, *, landmarks, leave, block_size):
        """From the landmarks' fit on."""
        del leave
        if landmarks is not None:
            raise ValueError(
                "landmarks= fits on landmarks in place of all rows: give Iterative(landmarks=…), "
                "whose fit its products begin from"
            )
        if self.landmarks is None:
            raise ValueError("Iterative() needs landmarks, whose fit its products begin from")
        chosen = without_trace(as_landmarks(rows, self.landmarks))
        self.of_products(rows.dtype)
        none = Labels.none(weights, fixed)
        options: dict = {"drop": False, "block_size": block_size}
        near: Any = solve_subset(kernel, rows, chosen, none, weights, fixed, **options).factor
        parts = Dual(rows.dense()), near, self.signs(rows.shape[0], rows.dtype), self, block_size
        return IterativeGram(kernel, rows, weights, fixed, *parts).solve_labels(labels)

    def enough(self, n: int) -> int:
        """How many landmarks of n rows, where no number is given."""
        return min(n, 3000, math.ceil(10 * n**0.5))

    def signs(self, n: int, dtype) -> Float[Array, "n p"]:
        """The random signs, one column for each probe; or where those are no fewer than rows, √n I,
        which tells the diagonal itself.
        """
        if self.probes >= n:
            return n**0.5 * jnp.eye(n, dtype=dtype)
        key = jax.random.key(0) if self.key is None else self.key
        return jnp.where(jax.random.bits(key, (n, self.probes), jnp.uint8) % 2 == 0, 1, -1).astype(
            dtype
        )

    def of_products(self, dtype):
        """The dtype of the products, for rows of this one."""
        if self.dtype is None:
            return dtype
        if jnp.dtype(self.dtype).itemsize > jnp.dtype(dtype).itemsize:
            raise ValueError(
                f"dtype must be no wider than that of X, {dtype}, and is {self.dtype!r}: leave it "
                "out, or give X in that"
            )
        return jnp.dtype(self.dtype)


def _width(dtype) -> str:
    """The name of float32 or float64, by which equal ones are equal."""
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in ("float32", "float64"):
        raise ValueError(
            f"dtype must be 'float32' or 'float64', or None for that of X, and is {dtype!r}"
        )
    return name


@pytree
class IterativeGram(Factor):
    """K̃ + λI by products: no matrix of n² numbers is ever held, and a λ costs some tens of products
    of K with a few columns.

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
    near: Spectrum  # on landmarks: what K is divided by, and its leverage is compared with
    signs: Float[Array, "n p"]
    iteration: Iterative
    block_size: int | None = static()

    @property
    def report(self):
        """That of the landmarks, but for what they leave out: nothing is."""
        return Report("iterative", self.near.report.floor, jnp.zeros((), self.dtype))

    def trace(self):
        """Σ vᵢ Kᵢᵢ, an upper bound."""
        return self.weights.sum(self.kernel.diag(self.rows.dense()))

    def project(self, labels):
        """√v (y − mean): the work begins with λ."""
        return labels.scaled

    def centred(self, V):
        """(I − HHᵀ) V."""
        return self.fixed.project(self.weights, V)

    def times_kernel(self, V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """K V, entries and products in the dtype asked for."""
        dtype = self.iteration.of_products(self.dtype)
        X, V = self.rows.dense().astype(dtype), V.astype(dtype)
        kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.kernel)
        return kernel_times(kernel, X, X, V, self.block_size).astype(self.dtype)

    def solve_columns(self, lams: Float[Array, " k"], B: Float[Array, "n k"]):
        """P̃ B with a λ for each column, NaN where that is useless, and how it went."""
        weights = self.weights

        def apply(V):
            K_V = weights.scale(self.times_kernel(weights.scale(self.centred(V))))
            return self.centred(K_V) + lams * V

        near = partial(self.near_inverse, lams)
        tol, steps = self.iteration.tol, self.iteration.steps
        X, run = conjugate_gradients(apply, self.centred(B), near, tol=tol, steps=steps)
        return jnp.where(run.residuals <= USELESS, X, jnp.nan), run

    def apart(self, lams):
        """λ with what landmarks leave out of the diagonal of K̃ on average: P̂ is nearer to P̃ by it,
        and its diagonal seldom far below.
        """
        return lams + self.near.report.trace_residual / self.weights.count

    def near_inverse(self, lams: Float[Array, " k"], V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """P̂ V = (I − HHᵀ − U diag(s/(s + λ)) Uᵀ) V/λ of the landmarks, λ no smaller than they can
        tell.
        """
        f, lams = self.near, jnp.maximum(lams, self.near.report.floor)
        columns = f.weights.values, f.fixed.rows
        # U is A times `rotation`: applied to r numbers a column, and not to all rows.
        cross = lambda x, v, b, V: transposed_matmul(f.unrotated(x, v, b), V)
        across = matmul(f.rotation.T, f.rows.sum(cross, *columns, V))  # type: ignore[union-attr]
        kept = matmul(f.rotation, f.s[:, None] / (f.s[:, None] + lams) * across)
        back = f.rows.map(lambda x, v, b: matmul(f.unrotated(x, v, b), kept), *columns)
        return (self.centred(V) - back) / lams

    def at(self, solution, lams) -> "SolvedColumns":
        """Everything at λ (L, k), by one iteration on all columns."""
        (L, k), t, (n, p) = lams.shape, solution.state.shape[1], self.signs.shape
        signs, of_signs = jnp.tile(self.signs, (1, L * k)), jnp.repeat(lams.reshape(-1), p)
        columns, of_labels = _label_columns(solution, lams)
        all_lams = jnp.concatenate([of_labels, of_signs])
        X, run = self.solve_columns(all_lams, jnp.concatenate([columns, signs], axis=1))
        dual = X[:, : L * t].reshape(n, L, t)
        if p == 0:
            unknown = jnp.full((n, L, k), jnp.nan, self.dtype)
            return SolvedColumns(dual, unknown, unknown, unknown[..., None], run)
        difference = X[:, L * t :] - self.near_inverse(self.apart(of_signs), signs)
        probed = (of_signs * signs * difference).reshape(n, L, k, p)
        estimate = lams * self._near_diagonal(self.apart(lams)) + jnp.mean(probed, axis=-1)
        used = self.weights.used[:, None, None]
        remaining = jnp.where(used, jnp.clip(estimate, self._least(lams), 1), 1)
        exact = jnp.zeros_like(remaining)
        variance = exact if p == n else jnp.where(used, jnp.var(probed, axis=-1, ddof=1) / p, 0)
        hidden = jnp.sum(variance > remaining**2 / 4, axis=0, dtype=self.dtype)
        hidden = hidden > HIDDEN * self.weights.count
        return SolvedColumns(dual, remaining, jnp.where(hidden, 0, variance), probed, run)

    def _dual(self, solution, lams) -> Float[Array, "n L t"]:
        """c̃ alone."""
        columns, of_labels = _label_columns(solution, lams)
        return self.solve_columns(of_labels, columns)[0].reshape(self.n, len(lams), -1)

    def _least(self, lams):
        """A bound of λ diag P̃ from below, by |a|⁴ ≤ (aᵀGa)(aᵀP̃a) for a what is left of a unit vector
        without the fixed effects.
        """
        length = jnp.sqrt(self.weights.array * self.kernel.diag(self.rows.dense()))
        h = self.fixed.leverage(self.fixed.rows, self.weights.array)
        H = self.weights.scale(self.fixed.basis(self.fixed.rows, self.n))
        far = length + jnp.sum(jnp.abs(H) * matmul(length, jnp.abs(H)), axis=1)
        own, far = (1 - h)[:, None, None], (far**2)[:, None, None]
        return own**2 * lams / (own * lams + far)

    def _near_diagonal(self, lams):
        """diag P̂, (n, L, k)."""
        f, lams = self.near, jnp.maximum(lams, self.near.report.floor)
        zeros = jnp.zeros((self.n, lams.shape[1]), self.dtype)
        none = f.solve_labels(Labels.columns(zeros, f.weights, f.fixed, False))
        return f.sweep(none, lams, lambda r, R, v: R, stack=True) / lams

    def coefficients(self, solution, lams):
        """c = √v c̃, and β of y − Kc."""
        return self._coefficients(solution, self._dual(solution, lams))

    def _coefficients(self, solution, dual):
        coef = self.weights.scale(dual)
        (n, L, t), f = coef.shape, self.fixed
        if not f.count:
            return jnp.moveaxis(coef, 1, 0), jnp.zeros((L, 0, t), self.dtype)
        beta = f.fit(self.weights, self.times_kernel(coef.reshape(n, -1))).reshape(-1, L, t)
        return jnp.moveaxis(coef, 1, 0), solution.labels.start - jnp.moveaxis(beta, 1, 0)

    def residual_norm(self, solution, lams):
        """‖λ c̃‖²."""
        return jnp.sum((lams * self._dual(solution, lams)) ** 2, axis=0)

    def data_fit(self, solution, lams):
        """ỹᵀ c̃."""
        return jnp.sum(solution.state[:, None, :] * self._dual(solution, lams), axis=0)

    def logdet(self, solution, lams):
        """Not by products."""
        raise ValueError(
            "the evidence needs a determinant, which the iterative route does not have: use loo or "
            "gcv, or landmarks="
        )

    def residual_dof(self, solution, lams):
        """Σ λP̃ᵢᵢ, estimated."""
        self.check_probes()
        return self._residual_dof(self.at(solution, lams))

    def _residual_dof(self, at):
        return jnp.sum(jnp.where(self.weights.used[:, None, None], at.remaining, 0), axis=0)

    def _left_out(self, lams, at, remaining):
        """e = λc̃/(λ diag P̃ √v), without the bias that the variance of diag P̃ would give it."""
        shrunk = remaining / (remaining**2 + at.variance)
        return self.weights.unscale(lams * at.dual * shrunk)

    def _total(self, fn, solution, e):
        return jax.vmap(fn, in_axes=(1, None, None))(e, solution.labels.Y, self.weights.array)

    def rows_out(self, solution, fn, lams):
        """Σ `fn` over rows left out, from c̃ and the estimate of diag P̃, without the bias that the
        variance of residuals would give a curved loss.
        """
        self.check_probes()
        at = self.at(solution, lams)
        e = self._left_out(lams, at, at.remaining)
        spread = e * jnp.sqrt(at.variance / (at.remaining**2 + at.variance))
        slope = lambda e: jax.jvp(partial(self._total, fn, solution), (e,), (spread,))
        (total, _), (_, curvature) = jax.jvp(slope, (e,), (spread,))
        return jax.tree.map(lambda a, b: a - b / 2, total, curvature)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """Not by estimates: `rows_out` knows their variance."""
        raise ValueError(
            "this needs the leverage of every row, which the iterative route estimates: use loo or "
            "gcv, or landmarks="
        )

    def check_probes(self) -> None:
        """Raise where no diagonal was estimated."""
        if self.signs.shape[1] == 0:
            raise ValueError(
                "probes=0 leaves no rows out: take probes=32, or validation=(X, Y), rows held out, "
                "to choose λ by"
            )

    def _error(self, fn, solution, lams, at):
        """The standard error of `rows_out`: how much that varies with the random signs, to first
        order, over their number.
        """
        n, p = self.signs.shape
        total = lambda remaining: self._total(fn, solution, self._left_out(lams, at, remaining))
        along = lambda change: jax.jvp(total, (at.remaining,), (change,))[1]
        each = jax.vmap(along, in_axes=3)(at.probed)
        return jax.tree.map(lambda a: jnp.std(a, axis=0, ddof=1) * (0 if p == n else p**-0.5), each)

    def row_residuals(self, solution, lams):
        """Held-out residuals of every row."""
        self.check_probes()
        at = self.at(solution, lams)
        return self._residuals(solution, lams, at, self._coefficients(solution, at.dual))

    def _residuals(self, solution, lams, at, found):
        e = jnp.moveaxis(self._left_out(lams, at, at.remaining), 1, 0)
        if self.weights.values is None:
            return e
        n, L, t = at.dual.shape
        fitted = self.times_kernel(self.weights.scale(at.dual).reshape(n, -1)).reshape(n, L, t)
        fixed = jax.vmap(lambda beta: self.fixed.fitted(self.fixed.rows, beta))(found[1])
        unseen = solution.labels.Y - jnp.moveaxis(fitted, 1, 0) - fixed
        return jnp.where(self.weights.used[:, None], e, unseen)

    def outcome(self, solution, lam, groups, fn):
        """All from one iteration."""
        if groups is not None:
            self.view(solution, lam)
        at = self.at(solution, lam)
        found = self._coefficients(solution, at.dual)
        dof = self.weights.count - self._residual_dof(at)
        unsure = fn is not None and self.signs.shape[1]
        error = self._error(fn, solution, lam, at) if unsure else None
        e = self._residuals(solution, lam, at, found)
        of_fixed = self.fixed.apart(found[1])
        return Outcome(Coefficients(found[0], *of_fixed), e, dof, error, at.run)

    def smoother(self, lam):
        """Not by products."""
        raise ValueError(self._lacks("tells no intervals"))

    def view(self, solution, lam):
        """Not by products."""
        raise ValueError(
            "groups left out together need blocks of an inverse, which the iterative route does not "
            "have: use landmarks="
        )


@pytree
class SolvedColumns:
    """c̃ and the estimate of λ diag P̃ at every λ, with its variance and what every probe says, and
    how the iteration went.
    """

    dual: Float[Array, "n L t"]
    remaining: Float[Array, "n L k"]
    variance: Float[Array, "n L k"]
    probed: Float[Array, "n L k p"]
    run: Run


def _label_columns(solution, lams):
    """The labels once for every λ, (n, L t), and the λ of each column."""
    scaled = solution.state
    wide = jnp.broadcast_to(lams, (lams.shape[0], scaled.shape[1])).reshape(-1)
    return jnp.tile(scaled, (1, lams.shape[0])), wide
