"""Kernel parameters and λ together, by the exact gradient of a validation error."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.left_out import loo
from jaxrls.criteria.losses import squared_error
from jaxrls.factors.certificate import certificate_words
from jaxrls.models.fitted import K, Tuned
from jaxrls.rows.sparse import is_sparse
from jaxrls.search.descent import Found, Way, default_optimizer, descend
from jaxrls.search.estimate import of_problem
from jaxrls.search.few import few_rows, grown
from jaxrls.search.problem import Problem, resolve_landmarks
from jaxrls.search.start import first_guess
from jaxrls.support.checks import as_array, check_lams, check_whole, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of


@jax.jit
def _result(problem: Problem, lam):
    """The model at one λ, and what belongs to it."""
    solution, at = problem.solution("cholesky"), lam.reshape(1, 1)
    drop, report = solution.labels.drop_axis, solution.factor.report
    model = problem.model(
        solution, jax.tree.map(lambda part: drop(part[0]), solution.coefficients(at))
    )
    residuals = drop(solution.residuals(at, problem.criterion.groups)[0])
    said = {
        "floor": report.floor,
        "indefinite": report.indefinite,
        "trace_residual": report.trace_residual,
    }
    return model, {"loo_residuals": residuals, "dof": solution.dof(at)[0, 0], **said}


@on_any_mesh
@in_precision_of("X")
def tune(
    kernel: K,
    X,
    Y=None,
    *,
    lam=None,
    criterion: Callable | Criterion = loo,
    loss: Callable = squared_error,
    optimizer=None,
    steps: int = 50,
    tol: float = 2e-3,
    start: str = "screen",
    starts: int = 1,
    key=None,
    weights=None,
    intercept: bool = True,
    groups=None,
    validation=None,
    landmarks=None,
    progress: bool = False,
    block_size: int | None = None,
    grow: bool | None = None,
    fixed_effects=None,
) -> Tuned[K]:
    """Tune every kernel parameter and λ together, by the exact gradient of the leave-one-out error.

    Minimises log E(θ, λ) over the logarithms of λ and of all positive parameters (widths, scales,
    α, periods, offsets); the parameters of a `FeatureMap` or `FunctionKernel` are searched as they
    are. `Gaussian(jnp.ones(d))` tunes one width per column (automatic relevance), a sum of `aₖ *
    kₖ.on(columns)` the weights of several kernels (banded ridge).

    **Arguments**: data, `criterion`, `loss`, `weights`, `intercept`, `groups`, `validation` and
    `fixed_effects` as in `fit`. `lam` where to start, by default the best of a grid for the first
    kernel. `optimizer` any optax optimiser, by default L-BFGS. `steps` at most; `tol` stops where
    ‖∇ log E‖∞ is below it, or where three steps in a row gain less than a twentieth of it, after
    `grow`, with the default optimiser, one less than half. `start="screen"` first multiplies all
    widths by the best of seven factors from 1/16 to 16, judged on at most 300 rows and, for a
    single width without landmarks, goes on from there in smaller steps judged on 1200; `"data"`
    sets them to the median distance; `"kernel"` leaves them. The given kernel itself stays in the
    contest. `starts` > 1 tries as many random multiples of the first parameters (needs `key`), one
    after another, and keeps the best. `landmarks` for more rows than K can be factored for: a
    number of them, chosen with the best kernel known at the start, or row numbers, or points; they
    stay. `grow` first searches on a sample of the rows and fewer landmarks, then, with new ones
    where their number was given, on sixteen rows a landmark and on all: the default where a step on
    all is dear, of criteria that are means over rows left out one by one, or do without them.
    `progress` shows a bar (needs tqdm).

    **Returns** a `Tuned`, never worse than its start; its history is that of all rows, and `stages`
    tell what went before. **Cost** a step is one or a few values with gradients of `objective`: one
    Cholesky factor and about three products each, for every start, in four n×n arrays; O(n m²) on m
    landmarks. **Raises** `ValueError` as `fit`, and for a criterion whose derivative is 0
    everywhere. **Fails**: error surfaces have several minima: use `starts`. **Source**: Rasmussen
    and Williams 2006, §5.4.2, with the exact squared LOO error in place of the predictive
    probability.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> tuned = rls.tune(rls.Gaussian(width=5.0), X, np.sin(6 * X[:, 0]), steps=20)
    >>> bool(tuned.error < tuned.start_error)
    True
    """
    if is_sparse(X):
        raise ValueError(
            "tune needs a dense X: pass X.toarray(), or fit(kernel, X), which takes sparse rows with given parameters"
        )
    named: dict = {"criterion": criterion, "loss": loss, "groups": groups, "validation": validation}
    named |= {
        "weights": weights,
        "intercept": intercept,
        "block_size": block_size,
        "fixed_effects": fixed_effects,
    }
    problem = Problem.of(kernel, X, Y, **named).check()
    if not problem.traceable:
        raise ValueError(
            "tune needs X, and rows held out, in memory: take some of them, such as the sample of a stream, rows.candidates()[1]"
        )
    if not problem.criterion.smooth:
        raise ValueError(
            f"{getattr(problem.criterion, 'loss', loss).__name__} has derivative 0 everywhere and cannot be tuned by gradient: tune with squared_error"
        )
    _check_options(problem, optimizer, steps, start, starts, key, landmarks)
    dtype = problem.rows.dtype
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
    problem = replace(problem, kernel=kernel)
    guesses = first_guess(
        problem.with_constant(), start, _first_lams(lam, dtype), loss, landmarks is None
    )
    if lam is not None and float(guesses[0][1]) < float(guesses[0][2]):
        warnings.warn(
            f"lam={float(guesses[0][1]):.3g} is below the precision of the kernel matrix, {float(guesses[0][2]):.3g}: the search starts above it",
            UserWarning,
            stacklevel=4,
        )
    way = Way(optimizer or default_optimizer(), steps, tol, progress)
    few = few_rows(problem, landmarks, grow)
    if few is not None:
        found, stages = grown(few, guesses, loss, way, (starts, key))
    else:
        chosen = resolve_landmarks(
            guesses[-1][0], problem.rows, landmarks, problem.weights, progress
        )
        found, stages = (
            descend(replace(problem, landmarks=chosen), guesses, way, starts, key),
            (),
        )
    return _tuned(found, stages)


def _check_options(problem, optimizer, steps, start, starts, key, landmarks):
    if not is_concrete(problem):
        raise ValueError(
            "tune runs its own loop and cannot be called inside jax.jit or vmap: use loo_objective with an optimiser there"
        )
    check_whole("steps", steps)
    check_whole("starts", starts)
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            f"optimizer must be one of optax's, such as optax.adam(0.1), and is {optimizer!r}"
        )
    if start not in ("screen", "kernel", "data"):
        raise ValueError(f"start must be 'screen', 'kernel' or 'data', and is {start!r}")
    if starts > 1 and key is None:
        raise ValueError("starts > 1 draws random starts: pass key=jax.random.key(0)")
    if key is not None and not isinstance(key, jax.Array):
        raise ValueError(f"key must be a JAX random key such as jax.random.key(0), and is {key!r}")
    if landmarks is None:
        of_problem(problem, call="gradient").check()


def _first_lams(lam, dtype):
    """The λ given to start from, as a grid of one, or None."""
    if lam is None:
        return None
    lam = as_array("lam", lam, dtype)
    if lam.shape != ():
        raise ValueError(f"lam must be one number, and has shape {lam.shape}")
    check_lams(lam, "lam")
    return lam[None]


def _tuned(found: Found, stages) -> Tuned:
    """What is handed back, with a model at the best kernel and λ."""
    problem = found.problem
    model, said = _result(replace(problem, kernel=found.kernel), found.lam)
    trace, chosen = said["trace_residual"], problem.landmarks
    words = (
        ""
        if trace is None or chosen is None
        else certificate_words(float(trace), len(chosen.points), 0.1)
    )
    return Tuned(
        kernel=found.kernel,
        lam=found.lam,
        error=jnp.asarray(found.error),
        start_error=jnp.asarray(found.start_error),
        model=model,
        history=found.history,
        converged=found.converged,
        reason=found.reason,
        route="cholesky",
        criterion=problem.criterion.name,
        certificate=words,
        stages=stages,
        **said,
    )
