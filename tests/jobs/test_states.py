"""The public states of messages, on every way to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobq.client.clock import wall
from jobq.client.connection import Client
from jobq.config import CodecSettings
from jobq.errors import (
    CodecError,
    ConfigError,
    Dead,
    JobFailedError,
    ResultNotStoredError,
    ScriptError,
)
from jobq.jobs.context import Call, current
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.progress import Progress, progress_text, read_progress
from jobq.jobs.receipt_calls import state_in
from jobq.jobs.registry import Registry, job
from jobq.jobs.signing import seal_of
from jobq.jobs.states import ENDED, State, is_over, state_word
from jobq.queue.admin import tick_values
from jobq.queue.bin import Bin
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from tests.conftest import connected

Work = Callable[[], None]


@pytest.fixture
def declared(registry: Registry, client: Client) -> Callable[..., Any]:
    """declared(**options): a job of one argument: its effects."""

    def declare(name: str = "act", **options: Any) -> Any:
        @job(queue="low", registry=registry, client=client, name=name, **options)
        def act(what: str) -> str:
            if what == "fail":
                raise ValueError("no such file")
            if what == "die":
                raise Dead("not today")
            return what

        return act

    return declare


@pytest.fixture
def act(declared: Callable[..., Any]) -> Any:
    return declared(remember="10m", retries=1)


@pytest.fixture
def work(registry: Registry, queue: Queue) -> Work:
    """work(): run ready messages, like a worker's child."""

    def once() -> None:
        executor = Executor(registry)
        calls = [executor.resolve("low", message) for message in queue.dequeue(10).messages]
        queue.finish([executor.run(call) if isinstance(call, Call) else call for call in calls])

    return once


def test_state_tells_what_a_living_message_waits_for(act, work, queue):
    later = act.options(delay=60).enqueue("a").state()
    assert (later.word, later.attempt, later.ended) == ("scheduled", 0, False)
    assert later.due_at is not None
    receipt = act.enqueue("a")
    assert receipt.state().word == "queued"
    [message] = queue.dequeue(1).messages
    queue.progress(message.mid, message.token, "0.5 half")
    state = receipt.state()
    assert (state.word, state.attempt, state.progress) == ("running", 1, Progress(0.5, "half"))
    queue.release([(message.mid, message.token)])
    assert receipt.state().word == "queued"


def test_state_is_retrying_and_names_the_error_between_two_attempts(act, work):
    receipt = act.enqueue("fail")
    work()
    state = receipt.state()
    assert (state.word, state.attempt, state.error) == ("retrying", 1, "ValueError: no such file")
    assert state.due_at is not None
    assert state.traceback.startswith("Traceback") and state.traceback.endswith(state.error)


@pytest.mark.parametrize("options", [{}, {"remember": "10m"}, {"result_ttl": "1m"}])
@pytest.mark.parametrize("what", ["fail", "die"])
def test_state_has_the_traceback_when_the_message_is_dead(declared, work, queue, options, what):
    receipt = declared(retries=0, **options).enqueue(what)
    work()
    state = receipt.state()
    assert state.word == "failed" and "\n" not in state.error
    assert ("in act" in state.traceback) == (what == "fail")
    queue.admin.purge(queue.admin.dead()[0].dead_id)
    assert receipt.state().traceback == ""


@pytest.mark.parametrize(
    ("options", "what", "word", "error"),
    [
        ({"remember": "10m"}, "a", "done", ""),
        ({"result_ttl": "10m"}, "a", "done", ""),
        ({"remember": "10m", "result_ttl": "1m"}, "a", "done", ""),
        ({"remember": "10m"}, "die", "failed", "not today"),
        ({"remember": "10m", "retries": 0}, "fail", "failed", "ValueError: no such file"),
        ({"result_ttl": "10m", "retries": 0}, "fail", "failed", "ValueError: no such file"),
    ],
)
def test_end_is_remembered_when_the_job_says_for_how_long(
    declared, work, queue, redis, options, what, word, error
):
    receipt = declared(**options).enqueue(what)
    work()
    queue.admin.collect()
    for dead in queue.admin.dead():
        queue.admin.purge(dead.dead_id)
    state = receipt.state()
    assert (state.word, state.attempt, state.ended) == (word, 1, True)
    assert error in state.error and state.ended_at is not None
    assert 590_000 < redis.pttl(queue.result_key(receipt.mid)) <= 600_000
    assert asyncio.run(receipt.astate()) == state


def test_end_is_not_remembered_when_the_job_does_not_say_so(declared, work, queue, redis):
    receipts = [declared(retries=0).enqueue(what) for what in ("a", "die")]
    work()
    queue.admin.collect()
    state = receipts[0].state()
    assert state.word == "unknown" and "@job(remember='10m')" in state.error
    assert receipts[1].state()[:2] == ("failed", 1)
    queue.admin.purge(queue.admin.dead()[0].dead_id)
    assert receipts[1].state().word == "unknown"
    receipts[1].cancel()
    assert not list(redis.scan_iter("*result*"))


@pytest.mark.parametrize("is_running", [False, True])
def test_cancelled_message_is_remembered_even_if_its_attempt_ends_later(
    act, queue, is_running, work
):
    receipt = act.enqueue("a")
    messages = queue.dequeue(1).messages if is_running else []
    assert receipt.cancel()
    executor = Executor(act_registry(act))
    for message in messages:
        [word] = queue.finish([executor.run(executor.resolve("low", message))]).replies
        assert word == "stale"
    state = receipt.state()
    assert (state.word, state.attempt) == ("cancelled", len(messages))
    assert state.ended_at is not None


def act_registry(act: Any) -> Registry:
    registry = Registry()
    registry.add(act)
    return registry


def test_cancelled_message_is_forgotten_when_nothing_says_for_how_long(declared, queue, redis):
    receipt = declared().enqueue("a")
    assert queue.cancel(receipt.mid) == ["cancelled"]
    assert receipt.state().word == "unknown"
    receipt = declared().enqueue("a")
    assert queue.cancel(receipt.mid, "other", remember="1m") == ["cancelled", "nil"]
    assert receipt.state().word == "cancelled"
    assert redis.exists(queue.result_key("other")) == 0


def by_mid(queue: Queue, mids: list[str]) -> None:
    assert queue.cancel(*mids, "other") == ["cancelled"] * len(mids) + ["nil"]


def into_a_bin(queue: Queue, mids: list[str]) -> None:
    words = queue.admin.bin("op").take_out(*((mid, "*") for mid in mids), ("other", "*"))
    assert words == ["taken"] * len(mids) + ["nil"]


def for_good(queue: Queue, mids: list[str]) -> None:
    words = Bin("low", queue.client, "op", None).take_out(*((mid, "*") for mid in mids))
    assert words == ["taken"] * len(mids)


@pytest.mark.parametrize("cancel", [by_mid, into_a_bin, for_good])
@pytest.mark.parametrize("seal", ["", "sign", "encrypt"])
def test_cancel_of_many_is_remembered_as_each_says_when_the_caller_has_no_jobs_and_no_keys(
    declared, client, server, queue, redis, monkeypatch, cancel, seal
):
    if seal:
        codec = CodecSettings(keys=(("2026-11", b"k" * 32),), mode=seal)
        monkeypatch.setattr(client, "settings", replace(client.settings, codec=codec))
    remembered: dict[str, Any] = {
        "remember": {"remember": "10m"},
        "result": {"result_ttl": "1m"},
        "longer": {"remember": "1s", "result_ttl": "2m"},
    }
    jobs = {name: declared(name, **options) for name, options in remembered.items()}
    receipts = [job.enqueue("a") for job in jobs.values()]
    receipts.append(jobs["remember"].options(remember="1h", expires_in=900).enqueue("a"))
    [many] = jobs["result"].enqueue_many([("a",)])
    none = declared("none").enqueue("a"), jobs["remember"].options(remember=None).enqueue("a")
    raw = queue.enqueue(b'{"args":[{"remember_ms":5000}],"job":"raw"}').mid
    times_ms = [600_000, 60_000, 120_000, 3_600_000, 60_000]
    kept = [*receipts, many]
    with connected(server) as other:
        cancel(Queue("low", other), [one.mid for one in (*kept, *none)] + [raw])
    assert [one.state().word for one in kept] == ["cancelled"] * len(kept)
    assert [one.state().word for one in none] == ["unknown"] * len(none)
    left_ms = [redis.pttl(queue.result_key(one.mid)) for one in kept]
    assert [round(one, -4) for one in left_ms] == times_ms
    assert len(list(redis.scan_iter("*result:*"))) == len(kept)
    assert kept[1].cancel() is False
    with pytest.raises(ResultNotStoredError, match="is cancelled"):
        kept[1].result(timeout=1)


@pytest.mark.parametrize(("script", "rest"), [("cancel", ["m"]), ("take_out", ["m", "*"])])
def test_call_changes_nothing_when_a_message_to_remember_has_no_key(act, queue, script, rest):
    receipt = act.options(mid="m").enqueue("a")
    caller, scripts = queue.callers.take(), queue.scripts
    values: dict[str, Any] = {"now": "", "remember_ms": ""}
    if script == "take_out":
        scripts = queue.admin.bin("op")._scripts
        values = {"now": "", "op": "op", "life_ms": 1000, "place": "waiting"}
    assert scripts[script].call(caller, values, rest) == [b"remembers"]
    with pytest.raises(ScriptError, match="one per message"):
        scripts[script].call(caller, values, rest, extra_keys=["jobq:{low}:a", "jobq:{low}:b"])
    assert receipt.state().word == "queued"


@pytest.mark.parametrize("is_running", [False, True])
def test_tick_remembers_the_run_that_it_cancels(act, queue, is_running):
    former, later = act.prepared(queue, ("a",), {})[1], b'{"job":"act","args":["b"]}'
    now = queue.client.clock_ms()
    queue.admin.schedule("add", "s", "{}", now=now)
    assert (
        queue.admin.tick(tick_values("s", now + 1, now, "s@1", former, now=now + 1)).outcome
        == "enqueued"
    )
    if is_running:
        queue.dequeue(1, now=now + 1)
    ticked = queue.admin.tick(
        tick_values("s", now + 2, now + 1, "s@2", later, overlap="cancel", now=now + 2)
    )
    assert ticked == ("replaced", "s@1" if is_running else "s@2")
    [end] = queue.client.command("LRANGE", queue.result_key("s@1"), 0, -1)
    assert end == b'{"end":"cancelled","attempt":%d,"at":%d}' % (is_running, now + 2)
    # The new run has the mid of one whose end must first be noticed.
    word = "scheduled" if is_running else "cancelled"
    assert act.receipt("s@1").state().word in (word, "queued")


@pytest.mark.parametrize("head", [b"1" * 1_000_000, b"-5", b"0", b"9" * 13, b"1e3", b'"5"', b"nan"])
@pytest.mark.parametrize(
    "content",
    [b'{"remember_ms":%b,"job":"x"}', b"jobq-e1 k %b\nxxxx", b"jobq-e1 %b", b"jobq-e1 k k %b\n",
     b'jobq-s1 k ff\n{"remember_ms":%b}', b'{"job":"x","remember_ms":%b}'],
)  # fmt: skip
def test_cancel_forgets_a_message_when_hostile_bytes_say_for_how_long(queue, redis, content, head):
    mid = queue.enqueue(content % head).mid
    assert queue.cancel(mid) == ["cancelled"]
    assert not redis.exists(queue.result_key(mid))


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_states_results_and_progress_are_sealed_when_calls_are(
    declared, client, server, queue, redis, registry, monkeypatch, mode
):
    codec = CodecSettings(keys=(("2026-11", b"k" * 32),), mode=mode)
    monkeypatch.setattr(client, "settings", replace(client.settings, codec=codec))
    executor = Executor(registry, seal=seal_of(client))
    act = declared(remember="10m", result_ttl="5m", retries=0)
    receipts = [act.enqueue(what) for what in ("done", "die", "gone", "running")]
    done, failed, gone, running = receipts
    plain = declared("plain", remember="10m").enqueue("a")
    messages = {one.mid: one for one in queue.dequeue(10).messages}
    gone.cancel()
    for receipt in (done, failed, gone, plain):
        call = executor.resolve("low", messages[receipt.mid])
        queue.finish([executor.run(call)])
    report = (
        seal_of(client)
        .of("progress")
        .close_text("low", running.mid, progress_text(0.5, "half", {"rows": 2}))
    )
    queue.progress(running.mid, messages[running.mid].token, report)

    assert running.state()[:3] == ("running", 1, Progress(0.5, "half", {"rows": 2}))
    words = [one.state().word for one in (*receipts, plain)]
    assert words == ["done", "failed", "cancelled", "running", "done"]
    assert asyncio.run(done.astate()) == done.state()
    assert (done.result(timeout=1), failed.state().error) == ("done", "not today")
    with pytest.raises(JobFailedError, match="not today"):
        failed.result(timeout=1)
    with pytest.raises(ResultNotStoredError, match="is cancelled"):
        gone.result(timeout=1)
    stored = [redis.lindex(queue.result_key(one.mid), 0) for one in (done, failed, plain)]
    assert all(one.startswith(b"jobq-") for one in stored)
    assert mode == "sign" or not any(b"today" in one or b"end" in one for one in stored)

    with connected(server) as keyless:
        there = Queue("low", keyless)
        seen = [state_in(there, one.mid, there.status(one.mid)) for one in (done, gone, running)]
    assert [one.word for one in seen] == ["unknown", "cancelled", "running"]
    assert "set JOBQ_CODEC_KEYS" in seen[0].error
    # Another program stores the end of another message, or an end without a seal.
    redis.lset(queue.result_key(done.mid), 0, stored[2])
    redis.lset(queue.result_key(plain.mid), 0, b'{"ok":"forged"}')
    for receipt in (done, plain):
        with pytest.raises(CodecError):
            receipt.state()
        known = state_in(queue, receipt.mid, queue.status(receipt.mid))
        assert known.word == "unknown" and known.error


def test_purged_message_is_failed_when_a_worker_stored_its_end(act, work, queue):
    receipts = [act.enqueue("die"), act.enqueue("a")]
    work()
    now = queue.client.clock_ms()
    again = act.enqueue("b").mid
    for number in range(1, 4):
        queue.dequeue(1, lease=1, now=now + number * 10_000)
        queue.admin.collect(now=now + number * 10_000 + 5_000)
    receipts.append(act.receipt(again))
    assert [one.state().word for one in receipts] == ["failed", "done", "failed"]
    queue.admin.purge(*(dead.dead_id for dead in queue.admin.dead()))
    assert [one.state().word for one in receipts] == ["failed", "done", "unknown"]


def test_cleared_messages_are_unknown_and_hide_no_earlier_end(act, work, queue):
    done = act.options(mid="m").enqueue("a")
    work()
    queue.admin.collect()
    act.options(mid="m").enqueue("b")
    other = act.enqueue("b")
    queue.admin.clear()
    assert (done.state().word, other.state().word) == ("done", "unknown")


def test_expired_message_is_remembered(declared, work, queue, monkeypatch):
    monkeypatch.setattr(wall, "ahead_ms", -10_000)
    receipt = declared(remember="10m").options(expires_in=1).enqueue("a")
    monkeypatch.setattr(wall, "ahead_ms", 0)
    work()
    queue.admin.collect()
    state = receipt.state()
    assert state.word == "expired" and state.error.startswith("expired at")


def test_message_that_died_with_its_host_is_failed(act, queue):
    receipt = act.enqueue("a")
    now = queue.client.clock_ms()
    for number in range(1, 4):
        assert len(queue.dequeue(1, lease=1, now=now + number * 10_000).messages) == 1
        queue.admin.collect(now=now + number * 10_000 + 5_000)
    state = receipt.state()
    assert (state.word, state.attempt) == ("failed", 3)


def test_state_of_newer_content_does_not_show_the_run_before_it(act, queue):
    act.options(mid="m").enqueue("a")
    [message] = queue.dequeue(1).messages
    queue.progress("m", message.token, "0.5 half")
    act.receipt("m").cancel()
    again = act.options(mid="m", on_conflict="requeue").enqueue("b")
    assert queue.status("m").word == "done-with-requeue"
    assert again.state() == State("queued")


def test_living_message_hides_the_end_of_an_earlier_one(declared, work, queue):
    act = declared(remember="10m", result_ttl="10m", retries=0)
    receipt = act.options(mid="m").enqueue("fail")
    work()
    assert receipt.state().word == "failed"
    assert receipt.revive()
    assert receipt.state().word == "queued"
    assert receipt.cancel()
    assert receipt.state().word == "cancelled"
    queue.admin.collect()
    with pytest.raises(ResultNotStoredError, match="m is cancelled"):
        receipt.result(timeout=1)
    again = act.options(mid="m").enqueue("b")
    assert again.state().word == "queued"
    work()
    assert again.state().word == "done"
    assert again.result(timeout=1) == "b"


def test_state_is_queued_when_a_message_is_revived_while_it_is_read(
    declared, work, queue, monkeypatch
):
    receipt = declared().enqueue("die")
    work()
    dead_call = type(queue.admin).dead_call

    def revive_first(admin: Any, mid: str) -> Any:
        queue.admin.revive(*(one.dead_id for one in queue.admin.dead()))
        return dead_call(admin, mid)

    monkeypatch.setattr(type(queue.admin), "dead_call", revive_first)
    assert receipt.state().word == "queued"


def test_state_is_unknown_when_a_dead_message_cannot_be_found(declared, work, queue, monkeypatch):
    receipt = declared().enqueue("die")
    work()
    dead_call = type(queue.admin).dead_call
    monkeypatch.setattr(
        type(queue.admin), "dead_call", lambda admin, mid: dead_call(admin, "other")
    )
    assert receipt.state().word == "unknown"


def test_later_death_hides_the_remembered_end_of_an_earlier_message(declared, work, queue):
    receipt = declared(remember="10m").options(mid="m").enqueue("a")
    work()
    queue.admin.collect()
    declared(name="later", retries=0).options(mid="m").enqueue("die")
    work()
    assert receipt.state().word == "failed"


def test_wait_for_a_result_goes_past_the_failure_of_an_earlier_life(declared, work, monkeypatch):
    monkeypatch.setattr("jobq.jobs.receipt_calls.POLL_S", 0.001)
    act = declared(result_ttl="10m", retries=0)
    receipt = act.options(mid="m").enqueue("fail")
    work()
    with pytest.raises(JobFailedError):
        receipt.result(timeout=1)
    receipt.revive()

    async def main() -> None:
        wait = asyncio.create_task(receipt.aresult(timeout=60))
        await asyncio.sleep(0)
        work()
        with pytest.raises(JobFailedError):
            await wait

    asyncio.run(main())


@pytest.fixture
def reporting(registry: Registry, client: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job that reports progress, and says between two reports what a receipt shows."""
    monkeypatch.setattr("jobq.jobs.context.PROGRESS_EVERY_S", 0)

    @job(queue="low", registry=registry, client=client, remember="10m")
    def report(mid: str) -> None:
        shown = []
        for done in range(1, 4):
            current().progress(done, 4, note=f"page {done}", data={"page": done})
            shown.append(report.receipt(mid).progress)  # type: ignore[attr-defined]
        assert shown == [Progress(n / 4, f"page {n}", {"page": n}) for n in range(1, 4)]

    return report


def test_progress_is_data_for_programs_and_text_for_people(reporting, registry, queue):
    receipt = reporting.options(mid="m").enqueue("m")
    executor = Executor(
        registry, hooks=RunHooks(report_progress=lambda _, *args: queue.progress(*args))
    )
    [message] = queue.dequeue(1).messages
    ending = executor.run(executor.resolve("low", message))
    assert receipt.status().progress == "0.75 page 3"
    assert receipt.state().progress == Progress(0.75, "page 3", {"page": 3})
    queue.finish([ending])
    assert (receipt.state().word, receipt.progress) == ("done", None)


def test_progress_is_refused_when_it_cannot_be_stored(reporting):
    with pytest.raises(CodecError, match="at most 2,000 are allowed"):
        progress_text(0.5, "", {"rows": "x" * 3_000})
    with pytest.raises(CodecError):
        progress_text(0.5, "", {"rows": object()})
    assert read_progress(progress_text(2, "a\x1fb" + "ü" * 1_000, None)) == Progress(
        1, "a b" + "ü" * 498
    )
    assert read_progress("") is None
    assert read_progress("of another program") == Progress(0.0, "of another program")
    assert read_progress("0.5 a\x1f{broken") == Progress(0.0, "0.5 a")


def test_follow_yields_each_change_until_the_end(act, work, queue, monkeypatch):
    receipt = act.enqueue("a")
    seen: list[Any] = []
    turns = iter([lambda: queue.dequeue(1).messages, lambda: None, receipt.cancel])
    monkeypatch.setattr("time.sleep", lambda _: next(turns)())
    for state in receipt.follow():
        seen.append(state.word)
    assert seen == ["queued", "running", "cancelled"]


def test_follow_on_a_loop_yields_each_change_until_the_end(act, work, monkeypatch):
    monkeypatch.setattr("jobq.jobs.receipt_calls.POLL_S", 0.001)
    receipt = act.enqueue("a")

    async def main() -> list[str]:
        seen = []
        async for state in receipt.afollow():
            seen.append(state.word)
            work()
        return seen

    assert asyncio.run(main()) == ["queued", "done"]


@pytest.mark.parametrize(
    ("stored", "attempts", "word"),
    [("queued", 0, "queued"), ("queued", 1, "retrying"), ("queued-with-backoff", 0, "scheduled"),
     ("queued-with-backoff", 1, "retrying"), ("locked", 1, "running"), ("locked-with-requeue", 1, "running"),
     ("done-with-requeue", 1, "queued"), ("done-with-backoff", 1, "done"), ("done-awaiting-gc", 1, "done"),
     ("dead", 1, "failed"), ("nil", 0, "unknown"), ("of a later version", 1, "unknown")],
)  # fmt: skip
def test_state_word_is_public_for_each_word_that_queues_store(stored, attempts, word):
    assert state_word(Status(stored, attempts)) == word
    assert is_over(Status(stored, attempts)) == (word in ENDED)


@pytest.mark.parametrize("mid", ["", "x" * 129, "a\nb", "\x00"])
def test_receipt_is_unknown_when_no_message_can_have_its_mid(declared, mid):
    receipt = declared(result_ttl="1m").receipt(mid)
    assert receipt.state().word == asyncio.run(receipt.astate()).word == "unknown"
    assert (receipt.cancel(), receipt.revive(), receipt.status().word) == (False, False, "nil")
    with pytest.raises(ResultNotStoredError, match="ended without a stored result"):
        receipt.result(timeout=1)


@pytest.mark.parametrize("mid", [None, 7])
def test_receipt_is_refused_when_its_mid_is_not_a_text(declared, mid):
    with pytest.raises(ConfigError, match=f"mid {mid} can't be used; use a str of 1-128"):
        declared().receipt(mid)
