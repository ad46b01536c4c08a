"""The plan for each kind of `lams`, from shapes and options alone: nothing is computed."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import ANY_PRECISION, DTYPE, EDGE

import jaxrls as rls
from jaxrls.core.factors import GRID_SIZE, solvers
from jaxrls.extend import Given, Grid, LeaveOneOut, read_problem
from jaxrls.front.plan import Request, Search, make_plan, read_lams

pytestmark = [ANY_PRECISION, EDGE]
X = np.linspace(0, 1, 20, dtype=DTYPE)[:, None]
Y = np.stack([X[:, 0], X[:, 0] ** 2], axis=1)
SPECTRUM, FACTORS = rls.Spectral(), rls.Cholesky()
GAUSSIAN = rls.Gaussian(0.3)
STEPS = {"criterion": LeaveOneOut(rls.classes.zero_one_loss)}  # a criterion without slopes
GROUPS = {"groups": np.arange(20) % 5}
OWN = {"criterion": lambda factor, Y, lams: rls.gcv(factor, Y, lams)}
FEATURES = {"kernel": rls.FeatureMap(lambda X: jnp.repeat(X, 20, axis=1))}  # as many as rows
FEW, MANY = [0.1], [0.1] * 9
# The request, options of the problem, and the plan: its solver, λ to try, and what is tried next.
# A dict "dear" says that a spectrum costs as much as a hundred Cholesky factors.
DEAR = {"dear": True}
PLANS = [
    # values of λ
    ({"lams": FEW}, {}, (FACTORS, Given, None)),
    ({"lams": FEW}, FEATURES, (FACTORS, Given, "by a spectrum")),
    ({"lams": FEW, "conservative": 1}, {}, (FACTORS, Given, None)),
    ({"lams": MANY}, {}, (SPECTRUM, Given, None)),
    ({"lams": FEW}, {"solver": SPECTRUM}, (SPECTRUM, Given, None)),
    ({"lams": FEW}, {"solver": FACTORS}, (FACTORS, Given, None)),
    ({"lams": FEW}, OWN, (SPECTRUM, Given, None)),
    ({"lams": FEW, "per_target": True}, {}, (SPECTRUM, Given, None)),
    ({"lams": [[0.1, 0.2]]}, {}, (SPECTRUM, Given, None)),
    # a number of λ
    ({"lams": 9}, {}, (SPECTRUM, Grid, "below the floor")),
    ({"lams": 9}, DEAR, (FACTORS, Search, None)),
    ({"lams": 9}, GROUPS, (SPECTRUM, Grid, "below the floor")),
    ({"lams": 9, "conservative": 1}, DEAR, (SPECTRUM, Grid, None)),
    ({"lams": 9, "per_target": True}, DEAR, (SPECTRUM, Grid, None)),
    ({"lams": 9}, {"solver": SPECTRUM}, (SPECTRUM, Grid, None)),
    ({"lams": 9}, {"solver": FACTORS}, (FACTORS, Search, None)),
    ({"lams": 9}, STEPS, (SPECTRUM, Grid, None)),
    ({"lams": 9}, STEPS | DEAR, (SPECTRUM, Grid, None)),
    # a search
    ({"lams": "search"}, {}, (FACTORS, Search, None)),
    ({"lams": "search"}, {"solver": SPECTRUM}, (SPECTRUM, Search, None)),
    ({"lams": "search", "per_target": True}, {}, (SPECTRUM, Search, None)),
    ({"lams": "search"}, STEPS, (SPECTRUM, Grid, None)),
    ({"lams": "search"}, STEPS | {"solver": FACTORS}, (FACTORS, Search, None)),
    ({"lams": "search", "conservative": 1}, STEPS, (SPECTRUM, Grid, None)),
]


def plan_of(request, solver=None, kernel=GAUSSIAN, **options):
    problem = read_problem(kernel, X, Y, solver=solver, **options)
    return make_plan(problem, Request(**request | {"lams": read_lams(request["lams"], problem)}))


@pytest.mark.parametrize(("request_", "options", "wanted"), PLANS)
def test_the_plan_of_each_request(request_, options, wanted, monkeypatch):
    if "dear" in options:
        options = {name: option for name, option in options.items() if name != "dear"}
        monkeypatch.setattr(solvers, "LAMS_PER_SPECTRUM", {"cpu": ((1, 100),)})
    plan = plan_of(request_, **options)
    assert (plan.problem.solver, type(plan.lams), plan.retry) == wanted
    assert plan.per_target == (request_.get("per_target", False) or np.ndim(request_["lams"]) == 2)


def test_the_number_of_lam():
    assert plan_of({"lams": 9}).lams.num == 9
    assert plan_of({"lams": None}).lams.num == GRID_SIZE
    assert plan_of({"lams": "search"}, **STEPS).lams.num == GRID_SIZE


@pytest.mark.parametrize(
    ("request_", "options", "words"),
    [
        ({"lams": 0.1}, {}, "lams must be how many λ"),
        ({"lams": "all"}, {}, "lams must be how many λ"),
        ({"lams": 9}, STEPS | {"solver": FACTORS}, "no spectrum for a grid of λ"),
        ({"lams": 9, "conservative": -1}, {}, "conservative must be a number"),
        ({"lams": "search", "conservative": 1}, {}, "not those of a search"),
        ({"lams": 9, "conservative": 1}, {"solver": FACTORS}, "not those of a search"),
        ({"lams": 9, "conservative": 1}, {"criterion": rls.gcv}, "not criterion gcv"),
    ],
)
def test_refused(request_, options, words):
    with pytest.raises(ValueError, match=words):
        plan_of(request_, **options)
