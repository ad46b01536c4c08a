"""Several processes on one machine: rows of each, and what they fit together, beside one process
with all rows.
"""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import FLOAT64, assert_close, refused

import jaxrls as rls
from jaxrls.rows.joint import check_named_alike
from rows.on_processes import LAMS, LANDMARKS, ON_MESH, WEIGHTS, Blocks, X, Y, fitted, numbers

pytestmark = FLOAT64
SCRIPT = Path(__file__).with_name("on_processes.py")
MINUTE = 60


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def started(count, folder, task):
    """So many processes that work together."""
    port = str(free_port())
    return [process(folder, SCRIPT, str(i), str(count), port, folder, task) for i in range(count)]


def process(folder, *words, **more):
    """Python begun in a folder."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(SCRIPT.parent)])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths} | more
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *words], env=environment, cwd=folder, **options)


def said(processes):
    """What they printed, once all have ended."""
    return [process.communicate(timeout=5 * MINUTE)[0] for process in processes]


def test_processes_name_their_columns_alike():
    """Those that have names, whichever is the first of them."""
    named = [{"columns": names} for names in ((), ("a", "b"), ("b", "a"))]
    check_named_alike(named[:2])
    words = "rows of process 2 have the columns 'b', 'a', and those of process 1 'a', 'b'"
    refused((lambda: check_named_alike(named), words))


def test_rows_of_a_process_are_not_dense():
    with pytest.raises(ValueError, match="lies with several processes"):
        rls.rows.stream([(np.eye(2), [0.0, 1.0])], distributed=True).dense()


@pytest.mark.slow
def test_processes_fit_together_what_one_fits_to_all_rows(tmp_path):
    processes = started(2, tmp_path, "fit")
    want, on_mesh = fitted(Blocks(0, 1), False), on_one_device()
    printed = said(processes)
    assert [process.returncode for process in processes] == [0, 0], printed
    for index, (text, who) in enumerate(
        zip(printed, ("process 1 failed: ValueError: ", ""), strict=True)
    ):
        assert f"refused: {who}block 1: X holds " in text
        assert "unlike: rows of process 1 do not match those of process 0" in text
        assert f"empty: {who}source has no rows" in text
        assert "another order: rows of process 1 have the columns 'c', 'b', 'a', and" in text
        for task, expected in (("fit", want), ("mesh", on_mesh)):
            found = np.load(tmp_path / f"{task}{index}.npz")
            for name, value in expected.items():
                # Coefficients have the condition of K_RR besides.
                bound = 1e-11 if name == "coef" else 1e-12
                assert_close(found[name], value, bound, f"{name}, {task}")


def on_one_device():
    """What the rows that processes spread over all of their devices give on one."""
    rows, y, weights = X[:ON_MESH], Y[:ON_MESH], WEIGHTS[:ON_MESH]
    options = {"weights": weights, "lams": LAMS, "landmarks": LANDMARKS[:8]}
    return numbers(rls.fit(rls.Gaussian(60.0), rows, y, **options), X)


@pytest.mark.slow
def test_the_script_of_the_docs_runs_under_slurm(tmp_path):
    """`fit.py` of the page on many devices."""
    text = (Path(__file__).parents[2] / "docs" / "large-data.md").read_text(encoding="utf-8")
    (tmp_path / "fit.py").write_text(re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0])
    (tmp_path / "rows").mkdir()
    for i in range(3):
        part = np.random.default_rng(i).normal(size=(100, 3)).astype(np.float32)
        np.savez(tmp_path / "rows" / f"{i}.npz", X=part, y=np.sin(part[:, 0]))
    slurm = {
        "SLURM_JOB_ID": str(free_port()),  # JAX takes the port from the last twelve bits of it
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": "1",
    }
    processes = [process(tmp_path, "fit.py", SLURM_PROCID=str(i), **slurm) for i in range(2)]
    printed = said(processes)
    assert [one.returncode for one in processes] == [0, 0], printed
    model = rls.load(tmp_path / "model.safetensors")
    assert model.predict(np.zeros((1, 3), np.float32)).shape == (1,)
    assert sorted(path.name for path in tmp_path.glob("sums*")) == ["sums.0-of-2", "sums.1-of-2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What processes that nothing happens to find, one file for each."""
    folder = tmp_path_factory.mktemp("whole")
    said(started(2, folder, "resume"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("task", ["die", "hang"])
def test_a_killed_worker_ends_the_others_and_its_checkpoint_goes_on(tmp_path, whole, task):
    processes = started(2, tmp_path, task)
    try:
        while not (tmp_path / "gone").exists() and processes[0].poll() is None:
            time.sleep(0.1)
        processes[0].wait(timeout=MINUTE)
        assert processes[0].returncode != 0
        assert (tmp_path / "gone").exists() and not (tmp_path / f"{task}0.npz").exists()
    finally:
        for one in processes:
            one.kill()
        printed = said(processes)
    assert task == "hang" or "another process has ended" in printed[0]
    said(started(2, tmp_path, "resume"))
    for index in range(2):
        resumed, straight = (np.load(folder / f"resume{index}.npz") for folder in (tmp_path, whole))
        assert all((resumed[name] == straight[name]).all() for name in straight)
