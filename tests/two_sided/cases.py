"""The row of the grid of two-sided data."""

from dataclasses import replace

import numpy as np
import oracle
from contract.cases import FACTORS, NEW, WIDTH, Case, draw, gaussian
from support import array, wide

import jaxrls as rls
from jaxrls.core.factors.expansion import AtPoints
from jaxrls.two_sided.kronecker import Kronecker


def all_pairs():
    """All pairs of 7 rows and 2 columns, which have no weights of their own."""
    x1, x2 = 1.5 * draw(10, 7, 1), 1.5 * draw(11, 2, 1)
    X, X_new = np.column_stack([np.repeat(x1, 2), np.tile(x2[:, 0], 7)]), draw(5, NEW, 2)

    def make(kernel, X, weights, intercept):
        sides = [rls.extend.gram(kernel, side) for side in (X[::2, :1], X[:2, 1:])]
        return replace(
            rls.two_sided.factor_kronecker(*sides, intercept=intercept), expansion=AtPoints(X)
        )

    features = oracle.of_kernel(gaussian, wide(X), wide(X_new))
    return Case(
        Kronecker,
        rls.Gaussian(WIDTH),
        array(X),
        array(X_new),
        features,
        {},
        make,
        weighted=False,
        fixed=("none", "constant"),
        lacks=("pairs",),
    )


FACTORS["kronecker"] = all_pairs()
