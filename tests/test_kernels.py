"""One contract for every kernel: the formula pair by pair, symmetry, positivity, derivatives,
domains; then the algebra.
"""

import functools
import math
import re
import sys
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import DTYPE, EPS, array, assert_close, differences, wide

import jaxrls as rls
from jaxrls import extend
from jaxrls.kernels.given import KernelValues
from jaxrls.kernels.kernel import Standardized
from jaxrls.support.pytrees import is_registered

WIDTHS = np.array([0.8, 1.5, 2.5])


def lift(params, X):
    return jnp.concatenate([X, params * X[:, :1] ** 2], axis=1)


def cosine(params, X, Z):
    return params**2 * jnp.cos(X[:, :1] - Z[:, 0])


def distance(x, z, width=1.0):
    return np.sqrt((((x - z) / width) ** 2).sum())


def chi_squared(x, z, width=1.0):
    return sum(
        (a - b) ** 2 / (a + b) / w
        for a, b, w in zip(x, z, np.broadcast_to(width, x.shape), strict=True)
        if a + b
    )


@dataclass
class Case:
    """A kernel, its formula for one pair of rows, and what holds for it."""

    kernel: Any
    pair: Any
    stationary: bool = False
    coincident: float | None = (
        1e-7  # how well differences tell second derivatives where rows coincide; None where there are none
    )
    columns: int = 3
    domain: Any = np.positive


CASES = {
    "linear": Case(rls.Linear(), lambda x, z: x @ z),
    "polynomial": Case(rls.Polynomial(3, 0.75), lambda x, z: (x @ z + 0.75) ** 3),
    "gaussian": Case(
        rls.Gaussian(1.25), lambda x, z: math.exp(-(distance(x, z, 1.25) ** 2) / 2), True
    ),
    "gaussian, a width per column": Case(
        rls.Gaussian(array(WIDTHS)), lambda x, z: math.exp(-(distance(x, z, WIDTHS) ** 2) / 2), True
    ),
    "gaussian of columns at their centre and scale": Case(
        Standardized(rls.Gaussian(1.25), array(np.array([0.5, -1.0, 2.0])), array(WIDTHS)),
        lambda x, z: math.exp(-(distance(x, z, 1.25 * WIDTHS) ** 2) / 2),
        True,
    ),
    "laplacian": Case(
        rls.Laplacian(1.75), lambda x, z: math.exp(-np.abs(x - z).sum() / 1.75), True, None
    ),
    "laplacian, a width per column": Case(
        rls.Laplacian(array(WIDTHS)),
        lambda x, z: math.exp(-(np.abs(x - z) / WIDTHS).sum()),
        True,
        None,
    ),
    "matern 1/2": Case(
        rls.Matern(0.5, 1.75), lambda x, z: math.exp(-distance(x, z, 1.75)), True, None
    ),
    "matern 3/2": Case(
        rls.Matern(1.5, 1.75),
        lambda x, z: (1 + (r := math.sqrt(3) * distance(x, z, 1.75))) * math.exp(-r),
        True,
        1e-2,
    ),
    "matern 5/2, a width per column": Case(
        rls.Matern(2.5, array(WIDTHS)),
        lambda x, z: (1 + (r := math.sqrt(5) * distance(x, z, WIDTHS)) + r**2 / 3) * math.exp(-r),
        True,
    ),
    "rational quadratic": Case(
        rls.RationalQuadratic(1.25, alpha=0.75),
        lambda x, z: (1 + distance(x, z, 1.25) ** 2 / 1.5) ** -0.75,
        True,
    ),
    "periodic": Case(
        rls.Periodic(period=2.5, width=array(WIDTHS)),
        lambda x, z: math.exp(-2 * ((np.sin(np.pi * (x - z) / 2.5) / WIDTHS) ** 2).sum()),
        True,
    ),
    "chi-squared, a width per column": Case(
        rls.ChiSquared(array(WIDTHS)),
        lambda x, z: math.exp(-chi_squared(x, z, WIDTHS)),
        domain=np.abs,
    ),
    "constant": Case(rls.Constant(0.75), lambda x, z: 0.75),
    "tanimoto": Case(rls.Tanimoto(), lambda x, z: x @ z / (x @ x + z @ z - x @ z)),
    "cosine": Case(rls.Cosine(), lambda x, z: x @ z / np.linalg.norm(x) / np.linalg.norm(z)),
    "sobolev": Case(
        rls.Sobolev(), lambda x, z: min(x[0], z[0]), coincident=None, columns=1, domain=np.abs
    ),
    "feature map": Case(
        rls.FeatureMap(lift, array(0.75)), lambda x, z: x @ z + 0.75**2 * x[0] ** 2 * z[0] ** 2
    ),
    "function": Case(
        rls.FunctionKernel(cosine, array(1.5)), lambda x, z: 2.25 * np.cos(x[0] - z[0])
    ),
    "sum": Case(
        rls.Linear() + rls.Gaussian(1.25),
        lambda x, z: x @ z + math.exp(-(distance(x, z, 1.25) ** 2) / 2),
    ),
    "product": Case(
        rls.Polynomial(2) * rls.Gaussian(1.25),
        lambda x, z: (x @ z + 1) ** 2 * math.exp(-(distance(x, z, 1.25) ** 2) / 2),
    ),
    "multiple": Case(
        0.25 * rls.Matern(2.5, 1.75),
        lambda x, z: (
            0.25 * (1 + (r := math.sqrt(5) * distance(x, z, 1.75)) + r**2 / 3) * math.exp(-r)
        ),
    ),
    "on columns": Case(
        rls.Gaussian(1.25).on([0, 2]),
        lambda x, z: math.exp(-(distance(x[[0, 2]], z[[0, 2]], 1.25) ** 2) / 2),
        True,
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@jax.jit
def matrix(kernel, X, Z):
    return kernel(X, Z)


@jax.jit
def diagonal(kernel, X):
    return kernel.diag(X)


def rows(case, n, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, case.columns))
    return wide(case.domain(X))


def naive(pair, X, Z):
    return np.array([[pair(x, z) for z in Z] for x in X])


def parts(kernel):
    """The kernel and all kernels inside it."""
    children = [getattr(kernel, f.name) for f in fields(kernel)]
    return [
        kernel,
        *(part for child in children if isinstance(child, rls.Kernel) for part in parts(child)),
    ]


def subclasses(cls):
    return {cls} | {c for child in cls.__subclasses__() for c in subclasses(child)}


def kernel_types():
    """Every concrete kernel class of the library; those that its examples define stand in no
    module.
    """
    own = {
        c for c in subclasses(rls.Kernel) if c.__module__.startswith("jaxrls.") and is_registered(c)
    }
    return {c for c in own if getattr(sys.modules[c.__module__], c.__name__, None) is c}


def test_every_kernel_of_the_library_is_in_the_list():
    listed = {type(part) for case in CASES.values() for part in parts(case.kernel)} | {
        rls.Precomputed,
        KernelValues,
    }
    missing = kernel_types() - listed
    assert not missing, f"add these kernels to CASES: {sorted(c.__name__ for c in missing)}"


@EVERY
def test_formula(case):
    X, Z = rows(case, 12), rows(case, 7, seed=1)
    tolerance = 50 * EPS * max(1, (X**2).sum(1).max())
    K = matrix(case.kernel, array(X), array(Z))
    assert K.dtype == DTYPE
    assert_close(K, naive(case.pair, X, Z), tolerance, "k(X, Z)")
    assert_close(matrix(case.kernel, array(Z), array(X)), np.asarray(K).T, tolerance, "symmetry")
    assert diagonal(case.kernel, array(X)).dtype == DTYPE
    assert_close(
        diagonal(case.kernel, array(X)), np.diag(naive(case.pair, X, X)), tolerance, "diag"
    )


@EVERY
def test_a_gram_matrix(case):
    """Positive semidefinite, with `diag` on its diagonal, and equal rows of X make equal rows of K,
    to the last bit.
    """
    X = rows(case, 12)
    X[7:10] = X[:3]
    K, expected = (
        np.asarray(a, np.float64)
        for a in (matrix(case.kernel, array(X), array(X)), diagonal(case.kernel, array(X)))
    )
    s = np.linalg.eigvalsh((K + K.T) / 2)
    assert s[0] >= -12 * EPS * s[-1]
    rounding = 0 if case.stationary else 8 * EPS
    assert_close(np.diagonal(K), expected, rounding, "diagonal")
    assert_close(K[[0, 1, 2], [7, 8, 9]], expected[:3], rounding, "equal rows")
    assert_close(K[7:10], K[:3], rounding, "equal rows")


@pytest.mark.float64
@EVERY
def test_derivatives(case):
    """First and second derivatives in every parameter and every entry of X, also where rows of X
    and Z coincide.
    """
    X, Z = array(rows(case, 4)), array(rows(case, 5, seed=1))
    W = array(np.random.default_rng(2).normal(size=(4, 5)))
    start, back = ravel_pytree((jax.tree.map(array, case.kernel), X))

    def value(flat, Z):
        kernel, X = back(flat)
        return jnp.sum(W * kernel(X, Z))

    first, second = jax.grad(value), jax.hessian(value)
    everything = jax.jit(lambda flat, Z: (value(flat, Z), first(flat, Z), second(flat, Z)))
    for what, tolerance, points in (
        ("apart", 1e-7, Z),
        ("where rows coincide", case.coincident, Z.at[:4].set(X)),
    ):
        _, gradient, hessian = everything(start, points)
        assert bool(jnp.isfinite(gradient).all() & jnp.isfinite(hessian).all()), what
        if tolerance is not None:
            assert_close(
                gradient,
                differences(lambda flat, Z=points: everything(flat, Z)[0], start),
                tolerance,
                f"gradient, {what}",
            )
            assert_close(
                hessian,
                differences(lambda flat, Z=points: everything(flat, Z)[1], start),
                tolerance,
                f"Hessian, {what}",
            )


def test_features_of_the_algebra():
    """Sums, multiples and columns of explicit kernels stay explicit; a product or an implicit part
    does not.
    """
    X = array(np.random.default_rng(0).normal(size=(9, 3)))
    line = rls.FeatureMap(lambda X: X**2)
    kernel = 2.0 * rls.Linear().on([0, 2]) + 0.5 * (line + rls.Linear())
    assert kernel.num_features(3, X.dtype) == 8
    Phi = kernel.features(X)
    assert_close(Phi @ Phi.T, kernel(X, X), 20 * EPS, "ΦΦᵀ")
    for implicit in (
        kernel + rls.Gaussian(1.0),
        kernel * rls.Linear(),
        rls.Gaussian(1.0),
        2.0 * rls.Polynomial(2),
    ):
        assert implicit.num_features(3, X.dtype) is None


def test_algebra():
    X, Z = (array(np.random.default_rng(seed).normal(size=(n, 3))) for seed, n in ((0, 9), (1, 6)))
    a, b = rls.Gaussian(1.5), rls.Polynomial(2, 0.5)
    for combined, expected in (
        (a + b, lambda X, Z: a(X, Z) + b(X, Z)),
        (a * b, lambda X, Z: a(X, Z) * b(X, Z)),
        (3 * a, lambda X, Z: 3 * a(X, Z)),
        (a * 3.0, lambda X, Z: 3 * a(X, Z)),
        (np.float64(0.5) * a, lambda X, Z: a(X, Z) / 2),
        (array(0.5) * a, lambda X, Z: a(X, Z) / 2),
        (a.on(1), lambda X, Z: a(X[:, 1:2], Z[:, 1:2])),
        (b.on((2, 0)), lambda X, Z: b(X[:, [2, 0]], Z[:, [2, 0]])),
        (a.on(range(1, 3)) + b.on(-3), lambda X, Z: a(X[:, 1:], Z[:, 1:]) + b(X[:, :1], Z[:, :1])),
    ):
        assert isinstance(combined, rls.Kernel)
        assert_close(combined(X, Z), expected(X, Z), 4 * EPS, repr(combined))
        assert_close(combined.diag(X), jnp.diagonal(expected(X, X)), 20 * EPS, repr(combined))
    for nonsense in (lambda: a + 1, lambda: 1 + a, lambda: a * "b", lambda: a * jnp.ones(2)):
        with pytest.raises(TypeError):
            nonsense()


def test_gamma_and_width():
    """γ‖x − z‖² = ‖x − z‖² / (2 width²), in numbers and under a trace."""
    assert_close(rls.Gaussian.from_gamma(2.0).width, 0.5, EPS)
    assert_close(
        jax.jit(lambda gamma: rls.Gaussian.from_gamma(gamma))(array(0.125)).width, 2.0, 2 * EPS
    )


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_polynomial_features(degree):
    X = array(np.random.default_rng(0).normal(size=(9, 3)))
    for offset in (0.0, 0.75, 2.0):
        Phi = rls.polynomial_features(X, degree, offset)
        assert Phi.shape[1] == (
            math.comb(3 + degree, degree) if offset else math.comb(2 + degree, degree)
        )
        assert_close(
            Phi @ Phi.T,
            rls.Polynomial(degree, offset)(X, X),
            50 * EPS,
            f"degree {degree}, offset {offset}",
        )
    line = rls.polynomial_features(X, 1)
    assert_close(line, np.hstack([np.ones((9, 1)), X]), 0, "the design matrix (1, x)")


@pytest.mark.parametrize(
    "combine",
    [
        lambda K: K + rls.Linear(),
        lambda K: rls.Linear() + K,
        lambda K: K + K,
        lambda K: K * rls.Linear(),
        lambda K: rls.Linear() * K,
        lambda K: 2.0 * K,
        lambda K: K * array(2.0),
        lambda K: K.on(0),
    ],
)
def test_a_matrix_has_no_algebra(combine):
    with pytest.raises(
        ValueError,
        match=r"Precomputed\(\) has no sums, .*: compute them into K, such as 0.5 \* K1",
    ):
        combine(rls.Precomputed())


def test_zeros_in_rows():
    """As scikit-learn has them: a row of zeros is at right angles to all, and a column that is 0 in
    both rows adds no distance.
    """
    pairwise = pytest.importorskip(
        "sklearn.metrics.pairwise", reason="scikit-learn is not installed"
    )
    X = wide([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 2.0]])
    assert_close(diagonal(rls.Cosine(), array(X)), [0.0, 1.0, 1.0], 0)
    both = jax.jit(lambda kernel, X: (kernel(X, X), jax.jacobian(lambda X: kernel(X, X))(X)))
    for kernel, expected in (
        (rls.Cosine(), pairwise.cosine_similarity(X)),
        (rls.ChiSquared(1.0), pairwise.chi2_kernel(X)),
    ):
        K, slopes = both(kernel, array(X))
        assert_close(K, expected, 4 * EPS)
        assert bool(jnp.isfinite(slopes).all())
    for unit in (1e-12, 1e12):
        assert_close(
            matrix(rls.Cosine(), array(unit * X), array(X)), pairwise.cosine_similarity(X), 4 * EPS
        )


def test_a_constant_in_a_sum_is_a_penalised_bias():
    """RLScore's bias column: the same fit as with a column √value in X, by the routes of explicit
    features, sparse rows among them.
    """
    sparse = pytest.importorskip("scipy.sparse")
    X, y = (
        np.random.default_rng(seed).normal(size=shape).astype(DTYPE)
        for seed, shape in ((0, (30, 3)), (1, 30))
    )
    y = y + 3
    kernel, lams = rls.Linear() + rls.Constant(4.0), np.array([0.01, 0.1, 1.0, 10.0, 100.0], DTYPE)
    column = np.column_stack([X, np.full(30, 2.0, DTYPE)])
    options: dict = {"lams": lams, "intercept": False}
    got, want = rls.fit(kernel, X, y, **options), rls.fit(rls.Linear(), column, y, **options)
    assert got.model.points is None and got.model.coef.shape == (4,)
    assert_close(got.errors, want.errors, 1e3 * EPS)
    assert_close(got.model.coef, want.model.coef, 1e3 * EPS)
    assert_close(rls.fit(kernel, sparse.csr_array(X), y, **options).errors, want.errors, 1e3 * EPS)


MESSAGES = {
    "degree": (
        lambda X: rls.Polynomial(0),
        "Polynomial.degree must be a whole number of at least 1, and is 0",
    ),
    "offset": (
        lambda X: rls.Polynomial(2, -1.0).check(X),
        "Polynomial.offset must be finite and not negative, and is -1.0",
    ),
    **{
        f"nu of {nu}": (
            lambda X, nu=nu: rls.Matern(nu, 1.0),
            f"Matern.nu must be 0.5, 1.5 or 2.5, and is {nu!r}: Gaussian is the limit of large ν",
        )
        for nu in (0.0, 1.0, 2, math.inf, "1.5", np.array([0.5, 1.5]))
    },
    "chi-squared": (
        lambda X: rls.ChiSquared(1.0).on(0).check(-X),
        "ChiSquared is for X ≥ 0, such as counts, and the smallest input is -1.0: leave X uncentred",
    ),
    "width": (
        lambda X: rls.Gaussian(0.0).check(X),
        "Gaussian.width must be positive and finite, and is 0.0",
    ),
    "inside a sum": (
        lambda X: (rls.Linear() + 2 * rls.Gaussian(-1.0)).check(X),
        "Gaussian.width must be positive",
    ),
    "sobolev columns": (
        lambda X: rls.Sobolev()(X, X),
        "Sobolev takes one column, and X has 3: use Sobolev().on(j)",
    ),
    "sobolev domain": (
        lambda X: rls.Sobolev().on(0).check(X - 2),
        "Sobolev lives on [0, ∞), and the smallest input is -1.0: shift the column",
    ),
    "no columns": (
        lambda X: rls.Linear().on([]),
        "columns must be one index or several, such as 0, [0, 2] or range(3), and is []",
    ),
    "columns outside": (
        lambda X: rls.Linear().on([0, 3])(X, X),
        "columns [3] are not in X, which has 3 columns",
    ),
    "feature map": (
        lambda X: rls.FeatureMap(lambda X: X[0]).features(X),
        "FeatureMap.fn must return shape (4, r), and returned (3,)",
    ),
    "feature map, no function": (
        lambda X: rls.FeatureMap(3),
        "FeatureMap.fn must be a function, and is 3",
    ),
    "no function": (
        lambda X: rls.FunctionKernel("k"),
        "FunctionKernel.fn must be a function, and is 'k'",
    ),
    "function": (
        lambda X: rls.FunctionKernel(lambda X, Z: X)(X, X),
        "FunctionKernel.fn must return shape (4, 4), and returned (4, 3)",
    ),
    "precomputed": (
        lambda X: rls.Precomputed().diag(X),
        "Precomputed.diag needs the square kernel matrix, and X has shape (4, 3)",
    ),
    "features, degree": (
        lambda X: rls.polynomial_features(X, 0),
        "polynomial_features needs degree ≥ 1 and offset ≥ 0, and got 0 and 1.0",
    ),
}


PER_COLUMN = "width", "period"


def shapes_refused(name, n, d):
    """Shapes that would broadcast along the rows of K or its columns, and where one number is
    meant, one per column.
    """
    return [(1, 1), (n,), (n, 1), (0,), *([] if name in PER_COLUMN else [(d,), (1,)])]


def with_parameter(kernel, place, value):
    return jax.tree_util.tree_map_with_path(lambda at, leaf: value if at == place else leaf, kernel)


@EVERY
def test_parameters_of_other_shapes_are_refused(case, unchecked):
    """By name, as called and under `jax.jit`: they broadcast without a word."""
    n = 4
    X = array(rows(case, n))
    for place, value in jax.tree_util.tree_leaves_with_path(case.kernel):
        owner = functools.reduce(
            lambda kernel, key: getattr(kernel, key.name), place[:-1], case.kernel
        )
        if isinstance(owner, rls.FeatureMap | rls.FunctionKernel | Standardized):
            continue  # whose parameters are what the caller's function takes, or made by fit
        name = place[-1].name
        message = rf"^{type(owner).__name__}\.{name} must be one number{' or one per column' if name in PER_COLUMN else ''}, .*has shape"
        for shape in shapes_refused(name, n, case.columns):
            wrong = with_parameter(case.kernel, place, jnp.ones(shape, X.dtype))
            for call in (
                lambda kernel: kernel(X, X),
                lambda kernel: jax.eval_shape(rls.gram, kernel, X),
            ):
                with pytest.raises(ValueError, match=message):
                    call(wrong)
        assert np.shape(value) in ((), (case.columns,))


@pytest.mark.parametrize(("call", "message"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(call, message, unchecked):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(jnp.ones((4, 3), DTYPE))


@extend.pytree
class Wave(rls.Kernel):
    """A kernel of a user's: cos((x − z) / width), whose parameter is a length."""

    positive = length_scales = ("width",)
    width: Any

    def __call__(self, X, Z):
        return jnp.cos((X[:, :1] - Z[:, 0]) / self.width)

    def diag(self, X):
        return jnp.ones(X.shape[0], X.dtype)


@extend.pytree
class Drift(rls.Kernel):
    """A kernel of a user's with two lengths, and a part."""

    length_scales = ("slow", "fast")
    metric = "cityblock"
    slow: Any
    fast: Any
    part: rls.Kernel

    def __call__(self, X, Z):
        return rls.Laplacian(self.slow)(X, Z) * rls.Laplacian(self.fast)(X, Z) * self.part(X, Z)

    def diag(self, X):
        return self.part.diag(X)


def test_a_kernel_of_ones_own():
    """It takes part in the algebra, in `fit` and in `tune` as those of the library do."""
    X, Z = (array(np.random.default_rng(seed).normal(size=(n, 2))) for seed, n in ((0, 12), (1, 4)))
    kernel = 0.5 * Wave(array(2.0)).on(1) + rls.Linear()
    assert_close(
        kernel(X, Z),
        0.5 * np.cos((np.asarray(X)[:, 1:] - np.asarray(Z)[:, 1]) / 2) + np.asarray(X @ Z.T),
        20 * EPS,
    )
    assert rls.fit(kernel, X, X[:, 0], lams=array([0.1])).model.kernel == kernel
    with pytest.raises(ValueError, match="Wave.width must be positive and finite, and is -1.0"):
        (rls.Linear() * Wave(-1.0)).check(X)


def test_what_a_kernel_must_define():
    """The base class names the methods that a new kernel must define, and the decorator that it
    must stand under.
    """

    @extend.pytree
    class Half(rls.Kernel):
        def diag(self, X):
            return X[:, 0]

    class Undecorated(rls.Kernel):
        def __call__(self, X, Z):
            return X @ Z.T

        def diag(self, X):
            return X[:, 0]

    class Wider(rls.Gaussian):
        pass

    with pytest.raises(TypeError, match="abstract class Half .*__call__"):
        Half()
    with pytest.raises(TypeError, match="Undecorated has no explicit features"):
        Undecorated().features(array(np.ones((2, 2))))
    for kernel in (Undecorated(), Wider(1.0)):
        with pytest.raises(
            TypeError,
            match=f"{type(kernel).__name__} is no pytree: put @jaxrls.extend.pytree above its class",
        ):
            kernel.check(array(np.ones((2, 2))))


def test_length_scales_are_mapped():
    """In every part of a kernel, with the columns that the part sees; all else stays."""
    X = array(np.arange(12.0).reshape(4, 3))
    seen = []

    def note(part, name, columns):
        seen.append((type(part).__name__, name, getattr(part, name), columns.shape[1]))
        return 10 * getattr(part, name)

    kernel = (
        2.0 * rls.Gaussian(1.0).on([0, 2])
        + rls.Matern(1.5, 2.0) * rls.Periodic(3.0, 4.0)
        + Drift(5.0, 6.0, rls.RationalQuadratic(7.0)).on(0)
    )
    expected = (
        2.0 * rls.Gaussian(10.0).on([0, 2])
        + rls.Matern(1.5, 20.0) * rls.Periodic(3.0, 4.0)
        + Drift(50.0, 60.0, rls.RationalQuadratic(70.0)).on(0)
    )
    assert kernel.map_length_scales(note, X) == expected
    assert seen == [
        ("Gaussian", "width", 1.0, 2),
        ("Matern", "width", 2.0, 3),
        ("Drift", "slow", 5.0, 1),
        ("Drift", "fast", 6.0, 1),
        ("RationalQuadratic", "width", 7.0, 1),
    ]


def test_length_scales_of_the_library():
    """What is declared is a field, and K of rows that grow c-fold stays where the length scales do,
    too.
    """
    declared = {cls.__name__ for cls in kernel_types() if cls.length_scales}
    assert declared == {"ChiSquared", "Gaussian", "Laplacian", "Matern", "RationalQuadratic"}
    assert {cls.__name__ for cls in kernel_types() if cls.metric != "euclidean"} == {
        "ChiSquared",
        "Laplacian",
    }
    X = array(np.abs(np.random.default_rng(0).normal(size=(5, 3))))
    for kernel in (
        rls.Gaussian(1.25),
        rls.Laplacian(1.25),
        rls.ChiSquared(1.25),
        rls.Matern(2.5, 1.25),
        rls.RationalQuadratic(1.25, 0.5),
    ):
        larger = kernel.map_length_scales(lambda part, name, _: 4 * getattr(part, name), X)
        assert_close(larger(4 * X, 4 * X), kernel(X, X), 4 * EPS, repr(kernel))
