"""What a program has to do at least, counted from its jaxpr: operations and numbers moved by products and factorizations, loops multiplied out.

XLA's own analysis counts a loop's body once and a library's work not at all. What is said twice of the same numbers counts once, as XLA does it once:
every result has a name made of its step and the names of what that takes, and loops of one turn are read as if they were none.
"""

from dataclasses import dataclass, field
from math import prod

import jax
import numpy as np

# Operations of one factorization, or solve, of n×n (k right-hand sides); and how often it must read its matrix from memory beyond once in and
# once out. Golub and Van Loan 2013, sections 4.2, 8.3 and 8.6; the reduction to tridiagonal form reads what is left of half the matrix for every column.
FACTORIZATIONS = {
    "cholesky": (lambda n, k: n**3 / 3, lambda n: 0),
    "triangular_solve": (lambda n, k: n**2 * k, lambda n: 0),
    "eigh": (lambda n, k: 9 * n**3, lambda n: n / 6),
    "svd": (lambda n, k: 6 * k * n**2 + 20 * n**3, lambda n: n / 3),
    "householder_product": (lambda n, k: 4 * n**3 / 3, lambda n: 0),
    "tridiagonal": (lambda n, k: 4 * n**3 / 3, lambda n: n / 6),
}


@dataclass
class Counts:
    """Floating-point operations, bytes moved by products and factorizations, and products below full precision."""

    flops: float = 0.0
    bytes: float = 0.0
    below: int = 0

    def add(self, other: "Counts", times: float = 1):
        self.flops += times * other.flops
        self.bytes += times * other.bytes
        self.below += other.below


def count(fn, *arguments, turns: int = 1) -> Counts:
    """Of a function at arguments, or at their shapes; loops of unknown length with so many turns."""
    closed = jax.make_jaxpr(fn)(*arguments)
    total = _Reading(turns).program(closed, set())[0]
    total.bytes += sum(_bytes(v) for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars))
    return total


@dataclass
class _Reading:
    """Counts of programs, and the names of results that are the same."""

    turns: int
    names: dict = field(default_factory=dict)

    def name(self, *key) -> int:
        return self.names.setdefault(key, len(self.names))

    def program(self, closed, done: set, arguments=None) -> tuple[Counts, list[int]]:
        """Counts of steps that are not `done` yet, which then are, and the names of the results."""
        jaxpr, known = _open(closed), getattr(closed, "consts", ())
        arguments = [self.name("argument", i) for i in range(len(jaxpr.invars))] if arguments is None else arguments
        names = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(self.constant, known), *arguments), strict=True))
        read = lambda v: self.constant(v.val) if hasattr(v, "val") else names[v]  # noqa: E731
        total = Counts()
        for step in jaxpr.eqns:
            found, results = self.step(step, [read(v) for v in step.invars], done)
            total.add(found)
            names.update(zip(step.outvars, results, strict=True))
        return total, [read(v) for v in jaxpr.outvars]

    def constant(self, value) -> int:
        try:
            value = np.asarray(value)
        except TypeError:  # random keys
            return self.name("constant", id(value))
        return self.name("constant", str(value.dtype), value.shape, value.tobytes())

    def step(self, step, taken, done) -> tuple[Counts, list[int]]:
        name, inner = step.primitive.name, list(_inner(step.params))
        if name == "scan" and step.params["length"] == 1:
            carry, whole = step.params["num_carry"], step.params["num_consts"] + step.params["num_carry"]
            found, results = self.program(inner[0], done, [*taken[:whole], *(self.name("first", a) for a in taken[whole:])])
            return found, [*results[:carry], *(self.name("stacked", a) for a in results[carry:])]
        if len(inner) == 1 and name != "scan" and len(_open(inner[0]).invars) == len(taken):
            return self.program(inner[0], done, taken)
        parts = [self.program(part, set()) for part in inner]
        how = ((key, str(value)) for key, value in sorted(step.params.items()) if not list(_inner({key: value})))
        made = self.name(name, *how, *(tuple(results) for _, results in parts), *taken)
        found = Counts() if made in done else self.counted(step, [part for part, _ in parts])
        done.add(made)
        return found, [self.name(made, i) for i in range(len(step.outvars))]

    def counted(self, step, parts) -> Counts:
        """Of one step, of whose programs the counts are known."""
        name, total = step.primitive.name, Counts()
        if name == "dot_general":
            return _product(step)
        if name in FACTORIZATIONS:
            return _factorization(step)
        if name == "cond":
            return max(parts, key=lambda one: one.flops)
        for part in parts:
            total.add(part, step.params["length"] if name == "scan" else self.turns if name == "while" else 1)
        if not parts:
            total.flops = sum(prod(v.aval.shape) for v in step.outvars)
        return total


def _open(part):
    return getattr(part, "jaxpr", part)


def _inner(params):
    """The programs inside a step."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(_open(part), "eqns"):
                yield part


def _bytes(v) -> float:
    return prod(v.aval.shape) * v.aval.dtype.itemsize if isinstance(v.aval.dtype, np.dtype) else 0


def _product(step) -> Counts:
    (over, _), _ = step.params["dimension_numbers"]
    depth = prod(step.invars[0].aval.shape[axis] for axis in over)
    precision = step.params["precision"]
    full = precision is not None and all(part == jax.lax.Precision.HIGHEST for part in precision)
    moved = sum(_bytes(v) for v in (*step.invars, *step.outvars))
    small = step.outvars[0].aval.dtype.kind != "f"
    return Counts(2 * depth * prod(step.outvars[0].aval.shape), moved, int(not full and not small))


def _factorization(step) -> Counts:
    flops, rereads = FACTORIZATIONS[step.primitive.name]
    shape = step.invars[0].aval.shape
    n, many = min(shape[-2:]), prod(shape[:-2])
    k = max(shape[-2:]) if step.primitive.name == "svd" else step.invars[-1].aval.shape[-1]
    moved = sum(_bytes(v) for v in (*step.invars, *step.outvars)) + rereads(n) * _bytes(step.invars[0])
    return Counts(many * flops(n, k), moved)
