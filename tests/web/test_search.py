"""Lists on a real server: every message once, bounded reads, cursors, unreadable parts."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.config import CodecSettings
from jobq.errors import ConfigError
from jobq.jobs.signing import Seal
from jobq.observe.redaction import HIDDEN, Redactor
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import search
from jobq.web.contents import Contents
from jobq.web.filters import Filter, parse
from jobq.web.search import FoundRows, SearchLimits
from tests.hostile import HOSTILE


def call(job: str = "a.b", *args: Any, **kwargs: Any) -> bytes:
    return json.dumps(
        {"job": job, "args": args, "kwargs": kwargs, "enqueued_at": 1_700_000_000_000}
    ).encode()


@pytest.fixture
def contents(client: Client) -> Contents:
    return Contents(client, Redactor(), arguments=True)


def filled(queue: Queue) -> None:
    """30 messages: 10 ready, 6 of them with keys; 5 due, 5 running, 3 done, 2 deduped, 5 dead."""
    for n in range(15):
        queue.enqueue(call("a.run", n), mid=f"run{n:02}", until=60 if n < 2 else None)
    taken = queue.dequeue(15).messages
    words = ["done"] * 5 + ["dead"] * 5
    queue.finish(
        [
            Ending(mid=one.mid, token=one.token, outcome=word,
            reason=f"Timeout: {one.mid} at {n} s\n\nTrace")  # type: ignore[arg-type]
            for n, (one, word) in enumerate(zip(taken, words, strict=False))
        ]
    )  # fmt: skip
    for n in range(10):
        queue.enqueue(
            call("a.wait", n, user={"id": n, "token": "x"}),
            mid=f"wait{n}",
            **({"key": f"k{n % 2}"} if n < 6 else {}),
        )
    for n in range(5):
        queue.enqueue(call("a.later"), mid=f"later{n}", delay=3_600)


def every(
    client: Client, contents: Contents, asked: Filter, limits: SearchLimits, **where: Any
) -> list[FoundRows]:
    pages, cursor = list[FoundRows](), ""
    while cursor or not pages:
        assert len(pages) < 100
        where.setdefault("queues", ["low"])
        pages.append(
            search.messages(client, contents, asked, cursor=cursor, limits=limits, **where)
        )
        cursor = pages[-1].cursor
    return pages


@pytest.mark.parametrize(
    "limits",
    [SearchLimits(), SearchLimits(rows=3), SearchLimits(messages=4), SearchLimits(seconds=0)],
)
def test_every_message_is_listed_once_whatever_the_limits(
    queue: Queue, client: Client, contents: Contents, limits: SearchLimits
):
    filled(queue)
    pages = every(client, contents, Filter(), limits)
    rows = [listed.row for page in pages for listed in page.rows]
    assert Counter(row.place for row in rows) == {
        "ready": 10,
        "due": 5,
        "running": 5,
        "done": 5,
        "dead": 5,
    }
    assert len({row.mid for row in rows}) == len(rows) == 30
    assert pages[-1].looked_at == 30
    assert all(page.total >= page.looked_at for page in pages)


@pytest.mark.parametrize(
    ("text", "mids"),
    [
        ("place:running", {f"run{n}" for n in range(10, 15)}), ("place:dead error:*run07*", {"run07"}),
        ("job:a.later due:>59m due:<61m", {f"later{n}" for n in range(5)}), ("arg.0:3,12", {"wait3", "run12", "run03"}),
        ("arg.user.id:>7", {"wait8", "wait9"}), ("arg.user.token:*", set()), ("queue:high", set()),
        ("mid:*9", {"run09", "wait9"}),
        ("attempt:>0 -place:dead,done", {f"run{n}" for n in range(10, 15)}), ("age:>1h mid:later1", {"later1"}),
    ],
)  # fmt: skip
def test_filter_finds_what_matches(
    queue: Queue, client: Client, contents: Contents, text: str, mids: set[str]
):
    filled(queue)
    asked = parse(text, may_see_arguments=True)
    for limits in (SearchLimits(), SearchLimits(rows=1), SearchLimits(messages=7)):
        pages = every(client, contents, asked, limits)
        assert {listed.row.mid for page in pages for listed in page.rows} == mids


def test_request_looks_at_no_more_than_its_limit_and_says_where_to_go_on(
    queue: Queue, client: Client, contents: Contents, redis: Any
):
    for first in range(0, 3_000, 1_000):
        queue.enqueue_many([call("a", n) for n in range(first, first + 1_000)])
    asked = parse("arg.0:2999", may_see_arguments=True)
    limits = SearchLimits(messages=1_000, seconds=math.inf)
    redis.config_resetstat()
    page = search.messages(client, contents, asked, ["low"], limits=limits)
    assert (page.looked_at, page.total, page.rows, bool(page.cursor)) == (1_000, 3_000, [], True)
    calls = redis.info("commandstats")
    assert (
        sum(calls[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in calls)
        <= 7
    )
    assert "cmdstat_hgetall" not in calls and "cmdstat_keys" not in calls
    pages = every(client, contents, asked, limits)
    assert [one.looked_at for one in pages[:3]] == [1_000, 2_000, 3_000]
    assert [listed.row.job for listed in pages[2].rows] == ["a"]


def test_many_queues_are_searched_in_their_order_and_a_damaged_one_is_named(
    client: Client, contents: Contents, redis: Any
):
    for name in ("c", "a", "b"):
        Queue(name, client).enqueue(call(), mid=f"m-{name}")
    redis.delete("jobq:{b}:ready")
    redis.set("jobq:{b}:ready", "another type")
    page = search.messages(client, contents, Filter(), ["c", "b", "a", "never-used"])
    assert [listed.row.mid for listed in page.rows] == ["m-a", "m-c"]
    assert list(page.problems) == ["b"]


def test_row_says_what_is_known(queue: Queue, client: Client, contents: Contents):
    filled(queue)
    now = client.clock_ms()
    [dead] = search.messages(client, contents, parse("mid:run05"), ["low"]).rows
    assert (dead.row.error, dead.row.attempt, dead.status) == (
        "Timeout: run05 at 5 s\n\nTrace",
        1,
        "dead",
    )
    assert dead.dead_id.startswith("run05#") and 0 <= now - dead.at_ms < 120_000
    [waits] = search.messages(client, contents, parse("mid:wait3"), ["low"]).rows
    assert (waits.row.job, waits.at_ms, waits.status) == ("a.wait", 1_700_000_000_000, "queued")
    assert waits.call.arguments == ([3], {"user": {"id": 3, "token": HIDDEN}}, ("",))
    reader = Contents(client, Redactor(), arguments=False)
    [seen] = search.messages(client, reader, parse("mid:wait3"), ["low"]).rows
    assert (seen.call.arguments, seen.call.job) == (None, "a.wait")


def test_events_are_listed_newest_first_and_filtered(queue: Queue, contents: Contents):
    queue.admin.events_level("all")
    filled(queue)
    queue.cancel("wait9")
    kinds, cursor = list[str](), ""
    while cursor or not kinds:
        page = search.events(queue, contents, Filter(), cursor, SearchLimits(rows=7))
        kinds += [listed.status for listed in page.rows]
        cursor = page.cursor
    assert kinds[0] == "cancelled" and Counter(kinds)["dead"] == 5
    assert page.looked_at == page.total == len(kinds)
    found = search.events(queue, contents, parse("kind:dead mid:run06", keys=search.EVENT_KEYS))
    assert [listed.row.mid for listed in found.rows] == ["run06"]


@pytest.mark.parametrize(
    "cursor",
    ["x", "é", "W10=", "W1siIiwiKyIsMF0sMF0=", "W1sibG93IiwicmVhZHkiLC0xXSwwXQ==", "A" * 5_000],
)
def test_cursor_of_a_stranger_is_refused_in_words(
    queue: Queue, client: Client, contents: Contents, cursor: str
):
    with pytest.raises(ConfigError, match="the cursor can't be read; open the list again"):
        search.messages(client, contents, Filter(), ["low"], cursor=cursor)
    with pytest.raises(ConfigError, match="the cursor can't be read"):
        search.events(queue, contents, Filter(), "W1siIiwiKDEgMiIsMF0sMF0=")


def test_hostile_contents_are_rows_like_others(
    queue: Queue, client: Client, contents: Contents, redis: Any
):
    for n, raw in enumerate(HOSTILE):
        queue.enqueue(b"x", mid=f"m{n}")
        redis.hset("jobq:{low}:messages", f"m{n}", raw)
        redis.zadd("jobq:{low}:dead", {f"d{n}#1": n})
        redis.hset("jobq:{low}:dead_messages", f"d{n}#1", raw)
        redis.xadd("jobq:{low}:events", {"1": raw})
    pages = every(client, contents, Filter(), SearchLimits())
    rows = [listed for page in pages for listed in page.rows]
    assert len(rows) == 2 * len(HOSTILE)
    assert [one.is_damaged for one in rows if one.status == "dead"] == [True] * len(HOSTILE)
    for one in rows:
        assert one.call.arguments is None and one.call.note
    assert search.events(queue, contents, Filter()).looked_at >= len(HOSTILE)


def settings(mode: Any) -> CodecSettings:
    return CodecSettings(keys=(("2026-11", b"k" * 32),), mode=mode)


@pytest.mark.parametrize(
    ("mode", "keys", "may", "job", "shown", "note"),
    [
        ("encrypt", True, True, "a.b", True, "encrypted, key 2026-11"),
        ("encrypt", True, False, "", False, "encrypted, key 2026-11"),
        ("encrypt", False, True, "", False, "encrypted, key 2026-11; this process has no keys"),
        ("sign", True, True, "a.b", True, "signed, key 2026-11"),
        ("sign", True, False, "a.b", False, "signed, key 2026-11"),
        ("sign", False, True, "a.b", True, "signed, key 2026-11; this process has no keys"),
    ],
)  # fmt: skip
def test_sealed_call_shows_to_whom_may_see_it(
    client: Client, mode: Any, keys: bool, may: bool, job: str, shown: bool, note: str
):
    sealed = Seal(settings(mode)).close_call("low", "m", call("a.b", 1))
    client.settings = replace(client.settings, codec=settings(mode) if keys else None)
    found = Contents(client, Redactor(), arguments=may).call("low", "m", sealed)
    assert (found.job, found.arguments is not None) == (job, shown)
    assert found.note.startswith(note)


def test_changed_seal_is_said_and_opens_nothing_that_was_hidden(client: Client):
    client.settings = replace(client.settings, codec=settings("encrypt"))
    contents = Contents(client, Redactor(), arguments=True)
    sealed = Seal(settings("encrypt")).close_call("low", "m", call("a.b", 1))
    assert contents.call("low", "other", sealed).note.startswith("not trusted: bad seal")
    assert contents.call("low", "m", call("a.b")).note.startswith("not trusted: no signature")
    reason = Seal(settings("encrypt"), "reason").close_text("low", "m", "password=x Timeout")
    assert contents.text("reason", "low", "m", reason) == "password=[hidden] Timeout"
    reader = Contents(client, Redactor(), arguments=False)
    assert reader.text("reason", "low", "m", reason) == "(sealed, key 2026-11)"
