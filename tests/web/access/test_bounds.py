"""Section 11.11: how large a request may be, and how many of them one user may make."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from jobq.metrics.serving import Endpoint
from jobq.queue.audit_log import AuditLog
from jobq.web import UserRole
from jobq.web.access import users
from jobq.web.access.bounds import (
    BURST,
    MAX_SCANS,
    MAX_USERS,
    PER_SECOND,
    REFUSALS,
    RefusalRate,
    RequestRate,
    ScanSlots,
    TooManyScansError,
)
from jobq.web.access.gate import MAX_BODY, MAX_QUERY_KEYS, MAX_URL
from jobq.web.access.settings import AccessSettings
from tests.web.access.gated import gated

SAME = {"sec-fetch-site": "same-origin"}


def test_a_body_has_a_mebibyte_at_most():
    client = gated()
    assert client.post("/", content=b"x" * MAX_BODY, headers=SAME).json()["bytes"] == MAX_BODY
    assert client.post("/", content=b"x" * (MAX_BODY + 1), headers=SAME).status_code == 413


def test_audit_log_keeps_other_entries_when_a_reader_sends_actions_without_end(visit, client):
    reader = visit(UserRole.READ)
    for _ in range(int(REFUSALS) + 15):
        assert reader.post("/queues/low/pause").status_code == 403
    assert AuditLog(client).length() == REFUSALS


def test_refusals_are_counted_when_they_are_left_out():
    now = [0.0]
    rate = RefusalRate(lambda: now[0])
    assert [rate.note("anna", "no") for _ in range(int(REFUSALS) + 3)] == ["no"] * 20 + [None] * 3
    assert rate.note("ben", "no") == "no"
    now[0] = 601.0
    assert rate.note("anna", "no") == "no; rejected requests not logged before this entry: 3"
    assert rate.note("anna", "no") is None


def test_the_log_is_silent_when_a_client_leaves_within_its_body(visit, caplog):
    app = visit(UserRole.OPERATE).app
    parts = [
        {"type": "http.request", "body": b"fil", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    headers = {b"host": b"127.0.0.1", b"sec-fetch-site": b"same-origin", b"content-length": b"9",
               b"content-type": b"application/x-www-form-urlencoded"}  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/queues/low/pause", "raw_path": b"/queues/low/pause", "query_string": b"", "root_path": "",
        "headers": list(headers.items()), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 400 and not caplog.records


def test_a_body_of_unknown_length_is_counted():
    def parts(number):
        yield from (b"x" * 65_536 for _ in range(number))

    client = gated()
    assert client.post("/", content=parts(16), headers=SAME).status_code == 200
    reply = client.post("/", content=parts(400), headers=SAME)
    assert reply.status_code == 413 and "1,048,576 bytes" in reply.text


@pytest.mark.parametrize("length", ["-1", "1e9", "x", "٣", "9" * 5_000])
def test_a_length_that_is_none_is_refused(length):
    headers = {**SAME, "content-length": length.encode()}
    assert gated().post("/", content=b"", headers=headers).status_code in (400, 413)


def test_an_address_has_8_kib_and_50_parameters():
    client = gated()
    assert client.get("/?q=" + "x" * (MAX_URL - 4)).status_code == 200
    assert client.get("/?q=" + "x" * MAX_URL).status_code == 414
    assert client.get("/" + "é" * (MAX_URL // 6 + 1)).status_code == 414
    keys = "&".join(f"k{n}=1" for n in range(MAX_QUERY_KEYS + 1))
    assert client.get("/?" + keys.rpartition("&")[0]).status_code == 200
    assert client.get("/?" + keys).status_code == 400


def test_a_user_makes_30_requests_a_second():
    now = [0.0]
    rate = RequestRate(lambda: now[0])
    assert [rate.take("anna") for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    assert rate.take("bob")
    now[0] = 1.0
    assert sum(rate.take("anna") for _ in range(100)) == PER_SECOND
    now[0] = 1_000.0
    assert sum(rate.take("anna") for _ in range(100)) == BURST
    for number in range(MAX_USERS + 5):
        rate.take(f"user{number}")
    assert len(rate._left) == MAX_USERS


def test_four_scans_run_at_once():
    slots = ScanSlots()
    held = [slots.taken() for _ in range(MAX_SCANS)]
    for one in held:
        one.__enter__()
    with pytest.raises(TooManyScansError, match="try again"), slots.taken():
        pass
    held[0].__exit__(None, None, None)
    with pytest.raises(ZeroDivisionError), slots.taken():
        raise ZeroDivisionError
    with slots.taken():
        pass


def test_a_fifth_search_is_refused_and_a_plain_list_is_not(visit, queue):
    queue.enqueue(b"{}", mid="m")
    page = visit()
    scans = page.app.state.site.guard.scans
    with ExitStack() as stack:
        for _ in range(MAX_SCANS):
            stack.enter_context(scans.taken())
        reply = page.get("/queues/low/messages?f=mid:m")
        assert reply.status_code == 503 and reply.headers["retry-after"] == "2"
        assert "ry again in a moment" in reply.text
        assert page.get("/dead?f=mid:m").status_code == 503
        assert page.get("/dead.jsonl").status_code == 503
        refused = page.get("/api/v1/dead?f=mid:m", headers={"authorization": "Bearer x"})
        assert refused.status_code == 429
        assert page.get("/queues/low/messages").status_code == page.get("/dead").status_code == 200
    assert page.get("/queues/low/messages?f=mid:m").status_code == 200


def test_a_range_has_400_days_at_most(visit, client, tmp_path):
    path = tmp_path / "users.json"
    token = users.add_token(path, "ci", "read", False, None)
    access = AccessSettings(bind=Endpoint("127.0.0.1", 80), users=path)
    page = visit(None, access=access)
    headers = {"authorization": f"Bearer {token}"}
    statuses = [
        page.get(f"/api/v1/history?range={days}d", headers=headers).status_code
        for days in (1, 400, 401, 99_999, 0, -1)
    ]
    assert statuses == [200, 200, 400, 400, 400, 400]
    assert page.get("/history?range=99999d").status_code < 500
