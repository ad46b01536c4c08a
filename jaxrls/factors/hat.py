"""The algebra of what is left out, for every factor whose fit is seen through left vectors U of few columns.

With √v f = hhᵀ√v y + U diag(1 − lost) Uᵀ√v y the scaled residuals, the complement of the leverage and the held-out residuals of a row are

    λc̃ = √v(y − ȳ) − Uz + U(lost ∘ z),        z = Uᵀ√v y,
    1 − h = (1 − ‖Uᵢ‖² − v/Σv) + (U∘U) lost,
    e = λc̃ / ((1 − h) √v),

and of a group B the same with blocks. A spectrum keeps its U for all λ and loses λ/(s + λ) of each direction; a Cholesky factor has a U of its
own for each λ and loses nothing. Landmark k leaves the dictionary with its row i where βₖ = Wₖw = 0 is held: with d, ρ and α the products of
W with itself, with u = Uᵢ/√v and with the labels, in the metric of the penalty,

    e = (d(y − ŷ) + ρα) / (d(1 − h) + vρ²),        in a group  e_B = (I − H + ρd⁻¹ρᵀ)⁻¹(r + ρd⁻¹α).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrls.factors.contract import HatRows, lams_together, times
from jaxrls.factors.groups import Folds, groups_together, over_groups
from jaxrls.factors.pairs import LeavingPairs, PairSystem, Products
from jaxrls.factors.planes import angles, leaving, plane_root, slots, told_apart
from jaxrls.factors.weights import Weights
from jaxrls.linalg.products import matmul, safe_sqrt
from jaxrls.support.pytrees import pytree, static

# Of the floor: what an eigenvalue that is 0 may come out as, of which 1.3 was seen.
MOST_OF_ZERO = 4.0


def is_hidden(s, floor):
    """Whether eigenvalues count as 0 where λ is."""
    return s <= MOST_OF_ZERO * floor


def counted(s: Float[Array, " r"], lams: Float[Array, "L k"], floor, least) -> tuple[Float[Array, "L r k"], Float[Array, "L 1 k"]]:
    """s and λ as they count at each λ: 0 stands for its limit, eigenvalues that rounding hides being 0, by the `least` λ, far below all others."""
    zero = lams[:, None] == 0
    least = jnp.maximum(least, 1024 * float(jnp.finfo(s.dtype).tiny))
    return jnp.where(zero & is_hidden(s[:, None], floor), 0, s[:, None]), jnp.where(zero, least, lams[:, None])


class Hat(ABC):
    """What the fit loses of U at some λ, and how its penalty measures W and slopes between the two; results are (b, L, k) or (b, L, t)."""

    z: Float[Array, "r t"]
    complete: bool  # whether U is square, so that its complement is exactly 0

    @abstractmethod
    def lost_of(self, A) -> Float[Array, "b L k"]:
        """A · lost."""

    @abstractmethod
    def lost_labels(self, A) -> Float[Array, "b L t"]:
        """A · (lost ∘ z)."""

    @abstractmethod
    def metric_of(self, A) -> Float[Array, "b L k"]:
        """A · metric."""

    @abstractmethod
    def slope_of(self, A) -> Float[Array, "b L k"]:
        """A · slope."""

    @abstractmethod
    def slope_labels(self, A) -> Float[Array, "b L t"]:
        """A · (slope ∘ z)."""

    @abstractmethod
    def kept_labels(self, A) -> Float[Array, "b L t"]:
        """A · ((1 − lost) ∘ z)."""

    @abstractmethod
    def lost_rows(self, A) -> Float[Array, "b r"]:
        """A diag(lost), at a single λ; likewise the next three."""

    @abstractmethod
    def kept_rows(self, A) -> Float[Array, "b r"]:
        """A diag(1 − lost)."""

    @abstractmethod
    def metric_rows(self, A) -> Float[Array, "b r"]:
        """A diag(metric)."""

    def metric_roots(self, A) -> Float[Array, "b r"]:
        """A diag(√metric)."""
        return A * safe_sqrt(self.metric_rows(jnp.ones_like(A[:1])))

    @abstractmethod
    def slope_rows(self, A) -> Float[Array, "b r"]:
        """A diag(slope)."""

    def sure(self, root: Float[Array, "b b"]) -> Float[Array, "b b"]:
        """The Cholesky factor of I − H of a group, as far as that is known."""
        return root

    def outside(self, U, constant) -> Float[Array, " b"]:
        """The diagonal of I − hhᵀ − UUᵀ."""
        return jnp.zeros(U.shape[0], U.dtype) if self.complete else 1 - jnp.sum(U * U, axis=1) - constant

    def remaining(self, U, constant) -> Float[Array, "b L k"]:
        """1 − leverage."""
        lost = self.lost_of(U * U)
        return lost if self.complete else self.outside(U, constant)[:, None, None] + lost

    def scaled_residuals(self, U, scaled) -> Float[Array, "b L t"]:
        """√v (y − f), which is λc̃; of a square U, `scaled` is what of √v y the fit cannot reach, or None."""
        lost = self.lost_labels(U)
        if scaled is None:
            return lost
        return (scaled if self.complete else scaled - matmul(U, self.z))[:, None, :] + lost

    @abstractmethod
    def is_light(self, U, weights: Weights) -> Bool[Array, "b L k"]:
        """Rows, those of weight 0 among them, whose residual y − f is known better than √v (y − f)/√v, which divides rounding by √v."""

    def left_out(self, U, scaled, weights: Weights, constant, unseen=None) -> tuple[Float[Array, "b L t"], Float[Array, "b L k"]]:
        """Held-out residuals of single rows, of light ones from `unseen`, y − f, and without it 0 for rows of weight 0; and 1 − leverage."""
        remaining = self.remaining(U, constant)
        if weights.values is not None:
            remaining = jnp.where(weights.used[:, None, None], remaining, 1)
        e = weights.unscale(self.scaled_residuals(U, scaled) / remaining)
        return e if unseen is None else jnp.where(self.is_light(U, weights), unseen / remaining, e), remaining

    def group_system(self, U, scaled, h, mask):
        """(I − H)_BB and the matching scaled residuals at a single λ; rows of `mask` 0 become rows of the identity."""
        U = U * mask[:, None]
        residuals = self.scaled_residuals(U, None if scaled is None else scaled * mask[:, None])[:, 0]
        inside = matmul(self.lost_rows(U), U.T)
        if self.complete:
            return inside + jnp.diag(1 - mask), residuals
        return jnp.eye(U.shape[0], dtype=U.dtype) - matmul(U, U.T) - matmul(h, h.T) + inside, residuals

    def pair_system(self, U, scaled, weights: Weights, constant, h, leaving: "Leaving | None") -> PairSystem:
        """What leaving pairs out takes at a single λ; `h` is √v/‖√v‖ and `constant` its square, or None and 0."""
        of = Products(self.lost_rows(U), U, None) if self.complete else Products(-self.kept_rows(U), U, h)
        remaining, residuals = self.remaining(U, constant)[:, 0, 0], self.scaled_residuals(U, scaled)[:, 0].T
        return PairSystem(of, remaining, residuals, weights.inverse_root, None if leaving is None else leaving.in_pairs(self, U))


@pytree
class SpectralHat(Hat):
    """U of all λ: λ/(s + λ) of each direction is lost, which is the penalty's metric too."""

    z: Float[Array, "r t"]
    s: Float[Array, "r L k"]  # at each λ, as `counted`
    lams: Float[Array, "L k"]
    lost: Float[Array, "r L k"]
    unsure: Bool[Array, "L k"]  # where 1 − leverage may be 0 but for rounding: λ = 0, unless K is regular
    complete: bool = static()

    @classmethod
    def of(cls, factor: Any, z, lams: Float[Array, "L k"], lost) -> "SpectralHat":
        """That of a `Spectrum`."""
        s, positive = factor.counted(factor.s, lams)
        return cls(z, jnp.moveaxis(s, 1, 0), positive[:, 0], lost, (lams == 0) & ~factor.regular, factor.complete)

    @property
    def least(self) -> float:
        """What rounding leaves of 1 − leverage where it is 0."""
        return 16 * self.z.shape[0] ** 0.5 * float(jnp.finfo(self.z.dtype).eps)

    def remaining(self, U, constant):
        """Undefined where it is 0 but for rounding."""
        remaining = super().remaining(U, constant)
        return jnp.where(self.unsure & (remaining <= self.least), jnp.nan, remaining)

    def sure(self, root):
        return jnp.where(self.unsure[0, 0] & (jnp.min(jnp.diagonal(root)) ** 2 <= self.least), jnp.nan, root)

    @property
    def _slope(self):
        """√(sλ)/(s + λ), of ratios, so that nothing overflows as λ goes to 0, nor underflows in kernels of small numbers."""
        return safe_sqrt(self.s / (self.s + self.lams)) * jnp.sqrt(self.lost)

    def lost_of(self, A):
        return times(A, self.lost)

    def lost_labels(self, A):
        return times(A, self.lost * self.z[:, None, :])

    metric_of = lost_of

    def is_light(self, U, weights):
        # U is off by eps, and so y − f by eps|√v y|/√v one way, and by eps √(k s_max) |z|/λ the other, with vk = Σ sU².
        length = matmul(U * U, jnp.max(self.s, axis=(1, 2)))[:, None, None]
        return ((length / self.lams) * (jnp.max(self.s) / self.lams) <= 1) | ~weights.used[:, None, None]

    def slope_of(self, A):
        return times(A, self._slope)

    def slope_labels(self, A):
        return times(A, self._slope * self.z[:, None, :])

    def kept_labels(self, A):
        return times(A, self.s / (self.s + self.lams) * self.z[:, None, :])

    def lost_rows(self, A):
        return A * self.lost[:, 0, 0]

    def kept_rows(self, A):
        return A * (self.s / (self.s + self.lams))[:, 0, 0]

    metric_rows = lost_rows

    def slope_rows(self, A):
        return A * self._slope[:, 0, 0]


@pytree
class PlainHat(Hat):
    """U made for one λ: nothing of it is lost, and its coordinates are those of the penalty."""

    z: Float[Array, "r t"]
    complete: bool = static(default=False)

    def lost_of(self, A):
        return jnp.zeros((A.shape[0], 1, 1), A.dtype)

    lost_labels = lost_of

    def metric_of(self, A):
        return jnp.sum(A, axis=1)[:, None, None]

    slope_of = metric_of

    def is_light(self, U, weights):
        return ~weights.used[:, None, None]  # U is √v times its rows, to rounding of each

    def slope_labels(self, A):
        return matmul(A, self.z)[:, None, :]

    kept_labels = slope_labels

    def lost_rows(self, A):
        return jnp.zeros_like(A)

    def kept_rows(self, A):
        return A

    def metric_rows(self, A):
        return A

    slope_rows = metric_rows


@pytree
class Leaving:
    """The landmarks that are rows of X, and leave the dictionary with their row."""

    indices: Int[Array, " m"]
    directions: Float[Array, "m r"]  # W: βₖ = 0 is a plane in the space of w; of any length, which cancels
    left: Float[Array, "m r"]  # their rows of U/√v

    def left_out(self, hat: Hat, Y, mean, weights: Weights, constant) -> tuple[Float[Array, "m L t"], Float[Array, "m L k"]]:
        """Held-out residuals of the landmarks, those of weight 0 included, and 1 − leverage without them; `constant` is v/Σv of each, or 0."""
        W, u, v = self.directions, self.left, weights.array[self.indices][:, None, None]
        d, rho, alpha = hat.metric_of(W * W), hat.slope_of(W * u), hat.slope_labels(W)
        residual = (Y - mean)[self.indices][:, None, :] - hat.kept_labels(u)  # rows of u are long where v is small: uz would cancel
        remaining = 1 - v * jnp.sum(u * u, axis=1)[:, None, None] - constant[:, None, None] + v * hat.lost_of(u * u)
        remaining = d * remaining + v * rho * rho
        return (d * residual + rho * alpha) / remaining, remaining / d

    def in_pairs(self, hat: Hat, U) -> LeavingPairs:
        """The terms of all pairs at a single λ, for all scaled rows U."""
        W = hat.metric_roots(self.directions)
        length = jnp.sqrt(jnp.sum(W * W, axis=1))
        rho, alpha = matmul(hat.slope_rows(U), self.directions.T) / length, hat.slope_labels(self.directions)[:, 0].T / length
        cosines, sines = angles(W / length[:, None])
        none = lambda A, *axes, value=0: jnp.pad(A, [(0, int(axis in axes)) for axis in range(A.ndim)], constant_values=value)  # noqa: E731
        slot = slots(self.indices, U.shape[0])
        return LeavingPairs(slot, none(rho, 1), none(cosines, 0, 1), none(sines, 0, 1, value=1), none(alpha, 1))

    def apart(self, groups: Folds) -> "Leaving":
        """The same planes for each of the groups, by directions that are told apart."""
        group = groups.numbers.at[self.indices].get(mode="fill", fill_value=-1)  # of some of the rows others may be landmarks
        (directions,) = told_apart(group[:, None] == group, self.directions)
        return replace(self, directions=directions)

    def of_rows(self, rows, mask, n: int):
        """For each row the direction of its landmark, 0 where it is none or masked, and whether it has one."""
        slot, inside = leaving(self.indices, n, rows, mask)
        return self.directions[slot] * inside[:, None], inside

    def among(self, rows, mask, n: int) -> Float[Array, " m"]:
        """1 for landmarks that are among some of n rows, else 0."""
        return jnp.zeros(n, self.left.dtype).at[rows].max(mask.astype(self.left.dtype))[self.indices]

    def taken_out(self, features, inside) -> Float[Array, "n r"]:
        """Features U√s/√v with the planes βₖ = 0 of landmarks that are `inside` projected out."""
        first = jnp.argsort(-inside, stable=True)  # the directions before the zeros, so that as many columns of Q span them
        Q = jnp.linalg.qr((self.directions * inside[:, None])[first].T)[0] * inside[first]
        return features - matmul(matmul(features, Q), Q.T)

    def group_terms(self, hat: Hat, rows, mask, n: int):
        """At a single λ, for the landmarks among the rows of one of the groups they are `apart` for, with LLᵀ = d: u ↦ ρL⁻ᵀ for rows u, and L⁻¹α."""
        W, inside = self.of_rows(rows, mask, n)
        root = plane_root(matmul(hat.metric_rows(W), W.T), inside)

        def half(u):
            rho = matmul(hat.slope_rows(u), W.T)
            return jax.lax.linalg.triangular_solve(root, rho, left_side=False, lower=True, transpose_a=True)

        return half, jax.lax.linalg.triangular_solve(root, hat.slope_labels(W)[:, 0], left_side=True, lower=True)


@pytree
class Group:
    """The rows of one group: numbers and mask, left vectors U, scaled labels, labels less their mean, and weights.

    `h` and `level` are the rows of `Factor.span`, √v/‖√v‖ and 1/‖√v‖ of an intercept; `u` is U/√v, known for rows of weight 0 too, and None where no
    weights were given.
    """

    rows: Int[Array, " b"]
    mask: Float[Array, " b"]
    U: Float[Array, "b r"]
    scaled: Float[Array, "b t"] | None
    centred: Float[Array, "b t"]
    h: Float[Array, "b q"]
    level: Float[Array, "b q"]
    weights: Weights
    u: Float[Array, "b r"] | None

    def left_out(self, hat: Hat, leaving: Leaving | None, n: int) -> Float[Array, "b t"]:
        """[P_BB]⁻¹ c_B unscaled, the held-out residuals at a single λ; rows of weight 0 are predicted by the same fit to the rest."""
        mask = jnp.where(self.weights.used, self.mask, 0)  # of rows of weight 0 there is nothing to leave out
        U, h = (part * mask[:, None] for part in (self.U, self.h))
        block, residuals = hat.group_system(U, self.scaled, h, mask)
        half, alpha = (
            leaving.group_terms(hat, self.rows, self.mask, n) if leaving else (_nothing, jnp.zeros((0, residuals.shape[1]), U.dtype))
        )
        block, residuals = block + matmul(half(U), half(U).T), residuals + matmul(half(U), alpha)
        scaled = jax.scipy.linalg.cho_solve((hat.sure(jnp.linalg.cholesky(block)), True), residuals) * mask[:, None]
        e = self.weights.unscale(scaled)
        if self.u is None:
            return e
        moved = matmul(matmul(hat.kept_rows(self.u), U.T) + matmul(self.level, h.T), scaled)
        unseen = self.centred - hat.kept_labels(self.u)[:, 0] + moved + matmul(half(self.u), alpha - matmul(half(U).T, scaled))
        return jnp.where(hat.is_light(U, self.weights)[:, 0], unseen, e)


def _nothing(u):
    """No landmark leaves: no column."""
    return jnp.zeros((u.shape[0], 0), u.dtype)


def each_group(at, inside, mask, r: int, t: int, lams):
    """`at(columns, λ)`, a function of a group's rows and mask, for every group: of all columns at once where they share λ, else each at its own.

    As many groups at once as there may be, of r columns of left vectors and t targets: see `groups_together`.
    """
    b = inside.shape[1]
    most = groups_together(b, r, t, lams_together(b, t))

    def groups(columns, lam):
        return over_groups(at(columns, lam), inside, mask, most)

    if lams.shape[0] == 1:
        return groups(slice(None), lams[0])
    return jnp.moveaxis(jax.lax.map(lambda j: groups(j[None], lams[j])[..., 0], jnp.arange(lams.shape[0])), 0, -1)


def spectral_pairs(solution) -> Callable:
    """`Solution.pair_system` of a spectrum, from all rows of U."""
    f, U = solution.factor, solution.factor.left_vectors()
    h, constant = (f.weights.direction if f.intercept else None), f.constant(f.weights.array)

    def at(lam, columns):
        scaled = None if solution.base is None else solution.base[:, columns]
        return solution.hat(lam.reshape(1, 1), columns=columns).pair_system(U, scaled, f.weights, constant, h, f.leaving)

    return at


def spectral_rows(solution, lam) -> HatRows:
    """The rows of the hat matrix at one λ, in what influence needs of them."""
    f, hat = solution.factor, solution.hat(jnp.reshape(lam, (1, 1)))
    kept, lost, constant_of = f.s / (f.s + lam), lam / (f.s + lam), f.constant

    def block(rows, v, scaled):
        weights = f.weights.block(v, rows.shape[0])
        U = f.left(rows, weights)
        squares, constant = U * U, constant_of(weights.array)
        outside = jnp.maximum(hat.outside(U, constant), 0)
        fitted = matmul(squares, kept) + constant, matmul(squares, lost) + outside
        powers = matmul(squares, kept**2) + constant, matmul(squares, lost**2) + outside
        return HatRows(hat.scaled_residuals(U, scaled)[:, 0], *fitted, *powers)

    return f.rows.map(block, f.weights.values, solution.base, block_size=f.whole)
