"""Compiles the functions that public calls run, by `compiled` in place of `jax.jit`.

Programs for few rows are compiled quickly. Programs for small matrices run LAPACK on one thread.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, wraps
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrls.core.data.padding import PADDED_UP_TO
from jaxrls.core.data.rows import Rows
from jaxrls.core.support import ONE_THREAD, platform, within_program

Function = TypeVar("Function", bound=Callable)
# Up to this many rows LAPACK has one thread. Measured on two cores, the time with one thread is
# that with two threads times
#     1.3 (600 rows) or 1.15 (1000 rows) if the cores are otherwise idle;
#     0.63 (600 rows) or 0.81 (1000 rows) if another process uses one core.
# The mean of both cases is below 1. With more load from other processes, two threads take many
# times as long as one.
FOR_ONE_THREAD = 1000
# The options of XLA for quick compilation, by platform.
# On CPUs most of the time of a first fit to few rows is compilation. Without LLVM's optimisations,
# compilation takes 3/4 of the time, and the program runs 1.4 times as long. With the older code
# generator, which JAX has up to 0.10, these are 1/4 and 1.2 times.
# On GPUs XLA tries several algorithms for every product. On an H200 this took 25 of the 29 seconds
# of a first fit in float32.
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"xla_backend_optimization_level": 0},
    "gpu": {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
}
if jax.__version_info__ < (0, 11):
    OPTIONS["cpu"]["xla_cpu_use_fusion_emitters"] = False
# The newest JAX whose XLA is known to accept OPTIONS, which are not part of JAX's interface.
NEWEST_KNOWN = (0, 12)


def compiled(fn: Function, often: bool = False) -> Function:
    """Return `jax.jit(fn)`, with options of XLA and LAPACK that depend on the arguments.

    Positional arguments are traced. Arguments that can only be passed by keyword are static.

    If the arguments have values now:

    * On a GPU, the program is compiled by the platform's OPTIONS, which is quick.
    * On a CPU, the same holds if no axis of an argument is longer than PADDED_UP_TO, unless `often`
      is True. A program that runs often in one public call repays full compilation.
    * On a CPU, LAPACK has one thread if no axis is longer than FOR_ONE_THREAD.

    `Rows` that are not traceable run `fn` themselves, by `Rows.call`.

    >>> double = compiled(lambda x, *, times: 2 * times * x)
    >>> float(double(1.5, times=2))
    6.0
    """
    names = static_names(fn)
    whole = jax.jit(fn, static_argnames=names)
    quick = cache(
        lambda where: jax.jit(fn, static_argnames=names, compiler_options=_options_of(where))
    )

    @wraps(whole)
    def run(*args, **options):
        leaves = jax.tree.leaves(args)
        for leaf in leaves:
            if isinstance(leaf, Rows):  # not a pytree, so that `jax.jit` cannot take it
                return leaf.call(fn, args, options)
        if within_program(leaves):
            return whole(*args, **options)
        program: Callable = whole
        if _compiles_quickly(leaves, often):
            program = partial(_quick, quick(platform()), whole)
        if _runs_on_many_threads(leaves):
            return program(*args, **options)
        with ONE_THREAD:
            return jax.block_until_ready(program(*args, **options))

    return run  # type: ignore[return-value]


def _compiles_quickly(leaves: list, often: bool) -> bool:
    """Whether full compilation would cost more time than a faster program saves.

    This is so on GPUs, and on CPUs if there are few rows and the program does not run often.
    """
    if platform() == "gpu":
        return True
    return platform() == "cpu" and _longest_side(leaves) <= PADDED_UP_TO and not often


def _runs_on_many_threads(leaves: list) -> bool:
    """Whether LAPACK keeps its threads: matrices are large, or the platform is no CPU."""
    return platform() != "cpu" or _longest_side(leaves) > FOR_ONE_THREAD


def _longest_side(leaves: list) -> int:
    """Return the length of the longest axis of all arrays."""
    return max((side for leaf in leaves for side in np.shape(leaf)), default=0)


def static_names(fn: Callable) -> list[str]:
    """Return the names of the arguments that can only be passed by keyword."""
    parameters = inspect.signature(fn).parameters.values()
    return [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]


def _quick(program: Callable, whole: Callable, *args, **options) -> Any:
    """Return the result of `program`, or that of `whole` if `program` closes over traced values.

    Then the call is part of another program, and JAX allows no options for parts of programs.
    """
    with suppress(jax.errors.UnexpectedTracerError), jax.core.eval_context():
        return program(*args, **options)
    return whole(*args, **options)


@cache
def _options_of(platform: str) -> dict:
    """Return the OPTIONS of a platform, or none if XLA does not accept them.

    For a JAX newer than NEWEST_KNOWN, a small program is compiled with them as a test.
    """
    options = OPTIONS[platform]
    if jax.__version_info__[:2] <= NEWEST_KNOWN:
        return options
    with suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda: 0, compiler_options=options)()
        return options
    return {}
