"""Scores as probabilities: the sigmoid that held-out scores ask for, and classes one against the
rest.

Scores of rows left out are what those of new rows are like, and cost no rows to hold out: their
sigmoid is that of new rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.linalg.products import power_of_two, safe_sqrt
from jaxrls.problem.weights import Weights
from jaxrls.support.checks import (
    Listed,
    as_array,
    as_floats,
    check_finite,
    check_targets,
)
from jaxrls.support.door import door
from jaxrls.support.pytrees import pytree

MOST_STEPS = 200


@pytree
class Sigmoid:
    """P(+1 | score) = 1 / (1 + exp(−slope · score − offset)), slope and offset (), or (t,) for as
    many columns of scores.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.Sigmoid(jnp.array(2.0), jnp.array(0.0))(jnp.array([0.0])).tolist()
    [0.5]
    """

    slope: Float[Array | np.ndarray, "*t"]
    offset: Float[Array | np.ndarray, "*t"]

    @door("self.slope")
    def __call__(self, scores: Float[Array, "m *t"] | Listed) -> Float[Array | np.ndarray, "m *t"]:
        """Probabilities of +1, shaped as the scores, in the precision of the slope."""

        given = as_array("scores", scores, self.slope.dtype)
        return jax.nn.sigmoid(given * self.slope + self.offset)


@door("scores")
def fit_sigmoid(
    scores: Float[Array, "n *t"] | Listed,
    codes: Float[Array, "n *t"] | Listed,
    weights: Float[Array, " n"] | Listed | None = None,
) -> Sigmoid:
    """The sigmoid that makes probabilities of scores, by maximum likelihood on held-out ones:
    Platt's scaling, a column by itself.

    minimise −Σ vᵢ (tᵢ log pᵢ + (1 − tᵢ) log(1 − pᵢ)) over slope ≥ 0 and offset, with pᵢ = 1/(1 +
    exp(−slope · sᵢ − offset)) and the targets t = (N₊ + 1)/(N₊ + 2) of codes +1 and 1/(N₋ + 2) of
    −1, N the sums of weights of each, so that no slope is infinite. A slope below 0 would be what
    leaving out does to scores that say nothing: without a row of a class its mean is lower. All
    rows then have the share of +1.

    **Arguments**: `scores` of rows that were left out, such as `Y − fit.loo_residuals`; `codes` ±1
    as of `encode`. **Shapes**: (n,) or (n, t), and `weights` (n,); see `Sigmoid`. **Cost** O(n t) a
    step of Newton's, of which some ten are taken; differentiable once. **Raises** `ValueError` for
    shapes that do not fit, and for NaN or infinity. **Fails**: where scores are those of the fit
    itself, which are larger than those of new rows. **Source**: J. Platt 2000, *Probabilities for
    SV machines*; Lin, Lin and Weng 2007; the length of steps: Sun and Tran-Dinh 2019, §3, at ν = 2.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> sigmoid = rls.fit_sigmoid(jnp.array([-2.0, -1.0, 0.5, -0.5, 1.0, 2.0]), jnp.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]))
    >>> [round(float(p), 2) for p in sigmoid(jnp.array([-1.0, 0.0, 1.0]))]
    [0.35, 0.5, 0.65]
    """
    scores = as_array("scores", scores)
    codes = as_array("codes", codes, scores.dtype)
    check_targets("scores", scores)
    if codes.shape != scores.shape:
        raise ValueError(
            f"codes must have shape {scores.shape}, as scores do, and have shape {codes.shape}"
        )
    v = Weights.of(weights, len(scores), scores.dtype).array
    check_finite("scores", scores)
    check_finite("codes", codes)
    each = _fit_columns(scores.reshape(len(scores), -1), codes.reshape(len(scores), -1), v)
    return Sigmoid(*(part.reshape(scores.shape[1:]) for part in each))


def class_probabilities(each: Float[Array, "m *t"] | Listed) -> Any:
    """Probabilities of all classes from those of each against the rest, which need not add up:
    divided by their sum.

    (1 − p, p) for a single column, of two classes; else pⱼ / Σ p, and 1/T for all where every one
    is 0.

    **Shapes**: (m,) and (m, 1) give (m, 2), (m, T) gives (m, T). **Cost** O(m T). **Raises**
    `ValueError` for other shapes, and for NaN or infinity. **Source**: Zadrozny and Elkan 2002, §5.

    >>> import numpy as np, jaxrls as rls
    >>> rls.class_probabilities(np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 0.0]])).round(2).tolist()
    [[0.5, 0.25, 0.25], [0.33, 0.33, 0.33]]
    """
    xp: Any = jnp if isinstance(each, jax.Array) else np
    p = as_floats("each", each)
    check_targets("each", p)
    check_finite("each", p)
    if p.ndim == 1 or p.shape[1] == 1:
        return xp.stack([1 - p.reshape(-1), p.reshape(-1)], axis=1)
    total = xp.sum(p, axis=1, keepdims=True)
    none = total == 0  # NaN, which jit does not know, is not
    return xp.where(none, 1 / p.shape[1], p / xp.where(none, 1, total))


@jax.jit
def _fit_columns(scores, codes, v):
    return jax.vmap(_fit_column, in_axes=(1, 1, None))(scores, codes, v)


def _fit_column(scores, codes, v):
    """Slope and offset of one column: Newton's method in standardised scores, a last step of which
    carries the derivatives.
    """
    scores = jnp.where(v > 0, scores, 0)  # others may be of any size
    unit = power_of_two(jnp.max(jnp.abs(scores)))  # in which squares neither overflow nor vanish
    scores = scores / unit
    total = jnp.sum(v)
    centre = jnp.sum(v * scores) / total
    spread = safe_sqrt(jnp.sum(v * (scores - centre) ** 2) / total)
    flat = spread <= 10 * jnp.finfo(scores.dtype).eps * jnp.max(jnp.abs(scores))
    positive, negative = (jnp.sum(jnp.where(part, v, 0)) for part in (codes > 0, codes <= 0))
    targets = jnp.where(codes > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))
    share = jnp.sum(v * targets) / total
    start = jnp.zeros((), scores.dtype), jnp.log(share) - jnp.log1p(-share)
    data = jnp.where(flat, 0, (scores - centre) / jnp.where(flat, 1, spread)), targets, v
    found = _newton(jax.lax.stop_gradient(data), jax.lax.stop_gradient(start))
    slope, offset = (part - step for part, step in zip(found, _step(data, *found)[:2], strict=True))
    slope, offset = jnp.where(slope < 0, start[0], slope), jnp.where(slope < 0, start[1], offset)
    slope = slope / jnp.where(flat, 1, spread)
    return slope / unit, offset - slope * centre


def _newton(data, start):
    """Where the steps have become short: damped by log(1 + r)/r with r the most that a score's
    logit would change, they lead down from everywhere.
    """
    enough = jnp.finfo(data[0].dtype).eps ** 0.5

    def more(state):
        return (state[0] < MOST_STEPS) & (state[1] > enough)

    def go(state):
        count, _, slope, offset = state
        down, across, r = _step(data, slope, offset)
        length = jnp.where(r > enough, jnp.log1p(r) / jnp.maximum(r, enough), 1)
        return count + 1, r, slope - length * down, offset - length * across

    return jax.lax.while_loop(more, go, (0, jnp.full_like(start[0], jnp.inf), *start))[2:]


def _step(data, slope, offset):
    """H⁻¹g in slope and offset, in scores about their mean by the weights of H; and the most that
    it changes a logit.
    """
    z, targets, v = data
    p = jax.nn.sigmoid(slope * z + offset)
    w = v * p * (1 - p)
    tiny = jnp.finfo(z.dtype).tiny
    curvature = jnp.maximum(jnp.sum(w), tiny)
    middle = jnp.sum(w * z) / curvature
    u, about = v * (p - targets), z - middle
    down = jnp.sum(u * about) / jnp.maximum(jnp.sum(w * about**2), tiny)
    across = jnp.sum(u) / curvature - middle * down
    return down, across, jnp.max(jnp.where(v > 0, jnp.abs(down * z + across), 0))
