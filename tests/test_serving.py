"""What the page on serving says of processes and of numbers of rows, in fresh processes."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support import COMPILED, DTYPE, EPS, FRESH
from test_readme import PAGES, blocks

import jaxrls as rls
from jaxrls.front import model as models

pytestmark = pytest.mark.any_precision  # fresh processes
POOL, HOOK = blocks("py", PAGES["docs/serving.md"])
# A parent that loads, and a child that is forked and does as the hook of the page says.
FORKED = """
import os, service, jaxrls as rls
from gunicorn_conf import post_fork
service.model = rls.load("model.safetensors")
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
post_fork(None, None)
print(service.model.predict([[0.0] * 5] * 3).shape, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_workers_answer_and_find_what_others_compiled(tmp_path):
    """A pool that is started by `spawn`, and a worker that is forked; a second run compiles nothing
    that is worth keeping.
    """
    X, y, _ = rls.airfoil()
    rls.save(tmp_path / "model.safetensors", rls.fit(rls.Gaussian(2.0), X[:50], y[:50]).model)
    texts = {"serve": POOL, "gunicorn_conf": HOOK, "service": "model = None", "forked": FORKED}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    programs = tmp_path / "programs"
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment = FRESH | kept | {"PYTHONPATH": str(Path(rls.__file__).parents[1])}

    def said(name):
        words = [sys.executable, f"{name}.py"]
        options = {"capture_output": True, "text": True, "timeout": 300}
        result = subprocess.run(words, cwd=tmp_path, env=environment, **options)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("\n")[:-1]

    assert said("serve") == ["(1,)", "(3,)", "(8,)"]
    before = {path.name for path in programs.iterdir() if path.name.endswith("-cache")}
    assert before
    assert said("serve") == ["(1,)", "(3,)", "(8,)"]
    assert said("forked") == ["(3,)"]
    assert {path.name for path in programs.iterdir() if path.name.endswith("-cache")} == before


def test_numbers_of_rows_that_are_compiled_for():
    sizes = [models.common_number(m) for m in range(1, 8193)]
    powers = [*2 ** np.arange(13)]
    assert sorted({*sizes}) == [*powers, 5120, 6144, 7168, 8192]
    assert all(size >= m for m, size in enumerate(sizes, 1))
    assert models.LARGEST_PART == 32_768


RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(DTYPE)
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
KIND = np.arange(40) % 3
SLOPE = np.cos(X[:, :1])
V = RNG.uniform(0.5, 2, 40)
GAUSSIAN = rls.Gaussian(2.0)
K = GAUSSIAN(X, X)
# For each fit: kernel and rows, its options, and what the calls need for each row.
FITS = {
    "standardized": (GAUSSIAN, X, {"standardize": True}, {}),
    "two kernels": (GAUSSIAN.on([0, 1]) + rls.Linear(), X, {}, {}),
    "levels": (GAUSSIAN, X, {"fixed_effects": rls.levels(KIND)}, {"fixed_effects": KIND}),
    "columns": (GAUSSIAN, X, {"fixed_effects": SLOPE}, {"fixed_effects": SLOPE}),
    "levels and columns": (
        GAUSSIAN,
        X,
        {"fixed_effects": [rls.levels(KIND), SLOPE]},
        {"fixed_effects": [KIND, SLOPE]},
    ),
    "matrix": (rls.Precomputed(), np.asarray(K), {}, {}),
}


def first(given, m):
    """The first m of all rows."""
    return [part[:m] for part in given] if isinstance(given, list) else given[:m]


def compiles_for_few_sizes(answer):
    """After calls with 4 and 8 rows, calls with other numbers compile nothing, and each row has the
    values that it has among 8, which are not padded.
    """
    answer(4)
    whole = [np.asarray(part) for part in answer(8)]
    COMPILED.clear()
    for m in (3, 5, 7):
        for found, want in zip(answer(m), whole, strict=True):
            np.testing.assert_allclose(found, want[:m], rtol=1e5 * EPS)
    assert COMPILED == []


def asked(name, call, **of_rows):
    """A call of a fit as a function of the number of rows."""
    kernel, rows, options, more = FITS[name]
    fit = rls.fit(kernel, rows, Y, lams=[0.1], **options)
    more = more | of_rows
    return lambda m: call(fit, rows[:m], **{key: first(part, m) for key, part in more.items()})


@pytest.mark.parametrize("name", FITS)
def test_predictions_compile_for_few_numbers_of_rows(name):
    compiles_for_few_sizes(asked(name, lambda fit, x, **more: [fit.predict(x, **more)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_deviations_compile_for_few_numbers_of_rows(name):
    diag = {"diag": np.ones(40)} if name == "matrix" else {}
    deviations = lambda fit, x, **more: fit.predict(x, return_std=True, **more)
    compiles_for_few_sizes(asked(name, deviations, weights=V, **diag))


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_intervals_compile_for_few_numbers_of_rows(name):
    compiles_for_few_sizes(asked(name, rls.extend.Fit.intervals, weights=V))


@pytest.mark.slow
def test_a_posterior_compiles_one_program_for_a_number_of_rows():
    covariance = asked("levels", lambda fit, x, **more: fit.posterior(x, **more).unit_covariance)
    whole = np.asarray(covariance(8))
    COMPILED.clear()
    np.testing.assert_allclose(covariance(5), whole[:5, :5], rtol=1e5 * EPS)
    assert COMPILED == ["jit(_covariance)"]


@pytest.mark.slow
def test_probabilities_and_sets_compile_for_few_numbers_of_rows():
    pytest.importorskip("sklearn")
    from jaxrls.sklearn import RLSClassifier

    machine = RLSClassifier(GAUSSIAN, lams=0.1, probability="sigmoid").fit(X, KIND)
    compiles_for_few_sizes(lambda m: [machine.predict_proba(X[:m])])
    compiles_for_few_sizes(lambda m: [machine.predict_set(X[:m])])
    compiles_for_few_sizes(lambda m: [machine.predict_set(X[:m], method="jackknife")])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["standardized", "levels"])
@pytest.mark.parametrize("criterion", ["loo", "gcv"])
def test_updates_compile_for_few_numbers_of_rows(name, criterion):
    """Arrays of JAX are not padded, and give the same fit."""
    _, _, options, more = FITS[name]
    few = rls.fit(rls.Linear(), X, Y, criterion=criterion, **options)
    part = lambda m, x=np.asarray: (
        {"X": x(X[:m]), "Y": Y[:m]} | {key: first(given, m) for key, given in more.items()}
    )
    for m in (4, 8):
        few.update(**part(m)).update(**part(m)).forget(**part(m))
    COMPILED.clear()
    found = few.update(**part(3)).update(**part(5)).forget(**part(7))
    assert COMPILED == []
    want = few.update(**part(3, jnp.asarray)).update(**part(5, jnp.asarray))
    want = want.forget(**part(7, jnp.asarray))
    for number in ("lam", "prequential_error", "dof"):
        np.testing.assert_allclose(getattr(found, number), getattr(want, number), rtol=1e5 * EPS)
    np.testing.assert_allclose(found.model.coef, want.model.coef, rtol=1e5 * EPS)
    if criterion == "gcv":
        np.testing.assert_allclose(found.errors, want.errors, rtol=1e5 * EPS)
    few.update(**part(4), weights=V[:4])
    COMPILED.clear()
    few.update(**part(3), weights=V[:3])
    assert len(COMPILED) <= 3


def test_fits_compile_for_few_numbers_of_rows():
    """A fit with standardized columns compiles their moments for each number."""
    for options, programs in ({}, []), ({"standardize": True}, ["jit(_centre_and_scale)"]):
        for n in (30, 35):
            COMPILED.clear()
            rls.fit(GAUSSIAN, X[:n], Y[:n], lams=[0.1], **options)
        assert programs == COMPILED


@pytest.mark.slow
def test_an_estimator_without_its_solution_is_as_small_as_its_peer():
    ridge = pytest.importorskip("sklearn.kernel_ridge").KernelRidge
    from jaxrls.sklearn import RLSRegressor

    X = np.random.default_rng(0).normal(size=(500, 40))
    peer = ridge(kernel="rbf").fit(X, X[:, 0])
    ours = RLSRegressor(lams=1.0, keep=False).fit(X, X[:, 0])
    assert len(pickle.dumps(ours)) < 1.2 * len(pickle.dumps(peer))
    assert len(pickle.dumps(ours.path_.model)) < 1.1 * len(pickle.dumps(peer))


@pytest.mark.slow
def test_threads_may_share_a_model():
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = rls.extend.Model(rls.Gaussian(1.5), X, X[:, 0], np.array(0.5))
    squares = ((X[:, None] - X) ** 2).sum(axis=2)
    want = np.exp(-squares / 4.5) @ X[:, 0] + 0.5
    starts = [i for i in range(30) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda i: model.predict(X[i : i + 1 + i % 5]), starts))
    for i, part in zip(starts, told, strict=True):
        np.testing.assert_allclose(part, want[i : i + 1 + i % 5], rtol=1e-10)
