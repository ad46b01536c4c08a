"""Plots of fits with Matplotlib, which methods of `Fit` and of other results call.

They show errors over λ or over the steps of a search, held-out predictions, a function of one
input, the effect of a column, and the coverage of intervals.
"""

from statistics import NormalDist
from typing import Any

import numpy as np

from jaxrls.core.support import check_index
from jaxrls.front import Fit
from jaxrls.uncertainty.effect import partial_effects, rows_and_column
from jaxrls.uncertainty.intervals import Predictive


def _axes(axes: Any, rows: int = 1) -> Any:
    """Return the given axes; if they are None, the axes of a new figure, one below the other."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'jaxrls[plot]'") from None
    size = (6.4, 3.2 + 0.8 * rows)
    return plt.subplots(rows, 1, sharex=True, figsize=size, layout="constrained")[1]


def _needed(values: Any, what: str) -> np.ndarray:
    """Return the values that a plot needs, as an array. Raise if the fit does not have them."""
    if values is None:
        raise ValueError(
            f"there are no {what} to plot, as the rows have changed since the fit: fit them again"
        )
    return np.asarray(values)


def _finished(ax: Any, **words) -> Any:
    """Set properties of the axes, add the legend and return the axes."""
    ax.set(**words)
    ax.legend(fontsize="small")
    return ax


def _on_diagonal(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    style: str,
    label: list[str],
    start: float | np.floating,
    **words,
) -> Any:
    """Draw y over x, one line for each target, and the diagonal x = y through `start`.

    Args:
        ax: Matplotlib axes.
        x: values (n,) or (n, t).
        y: values (n, t).
        style: the format of the lines.
        label: a text for each target. With several targets it gets the number of the target.
        start: a point (start, start) of the diagonal.
        **words: properties of the axes, as for `ax.set`.

    Returns:
        The axes.
    """
    if len(label) > 1:
        label = [f"target {j}, {text}" for j, text in enumerate(label)]
    ax.plot(x, y, style, label=label, alpha=0.5 if style == "." else 1, markersize=4)
    ax.axline((start, start), slope=1, color="0.3", linewidth=1)
    return _finished(ax, **words)


def plot_errors(fit: Any, ax: Any = None) -> Any:
    """Plot the criterion over λ, and mark the chosen λ.

    If each target has its own λ, there is one line for each target. Otherwise the line is the mean
    over targets, and the legend shows the effective degrees of freedom. A ranking criterion is
    plotted as AUC.

    Args:
        fit: a result with `lams`, `errors`, `lam`, `error` and `dof`.
        ax: Matplotlib axes; by default those of a new figure.

    Returns:
        The axes.
    """
    errors = _needed(fit.errors, "errors over λ")
    lams = np.asarray(fit.lams)
    label = f"λ of each of {np.size(fit.lam)} targets"
    reached = fit.error
    word = "error"
    if fit.unit == "AUC":
        errors = 1 - errors
        reached = 1 - reached
        word = "AUC"
    if np.ndim(fit.lam) == 0:
        errors = errors.reshape(len(lams), -1).mean(axis=1)
        label = f"λ = {fit.lam:.3g}, {word} {reached:.3g}, {fit.dof:.3g} degrees of freedom"
    ax = _axes(ax)
    order = np.argsort(lams.reshape(len(lams), -1)[:, 0])
    ax.plot(lams[order], errors[order])
    ax.plot(fit.lam, reached, "o", label=label)
    scale = "linear" if word == "AUC" or errors.min() <= 0 else "log"
    return _finished(ax, xscale="log", yscale=scale, xlabel="λ", ylabel=fit.title)


def plot_left_out(fit: Fit, Y: Any, ax: Any = None) -> Any:
    """Plot labels against their held-out predictions, with the diagonal where they agree.

    The legend shows the root of the mean squared difference, with the weights of the fit.

    Args:
        fit: the fit.
        Y: the labels that were fitted, (n,) or (n, t).
        ax: Matplotlib axes; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for labels of another shape, or a fit without held-out residuals.
    """
    residuals = _needed(fit.loo_residuals, "residuals of rows left out")
    Y = np.asarray(Y)
    if Y.shape != residuals.shape:
        raise ValueError(
            f"Y must be the labels that were fitted, of shape {residuals.shape}, and has shape "
            f"{Y.shape}"
        )
    of_targets: Any = fit.loo_rms
    label = [f"root mean square {rms:.4g}" for rms in np.reshape(of_targets, -1)]
    x, y = (part.reshape(len(Y), -1) for part in (Y - residuals, Y))
    return _on_diagonal(
        _axes(ax), x, y, ".", label, Y.min(), xlabel="predicted, the row left out", ylabel="label"
    )


def plot_function(fit: Fit, X: Any, Y: Any, ax: Any = None, level: Any = None) -> Any:
    """Plot the fitted function of one input with the data, and its intervals as a band if `level`
    is given.

    Args:
        fit: the fit.
        X: the rows that were fitted, (n, 1).
        Y: their labels, (n,) or (n, t).
        ax: Matplotlib axes; by default those of a new figure.
        level: the level of the `intervals` that are drawn; None for no band.

    Returns:
        The axes.

    Raises:
        ValueError: for an X of more than one column.
    """
    check_index({"X": X, "Y": Y})
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 1:
        raise ValueError(f"X must have one column to be drawn over, and has shape {X.shape}")
    ax = _axes(ax)
    margin = 0.03 * np.ptp(X)
    grid = np.linspace(X.min() - margin, X.max() + margin, 400).astype(fit.model.coef.dtype)
    ax.plot(X[:, 0], Y, ".", color="0.5", label="data")
    lines = ax.plot(grid, fit.predict(grid[:, None]), label="fit")
    if level is not None:
        ends = [np.reshape(end, (len(grid), -1)) for end in fit.intervals(grid[:, None], level)]
        for line, lower, upper in zip(lines, ends[0].T, ends[1].T, strict=True):
            words = f"{100 * level:.3g} % of labels"
            ax.fill_between(grid, lower, upper, color=line.get_color(), alpha=0.2, label=words)
    return _finished(ax, xlabel="x", ylabel="y")


def plot_effect(fit: Fit, X: Any, column: Any, ax: Any = None, level: float = 0.95) -> Any:
    """Plot the partial effect of a column with a band, one line for each target.

    `Fit.plot_effect` explains the arguments.
    """
    X, column = rows_and_column(fit, X, column)
    X = np.asarray(X)[:: max(1, -(-len(X) // 200))]
    values = np.unique(X[:, column])
    if len(values) > 10:
        values = np.linspace(values[0], values[-1], 50)
    effect = partial_effects(fit, X, column, values)
    ax = _axes(ax)
    mean, std = (np.reshape(part, (len(values), -1)) for part in (effect.mean, effect.std))
    reach = NormalDist().inv_cdf((1 + level) / 2) * std
    band = f"{100 * level:.3g} % band"
    for j, (line, wide) in enumerate(zip(mean.T, reach.T, strict=True)):
        label = f"target {j}" if mean.shape[1] > 1 else "effect"
        (drawn,) = ax.plot(values, line, "o-" if len(values) <= 10 else "-", label=label)
        ends = line - wide, line + wide
        ax.fill_between(values, *ends, color=drawn.get_color(), alpha=0.2, label=band)
    name = fit.model.names[column] if fit.model.names else f"column {column}"
    return _finished(ax, xlabel=name, ylabel="change of the prediction")


def plot_coverage(predictive: Predictive, ax: Any = None) -> Any:
    """Plot the share of labels inside their interval against the level of the interval.

    There is one line for each target, and the diagonal where share and level agree. The legend
    shows the mean of the continuous ranked probability score.

    Args:
        predictive: a `Predictive`.
        ax: Matplotlib axes; by default those of a new figure.

    Returns:
        The axes.
    """
    levels = np.linspace(0, 1, 101)
    scores = np.nanmean(np.asarray(predictive.crps), axis=0)
    label = [f"continuous ranked probability score {score:.3g}" for score in scores.reshape(-1)]
    shares = np.asarray(predictive.coverage(levels)).reshape(len(levels), -1)
    return _on_diagonal(
        _axes(ax),
        levels,
        shares,
        "-",
        label,
        0.0,
        xlabel="level",
        ylabel="share of labels inside",
        aspect="equal",
    )


def plot_search(fit: Fit, axes: Any = None) -> Any:
    """Plot the error and, below it, the norm of the gradient at every step of a search by `tune`.

    Args:
        fit: a fit by `tune`.
        axes: two Matplotlib axes; by default those of a new figure.

    Returns:
        The two axes.
    """
    axes = _axes(axes, 2)
    history: Any = fit.history
    above, below = axes
    errors = np.asarray(history.errors)
    above.plot(errors, ".-")
    label = f"error {errors.min():.4g} at λ = {fit.lam:.3g}: {history.reason}"
    above.plot(np.argmin(errors), errors.min(), "o", label=label)
    _finished(above, ylabel="error", yscale="log" if errors.min() > 0 else "linear")
    below.plot(history.gradient_norms, ".-")
    below.set(xlabel="step", ylabel="largest slope", yscale="log")
    return axes
