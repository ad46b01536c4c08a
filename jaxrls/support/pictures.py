"""What is shown: pictures of results, Matplotlib axes in and out, and bars of progress by tqdm.
Both are imported where they are asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

TITLES = {
    "loo": "leave-one-out error",
    "gcv": "GCV error",
    "kfold": "error of folds left out",
    "holdout": "hold-out error",
}
# Shares of pairs in the wrong order, of which the share in the right one is drawn: AUC, or the
# concordance index.
ORDERED = {
    "pairwise_ranking_error": "AUC (concordance), pairs left out",
    "query_ranking_error": "AUC (concordance), queries left out",
}


def title(criterion: str) -> str:
    """What a criterion is called where it is shown; of likelihoods less is shown than they are."""
    sign = "− " * criterion.startswith("log_")
    return (TITLES | ORDERED).get(criterion, sign + criterion.replace("_", " "))


def _new_axes(rows=1):
    """Axes of a new figure, one below the other."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'jaxrls[plot]'") from None
    size = (6.4, 3.2 + 0.8 * rows)
    return plt.subplots(rows, 1, sharex=True, figsize=size, layout="constrained")[1]


def _needed(values, what: str):
    if values is None:
        raise ValueError(f"there are no {what} to plot: the rows have changed since the fit")
    return np.asarray(values)


def _finished(ax, **words):
    ax.set(**words)
    ax.legend(fontsize="small")
    return ax


def _by_target(words: list[str]) -> list[str]:
    """What is said of every target, with its number where there are several."""
    return [f"target {j}, {told}" for j, told in enumerate(words)] if len(words) > 1 else words


def plot_errors(fit, ax=None):
    """The criterion, or AUC, over λ, one line for each target that has its own λ or their mean, and
    the chosen λ with its effective degrees of freedom.
    """
    errors = _needed(fit.errors, "errors over λ")
    ax, lams = _new_axes() if ax is None else ax, np.asarray(fit.lams)
    if np.ndim(fit.lam) == 0:
        errors = errors.reshape(len(lams), -1).mean(axis=1)
    order = np.argsort(lams.reshape(len(lams), -1)[:, 0])
    reached, word, scale = fit.error, "error", "log"
    if fit.criterion in ORDERED:
        errors, reached, word = 1 - errors, 1 - reached, "AUC"
    if word == "AUC" or errors.min() <= 0:
        scale = "linear"
    ax.plot(lams[order], errors[order])
    told = f"λ of each of {np.size(fit.lam)} targets"
    if np.ndim(fit.lam) == 0:
        told = f"λ = {fit.lam:.3g}, {word} {reached:.3g}, {fit.dof:.3g} degrees of freedom"
    ax.plot(fit.lam, reached, "o", label=told)
    return _finished(ax, xscale="log", yscale=scale, xlabel="λ", ylabel=title(fit.criterion))


def plot_left_out(fit, Y, ax=None):
    """Every label against its prediction by a fit to all other rows, and the line where they
    agree.
    """
    residuals, Y = _needed(fit.loo_residuals, "residuals of rows left out"), np.asarray(Y)
    if Y.shape != residuals.shape:
        raise ValueError(
            f"Y must be the labels that were fitted, of shape {residuals.shape}, and has shape "
            f"{Y.shape}"
        )
    ax, n = _new_axes() if ax is None else ax, len(Y)
    rmse = np.sqrt(np.mean(residuals**2, axis=0)).reshape(-1)
    words = _by_target([f"root mean square {one:.4g}" for one in rmse])
    points = (Y - residuals).reshape(n, -1), Y.reshape(n, -1)
    ax.plot(*points, ".", alpha=0.5, markersize=4, label=words)
    ax.axline((Y.min(), Y.min()), slope=1, color="0.3", linewidth=1)
    return _finished(ax, xlabel="predicted, the row left out", ylabel="label")


def plot_function(fit, X, Y, ax=None, level=None):
    """The fitted function of one input, with the data, and the band of its intervals at a level."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 1:
        raise ValueError(f"X must have one column to be drawn over, and has shape {X.shape}")
    ax, margin = _new_axes() if ax is None else ax, 0.03 * np.ptp(X)
    grid = np.linspace(X.min() - margin, X.max() + margin, 400).astype(fit.model.coef.dtype)
    ax.plot(X[:, 0], Y, ".", color="0.5", label="data")
    lines = ax.plot(grid, fit.predict(grid[:, None]), label="fit")
    if level is not None:
        ends = [np.reshape(end, (len(grid), -1)) for end in fit.intervals(grid[:, None], level)]
        for line, lower, upper in zip(lines, ends[0].T, ends[1].T, strict=True):
            words = f"{100 * level:.3g} % of labels"
            ax.fill_between(grid, lower, upper, color=line.get_color(), alpha=0.2, label=words)
    return _finished(ax, xlabel="x", ylabel="y")


def plot_coverage(predictive, ax=None):
    """The share of labels within their interval against its level, one line for each target, and
    the line where they agree.
    """
    ax, levels = _new_axes() if ax is None else ax, np.linspace(0, 1, 101)
    scores = np.nanmean(np.asarray(predictive.crps), axis=0).reshape(-1)
    words = _by_target([f"continuous ranked probability score {score:.3g}" for score in scores])
    shares = np.asarray(predictive.coverage(levels)).reshape(len(levels), -1)
    ax.plot(levels, shares, label=words)
    ax.axline((0, 0), slope=1, color="0.3", linewidth=1)
    return _finished(ax, xlabel="level", ylabel="share of labels inside", aspect="equal")


def plot_search(fit, axes=None):
    """Error and gradient norm at every step of the search, below each other; takes and returns two
    axes.
    """
    axes, history = _new_axes(2) if axes is None else axes, fit.history
    (above, below), errors = axes, np.asarray(history.errors)
    above.plot(errors, ".-")
    label = f"error {errors.min():.4g} at λ = {fit.lam:.3g}: {history.reason}"
    above.plot(np.argmin(errors), errors.min(), "o", label=label)
    _finished(above, ylabel="error", yscale="log" if errors.min() > 0 else "linear")
    below.plot(history.gradient_norms, ".-")
    below.set(xlabel="step", ylabel="largest slope", yscale="log")
    return axes


MANY = 10_000  # from which on counts are told in thousands and millions


@contextmanager
def progress_bar(
    shown: bool, total: int | None, what: str, unit: str
) -> Iterator[Callable[[int], None]]:
    """A function that moves the bar to a count, or does nothing where no bar is `shown`; without a
    `total` no time left is told.

    >>> with progress_bar(False, 10, "search", "step") as reached:
    ...     reached(5)
    """
    if not shown:
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'jaxrls[plot]'") from None
    with tqdm(total=total, desc=what, unit=unit, unit_scale=total is None or total > MANY) as bar:
        yield lambda count: bar.update(count - bar.n) and None
