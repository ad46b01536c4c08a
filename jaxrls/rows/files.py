"""Write and read files of the package: arrays and a JSON header in one `.safetensors` file.

A file is written whole or not at all, and checked when it is read.
"""

import json
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

KEY = "jaxrls"  # the name of the header in the file's metadata
VERSION = 5  # of the format; files hold fields of classes by name, so a rename makes another
MOST = 50 * 2**20  # the most bytes of a header: safetensors reads no header above 100 MB
TYPES = "biuf"  # the kinds of arrays that are written, by NumPy's letters


@contextmanager
def reading(path: str | os.PathLike, what: str = "cannot be read") -> Iterator[None]:
    """Turn any error inside the block into a `ValueError` of one line that names the file.

    Parsers raise a dozen kinds of errors. An error of opening the file, such as
    `FileNotFoundError`, is raised unchanged.
    """
    try:
        with open(os.fspath(path), "rb"):
            pass
        yield
    except Exception as error:
        if getattr(error, "filename", None):
            raise
        cause = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        cause = " ".join(cause.split()) or type(error).__name__
        raise ValueError(f"{path} {what}: {cause}") from None


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`. Its file then replaces the file at `path`.

    It is replaced when the block ends without an error. After an error the temporary file is
    deleted. The move is one step of the file system: a reader gets the old file or the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    target, temporary = target_and_temporary(path)
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def target_and_temporary(path: str | os.PathLike) -> tuple[Path, Path]:
    """Return the file that a path leads to, and the path of a new file in its folder.

    Symbolic links are followed. Raise if the path is not an ordinary file in a folder that exists.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() or not target.parent.is_dir():
        raise ValueError(f"{path} is not an ordinary file in a folder that exists: name another")
    return target, target.parent / f".jaxrls-{secrets.token_hex(8)}"


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise if `replacing` could not write to this path.

    To find out, an empty file is made in the folder and removed.
    """
    try:
        target, temporary = target_and_temporary(path)
        with suppress(FileNotFoundError):
            target.stat()  # raises if the name is too long
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}): name another file"
        ) from None


def write_arrays(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], header: dict[str, Any]
) -> None:
    """Write named arrays, and a header that JSON can hold, to a `.safetensors` file.

    Args:
        path: where to write. An existing file is replaced whole or not at all.
        arrays: arrays of real numbers. An array in Fortran order is read back in C order.
        header: what is written to the file's metadata, as JSON under "jaxrls", together with the
            version of the format and a checksum of header and arrays.

    Raises:
        ValueError: for a header above 50 MiB, and for arrays that do not hold real numbers.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in TYPES or array.dtype.itemsize > 8:
            raise ValueError(
                f"{name} is an array of dtype {array.dtype}, and must be real: convert it"
            )
    content = {"version": VERSION, "header": header}
    text = json.dumps({"checksum": checksum(content, arrays), **content})
    if len(text) > MOST:
        raise ValueError(
            f"{path} would have a header of {len(text)} bytes, above {MOST}: make extra smaller"
        )
    with replacing(path) as temporary:
        save_file(arrays, temporary, {KEY: text})


def read_arrays(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the header of a file that `write_arrays` made. Call it inside
    `reading`.

    It takes as much memory as the file has bytes: safetensors compares the sizes that the file
    declares with its true size before it reads anything.

    For a file that is truncated, changed or made by another program it raises whatever safetensors,
    JSON and NumPy raise. For another version of the format it raises `ValueError`.
    """
    with safe_open(path, "np") as file:
        content = json.loads((file.metadata() or {})[KEY])
        version = content["version"]
        if type(version) is not int:
            raise ValueError(f"its version is {version!r}, and must be a whole number")
        if version != VERSION:
            remedy = "fit and save again" if version < VERSION else "upgrade jaxrls"
            raise ValueError(f"its format is {version}, and this jaxrls reads {VERSION}: {remedy}")
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if content.pop("checksum") != checksum(content, arrays):
        raise ValueError("its checksum is wrong")
    return arrays, content["header"]


def checksum(content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> int:
    """Return the CRC-32 of the JSON text and of the arrays' names, types, shapes and bytes."""
    crc = zlib.crc32(json.dumps(content).encode())
    for name in sorted(arrays):
        array = arrays[name]
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape} ".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return crc
