"""``dpdl learn`` and ``dpdl resume``: the paper's method, its checkpoints, and the picture of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dpdl.commands.logs import initial, opened, question
from dpdl.commands.output import INTERRUPTED, NOT_ENOUGH_DATA, OK, Folder, plain, show
from dpdl.learner import adaptive
from dpdl.learner import learn as learning
from dpdl.recording import Recorder
from dpdl.result import Result
from dpdl.stopping import Status

POLICY, RESULT, PICTURE = "policy.json", "result.json", "convergence.png"
SETTINGS = ("gamma", "psi", "slater", "T", "eps", "kappa", "floor", "order", "mixing_time")


def learn(options: Any) -> int:
    """Learn a policy from the log."""
    out = _folder(options)
    log = opened(options)
    given = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    recorder = Recorder()
    run = adaptive.learn_adaptive if options.adaptive else learning.learn
    keywords = _keywords(options, recorder)
    if options.checkpoint is not None:
        keywords["checkpoint"] = options.checkpoint
    return _finish(
        run(log, rng=options.seed, **given, **question(options), **initial(options, log), **keywords),
        options,
        recorder,
        out,
    )


def resume(options: Any) -> int:
    """Continue a run from its checkpoint."""
    out, recorder = _folder(options), Recorder()
    result = learning.resume(options.checkpoint, opened(options), **_keywords(options, recorder))
    return _finish(result, options, recorder, out)


def _folder(options: Any) -> Folder | None:
    names = (POLICY, RESULT, PICTURE)
    return None if options.out is None else Folder(options.out, names, overwrite=options.overwrite)


def _keywords(options: Any, recorder: Recorder) -> dict[str, Any]:
    keywords = {name: getattr(options, name) for name in ("time_limit", "step_limit", "every")}
    keywords = {name: value for name, value in keywords.items() if value is not None}
    if options.out is not None:  # nobody would see the picture otherwise
        keywords["callback"] = recorder
    return {**keywords, "progress": False if options.json else None}


def _finish(result: Result, options: Any, recorder: Recorder, out: Folder | None) -> int:
    content = {
        "status": result.status.name,
        "success": result.success,
        "message": result.message,
        "evaluation": result.evaluation,
        "n_steps": result.n_steps,
        "settings": result.settings,
        "guarantee": result.guarantee,
        "notes": result.notes,
    }
    files: dict[str, Path] = {}
    if out is not None:
        out.clear()
        result.policy.save(out / POLICY)
        (out / RESULT).write_text(json.dumps(plain(content), indent=1) + "\n")
        files = {"policy": out / POLICY, "result": out / RESULT, **_picture(recorder, out / PICTURE)}
    text = repr(result)
    if options.checkpoint is not None and result.status in (Status.INTERRUPTED, Status.TIME_LIMIT, Status.STEP_LIMIT):
        text += f"\n\nto go on: dpdl resume {options.checkpoint} {options.log}"
    show(options, content, text, files)
    if result.status is Status.INTERRUPTED:
        return INTERRUPTED
    return OK if result.success else NOT_ENOUGH_DATA


def _picture(recorder: Recorder, path: Path) -> dict[str, Path]:
    if len(recorder.steps) < 2:
        return {}
    try:
        from dpdl.plots import draw_convergence
    except ImportError:
        print("No picture: matplotlib is not installed; pip install 'dpdl[plot]'", file=sys.stderr)
        return {}
    draw_convergence(recorder, path)
    return {"picture": path}
