"""Bytes said before a call are those of the call within a factor of 2, what will not fit is
refused, and what takes more is said to.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, DTYPE, FLOAT64, refused

import jaxrls as rls

KERNEL, LINEAR, N = rls.Gaussian(2.0), rls.Linear(), 2000
LAMS = jnp.geomspace(0.1, 1, 100)


def loo(lams=LAMS, **options):
    return lambda X, Y: rls.loo(rls.factorize(KERNEL, X, **options), Y, lams.astype(X.dtype))


def gradient(**options):
    return jax.value_and_grad(lambda X, Y: rls.objective(KERNEL, X, Y, 0.1, **options))


def held(fn) -> int:
    """Bytes that XLA's own analysis says of a program, beside X and Y."""
    shapes = (jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype) for shape in ((N, 3), (N,)))
    found = jax.jit(fn).lower(*shapes).compile().memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes


CHOLESKY, FEW, SLOPE = {"solver": rls.Cholesky()}, {"landmarks": jnp.arange(400)}, "gradient"
PAIRS, TENS = (
    rls.ranking.PairsOut(loss=rls.extend.squared_error),
    rls.kfold(rls.folds(np.arange(N) // 10)),
)
PROGRAMS = {
    "gram": (loo(), {}),
    "cholesky gram": (loo(LAMS[:1], **CHOLESKY), {"lams": 1, **CHOLESKY}),
    "subset": (loo(**FEW), {"landmarks": 400}),
    "gradient": (gradient(), {"call": SLOPE}),
    "gradient, landmarks": (gradient(**FEW), {"call": SLOPE, "landmarks": 400}),
    "gradient, pairs": (gradient(criterion=PAIRS), {"call": SLOPE, "pairs": True}),
    "gradient, groups": (gradient(criterion=TENS), {"call": SLOPE, "groups": 10}),
}


@ANY_PRECISION
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "gradient" in name else [])
        for name in PROGRAMS
    ],
)
def test_bytes_are_those_of_the_compiled_program(name):
    fn, options = PROGRAMS[name]
    said = rls.memory(KERNEL, (N, 3), dtype=jnp.zeros(()).dtype, **options)
    workspace = 2 * N**2 * jnp.zeros(()).dtype.itemsize * (name == "gram")  # of LAPACK's syevd
    ratio = said.bytes / (held(fn) + workspace)
    assert 0.5 < ratio < 2, ratio


@FLOAT64  # which follows from shapes
@pytest.mark.parametrize(
    ("kernel", "d", "options", "said"),
    [
        (KERNEL, 3, {}, {}),
        (KERNEL, 3, {"lams": [0.1, 1.0, 10.0]}, {"lams": 3}),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in (
                (KERNEL, 3, {"landmarks": np.arange(10)}, {"landmarks": 10}),
                (LINEAR, 20, {}, {}),
                (LINEAR, 90, {}, {}),
                (LINEAR, 20, {"lams": [1.0], **CHOLESKY}, {"lams": 1, **CHOLESKY}),
            )
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the chosen λ", "ignore:λ below")
def test_the_route_is_the_one_that_is_taken(kernel, d, options, said):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, d)).astype(DTYPE)
    y = X[:, 0] + rng.normal(size=80).astype(DTYPE)  # noise, so that λ is far from rounding
    fit = rls.fit(kernel, X, y, **options)
    assert rls.memory(kernel, X.shape, dtype=DTYPE, **said).route.split()[0] == fit.route


@ANY_PRECISION
def test_what_will_not_fit_is_refused_on_every_route(monkeypatch):
    X = np.random.default_rng(0).normal(size=(400, 30))
    monkeypatch.setattr("jaxrls.front.memory.memory_bytes", lambda: 10_000)
    for kernel, options, message in (
        (
            KERNEL,
            {},
            "X has 400 rows: route 'gram' .* MB, and this device has 10 kB: use landmarks=",
        ),
        (KERNEL, {"lams": [1.0]}, r"route 'cholesky gram' takes about"),
        (KERNEL, {"landmarks": np.arange(20)}, "route 'subset' takes about .*: use fewer of them"),
        (LINEAR, {}, "route 'covariance' takes about"),
    ):
        refused((partial(rls.fit, kernel, X, X[:, 0], **options), message))
    refused((lambda: rls.tune(KERNEL, X, X[:, 0]), "takes about"))


@ANY_PRECISION
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"criterion": rls.ranking.pairwise_ranking_error}, {"pairs": True}),
        ({"fixed_effects": np.arange(600.0).reshape(300, 2) % 7}, {"fixed_effects": 2}),
        ({"groups": np.arange(300) // 100}, {"groups": 100}),
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_a_problem_asks_for_is_counted(asked, said, monkeypatch):
    """A fit that only this makes too large is refused."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = X[:, 0] + rng.normal(size=300)
    plain, more = (rls.memory(LINEAR, X.shape, lams=3, **options).bytes for options in ({}, said))
    monkeypatch.setattr("jaxrls.front.memory.memory_bytes", lambda: (plain + more) // 2)
    fit = partial(rls.fit, LINEAR, X, y, lams=[1.0, 10.0, 100.0])
    fit()
    refused((partial(fit, **asked), "takes about"))


OF_PROGRAMS = """
import jaxrls as rls, numpy as np
X = np.random.default_rng(0).normal(size=(600, 5))
memory = lambda: int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024
before = memory()
for options in {}, {"landmarks": 60}:
    rls.fit(rls.Gaussian(2.0), X, np.sin(X[:, 0]), **options)
    print(memory() - before)
"""


@ANY_PRECISION
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is held")
def test_programs_take_what_is_said_of_them():
    """A fit and one with landmarks, with the 45 MB of the first computation of JAX."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", OF_PROGRAMS]
    fit, both = map(float, subprocess.check_output(command, env=environment).split())
    assert 80 < fit < 240 and 160 < both < 400


@ANY_PRECISION
def test_predictions_read_the_points_of_the_model_whatever_the_solver():
    """All rows, or all landmarks: of fits by products they were a part of them."""
    rows, targets, itemsize = 50, 2, 8
    for landmarks, points in ((None, 300), (200, 200)):
        by_products = rls.Iterative(10) if landmarks is None else rls.Iterative()
        for solver in (None, by_products):
            options = {"landmarks": landmarks, "targets": targets, "dtype": float}
            memory = rls.memory(
                KERNEL, (300, 3), call="predict", rows=rows, solver=solver, **options
            )
            assert memory.bytes == itemsize * rows * (points + 2 * targets)


@ANY_PRECISION
def test_errors():
    for options, message in (
        ({"call": "guess"}, "call must be one of 'fit', .*and is 'guess'"),
        ({"solver": rls.Spectral("features")}, "needs explicit features"),
        ({"targets": 0}, "targets must be a whole number of at least 1"),
        ({"landmarks": 200}, "landmarks must be a whole number of at least 1 and at most 100"),
        ({"groups": 0}, "groups must be a whole number"),
        ({"call": "predict", "rows": -5}, "rows must be a whole number of at least 1"),
        ({"lams": 2.5}, "lams must be a whole number"),
        ({"dtype": int}, "dtype must be float32 or float64"),
    ):
        refused((partial(rls.memory, KERNEL, (100, 3), **options), message))
