"""Errors of rows left out: one by one, or in groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.criteria.criterion import Positive, evaluate
from jaxrls.criteria.losses import is_smooth, squared_error
from jaxrls.factors.contract import Factor
from jaxrls.problem.folds import Folds, folds
from jaxrls.support.checks import Listed
from jaxrls.support.meshes import on_any_mesh
from jaxrls.support.pytrees import pytree, static


@pytree
class LeaveOneOut(Positive):
    """Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, every row left out in turn: `loo` as a criterion.

    >>> import jaxrls as rls
    >>> rls.LeaveOneOut(rls.absolute_error).smooth
    True
    """

    loss: Callable = static(default=squared_error)
    name = "loo"
    of_losses = of_some_rows = True

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return is_smooth(self.loss)

    @property
    def total(self):
        """The loss of every row, times its weight."""
        return partial(_total, self.loss)

    def values(self, solution, lams, kernel):
        """One pass over the rows."""
        del kernel
        return mean_loss(solution, lams, self.loss, self.groups)


@pytree
class GroupsOut(Positive):
    """The same with every group of rows left out in turn: `kfold` as a criterion.

    >>> import jaxrls as rls
    >>> rls.GroupsOut(rls.folds([0, 0, 1])).name
    'kfold'
    """

    plan: Folds
    loss: Callable = static(default=squared_error)
    name = "kfold"
    of_losses = True

    smooth = LeaveOneOut.smooth
    values = LeaveOneOut.values

    @property
    def groups(self):
        """The groups."""
        return self.plan


def mean_loss(solution, lams, loss: Callable, groups: Folds | None = None) -> Float[Array, "L t"]:
    """Σ vᵢ loss(eᵢ, yᵢ) / Σ vᵢ."""
    return solution.left_out(partial(_total, loss), lams, groups) / solution.factor.weights.total


def _total(loss, residuals, labels, weights):
    return jnp.sum(weights[:, None] * loss(residuals, labels), axis=0)


@on_any_mesh
def loo(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
    *,
    loss: Callable = squared_error,
) -> Float[Array, "L *t"]:
    """Exact leave-one-out error at every λ.

    Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with e = c/p, each row of weight vᵢ left out whole.

    **Shapes**: Y (n,) or (n, t), lams (L,), or (L, t) with a λ for each target, give (L,) or (L,
    t), in the units of the loss. **Cost** O(n r L (t + 1)); n × 1024 numbers in flight, or blocks
    of rows where U is not kept. **Raises** `ValueError` for λ < 0 or shapes that do not fit.
    **Fails**: too optimistic where rows come in groups: use `kfold`. **Source**: Rifkin (lecture),
    "LOOE derivation, VII".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> rls.loo(rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False), jnp.array([1.0, 3.0]), jnp.array([1.0])).tolist()
    [5.0]
    """
    return evaluate(LeaveOneOut(loss), factor, Y, lams)


@on_any_mesh
def kfold(
    factor: Factor,
    Y: Float[Array, "n *t"] | Listed,
    lams: Float[Array, " L"] | Float[Array, "L t"] | Listed,
    groups: Folds | Any,
    *,
    loss: Callable = squared_error,
) -> Float[Array, "L *t"]:
    """Exact k-fold or leave-one-group-out error at every λ, pooled over rows.

    Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ with e_B = [P_BB]⁻¹ c_B for each group B left out; or, where that is
    cheaper (few large groups, many λ), from one smaller eigendecomposition per group, on the
    features U√s. Both are exact; the shapes decide.

    **Arguments**: `groups` (n,) labels, or what `folds(groups)` made of them outside of `jax.jit`.
    Groups of unequal size are padded to the largest. **Shapes**: Y (n,) or (n, t), lams (L,), or
    (L, t) with a λ for each target, give (L,) or (L, t). **Cost** for k groups of b rows the
    smaller of O(k L b² (r + b)) and O(k n r (r + L t)). **Raises** `ValueError` for fewer than two
    groups. **Source**: Pahikkala, Boberg and Salakoski 2006, theorem 1; for feature sums, Rifkin
    (lecture), "direct approach".

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(4), intercept=False)
    >>> rls.kfold(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), jnp.array([1.0]), [0, 0, 1, 1]).round(4).tolist()
    [2.5]
    """
    return evaluate(GroupsOut(as_folds(groups, factor.n), loss), factor, Y, lams)


def as_folds(groups, n: int) -> Folds:
    """Group labels, or what `folds` made of them, of n rows."""
    plan = groups if isinstance(groups, Folds) else folds(groups)
    if plan.rows != n:
        raise ValueError(f"groups must have {n} labels, one per row of X, and has {plan.rows}")
    return plan
