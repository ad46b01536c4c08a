"""What comes between two readings of rows that live on the host, compiled as one program each.

Such rows cannot go into `jax.jit`, and outside of it every operation is a program of its own, some
hundred of them in a fit. Here the whole function is traced, a sum or a map over rows standing in it
as one operation that only the host can do, and then cut at these: the pieces are compiled, and the
rows read in between."""

import functools
import inspect
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun

from jaxrls.rows.rows import DenseRows, Rows


def between_readings(fn: Callable) -> Callable:
    """`fn`, jitted or not, for rows that are leaves of its arguments; positional ones are traced,
    those by keyword are static. Without such rows `fn` as it is.

    Rows whose blocks have sizes that are not known before leave `fn` as it is, outside of any
    program.

    >>> import numpy as np, jaxrls as rls
    >>> rows = rls.stream([np.ones((3, 2)), np.ones((1, 2))])
    >>> float(between_readings(lambda rows, scale: 2 * rows.sum(lambda x: x.sum() * scale))(rows, 0.5))
    8.0
    """
    plain = inspect.unwrap(fn)

    @functools.wraps(fn)
    def run(*args, **static):
        leaves, tree = jax.tree.flatten(args)
        rows = [leaf for leaf in leaves if isinstance(leaf, Rows)]
        if not rows:
            return fn(*args, **static)
        if any(leaf.block_sizes is None for leaf in rows):
            return plain(*args, **static)
        try:
            return _in_pieces(
                lambda given: plain(*jax.tree.unflatten(tree, given), **static), leaves
            )
        except NotImplementedError:  # of a transformation with a reading inside, such as jax.vmap in a criterion of the caller's
            return plain(*args, **static)

    return run


def _in_pieces(fn: Callable, leaves: list):
    """`fn` of leaves, traced and done piece by piece."""
    found: list = []

    def flat(arrays):
        rest = iter(arrays)
        found[:] = jax.tree.flatten(
            fn([Staged(leaf) if isinstance(leaf, Rows) else next(rest) for leaf in leaves])
        )
        return [leaf for leaf in found[0] if not isinstance(leaf, Staged)]

    arrays = [leaf for leaf in leaves if not isinstance(leaf, Rows)]
    values = iter(_evaluate(jax.make_jaxpr(flat)(arrays), arrays))
    out, shape = found
    return jax.tree.unflatten(
        shape, [leaf.source if isinstance(leaf, Staged) else next(values) for leaf in out]
    )


class Staged(Rows):
    """Rows in a function that is being traced, which are read when it runs."""

    traceable: ClassVar[bool] = False

    def __init__(self, source: Rows):
        self.source = source

    @property
    def shape(self):
        """(n, d)."""
        return self.source.shape

    @property
    def dtype(self):
        """That of the source."""
        return self.source.dtype

    def sum(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.sum`, later."""
        return self._later(
            "sum", fn, columns, {"temporaries": temporaries, "block_size": block_size}
        )

    def map(self, fn, *columns, temporaries=0, block_size=None):
        """As `Rows.map`, later."""
        return self._later(
            "map", fn, columns, {"temporaries": temporaries, "block_size": block_size}
        )

    def some(self, num):
        """Those of the source, which are known."""
        return self.source.some(num)

    def dense(self):
        """What the source has in its place."""
        return self.source.dense()

    def kernel_matrix(self, kernel, block_size=None):
        """What the source has in its place."""
        return self.source.kernel_matrix(kernel, block_size)

    def _later(self, kind, fn, columns, hints):
        arrays, tree = jax.tree.flatten(columns)
        found: list = []

        def block(x, parts):
            found[:] = jax.tree.flatten(
                getattr(DenseRows(x), kind)(fn, *jax.tree.unflatten(tree, parts), **hints)
            )
            return found[0]

        traced = {}
        for size in self.source.block_sizes or ():
            x, *parts = (
                jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype) for a in (self, *arrays)
            )
            traced[size] = jax.make_jaxpr(block)(x, parts)
        reading = Reading(self.source, kind, traced)
        results = reading_p.bind(
            *(const for closed in traced.values() for const in closed.consts),
            *arrays,
            reading=reading,
        )
        return jax.tree.unflatten(found[1], results)


class Reading:
    """A sum or a map over rows of a function that has been traced for every size of their blocks;
    takes its constants, and columns.
    """

    def __init__(self, rows: Rows, kind: str, traced: dict[int, ClosedJaxpr]):
        self.rows, self.kind, self.traced = rows, kind, traced
        results = next(iter(traced.values())).out_avals
        self.results = (
            results
            if kind == "sum"
            else [one.update(shape=(rows.shape[0], *one.shape[1:])) for one in results]
        )

    def read(self, *operands) -> list:
        """The results."""
        blocks, rest = {}, list(operands)
        for size, closed in self.traced.items():
            count = len(closed.consts)
            blocks[size], rest = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, rest[:count])), rest[count:]
        return getattr(self.rows, self.kind)(
            lambda x, *parts: blocks[len(x)](x, *parts), *rest, block_size=max(blocks)
        )


reading_p = Primitive("reading")
reading_p.multiple_results = True
reading_p.def_abstract_eval(lambda *operands, reading: reading.results)


def _evaluate(closed: ClosedJaxpr, arguments) -> list:
    """The results of a traced function: pieces of it compiled, and rows read in between."""
    jaxpr = closed.jaxpr
    known: dict = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True)
    )

    def value(place):
        if isinstance(place, Literal):
            return jnp.asarray(np.asarray(place.val), place.aval.dtype)  # type: ignore[attr-defined]
        return known[place]

    places = [i for i, step in enumerate(jaxpr.eqns) if step.primitive is reading_p]
    for start, stop in zip([0, *(i + 1 for i in places)], [*places, len(jaxpr.eqns)], strict=True):
        steps, after = jaxpr.eqns[start:stop], jaxpr.eqns[stop:]
        needed = _variables([*jaxpr.outvars, *(place for step in after for place in step.invars)])
        made = [place for step in steps for place in step.outvars if place in needed]
        taken = [
            place
            for place in _variables(place for step in steps for place in step.invars)
            if place in known
        ]
        if made:
            piece = ClosedJaxpr(
                jaxpr.replace(constvars=[], invars=taken, outvars=made, eqns=steps), ()
            )
            known.update(zip(made, jax.jit(jaxpr_as_fun(piece))(*map(value, taken)), strict=True))
        known = {place: known[place] for place in known if place in needed}
        if after:
            reading = after[0].params["reading"]
            known.update(
                zip(after[0].outvars, reading.read(*map(value, after[0].invars)), strict=True)
            )
    return [value(place) for place in jaxpr.outvars]


def _variables(places) -> dict:
    """Those that are not numbers written down, each once, in order."""
    return dict.fromkeys(place for place in places if not isinstance(place, Literal))
