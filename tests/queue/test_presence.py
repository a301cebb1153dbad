"""The entries that workers write about themselves, and how they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.hostile import HOSTILE


def facts(client: Client, ago_ms: int = 0, **more: Any) -> dict[str, Any]:
    seen_at = client.clock_ms() - ago_ms
    return {"seen_at": seen_at, "lease_ms": 15_000, "queues": ["low"], **more}


def test_entry_of_a_worker_is_read_back(client: Client):
    more = {
        "host": "web-7",
        "pid": 7,
        "version": "1.2",
        "slots": 8,
        "quiet": True,
        "jobs": "d",
        "running": 1,
    }
    presence.put_worker(client, "w", facts(client, **more))
    [entry] = presence.workers(client)
    assert {name: getattr(entry, name) for name in more} == more
    assert entry.is_live(client.clock_ms()) and entry.serves("low") and not entry.damaged


def test_entry_of_an_older_worker_has_no_version(client: Client):
    presence.put_worker(client, "old", facts(client, host="web-7", pid=7, children=[8], running=0))
    [entry] = presence.workers(client)
    assert (entry.version, entry.quiet, entry.slots, entry.damaged) == ("", False, 0, False)
    assert presence.served(client) == {"low": 1}


def test_what_runs_and_which_jobs_are_known_are_read_back(client: Client):
    children = [
        ChildEntry(8, "working", 1 << 20, 3, (RunningJob("low", "m", 5),)),
        ChildEntry(9, "idle", 0, 0),
    ]
    presence.put_running(client, "w", children)
    presence.put_jobs(client, ["b", "a"])
    assert presence.running(client, ["w", "other"]) == {"w": tuple(children)}
    digest = presence.digest_of(["a", "b"])
    assert presence.job_names(client, [digest, "gone", ""]) == {digest: {"a", "b"}, "gone": None}


def test_of_many_running_jobs_those_that_run_longest_are_kept(client: Client):
    many = tuple(RunningJob("low", f"m{n}", 10_000 - n) for n in range(presence.MAX_RUNNING + 50))
    presence.put_running(client, "w", [ChildEntry(1, "working", 0, 0, many)])
    [child] = presence.running(client, ["w"])["w"] or ()
    assert set(child.running) == set(many[50:])


def test_what_dead_workers_left_is_removed(client: Client, redis: Any):
    hour = presence.KEPT_MS + 3 * 15_000
    ages = {"live": 0, "dead": hour // 2, "long": hour + 60_000}
    for name, ago_ms in ages.items():
        presence.put_worker(client, name, facts(client, ago_ms, jobs=presence.digest_of([name])))
        presence.put_running(client, name, [])
        presence.put_jobs(client, [name])
    redis.hset("jobq:running", "nobody", "[]")
    redis.hset("jobq:workers", "odd", "rubbish")
    presence.remove_stale(client)
    assert [entry.name for entry in presence.workers(client)] == ["dead", "live", "odd"]
    assert redis.hkeys("jobq:running") == [b"live"]
    presence.remove_stale(client)
    assert set(redis.hkeys("jobq:jobs")) == {
        presence.digest_of([name]).encode() for name in ("live", "dead")
    }
    presence.put_worker(client, "twin", facts(client, jobs=presence.digest_of(["live"])))
    presence.forget_worker(client, "live")
    assert not redis.exists("jobq:running") and redis.hlen("jobq:jobs") == 2
    presence.forget_worker(client, "twin")
    assert redis.hkeys("jobq:jobs") == [presence.digest_of(["dead"]).encode()]


def test_few_of_many_workers_read_all_entries_to_clean_up(client: Client, redis: Any):
    names = presence.digest_of(["a"])
    for number in range(2 * presence.MAX_CLEANERS):
        presence.put_worker(client, f"w{number}", facts(client, jobs=names))
        presence.put_jobs(client, ["a"])
    assert presence.should_clean(client, 0.49) and not presence.should_clean(client, 0.51)
    redis.config_resetstat()
    presence.forget_worker(client, "w0")
    assert "cmdstat_hgetall" not in redis.info("commandstats")
    for number in range(1, presence.MAX_CLEANERS + 1):
        redis.hdel("jobq:workers", f"w{number}")
    assert presence.should_clean(client, 0.99)
    for number in range(presence.MAX_CLEANERS + 1, 2 * presence.MAX_CLEANERS):
        assert redis.hkeys("jobq:jobs") == [names.encode()]
        presence.forget_worker(client, f"w{number}")
    assert not redis.exists("jobq:jobs", "jobq:workers")


def test_hostile_entries_are_damaged_or_read_as_text(queue: Queue, client: Client, redis: Any):
    digest = presence.digest_of(["a"])
    good = facts(client, host="\ud800", version=[], pid=True, slots=-1, queues=["low", 7, None])
    for raw in [*HOSTILE, b"[]", b"{}", b"null", json.dumps(good).encode(), b"[" * 100_000]:
        for key in ("workers", "running", "jobs"):
            redis.delete(f"jobq:{key}")
            redis.hset(f"jobq:{key}", mapping={b"w": raw, b"\xff": raw, digest: raw})
        for entry in presence.workers(client):
            entry.host.encode()
            assert isinstance(entry.is_live(client.clock_ms()), bool)
        presence.served(client)
        presence.running(client, ["w", "x", digest])
        assert presence.job_names(client, ["w", digest]).keys() == {"w", digest}
        presence.remove_stale(client)


@pytest.mark.parametrize(
    "child",
    [
        7, {}, {"running": []}, {"pid": 1, "rss": 0, "ended": 0, "running": [["q", "m"]]},
        {"pid": 1, "rss": 0, "ended": 0, "running": [["q", "m", 1e300]]},
        {"pid": 10**30, "rss": 0, "ended": 0, "running": []},
    ],
)  # fmt: skip
def test_child_of_another_form_makes_the_entry_damaged(client: Client, redis: Any, child: Any):
    redis.hset("jobq:running", "w", json.dumps([child]))
    assert presence.running(client, ["w"]) == {"w": None}


def test_sample_names_what_waits_at_the_head(queue: Queue, redis: Any, at: Any):
    assert queue.admin.sample()[1:] == (0, 0, None, 0, 0, 0, 0, 0, 0, False, False)
    queue.enqueue_many([(f"m{n}", b"c%d" % n) for n in range(3)], now=at(0))
    queue.cancel("m0", now=at(0))
    head = queue.admin.sample().head
    assert head == ("m1", 0, b"c1") and "c1" not in repr(head)
    [message] = queue.dequeue(now=at(0)).messages
    queue.finish([Ending(mid="m1", token=message.token, outcome="retry", backoff=0.001)], now=at(1))
    queue.cancel("m2", now=at(1))
    queue.admin.collect(now=at(2_000))
    sample = queue.admin.sample()
    assert sample.head == ("m1", 1, b"c1") and sample.counts == queue.admin.counts()
    assert (sample.fence, sample.added) == (1, redis.xlen(f"{queue.prefix}events"))
    queue.enqueue(b"x" * 4_097, mid="m1", on_conflict="replace", now=at(2_000))
    assert queue.admin.sample().head == ("m1", 1, b"")


def test_sample_of_a_damaged_queue_has_what_can_be_read(queue: Queue, redis: Any):
    queue.enqueue(b"v", mid="m")
    redis.set(f"{queue.prefix}events", "no stream")
    redis.hset(f"{queue.prefix}nattempts", "m", "nan")
    redis.hset(f"{queue.prefix}meta", "fence", "bogus")
    redis.lpush(f"{queue.prefix}ready", "x" * 600, b"\xff")
    sample = queue.admin.sample()
    assert sample[1:] == (0, 0, ("\\xff", 0, b""), 0, 0, 0, 0, 0, 0, False, False)


def test_what_jobs_hide_stays_and_what_cannot_be_read_hides_everything(client: Client, redis: Any):
    presence.put_redactions(client, {"a": ["pin", "0"], "b": []}, may_replace=True)
    presence.put_redactions(client, {"a": ["other"], "c": ["*"]}, may_replace=False)
    redis.hset("jobq:redact", mapping={"d": "\xff", "e": '{"pin":1}', "f": "[1]"})

    found = presence.redactions(client, [*"abcdefg", "a"])

    everything = dict.fromkeys("def", (presence.EVERYTHING,))
    assert found == {"a": ("pin", "0"), "b": (), "c": ("*",), **everything}
    presence.put_redactions(client, {"a": ["other"]}, may_replace=True)
    assert presence.redactions(client, ["a"]) == {"a": ("other",)}


def test_name_of_a_live_worker_is_not_claimed_and_that_of_a_dead_one_is(client: Client):
    assert presence.claim_name(client, "web", facts(client, host="a", pid=1)) is None
    other = presence.claim_name(client, "web", facts(client, host="b", pid=2))
    assert other is not None and (other.host, other.pid) == ("a", 1)
    presence.put_worker(client, "web", facts(client, presence.KEPT_MS))
    assert presence.claim_name(client, "web", facts(client, host="b", pid=2)) is None


def test_workers_of_one_name_are_found_by_it(client: Client):
    for name, ago_ms in (("web", 0), ("web#1a2b", 0), ("web#dead", presence.KEPT_MS), ("web2", 0)):
        presence.put_worker(client, name, facts(client, ago_ms))
    assert list(presence.workers_named(client, ["web"])) == ["web", "web#1a2b"]
    assert list(presence.workers_named(client, ["web#1a2b", "nobody"])) == ["web#1a2b"]
    presence.put_worker(client, "web", facts(client, presence.KEPT_MS))
    assert list(presence.workers_named(client, ["web"])) == ["web#1a2b"]
