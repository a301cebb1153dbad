"""TLS, Sentinel and Cluster, with real ones."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest
from redis.crc import key_slot

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import ConfigError, NotDurableError, UnavailableError
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

from ..conftest import binary
from .deployments import HOST, Node, Spread, TlsFront, Watched, role, wait_for


def made(url, **settings):
    return connect(settings=ServerSettings(url=url, **{"patience_s": 120, **settings}))


@pytest.fixture
def tls(server, redis, short_folder):
    front = TlsFront(short_folder, server.socket)
    yield front
    front.close()


def test_tls_server_is_used_when_its_authority_is_trusted(tls):
    client = made(f"rediss://localhost:{tls.port}?ssl_ca_certs={tls.authority}")
    queue = Queue("low", client)
    assert queue.enqueue(b"v").action == "added"
    assert len(queue.dequeue().messages) == 1
    client.close()


def test_tls_server_is_refused_at_once_when_its_authority_is_unknown(tls):
    client = made(f"rediss://localhost:{tls.port}", patience_s=600)
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        client.command("PING")


def test_tls_server_is_refused_when_its_name_is_another(server, redis, short_folder):
    front = TlsFront(short_folder, server.socket, "elsewhere.example")
    url = f"rediss://localhost:{front.port}?ssl_ca_certs={front.authority}&ssl_check_hostname=true"
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        made(url, patience_s=600).command("PING")
    front.close()


@pytest.fixture
def watched(server, tmp_path):
    deployment = Watched(binary(server.kind), tmp_path)
    yield deployment
    deployment.close()


def test_sentinel_names_the_master_and_the_next_one_after_a_failover(watched):
    client = made(watched.url, socket_timeout_s=1)
    queue = Queue("low", client)
    queue.enqueue(b"v", mid="before")
    wait_for(lambda: watched.replica.redis.hlen("jobq:{low}:messages") == 1, "not replicated")

    watched.master.kill()
    with watched.impatient():
        assert queue.enqueue(b"v", mid="after").action == "added"

    assert role(watched.replica) == "master"
    assert [message.mid for message in queue.dequeue(5).messages] == ["before", "after"]
    client.close()


def test_repeated_enqueue_leaves_a_master_that_was_replaced_and_does_not_know(watched):
    client = made(watched.url, durable_within_s=0.5)
    queue = Queue("low", client)
    assert queue.enqueue(b"v", mid="before").action == "added"
    wait_for(lambda: watched.replica.redis.hlen("jobq:{low}:messages") == 1, "not replicated")

    watched.master.process.send_signal(signal.SIGSTOP)
    with watched.impatient():
        wait_for(lambda: role(watched.replica) == "master", "no failover")
    watched.follower(watched.replica)
    watched.replica.redis.set("k", "v")
    wait_for(lambda: watched.replica.redis.execute_command("WAIT", 1, 100) == 1, "no replica")
    wait_for(lambda: watched.names(watched.replica), "not every Sentinel knows")
    for node in watched.sentinels:  # they would demote it, and close its connections
        node.process.send_signal(signal.SIGSTOP)
    watched.master.process.send_signal(signal.SIGCONT)

    def enqueued():
        return queue.enqueue(b"v", mid="after", durability="replicas=1").action

    with pytest.raises(NotDurableError):
        enqueued()
    for node in watched.sentinels:
        node.process.send_signal(signal.SIGCONT)

    def durable():
        with suppress(NotDurableError):
            return enqueued()

    assert wait_for(durable, "never confirmed") in ("added", "exists")
    assert watched.replica.redis.hlen("jobq:{low}:messages") == 2
    client.close()


def test_all_clients_of_a_process_leave_a_replaced_master_with_the_first_of_them(watched):
    first, second = made(watched.url, socket_timeout_s=1), made(watched.url)
    second.command("GET", "k")
    watched.master.process.send_signal(signal.SIGSTOP)
    with watched.impatient():
        wait_for(lambda: role(watched.replica) == "master", "no failover")
    assert first.command("SET", "k", "v") == b"OK"
    for node in watched.sentinels:  # they would demote it, and close its connections
        node.process.send_signal(signal.SIGSTOP)
    watched.master.process.send_signal(signal.SIGCONT)
    # The old master answers, has no such key, and takes writes that will be lost.
    assert second.command("GET", "k") == b"v"
    assert watched.master.redis.get("k") is None
    for client in (first, second):
        client.close()


@pytest.fixture
def locked(server, tmp_path):
    """A master and a Sentinel, each with a password of its own."""
    program = binary(server.kind)
    master = Node(program, tmp_path, "--save", "", password="inner")
    sentinel = Node(
        program, tmp_path, f"sentinel monitor main {HOST} {master.port} 1",
        "sentinel auth-pass main inner", "requirepass outer", sentinel=True, password="outer",
    )  # fmt: skip
    yield f"redis+sentinel://:inner@{HOST}:{sentinel.port}/main"
    sentinel.kill()
    master.kill()


def test_sentinel_with_a_password_is_asked_with_it(locked):
    client = made(f"{locked}?sentinel_password=outer")
    assert client.command("PING") == b"PONG"
    client.close()


@pytest.mark.parametrize(
    ("given", "says"), [("", "NOAUTH"), ("?sentinel_password=wrong", "NOAUTH")]
)
def test_sentinel_that_refuses_the_login_is_named(locked, given, says):
    with pytest.raises(ConfigError, match=f"{says}.*sentinel_password") as refused:
        made(f"{locked}{given}").command("PING")
    assert "inner" not in str(refused.value) and "wrong" not in str(refused.value)


@pytest.fixture(scope="module")
def spread(server, tmp_path_factory):
    deployment = Spread(binary(server.kind), tmp_path_factory.mktemp("cluster"))
    yield deployment
    deployment.close()


@pytest.fixture
def cluster(spread):
    for node in spread.nodes:
        node.redis.flushall()
    client = made(spread.url)
    yield client
    client.close()


def test_queues_of_a_cluster_live_on_their_nodes(spread, cluster):
    names = [f"queue{number}" for number in range(12)]
    for name in names:
        assert Queue(name, cluster).enqueue(b"v").action == "added"
    assert all(node.redis.keys("jobq:{*}:messages") for node in spread.nodes)
    assert set(names) <= set(queue_names(cluster))
    for name in names:
        queue = Queue(name, cluster)
        [message] = queue.dequeue().messages
        ending = Ending(mid=message.mid, token=message.token)
        assert queue.finish([ending], dequeue=1).replies == ["ok"]
        assert queue.admin.fsck() == []
    assert cluster.is_cluster


def moved(spread, name):
    """The slot of a queue, the node that serves it, and another."""
    slot = key_slot(f"jobq:{{{name}}}:messages".encode())
    owner = spread.nodes[min(slot // 5461, 2)]
    return slot, owner, next(node for node in spread.nodes if node is not owner)


def test_queue_is_found_when_its_slot_moves_under_load(spread, cluster):
    queue = Queue("moving", cluster)
    slot, owner, taker = moved(spread, "moving")
    stop = threading.Event()
    accepted, failed = [], []

    def produce():
        try:
            while not stop.is_set():
                accepted.append(queue.enqueue(b"v").mid)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    wait_for(lambda: len(accepted) > 20, "nothing enqueued")
    spread.move(slot, owner, taker)
    until = len(accepted) + 20
    wait_for(lambda: failed or len(accepted) > until, "nothing enqueued after the move")
    stop.set()
    thread.join()

    assert not failed
    assert taker.redis.hlen("jobq:{moving}:messages") == len(accepted) == len(set(accepted))
    spread.move(slot, taker, owner)
    assert queue.admin.counts().messages == len(accepted)
    assert queue.admin.fsck() == []
