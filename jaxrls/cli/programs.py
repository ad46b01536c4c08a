"""Compiled programs kept for the next call, in the user's cache folder: most of the time of a short
call is compilation.

Only the command line keeps any; the library leaves JAX's settings as they are.
"""

import contextlib
import os
import platform

import jax

MOST_BYTES = 512 * 2**20
SHORTEST = 0.05  # seconds of compilation that are worth a file


def cache_folder() -> str:
    """`jaxrls` in `$XDG_CACHE_HOME`, by default `~/.cache`, with a folder for every machine:
    programs are made for its processor.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "jaxrls", platform.node() or "here")


def keep_programs(args) -> None:
    """Keep compiled programs unless told not to, where JAX was not told another place, and where
    there is one to write to.
    """
    folder = cache_folder()
    told = jax.config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
    if not args.cache or told or not os.path.isabs(folder):  # nobody knows whose home this is
        return
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        forget_oldest(folder)
    except OSError:
        return
    if os.access(folder, os.W_OK | os.X_OK):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def forget_oldest(folder: str, most: int = MOST_BYTES) -> None:
    """Remove the files that were made first, until the rest take no more than `most` bytes."""
    files = [entry for entry in os.scandir(folder) if entry.is_file()]
    for entry in sorted(files, key=lambda entry: entry.stat().st_mtime, reverse=True):
        most -= entry.stat().st_size
        if most < 0:
            with contextlib.suppress(OSError):  # another process was first
                os.remove(entry)
