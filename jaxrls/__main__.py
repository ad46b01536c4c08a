"""The command line: `jaxrls fit DATA`, `jaxrls predict MODEL DATA`, and without arguments a demo on
real data; or `python -m jaxrls …`.
"""

import os
import sys

from jaxrls.cli.main import main


def run(prog: str = "jaxrls") -> int:
    """What a process that was called as `prog` does from its arguments to its exit code; the
    console script is this.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = main(prog=prog, keep=True)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    return code


if __name__ == "__main__":
    sys.exit(run("python -m jaxrls"))
