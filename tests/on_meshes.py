"""What `test_meshes.py` runs in a process of its own, which has four devices: everything on meshes of 1, 2 and 4 of them beside one device."""

import json
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxrls as rls

N, D, M, T = 48, 3, 6, 2
draw = np.random.default_rng(0)
X, NEW = draw.normal(size=(N, D)), draw.normal(size=(20, D))
Y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 1] ** 2], axis=1) + 0.1 * draw.normal(size=(N, T))
V = draw.uniform(0.5, 2, N)
LAMS = np.geomspace(1e-2, 10, 3)
GROUPS = np.arange(N) % 3
ROWS = np.array([3, 40, 17, 8, 29, 11])
POINTS = draw.normal(size=(M, D))
KERNEL = rls.Gaussian(1.5)
WAVES = rls.FeatureMap(lambda X: jnp.concatenate([jnp.sin(X), X], axis=1))


def sweep(criterion, kernel, options, X, y, v=None):
    return criterion(rls.factorize(kernel, X, weights=v, **options), y, LAMS)


def pieces(X, y, v):
    """All of the functions that take a factor."""
    factor = rls.factorize(KERNEL, X, weights=v, landmarks=ROWS)
    found = rls.path(factor, y, LAMS)
    more = rls.coef(factor, y, 0.1), rls.loo_residuals(factor, y, 0.1), rls.effective_dof(factor, LAMS), rls.lambda_grid(factor, 5)
    return found.coef, found.loo, rls.gcv(factor, y, LAMS), rls.log_marginal_likelihood(factor, y, LAMS), more


def fitted(kernel, X, y=None, v=None, **options):
    fit = rls.fit(kernel, X, y, weights=v, lams=LAMS, **options)
    return fit.errors, fit.error, fit.loo_residuals, fit.dof, fit.predict(NEW), fit.predict(X)


def tuned(X, y):
    found = rls.tune(KERNEL, X, y[:, 0], landmarks=POINTS, steps=2)
    return found.error, found.kernel.width, found.loo_residuals


def objective(criterion, width, lam, X, y, v, points):
    return rls.objective(rls.Gaussian(width), X, y, lam, criterion=criterion, weights=v, landmarks=points)


def gradients(criterion, X, y, v):
    """In everything: kernel, λ, rows, labels, weights, points."""
    return jax.jit(jax.value_and_grad(partial(objective, criterion), range(6)))(1.5, 0.1, X, y, v, jnp.asarray(POINTS))


CHOLESKY = {"route": "cholesky"}
CASES = {
    "pieces": lambda X, y, v: pieces(X, y, v),
    "pieces without weights": lambda X, y, v: pieces(X, y[:, 0], None),
    "linear": lambda X, y, v: fitted(rls.Linear(), X, y, v),
    "features": lambda X, y, v: fitted(WAVES, X, y, v, intercept=False),
    "points": lambda X, y, v: fitted(KERNEL, X, y, v, landmarks=POINTS, intercept=False, per_target=True),
    "landmarks by Cholesky": lambda X, y, v: fitted(KERNEL, X, y, v, landmarks=ROWS, route="cholesky"),
    "held out": lambda X, y, v: fitted(KERNEL, X, y, v, landmarks=ROWS, validation=(NEW, NEW[:, :T])),
    "groups": lambda X, y, v: fitted(KERNEL, X, y, v, landmarks=ROWS, groups=GROUPS),
    "searched": lambda X, y, v: rls.fit(rls.Linear(), X, y, lams="search", route="cholesky").error,
    "linear by Cholesky": lambda X, y, v: sweep(rls.loo, rls.Linear(), CHOLESKY, X, y, v),
    "tuned": lambda X, y, v: tuned(X, y),
    "loo and gradients": lambda X, y, v: gradients(rls.loo, X, y, v),
    "evidence and gradients": lambda X, y, v: gradients(rls.log_marginal_likelihood, X, y, v),
    "gram_matmul": lambda X, y, v: rls.gram_matmul(KERNEL, X, POINTS, jnp.ones(M)),
    "gram_matmul compiled": lambda X, y, v: jax.jit(partial(rls.gram_matmul, KERNEL))(X, POINTS, jnp.ones((M, 2))),
}


def off(got, want):
    """The largest difference, by the size of each result."""
    leaves, others = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(leaves) == len(others)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(leaves, others, strict=True)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) for a, b in pairs)


def mesh_of(count, kind):
    return Mesh(np.array(jax.devices()[:count]), ("rows",), axis_types=(kind,))


def main():
    import traceback
    names = sys.argv[1:] or CASES
    for name in names:
        run = CASES[name]
        want = run(X, Y, V)
        for kind in (AxisType.Auto, AxisType.Explicit):
            for count in ((4,) if len(sys.argv)>1 else (1, 2, 4)):
                split = NamedSharding(mesh_of(count, kind), P("rows"))
                arrays = [jax.device_put(a, split) for a in (X, Y, V)]
                try:
                    print(name, kind, count, off(run(*arrays), want), flush=True)
                except Exception as e:
                    print(name, kind, count, "FAIL", type(e).__name__, str(e)[:300])
                    if len(sys.argv) > 1: traceback.print_exc()


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    main()
