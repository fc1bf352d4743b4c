"""The keywords that every function which starts a run accepts, defined once.

They are those of `Settings`, of `Inputs.of` (what a run reads) and of `Options` (how it is driven).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner.drive import Options
from dpdl.learner.layout import Inputs
from dpdl.question import pose
from dpdl.settings import Settings

Function = TypeVar("Function", bound=Callable[..., Any])

#: Parameters that are not for callers.
_INTERNAL = ("log", "knowable", "stop")


def parse(
    log: Dataset, settings: Settings | None, keywords: dict[str, Any], **inputs: Any
) -> tuple[Settings, Inputs, Options]:
    """Sort keywords by what they belong to, and check them; further keywords are arguments of `Inputs.of`."""
    of_options, of_inputs = parameters(Options), parameters(Inputs.of)
    options = Options(**{name: value for name, value in keywords.items() if name in of_options})
    check.instance("log", log, Dataset)
    rest = {name: value for name, value in keywords.items() if name not in of_options and name not in of_inputs}
    if check.flag("strict", keywords.get("strict", False)) and rest.get("mixing_time") is not None:
        rest = {"order": "once"} | rest  # a strict run has no other
    chosen = Settings.of(settings, rest)
    given = {name: value for name, value in keywords.items() if name in of_inputs}
    return chosen, Inputs.of(pose(log, *chosen.asked), **given, **inputs), options


def parameters(kind: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keywords that a kind of arguments adds to a signature."""
    every = inspect.signature(kind).parameters
    return {name: parameter for name, parameter in every.items() if name not in _INTERNAL}


def refuse_unknown(function: Callable[..., Any], keywords: Iterable[str]) -> None:
    """Raise a TypeError if one of the keywords is not in the signature of a function."""
    accepted = inspect.signature(function).parameters
    for name in keywords:
        if name not in accepted:
            hint = check.suggestion(name, accepted, "its arguments")
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {hint}")


def accepts(*kinds: Callable[..., Any], but: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorate a function that takes ``**keywords`` so that its signature lists those of some kinds."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        more = {name: each for kind in kinds for name, each in parameters(kind).items() if name not in (*own, *but)}
        function.__signature__ = signature.replace(parameters=[*own.values(), *more.values()])  # type: ignore[attr-defined]
        return function

    return decorate
