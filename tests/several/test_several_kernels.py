"""Several kernels, weighted for every target, against refits of every choice; and the rule of one
standard error, against sums by hand.
"""

import re
import warnings
from functools import partial

import jax
import numpy as np
import pandas
import pytest
from extended import Fits
from numpy.testing import assert_allclose
from oracle import group_residuals
from support import EDGE, FLOAT64, factorize, refused

import jaxrls as rls

pytestmark = [FLOAT64, EDGE]

RNG = np.random.default_rng(0)
N, LAMS, GRID = 24, np.array([0.03, 0.3, 3.0]), np.geomspace(1e-3, 1e2, 21)
X, NEW = RNG.normal(size=(N, 3)), RNG.normal(size=(5, 3))
Y = np.stack([np.sin(2 * X[:, 0]), X[:, 1] + 0.5 * X[:, 2]], axis=1) + 0.2 * RNG.normal(size=(N, 2))
KERNELS = [rls.Gaussian(1.0).on(0), rls.Linear().on([1, 2])]
SHARES = np.array([[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]])
GROUPS = np.arange(N) // 4


def matrices(A, B):
    return np.exp(-((A[:, None, 0] - B[None, :, 0]) ** 2) / 2), A[:, 1:] @ B[:, 1:].T


def left_out(K, y, lam):
    """Of groups, by features whose products K are."""
    s, U = np.linalg.eigh(K)
    Phi = U * np.sqrt(np.maximum(s, 0))
    return group_residuals(Phi, y[:, None], lam, GROUPS, None, True)[:, 0]


@pytest.mark.slow
def test_every_target_keeps_the_weights_and_the_lam_of_the_smallest_error_of_refits():
    """And what it predicts is split by kernel, as are its scores, in himalaya's formula."""
    given = {"shares": SHARES, "lams": LAMS, "groups": GROUPS}
    fit = rls.several.fit_kernels(dict(zip(["near", "far"], KERNELS, strict=True)), X, Y, **given)
    assert f"shares: near {fit.shares[0].mean():.3g}, far" in repr(fit)
    one_by_one = rls.several.fit_kernels(KERNELS, X, Y, progress=True, **given)
    assert_allclose(one_by_one.coef, fit.coef, rtol=1e-10)
    assert_allclose(one_by_one.errors, fit.errors, rtol=1e-10)
    assert (fit.lams == LAMS).all() and (fit.tried == SHARES).all()
    across = matrices(NEW, X)
    for t, y in enumerate(Y.T):
        made = np.tensordot(SHARES, np.stack(matrices(X, X)), 1)
        errors = np.array([[np.mean(left_out(K, y, lam) ** 2) for lam in LAMS] for K in made])
        i, j = np.unravel_index(errors.argmin(), errors.shape)
        assert (fit.shares[:, t] == SHARES[i]).all() and fit.lam[t] == LAMS[j]
        assert_allclose(fit.error[t], errors.min(), rtol=1e-8)
        assert_allclose(fit.errors[:, t], errors.min(axis=1), rtol=1e-8)
        assert_allclose(fit.r2[t], 1 - errors.min() / y.var(), rtol=1e-8)
        exact = Fits(made[i][None], np.ones((1, N)), LAMS[j : j + 1], True)
        c, b = (part[0, 0, :, 0].astype(float) for part in exact.solve(y[:, None]))
        split = np.stack([s * K @ c for s, K in zip(SHARES[i], across, strict=True)])
        assert_allclose(fit.predict_split(NEW)[:, :, t], split, rtol=1e-8, atol=1e-10)
        assert_allclose(fit.predict(NEW)[:, t], split.sum(axis=0) + b, rtol=1e-8)
    labels = RNG.normal(size=(5, 2))
    centred, pred = labels - fit.intercept, fit.predict_split(NEW)
    square = ((labels - labels.mean(axis=0)) ** 2).sum(axis=0)
    scores = [(2 * centred * f - f * pred.sum(axis=0)).sum(axis=0) / square for f in pred]
    assert_allclose(fit.score_split(NEW, labels), scores, rtol=1e-10)
    r2 = 1 - ((labels - fit.predict(NEW)) ** 2).sum(axis=0) / square
    assert_allclose(fit.score(NEW, labels), r2.mean(), rtol=1e-8)


@pytest.mark.slow
def test_banded_ridge_gives_the_coefficients_of_its_columns():
    """Of every target, all rows or landmarks and weights: predictions are X W + b; and each band by
    least squares where its penalty is that of its share.
    """
    v, bands = RNG.uniform(0.5, 2, N), {"a": rls.Linear().on(0), "b": 2.0 * rls.Linear().on([1, 2])}
    for landmarks in (np.arange(0, N, 3), None):
        options = {"shares": SHARES[:2], "lams": LAMS, "weights": v, "landmarks": landmarks}
        fit = rls.several.fit_kernels(bands, X, Y, **options)
        one, two = fit.coefficients()
        assert one.shape == (1, 2) and two.shape == (2, 2)
        two = two * 2**0.5  # features are of the scaled kernel
        by_hand = NEW[:, :1] @ one + NEW[:, 1:] @ two + fit.intercept
        assert_allclose(fit.predict(NEW), by_hand, rtol=1e-8)
    W = np.concatenate(fit.coefficients())
    A = np.c_[X[:, :1], 2**0.5 * X[:, 1:]]
    A, y = (M - np.average(M, axis=0, weights=v) for M in (A, Y))
    for t in range(2):
        penalty = np.diag(fit.lam[t] / fit.shares[[0, 1, 1], t])
        w = np.linalg.solve((A * v[:, None]).T @ A + penalty, (A * v[:, None]).T @ y[:, t])
        assert_allclose(W[:, t], w, rtol=1e-8)
    words = "coefficients are of explicit features, which kernel 0, On, has not: use predict_split"
    near = rls.several.fit_kernels(KERNELS, X, Y, shares=SHARES, lams=LAMS, groups=GROUPS)
    refused((near.coefficients, words))
    frame = pandas.DataFrame(Y, columns=["u", "v"])
    named = pandas.DataFrame(SHARES[:2], columns=["a", "b"])[["b", "a"]]
    again = rls.several.fit_kernels(bands, X, frame, **options | {"shares": named})
    np.testing.assert_array_equal(again.shares, fit.shares)
    numbered = dict(zip((1, 0), bands.values(), strict=True))
    named.columns = [0, 1]
    again = rls.several.fit_kernels(numbered, X, frame, **options | {"shares": named})
    np.testing.assert_array_equal(again.shares, fit.shares)
    turned = frame[["v", "u"]]
    for name, more in (("score", {"per_target": True}), ("score_split", {})):
        found, want = getattr(again, name)(X, turned, **more), getattr(fit, name)(X, Y, **more)
        np.testing.assert_array_equal(found, want)


@pytest.mark.slow
def test_what_fit_warns_of_is_warned_of_and_a_constant_target_scores_0():
    """At an edge of the grid with the number of targets, of one or both ends."""
    dull = np.c_[Y, np.full(N, 2.5), RNG.normal(size=N)]
    calls = (
        partial(rls.several.fit_kernels, KERNELS, X, dull, shares=SHARES),
        partial(rls.fit, KERNELS[0], X, dull, per_target=True),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for edge, lams in (("smallest", [1e4, 1e5]), ("largest", [1e-9, 1e-8])):
            end = re.escape(f"{lams[edge == 'largest']:.3g}")
            for call in calls:
                with pytest.warns(match=f"the chosen λ of . of 4 targets, {end}, is the {edge}"):
                    call(lams=lams)
    own = np.c_[[1e4, 1e5], LAMS[[0, -1]]]  # a grid for each target
    with pytest.warns(match=r"the chosen λ of 1 of 2 targets, 1e\+04, is the smallest"):
        rls.fit(KERNELS[0], X, Y, lams=own, per_target=True)
    fit = rls.several.fit_kernels(KERNELS, X, dull, shares=SHARES, lams=LAMS)
    with np.errstate(all="raise"):
        scores = fit.score_split(X, dull)
    assert (scores[:, 2] == 0).all() and fit.r2[2] == 0 and np.isfinite(scores).all()


@pytest.mark.slow
def test_the_gradient_ends_where_no_weights_nearby_are_better():
    """From drawn weights, on landmarks; weights still add up to 1, and the error is that of a fit
    with the kernel of each target.
    """
    landmarks = np.arange(0, N, 2)
    options = {"landmarks": landmarks, "key": jax.random.key(1), "num": 3}
    fit = rls.several.fit_kernels(KERNELS, X, Y, steps=15, **options)
    assert_allclose(fit.shares.sum(axis=0), 1, rtol=1e-12)
    for t in range(2):
        one, other = map(float, fit.shares[:, t])
        named = {"lams": [fit.lam[t]], "landmarks": landmarks}
        near = []
        for a, b in ((1.0, 1.0), (1.1, 1.0), (1.0, 1.1), (1.1, 1.1), (0.9, 1.0)):
            kernel = a * one * KERNELS[0] + b * other * KERNELS[1]
            near.append(rls.fit(kernel, X, Y[:, t], **named).error)
        assert_allclose(near[0], fit.error[t], rtol=1e-8)
        assert (np.array(near) >= near[0] * (1 - 1e-4)).all()


@pytest.mark.slow
def test_a_median_width_is_that_of_the_kernels_columns():
    median = rls.Gaussian("median").on([0])
    width = rls.fit(median, X, Y, lams=[1.0]).kernel.kernel.width
    fits = [
        rls.several.fit_kernels([kernel, rls.Linear()], X, Y, shares=[[0.5, 0.5]], lams=[1.0])
        for kernel in (median, rls.Gaussian(width).on([0]))
    ]
    assert_allclose(fits[0].predict(X), fits[1].predict(X), rtol=1e-9)


def test_what_cannot_be_weighted_is_said():
    fit = lambda kernels=KERNELS, shares=None: (
        lambda: rls.several.fit_kernels(kernels, X, Y, shares=shares)
    )
    rows = rls.rows.stream([(X[:10], Y[:10]), (X[10:], Y[10:])])
    named = {"key": jax.random.key(0), "landmarks": np.arange(6)}
    matrix = [*KERNELS, rls.Precomputed()]
    refused(
        (fit(), r"draws weights at random: give key=jax\.random\.key\(0\), or shares="),
        (fit(shares=[[1.0, -1.0]]), "shares must be 0 or more, and not all 0 in a row"),
        (fit(shares=[1.0, 1.0]), r"shares must have shape \(S, 2\), a column for each kernel, and"),
        (fit(matrix, [[1.0] * 3]), "kernels must be functions of rows, and one stands for"),
        (fit(KERNELS[:1]), "kernels must be a list of two kernels or more"),
        (
            lambda: rls.several.fit_kernels(KERNELS, rows, None, **named),
            "fit_kernels needs X in memory, and X is ",
        ),
    )


@pytest.mark.slow
def test_rows_that_stream_are_taken_by_the_rule():
    rows = rls.rows.stream([(X[:10], Y[:10]), (X[10:], Y[10:])])
    options = {"lams": GRID, "landmarks": np.arange(6), "conservative": 1.0}
    assert rls.fit(KERNELS[0], rows, **options).lam == rls.fit(KERNELS[0], X, Y, **options).lam


def standard_error(losses, v):
    """Of means of groups that weigh as their rows do."""
    members = [g == GROUPS for g in np.unique(GROUPS)]
    mass = np.array([v[own].sum() for own in members])
    means = np.array([np.average(losses[own], weights=v[own]) for own in members])
    mean, count = np.average(means, weights=mass), len(mass)
    return np.sqrt((mass**2 * (means - mean) ** 2).sum() * count / (count - 1)) / mass.sum()


def by_hand(losses, v, errors, factor):
    """The largest λ within so many standard errors of the best."""
    best = errors.argmin()
    return GRID[errors <= errors[best] + factor * standard_error(losses[best], v)].max()


@pytest.mark.slow
def test_the_conservative_lam_is_the_largest_within_standard_errors_of_the_best():
    """For all targets together and for each, with weights; the model is that of the λ. Factors are
    just below and above the one that takes two λ more.
    """
    v, kernel = RNG.uniform(0.5, 2, N), rls.Gaussian(1.0)
    solved = factorize(kernel, X, weights=v)
    left_out = jax.jit(lambda lam: rls.diagnostics.loo_residuals(solved, Y, lam, rls.folds(GROUPS)))
    losses = np.array([left_out(lam) ** 2 for lam in GRID])
    errors = np.einsum("n,lnt->lt", v, losses) / v.sum()
    options = {"weights": v, "lams": GRID, "groups": GROUPS}
    best = errors[:, 0].argmin()
    rise = errors[best + 2, 0] - errors[best, 0]
    edge = rise / standard_error(losses[best, :, 0], v)
    for factor in (0.98 * edge, 1.02 * edge):
        each = rls.fit(kernel, X, Y, per_target=True, conservative=factor, **options)
        expected = [by_hand(losses[:, :, t], v, errors[:, t], factor) for t in range(2)]
        assert_allclose(each.lam, expected, rtol=1e-12)
        assert (each.lam > GRID[errors.argmin(axis=0)]).any()
    shared = rls.fit(kernel, X, Y, conservative=factor, **options)
    expected = by_hand(losses.mean(axis=2), v, errors.mean(axis=1), factor)
    assert_allclose(shared.lam, expected, rtol=1e-12)
    assert_allclose(shared.error, errors.mean(axis=1)[shared.lam == GRID][0], rtol=1e-8)
