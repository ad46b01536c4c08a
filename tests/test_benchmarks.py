"""The benchmark suite runs on small sizes, and the front page shows what its committed report says."""

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
    subprocess.run([*command, "targets", "datasets", "matmul"], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    return folder


def test_a_report_has_every_contestant_and_the_floor(report):
    cases = json.loads((report / "report.json").read_text())["cases"]
    assert [case["work"] for case in cases] == ["targets", "datasets", "matmul"]
    for case in cases:
        assert case["floor"] and all(part["median"] > 0 for part in case["floor"])
        assert case["contestants"][0]["kind"] == "ours"
        assert all("missing" in one or one["median"] > 0 for one in case["contestants"])
        assert any(one["kind"] == "peer" for one in case["contestants"]), "a peer that is not installed is named, never dropped"
    matmul = cases[2]["contestants"][0]
    assert matmul["judged"] < 1e-12
    text = (report / "report.md").read_text()
    assert all(one["name"] in text for case in cases for one in case["contestants"])


def test_the_front_page_shows_the_committed_report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import report as reports

    committed = reports.read(ROOT / "benchmarks" / "report" / "report.json")
    assert not committed["quick"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.partition(reports.MARK_BEGIN)[2].partition(reports.MARK_END)[0]
    assert shown.strip() == reports.summary(committed).strip()
