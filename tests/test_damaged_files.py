"""Files that are not what they should be: the right object, or one line that says what is wrong.

Some hundred examples by default; as many as are asked for by

    JAXRLS_EXAMPLES=100000 pytest tests/test_damaged_files.py --hypothesis-seed=1
"""

import gzip
import io
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxrls as rls
from jaxrls.cli.main import main
from jaxrls.io.sources import Choice, open_files
from jaxrls.io.tables import writing

pytestmark = pytest.mark.any_precision
EXAMPLES = int(os.environ.get("JAXRLS_EXAMPLES", "300"))
KILLS = 2 if "JAXRLS_EXAMPLES" not in os.environ else EXAMPLES // 100
drawn = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
MORE = 100e6  # bytes of memory beyond three times the file's own
PART = st.tuples(st.floats(0, 1), st.floats(0, 1))  # from where to where, as shares of the file


def model():
    kernel = 0.5 * rls.Gaussian(np.array([1.0, 2.0], np.float16)) + rls.Linear()
    return rls.Model(kernel, np.ones((3, 2)), np.arange(1.0, 4.0), np.array(0.5))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model's bytes, and a place for other bytes."""
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    rls.save(path, model(), extra={"names": ["a", "größe"]})
    return path.read_bytes(), path


@contextmanager
def little_memory(path):
    """Memory grows by no more than what a file of this size may take (Linux counts it)."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = memory_of("VmRSS")
    yield
    assert memory_of("VmHWM") - before < 3 * path.stat().st_size + MORE


def memory_of(what):
    words = Path("/proc/self/status").read_text().split()
    return 1024 * int(words[words.index(f"{what}:") + 1])


def holds_or_is_refused(path, data):
    path.write_bytes(data)
    try:
        with little_memory(path):
            found = rls.load(path, with_extra=True)
    except ValueError as error:
        assert str(error).startswith(f"{path} was not written by") and "\n" not in str(error)
    else:
        assert found == (model(), {"names": ["a", "größe"]})


def test_every_bit_of_a_header_matters(saved):
    """All of them where more examples than bits are asked for."""
    data, path = saved
    bits = 8 * (8 + int.from_bytes(data[:8], "little"))
    for bit in np.random.default_rng(0).permutation(bits)[: 4 * EXAMPLES].tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        holds_or_is_refused(path, flipped)


@drawn
@given(st.data())
def test_mutated_models(saved, data):
    content, path = saved
    holds_or_is_refused(path, mutated(data, content))


def mutated(data, content):
    """Bytes cut, repeated, swapped or overwritten, once or more."""
    for _ in range(data.draw(st.integers(1, 3))):
        a, b = sorted(int(share * len(content)) for share in data.draw(PART))
        part = content[a:b]
        content = data.draw(
            st.sampled_from(
                [
                    content[:a],
                    content[:a] + content[b:],
                    content[:b] + part + content[b:],
                    content[b:] + part + content[:a],
                    content[:a] + data.draw(st.binary(max_size=9)) + content[b:],
                ]
            )
        )
    return content


SAVES = """
import sys, numpy as np, jaxrls as rls
coefs = [np.full(10**6, value) for value in (1.0, 2.0)]
models = [rls.Model(rls.Linear(), None, coef, np.array(0.0)) for coef in coefs]
rls.save(sys.argv[1], models[0])
print("begun", flush=True)
while True:
    for model in models:
        rls.save(sys.argv[1], model)
"""


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_kill_leaves_an_old_or_a_new_file(kill, tmp_path):
    path = tmp_path / "model.safetensors"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", SAVES, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(np.random.default_rng(kill).uniform(0, 0.05))
        process.kill()
    coef = rls.load(path).coef
    assert coef.shape == (10**6,) and coef[0] in (1.0, 2.0) and (coef == coef[0]).all()


TABLE = "a,b,w,y\n" + "".join(f"{i},{i * i % 7}.5,{1 + i % 3},{i % 5}\n" for i in range(40))
FIT = ("--kernel", "linear", "--lams", "2")
SUFFIXES = (".csv", ".gz", ".parquet", ".arrow", ".npy", ".npz")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table as bytes of every kind of file."""
    folder = tmp_path_factory.mktemp("tables")
    columns = np.array([line.split(",") for line in TABLE.split()[1:]], float)
    for ending in (".csv", ".csv.gz", ".parquet", ".arrow", ".npy", ".npz"):
        path = folder / f"t{ending}"
        if ending == ".csv.gz":
            path.write_bytes(gzip.compress(TABLE.encode()))
        elif ending == ".npz":
            np.savez(path, X=columns[:, :3], y=columns[:, 3])
        else:
            with writing(path) as out:
                out(dict(zip("abwy", columns.T, strict=True)))
    for path in folder.iterdir():
        assert not said("fit", path, *FIT, "--out", f"{path}.safetensors")
    return {path: path.read_bytes() for path in folder.glob("t*") if path.suffix in SUFFIXES}


def said(*words):
    """The exit code of the command line, which tells of an error in one line."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an error above 1e154 has no square
        code = main(list(map(str, words)))
    lines = errors.getvalue().splitlines()
    assert all(line.startswith("jaxrls: ") for line in lines) and code in (0, 2)
    assert code == 0 or len(lines) == 1
    return code


@drawn
@given(st.data())
def test_mutated_tables(tables, data):
    path = data.draw(st.sampled_from(sorted(tables)))
    path.write_bytes(mutated(data, tables[path]))
    choice = Choice("y" if path.suffix not in (".npy", ".npz") else None, labels=None)
    with little_memory(path):
        said("fit", path, *FIT)
    with little_memory(path):
        if not said("predict", f"{path}.safetensors", path, "--out", f"{path}.out.npy"):
            assert np.isfinite(np.load(f"{path}.out.npy")).all()
    try:
        with warnings.catch_warnings(), little_memory(path):
            warnings.simplefilter("ignore")
            for piece, _ in open_files((str(path),), choice).parts():
                assert np.isfinite(piece.X).all() and piece.X.ndim == 2
    except ValueError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
