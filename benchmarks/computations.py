"""What compile.py compiles: the public computations that are one program, on shapes alone. d = 8,
500 landmarks, 100 λ.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrls as rls
from jaxrls import extend
from jaxrls.front import read_problem
from jaxrls.front.lam_search import _evaluate_at_once

COLUMNS, LANDMARKS, SIDE, FOLDS = 8, 500, 50, 5
IN_FLOAT64 = "refined, leave-one-out"  # which XLA makes of pairs of float32 on TPUs
GAUSSIAN, LAM = rls.Gaussian(1.0), jnp.float32(0.1)


class Computation(NamedTuple):
    """A function, its arguments as shapes at n, the numbers of the matrix it works on, and whether
    it takes minutes to compile for TPUs, as eigendecompositions do.
    """

    fn: Callable
    arguments: Callable
    matrix: Callable
    slow: bool


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
    plan = extend.Folds(shape(*inside, dtype="int32"), shape(*inside), shape(n, dtype="int32"))
    return *rows(n), plan


def lams():
    return jnp.geomspace(1e-3, 1e2, 100, dtype=jnp.float32)


def path(criterion):
    """100 λ of a grid from the factor."""

    def run(X, y):
        factor = rls.factorize(GAUSSIAN, X)
        return criterion(factor, y, rls.extend.lambda_grid(factor, 100))

    return run


def objective(width, X, y, Z=None, criterion=rls.loo):
    return rls.objective(rls.Gaussian(width), X, y, LAM, landmarks=Z, criterion=criterion)


def log_predictive(width, X, y):
    return objective(width, X, y, criterion=rls.extend.log_predictive_density)


def probe(X, y):
    """One λ of a search, by a Cholesky factor."""
    problem = read_problem(GAUSSIAN, X, y, solver=rls.Cholesky())
    return _evaluate_at_once(problem, problem.solution(), jnp.zeros(1, jnp.float32))


def outcome(X, y, solver):
    """Coefficients and what is left out at one λ."""
    solution = rls.factorize(GAUSSIAN, X, solver=solver).solve(y)
    return solution.outcome(jnp.full((1, 1), LAM, X.dtype)).held_out


def refined(X, y):
    return outcome(X.astype(jnp.float64), y.astype(jnp.float64), rls.Refined())


def iterative(X, y, Z):
    return outcome(X, y, rls.Iterative(Z))


def subset(X, y, Z):
    return rls.loo(rls.factorize(GAUSSIAN, X, landmarks=Z), y, lams())


def linear(X, y):
    return rls.loo(rls.factorize(rls.Linear(), X, solver=rls.Spectral("covariance")), y, lams())


def held_out(X, y, Z, labels):
    return rls.holdout(rls.extend.gram(GAUSSIAN, Z, X), labels)(
        rls.factorize(GAUSSIAN, X), y, lams()
    )


def folds(X, y, plan):
    return rls.kfold(plan)(rls.factorize(GAUSSIAN, X), y, lams())


def pairs(X, y):
    return rls.ranking.pairwise_ranking_error(rls.factorize(GAUSSIAN, X), y, lams())


def kept(X, y):
    return rls.fit(GAUSSIAN, X, y, lams=lams(), keep=True)


def influence(X, y):
    return rls.diagnostics.influence(rls.factorize(GAUSSIAN, X), y, LAM)


def columns(X, y):
    return rls.several.select_columns(X, y, COLUMNS // 2, LAM).errors


def two_sided(K1, K2, Y):
    return rls.two_sided.kronecker_left_out(rls.two_sided.factor_kronecker(K1, K2), Y, lams())


def computations() -> dict[str, Computation]:
    """By name: first those that take minutes for TPUs."""
    square, on_points, on_columns = (
        (lambda n: n * n),
        (lambda n: n * LANDMARKS),
        lambda n: n * COLUMNS,
    )
    slope = jax.value_and_grad(objective)
    held = lambda n: (*with_points(n), shape(LANDMARKS))
    sides = lambda n: (shape(n, n), shape(SIDE, SIDE), shape(n, SIDE))
    slow = {
        "path, leave-one-out": (path(rls.loo), rows, square),
        "path, GCV": (path(rls.gcv), rows, square),
        "path, evidence": (path(rls.log_marginal_likelihood), rows, square),
        "path, log predictive density": (path(rls.extend.log_predictive_density), rows, square),
        "path, five folds": (folds, in_folds, square),
        "path, pairs left out": (pairs, rows, square),
        "path, hold-out": (held_out, held, square),
        IN_FLOAT64: (refined, rows, square),
        "iterative, one λ": (iterative, with_points, on_points),
        "fit, deviations of new rows": (
            lambda X, y, Z: kept(X, y).predict(Z, return_std=True),
            with_points,
            square,
        ),
        "fit, intervals of new rows": (
            lambda X, y, Z: kept(X, y).intervals(Z, 0.9),
            with_points,
            square,
        ),
        "influence": (influence, rows, square),
        "landmarks, leave-one-out": (subset, with_points, on_points),
        "linear, leave-one-out": (linear, rows, on_columns),
        "two-sided, entries left out": (two_sided, sides, square),
    }
    quick = {
        "one λ and its slope": (probe, rows, square),
        "objective": (objective, at_width, square),
        "objective and gradient": (slope, at_width, square),
        "log predictive density and gradient": (
            jax.value_and_grad(log_predictive),
            at_width,
            square,
        ),
        "gram": (partial(rls.extend.gram, GAUSSIAN), lambda n: rows(n)[:1], square),
        "K·V": (
            lambda X, V: rls.extend.gram_matmul(GAUSSIAN, X, X, V),
            lambda n: (shape(n, COLUMNS), shape(n, 10)),
            square,
        ),
        "landmarks, objective and gradient": (
            slope,
            lambda n: (shape(), *with_points(n)),
            on_points,
        ),
        "columns chosen": (columns, rows, on_columns),
    }
    found = {name: Computation(*one, slow=True) for name, one in slow.items()}
    return found | {name: Computation(*one, slow=False) for name, one in quick.items()}


COLUMNS_OF_MANY = 10


def on_many(target: str = "h100") -> dict[str, Callable]:
    """Functions of rows, labels and points, that are compiled for many devices of a kind."""

    def moments(rows, y, points):
        options = {"landmarks": points, "solver": rls.Cholesky()}
        solution = extend.read_problem(GAUSSIAN, rows, y, **options).prepare().solution()
        return solution.factor.second, solution.state

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
