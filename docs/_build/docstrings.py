"""What mkdocstrings cannot know of this package: annotations are texts of jaxtyping, `pytree` makes
dataclasses, doctests are code, and each of **Cost**, **Source** and the like begins a paragraph.
"""

import ast
import re

import griffe

DOCTEST = re.compile(r"^>>>.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
PARAGRAPH = re.compile(r"(?<=[.;)])\s(?=\*\*(?:Cost|Raises|Warns|Fails|Source)\*\*)")
SHAPED = re.compile(r"\b(?:Float|Int|Bool|Num|Shaped)\[[^\[\]]*\]|\b(?:Numbers|jax\.Array)\b")
LEFT_OUT = re.compile(r"(?<=Array)(?: \| (?:Array|Listed|Any|np\.ndarray)\b)+")
PYTREE = {"pytree", "jaxrls.extend.pytree", "jaxrls.core.support.pytrees.pytree"}


class Docstrings(griffe.Extension):
    """Changes what griffe has read, before it is rendered."""

    def on_function_instance(self, *, node, func, **kwargs):
        """Annotations in plain words: griffe reads the shape in `Float[Array, "L *t"]` as a product.
        """
        if not isinstance(node, ast.FunctionDef):
            return
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for written in arguments:
            if written.annotation is not None:
                func.parameters[written.arg].annotation = plain(written.annotation)
        if node.returns is not None:
            func.returns = plain(node.returns)

    def on_attribute_instance(self, *, node, attr, **kwargs):
        """The same of fields; an object of a class that is not shown has the docstring of that."""
        if isinstance(node, ast.AnnAssign):
            if (written := plain(node.annotation) or "Any") != "KW_ONLY":  # which griffe knows itself
                attr.annotation = written
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = attr.parent.members.get(ast.unparse(node.value.func))
            if isinstance(made, griffe.Class) and made.docstring:
                known = made.docstring
                how = {"parser": known.parser, "parser_options": known.parser_options}
                attr.docstring = griffe.Docstring(known.value, parent=attr, **how)

    def on_object(self, *, obj, **kwargs):
        """Doctests and paragraphs, but of estimators, whose sections are NumPy's."""
        if obj.docstring and not obj.path.startswith("jaxrls.sklearn"):
            text = PARAGRAPH.sub("\n\n", obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", text)

    def on_class(self, *, cls, **kwargs):
        """What `pytree` makes of a class is a dataclass, and its fields are the arguments."""
        if is_pytree(cls) and "__init__" not in cls.members:
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters(cls))))


def plain(annotation) -> str | None:
    """An annotation without shapes, which the docstring tells: `Float[Array, " n"] | Listed` is an
    `Array`, `K`, which stands for the kernel's own class, a `Kernel`, and `Any` says nothing.
    """
    text = SHAPED.sub("Array", ast.unparse(annotation).strip("'"))
    return None if text == "Any" else re.sub(r"\bK\b", "Kernel", LEFT_OUT.sub("", text))


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
