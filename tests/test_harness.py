from __future__ import annotations

import os
import time
from typing import Any

import pytest
from distributed import Client

from cluster import harness


def in_worker(x: int) -> tuple[int, int]:
    return os.getpid(), x + 1


def test_each_form_runs_functions_of_this_module(cluster: Client | None) -> None:
    if cluster is None:
        assert in_worker(1) == (os.getpid(), 2)
        return
    assert sorted(cluster.nthreads().values()) == [1, 1]
    pid, two = cluster.submit(in_worker, 1, pure=False).result(timeout=30)
    assert two == 2
    assert pid != os.getpid()


def test_clients_are_not_the_default(cluster: Client | None) -> None:
    del cluster
    with pytest.raises(ValueError, match="No clients"):
        Client.current()


def test_in_process_yields_no_client() -> None:
    with harness.in_process() as client:
        assert client is None


def test_command_line_workers_have_limits_nannies_and_encryption() -> None:
    with harness.command_line_cluster(1, memory_limit="500MB", tls=True) as client:
        processes = client.harness.processes
        folder = client.harness.folder
        assert client.scheduler.address.startswith("tls://")
        info = client.scheduler_info()["workers"].values()
        assert [worker["memory_limit"] for worker in info] == [500_000_000]
        assert [bool(worker["nanny"]) for worker in info] == [True]
        (pid,) = client.run(os.getpid).values()
        assert pid != processes["worker-0"].pid
    assert all(process.poll() is not None for process in processes.values())
    assert not is_running(pid)
    assert not folder.exists()


def test_a_cluster_that_does_not_start_shows_what_its_processes_said() -> None:
    with (
        pytest.raises(harness.ClusterError, match=r"(?s)worker-0 ended .*not a valid integer"),
        harness.command_line_cluster(1, worker_options=["--nthreads", "none"]),
    ):
        pass


@pytest.mark.filterwarnings("ignore:Cannot get CPU affinity:UserWarning")
def test_fake_cuda_cluster_has_a_worker_for_every_device() -> None:
    pytest.importorskip("dask_cuda", reason="dask_cuda wants the Dask release that it is made for")
    with harness.fake_cuda_cluster(2) as client:
        seen: dict[Any, str] = client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
        assert sorted(seen.values()) == ["0,1", "1,0"]


def is_running(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
