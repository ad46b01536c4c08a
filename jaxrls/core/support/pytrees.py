"""The decorator `pytree`, which makes a class a frozen dataclass and a JAX pytree.

Kernels, factors, criteria and results are such classes. `save` and `load` find them in a registry.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from jaxrls.core.support.public_call import hints_at_names

# The classes that `save` writes and `load` builds, by their names in files.
REGISTRY: dict[str, type] = {}
LIBRARY = "jaxrls"


def static(**options) -> Any:
    """Declare a field of a `pytree` that is part of the program and not of the data.

    A degree of a polynomial is an example. `jax.jit` compiles again for another value of the field.
    The value must be hashable. It is not a parameter: it is not differentiated, and not searched
    over.

    Args:
        **options: options of `dataclasses.field`, such as `default`.

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
    """Make a class a frozen dataclass and a JAX pytree.

    The children of the pytree are the fields that are not `static`. To define your own kernel,
    write a subclass of `Kernel` under this decorator. Like a kernel of the library it can be added
    and multiplied, passed through `jax.jit` and `jax.grad`, tuned and saved. It can be loaded after
    its module has been imported.

    Two objects are equal if their types, their static fields and the values of all leaves are
    equal. The number 2.0 equals an array of 2.0. NaN equals NaN, so that an object equals its copy.
    Hashes depend on type, static fields and shapes.

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
    # JAX flattens trees often, so that all fields are read without a Python loop. The two further
    # names make `attrgetter` return a tuple even for a class without fields.
    all_of = attrgetter(*names, "__class__", "__class__")
    first = len(data)
    end = len(names)

    def flatten(tree: Any) -> tuple[tuple, tuple]:
        values = all_of(tree)
        return values[:first], values[first:end]

    def unflatten(aux: tuple, children: Iterable) -> Any:
        # `__init__` is not called. JAX also puts tracers and placeholders into trees, which the
        # checks of fields would refuse.
        tree = object.__new__(cls)
        vars(tree).update(zip(names, (*children, *aux), strict=True))
        return tree

    def flatten_with_keys(tree: Any) -> tuple[tuple, tuple]:
        values = all_of(tree)
        return tuple(zip(keys, values[:first], strict=True)), values[first:end]

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    # A class that is defined again, as in a notebook, replaces the old one.
    REGISTRY[name_in_files(cls)] = cls
    return cls


# names
# --------------------------------------------------------------------------------------------------


def name_in_files(cls: type) -> str:
    """Return the name of a class in files.

    It is the plain name for a class of the library, which may move to another module later. The
    names of other classes include their module.
    """
    of_library = cls.__module__.partition(".")[0] == LIBRARY
    return cls.__name__ if of_library else f"{cls.__module__}.{cls.__qualname__}"


def is_registered(cls: type) -> bool:
    """Whether objects of a class can be saved: whether its name stands for this very class."""
    return REGISTRY.get(name_in_files(cls)) is cls


# equality
# --------------------------------------------------------------------------------------------------


def _equal(self, other: Any) -> Any:
    """Return whether types, static fields and the values of all leaves are equal: `__eq__`."""
    if type(self) is not type(other):
        return NotImplemented
    leaves, structure = jax.tree.flatten(self)
    others, shape = jax.tree.flatten(other)
    return bool(structure == shape) and all(map(_same, leaves, others))  # type: ignore[operator]


def _hash(self) -> int:
    """Return a hash of type, static fields and shapes: `__hash__`."""
    leaves, structure = jax.tree.flatten(self)
    return hash((type(self), structure, *map(np.shape, leaves)))


def _same(a: Any, b: Any) -> bool:
    """Whether two leaves are numerically equal; NaN equals NaN."""
    is_key = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    a, b = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in (a, b))
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def arrays_alone(tree: Any) -> bool:
    """Whether all leaves of a pytree are arrays or numbers, so that `jax.jit` can take it.

    Rows that only the host can read are neither.
    """
    kinds = jax.Array | np.ndarray | np.generic | float | int
    return all(isinstance(leaf, kinds) for leaf in jax.tree.leaves(tree))
