"""What a fit says beyond its predictions: influence of rows, degrees of freedom, held-out
residuals, eigenfunctions, and the results of `posterior`, `effect`
and `loo_predictive`.
"""

from jaxrls.core.criteria import effective_dof, loo_residuals
from jaxrls.uncertainty.effect import Effect
from jaxrls.uncertainty.influence import Influence, eigenfunctions, influence
from jaxrls.uncertainty.intervals import Predictive
from jaxrls.uncertainty.posterior import Posterior

__all__ = [
    "Effect",
    "Influence",
    "Posterior",
    "Predictive",
    "effective_dof",
    "eigenfunctions",
    "influence",
    "loo_residuals",
]
