"""The choice of landmarks: the rows of X that the subset of regressors is built on.

With K̂ = K_TR K_RR⁻¹ K_RT, E = K − K̂ is positive semidefinite, and tr E is what the landmarks
miss. A chosen row adds a column to a partial Cholesky factor F, K̂ = FFᵀ; the residual diagonal
diag E says which rows are worth choosing next.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import default_block_size, matmul
from jaxrls.core.problem import DenseRows, Weights, as_rows, compiled, gram
from jaxrls.core.support import check_whole, door, is_concrete, progress_bar
from jaxrls.landmarks.points import Landmarks, check_evaluable, hidden_trace

METHODS = ("rpcholesky", "uniform")

# Pivots per block: many enough for the update to run at the rate of a matrix product, few enough
# for the proposals to stay fresh.
LARGEST_BLOCK = 128
PROPOSALS_PER_PIVOT = 3
# With a tolerance, how much more room a full partial factor gets: each size is a program of its
# own.
GROWTH = 4


class _State(NamedTuple):
    """A partial Cholesky factor K̂ = FFᵀ while it grows; columns of F past `total` are 0."""

    F: Any  # (n, c)
    residual: Any  # (n,), diag(K − FFᵀ); None at the start
    indices: Any  # (c,)
    total: Any
    key: PRNGKeyArray


@door("X")
def choose_landmarks(
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
    """Choose rows of X as landmarks, on which `fit` approximates K where there are too many rows.

    Chooses `num` rows R, or with `tol` as many as it takes until tr(K − K̂), what they miss of the
    trace, is at most tol·tr K. Here K̂ = K_TR K_RR⁻¹ K_RT. K itself is never formed.

    `"rpcholesky"` draws each row with probability proportional to its residual diagonal (K − K̂)ᵢᵢ
    given those drawn before. It works in blocks, by matrix products: rows are proposed by the
    diagonal at the block's start and accepted with probability (residual now)/(residual then),
    which has exactly the distribution of drawing one row at a time. `"uniform"` draws every row
    with the same probability. With either, a row whose residual is within rounding of 0, m·eps·Kᵢᵢ,
    counts as already spanned: no duplicate is chosen twice.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), NumPy or JAX, or `Rows`; of a stream, landmarks are chosen from its sample,
            with the weights that it brings.
        num: how many, at most n; static in `jax.jit`. With `tol` too, whichever comes first.
        tol: the share of tr K that landmarks may miss, in (0, 1).
        key: a JAX random key; the same key gives the same rows.
        method: `"rpcholesky"` or `"uniform"`.
        weights: (n,), 0 or more: probabilities are proportional to them too, so that rows of weight
            0 are never drawn, and the trace is Σ vᵢ (K − K̂)ᵢᵢ.
        progress: show a bar (needs tqdm).

    Returns:
        `Landmarks`, with the row numbers (m,), the rows (m, d) and the trace residual, None for a
        stream. There are fewer than `num` where fewer rows are independent; inside `jax.jit`, where
        the shape is fixed, rows that were not chosen fill up the rest.

    Raises:
        ValueError: for neither `num` nor `tol`, `tol` alone inside `jax.jit`, or a precomputed
            kernel.

    **Cost** O(n m (m + d)) time, O(n m) memory. **Source**: Chen, Epperly, Tropp and Webber 2022,
    "Randomly pivoted Cholesky"; in blocks, Epperly, Tropp and Webber 2024, "Embrace rejection",
    accelerated RPCholesky.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[0.0], [0.0], [1.0], [1.0]])
    >>> R = rls.choose_landmarks(rls.Gaussian(1.0), X, 4, key=jax.random.key(0))
    >>> sorted(R.points[:, 0].tolist()), float(R.trace_residual) < 1e-6
    ([0.0, 1.0], True)
    """
    rows = as_rows(kernel, X)
    weights = Weights.of_rows(weights, rows)
    drawn, some = rows.candidates()
    if drawn is not None:
        weights = Weights.of(weights.some(drawn), len(drawn), rows.dtype)
    here = drawn is None and rows.parts == 1
    X = rows if here else DenseRows(some)
    check_evaluable(kernel, X)
    known, n = is_concrete(kernel, X, weights, key), X.shape[0]
    _check(kernel, X, num, tol, method, known)
    limit = n if num is None else num
    capacity = min(limit, 2 * LARGEST_BLOCK) if known and tol is not None else limit
    none = np.zeros((n, 0), X.dtype), None, np.zeros(0, np.int32), np.int32(0)
    state, progress = _State(*none, key), progress and known
    with progress_bar(progress, limit, "landmarks", "row") as reached:
        while True:
            # Twenty times on the way, to move the bar.
            steps = np.linspace(int(state.total), capacity, 21)[1:] if progress else [capacity]
            for step in steps:
                state, found = _grow(
                    kernel,
                    X,
                    weights,
                    np.int32(step),
                    np.asarray(tol or 0, X.dtype),
                    state,
                    capacity=capacity,
                    method=method,
                    fill=not known,
                )
                reached(int(state.total) if progress else 0)  # without a bar nothing waits
            if capacity == limit or int(state.total) < capacity:
                break
            capacity = min(limit, GROWTH * capacity)
    indices, points, left = found.indices, found.points, found.trace_residual
    if known and int(state.total) < capacity:
        indices, points = indices[: int(state.total)], points[: int(state.total)]
    if drawn is not None:
        return Landmarks(jnp.asarray(drawn, jnp.int32)[indices], points, None)
    return Landmarks(indices, points, left)


def _check(kernel, X, num, tol, method, known):
    X.check(kernel)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, and is {method!r}")
    if num is None and tol is None:
        raise ValueError(
            "landmarks needs num=, their number, or tol=, the share of tr K that they may miss: "
            "give one of them"
        )
    if num is not None:
        check_whole("num", num, X.shape[0])
    if tol is not None and not 0 < tol < 1:
        raise ValueError(
            "tol must be between 0 and 1, the share of tr K that landmarks may miss, and is "
            f"{tol!r}"
        )
    if num is None and not known:
        raise ValueError(
            "inside jax.jit the number of landmarks must be known: give num=, or choose outside"
        )


@compiled
def _grow(kernel, X, weights, stop, tol, state, *, capacity, method, fill):
    """Rounds of proposals until there are `stop` landmarks, they miss no more than `tol` of the
    trace, or no row is independent. With `fill` rows that were not chosen take the places that are
    free, those of positive weight first.
    """
    v, diag = weights.array, X.map(kernel.diag, block_size=X.shape[0])
    floor, whole = capacity * jnp.finfo(X.dtype).eps * diag, jnp.sum(v * diag)
    if state.residual is None:
        state = state._replace(residual=diag)
    # Pivots per round: equal rounds, at least four of them.
    block = -(-capacity // max(min(4, capacity), -(-capacity // LARGEST_BLOCK)))
    # Whole blocks of columns, and one to spare, as a round writes a whole block wherever it starts.
    columns = (-(-capacity // block) + 1) * block
    size = default_block_size(X.shape[0], columns * X.dtype.itemsize)
    slot, eye = jnp.arange(block, dtype=jnp.int32), jnp.eye(block, dtype=X.dtype)

    def score(residual, rows=slice(None)):
        weight = v[rows] * residual if method == "rpcholesky" else v[rows]
        return jnp.where(residual > floor[rows], weight, 0)

    def unfinished(state):
        few = (state.total < stop) & (jnp.sum(v * state.residual) > tol * whole)
        return few & jnp.any(score(state.residual) > 0)

    def round_of(state):
        """A block of pivots: rows proposed, those accepted, and their columns of F."""
        F, residual, indices, total, key = state
        key, draw, toss = jax.random.split(key, 3)
        chances, proposals = score(residual), (PROPOSALS_PER_PIVOT * block,)
        drawn = jax.random.choice(draw, len(v), proposals, p=chances / jnp.sum(chances))
        H = gram(kernel, X.take(drawn)) - matmul(F[drawn], F[drawn].T)
        bar = jax.random.uniform(toss, drawn.shape, X.dtype) * chances[drawn]

        def propose(j, carry):
            """Sequential Cholesky of H that skips rejected rows: Lᵀ, with one row over all
            proposals for each accepted one, which these are, and their count.
            """
            C, slots, count = carry
            row = H[j] - matmul(C[:, j], C)
            take = score(row[j], drawn[j]) > bar[j]
            take &= count < jnp.minimum(block, capacity - total)
            row = jnp.where(take, row / jnp.sqrt(jnp.where(take, row[j], 1)), 0)
            # One that is rejected is overwritten by the next.
            slots = slots.at[count].set(j, mode="drop")
            return C.at[count].set(row), slots, count + take.astype(jnp.int32)

        start = jnp.zeros((block + 1, len(H)), H.dtype), jnp.zeros(block, jnp.int32), jnp.int32(0)
        C, slots, count = jax.lax.fori_loop(0, len(H), propose, start)
        rows, used = drawn[slots], slot < count
        L = jnp.where(used[:, None] & used, jnp.tril(C[:block, slots].T), eye)
        inverse = jax.lax.linalg.triangular_solve(
            L, jnp.where(used, eye, 0), left_side=True, lower=True
        )
        chosen, points = F[rows], X.take(rows)

        def update(x, F, residual):
            def subtract(i, K):  # only the columns of F in use, as many blocks of them as there are
                part = partial(
                    jax.lax.dynamic_slice_in_dim, start_index=i * block, slice_size=block, axis=1
                )
                return K - matmul(part(F), part(chosen).T)

            K = jax.lax.fori_loop(0, (total + block - 1) // block, subtract, kernel(x, points))
            new = matmul(K, inverse.T)
            return new, jnp.maximum(residual - jnp.sum(new * new, axis=1), 0)

        new, residual = X.map(update, F, residual, block_size=size)
        # A chosen row is spanned exactly. Where rounding let no proposal through, drop the first,
        # or the draw would never end.
        spanned = jnp.where(used | (slot == 0), rows, rows[0])
        put = jax.lax.dynamic_update_slice_in_dim
        F, indices = put(F, new, total, 1), put(indices, rows.astype(jnp.int32), total, 0)
        return _State(F, residual.at[spanned].set(0), indices, total + count, key)

    extra = columns - len(state.indices)
    F, indices = jnp.pad(state.F, ((0, 0), (0, extra))), jnp.pad(state.indices, (0, extra))
    state = jax.lax.while_loop(unfinished, round_of, state._replace(F=F, indices=indices))
    indices = state.indices[:capacity]
    if fill:
        slot = jnp.arange(capacity, dtype=jnp.int32)
        place = jnp.where(slot < state.total, indices, len(v))
        rank = (v <= 0).astype(jnp.int32).at[place].set(slot - capacity, mode="drop")
        indices = jnp.argsort(rank, stable=True)[:capacity].astype(jnp.int32)
    left = jnp.sum(v * state.residual) + hidden_trace(capacity, whole)
    return state, Landmarks(indices, X.take(indices), left)
