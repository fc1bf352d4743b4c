"""Answers to "which policy may I deploy?": a certified policy, or why there is none."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl.acting import Comparison, Policy
from dpdl.files.saved import Saved
from dpdl.safety.certificate import Certificate
from dpdl.safety.coverage import Coverage


class AnswerStatus(enum.Enum):
    """The answers, and what was asked for in vain."""

    CERTIFIED = "certified"
    INFEASIBLE = "infeasible"
    NOT_ENOUGH_DATA = "not enough data"
    MISFIT = "the log does not fit the model"
    STOPPED = "stopped before an answer"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """How much data would do, as far as that can be told.

    Attributes
    ----------
    binds : str
        What stands in the way: "noise", "worst row", "first states", or "nothing seen" if a cost is zero in every row.
    n_transitions, n_episodes : int or None
        About how many transitions of the same kind, or episodes if first states bind, would do; None if that cannot be
        told, because the estimates themselves leave hardly any room below the limits.
    where : tuple of (state, action, count, share)
        The pairs whose rows would help most: their visits in the log, and their shares of what binds.
    """

    binds: str
    n_transitions: int | None = None
    n_episodes: int | None = None
    where: tuple[tuple[str, str, int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(text.Shown, Saved):
    """The answer of `safe_policy`; printed, it is what somebody reads who has to sign off.

    Attributes
    ----------
    status : AnswerStatus
    message : str
        The answer in a sentence or two.
    policy : Policy or None
        The certified policy; None unless the status is CERTIFIED.
    certificate : Certificate or None
        Of that policy; otherwise of the policy that came closest, as the evidence. None if there was no time for it.
    coverage : Coverage
        What the log shows, and what that policy needs of it.
    n_tested : int
        How many proposals were tested.
    needed : Needed or None
        How much data would do; None unless that is the answer.
    notes : tuple of str
    settings : dict
        What was asked for, gamma, delta and accept_misfit, and how proposals were made: n_min, pessimism.
    """

    FORMAT, VERSION = "dpdl answer", 3
    status: AnswerStatus
    message: str
    policy: Policy | None = None
    certificate: Certificate | None = None
    coverage: Coverage
    n_tested: int = 0
    needed: Needed | None = None
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether there is a certified policy."""
        return self.status is AnswerStatus.CERTIFIED

    @property
    def evidence(self) -> str:
        """What the certificate's table is about."""
        if self.success:
            return "Certificate"
        if self.status is AnswerStatus.MISFIT:
            return "What the certificate would be if the log fitted the model; the policy must not be deployed"
        return "Evidence: what the log shows about the policy that came closest, which must not be deployed"

    def parts(self) -> Iterator[str | text.Table]:
        """The answer, its certificate, the coverage, and where data is missing."""
        yield f"{self.status.value.upper()}: {self.message}"
        if self.certificate is not None:
            yield from ("", self.evidence, *self.certificate.parts())
        yield from self.coverage.parts()
        if self.needed is not None and self.needed.where:
            header = ("rows that would help most: state", "action", "visits so far", f"share of {self.needed.binds}")
            yield header, [(s, a, f"{n:,}", f"{share:.0%}") for s, a, n, share in self.needed.where]
        yield from (f"note: {note}" for note in self.notes)

    def compare(self, policy: ArrayLike) -> Comparison:
        """Compare the certified policy with another one, state by state (`Policy.compare`)."""
        if self.policy is None:
            raise ValueError(f"the answer is {self.status.value!r}: it has no policy to compare")
        return self.policy.compare(policy)

    def plot(self, ax: Any = None) -> Any:
        """Draw the certificate, and return the axes (extra ``plot``)."""
        if self.certificate is None:
            raise ValueError(f"the answer is {self.status.value!r}: it has no certificate to draw")
        return self.certificate.plot(ax)
