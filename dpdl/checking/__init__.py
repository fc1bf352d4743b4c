"""Checks of a run against data: VERIFY (Algorithm 3) and the Slater constant."""
