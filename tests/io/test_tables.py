"""Tables in, by every kind of file, and errors that name file, row and column; and columns out."""

import gzip
import sys
import warnings
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from support import ANY_PRECISION, refused

import jaxrls as rls
from jaxrls.io.writing import writing
from jaxrls.rows.sources import ColumnChoice, Files, open_files
from jaxrls.rows.tables import Dialect, open_table

pytestmark = ANY_PRECISION
PLAIN = "a,b,y\n1,2,3\n4,5,6\n7,8,9\n"
X, Y = [[1, 2], [4, 5], [7, 8]], [3, 6, 9]


@pytest.fixture
def write(tmp_path):
    """Write a text, an archive or a table to a file, and give its path."""

    def write(content, name="data.csv"):
        path = tmp_path / name
        if name.endswith(".npz"):
            np.savez(path, **content)
        elif isinstance(content, dict):
            pa.parquet.write_table(pa.table(content), path)
        else:
            data = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


def read(path, header=True, missing=None, **choice):
    """All rows of a file, and the choice that other files go by."""
    files = open_files((path,), ColumnChoice(**choice), Dialect(header), missing)
    pieces = list(files)
    joined = [
        None if parts[0] is None else np.concatenate(parts)
        for parts in zip(*(piece[:3] for piece in pieces), strict=True)
    ]
    return (
        *joined,
        [
            np.concatenate(words).tolist()
            for words in zip(*(piece.texts for piece in pieces), strict=True)
        ],
        files,
    )


def check(found, X=X, Y=Y):
    assert_array_equal(found[0], X)
    assert_array_equal(found[1], Y)
    assert found[0].dtype == np.float64


@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_layouts_of_csv(write, name):
    for text in (
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.rstrip("\n"),
        "\ufeff" + PLAIN,
        "\n" + PLAIN.replace("\n", "\n\n"),
        '"a","b","y"\n"1","2","3"\n4,5,6\n7,8,9\n',
        "0,1,y\n1e0,2,3.\n 4, 5, 6\n7,8,9e+00\n",
    ):
        check(read(write(text, name)))


def test_whole_numbers_may_become_fractions_after_what_pyarrow_looks_at(write, monkeypatch):
    monkeypatch.setattr("jaxrls.rows.tables.LOOKED_AT", 2**12)
    found = read(write("a,b,y\n" + "1,,3\n" * 5000 + "1.5,2.5,3\n"), missing="median")
    assert found[0][-1].tolist() == [1.5, 2.5] and np.isnan(found[0][0, 1])


def test_columns(write):
    text = "g,a,w,b,y\nred,1,.5,2,3\nblue,4,1,5,6\nred,7,2,8,9\n"
    found = read(write(text), groups="g", weights="w")
    check(found)
    assert found[2].tolist() == [0.5, 1, 2] and found[3] == [["red", "blue", "red"]]
    check(read(write(PLAIN), target="0"), [[2, 3], [5, 6], [8, 9]], [1, 4, 7])
    check(read(write(PLAIN), target=-3, inputs=["y"]), [[3], [6], [9]], [1, 4, 7])
    check(read(write(PLAIN), drop=["a"]), [[2], [5], [8]])
    found = read(write(text), one_hot=["g"], drop=["w"], labels=True)
    assert found[1] is None and found[3] == [["red", "blue", "red"], ["3", "6", "9"]]
    assert found[4].choice.inputs == ["g", "a", "b"]
    check(read(write(PLAIN.split("\n", 1)[1]), header=False))


def test_columns_go_by_their_place_unless_they_are_named(write):
    """A name may equal the number of another column."""
    for path in (write("2,1,0\n3,2,1\n6,5,4\n", "n.csv"), write("2,1,y\n3,2,1\n6,5,4\n")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(read(path), [[3, 2], [6, 5]], [1, 4])
            check(read(path, target=2), [[3, 2], [6, 5]], [1, 4])
            check(read(path, target=-3, inputs=[1]), [[2], [5]], [3, 6])
            check(read(path, target="2"), [[2, 1], [5, 4]], [3, 6])
    choice = read(write("7,8,9\n1,2,3\n"), header=False)[4].choice
    with pytest.warns(UserWarning, match="first line holds numbers"):
        (piece,) = Files((write("2,1,0\n5,4,3\n"),), choice, predict=True)
    assert piece.X.tolist() == [[5, 4]] and piece.texts[0].tolist() == ["3"]


WITHOUT_NAMES = [
    "1,2,3",
    "1.5,,-3e5",
    "1,NA,3",
    "5.1,3.5,red",
    '"1","2","3"',
    "1,true,red",
    "1,nan,3",
]
WITH_NAMES = ["a,2,3", "0,1,y", "a,b,red"]


def test_a_first_line_of_numbers_is_told(write):
    for line in WITHOUT_NAMES + WITH_NAMES:
        last = "red" if line.endswith("red") else "6"
        path = write(f"{line}\n4,{'false' if 'true' in line else 5},{last}\n7,,{last}\n")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            open_table(path)
            open_table(path, Dialect(header=False))
        told = ["first line holds numbers" in str(warning.message) for warning in caught]
        assert told == [True] * (line in WITHOUT_NAMES), line


def test_the_index_that_pandas_writes_is_left_out_with_a_warning(write):
    path = write(",a,b,y\n0,1,2,3\n1,4,5,6\n2,7,8,9\n")
    with pytest.warns(UserWarning, match="the first column has no name, and is left out"):
        check(read(path))
    frame = pd.DataFrame(np.c_[X, Y], columns=["a", "b", "y"]).iloc[[2, 0, 1]]
    path = write("", "turned.parquet")
    frame.to_parquet(path)  # with its index as the last column
    with pytest.warns(UserWarning, match="the index of the data frame has no name, and is left"):
        check(read(path), frame[["a", "b"]], frame["y"])
    check(read(path, inputs=["a", "b"]), frame[["a", "b"]], frame["y"])
    frame.set_index("b", append=False).to_parquet(path)  # in the order a, y, b
    check(read(path), frame[["a", "b"]], frame["y"])
    with pytest.warns(UserWarning, match="first line holds numbers.*--no-header"):
        read(write("1,2,3\n4,5,6\n"))


def test_a_name_that_is_a_number_stands_for_no_other_column_of_further_files(write):
    paths = write("0,1,y\n1,2,3\n4,5,6\n", "a.csv"), write("0,x,y\n7,8,9\n", "b.csv")
    refused((partial(rls.rows.stream, [*paths]), "no column '1' for the inputs"))
    numbered = read(write("0,1,y\n1,2,3\n4,5,6\n7,8,9\n"), inputs=["0", 1], target="2")
    check(numbered)


def test_parquet(write):
    text = pa.array(["u", "w", "u"]).dictionary_encode()
    table = {
        "a": pa.array([1, None, 3], pa.int8()),
        "b": [True, False, True],
        "c": [Decimal("1.5"), Decimal("2.5"), Decimal("3.5")],
        "d": pa.array([5, None, 7]).dictionary_encode(),
        "g": text,
        "y": [1.0, 2.0, 3.0],
    }
    found = read(write(table, "t.parquet"), missing="median", groups="g", labels=True)
    assert_array_equal(found[0], [[1, 1, 1.5, 5], [np.nan, 0, 2.5, np.nan], [3, 1, 3.5, 7]])
    assert found[3] == [["u", "w", "u"], ["1", "2", "3"]]
    with pytest.raises(ValueError, match="column 'g' holds text such as 'u', and not numbers"):
        read(write(table, "t.parquet"))
    single = {"a": pa.array([1.0, 2.0], pa.float32()), "y": [1.0, 2.0]}
    assert read(write(single, "s.parquet"))[0].dtype == np.float32
    with pytest.raises(ValueError, match="column 'd' holds time32.* values, and not numbers"):
        read(write({"d": pa.array([0], pa.time32("s")), "y": [1]}, "d.parquet"))


DATED = ["1999-12-31", "2000-02-29", None, "2023-07-02"]
TIMED = ["1999-12-31 18:00", "2000-02-29 06:30:15.5", None, "1960-01-01 00:00"]


def of_pandas(dates):
    """Days since 1970, and cosine and sine of the part of the year."""
    dates = pd.to_datetime(pd.Series(dates), format="ISO8601", utc=True)
    days = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    in_year = dates.dt.day_of_year - 1 + days % 1
    angle = 2 * np.pi * in_year / (365 + dates.dt.is_leap_year)
    return np.column_stack([days, np.cos(angle), np.sin(angle)])


def test_dates_are_days_and_parts_of_the_year(write):
    """As pandas has them, in every kind of file; with a zone, at UTC."""
    kinds = pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns", tz="Europe/Berlin")
    array = pd.to_datetime(pd.Series(DATED)).to_numpy()
    y = np.arange(4.0)
    tables = [({"d": pa.array(array).cast(kind), "y": y}, "d.parquet") for kind in kinds]
    tables.append(({"d": pa.array(array).dictionary_encode(), "y": y}, "d.parquet"))
    tables.append(({"X": array[:, None], "y": y}, "d.npz"))
    lines = "".join(f"{date or ''},{i}\n" for i, date in enumerate(DATED))
    tables += [("d,y\n" + lines, "d.csv"), ("d,y\n" + lines, "d.csv.gz")]
    times = "".join(f"{date or ''},{i}\n" for i, date in enumerate(TIMED))
    zoned = times.replace(",", "Z,").replace("Z,2", ",2")
    tables += [("d,y\n" + times, "t.csv"), ("d,y\n" + zoned, "t.csv")]
    for table, name in tables:
        which = "0" if name.endswith("z") and "csv" not in name else "d"
        found = read(write(table, name), days=[which], yearly=[which], missing="median")
        want = of_pandas(TIMED if name == "t.csv" else DATED)
        np.testing.assert_allclose(found[0], want, rtol=1e-12, atol=1e-12)
        names = tuple(map(str, found[4].choice.column_names()))
        assert names == (which, f"{which}_cos", f"{which}_sin")
    path = write("d,y\n" + lines)
    assert read(path, yearly=["d"], missing="drop")[0].shape == (3, 2)
    with pytest.raises(ValueError, match="row 3, column 'd': the value is missing"):
        read(path, yearly=["d"])


def test_days_may_be_followed_by_times_after_what_pyarrow_looks_at(write, monkeypatch):
    monkeypatch.setattr("jaxrls.rows.tables.LOOKED_AT", 2**12)
    path = write("d,y\n" + "1970-01-02,3\n" * 5000 + "1970-01-02 12:00,3\n")
    assert read(path, days=["d"])[0][-1].tolist() == [1.5]


CHOICES = {
    "d,k,a,b,y\n2020-01-01,u,1,,1\n,v,3,4,2\n": [
        "2 inputs are no numbers, 'd' holds dates such as '2020-01-01', 'k' holds text such as 'u'",
        ": code text as numbers, leave it out (--drop k), or make indicators of it (--one-hot k); ",
        "; take dates as a number of days (--days d), as the part of the year (--yearly d), or not",
        "; values are missing in 'd', 'b': leave such rows out (--missing drop), or fill in median",
    ],
    "k,l m,y\nu,v w,1\nu,v,2\n": ["'k' holds text such as 'u', 'l m' h", "--one-hot k,'l m')"],
    "a,b,c,y\n1,2,3,4\n,2,3,4\n1,,3,\n": [
        "row 2, column 'a': the value is missing, and others in 'b', 'y': leave the row out, as ",
        ", or fill in the median, as --missing median does",
    ],
}


def test_all_columns_that_need_a_choice_are_named_at_once(write):
    for text, words in CHOICES.items():
        with pytest.raises(ValueError) as error:
            read(write(text))
        for part in words:
            assert part in str(error.value)
    for text, option, words in (
        ("d,y\n01.02.2020,1\n02.02.2020,2\n", "days", "holds text such as '01.02.2020', and not d"),
        ("d,y\n1,1\n2,2\n", "yearly", "holds numbers, and not dates"),
    ):
        with pytest.raises(ValueError, match=f"column 'd' of --{option} {words}"):
            read(write(text), **{option: ["d"]})
    with pytest.raises(ValueError, match="column 'd' of --days is in --one-hot too"):
        read(write("d,y\n2020-01-01,1\n"), days=["d"], one_hot=["d"])


def test_archives(write):
    arrays = {"X": np.array(X, float), "y": np.array(Y), "w": np.ones(3), "g": np.array([1, 1, 2])}
    found = read(write(arrays, "a.npz"), weights="w", groups="g")
    check(found)
    assert found[2].tolist() == [1, 1, 1] and found[3] == [["1", "1", "2"]]
    both = {"X": np.array(X, float), "Y": np.array([Y, Y], float).T}
    check(read(write(both, "a.npz"), target="Y"), Y=np.array([Y, Y]).T)


def test_missing_values(write):
    path = write("a,g,y\n1,u,2\n,u,3\n4,,5\n6,w,NA\n7,w,8\n")
    found = read(path, missing="drop", one_hot=["g"])
    assert found[0].tolist() == [[1], [7]] and found[1].tolist() == [2, 8]
    assert found[3] == [["u", "w"]]
    with pytest.raises(ValueError, match="row 4, column 'y': .* missing: .*--missing drop does"):
        read(path, missing="median", one_hot=["g"])


ERRORS = [
    (
        "a,b,y\n1,2,3\n4,x,6\n",
        "column 'b' holds text such as 'x', .*--drop b.*--one-hot b.*in Pyth",
    ),
    ("a,b,y\n1,2,3\n4,,6\n", "row 2, column 'b': the value is missing: .*--missing drop"),
    ("a,b,y\n1,2,3\n4,-inf,6\n", "row 2, column 'b': the value is -inf: correct it"),
    ("a,b,y\n1,2,3\n4,5,\n", r"'y': the value is missing: .* \(in Python: .*give blocks of rows"),
    ("a,b,y\n1,2,3\n4,5\n", "cannot be read by --sep ',' .*: .*Row #3: Expected 3 columns, got 2"),
    ("", "cannot be read .*: .*[Ee]mpty"),
    ("a,b,a\n1,2,3\n", "cannot be read .* names in its first line: .*multiple columns named a"),
    ("y\n1\n2\n", "no column is left for the inputs"),
    ("a;b;y\n1;2;3\n", "--sep says what separates them"),
    (PLAIN.encode("utf-16"), "data.csv"),
    (b"a,b,y\n1,2,3\n4,\xff,6\n", "column 'b' holds bytes that are no text in this --encoding"),
]


def test_errors_of_csv(write):
    for text, words in ERRORS:
        path = write(text)
        with pytest.raises(ValueError, match=words) as error:
            read(path)
        assert str(error.value).startswith(path) and "\n" not in str(error.value)


OF_ARCHIVES = [
    ({"X": np.ones((3, 2))}, "no column 'y' for the target"),
    ({"X": np.ones(3), "y": np.ones(3)}, "X must be a matrix"),
    ({"X": np.array([["a"]]), "y": np.ones(1)}, "column '0' holds text such as 'a'"),
    ({"X": np.array([[{}]]), "y": np.ones(1)}, "[Oo]bject"),
    ({"X": np.ones((2, 1)), "y": np.zeros(2, [("a", "f8")])}, "values of dtype"),
]


def test_errors_of_archives(write):
    for arrays, words in OF_ARCHIVES:
        refused((partial(read, write(arrays, "a.npz")), words))


def test_files_that_are_not_there_or_not_whole(tmp_path):
    for name in ("data.csv.gz", "data.npz", "data.parquet", "data.arrow", "data.npy"):
        with pytest.raises(FileNotFoundError):
            read(str(tmp_path / name))
        (tmp_path / name).write_bytes(gzip.compress(PLAIN.encode() * 1000)[:-20])
        with pytest.raises(ValueError, match=f"{name} cannot be read( by .*)?: ") as error:
            read(str(tmp_path / name))
        assert "\n" not in str(error.value)


def test_a_missing_extra_is_named(write, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'jaxrls\[tables\]'"):
        read(write(PLAIN))
    check(read(write({"X": np.array(X, float), "y": np.array(Y)}, "a.npz")))
    assert rls.airfoil()[0].shape == (1503, 5)
    with writing(tmp_path / "p.npy") as out:
        out({"prediction": np.ones(2)})


def test_the_same_inputs_in_another_file(write):
    def predicting(path, choice, header=True):
        files = Files((path,), choice, Dialect(header), predict=True)
        (piece,) = files
        return piece.X.tolist(), [words.tolist() for words in piece.texts]

    choice = read(write(PLAIN))[4].choice
    named = write("y,id,b,a\n3,x,2,1\n6,y,5,4\n,z,8,7\n", "n.csv")
    assert predicting(named, choice) == (X, [["3", "6", ""]])
    arrays = {"X": np.array(X, float), "y": np.array(Y)}
    assert predicting(write(arrays, "a.npz"), choice) == (X, [["3", "6", "9"]])
    for text, words in (
        ("a,c\n1,2\n", "no column 'b' for the inputs: its columns are 'a', 'c'"),
        ("b,a\n,1\n", "row 1, column 'b': the value is missing"),
    ):
        with pytest.raises(ValueError, match=words):
            predicting(write(text), choice)
    choice = read(write("1,3,2\n4,6,5\n"), target=1, header=False)[4].choice
    assert predicting(write("1,3,2\n4,x,5\n"), choice, False) == ([[1, 2], [4, 5]], [["3", "x"]])


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".arrow", ".feather", ".npy"])
def test_numbers_are_written_so_that_they_come_back(tmp_path, ending):
    numbers, words = np.array([0.1, 1e-300, -np.pi]), np.array(["x,y", 'z"', "u"])
    columns = {"a": numbers, "y": numbers[::-1]} | ({} if ending == ".npy" else {"t": words})
    with writing(tmp_path / f"p{ending}") as out:
        for rows in (slice(0, 2), slice(2, 3)):
            out({name: values[rows] for name, values in columns.items()})
    found = read(str(tmp_path / f"p{ending}"), target=-1, labels=None)
    assert_array_equal(found[0][:, 0], numbers)
    assert found[3] == ([] if ending == ".npy" else [words.tolist()])
    refused = pytest.raises(ValueError, match="labels and kept columns are text, and a .npy file")
    with refused, writing(tmp_path / "q.npy") as out:
        out({"t": words})
    assert not (tmp_path / "q.npy").exists()
    assert not list(tmp_path.glob(".jaxrls*"))
