"""λ without a spectrum: Cholesky factors, made anew for every λ, that can be differentiated in everything.

The criteria see them as they see a `Spectrum`, so that LOO, GCV, k-fold, hold-out and the evidence all have exact derivatives, to any order, in kernel
parameters, λ, X, Y and weights, wherever eigenvalues repeat or vanish.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor, Report, Solution, as_columns
from jaxrls.factors.expansion import Expansion
from jaxrls.factors.groups import groups_together, over_groups
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.pairs import Entries, PairSystem
from jaxrls.factors.smoother import by_unit_labels
from jaxrls.factors.spread import matrix_spread
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.decompositions import rounding
from jaxrls.linalg.inverses import inverse, solve_diag, triangular_inverse
from jaxrls.linalg.products import matmul, power_of_two
from jaxrls.support.pytrees import pytree, static


@pytree
class CholeskyGram(Factor):
    """K̃ + λI = LLᵀ: the dual route at one λ after another. About n³ flops each, and 1.9n³ more for a gradient.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), route="cholesky")
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    K: Float[Array, "n n"]
    weights: Weights
    expansion: Expansion
    intercept: bool = static()
    lift: Float[Array, " n"] | None = None  # the expansion's kernel is K + 1·lift

    @property
    def report(self):
        """The precision floor by the diagonal: a Cholesky factor is rounded entry by entry, not relative to s_max."""
        largest = jnp.max(jnp.diagonal(self.weights.scale_both(jax.lax.stop_gradient(self.K))))
        return Report("cholesky", 6 * rounding(self.n, largest[None]), jnp.zeros((), self.dtype))

    @property
    def route(self):
        """How it was made."""
        return "cholesky"

    def trace(self):
        """Σ vᵢKᵢᵢ, less the share of what has no penalty."""
        K, scale, (H, _) = self.K, self.weights.scale, self.span()
        return jnp.sum(self.weights.array * jnp.diagonal(K)) - jnp.sum(H * scale(matmul(K, scale(H))))

    def spread(self, lam):
        """By one more Cholesky factor."""
        return matrix_spread(self, lam)

    smoother = by_unit_labels

    def solve_labels(self, labels):
        """Nothing yet: the work begins with λ."""
        return GramSolution(self, labels)


@pytree
class Solved:
    """(G/unit)⁻¹ applied to the labels at one λ, (n, t), or at one per target; with G⁻¹H taken out of what has no penalty.

    The unit is a power of two near λ: squares of G⁻¹, which derivatives hold, would leave the range of float32 for kernels of small numbers.
    """

    dual: Float[Array, "n t"]  # c̃ · unit
    diagonal: Float[Array, "n k"]  # of the projected inverse · unit
    unit: Float[Array, " k"]
    logdet: Float[Array, " k"]
    step: Float[Array, "q t"]  # from the labels' mean to the fit of it, in the coordinates of H
    distances: Float[Array, "steps k"]  # how it came there, where that took steps


@pytree
class GramSolution(Solution):
    """A `CholeskyGram` with labels."""

    factor: CholeskyGram
    labels: Labels

    def _system(self, lam):
        """K̃ and λ, in units near λ."""
        f, unit = self.factor, power_of_two(lam)
        return f.weights.scale_both(f.K) / unit, lam / unit

    def _solve_diag(self, lam, B):
        """G⁻¹B, diag G⁻¹ and log |G| in units near λ; and no steps."""
        return (*solve_diag(*self._system(lam), B), jnp.zeros(0, B.dtype))

    def _inverse(self, G):
        return inverse(G)

    def _solve(self, lam, scaled) -> Solved:
        """c̃ = G⁻¹ỹ − US⁻¹Uᵀỹ with U = G⁻¹H and S = HᵀU, likewise the diagonal and the log determinant, at one λ."""
        f, (H, _), t = self.factor, self.factor.span(), scaled.shape[1]
        unit, dimensions = power_of_two(lam), f.n - H.shape[1]
        zeros = dimensions - f.residual_dimensions()
        removed = zeros * jnp.log(lam) - dimensions * jnp.log(unit)
        X, diagonal, logdet, steps = self._solve_diag(lam, jnp.concatenate([scaled, H], axis=1))
        dual, step = X[:, :t], jnp.zeros((0, t), scaled.dtype)
        if H.shape[1]:
            half, root = _whitened(X[:, t:], H)
            share = matmul(half.T, scaled)
            dual, diagonal, step = dual - matmul(half, share), diagonal - jnp.sum(half * half, axis=1), matmul(root.T, share)
            logdet = logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return Solved(dual, diagonal[:, None], unit[None], (logdet - removed)[None], step, steps[:, None])

    def _at(self, lam) -> Solved:
        """At one λ, (1,), or one per target, (t,)."""
        if lam.shape[0] == 1:
            return self._solve(lam[0], self.labels.scaled)
        columns = jax.lax.map(lambda args: self._solve(args[0], args[1][:, None]), (lam, self.labels.scaled.T))
        return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), columns)

    def _each(self, fn, lams):
        """`fn(solved, λ)` at every λ, one after the other."""
        return jax.lax.map(lambda lam: fn(self._at(lam), lam), as_columns(lams))

    def coefficients(self, lams):
        """c = √v c̃, and the intercept."""
        return self._each(self._coefficients, lams)

    def _coefficients(self, at, _):
        coef = self.factor.weights.scale(at.dual / at.unit)
        return self._with_levels(coef, at.step, 0 if self.factor.lift is None else matmul(self.factor.lift, coef))

    def _with_levels(self, coef, step, lifted) -> Any:
        """Coefficients and those that have no penalty."""
        return Coefficients(coef, self.labels.mean + jnp.sum(step, axis=0) / jnp.sqrt(self.factor.weights.total) - lifted)

    def residual_norm(self, lams):
        """‖λ c̃‖²."""
        return self._each(lambda at, lam: jnp.sum((lam / at.unit * at.dual) ** 2, axis=0), lams)

    def data_fit(self, lams):
        """ỹᵀ c̃."""
        return self._each(lambda at, _: jnp.sum(self.labels.scaled * at.dual, axis=0) / at.unit, lams)

    def logdet(self, lams):
        """log |G|."""
        return self._each(lambda at, _: at.logdet, lams)

    def residual_dof(self, lams):
        """λ tr P."""
        return self._each(self._residual_dof, lams)

    def _residual_dof(self, at, lam):
        f = self.factor
        zeros = (f.n - f.span()[0].shape[1]) - f.residual_dimensions()
        return lam / at.unit * jnp.sum(at.diagonal, axis=0) - zeros

    def _left_out(self, at):
        return self.factor.weights.unscale(at.dual / at.diagonal)

    def rows_left_out(self, fn, lams):
        """e = c̃/(p√v) and λp."""
        labels, v = self.labels.Y, self.factor.weights.array
        return self._each(lambda at, lam: fn(self._left_out(at), lam / at.unit * at.diagonal, labels, v), lams)

    def residuals_left_out(self, lams):
        """The same for every row, those of weight 0 included."""
        return self._each(self._residuals, lams)

    def _residuals(self, at, _):
        e = self._left_out(at)
        return e if self.factor.weights.values is None else jnp.where(self.factor.weights.used[:, None], e, self._unseen(at))

    def _unseen(self, at):
        """y − f of every row."""
        f = self.factor
        return self.labels.Y - matmul(f.K, f.weights.scale(at.dual / at.unit)) - self.labels.mean - matmul(f.span()[1], at.step)

    def group_residuals(self, groups):
        """e_B = [P_BB]⁻¹ c_B, from the projected inverse itself."""
        f, mask = self.factor, groups.inside_mask.astype(self.factor.dtype)

        def at_one(lam, columns):
            labels = self.labels.scaled[:, columns]
            at, P = self._solve(lam, labels), self._projected_inverse(lam)
            smoother = None if f.weights.values is None else self._smoother(P / at.unit)
            fitted = matmul(f.K, f.weights.scale(at.dual / at.unit)) + matmul(f.span()[1], at.step)
            unseen = self.labels.Y[:, columns] - fitted - self.labels.mean[..., columns]

            def group(rows, mask):
                block = P[rows][:, rows] * mask[:, None] * mask[None, :] + jnp.diag(1 - mask)
                root = jnp.linalg.cholesky(block)
                scaled = jax.scipy.linalg.cho_solve((root, True), at.dual[rows] * mask[:, None])
                weights = f.weights.block(None if f.weights.values is None else f.weights.values[rows], rows.shape[0])
                e = weights.unscale(scaled)
                if smoother is None:
                    return e
                return jnp.where(weights.used[:, None], e, unseen[rows] + matmul(smoother[rows][:, rows] * mask, scaled))

            most = groups_together(groups.inside.shape[1], groups.inside.shape[1], labels.shape[1])
            return over_groups(group, groups.inside, mask, most)

        def at(lam):
            if lam.shape[0] == 1:
                return at_one(lam[0], slice(None))
            columns = jax.lax.map(lambda j: at_one(lam[j], j[None])[..., 0], jnp.arange(lam.shape[0]))
            return jnp.moveaxis(columns, 0, -1)

        return at

    def pair_system(self):
        """From the projected inverse and c̃, both times λ."""
        weights = self.factor.weights

        def at(lam, columns):
            solved = self._solve(lam, self.labels.scaled[:, columns])
            P, share = self._projected_inverse(lam), lam / solved.unit[0]
            return PairSystem(Entries(share * P), share * solved.diagonal[:, 0], share * solved.dual.T, weights.inverse_root)

        return at

    def _projected_inverse(self, lam):
        """P̃ · unit."""
        K, shift = self._system(lam)
        P = self._inverse(K + shift * jnp.eye(self.factor.n, dtype=K.dtype))
        H, _ = self.factor.span()
        if not H.shape[1]:
            return P
        half, _ = _whitened(matmul(P, H), H)
        return P - matmul(half, half.T)

    def _smoother(self, P):
        """From √v y to f at every row: K√v P and the share of what has no penalty."""
        f, (H, level) = self.factor, self.factor.span()
        A = matmul(f.K * f.weights.root, P)
        return A + matmul(level, H.T - matmul(H.T, f.weights.scale(A)))


def _whitened(U: Float[Array, "n q"], H: Float[Array, "n q"]) -> tuple[Float[Array, "n q"], Float[Array, "q q"]]:
    """UL⁻ᵀ and L⁻¹, LLᵀ = HᵀU, so that U(HᵀU)⁻¹Uᵀ is a product with its transpose."""
    S = matmul(H.T, U)
    root = 1 / jnp.sqrt(S) if len(S) == 1 else triangular_inverse(jnp.linalg.cholesky(S))
    return matmul(U, root.T), root
