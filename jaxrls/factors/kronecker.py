"""Two-sided data: K = K₁ ⊗ K₂ over all pairs of n₁ rows and n₂ columns, by two small eigendecompositions.

With √v₁K₁√v₁ = U₁ diag(s₁) U₁ᵀ and likewise on side 2, K̃ = √v K √v has the eigenvectors U = U₁ ⊗ U₂, which are never formed, and the eigenvalues s₁s₂ᵀ.
Labels are a matrix Y (n₁, n₂), z = U₁ᵀ√v(Y − ȳ)U₂ its coordinates and c those of √v, and lost = λ/(s₁s₂ᵀ + λ) of each is what a fit leaves:

    residuals √v(y − f) = U₁(lost ∘ ζ)U₂ᵀ,   ζ = z − bc,   b = Σ lost∘c∘z / Σ lost∘c∘c,   1 − leverage = (U₁∘U₁) lost (U₂∘U₂)ᵀ.

Centring would break the product up, so that the unpenalised intercept ȳ + b comes from the fits to labels and to the constant, as in generalised least
squares; likewise of what is left out, whose intercept is the rest's: with e⁰ the held-out residuals of both without an intercept,

    e = e⁰[y] − b e⁰[1],   b = M[y]/M[1],   M[t] = (Σ lost∘c∘t over all) − r[1]·e⁰[t] over what is left out.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor, Report, Solution, as_columns, over_lams
from jaxrls.factors.expansion import Dual, Expansion
from jaxrls.factors.hat import each_group
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.sides import ENTRIES_AT_ONCE, Both, Side, total, turned
from jaxrls.factors.spread_of_sides import SidesSpread
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.decompositions import clip, eigh
from jaxrls.linalg.products import matmul
from jaxrls.support.checks import Listed, as_array, check_symmetric, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree, static

# What is left out together: entries alone, whole rows, whole columns, or of an entry its row and its column. The letters are those of Stock et al. 2018.
SETTINGS = {"entries": "A", "rows": "B", "columns": "C", "both": "D"}


@pytree
class Kronecker(Factor):
    """√v (K₁ ⊗ K₂) √v by the spectra of its two sides; pair (i, j) is row i·n₂ + j, so that labels are Y.ravel().

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_kronecker(jnp.eye(2), jnp.eye(3))
    >>> factor.n, factor.shape, factor.route
    (6, (2, 3), 'kronecker')
    """

    first: Side
    second: Side
    weights: Weights
    expansion: Expansion
    said: Report
    intercept: bool = static()

    @property
    def report(self):
        """As it was made."""
        return self.said

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns labels have."""
        return len(self.first.s), len(self.second.s)

    @property
    def s(self) -> Float[Array, "n1 n2"]:
        """The eigenvalues of K̃, not centred."""
        return self.first.s[:, None] * self.second.s[None, :]

    @property
    def coordinates(self) -> Float[Array, "n1 n2 1"]:
        """Those of √v, 0 without an intercept."""
        c = self.first.constant[:, None] * self.second.constant[None, :]
        return (c if self.intercept else jnp.zeros_like(c))[:, :, None]

    def sides(self):
        """Itself."""
        return self

    def spread(self, lam):
        """Of pairs of new rows, as a `SidesSpread`."""
        return SidesSpread.of((self.first, self.second), lam, self.intercept)

    def trace(self):
        """Σ s, less what the constant has of it."""
        return jnp.sum(self.s * (1 - self.coordinates[:, :, 0] ** 2 / self.weights.total))

    def smallest_eigenvalue(self):
        """Of those of the two sides' products."""
        largest = jnp.max(self.s)
        return jnp.min(jnp.where(self.s > self.precision_floor(), self.s, largest))

    def solve_labels(self, labels):
        """z = U₁ᵀ√v(Y − ȳ)U₂, O(n₁n₂(n₁ + n₂)t)."""
        return KroneckerSolution(self, labels, turned(self.first.U.T, self.second.U.T, labels.scaled.reshape(*self.shape, -1)))


@pytree
class KroneckerSolution(Solution):
    """A `Kronecker` with labels."""

    shares_work: ClassVar[bool] = True
    factor: Kronecker
    labels: Labels
    z: Float[Array, "n1 n2 t"]

    def _each(self, fn, lams):
        """`fn(lost, λ)` at every λ, (k,), as many at once as keep ENTRIES_AT_ONCE."""
        lams = as_columns(lams)
        columns = -(-1024 * self.z.size // ENTRIES_AT_ONCE)
        return over_lams(jax.vmap(lambda lam: fn(self.lost(lam), lam)), lams, columns)

    def lost(self, lam: Float[Array, " k"]) -> Float[Array, "n1 n2 k"]:
        """λ/(s + λ)."""
        return lam / (self.factor.s[:, :, None] + lam)

    def offset(self, lost) -> Float[Array, " t"]:
        """b, which the intercept has beside the mean of labels."""
        if not self.factor.intercept:
            return jnp.zeros(self.z.shape[2], self.z.dtype)
        share = lost * self.factor.coordinates
        return total(share * self.z) / total(share * self.factor.coordinates)

    def seen(self, lost) -> Float[Array, "n1 n2 t"]:
        """ζ, the coordinates of labels less the intercept."""
        return self.z - self.offset(lost) * self.factor.coordinates

    def coefficients(self, lams):
        """√v U₁(ζ/(s + λ))U₂ᵀ as vectors over the pairs."""
        f = self.factor

        def found(lost, lam):
            coef = turned(f.first.U, f.second.U, self.seen(lost) * (lost / lam))
            return f.weights.scale(coef.reshape(f.n, -1)), self.labels.mean + self.offset(lost)

        return Coefficients(*self._each(found, lams))

    def residual_norm(self, lams):
        """‖lost ∘ ζ‖²."""
        return self._each(lambda lost, lam: total((lost * self.seen(lost)) ** 2), lams)

    def data_fit(self, lams):
        """Σ ζ²/(s + λ)."""
        return self._each(lambda lost, lam: total(lost * self.seen(lost) ** 2) / lam, lams)

    def logdet(self, lams):
        """Σ log(s + λ), and of the constant log hᵀ(K̃ + λI)⁻¹h."""
        f = self.factor

        def found(lost, lam):
            whole = total(jnp.log(f.s[:, :, None] + lam))
            return whole + jnp.log(total(lost / lam * f.coordinates**2) / f.weights.total) if f.intercept else whole

        return self._each(found, lams)

    def residual_dof(self, lams):
        """Σ lost, less what the constant had of it."""
        return self._each(lambda lost, lam: total(lost) - self._of_constant(lost), lams)

    def dof(self, lams):
        """Σ s/(s + λ), and for the intercept what the constant had lost, which is at most 1."""
        s = self.factor.s[:, :, None]
        return self._each(lambda lost, lam: total(s / (s + lam)) + self._of_constant(lost), lams)

    def _of_constant(self, lost):
        c = self.factor.coordinates
        return total((lost * c) ** 2) / total(lost * c**2) if self.factor.intercept else jnp.zeros(lost.shape[2], lost.dtype)

    def rows_left_out(self, fn, lams):
        """Setting "entries"."""
        f, v = self.factor, self.factor.weights.array

        def at(lost, lam):
            return fn(*(part.reshape(f.n, -1) for part in (self._left_out("entries", lost), self._remaining(lost))), self.labels.Y, v)

        return self._each(at, lams)

    def _remaining(self, lost) -> Float[Array, "n1 n2 k"]:
        """1 − leverage of entries."""
        f, c = self.factor, self.factor.coordinates
        U, V = f.first.U, f.second.U
        remaining = turned(U * U, V * V, lost)
        return remaining - turned(U, V, lost * c) ** 2 / total(lost * c**2) if f.intercept else remaining

    def residuals_left_out(self, lams):
        """Setting "entries"."""
        return jax.lax.map(lambda lam: self.setting_residuals("entries", lam).reshape(self.factor.n, -1), lams)

    def setting_left_out(self, fn: Callable, setting: str, lams) -> Any:
        """`left_out` of what a setting leaves out, for λ as columns (L, k)."""
        f, v = self.factor, self.factor.weights.array
        if setting == "both":
            return self._both().left_out(fn, lams)
        return self._each(lambda lost, lam: fn(self._left_out(setting, lost).reshape(f.n, -1), self.labels.Y, v), lams)

    def setting_residuals(self, setting: str, lam: Float[Array, " k"]) -> Float[Array, "n1 n2 t"]:
        """Held-out residuals at one λ, or one per target."""
        return self._both().residuals(lam) if setting == "both" else self._left_out(setting, self.lost(lam))

    def _both(self) -> Both:
        f, matrix = self.factor, lambda A: A.reshape(*self.factor.shape, -1)
        return Both.of((f.first, f.second), matrix(self.labels.Y), matrix(self.labels.scaled), f.intercept)

    def _left_out(self, setting, lost):
        """e⁰ = r/q of entries; of whole rows or columns the same in the basis of the other side, in which they come apart; O(n₁n₂(n₁ + n₂)t)."""
        f, c = self.factor, self.factor.coordinates
        U, V = None if setting == "columns" else f.first.U, None if setting == "rows" else f.second.U
        square = lambda A: None if A is None else A * A  # noqa: E731
        inside = {"entries": (), "rows": (1,), "columns": (0,)}[setting]
        q = turned(square(U), square(V), lost)
        e = turned(U, V, lost * self.z) / q
        if f.intercept:
            r = turned(U, V, lost * c)
            rest = lambda t, e: total(lost * c * t) - jnp.sum(r * e, axis=inside, keepdims=True)  # noqa: E731
            e = e - rest(self.z, e) / rest(c, r / q) * (r / q)
        e = turned(f.first.U if U is None else None, f.second.U if V is None else None, e)
        return f.weights.unscale(e.reshape(f.n, -1)).reshape(e.shape)

    def group_residuals(self, groups):
        """Any groups of pairs: (I − H)_BB from the rows of U that they take, O(n b²) each."""
        f, mask, n2 = self.factor, groups.inside_mask.astype(self.factor.dtype), self.factor.shape[1]
        c = f.coordinates.reshape(f.n, 1)

        def at(columns, lam):
            lost, z = (lam / (f.s + lam)).reshape(f.n, 1), self.z[:, :, columns].reshape(f.n, -1)

            def group(rows, mask):
                U = (f.first.U[rows // n2][:, :, None] * f.second.U[rows % n2][:, None, :]).reshape(len(rows), f.n) * mask[:, None]
                root = jnp.linalg.cholesky(matmul(U * lost[:, 0], U.T) + jnp.diag(1 - mask))
                r = matmul(U, lost * jnp.concatenate([z, c], axis=1))
                solved = jax.scipy.linalg.cho_solve((root, True), r)
                e, constant = solved[:, :-1], solved[:, -1:]
                if f.intercept:
                    rest = lambda t, e: jnp.sum(lost * c * t, axis=0) - matmul(r[:, -1], e)  # noqa: E731
                    e = e - rest(z, e) / rest(c, constant) * constant
                return f.weights.block(None if f.weights.values is None else f.weights.values[rows], len(rows)).unscale(e)

            return group

        return lambda lams: each_group(at, groups.inside, mask, f.n, self.labels.Y.shape[1], lams)


@on_any_mesh
def factor_kronecker(
    K1: Float[Array, "n1 n1"] | Listed,
    K2: Float[Array, "n2 n2"] | Listed,
    *,
    weights: tuple[Any, Any] | None = None,
    intercept: bool = True,
) -> Kronecker:
    """Factor K₁ ⊗ K₂, the kernel of all pairs of n₁ rows and n₂ columns, by the spectra of both: two-sided data with a label for every pair.

    k((x₁, x₂), (x₁', x₂')) = k₁(x₁, x₁') k₂(x₂, x₂'): drug and target, user and item. The factor is one of n₁n₂ rows: criteria, coefficients and
    `lambda_grid` take it with labels `Y.ravel()` of a matrix Y (n₁, n₂), and leave single entries out. `kronecker_left_out` leaves whole rows and columns
    out, and `fit_kronecker` does it all from data. At new pairs f = K1_new C K2_newᵀ + intercept, C the coefficients as a matrix (n₁, n₂).

    **Arguments**: K1 and K2 symmetric, positive semidefinite; `weights` a pair (v₁, v₂) of positive ones of rows and of columns, v₁v₂ᵀ those of
    entries: others would break the product up, and a missing entry is one of weight 0. **Cost** O(n₁³ + n₂³), and O(n₁n₂(n₁ + n₂)) for every λ;
    n₁² + n₂² + O(n₁n₂) numbers. **Raises** `ValueError` for matrices that are not square, symmetric or semidefinite, and for other weights.
    **Fails**: below the precision floor, (√n₁ + √n₂)·eps times the largest eigenvalue, λ is noise; what asks for `spectrum()` says that there
    is none. **Source**: Stock, Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of pairwise learning methods based on kernel
    ridge regression"; the intercept by generalised least squares.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_kronecker(jnp.eye(2), 3 * jnp.eye(2), intercept=False)
    >>> rls.loo(factor, jnp.array([1.0, 2.0, 3.0, 4.0]), [1.0]).tolist()
    [7.5]
    """
    K1 = as_array("K1", K1)
    K2 = as_array("K2", K2, K1.dtype)
    for name, K in (("K1", K1), ("K2", K2)):
        check_symmetric(name, K)
    v1, v2 = side_weights(weights, (len(K1), len(K2)), K1.dtype)
    (first, below1), (second, below2) = _side("K1", K1, v1), _side("K2", K2, v2)
    n, dtype = len(first.s) * len(second.s), first.s.dtype
    product = None if weights is None else (first.weights.array[:, None] * second.weights.array[None, :]).reshape(n)
    eps = float(jnp.finfo(dtype).eps) * (len(first.s) ** 0.5 + len(second.s) ** 0.5)
    said = Report("kronecker", eps * jnp.max(first.s) * jnp.max(second.s), jnp.maximum(below1, below2))
    return Kronecker(first, second, Weights(product, n, dtype), Dual(None), said, intercept)


def side_weights(weights, shape: tuple[int, int], dtype) -> tuple[Weights, Weights]:
    """Weights of rows and of columns from a pair of them, checked: positive where values are known."""
    if weights is not None and (not isinstance(weights, tuple | list) or len(weights) != 2):
        raise ValueError(
            "weights must be a pair (v1, v2), of rows and of columns, whose products weigh the entries: other weights break K1 ⊗ K2 up, "
            f"and are for factor_gram of all pairs; found {type(weights).__name__}"
        )
    v1, v2 = (Weights.of(v, n, dtype) for v, n in zip((None, None) if weights is None else weights, shape, strict=True))
    for name, v in (("rows", v1.values), ("columns", v2.values)):
        if v is not None and is_concrete(v) and not bool((v > 0).all()):
            raise ValueError(f"weights of {name} must be positive, and some are 0: leave those {name} out of Y and of their kernel matrix")
    return v1, v2


def _side(name, K, weights: Weights) -> tuple[Side, Any]:
    """One side, and how far its eigenvalues go below 0."""
    s, U = eigh(weights.scale_both(K))
    s, below = clip(s)
    check_semidefinite(name, below, weights.n)
    return Side(U, s, weights), below


def check_semidefinite(name: str, below, n: int) -> None:
    """Raise where eigenvalues go further below 0 than rounding takes them, relative to the largest, where that is known."""
    if is_concrete(below) and float(below) > 100 * n * float(jnp.finfo(below.dtype).eps):
        raise ValueError(
            f"{name} must be positive semidefinite, and its most negative eigenvalue is {float(below):.2g} of the largest: "
            "take another kernel, or add to its diagonal"
        )
