"""The dual problem, through K of all rows, by a Cholesky factor for each λ.

The matrix that is factored is G = K̃ + cHHᵀ + λI. Here K̃ = √v K √v is K with weights, and H is an
orthonormal basis of the fixed effects. With Q = I − HHᵀ and any c > 0:

    P̃ = (Q(K̃ + λI)Q)⁺, the inverse of K̃ + λI with the fixed effects projected out
    |QGQ| = |G| |HᵀG⁻¹H|
    R = λP̃

None of these depends on c, nor do their derivatives. With c = 0 digits would be lost: with centred
rows, K is singular along a constant, so that the inverse has a part of size 1/λ there.

Everything is differentiable. Leave-one-out, GCV, k-fold, hold-out and the evidence have exact
derivatives, of any order, in kernel parameters, λ, X, Y and weights. This holds even where
eigenvalues repeat or vanish.

Theory: `docs/theory.md`, "Gradients".
"""

from abc import abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data
from jaxrls.core.factors.expansion import Expansion
from jaxrls.core.factors.factor import OneByOne
from jaxrls.core.factors.floor import ABOVE_ROUNDING, CHOLESKY_ROUNDINGS, Report
from jaxrls.core.factors.lams import PerLam, PerTarget, one_by_one
from jaxrls.core.factors.residuals import Residuals
from jaxrls.core.factors.solution import Solution
from jaxrls.core.leave_out import DenseView
from jaxrls.core.linalg import (
    InverseParts,
    Number,
    Reduction,
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

# How many of the heaviest rows are checked for independence of heavier rows.
HEAVIEST = 64
# The share of itself that an independent row keeps when the heavier rows are projected out.
ALONE = 0.01
# c in G = K̃ + cHHᵀ + λI, as a multiple of the mean of K̃'s diagonal. On centred rows multiples from
# .01 to 1 give the same digits. A heavy row dominates this mean, and more than .1 then rounds more.
ALONG_EFFECTS = 0.03


class DualAtLam(NamedTuple):
    """All results at one λ that follow from the inverse of G.

    They are an `AtLam`, ỹᵀ P̃ ỹ, and results of the rows.
    """

    coef: Float[Array, "n t"]
    beta: Float[Array, "q t"]
    logdet: Float[Array, "1"]
    residual_dof: Float[Array, "1"]  # tr R
    data_fit: Float[Array, " t"]  # ỹᵀ P̃ ỹ
    residuals: Float[Array, "n t"]  # r
    diagonal: Float[Array, "n 1"]  # of R


class DualOneByOne(OneByOne):
    """The base class of factors that solve with all of G = K̃ + λI, for one λ after another.

    G may also contain any multiple of HHᵀ. The fixed effects are projected out as in generalised
    least squares.
    """

    shards: Any = 1  # K is one array, wherever the rows are stored
    lift: Any = None  # (n,), the kernel of the expansion is K + 1·lift; None if it is K

    @abstractmethod
    def solve_at(self, lam: Number, solution: Solution) -> InverseParts:
        """Return G⁻¹B with B = [ỹ, H], diag G⁻¹ and log |G|, as `InverseParts`."""

    def at_lam(self, lam: Number, solution: Solution) -> DualAtLam:
        """Compute all results at one λ from `solve_at`."""
        return self.results(lam, solution, self.solve_at(lam, solution))

    def results(self, lam: Number, solution: Solution, inverse: Any) -> DualAtLam:
        """Compute all results at one λ from `InverseParts`, or from what has its fields.

        With U = G⁻¹H and S = HᵀU = LLᵀ:

            c̃ = P̃ỹ = G⁻¹ỹ − US⁻¹Uᵀỹ
            diag P̃ = diag G⁻¹ − diag US⁻¹Uᵀ
            log |QGQ| = log |G| + log |S|

        The parts of rows of weight 0 are subtracted.
        """
        scaled = solution.labels.scaled
        H = self.H
        t = scaled.shape[1]
        times_labels = inverse.times_B[:, :t]  # G⁻¹ỹ
        times_H = inverse.times_B[:, t:]  # U
        U_white, inverse_L = whitened(times_H, H)  # UL⁻ᵀ and L⁻¹
        labels_along_U = matmul(U_white.T, scaled)
        dual = times_labels - matmul(U_white, labels_along_U)
        diagonal = inverse.diagonal - jnp.sum(U_white * U_white, axis=1)
        unused = self.n - self.weights.count
        coef = self.weights.scale(dual)
        logdet_S = -2 * jnp.sum(jnp.log(diagonal_of(inverse_L)))
        fitted = matmul(H, matmul(inverse_L.T, labels_along_U))  # HS⁻¹Uᵀỹ
        return DualAtLam(
            coef=coef,
            beta=solution.labels.beta + self.effects(fitted, coef),
            logdet=(inverse.logdet + logdet_S - unused * jnp.log(lam))[None],
            residual_dof=(lam * jnp.sum(diagonal) - unused)[None],
            data_fit=jnp.sum(scaled * dual, axis=0),
            residuals=lam * dual,
            diagonal=(lam * diagonal)[:, None],
        )

    def data_fit(self, solution: Solution, lams: PerLam) -> PerTarget:
        """Compute ỹᵀ P̃ ỹ for one λ after another."""
        return self.at_lams(solution, lams, "data_fit")

    def sweep(self, reduction: Reduction, solution: Solution, lams: PerLam, fn: Callable) -> Any:
        """Apply `fn` to the residuals of all rows at once, for one λ after another."""
        results = attrgetter("residuals", "diagonal")
        of_rows = lambda lam, solution: results(self.at_lam(lam, solution))
        labels = self.labels_of_rows(solution)

        def of_lam(lam: Float[Array, " k"]) -> Any:
            r, diagonal = solution.per_target(lam, of_rows)
            return fn(Residuals(r[:, None], diagonal[:, None], self.weights, labels))

        return one_by_one(reduction, of_lam, lams)

    def effects(
        self, fitted: Float[Array, "n t"], coef: Float[Array, "n t"]
    ) -> Float[Array, "q t"]:
        """Return β with √v B β = `fitted`, less the constant that the expansion already
        contains.
        """
        fixed = self.fixed
        beta = fixed.solve(fixed.sums(fixed.values, self.weights.root, fitted))
        if self.lift is None:
            return beta
        return beta - fixed.constant_coef[:, None] * matmul(self.lift, coef)


@pytree
class CholeskyGram(DualOneByOne):
    """The dual route with a Cholesky factor, K̃ + cHHᵀ + λI = LLᵀ, for one λ after another.

    It takes about n³ flops for each λ, and 1.9n³ more for a gradient.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), solver=rls.Cholesky())
    >>> rls.loo(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    name: ClassVar[str] = "cholesky"
    refines: ClassVar[bool] = False  # whether `inverse_root` is more exact than a Cholesky factor
    K: Square
    data: Data
    expansion: Expansion
    lift: Float[Array, " n"] | None = None
    kernel: Any = None
    inverse = staticmethod(inverse)
    solve_diag: ClassVar[Any] = staticmethod(solve_diag)

    @property
    def route(self):
        """How the factor was made, by name, without the product K·H that the report takes."""
        return self.name

    @property
    def report(self):
        """The report, with a floor from the diagonal of K̃, as a Cholesky factor is rounded entry
        by entry.

        It is computed where it is read, because errors at a given λ and their derivatives do not
        need it.
        """
        K = self.weights.scale_both(jax.lax.stop_gradient(self.K))
        largest = jnp.max(diagonal_of(K))
        if self.weights.values is not None:
            largest = jnp.minimum(largest, 3 * _largest_that_costs(K))
        floor = CHOLESKY_ROUNDINGS * rounding(self.weights.count, largest)
        report = Report(self.name, floor, None)
        left = jax.lax.stop_gradient(self.trace())
        return report.with_information(left, ABOVE_ROUNDING * floor, jnp.sum(diagonal_of(K)))

    def trace(self):
        """Return Σ vᵢKᵢᵢ without the part of the fixed effects, tr (I − HHᵀ) K̃.

        If a constant is among the fixed effects, the mean of K is subtracted first. This does not
        change the result, because the constant removes the mean anyway, and it reduces rounding.
        """
        H = self.H
        scale = self.weights.scale
        K = self.K - jnp.mean(self.K) if self.fixed.has_constant else self.K
        whole = jnp.sum(self.weights.array * diagonal_of(K))
        return whole - jnp.sum(H * scale(matmul(K, scale(H))))

    def solve_at(self, lam: Number, solution: Solution) -> Any:
        """Return `InverseParts` by the Cholesky factor."""
        B = jnp.concatenate([solution.labels.scaled, self.H], axis=1)
        return self.solve_diag(self.with_effects(self.K), lam, B)

    def with_effects(self, K: Square) -> Square:
        """Return K̃ + cHHᵀ. With c of the size of K̃, it is not singular along H."""
        H = self.H
        mean = jnp.sum(self.weights.array * diagonal_of(self.K)) / self.weights.count
        c = ALONG_EFFECTS * jax.lax.stop_gradient(mean)
        return self.weights.scale_both(K) + c * matmul(H, H.T)

    def inverse_root(self, G: Square) -> Square:
        """Return B with BGBᵀ = I."""
        return triangular_inverse(jnp.linalg.cholesky(G))

    def view(self, solution: Solution, lam: Number) -> DenseView:
        """Return R = λP̃ and r. Rows of weight 0 are queries, at which something is predicted."""
        results = self.at_lam(lam, solution)
        P = self.projected_inverse(lam)
        view = DenseView(results.residuals, results.diagonal[:, 0], self.H, lam * P)
        return view if self.weights.values is None else self.with_queries(view, P, solution, lam)

    def with_queries(
        self, view: DenseView, P: Square, solution: Solution, lam: Number
    ) -> DenseView:
        """Return the view with rows z of weight 0 as queries.

        A query's row of R is minus the linear map from ỹ to f(z). This map has a part A = K√v P̃ of
        the kernel, and a part of the fixed effects with b = B T⁻¹ at z:

            f = Aỹ + b(Hᵀỹ − Hᵀ√vAỹ)
        """
        weights = self.weights
        used = weights.used
        column = used[:, None]
        basis = self.fixed_basis
        kernel_part = matmul(self.K * weights.root, P)  # A
        effects_part = self.H.T - matmul(self.H.T, weights.scale(kernel_part))
        to_f = kernel_part + matmul(basis, effects_part)
        unseen = self.query_residuals(solution, lam.reshape(1, 1))[:, 0]
        return DenseView(
            residuals=jnp.where(column, view.residuals, unseen),
            diagonal=jnp.where(used, view.diagonal, 1),
            H=basis * weights.root_or_one[:, None],
            matrix=jnp.where(column, view.matrix, -to_f),
        )

    def projected_inverse(self, lam: Number) -> Square:
        """Return P̃."""
        K = self.with_effects(self.K)
        H = self.H
        P = self.inverse(K + lam * jnp.eye(self.n, dtype=K.dtype))
        U_white, _ = whitened(matmul(P, H), H)
        return P - matmul(U_white, U_white.T)


def _largest_that_costs(K: Square) -> Number:
    """Return the largest entry of the diagonal of K̃ that makes lighter rows less exact.

    Rows and columns can be scaled without changing how a Cholesky factor is rounded. So a heavy row
    is harmless if it keeps a share of itself after heavier rows are projected out: it is then as
    exact as if it were light, and it costs the lighter rows nothing. The last of the rows that are
    compared always counts, because lighter rows are not compared.
    """
    count = min(HEAVIEST, len(K))
    d, rows = jax.lax.top_k(diagonal_of(K), count)
    scale = 1 / jnp.sqrt(jnp.where(d > 0, d, 1))
    correlations = K[rows][:, rows] * scale * scale[:, None]
    jitter = jnp.eye(count, dtype=K.dtype) * ALONE / 10
    shares = diagonal_of(jnp.linalg.cholesky(correlations + jitter)) ** 2
    costs = (shares <= ALONE).at[jnp.sum(d > 0) - 1].set(True)
    return jnp.max(jnp.where(costs, d, 0))
