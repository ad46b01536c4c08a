"""`jax.jit` for functions whose arguments hold rows, those that only the host reads included.

A sum over rows on the host cannot be part of a program: it is a loop that reads, with a program for
its blocks. So such a function is traced with a stand-in for the rows, whose sums and maps it leaves
as one operation each, and done in turns: a program, a reading, a program. All of them are made
once for all arguments, and rows, of the same shapes."""

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive

from jaxrls.rows.rows import DenseRows, Rows
from jaxrls.support.pytrees import pytree, static

Function = TypeVar("Function", bound=Callable)
READING = Primitive("reading")  # `read(sources, *operands)`, which gives arrays as `made`
READING.multiple_results = True
READING.def_abstract_eval(lambda *operands, read, made: list(made))


def compiled(fn: Function) -> Function:
    """`jax.jit(fn)`: positional arguments are traced, those by keyword alone are static.

    A reading inside of a further transformation, such as `jax.vmap` in a criterion of the
    caller's, leaves `fn` outside of any program.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([np.ones((3, 2)), np.ones((1, 2))])
    >>> double = compiled(lambda rows, scale: 2 * rows.sum(lambda x: x.sum() * scale))
    >>> float(double(rows, 0.5))
    8.0
    """
    given = inspect.signature(fn).parameters.values()
    names = [one.name for one in given if one.kind is one.KEYWORD_ONLY]
    whole = jax.jit(fn, static_argnames=names)

    @wraps(whole)
    def run(*args, **options):
        found = jax.tree.leaves(args, is_leaf=_is_later)
        sources = [leaf for leaf in found if isinstance(leaf, Rows)]
        if not sources:
            return whole(*args, **options)
        if any(isinstance(leaf, Later | jax.core.Tracer) for leaf in found):
            return fn(*args, **options)  # a part of another function
        later = lambda leaf: Later.of(leaf, sources) if isinstance(leaf, Rows) else leaf
        args_later = jax.tree.map(later, args)
        try:
            traced = whole.trace(*args_later, **options)
            found = _in_turns(traced.jaxpr, jax.tree.leaves(args_later), sources)
        except NotImplementedError:
            return fn(*args, **options)
        out = jax.tree.unflatten(jax.tree.structure(traced.out_info), found)
        back = lambda leaf: sources[leaf.number] if _is_later(leaf) else leaf
        return jax.tree.map(back, out, is_leaf=_is_later)

    return run  # type: ignore[return-value]


def _in_turns(closed: ClosedJaxpr, arguments: list, sources: list) -> list:
    """The results of a traced function."""
    jaxpr = closed.jaxpr
    known: Any = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True)
    )

    def value(place):
        if isinstance(place, Literal):
            return jnp.asarray(place.val, place.aval.dtype)  # type: ignore[attr-defined]
        return known[place]

    for program, taken, made, needed, step in _turns(jaxpr):
        if made:
            known |= zip(made, program([], *map(value, taken)), strict=True)
        known = {place: known[place] for place in known if place in needed}
        if step is not None:
            read = step.params["read"]
            known |= zip(step.outvars, read(sources, *map(value, step.invars)), strict=True)
    return [*map(value, jaxpr.outvars)]


@lru_cache(512)
def _turns(jaxpr: Jaxpr) -> list[tuple]:
    """Programs with what they take and make, what is needed from there on, and the reading that
    comes then, None after the last.
    """
    steps, turns = [], []
    for i, step in enumerate([*jaxpr.eqns, None]):
        if step is not None and step.primitive is not READING:
            steps.append(step)
            continue
        after = (one.invars for one in jaxpr.eqns[i:])
        needed = _variables([jaxpr.outvars, *after])
        own = _variables(one.outvars for one in steps)
        taken = [v for v in _variables(one.invars for one in steps) if v not in own]
        made = [v for v in own if v in needed]
        part = jaxpr.replace(constvars=[], invars=taken, outvars=made, eqns=steps)
        turns.append((jax.jit(partial(jax.core.eval_jaxpr, part)), taken, made, needed, step))
        steps = []
    return turns


def _variables(places: Iterable) -> dict:
    """Those of several lists that are not numbers written down, each once, in order."""
    found = (place for some in places for place in some)
    return dict.fromkeys(place for place in found if not isinstance(place, Literal))


def _is_later(leaf) -> bool:
    return isinstance(leaf, Later)


@pytree
class Later(Rows):
    """Rows in a function that is being traced, which are read when it runs."""

    number: int = static()  # among those of the arguments
    shape: Any = static()
    dtype: Any = static()
    block_sizes: Any = static(default=())
    near: int = static(default=0)
    lies: Any = static(default="")

    @classmethod
    def of(cls, rows: Rows, sources: list) -> "Later":
        """In the place of one of the sources."""
        number = next(i for i, source in enumerate(sources) if source is rows)
        return cls(number, rows.shape, rows.dtype, rows.block_sizes, rows.near, rows.lies)

    def some(self, num):
        """As `Rows.some`, later."""
        read = lambda sources: [sources[self.number].some(num)]
        made = jax.core.ShapedArray((min(num, self.near), self.shape[1]), self.dtype)
        return READING.bind(read=read, made=(made,))[0]

    def over(self, kind, fn, columns, **hints):
        """As `Rows.over`, later: what `fn` closes over is taken too."""
        arrays, tree = jax.tree.flatten(columns)

        def block(x, *parts):
            return DenseRows(x).over(kind, fn, jax.tree.unflatten(tree, parts), **hints)

        known: list[Any] = []
        programs = {}
        for size in reversed(self.block_sizes):
            cut = [jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype) for a in (self, *arrays)]
            closed, out = jax.make_jaxpr(block, return_shape=True)(*cut)
            own = slice(len(known), len(known) + len(closed.consts))
            programs[size] = jax.jit(partial(jax.core.eval_jaxpr, closed.jaxpr)), own
            known += closed.consts
        count, made = len(known), closed.out_avals
        if kind == "map":
            made = [one.update(shape=(self.shape[0], *one.shape[1:])) for one in made]

        def read(sources, *operands):
            def run(x, *parts):
                program, own = programs[len(x)]
                return program(operands[own], x, *parts)

            return sources[self.number].reading(kind, run, operands[count:])

        found = READING.bind(*known, *arrays, read=read, made=tuple(made))
        return jax.tree.unflatten(jax.tree.structure(out), found)
