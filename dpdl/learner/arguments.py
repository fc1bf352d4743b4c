"""The keywords that every function which starts a run accepts, defined once.

They are those of `Settings`, of `Inputs` (what a run reads) and of `Options` (how it is driven).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner import practice
from dpdl.learner.layout import InputKeywords, Inputs
from dpdl.learner.options import OptionKeywords, Options
from dpdl.question import pose
from dpdl.settings import SettingKeywords, Settings

Function = TypeVar("Function", bound=Callable[..., Any])


class RunKeywords(SettingKeywords, InputKeywords, OptionKeywords, total=False):
    """Keywords of `learn`."""


#: Settings that are found from the data if they are not given, or None.
_FOUND = ("psi", "slater", "order", "profile")
#: Where the keywords of each kind are checked.
_CHECKED_BY = {SettingKeywords: Settings, InputKeywords: Inputs.of, OptionKeywords: Options}


def parse(
    dataset: Dataset, settings: Settings | None, keywords: dict[str, Any], accepted: Any = RunKeywords, **inputs: Any
) -> tuple[Settings, Inputs, Options]:
    """Sort keywords by what they belong to, and check them.

    Further keywords are arguments of `Inputs.of`.
    """
    rest = {name: value for name, value in keywords.items() if value is not None or name not in _FOUND}

    def taken(kind: Any) -> dict[str, Any]:
        names = keywords.keys() & accepted.__annotations__.keys() & kind.__annotations__.keys()
        return {name: rest.pop(name) for name in names}

    options, given = Options(**taken(OptionKeywords)), taken(InputKeywords)
    dataset = _posed(dataset, settings, rest)
    read = Inputs.of(dataset, **given, **inputs)
    if settings is None and "gamma" in rest and _in_practice(rest):
        rest = practice.defaults(dataset, rest, read.initial)
    return Settings.of(settings, rest), read, options


def _posed(dataset: Dataset, settings: Settings | None, given: dict[str, Any]) -> Dataset:
    """The log under the question of the settings and keywords."""
    check.instance("dataset", dataset, Dataset)
    gamma, limits, limit_on = (None, None, None) if settings is None else settings.asked
    gamma = given.get("gamma", gamma)
    if gamma is None:
        raise TypeError("missing setting 'gamma'")
    return pose(dataset, gamma, given.get("limits", limits), given.get("limit_on", limit_on))


def _in_practice(given: dict[str, Any]) -> bool:
    """Whether parameters of the theorem are missing, so that those of practice take their place, or `tol` is given."""
    if "profile" in given:
        return bool(given["profile"] == "practice")
    complete = {"psi", "slater"} <= given.keys() and given.keys() & {"T", "eps"}
    return not complete or given.get("tol") is not None


def refuse_unknown(function: Callable[..., Any], keywords: Iterable[str]) -> None:
    """Raise a TypeError if one of the keywords is not in the signature of a function."""
    accepted = inspect.signature(function).parameters
    for name in keywords:
        if name not in accepted:
            hint = check.suggestion(name, accepted, "its arguments")
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {hint}")


def accepts(keywords: Any, but: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorate a function that takes ``**keywords`` so that its signature lists them, with their defaults.

    None stands for what is found from the data.
    """
    defaults = {
        name: one
        for checked_by in _CHECKED_BY.values()
        for name, one in inspect.signature(checked_by).parameters.items()  # type: ignore[arg-type]
    }
    for name in _FOUND:
        defaults[name] = defaults[name].replace(default=None, annotation=f"{defaults[name].annotation} | None")

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {*but, *(one.name for one in own)}
        more = [defaults[name] for name in keywords.__annotations__ if name not in taken]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate
