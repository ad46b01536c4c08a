"""All of K by products alone: conjugate gradients on K·V in blocks, with the fit on landmarks as preconditioner.

Coefficients come to a tolerance. Leave-one-out needs the diagonal of P = (K̃ + λI)⁻¹ too, which is estimated: that of P̂ = (K̂ + λ'I)⁻¹ on the landmarks
exactly, with λ' − λ what they leave out of K's diagonal on average, and of the difference the mean of g ∘ (P − P̂)g over random signs g, solved for
together with the labels. With more landmarks or signs its standard error falls.

A held-out residual is c/p, and a loss of it: neither is linear in p, so that an estimate p̂ without bias makes them biased, by more than their mean's
standard error, as biases do not average out over rows. With v the variance of p̂, cp̂/(p̂² + v) takes that of c/p away to first order and is never
larger than c/2√v; half the loss's second derivative times the variance (cp̂)²v/(p̂² + v)³ of that takes the loss's away. Where many rows are
hidden in the noise, as at λ far too small, what is left of them would look like a small error: the bias, which is upwards, is then left in.
"""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxrls.factors.contract import PROBES, Factor, Report, Solution, as_columns
from jaxrls.factors.expansion import Dual, Expansion
from jaxrls.factors.landmarks import Landmarks, as_landmarks, check_evaluable, without_trace
from jaxrls.factors.outcome import Coefficients, Outcome
from jaxrls.factors.spectrum import Spectrum
from jaxrls.factors.subset import solve_subset
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.conjugate import Run, conjugate_gradients
from jaxrls.linalg.products import matmul, transposed_matmul
from jaxrls.rows.gram import kernel_times
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import rows_to_fit
from jaxrls.support.checks import check_whole
from jaxrls.support.pytrees import pytree, static

# Where the residual of any column is above this share of its right-hand side, what follows from it is NaN: not one digit would be right.
USELESS = 0.1
# Where the estimate of more than this share of rows is not twice its standard error, bias is left in: too large an error is chosen by nobody.
HIDDEN = 0.02


@pytree
class Iteration:
    """How the iterative route goes about it: `fit(…, route="iterative", iteration=Iteration(products="float32"))`.

    `tol` of the relative residual, and `steps` at most. `probes` random signs from `key`, by default the same every time, for leave-one-out; as many
    as rows make it exact. 0 makes none, which is cheaper where λ is chosen by rows held out: residuals left out and degrees of freedom are then NaN.
    `products`, such as "float32", is the dtype of K's entries and products, with vectors in that of X, by default that of X as well.

    >>> import jaxrls as rls
    >>> rls.Iteration(steps=40, products="float32").probes
    32
    """

    tol: float = static(default=1e-4)
    steps: int = static(default=200)
    probes: int = static(default=PROBES)
    products: Any = static(default=None)
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        check_whole("steps", self.steps)
        if self.probes != 0:
            check_whole("probes", self.probes)
        if self.probes == 1:
            raise ValueError("probes must be 2 or more, from whose differences a standard error is told, or 0 for none, and is 1")
        if not (isinstance(self.tol, int | float | np.number) and 0 < self.tol < 1):
            raise ValueError(f"tol must be a number between 0 and 1, the relative residual to reach, and is {self.tol!r}")
        if self.products is not None:
            object.__setattr__(self, "products", _width(self.products))

    def signs(self, n: int, dtype) -> Float[Array, "n p"]:
        """The random signs, one column for each probe; or where those are no fewer than rows, √n I, which tells the diagonal itself."""
        if self.probes >= n:
            return n**0.5 * jnp.eye(n, dtype=dtype)
        key = jax.random.key(0) if self.key is None else self.key
        return jnp.where(jax.random.bits(key, (n, self.probes), jnp.uint8) % 2 == 0, 1, -1).astype(dtype)

    def dtype(self, dtype):
        """That of the products, for rows of this one."""
        if self.products is None:
            return dtype
        if jnp.dtype(self.products).itemsize > jnp.dtype(dtype).itemsize:
            raise ValueError(
                f"products must be no wider than X, which is {dtype}, and is {self.products!r}: leave it out, or give X in that"
            )
        return jnp.dtype(self.products)


def _width(products) -> str:
    """The name of float32 or float64, by which equal ones are equal."""
    try:
        name = np.dtype(products).name
    except TypeError:
        name = ""
    if name not in ("float32", "float64"):
        raise ValueError(f"products must be 'float32' or 'float64', or None for the dtype of X, and is {products!r}")
    return name


@pytree
class IterativeGram(Factor):
    """K̃ + λI by products: no matrix of n² numbers is ever held, and a λ costs some tens of products of K with a few columns.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> factor = rls.factor_iterative(rls.Gaussian(0.3), X, jnp.arange(0, 30, 5))
    >>> factor.route, factor.solve(jnp.sin(6 * X[:, 0])).coefficients(jnp.array([0.1])).coef.shape
    ('iterative', (1, 30, 1))
    """

    kernel: Kernel
    rows: Rows
    weights: Weights
    expansion: Expansion
    near: Spectrum  # on landmarks: what K is divided by, and what its leverage is compared with
    signs: Float[Array, "n p"]
    iteration: Iteration
    intercept: bool = static()
    block_size: int | None = static()

    @property
    def report(self):
        """That of the landmarks, but for what they leave out: nothing is."""
        return Report("iterative", self.near.report.floor, jnp.zeros((), self.dtype))

    def trace(self):
        """Σ vᵢ Kᵢᵢ, an upper bound."""
        return self.weights.sum(self.kernel.diag(self.rows.dense()))

    def solve_labels(self, labels):
        """Nothing yet: the work begins with λ."""
        return IterativeSolution(self, labels)

    def centred(self, V):
        """(I − hhᵀ) V."""
        h = self.weights.direction
        return V - h[:, None] * matmul(h, V) if self.intercept else V

    def times_kernel(self, V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """K V, entries and products in the dtype asked for."""
        dtype = self.iteration.dtype(self.dtype)
        X, V = self.rows.dense().astype(dtype), V.astype(dtype)
        kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.kernel)
        return kernel_times(kernel, X, X, V, self.block_size).astype(self.dtype)

    def solve_columns(self, lams: Float[Array, " k"], B: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], Run]:
        """P B with a λ for each column, NaN where that is useless."""
        weights, near = self.weights, self.near_inverse

        def apply(V):
            return self.centred(weights.scale(self.times_kernel(weights.scale(self.centred(V))))) + lams * V

        X, run = conjugate_gradients(apply, self.centred(B), partial(near, lams), tol=self.iteration.tol, steps=self.iteration.steps)
        return jnp.where(run.residuals <= USELESS, X, jnp.nan), run

    def apart(self, lams):
        """λ with what landmarks leave out of the diagonal of K̃ on average: P̂ is nearer to P by it, and its diagonal seldom far below."""
        return lams + self.near.report.trace_residual / self.weights.count

    def near_inverse(self, lams: Float[Array, " k"], V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """P̂ V = (I − hhᵀ − U diag(s/(s + λ)) Uᵀ) V/λ of the landmarks, λ no smaller than they can tell."""
        f, lams = self.near, jnp.maximum(lams, self.near.report.floor)

        def before(rows, v):
            return f.unrotated(
                rows, f.weights.block(v, rows.shape[0])
            )  # U is this times `rotation`: applied to r numbers a column, and not to all rows

        across = f.rows.sum(lambda rows, v, V: transposed_matmul(before(rows, v), V), f.weights.values, V)
        kept = matmul(f.rotation, f.s[:, None] / (f.s[:, None] + lams) * matmul(f.rotation.T, across))  # type: ignore[union-attr]
        return (self.centred(V) - f.rows.map(lambda rows, v: matmul(before(rows, v), kept), f.weights.values)) / lams


@pytree
class SolvedColumns:
    """c̃ and the estimate of λ diag P at every λ, with its variance and what every probe says, and how the iteration went."""

    dual: Float[Array, "n L t"]
    remaining: Float[Array, "n L k"]
    variance: Float[Array, "n L k"]
    probed: Float[Array, "n L k p"]
    run: Run


@pytree
class IterativeSolution(Solution):
    """An `IterativeGram` with labels."""

    exact: ClassVar[bool] = False
    factor: IterativeGram
    labels: Labels

    def _at(self, lams) -> SolvedColumns:
        """Everything at λ (L, k), by one iteration on all columns."""
        f, (L, k), t = self.factor, lams.shape, self.labels.scaled.shape[1]
        n, p = f.signs.shape
        signs, of_signs = jnp.tile(f.signs, (1, L * k)), jnp.repeat(lams.reshape(-1), p)
        columns, of_labels = self._columns_of_labels(lams)
        X, run = f.solve_columns(jnp.concatenate([of_labels, of_signs]), jnp.concatenate([columns, signs], axis=1))
        dual = X[:, : L * t].reshape(n, L, t)
        if p == 0:
            unknown = jnp.full((n, L, k), jnp.nan, f.dtype)
            return SolvedColumns(dual, unknown, unknown, unknown[..., None], run)
        difference = X[:, L * t :] - f.near_inverse(f.apart(of_signs), signs)
        probed = (of_signs * signs * difference).reshape(n, L, k, p)
        estimate = lams * self._near_diagonal(f.apart(lams)) + jnp.mean(probed, axis=-1)
        used = f.weights.used[:, None, None]
        remaining = jnp.where(used, jnp.clip(estimate, self._least(lams), 1), 1)
        variance = jnp.zeros_like(remaining) if p == n else jnp.where(used, jnp.var(probed, axis=-1, ddof=1) / p, 0)
        hidden = jnp.sum(variance > remaining**2 / 4, axis=0, dtype=f.dtype) > HIDDEN * f.weights.count
        return SolvedColumns(dual, remaining, jnp.where(hidden, 0, variance), probed, run)

    def _dual(self, lams) -> Float[Array, "n L t"]:
        """c̃ alone."""
        columns, of_labels = self._columns_of_labels(lams)
        return self.factor.solve_columns(of_labels, columns)[0].reshape(-1, lams.shape[0], self.labels.scaled.shape[1])

    def _columns_of_labels(self, lams):
        """The labels once for every λ, (n, L t), and the λ of each column."""
        scaled = self.labels.scaled
        return jnp.tile(scaled, (1, lams.shape[0])), jnp.broadcast_to(lams, (lams.shape[0], scaled.shape[1])).reshape(-1)

    def _least(self, lams):
        """A bound of λ diag P from below, by |a|⁴ ≤ (aᵀGa)(aᵀPa) for a what is left of a unit vector without the constant."""
        f = self.factor
        length = jnp.sqrt(f.weights.array * f.kernel.diag(f.rows.dense()))
        if not f.intercept:
            return lams / (lams + (length**2)[:, None, None])
        h = f.weights.direction
        own, far = (1 - h**2)[:, None, None], ((length + h * matmul(h, length)) ** 2)[:, None, None]
        return own**2 * lams / (own * lams + far)

    def _near_diagonal(self, lams):
        """diag P̂, (n, L, k)."""
        f, lams = self.factor.near, jnp.maximum(lams, self.factor.near.report.floor)
        hat, constant = f.solve_labels(Labels.none(f.weights)).hat(lams), f.constant

        def block(rows, v):
            weights = f.weights.block(v, rows.shape[0])
            return hat.remaining(f.left(rows, weights), constant(weights.array))

        return f.rows.map(block, f.weights.values, block_size=f.whole) / lams

    def coefficients(self, lams):
        """c = √v c̃, and the weighted mean of y − Kc."""
        return self._coefficients(self._dual(as_columns(lams)))

    def _coefficients(self, dual):
        f = self.factor
        coef = f.weights.scale(dual)
        n, L, t = coef.shape
        if not f.intercept:
            return Coefficients(jnp.moveaxis(coef, 1, 0), jnp.zeros((L, t), f.dtype))
        fitted = f.times_kernel(coef.reshape(n, -1)).reshape(n, L, t)
        return Coefficients(jnp.moveaxis(coef, 1, 0), self.labels.mean - f.weights.mean(fitted.reshape(n, -1)).reshape(L, t))

    def residual_norm(self, lams):
        """‖λ c̃‖²."""
        lams = as_columns(lams)
        return jnp.sum((lams * self._dual(lams)) ** 2, axis=0)

    def data_fit(self, lams):
        """ỹᵀ c̃."""
        return jnp.sum(self.labels.scaled[:, None, :] * self._dual(as_columns(lams)), axis=0)

    def logdet(self, lams):
        """Not by products."""
        raise ValueError(
            "the evidence needs a determinant, which the iterative route does not have: use loo or gcv, or landmarks without route="
        )

    def residual_dof(self, lams):
        """Σ λPᵢᵢ, estimated."""
        self._check_probes()
        return self._residual_dof(self._at(as_columns(lams)))

    def _residual_dof(self, at):
        return jnp.sum(jnp.where(self.factor.weights.used[:, None, None], at.remaining, 0), axis=0)

    def _left_out(self, lams, at, remaining):
        """e = λc̃/(λ diag P √v), without the bias that the variance of diag P would give it."""
        return self.factor.weights.unscale(lams * at.dual * remaining / (remaining**2 + at.variance))

    def _total(self, fn, e):
        return jax.vmap(fn, in_axes=(1, None, None))(e, self.labels.Y, self.factor.weights.array)

    def rows_and_leverages(self, fn, lams):
        """Not by estimates."""
        raise ValueError(
            "this needs the leverage of every row, which the iterative route estimates: use loo or gcv, or landmarks without route="
        )

    def rows_left_out(self, fn, lams):
        """From c̃ and the estimate of diag P, without the bias that the variance of residuals would give a curved loss."""
        self._check_probes()
        at = self._at(lams)
        e = self._left_out(lams, at, at.remaining)
        spread = e * jnp.sqrt(at.variance / (at.remaining**2 + at.variance))
        of_residuals = lambda e, Y, v: fn(e, None, Y, v)  # noqa: E731
        slope = lambda e: jax.jvp(partial(self._total, of_residuals), (e,), (spread,))  # noqa: E731
        (total, _), (_, curvature) = jax.jvp(slope, (e,), (spread,))
        return jax.tree.map(lambda a, b: a - b / 2, total, curvature)

    def _check_probes(self):
        if self.factor.signs.shape[1] == 0:
            raise ValueError("probes=0 leaves no rows out: take probes=32, or validation=(X, Y), rows held out, to choose λ by")

    def _error(self, fn, lams, at):
        """The standard error of `rows_left_out`: how much that varies with the random signs, to first order, over their number."""
        n, p = self.factor.signs.shape
        total = lambda remaining: self._total(fn, self._left_out(lams, at, remaining))  # noqa: E731
        each = jax.vmap(lambda change: jax.jvp(total, (at.remaining,), (change,))[1], in_axes=3)(at.probed)
        return jax.tree.map(lambda a: jnp.std(a, axis=0, ddof=1) * (0 if p == n else p**-0.5), each)

    def residuals_left_out(self, lams):
        """The same for every row, those of weight 0 included."""
        self._check_probes()
        at = self._at(lams)
        return self._residuals(lams, at, self._coefficients(at.dual))

    def _residuals(self, lams, at, found):
        f, e = self.factor, self._left_out(lams, at, at.remaining)
        if f.weights.values is not None:
            n, L, t = at.dual.shape
            fitted = f.times_kernel(f.weights.scale(at.dual).reshape(n, -1)).reshape(n, L, t)
            e = jnp.where(f.weights.used[:, None, None], e, self.labels.Y[:, None, :] - fitted - found.intercept)
        return jnp.moveaxis(e, 1, 0)

    def outcome(self, lam, groups=None, fn=None):
        """All from one iteration."""
        if groups is not None:
            self.group_residuals(groups)
        at = self._at(lam)
        found = self._coefficients(at.dual)
        dof = self.factor.weights.count - self._residual_dof(at)
        error = None if fn is None or self.factor.signs.shape[1] == 0 else self._error(fn, lam, at)
        return Outcome(found, self._residuals(lam, at, found), dof, error, at.run)

    def group_residuals(self, groups):
        """Not by products."""
        raise ValueError(
            "groups left out together need blocks of an inverse, which the iterative route does not have: use landmarks without route="
        )


def factor_iterative(
    kernel: Kernel,
    X,
    landmarks: Landmarks | Any,
    *,
    iteration: Iteration | None = None,
    weights=None,
    intercept: bool = True,
    block_size: int | None = None,
) -> IterativeGram:
    """All of K without holding it: a fit on `landmarks` and a number of products with K for every λ.

    Solves (K̃ + λI) c̃ = √v y by preconditioned conjugate gradients, all λ, targets and random signs together.

    **Arguments**: `landmarks` as in `factor_subset`; more of them make fewer steps and a smaller standard error, for O(n m²) once. `iteration` says how
    far, with how many probes, and in which dtype: see `Iteration`. **Cost** a step takes a product of K with L (t + probes) columns,
    O(n² (d + L (t + probes))). **Raises** as `factor_subset`, and `ValueError` for what takes an inverse: the evidence, groups. **Fails** where λ is below
    the rounding of the products, or landmarks are too few: `run` says why each column stopped, and a residual above a tenth gives NaN.
    **Source**: Rudi, Carratino and Rosasco 2017, with the landmarks' own fit as preconditioner; Epperly, Tropp and Webber 2024 for diagonals.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.linspace(0, 1, 30)[:, None]
    >>> factor = rls.factor_iterative(rls.Gaussian(0.3), X, jnp.arange(0, 30, 5))
    >>> rls.loo(factor, jnp.sin(6 * X[:, 0]), jnp.array([0.1, 1.0])).shape
    (2,)
    """
    check_evaluable(kernel)
    rows = rows_to_fit(kernel, X)
    v = Weights.of_rows(weights, rows)
    chosen = without_trace(as_landmarks(rows, landmarks))
    near = solve_subset(kernel, rows, chosen, Labels.none(v), v, intercept, drop=False, block_size=block_size).factor
    iteration = Iteration() if iteration is None else iteration
    iteration.dtype(rows.dtype)
    signs = iteration.signs(rows.shape[0], rows.dtype)
    return IterativeGram(kernel, rows, v, Dual(rows.dense()), near, signs, iteration, intercept, block_size)
