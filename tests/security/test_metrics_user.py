"""The user of an exporter can read what it needs for metrics, and can't write."""

from __future__ import annotations

import pytest

from jobq.errors import ScriptError
from jobq.metrics.of_queues import QueueExporter
from jobq.queue.queue import Queue
from jobq.topics.topic import Topic
from tests.security.logins import logins


@pytest.fixture
def login(server, redis, client, capsys):
    with logins(server, redis, client, capsys) as made:
        yield made


def test_exporter_reads_everything_as_its_own_user(login, client):
    Queue("low", client).enqueue(b"{}", mid="m")
    topic = Topic("orders", client)
    topic.append(b"secret")
    topic.group("mail").subscribe("earliest")
    user = login("metrics")
    found = {family.metric.name: family.rows for family in QueueExporter(user).families()}
    assert found["jobq_up"] == {(): 1}
    assert found["jobq_queue_messages"]["low", "ready"] == 1
    assert found["jobq_topic_lag_messages"] == {("orders", "mail"): 1}
    queue = Queue("low", user)
    for refused in (
        lambda: queue.enqueue(b"{}"),
        lambda: queue.admin.pause(),
        lambda: queue.admin.fsck(),
        lambda: user.command("HGETALL", "jobq:{low}:messages"),
        lambda: user.command("DEL", "jobq:{orders}:topic:log"),
        lambda: Topic("orders", user).append(b"x"),
    ):
        with pytest.raises(ScriptError):
            refused()
    assert Queue("low", client).admin.counts().ready == 1
