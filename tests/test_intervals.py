"""Intervals: the jackknife+ and CV+ by refits of one's own, and every door to them."""

import functools
import shlex
from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np
import pytest
from oracle import refit
from scipy.stats import norm
from support import DTYPE, EPS, array, assert_close, assert_derivatives, wide

import jaxrls as rls
from jaxrls.__main__ import main
from jaxrls.cli.parser import make_parser

mpl.use("agg")
pytestmark = pytest.mark.filterwarnings("ignore:the chosen λ")
N, NEW, LAM, WIDTH = 24, 6, 0.2, 1.3


def draw(seed, *shape):
    return wide(np.random.default_rng(seed).normal(size=shape))


X, X_NEW = draw(0, N, 2), draw(1, NEW, 2)
Y = wide(np.stack([np.sin(2 * X[:, 0]), X[:, 1] - 4], axis=1) + 0.3 * draw(2, N, 2))
V = wide(np.where(np.arange(N) % 7 == 3, 0, np.random.default_rng(3).uniform(0.5, 2.0, N)))
GROUPS = np.arange(N) % 5
GAUSSIAN = rls.Gaussian(WIDTH)
KEPT = {"lams": [LAM], "keep_intervals": True}
INPUT, OUTPUT, FRESH = (A.astype(DTYPE) for A in (X, Y, X_NEW))
TOLERANCE = 4 * N * EPS * (1 + N / LAM)


def gaussian(X, Z):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * WIDTH**2))


def fit(rows=slice(None), Y=OUTPUT, **options):
    return rls.fit(GAUSSIAN, INPUT[rows], Y[rows], **{**KEPT, **options})


@functools.cache
def known(name):
    """Fits that several tests ask."""
    options = {
        "plain": {},
        "groups": {"groups": GROUPS},
        "points": {"landmarks": INPUT[:8]},
        "landmarks": {"landmarks": np.arange(5)},
    }
    return fit(**options[name])


def by_refits(groups=None, v=V, level=0.8, lam=LAM, landmarks=None, y=Y):
    """Barber et al., eqs. 1.5 and 1.11: one refit for each row, or group; landmarks leave with
    their rows.
    """
    used, groups = v > 0, np.arange(N) if groups is None else groups
    upper, lower = [], []
    for g in np.unique(groups[used]):
        held = groups == g
        stay = X if landmarks is None else X[np.setdiff1d(landmarks, np.flatnonzero(held))]
        s, U = np.linalg.eigh(gaussian(stay, stay))
        half = U[:, s > 1e-13] / np.sqrt(s[s > 1e-13])
        Phi, Phi_new = gaussian(X, stay) @ half, gaussian(X_NEW, stay) @ half
        w, b = refit(Phi[~held], y[~held], lam, v[~held], True)
        for i in np.flatnonzero(held & used):
            score = np.abs(y[i] - Phi[i] @ w - b)
            upper.append(Phi_new @ w + b + score)
            lower.append(Phi_new @ w + b - score)
    n = len(upper)
    k = int(np.ceil(round(level * (n + 1), 9)))
    return np.sort(lower, axis=0)[n - k], np.sort(upper, axis=0)[k - 1]


def assert_ends(found, want, tolerance=TOLERANCE):
    for one, other, name in zip(found, want, ("lower", "upper"), strict=True):
        assert_close(one, other, tolerance, name)


# the jackknife+ and CV+
# ------------------------------------------------------------------------------------------------------


@pytest.mark.any_precision
def test_jackknife_of_200_rows_by_hand():
    """A bordered system for each row left out, and a sort: nothing of the library, nor of this
    file.
    """
    rng = np.random.default_rng(6)
    n, lam = 200, 0.05
    inputs, new = rng.uniform(-2, 2, (n, 2)), rng.uniform(-2, 2, (30, 2))
    labels = np.sin(3 * inputs[:, 0]) + inputs[:, 1] ** 2 + 0.2 * rng.standard_t(3, n)
    K, across = gaussian(inputs, inputs), gaussian(new, inputs)
    left_out, residuals = np.empty((30, n)), np.empty(n)
    for i in range(n):
        rest = np.arange(n) != i
        system = np.block(
            [
                [K[np.ix_(rest, rest)] + lam * np.eye(n - 1), np.ones((n - 1, 1))],
                [np.ones((1, n - 1)), np.zeros((1, 1))],
            ]
        )
        solved = np.linalg.solve(system, np.append(labels[rest], 0))
        left_out[:, i], residuals[i] = (
            across[:, rest] @ solved[:-1] + solved[-1],
            abs(labels[i] - K[i, rest] @ solved[:-1] - solved[-1]),
        )
    found = rls.fit(GAUSSIAN, inputs, labels, lams=[lam], keep_intervals=True)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        k = int(np.ceil(round(level * 201, 9)))
        lower, upper = found.intervals(new, level)
        assert lower.dtype == np.float64 and lower.shape == (30,)
        np.testing.assert_allclose(
            lower, np.sort(left_out - residuals, axis=1)[:, n - k], atol=1e-9
        )
        np.testing.assert_allclose(
            upper, np.sort(left_out + residuals, axis=1)[:, k - 1], atol=1e-9
        )


@pytest.mark.parametrize(
    ("landmarks", "groups"),
    [(None, None), (np.arange(0, N, 3), GROUPS)],
    ids=["jackknife+", "cv+ on landmarks"],
)
def test_intervals_are_those_of_refits(landmarks, groups):
    found = fit(weights=V.astype(DTYPE), groups=groups, landmarks=landmarks)
    method = "jackknife+" if groups is None else "cv+"
    assert_ends(
        found.intervals(FRESH, 0.8, method=method, block_size=4),
        by_refits(groups, landmarks=landmarks),
    )


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**-100, 2.0**80])
@pytest.mark.parametrize("route", ["subset", "cholesky"])
def test_intervals_on_landmarks_do_not_depend_on_the_unit_of_the_kernel(route, unit):
    """N, which goes as 1/unit², leaves the range of float32 where λN does not."""
    unit, options = (
        DTYPE(unit),
        {
            "landmarks": np.arange(0, N, 3),
            "keep_intervals": True,
            "keep_variance": True,
            "route": route,
        },
    )
    for groups, method, studentised in ((GROUPS, "cv+", False), (None, "jackknife+", True)):
        at = lambda scale, groups=groups: rls.fit(
            scale * GAUSSIAN,
            INPUT,
            OUTPUT[:, :1],
            lams=[scale * DTYPE(10 * LAM)],
            groups=groups,
            **options,
        )
        one, other = (
            at(scale).intervals(FRESH, 0.8, method=method, studentised=studentised)
            for scale in (DTYPE(1), unit)
        )
        for end, same in zip(one, other, strict=True):
            assert_close(same, end, TOLERANCE)


@pytest.mark.float64
def test_rows_of_weight_0_count_for_none():
    some = V > 0
    one, other = fit(weights=some.astype(DTYPE)), fit(some)
    assert_ends(one.intervals(FRESH), other.intervals(FRESH))


@pytest.mark.float64
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["jackknife+", "cv+"])
def test_every_target_at_its_own_lam(groups):
    lams = np.array([0.05, 3.0], DTYPE)
    found = fit(per_target=True, lams=lams, groups=groups)
    assert found.lam.shape == (2,)
    ends = found.intervals(FRESH, 0.8)
    for j, lam in enumerate(np.asarray(found.lam, np.float64)):
        want = by_refits(groups, np.ones(N), lam=lam, y=Y[:, j : j + 1])
        assert_ends([end[:, j : j + 1] for end in ends], want, TOLERANCE * max(1, LAM / lam))


def test_too_few_rows_for_the_level_leave_it_open():
    lower, upper = known("plain").intervals(FRESH, 0.97)
    assert np.isneginf(lower).all() and np.isposinf(upper).all()
    assert np.isfinite(known("plain").intervals(FRESH, 0.96)).all()  # which is 24 of 25


@pytest.mark.float64
def test_a_level_is_the_one_that_was_rounded_to_what_is_given():
    """Of 9 rows 0.8 takes the 8th of 10, and so it does in float32, where it is a little more."""
    found = fit(slice(9))
    want = found.intervals(FRESH, 0.8)
    for level in (np.float32(0.8), jax.numpy.asarray(0.8, jax.numpy.float32), np.array(0.8)):
        assert_ends(found.intervals(FRESH, level), want, 0)
    for level in (0.8, np.float32(0.8)):
        assert_ends(jax.jit(lambda level: found.intervals(FRESH, level))(level), want, 0)


def test_studentised_width_follows_x():
    """|eᵢ| σ₋ᵢ(x)/σᵢ, by a Gaussian process without each row."""
    found = fit(keep_variance=True, intercept=False).intervals(FRESH, 0.8, studentised=True)
    K, across, upper, lower = gaussian(X, X), gaussian(X_NEW, X), [], []
    for i in range(N):
        rest = np.arange(N) != i
        P = np.linalg.inv(K[np.ix_(rest, rest)] + LAM * np.eye(N - 1))
        std = lambda k, P=P: np.sqrt(1 + LAM - np.sum(k @ P * k, axis=1))
        e, f = np.abs(Y[i] - K[i, rest] @ P @ Y[rest]), across[:, rest] @ P @ Y[rest]
        wide = e * (std(across[:, rest]) / std(K[i : i + 1, rest]))[:, None]
        upper.append(f + wide)
        lower.append(f - wide)
    assert_ends(found, (np.sort(lower, axis=0)[N - 20], np.sort(upper, axis=0)[19]))


# doors
# -----------------------------------------------------------------------------------------------------------------------


def test_streams():
    parts = [(INPUT[:9], OUTPUT[:9]), (INPUT[9:], OUTPUT[9:])]
    found = rls.fit(GAUSSIAN, rls.stream(parts), landmarks=INPUT[:8], **KEPT)
    new = rls.stream([(FRESH[:4],), (FRESH[4:],)])
    assert_ends(found.intervals(new), known("points").intervals(FRESH))


@pytest.mark.parametrize("name", ["landmarks", "groups"])
def test_saved_and_loaded(name, tmp_path):
    found = known(name)
    rls.save(tmp_path / "fit.npz", found)
    assert (
        np.asarray(found.intervals(FRESH))
        == np.asarray(rls.load(tmp_path / "fit.npz").intervals(FRESH))
    ).all()


def test_precomputed_kernels_have_intervals():
    found = rls.fit(rls.Precomputed(), gaussian(X, X).astype(DTYPE), OUTPUT, **KEPT)
    assert_ends(found.intervals(gaussian(X_NEW, X).astype(DTYPE)), known("plain").intervals(FRESH))


@pytest.mark.float64
def test_inside_jit():
    """With derivatives in everything."""

    def ends(x):
        found = rls.fit(rls.Gaussian(x[0]), array(X), array(Y[:, 0]), route="cholesky", **KEPT)
        return jax.numpy.stack(found.intervals(x[1:].reshape(1, 2), 0.8))

    assert_derivatives(ends, np.array([WIDTH, 0.3, -0.4]), 1e-6)


@pytest.mark.float64
def test_update_leaves_none():
    changed = fit(slice(15), landmarks=INPUT[:8], keep_moments=True).update(INPUT[15:], OUTPUT[15:])
    with pytest.raises(
        ValueError,
        match="the rows were changed, and what each leaves out is not known any more: fit to all rows anew with",
    ):
        changed.intervals(FRESH)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fit(keep_intervals=False).intervals(FRESH),
            "intervals take more than the model keeps: fit with keep_intervals=True",
        ),
        (
            lambda: known("plain").intervals(FRESH, 90),
            "level must be a number between 0 and 1, such as 0.9, and is 90",
        ),
        (
            lambda: known("plain").intervals(FRESH, 1.0),
            "level must be a number between 0 and 1, such as 0.9, and is 1.0",
        ),
        (
            lambda: known("plain").intervals(FRESH, 0.0),
            "level must be a number between 0 and 1, such as 0.9, and is 0.0",
        ),
        (
            lambda: known("plain").intervals(FRESH, "0.9"),
            "level must be a number between 0 and 1, such as 0.9, and is '0.9'",
        ),
        (
            lambda: known("plain").intervals(FRESH, None),
            "level must be a number between 0 and 1, such as 0.9, and is None",
        ),
        (
            lambda: known("plain").loo_predictive().coverage([1.5, np.nan]),
            r"levels must be numbers between 0 and 1, .*\[1.5, nan\]",
        ),
        (
            lambda: fit(keep_variance=True).loo_predictive(scale=True),
            "scale must be 'evidence', 'loo' or a positive number, .* is True",
        ),
        (
            lambda: known("plain").intervals(FRESH, method="bootstrap"),
            "method must be one of 'jackknife.', 'cv.' or None .* and is 'bootstrap'",
        ),
        (
            lambda: known("plain").intervals(FRESH, method="cv+"),
            "left single rows out: leave method= out, or fit with groups=",
        ),
        (
            lambda: known("groups").intervals(FRESH, method="jackknife+"),
            "left groups out: leave method= out, or fit without groups=",
        ),
        (
            lambda: fit(groups=GROUPS, keep_variance=True).intervals(FRESH, studentised=True),
            "studentised=True is for rows left out one",
        ),
        (lambda: known("plain").intervals(FRESH, studentised=True), "fit with keep_variance=True"),
        (
            lambda: known("plain").intervals(FRESH[:, :1]),
            "X must have 2 columns, the columns it was fitted on, and has 1",
        ),
        (
            lambda: known("plain").intervals(FRESH * np.nan),
            "X holds 12 values that are NaN or infinite",
        ),
        (
            lambda: fit(refine=True),
            "refine=True keeps nothing beside the model: leave keep_moments, keep_variance and keep_intervals out",
        ),
        (
            lambda: known("groups").loo_predictive(),
            "loo_predictive is for rows left out one by one",
        ),
        (lambda: known("plain").loo_predictive(scale="evidence"), "fit with keep_variance=True"),
    ],
)
def test_what_cannot_be(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call()


# what is left out beside what is told of it
# ----------------------------------------------------------------------------------


def told_by_others(i, landmarks=None):
    """√(var f₋ᵢ(xᵢ) + λ/vᵢ) in units of the kernel, and eᵢ: generalised least squares of the other
    rows, with a flat prior on the intercept.
    """
    rest = np.flatnonzero((V > 0) & (np.arange(N) != i))
    stay = X if landmarks is None else X[np.setdiff1d(landmarks, [i])]
    s, U = np.linalg.eigh(gaussian(stay, stay))
    Phi = gaussian(X, stay) @ (U[:, s > 1e-13] / np.sqrt(s[s > 1e-13]))
    inverse = np.linalg.inv(Phi[rest] @ Phi[rest].T + np.diag(LAM / V[rest]))
    k, one = Phi[rest] @ Phi[i], np.ones(len(rest))
    b = one @ inverse @ Y[rest] / (one @ inverse @ one)
    variance = (
        Phi[i] @ Phi[i] - k @ inverse @ k + (1 - one @ inverse @ k) ** 2 / (one @ inverse @ one)
    )
    return np.sqrt(variance + LAM / V[i]), Y[i] - b - k @ inverse @ (Y[rest] - b)


@pytest.mark.parametrize(
    "options", [{}, {"landmarks": np.arange(0, N, 3)}], ids=["gram", "landmarks"]
)
def test_predictive_standard_deviations_are_those_of_residuals(options):
    """σᵢ² = τ² (var f₋ᵢ(xᵢ) + λ/vᵢ) by a refit without each row, τ such that residuals are as large
    as they are held to be; by the evidence another τ.
    """
    found = fit(weights=V.astype(DTYPE), keep_variance=True, **options)
    one, other = found.loo_predictive(), found.loo_predictive(scale="evidence")
    used = np.flatnonzero(V > 0)
    own, e = (
        np.array(part) for part in zip(*(told_by_others(i, **options) for i in used), strict=True)
    )
    tau = np.sqrt(np.mean((e / own[:, None]) ** 2, axis=0))
    assert_close(one.residuals[used], e, TOLERANCE, "residuals")
    assert_close(one.std[used], own[:, None] * tau, TOLERANCE, "deviations")
    assert_close(
        other.std[used],
        own[:, None] * np.asarray(found.sure.evidence, np.float64),
        TOLERANCE,
        "by the evidence",
    )
    for part in (one.residuals, one.std, one.reached, one.crps):
        assert part.shape == (N, 2) and (np.isnan(part) == (V == 0)[:, None]).all()


@pytest.mark.any_precision
def test_scores_are_integrals_and_levels_those_of_the_normal_distribution():
    """∫ (F(t) − 1(t ≥ y))² dt, Gneiting and Raftery 2007, eq. 20."""
    found = rls.fit(GAUSSIAN, X, Y[:, 0], **KEPT).loo_predictive()
    t = np.linspace(-12, 12, 200_001)
    residuals, deviations, scores = map(np.asarray, (found.residuals, found.std, found.crps))
    for e, std, score in zip(residuals[:5], deviations[:5], scores[:5], strict=True):
        values = (norm.cdf(t) - (t >= e / std)) ** 2
        assert score == pytest.approx(
            std * np.sum(values[:-1] + values[1:]) / 2 * (t[1] - t[0]), rel=1e-3
        )
    for level, share in zip((0.3, 0.9), np.asarray(found.coverage([0.3, 0.9])), strict=True):
        assert share == pytest.approx(
            np.mean(np.abs(residuals) <= norm.ppf((1 + level) / 2) * deviations)
        )


@pytest.mark.float64
def test_predictive_of_labels_that_are_all_told():
    """Nothing is left out, where 0/0 was."""
    found = fit(Y=np.stack([np.zeros(N), Y[:, 1]], axis=1)).loo_predictive()
    plain = known("plain").loo_predictive()
    assert not any(part[:, 0].any() for part in (found.std, found.reached, found.crps))
    assert found.coverage([0.0, 0.5])[:, 0].tolist() == [1, 1]
    assert_close(found.crps[:, 1], plain.crps[:, 1], TOLERANCE)
    assert_close(found.reached[:, 1], plain.reached[:, 1], TOLERANCE)


@pytest.mark.float64
def test_predictive_of_every_target_at_its_own_lam():
    lams = np.array([0.05, 3.0], DTYPE)
    found = fit(per_target=True, lams=lams)
    for j in range(2):
        one = fit(Y=OUTPUT[:, j], lams=[found.lam[j]]).loo_predictive()
        assert_close(found.loo_predictive().std[:, j], one.std, 10 * TOLERANCE)


@pytest.mark.any_precision
def test_pictures():
    found = rls.fit(GAUSSIAN, INPUT[:, :1], OUTPUT, **KEPT)
    ax = found.plot_function(INPUT[:, :1], OUTPUT, level=0.8)
    band = ax.collections[0].get_paths()[0].vertices
    lower, upper = found.intervals(np.asarray(ax.lines[-1].get_xdata()[:1, None], DTYPE), 0.8)
    assert len(ax.collections) == 2 and "80 % of labels" in [
        text.get_text() for text in ax.get_legend().get_texts()
    ]
    assert abs(band[:, 1] - lower[0, 0]).min() < 1e-4 and abs(band[:, 1] - upper[0, 0]).min() < 1e-4
    ax = found.loo_predictive().plot()
    np.testing.assert_allclose(
        ax.lines[0].get_ydata()[[30, 90]], found.loo_predictive().coverage([0.3, 0.9])[:, 0]
    )
    assert (
        len(ax.lines) == 3
        and "target 1, continuous ranked probability score"
        in ax.get_legend().get_texts()[1].get_text()
    )
    mpl.pyplot.close("all")


# the command line
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.any_precision
def test_command_line(tmp_path, capsys):
    table, model, out = (str(tmp_path / name) for name in ("table.csv", "model.npz", "out.csv"))
    np.savetxt(table, np.c_[X, Y[:, 0]], delimiter=",", header="a,b,y", comments="")
    assert main(["fit", table, "--lams", "0.2", "--intervals", "--out", model]) == 0
    assert main(["predict", model, table, "--interval", "0.8", "--out", out]) == 0
    assert "% inside their intervals" in capsys.readouterr().out
    found = np.loadtxt(out, delimiter=",", skiprows=1)
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    want = rls.load(model)
    np.testing.assert_allclose(
        found,
        np.c_[want.predict(standard), np.stack(want.intervals(standard, 0.8), axis=1)],
        rtol=1e-9,
    )
    with open(out, encoding="utf-8") as file:
        assert file.readline().strip() == "prediction,lower,upper"


@pytest.mark.any_precision
def test_commands_of_the_page_can_be_typed():
    page = (Path(__file__).parents[1] / "docs" / "intervals.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("python -m jaxrls ")]
    assert len(lines) == 2
    for line in lines:
        make_parser().parse_args(shlex.split(line)[3:])


@pytest.mark.any_precision
def test_what_the_command_line_refuses(tmp_path, capsys):
    table, labels, model = (
        str(tmp_path / name) for name in ("table.csv", "labels.csv", "model.npz")
    )
    named = {"delimiter": ",", "header": "a,b,y", "comments": ""}
    np.savetxt(table, np.c_[X, Y[:, 0]], **named)
    np.savetxt(labels, np.c_[X.astype(str), np.where(Y[:, 0] > 0, "a", "b")], fmt="%s", **named)
    rls.save(model, rls.fit(GAUSSIAN, X, Y[:, 0], lams=[LAM]))
    for args, words in (
        (
            ["predict", model, table, "--interval", "0.8"],
            "keeps nothing to make intervals of: fit it with --intervals",
        ),
        (
            ["fit", labels, "--intervals"],
            "--intervals are for numbers, and the target holds labels",
        ),
    ):
        assert main(args) == 2
        assert words in capsys.readouterr().err
    for args, words in (
        (
            ["predict", model, table, "--interval", "80"],
            "'80' is not a number between 0 and 1, such as 0.9",
        ),
        (["fit", table, "--classify", "--intervals"], "--intervals does not go with --classify"),
    ):
        with pytest.raises(SystemExit):
            main(args)
        assert words in capsys.readouterr().err
