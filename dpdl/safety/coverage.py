"""Visit counts of a log, and pairs that a policy uses and the log lacks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.files.headers import expect_names
from dpdl.question import pose
from dpdl.safety.composites import Options
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task, make_task

#: A state that was seen less often than this is hardly shown.
FEW = 20
#: States that are hardly shown are listed if the policy spends this share of its time there, this many of them.
SHARE, MOST = 1e-3, 10


@dataclass(frozen=True, kw_only=True, repr=False)
class Coverage:
    """What a log shows, and what a policy needs of it.

    Attributes
    ----------
    n_transitions, n_episodes, n_states, n_actions, n_pairs : int
        Lengths and sizes; pairs are those that the log visits. Zero episodes if the log has none.
    n_states_seen : int
        States that some row leaves.
    counts : tuple of int
        Least, median and largest number of visits of a visited pair.
    psi : float or None
        The deviation that the policy needs: the largest ratio of its distribution of pairs to the log's, infinite if it
        uses pairs that the log does not show. None without a policy.
    effective : float or None
        How many transitions of the log count for the policy.
    unseen : float or None
        Share of the policy's discounted time at pairs that the log does not show.
    thin : tuple of (state, share, count)
        States where the policy spends a thousandth of its time or more and that the log left fewer than twenty times,
        the largest shares first.
    """

    n_transitions: int
    n_episodes: int
    n_states: int
    n_actions: int
    n_pairs: int
    n_states_seen: int
    counts: tuple[int, int, int]
    psi: float | None = None
    effective: float | None = None
    unseen: float | None = None
    thin: tuple[tuple[str, float, int], ...] = ()

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Rows of the table: what, and how much."""
        seen = f"{self.n_pairs:,} of {self.n_states * self.n_actions:,}"
        found = [
            ("transitions", f"{self.n_transitions:,}"),
            ("episodes", f"{self.n_episodes:,}" if self.n_episodes else ""),
            ("states that it leaves", f"{self.n_states_seen:,} of {self.n_states:,}"),
            ("pairs of state and action", seen),
            ("visits of such a pair", f"{self.counts[0]:,} to {self.counts[2]:,}, median {self.counts[1]:,}"),
        ]
        if self.psi is not None:
            found.append(("deviation psi that the policy needs", f"{self.psi:.3g}"))
            found.append(("transitions that count for the policy", f"{self.effective:,.0f}"))
            found.append(("its time at pairs not in the log", f"{self.unseen:.2%}"))
        return [row for row in found if row[1]]

    def lines(self) -> list[str]:
        """The coverage in lines of text."""
        lines = text.aligned(("the log", ""), self.rows)
        if self.thin:
            lines.append("states that the policy reaches and the log hardly shows (share of time, visits):")
            lines += [f"  {state}  {share:.2%}, {count}" for state, share, count in self.thin]
        return lines

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        found = text.html_table(("the log", ""), self.rows)
        if self.thin:
            rows = [(state, f"{share:.2%}", str(count)) for state, share, count in self.thin]
            found += text.html_table(("state that the log hardly shows", "share of time", "visits"), rows)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        content = asdict(self)
        return content | {"psi": "inf"} if self.psi == np.inf else content

    @classmethod
    def from_json(cls, content: Any) -> Coverage:
        """Make a coverage of what `to_json` returned."""
        expect_names("coverage", content, set(cls.__dataclass_fields__))
        psi = np.inf if content["psi"] == "inf" else content["psi"]
        lists = {"counts": tuple(content["counts"]), "thin": tuple(map(tuple, content["thin"]))}
        return cls(**{**content, **lists, "psi": psi})


def coverage(
    log: Dataset,
    policy: ArrayLike | None = None,
    *,
    gamma: float | None = None,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
) -> Coverage:
    """Say what a log shows, and what a policy needs that it does not.

    Parameters
    ----------
    log : Dataset
    policy : array_like, shape (S, A), optional
        Action probabilities in each state.
    gamma : float, optional
        Discount; needed with a policy.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.

    Examples
    --------
    >>> log = Dataset([0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 1], [[0]] * 3, n_states=2, n_actions=2)
    >>> coverage(log)
    the log
    transitions                               3
    states that it leaves                2 of 2
    pairs of state and action            2 of 4
    visits of such a pair      1 to 2, median 1
    >>> coverage(log, [[1, 0], [0, 1]], gamma=0.5, rho0=[1, 0]).psi < 3
    True
    """
    check.instance("log", log, Dataset)
    if policy is None:
        return _log_coverage(log)
    if gamma is None:
        raise TypeError("a policy needs gamma=")
    log = pose(log, gamma)
    table = check.policy_array("policy", policy, log.n_states, log.n_actions)
    return coverage_of(make_task(log, gamma, 0.05, rho0, initial_states), table)


def _log_coverage(log: Dataset, **more: Any) -> Coverage:
    counts = np.sort(log.pair_counts)
    episodes = 0 if log.initial_counts is None else int(log.initial_counts.sum())
    return Coverage(
        n_transitions=len(log),
        n_episodes=episodes,
        n_states=log.n_states,
        n_actions=log.n_actions,
        n_pairs=len(log.pairs),
        n_states_seen=len(np.unique(log.pairs // log.n_actions)),
        counts=(int(counts[0]), int(counts[(len(counts) - 1) // 2]), int(counts[-1])),
        **more,
    )


def coverage_of(task: Task, policy: np.ndarray) -> Coverage:
    """Return the coverage of a task's log for a policy."""
    log, cells = task.log, task.cells
    sample, chosen = Sample(cells, Options.build(cells, 1, composites=False), task.gamma), policy.ravel()[cells.pairs]
    value = sample.evaluate(chosen)
    share = np.zeros(log.n_states)
    share[sample.options.known] = (1 - task.gamma) * value.states
    visited, unseen = (1 - task.gamma) * value.visits, sample.lost_time(chosen, value)
    visits = np.bincount(cells.pairs // cells.n_actions, cells.pair_counts, log.n_states)
    few = np.flatnonzero((visits < FEW) & (share >= SHARE))
    few = few[np.argsort(-share[few], kind="stable")][:MOST]
    names = range(log.n_states) if log.labels is None else log.labels.states
    spread = float((visited**2 / cells.pair_counts).sum())
    return _log_coverage(
        log,
        psi=np.inf if unseen > 1e-9 else float((visited / (cells.pair_counts / cells.n_rows)).max()),
        effective=float(visited.sum()) ** 2 / spread if spread > 0 else 0.0,
        unseen=unseen,
        thin=tuple((str(names[s]), float(share[s]), int(visits[s])) for s in few),
    )
