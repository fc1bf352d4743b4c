"""Learn a safe policy from logged data.

Tabular constrained MDPs, seen only through a fixed log of transitions: DPDL, a stochastic primal-dual mirror
descent-ascent with deviation control (Chen, Zhang & Wen, "A Near-Optimal Primal-Dual Method for Off-Policy Learning in
CMDP", 2022).
"""

from . import exact, instances, mixing, policy, theory
from .adaptive import learn_adaptive
from .builder import DatasetBuilder
from .cmdp import CMDP
from .dataset import Dataset, Units
from .learning import learn, resume
from .parquet import from_parquet
from .premises import Premise
from .reference import Reference, estimate_reference
from .replicas import Replicas, Sweep, replicate, sweep
from .result import Level, Point, Result, Status
from .settings import Settings
from .slater import SlaterEstimate, estimate_slater
from .verification import Verification, verify

__version__ = "0.1.0"

__all__ = [
    "CMDP",
    "Dataset",
    "DatasetBuilder",
    "Level",
    "Point",
    "Premise",
    "Reference",
    "Replicas",
    "Result",
    "Settings",
    "SlaterEstimate",
    "Status",
    "Sweep",
    "Units",
    "Verification",
    "estimate_reference",
    "estimate_slater",
    "exact",
    "from_parquet",
    "instances",
    "learn",
    "learn_adaptive",
    "mixing",
    "policy",
    "replicate",
    "resume",
    "sweep",
    "theory",
    "verify",
]
