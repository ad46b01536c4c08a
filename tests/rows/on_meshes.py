"""What `test_meshes.py` runs in a process of its own, which has four devices: everything on a mesh
of them beside one device, which the contract's grid holds to refits.
"""

import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support import solver_of

import jaxrls as rls
from jaxrls.landmarks import growing

N, D, M, T = 48, 3, 6, 2
draw = np.random.default_rng(0)
X, NEW = draw.normal(size=(N, D)), draw.normal(size=(20, D))
Y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 1] ** 2], axis=1) + 0.1 * draw.normal(size=(N, T))
V = draw.uniform(0.5, 2, N) * (np.arange(N) % 5 != 1)  # a landmark and others weigh nothing
LAMS = np.geomspace(1e-3, 1e2, 3)
GROUPS = np.arange(N) % 3
EVENTS = (np.arange(N) % 4 > 0).astype(float)
ROWS = np.array([3, 40, 17, 8, 29, 11])
POINTS = draw.normal(size=(M, D))
NAMES = np.array(list("abcd"))[np.arange(N) % 4]  # of levels
KERNEL = rls.Gaussian(1.5)
WAVES = rls.FeatureMap(lambda X: jnp.concatenate([jnp.sin(X), X], axis=1))


def at_once(fn):
    """In one program: of many small ones that add up over devices, JAX's CPU runtime may wait for
    ever.
    """
    return lambda X, *columns: jax.jit(fn)(
        rls.rows.shard(X) if isinstance(X, jax.Array) else X, *columns
    )


@at_once
def pieces(X, y, v):
    """All of the functions that take a factor."""
    factor = rls.factorize(KERNEL, X, weights=v, landmarks=ROWS)
    found, ranking = rls.path(factor, y, LAMS), rls.ranking.pairwise_ranking_error(factor, y, LAMS)
    parts = (
        rls.extend.coef(factor, y, 0.1),
        rls.diagnostics.loo_residuals(factor, y, 0.1),
        rls.extend.lambda_grid(factor, 5),
    )
    sums = rls.gcv(factor, y, LAMS), rls.log_marginal_likelihood(factor, y, LAMS)
    return found.coef, found.loo, ranking, parts, sums, rls.diagnostics.effective_dof(factor, LAMS)


def fitted(X, y, v):
    """With levels of groups."""
    options = {"weights": v, "lams": LAMS, "landmarks": ROWS}
    fit = rls.fit(KERNEL, X, y, fixed_effects=rls.levels(NAMES), **options)
    told = fit.predict(NEW, fixed_effects=NAMES[:20]), fit.predict(X, fixed_effects=NAMES)
    return fit.errors, fit.error, fit.loo_residuals, fit.dof, told


def grown(X, y, v):
    """Begun on few rows, of which some are for each landmark."""
    growing.SAMPLE_ROWS, growing.LANDMARKS, growing.ROWS_A_LANDMARK = 10, 4, 2
    found = rls.tune(KERNEL, X, y[:, 0], landmarks=M, steps=2, start="kernel", grow=True)
    assert [stage.rows for stage in found.history.stages] == [10, 2 * M]
    return found.error, found.kernel.width, found.model.points, found.loo_residuals


def slopes(X, y, v, points):
    """In everything: kernel, λ, rows, labels, weights, points."""

    def error(width, lam, X, y, v, points):
        return rls.objective(rls.Gaussian(width), X, y, lam, weights=v, landmarks=points)

    return jax.value_and_grad(error, range(6))(1.5, 0.1, X, y, v, jnp.asarray(points))


def gradients(X, y, v):
    return jax.jit(slopes)(X, y, v, POINTS)


CHOLESKY = {"solver": rls.Cholesky()}
SIZES = [3, 3, 3, 3, 5, 7, 7, 5, 1, 1, 2, 7, 1]
PLANS = {
    "few": GROUPS,  # ordinary folds, each on every device
    "days": np.arange(N) // 4,  # many groups, each on one device
    "uneven": np.repeat(np.arange(13), SIZES),  # likewise, and not as many on each
    "far": np.arange(N) * 5 % 16,  # many, whose rows are anywhere
}


def left_out(plan, kernel, options, X, y, v):
    """Errors of groups at all λ and at one λ for each target, and residuals."""

    def run(rows, y, v, plan):
        factor, each = rls.factorize(kernel, rows, weights=v, **options), np.stack([LAMS] * T, 1)
        errors = [rls.kfold(plan)(factor, y, lams) for lams in (LAMS, each * [1, 2])]
        return errors, rls.diagnostics.loo_residuals(factor, y, 0.1, plan)

    return at_once(run)(X, y, v, rls.folds(PLANS[plan]))


CASES = {
    "pieces": pieces,
    "levels beside landmarks": fitted,
    "gradients": gradients,
    "gram_matmul compiled": lambda X, y, v: jax.jit(partial(rls.extend.gram_matmul, KERNEL))(
        X, POINTS, jnp.ones((M, 2))
    ),
    "tuned, begun on few rows": grown,
    "few": partial(left_out, "few", KERNEL, {"landmarks": ROWS}),
    "days": partial(left_out, "days", KERNEL, {"landmarks": ROWS}),
    "far": partial(left_out, "far", WAVES, {}),
    "uneven, by Cholesky": partial(left_out, "uneven", KERNEL, {"landmarks": ROWS, **CHOLESKY}),
}


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def off(got, want):
    """The largest difference, by the size of each result."""
    leaves, others = jax.tree.leaves(got), jax.tree.leaves(want)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(leaves, others, strict=True)]
    assert all(a.shape == b.shape and np.isfinite(b).all() for a, b in pairs)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) for a, b in pairs)


def spread(kind, *arrays):
    """Arrays whose rows lie on a mesh."""
    mesh = Mesh(np.array(jax.devices()), ("rows",), axis_types=(KINDS[kind],))
    return [jax.device_put(a, NamedSharding(mesh, P("rows"))) for a in arrays]


def agreement():
    """How far everything is from what it is on one device."""
    found = {}
    for number, (name, run) in enumerate(CASES.items()):
        # A door takes Explicit axes off: what is inside sees one kind.
        given = spread(list(KINDS)[number % 2], X, Y, V)
        found[name] = off(run(*given), run(X, Y, V))
    return found


def ragged():
    """47 rows on 4 devices, by `shard`, in one call and in pieces; landmarks by number are chosen
    from the same rows.
    """
    n, mesh = N - 1, Mesh(np.array(jax.devices()), ("rows",), axis_types=(AxisType.Explicit,))
    rows = rls.rows.shard(X[:n], Y[:n], V[:n], mesh=mesh)
    assert rows.shape[0] == N and rows.count == n
    kept = {"lams": LAMS, "landmarks": POINTS, "keep": True}
    moved, want = (
        rls.fit(KERNEL, X, Y, **kept).forget(part, Y[: n // 2]).model.coef
        for part in (rls.rows.shard(X[: n // 2], mesh=mesh), X[: n // 2])
    )

    def beside(given, weights=None, **options):
        """How far a fit is from that of the rows that there are, and whether residuals lie so."""
        options = {"lams": LAMS, "landmarks": ROWS} | options
        got = rls.fit(KERNEL, *given, **options)
        want = rls.fit(KERNEL, X[:n], Y[:n], weights=weights, **options)
        parts = [
            (fit.errors, np.asarray(fit.loo_residuals)[:n], fit.dof, fit.predict(POINTS))
            for fit in (got, want)
        ]
        split = got.loo_residuals.sharding.is_equivalent_to(given[0].X.sharding, 2)
        return off(*parts) if split else np.inf

    return {
        "given up": off(moved, want),
        "distance": off(rls.extend.median_distance(rows), rls.extend.median_distance(X[:n])),
        "pairs in groups": beside(
            [rls.rows.shard(X[:n], Y[:n], mesh=mesh)],
            criterion=rls.ranking.PairsOut(within=GROUPS[:n]),
        ),
        "labels given, pairs of times": beside(
            [rls.rows.shard(X[:n], mesh=mesh), Y[:n]],
            criterion=rls.ranking.PairsOut(events=EVENTS[:n]),
        ),
        "days": beside([rows], V[:n], landmarks=M, groups=PLANS["days"][:n], standardize=True),
    }


def places():
    """Where results lie: what has a row for each row of X as X does, in axes of the same type, all
    else on every device.
    """
    x, y = spread("explicit", X, Y)
    fit = rls.fit(KERNEL, x, y, landmarks=ROWS, lams=LAMS)
    objective = lambda x, y: rls.objective(KERNEL, x, y, 0.1, landmarks=POINTS)
    slope, product = (
        jax.jit(jax.grad(objective))(x, y),
        rls.extend.gram_matmul(KERNEL, x, POINTS, np.ones(M)),
    )
    found = {
        f"rows {i}": a.sharding.is_equivalent_to(x.sharding, a.ndim)
        and a.sharding.mesh == x.sharding.mesh
        for i, a in enumerate((fit.loo_residuals, fit.predict(x), slope, product))
    }
    for i, a in enumerate((fit.errors, fit.lam, fit.model.coef)):
        found[f"whole {i}"] = a.sharding.is_fully_replicated
    last = jax.devices()[-1]
    found["one device"] = rls.fit(KERNEL, jax.device_put(X, last), Y).model.coef.devices() == {last}
    held = rls.rows.shard(X, mesh=x.sharding.mesh)
    found["labels"] = held.column(Y).sharding.is_equivalent_to(held.X.sharding, Y.ndim)
    return found


def outside():
    """Derivatives outside of a program, in what does not lie on the mesh; with the mesh set,
    too.
    """
    points = jnp.asarray(POINTS)
    slopes_of = lambda x, y: jax.grad(
        lambda width, lam, points: rls.objective(rls.Gaussian(width), x, y, lam, landmarks=points),
        range(3),
    )
    want = jax.jit(slopes_of(X, Y))(1.5, 0.1, points)
    x, y = spread("explicit", X, Y)
    slopes = slopes_of(x, y)
    found = {"no mesh set": off(slopes(1.5, 0.1, points), want)}
    with jax.set_mesh(x.sharding.mesh):
        found["a mesh set"] = off(slopes(1.5, 0.1, points), want)
    return found


COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|"
    r"collective-broadcast|ragged-all-to-all)(-start)?\("
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
    that jit sees, or not; and groups left out of them.
    """
    n, m = 200_000, 64
    points, numbers = draw.normal(size=(m, D)), np.arange(m) * 10
    auto = spread("auto", X)[0].sharding
    x, *rest = columns = [
        jax.ShapeDtypeStruct(shape, jnp.float64, sharding=auto) for shape in ((n, D), (n, T), (n,))
    ]

    def everything(route, x, y, v, plan=None):
        factor = rls.factorize(KERNEL, x, weights=v, landmarks=numbers, solver=solver_of(route))
        if plan is not None:
            return rls.kfold(plan)(factor, y, LAMS), rls.diagnostics.loo_residuals(
                factor, y, 0.1, plan
            )
        return (
            rls.loo(factor, y, LAMS),
            rls.diagnostics.loo_residuals(factor, y, 0.1),
            rls.extend.coef(factor, y, 0.1),
            rls.log_marginal_likelihood(factor, y, LAMS),
        )

    def product(x, y, v):
        return rls.extend.gram_matmul(KERNEL, x, points, jnp.ones(m))

    def on_rows(fn, *groups):
        rows, plan = rls.rows.ShardedRows(x, 4, auto, n), [rls.folds(labels) for labels in groups]
        return collectives(jax.jit(fn).lower(rows, *rest, *plan).compile().as_text())

    tens, far = np.arange(n) % 10, np.arange(n) % (n // 8)
    spectrum, cholesky = (partial(everything, route) for route in (None, "cholesky"))
    return {
        "a spectrum, rows": on_rows(spectrum),
        "slopes, rows": on_rows(lambda x, y, v: slopes(x, y, v, points)),
        "K·V, neither": collectives(jax.jit(product).lower(*columns).compile().as_text()),
        "few": on_rows(cholesky, tens),
        "far": on_rows(spectrum, far),
    }


def words(attempt):
    """What an error says."""
    try:
        attempt()
    except ValueError as error:
        return str(error)


def errors():
    """What is refused, in words."""
    x, y = spread("auto", X, Y)
    four = np.array(jax.devices())
    grid = Mesh(four.reshape(2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    split = jax.device_put(X[:, :2], NamedSharding(grid, P("rows", "columns")))
    ragged = rls.rows.shard(X[:47], Y[:47], mesh=Mesh(four, ("rows",)))
    on_rows = partial(rls.fit, KERNEL, landmarks=ROWS)
    heavy = jax.jit(lambda rows, v: rls.factorize(KERNEL, rows, weights=v, landmarks=ROWS))(
        rls.rows.shard(x), spread("auto", 1.0 * (GROUPS == 1))[0]
    )
    attempts = {
        "K": lambda: rls.fit(KERNEL, x, y),
        "columns": lambda: rls.fit(KERNEL, split, Y, landmarks=M),
        "nan": lambda: on_rows(x.at[5, 1].set(jnp.nan), y),
        "mesh": lambda: rls.rows.shard(X, Y),
        "padding": lambda: rls.fit(KERNEL, ragged, landmarks=np.array([1, 47])),
        "short": lambda: on_rows(ragged, groups=GROUPS[:46]),
        "heavy": lambda: rls.kfold(GROUPS)(heavy, y, LAMS),
    }
    undefined = jax.jit(lambda y, plan: rls.diagnostics.loo_residuals(heavy, y, 0.1, plan))(
        y, rls.folds(GROUPS)
    )
    assert (np.isnan(undefined).all(axis=1) == (GROUPS == 1)).all()
    return {name: words(attempt) for name, attempt in attempts.items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    # Two programs at once may wait for each other where cores are fewer than devices.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", True)
    for part in (agreement, ragged, outside, places, programs, errors):
        print(json.dumps({part.__name__: part()}), flush=True)
