"""The model by which policies are certified: what the log shows, and what it may not have shown yet.

The outcomes (r, u, s') of a pair with n visits have a Dirichlet process as their posterior: with weight n the observed
ones, with weight alpha an outcome from anywhere, the next state uniform among those that the log shows (and the end,
if episodes end), reward and costs those of the pair, more or less by what arriving there makes of them elsewhere. A
policy's value on the mean of that model, and its standard error, are

    y(s,a) = r + gamma V(s'),   J = rho0.V,   Var J = sum nu(s,a)^2 Var[mean of y | log] + Var[V(s_0)]/n_0
    Var[mean of y | log] = (variance of y under the mean model) / (n + alpha + 1)

so that a pair which was seen once is neither certain nor ruled out. For a policy that was optimised on the same log
this matters: the plug-in model's optimum seeks out the pairs whose few visits happened to go well, and the posterior
mean draws those back to the mean.

alpha is estimated from the log, by leaving one row out: how often does a row lead where no other row of its pair does?
That has probability alpha/(n - 1 + alpha). So a log of a system whose next states are few and known is hardly
smoothed, and one that keeps showing new next states is. Pairs whose rows all led to one state have an alpha of their
own: a pair that has already shown two next states may well have no third one, where one with a single next state still
hides its second.

In the same way the log tells how often an outcome from anywhere leads to a state that it does not show at all. Such a
state is given the worst gain of a step and a next state from anywhere in turn.

A pair whose few rows agree is no more certain than others. The variance of y among its rows is drawn towards that of
all pairs, as far as the squares of its rows do not show that pairs differ in this,

    noise(s,a) = (1-B) (variance of the pair's rows) + B (variance of all),   B = scatter / (scatter + n tau^2),

where scatter is the variance of a single square and tau^2 the least plausible variance of the pairs' own ones. So an
accident that every pair may have, and that most have not shown, is not forgotten where it has not been seen. What never
varies is taken to be fixed by state and action.

If the policy is chosen on the log (`drawn`), y that looks better than under the other actions in the state is drawn
back towards them in the same way, because the best of many looks better than it is.

A next state from anywhere may be a better one than those that the pair leads to. So the estimate is the lesser of this
model's value and the plug-in model's.

Pairs that the log does not show and a policy takes are worst-case for good (as in `dpdl.models.plug_in`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.models.solving import Kernel

#: alpha lies between these. Before any row is read it is one, as if this many pairs had been seen twice.
LEAST_ALPHA, MOST_ALPHA, PRIOR_PAIRS = 1e-3, 100.0, 5.0
#: Expectations of pairs are taken to differ if their means differ more than in this share of logs of equal pairs.
PLAUSIBLE = 0.95
#: Weights that are tried for the rows of the other actions in a state, in visits; see `Posterior.common`.
COMMON = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
#: A weight is plausible if the logarithm of the likelihood is at most this much below the best (95%, about).
LESS_LIKELY = 2.0
#: Models with more distinct transitions than this are not mixed, see `Posterior.source`: it would take too much memory.
MOST_MIXED = 3_000_000


class Value(NamedTuple):
    """A policy's values on the posterior: of the reward first, then of each constraint, in the caller's units.

    Costs are negative, so that more is better.

    Attributes
    ----------
    J, error : arrays, shape (1 + I,)
        Discounted totals and their standard errors.
    freedom : array, shape (1 + I,)
        Degrees of freedom of the squared errors (Satterthwaite): how many rows they are estimated from, in effect.
    V : array, shape (1 + I, S)
        Value functions.
    visits : array, shape (S,)
        Discounted visits of the states.
    parts : array, shape (1 + I, K)
        What each visited pair adds to the squared errors.
    unseen : float
        Share of the discounted time at pairs that the log does not show.
    """

    J: Array
    error: Array
    freedom: Array
    V: Array
    visits: Array
    parts: Array
    unseen: float


class Spread(NamedTuple):
    """What is uncertain about the mean of y = r + gamma V(s') at visited pairs, for reward and gains, each (1 + I, K).

    Attributes
    ----------
    variance : array
        Posterior variance of the mean.
    hidden : array
        Variance among the rows of a pair, beyond that among its next states.
    flattery : array
        What is drawn back from the mean.
    """

    variance: Array
    hidden: Array
    flattery: Array


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of a log's model.

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    rho0 : array, shape (S,)
        Distribution of the initial state.
    n_starts : int or None
        How many logged first states that is estimated from, which adds to standard errors; None if it is known.
    worst_costs : array, shape (I,), or None
        What a step costs at most; None: as the largest cost of the log.
    drawn : bool
        Whether policies are chosen on this log, so that means which look good are drawn back.
    """

    log: Dataset
    gamma: float
    rho0: Array
    n_starts: int | None
    worst_costs: Array | None = None
    drawn: bool = False
    # Of the G distinct transitions of the log: place of the pair in log.pairs, next state (S is the end), count, mean
    # reward and gains, and their sums of squares around these, (1 + I, G).
    pair: NDArray[np.intp] = field(init=False, repr=False)
    after: NDArray[np.int64] = field(init=False, repr=False)
    count: Array = field(init=False, repr=False)
    mean: Array = field(init=False, repr=False)
    within: Array = field(init=False, repr=False)
    # Of the K visited pairs: visits and state.
    visits_of: Array = field(init=False, repr=False)
    state: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        counts, log = self.log.counts(), self.log
        n, n_states = counts["count"].astype(np.float64), log.n_states
        means, spreads = [counts["r"]], [counts["r_var"]]
        if "u" in counts:
            means, spreads = [*means, *counts["u"].T], [*spreads, *counts["u_var"].T]
        else:
            names = log.question.names
            means += [-counts["costs"][name] for name in names]
            spreads += [counts["cost_vars"][name] for name in names]
        within = np.stack(spreads) * n
        pair = np.searchsorted(log.pairs, counts["s"] * log.n_actions + counts["a"])
        after = np.where(counts["terminated"], n_states, counts["s_next"])
        found = {
            "pair": pair,
            "after": after,
            "count": n,
            "mean": np.stack(means),
            "within": within,
            "visits_of": log.pair_counts.astype(np.float64),
            "state": log.pairs // log.n_actions,
        }
        self.__dict__.update(found)

    @classmethod
    def of(
        cls,
        log: Dataset,
        gamma: float,
        rho0: ArrayLike | None,
        initial_states: ArrayLike | None,
        worst_costs: ArrayLike | None = None,
        drawn: bool = False,
    ) -> Posterior:
        """Check where episodes start, as given or as those of the log, and what a step may cost."""
        initial, n_starts = log.initial(rho0, initial_states), None
        if initial_states is not None:
            n_starts = len(np.asarray(initial_states))
        elif rho0 is None and log.initial_counts is not None:
            n_starts = int(log.initial_counts.sum())
        if worst_costs is None:
            return cls(log, gamma, initial, n_starts, drawn=drawn)
        if log.question.limits is None:
            raise TypeError("worst_costs is for logs of costs")
        most = np.atleast_1d(check.numbers_array("worst_costs", worst_costs))
        check.check_shape("worst_costs", most, (log.n_utilities,))
        found = cls(log, gamma, initial, n_starts, most, drawn)
        for i, (given, seen) in enumerate(zip(most, -found.extremes[0, 1:], strict=True)):
            if given < seen - 1e-12 * abs(seen):
                raise ValueError(f"worst_costs[{i}] = {given:g} is less than a cost of the log, {seen:g}")
        return found

    # ---- The model ----

    @cached_property
    def thresholds(self) -> Array:
        """What each constraint's discounted total must reach, (I,)."""
        return -self.log.question.total

    @cached_property
    def worst(self) -> Array:
        """Reward and gains of a step at a pair that the log does not show, (1 + I,)."""
        question = self.log.question
        if self.worst_costs is not None:
            return np.append(-question.reward_scale, -self.worst_costs)
        return np.append(-question.reward_scale, -np.array(question.scales) - np.maximum(question.rate, 0.0))

    @property
    def best(self) -> Array:
        """The largest reward and gains of a step, (1 + I,): as the scales say, of costs the least one of the log."""
        question = self.log.question
        gains = np.array(question.scales) if question.limits is None else self.extremes[1, 1:]
        return np.append(question.reward_scale, gains)

    @cached_property
    def extremes(self) -> Array:
        """The least and the largest reward and gains of a row, (2, 1 + I)."""
        question = self.log.question
        least, most = np.full((2, 1 + self.log.n_utilities), [[np.inf], [-np.inf]])
        for part, _ in self.log.parts():
            u = part["u"] * np.array(question.scales) - question.share[(part["s_next"] < 0).astype(np.intp)]
            gains = np.column_stack([part["r"] * question.reward_scale, u])
            least, most = np.minimum(least, gains.min(axis=0)), np.maximum(most, gains.max(axis=0))
        return np.array([least, most])

    @property
    def distinct(self) -> NDArray[np.int64]:
        """How many next states the rows of each visited pair lead to, (K,)."""
        return np.bincount(self.pair[self.count > 0], minlength=len(self.visits_of))

    @cached_property
    def weights(self) -> tuple[float, float]:
        """alpha of pairs whose rows lead to one state, and to several."""
        n, alone = self.visits_of[self.pair], self.count == 1
        left = self.distinct[self.pair] - alone  # next states of the other rows of the pair
        found = []
        for chosen in ((n >= 2) & (left == 1), (n >= 2) & (left > 1)):
            found.append(_weight(n[chosen], self.count[chosen], float(alone[chosen].sum())))
        return found[0], found[1]

    @cached_property
    def alpha(self) -> Array:
        """Weight of an outcome from anywhere for each visited pair, in visits, (K,)."""
        one, several = self.weights
        return np.where(self.distinct > 1, several, one)

    @cached_property
    def unknown(self) -> float:
        """Probability that a next state from anywhere is one that the log does not show.

        By leaving one row out: of the rows that lead where no other row of their pair does, how many would then lead to
        a state that no row leaves? In an episode a state that was entered once was left only because of that.
        """
        log, once = self.log, self.count == 1
        moved = self.after < log.n_states
        leaps = once & moved & (self.visits_of[self.pair] >= 2)
        left = np.zeros(log.n_states, dtype=bool)
        left[self.state] = True
        if log.kind != "independent" and log.repeats is None:
            entered = np.bincount(self.after[moved], self.count[moved], log.n_states)
            starts = np.zeros(log.n_states) if log.initial_counts is None else log.initial_counts
            left &= (entered > 1) | (starts > 0)
        return float((~left[self.after[leaps]]).sum()) / (float(leaps.sum()) + 1)

    @cached_property
    def base(self) -> Array:
        """Distribution of a next state from anywhere, (S,); `unknown` and the end are missing from one."""
        found = np.zeros(self.log.n_states)
        found[self.state] = 1.0
        return (1 - self.unknown) * found / (found.sum() + bool(self.log.n_ended))

    def anywhere(self, V: Array) -> Array:
        """Expected values of a next state from anywhere, (1 + I,).

        A state that the log does not show has the worst gain, and a next state from anywhere in turn.
        """
        return (V @ self.base + self.unknown * self.worst) / (1 - self.gamma * self.unknown)

    @cached_property
    def away(self) -> Array:
        """Probability of each visited pair that the next state is one from anywhere, (K,)."""
        return self.alpha / (self.visits_of + self.alpha)

    @cached_property
    def moves(self) -> sp.csr_array:
        """Observed frequencies of the next states of visited pairs, (K, S)."""
        on = self.after < self.log.n_states
        entries = (self.count[on] / self.visits_of[self.pair[on]], (self.pair[on], self.after[on]))
        return sp.csr_array(entries, shape=(len(self.visits_of), self.log.n_states))

    @cached_property
    def gains(self) -> Array:
        """Mean reward and gains of the rows of visited pairs, (1 + I, K)."""
        return np.array([np.bincount(self.pair, self.count * one) for one in self.mean]) / self.visits_of

    @cached_property
    def inside(self) -> Array:
        """Variance of reward and gains among rows with the same pair and next state, (1 + I, K)."""
        return np.array([np.bincount(self.pair, one) for one in self.within]) / self.visits_of

    @cached_property
    def reach(self) -> Array:
        """The largest less the least reward and gains of a row, (1 + I,)."""
        return np.ptp(self.extremes, axis=0) if self.inside.any() else np.zeros(len(self.inside))

    @cached_property
    def arrival(self) -> Array:
        """What arriving in a state, or the end, adds to the reward and gains of a pair, on average, (1 + I, S + 1)."""
        size, apart = self.log.n_states + 1, self.count * (self.mean - self.gains[:, self.pair])
        rows = np.maximum(np.bincount(self.after, self.count, size), 1.0)
        found = np.array([np.bincount(self.after, one, size) for one in apart]) / rows
        return np.where(self.varies[:, None], found, 0.0)

    def leaps(self, V: Array) -> tuple[Array, Array]:
        """Return mean and variance of what an outcome from anywhere is worth, beyond the gain of its pair, (1 + I,)."""
        middle = self.anywhere(V)
        y = np.column_stack([self.arrival + self.gamma * np.pad(V, ((0, 0), (0, 1))), self.gamma * self.worst])
        y[:, -1] += self.gamma**2 * middle
        share = np.concatenate([self.base, [1 - self.unknown - float(self.base.sum()), self.unknown]])
        mean = y @ share
        return mean, (y - mean[:, None]) ** 2 @ share

    @cached_property
    def varies(self) -> NDArray[np.bool_]:
        """Whether reward and gains differ among the rows of some pair, (1 + I,)."""
        apart = abs(self.mean - self.gains[:, self.pair]) > 1e-9 * abs(self.mean)
        return np.asarray(apart.any(axis=1) | self.inside.any(axis=1))

    # ---- Policies ----

    def allowed(self) -> NDArray[np.bool_]:
        """Pairs that may be used in deployment, (S, A): visited ones, and all in states that the log does not show."""
        seen = self.log.frequencies > 0
        return seen | ~seen.any(axis=1, keepdims=True)

    def behaviour(self) -> Array:
        """The policy that made the log, as estimated from it, (S, A)."""
        return policies.from_occupancy(self.log.frequencies)

    def value(self, policy: Array) -> Value:
        """Return values, standard errors and visits of a policy."""
        chosen = policy.ravel()[self.log.pairs]
        n_states, gamma = self.log.n_states, self.gamma
        choose = sp.csr_array((chosen, (self.state, np.arange(len(chosen)))), shape=(n_states, len(chosen)))
        kernel = Kernel(sp.csr_array(choose @ sp.diags_array(1 - self.away) @ self.moves), gamma)
        plain = Kernel(sp.csr_array(choose @ self.moves), gamma)
        leap = gamma * (choose @ self.away)  # then the next state is one from anywhere
        unknown = np.maximum(1 - choose.sum(axis=1), 0.0)
        unknown[unknown <= 1e-9] = 0.0
        right = (choose @ self.gains.T + np.outer(unknown, self.worst / (1 - gamma))).T
        plug_in = np.array([self.rho0 @ plain.solve(one) for one in right])
        right += np.outer(self.leaps(np.zeros_like(right))[0] / gamma, leap)
        base = self.base / (1 - gamma * self.unknown)
        # (I - gamma K - leap base') V = right, by the formula of Sherman and Morrison.
        lift = kernel.solve(leap)
        V = np.array([kernel.solve(one) for one in right])
        V += np.outer(V @ base / (1 - base @ lift), lift)
        visits, anywhere = kernel.solve(self.rho0, transposed=True), kernel.solve(base, transposed=True)
        visits = np.maximum(visits + anywhere * (leap @ visits) / (1 - leap @ anywhere), 0.0)
        nu, spread = visits[self.state] * chosen, self.spread(V)
        parts = nu**2 * spread.variance
        terms, rows = parts, self.visits_of
        if self.n_starts is not None:
            first = (V - (V @ self.rho0)[:, None]) ** 2 @ self.rho0
            first = first / (self.n_starts - 1) if self.n_starts > 1 else np.ptp(V, axis=1) ** 2 / 4
            terms, rows = np.column_stack([parts, first]), np.append(rows, self.n_starts)
        square = terms.sum(axis=1)
        shares = np.divide(terms, square[:, None], where=square[:, None] > 0, out=np.ones_like(terms))
        lost = float(visits @ unknown) * (1 - gamma)
        J = np.minimum(V @ self.rho0, plug_in) - spread.flattery @ nu
        return Value(J, np.sqrt(square), 1 / (shares**2 @ (1 / rows)), V, visits, parts, lost)

    def spread(self, V: Array) -> Spread:
        """Return what is uncertain about the mean of r + gamma V(s') at visited pairs."""
        n, alpha, gamma = self.visits_of, self.alpha, self.gamma
        seen, size = n / (n + alpha), len(n)
        states, everywhere = np.unique(self.state, return_inverse=True)[1], np.zeros(size, dtype=np.int64)
        spare, (leap, elsewhere) = max(1.0, float((n - 1).sum())), self.leaps(V)
        variance, hidden, flattery = np.empty((3, len(V), size))
        for k, values in enumerate(V):
            y = self.mean[k] + gamma * np.append(values, 0.0)[self.after]
            mean = np.bincount(self.pair, self.count * y, size) / n
            apart = (y - mean[self.pair]) ** 2
            apart[apart <= 1e-24 * (y**2).max(initial=0.0)] = 0.0  # rounding
            square, inside = np.bincount(self.pair, self.count * apart, size) / n, self.inside[k]
            own = square + inside
            typical = float(own @ n) / spare
            squares = self.count * (apart + inside[self.pair] - own[self.pair]) ** 2
            # Of rows with the same next state the log keeps no more than the variance: squares are at most reach^2.
            of_squares = (float(squares.sum()) + float(self.reach[k]) ** 2 * float(inside @ n)) / spare
            alike = _alike(own, n, of_squares, everywhere, n - 1)[0]
            hidden[k] = np.maximum((1 - alike) * own + alike * typical - square, 0.0)
            alike, centre = _alike(mean, n, typical, states, n)
            flattery[k] = alike * np.maximum(mean - centre, 0.0) if self.drawn else 0.0
            jump = self.gains[k] + leap[k] - mean
            mixed = seen * square + (1 - seen) * elsewhere[k] + seen * (1 - seen) * jump**2
            variance[k] = mixed / (n + alpha + 1) + hidden[k] / n
        return Spread(variance, hidden, flattery)

    # ---- Other logs ----

    @cached_property
    def common(self) -> float:
        """How many visits of a pair the rows of the other actions in its state are worth, as a forecast of next states.

        By leaving one row out: of COMMON, the largest weight under which the rows are hardly less likely than under the
        best. Nothing if actions lead to different states, and a lot if they may all be the same.
        """
        rows = self._of_state(self.visits_of)[self.pair] - self.visits_of[self.pair]
        _, there = np.unique(self._step, return_inverse=True)
        others = (np.bincount(there, self.count)[there] - self.count) / np.maximum(rows, 1.0)
        n, compared = self.visits_of[self.pair], self.count * (rows > 0)
        likely = [(self.count - 1 + weight * others + 1 / self.log.n_states) / (n + weight) for weight in COMMON]
        fit = np.log(likely) @ compared
        return COMMON[int(np.flatnonzero(fit >= fit.max() - LESS_LIKELY)[-1])]

    @property
    def _step(self) -> NDArray[np.int64]:
        """State and next state of each distinct transition, as one number, (G,)."""
        return self.state[self.pair] * (self.log.n_states + 1) + self.after

    def _of_state(self, rows: Array) -> Array:
        """Sums over the actions of the state of each visited pair, (K,)."""
        return np.asarray(np.bincount(self.state, rows)[self.state], dtype=np.float64)

    @cached_property
    def source(self) -> Posterior:
        """The model that other logs are drawn from: actions of a state differ no more than this log shows.

        Actions that are all the same differ by chance in every log. Drawn from a model in which these differences are
        real, logs would show too little of what choosing the best of many actions flatters by. So each pair takes over
        `common` visits from all rows of its state, unless the model is too large for that.
        """
        found = self._mixed() if self.common else None
        return self if found is None else found

    def _mixed(self) -> Posterior | None:
        """Return the model with every next state of its state for every pair; None if that is too large."""
        ends = self.log.n_states + 1
        steps, there = np.unique(self._step, return_inverse=True)
        first = np.searchsorted(steps, self.state * ends)
        size = np.searchsorted(steps, (self.state + 1) * ends) - first
        if size.sum() > MOST_MIXED:
            return None
        pair = np.repeat(np.arange(len(size)), size)  # every pair with every next state of its state
        entry = np.arange(len(pair)) - (np.cumsum(size) - size - first)[pair]
        after = steps[entry] % ends
        own = np.searchsorted(pair * ends + after, self.pair * ends + self.after)
        kept = self.visits_of / (self.visits_of + self.common)
        all_rows = np.bincount(there, self.count)[entry] / self._of_state(self.visits_of)[pair]
        count = (1 - kept)[pair] * self.visits_of[pair] * all_rows
        count[own] += kept[self.pair] * self.count
        mean = np.array([np.bincount(there, self.count * one) for one in self.mean]) / np.bincount(there, self.count)
        mean = mean[:, entry]
        mean[:, own] = self.mean
        return self._with(pair=pair, after=after, count=count, mean=mean)

    def resampled(self, rng: np.random.Generator, hidden: Array) -> Posterior:
        """Return the posterior of another log of the same pairs, drawn from this model with noise of that variance."""
        left, mass = self.visits_of.astype(np.int64), self.visits_of.copy()
        count = np.zeros(len(self.count), dtype=np.int64)
        order = np.argsort(self.pair, kind="stable")
        place = np.arange(len(order)) - np.searchsorted(self.pair[order], self.pair[order])
        last = place == np.bincount(self.pair)[self.pair[order]] - 1
        # A multinomial distribution for each pair, by binomial ones: the first outcomes of all pairs, then the second.
        by_place = np.argsort(place, kind="stable")
        for chosen in np.split(by_place, np.cumsum(np.bincount(place))[:-1]):
            rows, pairs = order[chosen], self.pair[order[chosen]]
            most = np.maximum(mass[pairs], self.count[rows])
            share = np.divide(self.count[rows], most, where=most > 0, out=np.zeros(len(rows)))
            count[rows] = rng.binomial(left[pairs], np.where(last[chosen], 1.0, share))
            left[pairs] -= count[rows]
            mass[pairs] -= self.count[rows]
        noise = np.sqrt(hidden[:, self.pair] / np.maximum(count, 1)) * rng.standard_normal(self.mean.shape)
        return self._with(pair=self.pair, after=self.after, count=count.astype(np.float64), mean=self.mean + noise)

    def _with(self, **transitions: NDArray[Any]) -> Posterior:
        """Return a posterior of the same pairs with other transitions, and with what was learned about all of them."""
        found = object.__new__(type(self))
        found.__dict__.update({name: self.__dict__[name] for name in self.__dataclass_fields__})
        known = {name: getattr(self, name) for name in ("weights", "unknown", "inside", "reach", "arrival")}
        found.__dict__.update(known, within=np.zeros_like(transitions["mean"]), **transitions)  # `inside` has it
        return found

    def effective(self, value: Value, policy: Array) -> float:
        """How many transitions of the log count for a policy: 1 / sum of q^2/n, q its distribution of visited pairs."""
        q = value.visits[self.state] * policy.ravel()[self.log.pairs]
        total = float((q**2 / self.visits_of).sum())
        return float(q.sum()) ** 2 / total if total > 0 else 0.0


def _alike(mean: Array, n: Array, typical: float, group: NDArray[np.int64], rows: Array) -> tuple[Array, Array]:
    """Return how far pairs may be all the same within their group, B above, and the mean of the group; both (K,).

    B is by the least plausible variance of their expectations, for means of n visits, and `rows` takes the place of n.
    """
    groups, size = np.bincount(group, n), np.bincount(group)
    centre = np.bincount(group, n * mean) / groups
    compared, freedom = size[group] > 1, len(mean) - len(size)
    if typical == 0 or freedom == 0:
        return np.full(len(mean), float(typical > 0)), centre[group]
    middle = (np.bincount(group, mean) / size)[group]
    squares = float(((mean - middle)[compared] ** 2).sum()) / float(chdtri(freedom, 1 - PLAUSIBLE))
    # tau^2, in units of `typical`; beyond the second bound all that follows is the same
    differ = min(max(0.0, squares / typical - float((1 / n[compared]).mean())), 1e100)
    alike = 1 / (1 + rows * differ)
    weight = 1 / (differ + 1 / n)
    return alike, (np.bincount(group, weight * mean) / np.bincount(group, weight))[group]


def _weight(n: Array, rows: Array, alone: float) -> float:
    """Return the alpha at which as many rows as expected lead where no other row of their pair does, see above."""
    from scipy.optimize import brentq  # slow to import

    def excess(alpha: float) -> float:
        expected = float((rows * alpha / (n - 1 + alpha)).sum()) + PRIOR_PAIRS * 2 * alpha / (1 + alpha)
        return expected - alone - PRIOR_PAIRS

    if excess(LEAST_ALPHA) >= 0:
        return LEAST_ALPHA
    return MOST_ALPHA if excess(MOST_ALPHA) <= 0 else float(brentq(excess, LEAST_ALPHA, MOST_ALPHA))
