"""What is printed."""

import sys
from importlib.util import find_spec

import numpy as np

import jaxrls as rls
from jaxrls.cli.columns import rms, standardisation

TITLES = {
    "loo": "LOO error",
    "gcv": "GCV error",
    "kfold": "fold error",
    "log_marginal_likelihood": "-log evidence",
}
DENSITIES = ("log_marginal_likelihood", "log_predictive_density")
TITLES["log_predictive_density"] = "-log density"
ORDER = {
    "pairwise_ranking_error": "pairs left out",
    "query_ranking_error": "pairs of groups left out",
}
TITLES |= dict.fromkeys(ORDER, "wrong order")
TABLE_ROWS = 12


def at_terminal() -> bool:
    """Whether someone watches, and tqdm is there to show progress with."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def say(what: str, text) -> None:
    """One line of the report."""
    print(f"{what:<10}{text}")


def report(fit, Y, classes, weights, scores: bool = False) -> None:
    """The error over λ, and all that belongs to the chosen one; of `scores` no error in units of
    the target.
    """
    print()
    print_table(fit, in_units=classes is None and fit.criterion not in (*DENSITIES, *ORDER))
    say("lambda", f"{float(fit.lam):.4g}")
    residuals = np.asarray(fit.loo_residuals)
    if fit.criterion in ORDER:
        say(
            "order",
            f"{100 * (1 - float(fit.error)):.4g} % of {ORDER[fit.criterion]} are in the right order",
        )
    if scores:
        pass
    elif classes is None:
        error, scale = (
            rms(residuals, weights),
            standardisation(Y[:, None], weights)[1][0] if np.ptp(Y) else 0.0,
        )
        say(
            "LOO error",
            f"{error * error:.4g}, RMSE {error:.4g} in units of the target, whose standard deviation is {scale:.4g}",
        )
    else:
        wrong = rls.decode(Y - residuals, classes) != rls.decode(Y, classes)
        say("LOO error", f"{100 * np.average(wrong, weights=weights):.3g} % of labels wrong")
    say("freedom", f"{float(fit.dof):.4g} effective degrees of freedom, of {len(residuals)} rows")
    say("plan", fit.plan)
    if fit.certificate:
        say("landmarks", fit.certificate)


def print_table(fit, in_units: bool) -> None:
    """About a dozen λ around the chosen one."""
    lams, errors = np.asarray(fit.lams), np.asarray(fit.errors)
    errors = errors if errors.ndim == 1 else errors.mean(axis=1)
    order = np.argsort(lams)
    best = int(np.flatnonzero(lams[order] == fit.lam)[0])
    step = -(-len(lams) // (2 * TABLE_ROWS))
    rows = np.arange(best % step, len(lams), step)
    start = max(0, min(best // step - TABLE_ROWS // 2, len(rows) - TABLE_ROWS))
    print(f"{'lambda':>12}  {TITLES[fit.criterion]:>13}" + (f"  {'RMSE':>10}" if in_units else ""))
    for i in rows[start : start + TABLE_ROWS]:
        error = errors[order[i]]
        rmse = f"  {np.sqrt(error):10.4g}" if in_units else ""
        print(f"{lams[order[i]]:12.3e}  {error:13.5g}{rmse}" + ("  <- best" if i == best else ""))
    print()


class Verdict:
    """The error of predictions, from one block of rows after the other, on a target that may have
    gaps.
    """

    def __init__(self, classes):
        self.classes, self.blocks, self.absent, self.gaps = classes, [], False, False
        self.inside: list[np.ndarray] = []

    def add(self, columns, y) -> None:
        """Take in the predictions of some rows, with their intervals where there are some, and
        their target, None where it is not there.
        """
        prediction = columns["prediction"]
        if y is None:
            self.absent = True
        elif self.classes:
            self.blocks.append((np.mean(prediction != y.astype(str)), len(y)))
        else:
            try:
                residual = y.astype(np.float64) - prediction
            except (ValueError, TypeError):
                residual = np.array([np.nan])
            self.gaps = self.gaps or not np.isfinite(residual).all()
            if not self.gaps:
                self.blocks.append((rms(residual), len(y)))
            if not self.gaps and "lower" in columns:
                label = y.astype(np.float64)
                self.inside.append((columns["lower"] <= label) & (label <= columns["upper"]))

    def words(self) -> str | None:
        """All that they come to; None where there was no target."""
        if self.absent or not self.blocks and not self.gaps:
            return None
        if self.gaps:
            return "no error on the target: it has values that are missing or not numbers"
        errors, rows = map(np.array, zip(*self.blocks, strict=True))
        if self.classes:
            return f"{100 * np.average(errors, weights=rows):.3g} % of labels wrong"
        held = (
            f", {100 * np.mean(np.concatenate(self.inside)):.3g} % inside their intervals"
            if self.inside
            else ""
        )
        return f"RMSE {rms(errors, rows):.4g} in units of the target{held}"


def count(n: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def in_classes(classes) -> str:
    """What to add to the target's name."""
    return (
        ""
        if classes is None
        else f" ({len(classes)} classes: {', '.join(classes[:5])}{' …' if len(classes) > 5 else ''})"
    )
