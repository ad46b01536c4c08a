"""Frozen dataclasses as pytrees: what every kernel, factor and result is."""

from dataclasses import dataclass, field, fields
from typing import Any, dataclass_transform

import jax


def static(**options) -> Any:
    """A field that is part of the program, not of the data."""
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls):
    """A frozen dataclass whose fields are pytree children, but for those marked `static`."""
    cls = dataclass(frozen=True)(cls)
    data, meta = ([f.name for f in fields(cls) if bool(f.metadata.get("static")) is static] for static in (False, True))
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(tree):
        return [getattr(tree, name) for name in data], tuple(getattr(tree, name) for name in meta)

    def unflatten(aux, children):
        # Past __init__: JAX also rebuilds trees around batches and placeholders, which no check of a field would pass.
        tree = object.__new__(cls)
        for names, values in ((data, children), (meta, aux)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(tree, name, value)
        return tree

    def flatten_with_keys(tree):
        children, aux = flatten(tree)
        return list(zip(keys, children, strict=True)), aux

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
