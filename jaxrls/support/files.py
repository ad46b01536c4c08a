"""Write a file whole or not at all, and clear away what killed processes left half written."""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed, so that trying to is test enough
    fcntl = None  # type: ignore[assignment]

PREFIX = ".jaxrls-"
WEEK = 7 * 24 * 3600


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes when it does not.

    It lies in the same folder, so that the move is one step of the file system: a reader sees the old file or the new one. Files that
    killed processes left there are removed first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is not an ordinary file, so that it cannot be replaced by one")
    if not target.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {target.parent}")
    remove_orphans(target.parent)
    file = _open_locked(target.parent)
    temporary = Path(file.name)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows moves no open file; elsewhere its lock is held until it has its name
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        file.close()
        temporary.unlink(missing_ok=True)
        raise
    finally:
        file.close()


def remove_orphans(folder: Path) -> None:
    """Remove the temporary files of dead processes: those that nobody holds a lock on.

    The kernel drops a lock with the process that holds it, however it ends, and knows processes of other containers too. Whether a lock
    reaches other hosts that share the folder is up to its file system: what another kernel has written, and what was written before this one
    started, must also have been left alone for a week.
    """
    own = f"{PREFIX}{kernel_tag()}-"
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # held, gone, or another user's
                    _remove_unless_held(Path(entry.path), 0 if entry.name.startswith(own) and fcntl else WEEK)


def kernel_tag() -> str:
    """Eight digits that tell this running kernel from others, or this host where kernels have no name."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        name = socket.gethostname().encode()
    return f"{crc32(name):08x}"


def _remove_unless_held(path: Path, age: int) -> None:
    if time.time() - path.stat().st_mtime < age:
        return
    with open(path, "r+b") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # under the lock, so that who has just made it and waits for it learns that it is gone
            return
    path.unlink()


def _open_locked(folder: Path) -> BinaryIO:
    """A new file under a lock, named by kernel, process and chance."""
    while True:
        path = folder / f"{PREFIX}{kernel_tag()}-{os.getpid()}-{secrets.token_hex(8)}"
        file = open(path, "xb")  # noqa: SIM115
        try:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks, where nobody will get one to remove it either
                    fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():
                return file
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        file.close()  # taken for an orphan between being made and being locked
