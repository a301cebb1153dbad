"""Findings claim nothing of workers that could not be read."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.events import CRASH, attempt_record
from jobq.observe.incidents import Incident, QueueFacts, Situation, incidents
from jobq.observe.runs import RunningMessage
from jobq.observe.situation import read_situation
from jobq.queue.partitioning import partition
from jobq.queue.presence import WorkerEntry
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

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


LEAVING = WorkerEntry(
    "w", queues=("low",), slots=2, quiet=True, leaving=True, running=2, seen_at=1_000_000
)


@pytest.mark.parametrize("workers", [None, (LEAVING,)], ids=["unknown", "leaving"])
def test_blocked_queue_has_running_messages_and_no_slots_when_no_slot_is_known(
    client: Client, workers: Any
) -> None:
    queue = Queue("low", client)
    queue.enqueue_many([b"{}", b"{}"])
    assert len(queue.dequeue(2).messages) == 2
    longest = RunningMessage("w", 7, "low", "m", 1, "pay", usual_ms=1)
    [stuck, *_] = incidents(situation(client, workers, longest=longest))
    assert stuck.code == "stuck"
    assert "; 2 running, 1 ready" in stuck.sentence and "slots" not in stuck.sentence


def test_remedy_names_the_module_of_the_next_job_when_its_queue_is_partitioned(
    client: Client,
) -> None:
    partition(client, "low", 2)
    Queue("low", client).enqueue(b'{"v":1,"job":"app.jobs.pay","args":[],"kwargs":{}}')
    [finding] = incidents(read_situation(client))
    assert finding.code == "no_worker"
    assert finding.remedy == "jobq worker --import app.jobs --queues low"


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


def crash(queue: Queue, mid: str, crash_limit: int = 9) -> None:
    """Take a message whose child then dies, as the supervisor reports it."""
    [message] = queue.dequeue().messages
    assert message.mid == mid
    record = attempt_record("pay", 1, 10, 1_000, 0, 0, "w", CRASH)
    queue.finish(
        [Ending(mid=mid, token=message.token, outcome="crashed", record=record, backoff=0)],
        crash_limit=crash_limit,
    )


def crashing(client: Client) -> list[Incident]:
    return [one for one in incidents(read_situation(client, ["low"])) if one.code == "poison"]


def test_single_crash_blames_no_job_whether_its_message_runs_again_or_not(
    queue: Queue, client: Client
) -> None:
    queue.enqueue(b"{}", mid="m")
    crash(queue, "m")
    assert crashing(client) == []
    [message] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=message.token, outcome="done")])
    queue.enqueue(b"{}", mid="other")
    crash(queue, "other")
    # One of two messages that crashed once is done since.
    assert crashing(client) == []


def test_crash_that_a_message_died_of_counts_and_the_remedy_is_about_a_dead_message(
    queue: Queue, client: Client
) -> None:
    queue.enqueue(b"{}", mid="m")
    for _ in range(2):
        crash(queue, "m")
    [finding] = crashing(client)
    assert "2 crashes" in finding.sentence and finding.remedy.endswith("jobq cancel m stops it")
    crash(queue, "m", crash_limit=3)
    assert queue.status("m").word == "dead"
    [finding] = crashing(client)
    assert "3 crashes" in finding.sentence
    assert finding.remedy == "jobq dead show m; jobq dead purge m deletes it"


def test_crashes_of_several_messages_are_a_finding_about_one_that_can_crash_again(
    queue: Queue, client: Client
) -> None:
    for mid in ("m", "other"):
        queue.enqueue(b"{}", mid=mid)
        crash(queue, mid)
        queue.cancel("m")
    [finding] = crashing(client)
    assert (finding.mid, finding.job) == ("other", "pay")
