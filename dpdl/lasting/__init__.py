"""Runs that last: progress, interruption, checkpoints."""
