"""The test of a policy on rows that did not choose it: estimates, terms of their errors, Gaffke's bounds.

For a policy with values V, Q and visits nu on the model of the tested rows themselves, row i at option k errs by

    X_i = N/2 nu_k/n_k (y_i - Q_k) n_k/(n_k - 1),   y = loss + gamma V(s'),   V = 0 at ends,

and the mean of all N terms, those of both halves together, is to first order the error of the mean of both estimates.
A row that counts for an option of its own and for "as logged" has the sum of both terms. First states have terms
likewise, N/2 (V(s_0) - J)/(n_0 - 1), unless their distribution is given.

The bound adds a term for what no row shows: the largest product of an option's weight and the surprise that a row of it
may bring, by the largest that was seen or by what a step may cost if that is declared; and for first states the worst
value.

A loss that is compared with the log's own policy has the difference of both estimates and of both terms of every row,
so that a policy which does as the log did has no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from dpdl._validation import Array
from dpdl.safety.gaffke import upper_bound
from dpdl.safety.sample import Sample, Value
from dpdl.safety.task import Task


@dataclass(frozen=True, eq=False)
class Trial:
    """Policies, each tested on a sample of rows of its own; figures are the mean over these.

    Parameters
    ----------
    task : Task
    samples, policies : sequences
        The tested rows, and the policy that is tested on each.
    whole : Sample, optional
        All rows: estimates are never better than the values of the same policies on this model.
    """

    task: Task
    samples: Sequence[Sample]
    policies: Sequence[Array]
    whole: Sample | None = None

    @cached_property
    def values(self) -> list[Value]:
        """Values of the policies on their samples."""
        return [sample.evaluate(policy) for sample, policy in zip(self.samples, self.policies, strict=True)]

    @cached_property
    def in_whole(self) -> list[Value]:
        """Values of the policies on the model of all rows."""
        whole = self.samples[0] if self.whole is None else self.whole
        return [whole.evaluate(policy) for policy in self.policies]

    @cached_property
    def estimate(self) -> Array:
        """Estimated totals of the losses, (m,), less those of the log's policy where these are the limit."""
        halves = zip(self.samples, self.values, strict=True)
        mean = np.mean([self._less_log(value.J, sample.logged.J) for sample, value in halves], axis=0)
        if self.whole is None:
            return mean
        of_whole = [self._less_log(value.J, self.whole.logged.J) for value in self.in_whole]
        return np.maximum(mean, np.mean(of_whole, axis=0))

    def _less_log(self, figures: Array, logged: Array) -> Array:
        """Figures (., m) of a policy, less those of the log's policy where these are the limit."""
        return figures - np.append(False, self.task.against_log) * logged

    @cached_property
    def _terms(self) -> tuple[Array, Array, int, Array]:
        """Terms (n, m) of rows and first states, multiplicities (n,), how many are of rows, and the worst terms."""
        terms, counts, worst_row, worst_start = [], [], [], []
        for sample, value in zip(self.samples, self.values, strict=True):
            used = sample.cells.count > 0
            terms.append(self._of_cells(sample, value)[used])
            counts.append(sample.cells.count[used].astype(float))
            worst_row.append(self._worst(sample, value).max(axis=0, initial=0.0))
        n_rows = sum(len(part) for part in counts)
        for sample, value in zip(self.samples, self.values, strict=True):
            if sample.cells.starts is None:
                continue
            first, V = np.flatnonzero(sample.cells.starts), self._less_log(value.V, sample.logged.V)
            J = self._less_log(value.J, sample.logged.J)
            of_all = np.tile(self._less_log(sample.unknown, sample.unknown), (sample.cells.n_states, 1))
            of_all[sample.options.known] = V
            share = 1 / max(float(sample.cells.starts.sum()) - 1, 0.5)
            terms.append(share * (of_all[first] - J))
            counts.append(sample.cells.starts[first].astype(float))
            highest = np.maximum(V.max(axis=0), of_all[first].max(axis=0, initial=-np.inf))
            worst_start.append(share * (highest - J))
        worst = [np.max(part, axis=0) for part in (worst_row, worst_start) if part]
        total = np.concatenate(counts)
        scale = total.sum() / len(self.samples)
        return scale * np.concatenate(terms), total, n_rows, scale * np.array(worst)

    def _worst(self, sample: Sample, value: Value) -> Array:
        """Products of weight and surprise by option, (K, m)."""
        weight, surprise = (value.visits / sample.freedom)[:, None], self._surprise(sample, value)
        worst = weight * surprise
        if self.task.against_log.any():
            # Of the difference: weights differ, and so do surprises; the log's policy may have better ones, too.
            other = (sample.logged.visits / sample.freedom)[:, None]
            of_log = np.maximum(self._surprise(sample, sample.logged), sample.surprise(sample.logged, -1.0))
            most = np.maximum(surprise, of_log)
            move = abs(value.Q - sample.logged.Q) + sample.gamma * abs(value.V - sample.logged.V).max(axis=0)
            apart = abs(weight - other) * most + np.minimum(weight, other) * move
            worst = np.where(np.append(False, self.task.against_log), apart, worst)
        return worst

    def _surprise(self, sample: Sample, value: Value) -> Array:
        """The largest residuals that rows of options may have, (K, m): by the largest seen, or as declared."""
        surprise = sample.surprise(value)
        for i in np.flatnonzero(~np.isnan(self.task.cost_max)):
            after = max(0.0, float(value.V[:, 1 + i].max()), float(sample.unknown[1 + i]))
            surprise[:, 1 + i] = self.task.cost_max[i] + sample.gamma * after - value.Q[:, 1 + i]
        return surprise

    @cached_property
    def error(self) -> Array:
        """Standard errors of the estimates, (m,)."""
        terms, counts, _, _ = self._terms
        return np.sqrt(counts @ terms**2) / counts.sum()

    def width(self, i: int, delta: float, worst: bool = True) -> float:
        """Distance between the estimate of loss `i` and its upper bound at level delta, with or without worst terms."""
        terms, counts, _, extra = self._terms
        values = np.append(terms[:, i], extra[:, i] if worst else [])
        return max(0.0, upper_bound(values, np.append(counts, np.ones(len(extra) if worst else 0)), delta))

    def bound(self, i: int, delta: float) -> float:
        """Upper confidence bound of the total of loss `i`."""
        return float(self.estimate[i]) + self.width(i, delta)

    def parts(self, i: int, delta: float) -> dict[str, float]:
        """The width of a bound by what it is from, about: noise of rows and of first states, and the worst terms."""
        terms, counts, n_rows, extra = self._terms
        z, n, share = -float(ndtri(delta)), counts.sum(), counts * terms[:, i] ** 2
        noise, first = float(share[:n_rows].sum()), float(share[n_rows:].sum())
        spread = z * np.sqrt(noise + first) / n
        total = max(noise + first, np.finfo(float).tiny)
        worst = np.append(extra[:, i], 0.0)[:2] * -np.log(delta) / n
        return {
            "noise": float(spread * noise / total),
            "first states": float(spread * first / total + worst[1]),
            "worst row": float(worst[0]),
        }

    def by_pair(self, i: int, worst: bool) -> Array:
        """Parts of the squared error of loss `i`, or the largest of the worst terms, by pair of the log."""
        parts = np.zeros(len(self.samples[0].cells.pairs))
        for sample, value in zip(self.samples, self.values, strict=True):
            if worst:
                term = self._worst(sample, value)[:, i]
                parts = np.maximum(parts, np.where(term >= 0.5 * term.max(), term, 0.0) @ sample.options.share)
            else:
                square = sample.cells.count * self._of_cells(sample, value)[:, i] ** 2
                parts += np.bincount(sample.cells.place, square, len(parts))
        return parts

    def _of_cells(self, sample: Sample, value: Value) -> Array:
        """Terms of the cells, (C, m), before scaling, less those of the log's policy where these are the limit."""
        x = _row_terms(sample, value)
        return self._less_log(x, _row_terms(sample, sample.logged)) if self.task.against_log.any() else x


def _row_terms(sample: Sample, value: Value) -> Array:
    """Terms of the cells, (C, m), before scaling."""
    weight, x = value.visits / sample.freedom, np.zeros(sample.cells.values.shape)
    for cell, option, residual in sample.residuals(value):
        x[cell] += weight[option, None] * residual
    return x
