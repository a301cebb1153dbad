"""The page of the dead: groups that share an error, rows, export."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobq.client.connection import Client
from jobq.events import attempt_record
from jobq.observe.redaction import Redactor
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web.contents import Contents
from jobq.web.dead import filter_of_group, groups, shape
from jobq.web.filters import Filter, Row, parse
from jobq.web.search import DEAD_KEYS
from tests.web.test_messages import words
from tests.web.test_search import call


def die(queue: Queue, job: str, reasons: list[str]) -> None:
    """Let a message of this job die of each reason."""
    queue.enqueue_many([call(job, "x@y.example", n) for n in range(len(reasons))])
    for first in range(0, len(reasons), 250):
        some = reasons[first : first + 250]
        taken = queue.dequeue(len(some)).messages
        queue.finish(
            [
                Ending(mid=one.mid, token=one.token, outcome="dead", reason=reason)
                for one, reason in zip(taken, some, strict=True)
            ]
        )


@pytest.mark.parametrize(
    ("error", "same"),
    [
        ("Timeout: no reply in 30.5 s\nTrace", "Timeout: no reply in * s"), ("", ""),
        ("KeyError: 'user-17'", "KeyError: *"),
        ("ValueError: id 0x7f3a, order 3f2a9c1e-77aa-4b1c, 17:45", "ValueError: id *, order *, *"),
        ("<object at 0x7f> is * bad", "* is * bad"), ("1 2 3", "*"), ("x" * 300, "x" * 160 + "*"),
    ],
)  # fmt: skip
def test_errors_that_differ_in_values_have_one_shape(error: str, same: str):
    assert shape(error) == same


@given(st.text(max_size=300), st.text(max_size=20))
@example("[hidden]", "[hidden]")
def test_filter_of_a_group_finds_its_messages(error: str, job: str):
    text = filter_of_group("low", job, shape(error))
    assert parse(text, keys=DEAD_KEYS)(Row("low", "m", "dead", job, error))


def test_groups_are_counted_and_their_links_list_them(queue: Queue, client: Client, visit: Any):
    die(queue, "a.pay", [f"Timeout: no reply in {n} s" for n in range(12)])
    die(queue, "a.pay", ["ValueError: token=abcdef"])
    die(Queue("high", client), "a.mail", ["Timeout: no reply in 1 s"] * 3)
    page = visit()
    text = page.get("/dead").text
    shown = words(text)
    for expected in (
        "Timeout: no reply in * s a.pay low 12",
        "a.mail high 3",
        "ValueError: token=[hidden]",
        "Counts cover all 16 dead messages",
    ):
        assert expected in shown
    assert "abcdef" not in text
    largest = re.search(r'href="(/dead\?f=[^"]+)"', text)
    assert largest is not None
    listed = page.get(largest[1].replace("&amp;", "&"))
    assert "12 found" in words(listed.text) and "a.mail" not in words(listed.text)
    found = groups(
        client, Contents(client, Redactor(), arguments=False), Filter(), ["low", "high"], most=1
    )
    assert (found.looked_at, found.total) == (16, 16)


def test_each_queue_has_its_share_of_what_is_looked_at(queue: Queue, client: Client):
    die(queue, "a", ["x"] * 900)
    die(Queue("high", client), "b", ["y"] * 10)
    contents = Contents(client, Redactor(), arguments=False)
    found = groups(client, contents, Filter(), ["high", "low"], most=600)
    assert [(one.queue, one.number) for one in found.groups] == [("low", 590), ("high", 10)]
    assert (found.looked_at, found.total) == (600, 910)
    assert [
        one.queue for one in groups(client, contents, parse("queue:high"), ["high", "low"]).groups
    ] == ["high"]


def test_export_has_what_the_user_may_see(queue: Queue, visit: Any):
    die(queue, "a.pay", ["Timeout: x", "Error: y"])
    reply = visit().get("/dead.jsonl?f=error:timeout*")
    [line] = map(json.loads, reply.text.splitlines())
    assert (line["job"], line["reason"], line["args"]) == (
        "a.pay",
        "Timeout: x",
        ["x@y.example", 0],
    )
    assert "attachment" in reply.headers["content-disposition"]
    assert "x@y" not in visit(arguments=False).get("/dead.jsonl").text
    assert visit().get("/dead.jsonl?f=x").status_code == 400


def test_no_dead_says_what_would_be_here(visit: Any):
    assert "Messages land here after their last failed attempt." in visit().get("/dead").text
    assert "No matching dead messages" in visit().get("/dead?f=mid:x").text
    assert "can't be read" in visit().get("/dead?f=due:%3E1s").text


def test_the_dead_of_one_error_are_found_by_its_fingerprint(
    queue: Queue, client: Client, visit: Any
):
    queue.register()
    for number, mark in enumerate(("f1", "f2", "f1", "")):
        queue.enqueue(call("a.b", "x", number), mid=f"m{number}")
        [taken] = queue.dequeue(1).messages
        record = attempt_record("a.b", 1, 0, 1, 1, 0, "w:1", "E" if mark else "", mark)
        queue.finish(
            [Ending(mid=taken.mid, token=taken.token, outcome="dead", reason="E: x", record=record)]
        )
    shown = words(visit().get("/dead?f=fingerprint:f1").text)
    assert "m0" in shown and "m2" in shown and "m1" not in shown and "m3" not in shown
    assert "Counts cover all 4 dead messages" in shown
    found = groups(
        client,
        Contents(client, Redactor(), arguments=True),
        parse("-fingerprint:f1", keys=DEAD_KEYS),
        ["low"],
    )
    assert [one.number for one in found.groups] == [2]
    assert 'f=fingerprint%3Af1"' in visit().get("/errors/f1").text
