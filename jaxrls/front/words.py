"""`fit_in_words` describes a fit in the words that `print` shows."""

from typing import Any

import numpy as np

from jaxrls.core.kernels import Standardized
from jaxrls.core.support import is_concrete


def fit_in_words(fit: Any) -> str:
    """Return two lines: kernel, rows, λ, error, held-out R² and degrees of freedom; and the plan.

    Inside of `jax.jit`, where numbers are not known, name the kernel and the criterion alone.
    """
    kernel = fit.model.kernel
    if not is_concrete(fit.lam, fit.error, fit.dof):
        return f"Fit(kernel={kernel}, criterion={fit.criterion!r})"
    if np.ndim(fit.floor):
        return f"{kernel.title} on {_sets_of_rows(fit)}, by the {fit.criterion} error"
    standardized = ", standardized" if isinstance(kernel, Standardized) else ""
    rows = "" if fit.loo_residuals is None else f" on {len(fit.loo_residuals)} rows"
    numbers = [_lam_in_words(fit)]
    if fit.error is not None:
        numbers.append(f"{_name_of_error(fit)} {np.asarray(fit.error).mean():.3g}")
    if fit.r2 is not None and fit.unit != "AUC":
        numbers.append(f"held-out R² {float(fit.r2):.3g}")
    if fit.dof is not None:
        numbers.append(f"{np.asarray(fit.dof).mean():.1f} degrees of freedom")
    return f"{kernel.title}{rows}{standardized}: {', '.join(numbers)}\n{fit.plan}"


def _sets_of_rows(fit: Any) -> str:
    """Return in words how many fits `jax.vmap` made, and how many rows each has."""
    sets = f"{np.size(fit.floor)} sets"
    if fit.loo_residuals is None:
        return sets
    return f"{sets} of {np.shape(fit.loo_residuals)[np.ndim(fit.floor)]} rows"


def _lam_in_words(fit: Any) -> str:
    """Return in words the chosen λ, or their range over targets, and how many λ were tried."""
    lams = np.asarray(fit.lam)
    low = f"{lams.min():.3g}"
    high = f"{lams.max():.3g}"
    chosen = low if lams.min() == lams.max() else f"{low} to {high}"
    among = f" of {len(fit.lams)}" if np.size(fit.lams) > 1 else ""
    return f"λ = {chosen}{among}"


def _name_of_error(fit: Any) -> str:
    """Return the name of the criterion that stands before its value."""
    return fit.title if fit.unit == "nats" else f"{fit.criterion.removesuffix('_error')} error"
