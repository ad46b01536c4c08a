"""What the first calls of a process compile, and how large the program of a fit is: printed as
JSON, by `test_first_calls.py`, in a process that has compiled nothing yet.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from support import COMPILED

import jaxrls as rls
from jaxrls.front import run as runs

N, D = 320, 5  # a number of rows that is not padded
random = np.random.default_rng(0)
X = random.normal(size=(N, D))
y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=N)


def programs(call: Callable[[], Any]) -> list[str]:
    """Those that a call compiles."""
    COMPILED.clear()
    call()
    return list(COMPILED)


def equations(jaxpr: Any) -> int:
    """Those of a traced program, of loops and inner programs once."""
    count = 0
    for equation in jaxpr.eqns:
        count += 1
        for parameter in jax.tree.leaves(equation.params):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                count += equations(inner)
    return count


def equations_of_fit(**options: Any) -> int:
    """Those of the program of a default fit."""
    traced = []
    program = runs.fit_arrays_compiled

    def spy(problem: Any, choice: Any, **static: Any) -> Any:
        traced.append(jax.make_jaxpr(lambda *given: program(*given, **static))(problem, choice))
        return program(problem, choice, **static)

    runs.fit_arrays_compiled = spy
    rls.fit(rls.Gaussian(2.0), X, y, **options)
    runs.fit_arrays_compiled = program
    return equations(traced[0].jaxpr)


if __name__ == "__main__":
    fit = rls.fit(rls.Gaussian(2.0), X[:9], y[:9])
    found: dict[str, Any] = {
        "fit": programs(lambda: rls.fit(rls.Gaussian(2.0), X, y)),
        "landmarks": programs(lambda: rls.fit(rls.Gaussian(2.0), X, y, landmarks=100)),
        "groups": programs(lambda: rls.fit(rls.Gaussian(2.0), X, y, groups=np.arange(N) % 10)),
        "linear": programs(lambda: rls.fit(rls.Linear(), X, y)),
        "predict": programs(lambda: fit.predict(X[:7])),
        "tune": programs(lambda: rls.tune(rls.Gaussian(np.ones(D)), X, y)),
        "equations": equations_of_fit(),
        "equations on landmarks": equations_of_fit(landmarks=100),
    }
    print(json.dumps(found))
