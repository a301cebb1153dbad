"""What commands and pages say of a topic and its groups, as records."""

from __future__ import annotations

from typing import Any

from jobq.topics.messages import Description, Lag


def topic_record(name: str, facts: Description) -> dict[str, Any]:
    """Return a row of the list of topics."""
    return {
        "topic": name, "messages": facts.messages, "first": facts.first, "last": facts.last, "bytes": facts.nbytes,
        "groups": len(facts.groups),
    }  # fmt: skip


def description_record(name: str, facts: Description) -> dict[str, Any]:
    """Return everything of a topic."""
    return {"topic": name, **facts._asdict(), "limits": facts.limits._asdict()}


def group_record(name: str, lag: Lag) -> dict[str, Any]:
    """Return where a group is."""
    return {
        "group": name, "settled": lag.settled, "handed_out": lag.handed_out, "held": lag.held, "lag": lag.messages,
        "out_of_range": lag.out_of_range, "paused": lag.paused,
    }  # fmt: skip


def lag_record(name: str, lag: Lag) -> dict[str, Any]:
    """Return how far behind a group is."""
    return {
        "group": name, "lag": lag.messages, "age_ms": lag.age_ms, "settled": lag.settled, "last": lag.last,
        "held": lag.held, "expired": lag.expired, "skipped": lag.skipped,
    }  # fmt: skip
