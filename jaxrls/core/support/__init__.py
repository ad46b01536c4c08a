"""Helpers of all layers that do no mathematics.

They are checks of arguments, the decorators `public_call` and `pytree` (of classes),
questions about arrays and devices, warnings and progress bars.
"""

from jaxrls.core.support.checks import (
    Listed,
    as_array,
    as_floats,
    as_labels,
    as_lam,
    as_lams,
    by_names,
    check_finite,
    check_inputs,
    check_labels,
    check_matrix,
    check_ratio,
    check_real,
    check_row_numbers,
    check_scale,
    check_symmetric,
    check_targets,
    check_unmasked,
    check_weights,
    check_whole,
    column_names,
    labels_by_names,
    labels_of_rows,
    raise_for_wrong_column,
    target_names,
)
from jaxrls.core.support.device import (
    as_readable,
    auto,
    devices_of,
    is_concrete,
    is_symbolic,
    known_and,
    known_values,
    memory_bytes,
    numpy_or_jax,
    on_device,
    platform,
    require_values,
    shards_of,
    to_host,
    value_of,
    values_unknown,
    where_known,
    within_program,
)
from jaxrls.core.support.notices import in_words, printable, progress_bar, warn
from jaxrls.core.support.public_call import (
    check_index,
    check_order,
    hints_at_names,
    is_wide,
    public_call,
    with_index,
)
from jaxrls.core.support.pytrees import (
    REGISTRY,
    arrays_alone,
    is_registered,
    name_in_files,
    pytree,
    static,
)
from jaxrls.core.support.threads import ONE_THREAD
