"""Records about topics and their groups, which commands and pages show."""

from __future__ import annotations

from typing import Any

from jobq.records import JsonRecord
from jobq.topics.messages import Description, Lag


class TopicRecord(JsonRecord):
    """A row of the list of topics."""

    topic: str
    messages: int
    first: int
    last: int
    bytes: int
    groups: int


def topic_record(name: str, facts: Description) -> TopicRecord:
    """Return a row of the list of topics."""
    return TopicRecord.of(facts, topic=name, bytes=facts.nbytes, groups=len(facts.groups))


def description_record(name: str, facts: Description) -> dict[str, Any]:
    """Return all facts about a topic, as a record."""
    return {"topic": name, **facts._asdict(), "limits": facts.limits}


def group_record(name: str, lag: Lag) -> dict[str, Any]:
    """Return a group's position and state, as a record."""
    return {
        "group": name, "settled": lag.settled, "handed_out": lag.handed_out, "held": lag.held, "lag": lag.messages,
        "out_of_range": lag.out_of_range, "paused": lag.paused,
    }  # fmt: skip


def lag_record(name: str, lag: Lag) -> dict[str, Any]:
    """Return a group's lag, as a record."""
    return {
        "group": name, "lag": lag.messages, "age_ms": lag.age_ms, "settled": lag.settled, "last": lag.last,
        "held": lag.held, "expired": lag.expired, "skipped": lag.skipped,
    }  # fmt: skip
