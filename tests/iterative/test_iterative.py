"""All of K by products: fits against those of K itself, exact where the random signs are made to
be, and how sure they are. Its numbers at few rows are in the contract's grid.
"""

import functools
import importlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.cases import gaussian
from support import (
    ANY_PRECISION,
    DTYPE,
    EDGE,
    FLOAT64,
    X64,
    array,
    assert_close,
    factorize,
    loo,
    no_fit,
    refused,
    wide,
)

import jaxrls as rls
from jaxrls.iterative import conjugate, lam_walk

fit_module = importlib.import_module("jaxrls.front.fit")
plan_module = importlib.import_module("jaxrls.front.plan")
tune_module = importlib.import_module("jaxrls.front.tune")

N, KERNEL = 64, rls.Gaussian(1.0)
LAMS = np.array([0.03, 0.3, 3.0])
TOL, CLOSE = (1e-11, 1e-8) if X64 else (1e-5, 2e-3)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    Y = (
        np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1]], axis=1)
        + 0.1 * rng.normal(size=(N, 2))
        + 3
    )
    v = np.where(np.arange(N) % 9 == 4, 0, rng.uniform(0.3, 2, N))
    return array(X), array(Y), array(v)


@pytest.fixture
def patch():
    """Of what plans and walks ask for, which no program is traced with."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


class Solved:
    """The fit by all of K in NumPy, of rows with weights above 0, and what it leaves out."""

    def __init__(self, X, Y, lam, v=None, width=1.0, intercept=True):
        X, Y = np.asarray(X, np.float64), np.asarray(Y, np.float64)
        self.v = np.ones(len(X)) if v is None else np.asarray(v, np.float64)
        used = self.v > 0
        self.X, self.width, n = X[used], width, used.sum()
        system = gaussian(self.X, self.X, width) + lam * np.diag(1 / self.v[used])
        if intercept:
            one = np.ones((n, 1))
            system = np.block([[system, one], [one.T, np.zeros((1, 1))]])
        inverse = np.linalg.inv(system)
        found = inverse[:, :n] @ Y[used]
        self.coef, self.constant = found[:n], found[n:].sum(axis=0)
        held_out = (self.coef.T / np.diagonal(inverse)[:n]).T
        self.errors = np.average(held_out**2, axis=0, weights=self.v[used])

    def predict(self, X):
        """The function at rows."""
        K = gaussian(np.asarray(X, np.float64), self.X, self.width)
        return K @ self.coef + self.constant


def by_products(X, landmarks, solver, **options):
    """The factor of K by products."""
    return rls.factorize(KERNEL, X, solver=replace(solver, landmarks=landmarks), **options)


@functools.partial(jax.jit, static_argnames="intercept")
def pair(X, weights, intercept, solver):
    options = {"weights": weights, "intercept": intercept}
    made = by_products(X, np.arange(0, N, 3), solver, **options)
    return rls.factorize(KERNEL, X, weights=weights, intercept=intercept), made


def factors(X, weights, intercept, **options):
    """All of K, and K by products with as many probes as rows, which tell the diagonal itself."""
    return pair(X, weights, intercept, rls.Iterative(tol=TOL, probes=N, **options))


def draws(X, y, every, probes, lam):
    """Leave-one-out errors and their standard errors, on every so many rows as landmarks, over
    forty draws of signs.
    """
    iteration, total, lam = (
        rls.Iterative(tol=1e-8, probes=probes),
        rls.extend.LeaveOneOut().summand,
        array([[lam]]),
    )

    @jax.jit
    def all_draws(X):
        factor = by_products(X, np.arange(0, N, every), iteration)

        def draw(seed):
            signs = rls.Iterative(probes=probes, key=jax.random.key(seed)).signs(factor.weights)
            solution = replace(factor, signs=signs).solve(y)
            return solution.sum_held_out(total, lam)[0, 0] / N, solution.outcome(
                lam, fn=total
            ).standard_error[0, 0] / N

        return jax.lax.map(draw, jnp.arange(40))

    return np.array(all_draws(X), float)


@FLOAT64
def test_products_in_float32_with_vectors_in_float64(data):
    X, Y, _ = data
    exact, found = factors(X, None, True, dtype="float32")
    assert found.dtype == DTYPE
    coefficients = jax.jit(lambda factor: factor.solve(Y).coefficients(LAMS[1:]).coef)
    coarse, fine = coefficients(found), coefficients(exact)
    assert 1e-9 < float(jnp.abs(coarse - fine).max() / jnp.abs(fine).max()) < 1e-4


@FLOAT64
@pytest.mark.slow
def test_says_where_rounding_ends_it(data):
    """λ far below what products in float32 can tell: the residual stays, that is said, and no
    number comes of it.
    """
    X, Y, _ = data
    _, found = factors(jnp.concatenate([X, X + 1e-9])[:N] / 20, None, True, dtype="float32")
    lam = array(1e-12)
    solve = jax.jit(lambda made: made.solve_columns(lam, made.near.inverse(made.report.floor), Y))
    dual, run = solve(found)
    assert (np.asarray(run.reason) != conjugate.CONVERGED).all() and (
        np.asarray(run.residuals) > 1e-8
    ).all()
    assert (np.isfinite(np.asarray(dual)).all(axis=0) == (np.asarray(run.residuals) <= 0.1)).all()
    assert not np.isfinite(np.asarray(loo(found, Y, lam[None]))).any()


@pytest.mark.slow
def test_fit_by_products(data):
    """λ by a search, the model, the residuals and how sure they are; the reason of every column's
    end.
    """
    X, Y, v = data
    found = rls.fit(
        KERNEL, X, 1e3 * Y, solver=rls.Iterative(CHOSEN, probes=32), lams="search", weights=v
    )
    exact = Solved(X, 1e3 * Y, float(found.lam), v)
    exact_error = exact.errors.mean()
    assert found.route == "iterative" and "iterations and one for the model" in found.plan
    assert (np.asarray(found.run.reason) == conjugate.CONVERGED).all()
    assert (
        float(found.run.residuals.max()) <= 2 * rls.Iterative().tol
    )  # as `conjugate_gradients` promises, by a product in the end
    assert 0 < float(found.loo_standard_error) < 0.5 * exact_error
    assert abs(float(found.error) - exact_error) < 4 * float(found.loo_standard_error)
    assert_close(found.predict(X), exact.predict(X), 1e-2, "predictions")


@FLOAT64
@pytest.mark.slow
def test_an_approximation_above_k_ends_no_iteration(data):
    """As rounding makes it of landmarks that are nearly dependent."""
    X, Y, v = data
    _, factor = factors(X, v, True)
    above = replace(factor, near=replace(factor.near, B=1.5 * factor.near.B))
    coefficients = jax.jit(lambda made: made.solve(Y).coefficients(LAMS[:1]).coef)
    want, got = map(coefficients, (factor, above))
    assert_close(got, want, 1e-6)


@pytest.mark.slow
def test_another_lam_for_a_fit_without_residuals(data):
    X, Y, _ = data
    solver = rls.Iterative(CHOSEN, tol=TOL, probes=0)
    fit = rls.fit(KERNEL, X, Y, lams=[1.0], solver=solver, keep=True)
    assert_close(fit.with_lam(3.0).predict(X), Solved(X, Y, 3.0).predict(X), CLOSE)


@pytest.mark.slow
def test_rounding_adds_no_constant_to_coefficients(data):
    """Near the floor, where it would move predictions by more than residuals; with weights."""
    X, Y, _ = data
    lam, v = 1e-10 if X64 else 1e-2, np.linspace(0.5, 2, N)
    found = rls.fit(KERNEL, X, Y, weights=v, lams=[lam], solver=rls.Iterative(CHOSEN))
    x, Y = np.asarray(X, np.float64), np.asarray(Y, np.float64)
    K, one = gaussian(x, x, 1.0) + lam * np.diag(1 / v), np.ones((N, 1))
    both = np.block([[K, one], [one.T, np.zeros((1, 1))]])
    residuals = lam * np.linalg.solve(both, np.pad(Y, ((0, 1), (0, 0))))[:N] / v[:, None]
    length = lambda e: np.sqrt(v @ e**2)
    off = length(np.asarray(found.predict(X)) - (Y - residuals))
    assert (off <= 2 * float(found.run.residuals.max()) * length(residuals)).all()


# how to iterate, said to `fit`
# ------------------------------------------------------------------------------------------------

CHOSEN = np.arange(0, N, 2)


@ANY_PRECISION
@pytest.mark.slow
def test_fit_passes_on_how_to_iterate(data):
    X, Y, v = data
    key = jax.random.key(7)
    iteration = rls.Iterative(CHOSEN, tol=1e-3, steps=50, probes=4, dtype="float32", key=key)
    fit = rls.fit(KERNEL, X, Y, lams=[0.3], weights=v, solver=iteration)
    factor = factorize(KERNEL, X, weights=v, solver=iteration)
    assert factor.signs.shape == (N, 4) and factor.iteration.dtype == "float32"
    # Rounding decides whether landmarks that are nearly dependent take a jitter, which moves the
    # estimate by far less than the probes do.
    error = loo(factor, Y, array([0.3])).mean()
    assert abs(float(fit.error - error)) < 0.5 * float(fit.loo_standard_error)
    assert (
        fit.run.history.shape == (50, 2 + 2 * 4 // 2)
        and np.asarray(fit.run.residuals).max() <= 2 * iteration.tol
    )
    other = rls.fit(
        KERNEL, X, Y, lams=[0.3], weights=v, solver=replace(iteration, key=jax.random.key(8))
    )
    assert float(other.error) != float(fit.error)


def test_fit_stops_after_as_many_steps_as_it_may_take(data):
    X, Y, _ = data
    with pytest.warns(UserWarning, match="all steps were used"):
        fit = rls.fit(
            KERNEL,
            X,
            Y,
            lams=[0.3],
            solver=rls.Iterative(np.arange(0, N, 4), steps=2, tol=1e-12, probes=3),
        )
    assert int(fit.run.steps) == 2


@pytest.mark.filterwarnings(
    "ignore:the chosen λ", "ignore:the iteration stopped"
)  # in float32, where rounding ends it
@pytest.mark.slow
def test_without_probes_lam_is_given_or_rows_held_out_choose(data):
    """No leave-one-out, and no columns for it; the same coefficients."""
    X, Y, v = data
    blind = rls.Iterative(np.arange(0, 50, 2), tol=1e-6, probes=0)
    held, several = rls.holdout(X[50:], Y[50:]), {"weights": v[:50], "lams": LAMS}
    for options in ({"criterion": held, **several}, {"lams": LAMS[1:2]}):
        fit = rls.fit(KERNEL, X[:50], Y[:50], solver=blind, **options)
        exact = [Solved(X[:50], Y[:50], lam, options.get("weights")) for lam in options["lams"]]
        errors = np.array([np.mean((Y[50:] - one.predict(X[50:])) ** 2, axis=0) for one in exact])
        best = int(errors.mean(axis=1).argmin())
        assert float(fit.lam) == float(array(options["lams"][best]))
        assert fit.run.residuals.shape == (2,)
        assert fit.loo_standard_error is fit.loo_residuals is fit.dof is None
        assert_close(fit.predict(X), exact[best].predict(X), 2e-3)
        if "criterion" in options:
            assert_close(fit.errors, errors, 2e-3)
        else:
            assert fit.error is None and repr(fit).startswith("Gaussian: λ = 0.3\n")
    with pytest.raises(ValueError, match="the model is not finite at"):
        rls.fit(KERNEL, X[:50] / 1e3, Y[:50], solver=blind, lams=[1e-30])


def test_without_probes_nothing_is_left_out(data):
    X, Y, _ = data
    blind, words = rls.Iterative(CHOSEN, probes=0), "needs probes, and the solver has probes=0"
    held_out = lambda X: by_products(X, CHOSEN, blind).solve(Y).held_out_residuals(LAMS)
    fit = lambda criterion: rls.fit(KERNEL, X, Y, lams=LAMS, criterion=criterion, solver=blind)
    with no_fit():
        refused(
            (lambda: fit(rls.loo), words),
            (lambda: fit(rls.gcv), words),
            (lambda: jax.eval_shape(held_out, X), words),
        )


@ANY_PRECISION
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 1.0}, "tol must be a number between 0 and 1"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"probes": -1}, "probes must be a whole number"),
        ({"probes": 2}, "probes must be 0, or at least 3"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
    ],
)
def test_what_no_iteration_can_be(options, message):
    with pytest.raises(ValueError, match=message):
        rls.Iterative(**options)


def test_what_does_not_go_with_an_iteration(data):
    X, Y, _ = data
    narrow, solver = np.asarray(X, np.float32), rls.Iterative(CHOSEN, dtype="float64")
    too_wide = lambda: rls.fit(KERNEL, narrow, Y, lams=[1.0], solver=solver)
    refused((too_wide, "must not be wider than"))
    near = factorize(KERNEL, X, solver=rls.Iterative()).near  # landmarks chosen by itself
    assert near.B.shape[1] == N if X64 else N // 2 < near.B.shape[1] <= N  # independent ones


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:the chosen λ", "ignore:the iteration stopped"
)  # in float32, where rounding ends it
def test_every_target_has_its_own_lam(data):
    X, Y, v = data
    options = {"lams": LAMS, "per_target": True, "weights": v, "intercept": False}
    fit = rls.fit(KERNEL, X, Y, solver=rls.Iterative(CHOSEN, tol=TOL, probes=N), **options)
    exact = rls.fit(KERNEL, X, Y, solver=rls.Spectral("gram"), **options)
    np.testing.assert_array_equal(fit.lam, exact.lam)
    for name in ("errors", "loo_residuals", "dof"):
        assert_close(getattr(fit, name), getattr(exact, name), CLOSE, name)
    assert_close(fit.predict(X), exact.predict(X), CLOSE)
    assert (
        fit.loo_standard_error.shape == fit.error.shape == (2,)
        and not np.asarray(fit.loo_standard_error).any()
    )
    solver, options["lams"] = rls.Iterative(CHOSEN, tol=TOL, probes=N), exact.lam[:1]
    one = rls.fit(KERNEL, X, Y, solver=solver, **options)
    for name in ("lam", "error", "dof"):
        got = getattr(one, name)
        assert got.shape == one.errors[0].shape == (2,), name
        assert_close(got[0], getattr(exact, name)[0], CLOSE, name)


@pytest.mark.slow
def test_the_standard_error_of_targets_that_share_lam_is_that_of_their_mean(data):
    """By the jackknife of the mean loss. Probes move the losses of the targets in part together."""
    X, Y, _ = data
    options = {"lams": [0.3], "solver": rls.Iterative(CHOSEN, tol=TOL, probes=6)}
    fit = rls.fit(KERNEL, X, Y, keep=True, **options)
    solved = jax.jit(lambda s: s.factor.solved(s, array([[0.3]]), s.factor.signs))(fit.solution)
    each = np.mean(wide(solved.held_out_without_each[0, :, :N]) ** 2, axis=(1, 2))
    want = np.sqrt(5 / 6 * np.sum((each - wide(fit.error)) ** 2))
    assert_close(fit.loo_standard_error, want, 1e-9 if X64 else 1e-2)
    alone = [rls.fit(KERNEL, X, y, **options).loo_standard_error for y in Y.T]
    assert fit.loo_standard_error < np.mean(alone)
    assert np.isnan(fit.summary()["loo_standard_error"]).all()


@pytest.mark.slow
def test_a_conservative_lam_is_that_of_the_spread_over_rows(data):
    """As with exact residuals, whatever the draw of probes says."""
    X, Y, v = data
    options = {"lams": np.geomspace(1e-2, 30, 12), "weights": v, "conservative": 1}
    exact = rls.fit(KERNEL, X, Y, solver=rls.Spectral("gram"), **options)
    found = rls.fit(KERNEL, X, Y, solver=rls.Iterative(CHOSEN, tol=TOL, probes=N), **options)
    assert found.lam == exact.lam > rls.fit(KERNEL, X, Y, lams=options["lams"], weights=v).lam
    assert found.loo_standard_error == 0 < exact.loo_standard_error


@pytest.mark.slow
def test_the_slope_of_a_step_is_no_standard_error(data):
    X, Y, _ = data
    options = {"lams": [0.3], "solver": rls.Iterative(CHOSEN, probes=8)}
    fit = rls.fit(
        KERNEL,
        X,
        jnp.sign(Y[:, 0] - 3),
        **options,
        criterion=rls.extend.LeaveOneOut(rls.classes.zero_one_loss),
    )
    assert fit.loo_standard_error is None and 0 <= float(fit.error) < 0.5


# how sure leave-one-out is
# --------------------------------------------------------------------------------------------------


@FLOAT64
@pytest.mark.slow
def test_noise_in_the_diagonal_is_no_bias(data):
    """Few landmarks and probes: Σ c²/p̂² is too large by three variances of p̂, several standard
    errors of a mean over rows, and is mended.
    """
    X, Y, _ = data
    X, y, lam = X / 2, Y[:, 0], 0.1
    exact = Solved(X, y, lam, intercept=False).errors
    errors, said = draws(X, y, 8, 16, lam)
    assert np.mean(np.abs(errors - exact) <= 2 * said) >= 0.9
    assert abs(errors.mean() - exact) < 4 * errors.std() / 40**0.5
    assert said.mean() < 0.1 * exact


@FLOAT64
@pytest.mark.slow
def test_leave_one_out_at_every_lam():
    """Over draws of the default number of probes, with rows that are nearly interpolated, and some
    that are there nearly twice.
    """
    n, rng = 400, np.random.default_rng(2)
    X = rng.normal(size=(n, 4)) / 1.4
    X[360:] = X[:40] + 1e-3 * rng.normal(size=(40, 4))
    y = array(np.sin(2.8 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=n))
    lams = array([1e-4, 1e-2, 1.0])
    exact = np.array([Solved(X, y, lam, intercept=False).errors for lam in np.asarray(lams)])
    total = rls.extend.LeaveOneOut().summand

    @jax.jit
    def draw(key):
        solver = rls.Iterative(np.arange(0, n, 4), key=key)
        solution = rls.factorize(KERNEL, X, solver=solver).solve(y)
        found = solution.outcome(lams, fn=total)
        return jnp.stack([found.held_out_sum[:, 0], found.standard_error[:, 0]]) / n

    found, said = np.stack([draw(jax.random.key(seed)) for seed in range(8)], 1)
    off = found / exact - 1
    assert (np.abs(off.mean(0)) <= [0.5, 0.1, 0.02]).all()
    assert (np.abs(off) <= np.maximum(3 * said / exact, 0.1))[:, 1:].mean() >= 0.9
    # Far too small a λ tempts nobody: its error is large, or its standard error is.
    assert (found[:, 0] + 3 * said[:, 0] > found[:, 1]).all()


@functools.cache
def exact_of_200():
    """Rows, labels, and the best fit to them."""
    X, Y = (np.asarray(part) for part in drawn(200))
    found = [Solved(X, Y, lam, width=1.5) for lam in np.geomspace(1e-3, 10, 60)]
    return X, Y, min(found, key=lambda one: one.errors)


@EDGE
@pytest.mark.slow
def test_it_is_taken_where_k_is_too_large(patch):
    """And says so; a solver that was named, and what needs a solution, are refused as before."""
    kernel, (X, Y, exact) = rls.Gaussian(1.5), exact_of_200()
    patch.setattr("jaxrls.front.memory.LARGEST_CPU_EIGH", len(X) - 1)
    fit = rls.fit(kernel, X, Y)
    assert fit.route == "iterative" and "not factored, so the leave-one-out" in fit.plan
    assert f"± {fit.loo_standard_error:.1g}" in fit.plan
    assert abs(fit.error - exact.errors) < 4 * fit.loo_standard_error + 0.02 * exact.errors
    assert_close(fit.predict(X), exact.predict(X), 0.05)
    patch.setattr("jaxrls.front.expected.LONG", 0.0)
    with pytest.warns(UserWarning, match="200 rows is too large.*minutes: landmarks=1000"):
        rls.fit(kernel, X, Y)
    refused(
        (lambda: rls.fit(kernel, X, Y, solver=rls.Spectral()), "LAPACK's 32-bit"),
        (lambda: rls.fit(kernel, X, Y, keep=True), "LAPACK's 32-bit"),
        (lambda: rls.fit(kernel, X, Y, groups=np.arange(200) % 5), "LAPACK's 32-bit"),
    )


class Planned(Exception):
    """Ends a fit before its work."""


def test_it_is_taken_where_k_takes_long(patch):
    """A CPU; and any λ will do, of which nothing is kept."""

    def planned(plan, progress):
        raise Planned(plan)

    def takes_it(**options):
        with no_fit(), pytest.raises(Planned) as stopped:
            rls.fit(rls.Gaussian(1.5), X, Y, weights=v, **options)
        return isinstance(stopped.value.args[0].problem.solver, rls.Iterative)

    X, Y = (np.asarray(part) for part in drawn(200))
    v = np.linspace(0.5, 2, len(X)).astype(DTYPE)
    patch.setattr(fit_module, "run", planned)
    assert not takes_it()
    patch.setattr(plan_module, "MOST_ROWS", len(X) - 1)
    for count in ({}, {"lams": np.int64(100)}, {"lams": None}):
        assert takes_it(**count)
    asked = {"lams": [0.1]}, {"conservative": 1}, {"keep": True}, {"groups": np.arange(200) % 5}
    assert not any(takes_it(**one) for one in asked)


@EDGE
@pytest.mark.slow
def test_a_search_for_kernels_goes_on_from_few_rows_where_k_takes_long(patch):
    X, Y, exact = exact_of_200()
    patch.setattr(plan_module, "MOST_ROWS", len(X) - 1)
    patch.setattr(tune_module, "SAMPLE_ROWS", 150)
    tuned = rls.tune(rls.Gaussian(3.0), X, Y, start="kernel", steps=8)
    assert "on 150 rows; Iterative" in tuned.plan and len(tuned.model.coef) == len(X)
    assert tuned.error < exact.errors + 4 * tuned.loo_standard_error
    held = rls.tune(rls.Gaussian(3.0), X, Y, start="kernel", steps=2, lams=0.3)
    assert held.lam == DTYPE(0.3) and "λ held fixed" in held.plan and len(held.model.coef) == len(X)


def drawn(n):
    """Rows of two columns, of which labels need one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return array(X), array(np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n))


@EDGE
@pytest.mark.slow
def test_lam_is_found_by_a_walk_from_that_of_few_rows():
    """In few iterations, and the model from the columns at the best."""
    X, y = (np.asarray(part) for part in drawn(400))
    kernel, solver = rls.Gaussian(1.5), rls.Iterative(60, tol=1e-3, probes=300)
    Y = np.stack([y, 0.5 * y], axis=1)
    fit = rls.fit(kernel, X, Y, solver=solver)
    error_at = lambda lam: Solved(X, Y, lam, width=1.5).errors.mean()
    exact = min(map(error_at, np.geomspace(1e-3, 10, 60)))
    assert len(fit.lams) <= lam_walk.MOST and fit.run.steps <= 1
    assert fit.error < exact * 1.02 + 4 * fit.loo_standard_error
    at_lam = error_at(float(fit.lam))
    assert abs(fit.error - at_lam) < 5 * fit.loo_standard_error + 1e-3 * at_lam


@pytest.mark.slow
def test_a_walk_goes_up_from_nothing_and_down_from_the_best(patch):
    """From the columns at a smaller λ an iteration stalled, with an error of 2.49 for .067."""
    X, Y = drawn(60)
    problem = rls.extend.read_problem(rls.Gaussian(1.5), X, Y, solver=rls.Iterative(20)).prepare()
    errors, begins = iter([1.0, 1.5, 0.5, 0.4]), []

    def evaluate(problem, solution, log_lam):
        begins.append(float(jnp.max(solution.factor.begin)))
        columns = len(begins) * jnp.ones_like(solution.factor.begin)
        error, spread = jnp.array([next(errors)]), jnp.array(1e-3)
        return lam_walk.Evaluated(error, spread, columns, True)

    patch.setattr(lam_walk, "_evaluate_at", evaluate)
    found = lam_walk._walk(problem, jax.jit(lambda problem: problem.solution())(problem))
    steps = np.diff(np.ravel(found.log_lams)) / lam_walk.STEP
    assert_close(steps, np.array([1, -2, -1]), 1e-9)
    assert begins == [0, 0, 1, 3] and float(jnp.max(found.solution.factor.begin)) == 4


@pytest.mark.slow
@FLOAT64
def test_a_walk_compares_lam_by_products_in_float32(patch):
    """But near their floor, of rows far from 0, and where the iteration does not converge by them;
    the model is that of float64.
    """
    X, y = (np.asarray(part, float) for part in drawn(200))
    v = np.where(np.arange(200) % 9 == 4, 0, 1 + np.arange(200) % 3)
    kernel, solver, dtypes, converges = rls.Gaussian(1.5), rls.Iterative(40), [], True
    plain = lam_walk._evaluate_at

    def evaluate(problem, solution, log_lam):
        dtypes.append(solution.factor.near.X.dtype.name)
        found = plain(problem, solution, log_lam)
        return found._replace(converged=dtypes[-1] == "float64" or converges)

    def fitted(X):
        dtypes.clear()
        return rls.fit(kernel, X, y, weights=v, solver=solver)

    patch.setattr(lam_walk, "_evaluate_at", evaluate)
    fit = fitted(X)
    assert len(dtypes) == len(fit.lams) and set(dtypes) == {"float32"}
    exact = Solved(X, y[:, None], float(fit.lam), v, width=1.5).predict(X)[:, 0]
    root = np.sqrt(v)
    off = root * (np.asarray(fit.predict(X)) - exact)
    assert np.linalg.norm(off) < 2 * solver.tol * np.linalg.norm(root * (y - exact))
    far = fitted(X + 1e7)  # float32 rounds these rows to whole numbers
    assert set(dtypes) == {"float64"}
    assert_close(far.lams, fit.lams, 1e-3 * float(fit.lams.max()))
    assert_close(far.errors, fit.errors, 1e-3 * float(fit.errors.max()))
    converges = False
    fitted(X)
    assert dtypes == ["float32", "float64"] * (len(dtypes) // 2)
    patch.setattr(lam_walk, "NARROW_FROM", 1e9)
    fitted(X)
    assert set(dtypes) == {"float64"}
    for other in (rls.Iterative(40, tol=1e-4), rls.Iterative(40, dtype="float64")):
        problem = rls.extend.read_problem(kernel, X, y, solver=other).prepare()
        factor = jax.jit(lambda problem: problem.solution())(problem).factor
        assert lam_walk._with_narrow_products(problem, factor) is None


def test_a_walk_ends_where_errors_rise_on_both_sides():
    """At the minimum of one parabola, at an end of the line, and next to what broke down."""
    step, log, line = lam_walk.STEP, lam_walk.next_step, (-9.0, 9.0)
    assert log(np.array([0.0]), np.array([2.0]), 1e-3, *line) == step
    assert log(np.array([0.0]), np.array([2.0]), 1e-3, -9.0, 0.0) == -step
    assert log(np.array([0.0, step]), np.array([1.0, 1.3]), 0.1, *line) == -step
    assert np.isnan(log(np.array([0.0, step]), np.array([1.0, 1.07]), 0.1, *line))  # convex
    assert log(np.array([0.0, step]), np.array([1.0, 1.01]), 0.1, *line) == -step  # a plateau
    assert log(np.array([0.0, -step]), np.array([2.0, 1.0]), 1e-3, *line) == -2 * step
    assert log(np.array([0.0, -step]), np.array([1.0, 2.0]), 1e-3, *line) == step
    assert np.isnan(log(np.array([0.0, -step]), np.array([2.0, 1.0]), 1e-3, -step, 9.0))
    assert np.isnan(log(np.array([0.0, -step]), np.array([2.0, 1.0]), 1.1, *line))  # by chance
    assert np.isnan(log(np.array([0.0, -step]), np.array([1.25, 1.0]), 1e-3, *line))  # by a fifth
    places = np.array([0.0, -step, -2 * step])
    assert abs(log(places, (places + step * 1.3) ** 2 + 0.1, 1e-3, *line) + 1.3 * step) < 1e-9
    assert np.isnan(log(places, (places + step) ** 2 + 0.1, 1e-3, *line))
    assert np.isnan(log(places, np.array([2.0, 1.0, np.nan]), 1e-3, *line))
    once = np.array([*places, -1.3 * step])
    assert np.isnan(log(once, (once + 1.2 * step) ** 2, 1e-3, *line))


@pytest.mark.slow
@FLOAT64
def test_under_switches_that_look_for_faults():
    """Nothing is NaN on clean data, and nothing needs a program: `jax_debug_nans`, and
    `jax_disable_jit` of a fit that iterates; against a solve.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    y = np.sin(X[:, 0])
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=2) / 2)
    bordered = np.block([[K + 0.3 * np.eye(20), np.ones((20, 1))], [np.ones(20), 0]])
    c = np.linalg.solve(bordered, [*y, 0])
    want = K @ c[:-1] + c[-1]
    tight = rls.Iterative(5, tol=1e-8)
    cases = [(jax.debug_nans, tight), (jax.debug_nans, rls.Refined()), (jax.disable_jit, tight)]
    for switch, solver in cases:
        with switch(True):
            fit = rls.fit(rls.Gaussian(1.0), X, y, lams=[0.3], solver=solver)
            assert_close(fit.predict(X), want, 1e-6)
