"""Wrong input is refused in one line that names the argument, what was found and what to do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from contract.cases import gaussian
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from support import no_fit

import jaxrls as rls
from jaxrls.sklearn import RLSRegressor

pytestmark = pytest.mark.any_precision
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = np.sin(X[:, 0])
DAYS = pd.date_range("2020", periods=12)
TEXT = pd.DataFrame({"a": Y, "b": ["u"] * 12})
TWICE = pd.DataFrame([[1.0, "u"]] * 12, columns=["a", "a"])
HUGE = 10**400  # no float is as large
FRAME = pd.DataFrame(X)
TURNED = pd.Series(np.arange(12) // 3)[::-1]
K = rls.Gaussian(1.5)
FLAGS = ("intercept", "per_target", "standardize", "keep", "progress")
REFUSED = [
    *((lambda flag=flag: rls.fit(K, X, Y, **{flag: "no"}), flag) for flag in FLAGS),
    (lambda: rls.loo(X, Y, [0.1]), "factor must be what factorize"),
    (lambda: rls.choose_landmarks(K, X, 5, key=0), "key must be one such as jax.random.key"),
    (lambda: rls.ranking.PairsOut("abc"), "pairs must have shape"),
    (lambda: rls.fit(K, X, Y, criterion=rls.ranking.PairsOut([[0, 99]])), "0 to 11"),
    (lambda: rls.extend.median_distance("abc"), "X must hold real numbers"),
    (lambda: rls.extend.median_distance(csr_array(X)), "X must be dense, and is sparse"),
    (lambda: rls.extend.median_distance(X, order=7), "order must be 1"),
    (lambda: rls.classes.decode(Y, None), "classes must be"),
    (lambda: rls.classes.conformal_labels(3, X, Y), "fit must be a fit"),
    (lambda: rls.fit(K, [[HUGE], [1]], [1, 2]), "X must hold real numbers"),
    (lambda: rls.fit(K, TWICE, Y), r"X\['a'\] must hold .*'u'"),
    (lambda: rls.fit(K, X, pd.Series(["a"] * 12)), r"Y\[0\] must hold .*encode"),
    (
        lambda: rls.fit(K, X, Y, fixed_effects=X[:, :1]).predict(
            X, fixed_effects=rls.levels(X[:, 0])
        ),
        "fixed_effects must hold real numbers",
    ),
    (lambda: rls.fit(rls.Periodic("median"), X, Y), "real number.*a width may be median"),
    (lambda: rls.fit(K, X, Y).predict(X[0]), r"X\[None\] for one row"),
    (lambda: rls.fit(K, X, Y).score(X, Y[:, None]), r"Y must have shape \(12,\)"),
    (lambda: rls.fit(K, X, Y, groups=5), r"permutation\(n\) % 5"),
    (lambda: rls.fit(X, Y), "kernel must be a jaxrls kernel, .* and is a ndarray"),
    (lambda: rls.fit("guassian", X, Y), "'guassian': .*'matern32', .*'tanimoto'"),
    (lambda: rls.fit(K, X, Y, fixed_effects=["a"] * 12), r"levels\(labels\)"),
    (
        lambda: rls.fit(K, X, Y, fixed_effects=rls.levels(np.arange(12) % 3)).score(X, Y),
        "labels, which have fixed effects: give fixed_effects=",
    ),
    (lambda: rls.rows.stream(X), "fit takes arrays as they are"),
    (lambda: rls.save("a", RLSRegressor()), "pickle"),
    *(
        (
            lambda fit=fit, kind=kind: fit(TEXT.astype({"b": kind}), Y),
            r"X\['b'\] .*'u': .*get_dummies.* Levels number the labels by one .*sorted",
        )
        for fit in (partial(rls.fit, K), RLSRegressor(K).fit)
        for kind in ("object", "category")
    ),
    *(
        (lambda X=X: rls.fit(K, X, Y), "X must hold .*give lists of numbers, or a data frame, as p")
        for X in (pd.DataFrame(X).to_dict("records"), {"a": Y})
    ),
    (
        lambda: rls.fit(K, pd.DataFrame({"a": Y, "when": DAYS}), Y),
        r"X\['when'\] .*dates.*give days",
    ),
    (lambda: rls.fit(K, pd.DataFrame(X), pd.Series(Y)[::-1]), "Y has another index than X"),
    (
        lambda: rls.fit(K, X, pd.Series(Y), weights=pd.Series(Y**2)[::-1]),
        "weights has another index than Y",
    ),
    (lambda: rls.loo(rls.factorize(K, FRAME), TURNED, [1.0]), r"factor, .* Y.loc\[factor.index\]"),
    (lambda: rls.kfold(TURNED)(rls.factorize(K, FRAME), Y, [1.0]), "groups has another index"),
    (
        lambda: rls.diagnostics.influence(rls.factorize(K, FRAME), TURNED, 1.0),
        "Y has another index than fit",
    ),
    (lambda: rls.memory(K, 4000), r"shape must be \(n, d\), or X itself, and is 4000"),
    (lambda: rls.fit(K, X, Y, landmarks=0.1), "landmarks.* whole number .* and is 0.1"),
    (lambda: rls.tune(K, X, Y, lams="search"), r"lams must hold .* such as \[0.1, 1.0\]"),
    (lambda: rls.fit(rls.Gaussian("median") + rls.Gaussian([1.0] * 3), X, Y), r"width .*\(3,\)"),
    (lambda: rls.extend.gram("gaussian", X), "kernel must be a jaxrls kernel, .* and is a str"),
    (lambda: K(X[0], X[1]), r"X\[None\] for one row"),
]


def but_for_lam(call):
    """A call that computes nothing, as λ is negative: said to be so where all else is right."""

    def asked(*args, **named):
        with no_fit():
            try:
                call(*args, **named)
            except ValueError as error:
                if "must be positive" not in str(error):
                    raise
            else:
                pytest.fail("a negative λ was taken")

    return asked


@pytest.mark.slow
def test_what_has_another_index_than_the_rows_is_refused():
    """In every call, by the name of the argument; the same index, of any kind, and what has none
    are taken.
    """
    rows, other = pd.DataFrame(X, columns=["a", "b"]), pd.RangeIndex(12)[::-1]
    given = {
        "Y": pd.Series(Y),
        "weights": pd.Series(np.ones(12)),
        "groups": pd.Series(np.arange(12) // 3),
        "fixed_effects": pd.DataFrame({"x": X[:, 0] ** 2}),
    }
    linear, plain = rls.Linear(), {"lams": [0.1], "keep": True}
    fit, of_effects = (
        rls.fit(linear, X, Y, **plain, **more)
        for more in ({}, {"fixed_effects": given["fixed_effects"]})
    )
    kernels, shares = [K, rls.Linear()], [[0.5, 0.5]]
    several = rls.several.fit_kernels(kernels, X, Y, shares=shares, lams=[0.1])
    of_labels, mesh = {"Y": None, "weights": None}, jax.make_mesh((1,), ("rows",))
    calls = [
        (lambda X, Y=Y, **more: rls.fit(linear, X, Y, **plain, **more), ["Y", "weights"]),
        (but_for_lam(lambda X, Y=Y, **more: rls.fit(K, X, Y, lams=[-1.0], **more)), given),
        (but_for_lam(lambda X, Y=Y, **more: rls.objective(K, X, Y, -1.0, **more)), given),
        (lambda X, Y=Y, **more: rls.holdout(X, Y, **more), of_labels),
        (lambda X, Y=Y, **more: rls.rows.shard(X, Y, mesh=mesh, **more), of_labels),
        (lambda X, Y=Y, **more: fit.update(X, Y, **more), of_labels),
        (lambda X, Y=Y, **more: fit.score(X, Y, **more), of_labels),
        (lambda X, Y=Y, **more: several.score(X, Y, **more), of_labels),
        (lambda X, Y=Y, **more: several.score_split(X, Y, **more), ["Y"]),
        (lambda X, **more: fit.intervals(X, **more), ["weights"]),
        (lambda X, **more: fit.posterior(X, **more), ["weights"]),
        (lambda X, **more: fit.effect(X, 0, **more), ["weights"]),
        (lambda X, **more: of_effects.predict(X, **more), ["fixed_effects"]),
    ]
    for call, names in calls:
        for name in names:
            part = given[name]
            words = rf"^{name} has another index than X.* give {name}\.loc\[X\.index\], or"
            for right in (part, part.set_axis(range(12), axis=0), part.to_numpy()):
                call(rows, **{name: right})
            call(rows.loc[other], **{name: part.loc[other]})
            call(rows.set_axis(DAYS, axis=0), **{name: part.set_axis(DAYS, axis=0)})
            for wrong in (part.loc[other], part.set_axis(DAYS, axis=0)):
                call(X, **{name: wrong})
                with pytest.raises(ValueError, match=words) as found:
                    call(rows, **{name: wrong})
                assert "\n" not in str(found.value)


def test_labels_of_rows_keep_their_index_until_a_fit():
    """In a criterion, in `folds` and in `levels`, which are made before the fit sees X."""
    rows = pd.DataFrame(X, columns=["a", "b"])
    labels = pd.Series(np.arange(12) // 3)
    column = rows[["a"]] ** 2
    given = {
        "groups": [
            lambda labels: {"criterion": rls.kfold(labels)},
            lambda labels: {"criterion": rls.ranking.QueriesOut(labels)},
            lambda labels: {"groups": rls.folds(labels)},
        ],
        "within": [lambda labels: {"criterion": rls.ranking.PairsOut(within=labels)}],
        "events": [lambda labels: {"criterion": rls.ranking.PairsOut(events=labels % 2)}],
        "labels": [
            lambda labels: {"fixed_effects": rls.levels(labels)},
            lambda labels: {"fixed_effects": [column.to_numpy(), rls.levels(labels)]},
        ],
    }
    call = but_for_lam(lambda X, options: rls.fit(K, X, Y, lams=[-1.0], **options))
    for name, makes in given.items():
        for make in makes:
            call(rows, make(labels))
            call(rows, make(labels.to_numpy()))
            call(X, make(labels[::-1]))
            with pytest.raises(
                ValueError, match=rf"^{name} has another index than X.* give {name}"
            ):
                call(rows, make(labels[::-1]))
    bound = rls.extend.read_problem(K, rows, Y, groups=labels).criterion
    assert bound.groups.index is None  # so that no fit keeps it


# Calls of another form, which are told what is taken.
OTHER_FORMS = [
    (lambda: rls.fit(K, X, Y, [0.1]), "fit: too many .* it takes kernel, X, Y, lams, "),
    (lambda: rls.loo(rls.factorize(K, X), Y), "Criterion.__call__: missing .*'lams'"),
    (lambda: rls.fit(K, X, Y).intervals(X, alpha=0.1), "no alpha=: it takes X, level, "),
    (lambda: rls.fit(K, X, Y).score(X, Y, sample_weight=Y), "did you mean weights="),
    (lambda: rls.fit(K, X, Y, normalize=True), "did you mean standardize="),
]


@pytest.mark.parametrize(("cases", "error"), [(REFUSED, ValueError), (OTHER_FORMS, TypeError)])
def test_is_refused(cases, error):
    for call, words in cases:
        with pytest.raises(error, match=words) as found:
            call()
        assert "\n" not in str(found.value), words


@pytest.mark.slow
def test_words_that_users_try_first():
    """A median for every column, a criterion by the name of its object, and λ of a fit to one."""
    found = rls.fit(rls.Gaussian(["median"] * 2), X, Y, lams=[0.1])
    wanted = rls.extend.start_from_data(rls.Gaussian(np.ones(2)), X).width
    assert_allclose(found.kernel.width, wanted, rtol=1e-6)
    assert "λ = 0.1, loo" in repr(found)
    names = "log_marginal_likelihood", "evidence"
    one, other = (rls.fit(K, X, Y, criterion=name).error for name in names)
    assert one == other


@pytest.mark.slow
def test_parameters_in_lists_and_medians_beside_them():
    given = rls.Gaussian("median") + rls.Gaussian([1.0, 2.0])
    found = rls.extend.read_problem(given, X, Y).kernel
    wanted = rls.extend.start_from_data(rls.Gaussian(1.0), X).width
    assert_allclose(found.left.width, wanted, rtol=1e-6)
    assert_allclose(found.right.width, [1.0, 2.0])
    assert np.isfinite(rls.fit(given, X, Y, lams=[0.1]).error)


def test_kernels_and_gram_take_what_fit_takes():
    """float64 NumPy gives float64 NumPy, and lists and tables are read, without a warning."""
    wanted = gaussian(X, X, 1.5)
    for found in (
        K(X, X),
        rls.extend.gram(K, X),
        rls.extend.gram(K, X.tolist()),
        rls.extend.gram(K, pd.DataFrame(X)),
    ):
        assert_allclose(found, wanted, rtol=1e-12)
        assert found.dtype == np.float64
    linear = rls.Linear() + 2 * rls.Polynomial(1).on([0])
    found = linear(X, X[:5])
    assert_allclose(found, X @ X[:5].T + 2 * (1 + X[:, :1] @ X[:5, :1].T), rtol=1e-12)
    assert_allclose(linear.diag(X), np.diagonal(linear(X, X)), rtol=1e-12)
    assert rls.Linear().features(X).dtype == np.float64
    assert K(jnp.asarray(X), jnp.asarray(X)).dtype == jnp.asarray(X).dtype


def test_strict_promotion_of_ranks_is_no_matter():
    want = rls.fit(K, X, Y).error
    with jax.numpy_rank_promotion("raise"):
        assert rls.fit(K, X, Y).error == want
