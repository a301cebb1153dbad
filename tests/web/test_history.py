"""Figures of jobs and errors: events on the server give the same figures as a lake, and hostile words stay words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from jobq.client.connection import Client
from jobq.errors import LakeError
from jobq.events import attempt_record
from jobq.pipeline import offsets
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import ROLLUP
from jobq.queue import directory
from jobq.queue.audit import Audit
from jobq.queue.directory import queue_names
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import UserRole
from jobq.web.history import ENDS, FAILED, Span, StreamHistory, Wanted
from jobq.web.lake import DAY_MS, LakeHistory
from jobq.web.sampler import Sampling
from jobq.web.sources import sources_of
from tests import tools

#: 2026-11-21 00:00 UTC, epoch ms.
DAY = 1_795_219_200_000
HOUR = 3_600_000
HOSTILE = "x' OR '1'='1"


def record(kind: str, mid: str, at: int, **more: Any) -> str:
    """One event record."""
    given = {"job": "app.resize", "attempt": 1, "enqueued": 2_000, "run_us": 20_000, "cpu_us": 9_000,
             "rss_kib": 80_000, "worker": "host:1"} | more  # fmt: skip
    return f"{kind}\x1f{mid}\x1f{at}\x1f{attempt_record(**given)}"


def write(client: Client, queue: str, records: list[tuple[int, str]]) -> None:
    directory.register_queues(client, [queue])
    stream = offsets.events_key(client.namespace, queue)
    for at, text in records:
        client.command("XADD", stream, f"{at}-*", "1", text)


@pytest.fixture
def lake_history(tmp_path: Path) -> Iterator[Callable[..., LakeHistory]]:
    """Return a reader of a lake with the server's data; source: the name of the server there."""
    opened = []

    def make(client: Client, source: str = "") -> LakeHistory:
        lake = Lake.create(str(tmp_path / "lake"))
        tools.library("pyarrow")
        from jobq.pipeline.engine import Engine
        from jobq.pipeline.lake.ingest import Ingest, IngestOptions

        Ingest(lake, client, Engine("local"), IngestOptions(source=source)).events()
        opened.append(LakeHistory(lake.store.uri, most_s=120, server=source))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def events(client: Client) -> StreamHistory:
    """A history of 900 events in three queues, among them some that aren't records."""
    random = Random(7)
    for queue in ("high", "low", "mails"):
        rows = []
        for number in range(300):
            at = DAY + number * HOUR // 150 + ("high", "low", "mails").index(queue)
            kind = random.choices(ENDS, (80, 10, 5, 3, 2))[0]
            error = {} if kind == "done" else {
                "error": random.choice(("TimeoutError", HOSTILE)),
                "fingerprint": random.choice(("aa" * 8, "bb" * 8, ""))
            }  # fmt: skip
            job = random.choice(("app.resize", "app.mail", HOSTILE, ""))
            run_us = random.randrange(1, 400_000)
            rows.append((at, record(kind, f"m{number}", at, job=job, run_us=run_us, **error)))
        write(client, queue, rows)
    client.command("XADD", offsets.events_key("jobq", "mails"), "*", "1", "no record")
    client.command("XADD", offsets.events_key("jobq", "mails"), "*", "9", "x")
    return StreamHistory(client, lambda: queue_names(client))


def test_figures_of_the_server_equal_those_of_the_lake(client, events, lake_history):
    lake = lake_history(client)
    for span in (Span(DAY, DAY + 2 * HOUR), Span(DAY + HOUR // 3, DAY + HOUR)):
        assert events.since(span) == span.since
        mine, theirs = events.jobs(span), lake.jobs(span)
        assert mine and {row.job for row in mine} == {"app.resize", "app.mail", HOSTILE}
        for one, other in zip(mine, theirs, strict=True):
            rough = {"run_ms", "wait_ms"}
            facts = [(k, v) for k, v in structs.asdict(one).items() if k not in rough]
            assert facts == [(k, v) for k, v in structs.asdict(other).items() if k not in rough]
            # A sketch of percentiles is near them.
            assert other.run_ms.p50 == pytest.approx(one.run_ms.p50, rel=0.1)
            assert other.wait_ms.p95 == pytest.approx(one.wait_ms.p95, rel=0.1)
        groups = events.errors(span)
        assert [one.group for one in groups] == [one.group for one in lake.errors(span)]
        for one, other in zip(groups, lake.errors(span), strict=True):
            assert structs.replace(one, error="") == structs.replace(other, error="")
        assert sum(one.failures for one in groups) == sum(
            row.failed for row in mine
        ) + nameless_failures(events, span)
        for job in ("app.mail", HOSTILE):
            one, other = events.job(span, job), lake.job(span, job)
            assert one.histogram == other.histogram
            assert [(p.at, p.done, p.failed) for p in one.points] == [
                (p.at, p.done, p.failed) for p in other.points
            ]
            assert [run.run_ms for run in one.slowest] == [run.run_ms for run in other.slowest]
        group = groups[0].group
        assert {run.mid for run in events.error(span, group).newest} == {
            run.mid for run in lake.error(span, group).newest
        }
        parts = counted_by_parts(events, span, group)
        assert parts == counted_by_parts(lake, span, group) and sum(parts) == groups[0].failures


def counted_by_parts(one: StreamHistory | LakeHistory, span: Span, group: str) -> list[int]:
    third = (span.until - span.since) // 3
    moments = [span.since + third, span.since + 2 * third]
    found = one.failures_between(span, group, moments)
    assert one.failures_between(span, group, []) == [sum(found)]
    return found


def nameless_failures(events: StreamHistory, span: Span) -> int:
    found = events.events_in(span).events
    return sum(event.kind in FAILED and not event.job for _, event in found)


@pytest.mark.parametrize(
    "wanted", [Wanted(), Wanted(queue="low"), Wanted(job=HOSTILE), Wanted(kind="dead")]
)
def test_pages_of_runs_hold_each_run_once(client, events, lake_history, wanted):
    span = Span(DAY, DAY + 2 * HOUR)
    lake = lake_history(client)
    listed = []
    for history in (events, lake):
        rows, cursor = [], ""
        while cursor is not None:
            page = history.runs(span, wanted, cursor, 170)
            assert len(page.runs) <= 170
            rows += page.runs
            cursor = page.next_cursor
        listed.append(rows)
    assert listed[0] == listed[1] and len(set(listed[0])) == len(listed[0])
    assert len(listed[0]) == 900 or wanted != Wanted()


def test_a_busy_queue_is_read_from_the_newest_and_says_since_when(client, events):
    span = Span(DAY, DAY + 2 * HOUR)
    few = StreamHistory(client, lambda: queue_names(client), most=60)
    found = few.events_in(span)
    assert 57 <= len(found.events) <= 63 and span.since < found.since < span.until
    assert {queue for queue, _ in found.events} == {"high", "low", "mails"}
    newest = [event.finished_at for queue, event in found.events if queue == "low"]
    assert newest[0] == max(newest) > DAY + HOUR


def test_a_damaged_queue_leaves_the_others(client, events):
    directory.register_queues(client, ["broken"])
    client.command("SET", offsets.events_key("jobq", "broken"), "x")
    found = events.events_in(Span(DAY, DAY + 2 * HOUR))
    assert list(found.unread) == ["broken"] and len(found.events) == 900


def test_hostile_words_find_nothing_else(client, events, lake_history):
    lake, span = lake_history(client), Span(DAY, DAY + 2 * HOUR)
    for text in (
        "' OR 1=1 --",
        "\\' OR 1=1 --",
        "'; DROP TABLE events; --",
        "\0'",
        "𝕏'",
        "%",
        "{",
        "m1\x1f",
    ):
        assert lake.runs(span, Wanted(mid=text, queue=text)).runs == ()
        assert lake.message(text, text) == [] and lake.jobs(span, [text]) == []
        assert lake.runs(span, cursor=f"{DAY + HOUR}\x1f{text}\x1f{text}\x1f{text}").runs
        assert lake.error(span, text).figures is None and lake.first_seen([text]) == {}
    assert lake.first_seen(["aa" * 8]) == {"aa" * 8: min(
        event.finished_at for _, event in events.events_in(span).events if event.fingerprint == "aa" * 8
    )}  # fmt: skip
    assert {run.queue for run in lake.message("", "m7")} == {"high", "low", "mails"}
    assert lake.marks(span) == [] and lake.begins_at() == DAY


@pytest.mark.parametrize("source", ["", "eu"])
def test_history_counts_partitions_as_their_queue_when_it_has_some(client, lake_history, source):
    partition(client, "low", 2)
    for number, queue in enumerate(("low", "low/0", "low/1", "low/1/x", "slow/0", "high")):
        at = DAY + number
        write(client, queue, [(at, record("dead", f"m{number}", at, error="Timeout"))])
    span, lake = Span(DAY, DAY + HOUR), lake_history(client, source)
    for history in (StreamHistory(client, lambda: queue_names(client)), lake):
        assert [job.queues for job in history.jobs(span)] == [("high", "low", "low/1/x", "slow")]
        assert [(job.queues, job.dead) for job in history.jobs(span, ["low"])] == [(("low",), 3)]
        for name, failures in (("low", 3), ("low/1", 1)):
            [error] = history.errors(span, [name])
            assert (error.queues, error.failures) == (("low",), failures)
        runs = history.runs(span, Wanted(queue="low", kind="dead")).runs
        assert [run.queue for run in runs] == ["low"] * 3
        assert sorted(run.partition for run in runs) == ["", "low/0", "low/1"]
        assert [run.mid for run in history.runs(span, Wanted(queue="low/1")).runs] == ["m2"]
    assert sum(point.dead for point in lake.outcomes(span, "low")) == 3
    assert sum(point.dead for point in lake.outcomes(span, "low/1")) == 1
    assert [run.partition for run in lake.message("low", "m1")] == ["low/0"]


def test_a_child_that_fails_or_hangs_is_replaced(client, events, lake_history, tmp_path):
    lake = lake_history(client)
    with pytest.raises(LakeError, match='column "nope" not found'):
        lake.query("SELECT nope FROM events")
    first = lake._child
    lake._most_s = 0.05
    with pytest.raises(LakeError, match="shorter range"):
        lake.query(
            "SELECT count(*) FROM events a, events b, events c, events d WHERE a.mid > b.mid"
        )
    assert first is not None and first.poll() is not None
    lake._most_s = 120
    assert lake.query("SELECT count(*) AS n FROM events") == [{"n": 900}]
    lake._child.kill()
    lake._child.wait()
    assert lake.query("SELECT count(*) AS n FROM events") == [{"n": 900}]
    nowhere = LakeHistory(str(tmp_path / "nothing"), most_s=120)
    with pytest.raises(LakeError, match="is not a lake"):
        nowhere.jobs(Span(DAY, DAY + 1))
    nowhere.close()


def test_charts_go_beyond_a_day_by_the_lake(visit, client, lake_history):
    now = client.clock_ms()
    old = [
        (now - 76 * HOUR, "dead"),
        (now - 75 * HOUR, "done"),
        (now - 5 * HOUR, "done"),
        (now - 5 * HOUR, "retry"),
    ]
    more = {"dead": {"enqueued": 0}, "retry": {"run_us": 33_000}}
    records = [record(kind, f"m{n}", at, **more.get(kind, {})) for n, (at, kind) in enumerate(old)]
    write(client, "low", [(at, text) for (at, _), text in zip(old, records, strict=True)])
    lake = lake_history(client)
    write(client, "low", [(now - 60_000, record("done", "new", now - 60_000))])
    visitor = visit(UserRole.READ, lake=lake.path)
    sources_of(visitor.app.state.site).lake = lake
    scraped = visitor.get("/metrics", headers={"authorization": "Bearer x"}).text
    assert 'jobq_lake_lag_events{queue="low"} 1.0' in scraped
    assert 'jobq_lake_overrun_seconds{queue="low"} ' in scraped
    assert 'jobq_lake_lag_seconds{queue="low"} ' in scraped
    found = lake.outcomes(Span(now - 168 * HOUR, now), "low")
    assert [(one.done, one.failed, one.dead) for one in found] == [(0, 0, 1), (1, 0, 0), (1, 1, 0)]
    assert [one.run_p95_ms for one in found] == [20, 20, 33] and found[1].wait_p95_ms == 1980
    assert lake.outcomes(Span(now - 168 * HOUR, now), "high") == []
    [last] = lake.runs(Span(now - 80 * HOUR, now - 75 * HOUR), Wanted(queue="low")).runs
    assert (last.kind, last.wait_ms) == ("dead", 0)
    week = visitor.get("/queues/low?range=7d").text
    assert "Attempts come from the lake" in week and "--since 7d --queues low --lake" in week
    assert 'href="/errors?range=7d"' in week and "Dequeued per second" not in week
    assert (
        week.count('<svg viewBox="0 0 400 180"') == 2
        and "Attempts come from the lake" in visitor.get("/?range=7d").text
    )
    day = visitor.get("/queues/low?range=24h").text
    assert "33 ms" in day, "the chart of times has what the lake knows"
    assert "Older attempts come from the lake" in day and "Dequeued per second" in day
    assert "range=7d" not in visit(UserRole.READ).get("/").text
    path = "/queues/low/messages/m1"
    client.command("DEL", offsets.events_key("jobq", "low"))
    gone = visitor.get(path)
    assert (
        gone.status_code == 404
        and "Earlier events, from the lake" in gone.text
        and ">done</span>" in gone.text
    )
    Queue("low", client).enqueue(b'{"job":"app.resize"}', mid="m1")
    assert (
        f"{path}?past=1" in visitor.get(path).text and ">done</span>" not in visitor.get(path).text
    )
    assert ">done</span>" in visitor.get(f"{path}?past=1").text
    assert "no other event" in visitor.get("/queues/low/messages/none").text
    nowhere = visit(UserRole.READ, lake="/nowhere")
    sources_of(nowhere.app.state.site).lake = LakeHistory("/nowhere", most_s=120)
    broken = nowhere.get("/queues/low?range=30d").text
    assert "Older attempts can't be shown" in broken and "is not a lake" in broken


def test_pages_show_the_queues_of_their_server_when_several_share_a_lake(
    visit, client, lake_history
):
    now = client.clock_ms()
    write(client, "low", [(now - 90_000, record("done", "old", now - 90_000))])
    lake_history(client, "eu")
    failed = record("dead", "new", now - 60_000, error="KeyError", fingerprint="f1")
    write(client, "low", [(now - 60_000, failed)])
    us = lake_history(client, "us")
    visitor = visit(UserRole.READ, lake=us.path, source="us")
    sources_of(visitor.app.state.site).lake = us
    found = visitor.get("/history?source=lake&queue=low").text
    assert ">new</a>" in found and ">old</a>" in found and "from the server us" in found
    assert 'href="/queues/low"' in found and "{us}" not in found
    scraped = visitor.get("/metrics", headers={"authorization": "Bearer x"}).text
    assert 'jobq_lake_lag_events{queue="low"} 0.0' in scraped
    assert f"--lake {us.path} --source us" in visitor.get("/queues/low?range=7d").text
    client.command("DEL", offsets.events_key("jobq", "low"))
    assert ">dead</span>" in visitor.get("/queues/low/messages/new").text
    eu = LakeHistory(us.path, most_s=120, server="eu")
    sources_of(visitor.app.state.site).lake = eu
    found = visitor.get("/history?source=lake").text
    assert ">old</a>" in found and ">new</a>" not in found
    assert "KeyError" not in visitor.get("/errors?source=lake").text
    eu.close()
    unnamed = LakeHistory(us.path, most_s=120)
    sources_of(visitor.app.state.site).lake = unnamed
    found = visitor.get("/jobs?source=lake").text
    assert "no events from the server &#39;&#39;, only from &#39;eu&#39;, &#39;us&#39;" in found
    unnamed.close()


def test_pages_lake_and_audit_count_one_load_alike(visit, client, queue, lake_history):
    """Check the exact numbers of accepted, finished and remaining messages."""
    queue.admin.events_level("all")
    begun = client.clock_ms()
    while (since := client.clock_ms()) < begun + 3:
        continue
    queue.enqueue_many([b'{"job":"app.resize"}'] * 60)
    wanted = {"done": 0, "dead": 0, "retry": 0}
    for number, one in enumerate(queue.dequeue(50).messages):
        outcome = ("done", "done", "dead", "retry", "done")[number % 5]
        wanted[outcome] += 1
        text = record(outcome, one.mid, since).split("\x1f", 3)[3]
        backoff = 3_600.0 if outcome == "retry" else None
        queue.finish(
            [Ending(mid=one.mid, token=one.token, outcome=outcome, record=text, backoff=backoff)]
        )
    audited = Audit(queue, since).result()
    ended = wanted["done"] + wanted["dead"]
    assert (audited.accepted, audited.finished, audited.live, audited.lost) == (
        60,
        ended,
        60 - ended,
        0,
    )
    lake, span = lake_history(client), Span(since, client.clock_ms() + 1)
    points = lake.outcomes(span, queue.name)
    counts = tuple(sum(getattr(one, name) for one in points) for name in ("done", "failed", "dead"))
    assert counts == (wanted["done"], wanted["retry"], wanted["dead"])
    snapshot = Sampling(client).catch_up()
    shown = snapshot.queues[queue.name]
    assert (shown.recent.done, shown.recent.failed, shown.recent.dead) == counts
    assert (
        shown.ready + shown.delayed + shown.running == audited.live and shown.dead == wanted["dead"]
    )
    visitor = visit(UserRole.READ)
    assert [one.runs for one in StreamHistory(client, lambda: [queue.name]).jobs(span)] == [50]
    assert ">50</td>" in visitor.get("/jobs?range=15m").text


def test_days_with_hourly_sums_are_read_from_these(client, lake_history):
    """A day whose sums lack events is read from its events; expired events are in the sums alone."""
    now = client.clock_ms()
    today = now // DAY_MS * DAY_MS
    write(client, "low", [
        (at, record("done", f"m{at}", at, run_us=20_000))
        for at in (today - 3 * DAY_MS + HOUR, today - 2 * DAY_MS + HOUR, now)
    ])  # fmt: skip
    reader = lake_history(client)
    span = Span(now - 7 * DAY_MS, now + 1)
    assert sum(one.done for one in reader.outcomes(span, "low")) == 3
    pa = tools.library("pyarrow")
    from deltalake import write_deltalake

    columns = [one.name for one in ROLLUP.columns]
    rows = []
    for days, nevents in ((5, 40), (3, 10), (2, 0)):
        begins = datetime.fromtimestamp((today - days * DAY_MS) / 1000, UTC)
        facts = {
            "hour": begins,
            "queue": "low",
            "nevents": nevents,
            "done": nevents - 1,
            "dead": 1,
            "runs": nevents,
        }
        counts = dict.fromkeys(("retry", "crashed", "recovered"), 0)
        rows.append(
            {
                **dict.fromkeys(columns),
                **facts,
                **counts,
                "run_us": 5_000 * nevents,
                "dt": begins.date(),
            }
        )
    sums = Lake.open(reader.path).made(ROLLUP.name)
    write_deltalake(sums, pa.Table.from_pylist(rows, ROLLUP.delta_schema()), mode="append")
    found = reader.outcomes(span, "low")
    assert (sum(one.done for one in found), sum(one.dead for one in found)) == (39 + 9 + 1 + 1, 2)
    assert {one.run_mean_ms for one in found} == {5, 20}
    assert reader.outcomes(span, "high") == []
    assert [one.done for one in reader.outcomes(Span(today - 3 * DAY_MS, today - 2 * DAY_MS))] == [
        1
    ]
