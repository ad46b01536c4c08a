"""The factor that serves every λ from one eigendecomposition, that of K, of features or of their
moments: (I − HHᵀ) √v K √v (I − HHᵀ) = U diag(s) Uᵀ, with weights v and fixed effects √vB = HT.

With D = 1/(s + λ) and z = Uᵀ√v y: coefficients = basis (D ∘ z), β = start − across (D ∘ z), and R =
(I − HHᵀ − UUᵀ) + U diag(λD) Uᵀ, whose first part is exactly 0 where U is square. Nothing is
computed as a difference of numbers of size 1/λ."""

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.factors.contract import Factor, Report, Solution, over_lams, times
from jaxrls.core.factors.expansion import Expansion, Primal
from jaxrls.core.factors.other_folds import PrimalForm, fit_to_others
from jaxrls.core.kernels.inner import Linear
from jaxrls.core.kernels.kernel import Standardized
from jaxrls.core.leave_out.view import LowRank
from jaxrls.core.linalg.decompositions import clip, eigh, eigh_rounding, rounding, svd
from jaxrls.core.linalg.products import matmul, transposed_matmul
from jaxrls.core.problem.fixed_effects import FixedEffects
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.moments import Moments, moments, near_fit
from jaxrls.core.problem.rows import DenseRows, Rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.checks import platform
from jaxrls.core.support.pytrees import pytree, static

# A fit to c rows, for all λ at once, takes as long as this many products of c rows by c columns, as
# R_SS takes one at every λ: measured on a CPU between 2.4 and 4.8 at 700 and 1400 rows.
PRODUCTS_OF_FIT = 4


@pytree
class Whole(DenseRows):
    """Dense rows that are read all at once, in one large product."""

    def over(self, kind, fn, columns, temporaries=0, block_size=None, **hints):
        """One block of all rows."""
        return fn(self.X, *columns)


@pytree
class DictionaryRows:
    """Landmarks that are rows of X, and are left out with their row."""

    indices: Int[Array, " m"]
    planes: Float[Array, "m r"]  # βₖ = planesₖ·w/√s up to a factor: of any length, which cancels
    left: Float[Array, "m r"]  # their rows of U/√v


@pytree
class Spectrum(Factor):
    """The eigendecomposition of one kernel and one X, which serves every λ.

    K̃ = (I − HHᵀ) √v K √v (I − HHᵀ) = U diag(s) Uᵀ. U is kept, or made from rows of features block
    by block.

    Args:
        rows: rows of U itself, or of the features that U is made from.
        s: eigenvalues (r,).
        across: (q, r), coefficients of the fit of each direction by the fixed effects.
        weights: sample weights.
        fixed: fixed effects, an intercept among them.
        expansion: what coefficients multiply.
        report: how the factor was made, and its floor.
        rotation: (p, r), with U = √v (rows − B origin) rotation; None where `rows` are U.
        origin: (q, p), what the fixed effects fit of features; None where K is given.
        basis: (c, r), coefficients of each direction; None where they are dual, √v U.
        solved: (r,), 0 in directions of negative eigenvalues of K, which get no coefficients; else
            None.
        dictionary: landmarks that are rows and leave with them, or None.
        complete: whether U is square.
        hidden: (r,), true where s is set to the level of rounding, as it may be 0.
        training: (kernel, rows) where U is kept.
        sums: centred `Moments`, where the rows are not kept.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factorize(rls.Precomputed(), jnp.eye(3), intercept=False).spectrum().s.tolist()
    [1.0, 1.0, 1.0]
    """

    shares_work: ClassVar[bool] = True
    rows: Rows  # of U itself, or of the features that it is made of
    s: Float[Array, " r"]
    across: Float[Array, "q r"]
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    report: Report
    # U = √v (rows − B origin) rotation; None: rows are U
    rotation: Any = None  # (p, r)
    origin: Any = None  # (q, p), what the fixed effects fit of features, None where K is given
    basis: Float[Array, "c r"] | None = None  # None where the coefficients are dual: √v U
    solved: Float[Array, " r"] | None = None  # 0 in directions of K's negative eigenvalues
    dictionary: Any = None  # `DictionaryRows`
    complete: bool = static(default=False)  # whether U is square
    hidden: Bool[Array, " r"] | None = None  # where s is the level of rounding in place of 0
    training: Any = None  # where U is kept
    sums: Any = None  # `Moments`, centred, where the rows are not kept

    @property
    def indices(self):
        """Row numbers of the landmarks that leave with their row."""
        return None if self.dictionary is None else self.dictionary.indices

    @property
    def parts(self):
        """The number of parts of the rows."""
        return self.rows.parts

    def spectrum(self):
        """Itself."""
        return self

    @property
    def counted(self) -> Float[Array, " r"]:
        """s for sums over directions: 0 where it is only the level of rounding."""
        return self.s if self.hidden is None else jnp.where(self.hidden, 0, self.s)

    def trace(self):
        """Σ s."""
        return jnp.sum(self.counted)

    # U --------------------------------------------------------------------------------------------

    def unrotated(self, x, v, b):
        """U of a block of rows before `rotation`, or U itself; without weights where v is None."""
        if self.rotation is None:
            return x
        return self.weights.block(v, len(x)).scale(x - self.fixed.fitted(b, self.origin))

    def left(self, x, v, b) -> Float[Array, "n r"]:
        """U of a block of rows; U/√v where v is None and U is made from features."""
        A = self.unrotated(x, v, b)
        return A if self.rotation is None else matmul(A, self.rotation)

    def left_vectors(self) -> Float[Array, "n r"]:
        """U, (n, r), computed where it is not kept."""
        columns = self.weights.values, self.fixed.rows
        return self.rows.map(self.left, *columns)

    @property
    def directions(self) -> Float[Array, "c r"]:
        """The coefficients of every direction: `basis`, or √v U where they are dual."""
        if self.basis is not None:
            return self.basis
        made = self.weights.scale(self.left_vectors())
        return made if self.solved is None else made * self.solved

    def project(self, labels):
        """z = Uᵀ√v y."""
        cross = lambda x, v, b, y: transposed_matmul(self.unrotated(x, v, b), y)
        columns = self.weights.values, self.fixed.rows, labels.scaled
        z = self.rows.sum(cross, *columns)
        return z if self.rotation is None else matmul(self.rotation.T, z)

    def solve_moments(self, labels: Labels, sums: Moments) -> Solution:
        """`solve_labels` where the moments of features with labels were summed along with the
        others.
        """
        z = matmul(self.rotation.T, sums.centred(self.fixed).cross)
        return Solution(self, labels, z)

    # at λ -----------------------------------------------------------------------------------------

    def residual_share(self, lams) -> Float[Array, "r L k"]:
        """λ/(s + λ), (r, L, k). Computed with λ first: XLA would otherwise move the divisions into
        its product for CPUs, where they are slow.
        """
        return jnp.moveaxis(lams[:, None] / (self.s[:, None] + lams[:, None]), 1, 0)

    def coefficients(self, solution, lams):
        """basis (D ∘ z), O(c r t L)."""
        solved = solution.state[:, None] / (self.s[:, None, None] + lams)
        beta = solution.labels.start[:, None] - times(self.across, solved)
        coef = times(self.directions, solved)
        return jnp.moveaxis(coef, 1, 0), jnp.moveaxis(beta, 1, 0)

    def residual_norm(self, solution, lams):
        """Where U is square Σ(λDz)². Where rows are not kept, a quadratic form of the moments: a
        difference, accurate relative to the squares of labels.
        """
        if self.sums is not None:
            coef = times(self.rotation, (1 - self.residual_share(lams)) * solution.state[:, None])
            both = 2 * self.sums.cross[:, None] - times(self.sums.second, coef)
            return jnp.maximum(self.sums.square - jnp.sum(coef * both, axis=0), 0)
        if not self.complete:
            return super().residual_norm(solution, lams)
        return jnp.sum((self.residual_share(lams) * solution.state[:, None]) ** 2, axis=0)

    def data_fit(self, solution, lams):
        """‖λc̃‖²/λ + ‖f‖²_H."""
        s = self.s[:, None, None]
        length = jnp.sum(s * (solution.state[:, None] / (s + lams)) ** 2, axis=0)
        return self.residual_norm(solution, lams) / lams + length

    def logdet(self, solution, lams):
        """Σ log(s + λ), and log λ outside of U."""
        return self._over_dimensions(jnp.log(self.counted[:, None, None] + lams), jnp.log(lams))

    def residual_dof(self, solution, lams):
        """Σ λ/(s + λ), and 1 outside of U."""
        return self._over_dimensions(
            lams / (self.counted[:, None, None] + lams), jnp.ones_like(lams)
        )

    def _over_dimensions(self, inside, outside):
        """Σ over the dimensions of U, and over the n − r outside. Where U is square it spans fixed
        effects and rows of weight 0 too, and the sum is scaled by the share of the others.
        """
        if self.complete:
            share = lambda U, used: jnp.sum(jnp.where(used[:, None], U * U, 0), axis=0)
            share = self.rows.sum(share, self.weights.used)
            return jnp.sum(share[:, None, None] * inside, axis=0)
        missing = self.residual_dimensions() - self.s.shape[0]
        return jnp.sum(inside, axis=0) + missing * outside

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """One pass over the rows for all λ: O(n r L (t + 1))."""
        z, t = solution.state, solution.labels.Y.shape[1]

        def block(x, v, b, y, *columns):
            U = self.left(x, v, b)
            outside: Any = None if self.complete else self._outside(U, v, b)
            missed: Any = None if self.complete else (y - matmul(U, z))[:, None]

            def at(lams):
                residual_share = self.residual_share(lams)
                r, R = times(U, residual_share * z[:, None]), times(U * U, residual_share)
                if not self.complete:
                    r, R = missed + r, outside[:, None, None] + R
                return fn(r, R, v, *columns)

            return at(lams) if stack else over_lams(at, lams, t)

        read = self.rows.map if stack else self.rows.sum
        columns = self.weights.values, self.fixed.rows, solution.labels.scaled, *columns
        return read(block, *columns)

    def _outside(self, U, v, b):
        """The diagonal of I − HHᵀ − UUᵀ for a block of rows."""
        if self.complete:
            return jnp.zeros_like(U[:, 0])
        leverage = self.fixed.leverage(b, self.weights.block(v, len(U)).array)
        return 1 - jnp.sum(U * U, axis=1) - leverage

    def unseen(self, solution, lams):
        """From the features, where U is made from them."""
        if self.rotation is None:
            return super().unseen(solution, lams)
        # One reading for all λ, where `view` takes one for each.
        kept = (1 - self.residual_share(lams)) * solution.state[:, None]
        f = self.rows.map(lambda x, b: times(self.left(x, None, b), kept), self.fixed.rows)
        return solution.labels.Y - solution.labels.mean - jnp.moveaxis(f, 1, 0)

    def landmarks_out(self, solution, lams):
        """For all λ by four products."""
        W, u, v = self.dictionary.planes, self.dictionary.left, self.weights.array[self.indices]
        residual_share, z = self.residual_share(lams), solution.state[:, None]
        slope = jnp.sqrt((1 - residual_share) * residual_share)
        outside = self._outside(jnp.sqrt(v)[:, None] * u, v, self.fixed.rows_at(self.indices))
        remaining = outside[:, None, None] + v[:, None, None] * times(u * u, residual_share)
        d, rho, alpha = times(W * W, residual_share), times(W * u, slope), times(W, slope * z)
        return d, rho, alpha, times(u, (1 - residual_share) * z), remaining

    def primal_form(self):
        """φ = (rows − B origin) V, where U is made from rows; a spectrum of each serves every λ."""
        if self.rotation is None:
            return None

        def solve(second, cross, lams):
            s, V = eigh(second)
            z = matmul(V.T, cross)[:, None] / (jnp.maximum(s, 0)[:, None, None] + lams)
            return times(V, z)

        turn = self.rotation * jnp.sqrt(self.s)
        planes = None if self.dictionary is None else self.dictionary.planes
        return PrimalForm(self.rows, Linear(), turn, self.origin, planes, solve)

    def sweep_folds(self, solution, fn, lams, folds, *, stack=False):
        """By fits to the other rows where these cost less than R_SS at every λ, and K is as exact
        as U.
        """
        (k, b), n, labels = folds.inside.shape, self.n, solution.labels
        others = min((k - 1) * b, n)  # rows, at most
        cheaper = PRODUCTS_OF_FIT * others**3 < len(lams) * b**2 * n and platform() == "cpu"
        if not cheaper or not self.complete or self.route == "features":
            return super().sweep_folds(solution, fn, lams, folds, stack=stack)
        parts, unit = self._parts_of_refits(labels), self.weights.root_or_one[:, None, None]

        def refit(S):
            rest = self.weights.used & (folds.numbers != folds.numbers[S[0]])
            C = jnp.flatnonzero(rest, size=others, fill_value=n).astype(S.dtype)
            return fit_to_others(*parts, S, C)

        fits = jax.lax.map(refit, folds.inside)

        def at(lams):
            def left_out(fit):
                s, z, across, start = fit
                return start[:, None] - times(across, z[:, None] / (s[:, None, None] + lams))

            e = folds.as_rows(jax.lax.map(left_out, fits)) / unit
            return fn(e, labels.Y, self.weights.array)

        return at(lams) if stack else over_lams(at, lams, labels.Y.shape[1])

    def _parts_of_refits(self, labels) -> tuple[Any, Any, Any]:
        """√v K √v minus its fit by the fixed effects, H, and labels, with rows of weight 0 as they
        are predicted, and a last row of 0.
        """
        U, weights, fixed = self.left_vectors(), self.weights, self.fixed
        unit, left = weights.root_or_one[:, None], U * self.s
        if weights.values is not None:
            left = jnp.where(weights.used[:, None], left, self.queries())
        H, Y = fixed.basis(fixed.rows, self.n) * unit, (labels.Y - labels.mean) * unit
        left, U, H, Y = (jnp.pad(A, ((0, 1), (0, 0))) for A in (left, U, H, Y))
        return matmul(left, U.T), H, Y

    def view(self, solution, lam):
        """U diag(λD) Uᵀ, or I − HHᵀ − U diag(sD) Uᵀ."""
        labels, fixed, weights = solution.labels, self.fixed, self.weights
        z, residual_share, used = solution.state, lam / (self.s + lam), weights.used[:, None]
        if self.rotation is not None:
            root, out = jnp.sqrt(self.s / (self.s + lam)), self.dictionary
            u = self.rows.map(lambda x, b: self.left(x, None, b) * root, fixed.rows)
            planes = None if out is None else out.planes * jnp.sqrt(residual_share)
            of = u, root[:, None] * z, labels, weights, fixed
            return LowRank.of_rows(*of, planes, self.indices)
        both = self.sweep(solution, lam.reshape(1, 1), lambda r, R, v: (r, R), stack=True)
        (r, R), U = (part[:, 0] for part in both), self.left_vectors()
        left = U * (residual_share if self.complete else residual_share - 1)
        if weights.values is not None:
            G = self.queries() / (self.s + lam)
            left = jnp.where(used, left, -G)
            r = jnp.where(used, r, labels.Y - labels.mean - matmul(G, z))
        R = jnp.where(weights.used, R[:, 0], 1)
        H = fixed.basis(fixed.rows, self.n) * weights.root_or_one[:, None]
        return LowRank(r, R, H, U, left, weights.used, complete=self.complete)

    def training_design(self) -> Float[Array, "n c"]:
        """K or features of the rows, which coefficients multiply, computed again."""
        kernel, rows = self.training
        return rows.map(lambda x: self.expansion.design(kernel, x))

    def queries(self) -> Float[Array, "n r"]:
        """G = design·basis − B across of the rows of X, predicted as if they were new: f = mean + G
        (D ∘ z).
        """
        G = matmul(self.training_design(), self.directions)
        return G - self.fixed.fitted(self.fixed.rows, self.across)


# how spectra are made -----------------------------------------------------------------------------


def factor_symmetric(
    K: Float[Array, "n n"],
    weights: Weights,
    fixed: FixedEffects,
    expansion: Expansion,
    *,
    training: Any = None,
    semidefinite: bool = False,
    lift: Float[Array, " n"] | None = None,
) -> Spectrum:
    """The dual route: the eigendecomposition of all of K. Cost: about 9n³ flops, 4n² numbers.

    U is projected on the complement of the fixed effects once more, which keeps them exact for λ
    down to the precision of K. Eigenvalues below 0 are set to 0; directions in which they are
    negative by more than rounding get no coefficients. With `lift` the expansion's kernel is K +
    1·lift. Source: Rifkin (lecture), "Varying λ".
    """
    K, across, taken = fixed.centre_both(weights, K)
    if lift is not None:
        across = across + fixed.one[:, None] * lift  # type: ignore[index]
    s, U = eigh(weights.scale_both(K))
    U = fixed.project(weights, U)
    # What is taken off entries is rounded one by one: 4√n·eps of one.
    n = weights.count
    heaviest = jnp.max(weights.array) / weights.total
    constant = 4 * jnp.sqrt(heaviest / n) * taken
    floor = eigh_rounding(n, s, constant)
    across = matmul(across, weights.scale(U))
    solved = None if semidefinite else jnp.where(s < -floor, 0, 1).astype(s.dtype)
    across = across if solved is None else across * solved
    s, below = clip(s, constant)
    report = Report("gram", floor, below)
    made = Whole(U), s, across, weights, fixed, expansion, report
    return Spectrum(*made, solved=solved, training=training, complete=True)


def factor_svd(kernel, rows: Rows, weights: Weights, fixed: FixedEffects) -> Spectrum:
    """Explicit features by their thin SVD, the most precise route: K's condition number is never
    squared. Cost: O(n r min(n, r)), some 25 products ΦᵀΦ. Source: Rifkin (lecture), "SVD approach".
    """
    Phi = rows.features(kernel).dense()
    origin = fixed.fit(weights, Phi)
    U, sigma, Vt = svd(weights.scale(fixed.residual(weights, Phi)))
    complete = U.shape[0] == U.shape[1]
    U = fixed.project(weights, U)
    basis = Vt.T * sigma
    floor = (20 * rounding(len(sigma), sigma)) ** 2  # σ is rounded, not its square: 5 % of √λ
    report = Report("features", floor, jnp.zeros((), Phi.dtype))
    made = Whole(U), sigma**2, matmul(origin, basis), weights, fixed, Primal(), report
    return Spectrum(*made, complete=complete, origin=origin, basis=basis, training=(kernel, rows))


def solve_covariance(kernel, rows: Rows, labels: Labels, weights: Weights, fixed) -> Solution:
    """The solution on explicit features by the eigendecomposition of ΦᵀΦ, or where n ≤ r of ΦΦᵀ.

    Directions with s below √r·eps·s_max count as absent. Cost: one product, O(n r²), and O(r³).
    Source: Rifkin (lecture), "direct approach".
    """
    features = rows.features(kernel)
    if features.shape[0] <= features.shape[1]:
        return _factor_outer(kernel, rows, features, weights, fixed).solve_labels(labels)
    sums = feature_moments(features, labels, weights, fixed)
    return of_moments(features, sums, weights, fixed).solve_moments(labels, sums)


def feature_moments(features: Rows, labels: Labels, weights: Weights, fixed) -> Moments:
    """Moments of explicit features, about a point near the fixed effects' fit of them."""
    origin = near_fit(features, Linear(), fixed, weights.values)
    data = features, Linear(), fixed, labels.Y, weights.values
    return moments(*data, origin=origin, label_origin=labels.start)


def of_moments(
    rows: Rows, sums: Moments, weights: Weights, fixed: FixedEffects, before: Any = 0.0
) -> Spectrum:
    """The spectrum from moments of features; `rows` are the features. Where `before` is larger than
    the diagonal of the moments, rounding is taken to be that of sums of this size.
    """
    constant = jnp.maximum(sums.taken(fixed), jnp.max(jnp.asarray(before, rows.dtype)))
    sums = sums.centred(fixed)
    s, V = eigh(sums.second)
    s, below = clip(s, constant)
    kept = s > eigh_rounding(len(s), s)
    s = jnp.where(kept, s, 0)
    basis, rotation = V * jnp.sqrt(s), jnp.where(kept, V / jnp.sqrt(jnp.where(kept, s, 1)), 0)
    report = Report("covariance", 2 * eigh_rounding(len(s), s, constant), below)
    made = rows, s, matmul(sums.origin, basis), weights, fixed, Primal(), report
    return Spectrum(*made, rotation=rotation, origin=sums.origin, basis=basis)


def products(features: Rows, fixed: FixedEffects) -> tuple[Any, Any, Any]:
    """K = ΦΦᵀ of features about an origin, that origin, and what to add to every row of K to get
    the kernel of new rows with these.

    With an intercept only distances matter: for features far from 0, K about their mean keeps
    digits that K would lose to rounding.
    """
    if fixed.one is None:
        return (
            gram(Linear(), features, features),
            jnp.zeros(features.shape[1], features.dtype),
            None,
        )
    origin = jax.lax.stop_gradient(jnp.mean(features.some(512), axis=0))
    about = Standardized(Linear(), origin, jnp.ones_like(origin))
    lift = features.map(lambda phi: matmul(phi - origin, origin))
    return gram(about, features, features), origin, lift


def _factor_outer(kernel, rows: Rows, features: Rows, weights: Weights, fixed) -> Spectrum:
    """By K = ΦΦᵀ in place of ΦᵀΦ, its dual coefficients turned into w = Φᵀ√v U (D ∘ z)."""
    K, origin, lift = products(features, fixed)
    fit = near_fit(features, Linear(), fixed, weights.array)
    fit = origin[None][:0] if fit is None else fit
    dual = factor_symmetric(
        K, weights, fixed, Primal(), training=(kernel, rows), semidefinite=True, lift=lift
    )
    turn = lambda phi, scaled: transposed_matmul(phi - origin, scaled)
    basis = features.sum(turn, dual.directions)
    floor = jnp.maximum(dual.report.floor, eigh_rounding(max(features.shape), dual.s))
    report = Report("covariance", floor, dual.report.indefinite)
    return replace(dual, basis=basis, origin=fit, report=report)
