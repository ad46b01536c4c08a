"""Turn dates into numbers: days since 1970-01-01, and the part of the year that has passed."""

from typing import Any

import numpy as np

# How many units of time a day has, by pyarrow's names of the units.
OF_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def days_of_arrow(column: Any) -> np.ndarray:
    """Return the days since 1970-01-01, with fractions, of a pyarrow column of dates or times.

    A missing date is NaN. Times with a zone are taken in UTC.
    """
    in_days = column.type == "date32[day]"
    counts = column.cast("int32" if in_days else "int64").to_numpy(zero_copy_only=False)
    unit = getattr(column.type, "unit", "ms")  # date64 has no unit, and counts ms
    return counts.astype(np.float64) / (1 if in_days else OF_DAY[unit])


def days_of(dates: np.ndarray) -> np.ndarray:
    """Return the days since 1970-01-01, with fractions, of a NumPy array of dates.

    A missing date is NaN.
    """
    return (dates.astype("datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def words_of_days(days: np.ndarray) -> np.ndarray:
    """Return dates as text, from days since 1970-01-01.

    If some numbers have fractions, all texts include the time. NaN becomes an empty text.

    >>> words_of_days(np.array([0.0, 366.0, np.nan])).tolist()
    ['1970-01-01', '1971-01-02', '']
    """
    known = np.isfinite(days)
    whole = (days[known] % 1 == 0).all()
    unit, name = (1, "D") if whole else (OF_DAY["s"], "s")
    times = np.round(np.where(known, days, 0) * unit).astype(np.int64).astype(f"datetime64[{name}]")
    return np.where(known, np.datetime_as_string(times), "")


def yearly(days: np.ndarray) -> np.ndarray:
    """Return the cosine and sine of 2π times the part of the year that has passed.

    Days (n, k) become (n, 2k): cosine and sine of the first column, then of the second, and so on.
    In these numbers 31 December is next to 1 January. NaN stays NaN.

    >>> yearly(np.array([[0.0], [365 / 4]])).round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    known = np.isfinite(days)
    whole = np.where(known, np.floor(days), 0).astype(np.int64).astype("datetime64[D]")
    year = whole.astype("datetime64[Y]")
    start = year.astype("datetime64[D]").astype(np.int64)
    end = (year + np.timedelta64(1, "Y")).astype("datetime64[D]").astype(np.int64)
    angle = 2 * np.pi * np.where(known, (days - start) / (end - start), np.nan)
    return np.stack([np.cos(angle), np.sin(angle)], axis=2).reshape(len(days), -1)
