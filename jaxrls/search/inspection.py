"""What a user would want to know before trusting the numbers of a fit: errors and warnings, on the
host.
"""

import warnings
from typing import Any

import numpy as np

from jaxrls.linalg.conjugate import CONVERGED, REASONS, Run
from jaxrls.models.fitted import Fit
from jaxrls.models.two_sided import KroneckerFit

LARGEST_EFFECT = 0.01  # of a ridge on predictions, beside the error, that goes without a word


def inspect_fit(fit: Fit, default_grid: bool) -> None:
    """Say what a user would want to know before trusting the numbers."""
    errors = np.asarray(fit.errors)
    stopped = "" if fit.run is None else _stopped(fit.run, "Iterative" in fit.plan)
    if not np.isfinite(errors).all():
        why = stopped or (
            "the factorization broke down; use float64 (NumPy float64 input), a larger smallest λ, or a smaller kernel width"
        )
        raise ValueError(
            f"the {fit.criterion} error is not finite at {int((~np.isfinite(errors)).sum())} of {errors.size} λ: {why}"
        )
    residuals: Any = fit.loo_residuals
    if (
        residuals is not None
        and float(fit.indefinite) > 100 * len(residuals) * np.finfo(errors.dtype).eps
    ):
        warn(
            f"the kernel matrix is not positive semidefinite: its most negative eigenvalue, {float(fit.indefinite):.2g} of the largest, was set to 0",
            5,
        )
    if stopped:
        warn(stopped, 5)
    inspect_ridge(fit)
    inspect_lam(fit, default_grid)


def inspect_ridge(fit: Fit) -> None:
    """Of these, what there is to say of landmarks that nearly depend."""
    if fit.ridge_effect is not None and float(fit.ridge_effect) > LARGEST_EFFECT:
        remedy = "take fewer landmarks" + ", or float64" * (
            np.asarray(fit.floor).dtype == np.float32
        )
        warn(
            "the landmarks nearly depend, and rounding, or the ridge that it asks for, may move predictions by "
            f"{100 * float(fit.ridge_effect):.2g} % of the error: {remedy}",
            6,
        )


def inspect_lam(fit: Fit | KroneckerFit, default_grid: bool) -> None:
    """Of these, what there is to say of λ."""
    chosen = np.asarray(fit.lam)
    lams = np.atleast_1d(chosen if fit.lams is None else np.asarray(fit.lams))
    known = lams[lams >= 0.99 * float(fit.floor)]
    # Errors below the floor matter where they were chosen, or where they may have hidden a better λ
    # next to the chosen one.
    if len(known) < len(lams) and (len(known) == 0 or bool((chosen <= known.min()).any())):
        warn(
            f"λ below {float(fit.floor):.2g} is below the precision of the factor, and the grid goes down to {lams.min():.2g}: drop those, or use float64",
            6,
        )
    low, high = (
        bool((chosen <= lams.min(axis=0)).any()),
        bool((chosen >= lams.max(axis=0)).any()),
    )
    unregularised = default_grid and lams.min() > 2 * float(
        fit.floor
    )  # below the grid's low end the fit no longer changes
    if fit.lams is not None and len(lams) > 1 and (high or low and not unregularised):
        edge, remedy = (
            ("smallest", "pass lams= that reach smaller values")
            if low
            else ("largest", "pass lams= that reach larger values")
        )
        if low and lams.min() <= 1.01 * float(fit.floor):
            remedy = "below it is rounding, so use float64"
        warn(
            f"the chosen λ, {lams.min() if low else lams.max():.3g}, is the {edge} of the grid: {remedy}, or change the kernel",
            6,
        )


def _stopped(run: Run, iterative: bool) -> str:
    """Why the column that is furthest from its solution stopped, and what to do; empty where all
    came to the tolerance.
    """
    residuals, reasons = np.asarray(run.residuals), np.asarray(run.reason)
    if (reasons == CONVERGED).all():
        return ""
    worst = int(
        np.argmax(
            np.where(
                reasons == CONVERGED, -np.inf, np.where(np.isnan(residuals), np.inf, residuals)
            )
        )
    )
    remedy = "more landmarks, a larger λ, or float64" if iterative else "a larger λ"
    return f"the iteration stopped at a residual of {residuals[worst]:.2g}: {REASONS[reasons[worst]]}: take {remedy}"


def warn(message: str, depth: int) -> None:
    """To who called so many calls above."""
    warnings.warn(message, UserWarning, stacklevel=depth + 1)
