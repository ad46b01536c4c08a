"""Several processes on one machine: rows of each, and what they fit together, beside one process
with all rows.
"""

import functools
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from on_processes import LAMS, LANDMARKS, ON_MESH, WEIGHTS, Blocks, X, Y, fitted
from support import assert_close

import jaxrls as rls
import jaxrls.rows.joint as implementation

pytestmark = pytest.mark.float64
SCRIPT = Path(__file__).with_name("on_processes.py")
MINUTE = 60


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def started(count, folder, task):
    """So many processes that work together."""
    port, environment = (
        str(free_port()),
        {**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"},
    )
    command = [sys.executable, str(SCRIPT)]
    run = [[*command, str(i), str(count), port, str(folder), task] for i in range(count)]
    return [
        subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for args in run
    ]


def said(processes):
    """What they printed, once all have ended."""
    return [process.communicate(timeout=5 * MINUTE)[0] for process in processes]


def test_rows_are_counted_and_summed_as_one_process_would():
    own = [(np.eye(2), [0.0, 1.0]), (2 * np.eye(2), [0.0, 2.0])]
    one, joint = (
        rls.stream(own, standardize=True),
        rls.stream(own, standardize=True, distributed=True),
    )
    assert joint.shape == one.shape and joint.host_dtype == one.host_dtype == np.float64
    assert (joint.labels == one.labels).all()
    assert (joint.sample == one.sample).all()
    assert (joint.means == one.means).all() and (joint.scales == one.scales).all()
    assert float(joint.sum(lambda x, v: (v[:, None] * x).sum(), np.arange(4.0))) == float(
        one.sum(lambda x, v: (v[:, None] * x).sum(), np.arange(4.0))
    )
    assert (joint.take([3, 1]) == one.take([3, 1])).all()
    with pytest.raises(ValueError, match="lie with several processes"):
        joint.dense()


def test_rows_of_another_process_that_do_not_go_with_these_are_refused(monkeypatch):
    """Of two processes, of which the other's rows have one column more."""

    def told(own):
        return [own, {**own, "sample": np.ones((len(own["sample"]), 3))}]

    monkeypatch.setattr(implementation, "tell_all", told)
    with pytest.raises(
        ValueError, match="rows of process 1 do not go together with those of process 0"
    ):
        rls.stream([(np.eye(2), [0.0, 1.0])], distributed=True)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_fit_together_what_one_fits_to_all_rows(count, tmp_path):
    processes = started(count, tmp_path, "fit")
    want = fitted(Blocks(0, 1), False)
    printed = said(processes)
    assert [process.returncode for process in processes] == [0] * count, printed
    for index, text in enumerate(printed):
        who = "" if index == count - 1 else f"process {count - 1} failed: ValueError: "
        assert f"refused: {who}block 1: X is nan at row 0" in text
        assert (
            f"unlike: rows of process {count - 1} do not go together with those of process 0"
            in text
        )
        found = np.load(tmp_path / f"fit{index}.npz")
        for name, value in want.items():
            assert_close(
                found[name], value, 1e-11 if name == "coef" else 1e-12, name
            )  # coefficients have the condition of K_RR besides
        found, want_on_mesh = np.load(tmp_path / f"mesh{index}.npz"), on_one_device()
        for name in found:
            assert_close(
                found[name],
                want_on_mesh[name],
                1e-11 if name == "coef" else 1e-12,
                f"{name} on all devices of all processes",
            )


@functools.cache
def on_one_device():
    """What the rows that processes spread over all of their devices give on one."""
    n = ON_MESH
    fit = rls.fit(
        rls.Gaussian(60.0), X[:n], Y[:n], weights=WEIGHTS[:n], lams=LAMS, landmarks=LANDMARKS[:8]
    )
    return {
        "errors": fit.errors,
        "lam": fit.lam,
        "coef": fit.model.coef,
        "predicted": fit.predict(X),
    }


def script():
    """`fit.py` of the page on many devices."""
    text = (Path(__file__).parents[1] / "docs" / "many-devices.md").read_text(encoding="utf-8")
    return re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0]


@pytest.mark.slow
def test_the_script_of_the_docs_runs_under_slurm(tmp_path):
    (tmp_path / "rows").mkdir()
    for i in range(3):
        part = np.random.default_rng(i).normal(size=(100, 3)).astype(np.float32)
        np.savez(tmp_path / "rows" / f"{i}.npz", X=part, y=np.sin(part[:, 0]))
    (tmp_path / "fit.py").write_text(script())
    job = str(free_port())  # JAX takes the port from the last twelve bits of a job's number

    def task(i):
        slurm = {
            "JOB_ID": job,
            "STEP_NODELIST": "localhost",
            "NTASKS": "2",
            "PROCID": str(i),
            "LOCALID": "0",
            "STEP_NUM_NODES": "1",
        }
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            **{f"SLURM_{name}": value for name, value in slurm.items()},
        }
        environment["PYTHONPATH"] = str(Path(rls.__file__).parents[1])
        run = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "env": environment,
            "cwd": tmp_path,
        }
        return subprocess.Popen([sys.executable, "fit.py"], **run)

    processes = [task(0), task(1)]
    printed = said(processes)
    assert [process.returncode for process in processes] == [0, 0], printed
    assert rls.load(tmp_path / "model.safetensors").predict(np.zeros((1, 3), np.float32)).shape == (
        1,
    )
    assert sorted(path.name for path in tmp_path.glob("sums*")) == ["sums.0-of-2", "sums.1-of-2"]


@pytest.mark.slow
def test_a_killed_worker_ends_the_others_and_its_checkpoint_goes_on(tmp_path):
    assert_ends_within_a_minute("die", tmp_path)
    assert "another process is gone" in (tmp_path / "said").read_text()
    said(started(2, tmp_path, "resume"))
    whole = tmp_path / "whole"
    whole.mkdir()
    said(started(2, whole, "resume"))
    for index in range(2):
        resumed, straight = (np.load(folder / f"resume{index}.npz") for folder in (tmp_path, whole))
        assert all((resumed[name] == straight[name]).all() for name in straight)


@pytest.mark.slow
def test_a_worker_that_hangs_ends_the_others(tmp_path):
    assert_ends_within_a_minute("hang", tmp_path)


def assert_ends_within_a_minute(task, folder):
    processes = started(2, folder, task)
    try:
        while not (folder / "gone").exists() and processes[0].poll() is None:
            time.sleep(0.1)
        since = time.monotonic()
        processes[0].wait(timeout=MINUTE)
        assert processes[0].returncode != 0 and time.monotonic() - since < MINUTE
        assert (folder / "gone").exists() and not (folder / f"{task}0.npz").exists()
    finally:
        for process in processes:
            process.kill()
        printed = said(processes)
    (folder / "said").write_text(printed[0])
