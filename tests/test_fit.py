"""The one call, end to end: the choice of λ, what comes back, warnings and errors word by word."""

import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import support
from support import DTYPE, X64, assert_close

import jaxrls as rls
from jaxrls.support import checks

KERNEL = rls.Gaussian(1.5)
LAMS = np.logspace(-4, 2, 7)


def data(n=24, t=2, seed=0):
    """One target that wants little regularisation and others that want much, in float64, which
    `fit` keeps.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    noise = np.array([0.05, 2.0, 0.5])[:t]
    return X, np.sin(2 * X[:, :1]) + X[:, 1:] + noise * rng.normal(size=(n, t)) + 3


def features(X, kernel=KERNEL):
    """Features of the kernel at the data, by Cholesky: what the oracle refits on."""
    with jax.enable_x64(True):
        K = np.asarray(kernel(jnp.asarray(X), jnp.asarray(X)))
    return np.linalg.cholesky(K + 1e-14 * np.eye(len(X)))


def brute_force(X, Y, lams=LAMS, groups=None, **options):
    """Leave-one-out or group-out error (L, t), one refit after the other."""
    groups = np.arange(len(X)) if groups is None else groups
    return np.array(
        [
            (oracle.group_residuals(features(X), Y, lam, groups, **options) ** 2).mean(0)
            for lam in lams
        ]
    )


# the choice
# ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, np.arange(24) % 5], ids=["leave one out", "groups"])
def test_the_best_lam_by_brute_force(groups):
    X, Y = data()
    errors = brute_force(X, Y, groups=groups, intercept=True)
    shared = rls.fit(KERNEL, X, Y, lams=LAMS, groups=groups)
    assert_close(shared.errors, errors, 1e-8, "errors")
    best = errors.mean(1).argmin()
    assert shared.lam == LAMS[best] and shared.lam.shape == () == shared.error.shape
    assert_close(shared.error, errors.mean(1)[best], 1e-8, "error")
    assert shared.criterion == ("loo" if groups is None else "kfold")

    each = rls.fit(KERNEL, X, Y, lams=LAMS, groups=groups, per_target=True)
    assert len(set(errors.argmin(0))) == 2  # or one λ would do for both
    assert each.lam.tolist() == LAMS[errors.argmin(0)].tolist()
    assert_close(each.error, errors.min(0), 1e-8, "error of each")


@pytest.mark.parametrize("per_target", [False, True])
def test_what_comes_back_belongs_to_the_chosen_lam(per_target):
    X, Y = data()
    fit = rls.fit(KERNEL, X, Y, lams=LAMS, per_target=per_target)
    new = data(7, seed=1)[0]
    for t, lam in enumerate(np.broadcast_to(fit.lam, 2)):
        with jax.enable_x64(True):
            cross = np.asarray(KERNEL(jnp.asarray(new), jnp.asarray(X)))
        w, b = oracle.refit(Phi := features(X), Y[:, t : t + 1], lam, intercept=True)
        dual = np.linalg.solve(Phi.T, w)
        assert_close(fit.predict(new)[:, t], (cross @ dual + b)[:, 0], 1e-7, "predict")
        assert_close(
            fit.loo_residuals[:, t],
            oracle.loo_residuals(Phi, Y[:, t : t + 1], lam, None, True)[:, 0],
            1e-7,
            "residuals",
        )
        H = (
            Phi @ oracle.refit(Phi, np.eye(24), lam, intercept=True)[0]
            + oracle.refit(Phi, np.eye(24), lam, intercept=True)[1]
        )
        assert_close(np.broadcast_to(fit.dof, 2)[t], np.trace(H), 1e-7, "dof")
    assert fit.dof.shape == fit.lam.shape == ((2,) if per_target else ())
    assert fit.route == "gram" and float(fit.floor) == pytest.approx(
        24**0.5 * np.finfo(float).eps * np.linalg.norm(features(X) - features(X).mean(0), 2) ** 2
    )


def with_errors(*columns):
    """A criterion with errors of our own, one column for each target."""

    def criterion(factor, Y, lams):
        del factor
        errors = jnp.asarray(np.array(columns).T, lams.dtype)
        return errors[:, 0] if Y.ndim == 1 else errors

    return criterion


def test_ties_go_to_the_larger_lam():
    X, Y = data()
    lams = [1.0, 2.0, 3.0, 4.0, 5.0]
    tied = with_errors([2, 1, 1, 3, 4], [5, 5, 2, 2, 6])
    assert rls.fit(KERNEL, X, Y[:, 0], lams=lams, criterion=tied).lam == 3
    assert rls.fit(KERNEL, X, Y, lams=lams, criterion=tied, per_target=True).lam.tolist() == [3, 4]
    assert (
        rls.fit(
            KERNEL, X, Y, lams=lams, criterion=with_errors([0, 1, 3, 4, 4], [4, 2, 0, 0, 2])
        ).lam
        == 3
    )  # means 2 1.5 1.5 2 3
    shuffled = rls.fit(
        KERNEL, X, Y[:, 0], lams=[4.0, 3.0, 1.0, 5.0, 2.0], criterion=with_errors([3, 1, 2, 4, 1])
    )
    assert shuffled.lam == 3 and shuffled.error == 1 and shuffled.lams.tolist() == [4, 3, 1, 5, 2]
    assert shuffled.criterion == "criterion"


def test_every_criterion():
    """`fit` chooses what the criterion itself says on the same factor; the evidence is made
    smaller-is-better.
    """
    X, Y = data()
    with jax.enable_x64(True):
        factor = support.factorize(KERNEL, jnp.asarray(X), intercept=True)
        lams, targets = jnp.asarray(LAMS), jnp.asarray(Y)
        seen, labels = data(9, seed=1)
        expected = {
            rls.loo: support.loo(factor, targets, lams),
            rls.gcv: support.gcv(factor, targets, lams),
            rls.log_marginal_likelihood: -support.log_marginal_likelihood(factor, targets, lams),
        }
        held_out = support.holdout(
            factor,
            targets,
            lams,
            support.gram(KERNEL, jnp.asarray(seen), jnp.asarray(X)),
            jnp.asarray(labels),
        )
        absolute = support.loo(factor, targets, lams, loss=rls.absolute_error)
    for criterion, errors in expected.items():
        fit = rls.fit(KERNEL, X, Y, lams=LAMS, criterion=criterion)
        assert fit.criterion == criterion.__name__
        assert_close(fit.errors, errors, 1e-9, fit.criterion)
        assert fit.lam == LAMS[np.asarray(errors).mean(1).argmin()]
    for criterion in (rls.loo, rls.holdout):
        fit = rls.fit(KERNEL, X, Y, lams=LAMS, criterion=criterion, validation=(seen, labels))
        assert fit.criterion == "holdout"
        assert_close(fit.errors, held_out, 1e-9, "holdout")
    assert_close(
        rls.fit(KERNEL, X, Y, lams=LAMS, loss=rls.absolute_error).errors,
        absolute,
        1e-9,
        "absolute error",
    )
    linear = rls.fit(
        rls.Linear(),
        X,
        Y,
        lams=[0.1, 1.0, 10.0, 100.0],
        validation=(seen, labels),
        route="features",
    )
    w, b = oracle.refit(X, Y, 1.0, intercept=True)
    assert_close(
        linear.errors[1], ((labels - seen @ w - b) ** 2).mean(0), 1e-9, "holdout on features"
    )


def test_weights_reach_fit_choice_and_error():
    X, Y = data()
    v = np.random.default_rng(0).uniform(0.2, 3, 24)
    fit = rls.fit(KERNEL, X, Y, lams=LAMS, weights=v)
    e = np.array([oracle.loo_residuals(features(X), Y, lam, v, True) for lam in LAMS])
    errors = np.einsum("n,Lnt->Lt", v, e**2) / v.sum()
    assert_close(fit.errors, errors, 1e-8, "errors")
    assert fit.lam == LAMS[errors.mean(1).argmin()]
    # weight 0 is a row that was never there
    kept = np.arange(24) % 6 > 0
    zero, without = (
        rls.fit(KERNEL, X, Y, lams=LAMS, weights=1.0 * kept),
        rls.fit(KERNEL, X[kept], Y[kept], lams=LAMS),
    )
    assert_close(zero.errors, without.errors, 1e-8, "errors without the rows of weight 0")
    assert_close(
        zero.predict(X), without.predict(X), 1e-8, "predictions without the rows of weight 0"
    )


def test_the_default_grid():
    X, Y = data()
    fit = rls.fit(KERNEL, X, Y)
    assert fit.lams.shape == (100,) and fit.errors.shape == (100, 2)
    assert fit.lams[0] >= 0.99 * fit.floor


# what goes in and what comes out
# ---------------------------------------------------------------------------------------------


def test_axes():
    X, Y = data()
    new = data(7, seed=1)[0]
    for labels, shape in ((Y[:, 0], ()), (Y[:, :1], (1,)), (Y, (2,))):
        fit = rls.fit(KERNEL, X, labels, lams=LAMS)
        assert fit.errors.shape == (7, *shape) and fit.predict(new).shape == (7, *shape)
        assert (
            fit.model.coef.shape == (24, *shape)
            and fit.model.intercept.shape == shape
            and fit.loo_residuals.shape == (24, *shape)
        )
        assert (
            fit.lam.shape == ()
            and rls.fit(KERNEL, X, labels, lams=LAMS, per_target=True).lam.shape == shape
        )


def test_predict_in_blocks():
    X, Y = data()
    new = data(11, seed=1)[0]
    for kernel in (KERNEL, rls.Linear()):
        fit = rls.fit(kernel, X, Y, lams=LAMS * 10)
        whole = fit.predict(new)
        assert whole.dtype == np.float64
        for size in (1, 4, 11, 100):
            assert_close(fit.predict(new, block_size=size), whole, 1e-14, f"blocks of {size}")
        assert_close(fit.model.predict(new), whole, 0, "model")
        assert_close(fit.predict(new[:1])[0], whole[0], 1e-14, "one row")


def test_a_linear_model_keeps_w_alone():
    rng = np.random.default_rng(0)
    for n, d in ((24, 3), (10, 20)):
        X = rng.normal(size=(n, d))
        Y = X[:, :2] + 0.3 * rng.normal(size=(n, 2)) + 1
        for route in ("gram", "features", "covariance"):
            fit = rls.fit(rls.Linear(), X, Y, lams=[0.01, 0.1, 1.0, 10.0, 100.0], route=route)
            assert (
                fit.model.points is None and fit.model.coef.shape == (d, 2) and fit.route == route
            )
            w, b = oracle.refit(X, Y, float(fit.lam), intercept=True)
            assert_close(fit.model.coef, w, 1e-9, "w")
            assert_close(fit.predict(X), X @ w + b, 1e-9, "predict")
    assert rls.fit(KERNEL, *data(), lams=LAMS).model.points.shape == (24, 2)


def test_precomputed():
    X, Y = data()
    new = data(7, seed=1)[0]
    with jax.enable_x64(True):
        K, cross = (np.asarray(KERNEL(jnp.asarray(rows), jnp.asarray(X))) for rows in (X, new))
    ours, theirs = rls.fit(rls.Precomputed(), K, Y, lams=LAMS), rls.fit(KERNEL, X, Y, lams=LAMS)
    assert_close(ours.errors, theirs.errors, 1e-9, "errors")
    assert ours.model.points is None
    assert_close(ours.predict(cross), theirs.predict(new), 1e-9, "predict")


def test_classification():
    """Labels to codes, the error rate as the criterion, and back to labels."""
    X, Y = data(40)
    labels = np.array(["low", "middle", "high"])[np.digitize(Y[:, 0], [2.5, 3.5])]
    codes, classes = rls.encode(labels)
    fit = rls.fit(KERNEL, X, codes, lams=LAMS, loss=rls.zero_one_loss)
    held_out = codes - np.stack(
        [oracle.loo_residuals(features(X), codes, lam, None, True) for lam in LAMS]
    )
    rates = np.array([(rls.decode(scores, classes) != labels).mean() for scores in held_out])
    assert_close(fit.errors, np.repeat(rates[:, None], 3, axis=1), 1e-12, "error rates")
    assert fit.lam == LAMS[np.flatnonzero(rates == rates.min())[-1]]
    assert (rls.decode(fit.predict(X), classes) == labels).mean() > 0.8


def test_input_of_every_kind():
    """Lists, integers, float32, column-major and pandas give the fit of the same numbers in
    float64, or float32's own.
    """
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
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
    narrow = rls.fit(KERNEL, X.astype(np.float32), Y, lams=LAMS[2:])
    assert narrow.errors.dtype == narrow.model.coef.dtype == narrow.lam.dtype == np.float32
    assert narrow.predict(X).dtype == np.float32
    assert_close(
        narrow.errors, expected.errors[2:], 24 * 24 * np.finfo(np.float32).eps / LAMS[2], "float32"
    )


def test_factors_of_whole_numbers_are_those_of_the_same_numbers(unchecked):
    whole = np.arange(8, dtype=np.int32).reshape(4, 2)
    expected = rls.factorize(KERNEL, whole.astype(DTYPE))
    for X in (jnp.asarray(whole), whole, whole.tolist()):
        factor = rls.factorize(KERNEL, X)
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
        assert all(
            isinstance(leaf, np.ndarray) and leaf.dtype == np.float64
            for leaf in jax.tree.leaves(fit)
            if not isinstance(leaf, float)
        )
        assert isinstance(prediction, np.ndarray) and prediction.dtype == np.float64
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


@pytest.mark.any_precision
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
    environment = {
        "JAX_ENABLE_X64": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# warnings
# ------------------------------------------------------------------------------------------------------------------


def heard(*args, **options):
    """The fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(*args, **options)
    return fit, [str(w.message) for w in caught]


def test_warns_at_the_edge_of_the_grid():
    X, Y = data()
    _, messages = heard(KERNEL, X, Y[:, 0], lams=LAMS[4:])
    assert messages == [
        "the chosen λ, 1, is the smallest of the grid: pass lams= that reach smaller values, or change the kernel"
    ]
    _, messages = heard(KERNEL, X, Y[:, 1], lams=LAMS[:3])
    assert (
        len(messages) == 1
        and "the chosen λ, 0.01, is the largest of the grid: pass lams= that reach larger values"
        in messages[0]
    )
    _, messages = heard(KERNEL, X, Y, lams=LAMS[:5], per_target=True)
    assert len(messages) == 1 and "the largest of the grid" in messages[0]
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
        words = f"λ below {fit.floor:.2g} is below the precision of the factor, and the grid goes down to 1e-16: drop those, or use float64"
        assert [m for m in messages if "precision" in m] == [words] * warned and fit.lam == lams[
            best
        ]


def test_warns_of_an_indefinite_kernel():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(24, 24)))[0]
    K = (Q * np.append(-0.5, np.linspace(1, 2, 23))) @ Q.T
    K = (K + K.T) / 2
    _, messages = heard(
        rls.Precomputed(),
        K,
        rng.normal(size=24),
        lams=LAMS,
        criterion=with_errors(np.abs(LAMS - 1)),
        intercept=False,
    )
    assert messages == [
        "the kernel matrix is not positive semidefinite: its most negative eigenvalue, 0.25 of the largest, was set to 0"
    ]


# errors
# --------------------------------------------------------------------------------------------------------------------

X0, Y0 = np.arange(8.0).reshape(4, 2), np.arange(4.0)


def broken(array, value, index=(2, 1)):
    array = np.array(array, float)
    array[index[: array.ndim]] = value
    return array


ERRORS = {
    "kernel": (
        lambda: rls.fit("gaussian", X0, Y0),
        "kernel must be a jaxrls kernel such as Gaussian(1.0), and is 'gaussian'",
    ),
    "kernel class": (
        lambda: rls.fit(rls.Linear, X0, Y0),
        "kernel must be a jaxrls kernel such as Gaussian(1.0), and is <class",
    ),
    "X vector": (
        lambda: rls.fit(KERNEL, Y0, Y0),
        "X must have shape (n, d), and has shape (4,): use X[:, None] for a single column",
    ),
    "X cube": (
        lambda: rls.fit(KERNEL, X0[None], Y0),
        "X must have shape (n, d), and has shape (1, 4, 2): give one row per sample",
    ),
    "X empty": (
        lambda: rls.fit(KERNEL, X0[:0], Y0[:0]),
        "X is empty, with shape (0, 2): give at least one row and one column",
    ),
    "X without columns": (lambda: rls.fit(KERNEL, X0[:, :0], Y0), "X is empty, with shape (4, 0)"),
    "X NaN": (
        lambda: rls.fit(KERNEL, broken(X0, np.nan), Y0),
        "X holds 1 values that are NaN or infinite, the first at index (2, 1): drop those rows or fill",
    ),
    "X infinite": (
        lambda: rls.fit(KERNEL, broken(X0, np.inf), Y0),
        "X holds 1 values that are NaN or infinite, the first at index (2, 1)",
    ),
    "X text": (
        lambda: rls.fit(KERNEL, [["a", "b"]], [1.0]),
        "X must hold real numbers, and could not be read as such: it holds text",
    ),
    "X ragged": (
        lambda: rls.fit(KERNEL, [[1.0], [1.0, 2.0]], Y0),
        "X must hold real numbers, and could not be read as such",
    ),
    "X None": (lambda: rls.fit(KERNEL, None, Y0), "X must have shape (n, d), and has shape ()"),
    "X complex": (
        lambda: rls.fit(KERNEL, X0 * 1j, Y0),
        "X must be real, and has dtype complex128: split it into real and imaginary parts",
    ),
    "X complex, JAX": (
        lambda: rls.fit(KERNEL, jax.lax.complex(*[jnp.asarray(X0)] * 2), Y0),
        "X must be real, and has dtype complex",
    ),
    "X half precision": (
        lambda: rls.fit(KERNEL, X0.astype(np.float16), Y0),
        "X has dtype float16, in which no eigendecomposition is at hand",
    ),
    "X half precision, JAX": (
        lambda: rls.fit(KERNEL, jnp.asarray(X0, jnp.bfloat16), Y0),
        "X has dtype bfloat16, in which no eigendecomposition is at hand",
    ),
    "Y length": (
        lambda: rls.fit(KERNEL, X0, Y0[:3]),
        "Y must have shape (4,) or (4, t), one row per row of X, and has shape (3,)",
    ),
    "Y row": (
        lambda: rls.fit(KERNEL, X0, Y0[None]),
        "Y must have shape (4,) or (4, t), one row per row of X, and has shape (1, 4)",
    ),
    "Y NaN": (
        lambda: rls.fit(KERNEL, X0, broken(Y0, np.nan)),
        "Y holds 1 values that are NaN or infinite, the first at index (2,)",
    ),
    "Y text": (
        lambda: rls.fit(KERNEL, X0, list("abcd")),
        "Y must hold real numbers, and could not be read as such",
    ),
    "weights length": (
        lambda: rls.fit(KERNEL, X0, Y0, weights=[1.0]),
        "weights must have shape (4,), one per row of X, and has shape (1,)",
    ),
    "weights negative": (
        lambda: rls.fit(KERNEL, X0, Y0, weights=[1, 1, -1, 1]),
        "weights must not be negative, and the smallest is -1.0",
    ),
    "weights zero": (
        lambda: rls.fit(KERNEL, X0, Y0, weights=[0, 0, 0, 0]),
        "weights are all zero, so that no row is left to fit",
    ),
    "weights NaN": (
        lambda: rls.fit(KERNEL, X0, Y0, weights=broken(Y0, np.nan)),
        "weights holds 1 values that are NaN or infinite",
    ),
    "lams negative": (
        lambda: rls.fit(KERNEL, X0, Y0, lams=[1.0, -1.0]),
        "lams must be positive, or 0 for the floor of the factor, and the smallest is -1.0",
    ),
    "lams NaN": (
        lambda: rls.fit(KERNEL, X0, Y0, lams=[np.nan]),
        "lams holds 1 values that are NaN or infinite",
    ),
    "lams empty": (
        lambda: rls.fit(KERNEL, X0, Y0, lams=[]),
        "lams is empty: give at least one λ, or leave it out for the grid from the spectrum",
    ),
    "lams matrix": (
        lambda: rls.fit(KERNEL, X0, Y0, lams=[[1.0]]),
        "lams must have shape (L,), and has shape (1, 1)",
    ),
    "width": (
        lambda: rls.fit(rls.Gaussian(-1.0), X0, Y0),
        "Gaussian.width must be positive and finite, and is -1.0",
    ),
    "sobolev": (
        lambda: rls.fit(rls.Sobolev().on(0), X0 - 3, Y0),
        "Sobolev lives on [0, ∞), and the smallest input is -3.0: shift the column",
    ),
    "columns": (
        lambda: rls.fit(rls.Linear().on(2), X0, Y0),
        "columns [2] are not in X, which has 2 columns",
    ),
    "not symmetric": (
        lambda: rls.fit(rls.Precomputed(), np.triu(np.ones((4, 4))), Y0),
        "X, as the precomputed kernel matrix, is not symmetric: entries differ",
    ),
    "not square": (
        lambda: rls.fit(rls.Precomputed(), X0, Y0),
        "X, as the precomputed kernel matrix, must be square, (n, n), and has shape (4, 2)",
    ),
    "route": (
        lambda: rls.fit(KERNEL, X0, Y0, route="dual"),
        "route must be one of 'gram', 'features', 'covariance'",
    ),
    "route without features": (
        lambda: rls.fit(KERNEL, X0, Y0, route="features"),
        "route='features' needs explicit features, which Gaussian does not have",
    ),
    "block_size": (
        lambda: rls.fit(KERNEL, X0, Y0, block_size=0),
        "block_size must be a whole number of at least 1, and is 0",
    ),
    "groups and validation": (
        lambda: rls.fit(KERNEL, X0, Y0, groups=[0, 0, 1, 1], validation=(X0, Y0)),
        "groups and validation each name a criterion, kfold and holdout: give one of them",
    ),
    "groups with gcv": (
        lambda: rls.fit(KERNEL, X0, Y0, groups=[0, 0, 1, 1], criterion=rls.gcv),
        "groups and validation do not go with criterion gcv",
    ),
    "kfold without groups": (
        lambda: rls.fit(KERNEL, X0, Y0, criterion=rls.kfold),
        "criterion=kfold needs groups=, (n,) labels of rows",
    ),
    "holdout without data": (
        lambda: rls.fit(KERNEL, X0, Y0, criterion=rls.holdout),
        "criterion=holdout needs validation=(X, Y)",
    ),
    "loss with gcv": (
        lambda: rls.fit(KERNEL, X0, Y0, criterion=rls.gcv, loss=rls.absolute_error),
        "criterion gcv does not average a loss: leave loss= out",
    ),
    "loss": (
        lambda: rls.fit(KERNEL, X0, Y0, loss="squared"),
        "loss must be a function, such as jaxrls.absolute_error, and is 'squared'",
    ),
    "groups beside a criterion": (
        lambda: rls.fit(KERNEL, X0, Y0, criterion=rls.GCV(), groups=[0, 0, 1, 1]),
        "criterion gcv holds its own loss, groups and validation data: leave those arguments out",
    ),
    "groups of other rows": (
        lambda: rls.fit(KERNEL, X0, Y0, criterion=rls.GroupsOut(rls.folds([0, 1]))),
        "groups must have 4 labels, one per row of X, and has 2",
    ),
    "criterion's shape": (
        lambda: rls.fit(
            KERNEL,
            X0,
            Y0[:, None],
            criterion=lambda factor, Y, lams: jnp.ones(len(lams)),
            lams=[1.0, 2.0],
        ),
        "must return shape (2, 1), an error for each λ, and returned (2,)",
    ),
    "tol": (lambda: rls.fit(KERNEL, X0, Y0, tol=0), "tol must be a number above 0"),
    "cholesky without lams": (
        lambda: rls.fit(KERNEL, X0, Y0, route="cholesky"),
        "route='cholesky' has no spectrum to make a grid of λ from: give lams=",
    ),
    "groups length": (
        lambda: rls.fit(KERNEL, X0, Y0, groups=[0, 1]),
        "groups must have 4 labels, one per row of X, and has 2",
    ),
    "validation NaN": (
        lambda: rls.fit(KERNEL, X0, Y0, validation=(broken(X0, np.nan), Y0)),
        "validation X holds 1 values that are NaN or infinite",
    ),
    "validation labels NaN": (
        lambda: rls.fit(KERNEL, X0, Y0, validation=(X0, broken(Y0, np.nan))),
        "validation Y holds 1 values that are NaN",
    ),
    "validation columns": (
        lambda: rls.fit(KERNEL, X0, Y0, validation=(X0[:, :1], Y0)),
        "validation X must have the 2 columns of X, and has 1",
    ),
    "validation rows": (
        lambda: rls.fit(KERNEL, X0, Y0, validation=(X0, Y0[:2])),
        "validation Y must have shape (4,), as its X and Y do, and has shape (2,)",
    ),
    "validation no pair": (
        lambda: rls.fit(KERNEL, X0, Y0, validation=X0),
        "validation must be a pair (X, Y) of rows held out and their labels",
    ),
    "groups missing": (
        lambda: rls.fit(KERNEL, X0, Y0, groups=["a", None, "b", "a"]),
        "groups must have none missing, and holds 1",
    ),
    "Y overflows": (
        lambda: rls.fit(KERNEL, X0, 1e30 * Y0 if Y0.dtype == np.float32 else 1e200 * Y0),
        "at most, and squares overflow",
    ),
    "predict columns": (
        lambda: model().predict(X0[:, :1]),
        "X must have 2 columns, the columns it was fitted on, and has 1",
    ),
    "predict columns, linear": (
        lambda: model(rls.Linear()).predict(X0[:, :1]),
        "X with 1 columns gives 1 features, and the model was fitted on 2",
    ),
    "predict columns, precomputed": (
        lambda: model(rls.Precomputed(), np.eye(4)).predict(X0),
        "X must have 4 columns, one column per training row, as a precomputed kernel, and has 2",
    ),
    "predict vector": (lambda: model().predict(Y0), "X must have shape (n, d), and has shape (4,)"),
    "predict NaN": (
        lambda: model().predict(broken(X0, np.nan)),
        "X holds 1 values that are NaN or infinite",
    ),
    "predict empty": (lambda: model().predict(X0[:0]), "X is empty, with shape (0, 2)"),
    "predict block_size": (
        lambda: model().predict(X0, block_size=-1),
        "block_size must be a whole number of at least 1",
    ),
    "predict outside the domain": (
        lambda: model(rls.Sobolev().on(0)).predict(X0 - 3),
        "Sobolev lives on [0, ∞)",
    ),
}


def model(kernel=KERNEL, X=X0):
    return rls.fit(kernel, X, Y0, lams=[1.0])


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors(call, message, unchecked):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_problem_too_large_is_refused_before_the_work(monkeypatch):
    X = np.zeros((1000, 1))
    for name, value, message in (
        (
            "LARGEST_CPU_EIGH",
            999,
            "X has 1000 rows, and LAPACK's 32-bit interface cannot factor more than 999: use landmarks=",
        ),
        (
            "memory_bytes",
            lambda: 2**24,
            "X has 1000 rows: factoring K takes about 48 MB, and this device has 16.8 MB: use landmarks=",
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(checks, name, value)
            patch.setattr(jax, "default_backend", lambda: "cpu")
            with pytest.raises(ValueError, match=re.escape(message)):
                rls.fit(KERNEL, X, np.zeros(1000))


def test_a_broken_factorization_is_said():
    """Errors that are not finite stop the fit, instead of an argmin over NaN."""
    X, Y = data()
    with pytest.raises(
        ValueError,
        match=re.escape(
            "the criterion error is not finite at 1 of 5 λ: the factorization broke down; use float64"
        ),
    ):
        rls.fit(
            KERNEL,
            X,
            Y[:, 0],
            lams=[1.0, 2.0, 3.0, 4.0, 5.0],
            criterion=with_errors([1, np.nan, 1, 1, 1]),
        )


@pytest.mark.filterwarnings("ignore:the chosen λ")
@pytest.mark.parametrize("given", ["number", "indices", "points", "chosen"])
def test_landmarks(given):
    """The subset of regressors through the one call: λ, error, predictions and hold-out as from its
    factor.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(60, 2)).astype(DTYPE)
    y = (np.sin(2 * X[:, 0]) + rng.normal(size=60)).astype(DTYPE)
    kernel, lams = rls.Gaussian(1.0), np.geomspace(1e-4, 1e3, 9).astype(DTYPE)
    chosen = support.landmarks(kernel, jnp.asarray(X), 15, key=jax.random.key(0))
    landmarks = {
        "number": 15,
        "indices": np.asarray(chosen.indices),
        "points": np.asarray(chosen.points),
        "chosen": chosen,
    }[given]
    fit = rls.fit(kernel, X, y, lams=lams, landmarks=landmarks)
    factor = support.factor_subset(
        kernel, jnp.asarray(X), chosen.points if given == "points" else chosen, intercept=True
    )
    assert fit.route == "subset"
    assert_close(
        fit.errors, support.loo(factor, jnp.asarray(y), jnp.asarray(lams)), 1e-9 if X64 else 1e-3
    )
    coef, intercept = support.coef(factor, jnp.asarray(y), fit.lam)
    assert_close(
        fit.predict(X),
        np.asarray(kernel(jnp.asarray(X), chosen.points)) @ coef + intercept,
        1e-9 if X64 else 1e-3,
    )
    assert fit.model.points.shape == (15, 2)
    held = rls.fit(kernel, X[:40], y[:40], lams=lams, landmarks=15, validation=(X[40:], y[40:]))
    assert_close(held.error, np.mean((y[40:] - held.predict(X[40:])) ** 2), 1e-9 if X64 else 1e-3)
