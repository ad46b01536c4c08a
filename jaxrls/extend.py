"""For parts of your own: pytrees, rows and their moments, and the contract between factors and
criteria. And the classes of results, which nobody constructs.
"""

from jaxrls.core.criteria.path import Path
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.outcome import Report
from jaxrls.core.factors.solution import Solution
from jaxrls.core.factors.solver import Solver
from jaxrls.core.factors.spectrum import Spectrum
from jaxrls.core.fit.fitted import History
from jaxrls.core.fit.memory import Estimate
from jaxrls.core.fit.problem import Problem
from jaxrls.core.problem.data import Data
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.moments import Moments, moments
from jaxrls.core.problem.rows import DenseRows, Rows
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.pytrees import pytree, static
from jaxrls.landmarks.points import Landmarks
from jaxrls.rows.sharded import ShardedRows
from jaxrls.several.kernels import KernelsFit
from jaxrls.several.selection import Selection
from jaxrls.two_sided.fitted import KroneckerFit, KroneckerModel
from jaxrls.two_sided.kronecker import Kronecker
from jaxrls.uncertainty.classes import ConformalLabels, Sigmoid
from jaxrls.uncertainty.influence import Influence
from jaxrls.uncertainty.intervals import Predictive
from jaxrls.uncertainty.posterior import Posterior

__all__ = [
    "ConformalLabels",
    "Data",
    "DenseRows",
    "Estimate",
    "Factor",
    "Folds",
    "History",
    "Influence",
    "KernelsFit",
    "Kronecker",
    "KroneckerFit",
    "KroneckerModel",
    "Landmarks",
    "Moments",
    "Path",
    "Posterior",
    "Predictive",
    "Problem",
    "Report",
    "Rows",
    "Selection",
    "ShardedRows",
    "Sigmoid",
    "Solution",
    "Solver",
    "Spectrum",
    "Weights",
    "moments",
    "pytree",
    "static",
]
