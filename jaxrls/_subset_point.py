"""The subset of regressors at one λ, differentiable in everything, the landmarks included: two passes over the rows.

With K_RR = LLᵀ, features Φ = C √v K_TR L⁻ᵀ, ΦᵀΦ + λI = AAᵀ and R = L⁻ᵀA⁻ᵀ, a row x is seen as u = k(x, points) R, centred, and labels as
q = A⁻¹Φᵀ√v y:

    β = Rq,    ŷ = u·q,    h = v|u|²,    e = (y − ŷ)/(1 − h),

and for a landmark that leaves with its row, with Rₖ its row of R: d = |Rₖ|², ρ = Rₖ·u, α = Rₖ·q,

    e = (d(y − ŷ) + ρα)/(d(1 − h) + vρ²).

Rows are read in blocks, which derivatives recompute, so that memory is O(m²) beside X and y.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls._blocks import sum_rows
from jaxrls._gram import gram
from jaxrls._inverse import triangular_inverse
from jaxrls._kernel import Kernel
from jaxrls._landmarks import as_landmarks, check_evaluable
from jaxrls._linalg import from_panels, gram_panels, matmul, safe_sqrt
from jaxrls._pytree import pytree, static
from jaxrls._subset import block_rows, cholesky
from jaxrls._weighted import Weighted, prepare_weights, scale_rows, unscale


@pytree
class SubsetTarget:
    """Labels as a `SubsetPoint` sees them, with all that was solved for them."""

    Y: Float[Array, "n t"]
    mean: Float[Array, " t"]
    scaled: Float[Array, "n t"]
    R: Float[Array, "m m"]
    middle: Float[Array, " m"]  # u = k(x, points) R − middle
    q: Float[Array, "m t"]
    shrink: Float[Array, "m m"]  # A⁻¹


@pytree
class SubsetPoint(Weighted):
    """The problem on landmarks at one λ; `indices` are the rows of X whose landmark leaves the dictionary with them."""

    kernel: Kernel
    X: Float[Array, "n d"]
    lam: Float[Array, ""]
    weights: Float[Array, " n"] | None
    points: Float[Array, "m d"]
    indices: Int[Array, " m"] | None
    intercept_fitted: bool = static()
    block_size: int | None = static()
    route = "subset"

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.X.shape[0]

    @property
    def dtype(self):
        """The dtype of everything computed from the factor."""
        return self.X.dtype

    def project(self, Y) -> SubsetTarget:
        """One pass over the rows, and two Cholesky factors of m×m."""
        Y, mean, scaled = self.center(Y)
        K = gram(self.kernel, self.points)
        L, _ = cholesky(K)
        inverse = triangular_inverse(L)
        back = inverse.T
        # Any row near the mean keeps the later subtraction of the mean from cancelling.
        origin = jnp.mean(matmul(K, back), axis=0) if self.intercept_fitted else jnp.zeros_like(K[0])

        def products(block):
            x, v, y = block
            phi = matmul(self.kernel(x, self.points), back) - origin
            half = scale_rows(None if v is None else safe_sqrt(v), phi)
            return jnp.sum(phi, axis=0) if v is None else matmul(v, phi), gram_panels(half), matmul(half.T, y)

        first, panels, cross = self._sum(products, scaled)
        second = from_panels(panels)
        step = first / self.total_weight() if self.intercept_fitted else jnp.zeros_like(first)
        A = jnp.linalg.cholesky(second - first[:, None] * step + self.lam * jnp.eye(K.shape[0], dtype=self.dtype))
        shrink = triangular_inverse(A)
        return SubsetTarget(Y, mean, scaled, matmul(shrink, inverse).T, matmul(shrink, origin + step), matmul(shrink, cross), shrink)

    def coef(self, target, lam):
        """β = Rq."""
        del lam
        return matmul(target.R, target.q)

    def intercept(self, target, lam):
        """b = mean − middle·q."""
        del lam
        return target.mean - matmul(target.middle, target.q) if self.intercept_fitted else jnp.zeros_like(target.mean)

    def loo_sum(self, fn, target, lam):
        """Σ over blocks of rows of `fn(residuals, labels, weights)`, and over the landmarks that leave."""
        del lam
        weights = jnp.ones(self.n, self.dtype) if self.weights is None else self.weights
        others = weights if self.indices is None else weights.at[self.indices].set(0)

        def block(args):
            x, v, y, Y, weight = args
            root, weight = None if v is None else safe_sqrt(v), weight[:, 0]
            u = self._seen(x, target)
            remaining = jnp.where(weight > 0, 1 - self._leverage(u, v), 1)
            e = unscale((y - scale_rows(root, matmul(u, target.q))) / remaining[:, None], root)
            return fn(jnp.where(weight[:, None] > 0, e, 0), Y, weight)

        rest = self._sum(block, target.scaled, target.Y, others[:, None])
        if self.indices is None:
            return rest
        v = weights[self.indices]
        return rest + fn(self._landmarks_left_out(target, v), target.Y[self.indices], v)

    def residual_norm(self, target, lam):
        """‖√v (y − ŷ)‖²."""
        del lam

        def block(args):
            x, v, y = args
            root = None if v is None else safe_sqrt(v)
            return jnp.sum((y - scale_rows(root, matmul(self._seen(x, target), target.q))) ** 2, axis=0)

        return self._sum(block, target.scaled)

    def quadratic(self, target, lam):
        """(‖√v (y − ŷ)‖² + λ‖w‖²)/λ with w = A⁻ᵀq."""
        return self.residual_norm(target, lam) / lam + jnp.sum(matmul(target.shrink.T, target.q) ** 2, axis=0)

    def logdet(self, target, lam):
        """log |K̂ + λI| over the dimension the fit lives in."""
        m = self.points.shape[0]
        return -2 * jnp.sum(jnp.log(jnp.diagonal(target.shrink))) + (self.num_rows() - m) * jnp.log(lam)

    def trace(self, target, lam):
        """Σ (1 − leverage)."""
        return self.num_rows() - self.points.shape[0] + lam * jnp.sum(target.shrink**2)

    def prepare_groups(self, target):
        """The planes βₖ = 0, each by a vector of length about 1."""
        return self._planes(target)

    def group_system(self, planes, target, rows, mask, lam):
        """A diagonal block of λP and the matching rows of λc̃, with the group's landmarks leaving the dictionary."""
        del lam
        root = jnp.ones(self.n, self.dtype) if self.weights is None else safe_sqrt(self.weights)
        u = self._seen(self.X[rows], target) * (root[rows] * mask)[:, None]
        h = self.direction()[rows] * mask if self.intercept_fitted else jnp.zeros_like(mask)
        block = jnp.eye(rows.shape[0], dtype=self.dtype) - h[:, None] * h[None, :] - matmul(u, u.T)
        scaled = target.scaled[rows] * mask[:, None] - matmul(u, target.q)
        if self.indices is None:
            return block, scaled
        m = self.indices.shape[0]
        slot = jnp.full(self.n, m).at[self.indices].set(jnp.arange(m))[rows]
        inside = jnp.where(slot < m, mask, 0)
        W = planes[jnp.minimum(slot, m - 1)] * inside[:, None]
        ridge = rows.shape[0] * jnp.finfo(self.dtype).eps
        d = jnp.linalg.cholesky((1 + ridge * jnp.eye(rows.shape[0], dtype=self.dtype)) * matmul(W, W.T) + jnp.diag(1 - inside))
        rho, alpha = matmul(u, W.T), matmul(W, target.q)
        half = jax.scipy.linalg.solve_triangular(d, jnp.concatenate([rho.T, alpha], axis=1), lower=True)
        rho, alpha = half[:, : rows.shape[0]], half[:, rows.shape[0] :]
        return block + matmul(rho.T, rho), scaled + matmul(rho.T, alpha)

    def _seen(self, x, target):
        """u, a row of x each."""
        return matmul(self.kernel(x, self.points), target.R) - target.middle

    def _leverage(self, u, v):
        constant = 1 / self.total_weight() if self.intercept_fitted else 0.0
        leverage = constant + jnp.sum(u * u, axis=1)
        return leverage if v is None else v * leverage

    def _planes(self, target):
        """Rows of R in units of their length, which cancels from every result."""
        return target.R / jax.lax.stop_gradient(jnp.linalg.norm(target.R, axis=1, keepdims=True))

    def _landmarks_left_out(self, target, v):
        """e = (d(y − ŷ) + ρα)/(d(1 − h) + vρ²)."""
        u, planes = self._seen(self.points, target), self._planes(target)
        d, rho, alpha = jnp.sum(planes**2, axis=1), jnp.sum(planes * u, axis=1), matmul(planes, target.q)
        residual = target.Y[self.indices] - target.mean - matmul(u, target.q)
        return (d[:, None] * residual + rho[:, None] * alpha) / (d * (1 - self._leverage(u, v)) + v * rho * rho)[:, None]

    def _sum(self, fn, *columns):
        return sum_rows(fn, (self.X, self.weights, *columns), block_rows(self.n, self.points[:, 0], self.block_size))


def subset_at(kernel: Kernel, X: Float[Array, "n d"], landmarks, lam, weights, intercept: bool, block_size=None) -> SubsetPoint:
    """The `SubsetPoint` of these landmarks at one λ: see `factor_at`."""
    check_evaluable(kernel)
    chosen = as_landmarks(X, landmarks)
    weights = prepare_weights(weights, X.shape[0], X.dtype)
    return SubsetPoint(kernel, X, lam, weights, chosen.points, chosen.indices, intercept, block_size)
