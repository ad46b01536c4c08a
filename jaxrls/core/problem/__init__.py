"""Parts of a least-squares problem: rows, weights, labels, fixed effects, folds; K and moments."""

from jaxrls.core.problem.compiled import compiled, static_names
from jaxrls.core.problem.data import Data, DataBlock, Labels
from jaxrls.core.problem.fixed_effects import FixedEffects, FixedLevels, as_fixed_effects
from jaxrls.core.problem.folds import Folds, as_folds, check_groups, folds, of_splits
from jaxrls.core.problem.gram import (
    PRODUCTS,
    gram,
    gram_matmul,
    kernel_times,
    times_in_blocks,
)
from jaxrls.core.problem.moments import Moments, moments, near_fit
from jaxrls.core.problem.padding import common_size, first_rows, pad_rows
from jaxrls.core.problem.rows import (
    KINDS_OF_ROWS,
    DenseRows,
    GramRows,
    Rows,
    as_rows,
    kind_of,
)
from jaxrls.core.problem.weights import SummedWeights, Weights
