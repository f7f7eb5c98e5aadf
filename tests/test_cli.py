"""The command, as users and batch systems run it: processes, files, exit codes, signals."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GroupKFold, KFold, cross_val_score

from cluster import harness
from dagsel import Selection, SequentialFeatureSelector, load_checkpoint
from dagsel.cli import main
from dagsel.cli.wording import in_options

COMMAND = [sys.executable, "-m", "dagsel.cli"]
LIMIT = 90  # seconds: only met when something hangs


def make_table(n_rows: int, n_columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(n_columns)
    X = rng.standard_normal((n_rows, n_columns)) + rng.standard_normal((n_rows, 1))
    names = [f"x{column}" for column in range(n_columns)]
    table = pd.DataFrame(X, columns=names)
    table.insert(0, "Path", "a.png")
    table["id"] = np.arange(n_rows) % 7
    table["label"] = X[:, : n_columns // 2] @ rng.standard_normal(n_columns // 2)
    table["label"] += rng.standard_normal(n_rows)
    return table


def features(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=["Path", "id", "label"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def table(folder: Path) -> pd.DataFrame:
    made = make_table(240, 12)
    made.to_csv(folder / "table.csv", index=False)
    made[:100].to_parquet(folder / "part-0.parquet")
    made[100:].to_parquet(folder / "part-1.parquet")
    return made


@pytest.fixture
def data(table: pd.DataFrame, folder: Path) -> list[str]:
    del table
    return [str(folder / "table.csv"), "--target", "label", "--drop", "Path", "--drop", "id"]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, **(env or {})},
        check=False,
    )


def run_here(*arguments: str) -> int:
    """Run the command in this process: the same function, without seconds of imports."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def assert_same_path(found: Selection, expected: Selection) -> None:
    assert [done.feature for done in found.rounds] == [done.feature for done in expected.rounds]
    np.testing.assert_allclose(
        [done.fold_scores for done in found.rounds],
        [done.fold_scores for done in expected.rounds],
        rtol=1e-10,
    )


# ---------------------------------------------------------------- results


def test_results_in_a_folder_equal_the_selector(
    table: pd.DataFrame, data: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "OUT"
    options = ["--k", "4", "--scoring", "neg_mean_squared_error", "--fixed", "x11"]
    splitter = ["--cv", "sklearn.model_selection.KFold", "--cv-param", "n_splits=4"]
    splitter += ["--cv-param", "shuffle=True", "--cv-param", "random_state=3"]
    ridge = ["--estimator", "sklearn.linear_model.Ridge", "--param", "alpha=2.5"]
    done = run("select", *data, *options, *splitter, *ridge, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "round 0: start, 12 features" in done.stderr

    selector = SequentialFeatureSelector(
        Ridge(alpha=2.5),
        n_features_to_select=4,
        direction="backward",
        scoring="neg_mean_squared_error",
        cv=KFold(4, shuffle=True, random_state=3),
        fixed_features=["x11"],
    ).fit(features(table), table["label"])
    selection = Selection.from_json(out / "selection.json")
    assert selection.complete
    assert selection.versions["python"] == sys.version.split()[0]
    assert_same_path(selection, selector.selection_)
    chosen = (out / "selected.txt").read_text().splitlines()
    assert chosen == selector.get_feature_names_out().tolist()
    with open(out / "path.csv", newline="") as lines:
        path = list(csv.DictReader(lines))
    assert [row["feature"] for row in path] == [done.feature or "" for done in selection.rounds]
    assert [float(row["mean"]) for row in path] == [done.mean for done in selection.rounds]
    log = (out / "log.txt").read_text()
    for part in ("start: dagsel select", "--param alpha=2.5", "numpy ", "plan: engine", "round 8"):
        assert part in log
    assert "end after" in log.splitlines()[-1]
    assert sorted(file.name for file in out.iterdir()) == [
        "journal.jsonl",
        "log.txt",
        "path.csv",
        "selected.txt",
        "selection.json",
    ]


def test_workers_give_the_same_selection(table: pd.DataFrame, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "OUT"
    files = str(folder / "part-*.parquet")
    columns = ["--target", "label", "--drop", "Path", "--drop", "id"]
    where = ["--workers", "2", "--memory-limit", "2GB"]
    options = ["--k", "0.25", "--direction", "forward", "--engine", "refit", "--quiet"]
    done = run(
        "select", files, *columns, *options, *where, "-o", str(out), "--path-format", "parquet"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=0.25, direction="forward"
    ).fit(features(table), table["label"])
    selection = Selection.from_json(out / "selection.json")
    assert_same_path(selection, selector.selection_)
    assert "2 workers" in str(selection.plan)
    path = pd.read_parquet(out / "path.parquet")
    pd.testing.assert_frame_equal(path, selection.to_frame(), check_exact=True, check_dtype=False)


def test_a_cluster_that_runs_already(
    table: pd.DataFrame,
    data: list[str],
    command_line_client: Client,
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=3, direction="backward"
    ).fit(features(table), table["label"])
    file = command_line_client.harness.scheduler_file
    assert run_here("select", *data, "--k", "3", "--quiet", "--scheduler-file", str(file)) == 0
    captured = capfd.readouterr()
    assert captured.out.splitlines() == expected.get_feature_names_out().tolist()
    assert captured.err == ""
    # It has been left as it was.
    assert len(command_line_client.nthreads()) == 2


def test_encrypted_cluster_with_the_certificates_of_dasks_configuration(
    data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with harness.command_line_cluster(1, tls=True, worker_options=["--no-nanny"]) as client:
        security = client.harness.security
        address = client.scheduler.address
        tls = {
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": security.tls_ca_file,
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": security.tls_client_cert,
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": security.tls_client_key,
        }
        done = run("plan", *data, "--scheduler", address, "--quiet", env=tls)
        assert run_here("plan", *data, "--scheduler", address, "--timeout", "1") == 2
    assert done.returncode == 0, done.stderr
    assert "cluster of 1 worker" in done.stdout
    assert "no Dask scheduler answers" in capfd.readouterr().err


def test_names_go_to_standard_output(
    table: pd.DataFrame, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here("select", *data, "--tol", "0.001", "--columns", "x0", "--columns", "x2") == 0
    expected = SequentialFeatureSelector(LinearRegression(), tol=0.001, direction="backward")
    expected.fit(table[["x0", "x2"]], table["label"])
    captured = capfd.readouterr()
    assert captured.out.splitlines() == expected.get_feature_names_out().tolist()
    assert "the next move would not raise r2 by --tol 0.001" in captured.err
    score = expected.selection_.rounds[-1].mean
    assert f"selected 2 of 2 columns, r2 {score:.6g}" in captured.err


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_best_is_the_best_of_all_sizes(
    table: pd.DataFrame, data: list[str], tmp_path: Path, direction: str
) -> None:
    out = tmp_path / "OUT"
    assert run_here("select", *data, "--k", "best", "--direction", direction, "-o", str(out)) == 0
    selection = Selection.from_json(out / "selection.json")
    assert selection.sizes == tuple(range(1, 13))
    best = max(selection.rounds, key=lambda done: done.mean)
    chosen = (out / "selected.txt").read_text().splitlines()
    assert chosen == list(best.names)
    scores = cross_val_score(LinearRegression(), table[chosen], table["label"], cv=5)
    assert np.mean(scores) == pytest.approx(best.mean, rel=1e-10)


@pytest.mark.parametrize("k", ["parsimonious", "3-6"])
def test_other_ways_to_choose_a_size(
    table: pd.DataFrame, data: list[str], capfd: pytest.CaptureFixture[str], k: str
) -> None:
    assert run_here("select", *data, "--k", k) == 0
    selector = SequentialFeatureSelector(
        LinearRegression(),
        direction="backward",
        n_features_to_select=(3, 6) if k == "3-6" else k,
    ).fit(features(table), table["label"])
    captured = capfd.readouterr()
    assert captured.out.splitlines() == selector.get_feature_names_out().tolist()
    end = 3 if k == "3-6" else 1
    assert f"the search ended at {end} of 12 features: it has reached its end" in captured.err


@pytest.mark.parametrize("path_format", ["csv", "parquet"])
def test_several_features_at_once(
    table: pd.DataFrame, data: list[str], tmp_path: Path, path_format: str
) -> None:
    out = tmp_path / "OUT"
    options = ["--step", "0.4", "--k", "3", "-o", str(out), "--path-format", path_format]
    assert run_here("select", *data, *options, "--quiet") == 0
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=3, direction="backward", step=0.4
    ).fit(features(table), table["label"])
    selection = Selection.from_json(out / "selection.json")
    assert_same_path(selection, selector.selection_)
    moved = [", ".join(map(str, done.moved)) for done in selector.selection_.rounds]
    assert [done.n_features for done in selection.rounds] == [12, 8, 5, 3]
    read = pd.read_csv if path_format == "csv" else pd.read_parquet
    path = read(out / f"path.{path_format}")
    assert path["feature"].fillna("").tolist() == moved


@pytest.mark.parametrize(
    ("criterion", "ended"),
    [
        (["bic"], "the next move would not raise bic"),
        (["p_value"], "no move is left that passes the test at level 0.05"),
        (["p_value", "--alpha", "0.999999"], "12 features: no move is left that passes the test"),
    ],
    ids=" ".join,
)
def test_criteria(
    table: pd.DataFrame,
    data: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    criterion: list[str],
    ended: str,
) -> None:
    assert run_here("select", *data, "-o", str(tmp_path), "--criterion", *criterion) == 0
    name, alpha = criterion[0], float(criterion[-1]) if len(criterion) > 1 else 0.05
    selector = SequentialFeatureSelector(
        LinearRegression(), direction="backward", criterion=name, alpha=alpha
    ).fit(features(table), table["label"])
    chosen = (tmp_path / "selected.txt").read_text().splitlines()
    assert chosen == selector.get_feature_names_out().tolist()
    assert ended in capfd.readouterr().err
    assert_same_path(Selection.from_json(tmp_path / "selection.json"), selector.selection_)


def test_patience_ends_the_search(
    table: pd.DataFrame, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--k", "best", "--direction", "forward", "--patience", "1"]
    assert run_here("select", *data, *options) == 0
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select="best", patience=1
    ).fit(features(table), table["label"])
    captured = capfd.readouterr()
    reached = selector.selection_.sizes[-1]
    assert reached < 12
    assert captured.out.splitlines() == selector.get_feature_names_out().tolist()
    ended = f"the search ended at {reached} of 12 features: no better r2 in 1 sizes (--patience)"
    assert ended in captured.err


def test_the_time_is_up(data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "OUT"
    options = ["--k", "2", "--max-seconds", "1e-6", "-o", str(out)]
    assert run_here("select", *data, *options) == 0
    err = capfd.readouterr().err
    assert "note: the time budget of 1e-06 s was used up at 12 of 12 features" in err
    assert "the search ended at 12 of 12 features: the time was used up (--max-seconds" in err
    selection = Selection.from_json(out / "selection.json")
    assert (selection.stop_reason, selection.complete) == ("time", True)
    assert len((out / "selected.txt").read_text().splitlines()) == 12
    assert any("time budget" in note for note in selection.notes)


def test_groups_are_a_column(table: pd.DataFrame, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "OUT"
    data = [str(folder / "table.csv"), "--target", "label", "--drop", "Path", "--groups", "id"]
    splitter = ["--cv", "sklearn.model_selection.GroupKFold", "--cv-param", "n_splits=3"]
    assert run_here("select", *data, *splitter, "--k", "5", "-o", str(out)) == 0
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=5, direction="backward", cv=GroupKFold(3)
    ).fit(features(table), table["label"], groups=table["id"])
    assert_same_path(Selection.from_json(out / "selection.json"), selector.selection_)


def test_weights_are_a_column(table: pd.DataFrame, folder: Path, tmp_path: Path) -> None:
    data = [str(folder / "table.csv"), "--target", "label", "--drop", "Path", "--weights", "id"]
    for flag in ([], ["--weighted-scores"]):
        out = tmp_path / f"OUT{len(flag)}"
        assert run_here("select", *data, *flag, "--k", "5", "-o", str(out)) == 0
        selector = SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=5,
            direction="backward",
            weighted_scores=bool(flag),
        ).fit(features(table), table["label"], sample_weight=table["id"])
        assert_same_path(Selection.from_json(out / "selection.json"), selector.selection_)


def test_categories_and_an_audit(
    table: pd.DataFrame, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    coded = table.assign(Path=np.where(table["x1"] > 0, "a.png", "b.png"))
    coded.to_csv(folder / "coded.csv", index=False)
    out = tmp_path / "OUT"
    data = [str(folder / "coded.csv"), "--target", "label", "--drop", "id", "--k", "5"]
    options = ["--categories", "one-hot", "--audit", "3", "--fixed", "Path"]
    assert run_here("select", *data, *options, "-o", str(out)) == 0
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=5,
        direction="backward",
        categories="one-hot",
        fixed_features=["Path"],
    ).fit(coded.drop(columns=["id", "label"]), coded["label"])
    found = Selection.from_json(out / "selection.json")
    assert_same_path(found, selector.selection_)
    assert (out / "selected.txt").read_text().splitlines()[0] == "Path"
    assert found.audit is not None
    assert len(found.audit.rounds) == 3
    line = str(found.audit)
    assert "all choices stand" in line
    for text in (capfd.readouterr().err, (out / "log.txt").read_text()):
        assert text.count(line) == 1


def test_plan(data: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run_here("plan", *data, "--k", "4", "--quiet") == 0
    text = capfd.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (lines["engine"], lines["rows"], lines["rounds"]) == ("moments", "240", "9")
    for name in ("reason", "axis", "shards", "where", "columns", "folds", "candidates", "data"):
        assert name in lines

    assert run_here("plan", *data, "--k", "4", "--engine", "refit", "--quiet", "--json") == 0
    figures: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert figures["engine"] == "refit"
    assert figures["reason"] == "asked for"
    assert (figures["n_rows"], figures["n_columns"], figures["n_folds"]) == (240, 12, 5)
    assert figures["n_candidates"] == 1 + sum(range(5, 13))
    assert figures["operations"] is None
    assert figures["in_process"] is True


def test_results_are_not_overwritten_unless_forced(
    data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path)]
    assert run_here("select", *data, "--k", "12", *out) == 0
    before = (tmp_path / "selected.txt").read_text()
    capfd.readouterr()
    assert run_here("select", *data, "--k", "2", *out) == 2
    assert "--force" in capfd.readouterr().err
    assert (tmp_path / "selected.txt").read_text() == before
    assert run_here("select", *data, "--k", "2", *out, "--force", "--path-format", "parquet") == 0
    assert len((tmp_path / "selected.txt").read_text().splitlines()) == 2
    assert not (tmp_path / "path.csv").exists()


def test_version_and_help(capfd: pytest.CaptureFixture[str]) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "dagsel 0.1.0\n")
    assert run_here("select", "--help") == 0
    assert "--scheduler-file" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("use n_features_to_select='auto' or a number", "use --k auto or a number"),
        ("n_features_to_select=(5, 40) has 40", "--k 5-40 has 40"),
        ("n_features_to_select=0.25 comes to 0", "--k 0.25 comes to 0"),
        ("leave it out with drop=['Unnamed: 0'].", "leave it out with --drop 'Unnamed: 0'."),
        ("Drop it (drop=[...]), or say groups=.", "Drop it (--drop), or say --groups."),
        ("fixed_features: no column 'x'", "--fixed: no column 'x'"),
        ("svr__sample_weight= was given", "--weights was given"),
        # Arguments of an object that is shown, attributes and metrics are not options.
        ("LassoCV(cv=3, criterion='bic') fails", "LassoCV(cv=3, criterion='bic') fails"),
        ("neg_mean_squared_error is NaN", "neg_mean_squared_error is NaN"),
    ],
)
def test_messages_name_options(text: str, told: str) -> None:
    assert in_options(text) == told


# ---------------------------------------------------------------- what cannot be used: 2

FILE = "{folder}/table.csv"
DATA = [FILE, "--target", "label", "--drop", "Path", "--drop", "id"]
GROUPED = ["--cv", "sklearn.model_selection.GroupKFold"]
RIDGE = [*DATA, "--estimator", "sklearn.linear_model.Ridge"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([FILE, "--target", "lable"], ["lable", "Did you mean 'label'?"]),
        ([*DATA, "--drop", "x33"], ["x33", "Did you mean", "x3"]),
        (
            [FILE, "--target", "label"],
            ["Path", "a.png", "(--drop)", "encodes columns of text by --categories one-hot"],
        ),
        (
            [*DATA, "--cv", "sklearn.model_selection.GroupKFold", "--cv-param", "n_splits=3"],
            ["Say with --groups which group each row is in"],
        ),
        ([*DATA, *GROUPED, "--groups", "idd"], ["'idd' (the groups)", "Did you mean 'id'?"]),
        ([*DATA, *GROUPED, "--groups", "label"], ["'label' is the target and the groups"]),
        (
            [*DATA, "--weights", "id", "--estimator", "sklearn.neighbors.KNeighborsRegressor"],
            ["--weights was given, but KNeighborsRegressor.fit takes no weights"],
        ),
        (
            [*DATA, "--scoring", "accuracy"],
            ["--scoring accuracy cannot score what LinearRegression predicts", "'r2'"],
        ),
        (["{folder}/no.csv", "--target", "label"], ["No such file", "no.csv"]),
        ([*DATA, "--fixed", "x99"], ["--fixed", "x99"]),
        ([*DATA, "--k", "13"], ["--k 13 is more than the 12 features", "from 1 to 12"]),
        ([*DATA, "--k", "0.01"], ["--k 0.01 comes to 0", "from 1 to 12"]),
        ([*DATA, "--k", "5-40"], ["--k 5-40 has 40", "more than the 12 features"]),
        ([*DATA, "--k", "5-2"], ["--k 5-2: the minimum is greater"]),
        ([*DATA, "--k", "5-"], ["--k", "'5-'", "a range such as 5-20", "'parsimonious'"]),
        ([*DATA, "--k", "2", "--fixed", "x1", "--fixed", "x2", "--fixed", "x3"], ["3 fixed"]),
        ([*DATA, "--k", "3", "--patience", "2"], ["--patience 2", "--k 3", "--k best"]),
        ([*DATA, "--k", "best", "--patience", "0"], ["--patience", "0"]),
        ([*DATA, "--step", "0"], ["--step", "'0'", "fraction"]),
        ([*DATA, "--step", "1.5"], ["--step", "'1.5'"]),
        ([*DATA, "--step", "2", "--floating"], ["--floating", "--step is 2"]),
        ([*DATA, "--max-seconds", "0"], ["--max-seconds"]),
        ([*DATA, "--k", "many"], ["--k", "'many'", "fraction"]),
        ([*DATA, "--k", "3", "--tol", "0.1"], ["--tol 0.1", "--k 3"]),
        ([*DATA, "--cv", "1"], ["--cv", "at least 2"]),
        ([*DATA, "--cv", "300"], ["300", "240"]),
        ([*DATA, "--cv-param", "shuffle=True"], ["--cv-param", "KFold"]),
        ([*DATA, "--cv", "sklearn.linear_model.Ridge"], ["--cv", "not a splitter", "split"]),
        ([*DATA, "--groups", "Path"], ["--groups", "GroupKFold"]),
        ([*DATA, "--scoring", "neg_mean_squared_eror"], ["Did you mean neg_mean_squared_error"]),
        ([*DATA, "--estimator", "Ridge"], ["--estimator", "sklearn.linear_model.Ridge"]),
        ([*DATA, "--estimator", "sklearn.linear_model.Rige"], ["Did you mean", ".Ridge"]),
        ([*DATA, "--estimator", "no_such_module.X"], ["no module no_such_module", "PYTHONPATH"]),
        ([*DATA, "--estimator", "os.abort"], ["os.abort is not an estimator class"]),
        ([*DATA, "--estimator", "subprocess.Popen"], ["not an estimator class", "fit"]),
        ([*RIDGE, "--param", "alhpa=1"], ["alhpa", "Did you mean 'alpha'?"]),
        ([*RIDGE, "--param", "alpha"], ["'alpha'", "NAME=VALUE"]),
        ([*RIDGE, "--param", "alpha=-1"], ["--param", "alpha", "-1"]),
        ([*DATA, "--weighted-scores"], ["--weighted-scores needs weights", "--weights"]),
        ([*DATA, "--weights", "idd"], ["'idd' (the weights)", "Did you mean 'id'?"]),
        ([*DATA, "--weights", "label"], ["'label' is the target and the weights"]),
        ([*DATA, "--weights", "x1"], ["--weights is -", "in row", "at least 0"]),
        (
            [*DATA, "--weights", "id", "--weighted-scores", "--scoring", "neg_max_error"],
            ["--weighted-scores", "max_error", "takes no weights"],
        ),
        ([*DATA, "--audit", "-1"], ["--audit"]),
        ([*DATA, "--categories", "dummy"], ["--categories", "one-hot"]),
        ([*DATA, "--workers", "2", "--n-jobs", "2"], ["--workers and --n-jobs"]),
        ([*DATA, "--memory-limit", "1GB"], ["--workers"]),
        ([*DATA, "--workers", "2", "--memory-limit", "lots"], ["lots", "4GiB"]),
        ([*DATA, "--scheduler-file", FILE], ["not a file that `dask scheduler"]),
        ([*DATA, "--scheduler", "foo://here:1"], ["foo", "address"]),
        ([*DATA, "--engine", "moments", "--scoring", "neg_max_error"], ["--engine", "max_error"]),
        ([*DATA, "-o", FILE], ["table.csv", "is a file"]),
        ([*DATA, "-o", "{folder}/table.csv/deeper"], ["cannot write", "table.csv"]),
    ],
)
def test_what_cannot_be_used_is_one_clear_message(
    table: pd.DataFrame,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    parts: list[str],
) -> None:
    del table
    given = [argument.format(folder=folder) for argument in arguments]
    assert run_here("select", *given, "--quiet") == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert sum(line.startswith("Error: ") for line in captured.err.splitlines()) == 1
    assert "Traceback" not in captured.err
    for part in parts:
        assert part in captured.err


def test_a_host_without_scheduler_is_one_line(
    data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--scheduler", "tcp://127.0.0.1:1", "--timeout", "1"]
    assert run_here("select", *data, *where, "--quiet") == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in line
    # On a busy machine the time can be up before the refusal has come; a cause is named anyway.
    assert "within 1 s ()" not in line


def test_parameters_are_not_evaluated(
    data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    ridge = ["--estimator", "sklearn.linear_model.Ridge"]
    assert run_here("select", *data, *ridge, "--param", f"alpha={code}") == 2
    assert run_here("select", *data, "--estimator", code) == 2
    kfold = ["--cv", "sklearn.model_selection.KFold"]
    assert run_here("select", *data, *kfold, "--cv-param", f"n_splits={code}") == 2
    assert "Traceback" not in capfd.readouterr().err
    assert not trap.exists()


def test_debug_shows_the_traceback(data: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run_here("select", *data, "--k", "13", "--debug") == 2
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("Error: --k 13")


def test_logging_is_left_as_it_was(data: list[str]) -> None:
    logger = logging.getLogger("dagsel")
    before = (logger.level, list(logger.handlers))
    assert run_here("select", *data, "--k", "11", "--quiet") == 0
    assert (logger.level, list(logger.handlers)) == before


# ---------------------------------------------------------------- runs that fail: 1


def test_a_score_that_cannot_be_computed(
    data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    classifier = ["--estimator", "sklearn.linear_model.LogisticRegression"]
    assert run_here("select", *data, "--k", "2", *classifier, "--quiet") == 1
    err = capfd.readouterr().err
    assert "no usable score" in err
    assert "The first error was" in err
    assert "Unknown label type" in err


def test_what_was_decided_before_a_failure_is_kept(
    data: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent(
            """
            from sklearn.linear_model import LinearRegression

            class Brittle(LinearRegression):
                def fit(self, X, y):
                    if X.shape[1] < 9:
                        raise ArithmeticError("too narrow")
                    return super().fit(X, y)
            """
        )
    )
    out = tmp_path / "OUT"
    given = ["--estimator", "own.Brittle", "--k", "2", "-o", str(out), "--quiet"]
    monkeypatch.syspath_prepend(tmp_path)
    assert run_here("select", *data, *given) == 1
    err = capfd.readouterr().err
    assert "too narrow" in err
    assert "The 4 rounds decided before can be found in" in err
    assert_incomplete(out, sizes=[12, 11, 10, 9])


def test_a_full_disk_does_not_lose_the_result(
    data: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert run_here("select", *data, "--k", "2", "-o", str(tmp_path), "--quiet") == 1
    captured = capfd.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "No space left on device" in captured.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal.jsonl", "log.txt"]


def assert_incomplete(out: Path, sizes: list[int] | None = None) -> Selection:
    selection = Selection.from_json(out / "selection.json")
    assert not selection.complete
    if sizes is not None:
        assert [done.n_features for done in selection.rounds] == sizes
    path = pd.read_csv(out / "path.csv")
    assert path["n_features"].tolist() == [done.n_features for done in selection.rounds]
    # Whoever reads this file takes it for the result.
    assert not (out / "selected.txt").exists()
    return selection


# ---------------------------------------------------------------- signals: 130, 143


@contextmanager
def started(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with signals as in a shell, even where the tests ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **env},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def wait_for_round(process: subprocess.Popen[str], log: Path, number: int) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if log.exists() and f"round {number}: " in log.read_text():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    pytest.fail(f"no round {number} in {LIMIT} s")


@pytest.mark.parametrize(
    ("signum", "code", "where", "to_group"),
    [
        (signal.SIGINT, 130, [], False),
        (signal.SIGTERM, 143, [], False),
        # As in a terminal: Ctrl-C reaches the workers, too.
        (signal.SIGINT, 130, ["--workers", "1"], True),
    ],
)
def test_a_signal_ends_the_run_and_keeps_what_was_decided(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signum: int,
    code: int,
    where: list[str],
    to_group: bool,
) -> None:
    table = make_table(300, 40)
    file, out = tmp_path / "table.csv", tmp_path / "OUT"
    table.to_csv(file, index=False)
    columns = ["--target", "label", "--drop", "Path", "--drop", "id"]
    options = ["--k", "1", "--engine", "refit", "-o", str(out), "--quiet", *where]
    with started("select", str(file), *columns, *options) as process:
        wait_for_round(process, out / "log.txt", 2)
        if to_group:
            os.killpg(process.pid, signum)
        else:
            process.send_signal(signum)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith(f"Interrupted by {signal.Signals(signum).name}.")
    assert str(out) in line

    selection = assert_incomplete(out)
    n_rounds = len(selection.rounds)
    assert 3 <= n_rounds < 40
    assert f"{n_rounds} rounds" in line
    last = selection.rounds[-1]
    scores = cross_val_score(LinearRegression(), table[list(last.names)], table["label"], cv=5)
    np.testing.assert_allclose(last.fold_scores, scores, rtol=1e-10)
    whole = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=1, direction="backward"
    ).fit(features(table), table["label"])
    expected = [done.feature for done in whole.selection_.rounds[:n_rounds]]
    assert [done.feature for done in selection.rounds] == expected
    assert f"`dagsel resume {out}` goes on from there." in line

    # From another folder, and here.
    monkeypatch.chdir(tmp_path.parent)
    assert run_here("resume", str(out), "--quiet", "--n-jobs", "1") == 0
    found = Selection.from_json(out / "selection.json")
    assert found.complete
    assert_same_path(found, whole.selection_)
    kept = [done.move for done in found.rounds[:n_rounds]]
    assert kept == [done.move for done in selection.rounds]
    assert (out / "selected.txt").read_text().split() == whole.get_feature_names_out().tolist()


@pytest.mark.parametrize(
    "rest", ["", "except BaseException: raise ImportError('half of it is missing')"]
)
def test_a_signal_while_libraries_are_imported(tmp_path: Path, rest: str) -> None:
    library = f"""
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
{rest or "finally: pass"}
"""
    (tmp_path / "click.py").write_text(library)
    with started("--version", PYTHONPATH=str(tmp_path)) as process:
        stdout, stderr = process.communicate(timeout=LIMIT)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "Interrupted by SIGINT. Nothing was decided.\n"


def test_a_signal_before_the_first_round(data: list[str], tmp_path: Path) -> None:
    out = tmp_path / "OUT"
    given = ["--scheduler", "tcp://127.0.0.1:1", "--timeout", "40", "--quiet", "-o", str(out)]
    with started("select", *data, *given) as process:
        deadline = time.monotonic() + LIMIT
        log = out / "log.txt"
        while not (log.exists() and "connecting" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        # Nearly always at once; where a callback swallows the signal, when connecting has failed.
        _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 143
    assert stderr == "Interrupted by SIGTERM. Nothing was decided.\n"
    assert [file.name for file in out.iterdir()] == ["log.txt"]


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_run(tmp_path: Path) -> None:
    file, out = tmp_path / "table.csv", tmp_path / "OUT"
    make_table(300, 40).to_csv(file, index=False)
    columns = ["--target", "label", "--drop", "Path", "--drop", "id"]
    with harness.command_line_cluster(1) as client:
        address, processes = client.scheduler.address, client.harness
        client.close()
        options = ["--k", "1", "--engine", "refit", "-o", str(out), "--quiet"]
        with started("select", str(file), *columns, *options, "--scheduler", address) as process:
            wait_for_round(process, out / "log.txt", 1)
            processes.kill("scheduler")
            _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "the connection to the scheduler at" in stderr
    assert "Traceback" not in stderr
    assert_incomplete(out)


# ---------------------------------------------------------------- journal


def test_a_killed_run_is_gone_on_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "table.csv", tmp_path / "OUT"
    make_table(300, 40).to_csv(file, index=False)
    columns = ["--target", "label", "--drop", "Path", "--drop", "id"]
    cv = ["--cv", "sklearn.model_selection.KFold", "--cv-param", "n_splits=3"]
    ridge = ["--estimator", "sklearn.linear_model.Ridge", "--param", "alpha=2.5"]
    options = ["--k", "30-35", "--engine", "refit", *cv, *ridge, "--fixed", "x3", "--quiet"]
    given = ["select", str(file), *columns, *options]
    with started(*given, "-o", str(out)) as process:
        wait_for_round(process, out / "log.txt", 2)
        process.kill()
        process.communicate(timeout=30)
    left = load_checkpoint(out)
    assert 3 <= len(left.rounds) < 11
    # The same command goes on as well.
    copied = tmp_path / "COPY"
    shutil.copytree(out, copied)
    assert run_here(*given, "-o", str(copied)) == 0
    assert run_here("resume", str(out), "--quiet") == 0
    assert run_here(*given, "-o", str(tmp_path / "WHOLE")) == 0
    whole = Selection.from_json(tmp_path / "WHOLE" / "selection.json")
    for folder in (out, copied):
        found = Selection.from_json(folder / "selection.json")
        assert [done.move for done in found.rounds] == [done.move for done in whole.rounds]
        assert [done.seconds for done in found.rounds[:3]] == [
            done.seconds for done in left.rounds[:3]
        ]
        selected = (folder / "selected.txt").read_text()
        assert selected == (tmp_path / "WHOLE" / "selected.txt").read_text()
    assert capfd.readouterr().err == ""


def test_a_journal_of_its_own(
    data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "journal")]
    assert run_here("select", *data, "--k", "5", *checkpoint) == 0
    names = capfd.readouterr().out
    assert run_here("resume", str(tmp_path / "journal"), "--debug") == 0
    captured = capfd.readouterr()
    assert captured.out == names
    assert "8 rounds were decided before" in captured.err
    assert run_here("resume", str(tmp_path / "journal"), "-o", str(tmp_path / "OUT")) == 0
    assert (tmp_path / "OUT" / "selected.txt").read_text() == names


def test_a_run_that_was_out_of_time_is_gone_on_with(
    data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, copied = str(tmp_path / "OUT"), str(tmp_path / "COPY")
    given = ["select", *data, "--k", "9", "--quiet"]
    assert run_here(*given, "--max-seconds", "1e-9", "-o", out) == 0
    shutil.copytree(out, copied)
    assert len(Selection.from_json(tmp_path / "OUT" / "selection.json").rounds) == 1
    assert run_here("resume", out, "--max-seconds", "1000", "--quiet") == 0
    assert run_here(*given, "-o", copied) == 0
    for folder in (out, copied):
        found = Selection.from_json(Path(folder) / "selection.json")
        assert (found.stop_reason, found.sizes) == ("target", (9, 10, 11, 12))
    # What is complete stays as it is.
    assert run_here("resume", out, "--quiet") == 0
    assert len((Path(out) / "selected.txt").read_text().split()) == 9
    assert capfd.readouterr().err == ""
    assert run_here(*given, "-o", out) == 2
    assert "--force" in capfd.readouterr().err
    # Of another selection.
    assert run_here(*given, "--max-seconds", "1e-9", "-o", copied, "--force") == 0
    assert run_here(*given, "--cv", "3", "-o", copied) == 2
    assert "another selection" in capfd.readouterr().err


def test_journals_that_are_refused(
    data: list[str], table: pd.DataFrame, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, python = str(tmp_path / "OUT"), str(tmp_path / "PYTHON")
    assert run_here("select", *data, "--k", "5", "--checkpoint", out, "--quiet") == 0
    SequentialFeatureSelector(LinearRegression(), checkpoint=python).fit(
        features(table), table["label"]
    )
    capfd.readouterr()
    cases = [
        (["select", *data, "--k", "5", "--cv", "4", "--checkpoint", out], "other folds"),
        (["select", *data, "--k", "7", "--checkpoint", out], "which goes to 7 features"),
        (["resume", str(tmp_path / "nowhere")], "no journal"),
        (["resume", python], "that of a Python program"),
        (["resume", out, "--workers", "1", "--n-jobs", "2"], "Give one"),
    ]
    for arguments, message in cases:
        assert run_here(*arguments, "--quiet") == 2
        captured = capfd.readouterr()
        assert message in captured.err
        assert "Traceback" not in captured.err
    assert run_here("select", *data, "--k", "7", "--checkpoint", out, "--force", "--quiet") == 0
    assert len(load_checkpoint(out).rounds) == 6
