"""What makes a class a pytree: equality and hashes by value, static fields, the list that files go
by.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, refused

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.support import pytrees

pytestmark = ANY_PRECISION  # values of both dtypes, whatever the switch says


@extend.pytree
class Pair:
    first: object
    second: object = None
    name: str = extend.static(default="")


EQUAL = {
    "a float and an array of it": (rls.Gaussian(2.0), rls.Gaussian(np.array(2.0))),
    "a JAX array and a NumPy array": (
        rls.Gaussian(jnp.array([1.0, 2.0])),
        rls.Gaussian(np.array([1.0, 2.0])),
    ),
    "NaN": (Pair(np.array([np.nan, 1.0])), Pair(np.array([-np.nan, 1.0]))),
    "sums": (
        0.5 * rls.Gaussian(np.ones(3)) + rls.Linear().on(0),
        np.float64(0.5) * rls.Gaussian(jnp.ones(3)) + rls.Linear().on([0]),
    ),
    "keys": (Pair(jax.random.key(3)), Pair(jax.random.key(3))),
    "inside tuples": (Pair((1.0, np.ones(2))), Pair((1, np.ones(2)))),
}
UNEQUAL = {
    "values": (rls.Gaussian(np.array([1.0, 2.0])), rls.Gaussian(np.array([1.0, 2.5]))),
    "shapes that broadcast": (rls.Gaussian(np.ones(3)), rls.Gaussian(np.ones((1, 3)))),
    "types": (rls.Gaussian(1.0), rls.Laplacian(1.0)),
    "static fields inside": (2.0 * rls.Linear().on(0), 2.0 * rls.Linear().on(1)),
    "structure": (Pair((1.0, 2.0)), Pair([1.0, 2.0])),
    "keys": (Pair(jax.random.key(3)), Pair(jax.random.key(4))),
}


def test_equal():
    for name, (a, b) in EQUAL.items():
        assert a == b and b == a and hash(a) == hash(b), name


def test_unequal():
    for name, (a, b) in UNEQUAL.items():
        assert a != b and b != a and len({a, b}) == 2, name


def test_values_inside_jit_are_not_known():
    for trace in (jax.jit, jax.grad):
        for use in (lambda k: k == rls.Gaussian(1.0), lambda k: rls.Gaussian(1.0) == k):
            traced = trace(lambda width, use=use: float(use(rls.Gaussian(width))))
            refused((partial(traced, 1.0), "."), error=TypeError)


def test_structures_compare_static_fields_alone():
    """One program for all values, one more for another static field."""
    scale = jax.jit(chex.assert_max_traces(lambda pair: 2 * pair.first, n=1))
    scale(Pair(np.ones(3)))
    scale(Pair(np.zeros(3)))
    with pytest.raises(AssertionError, match="traced > 1 times"):
        scale(Pair(np.ones(3), name="b"))
    assert (
        jax.tree.structure(Pair(1.0))
        == jax.tree.structure(Pair(object()))
        != jax.tree.structure(Pair(1.0, name="b"))
    )


def test_equality_of_ones_own_is_kept():
    @extend.pytree
    class Anything:
        value: float

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    assert Anything(1.0) == Anything(2.0) and hash(Anything(1.0)) == 0


def test_the_list_of_classes():
    assert (
        pytrees.REGISTRY["Gaussian"] is rls.Gaussian and pytrees.REGISTRY["Fit"] is rls.extend.Fit
    )
    assert pytrees.REGISTRY[f"{__name__}.Pair"] is Pair and pytrees.is_registered(Pair)
    own = [name for name, cls in pytrees.REGISTRY.items() if cls.__module__[:7] == "jaxrls."]
    assert not any(name.startswith("_") for name in own)
    assert not pytrees.is_registered(int) and not pytrees.is_registered(rls.extend.Kernel)
