"""Compute the figures of a run, and compare them with a plain loop over the same files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from counting import Counts, count
from ledger import Line


@dataclass
class Census:
    """Counts of all files, and the files that couldn't be counted."""

    counts: Counts = field(default_factory=Counts)
    failed: dict[str, str] = field(default_factory=dict)
    duplicates: int = 0
    seconds: float = 0.0


def of_ledger(lines: Iterable[Line], dead: dict[str, str]) -> Census:
    """Return the census from job records. Each file counts once, and later runs count as duplicates."""
    census, ended = Census(failed=dead), Counter[str]()
    times: list[float] = []
    for line in lines:
        times.append(line.at)
        if line.counts is not None:
            if not ended[line.path]:
                census.counts.add(line.counts)
            ended[line.path] += 1
    census.duplicates = sum(ended.values()) - len(ended)
    census.seconds = max(times) - min(times) if times else 0.0
    return census


def of_plain_loop(files: Iterable[str]) -> Census:
    """Count all files in a plain loop, without jobq, and return the census."""
    census, began = Census(), time.monotonic()
    for path in files:
        try:
            census.counts.add(count(path))
        except Exception as error:
            census.failed[path] = f"{type(error).__name__}: {error}"
    census.seconds = time.monotonic() - began
    return census


def differences(jobs: Census, plain: Census) -> Iterator[str]:
    """Yield a description of each figure that differs between the two censuses."""
    for name in ("files", "functions", "classes", "lines", "imports"):
        here, there = getattr(jobs.counts, name), getattr(plain.counts, name)
        if here != there:
            yield f"{name}: {here!r:.60} by jobs, {there!r:.60} by the plain loop"
    if set(jobs.failed) != set(plain.failed):
        odd = sorted(set(jobs.failed) ^ set(plain.failed))
        yield f"files that failed in only one of them: {', '.join(odd)}"


def rows(census: Census) -> list[tuple[str, str]]:
    """Return the table's rows, without the rows about the kill."""
    jobs = census.counts.files + len(census.failed)
    counts = census.counts
    return [
        ("jobs done", f"{counts.files:,}"),
        ("dead", f"{len(census.failed):,}"),
        ("duplicates", f"{census.duplicates:,}"),
        ("jobs/s", f"{jobs / census.seconds:,.0f}" if census.seconds else "-"),
        ("functions, classes", f"{counts.functions:,}, {counts.classes:,}"),
        ("lines, imports", f"{counts.lines:,}, {counts.imports.total():,}"),
    ]
