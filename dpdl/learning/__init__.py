"""Algorithm 1: preparing a run from a log and settings, and making results."""
