"""K·V in one kernel, here by Warp's compiler for CPUs: against formulas in NumPy, and its
derivatives against those of blocks; what it does not take; and compiled for GPUs that are not here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support import ANY_PRECISION, DTYPE, EPS, array, assert_close

import jaxrls as rls
from jaxrls.core.data import kernel_times, times_in_blocks
from jaxrls.fused import products

pytestmark = [pytest.mark.slow, ANY_PRECISION]
warp = pytest.importorskip("warp", reason="needs the extra `fused`", exc_type=ImportError)

WIDTH = 1.7


def of_squares(profile):
    """A kernel of the squared distance in widths."""
    return lambda gaps: profile(np.sum((gaps / WIDTH) ** 2, axis=-1))


KERNELS = {
    "gaussian": (rls.Gaussian(WIDTH), of_squares(lambda q: np.exp(-q / 2))),
    "matern 1": (rls.Matern(0.5, WIDTH), of_squares(lambda q: np.exp(-np.sqrt(q)))),
    "matern 3": (
        rls.Matern(1.5, WIDTH),
        of_squares(lambda q: (1 + np.sqrt(3 * q)) * np.exp(-np.sqrt(3 * q))),
    ),
    "matern 5": (
        rls.Matern(2.5, WIDTH),
        of_squares(lambda q: (1 + np.sqrt(5 * q) + 5 * q / 3) * np.exp(-np.sqrt(5 * q))),
    ),
    "rational": (
        rls.RationalQuadratic(WIDTH, alpha=0.7),
        of_squares(lambda q: (1 + q / 1.4) ** -0.7),
    ),
    "laplacian": (
        rls.Laplacian(WIDTH),
        lambda gaps: np.exp(-np.sum(np.abs(gaps) / WIDTH, axis=-1)),
    ),
}
# Rows of X and Z, columns, targets: ragged, in two shares and one; in parts.
SIZES = [(37, 4101, 3, 1), (6, 9, 8, 33), (5, 1, 32, 9)]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """As on a CUDA device, where it may run too."""
    monkeypatch.setattr(products, "PLATFORMS", {"cpu", "gpu"})


def data(n=11, m=7, d=3, t=2, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(array(rng.normal(size=size)) for size in ((n, d), (m, d), (m, t)))


def truth(value, X, Z, V):
    X, Z, V = (np.asarray(part, float) for part in (X, Z, V))
    return value(X[:, None] - Z) @ V


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_its_formula(name):
    kernel, value = KERNELS[name]
    for size in SIZES:
        X, Z, V = data(*size)
        got = jax.jit(products.fused_times)(kernel, X, Z, V)
        want = truth(value, X, Z, V)
        # Profiles are rounded by some eps, and sums of m numbers by their root.
        bound = 60 * EPS * np.sqrt(size[1])
        assert got.dtype == DTYPE
        assert_close(got, want, bound)


def test_widths_columns_multiples_and_sums():
    X, Z, V = data(d=4)
    width = np.array([0.5, 1.0, 2.0, 4.0])
    kernel = 0.3 * rls.Gaussian(array(width)) + rls.Laplacian(2.0).on([3, 1])

    def value(gaps):
        return 0.3 * np.exp(-0.5 * np.sum((gaps / width) ** 2, -1)) + np.exp(
            -0.5 * np.abs(gaps[..., [3, 1]]).sum(-1)
        )

    got = products.fused_times(kernel, X, Z, V[:, 0])
    assert_close(got, truth(value, X, Z, V[:, 0]), 100 * EPS)


def test_derivatives_are_those_of_blocks():
    """In kernel, X, Z and V; backward and forward, under vmap and shard_map."""
    args = KERNELS["rational"][0], *data()

    def value(times):
        return lambda *args: jnp.sum(jnp.sin(times(*args)))

    everywhere = (0, 1, 2, 3)
    got, want = (
        jax.jit(jax.grad(value(times), everywhere))(*args)
        for times in (kernel_times, times_in_blocks)
    )
    jax.tree.map(lambda got, want: assert_close(got, want, 1e3 * EPS), got, want)
    tangents = jax.tree.map(jnp.ones_like, args)
    got, want = (
        jax.jvp(lambda *args: times(*args), args, tangents)[1]  # noqa: B023
        for times in (kernel_times, times_in_blocks)
    )
    assert_close(got, want, 1e3 * EPS)

    kernel, X, Z, V = args
    some = jnp.stack([X, 2 * X])
    got = jax.jit(jax.vmap(lambda X: kernel_times(kernel, X, Z, V)))(some)
    want = [times_in_blocks(kernel, X, Z, V) for X in some]
    assert_close(got, np.stack(want), 100 * EPS)

    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    by_rows = jax.shard_map(
        lambda X: kernel_times(kernel, X, Z, V), mesh=mesh, in_specs=P("rows"), out_specs=P("rows")
    )
    assert_close(jax.jit(by_rows)(X), times_in_blocks(kernel, X, Z, V), 100 * EPS)


def test_what_it_does_not_take_goes_by_blocks():
    X, Z, V = data()
    gaussian, wide = rls.Gaussian(1.0), data(d=products.MOST_COLUMNS + 1)
    for kernel in (rls.Linear(), gaussian * rls.Linear(), gaussian + rls.Linear()):
        assert products.fused_times(kernel, X, Z, V) is None
        assert_close(kernel_times(kernel, X, Z, V), kernel(X, Z) @ V, 100 * EPS)
    assert products.fused_times(gaussian, *wide) is None
    few = gaussian.on([0, 2])
    assert_close(products.fused_times(few, *wide), few(wide[0], wide[1]) @ wide[2], 100 * EPS)
    assert products.fused_times(gaussian, X, Z, jnp.ones((len(Z), 1), int)) is None


def test_fits_and_predictions_take_it(monkeypatch):
    taken, product = [], products._product
    monkeypatch.setattr(
        products, "_product", lambda *args: taken.append(args[1].shape[0]) or product(*args)
    )
    X, Z, V = data(60, 20)
    fit = rls.fit(rls.Gaussian(1.0), X, jnp.sin(X[:, 0]), lams=[0.1], solver=rls.Iterative(20))
    fit.predict(Z)
    assert 60 in taken and any(20 <= rows < 60 for rows in taken)


def test_a_version_that_fails_is_said_once(monkeypatch):
    def fails():
        raise RuntimeError("no compiler")

    monkeypatch.setattr(products, "_times", fails)
    products._works.cache_clear()
    try:
        with pytest.warns(UserWarning, match="in blocks, as Warp fails: no compiler"):
            assert products.fused_times(rls.Gaussian(1.0), *data()) is None
        assert products.fused_times(rls.Gaussian(1.0), *data()) is None
    finally:
        products._works.cache_clear()


@pytest.mark.parametrize("arch", [80, 90])
def test_it_compiles_for_gpus(arch, tmp_path):
    from jaxrls.fused.kernels import product_kernel

    for profile, dtype, d, t in (("exponential", "float32", 8, 9), ("matern_5", "float64", 3, 1)):
        module = product_kernel(profile, "squared", dtype, d, t).module
        warp.compile_aot_module(
            module, device=None, arch=arch, use_ptx=True, module_dir=str(tmp_path)
        )
    code = [path.read_text() for path in tmp_path.rglob("*.ptx")]
    assert len(code) == 2 and all(f".target sm_{arch}" in text for text in code)
