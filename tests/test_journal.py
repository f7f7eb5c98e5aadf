"""Runs that end before their time, and go on from the journal of what they had decided."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Lasso, LinearRegression, Ridge
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dagsel
from dagsel import CheckpointError, SequentialFeatureSelector, journal_files, load_checkpoint
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.engines.refit import RefitEngine
from dagsel.engines.rows.engine import RowsEngine
from dagsel.mlxtend import SequentialFeatureSelector as MlxtendSelector

NAME = "journal.jsonl"


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 9)) @ (np.eye(9) + 0.3 * rng.normal(size=(9, 9)))
    return X, X[:, :4].sum(axis=1) + rng.normal(size=80)


def selector(checkpoint: Any, estimator: Any = None, **parameters: Any) -> Any:
    given = {"n_features_to_select": 2, "direction": "backward", **parameters}
    return SequentialFeatureSelector(
        LinearRegression() if estimator is None else estimator, checkpoint=checkpoint, **given
    )


def assert_same_path(found: Any, expected: Any, rtol: float = 1e-10) -> None:
    assert [done.subset for done in found.rounds] == [done.subset for done in expected.rounds]
    assert [done.action for done in found.rounds] == [done.action for done in expected.rounds]
    assert [done.number for done in found.rounds] == list(range(len(expected.rounds)))
    for one, other in zip(found.rounds, expected.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=rtol)
    assert found.stop_reason == expected.stop_reason


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the sizes of scored subsets are appended to."""
    sizes: list[int] = []
    for kind in (MomentsEngine, RowsEngine, RefitEngine):

        def score(self: Any, state: Any, request: Any, inner: Any = kind.score) -> Any:
            sizes.append(len(request.subset))
            return inner(self, state, request)

        monkeypatch.setattr(kind, "score", score)
    return sizes


WAYS = {
    "moments": {"engine": "moments"},
    "rows": {"engine": "rows", "scoring": "neg_mean_absolute_error"},
    "refit": {"engine": "refit"},
    "forward": {"direction": "forward", "n_features_to_select": 7},
    "floating": {"floating": True, "n_features_to_select": 3},
    "several": {"step": 2},
    "tol": {"n_features_to_select": "auto", "tol": -0.01},
    "patience": {"n_features_to_select": "best", "patience": 3},
    "parsimonious": {"n_features_to_select": "parsimonious"},
    "bic": {"n_features_to_select": "auto", "criterion": "bic"},
    "p_value": {"n_features_to_select": "auto", "criterion": "p_value"},
    "fixed": {"fixed_features": [8], "scoring": "neg_mean_squared_error"},
    "groups": {"feature_groups": [[0, 1], [2], [3, 8], [4], [5, 6, 7]]},
    "audit": {"audit": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_goes_on_from_whatever_is_left_of_its_journal(rows, tmp_path, monkeypatch, way):
    whole = selector(tmp_path / "whole", **WAYS[way]).fit(*rows)
    text = (tmp_path / "whole" / NAME).read_bytes()
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n")) + 1
    n_rounds = len(whole.selection_.rounds)
    assert len(ends) == n_rounds + 2  # what is selected from, and the end
    sizes = watch(monkeypatch)
    # Killed between any two lines, and in the middle of any.
    for cut in [0, *ends.tolist(), *(ends - 9).tolist()]:
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / NAME).write_bytes(text[:cut])
        n_kept = min(max(0, np.count_nonzero(ends <= cut) - 1), n_rounds)
        if n_kept:
            assert_first_rounds(folder, whole, n_kept)
        sizes.clear()
        again = selector(folder, **WAYS[way]).fit(*rows)
        assert_same_path(again.selection_, whole.selection_)
        np.testing.assert_array_equal(again.support_, whole.support_)
        assert again.selection_.complete
        if way not in ("floating", "audit"):
            # A round is decided from the subset before it: none before the last one is scored.
            towards = -1 if whole.selection_.direction == "backward" else 1
            reached = [whole.selection_.rounds[n_kept - 1].n_features] if n_kept else []
            assert all(towards * size >= towards * last for last in reached for size in sizes)
        if cut == len(text):
            assert sizes == []
        assert_same_path(load_checkpoint(folder), whole.selection_)


def assert_first_rounds(folder: Path, whole: Any, n_kept: int) -> None:
    """What is left can be read: the first rounds, exactly."""
    left = load_checkpoint(folder)
    expected = whole.selection_.rounds[:n_kept]
    assert [done.move for done in left.rounds] == [done.move for done in expected]
    assert left.names == whole.selection_.names


def test_every_round_is_in_the_journal_before_the_next_begins(rows, tmp_path, monkeypatch):
    seen: list[int] = []
    inner = MomentsEngine.score

    def score(self, state, request):
        lines = (tmp_path / NAME).read_bytes().count(b"\n")
        seen.append(lines)
        return inner(self, state, request)

    monkeypatch.setattr(MomentsEngine, "score", score)
    selector(tmp_path).fit(*rows)
    assert seen == list(range(1, 9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scoring": "neg_mean_squared_error"}, "scoring: r2 .* before, neg_mean_squared_error"),
        ({"cv": 4}, "other folds"),
        ({"cv": KFold(5, shuffle=True, random_state=1)}, "other folds"),
        ({"estimator": Ridge()}, r"estimator: .*LinearRegression\(.* before, .*Ridge\("),
        ({"estimator": LinearRegression(fit_intercept=False)}, "fit_intercept=False"),
        ({"estimator": make_pipeline(StandardScaler(), LinearRegression())}, "Pipeline"),
        ({"direction": "forward"}, "direction: backward before, forward now"),
        ({"floating": True}, "floating: False before, True now"),
        ({"fixed_features": [1]}, "fixed: "),
        ({"feature_groups": [[0, 1], *([j] for j in range(2, 9))]}, "other features"),
        ({"step": 2}, "step: 1 before, 2 now"),
        ({"n_features_to_select": "auto", "tol": 0.1}, "tol: None before, 0.1 now"),
        ({"criterion": "aic"}, "scoring: "),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_the_journal_of_another_selection_is_refused(rows, tmp_path, change, message):
    selector(tmp_path).fit(*rows)
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(CheckpointError, match=message) as found:
        selector(tmp_path, **change).fit(*rows)
    assert str(tmp_path) in str(found.value)
    assert (tmp_path / NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X[:70], y[:70]), "number of rows: 80 before, 70 now"),
        (lambda X, y: (X[:, :8], y), "number of columns: 9 before, 8 now"),
        (lambda X, y: (X, y + np.eye(1, 80, 7)[0]), "other values of the target"),
        (lambda X, y: (X + np.eye(80, 9), y), "other values of the features"),
        (lambda X, y: (pd.DataFrame(X, columns=list("abcdefghi")), y), "other names of the col"),
    ],
)
def test_the_journal_of_other_data_is_refused(rows, tmp_path, change, message):
    selector(tmp_path).fit(*rows)
    with pytest.raises(CheckpointError, match=message):
        selector(tmp_path).fit(*change(*rows))


def test_the_journal_of_other_weights_is_refused(rows, tmp_path):
    weight = np.linspace(1, 2, 80)
    selector(tmp_path).fit(*rows, sample_weight=weight)
    selector(tmp_path).fit(*rows, sample_weight=weight.copy())
    with pytest.raises(CheckpointError, match="other fit parameter sample_weight"):
        selector(tmp_path).fit(*rows, sample_weight=weight[::-1])
    with pytest.raises(CheckpointError, match="had a fit parameter sample_weight"):
        selector(tmp_path).fit(*rows)


def test_the_journal_of_another_version_is_refused(rows, tmp_path, monkeypatch):
    selector(tmp_path).fit(*rows)
    known = dagsel.identity.versions()
    monkeypatch.setattr("dagsel.identity.versions", lambda: {**known, "scikit-learn": "1.0"})
    with pytest.raises(CheckpointError, match=r"version of scikit-learn: .* before, 1\.0 now"):
        selector(tmp_path).fit(*rows)


def test_what_changes_no_score_may_differ(rows, tmp_path, local_client):
    """Where it runs, by which engine, how far, and how it is watched."""
    X, y = rows
    whole = selector(None).fit(X, y).selection_
    text = journal_of(tmp_path / "whole", rows)
    others = [
        {"engine": "refit"},
        {"client": local_client},
        {"n_jobs": 2},
        {"verbose": 1},
        {"audit": 1},
        {"max_seconds": 100},
    ]
    for number, change in enumerate(others):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / NAME).write_bytes(b"".join(text[:5]))
        found = selector(tmp_path / str(number), **change).fit(X, y).selection_
        assert_same_path(found, whole, rtol=1e-9)
    # Arrays that are equal, in another memory layout or precision of whole numbers.
    selector(tmp_path / "whole").fit(np.asfortranarray(X), y.copy())
    # Further than before.
    further = selector(tmp_path / "0", n_features_to_select=1)
    with pytest.raises(CheckpointError, match="which goes to 4 features"):
        selector(tmp_path / "0", n_features_to_select=4).fit(X, y)
    (tmp_path / "0" / NAME).write_bytes(b"".join(text[:-1]))
    assert further.fit(X, y).selection_.sizes == (1, 2, 3, 4, 5, 6, 7, 8, 9)


def journal_of(folder: Path, rows: tuple[np.ndarray, np.ndarray]) -> list[bytes]:
    selector(folder).fit(*rows)
    return (folder / NAME).read_bytes().splitlines(keepends=True)


def test_a_run_that_ran_out_of_time_goes_on(rows, tmp_path):
    with pytest.warns(dagsel.DagselWarning, match="time budget"):
        short = selector(tmp_path, engine="refit", max_seconds=1e-9).fit(*rows)
    assert len(short.selection_.rounds) == 1
    assert not load_checkpoint(tmp_path).complete
    found = selector(tmp_path, engine="refit").fit(*rows).selection_
    assert_same_path(found, selector(None).fit(*rows).selection_)


def test_a_run_that_fails_goes_on(rows, tmp_path, monkeypatch):
    X, y = rows
    inner, calls = RefitEngine.score, []

    def failing(self, data, request):
        calls.append(request)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return inner(self, data, request)

    monkeypatch.setattr(RefitEngine, "score", failing)
    interrupted = selector(tmp_path, Lasso(0.1))
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(X, y)
    assert len(interrupted.selection_.rounds) == 3
    assert interrupted.set_size(7).support_.sum() == 7
    found = selector(tmp_path, Lasso(0.1)).fit(X, y).selection_
    assert len(calls) == 4 + 5
    assert_same_path(found, selector(None, Lasso(0.1)).fit(X, y).selection_, rtol=0)


def test_engines_that_had_given_up_are_not_asked_again(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 7))
    X[:, 6] = X[:, 5] + 1e-6 * rng.normal(size=60)
    y = X.sum(axis=1) + rng.normal(size=60)
    with pytest.warns(dagsel.DagselWarning):
        whole = selector(tmp_path).fit(X, y).selection_
    assert whole.engines == ("refit",)
    text = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join(text[:4]))
    found = selector(tmp_path).fit(X, y).selection_  # and without a warning
    assert_same_path(found, whole, rtol=0)


def test_a_store_that_knows_no_appending(rows, local_client):
    import fsspec

    folder = "memory://runs/first"
    whole = selector(folder).fit(*rows).selection_
    assert_same_path(load_checkpoint(folder), whole)
    store = fsspec.filesystem("memory")
    names = sorted(store.glob("/runs/first/*"))
    assert len(names) == len(whole.rounds) + 2
    for name in names[5:]:
        store.rm(name)
    assert len(load_checkpoint(folder).rounds) == 4
    assert_same_path(selector(folder).fit(*rows).selection_, whole)
    assert_same_path(load_checkpoint(folder), whole)
    with pytest.raises(CheckpointError, match="direction"):
        selector(folder, direction="forward").fit(*rows)


def test_front_door_of_mlxtend(rows, tmp_path, monkeypatch):
    def make(checkpoint):
        return MlxtendSelector(
            LinearRegression(), k_features=3, forward=False, scoring="r2", checkpoint=checkpoint
        )

    whole = make(tmp_path).fit(*rows)
    text = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join(text[:4]))
    sizes = watch(monkeypatch)
    found = make(tmp_path).fit(*rows)
    assert max(sizes) == 7
    assert found.k_feature_idx_ == whole.k_feature_idx_
    assert found.subsets_.keys() == whole.subsets_.keys()
    np.testing.assert_allclose(found.k_score_, whole.k_score_, rtol=1e-12)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_are_known_by_what_is_in_them(rows, tmp_path, form):
    X, y = rows
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(9)]).assign(target=y)
    file = tmp_path / f"rows.{form}"

    def write(frame):
        if form == "csv":
            frame.to_csv(file, index=False)
        else:
            frame.to_parquet(file)

    write(table)
    whole = selector(tmp_path / "run").fit(file, "target").selection_
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    file.rename(moved)
    assert_same_path(selector(tmp_path / "run").fit(moved, "target").selection_, whole, rtol=0)
    changed = table.copy()
    changed.loc[40, "x3"] = 9.5
    write(changed)
    with pytest.raises(CheckpointError, match="other values of the features"):
        selector(tmp_path / "run").fit(file, "target")


def test_two_processes_do_not_write_to_one_journal(rows, tmp_path):
    selector(tmp_path).fit(*rows)
    text = "from dagsel import journal_files as files; import sys, time\n"
    text += f"lines = files.open_lines({str(tmp_path)!r}); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(CheckpointError, match="another process is writing"):
                selector(tmp_path).fit(*rows)
            assert load_checkpoint(tmp_path).complete
        finally:
            process.kill()
    selector(tmp_path).fit(*rows)


def test_a_full_disk_loses_nothing(rows, tmp_path, monkeypatch):
    inner = journal_files._File.append

    def append(self, line, *, sync=False):
        if b'"round"' in line and self.path.read_bytes().count(b"\n") == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        inner(self, line, sync=sync)

    monkeypatch.setattr(journal_files._File, "append", append)
    full = selector(tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot write to the journal in .*No space left"):
        full.fit(*rows)
    assert len(full.selection_.rounds) == 3
    monkeypatch.undo()
    found = selector(tmp_path).fit(*rows).selection_
    assert_same_path(found, selector(None).fit(*rows).selection_)


def test_journals_that_cannot_be_used(rows, tmp_path):
    with pytest.raises(CheckpointError, match="no journal"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no journal"):
        load_checkpoint(tmp_path / "nowhere")
    lines = journal_of(tmp_path / "whole", rows)
    damaged = [*lines[:3], lines[3].replace(b"0", b"1"), *lines[4:]]
    other = {"format": "dagsel-journal", "version": 99}
    text = json.dumps(other).encode()
    contents = {
        "damaged": (b"".join(damaged), "line 4 .* is damaged.*go on from round 2"),
        "foreign": (b"a,b\n1,2\n", "no journal"),
        "text": (b"my notes", "no journal"),
        "newer": (b"%08x %s\n" % (crc32(text), text), "version 99"),
    }
    for name, (content, message) in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            selector(tmp_path / name).fit(*rows)
        assert (tmp_path / name / NAME).read_bytes() == content
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match="cannot be used"):
        selector(blocked / "folder").fit(*rows)
    with pytest.raises(CheckpointError, match="cannot be used"):
        selector("nosuchprotocol://folder").fit(*rows)


def test_a_plan_makes_no_journal(rows, tmp_path):
    selector(tmp_path / "run").plan(*rows)
    assert list(tmp_path.iterdir()) == []


def test_random_splits_must_be_seeded(rows, tmp_path):
    splitter = ShuffleSplit(4, random_state=0)
    selector(tmp_path, cv=splitter).fit(*rows)
    selector(tmp_path, cv=splitter).fit(*rows)
    with pytest.raises(CheckpointError, match="other folds"):
        selector(tmp_path, cv=ShuffleSplit(4)).fit(*rows)
