"""Solvers: how a kernel, rows, weights and fixed effects are made into a factor.

`Solver` is the base class. `Spectral` and `Cholesky` are the two solvers of the core, and rooms add
further ones. `factorize` is the public function. Without `solver=` it takes the cheapest exact
solver for the shapes.
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
    lams: int | None = None  # how many λ; None for as many as a default fit has
    gradient: bool = False  # whether derivatives are taken, which double what is held

    @property
    def features(self) -> int | None:
        """The number of the kernel's explicit features; None if it has none."""
        return self.kernel.num_features(self.columns, self.dtype)

    @property
    def twice(self) -> int:
        """2 if derivatives are taken, else 1."""
        return 1 + self.gradient

    def lam_columns(self) -> int:
        """Return how many columns of products, for all λ and targets, are in memory at once."""
        count = 1 if self.gradient else self.lams or 100
        return max(self.targets, min(count * self.targets, COLUMNS_AT_ONCE))

    def coefficients(self) -> int:
        """Return how many numbers a model keeps as coefficients."""
        n, d, t = self.rows, self.columns, self.targets
        r = self.features
        return (n if r is None or stays_dual(n, d, r, t) else r) * t

    def block(self, width: int) -> int:
        """Return how many numbers a block of rows holds, with `width` features a row and with its
        products.
        """
        rows = wide_block_size(self.rows, 2 * width * jnp.dtype(self.dtype).itemsize)
        return 4 * rows * (width + self.lam_columns())


class Footprint(NamedTuple):
    """The memory that a solver needs, as a count of numbers.

    `route` names what is factored. `width` is how many numbers a block of rows takes for each row,
    such as n for K. `numbers` is how many numbers are held in total, and `words` says what they
    are.
    """

    route: str
    width: int
    numbers: int
    words: str
    of_kernel: bool = False  # whether K of all rows is factored


class Solver(ABC):
    """The base class of solvers, which make factors. You may write your own.

    A solver of your own is a `pytree` that defines `solve`. The solution that it returns holds a
    `Factor`.

    >>> import jaxrls as rls
    >>> [type(one).__name__ for one in (rls.Spectral(), rls.Cholesky()) if one.has_spectrum]
    ['Spectral']
    """

    has_spectrum: ClassVar[bool] = False  # whether its factor gives eigenvalues, for a grid of λ

    @abstractmethod
    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor the kernel and attach the labels, in as few passes over the rows as possible.

        Args:
            kernel: a jaxrls kernel.
            data: rows of X, weights and fixed effects.
            labels: labels, checked.
            block_size: rows at a time; None for the default.

        Returns:
            A `Solution` of the factor.
        """

    def prepare(self, kernel: Any, rows: Any, weights: Weights, progress: bool = False) -> "Solver":
        """Return the solver with all that is chosen once, before any factorization, such as
        landmarks.

        Raise a `ValueError` for a problem that the solver cannot solve.
        """
        return self

    def differentiable(self) -> "Solver":
        """Return the solver of the same problem that is differentiable in everything, at one λ."""
        return self

    def mean_error(self, problem: Any, lam: Number) -> Number:
        """Return the criterion of a problem at one λ, averaged over targets.

        The solver of the problem must be differentiable in everything. A solver that knows the
        derivative in closed form overrides this method.
        """
        return jnp.mean(problem.errors(problem.solution(), lam[None]))

    def run_trials(self, problem: Any, plan_and_run: Callable, progress: bool) -> Any:
        """Return the `Fit` with the best λ.

        `plan_and_run` makes it from a prepared problem. A solver that is chosen by trial fits calls
        `plan_and_run` several times.
        """
        return plan_and_run(problem.prepare(progress))

    def search_kernel(
        self, problem: Any, guesses: list, options: Any, grow: bool | None, descend: Callable
    ) -> Any:
        """Return the best kernel and λ that `descend` finds from the `guesses`.

        With `grow`, a solver that chooses landmarks may begin with fewer rows. Other solvers raise
        a `ValueError` then.
        """
        if grow:
            raise ValueError(CANNOT_GROW)
        return descend(problem, guesses, options)

    def points(self, rows: Any) -> Any:
        """Return the rows or landmarks that dual coefficients belong to."""
        return rows.points

    def memory(self, shape: CallShape) -> Footprint:
        """Return what the solver holds for a problem of these shapes, by default K and its
        factors.
        """
        n = shape.rows
        words = "K and its factors"
        return Footprint(type(self).__name__.lower(), n, 4 * n**2, words, of_kernel=True)

    def rows_to_fit(self, X: Any) -> Any:
        """Return X as `fit` shall read it, for example in another dtype."""
        return X

    def explain(self, run: Any) -> str:
        """Return why an iteration stopped and what to do, or "" if it reached its tolerance."""
        return ""

    @property
    def name(self) -> str:
        """The solver's name in `Fit.plan`."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


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
# A search for the best λ costs as much as this many λ: it evaluates about ten, and their slopes
# double the work.
LAMS_PER_SEARCH = 20
# Public options that stand for a solver, by name. Each is a function of the option's value, of the
# solver that was named or None, and of whether landmarks are held out with their row.
SOLVER_OF_OPTION: dict[str, Callable[[Any, Solver | None, bool], Solver]] = {}
# Solvers to take if K is too large and no solver was named. Rooms append theirs.
SOLVERS_WITHOUT_K: list[Callable[[], Solver]] = []
# How many rows a search may begin on. They are enough to distinguish widths.
SAMPLE_ROWS = 4000
CANNOT_GROW = (
    f"grow=True needs landmarks, more than {2 * SAMPLE_ROWS} rows, a criterion without groups or "
    "pairs, and no fixed_effects=: leave it out"
)


def choose_route(kernel: Kernel, shape: tuple[int, int], dtype: Any) -> str:
    """Return the cheapest exact route for these shapes: "gram", "covariance" or "features".

    With r < n explicit features it is "covariance" if n ≥ 8r, and "features" otherwise. Without
    them, or with r ≥ n, it is "gram".
    """
    n = shape[0]
    r = kernel.num_features(shape[1], dtype)
    if r is None or r >= n:
        return "gram"
    return "covariance" if n >= 8 * r else "features"


def suits_cholesky(kernel: Kernel, n: int, num: int) -> bool:
    """Whether Cholesky factors for `num` values of λ take less time than the spectrum of K.

    The kernel must also be known to be positive semidefinite, as only eigenvalues show whether K
    is.
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
    """Factor a kernel and X once. Coefficients, predictions and validation errors for any λ and
    labels follow cheaply from the result.

    Args:
        kernel: a jaxrls kernel; `Precomputed()` if X is a kernel matrix.
        X: rows (n, d), dense, sparse (SciPy or BCOO), or a source of rows.
        weights: sample weights (n,), 0 or more. A row of weight 0 takes no part in the fit. Default
            1.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, f(x) + b·β; or `levels(labels)`, an
            intercept for each group; or a list of both.
        landmarks: as in `fit`, except "auto". They give the subset of regressors, f(x) = Σₖ k(x,
            pointsₖ) βₖ.
        leave: whether a landmark that is a row of X is held out with its row. If so, no held-out
            prediction uses this row in any way.
        solver: `Spectral()`, one eigendecomposition for all λ; `Cholesky()`, one factor for each λ,
            which is cheaper for a few λ and differentiable in everything; `Refined()` or
            `Iterative()`. By default the cheapest spectrum for the shapes.
        block_size: rows at a time while K or sums over rows are made.

    Returns:
        A `Factor`; `factor.route` says how it was made.

    Raises:
        ValueError: for a solver that the kernel does not have, for fixed effects that are linearly
            dependent, and for values that are not finite or outside of the kernel's domain. Inside
            `jax.jit` values are not checked.
        TypeError: when a spectrum is differentiated in X, kernel or weights. Use
            `solver=Cholesky()` or `objective` instead.

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
    """Return the solver that a caller named by `solver=` or `landmarks=`, checked.

    It is None if the caller gave neither.
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

    def route(self, kernel: Kernel, shape: tuple[int, int], dtype: Any) -> str:
        """Return what is decomposed, as it was named or by the shapes.

        Raise a `ValueError` if the kernel has no explicit features but they were named.
        """
        if self.of in ("features", "covariance") and kernel.num_features(shape[1], dtype) is None:
            raise ValueError(
                f"{self} needs explicit features, which {type(kernel).__name__} does not have: "
                "take Spectral('gram')"
            )
        return self.of or choose_route(kernel, shape, dtype)

    def solve(
        self, kernel: Any, data: Data, labels: Labels, *, block_size: int | None = None
    ) -> Solution:
        """Factor by the decomposition that was named, or by the one that suits the shapes."""
        rows = data.rows
        route = self.route(kernel, rows.shape, rows.dtype)
        has_features = kernel.num_features(rows.shape[1], rows.dtype) is not None
        takes_pairs = route == "gram" and rows.has_pairs
        if self.of is None and has_features and not rows.in_memory and not takes_pairs:
            route = "covariance"  # the only route that reads rows in blocks
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
        rows = data.rows
        if choose_route(kernel, rows.shape, rows.dtype) != "gram":
            return solve_cholesky(kernel, data, labels, block_size)
        matrix = kernel_matrix(kernel, data, block_size)
        return CholeskyGram(**matrix._asdict()).solve_labels(labels)

    def memory(self, shape: CallShape) -> Footprint:
        """Return the memory of K with its factors, or of moments with their factors."""
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
