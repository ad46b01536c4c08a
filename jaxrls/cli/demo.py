"""Without a command: a fit of the embedded data before and after tuning."""

import time
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.report import count, report, rms, say


def run_demo(args) -> None:
    """A fit of the embedded data before and after tuning, judged on rows that it has not seen."""
    X, y, names = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.arange(len(X)) % 5 == 0
    say("data", f"NASA airfoil self-noise: sound in decibels from {', '.join(names)}")
    say("rows", f"{(~test).sum()} to fit, {test.sum()} held out")
    start = time.perf_counter()
    fit: Any = rls.fit(rls.Gaussian(4.0), X[~test], y[~test])
    report(fit, y[~test], None, None)
    say("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    start = time.perf_counter()
    import optax  # Adam: many cheap steps, and no line search to compile

    some = np.flatnonzero(~test)[::5]
    tuned: Any = rls.tune(fit.kernel, X[some], y[some], optimizer=optax.adam(0.1), steps=10)
    better, steps = rls.fit(tuned.kernel, X[~test], y[~test]), len(tuned.history.errors) - 1
    widths = f"width {float(np.asarray(fit.kernel.width)):.4g} -> {float(tuned.kernel.width):.4g}"
    along = f"along the gradient of the LOO error of {len(some)} rows"
    print()
    say("tuned", f"{widths} in {count(steps, 'step')} {along}")
    say("LOO error", f"{float(fit.error):.4g} -> {float(better.error):.4g}")
    say("time", f"{time.perf_counter() - start:.1f} s, compilation included")
    before, after = (rms(y[test] - model.predict(X[test])) for model in (fit, better))
    say("check", f"RMSE on the {test.sum()} held-out rows: {before:.4g} -> {after:.4g}")
    print(f"\nYour own data: {args.prog} fit --help")
