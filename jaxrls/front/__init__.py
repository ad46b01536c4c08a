"""What a user calls (`fit`, `tune`, `objective`, `memory`), and the names of it that rooms import.

`fit` has five steps, each a module. `read` turns the arguments into a `Problem` of arrays. `plan`
chooses a solver and the way to search λ, from shapes and options. `run` executes the plan by
compiled programs, and makes an `Attempt` of their results. `inspection` looks at its numbers, and
warns. `finish` makes a `Fit` of it.

`tune` also begins with `read`. Then `start` chooses a first kernel and λ, `descent` improves them
by gradients, and `finish` makes a `Fit`. Begin reading with `fit.py`.
"""

from jaxrls.front.attempt import Attempt
from jaxrls.front.descent import (
    SearchOptions,
    Tuned,
    default_optimizer,
    descend,
    first_point,
    step,
)
from jaxrls.front.finish import model_of, with_names, with_offset
from jaxrls.front.fit import by_plan, plan_and_run
from jaxrls.front.fitted import Fit, Kept, check_no_std_options
from jaxrls.front.history import History, Stage
from jaxrls.front.inspection import inspect_lam, inspect_result
from jaxrls.front.keeping import once_per_fit, solution_of, without_solution
from jaxrls.front.lam_search import Evaluations, evaluate_lams
from jaxrls.front.levels import check_levels_fit_dtype
from jaxrls.front.memory import Memory, of_problem
from jaxrls.front.model import (
    LARGEST_PART,
    Model,
    came_from_host,
    common_number,
    in_few_sizes,
    with_constant,
)
from jaxrls.front.objective import best_lam
from jaxrls.front.plan import KEPT_ROWS, Request
from jaxrls.front.read import ROUNDED_SHARE, read_labels, read_problem, warn_of_far_labels
from jaxrls.front.sampling import Sample, sample_of
from jaxrls.front.scores import as_predicted, r_squared_of
from jaxrls.front.start import Guesses, lam_on_few
from jaxrls.front.tune import CANNOT_GROW, SAMPLE_ROWS, descend_in_memory, search_kernel
from jaxrls.front.widths import from_median, median_distance, start_from_data
