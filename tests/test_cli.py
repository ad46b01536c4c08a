"""The command line: what it prints, what it writes, and one clear line where something is wrong."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import jaxrls as rls
from jaxrls.__main__ import main
from jaxrls.cli import programs
from jaxrls.cli.columns import rms, standardisation
from jaxrls.cli.fitting import KERNELS, from_data
from jaxrls.cli.parser import make_parser
from jaxrls.rows.deviations import standardise

pytestmark = pytest.mark.any_precision  # float64, whatever the switch says
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a regression and a classification problem, as the working directory."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) * [1.0, 100.0] + [0.0, 1000.0]
    y = 5 + np.sin(2 * X[:, 0]) + X[:, 1] / 100 + 0.1 * rng.normal(size=60)
    label = np.where(y > 15.5, "high", np.where(y < 14.5, "low", "mid"))
    rows = [
        f"{a!r},{b!r},{c!r},{d},{i % 6},{1 + i % 2}" for i, (a, b, c, d) in enumerate(zip(*X.T.tolist(), y.tolist(), label, strict=True))
    ]
    files = {
        "train.csv": ("a,b,y\n", 0, 40, slice(0, 3)),
        "test.csv": ("a,b,y\n", 40, 60, slice(0, 3)),
        "new.csv": ("a,b\n", 40, 60, slice(0, 2)),
        "bare.csv": ("", 40, 60, slice(0, 2)),
        "labels.csv": ("a,b,kind\n", 0, 40, [0, 1, 3]),
        "labels_test.csv": ("a,b,kind\n", 40, 60, [0, 1, 3]),
        "more.csv": ("a,b,y,g,w\n", 0, 40, [0, 1, 2, 4, 5]),
    }
    for name, (header, start, stop, columns) in files.items():
        text = "".join(",".join(np.array(row.split(","))[columns]) + "\n" for row in rows[start:stop])
        (tmp_path / name).write_text(header + text)
    np.savez(tmp_path / "train.npz", X=X[:40], y=y[:40])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *argv):
    code = main(argv)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def fails(capsys, *argv):
    """Exit code 2, nothing printed but one line on stderr."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert err.startswith("jaxrls: ") and err.count("\n") == 1
    return err


def value(out, what):
    return float(re.search(rf"^{what} +(\S+)", out, re.MULTILINE).group(1).rstrip(","))


def predictions(path="p.csv"):
    lines = Path(path).read_text().splitlines()
    assert lines[0].split(",")[0] == "prediction"
    return [line.split(",")[0] for line in lines[1:]]


def read(path):
    return np.loadtxt(path, delimiter=",", skiprows=1)


def test_fit_says_what_the_library_computes(folder, capsys):
    out = run(capsys, "fit", "train.csv", "--out", "m.npz")
    X, y = read("train.csv")[:, :2], read("train.csv")[:, 2]
    X = (X - X.mean(0)) / X.std(0)
    width = from_data(rls.Gaussian(1.0), X).width
    fit = rls.fit(rls.Gaussian(width), X, y)
    assert "40 rows, 2 inputs, target y" in out
    assert f"gaussian, width {width:.4g} (the median distance between standardised rows)" in out
    assert value(out, "lambda") == pytest.approx(float(fit.lam), rel=1e-3)
    assert value(out, "LOO error") == pytest.approx(float(fit.error), rel=1e-3)
    assert f"RMSE {np.sqrt(fit.error):.4g} in units" in out
    assert value(out, "freedom") == pytest.approx(float(fit.dof), rel=1e-3)
    assert re.search(r"^route +gram$", out, re.MULTILINE)
    table = [line.split() for line in out.splitlines() if re.match(r" +\d\.\d{3}e", line)]
    assert len(table) == 12
    best = [line for line in table if "best" in line]
    assert len(best) == 1 and float(best[0][0]) == pytest.approx(float(fit.lam), rel=1e-3)
    assert float(best[0][1]) == min(float(line[1]) for line in table)
    saved = rls.load("m.npz")
    np.testing.assert_allclose(saved.error, fit.error, rtol=1e-6)
    assert saved.model.coef.dtype == np.float64


def test_predict_by_name_by_position_and_with_the_target(folder, capsys):
    run(capsys, "fit", "train.csv", "--out", "m.npz")
    out = run(capsys, "predict", "m.npz", "new.csv", "--out", "p.csv")
    assert out == "20 predictions written to p.csv\n"
    expected = np.array(predictions(), float)
    assert np.sqrt(np.mean((expected - read("test.csv")[:, 2]) ** 2)) < 0.5
    out = run(capsys, "predict", "m.npz", "test.csv", "--out", "p.csv")
    rmse = np.sqrt(np.mean((expected - read("test.csv")[:, 2]) ** 2))
    assert f"RMSE {rmse:.4g} in units of the target" in out
    assert np.array(predictions(), float).tolist() == expected.tolist()
    run(capsys, "predict", "m.npz", "bare.csv", "--out", "p.csv")
    assert np.array(predictions(), float).tolist() == expected.tolist()
    Path("swapped.csv").write_text("".join(",".join(line.split(",")[::-1]) + "\n" for line in Path("new.csv").read_text().splitlines()))
    run(capsys, "predict", "m.npz", "swapped.csv", "--out", "p.csv")
    assert np.array(predictions(), float).tolist() == expected.tolist()


def test_gaps_in_the_target_do_not_stop_predictions(folder, capsys):
    run(capsys, "fit", "train.csv", "--out", "m.npz")
    Path("gaps.csv").write_text("a,b,y\n0,1000,\n1,1000,3\n")
    assert "no error on the target" in run(capsys, "predict", "m.npz", "gaps.csv", "--out", "p.csv")


def test_labels_are_classified(folder, capsys):
    out = run(capsys, "fit", "labels.csv", "--out", "m.npz")
    assert "target kind (3 classes: high, low, mid)" in out
    wrong = value(out, "LOO error")
    assert 0 <= wrong < 50
    assert float(re.search(r"(\S+)  <- best", out).group(1)) == pytest.approx(wrong / 100, rel=1e-2, abs=1e-9)
    out = run(capsys, "predict", "m.npz", "labels_test.csv", "--out", "p.csv")
    truth = [line.split(",")[2] for line in Path("labels_test.csv").read_text().splitlines()[1:]]
    error = 100 * np.mean([a != b for a, b in zip(predictions(), truth, strict=True)])
    assert error < 50 and f"{error:.3g} % of labels wrong" in out
    assert Path("p.csv").read_text().startswith("prediction,score_high,score_low,score_mid\n")


def test_numbers_can_be_labels(folder, capsys):
    out = run(capsys, "fit", "more.csv", "--target", "w", "--classify", "--out", "m.npz")
    assert "(2 classes: 1, 2)" in out
    run(capsys, "predict", "m.npz", "more.csv", "--out", "p.csv")
    assert set(predictions()) <= {"1", "2"}
    assert Path("p.csv").read_text().startswith("prediction,score\n")


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "chi2"])
def test_every_kernel(folder, capsys, kernel):
    out = run(capsys, "fit", "train.csv", "--kernel", kernel, "--out", "m.npz")
    assert re.search(rf"^kernel +{kernel}", out, re.MULTILINE)
    run(capsys, "predict", "m.npz", "test.csv", "--out", "p.csv")
    np.testing.assert_allclose(np.array(predictions(), float).shape, 20)


def test_the_kernel_of_histograms(folder, capsys):
    """It takes columns as they are, and says so where they would be standardised, or are negative."""
    counts = np.random.default_rng(0).poisson(3.0, (30, 3))
    np.savetxt("counts.csv", counts, delimiter=",", header="a,b,y", comments="")
    out = run(capsys, "fit", "counts.csv", "--kernel", "chi2", "--no-standardize", "--out", "m.npz")
    assert "(the median distance between rows)" in out
    run(capsys, "predict", "m.npz", "counts.csv", "--out", "p.csv")
    assert "say --no-standardize" in fails(capsys, "fit", "counts.csv", "--kernel", "chi2")
    np.savetxt("counts.csv", counts - 5, delimiter=",", header="a,b,y", comments="")
    assert "ChiSquared is for X ≥ 0" in fails(capsys, "fit", "counts.csv", "--kernel", "chi2", "--no-standardize")


@pytest.mark.parametrize("criterion", ["loo", "gcv", "kfold", "evidence", "predictive"])
def test_every_criterion(folder, capsys, criterion):
    out = run(capsys, "fit", "train.csv", "--criterion", criterion)
    title = {"loo": "LOO error", "gcv": "GCV error", "kfold": "fold error", "evidence": "-log evidence", "predictive": "-log density"}[
        criterion
    ]
    assert title in out and out.count("<- best") == 1
    run(capsys, "fit", "labels.csv", "--criterion", criterion)


def test_weights_and_groups_are_columns_and_not_inputs(folder, capsys):
    out = run(capsys, "fit", "more.csv", "--target", "y", "--groups", "g", "--weights", "w", "--out", "m.npz")
    data = read("more.csv")
    X, weights = data[:, :2], data[:, 4]
    means, scales = standardisation(X, weights)
    np.testing.assert_allclose(means, np.repeat(X, weights.astype(int), axis=0).mean(0))
    np.testing.assert_allclose(scales, np.repeat(X, weights.astype(int), axis=0).std(0))
    X = (X - means) / scales
    fit = rls.fit(from_data(rls.Gaussian(1.0), X), X, data[:, 2], groups=data[:, 3], weights=weights)
    assert "2 inputs" in out and "fold error" in out
    assert value(out, "lambda") == pytest.approx(float(fit.lam), rel=1e-3)
    assert value(out, "LOO error") == pytest.approx(np.average(fit.loo_residuals**2, weights=weights), rel=1e-3)
    run(capsys, "predict", "m.npz", "new.csv", "--out", "p.csv")


def test_the_grid(folder, capsys):
    out = run(capsys, "fit", "train.csv", "--lams", "1e-3,1,0.1", "--width", "1.5")
    assert "width 1.5\n" in out
    assert len(re.findall(r"^ +\d\.\d{3}e", out, re.MULTILINE)) == 3
    run(capsys, "fit", "train.csv", "--num-lams", "7", "--out", "m.npz")
    data = read("train.csv")
    X = (data[:, :2] - data[:, :2].mean(0)) / data[:, :2].std(0)
    default = rls.fit(from_data(rls.Gaussian(1.0), X), X, data[:, 2]).lams
    np.testing.assert_allclose(rls.load("m.npz").lams, np.geomspace(default[0], default[-1], 7), rtol=1e-9)


def test_lambda_without_a_grid(folder, capsys):
    out = run(capsys, "fit", "train.csv", "--lams", "search", "--out", "m.npz")
    assert re.search(r"^search +\d+ Cholesky factors and one for the model", out, re.MULTILINE)
    data = read("train.csv")
    X = (data[:, :2] - data[:, :2].mean(0)) / data[:, :2].std(0)
    grid = rls.fit(from_data(rls.Gaussian(1.0), X), X, data[:, 2])
    assert float(rls.load("m.npz").error) <= 1.001 * float(grid.error)


def test_without_standardisation_and_intercept(folder, capsys):
    out = run(capsys, "fit", "train.csv", "--no-standardize", "--no-intercept", "--kernel", "linear", "--out", "m.npz")
    data = read("train.csv")
    fit = rls.fit(rls.Linear(), data[:, :2], data[:, 2], intercept=False)
    assert value(out, "LOO error") == pytest.approx(float(fit.error), rel=1e-3)
    assert float(rls.load("m.npz").model.intercept) == 0


def test_archives_and_models_of_the_library(folder, capsys):
    run(capsys, "fit", "train.npz", "--out", "m.npz")
    run(capsys, "predict", "m.npz", "new.csv", "--out", "p.csv")
    run(capsys, "fit", "train.csv", "--out", "n.npz")
    first = predictions()
    run(capsys, "predict", "n.npz", "new.csv", "--out", "p.csv")
    np.testing.assert_allclose(np.array(first, float), np.array(predictions(), float), rtol=1e-6)
    X = read("train.csv")[:, :2]
    Y = read("train.csv")[:, 2:] * [1.0, -1.0]
    rls.save("l.npz", rls.fit(rls.Linear(), X, Y).model)
    run(capsys, "predict", "l.npz", "bare.csv", "--out", "p.csv")
    assert Path("p.csv").read_text().startswith("prediction_0,prediction_1\n")


@pytest.mark.parametrize("header", ["0,1,2", "2.5,1,2"])
def test_the_report_says_what_the_first_line_was_taken_for(folder, capsys, header):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 2))
    rows = "".join(f"{a!r},{b!r},{float(np.sin(a)) + b!r}\n" for a, b in X.tolist())
    Path("c.csv").write_text(f"{header}\n{rows}")
    out = run(capsys, "fit", "c.csv", "--out", "m.npz")
    first = out.splitlines()[0]
    if header == "0,1,2":
        assert "25 rows" in first and "target 2" in first and first.endswith("; the first line is taken for a header")
        assert value(out, "LOO error") < 0.1
        assert "26 rows" in run(capsys, "fit", "c.csv", "--no-header").splitlines()[0]
    else:
        assert "26 rows" in first and first.endswith("; the first line is taken for data")
        assert "25 rows" in run(capsys, "fit", "c.csv", "--header").splitlines()[0]
    assert run(capsys, "predict", "m.npz", "c.csv", "--header", "--out", "p.csv").startswith("25 predictions")
    assert run(capsys, "predict", "m.npz", "c.csv", "--no-header", "--out", "p.csv").startswith("26 predictions")


@pytest.mark.parametrize("unit", [1e200, 1e-170, 1e300, 1e-300])
def test_columns_of_any_unit_are_standardised(folder, capsys, unit):
    """Their squares leave the range of numbers, and they became constant."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 2)) + [3.0, -2.0]
    y = np.sin(X[:, 0]) + X[:, 1]
    for name, factor in (("one.csv", 1.0), ("unit.csv", unit)):
        np.savetxt(name, np.column_stack([X * [factor, 1.0], y]), delimiter=",", header="a,b,y", comments="")
    reports = [run(capsys, "fit", name, "--out", name + ".npz") for name in ("one.csv", "unit.csv")]
    assert [value(out, "LOO error") for out in reports] == pytest.approx([value(reports[0], "LOO error")] * 2, rel=1e-6)
    found = []
    for name in ("one.csv", "unit.csv"):
        run(capsys, "predict", name + ".npz", name, "--out", "p.csv")
        found.append(np.array(predictions(), float))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-1060, -500, 0, 900, 1021])
def test_standardisation_is_that_of_the_column_in_other_units(exponent, dtype, rng):
    if dtype == np.float32:
        exponent //= 9
    X = rng.normal(size=(20, 1)).astype(dtype)
    Z = np.ldexp(X, exponent)
    X = np.ldexp(Z.astype(np.float64), -exponent)  # as far as it survived
    weights = rng.uniform(0, 1e300, 20)
    for v in (None, weights):
        found = standardise(Z, *standardisation(Z, v))
        shares = None if v is None else v / 1e300
        mean = np.average(X, axis=0, weights=shares)
        expected = (X - mean) / np.sqrt(np.average((X - mean) ** 2, axis=0, weights=shares))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=1e-2 if exponent < -1000 else 1e-5 if dtype == np.float32 else 1e-12, atol=1e-6)
    far = np.array([[-1.7e308], [1.7e308]])
    np.testing.assert_allclose(standardise(far, *standardisation(far, None)), [[-1], [1]])
    assert rms(np.array([3e200, 4e200]), np.array([1.0, 1.0])) == pytest.approx(np.sqrt(12.5) * 1e200)


def test_too_little_memory_is_told(folder, capsys, monkeypatch):
    def fail(*args, **options):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(rls, "fit", fail)
    assert "out of memory: Unable to allocate 9 TiB" in fails(capsys, "fit", "train.csv", "--width", "1")


def test_a_column_of_weights_without_weight_is_told(folder, capsys):
    Path("w.csv").write_text("a,w,z,y\n" + "".join(f"{i},0,{i - 5},{i % 5}\n" for i in range(20)))
    assert "column w: weights are all zero" in fails(capsys, "fit", "w.csv", "--weights", "w")
    assert "column z: weights must not be negative" in fails(capsys, "fit", "w.csv", "--weights", "z")


LAYOUT = {"inputs": ["a", "b"], "positions": [0, 1], "width": 3, "target": "y"}
EXTRA = {"layout": LAYOUT, "means": [0.0, 0.0], "scales": [1.0, 1.0], "classes": None}


@pytest.mark.parametrize(
    "change",
    [
        {"layout": []},
        {"layout": {"inputs": 3}},
        {"layout": LAYOUT | {"inputs": [1, 2]}},
        {"layout": LAYOUT | {"inputs": None, "positions": [0, 7]}},
        {"layout": LAYOUT | {"inputs": None, "positions": None}},
        {"layout": LAYOUT | {"inputs": None, "positions": [0.5, "a"]}},
        {"layout": LAYOUT | {"target": ["y"]}},
        {"means": 3},
        {"means": ["a", "b"]},
        {"means": [1.0]},
        {"scales": None},
        {"scales": [0.0, 1.0]},
        {"scales": [[1.0], [2.0]]},
        {"means": [float("nan"), 1.0]},
        {"means": [10**400, 1]},
        {"classes": "ab"},
        {"classes": ["a"]},
        {"classes": [["a"], 2]},
        {"classes": ["a", "b", "c"]},
    ],
    ids=str,
)
def test_forged_extras_are_told(folder, capsys, change):
    data = read("train.csv")
    rls.save("m.npz", rls.Model(rls.Linear(), None, np.ones(2), np.array(0.0)), extra=EXTRA)
    run(capsys, "predict", "m.npz", "test.csv", "--out", "p.csv")
    rls.save("m.npz", rls.Model(rls.Linear(), None, np.ones(2), np.array(0.0)), extra=EXTRA | change)
    assert "m.npz" in fails(capsys, "predict", "m.npz", "test.csv", "--out", "q.csv")
    assert not Path("q.csv").exists() and len(data)


@pytest.mark.parametrize("kernel", [{"class": "Gaussian", "fields": {"width": "wide"}}, 3, None, "text", {"list": []}], ids=str)
def test_forged_models_are_told(folder, capsys, kernel):
    rls.save("m.npz", rls.Model(rls.Gaussian(1.0), np.ones((3, 2)), np.ones(3), np.array(0.0)))
    run(capsys, "predict", "m.npz", "new.csv", "--out", "p.csv")
    with np.load("m.npz") as archive:
        arrays = dict(archive)
    header = json.loads(arrays["header"].tobytes())
    header["tree"]["fields"]["kernel"] = kernel
    np.savez("m.npz", **arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    assert "m.npz" in fails(capsys, "predict", "m.npz", "new.csv", "--out", "q.csv")


def test_forged_archives_of_data_are_told(folder, capsys):
    huge = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 2), }".ljust(117) + b"\n"
    for method, data in ((zipfile.ZIP_STORED, huge), (zipfile.ZIP_LZMA, huge), (zipfile.ZIP_STORED, b"")):
        with zipfile.ZipFile("d.npz", "w", method) as archive:
            archive.writestr("X.npy", data)
        assert "d.npz is not an NPZ file, or is damaged: X" in fails(capsys, "fit", "d.npz")
    np.savez_compressed("d.npz", X=np.zeros((2**20, 3)), y=np.zeros(2**20))
    assert "--max-inflation" in fails(capsys, "fit", "d.npz")
    assert "y" in fails(capsys, "fit", "d.npz", "--max-inflation", "2000", "--target", "z")


def test_constant_columns_do_no_harm(folder, capsys):
    Path("c.csv").write_text("a,b,y\n" + "".join(f"{i},7,{i % 5}\n" for i in range(20)))
    run(capsys, "fit", "c.csv", "--out", "m.npz")
    run(capsys, "predict", "m.npz", "c.csv", "--out", "p.csv")
    assert np.isfinite(np.array(predictions(), float)).all()


def test_tune(folder, capsys):
    out = run(capsys, "fit", "train.csv", "--tune", "--width", "30", "--out", "m.npz")
    before, after = (float(x) for x in re.search(r"LOO error (\S+) -> (\S+) in \d+ step", out).groups())
    assert after < before
    width = float(re.search(r"width 30 -> (\S+)", out).group(1))
    assert rls.load("m.npz").model.kernel.width == pytest.approx(width, rel=1e-3)


def test_warnings_are_told_in_a_line(folder, capsys):
    assert main(["fit", "train.csv", "--lams", "1e3,1e4"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("jaxrls: warning: the chosen") and err.count("\n") == 1


WRONG = [
    ("fit", "no.csv"),
    ("fit", "."),
    ("fit", "train.csv", "--target", "price"),
    ("fit", "train.csv", "--groups", "7"),
    ("fit", "labels.csv", "--target", "a"),
    ("fit", "train.csv", "--classify", "--target", "a"),
    ("fit", "train.csv", "--out", "no/m.npz"),
    ("fit", "train.csv", "--out", "."),
    ("predict", "no.npz", "new.csv"),
    ("predict", "train.csv", "new.csv"),
    ("predict", "train.npz", "new.csv"),
    ("predict", "kernel.npz", "new.csv"),
    ("predict", "model.npz", "no.csv"),
    ("predict", "model.npz", "labels.csv"),
    ("predict", "model.npz", "new.csv", "--out", "no/p.csv"),
    ("predict", "model.npz", "wide.npz"),
    ("predict", "plain.npz", "wide.npz"),
]


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_wrong_data_is_told_in_a_line(folder, capsys, argv):
    data = read("train.csv")
    fit = rls.fit(rls.Linear(), data[:, :2], data[:, 2], lams=[1e-3, 1.0, 1e3])
    rls.save("kernel.npz", rls.Linear())
    rls.save("plain.npz", fit)
    layout = {"inputs": ["a", "z"], "positions": [0, 1], "width": 3, "target": "y"}
    rls.save("model.npz", fit, extra={"layout": layout, "means": [0.0, 0.0], "scales": [1.0, 1.0], "classes": None})
    np.savez("wide.npz", X=np.ones((2, 3)))
    if argv == ("predict", "model.npz", "new.csv", "--out", "no/p.csv"):
        Path("new.csv").write_text("a,z\n1,2\n")
    assert fails(capsys, *argv)
    assert not list(folder.glob(".jaxrls*"))


@pytest.mark.parametrize(
    "argv",
    [
        ("guess",),
        ("fit",),
        ("fit", "train.csv", "--kernel", "rbf"),
        ("fit", "train.csv", "--width", "0"),
        ("fit", "train.csv", "--width", "wide"),
        ("fit", "train.csv", "--width", "nan"),
        ("fit", "train.csv", "--kernel", "linear", "--width", "1"),
        ("fit", "train.csv", "--degree", "2"),
        ("fit", "train.csv", "--kernel", "polynomial", "--degree", "1.5"),
        ("fit", "train.csv", "--lams", "1,-1"),
        ("fit", "train.csv", "--lams", ""),
        ("fit", "train.csv", "--num-lams", "0"),
        ("fit", "train.csv", "--lams", "1", "--num-lams", "3"),
        ("fit", "train.csv", "--criterion", "aic"),
        ("fit", "train.csv", "--groups", "a", "--criterion", "gcv"),
        ("fit", "train.csv", "--no-stand"),
        ("predict", "m.npz"),
        ("predict", "m.npz", "new.csv", "--o", "p.csv"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_in_a_line(folder, capsys, argv):
    assert "--help" in fails(capsys, *argv)


@pytest.mark.parametrize("argv", [("--help",), ("fit", "--help"), ("predict", "--help"), ("--version",)], ids=" ".join)
def test_help(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert rls.__version__ in out if argv == ("--version",) else "python -m jaxrls fit train.csv --target price" in out


# as a process


def process(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "jaxrls", *argv],
        env=ENVIRONMENT | options.pop("env", {}),
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def test_the_demo_runs_anywhere_and_generalises(tmp_path):
    result = process(cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.count("<- best") == 1
    claimed = float(re.search(r"LOO error .* RMSE (\S+)", result.stdout).group(1))
    met = float(re.search(r"301 rows put aside: (\S+)", result.stdout).group(1))
    assert abs(met / claimed - 1) < 0.2
    assert not list(tmp_path.iterdir())


def test_a_process_ends_with_2_and_no_traceback(folder):
    for argv in (("fit", "no.csv"), ("fit", "train.csv", "--width", "x")):
        result = process(*argv)
        assert result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1


@pytest.mark.parametrize("chosen", [None, "4"])
def test_threads_of_openblas_are_told_to_sleep_before_it_loads(folder, chosen):
    """JAX's decompositions run on SciPy's OpenBLAS, which reads the variable when it is loaded, and JAX loads it when it needs it."""
    code = """
import os, runpy, sys
sys.argv = ["jaxrls", "--version"]
try:
    runpy.run_module("jaxrls", run_name="__main__", alter_sys=True)
except SystemExit:
    print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"), "scipy.linalg" in sys.modules)
"""
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    environment |= {} if chosen is None else {"OPENBLAS_THREAD_TIMEOUT": chosen}
    out = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True, timeout=300).stdout
    assert out.splitlines()[-1] == f"{chosen or 18} False"


def test_predictions_are_printed_and_the_reader_may_leave(folder):
    assert process("fit", "train.csv", "--out", "m.npz").returncode == 0
    result = process("predict", "m.npz", "test.csv")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == 21 and result.stdout.startswith("prediction\n")
    assert result.stderr.startswith("RMSE")
    command = f"'{sys.executable}' -m jaxrls predict m.npz test.csv 2>err | true"
    if os.name != "nt":
        subprocess.run(command, shell=True, env=ENVIRONMENT, check=True, timeout=300)
        assert "Traceback" not in Path("err").read_text()


def test_ranks_within_groups_are_those_of_fit(folder, capsys):
    """The report has the share of pairs in order, and a scored file no error in units of the target."""
    out = run(capsys, "fit", "more.csv", "--target", "y", "--rank", "--groups", "g", "--num-lams", "5", "--out", "m.npz")
    fit = rls.load("m.npz")
    assert fit.criterion == "query_ranking_error"
    assert value(out, "order") == float(f"{100 * (1 - float(fit.error)):.4g}")
    assert "wrong order" in out and "LOO error" not in out
    assert "RMSE" not in run(capsys, "predict", "m.npz", "more.csv", "--out", "p.csv")
    X, y, g = (np.loadtxt("more.csv", delimiter=",", skiprows=1)[:, part] for part in ([0, 1, 4], 2, 3))
    X = standardise(X, *standardisation(X, None))
    L = np.eye(len(y)) - (g[:, None] == g) / np.bincount(g.astype(int))[g.astype(int)]  # the Laplacian of the pairs
    K = np.exp(-np.sum((X[:, None] - X) ** 2, axis=-1) / (2 * float(fit.model.kernel.width) ** 2))
    want = K @ np.linalg.solve(L @ K + float(fit.lam) * np.eye(len(y)), L @ y)
    np.testing.assert_allclose(np.array(predictions(), float), want, rtol=1e-9, atol=1e-9)


def test_auc_of_two_classes(folder, capsys):
    """λ by pairs left out, within groups where they are named, and the labels as ever."""
    (folder / "two.csv").write_text((folder / "labels.csv").read_text().replace("mid", "low"))
    out = run(capsys, "fit", "two.csv", "--criterion", "auc", "--num-lams", "5")
    assert value(out, "order") > 90
    assert "% of labels wrong" in out


def test_what_the_order_of_rows_does_not_go_with(folder, capsys):
    for words, *more in (
        ("--tune does not go with --rank", "--rank", "--tune"),
        ("--tune does not go with --criterion auc", "--criterion", "auc", "--tune"),
        ("--rank is for tables that are read whole", "--rank", "--stream"),
        ("--no-intercept does not go with --rank", "--rank", "--no-intercept"),
        ("leaves out whole groups", "--rank", "--criterion", "kfold"),
    ):
        assert words in fails(capsys, "fit", "train.csv", *more)
    assert "takes numbers or two classes to order, and kind has 3" in fails(capsys, "fit", "labels.csv", "--criterion", "auc")
    assert "--rank takes numbers to order, and kind has labels" in fails(capsys, "fit", "labels.csv", "--rank")


def test_programs_are_kept_in_the_cache_folder_unless_told_not_to(tmp_path, monkeypatch):
    kept: dict = {}
    monkeypatch.setattr(programs.jax.config, "update", kept.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parse = make_parser().parse_args
    told_elsewhere = programs.jax.config.jax_compilation_cache_dir is not None
    for argv in (["--no-cache"], ["fit", "x.csv", "--no-cache"]):
        programs.keep_programs(parse(argv))
    assert not kept and not (tmp_path / "cache").exists()
    programs.keep_programs(parse(["fit", "x.csv"]))
    assert kept.get("jax_compilation_cache_dir") == (None if told_elsewhere else programs.cache_folder())
    assert programs.cache_folder().startswith(str(tmp_path / "cache" / "jaxrls"))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert programs.cache_folder().startswith(os.path.expanduser("~/.cache/jaxrls"))


def test_the_oldest_programs_go_first(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    programs.forget_oldest(str(tmp_path), 15)
    assert os.listdir(tmp_path) == ["new"]
