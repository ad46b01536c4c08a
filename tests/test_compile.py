"""Blocks are cut for the device that a program is for, and where compilers are, programs compile."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxrls.rows.blocks import ACCELERATOR_BLOCK_BYTES, CPU_BLOCK_BYTES, default_block_size
from jaxrls.support.target import platform

pytestmark = pytest.mark.any_precision
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
compiling, scale = (importlib.import_module(name) for name in ("compile", "scale"))


def test_products_below_full_precision_are_seen_in_a_program():
    full = jax.jit(lambda A: jnp.matmul(A, A, precision="highest")).lower(jnp.eye(4)).as_text("hlo")
    low = jax.jit(lambda A: jnp.matmul(A, A)).lower(jnp.eye(4)).as_text("hlo")
    assert compiling.below_full(full) == 0 and compiling.below_full(low) == 1


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
    assert (
        capsys.readouterr().out
        == "left out at n = 1024, as they take minutes (--slow): path, GCV\n"
    )
    assert compiling.wanted("v5e", ["path, GCV"], [256, 1024], slow=True) == [
        ("path, GCV", 256),
        ("path, GCV", 1024),
    ]
    assert compiling.wanted("h100", ["gram"], None, slow=False) == [
        ("gram", n) for n in compiling.SIZES["h100"]
    ]


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_reports_of_compiled_programs_are_what_is_kept_and_name_every_computation(target):
    """At several n, and no product below full precision; lines of the same computation and n take
    the place of older ones.
    """
    stem = ROOT / "benchmarks" / "report" / f"compile_{target}"
    lines = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    assert stem.with_suffix(".md").read_text(encoding="utf-8") == compiling.table(lines) + "\n"
    assert compiling.merged(lines, lines[1:2]) == lines
    assert {(one["computation"], one["n"]) for one in lines} >= set(
        compiling.wanted(target, None, None, slow=False)
    )
    low = {one["computation"] for one in lines if one["below_full_precision"]}
    assert low == (
        {"refined, leave-one-out"} if target == "v5e" else set()
    )  # float64, whose products XLA makes of pieces there


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
    found = [tuple(one.values()) for one in scale.collectives(PROGRAM)]
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
    assert (folder / "scale.md").read_text(encoding="utf-8") == scale.table(lines) + "\n"
    assert scale.merged(lines, lines[:1]) == lines
    for one in lines:
        kinds = {part["kind"] for part in one["collectives"]}
        assert kinds == {"all-reduce"} and one["below_full_precision"] == 0
        assert all(
            part["bytes"]
            <= (8 if part["in_loop"] else 8 * one["landmarks"] * (one["landmarks"] + 20))
            for part in one["collectives"]
        )


@pytest.mark.compilers
@pytest.mark.parametrize(
    "name",
    [
        "path, leave-one-out",
        "objective and gradient",
        "K·V",
        "landmarks, leave-one-out",
        "one λ and its slope",
    ],
)
def test_compiles_for_a_gpu_that_is_not_here(name, tmp_path):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))
    } | {"PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "compile.py"),
        "--for",
        "h100",
        "--only",
        name,
        "--sizes",
        "2000",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    (line, *_) = json.loads((tmp_path / "compile_h100.json").read_text(encoding="utf-8"))
    assert line["computation"] == name and line["below_full_precision"] == 0
    assert line["beyond"] < (20 if "landmarks" in name else 7)
