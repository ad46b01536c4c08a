"""Which criterion: from what a caller gives to a `Criterion`."""

import inspect
from dataclasses import replace

from jaxrls.criteria.criterion import Criterion, Given
from jaxrls.criteria.holding_out import holdout
from jaxrls.criteria.in_pairs import pairwise_ranking_error
from jaxrls.criteria.left_out import LeaveOneOut, kfold, loo
from jaxrls.criteria.log_predictive import log_predictive_density
from jaxrls.criteria.whole import gcv, log_marginal_likelihood

NAMED: dict[str, Criterion] = {
    "loo": loo,
    "gcv": gcv,
    "evidence": log_marginal_likelihood,
    "log_predictive_density": log_predictive_density,
    "pairs": pairwise_ranking_error,
}


def as_criterion(criterion, groups=None) -> Criterion:
    """The criterion by name, as a function, or itself; of single rows with the groups that are to
    be left out in their place.
    """
    if isinstance(criterion, str) and criterion in NAMED:
        criterion = NAMED[criterion]
    if isinstance(criterion, str | type) or not callable(criterion):
        raise ValueError(
            f"criterion must be one of {', '.join(map(repr, NAMED))}, kfold(groups), "
            f"holdout(X, Y), a jaxrls.Criterion or a function of (factor, Y, lams), and is "
            f"{criterion!r}"
        )
    if criterion in (kfold, holdout):
        data = "kfold(groups)" if criterion is kfold else "holdout(X, Y)"
        raise ValueError(f"criterion={criterion.__name__} lacks its data: give criterion={data}")
    inner = inspect.unwrap(getattr(criterion, "func", criterion))
    if inner is not criterion and isinstance(inner, Criterion):
        raise ValueError(f"criterion must be {inner.name} itself, and is a function around it")
    if not isinstance(criterion, Criterion):
        criterion = Given(criterion)
    if groups is None:
        return criterion
    if not isinstance(criterion, LeaveOneOut) or criterion.groups is not None:
        raise ValueError(
            f"groups= leaves groups out in place of single rows, and criterion is "
            f"{criterion.name}: leave one of them out, or give kfold(groups) or "
            "PairsOut(within=groups)"
        )
    return replace(criterion, groups=groups)
