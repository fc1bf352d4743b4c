"""A tabular constrained Markov decision process whose model is known.

    maximise J(pi) = E sum_t gamma^t r(s_t, a_t)    subject to    J^u_i(pi) = E sum_t gamma^t u_i(s_t, a_t) >= 0

with s_0 ~ rho0, s_{t+1} ~ P(. | s_t, a_t), and rewards and utilities in [-1, 1]. Transitions are kept as a
sparse matrix with one row per pair (s, a), at row s A + a.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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
from dpdl.models import programs
from dpdl.models.evaluation import Rows
from dpdl.models.planner import Planner
from dpdl.models.solution import Evaluation, Solution
from dpdl.question import Question, check_limits

#: From this many pairs on, the planner is taken by default: there it is quicker than the linear program.
PLANNER_PAIRS = 2000
#: Up to this many pairs scipy's HiGHS is quick. It is with 10,000 on problems that mix fast, and takes 40 s on others.
LP_PAIRS = 5000


@dataclass(frozen=True, init=False, eq=False, repr=False)
class CMDP:
    """A constrained MDP with S states, A actions and I utilities; immutable.

    Parameters
    ----------
    P : array_like, shape (S, A, S), or sparse array, shape (S*A, S)
        Transition probabilities; each row must sum to one within 1e-9, and is then scaled to do so up to rounding.
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
    question : Question, optional
        Converts rewards and utilities to the caller's units.

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

    r: Array
    u: Array
    gamma: float
    rho0: Array
    ends: Array | None
    question: Question | None
    _entries: tuple[Array, NDArray[Any], NDArray[Any]]  # data, indices and indptr of P

    def __init__(
        self,
        P: Any,
        r: ArrayLike,
        u: ArrayLike,
        gamma: float,
        rho0: ArrayLike,
        ends: ArrayLike | None = None,
        question: Question | None = None,
    ) -> None:
        matrix, ends, totals = _transitions(P, ends)
        lengths = np.diff(matrix.indptr)
        totals = _beyond_rounding(totals, lengths)
        matrix.data /= np.repeat(totals, lengths)
        shape = (matrix.shape[1], matrix.shape[0] // matrix.shape[1])
        initial = check.distribution("rho0", rho0, shape[:1])
        fields = {
            "ends": None if ends is None else check.frozen(ends / totals.reshape(shape)),
            "r": check.frozen(check.numbers_array("r", r, shape=shape, at_least=-1, at_most=1)),
            "u": check.frozen(check.numbers_array("u", u, shape=(None, *shape), at_least=-1, at_most=1)),
            "rho0": check.frozen(initial / _beyond_rounding(initial.sum(), len(initial))),
            "gamma": check.real("gamma", gamma, above=0, below=1),
            "question": question,
            "_entries": tuple(map(check.frozen, (matrix.data, matrix.indices, matrix.indptr))),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return CMDP, (self.P, self.r, self.u, self.gamma, self.rho0, self.ends, self.question)

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
        gamma, rho0
            As for `CMDP`; by default the first state is drawn as by the environment.
        cost : callable, optional
            The cost of an outcome, ``cost(s, a, s_next, reward, terminated)``: a number, or an array of several.
        limits, limit_on
            Needed with a cost: upper limits, one for each, of the discounted "total", or "average" of a step.

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
        shape = S, A = table.n_states, table.n_actions
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
        question, u = replace(unscaled, scales=tuple(scales.tolist())), (u / scales[:, None]).reshape(-1, *shape)
        some_ends = ends.reshape(shape) if ends.any() else None
        return cls(P, (r / reward_scale).reshape(shape), u, gamma, rho0, some_ends, question)

    def unconstrained(self) -> CMDP:
        """Return the same problem without its utilities."""
        free = self.question
        if free is not None:
            free = replace(free, names=(), limits=(), limit_on=None, columns=(), scales=())
        return CMDP(self.P, self.r, self.u[:0], self.gamma, self.rho0, self.ends, free)

    def __repr__(self) -> str:
        sizes = f"n_states={self.n_states}, n_actions={self.n_actions}, n_utilities={self.n_utilities}"
        return f"CMDP({sizes}, gamma={self.gamma:g})"

    @property
    def P(self) -> sp.csr_array:
        """Transition probabilities, shape (S*A, S); each time a new object, so that nothing can be assigned to it."""
        matrix = sp.csr_array(self._entries, shape=(self.r.size, self.n_states))
        matrix.has_canonical_format = True
        return matrix

    @property
    def n_states(self) -> int:
        """Number of states S."""
        return self.r.shape[0]

    @property
    def n_actions(self) -> int:
        """Number of actions A."""
        return self.r.shape[1]

    @property
    def n_utilities(self) -> int:
        """Number of utilities I."""
        return self.u.shape[0]

    @cached_property
    def rows(self) -> Rows:
        """The pairs as rows that exact answers are computed from."""
        gains = np.concatenate([self.r.reshape(1, -1), self.u.reshape(-1, self.r.size)])
        ends = np.full(self.r.size, 1 - self.gamma)
        ends += 0.0 if self.ends is None else self.gamma * self.ends.ravel()
        first = np.arange(self.n_states + 1) * self.n_actions
        return Rows.from_matrix(self.P, first, gains, ends, self.gamma, self.rho0, self.r.shape)

    # ---- Exact answers ----

    def evaluate(self, policy: ArrayLike) -> Evaluation:
        """Evaluate a policy, given by its action probabilities in each state, shape (S, A).

        Up to 1000 states each entry of the occupancy has a relative error of some 1e-14, whatever gamma is and
        however small the transition probabilities are; the probability of staying in a state is taken to be what
        those of leaving it leave to one. Beyond, the occupancy is within some 1e-15/(1-gamma)^2 in the 1-norm, and
        ``RuntimeError`` is raised if it cannot be shown to be within 1e-6/(1-gamma).

        Examples
        --------
        >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> one_state.evaluate([[0.25, 0.75]])
        Evaluation(reward=0.5, utilities=array([1.]), occupancy=array([[0.5, 1.5]]))
        """
        return _evaluation(self.rows, check.policy_array("policy", policy, self.n_states, self.n_actions))

    def solve(
        self,
        kappa: float = 0.0,
        psi: float | None = None,
        mu: ArrayLike | None = None,
        method: str = "auto",
        tol: float = 0.0,
        *,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> Solution:
        """Find the best policy with J^u_i >= kappa for every i.

        Parameters
        ----------
        kappa : float
            Conservatism.
        psi : float, optional
            With `mu`: consider only policies in Pi(psi), those whose occupancy lies in D(psi).
        mu : array_like, shape (S, A), optional
            The data distribution.
        method : {"auto", "planner", "lp"}
            "lp": one linear program over occupancies, which takes minutes beyond some 5,000 pairs. "planner": column
            generation over policies (`dpdl.models.planner`), which knows no `psi`. "auto" takes what measures quicker:
            the linear program with `psi` and up to 2,000 pairs, the planner otherwise. Up to 5,000 pairs it tries the
            linear program as well if the planner's answer is inaccurate.
        tol : float
            Relative gap that the planner may leave; it is then quicker.
        time_limit : float, optional
            Seconds, after which the status is "limit". The planner then returns the best policy so far, with bounds; a
            linear program has nothing to return.
        progress : bool, optional
            Show the planner's bounds in a line on standard error after two seconds; by default if that is a terminal.

        Returns
        -------
        Solution
            Look at its `status`. Bounds and multipliers come with the policy, and a proof if no policy is safe. Also
            after Ctrl-C, with status "interrupted", if the planner has found a safe policy by then; otherwise, and from
            linear programs, it raises KeyboardInterrupt.

        Examples
        --------
        >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> best = one_state.solve()
        >>> best.status, round(best.reward, 9), best.policy.round(9)
        ('optimal', 1.0, array([[0.5, 0.5]]))
        >>> round(best.upper, 9), best.lam.round(9)
        (1.0, array([0.5]))
        >>> one_state.solve(kappa=2.5).status
        'infeasible'
        """
        kappa = check.real("kappa", kappa)
        method = check.choice("method", method, ("auto", "planner", "lp"))
        tol = check.real("tol", tol, at_least=0)
        seconds, progress = check.seconds("time_limit", time_limit), check.optional_flag("progress", progress)
        deadline, planned, capped = time.monotonic() + seconds, None, psi is not None or mu is not None
        if method == "planner" and capped:
            raise ValueError("method 'planner' knows no psi and mu: use 'lp'")
        rows, sizes = self.rows.normalised()
        margins = kappa / sizes[1:]
        if method == "planner" or (method == "auto" and not capped and self.r.size >= PLANNER_PAIRS):
            planner = Planner(rows, tol, deadline=deadline, progress=progress)
            planned = planner.plan(margins, interruptible=True).scaled(sizes)
            if method == "planner" or planned.status != "inaccurate" or self.r.size > LP_PAIRS:
                return planned
        try:
            solution = self._by_program(rows, margins, psi, mu, deadline).scaled(sizes)
        except TimeoutError:
            return self._no_policy("limit") if planned is None else planned
        except KeyboardInterrupt:
            if planned is None:
                raise
            return replace(planned, status="interrupted")
        return solution if planned is None or solution.gap <= planned.gap else planned

    def _by_program(
        self, rows: Rows, margins: Array, psi: float | None, mu: ArrayLike | None, deadline: float
    ) -> Solution:
        closed, unit = rows.closed(), 1 - self.gamma
        program = programs.largest_reward(closed, unit * margins, self._caps(closed, psi, mu))
        answer = replace(program, deadline=deadline).solve()
        V, lam = answer.multipliers()
        if answer.infeasible:
            return replace(self._no_policy("infeasible"), lam=lam, V=V)
        policy = answer.policy[: self.r.size].reshape(self.r.shape)
        return Solution(
            **vars(_evaluation(rows, policy)),
            status="optimal" if answer.certain else "inaccurate",
            policy=policy,
            lower=float(answer.value / unit) if answer.feasible else -np.inf,
            upper=float(answer.bound / unit),
            lam=lam,
            V=V,
        )

    def _no_policy(self, status: str) -> Solution:
        return Solution.empty(status, self.r.shape, self.n_states, self.n_utilities)

    def _caps(self, closed: Rows, psi: float | None, mu: ArrayLike | None) -> Array:
        if (psi is None) != (mu is None):
            raise ValueError("psi and mu must be given together, or neither")
        if psi is None or mu is None:
            return programs.region(closed)
        psi = check.real("psi", psi, at_least=1)
        return programs.region(closed, psi, check.distribution("mu", mu, self.r.shape))

    def slater(self, psi: float | None = None, mu: ArrayLike | None = None) -> float:
        """Return the largest constant for which Slater's condition holds: (1-gamma) max over policies of min_i J^u_i.

        Negative if no policy is safe. With `psi` and `mu`, over the policies in Pi(psi), and -inf if there is
        none. To 1e-9 of the largest utility, as a rule; ``RuntimeError`` if not even 1e-6 can be shown, which may
        happen where `solve` says "inaccurate".

        Examples
        --------
        >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 0.5]]], gamma=0.5, rho0=[1.0])
        >>> round(one_state.slater(), 9)
        0.5
        """
        if self.n_utilities == 0:
            raise ValueError("cmdp has no utilities, so Slater's condition says nothing about it")
        rows, sizes = replace(self.rows, gains=self.rows.gains[1:]).normalised(alike=True)
        rows = replace(rows, gains=np.pad(rows.gains, ((1, 0), (0, 0))))  # no reward
        size = float(sizes[0])
        if psi is None and mu is None and self.r.size >= PLANNER_PAIRS:
            lower, upper = Planner(rows, progress=None).most_careful(np.zeros(self.n_utilities), 0.0).slater
            if upper - lower <= 1e-6:
                return size * lower
        closed = rows.closed()
        answer = programs.largest_margin(closed, self._caps(closed, psi, mu)).solve()
        return -np.inf if answer.infeasible else size * (answer.shown("the Slater constant") - 1)

    def concentrability(self, mu: ArrayLike) -> float:
        """Return C*, the least psi for which some optimal policy lies in Pi(psi); inf if `mu` covers no optimal policy.

        Optimal means: within 1e-9/(1-gamma) of the best reward, in units of the largest reward of a step. An action
        that costs less than that counts as a tie; otherwise C* is low by a relative error of about 1e-9 over the loss
        that straying from the optimum causes. ``ValueError`` if no policy is safe, ``RuntimeError`` if C* cannot be
        shown to 1e-3, which may happen where `solve` says "inaccurate".

        Examples
        --------
        >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> round(one_state.concentrability([[0.25, 0.75]]), 6)
        4.0
        >>> one_state.concentrability([[0.0, 1.0]])
        inf
        """
        data = check.distribution("mu", mu, self.r.shape)
        closed = self.rows.normalised()[0].closed()
        covered = programs.largest_reward(closed, 0.0, programs.region(closed)).solve()
        if covered.infeasible:
            raise ValueError("cmdp has no safe policy, so it has no optimal one to cover")
        reward = covered.shown("the largest reward") - programs.TOLERANCE
        support = data.ravel() > 0
        if covered.q[: data.size][~support].any():
            covered = programs.largest_reward(closed, 0.0, programs.region(closed, np.inf, data)).solve()
            if covered.infeasible or covered.shown("the largest reward that the data covers") < reward:
                return np.inf
        ratios = np.divide(covered.q[: data.size], data.ravel(), where=support, out=np.zeros(data.size))
        psi = max(1.0, float(ratios.max()))
        # The answer must be of order one in the units of the program, because HiGHS's tolerance is absolute.
        for _ in range(50):
            answer = programs.least_deviation(closed, reward, programs.region(closed, psi, data)).solve()
            scale, psi = psi, max(1.0, psi * -answer.shown("the concentrability", 1e-3))
            if 0.1 * scale <= psi <= 10 * scale:
                break
        return psi

    # ---- Logs ----

    def sample(self, n: int, mu: ArrayLike, rng: Any = None) -> Dataset:
        """Draw `n` independent transitions: (s, a) ~ mu, then s' ~ P(. | s, a), with exact rewards and utilities.

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

        It begins in state `start` if that is given. Otherwise, and after the end of an episode, the first state is
        drawn from rho0.

        Examples
        --------
        >>> P = [[[0.0, 1.0]], [[1.0, 0.0]]]
        >>> clock = CMDP(P, r=[[0.0], [1.0]], u=[[[1.0], [1.0]]], gamma=0.5, rho0=[1.0, 0.0])
        >>> clock.rollout(4, [[1.0], [1.0]], rng=0).s.tolist()
        [0, 1, 0, 1]
        """
        n = check.whole("n", n, at_least=1)
        probabilities = check.policy_array("policy", policy, self.n_states, self.n_actions)
        rng, initial = check.generator(rng), _cumulative(self.rho0[None])[0]
        if start is None:
            first = int(np.searchsorted(initial, rng.random(), side="right"))
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
            initial,
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


def _evaluation(rows: Rows, policy: Array) -> Evaluation:
    pi = policy / policy.sum(axis=1, keepdims=True)
    occupancy = rows.occupancy(pi.ravel())[0][:, None] * pi / (1 - rows.gamma)
    reward, *utilities = rows.gains @ occupancy.ravel()
    return Evaluation(float(reward), np.array(utilities), occupancy)


def _cumulative(probabilities: Array) -> Array:
    """Return cumulative sums along the rows, exactly one from the last positive entry on."""
    cdf = np.cumsum(probabilities, axis=1)
    n = probabilities.shape[1]
    last = n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    return np.where(np.arange(n) >= last[:, None], 1.0, np.minimum(cdf, 1.0))


def _beyond_rounding(totals: Array, n: Any) -> Array:
    """Return sums of n probabilities, or one if they are that up to rounding: what was scaled is not scaled again."""
    return np.where(abs(totals - 1) <= np.finfo(float).eps * (n + 2), 1.0, totals)


def _transitions(P: Any, ends: ArrayLike | None) -> tuple[sp.csr_array, Array | None, Array]:
    """Check transition probabilities and those of ends; return them with the sum of each row of both together."""
    if sp.issparse(P):
        if P.ndim != 2 or 0 in P.shape or P.shape[0] % P.shape[1]:
            raise ValueError(f"P must have shape (S*A, S), got {P.shape}")
        matrix = check.sparse_array("P", P)
    else:
        array = check.numbers_array("P", P, shape=(None, None, None), copy=False)
        if array.shape[2] != array.shape[0] or array.size == 0:
            raise ValueError(f"P must have shape (S, A, S), got {array.shape}")
        matrix = sp.csr_array(array.reshape(-1, array.shape[0]))
    n_states, n_actions = matrix.shape[1], matrix.shape[0] // matrix.shape[1]
    wrong = np.flatnonzero(~(np.isfinite(matrix.data) & (matrix.data >= 0)))
    if wrong.size:
        pair = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        s, a = divmod(pair, n_actions)
        value = float(matrix.data[wrong[0]])
        raise ValueError(f"P[{s}, {a}, {matrix.indices[wrong[0]]}] = {value!r} must be finite and >= 0")
    matrix.eliminate_zeros()
    totals, ended = np.asarray(matrix.sum(axis=1)), None
    if ends is not None:
        ended = check.numbers_array("ends", ends, shape=(n_states, n_actions), at_least=0, at_most=1)
        totals = totals + ended.ravel()
    wrong = np.flatnonzero(abs(totals - 1) > check.SUM_TOLERANCE)
    if wrong.size:
        s, a = divmod(int(wrong[0]), n_actions)
        with_ends = "" if ended is None else f" with ends[{s}, {a}] = {ended[s, a].item()!r}"
        hint = "; declare ends of episodes by ends=" if ended is None and totals[wrong[0]] < 1 else ""
        raise ValueError(f"P[{s}, {a}] must sum to 1{with_ends}, got {totals[wrong[0]]:.12g}{hint}")
    return matrix, ended if ended is not None and ended.any() else None, totals
