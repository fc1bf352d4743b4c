"""The ``dpdl`` command: its arguments, its exit codes, and errors of one line.

Nothing heavy is imported before a subcommand runs, so that ``dpdl --help`` answers at once.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ERROR, INTERRUPTED = 1, 130

EXIT_CODES = """\
exit codes:
  0    certified (solve, certify); no constraint is estimated to be broken (learn, resume); done (inspect, demo)
  1    error: one line on standard error says what is wrong
  2    infeasible: even the most careful policy that the data supports breaks a constraint
  3    not enough data: nothing could be certified, a constraint is estimated to be broken, or steps are left
  5    the log does not fit: it contradicts the model that certificates rest on (solve, certify)
  130  Ctrl-C: what was done until then is printed and written
"""

LOGS = """\
LOG is a CSV file (.csv, .csv.gz), a Parquet file or a folder of them, a folder that dpdl has written, an HDF5 file
(.hdf5, .h5), an .npz file, or minari:NAME. In tables each column is named by an option; HDF5, npz and Minari logs
have names by default. A folder that dpdl has written knows its columns.
"""

COLUMNS = "--state ward --action drug --reward gain"
EPISODES = "--episode patient --time day --terminated left"
COSTS = '--cost "icu days=1" --cost "side effects=4" --limit-on total'

EXAMPLES = {
    "dpdl": f"""\
examples:
  dpdl demo
  dpdl inspect clinic.csv
  dpdl solve clinic.csv --gamma 0.9 {COLUMNS} {EPISODES} \\
      {COSTS} -o answer
  dpdl certify answer/policy.json fresh.csv --gamma 0.9 {COLUMNS} \\
      {EPISODES} {COSTS}
""",
    "inspect": f"""\
examples:
  dpdl inspect clinic.csv                     the columns: kinds, values, what is missing
  dpdl inspect clinic.csv {COLUMNS} {EPISODES}
                                              states, actions, episodes, how often each pair was logged
  dpdl inspect log --json
""",
    "solve": f"""\
examples:
  dpdl solve clinic.csv --gamma 0.9 {COLUMNS} {EPISODES} \\
      {COSTS} --delta 0.05 -o answer
  dpdl solve log --gamma 0.99 -o answer --json
""",
    "certify": f"""\
examples:
  dpdl certify answer/policy.json fresh.csv --gamma 0.9 {COLUMNS} \\
      {EPISODES} {COSTS}
""",
    "learn": f"""\
examples:
  dpdl learn clinic.csv --gamma 0.9 {COLUMNS} {EPISODES} \\
      {COSTS} --seed 0 -o run
  dpdl learn log --gamma 0.9 --psi 4 --slater 0.2 --steps 1e8 --checkpoint run.ckpt -o run
""",
    "resume": """\
examples:
  dpdl resume run.ckpt log -o run
""",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # arrows on a terminal that has none
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            module, function = options.run
            return int(getattr(import_module(f"dpdl.commands.{module}"), function)(options))
        except BrokenPipeError:  # the reader has gone, as with `dpdl demo | head`
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            return 0
        except KeyboardInterrupt:
            print("dpdl: interrupted before there was anything to show", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            print(f"dpdl: error: {_one_line(error)}", file=sys.stderr)
            return ERROR


def _one_line(error: BaseException) -> str:
    """What went wrong in one line, with the options of the command line in place of Python's arguments."""
    text = " ".join(str(error).split())
    if not isinstance(error, (ValueError, TypeError, OSError, ImportError)):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__

    def option(match: re.Match[str]) -> str:
        name = {"costs": "cost", "T": "steps"}.get(match[1], match[1].replace("_", "-"))
        return f"--{name}" + (" " if match[2] else "")

    names = "state|action|reward|costs|next_state|episode|time|terminated|truncated|missing"
    text = text.replace("give either rho0 or initial_states", "give --start")
    return re.sub(rf"\b({names}|psi|slater|T|eps|kappa|overwrite)=(?=([\"\w]?))", option, text)


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"dpdl: warning: {' '.join(str(message).split())}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Usage errors end with exit code 1, because 2 means infeasible."""

    def error(self, message: str) -> NoReturn:
        self.exit(ERROR, f"{self.prog}: error: {message} ({self.prog} --help shows the options)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dpdl",
        description="A policy you may deploy, from logged data: high reward, every constraint kept, or a plain no.",
        epilog=f"{EXAMPLES['dpdl']}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_inspect(commands)
    _add_solve(commands)
    _add_certify(commands)
    _add_learn(commands)
    _add_resume(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only if it is asked for: that takes longer than all the rest of ``--help``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"dpdl {version('dpdl')}")
        parser.exit(0)


def _command(commands: Any, name: str, run: tuple[str, str], help: str, description: str = "") -> Any:
    parser = commands.add_parser(
        name,
        help=help,
        description=description or help,
        epilog=f"{EXAMPLES[name]}\n{EXIT_CODES}" if name in EXAMPLES else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_demo(commands: Any) -> None:
    parser = _command(
        commands, "demo", ("field", "demo"), "learn to cross a burning field from a log of mediocre crossings"
    )
    parser.add_argument("--transitions", type=_count, default=200_000, help="length of the log (default %(default)s)")
    parser.add_argument("--steps", type=_count, default=40_000_000, help="steps of the learner (default %(default)s)")
    _add_seed(parser, "of the log and of the learner", default=0)
    parser.add_argument(
        "--picture", type=_picture, default="dpdl-demo.png", help="file to draw to (default %(default)s)"
    )
    parser.add_argument("--no-picture", dest="picture", action="store_const", const=None, help="draw nothing")


def _add_inspect(commands: Any) -> None:
    about = "show what is in a log: rows, states, actions, episodes, coverage, what is missing"
    parser = _command(commands, "inspect", ("inspect", "inspect"), about, f"{about}\n\n{LOGS}")
    _add_log(parser)
    _add_json(parser)


def _add_solve(commands: Any) -> None:
    parser = _command(
        commands,
        "solve",
        ("solve", "solve"),
        "find a policy that may be deployed, with a certificate, or say why there is none",
        "Find the policy with the highest reward whose constraints hold with probability 1 - delta, and certify it.\n"
        f"OUT gets policy.json (only if certified), answer.json and report.html.\n\n{LOGS}",
    )
    _add_log(parser, gamma=True)
    _add_certificate(parser)
    group = parser.add_argument_group("answer")
    group.add_argument("--time-limit", type=_seconds, metavar="SECONDS", help="stop with the best answer so far")
    _add_out(group, "folder to write to")
    _add_json(parser)


def _add_certify(commands: Any) -> None:
    parser = _command(
        commands,
        "certify",
        ("solve", "certify"),
        "certify a policy from anywhere on a log",
        f"Bound the reward and the constraints of a policy on a log that it was not chosen on.\n\n{LOGS}",
    )
    parser.add_argument("policy", metavar="POLICY", help="file that Policy.save, dpdl solve or dpdl learn has written")
    _add_log(parser, gamma=True)
    _add_certificate(parser)
    _add_json(parser)


def _add_learn(commands: Any) -> None:
    parser = _command(
        commands,
        "learn",
        ("learn", "learn"),
        "learn by the paper's method (DPDL), with its settings and checkpoints",
        "Learn a policy by stochastic primal-dual descent-ascent with deviation control. With --psi, --slater and\n"
        "--steps or --eps this is Algorithm 1 of the paper; what is missing is found from the data. The policy is\n"
        f"judged on the log, and not certified: dpdl certify does that, on other data.\n\n{LOGS}",
    )
    _add_log(parser, gamma=True)
    group = parser.add_argument_group("settings of the method")
    group.add_argument("--psi", type=float, help="deviation control: how far from the data the policy may go, >= 1")
    group.add_argument("--slater", type=float, help="some policy keeps every constraint with this slack, in (0, 1]")
    group.add_argument("--steps", dest="T", type=_count, help="number of steps")
    group.add_argument("--eps", type=float, help="accuracy, which implies the number of steps")
    group.add_argument("--kappa", type=float, help="conservatism: the margin to learn with")
    group.add_argument("--floor", type=float, help="least value of the estimated data distribution")
    orders = ("replacement", "shuffle", "trajectory", "once")
    group.add_argument("--order", choices=orders, help="how the log is read")
    group.add_argument("--mixing-time", type=_mixing_time, help='bound for a log that is one trajectory, or "estimate"')
    _add_start(group)
    group.add_argument("--adaptive", action="store_true", help="Algorithm 2: double psi until VERIFY passes twice")
    _add_run(parser)
    _add_seed(parser, "of the run: same seed, same bits")
    parser.add_argument("--checkpoint", metavar="FILE", help="write the state of the run here, for dpdl resume")


def _add_resume(commands: Any) -> None:
    parser = _command(
        commands,
        "resume",
        ("learn", "resume"),
        "continue a run of dpdl learn from its checkpoint, bit for bit",
        f"Continue a run from its checkpoint: the result is that of a run which was never interrupted.\n\n{LOGS}",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="what dpdl learn --checkpoint has written")
    _add_log(parser)
    _add_run(parser)


# Options that several subcommands have.


def _add_log(parser: Any, *, gamma: bool = False) -> None:
    parser.add_argument("log", metavar="LOG", help="the log; see above")
    group = parser.add_argument_group("the log")
    several = {"action": "append", "metavar": "COLUMN"}
    group.add_argument("--state", **several, help="state; give it again for each part of a state of several columns")
    group.add_argument("--action", **several, help="action; likewise")
    group.add_argument("--reward", metavar="COLUMN", help="reward")
    group.add_argument("--next-state", **several, help="next state; by default the next row of the episode")
    group.add_argument(
        "--cost",
        dest="costs",
        action="append",
        type=_cost,
        metavar="COLUMN[=LIMIT]",
        help="a cost, and its upper limit in the units of the column; give it again for each cost",
    )
    group.add_argument(
        "--limit-on",
        choices=("total", "average"),
        help="whether limits bound discounted totals, or discounted averages per step; no default, because the two "
        "differ by a factor 1/(1-gamma)",
    )
    group.add_argument("--gamma", type=float, required=gamma, help="discount in (0, 1)")
    group.add_argument("--episode", metavar="COLUMN", help="the same value in all rows of an episode")
    group.add_argument("--time", metavar="COLUMN", help="numbers or dates that sort the rows of an episode")
    ends = {"type": _column_or_flag, "metavar": "COLUMN"}
    group.add_argument(
        "--terminated", **ends, help="rows that ended their episode; true: the last row of each, false: none"
    )
    group.add_argument(
        "--truncated", **ends, help="rows at which only the record stops; true: the last row of each episode"
    )
    group.add_argument(
        "--missing", choices=("error", "drop"), default="error", help="rows with missing values (default %(default)s)"
    )
    group.add_argument(
        "--bins",
        type=_count,
        metavar="N",
        help="make states of continuous observations: N bins per dimension, or N clusters with --discretize kmeans",
    )
    group.add_argument("--discretize", choices=("quantile", "uniform", "kmeans"), help="how (default quantile)")


def _add_start(parser: Any) -> None:
    parser.add_argument(
        "--start",
        action="append",
        metavar="STATE",
        help="a state in which episodes begin; several are equally likely (default: as the episodes of the log)",
    )


def _add_certificate(parser: Any) -> None:
    _add_start(parser)
    group = parser.add_argument_group("certificate")
    group.add_argument(
        "--delta", type=float, default=0.05, help="probability that the certificate may be wrong (default %(default)s)"
    )
    group.add_argument(
        "--cost-max",
        type=_cost,
        action="extend",
        nargs="+",
        metavar="NAME=NUMBER",
        help="the most that a step may cost (default: no surprise is larger than the largest in the log)",
    )
    group.add_argument(
        "--accept-misfit",
        action="store_true",
        help="certify under the model even if the log contradicts it; the answer says so",
    )


def _add_run(parser: Any) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument("--time-limit", type=_seconds, metavar="SECONDS", help="stop after this time")
    group.add_argument("--step-limit", type=_count, metavar="STEPS", help="stop after this many of the steps")
    group.add_argument("--every", type=_seconds, metavar="SECONDS", help="time between two checkpoints")
    _add_out(group, "folder for policy.json, result.json and, with matplotlib, convergence.png")
    _add_json(parser)


def _add_out(parser: Any, text: str) -> None:
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run has written to OUT")


def _add_seed(parser: Any, text: str, default: int | None = None) -> None:
    shown = "" if default is None else " (default %(default)s)"
    parser.add_argument("--seed", type=_seed, default=default, help=f"seed {text}{shown}")


def _add_json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text, for scripts")


# Kinds of values.


def _count(text: str) -> int:
    value = float(text)
    if not 1 <= value <= 1e15 or value != int(value):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return int(value)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def _picture(text: str) -> str:
    path = Path(text)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"must end in .png, .pdf or .svg, got {text}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    return text


def _seed(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return number


def _cost(text: str) -> tuple[str, float | None]:
    name, equals, limit = text.rpartition("=")
    try:
        return (name, float(limit)) if equals and name else (text, None)
    except ValueError:
        return _no_limit(text)


def _no_limit(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"must be COLUMN or COLUMN=LIMIT with a number for LIMIT, got {text!r}")


def _column_or_flag(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text, text)


def _mixing_time(text: str) -> float | str:
    return text if text == "estimate" else float(text)
