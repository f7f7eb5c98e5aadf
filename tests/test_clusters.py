"""One selection, whatever it runs on and however its rows arrive."""

from __future__ import annotations

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import cache

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from conftest import FORMS
from problems import PROBLEMS, product_of
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit

import dagsel
from cluster import harness
from dagsel import DagselWarning, Selection, SequentialFeatureSelector, scan, tasks, worker_loss
from dagsel.executors import cluster as executors
from dagsel.executors.cluster import ClusterExecutor
from dagsel.executors.local import LocalExecutor
from dagsel.monitor import LogMonitor, TaskProgress
from dagsel.plan import make_plan
from dagsel.scheduler import run_search

RTOL = 1e-10


def table(n=400, p=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 1.2 / p * rng.normal(size=(p, p))) + 3
    y = X[:, ::2] @ rng.normal(size=(p + 1) // 2) + rng.normal(size=n)
    return X, y


def frame(n=400, p=9, seed=0):
    X, y = table(n, p, seed)
    data = pd.DataFrame(X, columns=[f"x{column}" for column in range(p)])
    data["label"] = y
    return data


def select(X, y=None, **parameters):
    parameters = {
        "estimator": LinearRegression(),
        "n_features_to_select": 2,
        "direction": "backward",
        "scoring": "neg_mean_squared_error",
        "cv": KFold(4, shuffle=True, random_state=0),
        **parameters,
    }
    return SequentialFeatureSelector(**parameters).fit(X, y).selection_


def assert_same(selection, reference, rtol=RTOL):
    assert [r.feature_index for r in selection.rounds] == [
        r.feature_index for r in reference.rounds
    ]
    for one, other in zip(selection.rounds, reference.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=rtol)
        assert one.move.runner_up == other.move.runner_up
        if other.runner_up is not None:
            assert one.runner_up_mean == pytest.approx(other.runner_up_mean, rel=1e-9)


def assert_clean(client):
    """Nothing of a run is left on a cluster."""
    if client is None:
        assert not tasks._states
        return
    gc.collect()  # tracebacks of earlier tests' errors hold futures
    deadline = time.monotonic() + 10
    while any(client.who_has().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(client.who_has().values())
    assert not any(client.run(lambda: len(tasks._states)).values())


# --------------------------------------------------------------------------------------------------
# Every engine on every form


@cache
def reference_of(**parameters):
    """Return what is selected from `table()` in this process."""
    return select(*table(), **parameters)


@pytest.mark.parametrize(
    ("cluster", "engine", "floating", "direction"),
    product_of(
        FORMS,
        ["moments", "rows", "refit"],
        [False, True],
        ["backward", "forward"],
        plain=lambda i, j, k, m: (i + j + k) % 2 == m,
    ),
    indirect=["cluster"],
)
def test_same_selection_on_every_form(cluster, engine, floating, direction):
    X, y = table()
    parameters = {
        "engine": engine,
        "floating": floating,
        "direction": direction,
        "n_features_to_select": 4,
    }
    reference = reference_of(**parameters)
    selection = select(X, y, client=cluster, **parameters)
    # Refits are the same computation on the same rows wherever they run.
    assert_same(selection, reference, rtol=0 if engine == "refit" else RTOL)
    assert selection.engines == (engine,)
    assert_clean(cluster)


@pytest.mark.parametrize(
    ("problem", "cluster"),
    product_of(PROBLEMS, FORMS, plain=lambda i, j: j == 1 + i % 2),
    indirect=["cluster"],
    ids=str,
)
def test_every_problem_on_every_form(cluster, problem):
    X, y = problem.load()
    parameters = {"n_features_to_select": max(1, X.shape[1] - 4), "cv": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DagselWarning)
        reference = select(X, y, **parameters)
        selection = select(X, y, client=cluster, **parameters)
    assert_same(selection, reference)
    assert selection.engines == (problem.engine,)


def test_splitters_with_several_passes(cluster):
    X, y = table()
    parameters = {"cv": ShuffleSplit(3, test_size=0.3, random_state=1), "estimator": Ridge(2.0)}
    assert_same(select(X, y, client=cluster, **parameters), select(X, y, **parameters))


def test_frames_keep_their_names_on_every_form(cluster):
    data = frame()
    selection = select(data, "label", client=cluster)
    assert_same(selection, reference_of())
    assert selection.rounds[-1].names[0].startswith("x")


def test_a_failed_run_leaves_nothing_either(cluster):
    X, y = table()
    X[7, 2] = np.nan
    with pytest.raises(dagsel.DataError, match="Column 2"):
        select(X, y, client=cluster)
    assert_clean(cluster)


# --------------------------------------------------------------------------------------------------
# Rows from files and Dask collections


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    data = frame()
    data["Path"] = "somewhere"
    for part, start in enumerate(range(0, 400, 130)):
        rows = data.iloc[start : start + 130]
        rows.to_csv(path / f"part-{part}.csv", index=False)
        rows.to_parquet(path / f"part-{part}.parquet", row_group_size=37)
    return path


@pytest.mark.parametrize(
    ("cluster", "suffix", "engine"),
    product_of(
        FORMS, ["csv", "parquet"], ["moments", "refit"], plain=lambda i, j, k: (i + j) % 2 == k
    ),
    indirect=["cluster"],
)
def test_files_on_every_form(cluster, folder, suffix, engine):
    source = scan(str(folder / f"*.{suffix}"), target="label", drop=["Path"])
    assert_same(select(source, client=cluster, engine=engine), reference_of(engine=engine))
    assert_clean(cluster)


@pytest.mark.parametrize(
    ("cluster", "kind", "engine"),
    product_of(
        FORMS,
        ["array", "frame", "unknown_chunks"],
        ["moments", "refit"],
        plain=lambda i, j, k: (i + j) % 2 == k,
    ),
    indirect=["cluster"],
)
def test_dask_collections_on_every_form(cluster, kind, engine):
    X, y = table()
    if kind == "array":
        source = da.from_array(X, chunks=(90, -1)), da.from_array(y, chunks=90)
    else:
        data = dd.from_pandas(frame(), npartitions=5)
        source = data.drop(columns="label"), data["label"]
        if kind == "unknown_chunks":
            source = source[0].to_dask_array(), source[1].to_dask_array()
    selection = select(*source, client=cluster, engine=engine)
    assert_same(selection, reference_of(engine=engine))
    assert_clean(cluster)


def test_workers_hold_a_few_partitions_of_many(local_client):
    """A Dask collection streams: what is in memory does not grow with it."""
    chunks = 2_000
    X = da.random.default_rng(0).normal(size=(60 * chunks, 50), chunks=(chunks, -1))
    y = X[:, 0] + da.random.default_rng(1).normal(size=60 * chunks, chunks=chunks)
    most, over = [0], threading.Event()

    def held(dask_scheduler):
        tasks_ = dask_scheduler.tasks.values()
        rows = [task for task in tasks_ if task.who_has and "dagsel" not in str(task.key)]
        return sum(task.nbytes for task in rows if task.nbytes > 8 * chunks * 40)

    def watch():
        while not over.wait(0.005):
            most[0] = max(most[0], local_client.run_on_scheduler(held))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        selection = select(X, y, client=local_client, n_features_to_select=47, cv=3)
    finally:
        over.set()
        watcher.join()
    assert selection.engines == ("moments",)
    # Two chains a worker and two partitions a chain, each perhaps next to what it is made from.
    assert 0 < most[0] <= 2 * 8 * (8 * chunks * 51)


@pytest.mark.parametrize("block_bytes", [2_000, 9_000, 32 << 20])
def test_any_block_size(folder, local_client, block_bytes):
    source = scan(str(folder / "*.csv"), target="label", drop=["Path"], block_bytes=block_bytes)
    for client in (None, local_client):
        assert_same(select(source, client=client), reference_of())


# --------------------------------------------------------------------------------------------------
# Partition, order, hash seed


class Recorder:
    """An executor that counts tasks, and runs those of a batch in another order."""

    def __init__(self, n_workers, seed):
        self.inner = LocalExecutor()
        self.n_workers = n_workers
        self.in_process = False
        self.random = np.random.default_rng(seed)
        self.labels = []
        self.progress = TaskProgress()

    def submit(self, function, /, *args, label, worker=None):
        self.labels.append(label)
        return self.inner.submit(function, *args, label=label)

    def gather(self, handles):
        return self.inner.gather(handles)

    def settle(self, handles):
        pass

    def lost(self, error):
        return False

    def map(self, function, calls, *, label):
        self.labels += [label] * len(calls)
        results = {}
        for position in self.random.permutation(len(calls)).tolist():
            results[position] = function(*calls[position])
        return [results[position] for position in range(len(calls))]

    def load(self, block, worker=None):
        return block.payload

    def forget(self, run):
        self.inner.forget(run)


def run_with(executor, X, y, *, n_shards=1, n_blocks=1, engine="auto", **parameters):
    from dagsel.data.arrays import split_blocks
    from dagsel.data.folds import draw_folds
    from dagsel.data.sources import open_table
    from dagsel.engines.base import Problem
    from dagsel.results import Selection
    from dagsel.scoring import resolve_scoring
    from dagsel.search import Search

    rows = split_blocks(open_table(X, y), n_blocks)
    folds = draw_folds(KFold(4, shuffle=True, random_state=0), rows.n_rows, rows.target)
    scoring = resolve_scoring(LinearRegression(), "neg_mean_squared_error")
    features = tuple((column,) for column in range(rows.n_columns))
    problem = Problem(rows, folds, LinearRegression(), scoring, features)
    search = Search(rows.n_columns, target_size=2, tie_rule="lowest", **parameters)
    plan = make_plan(problem, search, executor, engine=engine)
    selection = Selection(rows.n_columns)
    run_search(
        problem,
        search,
        plan.engines,
        executor,
        lambda done, left: selection.record(done.move, done.seconds, done.engine),
        LogMonitor(),
        shards=[n_shards] * len(plan.engines),
    )
    return selection


@cache
def run_in_process(**parameters):
    return run_with(LocalExecutor(), *table(), **parameters)


@pytest.mark.parametrize(
    ("n_workers", "floating", "engine"),
    product_of(
        [1, 2, 3, 7],
        [False, True],
        ["moments", "rows", "refit"],
        plain=lambda i, j, k: (i + k) % 2 == j,
    ),
)
def test_any_number_of_workers_shards_and_blocks(n_workers, floating, engine):
    X, y = table()
    reference = run_in_process(engine=engine, floating=floating)
    for n_shards, n_blocks in ((1, 1), (2, 5), (4, 23)):
        executor = Recorder(n_workers, seed=n_blocks)
        options = {"n_shards": n_shards, "n_blocks": n_blocks, "engine": engine}
        selection = run_with(executor, X, y, floating=floating, **options)
        assert_same(selection, reference, rtol=0 if engine == "refit" else RTOL)
        if engine != "refit":
            played = executor.labels.count("dagsel_rounds")
            scored = executor.labels.count("dagsel_score")
            # One shard: the loop travels. Several: one map and one reduce a round.
            assert (played > 0) == (n_shards == 1)
            assert (scored > 0) == (n_shards > 1)
        else:
            assert executor.labels.count("dagsel_refit") > len(selection.rounds) or n_workers == 1


def test_one_shard_plays_many_rounds_in_a_task():
    X, y = table(p=40)
    executor = Recorder(2, seed=0)
    selection = run_with(executor, X, y)
    assert len(selection.rounds) == 39
    assert executor.labels.count("dagsel_rounds") <= 5


@pytest.mark.parametrize("engine", ["moments", "rows"])
def test_state_lost_between_tasks_is_made_again(engine):
    """A task that finds no state, as on a worker that has just joined, gives the same answer."""
    X, y = table()
    reference = run_with(LocalExecutor(), X, y, engine=engine)

    class Forgetful(Recorder):
        def map(self, function, calls, *, label):
            tasks._states.clear()
            return super().map(function, calls, label=label)

        def submit(self, function, /, *args, label, worker=None):
            tasks._states.clear()
            return super().submit(function, *args, label=label, worker=worker)

    for n_shards in (1, 3):
        selection = run_with(Forgetful(2, 0), X, y, n_shards=n_shards, engine=engine)
        assert_same(selection, reference)


@pytest.mark.parametrize(
    ("p", "floating", "engine"),
    [
        (9, False, "moments"),
        (9, True, "moments"),
        (9, False, "rows"),
        (9, True, "rows"),
        (40, False, "rows"),
        (40, True, "moments"),
        pytest.param(40, False, "moments", marks=pytest.mark.slow),
        pytest.param(40, True, "rows", marks=pytest.mark.slow),
        # More rounds than changes of a state are kept for.
        (200, False, "moments"),
        pytest.param(200, False, "rows", marks=pytest.mark.slow),
    ],
)
def test_a_task_may_be_run_twice(p, floating, engine):
    """Dask may run a task again: it must return the same, and leave its input as it was.

    The state that the first run leaves is ahead of where the second starts.
    """
    X, y = table(n=600, p=p)
    reference = run_with(LocalExecutor(), X, y, floating=floating, engine=engine)

    class Twice(Recorder):
        def submit(self, function, /, *args, label, worker=None):
            super().submit(function, *args, label=label)
            return super().submit(function, *args, label=label)

        def map(self, function, calls, *, label):
            super().map(function, calls, label=label)
            return super().map(function, calls, label=label)

    for n_shards in (1, 3):
        options = {"n_shards": n_shards, "floating": floating, "engine": engine}
        selection = run_with(Twice(2, 0), X, y, **options)
        assert_same(selection, reference, rtol=1e-9)


def test_a_run_that_has_ended_leaves_no_state_even_if_a_task_is_still_at_work():
    X, y = table()

    class Ending(Recorder):
        def submit(self, function, /, *args, label, worker=None):
            if label == "dagsel_rounds":
                tasks.forget(next(each for each in args if isinstance(each, tasks.StateKey)).run)
            return super().submit(function, *args, label=label)

    with pytest.raises(RuntimeError, match="no progress"):
        run_with(Ending(2, 0), X, y)
    assert not tasks._states


def test_any_hash_seed():
    """Another process, whose sets of strings have another order, selects the same."""
    selection = select(frame(), "label")
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    script = """
import sys
import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold
from dagsel import SequentialFeatureSelector

numbers = np.frombuffer(sys.stdin.buffer.read()).reshape(400, -1)
data = pd.DataFrame(numbers, columns=[f"x{column}" for column in range(numbers.shape[1])])
data = data.rename(columns={data.columns[-1]: "label"})
selection = SequentialFeatureSelector(
    LinearRegression(),
    n_features_to_select=2,
    direction="backward",
    scoring="neg_mean_squared_error",
    cv=KFold(4, shuffle=True, random_state=0),
).fit(data, "label").selection_
rounds = [(r.feature, list(map(float, r.fold_scores)), r.subset) for r in selection.rounds]
print([hash("label"), rounds])
"""
    printed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        input=frame().to_numpy().tobytes(),
        check=True,
        capture_output=True,
    ).stdout
    hash_there, rounds = ast.literal_eval(printed.decode())
    assert hash_there != hash("label")
    assert rounds == [(r.feature, list(r.fold_scores), r.subset) for r in selection.rounds]


# --------------------------------------------------------------------------------------------------
# Being a guest


def test_the_active_client_is_used(local_client):
    X, y = table()
    with local_client.as_current():
        selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=3)
        assert not selector.plan(X, y).in_process
        assert_same(
            selector.fit(X, y).selection_,
            select(X, y, scoring=None, cv=5, direction="forward", n_features_to_select=3),
        )
    assert selector.plan(X, y).in_process


def test_inside_a_task_work_stays_in_the_task(local_client):
    def inside(X, y):
        selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=3)
        return selector.plan(X, y).in_process, selector.fit(X, y).get_support()

    in_process, support = local_client.submit(inside, *table(), pure=False).result(timeout=60)
    assert in_process
    assert support.sum() == 3


def test_a_selector_with_a_client_can_be_cloned_and_searched_over(local_client):
    X, y = table()
    selector = SequentialFeatureSelector(Ridge(), n_features_to_select=3, client=local_client, cv=3)
    search = GridSearchCV(selector, {"estimator__alpha": [0.1, 10.0]}, scoring=_kept, cv=2)
    search.fit(X, y)
    assert search.best_estimator_.client is local_client


def _kept(selector, X, y):
    return -float(selector.get_support(indices=True).sum())


def test_an_asynchronous_client_is_refused():
    class Asynchronous:
        asynchronous = True

    with pytest.raises(TypeError, match="synchronous"):
        ClusterExecutor(Asynchronous())


def test_tasks_have_names_that_a_dashboard_can_show(local_client):
    X, y = table()
    seen = set()

    executor = ClusterExecutor(local_client)
    original = executor.submit

    def submit(function, /, *args, label, worker=None):
        seen.add(label)
        return original(function, *args, label=label, worker=worker)

    executor.submit = submit
    run_with(executor, X, y, n_blocks=2)
    assert {"dagsel_pilot", "dagsel_moments", "dagsel_fold", "dagsel_rounds"} <= seen


def test_folds_are_spread_when_they_do_not_fit_one_worker(local_client, monkeypatch):
    X, y = table(p=30)
    reference = select(X, y)
    fold_bytes = 4 * 8 * 30**2
    monkeypatch.setattr(ClusterExecutor, "memory_per_worker", lambda self: 2 * fold_bytes)
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=2,
        direction="backward",
        scoring="neg_mean_squared_error",
        cv=KFold(4, shuffle=True, random_state=0),
        client=local_client,
    ).fit(X, y)
    assert selector.plan_.n_shards == 2
    assert_same(selector.selection_, reference)
    assert_clean(local_client)
    monkeypatch.setattr(ClusterExecutor, "memory_per_worker", lambda self: fold_bytes)
    with pytest.raises(dagsel.DagselError, match=r"need 115 kB"):
        selector.fit(X, y)


def test_refits_of_a_table_that_no_worker_can_hold_are_refused(local_client, folder, monkeypatch):
    monkeypatch.setattr(ClusterExecutor, "memory_per_worker", lambda self: 20_000)
    source = scan(str(folder / "*.parquet"), target="label", drop=["Path"])
    with pytest.raises(dagsel.DagselError, match=r"whole table .* need 28\.8 kB"):
        select(source, client=local_client, engine="refit")
    # The fast engine needs less, and must not fall back to what does not fit.
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=3, client=local_client
    )
    assert [engine.name for engine in selector.plan(source).engines] == ["moments"]


# --------------------------------------------------------------------------------------------------
# Losing a worker


@pytest.fixture(scope="module")
def mortal_client():
    """Workers that may be killed, one in each test, and one more.

    Dask starts another in the place of one that is killed, but not always.
    """
    with harness.local_cluster(len(KILLED) + 1) as client:
        yield client


KILLED = [
    ("moments", "dagsel_moments", 1),
    ("moments", "dagsel_rounds", 1),
    ("rows", "dagsel_rounds", 1),
    ("refit", "dagsel_refit", 5),
]


class Killer:
    """Kills the worker that has the task of a label, as soon as that task has been sent.

    The run goes on when the scheduler knows of the loss: it is in the midst of the run, however
    fast that is.
    """

    def __init__(self, client, label, number):
        self.client = client
        self.label = label
        self.number = number  # kill at this task of the label, counted from 1
        self.n_tasks = 0
        self.killed = None  # address of the worker

    def watch(self, monkeypatch):
        submit = ClusterExecutor.submit

        def submit_and_kill(executor, *args, label, **options):
            handle = submit(executor, *args, label=label, **options)
            self.n_tasks += label == self.label
            if self.killed is None and self.n_tasks == self.number:
                self.killed = self._kill(handle.key)
            return handle

        monkeypatch.setattr(ClusterExecutor, "submit", submit_and_kill)

    def _kill(self, key):
        def holder(dask_scheduler):
            task = dask_scheduler.tasks.get(key)
            workers = [] if task is None else [task.processing_on, *(task.who_has or ())]
            return next((worker.address for worker in workers if worker is not None), None)

        address = _wait_for(lambda: self.client.run_on_scheduler(holder))
        (pid,) = self.client.run(os.getpid, workers=[address]).values()
        os.kill(pid, signal.SIGKILL)
        _wait_for(lambda: address not in self.client.nthreads())
        return address


def _wait_for(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("engine", "label", "number"), KILLED)
def test_a_killed_worker_does_not_change_the_selection(
    mortal_client, monkeypatch, engine, label, number
):
    """Rows from this process's memory are sent again; the selection is that of a calm run."""
    X, y = table(n=600, p=12)
    parameters = {"engine": engine, "n_features_to_select": 8, "cv": 3}
    reference = select(X, y, **parameters)
    killer = Killer(mortal_client, label, number)
    killer.watch(monkeypatch)
    selection = select(X, y, client=mortal_client, **parameters)
    assert killer.killed is not None
    assert killer.killed not in mortal_client.nthreads()
    assert_same(selection, reference, rtol=0 if engine == "refit" else RTOL)


def test_a_worker_killed_by_a_task_ends_in_one_clear_error(monkeypatch):
    monkeypatch.setattr(worker_loss, "_MOST_LOSSES", 2)

    class Deadly(LinearRegression):
        def fit(self, X, y):
            os._exit(1)

    X, y = table(n=60, p=4)
    with (
        # By default Dask lets four workers die of a task before it gives up.
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        harness.local_cluster(1) as client,
        pytest.raises(dagsel.DagselError, match="workers were lost 2 times in a row"),
    ):
        select(X, y, estimator=Deadly(), client=client, cv=2)


def test_a_cluster_that_loses_all_workers_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(executors, "_WAIT_FOR_WORKERS", 2.0)
    monkeypatch.setattr(executors, "_PATIENCE", 0.5)
    X, y = table()
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=2, direction="backward", cv=3, engine="refit"
    )
    recorded = Selection.record
    with harness.command_line_cluster(2, worker_options=["--no-nanny"]) as client:

        def record(self, *args, **options):
            done = recorded(self, *args, **options)
            if len(self.rounds) == 3:
                client.harness.kill("worker-0")
                client.harness.kill("worker-1")
            return done

        monkeypatch.setattr(Selection, "record", record)
        with pytest.raises(dagsel.DagselError, match="has had no worker for 2 s"):
            selector.set_params(client=client).fit(X, y)
    monkeypatch.setattr(Selection, "record", recorded)
    # What was decided before it is there, and right.
    assert not selector.selection_.complete
    assert len(selector.selection_.rounds) == 3
    calm = select(X, y, cv=3, engine="refit", scoring=None)
    for done, expected in zip(selector.selection_.rounds, calm.rounds, strict=False):
        np.testing.assert_array_equal(done.fold_scores, expected.fold_scores)
        assert done.feature == expected.feature


# --------------------------------------------------------------------------------------------------
# Another array library


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize("floating", [False, True])
def test_a_whole_selection_on_another_device(monkeypatch, floating, direction):
    """From the first product of rows to the last round, on array-api-strict's second device."""
    import array_api_strict

    from dagsel.engines.moments import accumulate

    device = array_api_strict.Device("device1")
    X, y = table(n=80, p=7)
    parameters = {"floating": floating, "direction": direction, "n_features_to_select": 3}
    reference = select(X, y, **parameters)
    monkeypatch.setattr(
        accumulate,
        "to_compute",
        lambda array: array_api_strict.asarray(np.array(array), device=device),
    )
    opened = []
    from dagsel.engines.moments.engine import MomentsEngine

    original = MomentsEngine.open

    def spy(self, resident):
        opened.append(original(self, resident))
        return opened[-1]

    monkeypatch.setattr(MomentsEngine, "open", spy)
    assert_same(select(X, y, engine="moments", **parameters), reference)
    (part,) = opened[0].parts
    assert part.tableau.pivots.device == device
    assert part.tableau.swept[0].device == device
