"""Bytes that a call holds, computed from shapes: the largest matrices of each route."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors.contract import COLUMNS_AT_ONCE, Solver
from jaxrls.core.factors.solvers import (
    SEARCHED,
    Cholesky,
    Refined,
    check_explicit,
    check_solver,
    choose_route,
    suits_cholesky,
)
from jaxrls.core.fit.problem import Problem
from jaxrls.core.kernels.inner import Linear
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.kernels.named import check_kernel
from jaxrls.core.linalg.blocks import FEWEST_ROWS, block_bytes, wide_block_size
from jaxrls.core.linalg.products import PANELS
from jaxrls.core.support.checks import check_whole, in_words, why_too_large
from jaxrls.iterative.iterative import Iterative
from jaxrls.landmarks.spectrum import keeps_rows

CALLS = ("fit", "gradient", "predict")
WORDS = {
    "gram": "K, its eigenvectors and LAPACK's workspace",
    "cholesky gram": "K, its Cholesky factor and inverse",
    "refined": "K, roots of its inverse and their products",
    "features": "features, singular vectors and LAPACK's workspace",
    "covariance": "the features' covariance, its eigenvectors and blocks of rows",
    "subset": "the landmarks' matrices and rows",
    "cholesky features": "the features' covariance, its factors and blocks of rows",
    "cholesky landmarks": "the landmarks' matrices and blocks of rows",
    "iterative": "rows of landmarks, blocks of near rows, and vectors for targets and probes",
}


@dataclass(frozen=True)
class Estimate:
    """The memory that a call needs besides its arguments, as `estimate` returns it.

    Args:
        call: `"fit"`, `"gradient"` or `"predict"`.
        route: what is factored, such as `"gram"` for K or `"subset"` for landmarks.
        bytes: the peak of memory, in bytes.
        words: the matrices that take it, in words.
        rows: the number of rows n.

    >>> import jaxrls as rls
    >>> print(rls.estimate(rls.Gaussian(1.0), (10_000, 8)))
    fit by gram: 3.22 GB for K, its eigenvectors and LAPACK's workspace
    """

    call: str
    route: str
    bytes: int
    words: str
    rows: int

    def __str__(self):
        return f"{self.call} by {self.route}: {in_words(self.bytes)} for {self.words}"

    def why_not(self) -> str:
        """Why the default device cannot run it, and what to do instead; empty where it can."""
        return why_too_large(self.rows, self.route, self.bytes)

    def check(self) -> None:
        """Raise if the default device cannot run the call.

        Raises:
            ValueError: where `why_not` is not empty.
        """
        if words := self.why_not():
            raise ValueError(words)


def estimate(
    kernel: Kernel,
    shape: tuple[int, int],
    *,
    call: str = "fit",
    targets: int = 1,
    lams: int | None = None,
    weights: bool = False,
    landmarks: int | None = None,
    groups: int | None = None,
    solver: Solver | None = None,
    keep: bool = False,
    pairs: bool = False,
    fixed_effects: int | None = None,
    dtype=float,
    rows: int | None = None,
) -> Estimate:
    """Estimate the memory of a call from the shape of X, before the call is made.

    Args:
        kernel: a jaxrls kernel.
        shape: (n, d), the shape of X, or X itself.
        call: `"fit"`, also for `factorize` with a sweep over λ; `"gradient"`, for `objective` with
            its derivatives, as in a step of `tune`; or `"predict"`, for predictions of `rows` rows
            by a model of n rows.
        targets: how many columns Y has.
        lams: how many λ; by default 100, as in the grid of `fit`.
        weights: whether there are sample weights.
        landmarks: how many landmarks; by default none.
        groups: the rows of the largest group that is held out; by default rows are held out singly.
        solver: as in `fit`.
        keep: as in `fit`; counts what `posterior` and `intervals` compute from the solution too.
        pairs: whether rows are held out in pairs; with `groups`, in pairs of each group.
        fixed_effects: how many columns have no penalty.
        dtype: that of X, float32 or float64.
        rows: how many rows to predict, for `"predict"`; by default n.

    Returns:
        An `Estimate`, whose text gives route, bytes and matrices. It counts the leading terms of
        the largest matrices, on top of X and Y, without compiled programs (50 to 80 MB), and is
        within a factor of 2 of what is measured on a CPU for n ≥ 2000
        (`benchmarks/scaling.py --estimate`).

    Raises:
        ValueError: for an unknown call, route or dtype, and for a number that is not whole or is
            below 1.

    **Cost** none: no array is made. **Source**: the sizes of the matrices that each route holds.

    >>> import jaxrls as rls
    >>> shape = 20_000, 8
    >>> plain, some = (rls.estimate(rls.Gaussian(1.0), shape, landmarks=m) for m in (None, 500))
    >>> plain.route, some.route, plain.bytes > 50 * some.bytes
    ('gram', 'subset', True)
    """
    check_kernel(kernel)
    check_solver(solver)
    if call not in CALLS:
        raise ValueError(f"call must be one of {', '.join(map(repr, CALLS))}, and is {call!r}")
    shape = getattr(shape, "shape", shape)
    if np.shape(shape) != (2,):
        raise ValueError(f"shape must be (n, d), or X itself, and is {shape!r}")
    n, d = shape
    counts = {"rows of shape": n, "columns of shape": d, "targets": targets, "lams": lams}
    counts |= {"landmarks": landmarks, "groups": groups, "fixed_effects": fixed_effects}
    for name, count in counts.items():
        if count is not None:
            check_whole(name, count, n if name in ("landmarks", "groups") else None)
    dtype, explicit = jnp.dtype(dtype), kernel.num_features(d, dtype)
    if dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, and is {dtype}")
    check_explicit(solver, kernel, explicit)
    probes, gradient, t = 0, call == "gradient", targets
    if isinstance(solver, Iterative):
        near, probes = getattr(solver.landmarks, "points", solver.landmarks), solver.vectors(n)
        landmarks = len(near) if np.ndim(near) else near or solver.enough(n)
    few = landmarks is None and suits_cholesky(kernel, n, lams or SEARCHED)
    route = _route(kernel, n, d, dtype, landmarks, Cholesky() if gradient else solver, few)
    dual = route in ("gram", "cholesky gram", "refined")  # of K, where r = n
    r = n if dual else landmarks or explicit or n
    if call == "predict":
        block = max(block_bytes() // dtype.itemsize, 16 * r)
        numbers = min(2 * block, (rows or n) * r) + 2 * (rows or n) * t
        return Estimate(call, route, numbers * dtype.itemsize, "blocks of rows", n)
    L = 1 if gradient else lams or (SEARCHED if route == "cholesky gram" else 100)
    twice = 1 + gradient  # derivatives hold everything twice
    columns = max(t, min(L * t, COLUMNS_AT_ONCE))
    block = 4 * wide_block_size(n, 2 * r * dtype.itemsize) * (r + columns)
    made = 2 * n * r * (not isinstance(kernel, Linear) or r >= n)
    numbers = {
        "gram": 4 * n**2 + 2 * n * columns,
        "cholesky gram": (2 + twice) * n**2,
        "refined": 7 * n**2,
        "features": 4 * n * r + 2 * min(n, r) ** 2 + n * columns,
        "covariance": 5 * min(n, r) ** 2 + block + made,
        "subset": 8 * r**2 + block + n * r * keeps_rows(n, r, dtype.itemsize),
        "cholesky features": twice * ((3 + 2 * L) * r**2 + block),
        "cholesky landmarks": twice * ((9 + 2 * L) * r**2 + 3 * block // 2)
        + gradient * n * r * keeps_rows(n, r, dtype.itemsize),
        "iterative": 4 * n * r + 3 * r**2 + n * (16 * (t + probes) + probes**2 + L * t * probes),
    }[route]
    numbers += n * r * (2 * keep + 2 * (weights if dual else twice * bool(fixed_effects)))
    if groups:
        numbers += 8 * twice * min(groups, r) ** 2 + n * r * twice * (2 + 4 * pairs)
    elif pairs:  # for few rows all pairs at once
        at_once = FEWEST_ROWS if n > 2 * PANELS * FEWEST_ROWS else n // 2
        held = 8 * twice if gradient or landmarks else 3
        numbers += 2 * n * r + held * n * at_once
    numbers = max(4 * n * t + numbers, n * (landmarks or 0))  # the choice of landmarks, made before
    words = WORDS[route] + ", and blocks of pairs of rows" * pairs
    return Estimate(call, route, numbers * dtype.itemsize, words, n)


def _route(kernel: Kernel, n: int, d: int, dtype, landmarks, solver, few: bool) -> str:
    """What is factored; for a Cholesky factor, "cholesky" and what it is of."""
    if isinstance(solver, Iterative | Refined):
        return type(solver).__name__.lower()
    chosen = choose_route(kernel, n, d, dtype)
    if isinstance(solver, Cholesky) or few and solver is None and chosen == "gram":
        return (
            f"cholesky {'landmarks' if landmarks else 'gram' if chosen == 'gram' else 'features'}"
        )
    return "subset" if landmarks else getattr(solver, "of", None) or chosen


def of_problem(problem: Problem, **options) -> Estimate:
    """The estimate of a fit to a problem; `options` of `estimate` override those of the problem."""
    chosen = problem.landmarks
    options_of = {
        "targets": 1 if problem.Y.ndim == 1 else problem.Y.shape[1],
        "weights": problem.weights.values is not None,
        "landmarks": None if chosen is None else len(chosen.points),
        "dtype": problem.rows.dtype,
        "solver": problem.solver,
        "fixed_effects": problem.fixed.count if problem.fixed.count > 1 else None,
    }
    return estimate(
        problem.kernel,
        problem.rows.shape,
        **options_of | problem.criterion.left_out_together() | options,
    )
