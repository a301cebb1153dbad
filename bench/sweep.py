"""Try other settings of each peer, one at a time, compared with the bench's settings: `python -m bench --sweep`."""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench import drains
from bench.peers import PEERS
from bench.peers.venvs import Missing, named


def sweep(only: Sequence[str], runs: int) -> None:
    """No-op jobs a second with one process and with two, for each value of each setting."""
    for name in only or PEERS:
        for setting, values in PEERS[name].sweep.items():
            rates = _rates(name, setting, values, runs)
            for value in values:
                one, two = (statistics.median(rates[value, processes]) for processes in (1, 2))
                print(f"{named(name):16} {setting:12} {value:32} {one:>10,.0f} {two:>10,.0f}")
                sys.stdout.flush()


def _rates(
    name: str, setting: str, values: Sequence[str], runs: int
) -> dict[tuple[str, int], list[float]]:
    """Measure in turn, so that the machine's fluctuations affect all values."""
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(runs):
        for value in values:
            with _set(f"BENCH_{setting}", value):
                for processes in (1, 2):
                    rates[value, processes].append(_rate(name, processes))
    return rates


def _rate(name: str, processes: int) -> float:
    figure = f"drain no-op, {processes} process{'es' * (processes > 1)}"
    try:
        rows = list(drains.noop(processes)(name))
    except (RuntimeError, TimeoutError, Missing):
        return 0.0
    return next(value for row, value, _ in rows if row == figure)


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
