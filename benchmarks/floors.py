"""How far above the rounding of K a λ must be for the numbers of a fit to be right to 1 %.

    python benchmarks/floors.py [--sets 100] [--rows 60 250] [--check]

Data sets are drawn whose kernels are smooth and wide, so that most eigenvalues of K are below λ:
one to four columns, widths of 2 to 100, an outlier in half of them, weights in a third. For each, λ
is a multiple of the floor of the factor. What the factors say in float32 is compared with float64,
and in float64 with 80-bit numbers; --check compares these with 50 digits on some small sets (it
needs mpmath).

The table has, for every multiple, the error that 9 of 10 sets are within, and the largest: of the
leave-one-out error, relative to it; of held-out residuals and of predictions of the rows, the
largest of all rows, in units of the root mean square of held-out residuals; and of variances of
these rows, the largest of all, relative to each."""

from functools import partial
from typing import NamedTuple

from common import head, line, options_of, say

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

import jaxrls as rls
from jaxrls.uncertainty.spread import spread

TIMES = (1, 3, 10, 30, 100, 300, 1000)
SOLVERS = {"Cholesky factor": rls.Cholesky(), "spectrum": rls.Spectral("gram")}
MEASURES = "error", "held out", "predicted", "variances"


class Drawn(NamedTuple):
    """A data set: rows, labels, weights, and one width for each of four columns."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    width: np.ndarray


def drawn(seed: int, rows: int) -> Drawn:
    """The data set of a seed; columns that it has not are 0."""
    rng = np.random.default_rng(seed)
    kinds = [rng.uniform(0, 4, rows), rng.normal(size=rows), rng.integers(0, 2, rows)]
    X = np.zeros((rows, 4))
    for column in range(rng.integers(1, 5)):
        X[:, column] = rng.permutation(kinds[rng.integers(3) if column else 0])
    y = np.sin(1.5 * X[:, 0]) + X[:, 1:] @ (0.5 * rng.normal(size=3))
    y += 10 ** rng.uniform(-3, -0.3) * rng.normal(size=rows)
    y[7] += rng.choice([0, 4])
    weights = rng.uniform(0.2, 1, rows) if rng.random() < 1 / 3 else np.ones(rows)
    return Drawn(X, y, weights, 10 ** rng.uniform(0.3, 2, size=4))


def as_dtype(data: Drawn, dtype) -> Drawn:
    return Drawn(*(np.asarray(part, dtype) for part in data))


class Said(NamedTuple):
    """What a fit says of its rows at every λ, (L, n): held-out residuals, predictions, and
    variances in units of the kernel.
    """

    held_out: np.ndarray
    predicted: np.ndarray
    variances: np.ndarray


@partial(jax.jit, static_argnames="solver")
def of_factor(data: Drawn, times, solver):
    """What a factor says at multiples of its floor, and these λ."""
    kernel = rls.Gaussian(data.width)
    factor = rls.factorize(kernel, data.X, weights=data.weights, solver=solver)
    lams = times * factor.precision_floor()

    def at_lam(lam):
        fit = factor.solve(data.y[:, None])
        found = fit.coefficients(lam.reshape(1, 1))
        K = rls.extend.gram(kernel, data.X, data.X)
        predicted = K @ found.coef[0, :, 0] + found.intercept.ravel()[0]
        of_rows = spread(factor, lam)
        variances = of_rows.variances(kernel, of_rows.new_rows(kernel, data.X))
        return Said(rls.diagnostics.loo_residuals(factor, data.y, lam), predicted, variances)

    return jax.lax.map(at_lam, lams), lams


def reference(data: Drawn, lams, wide) -> Said:
    """The same by a Cholesky factor in another dtype, the intercept by elimination."""
    data = as_dtype(data, wide)
    differences = (data.X[:, None] - data.X[None]) / data.width
    K = np.exp(-(differences**2).sum(axis=2) / 2)
    said = []
    for lam in lams:
        C = inverse_root(K + np.diag(wide(lam) / data.weights))
        # Sums go over products with L⁻¹: entries of G⁻¹ are 1/λ, and cancel.
        labels = C @ data.y
        ones = C.sum(axis=1)
        total = ones @ ones
        intercept = (ones @ labels) / total
        left = labels - intercept * ones
        diagonal = (C**2).sum(axis=0) - (ones @ C) ** 2 / total
        half = K @ C.T
        unexplained = 1 - half @ ones
        variances = 1 - (half**2).sum(axis=1) + unexplained**2 / total
        said.append(Said((left @ C) / diagonal, half @ left + intercept, variances))
    return Said(*(np.array(parts) for parts in zip(*said, strict=True)))


def inverse_root(A):
    """L⁻¹ of A = LLᵀ, in any dtype: LAPACK has no long double."""
    n = len(A)
    L = np.zeros_like(A)
    for j in range(n):
        column = A[j:, j] - L[j:, :j] @ L[j, :j]
        L[j:, j] = column / np.sqrt(column[0])
    inverse = np.eye(n, dtype=A.dtype)
    for i in range(n):
        inverse[i] = (inverse[i] - L[i, :i] @ inverse[:i]) / L[i, i]
    return inverse


def deviations(got: Said, want: Said, weights):
    """(4, L): how far off each of the MEASURES is."""
    mean_square = lambda residuals: (residuals**2 @ weights) / weights.sum()
    square = mean_square(want.held_out)
    away = [np.abs(mean_square(got.held_out) / square - 1)]
    for mine, right in zip(got[:2], want[:2], strict=True):
        away.append(np.abs(mine - right).max(axis=1) / np.sqrt(square))
    away.append(np.abs(got.variances / want.variances - 1).max(axis=1))
    return np.array(away, float)


def measure(dtype, solver, rows: int, sets: int, times=TIMES):
    """(sets, 4, L): deviations of every set."""
    wide = np.longdouble if dtype == np.float64 else np.float64
    found = []
    for seed in range(sets):
        data = as_dtype(drawn(seed, rows), dtype)
        said, lams = of_factor(data, jnp.asarray(times, dtype), solver=solver)
        got = Said(*(np.asarray(part).astype(wide) for part in said))
        want = reference(data, np.asarray(lams), wide)
        found.append(deviations(got, want, data.weights.astype(wide)))
    return np.array(found)


def check(seeds=range(3), rows=40):
    """The reference in 80 bits beside one of 50 digits."""
    import mpmath

    mpmath.mp.dps = 50
    exact = np.vectorize(mpmath.mpf, otypes=[object])
    for seed in seeds:
        data = as_dtype(drawn(seed, rows), np.float64)
        lam = 6 * rows**0.5 * np.finfo(np.float64).eps
        said = reference(data, [lam], np.longdouble)
        wide = Drawn(*map(exact, data))
        differences = (wide.X[:, None] - wide.X[None]) / wide.width
        K = np.vectorize(mpmath.exp, otypes=[object])(-(differences**2).sum(axis=2) / 2)
        G = mpmath.matrix((K + np.diag(mpmath.mpf(lam) / wide.weights)).tolist())
        P = np.array((G**-1).tolist(), object).reshape(rows, rows)
        u = P.sum(axis=1)
        P = P - np.outer(u, u) / u.sum()
        held_out = (P @ wide.y) / np.diag(P)
        rms = float(np.sqrt(np.mean(said.held_out.astype(float) ** 2)))
        of_80_bits = said.held_out[0].astype(str)  # in decimal digits, which it reads exactly
        pairs = zip(held_out, of_80_bits, strict=True)
        off = max(abs(float(right - mpmath.mpf(text))) for right, text in pairs)
        say(f"set {seed}: held-out residuals in 80 bits are off by {off / rms:.1g} of their rms")


def main():
    parser = options_of(__doc__)
    parser.add_argument("--sets", type=int, default=10, help="data sets, 10")
    parser.add_argument("--rows", type=int, nargs="+", default=[60], help="rows of each, 60")
    parser.add_argument("--check", action="store_true", help="the reference against 50 digits")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.check:
        check()
    names = [f"{name}, {which}" for name in MEASURES for which in ("9 of 10", "most")]
    say(head("factor", "precision", "rows", "λ/floor", *names))
    for name, solver in SOLVERS.items():
        for dtype in (np.float32, np.float64):
            for rows in options.rows:
                away = measure(dtype, solver, rows, options.sets)
                for i, times in enumerate(TIMES):
                    cells = []
                    for of_sets in away[:, :, i].T:
                        cells += [f"{np.quantile(of_sets, 0.9):.1g}", f"{of_sets.max():.1g}"]
                    say(line(name, dtype.__name__, rows, times, *cells))


if __name__ == "__main__":
    main()
