"""`jax.jit` for what public calls compute: quick to compile where rows are few, and for rows that
only the host can read.

Few rows are padded by rows of weight 0, so that one program serves several numbers of them. A sum
over rows on the host cannot be part of a compiled program. So a function is compiled up to its
first reading, then again, with the result, up to the next reading, and so on. What precedes a
reading is computed again after it, so read first.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.problem.rows import DenseRows, Rows
from jaxrls.core.support import is_concrete, platform, pytree, static

Function = TypeVar("Function", bound=Callable)
# With more rows the weights of a padded fit cost too much: 1.5 times its time at 1000 rows.
FEW = 512
# Compilation is most of a first fit to few rows. Without LLVM's optimisations it takes three
# quarters of the time, and the program 1.4 times as long; with the older code generator, which JAX
# has up to 0.10, a quarter and 1.2 times.
QUICK = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)
FOUND: ContextVar[Iterator] = ContextVar("FOUND")  # by the readings already done, in order


def compiled(fn: Function) -> Function:
    """`jax.jit(fn)`: positional arguments are traced, those by keyword alone are static. On a CPU
    calls with known values, at most FEW along every axis, are compiled with the options QUICK.

    A reading inside of a further transformation, such as `jax.vmap` in a criterion of the
    caller's, leaves `fn` outside of any program.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.rows.stream([np.ones((3, 2)), np.ones((1, 2))])
    >>> double = compiled(lambda rows, scale: 2 * rows.sum(lambda x: x.sum() * scale))
    >>> float(double(rows, 0.5))
    8.0
    """
    given = inspect.signature(fn).parameters.values()
    names = [one.name for one in given if one.kind is one.KEYWORD_ONLY]
    whole = jax.jit(fn, static_argnames=names)
    quick = cache(lambda: jax.jit(fn, static_argnames=names, compiler_options=_quick_options()))

    @partial(jax.jit, static_argnames=names)
    def go_on(args, found, **options):
        """The results, or the first reading that is not among those `found`."""
        before = FOUND.set(iter(found))
        try:
            return fn(*args, **options)
        except Pause as pause:
            return pause.args[0]
        finally:
            FOUND.reset(before)

    @wraps(whole)
    def run(*args, **options):
        leaves = jax.tree.leaves(args, is_leaf=_is_later)
        sources = [leaf for leaf in leaves if isinstance(leaf, Rows)]
        if not sources:
            if _is_small(leaves):
                # What is closed over may be traced; no part of a program may have options.
                with suppress(jax.errors.UnexpectedTracerError), jax.core.eval_context():
                    return quick()(*args, **options)
            return whole(*args, **options)
        if any(isinstance(leaf, Later | jax.core.Tracer) for leaf in leaves):
            return fn(*args, **options)  # a part of another function
        later = lambda leaf: Later.of(leaf, sources) if isinstance(leaf, Rows) else leaf
        back = lambda leaf: sources[leaf.number] if _is_later(leaf) else leaf
        args_later = jax.tree.map(later, args)
        found: list[Any] = []
        try:
            while isinstance(out := go_on(args_later, found, **options), Reading):
                found.append(out.read(sources[out.number], out.operands))
        except jax.errors.UnexpectedTracerError:
            return fn(*args, **options)
        return jax.tree.map(back, out, is_leaf=_is_later)

    return run  # type: ignore[return-value]


def _is_small(leaves: list) -> bool:
    """Whether values are known, outside of any program, and at most FEW along every axis, on a
    CPU.
    """
    axes = [length for leaf in leaves for length in np.shape(leaf)]
    small = is_concrete(leaves) and max(axes, default=0) <= FEW and platform() == "cpu"
    return small and is_concrete(jnp.zeros(()))


@cache
def _quick_options() -> dict:
    """The first of QUICK that XLA takes: they are not part of its interface."""
    for options in QUICK:
        with suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 0, compiler_options=options)()
            return options
    return {}


@pytree
class Reading:
    """A task for the host: `read(rows, operands)`, with one of the sources."""

    operands: Any
    read: Callable = static()
    number: int = static()


class Pause(Exception):
    """Raised with a `Reading` that has not been done yet."""


def _is_later(leaf) -> bool:
    return isinstance(leaf, Later)


@pytree
class Later(Rows):
    """Rows in a function that is being traced, which are read between its programs."""

    number: int = static()  # among those of the arguments
    shape: Any = static()
    dtype: Any = static()
    block_sizes: Any = static(default=())
    lies: Any = static(default="")

    @classmethod
    def of(cls, rows: Rows, sources: list) -> "Later":
        """In the place of one of the sources."""
        number = next(i for i, source in enumerate(sources) if source is rows)
        return cls(number, rows.shape, rows.dtype, rows.block_sizes, rows.lies)

    def some(self, num):
        """As `Rows.some`, later."""
        for found in FOUND.get():
            return found
        raise Pause(Reading((), lambda rows, _: rows.some(num), self.number))

    def over(self, kind, fn, columns, **hints):
        """As `Rows.over`, later: what `fn` closes over is taken too."""
        for found in FOUND.get():
            return found
        block = lambda x, *parts: DenseRows(x).over(kind, fn, parts, **hints)
        programs, closed_over = {}, {}
        for size in self.block_sizes:
            cut = lambda a: jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype)  # noqa: B023
            parts = jax.tree.map(cut, columns)
            closed, out = jax.make_jaxpr(block, return_shape=True)(cut(self), *parts)
            programs[size] = _program(closed.jaxpr, jax.tree.structure(out))
            closed_over[size] = closed.consts

        def read(rows, operands):
            closed_over, columns = operands
            run = lambda x, *parts: programs[len(x)](closed_over[len(x)], x, *parts)
            return rows.reading(kind, run, columns)

        raise Pause(Reading((closed_over, columns), read, self.number))


def _program(jaxpr, structure) -> Callable:
    """A traced function as a program of what it closed over and of its arguments."""

    def run(closed_over, *args):
        out = jax.core.eval_jaxpr(jaxpr, closed_over, *jax.tree.leaves(args))
        return jax.tree.unflatten(structure, out)

    return jax.jit(run)


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
