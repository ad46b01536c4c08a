"""Wrong input is refused in one line that names the argument, what was found and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrls as rls
from jaxrls.sklearn import RLSRegressor

pytestmark = pytest.mark.any_precision
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = np.sin(X[:, 0])
HUGE = 10**400  # no float is as large
K = rls.Gaussian(1.5)
FLAGS = ("intercept", "per_target", "standardize", "keep", "progress")
REFUSED = [
    *((lambda flag=flag: rls.fit(K, X, Y, **{flag: "no"}), flag) for flag in FLAGS),
    (lambda: rls.loo(X, Y, [0.1]), "factor must be what factorize"),
    (lambda: rls.coef(X, Y, 0.1), "factor must be what factorize"),
    (lambda: rls.landmarks(K, X, 5, key=0), "key must be one such as jax.random.key"),
    (lambda: rls.PairsOut("abc"), "pairs must have shape"),
    (lambda: rls.PairsOut([[0.5, 1.0]]), "pairs must have shape"),
    (lambda: rls.fit(K, X, Y, criterion=rls.PairsOut([[0, 99]])), "0 to 11"),
    (lambda: rls.median_distance("abc"), "X must hold real numbers"),
    (lambda: rls.median_distance(Y), r"X\[None\] for one row"),
    (lambda: rls.median_distance(X, order=7), "order must be 1"),
    (lambda: rls.decode("abc", [0, 1]), "scores must hold real numbers"),
    (lambda: rls.decode(Y, None), "classes must be"),
    (lambda: rls.conformal_labels(3, X, Y), "fit must be a fit"),
    (lambda: rls.fit(K, [[HUGE], [1]], [1, 2]), "X must hold real numbers"),
    (lambda: rls.fit(K, X[:2], [HUGE, 2]), "Y must hold real numbers"),
    (lambda: rls.fit(K, X[:2], Y[:2], weights=[HUGE, 2]), "weights must hold"),
    (lambda: rls.fit(K, X, Y, lams=[HUGE]), "lams must hold real numbers"),
    (lambda: rls.fit(K, X, Y).predict(X[0]), r"X\[None\] for one row"),
    (lambda: rls.tune(K, X, Y, tol=np.nan), "tol must be"),
    (lambda: rls.fit(K, X, Y).score(X, Y[:, None]), r"Y must have shape \(12,\)"),
    (lambda: rls.fit(K, X, Y, groups=5), r"permutation\(n\) % 5"),
    (lambda: rls.fit(X, Y), "kernel must be a jaxrls kernel, .* and is a ndarray"),
    (lambda: rls.gram(X, K), "kernel must be a jaxrls kernel, .* and is a ndarray"),
    (lambda: rls.fit("guassian", X, Y), "'guassian': .*'matern32', .*'tanimoto'"),
    (lambda: rls.fit(K, X, Y, lams=[np.nan]), "lams holds 1 values .* drop them, or fill"),
    (lambda: rls.fit(K, X, ["a"] * 12), "classes"),
    (lambda: rls.fit(K, X, Y, fixed_effects=["a"] * 12), r"levels\(labels\)"),
    (lambda: rls.fit(K, X, Y).score(X, ["a"] * 12), "Y must hold real numbers"),
    (lambda: rls.fit(K, X, Y).score(X, np.full(12, np.nan)), "Y holds 12 values that are NaN"),
    (lambda: rls.fit(K, X, Y).score(X, Y, np.ones(4)), r"weights must have shape \(12,\)"),
    (lambda: rls.fit(K, X, Y).score(X, Y, -np.ones(12)), "weights must not be negative"),
    (lambda: rls.stream(X), "fit takes arrays as they are"),
    (lambda: rls.stream((X, Y)), "fit takes arrays as they are"),
    (lambda: rls.save("a", RLSRegressor()), "pickle"),
]


def test_is_refused():
    for call, words in REFUSED:
        with pytest.raises(ValueError, match=words) as found:
            call()
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rls.fit(K, X, Y, [0.1]), "fit: too many .* it takes kernel, X, Y, lams, "),
        (lambda: rls.loo(rls.factorize(K, X), Y), "Criterion.__call__: missing .*'lams'"),
        (lambda: rls.fit(K, X, Y).intervals(X, alpha=0.1), "no alpha=: it takes X, level, "),
        (lambda: rls.fit(K, X, Y).score(X, Y, sample_weight=Y), "did you mean weights="),
        (lambda: rls.fit(K, X, Y, normalize=True), "did you mean standardize="),
        (lambda: rls.tune(K, X, Y, random_state=0), "it takes kernel, .*key, "),
    ],
)
def test_calls_of_another_form_are_told_what_is_taken(call, words):
    with pytest.raises(TypeError, match=words) as found:
        call()
    assert "\n" not in str(found.value)


def test_words_that_users_try_first():
    """A median for every column, a criterion by the name of its object, and λ of a fit to one."""
    found = rls.fit(rls.Gaussian(["median"] * 2), X, Y, lams=[0.1])
    wanted = rls.start_from_data(rls.Gaussian(np.ones(2)), X).width
    np.testing.assert_allclose(found.kernel.width, wanted, rtol=1e-6)
    assert "λ = 0.1, loo" in repr(found)
    names = "log_marginal_likelihood", "evidence"
    one, other = (rls.fit(K, X, Y, criterion=name).error for name in names)
    assert one == other


def test_strict_promotion_of_ranks_is_no_matter():
    want = rls.fit(K, X, Y).error
    with jax.numpy_rank_promotion("raise"):
        assert rls.fit(K, X, Y).error == want
        assert rls.fit(K, X, Y, landmarks=5, groups=np.arange(12) % 4).error > 0
        assert rls.gram_matmul(K, jnp.asarray(X), jnp.asarray(X), jnp.asarray(Y)).shape == (12,)


@pytest.mark.parametrize("solver", [rls.Iterative(6), rls.Refined(), rls.Cholesky()])
def test_a_solver_without_a_spectrum_searches_for_lam(solver):
    rows = RNG.normal(size=(60, 2))
    labels = np.sin(rows[:, 0]) + 0.3 * RNG.normal(size=60)
    found = rls.fit(K, rows, labels, solver=solver)
    assert "search" in found.plan and found.error < np.var(labels)
