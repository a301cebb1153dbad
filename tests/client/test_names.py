"""Names of queues that messages go to."""

from __future__ import annotations

import pytest

from jobq import Flow, job
from jobq.client.names import checked_queue
from jobq.config import parse_queues
from jobq.errors import ConfigError
from jobq.jobs.registry import Registry
from jobq.queue.queue import Queue

UNREACHABLE = ["-q", "--help", "a,b", "low:3", "a:b:12"]


@pytest.mark.parametrize("name", UNREACHABLE)
def test_queue_that_the_command_line_would_read_otherwise_is_refused(name):
    with pytest.raises(ConfigError, match="can't be used: on the command line"):
        job(queue=name, registry=Registry())(lambda: None)
    with pytest.raises(ConfigError, match="can't be used"):
        Flow("f", queue=name)


@pytest.mark.one_server
@pytest.mark.parametrize("name", UNREACHABLE)
def test_queue_of_such_a_name_gets_no_message_and_can_be_read(client, redis, name):
    queue = Queue(name, client)
    with pytest.raises(ConfigError, match="use another name"):
        queue.enqueue(b"{}")
    assert queue.admin.counts().messages == 0
    assert not redis.keys("*")


@pytest.mark.parametrize("name", ["mail:low", "a-b", "3", "v1.2:beta3", "größe"])
def test_other_names_reach_the_queue_that_they_name(name):
    assert checked_queue(name) == name
    assert parse_queues(f"{name}:1") == ((name, 1),)
