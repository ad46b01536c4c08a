"""The model of a fit: a function that predicts."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import (
    FixedEffects,
    Rows,
    as_rows,
    common_size,
    compiled,
    first,
    kernel_times,
    padded,
)
from jaxrls.core.support import door, is_concrete, pytree

PADDED = 1024  # up to so many rows in NumPy, their number is padded to a power of two
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

        plain = self.free is None and fixed_effects is None and is_concrete(self)
        m = len(X) if plain and isinstance(X, np.ndarray) and X.ndim == 2 else 0
        if 0 < m <= PADDED:
            # Each number of rows compiles a program: repeat the last row up to a power of two.
            rows, _ = self.read(X[np.minimum(np.arange(2 ** (m - 1).bit_length()), m - 1)])
            return first(_evaluate(self._padded(), rows, block_size=block_size), m)
        rows, effects = self.read(X, fixed_effects)
        predictions = _evaluate(self, rows, block_size=block_size)
        if self.effects is None:
            return predictions
        # Without an intercept, which the predictions have already.
        beta = self.effects.joined(jnp.zeros_like(self.intercept), jnp.asarray(self.free))
        return predictions + self.effects.fitted(effects, beta)

    def _padded(self) -> "Model":
        """The same function with coefficients 0 of further points, up to a common size."""
        if not isinstance(self.points, Numbers):
            return self
        more = common_size(len(self.points)) - len(self.points)
        if not more:
            return self
        points, coef = map(np.asarray, (self.points, self.coef))
        return replace(self, points=padded(points, more, "edge"), coef=padded(coef, more))

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
        if points is not None:
            # Of rows of a given matrix the columns of landmarks are enough.
            widths = points.shape[1:] if evaluable else points.shape[::-1]
            what = "the columns it was fitted on"
        elif evaluable:
            return
        else:
            widths, what = (
                self.coef.shape[:1],
                "one column per training row, as a precomputed kernel",
            )
        if d not in widths:
            raise ValueError(f"X must have {widths[0]} columns, {what}, and has {d}")


@compiled
def _evaluate(model: Model, rows: Rows, *, block_size):
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
