"""Which criterion, on which data: from what a caller names to a `Criterion`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jaxrls.criteria.criterion import Criterion, Given
from jaxrls.criteria.holding_out import HoldOut, holdout
from jaxrls.criteria.in_pairs import PairsOut, pairwise_ranking_error, within
from jaxrls.criteria.left_out import GroupsOut, LeaveOneOut, as_folds, kfold, loo
from jaxrls.criteria.log_predictive import LogPredictive, log_predictive_density
from jaxrls.criteria.losses import check_loss, squared_error
from jaxrls.criteria.whole import GCV, Evidence, gcv, log_marginal_likelihood
from jaxrls.kernels.inner import Linear
from jaxrls.problem.folds import Folds
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
from jaxrls.support.checks import as_floats, as_labels, check_finite, is_concrete

OWN = (
    loo,
    kfold,
    holdout,
    gcv,
    log_marginal_likelihood,
    log_predictive_density,
    pairwise_ranking_error,
)


def as_criterion(criterion, loss: Callable, groups, validation, rows: Rows, Y) -> Criterion:
    """The criterion that was named, or that groups or validation data imply, with its loss and
    data.
    """
    check_loss(loss)
    if groups is not None and validation is not None:
        raise ValueError(
            "groups and validation each name a criterion, kfold and holdout: give one of them"
        )
    if isinstance(criterion, Criterion):
        if groups is not None or validation is not None or loss is not squared_error:
            raise ValueError(
                f"criterion {criterion.name} holds its own loss, groups and validation data: leave those arguments out"
            )
        if criterion.groups is not None:
            as_folds(criterion.groups, rows.shape[0])
        return criterion
    if not callable(criterion):
        raise ValueError(
            f"criterion must be a function, such as jaxrls.gcv, or a jaxrls.Criterion, and is {criterion!r}"
        )
    known, groups = _unwrapped(criterion), _unless_one(criterion, groups, rows)
    if groups is not None and criterion in (loo, kfold):
        return GroupsOut(as_folds(_padded(groups, rows), rows.shape[0]), loss)
    if groups is not None and criterion is pairwise_ranking_error:
        return PairsOut.of(Y, within(as_folds(_padded(groups, rows), rows.shape[0])))
    if validation is not None and criterion in (loo, holdout):
        return _held_out(validation, loss, rows, Y)
    name = getattr(criterion, "__name__", type(criterion).__name__)
    if groups is not None or validation is not None:
        raise ValueError(
            f"groups and validation do not go with criterion {name}: leave one of them out"
        )
    if criterion is kfold:
        raise ValueError("criterion=kfold needs groups=, (n,) labels of rows to leave out together")
    if criterion is holdout:
        raise ValueError("criterion=holdout needs validation=(X, Y)")
    makers: dict[Any, Callable] = {
        gcv: GCV,
        log_marginal_likelihood: Evidence,
        log_predictive_density: LogPredictive,
        pairwise_ranking_error: partial(PairsOut.of, Y),
        **dict.fromkeys((loo, kfold, holdout), partial(LeaveOneOut, loss)),
    }
    own = makers.get(known)
    if loss is not squared_error and criterion is not loo:
        raise ValueError(
            f"criterion {name} does not average a loss: leave loss= out, or use loo, kfold or holdout"
        )
    if own is None:
        return Given(criterion)
    return own() if criterion is known else Given(criterion, own())


def _unless_one(criterion, groups, rows: Rows):
    """Groups, or None where all rows are one and it is only pairs that are left out."""
    if (
        criterion is not pairwise_ranking_error
        or groups is None
        or isinstance(groups, Folds)
        or not is_concrete(groups)
    ):
        return groups
    labels = as_labels("groups", groups)
    return (
        None
        if len(labels) in (rows.count, rows.shape[0]) and len(np.unique(labels)) == 1
        else groups
    )


def _padded(groups, rows: Rows):
    """Labels of all rows, those of padding, whose weight is 0, in the group of the last."""
    missing, labels = (
        rows.shape[0] - rows.count,
        groups.numbers if isinstance(groups, Folds) else groups,
    )
    if not missing or not is_concrete(labels) or len(labels) == rows.shape[0]:
        return groups
    if len(labels) != rows.count:
        raise ValueError(
            f"groups must have {rows.count} labels, one per row of X, and has {len(labels)}"
        )
    groups = np.asarray(labels)
    return np.concatenate([groups, np.repeat(groups[-1:], missing)])


def _unwrapped(criterion):
    """The library's own function inside of `jax.jit`, `functools.partial` and whatever else says
    what it wraps, or what is innermost.
    """
    while criterion not in OWN and (
        isinstance(criterion, partial) or hasattr(criterion, "__wrapped__")
    ):
        criterion = criterion.func if isinstance(criterion, partial) else criterion.__wrapped__
    return criterion


def _held_out(validation, loss, rows: Rows, Y) -> HoldOut:
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError(
            f"validation must be a pair (X, Y) of rows held out and their labels, and is {type(validation).__name__}"
        )
    X_held, Y_held = validation
    seen = as_rows(Linear(), X_held, "validation X")
    Y_held = seen.column(as_floats("validation Y", Y_held))
    check_finite("validation Y", Y_held)
    if seen.shape[1] != rows.shape[1]:
        raise ValueError(
            f"validation X must have the {rows.shape[1]} columns of X, and has {seen.shape[1]}"
        )
    wanted = (seen.shape[0], *Y.shape[1:])
    if Y_held.shape != wanted:
        raise ValueError(
            f"validation Y must have shape {wanted}, as its X and Y do, and has shape {Y_held.shape}"
        )
    return HoldOut.of(seen, Y_held, loss=loss)
