"""The criteria that have a name, and `as_criterion`, which reads `criterion=` of public calls."""

import inspect
from collections import ChainMap
from dataclasses import replace
from typing import Any

from jaxrls.core.criteria.criterion import Criterion, FunctionCriterion
from jaxrls.core.criteria.evidence import log_marginal_likelihood
from jaxrls.core.criteria.gcv import gcv
from jaxrls.core.criteria.hold_out import holdout
from jaxrls.core.criteria.leave_one_out import LeaveOneOut, kfold, loo
from jaxrls.core.criteria.predictive import crps, log_predictive_density

# The criteria that have a name. A room adds its own criteria.
NAMED: dict[str, Criterion] = {
    "loo": loo,
    "gcv": gcv,
    "evidence": log_marginal_likelihood,
    "log_marginal_likelihood": log_marginal_likelihood,
    "log_predictive_density": log_predictive_density,
    "crps": crps,
}


# The names that estimators and the command line take. "kfold" is here `loo`, to which groups are
# added: the groups that the user gave, else random ones.
CRITERIA: ChainMap[str, Criterion] = ChainMap({"kfold": loo}, NAMED)


def as_criterion(criterion: Any, groups: Any = None) -> Criterion:
    """Return a criterion made from a name, a function or a criterion.

    With `groups`, the criterion must leave out single rows. It is then returned with these groups
    left out in their place.
    """
    if isinstance(criterion, str):
        criterion = NAMED.get(criterion, criterion)
    if not isinstance(criterion, Criterion):
        _check_function(criterion)
        criterion = FunctionCriterion(criterion)
    if groups is None:
        return criterion
    if not isinstance(criterion, LeaveOneOut) or criterion.groups is not None:
        raise ValueError(
            f"groups= leaves groups out in place of single rows, and criterion is "
            f"{criterion.name}: leave one of them out, or give kfold(groups) or "
            "PairsOut(within=groups)"
        )
    return replace(criterion, groups=groups)


def _check_function(criterion: Any) -> None:
    """Raise unless `criterion` is a function, which is taken for one of (factor, Y, lams).

    These callables are refused:

    * a class;
    * `kfold` and `holdout`, which make criteria;
    * a wrapper around a criterion, because `bind` would not read that criterion's own data.
    """
    innermost = inspect.unwrap(getattr(criterion, "func", criterion))
    makes_criteria = innermost is kfold or innermost is holdout
    if not callable(criterion) or makes_criteria or isinstance(innermost, type | Criterion):
        raise ValueError(
            f"criterion must be one of {', '.join(map(repr, NAMED))}, kfold(groups), "
            f"holdout(X, Y), a jaxrls.extend.Criterion or a function of (factor, Y, lams), and is "
            f"{criterion!r}"
        )
