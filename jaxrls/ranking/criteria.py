"""The ranking criteria: the share of pairs of rows whose order is predicted wrongly.

`PairsOut` predicts each pair by the fit without its two rows. `QueriesOut` predicts it by the fit
without all rows of its query. Both take their sum from the class `Ordered`.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.criteria import NAMED, PIECEWISE_CONSTANT, OfLoss
from jaxrls.core.data import Folds, Rows, Weights, as_folds, check_groups, compiled, folds
from jaxrls.core.factors import Factor, Solution, as_columns
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import default_block_size, sum_rows
from jaxrls.core.support import (
    as_floats,
    known_and,
    known_values,
    on_device,
    pytree,
    require_values,
    static,
    value_of,
    where_known,
)
from jaxrls.ranking.pairs import (
    AllPairs,
    Held,
    ListedPairs,
    Pairs,
    PairsBetween,
    PairsWithin,
    sum_pairs,
)


def misordered(residual: Float[Array, "n t"], label: Float[Array, "n t"]) -> Float[Array, "n t"]:
    """Return the ranking error of each pair: 1 for the wrong order, ½ for a tie, else 0.

    The predicted difference of a pair is label − residual. It counts as a tie if it is at most
    eps^¾ (|label| + |residual|), because it may then be rounding alone.

    Args:
        residual: differences eᵢ − eⱼ of held-out residuals, (n, t).
        label: differences yᵢ − yⱼ of labels, (n, t).

    Returns:
        0, ½ or 1 for every pair, (n, t).

    **Cost** O(n t). **Raises** nothing. **Source**: Harrell, Lee and Mark 1996, §5.5; of two
    classes Hanley and McNeil 1982.

    >>> import jax.numpy as jnp
    >>> misordered(jnp.array([[0.5], [2.0], [3.0]]), jnp.array([[2.0], [2.0], [2.0]])).tolist()
    [[0.0], [0.5], [1.0]]
    """
    predicted = label - residual
    tie = jnp.abs(predicted) <= tie_below(label, residual)
    wrong = ((predicted > 0) != (label > 0)).astype(predicted.dtype)
    return jnp.where(tie, 0.5, wrong).astype(predicted.dtype)


PIECEWISE_CONSTANT.add(misordered)


def tie_below(one: Float[Array, "..."], other: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return eps^¾ (|one| + |other|): how large one − other may be by rounding alone."""
    return float(jnp.finfo(one.dtype).eps) ** 0.75 * (jnp.abs(one) + jnp.abs(other))


def ends_before(one: Held, other: Held) -> Bool[Array, "..."]:
    """Whether row `one` is known to end before row `other`, for labels that are times.

    This is so if two conditions hold:

    * the time of `one` is the time of an event, so that it is known when it ended;
    * the time of `other` is later, or it is the same time and censored. A censored row had not
      ended at its time, so it ended later.
    """
    outlasts = (one.label == other.label) & (other.event == 0)
    return (one.event > 0) & ((one.label < other.label) | outlasts)


def in_order_of_ends(times: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Return numbers (n, t) that increase with the times of each column.

    Of two equal times, a censored one gets a larger number than the time of an event. So row i is
    known to end before row j, by `ends_before`, if i has an event and its number is smaller.
    """
    ranks = [np.unique(column, return_inverse=True)[1] for column in times.T]
    censored = (events == 0)[:, None]
    return 2 * np.stack(ranks, axis=1) + censored


class Ordered(OfLoss):
    """The base class of both ranking criteria.

    Σ vᵢvⱼ loss(eᵢ − eⱼ, yᵢ − yⱼ) / Σ vᵢvⱼ over pairs (i, j) whose order is known, with the held-out
    residuals e. Subclasses say which rows are held out for each pair.
    """

    unit = "AUC"
    ignores_offset = True
    pairs: Any  # `Pairs`
    events: Any = None  # (n,), 1 for the time of an event, 0 for a censored time; None: not times

    def _bound(self, **fields: Any) -> Any:
        """Return a copy with fields as they are for one fit. No pairs are formed anew."""
        bound = copy(self)
        vars(bound).update(fields)
        return bound

    @where_known
    def check_rows(self, Y: Any, weights: Weights) -> None:
        """Raise if no pair has an order, or if a pair names a row that does not exist.

        Every column of labels needs a pair of rows of positive weight whose order is known. Arrays
        without values, inside `jax.jit`, are not checked.
        """
        events = self.events
        n = len(Y)
        Y = np.asarray(Y).reshape(n, -1)
        used = np.ones(n, bool) if weights.values is None else np.asarray(weights.values) > 0
        timed = used
        if events is not None:
            events = np.asarray(events)
            timed = used & (events > 0)
            Y = in_order_of_ends(Y, events)
        low = np.where(timed[:, None], Y, np.inf)
        high = np.where(used[:, None], Y, -np.inf)
        if not self.pairs.have_order(low, high).all():
            raise ValueError(
                "Y has no pair of rows of positive weight whose order is known, in some column: "
                "give labels that differ, weight to more rows, or events before the last time"
            )

    def terms(self, first: Held, second: Held) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Compute the terms of both sums for pairs of rows.

        For labels that are times, the differences in the loss are the row that ends first minus the
        other row.

        Returns:
            (vᵢvⱼ loss, vᵢvⱼ) for every pair. The weight vᵢvⱼ is 0 if the order is not known.
        """
        order = first.label - second.label
        difference = first.residual - second.residual
        weight = first.weight * second.weight
        if first.event is None:
            weight = jnp.where(order == 0, 0, weight)
        else:
            in_order = ends_before(first, second)
            reversed_order = ends_before(second, first)
            weight = jnp.where(in_order | reversed_order, weight, 0)
            sign = jnp.where(reversed_order, -1, 1).astype(order.dtype)
            rounding = tie_below(first.residual, second.residual)
            tied = (order == 0) & (jnp.abs(difference) <= rounding)
            order = sign * order
            difference = jnp.where(tied, 0, sign * difference)
        shape = difference.shape
        column = lambda values: jnp.broadcast_to(values, shape).reshape(-1, 1)  # losses take (n, t)
        return weight * self.loss(column(difference), column(order)).reshape(shape), weight


@pytree
class PairsOut(Ordered):
    """The ranking error by leave-pair-out: each pair of rows is ordered by the fit without both of
    them.

    Σ vᵢvⱼ loss(eᵢ − eⱼ, yᵢ − yⱼ) / Σ vᵢvⱼ over pairs yᵢ ≠ yⱼ. The loss is 1 where f₋ᵢⱼ(xᵢ) −
    f₋ᵢⱼ(xⱼ) has the opposite sign of yᵢ − yⱼ, and ½ where it is 0. Residuals are exact: e_S =
    [P_SS]⁻¹c_S for each pair S = {i, j}, with P and c as in `LeaveOneOut`.

    `pairwise_ranking_error` is this criterion over all pairs. It is 1 − AUC for two classes, else
    1 − the concordance index. An AUC from leave-one-out is biased, because it compares predictions
    of different fits. The AUC from leave-pair-out has next to no bias.

    Args:
        pairs: row numbers (p, 2), by default all pairs.
        events: (n,), for labels that are times: 1 for the time of an event, 0 for a censored time,
            until which there was no event. A pair counts if its smaller time is the time of an
            event. Two equal times count if one is of an event and the other censored, because the
            censored row lasted longer. A larger prediction means a later time. The differences in
            the loss are the row that ended first minus the other row.
        within: labels (n,), or what `folds` made of them. The pairs are then all pairs of rows of
            equal label, for example all rows of one query. `loo_residuals` of a fit are then the
            residuals with whole queries held out. With `fit(fixed_effects=levels(queries))` the
            method is RankRLS.
        loss: a function of differences of residuals and of labels. `squared_error` is smooth, so
            that `tune` can follow its gradient.

    Raises:
        ValueError: where no pair has an order; for a factor that cannot leave pairs out; for events
            other than 0 and 1.

    **Cost** at each λ ⅝ of a product n² r for all pairs, n₁n₂r for classes of n₁ and n₂ rows, or 2r
    for each pair that is given; memory of a block of pairs. **Source**: Pahikkala, Airola, Boberg
    and Salakoski 2008; Airola, Pahikkala, Waegeman, De Baets and Salakoski 2011.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(5.0)[:, None], jnp.array([-1.0, 1.0, -1.0, 1.0, 1.0])
    >>> rls.ranking.PairsOut()(rls.factorize(rls.Linear(), X), y, [1.0]).round(4).tolist()
    [0.25]
    """

    pairs: Any = None  # `Pairs`, made from row numbers (p, 2) or None
    events: Any = None
    within: Any = None  # `Folds`, made from labels (n,)
    loss: Callable = static(default=misordered)
    name = "pairwise_ranking_error"
    title = "AUC (concordance), pairs left out"

    def __post_init__(self):
        super().__post_init__()
        pairs: Any = self.pairs
        # Pairs that are not listed by the caller are formed anew, as a copy may have another
        # `within` than its original.
        listed = pairs is not None and not isinstance(pairs, AllPairs | PairsBetween | PairsWithin)
        if listed and self.within is not None:
            raise ValueError(
                "pairs and within were both given, and within says which pairs there are: leave "
                "one of them out"
            )
        if listed:
            pairs = pairs if isinstance(pairs, Pairs) else ListedPairs.of(pairs)
        elif self.within is None:
            pairs = AllPairs()
        else:
            plan = check_groups(folds(self.within), "PairsOut needs")
            object.__setattr__(self, "within", plan)
            pairs = pairs_within(plan)
        object.__setattr__(self, "pairs", pairs)

    @property
    def of_rows(self) -> dict[str, Any]:
        """The labels and the events of rows."""
        return {"within": self.within, "events": self.events}

    @property
    def groups(self):
        """The groups within which pairs are formed, None for pairs of all rows."""
        return self.within

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> "PairsOut":
        """Return the criterion for one fit, with groups and events checked against its rows.

        If the labels have values now (outside of `jax.jit`) and form two classes, only pairs of a
        row of one class and a row of the other are formed.
        """
        n = len(Y)
        count = None if rows is None else rows.count
        pairs = self.pairs
        events = self.events
        plan = self.within
        if plan is not None:
            plan = as_folds(plan, n, count)
        if events is not None:
            place = on_device if rows is None else rows.column
            events = place(as_floats("events", events, Y.dtype))
            check_events(events, n)
        one_target = isinstance(pairs, AllPairs) and events is None and Y.size == n
        labels = known_values(Y) if one_target else None
        if labels is not None:
            values, number = np.unique(labels, return_inverse=True)
            if len(values) == 2:
                classes = [jnp.asarray(np.flatnonzero(number.reshape(-1) == k)) for k in (0, 1)]
                pairs = PairsBetween(*sorted(classes, key=len, reverse=True))
        return self._bound(pairs=pairs, events=events, within=plan)

    def memory_options(self) -> dict[str, Any]:
        """Return the options of `memory` for pairs, within groups if there are any."""
        return super().memory_options() | {"pairs": True}

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Compute the error (L, t) from the 2×2 blocks of R, for one λ after another."""
        check_pairs_rest(solution.factor)
        return _pairs_out(self, solution, lams)


@compiled
def _pairs_out(
    criterion: PairsOut, solution: Solution, lams: Float[Array, "L *k"]
) -> Float[Array, "L t"]:
    sums = sum_pairs(solution, criterion.terms, lams, criterion.pairs, criterion.events)
    return sums[0] / sums[1]


@pytree
class QueriesOut(Ordered):
    """The ranking error by leave-query-out: the rows of each query are ordered by the fit without
    that query.

    Σ vᵢvⱼ loss(eᵢ − eⱼ, yᵢ − yⱼ) / Σ vᵢvⱼ over pairs of rows of the same query. This estimates the
    error on new queries.

    Args:
        groups: labels (n,) of queries, or what `folds` made of them.
        loss: as in `PairsOut`.
        pairs: all pairs within queries. The class forms them, so leave this out.

    >>> import jaxrls as rls
    >>> rls.ranking.QueriesOut([0, 0, 1, 1]).name
    'query_ranking_error'
    """

    groups: Any = None  # `Folds`, made from labels (n,) of queries
    loss: Callable = static(default=misordered)
    pairs: Any = None  # `ListedPairs` of rows of the same query
    name = "query_ranking_error"
    title = "AUC (concordance), queries left out"

    def __post_init__(self):
        super().__post_init__()
        plan = check_groups(folds(self.groups), "QueriesOut needs")
        object.__setattr__(self, "groups", plan)
        object.__setattr__(self, "pairs", pairs_within(plan))

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> "QueriesOut":
        """Return the criterion for one fit, with groups checked against its rows."""
        count = None if rows is None else rows.count
        return self._bound(groups=as_folds(self.groups, len(Y), count))

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Compute the error (L, t) from held-out residuals, for one λ after another."""
        Y = solution.labels.Y
        v = solution.factor.weights.array
        numbers = self.pairs.first, self.pairs.second
        size = default_block_size(len(numbers[0]), 8 * Y[0].nbytes)

        def error(lam: Float[Array, " k"]) -> Float[Array, " t"]:
            e = solution.held_out_residuals(lam[None], self.groups)[0]

            def sum_block(
                numbers: tuple[Int[Array, " b"], Int[Array, " b"]],
            ) -> list[Float[Array, " t"]]:
                terms = self.terms(*(Held(Y[i].T, v[i], residual=e[i].T) for i in numbers))
                return [jnp.sum(term, axis=1) for term in terms]

            losses, weights = sum_rows(sum_block, numbers, size)
            return losses / weights

        return jax.lax.map(error, as_columns(lams))


pairwise_ranking_error = PairsOut()
NAMED["pairs"] = pairwise_ranking_error


def check_pairs_rest(factor: Factor) -> None:
    """Raise if an intercept is fitted and no weight would remain without some pair of rows.

    So fewer than three rows of positive weight are an error. Without an intercept there is none.
    """
    if factor.intercept:
        _check_three_rows(factor.weights)


@where_known
def _check_three_rows(weights: Weights) -> None:
    """Raise for fewer than three rows of positive weight, unless the weights have no values."""
    v = weights.values
    count = weights.n if v is None else int(value_of(lambda xp, v: xp.count_nonzero(v), v))
    if count < 3:
        raise ValueError(
            "leaving pairs out with an intercept needs three rows of positive weight, and X has "
            f"{count}: give more rows, or intercept=False"
        )


def check_events(events: Float[Array | np.ndarray, "..."], n: int) -> None:
    """Raise unless `events` has shape (n,) and its values are 0 or 1.

    Only the shape is checked if `events` has no values, inside `jax.jit`.
    """
    must = "events must be 1 where the time is that of an event and 0 where censored, "
    if events.shape != (n,):
        raise ValueError(f"{must}of shape ({n},), and has shape {events.shape}")
    if known_and(lambda events: not np.isin(events, (0, 1)).all(), events):
        neither = np.asarray(events)[~np.isin(np.asarray(events), (0, 1))]
        raise ValueError(f"{must}and include {neither[0]:.3g}")


def pairs_within(folds: Folds) -> ListedPairs:
    """Return all pairs of two rows of the same group, listed on the host.

    Raise inside `jax.jit`, where groups have no values, and if no group has two rows.
    """
    require_values(
        "groups must be known outside of jax.jit, where its pairs are counted, and is an "
        "argument of the compiled function: make the criterion outside",
        folds,
    )
    if folds.width < 2:
        raise ValueError(
            "groups has no two rows of the same label, so that there is no pair to order: give "
            "labels that rows share"
        )
    left_out = np.asarray(folds.left_out)
    mask = np.asarray(folds.left_out_mask) > 0
    listed = [
        rows[used][np.stack(np.triu_indices(used.sum(), 1), axis=1)]
        for rows, used in zip(left_out, mask, strict=True)
    ]
    return PairsWithin.of(np.concatenate(listed))
