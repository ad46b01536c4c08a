"""Classification: labels as ±1 codes, probabilities, and sets of labels from held-out scores.

* `encode` and `decode` turn labels into codes and scores into labels.
* `fit_sigmoid` turns scores into probabilities.
* `label_p_values` and `conformal_labels` compute p-values of labels. A row conforms well if the fit
  without it gives its own label a high score. The p-value of a label for a new row is the share of
  rows that conform no better than the new row would with that label. The labels with p > α are a
  set of level 1 − α.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrls.core.data import Rows, Weights, compiled
from jaxrls.core.fit import Numbers
from jaxrls.core.kernels import Kernel
from jaxrls.core.linalg import Number, matmul, safe_sqrt
from jaxrls.core.support import (
    Listed,
    as_array,
    as_floats,
    as_labels,
    check_finite,
    check_labels,
    check_order,
    check_targets,
    check_weights,
    column_names,
    labels_by_names,
    public_call,
    pytree,
    value_of,
    where_known,
)
from jaxrls.front import Fit, Model, came_from_host, in_few_sizes, solution_of, with_constant
from jaxrls.uncertainty.posterior import GaussianProcess, process_for_rows
from jaxrls.uncertainty.spread import NewRows, Spread

MOST_STEPS = 200  # the most steps of Newton's method, which usually takes ten

# labels as codes
# --------------------------------------------------------------------------------------------------


def encode(labels: Any, classes: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Code class labels as ±1 targets for regression: one column for each class, or a single column
    for two classes.

    Yᵢⱼ = 1 if row i has class j, else −1. Two classes need one column only, +1 for `classes[1]`, as
    the other column would be its negative. Regression on these codes is regularized least-squares
    classification (RLSC).

    Args:
        labels: class labels (n,), numbers or strings.
        classes: all classes, if some may be absent from `labels`; by default those in `labels`.

    Returns:
        `(Y, classes)`: Y (n,) or (n, T) in float64, and the sorted classes (T,).

    Raises:
        ValueError: for labels that are not one-dimensional, are missing (NaN, None, NaT, masked,
            empty), hold a single class, or one that is not in `classes`.

    **Cost** O(n log n), on the host. **Source**: R. Rifkin, *Everything Old Is New Again*, PhD
    thesis, MIT 2002, ch. 3.

    >>> Y, classes = encode(["cat", "dog", "cat"])
    >>> Y.tolist(), classes.tolist()
    ([-1.0, 1.0, -1.0], ['cat', 'dog'])
    """
    labels = as_labels("labels", labels)
    classes = np.unique(labels if classes is None else as_labels("classes", classes))
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    if (classes[index] != labels).any():
        unknown = labels[classes[index] != labels][0]
        raise ValueError(
            f"labels must be among classes, {classes.tolist()}, and one is {unknown!r}: add it to "
            "classes"
        )
    if len(classes) < 2:
        raise ValueError(
            f"labels must hold at least two classes, and hold only {classes.tolist()[0]!r}: add "
            "rows of another class"
        )
    codes = np.where(index[:, None] == np.arange(len(classes)), 1.0, -1.0)
    return (codes[:, 1] if len(classes) == 2 else codes), classes


def decode(scores: Any, classes: Any) -> np.ndarray:
    """Return the class with the highest score for each row, from predicted scores.

    It is the inverse of `encode`.

    Args:
        scores: (n,) or (n, 1) for two classes, (n, T) otherwise. Columns of a data frame that are
            named by the classes go by name.
        classes: the classes (T,) that `encode` returned.

    Returns:
        Labels (n,).

    Raises:
        ValueError: for a number of columns that does not fit `classes`.

    **Cost** O(nT), on the host. **Source**: Rifkin 2002, ch. 3.

    >>> decode([[-0.2, 0.1, -1.0], [0.9, -1.0, -1.0]], ["a", "b", "c"]).tolist()
    ['b', 'a']
    """
    classes = np.asarray(classes)
    if classes.ndim != 1:
        raise ValueError(f"classes must be the array (T,) that encode returned, and is {classes}")
    scores = as_floats("scores", labels_by_names(scores, tuple(classes.tolist())))
    check_targets("scores", scores)
    scores = np.asarray(scores).reshape(len(scores), -1)
    columns = scores.shape[1]
    expected = 1 if len(classes) == 2 else len(classes)
    if columns != expected:
        raise ValueError(
            f"scores must have {expected} columns for {len(classes)} classes, and have {columns}"
        )
    best = scores[:, 0] > 0 if expected == 1 else np.argmax(scores, axis=1)
    return classes[best.astype(int)]


class Scored(NamedTuple):
    """Scores and codes of rows, and the weights of the rows."""

    scores: Any
    codes: Any
    weights: Any


def _scored(name: str, scores: Any, codes: Any, weights: Any) -> Scored:
    """Return the given scores, codes and weights as checked arrays.

    Columns of codes go by the names of those of scores, if both are data frames.
    """
    check_order("codes", codes, name, scores)
    check_order("weights", weights, name, scores)
    codes = labels_by_names(codes, column_names(scores))
    scores = as_array(name, scores)
    codes = as_array("codes", codes, scores.dtype)
    check_targets(name, scores)
    if codes.shape != scores.shape:
        raise ValueError(
            f"codes must have shape {scores.shape}, as {name} has, and has shape {codes.shape}"
        )
    check_labels(name, scores)
    check_finite("codes", codes)
    return Scored(scores, codes, Weights.of(weights, len(scores), scores.dtype).array)


# probabilities
# --------------------------------------------------------------------------------------------------


@pytree
class Sigmoid:
    """A sigmoid that maps scores to probabilities; `fit_sigmoid` makes it.

        P(+1 | score) = 1 / (1 + exp(−slope · score − offset))

    Args:
        slope: (), or (t,) for t columns of scores.
        offset: (), or (t,) for t columns of scores.

    >>> import jax.numpy as jnp
    >>> from jaxrls.classes import Sigmoid
    >>> Sigmoid(jnp.array(2.0), jnp.array(0.0))(jnp.array([0.0])).tolist()
    [0.5]
    """

    slope: Float[Numbers, "*t"]
    offset: Float[Numbers, "*t"]

    @public_call(fitted="self.slope")
    def __call__(self, scores: Float[Array, "m *t"] | Listed) -> Float[Numbers, "m *t"]:
        """Return the probabilities of +1, shaped as the scores (m,) or (m, t).

        They have the precision of the slope.
        """

        padded = came_from_host(scores) and any(np.shape(scores)[:1])  # not for a single number
        scores = as_array("scores", scores, self.slope.dtype)
        return in_few_sizes(_of_scores, (self,), (scores,), from_host=padded)


@compiled
def _of_scores(sigmoid: Sigmoid, scores: Float[Array, "m *t"]) -> Float[Array, "m *t"]:
    """Return the probabilities of +1, shaped as the scores."""
    return jax.nn.sigmoid(scores * sigmoid.slope + sigmoid.offset)


@public_call(data="scores")
def fit_sigmoid(
    scores: Float[Array, "n *t"] | Listed,
    codes: Float[Array, "n *t"] | Listed,
    weights: Float[Array, " n"] | Listed | None = None,
) -> Sigmoid:
    """Fit the sigmoid that turns scores into probabilities, by maximum likelihood on held-out
    scores: Platt's scaling.

    Each column of scores has its own sigmoid. Slope ≥ 0 and offset minimise

        −Σ vᵢ (tᵢ log pᵢ + (1 − tᵢ) log(1 − pᵢ)) with pᵢ = 1/(1 + exp(−slope · sᵢ − offset))

    The targets are t = (N₊ + 1)/(N₊ + 2) for codes +1 and 1/(N₋ + 2) for codes −1. N₊ and N₋ are
    the sums of weights of each, so that no slope is infinite. Held-out scores without information
    would have a negative slope, since a class has a lower mean without one of its rows. The slope
    is then 0, and every row has the share of +1 as its probability.

    Args:
        scores: held-out scores (n,) or (n, t), such as `Y − fit.loo_residuals`.
        codes: ±1 codes as of `encode`, shaped as the scores.
        weights: sample weights (n,); by default all are 1.

    Returns:
        A `Sigmoid`, with slope and offset () or (t,).

    Raises:
        ValueError: for shapes that do not fit, for NaN or infinity, and for codes that are not ±1.

    **Cost** O(n t) for each step of Newton's method, which takes some ten. The result can be
    differentiated once. **Fails**: for the fit's own scores of its training rows, which are larger
    than those of new rows. **Source**: J. Platt 2000, *Probabilities for SV machines*; Lin, Lin and
    Weng 2007; the length of steps: Sun and Tran-Dinh 2019, §3, at ν = 2.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> scores = jnp.array([-2.0, -1.0, 0.5, -0.5, 1.0, 2.0])
    >>> sigmoid = rls.classes.fit_sigmoid(scores, jnp.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]))
    >>> [round(float(p), 2) for p in sigmoid(jnp.array([-1.0, 0.0, 1.0]))]
    [0.35, 0.5, 0.65]
    """
    s, c, v = _scored("scores", scores, codes, weights)
    _check_two_values(c)
    slope, offset = _fit_columns(s.reshape(len(s), -1), c.reshape(len(s), -1), v)
    return Sigmoid(slope.reshape(s.shape[1:]), offset.reshape(s.shape[1:]))


@where_known
def _check_two_values(codes: Any) -> None:
    """Raise for codes other than ±1, such as numbers of classes. 0 stands for −1."""
    codes = np.asarray(codes)
    others = codes[~np.isin(codes, (-1, 0, 1))]
    if others.size:
        raise ValueError(f"codes must be ±1, and include {others[0]:.3g}: use encode(labels)")


def class_probabilities(each: Float[Array, "m *t"] | Listed) -> Any:
    """Return probabilities of all classes that add up to 1, from one probability for each class
    against the rest.

    The given probabilities need not add up to 1. A single column p, for two classes, gives
    (1 − p, p). Several columns give pⱼ / Σ p, and 1/T for all classes if every p is 0.

    Args:
        each: (m,) or (m, 1) for two classes, (m, T) otherwise, as a `Sigmoid` gives them.

    Returns:
        The probabilities, (m, 2) or (m, T).

    Raises:
        ValueError: for other shapes, and for NaN or infinity.

    **Cost** O(m T). **Source**: Zadrozny and Elkan 2002, §5.

    >>> import numpy as np, jaxrls as rls
    >>> each = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 0.0]])
    >>> rls.classes.class_probabilities(each).round(2).tolist()
    [[0.5, 0.25, 0.25], [0.33, 0.33, 0.33]]
    """
    xp: Any = jnp if isinstance(each, jax.Array) else np
    p = as_floats("each", each)
    check_targets("each", p)
    check_finite("each", p)
    if p.ndim == 1 or p.shape[1] == 1:
        return xp.stack([1 - p.reshape(-1), p.reshape(-1)], axis=1)
    p = p + xp.finfo(p.dtype).tiny  # so that all are equal where all are 0
    return p / xp.sum(p, axis=1, keepdims=True)


@compiled
@partial(jax.vmap, in_axes=(1, 1, None))
def _fit_columns(
    scores: Float[Array, " n"], codes: Float[Array, " n"], v: Float[Array, " n"]
) -> tuple[Number, Number]:
    """Return slope and offset for every column, by Newton's method in standardised scores.

    One last step after convergence carries the derivatives.
    """
    total = jnp.sum(v)
    centre = jnp.sum(v * scores) / total
    spread = safe_sqrt(jnp.sum(v * (scores - centre) ** 2) / total)
    flat = spread <= 10 * jnp.finfo(scores.dtype).eps * jnp.abs(centre)
    spread = jnp.where(flat, 1, spread)
    positive, negative = (jnp.sum(jnp.where(part, v, 0)) for part in (codes > 0, codes <= 0))
    targets = jnp.where(codes > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))
    share = jax.scipy.special.logit(jnp.sum(v * targets) / total)
    start = jnp.stack([jnp.zeros_like(share), share])
    data = jnp.where(flat, 0, (scores - centre) / spread), targets, v
    best = _newton(*jax.lax.stop_gradient((data, start)))
    best = best - _step(data, best)[0]
    slope, offset = jnp.where(best[0] < 0, start, best)
    return slope / spread, offset - slope / spread * centre


def _newton(data: tuple, start: Float[Array, "2"]) -> Float[Array, "2"]:
    """Take steps of Newton's method until they are short, and return the point.

    Steps are damped by log(1 + r)/r, with r the largest change of a score's logit. So the method
    converges from every start.
    """
    limits = jnp.finfo(start.dtype)

    def is_moving(state: tuple) -> Bool[Array, ""]:
        number, change, _ = state
        return (number < MOST_STEPS) & (change > limits.eps**0.5)

    def next_point(state: tuple) -> tuple:
        number, _, point = state
        step, r = _step(data, point)
        return number + 1, r, point - step * jnp.log1p(r) / jnp.maximum(r, limits.tiny)

    start_state = 0, jnp.full_like(start[0], jnp.inf), start
    _, _, point = jax.lax.while_loop(is_moving, next_point, start_state)
    return point


def _step(data: tuple, point: Float[Array, "2"]) -> tuple[Float[Array, "2"], Number]:
    """Return the step H⁻¹g in slope and offset, and the largest change of a logit by it."""
    z, targets, v = data
    design = jnp.stack([z, jnp.ones_like(z)], axis=1)
    p = jax.nn.sigmoid(matmul(design, point))
    H = matmul(design.T, (v * p * (1 - p))[:, None] * design)
    H += jnp.finfo(z.dtype).tiny * jnp.eye(2, dtype=z.dtype)
    step = jnp.linalg.solve(H, matmul(design.T, v * (p - targets)))
    return step, jnp.max(jnp.where(v > 0, jnp.abs(matmul(design, step)), 0))


# sets of labels
# --------------------------------------------------------------------------------------------------


@public_call(data="left_out")
def label_p_values(
    left_out: Float[Array, "n *T"] | Listed,
    codes: Float[Array, "n *T"] | Listed,
    scores: Float[Array, "m *T"] | Listed,
    weights: Float[Array, " n"] | Listed | None = None,
) -> Float[Numbers, "m _"]:
    """Compute the p-value of every label for new rows, by the jackknife.

    Held-out scores are compared with the scores of new rows by the fit to all rows:

        p = (1 + Σ vᵢ [s₋ᵢ(own label) ≤ s(label)]) / (1 + Σ vᵢ)

    This is the share of rows whose own label has no higher score by the fit without them.

    Args:
        left_out: held-out scores (n,) or (n, 1) for two classes, else (n, T), such as
            `Y − fit.loo_residuals`, of single rows or of groups.
        codes: ±1 codes as of `encode`, shaped as `left_out`.
        scores: scores of new rows (m,), (m, 1) or (m, T).
        weights: sample weights (n,); by default all are 1.

    Returns:
        p-values (m, 2) or (m, T).

    Raises:
        ValueError: for shapes that do not fit, for NaN or infinity, and for codes that are not ±1
            with one +1 a row.

    **Cost** O((n + m T) log n). **Fails**: there is no guarantee for a finite number of rows, as
    the fit to all rows differs from the fits without a row. For a stable fit, as with a large λ,
    the share of sets that hold the true label tends to 1 − α as n grows, for labels with p > α.
    `conformal_labels` has the guarantee. **Source**: Barber, Candès, Ramdas and Tibshirani 2021, §1
    and §5; Steinberger and Leeb 2023.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> left_out, codes = jnp.array([-1.0, -0.5, 0.5, 1.0]), jnp.array([-1.0, -1.0, 1.0, 1.0])
    >>> p = rls.classes.label_p_values(left_out, codes, jnp.array([-2.0, 0.7]))
    >>> (5 * p).round().tolist()  # of the labels −1 and +1
    [[5.0, 1.0], [1.0, 3.0]]
    """
    s, c, v = _scored("left_out", left_out, codes, weights)
    scores = labels_by_names(scores, column_names(left_out))
    new = as_array("scores", scores, s.dtype)
    check_targets("scores", new)
    if new.shape[1:] != s.shape[1:]:
        raise ValueError(
            f"scores must have shape {(len(new), *s.shape[1:])}, as left_out has shape {s.shape}, "
            f"and has shape {new.shape}"
        )
    check_finite("scores", new)
    _check_codes(c)
    conforming = _of_own_label(s, c)
    from_host = came_from_host(scores)
    return in_few_sizes(_shares_below, (conforming, v), (new,), from_host=from_host)


@compiled
def _shares_below(
    conforming: Float[Array, " n"], v: Float[Array, " n"], scores: Float[Array, "m *T"]
) -> Float[Array, "m _"]:
    """Return the p-values (1 + Σ vᵢ [conformingᵢ ≤ score]) / (1 + Σ vᵢ) of the scores of new rows."""
    order = jnp.argsort(conforming)
    weight = jnp.concatenate([jnp.zeros(1, v.dtype), jnp.cumsum(v[order])])
    above = jnp.searchsorted(conforming[order], _columns(scores), side="right")
    return (1 + weight[above]) / (1 + weight[-1])


@pytree
class ConformalLabels:
    """p-values of labels for new rows, valid for any number of rows; `conformal_labels` makes it.

    Args:
        model: the `Model` of the fit.
        process: its Gaussian process, from which covariances come.
        rows: the n rows, prepared for covariances with new ones.
        variance: the posterior variance c(xᵢ, xᵢ) at each row, (n,).
        label: the index of each row's label, (n,).
        residuals: 1 minus the score of each row's own label, by the fit to all rows, (n,).
        weights: sample weights, without the factors by label, (n,).
        label_weights: the factors of the weights by label, (T,).

    >>> import numpy as np, jaxrls as rls
    >>> X, codes = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> fit = rls.fit(rls.Linear(), X, codes, lams=[0.5])
    >>> rls.classes.conformal_labels(fit, X, codes).p_values([[1.5]]).tolist()
    [[0.2, 0.6]]
    """

    model: Model
    process: GaussianProcess
    rows: NewRows
    variance: Float[Numbers, " n"]
    label: Int[Numbers, " n"]
    residuals: Float[Numbers, " n"]
    weights: Float[Numbers, " n"]
    label_weights: Float[Numbers, " T"]

    @public_call(fitted="self.model.coef")
    def p_values(self, X: Any, *, block_size: int | None = None) -> Any:
        """Return the p-value of every label for new rows.

        Args:
            X: new rows (m, d), dense or a source of `Rows`.
            block_size: how many new rows are processed at a time.

        Returns:
            p-values (m, T), with T = 2 for a single column of codes.

        Raises:
            ValueError: as `Model.predict`.

        **Cost** O(n (r + d)) a row, as products of matrices, and O(n T), in blocks of rows.
        """
        rows, _ = self.model.read(X)
        from_host = came_from_host(X)
        scores = self.model.of_rows(rows, None, None, from_host=from_host)
        program = partial(_p_values, block_size=block_size)
        unnamed = replace(self, model=self.model.unnamed)
        return in_few_sizes(program, (unnamed,), (rows, scores), from_host=from_host)


@public_call(fitted="fit.model.coef")
def conformal_labels(
    fit: Fit, X: Any, codes: Any, weights: Any = None, label_weights: Any = None
) -> ConformalLabels:
    """Prepare p-values of labels by full conformal prediction with leave-one-out scores, exact in
    closed form.

    Each new row is added to the data with each label in turn, but nothing is fitted again. Let f be
    the fit to all rows, and c the posterior covariance of f + b. A further row x, with the code
    of its label, changes the fit at row i to

        f(xᵢ) + gᵢ (code − f(x)),  gᵢ = c(xᵢ, x)/(c(x, x) + λ)

    The residual of this fit at row i, divided by 1 − vᵢ (c(xᵢ, xᵢ) − gᵢ c(xᵢ, x))/λ, is the
    held-out residual of row i.

    **Guarantee**: the set of labels with p > α holds the true label with probability 1 − α or more,
    for every n and every distribution. This is a probability over draws of all rows, not for each
    x. Rows must be exchangeable, and must not have chosen kernel, λ and landmarks. Rows with
    different weights are not covered.

    Args:
        fit: a `Fit` that kept its solution.
        X: its rows (n, d), dense.
        codes: its ±1 codes (n,) or (n, T), as of `encode`.
        weights: its sample weights (n,), without the factors by label; by default all are 1.
        label_weights: factors (T,) ≥ 0 of the weights by label, which are also the weights of a new
            row of each label; by default 1.

    Returns:
        A `ConformalLabels`, whose method `p_values(X)` returns the p-values of new rows.

    Raises:
        ValueError: for a fit that kept no solution, shapes that do not fit, codes that are not ±1
            with one +1 a row, weights that are negative or not finite, and rows, codes or weights
            with other sums than those that were fitted.

    **Cost** O(n² r) once, and memory of n·r numbers. **Source**: Vovk, Gammerman and Shafer 2005,
    ch. 2, with the deleted residuals of their ridge regression confidence machine.

    >>> import numpy as np, jaxrls as rls
    >>> X, codes = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    >>> fit = rls.fit(rls.Linear(), X, codes, lams=[0.5])
    >>> (rls.classes.conformal_labels(fit, X, codes).p_values([[1.5], [-3.0]]) > 0.25).tolist()
    [[False, True], [True, False]]
    """
    process = process_for_rows(fit)
    model = fit.model
    if model.free is not None:
        raise ValueError("conformal_labels needs a fit without fixed_effects: leave them out")
    points = model.read(X)[0].dense()
    n = len(points)
    dtype = points.dtype
    codes = as_array("codes", codes, dtype)
    wanted = (n, *model.coef.shape[1:])
    if codes.shape != wanted:
        raise ValueError(
            f"codes must be those that were fitted, {wanted}, and have shape {codes.shape}"
        )
    _check_codes(codes)
    v = Weights.of(weights, n, dtype).array
    label = jnp.argmax(_columns(codes), axis=1)
    ones = jnp.ones_like(_columns(codes)[0])
    u = ones if label_weights is None else as_array("label_weights", label_weights, dtype)
    check_weights(u, len(ones), "label_weights", "label")
    _check_fitted(fit, points, codes, v * u[label])
    residuals = 1 - _of_own_label(jnp.asarray(model.predict(points)), codes)
    rows, variance = _with_variance(process.spread, model.kernel, points)
    return ConformalLabels(model, process, rows, variance, label, residuals, v, u)


def _check_fitted(fit: Fit, X: Any, codes: Any, v: Any) -> None:
    """Raise if rows, codes or weights have other sums than those of the fit.

    The order of rows does not matter. A fit after `load` or `update` has only its weights, and rows
    that are not one dense array are not compared.
    """
    total = v.sum()
    _check_sums("weights", total, solution_of(fit).factor.weights.total, total)
    problem = fit.kept.problem
    if problem is None:
        return
    of_fit = problem.weights.array
    offset = problem.label_offset
    labels = problem.Y if offset is None else with_constant(problem.Y, offset)
    _check_sums("codes", matmul(v, codes), matmul(of_fit, labels), total)
    rows = problem.rows.points if problem.rows.in_memory else None
    if isinstance(rows, jax.Array | np.ndarray):
        _check_sums("X", matmul(v, X), matmul(of_fit, rows), matmul(v, abs(X)))


@where_known
def _check_sums(name: str, given: Any, fitted: Any, sizes: Any) -> None:
    """Raise if sums of an argument differ from those of the fit by more than rounding.

    Args:
        name: the argument in the message.
        given: its sums, weighted.
        fitted: those of the fit.
        sizes: the sums of sizes, to which rounding is relative.
    """
    given, fitted, sizes = map(np.asarray, (given, fitted, sizes))
    eps = max(np.finfo(part.dtype).eps for part in (given, fitted))
    if (abs(given - fitted) > eps**0.5 * sizes).any():
        raise ValueError(
            f"{name} must be of the rows that were fitted, and have other sums: give X, codes and "
            "weights of the fit, or held-out scores to label_p_values"
        )


@where_known
def _check_codes(codes: Any) -> None:
    """Raise unless all codes are ±1 and one code is +1 in each row of several columns."""

    def wrong(_: Any, codes: Any) -> Any:
        columns: Any = _columns(codes)
        return (abs(columns) != 1).any(axis=1) | ((columns > 0).sum(axis=1) != 1)

    if (differs := value_of(wrong, codes)).any():
        raise ValueError(
            "codes must be ±1, with one +1 in each row of several columns, and row "
            f"{differs.argmax()} differs: use encode(labels)"
        )


def _columns(scores: Float[Numbers, "n *T"]) -> Float[Numbers, "n _"]:
    """Return one column of scores for each label, from (n, T), or from (n,) or (n, 1) for two
    labels.

    A single column s of two labels becomes the columns −s and s.
    """
    if scores.ndim == 2 and scores.shape[1] > 1:
        return scores
    return jnp.stack([-scores.reshape(-1), scores.reshape(-1)], axis=1)


def _of_own_label(scores: Float[Array, "n *T"], codes: Float[Array, "n *T"]) -> Float[Array, " n"]:
    """Return the score of the label that each row has."""
    return jnp.sum(jnp.where(_columns(codes) > 0, _columns(scores), 0), axis=1)


@compiled
def _with_variance(
    spread: Spread, kernel: Kernel, points: Float[Array, "n d"]
) -> tuple[NewRows, Float[Array, " n"]]:
    """Return rows prepared for covariances with new rows, and their posterior variances."""
    rows = spread.new_rows(kernel, points)
    return rows, spread.variances(kernel, rows)


@compiled
def _p_values(
    labels: ConformalLabels, rows: Rows, scores: Float[Numbers, "m *T"], *, block_size: int | None
) -> Float[Array, "m _"]:
    """Return the p-values of new rows, computed in blocks of rows."""
    of_block = partial(_p_values_of_block, labels)
    temporaries = 6 * len(labels.weights)
    columns = _columns(jnp.asarray(scores))
    return rows.map(of_block, columns, temporaries=temporaries, block_size=block_size)


def _p_values_of_block(
    labels: ConformalLabels, x: Any, scores: Float[Array, "b T"]
) -> Float[Array, "b T"]:
    """Return the p-values of a block of new rows, from their scores by the fit to all rows."""
    kernel = labels.model.kernel
    spread = labels.process.spread
    v = labels.weights
    rows = spread.new_rows(kernel, x)
    c = spread.between(kernel, rows, labels.rows)
    variance = spread.variances(kernel, rows)
    # A row that equals the new row has the same residual. Two formulas compute it, so that the two
    # differ by rounding.
    tie = float(jnp.finfo(v.dtype).eps) ** 0.75

    def of_label(label: Int[Array, ""]) -> Float[Array, " b"]:
        residuals = _left_out_with(labels, label, c, variance, scores)
        new = 1 - scores[:, label]
        as_odd = residuals >= (new - tie * (1 + jnp.abs(new)))[:, None]
        return (1 + jnp.sum(jnp.where(as_odd, v, 0), axis=1)) / (1 + jnp.sum(v))

    return jax.lax.map(of_label, jnp.arange(scores.shape[1])).T


def _left_out_with(
    labels: ConformalLabels,
    label: Int[Array, ""],
    c: Float[Array, "b n"],
    variance: Float[Array, " b"],
    scores: Float[Array, "b T"],
) -> Float[Numbers, "b n"]:
    """Return 1 minus the held-out score of each row's own label, by fits with a new row.

    Each fit is to all other rows and a new row of the label `label`. `c` is the covariance of the
    new row with all rows, and `variance` its own variance.
    """
    lam = labels.process.lam
    u = labels.label_weights
    g = c / (variance + lam / u[label])[:, None]
    rest = 1 - labels.weights * u[labels.label] / lam * (labels.variance - g * c)
    moved = g * (jnp.where(labels.label == label, 1, -1) - scores[:, labels.label])
    return (labels.residuals - moved) / jnp.maximum(rest, float(jnp.finfo(rest.dtype).eps))
