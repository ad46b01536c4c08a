"""Mutants: one operator, number or word of the numerical modules changed at a time; do the tests notice?

    python fuzz/mutants.py --read                       # the suite once under coverage: what no test reads, and which test reads which line
    python fuzz/mutants.py --read --tests tests/test_rank.py      # the same of some tests alone, in seconds
    python fuzz/mutants.py --mutants 400 --seed 1       # then those tests, the cheapest first, on each mutant; a table, and the survivors

Everything is imported once; for each mutant a fork changes the code of one function in memory and runs the tests of its line, so that a mutant costs
what its tests cost. With JAX's persistent compilation cache only programs that changed are compiled. What stands outside of functions is not changed.
"""

import argparse
import ast
import gc
import importlib
import json
import os
import pkgutil
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).parents[1]
MODULES = ("linalg/*", "kernels/*", "rows/*", "factors/*", "criteria/*", "models/*", "search/[glopr]*")
MODULES += ("search/descent.py", "search/few.py", "support/precision.py")
UNREAD = (
    "test_notebooks.py",
    "test_readme.py",
    "test_benchmarks.py",
    "test_fuzz.py",
)  # in processes of their own, or of no line in particular
FIRST = 4  # tests that are tried before others
GRID = "contract/test_grid.py"  # which asks for everything at once, and is tried first
EDGES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPPOSITES |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
OTHERS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult}
OTHERS |= {ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
PAIRS = ("max", "min"), ("maximum", "minimum"), ("any", "all"), ("argmax", "argmin"), ("ones", "zeros"), ("tril", "triu"), ("exp", "log")
PAIRS += ("ones_like", "zeros_like"), ("sum", "max"), ("mean", "sum"), ("floor", "ceil"), ("sqrt", "square"), ("cos", "sin")
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 3: "killed", -signal.SIGSEGV: "killed", -signal.SIGABRT: "killed"}  # by exit code
NAMES = {b: a for a, b in PAIRS} | dict(PAIRS)


@dataclass(frozen=True)
class Mutant:
    """A change: the how manieth of which file, in which function, where its statement begins and where it is itself, in words."""

    path: Path
    number: int
    function: str
    begin: int
    line: int
    words: str

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.function}: {self.words}"


def changes(node: ast.AST):
    """What may stand in a node's place, or None where it is left out."""
    match node:
        case ast.Compare(left, [op], right):
            for table in (EDGES, OPPOSITES):
                if type(op) in table:
                    yield ast.Compare(left, [table[type(op)]()], right)
        case ast.BinOp(left, op, right):
            if type(op) in OTHERS:
                yield ast.BinOp(left, OTHERS[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub):
                yield left
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield operand
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value or 1.0)
        case ast.Attribute(value, "T"):
            yield value
        case ast.Call(ast.Attribute(ast.Name("jnp" | "np") as value, name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Attribute(value, NAMES[name], ast.Load()), arguments, keywords)
        case ast.Call(ast.Name(name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name], ast.Load()), arguments, keywords)
        case ast.Call(ast.Attribute(_, "where"), [test, one, other], []):
            yield ast.Call(node.func, [test, other, one], [])
        case ast.Call(ast.Attribute(_, "abs"), [value], []):
            yield value
        case ast.Expr(ast.Call()):
            yield ast.Pass()
    if isinstance(node, ast.Call):
        for i in range(len(node.keywords)):
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])


def places(node: ast.AST, begin=0):
    """All (parent, field, index, child, line of its statement) below a node, without annotations, texts and what only words an error."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            node, ast.Raise | ast.JoinedStr | ast.AnnAssign
        ):
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn" and name != "func":
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                start = child.lineno if isinstance(child, ast.stmt) else begin
                yield node, name, i if isinstance(value, list) else None, child, start
                yield from places(child, start)


def functions(tree: ast.AST, prefix=""):
    """Functions of a module and methods of its classes, by qualified name; not those within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def sites(tree: ast.Module):
    """Every place in the body of a function where something else may stand: its name, the place, and what."""
    for name, function in functions(tree):
        first = function.body[1 if len(function.body) > 1 and ast.get_docstring(function) else 0].lineno
        for parent, field, index, child, begin in places(function):
            if parent is not function or field == "body":
                for new in changes(child):
                    yield name, (parent, field, index), child, ast.copy_location(new, child), begin or first


def mutants_of(path: Path):
    """Every mutant of a module."""
    for number, (name, _, child, new, begin) in enumerate(sites(ast.parse(path.read_text()))):
        yield Mutant(path, number, name, begin, child.lineno, f"{brief(child)} → {brief(new)}")


def changed(mutant: Mutant) -> ast.Module:
    """The module's tree with the change."""
    tree = ast.parse(mutant.path.read_text())
    for number, (_, place, _, new, _) in enumerate(sites(tree)):
        if number == mutant.number:
            put(*place, new)
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant} is gone")


def put(parent, field, index, new):
    """Put a node in the place of another."""
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def brief(node) -> str:
    """Source, cut to what a line holds."""
    text = ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]
    return text if len(text) < 90 else text[:87] + "…"


def code_of(code: CodeType, name: str):
    """The code of a function, by qualified name, within that of its module."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == name:
                return const
            if found := code_of(const, name):
                return found
    return None


def infect(mutant: Mutant, held: dict):
    """Change the function wherever it is held: decorators and jit hold the function, and that its code; also what it made when it was a decorator."""
    tree = changed(mutant)
    whole = compile(tree, str(mutant.path), "exec")
    new, arguments = code_of(whole, mutant.function), dict(functions(tree))[mutant.function].args
    for (path, name), made in held.items():
        if path == str(mutant.path) and name.startswith(f"{mutant.function}.<locals>."):
            inner = code_of(whole, name)
            for function in made:
                if inner and inner.co_freevars == function.__code__.co_freevars:
                    function.__code__ = inner
    for function in held[str(mutant.path), mutant.function]:
        function.__code__ = new
        plain = zip(arguments.defaults, function.__defaults__ or (), strict=True)
        function.__defaults__ = tuple(node.value if isinstance(node, ast.Constant) else old for node, old in plain) or None
        for argument, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if isinstance(node, ast.Constant):
                function.__kwdefaults__[argument.arg] = node.value


def prepare() -> dict:
    """Import all that tests import and that starts no threads: the library as the tests have it, and what they compare with.

    Returns the library's functions by file and name.
    """
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.chdir(ROOT)
    conftest = importlib.import_module("conftest")
    for module in pkgutil.walk_packages(conftest.jaxrls.__path__, "jaxrls."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("_pytest.main", "scipy.stats", "scipy.sparse", "mpmath", "optax", "chex", "pandas", "sklearn.linear_model"):
        importlib.import_module(name)
    from jax._src import xla_bridge

    assert not xla_bridge.backends_are_initialized(), "JAX has started threads, which no fork would have"
    held: dict = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(str(ROOT / "jaxrls")):
            held.setdefault((function.__code__.co_filename, function.__code__.co_qualname), []).append(function)
    gc.collect()
    gc.freeze()  # which a fork need not go through
    return held


def fork(log: Path, work) -> int:
    """Run `work` in a child whose exit code is what it returns."""
    child = os.fork()
    if child == 0:
        try:
            stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            code = int(work())
        except BaseException as error:
            print(repr(error))
            code = 99
        sys.stdout.flush()
        os._exit(code)
    return child


def run(tests) -> int:
    """The tests, until one fails."""
    import pytest

    early = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that were imported before
    return pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-W", early, *tests])


class Reading:
    """Which tests read which line, and the seconds that each took."""

    def __init__(self, path: Path):
        found = json.loads(path.read_text())
        self.tests, self.lines = found["tests"], found["lines"]
        log = path.with_suffix(".log")
        os.waitpid(fork(log, lambda: run(["--collect-only", "-v", "-m", "", "tests", "jaxrls"])), 0)
        self.known = {
            line for line in log.read_text().splitlines() if r"\\" not in line
        }  # others may be gone, or pytest does not find them

    def readers(self, mutant: Mutant):
        """Numbers of the tests that read the line, or where it is not known as such, the beginning of its statement."""
        lines = self.lines.get(str(mutant.path.relative_to(ROOT)), {})
        return lines.get(str(mutant.line)) or lines.get(str(mutant.begin), [])

    def of(self, mutant: Mutant, seconds: float):
        """Tests that read the line, of as many functions as there are, the cheapest first, each with what it computes for others."""
        by_function: dict[str, list] = {}
        for i in self.readers(mutant):
            test, cost = self.tests[i]
            by_function.setdefault(test.split("[")[0], []).append((cost, i))
        ranked = sorted(
            (rank, GRID not in name and cost, i) for name, found in by_function.items() for rank, (cost, i) in enumerate(sorted(found))
        )
        chosen: list = []
        spent = 0.0
        for *_, i in ranked:
            cost = self.tests[i][1]
            if spent + cost > seconds and chosen:
                continue
            spent += cost
            chosen.append([test for test in (self.tests[i][0], *self.company(i)) if test in self.known])
        return [tests for tests in chosen if tests]

    def files_of(self, mutant: Mutant):
        """All tests of the files of those that read the line, the shortest file first: a program that an earlier test has compiled is not read again."""
        named = {self.tests[i][0].split("::")[0] for i in self.readers(mutant)}
        found: dict[str, list] = {name: [] for name in named}
        for test, cost in self.tests:
            if test in self.known and test.split("::")[0] in named:
                found[test.split("::")[0]].append((test, cost))
        return [[test for test, _ in tests] for tests in sorted(found.values(), key=lambda tests: sum(cost for _, cost in tests)) if tests]

    def company(self, i):
        """Tests of the same function right after it that took no time: they look at what it has computed."""
        test, cost = self.tests[i]
        for other, more in self.tests[i + 1 :]:
            if other.split("[")[0] != test.split("[")[0] or more > max(0.03, cost / 8):
                return
            yield other


def read(options):
    """Run the suite under coverage, in `jobs` processes, and keep what was read."""
    parts = [part for part in shares(options.tests, options.jobs) if part]
    ends = [(options.reading.with_suffix(f".coverage{i}"), options.reading.with_suffix(f".order{i}")) for i in range(len(parts))]
    path = os.pathsep.join([str(ROOT / "fuzz"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    coverage, running = [sys.executable, "-m", "coverage"], []
    for part, (data, order) in zip(parts, ends, strict=True):
        command = [*coverage, "run", "--branch", f"--source={ROOT / 'jaxrls'}", f"--data-file={data}"]
        command += ["-m", "pytest", "-n", "0", "-p", "mutants", "-p", "no:cacheprovider", *part]
        running.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, "JAXRLS_ORDER": str(order)}))
    if any([process.wait() for process in running]):
        raise SystemExit("a test failed: no test is to be held against mutants that fails without them")
    keep(ends, options.reading)
    whole = f"--data-file={options.reading.with_suffix('.coverage')}"
    subprocess.run([*coverage, "combine", "--keep", whole, *(str(data) for data, _ in ends)], cwd=ROOT, check=True)
    subprocess.run([*coverage, "report", whole, "--skip-covered", "-m"], cwd=ROOT, check=True)


def shares(tests, count: int):
    """Files of tests for each of so many processes, about as long; what is no folder of tests stays whole, with the first."""
    found: list = [[] for _ in range(count)]
    for name in tests:
        files = [path for path in (ROOT / name).rglob("test_*.py") if path.name not in UNREAD]
        for i, path in enumerate(sorted(files, key=lambda path: -path.stat().st_size)):
            found[i % count].append(str(path.relative_to(ROOT)))
        if not files:
            found[0].append(name)
    return found


def keep(ends, reading: Path):
    """Lines and tests from the data of coverage, as Reading has them."""
    from coverage import CoverageData

    tests, lines = [], {}
    for data, order in ends:
        found = CoverageData(str(data))
        found.read()
        some = json.loads(order.read_text())
        index = {test: len(tests) + i for i, (test, _) in enumerate(some)}
        tests += some
        for file in found.measured_files():
            held = lines.setdefault("jaxrls" + file.rpartition("/jaxrls")[2], {})
            for n, names in found.contexts_by_lineno(file).items():
                held.setdefault(n, []).extend(sorted(index[c] for c in set(names) if c in index))
    reading.write_text(json.dumps({"tests": tests, "lines": lines}))


TOOK: list = []


def pytest_runtest_logreport(report):
    """As a plugin: how long a test took, setup included."""
    if "JAXRLS_ORDER" in os.environ:
        if report.when == "setup":
            TOOK.append([report.nodeid, 0.0])
        TOOK[-1][1] += report.duration


def pytest_runtest_setup(item):
    """As a plugin: whose reading it is."""
    if "JAXRLS_ORDER" in os.environ:
        from coverage import Coverage

        Coverage.current().switch_context(item.nodeid)


def pytest_unconfigure():
    """As a plugin: keep the times."""
    if "JAXRLS_ORDER" in os.environ:
        Path(os.environ["JAXRLS_ORDER"]).write_text(json.dumps(TOOK))


def examine(mutant, held, tests) -> int:
    """Exit code of the tests of some functions, and then of all, on the mutant: most are found by the first, whose files alone are read."""
    infect(mutant, held)
    first, rest = (sum(part, []) for part in (tests[:FIRST], tests[FIRST:]))
    return run(first) or (run(rest) if rest else 0)


def judge(mutants, held, reading, options):
    """Yield each mutant with what came of it, `jobs` at a time."""
    waiting, at_work = list(reversed(mutants)), {}
    while waiting or at_work:
        while waiting and len(at_work) < options.jobs:
            mutant = waiting.pop()
            tests = reading.files_of(mutant) if options.files else reading.of(mutant, options.seconds)
            if not tests:
                yield mutant, "unread", 0.0
                continue
            log = options.reading.parent / f"{options.reading.stem}-{len(waiting)}.log"
            at_work[fork(log, lambda m=mutant, t=tests: examine(m, held, t))] = mutant, time.monotonic(), log
        time.sleep(0.05)
        for child, (mutant, start, log) in list(at_work.items()):
            seconds = time.monotonic() - start
            late = seconds > options.limit
            if late:
                os.kill(child, signal.SIGKILL)
            over, status = os.waitpid(child, 0 if late else os.WNOHANG)
            if over:
                del at_work[child]
                word = "out of time" if late else OUTCOMES.get(os.waitstatus_to_exitcode(status), "broken")
                if word == "broken":
                    print(log.read_text())
                log.unlink()
                yield mutant, word, seconds


def main(argv=None) -> int:
    """The command line; the exit code is 1 where a mutant could not be tried."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--read", action="store_true", help="run the suite under coverage first")
    parser.add_argument("--tests", nargs="+", default=["tests", "jaxrls"], help="of which tests, in place of the whole suite")
    parser.add_argument("--reading", type=Path, default=ROOT / ".reading.json", help="where it is kept which test reads which line")
    parser.add_argument("--mutants", type=int, default=400, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--done", type=Path, help="what an earlier run said: mutants that it killed are left out")
    parser.add_argument("--only", nargs="*", help="parts of descriptions: those mutants, in place of a sample")
    parser.add_argument(
        "--files", action="store_true", help="whole files of tests, for what survives: those also run what others have compiled"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="tests of a mutant, as they took unchanged")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a mutant counts as found")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(argv)
    if options.read:
        read(options)
        return 0
    paths = sorted({path for pattern in MODULES for path in (ROOT / "jaxrls").glob(pattern) if path.suffix == ".py"})
    every = [mutant for path in paths for mutant in mutants_of(path)]
    if options.only:
        sample = [mutant for mutant in every if any(part in str(mutant) for part in options.only)]
    else:
        sample = random.Random(options.seed).sample(every, min(options.mutants, len(every)))
    if options.done:
        killed = {line.split(" s  ", 1)[1] for line in options.done.read_text().splitlines() if line.startswith(("killed", "out of time"))}
        sample = [mutant for mutant in sample if str(mutant) not in killed]
    print(f"{len(every)} mutants of {len(paths)} modules, {len(sample)} tried", flush=True)
    held = prepare()
    reading = Reading(options.reading)
    tally: dict[str, Counter] = {}
    for mutant, word, seconds in judge(sample, held, reading, options):
        tally.setdefault(str(mutant.path.parent.relative_to(ROOT)), Counter())[word] += 1
        print(f"{word:<12}{seconds:6.1f} s  {mutant}", flush=True)
    report(tally)
    return int(any(counts["broken"] for counts in tally.values()))


def report(tally):
    """Folders in rows, outcomes in columns."""
    words = sorted({word for counts in tally.values() for word in counts})
    rows = {**tally, "in all": sum(tally.values(), Counter())}
    print(f"{'':<20}" + "".join(f"{word:>14}" for word in words))
    for name, counts in rows.items():
        print(f"{name:<20}" + "".join(f"{counts[word]:>14}" for word in words))
    found = rows["in all"]["killed"] + rows["in all"]["out of time"]
    print(f"{found / rows['in all'].total():.1%} found")


if __name__ == "__main__":
    sys.exit(main())
