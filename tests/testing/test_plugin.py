"""The pytest plugin, as a user's suite sees it: fixtures, marker, ini file, options, xdist, and the guard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as redis_py

from jobq.errors import ConfigError
from jobq.testing.servers import flushable

pytestmark = pytest.mark.one_server
ROOT = Path(__file__).resolve().parents[2]

JOBS = """
import jobq

@jobq.job(queue="mails")
def send(to, subject="hi"):
    print("sent to", to)

@jobq.job
async def later(what):
    return what
"""
SUITE = """
import asyncio, os, subprocess, sys
import jobq as package
import pytest
from jobs import later, send

def test_fake_is_the_default(jobq):
    send.enqueue("a@b.example")
    jobq.assert_enqueued(send, kwargs={"to": "a@b.example"}, queue="mails")
    assert jobq.drain().done == 1

def test_server_is_empty_again(jobq, jobq_clock):
    assert jobq.all_enqueued() == []
    assert jobq_clock is jobq.clock

def test_delayed(jobq, jobq_clock):
    send.options(delay=3600).enqueue("a@b.example")
    jobq_clock.move("1h")
    assert jobq.drain().done == 1

@pytest.mark.jobq(mode="inline")
def test_inline(jobq, capsys):
    send.enqueue("inline@b.example")
    assert capsys.readouterr().out == "sent to inline@b.example\\n"

@pytest.mark.jobq(mode="worker")
def test_worker(jobq):
    send.enqueue("a@b.example")

@pytest.mark.anyio
async def test_async(jobq):
    await later.aenqueue("x")
    assert (await jobq.adrain()).done == 1

def test_client_of_the_environment_is_the_kit(jobq, jobq_server):
    assert package.connect().url == jobq_server == os.environ["JOBQ_URL"]
    send.enqueue("a@b.example")
    program = "import jobs; jobs.send.enqueue('from elsewhere')"
    subprocess.run([sys.executable, "-c", program], check=True)
    jobq.assert_enqueued(send, count=2)
"""
GUARD = """
import os, subprocess, sys
import jobq as package
import pytest
from jobs import send
from jobq.testing import allow_server

LIVE = os.environ["JOBQ_URL"]

def test_without_the_fixture_nothing_arrives():
    with pytest.raises(package.errors.ConfigError, match="only to test servers"):
        send.enqueue("a@b.example")

def test_named_client_reaches_nothing(jobq):
    client = package.connect(LIVE)
    with pytest.raises(package.errors.ConfigError, match="only to test servers"):
        package.Queue("mails", client).enqueue(b"x")
    with pytest.raises(package.errors.ConfigError, match="only to test servers"):
        send.options(client=client).enqueue("a@b.example")

@pytest.mark.anyio
async def test_coroutine_reaches_nothing():
    with pytest.raises(package.errors.ConfigError, match="only to test servers"):
        await send.aenqueue("a@b.example")

def test_other_process_reaches_nothing():
    program = "import jobs; jobs.send.enqueue('from elsewhere')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "only to test servers" in done.stderr

def test_embedded_server_is_not_a_server_of_the_tests(monkeypatch, tmp_path):
    monkeypatch.delenv("JOBQ_URL")
    monkeypatch.setenv("JOBQ_EMBEDDED", "1")
    monkeypatch.setenv("JOBQ_DATA", str(tmp_path / "data"))
    with pytest.raises(package.errors.ConfigError, match="not to the embedded server"):
        package.Queue("mails", package.connect()).enqueue(b"x")
    assert not (tmp_path / "data").exists()

def test_fixture_works(jobq):
    send.enqueue("a@b.example")
    assert jobq.drain().done == 1
"""

NAMED = """
import os
import jobq as package
from jobq.testing import allow_server

def test_server_of_the_ini_file():
    send.options(client=package.connect(os.environ["LIVE"])).enqueue("a")

def test_server_that_a_test_allows():
    allow_server("redis://127.0.0.1:1/3")
    client = package.connect("redis://127.0.0.1:1/4")
    client.patience_s = 0
    with pytest.raises(package.errors.UnavailableError):
        client.command("PING")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """suite(text, *options, ini=…, env=…): run pytest on it in a process; exit code and output."""
    (tmp_path / "jobs.py").write_text(JOBS)

    def run(
        text: str, *options: str, ini: str = "", env: dict[str, str] | None = None
    ) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "PYTEST"))
        }
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:jobq", "-p", "jobq.testing.plugin", *options],
            cwd=tmp_path, capture_output=True, text=True, env={**kept, "PYTHONPATH": path, **(env or {})},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_plugin_is_declared_for_pytest():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"jobq": "jobq.testing.plugin"}


def test_processes_of_xdist_have_a_server_each(suite):
    code, output = suite(SUITE, "--strict-markers", "-n", "2")
    assert code == 0, output
    assert "7 passed" in output


def test_ini_file_sets_mode_and_strictness(suite):
    text = """
    from jobs import send

    def test_inline(jobq):
        send.enqueue("a")
        jobq.refute_enqueued(send)

    def test_leftover(jobq):
        send.options(delay=60).enqueue("left")
    """
    code, output = suite(text, ini="jobq_mode = inline\njobq_strict = true")
    assert code == 1, output
    assert "2 passed, 1 error" in output
    assert "1 call didn't run before the test ended" in output


def test_live_server_stays_byte_for_byte_as_it_was(suite, server, redis):
    redis.set("mine", "x")
    redis.rpush("jobq:{mails}:ready", "a")
    redis.config_resetstat()
    code, output = suite(GUARD, env={"JOBQ_URL": server.url})
    assert code == 0, output
    assert "6 passed" in output
    assert redis.info("stats")["total_connections_received"] <= 1
    assert sorted(redis.keys()) == [b"jobq:{mails}:ready", b"mine"]
    assert (redis.get("mine"), redis.lrange("jobq:{mails}:ready", 0, -1)) == (b"x", [b"a"])


def test_server_of_the_command_line_is_emptied_only_where_that_is_certain(suite, server, redis):
    redis.set("mine", "x")
    for url, may_flush, why in (
        (server.url + "?db=1", False, "add --jobq-may-flush"),
        (server.url, True, r"names none; append \?db=1"),
        ("redis://a:1", True, "names none; append /1"),
        ("redis://a:1/0", True, "its own database, from 1 to 15"),
        ("redis+cluster://a:1,b:2", True, "a single server"),
    ):
        with pytest.raises(ConfigError, match=why):
            flushable(url, may_flush)
    assert flushable("redis://u:p@a:1/3", True, process=2) == "redis://u:p@a:1/5"
    code, output = suite(
        SUITE + NAMED, "--jobq-url", server.url + "?db=1", "--jobq-may-flush",
        ini=f"jobq_servers = {server.url}", env={"LIVE": server.url},
    )  # fmt: skip
    assert code == 0, output
    assert "9 passed" in output
    assert redis.get("mine") == b"x"
    assert redis.exists("jobq:{mails}:messages")
    with redis_py.Redis(unix_socket_path=server.socket, db=1) as second:
        second.flushall()


@pytest.mark.real_process
def test_plugin_imports_nothing_of_jobq_before_a_test_asks():
    program = "import sys, jobq.testing.plugin; print('jobq.jobs.job' in sys.modules, 'redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr
