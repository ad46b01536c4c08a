"""What the README shows runs as it stands, as a user would run it: in a fresh process with JAX's defaults."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision  # fresh processes
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"PYTHONPATH": str(ROOT)}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(command, folder):
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def folder(tmp_path):
    """A folder with the files that the README's commands name."""
    X, y, names = rls.airfoil()
    header = ",".join((*names, "price"))
    np.savetxt(tmp_path / "train.csv", np.c_[X, y][:300], delimiter=",", header=header, comments="")
    (tmp_path / "rows").mkdir()
    for i, rows in enumerate(np.split(np.c_[X, y][:300], [120, 200])):
        np.savetxt(tmp_path / "rows" / f"{i}.csv", rows, delimiter=",", header=header, comments="")
    np.savetxt(tmp_path / "new.csv", X[300:320], delimiter=",", header=",".join(names), comments="")
    return tmp_path


def test_python_blocks(tmp_path):
    script = tmp_path / "readme.py"
    page = (ROOT / "docs" / "many-devices.md").read_text(
        encoding="utf-8"
    )  # whose second block test_processes.py runs, under what Slurm sets
    intervals = (ROOT / "docs" / "intervals.md").read_text(encoding="utf-8")
    script.write_text("\n".join([*blocks("python"), blocks("python", page)[0], *blocks("python", intervals)]), encoding="utf-8")
    result = run([sys.executable, "-W", "error::UserWarning", str(script)], tmp_path)
    assert result.stderr == ""
    assert (tmp_path / "fit.npz").exists()


def test_shell_blocks(folder):
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python -m jaxrls")]
    assert len(lines) == 4
    for line in lines:
        run([sys.executable, *shlex.split(line)[1:]], folder)
    assert len((folder / "predictions.csv").read_text().splitlines()) == 21
    assert np.load(folder / "predictions.npy").shape == (300,)


def test_set_up_commands_and_one_version():
    assert "pip install . && python -m jaxrls\n" in blocks("sh")
    assert "pip install -e '.[test]' && pytest\n" in blocks("sh")
    assert f"version: {rls.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"{rls.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert set(re.findall(r"\]\(([^)#:]+)\)", README)) <= {str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()}
