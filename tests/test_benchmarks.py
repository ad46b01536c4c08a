"""The benchmark suite runs on small sizes, names every contestant, and makes its tables from the
report alone.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import FRESH

pytestmark = pytest.mark.any_precision  # a process of its own
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))


def run(*words, program="run.py"):
    """What a run of the suite prints, or of another program."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), *map(str, words)]
    options = {"check": True, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(command, env=FRESH, **options).stdout


def text(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_has_every_contestant_and_the_floor_and_tables_are_made_from_it_alone(tmp_path):
    """Of a quick run of the cheapest works."""
    run("--quick", "--rounds", "1", "--out", tmp_path, "--only", "linear", "matmul")
    cases = json.loads(text(tmp_path / "report.json"))["cases"]
    assert [case["work"] for case in cases] == ["linear", "linear", "matmul"]
    for case in cases:
        assert case["floor"] and all(part["median"] > 0 for part in case["floor"])
        ours, *others = case["contestants"]
        assert ours["kind"] == "ours" and any(one["kind"] == "peer" for one in others), (
            "a peer that is not installed is named, never dropped"
        )
        assert all("missing" in one or one["median"] > 0 for one in (ours, *others))
        assert all(one["name"] in text(tmp_path / "report.md") for one in (ours, *others))
    assert ours["judged"] < 1e-12
    summary = run("--from", tmp_path / "report.json", "--out", tmp_path / "again")
    for case in cases:
        assert f"| {case['size']} |" in summary and f"(`{case['work']}`)" in summary
    assert text(tmp_path / "again" / "report.md") == text(tmp_path / "report.md")


@pytest.mark.slow
def test_floors_hold_on_a_few_sets():
    """What the table says of a hundred: 1 % of errors from ten to thirty times the floor on."""
    lines = run("--sets", "3", "--rows", "40", program="floors.py").splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {tuple(row[:2]) for row in cells} == {
        (factor, precision)
        for factor in ("Cholesky factor", "spectrum")
        for precision in ("float32", "float64")
    }
    times, *numbers = np.array([[float(cell) for cell in row[3:]] for row in cells]).T
    error, held_out, predicted, variances = numbers[1::2]  # the largest
    assert (error <= np.maximum(0.3 / times, 1e-3)).all()
    for of_rows in (held_out, predicted):
        assert (of_rows <= 3 / times).all()
    assert (variances[times >= 100] <= 0.1).all()


def test_the_readme_shows_the_report_that_is_kept():
    reports, common = map(importlib.import_module, ("report", "common"))
    kept = ROOT / "benchmarks" / "report"
    readme, report = text(ROOT / "README.md"), common.read(kept / "report.json")
    assert reports.with_table(readme, report, reports.FRONT) == readme, (
        "python benchmarks/run.py --from … --out … --readme README.md makes the table"
    )
    for name in ("report", "h100"):
        found = reports.markdown(common.read(kept / f"{name}.json"))
        assert text(kept / f"{name}.md") == found + "\n"
    assert not report["quick"] and all(
        part["median"] > 0 for case in report["cases"] for part in case["floor"]
    )


def test_exponents():
    scaling, kept = importlib.import_module("scaling"), ROOT / "benchmarks" / "report"
    assert scaling.exponent([1, 10, 100, 1000], [7, 3e1, 3e3, 3e5]) == pytest.approx(2)
    report = json.loads(text(kept / "scaling.json"))
    assert text(kept / "scaling.md") == scaling.markdown(report) + "\n"
    for line in report.values():
        told = scaling.exponent(line["sizes"], line["seconds"])
        assert line["exponent of seconds"] == pytest.approx(told)


def test_the_page_says_of_intervals_what_the_table_has():
    lines = text(ROOT / "benchmarks" / "report" / "intervals.md").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if " | jackknife+ | " in line]
    cover, error = (np.array([float(row[5].split(" ± ")[i]) for row in rows]) for i in range(2))
    level, ratio = (np.array([float(row[i]) for row in rows]) for i in (3, -1))
    low = cover < level - error
    assert len(rows) == 12 and all(row[8] == "yes" for row in rows)
    assert [row[7] == "no" for row in rows] == low.tolist()
    words = text(ROOT / "docs" / "uncertainty.md")
    assert f"within {np.ceil(1000 * abs(cover - level).max()) / 1000:.3f} of the level" in words
    below = f"In {low.sum()} of 12 cases it was below the level by more than a standard error"
    assert below in words
    assert f"{ratio.min():.2f} to {ratio.max():.2f} times as wide" in words


# a quarter of an hour on a device
# --------------------------------------------------------------------------------------------------

NUMBERS = "first", "again", "ratio"
TINY = """def test_of_this_world():
    pass


def test_of_none():
    assert 2 + 2 == 5, 'a | sum'
"""


def tables(markdown):
    """The cells of every table, by its title."""
    found = {}
    for section in markdown.split("## ")[1:]:
        title, *lines = section.splitlines()
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
        found[title] = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows[2:]]
    return found


def assert_tables_hold(folder):
    """All of the JSON file's rows, numbers to three digits."""
    report, shown = (
        json.loads(text(folder / "on_device.json")),
        tables(text(folder / "on_device.md")),
    )
    assert dict(shown["Machine"]) == {key: str(value) for key, value in report["about"].items()}
    wanted = [[name, one["ended"], str(one["seconds"])] for name, one in report["parts"].items()]
    assert shown["Parts"] == wanted
    assert len(shown["Found"]) == len(report["rows"])
    for cells, row in zip(shown["Found"], report["rows"], strict=True):
        part, what, size, *numbers, note = cells
        assert [part, what, size] == [row["part"], row["what"], row["size"]]
        assert note == " ".join(row["note"].split())
        for cell, name in zip(numbers, NUMBERS, strict=True):
            assert (cell == "") == (row[name] is None)
            assert cell == "" or float(cell) == pytest.approx(row[name], rel=5e-3)
    for one in report["failures"]:
        assert f"* {one['part']}: `{one['test']}`: " in text(folder / "on_device.md")
    return report


def test_a_part_that_ends_early_leaves_what_it_found(tmp_path):
    device = importlib.import_module("on_device")
    device.begin(tmp_path, [])
    options = {"small": True, "tests": [], "workers": 0, "dies": False}
    part = device.Part("calls", tmp_path, **options)
    part.found("fit", "n = 4", first=1.25, note="a | b\nand more")
    part.found("fit", "n = 4", first=1.25, again=0.125)
    part.found("tune", "n = 4", note="a | b\nand more")
    for name, code, took in (("calls", 124, 9), ("products", 137, 12), ("million", 137, 3)):
        device.ended(tmp_path, name, code, took, 9)
    device.ended(tmp_path, "float64", 0, 3, 9)
    report = assert_tables_hold(tmp_path)
    assert [(row["what"], row["again"]) for row in report["rows"]] == [
        ("fit", 0.125),
        ("tune", None),
    ]
    ended = {name: one["ended"] for name, one in report["parts"].items()}
    assert list(ended) == list(device.PARTS)
    assert ended["calls"] == ended["products"] == "cut off after 9 s"
    assert ended["million"].startswith("died: exit code 137") and ended["float64"] == "whole"
    assert ended["devices"] == "not begun"


@pytest.mark.slow
def test_a_quarter_of_an_hour_in_small(tmp_path):
    """Every part has a row, also one that is killed, and one that needs what is not here."""
    tiny, out = tmp_path / "test_tiny.py", tmp_path / "out"
    tiny.write_text(TINY, encoding="utf-8")
    script = ROOT / "benchmarks" / "on_device.sh"
    words = ["--small", "--tests", str(tiny), "--die", "calls", "--out", str(out)]
    environment = FRESH | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    options = {"check": True, "capture_output": True, "text": True, "timeout": 600}
    printed = subprocess.run([script, *words], cwd=tmp_path, env=environment, **options).stdout
    report = assert_tables_hold(out)
    assert text(out / "on_device.md") in printed
    device = importlib.import_module("on_device")
    ended = {name: one["ended"] for name, one in report["parts"].items()}
    assert list(ended) == list(device.PARTS)
    assert ended.pop("calls").startswith("died") and set(ended.values()) == {"whole"}
    rows = report["rows"]
    assert {row["part"] for row in rows} == set(device.PARTS) - {"about"}
    failed = [(one["part"], one["test"].split("::")[-1]) for one in report["failures"]]
    assert failed == [("devices", "test_of_none"), ("float32", "test_of_none")]
    assert "a | sum" in report["failures"][0]["message"]
    for row in rows:
        by_warp, of_tests = row["what"] == "K·V by Warp", row["what"] == "tests"
        if of_tests:
            assert row["note"] == "1 failed, 1 passed, pytest ended with 1"
        elif by_warp:
            assert row["note"] == "passed over: needs a GPU" and row["first"] is None
        else:
            assert row["first"] > 0 and not row["note"].startswith("failed")
    assert sum(row["ratio"] is not None for row in rows if row["part"] == "float64") == 3
    assert {path.name for path in out.iterdir()} == {
        *("on_device.json", "on_device.md", "on_device.log"),
        *("tests_devices.xml", "tests_float32.xml"),
    }
