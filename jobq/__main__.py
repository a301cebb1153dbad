"""`python -m jobq`: run jobq's command line."""

from __future__ import annotations

import sys

from jobq.cli import main

if __name__ == "__main__":
    sys.exit(main())
