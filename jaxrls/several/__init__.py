"""Fits with several kernels, weighted for every target, and greedy selection of columns."""

from jaxrls.several.kernels import KernelsFit, fit_kernels
from jaxrls.several.selection import Selection, select_columns

__all__ = ["KernelsFit", "Selection", "fit_kernels", "select_columns"]
