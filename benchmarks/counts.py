"""What a program has to do at least, counted from its jaxpr: operations and numbers moved by products and factorizations, loops multiplied out.

XLA's own analysis counts a loop's body once and a library's work not at all.
"""

from dataclasses import dataclass
from math import prod

import jax
import numpy as np

# Operations of one factorization, or solve, of n×n (k right-hand sides); and how often it must read its matrix from memory beyond once in and
# once out. Golub and Van Loan 2013, sections 4.2 and 8.3; the reduction to tridiagonal form reads what is left of half the matrix for every column.
FACTORIZATIONS = {
    "cholesky": (lambda n, k: n**3 / 3, lambda n: 0),
    "triangular_solve": (lambda n, k: n**2 * k, lambda n: 0),
    "eigh": (lambda n, k: 9 * n**3, lambda n: n / 6),
    "svd": (lambda n, k: 4 * k * n**2 + 22 * n**3, lambda n: n / 3),
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
    total = _of(closed.jaxpr, turns)
    total.bytes += sum(_bytes(v) for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars))
    return total


def _of(jaxpr, turns: int) -> Counts:
    total = Counts()
    for step in jaxpr.eqns:
        name, inner = step.primitive.name, list(_inner(step.params))
        if name == "dot_general":
            total.add(_product(step))
        elif name in FACTORIZATIONS:
            total.add(_factorization(step))
        elif name == "scan":
            total.add(_of(inner[0], turns), step.params["length"])
        elif name == "cond":
            total.add(max((_of(part, turns) for part in inner), key=lambda one: one.flops))
        elif inner:
            for part in inner:
                total.add(_of(part, turns), turns if name == "while" else 1)
        else:
            total.flops += sum(prod(v.aval.shape) for v in step.outvars)
    return total


def _inner(params):
    """The programs inside a step."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
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
