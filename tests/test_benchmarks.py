"""The benchmark suite runs on small sizes, names every contestant, and makes its tables from the report alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_precision  # a process of its own
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What a quick run of the cheapest works leaves behind."""
    folder = tmp_path_factory.mktemp("report")
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--rounds", "1", "--out", str(folder), "--only"]
    subprocess.run([*command, "linear", "datasets", "matmul"], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    return folder


def test_a_report_has_every_contestant_and_the_floor(report):
    cases = json.loads((report / "report.json").read_text())["cases"]
    assert [case["work"] for case in cases] == ["linear", "linear", "datasets", "matmul"]
    for case in cases:
        assert case["floor"] and all(part["median"] > 0 for part in case["floor"])
        assert case["contestants"][0]["kind"] == "ours"
        assert all("missing" in one or one["median"] > 0 for one in case["contestants"])
        assert any(one["kind"] == "peer" for one in case["contestants"]), "a peer that is not installed is named, never dropped"
    matmul = cases[-1]["contestants"][0]
    assert matmul["judged"] < 1e-12
    text = (report / "report.md").read_text()
    assert all(one["name"] in text for case in cases for one in case["contestants"])


def test_tables_are_made_from_the_report_alone(report):
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--from", str(report / "report.json"), "--out", str(report / "again")]
    summary = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=300).stdout
    cases = json.loads((report / "report.json").read_text())["cases"]
    assert all(f"| {case['work']} | {case['size']} |" in summary for case in cases)
    assert (report / "again" / "report.md").read_text() == (report / "report.md").read_text()
