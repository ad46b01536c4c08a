"""One λ without a spectrum: Cholesky factors that answer what a `Factor` answers, and can be differentiated in everything.

The criteria see them through the methods they use on a `Factor`, so that LOO, GCV, k-fold, hold-out and the evidence all have
exact derivatives, to any order, in kernel parameters, λ, X, Y and weights, wherever eigenvalues repeat or vanish.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls._blocks import default_block_size, sum_rows
from jaxrls._inverse import inverse, solve_diag
from jaxrls._linalg import from_panels, gram_panels, matmul, safe_sqrt
from jaxrls._pytree import pytree, static
from jaxrls._weighted import Weighted, scale_rows, unscale


@pytree
class PointTarget:
    """Labels as one point factor sees them, with all that was solved for them."""

    Y: Float[Array, "n t"]
    mean: Float[Array, " t"]
    scaled: Float[Array, "n t"]
    solution: Float[Array, "q t"]  # c̃, or w on features
    diagonal: Float[Array, " q"]  # of the projected inverse, or of the features' inverse
    logdet: Float[Array, ""]
    direction: Float[Array, " n"] | None  # G⁻¹h
    inverse: Float[Array, "r r"] | None  # of the features' covariance + λI


@pytree
class GramPoint(Weighted):
    """K̃ + λI = LLᵀ at one λ: the dual route. About n³ flops, and 1.9n³ more for a gradient."""

    K: Float[Array, "n n"]
    lam: Float[Array, ""]
    weights: Float[Array, " n"] | None
    intercept_fitted: bool = static()
    route = "gram"

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.K.shape[0]

    @property
    def dtype(self):
        """The dtype of everything computed from the factor."""
        return self.K.dtype

    def _system(self):
        root = self.root_weights
        K = self.K if root is None else root[:, None] * self.K * root[None, :]
        return K + self.lam * jnp.eye(self.n, dtype=self.dtype)

    def project(self, Y) -> PointTarget:
        """Solve for the labels: c̃ = G⁻¹ỹ − u(uᵀỹ)/(hᵀu) with u = G⁻¹h, likewise diag and log determinant."""
        Y, mean, scaled = self.center(Y)
        G, zeros = self._system(), (self.n - int(self.intercept_fitted)) - self.num_rows()
        if not self.intercept_fitted:
            solution, diagonal, logdet = solve_diag(G, scaled)
            return PointTarget(Y, mean, scaled, solution, diagonal, logdet - zeros * jnp.log(self.lam), None, None)
        h = self.direction()
        X, diagonal, logdet = solve_diag(G, jnp.concatenate([scaled, h[:, None]], axis=1))
        u = X[:, -1]
        share = jnp.dot(h, u, precision="highest")
        solution = X[:, :-1] - u[:, None] * (matmul(u, scaled) / share)[None, :]
        logdet = logdet + jnp.log(share) - zeros * jnp.log(self.lam)
        return PointTarget(Y, mean, scaled, solution, diagonal - u * u / share, logdet, u, None)

    def coef(self, target, lam):
        """Dual coefficients c = √v c̃."""
        del lam
        return scale_rows(self.root_weights, target.solution)

    def intercept(self, target, lam):
        """b = mean + (uᵀỹ)/(hᵀu ‖√v‖)."""
        del lam
        if not self.intercept_fitted:
            return jnp.zeros_like(target.mean)
        u = target.direction
        step = matmul(u, target.scaled) / jnp.dot(self.direction(), u, precision="highest")
        return target.mean + step / jnp.sqrt(self.total_weight())

    def loo_sum(self, fn, target, lam):
        """Σ over rows of `fn(residuals, labels, weights)`."""
        del lam
        weight = jnp.ones(self.n, self.dtype) if self.weights is None else self.weights
        return fn(self._left_out(target), target.Y, weight)

    def loo_residuals(self, target, lam):
        """yᵢ − f₍without i₎(xᵢ) for every row, those of weight 0 included."""
        out = self._left_out(target)
        if self.weights is None:
            return out
        fitted = matmul(self.K, self.coef(target, lam)) + self.intercept(target, lam)
        return jnp.where(self.weights[:, None] > 0, out, target.Y - fitted)

    def _left_out(self, target):
        return unscale(target.solution / target.diagonal[:, None], self.root_weights)

    def residual_norm(self, target, lam):
        """‖λ c̃‖²."""
        return jnp.sum((lam * target.solution) ** 2, axis=0)

    def quadratic(self, target, lam):
        """ỹᵀ c̃."""
        del lam
        return jnp.sum(target.scaled * target.solution, axis=0)

    def logdet(self, target, lam):
        """log |G| over the dimension the fit lives in."""
        del lam
        return target.logdet

    def trace(self, target, lam):
        """Σ (1 − leverage)."""
        return lam * jnp.sum(target.diagonal) - ((self.n - int(self.intercept_fitted)) - self.num_rows())

    def prepare_groups(self, target):
        """The projected inverse itself."""
        P = inverse(self._system())
        if not self.intercept_fitted:
            return P
        u = target.direction
        return P - u[:, None] * u[None, :] / jnp.dot(self.direction(), u, precision="highest")

    def group_system(self, P, target, rows, mask, lam):
        """A diagonal block of λP and the matching rows of λc̃."""
        block = P[rows][:, rows] * mask[:, None] * mask[None, :]
        return lam * block + jnp.diag(1 - mask), lam * target.solution[rows] * mask[:, None]


@pytree
class FeaturePoint(Weighted):
    """A = Φ̃ᵀΦ̃ + λI = LLᵀ at one λ, for explicit features: O(n r²), in row blocks, recomputed for the gradient."""

    features: Float[Array, "n r"]
    lam: Float[Array, ""]
    weights: Float[Array, " n"] | None
    intercept_fitted: bool = static()
    route = "features"

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.features.shape[0]

    @property
    def dtype(self):
        """The dtype of everything computed from the factor."""
        return self.features.dtype

    def _centred(self):
        Phi = self.features
        if self.intercept_fitted:
            share = jnp.full(self.n, 1 / self.n, self.dtype) if self.weights is None else self.weights / self.total_weight()
            Phi = Phi - matmul(share, Phi)
        return scale_rows(self.root_weights, Phi)

    def _mean(self):
        share = jnp.full(self.n, 1 / self.n, self.dtype) if self.weights is None else self.weights / self.total_weight()
        return matmul(share, self.features)

    def project(self, Y) -> PointTarget:
        """Solve for the labels: w = A⁻¹Φ̃ᵀỹ."""
        Y, mean, scaled = self.center(Y)

        def products(block):
            Phi, y = block
            return gram_panels(Phi), matmul(Phi.T, y)

        panels, z = self._sum(products, scaled)
        A = from_panels(panels)
        i = jnp.arange(A.shape[0])
        A = A.at[i, i].add(self.lam)
        w, diagonal, logdet = solve_diag(A, z)
        logdet = logdet + (self.num_rows() - A.shape[0]) * jnp.log(self.lam)
        return PointTarget(Y, mean, scaled, w, diagonal, logdet, None, inverse(A))

    def _sum(self, fn, *columns):
        arrays = (self._centred(), *columns)
        return sum_rows(fn, arrays, default_block_size(self.n, 4 * self.features.shape[1] * self.dtype.itemsize))

    def coef(self, target, lam):
        """w."""
        del lam
        return target.solution

    def intercept(self, target, lam):
        """b = mean − φ̄ᵀw."""
        del lam
        return target.mean - matmul(self._mean(), target.solution) if self.intercept_fitted else jnp.zeros_like(target.mean)

    def _rows(self, target, Phi, y, h):
        """λc̃ and λp for a block of rows."""
        left = y - matmul(Phi, target.solution)
        return left, 1 - h * h - jnp.sum(matmul(Phi, target.inverse) * Phi, axis=1)

    def _constant(self):
        return self.direction() if self.intercept_fitted else jnp.zeros(self.n, self.dtype)

    def loo_sum(self, fn, target, lam):
        """Σ over blocks of rows of `fn(residuals, labels, weights)`."""
        del lam
        weight = jnp.ones(self.n, self.dtype) if self.weights is None else self.weights

        def block(args):
            Phi, y, Y, h, v = args
            left, remaining = self._rows(target, Phi, y, h)
            return fn(unscale(left / remaining[:, None], None if self.weights is None else safe_sqrt(v)), Y, v)

        return self._sum(block, target.scaled, target.Y, self._constant(), weight)

    def residual_norm(self, target, lam):
        """‖ỹ − Φ̃w‖²."""
        del lam
        return self._sum(lambda block: jnp.sum((block[1] - matmul(block[0], target.solution)) ** 2, axis=0), target.scaled)

    def quadratic(self, target, lam):
        """(‖ỹ − Φ̃w‖² + λ‖w‖²)/λ."""
        return self.residual_norm(target, lam) / lam + jnp.sum(target.solution**2, axis=0)

    def logdet(self, target, lam):
        """log |K̃ + λI| over the dimension the fit lives in."""
        del lam
        return target.logdet

    def trace(self, target, lam):
        """Σ (1 − leverage)."""
        return self.num_rows() - self.features.shape[1] + lam * jnp.sum(target.diagonal)

    def prepare_groups(self, target):
        """The weighted, centred features."""
        del target
        return self._centred()

    def group_system(self, Phi, target, rows, mask, lam):
        """A diagonal block of λP and the matching rows of λc̃."""
        del lam
        Phi, h = Phi[rows] * mask[:, None], self._constant()[rows] * mask
        block = jnp.eye(rows.shape[0], dtype=self.dtype) - h[:, None] * h[None, :] - matmul(matmul(Phi, target.inverse), Phi.T)
        return block, (target.scaled[rows] - matmul(self._centred()[rows], target.solution)) * mask[:, None]
