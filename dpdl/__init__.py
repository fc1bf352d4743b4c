"""Learn a safe policy from logged data.

Tabular constrained MDPs, seen only through a fixed log of transitions: DPDL, a stochastic primal-dual mirror
descent-ascent with deviation control (Chen, Zhang & Wen, "A Near-Optimal Primal-Dual Method for Off-Policy Learning in
CMDP", 2022).

A public name is imported when it is first used, so that ``dpdl --help`` need not wait for NumPy and SciPy.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("dpdl._core") is None:
    raise ImportError(
        f"{__path__[0]} holds the sources of dpdl without its compiled core; "
        "run `pip install -e .` in the folder above it, or start Python in another folder"
    )

if TYPE_CHECKING:
    from dpdl import exact, instances, mixing, theory
    from dpdl.acting import Policy
    from dpdl.data.dataset import Dataset
    from dpdl.data.discretizer import Discretizer
    from dpdl.data.sources import read_log
    from dpdl.gym import rollout
    from dpdl.learner.adaptive import learn_adaptive
    from dpdl.learner.checkpoint import peek
    from dpdl.learner.learn import learn, resume
    from dpdl.learner.replicate import replicate, sweep
    from dpdl.learner.verify import verify
    from dpdl.models.cmdp import CMDP
    from dpdl.models.estimate import plan
    from dpdl.result import Result
    from dpdl.safety.answer import Answer, AnswerStatus
    from dpdl.safety.certificate import Certificate, certify
    from dpdl.safety.coverage import coverage
    from dpdl.safety.fit import check_model
    from dpdl.safety.frontier import Frontier, frontier
    from dpdl.safety.safe import safe_policy
    from dpdl.settings import Settings
    from dpdl.stopping import Status

    __version__: str

#: Where the public names are defined, as the block above has it for type checkers; "" for a module of the package.
_HOMES = {
    "": "exact instances mixing theory",
    "acting": "Policy",
    "data.dataset": "Dataset",
    "data.discretizer": "Discretizer",
    "data.sources": "read_log",
    "gym": "rollout",
    "learner.adaptive": "learn_adaptive",
    "learner.checkpoint": "peek",
    "learner.learn": "learn resume",
    "learner.replicate": "replicate sweep",
    "learner.verify": "verify",
    "models.cmdp": "CMDP",
    "models.estimate": "plan",
    "result": "Result",
    "safety.answer": "Answer AnswerStatus",
    "safety.certificate": "Certificate certify",
    "safety.coverage": "coverage",
    "safety.fit": "check_model",
    "safety.frontier": "Frontier frontier",
    "safety.safe": "safe_policy",
    "settings": "Settings",
    "stopping": "Status",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CMDP",
    "Answer",
    "AnswerStatus",
    "Certificate",
    "Dataset",
    "Discretizer",
    "Frontier",
    "Policy",
    "Result",
    "Settings",
    "Status",
    "certify",
    "check_model",
    "coverage",
    "exact",
    "frontier",
    "instances",
    "learn",
    "learn_adaptive",
    "mixing",
    "peek",
    "plan",
    "read_log",
    "replicate",
    "resume",
    "rollout",
    "safe_policy",
    "sweep",
    "theory",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("dpdl")
    elif name in _HOME_OF:
        home = _HOME_OF[name]
        value = getattr(import_module(f"dpdl.{home}"), name) if home else import_module(f"dpdl.{name}")
    else:
        raise AttributeError(f"module 'dpdl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
