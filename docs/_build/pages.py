"""Pages that are made from other files of the repository: notebooks, figures, help texts,
changelog. None of them is written into docs/.

Links in Markdown lead to files of the repository, as a forge shows them; here they are turned to
the pages that those files became. """

import base64
import contextlib
import io
import json
import os
import posixpath
import re
import sys
import tempfile
import textwrap
from operator import attrgetter
from pathlib import Path

import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
REPORT = "benchmarks/report"

# What a file of the repository is called on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks/running.md",
    "notebooks/pictures/front.png": "pictures/front.png",
    f"{REPORT}/report.md": "benchmarks/report.md",
    f"{REPORT}/report.png": "benchmarks/report.png",
    **{f"notebooks/{path.name}": f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")},
}
SOURCES = {page: source for source, page in PAGES.items()}

_state = {"run": True}


def on_startup(command, dirty):
    """Notebooks are run by a build, and not at every change while somebody writes."""
    _state["run"] = command == "build" and os.environ.get("JAXRLS_NOTEBOOKS") != "stored"


def on_files(files, config):
    """Every generated page, beside those of docs/."""
    for page, source in SOURCES.items():
        if source.endswith(".ipynb"):
            made = notebook(ROOT / source, run=_state["run"])
        elif source == f"{REPORT}/report.md":
            made = {page: report()}
        else:
            made = {page: (ROOT / source).read_bytes()}
        for name, content in made.items():
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Placeholders filled, and links to files of the repository turned to pages."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # one page has none
    made = {"figures": figures, "help": command_line, "names": names, "gallery": gallery}
    for name, make in made.items():
        mark = f"<!-- {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return re.sub(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)", lambda found: linked(here, *found.groups("")), markdown)


def linked(page: str, words: str, target: str, anchor: str) -> str:
    """A link of one page, from where its file lies in the repository, as one between pages; to a
    file that is no page, its name.
    """
    source = posixpath.normpath(posixpath.join(posixpath.dirname(SOURCES.get(page, f"docs/{page}")), target))
    found = PAGES.get(source, source.removeprefix("docs/") if source.startswith("docs/") else None)
    if found is not None:
        return f"[{words}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{anchor})"
    return f"{words} (`{source}`)" if (ROOT / source).is_file() else f"[{words}]({target}{anchor})"


def gallery() -> str:
    """The first picture of every tutorial, in the order of the navigation."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    titles = re.findall(r"- (.+): tutorials/(\w+)\.md", text)
    shown = [f"[![{title}]({stem}-1.png)]({stem}.md)" for title, stem in titles]
    return '<div class="gallery" markdown>\n' + "\n".join(shown) + "\n</div>"


def notebook(path: Path, run: bool) -> dict:
    """A notebook as a page, and its pictures."""
    book = nbformat.read(path, as_version=4)
    if run:
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    out, parts = {}, []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        code = f"```python\n{cell.source}\n```"
        if any(map(drawn, cell.outputs)):  # code that draws is folded away
            code = '??? note "The code of this picture"\n\n' + textwrap.indent(code, "    ")
        parts.append(code)
        said = "".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs if not drawn(output))
        if said.strip():
            parts.append(f"```text {{ .output }}\n{said.rstrip()}\n```")
        for picture in filter(None, map(drawn, cell.outputs)):
            name = f"{path.stem}-{len(out) + 1}.png"
            out[f"tutorials/{name}"] = base64.b64decode(picture)
            parts.append(f"![Drawn by the code above]({name})")
    how = "Run when this site was built." if run else "Shown as it was stored; a full build of this site runs it."
    parts.append(f"*{how} The notebook is `notebooks/{path.name}`.*")
    return {f"tutorials/{path.stem}.md": "\n\n".join(parts), **out}


def drawn(output) -> str | None:
    """The picture of an output, in base 64, where it is one."""
    return output.get("data", {}).get("image/png")


def _report_module():
    sys.path.append(str(ROOT / "benchmarks"))
    import report as module

    return module, json.loads((ROOT / REPORT / "report.json").read_text(encoding="utf-8"))


def report() -> str:
    """The whole report, from its JSON."""
    module, data = _report_module()
    return f"# The whole report\n\n![Every time over that of the operations nobody can avoid](report.png)\n\n{module.markdown(data)}"


def figures() -> str:
    """The table of the front page, from the same JSON."""
    module, data = _report_module()
    return module.with_table("\n".join(module.MARKS), data)


def names() -> str:
    """Every name of the reference with the first line of its docstring."""
    sys.path.insert(0, str(ROOT))
    import jaxrls.sklearn

    out, reference = [], ROOT / "docs" / "reference"
    order = re.findall(r"reference/([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for place in order:
        text = (reference / place).read_text(encoding="utf-8")
        if found := re.findall(r"^::: jaxrls\.([\w.]+)$", text, re.MULTILINE):
            out.append(f"## [{text.splitlines()[0].removeprefix('# ')}]({place})\n\n| name | what it is |\n|---|---|")
            out += [f"| [`{name}`]({place}#jaxrls.{name}) | {first(attrgetter(name)(jaxrls))} |" for name in found]
            out.append("")
    return "\n".join(out)


def first(thing) -> str:
    """The first paragraph of a docstring, as a cell of a table."""
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")


def command_line() -> str:
    """All help texts, as they are printed."""
    sys.path.insert(0, str(ROOT))
    from jaxrls.cli.main import make_parser

    out = []
    for arguments in ([], ["fit"], ["predict"]):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            make_parser().parse_args([*arguments, "--help"])
        title = " ".join(["python -m jaxrls", *arguments])
        out.append(f"## `{title}`\n\n```text\n{text.getvalue().rstrip()}\n```")
    return "\n\n".join(out)
