"""The audit of history: by SQL what the tally says, event by event."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from msgspec import structs

from jobq.cli import main
from jobq.client.names import base_of
from jobq.errors import ConfigError
from jobq.events import Event
from jobq.pipeline.lake.audit import LakeAudit
from jobq.pipeline.lake.commit import Loss, losses
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import read
from jobq.queue.audit import LIVE, Audit, Tally
from jobq.queue.types import Ending

START = 1_763_700_000_000
KINDS = ("enqueued",) * 5 + ("done",) * 4 + (
    "retry", "dead", "crashed", "snoozed", "recovered", "cancelled", "revived", "superseded", "expired",
)  # fmt: skip
ACTIONS = ("added", "added", "updated", "requeued", "requeued")
SCHEMA = (
    "queue STRING, base_queue STRING, kind STRING, mid STRING, error STRING, enqueued_at TIMESTAMP, "
    "finished_at TIMESTAMP, entry_at TIMESTAMP, entry_seq INT"
)


def row(queue, at, seq, kind, mid=None, error=None, enqueued_at=None, entry_at=None):
    def moment(ms):
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)

    return (
        queue,
        base_of(queue),
        kind,
        mid,
        error,
        moment(enqueued_at),
        moment(at),
        moment(entry_at or at),
        seq,
    )


def stories(queue, *events):
    """A history of one event a second: (kind, mid) or (kind, mid, action)."""
    rows = []
    for second, (kind, mid, *action) in enumerate(events):
        error = action[0] if action else "added" if kind == "enqueued" else None
        rows.append(row(queue, START + 1000 * second, 0, kind, mid, error))
    return rows


def tallied(rows, until_ms):
    tally = Tally(until_ms)
    for _, _, kind, mid, error, _, _, at, _ in rows:
        at_ms = round(at.timestamp() * 1000)
        tally.take(at_ms, Event(kind, mid or "", at_ms, error=error or ""))
    return tally.figures([])


def any_history(queue, seed):
    """Records that the scripts could write, and impossible records, by a seed."""
    chance = random.Random(seed)
    rows, at, seq = [], START, 0
    for _ in range(120):
        step = chance.choice((0, 0, 1, 50))
        at, seq = (at + step, 0) if step else (at, seq + 1)
        if chance.random() < 0.02:
            rows.append(row(queue, at, seq, "cleared"))
            continue
        kind, mid = chance.choice(KINDS), chance.choice("abcde")
        error = chance.choice(ACTIONS) if kind == "enqueued" else None
        rows.append(row(queue, at, seq, kind, mid, error))
    return rows


#: By queue. One lake has them all, so that one session covers all in few runs.
HISTORIES = {
    **{f"q{seed:02}": any_history(f"q{seed:02}", seed) for seed in range(60)},
    **{
        queue: stories(
            queue, ("enqueued", "a"), ("enqueued", "b"), ("done", "a"), ("enqueued", "b"),
            ("crashed", "b"), ("done", "b"), ("enqueued", "c"), ("done", "c"), ("done", "c"), ("enqueued", "d"),
        ) for queue in ("lossy", "living")
    },
    "ten": stories("ten", *(("enqueued", f"m{n}") for n in range(10))),
    "late": stories("late", ("done", "a"), ("done", "b"), ("enqueued", "c"), ("done", "c")),
    "attempts": stories("attempts", ("done", "a")),
    "back": [
        row("back", START, 0, "enqueued", "a"),
        row("back", START + 60_000, 0, "enqueued", "b"),
        row("back", START + 1_000, 1, "clock_jump", error="59000", entry_at=START + 60_000),
        row("back", START + 2_000, 2, "enqueued", "c", entry_at=START + 60_000),
        row("back", START + 9_000, 3, "done", "c", entry_at=START + 60_000),
    ],
    "gaps": [
        *stories("gaps", ("enqueued", "a")),
        row("gaps", START + 200_000, 0, "done", "b", enqueued_at=START + 100_000),
        row("gaps", START + 200_001, 0, "done", "c", enqueued_at=START - 100_000),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def audit(spark):
    """The audit of all histories, their events in no order."""
    rows = [one for history in HISTORIES.values() for one in history]
    events = spark.createDataFrame(random.Random(1).sample(rows, len(rows)), SCHEMA).cache()
    yield LakeAudit(spark, events)
    events.unpersist()


def test_sql_says_what_the_tally_says_of_any_history(audit):
    queues = [queue for queue in HISTORIES if queue.startswith("q")]
    until = START + 1_500
    found = audit.audit(START, until, queues)
    assert [one.queue for one in found] == sorted(queues)
    for one in found:
        wanted = tallied(HISTORIES[one.queue], until)
        wanted["lost_mids"] = sorted(set(wanted["lost_mids"]))
        told = {name: getattr(one, name) for name in wanted} | {"live": one.open}
        assert told == wanted, one.queue
        assert one.accepted == one.finished + one.superseded + one.open + one.lost


def test_losses_and_duplicates_are_counted_named_and_balanced(audit):
    found = {one.queue: one for one in audit.audit(None, None)}
    assert set(found) == set(HISTORIES) - {"attempts"}, "of which enqueues are on record"
    one = found["lossy"]
    assert (one.accepted, one.finished, one.duplicates, one.lost, one.open) == (5, 3, 2, 1, 1)
    assert one.lost_mids == ["b"]
    assert one.notes == []
    living, lossy = audit.audit(
        None, None, ["lossy", "living"], lives=lambda queue, mid: (queue, mid) == ("living", "d")
    )
    assert (lossy.lost, lossy.open, lossy.live, lossy.lost_mids) == (2, 0, 0, ["b", "d"])
    assert (living.lost, living.open, living.live) == (1, 0, 1)


def test_range_begins_within_and_other_queues_are_left_out(audit):
    [one] = audit.audit(START + 2_000, START + 6_000, ["ten"])
    assert (one.accepted, one.open) == (5, 5)
    with pytest.raises(ConfigError, match="did you mean 'ten'"):
        audit.audit(None, None, ["tne"])


def test_range_is_counted_by_the_clock_and_says_so_when_that_was_set_back(audit):
    for until, accepted, jumps in ((START + 2_000, 2, 1), (START + 500, 1, 0), (None, 3, 1)):
        [one] = audit.audit(START, until, ["back"])
        assert (one.accepted, one.clock_jumps) == (accepted, jumps)


def test_what_the_figures_leave_out_is_said(audit):
    """Enqueues before the level recorded them, and unrecorded enqueues within the range."""
    gaps, late = audit.audit(START, None, ["late", "gaps"])
    assert "only since 2025-11-21T04:40:02.000Z" in late.notes[0]
    assert (gaps.earlier, gaps.unrecorded) == (2, 1)
    assert "without a recorded enqueue" in gaps.notes[0]
    with pytest.raises(ConfigError, match="jobq events level all --queues attempts"):
        audit.audit(None, None, ["attempts"])


def test_losses_of_the_ingest_are_said(audit):
    missed = [Loss("late", 1_234, START, START + 5_000), Loss("other", 1, 0, START)]
    [one] = audit.audit(START + 2_000, None, ["late"], losses=missed)
    assert len(one.notes) == 1
    assert "missed 1,234 events" in one.notes[0]


def test_lake_alone_says_what_the_live_queue_says(
    spark, valkey_queue, valkey_redis, tmp_path, monkeypatch
):
    """A real history, with retries, deaths, a crash, newer content and a message that the server loses."""
    queue = valkey_queue
    queue.admin.events_level("all")
    time.sleep(0.003)
    lived(queue, valkey_redis)
    live = Audit(queue).result()
    assert min(live.finished, live.duplicates, live.lost, live.live, live.superseded) >= 1, live
    monkeypatch.setenv("JOBQ_URL", queue.client.url)
    path = str(tmp_path / "lake")
    assert (
        main(["lake", "ingest", "--lake", path, "--once", "--engine", "local", "--rollup", "0"])
        == 0
    )
    audit = LakeAudit(spark, read(spark, Lake.open(path), "events"))

    def lives(name, mid):
        return queue.status(mid).word in LIVE

    [one] = audit.audit(live.since_ms, live.until_ms, ["low"])
    assert one.open == live.live + live.lost
    [asked] = audit.audit(live.since_ms, live.until_ms, ["low"], lives, losses(Lake.open(path)))
    figures = asdict(live)
    assert {name: getattr(asked, name) for name in figures} == figures
    assert (asked.open, asked.notes) == (0, [])


def lived(queue, redis):
    """Something of everything."""
    queue.enqueue_many([(f"m{n}", b"v") for n in range(40)])
    held = queue.dequeue(30).messages
    outcomes = ["done"] * 15 + ["retry"] * 3 + ["dead"] * 4 + ["crashed"] * 3 + ["snooze"] * 2
    for message, outcome in zip(held, outcomes):
        ending = Ending(
            mid=message.mid, token=message.token, outcome=outcome, reason="why", backoff=0.001
        )
        queue.finish(
            [
                ending
                if outcome not in ("dead", "crashed")
                else structs.replace(ending, backoff=None)
            ]
        )
    queue.enqueue(b"w", mid=held[-1].mid, on_conflict="requeue")
    queue.finish([Ending(mid=held[-1].mid, token=held[-1].token, outcome="retry", backoff=0.001)])
    queue.admin.revive(queue.admin.dead()[0].dead_id)
    queue.cancel("m39")
    while queue.admin.counts().ready > 3:
        message = queue.dequeue(1).messages[0]
        queue.finish([Ending(mid=message.mid, token=message.token)])
    gone = queue.admin.content("ready").entries[0].mid
    redis.hdel("jobq:{low}:messages", gone)
    redis.lrem("jobq:{low}:ready", 0, gone)


@pytest.fixture
def command(kept_spark, valkey_queue, tmp_path, monkeypatch):
    """command("--since", "1h"): `jobq lake audit` of what the queue's stream has; code, records, remarks."""
    monkeypatch.chdir(tmp_path)
    env = {"JOBQ_URL": valkey_queue.client.url, "JOBQ_LAKE": str(tmp_path / "lake")}

    def run(*args):
        with CliRunner().isolation(env=env) as (out, err, _):
            assert main(["lake", "ingest", "--once", "--engine", "local", "--rollup", "0"]) == 0
            out.seek(0)
            out.truncate()
            code = main(["lake", "audit", *args])
        return code, out.getvalue().decode(), err.getvalue().decode()

    return run


def test_command_ends_with_1_for_losses_and_with_2_when_the_events_do_not_tell(
    command, valkey_queue, valkey_redis
):
    queue = valkey_queue
    queue.enqueue(b"v", mid="early")
    held = queue.dequeue().messages[0]
    queue.finish([Ending(mid="early", token=held.token)])
    code, out, err = command()
    assert (code, out) == (2, "")
    assert "no enqueue events" in err
    queue.admin.events_level("all")
    time.sleep(0.003)
    queue.enqueue_many([("a", b"v"), ("b", b"v"), ("c", b"v")])
    queue.client.command("XADD", "jobq:{low}:events", "*", "1", "done\x1fa\x1f-5")
    code, out, _ = command("--format", "json")
    told = json.loads(out)
    assert (code, told["accepted"], told["open"], told["unreadable"]) == (0, 3, 3, 1)
    queue.enqueue(b"v", mid="d")
    assert command("--since", "1h")[0] == 2, "the level was attempts before"
    valkey_redis.hdel("jobq:{low}:messages", "b")
    for mid in ("b", "c"):  # the content of c stays, in no place
        valkey_redis.lrem("jobq:{low}:ready", 0, mid)
    code, out, _ = command("--ask")
    assert code == 1
    assert (
        "4 accepted, 0 finished, 0 duplicates, 2 lost (2 waiting or running, 1 unreadable records)"
        in out
    )
    assert "lost: b" in out and "lost: c" in out
    code, _, err = command("--queues", "lov")
    assert code == 2
    assert "did you mean 'low'" in err
