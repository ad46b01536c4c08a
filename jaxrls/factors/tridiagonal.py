"""All λ from a tridiagonal form, below the cost of a spectrum: GCV and evidence take the reduction and O(n) for each λ.

With v the weights, h = √v/‖√v‖ and C = I − hhᵀ (C = I without an intercept), C √v K √v C = G T Gᵀ with GᵀG = I and T tridiagonal. A reflector that
takes h to the first axis comes before the reduction and that axis is dropped, so that T lives where the fit does: no eigenvalue is 0 but for rounding
and would have to be subtracted. Rows of weight 0 come last, where reflectors leave them as they are: there T is exactly 0.

Only what is asked for is made. With T + λI = LDLᵀ and z = Gᵀ√v y, labels and coefficients take G as reflectors, O(n²) a column; only rows left out take
G itself, 4n³/3 flops, and for each of them λPᵢᵢ = Σⱼ (L⁻¹gᵢ)ⱼ² λ/dⱼ, O(n²) a λ.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrls.factors.contract import Factor, Report, Solution, as_columns, over_lams, times
from jaxrls.factors.expansion import Expansion
from jaxrls.factors.hat import each_group
from jaxrls.factors.outcome import Coefficients
from jaxrls.factors.pairs import PairSystem, Products
from jaxrls.factors.smoother import by_unit_labels
from jaxrls.factors.weights import Labels, Weights
from jaxrls.linalg.decompositions import rounding
from jaxrls.linalg.products import matmul
from jaxrls.linalg.tridiagonal import Pivots, Tridiagonal, reduced
from jaxrls.rows.blocks import map_rows, sum_rows
from jaxrls.support.pytrees import pytree, static
from jaxrls.support.target import platform

# Rows × λ that go down T side by side: on CPUs what stays in the nearest cache.
SIDE_BY_SIDE = {"cpu": 2**12, "gpu": 2**20}


@pytree
class TridiagonalGram(Factor):
    """C √v K √v C = G T Gᵀ: the dual route where GCV, evidence or coefficients are asked for and no row is left out, at any number of λ.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Gaussian(1.0), jnp.eye(3), route="tridiagonal")
    >>> rls.gcv(factor, jnp.arange(3.0), jnp.array([0.1, 1.0])).shape
    (2,)
    """

    form: Tridiagonal
    order: Int[Array, " n"] | None  # rows of weight 0 last; None where there are no weights
    shift: Float[Array, " n"]  # what the intercept takes of the coefficients: 0 where there is none
    design: Float[Array, "n n"] | None  # K, centred: f − ȳ at all rows of coefficients, kept for rows of little weight
    weights: Weights
    expansion: Expansion
    said: Report
    intercept: bool = static()

    @property
    def report(self):
        """As it was made."""
        return self.said

    def trace(self):
        """Σ of T's diagonal."""
        return jnp.sum(self.form.diagonal)

    smoother = by_unit_labels

    def smallest_eigenvalue(self):
        """By counts of negative pivots."""
        return self.form.smallest_above(self.precision_floor())

    def solve_labels(self, labels):
        """z = Gᵀ√v y by reflectors, O(n² t)."""
        scaled = labels.scaled if self.order is None else labels.scaled[self.order]
        inside = mirror(_direction(self), scaled)[1:] if self.intercept else scaled
        return TridiagonalSolution(self, labels, self.form.transposed_times(inside))

    def out_of(self, X: Float[Array, "r k"]) -> Float[Array, "n k"]:
        """G X by reflectors, O(n² k)."""
        return self._rows(self.form.times(X))

    def left_vectors(self) -> Float[Array, "n r"]:
        """G itself."""
        return self._rows(self.form.vectors())

    def _rows(self, A):
        """What comes out of Q with the constant's axis and in the order of the rows."""
        if self.intercept:
            A = mirror(_direction(self), jnp.pad(A, ((1, 0), (0, 0))))
        return A if self.order is None else jnp.zeros_like(A).at[self.order].set(A)

    def is_light(self, lams: Float[Array, "*L"]):
        """Rows, those of weight 0 among them, whose residual y − f is known better than √v (y − f)/√v: see `SpectralHat.is_light`."""
        over = lambda a: a.reshape(-1, *[1] * lams.ndim)  # noqa: E731
        length = over(self.weights.array * jnp.diagonal(self.design))  # type: ignore[arg-type]
        return ((length / lams) * (self.form.bound / lams) <= 1) | ~over(self.weights.used)


def mirror(h: Float[Array, " n"], A: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """HA, H the reflector with Hh = −e₁; its own inverse. h₁ is not negative, so that nothing cancels."""
    u = h.at[0].add(1)
    return A - u[:, None] * (matmul(u, A) / u[0])[None, :]


def _direction(f: TridiagonalGram):
    return f.weights.direction if f.order is None else f.weights.direction[f.order]


def reduce_symmetric(K, weights: Weights, intercept: bool, expansion: Expansion, lift=None) -> TridiagonalGram:
    """The tridiagonal form of what is known to be symmetric; the expansion's kernel is K + 1·lift."""
    n, dtype, h = K.shape[0], K.dtype, weights.direction
    shift, constant, order = jnp.zeros(n, dtype), jnp.zeros((), dtype), None
    if intercept:
        K, mean, constant = weights.centre_both(K)
        shift = mean if lift is None else mean + lift
    A = weights.scale_both(K)
    if weights.values is not None:
        order = jnp.argsort(~weights.used, stable=True)
        A, h = A[order][:, order], h[order]
    if intercept:
        u = h.at[0].add(1)
        a = matmul(A, u) / u[0]
        a = a - u * (matmul(u, a) / (2 * u[0]))
        A = (A - a[:, None] * u[None, :] - u[:, None] * a[None, :])[1:, 1:]
    form = reduced(A)
    floor = rounding(n, form.bound[None], 4 * jnp.max(h) / n**0.5 * constant)
    said = Report("tridiagonal", floor, jnp.zeros((), dtype))
    design = None if weights.values is None else K
    return TridiagonalGram(form, order, shift, design, weights, expansion, said, intercept)


@pytree
class TridiagonalSolution(Solution):
    """A `TridiagonalGram` with labels."""

    shares_work: ClassVar[bool] = True
    factor: TridiagonalGram
    labels: Labels
    z: Float[Array, "r t"]

    def _each(self, fn, lams):
        """`fn(pivots)` at all λ, in chunks."""
        return over_lams(lambda lams: fn(self.factor.form.pivots(lams)), as_columns(lams), self.labels.Y.shape[1])

    def _coefficients(self, x: Float[Array, "r L t"]) -> Float[Array, "n L t"]:
        """√v G x."""
        f = self.factor
        return f.weights.scale(f.out_of(x.reshape(x.shape[0], -1)).reshape(-1, *x.shape[1:]))

    def coefficients(self, lams):
        """c = √v G (T + λI)⁻¹z, O(n² L t), and the intercept."""

        def found(pivots):
            coef = self._coefficients(pivots.solve(self.z))
            return jnp.moveaxis(coef, 1, 0), self.labels.mean - times(self.factor.shift[None], coef)[0]

        return Coefficients(*self._each(found, lams))

    def residual_norm(self, lams):
        """‖λ(T + λI)⁻¹z‖²."""
        return self._each(lambda pivots: jnp.sum((pivots.lams * pivots.solve(self.z)) ** 2, axis=0), lams)

    def data_fit(self, lams):
        """zᵀ(T + λI)⁻¹z."""
        return self._each(lambda pivots: pivots.squares(self.z) / pivots.lams, lams)

    def logdet(self, lams):
        """Σ log dⱼ over the dimensions that the fit lives in, which come first."""
        return self._each(lambda pivots: self._over_dimensions(jnp.log(pivots.diagonal)), lams)

    def residual_dof(self, lams):
        """λ tr (T + λI)⁻¹ = λ d/dλ Σ log dⱼ, a sum of positive numbers."""
        return self._each(lambda pivots: self._over_dimensions(pivots.lost * pivots.slope), lams)

    def _over_dimensions(self, A):
        inside = jnp.arange(A.shape[0], dtype=A.dtype) < self.factor.residual_dimensions()
        return jnp.sum(jnp.where(inside[:, None, None], A, 0), axis=0)

    def rows_left_out(self, fn, lams):
        """e = c̃/(p√v), in blocks of rows."""
        f, G = self.factor, self.factor.left_vectors()

        def at(pivots):
            x = pivots.solve(self.z)

            def block(part):
                G, v, Y = part
                weights = f.weights.block(v, G.shape[0])
                remaining = _remaining(G, pivots)
                e = weights.unscale(_scaled_residuals(G, x, pivots) / remaining)
                return jax.vmap(fn, in_axes=(1, 1, None, None))(e, remaining, Y, weights.array)

            return sum_rows(block, (G, f.weights.values, self.labels.Y), _side_by_side(pivots))

        return self._each(at, lams)

    def residuals_left_out(self, lams):
        """The same for every row, those of weight 0 included."""
        f, G, pivots = self.factor, self.factor.left_vectors(), self.factor.form.pivots(lams)
        x = pivots.solve(self.z)
        remaining = map_rows(lambda G: _remaining(G, pivots), G, _side_by_side(pivots))
        e = f.weights.unscale(_scaled_residuals(G, x, pivots) / remaining)
        if f.design is not None:
            e = jnp.where(f.is_light(lams), self._unseen(x) / remaining, e)
        return jnp.moveaxis(e, 1, 0)

    def _unseen(self, x: Float[Array, "r L t"], columns=slice(None)) -> Float[Array, "n L t"]:
        """y − f of every row."""
        centred, fitted = self.labels.Y - self.labels.mean, times(self.factor.design, self._coefficients(x))  # type: ignore[arg-type]
        return centred[:, None, columns] - fitted

    def group_residuals(self, groups):
        """e_B = [P_BB]⁻¹ c_B, O(n² b + n b²) at one λ, with P_BB = WᵀD⁻¹W and W = L⁻¹G_Bᵀ."""
        f, G, mask = self.factor, self.factor.left_vectors(), groups.inside_mask.astype(self.factor.dtype)
        reach = None if f.design is None else matmul(f.design * f.weights.root, G)  # from (T + λI)⁻¹z to f − ȳ
        h, level = f.weights.direction * int(f.intercept), int(f.intercept) / jnp.sqrt(f.weights.total)

        def at(columns, lam):
            pivots = f.form.pivots(lam)
            x, root = pivots.solve(self.z[:, columns]), jnp.sqrt(pivots.lost)[:, None]
            known = None if reach is None else (reach, f.is_light(lam), self._unseen(x[:, None], columns)[:, 0])

            def group(rows, mask):
                U = G[rows] * mask[:, None]
                half = root * pivots.half(U.T)
                block = jnp.linalg.cholesky(matmul(half.T, half) + jnp.diag(1 - mask))  # of I − H
                scaled = jax.scipy.linalg.cho_solve((block, True), lam * matmul(U, x)) * mask[:, None]
                e = f.weights.block(None if f.weights.values is None else f.weights.values[rows], rows.shape[0]).unscale(scaled)
                if known is None:
                    return e
                above, light, unseen = (part[rows] for part in known)
                smoother = matmul((root * pivots.half(above.T)).T, half) / lam + level * (h[rows] * mask)[None, :]
                return jnp.where(light[:, None], unseen + matmul(smoother, scaled), e)

            return group

        return lambda lams: each_group(at, groups.inside, mask, G.shape[1], self.labels.Y.shape[1], lams)

    def pair_system(self):
        """With λP = WᵀW, W = √λ D^(−½) L⁻¹Gᵀ, which takes O(n²) at each λ beside the products."""
        f, G = self.factor, self.factor.left_vectors()

        def at(lam, columns):
            pivots = f.form.pivots(lam)
            W = (jnp.sqrt(pivots.lost)[:, None] * pivots.half(G.T)).T
            residuals = lam * matmul(G, pivots.solve(self.z[:, columns]))
            return PairSystem(Products(W, W, None), jnp.sum(W * W, axis=1), residuals.T, f.weights.inverse_root)

        return at


def _remaining(G: Float[Array, "b r"], pivots: Pivots) -> Float[Array, "b L k"]:
    """λ diag P = 1 − leverage, of a block of rows."""
    return pivots.squares(G.T[:, :, None, None])


def _scaled_residuals(G: Float[Array, "b r"], x: Float[Array, "r L t"], pivots: Pivots) -> Float[Array, "b L t"]:
    """√v (y − f) = λc̃."""
    return pivots.lams * times(G, x)


def _side_by_side(pivots: Pivots) -> int:
    return max(1, SIDE_BY_SIDE.get(platform(), SIDE_BY_SIDE["gpu"]) // max(1, pivots.lams.size))
