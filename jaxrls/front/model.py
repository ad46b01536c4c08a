"""A fitted model, which predicts new rows of any kind."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import (
    DenseRows,
    FixedEffects,
    Rows,
    as_rows,
    common_size,
    compiled,
    first_rows,
    pad_rows,
)
from jaxrls.core.fit import Function, Numbers
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import by_names, is_concrete, on_device, public_call, pytree, static

LARGEST_PART = 2**15  # rows that are predicted at once, of those that are not on a device yet
QUARTERS_FROM = 4096  # rows


@pytree
class Model(Function):
    """A fitted function: a sum of kernel values, or a linear function of explicit features.

        f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + intercept, or ⟨φ(x), coef⟩ + intercept without points

    Kernels with explicit features keep the weights of the features alone, so that a linear model
    predicts in O(d) a row; but of r features and t targets they keep n rows (n, d) and their
    coefficients where r·t exceeds n·(d + t).

    Args:
        kernel: the kernel k.
        points: rows (q, d), dense or sparse, or None for weights of explicit features.
        coef: coefficients (q,) or (q, t).
        intercept: () or (t,); in float64 where the model is in float32 and labels were far from 0,
            as then are predictions.
        free: coefficients of fixed effects (p,) or (p, t), None without; `predict` takes the fixed
            effects of new rows.
        effects: what the fixed effects are, without their rows; None without.
        beta: coefficients (q,) or (q, t) of the columns that `effects` makes of fixed effects, an
            intercept among them, from which predictions are made; None without. `intercept` and
            `free` are the same for the columns as they were given, so that far from 0 the
            intercept is far out, and has fewer digits than predictions have.
        names: the names of the columns of X, where it was a data frame, a table or a stream; new
            rows with names are taken by these, whatever their order.

    **Source**: the representer theorem, Rifkin (lecture), "Applying the Representer".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> model = rls.extend.Model(rls.Linear(), None, jnp.array([2.0]), jnp.array(1.0))
    >>> model.predict(jnp.array([[3.0]])).tolist()
    [7.0]
    """

    names: tuple = static(default=())

    @public_call(fitted="self.coef")
    def predict(
        self, X: Any, *, fixed_effects: Any = None, block_size: int | None = None
    ) -> Float[Numbers, "m *t"]:
        """Predictions for new rows, in blocks of rows.

        Args:
            X: new rows (m, d), dense, sparse or a source of `Rows`. Columns of a data frame are
                taken by name where the fit was to one.
            fixed_effects: those of the new rows where the fit had such: columns (m, p) or labels of
                levels (m,). Without labels of levels predictions are right up to a constant for
                each group, as in ranking; whatever is about labels, such as `score`, `intervals`
                and standard deviations, needs them.
            block_size: rows at a time.

        Returns:
            (m,) or (m, t), in the dtype of the model.

        Raises:
            ValueError: for a wrong number of columns, or one of another name, NaN or infinity.

        **Cost** O(m q (d + t)), or O(m r t) on features; memory of a block of rows.
        """
        rows, columns = self.read(X, fixed_effects)
        return self.of_rows(rows, columns, block_size, from_host=came_from_host(X))

    def of_rows(
        self, rows: Rows, columns: Any, block_size: int | None, *, from_host: bool
    ) -> Float[Numbers, "m *t"]:
        """Predictions for rows and fixed effects that were read; those that came from the host in
        parts of few sizes, so that a few programs serve every number of rows.
        """
        wider = getattr(self.intercept, "dtype", self.coef.dtype) != self.coef.dtype
        adds_constant = self.effects is None and not wider
        nothing = np.zeros(np.shape(self.intercept), self.coef.dtype)
        # Without names, for which nothing is compiled anew.
        smooth = Model(
            self.kernel, self.points, self.coef, self.intercept if adds_constant else nothing
        )
        if from_host and type(rows) is DenseRows and rows.shards == 1 and is_concrete(self, rows):
            values = evaluate_in_few_sizes(smooth, rows, block_size)
        else:
            values = evaluate(smooth, rows, block_size=block_size)
        if self.effects is not None:
            return self._with_effects(values, columns)
        return values if adds_constant else with_constant(values, self.intercept)

    def _with_effects(self, varying: Float[Array, "m *t"], columns: Any) -> Any:
        """Predictions with what the fixed effects of the rows add to them."""
        effects: Any = self.effects
        beta: Any = self.beta
        if beta.dtype == self.coef.dtype:
            return varying + effects.fitted(columns, jnp.asarray(beta))
        others = np.array(beta, self.coef.dtype)
        others[0] = 0  # the intercept beside far labels, which is in float64
        return with_constant(varying + effects.fitted(columns, jnp.asarray(others)), beta[0])

    def read(self, X: Any, fixed_effects: Any = None) -> tuple[Rows, Any]:
        """The rows of X and their fixed effects, checked."""
        X = by_names("X", X, self.names)
        rows = as_rows(self.kernel, X, dtype=self.coef.dtype, devices=jax.device_count())
        self.check_columns(rows.shape[1])
        rows.check(self.kernel, training=False)
        effects = self.effects or FixedEffects.none(self.coef.dtype)
        return rows, effects.new_values(fixed_effects, rows.shape[0], self.coef.dtype)

    def check_loaded(self) -> None:
        """Raise for a model that no fit can have made, as from a file that was made by hand."""
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"its kernel is a {type(self.kernel).__name__}")
        numbers = np.asarray(self.coef)
        of_points = self.points is None or len(numbers) == self.points.shape[0]
        if not of_points or numbers.shape[1:] != np.shape(self.intercept):
            raise ValueError(
                f"its coefficients have shape {numbers.shape}, and do not fit the points and the "
                "intercept"
            )
        if not (np.isfinite(numbers).all() and np.isfinite(self.intercept).all()):
            raise ValueError("its coefficients are not finite")

    def check_effects(self, call: str, fixed_effects: Any) -> None:
        """Raise where a call is about labels, and the fixed effects of their rows are not given."""
        if self.free is not None and fixed_effects is None:
            raise ValueError(
                f"{call} is about labels, which have fixed effects: give fixed_effects="
            )

    def check_columns(self, d: int) -> None:
        """Raise for rows with another number d of columns than those that were fitted, where that
        is known.
        """
        evaluable = self.kernel.evaluable
        points = self.points
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


def came_from_host(X: Any) -> bool:
    """Whether rows were given as NumPy has them, in a frame or a list: not on a device already."""
    return not isinstance(X, jax.Array | Rows)


def with_constant(predictions: Any, constant: Any) -> Any:
    """Predictions and a constant, in the dtype of the constant where it is wider and values are
    known.
    """
    if getattr(constant, "dtype", predictions.dtype) == predictions.dtype:
        return predictions + constant
    if is_concrete(predictions):
        return np.asarray(predictions, constant.dtype) + np.asarray(constant)
    return predictions + jnp.asarray(constant, predictions.dtype)


# programs
# --------------------------------------------------------------------------------------------------


@compiled
def evaluate(function: Function, rows: Rows, *, block_size: int | None) -> Float[Array, "m *t"]:
    """The function's values of rows."""
    return function.values(rows, block_size)


def evaluate_in_few_sizes(
    model: Model, rows: DenseRows, block_size: int | None
) -> Float[Array, "m *t"]:
    """Values of rows that came from the host, so that a few programs serve every number of rows."""
    model = _with_points_padded(model)
    if rows.shape[0] <= LARGEST_PART:
        return _evaluate_padded(model, rows, block_size)
    model = jax.tree.map(on_device, model)
    X = np.asarray(rows.X)
    parts = []
    for first in range(0, len(X), LARGEST_PART):
        part = DenseRows(on_device(X[first : first + LARGEST_PART]))
        parts.append(np.asarray(_evaluate_padded(model, part, block_size)))
    return jax.device_put(np.concatenate(parts))


def _evaluate_padded(model: Model, rows: DenseRows, block_size: int | None) -> Float[Array, "m *t"]:
    """Values of rows whose number is raised to a common one by copies of the last row."""
    m = rows.shape[0]
    size = _common_number(m)
    if size == m:
        return evaluate(model, rows, block_size=block_size)
    padded = DenseRows(on_device(pad_rows(np.asarray(rows.X), size - m, "edge")))
    return first_rows(evaluate(model, padded, block_size=block_size), m)


def _common_number(m: int) -> int:
    """m raised to a power of two; of many rows, where copies cost more, to a quarter of one."""
    power = 2 ** (m - 1).bit_length()
    if m <= QUARTERS_FROM:
        return power
    return -(-m // (power // 8)) * (power // 8)


def _with_points_padded(model: Model) -> Model:
    """The model with further points of coefficient 0 where it has few, for the same reason."""
    if not isinstance(model.points, jax.Array | np.ndarray):
        return model
    missing = common_size(len(model.points)) - len(model.points)
    if not missing:
        return model
    points = pad_rows(np.asarray(model.points), missing, "edge")
    coef = pad_rows(np.asarray(model.coef), missing)
    return replace(model, points=points, coef=coef)
