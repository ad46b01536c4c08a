"""The row of the grid of all of K by products."""

from dataclasses import replace

from contract.cases import FACTORS, LANDMARKS, N, of_gaussian
from support import EPS

import jaxrls as rls
from jaxrls.iterative.iterative import IterativeGram
from jaxrls.iterative.refined import RefinedGram


def by_products():
    """All of K by products, with as many probes as rows, which tell the diagonal itself."""
    lacks = ("kfold", "evidence", "density", "crps", "pairs", "logdet", "residuals uneven")

    def make(kernel, X, **options):
        solver = rls.Iterative(LANDMARKS, tol=10 * EPS, probes=N)
        return rls.factorize(kernel, X, solver=solver, **options)

    return replace(of_gaussian(IterativeGram, {}), maker=make, lacks=lacks)


FACTORS["iterative"] = by_products()
FACTORS["refined"] = of_gaussian(RefinedGram, {"solver": rls.Refined()})
