"""The route from a kernel and X to a `Factor`: the cheapest exact one by shape, or the one asked for."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls._checks import check_matrix, check_symmetric
from jaxrls._factor import Factor, factor_covariance, factor_features, factor_symmetric
from jaxrls._gram import gram
from jaxrls._kernel import Kernel
from jaxrls._kernels import Linear, Precomputed
from jaxrls._landmarks import Landmarks
from jaxrls._point import FeaturePoint, GramPoint
from jaxrls._sparse import SparseMatrix, SparseRows, is_sparse, sparse_rows
from jaxrls._subset import factor_subset
from jaxrls._subset_point import SubsetPoint, subset_at
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


def factor_at(
    kernel: Kernel,
    X: Float[Array, "n d"],
    lam: Float[Array, ""] | float,
    *,
    weights: Float[Array, " n"] | None = None,
    intercept: bool = False,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | None = None,
    block_size: int | None = None,
) -> GramPoint | FeaturePoint | SubsetPoint:
    """Factor the problem at one λ by Cholesky: cheaper than a spectrum where λ is given, and differentiable in everything.

    K̃ + λI = LLᵀ, or Φ̃ᵀΦ̃ + λI = LLᵀ where the kernel has fewer explicit features than there are rows, or with `landmarks` the subset of
    regressors of `factor_subset`. Every criterion takes the result in place of a `Factor`, with `lams` the same single λ.

    **Shapes**: X (n, d), lam (), weights (n,) ≥ 0. **Cost** here that of K; the Cholesky factor is made when labels come. On landmarks O(n m²) then,
    in row blocks, with memory O(m²) beside X and Y.
    **Raises** `ValueError` for shapes that do not fit. **Fails** (NaN) where K + λI is not positive definite to working
    precision: take a larger λ. **Source**: Rifkin (lecture), "Solving RLS, Parameters Fixed".

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> evidence = lambda k: rls.log_marginal_likelihood(rls.factor_at(k, X, 0.1), y, jnp.array([0.1]))[0]
    >>> bool(jnp.isfinite(jax.grad(evidence)(rls.Gaussian(1.0)).width))
    True
    """
    check_matrix("X", X)
    weights = prepare_weights(weights, X.shape[0], X.dtype)
    if weights is not None:
        weights = jnp.where(weights > 0, weights, 0)  # whose derivative at 0 is 0
    lam = jnp.asarray(lam, X.dtype)
    if landmarks is not None:
        return subset_at(kernel, X, landmarks, lam, weights, intercept, block_size=block_size)
    explicit = kernel.num_features(X.shape[1], X.dtype)
    if explicit is not None and explicit < X.shape[0]:
        return FeaturePoint(kernel.features(X), lam, weights, intercept)
    return GramPoint(gram(kernel, X, block_size=block_size), lam, weights, intercept)
