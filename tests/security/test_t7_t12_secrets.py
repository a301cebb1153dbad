"""T7 and T12: what is secret stays out of the server's files, logs and events; nothing forges a log line."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.jobs.codec import encode
from jobq.jobs.executor import Executor
from jobq.jobs.failure import clean
from jobq.jobs.registry import job
from jobq.jobs.signing import seal_for
from jobq.observe.escape import escaped
from jobq.observe.log import JsonFormatter, TextFormatter
from jobq.queue.queue import Queue
from tests.conftest import answering, binary, start

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-7HqXw2"


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_encrypted_arguments_are_in_no_file_of_the_server(server, ring, registry, tmp_path, mode):
    process = start(binary(server.kind), tmp_path, "--port", "0", "--unixsocket", f"{tmp_path}/s",
                    "--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no")  # fmt: skip
    try:
        answering(process, tmp_path, unix_socket_path=f"{tmp_path}/s")
        settings = ServerSettings(url=f"unix://{tmp_path}/s", codec=ring(mode))
        client = connect(settings=settings)
        pay = job(name="pay", registry=registry, queue="low")(lambda card, to="": None)
        pay.options(client=client).enqueue(CANARY, to=CANARY)
        queue, runner = Queue("low", client), Executor(registry, seal=seal_for(settings.codec))
        queue.admin.events_level("all")
        [taken] = queue.dequeue().messages
        queue.finish([runner.run(runner.resolve("low", taken))])
        client.command("PING")
        client.close()
    finally:
        process.kill()
        process.wait()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"low" in kept
    assert (CANARY.encode() in kept) == (mode == "sign")


def test_arguments_are_in_no_log_line_event_or_reason_of_a_worker(client, redis, tmp_path):
    (tmp_path / "shop.py").write_text(
        "from jobq import job\n"
        "@job(name='ok', queue='low')\ndef ok(card, to=''):\n    return None\n"
        "@job(name='bad', queue='low', retries=0)\ndef bad(card, to=''):\n    raise ValueError('no money')\n"
    )
    queue = Queue("low", client)
    for name in ("ok", "bad", "gone"):
        queue.enqueue(encode(name, (CANARY,), {"to": CANARY}, headers={"token": CANARY}), mid=name)
    queue.enqueue(b'{"job":"ok","args":["%b"' % CANARY.encode(), mid="broken")
    queue.enqueue(b'{"job":"ok","args":"%b"}' % CANARY.encode(), mid="wrong")
    ran = subprocess.run(
        [sys.executable, "-m", "jobq", "worker", "--burst", "--processes", "1", "--import", "shop", "--queues", "low"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JOBQ_URL": client.url}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {dead.mid for dead in queue.admin.dead()} == {"bad", "broken", "wrong"}
    reasons = " ".join(dead.reason for dead in queue.admin.dead())
    events = str(redis.xrange("jobq:{low}:events"))
    assert "no money" in reasons and "bad" in events
    assert CANARY not in ran.stdout + ran.stderr + reasons + events


def lines_of(formatter: logging.Formatter, text: str) -> list[str]:
    """Return the output of one record."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.handle(logging.LogRecord("app", logging.INFO, "f", 1, "%s", (text,), None))
    return stream.getvalue().removesuffix("\n").split("\n")


@given(st.text())
def test_no_text_forges_a_log_line_or_commands_a_terminal(text):
    first, *rest = lines_of(TextFormatter(), text)
    assert all(line.isprintable() for line in (first, *rest))
    assert all(line.startswith("    ") for line in rest)
    [line] = lines_of(JsonFormatter(), text)
    assert line.isascii() and line.isprintable()
    assert escaped(text).isprintable()
    assert not {"\x1b", "\r", "\x9b", "\x1f", "\x1e", "\0"} & set(clean(text))


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\r\nforged", "a\x1fb\x1fc", "\x9b31m", "a\u202eb"])
def test_name_of_a_job_that_nobody_has_is_harmless_in_logs_and_events(attempt, name, caplog):
    logging.getLogger("jobq").setLevel(logging.INFO)
    ended = attempt(encode(name))
    assert ended.outcome == "unknown"
    assert "\n" not in ended.record and "\x1b" not in ended.record and "\x9b" not in ended.record
    assert ended.record.count("\x1f") == attempt(encode("plain")).record.count("\x1f")
    assert not {"\x1b", "\r", "\x9b", "\x1f"} & set(caplog.text)
