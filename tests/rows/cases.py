"""The rows of the grid of rows that are not one array, and of sums of rows that came and went."""

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from contract.cases import FACTORS, POINTS, Case, N, effects, of_landmarks, of_linear
from support import array

import jaxrls as rls
from jaxrls import extend
from jaxrls.core.factors.primal_spectrum import PrimalSpectrum
from jaxrls.landmarks.spectrum import LandmarkSpectrum
from jaxrls.rows.sparse import SparseRows
from jaxrls.rows.update import Summed


class Moved(Case):
    """Moments alone: of the first rows, of further ones, and without some that were among them."""

    def solution(self, X, Y, weights, fixed):
        """With the rows and labels in between not those of the problem, and given up again."""
        weights = None if weights is None else extend.Weights.of(weights, N, X.dtype)
        part = lambda rows: (X[rows], Y[rows], None if weights is None else weights.values[rows])
        other = (1 - X[:4], 2 - Y[:4], None if weights is None else weights.values[:4] + 1)
        first = [
            jnp.concatenate(both) if both[0] is not None else None
            for both in zip(part(slice(9)), other, strict=True)
        ]
        named: dict = self.options | effects(fixed)
        problem = extend.read_problem(self.kernel, *first[:2], weights=first[2], **named).prepare()
        summed = Summed.of_solution(problem.solution(), problem)
        for sign, (x, y, v) in ((1, part(slice(9, None))), (-1, other)):
            weights = extend.Weights.of(v, len(x), x.dtype)
            data = extend.Data(rls.rows.DenseRows(x), weights, summed.fixed)
            summed = summed.with_moments(summed.moments_of(data, y), sign)
        return summed.solution(False)


def moved(case):
    """The same problem by `Moved`, which reads no row again."""
    lacks = ("loo", "kfold", "held_out_residuals", "given", "density", "crps", "pairs")
    return Moved(**{**vars(case), "lacks": lacks, "fixed": ("none", "constant")})


def sparse(X):
    return SparseRows.read("X", scipy.sparse.csr_array(np.asarray(X, array(0.0).dtype)))


def sharded(X):
    """As if half of the rows lay on another device."""
    return rls.rows.ShardedRows(array(X), 2, count=len(X))


def streamed(X):
    X = np.asarray(array(X))
    return rls.rows.stream([(X[:5],), (X[5:],)], block_size=9)


HALF = {"kernel": 0.5 * rls.Linear(), "scale": 0.5}
FACTORS.update(
    {
        "moments": moved(of_linear(PrimalSpectrum, 4, {})),
        "moments on landmarks": moved(of_landmarks(LandmarkSpectrum, {}, POINTS)),
        "sparse": of_linear(PrimalSpectrum, 4, {}, sparse, **HALF),
        "on devices": of_landmarks(LandmarkSpectrum, {}, None, sharded),
        "on devices, linear": of_linear(PrimalSpectrum, 4, {}, sharded),
        "streamed": of_landmarks(LandmarkSpectrum, {}, None, streamed, traceable=False),
    }
)
