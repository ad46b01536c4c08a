"""The guard before a release: the ratios that the package promises, asserted, in under five
minutes.

    python benchmarks/check.py [--rounds 2]

Ours against the floor, medians of interleaved rounds, and against peers, which run once; those that
are not installed are named, and those that take minutes are left to run.py. report.py has the
numbers. Ratios hold on any machine as far as they hold at all; run it when nothing else runs. Exits
with 1 where one is missed."""

import sys

from common import options_of, say, timed
from report import GOALS, PROMISED_INSTEAD, rows
from run import measure


def main():
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    from works import WORKS

    held = []

    def judge(good, what):
        held.append(good)
        say(f"{'held  ' if good else 'missed'}  {what}")

    for (name, size), (most, peers) in GOALS.items():
        case = next(case for case in WORKS[name](False) if case.size == size)
        theirs, case.peers, case.variants = case.peers, {}, {}
        (ours,) = rows(measure(WORKS[name], case, args.rounds))
        at = f"{name}, {size}:"
        if most is not None:
            ratio = ours["to_floor"]
            judge(ratio <= most, f"{at} {ratio:.2f} × the floor, at most {most} promised")
        for peer, goal in peers.items():
            least, one = PROMISED_INSTEAD.get(peer, goal), theirs[peer]
            if isinstance(one, str):
                say(f"        {at} {peer}: {one}")
            elif least is not None:
                ratio = timed(one.run)[0] / ours["median"]
                judge(ratio >= least, f"{at} {peer} takes {ratio:.1f} × as long, {least} promised")
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
