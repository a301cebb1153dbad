"""Section 11.2: the dashboard answers under its own names alone (DNS rebinding), and reads X-Forwarded of proxies."""

from __future__ import annotations

import pytest

from tests.web.access.gated import gated


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8700", "localhost:9", "LOCALHOST", "[::1]:8700", "[::1]", "127.8.7.6", "dash.example.com",
     "DASH.example.com:443"],
)  # fmt: skip
def test_its_own_names_are_answered(host):
    client = gated(hosts=("dash.example.com",))
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", "localhost.evil.example", "dash.example.com.evil",
     "evil@127.0.0.1", "127.0.0.1@evil", "127.0.0.1:8700:1", "0x7f.1", "2130706433", "", "[::1", "::1", "[::2]", "a b",
     "127.0.0.1/", "localhost.", "xn--1", "0.0.0.0"],
)  # fmt: skip
def test_other_names_get_421(host):
    client = gated(hosts=("dash.example.com",))
    for method in ("GET", "POST"):
        reply = client.request(method, "/", headers={"host": host, "sec-fetch-site": "same-origin"})
        assert reply.status_code == 421
        assert "--host" in reply.text


def test_one_host_is_given_once():
    client = gated()
    reply = client.get("/", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert reply.status_code == 421


def test_the_bound_name_is_its_own_and_a_program_checks_its_own_names():
    bound = gated(bind="192.0.2.1:80", users="f", tls=True)
    assert bound.get("/", headers={"host": "192.0.2.1"}).status_code == 200
    assert bound.get("/", headers={"host": "192.0.2.2"}).status_code == 421
    mounted = gated(bind="", identify=lambda _: None)
    assert mounted.get("/", headers={"host": "any.example"}).status_code == 200
    named = gated(bind="", identify=lambda _: None, hosts=("a.example",))
    assert named.get("/", headers={"host": "b.example"}).status_code == 421


@pytest.mark.parametrize("prefix", ["", "/ops/jobq"])
def test_probes_come_by_address(prefix):
    client = gated(prefix=prefix)
    for path, status in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 421),
        ("/x/healthz", 421),
    ]:
        reply = client.get(prefix + path, headers={"host": "10.2.3.4:8700"})
        assert reply.status_code == status, path


def test_prometheus_comes_by_address_with_a_token_alone():
    token = {"host": "10.2.3.4:8700", "authorization": "Bearer t"}
    named = gated(users="f")
    assert named.get("/metrics", headers=token).status_code == 200
    assert named.get("/metrics", headers={"host": "10.2.3.4:8700"}).status_code == 421
    for method, path in [("POST", "/metrics"), ("GET", "/api/v1/queues"), ("GET", "/")]:
        assert named.request(method, path, headers=token).status_code == 421
    # Nobody can check a token without a users file.
    assert gated().get("/metrics", headers=token).status_code == 421


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "evil, 192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.9, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.1, evil", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "192.0.2.1:53412", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.9:1, 192.0.2.1:53412, 10.0.0.2:443", "192.0.2.1"),
        ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]:53412", "2001:db8::1"),
        ("10.0.0.1", "[::ffff:192.0.2.1]:53412", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.1:port", "10.0.0.1"),
        ("::ffff:10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),
        ("", "198.51.100.1", "198.51.100.1"),
    ],
)  # fmt: skip
def test_only_trusted_proxies_say_where_a_browser_is(peer, forwarded, address):
    client = gated(trusted_proxies=("10.0.0.0/8", "unix"), peer=peer)
    headers = {"x-forwarded-for": forwarded, "x-forwarded-proto": "https"}
    seen = client.get("/", headers=headers).json()
    assert seen["address"] == address
    assert seen["scheme"] == ("http" if peer.startswith("192") else "https")


def test_without_trusted_proxies_forwarded_headers_say_nothing():
    headers = {
        "x-forwarded-for": "192.0.2.1",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "evil.example",
    }
    assert gated().get("/", headers=headers).json() == {
        "scheme": "http", "address": "127.0.0.1", "bytes": 0
    }  # fmt: skip
    assert gated(peer="").get("/", headers=headers).json()["address"] == ""


def test_a_scheme_that_is_none_is_ignored():
    client = gated(trusted_proxies=("127.0.0.1",))
    for text, scheme in [
        ("ftp", "http"),
        ("http, HTTPS", "https"),
        ("https, http", "http"),
        ("", "http"),
    ]:
        assert client.get("/", headers={"x-forwarded-proto": text}).json()["scheme"] == scheme
