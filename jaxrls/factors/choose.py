"""Which factor to make of a kernel and rows: the cheapest exact one by shape, or the one asked
for.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.cholesky import CholeskyGram
from jaxrls.factors.cholesky_features import solve_cholesky
from jaxrls.factors.contract import Factor, Solution
from jaxrls.factors.expansion import Dual, Expansion, Primal
from jaxrls.factors.iterative import Iteration, factor_iterative
from jaxrls.factors.landmark_spectrum import solve_subset
from jaxrls.factors.refined import RefinedGram
from jaxrls.factors.spectrum import factor_svd, factor_symmetric, solve_covariance
from jaxrls.factors.summed import solve_and_sum
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.problem.fixed_effects import FixedEffects, LevelLabels, as_fixed_effects
from jaxrls.problem.labels import Labels
from jaxrls.problem.landmarks import Landmarks, as_landmarks, on_landmarks, without_trace
from jaxrls.problem.weights import Weights
from jaxrls.rows.gram import gram
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import SparseMatrix, rows_to_fit
from jaxrls.support.checks import Listed
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.target import platform

ROUTES = ("gram", "features", "covariance", "subset", "cholesky", "refined", "iterative")
OF_KERNEL_MATRIX = ("gram", "cholesky", "refined")
# How many λ take as long by a Cholesky factor and inverse each as one eigendecomposition, from so
# many rows on. On CPUs 2 to 6 at n = 1000, 3 to 4 at 2000 and 5 to 6 at 4000, the fewer in float32;
# on an H100 8 to 11 at 1000, 10 to 13 at 2000, 18 to 19 at 4000, 23 to 28 at 8000 and 19 to 34 at
# 16,000, the most in float64 (`benchmarks/run.py --only spectrum` prints it for any machine). On
# TPUs an eigendecomposition takes minutes to compile.
LAMS_PER_SPECTRUM = {
    "cpu": ((1000, 2), (2000, 3), (3000, 4), (4000, 5)),
    "gpu": ((1000, 8), (2000, 9), (4000, 17), (8000, 18)),
    "tpu": ((1, 100),),
}
SEARCHED = 20  # what a search for the best λ counts for: some ten λ, each with its slope, which doubles the work


def choose_route(kernel: Kernel, n: int, d: int, dtype) -> str:
    """The cheapest exact route for these shapes.

    Features fewer than rows: their covariance where rows are plenty (8 times as many or more), else
    their SVD. Otherwise K."""
    r = kernel.num_features(d, dtype)
    if r is None or r >= n:
        return "gram"
    return "covariance" if n >= 8 * r else "features"


def lams_per_spectrum(n: int) -> int:
    """How many values of λ take as long by a Cholesky factor each as the eigendecomposition of n
    rows, on the default backend.
    """
    return max(
        (
            num
            for rows, num in LAMS_PER_SPECTRUM.get(platform(), LAMS_PER_SPECTRUM["cpu"])
            if rows <= n
        ),
        default=1,
    )


def is_primal(kernel: Kernel, n: int, d: int, dtype, landmarks) -> bool:
    """Whether a Cholesky factor is one of features, or of landmarks, and not of K."""
    explicit = kernel.num_features(d, dtype)
    return landmarks is not None or explicit is not None and explicit < n


def are_few(num: int, n: int) -> bool:
    """Whether `num` values of λ take less time by a Cholesky factor each than by the
    eigendecomposition of n rows.
    """
    return num <= lams_per_spectrum(n)


def suits_cholesky(kernel: Kernel, n: int, num: int) -> bool:
    """Whether a Cholesky factor for each of `num` λ does in place of K's spectrum: they are few,
    and no doubt about K is left for it to settle.
    """
    return kernel.is_semidefinite() and are_few(num, n)


@on_any_mesh
def factorize(
    kernel: Kernel,
    X: Float[Array, "n d"] | Rows | SparseMatrix | Listed,
    *,
    weights: Float[Array, " n"] | Listed | None = None,
    intercept: bool = True,
    fixed_effects: Float[Array, "n q"] | LevelLabels | FixedEffects | Listed | None = None,
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"] | Listed | None = None,
    leave: bool = True,
    route: str | None = None,
    iteration: Iteration | None = None,
    block_size: int | None = None,
) -> Factor:
    """Do the one hard step for a kernel and X: everything about λ, labels and validation follows
    cheaply from the result.

    Args:
        kernel: a jaxrls kernel; `Precomputed()` where X is a kernel matrix.
        X: rows (n, d), dense, sparse (SciPy or BCOO), or a source of rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 was never there. Default 1.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, f(x) + b·β, or `levels(labels)`, an
            intercept for each group.
        landmarks: a number is not taken here: `Landmarks`, row numbers of X (m,), or points (m, d),
            for the subset of regressors, f(x) = Σₖ k(x, pointsₖ) βₖ.
        leave: whether a landmark that is a row of X leaves the dictionary when its row is left out,
            so that no held-out prediction has seen its row in any way.
        route: how, by default the cheapest exact way for the shapes. "gram": eigendecomposition of
            K, O(n³), any kernel. "features": thin SVD of explicit features, O(n r²). "covariance":
            eigendecomposition of ΦᵀΦ, O(n r²) at a fraction of the constant. "subset": the same on
            landmarks, O(n m²). "cholesky": a Cholesky factor for each λ that is asked for, cheaper
            for a few λ, and differentiable in everything. "refined": the same from factors in
            float32 and products in the dtype of X. "iterative": products with K alone, which begin
            from the landmarks' fit.
        iteration: how the iterative route goes about it.
        block_size: rows at a time while K or sums over rows are made.

    Returns:
        A `Factor`; `factor.route` says which.

    **Raises** `ValueError` for a route that the kernel does not have, for fixed effects that are
    linearly dependent, and for values that are not finite, or outside of the kernel's domain; inside
    `jax.jit` values are not checked. Differentiating a spectrum in X, kernel or weights raises: use
    `route="cholesky"` or `loo_objective`. **Cost** by route. **Source**: Rifkin (lecture), "Solving
    RLS"; Quiñonero-Candela and Rasmussen 2005, §4.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> factor = rls.factorize(rls.Gaussian(1.0), X)
    >>> factor.route, factor.spectrum().s.shape
    ('gram', (4,))
    """
    check_kernel(kernel)
    rows = rows_to_fit(kernel, X)
    v = Weights.of_rows(weights, rows)
    fixed = as_fixed_effects(fixed_effects, intercept, v)
    if landmarks is not None:
        kernel, rows = on_landmarks(kernel, rows)
        landmarks = without_trace(as_landmarks(rows, landmarks))
    options: dict = {"landmarks": landmarks, "route": route, "iteration": iteration}
    options |= {"block_size": block_size, "leave": leave}
    return solve(kernel, rows, Labels.none(v, fixed), v, fixed, **options).factor


def check_kernel(kernel) -> None:
    """Raise unless it is one."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a jaxrls kernel such as Gaussian(1.0), and is {kernel!r}")


def check_route(route: str | None, landmarks, iteration: Iteration | None = None) -> None:
    """Raise for a route that there is not, or that does not go with landmarks, or with an
    iteration.
    """
    if route is not None and route not in ROUTES:
        raise ValueError(
            f"route must be one of {', '.join(map(repr, ROUTES))} or None to choose, and is {route!r}"
        )
    if (
        route not in (None, "subset", "cholesky", "iterative")
        and landmarks is not None
        or route == "subset"
        and landmarks is None
    ):
        raise ValueError(
            f"landmarks and route='subset' belong together, and route is {route!r}: give landmarks= alone, or neither"
        )
    if route == "iterative" and landmarks is None:
        raise ValueError(
            "route='iterative' needs landmarks=, whose fit its products begin from: a number such as 1000"
        )
    if iteration is not None and route != "iterative":
        raise ValueError(
            f"iteration= belongs to route='iterative', and route is {route!r}: name that route, or leave iteration= out"
        )
    if not isinstance(iteration, Iteration | None):
        raise ValueError(
            f"iteration must be a jaxrls.Iteration, such as Iteration(tol=1e-3), and is {iteration!r}"
        )


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
    fixed: FixedEffects,
    *,
    landmarks: Landmarks | None = None,
    leave: bool = True,
    route: str | None = None,
    block_size: int | None = None,
    iteration: Iteration | None = None,
    keep_moments: bool = False,
) -> Solution:
    """The solution for some labels, with moments and cross-moments from one reading of the rows,
    which are kept where it is asked for.
    """
    check_route(route, landmarks, iteration)
    if keep_moments:
        check_keeps(kernel, rows, route, landmarks)
    problem = kernel, rows, labels, weights, fixed
    if route == "iterative":
        options: dict = {"iteration": iteration, "block_size": block_size}
        assert landmarks is not None  # by `check_route`
        return factor_iterative(kernel, rows, landmarks, weights, fixed, **options).solve_labels(
            labels
        )
    if route == "cholesky" and is_primal(kernel, *rows.shape, rows.dtype, landmarks):
        return solve_cholesky(kernel, rows, landmarks, labels, weights, fixed, block_size)
    if landmarks is not None:
        options = {"drop": leave, "block_size": block_size, "keep_moments": keep_moments}
        return solve_subset(kernel, rows, landmarks, labels, weights, fixed, **options)
    if keep_moments:
        return solve_and_sum(*problem)
    explicit = kernel.num_features(rows.shape[1], rows.dtype)
    if route is None:
        in_memory = rows.in_memory or explicit is None
        route = choose_route(kernel, *rows.shape, rows.dtype) if in_memory else "covariance"
    if route in OF_KERNEL_MATRIX:
        return factor_kernel_matrix(kernel, rows, weights, fixed, route, block_size).solve_labels(
            labels
        )
    if explicit is None:
        raise ValueError(
            f"route={route!r} needs explicit features, which {type(kernel).__name__} does not have: "
            "use route='gram'"
        )
    if route == "covariance":
        return solve_covariance(*problem)
    return factor_svd(kernel, rows, weights, fixed).solve_labels(labels)


def factor_kernel_matrix(
    kernel: Kernel, rows: Rows, weights: Weights, fixed: FixedEffects, route: str, block_size
) -> Factor:
    """The factor of all of K, by one of the routes OF_KERNEL_MATRIX."""
    K, expansion, lift = kernel_matrix(kernel, rows, fixed, block_size)
    if route != "gram":
        made = CholeskyGram if route == "cholesky" else RefinedGram
        return made(K, weights, fixed, expansion, lift)
    semidefinite = kernel.is_semidefinite()
    options: dict = {"training": (kernel, rows), "semidefinite": semidefinite, "lift": lift}
    return factor_symmetric(K, weights, fixed, expansion, **options)


def kernel_matrix(
    kernel: Kernel, rows: Any, fixed: FixedEffects, block_size: int | None
) -> tuple[Array, Expansion, Array | None]:
    """K, what its coefficients multiply, and what to add to every row of K for that. A matrix is linear in the rows k(new, training).

    With an intercept only distances between features count: of features far from 0, K about their
    mean keeps what K would round off.
    """
    if not kernel.evaluable:
        return rows.kernel_matrix(kernel, block_size), Primal(), None
    explicit = kernel.num_features(rows.shape[1], rows.dtype) is not None
    if fixed.one is None or not rows.in_memory or not explicit:
        return rows.kernel_matrix(kernel, block_size), Dual(rows.points), None
    features = rows.features(kernel)
    origin = jax.lax.stop_gradient(jnp.mean(features.some(512), axis=0))
    about = features.dense() - origin
    K = gram(Linear(), about, block_size=block_size)
    return K, Dual(rows.points, origin), matmul(about, origin)
