"""The exporter: what it reports equals what the queues say, and names beyond its bound share a label."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobq.client.pipelining import run_each
from jobq.errors import UnavailableError
from jobq.jobs.codec import encode
from jobq.metrics import of_queues
from jobq.metrics.names import EXPORTER
from jobq.metrics.of_queues import MAX_LABELS, QueueExporter, Sheet, put_schedules
from jobq.metrics.serving import fetch, parse_endpoint
from jobq.queue import directory, presence
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Schedules, TickState
from jobq.schedules.definition import Schedule, encoded
from jobq.topics import calls
from jobq.topics.topic import Topic
from tests import tools
from tests.lifecycle.conftest import ROOT, until


@pytest.fixture
def scrape(client):
    """scrape(): metric -> labels -> value, as of now."""
    exporter = QueueExporter(client)

    def read():
        exporter._until = 0.0
        return {family.metric.name: family.rows for family in exporter.families()}

    return read


def test_every_metric_equals_what_the_server_says(client, scrape, redis):
    low, high = Queue("low", client), Queue("high", client)
    for number in range(5):
        low.enqueue(encode("resize", enqueued_at=client.clock_ms() - 60_000), mid=f"m{number}")
    low.enqueue(encode("resize"), mid="later", delay=60)
    high.enqueue(encode("resize"), mid="dies")
    [message] = high.dequeue().messages
    high.finish([ending(message, outcome="dead", reason="no")])
    low.dequeue(1)
    high.admin.pause()
    redis.xadd(f"{high.prefix}flow-outbox", {"1": "look"}, id=f"{client.clock_ms() - 90_000}-0")
    facts = {
        "queues": ["low"],
        "slots": 4,
        "lease_ms": 15_000,
        "started_at": 1,
        "seen_at": client.clock_ms(),
    }
    presence.put_worker(client, "w", facts)
    topic = Topic("orders", client)
    topic.append_many([b"1", b"2", b"3"])
    topic.group("mail").subscribe("earliest")
    found = scrape()
    assert found["jobq_up"] == {(): 1}
    messages = found["jobq_queue_messages"]
    assert messages["low", "ready"] == 4 and messages["low", "delayed"] == 1
    assert messages["low", "locked"] == 1 and messages["high", "ready"] == 0
    assert found["jobq_queue_dead"] == {("high",): 1, ("low",): 0}
    assert found["jobq_queue_flow_entries"] == {("high",): 1, ("low",): 0}
    assert 89 < found["jobq_queue_flow_oldest_seconds"]["high",] < 600
    assert found["jobq_queue_paused"] == {("high",): 1, ("low",): 0}
    assert found["jobq_queue_workers"] == {("high",): 0, ("low",): 1}
    assert found["jobq_queue_slots"] == {("high",): 0, ("low",): 4}
    assert found["jobq_queue_dequeued_total"] == {("high",): 1, ("low",): 1}
    assert found["jobq_queue_events_total"]["high",] == 1
    assert found["jobq_queue_refused_total"]["high",] == 0
    assert 59 < found["jobq_queue_oldest_seconds"]["low",] < 600
    assert found["jobq_queue_oldest_seconds"]["high",] == 0
    assert found["jobq_topic_lag_messages"] == {("orders", "mail"): 3}
    assert found["jobq_topic_pending_messages"] == {("orders", "mail"): 0}
    assert abs(found["jobq_clock_skew_seconds"][()]) < 60


def ending(message, **more):
    return Ending(mid=message.mid, token=message.token, **more)


def test_late_schedule_is_seen_until_its_tick_comes(client, scrape):
    queue, now_ms = Queue("low", client), client.clock_ms()
    text = encoded(Schedule(name="digest", job="resize", every_ms=60_000))
    queue.admin.schedule("add", "digest", text)
    [(name, kept)] = queue.admin.schedules().definitions.items()
    states = {name: TickState(now_ms - 150_000, False, "m")}
    late = Sheet()
    put_schedules(late, "low", Schedules(now_ms, {name: kept, "bad": "a{"}, states, []))
    # The ticks are whole minutes, so the one after the last came 90 to 150 s ago.
    assert 90 <= late.rows["jobq_cron_late_seconds"]["digest",] <= 150
    assert late.rows["jobq_cron_last_tick_timestamp_seconds"] == {("digest",): now_ms / 1000 - 150}
    paused = Sheet()
    put_schedules(
        paused,
        "low",
        Schedules(now_ms, {name: kept}, {name: states[name]._replace(paused=True)}, []),
    )
    assert paused.rows["jobq_cron_late_seconds"] == {}
    assert scrape()["jobq_up"] == {(): 1}


def test_damaged_queue_is_left_out_and_the_others_are_read(client, scrape, redis, caplog):
    Queue("low", client).enqueue(b"{}")
    Queue("high", client).enqueue(b"{}")
    redis.delete("jobq:{high}:messages")
    redis.set("jobq:{high}:messages", "x")
    found = scrape()
    assert {queue for queue, _ in found["jobq_queue_messages"]} == {"low"}
    assert "can't read queue high" in caplog.text


def test_names_without_a_queue_are_counted_when_the_list_is_too_long(
    client, scrape, redis, monkeypatch
):
    Queue("low", client).enqueue(b"v")
    redis.sadd("jobq:queues", b"\xff", *(f"a{number}" for number in range(9)))
    monkeypatch.setattr(directory, "MAX_QUEUES", 3)
    found = scrape()
    assert found["jobq_queue_dead"] == {("low",): 0}
    assert found["jobq_queues_left_out"] == {(): 10}


def test_topics_beyond_the_bounds_are_counted_and_not_read(client, scrape, redis, monkeypatch):
    for name in ("a", "b", "c"):
        Topic(name, client).append_many([b"1"])
        for number in range(2):
            Topic(name, client).group(f"g{number}").subscribe("earliest")
    redis.sadd("jobq:topics", b"\xff")
    assert scrape()["jobq_topics_left_out"] == {(): 1}
    monkeypatch.setattr(of_queues, "MAX_LABELS", 4)
    found = scrape()
    assert {topic for topic, _ in found["jobq_topic_lag_messages"]} == {"a", "b"}
    assert found["jobq_topics_left_out"] == {(): 2}
    monkeypatch.setattr(calls, "MAX_TOPICS", 1)
    found = scrape()
    assert {topic for topic, _ in found["jobq_topic_lag_messages"]} == {"a"}
    assert found["jobq_topics_left_out"] == {(): 3}


def test_queues_without_schedules_are_not_asked_for_them(client, scrape, monkeypatch):
    for number in range(9):
        Queue(f"q{number}", client).enqueue(b"v")
    text = encoded(Schedule(name="digest", job="resize", every_ms=60_000))
    Queue("q3", client).admin.schedule("add", "digest", text)
    asked = []
    monkeypatch.setattr(
        of_queues,
        "run_each",
        lambda client, calls: asked.append(len(calls)) or run_each(client, calls),
    )
    scrape()
    # The counts of each queue, and the schedules of one.
    assert asked == [9, 1]


def test_answer_is_kept_for_a_moment_and_a_lost_server_is_reported(client, redis):
    exporter = QueueExporter(client)
    first = exporter.families()
    Queue("low", client).enqueue(b"{}")
    assert exporter.families() is first

    class Away:
        is_cluster, namespace = False, "jobq"

        def clock_ms(self):
            raise UnavailableError("gone")

    lost = QueueExporter(Away()).families()  # type: ignore[arg-type]
    assert {family.metric.name: family.rows.get(()) for family in lost}["jobq_up"] == 0
    assert len(lost) == 2


def test_labels_beyond_the_bound_are_one():
    sheet = Sheet()
    for number in range(MAX_LABELS + 5):
        sheet.put("jobq_queue_dead", 1, f"q{number}")
        sheet.put("jobq_queue_oldest_seconds", number, f"q{number}")
    assert len(sheet.rows["jobq_queue_dead"]) == MAX_LABELS + 1
    assert sheet.rows["jobq_queue_dead"]["other",] == 5
    assert sheet.rows["jobq_queue_oldest_seconds"]["other",] == MAX_LABELS + 4


def test_lake_lag_beyond_the_bound_is_that_of_the_queue_that_lacks_most_of_its_stream():
    sheet = Sheet()
    lags = [(9_000.0, 1.0)] * MAX_LABELS + [
        (300.0, 60.0),
        (2_000.0, 5_000.0),
        (0.0, 0.0),
        (400.0, 900.0),
    ]
    for number, (overruns, behind) in enumerate(lags):
        sheet.put_lake_lag(f"q{number}", overruns, behind)
    for name, seconds in (
        ("jobq_lake_overrun_seconds", 2_000.0),
        ("jobq_lake_lag_seconds", 5_000.0),
    ):
        assert len(sheet.rows[name]) == MAX_LABELS + 1
        assert sheet.rows[name]["other",] == seconds
    sheet.put_lake_lag("drops", 0.0, 3.0)
    assert [sheet.rows[f"jobq_lake_{name}_seconds"]["other",] for name in ("overrun", "lag")] == [
        0.0,
        3.0,
    ]


def asked(path):
    """The page, or None while nothing listens."""
    try:
        return fetch(parse_endpoint(f"unix:{path}"), "/metrics")
    except UnavailableError:
        return None


@pytest.mark.one_server
def test_command_serves_until_term(client, server, short_folder):
    parsed = tools.library("prometheus_client.parser").text_string_to_metric_families
    Queue("low", client).enqueue(b"{}")
    path = short_folder / "exporter.sock"
    command = [sys.executable, "-m", "jobq", "metrics", "--url", server.url]
    once = subprocess.run(
        [*command, "--once"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {family.name for family in parsed(once.stdout)}
    assert names <= {name.removesuffix("_total") for name in EXPORTER}
    assert 'jobq_queue_messages{place="ready",queue="low"} 1.0' in once.stdout
    with subprocess.Popen([*command, "--bind", f"unix:{path}"], cwd=ROOT) as process:
        answer = until(lambda: asked(path))
        assert answer.status == 200 and b"jobq_up 1.0" in answer.body
        assert fetch(parse_endpoint(f"unix:{path}"), "/healthz").body == b"ok\n"
        assert fetch(parse_endpoint(f"unix:{path}"), "/no").status == 404
        process.terminate()
        assert process.wait(120) == 0
    assert not path.exists()


def test_partitions_are_counted_for_their_queue_when_a_queue_is_partitioned(client, scrape):
    partition(client, "low", 3)
    low = Queue("low", client)
    low.enqueue_many([(f"m{number}", encode("resize")) for number in range(12)])
    for place in low.partitions():
        place.dequeue(1)
    facts = {"queues": ["low", "low/0", "low/1", "low/2"], "slots": 4, "lease_ms": 15_000}
    presence.put_worker(client, "w", {**facts, "seen_at": client.clock_ms()})

    found = scrape()
    assert found["jobq_queue_messages"]["low", "ready"] == 9
    assert found["jobq_queue_dequeued_total"] == {("low",): 3}
    assert found["jobq_queue_workers"] == {("low",): 1}
    assert found["jobq_queue_slots"] == {("low",): 4}
    named = {
        family.metric.name: family.rows for family in QueueExporter(client, ["low"]).families()
    }
    assert named["jobq_queue_dequeued_total"] == {("low",): 3}


def test_named_queues_have_figures_when_the_map_of_another_cannot_be_read(client, redis):
    Queue("high", client).enqueue(b"x")
    partition(client, "low", 2)
    redis.hset("jobq:{low}:partitions", "map", "no map")

    families = QueueExporter(client, ["low", "high"]).families()

    named = {family.metric.name: family.rows for family in families}
    assert named["jobq_up"] == {(): 1}
    assert {labels[0] for labels in named["jobq_queue_messages"]} == {"high"}


def test_a_queue_has_no_figures_when_one_of_its_partitions_cannot_be_read(client, scrape, redis):
    Queue("high", client).enqueue(b"x")
    partition(client, "low", 2)
    redis.set("jobq:{low/1}:messages", "x")

    found = scrape()["jobq_queue_messages"]
    assert ("high", "ready") in found and ("low", "ready") not in found
