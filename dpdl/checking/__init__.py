"""What data says about a run: VERIFY (algorithm 3) and the Slater constant."""
