"""Sources of rows: sums and maps over blocks equal to those over all rows, whatever the rows are
made of, and errors for the caller.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jax_sparse
from support import DTYPE, EPS, array, assert_close, wide

import jaxrls as rls
from jaxrls.problem.fixed_effects import Intercept, NoEffects
from jaxrls.rows import sparse
from jaxrls.rows.rows import GramRows, MappedRows
from jaxrls.rows.sparse import SparseRows, as_rows, is_sparse, sparse_rows

N, D = 13, 4
TOLERANCE = 100 * EPS
X = wide(
    np.random.default_rng(0).normal(size=(N, D)) * (np.random.default_rng(1).random((N, D)) < 0.6)
)
V = wide(np.random.default_rng(2).uniform(0.5, 2, N))
PAIR = {"a": wide(np.random.default_rng(3).normal(size=(N, 2))), "none": None}
SQUARES = rls.FeatureMap(lambda X: jnp.concatenate([X, X * X], axis=1))


class Slabs(rls.Rows):
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


@rls.pytree
class Halves(rls.Rows):
    """A user's source without blocks, that goes into `jax.jit`: sum and map and some of its own."""

    top: jax.Array
    rest: jax.Array

    @property
    def shape(self):
        return len(self.top) + len(self.rest), self.top.shape[1]

    @property
    def dtype(self):
        return self.top.dtype

    def _both(self, fn, columns):
        k = len(self.top)
        part = lambda cut: jax.tree.map(lambda a: a[cut], columns)
        return fn(self.top, *part(slice(None, k))), fn(self.rest, *part(slice(k, None)))

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        return jax.tree.map(jnp.add, *self._both(fn, columns))

    def map(self, fn, *columns, temporaries=0, block_size=None):
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *self._both(fn, columns))

    def some(self, num):
        return self.top[:num]


def small_blocks(X):
    """A sparse matrix in blocks of 4 rows and a ragged one."""
    numbers, sparse.BLOCK_NUMBERS = sparse.BLOCK_NUMBERS, 4 * D
    try:
        return sparse_rows(X)
    finally:
        sparse.BLOCK_NUMBERS = numbers


def bcoo():
    return jax_sparse.BCOO.fromdense(array(X))


csr = scipy.sparse.csr_array(X.astype(DTYPE))
SOURCES = {
    "dense": rls.DenseRows(array(X)),
    "gram": GramRows(array(X)),
    "sparse": sparse_rows(csr),
    "sparse in blocks": small_blocks(csr),
    "sparse matrix of JAX": small_blocks(bcoo()),
    "mapped": MappedRows(rls.DenseRows(array(X)), SQUARES),
    "mapped sparse": small_blocks(csr).through(SQUARES),
    "in parts": rls.DenseRows(array(X), N),
    "on devices": rls.ShardedRows(array(X), N, count=N),
    "user's": Slabs(X),
    "user's in one block": Slabs(X, (N,)),
    "user's mapped": Slabs(X).through(SQUARES),
    "user's traceable": Halves(array(X[:9]), array(X[9:])),
}
TRACEABLE = [name for name, rows in SOURCES.items() if rows.traceable]
each = pytest.mark.parametrize("name", SOURCES)


def dense(name):
    """The rows as NumPy has them."""
    return np.hstack([X, X * X]) if "mapped" in name else X


def add_up(block, v, pair, missing):
    assert missing is None and pair["none"] is None and len(block) == len(v) == len(pair["a"])
    return {"gram": block.T @ (v[:, None] * block), "rest": (block.T @ pair["a"], jnp.sum(v))}


def by_row(block, v, pair, missing):
    assert missing is None and pair["none"] is None
    return {"sum": jnp.sum(block, axis=1) * v, "rest": (jnp.sin(block), pair["a"])}


COLUMNS = array(V), {"a": array(PAIR["a"]), "none": None}, None


def assert_tree(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda one, other: assert_close(one, other, TOLERANCE), got, want)


@each
def test_shape_and_dtype(name):
    assert SOURCES[name].shape == dense(name).shape and SOURCES[name].dtype == DTYPE


@each
@pytest.mark.parametrize(
    "hints", [{}, {"temporaries": 10**9}, {"block_size": 3}], ids=["plain", "wide", "blocks of 3"]
)
def test_a_sum_is_the_sum_over_all_rows(name, hints):
    assert_tree(SOURCES[name].sum(add_up, *COLUMNS, **hints), add_up(array(dense(name)), *COLUMNS))


@each
@pytest.mark.parametrize(
    "hints", [{}, {"temporaries": 10**9}, {"block_size": 3}], ids=["plain", "wide", "blocks of 3"]
)
def test_a_map_is_the_map_over_all_rows(name, hints):
    """In the order of the rows, whatever the blocks."""
    assert_tree(SOURCES[name].map(by_row, *COLUMNS, **hints), by_row(array(dense(name)), *COLUMNS))


@each
def test_without_columns(name):
    rows = SOURCES[name]
    assert_close(rows.sum(lambda block: jnp.sum(block, axis=0)), dense(name).sum(axis=0), TOLERANCE)
    assert_close(rows.map(lambda block: block), dense(name), TOLERANCE)


@each
def test_some_rows_are_rows(name):
    """At most as many as were asked for, each of them one of the rows."""
    for num in (1, 4, N + 5):
        some = np.asarray(SOURCES[name].some(num))
        assert 1 <= len(some) <= min(num, N) and some.shape[1] == dense(name).shape[1]
        assert all(np.isclose(dense(name), row, atol=TOLERANCE).all(axis=1).any() for row in some)


@pytest.mark.parametrize("name", TRACEABLE)
def test_rows_go_into_jit(name):
    """As arguments, read again without another compilation."""
    traced = []

    @jax.jit
    def run(rows, v):
        traced.append(1)
        return rows.sum(lambda block, v: v @ block, v), rows.map(
            lambda block, v: block * v[:, None], v
        )

    for factor in (1, 2):
        total, scaled = run(SOURCES[name], factor * COLUMNS[0])
        assert_close(total, factor * V @ dense(name), TOLERANCE)
        assert_close(scaled, factor * V[:, None] * dense(name), TOLERANCE)
    assert len(traced) == 1


@pytest.mark.parametrize("name", TRACEABLE)
def test_derivatives_in_the_columns(name):
    got = jax.grad(lambda v: jnp.sum(SOURCES[name].sum(lambda block, v: (v**2) @ block, v)))(
        COLUMNS[0]
    )
    assert_close(got, 2 * V * dense(name).sum(axis=1), TOLERANCE)


def test_derivatives_in_dense_rows():
    got = jax.grad(
        lambda X: rls.DenseRows(X).sum(lambda block: jnp.sum(jnp.sin(block)), block_size=4)
    )(array(X))
    assert_close(got, np.cos(X), TOLERANCE)


@pytest.mark.parametrize("name", ["dense", "gram", "mapped", "in parts", "on devices"])
def test_rows_by_number(name):
    assert_close(SOURCES[name].take(jnp.array([7, 0, 7])), dense(name)[[7, 0, 7]], TOLERANCE)


@pytest.mark.parametrize("name", ["user's", "user's mapped", "user's traceable"])
def test_rows_that_cannot_be_taken_by_number(name):
    with pytest.raises(ValueError, match="cannot be read by row numbers: give landmarks as points"):
        SOURCES[name].take(jnp.array([0]))


@each
def test_in_memory_or_not(name):
    """What is in memory can be made dense, and can make K of all pairs; nothing else can, and says
    so.
    """
    rows, kernel = SOURCES[name], rls.Linear()
    if rows.in_memory:
        assert_close(rows.dense(), X, TOLERANCE)
        return
    with pytest.raises(ValueError, match="dense"):
        rows.dense()
    with pytest.raises(ValueError, match="K of all pairs needs rows in memory"):
        rows.kernel_matrix(kernel)


def test_the_kernel_matrix():
    assert_close(SOURCES["dense"].kernel_matrix(rls.Linear(), 3), X @ X.T, TOLERANCE)
    K = GramRows(array(X @ X.T))
    assert K.kernel_matrix(rls.Precomputed()) is K.X
    with pytest.raises(ValueError, match="X, as the precomputed kernel matrix, must be square"):
        SOURCES["gram"].kernel_matrix(rls.Precomputed())
    with pytest.raises(ValueError, match="is not symmetric"):
        GramRows(array(X[:D])).kernel_matrix(rls.Precomputed())


@each
def test_features_of_rows(name):
    """Made once where rows are in memory, else whenever they are read."""
    rows = SOURCES[name]
    made = rows.features(SQUARES)
    want = np.hstack([dense(name), dense(name) ** 2])
    assert made.shape == want.shape and made.traceable == rows.traceable
    assert_close(made.map(lambda block: block), want, TOLERANCE)


# sparse
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        scipy.sparse.coo_array,
        scipy.sparse.dok_array,
    ],
)
def test_every_format_is_the_same_matrix(make):
    assert is_sparse(make(X)) and as_rows(rls.Linear(), make(X)).shape == (N, D)
    assert_close(small_blocks(make(X.astype(DTYPE))).map(lambda block: block), X, TOLERANCE)


def test_entries_that_are_named_twice_add_up():
    twice = scipy.sparse.coo_array(
        (np.array([1.0, 2.0], DTYPE), (np.array([0, 0]), np.array([1, 1]))), shape=(2, 2)
    )
    assert sparse_rows(twice).map(lambda block: block).tolist() == [[0, 3], [0, 0]]


def test_rows_and_matrices_without_entries():
    empty = scipy.sparse.csr_array((N, D), dtype=DTYPE)
    for rows in (sparse_rows(empty), small_blocks(empty)):
        assert not np.asarray(rows.map(lambda block: block)).any() and rows.shape == (N, D)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (scipy.sparse.csr_array((0, 3)), r"X is empty, with shape \(0, 3\)"),
        (
            scipy.sparse.csr_array(np.array([[1.0, np.nan]])),
            "X holds 1 stored values that are NaN or infinite",
        ),
        (
            scipy.sparse.csr_array(np.array([[np.inf, -np.inf]])),
            "X holds 2 stored values that are NaN or infinite",
        ),
        (
            jax_sparse.BCOO.fromdense(jnp.ones((2, 2, 2)), n_batch=1),
            "no batch and no dense dimensions",
        ),
    ],
)
def test_sparse_matrices_that_are_refused(X, words, unchecked):
    with pytest.raises(ValueError, match=words):
        sparse_rows(X)


def test_sparse_rows_are_cut_outside_of_jit(unchecked):
    with pytest.raises(ValueError, match="a sparse X must be given outside jax.jit"):
        jax.jit(lambda X: sparse_rows(X).sum(jnp.sum))(bcoo())


def test_sparse_rows_as_they_are():
    rows = SOURCES["sparse"]
    assert (
        isinstance(rows, SparseRows)
        and sparse_rows(rows) is rows
        and as_rows(rls.Linear(), rows) is rows
    )
    assert rows.astype(np.float32).dtype == np.float32


# a user's own
# ------------------------------------------------------------------------------------------------------------


class Nothing(rls.Rows):
    """A source that says nothing of itself."""


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda rows: rows.shape, r"Nothing must define shape = \(n, d\)"),
        (lambda rows: rows.dtype, "Nothing must define dtype"),
        (
            lambda rows: rows.sum(jnp.sum),
            r"Nothing must define blocks\(\), or sum and map and some",
        ),
        (lambda rows: rows.some(3), r"Nothing must define blocks\(\), or sum and map and some"),
    ],
)
def test_what_a_source_must_define(ask, words):
    with pytest.raises(TypeError, match=words):
        ask(Nothing())


@pytest.mark.parametrize("shape", [(N + 1, D), (N - 1, D)], ids=["fewer", "more"])
@pytest.mark.parametrize(
    "read",
    [lambda rows, v: rows.sum(jnp.sum), lambda rows, v: rows.map(lambda block: block)],
    ids=["sum", "map"],
)
def test_blocks_of_another_number_of_rows_than_said(read, shape):
    with pytest.raises(
        ValueError, match=f"Slabs says that it has {shape[0]} rows, and its blocks have ({N}|more)"
    ):
        read(Slabs(X, shape=shape), None)


@pytest.mark.parametrize("shape", [(N + 1, D), (N - 1, D)], ids=["fewer", "more"])
def test_the_same_with_columns(shape):
    """Before the parts of columns that do not fit are multiplied."""
    with pytest.raises(
        ValueError, match=f"Slabs says that it has {shape[0]} rows, and its blocks have"
    ):
        Slabs(X, shape=shape).sum(lambda block, v: v @ block, jnp.ones(shape[0], DTYPE))


def test_blocks_of_another_width_than_said(unchecked):
    with pytest.raises(
        ValueError, match=f"Slabs says that it has {D + 1} columns, and a block has shape"
    ):
        Slabs(X, shape=(N, D + 1)).sum(lambda block: jnp.sum(block, axis=0))


@pytest.mark.parametrize("shape", [(N, D + 1), (N + 1, D)])
def test_a_fit_on_blocks_of_another_shape_than_said(shape, unchecked):
    with pytest.raises(ValueError, match="Slabs says that it has"):
        rls.fit(rls.Linear(), Slabs(X, shape=shape), jnp.arange(shape[0], dtype=DTYPE))


def test_a_source_without_rows(unchecked):
    with pytest.raises(ValueError, match="Slabs says that it has 13 rows, and its blocks have 0"):
        Slabs(X, ()).sum(jnp.sum)
    with pytest.raises(ValueError, match="Slabs says that it has 13 rows, and its blocks have 0"):
        Slabs(X, ()).some(3)


def test_a_host_source_does_not_go_into_jit():
    with pytest.raises(TypeError):
        jax.jit(lambda rows: rows.sum(jnp.sum))(SOURCES["user's"])


# the door
# ----------------------------------------------------------------------------------------------------------------


def test_arrays_at_the_door():
    assert (
        type(as_rows(rls.Linear(), X)) is rls.DenseRows
        and type(as_rows(rls.Precomputed(), X)) is GramRows
    )
    assert as_rows(rls.Linear(), SOURCES["user's"]) is SOURCES["user's"]
    assert as_rows(rls.Linear(), [[1, 2], [3, 4]]).shape == (2, 2)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (
            np.ones(3),
            r"X must have shape \(n, d\), and has shape \(3,\): use X\[:, None\] for a single column",
        ),
        (
            np.ones((2, 2, 2)),
            r"X must have shape \(n, d\), and has shape \(2, 2, 2\): give one row per sample",
        ),
        (np.ones((0, 2)), "X is empty"),
        ([["a"]], "X must hold real numbers"),
        (np.ones((2, 2)) * 1j, "X must be real"),
    ],
)
def test_what_is_refused_at_the_door(X, words, unchecked):
    with pytest.raises(ValueError, match=words):
        as_rows(rls.Linear(), X)


def test_values_are_checked_where_they_are_known(unchecked):
    rls.DenseRows(array(X)).check(rls.Linear())
    with pytest.raises(
        ValueError, match="X holds 1 values that are NaN or infinite, the first at index"
    ):
        rls.DenseRows(array(X).at[3, 1].set(jnp.nan)).check(rls.Linear())


@pytest.mark.parametrize("kernel", [rls.Linear(), rls.Gaussian(1.5)], ids=["features", "points"])
def test_a_model_predicts_for_any_source_of_rows(kernel, rng):
    X, y, new = (
        array(rng.normal(size=(9, 3))),
        array(rng.normal(size=9)),
        rng.normal(size=(7, 3)) * (rng.uniform(size=(7, 3)) < 0.7),
    )
    model = rls.fit(kernel, X, y, lams=array([0.1])).model
    want = model.predict(array(new))
    assert_close(model.predict(Slabs(new, (3, 4))), want, 20 * EPS)
    assert_close(model.predict(scipy.sparse.csr_array(new)), want, 20 * EPS)


def test_sparse_rows_are_read_as_they_are_stored_by_kernels_and_dense_by_other_functions():
    rows = sparse_rows(csr)
    assert rows.read_by(rls.Gaussian(1.0)).as_stored and not rows.read_by(jnp.sin).as_stored


class Told(Slabs):
    """Rows that keep what they are told of numbers held beside each of theirs."""

    def map(self, fn, *columns, temporaries=0, block_size=None):
        self.told = temporaries
        return super().map(fn, *columns, temporaries=temporaries, block_size=block_size)


def test_a_reading_says_how_wide_its_temporaries_are():
    """By which blocks are chosen: those of k(x, points)."""
    rows, kernel = Told(X), rls.Gaussian(1.0)
    rls.factorize(kernel, rows, landmarks=array(X[:5]), route="cholesky").smoother(jnp.asarray(0.1))
    read = rows.told
    rls.Model(kernel, array(X[:4]), array(V[:4]), array(0.0)).predict(rows)
    assert (read, rows.told) == (5, 4)


def test_a_model_on_points_counts_the_columns_of_any_source():
    model = rls.Model(rls.Gaussian(1.0), array(X), array(V), array(0.0))
    with pytest.raises(
        ValueError, match=f"X must have {D} columns, the columns it was fitted on, and has 2"
    ):
        model.predict(Slabs(X[:, :2]))


def test_a_single_sparse_row():
    assert (sparse_rows(scipy.sparse.csr_array(wide(X[:1]))).map(lambda x: x) == array(X[:1])).all()


@pytest.mark.parametrize("weights", [None, V], ids=["plain", "weights"])
def test_moments_about_their_means(weights):
    """Sums of products about the means; the means themselves are the new origins, from which
    nothing is left.
    """
    v, Y = np.ones(N) if weights is None else weights, PAIR["a"]
    b, y = X - v @ X / v.sum(), Y - v @ Y / v.sum()
    given = None if weights is None else array(weights)
    fixed, options = Intercept(array(v.sum())), {"origin": array(X[:1])}
    rows, kernel = rls.DenseRows(array(X)), rls.Linear()
    found = jax.jit(
        lambda: rls.moments(rows, kernel, fixed, array(Y), given, **options).centred(fixed)
    )()
    assert_close(found.second, (v[:, None] * b).T @ b, TOLERANCE)
    assert_close(found.cross, (v[:, None] * b).T @ y, TOLERANCE)
    assert_close(found.square, np.sum(v[:, None] * y**2, axis=0), TOLERANCE)
    assert_close(found.trace, np.sum(v * np.sum(X**2, axis=1)), TOLERANCE)
    assert_close(found.origin, (v @ X / v.sum())[None], TOLERANCE)
    assert_close(found.label_origin, (v @ Y / v.sum())[None], TOLERANCE)
    assert not found.first.any() and not found.label.any()
    bare = rls.moments(rows, kernel, fixed, **options)
    assert bare.cross.shape == (D, 0) and bare.label.shape == (1, 0)
    none = rls.moments(rows, kernel, NoEffects(DTYPE), array(Y), given)
    assert_close(none.second, (v[:, None] * X).T @ X, TOLERANCE)
    assert_close(none.cross, (v[:, None] * X).T @ Y, TOLERANCE)
