"""What a queue holds outlives a crash of its server, and the loss of it when a replica is promoted."""

from __future__ import annotations

import threading

import pytest
from msgspec import structs

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.protocols.reliable import ReliableQueue
from tests.client.deployments import HOST, Node, Watched, role, wait_for
from tests.conftest import answering, binary, start


def queue_at(url, **settings):
    return ReliableQueue(connect(settings=ServerSettings(url=url, **settings)))


def fill(rq, at):
    """One message in each place, and every field set."""
    rq.configure("q", max_deliveries=2)
    ids = rq.push("q", "dead", "pending", "again", "waits", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    rq.nack("q", ids[0], front=True, now=at(1))
    rq.pop(1, 0, "q", now=at(2))
    rq.nack("q", ids[0], now=at(3))
    rq.pop(1, 0, "q", token="me", now=at(5))
    rq.pop(1, 0, "q", now=at(6))
    rq.nack("q", ids[2], front=True, now=at(7))
    return ids


def check(rq, at, ids):
    """All of it is there, and goes on."""
    assert structs.astuple(rq.info("q")) == ("q", 2, 1, 1, 0, 2, ids[3])
    assert rq.dead("q", now=at(8)) == [(ids[0], b"dead", at(3), 5, 2)]
    assert rq.pending("q", 0, 9, now=at(20)) == [(ids[1], b"pending", at(5), 15, 1)]
    assert rq.push("q", "new", now=at(-9)) == [f"{at(0)}-5"]
    popped = rq.pop(9, 0, "q", now=at(21))
    assert [(one.content, one.deliveries) for one in popped] == [
        (b"again", 2),
        (b"waits", 1),
        (b"new", 1),
    ]
    assert rq.ack("q", ids[1], token="other") == []
    assert rq.ack("q", ids[1], token="me") == [ids[1]]


@pytest.fixture
def lives(server, short_folder, request):
    """lives(): a server on the same append-only file as the one before it, which is killed; its client."""
    folder = short_folder / f"rq{abs(hash(request.node.name)) % 10**8}"
    folder.mkdir()
    options = (
        "--port",
        "0",
        "--unixsocket",
        f"{folder}/s",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    )
    running = []

    def begin():
        end()
        running.append(start(binary(server.kind), folder, *options))
        answering(running[0], folder, unix_socket_path=f"{folder}/s")
        return queue_at(f"unix://{folder}/s", patience_s=30)

    def end():
        while running:
            process = running.pop()
            process.kill()
            process.wait()

    yield begin
    end()


def test_server_killed_with_an_append_only_file_has_it_all_after_its_restart(lives, at):
    ids = fill(lives(), at)
    check(lives(), at, ids)


def test_rewritten_append_only_file_has_it_all(lives, at):
    rq = lives()
    ids = fill(rq, at)
    command = rq._calls.client.command
    command("BGREWRITEAOF", routed_by="")
    wait_for(lambda: b"aof_rewrites:1" in command("INFO", "persistence"), "no rewrite")
    wait_for(lambda: b"rewrite_in_progress:0" in command("INFO", "persistence"), "no end of it")
    check(lives(), at, ids)


@pytest.fixture
def pair(server, tmp_path):
    master = Node(binary(server.kind), tmp_path, "--save", "", "--repl-diskless-sync-delay", "0")
    replica = Node(
        binary(server.kind), tmp_path, "--save", "", "--replicaof", HOST, str(master.port)
    )
    wait_for(lambda: replica.redis.info()["master_link_status"] == "up", "no replica")
    yield master, replica
    for node in (master, replica):
        node.kill()


def follow(master, replica):
    """Wait until the replica has all that the master wrote by now."""
    written = master.redis.info()["master_repl_offset"]
    wait_for(lambda: replica.redis.info()["slave_repl_offset"] >= written, "not replicated")


def test_promoted_replica_has_it_all(pair, at):
    master, replica = pair
    ids = fill(queue_at(f"redis://{HOST}:{master.port}"), at)
    follow(master, replica)
    master.process.kill()
    replica.redis.replicaof("NO", "ONE")
    check(queue_at(f"redis://{HOST}:{replica.port}"), at, ids)


def test_replica_shows_a_queue_and_refuses_to_change_it(pair, at):
    master, replica = pair
    ids = fill(queue_at(f"redis://{HOST}:{master.port}"), at)
    follow(master, replica)
    copy = queue_at(f"redis://{HOST}:{replica.port}", patience_s=1)
    assert copy.info("q").last_id == ids[3]
    with pytest.raises(Exception, match="read only replica"):
        copy.push("q", "a")


def test_client_that_waits_is_served_by_the_next_master_after_a_failover(server, tmp_path):
    watched = Watched(binary(server.kind), tmp_path)
    try:
        rq = queue_at(watched.url, patience_s=120, socket_timeout_s=1)
        [id] = rq.push("q", "before")
        assert [one.id for one in rq.pop(1, 0, "q")] == [id]
        served = []
        thread = threading.Thread(target=lambda: served.append(rq.pop(1, -1, "q")))
        thread.start()
        wait_for(lambda: watched.master.redis.info()["blocked_clients"] == 1, "not blocked")
        wait_for(
            lambda: watched.replica.redis.zcard("reliable:{q}:delivered") == 1, "not replicated"
        )
        watched.master.kill()
        with watched.impatient():
            rq.push("q", "after")
        thread.join(120)
        assert [one.content for one in served[0]] == [b"after"]
        assert role(watched.replica) == "master"
        assert rq.ack("q", id) == [id]
    finally:
        watched.close()
