"""NumPy archives read as if someone had tampered with them: every member to its end, and nothing allocated that is not there.

`numpy.load` stops at the last number that a member's header declares, before zipfile compares the checksum, and it believes the header
when it allocates. Here a member is unpacked first, in pieces and within a budget, its checksum compared, and only then its header read,
whose shape must take exactly the bytes that follow it.
"""

import ast
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from jaxrls.io.packed import PIECE, Budget

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
KINDS = "biufcUSmM"  # numbers, text and times; objects would be a program, and records are no table
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes


class Damaged(Exception):
    """What is wrong with an archive, in words."""


class Archive(Mapping[str, np.ndarray]):
    """Arrays by name, each read and checked when it is asked for, and kept."""

    def __init__(self, archive: zipfile.ZipFile, budget: Budget):
        self.archive, self.budget = archive, budget
        self.members = {info.filename.removesuffix(SUFFIX): info for info in archive.infolist()}
        self.known: dict[str, np.ndarray] = {}
        if len(self.members) < len(archive.infolist()):
            raise Damaged("two of its members have one name")

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.known:
            self.known[name] = _parse(name, _unpack(self.archive, self.members[name], self.budget))
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name) -> bool:
        return name in self.members


@contextmanager
def open_archive(path, max_inflation: float | int) -> Iterator[Archive]:
    """The arrays of an NPZ file. **Raises** `OSError` where it cannot be opened, `Damaged` for all that is wrong with it inside the block,
    and `Refused` where it would become too large."""
    budget = Budget(path, max_inflation)
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # struct.error, UnicodeDecodeError and what else comes of reading noise
            raise Damaged(str(error)) from None
        with archive:
            yield Archive(archive, budget)


def write_archive(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `numpy.savez` does, whatever their names: it takes `file` for its own argument."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name + SUFFIX), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> bytearray:
    """A member's bytes, its checksum compared."""
    name = info.filename
    if info.compress_type not in COMPRESSIONS:
        raise Damaged(f"{name} is compressed in a way that NumPy does not write")
    budget.take(info.file_size)
    data = bytearray()
    try:
        with archive.open(info) as member:
            while piece := member.read(
                PIECE
            ):  # to its end, where zipfile compares the checksum; in pieces, as it may hold more than it says
                data += piece
    except MemoryError:
        raise Damaged(f"{name} takes {info.file_size} bytes, which do not fit into memory") from None
    except Exception as error:  # of a password, a method, a sum or an offset that is not what it should be
        raise Damaged(f"{name} cannot be unpacked: {error}") from None
    if len(data) != info.file_size:
        raise Damaged(f"{name} has {len(data)} bytes, and should have {info.file_size}")
    return data


def _parse(name: str, data: bytearray) -> np.ndarray:
    """The array that a member holds."""
    try:
        dtype, fortran, shape, start = _parse_header(data)
    except Exception as error:  # a header is a Python expression: its parser raises a dozen kinds
        raise Damaged(f"{name} is not an array of numbers or text that NumPy wrote: {error}") from None
    declared, present = math.prod(shape) * dtype.itemsize, len(data) - start
    if declared != present:
        raise Damaged(f"{name} has shape {shape} of {dtype}, which is {declared} bytes, and holds {present}")
    try:
        flat: np.ndarray = np.frombuffer(data, dtype, offset=start) if present else np.empty(0, dtype)
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # (0, 10**30) is 0 bytes too
        raise Damaged(f"{name} has shape {shape}: {error}") from None


def _parse_header(data: bytearray) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    """Dtype, order, shape, and where the numbers start."""
    width = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}.get(bytes(data[6:8]))
    if width is None or not data.startswith(MAGIC):
        raise ValueError("it does not start as one")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if start > min(len(data), 10**4):
        raise ValueError("its header does not end")
    header: dict[str, Any] = ast.literal_eval(data[8 + width : start].decode("utf-8" if data[6] == 3 else "latin-1").strip())
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header is not one")
    if not isinstance(header["descr"], str):
        raise ValueError(f"it holds records of {header['descr']}: save their columns")
    dtype, fortran, shape = np.dtype(header["descr"]), header["fortran_order"], header["shape"]
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read: save numbers or text")
    if dtype.kind not in KINDS or not dtype.itemsize:
        raise ValueError(f"its dtype is {header['descr']}")
    if type(fortran) is not bool or type(shape) is not tuple or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"its shape is {shape}")
    return dtype, fortran, shape, start
