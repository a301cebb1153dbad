"""Durability levels against servers with a disk and a replica of their own."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator

import pytest

from jobq import config, job
from jobq.client.connection import connect
from jobq.client.functions import load_library
from jobq.client.numbered_calls import Caller
from jobq.config import ServerSettings, parse_durability, settings_from_env
from jobq.errors import ConfigError, JobqError, NotDurableError
from jobq.jobs.registry import Registry
from jobq.queue import durability
from jobq.queue.queue import Queue
from jobq.queue.roles import rights

from ..client.deployments import HOST, Node, wait_for
from ..conftest import binary


class Pair:
    """A master and its replica."""

    def __init__(self, program, folder):
        self.master = Node(program, folder, "--save", "", "--repl-diskless-sync-delay", "0")
        replica_of = ("--replicaof", HOST, str(self.master.port))
        self.replica = Node(program, folder, "--save", "", *replica_of)
        self.url = f"redis://{HOST}:{self.master.port}"
        self.settle()

    def settle(self):
        """Wait until the replica follows: WAIT without a write before it would tell nothing."""
        wait_for(lambda: self.replica.redis.info()["master_link_status"] == "up", "no replica")
        self.master.redis.set("k", "v")
        wait_for(lambda: self.master.redis.execute_command("WAIT", 1, 100) == 1, "no replica")

    def close(self):
        self.replica.process.send_signal(signal.SIGCONT)
        for node in (self.master, self.replica):
            node.kill()


@pytest.fixture
def pair(server, tmp_path) -> Iterator[Pair]:
    made = Pair(binary(server.kind), tmp_path)
    yield made
    made.close()


def made(pair, within_s=0.2, **settings):
    """Who expects a confirmation waits for it longer."""
    return connect(
        settings=ServerSettings(
            url=pair.url, durable_within_s=within_s, socket_timeout_s=100, **settings
        )
    )


@pytest.mark.parametrize("text", ["", "disc", "replicas", "replicas=0", "replicas=x", "disk=1"])
def test_unknown_level_is_refused_where_it_is_given(text, queue):
    with pytest.raises(ConfigError, match="memory, disk or replicas=N"):
        parse_durability(text)
    if text:
        with pytest.raises(ConfigError, match="is invalid; use memory"):
            queue.enqueue(b"v", durability=text)
        with pytest.raises(ConfigError, match="is invalid; use memory"):
            job(durability=text, registry=Registry())(lambda: None)
        assert queue.admin.counts().messages == 0


def test_level_comes_from_the_environment_and_from_connect():
    settings = settings_from_env({"JOBQ_DURABILITY": "replicas=2", "JOBQ_DURABLE_WITHIN": "50ms"})
    assert (settings.durability, settings.durable_within_s) == ("replicas=2", 0.05)
    assert connect("redis://h", durability="disk").durability == "disk"
    with pytest.raises(ConfigError):
        connect("redis://h", durability="tape")


def test_memory_costs_no_command_more(client, redis):
    queue = Queue("low", client)
    queue.enqueue(b"v")
    redis.config_resetstat()
    queue.enqueue(b"v")
    queue.enqueue(b"v", durability="memory")
    asked = redis.info("commandstats")
    assert asked["cmdstat_evalsha"]["calls"] == 2
    assert asked["cmdstat_set"]["calls"] == 2, "the record of the call"
    assert not any("wait" in name for name in asked)


def test_what_a_replica_confirmed_outlives_the_master(pair):
    client = made(pair, 60, durability="replicas=1")
    queue = Queue("low", client)
    assert queue.enqueue(b"v", mid="one").action == "added"
    assert len(queue.enqueue_many([b"v"] * 50)) == 50
    pair.master.process.kill()
    pair.replica.redis.execute_command("REPLICAOF", "NO", "ONE")
    left = connect(settings=ServerSettings(url=f"redis://{HOST}:{pair.replica.port}"))
    assert Queue("low", left).admin.counts().ready == 51
    for one in (client, left):
        one.close()


def test_frozen_replica_means_not_durable_and_the_repeat_is_safe(pair):
    client = made(pair)
    queue = Queue("low", client)
    pair.replica.process.send_signal(signal.SIGSTOP)
    with pytest.raises(
        NotDurableError, match=r"0 of 1 replicas confirmed it within 0\.2 s \(run 2 replicas"
    ) as refused:
        queue.enqueue(b"v", durability="replicas=1")
    with pytest.raises(NotDurableError, match="and 2 more") as many:
        queue.enqueue_many([b"a", b"b", b"c"], durability="replicas=1")
    assert len(many.value.mids) == 3
    assert queue.admin.counts().messages == 4
    with pytest.raises(NotDurableError):
        queue.enqueue(b"v", mid=refused.value.mid, durability="replicas=1")
    pair.replica.process.send_signal(signal.SIGCONT)
    pair.settle()
    patient = made(pair, 60)
    again = Queue("low", patient).enqueue(b"v", mid=refused.value.mid, durability="replicas=1")
    assert again.action == "exists"
    assert queue.admin.counts().messages == 4
    for one in (client, patient):
        one.close()


def test_more_replicas_than_there_are_is_not_durable(pair):
    client = made(pair, durability="replicas=2")

    def confirmed_by_one():
        with pytest.raises(NotDurableError, match="of 2 replicas") as refused:
            Queue("low", client).enqueue(b"v")
        return "1 of 2 replicas" in str(refused.value)

    wait_for(confirmed_by_one, "the replica never confirms")
    assert Queue("low", client).enqueue(b"v", durability="memory").action == "added"
    client.close()


def test_replayed_reply_on_a_new_connection_is_no_confirmation(pair):
    """WAIT speaks of its connection's last write; a replayed reply doesn't cause one."""
    first, second = made(pair), made(pair)
    caller = Caller()
    pair.replica.process.send_signal(signal.SIGSTOP)
    Queue("low", first).enqueue(b"v", mid="m", caller=caller)
    caller.number -= 1  # as a client repeats a call whose reply was lost
    with pytest.raises(NotDurableError):
        Queue("low", second).enqueue(b"v", mid="m", caller=caller, durability="replicas=1")
    for client in (first, second):
        client.close()


def test_producer_with_the_rights_of_jobq_acl_may_ask_for_replicas(pair):
    load_library(connect(pair.url))
    pair.master.redis.execute_command("ACL", "SETUSER", "app", "on", ">p", *rights("producer"))
    url = pair.url.replace("redis://", "redis://app:p@")
    settings = {"durability": "replicas=1", "durable_within_s": 60, "socket_timeout_s": 100}
    client = connect(settings=ServerSettings(url=url, functions=True, **settings))
    queue = Queue("low", client)
    assert queue.enqueue(b"v", mid="m").action == "added"
    assert queue.enqueue(b"v", mid="m").action == "exists"
    client.close()


def test_job_asks_for_its_own_level(pair):
    client, patient = made(pair), made(pair, 60)

    @job(queue="low", client=client, durability="replicas=2", registry=Registry())
    def noted() -> None: ...

    with pytest.raises(NotDurableError) as refused:
        noted.enqueue()
    again = {"durability": "replicas=1", "mid": refused.value.mid, "client": patient}
    assert noted.options(**again).enqueue().action == "exists"
    assert noted.options(durability=None).enqueue().action == "added"
    for one in (client, patient):
        one.close()


@pytest.fixture
def on_disk(server, tmp_path):
    """on_disk(appendonly, appendfsync): a client of a server so configured."""
    nodes = []

    def start(appendonly, appendfsync):
        options = ("--save", "", "--appendonly", appendonly, "--appendfsync", appendfsync)
        nodes.append(Node(binary(server.kind), tmp_path, *options))
        return connect(f"redis://{HOST}:{nodes[-1].port}", durability="disk")

    yield start
    for node in nodes:
        node.kill()


def test_disk_that_is_always_written_needs_no_further_word(on_disk):
    client = on_disk("yes", "always")
    queue = Queue("low", client)
    asked = []
    for _ in range(3):
        assert queue.enqueue(b"v").action == "added"
        stats = client.command("INFO", "commandstats").decode()
        assert "wait" not in stats
        asked += re.findall(r"cmdstat_config\|get:calls=(\d+)", stats)
    # Valkey 9.1 counts each CONFIG GET twice.
    assert len(asked) == 3 and len(set(asked)) == 1, "verified once a connection"
    client.close()


def is_waitaof_honest(client) -> bool:
    """Whether the server has WAITAOF (Redis 7.0 hasn't), and it waits: Valkey 8.1 to 9.1 confirm what isn't written.

    There is an fsync a second, so two confirmations in a row can't both be quick.
    """
    try:
        for number in range(3):
            client.command("SET", "mark", number)
            asked = time.monotonic()
            [synced, _] = client.command("WAITAOF", 1, 0, 3000)
            if not synced or (number and time.monotonic() - asked < 0.3):
                return False
    except JobqError:
        return False
    return True


@pytest.mark.parametrize(
    ("appendonly", "appendfsync", "why"),
    [
        ("no", "always", "appendonly no"),
        ("yes", "no", "with no"),
        ("yes", "everysec", "WAITAOF"),
    ],
)
def test_disk_is_refused_before_anything_is_accepted(on_disk, appendonly, appendfsync, why):
    client = on_disk(appendonly, appendfsync)
    queue = Queue("low", client)
    if appendfsync == "everysec" and is_waitaof_honest(client):
        assert queue.enqueue(b"v").action == "added"
        assert "cmdstat_waitaof" in client.command("INFO", "commandstats").decode()
        client.close()
        return
    for _ in range(2):
        with pytest.raises(ConfigError, match=why):
            queue.enqueue(b"v")
    assert queue.admin.counts().messages == 0
    client.close()


def test_setting_that_the_user_may_not_read_is_named(client, redis):
    redis.execute_command("ACL", "SETUSER", "shy", "on", ">p", "~*", "+@all", "-config")
    url = client.url.replace("unix://", "unix://shy:p@")
    shy = connect(url, durability="disk")
    with pytest.raises(ConfigError, match=r"\+config\|get"):
        Queue("low", shy).enqueue(b"v")
    redis.execute_command("ACL", "DELUSER", "shy")
    shy.close()


class Disk:
    """Confirms writes as told: (fsyncs told, seconds taken) each."""

    def __init__(self, *answers):
        self.answers = iter(answers)
        self.now = 0.0
        self.socket_timeout = 5.0

    def exchange_all(self, connection, commands):
        fsyncs, seconds = next(self.answers)
        self.now += seconds
        return [b"OK", [fsyncs, 0]]


@pytest.mark.parametrize(
    ("answers", "honest"),
    [
        ([(1, 0.01), (1, 0.99), (1, 1.0)], True),
        ([(1, 0.7), (1, 0.98), (1, 1.01)], True),
        ([(1, 0.01), (1, 0.01), (1, 0.01)], False),
        ([(1, 0.9), (1, 1.0), (1, 0.02)], False),
        ([(0, 3.0)], False),
    ],
)
def test_probe_believes_who_makes_each_write_wait_for_an_fsync(monkeypatch, answers, honest):
    disk = Disk(*answers)
    monkeypatch.setattr(durability, "_exchange_all", disk.exchange_all)
    monkeypatch.setattr(durability.time, "monotonic", lambda: disk.now)
    assert durability._probed(disk, "jobq") is honest


def test_unbelievable_server_is_probed_once_a_run(monkeypatch, on_disk):
    probed = []
    monkeypatch.setattr(durability, "_probed", lambda *args: probed.append(1) or True)
    client = on_disk("yes", "everysec")
    queue = Queue("low", client)
    for _ in range(2):
        with contextlib.suppress(NotDurableError):  # Redis 7.0 doesn't have WAITAOF
            queue.enqueue(b"v")
        client.close()
    assert probed == [1]


def test_settings_refuse_a_level_that_is_none():
    with pytest.raises(ConfigError):
        config.ServerSettings(durability="raid")
