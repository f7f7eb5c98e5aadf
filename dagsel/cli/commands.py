"""`dagsel select`, `dagsel resume` and `dagsel plan`.

Exit codes: 0 done; 1 the run failed; 2 the command or its input cannot be used; 130 and 143 ended
by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dagsel.cli.errors import (
    FAILED,
    CommandError,
    ended_by,
    input_stage,
    quietly_broken_pipe,
    run_stage,
)
from dagsel.cli.objects import make_estimator, make_splitter, scorer_name
from dagsel.cli.options import Options, resume_options, shared_options
from dagsel.cli.output import Output
from dagsel.cli.progress import Reporter, reporting
from dagsel.cli.recorded import recorded, restored
from dagsel.cli.signals import NOTHING, Interrupted, Signals
from dagsel.cli.where import connected
from dagsel.data.sources import scan
from dagsel.engines.linear_model import final_step
from dagsel.job import Job
from dagsel.journal import read_journal
from dagsel.plan import Plan, workers
from dagsel.results import Selection
from dagsel.selector import Selected, SequentialFeatureSelector

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["command", "exit_code"]

logger = logging.getLogger("dagsel")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dagsel", message="%(prog)s %(version)s")
def command() -> None:
    """Select features by elimination, with the scores of cross-validated refits."""


@command.command()
@shared_options
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for selection.json, path.csv, selected.txt and log.txt. Without it the names of "
    "the selected columns are printed.",
)
@click.option(
    "--path-format",
    type=click.Choice(["csv", "parquet"]),
    default="csv",
    show_default=True,
    help="Of the table of rounds in the output folder.",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Folder or URL for the journal, to which every round is appended as soon as it is "
    "decided; by default the output folder. If it has one of the same selection, the run goes on "
    "from its end.",
)
@click.option("--force", is_flag=True, help="Replace results and journal of an earlier run.")
@click.pass_obj
def select(
    signals: Signals,
    options: Options,
    folder: Path | None,
    path_format: str,
    checkpoint: str | None,
    force: bool,
) -> None:
    """Select features of the table in DATA: CSV or Parquet files, patterns or URLs.

    Exit codes: 0 done; 1 the run failed; 2 the command or its input cannot be used; 130 and 143
    ended by Ctrl-C and SIGTERM. What was decided before is in the output folder in any case, and
    `dagsel resume` goes on from there.
    """
    where = str(folder) if checkpoint is None and folder is not None else checkpoint
    _select(signals, options, Output(folder, path_format, force), where)


@command.command()
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the results; by default that of the command.",
)
@resume_options
@click.pass_obj
def resume(signals: Signals, given: dict[str, Any], checkpoint: str, folder: Path | None) -> None:
    """Go on with the `dagsel select` whose journal is in CHECKPOINT: a folder or URL.

    It was the command's --checkpoint or its output folder. The options are those of the command;
    those about where to run can be given anew. Decided rounds are not scored again.
    """
    with input_stage(debug=bool(given["debug"])):
        kept = read_journal(checkpoint).command
    options = restored(kept, checkpoint, given)
    assert kept is not None, "`restored` refuses journals without a command"
    its_own = folder is None and kept["folder"] is not None
    if its_own:
        folder = Path(kept["folder"])
    output = Output(folder, kept["path_format"], its_own=its_own)
    _select(signals, options, output, checkpoint)


def _select(signals: Signals, options: Options, output: Output, checkpoint: str | None) -> None:
    with (
        output.log(),
        reporting(signals, sys.stderr, quiet=options.quiet) as reporter,
        connected(options, reporter, signals) as client,
    ):
        selector = _selector(options, client)
        job = _open(selector, options, reporter)
        if checkpoint is not None:
            folder = None if output.folder is None else str(output.folder.absolute())
            job.checkpoint, job.anew = checkpoint, output.force
            job.command = recorded(options, folder=folder, path_format=output.path_format)
            with input_stage(debug=options.debug):
                job.open_journal()
        _run(selector, job, options, output, reporter, signals)


@command.command()
@shared_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_obj
def plan(signals: Signals, options: Options, as_json: bool) -> None:
    """Say what `dagsel select` with the same options would do and cost, without doing it.

    CSV files are read once, to count their rows.
    """
    with (
        reporting(signals, sys.stderr, quiet=options.quiet) as reporter,
        connected(options, reporter, signals) as client,
    ):
        made = _open(_selector(options, client), options, reporter).plan
    click.echo(json.dumps(_figures(made), indent=2) if as_json else str(made))


def _open(selector: SequentialFeatureSelector, options: Options, reporter: Reporter) -> Job:
    """Turn options into a job."""
    with input_stage(debug=options.debug):
        reporter.phase(f"opening {_files(options.data)}")
        data = scan(
            options.data,
            target=options.target[0] if len(options.target) == 1 else options.target,
            drop=options.drop,
            columns=options.columns or None,
        )
        weights = {} if options.weights is None else {_weights_name(selector): options.weights}
        return selector._open(data, None, options.groups, weights, reporter)


def _selector(options: Options, client: Client | None) -> SequentialFeatureSelector:
    return SequentialFeatureSelector(
        make_estimator(options.estimator, dict(options.param)),
        n_features_to_select=options.k,
        tol=options.tol,
        step=options.step,
        patience=options.patience,
        max_seconds=options.max_seconds,
        direction=options.direction,
        scoring=scorer_name(options.scoring),
        cv=make_splitter(options.cv, dict(options.cv_param)),
        n_jobs=options.n_jobs,
        floating=options.floating,
        fixed_features=options.fixed,
        engine=options.engine,
        client=client,
        criterion=options.criterion,
        alpha=options.alpha,
        audit=options.audit,
        weighted_scores=options.weighted_scores,
        categories=options.categories,
    )


def _weights_name(selector: SequentialFeatureSelector) -> str:
    prefix, _ = final_step(selector.estimator)
    return f"{prefix}sample_weight"


def _files(data: Sequence[str]) -> str:
    return data[0] if len(data) == 1 else f"{data[0]} and {len(data) - 1} more"


def _run(
    selector: SequentialFeatureSelector,
    job: Job,
    options: Options,
    output: Output,
    reporter: Reporter,
    signals: Signals,
) -> None:
    """Run the job and hand over its result, or as much of it as there is."""
    reporter.say(_summary(job.plan))
    for line in str(job.plan).splitlines():
        logger.info("plan: %s", line)
    selection = job.selection
    try:
        with run_stage(debug=options.debug):
            job.run(reporter, options.max_seconds)
    except (CommandError, Interrupted) as error:
        with signals.held():
            raise _with_what_is_kept(error, job, output) from error
    with signals.held():
        selected = selector._conclude(job)
        if selected.note is not None:
            reporter.note(selected.note)
        reporter.say(_ending(job, options))
        _hand_over(selection, selected, output, reporter)


def _summary(made: Plan) -> str:
    where = "in this process" if made.in_process else f"on {workers(made.n_workers)}"
    return (
        f"{made.n_rows} rows, {made.n_columns} columns, {made.n_folds} folds: {made.n_rounds} "
        f"rounds, {made.n_candidates} candidates; engine {made.engine!r} {where} ({made.reason})"
    )


def _ending(job: Job, options: Options) -> str:
    """Say where the search ended, and why."""
    selection = job.selection
    gain = "" if options.tol is None else f" by --tol {options.tol}"
    reasons = {
        "target": "it has reached its end",
        "tol": f"the next move would not raise {selection.scoring}{gain}",
        "patience": f"no better {selection.scoring} in {options.patience} sizes (--patience)",
        "threshold": f"no move is left that passes the test at level {options.alpha}",
        "time": f"the time was used up (--max-seconds {options.max_seconds})",
    }
    size = selection.rounds[-1].n_features if selection.rounds else job.search.size
    why = reasons[selection.stop_reason or "target"]
    return f"the search ended at {size} of {selection.n_features} features: {why}"


def _hand_over(
    selection: Selection, selected: Selected, output: Output, reporter: Reporter
) -> None:
    names = [_name(selection, column) for column in selected.columns]
    score = "" if selected.mean is None else f", {selection.scoring} {selected.mean:.6g}"
    reporter.say(f"selected {len(names)} of {selection.n_features_in} columns{score}")
    reporter.close()
    if output.folder is None:
        click.echo("\n".join(names))
        return
    try:
        output.save(selection, names)
    except OSError as error:
        # The work of hours must not be lost for want of a disk.
        click.echo("\n".join(names))
        msg = (
            f"cannot write to {output.folder}: {error.strerror or error}. The selected columns "
            "were printed instead."
        )
        raise CommandError(msg, FAILED) from error
    reporter.say(f"results are in {output.folder}")


def _name(selection: Selection, column: int) -> str:
    return str(column if selection.names is None else selection.names[column])


def _with_what_is_kept(error: CommandError | Interrupted, job: Job, output: Output) -> CommandError:
    """Save what was decided, and say so in the error that ends the command."""
    selection, checkpoint = job.selection, job.checkpoint
    n_rounds = len(selection.rounds)
    decided = f"{n_rounds} round{'s' if n_rounds > 1 else ''} decided before"
    if n_rounds == 0:
        kept = NOTHING
    elif output.folder is None and checkpoint is not None:
        kept = f"The {decided} are in the journal: `dagsel resume {checkpoint}` goes on from there."
    elif output.folder is None:
        kept = f"The {decided} would have been kept with -o."
    else:
        try:
            output.save(selection, None)
            kept = f"The {decided} can be found in {output.folder}, marked as incomplete."
            if checkpoint is not None:
                kept += f" `dagsel resume {checkpoint}` goes on from there."
        except OSError as failure:
            kept = f"The {decided} cannot be written: {failure}."
    if isinstance(error, Interrupted):
        return ended_by(error, kept)
    return CommandError(f"{error.message} {kept}" if n_rounds else error.message, error.code)


def _figures(made: Plan) -> dict[str, Any]:
    """Return a plan's figures as numbers."""
    figures = {
        key: value for key, value in vars(made).items() if key not in ("engines", "operations")
    }
    return {
        "engine": made.engine,
        "falls_back_to": [engine.name for engine in made.engines[1:]],
        **figures,
        "operations": None if math.isnan(made.operations) else made.operations,
    }


def _exit_at_once(code: int) -> NoReturn:
    """Exit without Python's own cleaning up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def exit_code(arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run the command and return the code to exit with."""
    try:
        with quietly_broken_pipe():
            code = command.main(arguments, prog_name="dagsel", standalone_mode=False, obj=signals)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        if not isinstance(error, CommandError):
            return error.exit_code
        if error.at_once:
            # Here, while the error still holds on to what must not be finalised.
            _exit_at_once(error.code)
        return error.code
    except (KeyboardInterrupt, click.Abort) as error:
        # Before or after the command itself. click turns a KeyboardInterrupt into an Abort.
        cause = error if isinstance(error, Interrupted) else error.__cause__
        ended = cause if isinstance(cause, Interrupted) else Interrupted(signal.SIGINT)
        final = ended_by(ended, NOTHING)
        final.show()
        return final.code
    # With standalone_mode=False click returns the code of --help and --version.
    return code if isinstance(code, int) else 0
