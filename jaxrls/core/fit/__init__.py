"""`fit` and `tune`: the problem, the choice of solver and λ, gradient search, and their results."""

from jaxrls.core.fit.conclude import KEPT_ROWS, conclude_moments
from jaxrls.core.fit.descent import Best, Way, default_optimizer, descend, look, step
from jaxrls.core.fit.fit import fit_by
from jaxrls.core.fit.fitted import (
    Fit,
    History,
    Model,
    Numbers,
    Stage,
    as_predicted,
    check_unsaid,
    completed,
    once_per_fit,
    scored,
    solution_of,
    with_constant,
    without_solution,
)
from jaxrls.core.fit.grid import Choice, Chosen, choose_lam, lambda_grid, lambda_range
from jaxrls.core.fit.inspection import inspect_fit, inspect_lam
from jaxrls.core.fit.lam_search import Visited, visit
from jaxrls.core.fit.memory import Memory, of_problem
from jaxrls.core.fit.objective import best_lam
from jaxrls.core.fit.problem import Problem, criterion_error, names_of
from jaxrls.core.fit.start import lam_on_few, median_distance, start_from_data
from jaxrls.core.fit.tune import CANNOT_GROW, ROWS, search_by
