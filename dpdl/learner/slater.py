"""The Slater constant from data: varphi = (1-gamma) max over policies of min_i J^u_i, between two confidence bounds.

The log is split into two halves. The first half chooses policies and functions, and the second, which is independent of
these choices, gives the bounds. For a function W and a pair (s, a), its records bound E[u + gamma W(s') | s, a] by the
empirical Bernstein inequality (Maurer and Pontil 2009): mean -+ sqrt(2 v l/n) -+ 7 b l/(3 (n-1)), with the sample
variance v, the width b of the interval that u + gamma W lies in, and l = log(2/share of delta). Pairs without records
have the trivial bounds, and no bound is looser than those.

Lower bound. The first half gives a policy pi and a W for each utility. If W <= T W - x in every state, where T is
pi's Bellman operator, then J^u >= rho0 W + x/(1-gamma): so x is the least, over states, of the lower bound of T W - W.

Upper bound, over policies whose occupancy nu is at most psi mu_hat/(1-gamma). The first half gives weights w (they
sum to one) and a V. For every occupancy min_i J^u_i <= <w, J^u> = rho0 V + sum of nu g, g(s, a) being
E[<w, u> + gamma V(s') | s, a] - V(s). With the upper bounds of g, the largest such sum is a knapsack: pairs in order
of g, each filled to its cap, until nu sums to 1/(1-gamma).

In a trajectory the number of records of a pair depends on their next states: failure probability delta/(S A n (n+1)) is
then used for each pair and each n, which sums to delta. Independent records can be bounded conditionally on their
pairs, so delta is divided by the number of pairs that occur. The choices of the first half do not depend on the second,
not even on how often it visits a pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.linalg import splu

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.models import linear_programs as programs
from dpdl.models.answers import slater
from dpdl.models.cmdp import CMDP
from dpdl.models.plug_in import plug_in
from dpdl.question import pose


@dataclass(frozen=True)
class SlaterEstimate:
    """Estimate of the Slater constant from a log, with confidence bounds.

    Attributes
    ----------
    estimate : float
        The Slater constant of the plug-in model, without any guarantee: -inf if no policy of that model keeps within
        psi of the data distribution, NaN if HiGHS could not tell, as may happen with gamma above 0.999999.
    lower : float
        `policy` has every J^u_i >= lower/(1-gamma), with confidence 1 - delta. Pass it as `slater` if it is positive;
        if not, the log does not show that any policy is safe.
    upper : float
        No policy (within psi of the data distribution, if psi was given) has every J^u_i > upper/(1-gamma), with
        confidence 1 - delta.
    policy : array, shape (S, A)
        The policy of `lower`.
    delta : float
        Failure probability of each of the two bounds.
    """

    estimate: float
    lower: float
    upper: float
    policy: Array = field(repr=False)
    delta: float


def estimate_slater(
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    psi: float | None = None,
    delta: float = 0.05,
) -> SlaterEstimate:
    """Estimate the Slater constant (varphi) that `learn` asks for, with confidence bounds.

    Parameters
    ----------
    log : Dataset
        The log, at least two transitions. Its model is solved by linear programming: for up to some 10^4 pairs.
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    rho0, initial_states : optional
        Distribution of the initial state, or a log of initial states; one of the two.
    psi : float, optional
        Ask only for policies whose occupancy is at most psi/(1-gamma) times the empirical distribution of the pairs.
        The lower bound's policy keeps to that in the plug-in model of the first half, or as nearly as it can.
    delta : float, optional
        Failure probability of each bound. They are finite-sample bounds: valid for any log, and wide for a short one.

    Returns
    -------
    SlaterEstimate

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 4000)
    >>> log = Dataset(0 * a, a, 0 * a, 1.0 - a, (a - 0.5)[:, None], n_states=1, n_actions=2)
    >>> found = estimate_slater(log, gamma=0.5, rho0=[1.0])
    >>> round(found.estimate, 3), 0.4 < found.lower < 0.5 < found.upper < 0.6
    (0.5, True)
    """
    log = pose(log, gamma, limits, limit_on)
    first, second, gamma, rho0 = _halves(log, gamma, rho0, initial_states)
    if psi is not None:
        psi = check.real("psi", psi, at_least=1)
    delta = check.real("delta", delta, above=0, below=1)
    caps = np.ones(log.n_states * log.n_actions) if psi is None else psi * log.frequencies.ravel()
    model = plug_in(first, gamma, rho0)
    policy = _careful_policy(model, first, psi, delta)
    whole = plug_in(log, gamma, rho0)
    try:
        estimate = slater(whole, psi, None if psi is None else log.frequencies)
    except RuntimeError:
        estimate = math.nan
    return SlaterEstimate(
        estimate=estimate,
        lower=max(-1.0, _lower(model, first, second, policy, delta)),
        upper=min(1.0, _upper(model, first, second, psi, caps, delta)),
        policy=policy,
        delta=delta,
    )


# ---- Choices from the first half ----


def _halves(dataset: Any, gamma: float, rho0: Any, initial_states: Any) -> tuple[Dataset, Dataset, float, Array]:
    """Two halves, of which the second is independent of the first given which pairs it visits; checked arguments."""
    check.instance("dataset", dataset, Dataset)
    if dataset.n_utilities == 0:
        raise ValueError("the data set has no utilities, so Slater's condition says nothing about it")
    if len(dataset) < 2:
        raise ValueError("the data set has one transition; at least two are needed")
    initial = dataset.initial(rho0, initial_states)
    middle = len(dataset) // 2
    ends = dataset[:middle], dataset[middle:]
    if dataset.kind == "independent" and dataset.repeats is None:
        # Use every other record, which suits a sorted log, unless that puts the pairs of an alternating log into
        # different halves. The choice depends on the pairs only, not on rewards and next states, so the bounds hold.
        every_other = dataset[::2], dataset[1::2]
        in_both = [np.minimum(*(part.table_counts for part in parts)).sum() for parts in (every_other, ends)]
        if in_both[1] <= 1.5 * in_both[0]:
            ends = every_other
    return *ends, gamma, initial


def _best_margin(model: CMDP, dataset: Dataset, psi: float | None) -> programs.Margin:
    """The best worst utility in a model, near the data if asked; RuntimeError if HiGHS fails."""
    closed = model.closed()
    caps = programs.region(closed) if psi is None else programs.region(closed, psi, dataset.frequencies.ravel())
    found = programs.penalised_margin(closed, caps, 2 / (1 - model.gamma))
    if model.ends is None:
        return found
    return programs.Margin(
        found.q[: model.r.size], found.V[:-1] - found.V[-1], found.weights
    )  # nothing follows the end


def _careful_policy(model: CMDP, first: Dataset, psi: float | None, delta: float) -> Array:
    """The policy of the best worst utility in the plug-in model, its utilities lowered by how uncertain they are."""
    shape, gamma = model.r.shape, model.gamma

    def best(utilities: Array) -> Array:
        changed = CMDP(model.P, model.r, utilities, gamma, model.rho0, model.ends)
        try:
            q = _best_margin(changed, first, psi).q
        except RuntimeError:  # HiGHS failed; any policy is valid, so use that of the data
            q = first.frequencies.ravel()
        return policies.from_occupancy(q.reshape(shape))

    policy = best(model.u)
    lowered = np.empty_like(model.u)
    for i, W in enumerate(_pessimistic_values(model, first, policy, delta)):
        width = _Bounds.of(first, W, gamma, utility=i).half_width(delta / model.n_utilities)
        lowered[i] = np.maximum(-1.0, model.u[i] - width.reshape(shape))
    return best(lowered)


def _pessimistic_values(model: CMDP, first: Dataset, policy: Array, delta: float) -> Array:
    """For each utility, values of the policy with every pair lowered by its uncertainty: the W of the lower bound."""
    (S, A), gamma, worst = policy.shape, model.gamma, -1 / (1 - model.gamma)
    choose = policies.choice_matrix(policy)
    solve = splu(sp.csc_array(sp.eye_array(S) - gamma * (choose @ model.P))).solve
    values = np.empty((model.n_utilities, S))
    for i, u in enumerate(model.u.reshape(-1, S * A)):
        width = np.zeros(S * A)
        for _ in range(3):  # the widths depend on W; they change little after the first rounds
            W = np.maximum(worst, solve(choose @ np.maximum(-1.0, u - width)))
            width = _Bounds.of(first, W, gamma, utility=i).half_width(delta / model.n_utilities)
        values[i] = W
    return values


# ---- Bounds from the second half ----


@dataclass(frozen=True)
class _Bounds:
    """Counts, means and variances of u + gamma W(s') at every pair, and the interval that it must lie in."""

    n: Array
    mean: Array
    variance: Array
    low: float
    high: float
    anytime: bool

    @classmethod
    def of(
        cls, dataset: Dataset, W: Array, gamma: float, *, utility: int | None = None, weights: Array | None = None
    ) -> _Bounds:
        size = len(dataset.table)
        total, square = np.zeros(size), np.zeros(size)
        W = np.append(W, 0.0) if dataset.n_ended else W  # s_next = -1, the last entry, is the end
        low, high = -1 + gamma * float(W.min()), 1 + gamma * float(W.max())
        first = 0
        for part, repeats in dataset.parts(at_least=size):
            u = part["u"] @ weights if weights is not None else part["u"][:, utility]
            y = u + gamma * W[part["s_next"]] - 0.5 * (low + high)  # centred, for the sake of the variance
            total += np.bincount(part["pair"], weights=y * repeats, minlength=size)
            y = y * y
            if dataset.spreads is not None:
                spread = dataset.spreads["u"][first : first + len(part)]
                # The standard deviation of a sum is at most the sum of the standard deviations.
                y += (spread @ weights if weights is not None else spread[:, utility]) ** 2
            square += np.bincount(part["pair"], weights=y * repeats, minlength=size)
            first += len(part)
        n = dataset.table_counts.astype(np.float64)
        centred = total / np.maximum(n, 1)
        spread = np.maximum(square - n * centred**2, 0) / np.maximum(n - 1, 1)

        def dense(values: Array) -> Array:
            array = np.zeros(dataset.n_states * dataset.n_actions)
            array[dataset.table] = values
            return array

        return cls(
            dense(n), dense(centred + 0.5 * (low + high)), dense(spread), low, high, dataset.kind != "independent"
        )

    def half_width(self, delta: float) -> Array:
        """Half-widths valid for all visited pairs at once with probability 1 - delta, each side; infinite if n < 2."""
        n = np.maximum(self.n, 2)
        shares = n.size * n * (n + 1) if self.anytime else np.full_like(n, max(1, int(np.count_nonzero(self.n))))
        length = np.log(2 * shares) - math.log(delta)
        width = np.sqrt(2 * self.variance * length / n) + 7 * (self.high - self.low) * length / (3 * (n - 1))
        return np.where(self.n >= 2, width, np.inf)

    def lower(self, delta: float) -> Array:
        return np.maximum(self.low, self.mean - self.half_width(delta))

    def upper(self, delta: float) -> Array:
        return np.minimum(self.high, self.mean + self.half_width(delta))


def _lower(model: CMDP, first: Dataset, second: Dataset, policy: Array, delta: float) -> float:
    """(1-gamma) times the least lower bound of a utility of the policy."""
    gamma, found = model.gamma, []
    for i, W in enumerate(_pessimistic_values(model, first, policy, delta)):
        bound = _Bounds.of(second, W, gamma, utility=i).lower(delta / model.n_utilities)
        excess = (policy * bound.reshape(policy.shape)).sum(axis=1) - W
        # Where W is the least possible value, T W >= W holds for any transition probabilities.
        worst = W <= -1 / (1 - gamma)  # noqa: SIM300
        excess = np.where(worst, np.maximum(excess, 0), excess)
        found.append((1 - gamma) * float(model.rho0 @ W) + float(excess.min()))
    return min(found)


def _upper(model: CMDP, first: Dataset, second: Dataset, psi: float | None, caps: Array, delta: float) -> float:
    """(1-gamma) times the upper bound of the best worst utility under the caps; -inf if they leave no occupancy."""
    gamma, (V, weights) = model.gamma, _prices(model, first, psi)
    bound = _Bounds.of(second, V, gamma, weights=weights).upper(delta)
    gain = bound - np.repeat(V, second.n_actions)
    if model.ends is not None:  # an occupancy may sum to less than one: the rest is in the end, where nothing happens
        gain, caps = np.append(gain, 0.0), np.append(caps, np.inf)
    return (1 - gamma) * float(model.rho0 @ V) + programs.fill(gain, caps)


def _prices(model: CMDP, first: Dataset, psi: float | None) -> tuple[Array, Array]:
    """V and weights that make the upper bound small. Any choice is valid; if HiGHS fails, V = 0 and equal weights."""
    # Pairs that are not in the first half are worst-case in the plug-in model; here they are best-case.
    unseen = np.setdiff1d(np.arange(model.r.size), first.pairs, assume_unique=True)
    u = model.u.reshape(model.n_utilities, -1).copy()
    u[:, unseen] = 1.0
    hopeful = CMDP(model.P, model.r, u.reshape(model.u.shape), model.gamma, model.rho0, model.ends)
    try:
        margin = _best_margin(hopeful, first, psi)
    except RuntimeError:  # HiGHS failed, as may happen with gamma close to 1
        return np.zeros(model.n_states), np.full(model.n_utilities, 1 / model.n_utilities)
    return margin.V, margin.weights
