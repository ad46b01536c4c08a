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
from oracle import refit
from support import EPS, array, assert_close, assert_derivatives, refused, wide

import jaxrls as rls
from jaxrls.leave_out import pairs as in_pairs

pytestmark = [pytest.mark.float64, pytest.mark.filterwarnings("ignore:the chosen λ")]
CASE, WEIGHT = FACTORS["gram"], WEIGHTS["zeros"]
SQUARED = rls.PairsOut(loss=rls.squared_error)
CLASSES = np.where(np.median(Y, axis=0) < Y, 1.0, -1.0)


def held_out(Phi, y, lam, weights, pair):
    """Predictions of the two rows of a pair by a refit to all others."""
    rest = np.setdiff1d(np.arange(len(y)), pair)
    w, b = refit(Phi[rest], y[rest, None], lam, weights[rest], True)
    return Phi[list(pair)] @ w[:, 0] + b


def by_refits(y, lams, weights=WEIGHT, pairs=None, events=None):
    """The share of pairs in the wrong order, each known order counted by the pair's weight: a
    double loop.
    """
    Phi, events = CASE.features(np.array([], int))[0], np.ones(N) if events is None else events
    found = np.zeros(len(lams))
    for k, lam in enumerate(lams):
        wrong, all_of = 0.0, 0.0
        for i, j in combinations(range(len(y)), 2) if pairs is None else pairs:
            first, second = (i, j) if y[i] < y[j] else (j, i)
            if y[i] == y[j] or not events[first]:
                continue
            f = dict(zip((i, j), held_out(Phi, y, lam, weights, (i, j)), strict=True))
            share = weights[i] * weights[j]
            wrong, all_of = wrong + share * (f[first] > f[second]), all_of + share
        found[k] = wrong / all_of
    return found


@pytest.fixture(scope="module")
def factor():
    return jax.jit(lambda X, v: CASE.make(X, v, True))(CASE.X, array(WEIGHT))


def test_classes_that_jit_does_not_know_are_counted_all_the_same(factor):
    """Every target by itself, at λ for all and at λ per target; of one column that is known, one
    class is crossed with the other.
    """
    lams, each = array(LAMS), array(LAMS[PICK])
    errors = jax.jit(lambda Y: [rls.pairwise_ranking_error(factor, Y, at) for at in (lams, each)])
    shared, own = errors(array(CLASSES))
    want = np.stack([by_refits(y, LAMS) for y in CLASSES.T], axis=1)
    assert_close(shared, want, 1e-12)
    assert_close(own, want[PICK, np.arange(3)], 1e-12)
    assert_close(rls.pairwise_ranking_error(factor, array(CLASSES[:, 0]), lams), want[:, 0], 1e-12)


def test_concordance_of_numbers_with_ties_and_censoring(factor):
    """Harrell's: a pair counts where its smaller time is an event's, and of equal times none."""
    times = np.round(2 * Y[:, 0]) + 5
    events = np.random.default_rng(11).integers(0, 2, N).astype(float)
    assert len(np.unique(times)) < N
    for flags in (None, events):
        found = rls.PairsOut(events=flags)(factor, array(times), array(LAMS))
        assert_close(found, by_refits(times, LAMS, events=flags), 1e-12)


def test_pairs_by_name(factor):
    """By row numbers, or those within groups as `fit` takes them; in blocks of few pairs."""
    pairs = [(3, 0), (1, 9), (8, 1), (2, 3), (13, 12)]
    found = rls.PairsOut(pairs)(factor, array(Y[:, 0]), array(LAMS))
    assert_close(found, by_refits(Y[:, 0], LAMS, pairs=pairs), 1e-12)
    groups = np.arange(N) % 4
    within = [(i, j) for i, j in combinations(range(N), 2) if groups[i] == groups[j]]
    options = {"criterion": rls.PairsOut(within=groups), "weights": WEIGHT, "lams": LAMS}
    found = rls.fit(CASE.kernel, wide(CASE.X), Y[:, 0], **options)
    assert_close(found.errors, by_refits(Y[:, 0], LAMS, pairs=within), 1e-12)


def test_blocks_and_lists_and_targets_of_their_own_agree(monkeypatch):
    """Landmarks leave with a row or both; all pairs in panels and blocks, crossed, or as a list;
    and one λ per target, which the grid leaves to this.
    """
    case = FACTORS["landmarks"]
    numbers = np.array(list(combinations(range(N), 2)))

    def run(X, v, Y, lams):
        solution = case.solution(X, Y, v, True)
        listed = replace(SQUARED, pairs=in_pairs.Pairs.of(numbers, N))
        # Every pair twice, and no row with itself.
        crossed = replace(SQUARED, pairs=in_pairs.Pairs.between(np.arange(N), np.arange(N)))
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
    factor = rls.factorize(rls.Gaussian(0.5), array(X))
    assert rls.PairsOut(pairs)(factor, y, [1e-3, 1.0]).tolist() == [0.5, 0.5]


def test_the_squared_loss_of_pairs_has_derivatives():
    """In λ and the width, against differences; pairs of a row with itself, which are not there,
    leave no NaN.
    """
    assert SQUARED.smooth and not rls.PairsOut().smooth

    def error(at):
        lam, width = jnp.exp(at)
        options = {"criterion": SQUARED, "weights": array(WEIGHT)}
        return rls.objective(rls.Gaussian(width), CASE.X, array(Y[:, 0]), lam, **options)

    assert_derivatives(error, np.log([0.3, 1.1]), 1e-8)


def test_fit_chooses_lam_by_the_order_of_pairs():
    options = {"criterion": rls.pairwise_ranking_error, "weights": WEIGHT, "lams": LAMS}
    fit = rls.fit(CASE.kernel, wide(CASE.X), CLASSES[:, 0], **options)
    assert fit.criterion == "pairwise_ranking_error"
    errors = by_refits(CLASSES[:, 0], LAMS)
    assert_close(fit.errors, errors, 1e-12)
    assert float(fit.lam) == LAMS[np.flatnonzero(errors == errors.min())[-1]]


ORDER = np.array([0.0, 1, 0, 1, 1, 0])
NONE_KNOWN = "no pair of rows of positive weight whose order is known"


def test_what_cannot_be_ordered_is_told():
    ones = np.ones(6)

    def errors(Y=ORDER, weights=ones, pairs=None, events=None):
        factor = rls.factorize(rls.Linear(), np.arange(6.0)[:, None], weights=weights)
        return lambda: rls.PairsOut(pairs, events=events)(factor, Y, [1.0])

    refused(
        (errors(np.zeros(6)), NONE_KNOWN),
        (errors(np.stack([ORDER, ones], axis=1)), NONE_KNOWN),
        (errors(pairs=[[0, 2], [1, 4]]), NONE_KNOWN),
        (errors(events=ORDER), NONE_KNOWN),
        (errors(pairs=[[0, 1]], events=[0.0, 1, 1, 1, 1, 1]), NONE_KNOWN),
        (errors(weights=np.array([1.0, 0, 1, 0, 0, 1])), NONE_KNOWN),
        (
            errors(weights=1.0 * (np.arange(6) < 2)),
            "needs three rows of positive weight, and X has 2",
        ),
        (errors(events=[1.0]), r"events must be 1 .* of shape \(6,\), and has shape \(1,\)"),
        (errors(pairs=[0, 1]), r"pairs must have shape \(p, 2\)"),
        (errors(pairs=[[0, 1], [3, 3]]), "pair 1 is row 3 twice"),
        (errors(pairs=[[0, 6]]), "row numbers must be rows of X, 0 to 5"),
        (errors(events=[1.0, 0, -1, 1, 1, 0]), "events must be 1 .* and include -1"),
        (errors(events=[1.0, 0, np.nan, 1, 1, 0]), "events must be 1 .* and include nan"),
        (errors(np.where(np.arange(6) == 2, np.nan, ORDER)), "Y holds 1 values that are NaN or"),
    )


def test_what_has_no_inverse_or_slope_has_no_order():
    X, y = array(np.arange(6.0)[:, None]), array(ORDER)

    def iterative(X):
        factor = rls.factorize(rls.Gaussian(1.0), X, solver=rls.Iterative(X[:2]))
        return rls.pairwise_ranking_error(factor, y, array([1.0]))

    tune = lambda: rls.tune(rls.Gaussian(1.0), X, y, criterion=rls.pairwise_ranking_error)
    refused(
        (
            lambda: jax.eval_shape(iterative, X),
            "route .iterative. does not support leaving groups or pairs out",
        ),
        (tune, "misordered has derivative 0 everywhere"),
    )


def test_what_rounding_may_have_made_of_two_equal_predictions_is_a_tie():
    """A difference below eps^¾ of the label and the residual together, and none above."""
    label = array([[1.0], [1.0], [-1.0]])
    residual = label + EPS**0.75 * array([[-1.5], [3.0], [3.0]])
    assert rls.misordered(residual, label)[:, 0].tolist() == [0.5, 1, 0]


def test_fits_and_searches_tell_it_too():
    data = rls.Gaussian(1.0), np.arange(6.0)[:, None], ORDER
    options = {"weights": [1, 0, 1, 0, 0, 1], "criterion": SQUARED}
    refused(
        (lambda: rls.fit(*data, lams=[1.0], **options), NONE_KNOWN),
        (lambda: rls.tune(*data, **options), NONE_KNOWN),
    )


def test_two_rows_and_an_intercept_are_undefined_inside_jit():
    @jax.jit
    def run(X, v):
        factor = rls.factorize(rls.Linear(), X, weights=v)
        return rls.pairwise_ranking_error(factor, array([0.0, 1, 0, 1]), array([1.0]))

    X = array(np.arange(4.0)[:, None])
    assert np.isnan(run(X, array([1.0, 1, 0, 0]))).all()
    assert np.isfinite(run(X, array([1.0, 1, 1, 0]))).all()
