"""A policy to act with: probabilities with the labels of states and actions, and the evidence for them in the log.

A saved policy is one JSON file (`dpdl.files.saved`) with ``labels`` and ``question`` (null if not known),
``probabilities`` (a list of rows) and ``evidence`` (null, or the fields of `Evidence` as lists).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, NDArray

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.labels import Labels, kind_of
from dpdl.files.headers import expect_names
from dpdl.files.saved import Saved
from dpdl.policy import draw
from dpdl.question import Question


class Evidence(NamedTuple):
    """Counts of the pairs that a log visits (s * n_actions + a, ascending), and what each changes.

    `changes` has by name how much an action, with the policy afterwards, changes the discounted reward and each cost,
    in the caller's units; "advantage" of a learned policy is reward and priced constraints together.
    """

    pairs: NDArray[np.int64]
    counts: NDArray[np.int64]
    changes: dict[str, Array]


class Policy(NDArrayOperatorsMixin, Saved):
    """One distribution over actions per state, with labels of states and actions.

    It can be used like the (S, A) array of its probabilities: indexed, compared, computed with, and it has the methods
    of a read-only array.

    Parameters
    ----------
    probabilities : array_like, shape (S, A)
        One distribution per row.
    labels : Labels, optional
        Names of states and actions.
    question : Question, optional
        Units of the log that the policy was learned from.
    evidence : Evidence, or callable that returns one, optional
        Counts and advantages of the log; a callable is called when they are first needed.

    Examples
    --------
    >>> from dpdl.data.labels import Labels
    >>> policy = Policy([[1.0, 0.0], [0.25, 0.75]], Labels(["home", "ward"], ["rest", "drug"]))
    >>> policy.act("home"), policy[1, 1], policy.shape
    ('rest', np.float64(0.75), (2, 2))
    >>> policy.explain("ward")
    state 'ward'
      action  probability
      'drug'         0.75
      'rest'         0.25
    """

    FORMAT, VERSION = "dpdl policy", 4
    probabilities: Array
    labels: Labels | None
    question: Question | None

    def __init__(
        self,
        probabilities: ArrayLike,
        labels: Labels | None = None,
        question: Question | None = None,
        evidence: Evidence | Callable[[], Evidence] | None = None,
    ) -> None:
        table = check.numbers_array("probabilities", probabilities, shape=(None, None))
        if table.size == 0:
            raise ValueError(f"probabilities must have at least one state and one action, got shape {table.shape}")
        table = check.policy_array("probabilities", table, *table.shape)
        if labels is not None:
            check.instance("labels", labels, Labels)
            sizes = len(labels.states), len(labels.actions)
            if sizes != table.shape:
                raise ValueError(f"labels are for {sizes[0]} states and {sizes[1]} actions, got shape {table.shape}")
        if question is not None:
            check.instance("question", question, Question)
        self.__dict__.update(probabilities=check.frozen(table), labels=labels, question=question, _source=evidence)

    @cached_property
    def evidence(self) -> Evidence | None:
        """Counts and advantages of the pairs that the log visits; None if the policy did not come from a log."""
        return self._source() if callable(self._source) else self._source

    @property
    def visits(self) -> NDArray[Any] | None:
        """How often the log shows each state; None if the policy did not come from a log."""
        if self.evidence is None:
            return None
        n_states, n_actions = self.probabilities.shape
        return np.bincount(self.evidence.pairs // n_actions, self.evidence.counts, n_states)

    # The array.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.probabilities, dtype=dtype) if copy else np.asarray(self.probabilities, dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        def plain(values: Any) -> tuple[Any, ...]:
            return tuple(value.probabilities if isinstance(value, Policy) else value for value in values)

        if "out" in options:  # read-only, so that NumPy refuses it
            options["out"] = plain(options["out"])
        return getattr(ufunc, method)(*plain(inputs), **options)

    def __getitem__(self, where: Any) -> Any:
        return self.probabilities[where]

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the array: shape, sum, round, tolist, ..."""
        if name.startswith("_") or "probabilities" not in self.__dict__:
            raise AttributeError(f"a Policy has no attribute {name!r}")
        return getattr(self.probabilities, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Policy is read-only, {name} cannot be set")

    def __repr__(self) -> str:
        n_states, n_actions = self.probabilities.shape
        return f"Policy({n_states} states, {n_actions} actions{'' if self.labels is None else ', with labels'})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the evidence only if it has been computed, because what computes it holds the log."""
        known = self.__dict__.get("evidence", None if callable(self._source) else self._source)
        return type(self), (self.probabilities.copy(), self.labels, self.question, known)

    # Acting.

    def index(self, state: Any) -> int:
        """Index of a state given by its label or index, or by an observation if the labels have a discretizer.

        Labels come first: a whole number is an index only if the policy has no labels, or none that are numbers. An
        observation is a list or array of numbers.
        """
        rows, many = self._indices(state)
        if many:
            raise ValueError(f"state must be a single state, got {state!r:.200}")
        return int(rows[0])

    def _indices(self, state: Any) -> tuple[NDArray[np.int64], bool]:
        """Indices of a state or of many, and whether they are many."""
        many = isinstance(state, list) or (hasattr(state, "__array__") and np.ndim(state) > 0)
        last, labels = len(self) - 1, self.labels
        if labels is None:
            given = state if many else [check.whole("state", state, at_most=last)]
            return check.indices("state", given, len(self), dtype=np.int64), many
        if many and labels.discretizer is not None:
            return labels.observed(state)
        numbered = kind_of(labels.states[0]) in ("number", "bool")
        rows = [
            check.whole("state", label, at_most=last)
            if isinstance(label, (int, np.integer)) and not numbered
            else labels.state(label)
            for label in (state if many else [state])
        ]
        return np.array(rows, dtype=np.int64), many

    def act(self, state: Any, rng: np.random.Generator | int | None = None) -> Any:
        """Draw an action in a state, or one in each of many states; actions of probability zero are never drawn.

        Parameters
        ----------
        state : label or index, or a list or array of them
            As for `index`. A tuple is one label. If the labels have a discretizer, a list or array is an observation,
            shape (d,), or several, shape (n, d).
        rng : None, int or numpy.random.Generator, optional
            One uniform number is consumed per state, in order.

        Returns
        -------
        label or int, or array of them
            The action, by its label if there are labels.

        Examples
        --------
        >>> Policy([[1.0, 0.0], [0.0, 1.0]]).act([0, 1, 1])
        array([0, 1, 1])
        """
        rows, many = self._indices(state)
        actions = draw(self._cumulative, rows, check.generator(rng))
        if self.labels is not None:
            actions = self._labels_of_actions[actions]
        return actions if many else actions[0].item() if isinstance(actions[0], np.generic) else actions[0]

    @cached_property
    def _cumulative(self) -> Array:
        return self.probabilities.cumsum(axis=1)

    @cached_property
    def _labels_of_actions(self) -> NDArray[Any]:
        assert self.labels is not None
        labels = np.fromiter(self.labels.actions, dtype=object, count=len(self.labels.actions))
        return np.array(list(labels)) if kind_of(labels[0]) in ("number", "bool") else labels

    def _names(self) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
        if self.labels is None:
            return tuple(map(range, self.probabilities.shape))  # type: ignore[return-value]
        return self.labels.states, self.labels.actions

    def explain(self, state: Any) -> Explanation:
        """Return what the policy does in a state, given as for `index`, and what the log says about each action."""
        row = self.index(state)
        states, actions = self._names()
        known, n_actions = self.evidence, len(actions)
        if known is None:
            return Explanation(states[row], tuple(actions), self.probabilities[row].copy())
        here = slice(*np.searchsorted(known.pairs, [row * n_actions, (row + 1) * n_actions]))
        where = known.pairs[here] - row * n_actions

        def spread(values: NDArray[Any], elsewhere: float = np.nan) -> NDArray[Any]:
            table = np.full(n_actions, elsewhere, dtype=values.dtype)
            table[where] = values[here]
            return table

        changes = {name: spread(values) for name, values in known.changes.items()}
        counts = spread(known.counts, 0)
        return Explanation(states[row], tuple(actions), self.probabilities[row].copy(), counts, changes)

    def aligned_with(self, log: Dataset) -> Policy:
        """Return the policy with the states and actions of a log in the log's order, found by their labels.

        A ValueError names a state of the log that the policy does not know, or an action of the policy that the log
        never shows.
        """
        n_states, n_actions = self.shape
        if self.labels is None or log.labels is None:
            if (n_states, n_actions) != (log.n_states, log.n_actions):
                raise ValueError(
                    f"the policy is for {n_states} states and {n_actions} actions, and the log has {log.n_states} and "
                    f"{log.n_actions}"
                )
            return self
        rows = [self.labels.state(state) for state in log.labels.states]
        places = {label: k for k, label in enumerate(log.labels.actions)}
        table = np.zeros((log.n_states, log.n_actions))
        for action, shares in zip(self.labels.actions, self.probabilities[rows].T, strict=True):
            if action in places:
                table[:, places[action]] = shares
            elif shares.any():
                state = log.labels.states[int(np.argmax(shares > 0))]
                raise ValueError(f"in state {state!r} the policy takes {action!r}, which the log never shows")
        return Policy(table, log.labels, self.question)

    def compare(self, other: ArrayLike) -> Comparison:
        """Compare with another policy on the same states and actions, state by state.

        Examples
        --------
        >>> Policy([[1.0, 0.0], [0.5, 0.5]]).compare([[1.0, 0.0], [0.0, 1.0]])
        1 of 2 states differ
        state  difference   this policy   other
        1             50%  0 50%, 1 50%  1 100%
        """
        table = check.policy_array("other", np.asarray(other), *self.shape)
        return Comparison(self, table, 0.5 * abs(table - self.probabilities).sum(axis=1))

    # Files.

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file, for `from_json`; the evidence is part of it."""
        known: Any = self.evidence
        if known is not None:
            changes = {name: values.tolist() for name, values in known.changes.items()}
            known = {"pairs": known.pairs.tolist(), "counts": known.counts.tolist(), "changes": changes}
        return {
            "labels": None if self.labels is None else self.labels.to_json(),
            "question": None if self.question is None else self.question.to_json(),
            "probabilities": self.probabilities.tolist(),
            "evidence": known,
        }

    @classmethod
    def from_json(cls, content: Any) -> Policy:
        """Make the policy of what `to_json` returned.

        Examples
        --------
        >>> Policy.from_json(Policy([[0.1, 0.9]]).to_json()).tolist()
        [[0.1, 0.9]]
        """
        expect_names("the policy", content, {"labels", "question", "probabilities", "evidence"})
        labels, question, known = content["labels"], content["question"], content["evidence"]
        if known is not None:
            expect_names("evidence", known, set(Evidence._fields))
            changes = {name: np.array(values, dtype=np.float64) for name, values in known["changes"].items()}
            pairs, counts = (np.array(known[name], dtype=np.int64) for name in ("pairs", "counts"))
            known = Evidence(pairs, counts, changes)
        return cls(
            content["probabilities"],
            None if labels is None else Labels.from_json(labels),
            None if question is None else Question.from_json(question),
            known,
        )


@dataclass(frozen=True, repr=False)
class Explanation:
    """The actions of a policy in a state, with their counts and advantages in the log.

    `counts` is None if the policy did not come from a log. `changes` are as in `Evidence`, and NaN where the log does
    not show the action.
    """

    state: Hashable
    actions: tuple[Hashable, ...]
    probabilities: Array
    counts: NDArray[np.int64] | None = None
    changes: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a table, the most probable action first."""
        columns = {"action": map(repr, self.actions), "probability": (f"{p:.3g}" for p in self.probabilities)}
        if self.counts is not None:
            columns["seen"] = (f"{n:,}" for n in self.counts)
        for name, values in self.changes.items():
            columns[name] = ("not known" if np.isnan(x) else f"{x:+.3g}" for x in values + 0.0)
        rows = list(zip(*columns.values(), strict=True))
        order = np.argsort(-self.probabilities, kind="stable")
        lines = text.aligned(tuple(columns), [rows[k] for k in order])
        rest = "; signed: what taking it once changes in the discounted totals of the policy" if self.changes else ""
        return "\n".join([f"state {self.state!r}{rest}", *(f"  {line}" for line in lines)])


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """Where two policies differ; `Policy.compare` makes one.

    `difference` is the probability that the two act differently in a state, at best (total variation distance).
    """

    policy: Policy
    other: Array
    difference: Array

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The states that differ: state, visits, difference, and what either does; those that matter most first."""
        visits = self.policy.visits
        weight = self.difference * (1 if visits is None else visits)
        order = [k for k in np.argsort(-weight, kind="stable") if self.difference[k] > 1e-9]
        states, actions = self.policy._names()

        def shown(row: Array) -> str:
            return ", ".join(f"{actions[a]} {row[a]:.0%}" for a in np.argsort(-row, kind="stable") if row[a] >= 0.005)

        counts = [""] * len(self.difference) if visits is None else [f"{n:,.0f}" for n in visits]
        return [
            (str(states[k]), counts[k], f"{self.difference[k]:.0%}", shown(self.policy[k]), shown(self.other[k]))
            for k in order
        ]

    def __repr__(self) -> str:
        rows = self.rows
        lines = [f"{len(rows)} of {len(self.difference)} states differ"]
        shown = text.aligned(("state", "visits", "difference", "this policy", "other"), rows[:20]) if rows else []
        more = [f"and {len(rows) - 20:,} more"] if len(rows) > 20 else []
        return "\n".join(lines + shown + more)


def evidence(log: Dataset, gamma: float, values: Mapping[str, tuple[Callable[[Any], Array], Array]]) -> Evidence:
    """Return counts of the pairs of a log, and the mean of gain + gamma V(s') - V(s) over the rows of each.

    In one pass for each name, with memory proportional to the pairs that the log visits. `values` has a function that
    takes records to gains, and V, by name.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 0], [0, 1], [1.0, 0.0], [[0.0], [-1.0]], n_states=2, n_actions=1)
    >>> evidence(log, 0.5, {"reward": (lambda rows: rows["r"], np.array([1.0, 2.0]))}).changes["reward"].tolist()
    [0.25]
    """
    changes, visited = {}, log.table_counts > 0
    for name, (gains, V) in values.items():
        totals, following = np.zeros(len(visited)), np.append(V, 0.0)  # -1: nothing follows
        for part, repeats in log.parts(at_least=len(totals)):
            gain = gains(part) + gamma * following[part["s_next"]]
            totals += np.bincount(part["pair"], weights=gain * repeats, minlength=len(totals))
        change = totals[visited] / log.pair_counts - V[log.pairs // log.n_actions]
        changes[name] = np.where(abs(change) > 1e-12 * abs(V).max(), change, 0.0)  # the rest is rounding
    return Evidence(log.pairs, log.pair_counts, changes)
