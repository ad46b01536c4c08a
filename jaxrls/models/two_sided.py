"""What a fit of two-sided data leaves behind: a function of a row and a column."""

from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.factors.spread_of_sides import Half, SidesSpread, meet
from jaxrls.kernels.kernel import Kernel
from jaxrls.models.posterior import Posterior, Scales, check_unsaid, deviation
from jaxrls.rows.blocks import default_block_size, map_rows
from jaxrls.rows.gram import gram, kernel_times
from jaxrls.support.checks import as_floats, check_inputs, check_matrix, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pictures import plot_errors
from jaxrls.support.precision import scope, to_host
from jaxrls.support.pytrees import pytree, static


@pytree
class KroneckerModel:
    """f(x₁, x₂) = Σᵢⱼ k₁(x₁, x₁ᵢ) k₂(x₂, x₂ⱼ) coefᵢⱼ + intercept.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> model = rls.KroneckerModel(rls.Linear(), jnp.ones((1, 1)), rls.Linear(), jnp.ones((1, 1)), jnp.array([[2.0]]), jnp.array(1.0))
    >>> model.predict(jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0], [13.0]]
    """

    kernel1: Kernel
    points1: Float[Array | np.ndarray, "n1 d1"]
    kernel2: Kernel
    points2: Float[Array | np.ndarray, "n2 d2"]
    coef: Float[Array | np.ndarray, "n1 n2"]
    intercept: Float[Array | np.ndarray, ""]

    @on_any_mesh
    def predict(self, X1, X2, *, pairs=None) -> Float[Array | np.ndarray, "..."]:
        """Predictions for all pairs of a row of X1 and a row of X2: those of the fit itself for
        rows or columns that it knows.

        **Arguments**: `pairs` (p, 2) are row numbers of X1 and of X2, where only some pairs are
        asked for. **Shapes**: X1 (m₁, d₁) and X2 (m₂, d₂) give (m₁, m₂), or (p,). **Cost**
        O(m₁n₁(d₁ + n₂) + m₂n₂(d₂ + m₁)), or of pairs p in the place of m₂ and 1 in that of m₁, in
        blocks of rows of both kernel matrices. **Raises** `ValueError` for a wrong number of
        columns, NaN or infinity, or pairs of rows that there are not."""
        return self.at_rows(_evaluate, X1, X2, pairs)

    def at_rows(self, found: Callable, X1, X2, pairs) -> Any:
        """`found(model, X1, X2, pairs)` at rows that were checked, in the precision of the model,
        on the host where that is.
        """
        wide = self.coef.dtype == jnp.float64
        with scope(wide):
            sides = (("X1", X1, self.kernel1, self.points1), ("X2", X2, self.kernel2, self.points2))
            rows = [_new_rows(*side, self.coef.dtype) for side in sides]
            pairs = None if pairs is None else _as_pairs(pairs, *map(len, rows))
            out = found(self, *rows, pairs)
            return to_host(out) if wide and not isinstance(self.coef, jax.Array) else out


def _new_rows(name, X, kernel, points, dtype):
    X = jnp.asarray(as_floats(name, X, dtype))
    check_matrix(name, X)
    check_inputs(name, X)
    if X.shape[1] != points.shape[1]:
        raise ValueError(
            f"{name} must have {points.shape[1]} columns, those it was fitted on, and has {X.shape[1]}"
        )
    kernel.check(X)
    return X


def _as_pairs(pairs, m1: int, m2: int):
    """Pairs as row numbers of X1 and X2, checked where values are known."""
    pairs = pairs if isinstance(pairs, jax.Array) else np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise ValueError(
            f"pairs must have shape (p, 2), a row of X1 and a row of X2 each, and has shape {pairs.shape}"
        )
    if not jnp.issubdtype(pairs.dtype, jnp.integer):
        raise ValueError(f"pairs must be whole numbers, and have dtype {pairs.dtype}")
    if is_concrete(pairs):
        values = np.asarray(pairs)
        wrong = ((values < 0) | (values >= (m1, m2))).any(axis=1)
        if wrong.any():
            k = int(np.argmax(wrong))
            found = f"pair {k} is {values[k, 0]} and {values[k, 1]}"
            raise ValueError(
                f"pairs must be of rows 0 to {m1 - 1} of X1 and 0 to {m2 - 1} of X2, and {found}"
            )
    return jnp.asarray(pairs)


def _beside(fn: Callable, half: Any, X2, pairs, width: int):
    """`fn(half, rows of X2, listed)` of what all rows of X1 have, with blocks of rows of X2 or pair
    by pair; a row of X2 takes `width` numbers meanwhile.
    """
    size = X2.dtype.itemsize
    if pairs is None:
        row = len(jax.tree.leaves(half)[0]) + width
        return map_rows(
            lambda x: fn(half, x, False).T, X2, default_block_size(len(X2), row * size)
        ).T

    def block(pair):
        return fn(jax.tree.map(lambda A: A[pair[:, 0]], half), X2[pair[:, 1]], True)

    return map_rows(block, pairs, default_block_size(len(pairs), 4 * width * size))


@jax.jit
def _evaluate(model: KroneckerModel, X1, X2, pairs):
    points = jnp.asarray(model.points2)
    half = kernel_times(model.kernel1, X1, jnp.asarray(model.points1), jnp.asarray(model.coef))
    return (
        _beside(
            lambda half, x, listed: meet(half, gram(model.kernel2, x, points), listed),
            half,
            X2,
            pairs,
            len(points),
        )
        + model.intercept
    )


@jax.jit
def _variances(spread: SidesSpread, model: KroneckerModel, X1, X2, pairs):
    first, second = (jnp.asarray(points) for points in (model.points1, model.points2))

    def side(x) -> Half:
        return spread.half(gram(model.kernel1, x, first), model.kernel1.diag(x))

    def both(half, x, listed):
        return spread.variance(half, gram(model.kernel2, x, second), model.kernel2.diag(x), listed)

    half = map_rows(side, X1, default_block_size(len(X1), 2 * len(first) * X1.dtype.itemsize))
    return _beside(both, half, X2, pairs, 2 * len(second))


@jax.jit
def _covariance(spread: SidesSpread, model: KroneckerModel, X1, X2, pairs):
    sides = (
        (model.kernel1, X1, model.points1, pairs[:, 0]),
        (model.kernel2, X2, model.points2, pairs[:, 1]),
    )
    K1, K2 = (gram(kernel, X, jnp.asarray(points))[rows] for kernel, X, points, rows in sides)
    one, other = (gram(kernel, X)[rows][:, rows] for kernel, X, _, rows in sides)
    return spread.covariance(K1, K2, one * other)


@pytree
class KroneckerSure(Scales):
    """What a fit of two-sided data keeps to say how sure it is: λ, amplitudes, and the covariance
    in units of the kernel, n₁² + n₂² + 2n₁n₂ numbers.
    """

    spread: SidesSpread

    def label_std(self, model: KroneckerModel, X1, X2, pairs, scale) -> Any:
        """Standard deviation of a new label, of all pairs or of those that are named."""

        def found(*new):
            return deviation(_variances(self.spread, *new) + self.lam, self.amplitude(scale))

        return model.at_rows(found, X1, X2, pairs)

    def posterior(self, model: KroneckerModel, X1, X2, pairs, scale) -> Posterior:
        """Mean and covariance of pairs."""

        def found(model, X1, X2, pairs):
            if pairs is None:
                pairs = jnp.stack(jnp.divmod(jnp.arange(len(X1) * len(X2)), len(X2)), axis=1)
            new = model, X1, X2, pairs
            return Posterior(
                _evaluate(*new),
                _covariance(self.spread, *new),
                jnp.asarray(self.amplitude(scale)),
                jnp.asarray(self.lam),
            )

        return model.at_rows(found, X1, X2, pairs)


@pytree
class KroneckerFit:
    """The result of `fit_kronecker`: the model at the chosen λ, and how it was chosen.

    `errors` (L,) over `lams` is the error of what `setting` leaves out, `lam` and `error` those
    chosen; `left_out` (n₁, n₂) are labels less held-out predictions there, `dof` the effective
    degrees of freedom, and `floor` the λ below which rounding rules; `sure` is what `posterior`
    takes, None where it was not asked for.

    >>> import numpy as np, jaxrls as rls
    >>> x, z = np.linspace(0, 1, 8)[:, None], np.linspace(0, 1, 6)[:, None]
    >>> kernel = rls.Gaussian(0.5)
    >>> rls.fit_kronecker(kernel, x, kernel, z, np.sin(3 * x + 2 * z.T), lams=[1e-2]).left_out.shape
    (8, 6)
    """

    model: KroneckerModel
    lams: Float[Array | np.ndarray, " L"]
    errors: Float[Array | np.ndarray, " L"]
    lam: Float[Array | np.ndarray, ""]
    error: Float[Array | np.ndarray, ""]
    left_out: Float[Array | np.ndarray, "n1 n2"]
    dof: Float[Array | np.ndarray, ""]
    floor: Float[Array | np.ndarray, ""]
    indefinite: Float[Array | np.ndarray, ""]
    setting: str = static()
    sure: KroneckerSure | None = None

    @property
    def criterion(self) -> str:
        """What the errors are, in words."""
        return f"{self.setting} left out"

    @overload
    def predict(
        self, X1, X2, *, pairs=..., return_std: Literal[False] = False, scale=...
    ) -> Float[Array | np.ndarray, "..."]: ...

    @overload
    def predict(
        self, X1, X2, *, pairs=..., return_std: Literal[True], scale=...
    ) -> tuple[Float[Array | np.ndarray, "..."], Float[Array | np.ndarray, "..."]]: ...

    @on_any_mesh
    def predict(self, X1, X2, *, pairs=None, return_std: bool = False, scale="evidence") -> Any:
        """Predictions for all pairs of a row of X1 and a row of X2, or those named: see
        `KroneckerModel.predict`.

        With `return_std` a pair of them and the standard deviation of a new label of weight 1, that
        of the Gaussian process f ~ N(0, τ²k₁k₂) with noise of variance τ²λ and a flat prior on the
        intercept: see `posterior`, whose `label_std` it is.

        **Shapes**: the standard deviation is shaped as the predictions. **Cost** beside them
        O(m₁n₁(n₁ + n₂) + m₂n₂(n₂ + m₁)), p in the place of m₂ and 1 in that of m₁ as there.
        **Raises** `ValueError` where `keep` was not asked for, or for `scale` without
        `return_std`."""
        if not return_std:
            check_unsaid(scale)
        mean = self.model.predict(X1, X2, pairs=pairs)
        return (
            (mean, self._sure().label_std(self.model, X1, X2, pairs, scale)) if return_std else mean
        )

    @on_any_mesh
    def posterior(self, X1, X2, *, pairs=None, scale="evidence") -> Posterior:
        """Mean and covariance of f + b at pairs of a row of X1 and a row of X2, for the Gaussian
        process of which this fit is the mean.

        **Arguments**: `pairs` (p, 2) row numbers of X1 and of X2, by default all, pair (i, j) in
        row i·m₂ + j; `scale` as in `Fit.posterior`, where "loo" is of single entries, whatever the
        fit left out. **Shapes**: see `Posterior`, of m = p or m₁m₂ rows. **Cost** O(p² n₁n₂);
        memory p², p n₂ and that of the sides' kernel matrices. **Raises** `ValueError` where
        `keep` was not asked for. **Source**: Rasmussen and Williams 2006, eqs. 2.26 and
        2.42, with the inverse of K₁ ⊗ K₂ + λI from the spectra of both.

        >>> import numpy as np, jaxrls as rls
        >>> x, z = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 9)[:, None]
        >>> Y = np.sin(3 * x + 2 * z.T) + 0.1 * np.cos(40 * x * z.T)
        >>> fit = rls.fit_kronecker(rls.Gaussian(0.5), x, rls.Gaussian(0.5), z, Y, lams=[1e-2], keep=True)
        >>> near, far = fit.posterior(np.array([[0.5], [3.0]]), z, pairs=[[0, 4], [1, 4]]).std
        >>> bool(far > 10 * near)
        True
        """
        return self._sure().posterior(self.model, X1, X2, pairs, scale)

    def _sure(self) -> KroneckerSure:
        if self.sure is None:
            raise ValueError(
                "variances take more than the model keeps: fit_kronecker with keep=True"
            )
        return self.sure

    def plot(self, ax=None):
        """The error over λ with the chosen one, on Matplotlib axes, which it returns."""
        return plot_errors(self, ax)
