"""float32 against float64: default fits on real data, and what every function loses over condition
numbers.

    python benchmarks/float32.py --data FOLDER                  # default fits: 2000 rows, and 500
    landmarks of all rows (ten minutes) python benchmarks/float32.py --data FOLDER --parts refined
    # fits refined in float64, at a thousandth of the floor and by a search (five minutes) python
    benchmarks/float32.py --data FOLDER --parts backward # the backward error of a Cholesky factor
    of K at its floor (five minutes) python benchmarks/float32.py --table docs/float32.md        #
    every function and route over condition numbers (two minutes, no data)

FOLDER (or the environment variable JAXRLS_DATA) holds NAME.csv.gz: no header, the target last. The
airfoil data come with the package. Columns are standardised, so that errors are fractions of the
target's variance. Widths are the median distance, one tuned and one for every column tuned, in
float64 on 500 rows."""

import argparse
import os
import warnings
from functools import partial
from pathlib import Path

import datasets
import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls

DATA_SETS = ("airfoil", "concrete", "energy", "elevators", "kin40k", "protein")
ROWS, LANDMARKS, TEST_ROWS, TUNED_ROWS = 2000, 500, 5000, 500
CONDITIONS = 10.0 ** np.arange(0, 13, 2)
SOLVERS = {
    None: None,
    "subset": None,
    "cholesky": rls.Cholesky(),
    **{way: rls.Spectral(way) for way in ("gram", "features", "covariance")},
}
MARK = "<!-- made by benchmarks/float32.py --table; what is above is kept -->"


def load(name, folder, n):
    """Training rows, n or four fifths of all at most, and up to 5000 others, standardised by the
    training rows; None where there is no file.
    """
    table = datasets.table(name, folder)
    if table is None:
        return None
    table = np.random.default_rng(0).permutation(table)
    n = min(n, int(0.8 * len(table)))
    scale = table[:n].std(axis=0)
    table = (table - table[:n].mean(axis=0)) / np.where(scale > 0, scale, 1)
    rest = table[n : n + TEST_ROWS]
    return table[:n, :-1], table[:n, -1], rest[:, :-1], rest[:, -1]


def widths(X, y):
    """The widths from the data, and tuned."""
    some = X[:TUNED_ROWS], y[:TUNED_ROWS]
    yield "median", float(rls.median_distance(jnp.asarray(X)))
    yield "tuned", float(rls.tune(rls.Gaussian(1.0), *some).kernel.width)
    yield (
        "each",
        np.asarray(rls.tune(rls.Gaussian(np.ones(X.shape[1])), *some, steps=30).kernel.width),
    )


def heard(width, X, y, **options):
    """The fit in the precision of X, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = rls.fit(rls.Gaussian(np.asarray(width, X.dtype)), X, y.astype(X.dtype), **options)
    return fit, [str(w.message) for w in caught]


def left_out(width, X, y, lams, solver, **options):
    """Leave-one-out errors in the precision of X, NaN where the factor broke down."""
    with jax.enable_x64(X.dtype == np.float64):
        kernel = rls.Gaussian(np.asarray(width, X.dtype))
        factor = rls.factorize(kernel, X, solver=solver, **options)
        return np.asarray(rls.loo(factor, y.astype(X.dtype), lams), float)


def compare(name, label, width, data, landmarks):
    """Default fits in both precisions, and where below and above the floor the leave-one-out error
    is off by more than 5 %.
    """
    X, y, X_new, y_new = data
    options = {"landmarks": None if landmarks is None else np.arange(landmarks)}
    test, fits, said = {}, {}, {}
    for dtype in (np.float64, np.float32):
        fit, said[dtype] = heard(width, X.astype(dtype), y, **options)
        test[dtype] = float(
            np.mean((np.asarray(fit.predict(X_new.astype(dtype)), float) - y_new) ** 2)
        )
        fits[dtype] = fit
    floor = float(fits[np.float32].floor)
    lams = (floor * np.geomspace(1e-3, 1e3, 49)).astype(np.float32)
    solvers = {np.float64: None, np.float32: SOLVERS[str(fits[np.float32].route)]}
    errors = [
        left_out(width, X.astype(d), y, lams.astype(d), solvers[d], **options) for d in solvers
    ]
    off = ~(np.abs(errors[1] / errors[0] - 1) <= 0.05)
    worst = f"{lams[off].max() / floor:.3g}" if off.any() else "never"
    ratio = test[np.float32] / test[np.float64] - 1
    words = "; ".join(message.split(":")[0] for message in said[np.float32]) or "none"
    alone = "" if said[np.float64] or not said[np.float32] else " (float64: none)"
    lam, best = float(fits[np.float32].lam), float(fits[np.float64].lam)
    print(
        f"| {name} | {len(X)}{'' if landmarks is None else f', {landmarks} landmarks'} | {label} | {test[np.float64]:.5f} | {test[np.float32]:.5f} "
        f"| {100 * ratio:+.2f} % | {best / floor:.3g} | {lam / floor:.3g} | {worst} | {words}{alone} |",
        flush=True,
    )


def off(got, want):
    """The largest difference over the largest number."""
    return f"{np.abs(np.asarray(got, float) - want).max() / np.abs(want).max():.0e}"


def refined(names, folder):
    """Float32 alone and refined against float64 at a thousandth of the floor, and the best λ of a
    search that is refined: widths the median distance.
    """
    print(
        "| data | rows | coefficients, float32 | refined | left out, float32 | refined | steps | test error, float64 | float32 | refined | λ/floor |"
    )
    print("|" + "---|" * 11, flush=True)
    for name in names:
        if (data := load(name, folder, ROWS)) is None:
            continue
        X, y, X_new, y_new = data
        X, y, X_new = (part.astype(np.float32) for part in (X, y, X_new))
        width = float(rls.median_distance(jnp.asarray(X)))
        plain, exact = heard(width, X, y)[0], heard(width, X.astype(float), y)[0]
        floor = float(plain.floor)
        at = {"lams": [1e-3 * floor]}
        truth = heard(np.float32(width), X.astype(float), y, solver=rls.Cholesky(), **at)[0]
        try:
            narrow = heard(width, X, y, solver=rls.Spectral("gram"), **at)[0]
            alone = [
                off(narrow.model.coef, truth.model.coef),
                off(narrow.loo_residuals, truth.loo_residuals),
            ]
        except ValueError:
            alone = ["NaN", "NaN"]
        fit = heard(width, X, y, **at, solver=rls.Refined())[0]
        best = heard(width, X, y, lams="search", solver=rls.Refined())[0]
        test = [
            float(np.mean((np.asarray(one.predict(X_new), float) - y_new) ** 2))
            for one in (exact, plain, best)
        ]
        print(
            f"| {name} | {len(X)} | {alone[0]} | {off(fit.model.coef, truth.model.coef)} | {alone[1]} | {off(fit.loo_residuals, truth.loo_residuals)} "
            f"| {int(fit.run.steps)} | {test[0]:.5f} | {test[1]:.5f} | {test[2]:.5f} | {float(best.lam) / floor:.3g} |",
            flush=True,
        )


def backward(names, folder):
    """The backward error of a float32 Cholesky factor of K + λI, λ the floor: in norm, and beside
    what float64 has, in every direction.
    """
    print("| data | rows | width | ‖E‖/(√n·eps) | ‖E‖/(eps·s_max) | ρ | ρλ/(√n·eps) |")
    print("|" + "---|" * 7, flush=True)
    eps = float(np.finfo(np.float32).eps)
    for name in names:
        if (data := load(name, folder, ROWS)) is None:
            continue
        X = data[0].astype(np.float32)
        for label, width in widths(*data[:2]):
            kernel = rls.Gaussian(np.asarray(width, np.float32))
            factor = rls.factorize(kernel, X, solver=rls.Cholesky())
            lam, unit = factor.precision_floor(), len(X) ** 0.5 * eps
            L = np.asarray(jnp.linalg.cholesky(factor.K + lam * jnp.eye(len(X))), float)
            with jax.enable_x64(True):
                G = np.array(
                    rls.gram(
                        jax.tree.map(lambda a: np.asarray(a, float), kernel), jnp.asarray(X, float)
                    )
                )
                largest = float(jnp.linalg.norm(jnp.asarray(G), 2))
                G[np.diag_indices(len(X))] += float(lam)
                inside = np.linalg.inv(np.linalg.cholesky(G))
                E = L @ L.T - G
                size, rho = (
                    float(np.abs(np.linalg.eigvalsh(part)).max())
                    for part in (E, inside @ E @ inside.T)
                )
            print(
                f"| {name} | {len(X)} | {label} | {size / unit:.2f} | {size / (eps * largest):.2f} | {rho:.3f} | {rho * float(lam) / unit:.2f} |",
                flush=True,
            )


def on_data(names, folder, parts):
    """The table of default fits."""
    print(
        "| data | rows | width | test error, float64 | float32 | more by | λ/floor, float64 | float32 | 5 % off up to | float32 warns |"
    )
    print("|" + "---|" * 10, flush=True)
    for name in names:
        if (data := load(name, folder, ROWS)) is None:
            continue
        for label, width in widths(*data[:2]):
            if "rows" in parts:
                compare(name, label, width, data, None)
            if "landmarks" in parts:
                compare(name, label, width, load(name, folder, 10**9), LANDMARKS)


# every function over condition numbers
# -----------------------------------------------------------------------------------------

N = 120
ROUTES = (
    "gram",
    "features",
    "covariance",
    "subset",
    "cholesky, K",
    "cholesky, features",
    "cholesky, landmarks",
)


def problem(dtype, noise=0.1):
    """Rows, labels with a little noise, and new rows, the same numbers in both precisions."""
    rng = np.random.default_rng(0)
    X, X_new = (rng.normal(size=(size, 2)).astype(np.float32) for size in (N, 20))
    f = lambda X: np.sin(2 * X[:, 0]) + X[:, 1] ** 2
    Y, Y_new = ((f(Z) + noise * rng.normal(size=len(Z))).astype(np.float32) for Z in (X, X_new))
    return tuple(jnp.asarray(part, dtype) for part in (X, Y, X_new, Y_new))


def cosines(X):
    """Forty random features whose covariance is badly conditioned."""
    rng = np.random.default_rng(1)
    W, b = (
        jnp.asarray(rng.normal(size=(2, 40)), X.dtype),
        jnp.asarray(rng.uniform(0, 6, 40), X.dtype),
    )
    return jnp.cos(jnp.matmul(X, W, precision="highest") + b)


def kernel_of(route, dtype):
    return (
        rls.FeatureMap(cosines)
        if route in ("features", "covariance", "cholesky, features")
        else rls.Gaussian(np.asarray(1.5, dtype))
    )


def options_of(route):
    """What `factorize` and `fit` take it by."""
    chosen = jnp.arange(0, N, 3) if route in ("subset", "cholesky, landmarks") else None
    name = (
        route
        if route in ("gram", "features", "covariance")
        else "cholesky"
        if route.startswith("cholesky")
        else None
    )
    return {"landmarks": chosen, "solver": SOLVERS[name]}


def factor_of(route, X):
    """The factor by one of them."""
    return rls.factorize(kernel_of(route, X.dtype), X, **options_of(route))


@partial(jax.jit, static_argnames="route")
def everything(X, Y, X_new, Y_new, lams, *, route):
    """What every function of a factor gives at every λ, λ leading."""
    kernel, factor = kernel_of(route, X.dtype), factor_of(route, X)
    design, plan = factor.expansion.design(kernel, X_new), rls.folds(np.arange(N) % 10)
    coef, intercept, _ = factor.solve(Y).coefficients(lams)
    found = {
        "coef, in predictions": jnp.matmul(design, coef[..., 0].T, precision="highest").T
        + intercept,
        "loo": rls.loo(factor, Y, lams),
        "loo_residuals": jax.lax.map(lambda lam: rls.loo_residuals(factor, Y, lam), lams),
        "kfold": rls.kfold(plan)(factor, Y, lams),
        "gcv": rls.gcv(factor, Y, lams),
        "log_marginal_likelihood": rls.log_marginal_likelihood(factor, Y, lams),
        "holdout": rls.holdout(design, Y_new)(factor, Y, lams),
        "effective_dof": rls.effective_dof(factor, lams),
    }
    if route == "cholesky, K":

        def objective(log_width, lam):
            return rls.objective(rls.Gaussian(jnp.exp(log_width)), X, Y, lam)

        start = jnp.log(jnp.asarray(1.5, X.dtype))
        found["objective, gradient"] = jax.lax.map(
            lambda lam: jax.grad(objective)(start, lam), lams
        )
    if route not in ("cholesky, K", "cholesky, features", "cholesky, landmarks"):
        found["influence, leverage"] = jax.lax.map(
            lambda lam: rls.influence(factor, Y, lam).leverage, lams
        )
    return found, factor.precision_floor()


def doors(X, Y, X_new, lams, *, route):
    """What `fit` at every λ, its predictions and `path` give; NaN where `fit` says that the
    factorization broke down.
    """
    kernel, found = kernel_of(route, X.dtype), []
    for lam in lams:
        try:
            fit = rls.fit(kernel, X, Y, lams=lam[None], **options_of(route))
            found.append((fit.error, fit.predict(X_new)))
        except ValueError:
            found.append((np.nan, np.full(len(X_new), np.nan)))
    errors, predictions = zip(*found, strict=True)
    factor = jax.jit(factor_of, static_argnums=0)(route, X)
    return {
        "path, coef": jax.jit(rls.path)(factor, Y, lams).coef,
        "fit, error": np.array(errors),
        "fit, predict": np.array(predictions),
    }


def relative(got, want):
    """The largest error over the largest value, at every λ."""
    got, want = (np.asarray(part, float).reshape(len(CONDITIONS), -1) for part in (got, want))
    return np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)


def measured(route):
    """Errors of every function at every condition number, and the floor over s_max."""
    largest = scale(route)
    lams = largest / CONDITIONS
    results = {}
    for dtype in (jnp.float64, jnp.float32):
        X, Y, X_new, Y_new = problem(dtype)
        found, floor = everything(X, Y, X_new, Y_new, jnp.asarray(lams, dtype), route=route)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # most of these λ are below the floor, which the headings say
            results[dtype] = jax.device_get(
                (doors(X, Y, X_new, jnp.asarray(lams, dtype), route=route) | found, floor)
            )
    (want, _), (got, floor) = results[jnp.float64], results[jnp.float32]
    return {name: relative(got[name], want[name]) for name in want}, float(floor) / largest


def scale(route):
    """s_max, of a Cholesky factor that of the spectrum of the same K or features."""
    route = {
        "cholesky, K": "gram",
        "cholesky, features": "covariance",
        "cholesky, landmarks": "subset",
    }.get(route, route)
    return float(
        jax.jit(lambda X: jnp.max(factor_of(route, X).spectrum().s))(problem(jnp.float64)[0])
    )


NOISES = 10.0 ** np.arange(0, -5, -1)


def chosen(dtype, noise):
    """What the functions that choose λ, or a kernel too, have found, and s_max/λ of the first."""
    X, Y, X_new, _ = problem(dtype, noise)
    kernel = rls.Gaussian(np.asarray(1.5, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit, tuned = rls.fit(kernel, X, Y), rls.tune(kernel, X, Y)
    found = {
        "best_lam": jax.jit(rls.best_lam)(kernel, X, Y),
        "fit, λ": fit.lam,
        "fit, error": fit.error,
        "fit, predict": fit.predict(X_new),
    }
    found |= {
        "tune, λ": tuned.lam,
        "tune, width": tuned.kernel.width,
        "tune, error": tuned.error,
        "tune, predict": tuned.predict(X_new),
    }
    return found, scale("gram") / float(fit.lam)


def searches():
    """The table of what chooses λ: a column for a level of noise."""
    columns, conditions = [], []
    for noise in NOISES:
        (want, condition), (got, _) = (
            jax.device_get(chosen(dtype, noise)) for dtype in (jnp.float64, jnp.float32)
        )
        columns.append(
            {
                name: float(np.max(np.abs(got[name] - want[name])) / np.max(np.abs(want[name])))
                for name in want
            }
        )
        conditions.append(condition)
    yield "### what chooses λ: a column for each level of noise, and s_max/λ where float64 chose"
    yield ""
    yield (
        "| | "
        + " | ".join(
            f"{noise:g}: {condition:.0e}"
            for noise, condition in zip(NOISES, conditions, strict=True)
        )
        + " |"
    )
    yield "|" + "---|" * (len(NOISES) + 1)
    yield from (
        f"| `{name}` | " + " | ".join(shown(column[name]) for column in columns) + " |"
        for name in columns[0]
    )


def shown(error):
    return f"{error:.0e}" if error < 0.5 else "lost"


def table(file):
    """Write the table below the words at the top of the file."""
    lines = [MARK, ""]
    for route in ROUTES:
        errors, floor = measured(route)
        lines += [f"### {route}: the floor is at s_max/λ = {1 / floor:.0e}", ""]
        lines += [
            "| | " + " | ".join(f"{c:.0e}" for c in CONDITIONS) + " |",
            "|" + "---|" * (len(CONDITIONS) + 1),
        ]
        lines += [
            f"| `{name}` | " + " | ".join(map(shown, row)) + " |" for name, row in errors.items()
        ] + [""]
    lines += searches()
    path = Path(file)
    words = path.read_text().split(MARK)[0] if path.exists() else ""
    path.write_text(words + "\n".join(lines).rstrip() + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of NAME.csv.gz"
    )
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=DATA_SETS)
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("rows", "landmarks", "refined", "backward"),
        default=("rows", "landmarks"),
    )
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="write the table of every function into this Markdown file instead",
    )
    options = parser.parse_args()
    if options.table:
        jax.config.update("jax_enable_x64", True)
        table(options.table)
    elif "refined" in options.parts:
        refined(options.only, options.data)
    elif "backward" in options.parts:
        backward(options.only, options.data)
    else:
        on_data(options.only, options.data, options.parts)


if __name__ == "__main__":
    main()
