"""`python -m bench [--runs N] [--json] [CASE…]`: medians with their spread."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections import defaultdict

from bench.cases import CASES


def main() -> None:
    """Run the cases named, or all, and print one line per figure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without one"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    print(
        f"# {platform.python_implementation()} {platform.python_version()}, {platform.platform()}",
        file=sys.stderr,
    )
    for name in chosen.cases or CASES:
        measured: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(chosen.runs):
            for figure, value, unit in CASES[name]():
                measured[figure, unit].append(value)
        for (figure, unit), values in measured.items():
            report(figure, unit, values, as_json=chosen.json)


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
