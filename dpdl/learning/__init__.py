"""Algorithm 1: from a log and settings to a core that is ready to take steps, and to a result."""
