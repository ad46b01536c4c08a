"""What `test_meshes.py` runs in a process of its own, which has four devices: everything on meshes
of 1, 2 and 4 of them beside one device.

All of it with the argument `all`, else some of each part.
"""

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
from jaxrls.search import few

N, D, M, T = 48, 3, 6, 2
draw = np.random.default_rng(0)
X, NEW = draw.normal(size=(N, D)), draw.normal(size=(20, D))
Y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 1] ** 2], axis=1) + 0.1 * draw.normal(size=(N, T))
V = draw.uniform(0.5, 2, N)
LAMS = np.geomspace(1e-3, 1e2, 3)
GROUPS = np.arange(N) % 3
EVENTS = (np.arange(N) % 4 > 0).astype(float)
ROWS = np.array([3, 40, 17, 8, 29, 11])
POINTS = draw.normal(size=(M, D))
KERNEL = rls.Gaussian(1.5)
WAVES = rls.FeatureMap(lambda X: jnp.concatenate([jnp.sin(X), X], axis=1))


def at_once(fn):
    """In one program: of many small ones that add up over devices, JAX's CPU runtime may wait for
    ever.
    """
    return lambda X, *columns: jax.jit(fn)(
        rls.shard(X) if isinstance(X, jax.Array) else X, *columns
    )


def sweep(criterion, kernel, options, X, y, v=None):
    return at_once(
        lambda X, y, v: criterion(rls.factorize(kernel, X, weights=v, **options), y, LAMS)
    )(X, y, v)


@at_once
def pieces(X, y, v):
    """All of the functions that take a factor."""
    factor = rls.factorize(KERNEL, X, weights=v, landmarks=ROWS)
    found = rls.path(factor, y, LAMS)
    more = (
        rls.coef(factor, y, 0.1),
        rls.loo_residuals(factor, y, 0.1),
        rls.effective_dof(factor, LAMS),
        rls.lambda_grid(factor, 5),
    )
    return (
        found.coef,
        found.loo,
        rls.gcv(factor, y, LAMS),
        rls.log_marginal_likelihood(factor, y, LAMS),
        more,
    )


def fitted(kernel, X, y=None, v=None, **options):
    fit = rls.fit(kernel, X, y, weights=v, lams=LAMS, **options)
    return fit.errors, fit.error, fit.loo_residuals, fit.dof, fit.predict(NEW), fit.predict(X)


def tuned(X, y):
    found = rls.tune(KERNEL, X, y[:, 0], landmarks=POINTS, steps=1, start="kernel")
    return found.error, found.kernel.width, found.loo_residuals


def grown(X, y):
    """Begun on few rows, of which some are for each landmark."""
    few.ROWS, few.LANDMARKS, few.ROWS_A_LANDMARK = 10, 4, 2
    found = rls.tune(KERNEL, X, y[:, 0], landmarks=M, steps=2, start="kernel", grow=True)
    assert [stage.rows for stage in found.stages] == [10, 2 * M]
    return found.error, found.kernel.width, found.model.points, found.loo_residuals


def objective(criterion, width, lam, X, y, v, points):
    return rls.objective(
        rls.Gaussian(width), X, y, lam, criterion=criterion, weights=v, landmarks=points
    )


def gradients(criterion, X, y, v):
    """In everything: kernel, λ, rows, labels, weights, points."""
    return jax.jit(jax.value_and_grad(partial(objective, criterion), range(6)))(
        1.5, 0.1, X, y, v, jnp.asarray(POINTS)
    )


def predicted(X):
    return rls.Model(KERNEL, jnp.asarray(POINTS), jnp.ones(M), jnp.zeros(())).predict(X)


def started(X, y):
    """What is asked of rows before a fit, and of a factor after it."""
    influence = at_once(
        lambda X, y: rls.influence(rls.factorize(KERNEL, X, landmarks=ROWS), y, 0.1).cooks_distance
    )
    return rls.median_distance(X), rls.start_from_data(KERNEL, X).width, influence(X, y)


CHOLESKY = {"route": "cholesky"}


def labelled(scores, v):
    """What is made of scores of rows left out and codes, which both lie on the mesh."""
    codes = jnp.sign(jnp.sin(7 * scores))
    sigmoid = rls.fit_sigmoid(scores, codes, v)
    return sigmoid.offset, sigmoid(NEW[:, 0]), rls.label_p_values(scores, codes, NEW[:, 0], v)


CASES = {
    "pieces": lambda X, y, v: pieces(X, y, v),
    "linear": lambda X, y, v: fitted(rls.Linear(), X, y, v),
    "linear by Cholesky, without weights": lambda X, y, v: sweep(
        rls.loo, rls.Linear(), CHOLESKY, X, y[:, 0]
    ),
    "features": lambda X, y, v: fitted(WAVES, X, y, v, intercept=False),
    "points": lambda X, y, v: fitted(
        KERNEL, X, y, v, landmarks=POINTS, intercept=False, per_target=True
    ),
    "landmarks by Cholesky": lambda X, y, v: fitted(
        KERNEL, X, y, v, landmarks=ROWS, route="cholesky"
    ),
    "held out": lambda X, y, v: fitted(
        KERNEL, X, y, v, landmarks=ROWS, validation=(NEW, NEW[:, :T])
    ),
    "groups": lambda X, y, v: fitted(KERNEL, X, y, v, landmarks=ROWS, groups=GROUPS),
    "pairs": lambda X, y, v: sweep(
        rls.pairwise_ranking_error, KERNEL, {"landmarks": ROWS}, X, y, v
    ),
    "squares of named pairs": lambda X, y, v: fitted(
        rls.Linear(),
        X,
        y,
        v,
        criterion=rls.PairsOut(pairs=[[3, 40], [17, 8]], loss=rls.squared_error),
    ),
    "searched": lambda X, y, v: rls.fit(rls.Linear(), X, y, lams="search", route="cholesky").error,
    "tuned": lambda X, y, v: tuned(X, y),
    "tuned, begun on few rows": lambda X, y, v: grown(X, y),
    "loo and gradients": lambda X, y, v: gradients(rls.loo, X, y, v),
    "evidence and gradients": lambda X, y, v: gradients(rls.log_marginal_likelihood, X, y, v),
    "from rows": lambda X, y, v: started(X, y),
    "gram_matmul": lambda X, y, v: rls.gram_matmul(KERNEL, X, POINTS, jnp.ones(M)),
    "gram_matmul compiled": lambda X, y, v: jax.jit(partial(rls.gram_matmul, KERNEL))(
        X, POINTS, jnp.ones((M, 2))
    ),
    "labels": lambda X, y, v: labelled(y[:, 0], v),
}


SEVERAL = (
    "linear",
    "loo and gradients",
)  # on 1, 2 and 4 devices where all is asked for; the others on 4
QUICK = (
    "pieces",
    "linear",
    "loo and gradients",
    "gram_matmul compiled",
    "from rows",
    "labels",
    "pairs",
)  # where not all is asked for
ALL = sys.argv[1:] == ["all"]
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def off(got, want):
    """The largest difference, by the size of each result."""
    leaves, others = jax.tree.leaves(got), jax.tree.leaves(want)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(leaves, others, strict=True)]
    assert all(a.shape == b.shape and np.isfinite(b).all() for a, b in pairs)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) for a, b in pairs)


def spread(kind, count, *arrays):
    """Arrays whose rows lie on a mesh."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("rows",), axis_types=(KINDS[kind],))
    return [jax.device_put(a, NamedSharding(mesh, P("rows"))) for a in arrays]


def agreement():
    """How far everything is from what it is on one device."""
    found = {}
    for number, name in enumerate(CASES if ALL else QUICK):
        run, want = CASES[name], CASES[name](X, Y, V)
        for kind in (
            KINDS if ALL else [list(KINDS)[number % 2]]
        ):  # a door takes Explicit axes off: what is inside sees one kind
            for count in (1, 2, 4) if ALL and name in SEVERAL else (4,):
                found[f"{name}, {kind}, {count}"] = off(run(*spread(kind, count, X, Y, V)), want)
    return found


def ragged():
    """47 rows on 4 devices, by `shard`, with and without weights, in one call and in pieces;
    landmarks by number are chosen from the same rows.
    """
    found, n = {}, N - 1
    for kind in KINDS if ALL else ("explicit",):
        mesh = Mesh(np.array(jax.devices()), ("rows",), axis_types=(KINDS[kind],))
        for name, v in {"weights": V[:n], "no weights": None}.items():
            rows = rls.shard(X[:n], Y[:n], v, mesh=mesh)
            assert rows.shape[0] == N and rows.count == n
            options = {"lams": LAMS, "landmarks": M, "criterion": rls.gcv}
            got, want = (
                rls.fit(KERNEL, rows, **options),
                rls.fit(KERNEL, X[:n], Y[:n], weights=v, **options),
            )
            parts = [
                (fit.errors, np.asarray(fit.loo_residuals)[:n], fit.dof, fit.predict(NEW))
                for fit in (got, want)
            ]
            found[f"{name}, {kind}"] = off(*parts)
    rows = rls.shard(X[:n], Y[:n], mesh=mesh)
    groups = {"lams": LAMS, "landmarks": ROWS, "groups": GROUPS[:n]}
    found["groups"] = off(
        rls.fit(KERNEL, rows, **groups).errors, rls.fit(KERNEL, X[:n], Y[:n], **groups).errors
    )
    groups["criterion"] = rls.pairwise_ranking_error
    found["pairs in groups"] = off(
        rls.fit(KERNEL, rows, **groups).errors, rls.fit(KERNEL, X[:n], Y[:n], **groups).errors
    )
    del groups["groups"]
    groups["criterion"] = rls.PairsOut(events=EVENTS[:n])
    found["pairs of times"] = off(
        rls.fit(KERNEL, rows, **groups).errors, rls.fit(KERNEL, X[:n], Y[:n], **groups).errors
    )
    found["distance"] = off(rls.median_distance(rows), rls.median_distance(X[:n]))
    kept = {"lams": LAMS, "landmarks": POINTS, "keep_moments": True}
    moved, want = (
        rls.fit(KERNEL, X, Y, **kept).forget(part, y).model.coef
        for part, y in (
            (rls.shard(X[: n // 2], mesh=mesh), Y[: n // 2]),
            (X[: n // 2], Y[: n // 2]),
        )
    )
    found["given up"] = off(moved, want)
    given = rls.fit(
        KERNEL, rls.shard(X[:n], mesh=mesh), Y[:n], weights=V[:n], lams=LAMS, landmarks=ROWS
    )
    found["labels given"] = off(
        given.errors, rls.fit(KERNEL, X[:n], Y[:n], weights=V[:n], lams=LAMS, landmarks=ROWS).errors
    )
    return found


def places():
    """Where results lie: what has a row for each row of X as X does, in axes of the same type, all
    else on every device.
    """
    found = {}
    for kind in KINDS:
        x, y = spread(kind, 4, X, Y)
        fit = rls.fit(KERNEL, x, y, landmarks=ROWS, lams=LAMS)
        slope = jax.jit(
            jax.grad(lambda x, y: rls.loo_objective(KERNEL, x, y, 0.1, landmarks=POINTS))
        )(x, y)
        rows = {
            "loo_residuals": fit.loo_residuals,
            "predict": fit.predict(x),
            "slope": slope,
            "K·V": rls.gram_matmul(KERNEL, x, POINTS, np.ones(M)),
        }
        split = all(
            a.sharding.is_equivalent_to(x.sharding, a.ndim) and a.sharding.mesh == x.sharding.mesh
            for a in rows.values()
        )
        whole = [a.sharding.is_fully_replicated for a in (fit.errors, fit.lam, fit.model.coef)]
        found[kind] = split and all(whole)
    held = rls.shard(X, mesh=Mesh(np.array(jax.devices()), ("rows",)))
    found["labels"] = held.column(Y).sharding.is_equivalent_to(held.X.sharding, Y.ndim)
    return found


COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast|ragged-all-to-all)(-start)?\("
)


def collectives(text):
    """Which collectives there are in a compiled program, and the largest number of elements that
    one moves, in all and in a loop.
    """
    kinds, largest, inside, entry = set(), 0, 0, False
    for line in text.splitlines():
        if re.match(r"(ENTRY )?%\S+ \(", line):
            entry = line.startswith("ENTRY")
        if moved := COLLECTIVE.search(line):
            sizes = [
                int(np.prod([int(k) for k in shape.split(",") if k]))
                for shape in re.findall(r"\w+\[([\d,]*)\]", moved[1])
            ]
            kinds, largest, inside = (
                kinds | {moved[2]},
                max(largest, *sizes),
                inside if entry else max(inside, *sizes),
            )
    return {"kinds": sorted(kinds), "largest": largest, "in loops": inside}


def programs():
    """What computations on 200,000 rows with 64 landmarks become on four devices: rows of a type
    that jit sees, a mesh that is set, or neither.
    """
    n, m = 200_000, 64
    points, numbers, auto, explicit = (
        draw.normal(size=(m, D)),
        np.arange(m) * 10,
        *(spread(kind, 4, X)[0].sharding for kind in KINDS),
    )

    def arrays(sharding):
        return [
            jax.ShapeDtypeStruct(shape, jnp.float64, sharding=sharding)
            for shape in ((n, D), (n, T), (n,))
        ]

    def everything(route, x, y, v):
        factor = rls.factorize(KERNEL, x, weights=v, landmarks=numbers, route=route)
        return (
            rls.loo(factor, y, LAMS),
            rls.loo_residuals(factor, y, 0.1),
            rls.coef(factor, y, 0.1),
            rls.log_marginal_likelihood(factor, y, LAMS),
        )

    def slopes(x, y, v):
        return jax.value_and_grad(partial(objective, rls.loo), range(6))(
            1.5, 0.1, x, y, v, jnp.asarray(points)
        )

    def text(fn, sharding):
        return jax.jit(fn).lower(*arrays(sharding)).compile().as_text()

    def on_rows(fn):
        x, y, v = arrays(auto)
        return jax.jit(fn).lower(rls.ShardedRows(x, 4, auto, n), y, v).compile().as_text()

    found = {
        "a spectrum, rows": on_rows(partial(everything, None)),
        "slopes, rows": on_rows(slopes),
    }
    found["K·V, neither"] = text(
        lambda x, y, v: rls.gram_matmul(KERNEL, x, points, jnp.ones(m)), auto
    )
    if ALL:
        found["Cholesky, explicit"] = text(partial(everything, "cholesky"), explicit)
        found["predictions, neither"] = text(
            lambda x, y, v: rls.Model(
                KERNEL, jnp.asarray(points), jnp.ones(m), jnp.zeros(())
            ).predict(x),
            auto,
        )
        with jax.set_mesh(auto.mesh):
            found["slopes, set"] = text(slopes, auto)
    return {name: collectives(program) for name, program in found.items()}


def errors():
    """What is refused, in words."""
    found = {}
    x, y = spread("auto", 4, X, Y)
    grid = Mesh(
        np.array(jax.devices()).reshape(2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2
    )
    wide = np.random.default_rng(1).normal(size=(8, 10))
    attempts = {
        "K": lambda: rls.fit(KERNEL, x, y),
        "iterative": lambda: rls.fit(KERNEL, x, y, route="iterative", landmarks=ROWS, lams=LAMS),
        "outer": lambda: rls.fit(rls.Linear(), *spread("auto", 4, wide, wide[:, 0])),
        "features": lambda: rls.factorize(rls.Linear(), x, route="features"),
        "precomputed": lambda: rls.fit(rls.Precomputed(), *spread("auto", 4, X @ X.T, Y)),
        "columns": lambda: rls.fit(
            KERNEL,
            jax.device_put(X[:, :2], NamedSharding(grid, P("rows", "columns"))),
            Y,
            landmarks=M,
        ),
        "nan": lambda: rls.fit(KERNEL, x.at[5, 1].set(jnp.nan), y, landmarks=ROWS),
        "nan labels": lambda: rls.fit(KERNEL, x, y.at[5, 1].set(jnp.nan), landmarks=ROWS),
        "weights": lambda: rls.fit(KERNEL, x, y, weights=spread("auto", 4, -V)[0], landmarks=ROWS),
        "events": lambda: rls.fit(
            KERNEL, x, y, landmarks=ROWS, criterion=rls.PairsOut(events=EVENTS[:40])
        ),
        "mesh": lambda: rls.shard(X, Y),
        "padding": lambda: rls.fit(
            KERNEL,
            rls.shard(X[:47], Y[:47], mesh=Mesh(np.array(jax.devices()), ("rows",))),
            landmarks=np.array([1, 47]),
        ),
        "labels": lambda: rls.shard(X, Y[:5], mesh=grid),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    # Two programs at once may wait for each other where cores are fewer than devices.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", True)
    for part in (agreement, ragged, places, programs, errors):
        print(json.dumps({part.__name__: part()}), flush=True)
