"""The dual problem, through K of all rows, by a Cholesky factor of K̃ + λI for each λ, where K̃ is
K with weights, √v K √v. Differentiable in everything.

R = λP̃, with P̃ the inverse of K̃ + λI with the fixed effects projected out. Leave-one-out, GCV,
k-fold, hold-out and the evidence have exact derivatives, of any order, in kernel parameters, λ, X,
Y and weights, even where eigenvalues repeat or vanish.

What is factored is K̃ + cHHᵀ + λI. K of centred rows is singular along a constant, whose share of
the inverse would be 1/λ, and take the digits of all others. P̃ is (Q(K̃ + λI)Q)⁺ with Q = I − HHᵀ,
so that neither it nor |QGQ| = |G||HᵀG⁻¹H| depends on c, and their derivatives do not.

Theory: `docs/theory.md`, "Gradients".
"""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data
from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.factors.factor import AtLam, OneByOne
from jaxrls.core.factors.floor import ABOVE_ROUNDING, Report
from jaxrls.core.factors.solution import Solution
from jaxrls.core.leave_out import DenseView
from jaxrls.core.linalg import (
    InverseParts,
    Number,
    Square,
    diagonal_of,
    inverse,
    matmul,
    rounding,
    solve_diag,
    triangular_inverse,
    whitened,
)
from jaxrls.core.support import pytree

# Rows that may be left out of the floor, as heavy and independent; and the share of itself that
# such a row keeps when the heavier ones are projected out.
HEAVIEST = 64
ALONE = 0.01
# Of the mean of K̃'s diagonal: what is added along the fixed effects. On centred rows .01 to 1 of
# it give the same digits, and beside a heavy row, which that mean is of, more than .1 rounds more.
ALONG_EFFECTS = 0.03


class DualOneByOne(OneByOne):
    """All of G = K̃ + λI at one λ after another, or of G plus any multiple of HHᵀ; the fixed
    effects are projected out as in generalised least squares.
    """

    shards: Any = 1  # K is whole, wherever the rows lie
    lift: Any = None  # (n,): the expansion's kernel is K + 1·lift

    @abstractmethod
    def solve_at(self, lam: Number, solution: Solution) -> InverseParts:
        """G⁻¹[ỹ, H], diag G⁻¹ and log |G|."""

    def at_lam(self, lam: Number, solution: Solution) -> AtLam:
        """From what is solved for."""
        return self.results(lam, solution, self.solve_at(lam, solution))

    def results(self, lam: Number, solution: Solution, inverse: InverseParts) -> AtLam:
        """c̃ = G⁻¹ỹ − US⁻¹Uᵀỹ with U = G⁻¹H and S = HᵀU = LLᵀ, likewise diag P̃ and log |G|."""
        scaled = solution.labels.scaled
        H = self.H
        t = scaled.shape[1]
        U_white, inverse_L = whitened(inverse.times_B[:, t:], H)  # UL⁻ᵀ and L⁻¹
        of_labels = matmul(U_white.T, scaled)
        dual = inverse.times_B[:, :t] - matmul(U_white, of_labels)
        diagonal = inverse.diagonal - jnp.sum(U_white * U_white, axis=1)
        unused = self.n - self.weights.count
        coef = self.weights.scale(dual)
        logdet_S = -2 * jnp.sum(jnp.log(diagonal_of(inverse_L)))
        fitted = matmul(H, matmul(inverse_L.T, of_labels))  # HS⁻¹Uᵀỹ
        return AtLam(
            coef=coef,
            beta=solution.labels.beta + self.effects(fitted, coef),
            residuals=lam * dual,
            diagonal=(lam * diagonal)[:, None],
            data_fit=jnp.sum(scaled * dual, axis=0),
            logdet=(inverse.logdet + logdet_S - unused * jnp.log(lam))[None],
            residual_dof=(lam * jnp.sum(diagonal) - unused)[None],
        )

    def effects(
        self, fitted: Float[Array, "n t"], coef: Float[Array, "n t"]
    ) -> Float[Array, "q t"]:
        """β of √v B β = `fitted`, less the share of a constant that the expansion has."""
        fixed = self.fixed
        beta = fixed.solve(fixed.sums(fixed.values, self.weights.root, fitted))
        if self.lift is None:
            return beta
        return beta - fixed.constant_coef[:, None] * matmul(self.lift, coef)


@pytree
class CholeskyGram(DualOneByOne):
    """K̃ + λI = LLᵀ: the dual route at one λ after another. It takes about n³ flops each, and 1.9n³
    more for a gradient.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Cholesky())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    name: ClassVar[str] = "cholesky"
    K: Square
    data: Data
    expansion: Expansion
    lift: Float[Array, " n"] | None = None
    training: Any = None
    inverse = staticmethod(inverse)
    solve_diag: ClassVar[Any] = staticmethod(solve_diag)

    @property
    def report(self):
        """With the floor from the diagonal of K̃: a Cholesky factor is rounded entry by entry."""
        K = self.weights.scale_both(jax.lax.stop_gradient(self.K))
        largest = jnp.max(diagonal_of(K))
        if self.weights.values is not None:
            largest = jnp.minimum(largest, 3 * _largest_that_costs(K))
        floor = 6 * rounding(self.weights.count, largest[None])
        report = Report(self.name, floor, jnp.zeros_like(floor))
        left = jax.lax.stop_gradient(self.trace())
        return report.with_information(left, ABOVE_ROUNDING * floor, jnp.sum(diagonal_of(K)))

    def trace(self):
        """Σ vᵢKᵢᵢ, without the share of the fixed effects; about the mean of K, which a constant
        among these takes off, so that less is lost to rounding.
        """
        H = self.H
        scale = self.weights.scale
        K = self.K - jnp.mean(self.K) if self.fixed.has_constant else self.K
        whole = jnp.sum(self.weights.array * diagonal_of(K))
        return whole - jnp.sum(H * scale(matmul(K, scale(H))))

    def solve_at(self, lam: Number, solution: Solution) -> Any:
        """By the Cholesky factor."""
        B = jnp.concatenate([solution.labels.scaled, self.H], axis=1)
        return self.solve_diag(self.with_effects(self.K), lam, B)

    def with_effects(self, K: Square) -> Square:
        """√v K √v + cHHᵀ, with c of the size of K̃, which is then not singular along H."""
        H = self.H
        mean = jnp.sum(self.weights.array * jnp.diagonal(self.K)) / self.weights.count
        c = ALONG_EFFECTS * jax.lax.stop_gradient(mean)
        return self.weights.scale_both(K) + c * matmul(H, H.T)

    def lower(self, G: Square) -> Square | None:
        """L with LLᵀ = G; None where only its inverse is at hand."""
        return jnp.linalg.cholesky(G)

    def inverse_root(self, G: Square) -> Square:
        """B with BGBᵀ = I."""
        return triangular_inverse(jnp.linalg.cholesky(G))

    def view(self, solution: Solution, lam: Number) -> DenseView:
        """R = λP̃; rows of weight 0 are queries, at which something is predicted."""
        results = self.at_lam(lam, solution)
        P = self.projected_inverse(lam)
        view = DenseView(results.residuals, results.diagonal[:, 0], self.H, lam * P)
        return view if self.weights.values is None else self.with_queries(view, P, solution, lam)

    def with_queries(
        self, view: DenseView, P: Square, solution: Solution, lam: Number
    ) -> DenseView:
        """The view with rows z of weight 0 as queries, whose rows of R are minus the linear map
        from ỹ to f: with A = K√v P̃ of the kernel part, f = Aỹ + b(Hᵀỹ − Hᵀ√vAỹ) for b = B T⁻¹ of
        z.
        """
        weights = self.weights
        used = weights.used
        column = used[:, None]
        basis = self.fixed_basis
        of_kernel = matmul(self.K * weights.root, P)
        of_effects = self.H.T - matmul(self.H.T, weights.scale(of_kernel))
        to_f = of_kernel + matmul(basis, of_effects)
        unseen = self.query_residuals(solution, lam.reshape(1, 1))[0]
        return DenseView(
            residuals=jnp.where(column, view.residuals, unseen),
            diagonal=jnp.where(used, view.diagonal, 1),
            H=basis * weights.root_or_one[:, None],
            matrix=jnp.where(column, view.matrix, -to_f),
        )

    def projected_inverse(self, lam: Number) -> Square:
        """P̃."""
        K = self.with_effects(self.K)
        H = self.H
        P = self.inverse(K + lam * jnp.eye(self.n, dtype=K.dtype))
        U_white, _ = whitened(matmul(P, H), H)
        return P - matmul(U_white, U_white.T)


def _largest_that_costs(K: Square) -> Number:
    """The largest entry on the diagonal of K̃, without heavy rows independent of heavier ones.

    Rows and columns can be scaled without a change to how a Cholesky factor is rounded. A row that
    keeps a share of itself when heavier ones are projected out is as exact as if it were light, and
    costs the lighter rows nothing. The last of the heaviest counts, as lighter ones are not asked.
    """
    count = min(HEAVIEST, len(K))
    d, rows = jax.lax.top_k(diagonal_of(K), count)
    scale = 1 / jnp.sqrt(jnp.where(d > 0, d, 1))
    correlations = K[rows][:, rows] * scale * scale[:, None]
    jitter = jnp.eye(count, dtype=K.dtype) * ALONE / 10
    shares = diagonal_of(jnp.linalg.cholesky(correlations + jitter)) ** 2
    costs = (shares <= ALONE).at[jnp.sum(d > 0) - 1].set(True)
    return jnp.max(jnp.where(costs, d, 0))
