"""What can be computed from a fit or a factor in addition to predictions.

These are the influence of rows, degrees of freedom, held-out residuals and eigenfunctions. Also the
classes of what the methods `posterior`, `effect` and `loo_predictive` of a fit return.
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
