"""Every notebook runs from top to bottom in a process of its own, and is stored with what it
showed.
"""

import os
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LIMIT = 2**20
TIMEOUT = 600  # for one cell, on a machine that does other things too

pytestmark = pytest.mark.float64  # once is enough: notebooks choose their own precision


@pytest.fixture
def nbformat():
    return pytest.importorskip(
        "nbformat",
        reason="notebooks need nbformat, nbclient and ipykernel: pip install -e '.[test]'",
    )


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def errors(notebook):
    return [
        output.evalue
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "error"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs(path, nbformat):
    assert path.stat().st_size < LIMIT
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert errors(notebook) == []
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), (
        "run the notebook once, from top to bottom, and save it"
    )
    assert any(
        "image/png" in output.get("data", {})
        for cell in code_cells(notebook)
        for output in cell.outputs
    )


@pytest.mark.slow  # and whenever the site is built
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # those of Jupyter's own packages
def test_runs(path, nbformat, tmp_path, monkeypatch):
    nbclient = pytest.importorskip(
        "nbclient", reason="running notebooks needs nbclient: pip install -e '.[test]'"
    )
    pytest.importorskip(
        "ipykernel", reason="running notebooks needs ipykernel: pip install -e '.[test]'"
    )
    root = str(path.parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert errors(notebook) == []
