"""Files that are not what they should be: the right object, or one line that says what is wrong.

Some hundred examples by default; as many as are asked for by

    JAXRLS_EXAMPLES=100000 pytest tests/io/test_damaged_files.py --hypothesis-seed=1
"""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxrls as rls

pytestmark = pytest.mark.any_precision
EXAMPLES = int(os.environ.get("JAXRLS_EXAMPLES", "300"))
drawn = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
MORE = 100e6  # bytes of memory beyond three times the file's own
PART = st.tuples(st.floats(0, 1), st.floats(0, 1))  # from where to where, as shares of the file


def model():
    kernel = 0.5 * rls.Gaussian(np.array([1.0, 2.0], np.float16)) + rls.Linear()
    return rls.extend.Model(kernel, np.ones((3, 2)), np.arange(1.0, 4.0), np.array(0.5))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model's bytes, and a place for other bytes."""
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    rls.save(path, model(), extra={"names": ["a", "größe"]})
    return path.read_bytes(), path


@contextmanager
def little_memory(path):
    """Memory grows by no more than what a file of this size may take (Linux counts it)."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = memory_of("VmRSS")
    yield
    assert memory_of("VmHWM") - before < 3 * path.stat().st_size + MORE


def memory_of(what):
    words = Path("/proc/self/status").read_text().split()
    return 1024 * int(words[words.index(f"{what}:") + 1])


@drawn
@given(st.data())
def test_mutated_models(saved, data):
    content, path = saved
    path.write_bytes(mutated(data, content))
    try:
        with little_memory(path):
            found = rls.load(path, with_extra=True)
    except ValueError as error:
        assert str(error).startswith(f"{path} was not written by") and "\n" not in str(error)
    else:
        assert found == (model(), {"names": ["a", "größe"]})


def mutated(data, content):
    """Bytes cut, repeated, swapped or overwritten, once or more."""
    for _ in range(data.draw(st.integers(1, 3))):
        a, b = sorted(int(share * len(content)) for share in data.draw(PART))
        part = content[a:b]
        content = data.draw(
            st.sampled_from(
                [
                    content[:a],
                    content[:a] + content[b:],
                    content[:b] + part + content[b:],
                    content[b:] + part + content[:a],
                    content[:a] + data.draw(st.binary(max_size=9)) + content[b:],
                ]
            )
        )
    return content
