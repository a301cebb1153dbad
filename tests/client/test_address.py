"""URLs of servers."""

from __future__ import annotations

import socket

import pytest

from jobq.client.address import SILENT_PEER_S, connection_options, parse, sentinel_login
from jobq.client.connection import connect
from jobq.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kind", "plain", "hosts", "service"),
    [
        ("redis://h", "single", "redis://h:6379", [("h", 6379)], ""),
        ("redis://:p@h:1/3", "single", "redis://:p@h:1/3", [("h", 1)], ""),
        ("redis://[::1]:7", "single", "redis://[::1]:7", [("::1", 7)], ""),
        ("rediss://u:p@h", "single", "rediss://u:p@h:6379", [("h", 6379)], ""),
        ("unix:///tmp/s?db=2", "single", "unix:///tmp/s?db=2", [], ""),
        ("unix://:p@/tmp/s", "single", "unix://:p@/tmp/s", [], ""),
        (
            "redis+sentinel://:p@a:1,b/main/2?socket_timeout=3", "sentinel",
            "redis://:p@a:1/2?socket_timeout=3", [("a", 1), ("b", 26379)], "main",
        ),
        ("redis+cluster://a:1,b:2", "cluster", "redis://a:1", [("a", 1), ("b", 2)], ""),
        ("rediss+cluster://a", "cluster", "rediss://a:6379", [("a", 6379)], ""),
        ("redis://a?cluster=true&x=1", "cluster", "redis://a:6379?x=1", [("a", 6379)], ""),
    ],
)  # fmt: skip
def test_url_is_read(url, kind, plain, hosts, service):
    assert tuple(parse(url)) == (kind, plain, hosts, service)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "redis://:secret@h?health_check_interval=30",
            "health_check_interval.*notices a dead connection",
        ),
        ("redis+cluster://h?max_connections=5", "max_connections.*concurrent call"),
        ("redis+sentinel://h/main?retry_on_timeout=yes", "retry_on_timeout.*JOBQ_PATIENCE"),
        ("redis://h?sokcet_timeout=3", "sokcet_timeout, which has no effect"),
        ("unix:///tmp/s?socket_keepalive=yes", "socket_keepalive, which has no effect"),
    ],
)
def test_option_without_an_effect_is_refused_with_its_reason(url, says):
    with pytest.raises(ConfigError, match=says) as refused:
        connect(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("option", "on"), [("", 1), ("?socket_keepalive=no", 0)])
def test_tcp_connection_is_probed_unless_the_url_says_otherwise(option, on):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
        make, options = connection_options(url + option)
        sock = make(**options)._connect()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == on
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            silent_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert silent_ms == on * SILENT_PEER_S * 1000
        sock.close()


def test_login_of_sentinels_is_apart_from_that_of_the_master():
    url = "redis+sentinel://u:p@a/main?sentinel_username=w&sentinel_password=s%40&db=2"
    assert sentinel_login(url) == {"username": "w", "password": "s@"}
    assert parse(url).plain == "redis://u:p@a:26379?db=2"
    assert "s%40" not in repr(connect(url))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "redis[+]sentinel://"),
        ("localhost", "write redis://localhost"),
        ("redis:/localhost", "has no // after 'redis'; write redis://host"),
        ("localhost:6379", "'localhost:6379' has no scheme; write redis://localhost:6379"),
        ("10.0.0.7:6379/1", "write redis://10.0.0.7:6379/1"),
        (":secret@cache.example:6379", "write redis://[*]{3}@cache.example:6379"),
        ("/run/redis.sock", "write unix:///run/redis.sock"),
        ("//h:1", "must begin with one of"),
        ("redis//h:1/0", "url 'redis//h:1/0' must begin with one of"),
        ("redis+sentinel://:secret@h", "doesn't name the service"),
        ("redis://a,b", "redis[+]cluster:// for a Cluster"),
        ("rediss://a,b", "rediss[+]sentinel:// for Sentinels"),
        ("redis://[::1:6379", "IPv6 address in brackets"),
        ("redis://h:port", "port between 1 and 65535"),
        ("redis://h:99999", "port between 1 and 65535"),
    ],
)
def test_url_that_cannot_be_used_is_refused_with_its_remedy(url, says):
    with pytest.raises(ConfigError, match=says) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
