"""The log: transitions (s, a, s', r, u), validated once, packed for the core, read-only from then on.

A record is 16 + 8 I bytes: the index of its pair (s, a) among the pairs that the log visits, the next state, the
reward and the I utilities. A sampled transition is therefore one cache line for I <= 6. A log need not fit into memory:
`Dataset.open` maps a folder that `Dataset.save` has written (`dpdl.data.storage`), a part of a log
(``log[a:b]``) is a view of the same records, and every pass over a log reads it in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl.data import counts, packing, storage
from dpdl.data.labels import Labels
from dpdl.data.packing import record_dtype
from dpdl.data.storage import INITIAL, PAIRS, RECORDS, REPEATS, SPREADS, STARTS, Facts

#: What a posed log computes from its own records.
_OF_RAW = ("_records", "spreads", "ranges", "notes", "fingerprint", "_last_posed")
#: Columns of a row besides its utilities or costs.
_ROW = ("s", "a", "s_next", "r")


class Dataset:
    """An immutable log of transitions: copying returns the log itself, and unpickling checks the contents.

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

    _table: NDArray[np.int64]
    n_states: int
    n_actions: int
    cost_names: tuple[str, ...] | None
    labels: Labels | None = None
    question: Any = None  # a `dpdl.question.Question`
    _raw: Dataset | None = None  # the log in the caller's units, of a posed log
    _notes: tuple[str, ...] = ()
    _is_part: bool = False
    path: Path | None
    # Where trajectories begin after the first record, and the number of the first record, both in the numbering of the
    # whole log, so that a part shares the array: `starts` is computed when it is first used.
    _begins: NDArray[np.int64] | None
    _first: int
    _whole: bool  # whether the first record begins a trajectory; it may be in the middle of one in a part
    repeats: NDArray[np.int64] | None
    _initial: NDArray[np.int64] | None

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
        sizes = packing.sizes(n_states, n_actions)
        s, a, after = packing.moves(s, a, s_next, terminated, *sizes)
        names, columns = packing.named_columns(u, costs, len(s))
        if truncated is not None:
            if starts is not None:
                raise TypeError("give either truncated or starts")
            starts = packing.starts_of_episodes(truncated, after)
        begins = None if starts is None else packing.begins(starts, s, after)
        records = packing.pack(after, r, columns)
        pairs, records["pair"] = packing.rank(s.astype(np.int64) * sizes[1] + a, sizes[0] * sizes[1])
        # The columns may be the caller's own arrays and may have changed after they were checked: check the copies.
        arrays = {RECORDS: records, PAIRS: pairs} | ({} if begins is None else {STARTS: begins})
        self._fill(arrays, storage.inspect(arrays, *sizes), *sizes, names)

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

        It stands for the log that was counted in everything but order="trajectory": its length is the sum of the
        counts, draws are made in proportion to them, and a part of it is a random sample without replacement.

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
        n_states, n_actions = packing.sizes(n_states, n_actions)
        s, a, s_next = packing.moves(s, a, s_next, terminated, n_states, n_actions)
        n = len(s)
        repeats = check.indices("count", count, counts.MOST_TRANSITIONS + 1, shape=(n,), dtype=np.int64)
        if not repeats.all():
            raise ValueError(f"count[{np.argmin(repeats)}] = 0 must be at least 1")
        total = repeats.sum(dtype=np.float64)
        if total > counts.MOST_TRANSITIONS:
            raise ValueError(f"count sums to {total:g}, more than 2^53, and could be rounded")
        names, columns = packing.named_columns(u, costs, n)
        records = packing.pack(s_next, r, columns)
        pairs, records["pair"] = packing.rank(s.astype(np.int64) * n_actions + a, n_states * n_actions)
        arrays = {RECORDS: records, PAIRS: pairs, REPEATS: repeats}
        given, spread = ("u_std", u_std) if names is None else ("cost_stds", cost_stds)
        if (r_std is None) != (spread is None) and columns.shape[1]:
            raise TypeError(f"give both r_std and {given}, or neither")
        if r_std is not None:
            if names is not None:
                if not isinstance(cost_stds, Mapping) or set(cost_stds) != set(names):
                    raise ValueError(f"cost_stds must be a mapping with the names of costs, {list(names)}")
                cost_stds = {name: cost_stds[name] for name in names}
            arrays[SPREADS] = np.empty(n, dtype=packing.spread_dtype(columns.shape[1]))
            arrays[SPREADS]["r"] = check.numbers_array("r_std", r_std, shape=(n,), at_least=0)
            arrays[SPREADS]["u"] = packing.named_columns(u_std, cost_stds, n, given)[1]
        if initial is not None:
            arrays[INITIAL] = check.indices(
                "initial", initial, counts.MOST_TRANSITIONS, shape=(n_states,), dtype=np.int64
            )
            if not arrays[INITIAL].any():
                raise ValueError("initial must count at least one episode, got zeros")
        log = cls.__new__(cls)
        log._fill(arrays, storage.inspect(arrays, n_states, n_actions), int(n_states), int(n_actions), names)
        return log

    def counts(self) -> dict[str, Any]:
        """Count the transitions: the columns that `from_counts` takes, in the caller's units.

        Examples
        --------
        >>> log = Dataset([0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0.5, 0], [[1], [1], [0]], n_states=1, n_actions=2)
        >>> {name: column.tolist() for name, column in log.counts().items() if name in ("a", "count", "r")}
        {'a': [0, 1], 'count': [2, 1], 'r': [0.75, 0.0]}
        """
        return counts.tabulate(self.raw)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = True) -> Dataset:
        """Open a log that `save` has written.

        The contents are checked in one pass with bounded memory: some seconds for 10^8 transitions. While a mapped log
        is in use its files must not be changed. Replacing the folder (`save` with `overwrite`) is safe at any time: a
        log that is opened meanwhile is the old one or the new one, and does not change.

        Parameters
        ----------
        path : path-like
            The folder.
        mmap : bool, optional
            Map the files read-only, so that the log takes no private memory and may be larger than the memory; or read
            them into memory.
        verify : bool, optional
            Compare the SHA-256 of the data with the header's. Use False only for files that were verified before:
            damage is then detected only if it puts a value out of range.

        Returns
        -------
        Dataset

        Raises
        ------
        ValueError
            If a file is damaged or invalid; the message names the file and the reason.
        """
        folder = Path(os.path.abspath(check.path("path", path)))
        read = storage.read(folder, mmap=check.flag("mmap", mmap), verify=check.flag("verify", verify))
        facts, arrays, counts, fingerprint = read
        log = cls.__new__(cls)
        log._fill(arrays, counts, facts.n_states, facts.n_actions, facts.names, folder)
        log.__dict__.update(fingerprint=fingerprint, labels=facts.labels, _notes=facts.notes)
        return log

    def __copy__(self) -> Dataset:
        """Return the log itself, which is immutable."""
        return self

    def __deepcopy__(self, memo: Any) -> Dataset:
        """Return the log itself, which is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the contents as bytes, which are immutable even if the same pickle refers to them elsewhere."""
        if self._raw is not None:
            return type(self).posed, (self._raw, self.question)
        arrays = {RECORDS: self.records, PAIRS: self.table, STARTS: self.starts} | self._of_counts()
        raw = {name: array.tobytes() for name, array in arrays.items() if array is not None}
        more = {"labels": self.labels, "_notes": self._notes, "_is_part": self._is_part}
        sizes = (self.n_states, self.n_actions, self.n_utilities)
        return type(self)._unpickled, (raw, sizes, self.cost_names, self.path, self._whole, more)

    @classmethod
    def _unpickled(
        cls,
        raw: dict[str, bytes],
        sizes: tuple[int, int, int],
        names: tuple[str, ...] | None,
        path: Path | None,
        whole: bool,
        more: dict[str, Any],
    ) -> Dataset:
        n_states, n_actions, n_columns = sizes
        types = {RECORDS: record_dtype(n_columns), SPREADS: packing.spread_dtype(n_columns)}
        arrays = {name: np.frombuffer(raw[name], dtype=types.get(name, np.dtype(np.int64))) for name in raw}
        log = cls.__new__(cls)
        log._fill(arrays, storage.inspect(arrays, n_states, n_actions), n_states, n_actions, names, path, whole)
        log.__dict__.update(more)
        return log

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
        native = question.limits is None and question.reward_scale == 1 and all(one == 1 for one in question.scales)
        own = _OF_RAW if not native else _OF_RAW[2:]
        shared = {name: value for name, value in self.__dict__.items() if name not in own}
        log = type(self).__new__(type(self))
        log.__dict__.update(shared)
        log.__dict__.update(question=question, _raw=self, cost_names=None)
        self.__dict__["_last_posed"] = log
        return log

    @cached_property
    def _records(self) -> NDArray[Any]:
        """The packed log; of a posed log, scaled when first used, and this is the one place where records are."""
        question, raw = self.question, self.raw._records
        records = np.empty(len(raw), dtype=record_dtype(len(question.columns)))
        for first in range(0, len(raw), packing.CHUNK):
            part, into = (array[first : first + packing.CHUNK] for array in (raw, records))
            into["pair"], into["s_next"] = part["pair"], part["s_next"]
            into["r"] = part["r"] * question.reward_slope
            into["u"] = question.utilities_of(part["u"], part["s_next"] < 0)
        return check.frozen(records)

    @cached_property
    def spreads(self) -> NDArray[Any] | None:
        """Standard deviations of rewards and utilities in the cells of a log of counts, scaled like the records."""
        question, raw = self.question, self.raw.spreads
        if raw is None:
            return None
        spreads = np.empty(len(raw), dtype=packing.spread_dtype(len(question.columns)))
        spreads["r"] = raw["r"] * question.reward_slope
        spreads["u"] = raw["u"][:, question.columns] * abs(question.slope)
        return check.frozen(spreads)

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
        target, overwrite = check.path("path", path), check.flag("overwrite", overwrite)
        storage.save(target, self.raw._facts, self.raw._arrays(), overwrite=overwrite)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the contents: two logs are the same if and only if their fingerprints are.

        It does not depend on where the log is stored, on labels, or on what is asked. It costs nothing for a log
        opened from a folder, one pass otherwise.
        """
        if self._raw is not None:
            return self._raw.fingerprint
        return storage.fingerprint(self._facts, self._arrays())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be deleted")

    def __len__(self) -> int:
        return len(self.raw.records) if self.repeats is None else int(self.table_counts.sum())

    def __repr__(self) -> str:
        low, high = self.ranges[:, 0].min(axis=0), self.ranges[:, 1].max(axis=0)
        names = self.cost_names if self.cost_names is not None else [f"u{i}" for i in range(self.n_utilities)]
        values = [f"{name} {low[k]:.4g} to {high[k]:.4g}" for k, name in enumerate(("reward", *names))]
        episodes = "" if self.starts is None else f", {len(self.starts):,} episode{'s' if len(self.starts) > 1 else ''}"
        cells = f" in {len(self.records):,} cells" if self.repeats is not None else ""
        made = " (discretised)" if self.is_discretised else ""
        return (
            f"Dataset({len(self):,} transitions{cells}{episodes}, {self.n_states:,} states{made}, "
            f"{self.n_actions:,} actions, {len(self.pairs):,} pairs; {', '.join(values)})"
        )

    @property
    def is_discretised(self) -> bool:
        """Whether a discretizer made the states of observations."""
        return self.labels is not None and self.labels.discretizer is not None

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
        starts = None
        if self.starts is not None and other.starts is not None:
            starts = np.concatenate([self.starts, other.starts + len(self)])
        s, a, s_next, r = (np.concatenate([getattr(log, name) for log in (self, other)]) for name in _ROW)
        columns = np.concatenate([self.records["u"], other.records["u"]])
        u = columns if self.cost_names is None else None
        costs = None if self.cost_names is None else dict(zip(self.cost_names, columns.T, strict=True))
        log = type(self)(
            s, a, s_next, r, u, costs=costs, n_states=self.n_states, n_actions=self.n_actions,
            terminated=s_next < 0 if (s_next < 0).any() else None, starts=starts,
        )  # fmt: skip
        initial = None
        if self._initial is not None or other._initial is not None:
            counts = [log.initial_counts for log in (self, other) if log.initial_counts is not None]
            initial = check.frozen(np.sum(counts, axis=0))
        log.__dict__.update(labels=self.labels, _notes=(*self._notes, *other._notes), _initial=initial)
        return log

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
        states = None if self.labels is None else np.array([*self.labels.states, None], dtype=object)
        actions = None if self.labels is None else np.fromiter(self.labels.actions, object, len(self.labels.actions))
        columns: dict[str, Any] = {
            "state": log.s if states is None else states[log.s],
            "action": log.a if actions is None else actions[log.a],
            "next_state": log.s_next if states is None else states[log.s_next],
            "terminated": log.terminated,
            "reward": log.r,
        }
        names = log.cost_names if log.cost_names is not None else [f"u{i}" for i in range(log.n_utilities)]
        columns |= {name: log.records["u"][:, k] for k, name in enumerate(names)}
        if log.starts is not None:
            columns["episode"] = np.searchsorted(log.starts, np.arange(len(log)), side="right") - 1
        if log.repeats is not None:
            columns["count"] = log.repeats
        return pandas.DataFrame(columns)

    def __getitem__(self, part: slice) -> Self:
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
        if self._raw is not None:
            return self._raw[part].posed(self.question)  # type: ignore[return-value]
        if self.repeats is not None:
            return self._counts_of_part(first, last, step)
        records = self.records[part]
        begins, whole = self._begins, False
        if begins is not None:
            if step != 1:
                raise ValueError(f"a log of trajectories is sliced with step 1, got {part}")
            whole = self._whole if first == 0 else bool(np.isin(self._first + first, begins))
            first, last = self._first + first, self._first + last
            begins = begins[np.searchsorted(begins, first, "right") : np.searchsorted(begins, last)]
        return self._part(_records=records, _begins=begins, _first=first, _whole=whole, repeats=None, spreads=None)

    def _part(self, **own: Any) -> Self:
        cut = type(self).__new__(type(self))
        names = ("_table", "n_states", "n_actions", "cost_names", "question", "labels", "_notes", "_initial")
        cut.__dict__.update(**{name: getattr(self, name) for name in names}, path=None, _is_part=True, **own)
        return cut

    def _counts_of_part(self, first: int, last: int, step: int) -> Self:
        """Part of a log of counts, as if its transitions stood in an order that was drawn at random once and for all.

        An interval is halved again and again, each half getting a random sample of its transitions (hypergeometric),
        until its pieces are inside or outside the part: disjoint parts have no transition in common.
        """
        if step != 1:
            raise ValueError(f"a log of counts is sliced with step 1, got {step}")
        if len(self) > 10**9:
            raise ValueError(f"a log of counts of more than 10^9 transitions cannot be divided, got {len(self)}")
        assert self.repeats is not None

        def inside(low: int, high: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
            if first <= low and high <= last:
                return counts
            if high <= first or last <= low:
                return np.zeros_like(counts)
            middle = (low + high) // 2
            rng = np.random.Generator(np.random.PCG64([low, high]))
            left = rng.multivariate_hypergeometric(counts, middle - low, method="marginals")
            return inside(low, middle, left) + inside(middle, high, counts - left)

        counts = inside(0, len(self), self.repeats)
        kept = counts > 0
        spreads = None if self.spreads is None else check.frozen(self.spreads[kept])
        own = {"_records": check.frozen(self.records[kept]), "repeats": check.frozen(counts[kept]), "spreads": spreads}
        return self._part(**own, _begins=None, _first=0, _whole=False)

    # Properties return new views of what the core reads: dtype and shape of even a read-only array can be set.

    @property
    def records(self) -> NDArray[Any]:
        """The packed log, see `record_dtype`; the pair of a record is a position in `table`."""
        return self._records[...]

    @property
    def table(self) -> NDArray[np.int64]:
        """The pairs that `pair` of a record indexes, as s * n_actions + a, ascending.

        A part of a log shares the table of the whole log, so it may not visit all of them; otherwise table = pairs.
        """
        return self._table[...]

    @cached_property
    def starts(self) -> NDArray[np.int64] | None:
        """Where trajectories begin; None if the transitions are independent."""
        if self._begins is None:
            return None
        return check.frozen(np.append(np.int64(0), self._begins - self._first))

    @cached_property
    def table_counts(self) -> NDArray[np.int64]:
        """How often each pair of `table` occurs."""
        return check.frozen(packing.count(self.raw.records, len(self.table), self.repeats))

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Visited pairs as s * n_actions + a, ascending."""
        return self.table if self.table_counts.all() else check.frozen(self.table[self.table_counts > 0])

    @cached_property
    def pair_counts(self) -> NDArray[np.int64]:
        """How often each of `pairs` occurs."""
        return self.table_counts if self.table_counts.all() else check.frozen(self.table_counts[self.table_counts > 0])

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """How often each pair occurs, divided by the number of transitions, shape (S, A): the empirical mu."""
        mu = np.zeros(self.n_states * self.n_actions)
        mu[self.pairs] = self.pair_counts / len(self)
        return mu.reshape(self.n_states, self.n_actions)

    @cached_property
    def _rank(self) -> NDArray[np.int32]:
        """Position in `pairs` of each visited pair of `table`."""
        return (np.cumsum(self.table_counts > 0) - 1).astype(np.int32)

    @property
    def n_utilities(self) -> int:
        """The number of utilities or costs."""
        if self.question is not None:
            return len(self.question.columns)
        return int(self._records.dtype["u"].shape[0])

    @property
    def kind(self) -> str:
        """Whether the transitions are "independent", one "trajectory" or several "trajectories"."""
        if self._begins is None:
            return "independent"
        return "trajectory" if len(self._begins) == 0 else "trajectories"

    @property
    def pair(self) -> NDArray[np.int32]:
        """Position of each transition's pair in `pairs`."""
        if len(self.pairs) == len(self.table):
            return self.raw.records["pair"]
        return check.frozen(self._rank[self.raw.records["pair"]])

    @cached_property
    def dead_ends(self) -> NDArray[np.int64]:
        """States that some row enters and no row leaves, ascending; where an episode ended, no state was entered."""
        entered = np.empty(0, dtype=np.int64)
        for part, _ in self.raw.parts(at_least=len(self.table)):
            entered = np.union1d(entered, packing.rank(part["s_next"].astype(np.int64) + 1, self.n_states + 1)[0] - 1)
        return check.frozen(np.setdiff1d(entered[entered >= 0], self.pairs // self.n_actions))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is remarkable about the log, for the notes of results.

        Rows of a table that were left out, constraints that cannot be broken, states that are entered and never left.
        The first kind is not known of a log that was saved and opened.
        """
        notes = self._notes
        if self.question is not None:
            low, high = self.ranges[:, 0, 1:].min(axis=0), self.ranges[:, 1, 1:].max(axis=0)
            notes = (*notes, *self.question.one_sided(low, high))
        if self._is_part or len(self.dead_ends) == 0:
            return notes
        named = [repr(self.labels.states[s]) if self.labels else str(s) for s in self.dead_ends[:5].tolist()]
        which = ", ".join(named) + (", ..." if len(self.dead_ends) > 5 else "")
        several = len(self.dead_ends) > 1
        note = (
            f"{len(self.dead_ends)} state{'s are' if several else ' is'} entered but never left ({which}): nothing is "
            "known about what follows, so the worst is assumed there; if episodes end there, say so with terminated="
        )
        return (*notes, note)

    @cached_property
    def initial_counts(self) -> NDArray[np.int64] | None:
        """How often an episode began in each state, the default of rho0; None if the log has no episodes.

        One trajectory that never ended may be a part of a life without episodes, so its first state does not count,
        nor does that of a part of the log that begins in the middle of an episode.
        """
        if self._initial is not None or self._begins is None:
            return self._initial
        first = self._begins - self._first
        if len(first) == 0 and not (self._whole and self.n_ended):
            return None
        first = np.append(np.int64(0), first) if self._whole else first
        states = self.table[self.raw.records["pair"][first]] // self.n_actions
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
    def n_ended(self) -> int:
        """How many transitions ended their episode."""
        return sum(int(((part["s_next"] < 0) * repeats).sum()) for part, repeats in self.raw.parts())

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Which records ended their episode."""
        return check.frozen(self.raw.records["s_next"] < 0)

    def parts(self, at_least: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[np.int64] | int]]:
        """The records in chunks, and how many transitions each stands for: 1, or an array in a log of counts."""
        first = 0
        for part in packing.chunks(self.records, at_least):
            yield part, 1 if self.repeats is None else self.repeats[first : first + len(part)]
            first += len(part)

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
        found = np.empty((2, 2, 1 + self.n_utilities))
        found[:, 0], found[:, 1] = np.inf, -np.inf
        for part, _ in self.parts():
            ended = part["s_next"] < 0
            for row, rows in ((0, part[~ended] if ended.any() else part), (1, part[ended])):
                if len(rows):
                    for k, values in enumerate((rows["r"], *rows["u"].T)):
                        found[row, :, k] = min(found[row, 0, k], values.min()), max(found[row, 1, k], values.max())
        return check.frozen(found)

    def _fill(
        self,
        arrays: Mapping[str, NDArray[Any]],
        counts: NDArray[np.int64],
        n_states: int,
        n_actions: int,
        names: tuple[str, ...] | None,
        path: Path | None = None,
        whole: bool = True,
    ) -> None:
        """Set all attributes; the arrays are not shared, and `storage.inspect` has checked them and made the counts."""
        owned = {name: check.frozen(array) for name, array in arrays.items()}
        starts = owned.get(STARTS)
        self.__dict__.update(
            _records=owned[RECORDS],
            _table=owned[PAIRS],
            repeats=owned.get(REPEATS),
            spreads=owned.get(SPREADS),
            _initial=owned.get(INITIAL),
            _whole=whole,
            table_counts=check.frozen(counts),
            n_states=n_states,
            n_actions=n_actions,
            cost_names=names,
            path=path,
            starts=starts,
            _begins=None if starts is None else starts[1:],
            _first=0,
        )

    @property
    def _facts(self) -> Facts:
        sizes = (self.n_states, self.n_actions)
        return Facts(*sizes, self.cost_names, self.n_utilities, self._notes, self.labels)

    def _of_counts(self) -> dict[str, NDArray[Any] | None]:
        """The arrays that only a log of counts has."""
        return {REPEATS: self.repeats, SPREADS: self.spreads, INITIAL: self._initial}

    def _arrays(self) -> dict[str, tuple[int, Iterable[NDArray[Any]]]]:
        """The arrays of the log in chunks, with table = pairs."""
        whole = {PAIRS: self.pairs, STARTS: self.starts} | self._of_counts()
        rest = {name: (len(array), [array]) for name, array in whole.items() if array is not None}
        return {RECORDS: (len(self.records), self._chunks()), **rest}

    def _chunks(self) -> Iterator[NDArray[Any]]:
        for view in packing.chunks(self.records):
            part = view
            if len(self.pairs) < len(self.table):
                part = view.copy()
                part["pair"] = self._rank[view["pair"]]
            yield part
