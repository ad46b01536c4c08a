"""Pictures of results: what `plot` methods draw. Matplotlib axes in and out; nothing is shown or
saved here.
"""

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
MOST_LINES = 8


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


def _columns(values):
    """As a matrix on the host."""
    values = np.asarray(values, np.float64)
    return values.reshape(len(values), -1)


def _needed(values, what: str):
    if values is None:
        raise ValueError(f"there are no {what} to plot: the rows have changed since the fit")
    return _columns(values)


def _finished(ax, **words):
    ax.set(**words)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize="small")
    return ax


def _diagonal(ax, ends):
    ax.plot(ends, ends, color="0.3", linewidth=1)


def plot_errors(fit, ax=None):
    """The criterion, or AUC, over λ, one line per target up to eight or their mean, and the chosen
    λ with its effective degrees of freedom.
    """
    errors = _needed(fit.errors, "errors over λ")
    ax = _new_axes() if ax is None else ax
    if errors.shape[1] > MOST_LINES or np.ndim(fit.lam) == 0:
        errors = errors.mean(axis=1, keepdims=True)
    chosen, reached, dof = (np.atleast_1d(part) for part in (fit.lam, fit.error, fit.dof))
    ordered = fit.criterion in ORDERED
    if ordered:
        errors, reached = 1 - errors, 1 - reached
    order, lams = np.argsort(fit.lams, axis=0), np.asarray(fit.lams)
    for j, line in enumerate(errors.T):
        each = order if order.ndim == 1 else order[:, j]
        x = lams[each] if lams.ndim == 1 else lams[each, j]
        label = f"target {j}" if errors.shape[1] > 1 else None
        (drawn,) = ax.plot(x, line[each], label=label)
        if len(chosen) == errors.shape[1]:
            what = f"λ = {chosen[j]:.3g}, {'AUC' if ordered else 'error'} {reached[j]:.3g}"
            what += f", {dof[j]:.3g} degrees of freedom"
            ax.plot(chosen[j], reached[j], "o", color=drawn.get_color(), label=what)
    if len(chosen) != errors.shape[1]:
        ax.plot(chosen, reached, ".", color="C1", label=f"λ of each of {len(chosen)} targets")
    if (errors > 0).all() and not ordered:
        ax.set_yscale("log")
    return _finished(ax, xscale="log", xlabel="λ", ylabel=title(fit.criterion))


def plot_left_out(fit, Y, ax=None):
    """Every label against its prediction by a fit to all other rows, and the line where they
    agree.
    """
    residuals = _needed(fit.loo_residuals, "residuals of rows left out")
    if np.shape(Y) != fit.loo_residuals.shape:
        raise ValueError(
            f"Y must be the labels that were fitted, of shape {fit.loo_residuals.shape}, and has "
            f"shape {np.shape(Y)}"
        )
    ax, Y = _new_axes() if ax is None else ax, _columns(Y)
    for j in range(min(Y.shape[1], MOST_LINES)):
        label = f"target {j}, " * (Y.shape[1] > 1)
        label += f"root mean square {np.sqrt(np.mean(residuals[:, j] ** 2)):.3g}"
        ax.plot((Y - residuals)[:, j], Y[:, j], ".", alpha=0.5, markersize=4, label=label)
    _diagonal(ax, [Y.min(), Y.max()])
    return _finished(ax, xlabel="predicted, the row left out", ylabel="label")


def plot_function(fit, X, Y, ax=None, level=None):
    """The fitted function of one input, with the data, and the band of its intervals at a level."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 1:
        raise ValueError(f"X must have one column to be drawn over, and has shape {X.shape}")
    ax, margin = _new_axes() if ax is None else ax, 0.03 * np.ptp(X)
    points = np.linspace(X.min() - margin, X.max() + margin, 400)[:, None]
    points = points.astype(fit.model.coef.dtype)
    ax.plot(X[:, 0], Y, ".", color="0.5", label="data")
    lines = ax.plot(points[:, 0], fit.predict(points), label="fit" if np.ndim(Y) == 1 else None)
    if level is not None:
        lower, upper = map(_columns, fit.intervals(points, level))
        for j, line in enumerate(lines):
            style = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
            style["label"] = None if j else f"{100 * level:.3g} % of labels"
            ax.fill_between(points[:, 0], lower[:, j], upper[:, j], **style)
    return _finished(ax, xlabel="x", ylabel="y")


def plot_coverage(predictive, ax=None):
    """The share of labels within their interval against its level, one line per target up to eight,
    and the line where they agree.
    """
    ax, levels = _new_axes() if ax is None else ax, np.linspace(0, 1, 101)
    shares, scores = map(_columns, (predictive.coverage(levels), predictive.crps))
    for j, share in enumerate(shares.T[:MOST_LINES]):
        label = f"target {j}, " * (shares.shape[1] > 1)
        label += f"continuous ranked probability score {np.nanmean(scores[:, j]):.3g}"
        ax.plot(levels, share, label=label)
    _diagonal(ax, [0, 1])
    return _finished(ax, xlabel="level", ylabel="share of labels inside", aspect="equal")


def plot_search(fit, axes=None):
    """Error and gradient norm at every step of the search, below each other; takes and returns two
    axes.
    """
    axes, history = _new_axes(2) if axes is None else axes, fit.history
    errors = np.asarray(history.errors)
    above, below = axes
    above.plot(errors, ".-")
    label = f"error {errors.min():.4g} at λ = {float(fit.lam):.3g}: {history.reason}"
    above.plot(np.argmin(errors), errors.min(), "o", color="C1", label=label)
    _finished(above, ylabel="error", yscale="log" if errors.min() > 0 else "linear")
    below.plot(history.gradient_norms, ".-")
    below.xaxis.get_major_locator().set_params(integer=True)
    _finished(below, xlabel="step", ylabel="largest slope", yscale="log")
    return axes
