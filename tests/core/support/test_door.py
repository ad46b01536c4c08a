"""The door: what counts as float64, the precision inside, the switch that nobody may leave changed,
and meshes of Explicit axes.
"""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxrls as rls
from jaxrls.core.support.door import door, is_wide

pytestmark = pytest.mark.any_precision  # each test sets the switch itself


@pytest.fixture(autouse=True)
def narrow():
    """The switch as most users have it."""
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize(
    ("value", "wide"),
    [
        (np.zeros(2), True),
        (np.zeros(2, np.float32), False),
        (np.float64(1), True),
        (np.float16(1), False),
        (np.zeros(2, np.int8), True),
        (np.zeros(2, bool), True),
        (1.0, True),
        ([[1], [2]], True),
        (pd.DataFrame({"x": [1.0]}), True),
        (pd.Series([1.0], dtype=np.float32), False),
    ],
)
def test_what_numpy_reads_as_float64_is_wide(value, wide):
    assert is_wide(value) is wide


@door("X")
def scaled(scale, X, *, shift=0.0):
    """The documentation stays."""
    return {"sum": jnp.sum(jnp.asarray(X)) * scale + shift, "given": X}


THIRD = np.full(3, 1 / 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda X: scaled(1.0, X),
        lambda X: scaled(scale=1.0, X=X),
        lambda X: scaled(1.0, X=X, shift=0.0),
    ],
)
def test_float64_in_float64_out(call):
    """By position and by keyword, as NumPy arrays, to float64's precision."""
    found = call(THIRD)["sum"]
    assert (
        isinstance(found, np.ndarray)
        and found.dtype == np.float64
        and abs(float(found) - 1) < 1e-15
    )
    assert not jax.config.jax_enable_x64


def test_float32_and_jax_arrays_stay():
    for X in (THIRD.astype(np.float32), jnp.asarray(THIRD)):
        found = scaled(1.0, X)
        assert (
            isinstance(found["sum"], jax.Array)
            and found["sum"].dtype == np.float32
            and found["given"] is X
        )


def test_a_door_within_a_door():
    """The inner one finds the scope of the outer one, and hands over JAX arrays."""
    seen = []

    @door("data")
    def outer(data):
        seen.append(scaled(1.0, data)["sum"])
        seen.append(scaled(1.0, jnp.asarray(data, jnp.float32))["sum"])
        return seen[0] + 1

    found = outer(THIRD)
    assert (
        isinstance(found, np.ndarray)
        and found.dtype == np.float64
        and abs(float(found) - 2) < 1e-15
    )
    assert isinstance(seen[0], jax.Array) and [a.dtype for a in seen] == [np.float64, np.float32]
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("switch", [False, True])
def test_after_an_exception_the_switch_is_as_it_was(switch):
    @door("X")
    def fails(X):
        assert jax.config.jax_enable_x64
        raise RuntimeError("inside")

    with jax.enable_x64(switch):
        with pytest.raises(RuntimeError, match="inside"):
            fails(THIRD)
        assert jax.config.jax_enable_x64 == switch


def test_inside_jit():
    """A traced array is a JAX array: it keeps its dtype."""
    found = jax.jit(lambda X: scaled(1.0, X)["sum"])(jnp.asarray(THIRD, jnp.float32))
    assert found.dtype == np.float32


def test_what_is_made_of_a_fit_for_later_stays_float64():
    """As NumPy arrays, which a copy by pickle keeps where the switch is off."""
    X = np.linspace(0, 1, 20)[:, None]
    fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
    told = fit.predict(X, return_std=True)[1]
    again = pickle.loads(pickle.dumps(fit)).predict(X, return_std=True)[1]
    assert told.dtype == np.float64 and (told == again).all()
