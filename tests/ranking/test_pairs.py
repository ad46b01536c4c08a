"""Pairs left out: AUC, concordance with and without censoring, pairs by name, and the criterion in
`fit`, against refits of every pair.
"""

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import FACTORS, LAMS, PICK, WEIGHTS, N, Y
from support import EDGE, FLOAT64, array, assert_close, assert_derivatives, factorize, refused

import jaxrls as rls
from jaxrls.ranking import pairs as in_pairs

pytestmark = [FLOAT64, EDGE]
CASE, WEIGHT = FACTORS["gram"], WEIGHTS["zeros"]
SQUARED = rls.ranking.PairsOut(loss=rls.extend.squared_error)
CLASSES = np.where(np.median(Y, axis=0) < Y, 1.0, -1.0)


def by_refits(y, pairs=None, events=None, loss=lambda predicted, order: predicted > 0):
    """The mean loss (L,), by default the share of pairs in the wrong order, over pairs of known
    order, counted by the pair's weight, by a refit without each pair.
    """
    pairs = np.array([*combinations(range(N), 2)] if pairs is None else pairs)
    truth = replace(CASE.truth(WEIGHT, True), Y=y[:, None])
    f = (truth.Y - truth.left_out(pairs))[..., 0]
    wrong = total = 0.0
    for pair, scores in zip(pairs, f, strict=True):
        for low, high in (pair, pair[::-1]):
            if y[low] < y[high] and (events is None or events[low]):
                known = True
            elif y[low] == y[high] and events is not None:
                known = events[low] and not events[high]  # which did not end before
            else:
                known = False
            weight = WEIGHT[pair].prod() if known else 0
            total += weight
            wrong += weight * loss(scores[:, low] - scores[:, high], y[low] - y[high])
    return wrong / total


@pytest.fixture(scope="module")
def factor():
    return jax.jit(lambda X, v: CASE.make(X, v, True))(CASE.X, array(WEIGHT))


def test_classes_that_jit_does_not_know_are_counted_all_the_same(factor):
    """Every target by itself, at λ for all and at λ per target; of one column that is known, one
    class is crossed with the other.
    """
    lams, each = array(LAMS), array(LAMS[PICK])
    errors = jax.jit(
        lambda Y: [rls.ranking.pairwise_ranking_error(factor, Y, at) for at in (lams, each)]
    )
    shared, own = errors(array(CLASSES))
    want = np.stack([by_refits(y) for y in CLASSES.T], axis=1)
    assert_close(shared, want, 1e-12)
    assert_close(own, want[PICK, np.arange(3)], 1e-12)
    assert_close(
        rls.ranking.pairwise_ranking_error(factor, array(CLASSES[:, 0]), lams), want[:, 0], 1e-12
    )


@pytest.mark.slow
def test_concordance_of_numbers_with_ties_and_censoring(factor):
    """Harrell's: a pair counts where its smaller time is an event's; of equal times where one is an
    event's and the other censored, without events none. Two times alone are no classes then.
    """
    rng = np.random.default_rng(11)
    times, few = np.round(2 * Y[:, 0]) + 5, np.where(Y[:, 0] > 0, 2.0, 1.0)
    events = rng.integers(0, 2, N).astype(float)
    listed = rng.permutation([*combinations(range(N), 2)])[:40]
    assert len(np.unique(times)) < N
    for y, pairs, flags in (
        (times, None, None),
        (times, None, events),
        (times, listed, events),
        (few, None, events),
    ):
        found = rls.ranking.PairsOut(pairs, events=flags)(factor, array(y), array(LAMS))
        assert_close(found, by_refits(y, pairs, flags), 1e-12)


def test_equal_times_and_equal_predictions_are_half_wrong():
    """Rows that are the same, one an event and the other censored at that time, and not by rounding
    in which order.
    """
    X = np.repeat(np.linspace(0, 1, 6), 2)[:, None]
    y, events = np.repeat(np.arange(6.0), 2) ** 2 + 0.3, np.arange(12) % 3 % 2
    pairs = np.arange(12).reshape(6, 2)[events.reshape(6, 2).sum(axis=1) == 1]
    factor = factorize(rls.Gaussian(0.5), array(X))
    found = rls.ranking.PairsOut(pairs, events=events)(factor, y, [1e-3, 1.0])
    assert found.tolist() == [0.5, 0.5]


@pytest.mark.slow
def test_the_squared_loss_of_censored_times_has_slopes(factor):
    """With ties among the times: values against refits, slopes against differences."""
    times, events = np.round(2 * Y[:, 0]), (np.arange(N) % 2).astype(float)
    criterion = replace(SQUARED, events=events)
    square = lambda predicted, order: (order - predicted) ** 2
    found = criterion(factor, array(times), array(LAMS))
    assert_close(found, by_refits(times, None, events, square), 1e-12)

    def error(log_lam):
        data = CASE.X, array(times), jnp.exp(log_lam[0])
        return rls.objective(rls.Gaussian(1.0), *data, criterion=criterion)

    assert_derivatives(error, np.array([-1.0]), 1e-8)


def test_pairs_by_name(factor):
    """By row numbers; those within groups in test_ranking.py."""
    pairs = [(3, 0), (1, 9), (8, 1), (2, 3), (13, 12)]
    found = rls.ranking.PairsOut(pairs)(factor, array(Y[:, 0]), array(LAMS))
    assert_close(found, by_refits(Y[:, 0], pairs), 1e-12)


@pytest.mark.slow
def test_blocks_and_lists_and_targets_of_their_own_agree(monkeypatch):
    """Landmarks leave with a row or both; all pairs in panels and blocks, crossed, or as a list;
    and one λ per target, which the grid leaves to this.
    """
    case = FACTORS["landmarks"]
    numbers = np.array(list(combinations(range(N), 2)))

    def run(X, v, Y, lams):
        solution = case.solution(X, Y, v, True)
        listed = replace(SQUARED, pairs=in_pairs.ListedPairs.of(numbers))
        # Every pair twice, and no row with itself.
        crossed = replace(SQUARED, pairs=in_pairs.PairsBetween(jnp.arange(N), jnp.arange(N)))
        whole = SQUARED.values(solution, lams[PICK], None)
        monkeypatch.setattr(in_pairs, "panels", lambda n: [(0, 4), (4, 9), (9, n)])
        monkeypatch.setattr(in_pairs, "wide_block_size", lambda n, width: 3)
        monkeypatch.setattr(in_pairs, "default_block_size", lambda n, width: 20)
        return whole, *(ways.values(solution, lams, None) for ways in (SQUARED, listed, crossed))

    whole, *ways = jax.jit(run)(case.X, array(WEIGHT), array(Y), array(LAMS))
    cut, listed, crossed = map(np.asarray, ways)
    assert_close(whole, cut[PICK, np.arange(3)], case.tolerance())
    assert_close(listed, cut, case.tolerance())
    assert_close(crossed, cut, case.tolerance())


def test_equal_predictions_are_half_wrong():
    """Rows that are the same are predicted the same when both are left out, whatever rounding says;
    and so are all by a constant.
    """
    X = np.repeat(np.linspace(0, 1, 6), 2)[:, None]
    y = np.arange(12.0)
    pairs = np.arange(12).reshape(6, 2)
    factor = factorize(rls.Gaussian(0.5), array(X))
    assert rls.ranking.PairsOut(pairs)(factor, y, [1e-3, 1.0]).tolist() == [0.5, 0.5]


ORDER = np.array([0.0, 1, 0, 1, 1, 0])
NONE_KNOWN = "no pair of rows of positive weight whose order is known"


def test_what_cannot_be_ordered_is_told():
    ones = np.ones(6)

    def errors(Y=ORDER, weights=ones, pairs=None, events=None):
        factor = factorize(rls.Linear(), np.arange(6.0)[:, None], weights=weights)
        return lambda: rls.ranking.PairsOut(pairs, events=events)(factor, Y, [1.0])

    refused(
        (errors(np.zeros(6)), NONE_KNOWN),
        (errors(np.stack([ORDER, ones], axis=1)), NONE_KNOWN),
        (errors(pairs=[[0, 2], [1, 4]]), NONE_KNOWN),
        (errors(events=ORDER), NONE_KNOWN),
        (errors(weights=np.array([1.0, 0, 1, 0, 0, 1])), NONE_KNOWN),
        (
            errors(weights=1.0 * (np.arange(6) < 2)),
            "needs three rows of positive weight, and X has 2",
        ),
        (errors(events=[1.0]), r"events must be 1 .* of shape \(6,\), and has shape \(1,\)"),
        (errors(pairs=[[0, 1], [3, 3]]), "pair 1 is row 3 twice"),
        (errors(events=[1.0, 0, np.nan, 1, 1, 0]), "events must be 1 .* and include nan"),
    )


def test_what_has_no_inverse_or_slope_has_no_order():
    X, y = array(np.arange(6.0)[:, None]), array(ORDER)

    def iterative(X):
        factor = rls.factorize(rls.Gaussian(1.0), X, solver=rls.Iterative(X[:2]))
        return rls.ranking.pairwise_ranking_error(factor, y, array([1.0]))

    tune = lambda: rls.tune(rls.Gaussian(1.0), X, y, criterion=rls.ranking.pairwise_ranking_error)
    refused(
        (
            lambda: jax.eval_shape(iterative, X),
            "route .iterative. does not support leaving groups or pairs out",
        ),
        (tune, "misordered has derivative 0 everywhere"),
    )


def test_two_rows_and_an_intercept_are_undefined_inside_jit():
    @jax.jit
    def run(X, v):
        factor = rls.factorize(rls.Linear(), X, weights=v)
        return rls.ranking.pairwise_ranking_error(factor, array([0.0, 1, 0, 1]), array([1.0]))

    X = array(np.arange(4.0)[:, None])
    assert np.isnan(run(X, array([1.0, 1, 0, 0]))).all()
    assert np.isfinite(run(X, array([1.0, 1, 1, 0]))).all()
