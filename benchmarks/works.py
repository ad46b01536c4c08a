"""The works that are measured: for each what we do, what peers do, and the operations that nobody
can avoid.

A work is a function of `quick` that yields cases. A case names its contestants; all of them get the
same data, and each may have a judge, which turns its result into a number that says how good it is
(an error: less is better)."""

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
from jaxrls.rows.blocks import default_block_size

LAMS = (1e-4, 1e3)
ON_GPU = jax.default_backend() == "gpu"


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


def product(*shape_pairs):
    """Matrix products of given shapes, as contestants for a floor."""
    run = jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest"))
    return {
        f"{a[0]}×{a[1]} by {b[0]}×{b[1]}": partial(run, jnp.ones(a), jnp.ones(b))
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
            right = jnp.matmul(block, V, precision="highest")
            return sums[0] + jnp.matmul(block.T, block, precision="highest"), sums[1] + jnp.sum(
                right * right, axis=1
            )

        return jax.lax.fori_loop(0, -(-n // rows), step, (jnp.zeros((m, m)), jnp.zeros(rows)))

    return {"ΦᵀΦ and ΦV in blocks": partial(run, jnp.ones((rows, m)), jnp.ones((m, m)))}


def eigh_of(K):
    run = jax.jit(lambda K: jax.lax.linalg.eigh(K, symmetrize_input=False))
    return partial(run, K)


def problem(n, d, t=1, seed=0, new=1000):
    """A smooth function of d inputs with noise, and rows to test on."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + new, d))
    F = np.sin(X @ rng.normal(size=(d, t))) + X[:, :1]
    Y = F + 0.3 * rng.normal(size=F.shape)
    return X[:n], Y[:n], X[n:], F[n:]


# the λ path
# ----------------------------------------------------------------------------------------------------------------


def path(quick) -> Iterator[Case]:
    """c(λ) and the exact leave-one-out error for L values of λ."""
    sizes = ((1000, 100), (2000, 100), (4000, 100), (8000, 100), (2000, 1), (2000, 1000))
    for n, count in ((500, 100),) if quick else sizes:
        X, Y, X_new, F_new = problem(n, 20)
        kernel, y = rls.Gaussian(4.0), Y[:, 0]
        x, t, lams = (
            jnp.asarray(X),
            jnp.asarray(y),
            jnp.geomspace(*LAMS, count) if count > 1 else jnp.array([0.1]),
        )

        @partial(jax.jit, static_argnames="intercept")
        def ours(x, t, lams, intercept=False, kernel=kernel):
            return rls.path(rls.factorize(kernel, x, intercept=intercept), t, lams)

        @jax.jit
        def at_one(x, t, lams, kernel=kernel):
            return rls.path(
                rls.factorize(kernel, x, solver=rls.Cholesky(), intercept=False), t, lams
            )

        def judge(result, kernel=kernel, x=x, X_new=X_new, F_new=F_new):
            best = int(result.loo.argmin())
            return mean_square(
                rls.gram(kernel, jnp.asarray(X_new), x) @ result.coef[best]
                + result.intercept[best],
                F_new,
            )

        variants = {"with intercept": Contestant(partial(ours, x, t, lams, intercept=True), judge)}
        yield Case(
            size=f"n = {n}, L = {count}",
            ours=Contestant(partial(ours, x, t, lams), judge),
            variants={"by Cholesky": Contestant(partial(at_one, x, t, lams), judge)}
            if count == 1
            else variants
            if n <= 4000
            else {},
            floor={"eigh": eigh_of(jax.jit(rls.gram)(kernel, x))},
            peers=_path_peers(X, Y, X_new, F_new, lams) if count == 100 and n <= 4000 else {},
            accuracy="mean squared error on new rows, noise apart",
            flops=9 * n**3,
        )


def _path_peers(X, Y, X_new, F_new, lams):
    lams, gamma = np.asarray(lams), 1 / 32
    return {
        "RLScore": peers.rlscore(X, Y[:, 0], lams, gamma, X_new, F_new),
        "himalaya KernelRidgeCV(cv=5)": peers.himalaya(X, Y, lams, gamma, X_new, F_new),
        "scikit-learn GridSearchCV(KernelRidge), 5 folds, 10 λ": peers.grid_search(
            X, Y[:, 0], X_new, F_new, [gamma], lams[::10]
        ),
    }


# many targets
# --------------------------------------------------------------------------------------------------------------


def targets(quick) -> Iterator[Case]:
    """L values of λ for t targets at once, and the choice of one λ for each."""
    for n, t, count in ((300, 50, 10),) if quick else ((2000, 1000, 20), (1000, 10_000, 20)):
        X, Y, X_new, F_new = problem(n, 10, t)
        kernel, lams = rls.Gaussian(3.0), jnp.geomspace(*LAMS, count)
        x, y = jnp.asarray(X), jnp.asarray(Y)

        @jax.jit
        def ours(x, y, lams, kernel=kernel):
            factor = rls.factorize(kernel, x, intercept=False)
            lam = lams[jnp.argmin(rls.loo(factor, y, lams), axis=0)]
            return rls.coef(factor, y, lam)[0]

        wide = product(((n, n), (n, t * count)), ((n, n), (n, 2 * t)))
        yield Case(
            size=f"n = {n}, t = {t}, L = {count}",
            ours=Contestant(
                partial(ours, x, y, lams),
                lambda coef, x=x, kernel=kernel, X_new=X_new, F_new=F_new: mean_square(
                    rls.gram(kernel, jnp.asarray(X_new), x) @ coef, F_new
                ),
            ),
            floor={"eigh": eigh_of(jax.jit(rls.gram)(kernel, x)), **wide},
            peers={
                "himalaya KernelRidgeCV(cv=5)": peers.himalaya(
                    X, Y, np.asarray(lams), 1 / 18, X_new, F_new
                )
            }
            if t <= 1000
            else {},
            accuracy="mean squared error on new rows, noise apart",
            flops=9 * n**3 + 2 * n * n * t * (count + 2),
        )


# the gradient
# ----------------------------------------------------------------------------------------------------------------


def gradient(quick) -> Iterator[Case]:
    """The leave-one-out error at one λ with its gradient in width and λ."""
    for n in (500,) if quick else (1000, 2000, 4000):
        X, Y, _, _ = problem(n, 8)
        x, y = jnp.asarray(X), jnp.asarray(Y[:, 0])
        ours = jax.jit(
            jax.value_and_grad(
                lambda width, lam, x, y: rls.objective(rls.Gaussian(width), x, y, lam), (0, 1)
            )
        )

        def judge(result, x=x, y=y, ours=ours):
            """Distance of the gradient from central differences, relative."""
            step, at = 1e-4, np.array([2.0, 0.1])
            value = lambda t: float(ours(t[0], t[1], x, y)[0])
            differences = np.array(
                [(value(at + h) - value(at - h)) / (2 * step) for h in step * np.eye(2)]
            )
            return float(
                np.abs(np.array(result[1]) - differences).max() / np.abs(differences).max()
            )

        G = jax.jit(lambda x: rls.gram(rls.Gaussian(2.0), x) + 0.1 * jnp.eye(len(x)))(x)
        cholesky = jax.jit(lambda G: jax.lax.linalg.cholesky(G, symmetrize_input=False))
        yield Case(
            size=f"n = {n}, d = 8",
            ours=Contestant(partial(ours, 2.0, 0.1, x, y), judge),
            floor={"Cholesky": partial(cholesky, G), **product(((n, n), (n, n)))},
            peers={
                "GPyTorch LeaveOneOutPseudoLikelihood with backward": peers.gpytorch_gradient(
                    X, Y[:, 0], 2.0, 0.1
                )
            },
            accuracy="of the gradient, from central differences, relative",
            flops=n**3 / 3 + 2 * n**3,
        )


# landmarks
# -----------------------------------------------------------------------------------------------------------------


def subset(quick) -> Iterator[Case]:
    """The subset of regressors: L values of λ with exact leave-one-out, a landmark leaving with its
    row.
    """
    sizes = (
        (10_000, 1000),
        (40_000, 1000),
        (100_000, 1000),
        *(((1_000_000, 1000), (10_000_000, 1000)) if ON_GPU else ()),
    )
    for n, m in ((4000, 200),) if quick else sizes:
        X, Y, X_new, F_new = problem(n, 8)
        kernel, x, y = rls.Gaussian(float(np.sqrt(8))), jnp.asarray(X), jnp.asarray(Y[:, 0])
        choose, large = (
            partial(rls.landmarks, kernel, x, m, key=jax.random.key(0)),
            n > 100_000,
        )
        chosen = (
            jnp.asarray(np.random.default_rng(0).choice(n, m, replace=False)) if large else choose()
        )
        points, lams = x[chosen] if large else chosen.points, jnp.geomspace(*LAMS, 100)

        @partial(jax.jit, static_argnames="leave")
        def ours(x, y, chosen, lams, leave=True, kernel=kernel):
            return rls.path(rls.factorize(kernel, x, landmarks=chosen, leave=leave), y, lams)

        def judge(result, kernel=kernel, points=points, X_new=X_new, F_new=F_new):
            best = int(result.loo.argmin())
            return mean_square(
                rls.gram(kernel, jnp.asarray(X_new), points) @ result.coef[best]
                + result.intercept[best],
                F_new,
            )

        variants = {
            "dictionary fixed": Contestant(partial(ours, x, y, chosen, lams, leave=False), judge),
            "choosing the landmarks": Contestant(choose),
        }
        yield Case(
            size=f"n = {n}, m = {m}, d = 8, L = 100",
            ours=Contestant(partial(ours, x, y, chosen, lams), judge),
            variants={} if large else variants,
            floor=block_products(n, m) if large else product(((n, m), (m, m)), ((m, n), (n, m))),
            peers={
                "scikit-learn Nystroem + RidgeCV": peers.nystroem(
                    X, Y[:, 0], m, np.asarray(lams), X_new, F_new
                ),
                "falkon, one λ": peers.falkon(X, Y[:, 0], m, X_new, F_new),
            }
            if n <= 40_000
            else {},
            accuracy="mean squared error on new rows, noise apart",
            flops=4 * n * m * m,
        )


# linear
# --------------------------------------------------------------------------------------------------------------------


def linear(quick) -> Iterator[Case]:
    """A linear model with exact leave-one-out at L values of λ: tall, and wide."""
    for n, d, theirs in (
        ((20_000, 50, True), (50, 300, True))
        if quick
        else ((200_000, 100, True), (1_000_000, 100, False), (1000, 20_000, True))
    ):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n, d))
        w = rng.normal(size=d) / np.sqrt(d)
        y = X @ w + rng.normal(size=n)
        x, t, lams = jnp.asarray(X), jnp.asarray(y), jnp.geomspace(1e-2, 1e5, 100)

        @jax.jit
        def ours(x, t, lams):
            factor = rls.factorize(rls.Linear(), x, intercept=False)
            errors = rls.loo(factor, t, lams)
            found, _ = rls.coef(factor, t, lams[jnp.argmin(errors)])
            return errors, jnp.matmul(
                found, x, precision="highest"
            ) if factor.route == "gram" else found

        r = min(n, d)
        inner = jax.jit(
            lambda A: jnp.matmul(
                *((A.T, A) if A.shape[0] > A.shape[1] else (A, A.T)), precision="highest"
            )
        )
        floor = {"ΦᵀΦ" if n > d else "ΦΦᵀ": partial(inner, x)}
        if n > d:
            floor |= product(((n, r), (r, r)), ((n, r), (r, 200)))
        else:
            floor |= {"eigh": eigh_of(inner(x))}
        yield Case(
            size=f"n = {n:,}, d = {d:,}, L = 100",
            ours=Contestant(
                partial(ours, x, t, lams), lambda result, w=w: mean_square(result[1], w)
            ),
            floor=floor,
            peers={"scikit-learn RidgeCV": peers.ridge_cv(X, y, np.asarray(lams), w)}
            if theirs
            else {},
            accuracy="mean squared error of the coefficients",
            flops=2 * n * d * r + (2 * n * r * (r + 200) if n > d else 9 * n**3),
        )


# many data sets
# ------------------------------------------------------------------------------------------------------------


def datasets(quick) -> Iterator[Case]:
    """A thousand small data sets, each with its own factorization, λ grid and choice, by vmap."""
    sets, n, d, count = (50, 50, 5, 20) if quick else (1000, 100, 5, 50)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sets, n, d))
    Y = np.sin(X[:, :, 0]) + 0.3 * rng.normal(size=(sets, n))
    kernel, lams = rls.Gaussian(2.0), jnp.geomspace(1e-3, 1e2, count)

    @jax.jit
    @jax.vmap
    def ours(x, y):
        factor = rls.factorize(kernel, x, intercept=False)
        errors = rls.loo(factor, y, lams)
        return rls.coef(factor, y, lams[jnp.argmin(errors)])[0], jnp.min(errors)

    from scipy.linalg import lapack

    grams = np.asarray(jax.jit(jax.vmap(lambda x: rls.gram(kernel, x)))(jnp.asarray(X)))
    yield Case(
        size=f"{sets} sets, n = {n}, L = {count}",
        ours=Contestant(
            partial(ours, jnp.asarray(X), jnp.asarray(Y)), lambda result: float(result[1].mean())
        ),
        floor={f"{sets} calls of LAPACK syevd": lambda: [lapack.dsyevd(K)[0] for K in grams]},
        peers={
            "scikit-learn, a loop over RidgeCV": peers.ridge_cv_loop(grams, Y, np.asarray(lams))
        },
        accuracy="mean smallest leave-one-out error",
        flops=9 * sets * n**3,
    )


# K·V and prediction
# ------------------------------------------------------------------------------------------------------------


def kernel_product(n, m, d, t):
    """X, Z, V, and what nobody can avoid on the way to K(X, Z) V: two products and exp of every
    element, in cache-sized blocks of rows.
    """
    rng = np.random.default_rng(0)
    X, Z, V = rng.normal(size=(n, d)), rng.normal(size=(m, d)), rng.normal(size=(m, t))
    rows = default_block_size(n, 8 * m)

    @jax.jit
    def unavoidable(x, z, v):
        def block(part):
            return jnp.matmul(
                jnp.exp(jnp.matmul(part, z.T, precision="highest")), v, precision="highest"
            )

        return jax.lax.map(block, x[: len(x) // rows * rows].reshape(-1, rows, x.shape[1]))

    floor = partial(unavoidable, *map(jnp.asarray, (0.01 * X, Z, V)))
    return X, Z, V, {"product + exp + product, in cache-sized blocks": floor}


def matmul(quick) -> Iterator[Case]:
    """K(X, X) V without K in memory, in blocks of rows."""
    n, d, t = (3000, 20, 10) if quick else (20_000, 20, 10)
    X, Z, V, floor = kernel_product(n, n, d, t)
    exact = np.exp(-0.5 / d * ((X[:5, None] - Z[None]) ** 2).sum(-1)) @ V
    yield Case(
        size=f"{n:,} × {n:,} rows, d = {d}, t = {t}",
        ours=Contestant(
            partial(
                jax.jit(rls.gram_matmul),
                rls.Gaussian(float(np.sqrt(d))),
                *map(jnp.asarray, (X, Z, V)),
            ),
            lambda out: float(np.abs(np.asarray(out[:5]) - exact).max() / np.abs(exact).max()),
        ),
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
    exact = np.exp(-0.125 * ((X[:5, None] - Z[None]) ** 2).sum(-1)) @ np.asarray(fit.model.coef)
    yield Case(
        size=f"{n:,} new rows, n = {m:,}, d = {d}",
        ours=Contestant(
            partial(fit.predict, X),
            lambda out: float(np.abs(out[:5] - exact).max() / np.abs(exact).max()),
        ),
        floor=floor,
        peers={
            "scikit-learn KernelRidge.predict": peers.kernel_ridge_predict(
                Z, y, 0.125, 0.1, X, exact
            )
        },
        accuracy="relative error of five rows",
        flops=2 * n * m * (d + 1),
    )


# whole processes
# -----------------------------------------------------------------------------------------------------------

COLD = """
import jaxrls as rls
X, y, _ = rls.airfoil()
X = (X - X.mean(axis=0)) / X.std(axis=0)
fit = rls.fit(rls.Gaussian(1.0), X[:1200], y[:1200])
print(((fit.predict(X[1200:]) - y[1200:]) ** 2).mean())
"""


def cold(quick) -> Iterator[Case]:
    """A whole new process: import, compilation, fit with 100 λ, prediction."""
    del quick
    X, y, _ = rls.airfoil()
    folder = tempfile.TemporaryDirectory()
    np.savez(Path(folder.name) / "airfoil.npz", X=X, y=y)

    def process(code):  # holds the folder, which lasts as long as the case
        file = str(Path(folder.name) / "airfoil.npz")
        # As users start it: only this process has asked OpenBLAS's threads to sleep.
        environment = {
            name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"
        }
        return subprocess.run(
            [sys.executable, "-c", code, file],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout

    yield Case(
        size="airfoil, n = 1200, L = 100",
        ours=Contestant(lambda: process(COLD), float),
        floor={"import jax": lambda: process("import jax; jax.numpy.zeros(3).block_until_ready()")},
        peers={
            "scikit-learn GridSearchCV(KernelRidge), 5 folds, 20 λ": peers.cold_grid_search(process)
        },
        accuracy="mean squared error on 303 rows put aside, dB²",
    )


def tuning(quick) -> Iterator[Case]:
    """Width and λ from scratch, to the best error on new rows."""
    X, y, _ = rls.airfoil()
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    n = 300 if quick else 1200
    X, y, X_new, y_new = X[:n], y[:n], X[1200:], y[1200:]

    def judge(model):
        return mean_square(model.predict(X_new), y_new)

    @jax.jit
    def grid_point(width, x, t):
        factor = rls.factorize(rls.Gaussian(width), x, intercept=True)
        return jnp.min(rls.loo(factor, t, rls.lambda_grid(factor)))

    def grid():
        widths = jnp.geomspace(0.1, 10, 20)
        errors = [grid_point(width, jnp.asarray(X), jnp.asarray(y)) for width in widths]
        return rls.fit(rls.Gaussian(float(widths[int(np.argmin(errors))])), X, y)

    yield Case(
        size=f"airfoil, n = {n}",
        ours=Contestant(lambda: rls.tune(rls.Gaussian(1.0), X, y), judge),
        variants={
            "a width per column": Contestant(
                lambda: rls.tune(rls.Gaussian(np.ones(5)), X, y), judge
            ),
            "our own grid of 20 × 100": Contestant(grid, judge),
        },
        floor={"eigh": eigh_of(jax.jit(rls.gram)(rls.Gaussian(1.0), jnp.asarray(X)))},
        peers={
            "scikit-learn GridSearchCV(KernelRidge), 60 points, 5 folds": peers.grid_search(
                X, y, X_new, y_new, np.geomspace(0.01, 10, 10), np.geomspace(1e-4, 1, 6)
            )
        },
        accuracy="mean squared error on new rows, of the variance",
    )


# what decides between a Cholesky factor for each λ and one eigendecomposition
# ------------------------------------------------------


def spectrum(quick) -> Iterator[Case]:
    """One eigendecomposition beside the Cholesky factor that one λ takes: how many λ before the
    spectrum pays.
    """
    for n in (
        (500,)
        if quick
        else (1000, 2000, 4000)
        if jax.default_backend() == "cpu"
        else (1000, 2000, 4000, 8000, 16_000)
    ):
        for dtype in (jnp.float64, jnp.float32):
            x = jnp.asarray(problem(n, 8)[0], dtype)
            y = jnp.sin(x[:, 0])
            K = jax.jit(rls.gram)(rls.Gaussian(dtype(2.0)), x)
            one = jax.jit(
                lambda x, y: rls.objective(
                    rls.Gaussian(x.dtype.type(2.0)), x, y, x.dtype.type(0.1), intercept=False
                )
            )
            cholesky = jax.jit(
                lambda K: jax.lax.linalg.cholesky(
                    K + jnp.eye(len(K), dtype=K.dtype), symmetrize_input=False
                )
            )
            many = jax.jit(
                lambda K, y: rls.loo(
                    rls.factorize(rls.Precomputed(), K, intercept=False),
                    y,
                    jnp.geomspace(0.01, 10, 100, dtype=K.dtype),
                )
            )
            yield Case(
                size=f"n = {n}, {dtype.__name__}",
                ours=Contestant(partial(one, x, y), float),
                variants={
                    "100 λ by eigh": Contestant(
                        partial(many, K, y), lambda errors: float(errors[33])
                    )
                },
                floor={"Cholesky": partial(cholesky, K)},
                accuracy="leave-one-out error at λ = 0.1: the two ways agree",
                flops=n**3 / 3,
            )


def ceilings(quick) -> Iterator[Case]:
    """What the machine can do: matrix products, and bytes moved."""
    n = 1000 if quick else 4000 if jax.default_backend() == "cpu" else 16_384
    for dtype in (jnp.float64, jnp.float32):
        A = jnp.ones((n, n), dtype) / n
        run = jax.jit(lambda A: jnp.matmul(A, A, precision="highest"))
        plain = jax.jit(lambda A: jnp.matmul(A, A, precision="default"))
        add = jax.jit(lambda A: A + 1)
        yield Case(
            size=f"n = {n}, {dtype.__name__}",
            ours=Contestant(partial(run, A), lambda out, n=n: float(jnp.abs(out * n - 1).max())),
            variants={
                "product, default precision": Contestant(
                    partial(plain, A), lambda out, n=n: float(jnp.abs(out * n - 1).max())
                ),
                f"{2 * A.nbytes / 1e9:.2f} GB moved": Contestant(partial(add, A)),
            },
            floor={"product, highest precision": partial(run, A)},
            accuracy="error of the product (TF32 would show here)",
            flops=2 * n**3,
        )


WORKS: dict[str, Callable[[bool], Iterator[Case]]] = {
    work.__name__: work
    for work in (
        path,
        targets,
        gradient,
        subset,
        linear,
        datasets,
        matmul,
        prediction,
        cold,
        tuning,
        spectrum,
        ceilings,
    )
}
