"""T4: a server open to the network, and secrets of its URL; the embedded one is in tests/embedded."""

from __future__ import annotations

import pytest

from jobq.cli import main
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.queue.doctor import Facts, diagnose

CANARY = "canary-7Hq"


def exposure(url: str):
    return next(one for one in diagnose(Facts(url=url, pings_ms=[0.1])) if one.check == "exposure")


@pytest.mark.parametrize(
    "host", ["queue.example", "10.0.0.5", "[2001:db8::1]", "0.0.0.0", "localhost.evil"]
)
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
def test_far_server_without_tls_or_password_is_warned_of(scheme, host):
    finding = exposure(f"{scheme}://{host}:6379/0")
    assert finding.level == "warn"
    assert "TLS" in finding.value and "a password" in finding.value and finding.remedy
    assert exposure(f"{scheme}://user:x@{host}:6379").level == "warn"


@pytest.mark.parametrize("url", ["unix:///tmp/s", "redis://localhost", "redis://127.0.0.1:1", "redis://[::1]:6379",
                                 "rediss://user:x@queue.example"])  # fmt: skip
def test_near_or_guarded_server_is_well(url):
    assert exposure(url).level == "ok"


def test_certificate_of_a_server_is_checked_unless_the_url_says_otherwise():
    from jobq.client.address import connection_options

    _, options = connection_options("rediss://queue.example")
    assert options.get("ssl_cert_reqs", "required") == "required"
    assert options.get("ssl_check_hostname", True) is True


def test_password_of_a_url_is_in_no_output(capfd, caplog, monkeypatch):
    url = f"redis://user:{CANARY}@127.0.0.1:1/0"
    monkeypatch.setenv("JOBQ_PATIENCE", "10ms")
    for verb in (
        ["queues"],
        ["doctor"],
        ["status", "m"],
        ["functions", "load"],
        ["functions", "check"],
    ):
        assert main([*verb, "--url", url]) != 0
    client = connect(settings=ServerSettings(url=url, patience_s=0.01))
    with pytest.raises(JobqError) as raised:
        client.command("PING")
    out, err = capfd.readouterr()
    assert CANARY not in out + err + caplog.text + str(raised.value) + repr(client)
