"""A clinic's log, from a CSV file to a certified policy and a report.

    python examples/clinic.py [PATIENTS]

writes clinic.csv, the log of an imaginary clinic, and then does what one would do with a real one.
"""

import sys

import numpy as np

import dpdl
from dpdl.demo import record, write_csv
from dpdl.report import write_report


def main(n_patients=1_000):
    write_csv(record(n_patients, np.random.default_rng(0)), "clinic.csv")
    log = dpdl.read_log(
        "clinic.csv",
        state="ward",
        action="drug",
        reward="gain",
        costs=["side effects", "icu days"],
        episode="patient",
        time="day",
        terminated="left",
    )
    answer = dpdl.safe_policy(
        log,
        gamma=0.95,
        limits={"side effects": 1.5, "icu days": 0.8},  # at most this much per patient, later days counting less
        limit_on="total",
        delta=0.05,
    )
    print(answer)
    write_report(answer, "report.html", log=log, source="clinic.csv", overwrite=True)
    if answer.policy is not None:
        answer.policy.save("policy.json", overwrite=True)
        print("in intensive care:", answer.policy.act("intensive care", rng=0))
    return answer


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
