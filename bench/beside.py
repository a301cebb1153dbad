"""Run cases in rounds over all peers, so that all share the machine's fluctuations, and report the results."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from bench.cases import CASES, Case
from bench.machine import BUSY_SHARE, PATIENCE_S, Watch, bury_orphans, described, wait_until_idle
from bench.peers import PEERS
from bench.peers.venvs import FOLDER, Missing, inside_of, named
from bench.server import OVER_TCP
from bench.targets import TCP

RESULTS = FOLDER / "results.jsonl"
#: A peer that failed so often in a case isn't asked again.
FAILURES = 2
#: Waiting for a quiet moment and making disturbed runs again may take so long in all.
REPAIR_S = 120.0
REPEATS = 2
Line = dict[str, Any]


class Bench:
    """A run of the suite."""

    def __init__(
        self, only: Sequence[str], runs: int, kept: TextIO, *, as_json: bool, id: str = ""
    ) -> None:
        self.began, self.runs, self._kept, self._json = time.monotonic(), runs, kept, as_json
        self.id = id or time.strftime("%Y%m%dT%H%M%S")
        self.failed: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.peers = [name for name in only or PEERS if self._available(name)]
        self._repair_s = REPAIR_S
        self._how = TCP if OVER_TCP in os.environ else ""

    def case(self, name: str) -> None:
        """Run all peers in all rounds; print a line per figure and peer."""
        case, began = CASES[name], time.monotonic()
        if case.at_once == 1:
            self._settle(name)
        measured: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        others: dict[str, list[float]] = defaultdict(list)
        for peer, rows, share in self._runs(name, case):
            others[peer].append(share)
            for figure, value, unit in rows:
                measured[figure + self._how, unit, peer].append(value)
        lines = [
            self._line(name, figure, unit, peer, values, others[peer])
            for (figure, unit, peer), values in measured.items()
        ]
        self._tell(name, lines, time.monotonic() - began)

    def write(self, line: Line) -> None:
        """Write a line of JSON to the results."""
        self._kept.write(json.dumps({"run": self.id, **line}, ensure_ascii=False) + "\n")
        self._kept.flush()

    def _runs(
        self, name: str, case: Case
    ) -> Iterable[tuple[str, list[tuple[str, float, str]], float]]:
        peers = [peer for peer in case.peers if peer in self.peers]
        alone = peers if case.at_once == 1 else ["own"] * ("own" in peers and not case.steady)
        for _ in range(1 if case.steady else self.runs):
            for peer in alone:
                if len(self.failed[name, peer]) < FAILURES:
                    yield peer, *self._one(name, case, peer)
        together = [peer for peer in peers if peer not in alone]
        with ThreadPoolExecutor(max(1, min(case.at_once, len(together)))) as pool:
            # The share used by other processes isn't meaningful here, because they are ours.
            for peer, rows in zip(
                together, pool.map(lambda peer: self._rows(name, case, peer), together), strict=True
            ):
                yield peer, rows, 0.0

    def _one(self, name: str, case: Case, peer: str) -> tuple[list[tuple[str, float, str]], float]:
        """Run a case once; repeat the run if other programs used the machine."""
        for left in reversed(range(1 + REPEATS)):
            watch, began = Watch(), time.monotonic()
            rows = self._rows(name, case, peer)
            bury_orphans()
            share = watch.others()
            if share <= BUSY_SHARE or not left or case.steady or self._repair_s <= 0 or not rows:
                break
            print(f"# {name} {peer}: others took {share:.0%} of the CPU; again", file=sys.stderr)
            wait_until_idle(min(10.0, self._repair_s))
            self._repair_s -= time.monotonic() - began
        return rows, share

    def _rows(self, name: str, case: Case, peer: str) -> list[tuple[str, float, str]]:
        try:
            return list(case.run(peer))
        except (RuntimeError, TimeoutError, OSError, ValueError, IndexError) as error:
            self.failed[name, peer].append(str(error))
            return []

    def _settle(self, name: str) -> None:
        began = time.monotonic()
        share = wait_until_idle(min(PATIENCE_S, self._repair_s))
        self._repair_s -= time.monotonic() - began
        if share > BUSY_SHARE:
            print(
                f"# BUSY: others take {share:.0%} of the CPU; the figures of {name} are marked",
                file=sys.stderr,
            )

    def _available(self, name: str) -> bool:
        try:
            inside_of(name)
        except Missing as missing:
            self.failed["every case", name].append(str(missing))
        return name not in {peer for _, peer in self.failed}

    def _line(
        self, case: str, figure: str, unit: str, peer: str, values: list[float], others: list[float]
    ) -> Line:
        share = statistics.median(others)
        return {
            "case": case, "peer": peer, "name": named(peer), "figure": figure, "unit": unit,
            "median": statistics.median(values), "min": min(values), "max": max(values),
            "runs": len(values), "values": values, "others": round(share, 3),
            "busy": share > BUSY_SHARE and not CASES[case].steady,
        }  # fmt: skip

    def _tell(self, name: str, lines: list[Line], seconds: float) -> None:
        print(
            f"# {name}: {seconds:.0f} s, {time.monotonic() - self.began:.0f} s in all",
            file=sys.stderr,
        )
        figures: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in lines:
            self.write(line)
            figures[line["figure"], line["unit"]].append(line)
            if self._json:
                print(json.dumps(line, ensure_ascii=False))
        for (figure, unit), of_peers in figures.items() if not self._json else ():
            print(f"\n{figure}{', ' * bool(unit)}{unit}")
            for line in of_peers:
                print(
                    f"  {line['name']:38} {line['median']:>12,.2f}  ({line['min']:,.2f} – {line['max']:,.2f}, "
                    f"{line['runs']} runs){'  BUSY' * line['busy']}"
                )
        sys.stdout.flush()


def beside(
    cases: Sequence[str], only: Sequence[str], runs: int, *, as_json: bool, more: bool
) -> None:
    """Run each case, then print the failures and their reasons; with `more`, add to the last run."""
    FOLDER.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as kept:
        bench = Bench(only, runs, kept, as_json=as_json, id=_last_id() if more else "")
        head = described()
        bench.write({"head": head, "runs": runs})
        for key, value in head.items():
            print(f"# {key}: {value}", file=sys.stderr)
        for name in cases or CASES:
            bench.case(name)
        bench.write({"seconds": round(time.monotonic() - bench.began)})
        for (name, peer), why in bench.failed.items():
            if why:
                bench.write({"failed": name, "peer": peer, "times": len(why), "why": why[0]})
                print(
                    f"# not run: {peer} {name} ({len(why)} times): {why[0][-300:]}", file=sys.stderr
                )


def _last_id() -> str:
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return str(json.loads(lines[-1]).get("run", "")) if lines else ""
