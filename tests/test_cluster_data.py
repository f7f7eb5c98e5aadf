"""Tables on a cluster: Dask collections of its client, files that break, and how far scans are."""

from __future__ import annotations

import os

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import config
from distributed.comm.core import CommClosedError
from sklearn.linear_model import LinearRegression

from dagsel import DataError, SequentialFeatureSelector
from dagsel.cli import main, progress
from dagsel.data.sources import open_table
from dagsel.executors.cluster import ClusterExecutor, WorkersLostError
from dagsel.executors.local import LocalExecutor
from dagsel.job import open_job
from dagsel.monitor import LogMonitor


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(5)]).assign(
        y=X[:, 0] - X[:, 3] + 0.1 * rng.normal(size=len(X))
    )


@pytest.fixture(params=["in-process", "local-processes"])
def client(request):
    """A client that is not the default, or None."""
    in_process = request.param == "in-process"
    return None if in_process else request.getfixturevalue("local_client")


def selector(**parameters):
    parameters = {"n_features_to_select": 2, "direction": "backward", "cv": 3, **parameters}
    return SequentialFeatureSelector(LinearRegression(), **parameters)


class Recorder(LogMonitor):
    def __init__(self):
        self.steps, self.notes = [], []

    def progress(self, what, done, total):
        self.steps.append((what, done, total))

    def note(self, text):
        self.notes.append(text)


# --- Dask collections of a client that is not the default ---------------------------------------


@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize("kind", ["frame", "array", "unknown lengths", "target only"])
def test_persisted_collections(local_client, frame, kind, engine):
    X, y = frame.drop(columns="y"), frame["y"]
    expected = selector(engine=engine).fit(X, y).support_
    if kind == "frame":
        given = local_client.persist(dd.from_pandas(frame, npartitions=3)), "y"
    elif kind == "target only":
        given = X, local_client.persist(da.from_array(y.to_numpy(), chunks=200))
    else:
        lazy = da.from_array(frame.to_numpy(), chunks=(200, 6))
        rows = local_client.persist(lazy[lazy[:, 0] > -9] if kind != "array" else lazy)
        given = rows[:, :5], rows[:, 5]
    found = selector(engine=engine, client=local_client).fit(*given).support_
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize("kind", ["frame", "unknown lengths", "numbers as target", "target only"])
def test_lazy_collections_are_computed_on_the_cluster(local_client, frame, kind, engine):
    here = os.getpid()

    def elsewhere(part):
        assert os.getpid() != here
        return part

    if kind == "frame":
        lazy = dd.from_pandas(frame, npartitions=3)
        given = lazy.map_partitions(elsewhere, meta=frame[:0]), "y"
    else:
        rows = da.from_array(frame.to_numpy(), chunks=(200, 6)).map_blocks(elsewhere, dtype=float)
        if kind == "unknown lengths":
            rows = rows[rows[:, 0] > -9]
        given = rows[:, :5], rows[:, 5]
        if kind == "numbers as target":
            given = given[0], frame["y"].to_numpy()
        if kind == "target only":
            given = frame.drop(columns="y"), given[1]
    found = selector(engine=engine, client=local_client).fit(*given)
    assert found.get_support(indices=True).tolist() == [0, 3]
    # The test would notice.
    with config.set(scheduler="synchronous"), pytest.raises(AssertionError):
        selector(engine=engine, n_jobs=1).fit(*given)


def test_computing_nothing(local_client, frame):
    for executor in (LocalExecutor(), ClusterExecutor(local_client)):
        assert executor.compute() == ()
        with config.set(scheduler="synchronous"):
            lazy = da.from_array(frame.to_numpy(), chunks=(200, 6))
            assert open_table(lazy, frame["y"], compute=executor.compute).n_rows == 600


# --- Errors of storage are no lost workers ------------------------------------------------------


def damage(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = b"\xff" * 2000
    path.write_bytes(content)


def opened(path, client, engine):
    return selector(engine=engine, client=client, n_jobs=1)._open(path, "y", None, {})


@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("t.parquet", damage, r"Cannot read data rows 1 to 600 of .*t\.parquet'.*damaged"),
        ("t.csv.gz", damage, r"Cannot read data rows 1 to 600 of .*t\.csv\.gz'.*damaged"),
        (
            "t.csv.gz",
            lambda path: path.write_bytes(path.read_bytes()[:9000]),
            r"Cannot read data rows 1 to 600 of .*t\.csv\.gz'.*damaged",
        ),
        (
            "t.parquet",
            lambda path: path.write_bytes(path.read_bytes()[:9000]),
            r"t\.parquet' is no readable Parquet file",
        ),
        ("t.parquet", lambda path: path.unlink(), r"No such file: .*t\.parquet'.*Every worker"),
        ("t.csv", lambda path: path.unlink(), r"No such file: .*t\.csv'.*Every worker"),
    ],
)
def test_files_that_break_after_the_scan(tmp_path, frame, client, name, broken, message, engine):
    path = tmp_path / name
    if name.endswith("parquet"):
        frame.to_parquet(path, row_group_size=100)
    else:
        frame.to_csv(path, index=False)
    job = opened(path, client, engine)
    broken(path)
    monitor = Recorder()
    with pytest.raises(DataError, match=message):
        job.run(monitor)
    assert monitor.notes == []


def test_files_that_are_broken_when_scanned(tmp_path, frame, client):
    frame.to_csv(tmp_path / "0.csv.gz", index=False)
    frame.to_csv(tmp_path / "1.csv.gz", index=False)
    # Mostly target, so that the damage meets it.
    rows = pd.DataFrame({"x": 0.0, "z": 1.0, "y": np.random.default_rng(0).normal(size=5000)})
    rows.to_parquet(tmp_path / "0.parquet", compression="gzip")
    for name, message in [
        ("1.csv.gz", r"Cannot read the rows of .*1\.csv\.gz'"),
        ("0.csv.gz", r"Cannot read the first rows of .*0\.csv\.gz'"),
        ("0.parquet", r"Cannot read the target 'y' of .*0\.parquet'"),
    ]:
        damage(tmp_path / name)
        with pytest.raises(DataError, match=message):
            opened(str(tmp_path / f"*{name[1:]}"), client, "auto")


def test_out_of_memory_is_no_broken_file():
    import pyarrow as pa

    from dagsel.data.files import read_errors

    with pytest.raises(pa.ArrowMemoryError), read_errors("t.csv", "the rows"):
        raise pa.ArrowMemoryError


def test_which_errors_are_lost_workers(local_client, monkeypatch, frame):
    executor = ClusterExecutor(local_client)

    def fail():
        raise OSError(5, "no page")

    with pytest.raises(OSError, match="no page") as caught:
        executor.map(fail, [()], label="test")
    assert not executor.lost(caught.value)
    closed = CommClosedError("in <TCP>: stream is closed")
    task = executor.submit(int, label="test")
    block = open_table(frame, "y").blocks[0]

    def broken(*_, **__):
        raise closed

    for method, call in [
        ("gather", lambda: executor.gather([task])),
        ("scatter", lambda: executor.load(block)),
        ("submit", lambda: executor.submit(int, label="test")),
        ("compute", lambda: executor.compute(da.ones(3))),
        ("nthreads", lambda: executor.submit(int, label="test", worker=0)),
        ("nthreads", lambda: executor.n_workers),
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(local_client, method, broken)
            with pytest.raises(WorkersLostError, match="stream is closed") as caught:
                call()
            assert executor.lost(caught.value)


# --- Progress of scans --------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, frame):
    for number in range(3):
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
    return str(tmp_path / "*.csv")


def test_a_scan_reports_its_progress(files, client):
    monitor = Recorder()
    open_job(
        files,
        "y",
        estimator=LinearRegression(),
        scoring=None,
        cv=3,
        make_search=selector()._make_search,
        client=client,
        n_jobs=1,
        monitor=monitor,
    )
    assert sorted(monitor.steps) == [("scanning files", done, 3) for done in (1, 2, 3)]


def test_a_fit_logs_the_progress_of_its_scan(files, caplog):
    with caplog.at_level("DEBUG", logger="dagsel"):
        selector().fit(files, "y")
    assert "scanning files: 3 of 3" in caplog.messages


def test_the_command_shows_the_progress_of_its_scan(files, monkeypatch, capfd):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1.0)
    with pytest.raises(SystemExit) as ended:
        main(["plan", files, "--target", "y"])
    assert ended.value.code == 0
    assert "scanning files: 2 of 3" in capfd.readouterr().err
