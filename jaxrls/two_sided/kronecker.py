"""Two-sided data: K = K₁ ⊗ K₂ over all pairs of n₁ rows and n₂ columns, by two small
eigendecompositions.

With √v₁K₁√v₁ = U₁ diag(s₁) U₁ᵀ and likewise on side 2, K̃ = √v K √v has the eigenvectors U = U₁ ⊗
U₂, which are never formed, and the eigenvalues s₁s₂ᵀ. Labels are a matrix Y (n₁, n₂), z = U₁ᵀ√v(Y −
ȳ)U₂ are its coordinates and c those of √v, and D = λ/(s₁s₂ᵀ + λ) is the share of each that stays in
the residuals:

    residuals √v(y − f) = U₁(D ∘ ζ)U₂ᵀ,   ζ = z − bc,   b = Σ D∘c∘z / Σ D∘c∘c,
    1 − leverage = (U₁∘U₁) D (U₂∘U₂)ᵀ − w²,   w = U₁(D ∘ c)U₂ᵀ / √(Σ D∘c∘c).

Centring K would destroy the product, so the unpenalised intercept ȳ + b comes from the fits to
labels and to the constant, as in generalised least squares. A held-out prediction uses the
intercept of the remaining data: with e⁰ the held-out residuals of labels and constant without an
intercept,

    e = e⁰[y] − b e⁰[1],   b = M[y]/M[1],
    M[t] = (Σ D∘c∘t over all) − r[1]·e⁰[t] over what is left out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.data import Data, Weights, as_fixed_effects
from jaxrls.core.factors import DualOneByOne, Expansion, Primal, Report
from jaxrls.core.leave_out import View
from jaxrls.core.linalg import InverseParts, clip_negative, eigh, matmul, rounding, whitened
from jaxrls.core.support import (
    Listed,
    as_array,
    check_ratio,
    check_symmetric,
    known_and,
    public_call,
    pytree,
)
from jaxrls.uncertainty.spread import spread

# What is left out together: entries alone, whole rows, whole columns, or of an entry its row and
# its column: A to D of Stock et al. 2018.
SETTINGS = ("entries", "rows", "columns", "both")


@pytree
class Side:
    """One side: √v K √v = U diag(s) Uᵀ, and its weights."""

    U: Float[Array, "n n"]
    s: Float[Array, " n"]
    weights: Weights

    @property
    def basis(self):
        """√v U."""
        return self.weights.scale(self.U)

    @property
    def constant(self):
        """Uᵀ√v."""
        return matmul(self.weights.root, self.U)


def turned(left, right, A):
    """left A rightᵀ of every target."""
    return matmul(matmul(left, A), right.T)


def total(A):
    """Σ over all pairs."""
    return jnp.sum(A, axis=(-2, -1))


# A stack is labels and the constant 1 as matrices of all pairs: (t + 1, a, b), the constant last;
# without an intercept labels alone, and there are no products with the constant.


def less_constant(stack, products):
    """The labels of a stack less the intercept b = M[y]/M[1] times its constant, with `products` M
    (t + 1, …) of the constant with all of the stack; without an intercept the stack itself.
    """
    if products is None:
        return stack
    return stack[:-1] - products[:-1] / products[-1] * stack[-1]


class RowsOut(NamedTuple):
    """A stack with whole rows held out."""

    residuals: Any  # e⁰, without an intercept
    products: Any  # M over what is not held out with a row, (t + 1, a, 1), or None
    diagonal: Any  # of R⁰, (a, b)


def rows_out(U, residual_share, Z, intercept) -> RowsOut:
    """A stack with coordinates Z with whole rows of this side held out, U its eigenvectors. In the
    basis of the other side each column is a problem of its own.
    """
    kept = residual_share * Z
    r = matmul(U, kept)
    diagonal = matmul(U * U, residual_share)
    e = r / diagonal
    if not intercept:
        return RowsOut(e, None, diagonal)
    of_all = jnp.sum(kept[-1] * Z, axis=(-2, -1), keepdims=True)
    return RowsOut(e, of_all - jnp.sum(r[-1] * e, axis=-1, keepdims=True), diagonal)


class RowOut(NamedTuple):
    """Side 1 without one of its rows, by its spectrum V diag(σ) Vᵀ, and a stack in the basis V,
    with side 2 first.
    """

    eigenvalues: Any  # σ, (n₁ − 1,)
    across: Any  # Vᵀk₁ of the row with all others, (n₁ − 1,)
    others: Any  # the stack over the other rows, (t + q, n₂, n₁ − 1)
    itself: Any  # the stack of the row, (t + q, n₂)

    @classmethod
    def of(cls, side, stack, i) -> "RowOut":
        """Without row i."""
        without = partial(jnp.delete, assume_unique_indices=True)
        U = without(side.U, i[None], axis=0)
        s, V = eigh(matmul(U * side.s, U.T))
        across = matmul(side.U[i] * side.s, matmul(U.T, V))
        return cls(
            clip_negative(s)[0], across, matmul(without(stack, i[None], axis=2), V), stack[:, :, i]
        )

    def residuals(self, side, lam, intercept) -> Float[Array, "t n2"]:
        """What the fit without the row, and without column j too, leaves of entry j of the row.

        In the basis V direction a is a problem on side 2 alone, with eigenvalues σₐs₂, and w =
        s₂/(σₐs₂ + λ), D = λ/(σₐs₂ + λ). Its fit at column j, held out, is σₐ(U₂wU₂ᵀy −
        y diag U₂wU₂ᵀ)ⱼ / (diag U₂DU₂ᵀ)ⱼ. The row has the share k₁ᵀVₐ/σₐ of direction a, so that no
        division by σ is needed.
        """
        denominator = side.s[:, None] * self.eigenvalues + lam
        Z = matmul(side.U.T, self.others)
        w = side.s[:, None] / denominator
        out = rows_out(side.U, lam / denominator, Z, intercept)
        fits = matmul(side.U, w * Z) - self.others * matmul(side.U * side.U, w)
        residuals = self.itself - matmul(fits / out.diagonal, self.across)
        return less_constant(residuals[..., None], out.products)[..., 0]


@pytree
class SidesView(View):
    """R = (U₁ ⊗ U₂) diag(D) (U₁ ⊗ U₂)ᵀ − wwᵀ, whose rows are computed on request."""

    first: Float[Array, "n1 n1"]
    second: Float[Array, "n2 n2"]
    residual_share: Float[Array, "n1 n2"]
    w: Float[Array, "n q"]

    @property
    def width(self):
        """n₁n₂, the width of U₁ ⊗ U₂."""
        return self.residual_share.size

    def rows(self, i):
        """Rows of U₁ ⊗ U₂."""
        first = self.first[i // len(self.second)]
        second = self.second[i % len(self.second)]
        return (first[:, :, None] * second[:, None]).reshape(len(i), -1)

    def entries(self, i, j):
        """By one product."""
        R = matmul(self.rows(i) * self.residual_share.ravel(), self.rows(j).T)
        return R - matmul(self.w[i], self.w[j].T)


@pytree
class SidesSpread:
    """The posterior covariance of pairs of new rows at one λ, from k(x, xᵢ), a matrix for each
    side, and k(x, x).

    With p = U₁ᵀ√v₁ k₁(X₁, a), q = U₂ᵀ√v₂ k₂(X₂, b), w = 1/(s₁s₂ᵀ + λ) and c the coordinates of √v;
    the last term comes from the flat prior on the intercept:

        cov[f(a, b), f(a', b')] = k₁(a, a') k₂(b, b') − Σᵢⱼ pᵢp'ᵢ wᵢⱼ qⱼq'ⱼ + dd',
        d = (1 − Σᵢⱼ pᵢ wᵢⱼ cᵢⱼ qⱼ)/√(Σᵢⱼ wᵢⱼ cᵢⱼ²).

    The variances of a table of all new rows with all new columns are two products of matrices, with
    one number in memory for each pair.
    """

    basis1: Float[Array, "n1 n1"]  # √v₁U₁
    basis2: Float[Array, "n2 n2"]
    inverse: Float[Array, "n1 n2"]  # w
    constant: Float[Array, "q n1 n2"]  # (w ∘ c)/√Σwc²
    slack: Float[Array, " q"]  # 1/√Σwc²

    def first(self, K, prior):
        """The part of variances that depends only on m new rows of side 1, O(m n₁(n₁ + n₂)): k(a,
        a), and sums over i of p² w and of p (w ∘ c)/√Σwc².
        """
        p = matmul(K, self.basis1)
        return prior, matmul(p * p, self.inverse), jnp.swapaxes(matmul(p, self.constant), 0, 1)

    def variance(self, first, second):
        """Of one pair, from `first` of its row of side 1, and k(b, b) and q of side 2."""
        (prior1, squares, constant) = first
        (prior2, q) = second
        known = jnp.maximum(prior1 * prior2 - matmul(squares, q * q), 0)
        return known + jnp.sum((self.slack - matmul(constant, q)) ** 2)

    def covariance(self, K1, K2, prior):
        """Of pairs with each other, row by row of K1 (p, n₁) and K2 (p, n₂), with `prior` (p, p)
        the products k₁k₂: O(p² n₁n₂), one pair after another.
        """
        p = matmul(K1, self.basis1)
        q = matmul(K2, self.basis2)

        def explained(pair):
            return jnp.sum(matmul(p, pair[0][:, None] * self.inverse * pair[1]) * q, axis=1)

        slack = self.slack[:, None] - jnp.sum(matmul(p, self.constant) * q, axis=2)
        return prior - jax.lax.map(explained, (p, q)) + matmul(slack.T, slack)


@pytree
class Kronecker(DualOneByOne):
    """The factor of two-sided data, by the spectra of its two sides: √v (K₁ ⊗ K₂) √v.

    `factor_kronecker` makes it. Pair (i, j) is row i·n₂ + j, so that labels are `Y.ravel()`.

    Args:
        first: eigenvalues, eigenvectors and weights of side 1, n₁ rows.
        second: those of side 2, n₂ columns.
        data: weights of all n₁n₂ pairs, and an intercept or none; no rows.
        expansion: what coefficients multiply.
        report: how the factor was made, and its floor.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.two_sided.factor_kronecker(jnp.eye(2), jnp.eye(3))
    >>> factor.n, factor.shape, factor.route
    (6, (2, 3), 'kronecker')
    """

    shares_work: ClassVar[bool] = True
    first: Side
    second: Side
    data: Data
    expansion: Expansion
    report: Report

    @property
    def shape(self) -> tuple[int, int]:
        """(n₁, n₂), the shape of labels."""
        return len(self.first.s), len(self.second.s)

    @property
    def eigenvalues(self):
        """The eigenvalues of K̃ before the intercept is taken out, (n₁, n₂)."""
        return self.first.s[:, None] * self.second.s

    @property
    def constant(self):
        """The coordinates of √v (q, n₁, n₂), q = 1 with an intercept, else 0."""
        return (self.first.constant[:, None] * self.second.constant)[None][: self.fixed.count]

    @property
    def root(self):
        """√v, (1, n₁, n₂)."""
        return self.weights.root.reshape(1, *self.shape)

    def tables(self, A):
        """Vectors over the pairs (n, t) as matrices (t, n₁, n₂)."""
        return A.T.reshape(A.shape[1], *self.shape)

    def flat(self, A):
        """The inverse of `tables`."""
        return A.reshape(len(A), self.n).T

    def turned(self, A):
        """U₁AU₂ᵀ as vectors over the pairs: O(n₁n₂(n₁ + n₂)t)."""
        return self.flat(turned(self.first.U, self.second.U, A))

    def trace(self):
        """Σ s, without the share of the constant."""
        s = self.eigenvalues
        return jnp.sum(s) - jnp.sum(s * self.constant**2) / self.weights.total

    def state_of(self, labels):
        """z = U₁ᵀ√v(Y − ȳ)U₂."""
        return self.flat(turned(self.first.U.T, self.second.U.T, self.tables(labels.scaled)))

    def solve_at(self, lam, solution):
        """From the coordinates; those of H are c/√Σv."""
        w = 1 / (self.eigenvalues + lam)
        Z = jnp.concatenate(
            [self.tables(solution.state), self.constant / jnp.sqrt(self.weights.total)]
        )
        diagonal = turned(self.first.U**2, self.second.U**2, w).ravel()
        return InverseParts(self.turned(w * Z), diagonal, -total(jnp.log(w)))

    def query_residuals(self, solution, lams):
        """y − f of all pairs, none of which has weight 0."""
        return solution.training_residuals(lams) / self.weights.root[:, None]

    def view(self, solution, lam):
        """U diag(D) Uᵀ − wwᵀ."""
        results = self.at_lam(lam, solution)
        targets = solution.state.shape[1]
        inverse_times_H = self.solve_at(lam, solution).times_B[:, targets:]
        half, _ = whitened(inverse_times_H, self.H)
        return SidesView(
            results.residuals,
            results.diagonal[:, 0],
            self.H,
            self.first.U,
            self.second.U,
            lam / (self.eigenvalues + lam),
            half * jnp.sqrt(lam),
        )

    def facing(self, swapped) -> tuple[tuple[Side, Side], Callable]:
        """The two sides, and what turns matrices of all pairs accordingly."""
        if swapped:
            return (self.second, self.first), lambda A: A.swapaxes(-1, -2)
        return (self.first, self.second), lambda A: A

    @partial(jax.jit, static_argnames=("loss", "setting"))
    def errors(self, solution, loss, setting, lams: Float[Array, " L"]):
        """Σ v loss / Σ v of the held-out residuals of a setting, (L, t), with a loss as
        `LeaveOneOut` has.
        """
        Y = solution.labels.Y
        v = self.weights.array[:, None]
        mean = lambda e: jnp.sum(v * loss(self.flat(e), Y), axis=0) / self.weights.total
        if setting == "both":
            return jax.lax.map(mean, self.both_left_out(solution, lams))
        return jax.lax.map(lambda lam: mean(self.left_out(solution, setting, lam)), lams)

    @partial(jax.jit, static_argnames="setting")
    def left_out(self, solution, setting, lam) -> Float[Array, "t n1 n2"]:
        """Held-out residuals of a setting at one λ, O(n₁n₂(n₁ + n₂)t)."""
        if setting == "entries":
            return self.tables(solution.held_out_residuals(lam[None])[0])
        if setting == "both":
            return self.both_left_out(solution, lam[None])[0]
        (held, other), facing = self.facing(setting == "columns")
        Z = jnp.concatenate([self.tables(solution.state), self.constant])
        residual_share = facing(lam / (self.eigenvalues + lam))
        out = rows_out(held.U, residual_share, facing(Z), self.intercept)
        return facing(less_constant(matmul(out.residuals, other.U.T), out.products)) / self.root

    def both_left_out(self, solution, lams: Float[Array, " L"]) -> Float[Array, "L t n1 n2"]:
        """Held-out residuals of every entry without its row and its column, by a spectrum of the
        smaller side without each of its rows: O(n₁⁴ + L n₁²n₂²t) where that is side 1.
        """
        (smaller, larger), facing = self.facing(self.shape[0] > self.shape[1])
        constant = self.root[: self.fixed.count]
        stack = jnp.concatenate([self.tables(solution.labels.scaled), constant])
        stack = facing(stack).swapaxes(1, 2)

        def residuals_of_row(i):
            out = RowOut.of(smaller, stack, i)
            return jax.lax.map(lambda lam: out.residuals(larger, lam, self.intercept), lams)

        e = jax.lax.map(residuals_of_row, jnp.arange(len(smaller.s)))
        return facing(jnp.moveaxis(e, 0, 2)) / self.root


@spread.register(Kronecker)
def _of_sides(factor: Kronecker, lam) -> SidesSpread:
    """Of pairs of new rows."""
    w = 1 / (factor.eigenvalues + lam)
    slack = 1 / jnp.sqrt(total(w * factor.constant**2))
    constant = w * factor.constant * slack[:, None, None]
    return SidesSpread(factor.first.basis, factor.second.basis, w, constant, slack)


@public_call()
def factor_kronecker(
    K1: Float[Array, "n1 n1"] | Listed,
    K2: Float[Array, "n2 n2"] | Listed,
    *,
    weights: tuple[Any, Any] | None = None,
    intercept: bool = True,
) -> Kronecker:
    """Factor two-sided data with a label for every pair, such as drug and target or user and item,
    from two kernel matrices.

    k((x₁, x₂), (x₁', x₂')) = k₁(x₁, x₁') k₂(x₂, x₂'), so that K = K₁ ⊗ K₂ over all pairs of n₁ rows
    and n₂ columns. At new pairs f = K1_new C K2_newᵀ + intercept, C the coefficients as a matrix
    (n₁, n₂).

    The factor has n₁n₂ rows: criteria, coefficients and `lambda_grid` take it with labels
    `Y.ravel()` of a matrix Y (n₁, n₂), and leave single entries out. `kronecker_left_out` leaves
    whole rows and columns out, and `fit_kronecker` does it all from data.

    Args:
        K1: (n₁, n₁) symmetric, positive semidefinite.
        K2: (n₂, n₂) likewise.
        weights: a pair (v₁, v₂) of positive weights of rows (n₁,) and of columns (n₂,); entries
            have v₁v₂ᵀ. Other weights would destroy the product K₁ ⊗ K₂. A missing entry would have
            weight 0, so none may be missing. Default 1.
        intercept: whether to fit a constant without penalty.

    Returns:
        A `Factor` of all pairs.

    Raises:
        ValueError: for matrices that are not square, symmetric or semidefinite, and for other
            weights.

    **Cost** O(n₁³ + n₂³), and O(n₁n₂(n₁ + n₂)) for every λ; n₁² + n₂² + O(n₁n₂) numbers. **Fails**:
    for λ below the precision floor, (√n₁ + √n₂)·eps times the largest eigenvalue, results are
    rounding noise; what needs `spectrum()` raises, as there is none. **Source**: Stock, Pahikkala,
    Airola, De Baets and Waegeman 2018, "A comparative study of pairwise learning methods based on
    kernel ridge regression"; the intercept by generalised least squares.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.two_sided.factor_kronecker(jnp.eye(2), 3 * jnp.eye(2), intercept=False)
    >>> rls.loo(factor, jnp.array([1.0, 2.0, 3.0, 4.0]), [1.0]).tolist()
    [7.5]
    """
    K1 = as_array("K1", K1)
    K2 = as_array("K2", K2, K1.dtype)
    v1, v2 = side_weights(weights, (len(K1), len(K2)), K1.dtype)
    (first, below1) = _side("K1", K1, v1)
    (second, below2) = _side("K2", K2, v2)
    equal = v1.values is None and v2.values is None
    products = None if equal else jnp.outer(v1.array, v2.array).ravel()
    v = Weights(products, v1.n * v2.n, K1.dtype)
    floor1 = rounding(v1.n, first.s)
    floor2 = rounding(v2.n, second.s)
    floor = floor1 * jnp.max(second.s) + floor2 * jnp.max(first.s)
    report = Report("kronecker", floor, jnp.maximum(below1, below2))
    fixed = as_fixed_effects(None, intercept, v)
    return Kronecker(first, second, Data(None, v, fixed), Primal(), report)


def _side(name, K, v: Weights) -> tuple[Side, Any]:
    """One side, and its most negative eigenvalue relative to the largest."""
    check_symmetric(name, K)
    s, U = eigh(v.scale_both(K))
    s, below = clip_negative(s)
    check_semidefinite(name, below, v.n)
    return Side(U, s, v), below


def side_weights(weights, shape: tuple[int, int], dtype) -> tuple[Weights, Weights]:
    """Weights of rows and of columns from a pair of them, checked to be positive where values are
    known.
    """
    pair = (None, None) if weights is None else weights
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            "weights must be a pair (v1, v2), those of rows and of columns, and is of type "
            f"{type(weights).__name__}: for any other weights use factorize on all pairs"
        )
    v1, v2 = (Weights.of(v, n, dtype) for v, n in zip(pair, shape, strict=True))
    for name, v in (("rows", v1.values), ("columns", v2.values)):
        check_ratio(v)
        if v is not None and known_and(lambda v: not (v > 0).all(), v):
            raise ValueError(
                f"weights of {name} must be positive, and some are 0: leave those {name} out of Y "
                "and of the kernel matrix"
            )
    return v1, v2


def check_semidefinite(name, below, n):
    """Raise where the most negative eigenvalue, relative to the largest, is more than rounding, if
    it is known.
    """
    most = 100 * n * float(jnp.finfo(below.dtype).eps)
    if known_and(lambda below: below > most, below):
        raise ValueError(
            f"{name} must be positive semidefinite, and its most negative eigenvalue is "
            f"{float(below):.2g} of the largest: take another kernel, or add to its diagonal"
        )
