"""What compile.py compiles: the public computations that are one program, on shapes alone. d = 8,
500 landmarks, 100 λ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrls as rls
from jaxrls import extend
from jaxrls.search.lam_search import _probe
from jaxrls.search.problem import Problem

COLUMNS, LANDMARKS, SIDE, FOLDS = 8, 500, 50, 5
SLOW = "they take minutes (--slow)"
IN_FLOAT64 = "refined, leave-one-out"  # which XLA makes of pairs of float32 on TPUs
GAUSSIAN = rls.Gaussian(1.0)


class Computation(NamedTuple):
    """A function, its arguments as shapes at n, the numbers of the matrix it works on, and why it
    is left out for TPUs.
    """

    fn: Callable
    arguments: Callable
    matrix: Callable
    left_out: str = ""


def shape(*sizes: int, dtype="float32") -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def rows(n: int):
    """X and y."""
    return shape(n, COLUMNS), shape(n)


def with_points(n: int):
    """X, y, and landmarks or new rows."""
    return *rows(n), shape(LANDMARKS, COLUMNS)


def at_width(n: int):
    return shape(), *rows(n)


def in_folds(n: int):
    """X, y and a plan of equal folds."""
    inside = FOLDS, n // FOLDS
    return *rows(n), extend.Folds(
        shape(*inside, dtype="int32"), shape(*inside), shape(n, dtype="int32")
    )


def square(n: int) -> int:
    return n * n


def lams():
    return jnp.geomspace(1e-3, 1e2, 100, dtype=jnp.float32)


def path(criterion):
    """100 λ of a grid from the factor."""

    def run(X, y):
        factor = rls.factorize(GAUSSIAN, X)
        return criterion(factor, y, rls.lambda_grid(factor, 100))

    return run


def objective(width, X, y, Z=None):
    return rls.objective(rls.Gaussian(width), X, y, jnp.float32(0.1), landmarks=Z)


def log_predictive(width, X, y):
    return rls.objective(
        rls.Gaussian(width), X, y, jnp.float32(0.1), criterion=rls.log_predictive_density
    )


def probe(X, y):
    """One λ of a search, by a Cholesky factor."""
    problem = Problem.of(GAUSSIAN, X, y, solver=rls.Cholesky())
    return _probe(problem, problem.solution(), jnp.zeros(1, jnp.float32))


def refined(X, y):
    wide = [part.astype(jnp.float64) for part in (X, y, 0.1 * jnp.ones((1, 1)))]
    return (
        rls.factorize(rls.Gaussian(1.0), wide[0], solver=rls.Refined())
        .solve(wide[1])
        .outcome(wide[2])
        .residuals
    )


def subset(X, y, Z):
    return rls.loo(rls.factorize(GAUSSIAN, X, landmarks=Z), y, lams())


def iterative(X, y, Z):
    """Coefficients, residuals and the estimated leave-one-out error at one λ."""
    return (
        rls.factorize(GAUSSIAN, X, solver=rls.Iterative(Z))
        .solve(y)
        .outcome(jnp.full((1, 1), 0.1, jnp.float32))
        .residuals
    )


def linear(X, y):
    return rls.loo(rls.factorize(rls.Linear(), X, solver=rls.Spectral("covariance")), y, lams())


def held_out(X, y, Z, labels):
    return rls.holdout(rls.gram(GAUSSIAN, Z, X), labels)(rls.factorize(GAUSSIAN, X), y, lams())


def folds(X, y, plan):
    return rls.kfold(plan)(rls.factorize(GAUSSIAN, X), y, lams())


def pairs(X, y):
    return rls.pairwise_ranking_error(rls.factorize(GAUSSIAN, X), y, lams())


def deviations(X, y, Z):
    return rls.fit(GAUSSIAN, X, y, lams=lams(), keep=True).predict(Z, return_std=True)


def intervals(X, y, Z):
    return rls.fit(GAUSSIAN, X, y, lams=lams(), keep=True).intervals(Z, 0.9)


def influence(X, y):
    return rls.influence(rls.factorize(GAUSSIAN, X), y, jnp.float32(0.1))


def columns(X, y):
    return rls.select_columns(X, y, COLUMNS // 2, jnp.float32(0.1)).errors


def two_sided(K1, K2, Y):
    return rls.kronecker_left_out(rls.factor_kronecker(K1, K2), Y, lams())


def computations() -> dict[str, Computation]:
    """By name."""
    on_points = lambda n: n * LANDMARKS
    return {
        "path, leave-one-out": Computation(path(rls.loo), rows, square, SLOW),
        "path, GCV": Computation(path(rls.gcv), rows, square, SLOW),
        "path, evidence": Computation(path(rls.log_marginal_likelihood), rows, square, SLOW),
        "path, log predictive density": Computation(
            path(rls.log_predictive_density), rows, square, SLOW
        ),
        "path, five folds": Computation(folds, in_folds, square, SLOW),
        "path, pairs left out": Computation(pairs, rows, square, SLOW),
        "path, hold-out": Computation(
            held_out, lambda n: (*with_points(n), shape(LANDMARKS)), square, SLOW
        ),
        "one λ and its slope": Computation(probe, rows, square),
        "objective": Computation(objective, at_width, square),
        "objective and gradient": Computation(jax.value_and_grad(objective), at_width, square),
        "log predictive density and gradient": Computation(
            jax.value_and_grad(log_predictive), at_width, square
        ),
        IN_FLOAT64: Computation(refined, rows, square, SLOW),
        "gram": Computation(lambda X: rls.gram(GAUSSIAN, X), lambda n: rows(n)[:1], square),
        "K·V": Computation(
            lambda X, V: rls.gram_matmul(GAUSSIAN, X, X, V),
            lambda n: (shape(n, COLUMNS), shape(n, 10)),
            square,
        ),
        "iterative, one λ": Computation(iterative, with_points, on_points, SLOW),
        "fit, deviations of new rows": Computation(deviations, with_points, square, SLOW),
        "fit, intervals of new rows": Computation(intervals, with_points, square, SLOW),
        "influence": Computation(influence, rows, square, SLOW),
        "landmarks, leave-one-out": Computation(subset, with_points, on_points, SLOW),
        "landmarks, objective and gradient": Computation(
            jax.value_and_grad(objective), lambda n: (shape(), *with_points(n)), on_points
        ),
        "linear, leave-one-out": Computation(linear, rows, lambda n: n * COLUMNS),
        "columns chosen": Computation(columns, rows, lambda n: n * COLUMNS),
        "two-sided, entries left out": Computation(
            two_sided, lambda n: (shape(n, n), shape(SIDE, SIDE), shape(n, SIDE)), square, SLOW
        ),
    }


COLUMNS_OF_MANY = 10


def on_many(target: str = "h100") -> dict[str, Callable]:
    """Functions of rows, labels and points, that are compiled for many devices of a kind."""

    def moments(rows, y, points):
        solution = extend.Problem.of(GAUSSIAN, rows, y, landmarks=points).solution("cholesky")
        return solution.factor.second, solution.cross

    def one(rows, y, points):
        factor = rls.factorize(GAUSSIAN, rows, landmarks=points, solver=rls.Cholesky())
        return rls.loo(factor, y, lams()[:1])

    def slopes(rows, y, points):
        return jax.value_and_grad(objective, (0, 3))(jnp.float32(1.0), rows, y, points)

    # An eigendecomposition takes minutes to compile for TPUs.
    grid = {} if target == "v5e" else {"moments and leave-one-out at 100 λ": subset}
    return {
        "moments": moments,
        "moments and leave-one-out at one λ": one,
        **grid,
        "leave-one-out at one λ and its slopes": slopes,
    }
