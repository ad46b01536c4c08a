"""Intervals: the jackknife+ and CV+ by refits of one's own, and every door to them."""

from functools import cache, partial

import jax
import matplotlib as mpl
import numpy as np
import pytest
from contract.cases import gaussian
from extended import Truth, of_features, sets_of
from numpy.testing import assert_allclose
from oracle import of_landmarks
from scipy.stats import norm
from support import (
    ANY_PRECISION,
    DTYPE,
    EDGE,
    EPS,
    FLOAT64,
    X64,
    assert_close,
    refused,
    texts,
    wide,
)
from test_posterior import FRESH, GAUSSIAN, INPUT, KEPT, LAM, NEW, OUTPUT, X_NEW, N, X, Y

import jaxrls as rls
from jaxrls.__main__ import main
from jaxrls.uncertainty.posterior import process_of

mpl.use("agg")
pytestmark = EDGE
V = wide(np.where(np.arange(N) % 7 == 3, 0, np.random.default_rng(3).uniform(0.5, 2.0, N)))
GROUPS = np.arange(N) % 5
TOLERANCE = 4 * N * EPS * (1 + N / LAM)


def fit(rows=slice(None), Y=OUTPUT, **options):
    return rls.fit(GAUSSIAN, INPUT[rows], Y[rows], **{**KEPT, **options})


@cache
def known(name):
    """Fits that several tests ask."""
    options = {"plain": {}, "groups": {"groups": GROUPS}}
    return fit(**options[name])


def by_refits(groups=None, v=V, level=0.8, lam=LAM, landmarks=None, y=Y):
    """Landmarks leave with their rows."""
    points = (X, None) if landmarks is None else (X[landmarks], landmarks)
    kernel = of_features(of_landmarks(gaussian, X, X_NEW, *points))
    groups, ones = np.arange(N) if groups is None else groups, np.ones((NEW, 1))
    truth = Truth(kernel, y, y, v, np.array([lam]), groups, True, fixed_new=ones)
    return [end[0] for end in truth.intervals(level, groups)]


def assert_ends(found, want, tolerance=TOLERANCE):
    for one, other, name in zip(found, want, ("lower", "upper"), strict=True):
        assert_close(one, other, tolerance, name)


# the jackknife+ and CV+
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("landmarks", "groups"),
    [
        pytest.param(None, None, id="jackknife+"),
        pytest.param(np.arange(0, N, 3), GROUPS, id="cv+ on landmarks", marks=pytest.mark.slow),
    ],
)
def test_intervals_are_those_of_refits(landmarks, groups):
    found = fit(weights=V.astype(DTYPE), groups=groups, landmarks=landmarks)
    for level in (0.5, 0.8, 0.9):
        ends = found.intervals(FRESH, level, block_size=4)
        assert_ends(ends, by_refits(groups, level=level, landmarks=landmarks))


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(None, id="jackknife+"),
        pytest.param(GROUPS, id="cv+", marks=pytest.mark.slow),
    ],
)
def test_intervals_follow_the_weight_of_a_new_label(groups):
    """|eᵢ| √(vᵢ/w), by refits of labels of weight 1 for one weight of all rows, and by the ends of
    scaled scores for several.
    """
    weights = np.geomspace(0.25, 16, NEW).astype(DTYPE)
    found = fit(weights=V.astype(DTYPE), groups=groups)
    ends = found.intervals(FRESH, 0.8, weights=weights, block_size=4)
    kernel = of_features(of_landmarks(gaussian, X, X_NEW, X, None))
    sets, row = (np.arange(N), np.arange(N)) if groups is None else (groups, groups)
    truth = Truth(kernel, Y, Y, V, np.array([LAM]), sets, True, fixed_new=np.ones((NEW, 1)))
    fits, _, K_new = truth.without(sets_of(sets))
    used, scores = V > 0, np.abs(truth.held(sets)[0])
    f = fits.predict(K_new, Y, np.ones((NEW, 1)))[row][used, 0]
    scores = scores[used][:, None] * np.sqrt(V[used][:, None] / wide(weights))[..., None]
    k = int(np.ceil(round(0.8 * (used.sum() + 1), 9)))
    want = np.sort(f - scores, axis=0)[used.sum() - k], np.sort(f + scores, axis=0)[k - 1]
    assert_ends(ends, want)


def test_intervals_on_landmarks_do_not_depend_on_the_unit_of_the_kernel():
    """N, which goes as 1/unit², leaves the range of float32 where λN does not."""
    options, found = {"landmarks": np.arange(0, N, 3), "keep": True}, []
    for scale in (DTYPE(1), DTYPE(2.0**-100 if X64 else 2.0**-30)):
        lams = [scale * DTYPE(10 * LAM)]
        of = rls.fit(scale * GAUSSIAN, INPUT, OUTPUT[:, :1], lams=lams, **options)
        found.append(of.intervals(FRESH, 0.8, studentised=True))
    assert_ends(found[1], found[0])


@FLOAT64
@pytest.mark.slow
def test_every_target_at_its_own_lam():
    found = fit(per_target=True, lams=np.array([0.05, 3.0]), groups=GROUPS)
    assert found.lam.shape == (2,)
    ends = found.intervals(FRESH, 0.8)
    for j, lam in enumerate(np.asarray(found.lam)):
        want = by_refits(GROUPS, np.ones(N), lam=lam, y=Y[:, j : j + 1])
        assert_ends([end[:, j : j + 1] for end in ends], want, TOLERANCE * max(1, LAM / lam))


def test_too_few_rows_for_the_level_leave_it_open():
    lower, upper = known("plain").intervals(FRESH, 0.97)
    assert np.isneginf(lower).all() and np.isposinf(upper).all()
    assert np.isfinite(known("plain").intervals(FRESH, 0.96)).all()  # which is 24 of 25


@FLOAT64
@pytest.mark.slow
def test_a_level_is_the_one_that_was_rounded_to_what_is_given():
    """Of 9 rows 0.8 takes the 8th of 10, and so it does in float32, where it is a little more."""
    found = fit(slice(9))
    want = found.intervals(FRESH, 0.8)
    for level in (np.float32(0.8), jax.numpy.asarray(0.8, jax.numpy.float32), np.array(0.8)):
        assert_ends(found.intervals(FRESH, level), want, 0)
    for level in (0.8, np.float32(0.8)):
        assert_ends(jax.jit(lambda level: found.intervals(FRESH, level))(level), want, 0)


@pytest.mark.parametrize("weights", [None, np.geomspace(0.25, 16, NEW)], ids=["ones", "weights"])
def test_studentised_width_follows_x(weights):
    """|eᵢ| σ₋ᵢ(x)/σᵢ, by a Gaussian process without each row."""
    options = {"studentised": True}
    if weights is not None:
        options["weights"] = weights.astype(DTYPE)
    found = fit(keep=True, intercept=False).intervals(FRESH, 0.8, **options)
    noise = np.concatenate([np.full(N, LAM), LAM / (np.ones(NEW) if weights is None else weights)])
    K, ends = gaussian(np.vstack([X, X_NEW]), X), []
    for i, rest in enumerate(~np.eye(N, dtype=bool)):
        k = K[:, rest]
        P = np.linalg.inv(k[:N][rest] + LAM * np.eye(N - 1))
        f, std = k @ P @ Y[rest], np.sqrt(1 + noise - np.sum(k @ P * k, axis=1))
        width = np.abs(Y[i] - f[i]) * (std[N:] / std[i])[:, None]
        ends.append([f[N:] - width, f[N:] + width])
    lower, upper = np.sort(np.moveaxis(ends, 1, 0), axis=1)
    assert_ends(found, (lower[N - 20], upper[19]))


# doors
# --------------------------------------------------------------------------------------------------


@ANY_PRECISION
def test_what_cannot_be():
    level = "level must be between 0 and 1, such as 0.9, and holds "
    asked = [
        ({"level": 90}, level + "90"),
        ({"level": "0.9"}, "level must hold real numbers"),
        ({"level": [0.5, 0.9]}, level),
    ]
    for named, words in asked:
        refused((partial(known("plain").intervals, **{"X": FRESH, **named}), words))
    words = r"levels must be between 0 and 1, .*\[1.5, nan\]"
    refused((lambda: known("plain").loo_predictive().coverage([1.5, np.nan]), words))


@ANY_PRECISION
@pytest.mark.slow
def test_fits_that_have_no_intervals_say_so():
    changed = fit(slice(15), landmarks=INPUT[:8]).update(INPUT[15:], OUTPUT[15:])
    refused(
        (
            lambda: fit(keep=False).intervals(FRESH),
            "this fit kept no solution, which this call needs",
        ),
        (
            lambda: changed.intervals(FRESH),
            "held-out residuals are not known after update, forget or load",
        ),
        (
            lambda: known("groups").intervals(FRESH, studentised=True),
            "studentised=True needs a fit that left out single rows",
        ),
        (
            lambda: known("groups").loo_predictive(),
            "loo_predictive needs a fit that left out single rows",
        ),
    )


# what is left out beside what is told of it
# ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_predictive_standard_deviations_are_those_of_residuals():
    """σᵢ² = τ² (var f₋ᵢ(xᵢ) + λ/vᵢ), which the contract holds to refits, τ such that residuals are
    as large as they are held to be; by the evidence another τ.
    """
    found = fit(weights=V.astype(DTYPE), keep=True)
    one, other = found.loo_predictive(), found.loo_predictive(scale="evidence")
    used = np.flatnonzero(V > 0)
    assert_close(one.residuals[used], found.loo_residuals[used], TOLERANCE)
    assert_close(np.mean((one.residuals / one.std)[used] ** 2, axis=0), np.ones(2), TOLERANCE)
    ratio = np.asarray(process_of(found).evidence / process_of(found).loo)
    assert_close(other.std[used], one.std[used] * ratio, TOLERANCE, "by the evidence")
    for part in (one.residuals, one.std, one.reached, one.crps):
        assert part.shape == (N, 2) and (np.isnan(part) == (V == 0)[:, None]).all()


@ANY_PRECISION
def test_scores_are_integrals_and_levels_those_of_the_normal_distribution():
    """∫ (F(t) − 1(t ≥ y))² dt, Gneiting and Raftery 2007, eq. 20."""
    found = rls.fit(GAUSSIAN, X, Y, **KEPT).loo_predictive()
    t, levels = np.linspace(-12, 12, 200_001)[:, None, None], np.array([0.3, 0.9])
    e, std = np.asarray(found.residuals), np.asarray(found.std)
    values = (norm.cdf(t) - (t >= (e / std)[:5])) ** 2
    scores = std[:5] * np.trapezoid(values, dx=24 / 200_000, axis=0)
    assert_allclose(found.crps[:5], scores, rtol=1e-3)
    inside = np.abs(e) <= norm.ppf((1 + levels[:, None, None]) / 2) * std
    assert_allclose(found.coverage(levels), inside.mean(axis=1))


@FLOAT64
def test_predictive_of_labels_that_are_all_told():
    """Nothing is left out, where 0/0 was."""
    found = fit(Y=np.stack([np.zeros(N), Y[:, 1]], axis=1)).loo_predictive()
    plain = known("plain").loo_predictive()
    assert not any(part[:, 0].any() for part in (found.std, found.reached, found.crps))
    assert found.coverage([0.0, 0.5])[:, 0].tolist() == [1, 1]
    assert_close(found.crps[:, 1], plain.crps[:, 1], TOLERANCE)
    assert_close(found.reached[:, 1], plain.reached[:, 1], TOLERANCE)


@ANY_PRECISION
@pytest.mark.slow
def test_pictures():
    found = rls.fit(GAUSSIAN, INPUT[:, :1], OUTPUT, **KEPT)
    ax = found.plot_function(INPUT[:, :1], OUTPUT, level=0.8)
    band = ax.collections[0].get_paths()[0].vertices
    ends = found.intervals(np.asarray(ax.lines[-1].get_xdata()[:1, None], DTYPE), 0.8)
    assert all(abs(band[:, 1] - end[0, 0]).min() < 1e-4 for end in ends)
    assert len(ax.collections) == 2 and "80 % of labels" in texts(ax)
    predictive = found.loo_predictive()
    ax = predictive.plot()
    drawn, want = ax.lines[0].get_ydata()[[30, 90]], predictive.coverage([0.3, 0.9])[:, 0]
    assert_allclose(drawn, want)
    assert "target 1, continuous ranked probability score" in texts(ax) and len(ax.lines) == 3
    mpl.pyplot.close("all")


# the command line
# --------------------------------------------------------------------------------------------------


@ANY_PRECISION
@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    table, model, out = (str(tmp_path / name) for name in ("table.csv", "model.npz", "out.csv"))
    np.savetxt(table, np.c_[X, Y[:, 0]], delimiter=",", header="a,b,y", comments="")
    assert main(["fit", table, "--lams", "0.2", "--intervals", "--out", model]) == 0
    assert main(["predict", model, table, "--interval", "0.8", "--out", out]) == 0
    assert "% inside the intervals" in capsys.readouterr().out
    found = np.loadtxt(out, delimiter=",", skiprows=1)
    want = rls.load(model)  # which standardises
    assert_allclose(
        found, np.c_[want.predict(X), np.stack(want.intervals(X, 0.8), axis=1)], rtol=1e-9
    )
    with open(out, encoding="utf-8") as file:
        assert file.readline().strip() == '"prediction","lower","upper"'
    assert main(["fit", table, "--lams", "0.2", "--out", model]) == 0
    labels = tmp_path / "labels.csv"
    labels.write_text("a,y\n1,u\n2,v\n3,u\n4,v\n")
    for words, told in (
        (["predict", model, table, "--interval", "0.8"], "need: fit with --intervals"),
        (["fit", str(labels), "--intervals"], "--rank need a numeric target, and 'y' holds text"),
    ):
        assert main(words) == 2 and told in capsys.readouterr().err
