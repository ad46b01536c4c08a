"""What `test_programs.py` runs in a process of its own, which has two devices: every call of the
table on the page "In your own JAX program" in everything that a call may stand in.
"""

import json
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxrls as rls

N, TOLERANCE = 12, 1e-6
DRAW = np.random.default_rng(0)
POINTS = DRAW.normal(size=(4, 2))
NEW = DRAW.normal(size=(5, 2))


def problem(seed):
    """Everything that a call may be differentiated in."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(N, 2))
    Y = np.sin(X[:, 0]) + 0.3 * draw.normal(size=N)
    weights = draw.uniform(0.5, 2, N)
    return {"Y": Y, "lam": 0.3, "width": 1.5, "X": X, "weights": weights}


def objective(p, **options):
    kernel = rls.Gaussian(p["width"])
    return rls.objective(kernel, p["X"], p["Y"], p["lam"], weights=p["weights"], **options)


def fitted(p, **options):
    kernel = rls.Gaussian(p["width"])
    lams = jnp.asarray(p["lam"])[None]
    return rls.fit(kernel, p["X"], p["Y"], lams=lams, weights=p["weights"], **options)


def fit(p, **options):
    found = fitted(p, **options)
    return found.error + jnp.sum(found.predict(NEW) ** 2)


def fit_of_many(p, **options):
    """λ from a grid."""
    kernel = rls.Gaussian(p["width"])
    found = rls.fit(kernel, p["X"], p["Y"], lams=20, weights=p["weights"], **options)
    return found.error * (1 + 0 * p["lam"])


def path(p, **options):
    kernel = rls.Gaussian(p["width"])
    factor = rls.factorize(kernel, p["X"], weights=p["weights"], **options)
    return jnp.sum(rls.path(factor, p["Y"], p["lam"] * jnp.array([1.0, 3.0])).loo)


def best_lam(p, **options):
    kernel = rls.Gaussian(p["width"])
    lams = jnp.geomspace(1e-2, 1e2, 20)
    found = rls.extend.best_lam(kernel, p["X"], p["Y"], lams, weights=p["weights"], **options)
    return found * (1 + 0 * p["lam"])


def predict(p, **options):
    """Rows in place of those that were fitted, and coefficients in place of labels."""
    options = {"block_size": None} | options
    model = rls.extend.Model(rls.Gaussian(p["width"]), POINTS, POINTS[:, 0], p["lam"])
    return jnp.sum((model.predict(p["X"], **options) + p["Y"]) ** 2 * p["weights"])


def deviations(p, **options):
    found = fitted(p, keep=True, **options)
    mean, std = found.predict(NEW, return_std=True)
    return jnp.sum(mean + std)


def intervals(p, **options):
    low, high = fitted(p, keep=True, **options).intervals(NEW, 0.5)
    return jnp.sum(low + 2 * high)


def tune(p, **options):
    kernel = rls.Gaussian(p["width"])
    return rls.tune(kernel, p["X"], p["Y"], weights=p["weights"], steps=1, **options).error


# The rows of the table.
CALLS = {
    "`objective`": objective,
    "`fit`, one λ": fit,
    "`fit`, a grid of λ": fit_of_many,
    "`factorize` and `path`": path,
    "`extend.best_lam`": best_lam,
    "`model.predict`": predict,
    "`fit.predict(…, return_std=True)`": deviations,
    "`fit.intervals`": intervals,
    "`tune`": tune,
}


# what a call may stand in
# --------------------------------------------------------------------------------------------------


def near(got, want):
    """Raise unless they agree."""
    error = np.abs(np.asarray(got) - np.asarray(want)).max()
    if not error <= TOLERANCE * np.abs(np.asarray(want)).max():
        raise ArithmeticError(f"{got} and not {want}")


def in_jit(call):
    near(jax.jit(call)(problem(0)), call(problem(0)))


def in_vmap(call):
    both = jax.tree.map(lambda *parts: np.stack(parts), problem(0), problem(1))
    near(jax.jit(jax.vmap(call))(both), [call(problem(0)), call(problem(1))])


def in_grad(names, call):
    """Against a difference of order 4 in a random direction, so short that no quantile jumps."""
    draw = np.random.default_rng(2)
    p = jax.tree.map(jnp.asarray, problem(0))
    direction = {name: draw.normal(size=np.shape(p[name])) for name in names}
    moved = lambda step: {name: p[name] + step * direction[name] for name in names}
    # One program for values and slopes.
    both = jax.jit(jax.value_and_grad(lambda step: call(p | moved(step))))
    along, slope, h = lambda step: both(step)[0], both(0.0)[1], 1e-4
    wanted = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    near(slope, wanted)


def in_export(call):
    p = jax.tree.map(jnp.asarray, problem(0))
    exported = jax.export.export(jax.jit(call), platforms=("cpu", "cuda", "tpu"))(p)
    near(exported.call(p), call(problem(0)))


def on_mesh(kind, call):
    """In a program, of rows on two devices."""
    mesh = Mesh(np.array(jax.devices()), ("rows",), axis_types=(kind,))
    rows = NamedSharding(mesh, P("rows"))
    p = problem(0)
    given = p | {name: jax.device_put(p[name], rows) for name in ("X", "Y", "weights")}
    near(jax.jit(call)(given), call(p))


# The columns of the table.
PLACES = {
    "`jit`": in_jit,
    "`vmap`": in_vmap,
    "`grad` in Y, λ": partial(in_grad, ["Y", "lam"]),
    "`grad` in kernel, X, weights": partial(in_grad, ["width", "X", "weights"]),
    "`export`": in_export,
    "Auto mesh": partial(on_mesh, AxisType.Auto),
    "Explicit mesh": partial(on_mesh, AxisType.Explicit),
}


def cell(call, place):
    """What the table says of a call: "yes", the option with which it goes, or "no"."""
    for said, options in (("yes", {}), ("Cholesky", {"solver": rls.Cholesky()})):
        try:
            place(partial(call, **options))
        except (TypeError, ValueError):  # refused
            continue
        return said
    return "no"


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", UserWarning)
    for name, call in CALLS.items():
        found = {where: cell(call, place) for where, place in PLACES.items()}
        print(json.dumps({name: found}), flush=True)
