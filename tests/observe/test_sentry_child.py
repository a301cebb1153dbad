"""What a worker's child does at its start and end, in processes of its own and with a server that listens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observe.intake import intake

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A Sentry of our own: its DSN, and the events that arrived."""
    with intake() as listening:
        yield listening


CHILD = """
import os
from jobq import job
from jobq.queue.types import Message
from jobq.jobs.codec import encode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import default_registry
from jobq.observe import sentry

@job(name="mail.send", retries=0)
def send():
    raise ValueError("no such customer")

def child():
    sentry.start()
    executor = Executor(default_registry)
    executor.run(executor.resolve("low", Message("mid-1", encode("mail.send"), 1, 0, 1, "g", "t", 0)))
    sentry.finish(60)
    os._exit(0)
"""


def run_program(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SENTRY_")}
    return subprocess.run(
        [sys.executable, "-c", CHILD + program], cwd=ROOT, env={**env, **environ}, capture_output=True, text=True,
        check=True, timeout=300,
    )  # fmt: skip


def test_child_reports_when_sentry_dsn_is_set_and_flushes_before_it_exits(received: Any):
    dsn, events = received
    run_program("child()", SENTRY_DSN=dsn, SENTRY_ENVIRONMENT="staging")
    (event,) = events
    assert event["exception"]["values"][-1]["value"] == "no such customer"
    assert (event["tags"]["jobq.mid"], event["environment"]) == ("mid-1", "staging")


def test_child_uses_the_sdk_that_the_program_initialised_before_the_fork(received: Any):
    dsn, events = received
    # The parent's sender lives, with an event on its way, when the child is forked.
    run_program(
        f"import sentry_sdk; sentry_sdk.init({dsn!r}); sentry_sdk.capture_message('of the parent')\n"
        "pid = os.fork()\n"
        "if pid == 0: child()\n"
        "os.waitpid(pid, 0); sentry_sdk.flush(60)"
    )
    messages = sorted(
        event.get("message") or event["exception"]["values"][-1]["value"] for event in events
    )
    assert messages == ["no such customer", "of the parent"]


def test_child_without_sentry_dsn_loads_no_sdk():
    ended = run_program(
        "assert sentry.start() is False; import sys; print('sentry_sdk' in sys.modules)"
    )
    assert ended.stdout.strip() == "False"


def test_missing_sdk_is_a_warning_not_an_error():
    ended = run_program(
        "import sys; sys.modules['sentry_sdk'] = None\nimport logging; logging.basicConfig()\n"
        "assert sentry.start() is False; sentry.finish()",
        SENTRY_DSN="http://key@127.0.0.1:1/1",
    )
    assert "pip install 'sentry-sdk>=" in ended.stderr
