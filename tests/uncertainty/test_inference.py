"""The posterior covariance, and every fit that leaves a row or a group out, of every factor that
tells them, against generalised least squares and refits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import BESIDE_NEW, FACTORS, FIXED, LAMS, NEW, PLANS, WEIGHTS, N, Y, gaussian
from extended import sets_of
from support import ANY_PRECISION, FLOAT64, array, assert_close, refused, wide

import jaxrls as rls
from jaxrls.core.kernels.inner import Linear
from jaxrls.uncertainty.intervals import WithoutFolds, WithoutRows, smoother
from jaxrls.uncertainty.spread import spread

LAM, GROUPS = 0.2, PLANS["uneven"]
OF_NEW = np.geomspace(0.25, 4, NEW)  # weights of new labels
WITHOUT_POSTERIOR = {"kronecker"}
BY_PRODUCTS = {"iterative", "iterative landmarks", "sparse"}
# The algebra of others: a spectrum of K, landmarks that are no rows, the sums of features.
ALIKE = {"outer", "precomputed", "on devices, linear"}
ALIKE |= {"landmarks that stay", "cholesky landmarks that stay"}
NAMES = [
    name
    for name, case in FACTORS.items()
    if case.traceable and not name.startswith("moments") and name not in BY_PRODUCTS | ALIKE
]


def measured(case, X, X_new, v, fixed, plan):
    """Predictions and scores without each row and each group, with columns of deviations of rows
    left out and ratios of those of new rows; covariance and variance, of K and of what landmarks
    span of it.
    """
    factor = case.make(X, v, fixed)
    solution, lams, effects = factor.solve(array(Y)), array([LAM]), factor.fixed
    coef = jnp.concatenate([part[0] for part in factor.coef_and_beta(solution, lams[:, None])])
    beside = effects.new_values(array(BESIDE_NEW) if effects.are_given else None, NEW, factor.dtype)
    design = factor.expansion.design(case.kernel, X_new)
    design = jnp.concatenate([design, effects.dense(beside, NEW)], axis=1)
    by_labels, e = smoother(factor, lams[0]), solution.held_out_residuals(lams, plan)[0]
    of_rows = factor.weights, lams[0], coef, solution.held_out_residuals(lams)[0]
    rows = WithoutRows.of(by_labels, *of_rows)
    groups = WithoutFolds.of(by_labels, factor.weights, plan, coef, e)
    both, posterior = lambda *pair: pair, []
    found = *rows.for_targets(design, both), *groups.for_targets(design, both)
    found = *found, rows.deviations(), None
    if case not in [FACTORS[name] for name in WITHOUT_POSTERIOR]:
        of_new = spread(factor, lams[0])
        for corrected in (True, False):
            new = of_new.new_rows(case.kernel, X_new, beside, corrected)
            variances = of_new.variances(case.kernel, new)
            posterior += [of_new.between(case.kernel, new, new), variances]
        found = *found[:-1], rows.ratios(design, variances, array(OF_NEW))
    return found, posterior


def true(case, v, fixed):
    """The same; what is about rows of weight 0 is no number."""
    truth = case.truth(v, FIXED[fixed], np.array([LAM]))
    new, X_new = truth.fixed_new, wide(np.asarray(case.X_new))
    whole = X_new @ X_new.T if isinstance(case.kernel, Linear) else gaussian(X_new, X_new)
    spanned = "landmarks" in case.options or not case.kernel.evaluable

    def prior(gone):
        """k(new, new), or what of it landmarks and a matrix without new rows span."""
        phi = case.features(gone)[1]
        return phi @ phi.T if spanned else whole

    found, with_weight = [], np.where(v > 0, 0, np.nan)
    for groups in (np.arange(N), GROUPS):
        sets, row = sets_of(groups), np.unique(groups, return_inverse=True)[1]
        fits, _, K_new = truth.without(sets)
        left_out = fits.predict(K_new, Y, new)[row, 0]
        found += [np.moveaxis(left_out + with_weight[:, None, None], 0, 1)]
        found += [np.abs(truth.held(groups)[0]) + with_weight[:, None]]
        if len(sets) == N:
            priors = np.array([prior(gone) for gone in sets])[:, None]
            covariance = fits.covariance(K_new, priors, new)[:, 0]
            variance = np.diagonal(covariance, axis1=1, axis2=2).T
    own = np.sqrt(truth.deviations()[0]) + with_weight
    posterior = []
    for known in (whole, prior([])):
        covariance = truth.fit.covariance(truth.whole[1][None], known, new)[0, 0]
        posterior += [covariance, np.diagonal(covariance)]
    return [*found, own, np.sqrt(variance + LAM / OF_NEW[:, None]) / own], posterior


# One of each algebra in the quick run: a spectrum of K and of features, a Cholesky factor, and
# landmarks that leave with their rows, beside columns.
QUICK = {
    ("gram", "constant"),
    ("covariance", "constant"),
    ("cholesky gram", "constant"),
    ("landmarks", "columns"),
}


def cells():
    """By name: with weights, some of them 0, and a constant; some without, some with columns, and
    landmarks that leave with these alone.
    """
    every = [
        (name, "zeros" if FACTORS[name].weighted else "ones", "constant")
        for name in NAMES
        if name not in ("landmarks", "cholesky landmarks")
    ]
    every += [(name, "ones", "none") for name in ("features", "landmarks", "cholesky gram")]
    every += [(name, "zeros", "columns") for name in ("gram", "landmarks", "cholesky landmarks")]
    for name, weights, fixed in every:
        marks = [] if (name, fixed) in QUICK else pytest.mark.slow
        yield pytest.param(name, weights, fixed, marks=marks)


@FLOAT64
@pytest.mark.parametrize(("name", "weights", "fixed"), [*cells()])
def test_fits_without_rows_and_the_posterior_are_those_of_refits(name, weights, fixed):
    case, v, plan = FACTORS[name], WEIGHTS[weights], rls.folds(GROUPS)
    run = jax.jit(lambda X, X_new, v: measured(case, X, X_new, v, FIXED[fixed], plan))
    found, posterior = run(case.X, array(case.X_new), array(v))
    want, covariances = true(case, v, fixed)
    tolerance, used = 4 * case.tolerance() * LAMS.min() / LAM, v > 0
    names = "left out", "scores", "without groups", "of groups", "deviations", "ratios"
    for part, got, value in zip(names, found, want, strict=True):
        if got is None:
            continue
        got, axis = np.asarray(got), int(part in ("left out", "without groups", "ratios"))
        got, value = np.moveaxis(got, axis, 0), np.moveaxis(value, axis, 0)
        assert_close(got[used], value[used], tolerance, part)
        assert axis or np.isinf(got[~used]).all()
    for got, value in zip(posterior, covariances[: len(posterior)], strict=True):
        assert_close(got, value, tolerance, "posterior")


@ANY_PRECISION
def test_what_a_factor_lacks_is_named():
    for name, part, method in (
        ("iterative", "has no posterior variances", spread),
        ("iterative", "or intervals", smoother),
    ):
        case = FACTORS[name]
        ask = lambda X, case=case, method=method: method(case.make(X, None, True), X[0, 0])
        words = f"a factor by route '{name}'.* {part}: use another"
        refused((lambda ask=ask, case=case: jax.eval_shape(ask, case.X), words))
