"""Errors of rows left out: one by one, or in groups."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxrls.criteria.criterion import Positive
from jaxrls.criteria.losses import check_loss, is_smooth, squared_error
from jaxrls.problem.folds import Folds, as_folds, folds
from jaxrls.support.pytrees import pytree, static


@pytree
class LeaveOneOut(Positive):
    """Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, exact, with every row, or every group of rows, left out in turn.

    One by one e = c/p, c = P̃y, p = diag P̃, P̃ the inverse of K̃ + λI; of a group e_B = [P̃_BB]⁻¹c_B.
    Called, `criterion(factor, Y, lams)`, it gives the error at every λ; in `fit(criterion=…)` it is
    what λ is chosen by. `loo` is the one of squared errors, `kfold(groups)` that of groups.

    Args:
        loss: what is averaged: `squared_error`, `absolute_error`, `zero_one_loss`, or any function
            (residuals (n, t), labels (n, t)) -> (n, t).
        groups: labels (n,) of rows that are left out together, or what `folds` made of them.

    **Cost** O(n r L (t + 1)); for k groups of b rows the smaller of O(k L b² (r + b)) and
    O(k n r (r + L t)). **Fails**: without groups too optimistic where rows come in groups.
    **Source**: Rifkin (lecture), "LOOE derivation, VII"; Pahikkala, Boberg and Salakoski 2006,
    theorem 1.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> rls.LeaveOneOut(rls.absolute_error)(factor, jnp.array([1.0, 3.0]), [1.0]).tolist()
    [2.0]
    """

    loss: Callable = static(default=squared_error)
    groups: Any = None  # `Folds`, which labels are made
    of_losses = True

    def __post_init__(self):
        check_loss(self.loss)
        if self.groups is not None and not isinstance(self.groups, Folds):
            object.__setattr__(self, "groups", folds(self.groups))

    @property
    def name(self):  # type: ignore[override]
        """By what is left out."""
        return "loo" if self.groups is None else "kfold"

    @property
    def of_some_rows(self):  # type: ignore[override]
        """Unless groups of all rows are named."""
        return self.groups is None

    @property
    def smooth(self):
        """Whether the loss has a gradient."""
        return is_smooth(self.loss)

    @property
    def total(self):
        """The loss of every row, times its weight."""
        return None if self.groups is not None else partial(_total, self.loss)

    def bind(self, Y, rows=None):
        """Groups of these rows."""
        if self.groups is None:
            return self
        count = None if rows is None else rows.count
        return replace(self, groups=as_folds(self.groups, len(Y), count))

    def values(self, solution, lams, kernel):
        """One pass over the rows."""
        del kernel
        sums = solution.left_out(partial(_total, self.loss), lams, self.groups)
        return sums / solution.factor.weights.total


def _total(loss, residuals, labels, weights):
    return jnp.sum(weights[:, None] * loss(residuals, labels), axis=0)


loo = LeaveOneOut()


def kfold(groups, loss: Callable = squared_error) -> LeaveOneOut:
    """Exact k-fold or leave-one-group-out error, pooled over rows: `LeaveOneOut` of groups.

    Args:
        groups: labels (n,) of any kind; inside `jax.jit` what `folds(groups)` made outside of it.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion.

    Raises:
        ValueError: for fewer than two groups.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(4), intercept=False)
    >>> rls.kfold([0, 0, 1, 1])(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), [1.0]).round(4).tolist()
    [2.5]
    """
    return LeaveOneOut(loss, groups)
