"""Regularized least squares on CPU, GPU and TPU: one factorization, then every λ and its exact
leave-one-out error.
"""

from jaxrls.criteria.criterion import Criterion
from jaxrls.criteria.in_pairs import PairsOut, QueriesOut, pairwise_ranking_error
from jaxrls.criteria.losses import absolute_error, misordered, squared_error, zero_one_loss
from jaxrls.criteria.path import (
    coef,
    effective_dof,
    kronecker_left_out,
    kronecker_residuals,
    loo_residuals,
    path,
)
from jaxrls.criteria.standard import (
    LeaveOneOut,
    LogPredictive,
    gcv,
    holdout,
    kfold,
    log_marginal_likelihood,
    log_predictive_density,
    loo,
)
from jaxrls.factors.iterative import Iterative
from jaxrls.factors.kronecker import factor_kronecker
from jaxrls.factors.solvers import Cholesky, Refined, Spectral, factorize
from jaxrls.inference.classes import (
    class_probabilities,
    conformal_labels,
    decode,
    encode,
    fit_sigmoid,
    label_p_values,
)
from jaxrls.inference.fitted import Fit
from jaxrls.inference.influence import eigenfunctions, influence
from jaxrls.inference.model import Model
from jaxrls.io.archive import load, save
from jaxrls.io.sources import stream
from jaxrls.io.tables import airfoil, predict_to_file
from jaxrls.kernels.given import FeatureMap, FunctionKernel, Precomputed
from jaxrls.kernels.inner import (
    Constant,
    Cosine,
    Linear,
    Polynomial,
    Sobolev,
    Tanimoto,
    polynomial_features,
)
from jaxrls.kernels.kernel import Kernel
from jaxrls.kernels.stationary import (
    ChiSquared,
    Gaussian,
    Laplacian,
    Matern,
    Periodic,
    RationalQuadratic,
)
from jaxrls.problem.fixed_effects import levels
from jaxrls.problem.folds import folds
from jaxrls.problem.landmarks import certified_lam
from jaxrls.rows.gram import gram, gram_matmul
from jaxrls.rows.sharded import shard
from jaxrls.search.estimate import estimate
from jaxrls.search.fit import fit
from jaxrls.search.grid import lambda_grid
from jaxrls.search.landmarks import landmarks
from jaxrls.search.objective import best_lam, objective
from jaxrls.search.selection import select_columns, select_landmarks
from jaxrls.search.several import fit_kernels
from jaxrls.search.start import median_distance, start_from_data
from jaxrls.search.tune import tune
from jaxrls.search.two_sided import fit_kronecker

__version__ = "0.1.0"
__all__ = [
    "ChiSquared",
    "Cholesky",
    "Constant",
    "Cosine",
    "Criterion",
    "FeatureMap",
    "Fit",
    "FunctionKernel",
    "Gaussian",
    "Iterative",
    "Kernel",
    "Laplacian",
    "LeaveOneOut",
    "Linear",
    "LogPredictive",
    "Matern",
    "Model",
    "PairsOut",
    "Periodic",
    "Polynomial",
    "Precomputed",
    "QueriesOut",
    "RationalQuadratic",
    "Refined",
    "Sobolev",
    "Spectral",
    "Tanimoto",
    "absolute_error",
    "airfoil",
    "best_lam",
    "certified_lam",
    "class_probabilities",
    "coef",
    "conformal_labels",
    "decode",
    "effective_dof",
    "eigenfunctions",
    "encode",
    "estimate",
    "factor_kronecker",
    "factorize",
    "fit",
    "fit_kernels",
    "fit_kronecker",
    "fit_sigmoid",
    "folds",
    "gcv",
    "gram",
    "gram_matmul",
    "holdout",
    "influence",
    "kfold",
    "kronecker_left_out",
    "kronecker_residuals",
    "label_p_values",
    "lambda_grid",
    "landmarks",
    "levels",
    "load",
    "log_marginal_likelihood",
    "log_predictive_density",
    "loo",
    "loo_residuals",
    "median_distance",
    "misordered",
    "objective",
    "pairwise_ranking_error",
    "path",
    "polynomial_features",
    "predict_to_file",
    "save",
    "select_columns",
    "select_landmarks",
    "shard",
    "squared_error",
    "start_from_data",
    "stream",
    "tune",
    "zero_one_loss",
]


def __dir__():
    return sorted([*__all__, "__all__", "__doc__", "__version__"])
