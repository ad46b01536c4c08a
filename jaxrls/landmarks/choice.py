"""Choose landmarks, the rows of X on which the subset of regressors is built.

Let R be the chosen rows and K̂ = K_TR K_RR⁻¹ K_RT. Then E = K − K̂ is positive semidefinite, and tr
E is the part of the trace that the landmarks miss. Each chosen row adds a column to a partial
Cholesky factor F with K̂ = FFᵀ. The residual diagonal, diag E, shows which rows are worth choosing
next.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxrls.core.data import DenseRows, Rows, Weights, as_training_rows, compiled, gram
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import default_block_size, matmul, triangular_inverse
from jaxrls.core.support import check_whole, is_concrete, progress_bar, public_call
from jaxrls.landmarks.dictionary import hidden_trace
from jaxrls.landmarks.points import Landmarks, as_landmarks, check_evaluable

METHODS = ("rpcholesky", "uniform")

# The largest number of pivots in a block. It is large enough for updates to run at the rate of a
# matrix product, and small enough for the probabilities of proposals to stay current.
LARGEST_BLOCK = 128
PROPOSALS_PER_PIVOT = 3
# With a tolerance, a partial factor that is full grows by this factor. Growth is coarse because
# each size compiles a program of its own.
GROWTH = 4


class _State(NamedTuple):
    """A growing partial Cholesky factor K̂ = FFᵀ. Columns of F past `total` are 0."""

    F: Any  # (n, c)
    residual: Any  # (n,), diag(K − FFᵀ)
    indices: Any  # (c,), row numbers of the landmarks
    total: Any  # how many landmarks are chosen
    key: PRNGKeyArray


@public_call(data="X")
def choose_landmarks(
    kernel: Kernel,
    X: Any,
    num: int | None = None,
    *,
    tol: float | None = None,
    key: PRNGKeyArray | None = None,
    method: str = "rpcholesky",
    weights: Any = None,
    progress: bool = False,
) -> Landmarks:
    """Choose rows of X as landmarks, on which `fit` approximates K if there are too many rows.

    Let K̂ = K_TR K_RR⁻¹ K_RT for chosen rows R. `num` fixes the number of rows. `tol` adds rows
    until the missed trace, tr(K − K̂), is at most tol·tr K. K itself is never formed.

    `"rpcholesky"` draws each row with probability proportional to its residual diagonal (K − K̂)ᵢᵢ,
    given the rows drawn before. It works in blocks, by matrix products. Rows are proposed with
    probabilities from the start of the block, and accepted with probability (residual
    now)/(residual then). The result has exactly the distribution of drawing one row at a time.
    `"uniform"` draws every row with the same probability.

    Both methods skip a row whose residual is within rounding of 0, m·eps·Kᵢᵢ. Such a row is
    already spanned, so no duplicate is chosen twice.

    Args:
        kernel: a jaxrls kernel.
        X: rows (n, d), NumPy or JAX, or `Rows`. For a stream, landmarks are chosen from its sample,
            with the weights of the sample.
        num: how many landmarks, at most n; static in `jax.jit`. If `tol` is given too, the first
            limit to be reached ends the choice.
        tol: the share of tr K that landmarks may miss, in (0, 1).
        key: a JAX random key; the same key gives the same rows. None stands for the key of seed 0.
        method: `"rpcholesky"` or `"uniform"`.
        weights: (n,), 0 or more. Probabilities are proportional to them too, so rows of weight 0
            are never drawn. The trace is then Σ vᵢ (K − K̂)ᵢᵢ.
        progress: show a bar (needs tqdm).

    Returns:
        `Landmarks`, with the row numbers (m,), the rows (m, d) and the trace residual, which is
        None for a stream. There are fewer than `num` if fewer rows are independent. Inside
        `jax.jit` the shape is fixed, so rows that were not chosen fill up the rest.

    Raises:
        ValueError: for neither `num` nor `tol`, for `tol` alone inside `jax.jit`, or for a
            precomputed kernel.

    **Cost** O(n m (m + d)) time, O(n m) memory. **Source**: Chen, Epperly, Tropp and Webber 2022,
    "Randomly pivoted Cholesky"; in blocks, Epperly, Tropp and Webber 2024, "Embrace rejection",
    accelerated RPCholesky.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.array([[0.0], [0.0], [1.0], [1.0]])
    >>> R = rls.choose_landmarks(rls.Gaussian(1.0), X, 4, key=jax.random.key(0))
    >>> sorted(R.points[:, 0].tolist()), float(R.trace_residual) < 1e-6
    ([0.0, 1.0], True)
    """
    rows = as_training_rows(kernel, X)
    weights = Weights.of_rows(weights, rows)
    candidates = rows.candidates()
    drawn = candidates.numbers
    if not candidates.are_all:
        weights = Weights.of(weights.take(drawn), len(drawn), rows.dtype)
    # Traced rows may count as several shards. Single rows are taken from anywhere among them, so
    # they are treated as one array.
    X = rows if candidates.are_all and rows.shards == 1 else DenseRows(candidates.rows)
    check_evaluable(kernel, X)
    known = is_concrete(kernel, X, weights, key)
    _check(kernel, X, num, tol, method, known)
    most = num or X.shape[0]
    grow = partial(_grow, kernel, X, weights, np.asarray(tol or 0, X.dtype), key, method=method)
    if known:
        chosen = _grown_in_stages(grow, most, tol is not None, progress)
    else:
        _, chosen = grow(np.int32(most), None, capacity=most, fill=True)
    if not candidates.are_all:
        return Landmarks(jnp.asarray(drawn, jnp.int32)[chosen.indices], chosen.points, None)
    return chosen


def resolve_landmarks(
    kernel: Kernel,
    rows: Rows,
    landmarks: Any,
    weights: Weights,
    progress: bool = False,
    tol: float | None = None,
) -> Landmarks:
    """Make `Landmarks` from what the caller gave, checked where values are known.

    For a number, this many rows are chosen, the same ones every time. With `tol` too, the choice
    ends as soon as the rows miss at most this share of the trace.
    """
    check_evaluable(kernel, rows)
    if isinstance(landmarks, Landmarks) or np.ndim(landmarks):
        return as_landmarks(rows, landmarks)
    most = rows.candidates().rows.shape[0]
    check_whole("landmarks, as their number, or 'auto' in fit,", landmarks, most)
    return choose_landmarks(
        kernel,
        rows,
        int(landmarks),
        tol=tol,
        weights=weights.values,
        progress=progress,
    )


def _grown_in_stages(grow: Callable, most: int, by_tolerance: bool, progress: bool) -> Landmarks:
    """Return at most `most` landmarks, from a factor that grows stage by stage.

    It stops as soon as a stage ends early: the landmarks suffice, or no other row is independent.
    """
    state = None
    with progress_bar(progress, most, "landmarks", "row") as move_bar:
        for stop, capacity in _stages(most, by_tolerance, progress):
            state, chosen = grow(np.int32(stop), state, capacity=capacity, fill=False)
            count = int(state.total)
            move_bar(count)
            if count < stop:
                break
    if count == capacity:
        return chosen
    return replace(chosen, indices=chosen.indices[:count], points=chosen.points[:count])


def _stages(most: int, by_tolerance: bool, shown: bool) -> Iterator[tuple[int, int]]:
    """Yield pairs: how many landmarks to stop at, and how many the factor has room for.

    With a tolerance the capacity grows from stage to stage, because each size compiles a program of
    its own. Without one, all landmarks have room from the start. If a bar is shown, twenty stops on
    the way move it.
    """
    begin = 0
    capacity = 2 * LARGEST_BLOCK if by_tolerance else most
    while begin < most:
        capacity = min(capacity, most)
        for stop in np.linspace(begin, capacity, 21 if shown else 2)[1:]:
            yield int(stop), capacity
        begin = capacity
        capacity = GROWTH * capacity


def _check(
    kernel: Kernel, X: Rows, num: int | None, tol: float | None, method: str, known: bool
) -> None:
    """Raise for arguments of `choose_landmarks` that are invalid."""
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
def _grow(
    kernel: Kernel,
    X: Rows,
    weights: Weights,
    tol: Float[Array | np.ndarray, ""],
    key: PRNGKeyArray | None,
    stop: Int[Array, ""] | np.integer,
    begun: _State | None,
    *,
    capacity: int,
    method: str,
    fill: bool,
) -> tuple[_State, Landmarks]:
    """Repeat rounds of proposals until one of these conditions holds.

    * There are `stop` landmarks.
    * They miss no more than `tol` of the trace.
    * No other row is independent of them.

    Args:
        kernel: the kernel.
        X: the rows.
        weights: the weights of the rows.
        tol: the share of the trace.
        key: the key to begin with, None for that of seed 0.
        stop: the number of landmarks.
        begun: the state of the stage before, None for the first stage.
        capacity: how many landmarks the factor has room for.
        method: one of METHODS.
        fill: whether other rows take the places without a landmark.

    Returns:
        The state, and `Landmarks` with `capacity` places.
    """
    v = weights.array
    diag = X.map(kernel.diag, block_size=X.shape[0])
    whole = jnp.sum(v * diag)
    floor = capacity * jnp.finfo(X.dtype).eps * diag
    # All rounds have blocks of equal size. A block has at most LARGEST_BLOCK pivots, and at most a
    # quarter of the capacity, rounded up.
    block = -(-capacity // max(min(4, capacity), -(-capacity // LARGEST_BLOCK)))
    draw = _Draw(kernel, X, v, floor, method == "rpcholesky", capacity, block)
    # A round writes a whole block of columns wherever it starts. So F has whole blocks of columns,
    # and one block to spare.
    columns = (-(-capacity // block) + 1) * block
    state = _first_state(key, diag, columns) if begun is None else _with_room(begun, columns)

    def unfinished(state: _State) -> Bool[Array, ""]:
        few = (state.total < stop) & (jnp.sum(v * state.residual) > tol * whole)
        return few & jnp.any(draw.chances(state.residual) > 0)

    state = jax.lax.while_loop(unfinished, partial(_round, draw), state)
    indices = state.indices[:capacity]
    if fill:
        indices = _filled(indices, state.total, v)
    missed = jnp.sum(v * state.residual) + hidden_trace(capacity, whole)
    return state, Landmarks(indices, X.take(indices), missed)


def _first_state(key: PRNGKeyArray | None, diag: Float[Array, " n"], columns: int) -> _State:
    """Return the state without landmarks, with room for this many columns of F."""
    return _State(
        F=jnp.zeros((len(diag), columns), diag.dtype),
        residual=diag,
        indices=jnp.zeros(columns, jnp.int32),
        total=jnp.int32(0),
        key=jax.random.key(0) if key is None else key,
    )


def _with_room(state: _State, columns: int) -> _State:
    """Return the state with room for this many columns of F."""
    missing = columns - len(state.indices)
    return state._replace(
        F=jnp.pad(state.F, ((0, 0), (0, missing))),
        indices=jnp.pad(state.indices, (0, missing)),
    )


class _Draw(NamedTuple):
    """The constants of all rounds of a draw."""

    kernel: Any
    X: Any
    v: Any  # (n,)
    floor: Any  # (n,), residuals up to this are rounding: the row is spanned
    by_residual: bool
    capacity: int
    block: int  # the largest number of pivots in a round

    def chances(
        self, residual: Float[Array, "*m"], rows: Int[Array, "*m"] | slice = slice(None)
    ) -> Float[Array, "*m"]:
        """Return the probabilities of rows, up to a common factor."""
        v = self.v[rows]
        weight = v * residual if self.by_residual else v
        return jnp.where(residual > self.floor[rows], weight, 0)


class _Proposals(NamedTuple):
    """Rows drawn one by one with the probabilities at the start of a round."""

    rows: Any  # (p,)
    H: Any  # (p, p), the block of K − K̂ for these rows
    threshold: Any  # (p,), a row is accepted if its chances still exceed this


class _Pivots(NamedTuple):
    """The accepted rows. They take the first `count` of the b places in a block."""

    rows: Any  # (b,)
    count: Any
    inverse: Any  # (b, b), L⁻¹ with LLᵀ = K − K̂ of these rows; 0 in free places


def _round(draw: _Draw, state: _State) -> _State:
    """Run one round: propose rows, accept some of them, and add their columns to F."""
    key, pick, toss = jax.random.split(state.key, 3)
    proposals = _propose(draw, state, pick, toss)
    pivots = _accept(draw, proposals, jnp.minimum(draw.block, draw.capacity - state.total))
    return _update(draw, state._replace(key=key), pivots)


def _propose(draw: _Draw, state: _State, pick: PRNGKeyArray, toss: PRNGKeyArray) -> _Proposals:
    """Propose more rows than a round can accept."""
    F = state.F
    chances = draw.chances(state.residual)
    shape = (PROPOSALS_PER_PIVOT * draw.block,)
    rows = jax.random.choice(pick, len(chances), shape, p=chances / jnp.sum(chances))
    H = gram(draw.kernel, draw.X.take(rows)) - matmul(F[rows], F[rows].T)
    threshold = jax.random.uniform(toss, shape, H.dtype) * chances[rows]
    return _Proposals(rows=rows, H=H, threshold=threshold)


def _accept(draw: _Draw, proposals: _Proposals, most: Int[Array, ""]) -> _Pivots:
    """Accept at most `most` of the proposals.

    The loop computes a sequential Cholesky factor L of H that skips the rejected rows. Row i of
    `L_transposed` is column i of L, over all proposals.
    """
    rows, H, threshold = proposals

    def consider(
        j: Int[Array, ""], carry: tuple[Float[Array, "c p"], Int[Array, " b"], Int[Array, ""]]
    ) -> tuple[Float[Array, "c p"], Int[Array, " b"], Int[Array, ""]]:
        L_transposed, accepted, count = carry
        row = H[j] - matmul(L_transposed[:, j], L_transposed)
        takes = (draw.chances(row[j], rows[j]) > threshold[j]) & (count < most)
        row = jnp.where(takes, row / jnp.sqrt(jnp.where(takes, row[j], 1)), 0)
        accepted = accepted.at[count].set(j)  # a rejected j is overwritten next
        L_transposed = L_transposed.at[count].set(row)
        return L_transposed, accepted, count + takes.astype(jnp.int32)

    slot = jnp.arange(draw.block, dtype=jnp.int32)
    start = jnp.zeros((len(slot) + 1, len(H)), H.dtype), jnp.zeros_like(slot), jnp.int32(0)
    L_transposed, accepted, count = jax.lax.fori_loop(0, len(H), consider, start)
    used = slot[:, None] < count
    L = jnp.where(used, jnp.tril(L_transposed[:-1, accepted].T), jnp.eye(len(used), dtype=H.dtype))
    return _Pivots(rows[accepted], count, jnp.where(used, triangular_inverse(L), 0))


def _update(draw: _Draw, state: _State, pivots: _Pivots) -> _State:
    """Add the columns of the pivots to the factor."""
    added, residual = _columns(draw, state, pivots)
    # A chosen row is spanned exactly. If rounding let no proposal through, drop the first one.
    # Otherwise the draw would never end.
    slot = jnp.arange(draw.block, dtype=jnp.int32)
    rows = pivots.rows
    spanned = jnp.where(slot < jnp.maximum(pivots.count, 1), rows, rows[0])
    put = jax.lax.dynamic_update_slice_in_dim
    return state._replace(
        F=put(state.F, added, state.total, 1),
        residual=residual.at[spanned].set(0),
        indices=put(state.indices, rows.astype(jnp.int32), state.total, 0),
        total=state.total + pivots.count,
    )


def _columns(draw: _Draw, state: _State, pivots: _Pivots) -> tuple[Any, Any]:
    """Compute the columns of F that the pivots add, (n, b), and the new residual diagonal (n,)."""
    block = draw.block
    points = draw.X.take(pivots.rows)
    F_pivots = state.F[pivots.rows]
    in_use = -(-state.total // block)  # the number of blocks of columns
    columns = partial(jax.lax.dynamic_slice_in_dim, slice_size=block, axis=1)

    def of_rows(
        x: Any, F: Float[Array, "n c"], residual: Float[Array, " n"]
    ) -> tuple[Float[Array, "n b"], Float[Array, " n"]]:
        def subtract(i: Int[Array, ""], K: Float[Array, "n b"]) -> Float[Array, "n b"]:
            return K - matmul(columns(F, i * block), columns(F_pivots, i * block).T)

        K = jax.lax.fori_loop(0, in_use, subtract, draw.kernel(x, points))
        added = matmul(K, pivots.inverse.T)
        return added, jnp.maximum(residual - jnp.sum(added * added, axis=1), 0)

    size = default_block_size(len(state.F), state.F.shape[1] * state.F.dtype.itemsize)
    return draw.X.map(of_rows, state.F, state.residual, block_size=size)


def _filled(
    indices: Int[Array, " c"], total: Int[Array, ""], v: Float[Array, " n"]
) -> Int[Array, " c"]:
    """Return row numbers in which rows that were not chosen take the places past `total`.

    Rows of positive weight come first among them.
    """
    slot = jnp.arange(len(indices), dtype=jnp.int32)
    chosen = jnp.where(slot < total, indices, len(v))
    rank = (v <= 0).astype(jnp.int32).at[chosen].set(slot - len(indices), mode="drop")
    return jnp.argsort(rank, stable=True)[: len(indices)].astype(jnp.int32)
