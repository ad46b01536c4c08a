"""Spectra of what a caller has: a kernel matrix, or a matrix of features by its singular values or by its covariance."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Report
from jaxrls.factors.expansion import Dual, Primal
from jaxrls.factors.spectrum import Spectrum, factor_symmetric, solve_features
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.decompositions import rounding, svd
from jaxrls.linalg.products import matmul
from jaxrls.rows.moments import near_mean
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.rows.sparse import SparseMatrix, SparseRows, is_sparse, rows_to_fit
from jaxrls.support.checks import Listed, as_array, check_finite, check_matrix, check_symmetric
from jaxrls.support.meshes import on_any_mesh


def factor_gram(
    K: Float[Array, "n n"] | Listed, *, weights: Float[Array, " n"] | Weights | Listed | None = None, intercept: bool = True
) -> Spectrum:
    """Factor a kernel matrix: the dual route, for any kernel.

    C √v K √v C = Q diag(s) Qᵀ and U = C Q: projected once more, which keeps the intercept exact for λ down to the precision of
    K. Eigenvalues below 0 are set to 0; directions in which they are so by more than rounding get no coefficients either.

    **Shapes**: K (n, n) symmetric, weights (n,) ≥ 0. **Cost** one symmetric eigendecomposition, about 9n³ flops, 4n² numbers of
    memory. **Raises** `ValueError` for a K that is not square, or where values are known not finite or not symmetric. **Fails** (NaN) in
    float32 where LAPACK does not converge: use float64. **Source**: Rifkin (lecture), "Solving RLS, Varying λ".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_gram(jnp.array([[2.0, 0.0], [0.0, 1.0]]), intercept=False).s.tolist()
    [1.0, 2.0]
    """
    K = as_array("K", K)
    check_symmetric("K", K)
    return factor_symmetric(K, Weights.of(weights, K.shape[0], K.dtype), intercept, Dual(None), "gram")


@on_any_mesh
def factor_features(
    Phi: Float[Array, "n r"] | SparseRows | Listed, *, weights: Float[Array, " n"] | Weights | Listed | None = None, intercept: bool = True
) -> Spectrum:
    """Factor explicit features by the thin SVD: the most precise route, as K's condition number is never squared.

    C √v Φ = U diag(σ) Vᵀ and s = σ²; coefficients w = V (σ D ∘ Uᵀ√v y).

    **Shapes**: Φ (n, r), weights (n,) ≥ 0. **Cost** O(n r min(n, r)), about 25 times the matrix product ΦᵀΦ. **Raises** `ValueError`
    for a Φ that is not a matrix of finite numbers. **Source**: Rifkin (lecture), "Linear kernel, SVD approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> round(float(rls.factor_features(jnp.array([[3.0], [4.0]]), intercept=False).s[0]), 3)
    25.0
    """
    if is_sparse(Phi):
        raise ValueError("the SVD of a sparse Phi would make it dense: use factor_covariance")
    Phi = as_array("Phi", Phi)
    check_matrix("Phi", Phi)
    check_finite("Phi", Phi)
    v = Weights.of(weights, Phi.shape[0], Phi.dtype)
    mean = near_mean(DenseRows(Phi), Linear(), v.values) if intercept else jnp.zeros(Phi.shape[1], Phi.dtype)
    mean = mean + v.mean(Phi - mean) if intercept else mean  # twice, as rounding of the first grows with the offset and the weights
    U, sigma, Vt = svd(v.scale(Phi - mean))
    complete = U.shape[0] == U.shape[1]
    if intercept:
        h = v.direction
        U = U - h[:, None] * matmul(h, U)[None, :]
    basis, s = Vt.T * sigma, sigma**2
    design = None if v.values is None else DenseRows(Phi)
    floor = (20 * rounding(len(s), sigma)) ** 2  # σ is rounded, not its square: 5 % of √λ
    said = Report("features", floor, jnp.zeros((), Phi.dtype))
    shift = matmul(mean, basis)
    return Spectrum(DenseRows(U), s, None, mean, basis, shift, None, design, None, v, Primal(), said, intercept, complete)


@on_any_mesh
def factor_covariance(
    Phi: Float[Array, "n r"] | Rows | SparseMatrix | Listed,
    *,
    weights: Float[Array, " n"] | Weights | Listed | None = None,
    intercept: bool = True,
) -> Spectrum:
    """Factor explicit features by their r×r covariance ΦᵀΦ: the lectures' direct approach, for many rows.

    Φᵀ√v C √v Φ = V diag(s) Vᵀ, and U = C√vΦ V/√s is formed in row blocks whenever it is needed and never kept, so that LOO costs a
    second pass over the rows and no memory of their number. Squares the condition number, as K does: directions with
    s below √r·eps·s_max count as absent, columns √(√r·eps) times as small as the largest (float32: 1e-3) among them: where such columns
    matter, scale them, as a ridge needs anyway, or take `factor_features` or `route="cholesky"`, which keep them.
    With no more rows than features the smaller ΦΦᵀ takes its place.

    **Shapes**: Φ (n, r), dense, a source of rows, or sparse (SciPy or BCOO: row blocks become dense one at a time), weights (n,) ≥ 0. **Cost** one
    product, O(n r²), and an eigendecomposition, O(r³). **Raises** as `factor_features`. **Source**: Rifkin (lecture), "Linear kernel, direct approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.factor_covariance(jnp.array([[3.0], [4.0]]), intercept=False).s.tolist()
    [25.0]
    """
    rows = rows_to_fit(Linear(), Phi, "Phi")
    v = Weights.of_rows(weights, rows)
    return solve_features(rows, Labels.none(v), v, intercept).factor
