"""Every closed form against brute force, over the product of routes, weights, intercepts and shapes, at λ down to 1e-6 of the spectrum."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.stats
from support import DTYPE, EPS, X64, array, assert_close, groups_left_out, wide

import jaxrls as rls
from jaxrls.factors.cost import refitting_is_cheaper

ROUTES = ("gram", "features", "covariance", "precomputed")
SHAPES = {"n > d": (24, 5), "n < d": (12, 16)}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Problem:
    """Data off the origin (so that an intercept matters), λ from 1e-6 of the largest eigenvalue up, and every answer by refitting."""

    Phi: Any
    Y: Any
    weights: Any
    lams: Any
    groups: Any
    new: Any
    Y_new: Any
    weights_new: Any
    condition: Any  # s_max/λ + 1
    answers: Any


def hat(Phi, lam, v, intercept):
    """The matrix that takes Y to the fitted values."""
    w, b = oracle.refit(Phi, np.eye(len(Phi)), lam, v, intercept)
    return Phi @ w + b


def evidence(Phi, Y, lam, v, intercept):
    """log N(y; 0, K + λV⁻¹) over rows of positive weight; with an intercept, integrated over it under a flat prior."""
    used = v > 0
    Phi, Y, v = Phi[used], Y[used], v[used]
    S = Phi @ Phi.T + lam * np.diag(1 / v)
    if not intercept:
        return np.array([scipy.stats.multivariate_normal(cov=S).logpdf(y) for y in Y.T])
    one = np.ones(len(Y))
    precision = one @ np.linalg.solve(S, one)
    best = one @ np.linalg.solve(S, Y) / precision
    at_best = np.array([scipy.stats.multivariate_normal(mean=b * one, cov=S).logpdf(y) for y, b in zip(Y.T, best, strict=True)])
    return at_best + 0.5 * np.log(2 * np.pi / precision)


def average(e, v):
    """Σ v e² / Σ v; the other losses are in the contract grid."""
    return v @ e**2 / v.sum()


@functools.cache
def problem(shape, weighting, intercept, seed):
    n, d = SHAPES[shape]
    rng = np.random.default_rng(seed)
    Phi, new, noise = (wide(rng.normal(size=s)) for s in ((n, d), (7, d), (n + 7, 3)))
    Phi, new = wide(Phi + 1), wide(new + 1)
    truth = rng.normal(size=(d, 3))
    Y, Y_new = wide(Phi @ truth + noise[:n] + 3), wide(new @ truth + noise[n:] + 3)
    v = wide(rng.uniform(0.3, 2, n) * (1 if weighting == "positive" else np.arange(n) % 5 > 0))
    v_new = wide(rng.uniform(0.3, 2, 7))
    groups = np.arange(n) % 4
    groups[0] = 1  # groups of unequal size
    mean = (v @ Phi / v.sum()) if intercept else 0
    s_max = np.linalg.norm(np.sqrt(v)[:, None] * (Phi - mean), 2) ** 2
    lams = wide(s_max * np.logspace(-6 if X64 else -3, 1, 5))

    each = []
    for lam in lams:
        w, b = oracle.refit(Phi, Y, lam, v, intercept)
        e, e_group = oracle.loo_residuals(Phi, Y, lam, v, intercept), oracle.group_residuals(Phi, Y, lam, groups, v, intercept)
        H = hat(Phi, lam, v, intercept)
        residuals = Y - H @ Y
        answer = {
            "coef": w,
            "intercept": b,
            "loo_residuals": e,
            "dof": np.trace(H),
            "gcv": average(residuals, v) / (1 - np.trace(H) / (v > 0).sum()) ** 2,
            "log_marginal_likelihood": evidence(Phi, Y, lam, v, intercept),
        }
        squares = {"loo": average(e, v), "kfold": average(e_group, v), "holdout": average(Y_new - new @ w - b, v_new)}
        answer |= {f"{name}, squared": value for name, value in squares.items()}
        each.append(answer)
    answers = {name: np.array([answer[name] for answer in each]) for name in each[0]}
    return Problem(Phi, Y, v, lams, groups, new, Y_new, v_new, 1 + s_max / lams, answers)


def factor_by(route, Phi, weights, intercept):
    if route == "precomputed":
        return rls.factor_gram(Phi @ Phi.T, weights=weights, intercept=intercept)
    return rls.factorize(rls.Linear(), Phi, weights=weights, intercept=intercept, route=route)


def arrays(p):
    """The problem as the library gets it."""
    return (
        array(p.Phi),
        array(p.Y),
        array(p.weights),
        array(p.lams),
        rls.folds(p.groups),
        array(p.new),
        array(p.Y_new),
        array(p.weights_new),
    )


def check(got, p, what):
    """Every result against brute force, to n·eps·s_max/λ, and to the oracle's own last digits."""
    for name, value in got.items():
        assert value.dtype == DTYPE
        want = p.answers[{"path.loo": "loo, squared"}.get(name, name.split(", by ")[0])]
        for i, condition in enumerate(p.condition):
            tolerance = len(p.Phi) * EPS * condition + 500 * EPS
            assert_close(value[i], want[i], tolerance, f"{name}, λ = {p.lams[i]:.2g}, {what}")


@functools.partial(jax.jit, static_argnames=("route", "intercept"))
def everything(Phi, Y, weights, lams, plan, new, Y_new, weights_new, *, route, intercept):
    factor = factor_by(route, Phi, weights, intercept)
    explicit = factor.basis is not None
    path, grouped = rls.path(factor, Y, lams), groups_left_out(factor, Y, lams, plan)
    return {
        "coef": path.coef if explicit else jnp.einsum("nr,Lnt->Lrt", Phi, path.coef),
        "intercept": path.intercept,
        "path.loo": path.loo,
        "loo, squared": rls.loo(factor, Y, lams),
        "loo_residuals": jax.vmap(lambda lam: rls.loo_residuals(factor, Y, lam))(lams),
        "dof": rls.effective_dof(factor, lams),
        "gcv": rls.gcv(factor, Y, lams),
        "log_marginal_likelihood": rls.log_marginal_likelihood(factor, Y, lams),
        "holdout, squared": rls.holdout(factor, Y, lams, new if explicit else new @ Phi.T, Y_new, weights=weights_new),
    } | {f"kfold, squared, by {way}": error for way, error in grouped.items()}


@pytest.mark.parametrize("intercept", [pytest.param(False, marks=pytest.mark.float64), True], ids=["through 0", "intercept"])
@pytest.mark.parametrize("weighting", ["positive", "some zero"])  # weights None are in the contract grid
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("route", ROUTES)
def test_every_closed_form_is_its_brute_force(route, shape, weighting, intercept):
    for seed in SEEDS:
        p = problem(shape, weighting, intercept, seed)
        check(everything(*arrays(p), route=route, intercept=intercept), p, f"seed {seed}")


def test_groups_are_refitted_where_that_takes_fewer_operations():
    """Of 20 rows in two groups and 10 features a refit takes 2·10·10·10 + 12·10³ operations, and the closed form 2·10²·10 + 10³ for every λ."""
    assert [refitting_is_cheaper(10, 10, 10, L) for L in (1, 4, 5, 50)] == [False, False, True, True]
