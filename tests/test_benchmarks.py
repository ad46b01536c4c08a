"""The benchmark suite runs on small sizes, names every contestant, and makes its tables from the
report alone.
"""

import importlib
import json
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
