"""Regularized least squares on CPU, GPU and TPU: one factorization, then every λ and its exact
leave-one-out error.
"""

import jaxrls.landmarks.growing
import jaxrls.landmarks.named  # noqa: F401
import jaxrls.rows.sparse  # noqa: F401 (a kind of rows that `as_rows` is to know)
from jaxrls.core.criteria.criterion import Criterion
from jaxrls.core.criteria.losses import absolute_error, squared_error, zero_one_loss
from jaxrls.core.criteria.path import (
    coef,
    effective_dof,
    loo_residuals,
    path,
)
from jaxrls.core.criteria.standard import (
    LeaveOneOut,
    LogPredictive,
    gcv,
    holdout,
    kfold,
    log_marginal_likelihood,
    log_predictive_density,
    loo,
)
from jaxrls.core.factors.solvers import Cholesky, Refined, Spectral, factorize
from jaxrls.core.fit.fit import fit
from jaxrls.core.fit.fitted import Fit
from jaxrls.core.fit.grid import lambda_grid
from jaxrls.core.fit.memory import estimate
from jaxrls.core.fit.model import Model
from jaxrls.core.fit.objective import best_lam, objective
from jaxrls.core.fit.start import median_distance, start_from_data
from jaxrls.core.fit.tune import tune
from jaxrls.core.kernels.given import FeatureMap, FunctionKernel, Precomputed
from jaxrls.core.kernels.inner import (
    Constant,
    Cosine,
    Linear,
    Polynomial,
    Sobolev,
    Tanimoto,
    polynomial_features,
)
from jaxrls.core.kernels.kernel import Kernel
from jaxrls.core.kernels.stationary import (
    ChiSquared,
    Gaussian,
    Laplacian,
    Matern,
    Periodic,
    RationalQuadratic,
)
from jaxrls.core.problem.fixed_effects import levels
from jaxrls.core.problem.folds import folds
from jaxrls.core.problem.gram import gram, gram_matmul
from jaxrls.io.archive import load, save
from jaxrls.io.sources import stream
from jaxrls.io.tables import airfoil, predict_to_file
from jaxrls.iterative.iterative import Iterative
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.landmarks.points import certified_lam
from jaxrls.ranking.criteria import PairsOut, QueriesOut, misordered, pairwise_ranking_error
from jaxrls.rows.sharded import shard
from jaxrls.several.kernels import fit_kernels
from jaxrls.several.selection import select_columns
from jaxrls.two_sided.fit import fit_kronecker
from jaxrls.two_sided.kronecker import factor_kronecker
from jaxrls.two_sided.left_out import kronecker_left_out, kronecker_residuals
from jaxrls.uncertainty.classes import (
    class_probabilities,
    conformal_labels,
    decode,
    encode,
    fit_sigmoid,
    label_p_values,
)
from jaxrls.uncertainty.influence import eigenfunctions, influence

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
    "choose_landmarks",
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
    "shard",
    "squared_error",
    "start_from_data",
    "stream",
    "tune",
    "zero_one_loss",
]


def __dir__():
    return sorted([*__all__, "__all__", "__doc__", "__version__"])
