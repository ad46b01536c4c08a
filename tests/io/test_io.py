"""Saved and loaded: bit for bit, without pickle, whole or not at all."""

import json
import os
import stat
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from support import ANY_PRECISION, refused

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.support import pytrees
from jaxrls.front import without_solution
from jaxrls.rows import files

pytestmark = ANY_PRECISION  # files of both, whatever the switch says


def assert_same(a, b):
    """Equal structure, static fields, dtypes and bits."""
    (left, tree), (right, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    assert tree == other
    for x, y in zip(left, right, strict=True):
        assert type(x) not in (bool, int, float) or type(x) is type(y)
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def problem(t=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 2))
    Y = np.sin(X[:, :1] * np.arange(1, (t or 1) + 1)) + 0.1 * rng.normal(size=(25, t or 1))
    return X, Y[:, 0] if t is None else Y


@extend.pytree
class Own(rls.extend.Kernel):
    """A kernel of a user's, with every kind of field, some named like arguments of others."""

    width: object
    power: int = extend.static(default=2)
    header: tuple = ()
    file: object = None

    def __call__(self, X, Z):
        return (X @ Z.T / self.width) ** self.power

    def diag(self, X):
        return ((X * X).sum(1) / self.width) ** self.power


class Undecorated(rls.Gaussian):
    pass


KERNELS = [
    rls.Linear(),
    rls.Gaussian(2),
    rls.Gaussian(np.array([1.0, np.pi])),
    rls.Matern(1.5, np.float16(2.0)),
    0.5 * rls.Gaussian(1e-300) + rls.Linear() * rls.Matern(2.5, 5e-324).on([0, -1]),
    Own(
        np.zeros((0, 3)),
        3,
        (rls.Linear(), 1.0, [True, "text", np.ones(2, np.float16)]),
        np.arange(3),
    ),
    extend.Landmarks(jnp.arange(4), jnp.ones((4, 2), jnp.float32), None),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_kernels_round_trip(kernel, tmp_path):
    rls.save(tmp_path / "k", kernel)
    assert_same(kernel, rls.load(tmp_path / "k"))


def test_fits_and_models_round_trip(tmp_path):
    """Whatever the switch says when they are loaded."""
    X, Y = problem(3)
    fit = rls.fit(0.5 * rls.Gaussian(1.0) + Own(2.0), X, Y, lams=np.geomspace(1e-3, 1e6, 7))
    for obj in (fit, fit.model):
        rls.save(tmp_path / "o", obj)
        with jax.enable_x64(False):
            back = rls.load(tmp_path / "o")
        assert_same(without_solution(obj) if obj is fit else obj, back)
        assert_same(np.asarray(obj.predict(X)), np.asarray(back.predict(X)))
        place = "model.coef" if obj is fit else "coef"
        np.testing.assert_array_equal(load_file(tmp_path / "o")[place], fit.model.coef)


KEPT = {
    "all rows": (rls.Gaussian(1.0), None, False),
    "landmarks": (rls.Gaussian(1.0), np.arange(0, 25, 3), False),
    "linear, streamed": (rls.Linear(), None, True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "all rows" else pytest.mark.slow) for n in KEPT]
)
def test_what_a_fit_keeps_is_saved_where_it_was_asked_for(name, tmp_path):
    """What comes from the solution after a round trip is what came before it; a solution that was
    kept by default stays out of the file.
    """
    (X, y), (kernel, landmarks, streamed) = problem(), KEPT[name]
    data = (rls.rows.stream([(X, y)]), None) if streamed else (X, y)
    options = {"lams": [0.1], "landmarks": landmarks}
    asks = [
        lambda fit: fit.predict(X[:3] + 1, return_std=True)[1],
        lambda fit: fit.posterior(X[:3] + 1).covariance,
        lambda fit: fit.intervals(X[:3] + 1)[0],
        lambda fit: fit.loo_predictive().std,
    ]
    if name != "all rows":
        asks += [
            lambda fit: fit.update(X[:3] + 1, y[:3]).model.coef,
            lambda fit: fit.forget(X[:3], y[:3]).lam,
        ]
    fit = rls.fit(kernel, *data, keep=True, **options)
    rls.save(tmp_path / "fit", fit)
    back = rls.load(tmp_path / "fit")
    for ask in asks:
        np.testing.assert_allclose(ask(back), ask(fit), rtol=1e-9, atol=1e-12)
    rls.save(tmp_path / "fit", rls.fit(kernel, *data, **options))
    bare = rls.load(tmp_path / "fit")
    refused(
        (lambda: back.with_lam(1.0), "another λ needs the data, .* fit all rows again"),
        *[(partial(ask, bare), "kept no solution, .*: fit with keep=True") for ask in asks],
    )


def deep(depth):
    nest: list = []
    for _ in range(depth):
        nest = [nest]
    return nest


REFUSED = [
    (2.0 * Undecorated(1.0), None, "and is of type Undecorated"),
    (3, None, "obj must be a kernel, a model or a result"),
    (Own(range(3)), None, "width must be an array, .* and is of type range"),
    (Own(1j * np.ones(2)), None, "width is an array of dtype complex128"),
    (rls.Linear() + rls.FunctionKernel(lambda X, Z: X @ Z.T), None, "Python function"),
    (rls.Linear(), {"a": np.ones(3)}, "extra must be a dictionary of what JSON"),
    (rls.Linear(), {"a": deep(200_000)}, "extra must be"),
    (rls.Linear(), {"a": "a" * 60_000_000}, "would have a header of"),
]


@pytest.mark.parametrize(("obj", "extra", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_a_file_cannot_hold_is_refused(obj, extra, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        rls.save(tmp_path / "k", obj, extra=extra)
    assert os.listdir(tmp_path) == []


def test_extra_goes_along(tmp_path):
    extra = {"columns": ["größe"], "means": [0.1, 1e300], "classes": None, "nested": {"a": [True]}}
    rls.save(tmp_path / "k", rls.Linear(), extra=extra)
    assert rls.load(tmp_path / "k", with_extra=True) == (rls.Linear(), extra)


def test_predictions_of_classes_are_written_with_their_scores(tmp_path):
    """With the classes that `encode` returned: two have one column of scores, three have three."""
    x = np.linspace(0, 1, 12)[:, None]
    for labels in (np.repeat(["no", "yes"], 6), np.repeat(["a", "b", "c"], 4)):
        codes, classes = rls.classes.encode(labels)
        fit = rls.fit(rls.Gaussian(0.2), x, codes, lams=[0.1])
        path = tmp_path / "predictions.csv"
        rls.predict_to_file(fit, x, path, classes=classes)
        written = pd.read_csv(path)
        assert list(written["prediction"]) == list(labels)
        scores = ["score"] if len(classes) == 2 else [f"score_{name}" for name in classes]
        assert list(written.columns[1:]) == scores


def test_intervals_of_weighted_rows_are_those_of_the_fit(tmp_path):
    """Of a stream, and of a source of one's own, in blocks of several sizes."""
    x, y = problem()
    weights = np.random.default_rng(1).uniform(0.2, 5, len(x))
    fit = rls.fit(rls.Gaussian(1.0), x, y, weights=weights, lams=[0.1])
    pieces = slice(0, 7), slice(7, 7), slice(7, 12), slice(12, None)

    class Own(rls.rows.Rows):
        shape, dtype, row_weights = x.shape, x.dtype, weights
        blocks = lambda self: (x[piece] for piece in pieces)

    streamed = rls.rows.stream([(x[piece], y[piece], weights[piece]) for piece in pieces])
    ends = fit.intervals(x, 0.8, weights=weights)
    assert not np.allclose(ends, fit.intervals(x, 0.8))
    for rows in streamed, Own():
        rls.predict_to_file(fit, rows, tmp_path / "new.csv", level=0.8)
        written = pd.read_csv(tmp_path / "new.csv")
        np.testing.assert_allclose(written[["lower", "upper"]].T, ends, rtol=1e-12)


def test_classes_are_those_that_are_known(tmp_path):
    """No module is imported for the caller: a file must not choose what runs."""
    rls.save(tmp_path / "k", 2.0 * Own(1.0))
    words = f"the unknown class {__name__}.Own: import the module"
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(pytrees.REGISTRY, f"{__name__}.Own")
        with pytest.raises(ValueError, match=words):
            rls.load(tmp_path / "k")

    def define():
        return extend.pytree(
            type("Again", (), {"__module__": __name__, "__annotations__": {"value": float}})
        )

    old, new = define()(1.0), define()(1.0)
    rls.save(tmp_path / "k", new)
    assert rls.load(tmp_path / "k") == new
    words = "a class under jaxrls.extend.pytree as it is defined now, and is of type Again"
    with pytest.raises(ValueError, match=words):
        rls.save(tmp_path / "k", old)


def test_an_old_file_is_replaced_whole(tmp_path):
    path, link = tmp_path / "model", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(ValueError, match="Python function"):
        rls.save(path, rls.FeatureMap(jnp.cos))
    assert path.read_text() == "old"
    rls.save(str(link), rls.Linear())
    assert link.is_symlink() and rls.load(path) == rls.Linear()
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o640
    full = lambda file: (_ for _ in ()).throw(OSError("disk full"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="disk full"):
            rls.save(path, rls.Gaussian(1.0))
    assert rls.load(path) == rls.Linear() and sorted(os.listdir(tmp_path)) == ["link", "model"]
    for place in (tmp_path, tmp_path / "no" / "k"):
        with pytest.raises(ValueError, match="not an ordinary file in a folder that exists"):
            rls.save(place, rls.Linear())
    with pytest.raises(ValueError, match="3 was not written"):
        rls.load(3)  # which would close whatever has this number


def rewrite(path, change):
    """Change a file's header, its checksum with it."""
    arrays, header = files.read_arrays(path)
    change(header)
    files.write_arrays(path, arrays, header)


def tree(**fields):
    return lambda header: header["tree"]["fields"].update(fields)


WRONG = [
    lambda h: h["tree"].update({"class": "os.system"}),
    lambda h: h.update(tree={"class": "FunctionKernel", "fields": {"fn": "os.system"}}),
    lambda h: h.update(tree=3),
    lambda h: h.pop("tree"),
    tree(width={"array": "absent"}),
]


@pytest.mark.parametrize("change", WRONG)
def test_forged_headers_are_told(change, tmp_path):
    rls.save(tmp_path / "k", rls.Gaussian(np.arange(1.0, 100.0)))
    rewrite(tmp_path / "k", change)
    with pytest.raises(ValueError, match="k was not written by jaxrls.save, or") as told:
        rls.load(tmp_path / "k")
    assert "\n" not in str(told.value)


def foreign(path, **header):
    save_file({"a": np.ones(3)}, path, {"jaxrls": json.dumps(header)})


FOREIGN = {
    "header": lambda path: path.write_bytes(b""),
    "JSON|header": lambda path: path.write_text("hello world, " * 9),
    "no 'jaxrls'": lambda path: save_file({"a": np.ones(3)}, path),
    "no 'version'": foreign,
    "format is 1, and this jaxrls reads 5: fit and save again": partial(foreign, version=1),
    "format is 6, and this jaxrls reads 5: upgrade jaxrls": partial(foreign, version=6),
    "its version is '3', and must be a whole number": partial(foreign, version="3"),
    "its version is None, and must be a whole number": partial(foreign, version=None),
    "checksum": partial(foreign, version=5, checksum=0, header={}),
}


@pytest.mark.parametrize("words", FOREIGN)
def test_foreign_and_newer_files_are_told(words, tmp_path):
    FOREIGN[words](tmp_path / "a")
    with pytest.raises(ValueError, match=f"a was not written by .*({words})"):
        rls.load(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        rls.load(tmp_path / "none")


def test_models_that_no_fit_can_have_made_are_not_loaded(tmp_path):
    """As from a file made by hand, whose checksum is right."""
    X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    model = rls.extend.Model(rls.Gaussian(1.0), X, jnp.asarray(np.ones(5)), jnp.asarray(0.0))
    path = tmp_path / "model"
    wrong = {
        "its kernel is a str": {"kernel": "hello"},
        r"its coefficients have shape \(4,\), and do not fit": {"coef": jnp.asarray(np.ones(4))},
        "its coefficients are not finite": {"coef": jnp.asarray(np.full(5, np.nan))},
    }
    for words, change in wrong.items():
        rls.save(path, replace(model, **change))
        with pytest.raises(ValueError, match=words):
            rls.load(path)
