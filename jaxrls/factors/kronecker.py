"""Two-sided data: K = K₁ ⊗ K₂ over all pairs of n₁ rows and n₂ columns, by two small
eigendecompositions.

With √v₁K₁√v₁ = U₁ diag(s₁) U₁ᵀ and likewise on side 2, K̃ = √v K √v has the eigenvectors U = U₁ ⊗
U₂, which are never formed, and the eigenvalues s₁s₂ᵀ. Labels are a matrix Y (n₁, n₂), z = U₁ᵀ√v(Y −
ȳ)U₂ its coordinates and c those of √v, and lost = λ/(s₁s₂ᵀ + λ) of each is what a fit leaves:

    residuals √v(y − f) = U₁(lost ∘ ζ)U₂ᵀ,   ζ = z − bc,   b = Σ lost∘c∘z / Σ lost∘c∘c,   1 −
    leverage = (U₁∘U₁) lost (U₂∘U₂)ᵀ.

Centring would break the product up, so that the unpenalised intercept ȳ + b comes from the fits to
labels and to the constant, as in generalised least squares; likewise of what is left out, whose
intercept is the rest's: with e⁰ the held-out residuals of both without an intercept,

    e = e⁰[y] − b e⁰[1],   b = M[y]/M[1],   M[t] = (Σ lost∘c∘t over all) − r[1]·e⁰[t] over what is
    left out.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.factors.contract import Factor, Report, over_lams
from jaxrls.factors.expansion import Dual, Expansion
from jaxrls.factors.sides import ENTRIES_AT_ONCE, Both, Side, total, turned
from jaxrls.factors.spread_of_sides import SidesSpread
from jaxrls.leave_out.view import View
from jaxrls.linalg.decompositions import clip, eigh
from jaxrls.linalg.products import matmul
from jaxrls.problem.fixed_effects import FixedEffects, as_fixed_effects
from jaxrls.problem.weights import Weights
from jaxrls.support.checks import Listed, as_array, check_symmetric, is_concrete
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree

# What is left out together: entries alone, whole rows, whole columns, or of an entry its row and
# its column. The letters are those of Stock et al. 2018.
SETTINGS = {"entries": "A", "rows": "B", "columns": "C", "both": "D"}


@pytree
class Kronecker(Factor):
    """√v (K₁ ⊗ K₂) √v by the spectra of its two sides; pair (i, j) is row i·n₂ + j, so that labels
    are Y.ravel().

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_kronecker(jnp.eye(2), jnp.eye(3))
    >>> factor.n, factor.shape, factor.route
    (6, (2, 3), 'kronecker')
    """

    shares_work: ClassVar[bool] = True
    first: Side
    second: Side
    weights: Weights
    fixed: FixedEffects
    expansion: Expansion
    said: Report

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

    def project(self, labels):
        """z = U₁ᵀ√v(Y − ȳ)U₂, O(n₁n₂(n₁ + n₂)t)."""
        scaled = labels.scaled.reshape(*self.shape, -1)
        return turned(self.first.U.T, self.second.U.T, scaled)

    def _each(self, fn, solution, lams):
        """`fn(lost, λ)` at every λ, (k,), as many at once as keep ENTRIES_AT_ONCE."""
        columns = -(-1024 * solution.state.size // ENTRIES_AT_ONCE)
        return over_lams(jax.vmap(lambda lam: fn(self.lost(lam), lam)), lams, columns)

    def lost(self, lam: Float[Array, " k"]) -> Float[Array, "n1 n2 k"]:
        """λ/(s + λ)."""
        return lam / (self.s[:, :, None] + lam)

    def offset(self, z, lost) -> Float[Array, " t"]:
        """b, which the intercept has beside the mean of labels."""
        if not self.intercept:
            return jnp.zeros(z.shape[2], z.dtype)
        share = lost * self.coordinates
        return total(share * z) / total(share * self.coordinates)

    def seen(self, z, lost) -> Float[Array, "n1 n2 t"]:
        """ζ, the coordinates of labels less the intercept."""
        return z - self.offset(z, lost) * self.coordinates

    def coefficients(self, solution, lams):
        """√v U₁(ζ/(s + λ))U₂ᵀ as vectors over the pairs."""
        z = solution.state

        def found(lost, lam):
            coef = turned(self.first.U, self.second.U, self.seen(z, lost) * (lost / lam))
            beta = solution.labels.start + self.offset(z, lost)
            return self.weights.scale(coef.reshape(self.n, -1)), beta

        return self._each(found, solution, lams)

    def residual_norm(self, solution, lams):
        """‖lost ∘ ζ‖²."""
        norm = lambda lost, lam: total((lost * self.seen(solution.state, lost)) ** 2)
        return self._each(norm, solution, lams)

    def data_fit(self, solution, lams):
        """Σ ζ²/(s + λ)."""
        fit = lambda lost, lam: total(lost * self.seen(solution.state, lost) ** 2) / lam
        return self._each(fit, solution, lams)

    def logdet(self, solution, lams):
        """Σ log(s + λ), and of the constant log hᵀ(K̃ + λI)⁻¹h."""

        def found(lost, lam):
            whole = total(jnp.log(self.s[:, :, None] + lam))
            if not self.intercept:
                return whole
            return whole + jnp.log(total(lost / lam * self.coordinates**2) / self.weights.total)

        return self._each(found, solution, lams)

    def residual_dof(self, solution, lams):
        """Σ lost, less what the constant had of it."""
        return self._each(lambda lost, lam: total(lost) - self._of_constant(lost), solution, lams)

    def _of_constant(self, lost):
        c = self.coordinates
        if not self.intercept:
            return jnp.zeros(lost.shape[2], lost.dtype)
        return total((lost * c) ** 2) / total(lost * c**2)

    def sweep(self, solution, lams, fn, *columns, stack=False):
        """All entries at some λ."""
        v = self.weights.values

        def at(lost, lam):
            r, R = self._residuals(solution, lost), self._remaining(lost)
            out = fn(*(part.reshape(self.n, 1, -1) for part in (r, R)), v, *columns)
            return jax.tree.map(lambda a: a[:, 0] if stack else a[0], out)

        out = self._each(at, solution, lams)
        return jnp.moveaxis(out, 0, 1) if stack else out

    def unseen(self, solution, lams):
        """y − f of all pairs: no weight is 0."""
        return solution.training_residuals(lams) / self.weights.root[:, None]

    def _residuals(self, solution, lost) -> Float[Array, "n1 n2 t"]:
        """U₁(lost ∘ ζ)U₂ᵀ."""
        return turned(self.first.U, self.second.U, lost * self.seen(solution.state, lost))

    def _remaining(self, lost) -> Float[Array, "n1 n2 k"]:
        """1 − leverage of entries."""
        U, V = self.first.U, self.second.U
        remaining = turned(U * U, V * V, lost)
        return remaining - self._constant(lost) ** 2 if self.intercept else remaining

    def _constant(self, lost) -> Float[Array, "n1 n2 k"]:
        """w of R = U diag(lost) Uᵀ − wwᵀ."""
        c = self.coordinates
        return turned(self.first.U, self.second.U, lost * c) / jnp.sqrt(total(lost * c**2))

    def setting_left_out(self, solution, fn: Callable, setting: str, lams) -> Any:
        """`Solution.left_out` of what a setting leaves out, for λ as columns (L, k)."""
        Y, v = solution.labels.Y, self.weights.array
        if setting == "both":
            return self._both(solution).left_out(fn, lams)
        left = lambda lost, lam: self._left_out(solution, setting, lost).reshape(self.n, -1)
        return self._each(lambda lost, lam: fn(left(lost, lam), Y, v), solution, lams)

    def setting_residuals(self, solution, setting: str, lam: Float[Array, " k"]):
        """Held-out residuals (n₁, n₂, t) at one λ, or one per target."""
        if setting == "both":
            return self._both(solution).residuals(lam)
        return self._left_out(solution, setting, self.lost(lam))

    def _both(self, solution) -> Both:
        matrix = lambda A: A.reshape(*self.shape, -1)
        labels = matrix(solution.labels.Y), matrix(solution.labels.scaled)
        return Both.of((self.first, self.second), *labels, self.intercept)

    def _left_out(self, solution, setting, lost):
        """e⁰ = r/q of entries; of whole rows or columns the same in the basis of the other side, in
        which they come apart; O(n₁n₂(n₁ + n₂)t).
        """
        z, c = solution.state, self.coordinates
        U = None if setting == "columns" else self.first.U
        V = None if setting == "rows" else self.second.U
        square = lambda A: None if A is None else A * A
        inside = {"entries": (), "rows": (1,), "columns": (0,)}[setting]
        q = turned(square(U), square(V), lost)
        e = turned(U, V, lost * z) / q
        if self.intercept:
            r = turned(U, V, lost * c)
            kept = lambda e: jnp.sum(r * e, axis=inside, keepdims=True)
            rest = lambda t, e: total(lost * c * t) - kept(e)
            e = e - rest(z, e) / rest(c, r / q) * (r / q)
        first, second = self.first.U if U is None else None, self.second.U if V is None else None
        e = turned(first, second, e)
        return self.weights.unscale(e.reshape(self.n, -1)).reshape(e.shape)

    def smoother(self, lam):
        """Not of new rows alone."""
        raise ValueError(self._lacks("tells no intervals"))

    def view(self, solution, lam):
        """U diag(lost) Uᵀ − wwᵀ."""
        lost = self.lost(lam[None])
        w = self._constant(lost) if self.intercept else jnp.zeros_like(lost)
        flat = lambda A: A.reshape(self.n, -1)
        residuals, diagonal = flat(self._residuals(solution, lost)), flat(self._remaining(lost))
        H = self.weights.scale(self.fixed.basis(None, self.n))
        sides = self.first.U, self.second.U
        return SidesView(residuals, diagonal[:, 0], H, *sides, flat(lost)[:, 0], flat(w)[:, 0])


@pytree
class SidesView(View):
    """R by the rows of U that entries take."""

    residuals: Float[Array, "n t"]
    diagonal: Float[Array, " n"]
    H: Float[Array, "n q"]
    first: Float[Array, "n1 n1"]
    second: Float[Array, "n2 n2"]
    lost: Float[Array, " n"]
    constant: Float[Array, " n"]
    constraints: None = None

    @property
    def width(self):
        """n, of which a row of U is made anew."""
        return len(self.lost)

    def _rows(self, i) -> Float[Array, "a n"]:
        n2 = self.second.shape[0]
        U, V = self.first[i // n2], self.second[i % n2]
        return (U[:, :, None] * V[:, None, :]).reshape(len(i), len(self.lost))

    def entries(self, i, j):
        """By one product."""
        R = matmul(self._rows(i) * self.lost, self._rows(j).T)
        return R - self.constant[i][:, None] * self.constant[j]

    def listed(self, i, j):
        """Row by row."""
        R = jnp.sum(self._rows(i) * self.lost * self._rows(j), axis=1)
        return R - self.constant[i] * self.constant[j]


@on_any_mesh
def factor_kronecker(
    K1: Float[Array, "n1 n1"] | Listed,
    K2: Float[Array, "n2 n2"] | Listed,
    *,
    weights: tuple[Any, Any] | None = None,
    intercept: bool = True,
) -> Kronecker:
    """Factor K₁ ⊗ K₂, the kernel of all pairs of n₁ rows and n₂ columns, by the spectra of both:
    two-sided data with a label for every pair.

    k((x₁, x₂), (x₁', x₂')) = k₁(x₁, x₁') k₂(x₂, x₂'): drug and target, user and item. The factor is
    one of n₁n₂ rows: criteria, coefficients and `lambda_grid` take it with labels `Y.ravel()` of a
    matrix Y (n₁, n₂), and leave single entries out. `kronecker_left_out` leaves whole rows and
    columns out, and `fit_kronecker` does it all from data. At new pairs f = K1_new C K2_newᵀ +
    intercept, C the coefficients as a matrix (n₁, n₂).

    **Arguments**: K1 and K2 symmetric, positive semidefinite; `weights` a pair (v₁, v₂) of positive
    ones of rows and of columns, v₁v₂ᵀ those of entries: others would break the product up, and a
    missing entry is one of weight 0. **Cost** O(n₁³ + n₂³), and O(n₁n₂(n₁ + n₂)) for every λ; n₁² +
    n₂² + O(n₁n₂) numbers. **Raises** `ValueError` for matrices that are not square, symmetric or
    semidefinite, and for other weights. **Fails**: below the precision floor, (√n₁ + √n₂)·eps times
    the largest eigenvalue, λ is noise; what asks for `spectrum()` says that there is none.
    **Source**: Stock, Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of
    pairwise learning methods based on kernel ridge regression"; the intercept by generalised least
    squares.

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
    product = (
        None
        if weights is None
        else (first.weights.array[:, None] * second.weights.array[None, :]).reshape(n)
    )
    eps = float(jnp.finfo(dtype).eps) * (len(first.s) ** 0.5 + len(second.s) ** 0.5)
    said = Report(
        "kronecker", eps * jnp.max(first.s) * jnp.max(second.s), jnp.maximum(below1, below2)
    )
    v = Weights(product, n, dtype)
    return Kronecker(first, second, v, as_fixed_effects(None, intercept, v), Dual(None), said)


def side_weights(weights, shape: tuple[int, int], dtype) -> tuple[Weights, Weights]:
    """Weights of rows and of columns from a pair of them, checked: positive where values are
    known.
    """
    if weights is not None and (not isinstance(weights, tuple | list) or len(weights) != 2):
        raise ValueError(
            "weights must be a pair (v1, v2), of rows and of columns, whose products weigh the entries: other weights break K1 ⊗ K2 up, "
            f"and are for factorize of all pairs; found {type(weights).__name__}"
        )
    v1, v2 = (
        Weights.of(v, n, dtype)
        for v, n in zip((None, None) if weights is None else weights, shape, strict=True)
    )
    for name, v in (("rows", v1.values), ("columns", v2.values)):
        if v is not None and is_concrete(v) and not bool((v > 0).all()):
            raise ValueError(
                f"weights of {name} must be positive, and some are 0: leave those {name} out of Y and of their kernel matrix"
            )
    return v1, v2


def _side(name, K, weights: Weights) -> tuple[Side, Any]:
    """One side, and how far its eigenvalues go below 0."""
    s, U = eigh(weights.scale_both(K))
    s, below = clip(s)
    check_semidefinite(name, below, weights.n)
    return Side(U, s, weights), below


def check_semidefinite(name: str, below, n: int) -> None:
    """Raise where eigenvalues go further below 0 than rounding takes them, relative to the largest,
    where that is known.
    """
    if is_concrete(below) and float(below) > 100 * n * float(jnp.finfo(below.dtype).eps):
        raise ValueError(
            f"{name} must be positive semidefinite, and its most negative eigenvalue is {float(below):.2g} of the largest: "
            "take another kernel, or add to its diagonal"
        )
