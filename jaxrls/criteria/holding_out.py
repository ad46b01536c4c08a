"""The error on rows held out for validation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from jaxrls.criteria.criterion import Positive
from jaxrls.criteria.losses import check_loss, is_smooth, squared_error
from jaxrls.factors.contract import as_columns
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.products import matmul
from jaxrls.linalg.sparse import made_dense
from jaxrls.problem.weights import Weights
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import as_rows
from jaxrls.support.checks import as_floats, check_finite, check_targets
from jaxrls.support.pytrees import pytree, static


@pytree
class HoldOut(Positive):
    """Σⱼ vⱼ loss(yⱼ − f(xⱼ), yⱼ) / Σⱼ vⱼ over rows held out: what `holdout` makes.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.HoldOut(jnp.ones((2, 1)), jnp.array([1.0, 2.0])).name
    'holdout'
    """

    X: Any  # as it was given, `Rows` once it is bound
    Y: Any
    weights: Any = None
    loss: Callable = static(default=squared_error)
    name = "holdout"
    of_some_rows = True

    def bind(self, Y, rows=None):
        """Rows, labels and weights, as many columns and targets as those that are fitted."""
        held = as_rows(Linear(), self.X, "X of holdout")
        labels = held.column(as_floats("Y of holdout", self.Y))
        check_targets("Y of holdout", labels, held.shape[0])
        check_finite("Y of holdout", labels)
        if rows is not None and held.shape[1] != rows.shape[1]:
            raise ValueError(
                f"X of holdout must have the {rows.shape[1]} columns of X, and has {held.shape[1]}"
            )
        if labels.shape[1:] != Y.shape[1:]:
            wanted = (held.shape[0], *Y.shape[1:])
            raise ValueError(
                f"Y of holdout must have shape {wanted}, as its X and Y do, and has shape "
                f"{labels.shape}"
            )
        return replace(self, X=held, Y=labels, weights=Weights.of_rows(self.weights, held))

    def check(self, kernel):
        """Held-out rows inside of the kernel's domain."""
        self.X.check(kernel, "X of holdout", training=False)

    @property
    def traceable(self):  # type: ignore[override]
        """That of the rows."""
        return not isinstance(self.X, Rows) or self.X.traceable

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return is_smooth(self.loss)

    def values(self, solution, lams, kernel):
        """One pass over the held-out rows, in the precision of the factor whatever theirs is;
        without a kernel these are what multiplies the coefficients.
        """
        factor, rows = solution.factor, self.X
        labels = self.Y.reshape(rows.shape[0], -1).astype(factor.dtype)
        weights = Weights.of(self.weights.values, rows.shape[0], factor.dtype)
        if factor.fixed.rows is not None:
            raise ValueError(
                "fixed_effects= goes with rows that are left out, and rows were held out, whose "
                "columns are not known: use loo or kfold"
            )
        coef, intercept, _ = solution.coefficients(lams)

        def block(x, v, y):
            x = x.astype(factor.dtype)
            phi = made_dense(x) if kernel is None else factor.expansion.design(kernel, x)
            v = weights.block(v, x.shape[0]).array
            if phi.shape[1] != coef.shape[1]:
                raise ValueError(
                    f"X of holdout must have {coef.shape[1]} columns, one for each coefficient, "
                    f"where no kernel is given, and has {phi.shape[1]}"
                )

            def at(args):
                coef, intercept = args
                return matmul(v, self.loss(y - matmul(phi, coef) - intercept, y))

            count = len(as_columns(lams))  # so many λ in one product, of about 256 columns
            size = min(count, max(1, 256 // labels.shape[1]))
            return jax.lax.map(at, (coef, intercept), batch_size=size)

        return rows.sum(block, weights.values, labels) / weights.total


def holdout(X, Y, *, weights=None, loss: Callable = squared_error) -> HoldOut:
    """The error on held-out rows, Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ, as a criterion.

    Args:
        X: rows (m, d) with the columns of those that are fitted. Where it is called with a factor
            and no kernel, what multiplies the coefficients, (m, q): `gram(kernel, X, factor.points)`,
            or explicit features.
        Y: their labels, (m,) or (m, t).
        weights: (m,), 0 or more. Default 1.
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
    check_loss(loss)
    return HoldOut(X, Y, weights, loss)
