"""Bytes that a call holds, before it is made: the largest matrices of each route, from shapes."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxrls.factors.contract import COLUMNS_AT_ONCE, Solver
from jaxrls.factors.iterative import Iterative
from jaxrls.factors.landmark_spectrum import keeps_rows
from jaxrls.factors.solvers import (
    SEARCHED,
    Cholesky,
    Refined,
    Spectral,
    check_kernel,
    check_solver,
    choose_route,
    is_primal,
    suits_cholesky,
)
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import PANELS
from jaxrls.rows.blocks import block_bytes, wide_block_size
from jaxrls.search.problem import Problem
from jaxrls.support.checks import check_whole, in_words, why_too_large

CALLS = ("fit", "factorize", "objective", "gradient", "path", "predict")
DUAL = ("gram", "cholesky gram", "refined")
WORDS = {
    "gram": "K, its eigenvectors and LAPACK's workspace",
    "cholesky gram": "K, its Cholesky factor and inverse",
    "refined": "K, roots of its inverse and their products",
    "features": "features, singular vectors and LAPACK's workspace",
    "covariance": "the features' covariance, its eigenvectors and blocks of rows",
    "subset": "the landmarks' matrices and rows",
    "cholesky features": "the features' covariance, its factors and blocks of rows",
    "cholesky landmarks": "the landmarks' matrices and blocks of rows",
    "iterative": "landmarks' rows and vectors for λ × (targets + probes)",
}


@dataclass(frozen=True)
class Estimate:
    """What a call holds at most beside its arguments: `bytes`, of which `route`, and in `words` of
    which matrices.

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
        """Why the default device cannot do it, and what to do instead; empty where it can."""
        return why_too_large(self.rows, self.route, self.bytes)

    def check(self) -> None:
        """Raise `ValueError` where the default device cannot do it."""
        words = self.why_not()
        if words:
            raise ValueError(words)


@dataclass(frozen=True)
class _Sizes:
    """n rows, r features or landmarks, t targets, L values of λ, groups of b rows (1: none)."""

    n: int
    r: int
    itemsize: int
    t: int
    L: int
    b: int
    single: bool  # one value at one λ
    back: int  # 2 where derivatives hold everything twice, else 1
    weighted: bool
    keep: bool
    pairs: bool
    free: bool
    made: bool  # whether explicit features are not the columns of X
    probes: int

    @property
    def columns(self) -> int:
        """λ × targets at once."""
        return min(self.L * self.t, max(COLUMNS_AT_ONCE, self.t))

    @property
    def block(self) -> int:
        """Numbers of a block of K."""
        return min(self.n * self.r, max(block_bytes() // self.itemsize, 16 * self.r))

    @property
    def block_of_pairs(self) -> int:
        """Numbers of rows of R in pairs with all; few rows have all PANELS of them at once."""
        panel = max(1, self.n // PANELS)
        size = wide_block_size(panel, self.n * self.itemsize)
        return self.n * size * (PANELS + 1) // 2 if size >= panel else self.n * size


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
    """Bytes that a call on X of that shape holds, before it is made.

    **Arguments**: `call` is `"fit"`, `"factorize"` with a sweep over λ, `"path"`, `"objective"` at
    one λ, `"gradient"` for that with derivatives, as in a step of `tune`, or `"predict"`, for
    `rows` rows by a model of n. `targets` are the columns of Y, `lams` how many λ (100 by default,
    as the grid of `fit` has), `landmarks` how many, `groups` the rows of the largest that is left
    out, `pairs` whether rows are left out in pairs (with groups, in pairs of each), `weights`
    whether there are any, `fixed_effects` how many columns have no penalty; `solver` and
    `keep`, with what `posterior` and `intervals` make of the solution, are those of `fit`, `dtype`
    that of X. **Returns** an
    `Estimate`, whose text says route, bytes and matrices: the leading terms of the largest ones,
    beside X and Y, within a factor of 2 of what is measured on a CPU for n ≥ 2000
    (`benchmarks/memory.py`), compiled programs (50 to 80 MB) left out. **Cost** none: no array is
    made. **Raises** `ValueError` for a call, route or dtype that there is not, or a number that is
    not whole or below 1. **Source**: the sizes of the matrices that each route holds.

    >>> import jaxrls as rls
    >>> plain, some = (rls.estimate(rls.Gaussian(1.0), (20_000, 8), landmarks=m) for m in (None, 500))
    >>> plain.route, some.route, plain.bytes > 50 * some.bytes
    ('gram', 'subset', True)
    """
    check_kernel(kernel)
    if solver is not None:
        check_solver(solver)
    if call not in CALLS:
        raise ValueError(f"call must be one of {', '.join(map(repr, CALLS))}, and is {call!r}")
    n, d = shape
    named = {
        "rows of shape": n,
        "columns of shape": d,
        "targets": targets,
        "lams": lams,
        "landmarks": landmarks,
        "groups": groups,
        "rows": rows,
        "fixed_effects": fixed_effects,
    }
    for name, value in named.items():
        if value is not None:
            check_whole(name, value, n if name in ("landmarks", "groups") else None)
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, and is {dtype}")
    explicit = kernel.num_features(d, dtype)
    if getattr(solver, "of", None) in ("features", "covariance") and explicit is None:
        raise ValueError(
            f"{solver} needs explicit features, which {type(kernel).__name__} does not have: take "
            "Spectral('gram')"
        )
    single, probes = call in ("objective", "gradient"), 0
    if isinstance(solver, Iterative):
        near, probes = solver.landmarks, solver.probes
        near = getattr(near, "points", near)
        landmarks = len(near) if np.ndim(near) else near or min(n, 3000, int(10 * n**0.5))
    taken = _route(kernel, n, d, dtype, landmarks, Cholesky() if single else solver, call, lams)
    dual = taken in DUAL or taken == "covariance" and (explicit or 0) >= n
    sizes = _Sizes(
        n=n,
        r=n if taken in DUAL else landmarks or explicit or n,
        itemsize=dtype.itemsize,
        t=targets,
        L=1 if single else lams or (SEARCHED if taken == "cholesky gram" else 100),
        b=groups or 1,
        single=single,
        back=2 if call == "gradient" else 1,
        weighted=weights,
        keep=keep and call == "fit",
        pairs=pairs,
        free=fixed_effects is not None,
        made=not isinstance(kernel, Linear),
        probes=probes,
    )
    numbers: int | float
    if call == "predict":
        rows = n if rows is None else rows
        numbers = min(2 * sizes.block, rows * sizes.r) + 2 * rows * targets
        words = "blocks of rows"
    else:
        numbers, words = (_dual if dual else _primal)(sizes, taken), WORDS[taken]
        numbers += sizes.L * targets * sizes.r * (call == "path")
    if landmarks and call == "fit":  # their choice comes before
        numbers = max(numbers, 1.25 * n * landmarks)
    if pairs:
        words += ", and blocks of pairs of rows"
    return Estimate(call, taken, int(numbers * dtype.itemsize), words, n)


def _route(kernel, n, d, dtype, landmarks, solver, call, lams) -> str:
    """What is factored; "cholesky" with what of."""
    if isinstance(solver, Iterative | Refined):
        return type(solver).__name__.lower()
    chosen = choose_route(kernel, n, d, dtype)
    plain = call == "fit" and solver is None and landmarks is None and chosen == "gram"
    if isinstance(solver, Cholesky) or plain and suits_cholesky(kernel, n, lams or SEARCHED):
        primal = is_primal(kernel, n, d, dtype, None)
        return f"cholesky {'landmarks' if landmarks else 'features' if primal else 'gram'}"
    of = solver.of if isinstance(solver, Spectral) else None
    return "subset" if landmarks else of or chosen


def _of_groups(s: _Sizes, route: str) -> int:
    """Numbers of pairs of rows of a group, where it is not sums over the others that leave it
    out, which take r² for each.
    """
    if route not in (*DUAL, "features") and s.b > s.r:
        return 4 * s.r**2 * -(-s.n // s.b)
    return 8 * s.back * s.b**2


def _dual(s: _Sizes, route: str) -> int | float:
    """Numbers of n × n matrices, and of those that leaving rows out adds."""
    n2, each = s.n**2, route == "cholesky gram"
    held: int | float = {
        "cholesky gram": (2 if s.single else 3) * s.back * n2,
        "refined": 7 * n2,
    }.get(route, max(4 * n2, 3 * n2 + 2 * s.n * s.columns))
    held += n2 * (s.weighted * (1 if each else 2) + 2 * s.keep)
    if s.b > 1:
        held += _of_groups(s, route) + s.back * (2 * each + 3 * s.pairs) * n2
    elif s.pairs:
        held += (0 if each else 2) * n2 + (16 if s.back > 1 else 2) * s.block_of_pairs
    return held + 2 * s.block + (route == "covariance") * 2 * s.n * s.r


def _primal(s: _Sizes, route: str) -> int | float:
    """Numbers of n × r and r × r matrices and of blocks of rows."""
    nr, r2, gradient, svd = s.n * s.r, s.r**2, s.back > 1, route == "features"
    blocks = 4 * wide_block_size(s.n, 2 * s.r * s.itemsize) * (s.r + s.columns)
    kept = s.free or keeps_rows(s.n, s.r, s.itemsize)
    held: int | float = {
        "features": 4 * nr + 2 * min(s.n, s.r) ** 2 + s.n * s.columns,
        "covariance": 5 * r2 + blocks + 2 * nr * s.made,
        "subset": kept * nr + 8 * r2 + blocks,
        "cholesky features": s.back * ((3 + 2 * s.L) * r2 + blocks),
        "cholesky landmarks": s.back * ((7 + 2 * s.L) * r2 + blocks),
        "iterative": nr + 16 * s.n * s.L * (s.t + s.probes) + 2 * s.block,
    }[route]
    if s.free and not svd:
        held += (2 if route == "subset" else 4) * s.back * nr
    if s.b > 1:
        rows_of_U = (not svd) * (6 if gradient else 1) * nr
        held += _of_groups(s, route) + s.back * 4 * nr * s.pairs + rows_of_U
    elif s.pairs:
        times = 16 if gradient else 8 if route in ("subset", "cholesky landmarks") else 2
        held += 2 * nr + times * s.block_of_pairs
    held += s.keep * (3 * s.r * min(s.n, s.r) + (1 if s.b > 1 else 2) * nr)
    return held + 4 * s.n * s.t


def of_problem(problem: Problem, **options) -> Estimate:
    """That of a fit to a problem; `options` of `estimate` go before what the problem says."""
    groups, fixed = problem.criterion.groups, problem.fixed
    said = {
        "targets": 1 if problem.Y.ndim == 1 else problem.Y.shape[1],
        "weights": problem.weights.values is not None,
        "landmarks": None if problem.landmarks is None else len(problem.landmarks.points),
        "groups": None if groups is None else groups.inside.shape[1],
        "dtype": problem.rows.dtype,
        "solver": problem.solver,
        "fixed_effects": None if fixed.count < 2 else fixed.count,
        "pairs": problem.criterion.in_pairs,
    }
    return estimate(problem.kernel, problem.rows.shape, **{**said, **options})
