"""λ without a spectrum: a Cholesky factor of K̃ + λI for every λ, differentiable in everything.

R = λP̃ with P̃ the inverse from which the fixed effects are projected out. Leave-one-out, GCV, k-fold,
hold-out and the evidence have exact derivatives, to any order, in kernel parameters, λ, X, Y and
weights, wherever eigenvalues repeat or vanish.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import AtLam, OneByOne, Report
from jaxrls.factors.expansion import Expansion
from jaxrls.factors.spread import matrix_spread
from jaxrls.leave_out.view import Dense
from jaxrls.linalg.decompositions import rounding
from jaxrls.linalg.inverses import inverse, solve_diag, triangular_inverse
from jaxrls.linalg.products import matmul, power_of_two
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.problem.weights import Weights
from jaxrls.support.pytrees import pytree


@pytree
class CholeskyGram(OneByOne):
    """K̃ + λI = LLᵀ: the dual route at one λ after another. About n³ flops each, and 1.9n³ more for
    a gradient.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Cholesky())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    K: Float[Array, "n n"]
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    lift: Float[Array, " n"] | None = None  # the expansion's kernel is K + 1·lift
    training: Any = None

    @property
    def report(self):
        """The floor by the diagonal: a Cholesky factor is rounded entry by entry."""
        largest = jnp.max(jnp.diagonal(self.weights.scale_both(jax.lax.stop_gradient(self.K))))
        return Report("cholesky", 6 * rounding(self.n, largest[None]), jnp.zeros((), self.dtype))

    @property
    def H(self) -> Float[Array, "n q"]:
        """√v B = H T."""
        return self.weights.scale(self.fixed.basis(self.fixed.rows, self.n))

    def trace(self):
        """Σ vᵢKᵢᵢ, less the share of fixed effects."""
        H, scale = self.H, self.weights.scale
        whole = jnp.sum(self.weights.array * jnp.diagonal(self.K))
        return whole - jnp.sum(H * scale(matmul(self.K, scale(H))))

    def project(self, labels):
        """√v (y − mean): the work begins with λ."""
        return labels.scaled

    def at(self, solution, lam) -> "Solved":
        """c̃ = G⁻¹ỹ − US⁻¹Uᵀỹ with U = G⁻¹H and S = HᵀU, likewise diagonal and log determinant."""
        scaled, H = solution.state, self.H
        t, unit, dimensions = scaled.shape[1], power_of_two(lam), self.n - self.fixed.rank
        zeros = dimensions - self.residual_dimensions()
        removed = zeros * jnp.log(lam) - dimensions * jnp.log(unit)
        X, diagonal, logdet, steps = self.solve_diag(lam, jnp.concatenate([scaled, H], axis=1))
        dual, step = X[:, :t], jnp.zeros((0, t), scaled.dtype)
        if H.shape[1]:
            half, root = _whitened(X[:, t:], H)
            share = matmul(half.T, scaled)
            dual, diagonal = dual - matmul(half, share), diagonal - jnp.sum(half * half, axis=1)
            step = matmul(root.T, share)
            logdet = logdet - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        dof = lam / unit * jnp.sum(diagonal) - zeros
        return Solved(dual, diagonal, lam / unit, unit, logdet - removed, step, dof, steps)

    def solve_diag(self, lam, B):
        """G⁻¹B, diag G⁻¹ and log |G| in units near λ; and how it came there, where that takes
        steps.
        """
        return (*solve_diag(*self._system(lam), B), jnp.zeros(0, B.dtype))

    def inverse(self, G):
        """G⁻¹."""
        return inverse(G)

    def _system(self, lam):
        """K̃ and λ, in units near λ."""
        unit = power_of_two(lam)
        return self.weights.scale_both(self.K) / unit, lam / unit

    def found(self, at, one):
        """c = √v c̃, and β of the labels less f."""
        coef = self.weights.scale(at.dual / at.unit)
        if not self.fixed.count:
            return coef, at.step
        root = self.weights.root
        back = self.fixed.solve(self.fixed.sums(self.fixed.rows, root, matmul(self.H, at.step)))
        beta = one.labels.start + back
        if self.lift is not None:
            beta = beta - self.fixed.one[:, None] * matmul(self.lift, coef)  # type: ignore[index]
        return coef, beta

    def at_lam(self, lam, one):
        """From c̃, diag P̃ and log |G|."""
        at = self.at(one, lam)
        (coef, beta), (r, R) = self.found(at, one), at.residuals
        fit, norm = jnp.sum(one.state * at.dual, axis=0) / at.unit, jnp.sum(r * r, axis=0)
        return AtLam(coef, beta, r, R, norm, fit, at.logdet[None], at.dof[None])

    def view(self, solution, lam):
        """λP̃, and for queries the rows of what makes f of √v y."""
        at, weights, H = self.at(solution, lam), self.weights, self.H
        P = self.projected_inverse(lam)
        R, (residuals, diagonal) = at.lam * P, at.residuals
        diagonal = diagonal[:, 0]
        if weights.values is not None:
            used, unit = weights.used, weights.root_or_one
            A = matmul(self.K * weights.root, P / at.unit)
            level = self.fixed.basis(self.fixed.rows, self.n)
            smoother = A + matmul(level, H.T - matmul(H.T, weights.scale(A)))
            unseen = self.unseen(solution, lam.reshape(1, 1))[0]
            R = jnp.where(used[:, None], R, -smoother)
            residuals, diagonal = (
                jnp.where(used[:, None], residuals, unseen),
                jnp.where(used, diagonal, 1),
            )
            H = jnp.where(used[:, None], H, level * unit[:, None])
        return Dense(residuals, diagonal, H, R)

    def spread(self, lam):
        """By one more Cholesky factor."""
        return matrix_spread(self, lam)

    def projected_inverse(self, lam) -> Float[Array, "n n"]:
        """P̃ in units near λ."""
        K, shift = self._system(lam)
        P, H = self.inverse(K + shift * jnp.eye(self.n, dtype=K.dtype)), self.H
        if not H.shape[1]:
            return P
        half, _ = _whitened(matmul(P, H), H)
        return P - matmul(half, half.T)


@pytree
class Solved:
    """(G/unit)⁻¹ applied to the labels at one λ, the fixed effects projected out.

    The unit is a power of two near λ: squares of G⁻¹, which derivatives hold, would leave the range
    of float32 for kernels of small numbers.
    """

    dual: Float[Array, "n t"]  # c̃ · unit
    diagonal: Float[Array, " n"]  # of P̃ · unit
    lam: Float[Array, ""]  # λ/unit
    unit: Float[Array, ""]
    logdet: Float[Array, ""]
    step: Float[Array, "q t"]  # from the labels' mean to β, in the coordinates of H
    dof: Float[Array, ""]
    distances: Float[Array, " steps"]

    @property
    def residuals(self) -> tuple[Any, Any]:
        """r and the diagonal of R."""
        return self.lam * self.dual, (self.lam * self.diagonal)[:, None]


def _whitened(U: Float[Array, "n q"], H: Float[Array, "n q"]):
    """UL⁻ᵀ and L⁻¹, LLᵀ = HᵀU, so that U(HᵀU)⁻¹Uᵀ is a product with its transpose. A column of H
    that is 0, as of a level without weight, stays out.
    """
    S = matmul(H.T, U)
    if len(S) == 1:
        root = 1 / jnp.sqrt(S)
    else:
        empty = (jnp.sum(H * H, axis=0) == 0).astype(S.dtype)
        root = triangular_inverse(jnp.linalg.cholesky(S + jnp.diag(empty)))
    return matmul(U, root.T), root
