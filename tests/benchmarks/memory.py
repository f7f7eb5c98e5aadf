"""Peak memory of the embedded run: 20,000 x 2,000 backward to 1,600.

    python tests/benchmarks/memory.py

Runs the job in a process of its own and asks the operating system for its largest resident size.
Exits with 1 if it is more than twice the input plus K 2 p² doubles.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from common import correlated_table, report, verdict

N_ROWS, N_COLUMNS, N_FOLDS = 20_000, 2_000, 5


def job() -> None:
    """Make the data, select, and print the peak before and after, in kB."""
    X, y = correlated_table(N_ROWS, N_COLUMNS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from elimination import dagsel_path

    dagsel_path(X, y, 1_600)
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> bool:
    """Run the job and compare."""
    output = subprocess.run(
        [sys.executable, __file__, "job"], check=True, capture_output=True, text=True
    ).stdout
    before, peak = (int(word) * 1024 / 1e6 for word in output.split())
    allowance = 8 * (N_ROWS * N_COLUMNS + N_FOLDS * 2 * N_COLUMNS**2) / 1e6
    report(
        f"peak memory, {N_ROWS:,} x {N_COLUMNS:,}",
        [
            ("with the data, before the run", before, "MB"),
            ("peak of the run", peak, "MB"),
            ("input plus K 2 p² doubles", allowance, "MB"),
        ],
    )
    return verdict("peak / (input + K 2 p² doubles)", peak / allowance, 2)


if __name__ == "__main__":
    if sys.argv[1:] == ["job"]:
        job()
    else:
        sys.exit(0 if main() else 1)
