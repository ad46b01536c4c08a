"""Intervals that hold a new label with a given probability whatever its distribution, from every
fit that leaves a row, or a group, out.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.factors.expansion import Expansion
from jaxrls.factors.spread import Spread
from jaxrls.inference.model import Model
from jaxrls.inference.posterior import at_rows
from jaxrls.leave_out.without import Without
from jaxrls.problem.fixed_effects import FixedEffects
from jaxrls.rows.blocks import FEWEST_ROWS
from jaxrls.rows.compiled import compiled
from jaxrls.rows.rows import Rows
from jaxrls.support.checks import is_concrete
from jaxrls.support.pytrees import pytree, static

# Numbers of one kind, (new rows, rows), in a block: fewer new rows than blocks have elsewhere,
# where there are very many rows.
AT_ONCE = 2**24
METHODS = ("jackknife+", "cv+")


@pytree
class Jackknife:
    """What a fit keeps of the fits that leave a row, or a group, out: at one λ, or stacked for
    every target at its own.
    """

    fits: Without
    expansion: Expansion
    fixed: FixedEffects  # without their rows
    count: Float[Array | np.ndarray, ""]  # of rows of positive weight
    flat: bool = static()
    stacked: bool = static(default=False)

    def check(self, method: str | None) -> None:
        """Raise for a method that there is not, or that this fit does not leave rows out for."""
        own = self.fits.method
        if method not in (None, *METHODS):
            raise ValueError(
                f"method must be one of {', '.join(map(repr, METHODS))} or None for what the fit left out, and is {method!r}"
            )
        if method not in (None, own):
            left = "single rows" if own == "jackknife+" else "groups"
            needed = "without groups=" if own == "cv+" else "with groups=, or criterion=kfold"
            raise ValueError(
                f"method={method!r} is not that of this fit, which left {left} out: leave method= out, or fit {needed}"
            )

    def rank(self, level) -> Int[Array, ""]:
        """⌈level (n + 1)⌉, of the level that was rounded to the one given, in its dtype."""
        known = is_concrete(level, self.count)
        xp: Any = np if known else jnp
        level = xp.asarray(level)
        dtype = np.float64 if known else self.count.dtype
        slack = 4 * max(float(jnp.finfo(part).eps) for part in (level.dtype, dtype))
        wide = level.astype(dtype) * (xp.asarray(self.count, dtype) + 1)
        return jnp.asarray(xp.ceil(wide * (1 - slack)), jnp.int32)

    def intervals(
        self, model: Model, X, given, spread: Spread | None, level, block_size: int | None
    ) -> Any:
        """Both ends; their width follows x where the spread is given."""
        check_level(level)

        def found(rows):
            model.check_columns(rows.shape[1])
            effects = model.new_effects(given, rows.shape[0])
            options = spread, rows, effects, self.rank(level)
            ends = _intervals(self, model, *options, block_size=block_size)
            return tuple(end[:, 0] if self.flat else end for end in ends)

        return at_rows(model, X, found)

    def each(self, fn) -> Any:
        """`fn(fits)` with results (…, t)."""
        if not self.stacked:
            return fn(self.fits)
        return jax.tree.map(lambda a: jnp.moveaxis(a[..., 0], 0, -1), jax.lax.map(fn, self.fits))


def check_level(level) -> None:
    """Raise unless it is a probability, where its value is known."""
    given = level if hasattr(level, "dtype") else np.asarray(level)
    number = given.ndim == 0 and jnp.issubdtype(given.dtype, jnp.floating)
    if not number or is_concrete(level) and not 0 < float(level) < 1:
        raise ValueError(f"level must be a number between 0 and 1, such as 0.9, and is {level!r}")


@compiled
def _intervals(
    jackknife: Jackknife,
    model: Model,
    spread: Spread | None,
    rows: Rows,
    effects,
    rank,
    *,
    block_size: int | None,
):
    n = jackknife.fits.gaps.shape[-2]
    if block_size is None and n * FEWEST_ROWS > AT_ONCE:
        block_size = max(1, AT_ONCE // n)

    block = partial(_at_rows, jackknife, model, spread, rank)
    return rows.map(block, effects, temporaries=4 * n, block_size=block_size)


def _at_rows(jackknife: Jackknife, model: Model, spread: Spread | None, rank, x, effects):
    """Both ends at some rows."""
    design = jackknife.expansion.design(model.kernel, x)
    columns = jackknife.fixed.dense(effects, len(design))
    design = jnp.concatenate([design, columns], axis=1)
    variance = None
    if spread is not None:
        variance = spread.variance(model.kernel, x, effects, corrected=False)

    def of(fits):
        ratios = None if variance is None else fits.ratios(design, variance)
        return fits.each(design, partial(_ends, ratios, rank, jackknife.count))

    return jackknife.each(of)


def _ends(ratios, rank, count, left_out: Float[Array, "b n"], gaps: Float[Array, " n"]):
    """The ⌊(1 − level)(n + 1)⌋-th smallest of f₋ᵢ(x) − gap and the ⌈level (n + 1)⌉-th of f₋ᵢ(x) +
    gap, the one the other's mirror image.
    """
    count = jnp.asarray(count).astype(rank.dtype)
    defined, k = rank <= count, jnp.minimum(rank, count)
    above = gaps if ratios is None else gaps * ratios

    def end(sign):
        found = jnp.sort(sign * left_out + above, axis=1)[:, k - 1]
        return sign * jnp.where(defined, found, jnp.inf)

    return end(-1), end(1)
