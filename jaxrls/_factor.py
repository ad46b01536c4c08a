"""The one O(n³) step: a `Factor`, and its makers.

With v the weights, h = √v/‖√v‖ and C = I − hhᵀ (C = I without an intercept), every route writes the weighted, centred kernel
matrix as C √v K √v C = U diag(s) Uᵀ with UᵀU = I. Everything then follows from D(λ) = 1/(s + λ) and z = Uᵀ√v y:

    λ c̃ = (C − UUᵀ)√v y + U (λD ∘ z),        dual coefficients c = √v c̃
    λ p = diag(C − UUᵀ) + (U∘U)(λD),         the diagonal of λ(K̃ + λI)⁻¹, which is 1 − leverage
    e   = λc̃ / (λp √v),                      the leave-one-out residuals
    coefficients = basis (D ∘ z),            intercept = mean(y) − shift·(D ∘ z)

Where U is square the complement C − UUᵀ is exactly 0 and is dropped. No 1/λ is formed and subtracted. A criterion sees a
`Factor` through the methods below only, so that routes and criteria add up instead of multiplying.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls._blocks import default_block_size, map_rows, rows_matmul, sum_rows
from jaxrls._checks import check_matrix, check_symmetric
from jaxrls._linalg import eigh, from_panels, gram_panels, matmul, safe_sqrt, svd, transposed_matmul
from jaxrls._pytree import pytree, static
from jaxrls._sparse import SparseMatrix, SparseRows, is_sparse, sparse_rows
from jaxrls._weighted import Weighted, prepare_weights, scale_rows, unscale


@pytree
class Target:
    """Labels as one factor sees them."""

    Y: Float[Array, "n t"]
    mean: Float[Array, " t"]  # weighted mean with an intercept, else 0
    scaled: Float[Array, "n t"]  # √v (Y − mean)
    z: Float[Array, "r t"]  # Uᵀ scaled
    outside: Float[Array, " t"]  # ‖(C − UUᵀ) √v Y‖²


@pytree
class Factor(Weighted):
    """The eigendecomposition behind one kernel and one X: all that λ, labels and criteria need of them.

    Made by `factorize` or by one of the makers under it; `route` says which. U is kept as such, or as rows·rotation, formed
    block by block, on the covariance route. Differentiating through its making raises and names the function to use.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_gram(jnp.eye(3), intercept=True)
    >>> factor.n, factor.route, factor.intercept_fitted
    (3, 'gram', True)
    """

    rows: Float[Array, "n p"] | SparseRows  # U itself, or the features it is made of
    s: Float[Array, " r"]
    rotation: Float[Array, "p r"] | None  # U = √v (rows − middle) rotation; None where rows are U
    middle: Float[Array, " p"] | None
    basis: Float[Array, "q r"] | None  # coefficients = basis (D ∘ z); None where they are dual
    shift: Float[Array, " r"] | None  # None without an intercept
    weights: Float[Array, " n"] | None
    design: Float[Array, "n q"] | SparseRows | None  # predictions = design @ coefficients, kept for rows of weight 0
    indefinite: Float[Array, ""]  # the most negative eigenvalue that was clipped, over the largest
    floor: Float[Array, ""]  # how far eigenvalues may be off, by rounding alone
    complete: bool = static()  # whether U is square, so that the complement is exactly 0
    route: str = static()

    @property
    def n(self) -> int:
        """Number of rows of X."""
        return self.rows.shape[0]

    @property
    def dtype(self):
        """The dtype of everything computed from the factor."""
        return self.s.dtype

    @property
    def intercept_fitted(self) -> bool:
        """Whether an unpenalised intercept is fitted."""
        return self.shift is not None

    def precision_floor(self) -> Float[Array, ""]:
        """n·eps·s_max: a λ below it is lost in the rounding of the factor.

        Where a kernel matrix was centred, the part hᵀKh that this took off counts if it is larger: what it rounds to does not vanish with it.
        """
        return self.floor

    # labels ------------------------------------------------------------------------------------------------------------

    def project(self, Y) -> Target:
        """Labels in the factor's coordinates: O(n r t)."""
        Y, mean, scaled = self.center(Y)

        def products(block):
            rows, v, y = block
            return transposed_matmul(self._centred(rows, v), y), jnp.sum(y * y, axis=0)

        z, total = self._sum(products, scaled)
        z = z if self.rotation is None else transposed_matmul(self.rotation, z)
        outside = jnp.zeros_like(mean) if self.complete else jnp.maximum(total - jnp.sum(z * z, axis=0), 0)
        return Target(Y, mean, scaled, z, outside)

    # one λ, or one per target ------------------------------------------------------------------------------------------

    def coef(self, target: Target, lam) -> Float[Array, "q t"]:
        """Coefficients at λ: dual c, or w on the basis of features."""
        if self.basis is None:
            return scale_rows(self.root_weights, self._dual(self.rows, target.scaled, target, lam) / lam)
        return matmul(self.basis, target.z / (self.s[:, None] + lam))

    def intercept(self, target: Target, lam) -> Float[Array, " t"]:
        """The unpenalised intercept at λ, or 0."""
        if self.shift is None:
            return jnp.zeros_like(target.mean)
        return target.mean - matmul(self.shift, target.z / (self.s[:, None] + lam))

    def loo_sum(self, fn: Callable, target: Target, lam):
        """Σ over blocks of rows of `fn(residuals, labels, weights)`, all rows of positive weight left out in turn."""

        def block(args):
            (rows, v, y), Y = args[:3], args[3]
            weight = jnp.ones(Y.shape[0], Y.dtype) if v is None else v
            return fn(self._left_out(rows, v, y, target, lam), Y, weight)

        return self._sum(block, target.scaled, target.Y)

    def loo_residuals(self, target: Target, lam) -> Float[Array, "n t"]:
        """yᵢ − f₍without i₎(xᵢ) for every row, those of weight 0 included."""
        out = self._map(lambda args: self._left_out(args[0], args[1], args[2], target, lam), target.scaled)
        if self.weights is None:
            return out
        return jnp.where(self.weights[:, None] > 0, out, target.Y - self._fitted(target, lam))

    def hat_rows(self, target: Target, lam):
        """√v (y − f), and the diagonals of H, I − H, H² and (I − H)², H the matrix from √v y to √v f: all that the influence of rows needs."""
        kept, shrunk = self.s / (self.s + lam), self._shrink(lam)[:, 0]

        def block(args):
            rows, v, y = args
            U = self._left(rows, v)
            squares, constant = U * U, self._constant(v)
            outside = jnp.maximum(self._outside(squares, v), 0)
            fitted = matmul(squares, kept) + constant, matmul(squares, shrunk) + outside
            return self._dual(U, y, target, lam), *fitted, matmul(squares, kept**2) + constant, matmul(squares, shrunk**2) + outside

        return self._map(block, target.scaled)

    def residual_norm(self, target: Target, lam) -> Float[Array, " t"]:
        """Σᵢ vᵢ (yᵢ − f(xᵢ) − b)² = ‖λ c̃‖²."""
        return target.outside + jnp.sum((self._shrink(lam) * target.z) ** 2, axis=0)

    def quadratic(self, target: Target, lam) -> Float[Array, " t"]:
        """The smallest value of twice the objective over λ: √v yᵀ (K̃ + λI)⁻¹ √v y, centred."""
        return (target.outside + jnp.sum(self._shrink(lam) * target.z**2, axis=0)) / lam

    def logdet(self, target: Target, lam) -> Float[Array, "..."]:
        """log of the product of the eigenvalues of K̃ + λI, over the dimension the fit lives in."""
        del target
        return self._spectral_sum(jnp.log(self.s[:, None] + lam), jnp.log(lam))

    def dof(self, lam) -> Float[Array, "..."]:
        """Effective degrees of freedom Σ s/(s + λ), and 1 for the intercept."""
        return jnp.sum(self.s[:, None] / (self.s[:, None] + lam), axis=0).reshape(jnp.shape(lam)) + int(self.intercept_fitted)

    def trace(self, target: Target, lam) -> Float[Array, "..."]:
        """Σ (1 − leverage) = rows less effective degrees of freedom, without cancellation."""
        del target
        return self._spectral_sum(self._shrink(lam), jnp.ones_like(lam))

    def prepare_groups(self, target: Target) -> Float[Array, "n r"]:
        """What `group_system` needs for every λ: U, formed where it is not kept."""
        del target
        return self.left()

    def features_without(self, features, rows, mask):
        """What the features U√s/√v become when `rows` are left out: here they do not depend on the rows."""
        del rows, mask
        return features

    def group_system(self, U, target: Target, rows, mask, lam):
        """A diagonal block of λ(K̃ + λI)⁻¹ and the matching rows of λc̃; rows of `mask` 0 become rows of the identity."""
        U = U[rows] * mask[:, None]
        scaled = self._dual(U, target.scaled[rows], target, lam) * mask[:, None]
        inside = matmul(U * self._shrink(lam)[:, 0], U.T)
        if self.complete:
            return inside + jnp.diag(1 - mask), scaled
        outside = jnp.eye(U.shape[0], dtype=U.dtype) - matmul(U, U.T)
        if self.intercept_fitted:
            h = self.direction()[rows] * mask
            outside = outside - h[:, None] * h[None, :]
        return outside + inside, scaled

    # how -----------------------------------------------------------------------------------------------------------------

    def _shrink(self, lam):
        """λD = λ/(s + λ), (r, 1) or (r, t)."""
        return lam / (self.s[:, None] + lam)

    def _spectral_sum(self, inside, outside):
        """Σ over the dimensions the fit lives in: those of U, each by its share, and the n − r outside it.

        Where U is square it also spans the constant and the rows of weight 0, whose share is 0: counted instead of subtracted, as
        their eigenvalues are 0 to rounding only.
        """
        if self.complete:
            squares = self.rows * self.rows
            squares = squares if self.weights is None else jnp.where(self.weights[:, None] > 0, squares, 0)
            return jnp.sum(jnp.sum(squares, axis=0)[:, None] * inside, axis=0).reshape(jnp.shape(outside))
        missing = self.num_rows() - self.s.shape[0]
        return jnp.sum(inside, axis=0).reshape(jnp.shape(outside)) + missing * outside

    def left(self) -> Float[Array, "n r"]:
        """U, formed where it is not kept."""
        return self._map(lambda args: self._left(*args[:2]), None)

    def _left(self, rows, v):
        rows = self._centred(rows, v)
        return rows if self.rotation is None else matmul(rows, self.rotation)

    def _centred(self, rows, v):
        """√v (rows − middle), or the rows as they are where they are U."""
        if self.rotation is None:
            return rows
        rows = rows if self.middle is None else rows - self.middle
        return scale_rows(None if v is None else safe_sqrt(v), rows)

    def _fitted(self, target, lam):
        """Predictions at all rows, those of weight 0 included."""
        return rows_matmul(self.design, self.coef(target, lam)) + self.intercept(target, lam)

    def _dual(self, U, scaled, target, lam):
        if self.complete:
            return matmul(U, self._shrink(lam) * target.z)
        return scaled - matmul(U, target.z) + matmul(U, self._shrink(lam) * target.z)

    def _constant(self, v):
        """The diagonal of hhᵀ, in which the intercept fits, or 0."""
        return (1.0 if v is None else v) / self.total_weight() if self.intercept_fitted else 0.0

    def _outside(self, squares, v):
        """The diagonal of C − UUᵀ."""
        return jnp.zeros(squares.shape[0], self.dtype) if self.complete else 1 - jnp.sum(squares, axis=1) - self._constant(v)

    def _remaining(self, U, v, lam):
        """λp = 1 − leverage, (n, 1) or (n, t)."""
        squares = U * U
        inside = matmul(squares, self._shrink(lam))
        return inside if self.complete else self._outside(squares, v)[:, None] + inside

    def _left_out(self, rows, v, scaled, target, lam):
        U = self._left(rows, v)
        numerator, denominator = self._dual(U, scaled, target, lam), self._remaining(U, v, lam)
        return unscale(numerator / denominator, None if v is None else safe_sqrt(v))

    def _block_size(self, columns) -> int:
        return self.n if self.complete else default_block_size(self.n, (self.rows.shape[1] + 2 * columns) * self.dtype.itemsize)

    def _sum(self, fn, *columns):
        width = sum(c.shape[1] for c in columns)
        return sum_rows(fn, (self.rows, self.weights, *columns), self._block_size(width))

    def _map(self, fn, column):
        return map_rows(fn, (self.rows, self.weights, column), self._block_size(self.s.shape[0]))


def _clip(s):
    """Eigenvalues with rounding below 0 taken off, and how far below 0 they went, relative to the largest."""
    largest = jnp.max(jnp.abs(s))
    return jnp.maximum(s, 0), -jnp.minimum(jnp.min(s), 0) / jnp.where(largest > 0, largest, 1)


def rounding(n, s, constant=0.0):
    """n·eps·s_max: how far eigenvalues of n rows may be off; `constant` is the part of K, hᵀKh, that centring took off."""
    return max(n, s.shape[0]) * jnp.finfo(s.dtype).eps * jnp.maximum(jnp.max(s), constant)


def spectrum(covariance: Float[Array, "r r"]):
    """Eigenvalues s and eigenvectors V of ΦᵀΦ, 1/√s, and the rounding below 0; s below r·eps·s_max is 0, and so is its 1/√s."""
    s, V = eigh(covariance)
    s, below = _clip(s)
    s = jnp.where(s > s.shape[0] * jnp.finfo(s.dtype).eps * jnp.max(s), s, 0)
    return s, V, jnp.where(s > 0, 1 / jnp.sqrt(jnp.where(s > 0, s, 1)), 0), below


def factor_gram(K: Float[Array, "n n"], *, weights: Float[Array, " n"] | None = None, intercept: bool = False) -> Factor:
    """Factor a kernel matrix: the dual route, for any kernel.

    C √v K √v C = Q diag(s) Qᵀ and U = C Q: projected once more, which keeps the intercept exact for λ down to the precision of
    K. Eigenvalues below 0 by rounding are set to 0.

    **Shapes**: K (n, n) symmetric, weights (n,) ≥ 0. **Cost** one symmetric eigendecomposition, about 9n³ flops, 4n² numbers of
    memory. **Raises** `ValueError` for a K that is not square, or not symmetric where values are known. **Fails** (NaN) in
    float32 where LAPACK does not converge: use float64. **Source**: Rifkin (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_gram(jnp.array([[2.0, 0.0], [0.0, 1.0]])).s.tolist()
    [1.0, 2.0]
    """
    check_symmetric("K", K)
    weights = prepare_weights(weights, K.shape[0], K.dtype)
    return factor_symmetric(K, weights, intercept, "gram")


def factor_symmetric(K, weights, intercept: bool, route: str) -> Factor:
    """`factor_gram` of what is known to be symmetric, under the name of the route that made it."""
    n, root = K.shape[0], None if weights is None else safe_sqrt(weights)
    scaled = K if root is None else root[:, None] * K * root[None, :]
    if not intercept:
        s, U = eigh(scaled)
        s, below = _clip(s)
        return Factor(U, s, None, None, None, None, weights, _keep(K, weights), below, rounding(n, s), True, route)
    h = jnp.full(n, 1 / math.sqrt(n), K.dtype) if root is None else root / jnp.sqrt(jnp.sum(weights))
    Kh = matmul(scaled, h)
    constant = jnp.dot(h, Kh)
    half = Kh - 0.5 * constant * h
    s, Q = eigh(scaled - half[:, None] * h[None, :] - h[:, None] * half[None, :])
    U = Q - h[:, None] * matmul(h, Q)[None, :]
    s, below = _clip(s)
    total = jnp.asarray(n, K.dtype) if weights is None else jnp.sum(weights)
    shift = matmul(Kh, U) / jnp.sqrt(total)
    return Factor(U, s, None, None, None, shift, weights, _keep(K, weights), below, rounding(n, s, constant), True, route)


def _keep(design, weights):
    """Predictions at rows of weight 0 need the design; without weights there are none."""
    return None if weights is None else design


def factor_features(Phi: Float[Array, "n r"] | SparseRows, *, weights: Float[Array, " n"] | None = None, intercept: bool = False) -> Factor:
    """Factor explicit features by the thin SVD: the most precise route, as K's condition number is never squared.

    C √v Φ = U diag(σ) Vᵀ and s = σ²; coefficients w = V (σ D ∘ Uᵀ√v y).

    **Shapes**: Φ (n, r), weights (n,) ≥ 0. **Cost** O(n r min(n, r)), about 25 times the matrix product ΦᵀΦ. **Raises** `ValueError`
    for a Φ that is not a matrix. **Source**: Rifkin (lecture), "Linear kernel, SVD approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> round(float(rls.factor_features(jnp.array([[3.0], [4.0]])).s[0]), 3)
    25.0
    """
    if isinstance(Phi, SparseRows):
        raise ValueError("the SVD of a sparse Phi would make it dense: use factor_covariance")
    weights, mean = _prepare_features(Phi, weights, intercept)
    U, sigma, Vt = svd(scale_rows(None if weights is None else safe_sqrt(weights), Phi if mean is None else Phi - mean))
    complete = U.shape[0] == U.shape[1]
    if intercept:
        root = None if weights is None else safe_sqrt(weights)
        h = jnp.full(U.shape[0], 1 / math.sqrt(U.shape[0]), U.dtype) if root is None else root / jnp.sqrt(jnp.sum(weights))
        U = U - h[:, None] * matmul(h, U)[None, :]
    basis = Vt.T * sigma
    shift = matmul(mean, basis) if intercept else None
    zero = jnp.zeros((), Phi.dtype)
    s = sigma**2
    return Factor(U, s, None, None, basis, shift, weights, _keep(Phi, weights), zero, rounding(Phi.shape[0], s), complete, "features")


def factor_covariance(
    Phi: Float[Array, "n r"] | SparseRows | SparseMatrix, *, weights: Float[Array, " n"] | None = None, intercept: bool = False
) -> Factor:
    """Factor explicit features by their r×r covariance ΦᵀΦ: the lectures' direct approach, for many rows.

    Φᵀ√v C √v Φ = V diag(s) Vᵀ, and U = C√vΦ V/√s is formed in row blocks whenever it is needed and never kept, so that LOO costs a
    second pass over the rows and no memory of their number. Squares the condition number, as K does: directions with
    s below r·eps·s_max count as absent. With no more rows than features the smaller ΦΦᵀ takes its place.

    **Shapes**: Φ (n, r), dense or sparse (SciPy or BCOO: row blocks become dense one at a time), weights (n,) ≥ 0. **Cost** one
    product, O(n r²), and an eigendecomposition, O(r³). **Raises** as `factor_features`. **Source**: Rifkin (lecture), "Linear kernel, direct approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_covariance(jnp.array([[3.0], [4.0]])).s.tolist()
    [25.0]
    """
    if is_sparse(Phi):
        Phi = sparse_rows(Phi)
    if Phi.ndim == 2 and Phi.shape[0] <= Phi.shape[1]:
        return _factor_outer(Phi, weights, intercept)
    weights, mean = _prepare_features(Phi, weights, intercept)

    def product(block):
        rows, v = block
        rows = scale_rows(None if v is None else safe_sqrt(v), rows if mean is None else rows - mean)
        return gram_panels(rows)

    block_size = default_block_size(Phi.shape[0], Phi.shape[1] * Phi.dtype.itemsize)
    s, V, inverse_sigma, below = spectrum(from_panels(sum_rows(product, (Phi, weights), block_size)))
    rotation, basis = V * inverse_sigma, V * jnp.sqrt(s)
    shift = matmul(mean, basis) if intercept else None
    floor = rounding(Phi.shape[0], s)
    return Factor(Phi, s, rotation, mean, basis, shift, weights, _keep(Phi, weights), below, floor, False, "covariance")  # type: ignore[arg-type]


def _factor_outer(Phi, weights, intercept):
    """The covariance route with n ≤ r: K = ΦΦᵀ, its dual coefficients turned into w = Φᵀ√v U (D ∘ z), as CU = U."""
    weights, mean = _prepare_features(Phi, weights, intercept)
    dual = factor_symmetric(map_rows(lambda rows: rows_matmul(Phi, rows.T).T, Phi, Phi.shape[0]), weights, intercept, "covariance")
    scaled = scale_rows(dual.root_weights, dual.rows)
    basis = sum_rows(lambda block: transposed_matmul(block[1], block[0]).T, (Phi, scaled), Phi.shape[0])
    shift = matmul(mean, basis) if intercept else None
    floor = jnp.maximum(dual.floor, rounding(max(Phi.shape), dual.s))
    return Factor(dual.rows, dual.s, None, None, basis, shift, weights, _keep(Phi, weights), dual.indefinite, floor, True, "covariance")


def _prepare_features(Phi, weights, intercept):
    """Checked weights, and with an intercept the weighted mean row."""
    check_matrix("Phi", Phi)
    weights = prepare_weights(weights, Phi.shape[0], Phi.dtype)
    if not intercept:
        return weights, None
    share = jnp.full(Phi.shape[0], 1 / Phi.shape[0], Phi.dtype) if weights is None else weights / jnp.sum(weights)
    block_size = default_block_size(Phi.shape[0], Phi.shape[1] * Phi.dtype.itemsize)
    return weights, sum_rows(lambda block: matmul(block[0], block[1]), (share, Phi), block_size)
