"""Answers to "which policy may I deploy?": a certified policy, or why there is none.

A saved answer is one JSON file (`dpdl.files.saved`) with the fields of `Answer`.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.acting import Comparison, Policy
from dpdl.files.headers import expect_names
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
class Candidate:
    """A pair of proposals, one of each half, that was tested.

    Attributes
    ----------
    part : float or None
        The part of the predicted width that they keep from the limits; None for the policy that made the log.
    reward : float
        Estimated discounted reward.
    certified : bool
    """

    part: float | None
    reward: float
    certified: bool


@dataclass(frozen=True, kw_only=True)
class Needed:
    """How much data would do, as far as that can be told.

    Attributes
    ----------
    binds : str
        What stands in the way: "noise", "worst row", "first states", or "nothing seen" if a cost is zero in every row.
    n_transitions : int or None
        About how many transitions of the same kind would do; None if that cannot be told, because the estimates
        themselves do not keep the limits.
    where : tuple of (state, action, count, share)
        The pairs whose rows would help most: their visits in the log, and their shares of what binds.
    """

    binds: str
    n_transitions: int | None
    where: tuple[tuple[str, str, int, float], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(Saved):
    """The answer of `safe_policy`; printed, it is what somebody reads who has to sign off.

    Attributes
    ----------
    status : AnswerStatus
    message : str
        The answer in a sentence or two.
    policy : Policy or None
        The certified policy; None unless the status is CERTIFIED.
    certificate : Certificate
        Of that policy; otherwise of the policy that came closest, as the evidence.
    coverage : Coverage
        What the log shows, and what that policy needs of it.
    candidates : tuple of Candidate
        What was tested, in order.
    needed : Needed or None
        How much data would do; None unless that is the answer.
    notes : tuple of str
    settings : dict
        What was asked for, gamma, delta and accept_misfit, and how proposals were made: n_min, pessimism.
    """

    FORMAT, VERSION = "dpdl answer", 2
    status: AnswerStatus
    message: str
    policy: Policy | None = field(repr=False)
    certificate: Certificate
    coverage: Coverage
    candidates: tuple[Candidate, ...] = field(repr=False)
    needed: Needed | None
    notes: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def success(self) -> bool:
        """Whether there is a certified policy."""
        return self.status is AnswerStatus.CERTIFIED

    def _evidence(self) -> str:
        """What the certificate's table is about."""
        if self.success:
            return "Certificate"
        if self.status is AnswerStatus.MISFIT:
            return "What the certificate would be if the log fitted the model; the policy must not be deployed"
        return "Evidence: what the log shows about the policy that came closest, which must not be deployed"

    def __repr__(self) -> str:
        lines = [f"{self.status.name}: {self.message}", "", self._evidence(), repr(self.certificate), ""]
        lines += self.coverage.lines()
        if self.needed is not None and self.needed.where:
            lines += ["", f"rows that would help most (visits so far, share of what binds, {self.needed.binds}):"]
            lines += [f"  {s}, {a}  {n:,}, {share:.0%}" for s, a, n, share in self.needed.where]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        found = f"<h3>{self.status.name}</h3><p>{escape(self.message)}</p><h4>{escape(self._evidence())}</h4>"
        found += self.certificate._repr_html_() + self.coverage._repr_html_()
        if self.needed is not None and self.needed.where:
            header = ("state", "action", "visits so far", f"share of what binds, {self.needed.binds}")
            found += text.html_table(header, [(s, a, f"{n:,}", f"{x:.0%}") for s, a, n, x in self.needed.where])
        return found + "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)

    def compare(self, policy: ArrayLike) -> Comparison:
        """Compare the certified policy with another one, state by state (`Policy.compare`)."""
        if self.policy is None:
            raise ValueError(f"the answer is {self.status.name}: it has no policy to compare")
        return self.policy.compare(policy)

    def plot(self, ax: Any = None) -> Any:
        """Draw the certificate, and return the axes (extra ``plot``)."""
        return self.certificate.plot(ax)

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file, for `from_json`."""
        return {
            "status": self.status.name,
            "message": self.message,
            "policy": None if self.policy is None else self.policy.to_json(),
            "certificate": self.certificate.to_json(),
            "coverage": self.coverage.to_json(),
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "needed": None if self.needed is None else asdict(self.needed),
            "notes": list(self.notes),
            "settings": self.settings,
        }

    @classmethod
    def from_json(cls, content: Any) -> Answer:
        """Make the answer of what `to_json` returned."""
        expect_names("the answer", content, set(cls.__dataclass_fields__))
        status = AnswerStatus[check.choice("status", content["status"], tuple(AnswerStatus.__members__))]
        policy, needed = content["policy"], content["needed"]
        return cls(
            status=status,
            message=check.text("message", content["message"]),
            policy=None if policy is None else Policy.from_json(policy),
            certificate=Certificate.from_json(content["certificate"]),
            coverage=Coverage.from_json(content["coverage"]),
            candidates=tuple(Candidate(**candidate) for candidate in content["candidates"]),
            needed=None if needed is None else Needed(**{**needed, "where": tuple(map(tuple, needed["where"]))}),
            notes=tuple(content["notes"]),
            settings=content["settings"],
        )
