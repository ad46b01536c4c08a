"""A fit to rows on disk beside the same sums on rows in memory: seconds and peak memory.

    python benchmarks/stream.py --rows 10000000 --columns 10 --landmarks 500            # writes
    float32 shards into a temporary folder

Each of both runs in a process of its own. The sums are the moments and the leave-one-out errors of
100 λ; knowing the rows (for a stream, its first reading; in memory, reading the files) is timed
apart."""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import threads  # noqa: F401

SHARDS = 20


def write(folder: Path, rows: int, columns: int) -> None:
    """Shards of a smooth function of all columns with noise, the target last."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=columns) / columns**0.5
    for i, part in enumerate(np.array_split(np.arange(rows), SHARDS)):
        X = rng.normal(size=(len(part), columns)).astype(np.float32)
        y = np.sin(2 * X @ w) + 0.1 * rng.normal(size=len(part))
        np.save(folder / f"part{i:03}.npy", np.column_stack([X, y]).astype(np.float32))


def one(kind: str, folder: str, landmarks: int) -> None:
    """What a process does: prints seconds until the rows are known, seconds of the fit, peak bytes,
    λ and error.
    """
    import jax.numpy as jnp

    import jaxrls as rls
    from jaxrls.rows.compiled import compiled

    start = time.perf_counter()
    stream = rls.stream(f"{folder}/*.npy")
    problem = rls.Problem.of(rls.Gaussian(2.0), stream, None, landmarks=landmarks)
    known = time.perf_counter() - start
    if kind == "memory":
        tables = [np.load(path) for path in sorted(Path(folder).glob("*.npy"))]
        rows = rls.DenseRows(jnp.asarray(np.concatenate([table[:, :-1] for table in tables])))
        del tables
        problem = rls.Problem.of(
            rls.Gaussian(2.0), rows, stream.labels, landmarks=problem.landmarks
        )
    lams = jnp.geomspace(1e-2, 1e4, 100, dtype=problem.rows.dtype)

    def errors(problem):
        return problem.errors(problem.solution(), lams)

    run = compiled(errors)  # as `fit` does
    start = time.perf_counter()
    found = np.asarray(run(problem))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(known, seconds, peak, float(lams[found.argmin()]), float(found.min()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(*args.one, args.landmarks)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), args.rows, args.columns)
        took = {"stream": [], "memory": []}
        for _ in range(args.rounds):
            for kind in took:
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    kind,
                    folder,
                    "--landmarks",
                    str(args.landmarks),
                ]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                known, seconds, peak, lam, error = map(float, out.split())
                took[kind].append(seconds)
                print(
                    f"{kind}: {known:.1f} s to know the rows, {seconds:.1f} s, {peak / 2**30:.2f} GiB at most, λ {lam:.4g}, error {error:.7g}",
                    flush=True,
                )
        print(f"stream/memory: {np.median(took['stream']) / np.median(took['memory']):.2f}")
    return None


if __name__ == "__main__":
    main()
