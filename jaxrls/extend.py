"""Names for writing kernels, losses, criteria and solvers of your own.

This module also has the functions that `fit` calls, and the classes of results, which users do not
construct.
"""

from jaxrls.core.criteria import (
    CRPS,
    Criterion,
    Evidence,
    LeaveOneOut,
    LogPredictive,
    Path,
    absolute_error,
    coef,
    crps,
    log_predictive_density,
    squared_error,
)
from jaxrls.core.data import Data, Folds, Moments, Weights, gram, gram_matmul, moments
from jaxrls.core.factors import Factor, Report, Solution, Solver, Spectrum
from jaxrls.core.fit import Choice, Given, Grid, Problem, Result, fit_arrays, lambda_grid
from jaxrls.core.kernels import Kernel, polynomial_features
from jaxrls.core.support import pytree, static
from jaxrls.front import (
    Fit,
    History,
    Memory,
    Model,
    best_lam,
    median_distance,
    read_problem,
    start_from_data,
)
from jaxrls.landmarks.points import Landmarks, certified_lam

__all__ = [
    "CRPS",
    "Choice",
    "Criterion",
    "Data",
    "Evidence",
    "Factor",
    "Fit",
    "Folds",
    "Given",
    "Grid",
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
    "Result",
    "Solution",
    "Solver",
    "Spectrum",
    "Weights",
    "absolute_error",
    "best_lam",
    "certified_lam",
    "coef",
    "crps",
    "fit_arrays",
    "gram",
    "gram_matmul",
    "lambda_grid",
    "log_predictive_density",
    "median_distance",
    "moments",
    "polynomial_features",
    "pytree",
    "read_problem",
    "squared_error",
    "start_from_data",
    "static",
]
