"""Compile the main public computations for a GPU or a TPU that is not here, and say what it will need there.

    python benchmarks/compile.py --for h100|v5e [--only path ...] [--sizes 1000 4000] [--out FOLDER] [--here]

needs the extra `compile` (`pip install 'jaxrls[compile]'`), which holds the compilers and no device. For each computation it prints the time
to compile, memory beyond arguments and results in units of the matrix it works on, calls into libraries, products below full precision, operations
and bytes, and the time that the makers' peak rates would take. It proves that programs compile and fit, and no speed. Operations and bytes are
counted from the program's shapes (counts.py). Where the device is at hand, `--here` compiles for it, runs what was compiled on drawn numbers, and says the
milliseconds beside (median of five): how far from the peak they are, and whether what was foretold of memory and calls was true.
"""

import argparse
import importlib.util
import json
import os
import re
import statistics
import time
from pathlib import Path

H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84929347584
 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
 platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 patch: 0 }
 device_description_str: "NVIDIA H100 80GB HBM3" """
# Peak rates from the makers' data sheets: operations of float32 at full precision (on the TPU six passes of bfloat16) and bytes a second.
RATES = {"h100": (67e12, 3.35e12), "v5e": (197e12 / 6, 0.82e12)}
SLOW, ABSENT = "they take minutes (--slow)", "JAX has no such reduction there"
IN_FLOAT64 = "refined, leave-one-out"  # which XLA makes of pairs of float32 on TPUs
NEEDED = {"h100": ("nvidia.cuda_nvcc", "jax_cuda12_plugin"), "v5e": ("libtpu",)}


def prepare(target: str, devices: int = 4) -> None:
    """Set what JAX and the compilers read when they start."""
    missing = [name for name in NEEDED[target] if not _installed(name)]
    if missing:
        raise SystemExit(f"compiling for {target} needs {', '.join(missing)}: pip install 'jaxrls[compile]'")
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target == "h100":
        folder = next(iter(importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations))
        os.environ["XLA_FLAGS"] = f"--xla_gpu_cuda_data_dir={folder} --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    else:
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": f"v5litepod-{devices}", "TPU_WORKER_HOSTNAMES": "localhost"}


def prepare_here(target: str) -> None:
    """Raise unless JAX has such a device."""
    import jax

    kind = jax.devices()[0].device_kind
    if target not in kind.lower().replace(" ", "").replace("v5lite", "v5e"):
        raise SystemExit(f"--here needs a device for {target}, and JAX's first is {kind}: leave it out")


def _installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def device(target: str):
    """One device of the kind, which is not here."""
    from jax.experimental.topologies import get_topology_desc

    if target == "h100":
        return get_topology_desc(platform="cuda", topology_name="h100", target_config=H100, topology="1x1x1").devices[0]
    return get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]


def computations():
    """name → (function, shapes at n, the matrix it works on, why it is left out for TPUs). d = 8, 500 landmarks, 100 λ."""
    import jax
    import jax.numpy as jnp

    import jaxrls as rls
    from jaxrls.criteria.left_out import LeaveOneOut
    from jaxrls.search.lam_search import _probe
    from jaxrls.search.problem import Problem

    d, m = 8, 500
    gaussian, lams = rls.Gaussian(1.0), jnp.geomspace(1e-3, 1e2, 100, dtype=jnp.float32)

    def data(n):
        return (n, d), (n,)

    def square(n):
        return n * n

    def path(criterion, route=None):
        def run(X, y):
            factor = rls.factorize(gaussian, X, route=route)
            return criterion(factor, y, rls.lambda_grid(factor, 100))

        return run

    def objective(width, X, y):
        return rls.loo_objective(rls.Gaussian(width), X, y, jnp.float32(0.1))

    def on_points(width, X, y, Z):
        return rls.loo_objective(rls.Gaussian(width), X, y, jnp.float32(0.1), landmarks=Z)

    def probe(X, y):
        problem = Problem.of(gaussian, X, y, criterion=LeaveOneOut())
        return _probe(problem, problem.solution("cholesky"), jnp.zeros(1, jnp.float32))

    def subset(X, y, Z):
        return rls.loo(rls.factorize(gaussian, X, landmarks=Z), y, lams)

    def refined(X, y):
        wide = [part.astype(jnp.float64) for part in (X, y, 0.1 * jnp.ones((1, 1)))]
        return rls.factorize(rls.Gaussian(1.0), wide[0], route="refined").solve(wide[1]).outcome(wide[2]).residuals

    def held_out(X, y, Z):
        return rls.holdout(rls.factorize(gaussian, X), y, lams, kernel=gaussian, validation=(Z, y[:m]))

    def linear(X, y):
        return rls.loo(rls.factorize(rls.Linear(), X, route="covariance"), y, lams)

    with_points = lambda n: (*data(n), (m, d))  # noqa: E731
    return {
        "path, leave-one-out": (path(rls.loo), data, square, SLOW),
        "path, GCV": (path(rls.gcv), data, square, SLOW),
        "path, evidence": (path(rls.log_marginal_likelihood), data, square, SLOW),
        "tridiagonal, GCV": (path(rls.gcv, "tridiagonal"), data, square, ABSENT),
        "tridiagonal, leave-one-out": (path(rls.loo, "tridiagonal"), data, square, ABSENT),
        "one λ and its slope": (probe, data, square, ""),
        "objective": (objective, lambda n: ((), *data(n)), square, ""),
        "objective and gradient": (jax.value_and_grad(objective), lambda n: ((), *data(n)), square, ""),
        IN_FLOAT64: (refined, data, square, SLOW),
        "gram": (lambda X: rls.gram(gaussian, X), lambda n: ((n, d),), square, ""),
        "K·V": (lambda X, V: rls.gram_matmul(gaussian, X, X, V), lambda n: ((n, d), (n, 10)), square, ""),
        "landmarks, leave-one-out": (subset, with_points, lambda n: n * m, SLOW),
        "landmarks, objective and gradient": (
            jax.value_and_grad(on_points),
            lambda n: ((), *with_points(n)),
            lambda n: n * m,
            "",
        ),
        "linear, leave-one-out": (linear, data, lambda n: n * d, SLOW),
    }


def seconds_of(program, arguments) -> float:
    """Median of five runs after one, on drawn numbers."""
    import jax
    import numpy as np

    rng, seconds = np.random.default_rng(0), []
    drawn = [jax.device_put(np.asarray(rng.uniform(1, 2, one.shape), one.dtype), one.sharding) for one in arguments]
    for _ in range(6):
        start = time.perf_counter()
        jax.block_until_ready(program(*drawn))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def compiled(name, n, target, here=False) -> dict:
    """One line of the report."""
    import jax
    from counts import count
    from jax.sharding import SingleDeviceSharding

    where = jax.devices()[0] if here else device(target)
    fn, shapes, matrix, _ = computations()[name]
    arguments = [jax.ShapeDtypeStruct(shape, "float32", sharding=SingleDeviceSharding(where)) for shape in shapes(n)]
    with jax.default_device(where), jax.enable_x64(name == IN_FLOAT64):
        start = time.perf_counter()
        program = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda" if target == "h100" else "tpu",)).compile()
        seconds = time.perf_counter() - start
        counted = count(fn, *arguments)
    memory, text, (rate, width) = program.memory_analysis(), program.as_text(), RATES[target]
    calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
    by_rate, by_width = counted.flops / rate, counted.bytes / width
    measured = {"milliseconds": round(1e3 * seconds_of(program, arguments), 3)} if here else {}
    return {
        "computation": name,
        "n": n,
        "compile_seconds": round(seconds, 1),
        "beyond": round(memory.temp_size_in_bytes / 4 / matrix(n), 2),
        "mebibytes": round(memory.temp_size_in_bytes / 2**20, 1),
        "calls": sorted(call for call in calls if not call.startswith(("Sharding", "X64", "AllocateBuffer", "__cub"))),
        "below_full_precision": counted.below + below_full(text),
        "flops": counted.flops,
        "bytes": counted.bytes,
        "peak_milliseconds": round(1e3 * max(by_rate, by_width), 3),
        "bound_by": "operations" if by_rate > by_width else "memory",
        **measured,
    }


def below_full(text: str) -> int:
    """Products in a compiled program that are made at less than float32's full precision; cuBLAS solves triangular systems in full."""
    made = re.compile(r' f(16|32|64)\[[^=]*\b(dot|convolution)\(|custom_call_target="__cublas\$(lt\$matmul|gemm)')
    products = [line for line in text.splitlines() if made.search(line)]
    return sum(not re.search(r"highest", line, re.IGNORECASE) for line in products)


def table(lines: list[dict]) -> str:
    """The report as Markdown."""
    here = all("milliseconds" in one for one in lines)
    head = "| computation | n | compile, s | memory beyond, × matrix | MiB | library calls | below full precision | Gflop | GB | at peak, ms | bound by |"
    rows = [
        f"| {one['computation']} | {one['n']} | {one['compile_seconds']} | {one['beyond']} | {one['mebibytes']} | {', '.join(one['calls']) or '–'} "
        f"| {one['below_full_precision']} | {one['flops'] / 1e9:.3g} | {one['bytes'] / 1e9:.3g} | {one['peak_milliseconds']:.3g} | {one['bound_by']} |"
        + (f" {one['milliseconds']:.3g} |" if here else "")
        for one in lines
    ]
    return "\n".join([head + " measured, ms |" * here, "|" + "---|" * (11 + here), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="target", choices=RATES, required=True)
    parser.add_argument("--only", nargs="*", help="names of computations, or parts of them")
    parser.add_argument("--sizes", nargs="*", type=int)
    parser.add_argument("--slow", action="store_true", help="also what takes minutes to compile for a TPU: eigendecompositions")
    parser.add_argument("--here", action="store_true", help="the device is at hand: compile for it, and run")
    parser.add_argument("--out", help="folder for the report, as Markdown and JSON")
    args = parser.parse_args()
    prepare_here(args.target) if args.here else prepare(args.target)
    names = [name for name in computations() if not args.only or any(part in name for part in args.only)]
    if args.target == "v5e":
        for why in (ABSENT,) if args.slow else (ABSENT, SLOW):
            left_out = [name for name in names if computations()[name][3] == why]
            names = [name for name in names if name not in left_out]
            print(f"left out, as {why}: {', '.join(left_out)}")
    lines = []
    for name in names:
        for n in args.sizes or ((1000, 10_000) if args.target == "h100" else (1024, 4096)):
            lines.append(compiled(name, n, args.target, args.here))
            print(json.dumps(lines[-1], ensure_ascii=False), flush=True)
    print(table(lines))
    if args.out:
        stem = Path(args.out) / f"{'run' if args.here else 'compile'}_{args.target}"
        stem.with_suffix(".json").write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(table(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
