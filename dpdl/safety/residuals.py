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
from scipy.sparse.linalg import gmres, splu

from dpdl._validation import Array
from dpdl.safety.episodes import Ints, Steps

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
#: Linear systems up to here are solved by dense factors; up to the second size, if rows have few entries, by sparse
#: ones; larger ones by GMRES.
_DENSE, _SPARSE, _FEW_ENTRIES = 300, 1500, 5
#: Bins of the history that `knowing` adds to the state; bins of profiles, and the most rows that these are made of.
_BINS, _PLACES, _MOST_ROWS = 4, 20, 200_000
#: Differences of this size, relative to the numbers, are rounding.
_ROUNDING = 1e-9


def units(rows: Steps) -> Ints:
    """Return the number of the episode of each row or, if there are few and long ones, of a piece of it."""
    n = len(rows.pair)
    if len(rows.starts) >= _FEW or n < _FEW * _SHORT:
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
        state, S, K = rows.state, rows.n_states, len(rows.pairs)
        n = np.bincount(pair, minlength=K).astype(np.float64)
        visits = np.bincount(state, n, minlength=S)
        share = n / np.maximum(visits, 1)[state]
        self.behaviour = share
        if policy is not None:
            share = _among(np.where(n > 0, policy, 0.0), state, share)
        unknown = np.append(visits == 0, True)  # the last state stands for all that are not known
        to = np.where(unknown, S, np.arange(S + 1))[after]
        goes, total = after >= 0, max(1, len(pair))
        each = (share / np.maximum(n, 1))[pair]
        fate = np.bincount(to[goes], minlength=S + 1) / total
        P = _matrix(state[pair][goes], to[goes], each[goes], S + 1, fate)
        sums = np.array([np.bincount(pair, signal, minlength=K) for signal in signals]).T
        c = np.zeros((S + 1, len(signals)))
        np.add.at(c, state, sums * (share / np.maximum(n, 1))[:, None])
        c[S] = sums.sum(axis=0) / total
        values = _solve(P, c, gamma)
        #: Values of states; that of index -1, of an episode that ended, is zero.
        self.V = np.vstack([np.where(unknown[:, None], values[-1], values), 0 * values[-1]])
        follows = np.array([np.bincount(pair, v[after], minlength=K) for v in self.V.T]).T
        self.Q = np.where((n > 0)[:, None], (sums + gamma * follows) / np.maximum(n, 1)[:, None], self.V[state])
        first = pair[rows.time[part] == 0]
        start = np.bincount(state[first], minlength=S + 1) / max(1, len(first))
        self.totals = start @ self.V[:-1]
        self.weight = np.ones(K)
        if policy is not None:
            weight = _solve(P, start[:, None], gamma, transposed=True)[state, 0] * share / np.maximum(n, 1)
            mean = (weight * n).sum() / total
            self.weight = np.minimum(weight / mean, _LARGEST_WEIGHT) if mean > 0 else self.weight


def _among(weight: Array, state: Ints, otherwise: Array) -> Array:
    """Return the weights of pairs divided by their sums over the state, or the other shares where these are zero."""
    mass = np.bincount(state, weight)[state]
    return np.where(mass > 0, weight / np.where(mass > 0, mass, 1), otherwise)


def _matrix(row: Ints, column: Ints, weight: Array, size: int, last: Array) -> Any:
    """Return sums of weights by row and column, with a last row: dense if small."""
    if size <= _DENSE:
        P = np.bincount(row * size + column, weight, minlength=size * size).reshape(size, size)
        P[-1] = last
        return P
    row, column = np.append(row, np.full(size, size - 1)), np.append(column, np.arange(size))
    return sp.coo_array((np.append(weight, last), (row, column)), shape=(size, size)).tocsr()


def _solve(P: Any, c: Array, gamma: float, *, transposed: bool = False) -> Array:
    """Return V = c + gamma P V, column by column."""
    size, dense = P.shape[0], isinstance(P, np.ndarray)
    matrix = (np.eye(size) if dense else sp.eye_array(size, format="csr")) - gamma * P
    matrix = matrix.T if transposed else matrix
    if dense:
        return np.linalg.solve(matrix, c)
    if size <= _SPARSE and matrix.nnz <= _FEW_ENTRIES * size:
        return splu(matrix.tocsc()).solve(np.ascontiguousarray(c))
    return np.column_stack([gmres(matrix, column, x0=column, rtol=1e-6, restart=50, maxiter=40)[0] for column in c.T])


def _order(keys: Ints, size: int) -> Ints:
    """Return the stable order of integers below `size`; NumPy sorts short ones by counting."""
    return np.argsort(keys.astype(np.min_scalar_type(size)), kind="stable")


class Centred(NamedTuple):
    """Values of the rows of a half, these less their means at the pair, and sums of the latter over cells."""

    values: Array
    rest: Array
    sums: Array


class Half:
    """Every other episode (or piece of one), with values from the others.

    Its rows are in the order of pairs and, at a pair, of units; the rows of a unit at a pair are a cell.
    """

    def __init__(self, rows: Steps, unit: Ints, by_pair: Ints, previous: Ints, which: int, gamma: float) -> None:
        self.rows, self.gamma = rows, gamma
        self.rest = np.flatnonzero(unit % 2 != which)
        self.mine = by_pair[unit[by_pair] % 2 == which]
        pair, unit = rows.pair[self.mine], unit[self.mine] // 2
        new = np.diff(pair, prepend=-1) != 0
        self.cells = np.flatnonzero(new | (np.diff(unit, prepend=-1) != 0))
        self.cell_pair, self.cell_unit = pair[self.cells], unit[self.cells]
        self.pairs = np.flatnonzero(new[self.cells])  # where pairs begin among cells
        self.first = self.cells[self.pairs]
        self.n, m = np.diff(self.first, append=len(new)), np.diff(self.cells, append=len(new))
        self.n_cells = np.diff(self.pairs, append=len(self.cells))
        n = self.n.repeat(self.n_cells)
        self.share, self.rest_of_pair, self.twice = m / n, 1 - 2 * m / n, 2 / n
        self.factor = np.where(n > m, np.sqrt(n / np.maximum(n - m, 1)), 0.0)
        self.key, there = previous[self.mine], previous[self.rest]
        self.there, self.shrink = there, 1 / (np.bincount(there, minlength=previous.max() + 1) + _PRIOR_CELLS)
        self._take(None)
        fixed = {"actions so far": self._actions(), "time": rows.time, "discount": np.power(gamma, rows.time)}
        self.fixed = {name: self.centred(h[self.mine]) for name, h in fixed.items()}

    def of_policy(self, policy: Array) -> Half:
        """Return the half with values and weights of another policy, its probabilities at the pairs."""
        other = copy(self)
        other._take(policy)
        return other

    def _take(self, policy: Array | None) -> None:
        self.policy, self.model = policy, Model(self.rows, self.rest, self.gamma, policy)
        self.weighted = self.factor * self.model.weight[self.cell_pair]

    def residuals(self, signal: int) -> Array:
        """Return y - Q for all rows of the log, with values from the other half."""
        rows, V, Q = self.rows, self.model.V[:, signal], self.model.Q[:, signal]
        return rows.signals[signal] + self.gamma * V[rows.next_state] - Q[rows.pair]

    def histories(self, residuals: Array) -> Iterator[tuple[str, Centred]]:
        """Yield what happened before each row of this half, by name."""
        rows = self.rows
        total = np.append(0.0, residuals[:-1])
        total[rows.starts] = 0.0
        yield "previous residual", self.centred(total[self.mine])
        np.cumsum(total, out=total)
        total -= total[rows.starts].repeat(np.diff(rows.starts, append=len(total)))
        total /= rows.time + _PRIOR_ROWS
        yield "episode so far", self.centred(total[self.mine])
        sums = np.bincount(self.there, residuals[self.rest], minlength=len(self.shrink))
        yield _LEARNED, self.centred((sums * self.shrink)[self.key])
        yield from self.fixed.items()

    def _actions(self) -> Array:
        """Return how much more often than the log's policy the episode has taken this action, over sqrt(1 + time)."""
        rows, excess = self.rows, np.zeros(len(self.rows.pair))
        action = rows.action[rows.pair]
        for a in np.argsort(-np.bincount(action), kind="stable")[:_ACTIONS]:
            likely = np.bincount(rows.state, self.model.behaviour * (rows.action == a))
            expected = np.cumsum(np.append(0.0, likely[rows.state][rows.pair]))
            taken = np.flatnonzero(action == a)
            excess[taken] = np.arange(len(taken)) - expected[taken]
            excess[taken] -= (np.searchsorted(taken, rows.starts) - expected[rows.starts])[rows.episode[taken]]
        return excess / np.sqrt(1 + rows.time)

    def centred(self, values: Array) -> Centred:
        """Centre the values of the rows of this half."""
        means = np.add.reduceat(values, self.first) / self.n
        rest = values - means.repeat(self.n)
        return Centred(values, rest, rest if len(self.cells) == len(rest) else np.add.reduceat(rest, self.cells))

    def statistic(self, y: Centred, h: Centred) -> tuple[float, Array]:
        """Return T, and the contributions of the units with their factors."""
        product = y.rest * h.rest
        product = product if len(self.cells) == len(product) else np.add.reduceat(product, self.cells)
        # Over rows i of the unit and j of the others, sum (y_i - y_j)(h_i - h_j)/n; every product belongs to two units.
        cross = product * self.rest_of_pair + y.sums * h.sums * self.twice
        at_pair = np.add.reduceat(product, self.pairs)
        both = np.add.reduceat(cross, self.pairs) + at_pair
        cross += self.share * (at_pair - both / 2).repeat(self.n_cells)
        T = (both / 2) @ self.model.weight[self.cell_pair[self.pairs]]
        by_unit: Any = np.bincount(self.cell_unit, cross * self.weighted)
        return float(T), by_unit


def both_halves(rows: Steps, unit: Ints, gamma: float) -> list[Half]:
    """Return the two halves of a log, with values of the policy that made it."""
    K = len(rows.pairs)
    by_pair = _order(rows.pair, K)
    before = np.append(0, rows.pair[:-1] + 1)
    before[rows.starts] = 0
    order = _order(before, K + 1)
    order = order[_order(rows.pair[order], K)]
    new = (np.diff(before[order], prepend=-1) != 0) | (np.diff(rows.pair[order], prepend=-1) != 0)
    previous = np.empty(len(order), dtype=np.int64)
    previous[order] = np.cumsum(new) - 1
    return [Half(rows, unit, by_pair, previous, which, gamma) for which in (0, 1)]


def statistics(halves: list[Half], profiles: dict[str, Any] | None = None) -> Iterator[tuple[str, str, float, float]]:
    """Yield signal, history, z and the effective number of episodes of all that can be tested for a policy.

    Profiles, if asked for, are filled: mean residuals of each signal by time and by the episode so far.
    """
    for signal, name in enumerate(halves[0].rows.names):
        every = [half.residuals(signal) for half in halves]
        residuals = [half.centred(e[half.mine]) for half, e in zip(halves, every, strict=True)]
        scale = _ROUNDING * max(float(abs(half.model.Q[:, signal]).max()) for half in halves)
        if max(abs(e.rest).max() for e in residuals) <= scale:
            continue  # the pair decides all of it
        for (history, first), (_, second) in zip(*map(Half.histories, halves, every), strict=True):
            known = [first, second]
            if profiles is not None and history in ("time", "episode so far"):
                profiles.setdefault(name, {})[history] = _profile(known, residuals)
            T, by_unit = zip(*map(Half.statistic, halves, residuals, known), strict=True)
            sizes = np.array([abs(part).max() for part in by_unit])
            compared = sizes > [scale * abs(h.values).max() for h in known]
            if not compared.any():
                continue  # the pair decides what happened before, or no two episodes can be compared
            parts = [part / sizes.max() for part in by_unit]
            squares = np.array([part @ part for part in parts]) * compared
            T = T / sizes.max() * compared
            if history == _LEARNED:
                z = np.mean(T / np.sqrt(np.where(compared, squares, 1.0)))
            else:
                z = T.sum() / np.sqrt(squares.sum())
            yield name, history, float(z), float(squares.sum() ** 2 / sum((part**4).sum() for part in parts))


def _profile(known: list[Centred], residuals: list[Centred]) -> list[list[float]]:
    """Return means of the history and of residuals, and the standard errors of these, by bin of the history."""
    every = 1 + sum(len(h.rest) for h in known) // _MOST_ROWS
    h = np.concatenate([part.values[::every] for part in known])
    e = np.concatenate([part.rest[::every] for part in residuals])
    place = np.searchsorted(np.unique(np.quantile(h, np.arange(1, _PLACES) / _PLACES)), h)
    n = np.bincount(place)
    x, mean, square = (np.bincount(place, values)[n > 0] / n[n > 0] for values in (h, e, e * e))
    return [x.tolist(), mean.tolist(), np.sqrt(square / n[n > 0]).tolist()]


def knowing(halves: list[Half], model: Model, name: str, history: str) -> tuple[float, float]:
    """Return a policy's discounted total by the model of all rows, and if the state also knew the history in four bins.

    The mean over the rows of a pair and bin is drawn to that of the pair by `_PRIOR_CELLS` rows of it. A fifth bin,
    which no row is in, stands for not known: where the record stops.
    """
    rows, gamma, policy = halves[0].rows, halves[0].gamma, halves[0].policy
    signal, bins = rows.names.index(name), _BINS + 1
    h = np.empty(len(rows.pair))
    for half in halves:
        h[half.mine] = dict(half.histories(half.residuals(signal)))[history].values
    place = np.searchsorted(np.quantile(h, np.arange(1, _BINS) / _BINS), h)
    following = np.append(place[1:], _BINS)
    following[np.append(rows.starts[1:], len(h)) - 1] = _BINS
    S, K, lives = rows.n_states, len(rows.pairs), rows.next_state >= 0
    cell, after = rows.pair * bins + place, rows.next_state * bins + following
    size, shape = K * bins, (K * bins, (S + 1) * bins)
    own = np.bincount(cell, minlength=size)
    draw = _PRIOR_CELLS / own.reshape(K, bins).sum(axis=1).repeat(bins)
    moves = sp.coo_array((np.ones(lives.sum()), (cell[lives], after[lives])), shape=shape).tocsr()
    sums = np.bincount(cell, rows.signals[signal], minlength=size)
    pool = sp.kron(sp.eye_array(K), np.ones((bins, bins)), format="csr")
    scale = 1 / (own + _PRIOR_CELLS)
    P = sp.diags_array(scale) @ (moves + sp.diags_array(draw) @ (pool @ moves))
    c = scale * (sums + draw * (pool @ sums))
    share = model.behaviour if policy is None else _among(policy, rows.state, model.behaviour)
    into = (rows.state[:, None] * bins + np.arange(bins)).ravel()
    choose = sp.coo_array((share.repeat(bins), (into, np.arange(size))), shape=(shape[1], size)).tocsr()
    c = choose @ c
    c[S * bins :] = model.V[S, signal]  # states that no row leaves
    V = _solve(choose @ P, c[:, None], gamma)[:, 0]
    V = V[rows.state[rows.pair[rows.starts]] * bins + place[rows.starts]]
    return float(model.totals[signal]), float(V.mean())
