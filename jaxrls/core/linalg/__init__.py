"""Linear algebra for all other layers.

It has matrix products at full precision, eigenvalue and singular value decompositions, inverses
with exact derivatives, and maps and sums over blocks of rows.
"""

from jaxrls.core.linalg.blocks import (
    FEWEST_ROWS,
    MAP,
    SUM,
    Reduction,
    block_bytes,
    check_block_size,
    default_block_size,
    map_blocks,
    map_rows,
    over_rows,
    split,
    sum_rows,
    wide_block_size,
)
from jaxrls.core.linalg.decompositions import (
    clip_negative,
    eigh,
    eigh_rounding,
    rounding,
    svd,
)
from jaxrls.core.linalg.inverses import (
    InverseParts,
    inverse,
    rule_of_inverse,
    rule_of_solve_diag,
    solve_diag,
    triangular_inverse,
    whitened,
)
from jaxrls.core.linalg.products import (
    PANELS,
    Number,
    Square,
    at_least_tiny,
    diagonal_of,
    from_panels,
    gram_panels,
    matmul,
    panels,
    reciprocal,
    safe_sqrt,
    tall_matmul,
    transposed_matmul,
)
