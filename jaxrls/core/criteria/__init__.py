"""Criteria: validation errors for every λ, from a factor with labels. `fit` and `tune` minimise
them."""

from jaxrls.core.criteria.criterion import Criterion, FunctionCriterion, Positive, as_grid
from jaxrls.core.criteria.losses import (
    PIECEWISE_CONSTANT,
    absolute_error,
    check_loss,
    squared_error,
    zero_one_loss,
)
from jaxrls.core.criteria.path import (
    Path,
    coef,
    effective_dof,
    known_lam,
    loo_residuals,
    one_lam,
)
from jaxrls.core.criteria.standard import (
    CRITERIA,
    CRPS,
    NAMED,
    Evidence,
    HoldOut,
    LeaveOneOut,
    LogPredictive,
    OfPrior,
    as_criterion,
    crps,
    log_predictive_density,
    loo,
)
