"""The tridiagonal form against dense algebra in float64, and what is particular to its factor; the contract grid has the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import EPS, array, assert_close, assert_derivatives, wide

import jaxrls as rls
from jaxrls.factors.tridiagonal import SIDE_BY_SIDE
from jaxrls.linalg.decompositions import SpectralDerivativeError
from jaxrls.linalg.tridiagonal import AT_ONCE, reduced

R = 2 * AT_ONCE + 9  # blocks of reflectors, the last one ragged
LAMS = np.array([0.1, 1.0, 30.0])
KERNEL = rls.Gaussian(1.0)


def semidefinite(rng, r=R, rank=R // 2):
    B = rng.normal(size=(r, rank))
    return wide(B @ B.T / r)


def data(rng, n=30):
    X = wide(rng.uniform(-2, 2, size=(n, 2)))
    return X, wide(np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n))


def dense(form):
    d, e = (np.asarray(part, np.float64) for part in (form.diagonal, form.beside[1:]))
    return np.diag(d) + np.diag(e, 1) + np.diag(e, -1)


# the form ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", ["full", "diagonal", "some rows 0"])
def test_reflectors_are_q_and_q_takes_t_to_the_matrix(matrix, rng):
    A = semidefinite(rng)
    A = np.diag(np.diag(A)) if matrix == "diagonal" else A
    if matrix == "some rows 0":
        A[-20:] = A[:, -20:] = 0

    @jax.jit
    def run(A):
        form = reduced(A)
        return form, form.vectors(), form.times(jnp.eye(R)), form.transposed_times(jnp.eye(R))

    form, Q, by_reflectors, transposed = run(array(A))
    tolerance = 4 * R**0.5 * EPS
    assert_close(Q, by_reflectors, tolerance)
    assert_close(np.asarray(Q).T, transposed, tolerance)
    assert_close(np.asarray(Q, np.float64) @ dense(form) @ np.asarray(Q, np.float64).T, A, tolerance)
    if matrix == "some rows 0":
        assert not np.any(form.diagonal[-20:]) and not np.any(form.beside[-20:])


@pytest.mark.parametrize("r", [1, 2])
def test_small_matrices_and_no_columns(r, rng):
    """Of one row there is no reflector, and of no column nothing is reflected."""
    A = semidefinite(rng, r, 2)
    form = reduced(array(A))
    Q = np.asarray(form.times(jnp.eye(r)), np.float64)
    assert_close(form.vectors(), Q, 8 * EPS)
    assert_close(Q @ dense(form) @ Q.T, A, 8 * EPS)
    assert form.times(jnp.zeros((r, 0))).shape == form.transposed_times(jnp.zeros((r, 0))).shape == (r, 0)


def test_the_bound_of_an_indefinite_matrix(rng):
    """Of negative entries it counts the size."""
    A = -semidefinite(rng, 9, 9) - 3 * np.eye(9)
    assert float(reduced(array(A)).bound) >= np.abs(np.linalg.eigvalsh(A)).max() * (1 - 9 * EPS)


def test_what_follows_from_the_pivots(rng):
    A, z = semidefinite(rng), wide(rng.normal(size=(R, 2)))

    @jax.jit
    def run(A, z, lams):
        form = reduced(A)
        pivots = form.pivots(lams)
        numbers = jnp.sum(jnp.log(pivots.diagonal), axis=0), jnp.sum(pivots.slope / pivots.diagonal, axis=0)
        return form, pivots.solve(z), pivots.squares(z), *numbers

    form, *found = run(array(A), array(z), array(LAMS)[:, None])
    T = dense(form)
    inverses = [np.linalg.inv(T + lam * np.eye(R)) for lam in wide(LAMS)]
    tolerance = 4 * R**0.5 * EPS * (1 + np.linalg.norm(A, 2) / LAMS[0])
    want = [
        np.stack([P @ z for P in inverses], axis=1),
        np.array([lam * np.sum(z * (P @ z), axis=0) for lam, P in zip(LAMS, inverses, strict=True)]),
        np.array([[-np.linalg.slogdet(P)[1]] for P in inverses]),
        np.array([[np.trace(P)] for P in inverses]),
    ]
    for name, got, true in zip(("solve", "squares", "log determinant", "trace"), found, want, strict=True):
        assert_close(got, true, tolerance, name)


def test_eigenvalues_are_counted_and_the_smallest_found(rng):
    Q, s = np.linalg.qr(rng.normal(size=(R, R)))[0], np.concatenate([np.zeros(R - 40), np.geomspace(0.003, 5, 40)])
    form = jax.jit(reduced)(array((Q * s) @ Q.T))
    shifts = np.array([-0.1, 0.001, 0.1, 1.0, 4.9, 5.1])
    assert jax.jit(form.count_below)(array(shifts)).tolist() == [(s < shift).sum() for shift in shifts]
    smallest = jax.jit(form.smallest_above)
    assert float(smallest(array(1e-4))) == pytest.approx(0.003, rel=0.01)
    assert float(smallest(array(0.01))) == pytest.approx(s[s > 0.01].min(), rel=0.01)
    assert 5 <= float(form.bound) <= 10 and float(smallest(form.bound * 0.99)) == pytest.approx(float(form.bound), rel=0.02)


def test_pivots_that_are_not_positive_are_no_numbers():
    form = reduced(array(np.array([[1.0, 3.0, 0.0], [3.0, 1.0, 1.0], [0.0, 1.0, 2.0]])))
    pivots = form.pivots(array([0.5, 9.0]))
    solved = np.asarray(pivots.solve(array(np.ones((3, 1)))))
    assert np.isnan(solved[:, 0]).all() and np.isfinite(solved[:, 1]).all()
    assert np.isnan(np.asarray(pivots.squares(array(np.ones((3, 1))))))[0]


def test_there_is_none_for_tpus():
    A = array(np.eye(3))
    with jax.default_device("tpu"), pytest.raises(ValueError, match="CPUs and GPUs only: use route='gram', or lams='search'"):
        reduced(A)


# the factor ----------------------------------------------------------------------------------------------------------------


def test_the_grid_is_that_of_the_spectrum(rng):
    """With eigenvalues that all count, and where most are rounding."""
    for width in (0.05, 1.5):
        X, _ = data(rng)
        grids = [rls.lambda_grid(rls.factorize(rls.Gaussian(width), array(X), route=route), 5) for route in ("gram", "tridiagonal")]
        ends = np.array(grids)[:, [0, -1]]
        assert_close(ends[1, 1], ends[0, 1], 100 * EPS)
        assert 0.9 < ends[1, 0] / ends[0, 0] < 2.1, f"width {width}"  # a floor by Gershgorin's bound is at most twice as high


@pytest.mark.filterwarnings("ignore:the chosen λ")
@pytest.mark.parametrize("criterion", [rls.gcv, rls.log_marginal_likelihood, rls.loo])
def test_a_fit_is_that_of_the_spectrum(criterion, rng):
    X, y = data(rng)
    lams = np.geomspace(1e-2, 10, 8).astype(X.dtype)
    one, other = (rls.fit(KERNEL, array(X), array(y), criterion=criterion, lams=lams, route=route) for route in ("gram", "tridiagonal"))
    assert other.route == "tridiagonal" and float(one.lam) == float(other.lam)
    tolerance = 1e4 * EPS
    for field in ("errors", "loo_residuals", "dof"):
        assert_close(getattr(other, field), getattr(one, field), tolerance, field)
    assert_close(other.predict(array(X)), one.predict(array(X)), tolerance)


@pytest.mark.float64
def test_a_fit_chooses_its_own_grid_and_searches(rng):
    X, y = data(rng, 60)
    options = {"criterion": rls.gcv, "route": "tridiagonal"}
    grid, found = rls.fit(KERNEL, X, y, **options), rls.fit(KERNEL, X, y, lams="search", **options)
    best = rls.fit(KERNEL, X, y, criterion=rls.gcv, route="gram")
    assert len(grid.lams) == 100 and float(grid.error) == pytest.approx(float(best.error), rel=0.01)
    assert found.route == "tridiagonal" and float(found.error) <= float(best.error) and "from one factorization" in found.search


def test_only_rows_left_out_form_q(rng):
    X, y = map(array, data(rng))

    def operations(fn):
        factor = rls.factorize(KERNEL, X, route="tridiagonal")
        return str(jax.make_jaxpr(lambda lams: fn(factor, lams))(array(LAMS)))

    for fn in (
        lambda factor, lams: rls.gcv(factor, y, lams),
        lambda factor, lams: rls.log_marginal_likelihood(factor, y, lams),
        lambda factor, lams: factor.solve(y).coefficients(lams),
    ):
        assert "householder_product" not in operations(fn)
    assert "householder_product" in operations(lambda factor, lams: rls.loo(factor, y, lams))


@pytest.mark.float64
@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("intercept", [True, False])
def test_few_rows(n, intercept, rng):
    X, y = data(rng, n)
    if n == 1 and intercept:
        weights = None
        with pytest.raises(ValueError, match="row 0 holds all of the weight"):
            rls.loo(rls.factorize(KERNEL, array(X), route="tridiagonal"), array(y), LAMS)
    else:
        weights = array(np.linspace(1, 2, n))
        loos = [rls.loo(rls.factorize(KERNEL, array(X), weights=weights, intercept=intercept, route=r), array(y), LAMS) for r in ROUTES]
        assert_close(*loos, 1e3 * EPS)
    for fn in (rls.gcv, rls.log_marginal_likelihood)[n == 1 and intercept :]:  # of one row GCV is 0/0
        one, other = (fn(rls.factorize(KERNEL, array(X), weights=weights, intercept=intercept, route=r), array(y), LAMS) for r in ROUTES)
        assert_close(one, other, 1e3 * EPS)


ROUTES = ("tridiagonal", "gram")


def test_rows_in_blocks(rng, monkeypatch):
    """As many at once as there are λ for, and the rest."""
    X, y = map(array, data(rng))
    monkeypatch.setitem(SIDE_BY_SIDE, "cpu", 7 * len(LAMS))
    one, other = (rls.loo(rls.factorize(KERNEL, X, route=route), y, LAMS, loss=rls.absolute_error) for route in ROUTES)
    assert_close(one, other, 1e4 * EPS)


def test_rows_of_tiny_weight_are_as_if_they_were_not_there(rng):
    """The residual of a row of weight 1e-12 is that of one of weight 0: rounding is not divided by √v."""
    X, y = data(rng)
    seen = []
    for tiny in (0.0, 1e-12):
        v = np.ones(len(X))
        v[[3, 8, 9]] = tiny
        factor = rls.factorize(KERNEL, array(X), weights=array(v), route="tridiagonal")
        seen.append([rls.loo_residuals(factor, array(y), 0.3), rls.loo_residuals(factor, array(y), 0.3, np.arange(len(X)) // 2)])
    for one, other in zip(*seen, strict=True):
        assert_close(one, other, 1e4 * EPS)


def test_an_indefinite_kernel_matrix_gives_no_numbers_and_no_fit(rng, unchecked):
    Q = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    K = (Q * np.append(np.linspace(0.1, 2, 11), -0.5)) @ Q.T
    K, y = (K + K.T) / 2, rng.normal(size=12)
    factor = rls.factorize(rls.Precomputed(), array(K), intercept=False, route="tridiagonal")
    for criterion in (rls.gcv, rls.loo, rls.log_marginal_likelihood):
        assert np.isfinite(criterion(factor, array(y), array([0.1, 1.0]))).tolist() == [False, True]
    with pytest.raises(ValueError, match="error is not finite at 1 of 2 λ: the factorization broke down"):
        rls.fit(rls.Precomputed(), array(K), array(y), lams=[0.1, 1.0], criterion=rls.gcv, intercept=False, route="tridiagonal")


@pytest.mark.float64
def test_derivatives_in_labels_and_lams(rng):
    X, y = data(rng, 8)
    plan = rls.folds(np.arange(8) % 3)
    factor = rls.factorize(KERNEL, array(X), weights=array(np.linspace(0, 2, 8)), route="tridiagonal")

    def mixture(at):
        lams, Y = jnp.exp(at[:2]), jnp.stack([at[2:], at[2:] ** 2], axis=1)
        solution = factor.solve(Y)
        criteria = rls.LeaveOneOut(), rls.GroupsOut(plan), rls.GCV(), rls.Evidence()
        values = [criterion.values(solution, lams, KERNEL) for criterion in criteria]
        return jnp.sum(jnp.stack(values) * array(np.arange(1, 17).reshape(4, 2, 2))) + jnp.sum(solution.coefficients(lams).coef ** 2)

    assert_derivatives(mixture, np.concatenate([[-1.0, 0.5], y]), 1e-7)


def test_derivatives_in_the_kernel_are_refused(rng):
    X, y = map(array, data(rng, 8))
    with pytest.raises(SpectralDerivativeError, match="use jaxrls.loo_objective"):
        jax.grad(lambda width: rls.gcv(rls.factorize(rls.Gaussian(width), X, route="tridiagonal"), y, LAMS[:1])[0])(array(1.0))


@pytest.mark.float64
def test_many_problems_at_once(rng):
    X, Y = map(array, (rng.normal(size=(3, 10, 2)), rng.normal(size=(3, 10))))

    def errors(X, y, route):
        factor = rls.factorize(KERNEL, X, route=route)
        return rls.gcv(factor, y, LAMS), rls.loo(factor, y, LAMS)

    one, other = (jax.jit(jax.vmap(lambda X, y, r=r: errors(X, y, r)))(X, Y) for r in ROUTES)
    for got, want in zip(one, other, strict=True):
        assert_close(got, want, 1e4 * EPS)
