"""What leaves this repository: one version everywhere, a console script, and distributions that
hold what they should, to the last bit the same.
"""

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EPOCH = "1700000000"


def test_version_citation_and_changelog_are_in_step():
    """The changelog's first heading names the version, with its date once it is released, which the
    citation then has too.
    """
    changes, citation = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")
    )
    heading = re.search(r"^## (.*)$", changes, re.MULTILINE)[1]
    cited = dict(re.findall(r"^([\w-]+): [\"']?(.*?)[\"']?$", citation, re.MULTILINE))
    assert (cited["version"], cited["license"]) == (rls.__version__, PROJECT["license"])
    date = cited.get("date-released", "")
    version = rls.__version__
    assert heading == (f"[{version}] - {date}" if date else f"[Unreleased] ({version})")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d|", date)


def typed(monkeypatch, *argv):
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "18")  # which it would set, and leave set
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/jaxrls", *argv])
    try:
        module, name = PROJECT["scripts"]["jaxrls"].split(":")
        return getattr(import_module(module), name)()
    except SystemExit as stop:
        return stop.code


def test_the_console_script_is_the_command_line(monkeypatch, capsys):
    assert typed(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"jaxrls {rls.__version__}\n"
    for command in ((), ("fit",), ("predict",)):
        assert typed(monkeypatch, *command, "--help") == 0
        out = capsys.readouterr().out
        assert out.startswith(" ".join(("usage: jaxrls", *command)))
        assert "  jaxrls fit train.csv" in out and "python -m" not in out
    assert typed(monkeypatch, "fit") == 2
    assert "see jaxrls fit --help" in capsys.readouterr().err

    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrls.__main__.main", interrupted)
    assert typed(monkeypatch, "fit", "train.csv") == 130


# distributions
# --------------------------------------------------------------------------------------------------


def copied(folder):
    """The repository as another machine has it: other dates and permissions, another order, and
    things that lie around.
    """
    shutil.copytree(
        ROOT,
        folder,
        ignore=shutil.ignore_patterns(
            ".git", "__pycache__", ".*_cache", "site", "dist", ".hypothesis"
        ),
    )
    for i, path in enumerate(sorted(folder.rglob("*"))):
        os.utime(path, (1e9 + i, 1e9 + i))
        path.chmod(path.stat().st_mode | 0o020)
    (folder / "fit.npz").write_bytes(b"left by an example")
    return folder


def build(source, out):
    """Wheel and sdist by the backend that pyproject.toml names, without a network."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", out],
        cwd=source,
        env=environment,
        check=True,
        capture_output=True,
    )
    wheel, sdist = sorted(out.iterdir(), key=lambda path: path.suffix, reverse=True)
    return wheel, sdist


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling", reason="building needs hatchling: pip install -e '.[dev]'")
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built[1]) as archive:
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # not in the first Pythons 3.11
    return folder / f"jaxrls-{rls.__version__}"


@pytest.mark.slow
def test_two_builds_in_two_folders_are_equal(built, unpacked, tmp_path):
    """And the wheel of the sdist is the wheel."""
    again = build(copied(tmp_path / "elsewhere"), tmp_path / "out")
    assert [path.name for path in again] == [path.name for path in built]
    assert [digest(path) for path in again] == [digest(path) for path in built]
    assert digest(build(unpacked, tmp_path / "wheel")[0]) == digest(built[0])


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_licence(built):
    info, entry_points = f"jaxrls-{rls.__version__}.dist-info", configparser.ConfigParser()
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    held = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "jaxrls").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == {f"{info}/{name}" for name in held} | package
    assert package >= {"jaxrls/py.typed", "jaxrls/data/README.md"}
    assert dict(entry_points["console_scripts"]) == PROJECT["scripts"]


@pytest.mark.slow
def test_the_sdist_holds_what_the_checks_need(unpacked):
    """Every file of the tests, and what they read; its suite is collected there, and tests that
    read texts pass.
    """
    for folder in ("tests", "notebooks", "docs", "benchmarks", "jaxrls"):
        held, here = (
            {
                path.relative_to(top)
                for path in (top / folder).rglob("*")
                if path.suffix in (".py", ".md", ".ipynb", ".npz")
            }
            for top in (unpacked, ROOT)
        )
        assert held == here
    assert not list(unpacked.glob("*.npz"))
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    texts = [f"tests/test_{name}.py" for name in ("site", "structure", "packaging")]
    for arguments in (["--collect-only"], texts):
        result = subprocess.run(
            [*command, *arguments],
            cwd=unpacked,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.slow
def test_types_are_seen_from_outside(built, tmp_path):
    """mypy, strict, on code that imports the package from where packages are installed, which
    py.typed lets it read.
    """
    pytest.importorskip("mypy", reason="types are checked by mypy: pip install -e '.[dev]'")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(built[0]).extractall(site)
    (site / "others.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages")), encoding="utf-8"
    )
    shutil.copy(ROOT / "tests" / "typed" / "calls.py", tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--python-executable={python}",
        "calls.py",
    ]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")
    }
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout
