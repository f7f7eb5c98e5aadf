"""dagsel on a SLURM cluster through dask-jobqueue: every worker process is a job of its own.

    python jobqueue.py --jobs 8 --memory 4GB -- select 'data/*.parquet' --target label -o results

Where `dagsel.sbatch` waits until all its nodes are free at once, this takes jobs as they come. It
runs on a login node or in a job of its own, and keeps the scheduler. What follows `--` are the
arguments of dagsel. What is not given as an option (partition, account, interface) is taken from
dask-jobqueue's configuration, `~/.config/dask/jobqueue.yaml`. `--dry-run` prints a job's script.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from typing import Any

from dask_jobqueue import SLURMCluster
from distributed import Client


def parsed() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=4, help="worker jobs (default: 4)")
    parser.add_argument("--cores", type=int, default=1, help="of each job (default: 1)")
    parser.add_argument("--memory", default="4GB", help="of each job (default: 4GB)")
    parser.add_argument("--walltime", default="01:00:00", help="of each job (default: 01:00:00)")
    parser.add_argument("--queue", help="partition")
    parser.add_argument("--account")
    parser.add_argument("--interface", help="network interface that the nodes share, such as ib0")
    parser.add_argument("--gpus", type=int, default=0, help="of each job, with a worker for each")
    parser.add_argument("--logs", default="dagsel-jobs", help="folder (default: dagsel-jobs)")
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        help="seconds that all jobs may take to leave the queue and start (default: 3600)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the script of a job")
    parser.add_argument("arguments", nargs="*", metavar="DAGSEL_ARGUMENT")
    options = parser.parse_args()
    if not (options.arguments or options.dry_run):
        parser.error("give the arguments of dagsel after --, such as: -- select DATA --target NAME")
    return options


def cluster_of(options: argparse.Namespace) -> SLURMCluster:
    """Return a cluster that has a scheduler and no jobs yet."""
    workers = max(1, options.gpus)
    # A worker has one task at a time, whose matrix products may use all its cores.
    threads = max(1, options.cores // workers)
    libraries = ("OMP", "OPENBLAS", "MKL")
    environ = {f"{library}_NUM_THREADS": threads for library in libraries}
    given: dict[str, Any] = {
        "queue": options.queue,
        "account": options.account,
        "interface": options.interface,
    }
    if options.gpus:
        given["worker_command"] = "dask cuda worker"
        given["job_extra_directives"] = [f"--gres=gpu:{options.gpus}"]
    return SLURMCluster(
        # What dask-jobqueue calls cores are threads with a task each.
        cores=workers,
        processes=workers,
        job_cpu=options.cores,
        memory=options.memory,
        walltime=options.walltime,
        log_directory=options.logs,
        local_directory="/tmp",
        job_script_prologue=[f'export DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON="{environ}"'],
        scheduler_options={"dashboard_address": ":0"},
        **given,
    )


def run(arguments: list[str], address: str) -> int:
    """Run dagsel as a process, and hand SIGTERM on to it; return its exit code."""
    command = [sys.executable, "-m", "dagsel.cli", *arguments, "--scheduler", address]
    # In a session of its own: or Ctrl-C would reach it twice, from the terminal and from here, and
    # the second signal would end it before it has written what it has decided.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    ended = threading.Event()

    def end(*_: object) -> None:
        if not ended.is_set():
            ended.set()
            process.terminate()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)
    return process.wait()


def main() -> int:
    """Start the jobs, wait for their workers, run dagsel, and cancel the jobs."""
    options = parsed()
    # Raised in `wait_for_workers`, so that the jobs are cancelled.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with cluster_of(options) as cluster:
        if options.dry_run:
            print(cluster.job_script())
            return 0
        cluster.scale(jobs=options.jobs)
        n_workers = options.jobs * max(1, options.gpus)
        with Client(cluster, set_as_default=False) as client:
            try:
                # All of them, because dagsel divides its work among those that it finds.
                client.wait_for_workers(n_workers, timeout=options.wait)
            except TimeoutError:
                there = len(client.nthreads())
                print(
                    f"jobqueue.py: {there} of {n_workers} workers after {options.wait:g} s; see "
                    f"squeue and the jobs' output in {options.logs}",
                    file=sys.stderr,
                )
                return 1
        return run(options.arguments, cluster.scheduler_address)


if __name__ == "__main__":
    sys.exit(main())
