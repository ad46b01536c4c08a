"""The fuzzers: their corpus, some cases of each, and that they tell what goes wrong."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_precision  # processes of their own
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "fuzz"))
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


STREAMS = pytest.param("stream_kills", 1, marks=pytest.mark.slow)  # four fits; test_streams.py stops one in its own process


@pytest.mark.parametrize(("name", "cases"), [("archives", 400), ("tables", 100), ("kills", 4), STREAMS])
def test_some_cases_of_each_fuzzer(name, cases, tmp_path):
    if name == "kills" and not hasattr(os, "fork"):
        pytest.skip("kills its children, which takes a system that forks")
    command = [sys.executable, str(ROOT / "fuzz" / f"{name}.py"), "--cases", str(cases), "--seed", "3", "--quick", "--keep", str(tmp_path)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "in all" in result.stdout and "FAILED" not in result.stdout
    assert ("corpus" in result.stdout) == ("kills" not in name)
    assert not list(tmp_path.iterdir())


def test_a_case_that_fails_is_told_and_kept(tmp_path, capsys):
    harness = pytest.importorskip("harness")
    options = harness.parse("", ["--cases", "3", "--keep", str(tmp_path)])

    def fails():
        raise harness.Failure("another content", {"model.npz": b"bytes"})

    def raises():
        raise RuntimeError("a traceback")

    cases = Counter()

    def draw(rng):
        cases["drawn"] += 1
        return "drawn", (lambda: "right", fails, raises)[cases["drawn"] - 1]

    assert harness.drive("here", options, [("corpus", lambda: "right")], draw) == 1
    told = capsys.readouterr()
    assert "4 cases" in told.out and "another content" in told.err and "a traceback" in told.err
    kept = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert kept == ["failure.json", "failure.json", "model.npz"]
    assert harness.drive("here", options, [("corpus", lambda: "right")], lambda rng: ("drawn", lambda: "right")) == 0


def test_mutants_are_other_programs():
    mutants = pytest.importorskip("mutants")
    path = ROOT / "jaxrls" / "linalg" / "products.py"
    found = list(mutants.mutants_of(path))
    assert len(found) > 50 and found == list(mutants.mutants_of(path))
    given = ast.unparse(ast.parse(path.read_text()))
    for mutant in found[:: len(found) // 10]:
        tree = mutants.changed(mutant)
        assert ast.unparse(tree) != given, mutant
        code = mutants.code_of(compile(tree, str(path), "exec"), mutant.function)
        assert code is not None and code.co_qualname == mutant.function
