"""Validation criteria, all `(factor, Y, lams, …) -> (L,)` or `(L, t)`, for every route, weighted or not, with or without intercept."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrls._blocks import rows_matmul
from jaxrls._checks import check_matrix, check_targets, check_weights, is_concrete
from jaxrls._factor import Factor, factor_covariance
from jaxrls._linalg import matmul, safe_sqrt
from jaxrls._losses import squared_error
from jaxrls._path import as_grid, drop_target_axis, mean_left_out, sweep
from jaxrls._pytree import pytree, static
from jaxrls._sparse import SparseRows
from jaxrls._weighted import Weighted, unscale


def loo(factor: Weighted, Y: Float[Array, "n *t"], lams: Float[Array, " L"], *, loss: Callable = squared_error) -> Float[Array, "L *t"]:
    """Exact leave-one-out error at every λ.

    Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with e = c/p, each row of weight vᵢ left out whole.

    **Shapes**: Y (n,) or (n, t), lams (L,) give (L,) or (L, t), in the units of the loss. **Cost** O(n r L (t + 1)); only blocks of
    rows × 256 numbers in flight. **Raises** `ValueError` for λ ≤ 0 or shapes that do not fit. **Fails**: too optimistic where rows
    come in groups: use `kfold`. **Source**: Rifkin (lecture), "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.loo(rls.factor_gram(jnp.eye(2)), jnp.array([1.0, 3.0]), jnp.array([1.0])).tolist()
    [5.0]
    """
    lams, target = as_grid(factor, lams), factor.project(Y)
    errors = sweep(lambda lam: mean_left_out(factor, target, lam, loss), lams, target.Y.shape[1])
    return drop_target_axis(Y, errors)[0]


def gcv(factor: Weighted, Y: Float[Array, "n *t"], lams: Float[Array, " L"]) -> Float[Array, "L *t"]:
    """Generalised cross-validation at every λ: leave-one-out with every leverage replaced by their mean.

    GCV(λ) = (Σ vᵢ rᵢ² / Σ vᵢ) / (1 − df(λ)/n)², with r the training residuals and n the number of rows of positive weight.
    Unlike LOO it does not depend on the basis the data are written in.

    **Shapes**: Y (n,) or (n, t), lams (L,) give (L,) or (L, t), squared units of Y. **Cost** O(r L t). **Raises** as `loo`.
    **Source**: Golub, Heath and Wahba 1979, eq. 1.4.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.gcv(rls.factor_gram(jnp.eye(2)), jnp.array([1.0, 3.0]), jnp.array([1.0])).tolist()
    [5.0]
    """
    lams, target = as_grid(factor, lams), factor.project(Y)

    def at(lam):
        rows = factor.num_rows() + float(factor.intercept_fitted)
        return factor.residual_norm(target, lam) / factor.total_weight() / (factor.trace(target, lam) / rows) ** 2

    return drop_target_axis(Y, jax.vmap(at)(lams))[0]


def log_marginal_likelihood(factor: Weighted, Y: Float[Array, "n *t"], lams: Float[Array, " L"]) -> Float[Array, "L *t"]:
    """Log evidence of the Gaussian process y ~ N(0, K + λ V⁻¹), V the weights: larger is better.

    −½ yᵀG⁻¹y − ½ log |G| − (n/2) log 2π. With an intercept, the restricted likelihood under a flat prior on it. The noise level is λ
    and the signal's scale is the kernel's: unlike LOO, the choice depends on both.

    **Shapes**: Y (n,) or (n, t), lams (L,) give (L,) or (L, t), in nats. **Cost** O(r L t). **Raises** as `loo`.
    **Source**: Rasmussen and Williams 2006, eq. 2.30; with intercept, Patterson and Thompson 1971.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> lml = rls.log_marginal_likelihood(rls.factor_gram(jnp.eye(1)), jnp.array([0.0]), jnp.array([1.0]))
    >>> round(float(lml[0]), 4)
    -1.2655
    """
    lams, target = as_grid(factor, lams), factor.project(Y)
    constant = -0.5 * factor.num_rows() * jnp.log(2 * jnp.pi)
    if factor.weights is not None:
        constant = constant + 0.5 * jnp.sum(jnp.where(factor.weights > 0, jnp.log(jnp.where(factor.weights > 0, factor.weights, 1)), 0))
    if factor.intercept_fitted:
        constant = constant - 0.5 * jnp.log(factor.total_weight())

    def at(lam):
        return constant - 0.5 * (factor.quadratic(target, lam) + factor.logdet(target, lam))

    return drop_target_axis(Y, jax.vmap(at)(lams))[0]


def holdout(
    factor: Weighted,
    Y: Float[Array, "n *t"],
    lams: Float[Array, " L"],
    design: Float[Array, "m q"] | SparseRows,
    Y_holdout: Float[Array, "m *t"],
    *,
    weights: Float[Array, " m"] | None = None,
    loss: Callable = squared_error,
) -> Float[Array, "L *t"]:
    """Error on held-out rows at every λ.

    Σⱼ vⱼ loss(yⱼ − f_λ(xⱼ), yⱼ) / Σⱼ vⱼ over the held-out rows, whose predictions are design @ coef(λ) + b(λ).

    **Shapes**: `design` (m, q) is what multiplies the coefficients: `gram(kernel, X_holdout, X)` on the gram route,
    `kernel.features(X_holdout)` on the others. Y_holdout (m,) or (m, t), as Y. Gives (L,) or (L, t). **Cost** O((n + m) q L t).
    **Raises** `ValueError` for shapes that do not fit. **Source**: Rifkin (lecture), "Types of Validation".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> X, X_new = jnp.array([[1.0], [2.0]]), jnp.array([[3.0]])
    >>> factor = rls.factorize(rls.Linear(), X, route="gram")
    >>> rls.holdout(factor, jnp.array([2.0, 4.0]), jnp.array([5.0]), rls.gram(rls.Linear(), X_new, X), jnp.array([6.0])).round(4).tolist()
    [9.0]
    """
    lams, target = as_grid(factor, lams), factor.project(Y)
    check_matrix("design", design)
    check_targets("Y_holdout", Y_holdout, design.shape[0])
    if jnp.ndim(Y_holdout) != jnp.ndim(Y):
        raise ValueError(f"Y_holdout must have as many axes as Y: they have shapes {Y_holdout.shape} and {jnp.shape(Y)}")
    labels = jnp.asarray(Y_holdout, factor.dtype).reshape(design.shape[0], -1)
    weight = jnp.ones(design.shape[0], factor.dtype) if weights is None else jnp.asarray(weights, factor.dtype)
    check_weights(weight, design.shape[0])

    def at(lam):
        residual = labels - rows_matmul(design, factor.coef(target, lam)) - factor.intercept(target, lam)
        return matmul(weight, loss(residual, labels)) / jnp.sum(weight)

    return drop_target_axis(Y, sweep(at, lams, target.Y.shape[1]))[0]


@pytree
class Folds:
    """Row numbers by fold, padded to the largest: what `kfold` needs of group labels, with shapes that `jax.jit` can know.

    `inside` and `outside` are the rows of each group and all others, their masks 1 where a number counts and 0 where it pads.

    >>> import jaxrls as rls
    >>> rls.folds(["a", "b", "a"]).inside_mask.tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    inside: Int[Array, "k b"]
    inside_mask: Float[Array, "k b"]
    outside: Int[Array, "k a"]
    outside_mask: Float[Array, "k a"]
    rows: int = static()


def folds(groups) -> Folds:
    """Read group labels into `Folds`: on the host, before `jax.jit`.

    **Arguments**: `groups` (n,), any labels; rows of equal label are left out together. **Raises** `ValueError` unless there are
    at least two groups, or inside `jax.jit`. **Cost** O(n k). **Source**: as `kfold`.

    >>> folds([0, 1, 0]).inside.tolist()
    [[0, 2], [1, 1]]
    """
    if not is_concrete(groups):
        raise ValueError("groups has no values inside jax.jit: call jaxrls.folds(groups) outside, and pass its result")
    groups = np.asarray(groups)
    if groups.ndim != 1 or groups.size == 0:
        raise ValueError(f"groups must have shape (n,), one label per row, and has shape {groups.shape}")
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError("groups must be labels that can be sorted, with none missing, and holds NaN")
    try:
        labels, member = np.unique(groups, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups must be labels that can be sorted, with none missing: {error}") from None
    if len(labels) < 2:
        raise ValueError(f"groups holds one label only, {labels.tolist()[0]!r}: leaving it out would leave nothing to fit")
    inside = [np.flatnonzero(member == k) for k in range(len(labels))]
    outside = [np.flatnonzero(member != k) for k in range(len(labels))]
    return Folds(*_pad(inside), *_pad(outside), groups.size)


def _pad(lists) -> tuple[Array, Array]:
    width = max(map(len, lists))
    index = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in lists])
    mask = np.stack([np.arange(width) < len(rows) for rows in lists]).astype(np.float32)
    return jnp.asarray(index.astype(np.int32)), jnp.asarray(mask)


def kfold(
    factor: Weighted, Y: Float[Array, "n *t"], lams: Float[Array, " L"], groups, *, loss: Callable = squared_error
) -> Float[Array, "L *t"]:
    """Exact k-fold or leave-one-group-out error at every λ, pooled over rows.

    Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with e_B = [P_BB]⁻¹ c_B for each group B left out; or, where that is cheaper (few large groups, many λ),
    from one smaller eigendecomposition per group, on the features U√s. Both are exact; the shapes decide.

    **Arguments**: `groups` (n,) labels, or `folds(groups)` inside `jax.jit`. Groups of unequal size are padded to the largest.
    **Shapes**: Y (n,) or (n, t), lams (L,) give (L,) or (L, t). **Cost** for k groups of b rows the smaller of
    O(k L b² (r + b)) and O(k n r (r + L t)). **Raises** `ValueError` for fewer than two groups. **Source**: Pahikkala, Boberg and
    Salakoski 2006, theorem 1; for feature sums, Rifkin (lecture), "direct approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factor_gram(jnp.eye(4))
    >>> rls.kfold(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), jnp.array([1.0]), [0, 0, 1, 1]).round(4).tolist()
    [2.5]
    """
    lams, target = as_grid(factor, lams), factor.project(Y)
    plan = groups if isinstance(groups, Folds) else folds(groups)
    if plan.rows != factor.n:
        raise ValueError(f"groups must have {factor.n} labels, one per row of X, and has {plan.rows}")
    total = (_refit if _refitting_is_cheaper(factor, plan, lams.shape[0]) else _closed_form)(factor, target, lams, plan, loss)
    return drop_target_axis(Y, total / factor.total_weight())[0]


def _refitting_is_cheaper(factor, plan: Folds, L: int) -> bool:
    if not isinstance(factor, Factor):
        return False
    b, a, r = plan.inside.shape[1], plan.outside.shape[1], factor.s.shape[0]
    closed = L * (2 * b * b * r + b**3)
    return 2 * a * r * min(a, r) + 12 * min(a, r) ** 3 < closed


def _closed_form(factor, target, lams, plan, loss):
    state, root = factor.prepare_groups(target), factor.root_weights
    mask = plan.inside_mask.astype(factor.dtype)
    weight = jnp.ones(factor.n, factor.dtype) if factor.weights is None else factor.weights

    def at(lam):
        def left_out(rows, mask):
            block, scaled = factor.group_system(state, target, rows, mask, lam)
            e = unscale(jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(block), True), scaled), None if root is None else root[rows])
            return matmul(mask * weight[rows], loss(e, target.Y[rows]))

        return jnp.sum(jax.vmap(left_out)(plan.inside, mask), axis=0)

    return sweep(at, lams, max(target.Y.shape[1], plan.inside.shape[1]))


def _refit(factor, target, lams, plan, loss):
    """Leave each group out by an eigendecomposition of the rest, in the factor's own features ψ = U√s/√v."""
    weights = jnp.ones(factor.n, factor.dtype) if factor.weights is None else factor.weights
    root = safe_sqrt(weights)
    features = factor.left() * safe_sqrt(factor.s)
    features = jnp.where(root[:, None] > 0, features / jnp.where(root > 0, root, 1)[:, None], 0)

    def left_out(fold):
        inside, mask, outside, outside_mask = fold
        left = factor.features_without(features, inside, mask.astype(factor.dtype))
        rest = factor_covariance(
            left[outside], weights=weights[outside] * outside_mask.astype(factor.dtype), intercept=factor.intercept_fitted
        )
        held = weights[inside] * mask.astype(factor.dtype)
        labels, seen = target.Y[inside], rest.project(target.Y[outside])

        def at(lam):
            e = labels - matmul(left[inside], rest.coef(seen, lam)) - rest.intercept(seen, lam)
            return matmul(held, loss(e, labels))

        return sweep(at, lams, target.Y.shape[1])

    errors = jax.lax.map(left_out, (plan.inside, plan.inside_mask, plan.outside, plan.outside_mask))
    return jnp.sum(errors, axis=0)
