"""Residuals of a log, and whether they depend on what happened before.

For a function V of the states, for the reward and for each cost c, let y = c + gamma V(s'), with V = 0 where the
episode ended. Under the model y, less its mean at the pair (s, a), is uncorrelated with all that happened before. For a
number h that was known before the row the statistic is a sum over pairs (s, a), with n rows each, and over two rows of
the pair from different episodes, i and j:

    T = sum_{(s, a)} 1/n sum_{i < j} (y_i - y_j)(h_i - h_j)

Rows of one episode are not compared, because what happened in row i changes h in later rows of its episode. V, the
values of a policy, and whatever else is estimated come from the other half of the episodes: on thin logs V(s') would
otherwise contain the episode's own later rows. The contributions of episodes, each multiplied by sqrt(n/(n - m)) for
its m rows at a pair, give the variance, or the model does, if that is larger: outcomes at a pair have their variance
there whatever happened before, which makes sum_{(s, a)} sum_i (y_i - mean y)^2/(n - 1) sum_i (h_i - mean h)^2. Where
both y and h are rare and never coincide the former is much too small. T over the root is standard normal under the
model.

One of the histories is learned: the mean residual, on the other half, of rows with the same pair and the same pair
before. The two halves then test the same products, so their statistics are averaged and not added. The same is done
for the next state itself: y is its indicator, h the distribution on the other half of the states that follow the same
two pairs, and products are inner products. That needs no V, and shows much more of states that are too coarse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import gmres

from dpdl._validation import Array
from dpdl.safety.episodes import Ints, Steps

#: What followed the previous pair is learned on the other half: its two statistics are averaged.
_LEARNED, NEXT_STATE = "previous pair", "next state"
#: Rows of the policy in question count at most this much more than the mean row.
_LARGEST_WEIGHT = 10.0
#: Prior rows at zero in the mean residual of the episode so far, and in means by previous pair or bin.
_PRIOR_ROWS, _PRIOR_CELLS = 2.0, 5.0
#: Episodes are cut into pieces, which take their place, if there are fewer than FEW; pieces have at least SHORT rows.
#: Fewer than FEW cannot reject: |z| is at most about the root of their number.
FEW, _SHORT = 20, 10
#: Actions beyond the most frequent ones are not counted one by one in "actions so far".
_ACTIONS = 64
#: Linear systems up to here are solved by dense factors, larger ones by GMRES.
_DENSE = 300
#: Bins of the history that `knowing` adds to the state; bins of profiles, and the most rows that these are made of.
_BINS, _PLACES, _MOST_ROWS = 4, 20, 200_000
#: Differences of this size, relative to the numbers, are rounding.
_ROUNDING = 1e-9


def units(rows: Steps) -> Ints:
    """Return the number of the episode of each row or, if there are few and long ones, of a piece of it."""
    n = len(rows.pair)
    if len(rows.starts) >= FEW or n < FEW * _SHORT:
        return rows.episode
    length = max(_SHORT, n // (5 * FEW))
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
        self.gamma, self.policy, self.behaviour = gamma, policy, share
        if policy is not None:
            share = _among(np.where(n > 0, policy, 0.0), state, share)
        unknown = np.append(visits == 0, True)  # the last state stands for all that are not known
        to = np.where(unknown, S, np.arange(S + 1))[after]
        goes, total = after >= 0, max(1, len(pair))
        each = (share / np.maximum(n, 1))[pair]
        fate = np.bincount(to[goes], minlength=S + 1) / total
        place = np.append(state[pair][goes], np.full(S + 1, S)), np.append(to[goes], np.arange(S + 1))
        P = sp.coo_array((np.append(each[goes], fate), place), shape=(S + 1, S + 1)).tocsr()
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
            weight = _solve(P.T, start[:, None], gamma)[state, 0] * share / np.maximum(n, 1)
            mean = (weight * n).sum() / total
            self.weight = np.minimum(weight / mean, _LARGEST_WEIGHT) if mean > 0 else self.weight


def _among(weight: Array, state: Ints, otherwise: Array) -> Array:
    """Return the weights of pairs divided by their sums over the state, or the other shares where these are zero."""
    mass = np.bincount(state, weight)[state]
    return np.where(mass > 0, weight / np.where(mass > 0, mass, 1), otherwise)


def _solve(P: Any, c: Array, gamma: float) -> Array:
    """Return V = c + gamma P V, column by column."""
    matrix = sp.eye_array(P.shape[0], format="csr") - gamma * P
    if P.shape[0] <= _DENSE:
        return np.linalg.solve(matrix.toarray(), c)
    return np.column_stack([gmres(matrix, column, x0=column, rtol=1e-6, restart=50, maxiter=40)[0] for column in c.T])


def _order(keys: Ints, size: int) -> Ints:
    """Return the stable order of integers below `size`; NumPy sorts short ones by counting."""
    return np.argsort(keys.astype(np.min_scalar_type(size)), kind="stable")


#: Signal, history, z, effective number of episodes.
Statistic = tuple[str, str, float, float]


class Centred(NamedTuple):
    """Values of the rows of a half, these less their means at the pair, and sums of the latter over cells."""

    values: Array
    rest: Array
    sums: Array


class Comparison(NamedTuple):
    """T, the contributions of the units with their factors, and the variance of T under the model."""

    T: float
    by_unit: Array
    variance: float


class Half:
    """Every other episode (or piece of one), with values from the others.

    Its rows are in the order of pairs and, at a pair, of units; the rows of a unit at a pair are a cell.
    """

    def __init__(
        self, rows: Steps, unit: Ints, by_pair: Ints, previous: Ints, outcome: Ints, which: int, gamma: float
    ) -> None:
        self.rows = rows
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
        self._take(None, gamma)
        fixed = {"actions so far": self._actions(), "time": rows.time, "discount": np.power(gamma, rows.time)}
        self.fixed = {name: self.centred(h[self.mine]) for name, h in fixed.items()}
        self.next_state, self.next_state_variance = self._next_state(outcome)

    def with_values(self, policy: Array | None, gamma: float) -> Half:
        """Return the half with values and weights of another policy, its probabilities at the pairs, or discount."""
        other = copy(self)
        other._take(policy, gamma)
        return other

    def _take(self, policy: Array | None, gamma: float) -> None:
        self.model = Model(self.rows, self.rest, gamma, policy)
        self.weighted = self.factor * self.model.weight[self.cell_pair]

    def residuals(self, signal: int) -> Array:
        """Return y - Q for all rows of the log, with values from the other half."""
        rows, V, Q = self.rows, self.model.V[:, signal], self.model.Q[:, signal]
        return rows.signals[signal] + self.model.gamma * V[rows.next_state] - Q[rows.pair]

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

    def _next_state(self, outcome: Ints) -> tuple[tuple[Array, Array], Array]:
        """Return the products of next states and of what followed the same two pairs on the other half, by cell.

        And the variance of their sum under the model, by pair. Outcomes are numbered by pair and next state, so that
        means at the pair are a vector.
        """
        here, there, size = outcome[self.mine], outcome[self.rest], int(outcome.max()) + 1
        H = sp.coo_array((self.shrink[self.there], (self.there, there)), shape=(len(self.shrink), size)).tocsr()
        n, m = self.n.repeat(self.n), np.diff(self.cells, append=len(here))
        at_mean = (H @ np.bincount(here, 1 / n, minlength=size))[self.key]
        mean_there = (H.T @ np.bincount(self.key, minlength=len(self.shrink)))[here] / n
        both_means = (np.add.reduceat(at_mean, self.first) / self.n).repeat(self.n)
        shift = np.add.reduceat(both_means - at_mean - mean_there, self.cells)
        own = np.add.reduceat(np.asarray(H[self.key, here]).ravel(), self.cells)
        cell = np.arange(len(m)).repeat(m)
        follows = sp.coo_array((np.ones(len(here)), (cell, here)), shape=(len(m), size)).tocsr()
        before = sp.coo_array((np.ones(len(here)), (cell, self.key)), shape=(len(m), len(self.shrink))).tocsr()
        # Of an indicator with probabilities p, times h less its mean: (h - mean)' (diag p - p p') (h - mean).
        squares = (H.multiply(H) @ np.bincount(here, 1 / n, minlength=size))[self.key]
        variance = np.add.reduceat(squares - at_mean**2 - mean_there**2 + both_means**2, self.first)
        variance = np.maximum(variance, 0.0) * self.n / np.maximum(self.n - 1, 1)
        return (own + shift, (follows * (before @ H)).sum(axis=1) + m * shift), variance

    def centred(self, values: Array) -> Centred:
        """Centre the values of the rows of this half."""
        means = np.add.reduceat(values, self.first) / self.n
        rest = values - means.repeat(self.n)
        return Centred(values, rest, rest if len(self.cells) == len(rest) else np.add.reduceat(rest, self.cells))

    def statistic(self, y: Centred, h: Centred) -> Comparison:
        """Compare y with h."""
        product = y.rest * h.rest
        product = product if len(self.cells) == len(product) else np.add.reduceat(product, self.cells)
        spread = np.add.reduceat(y.rest**2, self.first) / np.maximum(self.n - 1, 1)
        return self.between_units(product, y.sums * h.sums, spread * np.add.reduceat(h.rest**2, self.first))

    def between_units(self, product: Array, of_sums: Array, variance: Array) -> Comparison:
        """Compare rows of different units, from sums of products over cells, products of sums, variances by pair."""
        # Over rows i of the unit and j of the others, sum (y_i - y_j)(h_i - h_j)/n; every product belongs to two units.
        cross = product * self.rest_of_pair + of_sums * self.twice
        at_pair = np.add.reduceat(product, self.pairs)
        both = np.add.reduceat(cross, self.pairs) + at_pair
        cross += self.share * (at_pair - both / 2).repeat(self.n_cells)
        weight = self.model.weight[self.cell_pair[self.pairs]]
        compared = self.n_cells > 1
        by_unit: Any = np.bincount(self.cell_unit, cross * self.weighted)
        return Comparison(float(both @ weight / 2), by_unit, float((variance * compared) @ weight**2))


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
    outcome = np.unique(rows.pair * (rows.n_states + 2) + rows.next_state + 1, return_inverse=True)[1]
    return [Half(rows, unit, by_pair, previous, outcome, which, gamma) for which in (0, 1)]


def statistics(halves: list[Half], profiles: dict[str, Any] | None = None) -> Iterator[Statistic]:
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
                x, *means = _profile(known, residuals) * halves[0].rows.scale[signal]
                x = x / halves[0].rows.scale[signal] if history == "time" else x
                profiles.setdefault(name, {})[history] = [values.tolist() for values in (x, *means)]
            least = np.array([scale * abs(h.values).max() for h in known])
            yield from _compared(name, history, map(Half.statistic, halves, residuals, known), least)


def next_state(halves: list[Half]) -> Iterator[Statistic]:
    """Yield the same for the next state, given the previous pair."""
    products = (half.between_units(*half.next_state, half.next_state_variance) for half in halves)
    yield from _compared(NEXT_STATE, _LEARNED, products, np.full(2, _ROUNDING))


def _compared(name: str, history: str, parts: Iterable[Comparison], least: Array) -> Iterator[Statistic]:
    """Yield z and the effective number of episodes, unless no contribution of an episode exceeds the least."""
    halves = list(parts)
    sizes = np.array([abs(half.by_unit).max() for half in halves])
    compared = sizes > least
    if not compared.any():
        return  # the pair decides what happened before, or no two episodes can be compared
    by_unit = [half.by_unit / sizes.max() for half in halves]
    squares = np.array([part @ part for part in by_unit])
    effective = float((squares @ compared) ** 2 / sum((part**4).sum() for part in by_unit))
    variance = np.array([half.variance for half in halves]) / sizes.max() / sizes.max()
    T = np.array([half.T for half in halves]) / sizes.max()
    larger = np.where(compared, np.maximum(squares, variance), 0.0)
    if history == _LEARNED:
        z = np.mean(T * compared / np.sqrt(np.where(compared, larger, 1.0)))
    else:
        z = (T @ compared) / np.sqrt(larger.sum())
    yield name, history, float(z), effective


def _profile(known: list[Centred], residuals: list[Centred]) -> Array:
    """Return means of the history and of residuals, and the standard errors of these, by bin of the history."""
    every = 1 + sum(len(h.rest) for h in known) // _MOST_ROWS
    h = np.concatenate([part.values[::every] for part in known])
    e = np.concatenate([part.rest[::every] for part in residuals])
    place = np.searchsorted(np.unique(np.quantile(h, np.arange(1, _PLACES) / _PLACES)), h)
    n = np.bincount(place)
    x, mean, square = (np.bincount(place, values)[n > 0] / n[n > 0] for values in (h, e, e * e))
    return np.array([x, mean, np.sqrt(square / n[n > 0])])


def knowing(model: Model, halves: list[Half], name: str, history: str) -> tuple[float, float]:
    """Return a policy's discounted total by the model of all rows, and if the state also knew the history in four bins.

    The mean over the rows of a pair and bin is drawn to that of the pair by `_PRIOR_CELLS` rows of it. A fifth bin,
    which no row is in, stands for not known: where the record stops.
    """
    rows, gamma, policy = halves[0].rows, model.gamma, model.policy
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
    return float(rows.scale[signal] * model.totals[signal]), float(rows.scale[signal] * V.mean())
