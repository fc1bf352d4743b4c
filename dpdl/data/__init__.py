"""Logs: transitions, their units and their distribution, in memory and in files."""
