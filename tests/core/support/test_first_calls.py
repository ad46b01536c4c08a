"""How many programs the first calls of a process compile, which is what a user waits for, and how
large the program of a fit is.
"""

import pytest
from support import FLOAT64, OF_FITS, printed_by

pytestmark = [FLOAT64, pytest.mark.slow]
PROGRAMS = {"fit": 1, "landmarks": 2, "groups": 1, "linear": 1, "predict": 1, "tune": 4}
EQUATIONS = {"equations": 350, "equations on landmarks": 800}


def test_first_calls_compile_few_programs_and_small_ones():
    found = printed_by("core/support/first_calls.py")
    for call, most in PROGRAMS.items():
        assert len(found[call]) <= most, found[call]
    for program, most in EQUATIONS.items():
        assert found[program] <= most
    # What other tests take for the program of a fit is one.
    assert [name for name in found["fit"] if name.removeprefix("jit(").rstrip(")") in OF_FITS]
