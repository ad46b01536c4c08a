"""The model of a fit: a function that predicts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.fit.padding import predict_in_common_size
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import FixedEffects, Rows, as_rows, compiled, kernel_times
from jaxrls.core.support import door, pytree

Numbers = Array | np.ndarray  # NumPy's for a fit to float64 NumPy arrays


@pytree
class Model:
    """A fitted function: a sum of kernel values, or a linear function of explicit features.

        f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + intercept, or ⟨φ(x), coef⟩ + intercept without points

    Kernels with explicit features keep the weights of the features alone, so that a linear model
    predicts in O(d) a row.

    Args:
        kernel: the kernel k.
        points: rows (q, d), dense or sparse, or None for weights of explicit features.
        coef: coefficients (q,) or (q, t).
        intercept: () or (t,).
        free: coefficients of fixed effects (p,) or (p, t), None without; `predict` takes the fixed
            effects of new rows.
        effects: what the fixed effects are, without their rows; None without.

    **Source**: the representer theorem, Rifkin (lecture), "Applying the Representer".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> model = rls.extend.Model(rls.Linear(), None, jnp.array([2.0]), jnp.array(1.0))
    >>> model.predict(jnp.array([[3.0]])).tolist()
    [7.0]
    """

    kernel: Kernel
    points: Any
    coef: Float[Numbers, "q *t"]
    intercept: Float[Numbers, "*t"]
    free: Float[Numbers, "p *t"] | None = None
    effects: FixedEffects | None = None

    @door("self.coef")
    def predict(
        self, X, *, fixed_effects=None, block_size: int | None = None
    ) -> Float[Numbers, "m *t"]:
        """Predictions for new rows, in blocks of rows.

        Args:
            X: new rows (m, d), dense, sparse or a source of `Rows`.
            fixed_effects: those of the new rows where the fit had such: columns (m, p) or labels of
                levels (m,). Without labels of levels predictions are right up to a constant for
                each group, as in ranking.
            block_size: rows at a time.

        Returns:
            (m,) or (m, t), in the dtype of the model.

        Raises:
            ValueError: for a wrong number of columns, NaN or infinity.

        **Cost** O(m q (d + t)), or O(m r t) on features; memory of a block of rows.
        """

        effects: Any = self.effects
        if effects is None and fixed_effects is None:
            run = lambda model, X: _evaluate(model, model.read(X)[0], block_size=block_size)
            return predict_in_common_size(run, self, X)
        rows, columns = self.read(X, fixed_effects)
        predictions = _evaluate(self, rows, block_size=block_size)
        # Without an intercept, which the predictions have already.
        beta = effects.joined(jnp.zeros_like(self.intercept), jnp.asarray(self.free))
        return predictions + effects.fitted(columns, beta)

    def read(self, X, fixed_effects=None) -> tuple[Rows, Any]:
        """The rows of X and their fixed effects, checked."""
        rows = as_rows(self.kernel, X, dtype=self.coef.dtype, devices=jax.device_count())
        self.check_columns(rows.shape[1])
        rows.check(self.kernel, training=False)
        effects = self.effects or FixedEffects.none(self.coef.dtype)
        return rows, effects.new_rows(fixed_effects, rows.shape[0], self.coef.dtype)

    def check_columns(self, d: int) -> None:
        """Raise for rows with another number d of columns than those that were fitted, where that
        is known.
        """
        evaluable, points = self.kernel.evaluable, self.points
        what = "the columns it was fitted on"
        if points is not None:
            # Of rows of a given matrix the columns of landmarks are enough.
            widths = points.shape[1:] if evaluable else points.shape[::-1]
        elif evaluable:
            return
        else:
            widths = self.coef.shape[:1]
            what = "one column per training row, as a precomputed kernel"
        if d not in widths:
            raise ValueError(f"X must have {widths[0]} columns, {what}, and has {d}")


@compiled
def _evaluate(model, rows, *, block_size):
    coef = jnp.asarray(model.coef)
    if model.points is not None:
        points = jax.tree.map(jnp.asarray, model.points)
        return kernel_times(model.kernel, rows, points, coef, block_size) + model.intercept

    def times_coef(x):
        design = model.kernel.features(x.astype(coef.dtype))
        if design.shape[1] != coef.shape[0]:
            raise ValueError(
                f"X with {x.shape[1]} columns gives {design.shape[1]} features, and the model was "
                f"fitted on {coef.shape[0]}"
            )
        return matmul(design, coef)

    return rows.map(times_coef, block_size=block_size) + model.intercept
