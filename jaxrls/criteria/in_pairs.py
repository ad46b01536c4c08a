"""Errors of pairs of rows that are left out together: the order that they are predicted in, as a
search of λ for ranking wants it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Positive
from jaxrls.criteria.left_out import LeaveOneOut
from jaxrls.criteria.losses import misordered
from jaxrls.factors.contract import Factor, Solution, as_columns
from jaxrls.leave_out.pairs import Held, Pairs
from jaxrls.problem.folds import NUMBERS_AT_ONCE, Folds, as_folds, folds, over_folds
from jaxrls.problem.weights import Weights
from jaxrls.rows.compiled import compiled
from jaxrls.support.checks import as_array, check_finite, check_row_numbers, is_concrete, value_of
from jaxrls.support.pytrees import pytree, static


@pytree
class PairsOut(Positive):
    """Σ vᵢvⱼ loss(eᵢ − eⱼ, yᵢ − yⱼ) / Σ vᵢvⱼ over pairs yᵢ ≠ yⱼ, each pair left out of the fit that
    orders it. `pairwise_ranking_error` is that of all pairs: for two classes 1 − AUC, else 1 −
    concordance index.

    The loss is 1 where f₋ᵢⱼ(xᵢ) − f₋ᵢⱼ(xⱼ) has the other sign than yᵢ − yⱼ, and ½ where it is 0,
    exactly, with e_B = [P_BB]⁻¹c_B for all B = {i, j} from the blocks of P(λ). Unlike an AUC of rows
    left out one by one, which compares predictions of different fits, it has next to no bias.

    Args:
        pairs: row numbers (p, 2), by default all pairs.
        events: (n,), 1 where Y is the time of an event, 0 where it is one until which there was
            none: a pair then counts where its smaller time is an event's, and predictions are times.
        within: labels (n,), or what `folds` made of them: all pairs of rows of equal label, such as
            those of one query. Residuals of a fit are then those of whole queries left out. With
            `fit(fixed_effects=levels(queries))` it is RankRLS.
        loss: with `squared_error` it is smooth, and tunes by gradient.

    **Cost** at each λ ⅝ of the product n² r that makes P, n₁n₂r for classes of n₁ and n₂ rows where
    labels are known, 2r for each pair that is named; a block of rows of pairs in memory. **Raises**
    where no pair has an order; for a factor that leaves no pairs out; for events other than 0 and
    1. **Source**: Pahikkala, Airola, Boberg and Salakoski 2008; Airola, Pahikkala, Waegeman, De
    Baets and Salakoski 2011.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(5.0)[:, None], jnp.array([-1.0, 1.0, -1.0, 1.0, 1.0])
    >>> rls.PairsOut()(rls.factorize(rls.Linear(), X), y, [1.0]).round(4).tolist()
    [0.25]
    """

    pairs: Any = None  # `Pairs`, which row numbers (p, 2) are made
    events: Any = None
    within: Any = None  # `Folds`, which labels (n,) are made
    loss: Callable = static(default=misordered)
    name = "pairwise_ranking_error"
    in_pairs = True

    def __post_init__(self):
        if isinstance(self.pairs, jax.Array | np.ndarray | list | tuple):
            object.__setattr__(self, "pairs", Pairs.of(self.pairs))
        if self.within is not None and self.pairs is None:
            plan = self.within if isinstance(self.within, Folds) else folds(self.within)
            object.__setattr__(self, "within", plan)
            object.__setattr__(self, "pairs", within(plan))

    def bind(self, Y, rows=None):
        """All pairs of two classes that are known are rows of one with rows of the other."""
        count, plan = None if rows is None else rows.count, self.within
        plan = None if plan is None else as_folds(plan, len(Y), count)
        events = None if self.events is None else as_array("events", self.events, Y.dtype)
        pairs, n = self.pairs, Y.shape[0]
        if pairs is None and Y.size == n and is_concrete(Y, events):
            classes = np.unique(np.asarray(Y))
            if len(classes) == 2:
                parts = [np.flatnonzero(np.asarray(Y).reshape(-1) == one) for one in classes]
                pairs = Pairs.between(*sorted(parts, key=len, reverse=True))
        return replace(self, pairs=pairs, events=events, within=plan)

    smooth = LeaveOneOut.smooth

    @property
    def groups(self):
        """Those that pairs are within."""
        return self.within

    def check_rows(self, Y, weights, count):
        """Pairs and events of these rows, and some pair with an order."""
        if self.events is not None:
            check_events(self.events, count, len(Y))
        check_order(Y, weights, self.pairs, self.events)

    def values(self, solution, lams, kernel):
        """From the 2×2 blocks of what is left out, at one λ after another."""
        del kernel
        check_pairs_rest(solution.factor)
        return _wrong(self, solution, lams)


def check_pairs_rest(factor: Factor) -> None:
    """Raise where a pair of rows holds all of the weight, and an intercept is fitted."""
    if not factor.intercept or not is_concrete(factor.weights):
        return
    v = factor.weights.values
    used = factor.n if v is None else int(value_of(lambda xp, v: xp.count_nonzero(v > 0), v))
    if used < 3:
        raise ValueError(
            f"X has {used} row{'s' * (used != 1)} of positive weight: leaving two out with an "
            "intercept takes three, or intercept=False"
        )


@pytree
class QueriesOut(Positive):
    """The same over pairs of rows of one query, every query left out in turn, as those are that a
    ranking is asked for.

    >>> import jaxrls as rls
    >>> rls.QueriesOut([0, 0, 1, 1]).name
    'query_ranking_error'
    """

    groups: Any = None  # `Folds`, which labels of queries (n,) are made
    loss: Callable = static(default=misordered)
    name = "query_ranking_error"

    def __post_init__(self):
        if not isinstance(self.groups, Folds):
            object.__setattr__(self, "groups", folds(self.groups))
        check_shared(self.groups)

    smooth = LeaveOneOut.smooth
    bind = LeaveOneOut.bind

    def check_rows(self, Y, weights, count):
        """Some pair with an order, in some query."""
        del count
        if not is_concrete(Y, weights, self.groups):
            return
        check_finite("Y", Y)
        Y, used = np.asarray(Y).reshape(len(Y), -1), weighing(weights, len(Y))
        numbers = np.asarray(self.groups.numbers)
        ends = np.full((2, len(Y), Y.shape[1]), -np.inf)  # of each query, the largest −y and y
        for end, values in zip(ends, (-Y, Y), strict=True):
            np.maximum.at(end, numbers[used], values[used])
        tell_order((ends.sum(axis=0) > 0).any(axis=0), used)

    def values(self, solution, lams, kernel):
        """From held-out residuals of all rows, at one λ after another and some queries at once: b²
        numbers for each of b rows.
        """
        del kernel
        plan, Y, v = self.groups, solution.labels.Y, solution.factor.weights.array
        b, mask = plan.inside.shape[1], plan.inside_mask.astype(v.dtype)

        def at(lam):
            e = solution.residuals(lam[None], plan)[0]

            def query(rows, mask):
                own, labels, weights = e[rows].T, Y[rows].T, v[rows] * mask
                one = Held(own[:, :, None], labels[:, :, None], weights[:, None], ())
                other = Held(own[:, None, :], labels[:, None, :], weights[None, :], ())
                below = jnp.tril(jnp.ones((b, b), bool), -1)
                return [
                    jnp.sum(jnp.where(below, part, 0), axis=(1, 2))
                    for part in _ordered(self.loss, one, other)
                ]

            most = max(1, NUMBERS_AT_ONCE // (b * b * Y.shape[1]))
            wrong, all_of = (
                jnp.sum(part, axis=0) for part in over_folds(query, plan.inside, mask, most)
            )
            return wrong / all_of

        return jax.lax.map(at, as_columns(lams))


@compiled
def _wrong(criterion: PairsOut, solution: Solution, lams) -> Float[Array, "L t"]:
    n, events = solution.factor.n, criterion.events
    # Rows of padding, which weigh nothing, have no events.
    own = () if events is None else (jnp.pad(events, (0, n - len(events))),)
    ordered = partial(_ordered, criterion.loss)
    wrong, all_of = solution.pairs_left_out(ordered, lams, criterion.pairs, own)
    return wrong / all_of


def _ordered(loss, one, other):
    """The loss of pairs whose order is known, times their weight, and that weight: of times, where
    the smaller one is that of an event.
    """
    order = one.label - other.label
    weight = jnp.where(order == 0, 0, one.weight * other.weight)
    if one.own:
        weight = weight * jnp.where(order < 0, one.own[0], other.own[0])
    residual = one.residual - other.residual
    values = loss(
        residual.reshape(-1, 1), jnp.broadcast_to(order, residual.shape).reshape(-1, 1)
    )  # one column, as losses take them
    return weight * values.reshape(residual.shape), weight


pairwise_ranking_error = PairsOut()


def check_events(events, *lengths: int) -> None:
    """Raise unless there is one for each row, of these or with padding, 0 or 1 where values are
    known.
    """
    if np.shape(events) not in [(n,) for n in lengths]:
        raise ValueError(
            f"events must have shape ({lengths[0]},), 1 where the time is that of an event and 0 where censored, and has {np.shape(events)}"
        )
    if (
        is_concrete(events)
        and (other := np.asarray(events)[~np.isin(np.asarray(events), (0, 1))]).size
    ):
        raise ValueError(
            f"events must be 1 where the time is that of an event and 0 where censored, and include {other[0]:.3g}"
        )


def check_order(Y, weights: Weights, pairs: Pairs | None, events=None) -> None:
    """Raise unless some pair of rows that weigh has an order, in every column of labels that are
    known, and for pairs of rows that there are not.
    """
    if not is_concrete(Y, weights, pairs, events):
        return
    check_finite("Y", Y)
    n = len(Y)
    Y = np.asarray(Y).reshape(n, -1)
    used = weighing(weights, n)
    timed = used if events is None else used & np.pad(np.asarray(events) > 0, (0, n - len(events)))
    first = second = np.arange(n)
    if pairs is not None:
        first, second = np.asarray(pairs.first), np.asarray(pairs.second)
        check_row_numbers(np.concatenate([first, second]), n)

    def below(one, other):
        if pairs is not None and pairs.listed:
            return ((Y[one] < Y[other]) & (timed[one] & used[other])[:, None]).any(axis=0)
        least = np.where(timed[one][:, None], Y[one], np.inf).min(axis=0)
        return least < np.where(used[other][:, None], Y[other], -np.inf).max(axis=0)

    tell_order(below(first, second) | below(second, first), used, events)


def weighing(weights: Weights, n: int) -> np.ndarray:
    """Which rows weigh."""
    return np.ones(n, bool) if weights.values is None else np.asarray(weights.values) > 0


def tell_order(known, used, events=None) -> None:
    """Raise unless some pair has an order in every column of labels."""
    if not known.all():
        weighing = "" if used.all() else " of positive weight"
        where = "" if len(known) == 1 else f" in column {int(np.argmin(known))}"
        raise ValueError(
            f"Y has no pair of rows{weighing} whose order is known{where}, so that none can be right or wrong: give labels that differ"
            + ", or weight to more rows" * bool(weighing)
            + ("" if events is None else ", or events before the largest time")
        )


def check_shared(groups: Folds) -> None:
    """Raise unless some two rows share a group."""
    if groups.inside.shape[1] < 2:
        raise ValueError(
            "groups has no two rows of the same label, so that there is no pair to order: give labels that rows share"
        )


def within(groups: Folds) -> Pairs:
    """All pairs of rows of the same group, on the host."""
    if not is_concrete(groups):
        raise ValueError(
            "groups has no values inside jax.jit, and its pairs are counted before: use it from outside, not as an argument"
        )
    check_shared(groups)
    inside, mask = np.asarray(groups.inside), np.asarray(groups.inside_mask) > 0
    listed = [
        rows[used][np.stack(np.triu_indices(used.sum(), 1), axis=1)]
        for rows, used in zip(inside, mask, strict=True)
    ]
    return Pairs.of(np.concatenate(listed), groups.rows)
