"""The command line on rows that stream: the numbers of the same file read whole, one line where
something is wrong, and no more memory than a block.
"""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_cli import fails, run, told

import jaxrls as rls
from jaxrls import __main__ as process
from jaxrls.cli import fitting
from jaxrls.io.writing import writing

pytestmark = pytest.mark.any_precision  # float64, whatever the switch says
N = 90
NAMES = ["a", "b", "w", "y"]
FEW = "--kernel=linear --lams=20"
FIT = f"--weights=w --target=y {FEW}"


def table():
    """Inputs in units far apart, weights, and a target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) * [1.0, 1e3] + [0.0, 1e4]
    y = np.sin(2 * X[:, 0]) + X[:, 1] / 1e3 + 0.1 * rng.normal(size=N)
    return np.column_stack([X, 1 + np.arange(N) % 3, y])


def write(path, rows, names=NAMES):
    """Rows in the kind of file that the path's ending says."""
    with writing(path) as out:
        out(dict(zip(names, rows.T, strict=True)))


@pytest.fixture
def folder(tmp_path):
    """A table as one file and as three in a folder, as the working directory."""
    write(tmp_path / "whole.csv", table())
    (tmp_path / "parts").mkdir()
    for name, rows in zip("abc", np.split(table(), [50, 57]), strict=True):
        write(tmp_path / "parts" / f"{name}.csv", rows)
    with contextlib.chdir(tmp_path):
        yield tmp_path


def assert_same_fit(path, other):
    (one, extra), (two, said) = (rls.load(name, with_extra=True) for name in (path, other))
    for name in ("centre", "scale"):
        parts = (getattr(fit.model.kernel, name) for fit in (one, two))
        assert_allclose(*parts, rtol=1e-12)
    assert_allclose(one.lam, two.lam, rtol=1e-9)
    assert_allclose(one.errors, two.errors, rtol=1e-6)
    X = table()[:, :2]
    assert_allclose(one.predict(X), two.predict(X), atol=1e-6)
    return extra["table"]["layout"], said["table"]["layout"]


@pytest.mark.parametrize(
    "data", ["parts/*.csv", "parts/a.csv parts/b.csv parts/c.csv", "whole.csv --stream"]
)
def test_a_stream_is_fitted_as_the_same_table_read_whole(folder, data):
    whole = run(f"fit whole.csv {FIT} --out whole")
    out = run(f"fit {data} {FIT} --out parts.model")
    words = f"{data.removesuffix(' --stream')}, streamed: 90 rows, 2 inputs, target y"
    assert out.splitlines()[0] == f"data      {words}"
    one, other = assert_same_fit("parts.model", "whole")
    assert one == other
    numbers = re.compile(r"^(?:kernel|Standardized|left out|Cholesky|Spectral).*$", re.MULTILINE)
    assert numbers.findall(out) == numbers.findall(whole)


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_other_kinds_of_files(folder, ending):
    """All of them are read and written in test_streams.py and test_tables.py."""
    options = f"--weights=2 --target=3 {FEW}" if ending == ".npy" else FIT
    (folder / "rows").mkdir()
    for name, rows in zip("ab", np.split(table(), [50]), strict=True):
        write(folder / "rows" / f"{name}{ending}", rows)
    run(f"fit whole.csv {FIT} --out whole")
    run("predict whole whole.csv --out whole_p.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxrls.rows.tables.AT_ONCE", 40)
        run(f"fit rows {options} --out parts.model")
        out = run(f"predict parts.model rows/*{ending} --out p.npy")
    assert_same_fit("parts.model", "whole")
    assert out.startswith("90 predictions written to p.npy\nRMSE ")
    assert_allclose(np.load("p.npy"), np.loadtxt("whole_p.csv", skiprows=1), atol=1e-6)
    printed = run(f"predict parts.model rows/a{ending} rows/b{ending}")
    assert printed.count("\n") == N + 1 and printed.count("p") == 1


def test_labels_are_predicted_to_a_stream(folder):
    text = Path("whole.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    lines = [f"{a},{b},{'high' if float(y) > 10 else 'low'}" for a, b, _, y in rows]
    Path("labels.csv").write_text("\n".join(["a,b,y", *lines]))
    run(f"fit labels.csv {FEW} --out m")
    out = run("predict m labels.csv --stream --out q.parquet")
    assert "% of labels wrong" in out
    told = fails("predict m labels.csv --out p.npy")
    assert "a .npy file holds numbers" in told
    assert not Path("p.npy").exists() and not list(folder.glob(".jaxrls*"))
    told = fails(f"fit labels.csv --stream {FEW}")
    assert (
        "labels.csv: target 'y' holds text such as 'high', and not numbers: code it as num" in told
    )


@pytest.mark.slow
def test_options_mean_what_they_mean_of_a_table(folder):
    options = "--weights=w --no-intercept --no-standardize --width=1e3 --criterion=kfold"
    options += " --landmarks=12 --lams=0.1,1"
    said = [run(f"fit {data} {options} --out {data}.model") for data in ("whole.csv", "parts")]
    one, two = (rls.load(f"{data}.model") for data in ("whole.csv", "parts"))
    assert_allclose(one.lam, two.lam, rtol=1e-6)
    assert_allclose(one.errors, two.errors, rtol=1e-5)
    widths = [re.findall(r"^ +width.*$", out, re.MULTILINE) for out in said]
    assert widths[0] == widths[1]


@pytest.mark.slow
def test_intervals_take_no_weights_from_a_file(folder):
    run(f"fit whole.csv {FIT} --intervals --out m")
    ends = rls.load("m").intervals(table()[:, :2], 0.8)
    for data in ("whole.csv", "parts"):
        run(f"predict m {data} --interval 0.8 --out p.csv")
        written = pandas.read_csv("p.csv")[["lower", "upper"]]
        assert_allclose(written.T, ends, rtol=1e-9)


def test_a_checkpoint_is_read(folder):
    """And gone on from, in test_streams.py."""
    Path("sums").write_bytes(b"noise")
    assert "sums is no checkpoint" in fails(f"fit parts {FIT} --checkpoint=sums")


def test_an_interrupted_fit_says_that_its_checkpoint_continues(folder, monkeypatch):
    def stopped(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrls.cli.main.run_fit", stopped)
    line = "jaxrls fit parts --kernel=linear --no-cache --checkpoint=sums"
    monkeypatch.setattr("sys.argv", line.split())
    for said in "", "jaxrls: stopped: the same command continues from sums\n":
        err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with contextlib.redirect_stderr(err):
            assert process.run() == 130
        assert err.buffer.getvalue().decode() == said
        Path("sums").touch()


def test_columns_of_later_files_are_found_by_name(folder):
    run(f"fit parts {FIT} --out m")
    write(folder / "parts" / "b.csv", table()[50:57][:, [3, 1, 0, 2]], ["y", "b", "a", "w"])
    run(f"fit parts {FIT} --out n")
    assert_array_equal(rls.load("m").model.coef, rls.load("n").model.coef)
    new = pandas.DataFrame(table()[:, :2], columns=["a", "b"])
    for data in ("parts", "whole.csv"):
        run(f"fit {data} {FIT} --out n")
        model = rls.load("n")
        assert_array_equal(model.predict(new[["b", "a"]]), model.predict(new.to_numpy()))
    write(folder / "parts" / "b.csv", table()[50:56])
    Path("parts/d.csv").write_text("a,b,w,y\n1,2,,3\n1,2,1,3\n")
    out = run(f"fit parts {FIT} --missing=drop")
    assert "90 rows" in out


BAD = {
    "parts/b.csv: row 8, column 'b': the value is missing": ("b", "1,,1,2"),
    "column 'b' holds text such as 'x'": ("d", "a,b,w,y\n1,x,1,2"),
    "parts/b.csv cannot be read by ": ("b", "1,2"),
    "parts/d.csv: no column 'b' for the inputs": ("d", "a,z,w,y\n1,2,3,4"),
    "weights must not be negative, and the smallest is -3.0": ("a", "1,2,-3,4"),
    "parts/c.csv: row 34, column 'b': the value is inf": ("c", "1,inf,1,2"),
}


def test_a_bad_row_is_named_by_file_and_row(folder):
    run(f"fit whole.csv {FIT} --out m")
    for words, (part, line) in BAD.items():
        path = Path(f"parts/{part}.csv")
        before = path.read_text() if path.exists() else None
        path.write_text(f"{before or ''}{line}\n")
        assert words.replace(": no", " has no") in fails(f"fit parts {FIT}")
        if "row" in words:
            assert words in fails("predict m parts --out p.csv")
        path.unlink() if before is None else path.write_text(before)
    assert not Path("p.csv").exists() and not list(folder.glob(".jaxrls*"))


REFUSED = {
    "fit parts": "--landmarks 1000",
    "fit parts --landmarks auto": "--landmarks 1000",
    "fit parts --landmarks 9 --groups w": "--groups needs a table that is read whole",
    "fit parts --landmarks 9 --classify": "--classify needs a table that is read whole",
    "fit parts --landmarks 9 --one-hot a": "--one-hot needs a table that is read whole",
    "fit parts --landmarks 9 --missing median": "--missing median needs a table",
    "fit whole.csv --checkpoint c": "--checkpoint needs a stream of rows",
    "fit none/*.csv --kernel linear": "there is no file none/*.csv",
    "fit none.parquet": "there is no file none.parquet",
    "fit whole.csv notes.md --kernel linear": "there is no file notes.md",
    "fit parts --kernel linear --checkpoint no/c": "there is no folder",
}


def test_what_a_stream_cannot_do_is_told_with_what_to_do(folder):
    for line, words in REFUSED.items():
        assert words in fails(line), line
    assert not list(folder.glob(".jaxrls*"))


def test_progress_is_told_in_rows_a_second_at_a_terminal(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "at_terminal", lambda: True)
        code, _, err = told(f"fit parts {FIT}")
    assert code == 0 and re.search(r"reading 1: 90.0row", err) and "row/s" in err
    assert re.search(r"reading [234]: 100%.*90/90", err)
