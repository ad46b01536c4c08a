"""What a fit says of itself: `fit_in_words` as `print` shows it, and `summary` as a table."""

from typing import Any

import numpy as np

from jaxrls.core.kernels import Standardized
from jaxrls.core.support import is_concrete, require_values


def facts_of(fit: Any) -> dict[str, Any]:
    """Return what a fit knows of itself, by names: one value for all targets, or one for each."""
    kernel = fit.model.kernel
    facts = {
        "kernel": kernel.title,
        "standardized": isinstance(kernel, Standardized),
        "rows": None if fit.loo_residuals is None else len(fit.loo_residuals),
        "criterion": fit.criterion,
        "lam": fit.lam,
        "error": fit.error,
        "loo_standard_error": fit.loo_standard_error,
        "prequential_error": fit.prequential_error,
        "r2": None if fit.unit == "AUC" else fit.r2,
        "dof": fit.dof,
    }
    return {name: value for name, value in facts.items() if value is not None}


# a table
# --------------------------------------------------------------------------------------------------


def table_of(fit: Any) -> dict[str, np.ndarray]:
    """Return the columns of `Fit.summary`."""
    require_values("summary needs numbers: call it outside of jax.jit and jax.vmap", fit.lam)
    if np.ndim(fit.floor):
        raise ValueError(
            "summary is of one fit, and this one holds several, out of jax.vmap: take one of "
            "them, as jax.tree.map(lambda a: a[0], fit) does"
        )
    targets = fit.model.coef.shape[1:] or (1,)
    facts = facts_of(fit)
    if "error" in facts:
        facts["error"] = _error_of_each(fit)
    if "loo_standard_error" in facts:
        known = fit.diagnostics.standard_error_of_targets
        facts["loo_standard_error"] = _of_each(fit, fit.loo_standard_error, known)
    if "r2" in facts:
        facts["r2"] = fit.diagnostics.r2_of_targets
    columns = {name: np.broadcast_to(np.asarray(value), targets) for name, value in facts.items()}
    return {"target": np.arange(*targets)} | {name: a.copy() for name, a in columns.items()}


def _error_of_each(fit: Any) -> Any:
    """Return the criterion of each target at the chosen λ, NaN if only their mean is known."""
    known = fit.diagnostics.error_of_targets
    if not np.ndim(fit.error) and np.ndim(fit.errors) == 2:
        known = np.asarray(fit.errors)[np.argmax(np.asarray(fit.lams) == np.asarray(fit.lam))]
    return _of_each(fit, fit.error, known)


def _of_each(fit: Any, of_all: Any, known: Any) -> Any:
    """Return a number for each target.

    Args:
        fit: the fit.
        of_all: the number, for each target or shared by all targets.
        known: the number of each target, to use if `of_all` is shared; None if it is not known, and
            the result is NaN.
    """
    one_target = np.size(fit.model.constant) == 1
    if one_target or np.ndim(of_all):
        return of_all
    return np.nan if known is None else known


# words
# --------------------------------------------------------------------------------------------------


def fit_in_words(fit: Any) -> str:
    """Return two lines: kernel, rows, λ, error, held-out R² and degrees of freedom; and the plan.

    Inside of `jax.jit`, where numbers are not known, name the kernel and the criterion alone.
    """
    kernel = fit.model.kernel
    if not is_concrete(fit.lam, fit.error, fit.dof):
        return f"Fit(kernel={kernel}, criterion={fit.criterion!r})"
    if np.ndim(fit.floor):
        return f"{kernel.title} on {_sets_of_rows(fit)}, by the {fit.criterion} error"
    facts = facts_of(fit)
    standardized = ", standardized" if facts["standardized"] else ""
    rows = f" on {facts['rows']} rows" if "rows" in facts else ""
    numbers = [_lam_in_words(fit)]
    if "error" in facts:
        numbers.append(f"{_name_of_error(fit)} {np.asarray(facts['error']).mean():.3g}")
    if "prequential_error" in facts:
        numbers.append(f"prequential error {np.asarray(facts['prequential_error']).mean():.3g}")
    if "r2" in facts:
        numbers.append(f"held-out R² {float(facts['r2']):.3g}")
    if "dof" in facts:
        numbers.append(f"{np.asarray(facts['dof']).mean():.1f} degrees of freedom")
    return f"{facts['kernel']}{rows}{standardized}: {', '.join(numbers)}\n{fit.plan}"


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
