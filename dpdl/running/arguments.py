"""The keywords that every function which starts a run accepts, defined once.

They are those of `Settings`, of `Inputs` (what a run reads) and of `Options` (how it is driven).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from dpdl.data.dataset import Dataset
from dpdl.learning.layout import InputKeywords, Inputs
from dpdl.running.options import OptionKeywords, Options
from dpdl.settings import SettingKeywords, Settings

Function = TypeVar("Function", bound=Callable[..., Any])


class RunKeywords(SettingKeywords, InputKeywords, OptionKeywords, total=False):
    """Keywords of `learn`."""


def parse(
    dataset: Dataset, settings: Settings | None, keywords: dict[str, Any], **inputs: Any
) -> tuple[Settings, Inputs, Options]:
    """Split keywords into settings, inputs and options, and check them; `inputs` are more arguments of `Inputs.of`."""
    options = Options.of(**_those_of(OptionKeywords, keywords))
    chosen = Settings.of(settings, _those_of(SettingKeywords, keywords) | _unknown(keywords))
    return chosen, Inputs.of(dataset, **_those_of(InputKeywords, keywords), **inputs), options


def accepts(*kinds: Any, but: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorate a function that takes ``**keywords`` so that its signature lists those of the given kinds."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        names = dict.fromkeys(name for kind in kinds for name in kind.__annotations__)
        taken = {*but, *(one.name for one in own)}
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names if name not in taken
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def _those_of(kind: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if name in kind.__annotations__}


def _unknown(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords of no known name, for `Settings.of` to reject."""
    return {name: value for name, value in keywords.items() if name not in RunKeywords.__annotations__}
