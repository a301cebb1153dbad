"""Errors of a real worker arrive at Sentry, in the trace of whoever enqueued."""

from __future__ import annotations

import json

from tests.lifecycle.conftest import until
from tests.observe.intake import intake

TRACE = "0123456789abcdef0123456789abcdef"


def test_dead_message_arrives_with_its_job_in_the_producers_trace(queue, start, ledger):
    headers = {"sentry-trace": f"{TRACE}-0123456789abcdef-1", "baggage": f"sentry-trace_id={TRACE}"}
    content = {
        "job": "overlong", "args": [str(ledger.path), "a"], "headers": headers,
    }  # fmt: skip
    with intake() as (dsn, events):
        worker = start("--processes", "1", env={"SENTRY_DSN": dsn})
        queue.enqueue(json.dumps(content).encode(), mid="m")
        until(queue.admin.dead)
        until(lambda: events)
        assert worker.stop() == 0
        [event] = events
    assert event["tags"]["jobq.job"] == "overlong"
    assert event["tags"]["jobq.mid"] == "m"
    assert event["tags"]["jobq.queue"] == "low"
    assert event["tags"]["jobq.attempt"] in (1, "1")
    assert event["contexts"]["trace"]["trace_id"] == TRACE
    assert event["exception"]["values"][-1]["type"] == "JobTimeout"


def test_worker_without_dsn_sends_nothing_and_does_not_load_the_sdk(start, send, ledger):
    start("--processes", "1")
    send("loaded", "a", "sentry_sdk")
    [line] = until(lambda: ledger.lines("end"))
    assert line["loaded"] is False
