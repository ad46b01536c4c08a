"""Define kernels of a distance: `Gaussian`, `Laplacian`, `ChiSquared`, `Matern`,
`RationalQuadratic` and `Periodic`. Also `Levels`, the kernel of whether two rows are equal.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import ArrayLike as Scalars

from jaxrls.core.kernels.block import (
    Block,
    Gram,
    chi_squared_distances,
    city_block_distances,
    squared_distances,
)
from jaxrls.core.kernels.kernel import Kernel, Matrix, check_not_negative, parameter
from jaxrls.core.linalg import reciprocal, safe_sqrt
from jaxrls.core.support import pytree, static


def _inverse(kernel: Kernel, X: Matrix | Block) -> Float[Array, " d"]:
    """Return 1/width for every column."""
    width = parameter(kernel, "width", X, per_column=True)
    return jnp.broadcast_to(reciprocal(width), X.shape[1:])


class _Stationary(Kernel):
    """A kernel k(x, z) = profile(distance in widths, or its square), with profile(0) = 1."""

    positive: ClassVar[tuple[str, ...]] = ("width",)
    length_scales: ClassVar[tuple[str, ...]] = ("width",)
    takes_blocks = True
    distances: ClassVar[Callable] = staticmethod(squared_distances)
    decay: ClassVar[float] = 0.5
    width: Scalars | str

    def _profile(self, distances: Gram) -> Gram:
        return jnp.exp(-self.decay * distances)

    def __call__(self, X: Matrix | Block, Z: Float[Array, "m d"] | Block) -> Gram:
        return self._profile(self.distances(X, Z, _inverse(self, X)))

    def diag(self, X: Matrix | Block) -> Float[Array, " n"]:
        return jnp.ones(X.shape[0], X.dtype)


@pytree
class Gaussian(_Stationary):
    """The Gaussian (RBF) kernel, whose functions are very smooth.

        k(x, z) = exp(−‖x − z‖² / (2 width²))

    If the width is far above the spread of the data, K is singular to working precision. Then only
    large λ are meaningful.

    Args:
        width: a number > 0 in the units of X, or one per column (automatic relevance), (d,).

    **Cost** O(n m d) by a matrix product. **Source**: Rifkin (lecture), "Basics"; Rasmussen and
    Williams 2006, eq. 4.9.

    >>> import jax.numpy as jnp
    >>> round(float(Gaussian(1.0)(jnp.zeros((1, 1)), jnp.ones((1, 1)))[0, 0]), 6)
    0.606531
    """

    width: Scalars | str

    @classmethod
    def from_gamma(cls, gamma: Scalars) -> "Gaussian":
        """Make the Gaussian kernel exp(−γ‖x − z‖²), as scikit-learn writes it: width = 1/√(2γ).

        Args:
            gamma: γ > 0, one number or one per column.

        >>> round(float(Gaussian.from_gamma(0.5).width), 6)
        1.0
        """
        return cls(1 / (2 * gamma) ** 0.5)


def _matern_profile(order: int, q: Gram) -> Gram:
    """Compute the Matérn profile at q = 2ν r², for order = 2ν = 1, 3 or 5.

    Derivatives in q stay exact at q = 0 where they exist.
    """
    q = jnp.minimum(q, jnp.finfo(q.dtype).max)  # ∞ · exp(−∞) would be NaN
    return jnp.exp(-safe_sqrt(q)) if order == 1 else _smooth_profile(order, q)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _smooth_profile(order: int, q: Gram) -> Gram:
    """Compute the Matérn profile of order 3 or 5."""
    r = safe_sqrt(q)
    return (1 + r + (q / 3 if order == 5 else 0)) * jnp.exp(-r)


@_smooth_profile.defjvp
def _smooth_profile_jvp(order: int, primals: tuple, tangents: tuple) -> tuple[Gram, Gram]:
    """Differentiate the profile in q. The slope is a multiple of the profile of order − 2."""
    (q,) = primals
    (dq,) = tangents
    slope = -_matern_profile(order - 2, q) / (2 * (order - 2))
    return _smooth_profile(order, q), slope * dq


@pytree
class Matern(_Stationary):
    """The Matérn kernel of smoothness ν in r = ‖x − z‖ / width. Larger ν makes smoother functions.

        ν = ½: exp(−r)
        ν = 3/2: (1 + √3 r) exp(−√3 r)
        ν = 5/2: (1 + √5 r + 5r²/3) exp(−√5 r)

    For ν = ½ the kernel has no derivative in X where two rows coincide; 0 is taken there. With more
    than two columns, distances below √eps widths are lost in rounding, which matters for ν = ½
    only.

    Args:
        nu: ν, which is 0.5, 1.5 or 2.5, static.
        width: a number > 0 in the units of X, or one per column, (d,).

    **Cost** O(n m d) by a matrix product. **Source**: Rasmussen and Williams 2006, eq. 4.16 and
    4.17.

    >>> import jax.numpy as jnp
    >>> x, z = jnp.zeros((1, 1)), jnp.full((1, 1), 2.0)
    >>> [round(float(Matern(nu, 2.0)(x, z)[0, 0]), 6) for nu in (0.5, 1.5)]
    [0.367879, 0.483358]
    """

    nu: float = static()
    width: Scalars | str

    def __post_init__(self):
        if not isinstance(self.nu, float | np.floating) or self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(
                f"Matern.nu must be 0.5, 1.5 or 2.5, and is {self.nu!r}: Gaussian is the limit of "
                "large ν"
            )

    def _profile(self, squared: Gram) -> Gram:
        order = int(2 * self.nu)
        return _matern_profile(order, order * squared)


@pytree
class RationalQuadratic(_Stationary):
    """The rational quadratic kernel, a mixture of Gaussian kernels of many widths.

        k(x, z) = (1 + ‖x − z‖² / (2 alpha width²))^(−alpha)

    Args:
        width: a number > 0 in the units of X, or one per column, (d,).
        alpha: a number > 0, by default 1. As it grows, the kernel tends to the Gaussian kernel.

    **Cost** O(n m d) by a matrix product. **Source**: Rasmussen and Williams 2006, eq. 4.19.

    >>> import jax.numpy as jnp
    >>> kernel = RationalQuadratic(1.0, alpha=1.0)
    >>> round(float(kernel(jnp.zeros((1, 1)), jnp.full((1, 1), 2.0))[0, 0]), 4)
    0.3333
    """

    positive = ("width", "alpha")
    width: Scalars | str
    alpha: Scalars = 1.0

    def _profile(self, squared: Gram) -> Gram:
        alpha = parameter(self, "alpha", squared)
        return jnp.exp(-alpha * jnp.log1p(squared / (2 * alpha)))


@pytree
class Levels(Kernel):
    """The kernel of labels, which gives each level a value of its own, drawn around 0. It is the
    random intercept of mixed models.

        k(x, z) = 1 if x = z in every column, else 0

    Use it `on` the columns that hold the numbers of groups, in a sum with other kernels:
    `Gaussian(1.0).on([0]) + 1.0 * Levels().on([1])`. Then rows of a group resemble each other more
    than the other columns explain, and standard errors account for it. A level that was not fitted
    gets 0, with the full variance of a level.

    Times another kernel, `Levels().on([1]) * Linear().on([0])`, it gives each level a function of
    its own, such as a random slope. For levels without a penalty see `jaxrls.levels`. Labels of
    other kinds become numbers by `np.unique(labels, return_inverse=True)[1]`.

    **Cost** O(n m d). **Source**: Laird and Ware 1982; Robinson 1991, "That BLUP is a good thing".

    >>> import jax.numpy as jnp
    >>> Levels()(jnp.array([[3.0], [5.0]]), jnp.array([[5.0]])).tolist()
    [[0.0], [1.0]]
    """

    def __call__(self, X: Matrix, Z: Float[Array, "m d"]) -> Gram:
        equal = [X[:, j, None] == Z[None, :, j] for j in range(X.shape[1])]
        return reduce(jnp.logical_and, equal).astype(X.dtype)

    def diag(self, X: Matrix) -> Float[Array, " n"]:
        return jnp.ones(X.shape[0], X.dtype)


@pytree
class Periodic(_Stationary):
    """The periodic kernel, for functions that repeat.

        k(x, z) = exp(−2 Σⱼ sin²(π (xⱼ − zⱼ) / period) / widthⱼ²)

    It is the Gaussian kernel on the circle (cos 2πx/period, sin 2πx/period).

    Args:
        period: a number > 0 in the units of X, or one per column, (d,).
        width: a number > 0 without units, or one per column, (d,); by default 1.

    **Cost** O(n m d) by a matrix product on the circle. **Source**: D. MacKay, *Introduction to
    Gaussian Processes*, 1998, eq. 47.

    >>> import jax.numpy as jnp
    >>> kernel = Periodic(period=3.0, width=1.0)
    >>> round(float(kernel(jnp.zeros((1, 1)), jnp.full((1, 1), 6.0))[0, 0]), 4)
    1.0
    """

    positive = ("period", "width")
    length_scales = ()  # the width has no units, and distances say nothing about a period
    period: Scalars
    width: Scalars = 1.0

    def __call__(self, X: Any, Z: Any) -> Gram:
        period = parameter(self, "period", X, per_column=True)
        inverse = jnp.tile(_inverse(self, X), 2)
        center = jax.lax.stop_gradient(jnp.mean(Z, axis=0))

        def circle(X: Matrix) -> Float[Array, "n _"]:
            # Far from 0, X / period loses digits, while the remainder of X by the period is exact.
            # So the value of the angle comes from the remainder, and its derivative from the
            # distance to the center.
            turns = jax.lax.stop_gradient(jnp.fmod(X, period) / period)
            around = (X - center) / period
            angle = 2 * math.pi * (turns + (around - jax.lax.stop_gradient(around)))
            return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

        return self._profile(squared_distances(circle(X), circle(Z), inverse))


@pytree
class Laplacian(_Stationary):
    """The Laplacian kernel in the city-block distance, as in scikit-learn (γ = 1/width).

        k(x, z) = exp(−Σⱼ |xⱼ − zⱼ| / widthⱼ)

    `Matern(0.5, width)` is the same kernel in the Euclidean distance. The derivative in X is taken
    as 0 where columns of x and z coincide.

    Args:
        width: a number > 0 in the units of X, or one per column, (d,).

    **Cost** O(n m d) time at O(n m) memory, column by column, because the distance is no matrix
    product. **Source**: Rahimi and Recht 2007, fig. 1.

    >>> import jax.numpy as jnp
    >>> round(float(Laplacian(2.0)(jnp.zeros((1, 2)), jnp.ones((1, 2)))[0, 0]), 6)
    0.367879
    """

    metric = "cityblock"
    distances = staticmethod(city_block_distances)
    decay = 1.0
    width: Scalars | str


@pytree
class ChiSquared(_Stationary):
    """The χ² kernel of histograms, as scikit-learn's `chi2_kernel` (γ = 1/width).

        k(x, z) = exp(−Σⱼ (xⱼ − zⱼ)² / ((xⱼ + zⱼ) widthⱼ))

    X must not be negative. A column that is 0 in both rows adds nothing, and the derivative in X is
    taken as 0 there.

    Args:
        width: a number > 0 in the units of X, or one per column, (d,).

    **Cost** O(n m d), column by column, as for `Laplacian`. **Source**: Zhang, Marszalek, Lazebnik
    and Schmid 2007.

    >>> import jax.numpy as jnp
    >>> round(float(ChiSquared(2.0)(jnp.array([[1.0, 0.0]]), jnp.array([[3.0, 0.0]]))[0, 0]), 6)
    0.606531
    """

    metric = "cityblock"
    distances = staticmethod(chi_squared_distances)
    decay = 1.0
    width: Scalars | str

    @classmethod
    def from_gamma(cls, gamma: Scalars) -> "ChiSquared":
        """Make the χ² kernel exp(−γ Σ …), as scikit-learn writes it: width = 1/γ.

        Args:
            gamma: γ > 0, one number or one per column.

        >>> ChiSquared.from_gamma(0.5).width
        2.0
        """
        return cls(1 / gamma)

    def check(self, X: Array | np.ndarray | Block) -> None:
        super().check(X)
        check_not_negative("ChiSquared is for X ≥ 0, such as counts", X, "leave X uncentred")
