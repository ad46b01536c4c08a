"""Fits to labels of all pairs of a row of one side and a row of another: K = K₁ ⊗ K₂."""

from jaxrls.two_sided.fit import fit_kronecker
from jaxrls.two_sided.fitted import KroneckerFit, KroneckerModel
from jaxrls.two_sided.kronecker import Kronecker, factor_kronecker
from jaxrls.two_sided.left_out import kronecker_left_out, kronecker_residuals

__all__ = [
    "Kronecker",
    "KroneckerFit",
    "KroneckerModel",
    "factor_kronecker",
    "fit_kronecker",
    "kronecker_left_out",
    "kronecker_residuals",
]
