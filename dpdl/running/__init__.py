"""The calls that take steps: one run, Algorithm 2, replicas and sweeps."""
