"""The subset of regressors: f(x) = Σₖ k(x, pointsₖ) βₖ over m landmarks, fitted on all n rows, with both exact leave-one-outs.

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ,    K_RR = LLᵀ,    Φ = K_TR L⁻ᵀ,    β = L⁻ᵀw:

explicit features, of which `Factor` knows everything. Two of its products with n rows cannot be avoided, ΦᵀΦ and U = ΦV/σ. Making
Φ first would be a third; L⁻¹(K_RT K_TR)L⁻ᵀ avoids it, but loses what K_RR's condition number costs. Here every fourth landmark leads,

    L = [L₁ 0; M L₂],    B = [K₁L₁⁻ᵀ, K₂ − K₁L₁⁻ᵀMᵀ],    Φ = B diag(I, L₂⁻ᵀ),

so that B costs a quarter of a product and has the large directions of K_RR taken out, and ΦᵀΦ = diag(I, L₂⁻¹) BᵀB diag(I, L₂⁻ᵀ) is as
accurate as from Φ itself. (Measured in float32 at condition numbers from 1e3 to 1e12: the short way is off by 4 to 450 times more.)
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls._blocks import check_block_size, default_block_size, map_rows, sum_rows
from jaxrls._checks import check_matrix, is_concrete, memory_bytes
from jaxrls._factor import Factor, Target, rounding, spectrum
from jaxrls._gram import gram
from jaxrls._inverse import triangular_inverse
from jaxrls._kernel import Kernel
from jaxrls._landmarks import Landmarks, as_landmarks, check_evaluable
from jaxrls._linalg import from_panels, gram_panels, matmul, safe_sqrt
from jaxrls._pytree import pytree
from jaxrls._weighted import prepare_weights, scale_rows

LARGEST_RIDGE = 0.1
FEWEST_ROWS = 512  # in a block: fewer are slow where each is multiplied by an m×m matrix


@pytree
class Lift:
    """Rows of X to rows of B: the kernel with the landmarks, the large directions of K_RR taken out."""

    kernel: Kernel
    points: Float[Array, "m d"]  # those that lead first
    lead: Float[Array, "q q"]  # L₁⁻ᵀ
    across: Float[Array, "q p"]  # Mᵀ

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        K, q = self.kernel(X, self.points), self.lead.shape[0]
        first = matmul(K[:, :q], self.lead)
        return jnp.concatenate([first, K[:, q:] - matmul(first, self.across)], axis=1)


@pytree
class Moments:
    """Sums over rows of X that add up over blocks, files and devices: all that the eigendecomposition needs of the data."""

    weight: Float[Array, ""]  # Σ v
    first: Float[Array, " m"]  # Σ v (b − origin)
    second: Float[Array, "m m"]  # Σ v (b − origin)(b − origin)ᵀ
    trace: Float[Array, ""]  # Σ v k(x, x)


def moments(
    lift: Lift,
    X: Float[Array, "n d"],
    origin: Float[Array, " m"],
    weights: Float[Array, " n"] | None = None,
    rows: Float[Array, "n m"] | None = None,
    block_size: int | None = None,
) -> Moments:
    """The sums over the rows of X, in blocks with one carry; `rows` is B where it is kept, else it is made block by block.

    `origin`, any row near the mean, keeps the later subtraction of the mean from cancelling. **Cost** O(n m²).
    """

    def block(args):
        x, b, v = args
        v = jnp.ones(x.shape[0], x.dtype) if v is None else v
        b = (lift(x) if b is None else b) - origin
        half = scale_rows(safe_sqrt(v), b)
        return jnp.sum(v), matmul(v, b), gram_panels(half), jnp.sum(v * lift.kernel.diag(x))

    weight, first, second, trace = sum_rows(block, (X, rows, weights), block_rows(X.shape[0], origin, block_size))
    return Moments(weight, first, from_panels(second), trace)


@pytree
class Leaving:
    """What leave-one-out needs of the landmarks that are rows of X, and leave the dictionary with their row."""

    indices: Int[Array, " m"]
    directions: Float[Array, "m r"]  # rows of L⁻ᵀV, of unit length: βₖ = 0 is a plane in the space of w
    left: Float[Array, "m r"]  # their rows of U/√v


@pytree
class SubsetFactor(Factor):
    """A `Factor` of the subset of regressors; coefficients are β, on `points`.

    `rows` is B, or X where `lift` makes B of it block by block. `trace_residual` is tr √v(K − K̂)√v, and `ridge` what was added to K_RR's
    diagonal, relative to it: 0 unless a pivot of its Cholesky factor was within rounding of 0.
    """

    rows: Float[Array, "n p"]
    rotation: Float[Array, "m r"]
    middle: Float[Array, " m"] | None
    points: Float[Array, "m d"]
    lift: Lift | None
    leaving: Leaving | None
    trace_residual: Float[Array, ""]
    ridge: Float[Array, ""]

    def loo_sum(self, fn, target: Target, lam):
        """As `Factor.loo_sum`, with landmarks leaving the dictionary together with their row."""
        if self.leaving is None:
            return super().loo_sum(fn, target, lam)
        indices = self.leaving.indices
        weights = jnp.ones(self.n, self.dtype) if self.weights is None else self.weights
        others = weights.at[indices].set(0)

        def block(args):
            rows, v, y, Y, weight = args
            e = jnp.where(weight > 0, self._left_out(rows, v, y, target, lam), 0)
            return fn(e, Y, weight[:, 0])

        rest = self._sum(block, target.scaled, target.Y, others[:, None])
        return jax.tree.map(jnp.add, rest, fn(self._landmarks_left_out(target, lam), target.Y[indices], weights[indices]))

    def loo_residuals(self, target: Target, lam) -> Float[Array, "n t"]:
        """As `Factor.loo_residuals`; a landmark of weight 0 leaves the dictionary in its own residual too."""
        e = super().loo_residuals(target, lam)
        return e if self.leaving is None else e.at[self.leaving.indices].set(self._landmarks_left_out(target, lam))

    def group_system(self, U, target: Target, rows, mask, lam):
        """As `Factor.group_system`, with the group's landmarks leaving the dictionary: e = (I − H + ρd⁻¹ρᵀ)⁻¹(r + ρd⁻¹α), all by blocks."""
        block, scaled = super().group_system(U, target, rows, mask, lam)
        if self.leaving is None:
            return block, scaled
        W, inside = self._directions_of(rows, mask)
        d = matmul(W * self._shrink(lam)[:, 0], W.T) + jnp.diag(1 - inside)
        root = jnp.linalg.cholesky(d * (1 + jnp.eye(d.shape[0], dtype=d.dtype) * rows.shape[0] * jnp.finfo(self.dtype).eps))
        rho = matmul(U[rows] * mask[:, None] * self._slope(lam)[:, 0], W.T)
        half = jax.lax.linalg.triangular_solve(root, rho, left_side=False, lower=True, transpose_a=True)
        alpha = jax.lax.linalg.triangular_solve(root, matmul(W, self._slope(lam) * target.z), left_side=True, lower=True)
        return block + matmul(half, half.T), scaled + matmul(half, alpha)

    def features_without(self, features, rows, mask):
        """The features U√s/√v with the planes βₖ = 0 of the landmarks among `rows` projected out."""
        if self.leaving is None:
            return features
        inside = jnp.zeros(self.n, self.dtype).at[rows].max(mask)[self.leaving.indices]
        first = jnp.argsort(-inside, stable=True)  # the directions before the zeros, so that as many columns of Q span them
        Q = jnp.linalg.qr((self.leaving.directions * inside[:, None])[first].T)[0] * inside[first]
        return features - matmul(matmul(features, Q), Q.T)

    def _directions_of(self, rows, mask):
        """For each row the direction of its landmark, 0 where it is none or masked, and whether it has one."""
        m = self.leaving.indices.shape[0]
        slot = jnp.full(self.n, m).at[self.leaving.indices].set(jnp.arange(m))[rows]
        inside = jnp.where(slot < m, mask, 0)
        return self.leaving.directions[jnp.minimum(slot, m - 1)] * inside[:, None], inside

    def _slope(self, lam):
        """√(sλ) D, between U and λD: |Uw| in units of √λ."""
        return safe_sqrt(self.s[:, None] * lam) / (self.s[:, None] + lam)

    def _landmarks_left_out(self, target, lam):
        """e = (d(y − ŷ) + ρα)/(d(1 − h) + vρ²) for the landmarks: λ enters d, ρ and α so that nothing overflows as it goes to 0."""
        R = self.leaving.indices
        W, u = self.leaving.directions, self.leaving.left
        v = jnp.ones(R.shape[0], self.dtype) if self.weights is None else self.weights[R]
        shrink, slope = self._shrink(lam), self._slope(lam)
        d, rho, alpha = matmul(W * W, shrink), matmul(W * u, slope), matmul(W, slope * target.z)
        residual = target.Y[R] - target.mean - matmul(u, target.z) + matmul(u, shrink * target.z)
        constant = 1 / self.total_weight() if self.intercept_fitted else 0
        remaining = 1 - (v * (jnp.sum(u * u, axis=1) + constant))[:, None] + v[:, None] * matmul(u * u, shrink)
        return (d * residual + rho * alpha) / (d * remaining + v[:, None] * rho * rho)

    def _centred(self, rows, v):
        return super()._centred(rows if self.lift is None else self.lift(rows), v)

    def _fitted(self, target, lam):
        step = target.z * self.s[:, None] / (self.s[:, None] + lam)
        u = lambda args: matmul(self._left(args[0], None), step)  # noqa: E731
        return target.mean + self._map(u, None)

    def _block_size(self, columns):
        return block_rows(self.n, self.s, None)


def block_rows(n, like, block_size):
    """Rows whose m numbers stay in cache, but no fewer than a matrix product wants."""
    if block_size is not None:
        return check_block_size(block_size, n)
    return max(default_block_size(n, like.shape[0] * like.dtype.itemsize), min(n, FEWEST_ROWS))


def factor_subset(
    kernel: Kernel,
    X: Float[Array, "n d"],
    landmarks: Landmarks | Int[Array, " m"] | Float[Array, "m d"],
    *,
    weights: Float[Array, " n"] | None = None,
    intercept: bool = False,
    drop: bool = True,
    keep: bool | None = None,
    block_size: int | None = None,
) -> SubsetFactor:
    """Factor the subset of regressors on given landmarks: K̂ = K_TR K_RR⁻¹ K_RT in place of K, in O(n m²).

    minimise ½ Σ vᵢ (yᵢ − K_iR β − b)² + (λ/2) βᵀK_RRβ. Every criterion takes the result. Leave-one-out is exact in both its meanings:
    with `drop` a landmark that is a row of X leaves the dictionary when its row is left out,
    e = (d(y − ŷ) + ρα)/(d(1 − h) + vρ²), so that no held-out prediction has seen its row in any way; without it the dictionary stays
    fixed, e = (y − ŷ)/(1 − h), which misjudges the test error, mostly upwards, where m is not small beside n. k-fold and group-out follow the same rule.
    Points that are not rows of X always stay. With m = n both are those of kernel RLS.

    **Arguments**: `landmarks` from `jaxrls.landmarks`, or row numbers of X (m,), or points (m, d). `keep` holds n×m numbers, the default
    where they fit into a quarter of memory; False recomputes row blocks from X in every pass: O(m² + block) memory, and the kernel
    and a quarter of a product more in each. `block_size` rows at a time while the sums are made. **Shapes**: weights (n,) ≥ 0.
    **Cost** 2¼ products of n m² multiply-adds, LOO included, 1⅞ from m = 512 on, O(m³) and n m kernel values. **Raises** `ValueError` for landmarks or shapes
    that do not fit, or a precomputed kernel. **Fails**: a pivot of K_RR's Cholesky factor below 2√m·eps of its diagonal makes a ridge of
    that size, relative to the diagonal, and four times larger until the factor exists; `ridge` says which. Squares the condition number
    of Φ as `factor_covariance`. **Source**: Quiñonero-Candela and Rasmussen 2005, §4; Rifkin (lecture), "Subset of Regressors".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X = jnp.arange(5.0)[:, None]
    >>> factor = rls.factor_subset(rls.Gaussian(2.0), X, jnp.array([0, 2, 4]))
    >>> factor.route, factor.s.shape, float(factor.ridge)
    ('subset', (3,), 0.0)
    """
    check_matrix("X", X)
    check_evaluable(kernel)
    chosen = as_landmarks(X, landmarks)
    weights = prepare_weights(weights, X.shape[0], X.dtype)
    lift, tail, ridge = _lift(kernel, chosen.points)
    given = np.argsort(lead_order(chosen.points.shape[0]))
    corner = lift(lift.points)
    origin = jnp.mean(corner, axis=0) if intercept else jnp.zeros_like(corner[0])
    rows = None
    if _fits(X.shape[0], corner) if keep is None else keep:
        rows = map_rows(lift, X, block_rows(X.shape[0], corner, block_size))
    sums = moments(lift, X, origin, weights, rows, block_size)
    mean = sums.first / sums.weight if intercept else jnp.zeros_like(origin)
    middle = origin + mean

    covariance = _tailed(_tailed(sums.second - sums.first[:, None] * mean, tail).T, tail)
    spanned = jnp.trace(covariance) + sums.weight * jnp.sum(_tailed(middle[None], tail) ** 2)
    trace = jnp.maximum(sums.trace - spanned, jnp.finfo(X.dtype).eps * sums.trace)
    s, V, inverse_sigma, below = spectrum(covariance)
    q = lift.lead.shape[0]
    V = jnp.concatenate([V[:q], matmul(tail, V[q:])])  # ΦV = B V from here on
    rotation = V * inverse_sigma
    W = jnp.concatenate([matmul(lift.lead, V[:q] - matmul(lift.across, V[q:])), V[q:]])[given]  # L⁻ᵀV, as given
    basis = W * jnp.sqrt(s)

    leaving = None
    if drop and chosen.indices is not None:
        left = matmul(corner[given] - middle, rotation)
        leaving = Leaving(chosen.indices, W / jnp.linalg.norm(W, axis=1, keepdims=True), left)
    return SubsetFactor(
        rows=X if rows is None else rows,
        s=s,
        rotation=rotation,
        middle=middle if intercept else None,
        basis=basis,
        shift=matmul(middle, V * jnp.sqrt(s)) if intercept else None,
        weights=weights,
        design=None,
        indefinite=jnp.zeros_like(below),
        floor=jnp.maximum(rounding(X.shape[0], s), 2 * below * jnp.max(s)),  # nearly dependent landmarks round eigenvalues below 0
        complete=False,
        route="subset",
        points=chosen.points,
        lift=lift if rows is None else None,
        leaving=leaving,
        trace_residual=trace,
        ridge=ridge,
    )


def _fits(n, like):
    """Whether n×m numbers are at most a quarter of memory."""
    limit = memory_bytes()
    return limit is None or n * like.shape[0] * like.dtype.itemsize <= limit / 4


def _tailed(A, tail):
    """A diag(I, L₂⁻ᵀ)."""
    q = A.shape[1] - tail.shape[0]
    return jnp.concatenate([A[:, :q], matmul(A[:, q:], tail)], axis=1)


def lead_order(m: int) -> np.ndarray:
    """The order in which landmarks lead: every fourth first, a coarse grid of them, however they are sorted."""
    return np.argsort(np.arange(m) % 4, kind="stable")


def _lift(kernel: Kernel, points: Float[Array, "m d"]):
    """B as a function of X, L₂⁻ᵀ, and the ridge."""
    m = points.shape[0]
    q = -(-m // 4)
    points = points[lead_order(m)]
    L, ridge = cholesky(gram(kernel, points))
    invert = lambda L: triangular_inverse(L).T  # noqa: E731
    return Lift(kernel, points, invert(L[:q, :q]), L[q:, :q].T), invert(L[q:, q:]), ridge


def cholesky(K: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """L with LLᵀ = K + ridge·diag K, and the ridge: the first of 0, f, 4f, 16f … whose pivots are all above f/2, with f = 2√m·eps.

    A floor relative to each diagonal entry does not depend on the kernel's scale, and leaves a K that needs no help exactly alone.
    The ridge counts as a constant in derivatives.
    """
    diag = jnp.diagonal(K)
    diag = jnp.where(diag > 0, diag, jnp.max(diag))  # k(x, x) = 0 is a landmark that does nothing: a column of 0
    floor = jnp.asarray(2 * K.shape[0] ** 0.5 * jnp.finfo(K.dtype).eps, K.dtype)
    i = jnp.arange(K.shape[0])
    K = K.at[i, i].set(diag)

    def factor(K, diag, ridge):
        return jnp.linalg.cholesky(K.at[i, i].add(ridge * diag))

    known, known_diag = jax.lax.stop_gradient((K, diag))

    def failed(state):
        L, ridge = state
        return ~jnp.all(jnp.diagonal(L) ** 2 >= floor / 2 * known_diag) & (ridge < LARGEST_RIDGE)

    def enlarge(state):
        ridge = jnp.maximum(4 * state[1], floor)
        return factor(known, known_diag, ridge), ridge

    start = jnp.zeros_like(floor)
    _, ridge = jax.lax.while_loop(failed, enlarge, (factor(known, known_diag, start), start))
    return factor(K, diag, ridge), ridge


def certified_lam(source: SubsetFactor | Landmarks, tol: float | Float[Array, ""]) -> Float[Array, ""]:
    """The λ from which on the low-rank path is within `tol` of that of the whole kernel matrix.

    With E = K − K̂ ⪰ 0, ĉ − c = (K + λI)⁻¹Eĉ, hence ‖ĉ(λ) − c(λ)‖ ≤ (tr E/λ)‖ĉ(λ)‖ for the dual coefficients, which are the training
    residuals over λ: the relative distance is at most `tol` for λ ≥ tr E/tol. A `SubsetFactor` counts its weights in, tr √vE√v, and c is
    then √v⁻¹c; for `Landmarks` with weights multiply by the largest. It is a bound: the path is often good far below it.

    **Shapes**: `tol` () gives λ ().
    **Raises** `ValueError` for landmarks without a trace residual, or a `tol` that is not positive. **Cost** none. **Source**: the resolvent
    identity; ‖E‖ ≤ tr E.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> float(certified_lam(rls.Landmarks(None, jnp.ones((1, 1)), jnp.array(0.5)), 0.25))
    2.0
    """
    if source.trace_residual is None:
        raise ValueError("these landmarks carry no trace residual: pass the factor made from them, which knows its own")
    if is_concrete(tol) and not tol > 0:
        raise ValueError(f"tol must be positive, the largest relative distance from the exact coefficients, and is {tol!r}")
    return source.trace_residual / tol


def certificate(source: SubsetFactor | Landmarks, tol: float = 0.1) -> str:
    """`certified_lam` in words, for a reader: λ = tr(K − K̂)/tol.

    **Shapes**: one landmark set or factor gives one sentence. **Cost** none. **Raises** and **Source** as `certified_lam`.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> certificate(rls.Landmarks(None, jnp.ones((1, 1)), jnp.array(0.5)), 0.25)
    'from λ = 2 on, the 1 landmarks change the dual coefficients by at most 25% of their norm (tr(K − K̂) = 0.5)'
    """
    return certificate_words(float(certified_lam(source, tol)) * tol, source.points.shape[0], tol)


def certificate_words(trace: float, m: int, tol: float) -> str:
    """The certificate of m landmarks that leave `trace` of K out."""
    return (
        f"from λ = {trace / tol:.3g} on, the {m} landmarks change the dual coefficients by at most {100 * tol:.3g}% of their norm "
        f"(tr(K − K̂) = {trace:.3g})"
    )
