"""A tabular constrained Markov decision process whose model is known.

    maximise J(pi) = E sum_t gamma^t r(s_t, a_t)    subject to    J^u_i(pi) = E sum_t gamma^t u_i(s_t, a_t) >= 0

with s_0 ~ rho0, s_{t+1} ~ P(. | s_t, a_t), and rewards and utilities in [-1, 1]. Transitions are kept as a
sparse matrix with one row per pair (s, a), at row s A + a. The mathematics of the methods is in `dpdl.exact`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _core
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.gym import Cost, Table, initial_distribution
from dpdl.models import answers
from dpdl.models.model import Model
from dpdl.question import Question, check_limits


class CMDP(Model):
    """A constrained MDP with S states, A actions and I utilities; immutable.

    Parameters
    ----------
    P : array_like, shape (S, A, S), or sparse array, shape (S*A, S)
        Transition probabilities; each row must sum to one within 1e-9, and is then scaled to do so in double
        precision.
    r : array_like, shape (S, A)
        Expected rewards, in [-1, 1].
    u : array_like, shape (I, S, A)
        Expected utilities, in [-1, 1]. I may be zero: no constraints.
    gamma : float
        Discount, in (0, 1).
    rho0 : array_like, shape (S,)
        Distribution of the first state.
    ends : array_like, shape (S, A), optional
        Probability that the episode ends after a pair: nothing follows. Each row of P sums to one together with it.

    Examples
    --------
    Working pays and wears the machine out, resting restores it; at most half of the discounted time may be
    work.

    >>> machine = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.9, rho0=[1.0])
    >>> machine
    CMDP(n_states=1, n_actions=2, n_utilities=1, gamma=0.9)
    >>> round(machine.solve().reward, 6), round(machine.unconstrained().solve().reward, 6)
    (5.0, 10.0)
    """

    #: Converts rewards and utilities to the caller's units (`from_gymnasium`); None if they are as they were given.
    question: Question | None = None

    @classmethod
    def from_gymnasium(
        cls,
        env: Any,
        *,
        gamma: float,
        cost: Cost | None = None,
        limits: ArrayLike | None = None,
        limit_on: str | None = None,
        rho0: ArrayLike | None = None,
    ) -> CMDP:
        """Make the model of a toy-text environment of Gymnasium from its transition table, ``env.unwrapped.P``.

        Outcomes that end the episode are ends, other outcomes of a pair with the same next state are added up, and time
        limits and other wrappers do not count. Expected rewards are divided by the largest, and costs are written as
        utilities as by `dpdl.question`; `question` converts back.

        Parameters
        ----------
        env : gymnasium.Env
            FrozenLake, Taxi, CliffWalking, or another environment with such a table.
        gamma : float
            Discount, in (0, 1).
        cost : callable, optional
            The cost of an outcome, ``cost(s, a, s_next, reward, terminated)``: a number, or an array of several.
        limits : float or sequence of float
            Needed with a cost: upper limits, one for each.
        limit_on : {"total", "average"}
            Whether they bound discounted totals, or discounted averages a step.
        rho0 : array_like, shape (S,), optional
            Distribution of the first state; by default that of the environment.

        Examples
        --------
        >>> import gymnasium
        >>> lake = CMDP.from_gymnasium(gymnasium.make("FrozenLake-v1"), gamma=0.99, limits=0.1, limit_on="total",
        ...                            cost=lambda s, a, s_next, reward, terminated: terminated and reward == 0)
        >>> best = lake.solve()
        >>> round(lake.question.reward(best.reward), 4), lake.question.costs(best.utilities).round(4).tolist()
        (0.4591, [0.1])
        """
        if (cost is None) != (limits is None) or (cost is None) != (limit_on is None):
            raise TypeError("cost, limits and limit_on go together: give all three or none")
        table = Table.of(env, cost)
        S, A = table.n_states, table.n_actions
        rho0 = initial_distribution(env) if rho0 is None else rho0
        if rho0 is None:
            raise TypeError("the environment does not say where episodes begin: pass rho0=")
        pairs = np.broadcast_to(np.arange(S * A)[:, None], table.p.shape)
        going_on = (table.p > 0) & ~table.terminated
        entries = (table.p[going_on], (pairs[going_on], table.s_next[going_on]))
        P = sp.coo_array(entries, shape=(S * A, S)).tocsr()  # adds up what is given twice
        ends = np.minimum((table.p * table.terminated).sum(axis=1), 1.0)  # each row of p sums to one, up to rounding
        r = (table.p * table.reward).sum(axis=1)
        reward_scale = float(abs(r).max()) or 1.0
        n_costs = table.costs.shape[2]
        bounds = check.numbers_array("limits", np.atleast_1d([] if limits is None else limits), shape=(n_costs,))
        chosen, limit_on = check_limits({f"cost {i}": limit for i, limit in enumerate(bounds.tolist())}, limit_on)
        gamma = check.real("gamma", gamma, above=0, below=1)
        names, columns = tuple(chosen), tuple(range(n_costs))
        unscaled = Question(gamma, names, tuple(chosen.values()), limit_on, columns, reward_scale, (1.0,) * n_costs)
        slack = unscaled.utilities_of(table.costs.reshape(table.p.size, n_costs), table.terminated.ravel())
        u = np.einsum("pk,pki->ip", table.p, slack.reshape(table.costs.shape))
        scales = np.where(u.any(axis=1), abs(u).max(axis=1, initial=0.0), 1.0)
        question, u = replace(unscaled, scales=tuple(scales.tolist())), u / scales[:, None]
        shape = (S, A)
        model = cls(
            P, (r / reward_scale).reshape(shape), u.reshape(-1, *shape), gamma, rho0,
            ends.reshape(shape) if ends.any() else None,
        )  # fmt: skip
        object.__setattr__(model, "question", question)
        return model

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"question": self.question}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if state["question"] is not None:
            check.instance("question", state["question"], Question)
            object.__setattr__(self, "question", state["question"])

    evaluate, solve = answers.evaluate, answers.solve
    slater, concentrability = answers.slater, answers.concentrability

    def unconstrained(self) -> CMDP:
        """Return the same problem without its utilities.

        Examples
        --------
        >>> machine = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> machine.unconstrained().n_utilities
        0
        """
        model = CMDP(self.P, self.r, self.u[:0], self.gamma, self.rho0, self.ends)
        if self.question is not None:
            free = replace(self.question, names=(), limits=(), limit_on=None, columns=(), scales=())
            object.__setattr__(model, "question", free)
        return model

    def sample(self, n: int, mu: ArrayLike, rng: Any = None) -> Dataset:
        """Draw independent transitions: (s, a) ~ mu, then s' ~ P(. | s, a), with exact rewards and utilities.

        Parameters
        ----------
        n : int
            How many.
        mu : array_like, shape (S, A)
            Distribution of the pairs.
        rng : None, int or numpy.random.Generator
            Source of randomness.

        Examples
        --------
        >>> machine = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> machine.sample(3, [[0.0, 1.0]], rng=0).a.tolist()
        [1, 1, 1]
        """
        n = check.whole("n", n, at_least=1)
        weights = check.distribution("mu", mu, self.r.shape)
        rng = check.generator(rng)
        pairs = np.searchsorted(_cumulative(weights.reshape(1, -1))[0], rng.random(n), side="right")
        uniform = rng.random(n)
        ended = uniform >= self._going_on[pairs]
        s_next = self.P.indices[np.where(ended, 0, self._successor(pairs, uniform))] if self.P.nnz else np.zeros(n, int)
        s, a = np.divmod(pairs, self.n_actions)
        return self._dataset(s, a, s_next, terminated=None if self.ends is None else ended)

    def rollout(self, n: int, policy: ArrayLike, rng: Any = None, start: int | None = None) -> Dataset:
        """Follow a policy for `n` steps and log them in order: one trajectory, or episodes if they end.

        After the end of an episode the next one begins in a state drawn from rho0.

        Parameters
        ----------
        n : int
            How many steps.
        policy : array_like, shape (S, A)
            Action probabilities in each state.
        rng : None, int or numpy.random.Generator
            Source of randomness.
        start : int, optional
            First state; drawn from rho0 if not given.

        Examples
        --------
        >>> P = [[[0.0, 1.0]], [[1.0, 0.0]]]
        >>> clock = CMDP(P, r=[[0.0], [1.0]], u=[[[1.0], [1.0]]], gamma=0.5, rho0=[1.0, 0.0])
        >>> clock.rollout(4, [[1.0], [1.0]], rng=0).s.tolist()
        [0, 1, 0, 1]
        """
        n = check.whole("n", n, at_least=1)
        probabilities = check.policy_array("policy", policy, self.n_states, self.n_actions)
        rng = check.generator(rng)
        if start is None:
            first = int(np.searchsorted(_cumulative(self.rho0[None])[0], rng.random(), side="right"))
        else:
            first = check.whole("start", start, at_most=self.n_states - 1)
        states, actions, ended = _core.rollout(
            n,
            first,
            _cumulative(probabilities),
            self.P.indptr.astype(np.int64),
            self.P.indices.astype(np.int32),
            self._row_cdf,
            self._going_on,
            _cumulative(self.rho0[None])[0],
            rng.bit_generator,
        )
        if self.ends is None:
            return self._dataset(states[:-1], actions, states[1:], starts=[0])
        return self._dataset(states[:-1], actions, states[1:], terminated=ended, truncated=np.zeros(n, dtype=bool))

    @cached_property
    def _going_on(self) -> Array:
        """Probability of each pair that the episode goes on; one, or above every uniform number, if it always does."""
        return np.ones(self.r.size) if self.ends is None else 1 - self.ends.ravel()

    @cached_property
    def _row_cdf(self) -> Array:
        """Cumulative probabilities within each row of P, the last of each row no less than `_going_on`.

        Summed position by position in all rows that are long enough, longest first: a running sum over all of
        P, less its value at each row's start, would lose digits as P grows.
        """
        lengths = np.diff(self.P.indptr)
        longest_first = np.argsort(-lengths, kind="stable")
        starts, lengths = self.P.indptr[:-1][longest_first], lengths[longest_first]
        cdf = self.P.data.copy()
        for position in range(1, int(lengths[0])):
            entry = starts[: np.searchsorted(-lengths, -position)] + position
            cdf[entry] += cdf[entry - 1]
        cdf[self.P.indptr[1:][np.diff(self.P.indptr) > 0] - 1] = 1.0
        return check.frozen(np.minimum(cdf, 1.0))

    def _successor(self, pairs: NDArray[np.intp], uniform: Array) -> NDArray[np.intp]:
        """Return for each pair the first entry of its row whose cumulative probability exceeds the uniform number.

        A binary search in all rows at once. Invariant: the entry sought lies in low .. high.
        """
        low = self.P.indptr[pairs].astype(np.intp)
        high = np.maximum(low, self.P.indptr[pairs + 1].astype(np.intp) - 1)
        while np.any(low < high):
            middle = (low + high) // 2
            beyond = self._row_cdf[middle] <= uniform
            low = np.where(beyond, middle + 1, low)
            high = np.where(beyond, high, middle)
        return low

    def _dataset(self, s: NDArray[Any], a: NDArray[Any], s_next: NDArray[Any], **options: Any) -> Dataset:
        r, u = self.r[s, a], self.u[:, s, a].T
        return Dataset(s, a, s_next, r, u, n_states=self.n_states, n_actions=self.n_actions, **options)


def _cumulative(probabilities: Array) -> Array:
    """Return cumulative sums along the rows, exactly one from the last positive entry on."""
    cdf = np.cumsum(probabilities, axis=1)
    n = probabilities.shape[1]
    last = n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    return np.where(np.arange(n) >= last[:, None], 1.0, np.minimum(cdf, 1.0))
