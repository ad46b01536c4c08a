"""Data files under attack, through the command line: `python fuzz/tables.py --seconds 60 --seed 1`.

Whatever stands in a file, the command ends with 0, or with 2 and one line that says why; no traceback, and nothing but that line on the error
stream. Where a table is accepted, what reaches the fit is what a plain reading of the cells gives. Every 64th case runs the fit and the
prediction, too; in the others a stub takes its place, which keeps what it was given.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pyarrow.parquet
from archives import forged
from harness import CORPUS, Failure, chance, damaged, drive, parse

import jaxrls as rls
from jaxrls.cli import fitting
from jaxrls.cli.main import main as command

ROWS, REAL = 12, 64
CELLS = [
    "",
    "NA",
    "nan",
    "inf",
    "-Infinity",
    "1e999",
    "x",
    "0",
    "1_0",
    "0x10",
    "1,5",
    '"',
    '"2"',
    " 3 ",
    "+4",
    "١",
    "1e-320",
    "1" * 500,
    "é",
    "\0",
]
OPTIONS = [
    [],
    ["--header"],
    ["--no-header"],
    ["--target", "0"],
    ["--target", "nobody"],
    ["--groups", "0"],
    ["--weights", "0"],
    ["--weights", "0", "--groups", "1"],
    ["--classify"],
    ["--no-standardize"],
    ["--kernel", "linear"],
    ["--criterion", "gcv"],
    ["--max-inflation", "0.001"],
]


def run(argv, folder: Path) -> tuple[int, str]:
    """A command's exit code and what it said, with the folder's files kept should it fail."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    files = files_of(folder, argv)
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command(argv)
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            raise Failure(f"{' '.join(argv)}: {type(error).__name__}: {error}", files) from error
    out.flush()
    said, told = out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]
    if code not in (0, 2) or code == 2 and (told.count("\n") != 1 or not told.startswith("jaxrls: ")):
        raise Failure(f"{' '.join(argv)}: exit code {code}, and on the error stream: {told}", files)
    leftover = [name for name in os.listdir(folder) if name.startswith(".jaxrls")]
    if leftover:
        raise Failure(f"{' '.join(argv)} left {leftover}", files)
    return code, said + told


def stub(given: list, kernel, X, Y, *, criterion=rls.loo, **options) -> rls.Fit:
    """A fit that does nothing and keeps what it is given; a stream is read to its end."""
    if isinstance(X, rls.Rows):
        with jax.enable_x64(True):
            X = np.concatenate([np.asarray(block) for block in X.blocks()])
    given.append((np.asarray(X), np.asarray(Y), options))
    targets = Y.shape[1:]
    model = rls.Model(kernel, X[:2], np.zeros((2, *targets)), np.zeros(targets))
    lams, zero = np.array([0.1, 1.0]), np.array(0.0)
    return rls.Fit(model, lams, lams, lams[0], lams[0], np.zeros_like(Y), zero, zero, zero, "gram", criterion.__name__)


@contextlib.contextmanager
def stubbed(given: list):
    """Without the fit, and without the search for a width."""
    with mock.patch.object(rls, "fit", partial(stub, given)), mock.patch.object(fitting, "from_data", lambda kernel, X: kernel):
        yield


def numbers(rng, n=ROWS, d=3) -> np.ndarray:
    """A table of few numbers or many, whole or not, in any unit."""
    values = rng.normal(size=(n, d)) if rng.random() < 0.6 else rng.integers(-3, 9, (n, d)).astype(float)
    return values * 10.0 ** rng.choice([0, 0, 0, 5, -8, 200, -170], d)


def text(rng, rows, names=None) -> bytes:
    """The rows in one of the layouts that people have."""
    delimiter, end = chance(rng, (",", ",", "\t", ";")), chance(rng, ("\n", "\r\n"))
    pad, quote = chance(rng, ("", "", " ")), chance(rng, ("", "", '"'))
    lines = [
        delimiter.join(pad + quote + cell + quote if not pad else pad + cell for cell in row) for row in ([names] if names else []) + rows
    ]
    start = chance(rng, ("", "", "\ufeff", end))
    return (start + end.join(lines) + chance(rng, ("", end, end * 2))).encode()


def written(values) -> list[list[str]]:
    """Numbers as cells that give them back."""
    return [[repr(value) if value % 1 or abs(value) > 1e15 else str(int(value)) for value in row] for row in values.tolist()]


def read_back(folder: Path, argv, expected, what: str) -> str:
    """A file without faults: it is accepted, and what reaches the fit is what was written."""
    given: list = []
    with stubbed(given):
        code, said = run(argv, folder)
    if code or len(given) != 1:
        raise Failure(f"{what} was refused: {said}", files_of(folder, argv))
    if not all(np.array_equal(a, b) for a, b in zip(given[0][:2], expected, strict=True)):
        raise Failure(f"{what} was read as other numbers", files_of(folder, argv))
    return "right"


def files_of(folder: Path, argv) -> dict[str, bytes]:
    """What shows a failure."""
    found = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return found | {"case.json": json.dumps({"argv": argv}).encode()}


# the attacks


def layouts(rng, folder: Path) -> str:
    """Tables as programs write them."""
    values = numbers(rng)
    names = chance(rng, (None, ["a", "b", "y"], ["id", "2019", "y"], ["0", "1", "2"], ["größe", "b c", "y"]))
    if names is None and rng.random() < 0.5:
        values[0] = np.trunc(values[0]) + 0.5  # no whole numbers, so that nothing is a header
    data = text(rng, written(values), names)
    flag = ["--header"] if names else ["--no-header"]
    if names in (["a", "b", "y"], ["größe", "b c", "y"]) or names is None and (values[0] % 1).all():
        flag = []
    packed = rng.random() < 0.3
    (folder / ("data.csv.gz" if packed else "data.csv")).write_bytes(gzip.compress(data) if packed else data)
    argv = ["fit", "data.csv.gz" if packed else "data.csv", "--no-standardize", *flag]
    return read_back(folder, argv, (values[:, :2], values[:, 2]), f"a table under {names}")


def odd_cells(rng, folder: Path) -> str:
    """One cell replaced: the table is refused, or read as the cells say."""
    rows = written(numbers(rng))
    i, j = int(rng.integers(len(rows))), int(rng.integers(3))
    rows[i][j] = chance(rng, CELLS)
    file = io.StringIO()
    csv.writer(file).writerows([["a", "b", "y"], *rows])
    (folder / "data.csv").write_text(file.getvalue(), encoding="utf-8")
    argv = ["fit", "data.csv", "--no-standardize", "--target", "y"]
    given: list = []
    with stubbed(given):
        code, _ = run(argv, folder)
    if code:
        plain = all(cell.isascii() and cell.strip("+-.e0123456789 ") == "" for row in rows for cell in row)
        with contextlib.suppress(ValueError):
            if plain and all(math.isfinite(float(cell)) for row in rows for cell in row):
                raise Failure(f"a table of numbers was refused for {rows[i][j]!r}", files_of(folder, argv))
        return "refused"
    label = (i, j) == (0, 2)  # a first target that is no number makes labels of all
    cells = [[float(cell) for cell in (row[:2] if label else row)] for row in rows]
    if not all(math.isfinite(cell) for row in cells for cell in row) or not np.array_equal(np.array(cells)[:, :2], given[0][0]):
        raise Failure(f"the cell {rows[i][j]!r} was read as something else", files_of(folder, argv))
    return "right"


def damages(rng, folder: Path) -> str:
    """Bytes changed, of text, packed text and archives, with any options."""
    values = numbers(rng, int(rng.integers(3, 20)), int(rng.integers(1, 5)))
    name = chance(rng, ("data.csv", "data.csv.gz", "data.npz"))
    rows = written(values)
    if rng.random() < 0.3:
        for row in rows:
            row[-1] = chance(rng, ("cat", "dog", "cow"))
    data = text(rng, rows, chance(rng, (None, [f"c{j}" for j in range(values.shape[1])])))
    if name == "data.npz":
        file = io.BytesIO()
        y = np.array([row[-1] for row in rows]) if rng.random() < 0.3 else values[:, -1]
        with np.errstate(over="ignore"):
            X = values.astype(chance(rng, ("f8", "f4", "f2", "g")))
        chance(rng, (np.savez, np.savez_compressed))(file, X=X, y=y, w=np.ones(len(y)))
        data = file.getvalue()
        if rng.random() < 0.5:
            data = forged_data(rng, data)
    if name == "data.csv.gz":
        data = damaged(rng, gzip.compress(data), data) if rng.random() < 0.5 else gzip.compress(damaged(rng, data, data[::-1]))
    elif rng.random() < 0.8:
        data = damaged(rng, data, data[::-1])
    (folder / name).write_bytes(data)
    with stubbed([]):
        code, _ = run(["fit", name, *chance(rng, OPTIONS), *chance(rng, ([], ["--out", "m.npz"]))], folder)
    return "refused" if code else "accepted"


def forged_data(rng, data: bytes) -> bytes:
    """An archive of data with a member of junk."""
    arrays = dict(np.load(io.BytesIO(data)))
    name = chance(rng, list(arrays))
    n = len(arrays["y"])
    junk = [
        arrays[name][..., None],
        arrays[name][: n // 2],
        np.array(3.0),
        np.zeros((0, 3)),
        np.full(n, np.nan),
        np.full(n, "NaN"),
        np.array([b"\xff"] * n),
        np.full(n, 1j),
        np.zeros(n, "M8[D]"),
        np.full(n, "NaT", "m8[s]"),
        np.zeros(n, [("a", "f8")]),
        np.full(n, -1),
        np.zeros(n),
        np.full(n, 2**63, "u8"),
        np.arange(n)[::-1],
        np.asfortranarray(np.ones((n, 2))),
        np.full((n, 2), 1e300),
        np.ones((n, 2), ">f8"),
    ]
    file = io.BytesIO()
    np.savez(file, **arrays | {name: chance(rng, junk)})
    return file.getvalue()


def predictions(rng, folder: Path, models: Path) -> str:
    """A model, whole, damaged or forged, on a table, whole or damaged."""
    model = chance(rng, sorted(models.glob("*.npz")))
    data = model.read_bytes()
    if rng.random() < 0.7:
        data = forged(rng, data) if rng.random() < 0.7 else damaged(rng, data, data[::-1])
    (folder / "m.npz").write_bytes(data)
    table = text(rng, written(numbers(rng, 5, int(rng.integers(2, 4)))), chance(rng, (None, ["a", "b", "y"][: int(rng.integers(2, 4))])))
    (folder / "new.csv").write_bytes(damaged(rng, table, table[::-1]) if rng.random() < 0.3 else table)
    code, _ = run(["predict", "m.npz", "new.csv", *chance(rng, ([], ["--out", "p.csv"], ["--header"], ["--no-header"]))], folder)
    return "refused" if code else "accepted"


def parts(rng, folder: Path, values, names) -> str:
    """The rows in files of one kind or several, in a folder; the pattern, folder or names that mean them."""
    (folder / "parts").mkdir()
    kinds = [chance(rng, (".csv", ".csv.gz", ".npz", ".npy", ".parquet"))] * 3 if rng.random() < 0.8 else [".csv", ".csv.gz", ".csv"]
    cuts = np.sort(rng.choice(np.arange(1, len(values)), 2, replace=False))
    for i, (kind, rows) in enumerate(zip(kinds, np.split(values, cuts), strict=True)):
        path = folder / "parts" / f"{i}{kind}"
        if kind == ".npz":
            np.savez(path, X=rows[:, :-1], y=rows[:, -1])
        elif kind == ".npy":
            np.save(path, rows)
        elif kind == ".parquet":
            pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, rows.T, strict=True))), path)
        else:
            lines = "\n".join([",".join(names), *map(",".join, written(rows))]).encode()
            path.write_bytes(gzip.compress(lines) if kind == ".csv.gz" else lines)
    return chance(rng, ("parts", "parts/*", f"parts/*{kinds[0]}" if len(set(kinds)) == 1 else "parts/[0-9].*"))


def streams(rng, folder: Path, models: Path) -> str:
    """Files that stream, whole or one of them damaged, fitted and predicted: what reaches the fit is what was written, or one line says why not."""
    values = numbers(rng, int(rng.integers(4, 20)), 3)
    source = parts(rng, folder, values, ["a", "b", "y"])
    bad = rng.random() < 0.7
    if bad:
        path = chance(rng, sorted((folder / "parts").iterdir()))
        data = path.read_bytes()
        if path.suffix == ".npz" and rng.random() < 0.5 and len(np.load(path)["y"]) > 1:
            path.write_bytes(forged_data(rng, data))
        else:
            path.write_bytes(damaged(rng, data, data[::-1]))
    if rng.random() < 0.3:
        shutil.copy(chance(rng, sorted(models.glob("*.npz"))), folder / "m.npz")
        code, _ = run(["predict", "m.npz", source, "--out", chance(rng, ("p.csv", "p.npy", "p.parquet"))], folder)
        return "refused" if code else "accepted"
    argv = ["fit", source, "--no-standardize", "--landmarks", "1"]
    if bad or rng.random() < 0.3:
        np.savez(folder / "sums.npz", **{"k/rows": np.array([1, 3, 1]), "k/0": np.ones(3)})
        (folder / "sums.npz").write_bytes(damaged(rng, (folder / "sums.npz").read_bytes()))
        argv += chance(rng, [*OPTIONS, *[["--checkpoint", "sums.npz"]] * 6, ["--stream"], ["--weights", "a"], ["--target", "b"]])
        with stubbed([]):
            code, _ = run(argv, folder)
        return "refused" if code else "accepted"
    return read_back(folder, argv, (values[:, :2], values[:, 2]), "a stream")


def real(rng, folder: Path) -> str:
    """Fit and predict in earnest: what is predicted is finite, and is what the saved model says of the same rows."""
    values = rng.normal(size=(ROWS, 3)) * 10.0 ** rng.choice([0, 0, 5, 200, -170], 3) * [1, 1, 0] + [0, 0, 1] * rng.normal(size=(ROWS, 3))
    data = text(rng, written(values), chance(rng, (["a", "b", "y"], ["0", "1", "2"])))
    bad = rng.random() < 0.3
    (folder / "data.csv").write_bytes(damaged(rng, data) if bad else data)
    code, _ = run(["fit", "data.csv", "--out", "m.npz", *chance(rng, ([], ["--kernel", "linear"], ["--header"]))], folder)
    if code:
        if not bad:
            raise Failure("a table without faults was refused", files_of(folder, []))
        return "refused"
    code, said = run(["predict", "m.npz", "data.csv", "--out", "p.csv"], folder)
    found = [row[0] for row in csv.reader((folder / "p.csv").read_text().splitlines()[1:])]
    if code or not bad and not (len(found) == ROWS and np.isfinite(np.array(found, float)).all()):
        raise Failure(f"the predictions are not {ROWS} finite numbers: {said}", files_of(folder, []))
    return "right" if not bad else "accepted"


# the corpus


def kept(case: Path, folder: Path) -> str:
    """A case of the corpus: `case.json` has its arguments, and what it must or must not say."""
    for path in case.iterdir():
        shutil.copy(path, folder)
    told = json.loads((case / "case.json").read_text())
    code, said = run(told["argv"], folder)
    if code != told["code"] or told["says"] not in " ".join(said.split()):
        raise Failure(f"{case.name}: exit code {code}, and it says {said}", {})
    return "refused" if code else "right"


def inside(attack, *arguments) -> str:
    """An attack in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return attack(*arguments, Path(folder))


def make_models(folder: Path) -> Path:
    """Models as `fit --out` writes them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2))
    layout = {"inputs": ["a", "b"], "positions": [0, 1], "width": 3, "target": "y"}
    extra = {"layout": layout, "means": [0.0, 1.0], "scales": [1.0, 2.0], "classes": None}
    for name, t, classes in (("numbers", (), None), ("two", (), ["cat", "dog"]), ("three", (3,), ["cat", "cow", "dog"])):
        model = rls.Model(rls.Gaussian(1.0), X, rng.normal(size=(ROWS, *t)), np.zeros(t))
        rls.save(folder / f"{name}.npz", model, extra=extra | {"classes": classes})
    rls.save(folder / "plain.npz", rls.Model(rls.Linear(), None, np.ones(2), np.array(0.0)))
    return folder


def main(argv=None) -> int:
    """Attack."""
    options = parse(__doc__, argv)
    fixed = [("corpus", partial(inside, kept, case)) for case in sorted((CORPUS / "tables").iterdir())]
    with tempfile.TemporaryDirectory() as models:
        make_models(Path(models))
        count = iter(range(10**12))

        def draw(rng):
            if next(count) % REAL == REAL - 1:
                return "fitted", partial(inside, partial(real, rng))
            attack = chance(rng, (layouts, odd_cells, damages, damages, predictions, streams, streams))
            if attack in (predictions, streams):
                return attack.__name__, partial(inside, lambda folder: attack(rng, folder, Path(models)))
            return attack.__name__, partial(inside, partial(attack, rng))

        return drive("tables", options, fixed, draw)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
