"""`factorize`, which factors a kernel and rows, for any λ and labels."""

from typing import Any

from jaxrls.core.data import Data, Labels, Weights, as_fixed_effects, as_training_rows
from jaxrls.core.factors.factor import Factor
from jaxrls.core.factors.solver import Solver
from jaxrls.core.factors.solvers import Spectral, named_solver
from jaxrls.core.kernels import Kernel, check_kernel
from jaxrls.core.support import by_names, column_names, public_call, with_index


@public_call()
def factorize(
    kernel: Kernel,
    X: Any,
    *,
    weights: Any = None,
    intercept: bool = True,
    fixed_effects: Any = None,
    landmarks: Any = None,
    leave: bool = True,
    solver: Solver | None = None,
    block_size: int | None = None,
) -> Factor:
    """Factor a kernel and X once. Coefficients, predictions and validation errors for any λ and
    labels follow cheaply from the result.

    Args:
        kernel: a jaxrls kernel; `Precomputed()` if X is a kernel matrix.
        X: rows (n, d), dense, sparse (SciPy or BCOO), or a source of rows.
        weights: sample weights (n,), 0 or more. A row of weight 0 takes no part in the fit. Default
            1.
        intercept: whether to fit a constant without penalty.
        fixed_effects: further columns (n, q) without penalty, f(x) + b·β; or `levels(labels)`, an
            intercept for each group; or a list of both.
        landmarks: as in `fit`, except "auto". They give the subset of regressors, f(x) = Σₖ k(x,
            pointsₖ) βₖ.
        leave: whether a landmark that is a row of X is held out with its row. If so, no held-out
            prediction uses this row in any way.
        solver: `Spectral()`, one eigendecomposition for all λ; `Cholesky()`, one factor for each λ,
            which is cheaper for a few λ and differentiable in everything; `Refined()` or
            `Iterative()`. By default the cheapest spectrum for the shapes.
        block_size: rows at a time where K is evaluated in blocks, and in the sums over rows of
            `Cholesky()`, of landmarks and of iterations. Spectra of explicit features choose their
            own, and so does K of explicit features with a constant.

    Returns:
        A `Factor`; `factor.route` says how it was made.

    Raises:
        ValueError: for a solver that the kernel does not have, for fixed effects that are linearly
            dependent, and for values that are not finite or outside of the kernel's domain. Inside
            `jax.jit` values are not checked.
        TypeError: when a spectrum is differentiated in X, kernel or weights. Use
            `solver=Cholesky()` or `objective` instead.

    **Cost** by solver. **Source**: Rifkin (lecture), "Solving RLS"; Quiñonero-Candela and Rasmussen
    2005, §4.

    >>> import jax, jax.numpy as jnp, jaxrls as rls
    >>> X, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> factor = rls.factorize(rls.Gaussian(1.0), X)
    >>> factor.route, factor.spectrum().s.shape
    ('gram', (4,))
    """
    check_kernel(kernel)
    rows = as_training_rows(kernel, X)
    rows.check(kernel)
    v = Weights.of_rows(weights, rows)
    data = Data(rows, v, as_fixed_effects(fixed_effects, intercept, v))
    landmarks = by_names("landmarks", landmarks, column_names(X))
    named = named_solver(solver, landmarks, leave) or Spectral()
    prepared = named.prepare(kernel, rows, v)
    labels = Labels.none(v, data.fixed)
    solution = prepared.solve(kernel, data, labels, block_size=block_size)
    return with_index(solution.factor, X)
