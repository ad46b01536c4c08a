"""What a call takes before it is made: memory and operations, from shapes alone."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from jaxrls.factors import cost
from jaxrls.factors.choose import SEARCHED, check_kernel, check_route, choose_route, is_primal, suits_cholesky
from jaxrls.factors.cost import Cost, Sizes
from jaxrls.factors.iterative import Iteration
from jaxrls.factors.unpenalized import check_free_route
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.search.problem import Problem
from jaxrls.support.checks import check_whole, in_words, why_too_large

CALLS = ("fit", "factorize", "objective", "gradient", "path", "predict")


@dataclass(frozen=True)
class Estimate:
    """What a call takes: `bytes` of memory where it holds most, beside its arguments, and `flops`; `route` and `words` say how and what for.

    >>> import jaxrls as rls
    >>> print(rls.estimate(rls.Gaussian(1.0), (10_000, 8)))
    fit by route 'gram': 3.22 GB for K, its eigenvectors and LAPACK's workspace; 9.04 Tflop
    """

    call: str
    route: str
    bytes: int
    flops: int | float
    words: str
    rows: int

    def __str__(self):
        return f"{self.call} by route {self.route!r}: {in_words(self.bytes)} for {self.words}; {in_words(self.flops, 'flop')}"

    def why_not(self) -> str:
        """Why the default device cannot do it, and what to do instead; empty where it can."""
        return why_too_large(self.rows, self.route, self.bytes)

    def check(self) -> None:
        """Raise `ValueError` where the default device cannot do it."""
        words = self.why_not()
        if words:
            raise ValueError(words)


def estimate(
    kernel: Kernel,
    shape: tuple[int, int],
    *,
    call: str = "fit",
    targets: int = 1,
    lams: int | None = None,
    num: int = 100,
    weights: bool = False,
    landmarks: int | None = None,
    groups: int | None = None,
    route: str | None = None,
    iteration: Iteration | None = None,
    keep: bool | None = None,
    keep_variance: bool = False,
    keep_intervals: bool = False,
    rank: bool = False,
    unpenalized: int | None = None,
    dtype=float,
    rows: int | None = None,
) -> Estimate:
    """Memory and operations of a call on X of that shape, before it is made: within a factor of 1.5 of what is measured.

    **Arguments**: `call` is `"fit"`, `"factorize"` with a sweep over λ, `"objective"` for `loo_objective`, `"gradient"` for that with its gradient, as in
    a step of `tune`, `"path"`, or `"predict"`, for `rows` rows by a model of n. Of what `fit` takes: `lams`, how many λ are named, `num` those of the
    grid where none are, `targets` the columns of Y, `landmarks` how many, `groups` the rows of the largest, `weights` whether there are any, `unpenalized`
    how many columns have no penalty; `route`, `iteration`, `keep_variance`, `keep_intervals`, `rank`, and `keep` of `factor_subset`, as they are. `dtype` is
    that of X, float64 by default, in which `fit` computes data from NumPy.
    **Returns** an `Estimate`, whose text says it all: bytes beside X and Y at the moment when most are held, on a CPU, compiled programs (50 to 80 MB)
    left out. Operations are those of the program, elementwise ones too, and textbook counts of what LAPACK does: 9n³ for eigenvectors. Where values decide,
    they are those of the longer way, distances by differences, and of 40 steps of an iteration; steps that rounding asks for are left out.
    **Cost** none: no array is made. **Raises** `ValueError` for a call or route that there is not. **Source**: Golub and Van Loan, *Matrix Computations*, for
    decompositions; memory was fitted to measurements, which `benchmarks/memory.py` repeats.

    >>> import jaxrls as rls
    >>> all_rows, some = (rls.estimate(rls.Gaussian(1.0), (20_000, 8), landmarks=m) for m in (None, 500))
    >>> all_rows.route, some.route, all_rows.bytes > 50 * some.bytes
    ('gram', 'subset', True)
    """
    check_kernel(kernel)
    check_route(route, landmarks, iteration)
    if unpenalized is not None:
        check_free_route(route)
    if call not in CALLS:
        raise ValueError(f"call must be one of {', '.join(map(repr, CALLS))}, and is {call!r}")
    n, d = shape
    named = {
        "targets": targets,
        "lams": lams,
        "num": num,
        "landmarks": landmarks,
        "groups": groups,
        "rows": rows,
        "unpenalized": unpenalized,
    }
    for name, value in {"rows of shape": n, "columns of shape": d, **named}.items():
        if value is not None:
            check_whole(name, value, n if name in ("landmarks", "groups") else None)
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, and is {dtype}")
    explicit = kernel.num_features(d, dtype)
    if route in ("features", "covariance") and explicit is None:
        raise ValueError(f"route={route!r} needs explicit features, which {type(kernel).__name__} does not have: use route='gram'")
    objective = call in ("objective", "gradient")
    plain = call == "fit" and route is None and landmarks is None and choose_route(kernel, n, d, dtype) == "gram"
    each = objective or plain and suits_cholesky(kernel, n, lams or SEARCHED)  # a Cholesky factor for each λ
    sizes = Sizes(
        n=n,
        d=d if kernel.evaluable else 0,  # values that are given take no operation
        r=landmarks or explicit or n,
        itemsize=dtype.itemsize,
        t=targets,
        L=1 if objective else lams or (SEARCHED if each else num),
        b=groups or 1,
        probes=(iteration or Iteration()).probes,
        weighted=weights,
        given=isinstance(kernel, Linear),
        single=objective,
        gradient=call == "gradient",
        variance=keep_variance and call == "fit",
        intervals=keep_intervals and call == "fit",
        rank=rank and call == "fit",
        free=0 if unpenalized is None else unpenalized + 1,
    )
    if call == "predict":
        taken = "landmarks" if landmarks else "features" if explicit else "gram"
        value = sizes.value if taken != "features" else 1 if sizes.given else cost.PROFILE
        found = cost.predict(sizes, n if rows is None else rows, value)
    else:
        taken = _route(kernel, n, d, dtype, landmarks, "cholesky" if each else route)
        found = _cost(sizes, taken, call, keep, landmarks)
    return Estimate(call, taken, int(found.numbers * dtype.itemsize), found.flops, found.words, n)


def _route(kernel, n, d, dtype, landmarks, route) -> str:
    """The route that is taken, as the table of costs names it."""
    if route == "cholesky":
        return f"cholesky {'landmarks' if landmarks else 'features' if is_primal(kernel, n, d, dtype, None) else 'gram'}"
    return "subset" if landmarks and route != "iterative" else route or choose_route(kernel, n, d, dtype)


def _cost(sizes: Sizes, route: str, call: str, keep, landmarks) -> Cost:
    if route in ("gram", "cholesky gram", "refined", "tridiagonal"):
        sizes = replace(sizes, r=sizes.n)
    if route == "subset":
        sizes = replace(sizes, kept=sizes.free > 0 or (cost.keeps_rows(sizes) if keep is None else keep))
    found = cost.ROUTES[route](sizes)
    if sizes.free:
        found = cost.beside_free_columns(sizes, route, found)
    if sizes.b > 1 and route != "cholesky gram":
        left_out = cost.groups(sizes, route)
        found = found.then(left_out.beside(0 if route in ("gram", "features", "tridiagonal") else found.numbers))
    found = cost.beside_rows_left_out(sizes, route, found)
    if landmarks is not None and call == "fit":
        found = cost.choosing(sizes).then(found)
    return found.beside(sizes.L * sizes.t * sizes.r, "coefficients at every λ") if call == "path" else found


def of_problem(problem: Problem, **options) -> Estimate:
    """That of a fit to a problem; `options` of `estimate` go before what the problem says."""
    groups = problem.criterion.groups
    said = {
        "targets": 1 if problem.Y.ndim == 1 else problem.Y.shape[1],
        "weights": problem.weights.values is not None,
        "landmarks": None if problem.landmarks is None else len(problem.landmarks.points),
        "groups": None if groups is None else groups.inside.shape[1],
        "dtype": problem.rows.dtype,
        "iteration": problem.iteration,
        "keep_variance": problem.keep_variance,
        "keep_intervals": problem.keep_intervals,
        "unpenalized": None if problem.free is None else problem.free.count - problem.free.intercept or None,
        "rank": problem.queries is not None or problem.criterion.in_pairs,
    }
    return estimate(problem.kernel, problem.rows.shape, **{**said, **options})
