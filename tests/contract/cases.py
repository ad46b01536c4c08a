"""The rows of the grid: one small problem for every factor there is, and how to make the factor. A
new factor is one more line of FACTORS.

A room whose factors or criteria are not of the core adds them in `tests/<room>/cases.py`, which is
read at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import oracle
from extended import Truth, of_features
from support import EPS, array, wide

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.factors.cholesky import CholeskyGram
from jaxrls.core.factors.cholesky_features import CholeskyFeatures
from jaxrls.core.factors.primal_spectrum import OuterSpectrum, PrimalSpectrum
from jaxrls.core.factors.spectrum import (
    FeatureSpectrum,
    GramSpectrum,
    Spectrum,
    SquareFeatureSpectrum,
)
from jaxrls.landmarks.cholesky import CholeskyLandmarks
from jaxrls.landmarks.spectrum import LandmarkSpectrum

N, NEW, TARGETS = 14, 5, 3
LAMS = wide([0.05, 0.2, 0.7, 2.0])
PICK = np.array([[0, 2, 3], [3, 1, 0]])  # λ per target: which of LAMS, (L, t)
WIDTH = 1.2
LANDMARKS = np.array([8, 1, 13, 4, 11, 5])
PLANS = {
    "uneven": np.array(
        [0, 1, 0, 2, 3, 1, 0, 2, 4, 1, 3, 2, 1, 3]
    ),  # sizes 3, 4, 3, 3, 1; the last one a landmark alone
    "halves": np.array(
        [0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1]
    ),  # sizes 5 and 9: refitted where there are as many λ as in LAMS
}
UNSEEN = [2, 5, 8]  # rows of weight 0: one is the only row of its group, two are landmarks


def draw(seed, *shape):
    return wide(np.random.default_rng(seed).normal(size=shape))


Y, Y_NEW = draw(1, N, TARGETS) + 0.5, draw(2, NEW, TARGETS)
V = wide(np.random.default_rng(3).uniform(0.5, 2.0, N))
WEIGHTS = {
    "ones": np.ones(N),
    "weights": V,
    "zeros": wide(np.where(np.isin(np.arange(N), UNSEEN), 0.0, V)),
}
# Fixed effects: none, a constant, or a constant and two columns, an indicator and any numbers.
FIXED = {"none": False, "constant": True, "columns": "columns"}
BESIDE = wide(np.column_stack([np.arange(N) % 2, draw(13, N)]))
BESIDE_NEW = draw(14, NEW, 2)


def effects(fixed):
    """The options of `fit` that say so."""
    return {"intercept": bool(fixed)} | (
        {"fixed_effects": array(BESIDE)} if fixed == "columns" else {}
    )


def columns(fixed, beside):
    """All columns of fixed effects, of the rows or of new ones."""
    ones = np.ones((len(beside), int(bool(fixed))))
    return np.hstack([ones, beside]) if fixed == "columns" else ones


def gaussian(X, Z, width=WIDTH):
    return np.exp(-np.sum((X[:, None] - Z[None]) ** 2, axis=-1) / (2 * width**2))


def linear(scale=1.0):
    return lambda X, Z: scale * X @ Z.T


class HostRows(rls.rows.Rows):
    """Rows made on the host in blocks of uneven size, as a user would write it; counts readings and
    blocks.
    """

    traceable = False

    def __init__(self, X, size=8):
        self.X, self.size, self.readings, self.read = np.asarray(X), size, 0, 0

    @property
    def shape(self):
        return self.X.shape

    @property
    def dtype(self):
        return array(self.X).dtype

    def blocks(self):
        self.readings += 1
        for start in range(0, len(self.X), self.size):
            self.read += 1
            yield array(self.X[start : start + self.size])


@dataclass(frozen=True)
class Case:
    """A factor of the grid: its class, kernel, rows as the library takes them, and features for the
    oracle.

    `make(X, weights, fixed)` gives the factor; `options` are those of `factorize` and of
    `Problem`, which make it with labels in one go. `plans` name groups."""

    cls: type
    kernel: Any
    X: Any
    X_new: Any
    features: Callable
    options: dict = field(default_factory=dict)
    maker: Callable | None = None
    traceable: bool = True
    weighted: bool = True  # whether rows have weights of their own
    fixed: tuple = tuple(FIXED)
    # Quantities that are refused without an inverse, or not asked for, by their first word.
    lacks: tuple = ()

    def offers(self, quantity):
        """Whether that can be asked for; of rows elsewhere not what reads them for every λ."""
        if quantity == "crps" and not self.traceable:
            return False
        return quantity.split()[0] not in self.lacks and quantity not in self.lacks

    @property
    def plans(self):
        """Groups by name: only a spectrum refits large ones."""
        return PLANS if issubclass(self.cls, Spectrum) else {"uneven": PLANS["uneven"]}

    def make(self, X, weights, fixed):
        """The factor."""
        if self.maker is not None:
            return self.maker(self.kernel, X, weights=weights, **effects(fixed))
        return rls.factorize(self.kernel, X, weights=weights, **effects(fixed), **self.options)

    def solution(self, X, Y, weights, fixed):
        """The factor with labels, from one reading of the rows where the doors make it so."""
        if self.maker is not None:
            return self.make(X, weights, fixed).solve(Y)
        named = {"weights": weights, **effects(fixed), **self.options}
        return extend.read_problem(self.kernel, X, Y, **named).prepare().solution()

    def truth(self, weights, fixed, lams=LAMS):
        """The oracle of it."""
        own, new = columns(fixed, BESIDE), columns(fixed, BESIDE_NEW)
        kernel, groups = of_features(self.features), PLANS["uneven"]
        return Truth(kernel, Y, Y_NEW, weights, lams, groups, own, fixed_new=new)

    def tolerance(self):
        """4 n eps (1 + s_max/λ_min), s_max the largest eigenvalue of K: what a solution may be off
        by, relative to the largest number.
        """
        s_max = np.linalg.norm(self.features(np.array([], int))[0], 2) ** 2
        return 4 * N * EPS * (1 + s_max * WEIGHTS["weights"].max() / LAMS.min())


def of_gaussian(cls, options, **more):
    X, X_new = 1.5 * draw(4, N, 2), draw(5, NEW, 2)
    return Case(
        cls,
        rls.Gaussian(WIDTH),
        X,
        X_new,
        oracle.of_kernel(gaussian, wide(X), wide(X_new)),
        options,
        **more,
    )


def of_linear(cls, d, options, source=array, kernel=None, scale=1.0, **more):
    X, X_new = draw(6, N, d) + 0.3, draw(7, NEW, d)
    kernel = rls.Linear() if kernel is None else kernel
    return Case(
        cls,
        kernel,
        source(X),
        array(X_new),
        oracle.of_kernel(linear(scale), X, X_new),
        options,
        **more,
    )


def precomputed():
    X, X_new = wide(1.5 * draw(4, N, 2)), draw(5, NEW, 2)
    K, K_new = gaussian(X, X), gaussian(X_new, X)
    features = oracle.of_kernel(gaussian, X, X_new)
    return Case(GramSpectrum, rls.Precomputed(), array(K), array(K_new), features, {})


def of_landmarks(cls, options, points=None, source=array, leaves=True, maker=None, **more):
    """Landmarks that are rows of X, two of them equal, or `points` that are not."""
    X, X_new = wide(1.5 * draw(4, N, 2)), draw(5, NEW, 2)
    X[5] = X[1]  # left out one by one, together in a group, and with one of them of weight 0
    indices, where = (LANDMARKS, X[LANDMARKS]) if points is None else (None, points)
    features = oracle.of_landmarks(gaussian, X, X_new, where, indices if leaves else None)
    options = {"landmarks": LANDMARKS if points is None else array(points), **options}
    return Case(cls, rls.Gaussian(WIDTH), source(X), array(X_new), features, options, maker, **more)


def subset(**options):
    return lambda kernel, X, **named: rls.factorize(
        kernel, X, landmarks=LANDMARKS, **named, **options
    )


POINTS = 1.5 * draw(8, 6, 2)
CHOLESKY = {"solver": rls.Cholesky()}
FACTORS = {
    "gram": of_gaussian(GramSpectrum, {"solver": rls.Spectral("gram")}),
    "features": of_linear(FeatureSpectrum, 4, {"solver": rls.Spectral("features")}),
    "more features than rows": of_linear(
        SquareFeatureSpectrum, 20, {"solver": rls.Spectral("features")}
    ),
    "covariance": of_linear(PrimalSpectrum, 4, {"solver": rls.Spectral("covariance")}),
    "outer": of_linear(OuterSpectrum, 20, {"solver": rls.Spectral("covariance")}),
    "precomputed": precomputed(),
    "landmarks": of_landmarks(LandmarkSpectrum, {}),
    "landmarks that stay": of_landmarks(
        LandmarkSpectrum, {}, leaves=False, maker=subset(leave=False)
    ),
    "points": of_landmarks(LandmarkSpectrum, {}, POINTS),
    "cholesky gram": of_gaussian(CholeskyGram, CHOLESKY),
    "cholesky features": of_linear(CholeskyFeatures, 4, CHOLESKY),
    "cholesky landmarks": of_landmarks(CholeskyLandmarks, CHOLESKY),
    "cholesky landmarks that stay": of_landmarks(
        CholeskyLandmarks, {}, leaves=False, maker=subset(leave=False, **CHOLESKY)
    ),
    "cholesky points": of_landmarks(CholeskyLandmarks, CHOLESKY, POINTS),
    "host": of_linear(PrimalSpectrum, 4, {}, HostRows, traceable=False),
    "host points": of_landmarks(LandmarkSpectrum, {}, POINTS, HostRows, traceable=False),
    "host cholesky": of_linear(CholeskyFeatures, 4, CHOLESKY, HostRows, traceable=False),
}
# Criteria of rooms, by name: those that the grid asks for at λ for all targets, and those that it
# leaves to the tests of the room.
COLUMNS: dict[str, rls.extend.Criterion] = {}
ELSEWHERE: dict[str, rls.extend.Criterion] = {}

for path in sorted(Path(__file__).parents[1].glob("*/cases.py")):
    import_module(f"{path.parent.name}.cases")
