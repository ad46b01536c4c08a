"""What results say of themselves: names of kernels, fits out of `vmap`, outputs that lack letters,
labels that are all equal, kernels that give NaN.
"""

import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, DTYPE, refused

import jaxrls as rls

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype(DTYPE)
Y = (X[:, 0] + 0.1 * RNG.normal(size=30)).astype(DTYPE)
pytestmark = ANY_PRECISION


def test_kernels_are_named_by_their_parts():
    gaussian, linear = rls.Gaussian(2.0), rls.Linear()
    cases = {
        "Matern": 1.0 * rls.Matern(1.5, 2.0),
        "Gaussian + Linear": gaussian + 0.5 * linear,
        "(Gaussian + Linear) * Gaussian": (gaussian + linear) * gaussian.on(0),
    }
    assert {title: kernel.title for title, kernel in cases.items()} == {key: key for key in cases}


def test_fits_out_of_vmap_say_how_many_there_are():
    both = jnp.stack([X, -X])
    fits = jax.vmap(lambda X: rls.fit(rls.Gaussian(1.0), X, Y, lams=[0.1, 1.0]))(both)
    assert repr(fits) == "Gaussian on 2 sets of 30 rows, by the loo error"


def test_an_output_may_lack_letters(monkeypatch):
    """As a file on Windows does."""
    fit = rls.fit(rls.Gaussian(1.0), X, Y, lams=[1e-4, 0.03, 10.0])
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", output)
    print(fit)
    output.flush()
    text = output.buffer.getvalue().decode("cp1252")
    assert "lambda = " in text and "R² " not in text and "3 lambda from one" in text


@pytest.mark.parametrize("call", [rls.fit, rls.tune])
def test_equal_labels_are_said_and_nothing_is_advised(call):
    with pytest.warns(UserWarning) as warned:
        fit = call(rls.Gaussian(1.0), X[:, :1], np.full(30, 5, DTYPE))
    assert [str(one.message)[:25] for one in warned] == ["the labels are all equal:"]
    assert np.allclose(fit.predict(X[:2, :1]), 5)


def test_what_a_kernel_may_not_be():
    nan = rls.FunctionKernel(lambda A, B: jnp.log(A - B.T))
    module = {"weights": np.ones((2, 3), DTYPE), "activation": jnp.tanh}
    network = rls.FeatureMap(lambda params, X: params["activation"](X @ params["weights"]), module)
    centred = rls.FeatureMap(lambda X: X - X.mean(axis=0))
    scaled = rls.FunctionKernel(lambda X, Z: X @ Z.T / jnp.abs(X @ Z.T).max())
    of_a_batch = r"\.fn has another value for a row alone than for it among other rows"
    refused(
        (lambda: rls.fit(nan, X[:, :1], Y), "kernel FunctionKernel gave NaN or infinity for rows"),
        (
            lambda: rls.fit(network, X, Y),
            r"FeatureMap.params\['activation'\] must be an array or a number, and is <.*partition",
        ),
        (lambda: rls.fit(rls.Linear() + 0.5 * centred.on([1]), X, Y), f"FeatureMap{of_a_batch}"),
        (lambda: rls.tune(1.0 * scaled, X, Y), f"FunctionKernel{of_a_batch}"),
    )
