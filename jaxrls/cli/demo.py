"""Without a command: a fit of the embedded data before and after tuning."""

import time
from typing import Any

import numpy as np

import jaxrls as rls
from jaxrls.cli.columns import rms
from jaxrls.cli.report import count, report, say


def run_demo(args) -> None:
    """A fit of the embedded data before and after tuning, judged on rows that it has not seen."""
    X, y, names = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.arange(len(X)) % 5 == 0
    kernel: Any = rls.Gaussian(4.0)
    say("data", f"NASA airfoil self-noise: sound in decibels from {', '.join(names)}")
    say("rows", f"{(~test).sum()} to fit, {test.sum()} put aside")
    say("kernel", f"gaussian, width {kernel.width:.4g}, of standardised columns")
    start = time.perf_counter()
    fit = rls.fit(kernel, X[~test], y[~test])
    seconds = time.perf_counter() - start
    report(fit, y[~test], None, None)
    say(
        "time",
        f"{seconds:.1f} s for {len(fit.lams)} lambdas with exact leave-one-out, compilation included",
    )
    start = time.perf_counter()
    some = np.flatnonzero(~test)[::5]
    tuned: Any = rls.tune(kernel, X[some], y[some], optimizer=plain_optimizer(), steps=10)
    better = rls.fit(tuned.kernel, X[~test], y[~test])
    seconds = time.perf_counter() - start
    steps = count(len(tuned.history.errors) - 1, "step")
    print()
    say(
        "tuned",
        f"width {kernel.width:.4g} -> {float(tuned.kernel.width):.4g} in {steps} along the gradient of the LOO error of {len(some)} rows",
    )
    say(
        "LOO error",
        f"{float(fit.error):.4g} -> {float(better.error):.4g}, lambda -> {float(better.lam):.4g}",
    )
    say("time", f"{seconds:.1f} s, compilation included")
    before, after = (rms(y[test] - model.predict(X[test])) for model in (fit, better))
    say("check", f"RMSE on the {test.sum()} rows put aside: {before:.4g} -> {after:.4g}")
    print(f"\nYour own data: {args.prog} fit --help")


def plain_optimizer():
    """Adam: many cheap steps, and no line search to compile, which would take longer than the whole
    demo.
    """
    import optax

    return optax.adam(0.1)
