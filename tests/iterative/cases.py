"""The rows of the grid of iterations by products."""

from dataclasses import replace

from contract.cases import FACTORS, LANDMARKS, N, of_gaussian, of_landmarks
from support import EPS

import jaxrls as rls
from jaxrls.iterative.iterative import IterativeGram
from jaxrls.iterative.refined import RefinedGram
from jaxrls.iterative.subset import IterativeLandmarks

# With as many probes as rows, which tell the diagonal itself.
EXACT = rls.Iterative(tol=10 * EPS, probes=N)
LACKS = ("kfold", "evidence", "density", "crps", "pairs", "logdet", "held_out_residuals uneven")


def by_products():
    """All of K by products."""

    def make(kernel, X, **options):
        solver = replace(EXACT, landmarks=LANDMARKS)
        return rls.factorize(kernel, X, solver=solver, **options)

    return replace(of_gaussian(IterativeGram, {}), maker=make, lacks=LACKS)


def on_landmarks():
    """The subset of regressors by products, whose landmarks stay."""

    def make(kernel, X, **options):
        return rls.factorize(kernel, X, landmarks=LANDMARKS, solver=EXACT, **options)

    return of_landmarks(IterativeLandmarks, {}, leaves=False, maker=make, lacks=LACKS)


FACTORS["iterative"] = by_products()
FACTORS["iterative landmarks"] = on_landmarks()
FACTORS["refined"] = of_gaussian(RefinedGram, {"solver": rls.Refined()})
