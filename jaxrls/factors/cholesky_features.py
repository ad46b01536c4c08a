"""The primal problem at one λ after another by Cholesky, on explicit features or on landmarks, differentiable in everything, the landmarks included.

With features ψ of a row (for landmarks k(x, points), with K_RR = LLᵀ and φ = L⁻¹ψ; else φ = ψ), ΦᵀΦ + λI = AAᵀ for weighted, centred Φ, and R = L⁻ᵀA⁻ᵀ, a row
x is seen as u = ψR − middle, and labels as q = A⁻¹Φᵀ√v y:

    coefficients = Rq,    ŷ = u·q,    h = v|u|²,    e = (y − ŷ)/(1 − h),

and a landmark leaves with its row in the plane of its row of R: see `hat`. Rows are read in blocks, which derivatives recompute: memory is O(r²)
for each λ, and for each target that has its own, beside X and y; groups keep n×r.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.contract import Factor, Report, Solution, as_columns
from jaxrls.factors.expansion import Expansion, OnLandmarks, Primal
from jaxrls.factors.feature_maps import Explicit, OfLandmarks
from jaxrls.factors.hat import Group, Leaving, PlainHat, each_group
from jaxrls.factors.landmarks import Landmarks
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.parted import apart
from jaxrls.factors.planes import moved
from jaxrls.factors.refits import Refits
from jaxrls.factors.smoother import Planes, Smoother
from jaxrls.factors.spread import features_spread
from jaxrls.factors.subset import left_over, lengths
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.decompositions import rounding
from jaxrls.linalg.inverses import triangular_inverse
from jaxrls.linalg.products import matmul, power_of_two, tall_matmul
from jaxrls.linalg.ridge import ridged_cholesky
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import cross_moments, moments, near_mean
from jaxrls.rows.rows import Rows
from jaxrls.support.pytrees import pytree, static


@pytree
class CholeskyFeatures(Factor):
    """ΦᵀΦ + λI = AAᵀ for each λ, from moments: O(n r²) for those, in row blocks.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.arange(6.0).reshape(3, 2), route="cholesky")
    >>> factor.solve([0.0, 1.0, 2.0]).coefficients(jnp.array([0.1])).coef.shape
    (1, 2, 1)
    """

    rows: Rows
    map: Any  # OfLandmarks or Explicit
    second: Float[Array, "r r"]  # Φᵀ C Φ, weighted
    middle: Float[Array, " r"]  # what is subtracted from φ
    left_over: Float[Array, ""] | None  # tr √v(K − K̂)√v on landmarks
    ridge: Float[Array, ""] | None
    weights: Weights
    expansion: Expansion
    indices: Int[Array, " m"] | None  # of the landmarks that leave with their row
    intercept: bool = static()
    block_size: int | None = static()

    @property
    def report(self):
        """The precision floor by the norm of ΦᵀΦ, which bounds s_max, and by what L⁻ᵀ makes of the rounding of k(x, landmarks)."""
        second, r = jax.lax.stop_gradient(self.second), len(self.middle)
        unit = power_of_two(jnp.max(jnp.abs(second)))  # in which squares stay in range
        largest = unit * jnp.linalg.norm(second / unit)[None]
        floor = 2 * rounding(r, largest)
        if self.left_over is not None:
            moved = jnp.sqrt(jnp.trace(second) + self.left_over) * jax.lax.stop_gradient(self.map).amplified
            floor = jnp.maximum(floor, 6 * rounding(1 / r, jnp.sqrt(largest)) * moved)
        return Report("cholesky", floor, jnp.zeros((), self.dtype), self.left_over, self.ridge)

    @property
    def route(self):
        """How it was made."""
        return "cholesky"

    def spread(self, lam):
        """By the same Cholesky factor."""
        constant = lam / self.weights.total * int(self.intercept)
        return features_spread(self.expansion, self.second, self.middle, lam, constant, self.map.back)

    def smoother(self, lam):
        """By the same, and the rows as it sees them."""
        seen = FeatureSolution(self, Labels.none(self.weights), jnp.zeros((self.second.shape[0], 0), self.dtype)).seen(lam)
        u = self.rows.map(lambda x: seen(self.map.raw(x)), temporaries=self.second.shape[0], block_size=self.block_size)
        v, planes = self.weights.array, None
        constant, weighted = self.constant(v), v[:, None] * u
        if self.indices is not None:
            planes = Planes(jnp.asarray(self.indices), jnp.sqrt(lam) * seen.R, jnp.sqrt(lam) * seen.middle)
        information = v * seen.hat.remaining(self.weights.scale(u), constant)[:, 0, 0] / lam
        return Smoother(matmul(seen.R, weighted.T), constant - matmul(weighted, seen.middle), information, planes)

    @property
    def parts(self):
        """Those of the rows."""
        return self.rows.parts

    def trace(self):
        """tr ΦᵀΦ."""
        return jnp.trace(self.second)

    def solve_labels(self, labels):
        """Φᵀ√v y, O(n r t)."""
        cross = cross_moments(self.rows.through(self.map), labels.Y - labels.mean, self.weights.values, self.middle)
        return FeatureSolution(self, labels, cross)


def solve_cholesky(
    kernel: Kernel, rows: Rows, chosen: Landmarks | None, labels: Labels, weights: Weights, intercept: bool, block_size=None
) -> "FeatureSolution":
    """The solution on explicit features, or on landmarks, from one reading of the rows."""
    made, expansion, ridge = map_of(kernel, chosen)
    near = (
        jax.lax.stop_gradient(near_mean(rows, made, weights.values)) if chosen is None else jnp.mean(made.features(chosen.points), axis=0)
    )
    origin = near if intercept else jnp.zeros_like(near)
    part = None if chosen is None else partial(left_over, kernel)
    options: dict = {"left_over": part, "block_size": block_size}
    sums = moments(rows, made, labels.Y, weights.values, origin=origin, label_origin=labels.mean, **options).centred(intercept)
    indices = None if chosen is None else chosen.indices
    made_of = rows.stored, made, sums.second, sums.origin, None if chosen is None else sums.trace, ridge
    factor = CholeskyFeatures(*made_of, weights, expansion, indices, intercept, block_size)
    return FeatureSolution(factor, labels, sums.cross)


def map_of(kernel: Kernel, chosen: Landmarks | None) -> tuple[Any, Expansion, Any]:
    """What is made of a row, what its coefficients multiply, and the ridge of the landmarks' Cholesky factor."""
    if chosen is None:
        return Explicit(kernel), Primal(), None
    L, ridge = ridged_cholesky(gram(kernel, chosen.points))
    return OfLandmarks(kernel, chosen.points, triangular_inverse(L).T), OnLandmarks(chosen.points), ridge


@pytree
class Seen:
    """How rows and labels are seen at one λ."""

    R: Float[Array, "r r"]
    middle: Float[Array, " r"]
    q: Float[Array, "r t"]
    shrink: Float[Array, "r r"]  # A⁻¹
    lam: Float[Array, ""]

    def __call__(self, psi) -> Float[Array, "b r"]:
        """u = U/√v of rows ψ."""
        return tall_matmul(psi, self.R) - self.middle

    @property
    def directions(self) -> Float[Array, "r r"]:
        """Of the planes βₖ = 0, each by a vector of length about 1."""
        return self.R / jax.lax.stop_gradient(lengths(self.R))

    @property
    def hat(self):
        """Nothing of u is lost."""
        return PlainHat(self.q)


@pytree
class FeatureSolution(Solution):
    """A `CholeskyFeatures` with labels."""

    factor: CholeskyFeatures
    labels: Labels
    cross: Float[Array, "r t"]

    def seen(self, lam, columns=slice(None)) -> Seen:
        """At one λ, for some of the targets."""
        f = self.factor
        A = jnp.linalg.cholesky(f.second + lam * jnp.eye(f.second.shape[0], dtype=f.dtype))
        shrink = triangular_inverse(A)
        R = shrink.T if f.map.back is None else matmul(shrink, f.map.back.T).T
        return Seen(R, matmul(shrink, f.middle), matmul(shrink, self.cross[:, columns]), shrink, lam)

    def _at(self, lams, fn):
        """`fn(seen, columns)` with results (…, t) or (…, 1) at every λ, λ leading: each target by itself where it has its own."""
        t = self.labels.Y.shape[1]

        def at(lam):
            if lam.shape[0] == 1:
                return fn(self.seen(lam[0]), slice(None))
            each = jax.lax.map(lambda j: fn(self.seen(lam[j], j[None]), j[None]), jnp.arange(t))
            return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), each)

        return jax.lax.map(at, as_columns(lams))

    def coefficients(self, lams):
        """Rq, and b = mean − middle·q."""
        return self.coefficients_without(None, lams)

    def coefficients_without(self, gone, lams):
        """The same, without the landmarks that are `gone`, where there are such."""
        f, mean = self.factor, self.labels.mean

        def at(seen, columns):
            q = seen.q if gone is None else moved(seen.q, seen.directions, gone)
            step = matmul(seen.middle, q) if f.intercept else 0
            return Coefficients(matmul(seen.R, q), mean[columns] - step)

        return self._at(lams, at)

    def residual_norm(self, lams):
        """‖√v (y − ŷ)‖², from the residuals of all rows: nothing cancels."""
        return self._over_rows(lams, lambda seen, u, columns, w, y: jnp.sum((y - w.scale(matmul(u, seen.q))) ** 2, axis=0))

    def data_fit(self, lams):
        """(‖√v (y − ŷ)‖² + λ‖w‖²)/λ with w = A⁻ᵀq."""
        lams = as_columns(lams)
        return self.residual_norm(lams) / lams + self._at(lams, lambda seen, _: jnp.sum(matmul(seen.shrink.T, seen.q) ** 2, axis=0))

    def logdet(self, lams):
        """log |ΦᵀΦ + λI|, and log λ outside."""
        missing = self.factor.residual_dimensions() - self.factor.second.shape[0]
        return self._at(lams, lambda seen, _: (-2 * jnp.sum(jnp.log(jnp.diagonal(seen.shrink))) + missing * jnp.log(seen.lam))[None])

    def residual_dof(self, lams):
        """n − r + λ tr (ΦᵀΦ + λI)⁻¹."""
        missing = self.factor.residual_dimensions() - self.factor.second.shape[0]
        return self._at(lams, lambda seen, _: (missing + seen.lam * jnp.sum(seen.shrink**2))[None])

    def _over_rows(self, lams, fn):
        """Σ over rows of `fn(seen, u, columns, weights, scaled labels)`, rows outside and λ inside."""
        f = self.factor
        all_seen = self._at_each(lams)

        def block(x, v, y):
            psi, weights = f.map.raw(x), f.weights.block(v, x.shape[0])
            return self._on(all_seen, lambda seen, columns: fn(seen, seen(psi), columns, weights, y[:, columns]))

        return f.rows.sum(block, f.weights.values, self.labels.scaled, **self._hints)

    @property
    def _hints(self):
        return {"temporaries": self.factor.second.shape[0], "block_size": self.factor.block_size}

    def _at_each(self, lams):
        """How rows are seen at every λ, (L, 1, …), or for every target at its own, (L, t, …): made once, before the rows are read."""
        t = self.labels.Y.shape[1]

        def at(lam):
            if lam.shape[0] == 1:
                return jax.tree.map(lambda a: a[None], self.seen(lam[0]))
            return jax.lax.map(lambda j: self.seen(lam[j], j[None]), jnp.arange(t))

        return jax.lax.map(at, as_columns(lams))

    def _on(self, all_seen, fn):
        """`fn(seen, columns)` for all that `_at_each` gave, (L, …, t)."""

        def at(seen):
            if seen.lam.shape[0] == 1:
                return fn(jax.tree.map(lambda a: a[0], seen), slice(None))
            each = jax.lax.map(lambda args: fn(args[0], args[1][None]), (seen, jnp.arange(seen.lam.shape[0])))
            return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), each)

        return jax.lax.map(at, all_seen)

    def rows_left_out(self, fn, lams):
        """One pass over the rows with all λ inside, and the landmarks that leave: O(n r² L)."""
        f, all_seen, constant = self.factor, self._at_each(lams), self.factor.constant
        counted = f.weights if f.indices is None else f.weights.without(f.indices)

        def block(x, v, counted, y, Y):
            psi, weights = f.map.raw(x), f.weights.block(v, x.shape[0])
            counted = weights.block(counted, x.shape[0])

            def at(seen, columns):
                return self._left_out_of(seen, psi, y[:, columns], weights, constant(weights.array), counted.used)

            return jax.vmap(fn, in_axes=(0, 0, None, None))(*self._on(all_seen, at), Y, counted.array)

        columns = f.weights.values, counted.values, self.labels.scaled, self.labels.Y
        total = f.rows.sum(block, *columns, **self._hints)
        if f.indices is None:
            return total
        held = self._on(all_seen, self._own)
        own = jax.vmap(fn, in_axes=(0, 0, None, None))(*held, self.labels.Y[f.indices], f.weights.array[f.indices])
        return jax.tree.map(jnp.add, total, own)

    def _left_out_of(self, seen, psi, scaled, weights, constant, used):
        """Held-out residuals of a block, and 1 − leverage; 0 and 1, with finite derivatives, where a row is not counted."""
        u = weights.scale(seen(psi))
        remaining = seen.hat.remaining(u, constant)[:, 0]
        remaining = jnp.where(used[:, None], remaining, 1)
        e = weights.unscale(seen.hat.scaled_residuals(u, scaled)[:, 0] / remaining)
        return jnp.where(used[:, None], e, 0), remaining

    def _leaving(self, seen, corner=None):
        """The planes βₖ = 0, and the landmarks' own rows, which `corner` has where it is known."""
        f = self.factor
        return Leaving(jnp.asarray(f.indices), seen.directions, seen(f.map.raw(f.map.points) if corner is None else corner))

    def landmarks_left_out(self, seen, corner=None, columns=slice(None)):
        """Held-out residuals and 1 − leverages of the rows that are landmarks, from k(points, points) where that is known."""
        f, labels = self.factor, self.labels
        constant = f.constant(f.weights.array)[f.indices]
        e, remaining = self._leaving(seen, corner).left_out(seen.hat, labels.Y[:, columns], labels.mean[..., columns], f.weights, constant)
        return e[:, 0], remaining[:, 0]

    def _own(self, seen, columns):
        return self.landmarks_left_out(seen, columns=columns)

    def residuals_left_out(self, lams):
        """As `rows_left_out`, every row by itself."""
        f, all_seen, constant = self.factor, self._at_each(lams), self.factor.constant

        def block(x, v, y, Y):
            psi, weights = f.map.raw(x), f.weights.block(v, x.shape[0])

            def at(seen, columns):
                e, _ = self._left_out_of(seen, psi, y[:, columns], weights, constant(weights.array), weights.used)
                unseen = (Y - self.labels.mean)[:, columns] - matmul(seen(psi), seen.q)
                return jnp.where(weights.used[:, None], e, unseen)

            return jnp.moveaxis(self._on(all_seen, at), 0, 1)

        e = jnp.moveaxis(f.rows.map(block, f.weights.values, self.labels.scaled, self.labels.Y, **self._hints), 1, 0)
        return e if f.indices is None else e.at[:, f.indices].set(self._on(all_seen, self._own)[0])

    def apart(self, groups, lams):
        """By fits to the rest, or as rows lie."""
        f = self.factor
        if f.parts == 1:
            return None
        refits = Refits(self, groups, f.rows, f.map.raw, self.without, f.indices, self._hints)
        return apart(self, groups, lams, refits, self.on_some, (len(f.middle), 4 * lams.size))

    def on_some(self, rows, weights, labels, indices):
        """The same of some of the rows."""
        return replace(self, factor=replace(self.factor, rows=rows, weights=weights, indices=indices), labels=labels)

    def without(self, rest, gone):
        """As `solve_cholesky`, of other weights."""
        f, labels = self.factor, Labels.columns(self.labels.Y, rest, self.factor.intercept, False)
        origin = jax.lax.stop_gradient(near_mean(f.rows, f.map, rest.values)) if f.intercept else jnp.zeros_like(f.middle)
        options = {"label_origin": labels.mean, "block_size": f.block_size}
        sums = moments(f.rows, f.map, labels.Y, rest.values, origin=origin, **options).centred(f.intercept)
        found = FeatureSolution(replace(f, second=sums.second, middle=sums.origin, weights=rest), labels, sums.cross)
        return partial(found.coefficients_without, gone)

    def group_residuals(self, groups):
        """e_B = [P_BB]⁻¹ c_B, with the group's landmarks leaving the dictionary."""
        f, labels, mask = self.factor, self.labels, groups.inside_mask.astype(self.factor.dtype)
        h, level = f.span()
        psi = f.rows.map(f.map.raw, **self._hints)

        def at(columns, lam):
            seen = self.seen(lam, columns)
            leaving = None if f.indices is None else self._leaving(seen).apart(groups)

            def group(rows, mask):
                weights = f.weights.block(None if f.weights.values is None else f.weights.values[rows], rows.shape[0])
                u = seen(psi[rows])
                scaled, centred = labels.scaled[rows][:, columns], (labels.Y - labels.mean)[rows][:, columns]
                beyond = None if f.weights.values is None else u
                some = Group(rows, mask, weights.scale(u), scaled, centred, h[rows], level[rows], weights, beyond)
                return some.left_out(seen.hat, leaving, f.n)

            return group

        return partial(each_group, at, groups.inside, mask, psi.shape[1], self.labels.Y.shape[1])

    def pair_system(self):
        """From rows as they are seen at λ."""
        f, psi = self.factor, self.factor.rows.map(self.factor.map.raw, **self._hints)
        h, constant = (f.weights.direction if f.intercept else None), f.constant(f.weights.array)

        def at(lam, columns):
            seen = self.seen(lam, columns)
            leaving = None if f.indices is None else self._leaving(seen)
            U = f.weights.scale(seen(psi))
            return seen.hat.pair_system(U, self.labels.scaled[:, columns], f.weights, constant, h, leaving)

        return at
