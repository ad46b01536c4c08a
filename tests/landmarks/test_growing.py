"""Searches begun on few of the rows: they end on all, tell so, and are as good."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import ANY_PRECISION, DTYPE, assert_close, assert_derivatives, refused

import jaxrls as rls
from jaxrls import extend
from jaxrls.front import sample_of
from jaxrls.landmarks import growing, slopes

pytestmark = ANY_PRECISION
START = rls.Gaussian(np.ones(2, DTYPE))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """As few rows as a test has."""
    monkeypatch.setattr(growing, "SAMPLE_ROWS", 45)
    monkeypatch.setattr(growing, "LANDMARKS", 8)
    monkeypatch.setattr(growing, "DEAR", 160 * 16**2)


def problem(n=160):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)).astype(DTYPE)
    return X, (np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)).astype(DTYPE)


@pytest.mark.slow
def test_a_search_begun_on_few_rows_ends_on_all_and_is_as_good():
    X, y = problem()
    options = {"landmarks": 16, "steps": 12}
    found, every = (rls.tune(START, X, y, **options, **grow) for grow in ({}, {"grow": False}))
    (stage,) = found.history.stages
    assert (stage.rows, stage.landmarks, every.history.stages) == (45, 8, ())
    assert (
        1 < len(stage.history.errors) <= 13
        and stage.history.reason
        and len(found.history.errors) <= 13
    )
    assert found.error <= 1.01 * every.error and found.error <= found.history.start_error
    assert found.error == found.history.errors.min()
    assert found.loo_residuals.shape == (160,)
    assert_close(np.mean(np.asarray(found.loo_residuals) ** 2), found.error, 1e-9)


@pytest.mark.slow
def test_between_few_rows_and_all_come_some_for_each_landmark(monkeypatch):
    """On the landmarks of the end, which are chosen among these; those that are given stay."""
    monkeypatch.setattr(growing, "ROWS_A_LANDMARK", 3)
    X, y = problem()
    options = {"start": "kernel", "lams": [0.1], "steps": 2}
    found = rls.tune(START, X, y, landmarks=16, **options)
    assert [(stage.rows, stage.landmarks) for stage in found.history.stages] == [(45, 8), (48, 16)]
    _, numbers = sample_of(extend.read_problem(START, X, y), 48)
    points = {tuple(point) for point in X[numbers].tolist()}
    assert {tuple(point) for point in np.asarray(found.model.points).tolist()} <= points
    assert found.lam != options["lams"][0]
    held = rls.tune(START, X, y, landmarks=16, **{**options, "lams": 0.1})
    searches = [held.history, *(stage.history for stage in held.history.stages)]
    assert len(searches) == 3 and held.lam == DTYPE(0.1)
    assert all((np.asarray(search.lams) == DTYPE(0.1)).all() for search in searches)
    found = rls.tune(START, X, y, landmarks=jnp.asarray(X[::10]), tol=50.0, **options)
    assert [stage.landmarks for stage in found.history.stages] == [8, 16]
    assert_close(found.model.points, X[::10], 0)


@pytest.mark.slow
def test_a_given_kernel_that_is_better_on_all_rows_is_where_the_search_goes_on(monkeypatch):
    """What few rows led to may be worse than what there was."""
    (X, y), rows = problem(), np.arange(0, 160, 10)
    good = rls.tune(START, X, y, landmarks=rows, grow=False)
    descend = growing.descend
    bad = rls.Gaussian(np.full(2, 50, DTYPE))

    def misled(problem, *args, **options):
        found = descend(problem, *args, **options)
        return found._replace(kernel=bad) if len(problem.Y) < 160 else found

    monkeypatch.setattr(growing, "descend", misled)
    found = rls.tune(good.kernel, X, y, lams=[good.lam], landmarks=rows, steps=2)
    assert found.error <= found.history.start_error <= 1.01 * good.error
    assert_close(found.history.kernels.width[0], good.kernel.width, 1e-5)


@pytest.mark.slow
def test_there_may_be_fewer_rows_of_positive_weight_than_landmarks():
    X, y = problem()
    options = {"landmarks": 16, "tol": 50.0, "lams": [0.1], "start": "kernel"}
    found = rls.tune(START, X, y, weights=(np.arange(160) < 12).astype(DTYPE), **options)
    assert found.history.stages and len(found.model.points) <= 12
    assert "landmarks change the dual coefficients" in found.certificate


@pytest.mark.slow
def test_an_optimiser_of_the_callers_own_begins_anew_on_more_rows():
    """One that begins with small steps is not taken for one that is done."""
    X, y = problem()
    slow = optax.adam(optax.warmup_cosine_decay_schedule(0, 0.1, 5, 100))
    options = {"landmarks": 16, "steps": 8, "start": "kernel", "lams": [0.1]}
    found = rls.tune(START, X, y, optimizer=slow, **options)
    assert len(found.history.stages) == 1 and found.error <= found.history.start_error
    assert len(found.history.errors) == 9


@ANY_PRECISION(False)
@pytest.mark.slow
def test_a_search_that_was_over_is_no_worse_than_its_start():
    """Though that value comes from a program of its own, and is rounded otherwise."""
    X, y = problem()
    for width in np.linspace(0.8, 1.6, 6, dtype=DTYPE):
        found = rls.tune(
            rls.Gaussian(np.full(2, width)),
            X,
            y,
            lams=[0.1],
            landmarks=16,
            start="kernel",
            tol=50.0,
        )
        assert len(found.history.stages) == 1 and found.error <= found.history.start_error


def test_where_a_search_begins():
    X, y = problem()
    made = extend.read_problem(rls.Gaussian(1.0), X, y)
    few_of = lambda m, grow: growing.begins_on_few(made, m, grow)
    assert not few_of(15, None) and few_of(15, True) and few_of(16, None) and not few_of(16, False)

    pairs = rls.ranking.PairsOut(pairs=[[3, 149], [17, 8]], loss=rls.extend.squared_error)
    groups = rls.kfold(rls.folds(np.arange(160) % 4))
    for criterion in (pairs, groups):  # hold something of single rows
        in_groups = extend.read_problem(rls.Gaussian(1.0), X, y, criterion=criterion)
        assert not growing.begins_on_few(in_groups, 16, None)
    grown = lambda **options: lambda: rls.tune(START, X, y, grow=True, **options)
    message = "grow=True needs landmarks, more than 8000 rows,"
    refused((grown(), message), (grown(landmarks=16, criterion=groups), message))


@pytest.mark.slow
def test_the_slope_on_landmarks_against_differences(monkeypatch):
    """In kernel, λ, points and rows at once, in blocks, with weights, one of them 0, and landmarks
    that leave; rows made anew in each reading. (Kept ones are in the contract's tests.)
    """
    monkeypatch.setattr(slopes, "keeps_rows", lambda *sizes: False)
    X, y = problem(30)
    rng = np.random.default_rng(1)
    v, rows, along = rng.uniform(0.5, 2, 30), np.array([3, 20, 17, 8, 29]), rng.normal(size=(30, 2))
    v[4] = 0
    Y = np.stack([y, X[:, 1] ** 2], axis=1)
    options = {"weights": v, "landmarks": rows, "block_size": 17}

    def error(s):
        kernel = rls.Gaussian(jnp.array([1.5, 2.0]) * jnp.exp(s[0])) * (1 + s[0])
        moved = X + 0.1 * s[0] * along
        return rls.objective(kernel, moved, Y + 0.2 * s[0], 0.1 * jnp.exp(2 * s[0]), **options)

    assert_derivatives(error, jnp.zeros(1), 1e-6)


def test_a_function_may_hold_what_is_differentiated():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.normal(size=20)

    def error(at):
        a, b = at
        kernel = rls.FunctionKernel(
            lambda A, B: jnp.exp(-b * jnp.sum((A[:, None] - B[None]) ** 2, axis=-1))
        )
        loss = lambda e, _: jnp.sqrt(a * a + e * e)
        return rls.objective(
            kernel, X, y, 0.1, landmarks=X[:5], criterion=rls.extend.LeaveOneOut(loss)
        )

    assert_derivatives(error, jnp.array([0.5, 0.5]), 1e-7)
