"""What a fit at given λ comes down to."""

from typing import TYPE_CHECKING, Any, NamedTuple


class Coefficients(NamedTuple):
    """Coefficients and unpenalised intercept, at every λ where there are several."""

    coef: Any
    intercept: Any


class FreeCoefficients(NamedTuple):
    """The same with those of columns without penalty, β (…, q, t)."""

    coef: Any
    intercept: Any
    free: Any


# Two to those who read types, as callers unpack two unless they named columns without penalty.
if TYPE_CHECKING:
    AnyCoefficients = Coefficients
else:
    AnyCoefficients = Coefficients | FreeCoefficients


class Outcome(NamedTuple):
    """All that a fit at one λ, or one per target, leaves; `error` is the standard error of a sum over rows left out, and `run` how an iteration went."""

    coefficients: Coefficients
    residuals: Any
    dof: Any
    error: Any = None
    run: Any = None
