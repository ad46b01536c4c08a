"""The guard before a release: the ratios that the package promises, asserted, in under five
minutes.

python benchmarks/check.py [--rounds 2]

Ours against the floor, medians of interleaved rounds, and against peers, which run once; those that
are not installed are named, and those that take minutes are left to run.py. report.py has the
numbers. Ratios hold on any machine as far as they hold at all; run it when nothing else runs. Exits
with 1 where one is missed."""

import argparse
import sys

import jax
from common import timed
from report import GOALS, PROMISED_INSTEAD, rows
from run import measure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from works import WORKS

    missed = 0

    def say(held, what):
        nonlocal missed
        missed += not held
        print(f"{'held  ' if held else 'missed'}  {what}", flush=True)

    for (name, size), (most, peers) in GOALS.items():
        case = next(case for case in WORKS[name](False) if case.size == size)
        theirs, case.peers, case.variants = case.peers, {}, {}
        (ours,) = rows({"cases": [measure(WORKS[name], case, args.rounds)]})
        if most is not None:
            say(
                ours["to_floor"] <= most,
                f"{name}, {size}: {ours['to_floor']:.2f} × the floor, at most {most} promised",
            )
        for peer, goal in peers.items():
            least = PROMISED_INSTEAD.get(peer, goal)
            if least is None:
                continue
            if isinstance(theirs[peer], str):
                print(f"        {name}, {size}: {peer}: {theirs[peer]}")
                continue
            ratio = timed(theirs[peer].run)[0] / ours["median"]
            say(
                ratio >= least,
                f"{name}, {size}: {peer} takes {ratio:.1f} × as long, at least {least} promised",
            )
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
