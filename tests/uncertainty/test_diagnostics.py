"""Influence of rows against refits and against hat matrices made column by column; eigenfunctions
against Mercer's theorem.
"""

import jax
import numpy as np
import oracle
import pytest
import support
from support import EPS, FLOAT64, array, assert_close, refused, solver_of, wide

import jaxrls as rls

influence = jax.jit(rls.diagnostics.influence)
eigenfunctions = jax.jit(rls.diagnostics.eigenfunctions, static_argnames="num")
LAM = 0.7


def data(n=18, d=4, t=2):
    rng = np.random.default_rng(3)
    X = wide(rng.normal(size=(n, d)) + 1)
    X[2] *= 4  # one row of high leverage
    return X, wide(rng.normal(size=(n, t)) + 3), wide(rng.uniform(0.3, 2.0, size=n))


def factor_of(route, X, v):
    """The factor of a linear kernel; landmarks are as many as it has dimensions."""
    landmarks = array(X[:4]) if route == "subset" else None
    options = {"weights": array(v), "landmarks": landmarks, "solver": solver_of(route)}
    return support.factorize(rls.Linear(), array(X), intercept=True, **options)


def products(X, Z):
    return X @ Z.T


def brute_force(Phi, Y, v):
    """Leverage, noise, standardised residuals and Cook's distances from the hat matrix of refits,
    and from fits without each row.
    """
    root = np.sqrt(v)
    fitted = lambda Y, v: (lambda w, b: Phi @ w + b)(*oracle.refit(Phi, Y, LAM, v, True))
    used = v > 0
    H = (root[:, None] * fitted(np.eye(len(Phi)), v))[:, used][used] / root[used]
    rest = np.eye(len(H)) - H
    r = root[:, None] * (Y - fitted(Y, v))
    noise = np.sqrt((r**2).sum(0) / np.trace(rest @ rest.T))
    leverage, spread = np.zeros(len(Phi)), np.ones(len(Phi))
    leverage[used], spread[used] = np.diag(H), np.sqrt(np.diag(rest @ rest.T))
    moved = np.zeros_like(Y)
    own = np.zeros_like(Y)
    noise_without = np.tile(noise, (len(Phi), 1))
    of_value = np.ones(len(Phi))
    of_value[used] = np.sqrt(np.diag(H @ H))
    for i in np.flatnonzero(used):
        without = np.where(np.arange(len(v)) == i, 0, v)
        shift = root[:, None] * (fitted(Y, v) - fitted(Y, without))
        moved[i] = (shift**2).sum(0)
        others = without > 0
        ratio = root[:, None][others] / root[others]
        fewer = np.eye(others.sum()) - ratio * fitted(np.eye(len(Phi)), without)[:, others][others]
        missed = (without[:, None] * (Y - fitted(Y, without)) ** 2).sum(0)
        noise_without[i] = np.sqrt(missed / np.trace(fewer @ fewer.T))
        own[i] = shift[i] / of_value[i]
    return {
        "leverage": leverage,
        "residuals": r / spread[:, None] / noise,
        "cooks_distance": moved / (np.trace(H) * noise**2),
        "noise": noise,
        "dof": np.trace(H),
        "studentised": r / spread[:, None] / noise_without,
        "dffits": own / noise_without,
        "noise_without": noise_without,
    }


@FLOAT64
@pytest.mark.parametrize(
    "route",
    [
        "gram",
        *(pytest.param(r, marks=pytest.mark.slow) for r in ("features", "covariance", "subset")),
    ],
)
def test_influence_against_refits(route):
    """Every row left out in turn and fitted again, on every route; landmarks that span all features
    change nothing.
    """
    X, Y, v = data()
    v = np.where(np.arange(len(v)) % 5 == 4, 0, v)
    factor = factor_of(route, X, v)
    found = influence(factor, array(Y), LAM)
    want = brute_force(X, Y, v)
    condition = float(np.linalg.norm(X, 2)) ** 2 / LAM
    tolerance = (
        20 * len(X) * EPS * condition * (np.linalg.cond(X[:4]) if route == "subset" else 1)
    )  # the condition of L, K_RR = LLᵀ
    assert set(want) == set(rls.diagnostics.Influence.__annotations__)
    for name, expected in want.items():
        assert_close(getattr(found, name), expected, tolerance, name)
    one = influence(factor, array(Y[:, 0]), LAM)
    assert one.residuals.shape == one.cooks_distance.shape == (len(X),) and one.noise.shape == ()
    assert_close(one.cooks_distance, want["cooks_distance"][:, 0], tolerance, "one target")
    assert_close(one.dffits, want["dffits"][:, 0], tolerance, "one target")


@FLOAT64
def test_least_squares_is_that_of_textbooks():
    """λ = 0: every row deleted in turn, with a constant, columns without a penalty, and a row that
    is the only one of its level.
    """
    n = 16
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(n, 2)), rng.normal(size=n)
    alone = (np.arange(n) == 6).astype(float)
    for name, fixed in (("constant", None), ("a level", alone)):
        columns = [np.ones(n), *([] if fixed is None else [fixed])]
        B = np.column_stack([*columns, X])
        p = B.shape[1]
        H = B @ np.linalg.pinv(B)
        h, r = np.diag(H), y - H @ y
        s_without = np.empty(n)
        t, dffits = np.zeros(n), np.zeros(n)
        for i in range(n):
            rest = np.arange(n) != i
            beta, _, rank, _ = np.linalg.lstsq(B[rest], y[rest], rcond=None)
            s = np.sqrt(((y - B @ beta)[rest] ** 2).sum() / (n - 1 - rank))
            s_without[i] = s
            if rank == p:
                t[i] = r[i] / (s * np.sqrt(1 - h[i]))
                dffits[i] = (H @ y - B @ beta)[i] / (s * np.sqrt(h[i]))
        factor = rls.factorize(
            rls.Linear(), array(X), fixed_effects=None if fixed is None else array(fixed[:, None])
        )
        found = influence(factor, array(y), 0.0)
        assert_close(found.noise_without, s_without, 1e-9, name)
        assert_close(found.studentised, t, 1e-6, name)
        assert_close(found.dffits, dffits, 1e-6, name)


def test_rows_that_all_but_fit_themselves_keep_their_digits():
    """λ far below every eigenvalue: 1 − leverage is small, and computed without cancellation, as
    c/p, where (y − ŷ)/(1 − h), the textbook form, has lost all digits.
    """
    rng = np.random.default_rng(0)
    X, y = array(np.arange(12.0)[:, None]), array(rng.normal(size=12))
    K = support.gram(rls.Gaussian(0.4), X)  # all eigenvalues near 1
    factor = support.factor_gram(K, intercept=False)
    found, e = influence(factor, y, 30 * EPS), support.loo_residuals(factor, y, 30 * EPS)
    inverse = np.linalg.inv(wide(K))
    c = inverse @ wide(y)
    noise = np.sqrt((c**2).sum() / (inverse**2).sum())
    assert_close(e, c / np.diag(inverse), 200 * EPS, "held-out residuals for λ → 0")
    want = (c / np.diag(inverse)) ** 2 / (12 * noise**2)
    assert_close(
        found.cooks_distance, want, 200 * EPS, "Cook's distance for λ → 0"
    )  # λ itself changes it by some 60 EPS


@pytest.mark.parametrize("route", ["gram", "features", "covariance", "subset"])
def test_eigenfunctions_are_orthonormal_and_expand_the_kernel(route):
    """At the rows Σ vφᵢφⱼ/Σv = δᵢⱼ, Σⱼ μⱼφⱼ(x)φⱼ(z) is the (centred) kernel, and elsewhere μφ(x) =
    Σ v k(x, xᵢ)φ(xᵢ)/Σv.
    """
    X, _, v = data()
    kernel, new = rls.Linear(), wide(np.random.default_rng(9).normal(size=(5, 4)))
    factor = factor_of(route, X, v)
    values, functions = eigenfunctions(factor, kernel, array(X), num=4)
    at_rows, at_new = (np.asarray(functions.predict(array(A)), np.float64) for A in (X, new))
    share, mean = v / v.sum(), v @ X / v.sum()
    Phi, Phi_new = X - mean, new - mean
    tolerance = 100 * len(X) * EPS * float(factor.s.max() / np.sort(factor.s)[-4])
    assert (np.diff(values) < 0).all()
    assert_close(at_rows.T @ (share[:, None] * at_rows), np.eye(4), tolerance, "orthonormal")
    assert_close(at_rows * np.asarray(values) @ at_new.T, Phi @ Phi_new.T, tolerance, "expansion")
    assert_close(
        at_new * np.asarray(values),
        Phi_new @ Phi.T @ (share[:, None] * at_rows),
        tolerance,
        "Nyström",
    )


@pytest.mark.filterwarnings("ignore:the chosen λ")
@pytest.mark.slow
def test_a_fit_is_diagnosed_as_it_was_computed():
    """Float64 NumPy data in float64 and into NumPy, whatever JAX is set to; float32 in float32. Of
    the rows that were given, though a fit to few rows adds others of weight 0.
    """
    X, Y, v = data()
    brute = brute_force(X, Y, v)
    for dtype in (np.float64, np.float32):
        eps = float(np.finfo(dtype).eps)
        tolerance = 20 * len(X) * eps * float(np.linalg.norm(X, 2)) ** 2 / LAM
        parts, options = [A.astype(dtype) for A in (X, Y, v)], {"solver": rls.Spectral()}
        kernel = rls.FunctionKernel(products)
        fit = rls.fit(kernel, *parts[:2], weights=parts[2], lams=[LAM, 10.0], **options)
        factor = fit.solution.factor
        assert factor.n > len(X)
        found = rls.diagnostics.influence(fit, lam=LAM)
        host = dtype == np.float64 and not support.X64
        for name, want in brute.items():
            got = getattr(found, name)
            assert_close(got, want, tolerance, name)
            assert got.dtype == dtype and isinstance(got, np.ndarray) == host
        at_its_own = rls.diagnostics.influence(fit)
        assert_close(at_its_own.dof, fit.dof, tolerance, "at its own λ")
        padded = np.zeros((factor.n, 2), dtype)
        padded[: len(X)] = parts[1]
        e = rls.diagnostics.loo_residuals(factor, padded, fit.lam)[: len(X)]
        assert_close(e, fit.loo_residuals, tolerance, "of the factor")
        assert e.dtype == rls.diagnostics.effective_dof(factor, [fit.lam]).dtype == dtype
        values, functions = rls.diagnostics.eigenfunctions(fit, num=3)
        with jax.enable_x64(True):
            alone = rls.factorize(rls.Linear(), X, weights=v)
            want = rls.diagnostics.eigenfunctions(alone, rls.Linear(), X, 3)
        assert values.dtype == dtype and isinstance(values, np.ndarray) == host
        assert_close(values, want.values, tolerance, "eigenvalues")
        squares = functions.predict(parts[0]) ** 2
        assert_close(squares, want.functions.predict(X) ** 2, 100 * tolerance, "eigenfunctions")


@pytest.mark.slow
def test_a_lam_that_the_factor_does_not_resolve_is_warned_of():
    X, Y, _ = data()
    factor = support.factorize(rls.Gaussian(1.0), array(X))
    lam = 0.01 * float(factor.precision_floor())
    for call in (rls.diagnostics.influence, rls.diagnostics.loo_residuals, rls.extend.coef):
        with pytest.warns(UserWarning, match="lam, .*, is below the precision of the factor"):
            call(factor, array(Y), lam)


def test_messages():
    factor = support.factor_gram(array(np.eye(3)))
    with pytest.raises(ValueError, match=r"lam must be one number, and has shape \(2,\)"):
        rls.diagnostics.influence(factor, array(np.ones(3)), array([1.0, 2.0]))
    with pytest.raises(
        ValueError, match="num must be a whole number of at least 1 and at most 3, and is 4"
    ):
        rls.diagnostics.eigenfunctions(factor, rls.Linear(), array(np.eye(3)), 4)
    influence, eigenfunctions = rls.diagnostics.influence, rls.diagnostics.eigenfunctions
    refused(
        (lambda: influence(factor), "a factor knows neither Y nor lam"),
        (lambda: eigenfunctions(factor), "a factor knows neither kernel nor X: give both"),
    )


@pytest.mark.slow
def test_messages_of_fits():
    X, Y, _ = data()
    kept, plain = (rls.fit(rls.Linear(), X, Y, lams=[LAM], keep=keep) for keep in (True, False))
    one_by_one = rls.fit(rls.Gaussian(1.0), X, Y, lams=[LAM], solver=rls.Cholesky(), keep=True)
    influence, eigenfunctions = rls.diagnostics.influence, rls.diagnostics.eigenfunctions
    refused(
        (lambda: influence(kept, Y), "a fit knows its Y: leave it out"),
        (lambda: influence(plain), "this fit kept no solution"),
        (lambda: influence(one_by_one), "'cholesky' has no spectrum: use another solver, such as"),
        (
            lambda: eigenfunctions(kept, rls.Linear(), X),
            "a fit knows its kernel and X: leave both out",
        ),
        (lambda: eigenfunctions(plain), "this fit kept no solution"),
    )
