"""The house rules: imports run downward, names mean one thing, every public name says what it
does.
"""

import ast
import doctest
import functools
import graphlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision
PACKAGE = Path(rls.__file__).parent
ROOT = PACKAGE.parent

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def listed(title):
    """The rows of a table of CONTRIBUTING.md, by the folders or modules in their first column."""
    part = CONTRIBUTING.split(f"### {title}\n")[1].split("\n#")[0]
    rows = [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("| `")]
    return {name: row for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)", row[0])}


TITLES = "The core, layer by layer", "The front", "Rooms", "Doors"
LISTING = {title: listed(title) for title in TITLES}
# Inside the core a folder imports only from folders above it in this list; within a folder no
# modules import each other in a circle. The front imports the core; a room both, and of other rooms
# those that the table names. A door may import anything but another door, and nothing imports a
# door but the front page: files are for every door, and `__main__` is the handle of the command
# line's. The methods of `Fit` import a room when they are called, and its types where types are
# checked; methods that plot import `pictures`.
FLOORS, FRONT, _, DOORS = map(list, LISTING.values())
BELOW_ROOMS = {"core", *FRONT}
ROOMS = {name: set(re.findall(r"`(\w+)/", row[2])) for name, row in LISTING["Rooms"].items()}
PAGES = [getattr(rls, name) for name in rls.__all__ if inspect.ismodule(getattr(rls, name))]
FRONT_PAGE = "__init__"
RUN_TIME = {"jax", "numpy", "jaxtyping", "optax", "safetensors"}


@functools.cache
def modules():
    """Every module by its name below the package, `factors.spectrum` and so on."""
    names = {
        path: ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {
        name.removesuffix(".__init__"): ast.parse(path.read_text(encoding="utf-8"))
        for path, name in names.items()
    }


@functools.cache
def code(name):
    """The code of a module, without comments."""
    return ast.unparse(modules()[name])


def when_called(name, tree):
    """The imports of a module that a method of a result makes when it is called."""
    nodes = []
    for node in tree.body:
        if name == "front.fitted" and isinstance(node, ast.If):
            nodes += node.body if ast.unparse(node.test) == "TYPE_CHECKING" else []
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            lazy = [part for part in ast.walk(method) if isinstance(part, ast.ImportFrom)]
            fits = (name, node.name) == ("front.fitted", "Fit")
            plots = getattr(method, "name", "").startswith("plot")
            nodes += [
                part for part in lazy if fits or plots and part.module.startswith("jaxrls.pictures")
            ]
    return set(map(id, nodes))


def imports(tree):
    """Names of all modules that a module imports, wherever in it: (top, the rest for those of this
    package, node).
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor they come from"
            names = (
                [f"jaxrls.{alias.name}" for alias in node.names]
                if node.module == "jaxrls"
                else [node.module]
            )
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            yield (top, rest if top == "jaxrls" else None, node)


def room(name):
    """The core, the front, a room or a door: the topmost folder of a module."""
    return name.split(".")[0]


def folder(name):
    """The floor of a module of the core, the room of another."""
    return ".".join(name.split(".")[: 1 + (room(name) == "core")])


def public():
    """Names of the front page, and of its modules."""
    names = {name: getattr(page, name) for page in (rls, *PAGES) for name in page.__all__}
    return {name: value for name, value in names.items() if not inspect.ismodule(value)}


def test_classes_that_files_hold_have_names_of_their_own():
    classes = [node for tree in modules().values() for node in ast.walk(tree)]
    classes = [node for node in classes if isinstance(node, ast.ClassDef) and node.decorator_list]
    names = [node.name for node in classes if "pytree" in map(ast.unparse, node.decorator_list)]
    assert len(names) > 50 and len(names) == len(set(names))


def test_the_listing_names_every_folder_and_its_page():
    assert {room(name) for name in modules()} == {*BELOW_ROOMS, FRONT_PAGE, *ROOMS, *DOORS}
    assert {name.split(".")[1] for name in modules() if name.startswith("core.")} == set(FLOORS)
    rows = [row for table in LISTING.values() for row in table.values()]
    assert [row for row in rows if not re.search(r"\]\(docs/[\w/-]+\.md", row[-1])] == []


def targets(name):
    """Modules of the package that a module imports."""
    lazy = when_called(name, modules()[name])
    for top, rest, node in imports(modules()[name]):
        if top == "jaxrls" and id(node) not in lazy:
            parts = rest.split(".")
            assert rest in modules() or ".".join(parts[:-1]) in modules() or rest == ""
            yield rest


@pytest.mark.parametrize("name", [name for name in modules() if room(name) in ("core", *DOORS)])
def test_imports_run_downward(name):
    """From floor to floor of the core, and from the doors to everything but another door."""
    for target in targets(name):
        own, other = room(name), room(target)
        if own in DOORS:
            assert (
                other not in DOORS or other in (own, "io") or (own, other) == ("__main__", "cli")
            ), f"the door {name} imports the door {target}"
        elif own == other == "core" and folder(name) != folder(target) and "." in name:
            here, there = (FLOORS.index(part.split(".")[1]) for part in (name, target))
            assert there < here, f"{name} imports {target}, which is not below it"


@pytest.mark.parametrize("name", [name for name in modules() if name != FRONT_PAGE])
def test_floors_are_imported_by_what_they_offer(name):
    """From outside of a floor never one of its modules."""
    deeper = {
        target
        for target in targets(name)
        if room(target) in BELOW_ROOMS and folder(target) not in (target, folder(name))
    }
    assert not deeper, f"{name} imports {deeper}: import from the floor"


def may_import(own):
    """Topmost folders that the core, the front or a room may import."""
    if own == "core":
        return {own}
    return BELOW_ROOMS | {own} | ROOMS.get(own, set())


def test_core_imports_nothing_else_and_a_room_only_what_the_table_says():
    found = {
        (name, target)
        for name in modules()
        for target in targets(name)
        if room(name) in BELOW_ROOMS or room(name) in ROOMS
        if room(target) not in may_import(room(name))
    }
    assert found == set()


DELETED = {"ranking", "two_sided"}
ON_THE_REST = """
import numpy as np, jaxrls as rls
X, y = np.linspace(0, 1, 40)[:, None], np.sin(6 * np.linspace(0, 1, 40))
assert rls.fit(rls.Gaussian(0.3), X, y, lams=[1e-3, 1.0]).r2 > 0.99
assert not {"ranking", "two_sided"} & set(dir(rls))
"""
# Criteria with every part of two algebras, by refits, derivatives of one, and that there are no
# others.
OF_THE_CONTRACT = (
    "test_grid.py::test_against_refits[gram-zeros-constant]",
    "test_grid.py::test_against_refits[landmarks-zeros-constant]",
    "test_grid.py::test_functions_on_one_column",
    "test_grid.py::test_every_factor_has_a_row",
    "test_grid.py::test_every_column_is_asked_of_some_factor",
    "test_grid.py::test_every_criterion_has_a_column",
    "test_derivatives.py::test_every_smooth_criterion[points]",
)


def without_rooms(page):
    """The source of the front page without the rooms that are deleted."""
    tree = ast.parse(page.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if alias.name not in DELETED]
        if isinstance(node, ast.List):
            node.elts = [part for part in node.elts if getattr(part, "value", None) not in DELETED]
    return ast.unparse(tree)


@pytest.mark.slow
def test_rooms_can_be_deleted_with_their_tests(tmp_path):
    """All that names them is the front page."""
    shutil.copytree(PACKAGE, tmp_path / "jaxrls", ignore=shutil.ignore_patterns(*DELETED))
    front = tmp_path / "jaxrls" / "__init__.py"
    front.write_text(without_rooms(PACKAGE / front.name), encoding="utf-8")
    kept = shutil.ignore_patterns(*DELETED, "__pycache__")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=kept)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    named = [f"tests/contract/{name}" for name in OF_THE_CONTRACT]
    grid = "-m", "pytest", "-n", "0", "-m", "", *named
    for command in (("-c", ON_THE_REST), grid):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_circles():
    """Also within a folder."""
    edges = {name: set(targets(name)) & set(modules()) for name in modules()}
    graphlib.TopologicalSorter(
        {name: targets - {name} for name, targets in edges.items() if name != FRONT_PAGE}
    ).prepare()


@pytest.mark.parametrize("name", [name for name in modules() if room(name) == "core"])
def test_the_core_does_not_ask_whether_arrays_have_values(name):
    """It computes. What needs values is decorated by `where_known`, or calls functions like it."""
    asks = re.search(r"\bis_concrete\b|core\.Tracer\b", code(name))
    assert folder(name) == "core.support" or not asks


def test_static_arguments_are_named():
    """Counted ones go wrong in silence where a parameter is put before them."""
    assert not [name for name in modules() if "static_argnums" in code(name)]


PRODUCTS = {"matmul", "dot", "vdot", "vecdot", "inner", "tensordot", "einsum", "dot_general"}


@pytest.mark.parametrize("name", [name for name in modules() if name != "core.linalg.products"])
def test_matrices_are_multiplied_in_one_place(name):
    """Which says the highest precision: the default on a GPU or a TPU is a lower one."""
    for node in ast.walk(modules()[name]):
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), ast.unparse(
            node
        )
        if isinstance(node, ast.Attribute) and node.attr in PRODUCTS:
            assert ast.unparse(node.value) not in ("jnp", "jax.numpy", "lax", "jax.lax"), (
                ast.unparse(node)
            )


def test_only_public_names_of_jax():
    """Those of `jax.experimental` that are used have no other place."""
    allowed = {"multihost_utils", "sparse", "BCOO", "get_topology_desc"}
    for folder in ("jaxrls", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for top, _, node in imports(ast.parse(path.read_text(encoding="utf-8"))):
                whole = getattr(node, "module", "")
                for name in {alias.name for alias in node.names} if top == "jax" else ():
                    private = "_src" in f"{whole}.{name}"
                    trial = "experimental" in f"{whole}.{name}" and name not in allowed
                    assert not (private or trial), f"{path} imports {name} of {whole}"


ASKED = re.compile(r"(?:isinstance|issubclass|[gs]etattr|hasattr)\((?:factor|solution)\b")
COMPARED = re.compile(r"(?<!problem)\.route (?:==|!=|in|not in)\s")


@pytest.mark.parametrize(
    "name",
    [name for name in modules() if folder(name) in ("core.criteria", "front", "uncertainty")],
)
def test_nobody_asks_a_factor_what_it_is(name):
    """Criteria, inference and searches see a factor through its contract: neither its class, nor
    its route, nor an attribute by name.
    """
    assert ASKED.findall(code(name)) + COMPARED.findall(code(name)) == []


ON_DEMAND = {"fused.kernels"}  # imported where the extra that it needs is installed


@pytest.mark.parametrize(
    "name", [name for name in modules() if room(name) not in DOORS and name not in ON_DEMAND]
)
def test_run_time_dependencies(name):
    """What `import jaxrls` needs is what pyproject.toml asks for; extras are imported where they
    are used.
    """
    tree = modules()[name]
    inside = {
        id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)
    }
    standard = __import__("sys").stdlib_module_names
    at_import = {top for top, _, node in imports(tree) if id(node) not in inside}
    assert at_import - standard - {"jaxrls"} <= RUN_TIME


def test_modules_and_public_functions_have_different_names():
    """`jaxrls.fit` must mean one thing."""
    assert not {name for name in modules() if "." not in name} & set(public())


def test_the_front_door_is_small():
    """What is used every day, and modules for the rest."""
    assert dir(rls) == sorted([*rls.__all__, "__version__"]) and len(dir(rls)) <= 46
    assert rls.__all__ == sorted(rls.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_public_names_are_written_down(page):
    """Nothing else is in reach without an underscore, but modules; a name is on one page."""
    here = {
        name for name, value in vars(page).items() if name[0] != "_" and not inspect.ismodule(value)
    }
    assert here == set(page.__all__) and page.__all__ == sorted(page.__all__)
    others = [other for other in (rls, *PAGES) if other is not page]
    assert not set(page.__all__) & {name for other in others for name in other.__all__}


# What a docstring has nothing to say about, by section.
EXEMPT = {
    "Raises": {"absolute_error", "airfoil", "holdout", "squared_error"},
    "Source": {"folds", "kfold", "load", "save"},
    "Cost": {"kfold"},
}


@pytest.mark.parametrize("name", public())
def test_public_names_are_documented(name):
    """What it does, in a first line; for functions also cost, errors and source."""
    value = public()[name]
    value = type(value) if isinstance(value, rls.extend.Criterion) else value
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert text.split("\n\n")[0].endswith((".", ":")), (
        f"the first paragraph of {name}'s docstring is not a sentence"
    )
    if not inspect.isclass(value):
        for section, without in EXEMPT.items():
            told = f"**{section}**" in text or f"{section}:" in text
            assert name in without or told, f"{name} does not say its **{section}**"


def test_methods_are_documented():
    missing = [
        f"{name}.{attribute}"
        for name, value in public().items()
        if inspect.isclass(value)
        for attribute, member in vars(value).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
        if not inspect.getdoc(getattr(value, attribute))
    ]
    assert not missing


def test_examples_are_found_and_run():
    """pytest runs the examples of every module, and finds as many as there are public names at
    least.
    """
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "pytest"
    ]["ini_options"]
    assert "--doctest-modules" in options["addopts"] and "jaxrls" in options["testpaths"]
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name, value in public().items():
        value = type(value) if isinstance(value, rls.extend.Criterion) else value
        module = inspect.getmodule(inspect.unwrap(value) if callable(value) else value)
        assert any(test.examples for test in finder.find(value, name, module=module)), (
            f"the example of {name} is not found by doctest"
        )


# Words that were given up, for those of the glossary in CONTRIBUTING.md.
RETIRED = set(
    [
        "apart",
        "beside",
        "gone",
        "leaving",
        "lost",
        "say",
        "seen",
        "still",
        "sure",
        "tell",
        "tells",
        "told",
        "unpenalized",
    ]
)


def names_defined(tree):
    """Names of modules, classes, functions, fields and variables, as words."""
    for node in ast.walk(tree):
        name = {
            ast.FunctionDef: lambda node: node.name,
            ast.ClassDef: lambda node: node.name,
            ast.arg: lambda node: node.arg,
            ast.Name: lambda node: node.id if isinstance(node.ctx, ast.Store) else "",
        }.get(type(node), lambda node: "")(node)
        yield name, set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_keep_to_the_glossary():
    retired = {
        (module, name)
        for module, tree in modules().items()
        for name, words in names_defined(tree)
        if words & RETIRED
    }
    assert retired == set()


def test_messages_keep_to_the_glossary():
    """Texts of errors and warnings; `leaving`, `lost`, `say` and `still` mean there what they do
    elsewhere.
    """
    retired = RETIRED - {"leaving", "lost", "say", "still"}
    texts = {
        (name, part.value)
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn"))
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    assert len(texts) > 300
    assert {
        text for text in texts if retired & set(re.findall(r"[a-z]+", text[1].lower()))
    } == set()


def test_the_glossary_is_short():
    rows = re.findall(r"^\| (?!term)", CONTRIBUTING.split("## Glossary")[1], re.MULTILINE)
    assert 15 <= len(rows) <= 25
