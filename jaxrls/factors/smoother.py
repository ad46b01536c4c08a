"""A fit as sums over labels, and so every fit to all rows but one, or but a group: nothing is refitted.

At one λ coefficients and intercept are linear in the labels, coef = M y and b = m·y, so that f(x) = w(x)·y with w(x) = design(x) M + m, the smoother's row.
A row left out is one whose label is what the rest says of it, yᵢ − eᵢ. On landmarks that leave with their row, βₖ = 0 moves the other coefficients along
Nₖ, N = λ(K_RT V C K_TR + λK_RR)⁻¹ their covariance:

    f₋ᵢ(x) = f(x) − wᵢ(x) eᵢ,        coef₋ᵢ = (coef − Mᵢeᵢ) − Nₖ(coef − Mᵢeᵢ)ₖ/Nₖₖ,

and of a group B the same with Σ over its rows, and N_BB in place of Nₖₖ. In units where a label of weight v has variance λ/v, and label i, as the others
tell it, 1/Pᵢᵢ = λ/(vᵢ(1 − hᵢ)), the variance of f at x goes up by wᵢ(x)²/Pᵢᵢ with row i left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.groups import Folds
from jaxrls.factors.hat import SpectralHat
from jaxrls.factors.planes import plane_root, told_apart
from jaxrls.factors.weights import Weights
from jaxrls.linalg.products import matmul
from jaxrls.support.pytrees import pytree


@pytree
class Planes:
    """Landmarks that leave with their row: design H of the features in which λ(ΦᵀΦ + λI)⁻¹ is I, whose rows are the planes too, and their middle."""

    indices: Int[Array, " m"]
    directions: Float[Array, "m r"]
    middle: Float[Array, " r"]

    @property
    def covariance(self) -> Float[Array, "m m"]:
        """N."""
        return matmul(self.directions, self.directions.T)

    @property
    def offsets(self) -> Float[Array, " m"]:
        """What an intercept adds to N."""
        return -matmul(self.directions, self.middle)

    def left(self, groups: Folds, steps: Float[Array, "t g m"], offsets: Float[Array, "t g"], coef: Float[Array, "m t"]):
        """Steps and offsets to the fits without each group, with the coefficients of its own landmarks brought to 0."""
        group, H = groups.numbers[self.indices], self.directions
        together, left = group[:, None] == group, coef - steps[:, group, jnp.arange(len(coef))].T
        E, left = told_apart(together, H, left)
        root = plane_root(jnp.where(together, matmul(E, E.T), 0), jnp.ones_like(self.offsets))
        left = jax.scipy.linalg.cho_solve((root, True), left)

        def of_target(args):
            steps, offsets, left = args
            by = jax.ops.segment_sum(left[:, None] * E, group, len(steps))
            return steps + matmul(by, H.T), offsets - matmul(by, self.middle)

        return jax.lax.map(of_target, (steps, offsets, left.T))


@pytree
class Smoother:
    """M (q, n), m (n,) and Pᵢᵢ (n,) at one λ."""

    steps: Float[Array, "q n"]
    offsets: Float[Array, " n"]
    information: Float[Array, " n"]
    planes: Planes | None = None

    def without_rows(self, weights: Weights, lam, coef: Float[Array, "q t"], intercept, e: Float[Array, "n t"]) -> "WithoutRows":
        """The fits without each row, from the coefficients of all and the residuals left out; rows that bring a landmark first."""
        own, used, order, planes = self, weights.used, None, None
        if self.planes is not None:
            N, along = self.planes.covariance, self.planes.offsets
            own, order = self._landmarks_first(N, along, weights.n)
            used, e = used[order], e[order]
            planes = LeavingRows(N, along, jnp.diagonal(N), coef / jnp.diagonal(N)[:, None])
        e = jnp.where(used[:, None], e, 0)
        gaps = jnp.where(used[:, None], jnp.abs(e), jnp.inf)
        information = jnp.where(used, own.information, 1)
        return WithoutRows(coef, intercept, gaps, own.steps, own.offsets, e, information, lam, planes, order)

    def _landmarks_first(self, N, along, n: int) -> "tuple[Smoother, Array]":
        """With the rows that bring a landmark first, each as the fit without that landmark has it, and the order of rows."""
        R, m = self.planes.indices, len(N)  # type: ignore[union-attr]
        others = jnp.argsort(jnp.zeros(n, bool).at[R].set(True), stable=True)[: n - m]
        order = jnp.concatenate([R, others.astype(R.dtype)])
        moved = self.steps[jnp.arange(m), R] / jnp.diagonal(N)  # of βₖ by its own label
        steps = self.steps.at[:, R].add(-N * moved)[:, order]
        offsets = self.offsets.at[R].add(-along * moved)[order]
        information = self.information.at[R].add(moved**2 * jnp.diagonal(N))[order]
        return Smoother(steps, offsets, information), order

    def without_groups(
        self, weights: Weights, groups: Folds, coef: Float[Array, "q t"], intercept, e: Float[Array, "n t"]
    ) -> "WithoutGroups":
        """The fits without each group."""
        count, fold = len(groups.inside), groups.numbers
        e = jnp.where(weights.used[:, None], e, 0)

        def of_target(e):
            return tuple(jax.ops.segment_sum((part * e).T, fold, count) for part in (self.steps, self.offsets))

        steps, offsets = jax.lax.map(of_target, e.T)
        if self.planes is not None:
            steps, offsets = self.planes.left(groups, steps, offsets, coef)
        gaps = jnp.where(weights.used[:, None], jnp.abs(e), jnp.inf)
        return WithoutGroups(coef, intercept, gaps, steps, offsets, fold)


class Without(ABC):
    """Every fit that leaves a row, or its group, out: what it predicts at new rows, from the design of these.

    `gaps` are |e|, infinite for rows of weight 0, which count for none.
    """

    method: ClassVar[str]
    coef: Float[Array, "*k q t"]
    intercept: Float[Array, "*k t"]
    gaps: Float[Array, "*k n t"]

    @abstractmethod
    def each(self, design: Float[Array, "b q"], fn: Callable) -> Any:
        """`fn(f₋ᵢ(x) (b, n), gaps (n,))` for every target, results stacked at the end."""

    @abstractmethod
    def in_units(self, unit) -> "Without":
        """Of labels multiplied by a unit."""

    def ratios(self, design: Float[Array, "b q"], variance: Float[Array, " b"]) -> Float[Array, "b n"]:
        """σ₋ᵢ(x)/σᵢ of a new label and of label i, each as the fit without row i tells it, from the variance of f by all rows."""
        raise ValueError("studentised=True is for rows left out one by one, and this fit left groups out: fit without groups=")

    def deviations(self) -> Float[Array, " n"]:
        """σᵢ of every label, as the others tell it, in the order of the rows; infinite for one of weight 0."""
        raise ValueError("loo_predictive is for rows left out one by one, and this fit left groups out: fit without groups=")

    def whole(self, design) -> Float[Array, "b t"]:
        """f(x)."""
        return matmul(design, self.coef) + self.intercept


@pytree
class LeavingRows:
    """What landmarks that leave add, for the first rows: f₋ᵢ(x) is less by (design Nₖ + offset) βₖ/Nₖₖ."""

    steps: Float[Array, "*k m m"]
    offsets: Float[Array, "*k m"]
    own: Float[Array, "*k m"]
    left: Float[Array, "*k m t"]


@pytree
class WithoutRows(Without):
    """The fits without each row: w(x) (b, n), of a fit without its landmark where that leaves, and Pᵢᵢ of these."""

    method = "jackknife+"
    coef: Float[Array, "*k q t"]
    intercept: Float[Array, "*k t"]
    gaps: Float[Array, "*k n t"]
    steps: Float[Array, "*k q n"]
    offsets: Float[Array, "*k n"]
    residuals: Float[Array, "*k n t"]
    information: Float[Array, "*k n"]
    lam: Float[Array, "*k"]
    planes: LeavingRows | None = None
    order: Int[Array, "*k n"] | None = None

    def smoother(self, design) -> tuple[Float[Array, "b n"], Float[Array, "b m"] | None]:
        """w(x), and what is multiplied by βₖ/Nₖₖ."""
        along = None if self.planes is None else matmul(design, self.planes.steps) + self.planes.offsets
        return matmul(design, self.steps) + self.offsets, along

    def each(self, design, fn):
        w, along = self.smoother(design)

        def of_target(args):
            f, gaps, e, left = args
            found = f[:, None] - w * e
            return fn(found if along is None else found - _beside(along * left, w), gaps)

        left = None if self.planes is None else self.planes.left.T
        out = jax.lax.map(of_target, (self.whole(design).T, self.gaps.T, self.residuals.T, left))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), out)

    def ratios(self, design, variance):
        w, along = self.smoother(design)
        known = variance[:, None] + self.lam
        if along is not None:
            known = known - _beside(along**2 / self.planes.own, w)  # type: ignore[union-attr]
        return jnp.sqrt(self.information * known + w**2)

    def deviations(self):
        own = jnp.where(jnp.isinf(self.gaps[:, 0]), jnp.inf, 1 / jnp.sqrt(self.information))
        return own if self.order is None else jnp.zeros_like(own).at[self.order].set(own)

    def in_units(self, unit):
        planes = None if self.planes is None else replace(self.planes, left=self.planes.left * unit)
        own = {name: getattr(self, name) * unit for name in ("coef", "intercept", "gaps", "residuals")}
        return replace(self, planes=planes, **own)


@pytree
class WithoutGroups(Without):
    """The fits without each of g groups, and which group a row is in."""

    method = "cv+"
    coef: Float[Array, "*k q t"]
    intercept: Float[Array, "*k t"]
    gaps: Float[Array, "*k n t"]
    steps: Float[Array, "*k t g q"]
    offsets: Float[Array, "*k t g"]
    fold: Int[Array, "*k n"]

    def each(self, design, fn):
        def of_target(args):
            f, gaps, steps, offsets = args
            return fn((f[:, None] - matmul(design, steps.T) - offsets)[:, self.fold], gaps)

        out = jax.lax.map(of_target, (self.whole(design).T, self.gaps.T, self.steps, self.offsets))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), out)

    def in_units(self, unit):
        return replace(self, **{name: getattr(self, name) * unit for name in ("coef", "intercept", "gaps", "steps", "offsets")})


def _beside(first: Float[Array, "b m"], w: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """With columns of 0 for the rows that bring no landmark."""
    return jnp.pad(first, ((0, 0), (0, w.shape[1] - first.shape[1])))


def by_unit_labels(factor: Any, lam: Float[Array, ""]) -> Smoother:
    """That of all of K: the fits to labels of 1 for one row and 0 for all others, of which M is P̃."""
    found = factor.solve(jnp.eye(factor.n, dtype=factor.dtype)).coefficients(lam[None])
    return Smoother(found.coef[0], found.intercept[0], jnp.diagonal(found.coef[0]))


def spectral_smoother(f: Any, lam: Float[Array, ""]) -> Smoother:
    """That of a `Spectrum`."""
    U, v, lost = f.left_vectors(), f.weights.array, lam / (f.s + lam)
    half, known = f.weights.scale(U), 1 / (f.s + lam)
    constant = f.constant(v)
    basis = (half if f.basis is None else f.basis) * (known if f.solved is None else known * f.solved)
    hat = SpectralHat.of(f, jnp.zeros((len(lost), 0), f.dtype), lam.reshape(1, 1), lost[:, None, None])
    information = v * hat.remaining(U, constant)[:, 0, 0] / lam
    shift = f.shift * (known if f.solved is None else known * f.solved)
    planes = None
    if f.leaving is not None:
        W, middle = f.basis / jnp.sqrt(f.s), f.shift / jnp.sqrt(f.s)
        planes = Planes(f.leaving.indices, W * jnp.sqrt(lost), middle * jnp.sqrt(lost))
    return Smoother(matmul(basis, half.T), constant - matmul(half, shift), information, planes)
