"""Distances whatever the offset and the spread, against long double; the kernels made of them;
their derivatives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, array, assert_close, gram, wide

import jaxrls as rls
from jaxrls.core.kernels import block
from jaxrls.core.kernels.block import (
    COLUMNS_A_PASS,
    FEW_COLUMNS,
    city_block_distances,
    squared_distances,
)

FEW, MANY = FEW_COLUMNS["cpu"], 2 * COLUMNS_A_PASS["cpu"] + 3


def scattered(seed, n, d, where):
    """Rows of every kind of trouble, as the precision of the run holds them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[n // 2 :] = X[: n - n // 2] + 1e-3 * rng.normal(
        size=(n - n // 2, d)
    )  # pairs that nearly coincide
    if where == "offset":
        X += 1e4
    elif where == "spread":
        X = (
            1e3 * np.repeat(rng.normal(size=(-(-n // 4), d)), 4, axis=0)[:n] + X
        )  # clusters far from each other
    elif where == "outlier":
        X[3] = 1e8
    elif where == "uneven columns":
        X *= np.geomspace(1e-6, 1e6, d)
    return wide(X)


def widths(X, kind):
    """One width for every column or one for each, exact in the precision of the run."""
    return wide(
        np.full(X.shape[1], 1.7) if kind == "one" else 1.5 * np.ptp(X, axis=0).clip(1e-9) / len(X)
    )


def rounding(d):
    """What may be lost, in units of 1 + r²: the docstring's, and d eps for few columns with 3 for
    1/width and a gap's own rounding.
    """
    return EPS * (d + 3 if d <= FEW else 12 * (2 + np.sqrt(d)))


def truth(X, Z, width):
    gaps = (X.astype(np.longdouble)[:, None] - Z[None]) / width
    return gaps, (gaps**2).sum(-1)


@pytest.mark.parametrize("kind", ["one", "each"])
@pytest.mark.parametrize("where", ["near", "offset", "spread", "outlier", "uneven columns"])
@pytest.mark.parametrize("d", [FEW, FEW + 1, MANY])
def test_every_distance_is_right_to_rounding(d, where, kind):
    """That of equal rows is 0, and the matrix of the same rows symmetric."""
    X = scattered(0, 16, d, where)
    X[5] = X[2]
    width = widths(X, kind)
    got = np.asarray(
        jax.jit(squared_distances)(array(X), array(X[2:]), array(1) / array(width)), np.longdouble
    )
    want = truth(X, X[2:], width)[1]
    size = want if d <= FEW else 1 + want
    assert (np.abs(got - want) <= rounding(d) * size).all(), (
        f"off by {np.max(np.abs(got - want) / (EPS * (1 + want))):.3g} eps (1 + r²)"
    )
    assert (np.diagonal(got[2:]) == 0).all() and got[5, 0] == 0
    assert_close(got[2:], got[2:].T, rounding(d))


def test_gpus_take_differences_of_more_columns(monkeypatch):
    """In one pass and without a conditional, which is more exact than a product."""
    monkeypatch.setattr(block, "platform", lambda: "gpu")
    of_gpu = lambda *args: squared_distances(*args)  # traced anew
    for d in (3, FEW_COLUMNS["gpu"]):
        X = scattered(0, 16, d, "offset")
        got = np.asarray(jax.jit(of_gpu)(array(X), array(X[2:]), array(np.ones(d))))
        want = truth(X, X[2:], 1.0)[1]
        assert (np.abs(got - want) <= EPS * (d + 3) * want).all()
        program = jax.jit(of_gpu).lower(array(X), array(X), array(np.ones(d))).as_text()
        assert not any(part in program for part in ("case", "while", "dot_general"))
        assert program.count("stablehlo.subtract") >= d


@pytest.mark.parametrize("where", ["offset", "spread", "outlier", "uneven columns"])
def test_every_city_block_distance_is_right_to_rounding(where):
    X = scattered(0, 16, FEW, where)
    width = widths(X, "each")
    got = np.asarray(
        city_block_distances(array(X), array(X), array(1) / array(width)), np.longdouble
    )
    want = np.abs(truth(X, X, width)[0]).sum(-1)
    assert (np.abs(got - want) <= 4 * FEW * EPS * want).all()


@pytest.mark.parametrize("d", [FEW, MANY])
@pytest.mark.parametrize("where", ["offset", "spread", "outlier"])
def test_derivatives_of_far_rows_are_right_to_rounding(d, where):
    """∂r²/∂(1/width) = 2 Σ gap² / width and ∂r²/∂x = 2 gap / width², where a product of uncentred
    rows would lose all digits.
    """
    X = scattered(2, 10, d, where)
    width = widths(X, "each")
    gaps, _ = truth(X, X, width)
    cotangent = np.random.default_rng(3).normal(size=(10, 10)) * (np.abs(gaps).max(-1) < 10)

    def total(X, Z, inverse):
        return jnp.sum(array(cotangent) * squared_distances(X, Z, inverse))

    dX, dZ, dinverse = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(
        array(X), array(X), array(1) / array(width)
    )
    each = cotangent[:, :, None] * gaps
    for got, terms, axis in (
        (dX, each / width, 1),
        (dZ, -each / width, 0),
        (dinverse, each * gaps * width, (0, 1)),
    ):
        want, size = 2 * terms.sum(axis), 2 * np.abs(terms).sum(axis)
        assert (np.abs(np.asarray(got) - want) <= 64 * EPS * (size + size.max() * EPS)).all()


def test_a_batch_computes_one_branch_and_is_right():
    """Under vmap a condition on a batch would become a choice between two results, both computed:
    the slow one always.
    """
    X = array(np.stack([scattered(6, 8, MANY, "near") / 4, scattered(6, 8, MANY, "spread")]))
    ones = jnp.ones(MANY, X.dtype)
    batch = jax.jit(jax.vmap(squared_distances, in_axes=(0, 0, None)))
    assert " conditional(" in batch.lower(X, X, ones).compile().as_text()
    for got, rows in zip(batch(X, X, ones), X, strict=True):
        want = truth(np.asarray(rows), np.asarray(rows), 1)[1]
        assert (np.abs(np.asarray(got) - want) <= rounding(MANY) * (1 + want)).all()


def test_periods_far_from_0():
    """The phase is what is left over by whole periods, to rounding of the phase: x / period keeps
    eps·x of it.
    """
    x = wide(np.arange(40.0)[:, None] / 4 + 1e6 * (np.arange(40) >= 20)[:, None])
    period, width = 3.0, 0.5
    got = np.asarray(gram(rls.Periodic(period, width), array(x)), np.float64)
    want = np.exp(-2 * np.sin(np.pi * np.fmod(x - x.T, period) / period) ** 2 / width**2)
    assert np.abs(got - want).max() <= 100 * EPS


def test_distances_that_overflow_are_far_and_not_nan():
    X = array([[0.0], [float(np.finfo(DTYPE).max) / 4]])
    materns = [rls.Matern(nu, 1.0) for nu in (0.5, 1.5, 2.5)]
    for kernel in (rls.Gaussian(1.0), *materns, rls.RationalQuadratic(1.0), rls.Laplacian(1.0)):
        K = np.asarray(kernel(X, X))
        assert (np.diagonal(K) == 1).all() and K[0, 1] == 0, kernel
