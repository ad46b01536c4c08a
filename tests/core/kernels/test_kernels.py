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
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from jax.flatten_util import ravel_pytree
from sklearn.metrics import pairwise
from support import DTYPE, EPS, FLOAT64, array, assert_close, differences, gram, refused, wide

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.kernels.kernel import Standardized
from jaxrls.core.support.pytrees import is_registered

WIDTHS = np.array([0.8, 1.5, 2.5])


def lift(params, X):
    return jnp.concatenate([X, params * X[:, :1] ** 2], axis=1)


def cosine(params, X, Z):
    return params**2 * jnp.cos(X[:, :1] - Z[:, 0])


def distance(x, z, width=1.0):
    return np.sqrt((((x - z) / width) ** 2).sum())


def gaussian(width):
    return lambda x, z: math.exp(-(distance(x, z, width) ** 2) / 2)


def laplacian(width):
    return lambda x, z: math.exp(-(np.abs(x - z) / width).sum())


def matern52(width):
    def pair(x, z):
        r = math.sqrt(5) * distance(x, z, width)
        return (1 + r + r**2 / 3) * math.exp(-r)

    return pair


def matern32(x, z):
    r = math.sqrt(3) * distance(x, z, 1.75)
    return (1 + r) * math.exp(-r)


def chi_squared(x, z):
    return math.exp(-sum((a - b) ** 2 / (a + b) / w for a, b, w in zip(x, z, WIDTHS, strict=True)))


@dataclass
class Case:
    """A kernel, its formula for one pair of rows, and what holds for it: `coincident` is how well
    differences tell second derivatives where rows coincide, None where there are none.
    """

    kernel: Any
    pair: Any
    stationary: bool = False
    coincident: float | None = 1e-7
    columns: int = 3
    domain: Any = np.positive


NARROW, EACH = rls.Gaussian(1.25), array(WIDTHS)
CENTRED = Standardized(NARROW, array(np.array([0.5, -1.0, 2.0])), EACH)
CASES = {
    "linear": Case(rls.Linear(), lambda x, z: x @ z),
    "polynomial": Case(rls.Polynomial(3, 0.75), lambda x, z: (x @ z + 0.75) ** 3),
    "gaussian": Case(NARROW, gaussian(1.25), True),
    "gaussian, a width per column": Case(rls.Gaussian(EACH), gaussian(WIDTHS), True),
    "gaussian of columns at their centre and scale": Case(CENTRED, gaussian(1.25 * WIDTHS), True),
    "laplacian, a width per column": Case(rls.Laplacian(EACH), laplacian(WIDTHS), True, None),
    "matern 1/2": Case(
        rls.Matern(0.5, 1.75), lambda x, z: math.exp(-distance(x, z, 1.75)), True, None
    ),
    "matern 3/2": Case(rls.Matern(1.5, 1.75), matern32, True, 1e-2),
    "matern 5/2, a width per column": Case(rls.Matern(2.5, EACH), matern52(WIDTHS), True),
    "rational quadratic": Case(
        rls.RationalQuadratic(1.25, alpha=0.75),
        lambda x, z: (1 + distance(x, z, 1.25) ** 2 / 1.5) ** -0.75,
        True,
    ),
    "periodic": Case(
        rls.Periodic(period=2.5, width=EACH),
        lambda x, z: math.exp(-2 * ((np.sin(np.pi * (x - z) / 2.5) / WIDTHS) ** 2).sum()),
        True,
    ),
    "chi-squared, a width per column": Case(rls.ChiSquared(EACH), chi_squared, domain=np.abs),
    "constant": Case(rls.Constant(0.75), lambda x, z: 0.75),
    "tanimoto": Case(rls.Tanimoto(), lambda x, z: x @ z / (x @ x + z @ z - x @ z)),
    "levels": Case(rls.Levels(), lambda x, z: float((x == z).all()), coincident=None),
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
    "a sum with a multiple of a product, on columns": Case(
        rls.Linear() + 0.25 * (rls.Polynomial(2) * NARROW.on([0, 2])),
        lambda x, z: x @ z + 0.25 * (x @ z + 1) ** 2 * gaussian(1.25)(x[[0, 2]], z[[0, 2]]),
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
QUICK = "polynomial", "matern 5/2, a width per column"
FEW_QUICK = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)


@jax.jit
def everything(kernel, X, Z):
    return kernel(X, Z), kernel(Z, X), kernel(X, X), kernel.diag(X)


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
        *(
            part
            for child in children
            if isinstance(child, rls.extend.Kernel)
            for part in parts(child)
        ),
    ]


def subclasses(cls):
    return {cls} | {c for child in cls.__subclasses__() for c in subclasses(child)}


def kernel_types():
    """Every kernel class of the library but the bases of others; those that its examples define
    stand in no module.
    """
    own = {
        c
        for c in subclasses(rls.extend.Kernel)
        if c.__module__.startswith("jaxrls.") and is_registered(c) and not c.__subclasses__()
    }
    return {c for c in own if getattr(sys.modules[c.__module__], c.__name__, None) is c}


def test_every_kernel_of_the_library_is_in_the_list():
    listed = {type(part) for case in CASES.values() for part in parts(case.kernel)}
    missing = kernel_types() - listed - {rls.Precomputed}
    assert not missing, f"add these kernels to CASES: {sorted(c.__name__ for c in missing)}"


@EVERY
def test_formula_and_gram_matrix(case):
    """Pair by pair, symmetric, positive semidefinite, with `diag` on the diagonal, and equal rows
    of X make equal rows of K, to the last bit.
    """
    X, Z = rows(case, 12), rows(case, 7, seed=1)
    X[7:10] = X[:3]
    tolerance = 50 * EPS * max(1, (X**2).sum(1).max())
    arrays = everything(case.kernel, array(X), array(Z))
    assert {a.dtype for a in arrays} == {np.dtype(DTYPE)}
    across, back, K, diagonal = (np.asarray(a, np.float64) for a in arrays)
    assert_close(across, naive(case.pair, X, Z), tolerance, "k(X, Z)")
    assert_close(back, across.T, tolerance, "symmetry")
    assert_close(K, naive(case.pair, X, X), tolerance, "k(X, X)")
    assert_close(diagonal, np.diag(naive(case.pair, X, X)), tolerance, "diag")
    s = np.linalg.eigvalsh((K + K.T) / 2)
    assert s[0] >= -12 * EPS * s[-1]
    rounding = 0 if case.stationary else 8 * EPS
    assert_close(np.diagonal(K), diagonal, rounding, "diagonal")
    assert_close(K[[0, 1, 2], [7, 8, 9]], diagonal[:3], rounding, "equal rows")
    assert_close(K[7:10], K[:3], rounding, "equal rows")


@FLOAT64
@FEW_QUICK
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

    def first(flat, Z):
        value_and_slope = jax.value_and_grad(value)(flat, Z)
        return value_and_slope[1], value_and_slope

    both = jax.jit(jax.jacfwd(first, has_aux=True))
    for what, tolerance, points in (
        ("apart", 1e-7, Z),
        ("where rows coincide", case.coincident, Z.at[:4].set(X)),
    ):
        hessian, (_, gradient) = both(start, points)
        assert bool(jnp.isfinite(gradient).all() & jnp.isfinite(hessian).all()), what
        if tolerance is not None:
            moved = differences(lambda flat, Z=points: np.append(*both(flat, Z)[1]), start)
            assert_close(gradient, moved[:, 0], tolerance, f"gradient, {what}")
            assert_close(hessian, moved[:, 1:], tolerance, f"Hessian, {what}")


def normal(seed, *shape):
    return array(np.random.default_rng(seed).normal(size=shape))


def test_features_of_the_algebra():
    """Sums, multiples and columns of explicit kernels stay explicit; a product or an implicit part
    does not.
    """
    X, line = normal(0, 9, 3), rls.FeatureMap(lambda X: X**2)
    kernel = 2.0 * rls.Linear().on([0, 2]) + 0.5 * (line + rls.Linear()) + rls.Constant(4.0)
    assert kernel.num_features(3, X.dtype) == 9
    Phi = np.asarray(kernel.features(X))
    assert_close(Phi @ Phi.T, kernel(X, X), 20 * EPS, "ΦΦᵀ")
    for implicit in (kernel + NARROW, kernel * rls.Linear(), NARROW, 2.0 * rls.Polynomial(2)):
        assert implicit.num_features(3, X.dtype) is None


def test_algebra():
    """Numbers on either side, and columns by one index, several or a range."""
    X, Z, a = normal(0, 9, 3), normal(1, 6, 3), rls.Gaussian(1.5)
    whole, on = np.asarray(gram(a, X, Z)), lambda c: gram(a, X[:, c], Z[:, c])
    for combined, expected in (
        (3 * a, 3 * whole),
        (a * 3.0, 3 * whole),
        (np.float64(0.5) * a, whole / 2),
        (array(0.5) * a, whole / 2),
        (a.on(1), on([1])),
        (a.on(range(1, 3)) + a.on(-3), on([1, 2]) + on([0])),
        (a.on(slice(0, 3, 2)) + a.on(slice(-2, None)), on([0, 2]) + on([1, 2])),
        (a.on(slice(1)) + a.on(slice(-3, -1)), on([0]) + on([0, 1])),
        (a.on(np.array([True, False, True])) + a.on([False, True, False]), on([0, 2]) + on([1])),
    ):
        assert_close(gram(combined, X, Z), expected, 4 * EPS, repr(combined))
    refused(
        *((added, ".") for added in (lambda: a + 1, lambda: 1 + a, lambda: a * "b")),
        (lambda: a * jnp.ones(2), "."),
        error=TypeError,
    )
    K, words = rls.Precomputed(), r"Precomputed\(\) has no sums, .*: compute them into K, such as"
    combine = lambda: K + a, lambda: a * K, lambda: 2.0 * K, lambda: K.on(0)
    refused(*((combined, words) for combined in combine))


@pytest.mark.slow
def test_columns_by_name():
    """In sums and within each other, of tables and of files."""
    X, Y = np.asarray(normal(0, 9, 3)), np.asarray(normal(1, 9))
    table, a = pd.DataFrame(X, columns=["u", "v", "w"]), rls.Gaussian(1.5)
    named = a.on("w") + 2 * a.on(["v", "w"]).on(pd.Index(["w", "v"]))
    wanted = a.on(2) + 2 * a.on([2, 1])
    options = {"lams": [0.1], "standardize": True}
    fit = rls.fit(named.on(["u", "w", "v"]), table, Y, **options)
    assert_close(fit.error, rls.fit(wanted, X, Y, **options).error, 90 * EPS, "fit")
    shares = np.full((1, 2), 0.5)
    both = [
        rls.several.fit_kernels([a.on(n), a.on(c)], F, Y[:, None], shares=shares, lams=[0.1])
        for n, c, F in (("u", "w", table), (0, 2, X))
    ]
    assert_close(both[0].predict(X), both[1].predict(X), 90 * EPS, "fit_kernels")
    refused(
        (lambda: rls.fit(a.on("q"), table, Y), "include 'q', which 0 of its .*: 'u', 'v', 'w'"),
        (lambda: rls.fit(a.on("q"), X, Y), "column 'q' goes by name, .*: give its number"),
        (lambda: rls.fit(a.on("u").on(["v", "w"]), table, Y), "include 'u'.*: 'v', 'w'"),
    )


def test_polynomial_features():
    X, features = normal(0, 9, 3), jax.jit(rls.extend.polynomial_features, static_argnums=(1, 2))
    for degree, offset in ((1, 0.0), (2, 0.75), (4, 2.0)):
        Phi = np.asarray(features(X, degree, offset))
        assert Phi.shape[1] == math.comb(2 + bool(offset) + degree, degree)
        K = (np.asarray(X) @ np.asarray(X).T + offset) ** degree
        assert_close(Phi @ Phi.T, K, 50 * EPS, f"degree {degree}, offset {offset}")
    line = features(X, 1)
    assert_close(line, np.hstack([np.ones((9, 1)), X]), 0, "the design matrix (1, x)")


def test_zeros_in_rows():
    """As scikit-learn has them: a row of zeros is at right angles to all, and a column that is 0 in
    both rows adds no distance.
    """
    X = wide([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 2.0]])
    cosines = pairwise.cosine_similarity(X)

    @jax.jit
    def both(kernel, X):
        return (kernel(X, X), kernel.diag(X)), jax.jacobian(lambda X: kernel(X, X))(X)

    for kernel, expected, ones in (
        (rls.Cosine(), cosines, [0.0, 1.0, 1.0]),
        (rls.ChiSquared(1.0), pairwise.chi2_kernel(X), np.ones(3)),
    ):
        (K, diagonal), slopes = both(kernel, array(X))
        assert_close(K, expected, 4 * EPS)
        assert_close(diagonal, ones, 4 * EPS)
        assert bool(jnp.isfinite(slopes).all())
    for unit in (1e-12, 1e12):
        assert_close(everything(rls.Cosine(), array(unit * X), array(X))[0], cosines, 4 * EPS)


X = jnp.ones((4, 3), DTYPE)
MESSAGES = {
    "Polynomial.degree must be a whole number of at least 1, and is 0": lambda: rls.Polynomial(0),
    "Polynomial.offset must be finite and not negative, and is -1.0": lambda: rls.Polynomial(
        2, -1.0
    ).check(X),
    **{
        f"Matern.nu must be 0.5, 1.5 or 2.5, and is {nu!r}: Gaussian is the limit of large ν": (
            lambda nu=nu: rls.Matern(nu, 1.0)
        )
        for nu in (1.0, "1.5")
    },
    "ChiSquared is for X ≥ 0, such as counts, and the smallest input is -1.0: leave X uncentred": (
        lambda: rls.ChiSquared(1.0).on(0).check(-X)
    ),
    "Gaussian.width must be positive and finite, and is 0.0": lambda: rls.Gaussian(0.0).check(X),
    "Gaussian.width must be positive": lambda: (rls.Linear() + 2 * rls.Gaussian(-1.0)).check(X),
    "Sobolev takes one column, and X has 3: use Sobolev().on(j)": lambda: rls.Sobolev()(X, X),
    "Sobolev lives on [0, ∞), and the smallest input is -1.0: shift the column": lambda: (
        rls.Sobolev().on(0).check(X - 2)
    ),
    "columns must be one index or several, such as 0, [0, 2] or range(3), and is []": lambda: (
        rls.Linear().on([])
    ),
    "a mask or a slice with an end": lambda: rls.Linear().on(slice(1, None)),
    "columns must be one index": lambda: rls.Linear().on(slice(0, -1)),
    "range(3), and is array([False, False])": lambda: rls.Linear().on(np.zeros(2, bool)),
    "column 'a' goes by name": lambda: rls.Linear().on(["a"])(X, X),
    "columns [3] are not in X, which has 3 columns": lambda: rls.Linear().on([0, 3])(X, X),
    "FeatureMap.fn must return shape (4, r), and returned (3,)": lambda: rls.FeatureMap(
        lambda X: X[0]
    ).features(X),
    "FeatureMap.fn must be a function, and is 3": lambda: rls.FeatureMap(3),
    "FunctionKernel.fn failed: it takes whole matrices, (4, 3) and (4, 3), and not two rows": (
        lambda: rls.FunctionKernel(lambda x, z: x @ z)(X, X)
    ),
    "FunctionKernel.fn must return shape (4, 4), and returned (): it takes whole matrices": (
        lambda: rls.FunctionKernel(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2)))(X, X)
    ),
    "and is a function: a function of two matrices is a kernel as FunctionKernel(fn)": (
        lambda: rls.fit(lambda X, Z: X @ Z.T, X, X)
    ),
    "FunctionKernel.fn must be a function, and is 'k'": lambda: rls.FunctionKernel("k"),
    "FunctionKernel.fn must return shape (4, 4), and returned (4, 3)": lambda: rls.FunctionKernel(
        lambda X, Z: X
    )(X, X),
    "Precomputed.diag needs the square kernel matrix, and X has shape (4, 3)": lambda: (
        rls.Precomputed().diag(X)
    ),
    "polynomial_features needs degree ≥ 1 and offset ≥ 0, and got 0 and 1.0": lambda: (
        rls.extend.polynomial_features(X, 0)
    ),
}


def test_messages():
    refused(*((call, re.escape(words)) for words, call in MESSAGES.items()))


PER_COLUMN = "width", "period"


def shapes_refused(name, n, d):
    """Shapes that would broadcast along the rows of K or its columns, and where one number is
    meant, one per column.
    """
    return [(1, 1), (n,), (n, 1), (0,), *([] if name in PER_COLUMN else [(d,), (1,)])]


@EVERY
def test_parameters_of_other_shapes_are_refused(case):
    """By name, as called and under `jax.jit`: they broadcast without a word."""
    n = 4
    X = array(rows(case, n))
    for place, value in jax.tree_util.tree_leaves_with_path(case.kernel):
        owner = functools.reduce(lambda part, key: getattr(part, key.name), place[:-1], case.kernel)
        if isinstance(owner, rls.FeatureMap | rls.FunctionKernel | Standardized):
            continue  # whose parameters are what the caller's function takes, or made by fit
        name = place[-1].name
        each = " or one per column" if name in PER_COLUMN else ""
        message = rf"^{type(owner).__name__}\.{name} must be one number{each}, .*has shape"
        for shape in shapes_refused(name, n, case.columns):
            wrong = jax.tree_util.tree_map_with_path(
                lambda at, leaf, place=place, shape=shape: jnp.ones(shape) if at == place else leaf,
                case.kernel,
            )
            refused(
                (functools.partial(wrong, X, X), message),
                (functools.partial(jax.eval_shape, rls.extend.gram, wrong, X), message),
            )
        assert np.shape(value) in ((), (case.columns,))


def test_what_a_kernel_must_define():
    """The base class names the methods that a new kernel must define, and the decorator that it
    must stand under.
    """

    @extend.pytree
    class Half(rls.extend.Kernel):
        def diag(self, X):
            return X[:, 0]

    class Undecorated(rls.extend.Kernel):
        def __call__(self, X, Z):
            return X @ Z.T

        def diag(self, X):
            return X[:, 0]

    class Wider(rls.Gaussian):
        pass

    no_pytree = "is no pytree: put @jaxrls.extend.pytree above its class"
    refused(
        (lambda: Half()(X, X), "Half has no explicit features: use gram .* or __call__ and diag"),
        (lambda: Undecorated().check(X), f"Undecorated {no_pytree}"),
        (lambda: Wider(1.0).check(X), f"Wider {no_pytree}"),
        error=TypeError,
    )


def test_which_kernels_take_sparse_rows():
    """Those made of kernels that do; not one with values of its own, unless it says so."""

    @extend.pytree
    class Squared(rls.Gaussian):
        def __call__(self, X, Z):
            return jnp.matmul(X, Z.T) ** 2

    @extend.pytree
    class Narrow(rls.Gaussian):
        pass

    taken = [rls.Gaussian(1.0), Narrow(1.0), 2.0 * rls.Linear().on(0), rls.Linear() * rls.Linear()]
    dense = [Squared(1.0), rls.Levels() + rls.Linear(), rls.Periodic(1.0), 2.0 * Squared(1.0)]
    assert all(kernel.keeps_sparse() for kernel in taken)
    assert not any(kernel.keeps_sparse() for kernel in dense)


def test_rows_that_a_kernel_transforms_come_as_any_rows():
    """Sparse ones for standardized columns, lists for some columns."""
    X = np.random.default_rng(0).normal(size=(20, 3)).astype(DTYPE)
    fit = rls.fit(rls.Linear(), X, X[:, 0], standardize=True, lams=[0.1])
    assert_close(fit.predict(scipy.sparse.csr_array(X[:5])), fit.predict(X[:5]), 20 * EPS)
    start = lambda X: rls.extend.start_from_data(rls.Gaussian(array(1.0)).on([0]), X)
    assert_close(start(X.tolist()).kernel.width, start(X).kernel.width, 4 * EPS)


def test_standardized_levels_are_found_whatever_the_number_of_new_rows():
    """They are those of the columns as they are. A single row did not find its level: XLA divides
    many rows by another operation, which differs in the last bit.
    """
    rng = np.random.default_rng(0)
    X = rng.integers(0, 30, size=(60, 1)).astype(DTYPE)
    y = rng.normal(size=60).astype(DTYPE)
    as_given, standardized = (
        rls.fit(rls.Levels(), X, y, lams=[0.1], standardize=standardize)
        for standardize in (False, True)
    )
    want = as_given.predict(X)
    assert_close(standardized.predict(X), want, 100 * EPS)
    one_at_a_time = [standardized.predict(X[i : i + 1]) for i in range(len(X))]
    assert_close(np.concatenate(one_at_a_time), want, 100 * EPS)


@FLOAT64
def test_levels_that_float32_rounds_are_asked_for_in_float64():
    """They would not be found, and new rows be predicted without their level."""
    X = np.random.default_rng(0).integers(0, 5, size=(30, 2)).astype(np.float64)
    kernel = rls.Linear().on([0]) + 0.5 * rls.Levels().on([1])
    whole, halves, tenths = (
        (rls.fit(kernel, X * [0.1, unit], X[:, 1], lams=[0.1], standardize=True), X * [0.1, unit])
        for unit in (1.0, 0.5, 0.1)
    )
    for fit, rows in (whole, halves):
        assert_close(fit.predict(np.float32(rows)), fit.predict(rows), 1e-6)
    fit, rows = tenths
    narrow, words = np.float32(rows), "dtype float32, which rounds levels of the fit such as 0"
    mixed = pd.DataFrame({"a": rows[:, 0], "b": narrow[:, 1]})
    table = pa.table({"a": narrow[:, 0], "b": narrow[:, 1]})
    for new in (narrow, jnp.asarray(narrow), pd.DataFrame(narrow), mixed, table):
        refused((lambda new=new: fit.predict(new), f"X has {words}"))
    held = {"criterion": rls.holdout(narrow, X[:, 1]), "lams": [0.1]}
    refused(
        (lambda: rls.fit(kernel, rows, X[:, 1], **held), f"X of holdout has {words}"),
        (lambda: rls.fit(kernel, rows, X[:, 1], landmarks=narrow[:9]), f"landmarks has {words}"),
    )
    other = pd.DataFrame({"a": narrow[:, 0], "b": rows[:, 1]})  # whose levels are not rounded
    assert_close(fit.predict(other), fit.predict(rows), 1e-6)
    sides = rls.two_sided.fit_kronecker(
        rls.Linear(), X[:3, :1], kernel, rows[:8], np.outer(X[:3, 0], X[:8, 1]), lams=[0.1]
    )
    several = rls.several.fit_kernels(
        [rls.Linear(), rls.Levels().on([1])], rows, X[:, 1], shares=[[0.5, 0.5]], lams=[0.1]
    )
    refused(
        (lambda: sides.predict(X[:3, :1], narrow[:8]), f"X2 has {words}"),
        (lambda: several.predict(narrow), f"X has {words}"),
    )
