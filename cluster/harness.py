"""Clusters for tests: the same thing in several forms, each a context manager yielding a client.

Every wait has a limit, and everything that was started is stopped, whatever happens. Clients are
not made the default of the process: a test says where it runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

__all__ = [
    "ClusterError",
    "CommandLineCluster",
    "command_line_cluster",
    "fake_cuda_cluster",
    "in_process",
    "local_cluster",
]

# Two busy cores import Dask in every process at once: generous, and only met when something broke.
_START_SECONDS = 90.0
_STOP_SECONDS = 10.0


class ClusterError(RuntimeError):
    """A cluster did not start; the message ends with what its processes printed."""


@contextmanager
def in_process() -> Iterator[None]:
    """Yield no client at all, for the same code as with one."""
    yield None


@contextmanager
def local_cluster(
    n_workers: int = 2, *, memory_limit: str | int | None = None, **options: Any
) -> Iterator[Client]:
    """Yield a client of worker processes that this process starts itself.

    Parameters
    ----------
    n_workers : int
        Worker processes, of one thread each.
    memory_limit : str or int, optional
        Of each; none by default.
    **options
        Passed on to `distributed.LocalCluster`.
    """
    from distributed import LocalCluster

    given = {
        "n_workers": n_workers,
        "threads_per_worker": 1,
        "processes": True,
        "memory_limit": memory_limit,
        "dashboard_address": ":0",
        **options,
    }
    with ExitStack() as stack:
        cluster = LocalCluster(**given)
        stack.callback(cluster.close, timeout=_STOP_SECONDS)
        client = _client(cluster, stack)
        client.wait_for_workers(n_workers, timeout=_START_SECONDS)
        yield client


def _client(where: Any, stack: ExitStack, **options: Any) -> Client:
    from distributed import Client

    client = Client(where, timeout=_START_SECONDS, set_as_default=False, **options)
    stack.callback(client.close, timeout=_STOP_SECONDS)
    return client


@dataclass
class CommandLineCluster:
    """The processes of a cluster that was started from the command line.

    Attributes
    ----------
    folder : Path
        Holds the scheduler file, the logs and the workers' local directories.
    security : Security or None
        What a client needs to connect.
    processes : dict of str to Popen
        By name: "scheduler", "worker-0" ….
    """

    folder: Path
    security: Security | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def scheduler_file(self) -> Path:
        """The file that says where the scheduler is."""
        return self.folder / "scheduler.json"

    def start(self, name: str, arguments: Sequence[str], **variables: str) -> None:
        """Start ``dask …`` with its output in a file, and these environment variables."""
        command = [sys.executable, "-m", "dask", *arguments]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment(), **variables},
                # A group of its own: so that a nanny's worker is stopped with it, and Ctrl-C in
                # the terminal that runs the tests goes to the tests.
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a process and its children, as a power cut would."""
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_STOP_SECONDS)

    def stop(self) -> None:
        """End all processes, workers first; kill those that take too long."""
        for name, process in reversed(self.processes.items()):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_STOP_SECONDS)
            self.kill(name)

    def logs(self) -> str:
        """Return the last lines of what every process printed."""
        parts = []
        for name, process in self.processes.items():
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            state = process.poll()
            ended = "running" if state is None else f"ended with {state}"
            parts.append("\n".join([f"--- {name} ({ended})", *text.splitlines()[-30:]]))
        return "\n".join(parts)

    def check(self) -> None:
        """Raise a `ClusterError` if a process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                msg = f"{name} ended with {process.returncode}\n{self.logs()}"
                raise ClusterError(msg)


@contextmanager
def command_line_cluster(
    n_workers: int = 2,
    *,
    memory_limit: str | None = None,
    tls: bool = False,
    worker_options: Sequence[str] = (),
) -> Iterator[Client]:
    """Yield a client of ``dask scheduler`` and ``dask worker`` processes.

    The client's attribute ``harness`` is the `CommandLineCluster`.

    Parameters
    ----------
    n_workers : int
        Worker processes, each with a nanny and one thread.
    memory_limit : str, optional
        Of each, such as "500MB"; none by default.
    tls : bool
        Encrypt, with a certificate made for this cluster.
    worker_options : sequence of str
        Further arguments of ``dask worker``.

    Raises
    ------
    ClusterError
        If the cluster does not start; with the output of its processes.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary_folder()))
        arguments, security = _tls(folder) if tls else ([], None)
        cluster = CommandLineCluster(folder, security)
        stack.callback(cluster.stop)
        _start_scheduler(cluster, [*arguments, *(["--protocol", "tls"] if tls else [])])
        common = (
            f"--scheduler-file {cluster.scheduler_file} --nworkers 1 --nthreads 1 --host 127.0.0.1 "
            f"--no-dashboard --local-directory {folder} --death-timeout 60 "
            f"--memory-limit {memory_limit or 0}"
        ).split()
        for number in range(n_workers):
            name = f"worker-{number}"
            cluster.start(name, ["worker", "--name", name, *common, *arguments, *worker_options])
        client = _connect(cluster, n_workers, stack)
        client.harness = cluster
        yield client


@contextmanager
def _temporary_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="dagsel-cluster-")
    try:
        yield folder
    finally:
        # Processes that were just killed may still be writing.
        shutil.rmtree(folder, ignore_errors=True)


def _start_scheduler(cluster: CommandLineCluster, arguments: Sequence[str]) -> None:
    file = str(cluster.scheduler_file)
    where = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file]
    cluster.start("scheduler", ["scheduler", *where, *arguments])
    deadline = time.monotonic() + _START_SECONDS
    while not cluster.scheduler_file.exists():
        cluster.check()
        if time.monotonic() > deadline:
            msg = f"no scheduler after {_START_SECONDS:g} s\n{cluster.logs()}"
            raise ClusterError(msg)
        time.sleep(0.05)


def _connect(cluster: CommandLineCluster, n_workers: int, stack: ExitStack) -> Client:
    try:
        client = _client(
            None, stack, scheduler_file=str(cluster.scheduler_file), security=cluster.security
        )
        deadline = time.monotonic() + _START_SECONDS
        while len(client.nthreads()) < n_workers and time.monotonic() < deadline:
            cluster.check()
            time.sleep(0.05)
        client.wait_for_workers(n_workers, timeout=1)
    except (OSError, TimeoutError) as error:
        msg = f"{n_workers} workers are not there after {_START_SECONDS:g} s\n{cluster.logs()}"
        raise ClusterError(msg) from error
    return client


def environment() -> Mapping[str, str]:
    """Let the processes import the modules of tests, so that their functions can be sent there.

    Not all of `sys.path`: it may hold folders whose files hide modules of the standard library.
    """
    root = Path(__file__).resolve().parents[1]
    before = os.environ.get("PYTHONPATH")
    known = [str(root), str(root / "tests"), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known)}


def _tls(folder: Path) -> tuple[list[str], Security]:
    """Make a certificate that stands for all roles; return command-line options and `Security`."""
    from distributed.security import Security

    temporary = Security.temporary()
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    key.write_text(temporary.tls_client_key)
    certificate.write_text(temporary.tls_client_cert)
    options = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]
    security = Security(
        require_encryption=True,
        tls_ca_file=str(certificate),
        tls_client_cert=str(certificate),
        tls_client_key=str(key),
    )
    return list(map(str, options)), security


@contextmanager
def fake_cuda_cluster(n_devices: int = 2) -> Iterator[Client]:
    """Yield a client of a `LocalCUDACluster` on a machine without GPUs.

    Shows placement (one worker a device, ``CUDA_VISIBLE_DEVICES``) and nothing of the devices:
    tasks that use one fail.
    """
    from dask_cuda import LocalCUDACluster

    with ExitStack() as stack:
        # Several devices and no device memory limit: then nothing asks the driver.
        cluster = LocalCUDACluster(
            CUDA_VISIBLE_DEVICES=",".join(map(str, range(n_devices))),
            device_memory_limit=0,
            data=dict,
            dashboard_address=":0",
            resources={"GPU": 1},
        )
        stack.callback(cluster.close, timeout=_STOP_SECONDS)
        client = _client(cluster, stack)
        # The constructor also returns when no worker came up.
        client.wait_for_workers(n_devices, timeout=_START_SECONDS)
        yield client
