"""The works that are measured: for each what we do, what peers do, and the operations that nobody
can avoid.

A work is a function of `quick` that yields cases. A case names its contestants; all of them get the
same data, and each may have a judge, which turns its result into a number that says how good it is
(an error: less is better). What a loop makes is run before its next turn."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import peers
from peers import Contestant, mean_square

import jaxrls as rls
from jaxrls.core.linalg.blocks import default_block_size

LAMS = (1e-4, 1e3)
ON_GPU = jax.default_backend() == "gpu"
ON_NEW_ROWS = "mean squared error on new rows, noise apart"


@dataclass
class Case:
    """One work at one size. A peer that is not installed is the reason, as text."""

    size: str
    ours: Contestant
    floor: dict[str, Callable[[], Any]]
    peers: dict[str, Contestant | str] = field(default_factory=dict)
    accuracy: str = ""
    flops: float | None = None  # of the floor's operations together
    variants: dict[str, Contestant] = field(default_factory=dict)  # other ways of our own


def times(A, B):
    """The product at full precision."""
    return jnp.matmul(A, B, precision="highest")


def product(*shape_pairs):
    """Matrix products of given shapes, as contestants for a floor."""
    return {
        f"{a[0]}×{a[1]} by {b[0]}×{b[1]}": partial(jax.jit(times), jnp.ones(a), jnp.ones(b))
        for a, b in shape_pairs
    }


def block_products(n, m):
    """ΦᵀΦ and ΦV for n rows of m features, V (m, m), a few rows at a time: what is left where n × m
    numbers do not fit.
    """
    rows = min(n, max(1, 2**28 // (8 * m)))

    @jax.jit
    def run(Phi, V):
        def step(i, sums):
            block = Phi + i  # so that no compiler takes the products out of the loop
            squares = jnp.sum(times(block, V) ** 2, axis=1)
            return sums[0] + times(block.T, block), sums[1] + squares

        return jax.lax.fori_loop(0, -(-n // rows), step, (jnp.zeros((m, m)), jnp.zeros(rows)))

    return {"ΦᵀΦ and ΦV in blocks": partial(run, jnp.ones((rows, m)), jnp.ones((m, m)))}


def eigh_of(K):
    return partial(jax.jit(partial(jax.lax.linalg.eigh, symmetrize_input=False)), K)


def cholesky_of(K):
    return partial(jax.jit(partial(jax.lax.linalg.cholesky, symmetrize_input=False)), K)


def gram(kernel, x):
    return jax.jit(rls.extend.gram)(kernel, x)


def problem(n, d, t=1, new=1000):
    """A smooth function of d inputs with noise, and rows to test on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + new, d))
    F = np.sin(X @ rng.normal(size=(d, t))) + X[:, :1]
    Y = F + 0.3 * rng.normal(size=F.shape)
    return X[:n], Y[:n], X[n:], F[n:]


def on_new_rows(kernel, points, X_new, wanted):
    """The judge of a path: the mean squared error at its best λ."""

    def judge(found):
        best, K = int(found.loo.argmin()), rls.extend.gram(kernel, jnp.asarray(X_new), points)
        return mean_square(K @ found.coef[best] + found.intercept[best], wanted)

    return judge


# the λ path
# ------------------------------------------------------------------------------------------------


def path(quick) -> Iterator[Case]:
    """The coefficients and the exact leave-one-out error for L values of λ."""
    sizes = ((1000, 100), (2000, 100), (4000, 100), (8000, 100), (2000, 1), (2000, 1000))
    for n, count in ((500, 100),) if quick else sizes:
        X, Y, X_new, F_new = problem(n, 20)
        kernel, y, x, t = rls.Gaussian(4.0), Y[:, 0], jnp.asarray(X), jnp.asarray(Y[:, 0])
        lams = jnp.geomspace(*LAMS, count) if count > 1 else jnp.array([0.1])

        def way(**options):
            run = jax.jit(lambda x, t, lams: rls.path(rls.factorize(kernel, x, **options), t, lams))
            return Contestant(partial(run, x, t, lams), on_new_rows(kernel, x, X_new, F_new))

        variants, theirs = {}, {}
        if count == 1:
            variants = {"by Cholesky": way(solver=rls.Cholesky(), intercept=False)}
        elif n <= 4000:
            variants = {"with intercept": way(intercept=True)}
        if count == 100 and n <= 4000:
            grid, gamma = np.asarray(lams), 1 / 32
            theirs = {
                "RLScore": peers.rlscore(X, y, grid, gamma, X_new, F_new),
                "himalaya KernelRidgeCV(cv=5)": peers.himalaya(X, Y, grid, gamma, X_new, F_new),
                "scikit-learn GridSearchCV(KernelRidge), 5 folds, 10 λ": peers.grid_search(
                    X, y, X_new, F_new, [gamma], grid[::10]
                ),
            }
        yield Case(
            size=f"n = {n}, L = {count}",
            ours=way(intercept=False),
            variants=variants,
            floor={"eigh": eigh_of(gram(kernel, x))},
            peers=theirs,
            accuracy=ON_NEW_ROWS,
            flops=9 * n**3,
        )


def targets(quick) -> Iterator[Case]:
    """L values of λ for t targets at once, and the choice of one λ for each."""
    for n, t, count in ((300, 50, 10),) if quick else ((2000, 1000, 20), (1000, 10_000, 20)):
        X, Y, X_new, F_new = problem(n, 10, t)
        kernel, lams = rls.Gaussian(3.0), jnp.geomspace(*LAMS, count)
        x, y = jnp.asarray(X), jnp.asarray(Y)

        @jax.jit
        def ours(x, y, lams):
            factor = rls.factorize(kernel, x, intercept=False)
            lam = lams[jnp.argmin(rls.loo(factor, y, lams), axis=0)]
            return rls.extend.coef(factor, y, lam)[0]

        def judge(coef):
            return mean_square(rls.extend.gram(kernel, jnp.asarray(X_new), x) @ coef, F_new)

        theirs = {}
        if t <= 1000:
            searched = peers.himalaya(X, Y, np.asarray(lams), 1 / 18, X_new, F_new)
            theirs = {"himalaya KernelRidgeCV(cv=5)": searched}
        wide = product(((n, n), (n, t * count)), ((n, n), (n, 2 * t)))
        yield Case(
            size=f"n = {n}, t = {t}, L = {count}",
            ours=Contestant(partial(ours, x, y, lams), judge),
            floor={"eigh": eigh_of(gram(kernel, x)), **wide},
            peers=theirs,
            accuracy=ON_NEW_ROWS,
            flops=9 * n**3 + 2 * n * n * t * (count + 2),
        )


def gradient(quick) -> Iterator[Case]:
    """The leave-one-out error at one λ with its gradient in width and λ."""
    sizes = (1000, None), (2000, None), (4000, None), (20_000, 500)
    for n, m in ((500, None), (1000, 50)) if quick else sizes:
        X, Y, _, _ = problem(n, 8)
        x, y = jnp.asarray(X), jnp.asarray(Y[:, 0])
        rows = m and jnp.arange(m)

        @jax.jit
        @partial(jax.value_and_grad, argnums=(0, 1))
        def ours(width, lam, x, y):
            return rls.objective(rls.Gaussian(width), x, y, lam, landmarks=rows)

        def judge(result):
            """Distance of the gradient from central differences, relative."""
            step, at = 1e-4, np.array([2.0, 0.1])
            value = lambda one: float(ours(*one, x, y)[0])
            want = [(value(at + h) - value(at - h)) / (2 * step) for h in step * np.eye(2)]
            return float(np.abs(np.array(result[1]) - want).max() / np.abs(want).max())

        if m:
            floor, theirs = product(((n, m), (m, m)), ((m, n), (n, m))), {}
        else:
            K = gram(rls.Gaussian(2.0), x) + 0.1 * jnp.eye(n)
            floor = {"Cholesky": cholesky_of(K), **product(((n, n), (n, n)))}
            other = peers.gpytorch_gradient(X, Y[:, 0], 2.0, 0.1)
            theirs = {"GPyTorch LeaveOneOutPseudoLikelihood with backward": other}
        yield Case(
            size=f"n = {n}, m = {m}, d = 8" if m else f"n = {n}, d = 8",
            ours=Contestant(partial(ours, 2.0, 0.1, x, y), judge),
            floor=floor,
            peers=theirs,
            accuracy="of the gradient, from central differences, relative",
            flops=4 * n * m * m if m else n**3 / 3 + 2 * n**3,
        )


def subset(quick) -> Iterator[Case]:
    """Landmarks: L values of λ with exact leave-one-out, a landmark held out with its row."""
    sizes = [10_000, 40_000, 100_000, *[1_000_000, 10_000_000] * ON_GPU]
    for n, m in ((4000, 200),) if quick else ((n, 1000) for n in sizes):
        X, Y, X_new, F_new = problem(n, 8)
        kernel, x, y = rls.Gaussian(float(np.sqrt(8))), jnp.asarray(X), jnp.asarray(Y[:, 0])
        lams, large = jnp.geomspace(*LAMS, 100), n > 100_000
        choose = partial(rls.choose_landmarks, kernel, x, m, key=jax.random.key(0))
        drawn = jnp.asarray(np.random.default_rng(0).choice(n, m, replace=False))
        chosen = drawn if large else choose()
        points = x[chosen] if large else chosen.points

        def way(leave):
            @jax.jit
            def run(x, y, chosen, lams):
                return rls.path(rls.factorize(kernel, x, landmarks=chosen, leave=leave), y, lams)

            judge = on_new_rows(kernel, points, X_new, F_new)
            return Contestant(partial(run, x, y, chosen, lams), judge)

        variants, theirs = {}, {}
        if not large:
            variants = {"dictionary fixed": way(leave=False)}
            variants["choosing the landmarks"] = Contestant(choose)
        if n <= 40_000:
            grid, t = np.asarray(lams), Y[:, 0]
            theirs = {
                "scikit-learn Nystroem + RidgeCV": peers.nystroem(X, t, m, grid, X_new, F_new),
                "falkon, one λ": peers.falkon(X, t, m, X_new, F_new),
            }
        yield Case(
            size=f"n = {n}, m = {m}, d = 8, L = 100",
            ours=way(leave=True),
            variants=variants,
            floor=block_products(n, m) if large else product(((n, m), (m, m)), ((m, n), (n, m))),
            peers=theirs,
            accuracy=ON_NEW_ROWS,
            flops=4 * n * m * m,
        )


def linear(quick) -> Iterator[Case]:
    """A linear model with exact leave-one-out at L values of λ: tall, and wide."""
    sizes = (200_000, 100), (1_000_000, 100), (1000, 20_000)
    for n, d in ((20_000, 50), (50, 300)) if quick else sizes:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n, d))
        w = rng.normal(size=d) / np.sqrt(d)
        y = X @ w + rng.normal(size=n)
        x, t, lams = jnp.asarray(X), jnp.asarray(y), jnp.geomspace(1e-2, 1e5, 100)

        @jax.jit
        def ours(x, t, lams):
            factor = rls.factorize(rls.Linear(), x, intercept=False)
            errors = rls.loo(factor, t, lams)
            found, _ = rls.extend.coef(factor, t, lams[jnp.argmin(errors)])
            return errors, times(found, x) if factor.route == "gram" else found

        r, tall = min(n, d), n > d
        inner = jax.jit(lambda A: times(A.T, A) if tall else times(A, A.T))
        floor = {"ΦᵀΦ" if tall else "ΦΦᵀ": partial(inner, x)}
        floor |= product(((n, r), (r, r)), ((n, r), (r, 200))) if tall else {}
        floor |= {} if tall else {"eigh": eigh_of(inner(x))}
        theirs = {}
        if n < 1_000_000:
            theirs = {"scikit-learn RidgeCV": peers.ridge_cv(X, y, np.asarray(lams), w)}
        yield Case(
            size=f"n = {n:,}, d = {d:,}, L = 100",
            ours=Contestant(partial(ours, x, t, lams), lambda found: mean_square(found[1], w)),
            floor=floor,
            peers=theirs,
            accuracy="mean squared error of the coefficients",
            flops=2 * n * d * r + (2 * n * r * (r + 200) if tall else 9 * n**3),
        )


def datasets(quick) -> Iterator[Case]:
    """A thousand small data sets, each with its own factorization, λ grid and choice, by vmap."""
    sets, n, d, count = (50, 50, 5, 20) if quick else (1000, 100, 5, 50)
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(sets, n, d)))
    Y = np.sin(X[:, :, 0]) + 0.3 * rng.normal(size=(sets, n))
    kernel, lams = rls.Gaussian(2.0), jnp.geomspace(1e-3, 1e2, count)

    @jax.jit
    @jax.vmap
    def ours(x, y):
        factor = rls.factorize(kernel, x, intercept=False)
        errors = rls.loo(factor, y, lams)
        return rls.extend.coef(factor, y, lams[jnp.argmin(errors)])[0], jnp.min(errors)

    from scipy.linalg import lapack

    grams = np.asarray(jax.jit(jax.vmap(partial(rls.extend.gram, kernel)))(X))
    judge = lambda found: float(found[1].mean())
    theirs = peers.ridge_cv_loop(grams, Y, np.asarray(lams))
    yield Case(
        size=f"{sets} sets, n = {n}, L = {count}",
        ours=Contestant(partial(ours, X, jnp.asarray(Y)), judge),
        floor={f"{sets} calls of LAPACK syevd": lambda: [lapack.dsyevd(K)[0] for K in grams]},
        peers={"scikit-learn, a loop over RidgeCV": theirs},
        accuracy="mean smallest leave-one-out error",
        flops=9 * sets * n**3,
    )


# K·V and prediction
# ------------------------------------------------------------------------------------------------


def kernel_product(n, m, d, t):
    """X, Z, V, and what nobody can avoid on the way to K(X, Z) V: two products and exp of every
    element, in cache-sized blocks of rows.
    """
    rng = np.random.default_rng(0)
    X, Z, V = rng.normal(size=(n, d)), rng.normal(size=(m, d)), rng.normal(size=(m, t))
    rows = default_block_size(n, 8 * m)

    @jax.jit
    def unavoidable(x, z, v):
        blocks = x[: len(x) // rows * rows].reshape(-1, rows, x.shape[1])
        return jax.lax.map(lambda part: times(jnp.exp(times(part, z.T)), v), blocks)

    floor = partial(unavoidable, *map(jnp.asarray, (0.01 * X, Z, V)))
    return X, Z, V, {"product + exp + product, in cache-sized blocks": floor}


def of_five_rows(gamma, X, Z, V):
    """The judge of K(X, Z) V: the relative error of its first rows."""
    exact = np.exp(-gamma * ((X[:5, None] - Z) ** 2).sum(-1)) @ np.asarray(V)
    return lambda out: float(np.abs(np.asarray(out[:5]) - exact).max() / np.abs(exact).max())


def matmul(quick) -> Iterator[Case]:
    """K(X, X) V without K in memory, in blocks of rows."""
    n, d, t = (3000, 20, 10) if quick else (20_000, 20, 10)
    X, Z, V, floor = kernel_product(n, n, d, t)
    kernel = rls.Gaussian(float(np.sqrt(d)))
    ours = partial(jax.jit(rls.extend.gram_matmul), kernel, *map(jnp.asarray, (X, Z, V)))
    yield Case(
        size=f"{n:,} × {n:,} rows, d = {d}, t = {t}",
        ours=Contestant(ours, of_five_rows(0.5 / d, X, Z, V)),
        floor=floor,
        peers={"scikit-learn rbf_kernel @ V": peers.rbf_matmul(X, Z, V, 0.5 / d)},
        accuracy="relative error of five rows",
        flops=2 * n * n * (d + t),
    )


def prediction(quick) -> Iterator[Case]:
    """Predictions of a fitted model for many new rows."""
    n, m, d = (3000, 500, 8) if quick else (100_000, 4000, 8)
    X, Z, V, floor = kernel_product(n, m, d, 1)
    y = V[:, 0]
    fit = rls.fit(rls.Gaussian(2.0), Z, y, lams=[0.1], intercept=False)
    judge = of_five_rows(0.125, X, Z, fit.model.coef)
    theirs = peers.kernel_ridge_predict(Z, y, 0.125, 0.1, X, judge)
    yield Case(
        size=f"{n:,} new rows, n = {m:,}, d = {d}",
        ours=Contestant(partial(fit.predict, X), judge),
        floor=floor,
        peers={"scikit-learn KernelRidge.predict": theirs},
        accuracy="relative error of five rows",
        flops=2 * n * m * (d + 1),
    )


def intervals(quick) -> Iterator[Case]:
    """Jackknife+ intervals of a kept fit for many new rows."""
    n, m = (500, 1000) if quick else (4000, 10_000)
    X, Y, X_new, F_new = problem(n, 8, new=m)
    fit = rls.fit(rls.Gaussian(3.0), X, Y[:, 0], lams=[0.1], keep=True)

    def judge(ends):
        return 1 - float(np.mean((ends[0] <= F_new[:, 0]) & (F_new[:, 0] <= ends[1])))

    studentised = partial(fit.intervals, X_new, 0.9, studentised=True)
    yield Case(
        size=f"{m:,} new rows, n = {n:,}, d = 8",
        ours=Contestant(partial(fit.intervals, X_new, 0.9), judge),
        variants={"studentised": Contestant(studentised, judge)},
        floor=product(((m, n), (n, n))),
        accuracy="share of functions' values, without noise, that are outside",
        flops=2 * m * n * n,
    )


def stream(quick) -> Iterator[Case]:
    """Rows on disk, read a block at a time: 100 λ on landmarks, beside the same fit in memory."""
    n, m = (20_000, 50) if quick else (2_000_000, 500)
    X, Y, X_new, F_new = problem(n, 10)
    folder = tempfile.TemporaryDirectory()
    for i, part in enumerate(np.array_split(np.column_stack([X, Y]).astype(np.float32), 20)):
        np.save(f"{folder.name}/part{i:02}.npy", part)
    X, y, lams = X.astype(np.float32), Y[:, 0].astype(np.float32), np.geomspace(1e-2, 1e4, 100)
    fit = partial(rls.fit, rls.Gaussian(2.0), landmarks=X[:m], lams=lams.astype(np.float32))

    def judge(found):
        return mean_square(found.predict(X_new.astype(np.float32)), F_new)

    def ours():  # holds the folder, which lasts as long as the case
        return fit(rls.rows.stream(f"{folder.name}/*.npy"))

    yield Case(
        size=f"n = {n:,}, m = {m}, d = 10, L = 100, float32",
        ours=Contestant(ours, judge),
        floor={"the same rows in memory": lambda: fit(X, y)},
        accuracy=ON_NEW_ROWS,
    )


# whole processes
# ------------------------------------------------------------------------------------------------

COLD = """
import jaxrls as rls
X, y, _ = rls.airfoil()
X = (X - X.mean(axis=0)) / X.std(axis=0)
fit = rls.fit(rls.Gaussian(1.0), X[:1200], y[:1200])
print(((fit.predict(X[1200:]) - y[1200:]) ** 2).mean())
"""
DEMO = "import runpy; runpy.run_module('jaxrls', run_name='__main__')"


def cold(quick) -> Iterator[Case]:
    """A whole new process: import, compilation, fit with 100 λ, prediction."""
    del quick
    X, y, _ = rls.airfoil()
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "airfoil.npz"
    np.savez(file, X=X, y=y)
    # As users start it: only this process has asked OpenBLAS's threads to sleep.
    environment = os.environ.copy()
    environment.pop("OPENBLAS_THREAD_TIMEOUT", None)

    def process(code, *words):
        command = [sys.executable, "-c", code, *words]
        options = {"check": True, "capture_output": True, "text": True, "cwd": folder.name}
        return subprocess.run(command, env=environment, **options).stdout

    search = peers.cold_grid_search(partial(process, peers.COLD, str(file)))
    yield Case(
        size="airfoil, n = 1200, L = 100",
        ours=Contestant(partial(process, COLD), float),
        variants={"the demo": Contestant(partial(process, DEMO))},
        floor={
            "import jax": partial(process, "import jax; jax.block_until_ready(jax.numpy.ones(3))")
        },
        peers={"scikit-learn GridSearchCV(KernelRidge), 5 folds, 20 λ": search},
        accuracy="mean squared error on 303 rows put aside, dB²",
    )


def tuning(quick) -> Iterator[Case]:
    """Width and λ from scratch, to the best error on new rows."""
    X, y, _ = rls.airfoil()
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    n = 300 if quick else 1200
    X, y, X_new, y_new = X[:n], y[:n], X[1200:], y[1200:]
    x, t = jnp.asarray(X), jnp.asarray(y)

    def judge(model):
        return mean_square(model.predict(X_new), y_new)

    def tuned(width):
        return Contestant(partial(rls.tune, rls.Gaussian(width), X, y), judge)

    @jax.jit
    def grid_point(width, x, t):
        factor = rls.factorize(rls.Gaussian(width), x)
        return jnp.min(rls.loo(factor, t, rls.extend.lambda_grid(factor)))

    def grid():
        best = min(np.geomspace(0.1, 10, 20), key=lambda width: float(grid_point(width, x, t)))
        return rls.fit(rls.Gaussian(best), X, y)

    gammas, alphas = np.geomspace(0.01, 10, 10), np.geomspace(1e-4, 1, 6)
    search = peers.grid_search(X, y, X_new, y_new, gammas, alphas)
    yield Case(
        size=f"airfoil, n = {n}",
        ours=tuned(1.0),
        variants={
            "a width per column": tuned(np.ones(5)),
            "our own grid of 20 × 100": Contestant(grid, judge),
        },
        floor={"eigh": eigh_of(gram(rls.Gaussian(1.0), x))},
        peers={"scikit-learn GridSearchCV(KernelRidge), 60 points, 5 folds": search},
        accuracy="mean squared error on new rows, of the variance",
    )


# what the machine can do
# ------------------------------------------------------------------------------------------------


def spectrum(quick) -> Iterator[Case]:
    """One eigendecomposition beside the Cholesky factor that one λ takes: how many λ before the
    spectrum pays.
    """
    sizes = (1000, 2000, 4000, *(8000, 16_000) * ON_GPU)
    for n in (500,) if quick else sizes:
        for dtype in (jnp.float64, jnp.float32):
            x = jnp.asarray(problem(n, 8)[0], dtype)
            y, kernel, lam = jnp.sin(x[:, 0]), rls.Gaussian(dtype(2.0)), dtype(0.1)
            K, lams = gram(kernel, x), jnp.geomspace(0.01, 10, 100, dtype=dtype)

            @jax.jit
            def one(x, y):
                return rls.objective(kernel, x, y, lam, intercept=False)

            @jax.jit
            def many(K, y):
                return rls.loo(rls.factorize(rls.Precomputed(), K, intercept=False), y, lams)

            by_eigh = Contestant(partial(many, K, y), lambda errors: float(errors[33]))
            yield Case(
                size=f"n = {n}, {dtype.__name__}",
                ours=Contestant(partial(one, x, y), float),
                variants={"100 λ by eigh": by_eigh},
                floor={"Cholesky": cholesky_of(K + jnp.eye(n, dtype=dtype))},
                accuracy="leave-one-out error at λ = 0.1: the two ways agree",
                flops=n**3 / 3,
            )


def ceilings(quick) -> Iterator[Case]:
    """What the machine can do: matrix products, and bytes moved."""
    n = 1000 if quick else 16_384 if ON_GPU else 4000
    for dtype in (jnp.float64, jnp.float32):
        A = jnp.ones((n, n), dtype) / n
        full, plain = jax.jit(times), jax.jit(partial(jnp.matmul, precision="default"))
        moved = f"{2 * A.nbytes / 1e9:.2f} GB moved"
        judge = lambda out: float(jnp.abs(out * n - 1).max())
        yield Case(
            size=f"n = {n}, {dtype.__name__}",
            ours=Contestant(partial(full, A, A), judge),
            variants={
                "product, default precision": Contestant(partial(plain, A, A), judge),
                moved: Contestant(partial(jax.jit(lambda A: A + 1), A)),
            },
            floor={"product, highest precision": partial(full, A, A)},
            accuracy="error of the product (TF32 would show here)",
            flops=2 * n**3,
        )


WORKS: dict[str, Callable[[bool], Iterator[Case]]] = {
    work.__name__: work
    for work in (
        *(path, targets, gradient, subset, linear, datasets, matmul, prediction),
        *(intervals, stream, cold, tuning, spectrum, ceilings),
    )
}
