"""The log: transitions (s, a, s', r, u), validated once, packed for the core, read-only from then on.

A record is 16 + 8 I bytes: the index of its pair (s, a) among the pairs that the log visits, the next state, the
reward and the I utilities or costs. A sampled transition is therefore one cache line for I <= 6. A log need not fit
into memory: `Dataset.open` maps a folder that `Dataset.save` has written (`dpdl.data.storage`), a part of a log
(``log[a:b]``) is a view of the same records, and every pass over a log reads it in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl.data import counts, packing, storage
from dpdl.data.labels import Labels

T = TypeVar("T")


class _shared(cached_property[T]):
    """A cached property of what happened, which a posed log has from the log in the caller's units."""

    def __get__(self, log: Any, owner: type[Any] | None = None) -> Any:
        return super().__get__(log if log is None else log.raw, owner)


class Dataset:
    """An immutable log of transitions.

    It holds what happened, in the caller's units. What is asked of it, a discount and limits, is given to the functions
    that answer (`dpdl.question`).

    Parameters
    ----------
    s, a, s_next : array_like of int, shape (N,)
        States, actions and next states.
    r : array_like, shape (N,)
        Rewards, any finite numbers.
    u : array_like, shape (N, I), optional
        Utilities, the paper's form of constraints: a policy is safe if each discounted sum is >= 0.
    costs : mapping of str to array_like, optional
        Costs by name, each of shape (N,); limits on them are part of a question. Instead of `u`.
    n_states, n_actions : int
        Sizes of the state and action sets.
    terminated : array_like of bool, shape (N,), optional
        Rows that ended their episode: nothing follows, so that the next state is not read (it becomes -1), V there is
        zero and no sink state is needed.
    truncated : array_like of bool, shape (N,), optional
        Rows at which the record of an episode stops although it would go on: ordinary rows with an ordinary next state.
        With it, even if all are False, the rows are episodes in order: one begins after each row that is terminated or
        truncated.
    starts : array_like of int, optional
        Instead of `truncated`: positions at which trajectories begin, ascending from 0. Within a trajectory, every
        next state must be the state of the following record. ``[0]``: the log is one trajectory. With neither, the
        transitions are independent.

    Attributes
    ----------
    s, a, s_next, r, u, terminated, pairs, ... : arrays
        Columns and what is computed from them, read-only; each is documented below.
    table : int64 array
        The pairs that ``records["pair"]`` indexes, as s * n_actions + a, ascending. A part of a log shares the table of
        the whole log, so it may not visit all of them.
    starts : int64 array or None
        Where trajectories begin; None if the transitions are independent.
    cost_names : tuple of str or None
        Names of the costs; None if the log has utilities.
    labels : Labels or None
        What states and actions are called (`read_log`); a saved log keeps them.
    repeats, spreads : arrays or None
        Of a log of counts (`from_counts`): how many transitions each record stands for, and the standard deviations of
        reward and costs or utilities among them.
    question : Question or None
        What the log was posed under (`dpdl.question.pose`); None for a log in the caller's units.
    path : pathlib.Path or None
        The folder that this log was opened from; None if it is in memory or part of another log.

    Examples
    --------
    >>> log = Dataset([0, 1, 0], [0, 1, 0], [1, 0, 0], [5, 1, 0], costs={"wear": [1, 0, 2]}, n_states=2, n_actions=2)
    >>> len(log), log.pairs.tolist(), log.pair_counts.tolist(), log.costs["wear"].tolist()
    (3, [0, 3], [2, 1], [1.0, 0.0, 2.0])
    """

    table: NDArray[np.int64]
    n_states: int
    n_actions: int
    cost_names: tuple[str, ...] | None
    starts: NDArray[np.int64] | None = None
    repeats: NDArray[np.int64] | None = None
    labels: Labels | None = None
    path: Path | None = None
    question: Any = None  # a `dpdl.question.Question`
    _raw: Dataset | None = None  # of a posed log, the log in the caller's units
    _initial: NDArray[np.int64] | None = None  # first states, if they do not follow from `starts`
    _notes: tuple[str, ...] = ()
    _is_part: bool = False
    _is_begun: bool = True  # whether the first record begins a trajectory; in a part it may be in the middle of one

    def __init__(
        self,
        s: ArrayLike,
        a: ArrayLike,
        s_next: ArrayLike,
        r: ArrayLike,
        u: ArrayLike | None = None,
        *,
        n_states: int,
        n_actions: int,
        costs: Mapping[str, ArrayLike] | None = None,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        starts: ArrayLike | None = None,
    ) -> None:
        self._set(**packing.pack(s, a, s_next, r, u, costs, terminated, n_states, n_actions))
        if truncated is not None:
            if starts is not None:
                raise TypeError("give either truncated or starts")
            last = check.flags("truncated", truncated, (len(self),)) | self.terminated
            starts = np.flatnonzero(np.append(True, last[:-1]))
        if starts is not None:
            self._set(starts=packing.checked_starts(starts, self.s, self.s_next))

    @classmethod
    def from_counts(
        cls,
        s: ArrayLike,
        a: ArrayLike,
        s_next: ArrayLike,
        count: ArrayLike,
        r: ArrayLike,
        u: ArrayLike | None = None,
        *,
        n_states: int,
        n_actions: int,
        costs: Mapping[str, ArrayLike] | None = None,
        terminated: ArrayLike | None = None,
        r_std: ArrayLike | None = None,
        u_std: ArrayLike | None = None,
        cost_stds: Mapping[str, ArrayLike] | None = None,
        initial: ArrayLike | None = None,
    ) -> Dataset:
        """Make a log from counts, one row for each distinct transition: what one group-by makes of a log of any length.

        It stands for the log that was counted in everything but the order of its rows: its length is the sum of the
        counts, and draws are made in proportion to them.

        Parameters
        ----------
        s, a, s_next : array_like of int, shape (G,)
            States, actions and next states. A transition may have several rows.
        count : array_like of int, shape (G,)
            How often each was seen.
        r : array_like, shape (G,)
            Mean reward.
        u : array_like, shape (G, I), optional
            Mean utilities; or `costs`, mean costs by name.
        terminated : array_like of bool, optional
            Rows that ended their episode.
        r_std, u_std or cost_stds : optional
            Standard deviations within a row (population: divided by the count), shaped like `r`, `u` and `costs`.
            Without them all transitions of a row are taken to have had the same reward and costs, which is so if the
            group-by is by these as well; otherwise standard errors come out too small.
        initial : array_like of int, shape (S,), optional
            How many episodes began in each state: the default of the initial distribution.
        n_states, n_actions
            As for the class.

        Examples
        --------
        >>> log = Dataset.from_counts([0, 0], [0, 1], [0, 0], [3, 1], [0.5, 1], [[1], [-1]], n_states=1, n_actions=2)
        >>> len(log), log.r.tolist(), log.pair_counts.tolist()
        (4, [0.5, 1.0], [3, 1])
        """
        packed = packing.pack(s, a, s_next, r, u, costs, terminated, n_states, n_actions)
        names, n, most = packed["cost_names"], len(packed["records"]), counts.MOST_TRANSITIONS
        repeats = check.indices("count", count, most + 1, shape=(n,), dtype=np.int64)
        if not repeats.all():
            raise ValueError(f"count[{np.argmin(repeats)}] = 0 must be at least 1")
        total = repeats.sum(dtype=np.float64)
        if total > most:
            raise ValueError(f"count sums to {total:g}, more than 2^53, and could be rounded")
        n_columns = packed["records"]["u"].shape[1]
        given, spread = ("u_std", u_std) if names is None else ("cost_stds", cost_stds)
        if (r_std is None) != (spread is None) and n_columns:
            raise TypeError(f"give both r_std and {given}, or neither")
        spreads = None
        if r_std is not None:
            if names is not None:
                if not isinstance(cost_stds, Mapping) or set(cost_stds) != set(names):
                    raise ValueError(f"cost_stds must be a mapping with the names of costs, {list(names)}")
                cost_stds = {name: cost_stds[name] for name in names}
            spreads = np.empty(n, dtype=packing.spread_dtype(n_columns))
            spreads["r"] = check.numbers_array("r_std", r_std, shape=(n,), at_least=0)
            columns = packing.named_columns(given, u_std, cost_stds, n)[1]
            spreads["u"] = check.numbers_array(given, columns, shape=(n, n_columns), at_least=0, copy=False)
        if initial is not None:
            initial = check.indices("initial", initial, most, shape=(packed["n_states"],), dtype=np.int64)
            if not initial.any():
                raise ValueError("initial must count at least one episode, got zeros")
        return cls._made(**packed, repeats=repeats, spreads=spreads, _initial=initial)

    def _set(self, **attributes: Any) -> None:
        """Set attributes; arrays become read-only."""
        frozen = {k: check.frozen(value) for k, value in attributes.items() if isinstance(value, np.ndarray)}
        self.__dict__.update(attributes | frozen)

    @classmethod
    def _made(cls, **attributes: Any) -> Dataset:
        """Make a log of checked attributes."""
        log = cls.__new__(cls)
        log._set(**attributes)
        return log

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a log consists of, as views, so that no array of the same pickle is that of the log."""
        if self._raw is not None:
            return type(self).posed, (self._raw, self.question)
        kept = {name: value for name, value in self.__dict__.items() if name in _KEPT}
        return _unpickled, ({name: v[...] if isinstance(v, np.ndarray) else v for name, v in kept.items()},)

    # ---- Files ----

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Dataset:
        """Open a log that `save` has written.

        The files are mapped read-only, so that the log takes no private memory and may be larger than the memory; their
        checksums are compared in one pass. While a log is in use its files must not be changed. Replacing the folder
        (`save` with `overwrite`) is safe at any time: a log that is opened meanwhile is the old one or the new one, and
        does not change. A ValueError about damage names the file and the reason.
        """
        folder = Path(os.path.abspath(check.path("path", path)))
        content, arrays, fingerprint = storage.read(folder)
        names, labels = content["costs"], content["labels"]
        return cls._made(
            **{"_initial" if name == "initial" else name: array for name, array in arrays.items()},
            n_states=content["n_states"],
            n_actions=content["n_actions"],
            cost_names=None if names is None else tuple(names),
            labels=None if labels is None else Labels.from_json(labels),
            _notes=tuple(content["notes"]),
            path=folder,
            fingerprint=fingerprint,
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the log to a folder, for `open`; the format is documented in `dpdl.data.storage`.

        With `overwrite` the log that is there is kept until the new one is complete, and then replaced at once.
        Anything else at `path` is never replaced.

        Examples
        --------
        >>> import tempfile
        >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], [[0], [0]], n_states=2, n_actions=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log.save(f"{folder}/log")
        ...     again = Dataset.open(f"{folder}/log")
        >>> again.s_next.tolist(), again.path.name, again.fingerprint == log.fingerprint
        ([1, 0], 'log', True)
        """
        pieces = {name: packing.chunks(array) for name, array in self.raw._arrays().items()}
        overwrite = check.flag("overwrite", overwrite)
        storage.save(check.path("path", path), self.raw._content(), pieces, overwrite=overwrite)

    @_shared
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the arrays: logs with the same one are the same, wherever they are stored.

        It does not depend on labels or on what is asked. It costs nothing for a log opened from a folder, one pass
        otherwise.
        """
        return storage.fingerprint(self._content(), self._arrays())

    def _content(self) -> dict[str, Any]:
        return {
            "n_states": self.n_states,
            "n_actions": self.n_actions,
            "n_columns": self.n_utilities,
            "costs": self.cost_names,
            "notes": self._notes,
            "labels": None if self.labels is None else self.labels.to_json(),
        }

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = ("records", "table", "starts", "repeats", "spreads")
        arrays = {name: getattr(self, name) for name in names} | {"initial": self._initial}
        return {name: array for name, array in arrays.items() if array is not None}

    # ---- Questions ----

    @property
    def raw(self) -> Dataset:
        """The log in the caller's units, of a posed log; otherwise the log itself."""
        return self if self._raw is None else self._raw

    def posed(self, question: Any) -> Dataset:
        """Return this log in the paper's form under a question (`dpdl.question`).

        It is a view: the learner reads the records of this log and applies the question's map to each row. Scaled
        records are made only when they are first used. A log that has the form already shares its records.
        """
        if self.question is not None:
            raise ValueError("the log was posed already: pose the log itself")
        last: Dataset | None = self.__dict__.get("_last_posed")
        if last is not None and last.question == question:
            return last
        native = question.limits is None and {question.reward_scale, *question.scales} == {1}
        own = set() if native else {"records", "spreads"}
        kept = {name: value for name, value in self.__dict__.items() if name in _KEPT - own}
        log = self._made(**kept | {"question": question, "_raw": self, "cost_names": None})
        self._set(_last_posed=log)
        return log

    @cached_property
    def records(self) -> NDArray[Any]:
        """The packed log, see `record_dtype`; of a posed log, scaled when first used."""
        question, raw = self.question, self.raw.records
        records = np.empty(len(raw), dtype=packing.record_dtype(len(question.columns)))
        for part, into in zip(packing.chunks(raw), packing.chunks(records, packing.chunk_size(raw.dtype)), strict=True):
            into["pair"], into["s_next"] = part["pair"], part["s_next"]
            into["r"] = part["r"] * question.reward_slope
            into["u"] = question.utilities_of(part["u"], part["s_next"] < 0)
        return check.frozen(records)

    @cached_property
    def spreads(self) -> NDArray[Any] | None:
        """Standard deviations of rewards and utilities in the cells of a log of counts, scaled like the records."""
        question, raw = self.question, None if self._raw is None else self._raw.spreads
        if raw is None:
            return None
        spreads = np.empty(len(raw), dtype=packing.spread_dtype(len(question.columns)))
        spreads["r"] = raw["r"] * question.reward_slope
        spreads["u"] = raw["u"][:, question.columns] * abs(question.slope)
        return check.frozen(spreads)

    # ---- Parts and sums of logs, tables ----

    def __len__(self) -> int:
        return len(self.raw.records) if self.repeats is None else int(self.repeats.sum())

    def __repr__(self) -> str:
        low, high = self.ranges[:, 0].min(axis=0), self.ranges[:, 1].max(axis=0)
        values = [f"{name} {low[k]:.4g} to {high[k]:.4g}" for k, name in enumerate(("reward", *self._names))]
        episodes = "" if self.starts is None else f", {len(self.starts):,} episode{'s' if len(self.starts) > 1 else ''}"
        cells = f" in {len(self.records):,} cells" if self.repeats is not None else ""
        of_means = " (means of cells)" if self.spreads is not None else ""
        made = " (discretised)" if self.labels is not None and self.labels.discretizer is not None else ""
        return (
            f"Dataset({len(self):,} transitions{cells}{episodes}, {self.n_states:,} states{made}, "
            f"{self.n_actions:,} actions, {len(self.pairs):,} pairs; {', '.join(values)}{of_means})"
        )

    def __getitem__(self, part: slice) -> Dataset:
        """Return part of the log as a view; a log of trajectories can be sliced with step 1 only.

        Examples
        --------
        >>> from dpdl import Dataset
        >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], [[0], [0]], n_states=2, n_actions=1)
        >>> log[1:].s.tolist(), log[1:].pairs.tolist()
        ([1], [1])
        """
        if not isinstance(part, slice):
            raise TypeError(f"a data set is indexed by a slice, got {type(part).__name__}")
        first, last, step = part.indices(len(self))
        if len(range(first, last, step)) == 0:
            raise ValueError(f"{part} of a data set of length {len(self)} is empty")
        if self.repeats is not None:
            raise ValueError("a log of counts has no order, so that it has no parts")
        if self._raw is not None:
            return self._raw[part].posed(self.question)
        starts, is_begun = self.starts, False
        if starts is not None:
            if step != 1:
                raise ValueError(f"a log of trajectories is sliced with step 1, got {part}")
            is_begun = bool(np.isin(first, starts)) and (first > 0 or self._is_begun)
            starts = np.append(np.int64(0), starts[(first < starts) & (starts < last)] - first)
        own = {"records": self.records[part], "starts": starts, "_is_begun": is_begun, "_is_part": True, "path": None}
        return self._made(**{name: value for name, value in self.__dict__.items() if name in _KEPT} | own)

    def __add__(self, other: Dataset) -> Dataset:
        """Put the rows of another log after those of this one; both have the same states, actions and costs.

        Examples
        --------
        >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], n_states=2, n_actions=1, starts=[0])
        >>> len(log + log), (log + log).starts.tolist()
        (4, [0, 2])
        """
        if not isinstance(other, Dataset):
            return NotImplemented
        for name in ("n_states", "n_actions", "n_utilities", "cost_names", "labels", "question"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"the logs differ in {name}: read their files together, read_log([...])")
        if self.repeats is not None or other.repeats is not None or self.question is not None:
            raise ValueError("logs of counts and posed logs cannot be put together: put the logs themselves together")
        if (self.starts is None) != (other.starts is None):
            raise ValueError("the rows of one log are independent, those of the other are episodes")
        starts = initial = None
        if self.starts is not None and other.starts is not None:
            starts = np.concatenate([self.starts, other.starts + len(self)])
        if self._initial is not None or other._initial is not None:
            known = [log.initial_counts for log in (self, other) if log.initial_counts is not None]
            initial = np.sum(known, axis=0)
        table = np.union1d(self.table, other.table)
        records = np.concatenate([self.records, other.records])
        ours, theirs = np.split(records["pair"], [len(self.records)])
        ours[:] = np.searchsorted(table, self.table)[ours]
        theirs[:] = np.searchsorted(table, other.table)[theirs]
        own = {"records": records, "table": table, "starts": starts, "_initial": initial, "path": None}
        own |= {"_notes": (*self._notes, *other._notes), "_is_part": False}
        return self._made(**{name: value for name, value in self.__dict__.items() if name in _KEPT} | own)

    def to_frame(self) -> Any:
        """Return the rows as a data frame of pandas, in the caller's units and labels.

        Columns are state, action, next_state (missing where the episode ended), terminated, reward, the costs or
        utilities, episode (if there are episodes) and count (of a log of counts).
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("data frames need pandas: pip install pandas") from None
        log = self.raw
        states, actions = np.append(np.arange(log.n_states), -1), np.arange(log.n_actions)
        if log.labels is not None:
            states = np.array([*log.labels.states, None], dtype=object)
            actions = np.fromiter(log.labels.actions, object, log.n_actions)
        columns: dict[str, Any] = {
            "state": states[log.s],
            "action": actions[log.a],
            "next_state": states[log.s_next],
            "terminated": log.terminated,
            "reward": log.r,
        }
        columns |= {name: log.records["u"][:, k] for k, name in enumerate(log._names)}
        if log.starts is not None:
            columns["episode"] = np.searchsorted(log.starts, np.arange(len(log)), side="right") - 1
        if log.repeats is not None:
            columns["count"] = log.repeats
        return pandas.DataFrame(columns)

    def counts(self) -> dict[str, Any]:
        """Count the transitions: the columns that `from_counts` takes, in the caller's units.

        Examples
        --------
        >>> log = Dataset([0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0.5, 0], [[1], [1], [0]], n_states=1, n_actions=2)
        >>> {name: column.tolist() for name, column in log.counts().items() if name in ("a", "count", "r")}
        {'a': [0, 1], 'count': [2, 1], 'r': [0.75, 0.0]}
        """
        return counts.tabulate(self.raw)

    def parts(self, at_least: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[np.int64] | int]]:
        """The records in chunks, and how many transitions each stands for: 1, or an array in a log of counts."""
        first = 0
        for part in packing.chunks(self.records, at_least):
            yield part, 1 if self.repeats is None else self.repeats[first : first + len(part)]
            first += len(part)

    # ---- Columns ----

    @property
    def s(self) -> NDArray[np.int32]:
        """States."""
        return check.frozen((self.table // self.n_actions).astype(np.int32)[self.raw.records["pair"]])

    @property
    def a(self) -> NDArray[np.int32]:
        """Actions."""
        return check.frozen((self.table % self.n_actions).astype(np.int32)[self.raw.records["pair"]])

    @property
    def s_next(self) -> NDArray[np.int32]:
        """Next states; -1 where the episode ended."""
        return self.raw.records["s_next"]

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Which records ended their episode."""
        return check.frozen(self.raw.records["s_next"] < 0)

    @property
    def r(self) -> NDArray[np.float64]:
        """Rewards."""
        return self.records["r"]

    @property
    def u(self) -> NDArray[np.float64]:
        """Utilities, shape (N, I); a log in the caller's units may have `costs` instead."""
        if self.cost_names is not None:
            raise AttributeError("the log has costs instead of utilities u: see Dataset.costs")
        return self.records["u"]

    @property
    def costs(self) -> dict[str, NDArray[np.float64]]:
        """Costs by name; none if the log has utilities."""
        return {name: self.records["u"][:, k] for k, name in enumerate(self.cost_names or ())}

    @property
    def n_utilities(self) -> int:
        """The number of utilities or costs."""
        if self.question is not None:
            return len(self.question.columns)
        return int(self.records.dtype["u"].shape[0])

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(f"u{i}" for i in range(self.n_utilities)) if self.cost_names is None else self.cost_names

    @property
    def kind(self) -> str:
        """Whether the transitions are "independent", one "trajectory" or several "trajectories"."""
        if self.starts is None:
            return "independent"
        return "trajectory" if len(self.starts) == 1 else "trajectories"

    # ---- Counts ----

    @_shared
    def table_counts(self) -> NDArray[np.int64]:
        """How often each pair of `table` occurs."""
        totals = np.zeros(len(self.table), dtype=np.int64)
        for part, repeats in self.parts(at_least=len(totals)):  # shorter ones would spend the time adding up counts
            if self.repeats is None:
                totals += np.bincount(part["pair"], minlength=len(totals))
            else:
                np.add.at(totals, part["pair"], repeats)
        return check.frozen(totals)

    @_shared
    def pairs(self) -> NDArray[np.int64]:
        """Visited pairs as s * n_actions + a, ascending."""
        return check.frozen(self.table[self.table_counts > 0])

    @_shared
    def pair_counts(self) -> NDArray[np.int64]:
        """How often each of `pairs` occurs."""
        return check.frozen(self.table_counts[self.table_counts > 0])

    @property
    def pair(self) -> NDArray[np.int32]:
        """Position of each transition's pair in `pairs`."""
        position = (np.cumsum(self.table_counts > 0) - 1).astype(np.int32)
        return check.frozen(position[self.raw.records["pair"]])

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """How often each pair occurs, divided by the number of transitions, shape (S, A): the empirical mu."""
        mu = np.zeros(self.n_states * self.n_actions)
        mu[self.pairs] = self.pair_counts / len(self)
        return mu.reshape(self.n_states, self.n_actions)

    @_shared
    def n_ended(self) -> int:
        """How many transitions ended their episode."""
        return sum(int(((part["s_next"] < 0) * repeats).sum()) for part, repeats in self.parts())

    @_shared
    def initial_counts(self) -> NDArray[np.int64] | None:
        """How often an episode began in each state, the default of rho0; None if the log has no episodes.

        One trajectory that never ended may be a part of a life without episodes, so its first state does not count,
        nor does that of a part of the log that begins in the middle of an episode.
        """
        if self._initial is not None or self.starts is None:
            return self._initial
        if len(self.starts) == 1 and not (self._is_begun and self.n_ended):
            return None
        first = self.starts if self._is_begun else self.starts[1:]
        states = self.table[self.records["pair"][first]] // self.n_actions
        return check.frozen(np.bincount(states, minlength=self.n_states))

    def initial(self, rho0: ArrayLike | None = None, initial_states: ArrayLike | None = None) -> NDArray[np.float64]:
        """Distribution of the first state: as given, or else as the episodes of the log began.

        Examples
        --------
        >>> log = Dataset([0, 1, 1], [0, 0, 0], [1, 1, 1], [0] * 3, [[0]] * 3, n_states=2, n_actions=1, starts=[0, 2])
        >>> log.initial().tolist()
        [0.5, 0.5]
        """
        if rho0 is None and initial_states is None and self.initial_counts is not None:
            return self.initial_counts / self.initial_counts.sum()
        return check.initial_distribution(rho0, initial_states, self.n_states)

    @cached_property
    def ranges(self) -> NDArray[np.float64]:
        """Least and largest reward and costs (or utilities), shape (2, 2, 1 + I).

        The first index is 0 for rows that go on, and 1 for rows that end their episode; without such rows the least
        value is infinity, and the largest minus infinity.
        """
        if self._raw is not None:  # the maps are monotone, in rounding as well
            raw, question = self._raw.ranges, self.question
            utilities = (raw[:, :, [1 + k for k in question.columns]] - question.share[:, None]) * question.slope
            utilities = np.where(question.slope < 0, utilities[:, ::-1], utilities)
            return check.frozen(np.concatenate([raw[:, :, :1] * question.reward_slope, utilities], axis=2))
        ranges = np.empty((2, 2, 1 + self.n_utilities))
        ranges[:, 0], ranges[:, 1] = np.inf, -np.inf
        for part, _ in self.parts():
            ended = part["s_next"] < 0
            for row, rows in ((0, part[~ended] if ended.any() else part), (1, part[ended])):
                if len(rows):
                    for k, values in enumerate((rows["r"], *rows["u"].T)):
                        ranges[row, :, k] = min(ranges[row, 0, k], values.min()), max(ranges[row, 1, k], values.max())
        return check.frozen(ranges)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is remarkable about the log, for the notes of results.

        Rows of a table that were left out, constraints that cannot be broken, states that are entered and never left.
        """
        notes = self._notes
        if self.question is not None:
            low, high = self.ranges[:, 0, 1:].min(axis=0), self.ranges[:, 1, 1:].max(axis=0)
            notes = (*notes, *self.question.one_sided(low, high))
        if self._is_part or len(self._dead_ends) == 0:
            return notes
        n = len(self._dead_ends)
        named = [repr(self.labels.states[s]) if self.labels else str(s) for s in self._dead_ends[:5].tolist()]
        which = ", ".join(named) + (", ..." if n > 5 else "")
        note = (
            f"{n} state{'s are' if n > 1 else ' is'} entered but never left ({which}): nothing is known about what "
            "follows, so the worst is assumed there; if episodes end there, say so with terminated="
        )
        return (*notes, note)

    @_shared
    def _dead_ends(self) -> NDArray[np.int64]:
        """States that some row enters and no row leaves, ascending; where an episode ended, no state was entered."""
        entered = np.empty(0, dtype=np.int64)
        for part, _ in self.parts(at_least=len(self.table)):
            entered = np.union1d(entered, packing.rank(part["s_next"].astype(np.int64) + 1, self.n_states + 1)[0] - 1)
        return check.frozen(np.setdiff1d(entered[entered >= 0], self.pairs // self.n_actions))


#: The attributes that a log consists of; everything else follows from them.
_KEPT = {*Dataset.__annotations__, "records", "spreads"} - {"question", "_raw"}


def _unpickled(kept: dict[str, Any]) -> Dataset:
    return Dataset._made(**kept)
