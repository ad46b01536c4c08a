"""Import it before SciPy: OpenBLAS's threads sleep after 2^18 cycles without work, in place of
2^26, as at the command line.

JAX's decompositions on CPUs run on SciPy's OpenBLAS, which reads the variable once, when it is
loaded."""

import os

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
