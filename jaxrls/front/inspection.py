"""`inspect_result` looks at the numbers of a fit, warns of what may be wrong, and raises for NaN."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.fit import Diagnostics, Function, Problem, Result
from jaxrls.core.support import known_and, warn
from jaxrls.front.rounding import (
    Rounding,
    is_at_floor,
    is_below_floor,
    is_indefinite,
    rounding_of,
)

NO_INFORMATION = (
    "the kernel matrix has no information beyond the intercept or fixed effects: what is left of "
    "it is rounding, and the fit is that of these alone: check that columns of X vary, and that "
    "the width of the kernel suits their units"
)
SOME = 100  # if a fit is not finite, the kernel values of this many rows are looked at
EQUAL_LABELS = (
    "the labels are all equal: the fit is that constant, and λ and the kernel have no say in it"
)
# Jitter may move predictions by this share of the error without a warning.
LARGEST_EFFECT = 0.01


def labels_are_equal(problem: Problem) -> bool:
    """Whether the labels of every target are equal in all rows of positive weight.

    False if the model has no constant to fit them, or inside of `jax.jit`.
    """
    if not problem.fixed.has_constant:
        return False
    v = problem.weights.values
    if v is None:
        return known_and(_all_equal, problem.Y)
    return known_and(_all_equal_that_count, problem.Y, v)


def _all_equal(Y: Any) -> Any:
    """Whether all rows equal the first one, for an array of NumPy or JAX."""
    return (Y[:1] == Y).all()


def _all_equal_that_count(Y: Any, v: Any) -> Any:
    """Whether all rows of positive weight equal the heaviest one."""
    Y = Y.reshape(len(Y), -1)
    is_heaviest = Y[v.argmax()] == Y
    return (is_heaviest | (v == 0)[:, None]).all()


def inspect_result(
    result: Result,
    criterion: str,
    *,
    names_lams: bool,
    why_stopped: str = "",
    equal_labels: bool = False,
) -> None:
    """Warn of what a user should know before trusting a fit; raise if its numbers are not finite.

    Args:
        result: what the fit computed.
        criterion: the name of the criterion.
        names_lams: whether the caller named the values of λ. If not, there is no warning if the
            chosen λ is the smallest of the grid and above the floor: fits below it hardly differ.
        why_stopped: why an iteration stopped before its tolerance; "" if it did not.
        equal_labels: whether `labels_are_equal`. Then there is no other warning.
    """
    check_finite(result, criterion, why_stopped)
    faults = [EQUAL_LABELS] if equal_labels else faults_of(result, names_lams, why_stopped)
    for words in faults:
        warn(words)


def check_finite(result: Result, criterion: str, why_stopped: str) -> None:
    """Raise if errors are not finite, or coefficients if there are no errors."""
    what = f"the {criterion} error"
    which = "λ"
    values = result.chosen.errors
    if values is None:
        what = "the model"
        which = "coefficients"
        values = result.function.coef
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        why = why_stopped or _why_not_finite(result, bad)
        raise ValueError(f"{what} is not finite at {bad.sum()} of {bad.size} {which}: {why}")


def faults_of(result: Result, names_lams: bool, why_stopped: str) -> list[str]:
    """Return in words what may be wrong with a fit whose numbers are finite.

    The arguments are those of `inspect_result`.
    """
    chosen = result.chosen
    diagnostics = result.diagnostics
    faults = _indefinite(result)
    if diagnostics.informative is not None and not diagnostics.informative:
        return [*faults, NO_INFORMATION]
    if why_stopped:
        faults.append(why_stopped)
    faults += _dependent_landmarks(diagnostics, result.function.coef.dtype)
    rounding = rounding_of(result)
    # At the floor, rounding may be the reason for this λ. Then a warning of rounding replaces the
    # warning that λ is the smallest of the grid.
    of_lam = faults_of_lam(
        chosen.lam,
        chosen.lams,
        diagnostics.floor,
        names_lams=names_lams,
        warns_of_rounding=rounding.is_too_large,
    )
    if rounding.is_too_large and not of_lam:
        return [*faults, rounding_in_words(result, rounding)]
    return faults + of_lam


def rounding_in_words(result: Result, rounding: Rounding) -> str:
    """Return in words that rounding may move held-out residuals of single rows by too much."""
    lams = np.asarray(result.chosen.lam)
    lam = float(lams.min())
    remedy = "use float64" if lams.dtype == np.float32 else "a larger λ"
    floor = float(result.diagnostics.floor)
    at_floor = ", the precision of the factor," if is_at_floor(lam, floor) else ""
    return (
        f"at λ = {lam:.3g}{at_floor} rounding may move held-out residuals of single rows by "
        f"{100 * rounding.share:.2g} % of their root mean square, and their mean "
        f"square less: {remedy}, or a narrower kernel, if single rows matter"
    )


def _indefinite(result: Result) -> list[str]:
    """Return in words that K has a negative eigenvalue that is larger than rounding."""
    if not is_indefinite(result):
        return []
    return [
        "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
        f"{float(result.diagnostics.indefinite):.2g} of the largest, was set to 0: "
        "check the matrix, or take another kernel"
    ]


def _dependent_landmarks(diagnostics: Diagnostics, dtype: Any) -> list[str]:
    """Return in words that jitter, or rounding, may move predictions by too much."""
    effect = diagnostics.jitter_effect
    if effect is not None and float(effect) > LARGEST_EFFECT:
        return [
            "the landmarks are nearly dependent, and rounding, or the jitter against it, may move "
            f"predictions by {100 * float(effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' if dtype == np.float32 else ''}"
        ]
    return []


def _why_not_finite(result: Result, bad: np.ndarray) -> str:
    """Return in words why errors or coefficients are not finite, and what to do.

    `bad` marks the λ or the coefficients that are not finite.
    """
    chosen = result.chosen
    narrow = result.function.coef.dtype == np.float32
    floor = float(result.diagnostics.floor)
    lams = np.asarray(chosen.lam)
    if chosen.errors is not None:
        lams = np.asarray(chosen.lams)[bad.reshape(len(bad), -1).any(axis=1)]
    if is_below_floor(np.max(lams), floor):
        wider = ", or use float64 (NumPy float64 input)" if narrow else ""
        return f"λ below {floor:.2g} is below the precision of the factor: leave it out{wider}"
    if _kernel_is_not_finite(result.function):
        return (
            f"the kernel {result.function.kernel.title} gave NaN or infinity for rows of X: check "
            "its function and parameters"
        )
    wider = "use float64 (NumPy float64 input), " if narrow else "take "
    return (
        f"the factorization broke down; {wider}a larger smallest λ, a smaller kernel width, or "
        "solver=Spectral()"
    )


def _kernel_is_not_finite(function: Function) -> bool:
    """Whether the kernel gives NaN or infinity for some of the rows of the fit."""
    points = function.points
    if not isinstance(points, jax.Array | np.ndarray):
        return False
    some = jnp.asarray(points[:SOME])
    return not np.isfinite(np.asarray(function.kernel(some, some))).all()


def inspect_lam(lam: Any, lams: Any, floor: Any, *, names_lams: bool) -> None:
    """Warn if the chosen λ is at the edge of the grid or below the floor.

    The arguments are those of `faults_of_lam`.
    """
    for words in faults_of_lam(lam, lams, floor, names_lams=names_lams):
        warn(words)


def faults_of_lam(
    lam: Any, lams: Any, floor: Any, *, names_lams: bool, warns_of_rounding: bool = False
) -> list[str]:
    """Return in words where the chosen λ is at the edge of the grid or below the floor.

    Args:
        lam: the chosen λ, of all targets or of each.
        lams: all λ that were tried; None if there was no other.
        floor: the λ below which rounding dominates.
        names_lams: whether the caller named the values of λ, as in `inspect_result`.
        warns_of_rounding: whether another warning explains a λ at the floor.

    The smallest λ of the grid is no fault if its place is explained: at the floor by another
    warning, and above it by the default grid.
    """
    chosen = np.asarray(lam)
    floor = float(floor)
    tried = np.atleast_1d(chosen if lams is None else np.asarray(lams))
    faults = _below_floor(chosen, tried, floor)
    if len(tried) == 1 or lams is None:
        return faults
    if is_at_floor(tried.min(), floor):
        instead = "use float64" if chosen.dtype == np.float32 else "keep it"
        remedy = f"below it is rounding, so {instead}"
        explained = warns_of_rounding
    else:
        remedy = "pass lams= that reach smaller values"
        explained = not names_lams  # fits below the default grid no longer differ
    if not explained:
        faults += _at_edge(chosen, chosen <= tried.min(axis=0), "smallest", remedy)
    remedy = "pass lams= that reach larger values"
    return faults + _at_edge(chosen, chosen >= tried.max(axis=0), "largest", remedy)


def _below_floor(chosen: np.ndarray, lams: np.ndarray, floor: float) -> list[str]:
    """Return in words that λ of the grid are below the floor, if the choice may be due to them.

    Errors at λ below the floor are rounding. They matter only if such a λ was chosen, or if the
    chosen one is the smallest above the floor, so that a better one may lie below.
    """
    below = is_below_floor(lams, floor)
    if not below.any() or not (chosen <= lams[~below].min(initial=np.inf)).any():
        return []
    wider = ", or use float64" if chosen.dtype == np.float32 else ""
    return [
        f"λ below {floor:.2g} is below the precision of the factor, and the grid goes down to "
        f"{lams.min():.2g}: leave such λ out{wider}"
    ]


def _at_edge(
    chosen: np.ndarray, at_edge: np.ndarray | np.bool_, edge: str, remedy: str
) -> list[str]:
    """Return in words that the chosen λ of some targets are at this edge of the grid."""
    if not at_edge.any():
        return []
    of_targets = f" of {at_edge.sum()} of {at_edge.size} targets" if at_edge.size > 1 else ""
    return [
        f"the chosen λ{of_targets}, {chosen[at_edge][0]:.3g}, is the {edge} of the grid: "
        f"{remedy}, or change the kernel"
    ]
