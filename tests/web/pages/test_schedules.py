"""Pages of schedules: the figures of `jobq schedule list --json`, the ticks, and the buttons' effects."""

from __future__ import annotations

import html
import re
from typing import Any

from msgspec import structs

from jobq.queue import presence
from jobq.queue.admin import tick_values
from jobq.queue.audit_log import AuditLog
from jobq.queue.queue import Queue
from jobq.schedules.definition import checked_schedule, decoded, encoded
from jobq.web import UserRole
from jobq.web.names import encoded as part
from tests.hostile import HOSTILE

DAY = 86_400_000


def add(
    client: Any, name: str, cron: str = "30 2 * * *", queue: str = "low", now: int | None = None
) -> Queue:
    made = checked_schedule(
        name, "shop.weekly", cron, {"tz": "Europe/Berlin"}, (17,), {"token": "t-1"}
    )
    home = Queue(queue, client)
    home.admin.schedule("add", name, encoded(made), now=now)
    home.register()
    return home


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row" class="long"><a [^>]*>([^<]+)', page)


def test_list_shows_late_ones_first_and_paused_ones_last(visit: Any, client: Any) -> None:
    page = visit()
    assert "No schedules" in page.get("/schedules").text and ">Schedules<" not in page.get("/").text
    add(client, "nightly")
    add(client, "resting").admin.schedule("pause", "resting")
    late = checked_schedule("late", "shop.weekly", "*/5 * * * *", {})
    now = client.clock_ms()
    home = Queue("high", client)
    home.admin.schedule("add", "late", encoded(late), now=now - 3_600_000)
    home.register()
    presence.put_worker(client, "w", {"queues": ["high"], "lease_ms": 15_000, "seen_at": now})
    shown = visit().get("/schedules").text
    assert names(shown) == ["late", "nightly", "resting"]
    assert "late by" in shown and "at 02:30" in shown and "Europe/Berlin" in shown
    assert ">Schedules<" in shown
    assert names(page.get("/schedules?q=night").text) == ["nightly"]
    assert names(page.get("/schedules?state=paused").text) == ["resting"]
    assert "No matching schedules" in page.get("/schedules?q=none&page=7").text


def test_schedule_that_no_running_worker_declares_is_marked(visit: Any, client: Any) -> None:
    now, home = client.clock_ms(), Queue("low", client)
    home.register()
    made = checked_schedule("gone", "shop.weekly", "@daily", {})
    home.admin.schedule("declare", "gone", encoded(made), now=now)
    facts = {"queues": ["low"], "lease_ms": 15_000, "seen_at": now, "schedules": {"low": ["gone"]}}
    presence.put_worker(client, "w", facts)
    assert "undeclared" not in visit().get("/schedules?state=").text.partition("<table")[2]
    presence.put_worker(client, "w", facts | {"schedules": {}})
    page = visit()
    assert names(page.get("/schedules?state=undeclared").text) == ["gone"]
    assert "No running worker of queue" in page.get("/schedules/gone").text
    assert (
        "No running worker of low declares this schedule, so it doesn&#39;t run."
        in page.get("/").text
    )


def test_schedule_says_why_its_jobs_do_not_run(visit: Any, client: Any, redis: Any) -> None:
    home, page = add(client, "nightly"), visit()
    listed = page.get("/schedules?state=no+worker").text
    assert names(listed) == ["nightly"] and "late by" not in listed
    assert "worker --import MODULE --queues low" in page.get("/schedules/nightly").text
    presence.put_jobs(client, ["shop.other"])
    facts = {
        "queues": ["low"], "lease_ms": 15_000, "seen_at": client.clock_ms(),
        "jobs": presence.digest_of(["shop.other"]),
    }  # fmt: skip
    presence.put_worker(client, "w", facts)
    assert names(page.get("/schedules?state=unknown+job").text) == ["nightly"]
    shown = page.get("/schedules/nightly").text
    assert "know the job shop.weekly" in html.unescape(shown)
    presence.put_jobs(client, ["shop.weekly"])
    presence.put_worker(client, "w", facts | {"jobs": presence.digest_of(["shop.weekly"])})
    home.admin.pause()
    assert names(page.get("/schedules?state=queue+paused").text) == ["nightly"]
    assert "is paused: ticks are enqueued" in page.get("/schedules/nightly").text
    redis.delete("jobq:workers")
    redis.set("jobq:workers", "another type")
    for path in ("/schedules", "/schedules/nightly"):
        shown = html.unescape(page.get(path).text)
        assert "The list of workers can't be read" in shown and "--import MODULE" not in shown


def test_schedule_shows_its_ticks_and_when_it_comes(visit: Any, client: Any) -> None:
    now = client.clock_ms()
    home = add(client, "nightly", now=now - 4 * DAY)
    for days, overlap, missed in ((3, "allow", 0), (2, "miss", 0), (1, "allow", 4)):
        at = now - days * DAY
        home.admin.tick(tick_values("nightly", at, home.admin.schedules().ticks["nightly"].last_ms, f"m{days}", b"{}",
                        due_ms=at - 1500, overlap=overlap, missed=missed, now=at))  # fmt: skip
    shown = visit().get("/schedules/nightly").text
    assert shown.count('<li class="done"') == 2 and shown.count('<li class="dead off"') == 1
    assert "1.5 s" in shown and "m1" in shown and "30 2 * * *" in shown
    assert len(re.findall(r"02:30:00 CES?T", shown)) == 5
    assert "t-1" not in shown and "17" in shown
    hidden = visit(arguments=False).get("/schedules/nightly").text
    assert "have the 'arguments' right" in hidden and "0: 17" not in hidden
    assert visit().get("/schedules/none").status_code == 404


def test_buttons_pause_resume_and_run_now(visit: Any, client: Any) -> None:
    home, path = add(client, "nightly"), "/schedules/nightly/steer"
    page = visit(UserRole.OPERATE)
    assert "Resume" in page.post(path, data={"verb": "pause", "queue": "low"}).text
    assert home.admin.schedules().ticks["nightly"].paused
    assert "Paused:" not in page.post(path, data={"verb": "resume", "queue": "low"}).text
    reply = page.post(path, data={"verb": "run-now", "queue": "low"})
    assert "Enqueued:" in reply.text and home.admin.counts().ready == 1
    newest = AuditLog(client).page(limit=1)[0]
    assert (newest.who, newest.verb, newest.queue, newest.filter) == (
        "anna", "schedule-run-now", "low", "schedule:nightly",
    )  # fmt: skip
    for data, code in (
        ({"verb": "remove", "queue": "low"}, 400), ({"verb": "pause", "queue": "none"}, 404),
        ({"verb": "pause"}, 404),
    ):  # fmt: skip
        assert page.post(path, data=data).status_code == code
    missing = page.post("/schedules/none/steer", data={"verb": "pause", "queue": "low"})
    assert missing.status_code == 404
    missing = page.post("/schedules/none/steer", data={"verb": "run-now", "queue": "low"})
    assert missing.status_code == 409 and "no definition" in missing.text
    assert visit(UserRole.READ).post(path, data={"verb": "pause"}).status_code == 403


def test_name_in_two_queues_leads_to_both(visit: Any, client: Any) -> None:
    add(client, "a/b")
    add(client, "a/b", queue="other")
    shown = visit().get(f"/schedules/{part('a/b')}").text
    assert "Queue other also has a schedule with this name" in shown
    assert "Queue low has" not in visit().get(f"/schedules/{part('a/b')}?queue=other").text


def test_damage_spoils_one_row_alone(visit: Any, client: Any, redis: Any) -> None:
    home, page = add(client, "good"), visit()
    base = home.prefix
    values = [one if isinstance(one, bytes) else one.encode() for one in HOSTILE]
    for number, raw in enumerate(values):
        names_of_it = {f"<b>bad{number}": raw, b"\xff\x1b%d" % number: b"a" + raw}
        redis.hset(f"{base}schedules", mapping=names_of_it)
        redis.hset(f"{base}ticks", mapping={f"<b>bad{number}": raw})
        redis.lpush(f"{base}tick-log", raw, b"good\x1f" + raw, b"\x1f".join([b"good", *[raw] * 5]))
    for path in (
        "/schedules",
        "/schedules/good",
        f"/schedules/{part('<b>bad3')}",
        f"/schedules/{part('<b>bad20')}",
    ):
        reply = page.get(path)
        assert reply.status_code == 200, path
        assert "<b>bad" not in reply.text and "\x1b" not in reply.text
    redis.delete(f"{base}ticks")
    redis.set(f"{base}ticks", "another type")
    add(client, "fine", queue="other")
    shown = page.get("/schedules").text
    assert "Schedules of queue low can't be read" in shown and names(shown) == ["fine"]


def test_a_schedule_that_was_added_is_edited_and_keeps_what_is_hidden(
    visit: Any, client: Any
) -> None:
    home, path = add(client, "nightly"), "/schedules/nightly/edit"
    anna = visit(UserRole.OPERATE)
    assert f'href="{path}?queue=low"' in anna.get("/schedules/nightly").text
    page = anna.get(f"{path}?queue=low").text
    assert "t-1" not in page and "30 2 * * *" in page and "Europe/Berlin" in page
    fields = {"cron": "15 4 * * 1", "tz": "UTC", "missed": "skip", "overlap": "queue",
              "call": '{"args": [18], "kwargs": {"token": "[hidden]"}}'}  # fmt: skip
    shown = anna.post(f"{path}?queue=low", data=fields)
    assert shown.status_code == 200 and "15 4 * * 1" in shown.text
    made = decoded(home.admin.schedules().definitions["nightly"][1:])
    assert (made.cron, made.tz, made.missed, made.overlap) == ("15 4 * * 1", "UTC", "skip", "queue")
    assert (made.args, made.kwargs) == ((18,), {"token": "t-1"})
    bounded = structs.replace(made, start_ms=1_000, end_ms=9 * 10**12, times=7)
    home.admin.schedule("add", "nightly", encoded(bounded))
    assert "The first 7 ticks from" in anna.get("/schedules/nightly").text
    assert anna.post(f"{path}?queue=low", data=fields).status_code == 200
    assert decoded(home.admin.schedules().definitions["nightly"][1:]) == bounded
    for wrong in (
        {"cron": "x"},
        {"every": "10m"},
        {"missed": "never"},
        {"call": "{"},
        {"tz": "Moon"},
    ):
        assert anna.post(f"{path}?queue=low", data=fields | wrong).status_code == 409, wrong
    assert [one.phase for one in AuditLog(client).page(limit=1)] == ["refused"]
    assert visit(arguments=False).get(path).status_code == 403
    home.admin.schedule(
        "declare",
        "coded",
        home.admin.schedules().definitions["nightly"][1:].replace("nightly", "coded"),
    )
    assert anna.get("/schedules/coded/edit").status_code == 409
    assert "Edit…" not in anna.get("/schedules/coded").text
