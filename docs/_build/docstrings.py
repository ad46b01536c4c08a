"""Docstrings as they stand in the code, made ready for a page: doctests become code, and Shapes,
Cost, Raises, Source paragraphs of their own.
"""

import ast
import re

import griffe

WORDS = "Shapes|Arguments|Returns|Cost|Raises|Warns|Fails|Source"
SECTIONS = {"Args:": "**Arguments**:", "Returns:": "**Returns**", "Raises:": "**Raises**"}
PYTREE = {"pytree", "jaxrls.extend.pytree", "jaxrls.support.pytrees.pytree"}


class Docstrings(griffe.Extension):
    """Changes what griffe has read, before it is rendered."""

    def on_function_instance(self, *, node, func, **kwargs):
        """Annotations as they are written: griffe reads the shape in `Float[Array, "L *t"]` as a
        product.
        """
        if not isinstance(node, ast.FunctionDef):
            return
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for written in arguments:
            if written.annotation is not None:
                func.parameters[written.arg].annotation = ast.unparse(written.annotation)
        if node.returns is not None:
            func.returns = ast.unparse(node.returns).strip("'")

    def on_attribute_instance(self, *, node, attr, **kwargs):
        """The same of fields; an object of a class that is not shown has the docstring of that."""
        if isinstance(node, ast.AnnAssign):
            attr.annotation = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = attr.parent.members.get(ast.unparse(node.value.func))
            if isinstance(made, griffe.Class) and made.docstring:
                attr.docstring = griffe.Docstring(made.docstring.value, parent=attr)

    def on_object(self, *, obj, **kwargs):
        """Any object with a docstring, but estimators, whose sections are NumPy's."""
        if obj.docstring and not obj.path.startswith("jaxrls.sklearn"):
            names = [parameter.name for parameter in obj.parameters] if obj.is_function else []
            obj.docstring.value = paragraphs(obj.docstring.value, names)

    def on_class(self, *, cls, **kwargs):
        """What `pytree` makes of a class is a dataclass, and its fields are the arguments."""
        if is_pytree(cls) and "__init__" not in cls.members:
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters(cls))))


def is_pytree(cls) -> bool:
    """Whether `pytree` stands above a class."""
    return any(decorator.callable_path in PYTREE for decorator in cls.decorators)


def parameters(cls):
    """The fields of a class and of those it extends, in the order of its dataclass."""
    known = griffe.ParameterKind.positional_or_keyword
    yield griffe.Parameter("self", kind=known)
    members = {name: member for one in (*reversed(cls.mro()), cls) if is_pytree(one) for name, member in one.members.items()}
    for name, member in members.items():
        if member.is_attribute and "property" not in member.labels and member.annotation is not None and "ClassVar" not in str(member.annotation):
            yield griffe.Parameter(name, annotation=member.annotation, kind=known, default=default(member.value))


def default(value) -> str | None:
    """The default of a field, which may stand in `static(default=…)`."""
    if value is None or not str(value).startswith("static("):
        return None if value is None else str(value)
    return (re.search(r"default=(.*)\)$", str(value)) or [None, None])[1]


def paragraphs(text: str, names=()) -> str:
    """Markdown of a docstring; `names` are those of the arguments, which begin the items of a
    list.
    """
    blocks, block = [], []
    for line in [*text.splitlines(), ""]:
        starts_code, in_code = line.startswith(">>>"), bool(block) and block[0].startswith(">>>")
        if block and (not line.strip() or (starts_code and not in_code)):
            blocks.append(block)
            block = []
        if line.strip():
            block.append(line)
    return "\n\n".join(markdown(block, names) for block in blocks)


def markdown(block, names) -> str:
    """One paragraph, or one doctest."""
    if block[0].startswith(">>>"):
        return "\n".join(["```pycon", *block, "```"])
    if block[0] in SECTIONS:
        return section(block)
    if any(re.match(r"\s*([*-] |\||\d+\. |```|    )", line) for line in block):  # a list or a table
        return "\n".join(block)
    parts = re.split(rf"(?<=[.;)]) (?=\*\*(?:{WORDS})\*\*)", " ".join(block))
    return "\n\n".join(arguments(part, names) if part.startswith("**Arguments**") else part for part in parts)


def section(block) -> str:
    """`Args:` and its like, of which each item begins with a name."""
    items: list[str] = []
    for line in block[1:]:
        if not items or not line.startswith("        "):
            items.append(line.strip())
        else:
            items[-1] += f" {line.strip()}"
    head = SECTIONS[block[0]]
    if block[0] == "Returns:":
        return f"{head} {' '.join(items)}"
    items = [re.sub(r"^([\w, *]+):", r"`\1`:", item) for item in items]
    if block[0] == "Raises:" and len(items) == 1:
        return f"{head} {items[0]}"
    return "\n".join([head, "", *(f"* {item}" for item in items)])


def arguments(text: str, names) -> str:
    """What is said of arguments, as a list where there are several."""
    head, _, rest = text.partition(": ")
    items = re.split(rf"(?<=\.) (?=`(?:{'|'.join(names)})`)", rest) if names else [rest]
    return text if len(items) < 2 else "\n".join([f"{head}:", "", *(f"* {item}" for item in items)])
