"""The pytest plugin: fixtures `jobq`, `jobq_clock` and `jobq_server`, and the marker `jobq`.

The plugin also prevents tests from connecting to servers that aren't test servers.

pytest loads the plugin wherever jobq is installed, so the plugin doesn't import jobq before a test uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

#: See jobq.config; this module doesn't import it.
TEST_SERVERS = "JOBQ_TEST_SERVERS"
MODES = ("fake", "inline", "worker")
_BEFORE = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --jobq-url, --jobq-may-flush and the settings of the ini file."""
    group = parser.getgroup("jobq")
    group.addoption(
        "--jobq-url", metavar="URL", help="Run jobq's tests on this server, not on a private one."
    )
    group.addoption(
        "--jobq-may-flush", action="store_true", help="Let tests empty the database of --jobq-url."
    )
    parser.addini("jobq_mode", f"mode of the fixture jobq: {', '.join(MODES)}", default="fake")
    parser.addini("jobq_strict", "fail tests that leave calls behind", type="bool", default=False)
    parser.addini(
        "jobq_servers",
        "URLs of servers that tests may connect to; * for any",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Allow this process and its children to connect only to test servers."""
    config.addinivalue_line(
        "markers",
        "jobq(mode=, strict=): the mode of the fixture jobq, and whether leftover calls fail the test",
    )
    config.stash[_BEFORE] = os.environ.get(TEST_SERVERS)
    allowed = [*config.getini("jobq_servers"), config.getoption("--jobq-url")]
    os.environ[TEST_SERVERS] = " ".join(filter(None, allowed))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo the changes of pytest_configure."""
    before = config.stash.get(_BEFORE, None)
    if before is None:
        os.environ.pop(TEST_SERVERS, None)
    else:
        os.environ[TEST_SERVERS] = before


@pytest.fixture(scope="session")
def jobq_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of this process's test server: a private Valkey, or a database of the server in --jobq-url."""
    from jobq.testing.servers import flushable, private_server

    url = request.config.getoption("--jobq-url")
    if url:
        number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        yield flushable(url, bool(request.config.getoption("--jobq-may-flush")), int(number))
        return
    with private_server() as started:
        yield started


@pytest.fixture
def jobq(request: pytest.FixtureRequest, jobq_server: str) -> Iterator[Any]:
    """Yield a jobq.testing.Kit for this test, on an empty server."""
    from jobq.testing.harness import Kit

    marker = request.node.get_closest_marker("jobq")
    asked = dict(marker.kwargs) if marker else {}
    mode = asked.pop("mode", request.config.getini("jobq_mode"))
    strict = asked.pop("strict", request.config.getini("jobq_strict"))
    if asked or (marker and marker.args):
        raise pytest.UsageError("the marker jobq accepts only mode= and strict=")
    with Kit(jobq_server, mode=mode, strict=strict) as kit:
        yield kit


@pytest.fixture
def jobq_clock(jobq: Any) -> Any:
    """Return the kit's clock, a jobq.testing.clock.KitClock."""
    return jobq.clock
