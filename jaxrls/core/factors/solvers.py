"""The solvers `Spectral` and `Cholesky`, and which solver a call takes.

`named_solver` is the one that the caller named. `cheapest_solver` is that of the least time.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxrls.core.data import Data, Labels, Rows
from jaxrls.core.factors.cholesky import CholeskyGram
from jaxrls.core.factors.cholesky_features import solve_cholesky
from jaxrls.core.factors.expansion import kernel_matrix
from jaxrls.core.factors.primal_spectrum import solve_covariance
from jaxrls.core.factors.solution import Solution
from jaxrls.core.factors.solver import CallShape, Footprint, Solver
from jaxrls.core.factors.spectrum import factor_svd, factor_symmetric
from jaxrls.core.kernels import Kernel, Linear
from jaxrls.core.support import platform, pytree, static

# Public options that stand for a solver, by name. Each is a function of the option's value, of the
# solver that was named or None, and of whether landmarks are held out with their row.
SOLVER_OF_OPTION: dict[str, Callable[[Any, Solver | None, bool], Solver]] = {}
# Solvers to take if K is too large and no solver was named. Rooms append theirs.
SOLVERS_WITHOUT_K: list[Callable[[], Solver]] = []

# For each platform pairs (rows, num): from this many rows on, Cholesky factors and inverses for
# `num` values of λ take as long as one eigendecomposition. `benchmarks/run.py --only spectrum`
# measures it. On CPUs it was 2 to 6 at n = 1000, 3 to 4 at 2000 and 5 to 6 at 4000, less in
# float32. On an H100 it was 8 to 11 at 1000, 10 to 13 at 2000, 18 to 19 at 4000, 23 to 28 at 8000
# and 19 to 34 at 16,000, more in float64. On TPUs an eigendecomposition takes minutes to compile.
LAMS_PER_SPECTRUM = {
    "cpu": ((1000, 2), (2000, 3), (3000, 4), (4000, 5)),
    "gpu": ((1000, 8), (2000, 9), (4000, 17), (8000, 20)),
    "tpu": ((1, 100),),
}
# A search for the best λ by Cholesky factors costs as much as this many λ: it evaluates about ten,
# and their slopes double the work.
LAMS_PER_SEARCH = 20


def named_solver(solver: Any, landmarks: Any = None, leave: bool = True) -> Solver | None:
    """Return the solver that a caller named by `solver=` or `landmarks=`, checked.

    It is None if the caller gave neither.
    """
    if not isinstance(solver, Solver | None):
        raise ValueError(
            "solver must be Spectral(), Cholesky(), Refined() or Iterative(), or None for the "
            f"cheapest, and is {solver!r}"
        )
    return solver if landmarks is None else SOLVER_OF_OPTION["landmarks"](landmarks, solver, leave)


def cheapest_solver(shape: CallShape) -> Solver:
    """Return the solver that is exact and takes the least time for the shapes and λ of a call.

    It is `Cholesky()` if Cholesky factors of K for all λ take less time than any spectrum, and else
    `Spectral()`. K must be what is factored at these shapes. The kernel must also be known to be
    positive semidefinite, as only eigenvalues show whether K is. A search counts as LAMS_PER_SEARCH
    values of λ.
    """
    if shape.route != "gram":
        return Spectral()
    steps = LAMS_PER_SPECTRUM.get(platform(), LAMS_PER_SPECTRUM["cpu"])
    most = max((few for rows, few in steps if rows <= shape.rows), default=1)
    factors_are_cheaper = shape.lams <= most and shape.kernel.is_semidefinite()
    return Cholesky() if factors_are_cheaper else Spectral()


@pytree
class Spectral(Solver):
    """Solve by one eigendecomposition, which serves every λ: the default.

    On landmarks it decomposes their moments, O(n m²). Without landmarks the shapes decide.

    Args:
        of: what is decomposed: `"gram"` for K, O(n³), for any kernel; `"features"` for the thin SVD
            of explicit features, O(n r²); `"covariance"` for ΦᵀΦ, O(n r²) with a smaller constant,
            for many more rows than features. By default the cheapest for the shapes.

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

    def route(self, kernel: Kernel, rows: Rows) -> str:
        """Return what is decomposed for these rows, as it was named or by their kind and shape.

        Explicit features of rows that are read in blocks are not kept, so that their covariance is
        decomposed. K is decomposed in their place if it is cheaper, and the rows can be paired.
        """
        route = self.route_of_shape(CallShape.of_rows(kernel, rows))
        if self.of is not None or rows.in_memory or rows.num_features(kernel) is None:
            return route
        return route if route == "gram" and rows.has_pairs else "covariance"

    def route_of_shape(self, shape: CallShape) -> str:
        """Return what is decomposed for rows in memory, as it was named or by the shapes.

        Raise a `ValueError` if the kernel has no explicit features but they were named.
        """
        if self.of in ("features", "covariance") and shape.num_features is None:
            name = type(shape.kernel).__name__
            raise ValueError(
                f"{self} needs explicit features, which {name} does not have: take Spectral('gram')"
            )
        return self.of or shape.route

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor by the decomposition that was named, or by the one that suits the rows."""
        route = self.route(kernel, data.rows)
        if route == "gram":
            matrix = kernel_matrix(kernel, data, block_size)
            return factor_symmetric(matrix, kernel.is_semidefinite()).solve_labels(labels)
        if route == "covariance":
            return solve_covariance(kernel, data, labels)
        return factor_svd(kernel, data).solve_labels(labels)

    def differentiable(self):
        """Return `Cholesky()`, as eigenvectors have no safe derivatives."""
        return Cholesky()

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of K with its eigenvectors, of features, or of their covariance."""
        n = shape.rows
        r = shape.num_features or shape.rows
        route = self.route_of_shape(shape)
        if route == "gram":
            numbers = 4 * n**2 + 2 * n * shape.lam_columns()
            words = "K, its eigenvectors and LAPACK's workspace"
            return Footprint(route, n, numbers, words, of_kernel=True)
        if route == "features":
            numbers = 4 * n * r + 2 * min(n, r) ** 2 + n * shape.lam_columns()
            words = "features, singular vectors and LAPACK's workspace"
        else:
            stored = 2 * n * r * (not isinstance(shape.kernel, Linear) or r >= n)
            numbers = 5 * min(n, r) ** 2 + shape.block(r) + stored
            words = "the features' covariance, its eigenvectors and blocks of rows"
        return Footprint(route, r, numbers, words)


@pytree
class Cholesky(Solver):
    """Solve by a Cholesky factor for each λ: cheaper for a few λ, with less rounding, and
    differentiable in everything.

    The factor is that of K + λI. If there are fewer features or landmarks than rows, it is that of
    their moments.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Cholesky()).route
    'cholesky'
    """

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor moments of features if they are fewer than rows, else K."""
        if CallShape.of_rows(kernel, data.rows).route != "gram":
            return solve_cholesky(kernel, data, labels, block_size)
        matrix = kernel_matrix(kernel, data, block_size)
        return CholeskyGram(**matrix._asdict()).solve_labels(labels)

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of K with its factors, or of moments with their factors."""
        n = shape.rows
        if shape.route == "gram":
            numbers = (2 + shape.twice) * n**2
            words = "K, its Cholesky factor and inverse"
            return Footprint("cholesky gram", n, numbers, words, of_kernel=True)
        r = shape.num_features or n
        numbers = shape.twice * ((3 + 2 * shape.count_of_lams) * r**2 + shape.block(r))
        words = "the features' covariance, its factors and blocks of rows"
        return Footprint("cholesky features", r, numbers, words)
