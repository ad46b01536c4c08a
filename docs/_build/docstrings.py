"""Docstrings as they stand in the code, made ready for a page: doctests become code, and Shapes, Cost, Raises, Source paragraphs of their own."""

import re

import griffe

WORDS = "Shapes|Arguments|Returns|Cost|Raises|Warns|Fails|Source"
PYTREE = {"pytree", "jaxrls.pytree", "jaxrls.support.pytrees.pytree"}


class Docstrings(griffe.Extension):
    """Changes what griffe has read, before it is rendered."""

    def on_object(self, *, obj, **kwargs):
        """Any object with a docstring, but estimators, whose sections are NumPy's."""
        if obj.docstring and not obj.path.startswith("jaxrls.sklearn"):
            obj.docstring.value = paragraphs(obj.docstring.value)

    def on_class(self, *, cls, **kwargs):
        """What `pytree` makes of a class is a dataclass, and its fields are the arguments."""
        if any(decorator.callable_path in PYTREE for decorator in cls.decorators) and "__init__" not in cls.members:
            own = griffe.Function("__init__", parameters=griffe.Parameters(*parameters(cls)))
            cls.set_member("__init__", own)


def parameters(cls):
    """The fields of a class, in the order of its dataclass; one of a class attribute is none."""
    yield griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    for member in cls.members.values():
        if not member.is_attribute or member.annotation is None or "ClassVar" in str(member.annotation) or member.name.startswith("_"):
            continue
        value = None if member.value is None else str(member.value)
        if value and value.startswith("static("):
            value = (re.search(r"default=(.*)\)$", value) or [None, None])[1]
        yield griffe.Parameter(member.name, annotation=member.annotation, kind=griffe.ParameterKind.positional_or_keyword, default=value)


def paragraphs(text: str) -> str:
    """Markdown of a docstring."""
    prose, code, out = [], [], []

    def flush():
        if prose:
            out.append(re.sub(rf"(?<=[.;)]) \*\*({WORDS})\*\*", r"\n\n**\1**", " ".join("\n".join(prose).split("\n"))) if plain(prose) else "\n".join(prose))
        if code:
            out.append("```pycon\n" + "\n".join(code) + "\n```")
        prose.clear(), code.clear()

    for line in text.splitlines():
        if line.startswith(">>> ") or (code and line.strip()):
            if prose:
                flush()
            code.append(line)
        elif not line.strip():
            flush()
        else:
            prose.append(line)
    flush()
    return "\n\n".join(out)


def plain(lines) -> bool:
    """Whether lines are one paragraph, and no list or table."""
    return not any(re.match(r"\s*([*|-] |\||\d+\. |```|    )", line) for line in lines)
