"""Logs that people already have: HDF5, npz and Minari beside tables and folders of dpdl, opened by one function.

`read_log` opens any of them. The kinds other than CSV, Parquet and dpdl's own folders are first made columns
(`columns`), which `read_log` reads, so that labels, limits, units and missing values mean the same for all.
"""

from dpdl.sources.fields import Recorded
from dpdl.sources.opening import KINDS, columns, kind_of, read_log

__all__ = ["KINDS", "Recorded", "columns", "kind_of", "read_log"]
