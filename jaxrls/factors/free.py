"""Columns B that are fitted with no penalty, of which the constant of an intercept is the case of one: f(x) + b(x)ᵀβ.

Of the weighted problem they take the span of √v B = H R, HᵀH = I, as an intercept takes h = √v/‖√v‖: C = I − HHᵀ in place of I − hhᵀ.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrls.factors.groups import Folds, named
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.products import matmul
from jaxrls.support.checks import as_array, check_finite, is_concrete
from jaxrls.support.pytrees import pytree, static


@pytree
class Free:
    """The columns as one basis of what they span.

    >>> import jax.numpy as jnp
    >>> B = jnp.array([[1.0], [0.0], [0.0]])
    >>> free = Free.of(B, Weights.of(None, 3, B.dtype), intercept=True)
    >>> free.H.shape, free.rest(jnp.array([[5.0], [1.0], [3.0]])).round(3).tolist()
    ((3, 2), [[0.0], [-1.0], [1.0]])
    """

    H: Float[Array, "n q"]
    level: Float[Array, "n q"]  # B R⁻¹ = H/√v, known for rows of weight 0 too
    back: Float[Array, "q q"]  # R⁻¹: from coordinates in the basis to β
    scaled: Weights
    intercept: bool = static()  # whether the first column is a constant, and its β the intercept

    @classmethod
    def of(cls, B, weights: Weights, intercept: bool) -> "Free":
        """From columns (n, q), checked."""
        B = as_array("unpenalized", B, weights.dtype)
        if B.ndim != 2 or B.shape[0] != weights.n or not B.shape[1] + intercept:
            hint = ": use unpenalized[:, None] for a single column" if B.shape == (weights.n,) else ""
            raise ValueError(f"unpenalized must have shape ({weights.n}, q), one row per row of X, and has shape {B.shape}{hint}")
        check_finite("unpenalized", B)
        B = jnp.concatenate([jnp.ones((weights.n, int(intercept)), B.dtype), B], axis=1)
        length = jnp.linalg.norm(weights.scale(B), axis=0)
        unit = jnp.where(length > 0, length, 1)
        if B.shape[1] > weights.n:
            raise ValueError(_dependent(B.shape[1], intercept))
        H, R = jnp.linalg.qr(weights.scale(B / unit), mode="reduced")
        _check_independent(R, intercept)
        back = jax.scipy.linalg.solve_triangular(R, jnp.eye(B.shape[1], dtype=B.dtype)) / unit[:, None]
        return cls(H, matmul(B, back), back, weights, intercept)

    @property
    def count(self) -> int:
        """How many columns there are, the constant among them."""
        return self.H.shape[1]

    @property
    def log_volume(self) -> Float[Array, ""]:
        """log |BᵀVB|."""
        return -2 * jnp.linalg.slogdet(self.back)[1]

    def along(self, A: Float[Array, "n p"]) -> Float[Array, "q p"]:
        """Hᵀ√v A."""
        return matmul(self.H.T, self.scaled.scale(A))

    def rest(self, A: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """A less what B fits of it: twice, as rounding of the first grows with what goes."""
        for _ in range(2):
            A = A - matmul(self.level, self.along(A))
        return A

    def out_of(self, U: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """C U."""
        return U - matmul(self.H, matmul(self.H.T, U))

    def labels(self, Y) -> Labels:
        """Labels (n,) or (n, t), less what B fits of them."""
        weights = self.scaled
        whole = Labels.of(Y, weights, False)
        start = self.along(whole.Y)
        start = start + self.along(whole.Y - matmul(self.level, start))
        mean = matmul(self.level, start)
        return Labels(whole.Y, mean, self.out_of(weights.scale(whole.Y - mean)), whole.flat, start)

    def beta(self, coordinates) -> tuple[Float[Array, "*L t"], Float[Array, "*L p t"]]:
        """Intercept and β of coordinates (…, q, t) in the basis."""
        beta = matmul(self.back, coordinates)
        first = int(self.intercept)
        return (beta[..., 0, :] if first else jnp.zeros_like(beta[..., 0, :])), beta[..., first:, :]

    # what is left -----------------------------------------------------------------------------------------------------------

    def has_rest(self, groups: Folds | None) -> Bool[Array, " k"]:
        """Whether the columns stay independent with each row left out, or each group."""
        return _remaining(jnp, self.H, groups) > _least(self.H)

    def check_rest(self, groups: Folds | None) -> None:
        """Raise where they do not (where values are known)."""
        if not is_concrete(self, groups):
            return
        H, groups = np.asarray(self.H), jax.tree.map(np.asarray, groups)
        lost = np.flatnonzero(_remaining(np, H, groups) <= _least(H))
        if not lost.size:
            return
        raise ValueError(
            f"without {named(groups, int(lost[0]))} the columns of unpenalized are linearly dependent, so that there is no fit that leaves it out: "
            "it alone tells one of them; drop these rows, or that column, or choose by criterion=log_marginal_likelihood, which leaves nothing out"
        )


def _least(H) -> float:
    """Of 1 − leverage, what rounding leaves where it is 0."""
    return 4 * H.shape[0] ** 0.5 * float(jnp.finfo(H.dtype).eps)


def _remaining(xp: Any, H, groups: Folds | None):
    """The smallest eigenvalue of I − H_B H_Bᵀ for each group B, of JAX or NumPy arrays; 1 − leverage of single rows."""
    if groups is None:
        return 1 - xp.sum(H * H, axis=1)

    def of_group(fold):
        inside = H[fold[0]] * fold[1][:, None].astype(H.dtype)
        return xp.linalg.eigvalsh(xp.eye(H.shape[1], dtype=H.dtype) - (matmul if xp is jnp else np.matmul)(inside.T, inside))[0]

    each = (groups.inside, groups.inside_mask)
    return jax.lax.map(of_group, each) if xp is jnp else np.array([of_group(fold) for fold in zip(*each, strict=True)])


def _check_independent(R: Float[Array, "q q"], intercept: bool) -> None:
    """Raise for columns of which one is a sum of the others, where values are known."""
    if not is_concrete(R):
        return
    sigma = np.linalg.svd(np.asarray(R), compute_uv=False)
    if sigma[-1] <= 16 * len(sigma) * np.finfo(R.dtype).eps * sigma[0]:
        raise ValueError(_dependent(len(sigma), intercept))


def _dependent(q: int, intercept: bool) -> str:
    constant = ", the constant of intercept=True among them," * intercept
    hint = ", or take intercept=False where they sum to a constant, as indicators of all groups do" * intercept
    return f"the {q} columns of unpenalized{constant} are linearly dependent over the rows of positive weight: drop a column{hint}"
