"""Compile every public computation that is one program for a GPU or a TPU that is not here, and say
what it will need there.

    python benchmarks/compile.py --for h100|v5e [--only path ...] [--sizes 1000 4000] [--out FOLDER]
    [--here]

needs the extra `compile` (`pip install 'jaxrls[compile]'`), which holds the compilers and no
device. For each computation (computations.py) it prints the time to compile, memory beyond
arguments and results in units of the matrix it works on, calls into libraries and products below
full precision. It proves that programs compile and fit, and no speed. Where the device is at hand,
`--here` compiles for it, runs what was compiled on drawn numbers, and says the milliseconds beside
(median of five), and whether what was foretold of memory and calls was true."""

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
SIZES = {"h100": (1000, 4000, 10_000), "v5e": (256, 1024)}
QUICK = 256  # rows up to which the TPU's library has an eigendecomposition of its own, and the program compiles in seconds
NEEDED = {"h100": ("nvidia.cuda_nvcc", "jax_cuda12_plugin"), "v5e": ("libtpu",)}


def prepare(target: str, devices: int = 4) -> None:
    """Set what JAX and the compilers read when they start."""
    missing = [name for name in NEEDED[target] if not _installed(name)]
    if missing:
        raise SystemExit(
            f"compiling for {target} needs {', '.join(missing)}: pip install 'jaxrls[compile]'"
        )
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target == "h100":
        folder = next(iter(importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations))
        os.environ["XLA_FLAGS"] = (
            f"--xla_gpu_cuda_data_dir={folder} --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
        )
    else:
        os.environ |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": f"v5litepod-{devices}",
            "TPU_WORKER_HOSTNAMES": "localhost",
        }


def prepare_here(target: str) -> None:
    """Raise unless JAX has such a device."""
    import jax

    kind = jax.devices()[0].device_kind
    if target not in kind.lower().replace(" ", "").replace("v5lite", "v5e"):
        raise SystemExit(
            f"--here needs a device for {target}, and JAX's first is {kind}: leave it out"
        )


def _installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def device(target: str):
    """One device of the kind, which is not here."""
    from jax.experimental.topologies import get_topology_desc

    if target == "h100":
        return get_topology_desc(
            platform="cuda", topology_name="h100", target_config=H100, topology="1x1x1"
        ).devices[0]
    return get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]


def seconds_of(program, arguments) -> float:
    """Median of five runs after one, on drawn numbers."""
    import jax
    import numpy as np

    rng, seconds = np.random.default_rng(0), []
    drawn = jax.tree.map(
        lambda one: jax.device_put(
            np.asarray(rng.uniform(1, 2, one.shape), one.dtype), one.sharding
        ),
        arguments,
    )
    for _ in range(6):
        start = time.perf_counter()
        jax.block_until_ready(program(*drawn))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def compiled(name, n, target, here=False) -> dict:
    """One line of the report."""
    import jax
    from computations import IN_FLOAT64, computations
    from jax.sharding import SingleDeviceSharding

    where = jax.devices()[0] if here else device(target)
    one = computations()[name]
    fn, matrix = one.fn, one.matrix
    arguments = jax.tree.map(
        lambda part: jax.ShapeDtypeStruct(
            part.shape, part.dtype, sharding=SingleDeviceSharding(where)
        ),
        one.arguments(n),
    )
    with jax.default_device(where), jax.enable_x64(name == IN_FLOAT64):
        start = time.perf_counter()
        program = (
            jax.jit(fn)
            .trace(*arguments)
            .lower(lowering_platforms=("cuda" if target == "h100" else "tpu",))
            .compile()
        )
        seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
    measured = {"milliseconds": round(1e3 * seconds_of(program, arguments), 3)} if here else {}
    return {
        "computation": name,
        "n": n,
        "compile_seconds": round(seconds, 1),
        "beyond": round(memory.temp_size_in_bytes / 4 / matrix(n), 2),
        "mebibytes": round(memory.temp_size_in_bytes / 2**20, 1),
        "calls": sorted(
            call
            for call in calls
            if not call.startswith(("Sharding", "X64", "AllocateBuffer", "__cub"))
        ),
        "below_full_precision": below_full(text),
        **measured,
    }


def below_full(text: str) -> int:
    """Products in a compiled program that are made at less than float32's full precision; cuBLAS
    solves triangular systems in full.
    """
    made = re.compile(
        r' f(16|32|64)\[[^=]*\b(dot|convolution)\(|custom_call_target="__cublas\$(lt\$matmul|gemm)'
    )
    products = [line for line in text.splitlines() if made.search(line)]
    return sum(not re.search(r"highest", line, re.IGNORECASE) for line in products)


def table(lines: list[dict]) -> str:
    """The report as Markdown."""
    here = all("milliseconds" in one for one in lines)
    head = "| computation | n | compile, s | memory beyond, × matrix | MiB | library calls | below full precision |"
    rows = [
        f"| {one['computation']} | {one['n']} | {one['compile_seconds']} | {one['beyond']} | {one['mebibytes']} | {', '.join(one['calls']) or '–'} "
        f"| {one['below_full_precision']} |" + (f" {one['milliseconds']:.3g} |" if here else "")
        for one in lines
    ]
    return "\n".join([head + " measured, ms |" * here, "|" + "---|" * (7 + here), *rows])


def wanted(target: str, only, sizes, slow: bool) -> list[tuple[str, int]]:
    """Names and sizes that are compiled; what is left out is said."""
    from computations import SLOW, computations

    sizes, found = sizes or SIZES[target], []
    for name, one in computations().items():
        if only and not any(part in name for part in only):
            continue
        skips = target == "v5e" and one.left_out == SLOW and not slow
        out = [n for n in sizes if skips and n > QUICK]
        if out:
            print(f"left out at n = {', '.join(map(str, out))}, as {one.left_out}: {name}")
        found += [(name, n) for n in sizes if n not in out]
    return found


def merged(old: list[dict], new: list[dict]) -> list[dict]:
    """Lines of a report with new ones, which take the place of those of the same computation and n:
    computations as they first came, by n.
    """
    lines = {(one["computation"], one["n"]): one for one in (*old, *new)}
    names = list(dict.fromkeys(name for name, _ in lines))
    return [lines[key] for key in sorted(lines, key=lambda key: (names.index(key[0]), key[1]))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--for", dest="target", choices=SIZES, required=True)
    parser.add_argument("--only", nargs="*", help="names of computations, or parts of them")
    parser.add_argument("--sizes", nargs="*", type=int)
    parser.add_argument(
        "--slow",
        action="store_true",
        help="also what takes minutes to compile for a TPU: eigendecompositions of more than 256 rows",
    )
    parser.add_argument(
        "--here", action="store_true", help="the device is at hand: compile for it, and run"
    )
    parser.add_argument(
        "--out", help="folder of the report, as Markdown and JSON, which is added to"
    )
    args = parser.parse_args()
    prepare_here(args.target) if args.here else prepare(args.target)
    lines = []
    for name, n in wanted(args.target, args.only, args.sizes, args.slow):
        lines.append(compiled(name, n, args.target, args.here))
        print(json.dumps(lines[-1], ensure_ascii=False), flush=True)
    print(table(lines))
    if args.out:
        stem = Path(args.out) / f"{'run' if args.here else 'compile'}_{args.target}"
        kept = stem.with_suffix(".json")
        lines = merged(json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else [], lines)
        kept.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(table(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
