"""Visit counts of a log, and pairs that a policy uses and the log lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.safety.task import Task, make_task

#: A state that was seen less often than this is hardly shown.
FEW = 20
#: States that are hardly shown are listed if the policy spends this share of its time there, this many of them.
SHARE, MOST = 1e-3, 10


@dataclass(frozen=True, kw_only=True, repr=False)
class Coverage(text.Shown):
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
        rows = [
            ("transitions", f"{self.n_transitions:,}"),
            ("episodes", f"{self.n_episodes:,}" if self.n_episodes else ""),
            ("states with rows", f"{self.n_states_seen:,} of {self.n_states:,}"),
            ("pairs of state and action", f"{self.n_pairs:,} of {self.n_states * self.n_actions:,}"),
            ("visits of such a pair", f"{self.counts[0]:,} to {self.counts[2]:,}, median {self.counts[1]:,}"),
        ]
        if self.psi is not None:
            rows.append(("largest ratio of the policy's visits to the log's (psi)", f"{self.psi:.3g}"))
            rows.append(("transitions that count for the policy", f"{self.effective:,.0f}"))
            rows.append(("its time at pairs not in the log", f"{self.unseen:.2%}"))
        return [row for row in rows if row[1]]

    def parts(self) -> Iterator[str | text.Table]:
        """The table, and the states that are hardly shown."""
        yield ("the log", ""), self.rows
        if self.thin:
            header = ("states that the policy reaches and the log hardly shows", "share of time", "visits")
            yield header, [(state, f"{share:.2%}", str(count)) for state, share, count in self.thin]


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
    states with rows                     2 of 2
    pairs of state and action            2 of 4
    visits of such a pair      1 to 2, median 1
    >>> coverage(log, [[1, 0], [0, 1]], gamma=0.5, rho0=[1, 0]).psi < 3
    True
    """
    check.instance("log", log, Dataset)
    if policy is None:
        return coverage_of(log)
    if gamma is None:
        raise TypeError("a policy needs gamma=")
    table = check.policy_array("policy", policy, log.n_states, log.n_actions)
    return coverage_of(log, make_task(log, gamma, 0.05, rho0, initial_states), table)


def coverage_of(log: Dataset, task: Task | None = None, policy: Array | None = None) -> Coverage:
    """Return the coverage of a log, and with its task that of a policy (S, A)."""
    counts = np.sort(log.pair_counts)
    return Coverage(
        n_transitions=len(log),
        n_episodes=0 if log.initial_counts is None else int(log.initial_counts.sum()),
        n_states=log.n_states,
        n_actions=log.n_actions,
        n_pairs=len(log.pairs),
        n_states_seen=len(np.unique(log.pairs // log.n_actions)),
        counts=(int(counts[0]), int(counts[(len(counts) - 1) // 2]), int(counts[-1])),
        **({} if task is None or policy is None else _of_policy(task, policy)),
    )


def _of_policy(task: Task, policy: Array) -> dict[str, Any]:
    """What a policy needs of the log."""
    cells, sample, chosen = task.cells, task.by_action, policy.ravel()[task.cells.pairs]
    value = sample.evaluate(chosen)
    share = np.zeros(cells.n_states)
    share[sample.options.known] = (1 - task.gamma) * value.states
    visited, unseen = (1 - task.gamma) * value.visits, sample.lost_time(chosen, value)
    visits = np.bincount(cells.pairs // cells.n_actions, cells.pair_counts, cells.n_states)
    few = np.flatnonzero((visits < FEW) & (share >= SHARE))
    few = few[np.argsort(-share[few], kind="stable")][:MOST]
    spread = float((visited**2 / cells.pair_counts).sum())
    return {
        "psi": np.inf if unseen > 1e-9 else float((visited / (cells.pair_counts / cells.n_rows)).max()),
        "effective": float(visited.sum()) ** 2 / spread if spread > 0 else 0.0,
        "unseen": unseen,
        "thin": tuple((task.label(s * cells.n_actions)[0], float(share[s]), int(visits[s])) for s in few),
    }
