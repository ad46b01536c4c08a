"""The parts of on_device.sh, which gives each a process and a limit of time: what they find goes
into on_device.json and on_device.md in --out as soon as it is there, whatever ends them.

    python benchmarks/on_device.py begin --only calls million --out FOLDER    # tables, of no part
    python benchmarks/on_device.py calls --out FOLDER [--small]               # one part, added
    python benchmarks/on_device.py ended --only calls --code 124 --took 90 --limit 90 --out FOLDER

`--small` takes sizes for a CPU. What needs a GPU, and finds none, says so in its row."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import Timing, head, interleaved, line, options_of, read, say, timed, write

ROOT = Path(__file__).parents[1]
STEM = "on_device"
NOT_BEGUN = "not begun"
SAVED_EVERY = 2.0  # seconds, of counts of tests
TESTS_NAME_DEVICES = re.compile(r'"(gpu|cuda)"|\bPLATFORMS\b|make_mesh')
SMALL_TESTS = {
    "devices": ["tests/rows/test_meshes.py::test_rows_on_a_mesh_of_one_device"],
    "float32": ["tests/core/kernels/test_distances.py"],
}
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
OF_CUDA = re.compile(r"cuda|nvidia|warp|pjrt", re.IGNORECASE)


# the report
# ------------------------------------------------------------------------------------------------


def kept(folder: Path) -> dict:
    """What the folder holds of this report."""
    file = folder / f"{STEM}.json"
    return read(file) if file.exists() else {"about": {}, "parts": {}, "rows": [], "failures": []}


def keep(folder: Path, report: dict) -> None:
    """Both files, each in one step, so that none is ever half written."""
    new = folder / ".new"
    write(new, STEM, report, markdown(report))
    for file in new.iterdir():
        os.replace(file, folder / file.name)
    new.rmdir()


def markdown(report: dict) -> str:
    """About the machine, how the parts ended, what they found, and the tests that failed."""
    about = [head("machine", ""), *(line(*pair) for pair in report["about"].items())]
    parts = [head("part", "ended", "s")]
    parts += [line(name, one["ended"], one["seconds"]) for name, one in report["parts"].items()]
    rows = [head("part", "what", "size", "first, s", "again, s", "ratio", "note")]
    rows += [line(*cells(row)) for row in report["rows"]]
    failures = [
        f"* {one['part']}: `{one['test']}`: {in_a_line(one['message'])}"
        for one in report["failures"]
    ]
    titled = {"Machine": about, "Parts": parts, "Found": rows, "Tests that failed": failures}
    return "\n\n".join(
        f"## {title}\n\n" + ("\n".join(lines) or "None.") for title, lines in titled.items()
    )


def cells(row: dict) -> tuple[str, ...]:
    """A row of the report as it stands in the table."""
    numbers = (row[name] for name in ("first", "again", "ratio"))
    shown = ("" if number is None else f"{number:.3g}" for number in numbers)
    return row["part"], row["what"], row["size"], *shown, in_a_line(row["note"])


def in_a_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


@dataclass(frozen=True)
class Part:
    """One part under way: where it writes, and with which sizes."""

    name: str
    folder: Path
    small: bool
    tests: list[str]
    workers: int
    dies: bool  # by a signal, once it has a row: what a test asks for

    def size(self, small: Any, full: Any) -> Any:
        return small if self.small else full

    def found(
        self,
        what: str,
        size: str = "",
        *,
        first: float | None = None,
        again: float | None = None,
        ratio: float | None = None,
        note: str = "",
    ) -> None:
        """Keep a row, in the place of one that has the same name and size."""
        key = {"part": self.name, "what": what, "size": size}
        row = key | {"first": first, "again": again, "ratio": ratio, "note": note}
        report = kept(self.folder)
        others = [one for one in report["rows"] if any(one[name] != key[name] for name in key)]
        keep(self.folder, report | {"rows": [*others, row]})
        say(line(*cells(row)))
        self.die_if_asked()

    def die_if_asked(self) -> None:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def told_once(self, name: str, size: str, run: Callable) -> Callable:
        """The same call, which keeps a row of its first time."""
        told = False

        def call() -> Any:
            nonlocal told
            if told:
                return run()
            first, result = timed(run)
            told = True
            self.found(name, size, first=first, note="first call alone")
            return result

        return call

    def timings(
        self,
        runs: dict[str, Callable],
        size: str,
        over: str = "",
        note_of: Callable[[Any], str] = lambda result: "",
    ) -> None:
        """Rows of calls in turn, or of what failed; ratios to the call `over`. What the first call
        of each took is kept before the next one's.
        """
        telling = {name: self.told_once(name, size, run) for name, run in runs.items()}
        times, results, failures = interleaved(telling, self.size(1, 5))
        base = times.get(over)
        for name in runs:
            note = failures.get(name) or note_of(results[name])
            self.found(name, size, **seconds(times.get(name), base, name != over), note=note)


def seconds(one: Timing | None, base: Timing | None, compared: bool) -> dict[str, float | None]:
    """The numbers of a row; none of a call that failed."""
    if one is None:
        return {}
    ratio = one.median / base.median if base and compared else None
    return {"first": one.first, "again": one.median, "ratio": ratio}


# the machine
# ------------------------------------------------------------------------------------------------


def about(part: Part) -> None:
    """Card, driver and versions: first what needs no JAX, as JAX may fail to start."""
    from run import machine, versions

    cuda = {one.name: one.version for one in distributions() if OF_CUDA.search(one.name or "")} or {
        "CUDA packages": "none"
    }
    facts = {"date": time.strftime("%Y-%m-%d"), "python": sys.version.split()[0]}
    facts |= {"card and driver": card(), **versions(), **cuda}
    say_of_machine(part.folder, facts)
    import jax

    client = jax.devices()[0].client
    facts |= machine() | {"JAX's platform": in_a_line(client.platform_version)}
    say_of_machine(part.folder, facts)
    part.die_if_asked()
    if not part.small and not on_gpu():
        raise SystemExit("JAX finds no GPU here: give --small, or install 'jaxrls[cuda]'")


def card() -> str:
    """What the driver says: name, driver, memory, and the CUDA version that it supports."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi"
    ask = partial(subprocess.run, capture_output=True, text=True, timeout=20)
    columns = "name,driver_version,memory.total"
    named = ask(["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader"]).stdout
    version = re.search(r"CUDA Version: *([\d.]+)", ask(["nvidia-smi"]).stdout)
    return f"{in_a_line(named)}; CUDA {version[1] if version else 'not said'}"


def say_of_machine(folder: Path, facts: dict) -> None:
    keep(folder, kept(folder) | {"about": facts})


def on_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


# tests
# ------------------------------------------------------------------------------------------------


class Told:
    """A plugin of pytest that keeps counts and failures as they come."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.counts: Counter[str] = Counter()
        self.saved = 0.0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        self.note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self.note(report)

    def note(self, report: Any) -> None:
        """A failure at once, counts now and then."""
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            message = getattr(crash, "message", None) or str(report.longrepr)
            one = {"part": self.part.name, "test": report.nodeid, "message": message[:1000]}
            kept_now = kept(self.part.folder)
            failures = [*kept_now["failures"], one]
            keep(self.part.folder, kept_now | {"failures": failures})
        if time.monotonic() - self.saved > SAVED_EVERY:
            self.save("under way")
            self.saved = time.monotonic()

    def save(self, how: str) -> None:
        counted = (f"{number} {outcome}" for outcome, number in sorted(self.counts.items()))
        self.part.found("tests", note=", ".join([*counted, how]))


def tests(part: Part, marked: list[str], paths: list[str]) -> None:
    """Run some, on several workers, of which none takes the memory of the whole device."""
    import pytest

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    report = kept(part.folder)
    others = [one for one in report["failures"] if one["part"] != part.name]
    keep(part.folder, report | {"failures": others})
    told, chosen = Told(part), part.tests or part.size(SMALL_TESTS[part.name], paths)
    xml = part.folder / f"tests_{part.name}.xml"
    options = ["-n", str(part.workers), "--tb=line", "-rf", f"--junitxml={xml}"]
    code = pytest.main([*options, *marked, *chosen], plugins=[told])
    told.save(f"pytest ended with {int(code)}")
    if code not in (0, 1):  # no run: 1 is a run with failures
        raise SystemExit(int(code))


def devices(part: Part) -> None:
    """The tests, in float64, that name a device, or a mesh of them: slow ones too."""
    texts = sorted((ROOT / "tests").rglob("test_*.py"))
    named = [path for path in texts if TESTS_NAME_DEVICES.search(path.read_text(encoding="utf-8"))]
    tests(part, ["-m", ""], [str(path.relative_to(ROOT)) for path in named])


def float32(part: Part) -> None:
    """The quick suite in float32."""
    os.environ["JAXRLS_X64"] = "0"
    tests(part, [], ["tests", "jaxrls"])


# first and second calls
# ------------------------------------------------------------------------------------------------


def fit(rls: Any, X: Any, y: Any, m: int) -> Any:
    return rls.fit(rls.Gaussian(3.0), X, y)


def landmarks(rls: Any, X: Any, y: Any, m: int) -> Any:
    return rls.fit(rls.Gaussian(3.0), X, y, landmarks=m)


def tune(rls: Any, X: Any, y: Any, m: int) -> Any:
    return rls.tune(rls.Gaussian(3.0), X, y)


def iterative(rls: Any, X: Any, y: Any, m: int) -> Any:
    return rls.fit(rls.Gaussian(3.0), X, y, lams=[0.1], solver=rls.Iterative(m))


# The call; rows and landmarks, small and full.
CALLS: dict[str, tuple[Callable, tuple[int, int], tuple[int, int]]] = {
    "fit": (fit, (200, 0), (4000, 0)),
    "landmarks": (landmarks, (1000, 50), (100_000, 1000)),
    "Iterative": (iterative, (500, 50), (20_000, 1000)),
    "tune": (tune, (100, 0), (2000, 0)),
}


def calls(part: Part) -> None:
    """Each in a new process."""
    for name in CALLS:
        command = [sys.executable, __file__, part.name, "--call", name, "--out", str(part.folder)]
        process = subprocess.run([*command, *["--small"] * part.small])
        if process.returncode:
            part.found(name, note=f"its process ended with {process.returncode}")
        part.die_if_asked()


def one_call(part: Part, name: str) -> None:
    """The first and the second call, here and now: NumPy arrays of float64, as users have them."""
    start = time.perf_counter()
    import jaxrls as rls

    imported = f"float64 NumPy; import {time.perf_counter() - start:.2f} s"
    from works import problem

    call, small, full = CALLS[name]
    n, m = part.size(small, full)
    size = f"n = {n:,}, d = 8" + (f", m = {m:,}" if m else "")
    X, Y, *_ = problem(n, 8)
    run = lambda: call(rls, X, Y[:, 0], m)
    first, _ = timed(run)
    part.found(name, size, first=first, note=imported)
    again, _ = timed(run)
    part.found(name, size, first=first, again=again, note=imported)


# K·V
# ------------------------------------------------------------------------------------------------


def without_warp() -> str:
    """Why there is no product by Warp here; empty where there is one."""
    if not on_gpu():
        return "passed over: needs a GPU"
    if find_spec("warp") is None:
        return "passed over: Warp is not installed (the extra `fused`)"
    return ""


def by_warp(*args: Any) -> Any:
    """K·V by Warp, which may not go by blocks in its place."""
    from jaxrls.fused.products import fused_times

    product = fused_times(*args)
    if product is None:
        raise RuntimeError("Warp is installed and does not compute it: the log says why")
    return product


def products(part: Part) -> None:
    """K·V of all rows in float32: a block after another, and by Warp."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from works import of_five_rows, problem

    import jaxrls as rls
    from jaxrls.core.data import times_in_blocks

    n, reason = part.size(1000, 100_000), without_warp()
    ways = {"K·V in blocks": times_in_blocks} | ({} if reason else {"K·V by Warp": by_warp})
    for d in (3, 8):
        X = jnp.asarray(problem(n, d)[0], jnp.float32)
        kernel = rls.Gaussian(float(d) ** 0.5)
        for t in (1, 9):
            V = jax.random.normal(jax.random.key(t), (n, t), jnp.float32)
            size = f"n = {n:,}, d = {d}, t = {t}, float32"
            runs = {name: partial(jax.jit(way), kernel, X, X, V) for name, way in ways.items()}
            exact = (np.asarray(one, np.float64) for one in (X, X, V))
            judge = of_five_rows(0.5 / d, *exact)
            off = lambda result: f"five rows off by {judge(result):.1e}"
            part.timings(runs, size, "K·V in blocks", off)
            if reason:
                part.found("K·V by Warp", size, note=reason)


# a million rows
# ------------------------------------------------------------------------------------------------


def million(part: Part) -> None:
    """Exact leave-one-out at 100 λ in both precisions, by landmarks and of a linear kernel; and a
    whole fit of NumPy arrays.
    """
    import jax
    import jax.numpy as jnp
    from works import problem

    import jaxrls as rls

    jax.config.update("jax_enable_x64", True)
    n, m, wide = part.size((2000, 50, 20), (1_000_000, 1000, 100))
    X, Y, *_ = problem(n, 8)
    y, kernel = Y[:, 0], rls.Gaussian(8**0.5)

    def on_landmarks(X: Any, y: Any, lams: Any) -> Any:
        factor = rls.factorize(kernel, X, landmarks=jnp.arange(m))
        return rls.path(factor, y, lams)

    def linear(X: Any, y: Any, lams: Any) -> Any:
        return rls.path(rls.factorize(rls.Linear(), X), y, lams)

    def arrays(X: Any, dtype: Any) -> tuple:
        lams = jnp.geomspace(1e-2, 1e4, 100, dtype=dtype)
        return jnp.asarray(X, dtype), jnp.asarray(y, dtype), lams

    def in_both(what: str, fn: Callable, X: Any, size: str) -> None:
        runs = {
            f"{what}, {dtype.__name__}": partial(jax.jit(fn), *arrays(X, dtype))
            for dtype in (jnp.float32, jnp.float64)
        }
        part.timings(runs, size, f"{what}, float32", error_at_best)

    error_at_best = lambda found: f"least leave-one-out error {float(found.loo.min()):.6g}"
    of_landmarks = f"n = {n:,}, d = 8, m = {m:,}"
    in_both("landmarks, 100 λ", on_landmarks, X, f"{of_landmarks}, L = 100")
    whole = partial(rls.fit, kernel, X, y, landmarks=m)
    part.timings({"fit with landmarks, float64 NumPy": whole}, of_landmarks)
    in_both("linear, 100 λ", linear, problem(n, wide)[0], f"n = {n:,}, d = {wide}, L = 100")


# float64 beside float32
# ------------------------------------------------------------------------------------------------


def float64(part: Part) -> None:
    """The same call in both precisions, in turn."""
    import jax
    import jax.numpy as jnp
    from works import problem

    import jaxrls as rls

    jax.config.update("jax_enable_x64", True)
    n, many, t = part.size((300, 1000, 3), (4000, 50_000, 9))

    def whole_fit(x: Any, y: Any, V: Any) -> Any:
        return rls.fit(rls.Gaussian(3.0), x[:n], y[:n], lams=100).model.coef

    @jax.jit
    def gradient(x: Any, y: Any, V: Any) -> Any:
        value = lambda width, lam: rls.objective(rls.Gaussian(width), x[:n], y[:n], lam)
        at = jnp.asarray(3.0, x.dtype), jnp.asarray(0.1, x.dtype)
        return jax.value_and_grad(value, (0, 1))(*at)

    @jax.jit
    def product(x: Any, y: Any, V: Any) -> Any:
        return rls.extend.gram_matmul(rls.Gaussian(3.0), x, x, V)

    X, Y, *_ = problem(many, 8)
    V = problem(many, 8, t)[1]
    taken = f"n = {n:,}, d = 8"
    for what, run, size in (
        ("fit, 100 λ", whole_fit, taken),
        ("gradient in width and λ", gradient, taken),
        ("K·V", product, f"n = {many:,}, d = 8, t = {t}"),
    ):
        runs = {
            f"{what}, {dtype.__name__}": partial(
                run, *(jnp.asarray(one, dtype) for one in (X, Y[:, 0], V))
            )
            for dtype in (jnp.float32, jnp.float64)
        }
        part.timings(runs, size, f"{what}, float32", dtype_of)


def dtype_of(result: Any) -> str:
    """In which precision a result came."""
    import jax

    return f"came in {jax.tree.leaves(result)[0].dtype}"


# parts
# ------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Part], None]] = {
    part.__name__: part for part in (about, devices, float32, calls, products, million, float64)
}


def begin(folder: Path, only: list[str]) -> None:
    """Say of every part that it is not begun; what the folder holds of others stays."""
    report = kept(folder)
    ended = {name: {"ended": NOT_BEGUN, "seconds": 0} for name in only or PARTS}
    keep(folder, report | {"parts": report["parts"] | ended})


def ended(folder: Path, name: str, code: int, took: int, limit: int) -> None:
    """Say how a part did. `timeout` exits with 124, and with 137 where it had to kill."""
    how = "whole" if code == 0 else f"died: exit code {code}, {STEM}.log says more"
    if code in (124, 137) and took >= limit:
        how = f"cut off after {limit} s"
    report = kept(folder)
    parts = report["parts"] | {name: {"ended": how, "seconds": took}}
    keep(folder, report | {"parts": parts})
    say(f"{name}: {how}, {took} s")


def compile_anew(small: bool) -> None:
    """First calls are to find no programs that earlier processes kept."""
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if small:
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest ends its workers
    parser = options_of(__doc__)
    add = parser.add_argument
    add("what", choices=["begin", "ended", *PARTS])
    add("--out", type=Path, required=True, help="folder, to which is added")
    add("--small", action="store_true", help="sizes for a CPU")
    add("--only", nargs="*", help="names of parts, for begin and ended")
    add("--tests", nargs="*", default=[], help="in place of those that the parts name")
    add("--workers", type=int, default=8, help="of pytest")
    add("--call", choices=CALLS, help="one of the calls, here and now")
    add("--die", action="store_true", help="end by a signal after the first row: a trial")
    for name in ("code", "took", "limit"):
        add(f"--{name}", type=int, default=0, help="of a part that ended")
    args = parser.parse_args()
    if args.what == "begin":
        begin(args.out, args.only)
    elif args.what == "ended":
        ended(args.out, *args.only, args.code, args.took, args.limit)
    else:
        if args.what not in SMALL_TESTS:  # whose conftest.py says it of the tests
            compile_anew(args.small)
        part = Part(args.what, args.out, args.small, args.tests, args.workers, args.die)
        if args.call:
            one_call(part, args.call)
        else:
            PARTS[args.what](part)


if __name__ == "__main__":
    main()
