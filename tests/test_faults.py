"""Workers, schedulers and clients that are killed, in every phase of a run of every engine.

A killed worker changes nothing but the time. A killed scheduler ends the run in one clear error,
and a killed client just ends; the journal then has what was decided, another cluster goes on from
it, and the selection is that of an undisturbed run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from distributed import Client
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

import dagsel
from cluster import harness
from dagsel import SequentialFeatureSelector, load_checkpoint, tasks
from dagsel.executors.cluster import ClusterExecutor

pytestmark = pytest.mark.slow

N_COLUMNS, LEFT = 24, 4
LIMIT = 120  # seconds


class Phase(NamedTuple):
    """A task of a run, by its label, counted from 1."""

    engine: str
    shards: int
    label: str
    number: int

    def __str__(self) -> str:
        shards = f"-{self.shards}" if self.shards > 1 else ""
        return f"{self.engine}{shards}-{self.label.removeprefix('dagsel_')}-{self.number}"


PHASES = [
    Phase("moments", 1, "dagsel_pilot", 1),
    Phase("moments", 1, "dagsel_moments", 1),
    Phase("moments", 1, "dagsel_sum", 1),
    Phase("moments", 1, "dagsel_fold", 2),
    Phase("moments", 1, "dagsel_rounds", 1),
    Phase("moments", 1, "dagsel_rounds", 2),
    Phase("moments", 2, "dagsel_fold", 1),
    Phase("moments", 2, "dagsel_score", 1),
    Phase("moments", 2, "dagsel_score", 8),
    Phase("rows", 1, "dagsel_data", 1),
    Phase("rows", 1, "dagsel_fold", 1),
    Phase("rows", 1, "dagsel_rounds", 1),
    Phase("rows", 1, "dagsel_rounds", 2),
    Phase("rows", 2, "dagsel_score", 7),
    Phase("refit", 1, "dagsel_data", 1),
    Phase("refit", 1, "dagsel_refit", 1),
    Phase("refit", 1, "dagsel_refit", 9),
]


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, N_COLUMNS)) @ (np.eye(N_COLUMNS) + 0.1)
    return X, X[:, :6].sum(axis=1) + rng.normal(size=400)


def selector(phase: Phase, **parameters: Any) -> SequentialFeatureSelector:
    scoring = "neg_mean_absolute_error" if phase.engine == "rows" else "neg_mean_squared_error"
    return SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=LEFT,
        direction="backward",
        scoring=scoring,
        cv=KFold(3),
        engine=phase.engine,
        **parameters,
    )


def divided(phase: Phase, patch: Any) -> None:
    """Have the folds divided into shards, as where one worker cannot hold all of them."""
    if phase.shards > 1:
        patch("dagsel.plan._shards_that_fit", lambda *_: phase.shards)


class Trigger:
    """Acts once a task has been sent: the run is in the midst of that phase, however fast it is."""

    def __init__(self, phase: Phase, act: Any) -> None:
        self.phase, self.act = phase, act
        self.n_tasks = 0
        self.done = False

    def watch(self, patch: Any) -> None:
        submit = ClusterExecutor.submit

        def submit_and_act(executor: Any, *args: Any, label: str, **options: Any) -> Any:
            handle = submit(executor, *args, label=label, **options)
            self.n_tasks += label == self.phase.label
            if not self.done and self.n_tasks == self.phase.number:
                self.done = True
                self.act(handle)
            return handle

        patch("dagsel.executors.cluster.ClusterExecutor.submit", submit_and_act)


def assert_same(found: Any, expected: Any, phase: Phase) -> None:
    assert [done.subset for done in found.rounds] == [done.subset for done in expected.rounds]
    rtol = 0 if phase.engine == "refit" else 1e-10
    for one, other in zip(found.rounds, expected.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=rtol)
    assert found.complete


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def assert_clean(client: Any) -> None:
    """Nothing of a run is left: no results, and no states in the workers' memory."""
    wait_for(lambda: not client.run_on_scheduler(_tasks_of_dagsel), "tasks are left")
    wait_for(
        lambda: not any(client.run(lambda: len(tasks._states)).values()), "workers keep states"
    )


def _tasks_of_dagsel(dask_scheduler: Any) -> list[str]:
    return [key for key in dask_scheduler.tasks if str(key).startswith("dagsel")]


def address_of(client: Any, key: str) -> str:
    def holder(dask_scheduler: Any) -> str | None:
        task = dask_scheduler.tasks.get(key)
        workers = [] if task is None else [task.processing_on, *(task.who_has or ())]
        return next((worker.address for worker in workers if worker is not None), None)

    found: str = wait_for(lambda: client.run_on_scheduler(holder), f"{key} is nowhere")
    return found


@pytest.fixture(scope="module")
def calm() -> dict[tuple[str, int], Any]:
    """Undisturbed selections of every engine."""
    found: dict[tuple[str, int], Any] = {}
    for phase in PHASES:
        if (phase.engine, phase.shards) not in found:
            fitted = selector(phase).fit(*rows())
            found[phase.engine, phase.shards] = fitted.selection_
    return found


@pytest.fixture(scope="module")
def nannied() -> Any:
    """A cluster whose nannies start another worker in the place of one that is killed."""
    with harness.command_line_cluster(2) as client:
        yield client


@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_a_killed_worker_changes_nothing(nannied, calm, monkeypatch, phase):
    wait_for(lambda: len(nannied.nthreads()) == 2, "the nanny starts no other worker")
    killed: list[str] = []

    def kill(handle: Any) -> None:
        killed.append(address_of(nannied, handle.key))
        (pid,) = nannied.run(os.getpid, workers=killed).values()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: killed[0] not in nannied.nthreads(), "the loss is not noticed")

    divided(phase, monkeypatch.setattr)
    trigger = Trigger(phase, kill)
    trigger.watch(monkeypatch.setattr)
    found = selector(phase, client=nannied).fit(*rows()).selection_
    assert trigger.done
    assert_same(found, calm[phase.engine, phase.shards], phase)
    assert_clean(nannied)


# Every kind of task once; starting a cluster for each takes its time.
@pytest.mark.parametrize("phase", PHASES[::2], ids=str)
def test_a_killed_scheduler_is_one_clear_error_and_the_journal_goes_on(
    nannied, calm, monkeypatch, tmp_path, phase
):
    with (
        harness.command_line_cluster(1) as cluster,
        # One that does not try for long to find the scheduler again.
        Client(cluster.scheduler.address, timeout=5, set_as_default=False) as client,
    ):
        with monkeypatch.context() as patch:
            divided(phase, patch.setattr)
            trigger = Trigger(phase, lambda _: cluster.harness.kill("scheduler"))
            trigger.watch(patch.setattr)
            ended = selector(phase, client=client, checkpoint=tmp_path)
            began = time.monotonic()
            with pytest.raises(dagsel.DagselError, match="the connection to the scheduler at"):
                ended.fit(*rows())
            assert time.monotonic() - began < LIMIT
        assert trigger.done
    left = load_checkpoint(tmp_path)
    assert [done.move for done in left.rounds] == [done.move for done in ended.selection_.rounds]
    divided(phase, monkeypatch.setattr)
    found = selector(phase, client=nannied, checkpoint=tmp_path).fit(*rows()).selection_
    assert_same(found, calm[phase.engine, phase.shards], phase)
    assert [done.move for done in found.rounds[: len(left.rounds)]] == [
        done.move for done in left.rounds
    ]


CLIENT = """
import os, signal, sys
from distributed import Client
import test_faults as faults

phase = faults.PHASES[int(sys.argv[1])]


def patch(name, value):
    module, _, last = name.rpartition(".")
    parts = module.split(".")
    owner = __import__(module if parts[-1].islower() else ".".join(parts[:-1]), fromlist=["x"])
    setattr(owner if parts[-1].islower() else getattr(owner, parts[-1]), last, value)


faults.divided(phase, patch)
faults.Trigger(phase, lambda _: os.kill(os.getpid(), signal.SIGKILL)).watch(patch)
with Client(sys.argv[2]) as client:
    faults.selector(phase, client=client, checkpoint=sys.argv[3]).fit(*faults.rows())
"""


@pytest.mark.parametrize("number", range(len(PHASES)), ids=lambda number: str(PHASES[number]))
def test_a_killed_client_leaves_nothing_behind_and_its_journal_goes_on(
    nannied, calm, monkeypatch, tmp_path, number
):
    phase = PHASES[number]
    arguments = [str(number), nannied.scheduler.address, str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        env=harness.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert_clean(nannied)
    divided(phase, monkeypatch.setattr)
    found = selector(phase, client=nannied, checkpoint=tmp_path).fit(*rows()).selection_
    assert_same(found, calm[phase.engine, phase.shards], phase)
    assert_clean(nannied)
