"""Rows from files and from iterables of blocks: the same fits as from memory, few readings, and
errors that name file and row.
"""

import gzip
from dataclasses import replace

import jax
import numpy as np
import pytest
from support import DTYPE, EPS, assert_close, of_covariance, of_landmarks

import jaxrls as rls
from jaxrls.io.writers import writing
from jaxrls.rows.streamed import Piece, in_blocks
from jaxrls.support.ahead import ahead

N, D = 90, 3
LAMS = [1e-2, 1e-1, 1.0]
KERNEL = rls.Gaussian(1.5)


def problem(seed=0, t=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)).astype(DTYPE)
    Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(N, t or 1))
    return X, (Y if t else Y[:, 0]).astype(DTYPE), rng.uniform(0.5, 2, N).astype(DTYPE)


class Blocks:
    """A source that counts how often it is read."""

    def __init__(self, *columns, sizes=(40, 7, 0, 43)):
        self.columns, self.stops, self.readings = columns, np.cumsum(sizes), 0

    def __iter__(self):
        self.readings += 1
        for start, stop in zip([0, *self.stops], self.stops, strict=False):
            yield tuple(column[start:stop] for column in self.columns)


@pytest.mark.filterwarnings("ignore:the chosen")
@pytest.mark.parametrize(
    ("kind", "weighted"), [("landmarks", True), ("points", False), ("features", True)]
)
def test_a_fit_is_that_of_the_same_rows_in_memory(kind, weighted):
    X, Y, v = problem(t=2)
    source = rls.stream(Blocks(X, Y, *[v] * weighted), block_size=32)
    chosen = {"landmarks": np.arange(0, N, 9), "points": X[::9] + DTYPE(0.01), "features": None}[
        kind
    ]
    kernel = rls.Linear() if kind == "features" else KERNEL
    options = {"lams": LAMS, "landmarks": chosen}
    route = {"route": "covariance"} if kind == "features" else {}
    got = rls.fit(kernel, source, **options, per_target=True)
    want = rls.fit(
        kernel, X, Y, weights=v if weighted else None, **options, **route, per_target=True
    )
    assert got.route == want.route
    bound = 200 * N * EPS / min(LAMS)
    for name in ("lam", "errors", "loo_residuals", "dof"):
        assert_close(getattr(got, name), getattr(want, name), bound, name)
    assert_close(got.predict(source), want.predict(X), bound, "predictions")


@pytest.mark.any_precision
@pytest.mark.parametrize(
    "options",
    [{"landmarks": np.arange(0, N, 9)}, {"route": "cholesky"}],
    ids=["landmarks", "cholesky"],
)
def test_some_pairs_are_left_out_as_of_the_same_rows_in_memory(options):
    """Those that are named, and of times those whose order is known, of one more reading each; all
    pairs in test_ranking.py.
    """
    X, Y, v = problem(t=2)
    blocks = Blocks(X, Y, v)
    kernel = KERNEL if "landmarks" in options else rls.Linear()
    sources = rls.stream(blocks, block_size=32), jax.numpy.asarray(X)
    one, other = (rls.factorize(kernel, rows, weights=v, **options).solve(Y) for rows in sources)
    readings, squared = blocks.readings, rls.PairsOut(loss=rls.squared_error)
    times = replace(squared, events=jax.numpy.asarray(np.arange(N) % 3 > 0, DTYPE))
    for criterion in (rls.PairsOut([[0, 89], [41, 3]], loss=rls.squared_error), times):
        got, want = (
            criterion.values(solution, np.asarray(LAMS, DTYPE), None) for solution in (one, other)
        )
        assert_close(got, want, 200 * N * EPS / min(LAMS))
    assert blocks.readings == readings + 2


@pytest.mark.any_precision
def test_rows_are_read_twice_for_all_errors_and_once_more_for_the_residuals_of_a_fit():
    X, Y, _ = problem(t=2)
    blocks = Blocks(X, Y)
    problem_of = rls.Problem.of(KERNEL, rls.stream(blocks), None, landmarks=10)
    assert blocks.readings == 1
    problem_of.errors(problem_of.solution(), np.geomspace(1e-3, 10, 50).astype(DTYPE))
    assert blocks.readings == 3
    rls.fit(KERNEL, rls.stream(blocks), landmarks=10, num=50)
    assert blocks.readings == 3 + 1 + 3
    rls.fit(KERNEL, rls.stream(blocks), landmarks=10, num=50, keep_variance=True, keep_moments=True)
    assert blocks.readings == 7 + 1 + 5


def test_landmarks_are_rows_of_the_sample_by_their_own_numbers():
    X, Y, _ = problem()
    source = rls.stream(Blocks(X, Y), sample=30)
    chosen = rls.Problem.of(KERNEL, source, None, landmarks=12).landmarks
    np.testing.assert_array_equal(chosen.points, X[np.asarray(chosen.indices)])
    assert len(set(chosen.indices.tolist())) == 12 and set(chosen.indices.tolist()) <= set(
        source.known.drawn.tolist()
    )
    with pytest.raises(ValueError, match=r"landmarks.*30"):
        rls.Problem.of(KERNEL, source, None, landmarks=31)


@pytest.mark.parametrize("standardize", [False, True])
def test_rows_by_number_come_from_the_sample_or_from_one_more_reading(standardize):
    """In the order that was asked for, doubles included, and by the measure of all rows; blocks may
    be bare arrays.
    """
    X, _, _ = problem()
    blocks = Blocks(X)
    source = rls.stream(blocks, sample=10, standardize=standardize)
    rows = np.concatenate([np.asarray(block) for block in source.blocks()])
    before, drawn = blocks.readings, np.asarray(source.known.drawn)
    np.testing.assert_array_equal(source.take(drawn[[3, 0, 3, 9]]), rows[drawn[[3, 0, 3, 9]]])
    assert blocks.readings == before
    asked = np.array([89, drawn[2], 0, 40, 39, 40, 46, 47])
    np.testing.assert_array_equal(source.take(asked), rows[asked])
    assert blocks.readings == before + 1
    bare = rls.stream([X[:40], X[40:]], sample=10)
    np.testing.assert_array_equal(bare.take(asked), X[asked])


@pytest.mark.parametrize("weighted", [False, True])
def test_landmarks_of_a_stream_are_those_of_its_sample(weighted):
    X, Y, v = problem()
    v = np.where(np.arange(N) < 50, v, 0).astype(DTYPE)
    key = jax.random.key(1)
    whole, part = (rls.stream(Blocks(X, Y, *[v] * weighted), sample=sample) for sample in (N, 40))
    options = {"weights": v} if weighted else {}
    got, want = (
        rls.landmarks(KERNEL, whole, 8, key=key),
        rls.landmarks(KERNEL, X, 8, key=key, **options),
    )
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.points, want.points)
    some = rls.landmarks(KERNEL, part, 8, key=key)
    np.testing.assert_array_equal(some.points, X[np.asarray(some.indices)])
    drawn = set(part.known.drawn.tolist())
    assert (
        set(some.indices.tolist()) <= (drawn & set(range(50)) if weighted else drawn)
        and some.trace_residual is None
    )


@pytest.mark.parametrize("rows", ["stream", "dense"])
def test_widths_come_from_a_streams_sample_as_from_an_array(rows):
    X, Y, _ = problem()
    X = X * np.array([1, 10, 100], DTYPE)
    source = rls.stream(Blocks(X, Y)) if rows == "stream" else rls.DenseRows(jax.numpy.asarray(X))
    for order in (1, 2):
        assert rls.median_distance(source, order=order, rows=40) == rls.median_distance(
            jax.numpy.asarray(X), order=order, rows=40
        )
    kernel = rls.Gaussian(np.ones(D, DTYPE)) + rls.Laplacian(1.0).on([0, 2])
    got, want = (rls.start_from_data(kernel, part) for part in (source, jax.numpy.asarray(X)))
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), got, want))
    part = rls.stream(Blocks(X, Y), sample=20)
    assert rls.median_distance(part) == rls.median_distance(part.candidates()[1])


@pytest.mark.any_precision
def test_every_row_has_the_same_chance_to_be_in_the_sample():
    rows = [(np.arange(start, start + 5.0)[:, None],) for start in range(0, 40, 5)]
    counts = np.zeros(40)
    for seed in range(400):
        counts[rls.stream(rows, sample=10, seed=seed).known.drawn] += 1
    assert np.abs(counts - 100).max() < 5 * np.sqrt(
        400 * 0.25 * 0.75
    )  # five standard deviations of a binomial


@pytest.mark.float64
def test_standardised_columns_have_mean_0_and_deviation_1_in_the_first_reading():
    X, Y, _ = problem()
    X = X * [1e3, 1e-3, 1.0] + [1e6, 0, 5]
    X[:, 2] = 5.0
    blocks = Blocks(X, Y)
    source = rls.stream(blocks, standardize=True)
    assert blocks.readings == 1
    Z = np.concatenate([np.asarray(block) for block in source.blocks()])
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(Z.std(axis=0), [1, 1, 0], atol=1e-9)
    again = rls.stream(Blocks(X[:20], sizes=(20,)), standardize=(source.means, source.scales))
    np.testing.assert_array_equal(next(iter(again.blocks())), Z[:20])


@pytest.mark.any_precision
def test_blocks_are_cut_to_one_size():
    arrays = [np.arange(a, b) for a, b in [(0, 3), (3, 3), (3, 10), (10, 11)]]
    assert [part.tolist() for part in in_blocks(arrays, 4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]


def test_one_program_for_all_blocks_of_a_reading():
    X, Y, _ = problem()
    source = rls.stream(Blocks(X, Y), block_size=30)
    traced = []
    source.sum(lambda x: traced.append(x.shape) or x.sum())
    assert traced == [(30, D)]


# files
# -------------------------------------------------------------------------------------------------------------------------


def write(folder, ending, X, Y, v, name="a"):
    path = folder / f"{name}{ending}"
    table = np.column_stack([X, v, Y])
    if ending == ".npy":
        np.save(path, table)
    elif ending == ".npz":
        np.savez(path, X=X, y=Y, v=v)
    elif ending in (".parquet", ".arrow"):
        names = [*(f"x{j}" for j in range(X.shape[1])), "v", "y"]
        with writing(path) as write_columns:
            write_columns(dict(zip(names, table.T, strict=True)))
    else:
        opener = gzip.open if ending.endswith(".gz") else open
        with opener(path, "wt") as file:
            file.write("x0,x1,x2,v,y\n")
            np.savetxt(file, table, delimiter=",", fmt="%.17g")
    return path


ENDINGS = (".npy", ".npz", ".csv", ".csv.gz", ".parquet", ".arrow")


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_hold_what_was_written(tmp_path, ending):
    X, Y, v = problem()
    for name, rows in (("b", slice(50, N)), ("a", slice(50))):
        write(tmp_path, ending, X[rows], Y[rows], v[rows], name)
    weights = -2 if ending == ".npy" else "v"
    for source in (
        tmp_path,
        str(tmp_path / f"*{ending}"),
        [tmp_path / f"a{ending}", str(tmp_path / f"b{ending}")],
    ):
        rows = rls.stream(source, weights=weights, block_size=64)
        assert rows.shape == (N, D)
        np.testing.assert_array_equal(
            np.concatenate([np.asarray(block) for block in rows.blocks()]), X
        )
        np.testing.assert_array_equal(rows.labels, Y)
        np.testing.assert_array_equal(rows.row_weights, v)


@pytest.mark.any_precision
@pytest.mark.parametrize("ending", [".npy", ".csv", ".parquet"])
def test_columns_by_name_or_number(tmp_path, ending):
    X, Y, v = problem()
    path = write(tmp_path, ending, X, Y, v)
    names = [0, 2, [4, 1]] if ending == ".npy" else ["x0", "x2", ["y", "x1"]]
    rows = rls.stream(path, columns=names[:2], target=names[2])
    np.testing.assert_array_equal(next(iter(rows.blocks())), X[:, [0, 2]].astype(rows.dtype))
    np.testing.assert_array_equal(rows.labels, np.column_stack([Y, X[:, 1]]))
    none = rls.stream(path, target=False)
    assert none.labels is None and none.shape == (N, 5)
    with pytest.raises(ValueError, match=r"no column 'z' for the target"):
        rls.stream(path, target="z")
    with pytest.raises(ValueError, match="different columns"):
        rls.stream(path, target=names[0], columns=names[:2])


@pytest.mark.any_precision
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_number_that_is_not_finite_is_named_by_file_and_row(tmp_path, ending):
    X, Y, v = problem()
    write(tmp_path, ending, X, Y, v, "a")
    X[17, 1] = np.nan
    write(tmp_path, ending, X, Y, v, "b")
    with pytest.raises(ValueError, match=rf"b{ending}.* row 1[78]"):
        rls.stream(tmp_path)


@pytest.mark.any_precision
def test_a_missing_cell_of_parquet_is_named(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({"a": [1.0, None], "b": [1.0, 2.0]}), tmp_path / "t.parquet"
    )
    with pytest.raises(ValueError, match=r"t.parquet: row 2, column a: the value is missing"):
        rls.stream(tmp_path)
    pyarrow.parquet.write_table(
        pyarrow.table({"a": ["u", "w"], "b": [1.0, 2.0]}), tmp_path / "t.parquet"
    )
    with pytest.raises(ValueError, match=r"column a holds string values, and not numbers"):
        rls.stream(tmp_path)


BAD = {
    "ragged": (lambda X, Y: [(X, Y), (X[:, :2], Y)], r"block 1 has X \(90, 2\)"),
    "labels of another length": (lambda X, Y: [(X, Y[:5])], r"block 0: a block must be X \(b, d\)"),
    "no labels later": (lambda X, Y: [(X, Y), (X,)], "block 1 has X"),
    "text": (lambda X, Y: [(X.astype(str), Y)], "block 0: X must hold numbers"),
    "nothing": (lambda X, Y: [], "no rows"),
    "a generator": (lambda X, Y: ((X, Y) for _ in range(2)), "read once only"),
    "a number in place of rows": (lambda X, Y: [(np.array(3.0), Y)], "block 0: a block must be"),
    "a number in place of labels": (lambda X, Y: [(X, np.array(3.0))], "block 0: a block must be"),
    "negative weights": (
        lambda X, Y: [(X, Y, Y)],
        "block 0: weights must not be negative, and is -.* at row",
    ),
    "NaN in labels": (
        lambda X, Y: [(X, np.where(np.arange(N) == 8, np.nan, Y))],
        "block 0: Y is nan at row 8",
    ),
}


@pytest.mark.any_precision
@pytest.mark.parametrize("name", BAD)
def test_what_does_not_go_together_is_refused(name):
    make, words = BAD[name]
    X, Y, _ = problem()
    with pytest.raises(ValueError, match=words):
        rls.stream(make(X, Y))


@pytest.mark.any_precision
def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        rls.stream(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="must end in"):
        rls.stream(tmp_path / "x.txt")
    with pytest.raises(ValueError, match="names no file"):
        rls.stream(str(tmp_path / "*.npz"))
    for ending in (".npy", ".npz", ".parquet"):
        for noise in (b"noise" * 30, b"\x93NUMPY\x01\x00\x06\x00{(\n  \n"):
            (tmp_path / f"x{ending}").write_bytes(noise)
            with pytest.raises(ValueError, match=f"x{ending}"):
                rls.stream(tmp_path / f"x{ending}")
    with pytest.raises(ValueError, match="target, weights and columns name columns of files"):
        rls.stream([np.eye(2)], target=0)


def test_labels_are_asked_for_where_the_source_has_none():
    X, Y, _ = problem()
    source = rls.stream(Blocks(X))
    with pytest.raises(ValueError, match="Y must be labels"):
        rls.fit(KERNEL, source, landmarks=10)
    with pytest.raises(ValueError, match="Y must be labels"):
        rls.fit(KERNEL, X)
    assert rls.fit(KERNEL, source, Y, landmarks=10).route == "subset"


@pytest.mark.any_precision
def test_a_source_that_changes_between_readings_is_told_of():
    X, Y, _ = problem()
    parts = [(X, Y)]
    source = rls.stream(parts)
    parts.append((X[:3], Y[:3]))
    with pytest.raises(ValueError, match="rows"):
        source.sum(lambda x: x.sum())


@pytest.mark.any_precision
def test_float64_files_are_fitted_in_float64_whatever_the_switch_says():
    X, Y, _ = problem()
    wide = rls.stream(Blocks(X.astype(np.float64), Y.astype(np.float64)))
    with jax.enable_x64(False):
        fit = rls.fit(KERNEL, wide, lams=[0.1], landmarks=10)
        assert fit.errors.dtype == fit.predict(X.astype(np.float64)).dtype == np.float64
        assert (
            rls.fit(
                KERNEL,
                rls.stream(Blocks(X.astype(np.float32), Y.astype(np.float32))),
                lams=LAMS,
                landmarks=10,
            ).errors.dtype
            == np.float32
        )


@pytest.mark.any_precision
def test_an_error_of_the_thread_that_reads_ahead_is_that_of_the_reader():
    def broken():
        yield 1
        raise OSError("gone")

    items = ahead(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)


@pytest.mark.any_precision
def test_reading_ahead_ends_with_the_reader():
    made = []

    def endless():
        while True:
            made.append(len(made))
            yield made[-1]

    for item in ahead(endless(), depth=2):
        if item == 5:
            break
    assert 6 <= len(made) <= 9  # what was taken, what waits, and one in the hand


@pytest.mark.any_precision
def test_places_of_a_callers_pieces_are_kept():
    X, Y, _ = problem()
    X[3, 0] = np.inf
    with pytest.raises(ValueError, match="disk 7: X is inf at row 103, column 0"):
        rls.stream([Piece(X, Y, None, "disk 7", 100)])


# checkpoints
# -------------------------------------------------------------------------------------------------------------------


class Dying(Blocks):
    """A source whose reader is stopped after so many blocks of a reading."""

    def __init__(self, *columns, reading, after, **options):
        super().__init__(*columns, **options)
        self.reading, self.after = reading, after

    def __iter__(self):
        for i, block in enumerate(super().__iter__()):
            if self.readings == self.reading and i == self.after:
                raise KeyboardInterrupt
            yield block


SIZES = (15,) * 6


def streamed_fit(blocks, path=None, width=1.5):
    return rls.fit(
        rls.Gaussian(width),
        rls.stream(blocks, checkpoint=path, block_size=15),
        lams=LAMS[:2],
        landmarks=np.arange(0, N, 9),
    )


def assert_equal(got, want):
    for name in ("errors", "loo_residuals", "lam"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    np.testing.assert_array_equal(got.model.coef, want.model.coef)


@pytest.mark.any_precision
@pytest.mark.filterwarnings("ignore:the chosen")
@pytest.mark.parametrize(
    ("reading", "after"),
    [(2, 4), (3, 0), *(pytest.param(*at, marks=pytest.mark.slow) for at in [(3, 5), (4, 3)])],
)
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bits(tmp_path, reading, after):
    """Readings: to know the rows, moments, errors, residuals."""
    X, Y, _ = problem()
    path, whole = tmp_path / "sums", streamed_fit(Blocks(X, Y, sizes=SIZES))
    with pytest.raises(KeyboardInterrupt):
        streamed_fit(Dying(X, Y, sizes=SIZES, reading=reading, after=after), path)
    assert_equal(streamed_fit(Blocks(X, Y, sizes=SIZES), path), whole)


@pytest.mark.filterwarnings("ignore:the chosen")
def test_blocks_that_a_checkpoint_holds_are_not_summed_again(tmp_path):
    X, Y, _ = problem()
    rows = rls.stream(Blocks(X, Y, sizes=SIZES), checkpoint=tmp_path / "sums", block_size=15)
    seen = []
    total = rows.sum(
        lambda x, y: jax.debug.callback(lambda: seen.append(1)) or (x.T @ y).sum(), rows.labels
    )
    jax.effects_barrier()
    again = rls.stream(Blocks(X, Y, sizes=SIZES), checkpoint=tmp_path / "sums", block_size=15)
    assert (
        again.sum(
            lambda x, y: jax.debug.callback(lambda: seen.append(1)) or (x.T @ y).sum(), again.labels
        )
        == total
    )
    jax.effects_barrier()
    assert len(seen) == 6 + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chosen")
def test_a_checkpoint_of_another_problem_is_passed_over(tmp_path):
    X, Y, _ = problem()
    path = tmp_path / "sums"
    streamed_fit(Blocks(X, Y, sizes=SIZES), path)
    for blocks, width in (
        (Blocks(X, Y, sizes=SIZES), 2.0),
        (Blocks(X, -Y, sizes=SIZES), 1.5),
        (Blocks(X[::-1], Y, sizes=SIZES), 1.5),
    ):
        assert_equal(streamed_fit(blocks, path, width), streamed_fit(blocks, None, width))
    late = X.copy()
    late[-1] += 1
    assert_equal(
        streamed_fit(Blocks(late, Y, sizes=SIZES), path), streamed_fit(Blocks(late, Y, sizes=SIZES))
    )


@pytest.mark.any_precision
def test_a_damaged_checkpoint_is_told_of(tmp_path):
    X, Y, _ = problem()
    np.save(tmp_path / "array.npy", X)
    for noise in (
        b"noise" * 50,
        b"",
        b"PK\x03\x04" + bytes(200),
        (tmp_path / "array.npy").read_bytes(),
    ):
        (tmp_path / "sums").write_bytes(noise)
        with pytest.raises(ValueError, match=r"sums is no checkpoint.*remove it"):
            rls.stream(Blocks(X, Y), checkpoint=tmp_path / "sums")
    rls.save(tmp_path / "sums", rls.Linear())
    for change in (b"", b"damaged"):
        with open(tmp_path / "sums", "ab") as file:
            file.write(change)
        with pytest.raises(ValueError, match="sums is no checkpoint.*: remove it"):
            rls.stream(Blocks(X, Y), checkpoint=tmp_path / "sums")


# meetings
# ----------------------------------------------------------------------------------------------------------------------

DOORS = {
    "factorize": lambda X, v: rls.factorize(KERNEL, X, weights=v, landmarks=np.arange(0, N, 9)),
    "cholesky": lambda X, v: rls.factorize(
        KERNEL, X, weights=v, landmarks=np.arange(0, N, 9), route="cholesky"
    ),
    "subset": lambda X, v: of_landmarks(KERNEL, X, np.arange(0, N, 9), weights=v),
    "covariance": lambda X, v: of_covariance(X, weights=v),
}


@pytest.mark.any_precision
@pytest.mark.parametrize("door", DOORS)
def test_weights_that_a_stream_brings_reach_every_factor(door):
    X, Y, v = problem()
    got, want = (
        rls.gcv(DOORS[door](rows, weights), Y, np.array(LAMS, DTYPE))
        for rows, weights in ((rls.stream(Blocks(X, Y, v)), None), (X, v))
    )
    assert_close(got, want, 200 * N * EPS / min(LAMS), door)


@pytest.mark.parametrize("streamed", [False, True])
def test_rows_held_out_may_be_a_stream_with_weights_of_its_own(streamed):
    X, Y, v = problem()
    held = rls.stream([(X[60:75], Y[60:75], v[60:75]), (X[75:], Y[75:], v[75:])])
    rows = rls.stream([(X[:60],)]) if streamed else X[:60]
    options = {"lams": [0.1], "landmarks": X[:60:6]}
    got = rls.fit(KERNEL, rows, Y[:60], validation=(held, Y[60:]), **options)
    e = Y[60:] - np.asarray(got.predict(X[60:]))
    assert_close(got.errors[0], np.sum(v[60:] * e**2) / np.sum(v[60:]), 1e3 * EPS)


@pytest.mark.any_precision
def test_a_refined_fit_takes_rows_held_out_from_a_stream():
    X, Y, _ = (part.astype(np.float32) for part in problem())
    held = (X[60:], Y[60:])
    got, want = (
        rls.fit(KERNEL, X[:60], Y[:60], refine=True, validation=rows)
        for rows in ((rls.stream([held]), Y[60:]), held)
    )
    assert_close(got.error, want.error, 1e-6)


def test_what_needs_all_rows_at_once_says_so():
    X, Y, _ = problem()
    for rows, held in ((rls.stream(Blocks(X, Y)), None), (X, (rls.stream(Blocks(X)), Y))):
        with pytest.raises(ValueError, match="tune needs X, and rows held out, in memory"):
            rls.tune(KERNEL, rows, Y, validation=held)
    with pytest.raises(ValueError, match="all rows at once, and X is a stream"):
        rls.fit(KERNEL, rls.stream(Blocks(X, Y)), lams=[0.1], landmarks=10, route="iterative")


@pytest.mark.any_precision
@pytest.mark.parametrize(
    "given", [np.ones((2, D + 1)), (np.zeros(D), np.zeros(D)), 3, (np.zeros(D),)]
)
def test_means_and_deviations_that_do_not_fit_are_refused(given):
    with pytest.raises(ValueError, match="standardize must be True, False or a pair"):
        rls.stream(Blocks(*problem()), standardize=given)
