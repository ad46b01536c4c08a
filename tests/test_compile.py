"""Blocks are cut for the device that a program is for; where compilers are, programs compile."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxrls.rows.blocks import ACCELERATOR_BLOCK_BYTES, CPU_BLOCK_BYTES, default_block_size
from jaxrls.support.checks import platform

pytestmark = pytest.mark.any_precision
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
compiling = importlib.import_module("compile")


def test_blocks_are_cut_for_the_device_that_a_program_is_for(monkeypatch):
    assert platform() == "cpu" and default_block_size(10**6, 1000) <= CPU_BLOCK_BYTES / 1000
    with jax.default_device("gpu"):
        assert platform() == "gpu"
        assert (
            CPU_BLOCK_BYTES / 1000
            < default_block_size(10**6, 1000)
            <= ACCELERATOR_BLOCK_BYTES / 1000
        )
    with jax.default_device(jax.devices("cpu")[0]):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert platform() == "cpu"
    assert platform() == "gpu"


def test_missing_compilers_are_named(monkeypatch):
    monkeypatch.setitem(compiling.NEEDED, "h100", ("nowhere.to.be_found", "jax"))
    with pytest.raises(
        SystemExit, match=r"needs nowhere.to.be_found: pip install 'jaxrls\[compile\]'"
    ):
        compiling.prepare("h100")


def test_what_takes_minutes_for_a_tpu_is_left_out_in_words(capsys):
    assert compiling.wanted("v5e", ["path, GCV"], [256, 1024], slow=False) == [("path, GCV", 256)]
    left = "left out at n = 1024, as they take minutes (--slow): path, GCV\n"
    assert capsys.readouterr().out == left
    for target, sizes, slow in (("v5e", [256, 1024], True), ("h100", None, False)):
        found = compiling.wanted(target, ["path, GCV"], sizes, slow=slow)
        assert found == [("path, GCV", n) for n in sizes or compiling.SIZES[target]]


def test_every_computation_is_traced_in_its_precision():
    programs = importlib.import_module("computations")
    for name, one in programs.computations().items():
        with jax.enable_x64(name == programs.IN_FLOAT64):
            jax.eval_shape(one.fn, *one.arguments(600))
    shape = programs.shape
    with jax.enable_x64(False):
        for fn in programs.on_many().values():
            jax.eval_shape(fn, shape(80, 10), shape(80), shape(8, 10))


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_reports_of_compiled_programs_are_what_is_kept_and_name_every_computation(target):
    """At several n, and no product below full precision; lines of the same computation and n take
    the place of older ones.
    """
    stem = ROOT / "benchmarks" / "report" / f"compile_{target}"
    lines = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    assert stem.with_suffix(".md").read_text(encoding="utf-8") == compiling.table(lines) + "\n"
    assert compiling.merged(lines, lines[1:2]) == lines
    asked = set(compiling.wanted(target, None, None, slow=False))
    assert {(one["computation"], one["n"]) for one in lines} >= asked
    low = {one["computation"] for one in lines if one["below_full_precision"]}
    # Of float64, whose products XLA makes of pieces there.
    assert low == ({"refined, leave-one-out"} if target == "v5e" else set())


PROGRAM = """
%body.1 (param: f32[4]) -> f32[4] {
  %all-reduce.1 = pred[] all-reduce(%fusion.1), channel_id=1, replica_groups={}
}
ENTRY %main.2_spmd (param.1: f32[125000000,10]) -> f32[4000,4000] {
  %all-reduce-start = (f32[4000,1000]{1,0:T(8,128)}, f64[]) all-reduce-start(%a, %b), channel_id=2
  %all-reduce-done = f32[4000,1000] all-reduce-done(%all-reduce-start)
  ROOT %gathered = s32[8,2]{1,0} all-gather(%c), channel_id=3
}
"""


def test_collectives_are_read_from_a_program_with_their_bytes():
    found = [tuple(one.values()) for one in compiling.collectives(PROGRAM)]
    assert found == [
        ("all-reduce", 1, True),
        ("all-reduce", 4 * 4_000_000 + 8, False),
        ("all-gather", 64, False),
    ]


def test_the_report_on_many_devices_is_what_is_kept_and_moves_sums_only():
    """Lines of the same computation on the same devices take the place of older ones; no collective
    of a report moves as much as m × m + m × (d + t) twice.
    """
    folder = ROOT / "benchmarks" / "report"
    lines = json.loads((folder / "scale.json").read_text(encoding="utf-8"))
    assert (folder / "scale.md").read_text(encoding="utf-8") == compiling.table(lines) + "\n"
    assert compiling.merged(lines, lines[:1]) == lines
    for one in lines:
        assert one["below_full_precision"] == 0
        most = 8 * one["landmarks"] * (one["landmarks"] + 20)
        for part in one["collectives"]:
            assert part["kind"] == "all-reduce"
            assert part["bytes"] <= (8 if part["in_loop"] else most)


@pytest.mark.compilers
def test_compiles_for_a_gpu_that_is_not_here(tmp_path):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))
    }
    limits = {  # of bytes beyond those of K, in K's
        "path, leave-one-out": 7,
        "objective and gradient": 7,
        "K·V": 7,
        "landmarks, leave-one-out": 20,
        "one λ and its slope": 7,
    }
    words = ["--for", "h100", "--sizes", "2000", "--out", str(tmp_path), "--only", *limits]
    command = [sys.executable, str(ROOT / "benchmarks" / "compile.py"), *words]
    environment["PYTHONPATH"] = str(ROOT)
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=1500)
    lines = json.loads((tmp_path / "compile_h100.json").read_text(encoding="utf-8"))
    found = {one["computation"]: one for one in lines}
    for name, limit in limits.items():
        assert found[name]["below_full_precision"] == 0 and found[name]["beyond"] < limit
