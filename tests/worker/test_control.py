"""When the log reports a state, the children already know it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator

import pytest

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.config import WorkerSettings
from jobq.errors import ScriptError
from jobq.jobs.registry import Registry
from jobq.queue.directory import queue_names
from jobq.queue.partitioning import KEEP_S, partition, tidy
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue, queue_scripts
from jobq.worker.child import Hooks, PoolPlan
from jobq.worker.partition_watch import queues_to_serve
from jobq.worker.polling import Polling
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.shared_state import Control
from jobq.worker.supervisor import Supervisor


@pytest.fixture
def supervisor(client: Client) -> Iterator[Supervisor]:
    """Of two children that aren't started."""
    woken, waking = os.pipe()
    settings = WorkerSettings(queues=(("low", 1),), processes=2)
    health = QueueHealth(1, 9)
    health.room = 2
    plan = PoolPlan(settings, client, Registry(), Hooks(), woken, waking, health)
    made = Supervisor(plan, woken)
    yield made
    made.client.close()
    for member in made.members:
        member.stacks.close()
    os.close(woken)
    os.close(waking)


class Heard(logging.Handler):
    """By the first word of each line: what every child had been told when it was written."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__()
        self.supervisor = supervisor
        self.told: dict[str, list[set[Control]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        asked = [
            {one for one in Control if member.slots.asks(one)} for member in self.supervisor.members
        ]
        self.told[record.getMessage().split()[0].strip(":,")] = asked


@pytest.mark.parametrize(
    ("signals", "word", "control"),
    [
        ([signal.SIGTSTP], "quiet", Control.QUIET),
        ([signal.SIGTERM], "draining", Control.DRAIN),
        ([signal.SIGTERM, signal.SIGTERM], "hurrying", Control.HURRY),
    ],
)
def test_line_comes_after_the_children_were_told(supervisor, caplog, signals, word, control):
    caplog.set_level(logging.INFO, logger="jobq")
    heard = Heard(supervisor)
    logger = logging.getLogger("jobq.worker")
    logger.addHandler(heard)
    try:
        for number in signals:
            supervisor._on_signal(number)
    finally:
        logger.removeHandler(heard)
    assert [control in asked for asked in heard.told[word]] == [True, True]


def test_worker_serves_queues_that_its_source_names_later(supervisor, caplog):
    caplog.set_level(logging.INFO, logger="jobq")
    supervisor._serve_more({"low": 1, "new": 3})
    assert [queue.name for queue in supervisor.queues] == ["low", "new"]
    assert supervisor.plan.settings.queues == (("low", 1), ("new", 3))
    assert supervisor.heartbeat._facts["queues"] == ["low", "new"]
    assert supervisor.heartbeat._facts["schedules"] == {}
    supervisor.heartbeat.declares({"low": ["s"] * 501})
    assert "schedules" not in supervisor.heartbeat._facts
    assert [member for member, _ in supervisor.restarting] == supervisor.members
    supervisor.plan.health.failed([1], BROKEN, "why", boot_ns())
    supervisor.upkeep.log_troubles()
    assert "queue new: the server rejects its calls; 1 other queue continues" in caplog.text
    supervisor._serve_more({"new": 1, "third": 1, "fourth": 1})
    assert [queue.name for queue in supervisor.queues] == ["low", "new", "third"]


def test_worker_no_longer_asks_partitions_when_they_are_drained(supervisor, client, caplog):
    caplog.set_level(logging.INFO, logger="jobq")
    health = supervisor.plan.health
    health.room = 5
    client_queue = Queue("low", client)
    partition(client, "low", 2)
    client_queue.enqueue(b"x")
    serve_partitions(supervisor)
    partition(client, "low", 3)
    serve_partitions(supervisor)
    assert health.retired() == frozenset()
    assert len(supervisor.heartbeat._served()) == 6

    client_queue.admin.clear()
    serve_partitions(supervisor)

    assert health.retired() == {1, 2}
    assert supervisor.heartbeat._served() == ["low", "low/2", "low/3", "low/4"]
    assert "no longer serves low/0, low/1: drained" in caplog.text
    settings = supervisor.plan.settings
    queues = [Queue(name, client) for name, _ in settings.queues]
    polling = Polling(settings, client, queues, health)
    asked = {polling.next() for _ in range(4)}
    assert asked == {0, 3, 4, 5}
    assert polling.skipped() == {1, 2}
    health.failed([1], AWAY, "why", boot_ns())
    assert health.troubles() == {}


def serve_partitions(supervisor: Supervisor) -> None:
    supervisor.upkeep.sealed.add("low")
    supervisor._serve_partitions()


def test_worker_asks_partitions_again_when_the_map_lists_them_again(supervisor, client, redis):
    health = supervisor.plan.health
    health.room = 5
    partition(client, "low", 1)
    serve_partitions(supervisor)
    partition(client, "low", 2)
    serve_partitions(supervisor)
    assert health.retired() == {1}
    redis.flushdb()
    partition(client, "low", 1)
    supervisor.restarting = []

    serve_partitions(supervisor)

    assert health.retired() == frozenset()
    assert "low/0" in supervisor.heartbeat._served()
    assert supervisor.restarting


def test_worker_asks_drained_partitions_while_messages_are_left_in_them(supervisor, client):
    """A backup may be older than the mark in the map."""
    supervisor.plan.health.room = 5
    partition(client, "low", 1)
    serve_partitions(supervisor)
    tidy(client, partition(client, "low", 2))
    client.command("HSET", "jobq:{low/0}:messages", "m", "x")

    serve_partitions(supervisor)

    assert supervisor.plan.health.retired() == frozenset()


def test_an_idle_queue_with_partitions_costs_no_upkeep_but_its_map_is_read(supervisor, client):
    upkeep = supervisor.upkeep
    partition(client, "low", 2)
    upkeep.look_after()
    assert upkeep.sealed == {"low"}
    supervisor._serve_partitions()
    upkeep.look_after()
    upkeep.sealed.clear()

    upkeep._sweep(boot_ns())

    assert upkeep.sealed == {"low"}
    assert upkeep._due == {}
    Queue("low/1", client).enqueue(b"x")
    upkeep._sweep(boot_ns())
    assert [upkeep._names[index] for index in upkeep._due] == ["low/1"]


def test_worker_forgets_partitions_that_were_drained_long_ago(supervisor, client, redis):
    supervisor.plan.health.room = 5
    partition(client, "low", 1)
    serve_partitions(supervisor)
    partition(client, "low", 2)
    serve_partitions(supervisor)
    assert [epoch.drained for epoch in read_map(client, "low").epochs] == [True, True, False]
    drained_at = client.clock_ms() // 1000 - KEEP_S - 1
    redis.hset("jobq:{low}:partitions", "map", f"0,0,0,d{drained_at};1,0,1,d{drained_at};2,1,2")

    serve_partitions(supervisor)
    assert "low/0" in read_map(client, "low").names()
    supervisor._forget_at = 0.0
    serve_partitions(supervisor)

    assert read_map(client, "low").names() == ["low/1", "low/2"]
    assert queue_names(client) == ["low", "low/1", "low/2"]
    assert supervisor._forget_at > time.monotonic()
    assert supervisor.heartbeat._served() == queue_names(client)
    supervisor.heartbeat._list_at = 0.0
    assert supervisor.heartbeat.send([])
    assert queue_names(client) == ["low", "low/1", "low/2"]


def test_worker_stops_asking_a_partition_when_the_map_no_longer_has_it(supervisor, client):
    supervisor.plan.health.room = 5
    partition(client, "low", 1)
    serve_partitions(supervisor)
    known = tidy(client, partition(client, "low", 2))
    tidy(client, known, known.epochs[0].drained_at + KEEP_S)

    serve_partitions(supervisor)

    assert supervisor.heartbeat._served() == ["low", "low/1", "low/2"]


def test_worker_adds_partitions_when_a_deletion_of_its_queue_stopped_midway(
    supervisor, client, caplog
):
    supervisor.plan.health.room = 5
    partition(client, "low", 2)
    serve_partitions(supervisor)
    tidy(client, read_map(client, "low"))
    for name in ("low/0", "low/1"):  # the first steps of remove_partitions
        queue_scripts(client, "queue", name)["seal"].run({"epoch": 2})
    with pytest.raises(ScriptError, match="run jobq partitions low 2, or repeat"):
        Queue("low", client).enqueue(b"x")

    supervisor.upkeep.begin(0)
    supervisor.upkeep.look_after()
    supervisor._serve_partitions()

    assert "the deletion of queue low stopped midway" in caplog.text
    assert Queue("low", client).enqueue(b"x").partition in ("low/2", "low/3")
    assert {"low/2", "low/3"} <= {*supervisor.heartbeat._served()}


def test_worker_warns_before_it_has_no_room_for_more_partitions(supervisor, client, caplog):
    health = supervisor.plan.health
    health.room = 6
    partition(client, "low", 2)
    serve_partitions(supervisor)
    assert "restart" not in caplog.text
    partition(client, "low", 3)
    serve_partitions(supervisor)
    assert health.room == 1
    assert "before the next change of partitions: it has room for 1 partition more" in caplog.text
    partition(client, "low", 4)
    serve_partitions(supervisor)
    serve_partitions(supervisor)

    served = supervisor.heartbeat._served()
    assert served == ["low", "low/5"]
    assert caplog.text.count("3 partitions can't be served until this worker restarts") == 1
    Queue("low/6", client).enqueue(b"x")
    assert queues_to_serve(client, [("low", 1)], {})[-1] == ("low/8", 1)
