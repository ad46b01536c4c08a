"""The choice of landmarks: which rows of X the subset of regressors is built on, and how much of K
they leave out.

With K̂ = K_TR K_RR⁻¹ K_RT, E = K − K̂ is positive semidefinite, and tr E is what every method here
leaves behind. Choosing a row makes one column of a partial Cholesky factor F, K̂ = FFᵀ; its
residual diagonal diag E says which rows are worth choosing next."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxrls.factors.solvers import check_kernel
from jaxrls.kernels.kernel import Kernel
from jaxrls.linalg.products import matmul
from jaxrls.problem.landmarks import Landmarks, check_evaluable, hidden_trace, on_landmarks
from jaxrls.rows.blocks import default_block_size
from jaxrls.rows.gram import gram
from jaxrls.rows.rows import DenseRows, GramRows, Rows
from jaxrls.rows.sparse import is_sparse, sparse_rows
from jaxrls.support.checks import as_array, check_matrix, check_weights, check_whole, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.precision import in_precision_of
from jaxrls.support.progress import progress_bar
from jaxrls.support.pytrees import pytree

METHODS = ("rpcholesky", "uniform")

# Pivots per block: many enough for the update to run at the rate of a matrix product, few enough
# for the proposals to stay fresh.
LARGEST_BLOCK = 128
PROPOSALS_PER_PIVOT = 3
# With a tolerance, how much more room a full partial factor gets: each size is a program of its
# own.
GROWTH = 4


@pytree
class _State:
    """A partial Cholesky factor K̂ = FFᵀ while it grows; columns of F past `count` are 0."""

    F: Float[Array, "n c"]
    residual: Float[Array, " n"]  # diag(K − FFᵀ)
    indices: Int[Array, " c"]
    count: Int[Array, ""]
    key: PRNGKeyArray


@on_any_mesh
@in_precision_of("X")
def landmarks(
    kernel: Kernel,
    X,
    num: int | None = None,
    *,
    tol: float | None = None,
    key: PRNGKeyArray,
    method: str = "rpcholesky",
    weights=None,
    progress: bool = False,
) -> Landmarks:
    """Choose rows of X as landmarks: `num` of them, or as many as bring tr(K − K̂) down to tol·tr
    K.

    `"rpcholesky"` draws each row with probability proportional to its residual diagonal (K − K̂)ᵢᵢ
    given those before it, in blocks: proposals from the diagonal at the block's start, accepted
    with probability (residual now)/(residual then), so that the work is matrix products and the
    draw is exactly that of one row at a time. `"uniform"` draws every row alike. With `weights`
    (n,) ≥ 0 chances are in proportion to them too, rows of weight 0 are never drawn, and the trace
    is Σ vᵢ (K − K̂)ᵢᵢ. Either way a row whose residual is within rounding of 0, m·eps·Kᵢᵢ, counts
    as already spanned: no duplicate is chosen twice. K itself is never formed. The same `key` gives
    the same rows.

    **Arguments**: X (n, d), NumPy or JAX, or `Rows`: of a stream its sample is chosen from, with
    the weights that it brings, and the trace, which is that of all rows, left out. `num` static, at
    most n; `tol` in (0, 1); with both, whichever comes first. **Returns** `Landmarks` with the
    trace residual. Where fewer rows than `num` are independent it has only those; inside `jax.jit`,
    where the shape cannot follow, it is filled up with rows not chosen yet. `progress` shows a bar
    (needs tqdm). **Cost** O(n m (m + d)) time, O(n m) memory. **Raises** `ValueError` for neither
    `num` nor `tol`, `tol` alone inside `jax.jit`, or a precomputed kernel. **Source**: Chen,
    Epperly, Tropp and Webber 2022, "Randomly pivoted Cholesky"; in blocks, Epperly, Tropp and
    Webber 2024, "Embrace rejection", accelerated RPCholesky.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[0.0], [0.0], [1.0], [1.0]])
    >>> R = rls.landmarks(rls.Gaussian(1.0), X, 4, key=jax.random.key(0))
    >>> sorted(R.points[:, 0].tolist()), float(R.trace_residual) < 1e-6
    ([0.0, 1.0], True)
    """
    check_kernel(kernel)
    drawn, rows, weights = _candidates(kernel, X, weights)
    kernel, rows = on_landmarks(kernel, rows)
    X = rows
    v = jnp.ones(X.shape[0], X.dtype) if weights is None else as_array("weights", weights, X.dtype)
    check_weights(v, X.shape[0])
    known = is_concrete(kernel, X, v, key)
    progress = progress and known
    _check(kernel, X, num, tol, method, known)
    diag = X.map(kernel.diag, block_size=X.shape[0])
    target = jnp.asarray(0 if tol is None else tol, X.dtype) * jnp.sum(v * diag)
    limit = X.shape[0] if num is None else num
    capacity = min(limit, 2 * LARGEST_BLOCK) if known and tol is not None else limit
    state = _start(diag, key)
    with progress_bar(progress, limit, "landmarks", "row") as reached:
        while True:
            for stop in _stops(state, capacity, progress):
                state = _grow(
                    kernel,
                    X,
                    v,
                    target,
                    state,
                    jnp.asarray(stop, jnp.int32),
                    capacity=capacity,
                    method=method,
                )
                reached(
                    int(state.count) if progress else 0
                )  # without a bar nothing waits for the device
            if (
                capacity == limit
                or int(state.count) < capacity
                or bool(jnp.sum(v * state.residual) <= target)
            ):
                break
            capacity = min(limit, GROWTH * capacity)
    chosen = _finish(X, v, diag, state, capacity)
    return (
        chosen
        if drawn is None
        else Landmarks(jnp.asarray(drawn, jnp.int32)[chosen.indices], chosen.points, None)
    )


def _candidates(kernel, X, weights):
    """The rows to choose from as an array, their numbers where they are not all, and their
    weights.
    """
    if not isinstance(X, Rows):
        return None, as_candidates(kernel, X), weights
    n, weights = X.shape[0], X.row_weights if weights is None else weights
    drawn, some = X.candidates()
    if drawn is None or weights is None:
        return drawn, as_candidates(kernel, some), weights
    weights = as_array("weights", weights, some.dtype)
    check_weights(weights, n)
    return drawn, as_candidates(kernel, some), weights[drawn]


def as_candidates(kernel, X) -> Rows:
    """Rows, in one array unless they are sparse."""
    if is_sparse(X):
        return sparse_rows(X)
    X = as_array("X", X)
    check_matrix("X", X)
    return DenseRows(X) if kernel.evaluable else GramRows(X)


def _check(kernel, X, num, tol, method, known):
    check_evaluable(kernel)
    X.check(kernel)
    if method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(map(repr, METHODS))}, and is {method!r}"
        )
    if num is None and tol is None:
        raise ValueError(
            "landmarks needs num=, how many, or tol=, the part of tr K that may stay out: give one of them"
        )
    if num is not None:
        check_whole("num", num, X.shape[0])
    if tol is not None and not 0 < tol < 1:
        raise ValueError(
            f"tol must be between 0 and 1, the part of tr K that may stay out, and is {tol!r}"
        )
    if num is None and not known:
        raise ValueError(
            "inside jax.jit the number of landmarks must be known: give num=, or choose the landmarks outside"
        )


def _start(diag, key):
    n, dtype = diag.shape[0], diag.dtype
    return _State(
        jnp.zeros((n, 0), dtype), diag, jnp.zeros(0, jnp.int32), jnp.zeros((), jnp.int32), key
    )


def _enlarge(state, columns):
    extra = columns - state.indices.shape[0]
    return replace(
        state, F=jnp.pad(state.F, ((0, 0), (0, extra))), indices=jnp.pad(state.indices, (0, extra))
    )


def _block(capacity):
    """Pivots per round: equal rounds, at least four of them."""
    return -(-capacity // max(min(4, capacity), -(-capacity // LARGEST_BLOCK)))


def _stops(state, capacity, progress):
    """Where `_grow` comes back: at the end, or with a bar to move twenty times on the way."""
    return np.linspace(int(state.count), capacity, 21, dtype=int)[1:] if progress else [capacity]


@partial(jax.jit, static_argnames=("capacity", "method"))
def _grow(kernel, X, v, target, state, stop, *, capacity, method):
    """Rounds of proposals until there are `stop` landmarks, the trace is down to `target`, or no
    row is independent.
    """
    floor = capacity * jnp.finfo(X.dtype).eps * X.map(kernel.diag, block_size=X.shape[0])

    def score(residual, floor, v):
        return jnp.where(residual > floor, v * residual if method == "rpcholesky" else v, 0)

    def unfinished(state):
        within = (state.count < jnp.minimum(stop, capacity)) & (
            jnp.sum(v * state.residual) > target
        )
        return within & jnp.any(score(state.residual, floor, v) > 0)

    # Whole blocks of columns, and one to spare, as a round writes a whole block wherever it starts.
    block = _block(capacity)
    state = _enlarge(state, (-(-capacity // block) + 1) * block)
    return jax.lax.while_loop(
        unfinished, lambda state: _round(kernel, X, v, floor, score, state, capacity), state
    )


def _round(kernel, X, v, floor, score, state, capacity):
    block = _block(capacity)
    key, draw, toss = jax.random.split(state.key, 3)
    chances = score(state.residual, floor, v)
    drawn = jax.random.choice(
        draw, X.shape[0], (PROPOSALS_PER_PIVOT * block,), p=chances / jnp.sum(chances)
    )
    H = gram(kernel, X.take(drawn)) - matmul(state.F[drawn], state.F[drawn].T)
    bar = jax.random.uniform(toss, drawn.shape, X.dtype) * chances[drawn]
    C, slots, count = _reject(
        H,
        lambda h, j: score(h, floor[drawn[j]], v[drawn[j]]) > bar[j],
        block,
        jnp.minimum(block, capacity - state.count),
    )
    rows, used = drawn[slots], jnp.arange(block, dtype=jnp.int32) < count
    L = jnp.where(used[:, None] & used, jnp.tril(C[:, slots].T), jnp.eye(block, dtype=X.dtype))
    inverse = jax.lax.linalg.triangular_solve(
        L, jnp.diag(used.astype(X.dtype)), left_side=True, lower=True
    )
    chosen, points = state.F[rows], X.take(rows)

    def update(x, F, residual):

        def subtract(i, K):  # only the columns of F in use, as many blocks of them as there are
            part = partial(
                jax.lax.dynamic_slice_in_dim, start_index=i * block, slice_size=block, axis=1
            )
            return K - matmul(part(F), part(chosen).T)

        K = jax.lax.fori_loop(0, (state.count + block - 1) // block, subtract, kernel(x, points))
        new = matmul(K, inverse.T)
        return new, jnp.maximum(residual - jnp.sum(new * new, axis=1), 0)

    size = default_block_size(X.shape[0], state.F.shape[1] * X.dtype.itemsize)
    new, residual = X.map(update, state.F, state.residual, block_size=size)
    # A chosen row is spanned exactly. Where rounding let no proposal through, drop the first, or
    # the draw would never end.
    spanned = jnp.where(used | (jnp.arange(block) == 0), rows, rows[0])
    F = jax.lax.dynamic_update_slice(state.F, new, (jnp.zeros_like(state.count), state.count))
    indices = jax.lax.dynamic_update_slice(state.indices, rows.astype(jnp.int32), (state.count,))
    return _State(F, residual.at[spanned].set(0), indices, state.count + count, key)


def _reject(H, accepts, size, limit):
    """Sequential Cholesky of the proposals' residual kernel matrix H that passes over those not
    accepted.

    Returns Lᵀ, one row over all proposals per accepted one (`size` rows, 0 beyond their count),
    which these are, and their count."""

    def step(j, carry):
        C, slots, count = carry
        row = H[j] - matmul(C[:, j], C)
        take = accepts(row[j], j) & (count < limit)
        row = jnp.where(take, row / jnp.sqrt(jnp.where(take, row[j], 1)), 0)
        C = jax.lax.dynamic_update_slice(
            C, row[None], (count, jnp.zeros_like(count))
        )  # one not taken is written over by the next
        return C, slots.at[count].set(j, mode="drop"), count + take.astype(jnp.int32)

    start = (
        jnp.zeros((size + 1, H.shape[0]), H.dtype),
        jnp.zeros(size, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    C, slots, count = jax.lax.fori_loop(0, H.shape[0], step, start)
    return C[:size], slots, count


def _finish(X, v, diag, state, capacity):
    """The landmarks, cut to how many there are; where that is not known, filled up with rows that
    were not chosen.
    """
    indices, count = state.indices[:capacity], state.count
    if is_concrete(count):
        indices = indices[: int(count)]
    else:
        slot = jnp.arange(capacity, dtype=jnp.int32)
        chosen = (
            jnp.zeros(X.shape[0], bool)
            .at[jnp.where(slot < count, indices, X.shape[0])]
            .set(True, mode="drop")
        )
        others = jnp.argsort(chosen | (v <= 0), stable=True).astype(jnp.int32)
        indices = jnp.where(slot < count, indices, others[jnp.maximum(slot - count, 0)])
    return Landmarks(
        indices,
        X.take(indices),
        jnp.sum(v * state.residual) + hidden_trace(capacity, jnp.sum(v * diag)),
    )
