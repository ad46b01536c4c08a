"""For parts of your own: pytrees, rows and their moments, and the contract between factors and
criteria. And the classes of results, which nobody constructs.
"""

from jaxrls.criteria.path import Path
from jaxrls.factors.contract import Factor, Report, Solution, Solver
from jaxrls.factors.kronecker import Kronecker
from jaxrls.factors.spectrum import Spectrum
from jaxrls.inference.classes import ConformalLabels, Sigmoid
from jaxrls.inference.fitted import History
from jaxrls.inference.influence import Influence
from jaxrls.inference.intervals import Predictive
from jaxrls.inference.posterior import Posterior
from jaxrls.inference.two_sided import KroneckerFit, KroneckerModel
from jaxrls.problem.folds import Folds
from jaxrls.problem.landmarks import Landmarks
from jaxrls.problem.weights import Weights
from jaxrls.rows.moments import Moments, moments
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.rows.sharded import ShardedRows
from jaxrls.search.estimate import Estimate
from jaxrls.search.problem import Problem
from jaxrls.search.selection import LandmarkSelection, Selection
from jaxrls.search.several import KernelsFit
from jaxrls.support.pytrees import pytree, static

__all__ = [
    "ConformalLabels",
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
    "LandmarkSelection",
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
