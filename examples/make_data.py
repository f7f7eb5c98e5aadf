"""Write a table like the one that the selection script is meant for.

    python make_data.py data.csv --rows 4000 --columns 2000

The columns are `Path` (text), `id`, the features `f0000`, `f0001`, … and `label`. The features are
correlated: each is a mix of a few hidden factors and noise of its own. One feature in four has an
effect on the label. The file is written in chunks, so its size is not limited by memory, and its
content depends on the seed alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import csv

N_FACTORS = 40
CHUNK_ROWS = 500


def chunks(n_rows: int, n_columns: int, seed: int) -> Iterator[list[object]]:
    """Yield the table in pieces, each a list of columns."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((N_FACTORS, n_columns)) / np.sqrt(N_FACTORS)
    scales = rng.uniform(0.5, 5.0, n_columns)
    effects = np.where(np.arange(n_columns) % 4 == 0, rng.standard_normal(n_columns), 0.0)
    for start in range(0, n_rows, CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, n_rows))
        # One draw a row, so that the numbers do not depend on the size of a chunk.
        drawn = rng.standard_normal((len(rows), N_FACTORS + n_columns + 1))
        features = (drawn[:, :N_FACTORS] @ loadings + drawn[:, N_FACTORS:-1]) * scales
        label = features @ (effects / scales) + 10.0 * drawn[:, -1]
        paths = [f"scans/batch{row // 1000:03d}/{row:07d}.png" for row in rows]
        # Rounded, as measured numbers are; it keeps the file small.
        yield [paths, rows, *np.round(features.T, 4), np.round(label, 4)]


def write(path: str, n_rows: int, n_columns: int, seed: int) -> None:
    """Write the table as CSV."""
    names = ["Path", "id", *(f"f{number:04d}" for number in range(n_columns)), "label"]
    numbers = [(name, pa.float64()) for name in names[2:]]
    schema = pa.schema([("Path", pa.string()), ("id", pa.int64()), *numbers])
    with csv.CSVWriter(path, schema) as writer:
        for columns in chunks(n_rows, n_columns, seed):
            writer.write(pa.record_batch([pa.array(column) for column in columns], schema=schema))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a table of correlated features as CSV.")
    parser.add_argument("path", nargs="?", default="data.csv")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--columns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.rows < 1 or options.columns < 1:
        parser.error("--rows and --columns must be positive")
    write(options.path, options.rows, options.columns, options.seed)
    print(f"{options.path}: {options.rows} rows, {options.columns} features")


if __name__ == "__main__":
    main()
