"""Tables in: every layout that people have, and errors that name the cell."""

import gzip
import io
import time

import numpy as np
import pytest

from jaxrls.io.tables import read_inputs, read_table
from jaxrls.io.writers import write_columns

pytestmark = pytest.mark.any_precision
PLAIN = "a,b,y\n1,2,3\n4,5,6\n7,8,9\n"
X, Y = [[1, 2], [4, 5], [7, 8]], [3, 6, 9]


@pytest.fixture
def csv(tmp_path):
    """Write a text to a file and give its path."""

    def write(text, name="data.csv"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture
def npz(tmp_path):
    """Write arrays to a file and give its path."""

    def write(**arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path / "data.npz"

    return write


def check(table, X=X, y=Y):
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.y, y)
    assert table.X.dtype == np.float64


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.rstrip("\n"),
        "\ufeff" + PLAIN,
        "\n" + PLAIN.replace("\n", "\n\n"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", " , "),
        '"a","b","y"\n"1","2","3"\n4,5,6\n7,8,9\n',
        PLAIN.split("\n", 1)[1],
        "1e0,+2,3.\n4,5,6\n7,8,9e+00\n",
        "#a,b,y\n1,2,3\n4,5,6\n7,8,9\n",
    ],
)
@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz", "data.txt"])
def test_layouts(csv, text, name):
    check(read_table(csv(text, name)))


@pytest.mark.parametrize("target", ["a", "0", "-3", 0, -3])
def test_targets_by_name_and_number(csv, target):
    check(read_table(csv(PLAIN), target=target), [[2, 3], [5, 6], [8, 9]], [1, 4, 7])


@pytest.mark.parametrize("header", ["id,2019,y", "0,1,target", ",a,y"])
def test_headers_with_numbers_among_the_names(csv, header):
    table = read_table(csv(f"{header}\n1,2,3\n4,5,6\n7,8,9\n"))
    check(table)
    assert table.layout["inputs"] == header.split(",")[:2]


@pytest.mark.parametrize("rows", ["1,2,cat\n4,5,dog\n", "1.5,2,cat\n4,5,3\n", "1,NA,3\n4,5,6\n", "1,2,3\n4,5,6\n"])
def test_first_rows_that_are_no_headers(csv, rows):
    try:
        assert read_table(csv(rows)).layout["inputs"] is None
    except ValueError as error:
        assert "row 1 (line 1)" in str(error)


FLOATS = "0.5,1.5,0.25\n-0.5,2.5,1\n1.5,-3.5,1\n"
WHOLE = "4,1,2\n7,8,3\n5,6,9\n"
FRACTIONS = "0.5,1.5,0.25\n-0.5,2.5,1.5\n"


@pytest.mark.parametrize(
    ("first", "rows", "header"),
    [
        ("0,1,2", FLOATS, True),  # what pandas writes for columns without names
        ("0,1,2", WHOLE, True),
        ("0,1,2", "0.5,1.5,cat\n1,2,dog\n", True),
        (",0,1", "0,0.5,1.5\n1,0.25,2.5\n", True),  # and its index before them
        ("0,1,2", "3,4,5\n6,7,8\n", False),  # it counts on
        ("0,1,3", FLOATS, False),
        (f"1,2,{'1' * 300}", FRACTIONS, False),
        ("1,2,3", FLOATS, False),
        ("1,2,3", WHOLE, False),
        ("2018,2019,2020", FRACTIONS, True),
        ("2018,2019,2020", FLOATS, False),
        ("1,0,0", FRACTIONS, False),  # names would rise
        ("1,x,3", WHOLE, False),  # an odd cell in a file of whole numbers
        ("x,2,3", WHOLE, False),
        ("0,x,2", WHOLE, False),
        ("id,2019,y", WHOLE, True),
        ("0,1,target", WHOLE, True),
        ("cat,2,3", "cat,8,3\ndog,6,9\n", False),
        ("kind,a,b", "cat,8,3\ndog,6,9\n", True),
    ],
)
def test_what_stands_below_the_first_line_says_whether_it_is_a_header(csv, first, rows, header):
    try:
        table = read_table(csv(f"{first}\n{rows}"), target="kind" if "kind" in first else None)
    except ValueError as error:  # an odd cell is told of
        assert not header and "row 1 (line 1)" in str(error) and "say --header" in str(error)
    else:
        assert table.header is header
        assert len(table.X) == rows.count("\n") + (not header)
        assert (table.layout["inputs"] is None) is not header


@pytest.mark.parametrize("text", ["0,1,2\n" + FLOATS, "5,6,7\n" + WHOLE, PLAIN])
def test_a_header_can_be_said(csv, text):
    path = csv(text)
    table = read_table(path, header=True)
    assert table.header and len(table.X) == text.count("\n") - 1 and table.layout["inputs"] == text.split("\n")[0].split(",")[:2]
    try:
        table = read_table(path, header=False)
        assert not table.header and len(table.X) == text.count("\n")
    except ValueError as error:
        assert text == PLAIN and "'a' is not a number" in str(error)


def test_a_line_with_all_the_names_of_a_model_is_a_header(csv):
    layout = {"inputs": ["3", "4"], "positions": [0, 1], "width": 3, "target": "5"}
    values, target = read_inputs(csv("3,4,5\n1,2,3\n6,5,4\n"), layout)
    assert values.tolist() == [[1, 2], [6, 5]] and target.tolist() == ["3", "4"]
    assert len(read_inputs(csv("3,4,5\n1,2,3\n6,5,4\n"), layout, header=False)[0]) == 3


def test_many_columns_are_no_matter(csv):
    """Names were counted in a time that grew with the square of their number."""
    d = 20000
    names = ",".join(f"c{j}" for j in range(d))
    start = time.perf_counter()
    assert read_table(csv(names + "\n" + ",".join("1" * d) + "\n")).X.shape == (1, d - 1)
    assert time.perf_counter() - start < 5
    with pytest.raises(ValueError, match="has 1000001 columns, and at most 1000000 are read from text"):
        read_table(csv("," * 10**6 + "\n"))


@pytest.mark.parametrize("name", ["data.csv.gz", "data.npz"])
def test_small_files_do_not_become_large_ones(csv, npz, tmp_path, name):
    path = tmp_path / name
    if name == "data.npz":
        np.savez_compressed(path, X=np.zeros((2**20, 3)), y=np.zeros(2**20), z=np.zeros(2**22))
    else:
        path.write_bytes(gzip.compress(b"a,b,y\n" + b"1,2,3\n" * (3 * 2**20)))
    with pytest.raises(ValueError, match=f"{name} has .* becomes more than 16777216 in memory"):
        read_table(path)
    if name == "data.npz":
        assert len(read_table(path, max_inflation=2000).X) == 2**20
        np.savez_compressed(path, X=np.ones((2, 1)), y=np.zeros(2), z=np.zeros(2**23))
        assert len(read_table(path).X) == 2  # what is not asked for is not read


def test_quoted_names(csv):
    table = read_table(csv('"a, in m","say ""b""",y\n1,2,3\n4,5,6\n7,8,9\n'), target='say "b"')
    assert table.layout["inputs"] == ["a, in m", "y"]
    check(table, [[1, 3], [4, 6], [7, 9]], [2, 5, 8])


def test_labels(csv):
    table = read_table(csv('1,2,cat\n4,5,"dog, big"\n7,8, cat \n'))
    check(table, y=["cat", "dog, big", "cat"])
    assert table.layout["inputs"] is None and table.layout["target"] == 2
    check(read_table(csv(PLAIN), labels=True), y=["3", "6", "9"])


def test_groups_and_weights(csv):
    text = "g,a,w,b,y\nred,1,.5,2,3\nblue,4,1,5,6\nred,7,2,8,9\n"
    table = read_table(csv(text), groups="g", weights="w")
    check(table)
    assert table.groups.tolist() == ["red", "blue", "red"] and table.weights.tolist() == [0.5, 1, 2]
    check(read_table(csv("a,b,y,g\n1,2,3,1\n4,5,6,1\n7,8,9,2\n"), groups="-1"))
    table = read_table(csv("1,2,cat,r,1\n4,5,dog,s,1\n"), target=2, groups=3, weights=4)
    assert table.y.tolist() == ["cat", "dog"] and table.groups.tolist() == ["r", "s"] and table.weights.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,2,3\n4,x,6\n", r"row 2 \(line 3\), column b: 'x' is not a number"),
        ("a,b,y\n1,2,3\n4,,6\n", r"row 2 \(line 3\), column b: the value is missing"),
        ("a,b,y\n1,2,3\n4,NA,6\n", r"row 2 \(line 3\), column b: the value is missing"),
        ("a,b,y\n1,2,3\n4,nan,6\n", r"row 2 \(line 3\), column b: the value is missing"),
        ("a,b,y\n1,2,3\n4,-inf,6\n", r"row 2 \(line 3\), column b: -inf is not a finite number"),
        ("a,b,y\n1,2,3\n4,5,\n", r"row 2 \(line 3\), column y: the value is missing"),
        ("a,b,y\n\n1,2,3\n\n4,5,?\n", r"row 2 \(line 5\), column y: the value is missing"),
        ("a,b,y\n1,2,3\n4,5\n", r"row 2 \(line 3\) has 2 cells, and the header has 3"),
        ("a,b,y\n1,2,3,4\n4,5,6,7\n", r"row 1 \(line 2\) has 4 cells, and the header has 3"),
        ("a,b,y\n1,2\n4,5\n", r"row 1 \(line 2\) has 2 cells, and the header has 3"),
        ("1,2,3\n4,5,6,7\n", r"row 2 \(line 2\) has 4 cells, and the first row has 3"),
        ("1,2,cat\n4,5\n", r"row 2 \(line 2\) has 2 cells"),
        ("1,2,cat\n4,5,\n", r"row 2 \(line 2\), column 2: the value is missing"),
        ("a,b,y\n1,2,\n4,5,6\n", r"row 1 \(line 2\), column y: the value is missing"),
        ("1.5,x,3\n4,5,6\n", r"row 1 \(line 1\), column 1: 'x' is not a number: .*taken for data; .*say --header"),
        ("a,b,y\n1,2,3\n4,5,6x\n", r"row 2 \(line 3\), column y: '6x' is not a number"),
        ("a,b,y\n1,2,3\n4,5,1_000\n", "could not be read"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b,y\n", "a header and no rows"),
        ("a,b,a\n1,2,3\n", "more than one column named 'a'"),
        ("y\n1\n2\n", "no column left for inputs: its columns are y"),
        ("a b y\n1 2 3\n", "separated by commas"),
        ("a,b,y\n1,2,3\n4,\ufffd,6\n".encode("utf-16"), "not text in UTF-8"),
        (b"a,b,y\n1,2,3\n4,\xff,6\n", "not text in UTF-8"),
        (b"\x00\x01\x02", "."),
    ],
)
@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_errors_name_the_cell(csv, text, message, name):
    with pytest.raises(ValueError, match=message) as error:
        read_table(csv(text, name))
    assert str(error.value).startswith(str(csv(text, name)))


def test_unknown_columns_are_listed(csv):
    with pytest.raises(ValueError, match="no column 'z' for the target: its columns are a, b, y"):
        read_table(csv(PLAIN), target="z")
    with pytest.raises(ValueError, match="no column 3 for the groups"):
        read_table(csv(PLAIN), groups=3)
    with pytest.raises(ValueError, match="no column 'a' for the target: its columns are 0 to 2, without names"):
        read_table(csv("1,2,3\n"), target="a")
    many = ",".join(f"c{i}" for i in range(30)) + "\n" + ",".join("1" * 30) + "\n"
    with pytest.raises(ValueError, match="c19 and 10 more"):
        read_table(csv(many), target="z")
    with pytest.raises(ValueError, match="different columns"):
        read_table(csv(PLAIN), target="a", weights="a")
    with pytest.raises(ValueError, match="different columns"):
        read_table(csv(PLAIN), groups="a", weights="a")


def test_files_that_are_not_there_or_not_whole(csv, tmp_path):
    for name in ("no.csv", "no.csv.gz", "no.npz"):
        with pytest.raises(FileNotFoundError):
            read_table(tmp_path / name)
    path = csv(PLAIN * 1000, "data.csv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a whole gzip file|row"):
        read_table(path)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read_table(path)
    (tmp_path / "data.npz").write_text("hello")
    with pytest.raises(ValueError, match="not an NPZ file"):
        read_table(tmp_path / "data.npz")


# archives


def test_archives(npz):
    check(read_table(npz(X=np.array(X), y=np.array(Y))))
    check(read_table(npz(X=np.array(X, np.int8), price=np.array(Y)[:, None]), target="price"))
    assert read_table(npz(X=np.array(X, np.float32), y=np.array(Y))).X.dtype == np.float32
    table = read_table(npz(X=np.array(X), y=np.array(["a", "b", "a"]), g=np.array([1, 1, 2]), w=np.ones(3)), groups="g", weights="w")
    assert table.y.tolist() == ["a", "b", "a"] and table.groups.tolist() == ["1", "1", "2"] and table.weights.tolist() == [1, 1, 1]
    assert read_table(npz(X=np.array(X), y=np.array([0, 1, 0])), labels=True).y.tolist() == ["0", "1", "0"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3)}, "no array 'X': it holds a"),
        ({"X": np.ones((3, 2))}, "no array 'y': it holds X"),
        ({"X": np.ones(3), "y": np.ones(3)}, "X must have shape"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, "X must have shape"),
        ({"X": np.ones((3, 2)), "y": np.ones(4)}, "y must have shape"),
        ({"X": np.ones((3, 2)), "y": np.ones((3, 2))}, "y must have shape"),
        ({"X": np.array([["a"]]), "y": np.ones(1)}, "X must hold numbers"),
        ({"X": np.array([[1.0, np.nan]]), "y": np.ones(1)}, r"X\[0, 1\] is nan"),
        ({"X": np.ones((2, 1)), "y": np.array([1, np.inf])}, r"y\[1\] is inf"),
        ({"X": np.array([[{}]]), "y": np.ones(1)}, "Python objects"),
        ({"X": np.ones((2, 1)) * 1j, "y": np.ones(2)}, "X must hold numbers"),
        ({"X": np.ones((2, 1)), "y": np.ones(2) * 1j}, "y must hold labels, and has dtype complex128"),
        ({"X": np.ones((2, 1)), "y": np.array([b"\xff", b"a"])}, "y holds bytes that are not ASCII"),
        ({"X": np.ones((2, 1)), "y": np.array(["a", " "])}, r"y\[1\] is missing"),
        ({"X": np.ones((2, 1)), "y": np.array(["NaT", "2020-01-01"], "M8[D]")}, r"y\[0\] is missing"),
        ({"X": np.ones((2, 1), np.float32), "y": np.array([1e300, 0])}, r"y\[0\] is inf"),
        ({"X": np.ones((2, 1)), "y": np.zeros(2, [("a", "f8")])}, "y is not an array .*records"),
    ],
)
def test_errors_of_archives(npz, arrays, message):
    with pytest.raises(ValueError, match=message):
        read_table(npz(**arrays))


# the same columns in another file


def test_inputs_by_name(csv):
    layout = read_table(csv(PLAIN)).layout
    values, target = read_inputs(csv("y,id,b,a\n3,x,2,1\n6,y,5,4\n,z,8,7\n"), layout)
    np.testing.assert_array_equal(values, X)
    assert target.tolist() == ["3", "6", ""]
    values, target = read_inputs(csv("b,a\n2,1\n"), layout)
    assert values.tolist() == [[1, 2]] and target is None
    with pytest.raises(ValueError, match="lacks columns that the model was fitted on: b; its columns are a, c"):
        read_inputs(csv("a,c\n1,2\n"), layout)
    with pytest.raises(ValueError, match=r"row 1 \(line 2\), column b"):
        read_inputs(csv("b,a\n?,1\n"), layout)


def test_inputs_by_position(csv, npz):
    layout = read_table(csv("w,a,y,b\n1,1,3,2\n1,4,6,5\n"), target="y", weights="w").layout
    values, target = read_inputs(csv("9,1,3,2\n9,4,6,5\n"), layout)
    assert values.tolist() == [[1, 2], [4, 5]] and target is None
    layout = read_table(csv("1,3,2\n4,6,5\n"), target=1).layout
    values, target = read_inputs(csv("1,3,2\n4,x,5\n"), layout)
    assert values.tolist() == [[1, 2], [4, 5]] and target.tolist() == ["3", "x"]
    values, target = read_inputs(csv("a,b\n1,2\n"), layout)
    assert values.tolist() == [[1, 2]] and target is None
    values, target = read_inputs(npz(X=np.array(X), y=np.array(Y)), layout)
    assert values.tolist() == X and target.tolist() == Y
    values, target = read_inputs(npz(X=np.array(X)), None)
    assert values.tolist() == X and target is None


def test_numbers_are_written_so_that_they_come_back():
    file = io.BytesIO()
    numbers = np.array([0.1, 1e-300, -np.pi])
    write_columns(file, {"prediction": numbers, 'a "b"': np.array(["x,y", "z", ""])})
    lines = file.getvalue().decode().splitlines()
    assert lines[0] == 'prediction,"a ""b"""'
    assert [float(line.split(",")[0]) for line in lines[1:]] == numbers.tolist()
    assert lines[1].endswith(',"x,y"')


@pytest.mark.slow
def test_a_million_rows_are_read_at_the_speed_of_the_c_reader(csv, rng):
    rows = "".join(f"{a:.6g},{b:.6g},{c:.6g}\n" for a, b, c in rng.normal(size=(10**6, 3)).tolist())
    path = csv("a,b,y\n" + rows)
    start = time.perf_counter()
    np.loadtxt(path, delimiter=",", skiprows=1)
    bare = time.perf_counter() - start
    start = time.perf_counter()
    assert read_table(path).X.shape == (10**6, 2)
    assert time.perf_counter() - start < 3 * bare
