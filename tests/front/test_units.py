"""The likelihood does not depend on the unit of the labels: variances of published mixed models, of
markers, and of kernels without a scale, against REML in NumPy.
"""

import numpy as np
import pytest
import scipy.optimize
from published import studies
from support import ANY_PRECISION, DTYPE, EDGE, EPS, X64, assert_close, refused

import jaxrls as rls
from jaxrls.core.kernels import Standardized
from jaxrls.sklearn import RLSRegressor

UNITS = 1e-12, 1e-3, 1.0, 1e12
STUDIES = studies()
N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(DTYPE)
Y = np.stack([np.sin(2 * X[:, 0]), 30 * X[:, 1]], axis=1) + RNG.normal(size=(N, 2)) * [0.3, 20]


def reml(K, y, lam, B=None):
    """−log likelihood of y ~ N(Bβ, τ²(K + λI)) at the best τ², and that, in float64."""
    K, y = np.asarray(K, np.float64), np.asarray(y, np.float64)
    B = np.ones((len(y), 1)) if B is None else np.column_stack([np.ones(len(y)), B])
    G = K + lam * np.eye(len(y))
    of_B, of_y = np.linalg.solve(G, B), np.linalg.solve(G, y)
    inner = B.T @ of_B
    free = len(y) - B.shape[1]
    variance = (y @ of_y - of_y @ B @ np.linalg.solve(inner, of_B.T @ y)) / free
    logs = np.linalg.slogdet(G)[1] + np.linalg.slogdet(inner)[1]
    return 0.5 * (logs + free * (np.log(2 * np.pi * variance) + 1)), variance


def variances_of(kernel):
    """The scales of a sum of at most two parts."""
    parts = [kernel] if hasattr(kernel, "scale") else [kernel.left, kernel.right]
    return [float(part.scale) for part in parts]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)  # those of one part share their programs
def test_published_variances_in_any_unit(name):
    """Scales and λ that started far from them were left where the likelihood is flat, as converged;
    a variance of 0 is told.
    """
    study = STUDIES[name]
    fixed, close = study.fixed_effects, 2e-4 if X64 else 2e-2
    free = len(study.y) - 1 - (fixed is not None)
    rows, tol = study.X.astype(DTYPE), 1e-5 if X64 else 2e-3
    options = {"criterion": "evidence", "fixed_effects": fixed, "tol": tol}
    for unit in UNITS:
        fit = rls.tune(study.kernel, rows, (unit * study.y).astype(DTYPE), **options)
        found = np.array([*variances_of(fit.kernel), float(fit.lam)]) / unit**2
        want = np.array(study.variances)
        assert (found[want == 0] < 1e-6).all()
        np.testing.assert_allclose(found[want > 0], want[want > 0], close)
        criterion = 2 * float(fit.error) - 2 * free * np.log(unit)
        assert abs(criterion - study.criterion) < (1e-3 if X64 else 5e-2)
        std = fit.effects().std
        assert_close(fit.effects(scale=1).std, std, 1e-6 if X64 else 1e-3)
        assert fit.history.converged and fit.plan.endswith("variance of the prior τ² = 1")
        told = "; 1 of the kernel's scales vanished, as if it were 0"
        assert (told in fit.history.reason) == (0 in study.variances)
        at = int(np.argmin(fit.history.errors))
        scales = np.array(variances_of(fit.kernel))
        history = fit.history.kernels
        parts = [history] if len(scales) == 1 else [history.left, history.right]
        assert_close([part.scale[at] for part in parts], scales, 10 * EPS)
        assert_close(fit.history.lams[at], fit.lam, 10 * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("scales", [(1e-6, 1.0), (1.0, 1e-6), (1e4, 1e-2)], ids=str)
def test_a_scale_that_starts_as_good_as_0_is_found(scales):
    """Its slope is 0 there, which is no convergence."""
    study, level = STUDIES["Penicillin"], rls.Levels()
    plates, samples = scales
    start = plates * level.on([0]) + samples * level.on([1])
    fit = rls.tune(start, study.X.astype(DTYPE), study.y.astype(DTYPE), criterion="evidence")
    found = [*variances_of(fit.kernel), float(fit.lam)]
    np.testing.assert_allclose(found, study.variances, 1e-2 if X64 else 1e-1)


@pytest.mark.slow
def test_markers_have_the_variance_of_a_spectral_search():
    """Genomic prediction: of more columns than rows, the share of variance that they explain."""
    markers = RNG.integers(0, 3, (N, 200)).astype(DTYPE)
    y = markers @ RNG.normal(size=200) / 15 + RNG.normal(size=N)
    K = np.asarray(markers, np.float64) @ markers.T
    best = scipy.optimize.minimize_scalar(
        lambda log_lam: reml(K, y, np.exp(log_lam))[0], bounds=(0, 12), options={"xatol": 1e-9}
    )
    variance = reml(K, y, np.exp(best.x))[1]
    want = np.array([1, np.exp(best.x)]) * variance
    options = {"criterion": "evidence", "tol": 1e-6 if X64 else 2e-3}
    for unit in UNITS:
        fit = rls.tune(1.0 * rls.Linear(), markers, (unit * y).astype(DTYPE), **options)
        found = np.array([float(fit.kernel.scale), float(fit.lam)]) / unit**2
        np.testing.assert_allclose(found, want, 1e-3 if X64 else 5e-2)


@EDGE
@pytest.mark.slow
@pytest.mark.parametrize("solver", [None, rls.Cholesky()], ids=str)
def test_a_kernel_without_a_scale_has_one_variance_everywhere(solver):
    """In the choice of λ, `error`, `plan` and error bars, for every target, by refits in NumPy."""
    kernel, lams = rls.Gaussian(1.0), np.geomspace(1e-2, 10, 12).astype(DTYPE)
    fixed = X[:, :1] ** 2
    K = np.asarray(kernel(X, X))
    close = 1e-8 if X64 else 2e-3
    for unit in UNITS:
        labels = (unit * Y).astype(DTYPE)
        scaled = labels.astype(np.float64) / unit
        want = [[reml(K, y, lam, fixed) for lam in lams.astype(float)] for y in scaled.T]
        errors, variances = np.moveaxis(want, 0, 2).transpose(1, 0, 2)
        options = {"lams": lams, "solver": solver, "fixed_effects": fixed, "criterion": "evidence"}
        fit = rls.fit(kernel, X, labels, per_target=True, **options)
        moved = fit.errors - (N - 2) * np.log(unit)
        assert_close(moved, errors, close)
        best = errors.argmin(axis=0)
        assert fit.lam.tolist() == lams[best].tolist()
        at_best = np.sqrt(variances[best, [0, 1]])
        assert_close(fit.amplitude / unit, at_best, close)
        assert "; variance of the prior τ² = " in fit.plan and " to " in fit.plan
        one = rls.fit(kernel, X, labels[:, 0], **options, keep=True)
        assert_close(one.amplitude, fit.amplitude[0], close)
        process = one.posterior(X[:3], fixed_effects=fixed[:3])
        assert_close(process.amplitude, one.amplitude, close)
    given = rls.extend.Evidence(float(one.amplitude) ** 2)
    as_given = rls.fit(kernel, X, labels[:, 0], **options | {"criterion": given})
    assert_close(as_given.amplitude, one.amplitude, close)
    assert_close(as_given.error, one.error, close)


SCALED = 1.0 * rls.Gaussian(1.0), Y
UNSCALED = rls.Gaussian(1.0).on(0) + 1.0 * rls.Linear().on(1), Y[:, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("criterion", "kernel", "labels"),
    [
        ("evidence", *UNSCALED),
        ("log_predictive_density", *SCALED),
        ("crps", *UNSCALED),
    ],
    ids=["evidence", "density", "crps"],
)
def test_tuned_kernels_and_deviations_are_those_of_the_labels_times_their_unit(
    criterion, kernel, labels
):
    """Of a kernel with a scale, and one that has none to take the variance into; for two targets
    the scales are those of their mean variance. (Scales by the evidence: of published studies.)
    """
    close = 1e-5 if X64 else 5e-2
    by = "evidence" if criterion == "evidence" else "loo"
    seen = []
    for unit in UNITS[::3] + (1.0,):
        y = (unit * labels).astype(DTYPE)
        fit = rls.tune(kernel, X, y, criterion=criterion, steps=8)
        std = fit.predict(X[:5], return_std=True, scale=by)[1] / unit
        amplitude = np.asarray(fit.amplitude, float)
        if labels is Y:
            assert_close(np.mean(amplitude**2), 1, 1e-3)
        else:
            std = [*std, amplitude / unit]
        seen.append([float(fit.r2), *np.ravel(std)])
    np.testing.assert_allclose(seen[:-1], [seen[-1]] * 2, close)


def test_estimators_do_not_depend_on_the_unit():
    model = RLSRegressor(kernel=rls.Gaussian(1.0), criterion="evidence")
    want = model.fit(X, Y[:, 0].astype(DTYPE)).predict(X[:5])
    for unit in UNITS:
        found = model.fit(X, (unit * Y[:, 0]).astype(DTYPE)).predict(X[:5]) / unit
        np.testing.assert_allclose(found, want, 1e-6 if X64 else 1e-2)


@ANY_PRECISION
def test_a_factor_is_taken_into_scales():
    """Of all parts of a sum, of one of a product, under columns; else nowhere."""
    gaussian, level = rls.Gaussian(1.0), rls.Levels()
    rows = np.random.default_rng(0).normal(size=(5, 2))
    for kernel in (
        2.0 * gaussian,
        2.0 * gaussian + (3.0 * level).on(0),
        gaussian * (2.0 * level),
        (2.0 * level) * gaussian,
        2.0 * (gaussian + 3.0 * level),
        Standardized(2.0 * gaussian, np.zeros(2), np.ones(2)),
    ):
        found = kernel.multiplied(5.0)
        assert_close(found(rows, rows), 5 * np.asarray(kernel(rows, rows)), 1e-6)
    for kernel in (gaussian, gaussian + 2.0 * level, gaussian * level, rls.Precomputed()):
        assert kernel.multiplied(5.0) is None
    words = "scale must be a positive number, by which the kernel is multiplied, or 'evidence', and"
    refused(*((lambda scale=scale: rls.extend.Evidence(scale), words) for scale in ("loo", 0, -1)))


@pytest.mark.slow
def test_a_criterion_of_your_own_chooses_alike_in_any_unit():
    """It is compared with its own size: in small units a search took the start for the end."""
    own = lambda factor, labels, lams: rls.loo(factor, labels, lams)
    by_loo = rls.tune(rls.Gaussian(np.ones(2)), X, Y[:, 0].astype(DTYPE))
    ends, places = [], []
    for unit in (1e-4, 1.0, 1e4):
        y = (unit * Y[:, 0]).astype(DTYPE)
        tuned = rls.tune(rls.Gaussian(np.ones(2)), X, y, criterion=own)
        found = rls.fit(rls.Gaussian(1.0), X, y, criterion=own, lams="search")
        ends.append(np.append(tuned.kernel.width, tuned.lam))
        places.append(float(found.lam))
        assert float(tuned.error) <= 1.01 * float(by_loo.error) * unit**2
    close = EPS**0.25
    np.testing.assert_allclose(ends, np.broadcast_to(ends[1], (3, 3)), rtol=close)
    np.testing.assert_allclose(places, places[1], rtol=close)
