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


def _new_axes(rows=1):
    """Axes of a new figure, one below the other."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'jaxrls[plot]'") from None
    return plt.subplots(
        rows, 1, sharex=True, figsize=(6.4, 3.2 + 0.8 * rows), layout="constrained"
    )[1]


def _host(values):
    return np.asarray(values, np.float64)


def plot_errors(fit, ax=None):
    """The criterion, or AUC, over λ, one line per target up to eight or their mean, and the chosen
    λ with its effective degrees of freedom.
    """
    if fit.errors is None:
        raise ValueError(
            "there are no errors over λ to plot: the rows were changed, and only moments of them are kept"
        )
    ax = _new_axes() if ax is None else ax
    order = np.argsort(_host(fit.lams))
    lams, errors = _host(fit.lams)[order], _host(fit.errors)[order].reshape(len(order), -1)
    if errors.shape[1] > MOST_LINES or np.ndim(fit.lam) == 0:
        errors = errors.mean(axis=1, keepdims=True)
    chosen, reached, dof = (np.atleast_1d(_host(a)) for a in (fit.lam, fit.error, fit.dof))
    word = "error"
    if fit.criterion in ORDERED:
        errors, reached, word = 1 - errors, 1 - reached, "AUC"
    for j, line in enumerate(errors.T):
        (drawn,) = ax.plot(lams, line, label=f"target {j}" if errors.shape[1] > 1 else None)
        if len(chosen) == errors.shape[1]:
            what = f"λ = {chosen[j]:.3g}, {word} {reached[j]:.3g}, {dof[j]:.3g} degrees of freedom"
            ax.plot(chosen[j], reached[j], "o", color=drawn.get_color(), label=what)
    if len(chosen) != errors.shape[1]:
        label = f"λ of each of {len(chosen)} targets"
        ax.plot(
            chosen,
            np.full(len(chosen), 0.03),
            "|",
            color="C1",
            transform=ax.get_xaxis_transform(),
            label=label,
        )
    ax.set(
        xscale="log",
        xlabel="λ",
        ylabel=(TITLES | ORDERED).get(fit.criterion, fit.criterion.replace("_", " ")),
    )
    if (errors > 0).all() and fit.criterion not in ORDERED:
        ax.set_yscale("log")
    if fit.criterion.startswith("log_"):
        ax.set_ylabel(f"− {fit.criterion.replace('_', ' ')}")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize="small")
    return ax


def plot_left_out(fit, Y, ax=None):
    """Every label against its prediction by a fit to all other rows, and the line where they
    agree.
    """
    if fit.loo_residuals is None:
        raise ValueError(
            "there are no residuals of rows left out to plot: the rows were changed, and only moments of them are kept"
        )
    ax = _new_axes() if ax is None else ax
    Y, residuals = _host(Y), _host(fit.loo_residuals)
    if Y.shape != residuals.shape:
        raise ValueError(
            f"Y must be the labels that were fitted, of shape {residuals.shape}, and has shape {Y.shape}"
        )
    Y, residuals = Y.reshape(len(Y), -1), residuals.reshape(len(Y), -1)
    for j in range(min(Y.shape[1], MOST_LINES)):
        label = f"target {j}, " if Y.shape[1] > 1 else ""
        rmse = np.sqrt(np.mean(residuals[:, j] ** 2))
        ax.plot(
            Y[:, j] - residuals[:, j],
            Y[:, j],
            ".",
            alpha=0.5,
            markersize=4,
            label=f"{label}root mean square {rmse:.3g}",
        )
    ends = [Y.min(), Y.max()]
    ax.plot(ends, ends, color="0.3", linewidth=1)
    ax.set(xlabel="predicted, the row left out", ylabel="label")
    ax.legend(fontsize="small")
    return ax


def plot_function(fit, X, Y, ax=None, level=None):
    """The fitted function of one input, with the data, and the band of its intervals at a level."""
    X, Y = _host(X), _host(Y)
    if X.ndim != 2 or X.shape[1] != 1:
        raise ValueError(
            f"X must have one column to be drawn as a function of it, and has shape {X.shape}"
        )
    ax = _new_axes() if ax is None else ax
    margin = 0.03 * np.ptp(X)
    grid = np.linspace(X.min() - margin, X.max() + margin, 400)[:, None]
    ax.plot(X[:, 0], Y, ".", color="0.5", label="data")
    points = grid.astype(fit.model.coef.dtype)
    lines = ax.plot(grid[:, 0], _host(fit.predict(points)), label="fit" if Y.ndim == 1 else None)
    if level is not None:
        lower, upper = (_host(end).reshape(len(grid), -1) for end in fit.intervals(points, level))
        for j, line in enumerate(lines):
            label = f"{100 * level:.3g} % of labels" if j == 0 else None
            ax.fill_between(
                grid[:, 0],
                lower[:, j],
                upper[:, j],
                color=line.get_color(),
                alpha=0.2,
                linewidth=0,
                label=label,
            )
    ax.set(xlabel="x", ylabel="y")
    ax.legend(fontsize="small")
    return ax


def plot_coverage(predictive, ax=None):
    """The share of labels within their interval against its level, one line per target up to eight,
    and the line where they agree.
    """
    ax = _new_axes() if ax is None else ax
    levels = np.linspace(0, 1, 101)
    shares, scores = (
        _host(predictive.coverage(levels)).reshape(len(levels), -1),
        np.nanmean(_host(predictive.crps), axis=0).reshape(-1),
    )
    for j, (share, score) in enumerate(zip(shares.T[:MOST_LINES], scores, strict=False)):
        label = f"target {j}, " if shares.shape[1] > 1 else ""
        ax.plot(levels, share, label=f"{label}continuous ranked probability score {score:.3g}")
    ax.plot([0, 1], [0, 1], color="0.3", linewidth=1)
    ax.set(xlabel="level", ylabel="share of labels inside", aspect="equal")
    ax.legend(fontsize="small")
    return ax


def plot_search(fit, axes=None):
    """Error and gradient norm at every step of the search, below each other; takes and returns two
    axes.
    """
    axes = _new_axes(2) if axes is None else axes
    above, below = axes
    history, steps = fit.history, np.arange(len(fit.history.errors))
    errors = _host(history.errors)
    best = int(np.argmin(errors))
    above.plot(steps, errors, ".-")
    above.plot(
        best,
        errors[best],
        "o",
        color="C1",
        label=f"error {errors[best]:.4g} at λ = {float(fit.lam):.3g}: {history.reason}",
    )
    above.set(ylabel="error")
    above.legend(fontsize="small")
    below.plot(steps, _host(history.gradient_norms), ".-")
    below.set(xlabel="step", ylabel="largest slope", yscale="log")
    below.xaxis.get_major_locator().set_params(integer=True)
    if (errors > 0).all() and errors.max() > 3 * errors.min():
        above.set_yscale("log")
    return axes
