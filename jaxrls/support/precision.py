"""The one-call doors compute float64 input in float64, whatever JAX's global switch says, and leave
the switch alone.
"""

import difflib
import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import jax
import numpy as np

Door = TypeVar("Door", bound=Callable)
# What other libraries call the arguments, and what they are called here.
ELSEWHERE = {
    "alpha": "lams=[…]",
    "alphas": "lams=",
    "lam": "lams=[…]",
    "num": "lams=, how many λ,",
    "sample_weight": "weights=",
    "gamma": "a kernel such as Gaussian.from_gamma(…)",
    "cv": "groups=",
    "scoring": "criterion=",
    "fit_intercept": "intercept=",
}


def is_wide(value) -> bool:
    """Whether host data is float64 once NumPy reads it; a JAX array already has the dtype its owner
    chose.
    """
    if isinstance(value, jax.Array):
        return False
    # A source of rows says what it reads.
    dtype = getattr(value, "host_dtype", getattr(value, "dtype", None))
    return not isinstance(dtype, np.dtype) or dtype.kind != "f" or dtype.itemsize == 8


def scope(wide: bool):
    """The context in which `wide` data keep their precision."""
    return jax.enable_x64(True) if wide else nullcontext()


def to_host(tree):
    """JAX arrays as NumPy arrays, which keep float64 outside the scope; what has no values yet,
    inside `jax.jit`, stays.
    """

    known = lambda leaf: isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return jax.tree.map(lambda leaf: np.asarray(leaf) if known(leaf) else leaf, tree)


def in_dtype_of(like, find: Callable):
    """What is found in the precision of an array, as NumPy arrays where that is one in float64."""
    wide = like.dtype == np.float64
    with scope(wide):
        found = find()
        return to_host(found) if wide and not isinstance(like, jax.Array) else found


def _unknown(door: str, name: str, known: list[str]) -> str:
    """What is said of an argument that there is not."""
    meant = difflib.get_close_matches(name, known, 1)
    hint = ELSEWHERE.get(name) or (f"{meant[0]}=" if meant else "")
    return f"{door} takes no {name}={f': did you mean {hint}?' if hint else ''}"


def in_precision_of(argument: str) -> Callable[[Door], Door]:
    """Run a door in the precision of one argument: float64 NumPy data in float64, handed back as
    NumPy arrays.
    """

    def decorate(door: Door) -> Door:
        signature = inspect.signature(door)

        @functools.wraps(door)
        def wrapped(*args, **kwargs):
            for name in kwargs:
                if name not in signature.parameters:
                    raise TypeError(_unknown(door.__name__, name, [*signature.parameters]))
            value = signature.bind(*args, **kwargs).arguments.get(argument)
            if jax.config.read("jax_enable_x64") or not is_wide(value):
                return door(*args, **kwargs)
            with scope(True):
                return to_host(door(*args, **kwargs))

        return wrapped  # type: ignore[return-value]

    return decorate
