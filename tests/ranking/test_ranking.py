"""Fits of order (RankRLS): a constant, or one for each query, and pairs of rows left out of the fit
that orders them, against refits.
"""

from dataclasses import replace
from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import WIDTH, gaussian
from oracle import of_landmarks
from support import EPS, FLOAT64, array, assert_close, assert_derivatives, refused, wide

import jaxrls as rls

N, LAM = 14, 0.4
RNG = np.random.default_rng(7)
X, Y = wide(RNG.normal(size=(N, 2))), wide(RNG.normal(size=N))
V = wide(RNG.uniform(0.5, 2.0, N))
QUERIES = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 3, 3, 0, 2])  # the last one of two rows
LANDMARKS = np.array([9, 2, 12, 5, 0, 10])
GAUSSIAN, LEVELS = rls.Gaussian(WIDTH), {"fixed_effects": rls.levels(QUERIES)}
WAYS: dict = {"cholesky": {"solver": rls.Cholesky()}, "landmarks": {"landmarks": LANDMARKS}}
TOLERANCE = 1e5 * EPS


def scores(way, gone, groups, v, labels=Y):
    """f of all rows without some, by least squares on rows centred within groups: minimise
    ½ Σ_q Σ_{i in q} vᵢ ((y − f)ᵢ − mean)² + (λ/2)‖f‖².
    """
    points = (X[LANDMARKS], LANDMARKS) if way == "landmarks" else (X, None)
    Phi, _ = of_landmarks(gaussian, X, X, *points)(gone)
    rest = np.setdiff1d(np.arange(N), gone)
    A, y = Phi[rest].copy(), labels[rest].copy()
    for group in np.unique(groups[rest]):
        own = groups[rest] == group
        share = v[rest][own] / v[rest][own].sum()
        A[own], y[own] = A[own] - share @ A[own], y[own] - share @ y[own]
    weighted = v[rest, None] * A
    return Phi @ np.linalg.solve(A.T @ weighted + LAM * np.eye(A.shape[1]), weighted.T @ y)


def share_of_wrong(pairs, way, groups, v, gone_of):
    """Over pairs of known order, each ordered by the fit without the rows that `gone_of` names."""
    wrong = total = 0.0
    for i, j in pairs:
        gone = gone_of(i, j)
        f = scores(way, gone, groups, v)
        weight = v[i] * v[j]
        total += weight
        wrong += weight * ((f[i] - f[j]) * (Y[i] - Y[j]) < 0)
    return wrong / total


ALL_PAIRS = [(i, j) for i in range(N) for j in range(i)]
INSIDE = [(i, j) for i, j in ALL_PAIRS if QUERIES[i] == QUERIES[j]]
ALONE, QUERY = (lambda i, j: [i, j]), (lambda i, j: np.flatnonzero(QUERIES[i] == QUERIES))
# A criterion, options of the fit, pairs, the group of every row, and what leaves with a pair.
CASES = {
    "pairs": (rls.ranking.PairsOut(), {}, ALL_PAIRS, np.zeros(N, int), ALONE),
    "pairs within": (rls.ranking.PairsOut(within=QUERIES), LEVELS, INSIDE, QUERIES, ALONE),
    "queries": (rls.ranking.QueriesOut(QUERIES), LEVELS, INSIDE, QUERIES, QUERY),
}
QUICK = ("landmarks", "pairs within"), ("cholesky", "queries")


@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=[] if (way, name) in QUICK else pytest.mark.slow)
        for way in WAYS
        for name in CASES
    ],
)
def test_pairs_and_queries_left_out_are_those_of_refits(way, name):
    """Pairs of all rows, pairs within queries, and whole queries with their landmarks."""
    criterion, options, listed, groups, gone = CASES[name]
    asked = {"weights": array(V), "lams": array([LAM]), "criterion": criterion}
    fit = rls.fit(GAUSSIAN, array(X), array(Y), **options, **asked, **WAYS[way])
    want = share_of_wrong(listed, way, groups, V, gone)
    assert_close(fit.errors, [want], TOLERANCE, criterion.name)
    f = scores(way, [], groups, V)
    got = np.asarray(fit.predict(array(X)), np.float64)
    for group in np.unique(groups):  # up to a constant in each
        own = groups == group
        assert_close(got[own] - got[own][0], f[own] - f[own][0], TOLERANCE)


@pytest.mark.slow
def test_harrells_c_of_equal_times():
    """An event and a censored time that are equal are a pair, whose event ended first."""
    times, events = np.round(2 * Y) + 5, np.arange(N) % 3 != 0
    wrong = total = 0.0
    for i, j in permutations(range(N), 2):
        if not events[i] or times[i] > times[j] or (times[i] == times[j] and events[j]):
            continue
        f = scores("cholesky", [i, j], np.zeros(N, int), V, times)
        total += V[i] * V[j]
        wrong += V[i] * V[j] * (f[i] > f[j])
    criterion = rls.ranking.PairsOut(events=events)
    options = {"weights": array(V), "lams": array([LAM]), "criterion": criterion}
    fit = rls.fit(GAUSSIAN, array(X), array(times), **options)
    assert_close(fit.errors, [wrong / total], TOLERANCE)


@FLOAT64
@pytest.mark.slow
def test_the_squared_loss_has_slopes():
    """Of pairs and of queries left out, against differences."""
    loss = {"loss": rls.extend.squared_error}
    criteria = rls.ranking.PairsOut(within=QUERIES, **loss), rls.ranking.QueriesOut(QUERIES, **loss)

    def errors(log_lam):
        asked = GAUSSIAN, array(X), array(Y), jnp.exp(log_lam[0])
        return jnp.stack([rls.objective(*asked, criterion=one, **LEVELS) for one in criteria])

    assert_derivatives(errors, np.array([-1.0]), 1e-8)


def test_what_has_no_order_is_refused():
    alone, no_pair = np.arange(N), "no pair of rows of positive weight whose order is known"
    fit = lambda: rls.fit(GAUSSIAN, X, np.ones(N), criterion=rls.ranking.PairsOut(), lams=[1.0])
    refused(
        (lambda: rls.ranking.PairsOut(within=alone), "no two rows of the same label"),
        (lambda: rls.ranking.QueriesOut(alone), "no two rows of the same label"),
        (fit, no_pair),
    )


def test_a_copy_with_other_groups_has_their_pairs():
    one, other = QUERIES, QUERIES[::-1].copy()
    pairs_out, queries_out = rls.ranking.PairsOut, rls.ranking.QueriesOut
    for groups in (other, rls.folds(other)):
        assert replace(pairs_out(within=one), within=groups) == pairs_out(within=other)
        assert replace(pairs_out(), within=groups) == pairs_out(within=other)
        assert replace(queries_out(one), groups=groups) == queries_out(other)
    assert replace(pairs_out(within=one), within=None) == pairs_out()
    listed = pairs_out([[0, 2], [1, 2]])
    loss = rls.extend.squared_error
    assert replace(listed, loss=loss) == pairs_out([[0, 2], [1, 2]], loss=loss)
    refused((lambda: replace(listed, within=one), "pairs and within were both given"))
