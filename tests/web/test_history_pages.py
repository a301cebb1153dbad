"""Pages of jobs, errors and attempts: from events and from a lake, with hostile names, with hidden errors."""

from __future__ import annotations

import re

import pytest

from jobq.observe.chart import Mark
from jobq.pipeline.lake.audit_entries import keep_audit
from jobq.pipeline.lake.lake import Lake
from jobq.queue import presence
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import UserRole
from jobq.web.history import Span
from jobq.web.lake import LakeHistory
from jobq.web.names import encoded
from jobq.web.pages.history import AskedRange, _known_since, _news
from jobq.web.sources import sources_of
from tests.web.test_history import record, write

HOSTILE = "<img src=x onerror=alert(1)>\u202e"
MINUTE = 60_000
TOKEN = {"authorization": "Bearer x"}


@pytest.fixture
def now(client):
    """Runs of the last ten minutes, in two queues; the time of the server."""
    now = client.clock_ms()
    for queue in ("low", "high"):
        rows = []
        for number in range(40):
            at = now - (40 - number) * MINUTE // 4
            kind = "dead" if number % 8 == 7 else "done"
            error = (
                {"error": f"ValueError: {HOSTILE}", "fingerprint": HOSTILE}
                if kind == "dead"
                else {}
            )
            job = HOSTILE if number % 4 == 3 else "app.resize"
            rows.append(
                (
                    at,
                    record(
                        kind, f"{queue}-{number}", at, job=job, run_us=1000 * number + 1, **error
                    ),
                )
            )
        write(client, queue, rows)
    return now


PAGES = {
    "/jobs": "app.resize", "/jobs?sort=failed&f=RES": "app.resize", "/jobs/app.resize": "Slowest attempts",
    f"/jobs/{encoded(HOSTILE)}": "Errors", "/errors": "ValueError", f"/errors/{encoded(HOSTILE)}": "Latest attempts",
    "/history": "low-39", "/history?kind=dead&queue=low": "low-39", "/history?range=30d&source=events": "high-0",
}  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_are_text(visit, now, path):
    reply = visit(UserRole.READ).get(path)
    assert reply.status_code == 200 and PAGES[path] in reply.text
    content = reply.text.partition("<main")[2]
    assert "<img" not in reply.text and "\u202e" not in content


def test_lists_are_filtered_and_paged(visit, now):
    visitor = visit(UserRole.READ)
    text = visitor.get("/history?kind=dead&queue=low").text
    assert text.count("low-") and "high-" not in text.partition("<table")[2]
    assert "app.resize" not in visitor.get("/jobs?f=nothing").text.partition("<main")[2]
    assert visitor.get("/history?kind=x").status_code == 400
    assert visitor.get("/jobs?range=x&sort=x&source=x").status_code == 200
    for path in ("/jobs/none", "/errors/none", "/history?mid=none"):
        assert "in this range" in visitor.get(path).text


def test_errors_say_whether_the_filter_matches_none(visit):
    visitor = visit(UserRole.READ)
    assert "No matching errors in this range" in visitor.get("/errors?f=zzz").text


def test_hidden_errors_show_their_type_alone(visit, now, client):
    shy = visit(UserRole.READ, hide_errors=True)
    for path in ("/errors", f"/errors/{encoded(HOSTILE)}", "/history", f"/jobs/{encoded(HOSTILE)}"):
        text = shy.get(path).text.partition("<main")[2]
        assert "ValueError" in text and "ValueError: " not in text


def test_newest_traceback_is_that_of_a_dead_message(visit, client):
    queue = Queue("low", client)
    queue.enqueue(b'{"job":"j"}', mid="m1")
    [message] = queue.dequeue().messages
    text = record("", "", 0, error="KeyError", fingerprint="f9").split("\x1f", 3)[3]
    reason = f"KeyError: password=hunter2\n  File {HOSTILE}"
    queue.finish(
        [Ending(mid="m1", token=message.token, outcome="dead", reason=reason, record=text)]
    )
    page = visit(UserRole.READ).get("/errors/f9").text
    assert "Latest traceback" in page and "KeyError" in page
    assert "hunter2" not in page and "<img" not in page
    assert "Latest traceback" not in visit(UserRole.READ, hide_errors=True).get("/errors/f9").text


def test_a_lake_that_cannot_be_read_is_said_and_the_frame_stays(visit, now, tmp_path):
    path = str(tmp_path / "nothing")
    visitor = visit(UserRole.READ, lake=path)
    sources_of(visitor.app.state.site).lake = LakeHistory(path, most_s=120)
    for path in (
        "/jobs?range=24h",
        "/errors?source=lake",
        "/history?range=7d",
        "/jobs/app.resize?range=6h",
    ):
        reply = visitor.get(path)
        assert reply.status_code == 200 and "is not a lake" in reply.text, path
    assert "app.resize" in visitor.get("/jobs?range=15m").text
    assert "has no lake" in visit(UserRole.READ).get("/jobs?source=lake").text


def test_an_error_is_new_if_earlier_events_are_known_without_it(visit, now):
    app = visit(UserRole.READ).app
    sources = sources_of(app.state.site)  # type: ignore[attr-defined]
    span = Span(now - 60 * MINUTE, now + 1)
    asked = AskedRange("1h", "auto", span, sources.events, sources)
    known = _known_since(asked)
    assert known == now - 10 * MINUTE
    assert _news(now - MINUTE, known, span, []) == "new"
    assert _news(now - 10 * MINUTE, known, span, []) == ""
    assert (
        _news(now - MINUTE, known, span, [Mark((now - 2 * MINUTE) / 1000, "v2.4")])
        == "new since v2.4"
    )
    assert _news(now - 5 * MINUTE, known, span, [Mark((now - 2 * MINUTE) / 1000, "v2.4")]) == ""


def test_failures_of_an_error_are_counted_by_deploy(visit, now, client):
    visitor, path = visit(UserRole.READ), f"/errors/{encoded(HOSTILE)}"
    assert "Failures by deploy" not in visitor.get(path).text
    put = {"queues": ["low"], "lease_ms": 600_000, "seen_at": now, "slots": 1, "jobs": ""}
    started = (now - 5 * MINUTE) // MINUTE * MINUTE
    presence.put_worker(client, "w", put | {"started_at": started})
    fresh = visit(UserRole.READ)
    shown = re.sub(
        r"\s+",
        " ",
        re.sub(r"<[^>]+>", " ", fresh.get(path).text.partition("Failures by deploy")[2]),
    )
    deadly = [now - (40 - number) * MINUTE // 4 for number in range(7, 40, 8)] * 2
    after = sum(at >= started for at in deadly)
    assert re.search(rf"1 worker started .* {after} before {10 - after} ", shown), shown[:200]


def test_the_audit_log_goes_on_in_the_lake_where_the_server_has_dropped_it(client, visit, tmp_path):
    lake, log = Lake.create(str(tmp_path / "lake")), AuditLog(client)
    with log.performing(Act("anna", "admin", "purge", "low,other", "arg.card:4711")):
        pass
    for number in range(3):
        log.append(Act(f"ben {HOSTILE}", "cli", "pause", f"q{number}"), "done")
    assert keep_audit(lake, client) == 5
    client.command("XTRIM", "jobq:audit", "MAXLEN", 1)
    visitor = visit(UserRole.READ, lake=lake.store.uri)
    sources_of(visitor.app.state.site).lake = LakeHistory(lake.store.uri, most_s=120)
    page = visitor.get("/audit").text
    assert "q2" in page and "q1" not in page and "come from the lake" not in page
    [older] = re.findall(r'href="([^"]*before=[^"]*)"', page)
    page = visitor.get(older).text
    assert "come from the lake" in page and "<img" not in page
    assert page.count("<tr>") == 1 + 3  # without the intents of finished operations
    assert "anna" in page and "4711" not in page and "unfinished" not in page
    assert visitor.get(f"{older}&queue=other").text.count("<tr>") == 1 + 1
    assert "No older entries" in visitor.get(f"{older}&who=dora").text
    api = visitor.get("/api/v1/audit", headers=TOKEN).json()
    assert [(one["source"], one["verb"], one["phase"]) for one in api["items"]] == [
        ("server", "pause", "done"), ("lake", "pause", "done"), ("lake", "pause", "done"),
        ("lake", "purge", "done"), ("lake", "purge", "intent"),
    ]  # fmt: skip
    assert (api["next"], api["unread"]) == (None, {}) and "4711" not in str(api)
    first = visitor.get("/api/v1/audit?limit=3", headers=TOKEN).json()
    rest = visitor.get(f"/api/v1/audit?limit=3&cursor={first['next']}", headers=TOKEN).json()
    assert first["items"] + rest["items"] == api["items"] and rest["next"] is None
    sources_of(visitor.app.state.site).close()
    sources_of(visitor.app.state.site).lake = LakeHistory(lake.store.uri, most_s=120, server="eu")
    assert [
        one["source"] for one in visitor.get("/api/v1/audit", headers=TOKEN).json()["items"]
    ] == ["server"]
    sources_of(visitor.app.state.site).close()
    sources_of(visitor.app.state.site).lake = LakeHistory(str(tmp_path / "no"), most_s=120)
    assert "is not a lake" in visitor.get(older).text
    found = visitor.get("/api/v1/audit", headers=TOKEN).json()
    assert len(found["items"]) == 1 and "is not a lake" in found["unread"]["lake"]
