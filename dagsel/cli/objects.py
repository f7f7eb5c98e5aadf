"""Estimators, splitters and scorers by name. Nothing the user types is run as code."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click

from dagsel.scorers import explain_unknown_scorer

__all__ = ["literal", "make_estimator", "make_splitter", "scorer_name"]


def make_estimator(dotted: str, params: Mapping[str, Any]) -> Any:
    """Return an estimator of the class with that dotted name.

    Raises
    ------
    click.BadParameter
        If there is no such class, it is no estimator, or it does not take the parameters.
    """
    made = _make(dotted, params, ("--estimator", "--param"), ("fit", "get_params"), "an estimator")
    # scikit-learn looks at values only when it fits; here they are the user's, so look at once.
    validate = getattr(made, "_validate_params", None)
    if validate is not None:
        try:
            validate()
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--param'") from error
    return made


def make_splitter(name: str, params: Mapping[str, Any]) -> Any:
    """Return a number of folds, or a splitter of the class with that dotted name.

    Raises
    ------
    click.BadParameter
        If it is neither, or the class does not take the parameters.
    """
    try:
        n_folds = int(name)
    except ValueError:
        needs = ("split", "get_n_splits")
        return _make(name, params, ("--cv", "--cv-param"), needs, "a splitter")
    if n_folds < 2:
        msg = f"{n_folds} folds: there must be at least 2."
        raise click.BadParameter(msg, param_hint="'--cv'")
    if params:
        msg = (
            f"these are for a splitter, but --cv is the number {n_folds}. Name the splitter, such "
            f"as --cv sklearn.model_selection.KFold --cv-param n_splits={n_folds}."
        )
        raise click.BadParameter(msg, param_hint="'--cv-param'")
    return n_folds


def scorer_name(name: str | None) -> str | None:
    """Return the name if scikit-learn has a scorer of that name.

    Raises
    ------
    click.BadParameter
        If it has none.
    """
    unknown = None if name is None else explain_unknown_scorer(name)
    if unknown is not None:
        raise click.BadParameter(unknown, param_hint="'--scoring'")
    return name


def literal(text: str) -> Any:
    """Return the Python literal that the text is, or the text itself.

    Numbers, True, False, None, quoted strings, tuples, lists and dictionaries of them are
    literals. Anything else is a plain string: names are not looked up and calls are not made.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _make(
    dotted: str,
    params: Mapping[str, Any],
    options: tuple[str, str],
    needs: Sequence[str],
    kind: str,
) -> Any:
    of_class, of_params = (f"'{option}'" for option in options)
    made_by = _load_class(dotted, of_class, needs, kind)
    _check_names(made_by, params, of_params)
    try:
        return made_by(**params)
    except Exception as error:
        msg = f"{dotted} refuses its parameters: {error}"
        raise click.BadParameter(msg, param_hint=of_params) from error


def _load_class(dotted: str, option: str, needs: Sequence[str], kind: str) -> type:
    module_name, _, name = dotted.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        msg = (
            f"{dotted!r} is not the full name of {kind} class. Give it with its module, such as "
            "sklearn.linear_model.Ridge or sklearn.model_selection.KFold."
        )
        raise click.BadParameter(msg, param_hint=option)
    module = _import(module_name, option)
    found = getattr(module, name, None)
    # A class, and of the right kind: never a function that would be called without need.
    if isinstance(found, type) and all(callable(getattr(found, need, None)) for need in needs):
        return found
    if found is None:
        near = get_close_matches(name, [*getattr(module, "__all__", dir(module))], n=3)
        hint = f"Did you mean {_or([f'{module_name}.{close}' for close in near])}?" if near else ""
        msg = f"the module {module_name} has no {name!r}. {hint}".rstrip()
    else:
        msg = f"{dotted} is not {kind} class: it lacks {_or(needs)}."
        if not isinstance(found, type):
            msg = f"{dotted} is not {kind} class, but a {type(found).__name__}."
    raise click.BadParameter(msg, param_hint=option)


def _import(module_name: str, option: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            msg = f"the module {module_name} cannot be imported: {error}."
        else:
            msg = (
                f"there is no module {error.name}. Install it, or put the folder that it is in "
                "into PYTHONPATH."
            )
        raise click.BadParameter(msg, param_hint=option) from error
    except Exception as error:
        msg = f"the module {module_name} cannot be imported: {type(error).__name__}: {error}"
        raise click.BadParameter(msg, param_hint=option) from error


def _check_names(made_by: type, params: Mapping[str, Any], option: str) -> None:
    try:
        accepted = inspect.signature(made_by).parameters.values()
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted):
        return
    known = [parameter.name for parameter in accepted]
    for name in params:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {_or(known)}."
            msg = f"{made_by.__name__} has no parameter {name!r}. {hint}"
            raise click.BadParameter(msg, param_hint=option)


def _or(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
