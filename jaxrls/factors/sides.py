"""The two sides of K₁ ⊗ K₂: the spectrum of each, and what is left when of every entry both its row
and its column leave.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.linalg.decompositions import clip, eigh
from jaxrls.linalg.products import matmul
from jaxrls.problem.weights import Weights
from jaxrls.support.pytrees import pytree, static

# λ × entries × targets of labels that are handled together.
ENTRIES_AT_ONCE = 2**22


@pytree
class Side:
    """One side: √v K √v = U diag(s) Uᵀ, its weights, and of √v the coordinates."""

    U: Float[Array, "n n"]
    s: Float[Array, " n"]
    weights: Weights

    @property
    def constant(self) -> Float[Array, " n"]:
        """Uᵀ√v."""
        return matmul(self.weights.root, self.U)

    def leave(self, i):
        """√v K √v between all but row i, its row, and which they are."""
        kept = jnp.arange(len(self.s) - 1)
        kept = jnp.where(kept < i, kept, kept + 1)
        rest = self.U[kept]
        return matmul(rest * self.s, rest.T), matmul(rest * self.s, self.U[i]), kept


def turned(left, right, A: Float[Array, "a b t"]) -> Float[Array, "c d t"]:
    """left A rightᵀ of every target; None stands for the identity."""
    if left is not None:
        A = matmul(left, A.reshape(A.shape[0], -1)).reshape(left.shape[0], *A.shape[1:])
    return A if right is None else jnp.moveaxis(matmul(jnp.moveaxis(A, 2, 0), right.T), 0, 2)


def total(A: Float[Array, "a b t"]) -> Float[Array, " t"]:
    """Σ over all entries."""
    return jnp.sum(A, axis=(0, 1))


@pytree
class Both:
    """Of every entry its row and its column left out, by a spectrum of side 1 without each of its
    rows, O(n₁⁴ + L n₁²n₂²t), side 1 the smaller.

    Without row i, √v₁K₁√v₁ = V diag(σ) Vᵀ, in whose basis labels come apart: direction a is a
    problem on side 2 alone, with σₐs₂ for eigenvalues. Its prediction with column j left out is
    σₐ(g − yh)/q, with g, h and q from w = s₂/(σₐs₂ + λ) and lost; and what the row makes of
    direction a is k₁ᵀVₐ/σₐ, so that no σ is divided by."""

    first: Side
    second: Side
    Y: Float[Array, "n1 n2 t"]
    scaled: Float[Array, "n1 n2 t"]
    intercept: bool = static()
    swapped: bool = static()

    @classmethod
    def of(cls, sides: tuple[Side, Side], Y, scaled, intercept: bool) -> "Both":
        """With the sides in the order that costs less."""
        swapped = Y.shape[0] > Y.shape[1]
        if swapped:
            sides, Y, scaled = sides[::-1], Y.swapaxes(0, 1), scaled.swapaxes(0, 1)
        return cls(*sides, Y, scaled, intercept, swapped)

    def left_out(self, fn, lams):
        """Σ fn over the rows of side 1, each with all λ."""

        def row(i):
            at, v = self._row(i), self.first.weights.array[i] * self.second.weights.array
            return jax.lax.map(lambda lam: fn(at(lam), self.Y[i], v), lams)

        return jax.tree.map(lambda A: jnp.sum(A, axis=0), jax.lax.map(row, jnp.arange(len(self.Y))))

    def residuals(self, lam):
        """Of all entries at one λ."""
        e = jax.lax.map(lambda i: self._row(i)(lam), jnp.arange(len(self.Y)))
        return e.swapaxes(0, 1) if self.swapped else e

    def _row(self, i) -> Callable:
        """A function of λ (k,) that gives the held-out residuals (n₂, t) of row i."""
        K, across, kept = self.first.leave(i)
        sigma, V = eigh(K)
        sigma, U, s2 = clip(sigma)[0][:, None, None], self.second.U, self.second.s[None, :, None]
        k, constant = matmul(across, V), matmul(self.first.weights.root[kept], V)[:, None, None]
        y, one = (
            turned(V.T, None, self.scaled[kept]),
            constant * self.second.weights.root[None, :, None],
        )
        z, c = turned(V.T, U.T, self.scaled[kept]), constant * self.second.constant[None, :, None]
        v = self.first.weights.root[i] * self.second.weights.root[:, None]

        def at(lam):
            lost, w = lam / (sigma * s2 + lam), s2 / (sigma * s2 + lam)
            q, h = turned(None, U * U, lost), turned(None, U * U, w)

            def left(labels, coordinates, own):
                """Held-out residuals without an intercept."""
                predicted = (turned(None, U, w * coordinates) - labels * h) / q
                return own - turned(k[None], None, predicted)[0]

            e = left(y, z, self.scaled[i])
            if self.intercept:
                r = turned(None, U, lost * c)
                rest = lambda t: (
                    total(lost * c * t) - jnp.sum(r * turned(None, U, lost * t) / q, axis=0)
                )
                e = e - rest(z) / rest(c) * left(one, c, v)
            return e / v

        return at
