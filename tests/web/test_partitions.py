"""The dashboard shows a partitioned queue as one queue, and its partitions on the queue's page."""

from __future__ import annotations

import json
import re

import pytest

from jobq.events import attempt_record
from jobq.jobs.codec import encode
from jobq.observe.redaction import Redactor
from jobq.queue import presence
from jobq.queue.partition_fsck import map_violations
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, LoggedTick
from jobq.web import search
from jobq.web.access.identity import Identity, UserRole
from jobq.web.api.resource import ROOT
from jobq.web.contents import Contents
from jobq.web.dead import groups
from jobq.web.filters import parse
from jobq.web.history import Span, StreamHistory
from jobq.web.operations.service import Operations
from jobq.web.pages.schedules import _runs
from jobq.web.sampler import Sampling

pytestmark = pytest.mark.one_server


@pytest.fixture
def contents(client):
    return Contents(client, Redactor(), arguments=True)


@pytest.fixture
def low(client):
    """A queue of two partitions, each with a dead message, and with nine ready messages together."""
    queue, newest = Queue("low", client), partition(client, "low", 2).newest
    record = attempt_record("resize", 1, 3000, 2_000_000, 0, 0, "w:1", "Timeout: no", "f00d")
    for place in queue.partitions():
        mids = (f"{place.name} {number}" for number in range(100))
        mid = next(one for one in mids if newest.name_for("low", one) == place.name)
        queue.enqueue(encode("resize"), mid=mid)
        [message] = place.dequeue().messages
        ending = Ending(
            mid=mid, token=message.token, outcome="dead", record=record, reason="Timeout: no"
        )
        place.finish([ending])
    queue.enqueue_many([(f"m{number}", encode("resize")) for number in range(9)])
    facts = {"queues": ["low", "low/0", "low/1"], "slots": 4, "lease_ms": 15_000}
    presence.put_worker(client, "w", {**facts, "seen_at": client.clock_ms()})
    return queue


def test_snapshot_has_the_sums_of_partitions_when_a_queue_is_partitioned(client, low):
    found = Sampling(client).catch_up()

    assert list(found.queues) == ["low"]
    assert (found.queues["low"].ready, found.queues["low"].dead, found.totals.ready) == (9, 2, 9)
    assert (found.queues["low"].workers, found.queues["low"].slots, found.totals.slots) == (1, 4, 4)
    assert found.queues["low"].recent.dead == 2
    assert list(found.partitions) == ["low/0", "low/1"]
    assert sum(one.ready for one in found.partitions.values()) == 9
    assert [one.recent.dead for one in found.partitions.values()] == [1, 1]
    assert found.of("low/1") is found.partitions["low/1"]


def test_queue_is_broken_when_one_of_its_partitions_cannot_be_read(client, low, redis):
    redis.delete("jobq:{low/1}:messages")
    redis.set("jobq:{low/1}:messages", "x")

    found = Sampling(client).take_snapshot()
    assert found.queues["low"].broken
    assert found.partitions["low/0"].broken == ""


def test_messages_of_partitions_are_listed_once_when_their_queue_is_searched(client, low, contents):
    for names in (["low"], ["low", "low/0", "low/1"]):
        for text in ("", "queue:low"):
            asked = parse(text, keys=search.DEAD_KEYS)
            dead = search.messages(client, contents, asked, names, ["dead"])
            assert sorted(one.row.queue for one in dead.rows) == ["low/0", "low/1"]
            ready = search.messages(client, contents, asked, names, ["ready"])
            assert sorted(one.row.mid for one in ready.rows) == [f"m{n}" for n in range(9)]
            [group] = groups(client, contents, asked, names).groups
            assert (group.queue, group.number) == ("low", 2)
    only = search.messages(client, contents, parse("queue:low/1"), ["low"], ["dead"])
    assert [one.row.queue for one in only.rows] == ["low/1"]
    assert not search.messages(client, contents, parse("-queue:low"), ["low"], ["dead"]).rows


def test_page_of_a_queue_links_its_partitions_when_it_has_some(low, visit):
    visitor = visit()
    page = visitor.get("/queues/low").text
    assert "Partitions" in page and "/queues/low~2F1" in page
    assert visitor.get("/queues/low~2F1").status_code == 200
    assert "low/1" not in visitor.get("/queues").text
    visitor.headers["Authorization"] = "Bearer x"
    assert [one["queue"] for one in visitor.get(f"{ROOT}/queues").json()["items"]] == ["low"]
    assert visitor.get(f"{ROOT}/queues/low~2F1").json()["dead"] == 1


def test_history_of_a_queue_has_the_attempts_of_its_partitions_when_it_has_some(client, low, visit):
    visitor = visit()
    visitor.headers["Authorization"] = "Bearer x"

    def read(path):
        return visitor.get(f"{ROOT}/{path}").json()["items"]

    [job] = read("jobs?queues=low")
    assert (job["queues"], job["dead"]) == (["low"], 2)
    assert [error["dead"] for error in read("errors?queues=low")] == [2]
    runs = read("history?queue=low&kind=dead")
    assert {(run["queue"], run["partition"]) for run in runs} == {
        ("low", "low/0"), ("low", "low/1")
    }  # fmt: skip
    assert {run["partition"] for run in read("history?queue=low/1")} == {"low/1"}
    assert read("jobs?queues=low/1")[0]["dead"] == 1
    del visitor.headers["Authorization"]
    page = visitor.get("/history?queue=low&kind=dead").text
    assert "low/0 " in page and "low/1 " in page


def test_message_of_a_partition_is_shown_when_the_path_names_its_queue(client, low, visit):
    visitor = visit()
    [dead] = Queue("low/1", client).admin.iter_dead()
    died = dead.mid.replace("/", "~2F")
    for mid in ("m1", died):
        page = visitor.get(f"/queues/low/messages/{mid}")
        assert page.status_code == 200 and "low/" in page.text
    assert visitor.get("/queues/low/messages/nobody").status_code == 404
    visitor.headers["Authorization"] = "Bearer x"
    shown = visitor.get(f"{ROOT}/queues/low/messages/{died}").json()
    assert (shown["queue"], shown["state"]) == ("low/1", "failed")
    why = visitor.get(f"{ROOT}/queues/low/messages/m1/why").json()
    assert (why["queue"].rpartition("/")[0], why["state"]) == ("low", "queued")


@pytest.mark.parametrize("damage", ["text", "type"])
def test_other_queues_are_shown_when_the_map_of_one_cannot_be_read(
    low, client, redis, contents, damage
):
    Queue("high", client).enqueue(encode("resize"), mid="other")
    redis.delete("jobq:{low}:partitions")
    if damage == "text":
        redis.hset("jobq:{low}:partitions", "map", "no map")
    else:
        redis.set("jobq:{low}:partitions", "no map")

    found = search.messages(client, contents, parse(""), ["high", "low"])

    assert "other" in [each.row.mid for each in found.rows]
    assert any("low" in str(problem) for problem in found.problems)
    history = StreamHistory(client, lambda: ["high", "low"]).events_in(
        Span(0, 1 << 50), ["low", "high"]
    )
    assert [*history.unread] == ["low"]


def test_pages_say_how_many_partitions_are_paused(low, client, visit):
    Queue("low/1", client).admin.pause()
    visitor = visit()

    for path in ("/", "/queues", "/queues/low"):
        assert "paused in 1 of 2 partitions" in visitor.get(path).text
    page = visitor.get("/queues/low").text
    assert "Paused in 1 of 2 partitions: their messages are not started. 9 ready" in page
    assert "Pause all" in page and "Resume all" in page
    visitor.headers["Authorization"] = "Bearer x"
    row = visitor.get(f"{ROOT}/queues/low").json()
    assert (row["paused"], row["paused_partitions"], row["served_partitions"]) == (True, 1, 2)
    del visitor.headers["Authorization"]
    assert "in 1 of 2" not in visitor.get("/queues/low~2F1").text


def test_buttons_pause_and_resume_all_partitions_when_some_are_paused(low, client, visit):
    visitor = visit()

    def steer(queue, verb):
        text = visitor.post(f"/queues/{queue}/{verb}").text
        return text, [place.admin.counts().paused for place in low.partitions()]

    visitor.get("/queues/low")
    text, paused = steer("low~2F1", "pause")
    assert paused == [False, True]
    assert "Paused by anna" in text and "Resume all" not in text
    assert "paused in 1 of 2 partitions" in visitor.get("/queues/low").text
    text, paused = steer("low", "pause")
    assert paused == [True, True]
    assert "paused in" not in text and "Pause all" not in text
    assert "Paused by anna" in visitor.get("/queues/low~2F0").text
    text, paused = steer("low~2F0", "resume")
    assert paused == [False, True]
    assert "paused in 1 of 2 partitions" in visitor.get("/queues/low").text
    text, paused = steer("low", "resume")
    assert paused == [False, False]
    assert "paused" not in text.partition("<h2>Partitions")[2]


def test_chosen_messages_are_found_in_their_partition_when_the_queue_is_named(
    low, client, contents
):
    [dead] = Queue("low/1", client).admin.iter_dead()
    [later] = low.enqueue_many([("later", encode("resize", ["a.jpg"]))], delay=60)
    who = Identity("anna", UserRole.ADMIN, arguments=True)
    operations = Operations(client, client, pause=lambda seconds: None)
    try:
        for verb, id_, job in (
            ("cancel", "m1", "resize"), ("run-now", later.mid, "resize"), ("revive", dead.dead_id, "resize"),
        ):  # fmt: skip
            op = operations.create(who, verb, contents, ids=[("low", id_)])
            operations.wait()
            state = operations.view(op).state
            assert (state.number, [name for name, _ in state.jobs]) == (1, [job]), verb
            [sample] = state.samples
            assert sample.queue.startswith("low/")
            operations.apply(op, who)
            operations.wait()
            assert operations.view(op).state.results == {"applied": 1}, verb
            operations.undo(op, who)
            operations.wait()
            assert operations.view(op).state.undone == {"restored": 1}, verb
    finally:
        operations.close()


def test_message_of_a_partition_is_edited_and_copied_when_the_path_names_its_queue(
    low, client, visit
):
    low.enqueue(encode("shop.pay", ["a.jpg"]), mid="edited", key="acme", delay=60)
    visitor, path = visit(), "/queues/low/messages/edited"
    digest = re.search(r'name="digest" value="(\w+)"', visitor.get(f"{path}/edit").text)
    call = json.dumps({"args": ["b.jpg"], "kwargs": {}})
    shown = visitor.post(f"{path}/edit", data={"digest": digest[1], "call": call})
    assert "The arguments were changed" in shown.text
    assert b"b.jpg" in low.content("edited")

    partition = low.holder("edited").name
    for place in (path, path.replace("low", partition.replace("/", "~2F"))):
        copied = visitor.post(f"{place}/again", follow_redirects=False)
        mid = re.search(r"/messages/([^?]+)", copied.headers["location"])[1]
        assert (low.why(mid).key, low.holder(mid).name) == ("acme", partition)
    other = next(name for name in ("low/0", "low/1") if name != partition)
    low.enqueue(encode("shop.pay"), mid="plain", delay=60)
    for _ in range(5):
        place = low.holder("plain").name.replace("/", "~2F")
        visitor.post(f"/queues/{place}/messages/plain/again")
    assert map_violations(client, "low", ["low", partition, other]) == []


def test_runs_of_a_schedule_are_found_in_the_partitions_of_its_queue(low):
    low.enqueue(encode("resize"), mid="waits", delay=60)
    ticks = [
        LoggedTick("nightly", at, 0, "enqueued", 0, mid) for at, mid in ((1, "waits"), (2, "m0"), (3, "gone"))
    ]  # fmt: skip
    runs = _runs(low, ticks)
    assert runs["waits"] is not None and runs["m0"] is not None and runs["gone"] is None
