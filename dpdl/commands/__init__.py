"""What the subcommands of ``dpdl`` do; `dpdl.cli` has their arguments, and imports them when they run."""
