"""Selection on a Dask cluster from a Parquet dataset that no process reads as a whole.

    python dask_cluster.py --rows 200000 --columns 100

Writes a dataset of several files to a temporary folder, starts a cluster of two processes on this
machine, and selects half of the columns. On a cluster of your own, replace the `LocalCluster` by
`Client("tcp://scheduler:8786")` and the folder by a path or URL that every worker can read.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.linear_model import LinearRegression

import dagsel

N_FILES = 8


def write_dataset(folder: Path, n_rows: int, n_columns: int) -> None:
    """Write `N_FILES` Parquet files: columns `id`, `x0`, `x1`, … and `label`."""
    rng = np.random.default_rng(0)
    mixing = np.eye(n_columns) + rng.standard_normal((n_columns, n_columns)) / n_columns
    effects = rng.standard_normal(n_columns)
    for number, rows in enumerate(np.array_split(np.arange(n_rows), N_FILES)):
        features = rng.standard_normal((len(rows), n_columns)) @ mixing
        frame = pd.DataFrame(features, columns=[f"x{column}" for column in range(n_columns)])
        frame.insert(0, "id", rows)
        frame["label"] = features @ effects + 5.0 * rng.standard_normal(len(rows))
        frame.to_parquet(folder / f"part-{number:03d}.parquet", index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Select features on a local Dask cluster.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=100)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1) as cluster,
        Client(cluster) as client,
    ):
        write_dataset(Path(folder), options.rows, options.columns)
        selector = dagsel.SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=options.columns // 2,
            direction="backward",
            scoring="neg_mean_squared_error",
            client=client,  # not needed: the active client is found
        )
        selector.fit(dagsel.scan(folder, target="label", drop=["id"]))
        print(selector.plan_)
        print("Selected:", *selector.get_feature_names_out())


if __name__ == "__main__":
    main()
