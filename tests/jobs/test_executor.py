"""One message -> one outcome."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import ConfigError, Dead, JobAborted, JobTimeout, Retry, Snooze
from jobq.events import Event, decode
from jobq.jobs import retry
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.endings import UnknownJobs
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.retry import Decision
from jobq.queue.types import Ending, Message

Run = Callable[..., Ending]
CALL = b'{"job":"mail.send","args":["a@b"],"kwargs":{"copies":2},"enqueued_at":1}'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def event_of(ending: Ending) -> Event:
    """Return the event that the script makes from a child's record."""
    return decode(f"{ending.outcome}\x1f{ending.mid}\x1f1\x1f{ending.record}".encode())


def raising(registry: Registry, error: BaseException, **options: Any) -> Any:
    def fail() -> None:
        raise error

    return job(name="jobs.fail", registry=registry, **options)(fail)


def test_return_ends_as_done_with_its_figures(registry: Registry, run: Run):
    seen = []

    @job(name="mail.send", registry=registry)
    def send(to: str, copies: int = 1) -> None:
        seen.append((to, copies))

    ended = run(send, "a@b", copies=2)
    assert seen == [("a@b", 2)]
    assert (ended.mid, ended.token, ended.outcome, ended.result) == (
        "mid-1",
        "caller.1.0",
        "done",
        None,
    )
    written = event_of(ended)
    assert (written.job, written.attempt) == ("mail.send", 1)
    assert (written.worker, written.error, written.fingerprint) == ("here", "", "")
    assert written.run_us >= 0 and written.cpu_us >= 0 and written.rss_kib > 1000
    assert (written.bytes, written.trace_id, written.enqueued_at) == (len(CALL), "", 0)


def test_error_ends_as_retry_and_leaves_its_class_and_fingerprint(registry: Registry, run: Run):
    ended = run(raising(registry, ValueError("bad"), retry=retry.fixed(2.5)))
    assert (ended.outcome, ended.backoff) == ("retry", 2.5)
    assert event_of(ended).error == "ValueError"
    assert len(event_of(ended).fingerprint) == 16


def test_every_ending_carries_the_length_of_content_and_the_trace(registry: Registry, run: Run):
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    good = job(name="good", registry=registry)(lambda: None)
    bad = raising(registry, ValueError("bad"))
    absent = job(name="elsewhere", registry=Registry())(lambda: None)
    for each, outcome in ((good, "done"), (bad, "retry"), (absent, "unknown")):
        ended = run(each, headers=headers)
        content = encode(each.name, (), {}, 1, headers)
        assert ended.outcome == outcome
        assert (event_of(ended).bytes, event_of(ended).trace_id) == (len(content), TRACE)
    assert event_of(run(b"{broken")).bytes == 7


def test_error_ends_as_dead_when_attempts_are_used_up(registry: Registry, run: Run):
    def fail() -> None:
        raise ValueError("bad width")

    fails = job(name="jobs.fail", registry=registry, retries=2)(fail)
    assert [run(fails, attempt=n).outcome for n in (1, 2, 3)] == ["retry", "retry", "dead"]
    reason = run(fails, attempt=3).reason
    assert reason.startswith("ValueError: bad width (attempt 3 of 3)\n\nTraceback")
    assert "in fail" in reason and "jobq/jobs" not in reason


def test_crashes_do_not_use_up_retries(registry: Registry, run: Run):
    fails = raising(registry, ValueError(), retries=1)
    assert run(fails, attempt=4, ncrashes=3).outcome == "retry"
    assert run(fails, attempt=5, ncrashes=3).outcome == "dead"


@pytest.mark.parametrize(
    ("error", "outcome", "backoff_ms"),
    [
        (Retry(after=4), "retry", 4000),
        (Snooze(9), "snooze", 9000),
        (JobTimeout(), "retry", 10_000),
        (SystemExit(1), "retry", 10_000),
    ],
)
def test_ways_to_end_an_attempt_early(
    registry: Registry, run: Run, error: BaseException, outcome: str, backoff_ms: int
):
    ended = run(raising(registry, error, retry=retry.fixed(10)))
    assert (ended.outcome, round((ended.backoff or 0) * 1000)) == (outcome, backoff_ms or 0)


def test_dead_keeps_the_reason_that_the_job_gave(registry: Registry, run: Run):
    ended = run(raising(registry, Dead("no such customer")))
    assert (ended.outcome, ended.reason) == ("dead", "no such customer")


@pytest.mark.parametrize("error", [JobAborted(), KeyboardInterrupt()])
def test_what_stops_the_child_escapes(registry: Registry, run: Run, error: BaseException):
    with pytest.raises(type(error)):
        run(raising(registry, error))


def test_unreadable_content_is_dead_at_once(run: Run):
    ended = run(b"\x80rubbish")
    assert (ended.outcome, ended.token) == ("dead", "caller.1.0")
    assert "not a call of a job" in ended.reason
    assert event_of(ended).error == "jobq.errors.CodecError"


@pytest.mark.parametrize("content", [b'{"job":"not.here"}', b'{"v":9,"job":"not.here"}'])
def test_unknown_job_waits_for_a_deploy_and_then_is_dead(run: Run, content: bytes):
    ended = [run(content, unknowns=n) for n in range(40)]
    waits = [round(one.backoff * 1000) for one in ended if one.outcome == "unknown"]
    assert waits[:3] == [1000, 2000, 4000] and waits[-1] == 60_000
    assert 900_000 <= sum(waits) < 960_000
    last = ended[len(waits)]
    assert last.outcome == "dead"
    assert "--import?" in last.reason or "upgrade" in last.reason


def test_unknown_job_is_logged_once_and_not_once_per_message(
    registry: Registry, message: Any, caplog: Any
):
    executor = Executor(registry, worker="here")
    for _ in range(3):
        executor.resolve("low", message(b'{"job":"not.here"}'))
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_unknown_job_waits_by_the_rules_that_the_worker_was_given():
    rules = UnknownJobs(longest_wait_s=4, for_s=9)
    assert [rules.wait_s(n) for n in range(6)] == [1, 2, 4, 4, None, None]
    assert UnknownJobs(for_s=0).wait_s(0) is None


def test_name_of_an_unknown_job_cannot_split_the_record(run: Run):
    ended = run(b'{"job":"a\\u001fb\\nc\\u001b[31m"}')
    assert event_of(ended).job == "a\\x1fb c\\x1b[31m"


def test_result_is_kept_of_done_and_of_dead_not_of_retry(registry: Registry, run: Run):
    double = job(name="double", registry=registry, result_ttl=60)(lambda x: x * 2)
    ended = run(double, 4)
    assert ended.result.startswith(b'{"ok":8,"attempt":1,"at":') and ended.result_ttl == 60
    fails = raising(registry, ValueError("bad"), result_ttl="1m", retries=1)
    assert run(fails).result is None
    assert (run(fails, attempt=2).result or b"").startswith(
        b'{"error":"ValueError: bad (attempt 2 of 2)","type":"ValueError","attempt":2,"at":'
    )


def test_result_that_json_cannot_carry_ends_the_message_at_once(registry: Registry, run: Run):
    ended = run(job(name="f", registry=registry, result_ttl=60)(lambda: {1}))
    assert ended.outcome == "dead"
    assert "the result of f is a set" in ended.reason and "the job ran" in ended.reason
    assert ended.result is not None and b"the result of f is a set" in ended.result


def test_message_changes_what_its_job_declares(registry: Registry, run: Run):
    fails = raising(registry, ValueError())
    assert run(fails.options(retries=0)).outcome == "dead"
    assert run(fails).outcome == "retry"
    assert run(fails.options(retries=0, result_ttl=5)).result_ttl == 5
    seen: list[float] = []
    run(fails.options(timeout=3), executor={"soft_timeout": recording(seen)})
    assert seen == [3]


def recording(seen: list[float]) -> Any:
    @contextmanager
    def soft_timeout(seconds: float) -> Iterator[None]:
        seen.append(seconds)
        yield

    return soft_timeout


def test_soft_timeout_surrounds_only_jobs_that_have_one(registry: Registry, run: Run):
    seen: list[float] = []
    executor = {"soft_timeout": recording(seen)}
    run(job(name="a", registry=registry)(lambda: 1), executor=executor)
    run(job(name="b", registry=registry, timeout="2s")(lambda: 1), executor=executor)
    assert seen == [2.0]


def test_call_says_what_the_child_must_know(registry: Registry, message: Callable[..., Message]):
    async def fetch(url: str) -> None: ...

    fetches = job(name="f", registry=registry, timeout=5, hard_timeout=9, result_ttl=1)(fetch)
    call = Executor(registry).resolve("low", message(fetches, "u", headers={"h": "1"}))
    assert not isinstance(call, Ending)
    assert (
        call.job.is_async,
        call.job.settings.timeout,
        call.job.settings.hard_timeout,
        call.job.settings.stores_result,
    ) == (
        True,
        5,
        9,
        True,
    )
    assert (call.queue, call.args, call.kwargs, call.headers, call.enqueued_at) == (
        "low",
        ["u"],
        {},
        {"h": "1"},
        1,
    )


def test_failures_are_logged_with_the_job_and_without_arguments(
    registry: Registry, run: Run, caplog: pytest.LogCaptureFixture
):
    def charge(card: str) -> None:
        raise ValueError("declined \x1b[31m")

    charges = job(name="charge", registry=registry, retries=1)(charge)
    with caplog.at_level(logging.DEBUG):
        run(charges, "4111-1111")
        run(charges, "4111-1111", attempt=2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert {(r.job, r.mid, r.queue) for r in caplog.records} == {("charge", "mid-1", "low")}  # type: ignore[attr-defined]
    assert "4111" not in caplog.text and "\x1b" not in caplog.text


def test_wrong_arguments_end_by_the_rules_like_any_error(
    registry: Registry, run: Run, message: Any
):
    takes_one = job(name="one", registry=registry)(lambda x: x)
    ended = run(b'{"job":"one","args":[1,2]}')
    assert (takes_one.name, ended.outcome, event_of(ended).error) == ("one", "retry", "TypeError")


class Unreadable(ValueError):
    """An object whose attributes can't be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Bare(Snooze):
    def __init__(self) -> None: ...


class BareDead(Dead):
    def __init__(self) -> None: ...


def changed(error: Any, **attributes: Any) -> Any:
    vars(error).update(attributes)
    return error


@pytest.mark.parametrize(
    "error",
    [changed(Retry(), after="soon"), changed(Snooze(1), after=None), changed(Snooze(1), after="1h"), Bare(),
     BareDead(), changed(Dead(), reason=404), Unreadable()],
)  # fmt: skip
def test_error_that_says_nonsense_costs_no_message_its_ending(
    registry: Registry, run: Run, error: BaseException
):
    fails = raising(registry, error, retries=0)
    assert run(fails).outcome == "dead"
    assert run(fails).reason


def answering(answer: Any) -> Any:
    def policy(failures: int, error: BaseException) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return policy


@pytest.mark.parametrize(
    "answer",
    ["soon", float("nan"), 10**400, object(), Unreadable(), SystemExit(3), GeneratorExit(), JobTimeout(),
     MemoryError(), asyncio.CancelledError()],
)  # fmt: skip
def test_policy_that_fails_in_any_way_leaves_the_default_one(
    registry: Registry, run: Run, answer: Any, caplog: pytest.LogCaptureFixture
):
    fails = raising(registry, ValueError("x"), retry=answering(answer), retries=1)
    ended = run(fails)
    assert "the retry policy of jobs.fail failed" in caplog.text
    assert ended.outcome == "retry"
    assert 0 <= (ended.backoff or 0) <= 5
    assert run(fails, attempt=2).outcome == "dead"


@pytest.mark.parametrize(
    ("answer", "ms"), [("10m", 600_000), (1.5, 1_500), (timedelta(hours=1), 3_600_000)]
)
def test_policy_may_answer_in_every_form_of_a_duration(
    registry: Registry, run: Run, answer: Any, ms: int
):
    assert run(raising(registry, ValueError(), retry=answering(answer))).backoff == ms / 1000


@pytest.mark.parametrize(
    "decision", [Decision("later", 1), Decision("retry", float("nan")), Decision("retry", "soon"), None]  # type: ignore[arg-type]
)  # fmt: skip
def test_middleware_that_decides_nonsense_leaves_the_default_rules(
    registry: Registry, run: Run, decision: Any
):
    class Overrules:
        arun = None

        def run(self, context: Any, next: Any) -> Any:
            try:
                return next()
            except ValueError as error:
                context.overrule(error, decision)
                raise

    registry.middleware.add(Overrules())
    ended = run(raising(registry, ValueError()))
    assert (ended.outcome, 0 <= (ended.backoff or 0) <= 5) == ("retry", True)


def test_log_handler_that_fails_costs_no_message_its_ending(registry: Registry, run: Run):
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("disk full")

    handler = Broken()
    logging.getLogger("jobq").addHandler(handler)
    try:
        assert run(raising(registry, ValueError())).outcome == "retry"
    finally:
        logging.getLogger("jobq").removeHandler(handler)


SECONDS = st.sampled_from([None, 1e-9, 30, 60, 120, 3_153_600_000])
OPTIONS = st.dictionaries(
    st.sampled_from(["retries", "timeout", "hard_timeout", "result_ttl", "other"]),
    SECONDS | st.floats(1e-12, 1e10) | st.sampled_from([-1, "5m", [], 10**30]),
)
CALLS = st.fixed_dictionaries(
    {"job": st.just("jobs.limited"), "options": OPTIONS},
    optional={"args": st.just([1]), "v": st.integers(-1, 3), "enqueued_at": st.integers()},
)
STRANGE = st.fixed_dictionaries(
    {
        "job": st.sampled_from(["jobs.absent", "", 7]),
        "headers": st.dictionaries(st.text(), st.text()),
    }
)
CONTENTS = (CALLS | STRANGE).map(lambda call: json.dumps(call).encode()) | st.binary()


@settings(max_examples=400)
@given(CONTENTS, SECONDS, SECONDS, st.integers(0, 100))
def test_whatever_a_message_holds_ends_in_an_outcome_of_it(
    content: bytes, timeout: Any, hard_timeout: Any, unknowns: int
):
    registry = Registry()
    declared = {"timeout": timeout, "hard_timeout": hard_timeout}
    try:
        job(name="jobs.limited", registry=registry, **declared)(lambda: 1)
    except ConfigError:
        return  # refused where it is declared
    executor = Executor(registry)
    message = Message("mid-1", content, 1, 0, 7, "life", "token", 0, unknowns)
    call = executor.resolve("low", message)
    ended = executor.run(call) if isinstance(call, Call) else call
    assert (ended.mid, ended.token) == ("mid-1", "token")
    assert (ended.result is None) == (ended.result_ttl == 0)
    assert 0 <= (ended.backoff or 0) <= 3_153_600_000
    assert (ended.outcome == "dead") <= bool(ended.reason)


@pytest.mark.parametrize(
    ("of_the_job", "of_the_message", "timeout", "hard_timeout"),
    [
        ({"timeout": 120}, {"hard_timeout": 60}, None, 60),
        ({"hard_timeout": 60}, {"timeout": 120}, 120, None),
        ({"timeout": 120, "hard_timeout": 180}, {"hard_timeout": 60, "timeout": None}, None, 60),
        ({"timeout": 30, "hard_timeout": 90}, {"hard_timeout": 60}, 30, 60),
    ],
)
def test_option_of_a_message_holds_when_the_job_was_declared_anew(
    registry: Registry, of_the_job: Any, of_the_message: Any, timeout: Any, hard_timeout: Any
):
    job(name="jobs.f", registry=registry, **of_the_job)(lambda: 1)
    content = json.dumps({"job": "jobs.f", "options": of_the_message}).encode()
    call = Executor(registry).resolve("low", Message("m", content, 1, 0, 7, "life", "token", 0))
    assert isinstance(call, Call)
    assert (call.job.settings.timeout, call.job.settings.hard_timeout) == (timeout, hard_timeout)


def test_message_that_contradicts_itself_is_dead_with_the_reason(registry: Registry):
    job(name="jobs.f", registry=registry)(lambda: 1)
    content = b'{"job":"jobs.f","options":{"timeout":60,"hard_timeout":30}}'
    ended = Executor(registry).resolve("low", Message("m", content, 1, 0, 7, "life", "token", 0))
    assert isinstance(ended, Ending)
    assert ended.outcome == "dead"
    assert ended.reason.startswith("hard_timeout=30 of jobs.f isn't longer than timeout=60")
