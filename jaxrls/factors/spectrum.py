"""One eigendecomposition, then every λ: the weighted, centred kernel matrix as U diag(s) Uᵀ.

With v the weights, h = √v/‖√v‖ and C = I − hhᵀ (C = I without an intercept), C √v K √v C = U diag(s) Uᵀ with UᵀU = I. Everything then follows
from D(λ) = 1/(s + λ) and z = Uᵀ√v y: coefficients = basis (D ∘ z), intercept = mean(y) − shift·(D ∘ z), and what is left out as in `hat`. Where U is
square the complement C − UUᵀ is exactly 0 and is dropped. No 1/λ is formed and subtracted.
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrls.factors.contract import Factor, Report, Solution, as_columns, lam_chunks, over_lams, times
from jaxrls.factors.cost import refitting_is_cheaper
from jaxrls.factors.expansion import Expansion, Primal
from jaxrls.factors.hat import MOST_OF_ZERO, Leaving, SpectralHat, counted, is_hidden, spectral_pairs, spectral_rows
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.parted import spectral_apart
from jaxrls.factors.refits import Rests
from jaxrls.factors.residual_norm import about_the_fit
from jaxrls.factors.smoother import spectral_smoother
from jaxrls.factors.spectral_groups import spectral_groups
from jaxrls.factors.spread import spectral_spread
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.decompositions import clip, eigh, eigh_rounding, spectrum_of
from jaxrls.linalg.products import matmul, transposed_matmul
from jaxrls.rows.blocks import map_blocks
from jaxrls.rows.moments import Moments, cross_moments, moments, near_mean
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.support.pytrees import pytree, static


@pytree
class Spectrum(Factor):
    """The eigendecomposition behind one kernel and one X. U is kept, or made of rows of features block by block.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_gram(jnp.eye(3), intercept=False).spectrum().s.tolist()
    [1.0, 1.0, 1.0]
    """

    rows: Rows  # of U itself, or of the features that it is made of
    s: Float[Array, " r"]
    rotation: Float[Array, "p r"] | None  # U = √v (rows − middle) rotation; None where rows are U
    middle: Float[Array, " p"] | None  # what is subtracted from rows that U is made of, or from those of `design`
    basis: Float[Array, "q r"] | None  # None where the coefficients are dual: √v U
    shift: Float[Array, " r"]  # 0 without an intercept
    solved: Float[Array, " r"] | None  # 1, or 0 in directions that the model leaves out, as their eigenvalue is clearly negative
    design: Rows | None  # f − ȳ at all rows = (design − middle) · coefficients, kept for rows of little weight where U is kept
    leaving: Leaving | None
    weights: Weights
    expansion: Expansion
    said: Report
    intercept: bool = static()
    complete: bool = static()  # whether U is square
    why_not_zero: ClassVar[str] = ""
    level: Any = None  # the weighted mean of all of K, where that was centred
    hidden: Bool[Array, " r"] | None = None  # where s is the level of rounding in place of 0, so that U has a finite length there

    @property
    def report(self):
        """As it was made."""
        return self.said

    def spectrum(self):
        """Itself."""
        return self

    smoother, spread = spectral_smoother, spectral_spread

    @property
    def parts(self):
        """Those of the rows."""
        return self.rows.parts

    @property
    def seen(self) -> Float[Array, " r"]:
        """s as it counts in sums over directions: 0 where it is hidden."""
        return self.s if self.hidden is None else jnp.where(self.hidden, 0, self.s)

    def trace(self):
        """Σ s."""
        return jnp.sum(self.seen)

    def solve_labels(self, labels):
        """z = Uᵀ√v y, O(n r t)."""
        if self.rotation is None:
            return self.with_labels(labels, self.rows.sum(transposed_matmul, labels.scaled, block_size=self.whole))
        cross = cross_moments(self.rows, labels.Y - labels.mean, self.weights.values, self.centre)
        return self.with_labels(labels, matmul(self.rotation.T, cross))

    def solve_moments(self, labels: Labels, sums: Moments) -> "SpectralSolution":
        """`solve_labels` where the cross-moments were summed together with the moments."""
        return self.with_labels(labels, matmul(self.rotation.T, sums.centred(self.intercept).cross))  # type: ignore[union-attr]

    def with_labels(self, labels, z):
        """The solution from z; what clearly negative eigenvalues take of the labels, the model cannot reach."""
        if not self.complete:
            return SpectralSolution(self, labels, z, labels.scaled)
        if self.solved is None:
            return SpectralSolution(self, labels, z, None)
        missed = z * (1 - self.solved)[:, None]
        return SpectralSolution(self, labels, z - missed, self.rows.map(lambda U: matmul(U, missed), block_size=self.whole))

    @property
    def regular(self) -> Bool[Array, ""]:
        """Whether every direction that the fit lives in has an eigenvalue that is not hidden, so that at λ = 0 nothing is left of any."""
        hidden = jnp.sum(is_hidden(self.s, self.said.floor)).astype(self.dtype)
        return hidden + self.residual_dimensions() <= self.n if self.complete else jnp.zeros((), bool)

    def counted(self, s, lams):
        """s and λ as they count. What stands for λ = 0 moves the fit a thousandth as much as rounding of eigenvalues does, and on landmarks of which
        directions count as 0 as much as that: planes of other landmarks have a part of √eps along these, which must not outweigh the rest."""
        floor = self.said.floor
        some = False if self.hidden is None else jnp.any(is_hidden(self.s, floor))
        least = jnp.where(some, MOST_OF_ZERO, 1 / 1024) * floor
        return counted(s, lams, floor, least)

    @property
    def least_counted(self) -> Float[Array, ""]:
        """The smallest eigenvalue that counts at λ = 0, infinite where none does."""
        return jnp.min(self.s, initial=jnp.inf, where=~is_hidden(self.s, self.said.floor))

    @property
    def centre(self) -> Float[Array, " p"]:
        """What is subtracted from rows of features."""
        return jnp.zeros(self.rotation.shape[0], self.dtype) if self.middle is None else self.middle  # type: ignore[union-attr]

    def dof(self, lams):
        """Σ s/(s + λ), and 1 for the intercept."""
        s, lams = self.counted(self.seen, as_columns(lams))
        return jnp.sum(s / (s + lams), axis=1) + int(self.intercept)

    def left(self, rows, weights: Weights) -> Float[Array, "b r"]:
        """U of a block of rows."""
        A = self.unrotated(rows, weights)
        return A if self.rotation is None else matmul(A, self.rotation)

    def unrotated(self, rows, weights: Weights) -> Float[Array, "b p"]:
        """What `rotation` makes U of: U itself where there is none, or √v (rows − middle)."""
        if self.rotation is None:
            return rows
        return weights.scale(rows if self.middle is None else rows - self.middle)

    def left_vectors(self) -> Float[Array, "n r"]:
        """U, formed where it is not kept."""
        return self.rows.map(lambda rows, v: self.left(rows, self.weights.block(v, len(rows))), self.weights.values, block_size=self.whole)

    @property
    def whole(self) -> int | None:
        """The block size where U is kept: all rows at once, which is one large product and no copy; None where blocks of it are made."""
        return self.n if self.rotation is None else None

    def reach(self) -> Float[Array, "n r"]:
        """U/√v, for rows of weight 0 too: f − ȳ is its product with s/(s + λ) ∘ z."""
        if self.rotation is not None:
            return self.rows.map(lambda rows: self.left(rows, self.weights.block(None, rows.shape[0])))
        basis = self.dual_basis() if self.basis is None else self.basis
        g = self.design.map(lambda rows: matmul(rows if self.middle is None else rows - self.middle, basis))  # type: ignore[union-attr]
        known = self.s > (jnp.finfo(self.dtype).eps ** 2) * jnp.max(self.s)  # below it g is rounding, whatever λ
        return jnp.where(known, g / jnp.where(known, self.s, 1), 0)

    def dual_basis(self) -> Float[Array, "n r"]:
        """√v U."""
        return self.weights.scale(self.left_vectors())


@pytree
class SpectralSolution(Solution):
    """A `Spectrum` with labels."""

    shares_work: ClassVar[bool] = True
    factor: Spectrum
    labels: Labels
    z: Float[Array, "r t"]
    base: Float[Array, "n t"] | None  # scaled labels, or of a square U what of them the fit cannot reach, None for nothing
    summed: Any = None  # a `Summed`, where moments are kept

    def hat(self, lams, lost=None, columns=slice(None)) -> SpectralHat:
        """What is lost at these λ, (L, k), for some of the targets."""
        return SpectralHat.of(self.factor, self.z[:, columns], lams, self.lost(lams) if lost is None else lost)

    def lost(self, lams) -> Float[Array, "r L k"]:
        """λ/(s + λ). Made with λ first: XLA's product for CPUs would otherwise take the divisions into itself, where they are slow."""
        return self._lost_of(self.factor.s, lams)

    def _lost_of(self, s, lams):
        s, positive = self.factor.counted(s, lams)
        lost = positive / (s + positive)
        return jnp.moveaxis(jnp.where((s == 0) & (lams[:, None] == 0) & self.factor.regular, 0, lost), 1, 0)

    def coefficients(self, lams):
        """basis (D ∘ z), O(q r t L); dual ones as λc̃/λ, the product that leave-one-out takes too."""
        f, lams = self.factor, as_columns(lams)
        s = jnp.moveaxis(f.counted(f.s, lams)[0], 1, 0)
        known = (lams > 0) | (s > 0)
        solved = jnp.where(known, self.z[:, None, :] / jnp.where(known, s + lams, 1), 0)
        if f.basis is not None:
            return self.with_levels(jnp.moveaxis(times(f.basis, solved), 1, 0), solved)
        # At λ = 0 D is 1/s, or 0 where rounding hides s.
        U, least = f.left_vectors(), jnp.where(is_hidden(f.s, f.said.floor), 0, 1 / f.s)[:, None] * self.z
        coef = self.hat(lams).lost_labels(U) / jnp.where(lams > 0, lams, 1)
        coef = jax.lax.cond(jnp.any(lams == 0), lambda coef: jnp.where(lams > 0, coef, matmul(U, least)[:, None]), lambda coef: coef, coef)
        return self.with_levels(jnp.moveaxis(f.weights.scale(coef), 1, 0), solved)

    def with_levels(self, coef, solved) -> Any:
        """Coefficients and those that have no penalty, from D ∘ z."""
        return Coefficients(coef, self.labels.mean - times(self.factor.shift[None], solved)[0])

    def residual_sums(self, coef: Float[Array, "p L t"]):
        """Aᵀr (p, L, t) and ‖r‖² (L, t) of residuals r = √v y − A·coef, where A is what `rotation` makes U of."""
        f = self.factor

        def block(rows, v, scaled):
            A = f.unrotated(rows, f.weights.block(v, rows.shape[0]))
            residuals = scaled[:, None] - times(A, coef)
            return times(A.T, residuals), jnp.sum(residuals**2, axis=0)

        return f.rows.sum(block, f.weights.values, self.base, block_size=f.whole)

    def residual_norm(self, lams):
        """‖λc̃‖²."""
        return about_the_fit(self, as_columns(lams))[1]

    def data_fit(self, lams):
        """√v yᵀ (K̃ + λI)⁻¹ √v y = ‖λc̃‖²/λ + ‖f‖²_H."""
        lams = as_columns(lams)
        (z, norm), s = about_the_fit(self, lams), self.factor.s[:, None, None]
        return norm / lams + jnp.sum(s * (z / (s + lams)) ** 2, axis=0)

    def logdet(self, lams):
        """Σ log(s + λ), and log λ outside of U."""
        lams = as_columns(lams)
        return self._over_dimensions(jnp.log(self.factor.seen[:, None, None] + lams), jnp.log(lams))

    def residual_dof(self, lams):
        """Σ λ/(s + λ), and 1 outside of U."""
        lams = as_columns(lams)
        return self._over_dimensions(self._lost_of(self.factor.seen, lams), jnp.ones_like(lams))

    def dof(self, lams):
        """Σ s/(s + λ), and 1 for the intercept."""
        return self.factor.dof(lams)

    def _over_dimensions(self, inside, outside):
        """Σ over those of U, by their share where U is square and spans the constant and rows of weight 0 too, and the n − r outside."""
        f = self.factor
        if f.complete:
            share = f.rows.sum(lambda U, used: jnp.sum(jnp.where(used[:, None], U * U, 0), axis=0), f.weights.used, block_size=f.whole)
            return jnp.sum(share[:, None, None] * inside, axis=0)
        return jnp.sum(inside, axis=0) + (f.residual_dimensions() - f.s.shape[0]) * outside

    def rows_left_out(self, fn, lams):
        """One pass over the rows, all λ inside: O(n r L (t + 1))."""
        f, t = self.factor, self.labels.Y.shape[1]
        chunks = tuple(None if part is None else (part, lost) for part, lost in self._chunks(lams))
        counted = f.weights if f.leaving is None else f.weights.without(f.leaving.indices)
        constant = f.constant

        def block(rows, v, counted, scaled, Y):
            weights = f.weights.block(v, rows.shape[0])
            U, counted = f.left(rows, weights), weights.block(counted, rows.shape[0])

            def at(chunk):
                e, remaining = self.hat(*chunk).left_out(U, scaled, weights, constant(weights.array))
                e = e if f.leaving is None else jnp.where(counted.used[:, None, None], e, 0)
                return jax.vmap(fn, in_axes=(1, 1, None, None))(e, remaining, Y, counted.array)

            return map_blocks(at, *chunks)

        columns = f.weights.values, counted.values, self.base, self.labels.Y
        total = f.rows.sum(block, *columns, block_size=f.whole)
        if f.leaving is None:
            return total
        return jax.tree.map(jnp.add, total, over_lams(partial(self._landmarks, fn), lams, t))

    def _chunks(self, lams):
        """λ in chunks, each with what is lost at it, made once before the rows are read: whole chunks, one axis more, and the rest."""
        whole, rest = lam_chunks(lams, self.labels.Y.shape[1])
        return (whole, None if whole is None else jax.vmap(self.lost)(whole)), (rest, None if rest is None else self.lost(rest))

    def _landmarks(self, fn, lams):
        R = self.factor.leaving.indices  # type: ignore[union-attr]
        return jax.vmap(fn, in_axes=(1, 1, None, None))(*self._landmarks_left_out(lams), self.labels.Y[R], self.factor.weights.array[R])

    def _landmarks_left_out(self, lams):
        f, (Y, mean) = self.factor, (self.labels.Y, self.labels.mean)
        constant = f.constant(f.weights.array)[f.leaving.indices]  # type: ignore[union-attr]
        return f.leaving.left_out(self.hat(lams), Y, mean, f.weights, constant)  # type: ignore[union-attr]

    def residuals_left_out(self, lams):
        """As `rows_left_out`, every row by itself."""
        f, hat, weighted = self.factor, self.hat(lams), self.factor.weights.values is not None
        constant_of = f.constant

        def block(rows, v, scaled, centred, u):
            weights = f.weights.block(v, rows.shape[0])
            u = f.left(rows, f.weights.block(None, rows.shape[0])) if u is None and weighted else u
            unseen = None if u is None else centred[:, None, :] - hat.kept_labels(u)
            return hat.left_out(f.left(rows, weights), scaled, weights, constant_of(weights.array), unseen)[0]

        u = f.reach() if weighted and f.rotation is None else None
        e = f.rows.map(block, f.weights.values, self.base, self.labels.Y - self.labels.mean, u, block_size=f.whole)
        e = e if f.leaving is None else e.at[f.leaving.indices].set(self._landmarks_left_out(lams)[0])
        return jnp.moveaxis(e, 1, 0)

    def group_residuals(self, groups):
        """e_B = [P_BB]⁻¹ c_B for all groups at one λ, O(n b (r + b))."""
        return spectral_groups(self, groups, self.factor.left_vectors())

    pair_system, hat_rows = spectral_pairs, spectral_rows

    def apart(self, groups, lams):
        """As rows lie, or by fits to the rest where those are cheaper (few large groups, many λ)."""
        f, b = self.factor, groups.inside.shape[1]
        if f.parts > 1:
            return spectral_apart(self, groups, lams, features_spectrum)
        cheaper = refitting_is_cheaper(b, groups.most_outside, f.s.shape[0], lams.size)
        return self.rests(groups) if cheaper else None

    def rests(self, groups):
        """Fits to the rest, of which each is a copy."""
        return Rests(self, groups, factor_symmetric, solve_features)


def factor_symmetric(
    K, weights: Weights, intercept: bool, expansion: Expansion, route: str, *, semidefinite=False, lift=None, taken: Any = 0.0
) -> Spectrum:
    """The eigendecomposition of what is known to be symmetric, under the name of the route that made it; the expansion's kernel is K + 1·lift.

    `taken` is how much of √v K √v was taken off already, whose rounding stays.
    """
    n, dtype = K.shape[0], K.dtype
    shift, constant, h, level = jnp.zeros(n, dtype), jnp.asarray(taken, dtype), weights.direction, None
    if intercept:
        level = weights.mean(weights.mean(K))
        K, mean, constant = weights.centre_both(K)
    s, U = eigh(weights.scale_both(K))
    if intercept:
        U = U - h[:, None] * matmul(h, U)[None, :]  # once more, which keeps the intercept exact for λ down to the precision of K
        shift = matmul(weights.scale(mean if lift is None else mean + lift), U)
    floor = eigh_rounding(n, s, 4 * jnp.max(h) / n**0.5 * constant)  # of what is taken off entries are rounded one by one: 4√n·eps of one
    solved = None if semidefinite else jnp.where(s < -floor, 0, 1).astype(dtype)
    s, below = clip(s, constant)
    design = None if weights.values is None else DenseRows(K)
    unmade = DenseRows(U), s, None, None, None, shift, solved, design, None
    return Spectrum(*unmade, weights, expansion, Report(route, floor, below), intercept, True, level)


def solve_features(rows: Rows, labels: Labels, weights: Weights, intercept: bool) -> SpectralSolution:
    """The solution on rows of features by the eigendecomposition of their covariance, or where n ≤ r of their Gram matrix."""
    if rows.shape[0] <= (r := rows.shape[1]):
        return _factor_outer(rows, weights, intercept).solve_labels(labels)
    origin = near_mean(rows, Linear(), weights.values) if intercept else jnp.zeros(r, rows.dtype)
    sums = moments(rows, Linear(), labels.Y, weights.values, origin=origin, label_origin=labels.mean)
    return features_spectrum(rows, sums, weights, intercept).solve_moments(labels, sums)


def features_spectrum(rows: Rows, sums: Moments, weights: Weights, intercept: bool, before: float | Array = 0.0) -> Spectrum:
    """That of moments of features; rows are the features again. Rounding is that of sums whose diagonal was `before`, where that is larger."""
    constant, sums = jnp.maximum(sums.constant if intercept else 0.0, jnp.max(jnp.asarray(before, rows.dtype))), sums.centred(intercept)
    s, V, inverse_sigma, below = spectrum_of(sums.second, constant)
    basis = V * jnp.sqrt(s)
    shift = matmul(sums.origin, basis) if intercept else jnp.zeros_like(s)
    said, middle = Report("covariance", 2 * eigh_rounding(len(s), s, constant), below), sums.origin if intercept else None
    return Spectrum(rows, s, V * inverse_sigma, middle, basis, shift, None, None, None, weights, Primal(), said, intercept, False)


def _factor_outer(rows: Rows, weights: Weights, intercept: bool) -> Spectrum:
    """The covariance route with n ≤ r: K = ΦΦᵀ, its dual coefficients turned into w = Φᵀ√v U (D ∘ z), as CU = U."""
    origin = near_mean(rows, Linear(), weights.values) if intercept else jnp.zeros(rows.shape[1], rows.dtype)
    dual = factor_symmetric(rows.products(origin), weights, intercept, Primal(), "covariance", semidefinite=True)
    basis = rows.sum(lambda phi, scaled: transposed_matmul(scaled, phi - origin).T, dual.dual_basis())
    middle = origin + rows.sum(lambda phi, share: matmul(share, phi - origin), weights.array / weights.total) if intercept else None
    shift = dual.shift if middle is None else matmul(middle, basis)
    said = replace(dual.said, floor=jnp.maximum(dual.said.floor, eigh_rounding(max(rows.shape), dual.s)))
    design = None if weights.values is None else rows
    return replace(dual, basis=basis, middle=middle, shift=shift, solved=None, said=said, design=design)
