"""The one call, end to end: the choice of λ, what comes back, warnings and errors word by word."""

import os
import re
import subprocess
import sys
import warnings
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pyarrow as pa
import pytest
import scipy.sparse
from contract.cases import WIDTH, gaussian
from extended import Truth
from sklearn.metrics import r2_score
from support import ANY_PRECISION, COMPILED, DTYPE, EPS, array, assert_close, no_fit, refused, wide

import jaxrls as rls
from jaxrls import extend

# Of data in float64, which `fit` keeps, whatever the switch says.
pytestmark = ANY_PRECISION
KERNEL = rls.Gaussian(WIDTH)
LAMS = np.logspace(-4, 2, 7)


def data(n=24, seed=0):
    """One target that wants little regularisation and another that wants much, in float64, which
    `fit` keeps.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, :1]) + X[:, 1:] + rng.normal(size=(n, 2)) * [0.05, 2.0] + 3


def truth(X, Y, lams, v=None, new=None):
    """The oracle of them."""
    v, new = np.ones(len(X)) if v is None else v, X if new is None else new
    K, K_new = gaussian(X, X), gaussian(new, X)
    kernel, ones = lambda gone: (K, K_new, np.ones(len(new))), np.ones((len(new), 1))
    return Truth(kernel, Y, Y, v, lams, np.arange(len(X)), True, fixed_new=ones)


# the choice
# --------------------------------------------------------------------------------------------------


def test_the_best_lam_by_brute_force():
    (X, Y), groups = data(), np.arange(24) % 5
    v = np.random.default_rng(0).uniform(0.2, 3, 24)
    errors = truth(X, Y, LAMS, v).mean_square(groups)[0].astype(float)
    options = {"lams": LAMS, "groups": groups, "weights": v}
    shared, each = (rls.fit(KERNEL, X, Y, per_target=own, **options) for own in (False, True))
    assert_close(shared.errors, errors, 1e-8, "errors")
    best = errors.mean(1).argmin()
    assert shared.lam == LAMS[best] and shared.lam.shape == () == shared.error.shape
    assert_close(shared.error, errors.mean(1)[best], 1e-8, "error")
    assert len(set(errors.argmin(0))) == 2  # or one λ would do for both
    assert each.lam.tolist() == LAMS[errors.argmin(0)].tolist()
    assert_close(each.error, errors.min(0), 1e-8, "error of each")


def test_what_comes_back_belongs_to_the_chosen_lam():
    (X, Y), new = data(), data(7, seed=1)[0]
    fit = rls.fit(KERNEL, X, Y, lams=LAMS, per_target=True)
    want = truth(X, Y, np.asarray(fit.lam), new=new).table
    predicted = fit.predict(new, block_size=4)
    for t in (0, 1):
        assert_close(predicted[:, t], want["predictions"][t, :, t], 1e-7, "predict")
        assert_close(
            fit.loo_residuals[:, t], want["held_out_residuals"][t, :, t], 1e-7, "residuals"
        )
        assert_close(fit.dof[t], want["dof"][t, 0], 1e-7, "dof")
    left = 1 - np.mean(fit.loo_residuals**2, axis=0) / Y.var(axis=0)
    assert_close(fit.r2, left.mean(), 1e-12)
    assert f"held-out R² {left.mean():.3g}, " in repr(fit)
    assert fit.route == "gram" and fit.dof.shape == fit.lam.shape == (2,)


@pytest.mark.slow
def test_constant_labels_have_nothing_to_explain():
    X, _ = data()
    v, constant = np.arange(24) > 2, np.where(np.arange(24) > 2, 2.5, 9)
    for Y, weights in ((np.full(24, 0.1), None), (constant, v.astype(float))):
        with pytest.warns(UserWarning, match="the labels are all equal"):
            assert rls.fit(KERNEL, X, Y, weights=weights, lams=[0.3]).r2 == 0


@extend.pytree
class Given(extend.Criterion):
    """Errors of our own (L, t), which are data: one program serves whatever they are."""

    table: np.ndarray
    name = "given"

    def values(self, solution, lams, kernel):
        return jnp.asarray(self.table, lams.dtype)


def with_errors(*columns):
    """A criterion with errors of our own, one column for each target."""
    return Given(np.array(columns, float).T)


@ANY_PRECISION(False)
def test_a_default_fit_inside_of_jit_and_vmap():
    """Where no λ is known, so that the grid is all that is looked at; of data whose best λ is far
    from rounding, so that it is outside too. The grid begins at the smallest eigenvalue, which
    rounding moves by eps s_max. (With weights, λ that are given in test_transforms.py.)
    """
    sets = [data(seed=seed) for seed in (0, 1)]
    X, y = (jnp.stack([array(one[i]) for one in sets]) for i in (0, 1))
    y = y + 0.5 * array(np.random.default_rng(2).normal(size=y.shape))

    def fit(X, y):
        found = rls.fit(KERNEL, X, y)
        return found.lam, found.error, found.predict(X)

    together = jax.jit(jax.vmap(fit))(X, y)
    for i in (0, 1):
        for one, want in zip(together, fit(X[i], y[i]), strict=True):
            assert_close(one[i], want, EPS**0.5)


def test_ties_go_to_the_larger_lam():
    X, Y = data()

    def chosen(*columns, lams=(1.0, 2.0, 3.0, 4.0, 5.0), **options):
        labels = Y[:, 0] if len(columns) == 1 else Y
        criterion = with_errors(*columns)
        return rls.fit(KERNEL, X, labels, lams=lams, criterion=criterion, **options).lam.tolist()

    tied = [2, 1, 1, 3, 4], [5, 5, 2, 2, 6]
    assert chosen(tied[0]) == 3 and chosen(*tied, per_target=True) == [3, 4]
    assert chosen([0, 1, 3, 4, 4], [4, 2, 0, 0, 2]) == 3  # means 2 1.5 1.5 2 3
    assert chosen([3, 1, 2, 4, 1], lams=[4.0, 3.0, 1.0, 5.0, 2.0]) == 3


def test_values_for_each_target_are_chosen_for_each_target():
    """By a `Choice` that does not say so."""
    factor = rls.factorize(rls.Precomputed(), array(np.eye(3)), intercept=False)
    lams = extend.Given(array([[0.25, 2.0], [1.0, 0.5]]))
    choice = extend.Choice(with_errors([2, 1], [1, 2]), lams)
    chosen = choice.of(factor.solve(array(np.ones((3, 2)))), rls.Precomputed())
    assert (chosen.lam.tolist(), chosen.error.tolist()) == ([1.0, 2.0], [1.0, 1.0])


# what goes in and what comes out
# ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_axes():
    (X, Y), new = data(), data(7, seed=1)[0]
    for labels, shape in ((Y[:, 0], ()), (Y[:, :1], (1,)), (Y, (2,))):
        fit, each = (rls.fit(KERNEL, X, labels, lams=LAMS, per_target=own) for own in (False, True))
        chex.assert_shape([fit.errors, fit.predict(new)], (7, *shape))
        chex.assert_shape([fit.model.coef, fit.loo_residuals], (24, *shape))
        assert fit.model.intercept.shape == each.lam.shape == shape and fit.lam.shape == ()


def test_input_of_every_kind():
    """Lists, integers, column-major and pandas give the fit of the same numbers in float64."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (24, 2))
    Y = X[:, 0] * 2 - X[:, 1] + rng.integers(-1, 2, 24)
    expected = rls.fit(KERNEL, X.astype(float), Y.astype(float), lams=LAMS)
    frame = pandas.DataFrame(X, columns=["a", "b"])
    for x, y in (
        (X.tolist(), Y.tolist()),
        (X, Y),
        (X.astype(np.uint8), Y.astype(np.int16)),
        (frame, pandas.Series(Y)),
        (np.asfortranarray(X), tuple(Y)),
    ):
        fit = rls.fit(KERNEL, x, y, lams=list(LAMS))
        assert fit.errors.dtype == np.float64
        assert_close(fit.errors, expected.errors, 0, type(x).__name__)
        assert_close(fit.predict(x), expected.predict(X), 0, type(x).__name__)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chosen λ")
def test_columns_of_a_frame_are_taken_by_name(tmp_path):
    """In any order, beside others, in everything that takes new rows; a missing one is named, and
    arrays are taken as they are.
    """
    X, new = (np.random.default_rng(seed).normal(size=(n, 3)) for seed, n in ((0, 24), (1, 7)))
    Y = np.sin(X[:, 0]) + X[:, 2]
    kinds = (
        lambda A, names: pandas.DataFrame(A, columns=names),
        lambda A, names: pa.table([*A.T], names=names),
    )
    turned, path = new[:, [2, 0, 1]], tmp_path / "new.npy"
    choices = (
        lambda rows: {"criterion": rls.holdout(rows, np.ones(7))},
        lambda rows: {"keep": True},
        lambda rows: {"landmarks": rows, "keep": True},
    )
    for frame, names in ((kinds[0], list("abc")), (kinds[1], list("abc")), (kinds[0], [0, 1, 2])):
        other = frame(np.c_[turned, new[:, 0]], [*(names[i] for i in (2, 0, 1)), "more"])
        for options in choices:
            fit = rls.fit(KERNEL, frame(X, names), Y, lams=LAMS, **options(other))
            want = rls.fit(KERNEL, X, Y, lams=LAMS, **options(new))
            assert fit.model.names == tuple(names)
            assert_close(fit.errors, want.errors, 1e-10, "errors")
            assert_close(fit.predict(other), want.predict(new), 1e-10, "by name")
            assert_close(fit.predict(new), want.predict(new), 1e-10, "an array")
            assert rls.predict_to_file(fit, other, path) == len(new)
            assert_close(np.load(path), want.predict(new), 1e-10, "to a file")
        assert_close(fit.with_lam(0.5).predict(other), want.with_lam(0.5).predict(new), 1e-10)
        functions = rls.diagnostics.eigenfunctions(
            rls.factorize(KERNEL, X), KERNEL, frame(X, names), 2
        ).functions
        assert_close(functions.predict(other), functions.predict(new), 1e-10, "eigenfunctions")
        interval = zip(fit.intervals(other), want.intervals(new), strict=True)
        assert all((ours == theirs).all() for ours, theirs in interval)
        more, same = fit.update(other, np.ones(7)), want.update(new, np.ones(7))
        assert_close(more.predict(other), same.predict(new), 1e-10, "updated")
        rls.save(tmp_path / "fit.safetensors", fit)
        again = rls.load(tmp_path / "fit.safetensors")
        assert_close(again.predict(other), want.predict(new), 1e-10, "from a file")
        lacking = frame(new[:, 1:], names[1:])
        words = f"X lacks 1 of the 3 columns that were fitted, {names[0]!r}: give a frame"
        refused((partial(fit.predict, lacking), words), (partial(fit.posterior, lacking), words))
        twice = frame(np.c_[new, new[:, 2]], [*names, names[2]])
        words = f"X has 2 columns {names[2]!r}, and one was fitted: rename or drop"
        refused((partial(fit.predict, twice), words))
        twice = frame(new, [names[0], names[2], names[2]])
        refused((partial(fit.predict, twice), words), (partial(fit.posterior, twice), words))
        repeated = frame(np.c_[turned, new[:, 0], new], [*(names[i] for i in (2, 0, 1)), *"mmno"])
        assert_close(fit.predict(repeated), want.predict(new), 1e-10, "of others")
    split = [rls.Linear().on(0), rls.Linear().on([1, 2])]
    frame, given = kinds[0](X, ["a", "b", "c"]), {"shares": [[0.5, 0.5]], "lams": [1.0]}
    several = rls.several.fit_kernels(split, frame, Y, **given)
    want = rls.several.fit_kernels(split, X, Y, **given)
    other = kinds[0](turned, ["c", "a", "b"])
    assert_close(several.predict(other), want.predict(new), 1e-10)
    rls.predict_to_file(several, other, path)
    assert_close(np.load(path).ravel(), want.predict(new).ravel(), 1e-10, "to a file")


@pytest.mark.filterwarnings("ignore:the chosen λ")
@pytest.mark.parametrize(
    "names",
    [
        [1100.0, 1102.5, 1105.0],
        pandas.date_range("2020", periods=3),
        ["a", None, ("b", 2.5)],
        pandas.Index(["a", np.int64(3), np.nan]),
    ],
    ids=["wavelengths", "dates", "mixed", "an index"],
)
def test_columns_whose_names_are_no_text_go_by_name(tmp_path, names):
    X = wide(np.random.default_rng(0).normal(size=(24, 3)))
    frame = pandas.DataFrame(X)
    frame.columns = names
    turned = frame.iloc[:, [2, 0, 1]]
    fit = rls.fit(KERNEL, frame, frame, lams=LAMS)
    want = fit.predict(X)
    rls.save(tmp_path / "fit", fit)
    for again in (fit, rls.load(tmp_path / "fit")):
        assert (again.predict(turned) == want).all()
        assert again.score(frame, turned) == fit.score(X, X)
    refused((lambda: fit.predict(turned.iloc[:, :2]), "X lacks 1 of the 3 columns"))


def uneven():
    """Columns in units far apart, one of them constant; labels; new rows."""
    (X, Y), new = data(), data(7, seed=1)[0]
    columns = lambda part: np.c_[
        1e-170 * part[:, :1], part[:, 1:] / 100 + 3, np.full(len(part), 0.1)
    ]
    return columns(X), Y, columns(new)


@pytest.mark.slow
def test_columns_are_standardised_and_the_model_remembers_how():
    """The fit to columns standardised by hand, by rows of positive weight, and what comes of it.
    (Files are in test_cli.py, streams in test_cli_streams.py.)
    """
    X, Y, new = uneven()
    v = np.where(np.arange(24) % 5 == 2, 0, np.linspace(0.5, 2, 24))
    centre = np.average(X, axis=0, weights=v)
    unit = np.array([1e-170, 1, 1])  # whose squares are 0
    scale = np.sqrt(np.average(((X - centre) / unit) ** 2, axis=0, weights=v)) * unit
    scale[2] = 1  # of a constant column, to rounding
    by_hand = lambda A: (A - centre) / scale
    given = {"lams": [1.0], "weights": v, "landmarks": np.arange(6), "keep": True}
    found = rls.fit(KERNEL, X, Y, standardize=True, **given)
    want = rls.fit(KERNEL, by_hand(X), Y, **given)
    assert_close(found.predict(new), want.predict(by_hand(new)), 1e-8, "predictions")
    spread = [fit.predict(x, return_std=True)[1] for fit, x in ((found, new), (want, by_hand(new)))]
    assert_close(*spread, 1e-6, "standard deviations")
    found, want = found.update(new, Y[:7]), want.update(by_hand(new), Y[:7])
    assert_close(found.predict(X), want.predict(by_hand(X)), 1e-8, "updated")
    assert found.kernel.scale[2] == 1


@pytest.mark.slow
def test_columns_of_a_search_are_standardised():
    X, Y, _ = uneven()
    tuned = rls.tune(KERNEL, X, Y, standardize=True, steps=1, start="kernel", lams=[1.0])
    unit = np.array([1e-170, 1, 1])
    assert_close(tuned.kernel.centre / unit, X.mean(axis=0) / unit, 1e-12)
    assert tuned.kernel.scale[2] == 1 and tuned.kernel.kernel.width != WIDTH


@pytest.mark.slow
def test_targets_of_a_frame_are_taken_by_name(tmp_path):
    """In scores, held-out rows, updates and blocks of streams; other names say nothing of order."""
    rng = np.random.default_rng(3)
    X = wide(rng.normal(size=(40, 2)))
    Y = wide(np.stack([X[:, 0], 9 - 3 * X[:, 1]], axis=1) + 0.1 * rng.normal(size=(40, 2)))
    frame = pandas.DataFrame(Y, columns=["a", "b"])
    turned = frame[["b", "a"]]
    options = {"lams": [0.1], "keep": True}
    fit = rls.fit(rls.Linear(), X, frame, **options)
    want = rls.fit(rls.Linear(), X, Y, **options)
    rls.save(tmp_path / "fit", fit)
    for again in (fit, rls.load(tmp_path / "fit"), fit.with_lam(0.01)):
        assert again.score(X, turned) == again.score(X, Y) > 0.9
        assert again.score(X, turned.set_axis(["c", "d"], axis=1)) < 0
    grown, expected = fit.update(X[:9], turned[:9]), want.update(X[:9], Y[:9])
    assert_close(grown.model.coef, expected.model.coef, 10 * EPS)
    back = grown.forget(X[:9], turned[:9])
    assert_close(back.predict(X), want.predict(X), 1e4 * EPS)
    held = rls.fit(rls.Linear(), X, frame, criterion=rls.holdout(X, turned), **options)
    by_place = rls.fit(rls.Linear(), X, Y, criterion=rls.holdout(X, Y), **options)
    assert_close(held.errors, by_place.errors, 10 * EPS)
    blocks = [(X[:20], frame[:20]), (X[20:], turned[20:])]
    streamed = rls.fit(rls.Linear(), rls.rows.stream(blocks), lams=[0.1])
    assert_close(streamed.predict(X), want.predict(X), 1e4 * EPS)


@pytest.mark.slow
def test_kernels_by_name_are_as_wide_as_rows_are_apart():
    X, Y = data()
    kernel_of = lambda *given, **options: extend.read_problem(*given, **options).kernel
    part = kernel_of(rls.Gaussian("median").on(0) + rls.Gaussian(3), X, Y)
    assert_close(part.left.kernel.width, rls.extend.median_distance(jnp.asarray(X[:, :1])), 1e-6)
    assert part.right.width == 3
    away, v = np.concatenate([X, 1e3 + X]), np.repeat([1.0, 0.0], 24)
    wanted = rls.extend.median_distance(jnp.asarray(X))
    for rows in (away, scipy.sparse.csr_array(away)):
        found = kernel_of("matern52", rows, np.concatenate([Y, Y]), weights=v)
        assert_close(found.width, wanted, 1e-6, "rows of weight 0 were never there")
    named = "matern52", np.concatenate([X, X[:9]]), np.concatenate([Y, Y[:9]])
    assert_close(
        rls.fit(*named, lams=LAMS).kernel.width, wanted, 1e-6, "a row of weight 2 is two equal rows"
    )


@pytest.mark.parametrize(("name", "hint"), [("alpha", "lams=[…]"), ("weigths", "weights=")])
def test_arguments_by_other_names(name, hint):
    with pytest.raises(TypeError, match="Gaussian takes no widht=: did you mean width=. And no x="):
        rls.Gaussian(widht=1.0, x=1.0)
    for door in (rls.fit, rls.tune):
        with pytest.raises(TypeError, match=re.escape(f"{name}=: did you mean {hint}?")):
            door(KERNEL, *data(), **{name: 1.0})


@ANY_PRECISION(False)
def test_factors_of_whole_numbers_are_those_of_the_same_numbers():
    whole = np.arange(8, dtype=np.int32).reshape(4, 2)
    rows = whole.astype(DTYPE), jnp.asarray(whole), whole, whole.tolist()
    expected, *factors = jax.jit(lambda: [rls.factorize(KERNEL, X) for X in rows])()
    for factor in factors:
        assert factor.dtype == DTYPE
        assert_close(factor.s, expected.s, 0)


def test_float64_is_kept_where_the_switch_is_off():
    """NumPy float64 in, NumPy float64 out, to float64's precision, while JAX stays in float32: the
    switch is not the library's.
    """
    X, Y = data()
    with jax.enable_x64(True):
        expected = rls.fit(KERNEL, X, Y, lams=LAMS)
    with jax.enable_x64(False):
        fit = rls.fit(KERNEL, X, Y, lams=LAMS)
        prediction = fit.predict(X)
        leaves = [leaf for leaf in jax.tree.leaves(fit) if not isinstance(leaf, float)]
        for found in (*leaves, prediction, rls.extend.gram(KERNEL, X)):
            assert isinstance(found, np.ndarray) and found.dtype in (np.float64, bool)
        narrow = rls.fit(KERNEL, jnp.asarray(X), Y, lams=LAMS[2:])
        assert (
            isinstance(narrow.errors, jax.Array)
            and narrow.errors.dtype == jnp.float32 == narrow.predict(X).dtype
        )
        with pytest.raises(ValueError, match="X holds 1 values"):
            rls.fit(KERNEL, np.where(np.arange(48).reshape(24, 2) == 5, np.nan, X), Y)
        assert jnp.ones(1).dtype == jnp.float32
    assert_close(fit.errors, expected.errors, 1e-9, "errors")
    assert_close(prediction, expected.predict(X), 1e-9, "predictions")


def test_a_fresh_process():
    """Import leaves the switch alone and warns of nothing; the first fit is in float64 all the
    same; warnings point at the caller's line.
    """
    program = """
import warnings, numpy as np, jax, jaxrls as rls
assert not jax.config.jax_enable_x64
X = np.linspace(0, 1, 20)[:, None]
fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
assert fit.lam.dtype == fit.predict(X).dtype == np.float64
assert fit.floor < 1e-13 and not jax.config.jax_enable_x64 and jax.numpy.ones(1).dtype == np.float32
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rls.fit(rls.Gaussian(0.3), X, X[:, 0], lams=[1.0, 2.0])
assert [(w.filename, w.category) for w in caught] == [("<string>", UserWarning)], caught
"""
    own = {"JAX_ENABLE_X64": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# warnings
# --------------------------------------------------------------------------------------------------


def heard(*args, **options):
    """The fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(*args, **options)
    return fit, [str(w.message) for w in caught]


def test_warns_at_the_edge_of_the_grid():
    X, Y = data()
    _, messages = heard(KERNEL, X, Y[:, 0], lams=1e4 * LAMS)
    assert messages == [
        "the chosen λ, 1, is the smallest of the grid: pass lams= that reach smaller values, or "
        "change the kernel"
    ]
    (message,) = heard(KERNEL, X, Y[:, 1], lams=1e-4 * LAMS)[1]
    words = "the chosen λ, 0.01, is the largest of the grid: pass lams= that reach larger values"
    assert words in message
    (message,) = heard(KERNEL, X, Y, lams=1e-2 * LAMS, per_target=True)[1]
    assert "the largest of the grid" in message
    assert heard(KERNEL, X, Y, lams=LAMS)[1] == [] == heard(KERNEL, X, Y, lams=[1.0])[1]


def test_warns_below_the_precision_of_the_factor():
    """Where such a λ was chosen, or the next one above, which may have been chosen for the noise
    below it; not for what a grid holds besides.
    """
    X, Y = data()
    lams = np.array([1e-16, *LAMS])
    for best, warned in ((0, True), (1, True), (2, False), (5, False)):
        fit, messages = heard(
            KERNEL, X, Y, lams=lams, criterion=with_errors(*2 * [np.abs(np.arange(8.0) - best)])
        )
        words = f"λ below {fit.floor:.2g} is below the precision of the factor, and the grid "
        words += "goes down to 1e-16: leave such λ out" + ", or use float64" * (
            fit.lam.dtype == np.float32
        )
        assert [m for m in messages if "precision" in m] == [words] * warned and fit.lam == lams[
            best
        ]


def test_warns_of_an_indefinite_kernel():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(24, 24)))[0]
    K = (Q * np.append(-0.5, np.linspace(1, 2, 23))) @ Q.T
    K = (K + K.T) / 2
    y, best = rng.normal(size=24), with_errors(np.abs(LAMS - 1))
    _, messages = heard(rls.Precomputed(), K, y, lams=LAMS, criterion=best, intercept=False)
    assert messages == [
        "the kernel matrix is not positive semidefinite: its most negative eigenvalue, 0.25 of the "
        "largest, was set to 0: check the matrix, or take another kernel"
    ]


def test_no_factors_take_over_from_a_spectrum_of_an_indefinite_kernel():
    """They would be rounded less at a λ near the floor, but keep the negative eigenvalue."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(size=40))
    negative = np.linalg.qr(rng.normal(size=(40, 1)))[0]
    K = np.exp(-((x[:, None] - x) ** 2) / 0.18) - 4e-10 * negative @ negative.T
    fit, messages = heard(rls.Precomputed(), K, np.sin(6 * x), intercept=False)
    assert fit.lam < 5 * fit.floor and fit.route == "gram"
    assert "not positive semidefinite" in messages[0]
    by_factor, _ = heard(
        rls.Precomputed(), K, np.sin(6 * x), lams=[1.0], solver=rls.Cholesky(), intercept=False
    )
    assert fit.indefinite > 0 and by_factor.indefinite is None


# errors
# --------------------------------------------------------------------------------------------------

X0, Y0 = np.arange(8.0).reshape(4, 2), np.arange(4.0)


REFUSED = [
    ({"Y": Y0[:3]}, "Y must have shape (4,) or (4, t), one row per row of X, and has shape (3,)"),
    ({"Y": Y0 * np.nan}, "Y holds 4 values that are NaN or infinite, the first at index (0,)"),
    (
        {"lams": [1.0, -1.0]},
        "lams must be positive, or 0 for the floor of the factor, and the smallest is -1.0",
    ),
    (
        {"lams": []},
        "lams is empty: give at least one λ, or leave it out for the grid from the spectrum",
    ),
    (
        {"kernel": rls.Precomputed(), "X": np.triu(np.ones((4, 4)))},
        "X, as the precomputed kernel matrix, is not symmetric: entries differ",
    ),
    (
        {"kernel": rls.Precomputed(), "X": np.eye(4), "standardize": True},
        "standardize= is for columns of X, and X holds a kernel matrix",
    ),
    ({"solver": "dual"}, "solver must be Spectral(), Cholesky(), Refined() or Iterative()"),
    (
        {"solver": rls.Spectral("features")},
        "Spectral() needs explicit features, which Gaussian does not have",
    ),
    ({"block_size": 0}, "block_size must be a whole number of at least 1, and is 0"),
    (
        {"groups": [0, 0, 1, 1], "criterion": rls.gcv},
        "groups= leaves groups out in place of single rows, and criterion is gcv",
    ),
    *(
        (
            {"criterion": wrong},
            "kfold(groups), holdout(X, Y), a jaxrls.extend.Criterion or a function",
        )
        for wrong in (rls.kfold, rls.holdout, jax.jit(rls.gcv))
    ),
    (
        {"Y": Y0[:, None], "criterion": lambda *args: jnp.ones(2), "lams": [1.0, 2.0]},
        "must return shape (2, 1), an error for each λ, and returned (2,)",
    ),
    ({"lams": 1}, "lams must be how many λ, 2 or more, or an array of them, or 'search', and is 1"),
    ({"lams": 0.1}, "for λ = 0.1 give lams=[0.1]"),
    *(
        ({"conservative": 1, **searched}, "or given by lams=[…]: take those, not those of a search")
        for searched in ({"lams": "search"}, {"solver": rls.Cholesky()})
    ),
    ({"conservative": 1, "criterion": "gcv"}, "take those, not criterion gcv"),
    ({"conservative": -1}, "conservative must be a number of standard errors, 0 or more"),
    (
        {"criterion": rls.kfold([([2, 3], [0, 1])]), "weights": [0, 0, 1, 1]},
        "groups or splits hold out no row of weight above 0: give others",
    ),
    ({"groups": [0, 1]}, "groups must have 4 labels, one per row of X, and has 2"),
    (
        {"criterion": rls.extend.LeaveOneOut(rls.classes.zero_one_loss), "Y": [-1.0, 1, 0, 1]},
        "Y must hold −1 and 1 for zero_one_loss, and holds 0.0: give 2 Y − 1 for labels 0 and 1",
    ),
    (
        {"criterion": rls.holdout(np.where(X0 == 5, np.nan, X0), Y0)},
        "X of holdout holds 1 values that are NaN or infinite",
    ),
    (
        {"criterion": rls.holdout(X0[:, :1], Y0)},
        "X of holdout must have the 2 columns of X, and has 1",
    ),
    ({"criterion": rls.holdout(X0, Y0[:2])}, "Y of holdout must have shape (4,)"),
]


def test_what_fit_refuses():
    for options, message in REFUSED:
        call = partial(rls.fit, **{"kernel": KERNEL, "X": X0, "Y": Y0, **options})
        with no_fit():
            refused((call, re.escape(message)))


def test_a_lam_that_the_dtype_takes_for_0_is_refused():
    """0 stands for the floor, at which another model would be fitted."""
    narrow = X0.astype(np.float32), Y0.astype(np.float32)
    least = "lams holds 1e-50, which is 0 in float32: give float64 data"
    refused((lambda: rls.fit(KERNEL, *narrow, lams=[1.0, 1e-50]), least))


def test_what_predict_refuses():
    of_features = rls.fit(rls.Linear(), X0, Y0, lams=[1.0])
    of_matrix = rls.fit(rls.Precomputed(), np.eye(4), Y0, lams=[1.0])
    of_last = rls.fit(rls.Linear().on(-1), X0, Y0, lams=[1.0])  # of one feature, whatever the width
    wider = np.c_[X0, Y0]
    fitted = "the columns it was fitted on, and has"
    refused(
        (lambda: of_features.predict(X0[:, :1]), f"X must have 2 columns, {fitted} 1"),
        (lambda: of_last.predict(wider), f"X must have 2 columns, {fitted} 3"),
        (lambda: of_last.update(wider, Y0), f"X must have 2 columns, {fitted} 3"),
        (lambda: of_matrix.predict(X0), "X must have 4 columns, one column per training row, as"),
        *(
            (lambda new=new: of_features.predict(new, fixed_effects=X0[:, :1]), "was given, and")
            for new in (X0, jnp.asarray(X0))
        ),
    )


def test_a_problem_too_large_for_lapack_is_refused_before_the_work(monkeypatch):
    """For memory in test_estimate.py."""
    X = np.zeros((1000, 1))
    monkeypatch.setattr("jaxrls.front.memory.LARGEST_CPU_EIGH", 999)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    words = "X has 1000 rows.* LAPACK's 32-bit interface cannot factor more than 999: use landmar"
    refused((lambda: rls.fit(KERNEL, X, np.zeros(1000), solver=rls.Spectral()), words))


def test_a_broken_factorization_is_said():
    """Errors that are not finite stop the fit, instead of an argmin over NaN."""
    (X, Y), criterion = data(), with_errors([1, np.nan, 1, 1, 1])
    call = partial(rls.fit, KERNEL, X, Y[:, 0], lams=np.arange(1.0, 6.0), criterion=criterion)
    refused((call, "not finite at 1 of 5 λ: the factorization broke down; (take|use float64)"))


@pytest.mark.slow
def test_scores_of_every_target_are_those_of_scikit_learn():
    """With weights, also of several kernels; and what is printed names all λ."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)).astype(DTYPE)
    Y = (X @ np.array([[1.0, 0], [0, 1]]) + rng.normal(size=(40, 2)) * [0.1, 9]).astype(DTYPE)
    v = rng.uniform(0.2, 2, 40).astype(DTYPE)
    fit = rls.fit(rls.Linear(), X, Y, per_target=True, lams=np.geomspace(1e-3, 1e9, 13))
    kernels = rls.several.fit_kernels([rls.Linear(), KERNEL], X, Y, shares=[[0.5, 0.5]], lams=[1.0])
    for model in (fit, kernels):
        predictions = np.asarray(model.predict(X))
        want = r2_score(Y, predictions, sample_weight=v, multioutput="raw_values")
        assert_close(model.score(X, Y, v, per_target=True), want, 1e-5)
        assert_close(model.score(X, Y, v), want.mean(), 1e-5)
    low, high = sorted(map(float, fit.lam))
    assert low < high and f"λ = {low:.3g} to {high:.3g} of 13" in repr(fit)


@pytest.mark.slow
def test_known_rows_beside_what_is_traced():
    """λ, or labels, alone under `vmap` and `grad`, which then run one program, the same again."""
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(DTYPE)
    y = np.sin(X[:, 0])
    kernel = rls.Gaussian(1.5)
    error = lambda lam: rls.fit(kernel, X, y, lams=lam[None]).error
    lams = jnp.asarray([0.1, 1.0], DTYPE)
    each = [
        float(rls.fit(kernel, X, y, lams=[float(lam)], solver=rls.Spectral()).error) for lam in lams
    ]
    np.testing.assert_allclose(jax.vmap(error)(lams), each, rtol=1e4 * EPS)
    assert float(jax.grad(error)(lams[0])) != 0
    of_labels = lambda y: rls.fit(kernel, X, y, lams=[0.1, 1.0]).error
    both = jnp.stack([y, 2 * y])
    jax.vmap(of_labels)(both)
    COMPILED.clear()
    jax.vmap(of_labels)(both)
    assert not COMPILED
    splits = [(np.arange(30), np.arange(30, 40))]
    weights = np.r_[np.ones(30), np.zeros(10)].astype(DTYPE)
    with pytest.raises(ValueError, match="hold out no row of weight above 0"):
        jax.grad(lambda y: rls.objective(kernel, X, y, 0.1, groups=splits, weights=weights))(
            jnp.asarray(y)
        )
