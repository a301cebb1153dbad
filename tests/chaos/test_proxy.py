"""The proxy injects exactly the intended faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import redis as redis_py

from jobq.chaos.proxy import DOWN, HOST, UP, Proxy
from jobq.chaos.workers import wait_until

SCRIPT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
def proxy(server, redis) -> Iterator[Proxy]:
    proxy = Proxy(server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def far(proxy) -> Iterator[redis_py.Redis]:
    """A client by way of the proxy that repeats nothing."""
    with redis_py.Redis(port=proxy.port, protocol=2, retry=None, socket_timeout=60) as client:
        yield client


def test_what_is_sent_arrives(far):
    assert far.set("a", b"x" * 200_000)
    assert far.get("a") == b"x" * 200_000


def test_nth_evalsha_is_run_and_its_reply_lost(far, redis, proxy):
    sha = far.script_load(SCRIPT)
    proxy.lose_reply(2)
    assert far.evalsha(sha, 1, "n") == 1
    with pytest.raises(redis_py.ConnectionError):
        far.evalsha(sha, 1, "n")
    assert redis.get("n") == b"2"
    assert proxy.lost == 1
    assert far.evalsha(sha, 1, "n") == 3


def test_cut_resets_open_connections_and_new_ones_work(far, proxy):
    with socket.create_connection((HOST, proxy.port), 60) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    assert far.ping()


def test_swallowed_call_arrives_late(far, redis, proxy):
    assert far.ping()
    proxy.hold()
    call = threading.Thread(target=far.incr, args=("n",))
    call.start()
    assert redis.get("n") is None
    proxy.release()
    call.join(60)
    assert redis.get("n") == b"1"


@pytest.mark.parametrize("nth", [1, 2])
def test_torn_piece_arrives_in_part_before_a_reset(far, redis, proxy, nth):
    """The first piece is a request, which isn't run; the second its reply, after it was."""
    assert far.ping()
    proxy.tear(nth)
    with pytest.raises((redis_py.ConnectionError, ConnectionResetError)):
        far.incr("n")
    assert redis.get("n") == (None if nth == 1 else b"1")
    assert proxy.torn == 1
    assert far.incr("n") == nth


def test_forsaken_connection_is_silent_and_a_new_one_works(proxy, redis):
    with socket.create_connection((HOST, proxy.port), 60) as old:
        old.sendall(b"PING\r\n")
        assert old.recv(100) == b"+PONG\r\n"
        proxy.freeze()
        old.sendall(b"INCR n\r\n")
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(100)
        old.settimeout(60)
        with socket.create_connection((HOST, proxy.port), 60) as new:
            new.sendall(b"GET n\r\n")
            assert new.recv(100) == b"$-1\r\n"
            proxy.reset_frozen()
            with pytest.raises(ConnectionResetError):
                old.recv(100)
            new.sendall(b"PING\r\n")
            assert new.recv(100) == b"+PONG\r\n"


@pytest.mark.parametrize(("way", "ran"), [(UP, None), (DOWN, b"1")])
def test_one_way_holds_requests_or_replies(proxy, redis, way, ran):
    with socket.create_connection((HOST, proxy.port), 60) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        proxy.hold([way])
        client.sendall(b"INCR n\r\n")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
        wait_until(lambda: redis.get("n") == ran, "no request arrived", 60)
        proxy.release()
        client.settimeout(60)
        assert client.recv(100) == b":1\r\n"
    assert redis.get("n") == b"1"


def test_bandwidth_changes_nothing_but_the_time(far, proxy):
    proxy.bytes_per_s = 1e6
    assert far.set("a", b"y" * 5_000)
    assert far.get("a") == b"y" * 5_000


def test_latency_changes_nothing_but_the_time(far, proxy):
    proxy.latency_s = 0.001
    assert far.set("a", b"y" * 5_000)
    assert far.get("a") == b"y" * 5_000
