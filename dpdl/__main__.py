"""``python -m dpdl`` is the ``dpdl`` command."""

from dpdl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
