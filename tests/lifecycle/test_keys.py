"""Keys with a real worker: the limit holds through a kill, a held key blocks starts, ordered keys keep their order."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from .conftest import until


def at_once(lines: list[dict[str, Any]], died: dict[int, float]) -> int:
    """The most runs at one moment. died: when processes did."""
    ends = {(one["name"], one["pid"]): one["at"] for one in lines if one["word"] == "end"}
    steps = []
    for one in lines:
        if one["word"] == "start":
            ended = ends.get((one["name"], one["pid"]), died.get(one["pid"], float("inf")))
            steps += [(one["at"], 1), (ended, -1)]
    running, most = 0, 0
    for _, change in sorted(steps):
        running += change
        most = max(most, running)
    return most


@pytest.mark.main_thread
def test_no_more_of_a_key_run_at_once_than_allowed_when_a_child_is_killed(
    queue, start, send, ledger
):
    queue.rules(key_max=2)
    names = [f"a{number}" for number in range(5)]
    for name in names:
        send("gated", name, key="acme")
    send("gated", "other", key="bob")
    worker = start("--processes", "5")
    until(lambda: len(ledger.lines("start")) == 3)
    assert {one["name"] for one in ledger.lines("start")} == {"a0", "a1", "other"}
    [row] = [row for row in queue.admin.iter_keys() if row.key == "acme"]
    assert (row.waiting, row.running, row.max, row.oldest) == (3, 2, 2, "a2")

    [victim] = ledger.lines("start", "a0")
    died = {victim["pid"]: victim["at"]}
    os.kill(victim["pid"], signal.SIGKILL)
    again = until(lambda: ledger.lines("start", "a0")[1:])[0]
    assert again["attempt"] == 2
    for name in [*names, "other"]:
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    of_key = [one for one in ledger.lines() if one["name"] in names]
    assert at_once(of_key, died) == 2
    assert [len(ledger.lines("end", name)) for name in names] == [1] * 5
    assert list(queue.admin.iter_keys()) == []
    assert queue.admin.fsck() == []


def test_held_key_starts_nothing_and_costs_no_attempt(queue, start, send, ledger):
    queue.rules(key_max=1)
    send("holds", "h", 0.3, key="acme")
    send("quick", "behind", key="acme")
    start("--processes", "2")
    until(lambda: queue.admin.counts().messages == 0)
    first, again = ledger.lines("start", "h")
    assert (first["attempt"], again["attempt"]) == (1, 1)
    assert again["at"] - first["at"] >= 0.3
    assert ledger.lines("end", "behind")[0]["at"] > again["at"]


def test_retry_of_an_ordered_key_holds_its_line(queue, start, send, ledger):
    send("again", "one", 2, key="A-1", ordered=True)
    send("quick", "two", key="A-1", ordered=True)
    send("quick", "three", key="A-1", ordered=True)
    start("--processes", "2")
    until(lambda: queue.admin.counts().messages == 0)
    assert [one["attempt"] for one in ledger.lines("start", "one")] == [1, 2, 3]
    assert [one["name"] for one in ledger.lines("end")] == ["one", "two", "three"]
