"""What the benchmarks share: data, repetition, and a table of ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def correlated_table(
    n_rows: int, n_columns: int, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Gaussian columns, neighbours correlated by 0.5, half of them with signal."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns))
    for column in range(1, n_columns):
        X[:, column] = 0.5 * X[:, column - 1] + np.sqrt(0.75) * X[:, column]
    coefficients = np.zeros(n_columns)
    coefficients[::2] = rng.normal(size=len(coefficients[::2]))
    y = X @ coefficients + 3 * rng.normal(size=n_rows)
    return X, y


def seconds(function: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def alternate(
    functions: dict[str, Callable[[], object]], repetitions: int = 5
) -> dict[str, list[float]]:
    """Time functions in turn, A B A B …, so that a machine's changing speed hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Return the median, over repetitions, of the time of `one` over that of `other`."""
    pairs = zip(times[one], times[other], strict=True)
    return statistics.median(a / b for a, b in pairs)


def report(title: str, rows: Sequence[tuple[str, float, str]]) -> None:
    """Print a title and a line a figure."""
    print(f"\n{title}")
    width = max(len(name) for name, _, _ in rows)
    for name, value, unit in rows:
        print(f"  {name:<{width}}  {value:10.4g} {unit}")


def verdict(name: str, value: float, bound: float, *, at_least: bool = False) -> bool:
    """Print whether a figure meets its bound; return it."""
    met = value >= bound if at_least else value <= bound
    sign = ">=" if at_least else "<="
    print(f"  {'ok  ' if met else 'FAIL'}  {name}: {value:.3g} (bound {sign} {bound:g})")
    return met
