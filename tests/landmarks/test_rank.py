"""Landmarks without a number: as many as the certificate asks for, or all rows, and which of the
two it was.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.sparse
from support import DTYPE, FLOAT64, array, refused

import jaxrls as rls
from jaxrls.landmarks import enough

N = 600

pytestmark = pytest.mark.filterwarnings(
    "ignore:the chosen λ"
)  # in float32 the best one is near the precision of the factor


def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(N, 2)).astype(DTYPE)
    return X, (np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=N)).astype(DTYPE)


@pytest.mark.slow
def test_few_landmarks_where_the_certificate_holds():
    """K is nearly of low rank."""
    X, y = data()
    smooth = rls.fit(rls.Gaussian(1.0), X, y, landmarks="auto", lams=np.geomspace(0.1, 1e3, 30))
    dense = rls.fit(rls.Gaussian(1.0), X, y, lams=[float(smooth.lam)])
    assert smooth.route == "subset" and smooth.model.points.shape[0] <= 256
    assert float(smooth.trace_residual) <= 0.1 * float(smooth.lam)
    assert "at most 10%" in smooth.certificate
    assert float(smooth.error) == pytest.approx(float(dense.error), rel=1e-2)


@pytest.mark.slow
def test_all_rows_where_no_few_suffice():
    X, _ = data()
    y = np.sin(40 * X[:, 0]).astype(
        DTYPE
    )  # a kernel narrower than the rows are apart, and no noise: λ at the bottom of the grid
    fit = rls.fit(rls.Gaussian(0.01), X, y, lams=[1e-3], landmarks="auto")
    assert (
        fit.route == "cholesky"
        and fit.trace_residual is None
        and fit.plan.endswith(
            "all 600 rows: 300 landmarks would not do, and more cost as much or are not there"
        )
    )


@pytest.mark.slow
def test_few_rows_and_few_features_need_no_landmarks():
    X, y = data()
    few = rls.fit(rls.Gaussian(1.0), X[:100], y[:100], landmarks="auto")
    assert few.route == "gram" and "too few to save any" in few.plan
    for rows in (X, scipy.sparse.csr_array(X)):
        linear = rls.fit(rls.Linear(), rows, y, landmarks="auto")
        assert linear.route == "covariance" and "features are fewer" in linear.plan


def test_errors():
    X, y = data()
    named = {"kernel": rls.Gaussian(1.0), "X": X, "Y": y, "landmarks": "auto"}
    fit = lambda **options: lambda: rls.fit(**named | options)
    refused(
        (fit(landmarks="all"), "landmarks, as their number.*and is 'all'"),
        (fit(solver=rls.Cholesky()), "chooses the solver too, by known values: leave solver="),
        (fit(landmarks=np.full((2, 2), np.nan)), "landmarks"),
        (fit(kernel=rls.Precomputed(), X=np.eye(N, dtype=DTYPE)), r"and Precomputed\(\) cannot"),
        (lambda: jax.jit(lambda X: fit(X=X)().error)(array(X)), "inside jax.jit"),
        *(
            (
                fit(X=rls.rows.stream([(X, y)], sample=sample), Y=None),
                '"auto" looks at all rows, and X is a stream: give a number of landmarks, or X as',
            )
            for sample in (99, 10_000)
        ),
    )


def without_room_for_all(monkeypatch, most=N):
    """Let memory hold at most so many landmarks, and never K of all rows."""
    num = lambda problem: 0 if problem.solver is None else problem.solver.count
    room = lambda problem: SimpleNamespace(
        why_not=lambda: not 0 < num(problem) <= most, check=lambda: None
    )
    monkeypatch.setattr(enough, "of_problem", room)


@FLOAT64
@pytest.mark.slow
@pytest.mark.parametrize(
    "most, words",
    [(280, "280 landmarks of 600 rows, where memory ends"), (N, "the most that are tried")],
)
def test_the_most_landmarks_in_words(monkeypatch, most, words):
    """All that there is room for, or half of the rows, where more are needed."""
    without_room_for_all(monkeypatch, most)
    fit = rls.fit(rls.Gaussian(0.1), *data(), lams=[1e-3], landmarks="auto")
    assert f"{words}, tr(K − K̂)/λ = " in fit.plan


@FLOAT64
@pytest.mark.slow
def test_the_end_of_independent_rows_in_words(monkeypatch):
    """Of 30 points, repeated 20 times, with a certificate that asks for less than rounding."""
    without_room_for_all(monkeypatch)
    monkeypatch.setattr(enough, "TOLERANCE", 1e-14)
    X, y = data()
    fit = rls.fit(rls.Gaussian(1.0), np.tile(X[:30], (20, 1)), y, lams=[1.0], landmarks="auto")
    assert "30 landmarks of 600 rows, of which no other is independent, tr(K" in fit.plan
