"""What the README and the pages of docs/ show runs as it stands, as a user would run it: in fresh
processes with JAX's defaults.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import FRESH

import jaxrls as rls

pytestmark = pytest.mark.any_precision  # fresh processes
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
# Runs the blocks of pages, given as JSON, in one process: each page with names of its own, and
# figures closed after it. What the page shows as printed must be, numbers to 5 %.
RUN = """
import contextlib, io, json, linecache, re, sys
number = re.compile(r"-?\\d+\\.?\\d*(?:e-?\\d+)?")
for page, blocks in json.load(open(sys.argv[1])).items():
    names = {"__name__": "__main__"}
    for place, (block, shown) in enumerate(blocks):
        file, printed = f"{page}, block {place}", io.StringIO()
        linecache.cache[file] = (len(block), None, block.splitlines(True), file)
        with contextlib.redirect_stdout(printed):
            exec(compile(block, file, "exec"), names)
        said = printed.getvalue()
        if shown:
            found, wanted = ([float(a) for a in number.findall(part)] for part in (said, shown))
            near = [a - b for a, b in zip(found, wanted)]
            most = [0.05 * abs(b) + 0.01 for b in wanted]
            same = number.sub("", said).split() == number.sub("", shown).split()
            if not same or any(abs(a) > b for a, b in zip(near, most)):
                sys.exit(f"{file} shows {shown!r} and printed {said!r}")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
"""
# Runs commands, given as JSON, one after another in one process, each to its exit code 0.
COMMANDS = """
import json, runpy, sys
for words in json.load(open(sys.argv[1])):
    sys.argv = ["jaxrls", *words]
    try:
        runpy.run_module("jaxrls", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{words} ended with {ended.code}")
"""


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(pages):
    """What is typed to the command line."""
    shown = [
        line for page in pages for block in blocks("sh", PAGES[page]) for line in block.splitlines()
    ]
    return [line for line in shown if line.startswith("python -m jaxrls")]


def run(words, folder):
    result = subprocess.run(
        [sys.executable, *words], cwd=folder, env=FRESH, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def folder(tmp_path):
    """A folder with the files that the commands name."""
    X, y, names = rls.airfoil()
    queries, grades = np.arange(40) // 5, y[:40].round()

    def write(name, rows, *more):
        header = ",".join((*names, *more))
        np.savetxt(tmp_path / name, rows, delimiter=",", header=header, comments="")

    (tmp_path / "rows").mkdir()
    write("train.csv", np.c_[X, y][:300], "price")
    for i, rows in enumerate(np.split(np.c_[X, y][:300], [120, 200])):
        write(f"rows/{i}.csv", rows, "price")
    write("new.csv", X[300:320])
    write("table.csv", np.c_[X[:40], queries, grades], "query", "grade")
    return tmp_path


# Pages whose code runs in every run; that of all others takes longer, and runs with -m slow.
FIRST = ("README.md", "docs/five-minutes.md", "docs/which.md")
# A block of code, and what is shown as printed by it.
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_python_blocks(tmp_path, first):
    shown = {page: SHOWN.findall(text) for page, text in PAGES.items() if (page in FIRST) == first}
    (tmp_path / "pages.json").write_text(json.dumps(shown), encoding="utf-8")
    warned = "-Werror::UserWarning", "-Wignore:Error reading persistent compilation cache"
    result = run([*warned, "-c", RUN, "pages.json"], tmp_path)
    assert result.stderr == ""


@pytest.mark.slow
def test_shell_blocks(folder):
    """Those of the README begin as those of the pages do."""
    lines = commands(page for page in PAGES if page != "README.md")
    assert len(lines) == 7
    assert all(any(line.startswith(short) for line in lines) for short in commands(["README.md"]))
    words = [shlex.split(line) for line in lines]
    assert all(each[:3] == ["python", "-m", "jaxrls"] for each in words)
    (folder / "commands.json").write_text(
        json.dumps([each[3:] for each in words]), encoding="utf-8"
    )
    run(["-c", COMMANDS, "commands.json"], folder)
    with_ends = np.loadtxt(
        folder / "predictions.csv", delimiter=",", skiprows=1
    )  # those of the page on intervals, the last that writes them
    assert (
        with_ends.shape == (20, 3)
        and (with_ends[:, 1] < with_ends[:, 0]).all()
        and (with_ends[:, 0] < with_ends[:, 2]).all()
    )
    assert np.load(folder / "predictions.npy").shape == (300,)


def test_set_up_commands():
    assert "pip install . && python -m jaxrls\n" in blocks("sh")
    assert "pip install -e '.[test]' && pytest\n" in blocks("sh")
    assert len(README.splitlines()) <= 110


def test_troubleshooting_quotes_what_is_said():
    """Every message of the page stands in the code, where strings are put together."""
    page = PAGES["docs/troubleshooting.md"]
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    parts = [
        "".join(
            part.value if isinstance(part, ast.Constant) else "…"
            for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
        )
        for path in (ROOT / "jaxrls").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]
    assert len(quoted) == 14
    assert [one for one in quoted if not any(one in part for part in parts)] == []


def test_code_fits_its_column():
    """88 columns are what a page shows without a bar."""
    lines = [
        (page, line)
        for page, text in PAGES.items()
        for language in ("python", "py")
        for block in blocks(language, text)
        for line in block.splitlines()
    ]
    assert [found for found in lines if len(found[1]) > 88] == []
