"""The kernels: `Linear`, `Polynomial`, `Gaussian` and other functions of a distance, and those that a caller brings.

Frozen pytrees, with the algebra that `Kernel` gives them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import ArrayLike as Scalars

from jaxrls._checks import is_concrete
from jaxrls._kernel import Gram, Kernel, Rows, as_dtype
from jaxrls._linalg import matmul, safe_sqrt
from jaxrls._pytree import pytree, static


def _per_column(kernel: Kernel, name: str, X):
    """A parameter that is one number or one per column."""
    value = as_dtype(getattr(kernel, name), X)
    if value.shape not in ((), (X.shape[1],)):
        raise ValueError(
            f"{type(kernel).__name__}.{name} must be one number or one per column, shape ({X.shape[1]},), and has shape {value.shape}"
        )
    return value


def _scaled_pair(kernel: Kernel, X, Z, name: str = "width"):
    """X and Z in units of a width, measured from the mean of Z.

    What depends on x − z alone does not see the mean, but its rounding does: a column around 2000 costs three digits otherwise.
    """
    width, center = _per_column(kernel, name, X), jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    return (X - center) / width, (Z - center) / width


def squared_distances(X: Rows, Z: Float[Array, "m d"]) -> Gram:
    """‖xᵢ − zⱼ‖² by one matrix product, O(n m d), 6 to 9 times faster than pair by pair.

    The mean of Z is taken off first, as a distance does not see it but ‖x‖² + ‖z‖² − 2⟨x, z⟩ does; what is within rounding of 0
    becomes 0, so that equal rows are at distance 0 exactly. Its derivatives stay those of the formula.
    """
    center = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    X, Z = X - center, Z - center
    lengths = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(Z * Z, axis=1)[None, :]
    squared = lengths - 2 * matmul(X, Z.T)
    rounding = (4 + 2 * math.sqrt(X.shape[1])) * jnp.finfo(X.dtype).eps
    return squared - jax.lax.stop_gradient(jnp.where(squared <= rounding * lengths, squared, 0))


def city_block_distances(X: Rows, Z: Float[Array, "m d"]) -> Gram:
    """Σₖ |xᵢₖ − zⱼₖ|, no matrix product, so added up column by column: O(n m d) time at O(n m) memory."""

    @jax.checkpoint
    def add(total, columns):
        x, z = columns
        return total + jnp.abs(x[:, None] - z[None, :]), None

    return jax.lax.scan(add, jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), (X.T, Z.T))[0]


@pytree
class Linear(Kernel):
    """The linear kernel k(x, z) = ⟨x, z⟩, whose functions are f(x) = ⟨w, x⟩.

    Cost O(n m d); its features are X itself. Source: R. Rifkin, *Regularized Least Squares* (lecture), "The Linear Case".

    >>> import jax.numpy as jnp
    >>> Linear()(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    def __call__(self, X, Z):
        return matmul(X, Z.T)

    def diag(self, X):
        return jnp.sum(X * X, axis=1)

    def num_features(self, d, dtype):
        del dtype
        return d

    def features(self, X):
        return X


@pytree
class Polynomial(Kernel):
    """The polynomial kernel k(x, z) = (⟨x, z⟩ + offset)^degree.

    `degree` is a whole number ≥ 1 (static) and `offset` ≥ 0: with offset > 0 the functions are the polynomials of degree at most
    `degree`. Cost O(n m d). `polynomial_features` gives the same kernel as an explicit basis expansion.
    Source: M. Wainwright, *Advanced Topics in Statistical Learning*, lecture 6, §6.3.2.

    >>> import jax.numpy as jnp
    >>> Polynomial(2)(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[144.0]]
    """

    positive = ("offset",)
    degree: int = static()
    offset: Scalars = 1.0

    def __post_init__(self):
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise ValueError(f"Polynomial.degree must be a whole number of at least 1, and is {self.degree!r}")

    def __call__(self, X, Z):
        return (matmul(X, Z.T) + as_dtype(self.offset, X)) ** self.degree

    def diag(self, X):
        return (jnp.sum(X * X, axis=1) + as_dtype(self.offset, X)) ** self.degree

    def check(self, X):
        if is_concrete(self.offset) and not np.asarray(self.offset) >= 0:
            raise ValueError(f"Polynomial.offset must not be negative, and is {self.offset}: the kernel would not be positive semidefinite")


class _Stationary(Kernel):
    """k(x, z) = profile(‖x − z‖² / width²), with profile(0) = 1."""

    positive: ClassVar[tuple[str, ...]] = ("width",)
    width: Scalars

    def _profile(self, squared):
        raise TypeError(f"{type(self).__name__} must define _profile")

    def __call__(self, X, Z):
        return self._profile(squared_distances(*_scaled_pair(self, X, Z)))

    def diag(self, X):
        return jnp.ones(X.shape[0], X.dtype)


@pytree
class Gaussian(_Stationary):
    """The Gaussian kernel k(x, z) = exp(−‖x − z‖² / (2 width²)).

    `width` > 0 is one number, or one per column of X (automatic relevance), in the units of X. Cost O(n m d) by a matrix
    product. Very smooth: with a width far above the data's spread, K is singular to working precision and only large λ mean
    anything. Source: Rifkin (lecture), "Basics"; Rasmussen and Williams 2006, eq. 4.9.

    >>> import jax.numpy as jnp
    >>> round(float(Gaussian(1.0)(jnp.zeros((1, 1)), jnp.ones((1, 1)))[0, 0]), 6)
    0.606531
    """

    width: Scalars

    @classmethod
    def from_gamma(cls, gamma: Scalars) -> "Gaussian":
        """The Gaussian kernel written exp(−γ‖x − z‖²), as scikit-learn does: width = 1/√(2γ).

        >>> round(float(Gaussian.from_gamma(0.5).width), 6)
        1.0
        """
        return cls(1 / (2 * gamma) ** 0.5)

    def _profile(self, squared):
        return jnp.exp(-0.5 * squared)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern_profile(order: int, q):
    """Matérn profiles in q = 2ν r²: for order 2ν = 1, 3, 5, with derivatives in q that stay exact at q = 0 where they exist."""
    r = safe_sqrt(q)
    polynomial = {1: 1.0, 3: 1 + r, 5: 1 + r + q / 3}[order]
    return polynomial * jnp.exp(-r)


@_matern_profile.defjvp
def _matern_profile_jvp(order, primals, tangents):
    (q,), (dq,) = primals, tangents
    if order == 1:
        positive = q > 0
        r = jnp.sqrt(jnp.where(positive, q, 1))
        slope = jnp.where(positive, -0.5 * jnp.exp(-r) / r, 0)
    elif order == 3:
        slope = -0.5 * _matern_profile(1, q)
    else:
        slope = -_matern_profile(3, q) / 6
    return _matern_profile(order, q), slope * dq


@pytree
class Matern(_Stationary):
    """The Matérn kernel of smoothness ν = ½, 3/2 or 5/2, in r = ‖x − z‖ / width.

    ν = ½: exp(−r); ν = 3/2: (1 + √3 r) exp(−√3 r); ν = 5/2: (1 + √5 r + 5r²/3) exp(−√5 r). `nu` is static, `width` > 0 one number or
    one per column. Cost O(n m d) by a matrix product. ν = ½ has no derivative in X where two rows coincide; 0 is taken there.
    Source: Rasmussen and Williams 2006, eq. 4.17.

    >>> import jax.numpy as jnp
    >>> round(float(Matern(0.5, 2.0)(jnp.zeros((1, 1)), jnp.full((1, 1), 2.0))[0, 0]), 6)
    0.367879
    """

    nu: float = static()
    width: Scalars

    def __post_init__(self):
        if self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern.nu must be 0.5, 1.5 or 2.5, and is {self.nu!r}: Gaussian is the limit of large ν")

    def _profile(self, squared):
        order = int(2 * self.nu)
        return _matern_profile(order, order * squared)


@pytree
class RationalQuadratic(_Stationary):
    """The rational quadratic kernel k(x, z) = (1 + ‖x − z‖² / (2 alpha width²))^(−alpha), a mixture of Gaussians of many widths.

    `alpha` > 0 sets the mixture (Gaussian as alpha → ∞), `width` > 0 is one number or one per column. Cost O(n m d) by a
    matrix product. Source: Rasmussen and Williams 2006, eq. 4.19.

    >>> import jax.numpy as jnp
    >>> round(float(RationalQuadratic(1.0, alpha=1.0)(jnp.zeros((1, 1)), jnp.full((1, 1), 2.0))[0, 0]), 4)
    0.3333
    """

    positive = ("width", "alpha")
    width: Scalars
    alpha: Scalars = 1.0

    def _profile(self, squared):
        alpha = as_dtype(self.alpha, squared)
        return jnp.exp(-alpha * jnp.log1p(squared / (2 * alpha)))


@pytree
class Periodic(_Stationary):
    """The periodic kernel k(x, z) = exp(−2 Σⱼ sin²(π (xⱼ − zⱼ) / period) / widthⱼ²).

    `period` > 0 in the units of X, one number or one per column; `width` > 0 without units, likewise. It is the Gaussian
    kernel on the circle (cos 2πx/period, sin 2πx/period), and is computed so, by a matrix product in O(n m d).
    Source: D. MacKay, *Introduction to Gaussian Processes*, 1998, eq. 47.

    >>> import jax.numpy as jnp
    >>> round(float(Periodic(period=3.0, width=1.0)(jnp.zeros((1, 1)), jnp.full((1, 1), 6.0))[0, 0]), 4)
    1.0
    """

    positive = ("period", "width")
    period: Scalars
    width: Scalars = 1.0

    def __call__(self, X, Z):
        width = _per_column(self, "width", X)

        def circle(turns):
            angle = 2 * math.pi * turns
            return jnp.concatenate([jnp.cos(angle) / width, jnp.sin(angle) / width], axis=1)

        X, Z = _scaled_pair(self, X, Z, "period")
        return jnp.exp(-0.5 * squared_distances(circle(X), circle(Z)))


@pytree
class Laplacian(_Stationary):
    """The Laplacian kernel k(x, z) = exp(−Σⱼ |xⱼ − zⱼ| / widthⱼ), in the city-block distance, as in scikit-learn (γ = 1/width).

    `width` > 0 is one number or one per column. The city-block distance is no matrix product: it is added up column by
    column, O(n m d) time at O(n m) memory. With the Euclidean distance it is `Matern(0.5, width)`. Its derivative in X is taken
    as 0 where columns coincide. Source: Rahimi and Recht 2007, fig. 1.

    >>> import jax.numpy as jnp
    >>> round(float(Laplacian(2.0)(jnp.zeros((1, 2)), jnp.ones((1, 2)))[0, 0]), 6)
    0.367879
    """

    width: Scalars

    def __call__(self, X, Z):
        return jnp.exp(-city_block_distances(*_scaled_pair(self, X, Z)))


@pytree
class Sobolev(Kernel):
    """The kernel k(x, z) = min(x, z) of the first-order Sobolev space on [0, ∞) with f(0) = 0.

    ‖f‖² = ∫ f′(t)² dt, so that fits are piecewise linear with knots at the data. X must have one column, not negative: use
    `Sobolev().on(j)` for one column of several, and sums or products of those. Cost O(n m).
    Source: M. Wainwright, lecture 6, §6.3.3, eq. 6.11 and 6.12.

    >>> import jax.numpy as jnp
    >>> Sobolev()(jnp.array([[0.5], [2.0]]), jnp.array([[1.0]])).tolist()
    [[0.5], [1.0]]
    """

    def __call__(self, X, Z):
        self._check_columns(X)
        return jnp.minimum(X[:, 0][:, None], Z[:, 0][None, :])

    def diag(self, X):
        self._check_columns(X)
        return X[:, 0]

    def check(self, X):
        self._check_columns(X)
        if is_concrete(X) and np.asarray(X).min() < 0:
            raise ValueError(
                f"Sobolev lives on [0, ∞), and the smallest input is {np.asarray(X).min()}: shift the column so that it starts at 0"
            )

    @staticmethod
    def _check_columns(X):
        if X.shape[1] != 1:
            raise ValueError(f"Sobolev takes one column, and X has {X.shape[1]}: use Sobolev().on(j), and + or * over several columns")


@pytree
class FeatureMap(Kernel):
    """The kernel of an explicit basis expansion, k(x, z) = ⟨φ(x), φ(z)⟩.

    `fn(X) -> (n, r)`, or `fn(params, X) -> (n, r)` where `params` (any pytree, differentiable) is given. `fn` is static: pass the same
    function object again, not a new lambda, or the caller's jit compiles again. Cost that of `fn`, plus O(n m r).
    Source: *Regularized linear regression* (lecture), "the design matrix Φ".

    >>> import jax.numpy as jnp
    >>> line = FeatureMap(lambda X: jnp.concatenate([jnp.ones_like(X), X], axis=1))   # φ(x) = (1, x)
    >>> line(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[7.0]]
    """

    fn: Callable = static()
    params: Any = None

    def features(self, X):
        features = self.fn(X) if self.params is None else self.fn(self.params, X)
        if features.ndim != 2 or features.shape[0] != X.shape[0]:
            raise ValueError(f"FeatureMap.fn must return shape ({X.shape[0]}, r), one row per row of X, and returned {features.shape}")
        return features

    def num_features(self, d, dtype):
        return jax.eval_shape(self.features, jax.ShapeDtypeStruct((1, d), dtype)).shape[1]

    def __call__(self, X, Z):
        return matmul(self.features(X), self.features(Z).T)

    def diag(self, X):
        return jnp.sum(self.features(X) ** 2, axis=1)


@pytree
class FunctionKernel(Kernel):
    """Any kernel given as a function on matrices: `fn(X, Z) -> (n, m)`, or `fn(params, X, Z)` where `params` is given.

    `fn` must be symmetric and positive semidefinite, which is not checked here; it is static, as in `FeatureMap`. The diagonal
    is computed row by row, as k(xᵢ, xᵢ) of 1×1 matrices. Cost that of `fn`. Source: Aronszajn 1950.

    >>> import jax.numpy as jnp
    >>> FunctionKernel(lambda X, Z: (X @ Z.T) ** 2)(jnp.array([[2.0]]), jnp.array([[3.0]])).tolist()
    [[36.0]]
    """

    fn: Callable = static()
    params: Any = None

    def __call__(self, X, Z):
        K = self.fn(X, Z) if self.params is None else self.fn(self.params, X, Z)
        if K.shape != (X.shape[0], Z.shape[0]):
            raise ValueError(f"FunctionKernel.fn must return shape {(X.shape[0], Z.shape[0])} and returned {K.shape}")
        return K

    def diag(self, X):
        return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(X)

    def is_semidefinite(self):
        return False


@pytree
class Precomputed(Kernel):
    """A kernel matrix computed elsewhere: X *is* K, `(n, n)`, and for prediction the rows k(new, training), `(m, n)`.

    Landmarks, sums and columns do not apply: compute them into K. K must be symmetric and positive semidefinite; the
    one-call doors check the first, and warn where the second fails. Cost none. Source: as `metric="precomputed"` in
    scikit-learn.

    >>> import jax.numpy as jnp
    >>> K = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    >>> Precomputed()(K, K).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    def __call__(self, X, Z):
        del Z
        return X

    def diag(self, X):
        if X.shape[0] != X.shape[1]:
            raise ValueError(f"Precomputed.diag needs the square kernel matrix, and X has shape {X.shape}")
        return jnp.diagonal(X)

    def is_semidefinite(self):
        return False


def polynomial_features(X: Rows, degree: int, offset: float = 1.0) -> Float[Array, "n r"]:
    """All monomials of X up to `degree`, scaled so that their inner products are the polynomial kernel.

    φ(x)ᵀφ(z) = (⟨x, z⟩ + offset)^degree: column (α₁ … α_d) is √(degree! / (α₀! α₁! … α_d!) · offset^α₀) · Πⱼ xⱼ^αⱼ with α₀ = degree − Σαⱼ.
    With degree = offset = 1 it is the design matrix (1, x).

    **Shapes**: X (n, d) gives (n, r), r = C(d + degree, degree), the constant first. **Cost** O(n r). **Raises** `ValueError` for a
    degree below 1 or a negative offset. **Source**: Wainwright, lecture 6, eq. 6.10.

    >>> import jax.numpy as jnp
    >>> polynomial_features(jnp.array([[4.0], [6.0]]), 1).tolist()
    [[1.0, 4.0], [1.0, 6.0]]
    """
    if degree < 1 or offset < 0:
        raise ValueError(f"polynomial_features needs degree ≥ 1 and offset ≥ 0, and got {degree} and {offset}")
    columns = []
    for monomial, values in _monomials(X, degree):
        free = degree - len(monomial)
        if offset == 0 and free:
            continue
        repeats = (*(monomial.count(j) for j in set(monomial)), free)
        count = math.factorial(degree) // math.prod(map(math.factorial, repeats))
        columns.append(math.sqrt(count * offset**free) * values)
    return jnp.stack(columns, axis=1)


def _monomials(X, degree: int):
    """Every product of at most `degree` columns, with their sorted numbers, by degree: one multiplication each."""
    level: list[tuple[tuple[int, ...], Array]] = [((), jnp.ones(X.shape[0], X.dtype))]
    yield from level
    for _ in range(degree):
        level = [((*p, j), values * X[:, j]) for p, values in level for j in range(p[-1] if p else 0, X.shape[1])]
        yield from level
