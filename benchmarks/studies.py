"""What is measured on data sets, each study by its name; every study prints Markdown tables, and
its own --help names its options.

    python benchmarks/studies.py STUDY [--data FOLDER] [options]

FOLDER (or the environment variable JAXRLS_DATA) holds NAME.csv.gz: no header, the target last, as
in github.com/treforevans/uci_datasets. The airfoil data come with the package. Columns are
standardised, so that errors are fractions of the target's variance."""

import inspect
import os
import re
import resource
import sys
import warnings
from functools import partial
from pathlib import Path

from common import head, interleaved, line, options_of, say, timed

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import peers

import jaxrls as rls
from jaxrls.core.data import square_times, times_in_blocks

SETS = ("airfoil", "concrete", "energy", "elevators", "kin40k", "protein")
ALL = 10**9


def table(name: str, folder: str | None):
    """All rows with the target as the last column, of NAME.csv.gz in a folder, or None, said, where
    it is not there; the airfoil data come with the package, and those called drawn are made.
    """
    if name == "airfoil":
        X, y, _ = rls.airfoil()
        return np.column_stack([X, y]).astype(float)
    if name == "drawn":
        X = np.random.default_rng(0).normal(size=(48_900, 20))
        return np.column_stack([X, np.sin(X[:, :5].sum(axis=1)) + X[:, 5:] @ np.ones(15) / 8])
    file = Path(folder or "") / f"{name}.csv.gz"
    if not folder or not file.exists():
        where = folder or "a folder named by --data or JAXRLS_DATA"
        say(f"{name}: skipped, no {file.name} in {where}")
        return None
    return np.loadtxt(file, delimiter=",")


def scaled(values, n: int, new: int):
    """The first n rows and so many of the others, columns in units of the former: X, y, X_new,
    y_new.
    """
    scale = values[:n].std(axis=0)
    values = (values - values[:n].mean(axis=0)) / np.where(scale > 0, scale, 1)
    rest = values[n:][:new]
    return values[:n, :-1], values[:n, -1], rest[:, :-1], rest[:, -1]


def each(names, folder, n=ALL, share=1.0, new=5000):
    """Names and data of those that are there: n rows or that share of all, drawn by chance, and
    others to test on.
    """
    for name in names:
        if (values := table(name, folder)) is not None:
            values = np.random.default_rng(0).permutation(values)
            yield name, scaled(values, min(n, int(share * len(values))), new)


def heard(kernel, X, y, **options):
    """The fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(kernel, X, y, **options)
    return fit, [str(one.message) for one in caught]


def test_error(fit, X_new, y_new) -> float:
    return peers.mean_square(np.asarray(fit.predict(X_new), float), y_new)


# float32 against float64
# ------------------------------------------------------------------------------------------------


def widths(X, y):
    """The median distance, one width tuned and one for every column tuned, on 500 rows."""
    some = X[:500], y[:500]
    yield "median", float(rls.extend.median_distance(jnp.asarray(X)))
    yield "tuned", float(rls.tune(rls.Gaussian(1.0), *some).kernel.width)
    start = rls.Gaussian(np.ones(X.shape[1]))
    yield "each", np.asarray(rls.tune(start, *some, steps=30).kernel.width)


def float32(data, only=SETS, landmarks=False):
    """Default fits in both precisions: 2000 rows, or 500 landmarks of all rows (ten minutes)."""
    names = "data", "rows", "width", "test error, float64", "float32", "more by"
    say(head(*names, "λ/floor, float64", "float32", "5 % off up to", "float32 warns"))
    options = {"landmarks": np.arange(500)} if landmarks else {}
    for name, parts in each(only, data, ALL if landmarks else 2000, 0.8):
        for label, width in widths(*parts[:2]):
            say(line(name, len(parts[0]), label, *both_precisions(width, *parts, **options)))


def both_precisions(width, X, y, X_new, y_new, **options):
    """One row: and where below and above the floor leave-one-out is off by more than 5 %."""
    test, fits, said = {}, {}, {}
    kernel = lambda dtype: rls.Gaussian(np.asarray(width, dtype))
    for dtype in (np.float64, np.float32):
        rows = X.astype(dtype), y.astype(dtype)
        fits[dtype], said[dtype] = heard(kernel(dtype), *rows, **options)
        test[dtype] = test_error(fits[dtype], X_new.astype(dtype), y_new)
    wide, narrow = fits.values()
    floor, route = float(narrow.floor), str(narrow.route)
    solver = rls.Cholesky() if route == "cholesky" else rls.Spectral(route)
    lams = (floor * np.geomspace(1e-3, 1e3, 49)).astype(np.float32)

    def left_out(dtype, solver):  # NaN where the factor broke down
        with jax.enable_x64(dtype == np.float64):
            factor = rls.factorize(kernel(dtype), X.astype(dtype), solver=solver, **options)
            return np.asarray(rls.loo(factor, y.astype(dtype), lams.astype(dtype)), float)

    narrow_errors = left_out(np.float32, None if route == "subset" else solver)
    off = ~(np.abs(narrow_errors / left_out(np.float64, None) - 1) <= 0.05)
    words = "; ".join(message.split(":")[0] for message in said[np.float32]) or "none"
    alone = "" if said[np.float64] or not said[np.float32] else " (float64: none)"
    yield from (f"{test[dtype]:.5f}" for dtype in (np.float64, np.float32))
    yield f"{100 * (test[np.float32] / test[np.float64] - 1):+.2f} %"
    yield from (f"{float(fit.lam) / floor:.3g}" for fit in (wide, narrow))
    yield from (f"{lams[off].max() / floor:.3g}" if off.any() else "never", words + alone)


# searches: for λ, and for kernels
# ------------------------------------------------------------------------------------------------


def search(data, only=SETS, rows=2000):
    """`lams="search"` against a grid of a hundred λ at three widths: the errors found, and the
    Cholesky factors that took (ten minutes).

    "as good" are the λ of the grid's valleys that are within 1 % of its best."""
    names = "data", "width", "error of the grid", "of the search", "more by", "factors"
    say(head(*names, "λ of the grid", "of the search", "as good on the grid", "the search says"))
    for name, (X, y, *_) in each(only, data, rows, 0.8):
        for label, width in widths(X, y):
            kernel = rls.Gaussian(width)
            grid, _ = heard(kernel, X, y, solver=rls.Spectral("gram"))
            found, _ = heard(kernel, X, y, lams="search", solver=rls.Cholesky())
            made = re.search(r"(\d+) Cholesky factors? and one for the model", found.plan)
            lams, errors = np.asarray(grid.lams), np.asarray(grid.errors)
            around = np.concatenate([[np.inf], errors, [np.inf]])
            lowest = (errors < around[:-2]) & (errors <= around[2:])
            valleys = lams[lowest & (errors <= 1.01 * errors.min())]
            best, error = float(grid.error), float(found.error)
            more = f"{100 * (error / best - 1):+.3f} %"
            good = " and ".join(f"{lam:.2g}" for lam in valleys)
            chose = f"{float(grid.lam):.2g}", f"{float(found.lam):.2g}", good
            factors, says = int(made[1]) + 1, found.plan.partition("; ")[2] or "–"
            say(line(name, label, f"{best:.6f}", f"{error:.6f}", more, factors, *chose, says))


@jax.jit
def best_of_path(width, X, y):
    """The smallest leave-one-out error over 100 λ at one width."""
    factor = rls.factorize(rls.Gaussian(width), X)
    return jnp.min(rls.loo(factor, y, rls.extend.lambda_grid(factor, 100)))


def tuning(data, only=("airfoil", "concrete", "energy"), quick=False):
    """Width and λ by gradient from width 1, beside 40 widths × 100 λ, medians of five interleaved
    rounds; and one width per column against one for all, over ten random splits 90/10.
    """
    count, splits, rounds = (10, 2, 1) if quick else (40, 10, 5)
    sets = {name: parts[:2] for name, parts in each(only, data)}
    names = "data", "n", f"best of {count} × 100", "its width", "s", "tuned", "its width"
    say(head(*names, "steps", "s", "first call, s", "time ratio", "stopped"))
    for name, (X, y) in sets.items():
        X, y = jnp.asarray(X), jnp.asarray(y)
        around = rls.extend.median_distance(X) * jnp.geomspace(1 / 20, 20, count)
        ways = {
            "grid": lambda: [best_of_path(width, X, y) for width in around],
            "tuned": lambda: rls.tune(rls.Gaussian(1.0), X, y),
        }
        times, results, failures = interleaved(ways, rounds)
        assert not failures, failures
        best, found = int(np.argmin(results["grid"])), results["tuned"]
        if best in (0, count - 1):
            say(f"the best width of the grid, {around[best]:.3g}, is at its end")
        by_grid, by_tune = times["grid"].median, times["tuned"]
        grid = f"{results['grid'][best]:.6f}", f"{around[best]:.3g}", f"{by_grid:.2f}"
        ours = f"{float(found.error):.6f}", f"{float(found.kernel.width):.3g}"
        steps = len(found.history.errors) - 1
        took = f"{by_tune.median:.2f}", f"{by_tune.first:.1f}", f"{by_tune.median / by_grid:.2f}"
        say(line(name, len(X), *grid, *ours, steps, *took, found.history.reason))
    say(f"\nTest RMSE over {splits} random splits, mean ± standard deviation\n")
    say(head("data", "one width", "one per column", "splits improved"))
    for name, (X, y) in sets.items():
        rmse = []
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(X))
            train, test = np.split(order, [int(0.9 * len(X))])
            for width in (1.0, np.ones(X.shape[1])):
                fit = rls.tune(rls.Gaussian(width), X[train], y[train])
                rmse.append(test_error(fit, X[test], y[test]) ** 0.5)
        one, every = rmse[::2], rmse[1::2]
        cells = (f"{np.mean(part):.4f} ± {np.std(part, ddof=1):.4f}" for part in (one, every))
        say(line(name, *cells, f"{np.less(every, one).sum()} of {splits}"))


# intervals
# ------------------------------------------------------------------------------------------------

LEVELS = (0.8, 0.9, 0.95)
LAMS = np.geomspace(1e-8, 1e2, 61)
# What is proved for every distribution is 1 − kα; of cv+ but for √(2/n).
GUARANTEES = {"jackknife+": 2, "studentised": 2, "cv+": 2, "split": 1}
WORDS = """# How often intervals hold

By `python benchmarks/studies.py intervals --data FOLDER --out benchmarks/report/intervals.md`:
{splits} random splits of each data set into n rows to fit and m to predict, in units of the former.
The kernel is Gaussian, its width the median distance, λ the best of {lams} from {least:g} to
{most:g} by leave-one-out: of all n rows for the jackknife+, plain and studentised by the posterior
variance, and for CV+ in ten folds; of half of them for split-conformal, which takes its quantile
from the other half. Widths are in standard deviations of the target.

Coverage is the mean over splits ± its standard error, as if splits were independent: they share
rows, so that the error is that of splitting, not of another sample of rows. For a level of 1 − α,
`level` says whether coverage is at least the level, `less an error` whether it is at least the
level less one standard error, and `guarantee` whether it is at least what is proved for every
distribution, less one standard error: 1 − 2α for the jackknife+ and CV+, the level itself for
split-conformal. `of split's` is the ratio of mean widths.
"""


def ends_of(X, y, X_new):
    """Both ends by every way at every level: (level, way), (lower, upper)."""
    kernel = rls.Gaussian(float(rls.extend.median_distance(jnp.asarray(X))))
    every = rls.fit(kernel, X, y, lams=LAMS, keep=True)
    groups = {"groups": np.arange(len(X)) % 10, "lams": [float(every.lam)]}
    folds = rls.fit(kernel, X, y, keep=True, **groups)
    half = len(X) // 2
    part = rls.fit(kernel, X[:half], y[:half], lams=LAMS)
    centre, scores = part.predict(X_new), np.sort(np.abs(y[half:] - part.predict(X[half:])))
    for level in LEVELS:
        yield (level, "jackknife+"), every.intervals(X_new, level)
        yield (level, "studentised"), every.intervals(X_new, level, studentised=True)
        yield (level, "cv+"), folds.intervals(X_new, level)
        rank = int(np.ceil(round(level * (len(scores) + 1), 9)))  # of the level that is meant
        reach = scores[rank - 1]
        yield (level, "split"), (centre - reach, centre + reach)


def verdicts(shares, level, way):
    """Mean and standard error of coverage, and whether it is at least the level, the level less the
    error, and the guarantee less the error.
    """
    mean, error = shares.mean(), shares.std(ddof=1) / len(shares) ** 0.5
    proved = 1 - GUARANTEES[way] * (1 - level)
    return mean, error, mean >= level, mean >= level - error, mean >= proved - error


def intervals(data, only=SETS[:4], splits=50, rows=600, out=""):
    """How often intervals by the jackknife+ hold a label, and how wide they are, over random
    splits, beside split-conformal's with the same rows (minutes).

    Exits with 1 where coverage by the jackknife+ is below what is guaranteed, less a standard
    error."""
    warnings.filterwarnings("ignore", "the chosen λ")
    told = {"splits": splits, "lams": len(LAMS), "least": LAMS[0], "most": LAMS[-1]}
    names = ("data", "n", "m", "level", "way", "coverage", "level", "less an error", "guarantee")
    lines, kept = [WORDS.format(**told), head(*names, "width", "of split's")], True
    say("\n".join(lines))
    for name in only:
        if (values := table(name, data)) is None:
            continue
        if len(values) <= rows:
            raise SystemExit(f"--rows {rows} leaves none of {name}'s {len(values)}: take fewer")
        found: dict = {}
        for seed in range(splits):
            drawn = np.random.default_rng(seed).permutation(values)
            X, y, X_new, y_new = scaled(drawn, rows, rows)
            for key, (lower, upper) in ends_of(X, y, X_new):
                inside = np.mean((lower <= y_new) & (y_new <= upper))
                found.setdefault(key, []).append((inside, np.mean(upper - lower)))
        for (level, way), parts in found.items():
            shares, width = np.array(parts).T
            mean, error, *held = verdicts(shares, level, way)
            of_split = width.mean() / np.mean(found[level, "split"], axis=0)[1]
            cells = [f"{mean:.4f} ± {error:.4f}", *("yes" if one else "no" for one in held)]
            cells += [f"{width.mean():.3f}", f"{of_split:.2f}"]
            lines.append(line(name, rows, len(y_new), level, way, *cells))
            say(lines[-1])
            kept = kept and (held[-1] or way == "split")
    if out:
        Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(not kept)


# landmarks, and all rows by products with K
# ------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="leave")
def landmark_path(kernel, X, Y, chosen, leave):
    factor = rls.factorize(kernel, X, landmarks=chosen, leave=leave)
    return rls.path(factor, Y, rls.extend.lambda_grid(factor, 50))


def landmarks(data, only=("kin40k", "protein", "elevators"), rows=2000, dense=16_000, width=20.0):
    """How well the two leave-one-outs on landmarks foresee the test (two minutes), and
    `landmarks="auto"` on elevators beside all of K (ten minutes; `--dense 0` leaves it out).
    """
    say("mean |log(LOO/test)| over 50 λ, the rest (at most 10,000) for the test\n")
    say(head("data", "n", "m", "dictionary fixed", "landmark leaves"))
    for name, (*parts, y_new) in each(only, data, rows, new=10_000):
        X, y, new = map(jnp.asarray, parts)
        kernel = rls.Gaussian(float(np.sqrt(X.shape[1])))
        for m in (rows // 10, rows // 2):
            chosen = rls.choose_landmarks(kernel, X, m, key=jax.random.key(0), method="uniform")
            K, gaps = rls.extend.gram(kernel, new, chosen.points), []
            for leave in (False, True):
                found = landmark_path(kernel, X, y, chosen, leave=leave)
                test = jnp.mean((y_new - found.coef @ K.T - found.intercept[:, None]) ** 2, axis=1)
                gaps.append(f"{float(jnp.mean(jnp.abs(jnp.log(found.loo / test)))):.3f}")
            say(line(name, len(X), m, *gaps))
    for name, (X, y, *_) in each(["elevators"] if dense else [], data, dense):
        say(f"\n{name}, {len(X)} rows\n")
        say(head("way", "seconds", "LOO error", "λ", "certificate"))
        auto = {"landmarks": "auto"}
        for way, options in {"auto, first call": auto, "auto": auto, "all of K": {}}.items():
            seconds, fit = timed(partial(rls.fit, rls.Gaussian(width), X, y, **options))
            cells = f"{seconds:.1f}", f"{float(fit.error):.5f}", f"{float(fit.lam):.3g}"
            say(line(way, *cells, fit.certificate))


def iterative(
    data,
    sets=("kin40k", "protein", "drawn"),
    rows=44_000,
    landmarks=2000,
    tuned_rows=3000,
    steps=200,
    tol=2e-2,
    probes=8,
    centres=(2000, 10_000),
):
    """Fits by products with K in float32, widths tuned on some rows and λ that of landmarks: error,
    steps, seconds, memory, beside a product of nine columns and falkon's fit on so many centres
    (some minutes each; drawn data have the size of keggdirected).
    """
    for name, parts in each(sets, data, rows, 0.9, 4000):
        X, y, X_new, y_new = (part.astype(np.float32) for part in parts)
        start, some = rls.Gaussian(np.ones(X.shape[1])), slice(min(tuned_rows, len(X)))
        tuning, found = timed(lambda: rls.tune(start, X[some], y[some], steps=30))
        kernel, m = found.kernel, min(landmarks, len(X))
        choose = partial(rls.choose_landmarks, kernel, X, m, key=jax.random.key(0))
        choosing, points = timed(choose)
        fitting, subset = timed(lambda: rls.fit(kernel, X, y, landmarks=points))
        lam = float(subset.lam)
        solver = rls.Iterative(points, tol=tol, steps=steps, probes=probes)
        # Without probes the one λ is judged by rows that are not fitted.
        judged = {} if probes else {"criterion": rls.holdout(X_new, y_new)}
        iterating, (fit, words) = timed(
            lambda: heard(kernel, X, y, lams=[lam], solver=solver, **judged)
        )
        predicting, error = timed(lambda: test_error(fit, X_new, y_new))
        on_landmarks = test_error(subset, X_new, y_new) ** 0.5
        say(f"{name}, {X.shape}, λ = {lam:.3g}: test RMSE {error**0.5:.4f}")
        say(f"on {m} landmarks alone {on_landmarks:.4f}")
        if fit.loo_standard_error is not None:
            loo, sure = float(fit.error), float(fit.loo_standard_error)
            say(f"leave-one-out {loo:.5f} ± {sure:.2g}, its root {loo**0.5:.4f}")
        residual = float(np.max(fit.run.residuals))
        told = "; ".join(words) or "no warning"
        say(f"residual {residual:.2g} after {int(fit.run.steps)} steps; {told}")
        x, V = jnp.asarray(X), jnp.ones((len(X), 9))
        product = partial(jax.jit(rls.extend.gram_matmul), kernel, x, x, V)
        times, *_ = interleaved({"product": product}, 3)
        took = {"tuning": tuning, "landmarks": choosing, "fit on them": fitting}
        took |= {"iteration": iterating}
        took |= {"predictions": predicting, "a product of 9 columns": times["product"].median}
        stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in took.items())
        most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say(f"{stages}; peak {most / 2**30:.2f} GiB")
        width = np.asarray(kernel.width)
        for count in centres:
            sizes = {"width": width, "penalty": lam / len(X)}
            falkon = peers.falkon(X, y, min(count, len(X)), X_new, y_new, **sizes)
            if not isinstance(falkon, str):
                seconds, model = timed(falkon.run)
                falkon = f"RMSE {falkon.judge(model) ** 0.5:.4f} in {seconds:.1f} s"
            say(f"falkon, {count} centres: {falkon}")


def subset(data, only=("kin40k",), rows=36_000, landmarks=3000, lam=0.2, tuned_rows=3000):
    """The subset of regressors by conjugate gradients beside that by moments, in float32, on the
    same landmarks at one λ (half a minute).
    """
    for name, parts in each(only, data, rows, new=4000):
        X, y, X_new, y_new = (part.astype(np.float32) for part in parts)
        some, start = slice(tuned_rows), rls.Gaussian(np.ones(X.shape[1], np.float32))
        kernel = rls.tune(start, X[some], y[some], steps=30).kernel
        points = X[np.random.default_rng(0).choice(len(X), landmarks, replace=False)]
        say(f"{name}, {X.shape}, {landmarks} landmarks, λ = {lam:g}\n")
        say(head("by", "test RMSE", "its leave-one-out", "steps", "seconds"))
        for way, solver in {"moments": None, "conjugate gradients": rls.Iterative()}.items():
            options = {"landmarks": points, "lams": [lam], "solver": solver}
            seconds, fit = timed(partial(rls.fit, kernel, X, y, **options))
            errors = (f"{e**0.5:.4f}" for e in (test_error(fit, X_new, y_new), float(fit.error)))
            steps = "" if fit.run is None else int(fit.run.steps)
            say(line(way, *errors, steps, f"{seconds:.0f}"))


def products(data, rows=8000, columns=(3, 8, 30), targets=9, rounds=7):
    """K·V of rows with themselves on a CPU, by all of K and by half of its entries, in times of the
    same product by hand, exp(−½(‖x‖² + ‖z‖² − 2⟨x, z⟩)) V in blocks of 250 rows; of rows near
    their centre, and of rows so far out that differences are taken (half a minute).
    """
    del data
    say(head("dtype", "columns", "rows", "by hand", "all of K", "half of K"))
    for dtype in (np.float32, np.float64):
        for d in columns:
            for where, width in {"near": 2 * d**0.5, "far out": d**0.5 / 2}.items():
                rng = np.random.default_rng(0)
                X = jnp.asarray(rng.normal(size=(rows, d)) / width, dtype)
                V = jnp.asarray(rng.normal(size=(rows, targets)), dtype)
                kernel = rls.Gaussian(jnp.ones((), dtype))
                ways = {
                    "by hand": partial(jax.jit(by_hand), X, V),
                    "all of K": partial(jax.jit(times_in_blocks), kernel, X, X, V),
                    "half of K": partial(jax.jit(square_times), kernel, X, V),
                }
                found, *_ = interleaved(ways, rounds)
                floor = found["by hand"].median
                ratios = (f"{found[way].median / floor:.2f}" for way in ("all of K", "half of K"))
                say(line(np.dtype(dtype).name, d, where, f"{1e3 * floor:.0f} ms", *ratios))


def by_hand(X, V, block=250):
    """exp(−½‖x − z‖²) V, as whoever writes it down first does."""
    squares = jnp.sum(X * X, axis=1)

    def of_block(x):
        distances = jnp.sum(x * x, axis=1)[:, None] + squares - 2 * jnp.matmul(x, X.T)
        return jnp.matmul(jnp.exp(-distances / 2), V)

    return jax.lax.map(of_block, X.reshape(-1, block, X.shape[1])).reshape(V.shape)


def effects(data, draws=100, rows=150):
    """How often 95 % intervals of the effect of a treatment hold the truth, .5, where the function
    is fixed: its column in the kernel, widths tuned by the evidence; its width set to 1; and as a
    fixed effect. Data are drawn (ten minutes).
    """
    tables = {name: [] for name in ("width tuned", "width 1", "fixed effect")}
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        X, treated = rng.normal(size=(rows, 3)), rng.integers(0, 2, rows).astype(float)
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] / 2 + treated / 2 + 0.3 * rng.normal(size=rows)
        inputs, fit = np.column_stack([X, treated]), partial(rls.fit, criterion="evidence")
        tuned = rls.tune(rls.Gaussian(np.ones(4)), inputs, y, criterion="evidence")
        width = np.asarray(tuned.kernel.width)
        wide = fit(rls.Gaussian(np.append(width[:3], 1.0)), inputs, y)
        free = fit(rls.Gaussian(width[:3]), X, y, fixed_effects=treated[:, None]).effects()
        found = tuned.effect(inputs, 3), wide.effect(inputs, 3), free
        for rows_of_table, effect in zip(tables.values(), found, strict=True):
            rows_of_table.append((np.ravel(effect.mean)[-1], np.ravel(effect.std)[-1]))
    say(head("treatment", "holds the truth", "mean − truth", "scatter of means", "standard error"))
    for name, values in tables.items():
        mean, std = np.transpose(values)
        holds = np.mean(np.abs(mean - 0.5) < 1.96 * std)
        numbers = holds, mean.mean() - 0.5, mean.std(), std.mean()
        say(line(name, *(f"{number:.3f}" for number in numbers)))


def one_call(data, only=("kin40k",), dtype="float32", rows=36_000):
    """`tune` of a width for each column on all rows, where K is too large to be stored: errors, the
    λ that were visited and products of K with targets and probes (ten minutes on two cores).
    """
    from jaxrls.iterative.iterative import IterativeGram  # to count its products

    jax.config.update("jax_enable_x64", dtype == "float64")
    for name, parts in each(only, data, rows, new=4000):
        X, y, X_new, y_new = (part.astype(dtype) for part in parts)
        columns, plain = [], IterativeGram.times_kernel

        def counted(factor, V, columns=columns, plain=plain):
            jax.debug.callback(lambda: columns.append(V.shape[1]))
            return plain(factor, V)

        IterativeGram.times_kernel = counted
        try:
            start = rls.Gaussian(np.ones(X.shape[1], dtype))
            seconds, fit = timed(lambda: rls.tune(start, X, y))
        finally:
            IterativeGram.times_kernel = plain
        say(f"{name}, {X.shape}, {dtype}: {fit.plan}")
        loo, sure = float(fit.error) ** 0.5, float(fit.loo_standard_error)
        say(f"test RMSE {test_error(fit, X_new, y_new) ** 0.5:.4f}, leave-one-out {loo:.4f}")
        looks = zip(np.ravel(fit.lams), np.ravel(fit.errors), strict=True)
        visited = ", ".join(f"{lam:.3g} ({error**0.5:.4f})" for lam, error in looks)
        say(f"λ (and leave-one-out) {visited}; best {float(fit.lam):.3g}")
        products = {count: columns.count(count) for count in sorted(set(columns))}
        say(f"products by their columns {products}; {seconds:.0f} s; error ± {sure:.2g}")


def units(data, only=("kin40k",), dtype="float32", rows=36_000, tuned=17_000, lam=0.004):
    """Whole calls in units of a product with K by hand, of the same rows and nine columns, timed
    before and after each call: a fit by `Iterative(2000)` at one λ, and `tune` of a width for each
    column in one call (four minutes on two cores).
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    say(head("data", "rows", "dtype", "call", "a product", "units", "test RMSE"))
    for name, parts in each(only, data, rows, new=4000):
        X, y, X_new, y_new = (part.astype(dtype) for part in parts)
        start = rls.Gaussian(np.ones(X.shape[1], dtype))
        kernel = rls.tune(start, X[:3000], y[:3000], steps=30).kernel
        calls = {
            "fit, Iterative(2000)": (
                len(X),
                lambda: rls.fit(kernel, X, y, lams=[lam], solver=rls.Iterative(2000)),
            ),
            "tune": (tuned, lambda: rls.tune(start, X[:tuned], y[:tuned])),
        }
        for words, (n, call) in calls.items():
            before = unit_of(kernel, X[:n])
            seconds, fit = timed(call)
            unit = (before + unit_of(kernel, X[:n])) / 2
            error = test_error(fit, X_new, y_new) ** 0.5
            numbers = f"{unit:.2f} s", f"{seconds / unit:.0f}", f"{error:.4f}"
            say(line(name, n, np.dtype(dtype).name, words, *numbers))


def unit_of(kernel, X) -> float:
    """Seconds of a product with K by hand, the median of five."""
    block = 250
    x = jnp.asarray(X[: len(X) // block * block]) / jnp.asarray(kernel.width, X.dtype)
    V = jnp.ones((len(x), 9), x.dtype)
    times, *_ = interleaved({"product": partial(jax.jit(by_hand), x, V)}, 5)
    return times["product"].median * (len(X) / len(x)) ** 2


def small(data, rows=(128, 300, 512, 1000), noise=0.1):
    """Second calls of `fit` for few rows in milliseconds, beside NumPy by hand (eigh, 100 λ,
    leave-one-out) and scikit-learn's `KernelRidge` at one λ and `RidgeCV` of K at 100 λ; labels
    with noise, and without, where the best λ lies near the floor (one minute).
    """
    del data
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import RidgeCV

    lams = np.geomspace(1e-6, 1e2, 100)
    say(head("labels", "rows", "fit", "by hand", "ratio", "KernelRidge", "RidgeCV", "test RMSE"))
    for words, scale in {"with noise": noise, "without": 0.0}.items():
        for n in rows:
            rng = np.random.default_rng(0)
            X, X_new = rng.uniform(-2, 2, (n, 2)), rng.uniform(-2, 2, (2000, 2))
            f = lambda X: np.sin(2 * X.sum(axis=1)) + X[:, 0]
            y, kernel = f(X) + scale * rng.normal(size=n), rls.Gaussian(1.0)
            ways = {
                "fit": lambda: heard(kernel, X, y)[0],
                "hand": lambda: path_by_hand(X, y),
                "one": lambda: KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5).fit(X, y),
                "cv": lambda: RidgeCV(alphas=lams).fit(gaussian_by_hand(X, X), y),
            }
            found, results, _ = interleaved(ways, max(5, 10_000 // n))
            times = {way: 1e3 * found[way].median for way in ways}
            coef, mean = results["hand"]
            by_hand_error = peers.mean_square(gaussian_by_hand(X_new, X) @ coef + mean, f(X_new))
            errors = test_error(results["fit"], X_new, f(X_new)) ** 0.5, by_hand_error**0.5
            ms = (f"{times[way]:.1f} ms" for way in ("fit", "hand"))
            others = (f"{times[way]:.1f} ms" for way in ("one", "cv"))
            ratio = f"{times['fit'] / times['hand']:.2f}"
            judged = "{:.2g}, by hand {:.2g}".format(*errors)
            say(line(words, n, *ms, ratio, *others, judged))


def gaussian_by_hand(X, Z):
    """K of width 1 in NumPy."""
    squares = (X**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2 * X @ Z.T
    return np.exp(-np.maximum(squares, 0) / 2)


def path_by_hand(X, y, count=100):
    """Coefficients at the best of 100 λ by leave-one-out, and the mean, in NumPy."""
    s, U = np.linalg.eigh(gaussian_by_hand(X, X))
    floor = np.finfo(float).eps * len(X) ** 0.5 * s[-1]
    inverses = 1 / (s[:, None] + np.geomspace(floor, 10 * s.sum(), count))
    coef = U @ ((U.T @ (y - y.mean()))[:, None] * inverses)
    left_out = coef / (U**2 @ inverses)
    return coef[:, (left_out**2).mean(axis=0).argmin()], y.mean()


IN_FLOAT64 = (tuning, intervals, landmarks, effects, products, small)
STUDIES = (
    *(float32, search, tuning, intervals, landmarks, iterative, subset, effects, one_call),
    *(products, units, small),
)


def main():
    """A study for every name; its arguments are its options, of the type of their defaults."""
    parser = options_of(__doc__)
    commands = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
    for study in STUDIES:
        words = study.__doc__
        summary = words.split("\n\n")[0].replace("\n    ", " ")
        command = commands.add_parser(study.__name__, help=summary, description=words)
        command.set_defaults(run=study)
        for name, parameter in inspect.signature(study).parameters.items():
            flag, default = f"--{name.replace('_', '-')}", parameter.default
            if name == "data":
                there = os.environ.get("JAXRLS_DATA")
                command.add_argument(flag, default=there, help="folder of NAME.csv.gz")
            elif isinstance(default, bool):
                command.add_argument(flag, action="store_true")
            else:
                several = isinstance(default, tuple)
                kind = type(default[0] if several else default)
                options = {"nargs": "+"} if several else {}
                command.add_argument(flag, default=default, type=kind, help=f"{default}", **options)
    options = vars(parser.parse_args())
    options.pop("study")
    study = options.pop("run")
    jax.config.update("jax_enable_x64", study in IN_FLOAT64)
    study(**options)


if __name__ == "__main__":
    main()
