"""The two sides of K₁ ⊗ K₂: the spectrum of each, products with U₁ ⊗ U₂, which is never formed, and
how sure a fit is at pairs of new rows.

With p = U₁ᵀ√v₁ k₁(X₁, a), q = U₂ᵀ√v₂ k₂(X₂, b), w = 1/(s₁s₂ᵀ + λ) and c the coordinates of √v, of
which a flat prior on an intercept makes

    cov[f(a, b), f(a', b')] = k₁(a, a') k₂(b, b') − Σᵢⱼ pᵢp'ᵢ wᵢⱼ qⱼq'ⱼ + dd',
    d = (1 − Σᵢⱼ pᵢ wᵢⱼ cᵢⱼ qⱼ)/√(Σᵢⱼ wᵢⱼ cᵢⱼ²),

without the last term where there is none. Of a table of all new rows with all new columns the
variances are two products of matrices, and no pair has more than its own number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.linalg.products import matmul
from jaxrls.problem.weights import Weights
from jaxrls.support.pytrees import pytree


@pytree
class Side:
    """One side: √v K √v = U diag(s) Uᵀ, and its weights."""

    U: Float[Array, "n n"]
    s: Float[Array, " n"]
    weights: Weights

    @property
    def constant(self) -> Float[Array, " n"]:
        """Uᵀ√v."""
        return matmul(self.weights.root, self.U)


def turned(left, right, A: Float[Array, "*t a b"]) -> Float[Array, "*t c d"]:
    """left A rightᵀ of every target; None stands for the identity."""
    A = A if left is None else matmul(left, A)
    return A if right is None else matmul(A, right.T)


def squares(A):
    """Those of all entries; None of the identity, which is its own."""
    return None if A is None else A * A


def total(A: Float[Array, "*t a b"]) -> Float[Array, " *t"]:
    """Σ over all entries."""
    return jnp.sum(A, axis=(-2, -1))


def moments(A: Float[Array, "tq a b"], B, q: int, axis=(-2, -1)) -> Float[Array, "q tq #a #b"]:
    """Sums of products of the constants, of which A has q, 1 or 0, at its end, with all of B."""
    return jnp.sum(A[len(A) - q :, None] * B, axis=axis, keepdims=True)


def level(M: Float[Array, "q tq #a #b"]) -> Float[Array, "q t #a #b"]:
    """b, what an intercept is beside the mean of labels, from `moments`."""
    return M[:, : M.shape[1] - len(M)] / M[:, -1:]


def without_constant(A: Float[Array, "tq a b"], M) -> Float[Array, "t a b"]:
    """Of labels, and constants after them, the labels less b times the constant."""
    t = len(A) - len(M)
    return A[:t] - jnp.sum(A[t:, None] * level(M), axis=0)


@pytree
class PairRows:
    """Rows of U₁ ⊗ U₂, with further columns after them, times a scale: made as they are asked
    for.
    """

    first: Float[Array, "n1 n1"]
    second: Float[Array, "n2 n2"]
    further: Float[Array, "n q"]
    scale: Float[Array, " nq"]

    @property
    def shape(self) -> tuple[int, int]:
        """That of all rows."""
        return len(self.further), len(self.scale)

    def __getitem__(self, i) -> Float[Array, "a nq"]:
        one, other = self.first[i // len(self.second)], self.second[i % len(self.second)]
        U = (one[:, :, None] * other[:, None, :]).reshape(len(i), len(self.further))
        return jnp.concatenate([U, self.further[i]], axis=1) * self.scale


@pytree
class SidesSpread:
    """The posterior covariance of pairs at one λ. New rows of a side are known by k(x, xᵢ), as a
    matrix (m, n), and k(x, x).
    """

    first: Float[Array, "n1 n1"]  # √v₁U₁
    second: Float[Array, "n2 n2"]
    inverse: Float[Array, "n1 n2"]  # w
    constant: Float[Array, "q n1 n2"]  # (w ∘ c)/√Σwc², q = 0 without an intercept
    slack: Float[Array, " q"]  # 1/√Σwc²

    def of_first(self, K: Float[Array, "m n1"], own: Float[Array, " m"]):
        """What variances take of new rows of side 1, whatever side 2 is, O(m n₁(n₁ + n₂)): k(a, a),
        and sums over i of p² w and of p (w ∘ c)/√Σwc².
        """
        p = matmul(K, self.first)
        return own, matmul(p * p, self.inverse), jnp.swapaxes(matmul(p, self.constant), 0, 1)

    def variance(self, one, other) -> Float[Array, ""]:
        """Of one pair, from `of_first` of its row of side 1, and k(b, b) and q of that of side 2."""
        (own1, squares, constant), (own2, q) = one, other
        known = jnp.maximum(own1 * own2 - matmul(squares, q * q), 0)
        return known + jnp.sum((self.slack - matmul(constant, q)) ** 2)

    def covariance(
        self, K1: Float[Array, "p n1"], K2: Float[Array, "p n2"], prior: Float[Array, "p p"]
    ) -> Float[Array, "p p"]:
        """Of pairs with each other, whose k₁k₂ is the `prior`: O(p² n₁n₂), one pair after
        another.
        """
        p, q = matmul(K1, self.first), matmul(K2, self.second)

        def told(pair):
            one, other = pair
            return jnp.sum(matmul(p, one[:, None] * self.inverse * other) * q, axis=1)

        slack = self.slack[:, None] - jnp.sum(matmul(p, self.constant) * q, axis=2)
        return prior - jax.lax.map(told, (p, q)) + matmul(slack.T, slack)
