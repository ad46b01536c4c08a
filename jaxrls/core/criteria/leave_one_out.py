"""The leave-one-out error, `loo`, and the error of groups that are held out, `kfold`.

Theory: `docs/theory.md`, "Criteria".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrls.core.criteria.criterion import OfLoss
from jaxrls.core.criteria.losses import squared_error
from jaxrls.core.data import folds
from jaxrls.core.factors import HeldOut, Solution
from jaxrls.core.kernels import Kernel
from jaxrls.core.support import pytree, static


@pytree
class LeaveOneOut(OfLoss):
    """The exact leave-one-out error, or leave-one-group-out error, at every λ.

    It is Σᵢ vᵢ loss(eᵢ, yᵢ) / Σᵢ vᵢ, where every row, or every group of rows, is left out in turn.
    For weights 1 and no intercept let P = (K + λI)⁻¹ and c = Py. Then a single row has
    eᵢ = cᵢ/Pᵢᵢ, and a group S has e_S = [P_SS]⁻¹c_S. The error is exact with weights and fixed
    effects too.

    `criterion(factor, Y, lams)` returns the error at every λ, and `fit(criterion=…)` chooses λ by
    it. `loo` is this criterion with squared errors and single rows. `kfold(groups)` makes it with
    groups.

    Args:
        loss: the function that is averaged: `squared_error`, `absolute_error`, `zero_one_loss`, or
            any function (residuals (n, t), labels (n, t)) -> (n, t).
        groups: labels (n,) of rows that are left out together, splits, or what `folds` made of
            them. Default: single rows.

    **Cost** O(n r L (t + 1)) for single rows, O(k L b² (r + b)) for k groups of b rows. Groups with
    b > r, and groups of K on a CPU if that is less, take O(k n r (r + L t)). **Fails**: without
    groups the error is too optimistic for rows that come in groups. **Source**: Rifkin (lecture),
    "LOOE derivation, VII"; Pahikkala, Boberg and Salakoski 2006, theorem 1.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(2), intercept=False)
    >>> criterion = rls.extend.LeaveOneOut(rls.extend.absolute_error)
    >>> criterion(factor, jnp.array([1.0, 3.0]), [1.0]).tolist()
    [2.0]
    """

    loss: Callable = static(default=squared_error)
    groups: Any = None  # `Folds`, made from labels
    averages_loss = has_standard_error = True

    def __post_init__(self):
        super().__post_init__()
        if self.groups is not None:
            object.__setattr__(self, "groups", folds(self.groups))

    @property
    def name(self):  # type: ignore[override]
        """The name: "loo" if single rows are left out, "kfold" if groups are."""
        return "loo" if self.groups is None else "kfold"

    @property
    def title(self):
        """The label of an axis of its values in plots."""
        return "leave-one-out error" if self.groups is None else "error of folds left out"

    @property
    def fits_samples(self):  # type: ignore[override]
        """Whether single rows are left out. Groups refer to all rows, and do not fit a sample."""
        return self.groups is None

    @property
    def summand(self):
        """The function that sums weight times loss over rows; None if groups are left out."""
        return None if self.groups is not None else partial(_sum_losses, self.loss)

    def values(
        self, solution: Solution, lams: Float[Array, "L *k"], kernel: Kernel | None
    ) -> Float[Array, "L t"]:
        """Return the mean loss, from one pass over the rows."""
        sums = solution.sum_held_out(partial(_sum_losses, self.loss), lams, self.groups)
        weights = solution.factor.weights
        counted = weights if self.groups is None else self.groups.weights_of_predicted(weights)
        return sums / counted.total


def _sum_losses(loss: Callable, held: HeldOut) -> Float[Array, " u"]:
    """Return the sum of weight times loss over a block of rows, for every target."""
    return jnp.sum(held.weights[:, None] * loss(held.e, held.labels), axis=0)


def kfold(groups: Any, loss: Callable = squared_error) -> LeaveOneOut:
    """Make the exact k-fold or leave-one-group-out error, pooled over rows.

    It is `LeaveOneOut` with groups. With labels, each row is predicted by the fit to the rows of
    all other groups.

    With splits (train, test), each test row is predicted by the fit to the training rows alone. So
    splits may be purged, have a gap or train on fewer rows. Let S be all rows outside of training.
    Then e_S = [P_SS]⁻¹c_S, and only the test rows of S are counted. A row that no split tests is
    not counted.

    Args:
        groups: labels (n,) of any kind; or splits, pairs of row numbers (train, test), as
            `cv.split(X)` of scikit-learn gives them. Inside `jax.jit` give what `folds(groups)`
            made outside of it.
        loss: as in `LeaveOneOut`.

    Returns:
        A criterion.

    Raises:
        ValueError: for fewer than two groups, for splits that test a row twice, and for a split
            that has a row in both parts.

    >>> import jax.numpy as jnp, jaxrls as rls
    >>> factor = rls.factorize(rls.Precomputed(), jnp.eye(4), intercept=False)
    >>> rls.kfold([0, 0, 1, 1])(factor, jnp.array([1.0, 1.0, 2.0, 2.0]), [1.0]).round(4).tolist()
    [2.5]
    """
    return LeaveOneOut(loss, groups)


loo = LeaveOneOut()
