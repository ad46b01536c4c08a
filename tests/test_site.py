"""The documentation site is whole: every name, page and link has its place. `mkdocs build --strict`
makes it; these need neither it nor a network.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

import jaxrls as rls

pytestmark = pytest.mark.any_precision  # texts
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = {
    path: path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
}
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def public():
    """Every name of the package that is no module, and the estimators."""
    import jaxrls.sklearn

    modules = [name for name in rls.__all__ if inspect.ismodule(getattr(rls, name))]
    pages = rls, jaxrls.sklearn, *(getattr(rls, name) for name in modules)
    names = [f"{page.__name__}.{name}" for page in pages for name in page.__all__]
    return [name for name in names if name.removeprefix("jaxrls.") not in modules]


def anchors(text):
    """What headings are called in links."""
    titles = re.findall(
        r"^#+ (.*)$",
        CODE.sub(lambda found: found[0].strip("`") if "\n" not in found[0] else "", text),
        re.MULTILINE,
    )
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles
    }


def test_every_public_name_is_in_the_reference_once():
    shown = re.findall(
        r"^::: (\S+)$",
        "\n".join(TEXTS[path] for path in (DOCS / "reference").rglob("*.md")),
        re.MULTILINE,
    )
    assert sorted(shown) == sorted(public()), (
        "docs/reference has a line `::: jaxrls.name` for every public name"
    )


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"^ +- (?:[^#\n]*: )?(\S+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages <= set(listed), "mkdocs.yml names every page of docs/ in nav"
    notebooks = {f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= set(listed), "mkdocs.yml names every notebook as a tutorial in nav"


@pytest.mark.parametrize("path", sorted(TEXTS), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target, anchor in LINK.findall(CODE.sub("", TEXTS[path])):
        found = (path.parent / target).resolve() if target else path
        assert found.is_file() and found.is_relative_to(ROOT), f"{path.name} links to {target}"
        if anchor and "reference" not in found.parts:
            assert anchor in anchors(TEXTS[found]), f"{path.name} links to {target}#{anchor}"


def test_theory_and_the_modules_of_its_formulas_name_each_other():
    """The table of formulas has functions that are in the modules beside them, and each of these
    modules of the core has the section."""
    text = TEXTS[DOCS / "theory.md"]
    for module in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / "jaxrls" / module).is_file(), f"theory.md names {module}"
    rows = re.findall(r"^\| .* \| (`[^|]*`) \| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(rows) > 15
    for names, module in rows:
        tree = ast.parse((ROOT / "jaxrls" / module).read_text(encoding="utf-8"))
        nodes = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        lacking = set(re.findall(r"\w+", names)) - {node.name for node in nodes}
        assert not lacking, f"theory.md looks for {lacking} in {module}"
        named = re.search(r"`docs/theory\.md`, \"(.*)\"", ast.get_docstring(tree) or "")
        assert (named and f"\n## {named[1]}\n" in text) or not module.startswith("core/"), module
