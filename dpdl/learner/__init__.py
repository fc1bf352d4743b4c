"""Algorithms 1 to 3 on a log: runs, their checkpoints, verification, replicas."""
