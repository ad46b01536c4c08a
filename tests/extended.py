"""The oracle in extended precision: refits with every row, pair and group left out, all that the
contract promises, and how far a sound algorithm may be from it.

Everything is made of K of the rows and of k(new, rows), in 80-bit numbers where the machine has
them. With G = √v K √v + λI and H = √v B of fixed effects, P = G⁻¹ − G⁻¹H (HᵀG⁻¹H)⁻¹ HᵀG⁻¹ and
c̃ = P√v y, a fit has residuals √v (y − f) = λc̃. What is left out has weight 0 in a fit of its
own."""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.stats import norm

LONG = np.longdouble


def cholesky(A):
    """L with LLᵀ = A, of a stack of matrices."""
    L, n = np.array(A, LONG), A.shape[-1]
    for j in range(n):
        L[..., j:, j] /= np.sqrt(L[..., j, j])[..., None]
        L[..., j + 1 :, j + 1 :] -= L[..., j + 1 :, j, None] * L[..., None, j + 1 :, j]
    return np.tril(L)


def solve_lower(L, B):
    """L⁻¹B."""
    X = np.array(np.broadcast_to(B, (*L.shape[:-1], B.shape[-1])), LONG)
    for j in range(L.shape[-1]):
        X[..., j, :] /= L[..., j, j, None]
        X[..., j + 1 :, :] -= L[..., j + 1 :, j, None] * X[..., j, None, :]
    return X


def through(points, rows):
    """K_TR K_RR⁻¹ K_RT from K_RR and K_RT."""
    half = solve_lower(cholesky(points), rows)
    return half.T @ half


def of_features(features):
    """`kernel` of a `Truth` from `features(gone)`, those of the rows and of new ones."""

    def kernel(gone):
        Phi, new = (part.astype(LONG) for part in features(gone))
        return Phi @ Phi.T, new @ Phi.T, np.sum(new**2, axis=1)

    return kernel


def sets_of(groups):
    """The rows of every group."""
    return [np.flatnonzero(groups == g) for g in np.unique(groups)]


def turned(A):
    return np.swapaxes(A, -1, -2)


def log_of_square(L):
    """log |LLᵀ|."""
    return 2 * np.sum(np.log(np.diagonal(L, axis1=-2, axis2=-1)), axis=-1)


def crps(e, variance):
    """Ranked probability scores of N(0, τ variance) at e, with τ the mean of e²/variance."""
    std = np.sqrt(variance * np.mean(e**2 / variance, axis=1, keepdims=True)).astype(float)
    z = e.astype(float) / std
    return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


@dataclass
class Fits:
    """A stack of fits at a stack of λ: K (B, n, n), weights (B, n), λ (L,), and fixed effects, a
    constant or none, or columns (n, q).
    """

    K: np.ndarray
    v: np.ndarray
    lams: np.ndarray
    fixed: bool | np.ndarray

    def __post_init__(self):
        n, root = self.v.shape[1], np.sqrt(self.v)[:, None, :, None]
        columns = self.fixed if np.ndim(self.fixed) else np.ones((n, int(self.fixed)))
        penalty = self.lams[:, None, None] * np.eye(n, dtype=LONG)
        self.root, self.H = root, root * columns
        self.G = root * self.K[:, None] * turned(root) + penalty
        self.L = cholesky(self.G)
        half = solve_lower(self.L, np.eye(n))
        inverse = turned(half) @ half
        self.U = inverse @ self.H
        self.S = cholesky(turned(self.H) @ self.U)
        self.T = solve_lower(self.S, np.eye(columns.shape[1]))
        self.part = self.T @ turned(self.U)
        self.P = inverse - turned(self.part) @ self.part

    def solve(self, Y):
        """c̃ (B, L, n, t) and β (B, L, q, t), refined: they would be off by the condition number of
        G, and by ‖y‖ over ‖y − f‖.
        """
        dual = beta = 0
        for _ in range(3):
            left = self.root * Y
            if np.ndim(dual):
                left = left - self.G @ dual - self.H @ beta
            dual, beta = dual + self.P @ left, beta + turned(self.T) @ (self.part @ left)
        return dual, beta

    def predict(self, K, Y, columns=None):
        """k(x, ·)√v c̃ + b·β for rows k(x, ·) (B, m, n) with fixed effects (m, q)."""
        dual, beta = self.solve(Y)
        columns = np.ones((K.shape[-2], beta.shape[-2])) if columns is None else columns
        return K[:, None] @ (self.root * dual) + columns @ beta

    def covariance(self, K, prior, columns):
        """k(x, x') − k(x, ·)P k(·, x') + (b − …)(…)(b' − …)ᵀ, of f with a flat prior on β, from
        k(x, ·) (B, m, n) and k(x, x') (…, m, m).
        """
        across = self.root * turned(K)[:, None]
        half = solve_lower(self.L, across)
        slack = self.T @ turned(columns - turned(across) @ self.U)
        return prior - turned(half) @ half + turned(slack) @ slack


@dataclass(frozen=True)
class Truth:
    """One problem: `kernel(gone)` gives K, k(new, rows) and k(new, new) on its diagonal, with the
    dictionary that stays when the rows `gone` are left out.

    `kind` says what a factor works on, and so what its rounding is: "dual" K, "svd" the features,
    "primal" their covariance. `noise` is that of one number, eps times whatever amplified it
    before."""

    kernel: object
    Y: np.ndarray
    Y_new: np.ndarray
    v: np.ndarray
    lams: np.ndarray
    groups: np.ndarray
    fixed: bool | np.ndarray
    kind: str = "dual"
    noise: float = 0.0
    fixed_new: np.ndarray | None = None

    @cached_property
    def whole(self):
        return self.kernel(np.array([], int))

    @cached_property
    def columns(self):
        """Fixed effects (n, q)."""
        return self.fixed if np.ndim(self.fixed) else np.ones((len(self.v), int(self.fixed)))

    @cached_property
    def fit(self):
        """The fit to all rows."""
        return Fits(self.whole[0][None], self.v[None], self.lams, self.fixed)

    @cached_property
    def dual(self):
        """c̃ (L, n, t)."""
        return self.fit.solve(self.Y)[0][0]

    def without(self, sets):
        """The fits without each of some sets of rows, with their K and k(new, ·)."""
        K, K_new, _ = map(np.stack, zip(*map(self.kernel, sets), strict=True))
        rows = np.arange(len(self.v))
        v = np.stack([np.where(np.isin(rows, gone), 0, self.v) for gone in sets])
        return Fits(K, v, self.lams, self.fixed), K, K_new

    def left_out(self, sets):
        """Labels minus predictions (sets, L, n, t) of the fits without each of some sets."""
        fits, K, _ = self.without(sets)
        return self.Y - fits.predict(K, self.Y, self.columns)

    def held(self, groups):
        """Held-out residuals (L, n, t), those of weight 0 included."""
        sets, e = sets_of(groups), np.empty((len(self.lams), *self.Y.shape), LONG)
        for gone, all_rows in zip(sets, self.left_out(sets), strict=True):
            e[:, gone] = all_rows[:, gone]
        return e

    def deviations(self):
        """Squared standard deviations (L, n) of labels that are left out alone, infinite where
        their weight is 0.
        """
        fits, K, _ = self.without(sets_of(np.arange(len(self.v))))
        own = np.einsum("iii->i", K)[:, None, None, None]
        rows, of_rows = np.einsum("iij->ij", K)[:, None], self.columns[:, None, None]
        var = fits.covariance(rows, own, of_rows)[:, :, 0, 0].T
        with np.errstate(divide="ignore"):
            return var + self.lams[:, None] / self.v

    def intervals(self, level, groups):
        """Ends (L, m, t) of the jackknife+ or CV+: Barber et al. 2021, eqs. 1.5 and 1.11."""
        used, (fits, _, K_new) = self.v > 0, self.without(sets_of(groups))
        row, scores = np.unique(groups, return_inverse=True)[1], np.abs(self.held(groups))
        f = fits.predict(K_new, self.Y, self.fixed_new)[row][used]
        scores, n = np.moveaxis(scores, 1, 0)[used][:, :, None], np.count_nonzero(used)
        k = int(np.ceil(round(level * (n + 1), 9)))
        return np.sort(f - scores, axis=0)[n - k], np.sort(f + scores, axis=0)[k - 1]

    @cached_property
    def table(self):
        """All that the contract promises of each target by itself, (L, …, t) or (L, …, 1)."""
        used, e = self.v > 0, self.held(np.arange(len(self.v)))
        variance = self.deviations()[:, used, None]
        density = -0.5 * np.log(2 * np.pi * variance) - e[:, used] ** 2 / variance / 2
        volume = np.linalg.slogdet((self.fit.H[0, 0].T @ self.fit.H[0, 0]).astype(float))[1]
        return {
            "predictions": self.fit.predict(self.whole[1][None], self.Y, self.fixed_new)[0],
            "residual_norm": self.norm[0],
            "residual_dof": self.residual_dof[0],
            "dof": np.count_nonzero(used) - self.residual_dof[0],
            "gcv": self.gcv[0],
            "evidence": self.evidence[0],
            "data_fit": self.data_fit,
            "logdet": (self.logdet + log_of_square(self.fit.S[0]) - volume)[:, None],
            "held_out_residuals": e,
            "pairs": self.pairs(np.array([*combinations(np.flatnonzero(used), 2)]))[0],
            "density": density.mean(axis=1),
            "crps": crps(e[:, used], variance).mean(axis=1),
        }

    # how far off a factor may be
    # ------------------------------------------------------------------------------------------

    @cached_property
    def size(self):
        """s_max, n·noise, and ‖c̃‖, ‖w‖ and ‖√v y‖ at every λ, (L, t): w are the coefficients of
        features.
        """
        root = np.sqrt(self.v)
        K = root[:, None] * self.whole[0] * root
        w = np.sqrt(np.maximum(np.sum(self.dual * (K @ self.dual), axis=1), 0))
        labels = np.sqrt(np.sum(self.v[:, None] * self.Y**2, axis=0))
        return (
            np.linalg.norm(K.astype(float), 2),
            len(root) * self.noise,
            np.sqrt(np.sum(self.dual**2, axis=1)),
            w,
            labels,
        )

    @cached_property
    def residual_error(self):
        """Of √v (y − f), (L, t): what an error of K, of the features or of their covariance makes
        of it.
        """
        s, noise, dual, w, labels = self.size
        lam = self.lams[:, None]
        moved = {
            "dual": s * dual,
            "svd": np.sqrt(s) * (w + np.sqrt(lam) * dual),
            "primal": s * w / np.sqrt(lam),
        }[self.kind]
        return noise * (moved + labels)

    @cached_property
    def hat_error(self):
        """Of the entries of I − H, (L,), relative to them where K is what is worked on."""
        s, noise, *_ = self.size
        return noise * (1 + (np.sqrt(s / self.lams) if self.kind == "svd" else s / self.lams))

    def left_over(self, rows):
        """The smallest eigenvalue of (I − H) of some rows, (L,)."""
        block = (self.lams[:, None, None] * self.fit.P[0])[:, rows][:, :, rows]
        return np.linalg.eigvalsh(block.astype(float))[:, 0].clip(1e-300)

    def held_error(self, groups, e):
        """Of held-out residuals times √v, (L, n, t)."""
        bound, root = np.zeros(e.shape), np.sqrt(self.v)[:, None]
        for g in np.unique(groups):
            rows = np.flatnonzero(groups == g)
            bound[:, rows] = self.left_error(rows, (root * e)[:, rows])[:, None]
        return bound

    def left_error(self, rows, e):
        """Of the length of what some rows leave, times √v, where they leave together, (L, t)."""
        left = (
            self.left_over(rows[self.v[rows] > 0])[:, None]
            if (self.v[rows] > 0).any()
            else np.ones((len(self.lams), 1))
        )
        moved = self.hat_error[:, None] * np.sqrt(np.sum(e**2, axis=1))
        return (
            moved + self.residual_error / np.sqrt(left)
            if self.kind == "dual"
            else (moved + self.residual_error) / left
        )

    # criteria, each with what it may be off by
    # ------------------------------------------------------------------------------------------

    def mean_square(self, groups):
        """Σ v e²/Σ v."""
        e = self.held(groups)
        off, scaled, total = (
            self.held_error(groups, e),
            np.sqrt(self.v)[:, None] * np.abs(e),
            self.v.sum(),
        )
        off = np.where(self.v[:, None] > 0, off, 0)
        return np.sum(scaled**2, axis=1) / total, np.sum(off * (2 * scaled + off), axis=1) / total

    def pairs(self, pairs):
        """Σ vᵢvⱼ (eᵢ − eⱼ)²/Σ vᵢvⱼ over pairs of rows (p, 2) whose labels differ, both left out."""
        total = found = off = 0
        for pair, e in zip(pairs, self.left_out(pairs), strict=True):
            share = np.prod(self.v[pair]) * (self.Y[pair[0]] != self.Y[pair[1]])
            root = np.sqrt(self.v[pair])
            moved = self.left_error(pair, root[:, None] * e[:, pair]) * root.sum()
            moved = np.where(share > 0, moved, 0)
            apart = np.sqrt(share) * np.abs(e[:, pair[0]] - e[:, pair[1]])
            total, found, off = total + share, found + apart**2, off + moved * (2 * apart + moved)
        return found / total, off / total

    @cached_property
    def norm(self):
        """‖√v (y − f)‖² (L, t)."""
        norm = np.sum((self.lams[:, None, None] * self.dual) ** 2, axis=1)
        return norm, self.residual_error * (2 * np.sqrt(norm) + self.residual_error)

    @cached_property
    def residual_dof(self):
        """tr (I − H) over rows of positive weight, (L, 1)."""
        used = self.v > 0
        dof = self.lams * np.sum(np.diagonal(self.fit.P[0], axis1=1, axis2=2)[:, used], axis=1)
        off = self.hat_error * (dof if self.kind == "dual" else len(self.v))
        return dof[:, None], (off + len(self.v) * self.size[1])[:, None]

    @cached_property
    def gcv(self):
        """norm/Σv / (tr (I − H)/count)²."""
        (norm, off), (dof, moved) = self.norm, self.residual_dof
        value = norm / self.v.sum() * (np.count_nonzero(self.v) / dof) ** 2
        share = np.minimum(moved / dof, 1)
        grown = np.where(moved < dof, (1 + share) / np.maximum(1 - share, 1e-9) ** 2 - 1, np.inf)
        return value, off / self.v.sum() * (np.count_nonzero(self.v) / dof) ** 2 * (
            1 + grown
        ) + 2 * value * grown

    @cached_property
    def data_fit(self):
        """yᵀP̃y (L, t)."""
        return np.sum(np.sqrt(self.v)[:, None] * self.Y * self.dual, axis=1)

    @cached_property
    def logdet(self):
        """log |√v K √v + λI| over rows of positive weight, (L,)."""
        return log_of_square(self.fit.L[0]) - np.count_nonzero(self.v == 0) * np.log(self.lams)

    @cached_property
    def evidence(self):
        """log p(y) of y ~ N(0, K + λV⁻¹) with a flat prior on the fixed effects."""
        used, lam, fit = self.v > 0, self.lams, self.data_fit
        count = np.count_nonzero(used)
        volume = self.logdet - np.sum(np.log(self.v[used])) + log_of_square(self.fit.S[0])
        dimensions = count - self.columns.shape[1]
        value = -(fit + (volume + dimensions * np.log(2 * LONG(np.pi)))[:, None]) / 2
        s, noise, _, w, _ = self.size
        log = np.abs(np.log(lam)) + np.abs(np.log(s)) + np.abs(np.log(self.v[used])).max()
        off = noise * count * (1 + s / lam + log)
        # yᵀc̃ = ‖r‖²/λ + ‖w‖²
        return value, off[:, None] + self.norm[1] / lam[:, None] + noise * (
            (s / lam)[:, None] * w**2 + fit
        )

    def holdout(self, shares):
        """Σ shares (y − f)²/Σ shares over the new rows."""
        K, K_new, diagonal = self.whole
        e = np.abs(self.Y_new - self.fit.predict(K_new[None], self.Y, self.fixed_new)[0])
        _, noise, *_ = self.size
        reach = np.sqrt(diagonal)[:, None] + np.sqrt(np.diagonal(K).max())
        moved = self.residual_error / np.sqrt(self.lams)[:, None] * 2
        off = reach * moved[:, None] + (self.residual_error / np.sqrt(self.v.sum()))[:, None]
        off = off + noise * (np.abs(self.Y).max() + np.abs(self.Y_new).max())
        shares = shares[:, None]
        return np.sum(shares * e**2, axis=1) / shares.sum(), np.sum(
            shares * off * (2 * e + off), axis=1
        ) / shares.sum()
