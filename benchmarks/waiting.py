"""How long OpenBLAS's threads should wait before they sleep: path and eigendecomposition by
OPENBLAS_THREAD_TIMEOUT, alone and beside a busy process.

    python benchmarks/waiting.py [--n 1000 2000] [--timeouts unset 4 18] [--rounds 3]

Every time-out in turn in a process of its own, as the variable is read once; medians over rounds of
medians of five. `unset` is 2^26 cycles."""

import argparse
import os
import statistics
import subprocess
import sys

import jax
import jax.numpy as jnp
from timing import interleaved

import jaxrls as rls

BUSY = "while True: pass"


def one(n: int) -> None:
    """What a process does: prints the seconds of the path and of the bare eigendecomposition."""
    jax.config.update("jax_enable_x64", True)
    X = jax.random.normal(jax.random.key(0), (n, 8))
    y, lams = jnp.sin(X[:, 0]), jnp.geomspace(1e-3, 1e2, 100)
    K = rls.gram(rls.Gaussian(2.0), X)
    path, eigh = (
        jax.jit(lambda X, y: rls.loo(rls.factorize(rls.Gaussian(2.0), X), y, lams)),
        jax.jit(jnp.linalg.eigh),
    )
    found, _, _ = interleaved({"path": lambda: path(X, y), "eigh": lambda: eigh(K)}, rounds=5)
    print(found["path"].median, found["eigh"].median)


def measured(n: int, timeout: str) -> list[float]:
    """The same of a process with that time-out."""
    environment = os.environ | {"OPENBLAS_THREAD_TIMEOUT": "26" if timeout == "unset" else timeout}
    out = subprocess.run(
        [sys.executable, __file__, "--one", str(n)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [float(part) for part in out.split()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[1000, 2000], help="rows")
    parser.add_argument(
        "--timeouts",
        nargs="+",
        default=["unset", "4", "18"],
        help="logarithms of cycles, to the base 2",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one)
        return
    print(
        f"| n | beside | {' | '.join(f'{timeout}: path, eigh' for timeout in args.timeouts)} |\n|"
        + "---|" * (2 + len(args.timeouts))
    )
    for beside in ("nothing", "a busy process"):
        other = subprocess.Popen([sys.executable, "-c", BUSY]) if beside != "nothing" else None
        try:
            for n in args.n:
                rounds = [
                    [measured(n, timeout) for timeout in args.timeouts] for _ in range(args.rounds)
                ]
                cells = [
                    ", ".join(
                        f"{1e3 * statistics.median(part):.0f} ms"
                        for part in zip(*each, strict=True)
                    )
                    for each in zip(*rounds, strict=True)
                ]
                print(f"| {n} | {beside} | {' | '.join(cells)} |", flush=True)
        finally:
            if other:
                other.kill()


if __name__ == "__main__":
    main()
