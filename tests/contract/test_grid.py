"""Factors × criteria × weights × intercept × vectors of λ and λ per target, against refits."""

import functools
from dataclasses import replace
from inspect import isabstract

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import array, assert_close

import jaxrls as rls
from contract.cases import (
    COMBINATIONS,
    FACTORS,
    HARDEST,
    LAMS,
    NEW,
    PICK,
    PLANS,
    WEIGHTS,
    Y_NEW,
    N,
    Y,
)
from contract.oracle import LOSSES, Truth
from jaxrls.criteria.criterion import Given
from jaxrls.factors.contract import Solution

LOSS = {"squared": rls.squared_error, "absolute": rls.absolute_error, "zero_one": rls.zero_one_loss}
QUERIES = rls.QueriesOut.of(PLANS["uneven"])
HELD_WEIGHTS = np.linspace(0.5, 1.5, NEW)
PARTS = ("residual_norm", "data_fit", "logdet", "residual_dof", "dof", "residuals")


def every_loss(residual, label):
    """All losses side by side, (n, 3t): one pass over the rows and one program."""
    return jnp.concatenate([loss(residual, label) for loss in LOSS.values()], axis=1)


def own_loo(factor, Y, lams):
    """A criterion as a caller's function."""
    return rls.loo(factor, Y, lams)


def criteria(plans, held, loss=every_loss) -> dict[str, rls.Criterion]:
    """The columns of the grid, by name."""
    found = {
        "loo": rls.LeaveOneOut(loss),
        "holdout": rls.HoldOut.of(*held, array(HELD_WEIGHTS), loss=loss),
    }
    found |= {f"kfold {name}": rls.GroupsOut(plan, loss) for name, plan in plans.items()}
    found |= {
        "gcv": rls.GCV(),
        "evidence": rls.Evidence(),
        "given": Given(own_loo),
        "pairs": rls.PairsOut(loss=rls.squared_error),
    }
    return found | {"density": rls.LogPredictive(), "queries": QUERIES}


def once(solution):
    """The solution with each of its sums computed once, whichever criterion asks for it."""
    copy, known = replace(solution), {}

    def asked(part, lams, *groups):
        if groups:
            return getattr(solution, part)(lams, *groups)
        if (part, id(lams)) not in known:
            known[part, id(lams)] = getattr(solution, part)(lams)
        return known[part, id(lams)]

    for part in PARTS:
        object.__setattr__(copy, part, functools.partial(asked, part))
    return copy


def answers(case, solution, lams, X_new, columns, plans):
    """All that a solution is asked for, by name."""
    solution, found, kernel = once(solution), {}, case.kernel
    for name, criterion in columns.items():
        if (
            not case.offers(name) or name == "pairs" and lams.ndim == 2
        ):  # λ per target in test_pairs.py
            continue
        values = criterion.values(solution, lams, kernel)
        averaged = name.startswith(("loo", "holdout", "kfold"))
        found |= (
            dict(
                zip([f"{name} {loss}" for loss in LOSS], jnp.split(values, 3, axis=1), strict=True)
            )
            if averaged
            else {name: values}
        )
    found |= {part: getattr(solution, part)(lams) for part in PARTS if case.offers(part)}
    coef, intercept = solution.coefficients(lams)[:2]
    predictions = solution.factor.expansion.design(kernel, X_new) @ coef + intercept[:, None, :]
    groups = (
        {"residuals uneven": solution.residuals(lams, plans["uneven"])}
        if case.offers("residuals uneven")
        else {}
    )
    return found | {"predictions": predictions} | groups


def quantities(case):
    """The names of all that is compared."""
    averaged = [
        f"{name} {loss}"
        for name in ("loo", "holdout", *(f"kfold {plan}" for plan in case.plans))
        for loss in LOSS
    ]
    return [
        *filter(
            case.offers,
            (
                *averaged,
                "gcv",
                "evidence",
                "density",
                "pairs",
                *PARTS,
                "residuals uneven",
                "predictions",
            ),
        )
    ]


@functools.cache
def program(name):
    """Everything about one factor as one program of its arrays."""
    case = FACTORS[name]

    def run(X, Y, weights, lams, lams_per_target, X_new, Y_new, plans, intercept):
        solution = case.solution(X, Y, weights, intercept)
        columns = criteria(plans, (X_new, Y_new))
        del (
            columns["given"],
            columns["queries"],
        )  # among the functions, below, and in test_ranking.py
        return [
            answers(case, solution, each, X_new, columns, plans) for each in (lams, lams_per_target)
        ]

    if case.traceable:
        return jax.jit(run, static_argnames="intercept")
    # What reads its blocks while it is traced; outside of jit it is asked by `functions`.
    inside = jax.jit(functools.partial(run, case.X), static_argnames="intercept")
    return lambda _, *rest, intercept: inside(*rest, intercept=intercept)


@functools.cache
def functions(name):
    """The functions of the library, as a caller has them, on labels (n,) and (n, 1)."""
    case = FACTORS[name]

    def run(X, Y, weights, lams, lams_per_target, X_new, Y_new, plans, intercept):
        y, factor = Y[:, 0], case.make(X, weights, intercept)
        design = factor.expansion.design(case.kernel, X_new)
        losses = LOSS if name == "gram" else ["zero_one"]  # whose one column is a case of its own
        found = {f"loo {loss}": rls.loo(factor, y, lams, loss=LOSS[loss]) for loss in losses}
        found |= {
            "gcv": rls.gcv(factor, y, lams),
            "evidence": rls.log_marginal_likelihood(factor, y, lams),
        }
        found["kfold uneven zero_one"] = rls.kfold(
            factor, y, lams, plans["uneven"], loss=rls.zero_one_loss
        )
        found["holdout squared"] = rls.holdout(
            factor, y, lams, design, Y_new[:, 0], weights=array(HELD_WEIGHTS)
        )
        found["dof"] = rls.effective_dof(factor, lams)
        found["residuals"] = (
            jax.lax.map(lambda lam: rls.loo_residuals(factor, y, lam), lams)
            if case.traceable
            else None
        )
        return (
            found,
            rls.gcv(factor, y[:, None], lams),
            Given(own_loo).values(factor.solve(y), lams, None) if name == "gram" else None,
        )

    return jax.jit(run, static_argnames="intercept") if case.traceable else run


def arguments(case, weights):
    v = None if WEIGHTS[weights] is None else array(WEIGHTS[weights])
    plans = {name: rls.folds(groups) for name, groups in case.plans.items()}
    return (
        case.X,
        array(Y),
        v,
        array(LAMS),
        array(LAMS[PICK]),
        array(case.X_new),
        array(Y_NEW),
        plans,
    )


@functools.cache
def measured(name, weights, intercept):
    """What the library says, or the error it raised, at λ for all and at λ per target."""
    try:
        return jax.tree.map(
            np.asarray, program(name)(*arguments(FACTORS[name], weights), intercept=intercept)
        )
    except Exception as error:
        return error


@functools.cache
def expected(name, weights, intercept, targets=Y.shape[1]):
    """What is true, at λ for all and at λ per target."""
    case, v = FACTORS[name], np.ones(N) if WEIGHTS[weights] is None else WEIGHTS[weights]
    labels = Y[:, :targets], Y_NEW[:, :targets]
    truth = Truth(case.features, *labels, v, HELD_WEIGHTS, intercept, LAMS, PLANS)
    return truth.at(case.tolerance()), truth.at(case.tolerance(), PICK[:, :targets])


def assert_agrees(got, want, quantity, tolerance, what=""):
    """To the tolerance; a 0/1 loss but for rows whose class is uncertain by as much."""
    told = (
        want[quantity][..., :1] if got.shape[-1] == 1 else want[quantity]
    )  # logdet and dof do not depend on the target
    if quantity.endswith("zero_one"):
        assert (
            np.abs(got - told) <= want[quantity.replace("zero_one", "unsure")] + tolerance
        ).all(), f"{what}: {got}, expected {told}"
    else:
        assert_close(got, told, tolerance, what)


def cells(name, case):
    """All numbers of one factor: of the hardest combination in both precisions, as what it says of
    rounding holds of the others too.
    """
    for weights, intercept in COMBINATIONS if case.weighted else case.combinations:
        marks = [pytest.mark.slow] * ((weights, intercept) not in case.combinations)
        marks += [pytest.mark.float64] * (case.weighted and (weights, intercept) not in HARDEST)
        for quantity in quantities(case):
            words = f"{name}-{weights}-{'intercept' if intercept else 'plain'}-{quantity}"
            yield pytest.param(name, weights, intercept, quantity, id=words, marks=marks)


GRID = [cell for name, case in FACTORS.items() for cell in cells(name, case)]


@pytest.mark.parametrize(("name", "weights", "intercept", "quantity"), GRID)
def test_against_refits(name, weights, intercept, quantity):
    got, want = measured(name, weights, intercept), expected(name, weights, intercept)
    if isinstance(got, Exception):
        raise got.with_traceback(None)
    for one, other, lams in list(zip(got, want, ("λ for all", "λ per target"), strict=True))[
        : 1 if quantity == "pairs" else 2
    ]:
        assert_agrees(
            one[quantity], other, quantity, FACTORS[name].tolerance(), f"{quantity}, {lams}"
        )


# Made by `factorize` and its makers, then asked by the functions, against refits: in
# test_core.py, test_subset.py and test_iterative.py. On other rows of a host, which no jit
# holds, each operation is a program; what is asked is the same, and test_readings.py counts how
# often.
ELSEWHERE = {
    "iterative",
    "covariance",
    "outer",
    "precomputed",
    "landmarks not kept",
    "landmarks that stay",
    "host points",
    "host cholesky",
}
ELSEWHERE |= {"moments", "moments on landmarks"}  # whose labels are summed already
ELSEWHERE |= {"kronecker"}  # by matrices of labels, in test_kronecker.py
ELSEWHERE |= {"streamed"}  # in test_streams.py, against the same rows in memory
ELSEWHERE |= {
    "on devices",
    "on devices, cholesky",
}  # in test_meshes.py, against the same rows on one


@pytest.mark.float64  # of the same numbers as the grid, which float32 has
@pytest.mark.parametrize("name", [name for name in FACTORS if name not in ELSEWHERE])
def test_functions_on_one_column(name):
    """Labels (n,) give (L,), labels (n, 1) give (L, 1), and a caller's own function is a
    criterion.
    """
    case = FACTORS[name]
    found, column, own = functions(name)(*arguments(case, "zeros"), intercept=True)
    want = {key: values[..., 0] for key, values in expected(name, "zeros", True, 1)[0].items()}
    for quantity, values in found.items():
        if values is not None:
            assert_agrees(np.asarray(values), want, quantity, case.tolerance(), quantity)
    assert_close(column, want["gcv"][:, None], case.tolerance())
    if own is not None:
        assert_close(own, want["loo squared"][:, None], case.tolerance())


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
    assert concrete(rls.Factor) == found


def test_every_criterion_has_a_column():
    plans = {"uneven": rls.folds(PLANS["uneven"])}
    assert concrete(rls.Criterion) == {
        type(criterion) for criterion in criteria(plans, (array(Y_NEW), array(Y_NEW))).values()
    }
    assert set(LOSS) == set(LOSSES)
