"""So that ``python -m dagsel.cli`` is the command `dagsel`."""

from __future__ import annotations

from dagsel.cli import main

# The processes of a local cluster import this module again.
if __name__ == "__main__":
    main()
