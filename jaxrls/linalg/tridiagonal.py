"""A symmetric matrix as Q T Qᵀ with T tridiagonal, and what T + λI = LDLᵀ says at every λ in O(n).

The reduction costs 4n³/3 flops, half of them in products with a vector; eigenvectors cost 9n³. Q is kept as n reflectors, which are applied to few
columns in O(n²) each. Recurrences go down the rows of T one by one, with all λ and all columns side by side.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.linalg.decompositions import tridiagonal
from jaxrls.linalg.products import matmul
from jaxrls.support.pytrees import pytree
from jaxrls.support.target import platform

# Reflectors that are applied as one product.
AT_ONCE = 64
# Rows of T in one turn of the loop that all rows of Q go through, each as long as some thousand numbers take.
UNROLL = 4
# Shifts that one pass down T counts eigenvalues at.
SHIFTS = 128


@pytree
class Pivots:
    """T + λI = LDLᵀ at some λ of any shape: D, which is NaN from the first pivot on that is not positive, what is below L's diagonal, and dD/dλ."""

    lams: Float[Array, "*L"]
    diagonal: Float[Array, "r *L"]
    below: Float[Array, "r *L"]  # 0 first
    slope: Float[Array, "r *L"]

    @property
    def lost(self) -> Float[Array, "r *L"]:
        """λ/D, at most 1 where T has no negative eigenvalue."""
        return self.lams / self.diagonal

    def half(self, z: Float[Array, "r *b"]) -> Float[Array, "r *c"]:
        """L⁻¹z for columns z whose shape goes with that of λ."""

        def step(w, row):
            z, below = row
            w = z - below * w
            return w, w

        return jax.lax.scan(step, self._start(z), (z, self.below))[1]

    def solve(self, z: Float[Array, "r *b"]) -> Float[Array, "r *c"]:
        """(T + λI)⁻¹z = L⁻ᵀD⁻¹L⁻¹z."""

        def step(x, row):
            w, pivot, below = row
            x = w / pivot - x
            return below * x, x

        return jax.lax.scan(step, self._start(z), (self.half(z), self.diagonal, self.below), reverse=True)[1]

    def squares(self, z: Float[Array, "r *b"]) -> Float[Array, "*c"]:
        """λ zᵀ(T + λI)⁻¹z = Σⱼ (L⁻¹z)ⱼ² λ/dⱼ, a sum of squares with no cancellation, and nothing of n × b × L numbers held."""

        def step(last, row):
            w, total = last
            z, below, lost = row
            w = z - below * w
            return (w, total + w * w * lost), None

        start = self._start(z)
        return jax.lax.scan(step, (start, start), (z, self.below, self.lost), unroll=UNROLL)[0][1]

    def _start(self, z):
        return jnp.zeros(jnp.broadcast_shapes(z.shape[1:], self.lams.shape), z.dtype)


@pytree
class Tridiagonal:
    """Q T Qᵀ: T by its diagonal and what is beside it, Q by its reflectors, packed below the diagonal.

    >>> import jax.numpy as jnp
    >>> found = reduced(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> found.pivots(jnp.ones(())).solve(jnp.array([1.0, 2.0])).round(4).tolist()
    [0.125, 0.625]
    """

    diagonal: Float[Array, " r"]
    beside: Float[Array, " r"]  # of rows j − 1 and j; 0 first
    packed: Float[Array, "r r"]
    factors: Float[Array, " e"]  # one for each reflector

    @property
    def bound(self) -> Float[Array, ""]:
        """The largest eigenvalue is at most this, and at least half of it, where none is negative: Gershgorin's circles."""
        after = jnp.append(jnp.abs(self.beside[1:]), 0)
        return jnp.max(jnp.abs(self.diagonal) + jnp.abs(self.beside) + after[: self.beside.shape[0]], initial=0)

    def pivots(self, lams: Float[Array, "*L"]) -> Pivots:
        """T + λI = LDLᵀ, without pivoting: right to rounding of T's own numbers where T + λI is positive definite."""

        def step(last, row):
            pivot, slope = last
            diagonal, beside = row
            below = beside / pivot
            pivot = diagonal + lams - beside * below
            pivot, slope = jnp.where(pivot > 0, pivot, jnp.nan), 1 + below * below * slope
            return (pivot, slope), (pivot, below, slope)

        start = jnp.ones_like(lams), jnp.zeros_like(lams)
        return Pivots(lams, *jax.lax.scan(step, start, (self.diagonal, self.beside))[1])

    def transposed_times(self, X: Float[Array, "r k"]) -> Float[Array, "r k"]:
        """QᵀX."""
        return self._reflected(X, transpose=True)

    def times(self, X: Float[Array, "r k"]) -> Float[Array, "r k"]:
        """QX."""
        return self._reflected(X, transpose=False)

    def _reflected(self, X, *, transpose: bool):
        """Blocks of reflectors v one after the other, each as I − V S Vᵀ with S⁻¹ = the upper triangle of VᵀV and 1/factors."""
        count, r = self.factors.shape[0], X.shape[0]
        if count == 0 or X.shape[1] == 0:
            return X
        used = self.factors != 0  # else the reflector is none
        V = jnp.where(used[:, None], jnp.tril(self.packed[:, :-1], -2).T + jnp.eye(count, r, k=1, dtype=X.dtype), 0)
        size = min(AT_ONCE, count)
        more = -count % size
        V = jnp.pad(V, ((0, more), (0, 0))).reshape(-1, size, r)
        inverse = jnp.pad(jnp.where(used, 1 / jnp.where(used, self.factors, 1), 1), (0, more), constant_values=1).reshape(-1, size)

        def step(X, block):
            V, inverse = block
            S = jnp.triu(matmul(V, V.T), 1) + jnp.diag(inverse)
            across = jax.lax.linalg.triangular_solve(S, matmul(V, X), left_side=True, lower=False, transpose_a=transpose)
            return X - matmul(V.T, across), None

        return jax.lax.scan(step, X, (V, inverse), reverse=not transpose)[0]

    def vectors(self) -> Float[Array, "r r"]:
        """Q itself, 4r³/3 flops."""
        if self.factors.shape[0] == 0:
            return jnp.ones_like(self.packed)
        inner = jax.lax.linalg.householder_product(self.packed[1:, :-1], self.factors)
        return jnp.pad(inner, ((1, 0), (1, 0))).at[0, 0].set(1)

    def count_below(self, shifts: Float[Array, "*L"]) -> Float[Array, "*L"]:
        """How many eigenvalues are below: the negative pivots of T − shift, by Sylvester's law of inertia."""
        tiny = jnp.finfo(self.diagonal.dtype).tiny

        def step(last, row):
            pivot, count = last
            diagonal, beside = row
            pivot = diagonal - shifts - beside * (beside / pivot)
            pivot = jnp.where(jnp.abs(pivot) < tiny, -tiny, pivot)
            return (pivot, count + jnp.where(pivot < 0, 1, 0).astype(pivot.dtype)), None

        start = jnp.ones_like(shifts), jnp.zeros_like(shifts)
        return jax.lax.scan(step, start, (self.diagonal, self.beside))[0][1]

    def smallest_above(self, floor: Float[Array, ""]) -> Float[Array, ""]:
        """The smallest eigenvalue above a floor, to 1 %, or about the largest where there is none: by counts at shifts between."""
        low = jnp.maximum(floor, 2 * jnp.finfo(floor.dtype).tiny)
        high = jnp.maximum(self.bound, 1.01 * low)
        below = self.count_below(low)
        for _ in range(2):
            shifts = jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), SHIFTS))
            more = self.count_below(shifts) > below
            first = jnp.where(jnp.any(more), jnp.argmax(more), SHIFTS - 1)
            low, high = shifts[jnp.maximum(first - 1, 0)], shifts[first]
        return high


def reduced(A: Float[Array, "r r"]) -> Tridiagonal:
    """The reduction of a symmetric A, of which the lower triangle is read: on CPUs and GPUs."""
    if platform() == "tpu":
        raise ValueError("route='tridiagonal' needs a reduction that JAX has for CPUs and GPUs only: use route='gram', or lams='search'")
    if A.shape[0] == 0:
        nothing = jnp.zeros(0, A.dtype)
        return Tridiagonal(nothing, nothing, A, nothing)
    packed, diagonal, beside, factors = tridiagonal(A)
    return Tridiagonal(diagonal, jnp.concatenate([jnp.zeros(1, A.dtype), beside]), packed, factors)
