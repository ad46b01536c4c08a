"""Arrays and a JSON header in one `.safetensors` file, written whole or not at all, and checked
when it is read.
"""

import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

KEY = "jaxrls"  # of the header in the file's metadata
VERSION = 1  # of the format
MOST = 50 * 2**20  # bytes of a header: safetensors reads none above 100 MB
# Arrays of other types are written as their bytes.
NATIVE = {f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)}
NATIVE |= {"bool", "float16", "float32", "float64"}


class Damaged(ValueError):
    """What is wrong with a file, in words that do not name it."""


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """A path to write to, in the folder of `path`, whose file takes the place of that one when the
    block ends well, and vanishes when it does not.

    The move is one step of the file system: a reader sees the old file or the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is not an ordinary file, so that it cannot be replaced by one")
    if not target.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {target.parent}")
    temporary = target.parent / f".jaxrls-{secrets.token_hex(8)}"
    try:
        temporary.touch(exist_ok=False)
        mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        temporary.chmod(mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_arrays(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], header: dict[str, Any]
) -> None:
    """Write arrays by name, and what JSON can hold, to a `.safetensors` file.

    Args:
        path: where, replaced whole or not at all.
        arrays: numbers of any type; an array in Fortran order comes back in C order.
        header: its entries stand in the file's metadata, as JSON under "jaxrls", beside the
            version of the format, the types that safetensors lacks and a checksum of all.

    Raises:
        ValueError: for a header above 50 MiB.
    """
    arrays = {
        name: np.asarray(array, array.dtype.newbyteorder("="), order="C")
        for name, array in arrays.items()
    }
    other = {
        name: [array.dtype.name, list(array.shape)]
        for name, array in arrays.items()
        if array.dtype.name not in NATIVE
    }
    arrays |= {name: arrays[name].reshape(-1).view(np.uint8) for name in other}
    content = {"header": header, "types": other}
    text = json.dumps({"version": VERSION, "checksum": checksum(content, arrays), **content})
    if len(text) > MOST:
        raise ValueError(f"{path} would have a header of {len(text)} bytes, above {MOST}")
    with replacing(path) as temporary:
        save_file(arrays, temporary, {KEY: text})


def read_arrays(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file of `write_arrays`.

    Takes as much memory as the file has bytes: safetensors compares the sizes that it declares
    with its own before it reads them.

    Raises:
        OSError: where the file cannot be opened.
        Damaged: for one that is truncated, changed, of another program or of a later version.
    """
    with open(path, "rb"):
        pass
    try:
        with safe_open(os.fspath(path), "np") as file:
            found = json.loads((file.metadata() or {})[KEY])
            if found["version"] > VERSION:
                raise Damaged(
                    f"its format is {found['version']}, and this jaxrls reads {VERSION}: upgrade it"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content = {name: found[name] for name in ("header", "types")}
        if found["checksum"] != checksum(content, arrays):
            raise Damaged("its checksum is wrong")
        for name, (dtype, shape) in content["types"].items():
            arrays[name] = arrays[name].view(jnp.dtype(dtype)).reshape(shape)
        return arrays, content["header"]
    except Damaged:
        raise
    except KeyError as error:
        raise Damaged(f"it has no {error}") from None
    except Exception as error:  # safetensors, JSON and NumPy raise a dozen kinds
        raise Damaged(" ".join(str(error).split())) from None


def checksum(content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> int:
    """CRC-32 of the JSON text and of the arrays' names, types, shapes and bytes."""
    found = zlib.crc32(json.dumps(content).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name} {array.dtype} {arrays[name].shape} ".encode(), found)
        found = zlib.crc32(array.reshape(-1).view(np.uint8).data, found)
    return found
