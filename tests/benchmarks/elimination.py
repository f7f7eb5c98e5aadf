"""How long backward elimination takes, as ratios within one run.

    python tests/benchmarks/elimination.py small      # 20,000 x 40 to 35, against mlxtend
    python tests/benchmarks/elimination.py large      # 20,000 x 2,000 to 1,600, against the floor
    python tests/benchmarks/elimination.py cluster    # the same on two workers, against embedded

Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
from common import alternate, correlated_table, ratio, report, seconds, verdict
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from threadpoolctl import threadpool_info

from dagsel.mlxtend import SequentialFeatureSelector

N_FOLDS = 5
SCORING = "neg_mean_squared_error"


def dagsel_path(
    X: NDArray[np.float64], y: NDArray[np.float64], k: int, client: object = None
) -> SequentialFeatureSelector:
    """Run the job in this process, or on a client's cluster."""
    selector = SequentialFeatureSelector(
        LinearRegression(), k_features=k, forward=False, scoring=SCORING, client=client
    )
    return selector.fit(X, y)


def gram_loop(X: NDArray[np.float64], y: NDArray[np.float64], k: int) -> tuple[int, ...]:
    """Do the job with Gram matrices in plain NumPy: one small solve a candidate and fold."""
    n, p = X.shape
    folds = []
    for test in np.array_split(np.arange(n), N_FOLDS):
        train = np.ones(n, dtype=bool)
        train[test] = False
        mean, target_mean = X[train].mean(axis=0), y[train].mean()
        A, b = X[train] - mean, y[train] - target_mean
        C, d = X[test] - mean, y[test] - target_mean
        folds.append((A.T @ A, A.T @ b, C.T @ C, C.T @ d, d @ d, len(test)))
    active = list(range(p))
    while len(active) > k:
        scores = []
        for j in active:
            S = np.array([i for i in active if i != j])
            score = 0.0
            for G, b, H, c, s, n_test in folds:
                beta = np.linalg.solve(G[np.ix_(S, S)], b[S])
                score -= (s - 2 * beta @ c[S] + beta @ H[np.ix_(S, S)] @ beta) / n_test
            scores.append(score / N_FOLDS)
        active.remove(active[int(np.argmax(scores))])
    return tuple(active)


def small() -> bool:
    """20,000 rows, 40 columns, five removals."""
    from mlxtend.feature_selection import SequentialFeatureSelector as Mlxtend

    X, y = correlated_table(20_000, 40)
    found = {}

    def run_mlxtend() -> None:
        selector = Mlxtend(LinearRegression(), k_features=35, forward=False, scoring=SCORING)
        found["mlxtend"] = selector.fit(X, y)

    def run_dagsel() -> None:
        found["dagsel"] = dagsel_path(X, y, 35)

    def run_loop() -> None:
        found["loop"] = gram_loop(X, y, 35)

    run_dagsel()
    run_loop()
    times = alternate({"dagsel": run_dagsel, "loop": run_loop, "mlxtend": run_mlxtend})
    report(
        "20,000 x 40 backward to 35, 5 folds (median of 5)",
        [(name, statistics.median(each), "s") for name, each in times.items()],
    )
    same = found["dagsel"].k_feature_idx_ == found["mlxtend"].k_feature_idx_ == found["loop"]
    gap = abs(found["dagsel"].k_score_ / found["mlxtend"].k_score_ - 1)
    print(f"  same features in all three: {same}; relative gap of the scores: {gap:.1e}")
    met = [
        verdict("mlxtend / dagsel", ratio(times, "mlxtend", "dagsel"), 100, at_least=True),
        verdict("dagsel / plain NumPy loop", ratio(times, "dagsel", "loop"), 2),
    ]
    return same and gap < 1e-9 and all(met)


def floor_operations(n: int, p: int, k: int) -> float:
    """Operations that the job needs in exact arithmetic with symmetry used throughout."""
    return n * p**2 + N_FOLDS * (5 * p**3 + sum(3 * m**2 for m in range(k, p + 1)))


def product_rate(size: int = 2000) -> float:
    """Measure this machine's double-precision matrix product, in operations a second."""
    A = np.random.default_rng(0).normal(size=(size, size))
    A @ A
    return 2 * size**3 / min(seconds(lambda: A @ A) for _ in range(3))


def large() -> bool:
    """20,000 rows, 2,000 columns, 400 removals, in this process."""
    n, p, k = 20_000, 2_000, 1_600
    X, y = correlated_table(n, p)
    print([(info["internal_api"], info.get("architecture")) for info in threadpool_info()])
    dagsel_path(X, y, k)
    shares, times = [], []
    for _ in range(5):
        before = product_rate()
        spent = seconds(lambda: dagsel_path(X, y, k))
        rate = (before + product_rate()) / 2
        times.append(spent)
        shares.append(spent * rate / floor_operations(n, p, k))
    report(
        f"{n:,} x {p:,} backward to {k:,}, 5 folds, embedded (median of 5)",
        [
            ("dagsel", statistics.median(times), "s"),
            ("matrix product", product_rate() / 1e9, "GFLOP/s"),
        ],
    )
    return verdict("dagsel / matrix product", statistics.median(shares), 2.5)


def cluster() -> bool:
    """The large job on two single-threaded workers, against this process with two threads."""
    from distributed import Client, LocalCluster

    X, y = correlated_table(20_000, 2_000)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers, set_as_default=False) as client,
    ):
        found = {}

        def embedded() -> None:
            found["embedded"] = dagsel_path(X, y, 1_600)

        def on_cluster() -> None:
            found["cluster"] = dagsel_path(X, y, 1_600, client)

        embedded()
        on_cluster()
        times = alternate({"embedded": embedded, "cluster": on_cluster})
    report(
        "20,000 x 2,000 backward to 1,600 (median of 5)",
        [(name, statistics.median(each), "s") for name, each in times.items()],
    )
    same = found["embedded"].k_feature_idx_ == found["cluster"].k_feature_idx_
    gap = abs(found["embedded"].k_score_ / found["cluster"].k_score_ - 1)
    print(f"  same features: {same}; relative gap of the scores: {gap:.1e}")
    met = verdict("cluster / embedded", ratio(times, "cluster", "embedded"), 1.6)
    return same and gap < 1e-10 and met


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["small", "large", "cluster"]
    results = [{"small": small, "large": large, "cluster": cluster}[name]() for name in chosen]
    sys.exit(0 if all(results) else 1)
