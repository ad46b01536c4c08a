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
# Up to so many rows LAPACK has one thread. On two cores a fit of 600 rows then takes 1.3 times as
# long where they are idle and .63 times beside one busy process, one of 1000 rows 1.15 and .81
# times: in the sum of both one thread takes less. More work beside it, and two take many times.
FOR_ONE_THREAD = 1000
# Options of XLA by platform, of which the first that it takes are used: they are not part of its
# interface. On CPUs compilation is most of a first fit to few rows. Without LLVM's optimisations it
# takes three quarters of the time, and the program 1.4 times as long; with the older code
# generator, which JAX has up to 0.10, a quarter and 1.2 times. On GPUs XLA tries algorithms for
# every product, which on an H200 took 25 of the 29 seconds of a first fit in float32.
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "cpu": (
        {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
        {"xla_backend_optimization_level": 0},
    ),
    "gpu": ({"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},),
}


def compiled(fn: Function, often: bool = False) -> Function:
    """`jax.jit(fn)`: positional arguments are traced, those by keyword alone are static. Calls with
    known values are compiled quickly, by the platform's OPTIONS; on a CPU those with at most FEW
    along every axis, unless the program runs so `often` in one call of a user that it pays to make
    it well; up to FOR_ONE_THREAD they run LAPACK on one thread. Rows that no program takes run `fn`
    themselves.

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
        leaves, where = jax.tree.leaves(args), platform()
        if outside := [leaf for leaf in leaves if isinstance(leaf, Rows)]:
            return outside[0].call(fn, args, options)
        if not _known(leaves):
            return whole(*args, **options)
        if where == "gpu":
            return _quick(quick(where), whole, args, options)
        if where != "cpu" or _most(leaves) > FOR_ONE_THREAD:
            return whole(*args, **options)
        with ONE_THREAD:
            if often or _most(leaves) > FEW:
                return jax.block_until_ready(whole(*args, **options))
            return jax.block_until_ready(_quick(quick(where), whole, args, options))

    return run  # type: ignore[return-value]


def static_names(fn: Callable) -> list[str]:
    """The arguments that are passed by keyword alone."""
    parameters = inspect.signature(fn).parameters.values()
    return [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]


def _quick(program: Callable, whole: Callable, args, options) -> Any:
    """The program's result; that of `whole` where values that it closes over are traced, as no part
    of a program may have options.
    """
    with suppress(jax.errors.UnexpectedTracerError), jax.core.eval_context():
        return program(*args, **options)
    return whole(*args, **options)


def _known(leaves: list) -> bool:
    """Whether values are known, outside of any program."""
    return is_concrete(leaves) and is_concrete(jnp.zeros(()))


def _most(leaves: list) -> int:
    """The most along any axis."""
    return max((length for leaf in leaves for length in np.shape(leaf)), default=0)


@cache
def _options_of(platform: str) -> dict:
    """The first of a platform's OPTIONS that XLA takes."""
    for options in OPTIONS[platform]:
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
