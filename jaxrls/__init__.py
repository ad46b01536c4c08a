"""Regularized least squares on CPU, GPU and TPU: one factorization, then every λ and its exact
leave-one-out error.

This module has the names for everyday use. Begin with `fit`. Further names are in the modules
`classes`, `diagnostics`, `ranking`, `rows`, `several` and `two_sided`. `extend` is for kernels,
criteria and solvers of your own.
"""

import os

# JAX's decompositions run on threads of OpenBLAS. With this setting an idle thread sleeps after
# 2^18 cycles, by default after 2^26. Until then it spins, and slows down other threads. A setting
# far below 2^18 costs more, because threads must be woken often. OpenBLAS reads the setting when
# SciPy loads it. That is later than this line, unless the caller has loaded SciPy before.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

import jaxrls.fused.products
import jaxrls.iterative.lam_walk
import jaxrls.iterative.subset
import jaxrls.landmarks.growing
import jaxrls.landmarks.named
import jaxrls.rows.sharded
import jaxrls.rows.sparse  # noqa: F401
from jaxrls import classes, diagnostics, extend, ranking, rows, several, two_sided
from jaxrls.core.criteria.evidence import log_marginal_likelihood
from jaxrls.core.criteria.gcv import gcv
from jaxrls.core.criteria.hold_out import holdout
from jaxrls.core.criteria.leave_one_out import kfold, loo
from jaxrls.core.criteria.path import path
from jaxrls.core.data.effects_given import levels
from jaxrls.core.data.folds import folds
from jaxrls.core.factors.factorize import factorize
from jaxrls.core.factors.solvers import Cholesky, Spectral
from jaxrls.core.kernels.given import FeatureMap, FunctionKernel, Precomputed
from jaxrls.core.kernels.inner import Constant, Cosine, Linear, Polynomial, Sobolev, Tanimoto
from jaxrls.core.kernels.stationary import (
    ChiSquared,
    Gaussian,
    Laplacian,
    Levels,
    Matern,
    Periodic,
    RationalQuadratic,
)
from jaxrls.front.fit import fit
from jaxrls.front.memory import memory
from jaxrls.front.objective import objective
from jaxrls.front.tune import tune
from jaxrls.io.archive import load, save
from jaxrls.io.writing import predict_to_file
from jaxrls.iterative.iterative import Iterative
from jaxrls.iterative.refined import Refined
from jaxrls.landmarks.choice import choose_landmarks
from jaxrls.rows.tables import airfoil

__version__ = "0.1.0"
__all__ = [
    "ChiSquared",
    "Cholesky",
    "Constant",
    "Cosine",
    "FeatureMap",
    "FunctionKernel",
    "Gaussian",
    "Iterative",
    "Laplacian",
    "Levels",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "Precomputed",
    "RationalQuadratic",
    "Refined",
    "Sobolev",
    "Spectral",
    "Tanimoto",
    "airfoil",
    "choose_landmarks",
    "classes",
    "diagnostics",
    "extend",
    "factorize",
    "fit",
    "folds",
    "gcv",
    "holdout",
    "kfold",
    "levels",
    "load",
    "log_marginal_likelihood",
    "loo",
    "memory",
    "objective",
    "path",
    "predict_to_file",
    "ranking",
    "rows",
    "save",
    "several",
    "tune",
    "two_sided",
]


def __dir__():
    return sorted([*__all__, "__version__"])
