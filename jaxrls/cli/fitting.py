"""`fit`: a table read, fitted, reported and saved."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxrls as rls
from jaxrls.cli.columns import standardisation
from jaxrls.cli.report import TITLES, at_terminal, count, first_line, in_classes, report, say
from jaxrls.io.tables import read_table
from jaxrls.rows.spread import standardise
from jaxrls.support.checks import check_weights

# kernels of a width
RADIAL: dict[str, Callable] = {
    "gaussian": rls.Gaussian,
    "laplacian": rls.Laplacian,
    "matern12": lambda width: rls.Matern(0.5, width),
    "matern32": lambda width: rls.Matern(1.5, width),
    "matern52": lambda width: rls.Matern(2.5, width),
    "rational-quadratic": rls.RationalQuadratic,
}
KERNELS = (*RADIAL, "polynomial", "linear")
CRITERIA = {"loo": rls.loo, "gcv": rls.gcv, "kfold": rls.kfold, "evidence": rls.log_marginal_likelihood}
LANDMARKS_TO_TUNE = 500
PICTURES = (".png", ".pdf", ".svg")


def run_fit(args) -> None:
    """Read, fit, report, save."""
    check_outputs(args.out, args.plot)
    columns = {"target": args.target, "groups": args.groups, "weights": args.weights}
    table = read_table(args.data, **columns, labels=args.classify, header=args.header, max_inflation=args.max_inflation)
    d = table.X.shape[1]
    if table.weights is not None:
        check_column_of_weights(args, table.weights)
    means, scales = standardisation(table.X, table.weights) if args.standardize else (np.zeros(d), np.ones(d))
    X = standardise(table.X, means, scales)
    Y, classes = code(table.y, table.layout["target"])
    kernel, words = make_kernel(args.kernel, args.width, args.degree, X, args.standardize)
    criterion, groups = make_criterion(args, table.groups, len(X))
    loss = rls.zero_one_loss if classes is not None and criterion in (rls.loo, rls.kfold) else rls.squared_error
    options: dict[str, Any] = {"weights": table.weights, "intercept": args.intercept}
    if args.landmarks != "auto" and args.landmarks is not None and args.landmarks > len(X):
        raise ValueError(f"--landmarks must be at most {len(X)}, the rows of {args.data}, and is {args.landmarks}")

    target = f"target {table.layout['target']}{in_classes(classes)}"
    say("data", f"{args.data}: {count(len(X), 'row')}, {count(d, 'input')}, {target}{first_line(table.header)}")
    say("kernel", words)
    start = time.perf_counter()
    if args.tune:
        few = LANDMARKS_TO_TUNE if args.landmarks == "auto" and len(X) > 4 * LANDMARKS_TO_TUNE else args.landmarks
        kernel = tune_kernel(kernel, X, Y, criterion, groups, {**options, "landmarks": None if few == "auto" else few})
    grid = {"lams": args.lams, "num": args.num_lams or 100}
    fit = rls.fit(
        kernel,
        X,
        Y,
        **grid,
        criterion=criterion,
        loss=loss,
        groups=groups,
        landmarks=args.landmarks,
        progress=at_terminal(),
        **options,
    )
    seconds = time.perf_counter() - start
    report(fit, Y, classes, table.weights)
    say("time", f"{seconds:.1f} s, compilation included")
    if args.out:
        extra = {
            "layout": table.layout,
            "means": means.tolist(),
            "scales": scales.tolist(),
            "classes": None if classes is None else classes.tolist(),
        }
        rls.save(args.out, fit, extra=extra)
        say("saved", args.out)
    if args.plot:
        fit.plot().figure.savefig(args.plot, dpi=150)
        say("drawn", args.plot)


def check_outputs(out, plot) -> None:
    """Raise before the work starts where its results could not be written."""
    for path in filter(None, (out, plot)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ValueError(f"{path} cannot be written: there is no folder {folder}")
    if plot:
        if os.path.splitext(plot)[1] not in PICTURES:
            raise ValueError(f"--plot takes a file that ends in {', '.join(PICTURES)}, and got {plot}")
        try:
            import matplotlib
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install 'jaxrls[plot]'") from None
        matplotlib.use("agg")


def check_column_of_weights(args, weights) -> None:
    """Raise where the column of weights holds none."""
    try:
        check_weights(weights, len(weights))
    except ValueError as error:
        raise ValueError(f"{args.data}: column {args.weights}: {error}") from None


def code(y, target) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers as they are, labels as ±1 codes with their classes."""
    if y.dtype.kind != "U":
        return y, None
    Y, classes = rls.encode(y)
    if len(classes) > max(2, len(y) // 2):
        raise ValueError(f"target {target} has {len(classes)} different labels in {len(y)} rows: name the right column with --target")
    return Y, classes


def make_kernel(name, width, degree, X, standardized) -> tuple[rls.Kernel, str]:
    """The kernel, and what to say of it."""
    if name == "linear":
        return rls.Linear(), name
    if name == "polynomial":
        degree = degree or 2
        return rls.Polynomial(degree), f"{name}, degree {degree}"
    if width is not None:
        return RADIAL[name](width), f"{name}, width {width:.4g}"
    kernel = from_data(RADIAL[name](1.0), X)
    rows = "standardised rows" if standardized else "rows"
    return kernel, f"{name}, width {float(kernel.width):.4g} (the median distance between {rows})"  # type: ignore[attr-defined]


def from_data(kernel, X) -> rls.Kernel:
    """The kernel with the median distance for its width."""
    with jax.enable_x64(X.dtype == np.float64):
        return jax.tree.map(float, jax.jit(rls.start_from_data)(kernel, X))


def tune_kernel(kernel, X, Y, criterion, groups, options) -> rls.Kernel:
    """The kernel with its parameters tuned by gradient, before and after in words."""
    tuned = rls.tune(kernel, X, Y, criterion=criterion, groups=groups, progress=at_terminal(), **options)
    steps = len(tuned.history.errors) - 1
    say(
        "tuned",
        f"{TITLES[criterion.__name__]} {float(tuned.start_error):.4g} -> {float(tuned.error):.4g} in {count(steps, 'step')}: {tuned.reason}",
    )
    names = [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]]
    for name, before, after in zip(names, jax.tree.leaves(kernel), jax.tree.leaves(tuned.kernel), strict=True):
        say("", f"{name} {float(before):.4g} -> {float(after):.4g}")
    say("", f"lambda -> {float(tuned.lam):.4g}; what follows takes the best of a grid, which passes near it")
    return tuned.kernel


def make_criterion(args, groups, n: int):
    """The criterion, and the group labels it needs: those of a column, or folds drawn by chance from a fixed seed."""
    name = args.criterion or ("loo" if groups is None else "kfold")
    if name == "kfold" and groups is None:
        groups = np.random.default_rng(0).permutation(n) % min(args.folds, n)
    return CRITERIA[name], groups
