"""Landmarks without a number: as many as the certificate asks for, or all rows, and which of the
two it was.
"""

import re
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.sparse
from support import DTYPE, array, refused

import jaxrls as rls
from jaxrls import extend
from jaxrls.search import fit as search

TOL = 0.1
N = 1200

pytestmark = pytest.mark.filterwarnings(
    "ignore:the chosen λ"
)  # in float32 the best one is near the precision of the factor


def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(N, 2)).astype(DTYPE)
    return X, (np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=N)).astype(DTYPE)


@pytest.fixture(scope="module")
def smooth():
    """A fit whose kernel matrix is nearly of low rank."""
    return rls.fit(rls.Gaussian(1.0), *data(), landmarks="auto", lams=np.geomspace(0.1, 1e3, 30))


def test_few_landmarks_where_the_certificate_holds(smooth):
    X, y = data()
    dense = rls.fit(rls.Gaussian(1.0), X, y, lams=[float(smooth.lam)])
    assert smooth.route == "subset" and smooth.model.points.shape[0] <= 256
    assert float(smooth.trace_residual) <= TOL * float(smooth.lam)
    assert "at most 10%" in smooth.certificate
    assert float(smooth.error) == pytest.approx(float(dense.error), rel=1e-2)


def test_all_rows_where_no_few_suffice():
    X, _ = data()
    y = np.sin(40 * X[:, 0]).astype(
        DTYPE
    )  # a kernel narrower than the rows are apart, and no noise: λ at the bottom of the grid
    fit = rls.fit(rls.Gaussian(0.01), X[:600], y[:600], lams=[1e-3], landmarks="auto")
    assert (
        fit.route == "cholesky"
        and fit.trace_residual is None
        and fit.plan.endswith(
            "all 600 rows: 300 landmarks would not do, and more cost as much or are not there"
        )
    )


def test_few_rows_and_few_features_need_no_landmarks():
    X, y = data()
    few = rls.fit(rls.Gaussian(1.0), X[:100], y[:100], landmarks="auto")
    assert few.route == "gram" and "too few to save any" in few.plan
    for rows in (X, scipy.sparse.csr_array(X)):
        linear = rls.fit(rls.Linear(), rows, y, landmarks="auto")
        assert linear.route == "covariance" and "features are fewer" in linear.plan


def test_how_the_landmarks_are_chosen(monkeypatch):
    """By the rows' weights, and with a bar where one is asked for."""
    X, y = data()
    weights, asked = np.linspace(0.5, 2, N).astype(DTYPE), {}

    def caught(kernel, rows, num, **options):
        asked.update(options, num=num)
        raise InterruptedError

    monkeypatch.setattr(search, "choose_landmarks", caught)
    for progress in (False, True):
        with pytest.raises(InterruptedError):
            rls.fit(rls.Gaussian(1.0), X, y, weights=weights, landmarks="auto", progress=progress)
        assert (
            asked["num"] == search.FEWEST
            and asked["progress"] is progress
            and (asked["weights"] == weights).all()
        )


def test_a_number_of_landmarks_has_a_certificate_too():
    fit = rls.fit(rls.Gaussian(1.0), *data(), landmarks=20)
    assert "20 landmarks" in fit.certificate and "10%" in fit.certificate
    assert rls.fit(rls.Gaussian(1.0), *data(), lams=[1.0]).certificate == ""


def test_errors():
    X, y = data()
    named = {"kernel": rls.Gaussian(1.0), "X": X, "Y": y, "landmarks": "auto"}
    fit = lambda **options: lambda: rls.fit(**named | options)
    refused(
        (fit(landmarks="all"), "landmarks, as their number.*and is 'all'"),
        (fit(solver=rls.Cholesky()), "chooses the solver too: leave solver="),
        (fit(landmarks=np.full((2, 2), np.nan)), "landmarks"),
        (fit(kernel=rls.Precomputed(), X=np.eye(N, dtype=DTYPE)), r"and Precomputed\(\) cannot"),
        (lambda: jax.jit(lambda X: fit(X=X)().error)(array(X)), "inside jax.jit"),
    )


# how many, and in which words, with a solution that names its λ
# --------------------------------------------------------------------------------------------------

FEW, HALF = 16, 100


@dataclass(frozen=True)
class Fit:
    """As far as is looked at."""

    lam: np.ndarray
    trace_residual: float | None
    plan: str = "a fit"


class Named:
    """Fits that name their λ, one after another, and keep what they were made on."""

    rounding = 1

    def __init__(self, monkeypatch, *lams):
        self.lams, self.asked, self.solved = list(lams), [], []
        self.choose = search.choose_landmarks
        monkeypatch.setattr(search, "choose_landmarks", self.chosen)
        monkeypatch.setattr(search, "FEWEST", FEW)

    def chosen(self, kernel, X, num, **options):
        self.asked.append((num, options.get("tol")))
        return self.choose(kernel, X, num, **options)

    def __call__(self, problem):
        self.solved.append(problem.landmarks)
        trace = (
            None if problem.landmarks is None else self.rounding * problem.landmarks.trace_residual
        )
        return Fit(np.asarray(self.lams.pop(0)), trace)


def grown(solve, width):
    X, y = (part[: 2 * HALF] for part in data())
    problem = extend.Problem.of(rls.Gaussian(width), X, y, weights=np.full(2 * HALF, 2.0, DTYPE))
    result = search._on_enough_landmarks(solve, problem, False)
    words = result.plan.removeprefix("a fit; ")
    return words, lambda lam: f"tr(K − K̂)/λ = {float(result.trace_residual) / lam:.2g}"


def test_their_number_follows_from_the_smallest_lam(monkeypatch):
    """Half of what the certificate asks for, as a share of Σ v k(x, x) = 400; again where the next
    λ asks for more, and then in words.
    """
    solve = Named(monkeypatch, [8.0, 4.0], [2.0, 0.5], 0.5)
    words, ratio = grown(solve, 0.5)
    assert [num for num, _ in solve.asked] == [FEW, HALF, HALF]
    np.testing.assert_allclose(
        [tol for _, tol in solve.asked[1:]], 0.5 * TOL * np.array([4.0, 0.5]) / 400, rtol=1e-5
    )
    few, more, most = (len(chosen.points) for chosen in solve.solved)
    assert few == FEW < more < most < HALF
    assert words == f"{most} landmarks of 200 rows, {ratio(0.5)}"


def test_all_rows_where_no_others_are_chosen(monkeypatch):
    """As the fit's trace is larger than that of the choice, by rounding."""
    solve = Named(monkeypatch, 1e3, 1e3)
    solve.rounding = 1e6
    words, _ = grown(solve, 1.0)
    assert [chosen is None for chosen in solve.solved] == [False, True]
    assert re.fullmatch(
        (
            r"all 200 rows: ([1-9]|1[0-6]) landmarks would not do, and "
            r"more cost as much or are not there"
        ),
        words,
    )


def test_the_end_of_memory_in_words(monkeypatch):
    """All that there is room for, by the smallest λ."""
    solve = Named(monkeypatch, 0.1, [0.3, 0.1])
    monkeypatch.setattr(
        search,
        "of_problem",
        lambda problem, landmarks=0: SimpleNamespace(why_not=lambda: not 0 < landmarks <= 40),
    )
    words, ratio = grown(solve, 0.01)
    assert [num for num, _ in solve.asked] == [FEW, 40] and len(solve.solved[-1].points) == 40
    assert words == f"40 landmarks of 200 rows, where memory ends, {ratio(0.1)}"
