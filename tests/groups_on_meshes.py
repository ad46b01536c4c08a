"""What `test_groups_on_meshes.py` runs in a process of its own, which has four devices: groups left
out of rows on meshes, beside refits and one device.

All of it with the argument `all`, else some of each part.
"""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from on_meshes import (
    ALL,
    KERNEL,
    KINDS,
    LAMS,
    POINTS,
    ROWS,
    WAVES,
    D,
    N,
    T,
    V,
    X,
    Y,
    collectives,
    off,
    spread,
)
from oracle import refit

import jaxrls as rls

ZEROS = np.where(np.arange(N) % 5 == 1, 0, V)  # a landmark and others weigh nothing
PLANS = {
    "few": np.arange(N) % 3,  # ordinary folds, each on every device
    "days": np.arange(N) // 4,  # many groups, each on one device
    "uneven": np.repeat(
        np.arange(13), [3, 3, 3, 3, 5, 7, 7, 5, 1, 1, 2, 7, 1]
    ),  # likewise, of different sizes and not as many on each
    "far": np.arange(N) * 5 % 16,  # many, whose rows are anywhere
}


def gaussian(A, B):
    return np.exp(-((A[:, None] - B[None]) ** 2).sum(-1) / (2 * 1.5**2))


def waves(A, _):
    return np.concatenate([np.sin(A), A], axis=1)


def features(points, gone):
    """Of all rows, made of the landmarks that stay."""
    stay = points if points is POINTS else X[np.setdiff1d(points, gone)]
    return np.linalg.solve(np.linalg.cholesky(gaussian(stay, stay)), gaussian(stay, X)).T


def refits(of, groups, v, intercept, lams=LAMS):
    """Residuals (L, n, t) of a refit for every group; `of` gives Φ of all rows without those that
    are gone.
    """
    e = np.empty((len(lams), N, T))
    for g in np.unique(groups):
        held = groups == g
        Phi = of(np.flatnonzero(held))
        for i, lam in enumerate(lams):
            w, b = refit(Phi[~held], Y[~held], lam, v[~held], intercept)
            e[i, held] = Y[held] - Phi[held] @ w - b
    return e


MODELS = {
    "landmarks": (KERNEL, {"landmarks": ROWS}, partial(features, ROWS)),
    "points": (KERNEL, {"landmarks": POINTS, "intercept": False}, partial(features, POINTS)),
    "waves": (WAVES, {}, lambda gone: waves(X, gone)),
    "linear by Cholesky": (rls.Linear(), {"route": "cholesky"}, lambda gone: X),
    "landmarks by Cholesky": (
        KERNEL,
        {"landmarks": ROWS, "route": "cholesky"},
        partial(features, ROWS),
    ),
}
QUICK = {
    ("landmarks", "few"),
    ("landmarks", "days"),
    ("waves", "far"),
    ("landmarks by Cholesky", "few"),
    ("landmarks by Cholesky", "uneven"),
}


def answers(kernel, options, groups, x, y, v):
    """Errors at all λ, at one λ for each target, and residuals; in one program, as eager ones on
    several CPU devices may wait for each other for ever.
    """
    rows = rls.shard(x) if isinstance(x, jax.Array) else x
    plan = rls.folds(groups)
    each = jnp.asarray(np.stack([LAMS, LAMS[::-1]], axis=1))

    @jax.jit
    def run(rows, y, v, plan):
        factor = rls.factorize(kernel, rows, weights=v, **options)
        return (
            rls.kfold(factor, y, LAMS, plan),
            rls.kfold(factor, y, each, plan),
            rls.loo_residuals(factor, y, float(LAMS[1]), plan),
        )

    return run(rows, y, v, plan)


def told(e, v):
    """The same of residuals (L, n, t)."""
    errors = np.einsum("i,lit->lt", v, e**2) / v.sum()
    return errors, np.stack([errors[:, 0], errors[::-1, 1]], axis=1), e[1]


def truth():
    """How far everything is from refits, and from one device."""
    found = {}
    for model, (kernel, options, of) in MODELS.items():
        for number, (plan, groups) in enumerate(PLANS.items()):
            if not ALL and (model, plan) not in QUICK:
                continue
            for name, v in (
                {"weights": ZEROS, "ones": None}.items() if ALL else {"weights": ZEROS}.items()
            ):
                want = told(
                    refits(
                        of, groups, np.ones(N) if v is None else v, options.get("intercept", True)
                    ),
                    np.ones(N) if v is None else v,
                )
                alone = answers(kernel, options, groups, X, Y, v)
                kind, count = list(KINDS)[number % 2], 2 if ALL and v is None else 4
                x, y, *w = spread(kind, count, X, Y, *([] if v is None else [v]))
                got = answers(kernel, options, groups, x, y, w[0] if w else None)
                found[f"{model}, {plan}, {name}, {kind}, {count}"] = {
                    "refits": off(got, want),
                    "alone": off(got, alone),
                }
    return found


def slopes():
    """Gradients of the k-fold error in everything, on four devices beside one."""
    found, points = {}, jnp.asarray(POINTS)
    for plan in ("few", "days", "far") if ALL else ("far",):
        groups = rls.folds(PLANS[plan])

        def error(width, lam, x, y, v, points, groups=groups):
            return rls.objective(
                rls.Gaussian(width), x, y, lam, groups=groups, weights=v, landmarks=points
            )

        slope, (x, y, v) = jax.jit(jax.value_and_grad(error, range(6))), spread("auto", 4, X, Y, V)
        found[plan] = off(
            slope(1.5, 0.1, rls.shard(x), y, v, points), slope(1.5, 0.1, X, Y, V, points)
        )
    return found


def ways():
    """What is said where one group holds all of the weight, and of labels that do not fit."""
    x, y = spread("auto", 4, X, Y)
    found = {}
    weights = spread("auto", 4, 1.0 * (PLANS["few"] == 1))[0]
    heavy = jax.jit(lambda rows, v: rls.factorize(KERNEL, rows, weights=v, landmarks=ROWS))(
        rls.shard(x), weights
    )
    try:
        rls.kfold(heavy, y, LAMS, PLANS["few"])
    except ValueError as error:
        found["heavy"] = str(error)
    try:
        rls.fit(
            KERNEL,
            rls.shard(X[: N - 1], Y[: N - 1], mesh=x.sharding.mesh),
            groups=PLANS["few"][: N - 2],
            landmarks=ROWS,
        )
    except ValueError as error:
        found["short"] = str(error)
    undefined = jax.jit(lambda y, plan: rls.loo_residuals(heavy, y, 0.1, plan))(
        y, rls.folds(PLANS["few"])
    )
    return found | {
        "undefined": bool((np.isnan(undefined).all(axis=1) == (PLANS["few"] == 1)).all())
    }


def fits():
    """A fit by `shard` with padding, and where its residuals lie."""
    n, options = N - 1, {"lams": LAMS, "landmarks": ROWS}
    found = {}
    for plan in PLANS if ALL else ("few", "days"):
        for kind in KINDS if ALL else ("explicit",):
            mesh = spread(kind, 4, X)[0].sharding.mesh
            rows, groups = rls.shard(X[:n], Y[:n], V[:n], mesh=mesh), PLANS[plan][:n]
            got, want = (
                rls.fit(KERNEL, rows, groups=groups, **options),
                rls.fit(KERNEL, X[:n], Y[:n], weights=V[:n], groups=groups, **options),
            )
            parts = [
                (fit.errors, np.asarray(fit.loo_residuals)[:n], fit.dof, fit.predict(POINTS))
                for fit in (got, want)
            ]
            split = got.loo_residuals.sharding.is_equivalent_to(rows.X.sharding, 2)
            found[f"{plan}, {kind}"] = {"off": off(*parts), "split": bool(split)}
    planned = rls.fit(
        KERNEL, rows, groups=rls.folds(groups), **options
    )  # of the rows as they were before padding
    found["a plan"] = {"off": off(planned.errors, want.errors), "split": True}
    return found


def programs():
    """What leaving groups of 200,000 rows out becomes on four devices, with 64 landmarks that
    leave.
    """
    n, m = 200_000, 64
    numbers, auto = np.arange(m) * 10, spread("auto", 4, X)[0].sharding
    x, y, v = (
        jax.ShapeDtypeStruct(shape, jnp.float64, sharding=auto) for shape in ((n, D), (n, T), (n,))
    )

    def everything(route, plan, x, y, v):
        factor = rls.factorize(KERNEL, x, weights=v, landmarks=numbers, route=route)
        return rls.kfold(factor, y, LAMS, plan), rls.loo_residuals(factor, y, 0.1, plan)

    def moved(route, groups):
        rows = rls.ShardedRows(x, 4, auto, n)
        plan = rls.folds(groups)
        return collectives(
            jax.jit(partial(everything, route)).lower(plan, rows, y, v).compile().as_text()
        )

    tens, days, far = np.arange(n) % 10, np.arange(n) // 8, np.arange(n) % (n // 8)
    found = {
        "few": moved(None, tens),
        "few by Cholesky": moved("cholesky", tens),
        "days": moved(None, days),
        "far": moved(None, far),
    }
    if ALL:
        found |= {
            "days by Cholesky": moved("cholesky", days),
            "far by Cholesky": moved("cholesky", far),
        }
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in `on_meshes.py`
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    for part in (truth, slopes, ways, fits, programs):
        print(json.dumps({part.__name__: part()}), flush=True)
