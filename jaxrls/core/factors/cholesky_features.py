"""The primal problem, through moments of features, by a Cholesky factor for each λ. Differentiable
in everything.

A row has ψ, which coefficients multiply, and φ = ψ·back, whose weights are penalised; for explicit
features φ = ψ. For weighted Φ, minus its fit by the fixed effects, ΦᵀΦ + λI = AAᵀ and half =
back·A⁻ᵀ. A row has the coordinates u = (ψ − b·fit) half, its part of M in `leave_out.view`, and
labels have q = A⁻¹Φᵀ√v y. Then coefficients are half·q, ŷ = u·q, and the leverage v|u|².

Theory: `docs/theory.md`, "One matrix".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.factors.expansion import Expansion, Features, Primal
from jaxrls.core.factors.factor import AtLam, OneByOne
from jaxrls.core.factors.floor import Report, roundings_of_moments
from jaxrls.core.factors.lams import map_columns, with_lams_inside
from jaxrls.core.factors.other_folds import PrimalForm
from jaxrls.core.factors.solution import Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.leave_out import LowRank
from jaxrls.core.linalg import matmul, rounding, tall_matmul, triangular_inverse
from jaxrls.core.problem import Data, DataBlock, Labels, moments, near_fit
from jaxrls.core.support import pytree, static


@pytree
class CholeskyFeatures(OneByOne):
    """ΦᵀΦ + λI = AAᵀ for each λ, from moments: O(n r²) for those, in row blocks.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Linear(), jnp.arange(6.0).reshape(3, 2), solver=rls.Cholesky())
    >>> factor.solve([0.0, 1.0, 2.0]).coefficients(jnp.array([0.1])).coef.shape
    (1, 2, 1)
    """

    data: Data
    map: Features
    second: Float[Array, "r r"]  # Φᵀ Φ, weighted, less the fit by the fixed effects
    origin: Float[Array, "q r"]  # that fit of φ
    expansion: Expansion
    report: Report
    block_size: int | None = static()

    @property
    def training(self):
        """Kernel and rows."""
        return self.map.kernel, self.data.rows

    @property
    def hints(self) -> dict:
        """How blocks of rows are cut."""
        return {"temporaries": self.second.shape[0], "block_size": self.block_size}

    def trace(self):
        """tr ΦᵀΦ."""
        return jnp.trace(self.second)

    def project(self, labels):
        """Φᵀ√v y, O(n r t)."""

        def of_block(block, y):
            phi = self.map.features(block.x) - self.fixed.fitted(block.b, self.origin)
            return matmul(phi.T, block.weights.scale(y))

        return self.data.sum(of_block, labels.scaled, **self.hints)

    def shrunk(self, lam, state) -> "Shrunk":
        """The `Shrunk` coordinates at one λ."""
        A = jnp.linalg.cholesky(self.second + lam * jnp.eye(len(self.second), dtype=self.dtype))
        root = triangular_inverse(A)
        half = root.T if self.map.back is None else matmul(root, self.map.back.T).T
        return Shrunk(half, matmul(self.origin, root.T), matmul(root, state), root)

    def at_lam(self, lam, solution):
        """From moments: all results but those of single rows, with ‖w‖² of w = A⁻ᵀq in place of the
        fit.
        """
        half, middle, q, root = self.shrunk(lam, solution.state)
        missing = self.residual_dimensions() - len(self.second)
        logdet = missing * jnp.log(lam) - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        return AtLam(
            coef=matmul(half, q),
            beta=solution.labels.start - matmul(middle, q),
            data_fit=jnp.sum(matmul(root.T, q) ** 2, axis=0),
            logdet=logdet[None],
            residual_dof=(missing + lam * jnp.sum(root**2))[None],
        )

    def data_fit(self, solution, lams):
        """(‖√v (y − ŷ)‖² + λ‖w‖²)/λ."""
        return self.residual_norm(solution, lams) / lams + super().data_fit(solution, lams)

    def coordinates(self, psi, b, shrunk: "Shrunk") -> Float[Array, "n r"]:
        """u of a block of rows, from ψ."""
        return tall_matmul(psi, shrunk.half) - self.fixed.fitted(b, shrunk.middle)

    def coordinates_of_block(self, block: DataBlock, shrunk: "Shrunk") -> Float[Array, "n r"]:
        """u of a block of rows."""
        return self.coordinates(self.map.raw(block.x), block.b, shrunk)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """One pass over the rows for all λ: O(n r² L)."""
        shrunk_at_all = map_columns(self.shrunk, lams, solution.state)

        def of_block(block, y, *columns):
            psi, weights = self.map.raw(block.x), block.weights
            h = self.fixed.leverage(block.b, weights.array)

            def fitted(shrunk):
                u = self.coordinates(psi, block.b, shrunk)
                leverage = weights.array * jnp.sum(u * u, axis=1)
                return matmul(u, shrunk.q), (1 - leverage - h)[:, None]

            f, diagonal = with_lams_inside(jax.lax.map(fitted, shrunk_at_all), lams)
            return fn(y[:, None] - weights.scale(f), diagonal, block.v, *columns)

        read = self.data.map if stack else self.data.sum
        return read(of_block, solution.labels.scaled, *columns, **self.hints)

    def primal_form(self):
        """φ minus its fit by the fixed effects; by Cholesky factors for each λ, which have
        derivatives.
        """
        eye = jnp.eye(len(self.second), dtype=self.dtype)

        def solve(second, cross, lams):
            def of_lam(lam, cross):
                A = jnp.linalg.cholesky(second + lam * eye)
                return jax.scipy.linalg.cho_solve((A, True), cross)

            return with_lams_inside(map_columns(of_lam, lams, cross), lams)

        return PrimalForm(self.data, self.map, eye, self.origin, solve)

    def view(self, solution, lam):
        """I − HHᵀ − UUᵀ with U = √v u."""
        shrunk = self.shrunk(lam, solution.state)
        u = self.data.map(lambda block: self.coordinates_of_block(block, shrunk), **self.hints)
        return LowRank.of_rows(u, shrunk.q, solution.labels, self.weights, self.fixed)


class Shrunk(NamedTuple):
    """The linear maps from rows and labels to coordinates u and q at one λ."""

    half: Float[Array, "r r"]  # row k is A⁻¹L⁻¹eₖ of landmark k
    middle: Float[Array, "q r"]  # u of what the fixed effects fit
    q: Float[Array, "r t"]
    root: Float[Array, "r r"]  # A⁻¹


def solve_cholesky(
    kernel: Kernel, data: Data, labels: Labels, block_size: int | None = None
) -> Solution:
    """The solution on explicit features, from one reading of the rows."""
    features = Features(kernel)
    origin = jax.lax.stop_gradient(near_fit(data, features))
    origins: dict = {"origin": origin, "label_origin": labels.start}
    sums = moments(data, features, labels.Y, block_size=block_size, **origins)
    taken, sums = sums.taken(data.fixed), sums.centred(data.fixed)
    known, taken = jax.lax.stop_gradient((sums, taken))
    largest = jnp.linalg.norm(known.second)  # bounds s_max
    floor = roundings_of_moments(known) * rounding(len(known.second), largest[None], taken)
    report = Report("cholesky", floor, jnp.zeros_like(floor))
    factor = CholeskyFeatures(
        data=data,
        map=features,
        second=sums.second,
        origin=sums.origin,
        expansion=Primal(),
        report=report.asked_of_moments(known, taken, largest),
        block_size=block_size,
    )
    return Solution(factor, labels, sums.cross)
