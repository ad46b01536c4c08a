"""Bytes said before a call are those of the call within a factor of 2, what will not fit is
refused, and what takes more is said to.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, refused

import jaxrls as rls
from jaxrls.factors import landmark_spectrum
from jaxrls.support import checks

KERNEL, LINEAR, N = rls.Gaussian(2.0), rls.Linear(), 2000
LAMS = jnp.geomspace(0.1, 1, 100)


def loo(kernel, landmarks=None, solver=None, lams=LAMS):
    chosen = None if landmarks is None else jnp.arange(landmarks)
    return lambda X, Y: rls.loo(
        rls.factorize(kernel, X, landmarks=chosen, solver=solver), Y, lams.astype(X.dtype)
    )


def gradient(kernel, landmarks=None, **options):
    chosen = None if landmarks is None else jnp.arange(landmarks)

    def value(X, Y):
        return rls.objective(kernel, X, Y, 0.1, landmarks=chosen, **options)

    return jax.value_and_grad(value)


def held(fn, n, d) -> int:
    """Bytes that XLA's own analysis says of a program, beside X and Y."""
    shapes = (jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype) for shape in ((n, d), (n,)))
    found = jax.jit(fn).lower(*shapes).compile().memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes


PAIRS = rls.PairsOut(loss=rls.squared_error)
PROGRAMS = {
    "gram": (loo(KERNEL), KERNEL, 3, {}),
    "cholesky gram": (
        loo(KERNEL, solver=rls.Cholesky(), lams=LAMS[:1]),
        KERNEL,
        3,
        {"solver": rls.Cholesky(), "lams": 1},
    ),
    "subset": (loo(KERNEL, 400), KERNEL, 3, {"landmarks": 400}),
    "gradient": (gradient(KERNEL), KERNEL, 3, {"call": "gradient"}),
    "gradient, landmarks": (
        gradient(KERNEL, 400),
        KERNEL,
        3,
        {"call": "gradient", "landmarks": 400},
    ),
    "gradient, pairs": (
        gradient(KERNEL, criterion=PAIRS),
        KERNEL,
        3,
        {"call": "gradient", "pairs": True},
    ),
    "gradient, groups": (
        gradient(KERNEL, criterion=rls.kfold(rls.folds(np.arange(N) // 10))),
        KERNEL,
        3,
        {"call": "gradient", "groups": 10},
    ),
}


@pytest.mark.any_precision
@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_are_those_of_the_compiled_program(name):
    fn, kernel, d, options = PROGRAMS[name]
    said = rls.estimate(kernel, (N, d), dtype=jnp.zeros(()).dtype, **options)
    workspace = 2 * N**2 * jnp.zeros(()).dtype.itemsize * (name == "gram")  # of LAPACK's syevd
    ratio = said.bytes / (held(fn, N, d) + workspace)
    assert 0.5 < ratio < 2, ratio


@pytest.mark.float64  # which follows from shapes
@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"weights": True}),
        ({}, {"pairs": True}),
        ({}, {"keep": True}),
        ({}, {"groups": 500}),
        ({}, {"targets": 5000}),
        ({"landmarks": 500, "solver": rls.Cholesky(), "lams": 1}, {"lams": 9}),
        ({"landmarks": 500}, {"fixed_effects": 2}),
        ({"landmarks": 500}, {"pairs": True, "groups": 10}),
        ({"call": "predict", "rows": 10}, {"rows": 100}),
    ],
    ids=str,
)
def test_more_is_held_for_more(less, more):
    plain, with_more = (rls.estimate(KERNEL, (5000, 3), **less | extra) for extra in ({}, more))
    assert with_more.bytes > plain.bytes


@pytest.mark.float64  # which follows from shapes
@pytest.mark.parametrize(
    ("kernel", "d", "options", "said"),
    [
        (KERNEL, 3, {}, {}),
        (KERNEL, 3, {"lams": [0.1, 1.0, 10.0]}, {"lams": 3}),
        (KERNEL, 3, {"landmarks": 10}, {"landmarks": 10}),
        (LINEAR, 20, {}, {}),
        (LINEAR, 90, {}, {}),
        (
            LINEAR,
            20,
            {"lams": [1.0], "solver": rls.Cholesky()},
            {"lams": 1, "solver": rls.Cholesky()},
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
    assert rls.estimate(kernel, X.shape, dtype=DTYPE, **said).route.split()[0] == fit.route


@pytest.mark.any_precision
def test_what_will_not_fit_is_refused_on_every_route(monkeypatch):
    X = np.random.default_rng(0).normal(size=(400, 30))
    monkeypatch.setattr(checks, "memory_bytes", lambda: 10_000)
    for kernel, options, message in (
        (
            KERNEL,
            {},
            "X has 400 rows: route 'gram' .* MB, and this device has 10 kB: use landmarks=",
        ),
        (KERNEL, {"lams": [1.0]}, r"route 'cholesky gram' takes about"),
        (KERNEL, {"landmarks": 20}, "route 'subset' takes about .*: use fewer of them"),
        (LINEAR, {}, "route 'covariance' takes about"),
    ):
        refused((partial(rls.fit, kernel, X, X[:, 0], **options), message))
    refused((lambda: rls.tune(KERNEL, X, X[:, 0]), "takes about"))


@pytest.mark.any_precision
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"criterion": rls.pairwise_ranking_error}, {"pairs": True}),
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
    plain, more = (rls.estimate(LINEAR, X.shape, lams=3, **options).bytes for options in ({}, said))
    monkeypatch.setattr(checks, "memory_bytes", lambda: (plain + more) // 2)
    rls.fit(LINEAR, X, y, lams=[1.0, 10.0, 100.0])
    with pytest.raises(ValueError, match="takes about"):
        rls.fit(LINEAR, X, y, lams=[1.0, 10.0, 100.0], **asked)


@pytest.mark.any_precision
def test_rows_on_landmarks_are_kept_where_they_fit_into_a_quarter_of_memory(monkeypatch):
    for limit, kept in ((None, True), (4 * 8 * 300 * 50, True), (4 * 8 * 300 * 50 - 1, False)):
        monkeypatch.setattr(landmark_spectrum, "memory_bytes", lambda limit=limit: limit)
        assert landmark_spectrum.keeps_rows(300, 50, 8) == kept


@pytest.mark.any_precision
def test_an_estimate_reads_well():
    said = rls.estimate(KERNEL, (20_000, 8))
    words = "fit by gram: 12.8 GB for K, its eigenvectors and LAPACK's workspace"
    assert str(said) == words
    half = rls.estimate(KERNEL, (20_000, 8), dtype=jnp.float32)
    assert half.bytes == pytest.approx(said.bytes / 2, rel=0.01)


@pytest.mark.any_precision
def test_errors():
    for options, message in (
        ({"call": "guess"}, "call must be one of 'fit', .*and is 'guess'"),
        ({"solver": "svd"}, "solver must be Spectral"),
        ({"solver": rls.Spectral("features")}, "needs explicit features"),
        ({"targets": 0}, "targets must be a whole number of at least 1"),
        ({"landmarks": 200}, "landmarks must be a whole number of at least 1 and at most 100"),
        ({"groups": 0}, "groups must be a whole number"),
        ({"lams": 2.5}, "lams must be a whole number"),
        ({"dtype": int}, "dtype must be float32 or float64"),
    ):
        refused((partial(rls.estimate, KERNEL, (100, 3), **options), message))
