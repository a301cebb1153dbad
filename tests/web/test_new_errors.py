"""When an error is new: it was seen in the last minutes, and its queues are known for longer."""

from __future__ import annotations

import pytest

from jobq.events import Event
from jobq.web import new_errors
from jobq.web.new_errors import KNOWN_MS, NEW_MS, ErrorGroups
from jobq.web.outcomes import StreamEntry

NOW = 1_800_000_000_000


def entry(ago_ms: int, kind: str = "done", group: str = "", job: str = "pay") -> StreamEntry:
    error = "Timeout" if group else ""
    return StreamEntry(NOW - ago_ms, Event(kind, "m", 0, job, error=error, fingerprint=group))


def found(groups: ErrorGroups, since_ms: int | None = 0, now_ms: int = NOW) -> list[str]:
    return [one.group for one in groups.new(now_ms, lambda queue: since_ms, 9)]


@pytest.fixture
def groups():
    """One new error, in a queue that is known for longer."""
    made = ErrorGroups()
    made.take("low", [entry(NEW_MS, "enqueued")])
    made.take(
        "low",
        [entry(5_000, "retry", "f1"), entry(9_000, "dead", "f1"), entry(7_000, "retry", "f1", "mail")],
    )  # fmt: skip
    return made


def test_new_error_is_counted_with_its_jobs_and_queues(groups):
    groups.take("high", [entry(NEW_MS), entry(8_000, "retry", "f1")], 3.4)
    [one] = groups.new(NOW, lambda queue: 0, 9)
    assert (one.error, one.job, one.jobs, one.queues) == ("Timeout", "pay", 2, ("high", "low"))
    assert (one.failures, one.dead, one.first_at) == (6, 1, NOW - 9_000)


def test_error_is_no_longer_new_after_a_while_or_if_it_was_there_before(groups):
    assert found(groups) == ["f1"]
    assert found(groups, now_ms=NOW + NEW_MS) == []
    groups.take("low", [entry(NEW_MS - 10, "retry", "f1")])
    assert found(groups) == []


def test_error_may_be_older_than_what_is_known_of_a_queue(groups):
    assert found(groups, None) == []
    assert found(groups, NOW - 9_000 - KNOWN_MS) == []
    assert found(groups, NOW - 9_001 - KNOWN_MS) == ["f1"]
    groups.take("high", [entry(8_000, "retry", "f1"), entry(2_000, "retry", "f2")])
    assert found(groups) == []


def test_groups_are_bounded_and_the_most_frequent_come_first(groups, monkeypatch):
    monkeypatch.setattr(new_errors, "MAX_KEPT", 10)
    for n in range(40):
        groups.take("low", [entry(4_000 - n, "crashed", f"g{n}", f"job{n}")])
    assert sorted(found(groups)) == [f"g{n}" for n in range(35, 40)]
    groups.take("low", [entry(1, "dead", "g37")])
    assert found(groups)[0] == "g37"


@pytest.mark.parametrize("kind", ["recovered", "dead"])
def test_lost_lease_is_no_new_error_of_a_job(groups, kind):
    lost = Event(kind, "m", 0, error="lock expired")
    groups.take("low", [StreamEntry(NOW - 5_000, lost)])
    assert found(groups) == ["f1"]
