"""Order statistics of many rows of numbers by counting: no sort, which on CPUs takes longer than the product that makes the numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Every so many guesses one halves what is left, and once so many were made it halves the floating-point numbers that are left, of which there are 2⁶⁴, and
# ends go to the numbers next to them: for wild distributions, and ties.
HALVED, LATE = 3, 16
MOST = 400


def kth_smallest(A: Float[Array, "b n"], k: Int[Array, ""], low: Float[Array, " b"], high: Float[Array, " b"]) -> Float[Array, " b"]:
    """The k-th smallest number of every row, 1 ≤ k ≤ n, known to lie between `low` and `high` but for rounding.

    By interpolation between counts, some 15 readings of A where a sort takes as long as some 200. Derivatives are those of the number itself. Of numbers
    closer to each other than 2 eps either may come.
    """
    found = jax.lax.stop_gradient(_at_least(*jax.lax.stop_gradient((A, low, high)), k))
    return jnp.max(jnp.where(found[:, None] >= A, A, -jnp.inf), axis=1)


def _at_least(A, low, high, k):
    """A number from the k-th smallest to before the next."""
    eps = float(jnp.finfo(A.dtype).eps)
    tiny = float(jnp.finfo(A.dtype).tiny)
    slack = 8 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high)) + tiny
    low, high, k = low - slack, high + slack, jnp.asarray(k).astype(jnp.float32)

    def count(t):
        return jnp.sum((t[:, None] >= A).astype(jnp.float32), axis=1)  # exact up to 2²⁴, and faster than in whole numbers

    def goes_on(state):
        step, low, high, below, above = state
        apart = high - low > 2 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high)) + 2 * tiny
        return jnp.any((above - below > 1) & apart) & (step < MOST)

    def closer(low, high):
        first = jnp.min(jnp.where(low[:, None] < A, A, jnp.inf), axis=1)
        return first - (eps * jnp.abs(first) + tiny), jnp.max(jnp.where(high[:, None] >= A, A, -jnp.inf), axis=1)

    def guess(state):
        step, low, high, below, above = state
        halved = step % HALVED == HALVED - 1
        width = jnp.maximum(above - below, 1).astype(A.dtype)
        share = jnp.clip((k - below - 0.5).astype(A.dtype) / width, 1 / (width + 1), width / (width + 1))
        t = low + jnp.where(halved, 0.5, share) * (high - low)
        t = jnp.where(halved & (step > LATE), _middle(low, high), t)
        found = count(t)
        enough = found >= k
        low, high = jnp.where(enough, low, t), jnp.where(enough, t, high)
        low, high = jax.lax.cond(halved & (step > LATE), closer, lambda *ends: ends, low, high)
        return step + 1, low, high, jnp.where(enough, below, found), jnp.where(enough, found, above)

    start = jnp.zeros((), jnp.int32), low, high, count(low), count(high)
    return jax.lax.while_loop(goes_on, guess, start)[2]


def _middle(low, high):
    """The number with as many floating-point numbers above `low` as below `high`."""
    whole = jnp.int32 if low.dtype == jnp.float32 else jnp.int64

    def turned(i):  # the bits of numbers below 0 fall as they grow
        return i ^ ((i >> (jnp.iinfo(whole).bits - 1)) & jnp.iinfo(whole).max)

    a, b = (turned(jax.lax.bitcast_convert_type(end, whole)) for end in (low, high))
    return jax.lax.bitcast_convert_type(turned((a & b) + ((a ^ b) >> 1)), low.dtype)
