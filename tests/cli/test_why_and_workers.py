"""`jobq workers`, `jobq why`, and the same facts in `status` and `queues`."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import click
import pytest

from jobq.cli import messages
from jobq.cli.app import app
from jobq.events import attempt_record
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.hostile import HOSTILE

CALL = b'{"job":"a.b","args":["secret"],"enqueued_at":%d}'
#: Verbs that don't print facts: they run jobs, open a shell, or draw.
NO_FACTS = {"worker", "demo", "spark shell"}


def announce(client: Any, name: str, ago_ms: int = 0, **more: Any) -> None:
    presence.put_worker(client, name, {
        "host": "web-7", "seen_at": client.clock_ms() - ago_ms, "lease_ms": 15_000, "queues": ["low", "high"],
        "slots": 4, "running": 1, "version": "1.2", **more,
    })  # fmt: skip


def running(client: Any, name: str, *mids: str) -> None:
    at = client.clock_ms() - 12_000
    jobs = tuple(RunningJob("low", mid, at) for mid in mids)
    presence.put_running(client, name, [ChildEntry(4712, "working", 120 << 20, 7, jobs)])


def test_workers_lists_each_and_what_it_runs(cli: Any, client: Any) -> None:
    announce(client, "web-7:4711")
    running(client, "web-7:4711", "a.jpg", "b.jpg")
    announce(client, "gone", 600_000)
    announce(client, "resting", quiet=True)
    ended = cli("workers")
    lines = {line.split()[0]: line.split() for line in ended.out.splitlines() if line}
    assert lines["web-7:4711"][:4] == ["web-7:4711", "4712", "low", "b.jpg"]
    assert lines["gone"][:4] == ["gone", "lost", "low,high", "1/4"]
    assert lines["resting"][1] == "quiet" and ended.code == 0
    assert "120 MB" in ended.out and re.search(r"10 m \d\d s ago", ended.out)
    assert re.search(r" [1-5]\d(\.\d)? s\b", ended.out)
    one = next(r for r in cli("workers", "--json").records if r["worker"] == "web-7:4711")
    assert (one["state"], one["version"], one["slots"], one["rss"]) == (
        "working",
        "1.2",
        4,
        120 << 20,
    )
    assert [job["mid"] for job in one["children"][0]["running"]] == ["a.jpg", "b.jpg"]


def test_workers_of_one_queue_and_none_at_all(cli: Any, client: Any) -> None:
    assert "no workers running" in cli("workers").err
    announce(client, "gone", 600_000)
    announce(client, "other", queues=["else"])
    assert [one["worker"] for one in cli("workers", "--queues", "low", "--json").records] == [
        "gone"
    ]


def test_workers_fit_eighty_columns(cli: Any, client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("jobq.cli.output.terminal_width", lambda: 80)
    name = "a-host-with-a-long-name.example.com:4711"
    announce(client, name, queues=[f"queue-{n}" for n in range(30)], host="a-host-with-a-long-name")
    running(client, name, "m" * 300)
    assert all(len(line) <= 80 for line in cli("workers").out.splitlines())


def test_hostile_entries_show_as_damaged_and_break_no_verb(
    cli: Any, client: Any, redis: Any
) -> None:
    Queue("low", client).enqueue(CALL % 1, mid="m")
    for raw in HOSTILE:
        redis.delete("jobq:workers", "jobq:running", "jobq:jobs")
        announce(client, "good")
        redis.hset("jobq:workers", mapping={"bad\x1b": raw, b"\xff": raw})
        redis.hset("jobq:running", mapping={"good": raw})
        redis.hset("jobq:jobs", "d", raw)
        ended = cli("workers")
        assert [line.split()[1] for line in ended.out.splitlines()[1:4]] == ["damaged"] * 3
        assert "\x1b" not in ended.out and ended.code == 0
        for verb in ("why m", "status m", "queues"):
            assert cli(*verb.split()).code == 0


@pytest.mark.parametrize("key", ["workers", "running", "jobs"])
def test_key_of_another_type_is_named(cli: Any, client: Any, redis: Any, key: str) -> None:
    Queue("low", client).enqueue(CALL % 1, mid="m")
    announce(client, "w", jobs="d")
    redis.delete(f"jobq:{key}")
    redis.set(f"jobq:{key}", "another type")
    shown = cli("why", "m")
    assert (
        shown.code == 0
        and "can't be read" in shown.err
        and shown.out.startswith("m (queue low, a.b)\n  waiting")
    )
    assert cli("status", "m").code == 0


def test_why_says_what_to_do(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL % 1, mid="m")
    queue.admin.pause()
    assert cli("why", "m").out.splitlines() == [
        "m (queue low, a.b)",
        "  waiting: the queue is paused",
        "      jobq resume low",
        "  waiting: no worker serves queue low",
        "      jobq worker --import a --queues low",
    ]
    [record] = cli("why", "m", "--json").records
    assert [one["code"] for one in record["reasons"]] == ["paused", "no_worker"]
    assert (record["queue"], record["job"], record["state"]) == ("low", "a.b", "queued")


def test_why_of_an_unknown_mid_is_a_no(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"{}")
    ended = cli("why", "none", "--json")
    assert ended.code == 1 and ended.records[0]["queue"] is None
    assert [one["code"] for one in ended.records[0]["reasons"]] == ["not_found"]
    assert cli("why", "none").out.startswith("none\n  it is in no queue")


def test_status_shows_job_worker_and_attempts(cli: Any, queue: Queue, client: Any) -> None:
    queue.enqueue(CALL % 1, mid="m")
    [message] = queue.dequeue().messages
    announce(client, "web-7:4711")
    running(client, "web-7:4711", "m")
    assert "job a.b  worker web-7:4711  running since 2" in cli("status", "m").out
    record = "a.b\x1f1\x1f\x1f1500000\x1f1\x1f1\x1fweb-7:1\x1fTimeout 30 s\x1f\x1f\x1f\x1f\x1fpay.py:7 in charge"
    queue.finish([Ending(mid="m", token=message.token, outcome="retry", backoff=60, record=record)])
    client.command("HDEL", "jobq:running", "web-7:4711")
    first, attempt = cli("status", "m").out.splitlines()
    assert "starts at 2" in first and "last error Timeout 30 s" in first
    assert attempt.startswith("    attempt 1  2") and attempt.endswith(
        "  retry  (Timeout 30 s at pay.py:7 in charge)"
    )
    assert "ran 1.5 s  by web-7:1" in attempt
    [found] = cli("status", "m", "--json").records
    assert (found["job"], found["worker"], found["last_error"]) == (
        "a.b",
        "web-7:1",
        "Timeout 30 s",
    )
    assert [
        (one["attempt"], one["outcome"], one["run_ms"], one["place"]) for one in found["history"]
    ] == [(1, "retry", 1500, "pay.py:7 in charge")]


TRACE = 'Traceback (most recent call last):\n  File "pay.py", line 7, in charge\nTimeout: 30 s'


@pytest.mark.parametrize("word", ["retry", "dead"])
def test_status_and_why_show_the_traceback_of_the_latest_failed_attempt(
    cli: Any, queue: Queue, word: Any
) -> None:
    queue.enqueue(CALL % 1, mid="m")
    [message] = queue.dequeue().messages
    how: dict[str, Any] = {"backoff": 60, "traceback": TRACE}
    if word == "dead":
        how = {"reason": f"Timeout: 30 s (attempt 1 of 1)\n\n{TRACE}"}
    queue.finish([Ending(mid="m", token=message.token, outcome=word, **how)])
    for command in ("status", "why"):
        lines = cli(command, "m").out.splitlines()
        at = lines.index("    attempt 1 failed:")
        assert lines[at + 1 :] == [f"      {line}" for line in TRACE.split("\n")]
        [record] = cli(command, "m", "--json").records
        assert (record["failed_attempt"], record["traceback"]) == (1, TRACE)
        assert "failed_attempt" not in cli(command, "m").out


@pytest.mark.parametrize("command", ["status", "why"])
def test_status_and_why_show_each_attempt_and_the_result_when_a_job_is_done(
    cli: Any, queue: Queue, redis: Any, command: str, monkeypatch: Any
) -> None:
    queue.enqueue(CALL % 1, mid="m")
    for attempt in (1, 2, 3):
        [message] = queue.dequeue().messages
        kind, place = ("pay.Timeout", f"pay.py:{attempt} in charge") if attempt < 3 else ("", "")
        record = attempt_record("a.b", attempt, 0, 0, 0, 0, "web-7:1", kind, place=place)
        how: dict[str, Any] = {"backoff": 0, "outcome": "retry"}
        if attempt == 3:
            how = {"result": b'{"ok":{"who":"Zo\xc3\xab"}}', "result_ttl": 3600}
        queue.finish([Ending(mid="m", token=message.token, record=record, **how)])
    lines = cli(command, "m").out.splitlines()
    assert [line.split("  ")[-1] for line in lines[-4:-1]] == [
        "(pay.Timeout at pay.py:1 in charge)", "(pay.Timeout at pay.py:2 in charge)", "done",
    ]  # fmt: skip
    assert lines[-1].startswith('    result: {"who":"Zoë"}  (stored for another ')
    [record] = cli(command, "m", "--json").records
    assert (record["result"], 0 < record["result_ttl_s"] <= 3600) == ({"who": "Zoë"}, True)
    monkeypatch.setattr(messages, "MAX_ATTEMPTS", 2)
    assert "    1 earlier attempt (shown with --json)" in cli(command, "m").out.splitlines()
    redis.lset(queue.result_key("m"), 0, b"\xff{")
    unread = cli(command, "m")
    assert unread.code == 0 and "    result: can't be read: " in unread.out
    [record] = cli(command, "m", "--json").records
    assert record["result_ttl_s"] is None and "result" in record["unread"]


def test_status_and_why_show_no_traceback_when_none_is_kept(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL % 1, mid="m")
    for command in ("status", "why"):
        assert "failed" not in cli(command, "m").out
        [record] = cli(command, "m", "--json").records
        assert (record["failed_attempt"], record["traceback"]) == (0, "")


@pytest.mark.parametrize("command", ["status", "why"])
def test_status_and_why_take_several_mids(cli: Any, queue: Queue, command: str) -> None:
    for mid in ("a", "b"):
        queue.enqueue(CALL % 1, mid=mid)
    both = cli(command, "a", "b", "--json")
    assert ([record["mid"] for record in both.records], both.code) == (["a", "b"], 0)
    part = cli(command, "none", "b", "--json")
    assert ([record["mid"] for record in part.records], part.code) == (["none", "b"], 1)


def test_queues_show_the_age_of_the_oldest_and_the_rate(cli: Any, queue: Queue) -> None:
    queue.enqueue(CALL % round(time.time() * 1000 - 300_000), mid="m")
    [record] = cli("queues", "--json").records
    assert 300_000 <= record["oldest_ms"] < 900_000 and record["starts_per_s"] is None
    assert cli("queues").out.splitlines()[0].split()[-2:] == ["oldest", "starts/s"]
    assert re.search(r" 5 m 0\d s ", cli("queues").out.splitlines()[1])
    [message] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=message.token, outcome="retry", backoff=0.001)])
    [record] = cli("queues", "--json").records
    assert record["oldest_ms"] is None and record["starts_per_s"] == pytest.approx(1 / 60, abs=1e-3)
    watched = cli("queues", "--watch", "--every", "1ms", "--times", "2", "--json").records
    assert [one["starts_per_s"] > 0 for one in watched] == [True, False]


def verbs(group: click.Group, path: str = "") -> list[tuple[str, click.Command]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        one = group.get_command(click.Context(group), name)
        assert one is not None
        path_of = f"{path} {name}".strip()
        found += verbs(one, path_of) if isinstance(one, click.Group) else [(path_of, one)]
    return found


def test_every_verb_that_prints_facts_takes_json() -> None:
    every = verbs(app)
    assert {"workers", "why", "queues", "dead list", "topic list"} <= {path for path, _ in every}
    without = {path for path, one in every if not any("--json" in p.opts for p in one.params)}
    assert without <= NO_FACTS


@pytest.mark.parametrize(
    "verb",
    ["workers", "queues", "status m", "why m", "queue peek", "dead list", "events tail", "events level",
     "check doctor", "topic list", "rsmq queue list", "ruby queues", "ruby workers"],
)  # fmt: skip
def test_listing_verbs_print_json_lines_alone(
    cli: Any, queue: Queue, client: Any, verb: str
) -> None:
    announce(client, "w")
    queue.admin.events_level("all")
    queue.enqueue(CALL % 1, mid="m")
    ended = cli(*verb.split(), "--json")
    assert ended.code in (0, 1) and isinstance(ended.records, list), ended.err


def test_why_says_that_a_job_of_ruby_waits_in_a_claim(cli, client, queue, redis):
    queue.register()
    for jid in ("a", "b"):
        redis.lpush("app:queue:low", json.dumps({"class": "Mail", "args": [], "jid": jid}))
    place = RubyQueueName("sidekiq", "app", "low")
    claims = Claims(client, place)
    claim = claims.take()
    claims._mark(claim, [0])
    assert cli("why", "b").code == 1
    shown = cli("why", "b", "--sidekiq-namespace", "app")
    assert shown.code == 0
    assert "waiting in a claim: a worker took it from sidekiq app:queue:low" in shown.out
    assert "jobq ruby claims --sidekiq low --sidekiq-namespace app" in shown.out
    assert cli("why", "a", "--sidekiq-namespace", "app").code == 1  # it is now in the queue
    redis.zadd("jobq:intake:{app:queue:low}:claims", {claim.claim_id: 1})
    [record] = cli("why", "b", "--sidekiq-namespace", "app", "--json").records
    assert record["queue"] == "low"
    assert "has been gone for" in record["reasons"][0]["sentence"]


def test_why_says_that_claims_of_ruby_cannot_be_read(cli, queue, redis):
    queue.register()
    redis.set("jobq:intake:{app:queue:low}:claims", "x")
    shown = cli("why", "b", "--sidekiq-namespace", "app")
    assert shown.code == 1
    assert "1 claim of the Ruby intake can't be read: the server refused ZRANGE" in shown.err
