"""Sources of rows: sums and maps over blocks equal to those over all rows, whatever the rows are
made of, and errors for the caller.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jax_sparse
from support import DTYPE, EPS, array, assert_close, refused, wide

import jaxrls as rls
from jaxrls.core.data.rows import GramRows, MappedRows, as_rows, kind_of
from jaxrls.core.kernels.block import as_dense
from jaxrls.core.kernels.given import GramBlock
from jaxrls.rows import sparse
from jaxrls.rows.sparse import SparseRows

N, D = 13, 4
TOLERANCE = 100 * EPS
RNG = np.random.default_rng(0)
X = wide(RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.6))
V, PAIR = wide(RNG.uniform(0.5, 2, N)), {"a": wide(RNG.normal(size=(N, 2))), "none": None}
LINEAR, SQUARES = rls.Linear(), rls.FeatureMap(lambda X: jnp.concatenate([X, X * X], axis=1))
CHI = rls.ChiSquared(1.0)


class Slabs(rls.rows.Rows):
    """A user's source: blocks of these numbers of rows, made on the host."""

    traceable = False

    def __init__(self, X, sizes=(5, 5, 3), shape=None):
        self.X, self.sizes, self.shown = array(X), sizes, shape or X.shape

    @property
    def shape(self):
        return self.shown

    @property
    def dtype(self):
        return self.X.dtype

    def blocks(self):
        start = 0
        for size in self.sizes:
            yield self.X[start : start + size]
            start += size


def small_blocks(X):
    """A sparse matrix in blocks of 4 rows and a ragged one."""
    numbers, sparse.BLOCK_NUMBERS = sparse.BLOCK_NUMBERS, 4 * D
    try:
        return SparseRows.read("X", X)
    finally:
        sparse.BLOCK_NUMBERS = numbers


def bcoo():
    return jax_sparse.BCOO.fromdense(array(X))


csr = scipy.sparse.csr_array(X.astype(DTYPE))
SOURCES = {
    "dense": rls.rows.DenseRows(array(X)),
    "gram": GramRows(GramBlock.of(array(X))),
    "sparse": SparseRows.read("X", csr),
    "sparse in blocks": small_blocks(csr),
    "sparse matrix of JAX": small_blocks(bcoo()),
    "mapped": MappedRows(rls.rows.DenseRows(array(X)), SQUARES),
    "in parts": rls.rows.DenseRows(array(X), N),
    "on devices": rls.rows.ShardedRows(array(X), N, count=N),
    "user's": Slabs(X),
    "user's mapped": Slabs(X).through(SQUARES),
}
each = pytest.mark.parametrize("name", SOURCES)


def dense(name):
    """The rows as NumPy has them."""
    return np.hstack([X, X * X]) if "mapped" in name else X


def add_up(block, v, pair, missing):
    assert missing is None and pair["none"] is None and len(block) == len(v) == len(pair["a"])
    block = as_dense(block)
    return {"gram": block.T @ (v[:, None] * block), "rest": (block.T @ pair["a"], jnp.sum(v))}


def by_row(block, v, pair, missing):
    assert missing is None and pair["none"] is None
    block = as_dense(block)
    return {"sum": jnp.sum(block, axis=1) * v, "rest": (jnp.sin(block), pair["a"])}


COLUMNS = array(V), {"a": array(PAIR["a"]), "none": None}, None


@each
@pytest.mark.parametrize(
    "hints", [{"temporaries": 10**9}, {"block_size": 3}], ids=["wide", "blocks of 3"]
)
def test_sums_and_maps_are_those_over_all_rows(name, hints):
    """In the order of the rows, whatever the blocks."""
    rows, every = SOURCES[name], array(dense(name))
    assert rows.shape == every.shape and rows.dtype == DTYPE
    for read, fn in ((rows.sum, add_up), (rows.map, by_row)):
        got, want = read(fn, *COLUMNS, **hints), fn(every, *COLUMNS)
        chex.assert_trees_all_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


@each
def test_some_rows_are_rows(name):
    """At most as many as were asked for, each of them one of the rows."""
    for num in (1, 4, N + 5):
        some = np.asarray(as_dense(SOURCES[name].few_rows(num)))
        assert 1 <= len(some) <= min(num, N) and some.shape[1] == dense(name).shape[1]
        assert all(np.isclose(dense(name), row, atol=TOLERANCE).all(axis=1).any() for row in some)


@each
def test_rows_by_number_and_whether_they_are_in_memory(name):
    """What is in memory can be made dense, and can make K of all pairs; nothing else can, and says
    so.
    """
    rows, words = SOURCES[name], "needs all rows in one array"
    if "sparse" not in name:
        taken = as_dense(rows.take(jnp.array([7, 0, 7])))
        assert_close(taken, dense(name)[[7, 0, 7]], TOLERANCE)
    if rows.in_memory:
        assert_close(rows.dense(), X, TOLERANCE)
        return
    refused((rows.dense, words))
    if not name.startswith("sparse"):
        refused((lambda: rls.extend.gram(rls.Linear(), rows), words))


@each
def test_features_of_rows(name):
    """Made once where rows are in memory, else whenever they are read."""
    rows = SOURCES[name]
    made = rows.feature_rows(SQUARES)
    want = np.hstack([dense(name), dense(name) ** 2])
    assert made.shape == want.shape and made.traceable == rows.traceable
    assert_close(made.map(lambda block: block), want, TOLERANCE)


# sparse
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csc_array", "coo_array"])
def test_every_format_is_the_same_matrix(form):
    """Entries that are named twice add up."""
    given = getattr(scipy.sparse, form)(X.astype(DTYPE))
    if form == "coo_array":
        parts = (np.tile(a, 2) for a in given.coords)
        given = scipy.sparse.coo_array((np.tile(given.data / 2, 2), tuple(parts)), shape=(N, D))
    assert kind_of(given) is SparseRows and as_rows(LINEAR, given).shape == (N, D)
    assert_close(small_blocks(given).map(as_dense), X, TOLERANCE)


class Nothing(rls.rows.Rows):
    """A source that says nothing of itself but its size."""

    shape, dtype = (2, 1), np.dtype(DTYPE)


ENTRIES = scipy.sparse.csr_array(np.array([[1.0, np.nan]]))
BATCHED = jax_sparse.BCOO.fromdense(jnp.ones((2, 2, 2)), n_batch=1)
BROKEN, OF_SUM = rls.rows.DenseRows(array(X).at[3, 1].set(jnp.nan)), partial(jnp.sum, axis=0)
LONG, LABELS = Slabs(X, shape=(N + 1, D)), np.arange(N + 1, dtype=DTYPE)
MODEL = rls.extend.Model(rls.Gaussian(1.0), array(X), array(V), array(0.0))
SHORT = "Slabs says that it has {} rows, and its blocks have {}"
# By what is asked, with the words of the refusal.
REFUSED = [
    (lambda: as_rows(LINEAR, scipy.sparse.csr_array((0, 3))), r"X is empty, with shape \(0, 3\)"),
    (lambda: as_rows(LINEAR, ENTRIES), "X.data holds 1 values that are NaN or infinite"),
    (lambda: as_rows(LINEAR, BATCHED), "no batch and no dense dimensions"),
    (
        lambda: jax.jit(lambda X: as_rows(LINEAR, X).sum(jnp.sum))(bcoo()),
        "a sparse X must be given outside jax.jit",
    ),
    (
        lambda: SOURCES["gram"].check(rls.Precomputed()),
        "X, as the precomputed kernel matrix, must be square",
    ),
    (
        lambda: GramRows(GramBlock.of(array(X[:D]))).check(rls.Precomputed()),
        "is not symmetric",
    ),
    (lambda: Slabs(X, ()).sum(jnp.sum), SHORT.format(N, 0)),
    (lambda: LONG.sum(jnp.sum), SHORT.format(N + 1, N)),
    (lambda: Slabs(X, shape=(N - 1, D)).map(jnp.sin), SHORT.format(N - 1, f"{N} or more")),
    (lambda: LONG.sum(lambda block, v: v @ block, LABELS), SHORT.format(N + 1, N)),
    (
        lambda: Slabs(X, shape=(N, D + 1)).sum(OF_SUM),
        f"Slabs says that it has {D + 1} columns, and a block has shape",
    ),
    (
        lambda: BROKEN.check(rls.Linear()),
        "X holds 1 values that are NaN or infinite, the first at index",
    ),
    (
        lambda: Slabs(np.where(np.arange(N)[:, None] < N - 1, abs(X), -1)).check(CHI),
        "ChiSquared is for X ≥ 0, such as counts, and the smallest input is -1",
    ),
    (
        lambda: MODEL.predict(Slabs(X[:, :2])),
        f"X must have {D} columns, the columns it was fitted on, and has 2",
    ),
    *(
        (lambda given=given: as_rows(LINEAR, given), words)
        for given, words in (
            (
                np.ones(3),
                r"X must have shape \(n, d\), and has shape \(3,\): use X\[None\] for one row",
            ),
            (np.ones((2, 2, 2)), r"and has shape \(2, 2, 2\): give one row per sample"),
            (np.ones((0, 2)), "X is empty"),
            (np.ones((2, 2)) * 1j, "X must be real"),
        )
    ),
    (lambda: Nothing().sum(jnp.sum), r"Nothing must define blocks\(\)"),
    (lambda: jax.jit(lambda rows: rows.sum(jnp.sum))(SOURCES["user's"]), "."),
]


def test_what_is_refused():
    refused(*REFUSED, error=(ValueError, TypeError))
