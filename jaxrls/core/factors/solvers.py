"""The base class of solvers, and those that a caller can name here, `Spectral` and `Cholesky`: each
makes a factor of kernel, rows, weights and fixed effects. `solver=None` takes the cheapest exact
one for the shapes; rooms bring further solvers, and what `landmarks=` is short for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from jaxrls.core.data import Data, Labels, Weights, as_fixed_effects, as_rows
from jaxrls.core.factors.cholesky import CholeskyGram
from jaxrls.core.factors.cholesky_features import solve_cholesky
from jaxrls.core.factors.expansion import kernel_matrix, stays_dual
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.lams import COLUMNS_AT_ONCE
from jaxrls.core.factors.primal_spectrum import solve_covariance
from jaxrls.core.factors.solution import Solution
from jaxrls.core.factors.spectrum import factor_svd, factor_symmetric
from jaxrls.core.kernels import Kernel, Linear, check_kernel
from jaxrls.core.linalg import Number, wide_block_size
from jaxrls.core.support import platform, public_call, pytree, static


class CallShape(NamedTuple):
    """The shapes of a call, from which the memory that it takes follows."""

    kernel: Any
    rows: int
    columns: int
    dtype: Any
    targets: int = 1
    lams: int | None = None  # how many λ; None for those of a default fit
    gradient: bool = False  # whether derivatives are taken, which hold everything twice

    @property
    def features(self) -> int | None:
        """The number of the kernel's explicit features, None where it has none."""
        return self.kernel.num_features(self.columns, self.dtype)

    @property
    def twice(self) -> int:
        """2 where derivatives are taken, else 1."""
        return 1 + self.gradient

    def lam_columns(self) -> int:
        """Columns of the products for all λ and targets that are in memory at once."""
        count = 1 if self.gradient else self.lams or 100
        return max(self.targets, min(count * self.targets, COLUMNS_AT_ONCE))

    def coefficients(self) -> int:
        """Numbers of the coefficients that a model keeps."""
        n, d, t = self.rows, self.columns, self.targets
        r = self.features
        return (n if r is None or stays_dual(n, d, r, t) else r) * t

    def block(self, width: int) -> int:
        """Numbers of a block of rows with so many features each, and of its products."""
        rows = wide_block_size(self.rows, 2 * width * jnp.dtype(self.dtype).itemsize)
        return 4 * rows * (width + self.lam_columns())


class Footprint(NamedTuple):
    """The numbers that a solver holds, and in words what of: `width` columns for each row."""

    route: str
    width: int
    numbers: int
    words: str
    of_kernel: bool = False  # whether the matrix is K of all rows


class Solver(ABC):
    """The base class of solvers, your own included: how the factorization is done.

    One of your own is a `pytree` that defines `solve`, whose solution holds a `Factor`.

    >>> import jaxrls as rls
    >>> [type(one).__name__ for one in (rls.Spectral(), rls.Cholesky()) if one.has_spectrum]
    ['Spectral']
    """

    has_spectrum: ClassVar[bool] = False  # whether its factor gives eigenvalues, for a grid of λ

    @abstractmethod
    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor and attach the labels, in as few readings of the rows as possible.

        Args:
            kernel: a jaxrls kernel.
            data: rows of X, weights and fixed effects.
            labels: labels, checked.
            block_size: rows at a time; None for the default.

        Returns:
            A `Solution` of the factor.
        """

    def prepare(self, kernel: Any, rows: Any, weights: Weights, progress: bool = False) -> "Solver":
        """The solver with what is chosen once, before any factorization, such as landmarks. Raises
        for what it cannot solve.
        """
        return self

    def differentiable(self) -> "Solver":
        """The solver of the same problem that is differentiable in everything, at one λ."""
        return self

    def mean_error(self, problem: Any, lam: Number) -> Number:
        """The criterion of a problem at one λ, averaged over targets, by a solver that is
        differentiable in everything; a solver that has its derivative in closed form gives that.
        """
        return jnp.mean(problem.errors(problem.solution(), lam[None]))

    def run_trials(self, problem: Any, plan_and_run: Callable, progress: bool) -> Any:
        """The fit with the best λ, which `plan_and_run` makes of a problem whose solver is ready; a
        solver that is chosen by trial fits calls it several times.
        """
        return plan_and_run(problem.prepare(progress))

    def search_kernel(
        self, problem: Any, guesses: list, options: Any, grow: bool | None, descend: Callable
    ) -> Any:
        """The best kernel and λ, to which `descend` leads from guesses; a solver that chooses
        landmarks may begin on fewer rows, with `grow`.
        """
        if grow:
            raise ValueError(CANNOT_GROW)
        return descend(problem, guesses, options)

    def points(self, rows: Any) -> Any:
        """The rows, or landmarks, that dual coefficients belong to."""
        return rows.points

    def memory(self, shape: CallShape) -> Footprint:
        """What it holds for a problem of these shapes; by default what K and its factor take."""
        n = shape.rows
        words = "K and its factors"
        return Footprint(type(self).__name__.lower(), n, 4 * n**2, words, of_kernel=True)

    def rows_to_fit(self, X: Any) -> Any:
        """X as `fit` shall read it, such as in another dtype."""
        return X

    def explain(self, run: Any) -> str:
        """Why an iteration stopped, and what to do; empty where it reached its tolerance."""
        return ""

    @property
    def name(self) -> str:
        """Its name in `Fit.plan`."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


# How many λ take as long by a Cholesky factor and inverse each as one eigendecomposition, from so
# many rows on. On CPUs 2 to 6 at n = 1000, 3 to 4 at 2000 and 5 to 6 at 4000, the fewer in float32;
# on an H100 8 to 11 at 1000, 10 to 13 at 2000, 18 to 19 at 4000, 23 to 28 at 8000 and 19 to 34 at
# 16,000, the most in float64 (`benchmarks/run.py --only spectrum` prints it for any machine). On
# TPUs an eigendecomposition takes minutes to compile.
LAMS_PER_SPECTRUM = {
    "cpu": ((1000, 2), (2000, 3), (3000, 4), (4000, 5)),
    "gpu": ((1000, 8), (2000, 9), (4000, 17), (8000, 20)),
    "tpu": ((1, 100),),
}
# A search for the best λ costs as much as so many λ: about ten, with slopes that double the work.
LAMS_PER_SEARCH = 20
# What options of public calls are short for, by their name: a function of the option's value, of
# the solver that was named or None, and of whether landmarks leave with their row.
SOLVER_OF_OPTION: dict[str, Callable[[Any, Solver | None, bool], Solver]] = {}
# Solvers for rows of which K is too large, where none was named; a room adds its own.
SOLVERS_WITHOUT_K: list[Callable[[], Solver]] = []
# Rows of a sample on which a search may begin: enough to distinguish widths.
SAMPLE_ROWS = 4000
CANNOT_GROW = (
    f"grow=True needs landmarks, more than {2 * SAMPLE_ROWS} rows, a criterion without groups or "
    "pairs, and no fixed_effects=: leave it out"
)


def choose_route(kernel: Kernel, shape: tuple[int, int], dtype: Any) -> str:
    """The cheapest exact route for these shapes.

    With fewer features than rows: their covariance where there are 8 times as many rows or more,
    else their SVD. Otherwise K.
    """
    n = shape[0]
    r = kernel.num_features(shape[1], dtype)
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


@public_call()
def factorize(
    kernel: Kernel,
    X: Any,
    *,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    landmarks: Any = None,
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
            intercept for each group, or a list of both.
        landmarks: as in `fit`, but for "auto": the subset of regressors, f(x) = Σₖ k(x, pointsₖ)
        βₖ.
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
    data = Data(rows, v, as_fixed_effects(fixed_effects, intercept, v))
    named = named_solver(solver, landmarks, leave) or Spectral()
    prepared = named.prepare(kernel, rows, v)
    labels = Labels.none(v, data.fixed)
    return prepared.solve(kernel, data, labels, block_size=block_size).factor


def named_solver(solver: Any, landmarks: Any = None, leave: bool = True) -> Solver | None:
    """The solver that a caller named, checked; `landmarks=` is short for one. None where neither
    was given.
    """
    if not isinstance(solver, Solver | None):
        raise ValueError(
            "solver must be Spectral(), Cholesky(), Refined() or Iterative(), or None for the "
            f"cheapest, and is {solver!r}"
        )
    return solver if landmarks is None else SOLVER_OF_OPTION["landmarks"](landmarks, solver, leave)


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

    def route(self, kernel: Kernel, shape: tuple[int, int], dtype: Any) -> str:
        """What is decomposed, by name or by the shapes; raises where the kernel lacks it."""
        if self.of in ("features", "covariance") and kernel.num_features(shape[1], dtype) is None:
            raise ValueError(
                f"{self} needs explicit features, which {type(kernel).__name__} does not have: "
                "take Spectral('gram')"
            )
        return self.of or choose_route(kernel, shape, dtype)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor by the decomposition that was named, or by the shapes."""
        rows = data.rows
        route = self.route(kernel, rows.shape, rows.dtype)
        has_features = kernel.num_features(rows.shape[1], rows.dtype) is not None
        takes_pairs = route == "gram" and rows.has_pairs
        if self.of is None and has_features and not rows.in_memory and not takes_pairs:
            route = "covariance"  # the one that takes rows in blocks
        if route == "gram":
            matrix = kernel_matrix(kernel, data, block_size)
            return factor_symmetric(matrix, kernel.is_semidefinite()).solve_labels(labels)
        if route == "covariance":
            return solve_covariance(kernel, data, labels)
        return factor_svd(kernel, data).solve_labels(labels)

    def differentiable(self):
        """A Cholesky factor."""
        return Cholesky()

    def memory(self, shape: CallShape) -> Footprint:
        """K with eigenvectors, or features, or their covariance."""
        n = shape.rows
        r = shape.features or shape.rows
        route = self.route(shape.kernel, (n, shape.columns), shape.dtype)
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

    The factor is that of K + λI, or with fewer features or landmarks that of their moments.

    >>> import jaxrls as rls
    >>> rls.factorize(rls.Gaussian(1.0), [[1.0], [2.0]], solver=rls.Cholesky()).route
    'cholesky'
    """

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor on fewer features than rows, else on K."""
        rows = data.rows
        if choose_route(kernel, rows.shape, rows.dtype) != "gram":
            return solve_cholesky(kernel, data, labels, block_size)
        matrix = kernel_matrix(kernel, data, block_size)
        return CholeskyGram(**matrix._asdict()).solve_labels(labels)

    def memory(self, shape: CallShape) -> Footprint:
        """K with its factors, or moments with theirs."""
        n = shape.rows
        d = shape.columns
        if choose_route(shape.kernel, (n, d), shape.dtype) == "gram":
            numbers = (2 + shape.twice) * n**2
            words = "K, its Cholesky factor and inverse"
            return Footprint("cholesky gram", n, numbers, words, of_kernel=True)
        r = shape.features or n
        L = 1 if shape.gradient else shape.lams or 100
        numbers = shape.twice * ((3 + 2 * L) * r**2 + shape.block(r))
        words = "the features' covariance, its factors and blocks of rows"
        return Footprint("cholesky features", r, numbers, words)
