"""What is measured on data sets and beside other ways, each study by its name; every study prints
Markdown tables, and its own --help names its options.

    python benchmarks/studies.py STUDY [--data FOLDER] [options]

FOLDER (or the environment variable JAXRLS_DATA) holds NAME.csv.gz: no header, the target last, as
in github.com/treforevans/uci_datasets. The airfoil data come with the package. Columns are
standardised, so that errors are fractions of the target's variance."""

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

from common import head, in_a_process, interleaved, line, load, peak, say, scaled, table, timed

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import peers

import jaxrls as rls
from jaxrls import extend

SETS = ("airfoil", "concrete", "energy", "elevators", "kin40k", "protein")


def each(names, folder, *args, **options):
    """Names and data of those that are there, as `load` gives them."""
    for name in names:
        if (data := load(name, folder, *args, **options)) is not None:
            yield name, data


def heard(width, X, y, **options):
    """The fit in the precision of X, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(rls.Gaussian(np.asarray(width, X.dtype)), X, y.astype(X.dtype), **options)
    return fit, [str(one.message) for one in caught]


def quietly(call, *args, **options):
    """A call whose warnings are the headings of its table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **options)


def test_error(fit, X_new, y_new) -> float:
    return peers.mean_square(np.asarray(fit.predict(X_new), float), y_new)


# float32 against float64
# ------------------------------------------------------------------------------------------------


def widths(X, y):
    """The median distance, one width tuned and one for every column tuned, on 500 rows."""
    some = X[:500], y[:500]
    yield "median", float(rls.median_distance(jnp.asarray(X)))
    yield "tuned", float(rls.tune(rls.Gaussian(1.0), *some).kernel.width)
    start = rls.Gaussian(np.ones(X.shape[1]))
    yield "each", np.asarray(rls.tune(start, *some, steps=30).kernel.width)


def float32(data, only=SETS, landmarks=False):
    """Default fits in both precisions: 2000 rows, or 500 landmarks of all rows (ten minutes both)."""
    say(
        head(
            *("data", "rows", "width", "test error, float64", "float32", "more by"),
            *("λ/floor, float64", "float32", "5 % off up to", "float32 warns"),
        )
    )
    for name, part in each(only, data, 2000):
        for label, width in widths(*part[:2]):
            whole = load(name, data, 10**9) if landmarks else part
            say(line(name, *both_precisions(label, width, whole, 500 if landmarks else None)))


def both_precisions(label, width, data, landmarks):
    """One row: and where below and above the floor leave-one-out is off by more than 5 %."""
    X, y, X_new, y_new = data
    options = {"landmarks": None if landmarks is None else np.arange(landmarks)}
    test, fits, said = {}, {}, {}
    for dtype in (np.float64, np.float32):
        fits[dtype], said[dtype] = heard(width, X.astype(dtype), y, **options)
        test[dtype] = test_error(fits[dtype], X_new.astype(dtype), y_new)
    wide, narrow = fits.values()
    floor, route = float(narrow.floor), str(narrow.route)
    solver = rls.Cholesky() if route == "cholesky" else rls.Spectral(route)
    lams = (floor * np.geomspace(1e-3, 1e3, 49)).astype(np.float32)

    def left_out(dtype, solver):  # NaN where the factor broke down
        with jax.enable_x64(dtype == np.float64):
            kernel = rls.Gaussian(np.asarray(width, dtype))
            factor = rls.factorize(kernel, X.astype(dtype), solver=solver, **options)
            return np.asarray(rls.loo(factor, y.astype(dtype), lams.astype(dtype)), float)

    narrow_errors = left_out(np.float32, None if route == "subset" else solver)
    off = ~(np.abs(narrow_errors / left_out(np.float64, None) - 1) <= 0.05)
    words = "; ".join(message.split(":")[0] for message in said[np.float32]) or "none"
    alone = "" if said[np.float64] or not said[np.float32] else " (float64: none)"
    yield from (f"{len(X)}{'' if landmarks is None else f', {landmarks} landmarks'}", label)
    yield from (f"{test[np.float64]:.5f}", f"{test[np.float32]:.5f}")
    yield f"{100 * (test[np.float32] / test[np.float64] - 1):+.2f} %"
    yield from (f"{float(fit.lam) / floor:.3g}" for fit in (wide, narrow))
    yield from (f"{lams[off].max() / floor:.3g}" if off.any() else "never", words + alone)


def off(got, want):
    """The largest difference over the largest number."""
    return np.abs(np.asarray(got, float) - want).max() / np.abs(want).max()


def float32_refined(data, only=SETS):
    """Float32 alone and refined against float64 at a thousandth of the floor, and the best λ of a
    refined search: widths the median distance (five minutes).
    """
    say(
        head(
            *("data", "rows", "coefficients, float32", "refined", "left out, float32", "refined"),
            *("steps", "test error, float64", "float32", "refined", "λ/floor"),
        )
    )
    for name, (*part, y_new) in each(only, data, 2000):
        X, y, X_new = (values.astype(np.float32) for values in part)
        width = float(rls.median_distance(jnp.asarray(X)))
        plain, exact = heard(width, X, y)[0], heard(width, X.astype(float), y)[0]
        floor = float(plain.floor)
        at = {"lams": [1e-3 * floor]}
        truth = heard(np.float32(width), X.astype(float), y, solver=rls.Cholesky(), **at)[0]

        def errors(solver):
            try:
                fit = heard(width, X, y, solver=solver, **at)[0]
            except ValueError:  # the factor broke down
                return None, ["NaN", "NaN"]
            found = (
                off(fit.model.coef, truth.model.coef),
                off(fit.loo_residuals, truth.loo_residuals),
            )
            return fit, [f"{one:.0e}" for one in found]

        (_, alone), (fit, better) = errors(rls.Spectral("gram")), errors(rls.Refined())
        best = heard(width, X, y, lams="search", solver=rls.Refined())[0]
        tests = (f"{test_error(one, X_new, y_new):.5f}" for one in (exact, plain, best))
        pairs = alone[0], better[0], alone[1], better[1]
        at_best = f"{float(best.lam) / floor:.3g}"
        say(line(name, len(X), *pairs, int(fit.run.steps), *tests, at_best))


MARK = "<!-- made by benchmarks/studies.py float32-table; what is above is kept -->"
CONDITIONS = 10.0 ** np.arange(0, 13, 2)
NOISES = 10.0 ** np.arange(0, -5, -1)
ROUTES = {  # by random features or by K, on landmarks or all rows, and the solver
    "gram": (False, False, rls.Spectral("gram")),
    "features": (True, False, rls.Spectral("features")),
    "covariance": (True, False, rls.Spectral("covariance")),
    "subset": (False, True, None),
    "cholesky, K": (False, False, rls.Cholesky()),
    "cholesky, features": (True, False, rls.Cholesky()),
    "cholesky, landmarks": (False, True, rls.Cholesky()),
}


def small(dtype, noise=0.1):
    """120 rows, labels with a little noise, and new rows, the same numbers in both precisions."""
    rng = np.random.default_rng(0)
    X, X_new = (rng.normal(size=(size, 2)).astype(np.float32) for size in (120, 20))
    labels = lambda Z: np.sin(2 * Z[:, 0]) + Z[:, 1] ** 2 + noise * rng.normal(size=len(Z))
    Y, Y_new = (labels(Z).astype(np.float32) for Z in (X, X_new))
    return tuple(jnp.asarray(part, dtype) for part in (X, Y, X_new, Y_new))


def cosines(X):
    """Forty random features whose covariance is badly conditioned."""
    rng = np.random.default_rng(1)
    W, b = (
        jnp.asarray(part, X.dtype) for part in (rng.normal(size=(2, 40)), rng.uniform(0, 6, 40))
    )
    return jnp.cos(jnp.matmul(X, W, precision="highest") + b)


def by_route(route, dtype):
    """The kernel, and options of `factorize` and `fit`."""
    features, on_landmarks, solver = ROUTES[route]
    kernel = rls.FeatureMap(cosines) if features else rls.Gaussian(np.asarray(1.5, dtype))
    return kernel, {"landmarks": jnp.arange(0, 120, 3) if on_landmarks else None, "solver": solver}


@partial(jax.jit, static_argnames="route")
def everything(X, Y, X_new, Y_new, lams, *, route):
    """What every function of a factor gives at every λ, λ leading, and the floor."""
    kernel, options = by_route(route, X.dtype)
    factor = rls.factorize(kernel, X, **options)
    design, plan = factor.expansion.design(kernel, X_new), rls.folds(np.arange(120) % 10)
    coef, intercept, _ = factor.solve(Y).coefficients(lams)
    predictions = jnp.matmul(design, coef[..., 0].T, precision="highest").T + intercept
    at_each = lambda fn: jax.lax.map(fn, lams)
    found = {
        "coef, in predictions": predictions,
        "loo": rls.loo(factor, Y, lams),
        "loo_residuals": at_each(lambda lam: rls.loo_residuals(factor, Y, lam)),
        "kfold": rls.kfold(plan)(factor, Y, lams),
        "gcv": rls.gcv(factor, Y, lams),
        "log_marginal_likelihood": rls.log_marginal_likelihood(factor, Y, lams),
        "holdout": rls.holdout(design, Y_new)(factor, Y, lams),
        "effective_dof": rls.effective_dof(factor, lams),
    }
    if route == "cholesky, K":
        value = lambda log_width, lam: rls.objective(rls.Gaussian(jnp.exp(log_width)), X, Y, lam)
        start = jnp.log(jnp.asarray(1.5, X.dtype))
        found["objective, gradient"] = at_each(lambda lam: jax.grad(value)(start, lam))
    if not route.startswith("cholesky"):
        leverage = lambda lam: rls.influence(factor, Y, lam).leverage
        found["influence, leverage"] = at_each(leverage)
    return found, factor.precision_floor()


def doors(X, Y, X_new, lams, route):
    """What `path`, and `fit` at every λ, give; NaN where the factorization broke down."""
    kernel, options = by_route(route, X.dtype)
    errors, predictions = [], []
    for lam in lams:
        try:
            fit = rls.fit(kernel, X, Y, lams=lam[None], **options)
            errors.append(fit.error), predictions.append(fit.predict(X_new))
        except ValueError:
            errors.append(np.nan), predictions.append(np.full(len(X_new), np.nan))
    path = jax.jit(lambda X, Y, lams: rls.path(rls.factorize(kernel, X, **options), Y, lams))
    return {
        "path, coef": path(X, Y, lams).coef,
        "fit, error": np.array(errors),
        "fit, predict": np.array(predictions),
    }


def largest(route):
    """s_max, which has no digits of its own: by the solver that is the default."""
    X = small(jnp.float64)[0]
    kernel, options = by_route(route, X.dtype)
    factor = rls.factorize(kernel, X, landmarks=options["landmarks"])
    return float(jnp.max(factor.spectrum().s))


def over_conditions(route):
    """Errors of every function at every condition number, and s_max over the floor."""
    s_max, results = largest(route), []
    for dtype in (jnp.float64, jnp.float32):
        X, Y, X_new, Y_new = small(dtype)
        lams = jnp.asarray(s_max / CONDITIONS, dtype)
        found, floor = everything(X, Y, X_new, Y_new, lams, route=route)
        found = quietly(doors, X, Y, X_new, lams, route) | found
        results.append(jax.device_get((found, floor)))
    (want, _), (got, floor) = results
    errors = {
        name: [off(*pair) for pair in zip(got[name], want[name], strict=True)] for name in want
    }
    return errors, s_max / float(floor)


def chosen(dtype, noise):
    """What the functions that choose λ, or a kernel too, have found."""
    X, Y, X_new, _ = small(dtype, noise)
    kernel = rls.Gaussian(np.asarray(1.5, dtype))
    fit, tuned = quietly(rls.fit, kernel, X, Y), quietly(rls.tune, kernel, X, Y)
    found = {"best_lam": jax.jit(rls.best_lam)(kernel, X, Y), "tune, width": tuned.kernel.width}
    for name, one in (("fit", fit), ("tune", tuned)):
        parts = {"λ": one.lam, "error": one.error, "predict": one.predict(X_new)}
        found |= {f"{name}, {part}": value for part, value in parts.items()}
    return jax.device_get(found)


def float32_table(out="benchmarks/report/float32.md"):
    """Errors of every function and route over condition numbers, written below the words of a
    Markdown file (two minutes, no data).
    """
    shown = lambda error: f"{error:.0e}" if error < 0.5 else "lost"
    lines = [MARK, ""]
    for route in ROUTES:
        errors, floor = over_conditions(route)
        lines += [f"### {route}: the floor is at s_max/λ = {floor:.0e}", ""]
        lines += [
            head("", *(f"{condition:.0e}" for condition in CONDITIONS)).replace("|  |", "| |")
        ]
        lines += [line(f"`{name}`", *map(shown, row)) for name, row in errors.items()] + [""]
    s_max, found = largest("gram"), []
    for noise in NOISES:
        want, got = (chosen(dtype, noise) for dtype in (jnp.float64, jnp.float32))
        errors = {name: off(got[name], want[name]) for name in want}
        found.append((f"{noise:g}: {s_max / float(want['fit, λ']):.0e}", errors))
    lines += [
        "### what chooses λ: a column for each level of noise, and s_max/λ where float64 chose",
        "",
        head("", *(title for title, _ in found)).replace("|  |", "| |"),
    ]
    lines += [
        line(f"`{name}`", *(shown(errors[name]) for _, errors in found)) for name in found[0][1]
    ]
    path = Path(out)
    words = path.read_text(encoding="utf-8").split(MARK)[0] if path.exists() else ""
    path.write_text(words + "\n".join(lines) + "\n", encoding="utf-8")


# searches: for λ, and for kernels
# ------------------------------------------------------------------------------------------------


def search(data, only=SETS, rows=2000):
    """`lams="search"` against a grid of a hundred λ at three widths: the errors found, and the
    Cholesky factors that took (ten minutes).

    "as good" are the λ of the grid's valleys that are within 1 % of its best."""
    say(
        head(
            *("data", "width", "error of the grid", "of the search", "more by", "factors"),
            *("λ of the grid", "of the search", "as good on the grid", "the search says"),
        )
    )
    for name, (X, y, *_) in each(only, data, rows):
        for label, width in widths(X, y):
            grid, _ = heard(width, X, y, solver=rls.Spectral("gram"))
            found, _ = heard(width, X, y, lams="search", solver=rls.Cholesky())
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


def in_order(name, folder):
    """All rows as they come, standardised."""
    values = table(name, folder)
    return None if values is None else scaled(values, len(values))[:2]


@jax.jit
def best_of_path(width, X, y):
    """The smallest leave-one-out error over 100 λ at one width."""
    factor = rls.factorize(rls.Gaussian(width), X)
    return jnp.min(rls.loo(factor, y, rls.lambda_grid(factor, 100)))


def tuning(data, only=("airfoil", "concrete", "energy"), quick=False):
    """Width and λ by gradient from width 1, beside 40 widths × 100 λ, medians of five interleaved
    rounds; and one width per column against one for all, over ten random splits 90/10.
    """
    count, splits, rounds = (10, 2, 1) if quick else (40, 10, 5)
    sets = {name: pair for name in only if (pair := in_order(name, data)) is not None}
    say(
        head(
            *("data", "n", f"best of {count} × 100", "its width", "s", "tuned", "its width"),
            *("steps", "s", "first call, s", "time ratio", "stopped"),
        )
    )
    for name, (X, y) in sets.items():
        X, y = jnp.asarray(X), jnp.asarray(y)
        around = rls.median_distance(X) * jnp.geomspace(1 / 20, 20, count)
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
    for name in (one for one in sets if one != "concrete"):
        (X, y), rmse = sets[name], []
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(X))
            train, test = np.split(order, [int(0.9 * len(X))])
            fits = [
                rls.tune(rls.Gaussian(width), X[train], y[train])
                for width in (1.0, np.ones(X.shape[1]))
            ]
            rmse.append([test_error(fit, X[test], y[test]) ** 0.5 for fit in fits])
        one, every = np.array(rmse).T
        cells = (f"{part.mean():.4f} ± {part.std(ddof=1):.4f}" for part in (one, every))
        say(line(name, *cells, f"{int((every < one).sum())} of {splits}"))


LARGE = {"pol": 13_500, "kin40k": 36_000, "protein": 41_000}


def many_rows(name, folder):
    """So many standardised rows, drawn by chance; pol by a function of some of its 26 columns, half
    of them steps.
    """
    rng, n = np.random.default_rng(0), LARGE[name]
    if name != "pol":
        pair = in_order(name, folder)
        some = rng.permutation(n if pair is None else len(pair[0]))[:n]
        return None if pair is None else (pair[0][some], pair[1][some])
    X = rng.normal(size=(n, 26))
    X[:, 13:] = X[:, 13:] > 0.5
    y = np.sin(2 * X[:, 0]) * X[:, 1] + np.abs(X[:, 2] + X[:, 3] / 2)
    y += np.cos(X[:, 4] * X[:, 5]) / 2 + 0.3 * X[:, 13] * X[:, 0]
    y += 0.1 * X[:, 6] + 0.1 * rng.normal(size=n)
    return scaled(np.column_stack([X, y]), n)[:2]


def tuning_large(data, only=tuple(LARGE), rounds=3):
    """A width per column on 500 landmarks of all rows, begun on few rows and on all, and a step
    beside its two products with the rows; pol is drawn in the size of that data set.
    """
    say(
        head(
            *("data", "n", "d", "few rows first, s", "on all, s", "ratio", "its error", "on all"),
            *("ratio", "steps, on few + all", "on all", "step / products"),
        )
    )
    for name in only:
        if (pair := many_rows(name, data)) is None:
            continue
        (X, y), (n, d), m = pair, pair[0].shape, 500
        tune = partial(rls.tune, rls.Gaussian(np.ones(d)), X, y, landmarks=m)
        ways = {"few": partial(tune, grow=True), "all": partial(tune, grow=False)}
        took = {way: [] for way in ways}
        for _ in range(rounds + 1):  # the first compiles
            for way, run in ways.items():
                seconds, ways_found = timed(run)
                took[way].append((seconds, ways_found))
        few, every = (np.median([seconds for seconds, _ in took[way][1:]]) for way in ways)
        found = [took[way][-1][1] for way in ways]
        errors = [float(one.error) for one in found]
        before = " + ".join(str(len(part.history.errors) - 1) for part in found[0].history.stages)
        steps = [len(one.history.errors) - 1 for one in found]

        x, t, rows = jnp.asarray(X), jnp.asarray(y), jnp.arange(m) * (n // m)
        A, B = (jax.random.normal(jax.random.key(0), shape) for shape in ((n, m), (m, m)))
        value = lambda width, lam: rls.objective(rls.Gaussian(width), x, t, lam, landmarks=rows)
        step = jax.jit(jax.value_and_grad(value, (0, 1)))
        calls = {
            "step": lambda: step(jnp.full(d, d**0.5), 0.1),
            "products": partial(jax.jit(lambda A, B: (A @ B, A.T @ A)), A, B),
        }
        times, *_ = interleaved(calls, 5 * rounds)
        share = times["step"].median / times["products"].median
        cells = f"{few:.1f}", f"{every:.1f}", f"{few / every:.2f}", *(f"{e:.5f}" for e in errors)
        last = f"{before} + {steps[0]}", steps[1], f"{share:.2f}"
        say(line(name, n, d, *cells, f"{errors[0] / errors[1]:.3f}", *last))


# intervals
# ------------------------------------------------------------------------------------------------

LEVELS = (0.8, 0.9, 0.95)
LAMS = np.geomspace(1e-8, 1e2, 61)
# What is proved for every distribution is 1 − kα; of cv+ but for √(2/n).
GUARANTEES = {"jackknife+": 2, "studentised": 2, "cv+": 2, "split": 1}
WORDS = """# How often intervals hold

By `python benchmarks/studies.py coverage --data FOLDER --out benchmarks/report/intervals.md`: {splits} random splits of each data set into n rows to
fit and m to predict, in units of the former. The kernel is Gaussian, its width the median distance, λ the best of {lams} from {least:g} to {most:g} by
leave-one-out: of all n rows for the jackknife+, plain and studentised by the posterior variance, and for CV+ in ten folds; of half of them for
split-conformal, which takes its quantile from the other half. Widths are in standard deviations of the target.

Coverage is the mean over splits ± its standard error, as if splits were independent: they share rows, so that the error is that of splitting, not of
another sample of rows. For a level of 1 − α, `level` says whether coverage is at least the level, `less an error` whether it is at least the level less
one standard error, and `guarantee` whether it is at least what is proved for every distribution, less one standard error: 1 − 2α for the jackknife+ and
CV+, the level itself for split-conformal. `of split's` is the ratio of mean widths.
"""


def ends_of(X, y, X_new):
    """Both ends by every way at every level: (level, way), (lower, upper)."""
    kernel = rls.Gaussian(float(rls.median_distance(jnp.asarray(X))))
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


def coverage(data, only=SETS[:4], splits=50, rows=600, out=""):
    """How often intervals by the jackknife+ hold a label, and how wide they are, over random splits,
    beside split-conformal's with the same rows (minutes).

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
        width = {key: np.mean(parts, axis=0)[1] for key, parts in found.items()}
        for level in LEVELS:
            for way in GUARANTEES:
                shares = np.array(found[level, way])[:, 0]
                mean, error, *held = verdicts(shares, level, way)
                cells = [f"{mean:.4f} ± {error:.4f}", *("yes" if one else "no" for one in held)]
                cells.append(f"{width[level, way]:.3f}")
                cells.append(f"{width[level, way] / width[level, 'split']:.2f}")
                lines.append(line(name, rows, len(y_new), level, way, *cells))
                say(lines[-1])
                kept = kept and (held[-1] or way == "split")
    if out:
        Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(not kept)


def interval_time(n=4000, m=10_000, rounds=5):
    """10,000 intervals at n = 4000, beside the product of 10,000 × 4000 × 4000."""
    rng = np.random.default_rng(0)
    say(head("precision", "what", "seconds", "of the product"))
    for dtype in (np.float64, np.float32):
        drawn = lambda *shape, dtype=dtype: jnp.asarray(rng.normal(size=shape), dtype)
        X, new, A, B = drawn(n, 8), drawn(m, 8), drawn(m, n), drawn(n, n)
        y = jnp.sin(X[:, 0]) + jnp.asarray(0.3 * rng.standard_t(4, n), dtype)
        fit = rls.fit(rls.Gaussian(3.0), X, y, lams=[0.1], keep=True)
        product = jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest"))
        contestants = {
            f"product {m} × {n} × {n}": partial(product, A, B),
            "intervals": partial(fit.intervals, new, 0.9),
            "intervals, studentised": partial(fit.intervals, new, 0.9, studentised=True),
        }
        timings, _, failures = interleaved(contestants, rounds)
        assert not failures, failures
        floor = next(iter(timings.values())).median
        for name, one in timings.items():
            say(line(dtype.__name__, name, f"{one.median:.3f}", f"{one.median / floor:.2f}"))


# all rows by products with K
# ------------------------------------------------------------------------------------------------


def iterative(
    data,
    rows=36_000,
    landmarks=2000,
    tuned_rows=3000,
    steps=40,
    tol=1e-2,
    probes=0,
    centres=(2000, 10_000),
):
    """A fit of kin40k by products with K, widths tuned on some rows: error, steps, seconds, memory,
    beside falkon's on so many centres (some minutes).
    """
    if (parts := load("kin40k", data, rows, 0.9, 4000)) is None:
        return
    X, y, X_new, y_new = parts
    start, some = rls.Gaussian(np.ones(X.shape[1])), slice(min(tuned_rows, rows))
    tuning, found = timed(lambda: quietly(rls.tune, start, X[some], y[some], steps=30))
    choose = partial(rls.landmarks, found.kernel, X, min(landmarks, len(X)), key=jax.random.key(0))
    choosing, points = timed(choose)
    solver = rls.Iterative(points, tol=tol, steps=steps, probes=probes, dtype="float32")
    # Without probes the one λ is judged by rows that are not fitted.
    judged = {} if probes else {"criterion": rls.holdout(X_new, y_new)}
    options = {"lams": [float(found.lam)], "solver": solver} | judged
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterating, fit = timed(lambda: rls.fit(found.kernel, X, y, **options))
    predicting, error = timed(lambda: test_error(fit, X_new, y_new))
    at = f"kin40k, {len(X):,} rows, {len(points.points)} landmarks, λ = {float(found.lam):.3g}"
    say(f"{at}: test RMSE {error**0.5:.4f}")
    if fit.loo_standard_error is not None:
        loo, sure = float(fit.error), float(fit.loo_standard_error)
        say(f"leave-one-out {loo:.5f} ± {sure:.2g}, its root {loo**0.5:.4f}")
    words = "; ".join(str(one.message) for one in caught) or "no warning"
    residual = float(np.max(fit.run.residuals))
    say(f"residual {residual:.2g} after {int(fit.run.steps)} steps; {words}")
    names = "tuning", "landmarks", "iteration", "predictions"
    took = zip(names, (tuning, choosing, iterating, predicting), strict=True)
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took)
    say(f"{stages}; peak {peak() / 2**30:.2f} GiB")
    for count in centres:
        falkon = peers.falkon(
            *(X.astype(np.float32), y.astype(np.float32), min(count, len(X))),
            *(X_new.astype(np.float32), y_new.astype(np.float32)),
            width=np.asarray(found.kernel.width, np.float32),
            penalty=float(found.lam) / len(X),
        )
        if not isinstance(falkon, str):
            seconds, model = timed(falkon.run)
            falkon = f"RMSE {falkon.judge(model) ** 0.5:.4f} in {seconds:.1f} s"
        say(f"falkon, {count} centres: {falkon}")


# landmarks, columns and pairs
# ------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="leave")
def landmark_path(kernel, X, Y, chosen, leave):
    factor = rls.factorize(kernel, X, landmarks=chosen, leave=leave)
    return rls.path(factor, Y, rls.lambda_grid(factor, 50))


def two_loos(data, only=("kin40k", "protein", "elevators"), rows=2000):
    """How well the two leave-one-outs on landmarks foresee the test (two minutes)."""
    sets = {}
    for name in only:
        if (pair := in_order(name, data)) is not None:
            order = np.random.default_rng(0).permutation(len(pair[0]))
            sets[name] = [jnp.asarray(part[order]) for part in pair]
    say(f"mean |log(LOO/test)| over 50 λ, n = {rows}, the rest (at most 10000) for the test\n")
    say(head("data", "m", "dictionary fixed", "landmark leaves"))
    for name, (X, y) in sets.items():
        kernel = rls.Gaussian(float(np.sqrt(X.shape[1])))
        new, y_new = X[rows:][:10_000], y[rows:][:10_000]
        X, y = X[:rows], y[:rows]
        for m in (rows // 10, rows // 2):
            chosen = rls.landmarks(kernel, X, m, key=jax.random.key(0), method="uniform")
            K, gaps = rls.gram(kernel, new, chosen.points), []
            for leave in (False, True):
                found = landmark_path(kernel, X, y, chosen, leave=leave)
                test = jnp.mean((y_new - found.coef @ K.T - found.intercept[:, None]) ** 2, axis=1)
                gaps.append(f"{float(jnp.mean(jnp.abs(jnp.log(found.loo / test)))):.3f}")
            say(line(name, len(chosen.indices), *gaps))


def tune_and_fit(file):
    """What the new process of `cold` does: the width goes from the median distance, in steps of √2,
    to where the best of 100 λ is least, on 800 landmarks; and predictions.
    """
    data = np.load(file)
    X, y = data["X"], data["y"]
    width = float(jax.jit(rls.median_distance)(X))
    landmarks = np.random.default_rng(0).permutation(len(X))[:800]
    fit = lambda step: rls.fit(rls.Gaussian(width * 2 ** (step / 2)), X, y, landmarks=landmarks)

    best, wider = fit(0), fit(1)
    step, best, direction = (1, wider, 1) if wider.error < best.error else (0, best, -1)
    while (ahead := fit(step + direction)).error < best.error:
        step, best = step + direction, ahead
    test = peers.mean_square(best.predict(data["X_new"]), data["y_new"])
    return [float(part) for part in (best.model.kernel.width, best.lam, best.error, test)]


def cold(data, rounds=3, rows=10_000):
    """A new process that imports, compiles, tunes and fits elevators, beside one KernelRidge.fit of
    scikit-learn.
    """
    from sklearn.kernel_ridge import KernelRidge

    if (parts := load("elevators", data, rows, 1, None)) is None:
        return
    X, y, X_new, y_new = parts
    took = []
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/data.npz"
        np.savez(file, X=X, y=y, X_new=X_new, y_new=y_new)
        for _ in range(rounds):
            ours, (width, lam, loo, test) = timed(partial(in_a_process, tune_and_fit, file))
            ridge = KernelRidge(kernel="rbf", gamma=0.5 / width**2, alpha=lam)
            took.append((ours, timed(partial(ridge.fit, X, y))[0]))
    ours, theirs = np.median(took, axis=0)
    say(f"elevators, n = {len(X)}, float64, medians of {rounds}\n")
    say(f"tune and fit on 800 landmarks, whole process with compilation: {ours:.1f} s")
    say(f"one KernelRidge.fit with width and λ given: {theirs:.1f} s\n")
    say(f"width {width:.3g}, λ {lam:.3g}, LOO error {loo:.5f}, test error {test:.5f}")


def auto(data, rows=16_000, width=20.0):
    """`fit(landmarks="auto")` on elevators beside the dense route (minutes)."""
    if (parts := load("elevators", data, rows, 1)) is None:
        return
    fit = partial(rls.fit, rls.Gaussian(width), *parts[:2])
    ways = {"auto, first call": {"landmarks": "auto"}, "auto": {"landmarks": "auto"}, "dense": {}}
    found = {name: timed(partial(fit, **options)) for name, options in ways.items()}
    say(head("way", "seconds", "LOO error", "λ", "certificate"))
    for name, (seconds, one) in found.items():
        cells = f"{seconds:.1f}", f"{float(one.error):.5f}", f"{float(one.lam):.3g}"
        say(line(name, *cells, one.certificate))
    first, again, dense = found.values()
    say(
        f"\ndense / auto: {dense[0] / again[0]:.1f} times, {dense[0] / first[0]:.1f} with compilation"
    )
    say(f"LOO error of auto / dense: {float(again[1].error) / float(dense[1].error):.4f}")


def every_tenth(n, d):
    """Columns, every tenth of which labels depend on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, ::10] @ rng.normal(size=X[:, ::10].shape[1]) + rng.normal(size=n)


def selection(quick=False, rounds=3):
    """Greedy choices by leave-one-out: columns beside scikit-learn's loop of refits, which must be
    the same, and landmarks by labels beside random pivots.
    """
    from sklearn.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import LeaveOneOut

    n, d, num = (40, 8, 2) if quick else (100, 20, 4)
    X, y = every_tenth(n, d)
    options = {"cv": LeaveOneOut(), "scoring": "neg_mean_squared_error"}
    loop = SequentialFeatureSelector(Ridge(alpha=1.0), n_features_to_select=num, **options)
    A, b = map(jnp.asarray, (X, y))
    ways = {
        "ours": lambda: rls.select_columns(A, b, num, 1.0),
        "theirs": lambda: loop.fit(X, y),
    }
    times, results, failures = interleaved(ways, rounds)
    assert not failures, failures
    same = set(np.flatnonzero(loop.get_support())) == set(results["ours"].columns.tolist())
    assert same, "other columns"
    ours, theirs = times["ours"].median, times["theirs"].median
    say(
        f"\n{num} of {d} columns, {n} rows: {ours:.2g} s, SequentialFeatureSelector {theirs:.3g} s\n"
    )

    X, y, _ = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    fitted, tested = np.split(np.random.default_rng(0).permutation(len(X)), [700])
    kernel, lam, X, y, X_new, y_new = (
        *(rls.Gaussian(2.0), 1e-3, X[fitted], y[fitted], X[tested], y[tested]),
    )

    def error(chosen):
        fit = quietly(rls.fit, kernel, X, y, landmarks=chosen, lams=[lam])
        return test_error(fit, X_new, y_new)

    say(head("landmarks, airfoil", "by labels", "random pivots, mean of draws"))
    for m in (10,) if quick else (10, 30, 100):
        pivots = [
            error(rls.landmarks(kernel, X, m, key=jax.random.key(seed)))
            for seed in range(1 if quick else 5)
        ]
        by_labels = error(rls.select_landmarks(kernel, X, y, m, lam).landmarks)
        say(line(m, f"{by_labels:.1f}", f"{np.mean(pivots):.1f}"))


def products(U, s, lams, blocks=1):
    """The entries of P = U diag(1/(s + λ)) Uᵀ at every λ, whole or in blocks of rows, of which
    nothing but a sum is kept. Barriers keep divisions, and the sum, out of the product.
    """
    keep, parts = jax.lax.optimization_barrier, U.reshape(blocks, -1, U.shape[1])

    def at(lam):
        d = 1 / (s + lam)
        entries = lambda part: keep(jnp.matmul(keep(part * d), U.T, precision="highest"))
        return jnp.sum(jax.lax.map(lambda part: jnp.sum(entries(part)), parts))

    return jax.lax.map(at, lams)


def pairs(sizes=(4000,), lams=100, rounds=3, single=False):
    """What leaving out all pairs of rows takes from one spectrum, as a share of the products that
    make P at each λ, whole or in blocks, whichever is faster; `--single` in float32.
    """
    jax.config.update("jax_enable_x64", not single)
    dtype = np.dtype("float32" if single else "float64").type
    grid = jnp.geomspace(1e-2, 1e2, lams, dtype=dtype)
    say(head("n", "work", "seconds", "share of the products", "from to"))
    for n in sizes:
        rng = np.random.default_rng(0)
        X = jnp.asarray(rng.normal(size=(n, 8)), dtype)
        y = jnp.sin(X[:, 0]) + 0.5 * jnp.asarray(rng.normal(size=n), dtype)
        classes = jnp.where(y > jnp.median(y), 1.0, -1.0).astype(dtype)
        factor = jax.jit(rls.factorize)(rls.Gaussian(dtype(8**0.5)), X).spectrum()
        made = partial(
            jax.jit(products, static_argnames="blocks"), factor.left_vectors(), factor.s, grid
        )
        blocks = next(count for count in range(max(1, n // 500), 0, -1) if n % count == 0)
        ways = {
            "products that make P": made,
            "the same in blocks of rows": partial(made, blocks=blocks),
        }
        run = jax.jit(
            lambda criterion, Y, factor, grid: criterion.values(
                factor.solve(Y), grid[:, None], None
            )[:, 0]
        )
        for name, criterion, Y in (
            ("all pairs, concordance", rls.PairsOut(), y),
            ("all pairs, AUC of labels not known to jit", rls.PairsOut(), classes),
            ("positive with negative rows, AUC", rls.PairsOut().bind(classes), classes),
            ("all pairs, squared loss", rls.PairsOut(loss=rls.squared_error), y),
        ):
            ways[name] = partial(run, criterion, Y, factor, grid)
        seconds = np.array(
            [[timed(way)[0] for way in ways.values()] for _ in range(rounds + 1)][1:]
        )
        shares = seconds / seconds[:, :2].min(axis=1, keepdims=True)
        for name, took, part in zip(ways, seconds.T, shares.T, strict=True):
            cells = f"{np.median(took):.3g}", f"{np.median(part):.2f}"
            say(line(n, name, *cells, f"{part.min():.2f} – {part.max():.2f}"))


# processes of their own
# ------------------------------------------------------------------------------------------------


def write_shards(folder, rows, columns):
    """Twenty shards of a smooth function of all columns with noise, the target last."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=columns) / columns**0.5
    for i, part in enumerate(np.array_split(np.arange(rows), 20)):
        X = rng.normal(size=(len(part), columns)).astype(np.float32)
        y = np.sin(2 * X @ w) + 0.1 * rng.normal(size=len(part))
        np.save(f"{folder}/part{i:03}.npy", np.column_stack([X, y]).astype(np.float32))


def moments(kind, folder, landmarks):
    """What a process of `stream` does: seconds until the rows are known, seconds of the moments and
    the leave-one-out errors of 100 λ, peak bytes, λ and error.
    """
    from jaxrls.rows.compiled import compiled

    start = time.perf_counter()
    stream, kernel = rls.stream(f"{folder}/*.npy"), rls.Gaussian(2.0)
    problem = extend.Problem.of(kernel, stream, None, landmarks=landmarks)
    known = time.perf_counter() - start
    if kind == "memory":
        files = sorted(Path(folder).glob("*.npy"))
        rows = extend.DenseRows(
            jnp.asarray(np.concatenate([np.load(file)[:, :-1] for file in files]))
        )
        problem = extend.Problem.of(kernel, rows, stream.labels, landmarks=problem.landmarks)
    lams = jnp.geomspace(1e-2, 1e4, 100, dtype=problem.rows.dtype)

    @compiled
    def run(problem):  # what `fit` takes from both: else the compiler drops the trace residual
        solution = problem.solution()
        return problem.errors(solution, lams), solution.factor.report

    seconds, found = timed(lambda: np.asarray(jax.block_until_ready(run(problem))[0]))
    return [known, seconds, peak(), float(lams[found.argmin()]), float(found.min())]


def stream(rows=10_000_000, columns=10, landmarks=500, rounds=1):
    """A fit to float32 rows on disk beside the same sums on rows in memory, each in a process of its
    own: seconds, peak memory, λ and error.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder, rows, columns)
        took = {"stream": [], "memory": []}
        say(head("rows", "s to know them", "s", "GiB at most", "λ", "error"))
        for _ in range(rounds):
            for kind in took:
                known, seconds, most, lam, error = in_a_process(moments, kind, folder, landmarks)
                took[kind].append(seconds)
                cells = f"{known:.1f}", f"{seconds:.1f}", f"{most / 2**30:.2f}", f"{lam:.4g}"
                say(line(kind, *cells, f"{error:.7g}"))
        say(f"stream/memory: {np.median(took['stream']) / np.median(took['memory']):.2f}")


def path_and_eigh(n):
    """What a process of `waiting` does: seconds of the path and of the bare eigendecomposition."""
    jax.config.update("jax_enable_x64", True)
    X, kernel = jax.random.normal(jax.random.key(0), (n, 8)), rls.Gaussian(2.0)
    y, lams, K = jnp.sin(X[:, 0]), jnp.geomspace(1e-3, 1e2, 100), rls.gram(kernel, X)
    path = jax.jit(lambda X, y: rls.loo(rls.factorize(kernel, X), y, lams))
    ways = {"path": partial(path, X, y), "eigh": partial(jax.jit(jnp.linalg.eigh), K)}
    return [one.median for one in interleaved(ways)[0].values()]


def waiting(n=(1000, 2000), timeouts=(26, 4, 18), rounds=3):
    """How long OpenBLAS's threads should wait before they sleep: path and eigendecomposition by
    OPENBLAS_THREAD_TIMEOUT, a logarithm of cycles, which is 26 where it is unset; alone and beside
    a busy process.
    """
    say(head("n", "beside", *(f"2^{one}: path, eigh" for one in timeouts)))
    for beside in ("nothing", "a busy process"):
        busy = [sys.executable, "-c", "while True: pass"]
        other = subprocess.Popen(busy) if beside != "nothing" else None
        try:
            for size in n:
                found = [
                    [
                        in_a_process(path_and_eigh, size, OPENBLAS_THREAD_TIMEOUT=str(one))
                        for one in timeouts
                    ]
                    for _ in range(rounds)
                ]
                medians = 1e3 * np.median(found, axis=0)
                say(line(size, beside, *(f"{p:.0f} ms, {e:.0f} ms" for p, e in medians)))
        finally:
            if other:
                other.kill()


# scikit-learn's data sets
# ------------------------------------------------------------------------------------------------


def sklearn_models(classes: bool, tune: bool) -> dict:
    """Estimators by name, ours and theirs: theirs by a search over 6 α × 9 γ in five folds, labels
    as ±1 and targets standardised, as KernelRidge fits no constant.
    """
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.model_selection import GridSearchCV
    from sklearn.preprocessing import StandardScaler

    from jaxrls.sklearn import RLSClassifier, RLSRegressor

    class KernelRidgeClassifier(ClassifierMixin, BaseEstimator):
        """KernelRidge on ±1 codes."""

        def __init__(self, alpha=1.0, gamma=None):
            self.alpha, self.gamma = alpha, gamma

        def fit(self, X, y):
            codes, self.classes_ = rls.encode(y)
            self.ridge_ = KernelRidge(kernel="rbf", alpha=self.alpha, gamma=self.gamma)
            self.ridge_.fit(X, codes)
            return self

        def predict(self, X):
            return rls.decode(self.ridge_.predict(X), self.classes_)

    class BestKernel(BaseEstimator):
        """Of four kernels, each with its λ, the one of the least leave-one-out error."""

        def fit(self, X, y):
            kernels = "gaussian", "matern52", "matern32", "laplacian"
            fits = [ours(kernel).fit(X, y) for kernel in kernels]
            self.best_ = min(fits, key=lambda one: np.mean(one.loo_error_))
            return self

        def score(self, X, y):
            return self.best_.score(X, y)

    grid = {"alpha": np.logspace(-4, 1, 6), "gamma": np.logspace(-4, 0, 9)}
    alphas = np.logspace(-3, 5, 100)
    if classes:
        ours, linear = RLSClassifier, RidgeClassifierCV(alphas)
        searched = GridSearchCV(KernelRidgeClassifier(), grid)
    else:
        ours, linear = RLSRegressor, RidgeCV(alphas)
        inner = GridSearchCV(KernelRidge(kernel="rbf"), grid)
        searched = TransformedTargetRegressor(inner, transformer=StandardScaler())
    tuned = {"gaussian, tuned": ours(tune=True)} if tune else {}
    theirs = {"linear": ours("linear"), "RidgeCV": linear}
    return {
        "gaussian": ours(),
        **tuned,
        "best of four": BestKernel(),
        "grid search": searched,
    } | theirs


def sklearn(only=("digits", "wine", "cancer", "diabetes"), splits=10):
    """RLSClassifier and RLSRegressor beside tuned scikit-learn on the data sets that it carries, half
    of the rows to fit: accuracy or R² on the others, and seconds.
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    warnings.simplefilter("ignore")
    say(
        head(
            *("data", "rows × columns", "jaxrls", "score (%)", "scikit-learn"),
            *("gain ± standard error", "first fit (s)", "fit (s)", "theirs (s)"),
        )
    )
    for name in only:
        loader = (
            datasets.load_breast_cancer if name == "cancer" else getattr(datasets, f"load_{name}")
        )
        X, y = loader(return_X_y=True)
        classes, found = name != "diabetes", {}
        for seed in range(splits):
            by_class = {"stratify": y if classes else None, "random_state": seed}
            X_fit, X_new, y_fit, y_new = train_test_split(X, y, test_size=0.5, **by_class)
            for who, model in sklearn_models(classes, len(X_fit) <= 1000).items():
                model = make_pipeline(StandardScaler(), model)
                seconds, _ = timed(partial(model.fit, X_fit, y_fit))
                found.setdefault(who, []).append((100 * model.score(X_new, y_new), seconds))
        scores, seconds = ({who: np.array(v)[:, i] for who, v in found.items()} for i in range(2))
        for who in (one for one in scores if one not in ("grid search", "RidgeCV")):
            against = "RidgeCV" if who == "linear" else "grid search"
            gain = scores[who] - scores[against]
            error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
            said = f"{'accuracy' if classes else 'R²'} {scores[who].mean():.1f}"
            cells = (
                said,
                f"{against} {scores[against].mean():.1f}",
                f"{gain.mean():+.2f} ± {error:.2f}",
            )
            later = seconds[who][1:] if splits > 1 else seconds[who]
            took = f"{seconds[who][0]:.2f}", f"{np.median(later):.3f}"
            shape = f"{X_fit.shape[0]} × {X_fit.shape[1]}"
            say(line(name, shape, who, *cells, *took, f"{np.median(seconds[against]):.3f}"))


IN_FLOAT64 = (
    *(float32_table, tuning, tuning_large, coverage, interval_time),
    *(two_loos, selection),
)
STUDIES = (
    *(float32, float32_refined, float32_table, search, tuning, tuning_large),
    *(coverage, interval_time, iterative, two_loos, cold, auto),
    *(selection, pairs, stream, waiting, sklearn),
)


def main():
    """A study for every name; its arguments are its options, of the type of their defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
    for study in STUDIES:
        words = study.__doc__
        command = commands.add_parser(
            study.__name__.replace("_", "-"), help=words.splitlines()[0], description=words
        )
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
                said = f"{default}".replace("%", "%%")
                command.add_argument(flag, default=default, type=kind, help=said, **options)
    options = vars(parser.parse_args())
    options.pop("study")
    study = options.pop("run")
    jax.config.update("jax_enable_x64", study in IN_FLOAT64)
    study(**options)


if __name__ == "__main__":
    main()
