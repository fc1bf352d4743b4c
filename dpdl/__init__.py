"""Learn a safe policy from logged data.

Tabular constrained MDPs, seen only through a fixed log of transitions: DPDL, a stochastic primal-dual mirror
descent-ascent with deviation control (Chen, Zhang & Wen, "A Near-Optimal Primal-Dual Method for Off-Policy Learning in
CMDP", 2022).
"""

from importlib.metadata import version
from importlib.util import find_spec

if find_spec("dpdl._core") is None:
    raise ImportError(
        f"{__path__[0]} holds the sources of dpdl without its compiled core; "
        "run `pip install -e .` in the folder above it, or start Python in another folder"
    )

from dpdl import exact, instances, mixing, policy, sources, theory
from dpdl.acting import Policy
from dpdl.checking.slater import SlaterEstimate, estimate_slater
from dpdl.checking.verification import Verification, verify
from dpdl.data.builder import DatasetBuilder
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.labels import Labels
from dpdl.data.parquet import from_parquet
from dpdl.data.reference import Reference, estimate_reference
from dpdl.data.units import Units
from dpdl.deploying.answer import Answer, AnswerStatus
from dpdl.deploying.certificate import Certificate, certify
from dpdl.deploying.coverage import Coverage, coverage
from dpdl.deploying.frontier import Frontier, frontier
from dpdl.deploying.safe import safe_policy
from dpdl.environments.rollout import Rollout, rollout
from dpdl.models.cmdp import CMDP
from dpdl.models.judgement import Judgement, judge
from dpdl.premises import Premise
from dpdl.result import Level, Point, Result, Status
from dpdl.running.adaptive import learn_adaptive
from dpdl.running.learn import learn
from dpdl.running.replicas import Replicas, Sweep, replicate, sweep
from dpdl.running.resume import resume
from dpdl.settings import Settings
from dpdl.sources.opening import open_log

__version__ = version("dpdl")

__all__ = [
    "CMDP",
    "Answer",
    "AnswerStatus",
    "Certificate",
    "Coverage",
    "Dataset",
    "DatasetBuilder",
    "Discretizer",
    "Frontier",
    "Judgement",
    "Labels",
    "Level",
    "Point",
    "Policy",
    "Premise",
    "Reference",
    "Replicas",
    "Result",
    "Rollout",
    "Settings",
    "SlaterEstimate",
    "Status",
    "Sweep",
    "Units",
    "Verification",
    "certify",
    "coverage",
    "estimate_reference",
    "estimate_slater",
    "exact",
    "from_parquet",
    "frontier",
    "instances",
    "judge",
    "learn",
    "learn_adaptive",
    "mixing",
    "open_log",
    "policy",
    "replicate",
    "resume",
    "rollout",
    "safe_policy",
    "sources",
    "sweep",
    "theory",
    "verify",
]
