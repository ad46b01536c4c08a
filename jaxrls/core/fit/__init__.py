"""`fit` and `tune`: the problem, the choice of solver and λ, gradient search, and their results.

`fit`: `Problem.of` → `best_fit` → `fit_by` → `make_plan` → `fit_on_grid` or `search` → `conclude` →
`with_solution` → `add_names_and_offset`. `tune`: `first_guess` → `search_by` → `descend` →
`conclude`.
"""

from jaxrls.core.fit.conclude import KEPT_ROWS, conclude_moments
from jaxrls.core.fit.descent import (
    SearchOptions,
    Tuned,
    default_optimizer,
    descend,
    first_point,
    step,
)
from jaxrls.core.fit.fit import fit_by
from jaxrls.core.fit.fitted import (
    Fit,
    History,
    Model,
    Numbers,
    Stage,
    add_names_and_offset,
    as_predicted,
    check_no_std_options,
    once_per_fit,
    r_squared_of,
    solution_of,
    with_constant,
    without_solution,
)
from jaxrls.core.fit.grid import Choice, Chosen, choose_lam, lambda_grid, lambda_range
from jaxrls.core.fit.inspection import inspect_fit, inspect_lam
from jaxrls.core.fit.lam_search import Evaluations, evaluate_lams
from jaxrls.core.fit.memory import Memory, of_problem
from jaxrls.core.fit.objective import best_lam
from jaxrls.core.fit.problem import Problem, criterion_error, warn_of_far_labels
from jaxrls.core.fit.start import from_median, lam_on_few, median_distance, start_from_data
from jaxrls.core.fit.tune import CANNOT_GROW, SAMPLE_ROWS, search_by
