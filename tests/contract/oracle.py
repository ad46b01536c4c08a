"""The oracle of the grid: everything the contract promises, by refits, dense smoothers and the
dense Gaussian, in float64 NumPy.

Every kernel problem is one of features, K = ΦΦᵀ. `features(gone)` gives Φ of the training and of
the new rows when the rows `gone` have been left out: on landmarks that are rows of X it is made of
the landmarks that stay, everywhere else it does not depend on them."""

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations

import numpy as np
from oracle import refit

LOSSES = {
    "squared": lambda e, y: e * e,
    "absolute": lambda e, y: np.abs(e),
    "zero_one": lambda e, y: wrong_class(e, y),
}


def wrong_class(e, y):
    """1 where y − e names another class than y."""
    f = y - e
    if y.shape[1] == 1:
        return ((f > 0) != (y > 0)).astype(float)
    return np.broadcast_to((f.argmax(1) != y.argmax(1))[:, None], y.shape).astype(float)


def is_unsure(tolerance, e, y):
    """1 where an error of `tolerance`, relative to the largest residual, may change the class."""
    top = np.sort(y - e, axis=1)
    margin = np.abs(top[:, -1] - (top[:, -2] if y.shape[1] > 1 else 0))
    return np.broadcast_to((margin <= 2 * tolerance * np.abs(e).max())[:, None], y.shape).astype(
        float
    )


def fixed(Phi, Phi_new):
    """Features that stay whatever is left out."""
    return lambda gone: (Phi, Phi_new)


def of_kernel(k, X, X_new):
    """Features of a kernel function: Φ = U√s, and of new rows k(x, X) U/√s."""
    s, U = np.linalg.eigh(k(X, X))
    used = s > 1e-13 * s[-1]
    s, U = s[used], U[:, used]
    return fixed(U * np.sqrt(s), k(X_new, X) @ U / np.sqrt(s))


def of_landmarks(k, X, X_new, points, indices=None):
    """K_TR L⁻ᵀ of the landmarks that stay; `indices` are their rows of X, None where they are no
    rows, or do not leave.
    """

    def features(gone):
        stay = slice(None) if indices is None else ~np.isin(indices, gone)
        R = np.unique(points[stay], axis=0)
        L = np.linalg.cholesky(k(R, R))
        return np.linalg.solve(L, k(R, X)).T, np.linalg.solve(L, k(R, X_new)).T

    return features


@dataclass(frozen=True)
class Truth:
    """One problem at L values of λ: `table` of one number, (L, …, t), at the grid of λ, `at` the
    values of a grid of λ per target.
    """

    features: object
    Y: np.ndarray
    Y_new: np.ndarray
    weights: np.ndarray
    weights_new: np.ndarray
    intercept: bool
    lams: np.ndarray
    plans: dict

    @cached_property
    def whole(self):
        """Φ of the training and of the new rows with no row left out."""
        return self.features(np.array([], int))

    @cached_property
    def fits(self):
        """Coefficients and intercept at every λ."""
        return [
            refit(self.whole[0], self.Y, lam, self.weights, self.intercept) for lam in self.lams
        ]

    @cached_property
    def smoothers(self):
        """From y to f at the training rows, at every λ."""
        Phi, eye = self.whole[0], np.eye(len(self.Y))
        return [
            Phi @ w + b
            for w, b in (refit(Phi, eye, lam, self.weights, self.intercept) for lam in self.lams)
        ]

    @cached_property
    def gaussians(self):
        """log p(y), yᵀPy and log |G̃| of the rows of positive weight at every λ."""
        used = self.weights > 0
        Phi, Y, v = self.whole[0][used], self.Y[used], self.weights[used]
        return [
            gaussian(Phi @ Phi.T + lam * np.diag(1 / v), Y, v, self.intercept) for lam in self.lams
        ]

    def residuals(self, groups=None):
        """Held-out residuals (L, n, t), those of weight 0 included."""
        groups = np.arange(len(self.Y)) if groups is None else groups
        e = np.empty((len(self.lams), *self.Y.shape))
        for g in np.unique(groups):
            held = groups == g
            Phi, _ = self.features(np.flatnonzero(held))
            for k, lam in enumerate(self.lams):
                w, b = refit(Phi[~held], self.Y[~held], lam, self.weights[~held], self.intercept)
                e[k, held] = self.Y[held] - Phi[held] @ w - b
        return e

    def densities(self, e):
        """Means of log p(yᵢ | all others) over rows of positive weight, from residuals e and the
        variances of a linear model of the others, (L, t).
        """
        variances = []
        for i in np.flatnonzero(self.weights > 0):
            rest, (Phi, _) = np.arange(len(self.Y)) != i, self.features(np.array([i]))
            penalty = np.eye(Phi.shape[1] + self.intercept)
            if self.intercept:
                Phi, penalty[-1, -1] = np.hstack([Phi, np.ones((len(Phi), 1))]), 0
            information = (Phi[rest].T * self.weights[rest]) @ Phi[rest] + self.lams[
                :, None, None
            ] * penalty
            variances.append(
                self.lams
                * (
                    1 / self.weights[i]
                    + np.linalg.solve(information, Phi[i][:, None])[:, :, 0] @ Phi[i]
                )
            )
        variance = np.array(variances).T[:, :, None]
        return -0.5 * (np.log(2 * np.pi * variance) + e[:, self.weights > 0] ** 2 / variance).mean(
            axis=1
        )

    def pairs_squared(self):
        """Σ vᵢvⱼ (eᵢ − eⱼ)² / Σ vᵢvⱼ over all pairs, both rows left out of a refit, (L, t): by
        normal equations, for all λ at once.
        """
        v, total, found = self.weights, 0.0, 0.0
        for pair in combinations(np.flatnonzero(v > 0), 2):
            rest = np.setdiff1d(np.arange(len(v)), pair)
            Phi, _ = self.features(np.array(pair))
            penalty = np.eye(Phi.shape[1] + self.intercept)
            if self.intercept:
                Phi, penalty[-1, -1] = np.hstack([Phi, np.ones((len(Phi), 1))]), 0
            left = Phi[rest].T * v[rest]
            w = np.linalg.solve(
                left @ Phi[rest] + self.lams[:, None, None] * penalty, left @ self.Y[rest]
            )
            e = self.Y[list(pair)] - Phi[list(pair)] @ w
            share = v[pair[0]] * v[pair[1]]
            total, found = total + share, found + share * (e[:, 0] - e[:, 1]) ** 2
        return found / total

    @cached_property
    def table(self):
        """Everything that does not mix targets, (L, …, t) each."""
        Phi, Phi_new = self.whole
        f = np.array([Phi @ w + b for w, b in self.fits])
        predictions = np.array([Phi_new @ w + b for w, b in self.fits])
        norm = np.einsum("i,lit->lt", self.weights, (self.Y - f) ** 2)
        used = self.weights > 0
        dof = np.array([np.trace(S[np.ix_(used, used)]) for S in self.smoothers])[
            :, None
        ] * np.ones(self.Y.shape[1])
        found = {
            "predictions": predictions,
            "residual_norm": norm,
            "dof": dof,
            "residual_dof": used.sum() - dof,
        }
        found["gcv"] = norm / self.weights.sum() / (1 - dof / used.sum()) ** 2
        evidence, fit, logdet = (np.array(part) for part in zip(*self.gaussians, strict=True))
        found |= {
            "evidence": evidence,
            "data_fit": fit,
            "logdet": logdet[:, None] * np.ones(self.Y.shape[1]),
        }
        found["residuals"], found["pairs"] = self.residuals(), self.pairs_squared()
        found["density"] = self.densities(found["residuals"])
        return found | {
            f"residuals {name}": self.residuals(groups) for name, groups in self.plans.items()
        }

    def at(self, tolerance, pick=None):
        """The table, and the losses averaged over it, at every λ, or at λ number pick[l, j] for
        target j.

        "unsure" beside a 0/1 loss is the share of rows whose class an error of `tolerance` in the
        residuals may change."""
        table = (
            self.table
            if pick is None
            else {name: per_target(values, pick) for name, values in self.table.items()}
        )
        e = {"loo": table["residuals"]} | {
            f"kfold {name}": table[f"residuals {name}"] for name in self.plans
        }
        means = {name: (held, self.Y, self.weights) for name, held in e.items()}
        means["holdout"] = self.Y_new - table["predictions"], self.Y_new, self.weights_new
        losses = LOSSES | {"unsure": partial(is_unsure, tolerance)}
        return table | {
            f"{name} {loss}": mean_loss(fn, *held)
            for name, held in means.items()
            for loss, fn in losses.items()
        }


def per_target(values, pick):
    """Values (L, …, t) at λ number pick[l, j] for target j."""
    return np.stack(
        [np.stack([values[k, ..., j] for j, k in enumerate(row)], axis=-1) for row in pick]
    )


def mean_loss(fn, e, Y, v):
    """Σ vᵢ fn(eᵢ, yᵢ) / Σ vᵢ at every λ."""
    return np.array([v @ fn(held, Y) / v.sum() for held in e])


def gaussian(G, Y, v, intercept):
    """log p(y) (t,) for y ~ N(0, G), with a flat prior on an intercept; yᵀPy (t,), and log |√v G
    √v| over the dimension that the fit lives in.
    """
    n, inverse, (_, logdet) = len(G), np.linalg.inv(G), np.linalg.slogdet(G)
    P, scaled, ones = inverse, logdet + np.log(v).sum(), np.ones(n)
    if intercept:
        u, share = inverse @ ones, ones @ inverse @ ones
        P = inverse - np.outer(u, u) / share
        logdet, scaled = logdet + np.log(share), scaled + np.log(share / v.sum())
    fit = np.einsum("it,ij,jt->t", Y, P, Y)
    return -0.5 * (fit + logdet + (n - intercept) * np.log(2 * np.pi)), fit, scaled
