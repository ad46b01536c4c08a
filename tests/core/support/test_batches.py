"""Batches of LAPACK calls: large ones go to the pool of threads that waits for them, and two at a
time on two cores wait for ever.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision
# Operations: jaxlib's own bound, below which a batch is done by the thread that asks for it.
IN_LINE = 200_000
CALL = re.compile(
    r"custom_call @lapack_\w+\((?:.*?): \(tensor<((?:\d+x)+)f\d+>(?:, tensor<((?:\d+x)+)f\d+>)?"
)
X = np.random.default_rng(0).normal(size=(120, 2))
Y = np.sin(X)


def pooled(program, *arguments):
    """Of a program's calls those whose batch would go to the pool."""
    text, found = jax.jit(program).lower(*arguments).as_text(), 0
    for shapes in CALL.findall(text):
        found += 1
        *batch, rows, columns = map(int, shapes[0].split("x")[:-1])
        others = [int(side) for side in shapes[1].split("x")[-3:-1]] if shapes[1] else [rows]
        if math.prod(batch) > 1 and math.prod(batch) * rows * columns * max(others) >= IN_LINE:
            yield shapes
    assert found, text[:2000]


ROUTES = {
    "gram": {},
    "cholesky": {"solver": rls.Cholesky()},
    "landmarks": {"landmarks": np.arange(0, 120, 2)},
}


@pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("size", [60, 3])
def test_groups_are_left_out_in_batches_that_wait_for_nobody(options, size):
    plan = rls.folds(np.arange(120) // size)

    def residuals(x, y):
        solution = rls.factorize(rls.Gaussian(1.0), x, **options).solve(y)
        some = jnp.array([0.1, 1.0, 10.0])
        return solution.held_out_residuals(some, plan), solution.sum_held_out(
            lambda held: jnp.sum(held.weights[:, None] * held.e**2, axis=0), some, plan
        )

    assert list(pooled(residuals, jnp.asarray(X), jnp.asarray(Y))) == []
