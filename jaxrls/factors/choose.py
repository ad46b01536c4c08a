"""Which factor to make of a kernel and rows: the cheapest exact one by shape, or the one asked for."""

import warnings

import jax
from jaxtyping import Array, Float, Int

from jaxrls.factors.cholesky import CholeskyGram
from jaxrls.factors.cholesky_features import solve_cholesky
from jaxrls.factors.contract import Factor, Solution
from jaxrls.factors.expansion import Dual, Expansion, Primal
from jaxrls.factors.free import Free
from jaxrls.factors.iterative import Iteration, factor_iterative
from jaxrls.factors.landmarks import Landmarks, as_landmarks, on_landmarks, without_trace
from jaxrls.factors.makers import factor_features
from jaxrls.factors.refined import RefinedGram
from jaxrls.factors.spectrum import factor_symmetric, solve_features
from jaxrls.factors.subset import free_subset, solve_subset
from jaxrls.factors.summed import solve_and_sum
from jaxrls.factors.tridiagonal import reduce_symmetric
from jaxrls.factors.unpenalized import check_free, free_features, free_kernel_matrix
from jaxrls.factors.unpenalized_features import solve_free_cholesky
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel, check_whole_matrix
from jaxrls.linalg.products import matmul
from jaxrls.rows.gram import gram
from jaxrls.rows.moments import near_mean
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import SparseMatrix, rows_to_fit
from jaxrls.support.checks import Listed
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.target import platform

ROUTES = ("gram", "features", "covariance", "subset", "cholesky", "refined", "iterative", "tridiagonal")
OF_KERNEL_MATRIX = ("gram", "cholesky", "refined", "tridiagonal")
# How many λ take as long by a Cholesky factor and inverse each as one eigendecomposition, from so many rows on. On CPUs 2 to 6 at n = 1000, 3 to 4 at
# 2000 and 5 to 6 at 4000, the fewer in float32; on an H100 8 to 11 at 1000, 10 to 13 at 2000, 18 to 19 at 4000, 23 to 28 at 8000 and 19 to 34 at 16,000, the
# most in float64 (`benchmarks/run.py --only spectrum` prints it for any machine). On TPUs an eigendecomposition takes minutes to compile.
LAMS_PER_SPECTRUM = {
    "cpu": ((1000, 2), (2000, 3), (3000, 4), (4000, 5)),
    "gpu": ((1000, 8), (2000, 9), (4000, 17), (8000, 18)),
    "tpu": ((1, 100),),
}
SEARCHED = 20  # what a search for the best λ counts for: some ten λ, each with its slope, which doubles the work


def choose_route(kernel: Kernel, n: int, d: int, dtype) -> str:
    """The cheapest exact route for these shapes.

    Features fewer than rows: their covariance where rows are plenty (8 times as many or more), else their SVD. Otherwise K.
    """
    r = kernel.num_features(d, dtype)
    if r is None or r >= n:
        return "gram"
    return "covariance" if n >= 8 * r else "features"


def lams_per_spectrum(n: int) -> int:
    """How many values of λ take as long by a Cholesky factor each as the eigendecomposition of n rows, on the default backend."""
    return max((num for rows, num in LAMS_PER_SPECTRUM.get(platform(), LAMS_PER_SPECTRUM["cpu"]) if rows <= n), default=1)


def is_primal(kernel: Kernel, n: int, d: int, dtype, landmarks) -> bool:
    """Whether a Cholesky factor is one of features, or of landmarks, and not of K."""
    explicit = kernel.num_features(d, dtype)
    return landmarks is not None or explicit is not None and explicit < n


def are_few(num: int, n: int) -> bool:
    """Whether `num` values of λ take less time by a Cholesky factor each than by the eigendecomposition of n rows."""
    return num <= lams_per_spectrum(n)


def suits_cholesky(kernel: Kernel, n: int, num: int) -> bool:
    """Whether a Cholesky factor for each of `num` λ does in place of K's spectrum: they are few, and no doubt about K is left for it to settle."""
    return kernel.is_semidefinite() and are_few(num, n)


@on_any_mesh
def factorize(
    kernel: Kernel,
    X: Float[Array, "n d"] | Rows | SparseMatrix | Listed,
    *,
    weights: Float[Array, " n"] | Listed | None = None,
    intercept: bool = True,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | Listed | None = None,
    route: str | None = None,
    iteration: Iteration | None = None,
    block_size: int | None = None,
    unpenalized: Float[Array, "n q"] | Listed | None = None,
) -> Factor:
    """Do the one hard step for a kernel and X: everything about λ, labels and validation follows cheaply from the result.

    **Routes**, chosen by shape (`factor.route` says which) or named: `"gram"`, K's eigendecomposition, O(n³), any kernel;
    `"features"`, thin SVD of explicit features, O(n r²); `"covariance"`, eigendecomposition of ΦᵀΦ, O(n r²) at a fraction of
    the constant. The latter two need a kernel with explicit features (`Linear`, `FeatureMap`, and sums and multiples of those). With
    `landmarks`, `"subset"`, the subset of regressors, O(n m²): see `factor_subset`, which has further options. `"cholesky"` makes no
    spectrum, but a Cholesky factor for each λ that it is asked for, of K, of the covariance of fewer features than rows, or of that on
    landmarks: cheaper for a few λ, and differentiable in everything. `"refined"` does the same for K with Cholesky factors in float32 only, and products in
    the dtype of X: see `fit(…, refine=True)`. `"iterative"` solves for all of K by products, beginning from the landmarks'
    fit, with an estimate of leave-one-out, as `iteration` says: see `factor_iterative`. `"tridiagonal"` reduces K to a tridiagonal matrix, O(n³) at
    about half the time of its spectrum, from which GCV, evidence and coefficients follow at any number of λ: name it for those, on CPUs, where
    no row is left out; leave-one-out takes another half of that time in each call that asks for it, as `fit` does once for the residuals that it leaves.
    On an H100 it takes longer than a spectrum.

    **Shapes**: X (n, d), also a source of rows, or sparse (SciPy or BCOO); weights (n,) ≥ 0, where 0 is a row that
    was never there. `intercept` fits an unpenalised constant. `unpenalized` (n, q) are columns b of further ones, f(x) + b·β with no penalty on β, such as
    an indicator of each group: not by routes tridiagonal, refined and iterative, O(n² q) or O(n r q) more. `block_size` bounds
    the rows of temporaries while K is built. **Cost** by route.
    **Raises** `ValueError` for a route the kernel does not have, and for values that are not finite, or outside of its domain.
    **Fails**: inside `jax.jit` values are not checked. Differentiating a spectrum in X, kernel or weights raises: use `route="cholesky"` or
    `loo_objective`. A Cholesky factor gives NaN where K + λI is not positive definite to working precision: take a larger λ. **Source**: Rifkin (lecture),
    "Solving RLS"; see the makers.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> factor = rls.factorize(rls.Gaussian(1.0), X)
    >>> factor.route, factor.spectrum().s.shape
    ('gram', (4,))
    >>> evidence = lambda k: rls.log_marginal_likelihood(rls.factorize(k, X, route="cholesky"), y, [0.1])[0]
    >>> bool(jnp.isfinite(jax.grad(evidence)(rls.Gaussian(1.0)).width))
    True
    """
    check_kernel(kernel)
    rows = rows_to_fit(kernel, X)
    v = Weights.of_rows(weights, rows)
    if landmarks is not None:
        kernel, rows = on_landmarks(kernel, rows)
        landmarks = without_trace(as_landmarks(rows, landmarks))
    options: dict = {"landmarks": landmarks, "route": route, "iteration": iteration, "block_size": block_size}
    options["free"] = None if unpenalized is None else Free.of(unpenalized, v, intercept)
    return solve(kernel, rows, Labels.none(v), v, intercept, **options).factor


def check_kernel(kernel) -> None:
    """Raise unless it is one."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}")
    check_whole_matrix(kernel)


def check_route(route: str | None, landmarks, iteration: Iteration | None = None) -> None:
    """Raise for a route that there is not, or that does not go with landmarks, or with an iteration."""
    if route is not None and route not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(map(repr, ROUTES))} or None to choose, and is {route!r}")
    if route not in (None, "subset", "cholesky", "iterative") and landmarks is not None or route == "subset" and landmarks is None:
        raise ValueError(f"landmarks and route='subset' belong together, and route is {route!r}: give landmarks= alone, or neither")
    if route == "iterative" and landmarks is None:
        raise ValueError("route='iterative' needs landmarks=, whose fit its products begin from: a number such as 1000")
    if iteration is not None and route != "iterative":
        raise ValueError(f"iteration= belongs to route='iterative', and route is {route!r}: name that route, or leave iteration= out")
    if not isinstance(iteration, Iteration | None):
        raise ValueError(f"iteration must be a jaxrls.Iteration, such as Iteration(tol=1e-3), and is {iteration!r}")


def check_keeps(kernel: Kernel, rows: Rows, route: str | None, landmarks) -> None:
    """Raise where a fit is not made of moments that could be kept."""
    if route not in (None, "covariance", "subset"):
        raise ValueError(
            f"keep_moments=True belongs to what is made of moments, 'covariance' and 'subset', and route is {route!r}: leave it out"
        )
    if landmarks is None and kernel.num_features(rows.shape[1], rows.dtype) is None:
        raise ValueError(
            f"keep_moments=True needs sums of features, and {type(kernel).__name__} has none that are explicit: give landmarks="
        )


def solve(
    kernel: Kernel,
    rows: Rows,
    labels: Labels,
    weights: Weights,
    intercept: bool,
    *,
    landmarks: Landmarks | None = None,
    route: str | None = None,
    block_size: int | None = None,
    iteration: Iteration | None = None,
    keep_moments: bool = False,
    free: Free | None = None,
) -> Solution:
    """The solution for some labels, with moments and cross-moments from one reading of the rows, which are kept where it is asked for."""
    check_route(route, landmarks, iteration)
    if free is not None:
        check_free(rows, route, keep_moments)
        intercept = free.intercept
    if keep_moments:
        check_keeps(kernel, rows, route, landmarks)
    if route == "iterative":
        options: dict = {"weights": weights, "intercept": intercept, "block_size": block_size}
        return factor_iterative(kernel, rows, landmarks, iteration=iteration, **options).solve_labels(labels)
    if route == "cholesky" and is_primal(kernel, *rows.shape, rows.dtype, landmarks):
        if free is not None:
            return solve_free_cholesky(kernel, rows, landmarks, labels, weights, free)
        return solve_cholesky(kernel, rows, landmarks, labels, weights, intercept, block_size)
    if landmarks is not None and free is not None:
        return free_subset(kernel, rows, landmarks, weights, free, block_size=block_size).solve_labels(labels)
    if landmarks is not None:
        return solve_subset(kernel, rows, landmarks, labels, weights, intercept, block_size=block_size, keep_moments=keep_moments)
    if keep_moments:
        return solve_and_sum(kernel, rows, labels, weights, intercept)
    explicit = kernel.num_features(rows.shape[1], rows.dtype)
    if route is None:
        route = choose_route(kernel, *rows.shape, rows.dtype) if rows.in_memory or explicit is None else "covariance"
    if route in OF_KERNEL_MATRIX:
        made = kernel_matrix(kernel, rows, intercept, block_size)
        if free is not None:
            return free_kernel_matrix(made, weights, free, route, kernel.is_semidefinite()).solve_labels(labels)
        return factor_kernel_matrix(made, weights, intercept, route, kernel.is_semidefinite()).solve_labels(labels)
    if explicit is None:
        raise ValueError(f"route={route!r} needs explicit features, which {type(kernel).__name__} does not have: use route='gram'")
    features = rows.features(kernel)
    if free is not None:
        return free_features(features.dense(), weights, free, route).solve_labels(labels)
    if route == "covariance":
        return solve_features(features, labels, weights, intercept)
    return factor_features(features.dense(), weights=weights, intercept=intercept).solve_labels(labels)


def factor_kernel_matrix(made, weights: Weights, intercept: bool, route: str, semidefinite: bool) -> Factor:
    """The factor of what `kernel_matrix` made, by one of the routes OF_KERNEL_MATRIX."""
    K, expansion, lift = made
    if route == "cholesky":
        return CholeskyGram(K, weights, expansion, intercept, lift)
    if route == "refined":
        return RefinedGram(K, weights, expansion, intercept, lift)
    if route == "tridiagonal":
        return reduce_symmetric(K, weights, intercept, expansion, lift)
    return factor_symmetric(K, weights, intercept, expansion, "gram", semidefinite=semidefinite, lift=lift)


def kernel_matrix(kernel, rows, intercept, block_size) -> tuple[Array, Expansion, Array | None]:
    """K, what its coefficients multiply, and what to add to every row of K for that. A matrix is linear in the rows k(new, training).

    With an intercept only distances between features count: of features far from 0, K about their mean keeps what K would round off.
    """
    if not kernel.evaluable:
        return rows.kernel_matrix(kernel, block_size), Primal(), None
    if not (intercept and rows.in_memory) or kernel.num_features(rows.shape[1], rows.dtype) is None:
        return rows.kernel_matrix(kernel, block_size), Dual(rows.points), None
    features = rows.features(kernel)
    origin = jax.lax.stop_gradient(near_mean(features, Linear()))
    about = features.dense() - origin
    return gram(Linear(), about, block_size=block_size), Dual(rows.points, origin), matmul(about, origin)


def factor_at(
    kernel: Kernel, X, lam=None, *, weights=None, intercept: bool = True, landmarks=None, block_size: int | None = None
) -> Factor:
    """The name of `factorize(kernel, X, route="cholesky")` until version 0.1; it warns, and knows no λ.

    **Shapes**, **Cost**, **Raises** and **Source**: as `factorize`.

    >>> import jax.numpy as jnp, warnings
    >>> from jaxrls import Gaussian
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     factor_at(Gaussian(1.0), jnp.eye(3), 0.1).route
    'cholesky'
    """
    del lam
    words = "factor_at(kernel, X, lam) is now factorize(kernel, X, route='cholesky'): the factor takes any λ that a criterion asks for"
    warnings.warn(words, DeprecationWarning, stacklevel=2)
    options: dict = {"intercept": intercept, "landmarks": landmarks, "block_size": block_size}
    return factorize(kernel, X, weights=weights, route="cholesky", **options)
