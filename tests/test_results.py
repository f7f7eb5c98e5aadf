from __future__ import annotations

import io
import json
import math
import pickle
import sys
import time
import tracemalloc
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagsel.exceptions import DataError
from dagsel.monitor import describe
from dagsel.results import Round, Selection
from dagsel.search import Move, Search, pack

mpl.use("Agg")


def select(
    tables: Sequence[Any], *, names: Any = None, groups: Any = None, **options: Any
) -> Selection:
    """Run a search whose requests are answered by these tables in turn."""
    rounding = options.pop("rounding", 0.0)
    n_features = options.pop("n_features")
    search = Search(n_features, target_size=options.pop("target_size", 1), **options)
    n_columns = n_features if groups is None else sum(map(len, groups))
    selection = Selection(
        n_columns, names=names, groups=groups, scoring="r2", direction=search.direction
    )
    for number, table in enumerate(tables):
        move = search.answer(np.array(table, dtype=float), rounding)
        if move is not None:
            selection.record(move, 0.1 * number, "moments" if number else "refit")
    selection.complete = search.finished
    return selection


TABLES = [
    [[0.5, 0.7]],
    [[0.6, 0.8], [0.1, 0.2], [0.3, 0.3]],
    [[0.2, 0.4], [0.1, 0.1]],
]


def simple(**options: Any) -> Selection:
    return select(TABLES, n_features=3, **options)


def path_of_means(means: dict[int, Sequence[float]], rounding: float = 0.0) -> Selection:
    """Make a path in which a size has the given fold scores."""
    largest = max(means)
    selection = Selection(largest)
    for number, (size, scores) in enumerate(means.items()):
        mask = pack(np.arange(largest) < size)
        mean = float(np.mean(scores))
        move = Move("remove", number, mask, tuple(scores), mean, rounding=rounding)
        selection.record(move, 0.0, "refit")
    return selection


class TestRound:
    def test_columns(self) -> None:
        start, first, second = simple(names=("a", "b", "c")).rounds
        assert (start.number, start.action, start.feature, start.feature_index) == (
            0,
            "start",
            None,
            None,
        )
        assert (start.subset, start.names, start.n_features) == ((0, 1, 2), ("a", "b", "c"), 3)
        assert (first.action, first.feature, first.feature_index) == ("remove", "a", 0)
        assert (first.runner_up, first.runner_up_mean, first.tied) == ("c", 0.3, ())
        assert first.mean == pytest.approx(0.7)
        assert first.std == pytest.approx(0.1)
        assert first.std_err == pytest.approx(0.1)
        np.testing.assert_array_equal(first.fold_scores, [0.6, 0.8])
        assert (second.feature, second.subset, second.features) == ("b", (2,), (2,))
        assert (second.seconds, second.engine) == (0.2, "moments")
        assert repr(first) == "<Round 1: remove 'a', 2 features, mean 0.7>"

    def test_columns_without_names(self) -> None:
        first = simple().rounds[1]
        assert (first.feature, first.runner_up, first.names) == (0, 2, (1, 2))

    def test_groups(self) -> None:
        selection = simple(names=list("abcd"), groups=[[3], [0, 2], [1]])
        start, first, second = selection.rounds
        assert (start.n_features, start.subset) == (3, (0, 1, 2, 3))
        assert (first.feature, first.feature_index, first.runner_up) == (("d",), 0, ("b",))
        assert (first.subset, first.features, first.n_features) == ((0, 1, 2), (1, 2), 2)
        assert (second.feature, second.subset) == (("a", "c"), (1,))
        assert selection.subset(2) == (0, 1, 2)

    def test_ties(self) -> None:
        tables = [[[1.0]], [[0.5], [0.5 + 1e-12], [0.5]]]
        done = select(tables, n_features=3, names="abc", rounding=1e-9).rounds[1]
        assert (done.feature, done.tied, done.runner_up) == ("c", ("a", "b"), "b")

    def test_single_fold(self) -> None:
        done = path_of_means({1: [0.5]}).rounds[0]
        assert done.std == 0.0
        assert math.isnan(done.std_err)


class TestSeveralAtOnce:
    TABLES = ([[0.5, 0.7]], [[0.6, 0.8], [0.1, 0.2], [0.7, 0.3], [0.4, 0.4]], [[0.55, 0.65]])

    def path(self, **options: Any) -> Selection:
        return select(self.TABLES, n_features=4, target_size=2, step=2, **options)

    def test_round(self) -> None:
        _, done = self.path(names="abcd").rounds
        assert (done.action, done.feature, done.feature_index) == ("remove", None, None)
        assert (done.moved, done.subset, done.n_features) == (("a", "c"), (1, 3), 2)
        assert done.mean == pytest.approx(0.6)
        assert (done.runner_up, done.runner_up_mean) == ("d", 0.4)
        assert repr(done) == "<Round 1: remove 'a', 'c', 2 features, mean 0.6>"
        assert describe(done) == "round 1: remove a, c, 2 features, r2 0.6"
        many = select([[[0.5]], np.arange(9.0)[:, None], [[1.0]]], n_features=9, step=8).rounds[1]
        assert describe(many) == "round 1: remove 8, 7, 6 and 5 more, 1 features, r2 1"

    def test_tables(self) -> None:
        selection = self.path(names=("a", "b", "<c>", "d"))
        assert selection.to_frame()["feature"].tolist() == [None, ("a", "<c>")]
        assert "<td>a, &lt;c&gt;</td>" in selection._repr_html_()
        assert "<th>mean r2</th>" in selection._repr_html_()

    def test_json(self) -> None:
        selection = self.path(names="abcd")
        selection.stop_reason = "time"
        again = Selection.from_json(selection.to_json() or "")
        assert [done.move for done in again.rounds] == [done.move for done in selection.rounds]
        assert again.stop_reason == "time"
        assert content_of(again) == content_of(selection)

    def test_json_of_the_first_release(self) -> None:
        content = content_of(simple(names="abc"))
        assert content["version"] == 1
        assert not any("moved" in entry for entry in content["rounds"])
        del content["stop_reason"]
        again = Selection.from_json(json.dumps(content))
        assert [done.moved for done in again.rounds] == [(), ("a",), ("b",)]
        assert again.stop_reason is None

    def test_sizes_that_were_passed_over(self) -> None:
        selection = self.path()
        assert selection.sizes == (2, 4)
        with pytest.raises(ValueError, match=r"no subset of 3 features .* reached 2, 4 features"):
            selection.subset(3)
        long = path_of_means({size: [0.5] for size in range(99, 0, -2)})
        with pytest.raises(ValueError, match=r"reached 1, 3, 5, 7, 9, 11, …, 89, .* 99 features"):
            long.best(100)


class TestChoice:
    def test_sizes_and_engines(self) -> None:
        selection = simple()
        assert selection.sizes == (1, 2, 3)
        assert selection.engines == ("refit", "moments")
        assert list(selection.by_size()) == [3, 2, 1]

    def test_best(self) -> None:
        selection = simple()
        assert selection.best().n_features == 2
        assert selection.best(3).n_features == 3
        assert selection.best(max_size=1).n_features == 1
        with pytest.raises(ValueError, match=r"of 4 to 9 .* reached 1 to 3"):
            selection.best(4, 9)
        with pytest.raises(ValueError, match="nothing yet"):
            Selection(3).best()
        with pytest.raises(ValueError, match="ties"):
            selection.best(ties="first")  # type: ignore[arg-type]

    def test_ties_of_sizes_are_told_by_rounding(self) -> None:
        selection = path_of_means({4: [0.5], 3: [0.5 + 1e-12], 2: [0.5 - 1e-12], 1: [0.4]}, 1e-9)
        assert selection.best().n_features == 2
        assert selection.best(ties="largest").n_features == 4
        exact = path_of_means({4: [0.5], 3: [0.5 + 1e-12], 2: [0.5]})
        assert exact.best().n_features == exact.best(ties="largest").n_features == 3

    def test_infinite_scores(self) -> None:
        selection = path_of_means({3: [-math.inf, 1.0], 2: [-math.inf, 0.0]})
        assert selection.best(ties="largest").n_features == 3
        assert selection.parsimonious().n_features == 2
        assert math.isnan(selection.rounds[0].std)

    def test_parsimonious_is_one_standard_error(self) -> None:
        # SELECTORS.md's table: mlxtend's rule cascades down to size 1 here.
        spread = 0.05
        means = {6: 0.95, 5: 0.93, 4: 0.91, 3: 0.89, 2: 0.87, 1: 0.85}
        selection = path_of_means({s: [m - spread, m + spread] for s, m in means.items()})
        # Deviation with divisor 1: 0.0707; standard error 0.05.
        assert selection.best().std_err == pytest.approx(0.05)
        assert selection.parsimonious().n_features == 4
        assert selection.parsimonious(5).n_features == 5
        assert selection.parsimonious(max_size=3).n_features == 1

    def test_parsimonious_with_one_fold(self) -> None:
        selection = path_of_means({3: [0.5], 2: [0.5], 1: [0.4]})
        assert selection.parsimonious().n_features == 2

    def test_best_of_a_size_in_a_floating_path(self) -> None:
        selection = Selection(4)
        for scores, mask in [(0.5, [1, 1, 0, 0]), (0.4, [1, 0, 1, 0]), (0.6, [0, 1, 1, 0])]:
            move = Move("remove", 0, pack(np.array(mask, bool)), (scores,), scores, rounding=0.2)
            selection.record(move, 0.0, "refit")
        assert selection.subset(2) == (0, 1)
        assert selection.sizes == (2,)
        with pytest.raises(ValueError, match=r"no subset of 3 features .* reached 2 features"):
            selection.subset(3)


def test_names_must_match_columns() -> None:
    with pytest.raises(DataError, match="2 names were given for 3 columns"):
        Selection(3, names=["a", "b"])


class TestFrame:
    def test_columns(self) -> None:
        frame = simple(names=("a", "b", "c")).to_frame()
        assert list(frame.columns) == [
            "round",
            "action",
            "feature",
            "n_features",
            "mean",
            "std",
            "split0_score",
            "split1_score",
            "runner_up",
            "runner_up_mean",
            "seconds",
            "engine",
        ]
        assert frame["n_features"].tolist() == [3, 2, 1]
        assert frame["feature"].tolist() == [None, "a", "b"]
        assert frame["split1_score"].tolist() == [0.7, 0.8, 0.4]
        assert math.isnan(frame["runner_up_mean"][0])

    def test_labels_that_are_tuples(self) -> None:
        frame = simple(groups=[[0, 1], [2, 3], [4, 5]]).to_frame()
        assert frame["feature"].tolist() == [None, (0, 1), (2, 3)]

    def test_empty(self) -> None:
        assert Selection(3).to_frame().empty


def content_of(selection: Selection) -> dict[str, Any]:
    text = selection.to_json()
    assert text is not None
    return dict(json.loads(text, parse_constant=lambda name: pytest.fail(f"not strict: {name}")))


class TestJson:
    def test_round_trip(self) -> None:
        selection = simple(names=("a", "b", "c"), groups=None, rounding=1e-12)
        selection.notes.append("fell back to refits: “why”")
        selection.plan = "a plan"
        selection.versions["numpy"] = np.__version__
        again = Selection.from_json(selection.to_json() or "")
        assert content_of(again) == content_of(selection)
        assert [done.move for done in again.rounds] == [done.move for done in selection.rounds]
        assert again.to_frame().equals(selection.to_frame())
        assert again.complete
        assert (again.notes, again.names) == (selection.notes, ("a", "b", "c"))

    @settings(deadline=None, max_examples=60)
    @given(
        st.integers(0, 10**6), st.booleans(), st.sampled_from(["backward", "forward"]), st.data()
    )
    def test_any_path(self, seed: int, floating: bool, direction: Any, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        n_features = data.draw(st.integers(1, 20))
        step = 1 if floating else data.draw(st.integers(1, 4))
        search = Search(
            n_features,
            target_size=1 if direction == "backward" else n_features,
            direction=direction,
            floating=floating,
            step=step,
            score_start=data.draw(st.booleans()),
        )
        selection = Selection(n_features, direction=direction)
        # Few levels make ties; some scores are infinite, and some missing.
        levels = np.array([0.1, 1 / 3, 1e300, -np.inf, np.nan])
        while (request := search.request()) is not None:
            table = rng.choice(levels, size=(request.n_rows, 2), p=[0.35, 0.3, 0.3, 0.03, 0.02])
            table[0] = 0.1
            move = search.answer(table, 1e-12)
            if move is not None:
                selection.record(move, rng.random(), "refit")
        again = Selection.from_json(selection.to_json() or "")
        assert [done.move for done in again.rounds] == [done.move for done in selection.rounds]
        assert [d.seconds for d in again.rounds] == [d.seconds for d in selection.rounds]
        assert content_of(again) == content_of(selection)

    def test_numbers_that_json_does_not_have(self) -> None:
        selection = path_of_means({2: [math.inf, 1.0], 1: [math.nan, 1.0]})
        entry = content_of(selection)["rounds"][1]
        assert (entry["fold_scores"], entry["mean"]) == (["NaN", 1.0], "NaN")
        again = Selection.from_json(selection.to_json() or "")
        assert again.rounds[0].mean == math.inf
        assert math.isnan(again.rounds[1].mean)

    @pytest.mark.parametrize(
        "names",
        [
            ("a", "ü\n", ""),
            (1, 0, -5),
            (("a", 1), ("a", ("b", 2)), ("c",)),
            (None, True, 1.5),
            (0, "0", 0.5),
        ],
        ids=repr,
    )
    def test_names(self, names: tuple[Hashable, ...]) -> None:
        again = Selection.from_json(simple(names=names).to_json() or "")
        assert again.names == names
        assert list(map(type, again.names or ())) == list(map(type, names))

    def test_names_of_other_types(self) -> None:
        names = (np.int64(3), np.datetime64("2020-01-01"), math.inf)
        again = Selection.from_json(simple(names=names).to_json() or "")
        assert again.names == (3, "2020-01-01", "inf")

    def test_files(self, tmp_path: Path) -> None:
        selection = simple(names=("ä", "b", "c"))
        path = tmp_path / "selection.json"
        assert selection.to_json(path) is None
        assert content_of(Selection.from_json(path)) == content_of(selection)
        assert content_of(Selection.from_json(str(path))) == content_of(selection)
        buffer = io.StringIO()
        selection.to_json(buffer)
        buffer.seek(0)
        assert content_of(Selection.from_json(buffer)) == content_of(selection)

    @pytest.mark.parametrize(
        "text",
        ['{"format": "other", "version": 1}', "{}", "{", '{"format": "dagsel-selection"}'],
    )
    def test_other_content(self, text: str) -> None:
        with pytest.raises(DataError, match="not the JSON of a selection"):
            Selection.from_json(text)

    def test_later_version(self) -> None:
        content = content_of(simple()) | {"version": 2}
        with pytest.raises(DataError, match="version 2"):
            Selection.from_json(json.dumps(content))


class TestPlot:
    @pytest.mark.parametrize("kind", ["std_dev", "std_err", "ci", None])
    def test_draws_means_over_sizes(self, kind: Any) -> None:
        from matplotlib import pyplot

        ax = simple().plot(kind=kind)
        np.testing.assert_allclose(ax.lines[0].get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.3, 0.7, 0.6])
        assert len(ax.collections) == (0 if kind is None else 1)
        assert ax.get_ylabel() == "r2"
        ax.figure.canvas.draw()
        pyplot.close(ax.figure)

    def test_band_of_the_confidence_interval(self) -> None:
        from matplotlib import pyplot

        selection = path_of_means({2: [0.4, 0.6], 1: [0.1, 0.3]})
        ax = selection.plot(kind="ci")
        heights = ax.collections[0].get_paths()[0].vertices[:, 1]
        # 12.706 is Student's t for 97.5 % and one degree of freedom.
        assert heights.max() == pytest.approx(0.5 + 12.706 * 0.1, abs=1e-3)
        pyplot.close(ax.figure)

    def test_thousands_of_sizes_have_few_ticks(self) -> None:
        from matplotlib import pyplot

        selection = path_of_means({size: [1.0 / size] for size in range(2000, 0, -1)})
        figure, ax = pyplot.subplots()
        assert selection.plot(ax=ax) is ax
        figure.canvas.draw()
        assert 3 <= len(ax.get_xticks()) <= 15
        assert all(float(tick).is_integer() for tick in ax.get_xticks())
        pyplot.close(figure)

    def test_wrong_kind(self) -> None:
        with pytest.raises(ValueError, match="kind must be"):
            simple().plot(kind="box")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="nothing yet"):
            Selection(3).plot()

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"dagsel\[plot\]"):
            simple().plot()


class TestRepr:
    def test_text(self) -> None:
        assert repr(simple()) == (
            "<backward selection of 3 features by r2: 3 rounds, sizes 1 to 3, best 0.7 with 2>"
        )
        assert "no rounds yet" in repr(Selection(3))
        assert "incomplete" in repr(path_of_means({2: [1.0]}))

    def test_html_is_short_and_escaped(self) -> None:
        selection = simple(names=("<b>", "b", "c"))
        selection.notes.append("a < b")
        text = selection._repr_html_()
        assert "<b>" not in text
        assert "&lt;b&gt;" in text
        assert "a &lt; b" in text
        long = path_of_means({size: [0.5] for size in range(500, 0, -1)})
        assert long._repr_html_().count("<tr>") == 12


def test_pickles() -> None:
    selection = simple(names=("a", "b", "c"))
    again = pickle.loads(pickle.dumps(selection))
    assert content_of(again) == content_of(selection)
    done = pickle.loads(pickle.dumps(selection.rounds[1]))
    assert isinstance(done, Round)
    assert (done.feature, done.subset) == ("a", (1, 2))


def test_a_thousand_rounds_are_small_and_quick() -> None:
    rng = np.random.default_rng(0)
    names = tuple(f"column {number}" for number in range(1000))
    table = rng.standard_normal((1000, 5))
    search = Search(1000, target_size=1)
    tracemalloc.start()
    selection = Selection(1000, names=names)
    while (request := search.request()) is not None:
        move = search.answer(table[: request.n_rows], 1e-12)
        assert move is not None
        selection.record(move, 0.1, "moments")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2.5e6
    started = time.thread_time()
    text = selection.to_json() or ""
    again = Selection.from_json(text)
    frame = selection.to_frame()
    selection._repr_html_()
    selection.parsimonious()
    elapsed = time.thread_time() - started
    assert len(text) < 0.7e6
    assert frame.shape == (1000, 15)
    assert again.rounds[-1].subset == selection.rounds[-1].subset
    # CPU seconds, so that other processes do not count; measured 0.2.
    assert elapsed < 4.0
