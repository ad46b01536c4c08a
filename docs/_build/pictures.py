"""The pictures of the how-to pages: each is drawn from what the examples above it compute.

`python docs/_build/pictures.py` draws all into docs/pictures, `… kernels ranking` some.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np

import jaxrls as rls

mpl.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

DOCS = Path(__file__).parents[1]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def many_rows(at, axes):
    """The error falls with the number of landmarks."""
    numbers = [10, 20, 50, 100, 200, 500]
    fits = [rls.fit(at["tuned"].kernel, at["X"], at["y"], landmarks=m) for m in numbers]
    axes[0].plot(numbers, [fit.error for fit in fits], "o-")
    axes[0].axhline(0.09, color="0.6", label="variance of the noise")
    axes[0].set(xscale="log", xlabel="landmarks", ylabel="leave-one-out error")
    axes[0].set_xticks(numbers, numbers)
    axes[0].minorticks_off()
    axes[0].legend()


def weights_and_groups(at, axes):
    """Two errors over λ, each with its minimum."""
    for name, label in (("rows", "rows held out"), ("grouped", "subjects held out")):
        curve(axes[0], at[name], label)
    axes[0].legend()


def curve(ax, fit, label):
    """An error over λ."""
    (line,) = ax.loglog(fit.lams, fit.errors, label=label)
    ax.plot(fit.lam, fit.error, "o", color=line.get_color())
    ax.set(xlabel="λ", ylabel="error")


def fixed_effects(at, axes):
    """The data of each group, and its curve."""
    x = np.linspace(0, 3, 200)
    for g in range(6):
        mine = at["group"] == g
        (dots,) = axes[0].plot(at["x"][mine], at["y"][mine], ".")
        effects = rls.levels(np.full(200, g))
        axes[0].plot(x, at["fit"].predict(x[:, None], fixed_effects=effects), color=dots.get_color())
    axes[0].set(xlabel="x", ylabel="y")


def classes(at, axes):
    """Held-out scores of both classes."""
    codes = np.asarray(at["Y"][:1200])
    scores = codes - np.asarray(at["fit"].loo_residuals)
    for code, name in ((-1, at["classes"][0]), (1, at["classes"][1])):
        axes[0].hist(scores[codes == code], np.linspace(-2, 2, 60), alpha=0.6, label=name)
    axes[0].axvline(0, color="0.4")
    axes[0].set(xlabel="score by the fit without the row", ylabel="rows")
    axes[0].legend()


def ranking(at, axes):
    """The picture of the fit."""
    at["fit"].plot(ax=axes[0])


def two_sided(at, axes):
    """An error over λ for each of the four settings."""
    for setting in ("entries", "rows", "columns", "both"):
        curve(axes[0], rls.two_sided.fit_kronecker(*at["sides"], at["Y"], setting=setting), setting)
    axes[0].legend()


def files(at, axes):
    """The picture of held-out predictions."""
    at["fit"].plot_left_out(at["y"][:300], ax=axes[0])


def kernels(at, axes):
    """The picture of the search."""
    at["tuned"].plot(ax=axes)


def choosing_columns(at, axes):
    """The error after each choice."""
    errors = [at["found"].error_without, *at["found"].errors]
    axes[0].plot(range(len(errors)), errors, "o-")
    axes[0].set(xlabel="columns", ylabel="leave-one-out error")


def uncertainty(at, axes):
    """A band of intervals, and calibration."""
    rng = np.random.default_rng(0)
    x = np.sort(np.concatenate([rng.uniform(0, 1, 60), rng.uniform(1.6, 2.5, 60)]))[:, None]
    y = np.sin(4 * x[:, 0]) + 0.2 * rng.normal(size=120)
    rls.fit(rls.Gaussian(0.4), x, y).plot_function(x, y, level=0.9, ax=axes[0])
    at["fit"].loo_predictive().plot(ax=axes[1])


def influence(at, axes):
    """Leverage and residual of each row; the area of a dot is Cook's distance."""
    found = at["found"]
    size = 2 + 300 * found.cooks_distance / found.cooks_distance.max()
    axes[0].scatter(found.leverage, found.residuals, size, alpha=0.5)
    axes[0].set(xlabel="leverage", ylabel="standardised residual")


def large_data(at, axes):
    """The error on new rows over the number of landmarks, and that of all of K."""
    data = at["X"], at["y"]
    new = at["X_new"], at["y_new"]
    numbers = [25, 50, 100, 200, 400, 800]
    fits = [rls.fit(rls.Gaussian(4.0), *data, landmarks=m) for m in numbers]
    axes[0].plot(numbers, [fit.score(*new) for fit in fits], "o-", label="landmarks")
    whole = rls.fit(rls.Gaussian(4.0), *data).score(*new)
    axes[0].axhline(whole, color="0.4", label="the full kernel matrix")
    axes[0].set(xscale="log", xlabel="landmarks", ylabel="R² on new rows")
    axes[0].set_xticks(numbers, numbers)
    axes[0].minorticks_off()
    axes[0].legend()


def float32(at, axes):
    """Errors in both precisions, and the floor."""
    X, y, lams = at["X"], at["y"][:300], np.geomspace(1e-8, 1e2, 100)
    kernel = rls.Gaussian(2.0)
    with jax.enable_x64():
        factor = rls.factorize(kernel, X)
        axes[0].loglog(lams, rls.loo(factor, y, lams), label="float64")
    factor = rls.factorize(kernel, X.astype(np.float32))
    errors = rls.loo(factor, y.astype(np.float32), lams.astype(np.float32))
    axes[0].loglog(lams, errors, "--", label="float32")
    axes[0].axvline(float(at["fit"].floor), color="0.6", label="the floor of float32")
    axes[0].set(xlabel="λ", ylabel="leave-one-out error", ylim=(5, 100))
    axes[0].legend()


def estimators(at, axes):
    """The picture of the fit behind the estimator."""
    at["model"][-1].path_.plot(ax=axes[0])


DRAWN = {
    name.__name__.replace("_", "-"): name
    for name in (
        *(many_rows, weights_and_groups, fixed_effects, classes, ranking, two_sided, files),
        *(kernels, choosing_columns, uncertainty, influence, large_data, float32, estimators),
    )
}
DOUBLE = {"kernels", "uncertainty"}


def above(picture):
    """The text of its page as far as the picture."""
    pages = (path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    parts = (text.partition(f"pictures/{picture}.png") for text in pages)
    return next(before for before, found, _ in parts if found)


if __name__ == "__main__":
    for page in sys.argv[1:] or DRAWN:
        names: dict = {}
        with contextlib.redirect_stdout(io.StringIO()):
            for block in EXAMPLE.findall(above(page)):
                exec(block, names)
        columns = 1 + (page in DOUBLE)
        size = (4 + 3.5 * columns - 1.5 * (columns == 1) + 0.5, 3.2)
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
        DRAWN[page](names, axes[0])
        figure.savefig(DOCS / "pictures" / f"{page}.png", dpi=90)
        plt.close(figure)
