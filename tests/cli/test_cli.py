"""The command line: what it prints, what it writes, and one clear line where something is wrong."""

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import csv, parquet
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

import jaxrls as rls
from jaxrls.__main__ import main
from jaxrls.cli import main as command
from jaxrls.cli.words import typed
from jaxrls.core.kernels.kernel import Standardized

pytestmark = pytest.mark.any_precision  # float64, whatever the switch says
TUNE, LAM = rls.tune, r"^ +\d\.\d{3}e"  # a row of the table of λ
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def problem():
    """Two inputs in units far apart, a target, its labels, groups and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) * [1.0, 100.0] + [0.0, 1000.0]
    y = 5 + np.sin(2 * X[:, 0]) + X[:, 1] / 100 + 0.1 * rng.normal(size=60)
    label = np.where(y > 15.5, "high", np.where(y < 14.5, "low", "mid"))
    return [*X.T, y, label, np.arange(60) % 6, 1 + np.arange(60) % 2]


@pytest.fixture
def folder(tmp_path):
    """Files of it, in the working directory."""
    columns = dict(zip(("a", "b", "y", "kind", "g", "w"), problem(), strict=True))
    train, test = slice(0, 40), slice(40, 60)
    for name, names, rows in (
        ("train.csv", "a,b,y", train),
        ("test.csv", "a,b,y", test),
        ("new.csv", "b,a", test),
        ("labels.csv", "a,b,kind", train),
        ("labels_test.csv", "a,b,kind", test),
        ("more.csv", "a,b,y,g,w", train),
        ("mixed.csv", "a,kind,y", train),
    ):
        cells = np.column_stack([columns[name][rows].astype(str) for name in names.split(",")])
        (tmp_path / name).write_text("\n".join([names, *map(",".join, cells)]) + "\n")
    with contextlib.chdir(tmp_path):
        yield tmp_path


class Terminal(io.TextIOWrapper):
    """A stream that says that it is one."""

    def isatty(self):
        return True


def told(line, kind=io.TextIOWrapper):
    """The exit code of a command, what it prints to a stream of this kind, and what it says on
    stderr.
    """
    out = kind(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as stop:
            code = stop.code
    return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def run(line):
    code, out, err = told(line)
    assert code == 0, err
    return out


def fails(line):
    """Exit code 2, and one line on stderr."""
    code, _, err = told(line)
    assert code == 2
    assert err.startswith("jaxrls: ") and err.count("\n") == 1
    return err


def value(out, what):
    return float(re.search(rf"{what} +(?:= |RMSE )?(\d\S*)", out).group(1).rstrip(","))


def predict(data):
    """What is said, and the columns that are written."""
    said = run(f"predict m {data} --out p.csv")
    return said, csv.read_csv("p.csv")


def read(path):
    return np.loadtxt(path, delimiter=",", skiprows=1)


def standardized(X, rows):
    """A Gaussian in units of the rows."""
    centre, scale = rows.mean(0), rows.std(0)
    distances = pdist((X - centre) / scale)
    return Standardized(rls.Gaussian(np.median(distances[distances > 0])), centre, scale)


def test_fit_says_what_the_library_computes(folder):
    out = run("fit train.csv --out m")
    X, y = read("train.csv")[:, :2], read("train.csv")[:, 2]
    kernel = standardized(X, X).kernel
    fit, width = rls.fit(kernel, X, y, standardize=True, keep=False), kernel.width
    assert "train.csv: 40 rows, 2 inputs, target y\n" in out
    assert f"gaussian, width {width:.4g}\n" in out and f"\n{fit}\n" in out
    rmse = np.sqrt(np.mean(fit.loo_residuals**2))
    assert f"RMSE {rmse:.4g}, of a standard deviation of {y.std():.4g}" in out
    table = [line.split() for line in out.splitlines() if re.match(r" +\d\.\d{3}e", line)]
    (best,) = (line for line in table if "best" in line)
    assert len(table) == 12 and float(best[0]) == pytest.approx(float(fit.lam), rel=1e-3)
    assert float(best[1]) == min(float(line[1]) for line in table)
    saved = rls.load("m")
    assert_allclose(saved.error, fit.error, rtol=1e-6)
    assert saved.model.coef.dtype == np.float64


def test_predict_by_name_by_number_and_with_the_target(folder):
    run("fit train.csv --out m")
    assert ".npy, and ends in .xlsx" in fails("predict m test.csv --out p.xlsx")
    said, found = predict("test.csv")
    y = read("test.csv")[:, 2]
    rmse = np.sqrt(np.mean((found["prediction"].to_numpy() - y) ** 2))
    assert rmse < 0.5 and f"RMSE {rmse:.4g} in units of the target" in said
    X = read("test.csv")[:, :2]
    np.savetxt("bare.csv", X, delimiter=",")
    np.savez("bare.npz", X=X)
    for data in ("new.csv", "bare.csv --no-header", "bare.npz"):
        said, same = predict(data)
        assert said == "20 predictions written to p.csv\n"
        assert same == found
    Path("gaps.csv").write_text("a,b,y\n0,1000,\n1,1000,3\n")
    assert "no error on the target" in predict("gaps.csv")[0]
    Path("none.csv").write_text("a,b\n")
    said, none = predict("none.csv")
    assert said.startswith("0 predictions") and none.column_names == ["prediction"]
    np.save("first.npy", read("train.csv")[:, [2, 0, 1]])
    np.save("bare.npy", X)
    run("fit first.npy --target 0 --out m")
    assert predict("bare.npy") == ("20 predictions written to p.csv\n", found)
    Y = read("train.csv")[:, 2:] * [1.0, -1.0]
    rls.save("m", rls.fit(rls.Linear(), read("train.csv")[:, :2], Y).model)
    assert predict("bare.npz")[1].column_names == ["prediction_0", "prediction_1"]
    frame = pandas.read_csv("train.csv")
    fit = rls.fit(rls.Linear(), frame[["b", "a"]], frame["y"])
    rls.save("m", fit)
    for data in ("new.csv", "test.csv"):
        assert_allclose(predict(data)[1]["prediction"].to_numpy(), fit.predict(X[:, ::-1]))
    assert "has no column 'b' for the inputs" in fails("predict m none.csv --sep ;")
    days = pandas.to_datetime(["2020-01-02", "2020-01-01"])
    for names in (["x", "y"], days):  # not the target by default; and as pandas writes dates
        inputs = frame[["b", "a"]].set_axis(names, axis=1)
        rls.save("m", rls.fit(rls.Linear(), inputs, frame["y"]))
        inputs.iloc[:, ::-1].to_csv("turned.csv", index=False)
        found = predict("turned.csv")[1]["prediction"].to_numpy()
        assert_allclose(found, fit.predict(frame[["b", "a"]]))


@pytest.mark.slow
def test_labels_are_classified(folder):
    out = run("fit labels.csv --out m")
    assert "target kind (text, 3 classes: high, low, mid)" in out
    wrong = value(out, "left out")
    best = float(re.search(r"(\S+)  <- best", out).group(1))
    assert 0 <= wrong < 50 and best == pytest.approx(wrong / 100, rel=1e-2, abs=1e-9)
    said, found = predict("labels_test.csv")
    error = 100 * np.mean(found["prediction"].to_numpy() != problem()[3][40:])
    assert error < 50 and f"{error:.3g} % of labels wrong" in said
    names = ["high", "low", "mid"]
    columns = [f"{what}_{name}" for what in ("probability", "score") for name in names]
    assert found.column_names == ["prediction", *columns]
    out = run("fit more.csv --target w --classify --out m")
    assert "(2 classes: 1, 2)" in out
    said, found = predict("more.csv")
    assert set(found["prediction"].to_pylist()) <= {1, 2}
    table = pandas.read_csv("more.csv").astype({"w": float})
    table.to_csv("fractions.csv", index=False)  # 1.0 for 1
    assert predict("fractions.csv")[0] == said
    table.assign(w=table["w"].mask(table.index > 5)).to_csv("unknown.csv", index=False)
    assert "no error on the target: it has values that are missing\n" in predict("unknown.csv")[0]
    Path("none.csv").write_text("a,b,y,g\n")
    columns = ["prediction", "probability_1", "probability_2", "score"]
    assert predict("none.csv")[1].column_names == columns


def platt(left_out, positive, weights, scores):
    """Probabilities by Platt's sigmoid, by a general optimizer."""
    more, less = (weights[part].sum() for part in (positive, ~positive))
    wanted = np.where(positive, (more + 1) / (more + 2), 1 / (less + 2))

    def loss(point):
        z = point[0] * left_out + point[1]
        return weights @ (np.logaddexp(0, z) - wanted * z)

    slope, offset = minimize(loss, [1.0, 0.0], tol=1e-12, method="Nelder-Mead").x
    return 1 / (1 + np.exp(-slope * scores - offset))


def test_predictions_of_classes_have_probabilities(folder):
    """Of scores of rows left out, with their weights; normalised where there are three classes."""
    a, b, y, kind, _, w = problem()
    for labels, weights in ((kind, np.ones(60)), (np.where(y > 15, "yes", "no"), w)):
        table = pandas.DataFrame({"a": a, "b": b, "w": weights, "kind": labels})
        table[:40].to_csv("train.csv", index=False)
        table[40:].to_csv("test.csv", index=False)
        run("fit train.csv --weights w --lams 5 --out m")
        Y, names = rls.classes.encode(labels[:40])
        left_out = (Y - rls.load("m").loo_residuals).reshape(40, -1)
        _, found = predict("test.csv")
        scores = [name for name in found.column_names if name.startswith("score")]
        columns = zip(left_out.T, Y.reshape(40, -1).T > 0, scores, strict=True)
        p = np.array(
            [platt(*column, weights[:40], found[name].to_numpy()) for *column, name in columns]
        )
        p = p / p.sum(axis=0) if len(p) > 1 else np.vstack([1 - p, p])
        for name, column in zip(names, p, strict=True):
            assert_allclose(found[f"probability_{name}"].to_numpy(), column, atol=1e-5)


@pytest.mark.slow
def test_categories_become_indicators_and_stay_what_they_were(folder):
    told = fails("fit mixed.csv")
    assert "column 'kind' holds text such as '" in told and "--one-hot kind" in told
    out = run("fit mixed.csv --one-hot kind --out m")
    assert "4 inputs" in out
    a, _, y, kind, *_ = problem()
    X = np.column_stack([a, *(kind == name for name in ("high", "low", "mid"))])
    fit = rls.fit(standardized(X[:40], X[:40]), X[:40], y[:40], keep=False)
    assert value(out, "left out") == pytest.approx(float(fit.error) ** 0.5, rel=1e-3)
    Path("few.csv").write_text(f"kind,a\nlow,{float(a[0])!r}\nhigh,{float(a[0])!r}\n")
    found = predict("few.csv")[1]["prediction"].to_numpy()
    want = fit.predict(np.array([[a[0], 0, 1, 0], [a[0], 1, 0, 0]]))
    assert_allclose(found, want, rtol=1e-6)
    model, names = rls.load("m"), ["a", "kind_high", "kind_low", "kind_mid"]
    turned = pandas.DataFrame(X, columns=names)[names[::-1]]
    assert_allclose(model.predict(turned), fit.predict(X), rtol=1e-6)
    Path("few.csv").write_text("kind,a\nnew,1\n")
    told = fails("predict m few.csv")
    assert "few.csv: row 1, column 'kind': the category 'new' is none that" in told
    assert told.endswith(
        "leave such rows out, or take 0 for all of these, as --unknown zero does\n"
    )
    assert "2 inputs" not in run("fit mixed.csv --drop kind")
    assert "1 input," in run("fit mixed.csv --columns a")


@pytest.mark.slow
def test_files_of_other_dialects_are_the_same_table(folder):
    """Separators, decimal signs and encodings, in `fit` and in `predict`."""
    rows = [line.split(",") for line in Path("mixed.csv").read_text().splitlines()]
    rows = [[a, kind.replace("mid", "mïd"), y] for a, kind, y in rows]
    commas = [[cell.replace(".", ",") for cell in row] for row in rows]
    write = lambda name, rows, sep, encoding="utf-8": Path(name).write_bytes(
        "\n".join(map(sep.join, rows)).encode(encoding)
    )
    write("plain.csv", rows, ",")
    write("tabs.tsv", rows, "\t")
    write("bars.csv", rows, "|", "utf-8-sig")
    write("europe.csv", commas, ";", "latin-1")
    run("fit plain.csv --one-hot kind --out m")
    want, fit = predict("plain.csv"), rls.load("m")
    for name, options in (
        ("tabs.tsv", ""),
        ("tabs.tsv", "--sep tab"),
        ("bars.csv", "--sep |"),
        ("europe.csv", "--sep ; --decimal , --encoding latin-1"),
    ):
        assert predict(f"{name} {options}") == want
        run(f"fit {name} --one-hot kind {options} --out n")
        assert_array_equal(rls.load("n").model.coef, fit.model.coef)
    for line, words in {
        "fit bars.csv": "cannot be read by --sep ','|--sep says what separates",
        "fit bars.csv --target y": r"columns are 'a\|kind\|y' \(if these are several, --sep says",
        "fit europe.csv": "cannot be read by --sep ',' --encoding utf-8, names in its first line",
        "fit europe.csv --sep ; --decimal ,": "'kind' holds bytes that|cannot be read by .*utf-8",
        "fit europe.csv --sep ; --drop kind --encoding latin-1": "'a' .* '.*', which --decimal , ",
        "fit plain.csv --encoding klingon": "--encoding klingon.*unknown encoding",
        "fit plain.csv --sep ;;": "must be one character, such as ; or tab",
    }.items():
        assert re.search(words, fails(line)), line


def test_text_is_called_text_and_names_are_quoted(folder):
    Path("spaces.csv").write_text("age, price\n" + "1, 2\n3, 4\n")
    told = fails("fit spaces.csv --target price")
    assert told.endswith("its columns are 'age', ' price', with spaces around the name\n")
    Path("dollar.csv").write_text("age,price\n" + "".join(f"{i},${i}.5\n" for i in range(9)))
    told = fails("fit dollar.csv")
    assert "the target 'price' holds text such as '$0.5', and has 9 different labels in 9" in told
    assert "code it as numbers" in told
    assert "2 classes: 1, 2" in run("fit more.csv --target w --classify")


COMMAS = {
    ("1,100", "1,200"): "perhaps with commas after thousands, which must be taken out",
    ("-1,100,000.5", "7"): "perhaps with commas after thousands",
    ("1,100", "1,25"): "which --decimal , reads as numbers",
    ("0,100", "0,200"): "which --decimal , reads as numbers",
}


def test_commas_in_numbers_are_thousands_or_fractions(folder):
    """Fractions only where a comma cannot be that of thousands."""
    for words, advice in COMMAS.items():
        rows = [f'"{word}",{i}' for i, word in enumerate(words * 3)]
        Path("commas.csv").write_text("\n".join(["a,y", *rows]))
        assert f"text such as '{words[0]}', {advice}" in fails("fit commas.csv")


def test_messages_name_options_and_not_arguments_of_python():
    for message, words in {
        "give lams=[0.1]": "give --lams 0.1",
        "give lams=[…]": "give --lams A,B,...",
        "fit without\n groups=": "fit without --groups",
        "take criterion='log_predictive_density'": "take --criterion log_predictive_density",
        "pass lams= that reach": "pass --lams that reach",
        "say --no-header (header=False)": "say --no-header",
        "leave it out (in Python: name other columns=)": "leave it out",
    }.items():
        assert typed(message) == words


def test_a_column_that_is_dropped_may_have_another_use(folder):
    """It is no input in any case."""
    want = run("fit more.csv --target y --weights w --groups g --lams 5 --kernel linear --out m")
    out = run(
        "fit more.csv --target y --drop w,g --weights w --groups g --lams 5 --kernel linear --out n"
    )
    assert out.splitlines()[0] == want.splitlines()[0]
    assert_array_equal(rls.load("m").model.coef, rls.load("n").model.coef)


def test_control_characters_do_not_reach_a_terminal(folder):
    """In messages, in the report, and in predictions on a terminal; files keep them."""
    Path("e.csv").write_bytes(b"a,b\n1,2\n1,2,\033]0;title\007\033[31m3\n")
    assert r"1,2,\x1b]0;title\x07\x1b[31m3" in fails("fit e.csv")
    Path("e.csv").write_text("a,\033[1my\n" + "1,u\033\n2,v\u202e\n3,v\u202e\n4,u\033\n" * 2)
    out = run("fit e.csv --kernel linear --lams 5 --out m")
    assert r"target \x1b[1my (text, 2 classes: u\x1b, v\u202e)" in out and "\033" not in out
    assert "u\033" in run("predict m e.csv")
    code, out, _ = told("predict m e.csv --keep \033[1my --out p.csv", Terminal)
    assert code == 0 and "u\033" in Path("p.csv").read_text()
    _, out, _ = told("predict m e.csv --keep \033[1my", Terminal)
    assert r'"\x1b[1my"' in out and r'"u\x1b"' in out and "\033" not in out


@pytest.mark.slow
def test_categories_in_the_middle_keep_their_place_in_files_without_names(folder):
    """Whatever of a file the columns are named by, and whether it has the target."""
    a, b, y, *_ = problem()
    code = np.arange(60) % 3 + 1  # numbers, which any column could be
    X = np.column_stack([a, *(code == number for number in (1, 2, 3))])
    X = np.insert(X, 1, b, axis=1)
    want = rls.fit(rls.Linear(), X[:40], y[:40], lams=[1.0]).predict(X[40:])
    table = pandas.DataFrame({"a": a, "code": code, "b": b, "y": y})
    table[:40].to_csv("named.csv", index=False)
    table[:40].to_csv("bare.csv", index=False, header=False)
    table[40:].to_csv("new.csv", index=False, header=False)
    table[40:].drop(columns="y").to_csv("inputs.csv", index=False, header=False)
    for line in ("named.csv --one-hot code", "bare.csv --no-header --one-hot 1"):
        run(f"fit {line} --kernel linear --no-standardize --lams 1.0 --out m")
        for new in ("inputs.csv",) if "code" in line else ("new.csv", "inputs.csv"):
            found = predict(f"{new} --no-header")[1]["prediction"].to_numpy()
            assert_allclose(found, want, rtol=1e-6)


def test_categories_of_several_columns(folder):
    Path("two.csv").write_text("p,q,y\n" + "u,x,1\nv,x,2\nu,z,3.5\nv,z,5\nu,x,1.5\n")
    for options in ("--one-hot p,q", "--one-hot p --one-hot q"):
        assert "4 inputs" in run(f"fit two.csv {options} --out m")
    Path("few.csv").write_text("q,p\nx,u\nz,v\nz,w\n")
    told = fails("predict m few.csv")
    assert "few.csv: row 3, column 'p': the category 'w' is none that the model was fit" in told


def test_columns_are_kept_beside_predictions_and_rows_with_gaps_left_out(folder):
    run("fit train.csv --out m")
    a, b = read("test.csv")[:3, :2].T
    lines = ["id,a,b,day", f"007,{a[0]},{b[0]},2020-01-01", f"08,,{b[1]},", f"x y,{a[2]},{b[2]},"]
    Path("gaps.csv").write_text("\n".join(lines))
    assert "row 2, column 'a': the value is missing: leave the row out, as --missing drop" in fails(
        "predict m gaps.csv"
    )
    said, found = predict("gaps.csv --missing drop --keep id,day")
    assert said.startswith("2 predictions") and found.column_names == ["id", "day", "prediction"]
    written = Path("p.csv").read_text().splitlines()
    assert written[1].startswith('"007","2020-01-01",') and written[2].startswith('"x y","",')
    want = rls.load("m").predict(np.column_stack([a, b])[[0, 2]])
    assert_allclose(found["prediction"].to_numpy(), want, rtol=1e-9)
    kept = predict("test.csv --keep b,y")[1]  # an input, and the target
    assert_allclose(kept["b"].to_numpy(), read("test.csv")[:, 1], rtol=1e-15)
    assert "RMSE" in predict("test.csv --keep y")[0]
    Path("taken.csv").write_text("prediction,a,b\n1,2,3\n")
    for line, words in {
        "predict m test.csv --missing median": "that was fitted with --missing median",
        "predict m test.csv --keep id": "no column 'id' for the columns to keep",
        "predict m taken.csv --keep prediction": "--keep prediction is the name of a column of pre",
        "predict m test.csv --keep a --out p.npy": "kept columns are text, and a .npy file",
    }.items():
        assert words in fails(line), line
    run("fit train.csv --missing median --out m")
    assert predict("gaps.csv")[0].startswith("3 predictions")
    assert predict("gaps.csv --missing drop")[0].startswith("2 predictions")


def test_missing_numbers(folder):
    text = Path("train.csv").read_text().splitlines()
    text[2] = "," + text[2].split(",", 1)[1]
    Path("gaps.csv").write_text("\n".join(text))
    Path("hole.csv").write_text("a,b\n,1000\n")
    Path("empty.csv").write_text("a,b,y\n,1,2\n,2,3\n")
    assert "gaps.csv: row 2, column 'a': the value is missing" in fails("fit gaps.csv")
    assert "39 rows" in run("fit gaps.csv --missing drop --out m")
    assert "row 1, column 'a': the value is missing" in fails("predict m hole.csv")
    assert "40 rows" in run("fit gaps.csv --missing median --out m")
    median = np.median(np.delete(read("train.csv")[:, 0], 1))
    Path("full.csv").write_text(f"a,b\n{float(median)!r},1000\n")
    assert predict("hole.csv")[1] == predict("full.csv")[1]
    for how, words in (
        ("median", "column 'a' is empty"),
        ("drop", "no rows with all their values"),
    ):
        assert words in fails(f"fit empty.csv --missing {how}")


FEW = "--kernel linear --lams 5 --out"


def test_rows_that_are_left_out_are_counted(folder):
    lines = Path("train.csv").read_text().splitlines()
    for i in (2, 5, 9):
        lines[i] = "," + lines[i].split(",", 1)[1]
    Path("gaps.csv").write_text("\n".join(lines))
    for stream in ("", " --stream"):
        out = run(f"fit gaps.csv --missing drop{stream} {FEW} m")
        first = out.splitlines()[0]
        assert first.endswith("37 rows, 2 inputs, target y; 3 rows with missing values left out")
    said, found = predict("gaps.csv --missing drop")
    assert len(found) == 37 and "\n3 rows with missing values left out\n" in said
    assert "3 rows with missing values left out\n" in told("predict m gaps.csv --missing drop")[2]
    assert "left out" not in predict("test.csv --missing drop")[0]


@pytest.mark.slow
def test_missing_and_unknown_categories(folder):
    """With --missing median a missing one is a category; with --unknown zero others have 0 in all
    indicators.
    """
    rows = [(i % 7, ("u", "v", "")[i % 3], i % 7 + i % 3 + i % 2) for i in range(30)]
    lines = "".join(f"{a},{kind},{y}\n" for a, kind, y in rows)
    Path("kinds.csv").write_text(f"a,kind,y\n{lines}")
    assert "row 3, column 'kind': the value is missing: leave the row out, as --missing drop d" in (
        refused := fails("fit kinds.csv --one-hot kind")
    )
    assert refused.endswith("or make it a category of its own, as --missing median does\n")
    run(f"fit kinds.csv --one-hot kind --missing median {FEW} m")
    frame = pandas.DataFrame(rows, columns=["a", "kind", "y"])
    X = np.column_stack([frame.a, *(frame.kind == kind for kind in ("", "u", "v"))])
    fit = rls.fit(rls.Linear(), X, frame.y.to_numpy(float), lams=5, standardize=True)
    names = ["a", "kind_missing", "kind_u", "kind_v"]
    found = rls.load("m").predict(pandas.DataFrame(X, columns=names)[names[::-1]])
    assert_allclose(found, fit.predict(X), rtol=1e-6)
    Path("new.csv").write_text("a,kind\n1,u\n2,\n3,w\n")
    assert "row 3, column 'kind': the category 'w' is none that the" in fails("predict m new.csv")
    said, table = predict("new.csv --unknown zero")
    assert "\n1 row with categories that the model does not know\n" in said
    want = fit.predict(np.array([[1, 0, 1, 0], [2, 1, 0, 0], [3, 0, 0, 0.0]]))
    assert_allclose(table["prediction"].to_numpy(), want, rtol=1e-6)
    run(f"fit kinds.csv --one-hot kind --drop a --missing median {FEW} m")
    assert predict("new.csv --unknown zero")[1].num_rows == 3
    run(f"fit kinds.csv --one-hot kind --missing drop {FEW} m")
    assert fails("predict m new.csv").endswith(
        "or take it for an unknown category, as --unknown zero does\n"
    )
    assert "2 rows with categories" in predict("new.csv --unknown zero")[0]
    assert predict("new.csv --unknown zero --missing drop")[1].num_rows == 2


@pytest.mark.slow
def test_dates_are_inputs_as_days_and_parts_of_the_year(folder):
    """Whole and as a stream, by name and by place, and kept as text."""
    days = pandas.date_range("2019-11-03", periods=30, freq="37D").to_series()
    part = 2 * np.pi * (days.dt.day_of_year - 1) / (365 + days.dt.is_leap_year)
    number = (days - pandas.Timestamp(0)) / pandas.Timedelta(days=1)
    y = np.cos(part) + number / 500
    a = np.arange(30.0) % 7
    table = pandas.DataFrame({"day": days.dt.strftime("%Y-%m-%d"), "a": a, "y": y})
    coded = {"day": number, "a": a, "day_cos": np.cos(part), "day_sin": np.sin(part), "y": y}
    table.to_csv("dated.csv", index=False)
    table.to_csv("bare.csv", index=False, header=False)
    pandas.DataFrame(coded).to_csv("coded.csv", index=False)
    run(f"fit coded.csv {FEW} m")
    want = rls.load("m")
    for line, day in (
        ("fit dated.csv", "day"),
        ("fit dated.csv --stream", "day"),
        ("fit bare.csv --no-header", "0"),
    ):
        assert "30 rows, 4 inputs" in run(f"{line} --days {day} --yearly {day} {FEW} m")
        assert_allclose(rls.load("m").model.coef, want.model.coef, rtol=1e-6)
        said, found = predict(f"{line.removeprefix('fit ')} --keep {day}")
        assert_allclose(found["prediction"].to_numpy(), want.predict(read("coded.csv")[:, :4]))
        assert found[day].cast("string").to_pylist() == table.day.tolist()
    new = table.iloc[:, :2].iloc[:3]
    new.to_csv("new.csv", index=False, header=False)
    assert predict("new.csv --no-header")[1]["prediction"].to_pylist() == pytest.approx(
        want.predict(read("coded.csv")[:3, :4]).tolist()
    )
    names = list(coded)[:4]
    run(f"fit dated.csv --days day --yearly day {FEW} m")
    turned = pandas.DataFrame(coded)[names[::-1]]
    assert_allclose(rls.load("m").predict(turned), want.predict(read("coded.csv")[:, :4]))
    refused = fails("fit dated.csv")
    assert "'day' holds dates such as '2019-11-03', and not numbers: take it as a num" in refused
    Path("new.csv").write_text("day,a\n7,1\n")
    assert "column 'day' of --days holds numbers, and not dates" in fails("predict m new.csv")
    Path("new.csv").write_text("day,a\n,1\n")
    assert "row 1, column 'day': the value is missing" in fails("predict m new.csv")


@pytest.mark.slow
def test_criteria(folder):
    """Every kernel by its name is in test_sklearn.py."""
    titles = {"gcv": "GCV error", "kfold": "error of folds", "evidence": "− log marginal"}
    for criterion, title in {**titles, "log_predictive_density": "− log predictive"}.items():
        out = run(f"fit train.csv --criterion {criterion} --lams 3")
        assert title in out and out.count("<- best") == 1
        assert len(re.findall(LAM, out, re.MULTILINE)) == 3


@pytest.mark.slow
def test_weights_and_groups_are_columns_and_not_inputs(folder):
    out = run("fit more.csv --target=y --groups=g --weights=w")
    data = read("more.csv")
    X, weights = data[:, :2], data[:, 4]
    rows = np.repeat(X, weights.astype(int), axis=0)
    options = {"groups": data[:, 3], "weights": weights, "keep": False}
    fit = rls.fit(standardized(X, rows), X, data[:, 2], **options)
    assert "2 inputs" in out and "error of folds" in out and f"λ = {fit.lam:.3g} of 100" in out
    error = np.average(fit.loo_residuals**2, weights=weights)
    assert value(out, "left out") == pytest.approx(error**0.5, rel=1e-3)
    by_number = run("fit more.csv --target=2 --groups=3 --weights=-1")
    assert value(by_number, "left out") == value(out, "left out")


@pytest.mark.slow
def test_the_grid_and_the_search(folder):
    out = run("fit train.csv --lams 1e-3,1,0.1 --width 1.5")
    assert "width 1.5\n" in out and len(re.findall(LAM, out, re.MULTILINE)) == 3
    run("fit train.csv --out m")
    grid = rls.load("m")
    out = run("fit train.csv --lams search --out m")
    assert re.search(
        r"^Cholesky.*a search for λ: \d+ Cholesky factors and one for the model", out, re.MULTILINE
    )
    assert float(rls.load("m").error) <= 1.001 * float(grid.error)


@pytest.mark.slow
def test_tune(folder, monkeypatch):
    said = []
    tune = lambda *args, **options: (
        said.append(sys.stdout.buffer.getvalue()) or TUNE(*args, **options)
    )
    monkeypatch.setattr(rls, "tune", tune)
    out = run("fit train.csv --tune --ard --width 30 --out m")
    assert said[0].endswith(b"tuning    on 40 rows\n")  # before it waits
    before, after = re.search(r"loo error (\S+) -> (\S+) in \d+ step", out).groups()
    assert float(after) < float(before)
    widths = [float(word) for word in re.search(r"kernel .*width (.*)", out).group(1).split()]
    assert len(widths) > 1
    assert rls.load("m").model.kernel.kernel.width == pytest.approx(widths, rel=1e-3)
    run("fit train.csv --tune --width 30 --lams 0.5 --out held")
    rows = read("train.csv")
    want = TUNE(rls.Gaussian(30.0), rows[:, :2], rows[:, 2], standardize=True, lams=0.5)
    assert_allclose(rls.load("held").model.kernel.kernel.width, want.kernel.kernel.width, 1e-9)
    run("fit train.csv --tune --width 30 --lams 0.0 --out floor")  # which no search holds
    free = TUNE(rls.Gaussian(30.0), rows[:, :2], rows[:, 2], standardize=True)
    assert_allclose(rls.load("floor").model.kernel.kernel.width, free.kernel.kernel.width, 1e-9)


@pytest.mark.slow
def test_ranks_within_groups_are_those_of_fit(folder):
    """The report has the share of pairs in order, and a scored file no error in units of the
    target.
    """
    out = run("fit more.csv --target=y --rank --groups=g --drop=w --lams=5 --out=m")
    fit = rls.load("m")
    assert fit.criterion == "query_ranking_error"
    assert value(out, "order") == float(f"{100 * (1 - float(fit.error)):.4g}")
    assert "AUC" in out and "left out  " not in out
    said, found = predict("more.csv")
    assert "RMSE" not in said
    want = fit.predict(read("more.csv")[:, :2])
    assert_allclose(found["prediction"].to_numpy(), want, rtol=1e-9, atol=1e-9)
    Path("two.csv").write_text(Path("labels.csv").read_text().replace("mid", "low"))
    out = run("fit two.csv --criterion pairs --lams 5")
    assert value(out, "order") > 90 and "% of labels wrong" in out


EXTRA = {"table": {"layout": {"inputs": ["a", "b"], "one_hot": [], "target": "y", "width": None}}}
REFUSED = {
    "fit no.csv": "no.csv",
    "fit .": "needs a number of landmarks",
    "fit train.csv --target price": "no column 'price' for the target",
    "fit train.csv --groups 7": "no column '7' for the groups",
    "fit train.csv --classify --target a": "different labels",
    "fit labels.csv --target a": "column 'kind' holds text such as '",
    "fit train.csv --out no/m": "no folder",
    "fit train.csv --plot no/m.png": "no folder",
    "fit train.csv --criterion kfold --folds 0": "--folds must be a whole number",
    "fit train.csv --criterion kfold --folds 1": "--folds must be 2 or more, and is 1",
    "fit train.csv --criterion gcv --folds 5": "--folds goes with --criterion kfold",
    "fit mixed.csv --columns a --target y --one-hot kind": "column 'kind' of --one-hot is no input",
    "fit train.csv --out .": "not an ordinary file",
    "fit zero.csv --weights w --target y": "weights are all zero",
    "fit labels.csv --criterion pairs": "needs a numeric target or two classes, and there are 3",
    "fit labels.csv --rank": "--rank need a numeric target, and 'kind' holds text such",
    "fit train.csv --width 0": "Gaussian.width must be positive",
    "fit train.csv --lams 1,-1": "lams must be positive",
    "fit train.csv --lams 1": "--lams 1 is how many λ to try, and must be 2 or more: for λ = 1 giv",
    "fit train.csv --lams [0.1]": "must be how many, such as 100, or which, such as 0.1,1,10, or",
    "fit train.csv --groups a --criterion evidence": "leaves groups out, and --criterion evidence",
    "fit train.csv --columns a,b,a": "column 'a' is named twice: give it one use",
    "fit train.csv --weights b --columns a,b": "column 'b' is input as well as weights",
    "fit train.csv --columns a,b --drop b": "column 'b' is input as well as column to drop",
    "fit train.csv --drop a,b": "train.csv: no column is left for the inputs: give one or more",
    "fit no*.csv": "there is no file no*.csv",
    "fit empty": "there is no file in empty that ends in .csv, ",
    "fit one.csv": "one.csv has 1 row that can be used: give 2 or more",
    "fit heavy.csv --weights w --target y": "give others weight, or take --no-intercept",
    "fit train.csv --groups a --criterion gcv": "--groups leaves groups out",
    "predict no new.csv": "no: No such file",
    "predict train.csv new.csv": "train.csv was not written by jaxrls.save",
    "predict kernel new.csv": "must hold a model or a fit, and holds a Linear",
    "predict model no.csv": "no.csv",
    "predict model labels.csv --out no/p.csv": "in a folder that exists",
    "predict model wide.npz": "has 3 columns, and the model was fitted on 2",
    "predict plain wide.npz": "X must have 2 columns",
}
USAGE = """guess; fit; fit t --kernel tbf; fit t --width wide; fit t --kernel linear --width 1
fit t --degree 3; fit t --kernel polynomial --degree 1.5; fit t --lams 1,; fit t --criterion aic
fit t --no-stand; fit t --missing mean; fit t --ard; fit t --rank --tune; fit t --rank --intervals
fit t --criterion pairs --tune; fit t --rank --stream; fit t --rank --criterion kfold
predict m; predict m new --o p"""


def test_what_is_wrong_is_told_in_a_line(folder):
    data = read("train.csv")
    fit = rls.fit(rls.Linear(), data[:, :2], data[:, 2], lams=[1e-3, 1.0, 1e3])
    rls.save("kernel", rls.Linear())
    rls.save("plain", fit)
    rls.save("model", fit, extra=EXTRA)
    np.savez("wide.npz", X=np.ones((2, 3)))
    Path("zero.csv").write_text("a,w,y\n1,0,2\n2,0,3\n")
    Path("heavy.csv").write_text("a,w,y\n1,0,2\n2,1,3\n")
    Path("one.csv").write_text("a,b,y\n1,2,3\n")
    Path("empty").mkdir()
    for line in [*REFUSED, *re.split("[;\n] ?", USAGE)]:
        assert REFUSED.get(line, "--help") in fails(line), line
    assert not list(folder.glob(".jaxrls*"))


def test_outputs_are_tried_before_the_fit(folder, monkeypatch):
    """And nothing is left of the trial."""
    monkeypatch.setattr(rls, "fit", None)
    Path("old").write_text("kept")
    for option, words in {
        "--out .": "not an ordinary file",
        f"--out {300 * 'm'}": "cannot be written (File name too long): name another file",
        "--plot train.csv": "--plot train.csv must end in one of .",
        "--plot loo": "--plot loo must end in one of .",
        "--plot no/loo.png": "no folder",
    }.items():
        assert words in fails(f"fit train.csv {option}"), option

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    assert "File name too long" in fails(f"predict old train.csv --out {300 * 'p'}")
    before = sorted(os.listdir())
    monkeypatch.setattr(Path, "touch", refuse)
    for option in ("--out old", "--plot loo.png", "--stream --kernel linear --checkpoint sums"):
        name = option.split()[-1]
        told = fails(f"fit train.csv {option}")
        assert told == f"jaxrls: {name} cannot be written (Permission denied): name another file\n"
    assert sorted(os.listdir()) == before and Path("old").read_text() == "kept"


def test_warnings_and_too_little_memory_are_told_in_a_line(folder):
    code, _, err = told("fit train.csv --lams 1e3,1e4,1e5")
    assert code == 0 and err.startswith("jaxrls: warning: the chosen") and err.count("\n") == 1

    Path("bare.csv").write_text("1,2,3\n4,5,6\n7,8,8\n")
    for line, code in (("fit bare.csv --lams 1,9", 0), ("fit bare.csv --target price", 2)):
        found, _, err = told(line)
        assert found == code and err.count("bare.csv: the first line holds numbers") == 1, line

    def full(files, source):
        raise MemoryError("Unable to allocate 9 TiB")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxrls.cli.fitting.memory_bytes", lambda: 1000)
        assert "read it in blocks with --stream" in fails("fit train.csv")
        patch.setattr("jaxrls.cli.fitting.joined", full)
        assert "out of memory: Unable to allocate 9 TiB" in fails("fit train.csv")


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


@pytest.mark.slow
def test_the_demo_runs_anywhere_and_generalises(tmp_path):
    result = process(cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.count("<- best") == 1
    claimed = value(result.stdout, "left out")
    met = float(re.search(r"301 held-out rows: (\S+)", result.stdout).group(1))
    assert abs(met / claimed - 1) < 0.2 and not list(tmp_path.iterdir())


def test_threads_of_openblas_are_told_to_sleep_before_it_loads():
    """JAX's decompositions run on SciPy's OpenBLAS, which reads the variable when it is loaded, and
    JAX loads it when it needs it. What is chosen is kept.
    """
    code = """
import os, sys, jaxrls
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"), "scipy.linalg" in sys.modules)
"""
    for chosen in ({}, {"OPENBLAS_THREAD_TIMEOUT": "4"}):
        variables = {k: v for k, v in ENVIRONMENT.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
        command = [sys.executable, "-c", code]
        out = subprocess.check_output(command, env=variables | chosen, text=True)
        assert out.split() == [*(chosen.values() or ["18"]), "False"]


@pytest.mark.skipif(os.name == "nt", reason="pipes with names")
def test_tables_come_through_pipes(folder, monkeypatch):
    """Of any kind, also several and with other files, and errors name the pipe."""
    few = "--lams 5 --kernel linear --out m"
    run(f"fit train.csv {few}")
    want = rls.load("m").model.coef
    table = csv.read_csv("train.csv")
    parquet.write_table(table, "train.parquet")
    os.mkfifo("named")
    for name in ("train.csv", "train.parquet"):
        data = Path(name).read_bytes()
        feeder = threading.Thread(target=Path("named").write_bytes, args=[data])
        feeder.start()
        assert run(f"fit named {few}").startswith("data      named: 40 rows, 2 inputs, target y\n")
        feeder.join()
        assert_array_equal(rls.load("m").model.coef, want)
    for content, words in {
        "a,b,y\n1,2,3\n4,5,6\n": "data      standard input: 2 rows",
        "a,b,y\nx,2,3\n": "standard input: column 'a' holds text",
        "": "jaxrls: standard input cannot be read by --sep",
    }.items():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        _, out, err = told(f"fit - {few}")
        assert words in out + err and "tmp" not in err
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO()))
    monkeypatch.setattr(sys.stdin.buffer, "isatty", lambda: True, raising=False)
    assert "- is a terminal: let another command write" in fails("fit -")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="descriptors with names")
def test_descriptors_are_pipes(folder):
    """What shells make of `|` and `<`."""
    run("fit train.csv --lams 5 --kernel linear --out m")
    program = f"'{sys.executable}' -m jaxrls predict m"
    for line in ("cat new.csv | {} /dev/stdin", "{} - < new.csv", "{} /dev/stdin < new.csv"):
        out = subprocess.check_output(
            line.format(program), shell=True, env=ENVIRONMENT, timeout=300
        )
        assert out.decode().count("\n") == 21


def test_predictions_are_printed_and_the_reader_may_leave(folder):
    run("fit train.csv --out m")
    out = run("predict m test.csv")
    assert len(out.splitlines()) == 21 and out.startswith('"prediction"\n')
    assert run("predict m test.csv --out -") == out and not Path("-").exists()
    if os.name != "nt":
        command = f"'{sys.executable}' -m jaxrls predict m test.csv 2>err | true"
        subprocess.run(command, shell=True, env=ENVIRONMENT, check=True, timeout=300)
        assert "Traceback" not in Path("err").read_text()


def test_programs_are_kept_in_the_cache_folder_unless_told_not_to(tmp_path, monkeypatch):
    kept: dict = {}
    monkeypatch.setattr(command.jax.config, "update", kept.__setitem__)
    monkeypatch.setattr("jaxrls.cli.main.run_fit", lambda args: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    elsewhere = command.jax.config.jax_compilation_cache_dir is not None
    for argv in (["--no-cache", "fit", "x.csv"], ["fit", "x.csv", "--no-cache"]):
        main(argv, keep=True)
    main(["fit", "x.csv"])
    assert not kept and not (tmp_path / "cache").exists()
    main(["fit", "x.csv"], keep=True)
    want = None if elsewhere else command.cache_folder()
    assert kept.get("jax_compilation_cache_dir") == want
    assert command.cache_folder().startswith(str(tmp_path / "cache" / "jaxrls"))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert command.cache_folder().startswith(os.path.expanduser("~/.cache/jaxrls"))
    folder = tmp_path / "programs"
    folder.mkdir()
    for age, name in enumerate(("new", "middle", "old")):
        (folder / name).write_bytes(bytes(10))
        os.utime(folder / name, (1000 - age, 1000 - age))
    command.forget_oldest(str(folder), 15)
    assert os.listdir(folder) == ["new"]


@pytest.mark.slow
def test_the_likelihood_chooses_the_same_in_any_unit_of_the_labels(folder):
    """Predictions of a file whose target is in other units are those times the unit."""
    table = pandas.read_csv("train.csv")
    predicted = []
    for unit in (1.0, 1e-9, 1e9):
        table.assign(y=table.y * unit).to_csv("units.csv", index=False)
        run("fit units.csv --target y --criterion evidence --out units.safetensors")
        run("predict units.safetensors new.csv --out units_predicted.csv")
        predicted.append(pandas.read_csv("units_predicted.csv").iloc[:, -1] / unit)
    for other in predicted[1:]:
        assert_allclose(other, predicted[0], rtol=1e-6)
