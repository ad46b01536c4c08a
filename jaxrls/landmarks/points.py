"""Define `Landmarks`: the rows of X, or other points, on which the subset of regressors is built.

Begin with `Landmarks` and `as_landmarks`. The rest bounds the distance to the fit on all of K.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls.core.data import GramRows, Rows
from jaxrls.core.kernels import Kernel, Precomputed, as_dense, check_kernel
from jaxrls.core.support import (
    as_floats,
    check_finite,
    check_unmasked,
    known_and,
    known_values,
    pytree,
)

TOLERANCE = 0.1  # the relative error of coefficients that is certified


@pytree
class Landmarks:
    """The points that carry a fit by the subset of regressors: f(x) = Σₖ k(x, pointsₖ) βₖ.

    Args:
        indices: row numbers (m,) of the points in X; None for points that are not rows of X.
        points: (m, d). For a given kernel matrix they are its rows, with their numbers.
        trace_residual: tr(K − K̂), the part of K that landmarks miss; None where it was not
            computed.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, key = jnp.array([[3.0], [4.0]]), jax.random.key(0)
    >>> rls.choose_landmarks(rls.Linear(), X, 1, key=key).points.shape
    (1, 1)
    """

    indices: Int[Array, " m"] | None
    points: Any  # (m, d)
    trace_residual: Float[Array, ""] | None


def check_evaluable(kernel: Kernel, rows: Rows | None = None) -> None:
    """Raise unless `kernel` can be evaluated at any points.

    The rows of a given kernel matrix are accepted too.
    """
    check_kernel(kernel)
    knows = isinstance(kernel, Precomputed) and isinstance(rows, GramRows)
    if not (kernel.evaluable or knows):
        raise ValueError(
            "landmarks need a kernel that can be evaluated at any row, and "
            f"{type(kernel).__name__}() cannot: pass another kernel, or to fit row numbers as "
            "landmarks="
        )


def as_landmarks(rows: Rows, landmarks: Any) -> Landmarks:
    """Read landmarks that the user gave.

    Whole numbers are rows of X. A matrix (m, d) is points that are not rows of X. `Landmarks` keep
    their numbers and points, but not their trace residual: it may be that of another kernel or of
    other weights. All points get the dtype of the rows.

    Raises:
        ValueError: for masked arrays, for rows that X does not have or that are named twice, for
            points of another width than X, or for `Landmarks` chosen from another X.

    >>> from jaxrls import extend
    >>> import jax.numpy as jnp, jaxrls as rls
    >>> as_landmarks(rls.rows.DenseRows(jnp.array([[3.0], [4.0]])), [1]).points.tolist()
    [[4.0]]
    """
    indices: Any
    if isinstance(landmarks, Landmarks):
        indices = landmarks.indices
        points = landmarks.points
        if indices is not None and not _same_rows(rows, indices, points):
            raise ValueError(
                "landmarks were chosen from other rows than those of X: choose them from this X, "
                "or pass landmarks.points"
            )
    else:
        check_unmasked("landmarks", landmarks)
        landmarks = landmarks.toarray() if hasattr(landmarks, "tocsr") else landmarks
        values = landmarks if isinstance(landmarks, jax.Array) else np.asarray(landmarks)
        if jnp.issubdtype(values.dtype, jnp.integer) and values.ndim == 1 and values.size:
            indices = values
            points = rows.take(values.astype(np.int32))
        else:
            indices = None
            points = as_floats("landmarks", values, rows.dtype)
    if indices is None and isinstance(rows, GramRows):
        raise ValueError(
            "landmarks of a kernel matrix must be row numbers, and are points: name rows of it, or "
            "give a kernel and its inputs"
        )
    if points.ndim != 2 or 0 in points.shape or points.shape[1] != rows.shape[1]:
        raise ValueError(
            f"landmarks must be row numbers (m,) or points (m, {rows.shape[1]}), and have shape "
            f"{points.shape}"
        )
    check_finite("landmarks", points)
    if indices is not None:
        if known_and(lambda numbers: len(np.unique(numbers)) < len(numbers), indices):
            # If one of two equal landmarks were left out, the other would stay.
            raise ValueError("landmarks name a row of X more than once: name each row once")
        indices = jnp.asarray(indices, jnp.int32)
    points = jax.tree.map(jnp.asarray, points.astype(rows.dtype))
    return Landmarks(indices, points, None)


def _same_rows(rows: Rows, indices: Array | np.ndarray, points: Any) -> bool:
    """Whether the points are these rows of X.

    If only shapes are known, as inside `jax.jit`, the answer is whether the shapes agree.
    """
    if indices.shape != points.shape[:1] or points.shape[1] != rows.shape[1]:
        return False
    return not known_and(_differ, rows, indices, points)


def _differ(rows: Rows, indices: Any, points: Any) -> Any:
    """Whether points are others than the rows of these numbers."""
    taken = as_dense(rows.take(indices))
    named = jnp.asarray(as_dense(points), rows.dtype)
    return indices.max() >= rows.count or (taken != named).any()


def certificate(fit: Any) -> str:
    """Return the text of `Fit.certificate`; empty without a trace residual, or inside `jax.jit`."""
    lam = known_values(fit.lam)
    if fit.trace_residual is None or lam is None:
        return ""
    trace = float(fit.trace_residual)
    chosen = float(lam.min())
    least = trace / TOLERANCE
    among = "" if chosen >= least else "not "
    return (
        f"from λ = {least:.3g} on, the {fit.num_landmarks} landmarks change the dual "
        f"coefficients by at most {100 * TOLERANCE:.3g}% of their norm (tr(K − K̂) = "
        f"{trace:.3g}); the chosen λ = {chosen:.3g} is {among}among them"
    )


def certified_lam(source: Any, tol: float | Float[Array, ""]) -> Float[Array, ""]:
    """Compute the λ from which on the fit on landmarks is certified to be close to that on K.

    λ = tr E/tol with E = K − K̂ ⪰ 0. Let c be the dual coefficients of the exact fit, which are its
    training residuals divided by λ, and let ĉ be those on landmarks. They satisfy ĉ − c = (K +
    λI)⁻¹Eĉ, so ‖ĉ(λ) − c(λ)‖ ≤ (tr E/λ)‖ĉ(λ)‖. From this λ on, the distance is at most
    `tol`·‖ĉ(λ)‖. With weights the trace is tr √vE√v, and c stands for √v⁻¹c. This is a bound: the
    fit is often good at far smaller λ.

    Args:
        source: `Landmarks`, or a factor made on landmarks. Both hold tr E as `trace_residual`.
        tol: the largest relative distance, above 0.

    Returns:
        λ, ().

    Raises:
        ValueError: for landmarks without a trace residual, or a `tol` that is not positive.

    **Cost** none. **Source**: the resolvent identity; ‖E‖ ≤ tr E.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> from jaxrls import extend
    >>> float(certified_lam(extend.Landmarks(None, jnp.ones((1, 1)), jnp.array(0.5)), 0.25))
    2.0
    """
    if source.trace_residual is None:
        raise ValueError(
            "source has no trace residual: pass the factor that was made from these landmarks"
        )
    if known_and(lambda tol: not tol > 0, tol):
        raise ValueError(
            "tol must be positive, the largest relative distance from the exact coefficients, and "
            f"is {tol!r}"
        )
    return source.trace_residual / tol
