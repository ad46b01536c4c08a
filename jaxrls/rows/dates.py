"""Dates as numbers: days, and the part of the year that has passed."""

from typing import Any

import numpy as np

# Units of time in a day, by pyarrow's names.
OF_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def days_of_arrow(column: Any) -> np.ndarray:
    """Days since 1970-01-01, with their fractions, of a column of dates or times of pyarrow's; NaN
    where one is missing. Times with a zone are those of UTC.
    """
    in_days = column.type == "date32[day]"
    counts = column.cast("int32" if in_days else "int64").to_numpy(zero_copy_only=False)
    unit = getattr(column.type, "unit", "ms")  # which dates of 64 bits do not name
    return counts.astype(np.float64) / (1 if in_days else OF_DAY[unit])


def days_of(dates: np.ndarray) -> np.ndarray:
    """Days since 1970-01-01, with their fractions, of an array of dates; NaN where one is
    missing.
    """
    return (dates.astype("datetime64[us]") - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def words_of_days(days: np.ndarray) -> np.ndarray:
    """Dates as text, with the time where there is one, and empty where the number is NaN.

    >>> words_of_days(np.array([0.0, 366.0, np.nan])).tolist()
    ['1970-01-01', '1971-01-02', '']
    """
    known = np.isfinite(days)
    whole = (days[known] % 1 == 0).all()
    unit, name = (1, "D") if whole else (OF_DAY["s"], "s")
    times = np.round(np.where(known, days, 0) * unit).astype(np.int64).astype(f"datetime64[{name}]")
    return np.where(known, np.datetime_as_string(times), "")


def yearly(days: np.ndarray) -> np.ndarray:
    """Cosine and sine of 2π times the part of the year that has passed, (n, 2k) from days (n, k):
    31 December is next to 1 January.

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
