"""What the fuzzers share: a clock, a table of what came of the cases, and a folder for those that failed."""

import argparse
import hashlib
import json
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 2**30  # bytes that a fuzzer may take in all


class Failure(Exception):
    """A case that went wrong: in words, with the files that show it."""

    def __init__(self, words: str, files: dict[str, bytes]):
        super().__init__(words)
        self.words, self.files = words, files


def parse(about: str, argv=None) -> argparse.Namespace:
    """The arguments that all fuzzers take."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to draw cases by chance, after the corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=float, default=float("inf"), help="how many cases to draw at most")
    parser.add_argument("--quick", action="store_true", help="without what is tried in full, such as every bit of a header")
    parser.add_argument("--keep", type=Path, default=CORPUS, help="folder for the cases that fail")
    return parser.parse_args(argv)


def drive(name: str, options, fixed: Iterable, draw: Callable) -> int:
    """Run the `fixed` cases, pairs of a kind and a function, then those that `draw(rng)` gives until time is up. Print a table of kinds and
    outcomes. The exit code is 1 where a case raised, be it `Failure` or anything else, or memory went over the bound, else 0."""
    tally: Counter = Counter()
    failures = 0
    before = peak_memory()
    rng = np.random.default_rng(options.seed)
    for kind, case in fixed:
        failures += not attempt(name, kind, case, tally, options.keep)
    start, drawn = time.monotonic(), 0
    while time.monotonic() - start < options.seconds and drawn < options.cases and failures < 20:
        failures += not attempt(name, *draw(rng), tally, options.keep)
        drawn += 1
    report(name, tally, time.monotonic() - start)
    if before < MEMORY < peak_memory():
        print(f"memory went to {peak_memory() / 2**20:.0f} MiB")
        failures += 1
    return int(failures > 0)


def attempt(name: str, kind: str, case: Callable[[], str], tally: Counter, keep: Path) -> bool:
    """Run one case and count what came of it; False where it failed, which is told and kept."""
    try:
        outcome = case()
    except Exception as error:
        files = error.files if isinstance(error, Failure) else {}
        words = error.words if isinstance(error, Failure) else traceback.format_exc()
        folder = store(keep / "failed" / name, kind, words, files)
        print(f"FAILED {kind}: {words.strip().splitlines()[-1]}\n  kept in {folder}", file=sys.stderr)
        tally[kind, "FAILED"] += 1
        return False
    tally[kind, outcome] += 1
    return True


def store(folder: Path, kind: str, words: str, files: dict[str, bytes]) -> Path:
    """Keep a case that failed under a name made of its bytes."""
    digest = hashlib.sha256(b"".join(files.values()) + words.encode()).hexdigest()[:12]
    place = folder / f"{kind.replace(' ', '-')}-{digest}"
    place.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (place / file).write_bytes(data)
    (place / "failure.json").write_text(json.dumps({"kind": kind, "words": words}, indent=1))
    return place


def report(name: str, tally: Counter, seconds: float) -> None:
    """Kinds in rows, outcomes in columns."""
    outcomes = sorted({outcome for _, outcome in tally})
    kinds = sorted({kind for kind, _ in tally})
    width = max(map(len, [*kinds, name, "in all"]))
    rows = [[kind, *(tally[kind, outcome] for outcome in outcomes)] for kind in kinds]
    rows.append(["in all", *(sum(row[j] for row in rows) for j in range(1, len(outcomes) + 1))])
    print(f"{name:<{width}}" + "".join(f"{outcome:>12}" for outcome in outcomes))
    for kind, *counts in rows:
        print(f"{kind:<{width}}" + "".join(f"{count:>12}" for count in counts))
    print(f"{sum(tally.values())} cases, the drawn ones in {seconds:.0f} s, memory at most {peak_memory() / 2**20:.0f} MiB")


def peak_memory() -> int:
    """Bytes that this process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def chance(rng, options):
    """One of a list."""
    return options[int(rng.integers(len(options)))]


def damaged(rng, data: bytes, other: bytes = b"") -> bytes:
    """Bytes as a bad disk, a torn download or a wrong edit would leave them."""
    broken = bytearray(data)
    at = sorted(int(i) for i in rng.integers(0, len(data) + 1, 2))
    match int(rng.integers(7)):
        case 0 | 1:
            for i in rng.integers(0, len(data), int(rng.integers(1, 5))):
                broken[i] ^= 1 << int(rng.integers(8))
        case 2:
            del broken[at[0] :]
        case 3:
            del broken[at[0] : min(at[1], at[0] + 50)]
        case 4:
            broken[at[0] : at[0]] = rng.bytes(int(rng.integers(1, 50)))
        case 5:
            at[1] = min(at[1], at[0] + len(other) // 2)  # no more, lest it be the other
            broken[at[0] : at[1]] = other[at[0] : at[1]]
        case 6:
            size = chance(rng, (1, 2, 4, 8))
            broken[at[0] : at[0] + size] = chance(rng, (b"\xff", b"\0", b"\x7f", b"\x80")) * size
    return bytes(broken)
