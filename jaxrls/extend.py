"""Base classes and decorators for parts of your own: pytrees, rows and their moments, and the
contract between factors and criteria.
"""

from jaxrls.factors.contract import Factor, Report, Solution, Solver
from jaxrls.factors.kronecker import Kronecker
from jaxrls.factors.spectrum import Spectrum
from jaxrls.problem.folds import Folds
from jaxrls.problem.landmarks import Landmarks
from jaxrls.problem.weights import Weights
from jaxrls.rows.moments import Moments, moments
from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.rows.sharded import ShardedRows
from jaxrls.search.problem import Problem
from jaxrls.support.pytrees import pytree, static

__all__ = [
    "DenseRows",
    "Factor",
    "Folds",
    "Kronecker",
    "Landmarks",
    "Moments",
    "Problem",
    "Report",
    "Rows",
    "ShardedRows",
    "Solution",
    "Solver",
    "Spectrum",
    "Weights",
    "moments",
    "pytree",
    "static",
]
