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
from support import DTYPE, X64, assert_close

import jaxrls as rls
from jaxrls.support.pictures import progress_bar


@pytest.fixture(autouse=True)
def optax_promotes():
    """optax's L-BFGS mixes integer types, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def problem(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 3)).astype(DTYPE)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)
    return X, y.astype(DTYPE)


@pytest.mark.filterwarnings("ignore:the chosen λ")  # of the grid's wide kernels
def test_reaches_the_best_of_a_grid():
    X, y = problem()
    tuned = rls.tune(rls.Gaussian(5.0), X, y)
    grid = min(float(rls.fit(rls.Gaussian(w), X, y).error) for w in np.geomspace(0.3, 10, 15))
    assert tuned.error <= grid * (1 + (1e-6 if X64 else 1e-3))
    assert tuned.error < tuned.history.start_error
    assert tuned.history.converged == (tuned.history.reason == "gradient norm below tol")
    again = rls.objective(tuned.kernel, jnp.asarray(X), jnp.asarray(y), tuned.lam)
    assert_close(again, tuned.error, 1e-9 if X64 else 1e-3)
    assert (
        len(tuned.history.errors)
        == len(tuned.history.lams)
        == len(tuned.history.kernels.width)
        == len(tuned.history.gradient_norms)
    )
    assert tuned.error == tuned.history.errors.min()
    refit = rls.fit(tuned.kernel, X, y, lams=[float(tuned.lam)])
    np.testing.assert_allclose(
        tuned.predict(X[:5]),
        refit.predict(X[:5]),
        rtol=1e-6 if X64 else 1e-2,
        atol=1e-6 if X64 else 1e-2,
    )


def test_a_width_per_column_finds_the_relevant_columns():
    X, y = problem()
    one, each = rls.tune(rls.Gaussian(1.0), X, y), rls.tune(rls.Gaussian(np.ones(3, DTYPE)), X, y)
    assert each.error < one.error
    assert each.kernel.width[2] > 3 * each.kernel.width[0]


def test_weights_of_several_kernels():
    """Banded ridge: the multiple of a kernel on irrelevant columns goes towards 0."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 22)).astype(DTYPE)
    y = (X[:, 0] - X[:, 1] + 0.5 * rng.normal(size=40)).astype(DTYPE)
    tuned = rls.tune(1.0 * rls.Linear().on([0, 1]) + 1.0 * rls.Linear().on(range(2, 22)), X, y)
    assert tuned.kernel.right.scale < 0.1 * tuned.kernel.left.scale


@pytest.mark.parametrize("criterion", ["holdout", "own"])
def test_criteria(criterion):
    """Of two targets, with weights."""
    X, y = problem()
    Y, v = np.stack([y, -y], axis=1), np.linspace(0.5, 2, 40).astype(DTYPE)
    options = {
        "holdout": {"criterion": rls.holdout(X[::2] + DTYPE(0.1), Y[::2])},
        "own": {"criterion": lambda factor, Y, lams: rls.loo(factor, Y, lams) + 1},
    }[criterion]
    tuned = rls.tune(rls.Gaussian(4.0), X, Y, weights=v, steps=8, **options)
    assert tuned.error < tuned.history.start_error and tuned.predict(X).shape == (40, 2)


def test_several_starts_from_the_data():
    X, y = problem()
    options = {"start": "data", "steps": 10}
    one = rls.tune(rls.Gaussian(1e3), X, y, **options)
    many = rls.tune(rls.Gaussian(1e3), X, y, starts=4, key=jax.random.key(0), **options)
    again = rls.tune(rls.Gaussian(1e3), X, y, starts=4, key=jax.random.key(0), **options)
    assert many.error <= one.error * (1 + (1e-6 if X64 else 1e-3))
    assert many.error == again.error


def test_offset_of_zero_stays_and_parameters_of_functions_may_be_negative():
    X, y = problem()
    tuned = rls.tune(rls.Polynomial(2, offset=0.0), X, y, steps=3)
    assert tuned.kernel.offset == 0

    def bend(params, X):
        return jnp.concatenate([X, jnp.sin(params[0] * X[:, :1] + params[1])], axis=1)

    tuned = rls.tune(rls.FeatureMap(bend, np.array([1.5, -0.2], DTYPE)), X, y, steps=20)
    assert tuned.error < 0.5 * tuned.history.start_error
    assert tuned.predict(X[:3]).shape == (3,)


def test_any_optimiser_and_a_search_that_leaves_does_not_count_as_converged():
    """Steps so large that the error no longer depends on anything: the gradient vanishes there,
    which is no minimum.
    """
    X, y = problem(n=20)
    tuned = rls.tune(rls.Gaussian(1.0), X, y, optimizer=optax.adam(0.01), steps=5)
    assert tuned.error < tuned.history.start_error and tuned.history.reason == "all 5 steps used"
    tuned = rls.tune(
        rls.Gaussian(1.0), X, y, optimizer=optax.sgd(1e4), start="kernel", steps=5, tol=2e-3
    )
    assert tuned.history.gradient_norms[-1] <= 2e-3 and tuned.history.errors[-1] > 1.5 * tuned.error
    assert tuned.error <= tuned.history.start_error
    assert (
        not tuned.history.converged
        and tuned.history.reason
        == "the search left for where the gradient vanishes or is not finite"
    )


def test_a_lam_below_the_precision_of_the_kernel_matrix_warns():
    X, y = problem(n=20)
    with pytest.warns(
        UserWarning,
        match="is below the precision of the kernel matrix, .*: the search starts above it",
    ):
        rls.tune(rls.Gaussian(5.0), X, y, lams=[1e-30], steps=1)


@pytest.mark.any_precision
def test_progress(capsys):
    pytest.importorskip("tqdm", reason="progress bars need tqdm")
    X, y = problem(n=20)
    for progress in (False, True):
        rls.tune(rls.Gaussian(1.0), X, y, steps=2, landmarks=10, progress=progress)
        said = capsys.readouterr().err
        assert ("tune" in said) == ("landmarks: 100%" in said) == progress == bool(said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, and is 0"),
        ({"starts": 1.5}, "starts must be a whole number of at least 1, and is 1.5"),
        (
            {"optimizer": "adam"},
            r"optimizer must be one of optax's, such as optax.adam\(0.1\), and is 'adam'",
        ),
        (
            {"starts": 2, "key": 0},
            r"key must be one such as jax\.random\.key\(0\), and is 0",
        ),
        (
            {"landmarks": 21},
            (
                "landmarks, as their number, must be a whole number of at "
                "least 1 and at most 20, and is 21"
            ),
        ),
        ({"landmarks": np.arange(20) < 3}, r"landmarks must be row numbers \(m,\)"),
        ({"starts": 2}, r"pass key=jax\.random\.key\(0\)"),
        ({"start": "middle"}, "start must be 'screen', 'kernel' or 'data', and is 'middle'"),
        ({"lams": [-1.0]}, "lams must be positive"),
        ({"lams": 1.0}, r"lams must have shape \(L,\), and has shape \(\)"),
        ({"tol": 0}, "tol must be a number above 0"),
        ({"landmarks": "auto"}, "landmarks must be a number"),
        ({"landmarks": [20]}, "include 20"),
        ({"criterion": "aic"}, "criterion must be one of"),
        ({"weights": np.eye(20)[0].astype(DTYPE)}, "row 0 holds all of the weight"),
        ({"criterion": rls.LeaveOneOut(rls.zero_one_loss)}, "zero_one_loss has derivative 0"),
        (
            {"X": scipy.sparse.csr_array(problem(20)[0])},
            r"tune needs a dense X: pass X.toarray\(\)",
        ),
    ],
)
def test_errors(options, message, unchecked):
    X, y = problem(n=20)
    with pytest.raises(ValueError, match=message):
        rls.tune(**{"kernel": rls.Gaussian(1.0), "X": X, "Y": y, **options})


def test_a_bar_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with (
        pytest.raises(ImportError, match="progress=True needs tqdm"),
        progress_bar(True, 3, "tune", "step"),
    ):
        pass


def test_inside_jit():
    X, y = problem(n=20)
    with pytest.raises(ValueError, match="use objective with an optimiser"):
        jax.jit(lambda X: rls.tune(rls.Gaussian(1.0), X, jnp.asarray(y)).error)(jnp.asarray(X))


@pytest.mark.float64
def test_float64_without_the_switch():
    X, y = problem(n=20)
    with jax.enable_x64(False):
        tuned = rls.tune(rls.Gaussian(1.0), X, y, steps=3)
    assert tuned.error.dtype == np.float64
    assert isinstance(tuned.kernel.width, np.ndarray)


@pytest.mark.float64
@pytest.mark.parametrize("landmarks", [None, np.arange(0, 20, 2)], ids=["all rows", "landmarks"])
def test_the_derivative_in_a_weight_of_0_is_0(landmarks):
    X, y = map(jnp.asarray, problem(n=20))
    error = lambda v: rls.objective(rls.Gaussian(1.0), X, y, 0.1, weights=v, landmarks=landmarks)
    slope = jax.jit(jax.grad(error))(jnp.ones(20).at[3].set(0))
    assert slope[3] == 0 and np.isfinite(slope).all() and (slope != 0).sum() == 19


def test_degenerate_problems():
    X, y = problem(n=20)
    assert rls.tune(rls.Gaussian(1.0), X, np.ones(20, DTYPE), steps=2).error < 1e-9
    K = np.asarray(rls.gram(rls.Gaussian(1.0), jnp.asarray(X)))
    weights = (np.arange(20) % 5 > 0).astype(DTYPE)
    assert np.isfinite(rls.tune(rls.Precomputed(), K, y, weights=weights, steps=2).error)
