"""`fit`: a table read, fitted, reported and saved."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxrls as rls
from jaxrls.cli.reading import in_line, read_data
from jaxrls.cli.report import TITLES, at_terminal, count, in_classes, report, say

# kernels of a width
RADIAL: dict[str, Callable] = {
    "gaussian": rls.Gaussian,
    "laplacian": rls.Laplacian,
    "matern12": lambda width: rls.Matern(0.5, width),
    "matern32": lambda width: rls.Matern(1.5, width),
    "matern52": lambda width: rls.Matern(2.5, width),
    "rational-quadratic": rls.RationalQuadratic,
    "chi2": rls.ChiSquared,
}
PLAIN: dict[str, Callable] = {"linear": rls.Linear, "cosine": rls.Cosine}  # of explicit features
KERNELS = (*RADIAL, "polynomial", *PLAIN)
CRITERIA = {
    **{"loo": rls.loo, "gcv": rls.gcv, "kfold": rls.loo, "auc": rls.pairwise_ranking_error},
    **{"evidence": rls.log_marginal_likelihood, "predictive": rls.log_predictive_density},
}
LANDMARKS_TO_TUNE = 500
PICTURES = (".png", ".pdf", ".svg")


def run_fit(args) -> None:
    """Read, fit, report, save."""
    check_outputs(args.out, args.plot)
    data = read_data(args)
    n, Y, weights = data.X.shape[0], data.Y, data.weights
    drawn, sample = data.sample()
    kernel, words = make_kernel(args.kernel, args.width, args.degree, sample, args.standardize)
    criterion, groups = make_criterion(args, data, n)
    if args.intervals and data.classes is not None:
        raise ValueError(
            "--intervals are for numbers, and the target holds labels: leave --intervals out"
        )
    if args.landmarks != "auto" and args.landmarks is not None and args.landmarks > len(sample):
        raise ValueError(
            f"--landmarks must be at most {len(sample)}, the rows{drawn_of(sample, n)} of {in_line(args)}, and is {args.landmarks}"
        )

    rows, inputs = count(n, "row"), count(data.X.shape[1], "input")
    say(
        "data",
        f"{data.source}: {rows}, {inputs}, target {data.layout['target']}{in_classes(data.classes)}",
    )
    say("kernel", words)
    start = time.perf_counter()
    if args.tune:
        few = (
            LANDMARKS_TO_TUNE
            if args.landmarks == "auto" and n > 4 * LANDMARKS_TO_TUNE
            else args.landmarks
        )
        options = {
            "weights": None if weights is None else weights[drawn],
            "landmarks": None if few == "auto" else few,
        }
        grouped = None if groups is None else groups[drawn]
        kernel = tune_kernel(
            kernel,
            sample,
            Y[drawn],
            criterion,
            {"groups": grouped, "intercept": args.intercept, **options},
            n,
        )
    fixed = None
    if args.rank:
        criterion, groups, fixed = ranking(criterion, groups)
    elif data.classes is not None and criterion == rls.loo:
        criterion = rls.LeaveOneOut(rls.zero_one_loss)
    fit = rls.fit(
        kernel,
        data.X,
        Y,
        lams=args.lams or args.num_lams or 100,
        criterion=criterion,
        groups=groups,
        landmarks=args.landmarks,
        weights=weights,
        intercept=args.intercept,
        progress=at_terminal(),
        fixed_effects=fixed,
        keep=args.intervals,
    )
    seconds = time.perf_counter() - start
    report(fit, Y, data.classes, weights, scores=args.rank)
    say("time", f"{seconds:.1f} s, compilation included")
    if args.out:
        classes = None if data.classes is None else data.classes.tolist()
        layout = (
            data.layout | {"target": False} if args.rank else data.layout
        )  # which scores are not in the units of
        extra = {
            "layout": layout,
            "means": data.means.tolist(),
            "scales": data.scales.tolist(),
            "classes": classes,
        }
        rls.save(args.out, fit, extra=extra)
        say("saved", args.out)
    if args.plot:
        fit.plot().figure.savefig(args.plot, dpi=150)
        say("drawn", args.plot)


def ranking(criterion, groups):
    """Criterion, groups and fixed effects of a fit of order: pairs of all rows, or a constant for
    each group, and pairs within them, or whole groups, left out.
    """
    if groups is None:
        return rls.pairwise_ranking_error if criterion == rls.loo else criterion, None, None
    pairs = criterion == rls.pairwise_ranking_error
    made = rls.PairsOut(within=groups) if pairs else rls.QueriesOut(groups)
    return made, None, rls.levels(groups)


def drawn_of(sample, n: int) -> str:
    """Whether these are all rows."""
    return "" if len(sample) == n else " drawn by chance"


def check_outputs(out, plot) -> None:
    """Raise before the work starts where its results could not be written."""
    for path in filter(None, (out, plot)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ValueError(f"{path} cannot be written: there is no folder {folder}")
    if plot:
        if os.path.splitext(plot)[1] not in PICTURES:
            raise ValueError(
                f"--plot takes a file that ends in {', '.join(PICTURES)}, and got {plot}"
            )
        try:
            import matplotlib
        except ImportError:
            raise ValueError("--plot needs matplotlib: pip install 'jaxrls[plot]'") from None
        matplotlib.use("agg")


def make_kernel(name, width, degree, X, standardized) -> tuple[rls.Kernel, str]:
    """The kernel, and what to say of it."""
    if name in PLAIN:
        return PLAIN[name](), name
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


def tune_kernel(kernel, X, Y, criterion, options, n: int) -> rls.Kernel:
    """The kernel with its parameters tuned by gradient on the rows, or the sample of them, that
    there are in memory; before and after in words.
    """
    tuned = rls.tune(kernel, X, Y, criterion=criterion, progress=at_terminal(), **options)
    on = "" if len(X) == n else f" on {len(X)} rows{drawn_of(X, n)}"
    history: Any = tuned.history
    steps = len(history.errors) - 1
    say(
        "tuned",
        f"{TITLES[tuned.criterion]} {float(history.start_error):.4g} -> {float(tuned.error):.4g} in "
        f"{count(steps, 'step')}{on}: {history.reason}",
    )
    names = [
        jax.tree_util.keystr(path).lstrip(".")
        for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]
    ]
    for name, before, after in zip(
        names, jax.tree.leaves(kernel), jax.tree.leaves(tuned.kernel), strict=True
    ):
        say("", f"{name} {float(before):.4g} -> {float(after):.4g}")
    say(
        "",
        f"lambda -> {float(tuned.lam):.4g}; what follows takes the best of a grid, which passes near it",
    )
    return tuned.kernel


def make_criterion(args, data, n: int):
    """The criterion, and the group labels it needs: those of a column, or folds drawn by chance
    from a fixed seed.
    """
    groups = data.groups
    if args.criterion == "auc" and data.classes is not None and len(data.classes) > 2:
        raise ValueError(
            f"--criterion auc takes numbers or two classes to order, and {data.layout['target']} has {len(data.classes)}"
        )
    if args.rank and data.classes is not None:
        raise ValueError(
            f"--rank takes numbers to order, and {data.layout['target']} has labels: number them in their order"
        )
    name = args.criterion or ("loo" if groups is None else "kfold")
    if name == "kfold" and groups is None:
        groups = np.random.default_rng(0).permutation(n) % min(args.folds, n)
    return CRITERIA[name], groups
