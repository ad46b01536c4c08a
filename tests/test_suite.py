"""How the suite keeps compiled programs between its runs."""

from pathlib import Path

import jax
import numpy as np
import pytest
from support import ANY_PRECISION

pytestmark = ANY_PRECISION


@pytest.mark.parametrize("left", [0.0, 0.5], ids=["an empty file", "half of a file"])
def test_a_damaged_program_is_compiled_again(left):
    """What a run that was stopped left, or what another worker is writing."""
    folder = jax.config.jax_compilation_cache_dir
    if not folder or not jax.config.jax_enable_compilation_cache:
        pytest.skip("this run keeps no programs")

    def kept():
        return list(Path(folder).glob("jit_of_a_damaged_file-*-cache"))

    def program():
        """A new function each time, so that the one before does not serve."""

        def of_a_damaged_file(x):
            return 3 * x + 1

        return jax.jit(of_a_damaged_file)

    for path in kept():
        path.unlink()
    x = np.arange(5.0)
    assert program()(x).tolist() == (3 * x + 1).tolist()
    (path,) = kept()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert program()(x).tolist() == (3 * x + 1).tolist()
    path.unlink()
    assert program()(x).tolist() == (3 * x + 1).tolist()
    assert kept() == [path]
