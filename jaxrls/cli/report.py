"""The printed report of a fit, and the demo that runs without a command."""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.words import shown
from jaxrls.front import Fit

TABLE_ROWS = 12


def at_terminal() -> bool:
    """Whether stderr is a terminal and tqdm is installed, so that progress can be shown."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def show(what: str, text: str) -> None:
    """Print one line of the report at once, before the next step takes its time."""
    print(f"{what:<10}{shown(text)}", flush=True)


def count(n: int, what: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`."""
    return f"{n} {what}{'s' if n != 1 else ''}"


def left_out_in_words(rows: int) -> str:
    """Return a text about how many rows were left out, because values are missing."""
    return f"{count(rows, 'row')} with missing values left out"


def rms(residual: Any, weights: Any = None) -> float:
    """Return the root of the weighted mean of squares."""
    return float(np.sqrt(np.average(np.asarray(residual, np.float64) ** 2, weights=weights)))


def report(
    fit: Fit,
    Y: np.ndarray,
    classes: Sequence[str] | None,
    weights: np.ndarray | None,
    scores: bool = False,
) -> None:
    """Print the errors at about a dozen λ around the chosen one, and a summary of the fit.

    Args:
        fit: a fit with one λ.
        Y: its labels, or ±1 codes of class labels.
        classes: the class labels; None for a numeric target.
        weights: the sample weights (n,), or None.
        scores: whether predictions are scores. Then no error in units of the target is printed.
    """
    lams = np.asarray(fit.lams)
    errors = np.asarray(fit.errors)
    errors = errors.reshape(len(lams), -1).mean(axis=1)
    order = np.argsort(lams)
    best = int(np.flatnonzero(lams[order] == fit.lam)[0])
    step = -(-len(lams) // (2 * TABLE_ROWS))
    shown = order[best % step :: step]
    start = max(0, min(best // step - TABLE_ROWS // 2, len(shown) - TABLE_ROWS))
    print(f"\n{'lambda':>12}  {fit.title}")
    for i in shown[start : start + TABLE_ROWS]:
        mark = "  <- best" if lams[i] == fit.lam else ""
        print(f"{lams[i]:12.3e}  {errors[i]:13.5g}{mark}")
    print(f"\n{fit}")
    left = np.asarray(fit.loo_residuals)
    if fit.unit == "AUC":
        show("order", f"{100 * (1 - float(fit.error)):.4g} % of pairs are in the right order")
    if classes is not None:
        wrong = rls.classes.decode(Y - left, classes) != rls.classes.decode(Y, classes)
        show("left out", f"{100 * np.average(wrong, weights=weights):.3g} % of labels wrong")
    elif not scores:
        scale = rms(Y - np.average(Y, weights=weights), weights)
        show("left out", f"RMSE {rms(left, weights):.4g}, of a standard deviation of {scale:.4g}")
    if fit.certificate:
        show("landmarks", fit.certificate)


def run_demo(args: Namespace) -> None:
    """Fit the embedded data before and after tuning, and print the errors on held-out rows."""
    X, y, names = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.arange(len(X)) % 5 == 0
    show("data", f"NASA airfoil self-noise: sound in decibels from {', '.join(names)}")
    show("rows", f"{(~test).sum()} to fit, {test.sum()} held out")
    start = time.perf_counter()
    fit: Any = rls.fit(rls.Gaussian(4.0), X[~test], y[~test])
    report(fit, y[~test], None, None)
    show("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    start = time.perf_counter()
    import optax  # Adam: many cheap steps, and no line search to compile

    some = np.flatnonzero(~test)[::5]
    tuned: Any = rls.tune(fit.kernel, X[some], y[some], optimizer=optax.adam(0.1), steps=10)
    better = rls.fit(tuned.kernel, X[~test], y[~test])
    steps = len(tuned.history.errors) - 1
    widths = f"width {float(np.asarray(fit.kernel.width)):.4g} -> {float(tuned.kernel.width):.4g}"
    along = f"along the gradient of the LOO error of {len(some)} rows"
    print()
    show("tuned", f"{widths} in {count(steps, 'step')} {along}")
    show("LOO error", f"{float(fit.error):.4g} -> {float(better.error):.4g}")
    show("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    before, after = (rms(y[test] - model.predict(X[test])) for model in (fit, better))
    show("check", f"RMSE on the {test.sum()} held-out rows: {before:.4g} -> {after:.4g}")
    print(f"\nYour own data: {args.prog} fit --help")
