"""The search: it reaches what a grid reaches, never loses ground, says why it stopped, and takes
what it is given.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
from support import ANY_PRECISION, DTYPE, EDGE, FLOAT64, NEAR_FLOOR, X64, assert_close, refused

import jaxrls as rls
from jaxrls.core.support import progress_bar
from jaxrls.front import descent


@pytest.fixture(autouse=True)
def optax_promotes():
    """optax's L-BFGS mixes integer types, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


GAUSSIAN = rls.Gaussian(1.0)


def problem():
    n, rng = 40, np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n, 3)).astype(DTYPE)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)
    return X, y.astype(DTYPE)


@EDGE  # of the grid's wide kernels
@NEAR_FLOOR
def test_reaches_the_best_of_a_grid():
    X, y = problem()
    tuned = rls.tune(rls.Gaussian(5.0), X, y)
    grid = min(float(rls.fit(rls.Gaussian(w), X, y).error) for w in np.geomspace(0.3, 10, 15))
    assert tuned.error <= grid * (1 + (1e-6 if X64 else 1e-3))
    assert tuned.error < tuned.history.start_error
    assert tuned.history.converged == (tuned.history.reason == "gradient norm below tol")
    again = jax.jit(rls.objective)(tuned.kernel, X, y, tuned.lam)
    assert_close(again, tuned.error, 1e-9 if X64 else 1e-3)
    history = tuned.history
    parts = history.errors, history.lams, history.kernels.width, history.gradient_norms
    assert len(set(map(len, parts))) == 1
    assert tuned.error == history.errors.min() and tuned.errors.tolist() == [tuned.error]
    refit = rls.fit(tuned.kernel, X, y, lams=[float(tuned.lam)])
    close = 1e-6 if X64 else 1e-2
    np.testing.assert_allclose(tuned.predict(X[:5]), refit.predict(X[:5]), close, close)


@pytest.mark.slow
def test_criteria_and_progress(capsys):
    """Of two targets, with weights; of rows held out, on landmarks, and a function of one's own."""
    X, y = problem()
    Y, v = np.stack([y, -y], axis=1), np.linspace(0.5, 2, 40).astype(DTYPE)
    held = {"criterion": rls.holdout(X[::2] + DTYPE(0.1), Y[::2]), "landmarks": 10}
    own = {"criterion": lambda factor, Y, lams: rls.loo(factor, Y, lams) + 1}
    options = {"weights": v, "start": "kernel", "steps": 8}
    for given, progress in ((held, True), (own, False)):
        tuned = rls.tune(rls.Gaussian(4.0), X, Y, progress=progress, **options, **given)
        said = capsys.readouterr().err
        assert ("tune" in said) == progress == bool(said)
        assert ("a first call compiles" in said) == progress
        assert ("landmarks: 100%" in said) == progress
        assert tuned.error < tuned.history.start_error and tuned.predict(X).shape == (40, 2)


def test_several_starts_from_the_data():
    X, y = problem()
    tune = lambda **options: rls.tune(rls.Gaussian(1e3), X, y, start="data", steps=10, **options)
    drawn = {"starts": 4, "key": jax.random.key(0)}
    one, many, again = tune(), tune(**drawn), tune(**drawn)
    assert many.error <= one.error * (1 + (1e-6 if X64 else 1e-3))
    assert many.error == again.error


@pytest.mark.slow
def test_offset_of_zero_stays_and_parameters_of_functions_may_be_negative():
    X, y = problem()
    tuned = rls.tune(rls.Polynomial(2, offset=0.0), X, y, start="kernel", steps=3)
    assert tuned.kernel.offset == 0

    def bend(params, X):
        return jnp.concatenate([X, jnp.sin(params[0] * X[:, :1] + params[1])], axis=1)

    features = rls.FeatureMap(bend, np.array([1.5, -0.2], DTYPE))
    tuned = rls.tune(features, X, y, start="kernel", steps=20)
    assert tuned.error < 0.5 * tuned.history.start_error
    assert tuned.predict(X[:3]).shape == (3,)


@NEAR_FLOOR
def test_a_search_that_leaves_does_not_count_as_converged():
    """Steps so large that the error no longer depends on anything: the gradient vanishes there,
    which is no minimum.
    """
    X, y = problem()
    options = {"optimizer": optax.sgd(1e4), "start": "kernel", "steps": 5, "tol": 2e-3}
    tuned = rls.tune(GAUSSIAN, X, y, **options)
    assert tuned.history.gradient_norms[-1] <= 2e-3 and tuned.history.errors[-1] > 1.5 * tuned.error
    assert tuned.error <= tuned.history.start_error
    left = "the search left for where the gradient vanishes or is not finite"
    assert not tuned.history.converged and tuned.history.reason == left


def test_a_lam_below_the_precision_of_the_kernel_matrix_warns():
    """Where it is given: the search stays above."""
    X, y = problem()
    given = "of the kernel matrix, .*: the search starts above it"
    with pytest.warns(UserWarning, match=given):
        tuned = rls.tune(rls.Gaussian(5.0), X, y, lams=[1e-30], steps=1)
    assert tuned.lam > tuned.floor


@ANY_PRECISION
def test_errors():
    X, y = problem()
    named = {"kernel": GAUSSIAN, "X": X, "Y": y}
    call = lambda **options: lambda: rls.tune(**named | options)
    whole, key = "must be a whole number of at least 1", r"key=jax\.random\.key\(0\)"
    start = "start must be 'screen', 'kernel' or 'data', and is 'middle'"
    flat = rls.extend.LeaveOneOut(rls.classes.zero_one_loss)
    refused(
        (call(steps=0), f"steps {whole}, and is 0"),
        (call(starts=1.5), f"starts {whole}, and is 1.5"),
        (
            call(optimizer="adam"),
            r"optimizer must be one of optax's, such as optax.adam\(0.1\), and is 'adam'",
        ),
        (call(starts=2, key=0), r"key must be one such as jax\.random\.key\(0\), and is a int"),
        (call(starts=2), f"pass {key}"),
        (call(start="middle"), start),
        (call(tol=0), "tol must be a number above 0"),
        (call(landmarks="auto"), "landmarks='auto' tries their number"),
        (call(criterion="aic"), "criterion must be one of"),
        (call(criterion=flat, Y=np.sign(y)), "zero_one_loss has derivative 0"),
        (call(X=scipy.sparse.csr_array(X)), r"tune needs a dense X: pass X.toarray\(\)"),
        (
            lambda: jax.jit(lambda X: rls.tune(GAUSSIAN, X, jnp.asarray(y)).error)(X),
            "use objective with an optimiser",
        ),
    )


def test_a_bar_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    begun = lambda: progress_bar(True, 3, "tune", "step").__enter__()
    refused((begun, "progress=True needs tqdm"), error=ImportError)


@FLOAT64
def test_float64_without_the_switch():
    X, y = problem()
    with jax.enable_x64(False):
        tuned = rls.tune(GAUSSIAN, X, y, steps=3)
    assert tuned.error.dtype == np.float64
    assert isinstance(tuned.kernel.width, np.ndarray)


@FLOAT64
@pytest.mark.parametrize(
    "landmarks",
    [
        pytest.param(None, id="all rows"),
        pytest.param(np.arange(0, 40, 4), id="landmarks", marks=pytest.mark.slow),
    ],
)
def test_the_derivative_in_a_weight_of_0_is_0(landmarks):
    X, y = map(jnp.asarray, problem())
    error = lambda v: rls.objective(GAUSSIAN, X, y, 0.1, weights=v, landmarks=landmarks)
    slope = jax.jit(jax.grad(error))(jnp.ones(40).at[3].set(0))
    assert slope[3] == 0 and np.isfinite(slope).all() and (slope != 0).sum() == 39


@pytest.mark.slow
def test_degenerate_problems():
    X, y = problem()
    with pytest.warns(UserWarning, match="the labels are all equal"):
        assert rls.tune(GAUSSIAN, X, np.ones(40, DTYPE), steps=2).error < 1e-9
    K = np.asarray(rls.extend.gram(GAUSSIAN, jnp.asarray(X)))
    weights = (np.arange(40) % 5 > 0).astype(DTYPE)
    assert np.isfinite(rls.tune(rls.Precomputed(), K, y, weights=weights, steps=2).error)


@pytest.mark.slow
@FLOAT64
def test_the_evidence_of_few_rows_is_tuned_to_its_best():
    """As a fine grid of widths and λ finds it, from the restricted likelihood in NumPy: searches
    ended six nats above, or on a plateau after no step.
    """
    n = 12
    for seed, scale, noise in ((0, 1, 0.3), (3, 1, 1.0), (7, 0.1, 1.0)):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, size=(n, 2))
        y = scale * (np.sin(2 * X[:, 0]) + noise * rng.normal(size=n))
        distances = ((X[:, None] - X[None]) ** 2).sum(axis=-1)
        widths = np.geomspace(0.02, 80, 60)[:, None, None]
        s, U = np.linalg.eigh(np.exp(-distances / (2 * widths**2)))
        s = s[:, None] + np.geomspace(1e-4, 1e3, 100)[:, None]
        one, z = (np.einsum("i,wij->wj", a, U)[:, None] for a in (np.ones(n), y))
        volume = np.sum(one**2 / s, axis=-1)
        fit = np.sum(z**2 / s, axis=-1) - np.sum(one * z / s, axis=-1) ** 2 / volume
        logs = np.sum(np.log(s), axis=-1) + np.log(volume) + (n - 1) * np.log(2 * np.pi)
        tuned = rls.tune(rls.Gaussian(1.0), X, y, criterion="evidence")
        assert float(tuned.error) <= (0.5 * (fit + logs)).min() + 0.02, seed


@pytest.mark.slow
def test_padding_counts_for_nothing_in_a_search_by_evidence(monkeypatch):
    """Of 80 rows, which are padded to 128, it begins twice, as up to 100 rows, and its gradients
    are those of the evidence, in nats, over 80.
    """
    walks, plain = [], descent._walked
    watched = lambda walk: walks.append(walk.options.tol) or plain(walk)
    monkeypatch.setattr(descent, "_walked", watched)
    X = np.random.default_rng(0).normal(size=(80, 2)).astype(DTYPE)
    y = X[:, 0] + np.random.default_rng(1).normal(size=80).astype(DTYPE)
    options = {"criterion": "evidence", "steps": 1}
    history = rls.tune(rls.Gaussian(30.0), X, y, **options).history
    assert len(walks) == 2
    profiled = rls.extend.Evidence("evidence")

    def nats(logs):
        kernel = rls.Gaussian(jnp.exp(logs[0]))
        return rls.objective(kernel, X, y, jnp.exp(logs[1]), criterion=profiled)

    place = jnp.log(jnp.stack([history.kernels.width[0], history.lams[0]]))
    want = np.abs(jax.jit(jax.grad(nats))(place)).max() / 80
    assert_close(history.gradient_norms[0], want, 1e-6 if X64 else 0.05)
    assert_close(walks[0], max(2e-3 / 80, np.finfo(DTYPE).eps ** 0.5), 10 * np.finfo(DTYPE).eps)


@pytest.mark.slow
@FLOAT64
def test_the_evidence_of_random_intercepts_is_that_of_analysis_of_variance():
    """REML of g groups of m rows has a closed form; on more than 100 rows searches ended early."""
    g, m = 40, 5
    group, rng = np.repeat(np.arange(g), m), np.random.default_rng(0)
    y = 0.7 * rng.normal(size=g)[group] + rng.normal(size=g * m)
    means = y.reshape(g, m).mean(axis=1)
    within = np.sum((y - means[group]) ** 2) / (g * m - g)
    between = (m * np.var(means, ddof=1) - within) / m
    start, X = 1.0 * rls.Levels(), group[:, None].astype(float)
    fit = rls.tune(start, X, y, criterion="evidence")
    assert_close(fit.kernel.scale, between, 1e-3)
    assert_close(fit.lam, within, 1e-3)
