"""The command line: a command parses, calls one function and prints.

`main` is the entry point of `jobq` and of `python -m jobq`; click is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code (see jobq.cli.exits)."""
    from jobq.cli.app import run

    return run(args)
