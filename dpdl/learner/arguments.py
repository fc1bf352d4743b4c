"""The keywords that every function which starts a run accepts, defined once.

They are those of `Settings`, of `Inputs` (what a run reads) and of `Options` (how it is driven).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner.drive import OptionKeywords, Options
from dpdl.learner.layout import InputKeywords, Inputs
from dpdl.question import pose
from dpdl.settings import SettingKeywords, Settings

Function = TypeVar("Function", bound=Callable[..., Any])


class RunKeywords(SettingKeywords, InputKeywords, OptionKeywords, total=False):
    """Keywords of `learn`."""


#: Where the keywords of each kind are checked.
_CHECKED_BY = {SettingKeywords: Settings, InputKeywords: Inputs.of, OptionKeywords: Options}


def parse(
    log: Dataset, settings: Settings | None, keywords: dict[str, Any], accepted: Any = RunKeywords, **inputs: Any
) -> tuple[Settings, Inputs, Options]:
    """Sort keywords by what they belong to, and check them.

    Further keywords are arguments of `Inputs.of`.
    """
    rest = dict(keywords)

    def taken(kind: Any) -> dict[str, Any]:
        names = keywords.keys() & accepted.__annotations__.keys() & kind.__annotations__.keys()
        return {name: rest.pop(name) for name in names}

    options, given = Options(**taken(OptionKeywords)), taken(InputKeywords)
    check.instance("log", log, Dataset)
    chosen = Settings.of(settings, rest)
    return chosen, Inputs.of(pose(log, *chosen.asked), **given, **inputs), options


def refuse_unknown(function: Callable[..., Any], keywords: Iterable[str]) -> None:
    """Raise a TypeError if one of the keywords is not in the signature of a function."""
    accepted = inspect.signature(function).parameters
    for name in keywords:
        if name not in accepted:
            hint = check.suggestion(name, accepted, "its arguments")
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {hint}")


def accepts(keywords: Any, but: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorate a function that takes ``**keywords`` so that its signature lists them, with their defaults."""
    defaults = {
        name: parameter
        for checked_by in _CHECKED_BY.values()
        for name, parameter in inspect.signature(checked_by).parameters.items()  # type: ignore[arg-type]
    }

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {*but, *(one.name for one in own)}
        more = [defaults[name] for name in keywords.__annotations__ if name not in taken]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate
