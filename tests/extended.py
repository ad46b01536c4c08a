"""The oracle in extended precision: refits with every row and every group left out, and how far a
sound algorithm may be from them.

Everything is made of K of the rows and of k(new, rows), in 80-bit numbers where the machine has
them. With G = √v K √v + λI, P = G⁻¹, u = P√v and P̃ = P − uuᵀ/(√vᵀu) with an intercept, c̃ = P̃√v
y, a fit has residuals √v (y − f) = λc̃. What is left out has weight 0 in a fit of its own."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

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


@dataclass(frozen=True)
class Fits:
    """A stack of fits at a stack of λ: K and k(new, ·) (B, ., n), weights (B, n), and λ (L,)."""

    K: np.ndarray
    v: np.ndarray
    lams: np.ndarray
    intercept: bool

    def __post_init__(self):
        root, eye = np.sqrt(self.v), np.eye(self.v.shape[1], dtype=LONG)
        G = (root[:, :, None] * self.K * root[:, None, :])[:, None] + self.lams[:, None, None] * eye
        self.__dict__["root"], self.__dict__["L"], self.__dict__["G"] = (
            root[:, None, :],
            cholesky(G),
            G,
        )
        half = solve_lower(self.L, eye)
        P = np.swapaxes(half, -1, -2) @ half
        u = (P @ self.root[..., None])[..., 0]
        self.__dict__["u"], self.__dict__["share"] = u, np.sum(u * self.root, axis=-1)
        if self.intercept:
            P = P - u[..., :, None] * u[..., None, :] / self.share[..., None, None]
        self.__dict__["P"] = P

    def solve(self, Y):
        """c̃ (B, L, n, t) and the intercept (B, L, 1, t), refined: they would be off by the
        condition number of G, and by ‖y‖ over ‖y − f‖.
        """
        root, scaled = self.root[..., None], self.root[..., None] * Y
        dual = level = 0
        for _ in range(3):
            left = scaled - (self.G @ dual + root * level if np.ndim(dual) else 0)
            dual = dual + self.P @ left
            if self.intercept:
                level = (
                    level
                    + np.sum(self.u[..., None] * left, axis=-2, keepdims=True)
                    / self.share[..., None, None]
                )
        return dual, level

    def predict(self, K, Y):
        """k(x, ·)√v c̃ + b for rows k(x, ·) (B, q, n)."""
        dual, level = self.solve(Y)
        return K[:, None] @ (self.root[..., None] * dual) + level


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
    intercept: bool
    kind: str
    noise: float

    @cached_property
    def whole(self):
        return self.kernel(np.array([], int))

    @cached_property
    def fit(self):
        """The fit to all rows."""
        return Fits(self.whole[0][None], self.v[None], self.lams, self.intercept)

    @cached_property
    def dual(self):
        """c̃ (L, n, t)."""
        return self.fit.solve(self.Y)[0][0]

    def held(self, groups):
        """Held-out residuals (L, n, t), those of weight 0 included."""
        out = [np.flatnonzero(groups == g) for g in np.unique(groups)]
        K = np.stack([self.kernel(gone)[0] for gone in out])
        v = np.stack([np.where(np.isin(np.arange(len(self.v)), gone), 0, self.v) for gone in out])
        predicted = Fits(K, v, self.lams, self.intercept).predict(K, self.Y)
        e = np.empty((len(self.lams), *self.Y.shape), LONG)
        for gone, f in zip(out, predicted, strict=True):
            e[:, gone] = (self.Y - f)[:, gone]
        return e

    # how far off a factor may be
    # ------------------------------------------------------------------------------------------------

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
    # ----------------------------------------------------------------------------------

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
        for pair in pairs:
            v, K = np.where(np.isin(np.arange(len(self.v)), pair), 0, self.v), self.kernel(pair)[0]
            e = (
                self.Y
                - Fits(K[None], v[None], self.lams, self.intercept).predict(K[None], self.Y)[0]
            )[:, pair]
            share = np.prod(self.v[pair]) * (self.Y[pair[0]] != self.Y[pair[1]])
            root = np.sqrt(self.v[pair])
            moved = np.where(share > 0, self.left_error(pair, root[:, None] * e) * root.sum(), 0)
            apart = np.sqrt(share) * np.abs(e[:, 0] - e[:, 1])
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
    def evidence(self):
        """log p(y) of y ~ N(0, K + λV⁻¹) with a flat prior on the intercept."""
        used, lam = self.v > 0, self.lams
        count = np.count_nonzero(used)
        fit = np.sum(np.sqrt(self.v)[:, None] * self.Y * self.dual, axis=1)
        logdet = 2 * np.sum(np.log(np.diagonal(self.fit.L[0], axis1=1, axis2=2)), axis=1) - (
            len(used) - count
        ) * np.log(lam)
        logdet = (
            logdet
            - np.sum(np.log(self.v[used]))
            + (np.log(self.fit.share[0]) if self.intercept else 0)
        )
        value = -(fit + (logdet + (count - self.intercept) * np.log(2 * LONG(np.pi)))[:, None]) / 2
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
        e = np.abs(self.Y_new - self.fit.predict(K_new[None], self.Y)[0])
        _, noise, *_ = self.size
        reach = np.sqrt(diagonal)[:, None] + np.sqrt(np.diagonal(K).max())
        moved = self.residual_error / np.sqrt(self.lams)[:, None] * 2
        off = reach * moved[:, None] + (self.residual_error / np.sqrt(self.v.sum()))[:, None]
        off = off + noise * (np.abs(self.Y).max() + np.abs(self.Y_new).max())
        shares = shares[:, None]
        return np.sum(shares * e**2, axis=1) / shares.sum(), np.sum(
            shares * off * (2 * e + off), axis=1
        ) / shares.sum()
