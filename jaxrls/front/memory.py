"""`memory` computes from shapes how many bytes a call needs: those of its largest matrices."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import (
    GRID_SIZE,
    LAMS_PER_SEARCH,
    CallShape,
    Footprint,
    Solver,
    cheapest_solver,
    named_solver,
)
from jaxrls.core.fit import Problem
from jaxrls.core.kernels import Kernel, check_kernel
from jaxrls.core.linalg import FEWEST_ROWS, PANELS, block_bytes
from jaxrls.core.support import check_whole, in_words, memory_bytes, platform

CALLS = ("fit", "gradient", "predict")
# The most rows of a spectrum of K on a CPU: LAPACK's 32-bit interface counts the workspace of
# `syevd`, 2n² + 6n + 1 numbers, in a signed 32-bit integer. A Cholesky factor of K needs no
# workspace. It has the same limit, as a fit by Cholesky factors may continue by a spectrum.
LARGEST_CPU_EIGH = 32766


@dataclass(frozen=True)
class Memory:
    """The memory that a call needs besides its arguments, as `memory` returns it.

    Args:
        call: `"fit"`, `"gradient"` or `"predict"`.
        route: what is factored, such as `"gram"` for K or `"subset"` for landmarks.
        bytes: the peak of memory, in bytes.
        words: the matrices that need this memory, in words.
        rows: the number of rows n.

    >>> import jaxrls as rls
    >>> print(rls.memory(rls.Gaussian(1.0), (10_000, 8)))
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
        """Return in words why the default device cannot run the call, and what to do instead.

        The result is empty if the device can run it.
        """
        remedy = (
            "use landmarks= (the subset of regressors), explicit features, or fewer rows: the page "
            "'20,000 rows and more' (docs/many-rows.md) has the recipe"
        )
        n = self.rows
        route = self.route
        of_all_rows = route in ("gram", "cholesky gram")
        if of_all_rows and n > LARGEST_CPU_EIGH and platform() == "cpu":
            return (
                f"X has {n} rows, and LAPACK's 32-bit interface cannot factor more than "
                f"{LARGEST_CPU_EIGH}: {remedy}"
            )
        limit = memory_bytes()
        if limit is None or self.bytes <= limit:
            return ""
        if "landmarks" in route or route == "subset":
            remedy = "use fewer of them"
        return (
            f"X has {n} rows: route {route!r} takes about {in_words(self.bytes)}, and this "
            f"device has {in_words(limit)}: {remedy}"
        )

    def check(self) -> None:
        """Raise if the default device cannot run the call.

        Raises:
            ValueError: if `why_not` is not empty.
        """
        if words := self.why_not():
            raise ValueError(words)


def memory(
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
    dtype: Any = float,
    rows: int | None = None,
) -> Memory:
    """Compute the memory that a call will need from the shape of X, before the call.

    Args:
        kernel: a jaxrls kernel.
        shape: (n, d), the shape of X, or X itself.
        call: one of

            * `"fit"`, also for `factorize` and errors at many λ;
            * `"gradient"`, for `objective` with its derivatives, as in a step of `tune`;
            * `"predict"`, for predictions of `rows` rows by a model of n rows.
        targets: how many columns Y has.
        lams: how many λ; by default 100, as in the grid of `fit`.
        weights: whether there are sample weights.
        landmarks: how many landmarks; by default none.
        groups: the number of rows of the largest group that is held out; by default rows are held
            out singly.
        solver: as in `fit`.
        keep: as in `fit`; if True, what `posterior` and `intervals` compute is counted too.
        pairs: whether rows are held out in pairs; with `groups`, in pairs of each group.
        fixed_effects: how many columns have no penalty.
        dtype: the dtype of X, float32 or float64.
        rows: how many rows to predict, for `"predict"`; by default n.

    Returns:
        A `Memory`, whose text gives route, bytes and matrices. It counts the leading terms of the
        largest matrices. X and Y, and up to two copies of them, are not counted, nor are compiled
        programs and what compiling them takes. On a CPU the first fit of a process keeps 100 to 130
        MB for these, a first fit with landmarks 190 to 250 MB, and a first `tune` 100 to 270 MB
        more; programs that come from a folder of JAX take half of this or less. For n ≥ 2000 it is
        within a factor of 2 of measurements on a CPU (`benchmarks/scaling.py --memory`). Without
        `solver=` it counts K, even if `fit` would take `Iterative`.

    Raises:
        ValueError: for an unknown call or dtype, a shape that is not (n, d), and a number that is
            not whole, is below 1, or for landmarks and groups is above n.

    **Cost** none: no array is made. **Source**: the sizes of the matrices that each route holds.

    >>> import jaxrls as rls
    >>> shape = 20_000, 8
    >>> plain, some = (rls.memory(rls.Gaussian(1.0), shape, landmarks=m) for m in (None, 500))
    >>> plain.route, some.route, plain.bytes > 50 * some.bytes
    ('gram', 'subset', True)
    """
    check_kernel(kernel)
    if call not in CALLS:
        raise ValueError(f"call must be one of {', '.join(map(repr, CALLS))}, and is {call!r}")
    shape = getattr(shape, "shape", shape)
    if np.shape(shape) != (2,):
        raise ValueError(f"shape must be (n, d), or X itself, and is {shape!r}")
    n, d = shape
    counts = {"rows of shape": n, "columns of shape": d, "targets": targets, "lams": lams}
    counts |= {"fixed_effects": fixed_effects, "landmarks": landmarks, "groups": groups}
    counts |= {"rows": rows}
    _check_counts(counts, n)
    if (dtype := jnp.dtype(dtype)) not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, and is {dtype}")
    gradient = call == "gradient"
    of_call = CallShape(kernel, n, d, dtype, targets, lams or GRID_SIZE, gradient)
    held = _held_by(named_solver(solver, landmarks) or _cheapest(of_call, lams), of_call)
    if call == "predict":
        return of_predictions(of_call, held, rows or n)
    return of_training(
        of_call,
        held,
        weights=weights,
        fixed_effects=bool(fixed_effects),
        keep=keep,
        on_landmarks=landmarks is not None,
        groups=groups,
        pairs=pairs,
    )


def _check_counts(counts: dict, n: int) -> None:
    """Raise unless every count that is given is a whole number, 1 or more.

    The numbers of landmarks and of rows of a group must also be at most n.
    """
    for name, count in counts.items():
        if count is not None:
            check_whole(name, count, n if name in ("landmarks", "groups") else None)


def _cheapest(shape: CallShape, lams: int | None) -> Solver:
    """Return the solver that a fit of these shapes takes if none is named.

    If `lams`, the number of λ, is not given, a search may take the place of the grid.
    """
    return cheapest_solver(shape._replace(lams=LAMS_PER_SEARCH if lams is None else lams))


def _held_by(solver: Solver, shape: CallShape) -> Footprint:
    """Return what the solver holds for these shapes.

    For the call "gradient", it is what the differentiable form of the solver holds.
    """
    return (solver.differentiable() if shape.gradient else solver).memory(shape)


def of_predictions(shape: CallShape, held: Footprint, rows: int) -> Memory:
    """Return the memory of predictions: two blocks of rows, and the predictions of all rows."""
    itemsize = shape.dtype.itemsize
    points = held.width if held.points is None else held.points
    block = max(block_bytes() // itemsize, 16 * points)
    numbers = min(2 * block, rows * points) + 2 * rows * shape.targets
    return Memory("predict", held.route, numbers * itemsize, "blocks of rows", shape.rows)


def of_training(
    shape: CallShape,
    held: Footprint,
    *,
    weights: bool,
    fixed_effects: bool,
    keep: bool = False,
    on_landmarks: bool = False,
    groups: int | None = None,
    pairs: bool = False,
) -> Memory:
    """Return the memory of a fit, or of a gradient.

    It is that of the solver's matrices and copies of them, of the labels, and of what held-out
    groups or pairs of rows need.

    Args:
        shape: the shapes, and whether the call is "gradient".
        held: what the solver holds.
        weights: whether there are sample weights.
        fixed_effects: whether there are fixed effects beyond an intercept.
        keep: whether the fit keeps its solution.
        on_landmarks: whether the fit is on landmarks.
        groups: the number of rows of the largest group that is held out; None for single rows.
        pairs: whether rows are held out in pairs.
    """
    n = shape.rows
    matrix = n * held.width
    labels = 4 * n * shape.targets
    coefficients = 0 if on_landmarks else shape.coefficients()
    numbers = held.numbers + labels + coefficients
    if keep:
        numbers += 2 * matrix
    if held.of_kernel and weights:  # K is scaled by √v
        numbers += 2 * matrix
    if not held.of_kernel and fixed_effects:  # their fit is subtracted from features
        numbers += 2 * shape.twice * matrix
    if groups:
        numbers += _of_largest_group(shape, min(groups, held.width), matrix, pairs)
    elif pairs:
        numbers += _of_pairs(shape, matrix, on_landmarks)
    words = held.words + (", and blocks of pairs of rows" if pairs else "")
    call = "gradient" if shape.gradient else "fit"
    return Memory(call, held.route, numbers * shape.dtype.itemsize, words, n)


def _of_largest_group(shape: CallShape, rows: int, matrix: int, pairs: bool) -> int:
    """Count the numbers in R_SS of the largest group, its factors, and copies of all rows."""
    copies = 6 if pairs else 2
    return shape.twice * (8 * rows**2 + copies * matrix)


def _of_pairs(shape: CallShape, matrix: int, on_landmarks: bool) -> int:
    """Count the numbers in a block of pairs of rows; few rows have all pairs in one block."""
    n = shape.rows
    at_once = FEWEST_ROWS if n > 2 * PANELS * FEWEST_ROWS else n // 2
    copies = 8 * shape.twice if shape.gradient or on_landmarks else 3
    return 2 * matrix + copies * n * at_once


def of_problem(problem: Problem, call: str = "fit", lams: int | None = None) -> Memory:
    """Return the memory of a call, "fit" or "gradient", on a problem.

    `lams` is how many λ; None for as many as a default fit has.
    """
    shape = problem.call_shape(lams or GRID_SIZE, gradient=call == "gradient")
    return of_training(
        shape,
        _held_by(problem.solver or _cheapest(shape, lams), shape),
        weights=problem.weights.values is not None,
        fixed_effects=problem.fixed.are_given,
        **problem.criterion.memory_options(),
    )
