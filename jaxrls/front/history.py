"""`History`, the record of a search by `tune`."""

from typing import Any

from jaxtyping import Array, Float

from jaxrls.core.fit import Number
from jaxrls.core.support import pytree, static


@pytree
class History:
    """The record of a search by `tune`: its start and every step from there, S points in all.

    If `tune` ran several searches, it is the record of the best.

    Args:
        errors: the criterion at each point, (S,).
        gradient_norms: ‖∇ log E‖∞ at each point, (S,). E is the criterion, and ∇ is the gradient in
            the logarithms of λ − floor and of all positive parameters. For a likelihood it is the
            gradient of E per row, without a logarithm.
        lams: λ at each point, (S,).
        kernels: the kernel at each point, every leaf with a leading axis S.
        start_error: the criterion at the kernel that the search was given, (); None if unknown.
        converged: whether the gradient norm fell below `tol`.
        reason: why the search stopped, in words.
        stages: a `Stage` for each search on fewer rows before this one.

    >>> import numpy as np, jaxrls as rls
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> history = rls.tune(rls.Gaussian(1.0), X, y, steps=2).history
    >>> len(history.errors), history.stages, bool(history.errors[2] < history.start_error)
    (3, (), True)
    """

    errors: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    lams: Float[Array, " S"]
    kernels: Any
    start_error: Number | None = None
    converged: bool = static(default=False)
    reason: str = static(default="")
    stages: "tuple[Stage, ...]" = ()


@pytree
class Stage:
    """A search on a sample of the rows, which came before the search on all rows.

    The errors in its history are those of the sample alone.

    Args:
        rows: the number of rows in the sample.
        landmarks: the number of landmarks.
        history: its `History`.
    """

    rows: int = static()
    landmarks: int = static()
    history: History
