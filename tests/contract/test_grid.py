"""Factors × criteria × weights × fixed effects, at vectors of λ and at λ per target, by refits."""

import functools
from dataclasses import replace
from inspect import isabstract

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, FLOAT64, array, assert_close

import jaxrls as rls
from contract.cases import (
    BESIDE_NEW,
    COLUMNS,
    ELSEWHERE,
    FACTORS,
    FIXED,
    LAMS,
    NEW,
    PICK,
    PLANS,
    TARGETS,
    WEIGHTS,
    Y_NEW,
    N,
    Y,
)
from jaxrls import extend
from jaxrls.core.criteria.criterion import FunctionCriterion
from jaxrls.core.factors.solution import Solution

LOSS = {
    "squared": rls.extend.squared_error,
    "absolute": rls.extend.absolute_error,
    "zero_one": rls.classes.zero_one_loss,
}
ROW = 8  # a landmark, where there are any
HELD_WEIGHTS = np.linspace(0.5, 1.5, NEW)
PARTS = ("residual_norm", "data_fit", "logdet", "residual_dof", "dof", "held_out_residuals")
# Factors see every λ as a column, for one target or for all: each is asked for both, in turns.
PER_TARGET = {"none": True, "constant": False, "columns": True}


# what is found
# --------------------------------------------------------------------------------------------------


def every_loss(residual, label):
    """All losses side by side, (n, 3t): one pass over the rows and one program."""
    return jnp.concatenate([loss(residual, label) for loss in LOSS.values()], axis=1)


def own_loo(factor, Y, lams):
    """A criterion as a caller's function."""
    return rls.loo(factor, Y, lams)


def criteria(plans, held, loss=every_loss) -> dict[str, rls.extend.Criterion]:
    """The columns of the grid, by name."""
    found = {
        "loo": rls.extend.LeaveOneOut(loss),
        "holdout": rls.holdout(*held, weights=array(HELD_WEIGHTS), loss=loss).bind(array(Y)),
        "gcv": rls.gcv,
        "evidence": rls.log_marginal_likelihood,
        "given": FunctionCriterion(own_loo),
        "density": rls.extend.LogPredictive(),
        "crps": rls.extend.CRPS(),
    }
    found |= {f"kfold {name}": rls.kfold(plan, loss) for name, plan in plans.items()}
    return found | COLUMNS | ELSEWHERE


def asked(case, fixed):
    """The criteria and parts that a factor has. Criteria of rooms at λ per target are in their own
    tests, what callers give below. With columns those of which some part knows of fixed effects in
    its own way; the others are made of the same parts without.
    """
    names = ["loo", "evidence", *(f"kfold {plan}" for plan in case.plans)]
    if fixed == "columns":
        names.remove("kfold uneven")
    else:
        names += ["gcv", "density", "crps", "holdout"]
    names += [] if PER_TARGET[fixed] else COLUMNS
    return list(filter(case.offers, names)), list(filter(case.offers, PARTS))


def once(solution):
    """The solution with each of its sums computed once, whichever criterion asks for it."""
    copy, known = replace(solution), {}

    def ask(part, lams, *groups):
        key = part, *map(id, groups)
        if key not in known:
            known[key] = getattr(Solution, part)(copy, lams, *groups)
        return known[key]

    for part in (*PARTS, "coefficients"):
        object.__setattr__(copy, part, functools.partial(ask, part))
    return copy


@functools.cache
def program(name):
    """Everything about one factor as one program of its arrays."""
    case = FACTORS[name]

    def run(X, Y, weights, lams, X_new, Y_new, plans, fixed):
        solution = once(case.solution(X, Y, weights, FIXED[fixed]))
        lams, (names, parts) = lams if PER_TARGET[fixed] else lams[:, 0], asked(case, fixed)
        columns, found = criteria(plans, (X_new, Y_new)), {}
        for column in names:
            values = columns[column].values(solution, lams, case.kernel)
            if column.startswith(("loo", "holdout", "kfold")):
                split = zip(LOSS, jnp.split(values, len(LOSS), axis=1), strict=True)
                found |= {f"{column} {loss}": values for loss, values in split}
            else:
                found[column] = values
        found |= {part: getattr(solution, part)(lams) for part in parts}
        if case.offers("held_out_residuals uneven"):
            found["held_out_residuals uneven"] = solution.held_out_residuals(lams, plans["uneven"])
        coef, intercept, free = solution.coefficients(lams)
        predicted = solution.factor.expansion.design(case.kernel, X_new) @ coef
        predicted = predicted + intercept[:, None]
        if fixed == "columns":
            predicted = predicted + array(BESIDE_NEW) @ free
        return found | {"predictions": predicted}

    if case.traceable:
        return jax.jit(run, static_argnames="fixed")
    # What reads its blocks while it is traced; outside of jit it is asked by `functions`.
    inside = jax.jit(functools.partial(run, case.X), static_argnames="fixed")
    return lambda _, *rest, fixed: inside(*rest, fixed=fixed)


def lams_of(fixed):
    """λ (L, t), the same for all targets or not."""
    return LAMS[PICK] if PER_TARGET[fixed] else np.tile(LAMS[:, None], TARGETS)


def arguments(case, weights, fixed):
    plans = {name: rls.folds(groups) for name, groups in case.plans.items()}
    return case.X, *map(array, (Y, weights, lams_of(fixed), case.X_new, Y_NEW)), plans


# what is true
# --------------------------------------------------------------------------------------------------


def wrong_class(e, y):
    """1 where y − e names another class than y."""
    return np.broadcast_to(((y - e).argmax(1) != y.argmax(1))[:, None], y.shape).astype(float)


def unsure(tolerance, e, y):
    """1 where an error of `tolerance`, relative to the largest residual, may change the class."""
    top = np.sort(y - e, axis=1)
    sure = top[:, -1] - top[:, -2] > 2 * tolerance * np.abs(e).max()
    return np.broadcast_to(~sure[:, None], y.shape).astype(float)


@functools.cache
def first_alike(name):
    """The first factor of the same problem, which has every plan that one has."""
    without = lambda name: [x.tobytes() for x in FACTORS[name].features(np.array([ROW]))]
    return next(other for other in FACTORS if without(other) == without(name))


@functools.cache
def expected(name, weights, fixed):
    """The quantities of a factor by the oracle. "unsure" beside a 0/1 loss is the share of rows
    whose class an error of the tolerance in the residuals may change.
    """
    case, v = FACTORS[name], WEIGHTS[weights]
    truth = case.truth(v, FIXED[fixed])
    table = truth.table | {
        f"held_out_residuals {name}": truth.held(groups) for name, groups in case.plans.items()
    }
    if PER_TARGET[fixed]:
        table = {name: values + np.zeros(TARGETS) for name, values in table.items()}
        picked = lambda values: [values[PICK[:, j], ..., j] for j in range(TARGETS)]
        table = {name: np.stack(picked(values), axis=-1) for name, values in table.items()}
    means = {f"kfold {name}": (table[f"held_out_residuals {name}"], Y, v) for name in case.plans}
    means["loo"] = table["held_out_residuals"], Y, v
    means["holdout"] = Y_NEW - table["predictions"], Y_NEW, HELD_WEIGHTS
    losses = {
        "squared": lambda e, y: e * e,
        "absolute": lambda e, y: np.abs(e),
        "zero_one": wrong_class,
        "unsure": functools.partial(unsure, case.tolerance()),
    }
    return table | {
        f"{name} {loss}": np.array([w @ fn(one, y) / w.sum() for one in e])
        for name, (e, y, w) in means.items()
        for loss, fn in losses.items()
    }


def assert_agrees(got, want, quantity, tolerance):
    """To the tolerance; a 0/1 loss but for rows whose class is uncertain by as much."""
    got, true = np.asarray(got), want[quantity]
    true = true[..., :1] if got.shape[-1] == 1 else true + np.zeros(got.shape[-1])
    if quantity.endswith("zero_one"):
        sure = np.abs(got - true) <= want[quantity.replace("zero_one", "unsure")] + tolerance
        assert sure.all(), f"{quantity}: {got}, expected {true}"
    else:
        assert_close(got, true, tolerance, quantity)


# In the quick run: one of each algebra and of each way to read rows, with an intercept; of the
# first two with other fixed effects too. Each is a program.
EVERY_EFFECT = "gram", "landmarks"
QUICK = (
    *EVERY_EFFECT,
    "cholesky gram",
    "cholesky landmarks",
    "features",
    "covariance",
    "moments",
    "sparse",
    "streamed",
    "iterative",
    "iterative landmarks",
    "kronecker",
    "precomputed",
)


def cells():
    """Every combination. In float32 the hardest of each algebra, as what it says of rounding holds
    of rows that live elsewhere too.
    """
    for name, case in FACTORS.items():
        for fixed in case.fixed:
            for weights in WEIGHTS if case.weighted else ["ones"]:
                hardest = not case.weighted or weights == "zeros"
                quick = name in QUICK and (fixed == "constant" or name in EVERY_EFFECT)
                beside = fixed == "constant" or fixed == "columns" and name in EVERY_EFFECT
                both = hardest and beside and isinstance(case.X, jax.Array)
                marks = [] if both else [FLOAT64]
                marks += [] if quick else [pytest.mark.slow]
                yield pytest.param(
                    name, weights, fixed, id=f"{name}-{weights}-{fixed}", marks=marks
                )


@pytest.mark.parametrize(("name", "weights", "fixed"), [*cells()])
def test_against_refits(name, weights, fixed):
    case = FACTORS[name]
    got = program(name)(*arguments(case, WEIGHTS[weights], fixed), fixed=fixed)
    want = expected(first_alike(name), weights, fixed)
    for quantity, values in got.items():
        assert_agrees(values, want, quantity, case.tolerance())
    names = [name.split()[0] for names in asked(case, fixed) for name in names]
    assert {*names, "predictions"} == {quantity.split()[0] for quantity in got}


@FLOAT64  # of the same numbers as the grid, which float32 has
def test_functions_on_one_column():
    """Labels (n,) give (L,), labels (n, 1) give (L, 1), and a caller's own function is a criterion:
    the numbers of the first target in the grid.
    """
    case, given = FACTORS["gram"], arguments(FACTORS["gram"], WEIGHTS["zeros"], "constant")

    @jax.jit
    def functions(X, Y, weights, lams, *_):
        y, lams, factor = Y[:, 0], lams[:, 0], case.make(X, weights, True)
        own = FunctionCriterion(own_loo).values(factor.solve(y), lams, None)
        return rls.loo(factor, y, lams), rls.gcv(factor, y[:, None], lams), own

    loo, column, own = functions(*given)
    want = program("gram")(*given, fixed="constant")
    assert_close(loo, want["loo squared"][..., 0], case.tolerance())
    assert_close(column, want["gcv"][:, :1], case.tolerance())
    assert_close(own, want["loo squared"][:, :1], case.tolerance())


ALONE = 1.7 * np.eye(N)[ROW]
WEIGHTED = [n for n, case in FACTORS.items() if case.weighted and isinstance(case.X, jax.Array)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in EVERY_EFFECT else [pytest.mark.slow])
        for name in WEIGHTED
    ],
)
def test_gcv_of_one_row_is_undefined_with_an_intercept_and_else_what_that_row_leaves(name):
    """It was 0/0 by rounding: 0, or .25. The evidence is the density of no numbers at all, whatever
    λ. (Sums of rows that came and went hold their rounding.) Without an intercept what is left
    predicts 0; the residual and its degrees of freedom are but λ/(s + λ) of what rounding is
    relative to, in float32 rounding themselves.
    """
    case = FACTORS[name]
    if not name.startswith("moments"):
        found = program(name)(*arguments(case, ALONE, "constant"), fixed="constant")
        assert np.isnan(found["gcv"]).all()
        assert np.abs(found.get("evidence", 0)).max() <= case.tolerance()
    if EPS < 1e-10:
        gcv = program(name)(*arguments(case, ALONE, "none"), fixed="none")["gcv"]
        want = np.broadcast_to(Y[ROW] ** 2, gcv.shape)
        assert_close(gcv, want, case.tolerance() ** 2 / (4 * N * EPS))


def concrete(cls):
    """The subclasses of the package that can be made, at any depth."""
    below = {one for child in cls.__subclasses__() for one in concrete(child)}
    return below if isabstract(cls) or not cls.__module__.startswith("jaxrls.") else below | {cls}


def test_every_factor_has_a_row():
    """Each is made by the grid, and is of the class that its row names, or one made of it."""
    found = set()
    for case in FACTORS.values():
        if case.traceable:
            solution = jax.eval_shape(
                lambda X, case=case: case.solution(X, array(Y), None, True), case.X
            )
            assert type(solution) is Solution and isinstance(solution.factor, case.cls)
            found.add(type(solution.factor))
    assert concrete(extend.Factor) == found


def test_every_column_is_asked_of_some_factor():
    """But functions of a caller's, and what rooms ask in tests of their own."""
    plans = {name: rls.folds(groups) for name, groups in PLANS.items()}
    found = criteria(plans, (array(Y_NEW), array(Y_NEW)))
    ways = [(case, fixed) for case in FACTORS.values() for fixed in FIXED]
    asked_for = {name for case, fixed in ways for name in asked(case, fixed)[0]}
    assert set(found) - asked_for == {"given", *ELSEWHERE}


def test_every_criterion_has_a_column():
    plans = {"uneven": rls.folds(PLANS["uneven"])}
    assert concrete(rls.extend.Criterion) == {
        type(criterion) for criterion in criteria(plans, (array(Y_NEW), array(Y_NEW))).values()
    }
