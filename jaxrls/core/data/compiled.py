"""`jax.jit` for what public calls compute: quick to compile where rows are few, by LAPACK on one
thread where matrices are small.
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
from jaxrls.core.support import ONE_THREAD, is_concrete, platform

ZERO = np.zeros(())
Function = TypeVar("Function", bound=Callable)
# Up to so many rows LAPACK has one thread. On two cores a fit of 600 rows then takes 1.3 times as
# long where they are idle and .63 times beside one busy process, one of 1000 rows 1.15 and .81
# times: in the sum of both one thread takes less. More work beside it, and two take many times.
FOR_ONE_THREAD = 1000
# Options of XLA by platform. On CPUs compilation is most of a first fit to few rows. Without LLVM's
# optimisations it takes three quarters of the time, and the program 1.4 times as long; with the
# older code generator, which JAX has up to 0.10, a quarter and 1.2 times. On GPUs XLA tries
# algorithms for every product, which on an H200 took 25 of the 29 seconds of a first fit in
# float32.
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"xla_backend_optimization_level": 0},
    "gpu": {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
}
if jax.__version_info__ < (0, 11):
    OPTIONS["cpu"]["xla_cpu_use_fusion_emitters"] = False
# The newest JAX whose XLA is known to take them: they are not part of its interface.
NEWEST_KNOWN = (0, 12)


def compiled(fn: Function, often: bool = False) -> Function:
    """`jax.jit(fn)`: positional arguments are traced, those by keyword alone are static. Calls with
    known values are compiled quickly, by the platform's OPTIONS; on a CPU those with at most
    PADDED_UP_TO along every axis, unless the program runs so `often` in one call of a user that it
    pays to make it well; up to FOR_ONE_THREAD they run LAPACK on one thread. Rows that no program
    takes run `fn` themselves.

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
            if isinstance(leaf, Rows):  # which no program takes
                return leaf.call(fn, args, options)
        if _within_program(leaves):
            return whole(*args, **options)
        program: Callable = whole
        if _compiles_quickly(leaves, often):
            program = partial(_quick, quick(platform()), whole)
        if _runs_on_many_threads(leaves):
            return program(*args, **options)
        with ONE_THREAD:
            return jax.block_until_ready(program(*args, **options))

    return run  # type: ignore[return-value]


def _within_program(leaves: list) -> bool:
    """Whether this is a part of another program, in which constants have no values either."""
    return not is_concrete(leaves, jax.device_put(ZERO))


def _compiles_quickly(leaves: list, often: bool) -> bool:
    """Whether compilation costs more than a slower program: on GPUs always, on CPUs where there are
    few rows, and the program does not run often.
    """
    if platform() == "gpu":
        return True
    return platform() == "cpu" and _longest_side(leaves) <= PADDED_UP_TO and not often


def _runs_on_many_threads(leaves: list) -> bool:
    """Whether matrices are so large that threads of LAPACK pay; elsewhere it has none."""
    return platform() != "cpu" or _longest_side(leaves) > FOR_ONE_THREAD


def _longest_side(leaves: list) -> int:
    """The length of the longest axis of all arrays."""
    return max((side for leaf in leaves for side in np.shape(leaf)), default=0)


def static_names(fn: Callable) -> list[str]:
    """The arguments that are passed by keyword alone."""
    parameters = inspect.signature(fn).parameters.values()
    return [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]


def _quick(program: Callable, whole: Callable, *args, **options) -> Any:
    """The program's result; that of `whole` where values that it closes over are traced, as no part
    of a program may have options.
    """
    with suppress(jax.errors.UnexpectedTracerError), jax.core.eval_context():
        return program(*args, **options)
    return whole(*args, **options)


@cache
def _options_of(platform: str) -> dict:
    """A platform's OPTIONS; none where XLA does not take them, which a program tries where JAX is
    newer than those that are known.
    """
    options = OPTIONS[platform]
    if jax.__version_info__[:2] <= NEWEST_KNOWN:
        return options
    with suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda: 0, compiler_options=options)()
        return options
    return {}
