"""Pictures: what they show is what the results hold. How they look is for eyes: the notebooks and
the README have them.
"""

import matplotlib as mpl
import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose
from support import DTYPE, EDGE, NEAR_FLOOR, refused, texts

import jaxrls as rls
from jaxrls.__main__ import main

mpl.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

pytestmark = [EDGE]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, size=(40, 1)).astype(DTYPE)
    y = np.sin(6 * X[:, 0]) + 0.2 * rng.normal(size=40)
    return X, y.astype(DTYPE)


@pytest.fixture(scope="module")
def fit(data):
    return rls.fit(rls.Gaussian(0.3), *data)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@NEAR_FLOOR
@pytest.mark.slow
def test_targets_have_a_curve_each_or_their_mean(data):
    X, y = data
    Y = np.stack([y + 0.1 * j * np.cos(40 * X[:, 0]) for j in range(9)], axis=1).astype(DTYPE)
    ax = rls.fit(rls.Gaussian(0.3), X, Y, per_target=True).plot()
    assert "λ of each of 9 targets" in texts(ax)
    assert [len(line.get_xdata()) for line in ax.lines] == [100] * 9 + [9]
    shared = rls.fit(rls.Gaussian(0.3), X, Y, criterion=rls.log_marginal_likelihood).plot()
    assert len(shared.lines) == 2 and "likelihood" in shared.get_ylabel()


def test_errors(fit):
    ax = fit.plot()
    curve, mark = ax.lines
    assert_allclose(curve.get_ydata(), fit.errors, rtol=1e-6)
    assert mark.get_xdata()[0] == pytest.approx(float(fit.lam)) and mark.get_ydata()[
        0
    ] == pytest.approx(float(fit.error))
    assert "degrees of freedom" in texts(ax) and ax.get_ylabel() == "leave-one-out error"
    own = plt.figure().add_subplot()
    assert fit.plot(own) is own


def test_left_out_and_function(fit, data):
    X, y = data
    points = fit.plot_left_out(y).lines[0]
    assert_allclose(points.get_ydata() - points.get_xdata(), fit.loo_residuals, atol=1e-5)
    drawn = fit.plot_function(X, y, level=0.8).lines[1]
    assert_allclose(
        drawn.get_ydata()[::100],
        fit.predict(np.asarray(drawn.get_xdata()[::100, None], DTYPE)),
        rtol=1e-4,
    )
    rows, labels = pandas.DataFrame(X), pandas.Series(y)[::-1]
    refused(
        (lambda: fit.plot_function(rows, labels), "Y has another index than X"),
        (lambda: fit.plot_left_out(y[:3]), "must be the labels that were fitted"),
        (lambda: fit.plot_function(np.zeros((3, 2)), y), "must have one column"),
    )


@pytest.mark.slow
def test_root_mean_squares_left_out_have_weights(data):
    """Those of the fit, for every target, whether it kept its solution; a row of weight 0 counts
    as absent, and so does one that no split tests.
    """
    X, y = data
    Y, v = np.c_[y, -2 * y + 0.1], np.linspace(0, 3, len(y)).astype(DTYPE)
    rows = np.arange(len(y))
    past = rls.kfold([(rows[:15], rows[16:20]), (rows[:20], rows[20:])])
    for options in ({"keep": True}, {"keep": False}, {"criterion": past}):
        fit = rls.fit(rls.Gaussian(0.3), X, Y, weights=v, lams=[0.1, 1.0], **options)
        e = np.asarray(fit.loo_residuals)
        known = np.isfinite(e[:, 0])
        rms = np.sqrt(np.average(e[known] ** 2, axis=0, weights=v[known]))
        assert_allclose(fit.loo_rms, rms, rtol=1e-4)
        shown = texts(fit.plot_left_out(Y))
        assert f"target 0, root mean square {fit.loo_rms[0]:.4g}" in shown
        assert f"target 1, root mean square {fit.loo_rms[1]:.4g}" in shown


@pytest.mark.slow
def test_search(data):
    tuned = rls.tune(rls.Gaussian(1.0), *data, steps=3)
    above, below = tuned.plot()
    assert_allclose(above.lines[0].get_ydata(), tuned.history.errors, rtol=1e-6)
    assert_allclose(below.lines[0].get_ydata(), tuned.history.gradient_norms, rtol=1e-6)
    assert tuned.history.reason in texts(above)


@pytest.mark.slow
def test_command_line(data, tmp_path, capsys):
    table, picture = tmp_path / "table.csv", tmp_path / "loo.png"
    np.savetxt(table, np.c_[data], delimiter=",")
    assert main(["fit", str(table), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and "drawn" in capsys.readouterr().out


def test_order_is_drawn_as_auc(data):
    """The share of pairs in the right order, larger better, on a linear axis."""
    X, y = data
    fit = rls.fit(rls.Gaussian(0.3), X, y, criterion=rls.ranking.PairsOut(), lams=4)
    ax = fit.plot()
    assert_allclose(ax.lines[0].get_ydata(), 1 - np.asarray(fit.errors), rtol=1e-6)
    assert ax.get_ylabel() == "AUC (concordance), pairs left out" and ax.get_yscale() == "linear"
