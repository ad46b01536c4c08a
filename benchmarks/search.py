"""`lams="search"` against a grid of a hundred λ on real data: the errors found, and the Cholesky
factors that took.

    python benchmarks/search.py --data FOLDER       # six data sets, three widths, up to 2000 rows,
    in float64 (ten minutes)

FOLDER (or the environment variable JAXRLS_DATA) holds NAME.csv.gz, as for float32.py, whose rows
and widths these are. "as good" are the λ of the grid's valleys that are within 1 % of its best."""

import argparse
import os
import re

import float32
import numpy as np

import jaxrls as rls

HEAD = (
    "data",
    "width",
    "error of the grid",
    "of the search",
    "more by",
    "factors",
    "λ of the grid",
    "of the search",
    "as good on the grid",
    "the search says",
)


def valleys(lams, errors):
    """λ at which the grid is lower than at both neighbours, and within 1 % of its best."""
    around = np.concatenate([[np.inf], errors, [np.inf]])
    return lams[(errors < around[:-2]) & (errors <= around[2:]) & (errors <= 1.01 * errors.min())]


def compare(width, X, y):
    """The fit by a grid of K's spectrum, the fit by a search with Cholesky factors, and how many
    those were.
    """
    grid, _ = float32.heard(width, X, y, solver=rls.Spectral("gram"))
    found, _ = float32.heard(width, X, y, lams="search", solver=rls.Cholesky())
    return (
        grid,
        found,
        int(re.search(r"(\d+) Cholesky factors? and one for the model", found.plan).group(1)) + 1,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default=os.environ.get("JAXRLS_DATA"), help="folder of NAME.csv.gz"
    )
    parser.add_argument("--only", nargs="+", choices=float32.DATA_SETS, default=float32.DATA_SETS)
    parser.add_argument("--rows", type=int, default=float32.ROWS, help="at most so many")
    options = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |\n" + "|" + "---|" * len(HEAD), flush=True)
    for name in options.only:
        if (data := float32.load(name, options.data, options.rows)) is None:
            continue
        for label, width in float32.widths(*data[:2]):
            grid, found, factors = compare(width, *data[:2])
            best, error = float(grid.error), float(found.error)
            good = " and ".join(
                f"{lam:.2g}" for lam in valleys(np.asarray(grid.lams), np.asarray(grid.errors))
            )
            said = found.plan.partition("; ")[2] or "–"
            row = (
                name,
                label,
                f"{best:.6f}",
                f"{error:.6f}",
                f"{100 * (error / best - 1):+.3f} %",
                factors,
            )
            print(
                "| "
                + " | ".join(
                    map(
                        str, (*row, f"{float(grid.lam):.2g}", f"{float(found.lam):.2g}", good, said)
                    )
                )
                + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
