"""A clinic's log, from a CSV file to a certified policy and a report.

    python examples/clinic.py [ROWS]

writes clinic.csv, the log of an imaginary clinic, and then does what one would do with a real one.
"""

import csv
import sys

import numpy as np

import dpdl
from dpdl.report import write_report


def write_log(path, n_rows, seed=0):
    """One row a day and patient: the ward, the drug, what was gained, days in intensive care, side effects."""
    rng = np.random.default_rng(seed)
    wards, drugs = ("ward", "icu", "rehab"), ("none", "low", "high")
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "day", "ward", "drug", "gain", "icu days", "side effects", "left"])
        patient, day, ward = 0, 0, 0
        for _ in range(n_rows):
            drug = rng.integers(3)
            better = rng.random() < 0.2 + 0.2 * drug
            gain = 10.0 * better - (4.0 if ward == 1 else 1.0)
            effects = rng.poisson(0.6 * drug)
            left = rng.random() < (0.3 if ward == 2 else 0.05)
            table.writerow([patient, day, wards[ward], drugs[drug], gain, int(ward == 1), effects, left])
            if left:
                patient, day, ward = patient + 1, 0, 0
            else:
                day, ward = day + 1, min(ward + 1, 2) if better and ward else 2 * better if rng.random() < 0.8 else 1


def main(n_rows=20_000):
    write_log("clinic.csv", n_rows)
    log = dpdl.read_log(
        "clinic.csv",
        state="ward",
        action="drug",
        reward="gain",
        costs=["icu days", "side effects"],
        episode="patient",
        time="day",
        terminated="left",
    )
    limits = {"icu days": 1.5, "side effects": 3.0}  # at most this much per patient, later days counting less
    answer = dpdl.safe_policy(log, gamma=0.9, limits=limits, limit_on="total", delta=0.05)
    print(answer)
    write_report(answer, "report.html", log=log, overwrite=True)
    if answer.policy is not None:
        answer.policy.save("policy.json", overwrite=True)
        print("in intensive care:", answer.policy.act("icu"))
    return answer


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
