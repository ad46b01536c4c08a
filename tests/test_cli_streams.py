"""The command line on rows that stream: the numbers of the same file read whole, one line where something is wrong, and no more memory than a block."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from test_cli import fails, run

import jaxrls as rls
from jaxrls.__main__ import main
from jaxrls.cli import reading
from jaxrls.rows.deviations import Deviations

pytestmark = pytest.mark.any_precision  # float64, whatever the switch says
N = 90
NAMES = ["a", "b", "w", "y"]
FIT = ("--weights", "w", "--target", "y", "--landmarks", "12", "--num-lams", "20")


def table():
    """Inputs in units far apart, weights, and a target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) * [1.0, 1e3] + [0.0, 1e4]
    return np.column_stack([X, 1 + np.arange(N) % 3, np.sin(2 * X[:, 0]) + X[:, 1] / 1e3 + 0.1 * rng.normal(size=N)])


def write(path, rows, names=NAMES):
    """Rows in the kind of file that the path's ending says."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, X=rows[:, :2], w=rows[:, 2], y=rows[:, 3])
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, rows.T, strict=True))), path)
    else:
        text = "\n".join([",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())])
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table as one file and as three in a folder, as the working directory."""
    write(tmp_path / "whole.csv", table())
    (tmp_path / "parts").mkdir()
    for name, rows in zip("abc", np.split(table(), [50, 57]), strict=True):
        write(tmp_path / "parts" / f"{name}.csv", rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_same_fit(path, other):
    (one, extra), (two, said) = (rls.load(name, with_extra=True) for name in (path, other))
    np.testing.assert_allclose(extra["means"], said["means"], rtol=1e-12)
    np.testing.assert_allclose(extra["scales"], said["scales"], rtol=1e-12)
    np.testing.assert_allclose(one.lam, two.lam, rtol=1e-9)
    np.testing.assert_allclose(one.errors, two.errors, rtol=1e-6)
    X = table()[:, :2]
    X = (X - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(one.predict(X), two.predict(X), atol=1e-6)
    return extra["layout"], said["layout"]


@pytest.mark.parametrize(
    "data", [("parts",), ("parts/*.csv",), ("parts/a.csv", "parts/b.csv", "parts/c.csv"), ("whole.csv", "--stream")], ids=" ".join
)
def test_a_stream_is_fitted_as_the_same_table_read_whole(folder, capsys, data):
    whole = run(capsys, "fit", "whole.csv", *FIT, "--out", "whole.npz")
    out = run(capsys, "fit", *data, *FIT, "--out", "parts.npz")
    files = " ".join(part for part in data if part != "--stream")
    first = out.splitlines()[0]
    count = "1 file" if "--stream" in data else "3 files"
    assert first == f"data      {files}, streamed from {count}: 90 rows, 2 inputs, target y; the first line is taken for a header"
    layouts = assert_same_fit("parts.npz", "whole.npz")
    assert layouts[0] == layouts[1]
    numbers = re.compile(r"^(kernel|lambda|LOO error|freedom|route).*$", re.MULTILINE)
    assert [line.group() for line in numbers.finditer(out)] == [line.group() for line in numbers.finditer(whole)]


@pytest.mark.parametrize("ending", [".npy", ".npz", ".csv.gz", ".parquet"])
def test_every_kind_of_file(folder, capsys, ending):
    options = ["2" if ending == ".npy" and part == "w" else "3" if ending == ".npy" and part == "y" else part for part in FIT]
    (folder / "rows").mkdir()
    for name, rows in zip("ab", np.split(table(), [50]), strict=True):
        write(folder / "rows" / f"{name}{ending}", rows)
    run(capsys, "fit", "whole.csv", *FIT, "--out", "whole.npz")
    run(capsys, "fit", "rows", *options, "--out", "parts.npz")
    assert_same_fit("parts.npz", "whole.npz")
    run(capsys, "predict", "whole.npz", "whole.csv", "--out", "whole_p.csv")
    out = run(capsys, "predict", "parts.npz", f"rows/*{ending}", "--out", "p.npy")
    assert out.startswith("90 predictions written to p.npy\nRMSE ")
    np.testing.assert_allclose(np.load("p.npy"), np.loadtxt("whole_p.csv", skiprows=1), atol=1e-6)


@pytest.mark.parametrize("ending", [".csv", ".npy", ".parquet"])
def test_a_stream_is_predicted_to_a_stream(folder, capsys, ending, monkeypatch):
    monkeypatch.setattr("jaxrls.io.sources.AT_ONCE", 40)
    run(capsys, "fit", "whole.csv", *FIT, "--out", "m.npz")
    out = run(capsys, "predict", "m.npz", "whole.csv", "--out", "whole.csv.csv")
    rmse = re.search(r"RMSE \S+", out).group()
    assert rmse in run(capsys, "predict", "m.npz", "parts", "--out", f"p{ending}")
    want = np.loadtxt("whole.csv.csv", skiprows=1)
    if ending == ".npy":
        got = np.load("p.npy")
    elif ending == ".parquet":
        import pyarrow.parquet

        got = pyarrow.parquet.read_table("p.parquet")["prediction"].to_numpy()
    else:
        assert Path("p.csv").read_text().startswith("prediction\n") and Path("p.csv").read_text().count("p") == 1
        got = np.loadtxt("p.csv", skiprows=1)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert run(capsys, "predict", "m.npz", "parts").count("\n") == N + 1


def test_labels_are_predicted_to_a_stream(folder, capsys):
    rows = table()
    text = "a,b,y\n" + "".join(f"{a!r},{b!r},{'high' if y > 10 else 'low'}\n" for a, b, _, y in rows.tolist())
    Path("labels.csv").write_text(text)
    run(capsys, "fit", "labels.csv", "--landmarks", "12", "--num-lams", "20", "--out", "m.npz")
    wrong = re.search(r"\S+ % of labels wrong", run(capsys, "predict", "m.npz", "labels.csv", "--out", "p.csv")).group()
    assert wrong in run(capsys, "predict", "m.npz", "labels.csv", "--stream", "--out", "q.csv")
    assert Path("p.csv").read_text() == Path("q.csv").read_text()
    run(capsys, "predict", "m.npz", "labels.csv", "--stream", "--out", "q.parquet")
    assert "p.npy would hold numbers" in fails(capsys, "predict", "m.npz", "labels.csv", "--stream", "--out", "p.npy")
    assert not Path("p.npy").exists() and not list(folder.glob(".jaxrls*"))
    Path("parts/a.csv").write_text("a,b,y\n1,2,\n1,2,3\n")
    run(capsys, "fit", "parts/b.csv", "--stream", *FIT[:6], "--landmarks", "3", "--out", "m.npz")
    assert "no error on the target" in run(capsys, "predict", "m.npz", "parts/a.csv", "--stream", "--out", "p.csv")


@pytest.mark.parametrize(
    "options",
    [
        ("--kernel", "linear"),
        ("--tune", "--landmarks", "10"),
        ("--criterion", "kfold", "--landmarks", "12"),
        ("--no-standardize", "--width", "1e3", "--landmarks", "12", "--lams", "0.1,1"),
    ],
    ids=" ".join,
)
def test_options_mean_what_they_mean_of_a_table(folder, capsys, options):
    common = ("--weights", "w", *options, *(() if "--lams" in options else ("--num-lams", "20")))
    whole = run(capsys, "fit", "whole.csv", *common, "--out", "whole.npz")
    out = run(capsys, "fit", "parts", *common, "--out", "parts.npz")
    one, two = (rls.load(name) for name in ("parts.npz", "whole.npz"))
    np.testing.assert_allclose(one.lam, two.lam, rtol=1e-6)
    np.testing.assert_allclose(one.errors, two.errors, rtol=1e-5)
    if "--tune" in options:
        assert re.search(r"^ +width.*$", out, re.MULTILINE).group() == re.search(r"^ +width.*$", whole, re.MULTILINE).group()


@pytest.mark.slow
def test_a_sample_is_tuned_on_where_there_are_more_rows(folder, capsys, monkeypatch):
    monkeypatch.setattr("jaxrls.cli.reading.SAMPLE", 40)
    out = run(capsys, "fit", "parts", *FIT, "--tune")
    assert re.search(r"^tuned +LOO error \S+ -> \S+ in \d+ steps? on 40 rows drawn by chance", out, re.MULTILINE)
    assert "--landmarks must be at most 40, the rows drawn by chance of parts" in fails(capsys, "fit", "parts", *FIT, "--landmarks", "41")


def test_a_checkpoint_is_gone_on_from(folder, capsys):
    first = run(capsys, "fit", "parts", *FIT, "--checkpoint", "sums.npz", "--out", "one.npz")
    assert Path("sums.npz").exists()
    second = run(capsys, "fit", "parts", *FIT, "--checkpoint", "sums.npz", "--out", "two.npz")
    assert [line for line in first.splitlines() if line[:4] not in ("time", "save")] == [
        line for line in second.splitlines() if line[:4] not in ("time", "save")
    ]
    np.testing.assert_array_equal(rls.load("one.npz").model.coef, rls.load("two.npz").model.coef)
    Path("sums.npz").write_bytes(b"noise")
    assert "sums.npz is no checkpoint" in fails(capsys, "fit", "parts", *FIT, "--checkpoint", "sums.npz")


def test_columns_of_later_files_are_found_by_name(folder, capsys):
    run(capsys, "fit", "parts", *FIT, "--out", "m.npz")
    write(folder / "parts" / "b.csv", table()[50:57][:, [3, 1, 0, 2]], ["y", "b", "a", "w"])
    run(capsys, "fit", "parts", *FIT, "--out", "n.npz")
    np.testing.assert_array_equal(rls.load("m.npz").model.coef, rls.load("n.npz").model.coef)


BAD = {
    "a gap": (
        "b",
        lambda lines: [lines[0], lines[1], "1,,1,2", *lines[2:]],
        ["parts/b.csv: row 2 (line 3), column b: the value is missing"],
    ),
    "text": ("c", lambda lines: [*lines, "1,x,1,2"], ["parts/c.csv: row 34", "column b: 'x' is not a number"]),
    "a ragged row": ("b", lambda lines: [*lines, "1,2"], ["parts/b.csv: row 8 (line 9) has 2 cells, and the header has 4"]),
    "another column": ("c", lambda lines: ["a,z,w,y", *lines[1:]], ["parts/c.csv has no column 'b' for the inputs", "a, z, w, y"]),
    "no weight": (
        "a",
        lambda lines: [lines[0], "1,2,-3,4", *lines[1:]],
        ["parts/a.csv: weights must not be negative, and is -3.0 at row 0"],
    ),
    "infinity": ("b", lambda lines: [*lines, "1,inf,1,2"], ["parts/b.csv: row 8", "inf is not a finite number"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_by_file_and_row(folder, capsys, name):
    part, change, words = BAD[name]
    path = folder / "parts" / f"{part}.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())))
    told = fails(capsys, "fit", "parts", *FIT)
    assert all(word in told for word in words), told


def test_a_bad_row_to_predict_is_named_and_nothing_is_written(folder, capsys):
    run(capsys, "fit", "whole.csv", *FIT, "--out", "m.npz")
    Path("parts/c.csv").write_text("a,b\n1,2\n3,nan\n")
    assert "parts/c.csv: row 2 (line 3), column b" in fails(capsys, "predict", "m.npz", "parts", "--out", "p.csv")
    assert not Path("p.csv").exists() and not list(folder.glob(".jaxrls*"))
    np.save("x.npy", np.array([[1.0, 2.0], [np.inf, 3.0]]))
    assert "x.npy: X is inf at row 1, column 0" in fails(capsys, "predict", "m.npz", "x.npy", "--out", "p.csv")
    np.save("x.npy", np.ones((3, 5)))
    assert "x.npy has 5 columns of inputs, and the model was fitted on 2" in fails(capsys, "predict", "m.npz", "x.npy")


REFUSED = {
    ("fit", "parts"): "--landmarks 1000",
    ("fit", "parts", "--landmarks", "auto"): "--landmarks 1000",
    ("fit", "parts", *FIT, "--groups", "w"): "--groups is for tables that are read whole",
    ("fit", "parts", *FIT, "--classify"): "--classify is for tables that are read whole",
    ("fit", "whole.csv", "--checkpoint", "c.npz"): "--checkpoint is for rows that stream",
    ("fit", "parts", *FIT, "--target", "z"): "parts/a.csv has no column 'z' for the target: its columns are a, b, w, y",
    ("fit", "none/*.csv", *FIT): "names no file",
    ("fit", "none.parquet", *FIT): "there is no file none.parquet",
    ("fit", "whole.csv", "README.md", *FIT): "README.md must end in",
    ("fit", "parts", *FIT, "--checkpoint", "no/c.npz"): "no folder",
    ("predict", "m.npz", "none/*.csv"): "names no file",
}


@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_what_a_stream_cannot_do_is_told_with_what_to_do(folder, capsys, argv):
    rls.save("m.npz", rls.Model(rls.Linear(), None, np.ones(2), np.array(0.0)))
    assert REFUSED[argv] in fails(capsys, *argv)
    assert not list(folder.glob(".jaxrls*"))


def test_text_targets_of_a_stream_are_told(folder, capsys):
    Path("parts/a.csv").write_text("a,b,w,y\n1,2,1,low\n2,3,1,high\n")
    assert "parts/a.csv: row 1 (line 2), column y: 'low' is not a number: code it as one" in fails(capsys, "fit", "parts", *FIT)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".npz"])
def test_a_table_that_memory_cannot_hold_names_the_stream(folder, capsys, monkeypatch, ending):
    path = folder / f"t{ending}"
    rows = np.tile(table(), (40, 1))
    write(path, rows)
    needed = 8 * rows.size
    assert 0.5 * needed < reading.bytes_of_numbers(str(path)) < 2 * needed
    monkeypatch.setattr(reading, "memory_bytes", lambda: needed)
    assert re.search(
        r"takes about \S+ kB as a table, and this device has \S+ kB: read it in blocks with --stream", fails(capsys, "fit", path.name)
    )


def test_a_missing_extra_is_told_in_a_line(folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    Path("x.parquet").touch()
    assert "x.parquet needs pyarrow: pip install 'jaxrls[parquet]'" in fails(capsys, "fit", "x.parquet", *FIT)


def test_progress_is_told_in_rows_a_second_at_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setattr(reading, "at_terminal", lambda: True)
    assert main(["fit", "parts", *FIT]) == 0
    err = capsys.readouterr().err
    assert re.search(r"reading 1: 90.0row", err) and re.search(r"reading [234]: 100%.*90/90", err) and "row/s" in err


@pytest.mark.parametrize("unit", [1e200, 1e-170, 1.0])
def test_deviations_of_parts_are_those_of_the_whole(rng, unit):
    """Against extended precision, which holds the squares; parts may have no rows, or no weight, and be joined."""
    X = rng.normal(size=(60, 3)) * [1, 1e-8, 0] + [3, 1, 7]
    v = rng.uniform(0, 1e300, 60) * (np.arange(60) > 9)
    for weights in (None, v):
        parts = Deviations()
        for rows in np.split(np.arange(60), [5, 5, 10, 37]):
            part = Deviations()
            part.add(X[rows] * unit, None if weights is None else weights[rows])
            parts.join(part)
        wide, shares = X.astype(np.longdouble), np.ones(60) if weights is None else weights / 1e300
        mean = np.average(wide, axis=0, weights=shares)
        deviation = np.sqrt(np.average((wide - mean) ** 2, axis=0, weights=shares))
        means, scales = parts.known()
        np.testing.assert_allclose(means / unit, mean.astype(float), rtol=1e-13)
        np.testing.assert_allclose(scales[:2] / unit, deviation[:2].astype(float), rtol=1e-6)
        assert scales[2] == 1


def test_zeros_before_tiny_numbers_do_not_hide_them():
    """A column of zeros has no unit yet: one of 1 would leave squares of 1e-200 at 0."""
    X = np.array([[1e-200], [3e-200]])
    parts = Deviations()
    parts.add(np.zeros((2, 1)))
    parts.add(X)
    means, scales = parts.known()
    np.testing.assert_allclose([means[0] / 1e-200, scales[0] / 1e-200], [1, np.sqrt(1.5)], rtol=1e-14)
