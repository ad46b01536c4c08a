"""Factors: factorizations of one kernel with its rows, weights and fixed effects.

The matrix that is factored is K (dual) or the moments of features (primal). It is factored by a
spectrum, by Cholesky factors or by an iteration. Begin with `factor.py`.
"""

from jaxrls.core.factors.cholesky import CholeskyGram, DualAtLam, DualOneByOne
from jaxrls.core.factors.cholesky_features import CholeskyFeatures, CoordinateMaps
from jaxrls.core.factors.expansion import AtPoints, Expansion, Features, Primal, kernel_matrix
from jaxrls.core.factors.factor import AtLam, Factor
from jaxrls.core.factors.floor import ABOVE_ROUNDING, Report
from jaxrls.core.factors.lams import (
    GRID_SIZE,
    PerLam,
    PerRow,
    PerTarget,
    as_columns,
    matmul_lams,
    over_lams,
)
from jaxrls.core.factors.primal_spectrum import (
    OuterSpectrum,
    PrimalSpectrum,
    feature_moments,
    spectrum_of,
)
from jaxrls.core.factors.residuals import HeldOut, Residuals, RowLabels, Summand
from jaxrls.core.factors.solution import Coefficients, Outcome, Solution
from jaxrls.core.factors.solver import CallShape, Footprint, Solver
from jaxrls.core.factors.solvers import (
    LAMS_PER_SEARCH,
    SOLVER_OF_OPTION,
    SOLVERS_WITHOUT_K,
    Cholesky,
    Spectral,
    cheapest_solver,
    named_solver,
)
from jaxrls.core.factors.spectrum import FeatureSpectrum, GramSpectrum, LeftBlock, Spectrum
