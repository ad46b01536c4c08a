"""Whether the first line of a table holds names or numbers: decided by what stands below it in the whole file.

Names that are text stand above columns of numbers. Names that are numbers (`0,1,2`, which pandas writes for columns without names; years,
wavelengths) are whole numbers in rising order, above columns that hold none, or they count the columns from 0.
"""

from collections.abc import Iterable, Iterator

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
FEW = 3  # columns, from which on a line that counts them from 0 is no accident
DIGITS = 19  # that a whole number has less than, as a name or in a table


def is_number(cell: str) -> bool:
    """Whether a cell can be read as a number, NaN and infinity among them."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_missing(cell: str) -> bool:
    """Whether a cell holds what stands for nothing."""
    return cell.strip().lower() in MISSING


def is_header(first: list[str], rows: Iterable[list[str]]) -> bool:
    """Whether the first line of a table holds names, by the rows below it, of which it reads as many as it needs."""
    names = [cell.strip() for cell in first if not is_missing(cell)]
    numbers = [name for name in names if is_number(name)]
    if not all(map(_is_whole, numbers)) or any(number.startswith("-") for number in numbers):
        return False
    if not numbers and len(names) == len(first):
        return True
    if len(numbers) < len(names):
        return _text_outweighs(first, rows)
    unnamed = len(first) - len(numbers)
    if unnamed > 1 or unnamed == 1 and not is_missing(first[0]):  # pandas leaves the name of the index out, and no other
        return False
    return _numbers_are_names(list(map(int, numbers)), (row[unnamed:] for row in rows))


def _numbers_are_names(numbers: list[int], rows: Iterator[list[str]]) -> bool:
    """Whether a line of whole numbers alone holds names: it counts the columns, or rises where all below are fractions."""
    if len(numbers) >= FEW and numbers == list(range(len(numbers))):
        below = next(rows, [])
        counts_on = all(map(_is_whole, below)) and len({int(b) - a for a, b in zip(numbers, below, strict=False)}) == 1
        return not counts_on
    if len(numbers) < 2 or any(a >= b for a, b in zip(numbers, numbers[1:], strict=False)):
        return False
    some = False
    for row in rows:
        some = True
        if any(map(_is_whole, row)):
            return False
    return some


def _text_outweighs(first: list[str], rows: Iterable[list[str]]) -> bool:
    """Whether in a mixed line more cells are text above numbers than are what may stand below them as well."""
    width = len(first)
    numbers, whole, again, total = [0] * width, [False] * width, [False] * width, 0
    for row in rows:
        total += 1
        for j, cell in enumerate(row[:width]):
            if is_number(cell):
                numbers[j] += 1
                whole[j] = whole[j] or _is_whole(cell)
            elif cell.strip() == first[j].strip():
                again[j] = True
    names = [j for j, cell in enumerate(first) if not is_missing(cell) and not is_number(cell)]
    numbered = [int(cell) for cell in first if is_number(cell) and not is_missing(cell)]
    data = [j for j in names if again[j]]
    if len(numbered) < 2 or numbered != list(range(len(numbered))):  # as pandas calls columns without names, one among them named
        data += [j for j, cell in enumerate(first) if is_number(cell) and whole[j]]
    return sum(2 * numbers[j] >= total > 0 and not again[j] for j in names) > len(data)


def _is_whole(cell: str) -> bool:
    digits = cell.strip().removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < DIGITS
