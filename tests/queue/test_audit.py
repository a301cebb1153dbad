"""The audit against queues whose messages end, wait, vanish, and whose events are trimmed."""

from __future__ import annotations

import random
import threading
import time

import pytest

from jobq.cli import main
from jobq.client.connection import connect
from jobq.client.functions import load_library
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.events import Event, in_utc
from jobq.queue.audit import Audit, Tally, server_ms
from jobq.queue.queue import Queue
from jobq.queue.roles import rights
from jobq.queue.types import Ending, Lease, Message


@pytest.fixture
def recorded(queue):
    """The queue, at level all."""
    queue.admin.events_level("all")
    time.sleep(0.003)
    return queue


def run(queue, count, outcome="done", **more):
    """Hand out and end that many."""
    held = queue.dequeue(count).messages
    assert len(held) == count
    queue.finish([Ending(mid=m.mid, token=m.token, outcome=outcome, **more) for m in held])


def figures(result):
    return (result.accepted, result.finished, result.duplicates, result.lost)


def balanced(result):
    ended = result.finished + result.superseded + result.live + result.lost
    return result.accepted == ended


def test_all_that_ended_is_finished_however_it_did(recorded):
    recorded.enqueue_many([b"v"] * 10)
    run(recorded, 4)
    run(recorded, 1, "dead", reason="no use")
    run(recorded, 1, "retry", backoff=60)
    cancelled = recorded.enqueue(b"v").mid
    recorded.cancel(cancelled)
    result = Audit(recorded).result()
    assert figures(result) == (11, 6, 0, 0)
    assert (result.live, result.earlier) == (5, 0)
    assert balanced(result)
    recorded.admin.clear()
    assert figures(Audit(recorded).result()) == (11, 11, 0, 0)


def test_run_cut_short_is_a_duplicate_once_it_goes_on(recorded):
    recorded.enqueue(b"v", mid="m")
    run(recorded, 1, "crashed", reason="signal 9")
    run(recorded, 1)
    assert figures(Audit(recorded).result()) == (1, 1, 1, 0)


def test_what_the_server_lost_is_named(recorded, redis):
    recorded.enqueue_many([("a", b"v"), ("b", b"v"), ("c", b"v")])
    redis.hdel("jobq:{low}:messages", "b")
    redis.lrem("jobq:{low}:ready", 0, "b")
    result = Audit(recorded).result()
    assert figures(result) == (3, 0, 0, 1)
    assert result.lost_mids == ["b"]
    recorded.enqueue(b"v", mid="b")
    again = Audit(recorded).result()
    assert figures(again) == (4, 0, 0, 1), "taken anew, the first one stays lost"
    assert balanced(again)


def test_newer_content_is_an_acceptance_of_its_own(recorded):
    recorded.enqueue(b"v", mid="m")
    [held] = recorded.dequeue().messages
    for content in (b"w", b"x"):
        recorded.enqueue(content, mid="m", on_conflict="requeue")
    recorded.finish([Ending(mid="m", token=held.token)])
    middle = Audit(recorded).result()
    assert (figures(middle), middle.live, middle.superseded) == ((3, 1, 0, 0), 1, 1)
    recorded.enqueue(b"y", mid="m", on_conflict="replace")
    run(recorded, 1)
    result = Audit(recorded).result()
    assert figures(result) == (3, 2, 0, 0)
    assert balanced(result)


def test_retry_with_newer_content_waiting_is_superseded(recorded):
    recorded.enqueue(b"v", mid="m")
    [held] = recorded.dequeue().messages
    recorded.enqueue(b"w", mid="m", on_conflict="requeue")
    recorded.finish([Ending(mid="m", token=held.token, outcome="retry")])
    run(recorded, 1)
    result = Audit(recorded).result()
    assert (figures(result), result.superseded) == ((2, 1, 0, 0), 1)


def test_revived_counts_again(recorded):
    recorded.enqueue(b"v", mid="m")
    run(recorded, 1, "dead", reason="no use")
    recorded.admin.revive(recorded.admin.dead()[0].dead_id)
    run(recorded, 1)
    assert figures(Audit(recorded).result()) == (2, 2, 0, 0)


def test_range_counts_acceptances_within_whenever_they_end(recorded):
    recorded.enqueue(b"v")
    time.sleep(0.005)
    since = server_ms(recorded)
    recorded.enqueue_many([b"v"] * 2)
    until = server_ms(recorded)
    time.sleep(0.005)
    recorded.enqueue_many([b"v"] * 4)
    run(recorded, 7)
    result = Audit(recorded, since, until).result()
    assert figures(result) == (2, 2, 0, 0)
    assert result.earlier == 1
    assert (result.since_ms, result.until_ms) == (since, until)


def test_level_must_be_all_since_before_the_range(queue, recorded):
    with pytest.raises(ConfigError, match="'all' only since"):
        Audit(queue, server_ms(queue) - 60_000)
    running = Audit(queue)
    queue.admin.events_level("attempts")
    with pytest.raises(ConfigError, match="jobq events level all --queues low"):
        Audit(queue)
    with pytest.raises(ConfigError, match="aren't recorded"):
        running.result()
    time.sleep(0.003)
    queue.admin.events_level("all")
    with pytest.raises(ConfigError, match="changed during the audit"):
        running.result()


def test_level_all_again_keeps_its_start(recorded, redis):
    since = redis.hget("jobq:{low}:meta", "all_since")
    time.sleep(0.003)
    recorded.admin.events_level("all")
    assert redis.hget("jobq:{low}:meta", "all_since") == since


def test_entries_trimmed_unread_are_refused_and_a_later_start_works(recorded, redis):
    recorded.enqueue_many([b"v"] * 5)
    time.sleep(0.005)
    since = server_ms(recorded)
    time.sleep(0.005)
    recorded.enqueue_many([b"v"] * 3)
    redis.xtrim("jobq:{low}:events", maxlen=3, approximate=False)
    with pytest.raises(ConfigError, match=r"trimmed before they were read.*--since.*--for 10m"):
        Audit(recorded).result()
    with pytest.raises(ConfigError, match="trimmed"):
        Audit(recorded, since).result()
    time.sleep(0.005)
    later = server_ms(recorded)
    recorded.enqueue(b"v")
    assert figures(Audit(recorded, later).result()) == (1, 0, 0, 0)
    redis.execute_command("XTRIM", "jobq:{low}:events", "MAXLEN", 0)
    with pytest.raises(ConfigError, match="trimmed"):
        Audit(recorded, later).result()


def test_reading_along_may_be_trimmed_behind_it(recorded, redis):
    audit = Audit(recorded)
    for _ in range(3):
        recorded.enqueue_many([b"v"] * 1_500)
        run(recorded, 1_000)
        audit.read_events()
        redis.xtrim("jobq:{low}:events", maxlen=1, approximate=False)
    result = audit.result()
    assert figures(result) == (4_500, 3_000, 0, 0)
    assert result.live == 1_500


def test_ending_twice_is_a_duplicate():
    tally = Tally()
    for kind in ("enqueued", "done", "done"):
        tally.take(1, Event(kind, "m", 1, error="added" if kind == "enqueued" else ""))
    assert tally.figures([])["duplicates"] == 1


def test_release_lets_newer_content_start_and_supersedes_what_never_ran(recorded):
    recorded.enqueue(b"v", mid="m")
    [held] = recorded.dequeue().messages
    recorded.enqueue(b"w", mid="m", on_conflict="requeue")
    recorded.release([Lease("m", held.token)])
    run(recorded, 1)
    result = Audit(recorded).result()
    assert (figures(result), result.superseded) == ((2, 1, 0, 0), 1)


def test_content_that_waits_for_a_dedupe_backoff_is_superseded_by_newer(recorded):
    recorded.enqueue(b"v", mid="m", until=60)
    run(recorded, 1)
    for content in (b"w", b"x"):
        assert recorded.enqueue(content, mid="m", on_conflict="requeue").action == "requeued"
    held = recorded.dequeue(now=server_ms(recorded) + 60_000).messages
    recorded.finish([Ending(mid="m", token=held[0].token)])
    result = Audit(recorded).result()
    assert (figures(result), result.superseded) == ((3, 2, 0, 0), 1)


def test_content_enqueued_over_an_expired_lock_cuts_a_run_short(recorded):
    recorded.enqueue(b"v", mid="m")
    assert recorded.dequeue(lease=0.001).messages
    time.sleep(0.005)
    assert recorded.enqueue(b"w", mid="m", on_conflict="replace").action == "updated"
    run(recorded, 1)
    assert figures(Audit(recorded).result()) == (1, 1, 1, 0)


#: Less than the minute by which a clock's step back is absorbed.
LEASE_MS = 30_000


class Chance:
    """Does to a queue what producers, workers and operators do, by a seed."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue, self.random = queue, random.Random(seed)
        self.held: list[Message] = []

    def step(self) -> None:
        """One of them."""
        acts = (
            self.accept,
            self.accept,
            self.take,
            self.take,
            self.end,
            self.end,
            self.end,
            self.rest,
        )
        self.random.choice(acts)()

    def accept(self) -> None:
        how = self.random.choice(({}, {"on_conflict": "replace"}, {"on_conflict": "requeue"}))
        waits = self.random.choice(({}, {}, {"until": 0.003}, {"delay": 0.002}))
        self.queue.enqueue(b"v", mid=self.random.choice("abc"), **how, **waits)

    def take(self) -> None:
        lease_ms = self.random.choice((1, LEASE_MS))
        self.held += self.queue.dequeue(2, lease=lease_ms / 1000, crash_limit=3).messages

    def end(self) -> None:
        if not self.held:
            return
        one = self.held.pop(self.random.randrange(len(self.held)))
        outcome = self.random.choice(
            ("done", "done", "retry", "dead", "crashed", "snooze", "release")
        )
        ending = Ending(mid=one.mid, token=one.token, outcome=outcome, reason="why")
        self.queue.finish([ending], crash_limit=3)

    def rest(self) -> None:
        act = self.random.choice(("collect", "cancel", "revive", "wait", "clear"))
        if act == "collect":
            self.queue.admin.collect(crash_limit=3)
        elif act == "cancel":
            self.queue.cancel(self.random.choice("abc"))
        elif act == "revive":
            self.queue.admin.revive(*(one.dead_id for one in self.queue.admin.dead()))
        elif act == "wait":
            time.sleep(0.002)
        elif self.random.random() < 0.1:
            self.queue.admin.clear()


@pytest.mark.parametrize("seed", range(40))
def test_figures_add_up_and_nothing_is_lost_whatever_is_done_to_a_queue(recorded, seed):
    chance = Chance(recorded, seed)
    for _ in range(60):
        chance.step()
    halfway = Audit(recorded).result()
    assert (halfway.lost_mids, halfway.earlier, balanced(halfway)) == ([], 0, True)
    while recorded.admin.counts().messages:
        chance.take()
        chance.end()
        # A cancelled mid is taken until its lock would have ended.
        recorded.admin.collect(crash_limit=3, now=server_ms(recorded) + LEASE_MS)
    result = Audit(recorded).result()
    assert (result.lost_mids, result.live, balanced(result)) == ([], 0, True)


@pytest.mark.parametrize("seed", range(5))
def test_what_vanishes_amid_it_all_is_lost(recorded, redis, seed):
    chance = Chance(recorded, seed)
    for _ in range(60):
        chance.step()
    before = Audit(recorded).result()
    recorded.enqueue(b"v", mid="z")
    for name in redis.keys("jobq:{low}:*"):
        if not name.endswith((b":meta", b":events")):
            redis.delete(name)
    result = Audit(recorded).result()
    assert (result.lost, balanced(result)) == (before.live + 1, True)
    assert "z" in result.lost_mids


def test_dashboard_user_of_jobq_acl_may_audit(recorded, redis, server):
    recorded.enqueue(b"v")
    load_library(recorded.client)
    redis.execute_command("ACL", "SETUSER", "looks", "on", ">p", *rights("dashboard"))
    url = server.url.replace("unix://", "unix://looks:p@")
    client = connect(settings=ServerSettings(url=url, functions=True))
    assert figures(Audit(Queue("low", client)).result()) == (1, 0, 0, 0)
    with pytest.raises(ConfigError, match="level is 'attempts'"):
        Audit(Queue("high", client))
    client.close()
    redis.execute_command("ACL", "DELUSER", "looks")


def test_verb_says_it_in_a_line_and_fails_for_losses(recorded, redis, server, capsys):
    recorded.enqueue_many([("a", b"v"), ("b", b"v")])
    run(recorded, 1)
    given = ("check", "audit", "--url", server.url, "low")
    assert main(given) == 0
    said = capsys.readouterr().out
    assert said == "low: 2 accepted, 1 finished, 0 duplicates, 0 lost (1 waiting or running)\n"
    redis.delete("jobq:{low}:messages")
    assert main((*given, "--since", in_utc(server_ms(recorded) - 60_000))) == 2
    assert "only since" in capsys.readouterr().err
    assert main(given) == 1
    assert "  lost: b\n" in capsys.readouterr().out
    assert main((*given, "--for", "1s", "--since", "5m")) == 2
    assert main((*given, "--since", "2026-11-21T07:00:00")) == 2
    assert "no time zone" in capsys.readouterr().err
    assert main((*given, "--since", "yesterday")) == 2


def test_verb_follows_from_its_start_for_as_long_as_it_is_told(recorded, redis, server, capsys):
    recorded.enqueue(b"v")
    redis.config_resetstat()

    def work():
        while "cmdstat_xrange" not in redis.info("commandstats"):
            time.sleep(0.01)
        recorded.enqueue_many([b"v"] * 3)

    worker = threading.Thread(target=work)
    worker.start()
    assert main(("check", "audit", "--url", server.url, "low", "--for", "3s")) == 0
    worker.join()
    told = "low: 3 accepted, 0 finished, 0 duplicates, 0 lost (3 waiting or running)\n"
    assert capsys.readouterr().out == told


HOSTILE = (
    "1", "done\x1fm\x1f5\x1fapp.x\x1f1\x1f\x1f10\x1f-1",
    "1", "done\x1fm\x1f-5",
    "1", "done\x1fm\x1f99999999999999999999",
    "1", "done\x1fm",
    "1", "done\x1fm\x1f5\x1fapp.x\x1f1.5",
    "1", "done\x1fm\x1f5\x1fapp.x\x1fNaN",
    "2", "done\x1fm\x1f5",
    "1", b"done\x1f\xff\x1f5",
    "1", "done\x1f" + "x" * 70_000 + "\x1f5",
    "1", "done\x1f\x1f5",
    "1", "done" + "\x1f" * 40,
    "1", "",
    "", "",
)  # fmt: skip


@pytest.mark.parametrize(
    ("version", "value"),
    list(zip(HOSTILE[::2], HOSTILE[1::2], strict=True)),
    ids=lambda one: repr(one)[:40],
)
def test_record_that_cannot_be_read_is_counted_and_the_others_are_audited(recorded, version, value):
    recorded.enqueue_many([("a", b"v"), ("b", b"v")])
    recorded.client.command("XADD", f"{recorded.prefix}events", "*", version, value)
    run(recorded, 1)
    result = Audit(recorded).result()
    assert (figures(result), result.live, result.unreadable) == ((2, 1, 0, 0), 1, 1)


def test_message_is_not_lost_when_one_column_of_its_ending_is_bad(recorded, redis):
    recorded.enqueue(b"v", mid="a")
    for name in ("messages", "ready"):
        redis.delete(f"{recorded.prefix}{name}")
    value = f"done\x1fa\x1f{server_ms(recorded)}\x1fapp.x\x1f1\x1f\x1f10\x1f-7"
    recorded.client.command("XADD", f"{recorded.prefix}events", "*", "1", value)
    result = Audit(recorded).result()
    assert (figures(result), result.unreadable) == ((1, 1, 0, 0), 1)


@pytest.mark.parametrize("place", ["ready", "mid-circle", "due"])
def test_message_that_is_in_no_place_is_lost(recorded, redis, place):
    recorded.enqueue_many([(f"m{n}", b"v") for n in range(5)])
    if place == "due":
        recorded.enqueue(b"v", mid="late", delay=3_600)
        redis.zrem(f"{recorded.prefix}due", "late")
    elif place == "ready":
        recorded.enqueue(b"v", mid="late")
        redis.lrem(f"{recorded.prefix}ready", 0, "late")
    else:
        run(recorded, 1, "retry", backoff=0.001)
        recorded.enqueue(b"v", mid="late")
        assert "late" in {message.mid for message in recorded.dequeue(5).messages}
        redis.lrem(f"{recorded.prefix}mid-circle", 0, "late")
    result = Audit(recorded).result()
    assert (figures(result), result.lost_mids) == ((6, 0, 0, 1), ["late"])
    assert (result.live, balanced(result)) == (5, True)


def test_range_is_counted_by_the_clock_and_says_so_when_that_was_set_back(recorded):
    recorded.enqueue_many([b"v"] * 13)
    ahead = server_ms(recorded) + 3_600_000
    # The ids of a stream never go back, so all later ids are an hour ahead.
    recorded.client.command(
        "XADD", f"{recorded.prefix}events", f"{ahead}-0", "1", f"new\x1f\x1f{ahead}"
    )
    assert recorded.dequeue(now=ahead).messages
    recorded.enqueue_many([b"v"] * 30)
    run(recorded, 1)
    result = Audit(recorded, until_ms=server_ms(recorded)).result()
    assert (figures(result), result.clock_jumps) == ((43, 1, 0, 0), 1)
    assert Audit(recorded, until_ms=recorded_since(recorded)).result().clock_jumps == 0
    along = Audit(recorded, following=True)
    recorded.enqueue_many([b"v"] * 2)
    assert figures(along.result()) == (2, 0, 0, 0)


@pytest.mark.parametrize("following", [True, False])
def test_stream_to_which_nothing_can_be_appended_is_refused(recorded, redis, following):
    recorded.enqueue(b"v")
    key = f"{recorded.prefix}events"
    for entry_id in ("253402300800000-5", "18446744073709551614-0"):
        redis.xadd(key, {"1": "new\x1f\x1f5"}, id=entry_id)
        recorded.enqueue(b"v")
    assert figures(Audit(recorded).result()) == (3, 0, 0, 0)
    redis.xadd(key, {"1": "new\x1f\x1f5"}, id="18446744073709551615-18446744073709551615")
    with pytest.raises(ConfigError, match="so no event can be added; run jobq check fsck --repair"):
        Audit(recorded, following=following).result()


def recorded_since(queue):
    return int(queue.client.command("HGET", f"{queue.prefix}meta", "all_since"))


def test_verb_tells_a_clock_that_was_set_back_and_records_it_could_not_read(
    recorded, server, capsys
):
    recorded.enqueue_many([b"v"] * 2)
    assert recorded.dequeue(now=server_ms(recorded) + 3_600_000).messages
    run(recorded, 1)
    recorded.client.command("XADD", f"{recorded.prefix}events", "*", "9", "x")
    assert main(("check", "audit", "--url", server.url, "low")) == 0
    said = capsys.readouterr()
    assert "2 accepted" in said.out and "1 unreadable records" in said.out
    assert "low: the server's clock was set back in the range (clock_jump events: 1)" in said.err


def test_verb_audits_the_other_queues_when_the_keys_of_some_are_damaged(
    recorded, redis, server, capsys
):
    recorded.enqueue(b"v")
    redis.sadd("jobq:queues", b"\xff", "{}", "a", "b", "c", "d", "e")
    redis.set("jobq:{a}:meta", "x")
    redis.hset("jobq:{b}:meta", "all_since", b"\xff")
    redis.hset("jobq:{c}:meta", mapping={"all_since": "1" * 60, "events": b"\xff"})
    redis.hset("jobq:{d}:meta", "all_since", 1)
    redis.set("jobq:{d}:events", "x")
    redis.hset("jobq:{e}:meta", "events", b"\xff\n")
    redis.zadd("jobq:{low}:dead", {b"\xff": 1, "no#record": float("inf")})
    assert main(("check", "audit", "--url", server.url)) != 0
    said = capsys.readouterr()
    assert said.out == "low: 1 accepted, 0 finished, 0 duplicates, 0 lost (1 waiting or running)\n"
    skipped, *told = [line.split(":")[1] for line in said.err.splitlines()]
    assert skipped.startswith(" 2 entries on the list of queues"), said.err
    assert told == [f" queue {name}" for name in "abced"], said.err
