"""Saved and loaded: bit for bit, without pickle, whole or not at all."""

import io
import json
import os
import pickle
import re
import stat
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrls as rls
from jaxrls.support import files, pytrees

pytestmark = pytest.mark.any_precision  # files of both, whatever the switch says
FIXTURE = Path(__file__).parent / "fixtures" / "fit-0.1.0.npz"


def leaves_and_tree(obj):
    leaves, tree = jax.tree.flatten(obj)
    return leaves, tree


def assert_same(a, b):
    """Equal structure, static fields, dtypes and bits."""
    (left, tree), (right, other) = leaves_and_tree(a), leaves_and_tree(b)
    assert tree == other
    for x, y in zip(left, right, strict=True):
        if type(x) in (bool, int, float):
            assert type(x) is type(y) and x == y
        else:
            x, y = np.asarray(x), np.asarray(y)
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def problem(n=25, d=2, t=None, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(dtype)
    Y = np.sin(X[:, :1] * np.arange(1, (t or 1) + 1)) + 0.1 * rng.normal(size=(n, t or 1))
    Y = Y[:, 0] if t is None else Y
    return X, Y.astype(dtype)


KERNELS = [
    rls.Linear(),
    rls.Polynomial(3, 0.5),
    rls.Gaussian(0.1 + 0.2),
    rls.Gaussian(2),
    rls.Gaussian(np.array([1.0, np.pi])),
    rls.Gaussian(jnp.array([1.0, 2.0], jnp.bfloat16)),
    rls.Laplacian(np.float32(0.1)),
    rls.Matern(1.5, np.float16(2.0)),
    rls.RationalQuadratic(1.0, np.array(0.3)),
    rls.Periodic(3.0, 1.0),
    rls.Matern(np.float64(1.2), 2.0),
    rls.ChiSquared(np.array([1.0, 2.0])) + rls.Constant(0.3) * rls.Cosine(),
    rls.Sobolev().on(1),
    rls.Precomputed(),
    0.5 * rls.Gaussian(1e-300) + rls.Linear() * rls.Matern(2.5, 5e-324).on([0, -1]),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_kernels_round_trip(kernel, tmp_path):
    rls.save(tmp_path / "k.npz", kernel)
    assert_same(kernel, rls.load(tmp_path / "k.npz"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("t", [None, 1, 3])
def test_fits_models_and_paths_round_trip(dtype, t, tmp_path):
    X, Y = problem(t=t, dtype=dtype)
    lams = np.array([1e-2, 1e-1, 1.0, 1e1], dtype)
    with jax.enable_x64(dtype == np.float64):
        kernel = dtype(0.5) * rls.Gaussian(dtype(1.0)) + rls.Linear().on(0)
        factor = rls.factorize(kernel, jnp.asarray(X), intercept=True)
        path = rls.path(factor, jnp.asarray(Y), jnp.asarray(lams))
        fit = rls.fit(kernel, X, Y, lams=np.geomspace(1e-3, 1e6, 7).astype(dtype))
    for obj in (fit, fit.model, path):
        rls.save(tmp_path / "o.npz", obj)
        back = rls.load(tmp_path / "o.npz")
        assert_same(obj, back)
        if obj is not path:
            assert np.asarray(obj.predict(X)).tobytes() == np.asarray(back.predict(X)).tobytes()
            assert back.predict(X).dtype == dtype


def test_tuned_kernels_and_landmarks_round_trip(tmp_path):
    X, Y = problem()
    with jax.numpy_dtype_promotion("standard"):  # optax's L-BFGS mixes integer types
        tuned = rls.tune(rls.Gaussian(1.0), X, Y, steps=3)
    chosen = rls.Landmarks(jnp.arange(4), jnp.asarray(X[:4], jnp.float32), None)
    for obj in (tuned, chosen):
        rls.save(tmp_path / "o.npz", obj)
        assert_same(obj, rls.load(tmp_path / "o.npz"))


@rls.pytree
class Own(rls.Kernel):
    """A kernel of a user's, with every kind of field."""

    width: object
    power: int = rls.static(default=2)
    parts: tuple = ()

    def __call__(self, X, Z):
        return (X @ Z.T / self.width) ** self.power

    def diag(self, X):
        return ((X * X).sum(1) / self.width) ** self.power


class Undecorated(rls.Gaussian):
    pass


@pytest.mark.parametrize("kernel", [Own(2.0), 0.5 * Own(np.float64(3.0), 3, (rls.Linear(), 1.0)) + rls.Linear()], ids=repr)
def test_kernels_of_ones_own_round_trip(kernel, tmp_path):
    rls.save(tmp_path / "k.npz", kernel)
    assert_same(kernel, rls.load(tmp_path / "k.npz"))


def test_a_fit_of_ones_own_kernel_round_trips(tmp_path):
    X, Y = problem()
    fit = rls.fit(Own(2.0) + rls.Gaussian(1.0), X, Y)
    rls.save(tmp_path / "fit.npz", fit)
    assert rls.load(tmp_path / "fit.npz") == fit
    assert json.loads(np.load(tmp_path / "fit.npz")["header"].tobytes())["tree"]["fields"]["model"]["class"] == "Model"


def test_a_class_that_was_not_imported_is_named(tmp_path, monkeypatch):
    """Its module is not imported for the caller: a file must not choose what runs."""
    rls.save(tmp_path / "k.npz", 2.0 * Own(1.0))
    monkeypatch.delitem(pytrees.REGISTRY, f"{__name__}.Own")
    with pytest.raises(
        ValueError, match=f"k.npz holds an object of class {__name__}.Own, which is not known: import the module that defines"
    ):
        rls.load(tmp_path / "k.npz")


def test_a_check_of_ones_own_that_fails_is_a_value_error(tmp_path):
    @rls.pytree
    class Checked:
        value: float

        def __post_init__(self):
            1 / self.value  # noqa: B018

    rls.save(tmp_path / "fit.npz", Checked(1.0))
    rewrite(tmp_path / "fit.npz", lambda h: h["tree"]["fields"].update(value=0))
    with pytest.raises(ValueError, match="fit.npz was not written by jaxrls.save, or is damaged: division by zero"):
        rls.load(tmp_path / "fit.npz")


def test_an_object_of_a_class_that_was_defined_again_is_told(tmp_path):
    def define():
        @rls.pytree
        class Again:
            value: float

        return Again

    old, new = define()(1.0), define()(1.0)
    rls.save(tmp_path / "k.npz", new)
    assert rls.load(tmp_path / "k.npz") == new
    with pytest.raises(ValueError, match="the object to save is of a class Again that has been defined again since: make the object anew"):
        rls.save(tmp_path / "k.npz", old)


def test_static_numbers_of_numpy_are_kept_as_numbers(unchecked, tmp_path):
    rls.save(tmp_path / "k.npz", rls.Polynomial(np.int64(3)))
    assert rls.load(tmp_path / "k.npz") == rls.Polynomial(3)


@pytest.mark.parametrize(
    "obj", [Undecorated(1.0), 2.0 * Undecorated(1.0), 3, [rls.Linear()], "text", None, Own(range(3)), Own({"a": 1.0})], ids=repr
)
def test_what_is_not_in_the_list_is_refused(obj, tmp_path):
    with pytest.raises(ValueError, match="save takes|only the library's own classes"):
        rls.save(tmp_path / "k.npz", obj)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "obj", [rls.FeatureMap(jnp.cos), rls.Linear() + rls.FunctionKernel(lambda X, Z: X @ Z.T), Own(jnp.cos)], ids=["map", "sum", "own"]
)
def test_functions_are_refused_with_a_remedy(obj, tmp_path):
    with pytest.raises(ValueError, match="holds a Python function.*fit Linear"):
        rls.save(tmp_path / "k.npz", obj)
    assert os.listdir(tmp_path) == []


def test_lists_of_numbers_are_kept(unchecked, tmp_path):
    rls.save(tmp_path / "k.npz", rls.Gaussian([1.0, 2.0]))
    assert rls.load(tmp_path / "k.npz") == rls.Gaussian([1.0, 2.0])


def test_extra_goes_along(tmp_path):
    extra = {"columns": ["größe", "b"], "means": [0.1, 1e300], "classes": None, "nested": {"a": [1, True]}}
    rls.save(tmp_path / "k.npz", rls.Linear(), extra=extra)
    assert rls.load(tmp_path / "k.npz", with_extra=True) == (rls.Linear(), extra)
    with pytest.raises(ValueError, match="extra must hold"):
        rls.save(tmp_path / "k.npz", rls.Linear(), extra={"a": np.ones(3)})


def deep(depth):
    nest: list = []
    for _ in range(depth):
        nest = [nest]
    return nest


@pytest.mark.parametrize(
    "extra", [["a"], "a", [], 3, {"a": deep(5000)}, {"a": 10**5000}], ids=["list", "text", "none", "number", "deep", "long"]
)
def test_extra_that_could_not_be_loaded_is_refused_at_save(unchecked, extra, tmp_path):
    with pytest.raises(ValueError, match="extra must"):
        rls.save(tmp_path / "k.npz", rls.Linear(), extra=extra)
    assert os.listdir(tmp_path) == []


def test_an_object_that_could_not_be_loaded_is_refused_at_save(tmp_path):
    kernel = rls.Linear()
    for _ in range(2000):
        kernel = pytrees.REGISTRY["Scaled"](1.0, kernel)
    with pytest.raises(ValueError, match="the object to save"):
        rls.save(tmp_path / "k.npz", kernel)
    assert os.listdir(tmp_path) == []


@rls.pytree
class Awkward:
    """Fields with the names of NumPy's own arguments, and of the archive's own member."""

    file: object
    header: object
    allow_pickle: object


def test_fields_of_any_name_round_trip(tmp_path):
    obj = Awkward(np.ones(2), np.arange(3), np.zeros(1))
    rls.save(tmp_path / "k.npz", obj)
    assert_same(obj, rls.load(tmp_path / "k.npz"))


def test_the_name_is_kept_and_an_old_file_is_replaced_whole(tmp_path):
    path = tmp_path / "model"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="Python function"):
        rls.save(path, rls.FeatureMap(jnp.cos))
    assert path.read_text() == "old"
    rls.save(str(path), rls.Linear())
    assert rls.load(path) == rls.Linear()
    assert os.listdir(tmp_path) == ["model"]
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.npz"
    rls.save(path, rls.Linear())
    before = path.read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        rls.save(path, rls.Gaussian(1.0))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.npz"]


def test_places_that_cannot_hold_a_file(tmp_path):
    with pytest.raises(ValueError, match="not an ordinary file"):
        rls.save(tmp_path, rls.Linear())
    with pytest.raises(ValueError, match="no folder"):
        rls.save(tmp_path / "no" / "model.npz", rls.Linear())


def test_links_are_followed(tmp_path):
    target, link = tmp_path / "a.npz", tmp_path / "b.npz"
    rls.save(target, rls.Linear())
    link.symlink_to(target)
    rls.save(link, rls.Gaussian(1.0))
    assert link.is_symlink()
    assert rls.load(target) == rls.Gaussian(1.0)


# what killed processes leave behind


WRITER = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
with files.replacing(sys.argv[2]) as file:
    file.write(b"slow")
    file.flush()
    print("started", flush=True)
    sys.stdin.readline()
"""


def start_writing(path):
    """Another process that has begun to write, and goes on when told so."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, files.__file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    return process


needs_locks = pytest.mark.skipif(files.fcntl is None, reason="where there are no locks, orphans stay for a week")


@needs_locks
def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    with start_writing(tmp_path / "model.npz") as process:
        process.kill()
    (orphan,) = os.listdir(tmp_path)
    assert f"-{process.pid}-" in orphan
    rls.save(tmp_path / "other.npz", rls.Linear())
    assert os.listdir(tmp_path) == ["other.npz"]


@needs_locks
def test_no_save_removes_what_a_living_one_writes(tmp_path):
    process = start_writing(tmp_path / "slow.npz")
    with files.replacing(tmp_path / "mine.npz") as file:  # of another process, and one of this
        rls.save(tmp_path / "other.npz", rls.Linear())
        assert len([name for name in os.listdir(tmp_path) if name.startswith(files.PREFIX)]) == 2
        file.write(b"mine")
    process.communicate("go on\n", timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["mine.npz", "other.npz", "slow.npz"]
    assert (tmp_path / "slow.npz").read_bytes() == b"slow"


def test_files_of_other_hosts_are_left_alone_for_a_week(tmp_path):
    """Whether a lock reaches them is up to the file system."""
    names = [f"{files.PREFIX}00000000-1-aa", f"{files.PREFIX}0123456789abcdef", f"{files.PREFIX}{files.kernel_tag()}x-1-aa"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / f"{files.PREFIX}folder").mkdir()
    rls.save(tmp_path / "k.npz", rls.Linear())
    assert set(names) < set(os.listdir(tmp_path))
    week_ago = time.time() - 8 * 24 * 3600
    for path in tmp_path.iterdir():
        os.utime(path, (week_ago, week_ago))
    rls.save(tmp_path / "k.npz", rls.Linear())
    assert sorted(os.listdir(tmp_path)) == [f"{files.PREFIX}folder", "k.npz"]


def test_where_there_are_no_locks_files_are_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    for width in (1.0, 2.0):
        rls.save(tmp_path / "kernel.npz", rls.Gaussian(width))
        assert rls.load(tmp_path / "kernel.npz") == rls.Gaussian(width)
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.npz"]


def test_where_a_running_kernel_has_no_name_the_host_has_one(monkeypatch):
    known = files.kernel_tag()
    monkeypatch.setattr(files.Path, "read_bytes", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert re.fullmatch("[0-9a-f]{8}", files.kernel_tag()) and files.kernel_tag() == files.kernel_tag() != known


@needs_locks
def test_a_file_taken_for_an_orphan_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    flock, calls = files.fcntl.flock, []

    def late(file, operation):
        calls.append(file.name)
        if len(calls) == 1:
            os.unlink(file.name)  # another process was faster
        flock(file, operation)

    monkeypatch.setattr(files.fcntl, "flock", late)
    rls.save(tmp_path / "k.npz", rls.Linear())
    assert len(calls) == 2 and os.listdir(tmp_path) == ["k.npz"]


# files that are not what they should be


def written(tmp_path, obj=None):
    path = tmp_path / "fit.npz"
    rls.save(path, rls.Gaussian(np.arange(1.0, 100.0)) if obj is None else obj)
    return path


def test_every_truncation_is_an_error(tmp_path):
    data = written(tmp_path).read_bytes()
    short = tmp_path / "short.npz"
    for length in [0, 1, 4, 30, *range(100, len(data), 97), len(data) - 1]:
        short.write_bytes(data[:length])
        with pytest.raises(ValueError, match="short.npz"):
            rls.load(short)


def test_flipped_bits_never_end_in_anything_but_a_value_error(tmp_path):
    path = written(tmp_path)
    data, original = path.read_bytes(), rls.load(path)
    rng = np.random.default_rng(0)
    for i in rng.integers(0, len(data), 300):
        broken = bytearray(data)
        broken[i] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            assert_same(rls.load(path), original)  # some bits, such as a time stamp, do not matter
        except ValueError as error:
            assert "fit.npz" in str(error)


def test_every_bit_of_the_headers_of_arrays_is_checked(tmp_path):
    """A flipped bit there gave a wrong shape, as NumPy stops reading at the last number that the header declares."""
    obj = rls.Model(rls.Linear(), None, np.arange(3999.0), np.array(0.5))  # more than zipfile reads at once
    path = written(tmp_path, obj)
    data, original = path.read_bytes(), rls.load(path)
    starts = [match.start() for match in re.finditer(re.escape(b"\x93NUMPY"), data)]
    assert len(starts) == 3
    for i in range(starts[1], starts[1] + 128):  # fuzz/archives.py takes all of them
        for bit in range(8):
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :])
            try:
                assert_same(rls.load(path), original)
            except ValueError as error:
                assert "fit.npz was not written by jaxrls.save, or is damaged" in str(error)


def forge(path, **members):
    """Write an archive whose checksums are right, its members' bytes as given."""
    with zipfile.ZipFile(path, "w", members.pop("method", zipfile.ZIP_STORED)) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def member(array, header=None):
    """An array's bytes in NumPy's format, with a header of one's own."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    if header is None:
        return file.getvalue()
    text = header.encode() + b" " * (118 - len(header) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()


def model_members(header=None):
    text = json.dumps(
        {"format": "jaxrls", "format_version": 1, "tree": {"class": "Gaussian", "fields": {"width": {"array": "width"}}}, "extra": {}}
    )
    return {"header": member(np.frombuffer(text.encode(), np.uint8)), "width": member(np.arange(1.0, 7.0), header)}


HEADERS = [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (7,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -3), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 6), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': 6, }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': None, }",
    "{'descr': '<f8', 'fortran_order': 2, 'shape': (6,), }",
    "{'descr': 3, 'fortran_order': False, 'shape': (6,), }",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '<U0', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': 'no', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '<f8', 'fortran_order': False}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (6,), ",
    "  {'descr': '<f8',\n 'fortran_order': False, 'shape': (6,), }}",
    "'" * 3,
    "(" * 100,
    "[1, 2]",
    "6",
    "",
]


@pytest.mark.parametrize("header", HEADERS)
def test_forged_headers_of_arrays_are_told(header, tmp_path):
    path = tmp_path / "fit.npz"
    forge(path, **model_members("{'descr': '<f8', 'fortran_order': True, 'shape': (6,), }"))
    assert rls.load(path) == rls.Gaussian(np.arange(1.0, 7.0))
    forge(path, **model_members(header))
    with pytest.raises(ValueError, match="fit.npz was not written by jaxrls.save, or is damaged: width"):
        rls.load(path)


def test_archives_that_no_numpy_wrote_are_told(tmp_path):
    path = tmp_path / "fit.npz"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        forge(path, method=method, **model_members())
        with pytest.raises(ValueError, match="fit.npz was not written.* compressed in a way"):
            rls.load(path)
    forge(path, **model_members())
    data = bytearray(path.read_bytes())
    for start in (match.start() for match in re.finditer(re.escape(b"PK\x01\x02"), bytes(data))):
        data[start + 8] |= 1  # a password
    path.write_bytes(data)
    with pytest.raises(ValueError, match="fit.npz was not written"):
        rls.load(path)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for name, data in [*model_members().items(), ("width", member(np.ones(3)))]:
            archive.writestr(f"{name}.npy", data)
    with pytest.raises(ValueError, match="two of its members have one name"):
        rls.load(path)


def test_members_that_the_header_does_not_name_are_not_read(tmp_path):
    path = tmp_path / "fit.npz"
    forge(path, method=zipfile.ZIP_DEFLATED, **model_members(), more=member(np.zeros(2**23)))
    assert path.stat().st_size < 10**5
    assert rls.load(path) == rls.Gaussian(np.arange(1.0, 7.0))


@pytest.mark.parametrize("times", [1, 3], ids=["one", "many"])
def test_a_small_file_does_not_become_a_large_one(times, tmp_path):
    path = tmp_path / "fit.npz"
    names = [f"w{i}" for i in range(times)]
    tree = {"class": "Linear", "fields": {}}
    for name in names:
        tree = {"class": "Scaled", "fields": {"scale": {"array": name}, "kernel": tree}}
    text = json.dumps({"format": "jaxrls", "format_version": 1, "tree": tree, "extra": {}})
    zeros = member(np.zeros(3 * 2**20 // times))
    forge(path, method=zipfile.ZIP_DEFLATED, header=member(np.frombuffer(text.encode(), np.uint8)), **dict.fromkeys(names, zeros))
    with pytest.raises(ValueError, match=r"fit.npz has \d+ bytes and becomes more than 16777216 in memory.*max_inflation above \d+"):
        rls.load(path)
    assert isinstance(rls.load(path, max_inflation=2000), rls.Kernel)
    with pytest.raises(ValueError, match="max_inflation must be"):
        rls.load(path, max_inflation=0)


def test_a_member_that_holds_more_than_it_says_is_not_unpacked(tmp_path):
    """Its size is a claim in the archive's directory; in memory counts what it becomes."""
    path = tmp_path / "fit.npz"
    forge(path, method=zipfile.ZIP_DEFLATED, **model_members() | {"width": member(np.zeros(2**23))})
    data = bytearray(path.read_bytes())
    at = bytes(data).rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ValueError, match="fit.npz was not written"):
        rls.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_foreign_files(tmp_path):
    path = tmp_path / "a.npz"
    for write in (
        lambda: path.write_text("hello"),
        lambda: path.write_bytes(pickle.dumps({"a": 1})),
        lambda: np.savez(path, X=np.ones(3)),
        lambda: np.savez(path, header=np.ones(3)),
        lambda: np.savez(path, header=np.array([{}], dtype=object)),
        lambda: np.savez(path, header=np.frombuffer(b'{"format": "other"}', np.uint8)),
    ):
        write()
        with pytest.raises(ValueError, match="a.npz"):
            rls.load(path)
    with pytest.raises(FileNotFoundError):
        rls.load(tmp_path / "none.npz")


def rewrite(path, change):
    """Change a file's header."""
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays["header"].tobytes())
    change(header)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)


def nested(depth):
    tree = {"class": "Linear", "fields": {}}
    for _ in range(depth):
        tree = {"class": "Scaled", "fields": {"scale": 1.0, "kernel": tree}}
    return tree


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["tree"].update({"class": 3}),
        lambda h: h["tree"].update({"class": ["Gaussian"]}),
        lambda h: h["tree"].update({"class": "_Space"}),
        lambda h: h.update(tree={"class": "FunctionKernel", "fields": {"fn": "os.system"}}),
        lambda h: h["tree"].update({"class": "Kernel"}),
        lambda h: h["tree"]["fields"].update(more=1),
        lambda h: h["tree"].update(fields={}),
        lambda h: h["tree"].update(fields=[1]),
        lambda h: h["tree"].update(fields={"width": {"array": "absent"}}),
        lambda h: h["tree"].update(fields={"width": {"array": "width", "dtype": "no"}}),
        lambda h: h.update(tree=3),
        lambda h: h.update(tree={"tuple": [1]}),
        lambda h: h.update(extra=[]),
        lambda h: h.pop("tree"),
        lambda h: h.update(tree={"class": "Polynomial", "fields": {"degree": -1, "offset": 1.0}}),
    ],
)
def test_wrong_headers_are_told(change, tmp_path):
    path = written(tmp_path)
    rewrite(path, change)
    with pytest.raises(ValueError, match="fit.npz was not written"):
        rls.load(path)


def test_no_module_is_imported(tmp_path):
    path = written(tmp_path)
    for name in ("os.system", "this.s", "."):
        rewrite(path, lambda h, name=name: h["tree"].update({"class": name}))
        with pytest.raises(ValueError, match=re.escape(f"fit.npz holds an object of class {name}, which is not known")):
            rls.load(path)
    assert "this" not in sys.modules


def test_trees_too_deep_are_told(tmp_path):
    path = written(tmp_path)
    rewrite(path, lambda h: h.update(tree=nested(50)))
    assert isinstance(rls.load(path), rls.Kernel)
    text = json.dumps({"format": "jaxrls", "format_version": 1}).rstrip("}") + ', "tree": ' + "[" * 10**5 + "]" * 10**5 + "}"
    np.savez(path, header=np.frombuffer(text.encode(), np.uint8))
    with pytest.raises(ValueError, match="fit.npz was not written"):
        rls.load(path)


def test_newer_formats_ask_for_an_upgrade(tmp_path):
    path = written(tmp_path)
    rewrite(path, lambda h: h.update(format_version=2, jaxrls_version="9.0"))
    with pytest.raises(ValueError, match=re.escape("format 2, written by jaxrls 9.0")):
        rls.load(path)


def test_float64_survives_where_jax_has_its_switch_off(tmp_path):
    X, Y = problem()
    fit = rls.fit(rls.Gaussian(1.0), X, Y, lams=np.geomspace(1e-3, 1e6, 7))
    rls.save(tmp_path / "fit.npz", fit)
    np.save(tmp_path / "X.npy", X)
    code = "import numpy as np, jaxrls as rls; p = rls.load('fit.npz').predict(np.load('X.npy')); np.save('p.npy', p)"
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"} | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=120)
    assert np.load(tmp_path / "p.npy").dtype == np.float64
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), fit.predict(X), rtol=1e-12)


def test_a_file_of_version_0_1_0_loads():
    fit, extra = rls.load(FIXTURE, with_extra=True)
    gaussian = fit.model.kernel.left
    assert repr(fit.model.kernel) == repr(gaussian + rls.Linear().on(1))
    assert (float(gaussian.scale), float(gaussian.kernel.width)) == (0.5, 1.5)
    assert (fit.route, fit.criterion, float(fit.lam), extra["note"]) == ("gram", "loo", 0.01, "written by 0.1.0")
    assert fit.model.coef.dtype == np.float64 and fit.model.coef.shape == (12,)
    np.testing.assert_allclose(fit.predict(extra["X"]), extra["predictions"], rtol=1e-10)
