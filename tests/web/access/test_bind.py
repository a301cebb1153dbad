"""Section 11.1: closed by default. Combinations that would leave the dashboard open are refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.errors import ConfigError
from jobq.metrics.serving import parse_endpoint
from jobq.web.access.identity import READ
from jobq.web.access.settings import AccessSettings

FILE = Path("users.json")
HEADER = {"auth_header": "X-Remote-User", "trusted_proxies": ("10.0.0.0/8",)}


def made(bind, **given):
    return AccessSettings(bind=parse_endpoint(bind) if bind else None, **given)


@pytest.mark.parametrize(
    "bind", ["127.0.0.1:8700", "127.9.9.9:1", "[::1]:8700", "localhost:0", "unix:/run/jobq.sock"]
)
def test_where_only_this_machine_reaches_it_a_link_is_the_login(bind):
    settings = made(bind)
    assert settings.by_link and settings.has_login
    assert made(bind, no_auth=True).by_link is False
    assert made(bind, users=FILE).by_link is False
    assert made(bind, auth_role=READ, **HEADER).by_link is False


@pytest.mark.parametrize(
    "bind",
    [
        "0.0.0.0:8700",
        "[::]:8700",
        "192.0.2.1:8700",
        "dash.example.com:80",
        "127.0.0.1.example.com:1",
    ],
)
def test_elsewhere_it_does_not_start_without_credentials(bind):
    with pytest.raises(ConfigError, match="use --users FILE"):
        made(bind, hosts=("dash.example.com",), tls=True)
    with pytest.raises(ConfigError, match="open to every host"):
        made(bind, no_auth=True, hosts=("dash.example.com",), tls=True)


def test_logins_need_encryption_off_this_machine():
    with pytest.raises(ConfigError, match="unencrypted"):
        made("192.0.2.1:8700", users=FILE)
    assert made("192.0.2.1:8700", users=FILE, tls=True).has_login
    assert made("192.0.2.1:8700", users=FILE, trusted_proxies=("10.1.2.3",)).has_login


def test_an_address_of_all_interfaces_needs_a_name():
    with pytest.raises(ConfigError, match="use --host NAME"):
        made("0.0.0.0:8700", users=FILE, tls=True)
    assert made("0.0.0.0:8700", users=FILE, tls=True, hosts=("dash.example.com",))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"auth_header": "X-Remote-User", "auth_role": READ}, "needs --trusted-proxy"),
        (HEADER, "names without roles"),
        ({**HEADER, "auth_header": "X Remote\r\n", "auth_role": READ}, "not a header name"),
        ({"trusted_proxies": ("everything",)}, "not a proxy's address"),
        ({"trusted_proxies": ("10.0.0.1/8",)}, "not a proxy's address"),
        ({"hosts": ("a b",)}, "not a host name"),
        ({"hosts": ("dash.example.com:80",)}, "not a host name"),
        ({"hosts": ("",)}, "not a host name"),
        ({"hosts": ("*.example.com",)}, "not a host name"),
        ({"no_auth": True, "users": FILE}, "--no-auth can't be combined with --users; leave one out"),
        ({"no_auth": True, "identify": lambda _: None}, "--no-auth can't be combined with identify"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_in_words(given, says):
    with pytest.raises(ConfigError, match=says):
        made("127.0.0.1:8700", **given)


def test_a_program_that_mounts_it_says_who_may():
    with pytest.raises(ConfigError, match="needs identify="):
        made("")
    settings = made("", identify=lambda _: None)
    assert not settings.has_login and not settings.by_link
    with pytest.raises(ConfigError, match="needs identify="):
        made("", users=FILE)
