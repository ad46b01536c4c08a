"""No fixed effects, as the class `NoEffects`."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data.effects_given import Columns
from jaxrls.core.data.fixed_effects import Centred, FixedEffects, PerEffect, Vector
from jaxrls.core.data.folds import Folds
from jaxrls.core.data.weights import Weights
from jaxrls.core.support import pytree


@pytree
class NoEffects(FixedEffects):
    """No column. B, of shape (n, 0), fits 0 to everything."""

    def dense(self, values: Any, m: int) -> Columns:
        return jnp.zeros((m, 0), self.dtype)

    def basis_of(self, b: Columns) -> Columns:
        return b

    def fitted(self, values: Any, A: PerEffect) -> Float[Array, "#n *t"]:
        return self.varying(values, A)

    def sums(self, values: Any, v: Vector, A: Columns) -> PerEffect:
        return jnp.zeros((0, A.shape[1]), A.dtype)

    def gram(self, values: Any, v: Vector) -> PerEffect:
        return jnp.zeros((0, 0), self.dtype)

    def leverage(self, values: Any, v: Vector) -> Vector:
        return jnp.zeros_like(v)

    def solve(self, A: PerEffect) -> PerEffect:
        return A

    def project(self, weights: Weights, U: Columns) -> Columns:
        return U

    def centre_both(self, weights: Weights, K: Float[Array, "n n"]) -> Centred:
        return Centred(K, K[:0], jnp.zeros((), K.dtype))

    def from_gram(self, gram: PerEffect) -> FixedEffects:
        return self

    def keeps_rank(self, weights: Weights, folds: Folds | None) -> Any:
        return None
