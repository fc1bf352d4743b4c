"""What exact answers about a known model consist of."""

from __future__ import annotations

from dataclasses import dataclass

from dpdl._validation import Array


@dataclass(frozen=True)
class Evaluation:
    """Reward, utilities and occupancy of a policy.

    Attributes
    ----------
    reward : float
        Expected discounted reward J.
    utilities : ndarray, shape (I,)
        Expected discounted utilities J^u_i; the policy is safe if none is negative.
    occupancy : ndarray, shape (S, A)
        Expected discounted visits, summing to 1/(1-gamma) unless episodes end.
    """

    reward: float
    utilities: Array
    occupancy: Array


@dataclass(frozen=True)
class Solution:
    """The best safe policy, if there is one.

    Tolerances are 1e-9/(1-gamma) in reward and utilities, and 1e-9 in normalised occupancies.

    Attributes
    ----------
    status : {"optimal", "infeasible", "inaccurate"}
        "optimal": the policy meets every constraint, and no policy that does earns more. "infeasible": no policy meets
        every constraint; every number below is NaN (the arrays keep their shapes). "inaccurate": neither could be
        shown, for lack of precision, and the policy may be unsafe or far from the best; the numbers are those of this
        policy. This usually happens only with more than 50 states and gamma within some 1e-6 of one or probabilities
        below 1e-8.
    reward : float
        Expected discounted reward of `policy`.
    utilities : ndarray, shape (I,)
        Expected discounted utilities of `policy`.
    occupancy : ndarray, shape (S, A)
        Discounted occupancy of `policy`.
    policy : ndarray, shape (S, A)
        Action probabilities; uniform in states that the policy never reaches.
    """

    status: str
    reward: float
    utilities: Array
    occupancy: Array
    policy: Array
