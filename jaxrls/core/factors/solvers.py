"""The solvers that a caller can name, `Spectral`, `Cholesky` and `Refined` (`Iterative` has its own
module): each makes a factor of kernel, rows, weights and fixed effects. `solver=None` takes the
cheapest exact one for the shapes."""

from dataclasses import replace
from typing import Any, ClassVar

from jaxtyping import Array

from jaxrls.core.factors.cholesky import CholeskyGram, RefinedGram
from jaxrls.core.factors.cholesky_features import solve_cholesky
from jaxrls.core.factors.contract import Factor, Solver
from jaxrls.core.factors.expansion import AtPoints, Expansion, Primal
from jaxrls.core.factors.spectrum import factor_svd, factor_symmetric, products, solve_covariance
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.kernels.named import check_kernel
from jaxrls.core.problem.fixed_effects import FixedEffects, as_fixed_effects
from jaxrls.core.problem.gram import gram
from jaxrls.core.problem.labels import Labels
from jaxrls.core.problem.rows import as_rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.checks import platform
from jaxrls.core.support.door import door
from jaxrls.core.support.pytrees import pytree, static
from jaxrls.landmarks.points import as_landmarks, check_evaluable, check_kernel
from jaxrls.landmarks.spectrum import solve_subset

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
# A search for the best λ costs as much as so many λ: about ten, with slopes that double the work.
SEARCHED = 20


def choose_route(kernel: Kernel, n: int, d: int, dtype) -> str:
    """The cheapest exact route for these shapes.

    With fewer features than rows: their covariance where there are 8 times as many rows or more,
    else their SVD. Otherwise K.
    """
    r = kernel.num_features(d, dtype)
    if r is None or r >= n:
        return "gram"
    return "covariance" if n >= 8 * r else "features"


def suits_cholesky(kernel: Kernel, n: int, num: int) -> bool:
    """Whether a Cholesky factor for each of `num` λ takes less time than K's spectrum, and K is
    known to be positive semidefinite without its eigenvalues.
    """
    steps = LAMS_PER_SPECTRUM.get(platform(), LAMS_PER_SPECTRUM["cpu"])
    most = max((few for rows, few in steps if rows <= n), default=1)
    return num <= most and kernel.is_semidefinite()


@door()
def factorize(
    kernel: Kernel,
    X: Any,
    *,
    weights=None,
    intercept: bool = True,
    fixed_effects=None,
    landmarks=None,
    leave: bool = True,
    solver: Solver | None = None,
    block_size: int | None = None,
) -> Factor:
    """Factor a kernel and X once: coefficients, predictions and validation errors for any λ and
    labels follow cheaply from the result.

    Args:
        kernel: a jaxrls kernel; `Precomputed()` where X is a kernel matrix.
        X: rows (n, d), dense, sparse (SciPy or BCOO), or a source of rows.
        weights: sample weights (n,), 0 or more; a row of weight 0 takes no part in the fit. Default
            1.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, f(x) + b·β, or `levels(labels)`, an
            intercept for each group.
        landmarks: `Landmarks`, row numbers of X (m,), or points (m, d), for the subset of
            regressors, f(x) = Σₖ k(x, pointsₖ) βₖ. A single number is not taken here.
        leave: whether a landmark that is a row of X is held out with its row, so that no held-out
            prediction uses this row in any way.
        solver: `Spectral()`, an eigendecomposition for all λ; `Cholesky()`, a factor for each λ,
            cheaper for a few and differentiable in everything; `Refined()` or `Iterative()`. By
            default the cheapest spectrum for the shapes.
        block_size: rows at a time while K or sums over rows are made.

    Returns:
        A `Factor`; `factor.route` says which.

    Raises:
        ValueError: for a solver that the kernel does not have, for fixed effects that are linearly
            dependent, and for values that are not finite, or outside of the kernel's domain; inside
            `jax.jit` values are not checked. Differentiating a spectrum in X, kernel or weights
            raises: use `solver=Cholesky()` or `objective`.

    **Cost** by solver. **Source**: Rifkin (lecture), "Solving RLS"; Quiñonero-Candela and Rasmussen
    2005, §4.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> factor = rls.factorize(rls.Gaussian(1.0), X)
    >>> factor.route, factor.spectrum().s.shape
    ('gram', (4,))
    """
    check_kernel(kernel)
    rows = as_rows(kernel, X)
    rows.check(kernel)
    v = Weights.of_rows(weights, rows)
    fixed = as_fixed_effects(fixed_effects, intercept, v)
    if landmarks is not None:
        check_evaluable(kernel, rows)
        landmarks = as_landmarks(rows, landmarks)
        landmarks = landmarks if leave else replace(landmarks, indices=None)
    check_solver(solver)
    made = solver or Spectral()
    return made.solve(
        kernel,
        rows,
        Labels.none(v, fixed),
        v,
        fixed,
        landmarks=landmarks,
        block_size=block_size,
    ).factor


def check_solver(solver) -> None:
    """Raise unless it is a solver, or None."""
    if not isinstance(solver, Solver | None):
        raise ValueError(
            "solver must be Spectral(), Cholesky(), Refined() or Iterative(), or None for the "
            f"cheapest, and is {solver!r}"
        )


def check_explicit(solver, kernel: Kernel, explicit: int | None) -> None:
    """Raise for a solver that needs explicit features where the kernel has none."""
    if explicit is None and getattr(solver, "of", None) in ("features", "covariance"):
        raise ValueError(
            f"{solver} needs explicit features, which {type(kernel).__name__} does not have: take "
            "Spectral('gram')"
        )


def check_no_landmarks(landmarks, solver: Solver) -> None:
    """Raise for landmarks given to a solver that uses all of K."""
    if landmarks is not None:
        raise ValueError(
            f"landmarks= cannot be used with {solver}, which fits all of K: leave one of them out"
        )


def kernel_matrix(
    kernel: Kernel, rows: Any, fixed: FixedEffects, block_size: int | None
) -> tuple[Array, Expansion, Array | None]:
    """K, the expansion that its coefficients belong to, and what to add to every row of K to get
    that expansion's kernel. A given matrix is linear in the rows k(new, training).
    """
    explicit = kernel.num_features(rows.shape[1], rows.dtype) is not None
    if explicit and not rows.in_memory:
        rows.dense()  # raises: coefficients of features need all rows at once
    if explicit and fixed.one is not None:
        K, origin, lift = products(rows.features(kernel), fixed)
        return K, AtPoints(rows.points, origin), lift
    expansion = AtPoints(rows.points) if kernel.evaluable else Primal()
    return gram(kernel, rows, block_size=block_size), expansion, None


@pytree
class Spectral(Solver):
    """Solve by one eigendecomposition, which serves every λ: the default.

    On landmarks it is that of their moments, O(n m²). Without landmarks the shapes decide.

    Args:
        of: `"gram"`: that of K, O(n³), for any kernel; `"features"`: the thin SVD of explicit
            features, O(n r²); `"covariance"`: that of ΦᵀΦ, O(n r²) with a smaller constant, for
            many more rows than features. By default the cheapest for the shapes.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Linear(), [[1.0], [2.0]], solver=rls.Spectral("gram")).route
    'gram'
    """

    of: str | None = static(default=None)
    has_spectrum: ClassVar[bool] = True

    def __post_init__(self):
        if self.of not in (None, "gram", "features", "covariance"):
            raise ValueError(
                "of must be 'gram', 'features' or 'covariance', or None for the cheapest, and is "
                f"{self.of!r}"
            )

    def solve(self, kernel, rows, labels, weights, fixed, *, landmarks, block_size):
        """Factor by landmarks, by the decomposition that was named, or by the shapes."""
        data = labels, weights, fixed
        if landmarks is not None:
            if self.of is not None:
                check_no_landmarks(landmarks, self)
            return solve_subset(kernel, rows, landmarks, *data, block_size=block_size)
        n, d = rows.shape
        explicit, of = kernel.num_features(d, rows.dtype), self.of
        if of is None:
            in_memory = rows.in_memory or explicit is None
            of = choose_route(kernel, n, d, rows.dtype) if in_memory else "covariance"
        if of == "gram":
            K, expansion, lift = kernel_matrix(kernel, rows, fixed, block_size)
            options = {"training": (kernel, rows), "semidefinite": kernel.is_semidefinite()}
            factor = factor_symmetric(K, weights, fixed, expansion, lift=lift, **options)
            return factor.solve_labels(labels)
        check_explicit(self, kernel, explicit)
        if of == "covariance":
            return solve_covariance(kernel, rows, *data)
        return factor_svd(kernel, rows, weights, fixed).solve_labels(labels)


@pytree
class Cholesky(Solver):
    """Solve by a Cholesky factor for each λ: cheaper for a few λ, with less rounding, and
    differentiable in everything.

    The factor is that of K + λI, or with fewer features or landmarks that of their moments.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Cholesky()).route
    'cholesky'
    """

    def solve(self, kernel, rows, labels, weights, fixed, *, landmarks, block_size):
        """Factor on features or landmarks, else on K."""
        n, d = rows.shape
        if landmarks is not None or choose_route(kernel, n, d, rows.dtype) != "gram":
            return solve_cholesky(kernel, rows, landmarks, labels, weights, fixed, block_size)
        K, expansion, lift = kernel_matrix(kernel, rows, fixed, block_size)
        return CholeskyGram(K, weights, fixed, expansion, lift, (kernel, rows)).solve_labels(labels)


@pytree
class Refined(Solver):
    """Solve by Cholesky factors of K + λI in float32, refined by products in float64: for λ far
    below what float32 alone can resolve.

    It takes about 16n³ operations for each λ. Whatever the dtype of X, `fit` returns coefficients,
    held-out residuals and error in float64. `fit.run` says how good each step was: the distance of
    W (K + λI) Wᵀ from the identity, where W is the refined inverse of the Cholesky factor.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Refined()).route
    'refined'
    """

    def solve(self, kernel, rows, labels, weights, fixed, *, landmarks, block_size):
        """Factor K of all rows."""
        check_no_landmarks(landmarks, self)
        K, expansion, lift = kernel_matrix(kernel, rows, fixed, block_size)
        return RefinedGram(K, weights, fixed, expansion, lift, (kernel, rows)).solve_labels(labels)
