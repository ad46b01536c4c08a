"""What comes between two readings is compiled: the same numbers as operation by operation, and few
programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import DTYPE, EPS, assert_close

import jaxrls as rls
from jaxrls.rows.staged import between_readings

N, D = 50, 3
COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: COMPILED.append(event) if "backend_compile" in event else None
)


def blocks(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)).astype(DTYPE)
    return X, rls.stream([(part,) for part in np.split(X, [20, 40])], block_size=20)


def test_rows_whose_blocks_are_not_known_before_are_left_as_they_are():
    class Counted(rls.Rows):
        shape, dtype, traceable = (4, 1), jnp.zeros(()).dtype, False

        def blocks(self):
            yield jnp.array([[0.0], [1.0]])
            yield jnp.array([[2.0], [3.0]])

    seen = []
    assert (
        between_readings(lambda rows: rows.sum(lambda x: seen.append(type(x)) or jnp.sum(x)))(
            Counted()
        )
        == 6
    )
    assert not any(issubclass(kind, jax.core.Tracer) for kind in seen)


@pytest.mark.float64
@pytest.mark.filterwarnings("ignore:the chosen")
def test_a_reading_inside_of_a_transformation_is_done_as_before():
    X, rows = blocks(3)

    @rls.pytree
    class Inside(rls.Criterion):
        name = "inside"

        def values(self, solution, lams, kernel):
            return jax.jit(lambda lams: jnp.mean(solution.residuals(lams) ** 2, axis=1))(lams)

    y, lams = np.sin(X[:, 0]), np.array([0.1, 1.0], DTYPE)
    options = {"criterion": Inside(), "lams": lams, "landmarks": X[:7]}
    got, want = (rls.fit(rls.Gaussian(1.5), source, y, **options).errors for source in (rows, X))
    assert_close(got, want, 200 * N * EPS / 0.1)


def test_errors_of_what_rows_on_the_host_lack_name_them():
    _, rows = blocks()
    for ask in (lambda rows: rows.dense(), lambda rows: rows.kernel_matrix(rls.Gaussian(1.0))):
        with pytest.raises(ValueError, match="StreamedRows|X is a stream"):
            between_readings(ask)(rows)


def test_the_criterion_over_lams_takes_a_dozen_programs():
    """It was 187, each of some 30 ms and more."""
    X, rows = blocks(1)
    problem = rls.Problem.of(rls.Gaussian(1.5), rows, np.sin(X[:, 0]), landmarks=X[:7])
    lams = jnp.asarray([0.1, 1.0], DTYPE)
    COMPILED.clear()
    between_readings(lambda problem, lams: problem.errors(problem.solution(), lams))(problem, lams)
    assert 0 < len(COMPILED) <= 14


@pytest.mark.filterwarnings("ignore:the chosen")
def test_a_fit_takes_some_forty_programs():
    """It was 259, of which some are now those of the landmarks' choice, and of units and numbers in
    the report.
    """
    X, rows = blocks(2)
    COMPILED.clear()
    rls.fit(rls.Gaussian(1.7), rows, np.sin(X[:, 0]), lams=[0.1, 1.0], landmarks=8)
    assert 0 < len(COMPILED) <= 60
