"""The coefficients of every fit without one row, or one fold, without refitting: intervals need the
predictions of each of these fits at new rows.

A fit without row i equals the fit with label i replaced by its held-out prediction yᵢ − eᵢ, and
coefficients are linear in the labels, coef = M y. So coef₋ᵢ = coef − Mᵢeᵢ, and f₋ᵢ(x) = f(x) −
wᵢ(x)eᵢ with w(x) = design·M; for a fold eᵢ and Mᵢ are summed over its rows. Fixed effects are
further coefficients, and their columns further columns of the design.

Where a landmark k leaves with its row, βₖ = 0 moves the others along column k of N, the covariance
of coefficients at unit scale:

    coef₋ᵢ = (coef − Mᵢeᵢ) − Nₖ(coef − Mᵢeᵢ)ₖ/Nₖₖ,

and for a fold B the same with a sum over its rows and N_BB in place of Nₖₖ. In units where a label
of weight v has variance λ/v, label i given all others has variance 1/Pᵢᵢ = λ/(vᵢRᵢᵢ), and without
row i the variance of f at x is larger by wᵢ(x)²/Pᵢᵢ.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.leave_out import orthonormal, slots
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import Labels
from jaxrls.core.support import pytree
from jaxrls.uncertainty.spread import spread

# the map from labels to coefficients
# --------------------------------------------------------------------------------------------------


@pytree
class HeldLandmarks:
    """Landmarks that leave with their row, of which there may be none: N = directions·
    directions[:m]ᵀ, with the m coefficients of landmarks first.
    """

    indices: Int[Array, "*k m"]  # their rows
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
    """M and Pᵢᵢ at one λ."""

    steps: Float[Array, "c n"]
    information: Float[Array, " n"]
    landmarks: HeldLandmarks

    def without_rows(self, weights, lam, coef, e) -> "WithoutRows":
        """The fits without each row, from the coefficients of all rows and the held-out residuals
        e.
        """
        landmarks, rows = self.landmarks, self.landmarks.indices
        moved = self.steps[jnp.arange(len(rows)), rows] / landmarks.lengths  # of βₖ by its label
        steps = self.steps.at[:, rows].add(-landmarks.unit * moved)
        information = self.information.at[rows].add(moved**2)
        information = jnp.where(weights.used, information, 1)
        gaps, e = counted_residuals(weights, e)
        return WithoutRows(coef, gaps, e, steps, information, lam, landmarks)

    def without_folds(self, weights, folds, coef, e) -> "WithoutFolds":
        """The fits without each fold, from the same."""
        gaps, e = counted_residuals(weights, e)
        steps = jax.lax.map(lambda e: folds.sums((self.steps * e).T), e.T)
        if len(self.landmarks.indices):
            steps = steps_without_landmarks(self.landmarks, folds, steps, coef)
        return WithoutFolds(coef, gaps, steps, folds.numbers)


def smoother(factor, lam: Float[Array, ""]) -> Smoother:
    """The linear map from labels to coefficients and fixed effects at one λ: column i is the fit to
    a label of 1 for row i and 0 for all others.
    """
    weights, fixed, lams = factor.weights, factor.fixed, lam.reshape(1, 1)
    unlabelled = factor.solve_labels(Labels.none(weights, fixed))
    R = factor.sweep(unlabelled, lams, lambda r, R, v: R, stack=True)[:, 0, 0]
    eye = jnp.eye(factor.n, dtype=factor.dtype)
    solution = factor.solve_labels(Labels.columns(eye, weights, fixed, False))
    steps = jnp.concatenate([part[0] for part in factor.coefficients(solution, lams)])
    indices, directions = jnp.zeros(0, int), steps[:, :0]
    if factor.indices is not None:
        posterior = spread(factor, lam)
        indices, directions = factor.indices, jnp.concatenate([posterior.half, -posterior.middle])
    return Smoother(steps, weights.array * R / lam, HeldLandmarks(indices, directions))


def counted_residuals(weights, e):
    """|e| of held-out residuals, infinite for rows of weight 0, and e, 0 for these."""
    used = weights.used[:, None]
    return jnp.where(used, jnp.abs(e), jnp.inf), jnp.where(used, e, 0)


def steps_without_landmarks(
    landmarks: HeldLandmarks, folds, steps: Float[Array, "t k c"], coef: Float[Array, "c t"]
) -> Float[Array, "t k c"]:
    """Steps to the fits without each fold, with the coefficients of the fold's own landmarks at 0.

    With Q an orthonormal basis of the rows of D_B, D_B = AQ and N_·B N_BB⁻¹ = D Qᵀ A⁻¹.
    """
    D, m = landmarks.directions, len(landmarks.indices)
    numbers = slots(landmarks.indices, folds.rows)

    def of_fold(fold):
        rows, mask, steps = fold
        slot = jnp.where(mask > 0, numbers[rows], m)
        D_B = D[:m].at[slot].get(mode="fill", fill_value=0)
        beta = (coef - steps.T)[:m].at[slot].get(mode="fill", fill_value=0)
        Q = orthonormal(D_B)
        A = matmul(D_B, Q.T) + jnp.diag(jnp.where(slot < m, 0, 1))
        return steps + matmul(matmul(D, Q.T), jnp.linalg.solve(A, beta)).T

    by_fold = folds.inside, folds.inside_mask, jnp.moveaxis(steps, 1, 0)
    return jnp.moveaxis(jax.lax.map(of_fold, by_fold), 0, 1)


# the fits
# --------------------------------------------------------------------------------------------------


@pytree
class Without(ABC):
    """Every fit without one row, or its fold: predictions at new rows, from their design.

    `gaps` are |e|, infinite for rows of weight 0, which are not counted.
    """

    coef: Float[Array, "*k c t"]
    gaps: Float[Array, "*k n t"]

    @abstractmethod
    def for_targets(self, design: Float[Array, "b c"], use):
        """`use(f₋ᵢ(x) (b, n), gaps (n,))` of every target, results stacked along the last axis."""

    def over_targets(self, fn, design, *columns):
        """`fn(f(x) (b, 1), gaps (n,), …)` of one target after another, with a row of every further
        array, results stacked along the last axis.
        """
        f = matmul(design, self.coef).T[..., None]
        results = jax.lax.map(lambda target: fn(*target), (f, self.gaps.T, *columns))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), results)

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

    residuals: Float[Array, "*k n t"]
    steps: Float[Array, "*k c n"]
    information: Float[Array, "*k n"]
    lam: Float[Array, "*k"]
    landmarks: HeldLandmarks

    def for_targets(self, design, use):
        """f(x) − w(x)e, less what coefficients of landmarks that become 0 move."""
        w, landmarks = matmul(design, self.steps), self.landmarks
        along = matmul(design, landmarks.unit)
        beta = self.coef[: len(landmarks.indices)] / landmarks.lengths[:, None]

        def without(f, gaps, e, beta):
            return use((f - w * e).at[:, landmarks.indices].add(-along * beta), gaps)

        return self.over_targets(without, design, self.residuals.T, beta.T)

    def ratios(self, design, variance):
        """√(Pᵢᵢ (var f(x) + λ) + wᵢ(x)²)."""
        w, landmarks = matmul(design, self.steps), self.landmarks
        known = jnp.broadcast_to(variance[:, None] + self.lam, w.shape)
        known = known.at[:, landmarks.indices].add(-(matmul(design, landmarks.unit) ** 2))
        return jnp.sqrt(self.information * known + w**2)

    def deviations(self):
        """1/√Pᵢᵢ."""
        return jnp.where(jnp.isinf(self.gaps[:, 0]), jnp.inf, 1 / jnp.sqrt(self.information))


@pytree
class WithoutFolds(Without):
    """The fits without each of k folds, and the fold of each row."""

    steps: Float[Array, "*k t g c"]
    fold: Int[Array, "*k n"]

    def for_targets(self, design, use):
        """f(x) − w(x)e, summed over the fold."""

        def without(f, gaps, steps):
            return use((f - matmul(design, steps.T))[:, self.fold], gaps)

        return self.over_targets(without, design, self.steps)
