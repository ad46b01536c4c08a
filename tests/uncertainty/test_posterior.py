"""How sure a fit is: against scikit-learn's Gaussian process, refits and many
samples.
"""

import jax
import numpy as np
import pytest
from contract.cases import WIDTH, draw, gaussian
from extended import Truth
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from support import ANY_PRECISION, DTYPE, EPS, FLOAT64, assert_close, refused, solver_of, wide

import jaxrls as rls
from jaxrls.sklearn import RLSRegressor
from jaxrls.uncertainty.posterior import process_of

N, NEW, LAM = 24, 6, 0.2


X, X_NEW = draw(0, N, 2), draw(1, NEW, 2)
Y = wide(np.stack([np.sin(2 * X[:, 0]), X[:, 1] - 4], axis=1) + 0.3 * draw(2, N, 2))
V = wide(np.random.default_rng(3).uniform(0.5, 2.0, N))
GAUSSIAN = rls.Gaussian(WIDTH)
KEPT = {"lams": [LAM], "keep": True}
INPUT, OUTPUT, FRESH = (A.astype(DTYPE) for A in (X, Y, X_NEW))


def fit(kernel=GAUSSIAN, rows=slice(None), **options):
    return rls.fit(kernel, INPUT[rows], OUTPUT[rows], **{**KEPT, **options})


def tolerance(s_max=N):
    return 4 * N * EPS * (1 + s_max / LAM)


def by_white_noise(kernel, noise, labels):
    """Predictions and their standard deviations, with noise of new labels."""
    kernel = kernel + kernels.WhiteKernel(noise)
    theirs = GaussianProcessRegressor(kernel, alpha=1e-300, optimizer=None).fit(X, labels)
    return theirs.predict(X_NEW, return_std=True)


@ANY_PRECISION
def test_scikit_learn():
    """The same kernel, alpha = λ, no intercept, the kernel's own scale."""
    ours = rls.fit(GAUSSIAN, X, Y, intercept=False, **KEPT)
    theirs = GaussianProcessRegressor(kernels.RBF(WIDTH), alpha=LAM, optimizer=None).fit(X, Y)
    found = ours.posterior(X_NEW, scale=1)
    mean, covariance = theirs.predict(X_NEW, return_cov=True)
    assert_close(found.mean, mean, 1e-9)
    assert_close(found.covariance, covariance, 1e-9)
    assert_close(found.std, theirs.predict(X_NEW, return_std=True)[1], 1e-9)
    mean, std = ours.predict(X_NEW, return_std=True, scale=1)
    assert std.dtype == np.float64
    kind = type(ours.model.coef)
    assert {type(part) for part in (std, found.mean, found.covariance)} == {kind}
    noisy = by_white_noise(kernels.RBF(WIDTH), LAM, Y)
    for one, other in zip((mean, std), noisy, strict=True):
        assert_close(one, other, 1e-9)


@ANY_PRECISION
@pytest.mark.slow
def test_estimators():
    """In whatever parts rows come, where there are moments."""
    model = RLSRegressor("linear", lams=LAM, fit_intercept=False, keep=True)
    parts = RLSRegressor(**model.get_params())
    whole = model.fit(X, Y[:, 0]).predict(X_NEW, return_std=True)
    for rows in (slice(9), slice(9, None)):
        parts.partial_fit(X[rows], Y[rows, 0])
    scale = float(process_of(model.path_).evidence) ** 2
    kernel = kernels.ConstantKernel(scale) * kernels.DotProduct(sigma_0=1e-30)
    theirs = by_white_noise(kernel, scale * LAM, Y[:, 0])
    for found in (whole, parts.predict(X_NEW, return_std=True)):
        for one, other in zip(found, theirs, strict=True):
            assert isinstance(one, np.ndarray) and one.shape == (NEW,)
            assert_close(one, other, 1e-9)
    bare = RLSRegressor("linear", lams=LAM, keep=False).fit(X, Y)
    refused((lambda: bare.predict(X_NEW, return_std=True), "fit with keep=True"))


@pytest.mark.parametrize("route", ["gram", pytest.param("cholesky", marks=pytest.mark.slow)])
def test_scales(route):
    """By the evidence where it is largest; by leave-one-out where held-out residuals are as large
    as refits say they are.
    """
    found = process_of(fit(weights=V.astype(DTYPE), solver=solver_of(route)))
    K, rows = gaussian(X, X), np.arange(N)
    truth = Truth(lambda gone: (K, K, np.diagonal(K)), Y, Y, V, np.array([LAM]), rows, True)
    squares = truth.held(rows)[0] ** 2 / truth.deviations()[0][:, None]
    assert_close(found.evidence, np.sqrt(truth.data_fit[0] / (N - 1)), 10 * tolerance())
    assert_close(found.loo, np.sqrt(squares.mean(axis=0)), 10 * tolerance())


def test_every_target_has_its_own_scale():
    found = fit()
    std = found.predict(FRESH, return_std=True)[1]
    for j in range(2):
        one = rls.fit(GAUSSIAN, INPUT, OUTPUT[:, j], **KEPT)
        alone = one.predict(FRESH, return_std=True)[1]
        assert_close(std[:, j], alone, tolerance())
        assert_close(one.posterior(FRESH).label_std, alone, tolerance())
    one, other = (found.posterior(FRESH, scale=scale).std for scale in ([4.0, 9.0], 9))
    assert_close(one * np.array([1.5, 1]), other, EPS)


def test_a_covariance_holds_the_variances_of_every_target():
    """√ of its diagonal is `std`, and by numbers it is τ² times the posterior of the kernel."""
    unit = np.asarray(fit().posterior(FRESH, scale=1).covariance)
    for scale in (4, [4.0, 9.0], "evidence", "loo"):
        found = fit().posterior(FRESH, scale=scale)
        diagonal = np.diagonal(found.covariance).T  # (m, t)
        assert_close(np.sqrt(diagonal), found.std, 4 * EPS)
        if not isinstance(scale, str):
            assert_close(found.covariance, unit * np.array(scale), 4 * EPS)
    one = rls.fit(GAUSSIAN, INPUT, OUTPUT[:, 0], **KEPT).posterior(FRESH)
    assert_close(np.sqrt(np.diagonal(one.covariance)), one.std, 4 * EPS)


WEIGHTS = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 100.0])


@pytest.mark.slow
def test_the_noise_of_a_new_label_is_that_of_its_weight():
    """A label of weight w has variance τ²(var f + λ/w), by generalised least squares, with and
    without landmarks, fixed effects and a stream that brings weights, at every door.
    """
    weights, columns = WEIGHTS.astype(DTYPE), draw(9, N + NEW, 1).astype(DTYPE)
    options = {"weights": V.astype(DTYPE), "fixed_effects": columns[:N]}
    found = fit(**options)
    K, v, B = gaussian(X, X), V, np.column_stack([np.ones(N), wide(columns[:N])])
    across, beside = gaussian(X_NEW, X), np.column_stack([np.ones(NEW), wide(columns[N:])])
    inverse = np.linalg.inv(K + LAM * np.diag(1 / v))
    shared = np.linalg.inv(B.T @ inverse @ B)
    slack = beside - across @ inverse @ B
    variance = 1 - np.sum(across @ inverse * across, axis=1) + np.sum(slack @ shared * slack, 1)
    want = np.sqrt(3 * (variance + LAM / WEIGHTS))[:, None] * np.ones(2)
    new = {"weights": weights, "fixed_effects": columns[N:], "scale": 3}
    assert_close(found.predict(FRESH, return_std=True, **new)[1], want, tolerance())
    assert_close(found.posterior(FRESH, **new).label_std, want, tolerance())
    inside = jax.jit(lambda w: found.posterior(FRESH, **{**new, "weights": w}).label_std)
    assert_close(inside(weights), want, tolerance())
    few = fit(landmarks=INPUT[:8], weights=V.astype(DTYPE))
    process, noise = few.posterior(FRESH), np.asarray(few.lam) / WEIGHTS[:, None]
    stream = rls.rows.stream(
        [(FRESH[:4], OUTPUT[:4], weights[:4]), (FRESH[4:], OUTPUT[4:6], weights[4:])]
    )
    want = np.sqrt(wide(process.std) ** 2 + wide(process.amplitude) ** 2 * noise)
    for given in ((FRESH, weights), (stream, None)):
        std = few.predict(given[0], return_std=True, weights=given[1])[1]
        assert_close(std, want, tolerance())
    model = RLSRegressor(GAUSSIAN, lams=[LAM], keep=True).fit(X, Y, sample_weight=V)
    plain = model.path_.predict(X_NEW, return_std=True, weights=WEIGHTS)
    asked = model.predict(X_NEW, return_std=True, sample_weight=WEIGHTS)
    assert_close(asked[1], plain[1], tolerance())


@FLOAT64
@pytest.mark.slow
def test_a_kernel_of_labels_is_a_mixed_model():
    """Variances are those of the largest restricted likelihood, by a search of its own, effects and
    values of the groups those of generalised least squares there, also for a group that is new.
    """
    rng, group = np.random.default_rng(4), np.arange(60) % 12
    B = np.column_stack([np.ones(60), group < 5, rng.normal(size=60)])
    y = B @ [1.0, 0.5, -2.0] + 0.8 * rng.normal(size=12)[group] + 0.5 * rng.normal(size=60)
    Z, labels = np.column_stack([rng.normal(size=60), group]), group[:, None] == np.arange(13)
    start = 1.0 * rls.Levels().on([1])
    found = rls.tune(
        start, Z, y, fixed_effects=B[:, 1:], criterion="evidence", standardize=True, steps=200
    )

    def gls(between, within):
        V = between * (labels @ labels.T) + within * np.eye(60)
        inverse = np.linalg.inv(V)
        cov = np.linalg.inv(B.T @ inverse @ B)
        beta = cov @ B.T @ inverse @ y
        volume = np.linalg.slogdet(V)[1] - np.linalg.slogdet(cov)[1]
        P = inverse - inverse @ B @ cov @ B.T @ inverse
        return volume + y @ P @ y, beta, cov, P

    best = minimize(lambda x: gls(*np.exp(x))[0], np.zeros(2), method="Nelder-Mead", tol=1e-10)
    variances = np.array([found.kernel.kernel.scale, found.lam])
    assert_close(variances, np.exp(best.x), 1e-3)
    _, beta, cov, P = gls(*variances)
    effects = found.effects(scale=1)
    assert_close(effects.mean, beta, 1e-9)
    assert_close(effects.covariance, cov, 1e-9)
    assert effects.names == ("intercept", "x0", "x1")
    a, new = variances[0], np.column_stack([np.zeros(13), np.arange(13)])
    beside = np.column_stack([np.ones(13), np.zeros((13, 2))])
    across = a * labels.T
    inverse = np.linalg.inv(a * (labels @ labels.T) + found.lam * np.eye(60))
    slack = beside - across @ inverse @ B
    posterior = found.posterior(new, scale=1, fixed_effects=beside[:, 1:])
    assert_close(posterior.mean, across @ P @ y + beta[0], 1e-9)
    assert_close(posterior.mean[12], beta[0], 1e-9)
    known = a * np.eye(13) - across @ inverse @ across.T
    assert_close(posterior.covariance, known + slack @ cov @ slack.T, 1e-9)


@ANY_PRECISION
@pytest.mark.slow
def test_variances_of_a_fit_that_held_out_groups_warn_once_unless_the_kernel_knows_of_them():
    group = np.arange(N) % 5
    rows = np.column_stack([INPUT, group]).astype(DTYPE)
    new = np.column_stack([FRESH, np.zeros(NEW)]).astype(DTYPE)
    for name in ("predict", "posterior", "effects"):
        ask = lambda fit, name=name: {
            "predict": lambda: fit.predict(new, return_std=True),
            "posterior": lambda: fit.posterior(new),
            "effects": fit.effects,
        }[name]()
        bare = rls.fit(GAUSSIAN.on([0, 1]), rows, OUTPUT, groups=group, **KEPT)
        with pytest.warns(UserWarning, match=r"held out groups: .* add 1.0 \* Levels\(\)"):
            ask(bare)
        ask(bare)
    knows = GAUSSIAN.on([0, 1]) + 0.5 * rls.Levels().on([2])
    ask(rls.fit(knows, rows, OUTPUT, groups=group, **KEPT))
    with_buffer = [(np.flatnonzero(group > k + 1), np.flatnonzero(group == k)) for k in range(3)]
    ask(rls.fit(GAUSSIAN.on([0, 1]), rows, OUTPUT, criterion=rls.kfold(with_buffer), **KEPT))


def test_samples_have_this_mean_and_covariance():
    found, num = fit().posterior(FRESH, scale=2), 20_000
    drawn = np.asarray(found.sample(jax.random.key(1), num))
    assert drawn.shape == (num, NEW, 2)
    covariance = np.asarray(found.covariance)[..., 0]
    width = np.sqrt(np.diag(covariance).max())
    assert np.abs(np.mean(drawn, axis=0) - found.mean).max() < 5 * width / num**0.5
    one, other = np.moveaxis(drawn - np.asarray(found.mean), 2, 0)
    off = [np.cov(one.T) - covariance, np.cov(other.T) - covariance, (one * other).mean(axis=0)]
    assert max(np.abs(each).max() for each in off) < 8 * width**2 / num**0.5


def test_many_rows_lose_no_digit_on_features():
    """Where the variance is a millionth of the prior's: a difference would be wrong by a tenth in
    float32.
    """
    many = draw(7, 20_000, 3)
    rows, new = many.astype(np.float32), np.pad(X_NEW[:, :1], ((0, 0), (0, 2)))
    options = {"lams": [0.02], "intercept": False, "keep": True}
    found = rls.fit(rls.Linear(), rows, rows[:, 0], **options)
    want = 0.02 * new @ np.linalg.inv(many.T @ many + 0.02 * np.eye(3)) @ new.T
    new = new.astype(np.float32)
    assert_close(found.posterior(new, scale=1).covariance, want, 1e-4)


@pytest.mark.slow
def test_after_rows_have_come_or_gone():
    """By the moments alone; what is left out is not known any more."""
    options = {"landmarks": INPUT[:8], "keep": True}
    found = fit(rows=slice(15), **options).update(INPUT[15:], OUTPUT[15:])
    again = fit(**options)
    pairs = (each.predict(FRESH, return_std=True) for each in (found, again))
    for one, other in zip(*pairs, strict=True):
        assert_close(one, other, 100 * tolerance())
    changed = "scale='loo' needs all rows, which a fit does not have after update"
    refused((lambda: found.posterior(FRESH, scale="loo"), changed))


@pytest.mark.slow
def test_streams():
    parts = [(INPUT[:9], OUTPUT[:9]), (INPUT[9:], OUTPUT[9:])]
    found = rls.fit(GAUSSIAN, rls.rows.stream(parts), landmarks=INPUT[:8], **KEPT)
    again = fit(landmarks=INPUT[:8])
    new = rls.rows.stream([(FRESH[:4],), (FRESH[4:],)])
    for scale in ("evidence", "loo"):
        std = found.predict(new, return_std=True, scale=scale)[1]
        assert_close(std, again.predict(FRESH, return_std=True, scale=scale)[1], tolerance())


@FLOAT64
@pytest.mark.slow
def test_the_slope_of_deviations():
    """Inside of jit."""

    @jax.jit
    @jax.value_and_grad
    def narrow(width):
        kept = rls.fit(rls.Gaussian(width), X, Y[:, 0], solver=rls.Cholesky(), **KEPT)
        return kept.predict(X_NEW, return_std=True)[1].sum()

    ahead, behind = narrow(WIDTH + 1e-4)[0], narrow(WIDTH - 1e-4)[0]
    assert_close(narrow(WIDTH)[1], (ahead - behind) / 2e-4, 1e-6)


@pytest.mark.slow
def test_a_kernel_matrix_takes_the_diagonal_of_new_rows():
    K, between = (gaussian(A, X).astype(DTYPE) for A in (X, X_NEW))
    want = fit().predict(FRESH, return_std=True)
    found = rls.fit(rls.Precomputed(), K, OUTPUT, **KEPT)
    for a, b in zip(found.predict(between, return_std=True, diag=np.ones(NEW)), want, strict=True):
        assert_close(a, b, tolerance())
    few = rls.fit(rls.Precomputed(), K, OUTPUT, landmarks=np.arange(8), **KEPT)
    want = fit(landmarks=np.arange(8)).predict(FRESH, return_std=True)[1]
    found = few.predict(between[:, :8], return_std=True, diag=np.ones(NEW, DTYPE))[1]
    assert_close(found, want, tolerance())


def test_what_a_posterior_refuses():
    scale = "scale must be 'evidence', 'loo' or a positive number, .* is "
    K = gaussian(X, X).astype(DTYPE)
    posterior = lambda X=FRESH, **options: lambda: fit().posterior(X, **options)
    deviations = lambda **options: lambda: fit(**options).predict(INPUT, return_std=True)
    weighted = lambda v: lambda: fit().predict(FRESH, return_std=True, weights=v)
    diagonal = lambda **named: lambda: fit().predict(INPUT, diag=np.ones(N), **named)
    refused(
        (posterior(scale="median"), f"{scale}'median'"),
        (posterior(scale=0.0), f"{scale}0.0"),
        (posterior(FRESH[:, :1]), "X must have 2 columns, the columns it was fitted on, and has 1"),
        (posterior(FRESH * np.nan), "X holds 12 values that are NaN or infinite"),
        (deviations(per_target=True), "variances need one λ, and this fit has one for each target"),
        (
            lambda: rls.fit(rls.Precomputed(), K, OUTPUT, **KEPT).posterior(K[:2]),
            "variances need k.x, x. of new rows, which",
        ),
        (weighted(np.arange(NEW)), "weights of new rows must be positive, and the smallest is 0"),
        (weighted(V), r"weights must have shape \(6,\), one per row, and has shape \(24,\)"),
        (lambda: fit().predict(FRESH, weights=np.ones(NEW)), "weights=, .* pass return_std=True"),
        (diagonal(return_std=True), "a kernel that knows it takes no diag="),
        (diagonal(), "pass return_std=True, or leave"),
    )
