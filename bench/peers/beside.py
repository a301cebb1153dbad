"""Runs the cases of all peers side by side and prints what came of it."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.peers import NAMES, PEERS
from bench.peers.cases import CASES, STEADY
from bench.peers.venvs import FOLDER, Missing, inside_of

#: By figure and unit, then by peer: the values of all runs.
Measured = dict[tuple[str, str], dict[str, list[float]]]


def beside(cases: Sequence[str], only: Sequence[str], runs: int, *, as_json: bool) -> None:
    """Every case in turn; in a case, run after run of all peers, so that they share the machine's moods."""
    peers, failed = available(only or list(PEERS))
    _head(runs)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "results.jsonl").open("a", encoding="utf-8") as kept:
        for case in cases or CASES:
            measured: Measured = defaultdict(lambda: defaultdict(list))
            for run in range(1 if case in STEADY else runs):
                for name in peers:
                    if case in PEERS[name].cases and (name, case) not in failed:
                        _run(case, name, measured, failed)
                print(f"# {case} run {run + 1}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            for (figure, unit), values in measured.items():
                lines = [_line(figure, unit, name, values[name]) for name in values]
                kept.writelines(json.dumps(line) + "\n" for line in lines)
                kept.flush()
                _print(figure, unit, lines, as_json=as_json)
    for (name, case), why in failed.items():
        print(f"# not run: {named(name)} {case}: {why}", file=sys.stderr)


def available(names: Sequence[str]) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Those whose venv is there or could be made, and why the others are not run."""
    peers, failed = [], {}
    for name in names:
        try:
            inside_of(name)
            peers.append(name)
        except Missing as missing:
            failed[name, ""] = str(missing)
    return peers, failed


def named(name: str) -> str:
    """A peer as the table names it."""
    requires = PEERS[name].requires
    return NAMES.get(name) or f"{name} {re.split('==|@', requires[0])[-1]}"


def _run(case: str, name: str, measured: Measured, failed: dict[tuple[str, str], str]) -> None:
    try:
        for figure, value, unit in CASES[case](name):
            measured[figure, unit][name].append(value)
    except (RuntimeError, TimeoutError, OSError) as error:
        failed[name, case] = str(error)


def _head(runs: int) -> None:
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"# {platform.python_implementation()} {platform.python_version()}, {platform.platform()}, "
        f"{os.cpu_count()} cores, load {load}, {runs} runs",
        file=sys.stderr,
    )


def _line(figure: str, unit: str, name: str, values: list[float]) -> dict[str, object]:
    return {
        "peer": named(name), "figure": figure, "unit": unit, "median": statistics.median(values),
        "min": min(values), "max": max(values), "runs": len(values),
    }  # fmt: skip


def _print(figure: str, unit: str, lines: list[dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        for line in lines:
            print(json.dumps(line))
    else:
        print(f"\n{figure}, {unit}")
        for line in lines:
            print(
                f"  {line['peer']:38} {line['median']:>12,.2f}  "
                f"({line['min']:,.2f} – {line['max']:,.2f}, {line['runs']} runs)"
            )
    sys.stdout.flush()
