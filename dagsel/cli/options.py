"""What `dagsel select` and `dagsel plan` are told on the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, get_args

import click

from dagsel.cli.errors import ended_by
from dagsel.cli.objects import literal
from dagsel.cli.signals import NOTHING, Interrupted
from dagsel.criterion import CRITERIA, CriterionName
from dagsel.engines.registry import ENGINE_NAMES, EngineName
from dagsel.opening import Categories
from dagsel.search import Direction

__all__ = ["WHERE", "Options", "resume_options", "shared_options"]

Pairs = tuple[tuple[str, Any], ...]
Size = int | float | str | tuple[int, int]


@dataclass(frozen=True)
class Options:
    """The options that both commands share; their help texts say what they mean."""

    data: tuple[str, ...]
    target: tuple[str, ...]
    drop: tuple[str, ...]
    columns: tuple[str, ...]
    groups: str | None
    weights: str | None
    weighted_scores: bool
    categories: Categories
    k: Size
    tol: float | None
    step: int | float
    patience: int | None
    max_seconds: float | None
    direction: Direction
    floating: bool
    fixed: tuple[str, ...]
    estimator: str
    param: Pairs
    scoring: str | None
    cv: str
    cv_param: Pairs
    criterion: CriterionName | None
    alpha: float
    engine: EngineName
    audit: int
    n_jobs: int | None
    scheduler: str | None
    scheduler_file: str | None
    workers: int | None
    memory_limit: str | None
    timeout: float
    quiet: bool
    debug: bool

    def __post_init__(self) -> None:
        self._check_where()
        stops = f"--tol {self.tol}" if self.tol is not None else f"--patience {self.patience}"
        if self.tol is not None and self.k != "auto":
            msg = (
                f"{stops} says when to stop, and so does --k {self.size}. Give --tol alone, or "
                "leave it out."
            )
            raise click.UsageError(msg)
        if self.patience is not None and isinstance(self.k, (int, float)):
            msg = (
                f"{stops} says when to stop, and so does --k {self.size}. Use it with --k best, "
                "parsimonious, auto or MIN-MAX, or leave it out."
            )
            raise click.UsageError(msg)
        if self.floating and self.step != 1:
            msg = f"--floating moves one feature at once, but --step is {self.step}. Give one."
            raise click.UsageError(msg)
        if self.weighted_scores and self.weights is None:
            msg = "--weighted-scores needs weights: name their column with --weights."
            raise click.UsageError(msg)
        if self.groups is not None and self.cv.isdigit():
            msg = (
                f"--groups needs a splitter that heeds groups, but --cv is {self.cv}. Use --cv "
                f"sklearn.model_selection.GroupKFold --cv-param n_splits={self.cv}."
            )
            raise click.UsageError(msg)

    @property
    def size(self) -> str:
        """What --k was, as it is written."""
        return "-".join(map(str, self.k)) if isinstance(self.k, tuple) else str(self.k)

    def _check_where(self) -> None:
        given = {
            "--scheduler": self.scheduler,
            "--scheduler-file": self.scheduler_file,
            "--workers": self.workers,
            "--n-jobs": self.n_jobs,
        }
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) > 1:
            msg = f"{' and '.join(chosen)} say different things about where to run. Give one."
            raise click.UsageError(msg)
        if self.memory_limit is not None and self.workers is None:
            msg = "--memory-limit is for the workers that --workers starts. Give both or neither."
            raise click.UsageError(msg)


class _Size(click.ParamType[Size]):
    """A number of features, a fraction of them, a range MIN-MAX, or one of a few words."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        text = str(value)
        if text in ("auto", "best", "parsimonious"):
            return text
        low, dash, high = text.partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            return int(low), int(high)
        found = _number(text)
        if found is None:
            msg = (
                f"{text!r} is not a number of features, a fraction, a range such as 5-20, 'auto', "
                "'best' or 'parsimonious'."
            )
            self.fail(msg, param, ctx)
        return found


class _Step(click.ParamType[int | float]):
    """A number of features, or a fraction of them."""

    name = "step"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        found = _number(str(value))
        if found is None or not (found >= 1 if isinstance(found, int) else 0 < found < 1):
            msg = f"{value!r} is neither a number of features nor a fraction between 0 and 1."
            self.fail(msg, param, ctx)
        return found


def _number(text: str) -> int | float | None:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return None


class _Pair(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE; the value is a Python literal or else a string."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        name, equals, text = str(value).partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value!r} is not of the form NAME=VALUE.", param, ctx)
        return name, literal(text)


class _Bytes(click.ParamType[str]):
    """An amount of memory, such as 4GiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from dask.utils import parse_bytes

        try:
            enough = parse_bytes(value) > 0
        except (ValueError, KeyError):
            enough = False
        if not enough:
            self.fail(f"{value!r} is no amount of memory. Examples: 500MB, 4GiB.", param, ctx)
        return str(value)


def _many(name: str, metavar: str, text: str, **more: Any) -> Any:
    text += " May be repeated."
    return click.option(name, multiple=True, metavar=metavar, help=text, **more)


#: Options that say where to run, and nothing about what is selected.
WHERE = ("n_jobs", "scheduler", "scheduler_file", "workers", "memory_limit")

_DECORATORS = (
    click.argument("data", nargs=-1, required=True),
    _many("--target", "NAME", "Column to be predicted.", required=True),
    _many("--drop", "NAME", "Column that is neither a feature nor the target."),
    _many("--columns", "NAME", "Column that is a feature; by default all that are left."),
    click.option(
        "--groups",
        metavar="NAME",
        help="Column of groups for the splitter of --cv, such as GroupKFold. Not a feature.",
    ),
    click.option(
        "--weights", metavar="NAME", help="Column of weights of the rows in fits. Not a feature."
    ),
    click.option("--weighted-scores", is_flag=True, help="Weight the test rows in scores, too."),
    click.option(
        "--categories",
        type=click.Choice(list(get_args(Categories))),
        default="error",
        show_default=True,
        help="What to do with columns of text: 'one-hot' makes of each a column of zeros and ones "
        "for every level, which move as one. The files are then read as a whole.",
    ),
    click.option(
        "--k",
        type=_Size(),
        default="auto",
        show_default=True,
        metavar="SIZE",
        help="Features to keep: a number; a fraction, such as 0.5; 'best', the best-scoring subset "
        "of a full search; 'parsimonious', the smallest within a standard error of it; a range, "
        "such as 5-20, the best of these sizes; 'auto', which is half, or with --tol or "
        "--patience as many as the scores justify.",
    ),
    click.option(
        "--tol",
        type=float,
        help="Stop at the first move that does not raise the score by this much.",
    ),
    click.option(
        "--step",
        type=_Step(),
        default=1,
        show_default=True,
        metavar="N|FRACTION",
        help="Features that are moved at once: a number, or a fraction of those left.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(min=1),
        metavar="SIZES",
        help="Stop after so many sizes without a better score.",
    ),
    click.option(
        "--direction",
        type=click.Choice(["backward", "forward"]),
        default="backward",
        show_default=True,
        help="Remove features from all, or add them to none.",
    ),
    click.option(
        "--floating", is_flag=True, help="Try opposite moves, and make those that improve."
    ),
    _many("--fixed", "NAME", "Column that is always in the model."),
    click.option(
        "--estimator",
        default="sklearn.linear_model.LinearRegression",
        show_default=True,
        metavar="CLASS",
        help="Dotted name of a scikit-learn compatible estimator.",
    ),
    _many("--param", "NAME=VALUE", "Parameter of the estimator.", type=_Pair()),
    click.option(
        "--scoring",
        metavar="NAME",
        help="Scorer, such as neg_mean_squared_error; by default the estimator's own score.",
    ),
    click.option(
        "--cv",
        default="5",
        show_default=True,
        metavar="N|CLASS",
        help="Number of folds, or dotted name of a splitter.",
    ),
    _many("--cv-param", "NAME=VALUE", "Parameter of the splitter.", type=_Pair()),
    click.option(
        "--criterion",
        type=click.Choice(list(CRITERIA)),
        help="Judge a fit to all rows by this, instead of cross-validation.",
    ),
    click.option(
        "--alpha",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.05,
        show_default=True,
        help="Level of the test of --criterion p_value.",
    ),
    click.option(
        "--engine",
        type=click.Choice(list(ENGINE_NAMES)),
        default="auto",
        show_default=True,
        help="How candidates are scored; 'auto' takes the fastest that gives the refits' scores.",
    ),
    click.option(
        "--audit",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Score so many of the decided rounds again by refits, and report the difference.",
    ),
)
_WHERE = (
    click.option("--n-jobs", type=int, help="Processes for refits, without a cluster."),
    click.option("--scheduler", metavar="ADDRESS", help="Run on this Dask cluster."),
    click.option(
        "--scheduler-file",
        type=click.Path(exists=True, dir_okay=False),
        help="The same, with the file that `dask scheduler --scheduler-file` wrote.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Start this many worker processes here, for this run only.",
    ),
    click.option("--memory-limit", type=_Bytes(), metavar="BYTES", help="Of each, such as 4GiB."),
)
_PRINTS = (
    click.option("--quiet", is_flag=True, help="Print errors only (and results)."),
    click.option("--debug", is_flag=True, help="Print the traceback of an error."),
)


def _max_seconds(text: str) -> Any:
    kind = click.FloatRange(min=0, min_open=True)
    return click.option("--max-seconds", type=kind, metavar="SECONDS", help=text)


def _timeout(default: float | None) -> Any:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help="How long to wait for a scheduler, and then for its first worker.",
    )


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, as one `Options` before its own arguments."""
    names = [field.name for field in fields(Options)]

    @functools.wraps(command)
    def packed(**values: Any) -> None:
        options = Options(**{name: values.pop(name) for name in names})
        try:
            command(options, **values)
        except Interrupted as error:
            # Not left to click, which prints an empty line.
            raise ended_by(error, NOTHING) from error

    limit = _max_seconds("Begin no round after so long, and take what was found until then.")
    for decorator in reversed((*_DECORATORS, limit, *_WHERE, _timeout(20.0), *_PRINTS)):
        packed = decorator(packed)
    return packed


def resume_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that do not change what is selected, as a dictionary by name.

    What was not given is `None` there.
    """
    limit = _max_seconds("Begin no round after so long, from now on.")
    decorators = (limit, *_WHERE, _timeout(None), *_PRINTS)
    names = ("max_seconds", *WHERE, "timeout", "quiet", "debug")

    @functools.wraps(command)
    def packed(**values: Any) -> None:
        given = {name: values.pop(name) for name in names}
        try:
            command(given, **values)
        except Interrupted as error:
            raise ended_by(error, NOTHING) from error

    for decorator in reversed(decorators):
        packed = decorator(packed)
    return packed
