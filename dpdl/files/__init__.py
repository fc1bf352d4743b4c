"""What every file of ours shares: writing whole or not at all, locks, checked headers."""
