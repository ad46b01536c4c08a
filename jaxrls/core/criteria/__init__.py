"""Criteria: validation errors for every λ, from a factor with labels.

`fit` and `tune` minimise a criterion. Begin reading at `Criterion`, the base class.
"""

from jaxrls.core.criteria.criterion import Criterion, FunctionCriterion, OfLoss, as_grid
from jaxrls.core.criteria.evidence import Evidence, OfPrior
from jaxrls.core.criteria.gcv import GCV
from jaxrls.core.criteria.hold_out import HoldOut
from jaxrls.core.criteria.leave_one_out import LeaveOneOut, loo
from jaxrls.core.criteria.losses import (
    PIECEWISE_CONSTANT,
    absolute_error,
    check_loss,
    squared_error,
    zero_one_loss,
)
from jaxrls.core.criteria.named import CRITERIA, NAMED, as_criterion
from jaxrls.core.criteria.path import (
    Path,
    coef,
    effective_dof,
    known_lam,
    loo_residuals,
    one_lam,
)
from jaxrls.core.criteria.predictive import CRPS, LogPredictive, crps, log_predictive_density
