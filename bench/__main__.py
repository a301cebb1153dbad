"""`python -m bench [CASE…]`: compare jobq with its peers; medians with their spread."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from bench.beside import beside
from bench.cases import CASES, close
from bench.machine import adopt_orphans
from bench.peers import PEERS
from bench.report import report
from bench.server import OVER_TCP
from bench.sweep import sweep


def main() -> None:
    """Run the named cases, or all; or report the last run."""
    parser = _parser()
    chosen = parser.parse_args()
    only = [name for name in chosen.only.split(",") if name]
    for kind, unknown in (
        ("case", set(chosen.cases) - set(CASES)),
        ("peer", set(only) - set(PEERS)),
    ):
        if unknown:
            parser.error(f"no {kind} {', '.join(sorted(unknown))}; see --help")
    if chosen.report is not None:
        report(Path(chosen.report) if chosen.report else None)
        return
    if chosen.tcp:
        os.environ[OVER_TCP] = "1"
    # Ended from outside, it still ends the servers and workers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    try:
        if chosen.sweep:
            sweep(only, chosen.runs)
        else:
            beside(chosen.cases, only, chosen.runs, as_json=chosen.json, more=chosen.more)
    finally:
        close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
        epilog="cases:\n" + "\n".join(f"  {name:12} {case.about}" for name, case in CASES.items()),
    )  # fmt: skip
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help="see below; all without one")
    add("--runs", type=int, default=5)
    add("--only", default="", metavar="PEER,…", help=f"of {', '.join(PEERS)}")
    add(
        "--tcp",
        action="store_true",
        help="over TCP instead of a unix socket: more rows of the report",
    )
    add("--json", action="store_true", help="JSON lines")
    add("--more", action="store_true", help="add to the last run: a case that failed")
    add("--sweep", action="store_true", help="try each peer's settings instead")
    about = "the last run as Markdown, into FILE between its marks or to stdout"
    add("--report", nargs="?", const="", metavar="FILE", help=about)
    return parser


if __name__ == "__main__":
    main()
