"""Compile what the package computes for GPUs or TPUs that are not here, and say what it will need
there: every public computation that is one program on one device (computations.py), or with
--devices those of 10⁹ rows on many.

    python benchmarks/compile.py --for h100|v5e [--only path ...] [--sizes 1000 4000] [--out FOLDER]
    python benchmarks/compile.py --for h100 --devices 8 64 [--rows 1000000000] [--landmarks 4000]

needs the extra `compile` (`pip install 'jaxrls[compile]'`), which holds the compilers and no
device. It prints the time to compile, memory beyond arguments and results in units of the matrix
worked on, calls into libraries and products below full precision; of many devices the memory of
each, which collectives there are and how many bytes the largest moves, and the time that links at
their peak rate would take. It proves that programs compile and fit, and no speed. Where the device
is at hand, `--here` compiles for it, runs what was compiled on drawn numbers, and says the
milliseconds beside (median of five). A report in --out is added to."""

import importlib.util
import json
import math
import os
import re
import statistics
import time
from functools import partial
from pathlib import Path

from common import head, line, options_of, read, say, timed, write

H100 = """gpu_device_info {
 threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
 shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
 cuda_compute_capability { major: 9 }
 registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
 platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 }
 runtime_version { major: 12 minor: 8 patch: 0 }
 device_description_str: "NVIDIA H100 80GB HBM3" """
SIZES = {"h100": (1000, 4000, 10_000), "v5e": (256, 1024)}
QUICK = 256  # rows up to which a TPU's library has an eigendecomposition that compiles in seconds
NEEDED = {"h100": ("nvidia.cuda_nvcc", "jax_cuda12_plugin"), "v5e": ("libtpu",)}
# Bytes a second that a device sends: NVLink among eight H100, a network card of 400 Gbit/s for each
# of more, four links of a v5e.
LINKS = {"h100": lambda devices: 450e9 if devices <= 8 else 50e9, "v5e": lambda devices: 200e9}
SHAPE = re.compile(r"\b(pred|[a-z]+(\d+))\[([\d,]*)\]")
COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|(?:ragged-)?all-to-all|collective-(?:permute|broadcast)|"
    r"reduce-scatter)(?:-start)?\("
)
PRODUCT = re.compile(
    r" f(16|32|64)\[[^=]*\b(dot|convolution)\(|"
    r'custom_call_target="__cublas\$(lt\$matmul|gemm)'
)
OUR_OWN = "Sharding", "X64", "AllocateBuffer", "__cub"  # no calls into libraries


def prepare(target: str, devices: int = 4) -> None:
    """Set what JAX and the compilers read when they start."""
    if missing := [name for name in NEEDED[target] if not _installed(name)]:
        names = ", ".join(missing)
        raise SystemExit(f"compiling for {target} needs {names}: pip install 'jaxrls[compile]'")
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target == "h100":
        folder = next(iter(importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations))
        os.environ["XLA_FLAGS"] = (
            f"--xla_gpu_cuda_data_dir={folder} --xla_gpu_autotune_level=0 "
            "--xla_gpu_enable_triton_gemm=false"
        )
    else:
        os.environ |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": f"v5litepod-{devices}",
            "TPU_WORKER_HOSTNAMES": "localhost",
        }


def _installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def devices_of(target: str, count: int = 1):
    """So many devices of the kind, none of which is here."""
    from jax.experimental.topologies import get_topology_desc

    if target == "h100":
        shape = f"{-(-count // 8)}x{min(count, 8)}x1"
        options = {"platform": "cuda", "topology_name": "h100", "target_config": H100}
        return get_topology_desc(**options, topology=shape).devices
    side = max(2, round(count**0.5))
    name = f"v5e:{side}x{max(2, count // side)}"
    return get_topology_desc(platform="tpu", topology_name=name).devices


def devices_here(target: str):
    """JAX's own, if they are such."""
    import jax

    kind = jax.devices()[0].device_kind
    if target not in kind.lower().replace(" ", "").replace("v5lite", "v5e"):
        raise SystemExit(
            f"--here needs a device for {target}, and JAX's first is {kind}: leave it out"
        )
    return jax.devices()


def seconds_of(program, arguments) -> float:
    """Median of five runs after one, on drawn numbers."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    draw = lambda one: np.asarray(rng.uniform(1, 2, one.shape), one.dtype)
    drawn = jax.tree.map(lambda one: jax.device_put(draw(one), one.sharding), arguments)
    return statistics.median([timed(lambda: program(*drawn))[0] for _ in range(6)][1:])


def built(fn, arguments, target, where, wide=False):
    """The program, seconds, memory and text."""
    import jax

    platforms = {"h100": "cuda", "v5e": "tpu"}
    with jax.default_device(where), jax.enable_x64(wide):
        start = time.perf_counter()
        lowered = jax.jit(fn).trace(*arguments).lower(lowering_platforms=(platforms[target],))
        program = lowered.compile()
        seconds = time.perf_counter() - start
    return program, round(seconds, 1), program.memory_analysis(), program.as_text()


def compiled(name, n, target, here=False) -> dict:
    """One line of the report on one device."""
    import jax
    from computations import IN_FLOAT64, computations
    from jax.sharding import SingleDeviceSharding

    where, one = (devices_here if here else devices_of)(target)[0], computations()[name]
    place = SingleDeviceSharding(where)
    placed = lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=place)
    arguments = jax.tree.map(placed, one.arguments(n))
    program, seconds, memory, text = built(one.fn, arguments, target, where, name == IN_FLOAT64)
    calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
    measured = {"milliseconds": round(1e3 * seconds_of(program, arguments), 3)} if here else {}
    return {
        "computation": name,
        "n": n,
        "compile_seconds": seconds,
        "beyond": round(memory.temp_size_in_bytes / 4 / one.matrix(n), 2),
        "mebibytes": round(memory.temp_size_in_bytes / 2**20, 1),
        "calls": sorted(call for call in calls if not call.startswith(OUR_OWN)),
        "below_full_precision": below_full(text),
        **measured,
    }


def scaled(name, target, count, n, m) -> dict:
    """One line of the report on many devices, rows in equal parts."""
    import jax
    import numpy as np
    from computations import COLUMNS_OF_MANY, on_many
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from jaxrls.rows import ShardedRows

    if n % count:
        raise SystemExit(f"--rows must be a multiple of {count}, the number of devices: {n}")
    places = np.array(devices_of(target, count))
    mesh = Mesh(places, ("rows",), axis_types=(AxisType.Auto,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("rows",), ()))
    shaped = lambda *shape, at=split: jax.ShapeDtypeStruct(shape, "float32", sharding=at)
    rows = ShardedRows(shaped(n, COLUMNS_OF_MANY), count, split, n)
    arguments = rows, shaped(n), shaped(m, COLUMNS_OF_MANY, at=whole)
    _, seconds, memory, text = built(on_many()[name], arguments, target, places[0])
    moved = collectives(text)
    at_end = sum(one["bytes"] for one in moved if not one["in_loop"])
    return {
        "computation": name,
        "target": target,
        "devices": count,
        "rows": n,
        "landmarks": m,
        "compile_seconds": seconds,
        "argument_bytes": memory.argument_size_in_bytes,
        "beside_bytes": memory.temp_size_in_bytes,
        "collectives": moved,
        "below_full_precision": below_full(text),
        "sending_seconds": 2 * at_end / LINKS[target](count),  # a ring sends all twice, nearly
    }


def collectives(text: str) -> list[dict]:
    """Those of a compiled program: kind, bytes of the result, and whether it is made again and
    again in a loop.
    """
    found, entry = [], False
    for row in text.splitlines():
        if re.match(r"(ENTRY )?%\S+ \(", row):
            entry = row.startswith("ENTRY")
        if moved := COLLECTIVE.search(row):
            sizes = [
                math.prod(map(int, filter(None, shape.split(",")))) * (int(bits or 8) // 8)
                for _, bits, shape in SHAPE.findall(moved[1])
            ]
            found.append({"kind": moved[2], "bytes": sum(sizes), "in_loop": not entry})
    return found


def below_full(text: str) -> int:
    """Products in a compiled program that are made at less than float32's full precision; cuBLAS
    solves triangular systems in full.
    """
    products = [row for row in text.splitlines() if PRODUCT.search(row)]
    return sum(not re.search(r"highest", row, re.IGNORECASE) for row in products)


def table(lines: list[dict]) -> str:
    """A report as Markdown, of one device or of many."""
    many, here = "devices" in lines[0], "milliseconds" in lines[0]
    if many:
        names = (
            *("computation", "devices", "rows", "landmarks", "compile, s", "GB of arguments, each"),
            *("GB beside, each", "collectives", "the largest, MB", "in loops, B"),
            "between devices, s",
        )
    else:
        names = (
            *("computation", "n", "compile, s", "memory beyond, × matrix", "MiB"),
            *("library calls", "below full precision", *["measured, ms"] * here),
        )
    row = _row_of_many if many else _row
    return "\n".join([head(*names), *(line(*row(one)) for one in lines)])


def _row(one):
    keys = "computation", "n", "compile_seconds", "beyond", "mebibytes"
    took = [f"{one[key]:.3g}" for key in ("milliseconds",) if key in one]
    calls = ", ".join(one["calls"]) or "–"
    return *(one[key] for key in keys), calls, one["below_full_precision"], *took


def _row_of_many(one):
    moved = one["collectives"]
    kinds = sorted(part["kind"] for part in moved)
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    largest = max((part["bytes"] for part in moved), default=0)
    in_loops = max((part["bytes"] for part in moved if part["in_loop"]), default=0)
    return (
        *(one["computation"], f"{one['devices']} {one['target']}", f"{one['rows']:.0e}"),
        *(one["landmarks"], one["compile_seconds"]),
        *(f"{one[part] / 1e9:.3g}" for part in ("argument_bytes", "beside_bytes")),
        *(counts, f"{largest / 1e6:.3g}", in_loops, f"{one['sending_seconds']:.2g}"),
    )


def chosen(names, only) -> list[str]:
    """Names that hold one of the words asked for."""
    return [name for name in names if not only or any(part in name for part in only)]


def wanted(target: str, only, sizes, slow: bool) -> list[tuple[str, int]]:
    """Names and sizes that are compiled; what is left out is said."""
    from computations import computations

    sizes, found, all_of_them = sizes or SIZES[target], [], computations()
    for name in chosen(all_of_them, only):
        skips = target == "v5e" and all_of_them[name].slow and not slow
        out = [n for n in sizes if skips and n > QUICK]
        if out:
            at = ", ".join(map(str, out))
            say(f"left out at n = {at}, as they take minutes (--slow): {name}")
        found += [(name, n) for n in sizes if n not in out]
    return found


def merged(old: list[dict], new: list[dict]) -> list[dict]:
    """Lines of a report with new ones, which take the place of those of the same computation at the
    same size: computations as they first came, by n.
    """
    sizes = "target", "devices", "rows", "landmarks", "n"
    key = lambda one: (one["computation"], *(one.get(size, 0) for size in sizes))
    lines = {key(one): one for one in (*old, *new)}
    if "devices" in new[0]:
        return [*lines.values()]
    names = list(dict.fromkeys(name for name, *_ in lines))
    return [lines[key] for key in sorted(lines, key=lambda key: (names.index(key[0]), key[1:]))]


def main() -> None:
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--for", dest="target", choices=SIZES, required=True)
    add("--only", nargs="*", help="names of computations, or parts of them")
    add("--sizes", nargs="*", type=int, help="rows, on one device")
    add("--slow", action="store_true", help="TPU: also eigendecompositions of over 256 rows")
    add("--here", action="store_true", help="the device is at hand: compile for it, and run")
    add("--devices", nargs="+", type=int, help="for so many, with rows in equal parts")
    add("--rows", type=int, default=10**9, help="of --devices")
    add("--landmarks", type=int, default=4000, help="of --devices")
    add("--out", type=Path, help="folder of the report, as Markdown and JSON, which is added to")
    args = parser.parse_args()
    target = args.target
    if not args.here:
        prepare(target, max(args.devices or [4]))
    if args.devices:
        from computations import on_many

        stem, each = "scale", partial(scaled, n=args.rows, m=args.landmarks)
        names = chosen(on_many(target), args.only)
        cases = [(name, target, count) for name in names for count in args.devices]
    else:
        stem, each = (
            f"{'run' if args.here else 'compile'}_{target}",
            partial(compiled, here=args.here),
        )
        asked = wanted(target, args.only, args.sizes, args.slow)
        cases = [(name, n, target) for name, n in asked]
    lines = []
    for case in cases:
        lines.append(each(*case))
        say(json.dumps(lines[-1], ensure_ascii=False))
    say(table(lines))
    if args.out:
        kept = args.out / f"{stem}.json"
        lines = merged(read(kept) if kept.exists() else [], lines)
        write(args.out, stem, lines, table(lines))


if __name__ == "__main__":
    main()
