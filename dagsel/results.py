"""What a selection found: the path, every score of the winners, tables and plots."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO

import numpy as np

from dagsel.audit import Audit
from dagsel.exceptions import DataError
from dagsel.moves import Direction, Move
from dagsel.rounds import Context, Round
from dagsel.search import StopReason
from dagsel.selection_json import decode_name, decode_rounds, encode_name, encode_rounds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Round", "Selection"]

_FORMAT, _VERSION = "dagsel-selection", 1
_MARKED_SIZES = 60  # a plot of more sizes is a line without markers

Spread = Literal["std_dev", "std_err", "ci"]
Ties = Literal["smallest", "largest"]


@dataclass(eq=False, repr=False)
class Selection:
    """The path of a selection, complete or as far as it got.

    Attributes
    ----------
    n_features_in : int
        Number of columns.
    names : tuple, optional
        Their names.
    groups : tuple of tuple of int, optional
        The columns of each feature, with feature groups. Sizes then count groups.
    scoring : str
        Name of the score; greater is better.
    direction : {"backward", "forward"}
        Direction of the search.
    complete : bool
        Whether the search came to its end; `stop_reason` says which.
    notes : list of str
        What the user should know, such as why refits were used.
    plan : str, optional
        What was planned.
    versions : dict of str to str
        Versions of the packages that took part.
    stop_reason : {"target", "tol", "threshold", "patience", "time"}, optional
        Why the search ended: it reached the size that it was meant to reach, a move fell short of
        `tol` or of the threshold, the score had not been beaten for `patience` sizes, or the time
        was used up. None before its end.
    audit : Audit, optional
        What refits made of some of the rounds, if that was asked for.
    rounds : list of Round
        The path; filled by `record`.
    """

    n_features_in: int
    names: Sequence[Hashable] | None = None
    groups: Sequence[Sequence[int]] | None = None
    scoring: str = "score"
    direction: Direction = "backward"
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    plan: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    audit: Audit | None = None
    rounds: list[Round] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.n_features_in = int(self.n_features_in)
        self.names = None if self.names is None else tuple(self.names)
        if self.groups is not None:
            self.groups = tuple(tuple(int(c) for c in group) for group in self.groups)
        if self.names is not None and len(self.names) != self.n_features_in:
            msg = f"{len(self.names)} names were given for {self.n_features_in} columns"
            raise DataError(msg)
        self._context = Context(self.n_features_in, self.names, self.groups, self.scoring)

    def record(self, move: Move, seconds: float, engine: str) -> Round:
        """Append a decided move to the path and return its round."""
        done = Round(len(self.rounds), float(seconds), engine, move, self._context)
        self.rounds.append(done)
        return done

    # ------------------------------------------------------------------ choosing a size

    @property
    def n_features(self) -> int:
        """Number of features to select from: of columns or, with feature groups, of groups."""
        return self._context.n_features

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that scored rounds, in the order of their first use."""
        return tuple(dict.fromkeys(done.engine for done in self.rounds))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of features (of groups, with feature groups) that were reached, ascending."""
        return tuple(sorted({done.n_features for done in self.rounds}))

    def by_size(self) -> dict[int, Round]:
        """Return the best round of each size, in the order in which sizes were first reached.

        A floating search can reach a size more than once. A later round takes an earlier one's
        place only if its score is greater by more than rounding.
        """
        best: dict[int, Round] = {}
        for done in self.rounds:
            known = best.get(done.n_features)
            if known is None or not known.ties_with(done.mean, done.move.rounding):
                best[done.n_features] = done
        return best

    def best(
        self,
        min_size: int | None = None,
        max_size: int | None = None,
        *,
        ties: Ties = "smallest",
    ) -> Round:
        """Return the round with the greatest mean score.

        Parameters
        ----------
        min_size, max_size : int, optional
            Limits, inclusive, to the number of features (of groups, with feature groups).
        ties : {"smallest", "largest"}
            Which size to prefer where scores differ by rounding only.

        Raises
        ------
        ValueError
            No size within the limits was reached.
        """
        if ties not in ("smallest", "largest"):
            msg = f'ties must be "smallest" or "largest"; got {ties!r}'
            raise ValueError(msg)
        rounds = self._within(min_size, max_size)
        top = max(rounds, key=lambda done: done.mean)
        equal = [done for done in rounds if done.ties_with(top.mean, top.move.rounding)]
        return equal[0] if ties == "smallest" else equal[-1]

    def parsimonious(self, min_size: int | None = None, max_size: int | None = None) -> Round:
        """Return the smallest subset that is within one standard error of the best.

        The standard error is that of the best subset's mean score: the standard deviation of its
        fold scores with divisor n - 1, over the square root of their number n. With a single fold
        (or infinite scores) it is unknown and counts as zero.

        Parameters
        ----------
        min_size, max_size : int, optional
            Limits, inclusive, to the number of features (of groups, with feature groups).

        Raises
        ------
        ValueError
            No size within the limits was reached.
        """
        top = self.best(min_size, max_size, ties="largest")
        error = top.std_err if math.isfinite(top.std_err) else 0.0
        least = top.mean - error
        rounds = self._within(min_size, max_size)
        return next(done for done in rounds if done.ties_with(least, top.move.rounding))

    def subset(self, size: int) -> tuple[int, ...]:
        """Return the column indices of the best subset of a size.

        Parameters
        ----------
        size : int
            Number of features (of groups, with feature groups).

        Raises
        ------
        ValueError
            The size was not reached.
        """
        return self._within(size, size)[0].subset

    def _within(self, min_size: int | None, max_size: int | None) -> list[Round]:
        """Return the best round of each size within limits, by ascending size."""
        low = 0 if min_size is None else min_size
        high = self._context.n_features if max_size is None else max_size
        best = self.by_size()
        chosen = [best[size] for size in sorted(best) if low <= size <= high]
        if not chosen:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            msg = f"no subset of {wanted} features was scored; the path reached {_reached(best)}"
            raise ValueError(msg)
        return chosen

    # ------------------------------------------------------------------ tables

    def to_frame(self) -> pd.DataFrame:
        """Return the path as a table, one row a round.

        Returns
        -------
        pandas.DataFrame
            Columns round, action, feature (label; where several features were moved, the tuple of
            their labels, best first), n_features, mean, std, split0_score …, runner_up (label),
            runner_up_mean, seconds, engine.
        """
        import pandas as pd

        rounds = self.rounds
        table: dict[str, Any] = {
            "round": np.arange(len(rounds)),
            "action": [done.action for done in rounds],
            "feature": _objects(
                [done.moved if len(done.moved) > 1 else done.feature for done in rounds]
            ),
            "n_features": np.array([done.n_features for done in rounds], dtype=np.int64),
            "mean": np.array([done.mean for done in rounds], dtype=np.float64),
            "std": np.array([done.std for done in rounds], dtype=np.float64),
        }
        n_folds = len(rounds[0].move.fold_scores) if rounds else 0
        for fold in range(n_folds):
            table[f"split{fold}_score"] = [done.move.fold_scores[fold] for done in rounds]
        table["runner_up"] = _objects([done.runner_up for done in rounds])
        means = (done.runner_up_mean for done in rounds)
        table["runner_up_mean"] = [math.nan if mean is None else mean for mean in means]
        table["seconds"] = np.array([done.seconds for done in rounds], dtype=np.float64)
        table["engine"] = [done.engine for done in rounds]
        return pd.DataFrame(table)

    def __repr__(self) -> str:
        what = "features" if self.groups is None else "groups"
        head = f"{self.direction} selection of {self._context.n_features} {what} by {self.scoring}"
        if not self.rounds:
            return f"<{head}: no rounds yet>"
        top = self.best()
        state = "" if self.complete else ", incomplete"
        return (
            f"<{head}: {len(self.rounds)} rounds{state}, sizes {self.sizes[0]} to "
            f"{self.sizes[-1]}, best {top.mean:.6g} with {top.n_features}>"
        )

    def _repr_html_(self) -> str:
        head = f"<p>{html.escape(repr(self)[1:-1])}</p>"
        shown: list[Round | None] = list(self.rounds)
        if len(shown) > 10:
            shown[5:-5] = [None]
        mean = f"mean {self.scoring}"
        titles = ("round", "action", "feature", "features", mean, "std")
        lines = ["".join(f"<th>{html.escape(title)}</th>" for title in titles)]
        for done in shown:
            cells: tuple[Any, ...] = ("…",) * len(titles)
            if done is not None:
                feature = ", ".join(map(str, done.moved))
                moved = (done.number, done.action, feature, done.n_features)
                cells = (*moved, f"{done.mean:.6g}", f"{done.std:.3g}")
            lines.append("".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells))
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"{head}<table>{rows}</table>" + (f"<ul>{notes}</ul>" if notes else "")

    # ------------------------------------------------------------------ JSON

    def to_json(self, path_or_buf: str | os.PathLike[str] | TextIO | None = None) -> str | None:
        """Write the selection as JSON, from which `from_json` makes an equal one.

        Numbers are written such that they are read back exactly. The JSON is strict: infinite and
        missing numbers become the strings "Infinity", "-Infinity" and "NaN". Column names that are
        tuples become ``{"tuple": [...]}``; names that JSON does not know (dates, say) become text.

        Parameters
        ----------
        path_or_buf : path or text file, optional
            Where to write; None returns the text.
        """
        text = json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)
        if path_or_buf is None:
            return text
        if isinstance(path_or_buf, (str, os.PathLike)):
            with open(path_or_buf, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            path_or_buf.write(text)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return what `to_json` writes, as an object for JSON."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "n_features_in": self.n_features_in,
            "names": None if self.names is None else [encode_name(name) for name in self.names],
            "groups": self.groups,
            "scoring": self.scoring,
            "direction": self.direction,
            "complete": self.complete,
            "notes": self.notes,
            "plan": self.plan,
            "versions": self.versions,
            "stop_reason": self.stop_reason,
            "audit": None if self.audit is None else self.audit.to_dict(),
            "rounds": encode_rounds((done.move, done.seconds, done.engine) for done in self.rounds),
        }

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | TextIO) -> Selection:
        """Read a selection that `to_json` wrote.

        Parameters
        ----------
        source : path, text file, or str
            A string that begins with a brace is the JSON text itself.

        Raises
        ------
        DataError
            It is not the JSON of a selection, or of a later version.
        """
        if isinstance(source, str) and source.lstrip().startswith("{"):
            text = source
        elif isinstance(source, (str, os.PathLike)):
            with open(source, encoding="utf-8") as file:
                text = file.read()
        else:
            text = source.read()
        try:
            return cls.from_dict(json.loads(text))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            msg = f"this is not the JSON of a selection, version {_VERSION}: {error!r}"
            raise DataError(msg) from error

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Selection:
        """Return the selection of which `to_dict` made an object for JSON."""
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            msg = f"it says format {content['format']!r}, version {content['version']!r}"
            raise ValueError(msg)
        names = content["names"]
        selection = cls(
            n_features_in=content["n_features_in"],
            names=None if names is None else [decode_name(name) for name in names],
            groups=content["groups"],
            scoring=content["scoring"],
            direction=content["direction"],
            complete=content["complete"],
            notes=content["notes"],
            plan=content["plan"],
            versions=content["versions"],
            # Files of the first releases do not have it.
            stop_reason=content.get("stop_reason"),
        )
        if content.get("audit") is not None:
            selection.audit = Audit.from_dict(content["audit"])
        for decided in decode_rounds(content["rounds"], selection._context.n_features):
            selection.record(*decided)
        return selection

    # ------------------------------------------------------------------ plot

    def plot(self, ax: Any = None, kind: Spread | None = "std_dev") -> Any:
        """Draw the mean score against the number of features.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; None makes a new figure.
        kind : {"std_dev", "std_err", "ci"} or None
            The band around the mean: standard deviation over the folds (divisor n), standard error
            of the mean, its 95 % confidence interval (Student's t, n - 1 degrees of freedom), or
            nothing. Of a single fold no error can be told, and there is no band.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            There are no rounds, or `kind` is none of the above.
        """
        if kind not in ("std_dev", "std_err", "ci", None):
            msg = f'kind must be "std_dev", "std_err", "ci" or None; got {kind!r}'
            raise ValueError(msg)
        rounds = self._within(None, None)
        pyplot, locator = _matplotlib()
        if ax is None:
            _, ax = pyplot.subplots()
        sizes = [done.n_features for done in rounds]
        means = np.array([done.mean for done in rounds])
        marker = "o" if len(sizes) <= _MARKED_SIZES else None
        (line,) = ax.plot(sizes, means, marker=marker, markersize=4)
        if kind is not None:
            band = np.array([_band(done, kind) for done in rounds])
            ax.fill_between(
                sizes, means - band, means + band, color=line.get_color(), alpha=0.2, linewidth=0
            )
        ax.xaxis.set_major_locator(locator)
        ax.set_xlabel("Number of features" if self.groups is None else "Number of feature groups")
        ax.set_ylabel(self.scoring)
        return ax


def _reached(sizes: Iterable[int]) -> str:
    """Say which sizes a path has, in few words."""
    known = sorted(sizes)
    if not known:
        return "nothing yet"
    low, high = known[0], known[-1]
    if len(known) > 1 and len(known) == high - low + 1:
        return f"{low} to {high} features"
    shown = [str(size) for size in known]
    if len(shown) > 12:
        shown[6:-6] = ["…"]
    return f"{', '.join(shown)} features"


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib import pyplot, ticker
    except ImportError as error:
        msg = 'plot needs matplotlib: install it, or "dagsel[plot]", which includes it'
        raise ImportError(msg) from error
    return pyplot, ticker.MaxNLocator(nbins="auto", integer=True)


def _band(done: Round, kind: Spread) -> float:
    if kind == "std_dev":
        return done.std
    if kind == "std_err" or len(done.move.fold_scores) < 2:
        return done.std_err
    from scipy.stats import t as student

    return float(student.ppf(0.975, len(done.move.fold_scores) - 1)) * done.std_err


def _objects(values: list[Hashable]) -> pd.Series[Any]:
    # pandas itself would turn integers next to None into floats, and None next to text into NaN.
    import pandas as pd

    return pd.Series(values, dtype=object)
