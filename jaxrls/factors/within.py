"""Fits of order within groups of rows, queries: an unpenalised constant for each of them, so that nothing but differences inside of a query counts.

With V the sum of the weights in a query and C = I − 1vᵀ/V there,

    ½ Σ_q (1/V_q) Σ_{i<j in q} vᵢvⱼ ((yᵢ − yⱼ) − (fᵢ − fⱼ))² = ½ Σ_q Σ_{i in q} vᵢ ((C_q(y − f))ᵢ)²:

the Laplacian of the pairs is a centring, so that labels, and rows of features or both sides of K, are centred within queries before anything is
factored, and what follows is an ordinary problem without an intercept. Of it whole queries are left out as groups of rows are. Where two rows leave a
query its mean moves too: then the constant is put back, as `directions` of `Solution.pairs_left_out`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.cholesky_features import solve_cholesky
from jaxrls.factors.choose import OF_KERNEL_MATRIX, check_route, choose_route, factor_kernel_matrix, is_primal, kernel_matrix
from jaxrls.factors.contract import Solution
from jaxrls.factors.groups import Folds
from jaxrls.factors.landmarks import Landmarks
from jaxrls.factors.makers import factor_features
from jaxrls.factors.spectrum import solve_features
from jaxrls.factors.subset import Dictionary, lead_order
from jaxrls.factors.weights import Labels, Weights
from jaxrls.kernels.inner import Linear
from jaxrls.kernels.kernel import Kernel
from jaxrls.rows.moments import moments
from jaxrls.rows.rows import DenseRows, Rows


def centred(A: Float[Array, "n p"], weights: Weights, member: Int[Array, " n"]) -> Float[Array, "n p"]:
    """Rows less the weighted mean of their group, 0 for groups of no weight: twice, as rounding of the first grows with the offset."""
    v, count = weights.array, A.shape[0]
    total = jax.ops.segment_sum(v, member, count)
    share = v / jnp.where(total > 0, total, 1)[member]
    for _ in range(2):
        A = A - jax.ops.segment_sum(share[:, None] * A, member, count)[member]
    return A


def solve_within(
    kernel: Kernel,
    rows: Rows,
    Y: Float[Array, "n *t"],
    weights: Weights,
    groups: Folds,
    *,
    landmarks: Landmarks | None = None,
    route: str | None = None,
    block_size: int | None = None,
) -> Solution:
    """The solution with a constant for each group of rows, by the routes that `factorize` has."""
    check_route(route, landmarks)
    member, n = groups.numbers, rows.shape[0]
    labels = Labels.columns(centred(Y.reshape(n, -1), weights, member), weights, False, Y.ndim == 1)
    if landmarks is not None:
        return _on_landmarks(kernel, rows, landmarks, labels, weights, member, route)
    primal = is_primal(kernel, *rows.shape, rows.dtype, None)
    if route is None:
        route = choose_route(kernel, *rows.shape, rows.dtype)
    if route in OF_KERNEL_MATRIX and not (route == "cholesky" and primal):
        K, expansion, _ = kernel_matrix(kernel, rows, True, block_size)
        K = centred(centred(K, weights, member).T, weights, member)
        return factor_kernel_matrix((K, expansion, None), weights, False, route, kernel.is_semidefinite()).solve_labels(labels)
    if kernel.num_features(rows.shape[1], rows.dtype) is None:
        raise ValueError(f"route={route!r} needs explicit features, which {type(kernel).__name__} does not have: use route='gram'")
    features = DenseRows(centred(rows.features(kernel).dense(), weights, member))
    if route == "features":
        return factor_features(features.X, weights=weights, intercept=False).solve_labels(labels)
    if route == "cholesky":
        return solve_cholesky(Linear(), features, None, labels, weights, False, block_size)
    return solve_features(features, labels, weights, False)


def _on_landmarks(kernel, rows, chosen, labels, weights, member, route) -> Solution:
    """The subset of regressors; landmarks that are rows leave the dictionary with their query."""
    if route not in (None, "subset"):
        raise ValueError(f"rank=True with groups= and landmarks= goes by route 'subset', and route is {route!r}: leave it out")
    dictionary = Dictionary.of(kernel, chosen.points)
    raw = rows.map(dictionary.lift.features, temporaries=len(chosen.points))
    B = DenseRows(centred(raw, weights, member))
    sums = moments(B, Linear(), labels.Y, weights.values, origin=jnp.zeros(B.shape[1], B.dtype))
    trace = rows.map(dictionary.left_over, raw)  # centring takes nothing but some of it off
    sums = replace(sums, trace=weights.sum(trace))
    leaving = None
    if chosen.indices is not None:
        leaving = chosen.indices, B.X[chosen.indices][lead_order(len(chosen.points))]
    return dictionary.spectrum(B, sums, weights, False, leaving).solve_moments(labels, sums)
