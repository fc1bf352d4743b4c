"""Best deterministic policies for weighted sums of reward and utilities.

`Pricing` keeps the policy found last and its values of the reward and of all utilities, so that the next search starts
from that policy's exact value at the new weights. A search is policy iteration with inexact evaluation: a pass over all
rows makes the policy greedy and bounds the optimal value; sweeps over the policy's rows then evaluate it, until the
error is a fraction of what the pass found (Puterman and Shin 1978; `dpdl.models.evaluation`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdl import _planning
from dpdl._validation import Array
from dpdl.models.evaluation import Evaluator

#: The error of an evaluation inside a search, relative to the width of the bounds of the last improvement.
_INEXACT = 0.1
#: If an improvement leaves more than this part of the width of the bounds, the next one passes on news in place.
_SLOW = 0.5
_MOST_IMPROVEMENTS = 1000


class Pricing(Evaluator):
    """Searches for best policies, each starting from the last one."""

    def search(self, weights: Array, enough: Callable[[float, float], bool]) -> tuple[float, Array]:
        """Improve the policy for these weights until enough(lower, upper) holds for the bounds of its value.

        It ends without that if rounding prevents it. Returns the upper bound, and a V that proves it.
        """
        rows = self.rows
        table = rows.indptr, rows.indices, rows.data, rows.first
        offset = np.array([self._offset @ weights])
        gain = weights @ rows.gains
        centred = gain - offset * rows.ends
        X = np.ascontiguousarray((self._X @ weights)[:, None])
        best = np.empty(rows.n_states)
        least, proof, width = np.inf, best, np.inf
        for _ in range(_MOST_IMPROVEMENTS):
            _, low, high = _planning.improve(*table, centred, rows.ends, rows.gamma, X[:, 0], best, self.policy)
            at_start = float(rows.rho0 @ X[:, 0] + offset[0])
            rounding = float(self._rounding(centred, X)[0])
            upper = at_start + high + rounding
            if upper < least:
                least, proof = upper, X[:, 0] + (offset[0] + high + rounding)
            previous, width = width, high - low
            if enough(at_start + low - rounding, least) or width <= 4 * rounding:
                break
            X[:, 0] = best
            if width > _SLOW * previous:
                for backward in (False, True):
                    _planning.improve_in_place(*table, centred, rows.gamma, X[:, 0], self.policy, backward)
            self._settle(gain[self.policy][:, None], X, offset, np.array([_INEXACT * width]))
            centred = gain - offset * rows.ends
        return least, proof
