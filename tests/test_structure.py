"""The house rules: imports run downward, names mean one thing, every public name says what it does."""

import ast
import doctest
import functools
import inspect
import tomllib
from pathlib import Path

import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision
PACKAGE = Path(rls.__file__).parent

# A module imports from floors strictly below its own, so that modules on one floor do not know each other and no cycle can arise.
# A new module gets a line here: on the lowest floor above everything it imports.
FLOORS = {
    "_checks": 0,
    "_coding": 0,
    "_data": 0,
    "_files": 0,
    "_linalg": 0,
    "_losses": 0,
    "_plot": 0,
    "_precision": 0,
    "_progress": 0,
    "_pytree": 0,
    "_tables": 0,
    "_version": 0,
    "_inverse": 1,
    "_kernel": 1,
    "_sparse": 1,
    "_weighted": 1,
    "_blocks": 2,
    "_kernels": 2,
    "_factor": 3,
    "_gram": 3,
    "_landmarks": 4,
    "_model": 4,
    "_path": 4,
    "_point": 4,
    "_criteria": 5,
    "_diagnostics": 5,
    "_subset": 5,
    "_subset_point": 6,
    "_routes": 7,
    "_validation": 7,
    "_rank": 8,
    "_few": 8,
    "_fit": 9,
    "_objective": 8,
    "_start": 8,
    "_tune": 9,
}
# What faces the outside world: a door may import anything but another door, and nothing imports a door but the package's front page.
DOORS = {"_io", "__main__", "plot", "sklearn"}
FRONT = "__init__"
RUN_TIME = {"jax", "numpy", "jaxtyping", "optax"}


@functools.cache
def modules():
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree):
    """Names of all modules that a module imports, wherever in it: those of this package by their last part, or "" for itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor they come from"
            names = [f"jaxrls.{alias.name}" for alias in node.names] if node.module == "jaxrls" else [node.module]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            yield (top, rest.split(".")[0] if top == "jaxrls" else None, node)


def public():
    return {name: value for name, value in vars(rls).items() if not name.startswith("_") and not inspect.ismodule(value)}


def test_every_module_has_a_floor():
    unknown = set(modules()) - set(FLOORS) - DOORS - {FRONT}
    assert not unknown, f"give these modules a floor in FLOORS, above everything they import: {sorted(unknown)}"
    gone = set(FLOORS) - set(modules())
    assert not gone, f"these modules are gone: take them out of FLOORS: {sorted(gone)}"


@pytest.mark.parametrize("name", modules())
def test_imports_run_downward(name):
    own = [target for top, target, _ in imports(modules()[name]) if top == "jaxrls"]
    for target in own:
        if name == FRONT:
            assert target in FLOORS or target == "_io", f"{FRONT} imports {target}"
        elif name in DOORS:
            assert target not in DOORS, f"the door {name} imports the door {target}"
        else:
            assert target in FLOORS, f"{name} imports {target or 'the package itself'}: only a door may"
            assert FLOORS[target] < FLOORS[name], f"{name}, on floor {FLOORS[name]}, imports {target}, on floor {FLOORS[target]}"


@pytest.mark.parametrize("name", sorted(set(modules()) - DOORS))
def test_run_time_dependencies(name):
    """What `import jaxrls` needs is what pyproject.toml asks for; extras are imported where they are used."""
    tree = modules()[name]
    inside = {id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    standard = __import__("sys").stdlib_module_names
    at_import = {top for top, _, node in imports(tree) if id(node) not in inside}
    assert at_import - standard - {"jaxrls"} <= RUN_TIME


def test_modules_and_public_functions_have_different_names():
    """`jaxrls.fit` must mean one thing."""
    assert not set(modules()) & set(public())


def test_public_names_are_written_down():
    """The front page re-exports `X as X`, so that type checkers see what is public; nothing else is in reach without an underscore."""
    tree = modules()[FRONT]
    renamed = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname != alias.name
    }
    assert not renamed
    listed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.name[0] != "_"}
    assert set(public()) == listed


# What a docstring has nothing to say about, by section.
EXEMPT = {
    "Raises": {"absolute_error", "airfoil", "certificate", "misclassification", "squared_error"},
    "Source": {"certificate", "folds", "load", "save"},
    "Cost": {"certificate"},
}


@pytest.mark.parametrize("name", public())
def test_public_names_are_documented(name):
    """What it does, in a first line; an example that runs; for functions also cost, errors and source."""
    value = public()[name]
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert text.splitlines()[0].endswith((".", ":")), f"the first line of {name}'s docstring is not a sentence"
    assert ">>>" in text, f"{name} has no example"
    if not inspect.isclass(value):
        for section, without in EXEMPT.items():
            assert name in without or f"**{section}**" in text, f"{name} does not say its **{section}**"


def test_methods_are_documented():
    missing = [
        f"{name}.{attribute}"
        for name, value in public().items()
        if inspect.isclass(value)
        for attribute, member in vars(value).items()
        if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property | classmethod))
        if not inspect.getdoc(getattr(value, attribute))
    ]
    assert not missing


def test_examples_are_found_and_run():
    """pytest runs the examples of every module, and finds as many as there are public names at least."""
    options = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in options["addopts"] and "jaxrls" in options["testpaths"]
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name, value in public().items():
        module = inspect.getmodule(inspect.unwrap(value) if callable(value) else value)
        assert any(test.examples for test in finder.find(value, name, module=module)), f"the example of {name} is not found by doctest"
