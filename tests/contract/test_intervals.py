"""Every fit that leaves a row, or a group, out, of every factor, by refits: what they predict at
new rows, and how sure they are there.
"""

import jax
import numpy as np
import pytest
from oracle import refit
from support import array, assert_close

import jaxrls as rls
from contract.cases import FACTORS, LAMS, PLANS, WEIGHTS, N, Y

LAM = 0.2
LACKING = {"iterative"}
WITHOUT_VARIANCE = ("refined", "precomputed", "kronecker")
# Those of which each has a formula of its own; all else differs in where its rows live.
OWN = (
    "gram",
    "features",
    "outer",
    "landmarks",
    "landmarks that stay",
    "cholesky gram",
    "cholesky features",
    "cholesky landmarks",
    "refined",
    "precomputed",
)
GROUPS = PLANS["uneven"]


def found(case, X, X_new, v, intercept, plan):
    """Predictions without each row and each group, scores of both, and ratios of standard
    deviations.
    """
    factor = case.make(X, v, intercept)
    solution, lams = factor.solve(array(Y)), array([LAM])
    found, fixed = solution.coefficients(lams), factor.fixed
    coef = [found.coef[0], fixed.joined(found.intercept[0], None)]
    coef = jax.numpy.concatenate(coef)
    smoother, design = factor.smoother(lams[0]), factor.expansion.design(case.kernel, X_new)
    columns = fixed.dense(None, len(design))
    design = jax.numpy.concatenate([design, columns], axis=1)
    rows = smoother.without_rows(factor.weights, lams[0], coef, solution.residuals(lams)[0])
    e = solution.residuals(lams, plan)[0]
    groups = smoother.without_folds(factor.weights, plan, coef, e)
    pair = lambda left_out, scores: (left_out, scores)
    left_out, scores = rows.each(design, pair)
    ratios = None
    if not any(case is FACTORS[name] for name in WITHOUT_VARIANCE):
        ratios = rows.ratios(
            design, factor.spread(lams[0]).variance(case.kernel, X_new, None, False)
        )
    return left_out, scores, ratios, rows.deviations(), *groups.each(design, pair)


def variance(Phi, Phi_new, prior, v, intercept):
    """k_** − k_*ᵀPk_* + (1 − 1ᵀPk_*)²/1ᵀP1 of rows of positive weight; the prior is that of k where
    all of it is taken, and on landmarks of k̂.
    """
    Phi, v = Phi[v > 0], v[v > 0]
    P, across = np.linalg.inv(Phi @ Phi.T + LAM * np.diag(1 / v)), Phi @ Phi_new.T
    told = prior - np.einsum("im,ij,jm->m", across, P, across)
    return told + (1 - P.sum(axis=0) @ across) ** 2 / P.sum() if intercept else told


def truth(name, weights, intercept):
    """The same by refits; rows of weight 0 have no ratio."""
    case, v = FACTORS[name], WEIGHTS[weights]
    spanned = "landmarks" in case.options or not case.kernel.evaluable
    left_out, e, ratios, own = (
        np.empty((len(case.X_new), N, Y.shape[1])),
        np.empty_like(Y),
        np.ones((len(case.X_new), N)),
        np.full(N, np.inf),
    )
    for rows in [np.flatnonzero(np.arange(N) == i) for i in range(N)]:
        left_out[:, rows], e[rows] = without(case, rows, v, intercept)
        (i,), (Phi, Phi_new), rest = rows, case.features(rows), np.delete(np.arange(N), rows)
        if v[i] > 0:
            prior = (
                np.sum(Phi_new**2, axis=1)
                if spanned
                else np.asarray(case.kernel.diag(array(case.X_new)))
            )
            own[i] = np.sqrt(
                variance(Phi[rest], Phi[rows], np.sum(Phi[rows] ** 2, axis=1), v[rest], intercept)[
                    0
                ]
                + LAM / v[i]
            )
            ratios[:, i] = (
                np.sqrt(variance(Phi[rest], Phi_new, prior, v[rest], intercept) + LAM) / own[i]
            )
    by_groups, held = np.empty_like(left_out), np.empty_like(e)
    for rows in [np.flatnonzero(g == GROUPS) for g in np.unique(GROUPS)]:
        by_groups[:, rows], held[rows] = without(case, rows, v, intercept)
    return left_out, scores(e, v), ratios, own, by_groups, scores(held, v)


def without(case, rows, v, intercept):
    """Predictions of a fit without some rows, the same for each of them, and its residuals on
    them.
    """
    (Phi, Phi_new), rest = case.features(rows), np.delete(np.arange(N), rows)
    w, b = refit(Phi[rest], Y[rest], LAM, v[rest], intercept)
    return (Phi_new @ w + b)[:, None], Y[rows] - Phi[rows] @ w - b


def scores(e, v):
    return np.where((v > 0)[:, None], np.abs(e), np.inf)


@pytest.mark.float64
@pytest.mark.parametrize(
    ("name", "weights", "intercept"),
    [(name, "zeros", True) for name in OWN]
    + [("gram", "ones", False), ("features", "ones", False), ("kronecker", "ones", True)],
)
def test_fits_without_a_row_or_a_group_are_refits(name, weights, intercept):
    case, v = FACTORS[name], WEIGHTS[weights]
    plan, X_new = rls.folds(GROUPS), array(case.X_new)
    got = jax.jit(lambda X, X_new, v: found(case, X, X_new, v, intercept, plan))(
        case.X, X_new, array(v)
    )
    want, used = truth(name, weights, intercept), v > 0
    tolerance = 4 * case.tolerance() * LAMS.min() / LAM
    for part, one, other in zip(
        ("left out", "scores", "ratios", "deviations", "groups", "scores of groups"),
        got,
        want,
        strict=True,
    ):
        if one is None:
            continue
        one = np.asarray(one)
        if part in {"left out", "ratios", "groups"}:
            assert_close(one[:, used], other[:, used], tolerance, part)
        else:
            assert np.isinf(one[~used]).all()
            assert_close(one[used], other[used], tolerance, part)


@pytest.mark.parametrize("name", sorted(LACKING))
def test_a_factor_that_lacks_it_is_named(name, unchecked):
    case = FACTORS[name]
    factor = jax.eval_shape(lambda X: case.make(X, None, True), case.X)
    with pytest.raises(
        ValueError, match=rf"a factor by route '{factor.route}'.* or intervals: use another"
    ):
        factor.smoother(array(LAM))
