"""URLs of servers."""

from __future__ import annotations

import pytest

from jobq.client.address import parse
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
        ("http://h", "redis[+]sentinel://"),
        ("localhost:6379", "must begin with one of"),
        ("redis+sentinel://:secret@h", "has no service"),
        ("redis://a,b", "redis[+]cluster"),
        ("redis://h:port", "port of 1 to 65535"),
        ("redis://h:99999", "port of 1 to 65535"),
    ],
)
def test_url_that_cannot_be_used_is_refused_with_its_remedy(url, says):
    with pytest.raises(ConfigError, match=says) as refused:
        parse(url)
    assert "secret" not in str(refused.value)
