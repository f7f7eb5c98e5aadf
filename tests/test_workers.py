"""Workers that lack what tasks need, or have another version of it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import dagsel
from cluster import harness
from dagsel import SequentialFeatureSelector
from dagsel.executors import cluster as executors
from dagsel.executors import same_versions

# A worker that knows no dagsel but one that was sent to it.
SITE = """
import importlib.abc, importlib.machinery, sys


class OnlyWhatWasSent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "dagsel":
            return None
        where = path or [each for each in sys.path if each.endswith(".zip")]
        found = importlib.machinery.PathFinder.find_spec(name, where)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


sys.meta_path.insert(0, OnlyWhatWasSent())
"""


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 6))
    return X, X[:, 0] + rng.normal(size=100)


def select(client, **parameters):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=2, direction="backward", client=client
    )
    return selector.set_params(**parameters).fit(*rows()).selection_


def test_a_worker_without_dagsel_is_named_and_can_be_sent_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    with harness.command_line_cluster(1) as client:
        path = f"{tmp_path}:{harness.environment()['PYTHONPATH']}"
        file = str(client.harness.scheduler_file)
        options = ["--scheduler-file", file, "--nthreads", "1", "--host", "127.0.0.1"]
        directory = ["--local-directory", str(tmp_path), "--no-dashboard", "--name", "bare"]
        client.harness.start("bare", ["worker", *options, *directory], PYTHONPATH=path)
        client.wait_for_workers(2, timeout=90)
        with pytest.raises(dagsel.DagselError, match="has no dagsel, and this process") as found:
            select(client)
        workers = client.scheduler_info()["workers"]
        (bare,) = [address for address, each in workers.items() if each["name"] == "bare"]
        assert bare in str(found.value)
        dagsel.ship(client)
        for engine in ("moments", "refit"):
            expected = select(None, engine=engine)
            found = select(client, engine=engine)
            assert [done.subset for done in found.rounds] == [
                done.subset for done in expected.rounds
            ]
        places = client.run(lambda: __import__("dagsel").__file__)
        assert [".zip" in place for address, place in places.items() if address == bare] == [True]


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(executors, "_checked", {})
    return monkeypatch


def test_workers_with_another_release_are_refused(local_client, unchecked):
    unchecked.setattr(same_versions, "_own", lambda module: "99.0")
    has = f"has dagsel {dagsel.__version__}, and this process dagsel 99.0"
    with pytest.raises(dagsel.DagselError, match=has):
        select(local_client)


def test_workers_with_other_packages_are_warned_of(local_client, unchecked):
    own = same_versions._own
    unchecked.setattr(
        same_versions, "_own", lambda module: "99.0" if module == "numpy" else own(module)
    )
    with pytest.warns(dagsel.DagselWarning, match=r"workers have numpy .*and this process 99\.0"):
        select(local_client)
    select(local_client)  # once is enough
