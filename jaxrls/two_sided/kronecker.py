"""Two-sided data: the factor of K = K₁ ⊗ K₂ over all pairs of n₁ rows and n₂ columns.

Begin with `factor_kronecker`. It makes a `Kronecker`, from two small eigendecompositions. With
√v₁K₁√v₁ = U₁ diag(s₁) U₁ᵀ and likewise on side 2, K̃ = √v K √v has the eigenvectors U = U₁ ⊗ U₂,
which are never formed, and the eigenvalues s₁s₂ᵀ. Labels are a matrix Y (n₁, n₂). These matrices
have the same shape:

    z = U₁ᵀ√v(Y − ȳ)U₂   the coordinates of labels
    c = U₁ᵀ√vU₂          the coordinates of the constant 1
    D = λ/(s₁s₂ᵀ + λ)    the share of each coordinate that stays in the residuals
    E = 1/(s₁s₂ᵀ + λ)    the eigenvalues of (K̃ + λI)⁻¹, which are D/λ

    residuals √v(y − f) = U₁(D ∘ ζ)U₂ᵀ,   ζ = z − bc,   b = Σ D∘c∘z / Σ D∘c∘c,
    1 − leverage = (U₁∘U₁) D (U₂∘U₂)ᵀ − w²,   w = U₁(D ∘ c)U₂ᵀ / √(Σ D∘c∘c).

Centring K would destroy the product. So the unpenalised intercept ȳ + b comes from the fits to
labels and to the constant, as in generalised least squares. A held-out prediction uses the
intercept of the remaining data. Let r⁰ and e⁰ be the residuals and the held-out residuals of fits
without an intercept, to the labels y or to the constant 1. Then

    e = e⁰[y] − b e⁰[1],   b = M[y]/M[1],
    M[t] = (Σ D∘c∘t over all coordinates) − (Σ r⁰[1] e⁰[t] over what is held out).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.core.data import Data, Labels, Weights, as_fixed_effects
from jaxrls.core.factors import (
    DualOneByOne,
    Expansion,
    PerLam,
    PerRow,
    Primal,
    Report,
    Solution,
)
from jaxrls.core.fit import Numbers
from jaxrls.core.leave_out import View
from jaxrls.core.linalg import (
    MAP,
    InverseParts,
    Number,
    Square,
    clip_negative,
    eigh,
    matmul,
    rounding,
    whitened,
)
from jaxrls.core.support import (
    Listed,
    as_array,
    check_order,
    check_ratio,
    check_symmetric,
    known_and,
    public_call,
    pytree,
    with_index,
)
from jaxrls.uncertainty.spread import spread

# What is held out to predict entry (i, j): this entry, row i, column j, or both row i and column j.
# These are the settings A to D of Stock et al. 2018.
SETTINGS = ("entries", "rows", "columns", "both")


@pytree
class Side:
    """The spectrum √v K √v = U diag(s) Uᵀ of one side, and the weights v of its rows."""

    U: Float[Array, "n n"]
    s: Float[Array, " n"]
    weights: Weights
    index: ClassVar[Any] = None  # the pandas index of the kernel matrix; see `with_index`

    @property
    def basis(self) -> Square:
        """√v U, (n, n)."""
        return self.weights.scale(self.U)

    @property
    def c(self) -> Float[Array, " n"]:
        """Uᵀ√v, the coordinates of the constant 1 on this side, (n,)."""
        return matmul(self.weights.root, self.U)


def two_sided_product(
    left: Float[Array, "a n1"], right: Float[Array, "b n2"], A: Float[Array, "*t n1 n2"]
) -> Float[Array, "*t a b"]:
    """Return left A rightᵀ for every target, where targets are the leading axis of A."""
    return matmul(matmul(left, A), right.T)


def total(A: Float[Array, "*t n1 n2"]) -> Float[Array, "*t"]:
    """Return the sum over all pairs, the last two axes of A."""
    return jnp.sum(A, axis=(-2, -1))


# A "stack" (t + 1, a, b) holds matrices of all pairs: one for the labels of each of t targets, and
# a last one for the constant 1. Without an intercept the last one is missing: (t, a, b).


def less_constant(
    stack: Float[Array, "s a b"], products: Float[Array, "s a 1"] | None
) -> Float[Array, "t a b"]:
    """Return the labels of a stack minus the intercept times its constant, e⁰[y] − b e⁰[1].

    Args:
        stack: e⁰, (t + 1, a, b).
        products: M, with leading axis t + 1, so that b = M[y]/M[1]. None without an intercept: the
            stack is returned as it is.
    """
    if products is None:
        return stack
    return stack[:-1] - products[:-1] / products[-1] * stack[-1]


class RowsOut(NamedTuple):
    """The residuals of a stack with whole rows held out, what `rows_out` returns."""

    residuals: Any  # e⁰, by fits without an intercept, (t + 1, a, b)
    products: Any  # M without each of the rows, (t + 1, a, 1); None without an intercept
    diagonal: Any  # of R⁰, the residual operator without an intercept, (a, b)


def rows_out(
    U: Float[Array, "a a"],
    residual_share: Float[Array, "a b"],
    Z: Float[Array, "s a b"],
    intercept: bool,
) -> RowsOut:
    """Hold out each row of one side, with all pairs of this row.

    In the basis of the other side each column is a problem of its own. So this is leave-one-out for
    every column.

    Args:
        U: the eigenvectors of the side whose rows are held out, (a, a).
        residual_share: D, (a, b).
        Z: the coordinates of a stack, (t + 1, a, b).
        intercept: whether the stack has a constant.
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
    """Side 1 without one of its rows: the spectrum V diag(σ) Vᵀ, and a stack in the basis V.

    The stack is transposed, with the axis of side 2 before that of side 1. It has t + q matrices: t
    targets, and the constant if there is an intercept (q = 1, else 0).
    """

    eigenvalues: Any  # σ, (n₁ − 1,)
    across: Any  # Vᵀk₁, with the kernel k₁ of the held-out row and all others, (n₁ − 1,)
    others: Any  # the stack of the other rows, in the basis V, (t + q, n₂, n₁ − 1)
    itself: Any  # the stack of the held-out row, (t + q, n₂)

    @classmethod
    def of(cls, side: Side, stack: Float[Array, "s n2 n1"], i: Int[Array, ""]) -> "RowOut":
        """Hold out row i of a side, given its stack (t + q, n₂, n₁)."""
        without = partial(jnp.delete, assume_unique_indices=True)
        U = without(side.U, i[None], axis=0)
        s, V = eigh(matmul(U * side.s, U.T))
        across = matmul(side.U[i] * side.s, matmul(U.T, V))
        return cls(
            clip_negative(s)[0], across, matmul(without(stack, i[None], axis=2), V), stack[:, :, i]
        )

    def residuals(self, side: Side, lam: Number, intercept: bool) -> Float[Array, "t n2"]:
        """Return the residual of every entry j of the row, by the fit without row and column j.

        In the basis V, direction a is a problem on side 2 alone, with the eigenvalues σₐs₂. With
        D = λ/(σₐs₂ + λ) and F = s₂/(σₐs₂ + λ), its prediction at the held-out column j is

            σₐ (U₂FU₂ᵀy − y diag U₂FU₂ᵀ)ⱼ / (diag U₂DU₂ᵀ)ⱼ.

        The prediction for the row is the sum of these over a, times k₁ᵀVₐ/σₐ. There σₐ cancels, so
        that no division by it is needed.

        Args:
            side: side 2.
            lam: one λ.
            intercept: whether the stack has a constant.
        """
        denominator = side.s[:, None] * self.eigenvalues + lam
        Z = matmul(side.U.T, self.others)
        F = side.s[:, None] / denominator
        out = rows_out(side.U, lam / denominator, Z, intercept)
        fits = matmul(side.U, F * Z) - self.others * matmul(side.U * side.U, F)
        residuals = self.itself - matmul(fits / out.diagonal, self.across)
        return less_constant(residuals[..., None], out.products)[..., 0]


@pytree
class SidesView(View):
    """A `View` with R = (U₁ ⊗ U₂) diag(D) (U₁ ⊗ U₂)ᵀ − wwᵀ, computed on request."""

    first: Float[Array, "n1 n1"]  # U₁
    second: Float[Array, "n2 n2"]  # U₂
    residual_share: Float[Array, "n1 n2"]  # D
    w: Float[Array, "n q"]

    @property
    def width(self) -> int:
        """n₁n₂, the number of columns of U₁ ⊗ U₂."""
        return self.residual_share.size

    def rows(self, i: Int[Array, " b"]) -> Float[Array, "b n"]:
        """Return rows i of U₁ ⊗ U₂, (b, n₁n₂) for b pair numbers i."""
        first = self.first[i // len(self.second)]
        second = self.second[i % len(self.second)]
        return (first[:, :, None] * second[:, None]).reshape(len(i), -1)

    def entries(self, i: Int[Array, " a"], j: Int[Array, " b"]) -> Float[Array, "a b"]:
        """Compute R_ij by one product of rows of U₁ ⊗ U₂."""
        R = matmul(self.rows(i) * self.residual_share.ravel(), self.rows(j).T)
        return R - matmul(self.w[i], self.w[j].T)


class RowPart(NamedTuple):
    """What a new row a of side 1 adds to the variances of its pairs."""

    prior: Any  # k₁(a, a), ()
    squares: Any  # Σᵢ pᵢ² Eᵢⱼ, (n₂,)
    constant: Any  # Σᵢ pᵢ (E ∘ c)ᵢⱼ/√ΣEc², (q, n₂)


class ColumnPart(NamedTuple):
    """What a new row b of side 2 adds to the variances of its pairs."""

    prior: Any  # k₂(b, b), ()
    q: Any  # (n₂,)


@pytree
class SidesSpread:
    """The posterior covariance of f + b at pairs of new rows, at one λ and for τ² = 1.

    For a pair of a new row a of side 1 and a new row b of side 2, let p = U₁ᵀ√v₁ k₁(X₁, a) and
    q = U₂ᵀ√v₂ k₂(X₂, b). With E = 1/(s₁s₂ᵀ + λ) and the coordinates c of the constant,

        cov[f(a, b), f(a', b')] = k₁(a, a') k₂(b, b') − Σᵢⱼ pᵢp'ᵢ Eᵢⱼ qⱼq'ⱼ + dd',
        d = (1 − Σᵢⱼ pᵢ Eᵢⱼ cᵢⱼ qⱼ)/√(Σᵢⱼ Eᵢⱼ cᵢⱼ²).

    The last term comes from the flat prior on the intercept. The variances for all pairs of new
    rows and new columns take two products of matrices, with one number in memory for each pair.
    """

    basis1: Float[Array, "n1 n1"]  # √v₁U₁
    basis2: Float[Array, "n2 n2"]  # √v₂U₂
    inverse: Float[Array, "n1 n2"]  # E
    constant: Float[Array, "q n1 n2"]  # (E ∘ c)/√ΣEc²; q is 1 with an intercept, else 0
    slack: Float[Array, " q"]  # 1/√ΣEc²

    def row_part(self, K: Float[Array, "m n1"], prior: Float[Array, " m"]) -> RowPart:
        """Compute the parts of m new rows of side 1, in O(m n₁(n₁ + n₂)).

        Args:
            K: k₁(a, X₁) of the new rows, (m, n₁).
            prior: k₁(a, a), (m,).

        Returns:
            A `RowPart` whose arrays have an axis of new rows first.
        """
        p = matmul(K, self.basis1)
        of_constant = jnp.swapaxes(matmul(p, self.constant), 0, 1)
        return RowPart(prior=prior, squares=matmul(p * p, self.inverse), constant=of_constant)

    def column_part(self, K: Float[Array, "m n2"], prior: Float[Array, " m"]) -> ColumnPart:
        """Compute the parts of m new rows of side 2, in O(m n₂²), from k₂(b, X₂) and k₂(b, b)."""
        return ColumnPart(prior=prior, q=matmul(K, self.basis2))

    def variance(self, row: RowPart, column: ColumnPart) -> Number:
        """Return the variance of one pair, from the parts of its two rows."""
        q = column.q
        known = jnp.maximum(row.prior * column.prior - matmul(row.squares, q * q), 0)
        return known + jnp.sum((self.slack - matmul(row.constant, q)) ** 2)

    def covariance(
        self, K1: Float[Array, "m n1"], K2: Float[Array, "m n2"], prior: Float[Array, "m m"]
    ) -> Float[Array, "m m"]:
        """Return the covariance (m, m) of m pairs with each other, in O(m² n₁n₂).

        Args:
            K1: k₁(a, X₁) of the row a of each pair, (m, n₁).
            K2: k₂(b, X₂) of the row b of each pair, (m, n₂).
            prior: k₁(a, a') k₂(b, b') of each pair with each other, (m, m).
        """
        p = matmul(K1, self.basis1)
        q = matmul(K2, self.basis2)

        def explained(pair: tuple[Float[Array, " n1"], Float[Array, " n2"]]) -> Float[Array, " m"]:
            return jnp.sum(matmul(p, pair[0][:, None] * self.inverse * pair[1]) * q, axis=1)

        slack = self.slack[:, None] - jnp.sum(matmul(p, self.constant) * q, axis=2)
        return prior - jax.lax.map(explained, (p, q)) + matmul(slack.T, slack)


@pytree
class Kronecker(DualOneByOne):
    """The factor of two-sided data: √v (K₁ ⊗ K₂) √v by the spectra of its two sides.

    `factor_kronecker` makes it. Pair (i, j) is row i·n₂ + j, so that labels are `Y.ravel()`.

    Args:
        first: the eigenvalues, eigenvectors and weights of side 1, of n₁ rows.
        second: the eigenvalues, eigenvectors and weights of side 2, of n₂ columns.
        data: the weights of all n₁n₂ pairs, and the intercept if there is one. It has no rows.
        expansion: `Primal()`, as for a kernel matrix that was given. So coefficients are returned
            as they are. They multiply the kernel of new pairs, which whoever asks computes.
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
        """(n₁, n₂), the shape of the matrix of labels."""
        return len(self.first.s), len(self.second.s)

    @property
    def eigenvalues(self) -> Float[Array, "n1 n2"]:
        """s₁s₂ᵀ, the eigenvalues of K̃ before the intercept is projected out, (n₁, n₂)."""
        return self.first.s[:, None] * self.second.s

    @property
    def c(self) -> Float[Array, "q n1 n2"]:
        """The coordinates of the constant 1, (q, n₁, n₂): q is 1 with an intercept, else 0."""
        return (self.first.c[:, None] * self.second.c)[None][: self.fixed.count]

    @property
    def root(self) -> Float[Array, "1 n1 n2"]:
        """√v of all pairs, (1, n₁, n₂)."""
        return self.weights.root.reshape(1, *self.shape)

    def tables(self, A: Float[Array, "n t"]) -> Float[Array, "t n1 n2"]:
        """Reshape t vectors over all pairs, (n, t), to matrices (t, n₁, n₂)."""
        return A.T.reshape(A.shape[1], *self.shape)

    def flat(self, A: Float[Array, "t n1 n2"]) -> Float[Array, "n t"]:
        """Reshape t matrices (t, n₁, n₂) to vectors over all pairs, (n, t)."""
        return A.reshape(len(A), self.n).T

    def from_coordinates(self, A: Float[Array, "t n1 n2"]) -> Float[Array, "n t"]:
        """Return U₁AU₂ᵀ as vectors over all pairs, (n, t), in O(n₁n₂(n₁ + n₂)t)."""
        return self.flat(two_sided_product(self.first.U, self.second.U, A))

    def trace(self) -> Number:
        """Return the trace of K̃ with the intercept projected out: Σ s − Σ s c² / Σ v."""
        s = self.eigenvalues
        return jnp.sum(s) - jnp.sum(s * self.c**2) / self.weights.total

    def state_of(self, labels: Labels) -> Float[Array, "n t"]:
        """Return the coordinates of labels, z = U₁ᵀ√v(Y − ȳ)U₂, as (n, t)."""
        return self.flat(
            two_sided_product(self.first.U.T, self.second.U.T, self.tables(labels.scaled))
        )

    def solve_at(self, lam: Number, solution: Solution) -> InverseParts:
        """Compute G⁻¹[ỹ, H], diag G⁻¹ and log |G| of G = K̃ + λI, from coordinates.

        The coordinates of H are c/√Σv.
        """
        E = 1 / (self.eigenvalues + lam)
        Z = jnp.concatenate([self.tables(solution.state), self.c / jnp.sqrt(self.weights.total)])
        diagonal = two_sided_product(self.first.U**2, self.second.U**2, E).ravel()
        return InverseParts(self.from_coordinates(E * Z), diagonal, -total(jnp.log(E)))

    def query_residuals(self, solution: Solution, lams: PerLam) -> PerRow:
        """Return y − f of all pairs. All weights are positive, so √v divides the residuals."""
        r = self.sweep(MAP, solution, lams, lambda residuals: residuals.r)
        return r / self.weights.root[:, None, None]

    def view(self, solution: Solution, lam: Number) -> SidesView:
        """Return R = U diag(D) Uᵀ − wwᵀ and r at one λ, as a `SidesView`."""
        results = self.at_lam(lam, solution)
        targets = solution.state.shape[1]
        inverse_times_H = self.solve_at(lam, solution).times_B[:, targets:]
        half, _ = whitened(inverse_times_H, self.H)
        return SidesView(
            results.residuals,
            results.diagonal[:, 0],
            self.H,
            first=self.first.U,
            second=self.second.U,
            residual_share=lam / (self.eigenvalues + lam),
            w=half * jnp.sqrt(lam),
        )

    def facing(self, swapped: bool) -> tuple[tuple[Side, Side], Callable]:
        """Return the two sides, and a function that turns matrices of all pairs to match them.

        If `swapped`, side 2 comes first and the function exchanges the last two axes. Otherwise
        side 1 comes first and the function returns matrices unchanged.
        """
        if swapped:
            return (self.second, self.first), lambda A: A.swapaxes(-1, -2)
        return (self.first, self.second), lambda A: A

    @partial(jax.jit, static_argnames=("loss", "setting"))
    def errors(
        self, solution: Solution, loss: Callable, setting: str, lams: Float[Array, " L"]
    ) -> Float[Array, "L t"]:
        """Compute Σ v loss / Σ v of the held-out residuals of a setting, (L, t).

        The loss is a function of residuals and labels, as for `LeaveOneOut`.
        """
        Y = solution.labels.Y
        v = self.weights.array[:, None]
        mean = lambda e: jnp.sum(v * loss(self.flat(e), Y), axis=0) / self.weights.total
        if setting == "both":
            return jax.lax.map(mean, self.both_left_out(solution, lams))
        return jax.lax.map(lambda lam: mean(self.left_out(solution, setting, lam)), lams)

    @partial(jax.jit, static_argnames="setting")
    def left_out(self, solution: Solution, setting: str, lam: Number) -> Float[Array, "t n1 n2"]:
        """Compute the held-out residuals of a setting at one λ.

        **Cost** O(n₁n₂(n₁ + n₂)t), or as `both_left_out` for the setting "both".
        """
        if setting == "entries":
            return self.tables(solution.held_out_residuals(lam[None])[0])
        if setting == "both":
            return self.both_left_out(solution, lam[None])[0]
        (held, other), facing = self.facing(setting == "columns")
        Z = jnp.concatenate([self.tables(solution.state), self.c])
        residual_share = facing(lam / (self.eigenvalues + lam))
        out = rows_out(held.U, residual_share, facing(Z), self.intercept)
        return facing(less_constant(matmul(out.residuals, other.U.T), out.products)) / self.root

    def both_left_out(
        self, solution: Solution, lams: Float[Array, " L"]
    ) -> Float[Array, "L t n1 n2"]:
        """Compute the residual of every entry by the fit without its row and its column.

        For each row of the smaller side, the rest of this side is factored anew. If it is side 1,
        this costs O(n₁⁴ + L n₁²n₂²t).
        """
        (smaller, larger), facing = self.facing(self.shape[0] > self.shape[1])
        scaled_constant = self.root[: self.fixed.count]  # √v, or nothing without an intercept
        stack = jnp.concatenate([self.tables(solution.labels.scaled), scaled_constant])
        stack = facing(stack).swapaxes(1, 2)

        def residuals_of_row(i: Int[Array, ""]) -> Float[Array, "L t n2"]:
            out = RowOut.of(smaller, stack, i)
            return jax.lax.map(lambda lam: out.residuals(larger, lam, self.intercept), lams)

        e = jax.lax.map(residuals_of_row, jnp.arange(len(smaller.s)))
        return facing(jnp.moveaxis(e, 0, 2)) / self.root


@spread.register(Kronecker)
def _of_sides(factor: Kronecker, lam: Number) -> SidesSpread:
    """Return the posterior covariance at pairs of new rows, for a factor of two-sided data."""
    E = 1 / (factor.eigenvalues + lam)
    slack = 1 / jnp.sqrt(total(E * factor.c**2))
    return SidesSpread(
        basis1=factor.first.basis,
        basis2=factor.second.basis,
        inverse=E,
        constant=E * factor.c * slack[:, None, None],
        slack=slack,
    )


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

    The kernel of pairs is k((x₁, x₂), (x₁', x₂')) = k₁(x₁, x₁') k₂(x₂, x₂'). So K = K₁ ⊗ K₂ over
    all pairs of n₁ rows and n₂ columns. At new pairs f = K1_new C K2_newᵀ + intercept, where C is
    the matrix (n₁, n₂) of coefficients.

    The factor has n₁n₂ rows. Criteria, coefficients and `lambda_grid` take it with labels
    `Y.ravel()` of a matrix Y (n₁, n₂), and leave single entries out. `kronecker_left_out` leaves
    whole rows and columns out. `fit_kronecker` does all of this from data.

    Args:
        K1: the kernel matrix of side 1, (n₁, n₁), symmetric and positive semidefinite.
        K2: the kernel matrix of side 2, (n₂, n₂), symmetric and positive semidefinite.
        weights: a pair (v₁, v₂) of positive weights of rows (n₁,) and of columns (n₂,), by default
            1. Entries have the weights v₁v₂ᵀ. Other weights would destroy the product K₁ ⊗ K₂. A
            missing entry would have weight 0, so none may be missing.
        intercept: whether to fit a constant without penalty.

    Returns:
        A `Factor` of all pairs.

    Raises:
        ValueError: for matrices that are not square, symmetric or semidefinite, and for other
            weights.

    **Cost** O(n₁³ + n₂³), and O(n₁n₂(n₁ + n₂)) for every λ; n₁² + n₂² + O(n₁n₂) numbers. **Fails**:
    for λ below the precision floor, (√n₁ + √n₂)·eps times the largest eigenvalue, results are
    rounding noise. The factor has no `spectrum()`, so methods that need one raise. **Source**:
    Stock, Pahikkala, Airola, De Baets and Waegeman 2018, "A comparative study of pairwise learning
    methods based on kernel ridge regression"; the intercept by generalised least squares.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.two_sided.factor_kronecker(jnp.eye(2), 3 * jnp.eye(2), intercept=False)
    >>> rls.loo(factor, jnp.array([1.0, 2.0, 3.0, 4.0]), [1.0]).tolist()
    [7.5]
    """
    check_order_of_sides("K", K1, K2, None, weights)
    given = K1, K2
    K1 = as_array("K1", K1)
    K2 = as_array("K2", K2, K1.dtype)
    v1, v2 = side_weights(weights, (len(K1), len(K2)), K1.dtype)
    (first, below1) = _side("K1", K1, v1)
    (second, below2) = _side("K2", K2, v2)
    equal = v1.values is None and v2.values is None
    products = None if equal else jnp.outer(v1.array, v2.array).ravel()
    v = Weights(products, v1.n * v2.n, K1.dtype)
    largest1 = jnp.max(first.s)
    largest2 = jnp.max(second.s)
    floor = rounding(v1.n, largest1) * largest2 + rounding(v2.n, largest2) * largest1
    report = Report("kronecker", floor, jnp.maximum(below1, below2))
    fixed = as_fixed_effects(None, intercept, v)
    data = Data(None, v, fixed)
    first, second = map(with_index, (first, second), given)
    return Kronecker(first=first, second=second, data=data, expansion=Primal(), report=report)


def check_order_of_sides(name: str, first: Any, second: Any, Y: Any, weights: Any) -> None:
    """Raise if labels or weights are in another order than the objects of their side, by pandas.

    The columns of Y may be named by the index of the objects of side 2. Other names say nothing of
    their order.

    Args:
        name: what the sides are called in messages, without their number.
        first: what has the index of side 1: its rows, its kernel matrix or its `Side`.
        second: what has the index of side 2.
        Y: labels (n₁, n₂), or None.
        weights: a pair of weights, or None.
    """
    pair = weights if isinstance(weights, list | tuple) and len(weights) == 2 else (None, None)
    check_order("Y", Y, f"{name}1", first)
    check_order("weights[0]", pair[0], f"{name}1", first)
    check_order("weights[0]", pair[0], "Y", Y)
    check_order("weights[1]", pair[1], f"{name}2", second)
    _check_order_of_columns(Y, f"{name}2", second)
    _check_order_of_columns(Y, "weights[1]", pair[1])


def _check_order_of_columns(Y: Any, of: str, part: Any) -> None:
    """Raise if Y has its columns in another order than the pandas index of a part of side 2."""
    columns: Any = getattr(Y, "columns", None)
    index: Any = getattr(part, "index", None)
    have_names = hasattr(columns, "equals") and hasattr(index, "equals")
    if have_names and set(columns) == set(index) and not columns.equals(index):
        raise ValueError(
            f"Y has its columns in another order than the index of {of}, and they are taken in "
            f"their order: give Y[{of}.index], or Y.to_numpy() where the order is right"
        )


def _side(name: str, K: Float[Array, "..."], v: Weights) -> tuple[Side, Any]:
    """Factor one side. Return it, and its most negative eigenvalue relative to the largest."""
    check_symmetric(name, K)
    s, U = eigh(v.scale_both(K))
    s, below = clip_negative(s)
    check_semidefinite(name, below, v.n)
    return Side(U, s, v), below


def side_weights(weights: Any, shape: tuple[int, int], dtype: Any) -> tuple[Weights, Weights]:
    """Return the weights of rows and of columns, from a pair of arrays or None for weights 1.

    Raise if the argument is not a pair, or if a weight is 0 or less. The values are checked only
    outside of `jax.jit`.
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


def check_semidefinite(name: str, below: Float[Numbers, ""], n: int) -> None:
    """Raise if the most negative eigenvalue is more than rounding.

    Inside `jax.jit`, where it has no value, nothing is checked.

    Args:
        name: the name of the matrix in the message.
        below: its size relative to the largest eigenvalue.
        n: the number of rows.
    """
    most = 100 * n * float(jnp.finfo(below.dtype).eps)
    if known_and(lambda below: below > most, below):
        raise ValueError(
            f"{name} must be positive semidefinite, and its most negative eigenvalue is "
            f"{float(below):.2g} of the largest: take another kernel, or add to its diagonal"
        )
