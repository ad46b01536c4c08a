"""Run the command line: `jaxrls fit DATA`, `jaxrls predict MODEL DATA`, or a demo on real data
without arguments.

`python -m jaxrls …` is the same as `jaxrls …`.
"""

import os
import sys

from jaxrls.cli.main import main


def run(prog: str = "jaxrls") -> int:
    """Run the command that the arguments of the process name, and return its exit code.

    The console script `jaxrls` calls this function.

    Args:
        prog: the name by which the process was called, for messages.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = main(prog=prog, keep=True)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    return code


if __name__ == "__main__":
    sys.exit(run("python -m jaxrls"))
