"""Charts exist when a page is first opened, and running jobs are listed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.jobs.codec import encode
from jobq.queue import keys, presence
from jobq.queue.charts import MINUTE_MS
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import UserRole
from jobq.web.sampler import ALL, DEQUEUED, READY, Sampling
from jobq.worker.charts import ChartKeeper

pytestmark = pytest.mark.one_server


def test_charts_have_what_workers_kept_when_a_page_is_opened(
    client: Client, redis: Any, visit: Any
):
    low, keeper = Queue("low", client), ChartKeeper(client, "w")
    real = client.clock_ms()
    for minute in range(5):
        client.clock = lambda minute=minute: real - (6 - minute) * MINUTE_MS
        low.enqueue_many([(f"m{minute}-{n}", encode("a")) for n in range(6)])
        low.dequeue(3, lease=3_600)
        keeper.begin()
        keeper.sample()
        redis.delete(keys.charts(client.namespace, "turn"))
    client.clock = None
    sampling = Sampling(client)
    at_s = sampling.take_snapshot().at_ms / 1000
    for queue in ("low", ALL):
        ready = {
            int(at // 60): value for at, value in sampling.points(queue, READY, at_s - 900, at_s)
        }
        first = (real - 6 * MINUTE_MS) // MINUTE_MS
        assert [ready[first + n] for n in range(5)] == [3, 6, 9, 12, 15]
        assert ready[int(at_s // 60)] == 15
        rates = dict(sampling.points(queue, DEQUEUED, at_s - 900, at_s - 60))
        assert rates[float((first + 1) * 60)] == 3 / 60
    day = sampling.points("low", READY, at_s - 86_400, at_s)
    assert [value for _, value in day if value is not None][:5] == [3, 6, 9, 12, 15]
    assert visit().get("/queues/low").status_code == 200


def test_page_of_what_runs_lists_the_longest_first_and_cancels(client: Client, visit: Any):
    low, now = Queue("low", client), client.clock_ms()
    low.enqueue_many([(mid, encode("shop.send")) for mid in ("m0", "m1")])
    low.dequeue(2)
    presence.put_worker(client, "web-1:7", {
        "queues": ["low"], "slots": 2, "lease_ms": 15_000, "seen_at": now, "running": 2,
    })  # fmt: skip
    jobs = (RunningJob("low", "m1", now - 1_000), RunningJob("low", "m0", now - 278_000))
    presence.put_running(client, "web-1:7", [ChildEntry(11, "working", 0, 0, jobs)])
    page = visit(UserRole.ADMIN).get("/running").text
    assert (
        page.index(">m0<") < page.index(">m1<")
        and re.search(r"4 m [345]\d s", page)
        and "shop.send" in page
    )
    assert 'value="cancel-running"' in page
    newest = visit(UserRole.READ).get("/running?sort=newest").text
    assert newest.index(">m1<") < newest.index(">m0<")
    assert 'value="cancel-running"' not in newest and "needs the role" in newest
    assert "No running messages" in visit().get("/running?q=nothing-like-it").text
    assert "Longest run" in visit().get("/queues/low").text


def test_page_says_why_a_button_is_missing(client: Client, visit: Any):
    Queue("low", client).enqueue(encode("shop.send"), mid="m")
    viewer, operator = visit(UserRole.READ), visit(UserRole.OPERATE)
    message = viewer.get("/queues/low/messages/m").text
    for label in ("Cancel", "Edit", "Again"):
        assert f"{label} needs the role operate" in message
    assert "Pause needs the role operate" in viewer.get("/queues/low").text
    assert "Clear needs the role admin" in operator.get("/queues/low").text
    assert "needs the role" not in visit(UserRole.ADMIN).get("/queues/low").text
    closed = visit(UserRole.ADMIN, read_only=True).get("/queues/low").text
    assert "Pause: this dashboard is read-only" in closed


def test_list_says_why_its_bulk_buttons_and_orders_are_missing(client: Client, visit: Any):
    low, now = Queue("low", client), client.clock_ms()
    low.enqueue(encode("shop.send"), mid="dies")
    [held] = low.dequeue().messages
    low.finish([Ending(mid="dies", token=held.token, outcome="dead", reason="ValueError")])
    low.enqueue(encode("shop.send"), mid="m", delay=60)
    low.admin.schedule("add", "nightly", '{"name":"nightly","job":"shop.send","cron":"@daily"}')
    presence.put_worker(client, "web-1:7", {
        "queues": ["low"], "slots": 2, "lease_ms": 15_000, "seen_at": now,
    })  # fmt: skip
    lacks = {
        "/queues/low/messages?place=due": (["Run now", "Cancel"], []),
        "/queues/low/messages?place=dead": (["Revive"], ["Purge"]), "/workers": (["Quiet", "Resume"], []),
        "/workers/web-1:7": (["Quiet", "Stacks"], ["Restart", "Drain"]),
        "/schedules/nightly": (["Pause", "Run now"], []),
    }  # fmt: skip
    viewer, operator, admin = (
        visit(role) for role in (UserRole.READ, UserRole.OPERATE, UserRole.ADMIN)
    )
    closed = visit(UserRole.ADMIN, read_only=True)
    for path, (of_operators, of_admins) in lacks.items():
        texts = [site.get(path).text for site in (viewer, operator, admin, closed)]
        for role, labels in (("operate", of_operators), ("admin", of_admins)):
            for label in labels:
                assert f"{label} needs the role {role}" in texts[0], (path, label)
                assert f"{label}: this dashboard is read-only" in texts[3], (path, label)
                assert (f"{label} needs the role" in texts[1]) == (role == "admin"), (path, label)
        assert "needs the role" not in texts[2] and "read-only" not in texts[2], path
