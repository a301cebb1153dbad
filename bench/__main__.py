"""`python -m bench [--peers] [--runs N] [--json] [CASE…]`: medians with their spread."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable

from bench.cases import CASES
from bench.peers.beside import beside
from bench.peers.cases import CASES as PEER_CASES


def main() -> None:
    """Run the cases named, or all, and print one line per figure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help=f"of {', '.join(CASES)}, with --peers of {', '.join(PEER_CASES)}; all without one",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--peers", action="store_true", help="beside RQ, Celery and others")
    parser.add_argument("--only", default="", metavar="PEER,…", help="of the peers")
    chosen = parser.parse_args()
    known: Iterable[str] = PEER_CASES if chosen.peers else CASES
    unknown = set(chosen.cases) - set(known)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    # Ended from outside, it still ends the servers and workers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if chosen.peers:
        only = [name for name in chosen.only.split(",") if name]
        beside(chosen.cases, only, chosen.runs, as_json=chosen.json)
    else:
        alone(chosen.cases, chosen.runs, as_json=chosen.json)


def alone(cases: list[str], runs: int, *, as_json: bool) -> None:
    """jobq by itself."""
    print(
        f"# {platform.python_implementation()} {platform.python_version()}, {platform.platform()}",
        file=sys.stderr,
    )
    for name in cases or CASES:
        measured: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(runs):
            for figure, value, unit in CASES[name]():
                measured[figure, unit].append(value)
        for (figure, unit), values in measured.items():
            report(figure, unit, values, as_json=as_json)


def report(figure: str, unit: str, values: list[float], *, as_json: bool) -> None:
    """One figure: the median, and between what it moved."""
    middle, low, high = statistics.median(values), min(values), max(values)
    if as_json:
        print(
            json.dumps(
                {
                    "figure": figure,
                    "unit": unit,
                    "median": middle,
                    "min": low,
                    "max": high,
                    "runs": len(values),
                }
            )
        )
    else:
        print(
            f"{figure:58} {middle:>12,.3f} {unit:7} ({low:,.3f} – {high:,.3f}, {len(values)} runs)"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
