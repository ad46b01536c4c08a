"""The picture on the front page: `python notebooks/pictures/front.py` writes it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxrls as rls

jax.config.update("jax_enable_x64", True)
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "font.size": 11}
)


def main():
    X, y, _ = rls.airfoil()
    order = np.random.default_rng(0).permutation(len(X))
    X, y = (
        jnp.asarray((X - X.mean(axis=0)) / X.std(axis=0))[order],
        jnp.asarray(y)[order],
    )
    train, test, y_train, y_test = X[:1000], X[1000:], y[:1000], y[1000:]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained")
    for width, color in ((0.6, "C0"), (1.5, "C1"), (6.0, "C2")):
        kernel, lams = rls.Gaussian(width), jnp.geomspace(1e-7, 1e3, 120)
        path = rls.path(rls.factorize(kernel, train, intercept=True), y_train, lams)
        predicted = (
            path.coef @ rls.extend.gram(kernel, train, test) + path.intercept[:, None]
        )
        left.plot(
            lams, jnp.sqrt(path.loo), color=color, label=f"leave-one-out, width {width}"
        )
        left.plot(
            lams[::6],
            jnp.sqrt(jnp.mean((predicted - y_test) ** 2, axis=1))[::6],
            ".",
            color=color,
        )
        best = int(path.loo.argmin())
        left.plot(lams[best], jnp.sqrt(path.loo[best]), "o", color=color, markersize=9)
    left.plot([], [], "k.", label="503 held-out rows")
    left.set(
        xscale="log",
        xlabel="λ",
        ylabel="error, dB",
        ylim=(1.8, 8),
        title="120 λ from one factorization, with the exact error",
    )
    left.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.56, 1.0))

    tuned = rls.tune(
        rls.Gaussian(np.full(5, 15.0)),
        train,
        y_train,
        lams=[1.0],
        start="kernel",
        steps=40,
    )
    errors = np.sqrt(np.asarray(tuned.history.errors))
    right.plot(errors, ".-", color="C3")
    right.set(
        xlabel="step",
        ylabel="leave-one-out error, dB",
        title="λ and five widths by its gradient",
    )
    right.xaxis.get_major_locator().set_params(integer=True)
    held_out = jnp.sqrt(jnp.mean((tuned.predict(test) - y_test) ** 2))
    print(
        f"left out: {errors[0]:.2f} to {errors[-1]:.2f} dB; held out: {held_out:.2f} dB"
    )
    figure.savefig(Path(__file__).with_name("front.png"), dpi=90)


if __name__ == "__main__":
    main()
