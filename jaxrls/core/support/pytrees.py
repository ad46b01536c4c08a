"""Frozen dataclasses as pytrees, which kernels, factors and results are, and the registry of them
that `save` and `load` use.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.support.public_call import hints_at_names

# The classes that `save` writes and `load` builds, by their name in a file.
REGISTRY: dict[str, type] = {}
LIBRARY = "jaxrls"


def static(**options) -> Any:
    """Declare a field of a `pytree` that is part of the program and not of the data, such as a
    degree: `jax.jit` compiles anew for another value.

    Its value must be hashable. It is no parameter: neither differentiated nor searched over.

    Args:
        **options: those of `dataclasses.field`, such as `default`.

    Returns:
        A dataclass field.

    Raises:
        TypeError: for other options.

    **Cost** none. **Source**: `meta_fields` of JAX's `register_dataclass`.

    >>> from jaxrls import extend
    >>> import jax, jaxrls as rls
    >>> @extend.pytree
    ... class Power:
    ...     base: float
    ...     degree: int = extend.static(default=2)
    >>> jax.tree.leaves(Power(3.0))
    [3.0]
    """
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls):
    """Make a class a frozen dataclass and a JAX pytree, whose children are the fields that are not
    `static`.

    To define your own kernel, write a subclass of `Kernel` under this decorator. It takes part in
    sums and products of kernels, goes through `jax.jit` and `jax.grad`, is tuned, saved and, where
    its module has been imported, loaded like those of the library.

    Two objects are equal where type, static fields and the values of all leaves are: 2.0 equals an
    array of it, and NaN equals NaN, so that an object equals its copy. Hashes depend on type,
    static fields and shapes.

    Args:
        cls: a class with annotated fields, as for `dataclasses.dataclass`.

    Returns:
        The class, as a dataclass and pytree.

    Raises:
        TypeError: for `==` inside `jax.jit`, where values are not known.

    **Cost** none; `==` reads every leaf. **Source**: JAX's `register_dataclass`.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> @extend.pytree
    ... class Wave(rls.extend.Kernel):
    ...     # What may be searched by its logarithm, and what has the units of X.
    ...     positive = length_scales = ("width",)
    ...     width: float
    ...     def __call__(self, X, Z):
    ...         return jnp.cos((X[:, :1] - Z[:, 0]) / self.width)
    ...     def diag(self, X):
    ...         return jnp.ones(X.shape[0], X.dtype)
    >>> kernel = 0.5 * Wave(width=2.0) + rls.Linear()
    >>> kernel(jnp.ones((1, 1)), jnp.ones((1, 1))).tolist()
    [[1.5]]
    >>> kernel == 0.5 * Wave(width=jnp.array(2.0)) + rls.Linear()
    True
    """
    if "__eq__" not in vars(cls):
        cls.__eq__ = _equal
        cls.__hash__ = _hash
    cls = hints_at_names(dataclass(frozen=True, eq=False)(cls))
    meta = [f.name for f in fields(cls) if f.metadata.get("static")]
    data = [f.name for f in fields(cls) if f.name not in meta]
    names = (*data, *meta)
    keys = [jax.tree_util.GetAttrKey(name) for name in data]
    # Of two names or more this is a tuple, read without Python: trees are flattened all the time.
    all_of = attrgetter(*names, "__class__", "__class__")
    first = len(data)
    end = len(names)

    def flatten(tree: Any) -> tuple[tuple, tuple]:
        values = all_of(tree)
        return values[:first], values[first:end]

    def unflatten(aux: tuple, children: Iterable) -> Any:
        # Without __init__: JAX also rebuilds trees around batches and placeholders, which the
        # checks of fields would refuse.
        tree = object.__new__(cls)
        vars(tree).update(zip(names, (*children, *aux), strict=True))
        return tree

    def flatten_with_keys(tree: Any) -> tuple[tuple, tuple]:
        values = all_of(tree)
        return tuple(zip(keys, values[:first], strict=True)), values[first:end]

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    REGISTRY[name_in_files(cls)] = cls  # defined again, as in a notebook, it replaces the old one
    return cls


# names
# --------------------------------------------------------------------------------------------------


def name_in_files(cls: type) -> str:
    """The name of a class in files: the plain name for the library's own, wherever they have moved
    since; others with their module.
    """
    of_library = cls.__module__.partition(".")[0] == LIBRARY
    return cls.__name__ if of_library else f"{cls.__module__}.{cls.__qualname__}"


def is_registered(cls: type) -> bool:
    """Whether objects of this very class can be saved."""
    return REGISTRY.get(name_in_files(cls)) is cls


# equality
# --------------------------------------------------------------------------------------------------


def _equal(self, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    leaves, structure = jax.tree.flatten(self)
    others, shape = jax.tree.flatten(other)
    return bool(structure == shape) and all(map(_same, leaves, others))  # type: ignore[operator]


def _hash(self) -> int:
    leaves, structure = jax.tree.flatten(self)
    return hash((type(self), structure, *map(np.shape, leaves)))


def _same(a: Any, b: Any) -> bool:
    """Whether two leaves are numerically equal; NaN equals NaN."""
    is_key = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    a, b = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in (a, b))
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def arrays_alone(tree: Any) -> bool:
    """Whether all leaves are arrays or numbers, which `jax.jit` takes, and none are rows that only
    the host reads.
    """
    kinds = jax.Array | np.ndarray | np.generic | float | int
    return all(isinstance(leaf, kinds) for leaf in jax.tree.leaves(tree))
