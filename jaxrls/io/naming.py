"""Columns of a table by name or by number: of the one that is fitted, and the same ones in another file."""

import operator
from collections.abc import Mapping
from typing import Any

LISTED = 20  # column names in an error message, at most


def find_column(path, names: list[str] | None, width: int, name, what: str) -> int:
    """The position of a column given by name or by number, as text or not."""
    if names and name in names:
        return names.index(name)
    try:
        index = int(name) if isinstance(name, str) else operator.index(name)
    except (ValueError, TypeError):
        index = width
    if -width <= index < width:
        return index % width
    raise ValueError(f"{path} has no column {name!r} for the {what}: its columns are {list_columns(names, width)}")


def list_columns(names: list[str] | None, width: int) -> str:
    """The columns, in words."""
    if not names:
        return f"0 to {width - 1}, without names"
    return ", ".join(names[:LISTED]) + (f" and {width - LISTED} more" if width > LISTED else "")


def match_columns(path, names: list[str] | None, width: int, layout: Mapping[str, Any]) -> tuple[list[int], int | None]:
    """Where a file has the inputs that a model was fitted on, and its target, or None.

    By name where both have names, else by position: a file as wide as the first one has its target where that one had it, any other holds
    inputs alone. Other columns are ignored.
    """
    wanted, target = layout.get("inputs"), layout.get("target")
    if names and wanted:
        absent = sorted({*wanted} - {*names})
        if absent:
            raise ValueError(
                f"{path} lacks columns that the model was fitted on: {', '.join(absent[:LISTED])}; its columns are {list_columns(names, width)}"
            )
        places = {name: j for j, name in enumerate(names)}
        return [places[name] for name in wanted], places.get(target)  # type: ignore[arg-type]
    if width == layout.get("width"):
        return layout["positions"], find_column(path, names, width, target, "target") if isinstance(target, int) else None
    return list(range(width)), None
