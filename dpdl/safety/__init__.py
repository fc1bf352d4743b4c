"""Policies that may be deployed: proposed on one half of a log, tested on the other."""
