"""`jax.jit` for what public calls compute: quick to compile where rows are few, which are padded by
rows of weight 0, so that one program serves several numbers of them.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.problem.rows import Rows
from jaxrls.core.support import ONE_THREAD, is_concrete, platform

Function = TypeVar("Function", bound=Callable)
# With more rows the weights of a padded fit cost too much: 1.5 times its time at 1000 rows.
FEW = 512
# Up to so many rows a second thread gains little where the cores are idle, at best half of 0.1 s;
# where they are not, it costs 5 to 40 times the time.
FOR_ONE_THREAD = 1000
# Compilation is most of a first fit to few rows. Without LLVM's optimisations it takes three
# quarters of the time, and the program 1.4 times as long; with the older code generator, which JAX
# has up to 0.10, a quarter and 1.2 times.
QUICK = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)


def compiled(fn: Function, often: bool = False) -> Function:
    """`jax.jit(fn)`: positional arguments are traced, those by keyword alone are static. On a CPU
    calls with known values, at most FEW along every axis, are compiled with the options QUICK,
    unless the program runs so often in one call of a user that it pays to make it well; up to
    FOR_ONE_THREAD they run LAPACK on one thread. Rows that no program takes run `fn` themselves.

    >>> double = compiled(lambda x, *, times: 2 * times * x)
    >>> float(double(1.5, times=2))
    6.0
    """
    names = static_names(fn)
    whole = jax.jit(fn, static_argnames=names)
    quick = cache(lambda: jax.jit(fn, static_argnames=names, compiler_options=_quick_options()))

    @wraps(whole)
    def run(*args, **options):
        leaves = jax.tree.leaves(args)
        if outside := [leaf for leaf in leaves if isinstance(leaf, Rows)]:
            return outside[0].call(fn, args, options)
        if not _is_small(leaves, FOR_ONE_THREAD):
            return whole(*args, **options)
        with ONE_THREAD:
            if not often and _is_small(leaves, FEW):
                # What is closed over may be traced; no part of a program may have options.
                with suppress(jax.errors.UnexpectedTracerError), jax.core.eval_context():
                    return jax.block_until_ready(quick()(*args, **options))
            return jax.block_until_ready(whole(*args, **options))

    return run  # type: ignore[return-value]


def static_names(fn: Callable) -> list[str]:
    """The arguments that are passed by keyword alone."""
    parameters = inspect.signature(fn).parameters.values()
    return [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]


def _is_small(leaves: list, most: int) -> bool:
    """Whether values are known, outside of any program, and so many at most along every axis, on a
    CPU.
    """
    axes = [length for leaf in leaves for length in np.shape(leaf)]
    small = is_concrete(leaves) and max(axes, default=0) <= most and platform() == "cpu"
    return small and is_concrete(jnp.zeros(()))


@cache
def _quick_options() -> dict:
    """The first of QUICK that XLA takes: they are not part of its interface."""
    for options in QUICK:
        with suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 0, compiler_options=options)()
            return options
    return {}


def common_size(n: int) -> int:
    """The number of rows to which n are padded: one of eight."""
    return n + -n % 64 if n <= FEW else n


def padded(values, missing: int, mode: str = "constant"):
    """Arrays with `missing` more rows: 0, or with the mode "edge" the last one again. A NumPy array
    is copied also where none are missing: the caller may change it.
    """
    if not missing and isinstance(values, jax.Array):
        return values
    pad: Any = jnp.pad if isinstance(values, jax.Array) else np.pad
    return pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)], mode=mode)


def first(a, n: int) -> jax.Array:
    """The first n rows of an array of known values, by no program."""
    return jax.device_put(np.asarray(a)[:n])
