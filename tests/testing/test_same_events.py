"""Random programs of jobs: drained in virtual time, they leave the same events as with a real worker."""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict

import pytest

from jobq.errors import Dead, HoldKey, Retry, Snooze
from jobq.events import decode
from jobq.jobs.context import current
from jobq.jobs.registry import job
from jobq.queue.directory import queue_names
from jobq.queue.keys import key
from jobq.queue.queue import Queue
from jobq.testing import kit

PROGRAMS = 200 if os.environ.get("JOBQ_KIT") == "large" else 40
SEED = 20261123
WORDS = ("done", "error", "retry", "snooze", "hold", "dead")
QUEUES = ("first", "second")
SOON_S = 0.01
DEADLINE_S = 300


def program(chance, depth=0):
    """A call: what becomes of its turns, what each turn enqueues, and how it is enqueued itself."""
    turns = chance.choices(WORDS, weights=(6, 2, 1, 1, 1, 1), k=chance.randint(1, 4))
    children = {}
    if depth < 3:
        for turn in range(len(turns)):
            children[str(turn)] = [
                program(chance, depth + 1) for _ in range(chance.choice((0, 0, 1, 2)))
            ]
    options = {}
    if chance.random() < 0.4:
        options["delay"] = chance.randint(0, 4) * SOON_S
    if chance.random() < 0.3:
        options |= {"key": chance.choice("ab"), "ordered": chance.random() < 0.5}
    if chance.random() < 0.3:
        options["retries"] = chance.randint(0, 1)
    return {
        "turns": turns,
        "children": children,
        "options": options,
        "queue": chance.choice(QUEUES),
    }


@pytest.fixture
def step(registry):
    """A job that does what its argument says, turn after turn; its checkpoint counts the turns."""

    @job(
        name="step",
        registry=registry,
        retries=2,
        retry=lambda failures, error: SOON_S,
        result_ttl=600,
    )
    def step(path, plan):
        context = current()
        turn = context.checkpoint_value or 0
        context.checkpoint(turn + 1)
        for index, child in enumerate(plan["children"].get(str(turn), ())):
            enqueue(step, f"{path}.{turn}.{index}", child)
        word = plan["turns"][turn] if turn < len(plan["turns"]) else "done"
        if word == "error":
            raise ValueError(path)
        if word == "dead":
            raise Dead("given up")
        if word != "done":
            raise {"retry": Retry, "snooze": Snooze, "hold": HoldKey}[word](SOON_S)
        return [path, turn]

    return step


def enqueue(step, path, plan):
    step.options(mid=path, queue=plan["queue"], **plan["options"]).enqueue(path, plan)


def begin(jobq, step):
    for name in QUEUES:
        Queue(name, jobq.client).admin.events_level("all")
    chance = random.Random(SEED)
    for number in range(PROGRAMS):
        enqueue(step, f"p{number}", program(chance))


def left_behind(jobq):
    """By mid: its events without times, and its stored result."""
    found = defaultdict(list)
    for name in QUEUES:
        queue = Queue(name, jobq.client)
        stream = jobq.client.command("XRANGE", key(queue.prefix, "events"), "-", "+")
        for _, (_, value) in stream:
            event = decode(value)
            found[event.mid].append(
                (event.kind, event.attempt, event.error, event.fingerprint, event.key)
            )
        for mid in {
            event for event in found if queue.client.command("EXISTS", queue.result_key(event))
        }:
            stored = json.loads(queue.client.command("LINDEX", queue.result_key(mid), 0))
            found[mid].append({**stored, "at": 0})
    return dict(found)


def test_drain_in_virtual_time_leaves_the_events_of_a_real_worker(registry, step):
    with kit(registry=registry) as jobq:
        begin(jobq, step)
        assert jobq.drain(delayed=True, raises=False).left == 0
        virtual = left_behind(jobq)
    assert len(virtual) > PROGRAMS
    with kit(registry=registry) as jobq:
        begin(jobq, step)
        with jobq.worker(processes=2, lease_s=600):
            deadline = time.monotonic() + DEADLINE_S
            while any(is_busy(Queue(name, jobq.client)) for name in queue_names(jobq.client)):
                assert time.monotonic() < deadline, jobq.all_enqueued()[:5]
                # Each look asks every queue.
                time.sleep(0.1)
        assert left_behind(jobq) == virtual


def is_busy(queue):
    counts = queue.admin.counts()
    return counts.ready or counts.delayed or counts.locked or counts.requeued
