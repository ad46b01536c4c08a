"""The benchmark suite runs on small sizes, names every contestant, and makes its tables from the
report alone.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision  # a process of its own
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {
    "PYTHONPATH": str(ROOT)
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What a quick run of the cheapest works leaves behind."""
    folder = tmp_path_factory.mktemp("report")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "run.py"),
        "--quick",
        "--rounds",
        "1",
        "--out",
        str(folder),
        "--only",
    ]
    subprocess.run(
        [*command, "linear", "datasets", "matmul"],
        cwd=folder,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return folder


def test_a_report_has_every_contestant_and_the_floor(report):
    cases = json.loads((report / "report.json").read_text(encoding="utf-8"))["cases"]
    assert [case["work"] for case in cases] == ["linear", "linear", "datasets", "matmul"]
    for case in cases:
        assert case["floor"] and all(part["median"] > 0 for part in case["floor"])
        assert case["contestants"][0]["kind"] == "ours"
        assert all("missing" in one or one["median"] > 0 for one in case["contestants"])
        assert any(one["kind"] == "peer" for one in case["contestants"]), (
            "a peer that is not installed is named, never dropped"
        )
    matmul = cases[-1]["contestants"][0]
    assert matmul["judged"] < 1e-12
    text = (report / "report.md").read_text(encoding="utf-8")
    assert all(one["name"] in text for case in cases for one in case["contestants"])


def test_tables_are_made_from_the_report_alone(report):
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "run.py"),
        "--from",
        str(report / "report.json"),
        "--out",
        str(report / "again"),
    ]
    summary = subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    cases = json.loads((report / "report.json").read_text(encoding="utf-8"))["cases"]
    assert all(
        f"| {case['size']} |" in summary and f"(`{case['work']}`)" in summary for case in cases
    )
    assert (report / "again" / "report.md").read_text(encoding="utf-8") == (
        report / "report.md"
    ).read_text(encoding="utf-8")


def test_the_readme_shows_the_report_that_is_kept():
    reports = importlib.import_module("report")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    kept = ROOT / "benchmarks" / "report"
    report = reports.read(kept / "report.json")
    assert reports.with_table(readme, report) == readme, (
        "python benchmarks/run.py --from … --out … --readme README.md makes the table"
    )
    assert (kept / "report.md").read_text(encoding="utf-8") == reports.markdown(report)
    assert not report["quick"] and all(
        part["median"] > 0 for case in report["cases"] for part in case["floor"]
    )
    assert (kept / "h100.md").read_text(encoding="utf-8") == reports.markdown(
        reports.read(kept / "h100.json")
    )


@pytest.mark.slow
def test_pairs_are_measured_beside_the_products_that_make_them():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "pairs.py"),
        "--sizes",
        "60",
        "--lams",
        "3",
        "--rounds",
        "1",
    ]
    out = subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert [float(line.split(" | ")[3]) > 0 for line in out.splitlines()[2:8]] == [True] * 6
    assert float(out.split("differ by ")[1]) < 1e-9


TIMERS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if path.stem not in ("compile", "scale")  # compilers are timed by these
    and any(
        word in path.read_text() for word in ("perf_counter", "from timing import", "import timed")
    )
]


@pytest.mark.parametrize(
    "script",
    [
        "sklearn_table",
        *(pytest.param(name, marks=pytest.mark.slow) for name in TIMERS if name != "sklearn_table"),
    ],
)
def test_what_times_tells_openblas_to_sleep_before_it_loads(script):
    """The variable is read when SciPy loads its OpenBLAS."""
    code = f"""
import os, sys
class Loads:
    def find_spec(self, name, *rest):
        if name == "scipy.linalg":
            print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
sys.meta_path.insert(0, Loads())
import {script}, scipy.linalg
"""
    environment = {
        name: value for name, value in ENVIRONMENT.items() if name != "OPENBLAS_THREAD_TIMEOUT"
    }
    folder = ROOT / "benchmarks"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    assert out.split() == ["18"]


@pytest.mark.slow
def test_waiting_is_measured_alone_and_beside_a_busy_process():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "waiting.py"),
        "--n",
        "60",
        "--timeouts",
        "unset",
        "18",
        "--rounds",
        "1",
    ]
    out = subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=300
    ).stdout.splitlines()
    assert [line.split("|")[2].strip() for line in out[2:]] == [
        "nothing",
        "a busy process",
    ] and all(line.count(" ms") == 4 for line in out[2:])


def test_what_fails_is_a_result_and_the_others_go_on():
    timing, run, reports, peers, works = map(
        importlib.import_module, ("timing", "run", "report", "peers", "works")
    )
    timings, results, failures = timing.interleaved(
        {"good": lambda: 3, "bad": lambda: [][0]}, rounds=2
    )
    assert (
        timings["good"].rounds == 2
        and results == {"good": 3}
        and failures == {"bad": "failed: list index out of range"}
    )

    def work(quick):
        """A work."""

    def broken():
        raise MemoryError

    case = works.Case(
        "n = 1",
        peers.Contestant(broken),
        {"floor": broken},
        {"peer": peers.Contestant(lambda: 1, lambda result: result)},
    )
    report = {
        "machine": run.machine(),
        "versions": {},
        "dtype": "",
        "date": "",
        "cases": [run.measure(work, case, 1)],
    }
    assert [row["to_floor"] for row in reports.rows(report)] == [None, None]
    assert "| n = 1 | jaxrls | failed: MemoryError |" in reports.markdown(report)
    assert "| A work (`work`) | n = 1 | – | – | floor | – |" in reports.summary(report)


def test_no_case_is_begun_when_time_is_over(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "run.py"),
        "--quick",
        "--only",
        "matmul",
        "--minutes",
        "0",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["cases"] == [] and report["not begun"] == [
        "matmul: 3,000 × 3,000 rows, d = 20, t = 10"
    ]


def test_exponents():
    scaling = importlib.import_module("scaling")
    assert scaling.exponent([1, 10, 100, 1000], [7, 3e1, 3e3, 3e5]) == pytest.approx(2)
    kept = ROOT / "benchmarks" / "report"
    report = json.loads((kept / "scaling.json").read_text(encoding="utf-8"))
    assert (kept / "scaling.md").read_text(encoding="utf-8") == scaling.markdown(report) + "\n"
    for line in report.values():
        assert line["exponent of seconds"] == pytest.approx(
            scaling.exponent(line["sizes"], line["seconds"])
        )


def test_goals_name_works_peers_and_sizes_that_are_measured():
    goals, reports = map(importlib.import_module, ("goals", "report"))
    cases = {
        (case["work"], case["size"]): case
        for case in reports.read(ROOT / "benchmarks" / "report" / "report.json")["cases"]
    }
    for key, (_, peers) in goals.GOALS.items():
        assert set(peers) <= {
            one["name"] for one in cases[key]["contestants"] if one["kind"] == "peer"
        }
    assert set(goals.PROMISED_INSTEAD) <= {
        peer for _, peers in goals.GOALS.values() for peer in peers
    }


def test_a_work_measured_again_takes_the_place_of_its_old_cases():
    reports = importlib.import_module("report")
    head = {"machine": 1, "versions": 2, "dtype": 3, "quick": False}
    old = {
        **head,
        "date": "then",
        "cases": [{"work": "a", "size": 1}, {"work": "a", "size": 2}, {"work": "b", "size": 1}],
    }
    new = {**head, "date": "now", "cases": [{"work": "a", "size": 3}]}
    assert reports.updated(old, new)["cases"] == [
        {"date": "now", "work": "a", "size": 3},
        {"date": "then", "work": "b", "size": 1},
    ]
    with pytest.raises(SystemExit, match="another machine"):
        reports.updated({**old, "machine": 0}, new)


@pytest.mark.filterwarnings("ignore:the chosen λ")
@pytest.mark.slow
def test_the_iterative_route_is_measured():
    """On rows of a smooth function: near its noise, sure of leave-one-out, and no predictions where
    λ is out of reach.
    """
    iterative = importlib.import_module("iterative")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    data = iterative.split(
        np.column_stack([X, np.sin(3 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.normal(size=200)]),
        150,
    )
    assert [part.shape for part in data] == [(150, 2), (150,), (50, 2), (50,)]
    for probes in (0, 8):
        found = iterative.accuracy(data, 40, rls.Iteration(tol=1e-3, probes=probes), 80)
        assert (
            found["rmse"] < 0.4
            and found["residual"] <= 2e-3
            and not found["words"]
            and found["bytes"] > 0
        )
        assert list(found["seconds"]) == ["tuning", "landmarks", "iteration", "predictions"]
        assert (found["loo"] is None) == (probes == 0)
    said = iterative.by_falkon(data, found["kernel"], found["lam"], 40)
    assert said.startswith(("missing: falkon", "RMSE"))
    z, exact, share = iterative.scores(data, 40, 16, 4, tuned_rows=80)
    assert len(z) == 4 and (abs(z) < 5).all() and 0 < exact < 0.1 and 0 < share < 0.5
    assert "the iteration stopped at a residual of" in iterative.too_small(data, 40, 80)[0]


@pytest.mark.slow
def test_a_search_is_compared_with_a_grid():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "search.py"),
        "--only",
        "airfoil",
        "--rows",
        "60",
    ]
    table = (
        subprocess.run(
            command, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=300
        )
        .stdout.strip()
        .splitlines()
    )
    assert len(table) == 2 + 3
    for line in table[2:]:
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        assert float(cells[4].split()[0]) < 0.01 and 2 <= int(cells[5]) <= 12
    search = importlib.import_module("search")
    assert search.valleys(
        np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 2, 1.005, 3, 2])
    ).tolist() == [1, 3]


def test_a_stream_is_compared_with_memory(tmp_path, capsys):
    stream = importlib.import_module("stream")
    stream.write(tmp_path, 1000, 3)
    for kind in ("stream", "memory"):
        stream.one(kind, str(tmp_path), 20)
    (known, seconds, peak, lam, error), other = (
        list(map(float, line.split())) for line in capsys.readouterr().out.splitlines()
    )
    assert known > 0 and seconds > 0 and peak > 0 and lam > 0
    assert error == pytest.approx(other[4], rel=1e-3)


def test_coverage_is_counted_and_judged(monkeypatch, capsys, tmp_path):
    """By ways whose shares are known: all new rows, the first half of them, and what a split has in
    its interval by hand.
    """
    intervals = importlib.import_module("intervals")
    seen = []

    def known(X, y, X_new):
        seen.append((X, y, X_new))
        ends = {
            "jackknife+": (-np.inf, np.inf),
            "studentised": (0.0, 0.0),
            "cv+": (np.where(np.arange(len(X_new)) < 0.5 * len(X_new), -9.0, 9.0), 9.0),
            "split": (-1.0, 1.0),
        }
        return {
            way: dict.fromkeys(
                intervals.LEVELS, tuple(np.broadcast_to(end, len(X_new)) for end in pair)
            )
            for way, pair in ends.items()
        }

    monkeypatch.setattr(intervals, "intervals", known)
    monkeypatch.setattr(intervals, "SETS", ("airfoil",))
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "intervals.py",
            "coverage",
            "--splits",
            "2",
            "--rows",
            "400",
            "--out",
            str(tmp_path / "table.md"),
        ],
    )
    with pytest.raises(SystemExit) as found:
        intervals.main()
    assert found.value.code == 1, "no interval of no width holds anything"
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    lines = {
        tuple(line.split(" | ")[3:5]): line.strip("| \n").split(" | ")
        for line in text.splitlines()
        if line.startswith("| airfoil")
    }
    assert len(lines) == 12
    assert lines["0.9", "jackknife+"][1:3] == ["400", "400"]
    assert lines["0.9", "jackknife+"][5:9] == ["1.0000 ± 0.0000", "yes", "yes", "yes"]
    assert lines["0.9", "studentised"][5:9] == ["0.0000 ± 0.0000", "no", "no", "no"]
    assert lines["0.8", "cv+"][5:] == ["0.5000 ± 0.0000", "no", "no", "no", "9.000", "4.50"]
    X, y, _ = rls.airfoil()
    shares = []
    for seed in range(2):
        rows = np.random.default_rng(seed).permutation(np.column_stack([X, y]))[:800]
        target = (rows[:, -1] - rows[:400, -1].mean()) / rows[:400, -1].std()
        shares.append(np.mean(np.abs(target[400:]) <= 1))
        np.testing.assert_allclose(seen[seed][1], target[:400], atol=1e-12)
    error = np.abs(np.diff(shares))[0] / 2
    assert lines["0.95", "split"][5] == f"{np.mean(shares):.4f} ± {error:.4f}"
    assert [
        part is np.True_
        for part in intervals.verdicts(np.array([0.75, 0.81, 0.81]), 0.8, "split")[2:]
    ] == [False, True, True]
    assert [
        bool(part) for part in intervals.verdicts(np.array([0.61, 0.62, 0.63]), 0.8, "cv+")[2:]
    ] == [False, False, True]


def test_the_page_says_of_intervals_what_the_table_has():
    lines = (
        (ROOT / "benchmarks" / "report" / "intervals.md").read_text(encoding="utf-8").splitlines()
    )
    rows = [line.strip("| ").split(" | ") for line in lines if " | jackknife+ | " in line]
    cover, error = (np.array([float(row[5].split(" ± ")[i]) for row in rows]) for i in range(2))
    level, ratio = (np.array([float(row[i]) for row in rows]) for i in (3, -1))
    low = cover < level - error
    assert (
        len(rows) == 12
        and [row[7] == "no" for row in rows] == low.tolist()
        and all(row[8] == "yes" for row in rows)
    )
    words = (ROOT / "docs" / "intervals.md").read_text(encoding="utf-8")
    assert f"within {np.ceil(1000 * abs(cover - level).max()) / 1000:.3f} of the level" in words
    assert f"standard error in {low.sum()} of 12" in words
    assert f"{ratio.min():.2f} to {ratio.max():.2f} times as wide" in words


@pytest.mark.slow
@pytest.mark.float64
def test_intervals_are_measured_on_every_way(monkeypatch, capsys):
    """Close to their levels on drawn rows, 300 of them to predict; and no faster than the product
    that they contain.
    """
    intervals = importlib.import_module("intervals")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    found = intervals.counted(
        np.column_stack([X, np.sin(X[:, 0]) + 0.3 * rng.standard_t(4, 400)]), 2, 100
    )
    for (level, way), parts in found.items():
        assert abs(parts[:, 0].mean() - level) < 4 * (level * (1 - level) / 100) ** 0.5, (
            level,
            way,
        )
    monkeypatch.setattr(
        sys, "argv", ["intervals.py", "time", "--n", "1000", "--m", "3000", "--rounds", "1"]
    )
    intervals.main()
    ratios = [
        float(line.split(" s ")[1].split()[0])
        for line in capsys.readouterr().out.splitlines()
        if "of the product" in line
    ]
    assert len(ratios) == 6 and ratios[0] == ratios[3] == 1 and min(ratios) > 0.7
