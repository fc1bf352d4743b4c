"""A problem with its data distribution and the answers that are known of it; public as `dpdl.instances.Instance`."""

from __future__ import annotations

from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models.cmdp import CMDP


@dataclass(frozen=True, eq=False)
class Instance:
    """A CMDP, its data distribution, and the known answers.

    Attributes
    ----------
    cmdp : CMDP
        The model.
    mu : ndarray, shape (S, A)
        The data distribution.
    concentrability : float
        C*, the least psi for which some optimal policy lies in Pi(psi).
    slater : float
        Slater's constant, of all policies.
    optimal_policy : ndarray, shape (S, A)
        The best safe policy.
    optimal_value : float
        Its reward J*.
    """

    cmdp: CMDP
    mu: Array = field(repr=False)
    concentrability: float
    slater: float
    optimal_policy: Array = field(repr=False)
    optimal_value: float

    @classmethod
    def of(cls, cmdp: CMDP, mu: ArrayLike) -> Instance:
        """Compute the answers by linear programming.

        Examples
        --------
        >>> machine = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> found = Instance.of(machine, [[0.25, 0.75]])
        >>> round(found.optimal_value, 6), round(found.concentrability, 6), round(found.slater, 6)
        (1.0, 2.0, 1.0)
        """
        check.instance("cmdp", cmdp, CMDP)
        data = check.frozen(check.distribution("mu", mu, cmdp.r.shape))
        best = cmdp.solve()
        if best.status not in ("optimal", "infeasible"):
            raise RuntimeError(f"the best policy of cmdp could not be found: {best.status}")
        return cls(cmdp, data, cmdp.concentrability(data), cmdp.slater(), best.policy, best.reward)
