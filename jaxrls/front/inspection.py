"""`inspect_fit` looks at the numbers of a fit, warns of what may be wrong, and raises for NaN.

Other functions estimate how far rounding moves held-out residuals. By them `run` and `tune` decide
whether to try a larger λ.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.factors import Solver
from jaxrls.core.fit import Problem
from jaxrls.core.support import known_and, warn
from jaxrls.front.fitted import Fit

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
# Rounding may move held-out residuals of single rows by this share of their root mean square
# without a warning, by bytes of the dtype. Data whose best λ is near the floor are usual in
# float32, and rare in float64.
LARGEST_ROUNDING = {4: 0.1, 8: 0.02}


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


def inspect_fit(
    fit: Fit, names_lams: bool, solver: Solver | None = None, equal_labels: bool = False
) -> None:
    """Warn of what a user should know before trusting a fit; raise if its numbers are not finite.

    Args:
        fit: the fit.
        names_lams: whether the caller named the values of λ. If not, there is no warning if the
            chosen λ is the smallest of the grid and above the floor: fits below it hardly differ.
        solver: the solver that was named, to explain why an iteration stopped; None for the
            default.
        equal_labels: whether `labels_are_equal`. Then there is no other warning.
    """
    stopped = "" if fit.run is None or solver is None else solver.explain(fit.run)
    what = f"the {fit.criterion} error"
    which = "λ"
    values = fit.errors
    if values is None:
        what = "the model"
        which = "coefficients"
        values = fit.model.coef
    bad = ~np.isfinite(np.asarray(values))
    dtype = fit.model.coef.dtype
    residuals = fit.loo_residuals
    if bad.any():
        why = stopped or _why_not_finite(fit, bad, dtype == np.float32)
        raise ValueError(f"{what} is not finite at {bad.sum()} of {bad.size} {which}: {why}")
    if equal_labels:
        warn(EQUAL_LABELS)
        return
    rounding = 100 * float(np.finfo(dtype).eps)
    if residuals is not None and float(fit.indefinite) > len(residuals) * rounding:
        warn(
            "the kernel matrix is not positive semidefinite: its most negative eigenvalue, "
            f"{float(fit.indefinite):.2g} of the largest, was set to 0: "
            "check the matrix, or take another kernel"
        )
    if fit.informative is not None and not fit.informative:
        warn(NO_INFORMATION)
        return
    if stopped:
        warn(stopped)
    if fit.jitter_effect is not None and float(fit.jitter_effect) > LARGEST_EFFECT:
        warn(
            "the landmarks are nearly dependent, and rounding, or the jitter against it, may move "
            f"predictions by {100 * float(fit.jitter_effect):.2g} % of the error: take fewer "
            f"landmarks{', or float64' if dtype == np.float32 else ''}"
        )
    # At the floor, rounding may be the reason for this λ. Then a warning of rounding replaces the
    # warning that λ is the smallest of the grid.
    off = is_off_by_rounding(fit)
    faults = faults_of_lam(fit, names_lams, warns_of_rounding=off)
    for words in faults:
        warn(words)
    if off and not faults:
        inspect_rounding(fit)


def largest_rounding(fit: Fit) -> float:
    """Return what `share_of_rounding` may be without a warning, for the dtype of the fit."""
    return LARGEST_ROUNDING[np.asarray(fit.lam).dtype.itemsize]


def is_off_by_rounding(fit: Fit) -> bool:
    """Whether rounding may move held-out residuals of single rows by more than is acceptable.

    The acceptable share of their root mean square is `largest_rounding`.
    """
    return share_of_rounding(fit) > largest_rounding(fit)


def sound_lam(fit: Any) -> float:
    """Return the λ from which on held-out residuals of single rows are right to `largest_rounding`.

    It holds for any degrees of freedom.
    """
    return float(fit.floor) / largest_rounding(fit)


def share_of_rounding(fit: Fit) -> float:
    """Return how far rounding may move held-out residuals of single rows.

    The result is a share of their root mean square. It is 0 for a fit that did not factor K of all
    rows. The estimate has three steps:

    * Rounding adds a matrix E of random entries to K, and so changes R = λP̃ by RER/λ.
    * If most eigenvalues of K are below λ, R is close to a projection. Then residuals move by
      floor/λ of their root mean square, as measured.
    * If f has many degrees of freedom, residuals move less, by the factor 1 − dof/n.
    """
    rows_are_points = fit.model.points is not None and not fit.num_landmarks
    if not rows_are_points or fit.run is not None:  # an iteration has no factor of K
        return 0.0
    left = 1.0 if fit.dof is None else 1 - np.asarray(fit.dof) / len(fit.model.coef)
    return float(np.max(np.clip(left, 0, 1) * float(fit.floor) / np.asarray(fit.lam)))


def is_as_good(larger: Any, error: Any, share: float, problem: Problem) -> bool:
    """Whether the error at a larger λ is about as good as the error at a λ near the floor.

    The error at the larger λ may be larger by 1 %. It may also be larger by a tenth of `share`, the
    `share_of_rounding` near the floor, but by at most 10 %: there the error itself is too small by
    about that much. A likelihood of all rows may be worse by half a nat.
    """
    more = problem.to_search(larger) - problem.to_search(error)
    most = 0.01 + 0.1 * min(share, 1.0)
    if problem.criterion.is_likelihood:
        most = 0.5 / float(problem.weights.count)
    return bool(more <= most)


def inspect_rounding(fit: Fit) -> None:
    """Warn if rounding may move held-out residuals of single rows by too much."""
    lam = float(np.asarray(fit.lam).min())
    if lam >= 0.99 * float(fit.floor) and is_off_by_rounding(fit):
        remedy = "use float64" if np.asarray(fit.lam).dtype == np.float32 else "a larger λ"
        at_floor = ", the precision of the factor," if lam <= 1.01 * float(fit.floor) else ""
        warn(
            f"at λ = {lam:.3g}{at_floor} rounding may move held-out residuals of single rows by "
            f"{100 * share_of_rounding(fit):.2g} % of their root mean square, and their mean "
            f"square less: {remedy}, or a narrower kernel, if single rows matter"
        )


def _why_not_finite(fit: Fit, bad: np.ndarray, narrow: bool) -> str:
    """Return in words why errors or coefficients are not finite, and what to do.

    `bad` marks the λ or the coefficients that are not finite. `narrow` says that they are float32.
    """
    of_errors = fit.errors is not None
    floor = float(fit.floor)
    lams = np.asarray(fit.lams)[bad.reshape(len(bad), -1).any(axis=1)] if of_errors else fit.lam
    if np.max(lams) < 0.99 * floor:
        wider = ", or use float64 (NumPy float64 input)" if narrow else ""
        return f"λ below {floor:.2g} is below the precision of the factor: leave it out{wider}"
    if _kernel_is_not_finite(fit):
        return (
            f"the kernel {fit.model.kernel.title} gave NaN or infinity for rows of X: check its "
            "function and parameters"
        )
    wider = "use float64 (NumPy float64 input), " if narrow else "take "
    return (
        f"the factorization broke down; {wider}a larger smallest λ, a smaller kernel width, or "
        "solver=Spectral()"
    )


def _kernel_is_not_finite(fit: Fit) -> bool:
    """Whether the kernel gives NaN or infinity for some of the rows of the fit."""
    points = fit.model.points
    if not isinstance(points, jax.Array | np.ndarray):
        return False
    some = jnp.asarray(points[:SOME])
    return not np.isfinite(np.asarray(fit.model.kernel(some, some))).all()


def inspect_lam(fit: Any, names_lams: bool) -> None:
    """Warn if the chosen λ is at the edge of the grid or below the floor.

    Args:
        fit: any result that has `lam`, `lams` and `floor`.
        names_lams: whether the caller named the values of λ, as in `inspect_fit`.
    """
    for words in faults_of_lam(fit, names_lams):
        warn(words)


def faults_of_lam(fit: Any, names_lams: bool, warns_of_rounding: bool = False) -> list[str]:
    """Return in words where the chosen λ is at the edge of the grid or below the floor.

    Args:
        fit: any result that has `lam`, `lams` and `floor`.
        names_lams: whether the caller named the values of λ, as in `inspect_fit`.
        warns_of_rounding: whether another warning explains a λ at the floor.
    """
    chosen = np.asarray(fit.lam)
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    faults = _below_floor(chosen, lams, float(fit.floor))
    if fit.lams is None or len(lams) == 1:
        return faults
    is_smallest = chosen <= lams.min(axis=0)
    is_largest = chosen >= lams.max(axis=0)
    at_floor = lams.min() <= 1.01 * float(fit.floor)
    # The smallest λ needs no warning if fits below the default grid no longer differ, or if another
    # warning explains the floor.
    if not names_lams and not at_floor or at_floor and warns_of_rounding:
        is_smallest = np.zeros_like(is_smallest)
    remedy = "pass lams= that reach smaller values"
    if at_floor:
        instead = "use float64" if chosen.dtype == np.float32 else "keep it"
        remedy = f"below it is rounding, so {instead}"
    faults += _at_edge(chosen, is_smallest, "smallest", remedy)
    faults += _at_edge(chosen, is_largest, "largest", "pass lams= that reach larger values")
    return faults


def _below_floor(chosen: np.ndarray, lams: np.ndarray, floor: float) -> list[str]:
    """Return in words that λ of the grid are below the floor, if the choice may be due to them.

    Errors at λ below the floor are rounding. They matter only if such a λ was chosen, or if the
    chosen one is the smallest above the floor, so that a better one may lie below.
    """
    above = lams >= 0.99 * floor
    if above.all() or not (chosen <= lams[above].min(initial=np.inf)).any():
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
