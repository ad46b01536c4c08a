"""A sum of kernels weighted for every target by itself, its predictions and scores split by
kernel.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.kernels.kernel import Kernel, Scaled, Sum
from jaxrls.models.model import Model
from jaxrls.models.posterior import at_rows
from jaxrls.rows.gram import kernel_times
from jaxrls.support.checks import as_array
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree


@pytree
class KernelsFit:
    """The result of `fit_kernels`: f_t(x) = Σₖ shares_kt Σⱼ k(x, pointsⱼ) coef_jt + intercept_t,
    and how it was chosen.

    `shares` (K, t) are the weights of the kernels for every target, `lam` and `error` (t,) its λ
    and error. Targets stay columns, also where there is one.

    >>> import jax, numpy as np, jaxrls as rls
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> fit = rls.fit_kernels([rls.Linear().on(0), rls.Linear().on(1)], X, X, num=4, key=jax.random.key(0))
    >>> fit.predict(X).shape, fit.predict_split(X).shape, fit.shares.argmax(axis=0).tolist()
    ((30, 2), (2, 30, 2), [0, 1])
    """

    kernels: tuple[Kernel, ...]
    points: Any  # (q, d), or sparse rows
    coef: Float[Array | np.ndarray, "q t"]
    intercept: Float[Array | np.ndarray, " t"]
    shares: Float[Array | np.ndarray, "k t"]
    lam: Float[Array | np.ndarray, " t"]
    error: Float[Array | np.ndarray, " t"]

    def kernel(self, target: int) -> Kernel:
        """That of one target, as one kernel, such as `tune` goes on from."""
        return weighted(self.kernels, self.shares[:, target])

    @on_any_mesh
    def predict_split(
        self, X, *, block_size: int | None = None
    ) -> Float[Array | np.ndarray, "k m t"]:
        """What each kernel adds to the predictions for the rows of X, without the intercept.

        **Shapes**: X (m, d) gives (K, m, t). **Cost** O(m q (d + t)) for each kernel. **Raises** as
        `Model.predict`."""
        model = Model(self.kernels[0], self.points, self.coef, self.intercept)
        model.check_columns(X.shape[1])
        return at_rows(model, X, partial(_split, self, block_size=block_size))

    def predict(self, X, *, block_size: int | None = None) -> Float[Array | np.ndarray, "m t"]:
        """Predictions (m, t) for the rows of X: the sum of `predict_split`, and the intercept."""
        return self.predict_split(X, block_size=block_size).sum(axis=0) + self.intercept

    def score_split(self, X, Y) -> Float[Array | np.ndarray, "k t"]:
        """R² split by kernel, by the product measure: Σᵢ f_k(xᵢ) (2(yᵢ − b) − f(xᵢ)) / Σᵢ (yᵢ − ȳ)²
        with f = Σₖ f_k.

        Over kernels it adds up to R² + n(ȳ − b)²/Σ(yᵢ − ȳ)², which is R² where the intercept is the
        mean of Y. **Shapes**: X (m, d), Y (m, t) give (K, t). **Cost** as `predict_split`.
        **Raises** `ValueError` for another number of columns. **Source**: Pratt 1987; as himalaya's
        `r2_score_split`."""
        split = self.predict_split(X)
        Y = (
            as_array("Y", Y, split.dtype)
            if isinstance(split, jax.Array)
            else np.asarray(Y, split.dtype)
        )
        if Y.shape != split.shape[1:]:
            raise ValueError(
                f"Y must have shape {split.shape[1:]}, a row for each of X and a column for each target, and has shape {Y.shape}"
            )
        return (split * (2 * (Y - self.intercept) - split.sum(axis=0))).sum(axis=1) / (
            (Y - Y.mean(axis=0)) ** 2
        ).sum(axis=0)


def weighted(kernels: tuple[Kernel, ...], shares) -> Kernel:
    """Σₖ sharesₖ k."""
    parts = [Scaled(share, kernel) for share, kernel in zip(shares, kernels, strict=True)]
    total: Kernel = parts[0]
    for part in parts[1:]:
        total = Sum(total, part)
    return total


@partial(jax.jit, static_argnames="block_size")
def _split(fit: KernelsFit, rows, *, block_size):
    fit = jax.tree.map(jnp.asarray, fit)

    def block(x):
        each = [
            kernel_times(kernel, x, fit.points, fit.coef * share)
            for kernel, share in zip(fit.kernels, fit.shares, strict=True)
        ]
        return jnp.stack(each, axis=1)

    parts = rows.map(block, temporaries=len(fit.coef), block_size=block_size)
    return jnp.moveaxis(parts, 1, 0)
