from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from libraries import Library, libraries
from threadpoolctl import threadpool_limits

# `cluster` is no part of the installed package.
sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster import harness

if "PYTEST_XDIST_WORKER" in os.environ:
    # Test processes share the cores: more threads than that wait for each other.
    threadpool_limits(1)
    for library_of_threads in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library_of_threads}_NUM_THREADS", "1")

if TYPE_CHECKING:
    from distributed import Client

FORMS = ("in-process", "local-processes", "command-line")


@pytest.fixture(params=list(libraries()), ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Library:
    """An array library, and a device of it that is not the default where it has one."""
    chosen: Library = request.param
    return chosen


@pytest.fixture(scope="session")
def local_client() -> Iterator[Client]:
    """A client of two worker processes; not the default client."""
    with harness.local_cluster(2) as client:
        yield client


@pytest.fixture(scope="session")
def command_line_client() -> Iterator[Client]:
    """A client of a scheduler and two workers started from the command line."""
    with harness.command_line_cluster(2) as client:
        yield client


@pytest.fixture(params=FORMS)
def cluster(request: pytest.FixtureRequest) -> Any:
    """A client, or None to run in process: the same test must pass with each."""
    if request.param == "in-process":
        return None
    name = {"local-processes": "local_client", "command-line": "command_line_client"}
    return request.getfixturevalue(name[request.param])
