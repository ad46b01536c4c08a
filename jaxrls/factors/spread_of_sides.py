"""How sure a fit of two-sided data is: the posterior covariance of f + b at pairs of new rows, from
coordinates of each side alone.

With p = U₁ᵀ√v₁ k₁(X₁, a), q = U₂ᵀ√v₂ k₂(X₂, b), w = 1/(s₁s₂ᵀ + λ) and c the coordinates of √v, of
which a flat prior on an intercept makes

    cov[f(a, b), f(a', b')] = k₁(a, a') k₂(b, b') − Σᵢⱼ pᵢp'ᵢ wᵢⱼ qⱼq'ⱼ + dd',    d = (1 − Σᵢⱼ pᵢ
    wᵢⱼ cᵢⱼ qⱼ)/√(Σᵢⱼ wᵢⱼ cᵢⱼ²),

without the last term where there is none. Of a table of all new rows with all new columns the
variances are two products of matrices, and no pair has more than its own number; nothing of n₁n₂ ×
n₁n₂ is formed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.sides import Side
from jaxrls.linalg.products import matmul
from jaxrls.support.pytrees import pytree


class Half(NamedTuple):
    """What variances take of new rows of side 1, whatever side 2 is: k₁(a, a), and p² w and p (w ∘
    c)/√Σwc², sums over i.
    """

    own: Float[Array, " m"]
    squares: Float[Array, "m n2"]
    constant: Float[Array, "m n2"] | None


@pytree
class SidesSpread:
    """The posterior covariance of pairs at one λ. New rows of a side are known by k(x, xᵢ), as a
    matrix (m, n), and k(x, x).
    """

    first: Float[Array, "n1 n1"]  # √v₁U₁
    second: Float[Array, "n2 n2"]
    inverse: Float[Array, "n1 n2"]  # w
    constant: Float[Array, "n1 n2"] | None  # (w ∘ c)/√Σwc², None without an intercept
    level: Float[Array, ""]  # 1/√Σwc²

    @classmethod
    def of(cls, sides: tuple[Side, Side], lam: Float[Array, ""], intercept: bool) -> "SidesSpread":
        """Of two sides."""
        first, second = sides
        one, other = (side.weights.scale(side.U) for side in sides)
        inverse = 1 / (first.s[:, None] * second.s[None, :] + lam)
        if not intercept:
            return cls(one, other, inverse, None, jnp.zeros_like(lam))
        c = first.constant[:, None] * second.constant[None, :]
        level = 1 / jnp.sqrt(jnp.sum(inverse * c * c))
        return cls(one, other, inverse, inverse * c * level, level)

    def half(self, K: Float[Array, "m n1"], own: Float[Array, " m"]) -> Half:
        """Of new rows of side 1: O(m n₁(n₁ + n₂))."""
        p = matmul(K, self.first)
        return Half(
            own,
            matmul(p * p, self.inverse),
            None if self.constant is None else matmul(p, self.constant),
        )

    def variance(
        self, half: Half, K: Float[Array, "m n2"], own: Float[Array, " m"], listed: bool
    ) -> Float[Array, "..."]:
        """Of all rows of side 1 with all of side 2, (m₁, m₂), or row by row of both where they are
        `listed`.
        """
        q = matmul(K, self.second)
        found = jnp.maximum(
            meet(half.own[:, None], own[:, None], listed) - meet(half.squares, q * q, listed), 0
        )
        return (
            found
            if half.constant is None
            else found + (self.level - meet(half.constant, q, listed)) ** 2
        )

    def covariance(
        self, K1: Float[Array, "p n1"], K2: Float[Array, "p n2"], prior: Float[Array, "p p"]
    ) -> Float[Array, "p p"]:
        """Of pairs with each other, whose k₁k₂ is the `prior`: O(p² n₁n₂), one pair after
        another.
        """
        p, q = matmul(K1, self.first), matmul(K2, self.second)

        def told(pair):
            return meet(matmul(p, self.inverse * pair[0][:, None] * pair[1][None, :]), q, True)

        found = prior - jax.lax.map(told, (p, q))
        if self.constant is None:
            return found
        slack = self.level - meet(matmul(p, self.constant), q, True)
        return found + slack[:, None] * slack[None, :]


def meet(A: Float[Array, "m n"], B: Float[Array, "k n"], listed: bool) -> Float[Array, "..."]:
    """Inner products of rows of A with rows of B: of all with all, (m, k), or one by one where they
    are `listed`.
    """
    return jnp.sum(A * B, axis=1) if listed else matmul(A, B.T)
