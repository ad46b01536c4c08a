"""What leaving out all pairs of rows takes, as a share of the products that make P = U diag(1/(s +
λ)) Uᵀ at each λ.

    python benchmarks/pairs.py [--sizes 4000] [--lams 100] [--rounds 3] [--float32]

From one spectrum: every pair of rows by its order (n(n − 1)/2 of them, 8 million at n = 4000), the
same where `jax.jit` knows no labels of two classes, positive rows with negative ones where it does,
and the squared loss. Every contestant in turn, round after round; each ratio is the median over
rounds of its time over that of the products in the same round, whole or in blocks, whichever is
faster. Beside it the largest difference from 2×2 systems solved one by one, for some pairs at some
λ."""

import argparse
import statistics
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from timing import timed

import jaxrls as rls

SOME = 200  # pairs that are looked at one by one


def products(U, s, lams, blocks=1):
    """The entries of P at every λ, whole or in blocks of rows, of which nothing but a sum is kept.

    Barriers keep divisions, and the sum, out of the product, which they would slow.
    """
    keep, parts = jax.lax.optimization_barrier, U.reshape(blocks, -1, U.shape[1])

    def at(lam):
        d = 1 / (s + lam)
        return jnp.sum(
            jax.lax.map(
                lambda part: jnp.sum(keep(jnp.matmul(keep(part * d), U.T, precision="highest"))),
                parts,
            )
        )

    return jax.lax.map(at, lams)


def contestants(n, lams):
    """Programs, by name, and the problem."""
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(n, 8)), lams.dtype)
    y = jnp.sin(X[:, 0]) + 0.5 * jnp.asarray(rng.normal(size=n), lams.dtype)
    factor = jax.jit(rls.factorize)(rls.Gaussian(lams.dtype.type(8**0.5)), X).spectrum()
    classes = jnp.where(y > jnp.median(y), 1.0, -1.0).astype(lams.dtype)

    def run(criterion, factor, Y, lams):
        return criterion.values(factor.solve(Y), lams[:, None], None)[:, 0]

    made = partial(
        jax.jit(products, static_argnames="blocks"), factor.left_vectors(), factor.s, lams
    )
    blocks = next(count for count in range(max(1, n // 500), 0, -1) if n % count == 0)
    ways = {
        "products that make P": made,
        "the same in blocks of rows": partial(made, blocks=blocks),
    }
    for name, criterion, Y in (
        ("all pairs, concordance", rls.PairsOut(), y),
        ("all pairs, AUC of labels not known to jit", rls.PairsOut(), classes),
        ("positive with negative rows, AUC", rls.PairsOut().bind(classes), classes),
        ("all pairs, squared loss", rls.PairsOut(loss=rls.squared_error), y),
    ):
        ways[name] = partial(jax.jit(run), criterion, factor, Y, lams)
    return ways, factor, y


def difference(factor, y, lams):
    """The largest between the squared loss of single pairs and that of 2×2 blocks of I − H,
    relative to the largest.
    """
    U, s, n = (
        np.asarray(factor.left_vectors(), np.float64),
        np.asarray(factor.s, np.float64),
        len(y),
    )
    pairs = np.random.default_rng(1).permutation(n)[: 2 * min(SOME, n // 2)].reshape(-1, 2)
    centred, off, largest = np.asarray(y, np.float64) - np.mean(np.asarray(y, np.float64)), 0.0, 0.0
    for lam in lams[:: max(1, len(lams) // 4)]:
        lost = float(lam) / (s + float(lam))
        r, block = (
            U @ (lost * (U.T @ centred)),
            np.einsum("pir,r,pjr->pij", U[pairs], lost, U[pairs]),
        )
        # U has the constant among its directions, of s = 0 and all lost, unless it was projected
        # out: then nothing of it is there.
        e = np.linalg.solve(block, r[pairs][:, :, None])[:, :, 0]
        want = np.mean((e[:, 0] - e[:, 1]) ** 2)
        criterion = rls.PairsOut(pairs, loss=rls.squared_error)
        got = criterion.values(factor.solve(y), lam[None, None], None)
        off, largest = max(off, abs(float(got[0, 0]) - want)), max(largest, want)
    return off / largest


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[4000])
    parser.add_argument("--lams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", not args.float32)
    print("| n | work | seconds | share of the products | from to |\n|---|---|---|---|---|")
    for n in args.sizes:
        lams = jnp.geomspace(1e-2, 1e2, args.lams, dtype=np.float32 if args.float32 else np.float64)
        ways, factor, y = contestants(n, lams)
        for run in ways.values():
            timed(run)  # compiles
        rounds = [{name: timed(run)[0] for name, run in ways.items()} for _ in range(args.rounds)]
        for name in ways:
            shares = [one[name] / min(list(one.values())[:2]) for one in rounds]
            seconds = statistics.median(one[name] for one in rounds)
            print(
                f"| {n} | {name} | {seconds:.3g} | {statistics.median(shares):.2f} | {min(shares):.2f} – {max(shares):.2f} |",
                flush=True,
            )
        print(f"\nn = {n}: some pairs one by one differ by {difference(factor, y, lams):.1g}\n")


if __name__ == "__main__":
    main()
