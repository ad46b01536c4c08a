"""Moments: the sums over rows from which every primal factor is built.

The moments of several blocks, files or devices can be added. Fixed effects B enter only through
sums BᵀVA. Begin with the function `moments`. Theory: `docs/theory.md`, "Dual and primal".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data.data import Data, DataBlock
from jaxrls.core.linalg import diagonal_of, from_panels, gram_panels, matmul
from jaxrls.core.support import pytree

SOME = 512  # the number of rows whose mean is close enough to the mean of all rows


@pytree
class Moments:
    """Weighted sums over rows of products of features φ, labels y and fixed effects b.

    Features and labels enter as φ − o and y − p, with o = b·`origin` and p = b·`label_origin`.
    o and p are close to the fits of φ and y by the fixed effects. So no digits are lost when
    `centred` subtracts the exact fits later. Moments with the same origins can be added and
    subtracted.

    Args:
        weight: Σ v, the total weight.
        count: the number of rows with v > 0.
        log_weight: Σ log v over the rows with v > 0.
        gram: (q, q), Σ v bbᵀ; for `FixedLevels` only its diagonal, (q,).
        first: (q, r), Σ v b(φ − o)ᵀ.
        second: (r, r), Σ v (φ − o)(φ − o)ᵀ.
        trace: Σ v times the values of `left_over`; 0 if that is None.
        label: (q, t), Σ v b(y − p)ᵀ.
        cross: (r, t), Σ v (φ − o)(y − p)ᵀ.
        square: (t,), Σ v (y − p)².
        origin: (q, r), the coefficients of o.
        label_origin: (q, t), the coefficients of p.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> from jaxrls.core.data import Weights, no_effects
    >>> X, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [2.0], [3.0]])
    >>> weights, none = Weights.of(None, 3, X.dtype), no_effects(X.dtype)
    >>> sums = extend.moments(extend.Data(rls.rows.DenseRows(X), weights, none), rls.Linear(), y)
    >>> float(sums.weight), sums.second.tolist(), sums.cross.tolist()
    (3.0, [[14.0]], [[14.0]])
    """

    weight: Float[Array, ""]
    count: Float[Array, ""]
    log_weight: Float[Array, ""]
    gram: Float[Array, "q *q"]
    first: Float[Array, "q r"]
    second: Float[Array, "r r"]
    trace: Float[Array, ""]
    label: Float[Array, "q t"]
    cross: Float[Array, "r t"]
    square: Float[Array, " t"]
    origin: Float[Array, "q r"]
    label_origin: Float[Array, "q t"]

    def __add__(self, other: "Moments") -> "Moments":
        return self._with(other, 1)

    def __sub__(self, other: "Moments") -> "Moments":
        return self._with(other, -1)

    def _with(self, other: "Moments", sign: int) -> "Moments":
        """Return these moments plus `sign` times the others, which have the same origins."""
        sums = jax.tree.map(lambda a, b: a + sign * b, self, other)
        return replace(sums, origin=self.origin, label_origin=self.label_origin)

    def centred(self, fixed: Any) -> "CentredMoments":
        """Return the moments of φ and y minus their exact fits by the fixed effects."""
        to_fit = fixed.solve(self.first)
        to_label_fit = fixed.solve(self.label)
        fixed_fit = self.origin + to_fit
        second = self.second - matmul(self.first.T, to_fit)
        return CentredMoments(
            count=self.count,
            trace=self.trace,
            second=second,
            cross=self.cross - matmul(self.first.T, to_label_fit),
            square=self.square - jnp.sum(self.label * to_label_fit, axis=0),
            fixed_fit=fixed_fit,
            label_fit=self.label_origin + to_label_fit,
            removed=jnp.sum(self.first * to_fit),
            square_before=jnp.sum(diagonal_of(second)) + self._square_of_fit(fixed_fit),
        )

    def _square_of_fit(self, coef: Float[Array, "q r"]) -> Float[Array, ""]:
        """Return Σ v|b·coef|²."""
        gram = self.gram
        scaled = gram[:, None] * coef if gram.ndim == 1 else matmul(gram, coef)
        return jnp.sum(coef * scaled)


@pytree
class CentredMoments:
    """Moments of features φ and labels y minus their exact fits by the fixed effects.

    Args:
        count: the number of rows with v > 0.
        trace: as in `Moments`.
        second: (r, r), Σ v φφᵀ of centred φ.
        cross: (r, t), Σ v φyᵀ of centred φ and y.
        square: (t,), Σ v y² of centred y.
        fixed_fit: (q, r), the coefficients of the fit of φ.
        label_fit: (q, t), the coefficients of the fit of y.
        removed: ‖T(fixed_fit − origin)‖², the trace of what centring subtracted from `second`.
            Rounding errors in proportion to this number remain in `second`.
        square_before: Σ v|φ|² of φ that are not centred.
    """

    count: Float[Array, ""]
    trace: Float[Array, ""]
    second: Float[Array, "r r"]
    cross: Float[Array, "r t"]
    square: Float[Array, " t"]
    fixed_fit: Float[Array, "q r"]
    label_fit: Float[Array, "q t"]
    removed: Float[Array, ""]
    square_before: Float[Array, ""]


def moments(
    data: Data,
    features: Any,
    Y: Float[Array, "n t"] | None = None,
    *,
    origin: Float[Array, "q r"] | None = None,
    label_origin: Float[Array, "q t"] | None = None,
    kept: Float[Array, "n r"] | None = None,
    left_over: Callable | None = None,
    block_size: int | None = None,
) -> Moments:
    """Compute the moments of features φ(x) and labels, in one pass over all rows.

    Args:
        data: n rows with weights and fixed effects, as `Data`.
        features: an object with φ(x) = `features(x)`, such as a kernel with explicit features.
        Y: labels (n, t), by default none.
        origin: (q, r), coefficients close to those of the fit of φ by the fixed effects, by
            default 0.
        label_origin: (q, t), coefficients close to those of the fit of the labels, by default 0.
        kept: φ (n, r) of all rows, if it was computed before.
        left_over: a function of a block of rows and their φ, which returns (b,) values for `trace`.
        block_size: rows at a time.

    Returns:
        The `Moments`.

    **Raises** nothing. **Cost** O(n r (r + t)), memory of a block. **Source**: Rifkin (lecture),
    "direct approach".

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> from jaxrls.core.data import Weights, no_effects
    >>> def of(*values):
    ...     X = jnp.array(values)[:, None]
    ...     weights = Weights.of(None, len(X), X.dtype)
    ...     data = extend.Data(rls.rows.DenseRows(X), weights, no_effects(X.dtype))
    ...     return extend.moments(data, rls.Linear())
    >>> first, second = of(1.0, 2.0), of(3.0)
    >>> float((first + second).weight), (first + second).second.tolist()
    (3.0, [[14.0]])
    """
    n, d = data.rows.shape
    q = data.fixed.count
    dtype = data.rows.dtype
    Y = jnp.zeros((n, 0), dtype) if Y is None else Y
    label_origin = jnp.zeros((q, Y.shape[1]), dtype) if label_origin is None else label_origin
    if origin is None:
        row = jax.eval_shape(features.features, jax.ShapeDtypeStruct((1, d), dtype))
        origin = jnp.zeros((q, row.shape[1]), dtype)

    def of_block(block: DataBlock) -> dict[str, Any]:
        known: FeaturesAndLabels = block.added
        phi = features.features(block.x) if known.phi is None else known.phi
        y = known.y
        beyond = 0 if left_over is None else left_over(block.x, phi)
        if q:
            phi = phi - data.fixed.fitted(block.b, origin)
            y = y - data.fixed.fitted(block.b, label_origin)
        return _sums_of_block(block, data.fixed, phi, y, beyond)

    known = FeaturesAndLabels(kept, Y)
    sums = data.sum(of_block, known, temporaries=origin.shape[1], block_size=block_size)
    sums["second"] = from_panels(sums["second"])
    return Moments(**sums, origin=origin, label_origin=label_origin)


class FeaturesAndLabels(NamedTuple):
    """What `moments` reads of a block of rows besides its `DataBlock`."""

    phi: Float[Array, "b r"] | None  # the features, if they were computed before
    y: Float[Array, "b t"]


def _sums_of_block(
    block: DataBlock,
    fixed: Any,
    phi: Float[Array, "b r"],
    y: Float[Array, "b t"],
    beyond: Float[Array, " b"] | int,
) -> dict[str, Any]:
    """Return the sums of `Moments` over a block, by field.

    `second` comes in panels, as `gram_panels` computes it.
    """
    weights = block.weights
    v = weights.array
    vy = y if weights.values is None else v[:, None] * y
    return {
        "weight": weights.total,
        "count": weights.count,
        "log_weight": weights.log_product,
        "gram": fixed.gram(block.b, v),
        "first": fixed.sums(block.b, v, phi),
        "second": gram_panels(block.weights.scale(phi)),
        "trace": jnp.sum(v * beyond),
        "label": fixed.sums(block.b, v, y),
        "cross": matmul(phi.T, vy),
        "square": jnp.sum(vy * y, axis=0),
    }


def coef_near_fit(data: Data, feature_map: Any) -> Float[Array, "q r"] | None:
    """Return coefficients close to those of the fit of features by the fixed effects.

    The features are φ(x) = `feature_map.features(x)`.

    * Without fixed effects the result is None.
    * For an intercept alone it is the mean of φ over some of the rows.
    * For other fixed effects it has the coefficients of the fit itself, by a pass over all rows.
    * The same is so for traceable rows with weights, because a few heavy rows may dominate.
    """
    rows = data.rows
    fixed = data.fixed
    if not fixed.count:
        return None
    even = data.weights.values is None or not rows.traceable
    if fixed.only_intercept and even:
        return jnp.mean(feature_map.features(rows.few_rows(SOME)), axis=0)[None]
    sums = lambda block: fixed.sums(block.b, block.weights.array, feature_map.features(block.x))
    return fixed.solve(data.sum(sums))
