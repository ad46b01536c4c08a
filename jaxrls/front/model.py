"""`Model`, a fitted function that predicts new rows of any kind."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.data import (
    DenseRows,
    FixedColumns,
    FixedEffects,
    GramRows,
    Rows,
    as_rows,
    common_size,
    compiled,
    first_rows,
    no_effects,
    pad_rows,
)
from jaxrls.core.fit import Function, Numbers
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import (
    by_names,
    is_concrete,
    known_values,
    numpy_or_jax,
    on_device,
    public_call,
    pytree,
    static,
)
from jaxrls.front.levels import check_levels_fit_dtype

LARGEST_PART = 2**15  # at most this many rows from the host are predicted at once
QUARTERS_FROM = 4096  # see `common_number`


@pytree
class Model(Function):
    """A fitted function, which predicts new rows.

    It is a sum of kernel values, or a linear function of explicit features:

        f(x) = Σⱼ k(x, pointsⱼ) coefⱼ + constant, or ⟨φ(x), coef⟩ + constant without points

    If the kernel has r explicit features, the model usually keeps one coefficient for each feature
    and target. So a linear model predicts in O(d) a row. With t targets, it keeps the n rows (n, d)
    and their coefficients instead if these are fewer numbers, that is, if r·t > n·(d + t).

    Args:
        kernel: the kernel k.
        points: rows (q, d), dense or sparse; None if `coef` belongs to explicit features.
        coef: coefficients (q,) or (q, t).
        constant: () or (t,), 0 if none is fitted. It is in float64 if labels far from 0 were fitted
            in float32; predictions then are in float64 too.
        free: coefficients of the fixed effects, (p,) or (p, t); None if there are none.
        effects: the kinds and columns of the fixed effects, without their rows; None if there are
            none. `predict` then takes the fixed effects of new rows.
        beta: coefficients from which predictions are made, (p,) or (p, t); None without fixed
            effects. They belong to levels, or to orthonormal combinations of the centred columns,
            with which `effects` computes. `constant` and `beta` give the same function as
            `intercept` and `free`, which belong to the columns as the caller gave them.
        names: the names of the columns of X, if X was a data frame, a table or a stream. Columns of
            new rows are found by these names, in any order.
        num_columns: how many columns X had; None for a kernel matrix, or if it is not known.

    **Source**: the representer theorem, Rifkin (lecture), "Applying the Representer".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> model = rls.extend.Model(rls.Linear(), None, jnp.array([2.0]), jnp.array(1.0))
    >>> model.predict(jnp.array([[3.0]])).tolist()
    [7.0]
    """

    names: tuple = static(default=())
    num_columns: int | None = static(default=None)

    @property
    def unnamed(self) -> "Model":
        """The model without names of columns and of fixed effects.

        Other names would compile a program again.
        """
        return replace(self, names=(), effects=_without_terms(self.effects))

    @property
    def intercept(self) -> Any:
        """The constant for columns of fixed effects that are 0 as the caller gave them, () or (t,).

        `constant` itself is for columns at their means over the fitted rows. Without columns both
        are the same. If columns are far from 0, the intercept is an extrapolation, and has fewer
        digits than predictions.
        """
        effects = self.effects
        if not isinstance(effects, FixedColumns) or not effects.intercept:
            return self.constant
        return with_constant(-effects.combinations.at_means(self.free), self.constant)

    @public_call(fitted="self.coef")
    def predict(
        self, X: Any, *, fixed_effects: Any = None, block_size: int | None = None
    ) -> Float[Numbers, "m *t"]:
        """Predict new rows, in blocks of rows.

        Args:
            X: new rows (m, d), dense, sparse or a source of `Rows`. If X of the fit was a data
                frame, columns of a data frame are found by name.
            fixed_effects: the fixed effects of the new rows, if the fit had any: columns (m, p) or
                labels of levels (m,). Without labels of levels, predictions are right up to a
                constant for each group, as in ranking. Calls that concern labels need them, such
                as `score`, `intervals` and standard deviations.
            block_size: rows at a time.

        Returns:
            Predictions (m,) or (m, t), in the dtype of the model; see `constant` for float64.

        Raises:
            ValueError: for a wrong number of columns, a column with an unknown name, NaN or
                infinity.

        **Cost** O(m q (d + t)), or O(m r t) on features; memory of a block of rows.
        """
        of_rows = self.read(X, fixed_effects)
        return self.of_rows(*of_rows, block_size, from_host=came_from_host(X))

    def of_rows(
        self, rows: Rows, columns: Any, block_size: int | None, *, from_host: bool
    ) -> Float[Numbers, "m *t"]:
        """Predict rows that were read already.

        Args:
            rows: the new rows.
            columns: their fixed effects, as `read` returns them.
            block_size: rows at a time.
            from_host: as in `in_few_sizes`.
        """
        function, constant = self._without_wider_constant()
        if from_host:
            function = _with_points_padded(function)
        program = partial(evaluate, block_size=block_size)
        values = in_few_sizes(program, (function,), (rows, columns), from_host=from_host)
        return values if constant is None else with_constant(values, constant)

    def _without_wider_constant(self) -> tuple["Model", Any]:
        """Return the model with all numbers in the dtype of `coef`, and the constant that it lacks.

        That constant is None unless it is in a wider dtype. The model has no names of columns and
        of fixed effects, as other names would compile a program again.
        """
        dtype = self.coef.dtype
        constant: Any = self.constant
        lacking: Any = None
        if getattr(constant, "dtype", dtype) != dtype:
            lacking = constant
            constant = np.zeros(np.shape(constant), dtype)
        of_features = self.kernel, self.points, self.coef, constant
        effects = _without_terms(self.effects)
        return Model(*of_features, effects=effects, beta=self.beta), lacking

    def read(self, X: Any, fixed_effects: Any = None) -> tuple[Rows, Any]:
        """Return X as `Rows`, and the fixed effects in the form that `effects` takes, checked."""
        X = by_names("X", X, self.names)
        rows = as_rows(self.kernel, X, dtype=self.coef.dtype, devices=jax.device_count())
        self.check_columns(rows.shape[1])
        rows.check(self.kernel, training=False)
        check_levels_fit_dtype(self.kernel, self.points, X)
        effects = self.effects or no_effects(self.coef.dtype)
        return rows, effects.new_values(fixed_effects, rows.shape[0], self.coef.dtype)

    def check_loaded(self) -> None:
        """Raise if no fit can have made the model, for example if a file was edited by hand."""
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"its kernel is a {type(self.kernel).__name__}")
        numbers = np.asarray(self.coef)
        of_points = self.points is None or len(numbers) == self.points.shape[0]
        if not of_points or numbers.shape[1:] != np.shape(self.constant):
            raise ValueError(
                f"its coefficients have shape {numbers.shape}, and do not fit the points and the "
                "constant"
            )
        if not (np.isfinite(numbers).all() and np.isfinite(self.constant).all()):
            raise ValueError("its coefficients are not finite")

    def check_effects(self, call: str, fixed_effects: Any) -> None:
        """Raise if a call needs the fixed effects of the rows, and they are not given."""
        if self.free is not None and fixed_effects is None:
            raise ValueError(
                f"{call} is about labels, which have fixed effects: give fixed_effects="
            )

    def check_columns(self, d: int) -> None:
        """Raise if d is not the number of columns that was fitted, if that number is known."""
        evaluable = self.kernel.evaluable
        points = self.points
        what = "the columns it was fitted on"
        if points is not None:
            # For a kernel matrix, all columns are allowed, or those of landmarks alone.
            widths = points.shape[1:] if evaluable else points.shape[::-1]
        elif evaluable:
            if self.num_columns is None:
                return
            widths = (self.num_columns,)
        else:
            widths = self.coef.shape[:1]
            what = "one column per training row, as a precomputed kernel"
        if d not in widths:
            raise ValueError(f"X must have {widths[0]} columns, {what}, and has {d}")


def came_from_host(X: Any) -> bool:
    """Whether X is on the host, such as a NumPy array, a data frame or a list."""
    return not isinstance(X, jax.Array | Rows)


def with_constant(predictions: Any, constant: Any) -> Any:
    """Return predictions plus a constant.

    If the constant is in a wider dtype, the sum is computed in this dtype, but not inside of
    `jax.jit`.
    """
    if getattr(constant, "dtype", predictions.dtype) == predictions.dtype:
        return predictions + constant
    xp = numpy_or_jax(predictions)
    dtype = constant.dtype if xp is np else predictions.dtype
    return xp.asarray(predictions, dtype) + xp.asarray(constant, dtype)


# programs
# --------------------------------------------------------------------------------------------------


@compiled
def evaluate(
    function: Function, rows: Rows, columns: Any, *, block_size: int | None
) -> Float[Array, "m *t"]:
    """Compute the values of a function at rows, with their fixed effects, as a compiled program."""
    return function.values(rows, columns, block_size)


def _without_terms(effects: FixedEffects | None) -> FixedEffects | None:
    """Return fixed effects without the names of columns and levels, if there are any effects."""
    return None if effects is None else replace(effects, terms=())


def in_few_sizes(program: Callable, fitted: tuple, of_rows: tuple, *, from_host: bool) -> Any:
    """Return `program(*fitted, *of_rows)`, computed for one of a few numbers of rows.

    So a few compiled programs serve every number of rows. Rows are padded to a common number by
    copies of the last, in parts of at most LARGEST_PART rows.

    Args:
        program: a function that returns one or several arrays with a row for each row.
        fitted: the arguments of it that have nothing for each row.
        of_rows: the rows, as `Rows` or as an array, and then what each of them has: arrays (m, …),
            or None.
        from_host: whether the rows came from the host. Other rows are taken as they are, and so are
            those that are not in memory on one device, and values that are not known.
    """
    rows = of_rows[0]
    in_one_place = type(rows) in (DenseRows, GramRows) or not isinstance(rows, Rows)
    if not (from_host and in_one_place and is_concrete(fitted, of_rows)):
        return program(*fitted, *of_rows)
    m = rows.shape[0]
    if m <= LARGEST_PART:
        return _padded(program, fitted, of_rows, m)
    fitted = jax.tree.map(on_device, fitted)
    leaves, structure = jax.tree.flatten(of_rows)
    leaves = [np.asarray(leaf) for leaf in leaves]
    parts = []
    for first in range(0, m, LARGEST_PART):
        cut = [on_device(leaf[first : first + LARGEST_PART]) for leaf in leaves]
        part = jax.tree.unflatten(structure, cut)
        results = _padded(program, fitted, part, min(m - first, LARGEST_PART))
        parts.append(jax.tree.map(np.asarray, results))
    return jax.tree.map(lambda *parts: jax.device_put(np.concatenate(parts)), *parts)


def _padded(program: Callable, fitted: tuple, of_rows: tuple, m: int) -> Any:
    """Return `program(*fitted, *of_rows)` for m rows, computed for a common number of rows."""
    missing = common_number(m) - m
    if not missing:
        return program(*fitted, *of_rows)
    pad = lambda a: on_device(pad_rows(np.asarray(a), missing, "edge"))
    results = program(*fitted, *jax.tree.map(pad, of_rows))
    return jax.tree.map(lambda a: first_rows(a, m), results)


def common_number(m: int) -> int:
    """Return the number of rows to which m rows are padded.

    Up to QUARTERS_FROM rows, it is the next power of two. For more rows padding costs more, so it
    is the next multiple of an eighth of that power.
    """
    power = 2 ** (m - 1).bit_length()
    if m <= QUARTERS_FROM:
        return power
    return -(-m // (power // 8)) * (power // 8)


def _with_points_padded(model: Model) -> Model:
    """Return the model with points of coefficient 0 added, up to a common number of points.

    A model with many points, or without values as inside of `jax.jit`, is returned as it is.
    """
    if not isinstance(model.points, jax.Array | np.ndarray):
        return model
    missing = common_size(len(model.points)) - len(model.points)
    known = known_values((model.points, model.coef)) if missing else None
    if known is None:
        return model
    points, coef = known
    return replace(model, points=pad_rows(points, missing, "edge"), coef=pad_rows(coef, missing))
