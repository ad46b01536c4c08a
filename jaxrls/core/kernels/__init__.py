"""Kernels: the base class `Kernel` with its algebra, the families, and kernels given by the caller.

Begin with `kernel.py`, which defines `Kernel`.
"""

from jaxrls.core.kernels.block import (
    Block,
    as_block,
    as_dense,
    city_block_distances,
    gaps,
    in_order_of,
    inner_products,
    near_product,
    squared_distances,
    squared_gap,
    squared_lengths,
    times,
)
from jaxrls.core.kernels.given import (
    KERNELS,
    NAMED,
    PLAIN,
    POLYNOMIAL,
    RADIAL,
    GramBlock,
    OfFunction,
    Precomputed,
    check_kernel,
)
from jaxrls.core.kernels.inner import IDENTITY, Linear, polynomial_features
from jaxrls.core.kernels.kernel import (
    Kernel,
    On,
    Scaled,
    Standardized,
    Sum,
    Transformed,
    columns_by_number,
    parameter,
)
from jaxrls.core.kernels.stationary import (
    Gaussian,
    Laplacian,
    Levels,
    Matern,
    RationalQuadratic,
)
