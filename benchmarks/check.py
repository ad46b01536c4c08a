"""The guard before a release: the ratios that the package promises, asserted, in under five minutes.

python benchmarks/check.py [--rounds 3]

Ratios hold on any machine as far as they hold at all; run it when nothing else runs. Exits with 1 where one is missed.
"""

import argparse
import sys

import jax
from run import measure

# work, size as its case prints it: at most so many times the floor
PROMISES = {
    ("path", "n = 4000, L = 100"): 1.10,
    ("gradient", "n = 4000, d = 8"): 2.0,
    ("subset", "n = 40000, m = 1000, d = 8, L = 100"): 1.6,
    ("linear", "n = 200,000, d = 100, L = 100"): 1.5,
    ("datasets", "1000 sets, n = 100, L = 50"): 1.5,
    ("matmul", "20,000 × 20,000 rows, d = 20, t = 10"): 1.3,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from works import WORKS

    missed = 0
    for (name, size), most in PROMISES.items():
        case = next(case for case in WORKS[name](False) if case.size == size)
        case.peers, case.variants = {}, {}
        measured = measure(WORKS[name], case, args.rounds)
        ratio = measured["contestants"][0]["median"] / sum(part["median"] for part in measured["floor"])
        missed += ratio > most
        print(f"{'missed' if ratio > most else 'held  '}  {name}, {size}: {ratio:.2f} × the floor, at most {most} promised", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
