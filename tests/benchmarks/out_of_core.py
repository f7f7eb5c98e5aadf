"""A Parquet data set of 3 GB on workers that may use 1 GB each.

    python tests/benchmarks/out_of_core.py [FOLDER]

Writes 1,000,000 rows of 400 columns block by block (kept in FOLDER if one is given), then runs
backward elimination on a cluster of two workers, each with a memory limit of 1 GB and the
operating system's word for its largest resident size. Exits with 1 if the run fails, a worker is
restarted, or the selected subset's fold scores differ from those of normal equations that this
script sums up itself.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import report, verdict
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression

N_ROWS, N_COLUMNS, BLOCK = 1_000_000, 400, 25_000
GB = 10**9


def write(folder: Path) -> int:
    """Write the data set, a row group a block; return its size in bytes."""
    rng = np.random.default_rng(0)
    names = [f"x{column:03d}" for column in range(N_COLUMNS)]
    coefficients = np.where(np.arange(N_COLUMNS) % 2, 0.0, rng.normal(size=N_COLUMNS))
    for part in range(4):
        path = folder / f"part-{part}.parquet"
        writer = None
        for _ in range(N_ROWS // BLOCK // 4):
            X = rng.normal(size=(BLOCK, N_COLUMNS))
            X[:, 1:] += 0.5 * X[:, :-1]
            y = X @ coefficients + 5 * rng.normal(size=BLOCK)
            table = pa.table([*X.T, y], names=[*names, "label"])
            writer = writer or pq.ParquetWriter(
                path, table.schema, compression="none", use_dictionary=False
            )
            writer.write_table(table)
        assert writer is not None
        writer.close()
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def fold_scores(folder: Path, columns: NDArray[np.intp], n_folds: int = 5) -> NDArray[np.float64]:
    """Return the subset's negative mean squared errors in contiguous folds, by a second way."""
    names = [*(f"x{column:03d}" for column in columns), "label"]
    width = len(names) + 1
    sums = np.zeros((n_folds, width, width))
    row = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(BLOCK, columns=names):
            block = np.column_stack([np.ones(len(batch)), *(batch[name] for name in names)])
            sums[row * n_folds // N_ROWS] += block.T @ block  # blocks lie in one fold
            row += len(batch)
    scores = []
    for test in sums:
        train = sums.sum(axis=0) - test
        beta = np.append(np.linalg.solve(train[:-1, :-1], train[:-1, -1]), -1.0)
        scores.append(-(beta @ test @ beta) / test[0, 0])
    return np.array(scores)


def peak_memory() -> float:
    """Return this process's largest resident size in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(folder: Path) -> bool:
    """Write the data set if need be, select, and compare."""
    from distributed import Client, LocalCluster

    import dagsel

    size = sum(path.stat().st_size for path in folder.glob("*.parquet")) or write(folder)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=1 * GB, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        before = client.run(os.getpid)
        began = time.perf_counter()
        selector = dagsel.SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=200,
            direction="backward",
            scoring="neg_mean_squared_error",
        ).fit(dagsel.scan(str(folder / "*.parquet"), target="label"))
        spent = time.perf_counter() - began
        peaks = client.run(peak_memory)
        same_workers = client.run(os.getpid) == before
    found = selector.selection_.rounds[-1].fold_scores
    expected = fold_scores(folder, selector.get_support(indices=True))
    gap = float(np.max(np.abs(found / expected - 1)))
    report(
        f"{N_ROWS:,} x {N_COLUMNS} float64 Parquet, two workers of 1 GB, backward to 200",
        [
            ("data set", size / GB, "GB"),
            ("time", spent, "s"),
            ("throughput", size / GB / spent, "GB/s"),
            ("client's peak", peak_memory() / GB, "GB"),
        ],
    )
    print(f"  no worker was restarted: {same_workers}")
    met = [
        same_workers,
        verdict("largest worker's peak, GB", max(peaks.values()) / GB, 1),
        verdict("relative gap of the last fold scores", gap, 1e-9),
        verdict("data set, GB", size / GB, 3, at_least=True),
    ]
    return all(met)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if run(target) else 1)
    with tempfile.TemporaryDirectory() as name:
        sys.exit(0 if run(Path(name)) else 1)
