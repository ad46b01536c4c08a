"""Rows that are added to a fit, and removed again, from the moments that it keeps."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrls.core.fit import (
    Choice,
    Chosen,
    Fit,
    Problem,
    conclude_moments,
    inspect_fit,
    once_per_fit,
    solution_of,
    warn,
)
from jaxrls.core.kernels import Kernel
from jaxrls.core.problem import Data, as_rows, compiled
from jaxrls.core.support import is_concrete
from jaxrls.rows.summed import Summed

# The share of the digits, as a power of eps, whose loss is warned of.
SHOWN = -1 / 3


@once_per_fit
def summed_of(fit: Fit) -> Summed:
    """Moments of the rows of a fit that kept its solution."""
    return Summed.of_solution(solution_of(fit), fit.problem)


def with_rows(fit: Fit, sign: int, X, Y, weights, fixed_effects, block_size: int | None) -> Fit:
    """The fit with rows added, or with a negative `sign` removed."""
    summed = summed_of(fit)
    more = _moments_of(fit, summed, X, Y, weights, fixed_effects, block_size)
    flat, lam = fit.model.coef.ndim == 1, jnp.asarray(fit.lam)
    changed = _changed(fit.model.kernel, summed, more, fit.choice, lam, sign=sign, flat=flat)
    known = is_concrete(changed)
    if known and sign < 0 and not changed.possible:
        raise ValueError(
            "X and Y cannot be removed: they hold all of the weight, or were not fitted with "
            "these labels and weights"
        )
    updated = replace(
        changed.fit,
        criterion=fit.criterion,
        title=fit.title,
        unit=fit.unit,
        choice=fit.choice,
        saved=fit.saved,
    )
    if known:
        _inspect_digits(float(changed.cancellation), fit.model.coef.dtype)
        inspect_fit(updated, fit.choice is not None and fit.choice.lams is None)
    return updated


def _moments_of(fit: Fit, summed: Summed, X, Y, weights, fixed_effects, block_size):
    """Moments of new rows, about the same origins."""
    new, fixed = _read(fit, summed, X, Y, weights), summed.fixed
    labels = new.Y.reshape(len(new.Y), -1)
    columns = fixed.new_rows(fixed_effects, len(labels), new.rows.dtype)
    if columns is not None:
        fixed = replace(fixed, rows=new.rows.column(columns))
    data = Data(new.rows, new.weights, fixed)
    return _summed(summed, data, labels, block_size=block_size)


_summed = compiled(Summed.moments_of)


def _read(fit: Fit, summed: Summed, X, Y, weights) -> Problem:
    """Rows, labels and weights, checked as those of a fit are."""
    kernel, coef = summed.features.kernel, fit.model.coef
    if not kernel.evaluable:
        raise ValueError(
            "a fit to a given kernel matrix cannot be updated: fit with a kernel and its inputs"
        )
    dtype = coef.dtype
    rows = as_rows(kernel, X, dtype=dtype)
    if rows.dtype != dtype:
        raise ValueError(
            f"X must have dtype {dtype}, as the rows of the fit, and has {rows.dtype}: convert it"
        )
    summed.check_width(rows.shape[1])
    new = Problem.of(kernel, rows, Y, weights=weights, intercept=False)
    expected = rows.shape[0], *coef.shape[1:]
    if new.Y.shape != expected:
        raise ValueError(
            f"Y must have shape {expected}, one row for each of X and as many columns as before, "
            f"and has shape {new.Y.shape}"
        )
    return new


class Changed(NamedTuple):
    """A fit to other rows; whether such rows can exist; and by how much rounding has grown."""

    fit: Fit
    possible: Any
    cancellation: Any


@compiled
def _changed(
    kernel: Kernel, summed: Summed, more, choice: Choice | None, lam, *, sign, flat
) -> Changed:
    summed = summed.changed(more, sign)
    solution = summed.solution(flat)
    chosen = Chosen(None, None, lam) if choice is None else choice.of(solution, kernel)
    words = "sums over rows that were added or removed"
    fit = conclude_moments(kernel, solution, chosen, plan=words)
    fit = replace(fit, solution=solution, stored={summed_of.__name__: summed})
    return Changed(fit, summed.possible(), summed.cancellation(chosen.lam))


def _inspect_digits(cancellation: float, dtype) -> None:
    """Warn of digits that rounding has destroyed."""
    eps = float(np.finfo(dtype).eps)
    if cancellation > eps**SHOWN:
        left, whole = max(0, int(-np.log10(eps * cancellation))), int(-np.log10(eps))
        warn(
            f"removing rows left about {left} of {whole} digits, as sums over rows were "
            f"{cancellation:.1g} times as large before: fit the remaining rows again"
        )
