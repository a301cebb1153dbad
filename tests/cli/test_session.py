"""Verbs that read many queues: a damaged queue, name or node leaves the others readable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from jobq.cli import messages
from jobq.cli.session import NEXT_PATIENCE_S, Session
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import UnavailableError
from jobq.queue import directory, keys
from jobq.queue.queue import Queue

from ..client.deployments import HOST, Node, Spread
from ..conftest import binary

CALL = b'{"v":1,"job":"a.b","args":[]}'
#: By the name that Lua gives it, every key of a queue that a reading verb opens.
TYPED = (
    "messages", "locks", "tokens", "backoffs", "nattempts", "ncrashes", "nunknowns", "generations", "requeue",
    "options", "progress", "ready", "due", "circle", "done", "left_ready", "left_circle", "dead", "dead_messages",
    "last_dead", "quarantine", "meta", "events",
)  # fmt: skip
VERBS = (
    ("queues",),
    ("status", "waits"),
    ("dead", "list", "--all"),
    ("dead", "show", "is-dead"),
    ("check", "fsck"),
    ("queue", "peek", "--all", "--content"),
    ("queue", "peek", "--place", "delayed"),
    ("queue", "peek", "--place", "running"),
    ("events", "level"),
    ("events", "maxlen"),
    ("events", "tail", "-n", "1000"),
)


@pytest.fixture
def filled(client: Any, kill_message: Any) -> Any:
    """filled(name): a queue with a message in each place, and one among the dead."""

    def fill(name: str) -> Queue:
        queue = Queue(name, client)
        queue.admin.events_level("all")
        kill_message(queue, "is-dead")
        queue.enqueue(CALL, mid="runs")
        queue.dequeue()
        queue.enqueue(CALL, mid="waits")
        queue.enqueue(CALL, mid="comes", delay=1000)
        return queue

    return fill


@pytest.fixture
def broken(filled: Any, redis: Any) -> list[str]:
    """Between two healthy queues, for each key one in which it has another type."""
    filled("a-healthy")
    for name in TYPED:
        queue = filled(f"broken-{name}")
        key = keys.key(queue.prefix, name)
        kind = redis.type(key)
        redis.delete(key)
        redis.set(key, "x") if kind != b"string" else redis.rpush(key, "x")
    filled("z-healthy")
    return [f"broken-{name}" for name in TYPED]


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_verbs_read_every_other_queue_when_a_key_has_another_type(
    cli: Any, broken: list[str], form: tuple[str, ...]
) -> None:
    for verb in VERBS:
        reads_the_others(cli, broken, verb, form)


def reads_the_others(
    cli: Any, broken: list[str], verb: tuple[str, ...], form: tuple[str, ...]
) -> None:
    ended = cli(*verb, *form)

    first = {"dead show": "a-healthy"}.get(" ".join(verb[:2]))
    for healthy in [first] if first else ["a-healthy", "z-healthy"]:
        assert healthy in ended.out, (verb, ended)
    # Parts of a message that can't be read are remarks, without the name of the program.
    told = [line for line in ended.err.splitlines() if line.startswith("jobq: ")]
    named = [name for name in broken if any(f"queue {name}:" in line for line in told)]
    # One line each, and none of another kind.
    assert len(told) == len(named), (verb, ended.err)
    assert ended.code == (4 if named else 1 if verb == ("check", "fsck") else 0), verb
    if form:
        assert all(json.loads(line) for line in ended.out.splitlines())
    if verb == ("queues",):
        assert set(named) >= {"broken-messages", "broken-ready", "broken-dead", "broken-meta"}
    if verb == ("check", "fsck"):
        assert not named  # the check itself names them
        assert all(f"{name}: key of another type" in ended.out or form for name in broken)


def test_error_line_of_a_queue_names_the_verb_that_says_more(cli: Any, broken: list[str]) -> None:
    told = cli("queues", "broken-ready,a-healthy").err
    assert "jobq: queue broken-ready: " in told
    assert "jobq check fsck broken-ready" in told


def test_status_does_not_say_nil_when_a_queue_cannot_be_read(cli: Any, broken: list[str]) -> None:
    ended = cli("status", "nowhere", "--json")
    assert (ended.code, ended.out) == (4, "")
    assert "queue broken-messages:" in ended.err


NAMES = (b"\xff", b"a b", b"{x}", b"", b"x" * 129, b"\x1b[31m")


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verb_counts_what_cannot_be_a_queue_when_it_is_in_the_list(
    cli: Any, filled: Any, redis: Any, verb: tuple[str, ...]
) -> None:
    filled("healthy")
    redis.sadd("jobq:queues", *NAMES)
    ended = cli(*verb)

    assert "healthy" in ended.out
    if verb == ("check", "fsck"):
        lines = [line for line in ended.out.splitlines() if "queue's name" in line]
        assert (ended.code, len(lines)) == (1, len(NAMES))
        assert any("\\xff" in line for line in lines)
    else:
        [line] = ended.err.splitlines()
        assert ended.code == 0 and line.startswith(
            f"jobq: {len(NAMES)} entries on the list of queues"
        )
    assert "\x1b" not in ended.out + ended.err


def test_verb_looks_at_queues_in_use_when_the_list_is_too_long(
    cli: Any, filled: Any, redis: Any, monkeypatch: Any
) -> None:
    filled("healthy")
    redis.sadd("jobq:queues", *(f"a{number}" for number in range(20)))
    monkeypatch.setattr(directory, "MAX_QUEUES", 10)
    for verb in (("queues", "--json"), ("dead", "list", "--all", "--json")):
        ended = cli(*verb)
        assert {record["queue"] for record in ended.records} == {"healthy"}
        assert ended.code == 0 and "20 other names are on the list of queues" in ended.err
    assert cli("why", "waits").code == 0 and cli("why", "none").code == 1


@pytest.mark.parametrize("verb", ["why", "status"])
def test_verb_searches_a_bounded_number_of_queues_when_none_has_the_message(
    cli: Any, filled: Any, redis: Any, monkeypatch: Any, verb: str
) -> None:
    filled("healthy")
    redis.sadd("jobq:queues", "a", "b")
    monkeypatch.setattr(messages, "MAX_SEARCHED", 2)
    ended = cli(verb, "none")
    assert ended.code == 1 and "the events of only 2 of 3 queues were searched" in ended.err


def test_names_that_cannot_be_queues_are_no_problem_of_a_verb_that_names_its_queues(
    cli: Any, filled: Any, redis: Any
) -> None:
    filled("healthy")
    redis.sadd("jobq:queues", *NAMES)
    ended = cli("queues", "healthy")
    assert (ended.code, ended.err) == (0, "")


def test_fsck_removes_names_that_cannot_be_queues_when_it_repairs(
    cli: Any, filled: Any, redis: Any
) -> None:
    filled("healthy")
    redis.sadd("jobq:queues", *NAMES)

    assert cli("check", "fsck", "--repair", "--yes").code == 0
    assert redis.smembers("jobq:queues") == {b"healthy"}
    assert cli("queues").code == 0


def test_topics_are_listed_and_mended_when_one_or_a_name_is_damaged(cli: Any, redis: Any) -> None:
    for name in ("a-good", "broken", "z-good"):
        assert cli("topic", "append", name, "text").code == 0
    redis.sadd("jobq:topics", *NAMES)
    redis.delete("jobq:{broken}:topic:log")
    redis.set("jobq:{broken}:topic:log", "x")
    ended = cli("topic", "list", "--json")

    assert [record["topic"] for record in ended.records] == ["a-good", "z-good"]
    assert ended.code == 4
    assert "jobq: topic broken: " in ended.err
    assert f"{len(NAMES)} entries on the list of topics can't be a topic's name" in ended.err
    assert len(ended.err.splitlines()) == 2
    redis.delete("jobq:{broken}:topic:log")

    assert cli("check", "fsck").code == 1
    assert cli("check", "fsck", "--repair", "--yes").code == 0
    assert redis.smembers("jobq:topics") == {b"a-good", b"broken", b"z-good"}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_verb_reads_queues_by_their_keys_when_the_list_of_them_is_damaged(
    cli: Any, filled: Any, redis: Any, verb: tuple[str, ...]
) -> None:
    filled("healthy")
    redis.delete("jobq:queues")
    redis.set("jobq:queues", "x")
    ended = cli(*verb)

    assert "healthy" in ended.out
    assert ended.code == 4
    assert "jobq: the list of queues: " in ended.err and len(ended.err.splitlines()) == 1


def test_fsck_repairs_every_key_of_another_type(cli: Any, broken: list[str]) -> None:
    ended = cli("check", "fsck", "--repair", "--yes")
    assert (ended.code, ended.err) == (0, ""), ended
    assert cli("check", "fsck").code == 0
    assert cli("queues").code == 0


@pytest.mark.parametrize(
    "score", ["inf", "-inf", "1.5", "1e300", "1e17"], ids=lambda score: f"score {score}"
)
def test_dead_are_listed_when_one_has_no_record_and_a_strange_time(
    cli: Any, filled: Any, redis: Any, score: str
) -> None:
    queue = filled("low")
    redis.zadd(keys.key(queue.prefix, "dead"), {"nothing#1": score})
    ended = cli("dead", "list", "--json")

    assert ended.code == 0
    assert {record["dead_id"].partition("#")[0] for record in ended.records} == {
        "nothing",
        "is-dead",
    }
    assert cli("dead", "list").code == 0


@pytest.mark.parametrize(
    "record",
    [b"", b"\x00\xff", b"\x1f\x1f\x1f1\x1fx", b"9" * 5000 + b"\x1f0\x1f\x1f1\x1fxabc", b"1\x1f" + b"9" * 400],
    ids=["empty", "binary", "no numbers", "huge number", "cut off"],
)  # fmt: skip
def test_dead_are_listed_as_damaged_when_their_record_is(
    cli: Any, filled: Any, redis: Any, record: bytes
) -> None:
    queue = filled("low")
    [dead] = queue.admin.dead()
    redis.hset(keys.key(queue.prefix, "dead_messages"), dead.dead_id, record)
    ended = cli("dead", "list", "--json")

    assert ended.code == 0
    assert [found["attempts"] for found in ended.records] == [-1]
    assert cli("dead", "list").code == 0


def test_events_tail_shows_entries_whose_time_no_calendar_has(
    cli: Any, filled: Any, redis: Any
) -> None:
    queue = filled("low")
    redis.xadd(keys.key(queue.prefix, "events"), {"e": ""}, id=f"{2**64 - 1}-1")
    ended = cli("events", "tail")
    assert ended.code == 0
    assert f"{2**64 - 1} ms" in ended.out


def test_length_of_a_stream_that_is_no_number_is_told_and_set_again(
    cli: Any, filled: Any, redis: Any
) -> None:
    for name in ("bad", "good"):
        filled(name)
    redis.hset("jobq:{bad}:meta", "maxlen", "bogus")
    ended = cli("events", "maxlen")

    assert (ended.code, ended.out) == (4, "good: 100,000\n")
    assert "queue bad" in ended.err and "'bogus'" in ended.err
    assert cli("events", "maxlen", "1000", "--queues", "bad").out == "bad: 1,000\n"
    assert cli("events", "maxlen").code == 0


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Spread]:
    program = binary()
    assert program
    deployment = Spread(program, tmp_path)
    for node in deployment.nodes:
        node.redis.config_set("cluster-require-full-coverage", "no")
    yield deployment
    deployment.close()


def owner(spread: Spread, key: str) -> Node:
    """The node that serves a key."""
    return spread.nodes[min(key_slot(key.encode()) // 5461, 2)]


def test_verbs_read_the_other_nodes_when_some_of_a_cluster_are_away(
    spread: Spread, line: Any
) -> None:
    url = "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in spread.nodes)
    client = connect(settings=ServerSettings(url=url, patience_s=120))
    names = [f"queue{number}" for number in range(9)]
    for name in names:
        Queue(name, client).enqueue(CALL, mid="waits")
    client.close()
    listing = owner(spread, "jobq:queues")
    away: list[Node] = []
    for dead in (next(node for node in spread.nodes if node is not listing), listing):
        dead.kill()
        away.append(dead)
        lost = {name for name in names if owner(spread, f"jobq:{{{name}}}:messages") in away}
        assert lost and lost < set(names)
        for verb in (
            ("queues",),
            ("status", "waits"),
            ("check", "fsck"),
            ("queue", "peek", "--all"),
        ):
            ended = line(*verb, "--json", env={"JOBQ_URL": url, "JOBQ_PATIENCE": "0.1"})
            assert {record["queue"] for record in ended.records} == set(names) - lost, ended
            assert ended.code == 3
            if dead is listing:  # nobody can say which queues there are on nodes that are away
                assert "the list of queues:" in ended.err
            else:
                assert {name for name in names if f"queue {name}:" in ended.err} == lost


def test_next_queues_get_less_patience_after_a_node_did_not_answer(server: Any) -> None:
    session = Session(server.url, None, as_json=False)
    assert session.client.patience_s > NEXT_PATIENCE_S
    session.problem("queue low", UnavailableError("no answer"))
    assert session.client.patience_s == NEXT_PATIENCE_S
