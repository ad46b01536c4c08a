"""The coefficients of every fit without one row, or one fold, without refitting: intervals need the
predictions of each of these fits at new rows.

A fit without row i equals the fit with label i replaced by its held-out prediction yᵢ − eᵢ, and
coefficients are linear in the labels, coef = M y. Where a landmark leaves with its row, βₖ = 0
moves the others along Nₖ, N the covariance of coefficients at unit scale:

    coef₋ᵢ = (coef − Mᵢeᵢ) − Nₖ(coef − Mᵢeᵢ)ₖ/Nₖₖ,

and for a fold B the same with a sum over its rows and N_BB in place of Nₖₖ. Fixed effects are
further coefficients, and their columns further columns of the design. In units where a label of
weight v has variance λ/v, label i given all others has variance 1/Pᵢᵢ = λ/(vᵢRᵢᵢ), and without row
i the variance of f at x is larger by wᵢ(x)²/Pᵢᵢ, w(x) = design·M."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.leave_out.view import orthonormal, slots
from jaxrls.core.linalg.products import matmul
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.pytrees import pytree


@pytree
class Planes:
    """Landmarks that leave with their row: N = directions·directions[:m]ᵀ, with the m coefficients
    of landmarks first.
    """

    indices: Int[Array, "*k m"]
    directions: Float[Array, "*k c r"]

    @property
    def lengths(self) -> Float[Array, " m"]:
        """√Nₖₖ."""
        return jnp.linalg.norm(self.directions[: len(self.indices)], axis=1)

    @property
    def unit(self) -> Float[Array, "c m"]:
        """Nₖ/√Nₖₖ, a column for each landmark."""
        D = self.directions
        return matmul(D, (D[: len(self.indices)] / self.lengths[:, None]).T)


@pytree
class Smoother:
    """M (c, n) and Pᵢᵢ (n,) at one λ."""

    steps: Float[Array, "c n"]
    information: Float[Array, " n"]
    planes: Planes | None = None

    def without_rows(self, weights: Weights, lam, coef: Float[Array, "c t"], e) -> "WithoutRows":
        """The fits without each row, from the coefficients of all rows and the held-out residuals
        e.
        """
        steps, information, planes = self.steps, self.information, self.planes
        if planes is not None:
            R, m = planes.indices, len(planes.indices)
            moved = steps[jnp.arange(m), R] / planes.lengths  # of βₖ by its own label
            steps = steps.at[:, R].add(-planes.unit * moved)
            information = information.at[R].add(moved**2)
        e, gaps = _gaps(weights, e)
        information = jnp.where(weights.used, information, 1)
        return WithoutRows(coef, gaps, steps, e, information, lam, planes)

    def without_folds(self, weights: Weights, folds: Folds, coef, e) -> "WithoutFolds":
        """The fits without each fold, from the same."""
        e, gaps = _gaps(weights, e)
        steps = jax.lax.map(lambda e: folds.sums((self.steps * e).T), e.T)
        if self.planes is not None:
            steps = _moved(self.planes, folds, steps, coef)
        return WithoutFolds(coef, gaps, steps, folds.numbers)


def _gaps(weights: Weights, e: Float[Array, "n t"]):
    """Held-out residuals, 0 for rows of weight 0, and |e|, infinite for these."""
    used = weights.used[:, None]
    return jnp.where(used, e, 0), jnp.where(used, jnp.abs(e), jnp.inf)


def _moved(planes: Planes, folds: Folds, steps: Float[Array, "t k c"], coef: Float[Array, "c t"]):
    """Steps to the fits without each fold, with the coefficients of the fold's own landmarks at 0.

    With Q an orthonormal basis of the rows of D_B, D_B = AQ and N_·B N_BB⁻¹ = D Qᵀ A⁻¹.
    """
    D, m = planes.directions, len(planes.indices)
    numbers = slots(planes.indices, folds.rows)

    def of_fold(fold):
        rows, mask, steps = fold
        slot = jnp.where(mask > 0, numbers[rows], m)
        own = D[:m].at[slot].get(mode="fill", fill_value=0)
        Q = orthonormal(own)
        left = (coef - steps.T)[:m].at[slot].get(mode="fill", fill_value=0)
        moved = jnp.linalg.solve(matmul(own, Q.T) + jnp.diag(jnp.where(slot < m, 0, 1)), left)
        return steps + matmul(matmul(D, Q.T), moved).T

    each = folds.inside, folds.inside_mask, jnp.moveaxis(steps, 1, 0)
    return jnp.moveaxis(jax.lax.map(of_fold, each), 0, 1)


@pytree
class Without(ABC):
    """Every fit without one row, or its fold: predictions at new rows, from their design.

    `gaps` are |e|, infinite for rows of weight 0, which are not counted.
    """

    coef: Float[Array, "*k c t"]
    gaps: Float[Array, "*k n t"]

    @abstractmethod
    def prepared(self, design: Float[Array, "b c"]) -> tuple[Callable, tuple]:
        """A function that turns f(x) (b, 1) and further arrays of a target into f₋ᵢ(x) (b, n), and
        these arrays for every target.
        """

    def each(self, design: Float[Array, "b c"], fn: Callable) -> Any:
        """`fn(f₋ᵢ(x) (b, n), gaps (n,))` for every target, results stacked along the last axis."""
        without, further = self.prepared(design)

        def of_target(args):
            f, gaps, own = args
            return fn(without(f[:, None], *own), gaps)

        columns = matmul(design, self.coef).T, self.gaps.T, further
        out = jax.lax.map(of_target, columns)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), out)

    def ratios(self, design, variance: Float[Array, " b"]) -> Float[Array, "b n"]:
        """σ₋ᵢ(x)/σᵢ, standard deviations of a new label and of label i, both in the fit without row
        i, from the variance of f in the fit to all rows.
        """
        raise ValueError(
            "studentised=True needs a fit that left out single rows, and this fit left out "
            "groups: fit without groups="
        )

    def deviations(self) -> Float[Array, " n"]:
        """σᵢ of every label given all others; infinite for one of weight 0."""
        raise ValueError(
            "loo_predictive needs a fit that left out single rows, and this fit left out groups: "
            "fit without groups="
        )


@pytree
class WithoutRows(Without):
    """The fits without each row."""

    steps: Float[Array, "*k c n"]
    residuals: Float[Array, "*k n t"]
    information: Float[Array, "*k n"]
    lam: Float[Array, "*k"]
    planes: Planes | None = None

    def prepared(self, design):
        w, planes = matmul(design, self.steps), self.planes
        if planes is None:
            return (lambda f, e: f - w * e), (self.residuals.T,)
        along = matmul(design, planes.unit)
        left = self.coef[: len(planes.indices)] / planes.lengths[:, None]

        def without(f, e, left):
            return (f - w * e).at[:, planes.indices].add(-along * left)

        return without, (self.residuals.T, left.T)

    def ratios(self, design, variance):
        w, planes = matmul(design, self.steps), self.planes
        known = jnp.broadcast_to(variance[:, None] + self.lam, w.shape)
        if planes is not None:
            known = known.at[:, planes.indices].add(-(matmul(design, planes.unit) ** 2))
        return jnp.sqrt(self.information * known + w**2)

    def deviations(self):
        return jnp.where(jnp.isinf(self.gaps[:, 0]), jnp.inf, 1 / jnp.sqrt(self.information))


@pytree
class WithoutFolds(Without):
    """The fits without each of k folds, and the fold of each row."""

    steps: Float[Array, "*k t g c"]
    fold: Int[Array, "*k n"]

    def prepared(self, design):
        return (lambda f, steps: (f - matmul(design, steps.T))[:, self.fold]), (self.steps,)
