"""`jobq topic`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from jobq.client.runtime import runtime
from jobq.topics import RedismqTopic, Topic


@pytest.fixture
def orders(client):
    runtime.listed_topics.clear()
    return Topic("orders", client)


def test_append_takes_words_lines_and_tombstones(cli, orders):
    assert cli("topic", "append", "orders", "a", "b").out == "orders: 2 messages, index 1 to 2\n"
    headed = cli("topic", "append", "orders", "c", "--key", "k", "--header", "trace=a=b", "--json")
    assert headed.records == [{"topic": "orders", "appended": 1, "first": 3, "last": 3}]
    assert cli("topic", "append", "orders", "--file", "-", given="d\ne\n").code == 0
    assert cli("topic", "append", "orders", "--tombstone", "--key", "k").out.endswith("index 6\n")
    assert [m.content for m in orders.read()] == [b"a", b"b", b"c", b"d", b"e", None]
    assert orders.get(3).key == "k" and orders.get(3).headers == {"trace": "a=b"}


@pytest.mark.parametrize(
    "words",
    [[], ["a", "--file", "-"], ["--tombstone"], ["a", "--header", "x"], ["a", "--ttl", "1h"],
     ["a", "--key", "k", "--layout", "redismq"]],
)  # fmt: skip
def test_append_refuses_what_makes_no_sense(cli, orders, words):
    assert cli("topic", "append", "orders", *words).code == 2
    assert orders.describe().messages == 0


def test_poll_prints_commits_and_says_when_there_is_nothing(cli, orders):
    orders.append_many([b"a", b"b\x1b[2J", b"c"])
    first = cli("topic", "poll", "orders", "--group", "g", "--limit", "2")
    assert [line.split("\t")[0] for line in first.out.splitlines()] == ["1", "2"]
    assert "\x1b" not in first.out
    assert orders.group("g").lag().settled == 2
    assert cli("topic", "poll", "orders", "-g", "g", "--json").records[0]["content"] == "c"
    assert cli("topic", "poll", "orders", "-g", "g", "--block", "10ms").code == 1


def test_poll_keeps_what_it_is_told_to_keep(cli, orders):
    orders.append(b"a")
    for _ in range(2):
        assert len(cli("topic", "poll", "orders", "-g", "g", "--keep", "--json").records) == 1
    assert orders.group("g").lag().settled == 0


def test_poll_refuses_to_follow_what_it_keeps_handing_out(cli, orders):
    assert cli("topic", "poll", "orders", "--group", "g", "--follow", "--keep").code == 2
    assert orders.groups() == []


def test_poll_begins_a_new_group_where_it_is_told(cli, orders):
    orders.append_many([b"a", b"b"])
    assert cli("topic", "poll", "orders", "-g", "new", "--start", "latest").code == 1
    assert [
        r["index"]
        for r in cli("topic", "poll", "orders", "-g", "other", "--start", "2", "--json").records
    ] == [2]


def test_read_shows_a_stretch_by_index_and_by_time(cli, orders):
    for i in range(1, 6):
        orders.append(b"%d" % i, now=1_700_000_000_000 + i * 1_000)

    def indexes(*words):
        return [r["index"] for r in cli("topic", "read", "orders", *words, "--json").records]

    assert indexes() == [1, 2, 3, 4, 5]
    assert indexes("--since", "2", "--until", "4") == [2, 3, 4]
    assert indexes("--since", "2023-11-14T22:13:23Z", "--until", "2023-11-14T22:13:25+00:00") == [
        3,
        4,
    ]
    assert indexes("--since", "1h") == []
    assert indexes("--limit", "2") == [1, 2]
    assert cli("topic", "read", "orders", "--since", "soon").code == 2


def test_read_shows_bytes_that_are_no_text(cli, orders):
    orders.append(b"\xff\x00", headers={"h": "v"})
    [record] = cli("topic", "read", "orders", "--json").records
    assert record["content"] == "\\xff\x00" and record["content_base64"] == "/wA="
    assert record["headers"] == {"h": "v"}


def test_read_of_what_was_dropped_is_told(cli, orders):
    orders.append_many([b"x"] * 5)
    orders.trim(before=4)
    ended = cli("topic", "read", "orders", "--since", "2")
    assert ended.code == 1 and "begins at 4" in ended.err


def test_groups_are_made_listed_moved_paused_and_forgotten(cli, orders):
    orders.append_many([b"x"] * 5)
    assert cli("topic", "groups", "orders").err.startswith("orders has no group")
    assert (
        cli(
            "topic", "subscribe", "orders", "-g", "g", "--start", "3", "--out-of-range", "error"
        ).code
        == 0
    )
    assert cli("topic", "subscribe", "orders", "-g", "g").code == 1
    [row] = cli("topic", "groups", "orders", "--json").records
    assert (row["group"], row["settled"], row["lag"], row["out_of_range"]) == ("g", 2, 3, "error")
    assert cli("topic", "pause", "orders", "-g", "g").out == "g: paused\n"
    assert "paused" in cli("topic", "groups", "orders").out
    assert cli("topic", "resume", "orders", "-g", "g").code == 0
    assert (
        cli("topic", "seek", "orders", "-g", "g", "--to", "latest").out == "g: next message is 6\n"
    )
    assert cli("topic", "seek", "orders", "-g", "g", "--to", "9").code == 1
    assert cli("topic", "unsubscribe", "orders", "-g", "g").code == 0
    assert cli("topic", "unsubscribe", "orders", "-g", "g").code == 1
    assert "no group 'g'" in cli("topic", "pause", "orders", "-g", "g").err


@pytest.mark.parametrize("layout", [(), ("--layout", "redismq")])
def test_peek_shows_what_comes_next_and_moves_nothing(cli, client, layout):
    topic = RedismqTopic("orders", client) if layout else Topic("orders", client)
    topic.append_many([b"a", b"b", b"c", b"d"])
    assert cli("topic", "poll", "orders", "-g", "g", "-n", "1", *layout).code == 0
    for _ in range(2):
        seen = cli("topic", "peek", "orders", "-g", "g", "-n", "2", "--json", *layout).records
        assert [(one["index"], one["content"]) for one in seen] == [(2, "b"), (3, "c")]
    assert len(topic.reader("g").poll(10).messages) == 3
    end = cli("topic", "peek", "orders", "-g", "g", *layout)
    assert (end.code, end.out) == (1, "")


def test_peek_names_a_group_that_is_missing(cli, orders):
    orders.append(b"a")
    assert "no group 'g'" in cli("topic", "peek", "orders", "-g", "g").err


def test_lag_shows_messages_and_age(cli, orders):
    orders.append_many([b"x"] * 5)
    orders.reader("g").poll(2)
    [row] = cli("topic", "lag", "orders", "--json").records
    assert (row["group"], row["lag"], row["held"]) == ("g", 5, 1)
    assert cli("topic", "lag", "orders", "--group", "g").out.splitlines()[0].split()[:2] == [
        "group",
        "lag",
    ]


def test_describe_and_list_show_what_there_is(cli, orders):
    assert "no topics here yet" in cli("topic", "list").err
    orders.append_many([b"xyz"] * 5)
    shown = cli("topic", "describe", "orders").out
    assert "5 messages, index 1 to 5, about 15 bytes" in shown and "keeps     everything" in shown
    [facts] = cli("topic", "describe", "orders", "--json").records
    assert facts["limits"]["max_count"] == 0 and facts["groups"] == []
    assert cli("topic", "list", "--json").records[0]["messages"] == 5


def test_retention_is_shown_set_and_applied(cli, orders):
    orders.append_many([b"x"] * 5)
    assert cli("topic", "retention", "orders").out == "orders: keeps everything\n"
    changed = cli("topic", "retention", "orders", "--max-count", "2", "--max-age", "1h", "--apply")
    assert changed.out == "orders: keeps messages for 3,600 s, 2 messages; starts at 4\n"
    assert cli("topic", "retention", "orders", "--before", "5", "--json").records[0]["first"] == 5
    assert cli("topic", "compaction", "orders", "on").code == 2


def test_compaction_is_switched_and_run(cli, orders):
    for key in "aab":
        orders.append(b"x", key=key)
    ended = cli("topic", "compaction", "orders", "on", "--tombstones", "1m", "--run", "--json")
    assert ended.records == [
        {"topic": "orders", "compact": True, "tombstone_ms": 60_000, "compacted_to": 3, "messages": 2}
    ]  # fmt: skip
    assert cli("topic", "compaction", "orders", "off").out.startswith("orders: compaction off")


def test_delete_asks_and_drops(cli, orders, redis):
    orders.append(b"x")
    assert cli("topic", "delete", "orders", given="n\n").code == 1
    assert cli("topic", "delete", "orders", "--yes").code == 0
    assert orders.describe().last == 0


def test_redismq_layout_is_written_read_moved_and_forgotten(cli, client, redis):
    there = ("--layout", "redismq")
    assert cli("topic", "append", "foo", "a", "b", "--ttl", "1h", *there).code == 0
    assert redis.get("foo:nextIndex") == b"2" and redis.pttl("foo:messages:1") > 0
    assert [r["content"] for r in cli("topic", "read", "foo", "--json", *there).records] == [
        "a",
        "b",
    ]
    assert len(cli("topic", "poll", "foo", "-g", "bar", "--json", *there).records) == 2
    assert (
        cli("topic", "seek", "foo", "-g", "bar", "--to", "2", *there).out
        == "bar: next message is 2\n"
    )
    assert cli("topic", "lag", "foo", "-g", "bar", "--json", *there).records[0]["lag"] == 1
    assert cli("topic", "unsubscribe", "foo", "-g", "bar", *there).code == 0
    assert RedismqTopic("foo", client).reader("bar").poll().first == 1
    for words in (
        ("poll", "-g", "g", "--keep"),
        ("read", "--since", "1h"),
        ("seek", "-g", "g", "--to", "1h"),
    ):
        assert cli("topic", words[0], "foo", *words[1:], *there).code == 2
    assert cli("topic", "delete", "foo", "--yes", *there).code == 0


def test_functions_load_brings_the_library_of_topics(cli, redis):
    redis.function_flush()
    ended = cli("functions", "load", "--library", "all", "--json")
    assert "topic" in [record["library"] for record in ended.records]
    assert cli("functions", "check", "--library", "topic").code == 0
    # Call it like a client that doesn't know jobq.
    prefix = "jobq:{t}:topic:"
    names = [prefix + n for n in ("log", "base", "clean", "newest", "marks", "meta", "call:me")]
    reply = redis.fcall("topic_append", len(names), *names, "me", 1, "", "m", "hello")
    assert reply[:3] == [b"ok", 1, 1]
    redis.function_flush()
    assert cli("functions", "check", "--library", "topic").code == 4


def test_follow_goes_on_until_interrupted(server, client, orders):
    orders.append(b"1")
    command = [
        sys.executable,
        "-m",
        "jobq",
        "topic",
        "poll",
        "orders",
        "-g",
        "g",
        "--follow",
        "--json",
    ]
    process = subprocess.Popen(
        command, env={**os.environ, "JOBQ_URL": server.url}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert json.loads(process.stdout.readline())["content"] == "1"
        orders.append(b"2")
        assert json.loads(process.stdout.readline())["content"] == "2"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.stdout.close()
    # Its held messages are returned: the lease has ended.
    assert orders.group("g").lag().held == orders.group("g").lag().expired


def test_names_that_are_no_text_are_told_and_removed(cli, orders, redis):
    orders.append(b"a")
    orders.group("g").subscribe()
    redis.sadd("jobq:topics", b"\xff", "a b")
    redis.sadd("jobq:{orders}:topic:groups", b"\xfe")
    ended = cli("topic", "list", "--json")
    assert [row["topic"] for row in ended.records] == ["orders"]
    assert ended.code == 0
    assert "2 entries on the list of topics" in ended.err and len(ended.err.splitlines()) == 1
    for verb in ("groups", "lag", "describe"):
        ended = cli("topic", verb, "orders", "--json")
        assert ended.code == 1 and len(ended.records) == len(ended.err.splitlines()) == 1, verb
    assert cli("topic", "unsubscribe", "orders", "--group", "\udcfe").code == 0
    for name in ("\udcff", "a b"):
        assert cli("topic", "delete", name, "--yes").code == 0
        assert cli("topic", "delete", name, "--yes").code == 1
    assert cli("topic", "list").code == cli("topic", "groups", "orders").code == 0


def test_topics_and_groups_that_cannot_be_read_cost_the_others_nothing(cli, orders, client, redis):
    for name in ("bad", "orders"):
        topic = Topic(name, client)
        topic.append(b"a")
        for group in ("g", "h"):
            topic.group(group).subscribe()
    for key in ("log", "marks", "meta", "held:g"):
        redis.delete(f"jobq:{{bad}}:topic:{key}")
        redis.sadd(f"jobq:{{bad}}:topic:{key}", "somebody else's")
    redis.hset("jobq:{orders}:topic:group:g", "cursor", "bogus")
    ended = cli("topic", "list", "--json")
    assert [row["topic"] for row in ended.records] == ["orders"]
    assert ended.code == 4 and "bad" in ended.err and len(ended.err.splitlines()) == 1
    for verb in ("groups", "lag"):
        ended = cli("topic", verb, "orders", "--json")
        assert [row["group"] for row in ended.records] == ["h"]
        assert ended.code != 0 and len(ended.err.splitlines()) == 1
    assert cli("topic", "delete", "bad", "--yes").code == 0
    assert all(b":call:" in key for key in redis.keys("jobq:{bad}:topic:*"))
    # A group with an unreadable position is recreated.
    assert cli("topic", "poll", "orders", "-g", "g", "--json").records[0]["content"] == "a"


def test_foreign_entries_and_times_are_printed(cli, orders, redis):
    orders.append(b"a")
    redis.xadd(
        "jobq:{orders}:topic:log", {b"\xff": b"\xfe", "h": "[" * 5_000}, id="2-99999999999999999"
    )
    redis.hset("jobq:{orders}:topic:meta", "last", 2)
    for words in (("read", "orders"), ("poll", "orders", "-g", "g"), ("describe", "orders"),
                  ("read", "orders", "--json"), ("peek", "orders", "-g", "g")):  # fmt: skip
        ended = cli("topic", *words)
        assert ended.code in (0, 1) and "Traceback" not in ended.err, ended


def test_damage_in_the_layout_of_redismq_is_told_and_removed(cli, client, redis):
    topic = RedismqTopic("old", client)
    topic.append_many([b"a" * 100_000] * 9)
    redis.delete("old:messages:3")
    redis.rpush("old:messages:3", "somebody else's")
    where = ("--layout", "redismq")
    assert len(cli("topic", "read", "old", *where, "--json").records) == 8
    assert len(cli("topic", "poll", "old", "-g", "g", *where, "--json").records) == 8
    redis.set("old:g:nextIndex", "bogus")
    for verb in ("lag", "peek", "poll"):
        ended = cli("topic", verb, "old", "-g", "g", *where)
        assert ended.code == 4 and len(ended.err.splitlines()) == 1, ended
    assert cli("topic", "unsubscribe", "old", "-g", "g", *where).code == 0
    redis.set("old:nextIndex", b"\xff")
    assert cli("topic", "read", "old", *where).code == 4
    assert cli("topic", "append", "old", "x", *where).code == 4
    assert cli("topic", "delete", "old", "--yes", *where).code == 0
    assert not redis.exists("old:nextIndex")
