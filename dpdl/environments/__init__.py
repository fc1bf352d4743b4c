"""Gymnasium environments: their transition tables, and rollouts of policies in them. Gymnasium is not imported."""
