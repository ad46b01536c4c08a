"""Rows that are not in memory but for a sample, from which landmarks and widths are chosen."""

from typing import Any, ClassVar

import jax.numpy as jnp

from jaxrls.rows.rows import DenseRows, Rows

SAMPLE = 10_000  # rows


class SampledRows(Rows):
    """What to inherit from for rows that know `drawn`, ascending row numbers, and `sample`, those
    rows on the host.
    """

    traceable: ClassVar[bool] = False
    drawn: Any
    sample: Any

    def check(self, kernel, name="X", *, training=True):
        """Raise for rows outside of the kernel's domain, as far as the sample has them; numbers
        were looked at when they were read.
        """
        kernel.check(self.candidates()[1])

    def candidates(self):
        """The sample, by row number."""
        return self.drawn, jnp.asarray(self.sample)

    def some(self, num):
        """Rows of the sample, spread evenly."""
        return DenseRows(self.candidates()[1]).some(num)
