"""The door: what counts as float64, the precision inside, the switch that nobody may leave changed,
and meshes of Explicit axes.
"""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from support import EDGE

import jaxrls as rls
from jaxrls.core.support.public_call import is_wide, public_call

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
        (np.float16(1), True),  # which becomes float64, as in the estimators
        (np.ones(2, ">f8"), True),
        (np.ones(2, ">f4"), False),
        (np.ones(2, np.longdouble), True),
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


@public_call(data="X")
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

    @public_call(data="data")
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
    @public_call(data="X")
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


# arrays of other libraries and of other layouts


class Foreign:
    """An array of another library, whose memory JAX can share."""

    def __init__(self, numbers):
        room = np.zeros(numbers.nbytes + 64, np.uint8)
        first = -room.ctypes.data % 64
        self.memory = room[first : first + numbers.nbytes].view(numbers.dtype)
        self.memory = self.memory.reshape(numbers.shape)
        self.memory[...] = numbers

    def __dlpack__(self, **options):
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


def from_dlpack(array):
    """As Torch and CuPy have it."""
    return Foreign(np.from_dlpack(array))


@public_call(data="X")
def place(X):
    return {"place": X.unsafe_buffer_pointer()}


RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 3))
SINES = np.sin(ROWS) @ [1.0, 0.5, 0.2]


@pytest.mark.filterwarnings("ignore:variances take rows as independent")
@EDGE
@pytest.mark.slow
def test_arrays_of_other_libraries_are_taken_without_a_copy_and_given_back_in_kind():
    X, Y = Foreign(ROWS), Foreign(SINES)
    assert place(X)["place"] == X.memory.ctypes.data
    want = rls.fit(rls.Gaussian(2.0), ROWS, SINES, groups=np.arange(40) % 8, lams=[0.1, 1.0])
    groups = Foreign(np.arange(40) % 8)
    fit = rls.fit(rls.Gaussian(2.0), X, Y, groups=groups, lams=[0.1, 1.0])
    assert isinstance(fit.model.coef, np.ndarray) and fit.error == want.error
    means, spreads = fit.predict(X, return_std=True)
    assert isinstance(means, Foreign) and means.memory.dtype == np.float64
    for found, wanted in zip((means, spreads), want.predict(ROWS, return_std=True), strict=True):
        assert_allclose(found.memory, wanted, rtol=1e-12)
    assert isinstance(fit.predict(ROWS), np.ndarray)
    assert (rls.Linear()(X, ROWS).memory == rls.Linear()(ROWS, ROWS)).all()
    with jax.enable_x64(False):  # turned, and in float32
        turned = rls.Linear()(Foreign(ROWS.astype(np.float32)), ROWS.astype(np.float32))
        assert turned.memory.dtype == np.float32


@EDGE
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_fit_keeps_numbers_of_its_own(dtype):
    rows = RNG.normal(size=(600, 2)).astype(dtype)  # too many to be padded
    X, labels = Foreign(rows), rows[:, 0] ** 2
    fit = rls.fit(rls.Gaussian(2.0), X, Foreign(labels), lams=[0.1, 1.0, 10.0])
    before = np.array(fit.predict(rows[:5]))
    X.memory[...] = 0
    assert (np.asarray(fit.predict(rows[:5])) == before).all()


@EDGE
@pytest.mark.parametrize("dtype", [">f8", ">f4", np.float16, np.longdouble, ">i4"])
def test_numbers_of_every_kind_are_read(dtype):
    X, Y = (10 * ROWS).astype(dtype), (10 * SINES).astype(dtype)
    known = np.float32 if dtype == ">f4" else np.float64
    options = {"weights": np.arange(1, 41).astype(dtype), "lams": np.array([1, 9]).astype(dtype)}
    plain = {name: value.astype(known) for name, value in options.items()}
    fit = rls.fit(rls.Gaussian(9.0), X, Y, **options)
    want = rls.fit(rls.Gaussian(9.0), X.astype(known), Y.astype(known), **plain)
    assert fit.error == want.error and fit.model.coef.dtype == known


@EDGE
def test_half_precision_on_a_device_is_computed_in_jaxs_own():
    half = jnp.asarray(ROWS, jnp.bfloat16)
    fit = rls.fit(rls.Linear(), half, half[:, 0], lams=[1.0, 9.0])
    want = rls.fit(
        rls.Linear(), half.astype(np.float32), half[:, 0].astype(np.float32), lams=[1, 9]
    )
    assert fit.error == want.error and fit.model.coef.dtype == np.float32


def tables():
    """Columns in which a value is missing, of every kind that pandas has."""
    table = pd.DataFrame({"a": np.arange(12) * 1.0, "b": np.arange(12) % 5 * 1.0})
    for name in ("Int64", "Float64", "Float32", "boolean", "double[pyarrow]", "int8[pyarrow]"):
        holes = (table % 2 if name == "boolean" else table).astype(name)
        holes.loc[3, "b"] = pd.NA
        yield holes
        yield holes.assign(a=table["a"])
    holes = table.astype(object)
    holes.loc[3, "b"] = None
    yield holes


def test_missing_values_of_every_kind_are_told_with_their_place():
    whole, y = pd.DataFrame({"a": np.arange(12.0), "b": np.arange(12.0) % 5}), np.arange(12.0)
    fit = rls.fit(rls.Gaussian(1.0), whole, y, lams=[0.1])
    place = r"1 values that are NaN .*at index \(3, 1\)"
    for holes in tables():
        with pytest.raises(ValueError, match=f"X holds {place}"):
            rls.fit(rls.Gaussian(1.0), holes, y)
        with pytest.raises(ValueError, match=f"X holds {place}"):
            fit.predict(holes)
        with pytest.raises(ValueError, match=r"Y holds 1 values .*at index \(3,\)"):
            rls.fit(rls.Gaussian(1.0), whole, holes["b"])
        with pytest.raises(ValueError, match=r"weights holds 1 values .*at index \(3,\)"):
            rls.fit(rls.Gaussian(1.0), whole, y, weights=holes["b"])


def test_what_is_made_of_a_fit_for_later_stays_float64():
    """As NumPy arrays, which a copy by pickle keeps where the switch is off."""
    X = np.linspace(0, 1, 20)[:, None]
    fit = rls.fit(rls.Gaussian(0.3), X, np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
    told = fit.predict(X, return_std=True)[1]
    again = pickle.loads(pickle.dumps(fit)).predict(X, return_std=True)[1]
    assert told.dtype == np.float64 and (told == again).all()


def test_transfers_that_jax_was_told_to_disallow_are_stated():
    """Calls move what they are given and what they make; not where stated ones are disallowed."""
    X, y = np.eye(6, 2, dtype=np.float32), np.arange(6, dtype=np.float32)
    model = rls.extend.Model(rls.Linear(), None, jnp.asarray([1.0, 2.0]), jnp.asarray(0.0))
    with jax.transfer_guard("disallow"):
        value = rls.objective(rls.Linear(), X, y, 0.1)
        told = model.predict(X)
    want = rls.objective(rls.Linear(), jnp.asarray(X), jnp.asarray(y), 0.1)
    assert abs(value - want) < 1e-6 and told.tolist() == [1, 2, 0, 0, 0, 0]
    with (
        jax.transfer_guard("disallow_explicit"),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"),
    ):
        model.predict(X)
