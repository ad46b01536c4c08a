"""Moments: the sums over rows that every primal factor is made of. They add over blocks, files and devices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.linalg.products import from_panels, gram_panels, matmul
from jaxrls.rows.rows import Rows
from jaxrls.support.pytrees import pytree

SAMPLE = 512  # rows whose mean is near enough to that of all


@pytree
class Moments:
    """Σ over rows of v, v(φ − o), v(φ − o)(φ − o)ᵀ, v k(x, x), and of the labels against all of them.

    `count` is the number of rows where v > 0 and `log_weight` the sum of log v over those. `origin` o and `label_origin` lie near the means,
    so that taking the means out later does not cancel. Moments from the same origins add and subtract.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [2.0], [3.0]])
    >>> sums = rls.moments(rls.DenseRows(X), rls.Linear(), y, origin=jnp.zeros(1))
    >>> float(sums.weight), sums.second.tolist(), sums.cross.tolist()
    (3.0, [[14.0]], [[14.0]])
    """

    weight: Float[Array, ""]
    count: Float[Array, ""]
    log_weight: Float[Array, ""]
    first: Float[Array, " r"]
    second: Float[Array, "r r"]
    trace: Float[Array, ""]
    label: Float[Array, " t"]
    cross: Float[Array, "r t"]
    square: Float[Array, " t"]
    origin: Float[Array, " r"]
    label_origin: Float[Array, " t"]

    def __add__(self, other: "Moments") -> "Moments":
        return self._with(other, 1)

    def __sub__(self, other: "Moments") -> "Moments":
        return self._with(other, -1)

    def _with(self, other, sign):
        names = ("weight", "count", "log_weight", "first", "second", "trace", "label", "cross", "square")
        return replace(self, **{name: getattr(self, name) + sign * getattr(other, name) for name in names})

    @property
    def mean(self) -> Float[Array, " r"]:
        """The weighted mean of φ."""
        return self.origin + self.first / self.weight

    @property
    def label_mean(self) -> Float[Array, " t"]:
        """The weighted mean of y."""
        return self.label_origin + self.label / self.weight

    @property
    def constant(self) -> Float[Array, ""]:
        """Σv‖mean − origin‖²: the part of the second moments that `centred` takes off, whose rounding stays."""
        return jnp.sum(self.first**2) / self.weight

    def turned(self, by: Float[Array, "r p"], centre: Float[Array, " r"]) -> "Moments":
        """Those of (φ − centre)·by."""
        first, origin, cross = matmul(self.first, by), matmul(self.origin - centre, by), matmul(by.T, self.cross)
        return replace(self, first=first, second=matmul(by.T, matmul(self.second, by)), cross=cross, origin=origin)

    def centred(self, intercept: bool) -> "Moments":
        """The moments about the means where there is an intercept, which takes the means out; about the origins as they are where there is none."""
        if not intercept:
            return self
        share, shift = self.first / self.weight, self.label / self.weight
        return replace(
            self,
            first=jnp.zeros_like(share),
            label=jnp.zeros_like(shift),
            second=self.second - self.first[:, None] * share,
            cross=self.cross - self.first[:, None] * shift,
            square=self.square - self.label * shift,
            origin=self.mean,
            label_origin=self.label_mean,
        )


def moments(
    rows: Rows,
    features: Any,
    Y: Float[Array, "n t"] | None = None,
    weights: Float[Array, " n"] | None = None,
    *,
    origin: Float[Array, " r"],
    label_origin: Float[Array, " t"] | None = None,
    kept: Float[Array, "n r"] | None = None,
    left_over: Callable | None = None,
    block_size: int | None = None,
) -> Moments:
    """The moments of features φ(x) and labels over all rows, in one reading.

    **Arguments**: `features` has φ(x) = `features(x)` and k(x, x) = `diag(x)`, as a kernel with explicit features does; `kept` is φ of all rows where
    it was made before. `left_over`, a function of rows and their φ, gives what `trace` sums in place of k(x, x).
    **Shapes**: Y (n, t), none by default; weights (n,), ones by default. **Cost** O(n r (r + t)), memory of a block.
    **Raises** nothing. **Source**: Rifkin (lecture), "direct approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rows = [rls.DenseRows(jnp.array(part)) for part in ([[1.0], [2.0]], [[3.0]])]
    >>> first, second = (rls.moments(part, rls.Linear(), origin=jnp.zeros(1)) for part in rows)
    >>> float((first + second).weight), (first + second).second.tolist()
    (3.0, [[14.0]])
    """
    Y = jnp.zeros((rows.shape[0], 0), rows.dtype) if Y is None else Y
    label_origin = jnp.zeros(Y.shape[1], rows.dtype) if label_origin is None else label_origin

    def block(x, b, v, y):
        raw = features.features(x) if b is None else b
        b, y = raw - origin, y - label_origin
        half, light = (b, y) if v is None else (jnp.sqrt(v)[:, None] * b, v[:, None] * y)
        diag = features.diag(x) if left_over is None else left_over(x, raw)
        first, trace = (jnp.sum(b, axis=0), jnp.sum(diag)) if v is None else (matmul(v, b), jnp.sum(v * diag))
        labels = jnp.sum(light, axis=0), matmul(b.T, light), jnp.sum(light * y, axis=0)
        return *_weighed(v, x), first, gram_panels(half), trace, *labels

    hints: dict = {"temporaries": origin.shape[0], "block_size": block_size}
    *sums, second, trace, label, cross, square = rows.read_by(features).sum(block, kept, weights, Y, **hints)
    weight, count, log_weight, first = sums
    return Moments(weight, count, log_weight, first, from_panels(second), trace, label, cross, square, origin, label_origin)


def _weighed(v, x):
    """Σv, the number of rows where v > 0, and Σ log v over those."""
    if v is None:
        n = jnp.asarray(x.shape[0], x.dtype)
        return n, n, jnp.zeros_like(n)
    return jnp.sum(v), jnp.sum(v > 0).astype(v.dtype), jnp.sum(jnp.log(jnp.where(v > 0, v, 1)))


def cross_moments(rows: Rows, Y: Float[Array, "n t"], weights: Float[Array, " n"] | None, centre: Float[Array, " r"]):
    """Σ v(φ − c)yᵀ over rows of features, for labels that come after the moments."""
    return rows.sum(lambda b, v, y: matmul((b - centre).T, y if v is None else v[:, None] * y), weights, Y)


def near_mean(rows: Rows, features: Any, weights: Float[Array, " n"] | None = None) -> Float[Array, " r"]:
    """A point near the mean of φ(x): from some of the rows, or where weights may make a few of them count for all, from those in memory."""
    if weights is not None and rows.traceable:
        return rows.sum(lambda x, share: matmul(share, features.features(x)), weights / jnp.sum(weights))
    return jnp.mean(features.features(rows.some(SAMPLE)), axis=0)
