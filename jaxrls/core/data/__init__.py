"""The data of a least-squares problem: rows, weights, labels, fixed effects and folds.

Also the Gram matrix K and the moments, which are computed from them.
"""

from jaxrls.core.data.compiled import compiled, static_names
from jaxrls.core.data.data import Data, DataBlock, Labels
from jaxrls.core.data.effects_columns import FixedColumns
from jaxrls.core.data.effects_levels import FixedLevels
from jaxrls.core.data.effects_made import as_fixed_effects, intercept_over, no_effects
from jaxrls.core.data.fixed_effects import FixedEffects
from jaxrls.core.data.folds import Folds, as_folds, check_groups, folds, of_splits
from jaxrls.core.data.gram import (
    PRODUCTS,
    gram,
    gram_matmul,
    kernel_times,
    square_times,
    times_in_blocks,
)
from jaxrls.core.data.moments import CentredMoments, Moments, coef_near_fit, moments
from jaxrls.core.data.padding import common_size, first_rows, pad_rows
from jaxrls.core.data.rows import (
    KINDS_OF_ROWS,
    Candidates,
    DenseRows,
    GramRows,
    Rows,
    as_rows,
    as_training_rows,
    kind_of,
)
from jaxrls.core.data.weights import SummedWeights, Weights
