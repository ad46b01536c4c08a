"""Blocks are cut for the device that a program is for; reports of compiled programs."""

import importlib
import json
import sys
from pathlib import Path

import jax
import pytest

from jaxrls.core.linalg.blocks import ACCELERATOR_BLOCK_BYTES, CPU_BLOCK_BYTES, default_block_size
from jaxrls.core.support import platform

pytestmark = pytest.mark.any_precision
ROOT = Path(__file__).parents[3]
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


@pytest.mark.slow
def test_every_computation_is_traced_in_its_precision():
    programs = importlib.import_module("computations")
    for name, one in programs.computations().items():
        with jax.enable_x64(name == programs.IN_FLOAT64):
            jax.eval_shape(one.fn, *one.arguments(600))
    shape = programs.shape
    with jax.enable_x64(False):
        for fn in programs.on_many().values():
            jax.eval_shape(fn, shape(80, 10), shape(80), shape(8, 10))


def kept(name):
    """Lines of a report, whose table is made of them; newer lines take the place of older ones."""
    stem = ROOT / "benchmarks" / "report" / name
    lines = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    assert stem.with_suffix(".md").read_text(encoding="utf-8") == compiling.table(lines) + "\n"
    assert compiling.merged(lines, lines[1:2]) == lines
    return lines


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_reports_of_compiled_programs_are_what_is_kept_and_name_every_computation(target):
    """At several n, and no product below full precision."""
    lines = kept(f"compile_{target}")
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
    """No collective of a report moves as much as m × m + m × (d + t) twice."""
    for one in kept("scale"):
        assert one["below_full_precision"] == 0
        most = 8 * one["landmarks"] * (one["landmarks"] + 20)
        for part in one["collectives"]:
            assert part["kind"] == "all-reduce"
            assert part["bytes"] <= (8 if part["in_loop"] else most)
