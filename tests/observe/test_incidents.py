"""Findings claim nothing of workers that could not be read."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.observe.incidents import QueueFacts, Situation, incidents
from jobq.observe.situation import read_situation
from jobq.queue.queue import Queue

pytestmark = pytest.mark.one_server


def situation(client: Client, workers: Any, **facts: Any) -> Situation:
    queue = Queue("low", client)
    queue.enqueue(b"{}")
    known = QueueFacts(queue.admin.counts(), **facts)
    return Situation(1_000_000, workers=workers, queues={"low": known})


def test_unknown_job_is_said_of_a_worker_and_not_of_all_when_workers_cannot_be_read(
    client: Client,
) -> None:
    [finding] = incidents(situation(client, None, unknown={"mail.send": 1}))
    assert finding.code == "unknown_job" and "no worker" not in finding.sentence.lower()
    assert "No worker" not in finding.headline
    [of_none] = incidents(situation(client, (), unknown={"mail.send": 1}))
    assert of_none.headline == "No worker knows mail.send"


def test_backlog_says_nothing_of_slots_when_workers_cannot_be_read(client: Client) -> None:
    [finding] = incidents(situation(client, None, oldest_ms=600_000))
    assert finding.code == "backlog" and "slots" not in finding.sentence


def test_queue_is_named_when_its_sample_cannot_be_read(client: Client, redis: Any) -> None:
    for name in ("low", "damaged"):
        Queue(name, client).enqueue(b"{}")
    redis.delete("jobq:{damaged}:ready")
    redis.set("jobq:{damaged}:ready", "not a list")
    situation = read_situation(client)
    assert set(situation.queues) == {"low"} and set(situation.unread) == {"damaged"}
    first, *others = incidents(situation)
    assert (first.code, first.queues) == ("queue_unreadable", ("damaged",))
    assert "damaged can't be read" in first.sentence and "WRONGTYPE" in first.sentence
    # Its state is unknown: nothing else is claimed of it.
    assert all("damaged" not in incident.queues for incident in others)
