"""`fit` and `tune`: the problem, the choice of solver and λ, gradient search, and their results.

`fit`: `Problem.of` → `best_fit` → `fit_by` → `make_plan` → `fit_on_grid` or `search` → `conclude` →
`with_solution` → `add_names_and_offset`. `tune`: `first_guess` → `search_by` → `descend` →
`conclude`.
"""

from jaxrls.front.conclude import KEPT_ROWS, conclude_moments
from jaxrls.front.descent import (
    SearchOptions,
    Tuned,
    default_optimizer,
    descend,
    first_point,
    step,
)
from jaxrls.front.fit import fit_by
from jaxrls.front.fitted import (
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
from jaxrls.front.grid import Choice, Chosen, choose_lam, lambda_grid, lambda_range
from jaxrls.front.inspection import inspect_fit, inspect_lam
from jaxrls.front.lam_search import Evaluations, evaluate_lams
from jaxrls.front.memory import Memory, of_problem
from jaxrls.front.objective import best_lam
from jaxrls.front.problem import Problem, criterion_error, warn_of_far_labels
from jaxrls.front.start import from_median, lam_on_few, median_distance, start_from_data
from jaxrls.front.tune import CANNOT_GROW, SAMPLE_ROWS, search_by
