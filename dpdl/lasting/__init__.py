"""Support for long runs: progress, interruption, checkpoints."""
