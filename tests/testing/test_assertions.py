"""Assertions about what is enqueued and what is dead: what matches, and what an error shows."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from unittest.mock import ANY

import pytest
from freezegun import freeze_time

from jobq.errors import ConfigError, Dead
from jobq.jobs.registry import job
from jobq.queue.queue import Queue

#: freezegun's own dates aren't dates for everyone.
DAY = date(2031, 1, 2)


@pytest.fixture
def send(registry):
    @job(name="mail.send", queue="mails", registry=registry)
    def send(to, subject="hello", *others, **headers):
        raise Dead(f"{to} is refused")

    return send


@freeze_time("2031-02-03 04:05:06")
def test_arguments_match_by_the_names_of_parameters(jobq, send):
    send.options(delay=3600, headers={"team": "a", "x": "y"}).enqueue(
        "a@b.example", "hi", 3, tags=["x"], when=str(DAY), deep={"a": {"b": 1, "c": 2}}
    )
    for expected in (
        {},
        {"args": ("a@b.example",)},
        {"kwargs": {"to": "a@b.example", "subject": "hi"}},
        {"args": ("a@b.example", ANY, 3), "queue": "mails", "delay": "1h", "mid": ANY},
        {"kwargs": {"tags": ("x",), "when": DAY, "deep": {"a": {"c": 2}}}},
        {"kwargs": {"to": lambda to: to.endswith("example")}, "headers": {"team": "a"}},
        {"at": datetime.now(UTC) + timedelta(hours=1)},
    ):
        [call] = jobq.assert_enqueued(send, count=1, **expected)
    jobq.assert_enqueued("mail.send", args=("a@b.example",))
    jobq.assert_enqueued(queue="mails")
    assert (call.job, call.args[:2], call.attempts) == ("mail.send", ["a@b.example", "hi"], 0)
    for expected in (
        {"args": ("other",)}, {"kwargs": {"subject": "hello"}}, {"queue": "low"}, {"delay": 3000}, {"at": 0},
        {"headers": {"team": "b"}}, {"args": ("a@b.example", "hi", 4)}, {"kwargs": {"tags": ["x", "y"]}},
    ):  # fmt: skip
        jobq.refute_enqueued(send, **expected)


def test_default_of_a_parameter_counts(jobq, send):
    send.enqueue("a@b.example")
    jobq.assert_enqueued(send, kwargs={"subject": "hello"})


def test_error_lists_what_is_enqueued_nearest_first(jobq, send, registry):
    other = job(name="other", registry=registry)(lambda: None)
    with pytest.raises(AssertionError, match=r"no enqueued call matches .*\nnothing is enqueued"):
        jobq.assert_enqueued(send, kwargs={"to": "a@b.example"})
    other.enqueue()
    send.enqueue("x@b.example", "hi")
    send.options(mid="m-1").enqueue("x@b.example")
    with pytest.raises(AssertionError) as raised:
        jobq.assert_enqueued(send, kwargs={"to": "a@b.example", "subject": "hi"}, queue="mails")
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(
        "no enqueued call matches mail.send(to='a@b.example', subject='hi'), queue='mails'"
    )
    assert lines[2].startswith("  mail.send('x@b.example', 'hi') in mails, mid ")
    assert lines[3] == "    - to is 'x@b.example', not 'a@b.example'"
    assert lines[4] == "  mail.send('x@b.example') in mails, mid m-1"
    assert lines[6] == "    - subject is 'hello', not 'hi'"
    assert lines[8:] == [
        "    - job is 'other', not 'mail.send'",
        "    - queue is 'default', not 'mails'",
    ]
    with pytest.raises(AssertionError, match=r"2 enqueued calls match mail.send.*, 3 expected"):
        jobq.assert_enqueued(send, count=3)
    with pytest.raises(AssertionError, match=r"1 call matches mail.send\(…\), mid='m-1'"):
        jobq.refute_enqueued(send, mid="m-1")


def test_expectation_that_no_call_could_meet_is_an_error(jobq, registry):
    plain = job(name="plain", registry=registry)(lambda one: None)
    with pytest.raises(TypeError, match=r"plain\(\): got an unexpected keyword argument 'two'"):
        jobq.assert_enqueued(plain, kwargs={"two": 1})
    with pytest.raises(
        TypeError, match=r"one=… is not a property of a call; .* kwargs=\{'one': …\}"
    ):
        jobq.assert_enqueued(plain, one=1)
    with pytest.raises(ConfigError, match="name the job"):
        jobq.refute_enqueued(args=(1,))


def test_expected_value_without_json_matches_no_call(jobq, send):
    send.enqueue("a@b.example")
    with pytest.raises(AssertionError, match="object object"):
        jobq.assert_enqueued(send, args=(object(),))


def test_within_waits_for_what_comes(jobq, send):
    enqueued = threading.Timer(0.05, send.enqueue, ["late@b.example"])
    enqueued.start()
    jobq.assert_enqueued(send, args=("late@b.example",), within=120)
    enqueued.join()


def test_lines_of_keys_and_retries_and_strange_bytes_are_there(jobq, send):
    send.options(key="k").enqueue("a")
    send.options(key="k").enqueue("b")
    Queue("mails", jobq.client).enqueue(b"\xff", mid="strange")
    jobq.assert_enqueued(send, count=2)
    jobq.assert_enqueued(mid="strange")


def test_dead_calls_have_their_reason(jobq, send):
    send.enqueue("a@b.example")
    jobq.drain(raises=False)
    [call] = jobq.assert_dead(send, args=("a@b.example",), reason="is refused", count=1)
    assert call.attempts == 1
    jobq.refute_enqueued(send)
    with pytest.raises(
        AssertionError, match=r"reason is 'a@b.example is refused', without 'other'"
    ):
        jobq.assert_dead(send, reason="other")
