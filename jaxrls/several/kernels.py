"""The function `fit_kernels`: a weighted sum of several kernels, with weights for every target.

The weights are searched at random over the simplex, and then by descent along the gradient. The
result, a `KernelsFit`, splits predictions and scores by kernel.
"""

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxrls.core.data import Rows, as_rows, compiled, gram
from jaxrls.core.factors import Spectral
from jaxrls.core.fit import Numbers, Problem, choose_lam, lambda_grid
from jaxrls.core.kernels import (
    Kernel,
    Scaled,
    Sum,
    check_kernel,
    columns_by_number,
)
from jaxrls.core.linalg import matmul
from jaxrls.core.support import (
    as_floats,
    as_lams,
    by_names,
    check_whole,
    column_names,
    known_and,
    known_values,
    labels_by_names,
    progress_bar,
    public_call,
    pytree,
    static,
    where_known,
)
from jaxrls.front import (
    Model,
    as_predicted,
    check_levels_fit_dtype,
    default_optimizer,
    first_point,
    from_median,
    inspect_lam,
    r_squared_of,
    read_problem,
    step,
    with_constant,
)

# Concentrations of the Dirichlet draws, in turn. With 0.1 most of the weight is on a few kernels.
# With 1 the draws are uniform over the simplex.
CONCENTRATIONS = (0.1, 1.0)


@pytree
class KernelsFit:
    """The result of `fit_kernels`: one model for each target, with its own weights of the kernels.

    f_t(x) = Σₖ shares_kt Σⱼ kₖ(x, pointsⱼ) coef_jt + intercept_t. All arrays have an axis of
    targets, also for a single target.

    Args:
        kernels: the K kernels kₖ.
        points: (q, d), the rows in whose kernel functions f is expanded: training rows, or
            landmarks.
        coef: (q, t), the coefficients.
        intercept: (t,), the constants.
        shares: (K, t), the weights of the kernels for every target.
        lam: (t,), the chosen λ.
        error: (t,), the leave-one-out error of each target at its λ.
        lams: (L,), the λ of the grid.
        tried: (S, K), the weights that were tried.
        errors: (S, t), the error of each row of `tried`, at its best λ of the grid.
        r2: (t,), R² of the held-out predictions, 1 − error / Σ v (y − ȳ)² · Σ v. It is 0 for a
            constant target.
        floor: (t,), the λ below which rounding errors dominate.
        names: the names of the kernels if `fit_kernels` was given a dictionary, else ().
        columns: the names of the columns of X if it was a data frame, else ().
        targets: the names of the columns of Y if it was a data frame, else (). Further labels with
            these names are taken by name.

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
    lams: Float[Numbers, " L"]
    tried: Float[Numbers, "s k"]
    errors: Float[Numbers, "s t"]
    r2: Float[Numbers, " t"]
    floor: Float[Numbers, " t"]
    names: tuple[str, ...] = static(default=())
    columns: tuple = static(default=())
    targets: tuple = static(default=())

    def __repr__(self) -> str:
        count, t = self.shares.shape
        numbers = known_values((self.shares, self.error, self.r2))
        if numbers is None:
            return f"KernelsFit(of {count} kernels and {t} targets)"
        shares, error, r2 = numbers
        named = zip(self.names or range(count), shares.mean(axis=1), strict=True)
        words = ", ".join(f"{name} {share:.3g}" for name, share in named)
        return (
            f"{count} kernels, {t} targets: mean error {error.mean():.3g}, held-out R² "
            f"{r2.mean():.3g}\nshares: {words}"
        )

    def kernel(self, target: int) -> Kernel:
        """Return the weighted sum of kernels of one target.

        `tune` can start from it if all its weights are above 0.
        """
        return weighted(self.kernels, self.shares[:, target])

    @public_call(fitted="self.coef")
    def coefficients(self) -> tuple[Float[Numbers, "_ t"], ...]:
        """Return the weights of the explicit features of each kernel.

        A linear kernel has one weight for each of its columns, as in banded ridge regression. W_k =
        shares_k Σⱼ φ_k(pointsⱼ) coefⱼ, so that kernel k contributes φ_k(x) W_k.

        Returns:
            A tuple with W_k (r_k, t) for each kernel, which has r_k features.

        Raises:
            ValueError: for a kernel without explicit features.

        **Cost** O(q r_k t) for each kernel.
        """
        for k, kernel in enumerate(self.kernels):
            if kernel.num_features(self.points.shape[1], self.coef.dtype) is None:
                name = self.names[k] if self.names else k
                raise ValueError(
                    f"coefficients are of explicit features, which kernel {name!r}, "
                    f"{type(kernel).__name__}, has not: use predict_split, or a linear kernel"
                )
        rows = as_rows(self.kernels[0], self.points, dtype=self.coef.dtype)
        return _coefficients(self._without_names(), rows)

    def _without_names(self) -> "KernelsFit":
        """Return the same fit for a program, which new names would compile again."""
        return replace(self, names=(), columns=(), targets=())

    @public_call(fitted="self.coef")
    def predict_split(self, X: Any, *, block_size: int | None = None) -> Float[Numbers, "k m t"]:
        """Return the contribution of each kernel to the predictions for the rows of X.

        The intercept is not in any contribution.

        Args:
            X: rows (m, d).
            block_size: how many rows are computed at a time, by default as many as fit the cache.

        Returns:
            (K, m, t).

        Raises:
            ValueError: as `Model.predict`.

        **Cost** O(m q (d + t)) for each kernel.
        """
        model = Model(self.kernels[0], self.points, self.coef, self.intercept, names=self.columns)
        rows = model.read(X)[0]
        for kernel in self.kernels[1:]:
            check_levels_fit_dtype(kernel, self.points, by_names("X", X, self.columns))
        return _split(self._without_names(), rows, block_size=block_size)

    def predict(self, X: Any, *, block_size: int | None = None) -> Float[Numbers, "m t"]:
        """Return the predictions for the rows of X: the intercept plus the sum of `predict_split`.

        X has shape (m, d), and the result (m, t).
        """
        varying = self.predict_split(X, block_size=block_size).sum(axis=0)
        return with_constant(varying, self.intercept)

    @public_call(fitted="self.coef")
    def score(self, X: Any, Y: Any, weights: Any = None, *, per_target: bool = False) -> Any:
        """Return R² of the predictions, as `Fit.score` does.

        Args:
            X: rows (m, d).
            Y: labels (m, t), or (m,) for a single target.
            weights: sample weights (m,); by default all are 1.
            per_target: whether to return R² of every target (t,) in place of their mean.
        """
        Y = labels_by_names(Y, self.targets)
        return r_squared_of(self.predict(X), Y, weights, per_target)

    @public_call(fitted="self.coef")
    def score_split(self, X: Any, Y: Any) -> Float[Numbers, "k t"]:
        """Split R² of the predictions by kernel (the product measure).

        The share of kernel k is Σᵢ f_k(xᵢ) (2(yᵢ − b) − f(xᵢ)) / Σᵢ (yᵢ − ȳ)² with f = Σₖ f_k. The
        sum over kernels is R² + n(ȳ − b)²/Σ(yᵢ − ȳ)². This is R² if the intercept b is the mean of
        Y. A constant target scores 0, as in `Fit.score`.

        Args:
            X: rows (m, d).
            Y: labels (m, t), or (m,) for a single target.

        Returns:
            (K, t).

        Raises:
            ValueError: for labels of another shape than (m, t).

        **Cost** as `predict_split`. **Source**: Pratt 1987; himalaya's `r2_score_split` is the
        same.
        """
        split = self.predict_split(X)
        Y = labels_by_names(Y, self.targets)
        Y = as_predicted(with_constant(split[0], self.intercept), Y)
        xp: Any = jnp if isinstance(split, jax.Array) else np
        about = xp.asarray(Y - self.intercept, split.dtype)
        varies = xp.asarray(Y - Y[:1], split.dtype)  # exactly 0 for a constant target
        shares = (split * (2 * about - split.sum(axis=0))).sum(axis=1)
        square = ((varies - varies.mean(axis=0)) ** 2).sum(axis=0)
        return xp.where(square > 0, shares / xp.where(square > 0, square, 1), 0)


@public_call(data="X")
def fit_kernels(
    kernels: Any,
    X: Any,
    Y: Any,
    *,
    num: int = 100,
    shares: Any = None,
    key: PRNGKeyArray | None = None,
    lams: Any = None,
    weights: Any = None,
    intercept: bool = True,
    groups: Any = None,
    landmarks: Any = None,
    steps: int = 0,
    progress: bool = False,
) -> KernelsFit:
    """Fit a weighted sum of kernels, with weights chosen for every target by leave-one-out error:
    multiple-kernel and banded ridge regression.

    Minimise ½ Σ vᵢ (yᵢ − f(xᵢ) − b)² + (λ/2) ‖f‖² over f in the space of Σₖ sₖ kₖ and over b, for
    every λ of a grid and for several weights s ≥ 0 with Σₖ sₖ = 1. The first weights are equal. The
    others are drawn from the Dirichlet distribution, with concentrations 0.1 and 1 in turn. Every
    target keeps the weights and the λ with its smallest held-out error.

    Args:
        kernels: two or more, such as `[Linear().on(range(5)), Gaussian(1.0).on([5, 6])]`, or a
            dictionary from names to kernels.
        X: rows (n, d).
        Y: labels (n,) or (n, t).
        num: how many weights s to try.
        shares: (S, K), the weights to try in place of random ones. Each row is divided by its sum.
            The columns of a data frame go by the names of the kernels, if it has these.
        key: a JAX random key for the draws. The same key gives the same weights.
        lams: λ (L,), by default a grid from the spectrum at the first weights that are tried.
        weights, intercept, landmarks: as in `fit`.
        groups: as in `fit`, labels (n,) of rows that are held out together.
        steps: how many steps of L-BFGS follow for each target. They descend along the gradient of
            its error with respect to the logarithms of the weights and of λ.
        progress: whether to show a bar of the weights that are tried (needs tqdm).

    Returns:
        A `KernelsFit`. All computation is finished when it is returned.

    Raises:
        ValueError: for fewer than two kernels, shares below 0, and as `fit`.

    **Warns** of λ as `fit` does. **Cost** `num` spectra, O(num n³), whatever the number of targets
    and λ; O(num n m²) on landmarks. With `steps`, each step of each target takes a few evaluations
    of `objective` and its gradient. **Fails**: with many kernels few of the draws lie near the best
    weights: use `steps`. **Source**: Dupré la Tour, Eickenberg, Nunez-Elizalde and Gallant 2022,
    "Feature-space selection with banded ridge regression".

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
    kernels = _checked([*kernels.values()] if names else kernels, column_names(X))
    options = {"weights": weights, "intercept": intercept, "groups": groups, "landmarks": landmarks}
    if landmarks is None:
        options["solver"] = Spectral("gram")  # so that the coefficients are of rows
    equal = weighted(kernels, [1 / len(kernels)] * len(kernels))
    problem = read_problem(equal, X, Y, **options).prepare()
    if not problem.traceable:
        raise ValueError(
            f"fit_kernels needs X in memory, and X is {type(problem.rows).__name__}: give an array "
            "of all rows or of some"
        )
    of_rows = problem.rows, problem.weights
    shares = _in_order_of_kernels(shares, names)
    kernels = tuple(from_median(kernel, *of_rows) for kernel in kernels)
    tried = _shares_to_try(len(kernels), num, shares, key, problem.rows.dtype)
    grid = None if lams is None else as_lams(lams, problem.rows.dtype)
    best, grid, errors = _try_all(problem, kernels, tried, grid, progress)
    if steps:
        check_whole("steps", steps)
        with jax.numpy_dtype_promotion("standard"):  # optax's line search mixes integer types
            best = _descended(problem, kernels, best, steps=int(steps))
    fit = KernelsFit(
        kernels,
        problem.solver_or_default.points(problem.rows),
        **best._asdict(),
        lams=grid,
        tried=tried,
        errors=errors,
        r2=_r2(problem, best.error),
        names=names,
        columns=column_names(X),
        targets=column_names(Y),
    )
    searched: Any = None if steps else grid  # the descent may leave the grid
    _inspect(fit, searched, names_lams=lams is not None)
    if problem.label_offset is None:
        return fit
    return replace(fit, intercept=with_constant(fit.intercept, problem.label_offset))


@where_known
def _inspect(fit: KernelsFit, lams: Any, names_lams: bool) -> None:
    """Wait until all of the fit is computed. Warn of a chosen λ at an edge of the grid, or below
    the floor.
    """
    fit = jax.block_until_ready(fit)
    inspect_lam(fit.lam, lams, np.max(fit.floor), names_lams=names_lams)


def _checked(kernels: Any, names: tuple) -> tuple[Kernel, ...]:
    """Return the kernels as a tuple, with columns by number. Raise for fewer than two kernels, and
    for given kernel matrices.
    """
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


def _in_order_of_kernels(shares: Any, names: tuple[str, ...]) -> Any:
    """Return shares with a data frame's columns in the order of the kernels, if named by these."""
    given = column_names(shares)
    if {*map(str, given)} != {*names}:
        return shares
    return by_names("shares", shares, tuple(sorted(given, key=lambda name: names.index(str(name)))))


def _shares_to_try(
    count: int, num: int, shares: Any, key: PRNGKeyArray | None, dtype: Any
) -> Float[Array, "s k"]:
    """Return the shares to try: `shares` if given, else equal shares and then random ones.

    Each row of the result sums to 1. Raise for a missing key, for another shape and for shares
    below 0.
    """
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
    if known_and(lambda shares, sums: not ((shares >= 0) & (sums > 0)).all(), shares, sums):
        raise ValueError("shares must be 0 or more, and not all 0 in a row")
    return shares / sums


class AtBestLam(NamedTuple):
    """The model at the best λ of every target, for some shares of the kernels.

    The fields mean the same as in `KernelsFit`. The last axis of each is the axis of targets.
    """

    coef: Any
    intercept: Any
    shares: Any
    lam: Any
    error: Any
    floor: Any


class Tried(NamedTuple):
    """The result of trying several rows of shares."""

    best: AtBestLam  # the best of these shares for every target
    lams: Any  # the grid, (L,)
    errors: Any  # of each row of shares and every target, (S, t)


def _try_all(
    problem: Problem,
    kernels: tuple[Kernel, ...],
    tried: Float[Array, "s k"],
    lams: Float[Array, " L"] | None,
    progress: bool,
) -> Tried:
    """Try all shares, and return the best for every target.

    One program tries all of them. With `progress`, one program is called for each, under a bar.
    """
    best: Any = None
    errors: list = []
    with progress_bar(progress, len(tried), "weights", "draw") as reached:
        for i, part in enumerate(tried[:, None] if progress else tried[None], start=1):
            new, lams, of_part = _try_in_program(problem, kernels, part, lams)
            best = new if best is None else _better(best, new)
            errors.append(of_part)
            reached(i)
    return Tried(best, lams, jnp.concatenate(errors))


def _at_best_lam(
    problem: Problem,
    kernels: tuple[Kernel, ...],
    shares: Float[Array, " k"],
    lams: Float[Array, " L"],
) -> AtBestLam:
    """Find the best λ for every target with one weighted sum of kernels.

    Args:
        problem: the data, whose kernel is replaced.
        kernels: the K kernels.
        shares: their shares, (K,).
        lams: the grid, (L,).

    Returns:
        The model of every target at its best λ.
    """
    solution = replace(problem, kernel=weighted(kernels, shares)).solution()
    errors = problem.errors(solution, lams).reshape(len(lams), -1)
    lam, error = choose_lam(lams, errors, per_target=True)
    coefficients = solution.coefficients(lam[None])
    of_targets = jnp.broadcast_to(shares[:, None], (len(shares), len(error)))
    floor = jnp.broadcast_to(solution.factor.precision_floor(), error.shape)
    coef = coefficients.coef[0]
    intercept = coefficients.intercept[0]
    return AtBestLam(coef, intercept, of_targets, lam, error, floor)


def _better(old: AtBestLam, new: AtBestLam) -> AtBestLam:
    """Return for every target the model with the smaller error."""
    wins = (new.error < old.error) | jnp.isnan(old.error)
    return jax.tree.map(lambda old, new: jnp.where(wins, new, old), old, new)


@compiled
def _try_in_program(
    problem: Problem,
    kernels: tuple[Kernel, ...],
    tried: Float[Array, "s k"],
    lams: Float[Array, " L"] | None,
) -> Tried:
    """Try the shares `tried`, (S, K), in one program, and return the best for every target.

    `lams` may be None. Then λ are a grid from the spectrum at the first shares.
    """
    if lams is None:
        at_first = replace(problem, kernel=weighted(kernels, tried[0]))
        lams = lambda_grid(at_first.solution().factor)

    def try_one(
        best: AtBestLam, shares: Float[Array, " k"]
    ) -> tuple[AtBestLam, Float[Array, " t"]]:
        new = _at_best_lam(problem, kernels, shares, lams)
        return _better(best, new), new.error

    first = _at_best_lam(problem, kernels, tried[0], lams)
    best, errors = jax.lax.scan(try_one, first, tried[1:])
    return Tried(best, lams, jnp.concatenate([first.error[None], errors]))


@compiled
def _r2(problem: Problem, error: Float[Array, " t"]) -> Float[Array, " t"]:
    """Return 1 − error / variance for each target, (t,); 0 for a target whose variance is 0."""
    Y = problem.Y.reshape(len(problem.Y), -1)
    v = problem.weights.array
    Y = Y - Y[jnp.argmax(v)]  # exactly 0 for a constant target
    variance = matmul(v, (Y - matmul(v, Y) / jnp.sum(v)) ** 2) / jnp.sum(v)
    return jnp.where(variance > 0, 1 - error / jnp.where(variance > 0, variance, 1), 0)


@pytree
class Logarithms:
    """The parameters of the descent: the logarithms of K weights, which need not sum to 1.

    λ stays fixed. Weights that sum to a at λ are the same fit as weights that sum to 1 at λ/a. So
    the sum of the weights takes the part of λ in the search.
    """

    kernels: tuple[Kernel, ...]
    lam: Any

    def unpack(self, log_shares: Float[Array, " k"]) -> tuple[Kernel, Any]:
        """Return the weighted sum of kernels, and λ."""
        return weighted(self.kernels, jnp.exp(log_shares)), self.lam


@compiled
def _descended(
    problem: Problem, kernels: tuple[Kernel, ...], best: AtBestLam, *, steps: int
) -> AtBestLam:
    """Descend from the best weights of every target along the gradient of its error.

    A weight starts at no less than a hundredth of the mean weight, so that its logarithm is finite.
    A target keeps its model if the descent does not lower its error.
    """
    optimizer = default_optimizer()

    def of_target(j: Int[Array, ""]) -> AtBestLam:
        before = jax.tree.map(lambda a: a[..., j], best)
        alone = replace(problem, Y=problem.Y.reshape(len(problem.Y), -1)[:, j])
        space = Logarithms(kernels, before.lam)
        start = jnp.log(jnp.maximum(before.shares, 0.01 / len(kernels)))
        go_on = lambda point, _: (step(point, space, alone, optimizer=optimizer), None)
        begin = first_point(start, space, alone, optimizer=optimizer)
        end, _ = jax.lax.scan(go_on, begin, length=steps)
        shares = jnp.exp(end.params)
        total = jnp.sum(shares)
        after = _at_best_lam(alone, kernels, shares / total, before.lam[None] / total)
        return _better(before, jax.tree.map(lambda a: a[..., 0], after))

    targets = jax.lax.map(of_target, jnp.arange(len(best.lam)))  # one target after another
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), targets)


def weighted(kernels: tuple[Kernel, ...], shares: Float[Numbers, " k"] | list[float]) -> Kernel:
    """Return the kernel Σₖ sharesₖ kₖ."""
    parts: Any = map(Scaled, shares, kernels)
    return reduce(Sum, parts)


@compiled
def _coefficients(fit: KernelsFit, rows: Rows) -> tuple[Float[Array, "_ t"], ...]:
    """Sum the products of features and coefficients over the rows of the expansion."""
    of_block = lambda x, coef: tuple(matmul(k.features(x).T, coef) for k in fit.kernels)
    return tuple(map(jnp.multiply, rows.sum(of_block, fit.coef), fit.shares))


@compiled
def _split(fit: KernelsFit, rows: Rows, *, block_size: int | None) -> Float[Array, "k m t"]:
    """Compute the contribution of each kernel to the predictions, (K, m, t), in blocks of rows."""

    def split_of_block(x: Any) -> Float[Array, "b k t"]:
        parts = [
            matmul(gram(kernel, x, fit.points), fit.coef * share)
            for kernel, share in zip(fit.kernels, fit.shares, strict=True)
        ]
        return jnp.stack(parts, axis=1)

    split = rows.map(split_of_block, temporaries=len(fit.coef), block_size=block_size)
    return jnp.moveaxis(split, 1, 0)
