"""A whole fit as pure functions of arrays, which can be traced by JAX.

`fit_arrays` computes the fit. It takes a `Problem`, which holds the data, and a `Choice`, which
says how λ is chosen. It returns a `Result`. Begin reading at `fit_arrays`.
"""

from jaxrls.core.fit.choice import (
    Choice,
    Chosen,
    Given,
    Grid,
    HeldLam,
    choose_lam,
    lambda_grid,
    lambda_range,
)
from jaxrls.core.fit.fit_arrays import Fitted, fit_arrays
from jaxrls.core.fit.function import Function, Numbers
from jaxrls.core.fit.problem import Problem
from jaxrls.core.fit.result import (
    Diagnostics,
    Number,
    PerTarget,
    Prequential,
    Result,
    r_squared,
    result_at,
    result_of_moments,
)
