"""Residuals of a log, and whether they depend on what happened before.

For a function V of the states, for the reward and for each cost c, let y = c + gamma V(s'), with V = 0 where the
episode ended. Under the model y, less its mean at the pair (s, a), is uncorrelated with all that happened before. For a
number h that was known before the row the statistic is a sum over pairs (s, a), with n rows each, and over two rows of
the pair from different episodes, i and j:

    T = sum_{(s, a)} 1/n sum_{i < j} (y_i - y_j)(h_i - h_j)

Rows of one episode are not compared, because what happened in row i changes h in later rows of its episode. V, the
values of a policy, and whatever else is estimated come from the other half of the episodes: on thin logs V(s') would
otherwise contain the episode's own later rows. The contributions of episodes, each multiplied by sqrt(n/(n - m)) for
its m rows at a pair, give the variance, and T over its root is standard normal under the model.

One of the histories is learned: the mean residual, on the other half, of rows with the same pair and the same pair
before. The two halves then test the same products, so their statistics are averaged and not added.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, gmres, splu

from dpdl._validation import Array
from dpdl.safety.episodes import Steps

#: The previous pair's residuals are learned on the other half: its two statistics are averaged.
_LEARNED = "previous pair"
#: Rows of the policy in question count at most this much more than the mean row.
_LARGEST_WEIGHT = 10.0
#: Prior rows at zero in the mean residual of the episode so far, and in means by previous pair or bin.
_PRIOR_ROWS, _PRIOR_CELLS = 2.0, 5.0
#: Episodes are cut into pieces, which take their place, if there are fewer than FEW; pieces have at least SHORT rows.
_FEW, _SHORT, FEWEST = 20, 10, 8
#: Actions beyond the most frequent ones are not counted one by one in "actions so far".
_ACTIONS = 64
#: Up to here a linear system is solved by factors, beyond by GMRES.
_DIRECT = 500
_BINS = 4
#: Differences of this size, relative to the numbers, are rounding.
_ROUNDING = 1e-9


class Statistic(NamedTuple):
    """A test: signal, what happened before, z, and the effective number of episodes."""

    signal: str
    history: str
    z: float
    episodes: float


def units(rows: Steps) -> NDArray[np.int64]:
    """Return the number of the episode of each row or, if there are few and long ones, of a piece of it."""
    n = len(rows.pair)
    if rows.n_episodes >= _FEW or n < _FEW * _SHORT:
        return rows.episode
    length = max(_SHORT, n // (5 * _FEW))
    return np.cumsum(rows.time % length == 0) - 1


class Model:
    """The plug-in model of some rows and the values of a policy in it.

    States that these rows do not leave share the fate of a mean row, and pairs that they do not show the value of their
    state. Any function would do for V: this one points to where a misfit would do harm.
    """

    def __init__(self, rows: Steps, part: Any, gamma: float, policy: Array | None) -> None:
        pair, after, signals = rows.pair[part], rows.next_state[part], rows.signals[:, part]
        S, K = rows.n_states, len(rows.pairs)
        state = rows.pairs // rows.n_actions
        self.n = np.bincount(pair, minlength=K).astype(np.float64)
        visits = np.bincount(state, self.n, minlength=S)
        share = np.maximum(self.n, 1e-300) / np.maximum(visits, 1e-300)[state] * (self.n > 0)
        self.behaviour = share
        if policy is not None:
            weight = np.where(self.n > 0, policy, 0.0)
            mass = np.bincount(state, weight, minlength=S)[state]
            share = np.where(mass > 0, weight / np.where(mass > 0, mass, 1), share)
        unknown = np.append(visits == 0, False)  # the last state stands for all that are not known
        goes = after >= 0
        to = np.where(unknown[after[goes]], S, after[goes])
        moves = sp.coo_array((np.ones(len(to)), (pair[goes], to)), shape=(K, S + 1)).tocsr()
        sums = np.column_stack([np.bincount(pair, signal, minlength=K) for signal in signals])
        each = sp.diags_array(1 / np.maximum(self.n, 1))
        P, c = each @ moves, sums / np.maximum(self.n, 1)[:, None]
        choose = sp.coo_array((share, (state, np.arange(K))), shape=(S, K)).tocsr()
        total = max(1.0, self.n.sum())
        self.P = sp.vstack([choose @ P, sp.csr_array(moves.sum(axis=0)[None] / total)]).tocsc()
        values = _solve(self.P, np.vstack([choose @ c, sums.sum(axis=0) / total]), gamma)
        self.V = np.where(unknown[:, None], values[-1], values)
        self.Q = np.where((self.n > 0)[:, None], c + gamma * (P @ self.V), self.V[state])
        first = rows.pair[part][rows.time[part] == 0]
        start = np.bincount(state[first], minlength=S + 1) / max(1, len(first))
        self.start = start
        self.weight = np.ones(K)
        if policy is not None:
            occupancy = _solve(self.P.T.tocsc(), start[:, None], gamma)[:-1, 0]
            weight = occupancy[state] * share / np.maximum(self.n, 1)
            mean = (weight * self.n).sum() / total
            self.weight = np.minimum(weight / mean, _LARGEST_WEIGHT) if mean > 0 else self.weight


def _solve(P: sp.csc_array, c: Array, gamma: float) -> Array:
    """Return V = c + gamma P V, column by column."""
    matrix = (sp.eye_array(P.shape[0], format="csc") - gamma * P).tocsc()
    if P.shape[0] <= _DIRECT:
        return splu(matrix).solve(np.ascontiguousarray(c))
    return np.column_stack([gmres(matrix, column, x0=column, rtol=1e-6, restart=50, maxiter=40)[0] for column in c.T])


class Half:
    """Every other episode (or piece of one), with values from the others.

    Its rows are in the order of pairs and, at a pair, of units; the rows of a unit at a pair are a cell.
    """

    def __init__(self, rows: Steps, unit: NDArray[np.int64], which: int, gamma: float) -> None:
        self.rows, self.gamma = rows, gamma
        self.rest = np.flatnonzero(unit % 2 != which)
        mine = np.flatnonzero(unit % 2 == which)
        self.n_units = int(unit[mine[-1]]) // 2 + 1
        key = rows.pair[mine] * self.n_units + unit[mine] // 2
        order = np.argsort(key, kind="stable")
        self.mine, key = mine[order], key[order]
        self.cells = np.flatnonzero(np.diff(key, prepend=-1))
        self.cell_pair, self.cell_unit = np.divmod(key[self.cells], self.n_units)
        self.pairs = np.flatnonzero(np.diff(self.cell_pair, prepend=-1))  # where pairs begin among cells
        self.n_cells = np.diff(np.append(self.pairs, len(self.cells)))
        self.n = np.diff(np.append(self.cells[self.pairs], len(key)))
        self.n_there, m = self._spread(self.n), np.diff(np.append(self.cells, len(key)))
        self.share = m / self.n_there
        self.factor = np.where(self.n_there > m, np.sqrt(self.n_there / np.maximum(self.n_there - m, 1)), 0.0)
        self.pair, self.time = rows.pair[self.mine], rows.time[self.mine]
        self.begin = rows.starts[rows.episode[self.mine]]
        before = np.where(rows.time > 0, np.roll(rows.pair, 1), -1)
        self.previous = np.unique((before + 1) * len(rows.pairs) + rows.pair, return_inverse=True)[1]
        self._take(None)
        self.fixed = {
            "actions so far": self._actions(),
            "time": self.time.astype(np.float64),
            "discount": np.power(gamma, self.time),
        }

    def of_policy(self, policy: Array) -> Half:
        """Return the half with values and weights of another policy, its probabilities at the pairs."""
        other = copy(self)
        other._take(policy)
        return other

    def _take(self, policy: Array | None) -> None:
        self.policy, self.model = policy, Model(self.rows, self.rest, self.gamma, policy)
        self.weight = self.model.weight[self.cell_pair]

    def residuals(self, signal: int, rows: NDArray[np.int64] | slice) -> Array:
        """Return y - Q for rows of the log, with values from the other half."""
        after = self.rows.next_state[rows]
        following = np.where(after >= 0, self.model.V[after, signal], 0.0)
        return self.rows.signals[signal, rows] + self.gamma * following - self.model.Q[self.rows.pair[rows], signal]

    def histories(self, signal: int) -> Iterator[tuple[str, Array]]:
        """Yield what happened before each row of this half, by name."""
        every = self.residuals(signal, slice(None))
        yield "previous residual", np.where(self.time > 0, every[self.mine - 1], 0.0)
        total = np.cumsum(every) - every
        yield "episode so far", (total[self.mine] - total[self.begin]) / (self.time + _PRIOR_ROWS)
        key = self.previous
        sums = np.bincount(key[self.rest], every[self.rest], minlength=key.max() + 1)
        counts = np.bincount(key[self.rest], minlength=len(sums))
        yield _LEARNED, (sums / (counts + _PRIOR_CELLS))[key[self.mine]]
        yield from self.fixed.items()

    def _actions(self) -> Array:
        """Return how much more often than the log's policy the episode has taken this action, over sqrt(1 + time)."""
        rows, action = self.rows, self.rows.pairs % self.rows.n_actions
        state, mine = self.rows.pairs // self.rows.n_actions, action[self.pair]
        excess = np.zeros(len(self.mine))
        counts = np.bincount(mine, minlength=rows.n_actions)
        for a in np.argsort(-counts, kind="stable")[:_ACTIONS]:
            of_state = np.bincount(state, self.model.behaviour * (action == a), minlength=rows.n_states)
            step = ((action == a) - of_state[state])[rows.pair]
            total = np.cumsum(step) - step
            chosen = mine == a
            excess[chosen] = (total[self.mine] - total[self.begin])[chosen]
        return excess / np.sqrt(1 + self.time)

    def statistic(self, y: Array, h: Array) -> tuple[float, Array]:
        """Return T for centred residuals and histories, and the contributions of the units with their factors."""
        product = y * h
        # Over rows i of the unit and j of the others, sum (y_i - y_j)(h_i - h_j)/n; every product belongs to two units.
        cross = self._sums(product) * (1 - 2 * self.share)
        cross += self.share * self._spread(np.add.reduceat(product, self.cells[self.pairs]))
        cross += 2 * self._sums(y) * self._sums(h) / self.n_there
        cross -= self.share * self._spread(np.add.reduceat(cross, self.pairs) / 2)
        cross *= self.weight
        return float(cross.sum()), _totals(self.cell_unit, cross * self.factor, self.n_units)

    def centred(self, values: Array) -> Array:
        """Return the values of the rows of this half less their means at the pair."""
        means = np.add.reduceat(values, self.cells[self.pairs]) / self.n
        return values - means.repeat(self.n)

    def _sums(self, values: Array) -> Array:
        """Return sums over cells."""
        return values if len(self.cells) == len(values) else np.add.reduceat(values, self.cells)

    def _spread(self, of_pairs: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of the pairs at their cells."""
        return of_pairs.repeat(self.n_cells)


def statistics(halves: list[Half]) -> Iterator[Statistic]:
    """Yield the tests of a policy that have anything to test."""
    rows = halves[0].rows
    for signal, name in enumerate(rows.names):
        residuals = [half.centred(half.residuals(signal, half.mine)) for half in halves]
        scale = max(float(abs(half.model.Q[:, signal]).max()) for half in halves)
        if max(float(abs(e).max()) for e in residuals) <= _ROUNDING * scale:
            continue  # the pair decides all of it
        for (history, first), (_, second) in zip(*(half.histories(signal) for half in halves), strict=True):
            known = [half.centred(h) for half, h in zip(halves, (first, second), strict=True)]
            if max(float(abs(h).max()) for h in known) <= _ROUNDING * max(float(abs(h).max()) for h in (first, second)):
                continue  # so it does of what happened before
            parts = [half.statistic(e, h) for half, e, h in zip(halves, residuals, known, strict=True)]
            squares = np.array([np.square(own).sum() for _, own in parts])
            if squares.sum() <= 0:
                continue
            T = np.array([value for value, _ in parts])
            if history == _LEARNED:
                z = (T / np.sqrt(np.where(squares > 0, squares, np.inf))).mean()
            else:
                z = T.sum() / np.sqrt(squares.sum())
            fourth = sum(float((own**4).sum()) for _, own in parts)
            effective = float(squares.sum() ** 2 / fourth)
            yield Statistic(name, history, float(z), effective)


def knowing(rows: Steps, gamma: float, halves: list[Half], name: str, history: str) -> tuple[float, float]:
    """Return a policy's discounted total by the model, and if the state also knew the history in four bins.

    The mean over the rows of a pair and bin is drawn to that of the pair by `_PRIOR_CELLS` rows of it.
    """
    signal, policy = rows.names.index(name), halves[0].policy
    h = np.empty(len(rows.pair))
    for half in halves:
        h[half.mine] = dict(half.histories(signal))[history]
    edges = np.quantile(h, np.arange(1, _BINS) / _BINS)
    place = np.searchsorted(edges, h)
    model = Model(rows, slice(None), gamma, policy)
    state = rows.pairs // rows.n_actions
    S, K, bins = rows.n_states, len(rows.pairs), _BINS + 1  # the last bin: not known, where the record stops
    after = np.where(rows.ended, -1, rows.next_state * bins + _BINS)
    goes_on = np.append(rows.time[1:] > 0, False) & ~rows.ended
    after[goes_on] = rows.next_state[goes_on] * bins + np.append(place[1:], 0)[goes_on]
    cell = rows.pair * _BINS + place
    lives = after >= 0

    def means(group: NDArray[np.int64], size: int) -> tuple[sp.csr_array, Array, Array]:
        n = np.bincount(group, minlength=size).astype(np.float64)
        moves = sp.coo_array((np.ones(lives.sum()), (group[lives], after[lives])), shape=(size, S * bins)).tocsr()
        c = np.bincount(group, rows.signals[signal], minlength=size) / np.maximum(n, 1)
        return sp.diags_array(1 / np.maximum(n, 1)) @ moves, c, n

    share = model.behaviour
    if policy is not None:
        mass = np.bincount(state, policy, minlength=S)[state]
        share = np.where(mass > 0, policy / np.where(mass > 0, mass, 1), share)
    P, c, _ = means(rows.pair, K)
    P_bin, c_bin, n_bin = means(cell, K * _BINS)
    own = n_bin / (n_bin + _PRIOR_CELLS)
    of_pair = np.repeat(np.arange(K), _BINS)

    def states(q: Array, q_bin: Array) -> Array:
        """Average the actions of the pooled pairs, and of the cells' differences from them."""
        pooled = np.repeat(np.bincount(state, share * q, minlength=S), bins)
        into = state[of_pair] * bins + np.tile(np.arange(_BINS), K)
        return pooled + _totals(into, share[of_pair] * own * (q_bin - q[of_pair]), S * bins)

    operator = LinearOperator((S * bins, S * bins), lambda v: v - gamma * states(P @ v, P_bin @ v), dtype=np.float64)
    V, _ = gmres(operator, states(c, c_bin), rtol=1e-6, restart=50, maxiter=40)
    first = rows.starts
    begin = np.bincount(state[rows.pair[first]] * bins + place[first], minlength=S * bins) / len(first)
    return float(model.start @ model.V[:, signal]), float(begin @ V)


def profiles(halves: list[Half], most: int = 20) -> dict[str, dict[str, list[list[float]]]]:
    """Return mean residuals of each signal by time in the episode and by the episode so far, with standard errors."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for signal, name in enumerate(halves[0].rows.names):
        e = np.concatenate([half.centred(half.residuals(signal, half.mine)) for half in halves])
        known = [dict(half.histories(signal)) for half in halves]
        found[name] = {}
        for history in ("time", "episode so far"):
            h = np.concatenate([each[history] for each in known])
            edges = np.unique(np.quantile(h, np.arange(1, most) / most))
            place = np.searchsorted(edges, h)
            n = np.maximum(np.bincount(place), 1)
            x, mean, square = (np.bincount(place, values) / n for values in (h, e, e * e))
            shown = np.bincount(place) > 0
            columns = (x, mean, np.sqrt(square / n))
            found[name][history] = [column[shown].tolist() for column in columns]
    return found


def _totals(group: NDArray[np.int64], values: Array, size: int) -> Array:
    """Return the sums of values by group."""
    found: Any = np.bincount(group, values, minlength=size)
    return found
