"""How the suite runs: float64 unless JAXRLS_X64=0, no silent promotion, warnings as errors, and in
float32 shapes checked in every call.
"""

import gc
import os
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

# Thousands of small programs, each run a few times: most of the suite's time would be XLA's and
# LLVM's work to make them fast. Read when JAX starts; a flag that it does not know ends the
# process, so that the older code generator is asked for up to JAX 0.10, which still has it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
    " --xla_disable_hlo_passes=tree_reduction_rewriter"  # sums in parts, for long ones
    + " --xla_cpu_use_fusion_emitters=false"
    * (tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10)),
)

# One thread a worker: threads of BLAS that spin beside another worker's would take the time that it
# needs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Programs are kept for the next run, whatever their size; in which folder is said below.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Programs name where each operation was written down by its whole stack, which no message here
# shows.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jaxtyping
import numpy as np
import pytest

collect_ignore = [
    "typed"
]  # for type checkers: its kernel would be one more subclass that tests of all kernels find

X64 = os.environ.get("JAXRLS_X64", "1") != "0"
jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Shapes do not depend on the precision, and checks of every call take a third of the time: in the
# shorter run.
with nullcontext() if X64 else jaxtyping.install_import_hook("jaxrls", "beartype.beartype"):
    import jaxrls  # noqa: F401


MAPS = 30_000  # of memory, out of the 65,530 that Linux grants a process


def keep_programs(config):
    """Below pytest's own cache, unless a folder is named, and for processes that tests start."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR") and hasattr(config, "cache"):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("programs"))
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])


def pytest_configure(config):
    keep_programs(config)
    # Files of few tests would come last, some of which are among the longest.
    config.option.loadscopereorder = False
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line(
        "filterwarnings", "ignore:.* deprecated - use .*:DeprecationWarning"
    )  # an old matplotlib with a new pyparsing
    # One worker may read what another is writing, or what a run that was stopped left half
    # written; it compiles the program then.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")
    # An old hypothesis asks the collector who refers to its own generator: after `gc.freeze`,
    # below, nobody does.
    config.addinivalue_line("filterwarnings", "ignore:It looks like .register_random.")
    config.addinivalue_line(
        "markers", "float64: the claim holds in float64 only, so that the float32 run skips it"
    )
    config.addinivalue_line(
        "markers",
        "any_precision: what it claims says nothing of precision, so that the float32 run skips it",
    )


def pytest_collection_finish():
    """Tracing makes many objects, at each few hundred of which the collector would go through all
    modules and tests again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# Files that begin first, in this order, so that no worker is left with one in the end.
LONGEST = ["test_grid", "test_notebooks", "test_readme", "test_meshes", "test_sklearn"]
LONGEST += ["test_iterative", "test_sparse", "test_streams", "test_processes", "test_programs"]
LONGEST += ["test_far_labels", "test_derivatives", "test_structure", "test_transforms"]
LONGEST += ["test_tune", "test_fit"]


def pytest_collection_modifyitems(items):
    """In float32 what holds in float64 only is left out, and what is the same in both, by file but
    for tests marked `any_precision(False)`.
    """
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
    for item in () if X64 else items:
        same = item.get_closest_marker("any_precision")
        if item.get_closest_marker("float64"):
            item.add_marker(pytest.mark.skip(reason="needs float64: run with JAXRLS_X64 unset"))
        elif isinstance(item, pytest.DoctestItem) or same and False not in same.args:
            reason = "the same in every precision: run with JAXRLS_X64 unset"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def settings_stay_put():
    """No test, and no door of the library, may leave JAX's global precision switch changed."""
    yield
    assert jax.config.jax_enable_x64 == X64


@pytest.fixture
def rng(request):
    """Random numbers of this test's own, the same in every run."""
    return np.random.default_rng(sum(map(ord, request.node.name)))


@pytest.fixture(autouse=True, scope="module")
def forget_programs(request):
    """Compiled programs serve the next modules too, but where one may have been traced with another
    constant of the library in its place.

    And until there are many: tens of thousands in one process exhaust the memory maps that Linux
    grants."""
    yield
    here = [
        item for item in request.session.items if item.nodeid.split("::")[0] == request.node.nodeid
    ]
    patched = any("monkeypatch" in getattr(item, "fixturenames", ()) for item in here)
    maps = Path("/proc/self/maps")
    if patched or (maps.exists() and maps.read_bytes().count(b"\n") > MAPS):
        jax.clear_caches()
