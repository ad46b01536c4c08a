"""Two-sided data against all pairs: every entry refitted without what its setting leaves out, and
quantities of the whole fit.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pandas
import pytest
from contract.cases import draw, gaussian
from extended import LONG, Fits, Truth
from support import (
    ANY_PRECISION,
    DTYPE,
    EPS,
    FLOAT64,
    X64,
    array,
    assert_close,
    factor_gram,
    refused,
    wide,
)

import jaxrls as rls

LAMS = wide([1e-2, 0.4])
SETTINGS = ("entries", "rows", "columns", "both")


class Pairs:
    """n₁ rows and n₂ columns, their kernel matrices, weights and labels, and features of all pairs,
    row by row.
    """

    def __init__(self, n1, n2):
        self.x1, self.x2 = 0.7 * draw(n1, n1, 2), draw(n2, n2, 1)
        self.Y = wide(
            np.sin(self.x1.sum(axis=1))[:, None] + 2 * np.cos(self.x2.T) + 0.5 * draw(6, n1, n2)
        )
        self.K1 = wide(gaussian(self.x1, self.x1, 1.0))
        self.K2 = wide(gaussian(self.x2, self.x2, 1.5))
        self.v = [wide(np.random.default_rng(n).uniform(0.5, 2, n)) for n in (n1, n2)]
        self.K = np.kron(self.K1, self.K2)
        s, U = np.linalg.eigh(self.K)
        self.Phi = U * np.sqrt(np.maximum(s, 0))
        self.row, self.column = np.divmod(np.arange(n1 * n2), n2)

    def factor(self, weighted, intercept):
        v = tuple(map(array, self.v)) if weighted else None
        return rls.two_sided.factor_kronecker(
            array(self.K1), array(self.K2), weights=v, intercept=intercept
        )

    def weights(self, weighted):
        return np.outer(*self.v).ravel() if weighted else np.ones(self.Y.size)

    def left_out(self, setting, lam, weighted, intercept):
        """Held-out residuals (n₁, n₂) by a refit for each entry."""
        v, y, e = self.weights(weighted), self.Y.reshape(-1, 1), np.empty(self.Y.size)
        for k in range(self.Y.size):
            row, column = self.row == self.row[k], self.column == self.column[k]
            which = {"entries": row & column, "rows": row, "columns": column, "both": row | column}
            gone = which[setting]
            w, b = oracle.refit(self.Phi[~gone], y[~gone], lam, v[~gone], intercept)
            e[k] = (y[k] - self.Phi[k] @ w - b)[0]
        return e.reshape(self.Y.shape)


TALL, WIDE = Pairs(5, 3), Pairs(4, 5)


def assert_settings(pairs, weighted, intercept, settings=SETTINGS):
    """Residuals and errors of settings at all λ, by one program."""

    @jax.jit
    def run(K1, K2, Y, lams):
        factor = pairs.factor(weighted, intercept)
        each = [
            jax.lax.map(lambda lam, s=s: rls.two_sided.kronecker_residuals(factor, Y, lam, s), lams)
            for s in settings
        ]
        return each, [rls.two_sided.kronecker_left_out(factor, Y, lams, s) for s in settings]

    residuals, errors = run(array(pairs.K1), array(pairs.K2), array(pairs.Y), array(LAMS))
    v = pairs.weights(weighted)
    for setting, got, error in zip(settings, residuals, errors, strict=True):
        want = np.array([pairs.left_out(setting, lam, weighted, intercept) for lam in LAMS])
        assert_close(got, want, 1e-11, setting)
        assert_close(error, (want**2).reshape(len(LAMS), -1) @ v / v.sum(), 1e-11, setting)


@FLOAT64
@pytest.mark.parametrize(
    "hard",
    [
        pytest.param(True, id="weights and intercept"),
        pytest.param(False, id="neither", marks=pytest.mark.slow),
    ],
)
def test_what_every_setting_leaves_out_is_that_of_refits(hard):
    assert_settings(WIDE, hard, hard)


@FLOAT64
@pytest.mark.slow
def test_the_smaller_side_is_refactored_whichever_it_is():
    assert_settings(TALL, True, True, ("both",))


@FLOAT64
@pytest.mark.slow
def test_weights_of_rows_times_weights_of_columns_are_those_of_all_pairs():
    """All that the contract asks of a weighted factor with an intercept, but what is left out."""

    @jax.jit
    def run(Y, lams):
        solution = TALL.factor(True, True).solve(Y)
        coef, intercept = solution.coefficients(lams)[:2]
        parts = {
            name: getattr(solution, name)(lams)
            for name in (
                "residual_norm",
                "data_fit",
                "logdet",
                "dof",
                "residual_dof",
                "held_out_residuals",
            )
        }
        criteria = {"gcv": rls.gcv, "evidence": rls.log_marginal_likelihood}
        return (
            parts
            | {name: one.values(solution, lams, None) for name, one in criteria.items()}
            | {"predictions": array(TALL.K) @ coef + intercept[:, None]}
        )

    y = TALL.Y.reshape(-1, 1)
    K, ones = TALL.K.astype(LONG), np.ones((y.size, 1))
    whole_K = lambda gone: (K, K, np.diagonal(K))
    truth = Truth(whole_K, y, y, TALL.weights(True), LAMS, None, ones, fixed_new=ones)
    for name, got in run(array(y), array(LAMS)).items():
        assert_close(got, truth.table[name], 1e-11, name)


@FLOAT64
@pytest.mark.slow
def test_an_intercept_needs_no_centred_product():
    """Of a smooth kernel with large labels, near the precision of the factor."""
    x = np.linspace(0, 1, 5)[:, None]
    K, Y = gaussian(x, x, 1.0), draw(4, 5, 5) + 10
    lams = np.array([1e-10, 1e-6, 1e-2])
    factor = rls.two_sided.factor_kronecker(array(K), array(K))
    exact = Fits(
        np.kron(np.longdouble(K), np.longdouble(K))[None],
        np.ones((1, 25), np.longdouble),
        np.longdouble(lams),
        True,
    )
    c = (exact.P[0] @ (Y - Y.mean()).reshape(-1, 1).astype(np.longdouble))[..., 0]
    want = c / np.diagonal(exact.P[0], axis1=-2, axis2=-1)
    for lam, truth in zip(lams, want, strict=True):
        got = np.asarray(rls.two_sided.kronecker_residuals(factor, array(Y), lam)).ravel()
        assert_close(
            got, truth.astype(float), 4 * EPS**0.5 if lam < 1e-8 else 25 * EPS / lam, f"λ = {lam}"
        )


def new(pairs, lam, x1, x2):
    """Predictions at new pairs, by the bordered system of all pairs."""
    n = pairs.Y.size
    A = np.ones((n + 1, n + 1))
    A[:n, :n], A[n, n] = pairs.K + lam * np.eye(n), 0
    *c, b = np.linalg.solve(A, np.append(pairs.Y.ravel(), 0))
    one, other = gaussian(x1, pairs.x1, 1.0), gaussian(x2, pairs.x2, 1.5)
    return one @ np.reshape(c, pairs.Y.shape) @ other.T + b


@pytest.mark.parametrize(
    "setting", ["rows", pytest.param("both", marks=[FLOAT64, pytest.mark.slow])]
)
def test_one_call_chooses_by_its_setting_and_predicts_at_new_pairs(setting, tmp_path):
    lams = wide([0.02, 0.2, 2.0, 20.0])
    x1, x2 = draw(7, 6, 2), draw(8, 2, 1)
    data = (np.asarray(part, DTYPE) for part in (WIDE.x1, WIDE.x2, WIDE.Y))
    X1, X2, Y = data if X64 else map(jnp.asarray, data)
    sides = rls.Gaussian(1.0), X1, rls.Gaussian(1.5), X2
    fit = rls.two_sided.fit_kronecker(*sides, Y, lams=lams, setting=setting)
    want = np.array([np.mean(WIDE.left_out(setting, lam, False, True) ** 2) for lam in lams])
    tolerance = 4 * WIDE.Y.size * EPS * (1 + np.linalg.norm(WIDE.K, 2) / lams[0])
    assert 0 < want.argmin() < 3  # else it would warn
    assert_close(fit.errors, want, tolerance)
    assert float(fit.lam) == DTYPE(lams[want.argmin()]) and fit.criterion == f"{setting} left out"
    assert_close(fit.error, want.min(), tolerance)
    assert_close(fit.left_out, WIDE.left_out(setting, float(fit.lam), False, True), tolerance)
    assert_close(fit.predict(x1, x2), new(WIDE, float(fit.lam), x1, x2), tolerance)
    rls.save(tmp_path / "fit.npz", fit)
    again = rls.load(tmp_path / "fit.npz")
    assert again == fit and np.array_equal(again.predict(x1, x2), fit.predict(x1, x2))


@pytest.mark.slow
def test_columns_of_either_side_are_taken_by_name(tmp_path):
    """Of a frame in another order with more columns, where that side was fitted to one."""
    x1, x2 = draw(7, 6, 2), draw(8, 2, 1)
    frame = lambda rows: pandas.DataFrame(rows, columns=["a", "b"][: rows.shape[1]])
    turned = lambda rows: frame(rows).assign(more=1.0)[["more", *frame(rows).columns[::-1]]]
    kernels, options = (rls.Gaussian(1.0), rls.Gaussian(1.5)), {"lams": [0.2], "keep": True}
    fit_of = lambda X1, X2: rls.two_sided.fit_kronecker(
        kernels[0], X1, kernels[1], X2, WIDE.Y, **options
    )
    want = fit_of(WIDE.x1, WIDE.x2).predict(x1, x2, return_std=True)
    both, one = fit_of(frame(WIDE.x1), frame(WIDE.x2)), fit_of(frame(WIDE.x1), WIDE.x2)
    rls.save(tmp_path / "fit", both)
    for fit, new in ((both, turned(x2)), (rls.load(tmp_path / "fit"), turned(x2)), (one, x2)):
        for rows in ((turned(x1), new), (x1, x2)):
            assert_close(fit.predict(*rows), want[0], 1e-10)
            assert_close(fit.predict(*rows, return_std=True)[1], want[1], 1e-10)
    refused((lambda: both.predict(frame(x1)[["a"]], x2), "X1 lacks 1 of the 2 columns .*'b'"))


@ANY_PRECISION
def test_new_names_of_columns_compile_nothing(monkeypatch):
    """Neither a fit nor predictions."""
    traced, counts = [], []
    for name in ("fit", "fitted"):
        module = importlib.import_module(f"jaxrls.two_sided.{name}")
        noted = lambda *args, gram=module.gram: traced.append(args) or gram(*args)
        monkeypatch.setattr(module, "gram", noted)
    kernel, x, Y = rls.Linear(), draw(3, 5, 1), draw(4, 5, 5)
    for name in ("a", "b"):
        X = pandas.DataFrame(x, columns=[name])
        fit = rls.two_sided.fit_kronecker(kernel, X, kernel, x, Y, lams=[0.37], keep=True)
        assert fit.model.names == ((name,), ())
        fit.predict(X[:3], x[:2])
        fit.predict(X[:3], x[:2], return_std=True)
        fit.posterior(X[:3], x[:2])
        counts.append(len(traced))
    assert counts[0] == counts[1]


@FLOAT64
@pytest.mark.slow
def test_a_loss_sees_residuals_and_labels_as_they_are():
    sides = rls.Gaussian(1.0), WIDE.x1, rls.Gaussian(1.5), WIDE.x2
    left_out = WIDE.left_out("entries", 0.2, False, True)
    share = lambda e, y: abs(e) / (1 + abs(y))
    found = rls.two_sided.fit_kronecker(*sides, WIDE.Y, lams=[0.2], loss=share)
    assert_close(found.error, np.mean(share(left_out, WIDE.Y)), 1e-12)


@ANY_PRECISION
def test_errors_of_factors_and_settings_name_the_argument():
    two, three, Y = np.eye(2), np.eye(3), np.ones((1, 3))
    factor, single = (
        rls.two_sided.factor_kronecker(two[:1, :1], three),
        rls.two_sided.factor_kronecker([[1]], [[1]]),
    )
    make = lambda K1=two, K2=two, **named: lambda: rls.two_sided.factor_kronecker(K1, K2, **named)
    left_out = lambda setting: lambda: rls.two_sided.kronecker_left_out(factor, Y, [1.0], setting)
    only, setting = "leaves rows out, and Y has only one", "setting must be one of entries, rows"
    refused(
        (make(K2=np.array([[1.0, 0.5], [0.0, 1.0]])), "K2 is not symmetric"),
        (
            make(K2=np.diag([2.0, -1.0])),
            "K2 must be positive semidefinite, and its .* eigenvalue is 0.5 of the largest",
        ),
        (make(weights=np.ones(4)), r"weights must be a pair \(v1, v2\).*is of type ndarray"),
        (
            make(weights=(np.array([1.0, 0.0]), None)),
            "weights of rows must be positive, and some are 0: leave those rows out of Y",
        ),
        (left_out("pairs"), f"{setting}, columns, both, and is 'pairs'"),
        (left_out("rows"), f"setting='rows' {only}"),
        (
            lambda: rls.two_sided.kronecker_residuals(factor, Y.T, 1.0),
            r"Y must have shape \(1, 3\)",
        ),
        (
            lambda: rls.two_sided.kronecker_residuals(factor, Y, [1.0, 2.0]),
            "lam must be one number",
        ),
        (
            lambda: rls.two_sided.kronecker_left_out(single, [[1.0]], [1.0]),
            "needs two entries, and Y has one",
        ),
        (
            lambda: rls.two_sided.kronecker_left_out(factor_gram(three), Y, [1.0]),
            "factor must be of two-sided data, and has route 'gram'",
        ),
    )


@ANY_PRECISION
def test_errors_of_the_call_name_the_argument(monkeypatch):
    indefinite = rls.FunctionKernel(lambda X, Z: 0.5 - X @ Z.T)
    one = {"X1": WIDE.x1[:1], "X2": WIDE.x2[:1], "Y": WIDE.Y[:1, :1]}
    K, sides = rls.Gaussian(1.0), {"X1": WIDE.x1, "X2": WIDE.x2, "Y": WIDE.Y, "lams": [1.0]}
    fit = lambda **named: (
        lambda: rls.two_sided.fit_kronecker(**{"kernel1": K, "kernel2": K} | sides | named)
    )
    objects = pandas.DataFrame(WIDE.x1, index=[*"abcd"])
    others = pandas.DataFrame(WIDE.x2, index=[*"pqrst"])
    table = pandas.DataFrame(WIDE.Y, objects.index, others.index)
    turned = pandas.Series(1.0, objects.index[::-1])
    similar, alike = (
        pandas.DataFrame(np.eye(len(of)), *[of.index] * 2) for of in (objects, others)
    )
    factor_kronecker = rls.two_sided.factor_kronecker
    left_out = lambda Y: (
        lambda: rls.two_sided.kronecker_left_out(factor_kronecker(similar, alike), Y, [1.0])
    )
    left_out(table)()
    fit(X1=objects, X2=others, Y=table, weights=(turned[::-1], None))()
    fit(X2=others.reset_index(drop=True), Y=table)()  # whose numbers name no column
    refused(
        (fit(X1=objects, Y=table[::-1]), r"Y has another index than X1, .* give Y.loc\[X1.index\]"),
        (
            fit(X2=others, Y=table[[*"qprst"]]),
            r"Y has its columns in another .* X2, .* give Y\[X2.index\]",
        ),
        (fit(X1=objects, weights=(turned, None)), r"weights\[0\] has another index than X1"),
        (
            fit(Y=table, weights=(None, pandas.Series(1.0, others.index[::-1]))),
            r"Y has its columns in another order than the index of weights\[1\]",
        ),
        (fit(Y=table, weights=(turned, None)), r"weights\[0\] has another index than Y"),
        (left_out(table[::-1]), r"Y has another index than K1, .* give Y.loc\[K1.index\]"),
        (left_out(table[[*"qprst"]]), r"Y has its columns in another .* K2, .* give Y\[K2.index\]"),
        (lambda: factor_kronecker(similar, alike, weights=(turned, None)), "index than K1"),
        (
            fit(Y=WIDE.Y.T),
            r"Y must have shape \(4, 5\), a label for every pair .*, and has shape \(5, 4\)",
        ),
        (fit(X2=WIDE.x2[:, 0]), "X2 must have shape"),
        (
            fit(kernel1=rls.Precomputed()),
            "the kernel of X1 must be one of rows, and is Precomputed",
        ),
        (fit(lams=0.1), "lams, as their number, must be a whole number"),
        (fit(lams=[[1.0, 2.0]]), r"lams must have shape \(L,\), and has shape \(1, 2\)"),
        (fit(**one), "leaving an entry out with an intercept needs two entries"),
        (fit(weights=(None, np.arange(5.0))), "weights of columns must be positive"),
        (fit(kernel2=indefinite), "the kernel matrix of a side must be positive semidefinite"),
    )
    monkeypatch.setattr("jaxrls.front.memory.memory_bytes", lambda: 100)
    refused((fit(), "the larger side is too large: X has 5 rows: route 'gram' takes about"))
