"""What Sentry gets of a job's run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import sentry_sdk
from msgspec import structs

from jobq.errors import Dead, JobAborted, JobTimeout, Retry, Snooze
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.crashes import ChildDeath, CrashReport
from jobq.jobs.executor import Executor
from jobq.jobs.middleware import everywhere
from jobq.jobs.registry import Registry, job
from jobq.jobs.ticks import HEADER, Tick
from jobq.observe import sentry as observed
from jobq.observe.sentry import CrashEvents, SentryMiddleware
from jobq.observe.sentry_crons import config_of
from jobq.queue.types import Ending, Message

TRACE = "0123456789abcdef0123456789abcdef"
HEADERS = {"sentry-trace": f"{TRACE}-0123456789abcdef-1", "baggage": f"sentry-trace_id={TRACE}"}

Run = Callable[..., Ending | None]


@pytest.fixture
def run() -> Run:
    """run(function, attempt=…, headers=…, middleware=…, **options): one attempt under the middleware."""

    def execute(
        function: Any,
        *args: Any,
        attempt: int = 1,
        headers: Any = None,
        middleware: Any = None,
        **options: Any,
    ) -> Ending:
        registry = Registry()
        registry.middleware.add(middleware or SentryMiddleware())
        made = job(name="mail.send", registry=registry, retries=1, **options)(function)
        content = encode(made.name, args, {}, round(time.time() * 1000) - 2000, headers or {})
        executor = Executor(registry, worker="here")
        call = executor.resolve("low", Message("mid-1", content, attempt, 0, 1, "gen", "tok", 0))
        assert isinstance(call, Call)
        return asyncio.run(executor.arun(call)) if made.is_async else executor.run(call)

    return execute


def fail(*args: Any) -> None:
    raise ValueError("no such customer")


async def afail(*args: Any) -> None:
    await asyncio.sleep(0)
    raise ValueError("no such customer")


@pytest.mark.parametrize("function", [fail, afail], ids=["sync", "async"])
def test_final_failure_arrives_with_its_job(sentry: Any, run: Run, function: Any):
    kept = sentry()
    run(function, "secret-argument", attempt=2)
    (event,) = kept.items("event")
    assert event["tags"] == {
        "jobq.job": "mail.send", "jobq.mid": "mid-1", "jobq.attempt": 2, "jobq.queue": "low",
    }  # fmt: skip
    described = event["contexts"]["jobq"]
    assert (described["job"], described["mid"], described["attempt"], described["queue"]) == (
        "mail.send",
        "mid-1",
        2,
        "low",
    )
    assert (described["max_attempts"], described["worker"], described["generation"]) == (
        2,
        "here",
        "gen",
    )
    assert event["transaction"] == "mail.send"
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no such customer")
    assert error["mechanism"] == {"type": "jobq", "handled": False}


def test_only_the_final_failure_is_reported(sentry: Any, run: Run):
    kept = sentry()
    run(fail, attempt=1)
    assert kept.items("event") == []
    run(fail, attempt=2)
    assert len(kept.items("event")) == 1


def test_each_failure_is_reported_when_asked_for(sentry: Any, run: Run):
    kept = sentry()
    run(fail, attempt=1, middleware=SentryMiddleware(capture_retries=True))
    assert len(kept.items("event")) == 1


@pytest.mark.parametrize("error", [Dead("on purpose"), Snooze(3), Retry(3), JobAborted()])
def test_what_a_job_does_on_purpose_is_no_error(sentry: Any, run: Run, error: BaseException):
    kept = sentry()

    def end() -> None:
        raise error

    try:
        run(end)
    except JobAborted:
        pass
    assert kept.items("event") == []
    (transaction,) = kept.items("transaction")
    assert transaction["contexts"]["trace"]["status"] == (
        "internal_error" if type(error) is Retry else "aborted"
    )


def test_retry_beyond_the_last_attempt_is_reported(sentry: Any, run: Run):
    def again() -> None:
        raise Retry(3, "still busy")

    kept = sentry()
    run(again, attempt=2)
    assert kept.items("event")[0]["exception"]["values"][0]["value"] == "still busy"


def test_timeouts_of_one_job_are_one_issue(sentry: Any, run: Run):
    def late() -> None:
        raise JobTimeout("ran past its timeout of 3 s")

    kept = sentry()
    run(late, attempt=2)
    assert kept.items("event")[0]["fingerprint"] == ["jobq", "JobTimeout", "mail.send"]


def test_trace_of_the_producer_goes_on(sentry: Any, run: Run):
    kept = sentry()
    run(fail, attempt=2, headers=HEADERS)
    assert kept.items("event")[0]["contexts"]["trace"]["trace_id"] == TRACE
    (transaction,) = kept.items("transaction")
    trace = transaction["contexts"]["trace"]
    assert (trace["trace_id"], trace["parent_span_id"]) == (TRACE, "0123456789abcdef")
    assert (trace["op"], trace["origin"], trace["status"]) == (
        "queue.task.jobq",
        "auto.queue.jobq",
        "internal_error",
    )
    assert (transaction["transaction"], transaction["transaction_info"]["source"]) == (
        "mail.send",
        "task",
    )


def test_job_starts_its_own_trace_when_told_to(sentry: Any, run: Run):
    kept = sentry()
    run(fail, attempt=2, headers=HEADERS, middleware=SentryMiddleware(propagate_traces=False))
    assert kept.items("event")[0]["contexts"]["trace"]["trace_id"] != TRACE


def test_run_is_a_process_span_of_the_queues_page(sentry: Any, run: Run):
    kept = sentry()
    run(lambda: None, attempt=3)
    (transaction,) = kept.items("transaction")
    assert transaction["contexts"]["trace"]["status"] == "ok"
    (span,) = transaction["spans"]
    assert (span["op"], span["description"], span["status"]) == ("queue.process", "mail.send", "ok")
    figures = span["data"]
    assert figures["messaging.message.id"] == "mid-1"
    assert figures["messaging.destination.name"] == "low"
    assert figures["messaging.system"] == "redis"
    assert figures["messaging.message.retry.count"] == 2
    assert figures["messaging.message.body.size"] > 10
    # The clock is read twice, each time rounded.
    assert 1999 <= figures["messaging.message.receive.latency"] < 60_000


def test_run_is_a_process_span_when_the_sdk_streams_spans(sentry: Any, run: Run):
    kept = sentry(trace_lifecycle="stream")
    run(fail, attempt=2, headers=HEADERS)
    sentry_sdk.flush()
    assert kept.items("event")[0]["contexts"]["trace"]["trace_id"] == TRACE
    spans = [span for batch in kept.items("span") for span in batch["items"]]
    by_op = {span["attributes"]["sentry.op"]["value"]: span for span in spans}
    assert set(by_op) == {"queue.task.jobq", "queue.process"}
    processed = by_op["queue.process"]
    assert (processed["trace_id"], processed["status"], processed["name"]) == (
        TRACE,
        "error",
        "mail.send",
    )
    assert processed["attributes"]["messaging.message.id"]["value"] == "mid-1"
    assert by_op["queue.task.jobq"]["parent_span_id"] == "0123456789abcdef"


def test_runs_do_not_see_each_others_scope(sentry: Any, run: Run):
    kept = sentry()

    def first() -> None:
        sentry_sdk.set_tag("tenant", "a")
        sentry_sdk.add_breadcrumb(message="from the first")

    run(first)
    run(fail, attempt=2)
    event = kept.items("event")[0]
    assert "tenant" not in event["tags"]
    assert "from the first" not in str(event)


def sent(kept: Any) -> str:
    """All that was sent, as text."""
    return str([envelope.serialize() for envelope in kept.envelopes])


def log_and_fail(*args: Any) -> None:
    """One event by the job itself and one by jobq."""
    sentry_sdk.capture_message("looked at")
    try:
        fail(*args)
    except ValueError as error:
        sentry_sdk.capture_exception(error)
        raise


def test_events_of_an_attempt_hold_no_local_variables_when_nobody_asked_jobq_for_them(
    sentry: Any, run: Run
):
    kept, argument, header = sentry(), "argument".upper(), "header".upper()
    run(log_and_fail, argument, attempt=2, headers={"token": header})
    assert len(kept.items("event")) == 3
    assert '"frames"' in sent(kept)
    assert '"vars"' not in sent(kept)
    assert argument not in sent(kept)
    assert header not in sent(kept)


def test_events_hold_local_variables_when_the_middleware_and_the_sdk_are_asked_for_them(
    sentry: Any, run: Run
):
    kept = sentry(include_local_variables=True)
    run(fail, "an-argument", attempt=2, middleware=SentryMiddleware(local_variables=True))
    assert "an-argument" in sent(kept)


def test_nothing_happens_while_the_sdk_is_not_initialised(run: Run):
    assert not observed.is_active()
    ended = run(lambda: 7, result_ttl=1)
    assert ended is not None and b'"ok":7' in (ended.result or b"")


def test_decision_that_breaks_does_not_reach_the_job(sentry: Any, run: Run):
    sentry()
    ended = run(fail, retry=lambda failures, error: 1 / 0)
    assert ended is not None and ended.outcome == "retry"


def test_scheduled_call_is_one_check_in_however_many_attempts(sentry: Any, run: Run):
    kept = sentry()
    tick = Tick(
        "Nightly digest".replace(" ", "."), 1_700_000_000_000, 0, "Europe/Berlin", "0 7 * * *"
    )
    watched = {
        "middleware": SentryMiddleware(monitor_crons=True),
        "headers": {HEADER: tick.header()},
    }
    run(fail, timeout=90, **watched)
    run(fail, attempt=2, timeout=90, **watched)
    run(lambda: None, timeout=90, **watched)

    found = kept.items("check_in")
    assert [one["status"] for one in found] == [
        "in_progress",
        "in_progress",
        "error",
        "in_progress",
        "ok",
    ]
    assert {(one["monitor_slug"], one["check_in_id"]) for one in found} == {
        ("nightly-digest", found[0]["check_in_id"])
    }
    assert found[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 7 * * *"}, "timezone": "Europe/Berlin",
        "checkin_margin": 5, "max_runtime": 2,
    }  # fmt: skip


def test_check_in_of_a_message_whose_processes_died_is_closed_by_the_monitor(
    sentry: Any, run: Run, monkeypatch: pytest.MonkeyPatch
):
    kept = sentry()
    headers = {HEADER: Tick("digest", 1_700_000_000_000, 0, "UTC", "0 7 * * *").header()}
    watching = SentryMiddleware(monitor_crons=True)
    run(lambda: None, middleware=watching, headers=headers)
    death = ChildDeath(7, "w", "signal", "was killed by SIGKILL", 1, 1.0, 10)
    crash = CrashReport("mail.send", "low", "mid-1", 3, True, 0, headers, death)

    CrashEvents().crashed(crash)
    monkeypatch.setattr(everywhere, "layers", (watching,))
    CrashEvents().crashed(structs.replace(crash, dead=False))
    CrashEvents().crashed(structs.replace(crash, headers={}))
    CrashEvents().crashed(crash)

    found = kept.items("check_in")
    assert [one["status"] for one in found] == ["in_progress", "ok", "error"]
    assert len({(one["monitor_slug"], one["check_in_id"]) for one in found}) == 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("every 600s", {"type": "interval", "value": 10, "unit": "minute"}),
        ("every 10s", None),
        ("every 1.5s", None),
    ],
)
def test_intervals_of_seconds_have_no_monitor(rule: str, expected: Any):
    found = config_of(Tick("s", 0, 0, "UTC", rule), None)
    assert (found and found["schedule"]) == expected


def test_calls_without_a_schedule_have_no_check_in(sentry: Any, run: Run):
    kept = sentry()
    run(lambda: None, middleware=SentryMiddleware(monitor_crons=True))
    assert kept.items("check_in") == []
