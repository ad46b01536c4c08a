"""The error on further rows that are given for this purpose, `holdout`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import Criterion, OfLoss
from jaxrls.core.criteria.losses import squared_error
from jaxrls.core.data import Rows, Weights, as_rows
from jaxrls.core.factors import Solution
from jaxrls.core.kernels import Kernel, Linear, as_dense
from jaxrls.core.linalg import matmul
from jaxrls.core.support import (
    as_floats,
    by_names,
    check_finite,
    check_index,
    labels_by_names,
    pytree,
    static,
)


@pytree
class HoldOut(OfLoss):
    """A criterion that is the mean loss on given held-out rows. `holdout` makes it.

    The fields X, Y, weights and loss are the arguments of `holdout`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.holdout(jnp.ones((2, 1)), jnp.array([1.0, 2.0])).name
    'holdout'
    """

    X: Any  # as the user gave it; `Rows` after `bind`
    Y: Any  # after `bind` an array
    weights: Any = None  # `Weights` after `bind`
    loss: Callable = static(default=squared_error)
    name = "holdout"
    title = "hold-out error"
    fits_samples = averages_loss = has_own_rows = True

    def bind(self, Y: Float[Array | np.ndarray, "n *t"], rows: Rows | None = None) -> Criterion:
        """Return the criterion with X, Y and weights read, and checked against the fitted data.

        X must have the columns of the fitted rows, and Y the targets of the fitted labels.
        """
        held = as_rows(Linear(), self.X, "X of holdout")
        labels = held.column(as_floats("Y of holdout", self.Y))
        expected = held.shape[0], *Y.shape[1:]
        if labels.shape != expected:
            raise ValueError(
                f"Y of holdout must have shape {expected}, as its X and Y do, and has shape "
                f"{labels.shape}"
            )
        check_finite("Y of holdout", labels)
        if rows is not None and held.shape[1] != rows.shape[1]:
            raise ValueError(
                f"X of holdout must have the {rows.shape[1]} columns of X, and has {held.shape[1]}"
            )
        return replace(self, X=held, Y=labels, weights=Weights.of_rows(self.weights, held))

    def match_columns(self, names: tuple, targets: tuple, offset: np.ndarray | None) -> Criterion:
        """Return the criterion with its columns taken by name and the offset subtracted from Y."""
        Y = labels_by_names(self.Y, targets)
        Y = Y if offset is None else np.asarray(Y, np.float64) - offset
        return replace(self, X=by_names("X of holdout", self.X, names), Y=Y)

    def check(self, kernel: Kernel) -> None:
        """Raise if held-out rows lie outside the kernel's domain."""
        self.X.check(kernel, "X of holdout", training=False)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean loss, from one pass over the held-out rows, in the factor's dtype.

        Without a kernel, the held-out rows are themselves the matrix that multiplies the
        coefficients.
        """
        factor = solution.factor
        rows = self.X
        if factor.fixed.are_given:
            raise ValueError(
                "criterion holdout cannot be used with fixed_effects=, as those of its rows are "
                "not known: use loo or kfold"
            )
        coef, intercept, _ = solution.coefficients(lams)
        labels = self.Y.reshape(len(self.Y), -1)
        together = min(len(coef), max(1, 256 // labels.shape[1]))  # λ in one product

        def errors_of_block(
            x: Any, v: Float[Array, " b"], y: Float[Array, "b t"]
        ) -> Float[Array, "L u"]:
            x, v, y = (part.astype(factor.dtype) for part in (x, v, y))
            phi = as_dense(x) if kernel is None else factor.expansion.design(kernel, x)
            if phi.shape[1] != coef.shape[1]:
                raise ValueError(
                    f"X of holdout must have {coef.shape[1]} columns, one for each coefficient, "
                    f"where no kernel is given, and has {phi.shape[1]}"
                )
            error = lambda fit: matmul(v, self.loss(y - matmul(phi, fit[0]) - fit[1], y))
            return jax.lax.map(error, (coef, intercept), batch_size=together)

        total = self.weights.total.astype(factor.dtype)
        return rows.sum(errors_of_block, self.weights.array, labels) / total


def holdout(X: Any, Y: Any, *, weights: Any = None, loss: Callable = squared_error) -> HoldOut:
    """Make a criterion that is the mean loss on held-out rows.

    It is Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ over the held-out rows, where f_λ is fitted on the
    rows that `fit` or the factor has.

    Args:
        X: held-out rows (m, d), with the columns of the fitted rows. If you call the criterion with
            a factor and no kernel, give the matrix (m, q) that multiplies the coefficients:
            `gram(kernel, X, factor.points)`, or explicit features.
        Y: labels of the held-out rows, (m,) or (m, t).
        weights: weights of the held-out rows (m,), 0 or more. Default 1.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion: `fit(…, criterion=holdout(X, Y))`, `holdout(X, Y)(factor, Y, lams, kernel)`.

    **Cost** O((n + m) q L t). **Source**: Rifkin (lecture), "Types of Validation".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, X_new = jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])
    >>> factor = rls.factorize(rls.Linear(), X, intercept=False)
    >>> held = rls.holdout(X_new, jnp.array([6.0]))
    >>> held(factor, jnp.array([2.0, 4.0]), [5.0], rls.Linear()).round(4).tolist()
    [9.0]
    """
    check_index({"X": X, "Y": Y, "weights": weights})
    return HoldOut(X, Y, weights, loss)
