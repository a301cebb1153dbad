"""The three things that an operator asks first: what got slower, what fails, what is late. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jobq.pipeline.report.asked import Asked
from jobq.pipeline.report.formats import decimal, duration, shown
from jobq.pipeline.report.registry import Column
from jobq.pipeline.report.run import SLOWER, TOO_FEW, Result

#: Lines of a card.
TOLD = 3
#: Characters of an error on a card; the table has all.
LONGEST = 60
_SHARE, _CHANGE = Column("share", "", "share"), Column("change", "", "share")


class Card(NamedTuple):
    """A heading, the short answer, whether it is bad (None: can't tell), its worst cases, where to read on."""

    heading: str
    answer: str
    bad: bool | None
    lines: Sequence[str]
    links: Sequence[tuple[str, str]]


def cards(results: Sequence[Result], asked: Asked) -> list[Card]:
    """Of those that the results can answer."""
    found = {one.report.name: one for one in results}
    made: tuple[tuple[set[str], Callable[[Mapping[str, Result], Asked], Card]], ...] = (
        ({"regressions", "anomalies"}, _slower),
        ({"errors", "retries", "dead"}, _fails),
        ({"slo", "backlog"}, _late),
    )
    return [card(found, asked) for names, card in made if names <= set(found)]


def counted(n: int, one: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{n:,} {one if n == 1 else one + 's'}"


def _slower(found: Mapping[str, Result], asked: Asked) -> Card:
    rows, unusual = found["regressions"].rows, found["anomalies"].rows
    worse = [row for row in rows if row["verdict"] == SLOWER]
    judged = sum(row["verdict"] != TOO_FEW for row in rows)
    lines = [
        f"{row['job']} {shown(row['change'], _CHANGE, asked)}: {duration(row['before_us'])} to "
        f"{duration(row['after_us'])}"
        for row in worse[:TOLD]
    ]
    if unusual:
        jobs = len({row["job"] for row in unusual})
        lines.append(f"{counted(len(unusual), 'unusual hour')} of {counted(jobs, 'job')}")
    answer = "Not enough data to compare"
    if judged:
        of = counted(len(worse), "job") if worse else f"None of {counted(judged, 'job')}"
        answer = f"{of} got slower"
    links = (("regressions", "Regressions"), ("anomalies", "Anomalies"))
    return Card("What got slower", answer, bool(worse) if judged else None, lines, links)


def _fails(found: Mapping[str, Result], asked: Asked) -> Card:
    rows = found["retries"].rows
    attempts, dead = sum(row["attempts"] for row in rows), sum(row["dead"] for row in rows)
    failed = attempts - sum(row["done"] for row in rows)
    worst = sorted(found["errors"].rows, key=lambda row: -row["attempts"])[:TOLD]
    lines = [f"{_culprit(row)}: {counted(row['attempts'], 'attempt')}" for row in worst]
    if dead:
        lines.append(f"{counted(dead, 'message')} died")
    answer = "Nothing failed"
    if failed:
        share = shown(failed / attempts, _SHARE, asked)
        answer = f"{share} of {counted(attempts, 'attempt')} failed"
    links = (("errors", "Errors"), ("dead", "Dead letters"), ("retries", "Retries"))
    return Card("What fails", answer, bool(failed), lines, links)


def _culprit(row: Mapping[str, Any]) -> str:
    jobs = row["jobs"].split(", ") if row["jobs"] else []
    many = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    error = row["error"] or "unnamed"
    error = error if len(error) <= LONGEST else error[: LONGEST - 1] + "…"
    return f"{error}{' in ' + jobs[0] + many if jobs else ''}"


def _late(found: Mapping[str, Result], asked: Asked) -> Card:
    rows, backlog = found["slo"].rows, found["backlog"].rows
    burning = [row for row in rows if row["burn"] > 1]
    target = f"within {asked.target_s:g} s"
    lines = [
        f"{row['queue']}: {shown(row['within'], _SHARE, asked)} {target}, burn {decimal(row['burn'])}"
        for row in burning[:TOLD]
    ]
    last = max((row["at"] for row in backlog), default=None)
    waiting = sum(row["waiting"] for row in backlog if row["at"] == last)
    if waiting:
        lines.append(f"{counted(waiting, 'message')} waited at the end")
    goal = f"{100 * asked.objective:.4g} % {target}"
    answer = (
        f"{counted(len(rows), 'queue')} in time ({goal})" if rows else "No start tells its wait"
    )
    if burning:
        answer = f"{len(burning):,} of {counted(len(rows), 'queue')} below {goal}"
    links = (("slo", "Service level"), ("backlog", "Backlog"), ("wait", "Wait"))
    return Card("What is late", answer, bool(burning) if rows else None, lines, links)
