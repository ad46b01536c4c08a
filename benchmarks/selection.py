"""Greedy choices by leave-one-out: their time, beside a loop of refits, and landmarks that labels
chose beside those of K alone.

python benchmarks/selection.py               # some three minutes; --quick for small sizes

Time is of the second call, medians of interleaved rounds. scikit-learn's SequentialFeatureSelector
chooses by the same criterion, leave-one-out of ridge regression with an intercept, by a refit for
every row, column and step: its columns must be ours."""

import argparse
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

import jaxrls as rls

BASE = {"n": 4000, "d": 500, "num": 20}
LAM = 1.0


def drawn(n, d):
    """Columns, every tenth of which labels depend on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, ::10] @ rng.normal(size=X[:, ::10].shape[1]) + rng.normal(size=n)


def exponents(base, rounds):
    """Time against each of n, d and num, doubled twice."""
    print("| of | sizes | seconds | exponent |\n|---|---|---|---|")
    for name in base:
        sizes = [base[name] * factor for factor in (1, 2, 4)]
        contestants = {}
        for size in sizes:
            shape = {**base, name: size}
            X, y = map(jnp.asarray, drawn(shape["n"], shape["d"]))
            contestants[str(size)] = functools.partial(rls.select_columns, X, y, shape["num"], LAM)
        times, _, failures = interleaved(contestants, rounds)
        assert not failures, failures
        seconds = [times[str(size)].median for size in sizes]
        slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        print(
            f"| {name} | {', '.join(map(str, sizes))} | {', '.join(f'{s:.3g}' for s in seconds)} | {slope:.2f} |"
        )


def beside_refits(n, d, num, rounds):
    """Ours and a loop of refits."""
    from sklearn.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import LeaveOneOut

    X, y = drawn(n, d)
    options = {
        "n_features_to_select": num,
        "cv": LeaveOneOut(),
        "scoring": "neg_mean_squared_error",
    }
    selector = SequentialFeatureSelector(Ridge(alpha=LAM), **options)
    A, b = map(jnp.asarray, (X, y))
    contestants = {
        "ours": lambda: rls.select_columns(A, b, num, LAM),
        "scikit-learn": lambda: selector.fit(X, y),
    }
    times, results, failures = interleaved(contestants, rounds)
    assert not failures, failures
    assert set(np.flatnonzero(selector.get_support())) == set(results["ours"].columns.tolist()), (
        "other columns"
    )
    ours, theirs = times["ours"].median, times["scikit-learn"].median
    print(
        f"\n{num} of {d} columns, {n} rows: {ours:.2g} s, SequentialFeatureSelector with leave-one-out {theirs:.3g} s, the same columns"
    )


def landmarks(sizes, draws):
    """Test error of landmarks by labels, and of random pivots, on airfoil: 700 rows to fit, 803 to
    test, at one λ.
    """
    X, y, _ = rls.airfoil()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(0).permutation(len(X))
    fitted, tested = order[:700], order[700:]
    kernel, lam = rls.Gaussian(2.0), 1e-3

    def error(chosen):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = rls.fit(kernel, X[fitted], y[fitted], landmarks=chosen, lams=[lam])
        return np.mean((fit.predict(X[tested]) - y[tested]) ** 2)

    print("\n| landmarks, airfoil | by labels | random pivots, mean of draws |\n|---|---|---|")
    for m in sizes:
        pivots = [
            error(rls.landmarks(kernel, X[fitted], m, key=jax.random.key(seed)))
            for seed in range(draws)
        ]
        print(
            f"| {m} | {error(rls.select_landmarks(kernel, X[fitted], y[fitted], m, lam).landmarks):.1f} | {np.mean(pivots):.1f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    exponents({"n": 200, "d": 50, "num": 3} if args.quick else BASE, args.rounds)
    beside_refits(*((40, 8, 2) if args.quick else (100, 20, 4)), args.rounds)
    landmarks((10,) if args.quick else (10, 30, 100), 1 if args.quick else 5)
