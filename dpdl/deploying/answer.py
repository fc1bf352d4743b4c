"""Answers to "which policy may I deploy?": a certified policy, or why there is none.

A saved answer is one JSON file (`dpdl.files.headers.seal`): ``format`` ("dpdl answer"), ``version`` (1), ``status``,
``message``, ``policy`` (null, or what a saved policy holds), ``certificate``, ``coverage``, ``candidates``, ``needed``,
``notes``, ``settings`` and ``checksum``.
"""

from __future__ import annotations

import enum
import os
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.acting import Policy
from dpdl.deploying.certificate import METHODS, Certificate
from dpdl.deploying.coverage import Coverage
from dpdl.files.atomic import replacing_file
from dpdl.files.headers import expect_names, expect_rows, seal, unseal

FORMAT, VERSION = "dpdl answer", 1
SOLVERS = ("plan", "dpdl")


class AnswerStatus(enum.Enum):
    """The three answers."""

    CERTIFIED = "certified"
    INFEASIBLE = "infeasible"
    NOT_ENOUGH_DATA = "not enough data"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy that was tried.

    Attributes
    ----------
    kappa : tuple of float or None
        Margins above the limits that it was planned with, in the caller's units; negative where pessimism already takes
        more. None for the most careful policy.
    psi : float or None
        Deviation that it was planned with; None if it was free.
    pessimism : float
        Standard deviations that were taken off the gains of each pair.
    reward : float
        Estimated discounted reward.
    certified : bool
    """

    kappa: tuple[float, ...] | None
    psi: float | None
    pessimism: float
    reward: float
    certified: bool


@dataclass(frozen=True, kw_only=True)
class Needed:
    """How much data would do, as far as that can be told.

    Attributes
    ----------
    n_transitions : int or None
        About how many transitions of the same kind would do; None if that cannot be told, because the estimates
        themselves do not keep the limits.
    where : tuple of (state, action, count, share)
        The pairs whose rows would help most: their visits in the log, and their shares of the squared standard error.
    """

    n_transitions: int | None
    where: tuple[tuple[str, str, int, float], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
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
        What was tried, in order.
    needed : Needed or None
        How much data would do; None unless that is the answer.
    notes : tuple of str
    settings : dict
        What was asked for: gamma, delta, method, solver.
    """

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
        return "Evidence: what the log shows about the policy that came closest, which must not be deployed"

    def __repr__(self) -> str:
        lines = [f"{self.status.name}: {self.message}", "", self._evidence(), repr(self.certificate), ""]
        lines += self.coverage.lines()
        if self.needed is not None and self.needed.where:
            lines += ["", "rows that would help most (visits so far, share of the squared standard error):"]
            lines += [f"  {s}, {a}  {n:,}, {share:.0%}" for s, a, n, share in self.needed.where]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        found = f"<h3>{self.status.name}</h3><p>{escape(self.message)}</p><h4>{escape(self._evidence())}</h4>"
        found += self.certificate._repr_html_() + self.coverage._repr_html_()
        if self.needed is not None and self.needed.where:
            header = ("state", "action", "visits so far", "share of the squared standard error")
            found += text.html_table(header, [(s, a, f"{n:,}", f"{x:.0%}") for s, a, n, x in self.needed.where])
        return found + "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the answer to one file, for `load`; the format is documented in `dpdl.deploying.answer`."""
        content = {
            "status": self.status.name,
            "message": self.message,
            "policy": None if self.policy is None else self.policy.to_json(),
            "certificate": self.certificate.to_json(),
            "coverage": self.coverage.to_json(),
            "candidates": [asdict(one) for one in self.candidates],
            "needed": None if self.needed is None else asdict(self.needed),
            "notes": list(self.notes),
            "settings": self.settings,
        }
        with replacing_file(check.path("path", path), check.flag("overwrite", overwrite)) as file:
            file.write(seal(FORMAT, VERSION, content))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Answer:
        """Read an answer that `save` wrote; a ValueError says what is wrong with the file."""
        where = check.path("path", path)
        raw = where.read_bytes()
        try:
            return cls._parsed(unseal(raw, FORMAT, VERSION)[1])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None

    @classmethod
    def _parsed(cls, content: dict[str, Any]) -> Answer:
        expect_names("the answer", content, set(cls.__dataclass_fields__))
        status = AnswerStatus[check.choice("status", content["status"], tuple(AnswerStatus.__members__))]
        policy, needed = content["policy"], content["needed"]
        certificate, certified = Certificate.from_json(content["certificate"]), status is AnswerStatus.CERTIFIED
        if (policy is not None) != certified:
            raise ValueError(f"a policy belongs to the status CERTIFIED and to no other, got {status.name}")
        if certificate.holds != certified:
            raise ValueError(f"the status is {status.name}, and the certificate says otherwise")
        if (needed is not None) != (status is AnswerStatus.NOT_ENOUGH_DATA):
            raise ValueError(f"what is needed belongs to the status NOT_ENOUGH_DATA and to no other, got {status.name}")
        for name in ("candidates", "notes"):
            if not isinstance(content[name], list):
                raise ValueError(f"{name} must be a list, got {content[name]!r:.200}")
        settings = content["settings"]
        expect_names("settings", settings, {"gamma", "delta", "method", "solver"})
        return cls(
            status=status,
            message=check.text("message", content["message"]),
            policy=None if policy is None else Policy.from_json(policy),
            certificate=certificate,
            coverage=Coverage.from_json(content["coverage"]),
            candidates=tuple(map(_candidate, content["candidates"])),
            needed=None if needed is None else _needed(needed),
            notes=tuple(check.text("notes", note) for note in content["notes"]),
            settings={
                "gamma": check.real("gamma", settings["gamma"], above=0, below=1),
                "delta": check.real("delta", settings["delta"], above=0, below=1),
                "method": check.choice("method", settings["method"], METHODS),
                "solver": check.choice("solver", settings["solver"], SOLVERS),
            },
        )


def _candidate(content: Any) -> Candidate:
    expect_names("candidate", content, set(Candidate.__dataclass_fields__))
    kappa, psi = content["kappa"], content["psi"]
    return Candidate(
        kappa=None if kappa is None else tuple(check.numbers_array("kappa", kappa).tolist()),
        psi=None if psi is None else check.real("psi", psi, at_least=0),
        pessimism=check.real("pessimism", content["pessimism"]),
        reward=check.real("reward", content["reward"]),
        certified=check.flag("certified", content["certified"]),
    )


def _needed(content: Any) -> Needed:
    expect_names("needed", content, set(Needed.__dataclass_fields__))
    n = content["n_transitions"]
    return Needed(
        n_transitions=None if n is None else check.whole("n_transitions", n),
        where=tuple(
            (check.text("where", s), check.text("where", a), check.whole("where", count), check.real("where", share))
            for s, a, count, share in expect_rows("where", content["where"], 4)
        ),
    )
