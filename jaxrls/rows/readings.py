"""Run a function that needs sums over rows on the host, as compiled programs and readings in turn.

A sum over rows that only the host reads cannot be part of a compiled program. So
`run_between_readings` traces the function with `RowsInTrace` in place of the rows, and every sum
leaves an equation `reading_p` in the traced program. The traced program is then cut at its
readings. The equations between two readings become one compiled program. The host does each
reading.

For example, a function with one sum is run in three steps:

    def fn(rows, a):
        b = a + 1                        # a compiled program, from a to b
        s = rows.sum(lambda x: b * x)    # a reading, `reading_p` from b to s: a loop of the host
        return s / 2                     # a compiled program, from s to the result

JAX caches what it has traced, and so these programs: another stream of the same shape compiles
nothing.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive

from jaxrls.core.data import DenseRows, Rows, static_names
from jaxrls.core.linalg import MAP, Reduction
from jaxrls.core.support import is_concrete, on_device, pytree, static

reading_p = Primitive("reading")
reading_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Task:
    """A reading that the host does later.

    `read(sources, *operands)` returns arrays of these `shapes`.
    """

    read: Callable
    shapes: list[jax.ShapeDtypeStruct]


@reading_p.def_abstract_eval
def _(*operands, task: Task):
    return [jax.core.ShapedArray(part.shape, part.dtype) for part in task.shapes]


def run_between_readings(fn: Callable, args: tuple, options: dict) -> Any:
    """Return `fn(*args, **options)`, where some arguments are rows that only the host reads.

    In these cases `fn` is called directly, and not cut into programs:

    * other arguments are traced, inside of `jax.jit` or a transformation;
    * a reading lies within a loop, within another reading, or within a transformation of its own,
      such as `jax.vmap` in a criterion of the caller. The traced program cannot be cut there.
    """
    leaves = jax.tree.leaves(args)
    if not is_concrete(leaves):
        return fn(*args, **options)
    sources: Any = [leaf for leaf in leaves if isinstance(leaf, Rows)]
    forms = {id(rows): Form(i, Attributes.of(rows)) for i, rows in enumerate(sources)}
    args_of_trace = jax.tree.map(lambda leaf: forms.get(id(leaf), leaf), args)
    try:
        traced = _of_forms(fn).trace(*args_of_trace, **options)
        steps = _steps(traced.jaxpr.jaxpr)
    except NotImplementedError:  # raised for a reading that is within something else
        return fn(*args, **options)
    results = _run_steps(steps, traced.jaxpr, jax.tree.leaves(args_of_trace), sources)
    results = jax.tree.unflatten(jax.tree.structure(traced.out_info), results)
    source_of = lambda leaf: sources[leaf.number] if _is_form(leaf) else leaf
    return jax.tree.map(source_of, results, is_leaf=_is_form)


# Traced
# --------------------------------------------------------------------------------------------------


class Attributes(NamedTuple):
    """The attributes of rows that a trace knows, by the names that they have in rows."""

    shape: tuple
    dtype: Any
    lies: str
    block_sizes: tuple[int, ...]
    few_at_most: int

    @classmethod
    def of(cls, rows: Any) -> "Attributes":
        """Return the attributes of rows that only the host reads."""
        return cls(**{name: getattr(rows, name) for name in cls._fields})


@pytree
class Form:
    """The static description of rows in a trace: which source they are, and their attributes."""

    number: int = static()
    attributes: Attributes = static()


class BlockProgram(NamedTuple):
    """A function of a block of rows, traced for one size of block."""

    run: Callable  # from `closed_over` and the leaves of its arguments to the leaves of its result
    closed_over: list  # the arrays that the function closes over
    result: Any  # the shapes and dtypes of its result

    @classmethod
    def of(cls, fn: Callable, args: Any) -> "BlockProgram":
        """Trace the function for arguments of these shapes and dtypes.

        Raises:
            NotImplementedError: for a reading of all rows for each block.
        """
        traced, result = jax.make_jaxpr(fn, return_shape=True)(*args)
        if _reads(traced.jaxpr):
            raise NotImplementedError("a reading is part of another")
        return cls(jax.jit(partial(jax.core.eval_jaxpr, traced.jaxpr)), traced.consts, result)


class RowsInTrace(Rows):
    """Rows in a function that is being traced. They are read when its programs run."""

    lies = ""

    def __init__(self, form: Form):
        known = form.attributes
        self.form = form
        self.shape = known.shape
        self.dtype = known.dtype
        self.lies = known.lies
        self.block_sizes = known.block_sizes
        self.few_at_most = known.few_at_most

    def few_rows(self, num: int) -> Any:
        """Leave a reading that calls `few_rows(num)` of the rows."""
        shape = min(num, self.few_at_most), self.shape[1]
        few = jax.ShapeDtypeStruct(shape, self.dtype)
        return self._leave_reading(lambda rows: rows.few_rows(num), (), few)

    def over(self, reduction: Reduction, fn: Callable, columns: Any, **hints) -> Any:
        """Leave a reading that computes `Rows.over`.

        `fn` is traced once for each size of block. Arrays that `fn` closes over become operands of
        the reading.
        """
        of_block = lambda x, part: DenseRows(x).over(reduction, fn, part, **hints)
        programs = {
            size: BlockProgram.of(of_block, _with_rows(size, (self, columns)))
            for size in self.block_sizes
        }
        closed_over = {size: program.closed_over for size, program in programs.items()}
        result = programs[self.block_sizes[0]].result
        structure = jax.tree.structure(result)

        def read(rows: Any, closed_over: dict, columns: Any) -> Any:
            def run(x: Array, part: Any) -> Any:
                size = len(x)
                leaves = programs[size].run(closed_over[size], x, *jax.tree.leaves(part))
                return jax.tree.unflatten(structure, leaves)

            return rows.read_blocks(reduction, run, columns)

        result = _with_rows(self.shape[0], result) if reduction is MAP else result
        return self._leave_reading(read, (closed_over, columns), result)

    def _leave_reading(self, read: Callable, operands: tuple, result: Any) -> Any:
        """Leave a reading, and return the traced result of `read(rows, *operands)`.

        `result` is a pytree with the shapes and dtypes of that result.
        """
        leaves, structure = jax.tree.flatten(operands)
        shapes, result_structure = jax.tree.flatten(result)

        def read_leaves(sources: list, *leaves) -> list:
            rows = sources[self.form.number]
            return jax.tree.leaves(read(rows, *jax.tree.unflatten(structure, leaves)))

        leaves_of_result = reading_p.bind(*leaves, task=Task(read_leaves, shapes))
        return jax.tree.unflatten(result_structure, leaves_of_result)


def _with_rows(size: int, tree: Any) -> Any:
    """Return the shapes of arrays if they had `size` rows."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype), tree)


def _is_form(leaf: Any) -> bool:
    return isinstance(leaf, Form)


@cache
def _of_forms(fn: Callable) -> Any:
    """Return `fn` under `jax.jit`, with a `Form` in place of rows among arguments and results."""
    rows_of = lambda leaf: RowsInTrace(leaf) if _is_form(leaf) else leaf
    form_of = lambda leaf: leaf.form if isinstance(leaf, RowsInTrace) else leaf

    def of_forms(*args, **options) -> Any:
        args = jax.tree.map(rows_of, args, is_leaf=_is_form)
        return jax.tree.map(form_of, fn(*args, **options))

    return jax.jit(of_forms, static_argnames=static_names(fn))


# Cut
# --------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A program or a reading, `run(sources, *values)`.

    `takes` are the variables whose values it needs, and `gives` the variables that it computes.
    """

    run: Callable
    takes: list
    gives: list


@lru_cache(maxsize=1024)
def _steps(jaxpr: Jaxpr) -> list[Step]:
    """Cut a traced program at its readings, into steps in the order in which they run.

    Each program returns only the variables that later steps or the results need.

    Raises:
        NotImplementedError: for a reading within a loop.
    """
    if any(map(_reads_within, jaxpr.eqns)):
        raise NotImplementedError("a reading is part of a program")
    parts: list[list] = [[]]
    for equation in jaxpr.eqns:
        if equation.primitive is reading_p:
            parts += [[equation], []]
        else:
            parts[-1].append(equation)
    needed = set(_variables(jaxpr.outvars))
    steps = []
    for equations in filter(None, reversed(parts)):
        last = equations[-1]
        if last.primitive is reading_p:
            step = Step(last.params["task"].read, last.invars, last.outvars)
        else:
            inside = [name for equation in equations for name in equation.outvars]
            used = _variables(name for equation in equations for name in equation.invars)
            takes = list(dict.fromkeys(name for name in used if name not in {*inside}))
            gives = [name for name in inside if name in needed]
            part = jaxpr.replace(constvars=[], invars=takes, outvars=gives, eqns=equations)
            step = Step(_as_program(part), takes, gives)
        needed.update(_variables(step.takes))
        steps.append(step)
    return steps[::-1]


def _reads(program: Any) -> bool:
    """Whether a program has a reading, or another program inside of it has."""
    steps = getattr(program, "eqns", ())
    return any(step.primitive is reading_p or _reads_within(step) for step in steps)


def _reads_within(equation: JaxprEqn) -> bool:
    """Whether a program inside of an equation, such as the body of a loop, has a reading."""
    return any(_reads(getattr(part, "jaxpr", part)) for part in _programs_within(equation))


def _programs_within(equation: JaxprEqn) -> list:
    """Return the programs inside of an equation, with or without their constants."""
    is_program = lambda part: hasattr(part, "eqns") or hasattr(part, "jaxpr")
    parts = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
    return [part for part in parts if is_program(part)]


def text_and_constants(program: ClosedJaxpr) -> tuple[str, list]:
    """Return a traced program as text that is the same in every process, and all its constants.

    Addresses in memory are not part of the text.
    """
    constants: list = []
    parts: list[Any] = [program]
    while parts:
        part = parts.pop()
        constants += getattr(part, "consts", [])
        for equation in getattr(getattr(part, "jaxpr", part), "eqns", ()):
            parts += _programs_within(equation)
            constants += [name.val for name in equation.invars if isinstance(name, Literal)]
    return re.sub(r"0x[0-9a-f]+", "", str(program)), constants


def _variables(names: Iterable) -> list:
    return [name for name in names if not isinstance(name, Literal)]


def _as_program(part: Jaxpr) -> Callable:
    """Return the equations of `part` as a compiled step. It makes no use of the sources."""
    program = jax.jit(partial(jax.core.eval_jaxpr, part, []))
    return lambda sources, *values: program(*values)


def _run_steps(steps: list[Step], traced: ClosedJaxpr, args: list, sources: list) -> list:
    """Run the steps of a traced program for these arguments, and return its results."""
    jaxpr = traced.jaxpr
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*traced.consts, *args), strict=True))
    value = lambda name: name.val if isinstance(name, Literal) else known[name]
    for step in steps:
        known.update(zip(step.gives, step.run(sources, *map(value, step.takes)), strict=True))
    results = [value(name) for name in jaxpr.outvars]
    shapes: list[Any] = traced.out_avals
    return [
        part if isinstance(part, jax.Array) else on_device(np.asarray(part, shape.dtype))
        for part, shape in zip(results, shapes, strict=True)
    ]
