"""Fits of order (RankRLS): coefficients by a solve with the Laplacian of the pairs, and pairs and queries left out by refits, without queries and within."""

from dataclasses import replace
from functools import partial
from itertools import combinations

import jax
import numpy as np
import pytest
from contract.cases import WIDTH, draw, gaussian
from support import array, assert_close, wide

import jaxrls as rls

pytestmark = [pytest.mark.float64, pytest.mark.filterwarnings("ignore:the chosen λ")]
N, LAMS = 16, np.array([0.1, 1.0, 4.0])
X, Y = draw(21, N, 2), draw(22, N)
QUERIES = np.array([3, 3, 0, 1, 0, 2, 1, 0, 2, 1, 0, 1, 2, 0, 1, 2])  # one of two rows
Y = Y + QUERIES
V = wide(np.where(np.arange(N) == 7, 0.0, np.random.default_rng(23).uniform(0.5, 2.0, N)))
MARKS = np.array([5, 0, 12, 9])
WHOLE = np.zeros(N, int)


def laplacian(queries, v):
    """Of the graph in which pairs of rows of one query are joined by vᵢvⱼ/V."""
    L = np.zeros((len(v), len(v)))
    for i, j in combinations(range(len(v)), 2):
        if queries[i] == queries[j]:
            e = np.zeros(len(v))
            e[i], e[j] = 1, -1
            L += v[i] * v[j] / v[queries == queries[i]].sum() * np.outer(e, e)
    return L


def features(gone=(), landmarks=False):
    """Φ with K = ΦΦᵀ; on landmarks of those that are not gone."""
    if not landmarks:
        return np.linalg.cholesky(gaussian(X, X) + 1e-15 * np.eye(N))
    stay = X[MARKS[~np.isin(MARKS, gone)]]
    return gaussian(X, stay) @ np.linalg.inv(np.linalg.cholesky(gaussian(stay, stay))).T


def scores(lam, queries, v, gone=(), landmarks=False):
    """f at all rows of the fit to those that are not gone: (ΦᵀLΦ + λI)w = ΦᵀLy."""
    Phi, rest = features(gone, landmarks), np.setdiff1d(np.arange(N), gone)
    L = laplacian(queries[rest], v[rest])
    A = Phi[rest].T @ L
    return Phi @ np.linalg.solve(A @ Phi[rest] + lam * np.eye(Phi.shape[1]), A @ Y[rest])


def by_refits(queries, v, left_out, landmarks=False, loss=lambda df, dy: float(df * dy < 0)):
    """The mean over pairs of one query, left out by pairs or with all of their query."""
    found = np.zeros((2, len(LAMS)))
    for i, j in combinations(np.flatnonzero(v), 2):
        if queries[i] == queries[j]:
            gone = [i, j] if left_out == "pairs" else np.flatnonzero(queries == queries[i])
            for k, lam in enumerate(LAMS):
                f = scores(lam, queries, v, gone, landmarks)
                found[:, k] += v[i] * v[j] * np.array([loss(f[i] - f[j], Y[i] - Y[j]), 1])
    return found[0] / found[1]


def fit(**options):
    return rls.fit(rls.Gaussian(WIDTH), X, Y, rank=True, lams=LAMS, **options)


@pytest.mark.parametrize("weights", [None, V], ids=["plain", "weights"])
def test_without_queries_it_is_the_fit_with_an_intercept(weights):
    """Scores are those of the Laplacian, and pairs are left out unless another criterion is named."""
    found, v = fit(weights=weights, route="gram"), np.ones(N) if weights is None else V
    assert found.criterion == "pairwise_ranking_error"
    assert_close(found.errors, by_refits(WHOLE, v, "pairs"), 1e-10)
    want = scores(float(found.lam), WHOLE, v)
    got = found.predict(X)
    assert_close(got - v @ got / v.sum(), want - v @ want / v.sum(), 1e-10)


@pytest.mark.parametrize("route", ["gram", "cholesky", pytest.param("tridiagonal", marks=pytest.mark.slow), "subset"])
def test_within_queries(route):
    """Scores, whole queries left out, and pairs left out of their query, of two rows too, by every kind of route; on landmarks, which leave with them."""
    landmarks = MARKS if route == "subset" else None
    on = {"weights": V, "groups": QUERIES, "route": route, "landmarks": landmarks}
    queries, pairs = fit(**on), fit(**on, criterion=rls.pairwise_ranking_error)
    assert (queries.criterion, pairs.criterion) == ("query_ranking_error", "pairwise_ranking_error")
    assert_close(queries.errors, by_refits(QUERIES, V, "queries", landmarks is not None), 1e-10)
    assert_close(pairs.errors, by_refits(QUERIES, V, "pairs", landmarks is not None), 1e-10)
    assert_close(queries.predict(X), scores(float(queries.lam), QUERIES, V, (), landmarks is not None), 1e-9)


def test_the_squared_loss_within_queries():
    squared = {"loss": lambda df, dy: (df - dy) ** 2}
    plan = rls.folds(QUERIES)
    found = fit(weights=V, groups=plan, criterion=rls.QueriesOut.of(plan, rls.squared_error))
    assert_close(found.errors, by_refits(QUERIES, V, "queries", **squared), 1e-9)
    every = [pair for query in range(4) for pair in combinations(np.flatnonzero((query == QUERIES) & (V > 0)), 2)]  # of two rows too
    found = fit(weights=V, groups=plan, criterion=rls.PairsOut(rls.PairsOut.of(array(Y), every).pairs, None, plan, rls.squared_error))
    assert_close(found.errors, by_refits(QUERIES, V, "pairs", **squared), 1e-9)
    own = rls.PairsOut(rls.PairsOut.of(array(Y), list(combinations(np.flatnonzero(QUERIES == 1), 2))).pairs, None, plan, rls.squared_error)
    found = fit(groups=plan, criterion=own)
    only = np.where(QUERIES == 1, QUERIES, 10 + np.arange(N))  # pairs of one query; the fit has them all
    want = np.zeros(len(LAMS))
    pairs = list(combinations(np.flatnonzero(only == 1), 2))
    for k, lam in enumerate(LAMS):
        for i, j in pairs:
            f = scores(lam, QUERIES, np.ones(N), [i, j])
            want[k] += (f[i] - f[j] - Y[i] + Y[j]) ** 2 / len(pairs)
    assert_close(found.errors, want, 1e-9)


@pytest.mark.parametrize("route", ["covariance", "features", "cholesky"])
def test_linear_scores_within_queries(route):
    """On explicit features; a query's own offset in X and Y has no say."""
    Z = np.column_stack([X, X[:, 0] ** 2])
    options = {"rank": True, "groups": QUERIES, "weights": V, "lams": [1.0], "route": route}
    found = rls.fit(rls.Linear(), Z, Y, **options)
    L = laplacian(QUERIES, V)
    assert_close(found.model.coef, np.linalg.solve(Z.T @ L @ Z + np.eye(3), Z.T @ L @ Y), 1e-11)
    moved = rls.fit(rls.Linear(), Z + 100 * QUERIES[:, None], Y - 50 * QUERIES, **options)
    assert_close(moved.model.coef, found.model.coef, 1e-11)
    assert_close(moved.errors, found.errors, 1e-11)


def test_a_sum_over_pairs_is_a_matter_of_weights():
    """Σ over all pairs in queries, not divided by the size of each, is the fit with that size for the weight of its rows."""
    sizes = np.bincount(QUERIES)[QUERIES].astype(float)
    found = rls.fit(rls.Gaussian(WIDTH), X, Y, rank=True, groups=QUERIES, weights=sizes, lams=[1.0], route="gram")
    L = np.diag(sizes) - (QUERIES[:, None] == QUERIES)
    assert_close(laplacian(QUERIES, sizes), L, 1e-14)
    K = gaussian(X, X)
    assert_close(found.predict(X), K @ np.linalg.solve(L @ K + np.eye(N), L @ Y), 1e-10)


def test_pairs_left_out_of_a_plain_sum_over_all_pairs():
    """Without 1/V there are n − 2 rows of weight 1 left, so that λ is n − 2 times ours."""
    plain, found = 5.0, np.zeros(2)
    K = gaussian(X, X)
    for i, j in combinations(range(N), 2):
        rest = np.setdiff1d(np.arange(N), [i, j])
        L = (N - 2) * np.eye(N - 2) - 1
        f = K[:, rest] @ np.linalg.solve(L @ K[np.ix_(rest, rest)] + plain * np.eye(N - 2), L @ Y[rest])
        found += (f[i] - f[j] - Y[i] + Y[j]) ** 2, 1
    squared = rls.PairsOut(loss=rls.squared_error)
    own = rls.fit(rls.Gaussian(WIDTH), X, Y, rank=True, lams=[plain / (N - 2)], route="gram", criterion=squared)
    assert_close(own.error, found[0] / found[1], 1e-10)


def test_queries_of_the_same_rows_may_have_other_names():
    plan = rls.QueriesOut.of(np.array(["d", "c", "b", "a"])[QUERIES])
    one, other = (fit(groups=QUERIES, route="gram", **options) for options in ({}, {"criterion": plan}))
    assert_close(one.errors, other.errors, 1e-12)


def test_a_criterion_of_ones_own_takes_part_by_what_it_says():
    """Of queries, and so of fits with a constant in each; or of no others."""

    @rls.pytree
    class Own(rls.Criterion):
        plan: rls.QueriesOut
        of_order_alone: bool = rls.static(default=False)
        name = "own"

        @property
        def queries(self):
            return self.plan.queries

        def values(self, solution, lams, kernel):
            return self.plan.values(solution, lams, kernel)

    own, theirs = (make(rls.QueriesOut.of(QUERIES)) for make in (Own, lambda plan: plan))
    one, other = (fit(groups=QUERIES, route="gram", criterion=criterion) for criterion in (own, theirs))
    assert one.criterion == "own" and (np.asarray(one.errors) == np.asarray(other.errors)).all()
    with pytest.raises(ValueError, match="criterion own has queries, which goes with rank=True"):
        rls.fit(rls.Linear(), X, Y, lams=[1.0], criterion=replace(own, of_order_alone=True))


def test_queries_are_known_inside_jit():
    for options in ({}, {"criterion": rls.pairwise_ranking_error}, {"criterion": rls.pairwise_ranking_error, "rank": False}):
        make = partial(rls.fit, rls.Gaussian(WIDTH), **{"groups": QUERIES, "lams": LAMS, "rank": True, "route": "gram"} | options)
        assert_close(jax.jit(lambda X, Y, make=make: make(X, Y).errors)(array(X), array(Y)), make(X, Y).errors, 1e-10)


def test_what_does_not_go_with_ranks(unchecked):
    def error(words, **options):
        with pytest.raises(ValueError, match=words):
            fit(**options)

    error("loss= does not go with rank=True", loss=rls.absolute_error)
    error("intercept is False: leave intercept out", intercept=False)
    error("validation does not go with rank=True and groups", groups=QUERIES, validation=(X, Y))
    error("criterion gcv does not go with rank=True and groups", groups=QUERIES, criterion=rls.gcv)
    error("keeps no moments, variances or intervals", groups=QUERIES, keep_variance=True)
    error("keeps no moments, variances or intervals", groups=QUERIES, keep_intervals=True)
    error("groups has no two rows of the same label", groups=np.arange(N))
    for own in (QUERIES // 2, np.where(np.arange(N) == 2, 9, QUERIES)):
        error(
            "criterion query_ranking_error has other queries than groups, the first at row",
            groups=QUERIES,
            criterion=rls.QueriesOut.of(own),
        )
        pairs = replace(rls.PairsOut(), queries=rls.folds(own))
        error("criterion pairwise_ranking_error has other queries than groups", groups=QUERIES, criterion=pairs)
    short = rls.QueriesOut.of(QUERIES[:6])
    error("criterion query_ranking_error has queries of 6 rows, and groups is of 16", groups=QUERIES, criterion=short)
    error("groups holds one label only", groups=WHOLE)
    with pytest.raises(ValueError, match="groups has no values inside jax.jit"):
        jax.eval_shape(lambda plan: fit(groups=plan, criterion=rls.pairwise_ranking_error).error, rls.folds(QUERIES))
    error("by route 'subset', and route is 'cholesky'", groups=QUERIES, landmarks=MARKS, route="cholesky")
    with pytest.raises(ValueError, match="no pair of rows whose order is known"):
        rls.fit(rls.Linear(), X, QUERIES.astype(float), rank=True, groups=QUERIES)
    with pytest.raises(ValueError, match="needs a dense X in memory of one device, and X is StreamedRows"):
        rls.fit(rls.Linear(), rls.stream([(X, Y)]), rank=True, groups=QUERIES)


@pytest.mark.parametrize("options", [{}, {"landmarks": MARKS}], ids=["features", "landmarks"])
def test_order_of_rows_that_are_read_in_blocks(options):
    """Pairs left out of a stream are those of its rows at once."""
    kernel = rls.Gaussian(WIDTH) if options else rls.Linear()
    parts = [(X[:7], Y[:7], V[:7]), (X[7:], Y[7:], V[7:])]
    for squared in (False, True):
        named = {"criterion": rls.PairsOut(loss=rls.squared_error)} if squared else {}
        found = rls.fit(kernel, rls.stream(parts), rank=True, lams=LAMS, **options, **named)
        whole = rls.fit(kernel, X, Y, weights=V, rank=True, lams=LAMS, **options, **named)
        assert_close(found.errors, whole.errors, 1e-10, "errors")
        assert_close(found.predict(X), whole.predict(X), 1e-10, "predictions")
