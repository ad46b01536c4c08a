"""The results of a fit of two-sided data: `KroneckerModel`, a function of one row of each side, and
`KroneckerFit`, which says how its λ was chosen.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import compiled, gram
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel, check_kernel
from jaxrls.core.linalg import Number, default_block_size, map_rows, matmul
from jaxrls.core.support import (
    as_array,
    by_names,
    check_inputs,
    check_matrix,
    check_row_numbers,
    public_call,
    pytree,
    static,
)
from jaxrls.front import check_levels_fit_dtype, check_no_std_options
from jaxrls.two_sided.kronecker import ColumnPart, RowPart, SidesSpread
from jaxrls.uncertainty.posterior import GaussianProcess, Posterior


@pytree
class KroneckerModel:
    """A fitted function of a row x₁ of side 1 and a row x₂ of side 2.

        f(x₁, x₂) = Σᵢⱼ k₁(x₁, x₁ᵢ) k₂(x₂, x₂ⱼ) coefᵢⱼ + intercept

    Args:
        kernel1: the kernel k₁ of side 1.
        points1: the rows x₁ᵢ of side 1, (n₁, d₁).
        kernel2: the kernel k₂ of side 2.
        points2: the rows x₂ⱼ of side 2, (n₂, d₂).
        coef: the coefficients (n₁, n₂).
        intercept: the constant, ().
        names: for each side the names of its columns if it was a data frame, as in `Model`, else
            ().

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> from jaxrls.two_sided import KroneckerModel
    >>> side = rls.Linear(), jnp.ones((1, 1))
    >>> model = KroneckerModel(*side, *side, jnp.array([[2.0]]), jnp.array(1.0))
    >>> model.predict(jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0], [13.0]]
    """

    kernel1: Kernel
    points1: Float[Numbers, "n1 d1"]
    kernel2: Kernel
    points2: Float[Numbers, "n2 d2"]
    coef: Float[Numbers, "n1 n2"]
    intercept: Float[Numbers, ""]
    names: tuple = static(default=((), ()))

    @public_call(fitted="self.coef")
    def predict(self, X1: Any, X2: Any, *, pairs: Any = None) -> Float[Numbers, "..."]:
        """Return the predictions for all pairs of a row of X1 and a row of X2.

        For the rows of the fit they are its fitted values.

        Args:
            X1: new rows (m₁, d₁) of side 1.
            X2: new rows (m₂, d₂) of side 2.
            pairs: row numbers (p, 2) of X1 and of X2, for predictions of these pairs only.

        Returns:
            (m₁, m₂), or (p,).

        Raises:
            ValueError: for a wrong number of columns, NaN or infinity, or row numbers outside of X1
                or X2.

        **Cost** O(m₁n₁(d₁ + n₂) + m₂n₂(d₂ + m₁)), in blocks of rows of X2. For p pairs the second
        term is O(p n₂(d₂ + 1)), in blocks of pairs.
        """
        return _means(self.unnamed, self.read(X1, X2, pairs))

    @property
    def unnamed(self) -> "KroneckerModel":
        """The model without names of columns, as new names would compile a program again."""
        return replace(self, names=((), ()))

    def read(self, X1: Any, X2: Any, pairs: Any) -> "NewPairs":
        """Check new rows of both sides and the numbers of pairs, and return them as arrays."""
        dtype = self.coef.dtype
        (names1, names2) = self.names
        check_levels_fit_dtype(self.kernel1, self.points1, by_names("X1", X1, names1), "X1")
        check_levels_fit_dtype(self.kernel2, self.points2, by_names("X2", X2, names2), "X2")
        X1 = as_side("X1", X1, self.kernel1, dtype, self.points1.shape[1], names1)
        X2 = as_side("X2", X2, self.kernel2, dtype, self.points2.shape[1], names2)
        if pairs is None:
            return NewPairs(X1, X2, None)
        pairs = pairs if isinstance(pairs, jax.Array) else np.asarray(pairs)
        if pairs.shape[1:] != (2,) or not len(pairs):
            raise ValueError(
                "pairs must have shape (p, 2), a row of X1 and a row of X2 each, and has shape "
                f"{pairs.shape}"
            )
        check_row_numbers(pairs[:, 0], len(X1))
        check_row_numbers(pairs[:, 1], len(X2))
        return NewPairs(X1, X2, jnp.asarray(pairs))


class NewPairs(NamedTuple):
    """New rows of both sides, and row numbers (p, 2) of pairs. `pairs` is None for all pairs."""

    X1: Any
    X2: Any
    pairs: Any


def as_side(
    name: str,
    X: Any,
    kernel: Kernel,
    dtype: Any = None,
    columns: int | None = None,
    names: tuple = (),
) -> jax.Array:
    """Return the rows of one side as an array, and raise if they do not suit their kernel.

    Args:
        name: the name of the argument in messages.
        X: rows (m, d).
        kernel: the kernel of this side.
        dtype: the dtype of the result; None to keep the dtype of X.
        columns: how many columns X must have; None for any number.
        names: the names of the columns to take from a data frame; () for all.
    """
    check_kernel(kernel)
    if not kernel.evaluable:
        raise ValueError(
            f"the kernel of {name} must be one of rows, and is {type(kernel).__name__}(): give "
            "kernel matrices to factor_kronecker"
        )
    X = as_array(name, by_names(name, X, names), dtype)
    check_matrix(name, X)
    check_inputs(name, X)
    if columns not in (None, X.shape[1]):
        raise ValueError(f"{name} must have {columns} columns, as in the fit, and has {X.shape[1]}")
    kernel.check(X)
    return X


@compiled
def _means(model: KroneckerModel, new: NewPairs) -> Float[Array, "..."]:
    """Compute the means of f + b, (m₁, m₂), or (p,) for p pairs."""
    K1 = gram(model.kernel1, new.X1, model.points1)

    def columns(x: Float[Array, "b d2"]) -> Float[Array, "b n2"]:
        return gram(model.kernel2, x, model.points2)

    def mean(row: Float[Array, " n2"], column: Float[Array, " n2"]) -> Number:
        return matmul(row, column) + model.intercept

    return _of_pairs(mean, matmul(K1, model.coef), columns, model, new)


@compiled
def _means_and_variances(
    spread: SidesSpread, model: KroneckerModel, new: NewPairs
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Compute the means of f + b, and the variances for τ² = 1.

    Both have shape (m₁, m₂), or (p,) for p pairs.
    """
    K1 = gram(model.kernel1, new.X1, model.points1)
    rows = matmul(K1, model.coef), spread.row_part(K1, model.kernel1.diag(new.X1))

    def columns(x: Float[Array, "b d2"]) -> tuple[Float[Array, "b n2"], ColumnPart]:
        K2 = gram(model.kernel2, x, model.points2)
        return K2, spread.column_part(K2, model.kernel2.diag(x))

    def mean_and_variance(
        row: tuple[Float[Array, " n2"], RowPart], column: tuple[Float[Array, " n2"], ColumnPart]
    ) -> tuple[Number, Number]:
        (coef, row_part), (k, column_part) = row, column
        return matmul(coef, k) + model.intercept, spread.variance(row_part, column_part)

    return _of_pairs(mean_and_variance, rows, columns, model, new)


def _of_pairs(
    of_pair: Callable, rows: Any, columns: Callable, model: KroneckerModel, new: NewPairs
) -> Any:
    """Return `of_pair(row, column)` for all new pairs, in blocks of rows of X2, or of pairs.

    Args:
        of_pair: a function of the parts of one row of side 1 and of one row of side 2.
        rows: the parts of all rows of X1, arrays with an axis of rows first.
        columns: a function that computes the parts of a block of rows of X2.
        model: the model, whose size sets the size of blocks.
        new: the new rows and pairs.

    Returns:
        The results of `of_pair` as arrays (m₁, m₂), or (p,) if `new` names p pairs.
    """
    X1, X2, pairs = new
    row_bytes = 16 * (4 * len(model.points2) + len(X1))

    def of_columns(x: Float[Array, "b d2"]) -> Any:
        of_column = jax.vmap(of_pair, (0, None))
        return jax.vmap(of_column, (None, 0))(rows, columns(x))

    def of_listed(pairs: Int[Array, "b 2"]) -> Any:
        i, j = pairs.T
        return jax.vmap(of_pair)(jax.tree.map(lambda A: A[i], rows), columns(X2[j]))

    if pairs is not None:
        return map_rows(of_listed, pairs, default_block_size(len(pairs), row_bytes))
    table = map_rows(of_columns, X2, default_block_size(len(X2), row_bytes))
    return jax.tree.map(jnp.transpose, table)


@compiled
def _covariance(spread: SidesSpread, model: KroneckerModel, new: NewPairs) -> Float[Array, "p p"]:
    """Compute the posterior covariance (p, p) of f + b at p pairs of new rows, for τ² = 1."""
    X1, X2, pairs = new
    i, j = pairs.T
    prior = gram(model.kernel1, X1)[i][:, i] * gram(model.kernel2, X2)[j][:, j]
    K1 = gram(model.kernel1, X1, model.points1)[i]
    K2 = gram(model.kernel2, X2, model.points2)[j]
    return spread.covariance(K1, K2, prior)


@pytree
class KroneckerFit:
    """The result of `fit_kronecker`: the model at the chosen λ, and how this λ was chosen.

    Args:
        model: the `KroneckerModel` that predicts.
        lams: all λ that were tried, (L,).
        errors: the held-out error at each λ, in the given `setting`, (L,).
        lam: the chosen λ, ().
        error: the held-out error at the chosen λ, ().
        left_out: held-out residuals at the chosen λ, labels minus held-out predictions, (n₁, n₂).
        dof: effective degrees of freedom at the chosen λ, ().
        floor: the λ below which rounding errors dominate, ().
        indefinite: the size of the most negative eigenvalue of K₁ or K₂, relative to its largest
            eigenvalue, ().
        setting: what was held out together: "entries", "rows", "columns" or "both".
        process: what `posterior` needs. None for a fit without `keep`.

    >>> import numpy as np, jaxrls as rls
    >>> x, z = np.linspace(0, 1, 8)[:, None], np.linspace(0, 1, 6)[:, None]
    >>> kernel = rls.Gaussian(0.5)
    >>> Y = np.sin(3 * x + 2 * z.T)
    >>> rls.two_sided.fit_kronecker(kernel, x, kernel, z, Y, lams=[1e-2]).left_out.shape
    (8, 6)
    """

    model: KroneckerModel
    lams: Float[Numbers, " L"]
    errors: Float[Numbers, " L"]
    lam: Float[Numbers, ""]
    error: Float[Numbers, ""]
    left_out: Float[Numbers, "n1 n2"]
    dof: Float[Numbers, ""]
    floor: Float[Numbers, ""]
    indefinite: Float[Numbers, ""]
    setting: str = static()
    process: GaussianProcess | None = None

    unit = "error"

    @property
    def criterion(self) -> str:
        """What was held out to compute the errors, in words."""
        return f"{self.setting} left out"

    title = criterion  # the name under which plots read it

    @public_call(fitted="self.model.coef")
    def predict(
        self,
        X1: Any,
        X2: Any,
        *,
        pairs: Any = None,
        return_std: bool = False,
        scale: Any = "evidence",
    ) -> Any:
        """Return the predictions for all pairs of a row of X1 and a row of X2.

        With `return_std` also return the standard deviation of a new label of weight 1. It follows
        from the Gaussian process f ~ N(0, τ²k₁k₂) with noise of variance τ²λ and a flat prior on
        the intercept. It equals `label_std` of `posterior`.

        Args:
            X1: new rows (m₁, d₁) of side 1.
            X2: new rows (m₂, d₂) of side 2.
            pairs: row numbers (p, 2) of X1 and of X2, for predictions of these pairs only.
            return_std: whether to return the standard deviation too.
            scale: how τ² is set, as in `posterior`.

        Returns:
            Predictions (m₁, m₂), or (p,). With `return_std` a tuple (predictions, standard
            deviations), both of this shape.

        Raises:
            ValueError: for `return_std` if the fit has no `keep`, and for a `scale` without
                `return_std`.

        **Cost** of the standard deviation O(m₁n₁(n₁ + n₂) + m₂n₂(n₂ + m₁)). For p pairs the second
        term is O(p n₂²).
        """
        if not return_std:
            check_no_std_options(scale)
            return self.model.predict(X1, X2, pairs=pairs)
        process = self._process()
        new = self.model.read(X1, X2, pairs)
        mean, variance = _means_and_variances(process.spread, self.model.unnamed, new)
        return mean, process.label_std(variance, scale)

    @public_call(fitted="self.model.coef")
    def posterior(
        self, X1: Any, X2: Any, *, pairs: Any = None, scale: Any = "evidence"
    ) -> Posterior:
        """Return the mean and covariance of f + b at pairs of a row of X1 and a row of X2.

        They belong to the Gaussian process whose posterior mean is this fit.

        Args:
            X1: new rows (m₁, d₁) of side 1.
            X2: new rows (m₂, d₂) of side 2.
            pairs: row numbers (p, 2) of X1 and of X2. By default all pairs, with pair (i, j) in row
                i·m₂ + j.
            scale: as in `Fit.posterior`. "loo" takes the residuals of entries held out one by one,
                whatever the `setting` of the fit.

        Returns:
            A `Posterior` of p or m₁m₂ rows.

        Raises:
            ValueError: for a fit without `keep`.

        **Cost** O(p² n₁n₂); memory p², p n₂ and the sides' kernel matrices. **Source**:
        Rasmussen and Williams 2006, eqs. 2.26 and 2.42, with the inverse of K₁ ⊗ K₂ + λI from the
        spectra of both.

        >>> import numpy as np, jaxrls as rls
        >>> x, z = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 9)[:, None]
        >>> Y = np.sin(3 * x + 2 * z.T) + 0.1 * np.cos(40 * x * z.T)
        >>> kernel = rls.Gaussian(0.5)
        >>> fit = rls.two_sided.fit_kronecker(kernel, x, kernel, z, Y, lams=[1e-2], keep=True)
        >>> near, far = fit.posterior(np.array([[0.5], [3.0]]), z, pairs=[[0, 4], [1, 4]]).std
        >>> bool(far > 10 * near)
        True
        """
        process = self._process()
        new = self.model.read(X1, X2, pairs)
        if pairs is None:
            new = new._replace(pairs=jnp.indices((len(new.X1), len(new.X2))).reshape(2, -1).T)
        model = self.model.unnamed
        mean = _means(model, new)
        return process.posterior(mean, _covariance(process.spread, model, new), scale)

    def _process(self) -> GaussianProcess:
        """Return the process that variances need. Raise if the fit did not keep it."""
        if self.process is None:
            raise ValueError(
                "this fit kept no solution, which variances need: call fit_kronecker with keep=True"
            )
        return self.process

    def plot(self, ax: Any = None) -> Any:
        """Plot the error over λ, and mark the chosen λ.

        Args:
            ax: Matplotlib axes; by default those of a new figure.

        Returns:
            The axes.
        """
        from jaxrls.pictures.plots import plot_errors

        return plot_errors(self, ax)
