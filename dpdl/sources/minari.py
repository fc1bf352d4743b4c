"""Fields of a Minari data set that is stored on this machine. Needs minari (``pip install 'dpdl[minari]'``).

An episode of n steps has n + 1 observations. An entry of its infos, such as the cost, has one value per step, or one
more: that of the reset, which comes first and belongs to no step. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Fields and the roles that they have by default.
ROLES = {
    "state": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_state": "next_observations",
    "episode": "episode",
    "terminated": "terminations",
    "truncated": "truncations",
}


def load(name: str, infos: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read all steps of a data set as arrays, with some entries of the infos.

    An entry of nested infos is named with slashes, ``"sensors/heat"``.
    """
    try:
        import minari
    except ImportError:
        raise ImportError("Minari data sets need minari: pip install 'dpdl[minari]'") from None
    try:
        episodes = list(minari.load_dataset(name))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"minari:{name}: there is no such data set on this machine; minari can download it"
        ) from None
    except Exception as error:  # minari checks little, so that a damaged file can raise anything
        text = " ".join(str(error).split())
        raise ValueError(f"it cannot be read ({type(error).__name__}): {text:.300}") from None
    if not episodes:
        raise ValueError("it has no episodes")
    fields: dict[str, list[NDArray[Any]]] = {}
    for number, episode in enumerate(episodes):
        for field, array in _steps(episode, number, list(infos)).items():
            fields.setdefault(field, []).append(array)
    found = {}
    for field, parts in fields.items():
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError(f"field {field!r} differs in shape between episodes")
        found[field] = np.concatenate(parts)
    return found


def _steps(episode: Any, number: int, infos: list[str]) -> dict[str, NDArray[Any]]:
    """Arrays of one episode with a row for each of its steps."""
    n = len(_array("rewards", episode.rewards, number))
    observations = _array("observations", episode.observations, number, n + 1)
    found = {"observations": observations[:-1], "next_observations": observations[1:]}
    for field in ("actions", "rewards", "terminations", "truncations"):
        found[field] = _array(field, getattr(episode, field), number, n)
    for name in infos:
        entry: Any = episode.infos
        for part in name.split("/"):
            if not isinstance(entry, dict) or part not in entry:
                listed = ", ".join(map(repr, entry)) if isinstance(entry, dict) and entry else "empty"
                raise ValueError(f"infos of episode {number} have no entry {name!r}; they are {listed}")
            entry = entry[part]
        array = _array(f"infos[{name!r}]", entry, number)
        if len(array) not in (n, n + 1):
            raise ValueError(
                f"infos[{name!r}] of episode {number} must have {n} values, or {n + 1} with that of the reset, "
                f"got {len(array)}"
            )
        found[name] = array[len(array) - n :]
    return found | {"episode": np.full(n, number)}


def _array(field: str, values: Any, number: int, length: int | None = None) -> NDArray[Any]:
    if isinstance(values, (dict, tuple)) or np.asarray(values).ndim == 0:
        raise TypeError(f"{field} of episode {number} must be an array, got {type(values).__name__}")
    array = np.asarray(values)
    if length is not None and len(array) != length:
        raise ValueError(f"{field} of episode {number} must have {length} values, got {len(array)}")
    return array
