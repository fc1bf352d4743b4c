"""Policies that may be deployed: certificates, answers, coverage."""
