"""The traceback of a failed attempt is in the log and in the message's status before its retry."""

from __future__ import annotations

import json

import pytest

import jobq

from .conftest import until

PACKAGE = jobq.__file__.removesuffix("__init__.py")
FRAME = "in charge"


@pytest.fixture
def failed(start, send, queue):
    """failed(*options): a worker that has retried `unpaid`: the status of its message, and the log."""

    def run(*options, job="unpaid"):
        send(job, "a")
        worker = start("--processes", "1", *options)
        until(lambda: queue.status("a").word == "queued-with-backoff")
        worker.stop()
        return queue.status("a"), worker.log

    return run


def test_worker_logs_and_stores_the_traceback_when_an_attempt_fails(failed):
    status, log = failed()
    [line, *more] = log[log.index("attempt 1 failed") :].splitlines()
    assert "ValueError: no route" in line and "retrying in 600.0 s" in line
    assert more[0] == "    Traceback (most recent call last):"
    trace = "\n".join(text[4:] for text in more if text.startswith("    "))
    assert status.traceback == trace
    assert FRAME in trace and "in unpaid" in trace and trace.endswith("@bank")
    assert PACKAGE not in log and "hunter2" not in log
    assert status.failed_attempt == 1


@pytest.mark.loop
def test_async_worker_logs_the_traceback_as_a_field_when_the_log_is_json(failed):
    status, log = failed("--log-format", "json", job="aunpaid")
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    [line] = [line for line in lines if line.get("outcome") == "retry"]
    assert line["traceback"] == status.traceback and FRAME in line["traceback"]
    assert "Traceback" not in line["message"] and "hunter2" not in str(line)
    assert PACKAGE not in line["traceback"]


@pytest.mark.one_server
def test_worker_neither_logs_nor_stores_tracebacks_when_told_so(failed):
    status, log = failed("--no-tracebacks")
    assert "attempt 1 failed: ValueError" in log
    assert FRAME not in log and (status.failed_attempt, status.traceback) == (0, "")
