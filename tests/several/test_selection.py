"""Columns chosen by leave-one-out, against a loop that tries every one of them by refits."""

import jax
import numpy as np
import oracle
import pytest
import scipy.sparse
from contract.cases import draw
from support import ANY_PRECISION, EPS, FLOAT64, array, assert_close, refused, wide

import jaxrls as rls

N, D, NUM = 15, 7, 4
LAMS = wide([1e-3, 0.5])


X = draw(0, N, D) + 3
X[:, 2], X[:, 5] = 1.5, X[:, 3]  # a constant one, and the double of another
Y = wide(
    np.stack([X[:, 3] - 2 * X[:, 6] + X[:, 1] ** 2, X[:, 0] + np.cos(X[:, 4])], axis=1)
    + 0.3 * draw(1, N, 2)
)
V = wide(np.where(np.arange(N) % 6 == 4, 0.0, np.random.default_rng(2).uniform(0.5, 2.0, N)))


def refitted(Phi, lam, weights, intercept, fn=np.square, labels=Y):
    """The leave-one-out error of features, for every target."""
    v = np.ones(len(Phi)) if weights is None else weights
    return v @ fn(oracle.loo_residuals(Phi, labels, lam, weights, intercept)) / v.sum()


def one_by_one(features, pool, num, error):
    """Greedy choice by trying all: of errors that are equal but for rounding the first."""
    chosen, errors = [], []
    for _ in range(num):
        tried = [(j, error(features([*chosen, j]))) for j in pool(chosen)]
        least = min(e.mean() for _, e in tried)
        j, e = next((j, e) for j, e in tried if e.mean() <= least * (1 + 1e-11))
        chosen.append(j)
        errors.append(e)
    return chosen, np.array(errors)


def of_columns(intercept):
    """Features, and what there is to choose from: no constant column beside an intercept."""
    return lambda chosen: X[:, chosen], lambda chosen: [
        j for j in range(D) if j not in chosen and not (intercept and j == 2)
    ]


@FLOAT64
@pytest.mark.parametrize(("weights", "intercept"), [(V, True), (None, False)])
def test_columns_are_those_of_a_loop_with_refits(weights, intercept):
    options = {"weights": weights, "intercept": intercept}
    choose = jax.jit(lambda lam: rls.several.select_columns(X, Y, NUM, lam, **options))
    for lam in LAMS:
        error = lambda Phi, lam=lam: refitted(Phi, lam, weights, intercept)
        found = choose(lam)
        columns, errors = one_by_one(*of_columns(intercept), NUM, error)
        assert found.columns.tolist() == columns
        assert_close(found.errors, errors, 1e-11)
        assert_close(found.error_without, error(X[:, :0]), 1e-12)


@FLOAT64
def test_a_loss_decides_what_is_chosen_and_labels_without_an_axis_stay_so():
    found = rls.several.select_columns(X, Y[:, 0], 2, 0.5, loss=rls.extend.absolute_error)
    columns, errors = one_by_one(
        *of_columns(True), 2, lambda Phi: refitted(Phi, 0.5, None, True, np.abs, Y[:, :1])
    )
    assert found.columns.tolist() == columns
    assert_close(found.errors, errors[:, 0], 1e-12)
    assert found.kernel == rls.Linear().on(columns) and found.first(1).columns == (columns[0],)


def error_left_out(Phi, y, lam):
    """The mean square by the leverages of a QR of the features over √λ, with an intercept."""
    n, m = Phi.shape
    A = np.vstack([Phi, np.sqrt(lam) * np.eye(m)]).astype(float)
    Q = np.linalg.qr(np.hstack([A, np.r_[np.ones(n), np.zeros(m)][:, None]]))[0][:n]
    return np.mean(((y - Q @ (Q.T @ y)) / (1 - np.sum(Q**2, axis=1))) ** 2)


@pytest.mark.parametrize("lam", [1e-2, pytest.param(1.0, marks=FLOAT64)])
def test_many_updates_keep_the_error_that_refits_have(lam):
    """Thirty nearly dependent columns, one after the other; what rounding may do is 4 n eps (1 +
    s_max/λ), as in the contract.
    """
    n, num = 80, 30
    base = draw(3, n, 8)
    many = wide(np.repeat(base, 5, axis=1) + 0.1 * draw(4, n, 40) + 5)
    y = wide(base @ draw(5, 8) + 0.3 * np.sin(3 * base[:, 0]) + 0.1 * draw(6, n))
    found = rls.several.select_columns(array(many), array(y), num, array(lam))
    columns = np.asarray(found.columns)
    assert len(set(columns.tolist())) == num
    for m in (1, 10, num):
        Phi = many[:, columns[:m]]
        size = np.linalg.norm(Phi - Phi.mean(axis=0), 2)
        tolerance = 4 * n * EPS * (1 + size / np.sqrt(lam))
        want = error_left_out(Phi, y, lam)
        assert_close(found.errors[m - 1], want, tolerance, f"{m} columns")


@FLOAT64
def test_what_the_chosen_ones_span_is_never_chosen():
    """Fewer columns than were asked for, and inside jit, where the shape cannot follow, others that
    change nothing to fill up.
    """
    few = array(np.c_[X[:, :1], 0 * X[:, 0], X[:, 1], X[:, 0] + X[:, 1], np.ones(N)])
    choose = lambda X: rls.several.select_columns(X, array(Y[:, 0]), 5, array(1e-3 * EPS))
    found, inside = choose(few), jax.jit(choose)(few)
    assert len(found.columns) == 2 and set(found.columns.tolist()) <= {0, 2, 3}
    assert inside.columns[:2].tolist() == found.columns.tolist()
    assert sorted(inside.columns.tolist()) == [0, 1, 2, 3, 4]
    assert np.array_equal(inside.errors[2:], np.repeat(inside.errors[1], 3))


@FLOAT64
def test_a_column_that_takes_a_row_for_itself_is_chosen_last():
    """Its row's 1 − leverage is rounding, and so is what it says of the row left out."""
    columns = array(np.c_[np.eye(N)[:, 3], X[:, 0], X[:, 1]])
    found = rls.several.select_columns(columns, array(Y[:, 0]), 3, array(EPS**1.5), intercept=False)
    assert found.columns[-1] == 0
    assert np.isinf(found.errors[-1]) and np.isfinite(found.errors[:-1]).all()


@ANY_PRECISION
def test_errors_name_the_argument():
    def columns(**wrong):
        named = {"X": X, "Y": Y[:, 0], "num": 2, "lam": 0.5}
        return lambda: rls.several.select_columns(**named | wrong)

    sparse, rows = scipy.sparse.csr_array(X), rls.rows.stream([(X, Y)])
    more, key = np.ones(N + 1), jax.random.key(0)
    many = "must be a whole number of at least 1 and at most"
    refused(
        (columns(num=8), f"num, how many columns, {many} 7, and is 8"),
        (columns(lam=0.0), "lam must be positive"),
        (columns(lam=LAMS), r"lam must be one number, and has shape \(2,\)"),
        (columns(X=sparse), "X must be a dense matrix, whose columns .*, and is SparseRows"),
        (columns(loss="squared"), "loss must be a function"),
        (
            lambda: jax.jit(lambda X: rls.several.select_columns(X, Y[:, 0], 1, 0.5).kernel(X, X))(
                X
            ),
            "columns are static: make the kernel outside",
        ),
        (  # though only those of the sample are looked at
            lambda: rls.choose_landmarks(rls.Gaussian(1.0), rows, 2, key=key, weights=more),
            rf"weights must have shape \({N},\).* \({N + 1},\)",
        ),
    )
