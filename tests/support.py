"""What the tests share: dtypes, tolerances that follow dtype and conditioning, derivatives by
differences, processes with devices.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrls as rls

FOLDER = Path(__file__).parent
X64 = jax.config.jax_enable_x64
DTYPE = np.float64 if X64 else np.float32
EPS = float(np.finfo(DTYPE).eps)

# Where a claim holds, and what is no news there.
FLOAT64, ANY_PRECISION = pytest.mark.float64, pytest.mark.any_precision
EDGE = pytest.mark.filterwarnings("ignore:the chosen λ")
NEAR_FLOOR = pytest.mark.filterwarnings("ignore:at λ = .* rounding may move")

COMPILED: list[str] = []  # the name of each program, until a test clears it


def _note(event, duration, **named):
    if "backend_compile" in event:
        COMPILED.append(named.get("fun_name", event))


jax.monitoring.register_event_duration_secs_listener(_note)
# Programs that hold a fit, a step of a search or what comes of them; of single operations no test
# takes notice.
OF_FITS = (
    *("fit_arrays_compiled", "solution", "result_at", "_result_of_choice", "_fitted_at"),
    *("step", "first_point", "_value", "error"),
)


@contextmanager
def no_fit():
    """Nothing is fitted inside: what a call takes, says or refuses needs no program of a fit."""
    COMPILED.clear()
    yield
    assert not [name for name in COMPILED if name.removeprefix("jit(").rstrip(")") in OF_FITS]


# One program for each shape, shared by the tests of a module: called as they are, they would
# compile every operation by itself.
gram = jax.jit(rls.extend.gram)
factorize = jax.jit(rls.factorize, static_argnames="intercept")


def of_gram(K, **options):
    """The spectrum of a kernel matrix."""
    return rls.factorize(rls.Precomputed(), K, solver=rls.Spectral("gram"), **options)


def of_features(Phi, **options):
    """The thin SVD of explicit features."""
    return rls.factorize(rls.Linear(), Phi, solver=rls.Spectral("features"), **options)


def of_covariance(Phi, **options):
    """The spectrum of ΦᵀΦ."""
    return rls.factorize(rls.Linear(), Phi, solver=rls.Spectral("covariance"), **options)


def of_landmarks(kernel, X, landmarks, **options):
    """The spectrum on landmarks."""
    return rls.factorize(kernel, X, landmarks=landmarks, **options)


factor_gram = jax.jit(of_gram, static_argnames="intercept")
factor_subset = jax.jit(of_landmarks, static_argnames=("intercept", "leave"))
lambda_grid = jax.jit(rls.extend.lambda_grid, static_argnames="num")
coef, loo_residuals, gcv, log_marginal_likelihood, effective_dof = map(
    jax.jit,
    (
        rls.extend.coef,
        rls.diagnostics.loo_residuals,
        rls.gcv,
        rls.log_marginal_likelihood,
        rls.diagnostics.effective_dof,
    ),
)


@partial(jax.jit, static_argnames="loss")
def loo(factor, Y, lams, loss=rls.extend.squared_error):
    """The leave-one-out error of a loss."""
    return rls.extend.LeaveOneOut(loss)(factor, Y, lams)


SOLVERS = {
    None: None,
    "gram": rls.Spectral("gram"),
    "features": rls.Spectral("features"),
    "covariance": rls.Spectral("covariance"),
    "subset": rls.Spectral(),
    "cholesky": rls.Cholesky(),
    "refined": rls.Refined(),
}


def solver_of(route: str | None, landmarks=None, **options):
    """The solver by what it factors."""
    return rls.Iterative(landmarks, **options) if route == "iterative" else SOLVERS[route]


def array(values):
    """A JAX array in the precision of this run."""
    return jnp.asarray(np.asarray(values, DTYPE))


def wide(values):
    """What `array` made of the values, back in float64: the data both the library and the oracle
    see.
    """
    return np.asarray(np.asarray(values, DTYPE), np.float64)


def assert_close(got, want, tolerance, what=""):
    """|got − want| ≤ tolerance × the largest |want|, shapes equal, nothing NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    scale = max(np.abs(want).max(initial=0), np.finfo(np.float64).tiny)
    error = np.abs(got - want).max(initial=0) / scale
    assert error <= tolerance, f"{what}: relative error {error:.2g}, tolerance {tolerance:.2g}"


def refused(*calls, error=ValueError):
    """Each call, given with a pattern, raises an error whose text has it."""
    for call, words in calls:
        with pytest.raises(error, match=words):
            call()
            pytest.fail(f"not refused: {words}")


def differences(f, x, step=1e-3):
    """Derivatives of f at a vector x along each coordinate, by central differences of order 4:
    (len(x), *shape of f).
    """

    def at(i, shift):
        moved = np.array(x, np.float64)
        moved[i] += shift
        return np.asarray(f(jnp.asarray(moved)), np.float64)

    steps = step * np.maximum(np.abs(np.asarray(x)), 0.1)
    return np.array(
        [
            (8 * (at(i, h) - at(i, -h)) - (at(i, 2 * h) - at(i, -2 * h))) / (12 * h)
            for i, h in enumerate(steps)
        ]
    )


def assert_derivatives(f, x, tolerance=1e-7, what=""):
    """Jacobian of f at a vector x against differences of f, both from one program."""
    both = jax.jit(jax.jacrev(lambda x: 2 * (f(x),), has_aux=True))
    jacobian = np.moveaxis(np.asarray(both(x)[0]), -1, 0)
    assert np.isfinite(jacobian).all(), f"{what}: derivative is not finite"
    assert_close(jacobian, differences(lambda x: both(x)[1], x), tolerance, what)


# JAX's defaults, and programs that earlier runs have compiled.
FRESH = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("JAX_") or "CACHE" in name
} | {"PYTHONPATH": str(FOLDER.parent)}


def printed_by(script) -> dict:
    """What a script of this folder prints, a line of JSON for each of its parts, in a process of
    its own, which may make itself several devices.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parent)]),
        "JAX_PLATFORMS": "cpu",
    }
    ignored = "-Wignore:the chosen", "-Wignore:Error reading persistent compilation cache"
    command = [sys.executable, "-Werror", *ignored, FOLDER / script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr[-3000:]
    return {
        name: part for line in run.stdout.splitlines() for name, part in json.loads(line).items()
    }


def texts(ax):
    """All words of a plot's legend."""
    return " ".join(text.get_text() for text in ax.get_legend().get_texts())
