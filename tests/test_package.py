"""The package as a whole: what it exports, imports and ships, and how it is layered."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import dagsel

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dagsel"
MODULES = sorted(PACKAGE.rglob("*.py"))

TOP_LEVEL = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "dagsel",
    "cluster",
    "tests",
    "examples",
    "docs",
    ".ci",
}

# From the bottom up. A module imports from lower layers, and from its own entry of a layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("exceptions", "moves", "scorers", "versions"),
    ("choosing", "journal_files", "warning"),
    ("backend", "criterion", "search"),
    ("kernels", "data", "selection_json"),
    ("rounds",),
    ("audit",),
    ("results",),
    ("monitor", "sizes"),
    ("engines", "features"),
    ("contest", "criterion_rules", "exact_fit", "identity", "scoring"),
    ("journal",),
    ("tasks",),
    ("executors", "plan", "worker_loss"),
    ("opening", "scheduler"),
    ("elimination", "job", "metadata"),
    ("front_door",),
    ("selector",),
    ("recursive",),
    ("mlxtend",),
    ("__init__",),
    ("cli",),
)

# What a layer may import from outside the standard library; others are free.
OUTSIDE = {
    "exceptions": set(),
    "choosing": {"numpy"},
    "moves": {"numpy"},
    "search": {"numpy"},
    "kernels": {"numpy"},
    "backend": {"array_api_compat", "cupy", "numpy", "scipy"},
}

# Costly to import, or not there at all. scikit-learn itself brings pandas in.
HEAVY = {"cudf", "cupy", "dask", "distributed", "matplotlib", "pandas", "polars", "rmm", "torch"}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def layer_of(name: str) -> tuple[int, str]:
    for number, entries in enumerate(LAYERS):
        if (entry := name.split(".")[0]) in entries:
            return number, entry
    pytest.fail(f"dagsel/{name.replace('.', '/')}.py is in no layer: add it to LAYERS")


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of all modules imported anywhere in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                # `from dagsel.data import frames` imports a module, not a name.
                submodule = PACKAGE.parent / Path(*module.split(".")) / f"{alias.name}.py"
                yield f"{module}.{alias.name}" if submodule.exists() else module


def inside(name: str) -> str | None:
    """Return a module's name within the package, `None` for other packages."""
    first, _, rest = name.partition(".")
    return (rest or "__init__") if first == "dagsel" else None


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_downwards(path):
    number, entry = layer_of(name_of(path))
    for imported in imports_of(ast.parse(path.read_text())):
        if (target := inside(imported)) is None:
            continue
        # A library module that needs a public name takes it from where it is defined.
        below, other = layer_of(target)
        allowed = below < number or other == entry
        assert allowed, f"{name_of(path)} ({LAYERS[number]}) imports {target} ({LAYERS[below]})"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path).split(".")[0] in OUTSIDE], ids=name_of
)
def test_lower_layers_know_nothing_of_dask(path):
    entry = layer_of(name_of(path))[1]
    names = {name.split(".")[0] for name in imports_of(ast.parse(path.read_text()))}
    assert names - set(sys.stdlib_module_names) - {"dagsel"} <= OUTSIDE[entry]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_are_short(path):
    source = path.read_text()
    assert source.count("\n") <= 600
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            # The docstring is for the reader; only the code is limited.
            start = body[1].lineno if ast.get_docstring(node) and len(body) > 1 else node.lineno
            length = (node.end_lineno or start) - start + 1
            assert length <= 60, f"{node.name} has {length} lines"


def test_public_names_are_documented():
    assert dagsel.__all__
    for name in dagsel.__all__:
        thing = getattr(dagsel, name)
        if not name.startswith("__"):
            assert (thing.__doc__ or "").strip(), name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_exports(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    name = "dagsel" if name_of(path) == "__init__" else f"dagsel.{name_of(path)}"
    module = importlib.import_module(name)
    if path.name not in ("__init__.py", "__main__.py"):
        assert all(hasattr(module, each) for each in module.__all__)


def test_import_is_light():
    # What scikit-learn and its kin load by themselves is not ours to avoid.
    code = f"""
import sys
import array_api_compat, joblib, sklearn.feature_selection, sklearn.linear_model, sklearn.metrics
before = set(sys.modules)
import dagsel, dagsel.mlxtend
print(*({HEAVY!r} & (sys.modules.keys() - before)))
"""
    assert run_python(code).strip() == ""


def test_works_where_gpu_packages_are_missing():
    code = """
import sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "cudf", "rmm", "dask_cuda", "dask_cudf", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing)
import numpy as np
from dagsel import SequentialFeatureSelector
from sklearn.linear_model import LinearRegression
rng = np.random.default_rng(0)
X = rng.standard_normal((60, 5))
y = X[:, 1] - X[:, 3] + 0.1 * rng.standard_normal(60)
selector = SequentialFeatureSelector(
    LinearRegression(), n_features_to_select=2, direction="backward"
).fit(X, y)
print(selector.plan_.engine, *selector.get_support(indices=True))
"""
    assert run_python(code).split() == ["moments", "1", "3"]


def test_version_is_stated_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dagsel.__version__ == project["version"]


def test_extras_set_no_upper_bounds_and_no_gpu_by_default():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert not [text for text in everything if "<" in text or "==" in text]
    assert not [text for text in project["dependencies"] if "cu1" in text or "cupy" in text]


def test_top_level_is_exact():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    released = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert released == TOP_LEVEL - {".ci"}
    assert released <= {path.name for path in ROOT.iterdir()}
    if not (ROOT / ".git").exists():
        return  # an unpacked release: what else lies there is not the project's
    # The checkout may be another user's, as in a container.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "--cached"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} == TOP_LEVEL


def test_doctests():
    tried = 0
    for info in pkgutil.walk_packages(dagsel.__path__, "dagsel."):
        result = doctest.testmod(importlib.import_module(info.name))
        assert result.failed == 0, info.name
        tried += result.attempted
    assert tried > 0


def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling")
    from hatchling.builders.wheel import WheelBuilder

    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dagsel"}
    shipped = {name for name in names if name.endswith(".py")}
    assert shipped == {str(module.relative_to(ROOT)) for module in MODULES}
    assert "dagsel/py.typed" in names
    assert not [name for name in names if ".gitignore" in name or "__pycache__" in name]
