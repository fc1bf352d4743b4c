"""The calls that take steps: one run, algorithm 2, replicas and sweeps."""
