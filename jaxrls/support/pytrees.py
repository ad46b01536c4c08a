"""Frozen dataclasses as pytrees: what every kernel, factor and result is; and the list of them,
which `save` and `load` go by.
"""

from dataclasses import dataclass, field, fields
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

# What `save` writes and `load` builds, by the name that stands in a file.
REGISTRY: dict[str, type] = {}
LIBRARY = "jaxrls"


def static(**options) -> Any:
    """A field of a `pytree` that is part of the program and not of the data, such as a degree:
    `jax.jit` compiles anew for another value.

    Its value must be hashable, and is no parameter: neither differentiated nor searched over.

    **Arguments**: those of `dataclasses.field`, such as `default`. **Cost** none. **Raises**
    `TypeError` for other arguments. **Source**: `meta_fields` of JAX's `register_dataclass`.

    >>> import jax, jaxrls as rls
    >>> @rls.pytree
    ... class Power:
    ...     base: float
    ...     degree: int = rls.static(default=2)
    >>> jax.tree.leaves(Power(3.0))
    [3.0]
    """
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls):
    """A class as a frozen dataclass whose fields are the children of a JAX pytree, but for those
    that are `static`.

    A kernel of one's own is a subclass of `Kernel` under this decorator. It takes part in sums and
    products of kernels, goes through `jax.jit` and `jax.grad`, is tuned, saved and, where its
    module has been imported, loaded like those of the library.

    Two objects are equal where type, static fields and the values of all leaves are: 2.0 equals an
    array of it, and NaN equals NaN, so that an object equals its copy. Equal objects have equal
    hashes.

    **Cost** none; that of reading every leaf, to compare and to hash. **Raises** `TypeError` for
    `==` and `hash` inside `jax.jit`, where values are not known. **Source**: JAX's
    `register_dataclass`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> @rls.pytree
    ... class Wave(rls.Kernel):
    ...     positive = length_scales = ("width",)   # what may be searched by its logarithm; what has the units of X
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
        cls.__eq__, cls.__hash__ = _equal, _hash
    cls = dataclass(frozen=True, eq=False)(cls)
    data, meta = (
        [f.name for f in fields(cls) if bool(f.metadata.get("static")) is static]
        for static in (False, True)
    )
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(tree):
        return [getattr(tree, name) for name in data], tuple(getattr(tree, name) for name in meta)

    def unflatten(aux, children):
        # Past __init__: JAX also rebuilds trees around batches and placeholders, which no check of
        # a field would pass.
        tree = object.__new__(cls)
        for names, values in ((data, children), (meta, aux)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(tree, name, value)
        return tree

    def flatten_with_keys(tree):
        children, aux = flatten(tree)
        return list(zip(keys, children, strict=True)), aux

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    _register(cls)
    return cls


# names
# -----------------------------------------------------------------------------------------------------------------------


def name_in_files(cls: type) -> str:
    """What a file calls a class: the library's own by their plain name, wherever they have moved
    since; others with their module.
    """
    return (
        cls.__name__
        if cls.__module__.partition(".")[0] == LIBRARY
        else f"{cls.__module__}.{cls.__qualname__}"
    )


def is_registered(cls: type) -> bool:
    """Whether objects of this very class can be saved."""
    return REGISTRY.get(name_in_files(cls)) is cls


def _register(cls: type) -> None:
    name = name_in_files(cls)
    if name == cls.__name__ and name.startswith("_"):
        return  # a helper of the library's own, which no file holds
    known = REGISTRY.setdefault(name, cls)
    if known.__module__ != cls.__module__:
        raise TypeError(
            f"{cls.__module__} and {known.__module__} both define {name}, which a file could not tell apart: rename one"
        )
    REGISTRY[name] = cls  # a class defined again, as in a notebook, takes the place of the old one


# equality
# --------------------------------------------------------------------------------------------------------------------


def _equal(self, other):
    if type(self) is not type(other):
        return NotImplemented
    (leaves, structure), (others, shape) = jax.tree.flatten(self), jax.tree.flatten(other)
    if not bool(structure == shape):  # type: ignore[operator]
        return False
    _check_known(self, [*leaves, *others])
    return all(map(_same, leaves, others))


def _hash(self) -> int:
    leaves, structure = jax.tree.flatten(self)
    _check_known(self, leaves)
    return hash((type(self), structure, *map(_hash_leaf, leaves)))


def _check_known(tree, leaves) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise TypeError(
            f"== and hash of {type(tree).__name__} go by its values, which are not known inside jax.jit, jax.grad or jax.vmap: "
            "compare outside, or compare the static fields alone"
        )


def _same(a, b) -> bool:
    x, y = _numbers(a), _numbers(b)
    if x is None or y is None:
        return x is y and bool(a is b or a == b)
    return x.shape == y.shape and np.array_equal(x, y, equal_nan=True)


def _hash_leaf(leaf) -> int:
    numbers = _numbers(leaf)
    if numbers is None:
        return hash(leaf)
    values = (
        numbers.real.astype(np.float64) + 0.0
    )  # one dtype, and no −0: equal values have equal bytes
    return hash((values.shape, np.where(np.isnan(values), np.nan, values).tobytes()))


def _numbers(leaf) -> np.ndarray | None:
    """A leaf's values, or None where it is not made of numbers."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        return None
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and its kin
        array = array.astype(np.float64)
    return array if array.dtype.kind in "biufc" else None


def arrays_alone(tree) -> bool:
    """Whether all leaves are arrays or numbers, which `jax.jit` takes, and none are rows that only
    the host reads.
    """
    return all(
        isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int)
        for leaf in jax.tree.leaves(tree)
    )
