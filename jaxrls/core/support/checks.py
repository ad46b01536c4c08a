"""Checks of arguments. Their errors say what must hold, what was found, and what to do.

Shapes and dtypes are always checked. Values are checked only if arrays have values, which they do
not inside `jax.jit`. The functions that check values are decorated with `where_known`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.support.device import on_device, value_of, where_known

# The types that are accepted besides JAX arrays.
Listed = np.ndarray | Sequence[Any]
# For each argument in which text is found: the remedy that the error names.
INSTEAD = {
    "Y": ": for classes take encode(labels), or RLSClassifier",
    "fixed_effects": ": give levels(labels) for an intercept of each group, or indicators",
    "X": ": give indicators of text, as pandas.get_dummies does; for the kernel Levels number the "
    "labels by one dictionary for old and new rows, numbers = {label: i for i, label in "
    "enumerate(sorted(set(labels)))}, or give fixed_effects=levels(labels); stream reads files",
    "lams": ": give numbers such as [0.1, 1.0]",
}
# The remedy that the error names for dictionaries.
TABLE = ": give lists of numbers, or a data frame, as pandas.DataFrame makes of dictionaries"
# The remedy that the error names for dates.
DAYS = ": give days, such as (dates - dates.min()) / np.timedelta64(1, 'D'), or parts of the year"
# For each dtype: the largest allowed ratio of the largest weight to the smallest positive one.
MOST_RATIO = {"float32": 1e6, "float64": 1e12}
# Kinds of real numbers.
REAL = jnp.bool_, jnp.integer, jnp.floating


def check_unmasked(name: str, value: Any) -> None:
    """Raise for a masked array with masked values. The numbers under a mask are not data."""
    if masked := int(np.ma.getmaskarray(value).sum()) if np.ma.isMaskedArray(value) else 0:
        raise ValueError(
            f"{name} is a masked array with {masked} masked value{'s' if masked > 1 else ''}: "
            "fill in what is masked first, as with .filled(...), or drop it"
        )


def as_floats(name: str, value: Any, dtype: Any = None) -> Any:
    """Return `value` as an array of real floating-point numbers.

    JAX arrays stay on their device. Everything else becomes a NumPy array.

    Args:
        name: the name of the argument in errors.
        value: anything that NumPy can read as numbers.
        dtype: the dtype of the result. None keeps float32 and float64, and converts other numbers
            to float64, or for JAX arrays to JAX's default float.
    """
    if not isinstance(value, jax.Array):
        check_unmasked(name, value)
        if hasattr(value, "tocsr"):
            raise ValueError(f"{name} must be dense, and is sparse: give {name}.toarray()")
        original = value
        try:
            value = np.asarray(original)
            if value.dtype.kind not in "biufcVO":
                raise ValueError(f"it holds text or dates, of dtype {value.dtype}")
            value = _in_float64(value) if value.dtype.kind not in "fc" else value
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise_for_wrong_column(name, original)
            dates = getattr(value, "dtype", np.dtype(float)).kind in "mM"
            instead = DAYS if dates else INSTEAD.get(name.partition("[")[0], "")
            first = original[0] if isinstance(original, list | tuple) else original
            if isinstance(first, dict):
                instead = TABLE
            raise ValueError(
                f"{name} must hold real numbers, and could not be read as such: {error}"
                f"{'' if isinstance(error, RuntimeError) else instead}"
            ) from None
    if not any(jnp.issubdtype(value.dtype, kind) for kind in REAL):
        raise ValueError(
            f"{name} must be real, in float32 or float64, and has dtype {value.dtype}: convert it"
        )
    if dtype is None:
        native = value.dtype.newbyteorder("=")
        plain = float if isinstance(value, np.ndarray) else jnp.result_type(float)
        dtype = native if native in (np.float32, np.float64) else plain
    return value if value.dtype == dtype else value.astype(dtype)


def raise_for_wrong_column(name: str, table: Any) -> None:
    """Raise an error that names the first column of `table` that cannot be read as numbers.

    Return if `table` has no columns with names.
    """
    if hasattr(table, "items"):
        for column, part in table.items():
            as_floats(f"{name}[{column!r}]", np.asarray(part))


def column_names(X: Any) -> tuple:
    """Return the names of the columns of a data frame, a table or a stream.

    Return () for anything else, and if two columns have the same name.
    """
    names = _names_as_given(X)
    return names if len({*names}) == len(names) else ()


def target_names(X: Any, Y: Any) -> tuple:
    """Return the names of the labels of a call: those of Y, or else those that its rows bring."""
    return getattr(X, "target_names", ()) if Y is None else column_names(Y)


def _names_as_given(X: Any) -> tuple:
    """Return the names of columns, which several columns may share; () if X has no names."""
    # pyarrow tables and streams have `column_names`, data frames have `columns`. Those of sparse
    # rows are numbers, in an array.
    names = getattr(X, "column_names", getattr(X, "columns", ()))
    if not hasattr(X, "shape") or callable(names) or isinstance(names, np.ndarray | jax.Array):
        return ()
    return tuple(map(_plain_name, names.tolist() if hasattr(names, "tolist") else names))


def _plain_name(name: Any) -> Any:
    """Return the name of a column as text, a number or a tuple of these, as files hold it.

    Dates and other names become text, a date at midnight without the time.
    """
    name = name.item() if isinstance(name, np.generic) else name
    if isinstance(name, tuple):
        return tuple(map(_plain_name, name))
    is_number = isinstance(name, int | float) and name == name
    return name if is_number or isinstance(name, str) else str(name).removesuffix(" 00:00:00")


def by_names(name: str, X: Any, names: tuple) -> Any:
    """Return a data frame or table with the columns of these names, in this order.

    X without names of columns is returned unchanged. Raise if a name is missing, or if two columns
    have it.
    """
    columns = _names_as_given(X)
    if not (names and columns) or columns == names:
        return X
    counts = Counter(columns)
    for column in names:
        if counts[column] > 1:
            raise ValueError(
                f"{name} has {counts[column]} columns {column!r}, and one was fitted: rename or "
                "drop the others"
            )
    if missing := [column for column in names if column not in counts]:
        listed = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise ValueError(
            f"{name} lacks {len(missing)} of the {len(names)} columns that were fitted, {listed}: "
            "give a frame that has them, or an array of all columns in the order of the fit"
        )
    if hasattr(X, "iloc"):  # by place, as names may be other keys than the frame has
        places = {column: j for j, column in enumerate(columns)}
        return X.iloc[:, [places[column] for column in names]]
    return X.select([*names]) if hasattr(X, "column_names") else X[[*names]]


def labels_by_names(Y: Any, names: tuple) -> Any:
    """Return a data frame of labels with its columns in the order of these names, if it has them.

    Labels without names, or with other ones, are returned unchanged, as they go by place.
    """
    found = column_names(Y)
    return by_names("Y", Y, names) if set(found) == set(names) else Y


def labels_of_rows(rows: Any, names: tuple) -> Any:
    """Return the labels that rows bring, with columns in the order of these names, if theirs are.

    Labels without names, or with other ones, are returned unchanged, as they go by place.
    """
    found = target_names(rows, None)
    if found == names or set(found) != set(names):
        return rows.labels
    return rows.labels[:, np.array([found.index(name) for name in names])]


def _in_float64(value: np.ndarray) -> np.ndarray:
    """Return numbers of any kind as float64, with `pandas.NA` replaced by NaN."""
    if value.dtype.kind == "O":
        known = [np.nan if type(part).__name__ == "NAType" else part for part in value.flat]
        value = np.fromiter(known, object, value.size).reshape(value.shape)
    return value.astype(np.float64)


def as_array(name: str, value: Any, dtype: Any = None) -> jax.Array:
    """Return a list, a NumPy array or a JAX array as a JAX array of real numbers."""
    return on_device(as_floats(name, value, dtype))


def _ends(value: Any) -> Any:
    """Return the smallest and the largest value of an array."""
    return value_of(lambda xp, values: xp.stack([values.min(), values.max()]), value)


@where_known
def check_finite(name: str, value: Any) -> None:
    """Raise if an array holds NaN or infinity.

    Anything but an array is passed over. Sparse rows are checked when they are read.
    """
    if not isinstance(value, np.ndarray | jax.Array):
        return
    if not value_of(lambda xp, value: xp.isfinite(value).all(), value):
        bad = np.argwhere(~np.isfinite(np.asarray(value)))
        raise ValueError(
            f"{name} holds {len(bad)} values that are NaN or infinite, the first at index "
            f"{tuple(bad[0].tolist())}: drop them, or fill them in first"
        )


@where_known
def check_inputs(name: str, X: Any, columns: Any = None) -> None:
    """Raise for numbers that are not finite, or so large that sums of their squares overflow.

    Args:
        name: the name of the argument in errors.
        X: an array (n, d), or the stored entries (k,) of sparse rows.
        columns: the column of each stored entry of sparse rows; None for an array.
    """
    check_finite(name, X)
    if not X.size:
        return
    most = max(map(abs, _ends(X)))
    if most > (float(np.finfo(X.dtype).max) / X.size) ** 0.5:
        place = int(np.abs(X).argmax())
        column = place % X[0].size if columns is None else columns[place]
        raise ValueError(
            f"{name} holds {most:.3g} in column {column}, and sums of squares overflow {X.dtype}: "
            "divide by a scale"
        )


def check_labels(name: str, Y: Any) -> None:
    """Raise for labels that are not finite, or whose squares leave the range of their dtype.

    The largest |y| of a target must be 0 or at least √tiny/eps, and no |y| may exceed √(max/nt).
    Labels without values, inside `jax.jit`, are not checked.
    """
    check_inputs(name, Y)
    check_scale(name, Y, Y.dtype)


@where_known
def check_scale(name: str, Y: Any, dtype: Any) -> None:
    """Raise if the labels of some target are so small that their squares underflow in a dtype."""
    if not Y.size:
        return
    limits = np.finfo(dtype)
    most = value_of(lambda xp, values: xp.atleast_1d(xp.abs(values).max(axis=0)), Y)
    small = (most > 0) & (most < float(limits.tiny) ** 0.5 / float(limits.eps))
    if small.any():
        place = int(small.argmax())
        column = f" in column {place}" if len(most) > 1 else ""
        raise ValueError(
            f"{name} holds {most[place]:.3g} at most{column}, and squares underflow {dtype}: "
            "multiply by a scale"
        )


def check_matrix(name: str, X: Any) -> None:
    """Raise unless `X` is a matrix with at least one row and one column."""
    if X.ndim != 2:
        hint = (
            f"use {name}[None] for one row, {name}[:, None] for one column"
            if X.ndim == 1
            else "give one row per sample"
        )
        raise ValueError(f"{name} must have shape (n, d), and has shape {X.shape}: {hint}")
    if 0 in X.shape:
        raise ValueError(
            f"{name} is empty, with shape {X.shape}: give at least one row and one column"
        )


def check_targets(name: str, Y: Any, n: int | None = None) -> None:
    """Raise unless Y has shape (n,) or (n, t). With n None, any number of rows is allowed."""
    if Y.ndim not in (1, 2) or 0 in Y.shape or n not in (None, Y.shape[0]):
        rows = "n" if n is None else n
        raise ValueError(
            f"{name} must have shape ({rows},) or ({rows}, t), one row per row of X, and has shape "
            f"{Y.shape}"
        )


def check_weights(weights: Any, n: int, name: str = "weights", of: str = "row") -> None:
    """Raise unless weights have shape (n,), and are finite, non-negative and not all zero.

    Only the shape is checked if the weights have no values, inside `jax.jit`.

    Args:
        weights: the weights.
        n: how many weights there must be.
        name: the name of the argument in errors.
        of: what each weight belongs to, such as "row", in errors.
    """
    if weights.shape != (n,):
        raise ValueError(
            f"{name} must have shape ({n},), one per {of}, and has shape {weights.shape}"
        )
    _check_signs(weights, name, of)


@where_known
def _check_signs(weights: Any, name: str, of: str) -> None:
    """Raise for weights that are not finite, for negative ones, and if all are zero."""
    check_finite(name, weights)
    least, most = _ends(weights)
    if least < 0:
        raise ValueError(
            f"{name} must not be negative, and the smallest is {least}: give 0 to leave a {of} out"
        )
    if most == 0:
        raise ValueError(f"{name} are all zero: give some {of} a positive weight")


@where_known
def check_ratio(weights: Any) -> None:
    """Raise if the largest weight is too many times the smallest positive one for their dtype."""
    if weights is None:
        return
    least = value_of(lambda xp, v: xp.where(v > 0, v, xp.inf).min(), weights)
    most = value_of(lambda xp, v: v.max(), weights)
    limit = MOST_RATIO[str(weights.dtype)]
    if most > limit * least:
        raise ValueError(
            f"weights above 0 go from {least:.3g} to {most:.3g}, and {weights.dtype} takes a ratio "
            f"of {limit:.0e}: raise the smallest, or make them 0"
        )


def check_real(name: str, value: Any) -> None:
    """Raise unless `value`, such as a kernel's parameter, is a real number or an array of them."""
    for part in jax.tree.leaves(value, is_leaf=lambda part: part is None):
        check_unmasked(name, part)
        dtype = part.dtype if isinstance(part, jax.Array) else np.asarray(part).dtype
        if not any(jnp.issubdtype(dtype, kind) for kind in REAL):
            is_text = dtype.kind == "U"
            remedy = ": in fit and tune a width may be median, or a list" if is_text else ""
            raise ValueError(
                f"{name} must be a real number, or an array of them, and has dtype {dtype}{remedy}"
            )


def as_labels(name: str, values: Any) -> np.ndarray:
    """Return labels (n,) as a NumPy array, such as numbers, strings or dates.

    Raise if some are missing, or if they cannot be sorted.
    """
    check_unmasked(name, values)
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"{name} must have shape (n,), one label per row, and has shape {labels.shape}"
        )
    if labels.dtype.kind in "biufcmM":
        missing = labels != labels
    else:  # the texts that NumPy makes of empty labels, NaN, NaT and pandas.NA
        none = ("", "b''", "nan", "NaT", "<NA>")
        missing = np.array([label is None or str(label) in none for label in labels.tolist()])
    if missing.any():
        raise ValueError(
            f"{name} must have none missing, and holds {missing.sum()} that are NaN, NaT, None or "
            f"empty, the first at index {missing.argmax()}: drop those rows, or give them a label "
            "of their own"
        )
    try:
        np.unique(labels)
    except TypeError as error:
        raise ValueError(f"{name} must be of one kind that can be sorted: {error}") from None
    return labels


def check_row_numbers(numbers: jax.Array | np.ndarray, n: int) -> None:
    """Raise unless `numbers` (m,) are whole numbers from 0 to n − 1.

    The range is not checked if the numbers have no values, inside `jax.jit`.
    """
    if not jnp.issubdtype(numbers.dtype, jnp.integer) or numbers.ndim != 1:
        raise ValueError(
            f"row numbers must be whole numbers (m,), and have dtype {numbers.dtype} and shape "
            f"{numbers.shape}"
        )
    _check_range(numbers, n)


@where_known
def _check_range(numbers: Any, n: int) -> None:
    """Raise for row numbers below 0 or above n − 1."""
    if not numbers.size:
        return
    low, high = _ends(numbers)
    if low < 0 or high >= n:
        wrong = f"{low}: negative ones do not count from the end" if low < 0 else high
        raise ValueError(f"row numbers must be rows of X, 0 to {n - 1}, and include {wrong}")


def check_whole(name: str, value: Any, most: int | None = None) -> None:
    """Raise unless `value` is a whole number of at least 1, and at most `most` if that is given."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1 or most is not None and value > most:
        up = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name} must be a whole number of at least 1{up}, and is {value!r}")


def as_lams(lams: Any, dtype: Any, targets: tuple = (), *, zero: bool = False) -> jax.Array:
    """Return λ as an array (L,), or (L, t) with a column for each target, checked.

    Args:
        lams: the λ.
        dtype: the dtype of the result.
        targets: `(t,)`, which allows the shape (L, t); () if all targets share λ.
        zero: whether a λ of 0 is allowed. It then stands for the floor of a factor.
    """
    given = lams
    lams = as_array("lams", given, dtype)
    _check_underflow("lams", given, lams)
    if not lams.ndim or lams.shape[1:] not in ((), targets):
        or_more = f", or (L, {targets[0]}) with those of each target" if targets else ""
        raise ValueError(
            f"lams must have shape (L,){or_more}, and has shape {lams.shape}: one λ is lams=[0.1]"
        )
    check_lams(lams, "lams", zero)
    return lams


def as_lam(lam: Any, dtype: Any, targets: tuple = (), *, zero: bool = False) -> jax.Array:
    """Return one λ as an array (), or (t,) with one λ for each target, checked.

    The arguments are those of `as_lams`.
    """
    given = lam
    lam = as_array("lam", given, dtype)
    _check_underflow("lam", given, lam)
    if lam.shape not in ((), targets):
        or_more = ", or one for each target" if targets else ""
        raise ValueError(f"lam must be one number{or_more}, and has shape {lam.shape}")
    check_lams(lam, "lam", zero)
    return lam


def check_lams(lams: jax.Array | np.ndarray, name: str, zero: bool) -> None:
    """Raise unless every λ is finite and positive, or 0 if `zero` allows it.

    λ without values, inside `jax.jit`, are only counted: at least one must be given.
    """
    if lams.size == 0:
        raise ValueError(
            f"{name} is empty: give at least one λ, or leave it out for the grid from the spectrum"
        )
    _check_positive(lams, name, zero)


@where_known
def _check_underflow(name: str, given: Any, lams: Any) -> None:
    """Raise for λ above 0 that are 0 in the dtype of the data."""
    given = np.asarray(given)
    if (np.asarray(lams) == 0)[given > 0].any():
        least = given[given > 0].min()
        raise ValueError(f"{name} holds {least}, which is 0 in {lams.dtype}: give float64 data")


@where_known
def _check_positive(lams: Any, name: str, zero: bool) -> None:
    """Raise unless every λ is finite and positive, or 0 if `zero` allows it."""
    check_finite(name, lams)
    least, _ = _ends(lams)
    if least < 0 or least == 0 and not zero:
        floor = ", or 0 for the floor of the factor" if zero else ""
        raise ValueError(f"{name} must be positive{floor}, and the smallest is {least}")


def check_symmetric(name: str, K: jax.Array | np.ndarray) -> None:
    """Raise unless K is square, finite and symmetric to rounding.

    Only the shape is checked if K has no values, inside `jax.jit`.
    """
    if K.ndim != 2 or K.shape != K.shape[::-1]:
        raise ValueError(f"{name} must be square, (n, n), and has shape {K.shape}")
    _check_mirror_images(name, K)


@where_known
def _check_mirror_images(name: str, K: Any) -> None:
    """Raise unless the entries of K are finite, and equal those of Kᵀ to rounding."""
    check_finite(name, K)
    values = np.asarray(K)
    gap = np.abs(values - values.T).max()
    most = np.abs(values).max()
    if gap > 100 * np.finfo(values.dtype).eps * most * len(values) ** 0.5:
        raise ValueError(
            f"{name} is not symmetric: entries differ from their mirror image by up to {gap:.2g}: "
            "use (K + K.T) / 2 if that is meant"
        )
