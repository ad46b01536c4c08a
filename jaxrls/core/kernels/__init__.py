"""Kernels: their base class and algebra, the families, and those that a caller brings."""

from jaxrls.core.kernels.block import Block, as_block, as_dense, inner_products, squared_lengths
from jaxrls.core.kernels.distances import city_block_distances, near_product, squared_distances
from jaxrls.core.kernels.given import GramBlock, Precomputed
from jaxrls.core.kernels.inner import Linear, polynomial_features
from jaxrls.core.kernels.kernel import Kernel, Scaled, Standardized, Sum
from jaxrls.core.kernels.named import (
    KERNELS,
    NAMED,
    PLAIN,
    POLYNOMIAL,
    RADIAL,
    check_kernel,
)
