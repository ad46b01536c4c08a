"""For parts of your own, and what lies under `fit`: kernels, losses and criteria, solvers and the
contract between factors and criteria, moments. And the classes of results, which nobody constructs.
"""

from jaxrls.core.criteria.criterion import Criterion
from jaxrls.core.criteria.losses import absolute_error, squared_error
from jaxrls.core.criteria.path import Path, coef
from jaxrls.core.criteria.standard import LeaveOneOut, LogPredictive, log_predictive_density
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.outcome import Report
from jaxrls.core.factors.solution import Solution
from jaxrls.core.factors.solver import Solver
from jaxrls.core.factors.spectrum import Spectrum
from jaxrls.core.fit.fitted import Fit, History
from jaxrls.core.fit.grid import lambda_grid
from jaxrls.core.fit.memory import Memory
from jaxrls.core.fit.model import Model
from jaxrls.core.fit.objective import best_lam
from jaxrls.core.fit.problem import Problem
from jaxrls.core.fit.start import median_distance, start_from_data
from jaxrls.core.kernels.inner import polynomial_features
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.problem.data import Data
from jaxrls.core.problem.folds import Folds
from jaxrls.core.problem.gram import gram, gram_matmul
from jaxrls.core.problem.moments import Moments, moments
from jaxrls.core.problem.weights import Weights
from jaxrls.core.support.pytrees import pytree, static
from jaxrls.landmarks.points import Landmarks, certified_lam

__all__ = [
    "Criterion",
    "Data",
    "Factor",
    "Fit",
    "Folds",
    "History",
    "Kernel",
    "Landmarks",
    "LeaveOneOut",
    "LogPredictive",
    "Memory",
    "Model",
    "Moments",
    "Path",
    "Problem",
    "Report",
    "Solution",
    "Solver",
    "Spectrum",
    "Weights",
    "absolute_error",
    "best_lam",
    "certified_lam",
    "coef",
    "gram",
    "gram_matmul",
    "lambda_grid",
    "log_predictive_density",
    "median_distance",
    "moments",
    "polynomial_features",
    "pytree",
    "squared_error",
    "start_from_data",
    "static",
]
