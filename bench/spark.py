"""`python -m bench.spark`: the pipeline's figures against their targets; medians.

Measurements are kept. A run of all cases starts over, named cases replace their figures, and --report writes all
figures into bench/results/spark.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bench.machine import BUSY_SHARE, Watch, adopt_orphans, described
from bench.page import head, put
from bench.peers.venvs import FOLDER
from bench.pipeline import CASES
from bench.server import ROOT

RESULTS = FOLDER / "spark.json"
PAGE = ROOT / "bench" / "results" / "spark.md"
COMMAND = "python -m bench.spark --report"
#: Figure -> its target, and whether more is better; None where none was set.
TARGETS = {
    "ingest, steady": (120_000, True),
    "read events": (500_000, True),
    "read five columns of events": None,
    "DataFrame to queue": (80_000, True),
    "report all": (90, False),
    "ingest of nothing": (8, False),
    "Redis, without trace ids": (130, False),
    "Redis, with trace ids": (170, False),
    "Valkey, without trace ids": (130, False),
    "Valkey, with trace ids": (170, False),
    "lake, without trace ids": (25, False),
    "lake, with trace ids": (45, False),
}


def measure(case: str) -> dict[str, Any]:
    """Return a case's figures, each with its values and the machine's share used by other processes."""
    watch = Watch()
    found: dict[str, Any] = {}
    for figure, value, unit in CASES[case]():
        print(f"{case}: {figure}: {value:,.1f} {unit}", flush=True)
        found.setdefault(figure, {"case": case, "unit": unit, "values": []})["values"].append(value)
    for line in found.values():
        line["others"] = watch.others()
    return found


def document(found: dict[str, Any]) -> Iterator[str]:
    """The figures as Markdown."""
    remark = f"medians, least and greatest in brackets; {found['seconds'] / 60:.0f} minutes in all"
    yield from head(found["heads"], remark)
    yield from ("", "| figure | target | median | |", "|---|---|---|---|")
    for figure, target in TARGETS.items():
        line = found["figures"].get(figure)
        if line is not None:
            bound, verdict = _judged(statistics.median(line["values"]), target)
            busy = f"† {line['others']:.0%}" if line["others"] > BUSY_SHARE else ""
            said = ", ".join(filter(None, (verdict, busy)))
            yield f"| {figure} | {bound} | {_shown(line)} {line['unit']} | {said} |"
    if any(line["others"] > BUSY_SHARE for line in found["figures"].values()):
        yield from ("", "† Other programs used this share of the machine's CPU during the run.")


def _judged(middle: float, target: tuple[float, bool] | None) -> tuple[str, str]:
    if target is None:
        return "", ""
    bound, more = target
    reached = middle >= bound if more else middle <= bound
    return f"{'≥' if more else '≤'} {bound:,}", "reached" if reached else "missed"


def _shown(line: dict[str, Any]) -> str:
    values = line["values"]
    digits = 0 if max(values) > 1_000 else 1
    around = f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):,.{digits}f}{around}"


def main() -> None:
    """Measure the named cases, or all; or write known figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--report", action="store_true", help="only write known figures")
    chosen = parser.parse_args()
    if unknown := set(chosen.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; see --help")
    adopt_orphans()
    found = _known() if chosen.report else _measured(chosen.cases)
    text = "\n".join(document(found))
    print(text)
    if chosen.report:
        put(PAGE, COMMAND, text)


def _known() -> dict[str, Any]:
    if not RESULTS.exists():
        raise SystemExit("no measurements yet; run python -m bench.spark")
    known: dict[str, Any] = json.loads(RESULTS.read_text())
    return known


def _measured(cases: list[str]) -> dict[str, Any]:
    """Return all results after the named cases, or all; save them after each, since a later case may fail."""
    anew: dict[str, Any] = {"heads": [], "figures": {}, "seconds": 0.0}
    found = _known() if cases and RESULTS.exists() else anew
    found["heads"].append(described("bench.spark"))
    for case in cases or CASES:
        started = time.monotonic()
        found["figures"] |= measure(case)
        found["seconds"] += time.monotonic() - started
        FOLDER.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
