"""Factors × criteria × weights × intercept × vectors of λ and λ per target, against refits."""

import functools
from dataclasses import replace
from inspect import isabstract

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, array, assert_close

import jaxrls as rls
from contract.cases import (
    COMBINATIONS,
    FACTORS,
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
from jaxrls import extend
from jaxrls.criteria.criterion import Given
from jaxrls.factors.contract import Solution

LOSS = {"squared": rls.squared_error, "absolute": rls.absolute_error, "zero_one": rls.zero_one_loss}
QUERIES = rls.QueriesOut(PLANS["uneven"])
HELD_WEIGHTS = np.linspace(0.5, 1.5, NEW)
# Those of which only the rows live elsewhere, or come as a matrix, and the algebra is that of
# another row: λ for all with an intercept, and λ per target without one, which halves their programs.
ELSEWHERE = {
    "precomputed",
    "sparse",
    "host",
    "host points",
    "host cholesky",
    "on devices",
    "on devices, linear",
    "on devices, cholesky",
    "streamed",
}
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
        "holdout": rls.holdout(*held, weights=array(HELD_WEIGHTS), loss=loss).bind(array(Y)),
    }
    found |= {f"kfold {name}": rls.kfold(plan, loss) for name, plan in plans.items()}
    found |= {
        "gcv": rls.gcv,
        "evidence": rls.log_marginal_likelihood,
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


def asked(name, intercept):
    """For which kinds of λ a factor of the grid is asked."""
    both = ["λ for all", "λ per target"]
    return both if name not in ELSEWHERE else both[:1] if intercept else both[1:]


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
        return {
            kind: answers(case, solution, each, X_new, columns, plans)
            for kind, each in {"λ for all": lams, "λ per target": lams_per_target}.items()
            if kind in asked(name, intercept)
        }

    if case.traceable:
        return jax.jit(run, static_argnames="intercept")
    # What reads its blocks while it is traced; outside of jit it is asked by `functions`.
    inside = jax.jit(functools.partial(run, case.X), static_argnames="intercept")
    return lambda _, *rest, intercept: inside(*rest, intercept=intercept)


def arguments(case, weights):
    plans = {name: rls.folds(groups) for name, groups in case.plans.items()}
    numbers = map(array, (Y, weights, LAMS, LAMS[PICK], case.X_new, Y_NEW))
    return case.X, *numbers, plans


@functools.cache
def expected(name, weights, intercept, targets=Y.shape[1]):
    """What is true, at λ for all and at λ per target."""
    case, v = FACTORS[name], WEIGHTS[weights]
    labels = Y[:, :targets], Y_NEW[:, :targets]
    truth = Truth(case.features, *labels, v, HELD_WEIGHTS, intercept, LAMS, PLANS)
    picks = {"λ for all": None, "λ per target": PICK[:, :targets]}
    return {kind: truth.at(case.tolerance(), picks[kind]) for kind in asked(name, intercept)}


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


def cells():
    """Every factor with all combinations; every algebra in one of them in both precisions, as what
    it says of rounding holds of the others too.
    """
    for name, case in FACTORS.items():
        for weights, intercept in COMBINATIONS:
            if case.weighted or weights == "ones":
                both = not case.weighted or (weights, intercept) == ("zeros", True)
                both = both and name not in ELSEWHERE
                marks = [] if both else [pytest.mark.float64]
                words = f"{name}-{weights}-{'intercept' if intercept else 'plain'}"
                yield pytest.param(name, weights, intercept, id=words, marks=marks)


@pytest.mark.parametrize(("name", "weights", "intercept"), [*cells()])
def test_against_refits(name, weights, intercept):
    case = FACTORS[name]
    got = program(name)(*arguments(case, WEIGHTS[weights]), intercept=intercept)
    want = expected(name, weights, intercept)
    assert set(got) == set(want)
    for kind, found in got.items():
        for quantity, values in found.items():
            what = f"{quantity}, {kind}"
            assert_agrees(np.asarray(values), want[kind], quantity, case.tolerance(), what)
        left_out = {"pairs"} if kind == "λ per target" else set()
        assert set(found) == set(quantities(case)) - left_out


@pytest.mark.float64  # of the same numbers as the grid, which float32 has
def test_functions_on_one_column():
    """Labels (n,) give (L,), labels (n, 1) give (L, 1), and a caller's own function is a
    criterion.
    """
    case = FACTORS["gram"]

    @jax.jit
    def functions(X, Y, weights, lams, lams_per_target, X_new, Y_new, plans):
        y, factor = Y[:, 0], case.make(X, weights, True)
        wrong, held = rls.zero_one_loss, (case.kernel(X_new, X), Y_new[:, 0])
        found = {f"loo {loss}": rls.LeaveOneOut(LOSS[loss])(factor, y, lams) for loss in LOSS} | {
            "gcv": rls.gcv(factor, y, lams),
            "evidence": rls.log_marginal_likelihood(factor, y, lams),
            "kfold uneven zero_one": rls.kfold(plans["uneven"], loss=wrong)(factor, y, lams),
            "holdout squared": rls.holdout(*held, weights=array(HELD_WEIGHTS))(factor, y, lams),
            "dof": rls.effective_dof(factor, lams),
            "residuals": jax.lax.map(lambda lam: rls.loo_residuals(factor, y, lam), lams),
        }
        own = Given(own_loo).values(factor.solve(y), lams, None)
        return found, rls.gcv(factor, y[:, None], lams), own

    found, column, own = functions(*arguments(case, WEIGHTS["zeros"]))
    want = {
        key: values[..., 0]
        for key, values in expected("gram", "zeros", True, 1)["λ for all"].items()
    }
    for quantity, values in found.items():
        assert_agrees(np.asarray(values), want, quantity, case.tolerance(), quantity)
    assert_close(column, want["gcv"][:, None], case.tolerance())
    assert_close(own, want["loo squared"][:, None], case.tolerance())


ROW = 8  # a landmark, where there are any
ALONE = 1.7 * np.eye(N)[ROW]
WEIGHTED = [name for name, case in FACTORS.items() if case.weighted and name not in ELSEWHERE]


@pytest.mark.parametrize("name", [name for name in WEIGHTED if not name.startswith("moments")])
def test_gcv_of_one_row_with_an_intercept_is_undefined(name):
    """It was 0/0 by rounding: 0, or .25. The evidence is the density of no numbers at all, whatever
    λ. (Sums of rows that came and went hold their rounding.)
    """
    case = FACTORS[name]
    found = program(name)(*arguments(case, ALONE), intercept=True)["λ for all"]
    assert np.isnan(found["gcv"]).all()
    if "evidence" in found:
        assert np.abs(found["evidence"]).max() <= case.tolerance()


@pytest.mark.float64  # in float32 the other one, where what is divided is rounding
@pytest.mark.parametrize("name", WEIGHTED)
def test_gcv_of_one_row_without_an_intercept(name):
    """What is left predicts 0. The residual and its degrees of freedom are but λ/(s + λ) of what
    rounding is relative to.
    """
    case = FACTORS[name]
    gcv = program(name)(*arguments(case, ALONE), intercept=False)["λ for all"]["gcv"]
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


def test_every_criterion_has_a_column():
    plans = {"uneven": rls.folds(PLANS["uneven"])}
    assert concrete(rls.Criterion) == {
        type(criterion) for criterion in criteria(plans, (array(Y_NEW), array(Y_NEW))).values()
    }
    assert set(LOSS) == set(LOSSES)
