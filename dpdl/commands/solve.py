"""``dpdl solve`` and ``dpdl certify``: certified answers, and certificates of given policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpdl._core import Interrupts
from dpdl.acting import Policy
from dpdl.commands.logs import initial, opened, question
from dpdl.commands.output import INFEASIBLE, INTERRUPTED, MISFIT, NOT_ENOUGH_DATA, OK, Folder, show
from dpdl.data.dataset import Dataset
from dpdl.report import write_report
from dpdl.safety.answer import Answer
from dpdl.safety.certificate import certify as certificate_of
from dpdl.safety.safe import safe_policy

POLICY, ANSWER, REPORT = "policy.json", "answer.json", "report.html"
CODES = {
    "CERTIFIED": OK,
    "INFEASIBLE": INFEASIBLE,
    "NOT_ENOUGH_DATA": NOT_ENOUGH_DATA,
    "MISFIT": MISFIT,
    "STOPPED": NOT_ENOUGH_DATA,
}


def solve(options: Any) -> int:
    """Find a certified policy, print the answer and write it to OUT."""
    out = None if options.out is None else Folder(options.out, (POLICY, ANSWER, REPORT), overwrite=options.overwrite)
    log = opened(options)
    with Interrupts() as interrupts:  # after Ctrl-C there is an answer all the same: the best so far
        answer = safe_policy(
            log,
            gamma=options.gamma,
            delta=options.delta,
            cost_max=dict(options.cost_max or ()) or None,
            accept_misfit=options.accept_misfit,
            time_limit=options.time_limit,
            progress=False if options.json else None,
            **question(options),
            **initial(options, log),
        )
        interrupted = interrupts.came()
    files = {} if out is None else _write(answer, log, out)
    content = {
        "status": answer.status,
        "message": answer.message,
        "certificate": answer.certificate,
        "coverage": answer.coverage,
        "candidates": answer.candidates,
        "needed": answer.needed,
        "notes": answer.notes,
        "settings": answer.settings,
    }
    show(options, content, repr(answer), files)
    return INTERRUPTED if interrupted else CODES[answer.status.name]


def _write(answer: Answer, log: Dataset, out: Folder) -> dict[str, Path]:
    """Write the policy last: whoever finds it finds its certificate too."""
    out.clear()
    files = {"answer": out / ANSWER, "report": out / REPORT}
    answer.save(out / ANSWER)
    write_report(answer, out / REPORT, log=log)
    if answer.policy is not None:
        answer.policy.save(out / POLICY)
        files = {"policy": out / POLICY, **files}
    return files


def certify(options: Any) -> int:
    """Certify a policy of a file on a log."""
    policy = Policy.load(options.policy)
    log = opened(options, None if policy.labels is None else policy.labels.discretizer)
    settings = {
        "gamma": options.gamma,
        "delta": options.delta,
        "cost_max": dict(options.cost_max or ()) or None,
        "accept_misfit": options.accept_misfit,
    }
    found = certificate_of(aligned(policy, log), log, **settings, **question(options), **initial(options, log))
    text = f"{options.policy}: {'certified' if found.holds else 'NOT certified'} on {options.log}\n\n{found!r}"
    status = "CERTIFIED" if found.holds else "MISFIT" if found.misfit else "NOT_CERTIFIED"
    show(options, {"status": status, "certificate": found}, text)
    return OK if found.holds else MISFIT if found.misfit else NOT_ENOUGH_DATA


def aligned(policy: Policy, log: Dataset) -> Policy:
    """The policy with the states and actions of a log in the log's order, found by their labels.

    A ValueError names a state of the log that the policy does not know, or an action of the policy that the log never
    shows.
    """
    n_states, n_actions = policy.shape
    if policy.labels is None or log.labels is None:
        if (n_states, n_actions) != (log.n_states, log.n_actions):
            raise ValueError(
                f"the policy is for {n_states} states and {n_actions} actions, and the log has {log.n_states} and "
                f"{log.n_actions}"
            )
        return policy
    table = np.zeros((log.n_states, log.n_actions))
    columns = {label: k for k, label in enumerate(log.labels.actions)}
    for row, state in enumerate(log.labels.states):
        for action, share in zip(policy.labels.actions, policy[policy.labels.state(state)], strict=True):
            if share > 0 and action not in columns:
                raise ValueError(f"in state {state!r} the policy takes {action!r}, which the log never shows")
            if share > 0:
                table[row, columns[action]] = share
    return Policy(table, log.labels, policy.question)
