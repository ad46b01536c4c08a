"""The guard before a release: the ratios that the package promises, asserted, in under five minutes.

python benchmarks/check.py [--rounds 3]

Ours against the floor, medians of interleaved rounds, and against peers, which run once; those that are not installed are named.
Ratios hold on any machine as far as they hold at all; run it when nothing else runs. Exits with 1 where one is missed.
"""

import argparse
import sys

import jax
from report import rows
from run import measure
from timing import timed

# work, size as its case prints it: at most so many times the floor (None where seconds have no floor), and peers at least so many times ours.
PROMISES = {
    ("path", "n = 4000, L = 100"): (1.10, {"RLScore": 1.2}),
    ("gradient", "n = 4000, d = 8"): (2.0, {"GPyTorch LeaveOneOutPseudoLikelihood with backward": 3.5}),
    ("subset", "n = 40000, m = 1000, d = 8, L = 100"): (1.6, {}),
    ("linear", "n = 200,000, d = 100, L = 100"): (1.5, {"scikit-learn RidgeCV": 20}),
    ("datasets", "1000 sets, n = 100, L = 50"): (1.5, {"scikit-learn, a loop over RidgeCV": 3}),
    ("matmul", "20,000 × 20,000 rows, d = 20, t = 10"): (1.3, {"scikit-learn rbf_kernel @ V": 2.5}),
    ("cold", "airfoil, n = 1200, L = 100"): (None, {"scikit-learn GridSearchCV(KernelRidge), 5 folds, 20 λ": 2}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from works import WORKS

    missed = 0

    def say(held, what):
        nonlocal missed
        missed += not held
        print(f"{'held  ' if held else 'missed'}  {what}", flush=True)

    for (name, size), (most, peers) in PROMISES.items():
        case = next(case for case in WORKS[name](False) if case.size == size)
        theirs, case.peers, case.variants = case.peers, {}, {}
        (ours,) = rows({"cases": [measure(WORKS[name], case, args.rounds)]})
        if most is not None:
            say(ours["to_floor"] <= most, f"{name}, {size}: {ours['to_floor']:.2f} × the floor, at most {most} promised")
        for peer, least in peers.items():
            if isinstance(theirs[peer], str):
                print(f"        {name}, {size}: {peer}: {theirs[peer]}")
                continue
            ratio = timed(theirs[peer].run)[0] / ours["median"]
            say(ratio >= least, f"{name}, {size}: {peer} takes {ratio:.1f} × as long, at least {least} promised")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
