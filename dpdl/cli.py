"""The ``dpdl`` command: subcommands, options named as in Python, exit codes, and errors of one line.

Nothing heavy is imported before a subcommand runs, so that ``dpdl --help`` answers at once. Labels come from files, so
whatever is printed has its control characters escaped (`printable`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import enum
import errno
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

OK, ERROR, INFEASIBLE, NOT_ENOUGH_DATA, MISFIT, STOPPED, INTERRUPTED = 0, 1, 3, 4, 5, 6, 130
CODES = dict(CERTIFIED=OK, INFEASIBLE=INFEASIBLE, NOT_ENOUGH_DATA=NOT_ENOUGH_DATA, MISFIT=MISFIT, STOPPED=STOPPED)
POLICY, ANSWER, REPORT, RESULT, PICTURE = "policy.json", "answer.json", "report.html", "result.json", "convergence.png"

EXIT_CODES = """\
exit codes:
  0    certified (solve, certify); the log fits, or cannot be tested (check); no limit is estimated to be broken
       (learn, resume); done (inspect, frontier, demo)
  1    error: one line on standard error says what is wrong
  2    wrong options
  3    infeasible: even the most careful policy that the log supports breaks a limit
  4    not enough data: the log does not show that the limits are kept, or they are estimated to be broken
  5    the log does not fit the model: it does not come from one decision process with these states
  6    the time limit or step limit came first
  130  Ctrl-C: what was done until then is printed and written
"""

LOGS = """\
LOG is a CSV file (.csv, .csv.gz), a Parquet file or a folder of them, a folder that dpdl has written, an HDF5 file
(.hdf5, .h5), an .npz file, or minari:NAME. In tables each column is named by an option; HDF5, npz and Minari logs
have names by default. A folder that dpdl has written knows its columns.
"""

COLUMNS = "--state ward --action drug --reward gain --episode patient --time day --terminated left"
QUESTION = '--gamma 0.95 --limits "side effects=1.5" "icu days=0.8" --limit-on total'

EXAMPLES = {
    "dpdl": [
        "demo                        writes clinic.csv, and does all of this with it",
        "inspect clinic.csv",
        f"solve clinic.csv {COLUMNS} \\\n      {QUESTION} -o answer",
    ],
    "inspect": ["inspect clinic.csv", f"inspect clinic.csv {COLUMNS}"],
    "check": [f"check clinic.csv {COLUMNS} --gamma 0.95"],
    "solve": [f"solve clinic.csv {COLUMNS} \\\n      {QUESTION} --delta 0.05 -o answer"],
    "certify": [f"certify answer/policy.json fresh.csv \\\n      {COLUMNS} \\\n      {QUESTION}"],
    "frontier": [f'frontier clinic.csv {COLUMNS} \\\n      {QUESTION} --constraint "side effects" --values 1 1.5 2'],
    "learn": [
        f"learn clinic.csv {COLUMNS} \\\n      {QUESTION} --seed 0 -o run",
        "learn log --gamma 0.9 --psi 4 --slater 0.2 --T 1e8 --checkpoint run.ckpt -o run",
    ],
    "resume": ["resume run.ckpt log -o run"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    options.command = shlex.join(["dpdl", *(sys.argv[1:] if arguments is None else arguments)])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # arrows on a terminal that has none
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            code = int(options.run(options))
            sys.stdout.flush()  # a full disk or a closed pipe may show only here
            return code
        except BrokenPipeError:
            return _fail("standard output was closed before everything was printed")
        except KeyboardInterrupt:
            _fail("interrupted", "")
            return INTERRUPTED
        except Exception as error:
            return _fail(_one_line(error))


def _fail(message: str, kind: str = "error: ") -> int:
    with contextlib.suppress(OSError):  # standard error may be closed, too
        print(f"dpdl: {kind}{printable(message)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # or the interpreter tries again at its end, and complains
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return ERROR


def _one_line(error: BaseException) -> str:
    """Say what is wrong in one line, with the options of the command line in place of Python's arguments."""
    named = isinstance(error, OSError) and error.strerror and error.filename
    text = " ".join((f"{error.filename}: {error.strerror}" if named else str(error)).split())  # type: ignore[attr-defined]
    if not isinstance(error, (ValueError, TypeError, OSError, ImportError)):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = text.replace("give either rho0 or initial_states", "give --start").replace("overwrite=True", "--overwrite")
    text = text.replace("strict=True", "--strict")
    names = "state action reward costs next_state episode time terminated truncated missing psi slater T eps kappa"
    names += " limits limit_on cost_max delta gamma floor order mixing_time"

    def option(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')}" + (" " if match[2] else "")

    return re.sub(rf"\b({'|'.join(names.split())})=(?=([\"'\w]?))", option, text)


def printable(text: str) -> str:
    """Escape what a terminal would obey: control characters other than line ends and tabs, and changes of direction."""
    risky = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    return re.sub(risky, lambda match: match[0].encode("unicode_escape").decode(), text)


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"dpdl: warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


# Commands.


def demo(options: Any) -> int:
    """Write a clinic's log, find a certified policy, and compare it with the truth."""
    from dpdl.demo import PICTURE, draw_demo, run_demo

    shown = run_demo(options.patients, options.logs, options.seed, say=_print)
    if _draw(lambda _: draw_demo(shown, PICTURE)):
        _print(f"picture:     {PICTURE}")
    return OK


def inspect(options: Any) -> int:
    """Show the columns of a table, or the log that its columns make."""
    import numpy as np

    from dpdl._text import aligned
    from dpdl.data.sources import kind_of
    from dpdl.safety.coverage import coverage

    if options.state is None and kind_of(options.log) == "table":
        return _inspect_columns(options)
    log = _read(options)
    columns = {f"utility {i}": u for i, u in enumerate(log.u.T)} if log.cost_names is None else log.costs
    weights = np.broadcast_to(1 if log.repeats is None else log.repeats, log.r.shape)
    columns = {"reward": log.r, **columns}
    per_row = {name: (x.min(), np.average(x, weights=weights), x.max()) for name, x in columns.items()}
    lines = [f"{options.log}: {len(log):,} transitions, {log.n_states:,} states, {log.n_actions:,} actions"]
    episodes = None if log.initial_counts is None else int(log.initial_counts.sum())
    if episodes is None:
        lines.append(f"independent transitions, {log.n_ended:,} of which end their episode; first states are not known")
    else:
        rest = "; the record of the others stops before that" if log.n_ended < episodes else ""
        lines.append(f"{log.n_ended:,} of {episodes:,} episodes ended{rest}")
    rows = [(name, *(f"{value:.4g}" for value in values)) for name, values in per_row.items()]
    shown = coverage(log)
    lines += ["", "Reward and costs", *aligned(("per row", "least", "mean", "largest"), rows)]
    lines += ["", "Coverage: what the log shows, and how often", repr(shown)]
    lines += [f"note: {note}" for note in log.notes]
    facts = {"per row": per_row, "ended": log.n_ended, "coverage": shown, "notes": log.notes}
    return _show(options, facts, "\n".join(lines))


def _inspect_columns(options: Any) -> int:
    from dpdl._text import aligned
    from dpdl.data.table import connect, create_source

    con = connect()
    columns = {name: _described(con, name) for name, _ in create_source(con, options.log)}
    n = con.execute("SELECT count(*) FROM source").fetchone()[0]
    rows = [(name, row[0], f"{row[1]:,}", f"{row[2]:,}", row[3]) for name, row in columns.items()]
    text = [f"{options.log}: {n:,} rows, {len(columns)} columns", ""]
    text += aligned(("column", "kind", "distinct", "missing", "values"), rows)
    text += ["", "Say which column is what to see the log that they make:"]
    text += [f"  dpdl inspect {shlex.quote(options.log)} --state COLUMN --action COLUMN --reward COLUMN \\"]
    text += ["      --episode COLUMN --terminated COLUMN    (or --next-state COLUMN)"]
    names = ("kind", "distinct", "missing", "values")
    facts = {name: dict(zip(names, row, strict=True)) for name, row in columns.items()}
    return _show(options, {"rows": n, "columns": facts}, "\n".join(text))


def _described(con: Any, name: str) -> tuple[str, int, int, str]:
    """Kind of a column, how many values are distinct and missing, and their range or some of them."""
    value = '"' + name.replace('"', '""') + '"'
    number = f"TRY_CAST({value} AS DOUBLE)"
    counts = f"count(*) - count({value}), count({value}), count({number}), count(DISTINCT {value})"
    query = f"SELECT {counts}, min({number}), max({number}) FROM source"
    missing, present, numbers, distinct, low, high = con.execute(query).fetchone()
    kind = "number" if 0 < present == numbers else "text"
    if kind == "number" and distinct > 5:
        return kind, distinct, missing, f"{low:g} to {high:g}"
    query = f"SELECT DISTINCT {value}::VARCHAR AS label FROM source WHERE label IS NOT NULL ORDER BY label LIMIT 5"
    labels = [label for (label,) in con.execute(query).fetchall()]
    return kind, distinct, missing, (", ".join(labels) + (", ..." if distinct > 5 else ""))[:60]


def check(options: Any) -> int:
    """Test whether the log comes from one decision process with its states."""
    from dpdl.safety.fit import check_model

    fit = check_model(_read(options), gamma=options.gamma)
    _show(options, fit.to_json(), repr(fit))
    return MISFIT if fit.rejected else OK


def solve(options: Any) -> int:
    """Find a certified policy, write the answer to OUT and print it."""
    from dpdl._core import Interrupts
    from dpdl.report import write_report
    from dpdl.safety.safe import safe_policy

    with _output(options, (POLICY, ANSWER, REPORT)) as folder:
        log = _read(options)
        _check_storable(log, folder)
        with Interrupts() as interrupts:  # after Ctrl-C there is an answer all the same: the best so far
            answer = safe_policy(
                log,
                **_question(options, log),
                **_confidence(options),
                time_limit=options.time_limit,
                progress=False if options.json else None,
            )
            interrupted = interrupts.came()
        if folder is not None:
            answer.save(folder / ANSWER)
            told = {"source": str(options.log), "command": options.command, "columns": options.columns}
            write_report(answer, folder / REPORT, log=log, **told)
            if answer.policy is not None:
                answer.policy.save(folder / POLICY)
    content = {name: value for name, value in answer.to_json().items() if name != "policy"}
    _show(options, content, repr(answer), () if answer.policy is not None else (POLICY,))
    return INTERRUPTED if interrupted else CODES[answer.status.name]


def certify(options: Any) -> int:
    """Certify a policy of a file on a log."""
    from dpdl.acting import Policy
    from dpdl.safety.certificate import certify

    policy = Policy.load(options.policy)
    log = _read(options, None if policy.labels is None else policy.labels.discretizer)
    certificate = certify(policy.aligned_with(log), log, **_question(options, log), **_confidence(options))
    text = f"{options.policy}: {'certified' if certificate.holds else 'NOT certified'} on {options.log}"
    status = "CERTIFIED" if certificate.holds else "MISFIT" if certificate.misfit else "NOT_ENOUGH_DATA"
    _show(options, {"status": status, "certificate": certificate.to_json()}, f"{text}\n\n{certificate!r}")
    return CODES[status]


def frontier(options: Any) -> int:
    """Print what each limit of a constraint costs."""
    from dpdl.safety.frontier import frontier

    log = _read(options)
    points = frontier(
        log,
        **_question(options, log),
        constraint=0 if options.constraint is None else options.constraint,
        values=options.values,
        **_confidence(options),
    )
    return _show(options, points.to_json(), repr(points))


def learn(options: Any) -> int:
    """Learn a policy by the paper's method."""
    from dpdl.learner import adaptive, learn

    if options.adaptive and options.strict:
        options.usage_error("--strict is about Algorithm 1; --adaptive, Algorithm 2, reads fresh rows by itself")
    names = ("psi", "slater", "T", "eps", "kappa", "floor", "order", "mixing_time", "checkpoint", "strict")
    settings = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    run = adaptive.learn_adaptive if options.adaptive else learn.learn

    def start(log: Any, keywords: dict[str, Any]) -> Any:
        return run(log, rng=options.seed, **settings, **_question(options, log), **keywords)

    return _run(options, start)


def resume(options: Any) -> int:
    """Continue a run from its checkpoint."""
    from dpdl.learner.learn import resume

    return _run(options, lambda log, keywords: resume(options.checkpoint, log, **keywords))


def _run(options: Any, start: Callable[[Any, dict[str, Any]], Any]) -> int:
    """Run the learner, write the result to OUT and print it."""
    from dpdl.recording import Recorder

    recorder = Recorder()
    given = {name: getattr(options, name) for name in ("time_limit", "step_limit", "every")}
    keywords = {name: value for name, value in given.items() if value is not None}
    keywords |= {"progress": False if options.json else None}
    with _output(options, (POLICY, RESULT, PICTURE)) as folder:
        log = _read(options)
        _check_storable(log, folder)
        if folder is not None:  # nobody would see the picture otherwise
            keywords["callback"] = recorder
        result = start(log, keywords)
        shown = ("status", "success", "message", "evaluation", "n_steps", "settings", "guarantee", "notes")
        content = {name: getattr(result, name) for name in shown}
        if folder is not None:
            result.policy.save(folder / POLICY)
            (folder / RESULT).write_text(json.dumps(plain(content), indent=1) + "\n")
            drawn = len(recorder.rows) > 1 and _draw(lambda plots: plots.draw_convergence(recorder, folder / PICTURE))
    text = repr(result)
    limited = result.status.name in ("TIME_LIMIT", "STEP_LIMIT")
    is_file = options.checkpoint is not None and Path(options.checkpoint).is_file()
    if is_file and (limited or result.status.name == "INTERRUPTED"):
        text += f"\n\nto go on: dpdl resume {shlex.quote(options.checkpoint)} {_log_again(options)}"
    _show(options, content, text, () if folder is None or drawn else (PICTURE,))
    if result.status.name == "INTERRUPTED":
        return INTERRUPTED
    return STOPPED if limited else OK if result.success else NOT_ENOUGH_DATA


def _draw(draw: Callable[[Any], object]) -> bool:
    """Draw with `dpdl.plots`, or say how to get pictures."""
    try:
        plots = import_module("dpdl.plots")
    except ImportError:
        print("No picture: matplotlib is not installed; pip install 'dpdl[plot]'", file=sys.stderr)
        return False
    draw(plots)
    return True


# Logs and questions.


def _read(options: Any, discretizer: Any = None) -> Any:
    """Read the log that the options describe; a policy that is compared with it brings its discretizer along."""
    from dpdl.data.sources import kind_of, read_log
    from dpdl.data.table import files_of

    kind = kind_of(options.log)
    if kind == "table":
        files_of(options.log)  # a file that is not there comes before columns that are not named
    roles = ("state", "action", "reward", "next_state", "episode", "time", "terminated", "truncated")
    given = {name: getattr(options, name) for name in roles if getattr(options, name) is not None}
    given = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in given.items()}
    limits = getattr(options, "limits", None) or ()
    costs = [*(options.costs or ()), *(name for name, limit in limits if (name, type(limit)) != ("reward", str))]
    if costs and kind != "dpdl":  # a folder knows its costs
        given["costs"] = list(dict.fromkeys(costs))
    options.columns = given
    if discretizer is None and options.bins is not None:
        discretizer = {"method": options.discretize or "quantile", "bins": options.bins}
    elif options.discretize is not None and options.bins is None:
        raise ValueError("--discretize needs --bins")
    return read_log(options.log, **given, missing=options.missing, discretizer=discretizer)


def _log_again(options: Any) -> str:
    """The log with its columns, as one would type it again."""
    words = [options.log]
    for name in (*options.columns, "missing", "bins", "discretize"):
        value = options.columns.get(name, getattr(options, name))
        for part in value if isinstance(value, list) else [value] if value not in (None, "error") else []:
            words += [f"--{name.replace('_', '-')}", str(part).lower() if isinstance(part, bool) else str(part)]
    return shlex.join(words)


def _question(options: Any, log: Any) -> dict[str, Any]:
    """Arguments gamma, limits and limit_on; and rho0 for the states of ``--start``, found by their labels."""
    pairs = options.limits or ()
    if len(dict(pairs)) < len(pairs):
        raise ValueError("--limits names a cost twice")
    question: dict[str, Any] = {"gamma": options.gamma}
    question |= {"limits": dict(pairs), "limit_on": options.limit_on} if pairs else {}
    if options.start is None:
        return question
    import numpy as np

    labels = range(log.n_states) if log.labels is None else log.labels.states
    places = {str(label): k for k, label in enumerate(labels)}
    rho0 = np.zeros(log.n_states)
    for name in options.start:
        if name not in places:
            close = ", ".join(difflib.get_close_matches(name, places) or [*places][:3])
            raise ValueError(f"--start {name}: the log has no such state; some that it has: {close}")
        rho0[places[name]] += 1 / len(options.start)
    return question | {"rho0": rho0}


def _confidence(options: Any) -> dict[str, Any]:
    """Arguments delta, cost_max and accept_misfit."""
    cost_max = dict(options.cost_max or ()) or None
    return {"delta": options.delta, "cost_max": cost_max, "accept_misfit": options.accept_misfit}


# Output.


@contextlib.contextmanager
def _output(options: Any, names: Sequence[str]) -> Iterator[Path | None]:
    """Yield a new folder, which replaces OUT at once when all is written; None without ``--out``.

    Whether OUT can be written is known before any work. If the work fails, what is there stays.
    """
    options.files = ()
    if options.out is None:
        yield None
        return
    from dpdl.files.atomic import replacing

    target = Path(os.path.realpath(options.out))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{options.out} is a file, and --out must be a folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    empty = target.is_dir() and not any(target.iterdir())
    with replacing(target, options.overwrite or empty, lambda path: set(os.listdir(path)) <= set(names)) as folder:
        yield folder
    options.files = tuple(names)


def _check_storable(log: Any, folder: Path | None) -> None:
    """Raise now what would be raised when the policy is written: labels that cannot be, or no room."""
    if folder is None:
        return
    if log.labels is not None:
        json.dumps(log.labels.to_json())
    needed = 25 * log.n_states * log.n_actions + 2**21
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free:,} bytes are free, and the answer may need {needed:,}", str(folder.parent))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: enumerations by name, data classes as objects, numbers not finite as null."""

    def other(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.repr and not field.name.startswith("_")]
            return {name: getattr(value, name) for name in names}
        if isinstance(value, enum.Enum):
            return value.name
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.loads(json.dumps(value, default=other), parse_constant=lambda _: None)


def _print(text: str) -> None:
    print(printable(text), flush=True)


def _show(options: Any, content: Mapping[str, Any], text: str, without: Sequence[str] = ()) -> int:
    """Print the outcome and where files are, or with ``--json`` one object."""
    written = [name for name in getattr(options, "files", ()) if name not in without]
    files = {Path(name).stem: str(options.out / name) for name in written}
    if options.json:
        print(json.dumps(plain({**content, "files": files})))
    else:
        _print("\n".join([text, *[""][: len(files)], *(f"{what + ':':<13}{path}" for what, path in files.items())]))
    return OK


# Options.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpdl",
        description="A policy that may be deployed, from logged data: certified, or a plain no.",
        epilog=_epilog("dpdl"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    add = _command(commands, demo, "write a clinic's log, find a certified policy, and compare it with the truth")
    add("--patients", type=_count, default=1000, help="patients in the log (default %(default)s)")
    add("--logs", type=int, default=12, help="further logs, to see how often limits break (default %(default)s)")
    add("--seed", type=_seed, default=0, help="seed of the logs (default %(default)s)")

    add = _command(commands, inspect, "show what is in a log: rows, states, actions, episodes, coverage", LOGS)
    _add_log(add)
    _add_output(add, out=False)

    add = _command(commands, check, "test whether the log comes from one decision process with its states", LOGS)
    _add_log(add)
    add("--gamma", type=float, required=True, help="discount in (0, 1)")
    _add_output(add, out=False)

    text = "OUT gets answer.json, report.html and, only if certified, policy.json."
    add = _command(commands, solve, "find a policy that may be deployed, with a certificate", f"{text}\n\n{LOGS}")
    _add_log(add)
    _add_question(add, bounds=True)
    add("--time-limit", type=_seconds, metavar="SECONDS", help="stop with the best answer so far")
    _add_output(add)

    text = "The log must not be the one that the policy was chosen on."
    add = _command(commands, certify, "bound reward and costs of a policy from anywhere on a log", f"{text}\n\n{LOGS}")
    add("policy", metavar="POLICY", help="file that Policy.save, dpdl solve or dpdl learn has written")
    _add_log(add)
    _add_question(add, bounds=True)
    _add_output(add, out=False)

    add = _command(commands, frontier, "show what the best policy earns at each limit of a constraint", LOGS)
    _add_log(add)
    _add_question(add, bounds=True)
    add("--constraint", metavar="NAME", help="whose limit varies (default: the first of --limits)")
    add("--values", type=float, nargs="+", metavar="NUMBER", help="limits to try (default: eight)")
    _add_output(add, out=False)

    text = "The policy is judged on the log, and not certified: dpdl certify does that, on other data."
    add = _command(commands, learn, "learn by the paper's method (Algorithm 1), with checkpoints", f"{text}\n\n{LOGS}")
    _add_log(add)
    _add_question(add)
    add("--psi", type=float, help="deviation control: how far from the data the policy may go, >= 1")
    add("--slater", type=float, help="some policy keeps every limit with this slack, in (0, 1]")
    add("--T", type=_count, metavar="STEPS", help="number of steps")
    add("--eps", type=float, help="accuracy, which implies the number of steps")
    add("--kappa", type=float, help="conservatism: the margin to learn with")
    add("--floor", type=float, help="least value of the estimated data distribution")
    add("--order", choices=("replacement", "shuffle", "trajectory", "once"), help="how the log is read")
    mixing_time = {"type": lambda text: text if text == "estimate" else float(text)}
    add("--mixing-time", **mixing_time, help='bound for a log that is one trajectory, or "estimate"')
    add("--strict", action="store_const", const=True, help="as the theorem has it: every row is read once, or an error")
    add("--adaptive", action="store_true", help="Algorithm 2: double psi until VERIFY passes twice")
    add("--seed", type=_seed, help="seed of the run: same seed, same bits")
    add("--checkpoint", metavar="FILE", help="write the state of the run here, for dpdl resume")
    _add_limits_of_run(add)

    add = _command(commands, resume, "continue a run of dpdl learn from its checkpoint, bit for bit", LOGS)
    add("checkpoint", metavar="CHECKPOINT", help="what dpdl learn --checkpoint has written")
    _add_log(add)
    _add_limits_of_run(add)
    return parser


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable(message)} ({self.prog} --help shows the options)\n")


class _Version(argparse.Action):
    """Looks the version up only if it is asked for: that takes longer than all the rest of ``--help``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"dpdl {version('dpdl')}")
        parser.exit(0)


Add = Callable[..., Any]


def _epilog(name: str) -> str:
    examples = "\n  dpdl ".join(["examples:", *EXAMPLES.get(name, [name])])
    return f"{examples}\n\n{EXIT_CODES}"


def _command(commands: Any, run: Callable[[Any], int], help: str, more: str = "") -> Add:
    name, text = run.__name__, f"{help[0].upper()}{help[1:]}.\n{more}"
    parser = commands.add_parser(name, help=help, description=text, epilog=_epilog(name))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(run=run, usage_error=parser.error)
    return parser.add_argument


def _add_log(add: Add) -> None:
    add("log", metavar="LOG", help="the log; see above")
    several = {"action": "append", "metavar": "COLUMN"}
    add("--state", **several, help="state; give it again for each part of a state of several columns")
    add("--action", **several, help="action; likewise")
    add("--reward", metavar="COLUMN", help="reward")
    add("--next-state", **several, help="next state; by default the next row of the episode")
    add("--costs", action="extend", nargs="+", metavar="COLUMN", help="costs without limits")
    add("--episode", metavar="COLUMN", help="the same value in all rows of an episode")
    add("--time", metavar="COLUMN", help="numbers or dates that sort the rows of an episode")
    ends = {"type": lambda text: {"true": True, "false": False}.get(text, text), "metavar": "COLUMN"}
    add("--terminated", **ends, help="rows that ended their episode; true: the last row of each, false: none")
    add("--truncated", **ends, help="rows at which only the record stops; true: the last row of each episode")
    add("--missing", choices=("error", "drop"), default="error", help="rows with missing values (default %(default)s)")
    add("--bins", type=_count, metavar="N", help="make states of numbers: N bins a dimension")
    add("--discretize", choices=("quantile", "uniform"), help="how (default quantile)")


def _add_question(add: Add, *, bounds: bool = False) -> None:
    add("--gamma", type=float, required=True, help="discount in (0, 1)")
    pairs = {"type": _pair, "action": "extend", "nargs": "+", "metavar": "NAME=NUMBER"}
    text = "upper limits of costs, in the units of their columns"
    text += "; reward>=log, NAME<=log: no worse than under the policy that made the log" if bounds else ""
    add("--limits", **pairs | {"type": _limit if bounds else _pair}, help=text)
    text = "what limits bound: discounted totals, or discounted averages per step; the two differ by 1/(1-gamma)"
    add("--limit-on", choices=("total", "average"), help=text)
    text = "a state in which episodes begin; several are equally likely (default: as the episodes of the log)"
    add("--start", action="append", metavar="STATE", help=text)
    if bounds:
        add("--delta", type=float, default=0.05, help="share of logs whose certificate may be wrong (default 0.05)")
        text = "the most that a step may cost (default: no surprise is larger than the largest in the log)"
        add("--cost-max", **pairs, help=text)
        add("--accept-misfit", action="store_true", help="certify under the model even if the log contradicts it")


def _add_limits_of_run(add: Add) -> None:
    add("--time-limit", type=_seconds, metavar="SECONDS", help="stop after this time")
    add("--step-limit", type=_count, metavar="STEPS", help="stop after this many of the steps")
    add("--every", type=_seconds, metavar="SECONDS", help="time between two checkpoints")
    _add_output(add)


def _add_output(add: Add, *, out: bool = True) -> None:
    if out:
        add("-o", "--out", type=Path, metavar="OUT", help="folder to write to; replaced when the answer is complete")
        add("--overwrite", action="store_true", help="replace what an earlier run has written to OUT")
    add("--json", action="store_true", help="print one JSON object instead of text, for scripts")


# Kinds of values.


def _number(kind: type, is_valid: Callable[[float], bool], what: str) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = float(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"must be {what}, got {text}")
        return kind(value)

    return number


_count = _number(int, lambda x: 1 <= x <= 1e15 and x == int(x), "a positive whole number")
_seed = _number(int, lambda x: 0 <= x <= 2**53 and x == int(x), "a whole number, at least 0")
_seconds = _number(float, lambda x: 0 < x < math.inf, "a positive number of seconds")


def _pair(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        if name:
            return name, float(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be NAME=NUMBER, got {text!r}")


def _limit(text: str) -> tuple[str, float | str]:
    """A limit that is a number, or that of the log: ``reward>=log`` and ``falls<=log`` as in Python's `limits`."""
    by_log = re.fullmatch(r"(.+?)\s*([<>]=)\s*log", text)
    if ">=" in text and (by_log is None or by_log[1] != "reward"):
        what = "the only lower limit is reward>=log, and the reward is called so whatever its column"
        raise argparse.ArgumentTypeError(f"{what}; got {text!r}")
    return (by_log[1], f"{by_log[2]} log") if by_log else _pair(text.replace("<=", "=", 1))
