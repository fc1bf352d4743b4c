"""Files that dpdl writes: atomic replacement, locks, checked headers."""
