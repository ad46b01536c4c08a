"""Rows from files and from iterables of blocks: the same fits as from memory, few readings, and
errors that name file and row.
"""

from dataclasses import replace
from functools import partial

import chex
import jax
import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support import ANY_PRECISION, DTYPE, EDGE, EPS, FLOAT64, assert_close, refused

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.data import compiled
from jaxrls.io.writing import writing
from jaxrls.rows.streamed import Piece, ahead

N, D = 90, 3
LAMS = [1e-2, 1e-1, 1.0]
BOUND = 200 * N * EPS / min(LAMS)
KERNEL = rls.Gaussian(1.5)
ROWS = np.arange(0, N, 9)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(DTYPE)
Y = (np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(N, 2))).astype(DTYPE)
V = RNG.uniform(0.5, 2, N).astype(DTYPE)


class Blocks:
    """A source that counts how often it is read."""

    def __init__(self, *columns, sizes=(40, 7, 0, 43)):
        self.columns, self.stops, self.readings = columns, np.cumsum(sizes), 0

    def __iter__(self):
        self.readings += 1
        for start, stop in zip([0, *self.stops], self.stops, strict=False):
            yield tuple(column[start:stop] for column in self.columns)


@EDGE
def test_a_fit_is_that_of_the_same_rows_in_memory():
    options = {"lams": LAMS, "per_target": True, "landmarks": X[ROWS] + DTYPE(0.01)}
    source = rls.rows.stream(Blocks(X, Y, V), block_size=32)
    got = rls.fit(KERNEL, source, **options)
    want = rls.fit(KERNEL, X, Y, weights=V, **options)
    assert got.route == want.route
    for name in ("lam", "errors", "loo_residuals", "dof"):
        assert_close(getattr(got, name), getattr(want, name), BOUND, name)
    assert_close(got.predict(source), want.predict(X), BOUND, "predictions")


@ANY_PRECISION
@pytest.mark.slow
def test_some_pairs_are_left_out_as_of_the_same_rows_in_memory():
    """Those that are named, and of times those whose order is known, of one more reading each; all
    pairs in test_ranking.py.
    """
    blocks = Blocks(X, Y, V)
    solved = lambda rows: rls.factorize(KERNEL, rows, weights=V, landmarks=ROWS).solve(Y)
    one, other = solved(rls.rows.stream(blocks, block_size=32)), jax.jit(solved)(X)
    readings, squared = blocks.readings, rls.ranking.PairsOut(loss=rls.extend.squared_error)
    times = replace(squared, events=jax.numpy.asarray(np.arange(N) % 3 > 0, DTYPE))
    given = np.asarray(LAMS, DTYPE), None
    for criterion in (
        rls.ranking.PairsOut([[0, 89], [41, 3]], loss=rls.extend.squared_error),
        times,
    ):
        want = jax.jit(criterion.values)(other, *given)
        assert_close(criterion.values(one, *given), want, BOUND)
    assert blocks.readings == readings + 2


@ANY_PRECISION
@pytest.mark.slow
def test_rows_are_read_twice_for_all_errors_and_once_more_for_the_residuals_of_a_fit():
    blocks = Blocks(X, Y)
    problem_of = extend.read_problem(KERNEL, rls.rows.stream(blocks), None, landmarks=10).prepare()
    assert blocks.readings == 1
    problem_of.errors(problem_of.solution(), np.geomspace(1e-3, 10, 50).astype(DTYPE))
    assert blocks.readings == 3
    rls.fit(KERNEL, rls.rows.stream(blocks), landmarks=10, lams=50, keep=True)
    assert blocks.readings == 3 + 1 + 3  # none for what is kept, until it is asked for


@EDGE
@ANY_PRECISION
@pytest.mark.slow
def test_groups_are_held_out_in_few_readings():
    """Small ones in two more than the fit, large ones in four: nothing is read twice where readings
    lie in loops, which no program takes.
    """
    for size, more in ((3, 2), (30, 4)):
        blocks = Blocks(X, Y)
        groups = np.arange(N) // size
        rls.fit(KERNEL, rls.rows.stream(blocks), landmarks=X[ROWS], lams=LAMS, groups=groups)
        assert blocks.readings == 2 + more


def test_rows_by_number_come_from_the_sample_or_from_one_more_reading():
    """In the order that was asked for, doubles included, and by the measure of all rows; blocks may
    be bare arrays.
    """
    blocks = Blocks(X)
    source = rls.rows.stream(blocks, sample=10)
    rows = np.concatenate([np.asarray(block) for block in source.blocks()])
    before, drawn = blocks.readings, np.asarray(source.drawn)
    assert_array_equal(source.take(drawn[[3, 0, 3, 9]]), rows[drawn[[3, 0, 3, 9]]])
    assert blocks.readings == before
    asked = np.array([89, drawn[2], 0, 40, 39, 40, 46, 47])
    assert_array_equal(source.take(asked), rows[asked])
    assert blocks.readings == before + 1
    bare = rls.rows.stream([X[:40], X[40:]], sample=10)
    assert_array_equal(bare.take(asked), X[asked])
    no_rows = [np.array([0, -1]), np.array([0, N])]
    refused(*((lambda numbers=numbers: bare.take(numbers), "row numbers") for numbers in no_rows))


def test_landmarks_of_a_stream_are_those_of_its_sample():
    """And none of its weight is 0."""
    v = np.where(np.arange(N) < 50, V, 0).astype(DTYPE)
    whole, part = (rls.rows.stream(Blocks(X, Y, v), sample=sample) for sample in (N, 40))
    got, want, some = (
        rls.choose_landmarks(KERNEL, rows, 8, key=jax.random.key(1), **options)
        for rows, options in ((whole, {}), (X, {"weights": v}), (part, {}))
    )
    assert_array_equal(got.indices, want.indices)
    assert_array_equal(got.points, want.points)
    assert_array_equal(some.points, X[np.asarray(some.indices)])
    assert set(some.indices.tolist()) <= set(part.drawn.tolist()) & set(range(50))
    assert some.trace_residual is None


@pytest.mark.slow
def test_widths_come_from_a_streams_sample_as_from_an_array():
    wide = X * np.array([1, 10, 100], DTYPE)
    kernel = rls.Gaussian(np.ones(D, DTYPE)) + rls.Laplacian(1.0).on([0, 2])
    array = jax.numpy.asarray(wide)
    want, *others = (
        (
            rls.extend.median_distance(source, order=1, rows=40),
            rls.extend.start_from_data(kernel, source),
        )
        for source in (array, rls.rows.stream(Blocks(wide, Y)), rls.rows.DenseRows(array))
    )
    for found in others:
        chex.assert_trees_all_equal(found, want)
    part = rls.rows.stream(Blocks(wide, Y), sample=20)
    assert rls.extend.median_distance(part) == rls.extend.median_distance(part.candidates().rows)


@ANY_PRECISION
def test_every_row_has_the_same_chance_to_be_in_the_sample():
    rows = [(np.arange(start, start + 5.0)[:, None],) for start in range(0, 40, 5)]
    counts = np.zeros(40)
    for seed in range(400):
        counts[rls.rows.stream(rows, sample=10, seed=seed).drawn] += 1
    assert np.abs(counts - 100).max() < 5 * np.sqrt(
        400 * 0.25 * 0.75
    )  # five standard deviations of a binomial


@FLOAT64
@pytest.mark.slow
def test_columns_of_a_stream_are_standardized_as_those_of_an_array():
    """And rows to predict are given as they are."""
    far, weighs = X * [1e3, 1e-3, 0.0] + [1e6, 0, 5], 1.0 * (np.arange(N) < 47)
    plain = {"lams": [0.1], "landmarks": far[ROWS]}
    options = plain | {"standardize": True}
    for weights, more in ((None, 2), (weighs, 3)):
        columns = (far, Y) if weights is None else (far, Y, weights)
        usual, blocks = Blocks(*columns), Blocks(*columns)
        rls.fit(KERNEL, rls.rows.stream(usual), **plain)
        got = rls.fit(KERNEL, rls.rows.stream(blocks), **options)
        assert blocks.readings == usual.readings + more
        want = rls.fit(KERNEL, far, Y, weights=weights, **options)
        for name in ("centre", "scale"):
            assert_allclose(*(getattr(fit.kernel, name) for fit in (got, want)), rtol=1e-9)
        assert got.kernel.scale[2] == 1
        assert_close(got.predict(rls.rows.stream(Blocks(far))), want.predict(far), BOUND)


def test_one_program_for_all_blocks_of_a_reading():
    source = rls.rows.stream(Blocks(X, Y), block_size=30)
    source.sum(chex.assert_max_traces(lambda x: chex.assert_shape(x, (30, D)) or x.sum(), n=1))


# files
# --------------------------------------------------------------------------------------------------


def write(folder, ending, rows=slice(None), name="a", change=None):
    """Rows of the problem, one of its targets and its weights, as a file."""
    x, y, v = (part[rows].copy() for part in (X, Y[:, 0], V))
    if change is not None:
        x[change] = np.nan
    path = folder / f"{name}{ending}"
    with writing(path) as write_columns:
        write_columns(dict(zip(("x0", "x1", "x2", "v", "y"), (*x.T, v, y), strict=True)))
    return path


ENDINGS = pytest.mark.parametrize("ending", [".npy", ".csv", ".parquet"])


@ENDINGS
def test_files_hold_what_was_written(tmp_path, ending):
    """And a number that is not finite is named by file and row."""
    paths = [
        write(tmp_path, ending, rows, name)
        for name, rows in (("a", slice(50)), ("b", slice(50, N)))
    ]
    for source in (tmp_path, str(tmp_path / f"*{ending}"), [paths[0], str(paths[1])]):
        rows = rls.rows.stream(source, weights=-2 if ending == ".npy" else "v", block_size=64)
        assert rows.shape == (N, D)
        read = np.concatenate([*map(np.asarray, rows.blocks())]), rows.labels, rows.row_weights
        for found, want in zip(read, (X, Y[:, 0], V), strict=True):  # text of float32 is float64
            assert_array_equal(np.asarray(found, want.dtype), want)
    write(tmp_path, ending, name="b", change=(17, 1))
    refused((lambda: rls.rows.stream(tmp_path), rf"b{ending}.* row 1[78]"))


@ANY_PRECISION
@ENDINGS
def test_columns_by_name_or_number(tmp_path, ending):
    path = write(tmp_path, ending)
    names = [0, 2, [4, 1]] if ending == ".npy" else ["x0", "x2", ["y", "x1"]]
    rows = rls.rows.stream(path, columns=names[:2], target=names[2])
    assert_array_equal(next(iter(rows.blocks())), X[:, [0, 2]].astype(rows.dtype))
    assert_array_equal(rows.labels, np.column_stack([Y[:, 0], X[:, 1]]))
    none = rls.rows.stream(path, target=False)
    assert none.labels is None and none.shape == (N, 5)
    refused(
        (lambda: rls.rows.stream(path, target="z"), "no column 'z' for the target"),
        (lambda: rls.rows.stream(path, target=names[0], columns=names[:2]), "give it one use"),
        (lambda: rls.rows.stream(path, weights=names[:2]), "weights must be one column, and are"),
        (lambda: rls.rows.stream([tmp_path, path]), "is named twice, and its rows"),
    )


@pytest.mark.slow
def test_columns_of_blocks_and_of_a_fit_to_a_stream_go_by_name(tmp_path):
    """Those of blocks by the names of the first, those of new rows by these or by those of files;
    a stream in another order is told what to name.
    """
    frame = lambda rows, order="abc": pandas.DataFrame(rows, columns=[*"abc"])[[*order]]
    source = tmp_path / "a.csv", tmp_path / "b.csv"
    for path, rows, order in zip(source, (slice(40), slice(40, N)), ("abc", "cab"), strict=True):
        frame(X[rows], order).assign(y=Y[rows, 0]).to_csv(path, index=False)
    frame(X, "cab").to_csv(tmp_path / "new.csv", index=False)
    new = lambda **options: rls.rows.stream(tmp_path / "new.csv", target=False, **options)
    blocks = [(frame(X[:40]), Y[:40, 0]), (frame(X[40:], "bca"), Y[40:, 0])]
    options = {"landmarks": X[ROWS], "lams": LAMS}
    expected = rls.fit(KERNEL, X, Y[:, 0], **options).predict(X)
    for rows in (rls.rows.stream([*source], block_size=50), rls.rows.stream(blocks, block_size=50)):
        fit = rls.fit(KERNEL, rows, **options)
        rls.save(tmp_path / "fit", fit)
        for model in (fit, rls.load(tmp_path / "fit")):
            assert model.model.names == ("a", "b", "c")
            for given in (X, frame(X, "cab"), new(columns=[*"abc"], block_size=50)):
                assert_close(model.predict(given), expected, BOUND)
            words = r"another order .*stream\(…, columns=\['a', 'b', 'c'\]\)"
            refused(
                (lambda model=model: model.predict(new()), words),
                (lambda model=model: rls.predict_to_file(model, new(), tmp_path / "p.npy"), words),
                (lambda model=model: model.predict(new(columns=["c"])), "X lacks 2 of the 3"),
            )
    np.save(tmp_path / "bare.npy", np.c_[X, Y[:, 0]])
    bare = rls.rows.stream(tmp_path / "bare.npy", block_size=50)
    assert rls.fit(KERNEL, bare, **options).model.names == ()


@EDGE
@pytest.mark.parametrize(
    "source",
    ["blocks", *(pytest.param(name, marks=pytest.mark.slow) for name in ("files", "mesh"))],
)
def test_labels_after_a_fit_to_rows_that_bring_theirs_go_by_name(source, tmp_path):
    """In scores, and in rows that are added, which bring their own in another order."""
    targets = pandas.DataFrame(Y, columns=["u", "v"])
    turned = targets[["v", "u"]]

    def rows_with(labels, name):
        if source == "mesh":
            return rls.rows.shard(X, labels, mesh=jax.make_mesh((1,), ("rows",)))
        if source == "blocks":
            return rls.rows.stream([(X[:40], labels[:40]), (X[40:], labels[40:])], block_size=50)
        path = tmp_path / f"{name}.csv"
        pandas.DataFrame(X, columns=[*"abc"]).join(labels).to_csv(path, index=False)
        return rls.rows.stream(path, target=[*labels], columns=[*"abc"], block_size=50)

    options = {"landmarks": X[ROWS], "lams": LAMS, "keep": True}
    fit = rls.fit(KERNEL, rows_with(targets, "first"), **options)
    assert_close(fit.score(X, turned), fit.score(X, Y), 10 * EPS)
    more = fit.update(rows_with(turned, "more"))
    assert_close(more.predict(X), fit.update(X, Y).predict(X), BOUND)


y = Y[:, 0]
BAD = [
    (lambda: [(X, y), (X[:, :2], y)], r"block 1 has X \(90, 2\)"),
    (lambda: [(X.astype(str), y)], "block 0: X must hold real numbers"),
    (lambda: [], "no rows"),
    (lambda: ((X, y) for _ in range(2)), "cannot be read several times"),
    (lambda: lambda: None, "source is a function, which cannot"),
    (lambda: [(X, np.array(3.0))], r"block 0 has X"),
    (
        lambda: [(X, np.where(np.arange(N) == 8, np.nan, y))],
        r"block 0: Y holds 1 values that are NaN or infinite, the first at index \(8,\)",
    ),
    (lambda: [Piece(X / 0, y, None, "disk 7")], "disk 7: X holds .* infinite"),
    (
        lambda: [(X, y), (pandas.DataFrame(X), pandas.Series(y)[::-1])],
        r"block 1: Y has another index than X, .* give Y\.loc",
    ),
]


@ANY_PRECISION
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_does_not_go_together_is_refused():
    refused(*((lambda make=make: rls.rows.stream(make()), words) for make, words in BAD))


@ANY_PRECISION
def test_labels_and_weights_of_a_call_take_the_place_of_those_of_a_stream():
    rows = rls.rows.stream(Blocks(X, Y, V))
    for given, want in (({}, (Y, V)), ({"Y": -Y, "weights": V**2}, (-Y, V**2))):
        problem = extend.read_problem("linear", rows, **given)
        assert_array_equal(problem.Y, want[0])
        assert_array_equal(problem.weights.array, want[1])


@ANY_PRECISION
def test_what_a_stream_cannot_do_is_said():
    source, labelled, parts = rls.rows.stream(Blocks(X)), rls.rows.stream(Blocks(X, Y)), [(X, Y)]
    changing = rls.rows.stream(parts)
    parts.append((X[:3], Y[:3]))
    in_memory = "tune needs X and held-out rows in memory"
    refused(
        (lambda: rls.fit(KERNEL, source, landmarks=10), "Y must be labels"),
        (
            lambda: extend.read_problem(
                KERNEL, rls.rows.stream(Blocks(X), sample=30), Y, landmarks=31
            ).prepare(),
            "landmarks.*30",
        ),
        (lambda: changing.sum(lambda x: x.sum()), "rows"),
        (
            lambda: rls.fit("linear", rls.rows.stream(parts, block_size=0)),
            "block_size must be a whole",
        ),
        (
            lambda: rls.rows.stream([np.eye(2)], target=0),
            "target, weights and columns name columns of",
        ),
        (lambda: rls.tune(KERNEL, labelled, Y), in_memory),
        (
            lambda: rls.fit(KERNEL, rls.rows.stream([(X, Y, -(y**2))])),
            "weights must not be negative",
        ),
        (
            lambda: rls.fit(KERNEL, labelled, lams=[0.1], solver=rls.Iterative(10)),
            "needs all rows in one array, .* X is a stream",
        ),
    )


class Shuffled:
    """A source that yields its rows in another order in every reading, as loaders of training rows
    do.
    """

    rng = np.random.default_rng(0)

    def __iter__(self):
        for part in np.split(self.rng.permutation(N), [40, 47]):
            yield X[part], Y[part]


@ANY_PRECISION
def test_other_rows_in_a_later_reading_are_refused():
    """The labels are those of the first reading."""
    rows = rls.rows.stream(Shuffled(), sample=10, block_size=20)
    words = r"block \d: row \d+ differs from what it was in the first reading: let source yield"
    refused((lambda: rows.sum(lambda x: x.sum()), words), (lambda: rows.take(np.arange(N)), words))


@rls.extend.pytree
class Shares(rls.Linear):
    """A kernel of rows whose numbers sum to 1."""

    def check(self, X):
        if (abs(X.sum(axis=1) - 1) > 1e-3).any():
            raise ValueError("the numbers of a row must sum to 1")


@ANY_PRECISION
def test_every_row_of_a_stream_lies_in_the_domain_of_the_kernel():
    """Also those that are not in the sample; rows are read for it only where one may lie without."""
    rows, shares = abs(X), abs(X) / abs(X).sum(axis=1, keepdims=True)
    chi, sobolev = rls.ChiSquared(1.0), rls.Sobolev().on([1]) + rls.Linear()
    for good, kernel, words, readings in (
        (rows, 2.0 * chi, "ChiSquared is for X ≥ 0, such as counts, and the smallest input is", 0),
        (rows * [-1, 1, 1], sobolev, "Sobolev lives on .* the smallest input is", 0),
        (shares, Shares(), "the numbers of a row must sum to 1", 1),
    ):
        few = lambda rows: rls.rows.stream(Blocks(rows.astype(DTYPE), Y), sample=10)
        source = few(good)
        source.check(kernel)
        assert source.source.readings == 1 + readings
        row = np.setdiff1d(np.arange(N), source.drawn)[-1]
        bad = few(np.where(np.arange(N)[:, None] == row, good * [1, -1, -1], good))
        refused((partial(bad.check, kernel), words))


@ANY_PRECISION
@EDGE
@pytest.mark.slow
def test_float64_files_are_fitted_in_float64_whatever_the_switch_says(monkeypatch):
    monkeypatch.setattr("jaxrls.rows.host.HOST_BLOCK_BYTES", 8 * D * N // 2)
    for on in (False, True):  # a thread that reads ahead has the switch of the process
        with jax.enable_x64(on):
            assert rls.rows.stream(Blocks(np.float64(X), np.float64(Y))).block_sizes == (N // 2,)
    with jax.enable_x64(False):
        for dtype in (np.float32, np.float64):
            source = rls.rows.stream(Blocks(X.astype(dtype), Y.astype(dtype)))
            fit = rls.fit(KERNEL, source, lams=LAMS, landmarks=X[ROWS].astype(dtype))
            assert fit.errors.dtype == fit.predict(X.astype(dtype)).dtype == dtype


@ANY_PRECISION
def test_reading_ahead_ends_with_the_reader_and_hands_errors_on():
    made = []

    def numbers(last):
        for i in range(last):
            made.append(i)
            yield i
        raise OSError("gone")

    for item in ahead(numbers(99), depth=2):
        if item == 5:
            break
    assert 6 <= len(made) <= 9  # what was taken, what waits, and one in the hand
    refused((lambda: list(ahead(numbers(1))), "gone"), error=OSError)


class Unreadable(rls.rows.Rows):
    """A source whose reader fails, and counts how often it was asked."""

    shape, dtype, asked = (4, 1), np.dtype(DTYPE), 0

    def blocks(self):
        self.asked += 1
        raise NotImplementedError("no blocks")


@ANY_PRECISION
def test_an_error_of_a_reading_is_not_one_of_cutting_the_program():
    rows, doubled = Unreadable(), compiled(lambda rows: 2 * rows.sum(lambda x: x.sum()))
    with pytest.raises(NotImplementedError, match="no blocks"):
        doubled(rows)
    assert rows.asked == 1


# checkpoints
# --------------------------------------------------------------------------------------------------


class Dying(Blocks):
    """A source whose reader is stopped after so many blocks of a reading."""

    def __init__(self, *columns, stop=None):
        super().__init__(*columns, sizes=(15,) * 6)
        self.stop = stop

    def __iter__(self):
        for i, block in enumerate(super().__iter__()):
            if (self.readings, i) == self.stop:
                raise KeyboardInterrupt
            yield block


def streamed_fit(path, *columns, kernel=KERNEL, **stop):
    """Its errors, residuals, λ and coefficients."""
    source = rls.rows.stream(Dying(*columns, **stop), checkpoint=path, block_size=15)
    fit = rls.fit(kernel, source, lams=LAMS, landmarks=ROWS)
    parts = fit.errors, fit.loo_residuals, fit.lam, fit.model.coef
    return [np.asarray(part).tolist() for part in parts]


@ANY_PRECISION
@EDGE
@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bits(tmp_path):
    """Readings: to know the rows, moments, errors, residuals; a checkpoint of another problem is
    passed over.
    """
    path, whole = tmp_path / "sums", streamed_fit(None, X, Y)
    for stop in ((2, 4), (3, 0), (4, 3)):
        with pytest.raises(KeyboardInterrupt):
            streamed_fit(path, X, Y, stop=stop)
        assert streamed_fit(path, X, Y) == whole
    late = X + (np.arange(N) == N - 1)[:, None].astype(DTYPE)
    for columns in ((X, -Y), (X[::-1], Y), (late, Y)):
        assert streamed_fit(path, *columns) == streamed_fit(None, *columns) != whole
    # The first block's sums are 0, whatever they are of.
    weighted = X, Y, (np.arange(N) >= 15).astype(DTYPE)
    narrow, wide = (streamed_fit(path, *weighted, kernel=rls.Gaussian(s)) for s in (1.0, 2.0))
    assert wide == streamed_fit(None, *weighted, kernel=rls.Gaussian(2.0)) != narrow


@EDGE
def test_blocks_that_a_checkpoint_holds_are_not_summed_again(tmp_path):
    seen, totals = [], []
    for _ in range(2):
        rows = rls.rows.stream(Dying(X, Y), checkpoint=tmp_path / "sums", block_size=15)
        count = lambda x, y: jax.debug.callback(lambda: seen.append(1)) or (x.T @ y).sum()
        totals.append(rows.sum(count, rows.labels))
        jax.effects_barrier()
    assert totals[0] == totals[1] and len(seen) == 6 + 1


@EDGE
def test_a_checkpoint_is_not_taken_for_another_sum_that_begins_alike(tmp_path):
    """The second column is 0 in the first block, so that what becomes of it does not count there: by
    an array that the function closes over, or a program in it; by a number; and by the function.
    """
    late = X * (np.arange(N)[:, None] >= [0, 15, 0]).astype(DTYPE)
    scaled = lambda scale: lambda x: (x * np.array([1, scale, 1], DTYPE)).sum(axis=0)
    in_program = lambda scale: jax.jit(scaled(scale))
    by_number = lambda number: lambda x: x.at[:, 1].multiply(number).sum(axis=0)
    absolute = lambda x: x.at[:, 1].set(abs(x[:, 1])).sum(axis=0)
    of = [make(number) for make in (scaled, in_program, by_number) for number in (2.0, 3.0)]
    for fn in (*of, absolute):
        rows = rls.rows.stream(Dying(late), checkpoint=tmp_path / "sums", block_size=15)
        want = fn(jax.numpy.asarray(late))
        assert_close(rows.sum(fn), want, 100 * EPS)
        assert_close(compiled(lambda rows, fn=fn: rows.sum(fn))(rows), want, 100 * EPS)


@EDGE
def test_blocks_of_another_size_begin_anew(tmp_path):
    v, sums = (np.arange(N) // 15 % 2 == 0).astype(DTYPE), lambda x, v: v.sum()
    stream = lambda size, **stop: rls.rows.stream(
        Dying(X, **stop), checkpoint=tmp_path / "sums", block_size=size
    )
    with pytest.raises(KeyboardInterrupt):
        stream(15, stop=(2, 5)).sum(sums, v)
    assert stream(30).sum(sums, v) == v.sum()


# meetings
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_held_out_may_be_a_stream_with_weights_of_its_own():
    held = rls.rows.stream(Blocks(X[60:], Y[60:], V[60:], sizes=(15, 15)))
    options = {"lams": [0.1], "landmarks": X[:60:6], "criterion": rls.holdout(held, Y[60:])}
    for rows in (rls.rows.stream([(X[:60],)]), X[:60]):
        got = rls.fit(KERNEL, rows, Y[:60], **options)
        e = Y[60:] - np.asarray(got.predict(X[60:]))
        assert_close(got.errors[0], np.average(e**2, axis=0, weights=V[60:]), 1e3 * EPS)


@FLOAT64
@pytest.mark.slow
def test_deviations_of_a_stream_of_fewer_rows_than_features_are_those_of_its_rows():
    """With a column of fixed effects."""
    kernel = rls.FeatureMap(lambda X: jax.numpy.concatenate([X**k for k in range(1, 8)], axis=1))
    n, effects = 7 * D - 2, X[:, :1] ** 9
    of = lambda m: {"fixed_effects": effects[:m]}
    v, options = np.linspace(0.2, 3, n), {"lams": [1.0], "keep": True, **of(n)}
    whole = rls.fit(kernel, X[:n], Y[:n, 0], weights=v, **options)
    parts = [(X[rows], Y[rows, 0], v[rows]) for rows in (slice(5), slice(5, n))]
    read = rls.fit(kernel, rls.rows.stream(parts), **options)
    std, want = (fit.predict(X[:4], return_std=True, **of(4))[1] for fit in (read, whole))
    assert_close(std, want, 1e-9)
