"""The error on rows held out for validation."""

from collections.abc import Callable
from functools import partial

import jax
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Positive, evaluate
from jaxrls.criteria.losses import is_smooth, squared_error
from jaxrls.factors.contract import Factor, as_columns
from jaxrls.kernels.inner import Linear
from jaxrls.linalg.products import matmul
from jaxrls.problem.weights import Weights
from jaxrls.rows.rows import Rows
from jaxrls.rows.sparse import SparseMatrix, as_rows
from jaxrls.support.checks import Listed, as_array, as_floats, check_targets
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree, static


@pytree
class HoldOut(Positive):
    """Σⱼ vⱼ loss(yⱼ − f(xⱼ), yⱼ) / Σⱼ vⱼ over rows held out: `holdout` as a criterion.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.HoldOut.of(jnp.ones((2, 1)), [1.0, 2.0]).Y.shape
    (2,)
    """

    rows: Rows
    Y: Float[Array, "m *t"]
    weights: Weights
    designed: bool = static(
        default=False
    )  # whether the rows are what multiplies the coefficients already
    loss: Callable = static(default=squared_error)
    name = "holdout"

    @classmethod
    def of(cls, X, Y, weights=None, *, loss=squared_error, designed=False, name="X"):
        """Rows held out, their labels and weights, checked."""
        rows = as_rows(Linear(), X, name)
        Y = rows.column(as_floats("Y_holdout", Y, rows.dtype))
        check_targets("Y_holdout", Y, rows.shape[0])
        return cls(rows, Y, Weights.of_rows(weights, rows), designed, loss)

    @property
    def of_some_rows(self):  # type: ignore[override]
        """Unless they are columns of a kernel matrix, which belong to its rows."""
        return not self.designed

    def check(self, kernel):
        """Held-out rows inside of the kernel's domain."""
        self.rows.check(kernel, "validation X", training=False)

    @property
    def traceable(self):  # type: ignore[override]
        """That of the rows."""
        return self.rows.traceable

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return is_smooth(self.loss)

    def values(self, solution, lams, kernel):
        """One pass over the held-out rows, in the precision of the factor whatever theirs is."""
        dtype = solution.factor.dtype
        labels = self.Y.reshape(self.rows.shape[0], -1).astype(dtype)
        weights = Weights.of(self.weights.values, self.rows.shape[0], dtype)
        if labels.shape[1] != solution.labels.Y.shape[1]:
            raise ValueError(
                f"held-out labels must have {solution.labels.Y.shape[1]} columns, as Y does, and have {labels.shape[1]}"
            )
        if solution.factor.fixed.rows is not None:
            raise ValueError(
                "fixed_effects= goes with rows that are left out, and rows were held out, whose columns are not known: use loo or kfold"
            )
        coef, intercept, _ = solution.coefficients(lams)
        design = (
            (lambda rows: rows)
            if self.designed
            else partial(solution.factor.expansion.design, kernel)
        )

        def block(rows, v, y):
            phi, v = design(rows.astype(dtype)), weights.block(v, rows.shape[0]).array
            if phi.shape[1] != coef.shape[1]:
                raise ValueError(
                    f"design must have {coef.shape[1]} columns, one for each coefficient, and has {phi.shape[1]}"
                )

            def at(args):
                coef, intercept = args
                return matmul(v, self.loss(y - matmul(phi, coef) - intercept, y))

            return jax.lax.map(
                at, (coef, intercept), batch_size=_at_once(len(as_columns(lams)), labels.shape[1])
            )

        return (self.rows if self.designed else self.rows.stored).sum(
            block, weights.values, labels
        ) / weights.total


def _at_once(count: int, columns: int) -> int:
    """How many λ go into one product, of about 256 columns."""
    return min(count, max(1, 256 // columns))


@on_any_mesh
def holdout(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
    design: Float[Array, "m q"] | Rows | SparseMatrix | Listed,
    Y_holdout: Float[Array, "m *t"] | Listed,
    *,
    weights: Float[Array, " m"] | Listed | None = None,
    loss: Callable = squared_error,
) -> Float[Array, "L *t"]:
    """Error on held-out rows at every λ.

    Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ over the held-out rows, whose predictions are design @
    coef(λ) + b(λ).

    **Shapes**: `design` (m, q) is what multiplies the coefficients: `gram(kernel, X_holdout,
    factor.points)` over rows or landmarks, `kernel.features(X_holdout)` where `factor.points` is
    None, and k(new, training) for a factor made from K. Y_holdout (m,) or (m, t), as Y. Gives (L,)
    or (L, t). **Cost** O((n + m) q L t). **Raises** `ValueError` for shapes that do not fit.
    **Source**: Rifkin (lecture), "Types of Validation".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, X_new = jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])
    >>> factor = rls.factorize(rls.Linear(), X, route="gram", intercept=False)
    >>> rls.holdout(factor, jnp.array([2.0, 4.0]), jnp.array([5.0]), rls.gram(rls.Linear(), X_new, X), jnp.array([6.0])).round(4).tolist()
    [9.0]
    """
    Y = as_array("Y", Y, factor.dtype)
    held = HoldOut.of(design, Y_holdout, weights, loss=loss, designed=True, name="design")
    if held.Y.ndim != Y.ndim:
        raise ValueError(
            f"Y_holdout must have as many axes as Y: they have shapes {held.Y.shape} and {Y.shape}"
        )
    return evaluate(held, factor, Y, lams)
