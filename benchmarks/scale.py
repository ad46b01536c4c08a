"""Compile what runs on 10⁹ rows for eight or 64 H100, or 256 chips of a TPU v5e, that are not here,
and say what each device will need.

    python benchmarks/scale.py --for h100 --devices 8 64 [--rows 1000000000] [--landmarks 4000]
    [--only moments ...] [--out FOLDER] python benchmarks/scale.py --for v5e --devices 256

needs the extra `compile`, as `compile.py` does. For each computation on landmarks, in float32, it
prints the time to compile, memory of each device, which collectives there are and how many bytes
the largest moves, and the time that links at their peak rate would take. It proves that programs
compile, fit, and move what they should, and no speed. A report is added to the one that is there."""

import argparse
import json
import re
import time
from pathlib import Path

from compile import H100, below_full, prepare

COLUMNS, LAMS = 10, 100
# Bytes a second that a device sends: NVLink among eight H100, a network card of 400 Gbit/s for each
# of more, four links of a v5e.
LINKS = {"h100": lambda devices: 450e9 if devices <= 8 else 50e9, "v5e": lambda devices: 200e9}
SHAPE = re.compile(r"\b(pred|[a-z]+(\d+))\[([\d,]*)\]")
COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|ragged-all-to-all|collective-permute|reduce-scatter|collective-broadcast)(-start)?\("
)


def collectives(text: str) -> list[dict]:
    """Those of a compiled program: kind, bytes of the result, and whether it is made again and
    again in a loop.
    """
    found, entry = [], False
    for line in text.splitlines():
        if re.match(r"(ENTRY )?%\S+ \(", line):
            entry = line.startswith("ENTRY")
        if moved := COLLECTIVE.search(line):
            sizes = [_bytes(*shape.groups()) for shape in SHAPE.finditer(moved[1])]
            found.append({"kind": moved[2], "bytes": sum(sizes), "in_loop": not entry})
    return found


def _bytes(kind, bits, shape):
    number = 1
    for axis in filter(None, shape.split(",")):
        number *= int(axis)
    return number * (1 if kind == "pred" else int(bits) // 8)


def computations():
    """name → (function of rows, labels and points; the targets that it is compiled for)."""
    import jax
    import jax.numpy as jnp

    import jaxrls as rls

    lams = jnp.geomspace(1e-3, 1e2, LAMS, dtype=jnp.float32)

    def moments(rows, y, points):
        solution = rls.Problem.of(rls.Gaussian(1.0), rows, y, landmarks=points).solution("cholesky")
        return solution.factor.second, solution.cross

    def one(rows, y, points):
        return rls.loo(
            rls.factorize(rls.Gaussian(1.0), rows, landmarks=points, solver=rls.Cholesky()),
            y,
            lams[:1],
        )

    def grid(rows, y, points):
        return rls.loo(rls.factorize(rls.Gaussian(1.0), rows, landmarks=points), y, lams)

    def objective(width, rows, y, points):
        return rls.objective(rls.Gaussian(width), rows, y, jnp.float32(0.1), landmarks=points)

    def slopes(rows, y, points):
        return jax.value_and_grad(objective, (0, 3))(jnp.float32(1.0), rows, y, points)

    everywhere = tuple(LINKS)
    return {
        "moments": (moments, everywhere),
        "moments and leave-one-out at one λ": (one, everywhere),
        f"moments and leave-one-out at {LAMS} λ": (
            grid,
            ("h100",),
        ),  # an eigendecomposition takes minutes to compile for TPUs
        "leave-one-out at one λ and its slopes": (slopes, everywhere),
    }


def devices_of(target: str, count: int):
    """So many devices of the kind, none of which is here."""
    from jax.experimental.topologies import get_topology_desc

    if target == "h100":
        return get_topology_desc(
            platform="cuda",
            topology_name="h100",
            target_config=H100,
            topology=f"{-(-count // 8)}x{min(count, 8)}x1",
        ).devices
    side = round(count**0.5)
    return get_topology_desc(platform="tpu", topology_name=f"v5e:{side}x{count // side}").devices


def compiled(name: str, target: str, count: int, n: int, m: int) -> dict:
    """One line of the report."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxrls as rls

    if n % count:
        raise SystemExit(
            f"--rows must be a multiple of the number of devices, and {n} is none of {count}"
        )
    fn, _ = computations()[name]
    mesh = Mesh(np.array(devices_of(target, count)), ("rows",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("rows")), NamedSharding(mesh, P())

    shaped = lambda shape, sharding: jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    with jax.default_device(mesh.devices.flat[0]):
        start = time.perf_counter()
        rows = rls.ShardedRows(shaped((n, COLUMNS), split), count, split, n)
        program = (
            jax.jit(fn)
            .trace(rows, shaped((n,), split), shaped((m, COLUMNS), whole))
            .lower(lowering_platforms=("cuda" if target == "h100" else "tpu",))
            .compile()
        )
        seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    moved = collectives(text)
    at_end = sum(one["bytes"] for one in moved if not one["in_loop"])
    return {
        "computation": name,
        "target": target,
        "devices": count,
        "rows": n,
        "landmarks": m,
        "compile_seconds": round(seconds, 1),
        "argument_bytes": memory.argument_size_in_bytes,
        "beside_bytes": memory.temp_size_in_bytes,
        "collectives": moved,
        "below_full_precision": below_full(text),
        "sending_seconds": 2
        * at_end
        / LINKS[target](count),  # a ring sends every number twice, nearly
    }


def table(lines: list[dict]) -> str:
    """The report as Markdown."""
    head = (
        "| computation | devices | rows | landmarks | compile, s | GB of arguments, each | GB beside, each | collectives | the largest, MB | in loops, B "
        "| between devices, s |"
    )
    rows = []
    for one in lines:
        moved = one["collectives"]
        kinds = ", ".join(
            f"{sum(part['kind'] == kind for part in moved)} {kind}"
            for kind in sorted({part["kind"] for part in moved})
        )
        looped = max((part["bytes"] for part in moved if part["in_loop"]), default=0)
        rows.append(
            f"| {one['computation']} | {one['devices']} {one['target']} | {one['rows']:.0e} | {one['landmarks']} | {one['compile_seconds']} "
            f"| {one['argument_bytes'] / 1e9:.3g} | {one['beside_bytes'] / 1e9:.3g} | {kinds} "
            f"| {max((part['bytes'] for part in moved), default=0) / 1e6:.3g} | {looped} "
            f"| {one['sending_seconds']:.2g} |"
        )
    return "\n".join([head, "|" + "---|" * 11, *rows])


def merged(old: list[dict], new: list[dict]) -> list[dict]:
    """A report with lines added, those of the same computation on the same devices in the place of
    older ones.
    """
    key = lambda one: (
        one["target"],
        one["devices"],
        one["rows"],
        one["landmarks"],
        one["computation"],
    )
    return [*({key(one): one for one in [*old, *new]}).values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--for", dest="target", choices=LINKS, required=True)
    parser.add_argument("--devices", nargs="+", type=int, required=True)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--landmarks", type=int, default=4000)
    parser.add_argument("--only", nargs="*", help="names of computations, or parts of them")
    parser.add_argument("--out", help="folder for the report, as Markdown and JSON")
    args = parser.parse_args()
    prepare(args.target, max(args.devices))
    lines = []
    for name, (_, targets) in computations().items():
        if args.target in targets and (not args.only or any(part in name for part in args.only)):
            for count in args.devices:
                lines.append(compiled(name, args.target, count, args.rows, args.landmarks))
                print(json.dumps(lines[-1], ensure_ascii=False), flush=True)
    print(table(lines))
    if args.out:
        stem = Path(args.out) / "scale"
        kept = stem.with_suffix(".json")
        lines = merged(json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else [], lines)
        kept.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(table(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
