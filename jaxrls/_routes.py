"""The route from a kernel and X to a `Factor`: the cheapest exact one by shape, or the one asked for."""

from jaxtyping import Array, Float, Int

from jaxrls._checks import check_matrix, check_symmetric
from jaxrls._factor import Factor, factor_covariance, factor_features, factor_symmetric
from jaxrls._gram import gram
from jaxrls._kernels import Kernel, Linear, Precomputed
from jaxrls._landmarks import Landmarks
from jaxrls._sparse import SparseMatrix, SparseRows, is_sparse, sparse_rows
from jaxrls._subset import factor_subset
from jaxrls._weighted import prepare_weights

ROUTES = ("gram", "features", "covariance", "subset")


def choose_route(kernel: Kernel, n: int, d: int, dtype) -> str:
    """The cheapest exact route for these shapes.

    Features fewer than rows: their covariance where rows are plenty (8 times as many or more), else their SVD. Otherwise K.
    """
    r = kernel.num_features(d, dtype)
    if r is None or r >= n:
        return "gram"
    return "covariance" if n >= 8 * r else "features"


def factorize(
    kernel: Kernel,
    X: Float[Array, "n d"] | SparseRows | SparseMatrix,
    *,
    weights: Float[Array, " n"] | None = None,
    intercept: bool = False,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | None = None,
    route: str | None = None,
    block_size: int | None = None,
) -> Factor:
    """Do the one hard step for a kernel and X: everything about λ, labels and validation follows cheaply from the result.

    **Routes**, chosen by shape (`factor.route` says which) or named: `"gram"`, K's eigendecomposition, O(n³), any kernel;
    `"features"`, thin SVD of explicit features, O(n r²); `"covariance"`, eigendecomposition of ΦᵀΦ, O(n r²) at a fraction of
    the constant. The latter two need a kernel with explicit features (`Linear`, `FeatureMap`, and sums of those). With `landmarks`,
    `"subset"`, the subset of regressors, O(n m²): see `factor_subset`, which has further options.

    **Shapes**: X (n, d), for `Linear` also sparse (SciPy or BCOO); weights (n,) ≥ 0, where 0 is a row that was never there.
    `intercept` fits an unpenalised constant. `block_size` bounds the rows of temporaries while K is built. **Cost** by route.
    **Raises** `ValueError` for a route the kernel does not have.
    **Fails**: inside `jax.jit` values are not checked. Differentiating it in X, kernel or weights raises: use
    `loo_objective`. **Source**: Rifkin (lecture); see the makers.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.arange(4.0)[:, None])
    >>> factor.route, factor.s.shape
    ('gram', (4,))
    """
    X = sparse_rows(X) if is_sparse(X) else X
    check_matrix("X", X)
    if route is not None and route not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(map(repr, ROUTES))} or None to choose, and is {route!r}")
    if (route or "subset") != "subset" and landmarks is not None or route == "subset" and landmarks is None:
        raise ValueError(f"landmarks and route='subset' belong together, and route is {route!r}: give landmarks= alone, or neither")
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}")
    if isinstance(X, SparseRows):
        if landmarks is not None or not isinstance(kernel, Linear) or route not in (None, "covariance"):
            raise ValueError("a sparse X needs the Linear() kernel and the covariance route: pass X.toarray() for anything else")
        return factor_covariance(X, weights=weights, intercept=intercept)
    if landmarks is not None:
        return factor_subset(kernel, X, landmarks, weights=weights, intercept=intercept, block_size=block_size)  # type: ignore[arg-type]
    explicit = kernel.num_features(X.shape[1], X.dtype)
    if route is None:
        route = choose_route(kernel, X.shape[0], X.shape[1], X.dtype)
    if route == "gram":
        if isinstance(kernel, Precomputed):
            check_symmetric("X, as the precomputed kernel matrix,", X)
        weights = prepare_weights(weights, X.shape[0], X.dtype)
        return factor_symmetric(gram(kernel, X, block_size=block_size), weights, intercept, "gram")  # type: ignore[arg-type]
    if explicit is None:
        raise ValueError(f"route={route!r} needs explicit features, which {type(kernel).__name__} does not have: use route='gram'")
    make = factor_features if route == "features" else factor_covariance
    return make(kernel.features(X), weights=weights, intercept=intercept)  # type: ignore[arg-type]
