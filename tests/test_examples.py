"""What the README, the documentation and the examples show is run as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

from dagsel.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
DIABETES = ["id", "age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "progression"]


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def command(mark: str) -> str:
    """Return the README's command that stands under a comment."""
    text = (ROOT / "README.md").read_text()
    (found,) = re.findall(rf"^<!-- command: {mark} -->\n```bash\n(.*?)\n```$", text, re.M | re.S)
    return found


def dagsel_commands(page: Path) -> list[list[str]]:
    """Return the arguments of every dagsel command in the page's bash blocks."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    found = [line.partition("dagsel ")[2] for line in lines if re.search(r"(^|/)dagsel ", line)]
    return [shlex.split(line) for line in found]


def python(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_here(arguments: list[str]) -> None:
    """Run the command in this process: the same function, without seconds of imports."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Return a folder with the shipped data where a clone has them."""
    shutil.copytree(EXAMPLES / "data", tmp_path / "examples" / "data")
    return tmp_path


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem
)
def test_python_blocks_run(page, workplace):
    # In the order of the page, as a reader would paste them.
    (workplace / "page.py").write_text("\n".join(blocks(page, "python")))
    assert python("page.py", cwd=workplace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if dagsel_commands(page)], ids=lambda page: page.stem
)
def test_dagsel_commands_run(page, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    for arguments in dagsel_commands(page):
        run_here(arguments)


def test_install_command_writes_the_selection(workplace, monkeypatch):
    _, _, arguments = command("install").rpartition("dagsel ")
    arguments = shlex.split(arguments)
    python("-m", "dagsel.cli", *arguments, cwd=workplace)
    output = workplace / arguments[arguments.index("-o") + 1]
    # The same five as refits by mlxtend keep.
    assert (output / "selected.txt").read_text().split() == ["sex", "bmi", "bp", "s1", "s5"]
    # A second time, as one does.
    monkeypatch.chdir(workplace)
    run_here(arguments)


def test_the_readme_tells_how_to_run_these_tests():
    assert command("test").endswith("-m pytest")


def test_links_lead_somewhere():
    for page in [*PAGES, EXAMPLES / "README.md"]:
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_shipped_data_are_the_original_ones():
    shipped = pd.read_csv(EXAMPLES / "data" / "diabetes.csv")
    original = load_diabetes(scaled=False)
    assert list(shipped.columns) == DIABETES
    assert np.array_equal(shipped[DIABETES[1:-1]].to_numpy(dtype=float), original.data)
    assert np.array_equal(shipped["progression"], original.target)


def make_data(path: Path, *options: str) -> pd.DataFrame:
    python(EXAMPLES / "make_data.py", path.name, *options, cwd=path.parent)
    return pd.read_csv(path)


def test_made_data_have_the_form_of_the_job(tmp_path):
    data = make_data(tmp_path / "data.csv", "--rows", "620", "--columns", "30")
    assert list(data.columns) == ["Path", "id", *(f"f{j:04d}" for j in range(30)), "label"]
    assert data["Path"].map(type).eq(str).all()
    assert data["id"].tolist() == list(range(620))
    features = data.drop(columns=["Path", "id", "label"])
    correlations = np.corrcoef(features.to_numpy(), rowvar=False)[np.triu_indices(30, 1)]
    assert np.abs(correlations).max() > 0.15
    again = make_data(tmp_path / "again.csv", "--rows", "500", "--columns", "30")
    assert again.equals(data[:500])


def test_seed_script_and_refits_select_the_same(tmp_path):
    data = make_data(tmp_path / "data.csv", "--rows", "200", "--columns", "12")
    printed = python(EXAMPLES / "seed_script.py", "data.csv", "8", cwd=tmp_path)

    from mlxtend.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import LinearRegression

    selector = SequentialFeatureSelector(
        LinearRegression(), k_features=8, forward=False, scoring="neg_mean_squared_error"
    )
    selector.fit(data.drop(columns=["Path", "id", "label"]), data["label"])
    names, number, score = (line.partition(": ")[2] for line in printed.strip().splitlines())
    assert tuple(names.split()) == selector.k_feature_names_
    assert number == "8"
    assert float(score) == pytest.approx(selector.k_score_, rel=1e-9)


def test_seed_script_differs_from_mlxtend_in_one_line():
    lines = (EXAMPLES / "seed_script.py").read_text().splitlines()
    (old,) = (line for line in lines if line.startswith("# Was: "))
    new = lines[lines.index(old) + 1]
    was = old.removeprefix("# Was: ")
    assert new == was.replace("mlxtend.feature_selection", "dagsel.mlxtend")
    assert sum("dagsel" in line for line in lines) == 1


def test_cluster_example(tmp_path):
    printed = python(EXAMPLES / "dask_cluster.py", "--rows", "800", "--columns", "8", cwd=tmp_path)
    assert "cluster of 2 workers" in printed
    selected = printed.strip().splitlines()[-1].removeprefix("Selected:").split()
    assert len(selected) == 4
    assert all(name.startswith("x") for name in selected)
