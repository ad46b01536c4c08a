"""Groups left out of a spectrum in closed form, a system of as many rows as the group has for each, and for each λ."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Float

from jaxrls.factors.groups import Folds
from jaxrls.factors.hat import Group, each_group


def spectral_groups(solution: Any, groups: Folds, U: Float[Array, "n r"]) -> Callable:
    """A function of one λ, or one per target, (k,), that gives e_B = [P_BB]⁻¹ c_B of all groups, (groups, b, t): O(n b (r + b)) for each of k."""
    f, labels, mask = solution.factor, solution.labels, groups.inside_mask.astype(U.dtype)
    u = None if f.weights.values is None else f.reach()
    h, level = f.span()
    leaving = f.leaving and f.leaving.apart(groups)

    def at(columns, lam):
        hat = solution.hat(lam.reshape(1, 1), columns=columns)

        def group(rows, mask):
            of = lambda A: None if A is None else A[rows]  # noqa: E731
            weights = f.weights.block(of(f.weights.values), rows.shape[0])
            centred = (labels.Y - labels.mean)[rows][:, columns]
            scaled = None if solution.base is None else solution.base[rows][:, columns]
            return Group(rows, mask, U[rows], scaled, centred, h[rows], level[rows], weights, of(u)).left_out(hat, leaving, f.n)

        return group

    return partial(each_group, at, groups.inside, mask, U.shape[1], labels.Y.shape[1])
