"""What conjugate gradients say where they cannot go on; the contract's grid has what they find."""

import jax.numpy as jnp
import numpy as np
from support import FLOAT64, array, wide

from jaxrls.iterative import conjugate

N = 40
RNG = np.random.default_rng(0)
Q, B = np.linalg.qr(RNG.normal(size=(N, N)))[0], array(RNG.normal(size=(N, 3)))


def solved(product, tol, steps):
    def measure(X, R, near):
        return jnp.linalg.norm(R, axis=0) / jnp.linalg.norm(B, axis=0)

    options = {"measure": measure, "tol": tol, "steps": steps}
    return conjugate.conjugate_gradients(product, B, lambda R: R, **options)


def test_stops_where_products_are_not_what_they_should_be():
    signs = array(np.where(np.arange(N) < 3, -1.0, 1.0))[:, None]
    for product in (lambda V: signs * V, lambda V: jnp.full_like(V, jnp.nan)):
        X, run = solved(product, 1e-13, 300)
        assert np.isfinite(X).all() and (run.residuals <= 1).all()
        assert (run.reason == conjugate.INDEFINITE).all()


@FLOAT64
def test_a_recurrence_that_hides_rounding_is_found_out():
    """Products to three digits: the recurrence comes down to the tolerance, and the residual does
    not.
    """
    A = array((Q / np.geomspace(1, 1e2, N)) @ Q.T)

    def coarse(V):
        product = jnp.matmul(A, V, precision="highest")
        unit = jnp.max(jnp.abs(product)) / 2**10
        return jnp.round(product / unit) * unit

    X, run = solved(coarse, 1e-6, 200)
    left = np.linalg.norm(wide(B) - wide(A) @ wide(X), axis=0) / np.linalg.norm(wide(B), axis=0)
    assert (np.nanmin(np.asarray(run.history), axis=0) <= 1e-6).any() and (left > 1e-5).all()
    assert (np.asarray(run.reason) != conjugate.CONVERGED).all()
    assert (np.asarray(run.residuals) > 1e-5).all()
