"""Several kernels, with weights for every target: random search over the simplex, then descent
along the gradient; predictions and scores split by kernel.
"""

from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrls.core.factors import Spectral
from jaxrls.core.fit import (
    Model,
    Numbers,
    Problem,
    as_predicted,
    choose_lam,
    default_optimizer,
    lambda_grid,
    look,
    names_of,
    scored,
    step,
)
from jaxrls.core.kernels import Kernel, Scaled, Sum, check_kernel, columns_by_number
from jaxrls.core.linalg import matmul
from jaxrls.core.problem import compiled, gram
from jaxrls.core.support import (
    as_floats,
    as_lams,
    check_whole,
    door,
    is_concrete,
    progress_bar,
    pytree,
    static,
)

CONCENTRATIONS = (0.1, 1.0)  # of Dirichlet draws, alternately: near a few kernels, and anywhere


@pytree
class KernelsFit:
    """The result of `fit_kernels`: one model for each target, with its own weights of the kernels.

    f_t(x) = Σₖ shares_kt Σⱼ kₖ(x, pointsⱼ) coef_jt + intercept_t. There is a column for each
    target, also for a single one.

    Args:
        kernels: the K kernels kₖ.
        points: (q, d), the rows that f is expanded in: training rows, or landmarks.
        coef: (q, t), the coefficients.
        intercept: (t,), the constants.
        shares: (K, t), the weights of the kernels for every target.
        lam: (t,), the chosen λ.
        error: (t,), the leave-one-out error of each target at its λ.
        names: those of the kernels, where `fit_kernels` was given a dictionary.

    >>> import jax, numpy as np, jaxrls as rls
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> kernels = [rls.Linear().on(0), rls.Linear().on(1)]
    >>> fit = rls.several.fit_kernels(kernels, X, X, num=4, key=jax.random.key(0))
    >>> fit.predict(X).shape, fit.predict_split(X).shape, fit.shares.argmax(axis=0).tolist()
    ((30, 2), (2, 30, 2), [0, 1])
    """

    kernels: tuple[Kernel, ...]
    points: Any  # (q, d), or sparse rows
    coef: Float[Numbers, "q t"]
    intercept: Float[Numbers, " t"]
    shares: Float[Numbers, "k t"]
    lam: Float[Numbers, " t"]
    error: Float[Numbers, " t"]
    names: tuple[str, ...] = static(default=())

    def __repr__(self) -> str:
        count, t = self.shares.shape
        if not is_concrete(self):
            return f"KernelsFit(of {count} kernels and {t} targets)"
        shares = zip(self.names or range(count), np.mean(self.shares, axis=1), strict=True)
        words = ", ".join(f"{name} {share:.3g}" for name, share in shares)
        return (
            f"{count} kernels, {t} targets: mean error {np.mean(self.error):.3g}\nshares: {words}"
        )

    def kernel(self, target: int) -> Kernel:
        """The weighted sum of kernels of one target, for example to start `tune` from, which needs
        weights above 0.
        """
        return weighted(self.kernels, self.shares[:, target])

    @door("self.coef")
    def predict_split(self, X, *, block_size: int | None = None) -> Float[Numbers, "k m t"]:
        """Predict for the rows of X, split into the contribution of each kernel, without the
        intercept.

        Args:
            X: rows (m, d).
            block_size: rows at a time.

        Returns:
            (K, m, t).

        Raises:
            ValueError: as `Model.predict`.

        **Cost** O(m q (d + t)) for each kernel.
        """
        model = Model(self.kernels[0], self.points, self.coef, self.intercept)
        return _split(self, model.read(X)[0], block_size=block_size)

    def predict(self, X, *, block_size: int | None = None) -> Float[Numbers, "m t"]:
        """Predictions (m, t) for the rows of X (m, d): the sum of `predict_split`, and the
        intercept.
        """
        return self.predict_split(X, block_size=block_size).sum(axis=0) + self.intercept

    @door("self.coef")
    def score(self, X, Y, weights=None) -> Any:
        """R² of the predictions, averaged over targets, as `Fit.score`.

        Args:
            X: rows (m, d).
            Y: labels (m, t), or (m,) for a single target.
            weights: sample weights (m,); by default all are 1.
        """
        return scored(self.predict(X), Y, weights)

    def score_split(self, X, Y) -> Float[Numbers, "k t"]:
        """Score predictions by R², split by kernel (the product measure).

        Kernel k has Σᵢ f_k(xᵢ) (2(yᵢ − b) − f(xᵢ)) / Σᵢ (yᵢ − ȳ)² with f = Σₖ f_k. The sum over
        kernels is R² + n(ȳ − b)²/Σ(yᵢ − ȳ)², which is R² where the intercept b is the mean of Y.

        Args:
            X: rows (m, d).
            Y: labels (m, t), or (m,) for a single target.

        Returns:
            (K, t).

        Raises:
            ValueError: for labels of another shape than (m, t).

        **Cost** as `predict_split`. **Source**: Pratt 1987; as himalaya's `r2_score_split`.
        """
        split = self.predict_split(X)
        Y = as_predicted(split[0], Y)
        shares = split * (2 * (Y - self.intercept) - split.sum(axis=0))
        return shares.sum(axis=1) / ((Y - Y.mean(axis=0)) ** 2).sum(axis=0)


@door("X")
def fit_kernels(
    kernels,
    X,
    Y,
    *,
    num: int = 100,
    shares=None,
    key=None,
    lams=None,
    weights=None,
    intercept: bool = True,
    groups=None,
    landmarks=None,
    steps: int = 0,
    progress: bool = False,
) -> KernelsFit:
    """Fit a weighted sum of kernels, with weights chosen for every target by leave-one-out error:
    multiple-kernel and banded ridge regression.

    minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖² in the space of Σₖ sₖ kₖ, over λ of a grid and
    over weights s ≥ 0, Σₖ sₖ = 1. The weights tried are equal ones and random draws from the
    Dirichlet distribution, with concentration 0.1 and 1 alternately. Every target keeps its best.

    Args:
        kernels: two or more, such as `[Linear().on(range(5)), Gaussian(1.0).on([5, 6])]`; or a
            dictionary of them by name.
        X: rows (n, d).
        Y: labels (n,) or (n, t).
        num: how many weights to try.
        shares: (S, K), the weights to try in place of random ones; each row is divided by its sum.
        key: a JAX random key for the draws; the same key gives the same weights.
        lams: λ (L,), by default from the spectrum at equal weights.
        weights, intercept, landmarks: as in `fit`.
        groups: as in `fit`, labels (n,) of rows that are held out together.
        steps: how many steps of L-BFGS follow for each target, along the gradient of its error in
            the logarithms of the weights and of λ.
        progress: show a bar of the weights that are tried (needs tqdm).

    Returns:
        A `KernelsFit`.

    Raises:
        ValueError: for fewer than two kernels, shares below 0, and as `fit`.

    **Cost** `num` spectra, O(num n³), whatever the number of targets and λ; O(num n m²) on
    landmarks; with `steps` a few evaluations of `objective` and its gradient for each step and
    target.
    **Fails**: with many kernels few of the draws lie near the best: use `steps`. **Source**: Dupré
    la Tour, Eickenberg, Nunez-Elizalde and Gallant 2022, "Feature-space selection with banded ridge
    regression".

    >>> import jax, numpy as np, jaxrls as rls
    >>> rng = np.random.default_rng(0)
    >>> X, noise = rng.normal(size=(60, 2)), 0.3 * rng.normal(size=(60, 2))
    >>> Y = np.stack([np.sin(2 * X[:, 0]), X[:, 1]], axis=1) + noise
    >>> kernels = [rls.Gaussian(1.0).on(0), rls.Linear().on(1)]
    >>> fit = rls.several.fit_kernels(kernels, X, Y, num=10, key=jax.random.key(0))
    >>> bool(fit.shares[0, 0] > 0.5), bool(fit.shares[1, 1] > 0.5)
    (True, True)
    """
    names = tuple(map(str, kernels)) if isinstance(kernels, dict) else ()
    kernels = _checked([*kernels.values()] if names else kernels, names_of(X))
    equal = weighted(kernels, [1 / len(kernels)] * len(kernels))
    problem = Problem.of(
        equal,
        X,
        Y,
        weights=weights,
        intercept=intercept,
        groups=groups,
        landmarks=landmarks,
        # For coefficients of rows, or of landmarks.
        solver=Spectral("gram") if landmarks is None else None,
    ).prepared()
    if not problem.traceable:
        raise ValueError(
            f"fit_kernels needs X in memory, and X is {type(problem.rows).__name__}: give an array "
            "of all rows or of some"
        )
    dtype = problem.rows.dtype
    tried = _shares(len(kernels), num, shares, key, dtype)
    lams = None if lams is None else as_lams(lams, dtype)
    best = _searched(problem, kernels, tried, lams, progress)
    if steps:
        check_whole("steps", steps)
        with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
            best = _descended(problem, kernels, best, steps=int(steps))
    points = problem.solver_or_default.points(problem.rows)
    return KernelsFit(kernels, points, **best, names=names)


def _checked(kernels, names) -> tuple[Kernel, ...]:
    if not isinstance(kernels, list | tuple) or len(kernels) < 2:
        raise ValueError(
            "kernels must be a list of two kernels or more: with one, fit(kernel, X, Y, "
            "per_target=True)"
        )
    for kernel in kernels:
        check_kernel(kernel)
        if not kernel.evaluable:
            raise ValueError(
                "kernels must be functions of rows, and one stands for a given matrix: wrap that "
                "in a FunctionKernel, with row numbers as X"
            )
    return tuple(columns_by_number(kernel, names) for kernel in kernels)


def _shares(count, num, shares, key, dtype) -> Float[Array, "s k"]:
    """The weights to try, equal ones first where they are drawn."""
    if shares is None:
        check_whole("num", num)
        if key is None:
            raise ValueError(
                "fit_kernels draws weights at random: give key=jax.random.key(0), or shares= to try"
            )
        alpha = jnp.resize(jnp.asarray(CONCENTRATIONS, dtype), (num - 1, 1))
        drawn = jax.random.dirichlet(key, jnp.tile(alpha, count), dtype=dtype)
        shares = jnp.concatenate([jnp.ones((1, count), dtype), drawn])
    shares = jnp.asarray(as_floats("shares", shares, dtype))
    if shares.ndim != 2 or shares.shape[1] != count or len(shares) == 0:
        raise ValueError(
            f"shares must have shape (S, {count}), a column for each kernel, and has shape "
            f"{shares.shape}"
        )
    sums = jnp.sum(shares, axis=1, keepdims=True)
    if is_concrete(shares) and not bool(((shares >= 0) & (sums > 0)).all()):
        raise ValueError("shares must be 0 or more, and not all 0 in a row")
    return shares / sums


def _searched(problem, kernels, tried, lams, progress):
    """The best of all weights that are tried, for every target: one after another under a bar."""
    if not progress:
        return _search(problem, kernels, tried, lams)[0]
    best: Any = None
    with progress_bar(progress, len(tried), "weights", "draw") as reached:
        for i, shares in enumerate(tried, start=1):
            new, lams = _search(problem, kernels, shares[None], lams)
            best = new if best is None else _better(best, new)
            reached(i)
    return best


def _judged(problem, kernels, shares, lams):
    """The best λ for every target with the weighted sum of kernels, and the model there."""
    solution = replace(problem, kernel=weighted(kernels, shares)).solution()
    errors = problem.errors(solution, lams).reshape(len(lams), -1)
    lam, error = choose_lam(lams, errors, per_target=True)
    coefficients = solution.coefficients(lam[None])
    return {
        "coef": coefficients.coef[0],
        "intercept": coefficients.intercept[0],
        "shares": jnp.broadcast_to(shares[:, None], (len(shares), len(error))),
        "lam": lam,
        "error": error,
    }


def _better(old, new):
    wins = (new["error"] < old["error"]) | jnp.isnan(old["error"])
    return jax.tree.map(lambda old, new: jnp.where(wins, new, old), old, new)


@compiled
def _search(problem, kernels, tried, lams):
    """The best of all for every target, and λ, by default the grid of the first."""
    if lams is None:
        first = replace(problem, kernel=weighted(kernels, tried[0]))
        lams = lambda_grid(first.solution().factor)

    def try_one(best, shares):
        return _better(best, _judged(problem, kernels, shares, lams)), None

    best, _ = jax.lax.scan(try_one, _judged(problem, kernels, tried[0], lams), tried[1:])
    return best, lams


@pytree
class Logarithms:
    """A space to descend in: the logarithms of the weights, whose sum stands for 1/λ."""

    kernels: tuple[Kernel, ...]
    lam: Any

    def unpack(self, log_shares) -> tuple[Kernel, Any]:
        """Kernel and λ."""
        return weighted(self.kernels, jnp.exp(log_shares)), self.lam


@compiled
def _descended(problem, kernels, best, *, steps):
    """Descent from the best of every target along the gradient; a weight of 0 starts at a hundredth
    of the mean.
    """
    options: dict = {"optimizer": default_optimizer()}

    def of_target(j):
        before = jax.tree.map(lambda a: a[..., j], best)
        alone = replace(problem, Y=problem.Y.reshape(len(problem.Y), -1)[:, j])
        space = Logarithms(kernels, before["lam"])
        start = jnp.log(jnp.maximum(before["shares"], 0.01 / len(kernels)))
        go_on = lambda point, _: (step(point, space, alone, **options), None)
        end, _ = jax.lax.scan(go_on, look(start, space, alone, **options), length=steps)
        shares = jnp.exp(end.params)
        total = jnp.sum(shares)
        after = _judged(alone, kernels, shares / total, before["lam"][None] / total)
        return _better(before, jax.tree.map(lambda a: a[..., 0], after))

    targets = jax.lax.map(of_target, jnp.arange(len(best["lam"])))  # one after another
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), targets)


def weighted(kernels: tuple[Kernel, ...], shares) -> Kernel:
    """Σₖ sharesₖ kₖ."""
    parts: Any = map(Scaled, shares, kernels)
    return reduce(Sum, parts)


@compiled
def _split(fit: KernelsFit, rows, *, block_size):
    def split_of_block(x):
        parts = [
            matmul(gram(kernel, x, fit.points), fit.coef * share)
            for kernel, share in zip(fit.kernels, fit.shares, strict=True)
        ]
        return jnp.stack(parts, axis=1)

    split = rows.map(split_of_block, temporaries=len(fit.coef), block_size=block_size)
    return jnp.moveaxis(split, 1, 0)
