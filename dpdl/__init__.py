"""dpdl."""
