"""What data says about a run: VERIFY (Algorithm 3) and the Slater constant."""
