"""Functions of rows that only the host reads: few programs, none the second time, and the numbers
of rows in memory.
"""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, COMPILED, DTYPE, EDGE, EPS, assert_close

import jaxrls as rls
from jaxrls import extend

model_module = importlib.import_module("jaxrls.front.model")

N, D = 40, 3
pytestmark = [ANY_PRECISION, EDGE]


def blocks(seed=0, n=N):
    X = np.random.default_rng(seed).normal(size=(n, D)).astype(DTYPE)
    y = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1)
    return X, y, rls.rows.stream([(part,) for part in np.split(X, [20])], block_size=20)


class Counted(rls.rows.Rows):
    """Rows of a user's, in blocks of any size."""

    def __init__(self, X):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype

    def blocks(self):
        yield from np.split(self.X, [7, 30])


KINDS = {
    "landmarks": (rls.Gaussian(1.5), {"landmarks": 7, "keep": True}),
    "features": (rls.Linear(), {"per_target": True, "criterion": "gcv"}),
}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        pytest.param("landmarks", "stream", marks=pytest.mark.slow),
        ("features", "rows of a user's"),
    ],
)
def test_a_fit_to_new_rows_of_the_same_shape_compiles_nothing(kind, source):
    """Nor does what is asked of it; and it has read the new rows."""
    kernel, options = KINDS[kind]
    for seed in (1, 2):
        X, y, rows = blocks(seed)
        rows = rows if source == "stream" else Counted(X)
        options |= {"landmarks": X[:7]} if "landmarks" in options else {}
        COMPILED.clear()
        fit = rls.fit(kernel, rows, y, lams=[0.1, 1.0], **options)
        found = fit.errors, fit.predict(rows)
        found += fit.intervals(rows, 0.9) if "keep" in options else ()
        assert seed == 1 or not COMPILED
    want = rls.fit(kernel, X, y, lams=[0.1, 1.0], **options)
    expected = want.errors, want.predict(X)
    expected += want.intervals(X, 0.9) if "keep" in options else ()
    for got, value in zip(found, expected, strict=True):
        assert_close(got, value, 1e4 * N * EPS)


@pytest.mark.slow
def test_a_reading_inside_of_a_transformation_is_done_outside_of_any_program():
    X, y, rows = blocks(3)

    @extend.pytree
    class Inside(rls.extend.Criterion):
        name = "inside"

        def values(self, solution, lams, kernel):
            return jax.jit(lambda lams: jnp.mean(solution.held_out_residuals(lams) ** 2, axis=1))(
                lams
            )

    options = {"criterion": Inside(), "lams": [0.1, 1.0], "landmarks": X[:7]}
    got, want = (rls.fit(rls.Gaussian(1.5), source, y, **options).errors for source in (rows, X))
    assert_close(got, want, 200 * N * EPS / 0.1)


@pytest.mark.slow
def test_a_fit_takes_few_programs():
    """Some are those of the landmarks' choice, and of units and numbers in the report."""
    X, y, rows = blocks(2, N + 1)
    COMPILED.clear()
    rls.fit(rls.Gaussian(1.7), rows, y[:, 0], lams=[0.1, 1.0], landmarks=8)
    assert 0 < len(COMPILED) <= 60


def test_few_rows_are_predicted_by_one_program_for_a_power_of_two_of_them():
    X = np.random.default_rng(0).normal(size=(200, D)).astype(DTYPE)
    fit = rls.fit(rls.Gaussian(1.5), X, np.sin(X[:, 0]), lams=[0.1])
    want = np.asarray(fit.predict(X))
    COMPILED.clear()
    fit.predict(X[:65])
    COMPILED.clear()
    for m in range(66, 129, 9):
        assert_close(fit.predict(X[:m]), want[:m], 100 * EPS)
    assert not COMPILED


def test_many_rows_are_predicted_in_parts_by_the_same_programs(monkeypatch):
    """Whose sizes are powers of two, whatever the number of rows; also with fixed effects."""
    monkeypatch.setattr(model_module, "LARGEST_PART", 16)
    X = np.random.default_rng(0).normal(size=(50, D)).astype(DTYPE)
    column = np.arange(50.0, dtype=DTYPE)[:, None]
    fit = rls.fit(rls.Gaussian(1.5), X, np.sin(X[:, 0]), lams=[0.1], fixed_effects=column)
    model = fit.model
    K = np.asarray(rls.extend.gram(model.kernel, X, X))
    effects = float(model.intercept) + column[:, 0] * float(model.free[0])
    want = K @ np.asarray(model.coef) + effects
    for m in (50, 35, 49):  # in parts of 16, and of 2, 4 and 1
        fit.predict(X[:m], fixed_effects=column[:m])
    COMPILED.clear()
    for m in (50, 49, 34, 16, 3):
        got = fit.predict(X[:m], fixed_effects=column[:m])
        assert_close(got, want[:m], 1e3 * EPS)
    assert not [name for name in COMPILED if "evaluate" in name]


@pytest.mark.slow
def test_few_rows_with_known_values_may_be_fitted_where_others_are_traced():
    """Their programs are compiled with options that no part of another program may have; and what
    a kernel closes over may be traced.
    """
    X = jnp.asarray(np.random.default_rng(0).normal(size=(64, D)), DTYPE)
    y = jnp.sin(X[:, 0])

    def error(w):
        known = rls.fit(rls.Gaussian(1.5), X, y, lams=[0.1], landmarks=8)
        squared = rls.FunctionKernel(lambda A, B: (1 + w * A @ B.T) ** 2)
        return w * known.error + rls.fit(squared, X, y, lams=[0.1, 1.0]).error

    want, scales = float(error(2.0)), np.full(3, 2, DTYPE)
    assert_close(jax.jit(jax.vmap(error))(scales), np.full(3, want), 1e4 * EPS)


@pytest.mark.slow
def test_a_function_of_yours_keeps_what_it_read_until_there_is_another():
    """As the page on what is your own says; a new function reads anew."""
    X, y, _ = blocks()
    read = {"power": 2}

    def loss(e, y, power=None):
        return jnp.abs(e) ** (power or read["power"])

    fit = lambda loss: rls.fit(rls.Linear(), X, y, lams=[1.0], criterion=extend.LeaveOneOut(loss))
    first = fit(loss)
    read["power"] = 4
    assert fit(loss).error == first.error
    want = np.mean(np.asarray(first.loo_residuals) ** 4)
    assert_close(fit(partial(loss, power=4)).error, want, 1e3 * EPS)


def test_gpus_compile_without_trials_of_algorithms(monkeypatch):
    """Of any size, in public calls with known values; XLA takes the options by these names."""
    module = importlib.import_module("jaxrls.core.data.compiled")
    asked = []
    options_of = module._options_of
    monkeypatch.setattr(module, "platform", lambda: "gpu")
    monkeypatch.setattr(
        module, "_options_of", lambda where: asked.append(where) or options_of(where)
    )
    double = module.compiled(lambda x: 2 * x, often=True)
    many = jnp.ones(module.PADDED_UP_TO + 1)
    assert double(many).sum() == 2 * len(many) and asked == ["gpu"]
    assert jax.jit(double)(many).sum() == 2 * len(many) and asked == ["gpu"]
    assert options_of("gpu") == module.OPTIONS["gpu"] != {}
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.jit(lambda: 0, compiler_options={"xla_gpu_no_such_option": 0})()
