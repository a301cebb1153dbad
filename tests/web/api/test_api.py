"""The JSON API: every reply matches the OpenAPI document, errors are problems with codes, only tokens give access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobq.client.connection import Client
from jobq.events import attempt_record, in_utc
from jobq.jobs.codec import encode
from jobq.limits.rate_limit import RateLimit
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.ruby.queues import SidekiqQueue
from jobq.queue import presence
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.schedules.definition import checked_schedule, encoded
from jobq.topics.topic import Topic
from jobq.web import UserRole
from jobq.web.access.identity import READ
from jobq.web.api.resource import RESOURCES, ROOT
from jobq.web.routes import load_pages
from tests import tools
from tests.lifecycle.conftest import ROOT as CHECKOUT
from tests.web.shop import Shop

Draft202012Validator = tools.library("jsonschema").Draft202012Validator
validate = tools.library("openapi_spec_validator").validate
yaml = tools.library("yaml")
HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b[31m"
TOKEN = {"Authorization": "Bearer x"}
Get = Callable[..., Any]


@pytest.fixture
def api(visit: Callable[..., TestClient]) -> TestClient:
    """A program with an administrator's token."""
    made = visit(UserRole.ADMIN)
    made.headers.update(TOKEN)
    return made


@pytest.fixture
def filled(client: Client) -> None:
    """Queues, a topic, runs of hostile jobs."""
    low = Queue("low", client)
    low.admin.events_level("all")
    for number in range(8):
        low.enqueue(encode("app.mail"), mid=f"m{number}")
    low.enqueue(b"\xff\x00 no call", mid=HOSTILE[:25])
    low.enqueue(encode("app.mail"), mid="later", delay=3600)
    messages = low.dequeue(6).messages
    kinds = ("done", "retry", "dead", "done", "crashed")
    endings = []
    for message, kind in zip(messages, kinds):
        error = (
            {} if kind == "done" else {"error": f"ValueError: {HOSTILE}", "fingerprint": "ab" * 8}
        )
        record = attempt_record("app.mail", 1, 500, 20_000, 9_000, 70_000, "w:1", **error)
        endings.append(
            Ending(mid=message.mid, token=message.token, outcome=kind, record=record, reason="no")
        )
    low.finish(endings)
    topic = Topic("orders", client)
    topic.append_many([b"1", HOSTILE.encode(), b"\xff"])
    topic.group("mail").subscribe("earliest")
    facts = {
        "queues": ["low"],
        "slots": 8,
        "lease_ms": 15_000,
        "started_at": 1,
        "seen_at": client.clock_ms(),
    }
    presence.put_worker(client, "web-7:4711", facts)
    running = [RunningJob("low", HOSTILE[:25], client.clock_ms())]
    presence.put_running(
        client, "web-7:4711", [ChildEntry(4712, "working", 1 << 20, 4, tuple(running))]
    )
    schedule = checked_schedule("nightly", "app.mail", "30 2 * * *", {"tz": "Europe/Berlin"})
    low.admin.schedule("add", "nightly", encoded(schedule))
    RateLimit("smtp", "20/m", client=client).try_acquire()
    rsmq = Rsmq(client)
    rsmq.create_queue("sms")
    rsmq.send_message("sms", HOSTILE)
    ReliableQueue(client).push("invoices", "one")
    SidekiqQueue("default", client).push("HardWorker", [1])
    shop = Shop(client)
    shop.flows()
    client.command("ZADD", "jobq:flows", 1, HOSTILE)
    log = AuditLog(client)
    for number in range(3):
        with log.performing(Act("anna", "admin", "pause", "low", HOSTILE, number)):
            pass


#: Values for the parts of paths.
NAMES = {
    "queue": "low", "mid": "m7", "job": "app.mail", "group": "ab" * 8, "topic": "orders", "worker": "web-7:4711",
    "operation": "0" * 16, "flow": "import:2026-11-23",
}  # fmt: skip
#: Query that a resource needs.
NEEDED = {"/autoscale": "?queues=low,high", "/messages": "?f=job:app.*"}


def reads() -> list[str]:
    load_pages()
    return sorted(one.path for one in RESOURCES.declared if one.method == "GET")


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without room for other fields."""
    made: dict[str, Any] = {
        key: strict(value) if isinstance(value, dict)
        else [strict(one) if isinstance(one, dict) else one for one in value] if isinstance(value, list)
        else value
        for key, value in schema.items()
    }  # fmt: skip
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made["additionalProperties"] = False
    return made


def validator_of(document: dict[str, Any], path: str) -> Any:
    """Return a validator for GET replies of this path, which forbids other fields."""
    reply = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    return Draft202012Validator(strict({**reply["schema"], "components": document["components"]}))


@pytest.fixture
def document(api: TestClient) -> dict[str, Any]:
    """The document of this dashboard."""
    found: dict[str, Any] = api.get(f"{ROOT}/openapi.json").json()
    return found


def test_the_document_is_valid_and_names_every_resource(document):
    validate(document)
    load_pages()
    assert {
        (path, method.upper()) for path, ways in document["paths"].items() for method in ways
    } == {(one.path, one.method) for one in RESOURCES.declared}
    assert document["openapi"] == "3.1.0" and document["servers"] == [{"url": ROOT}]


@pytest.mark.parametrize("path", [one for one in reads() if "{operation}" not in one])
def test_replies_are_as_the_document_says(api, filled, document, path):
    asked = path.format_map(NAMES) + NEEDED.get(path, "")
    reply = api.get(ROOT + asked)
    assert reply.status_code == 200, reply.text
    validator_of(document, path).validate(reply.json())
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", reads())
def test_replies_of_an_empty_server_are_too(api, document, path):
    reply = api.get(ROOT + path.format_map(NAMES) + NEEDED.get(path, ""))
    if reply.status_code == 404:
        assert reply.json()["code"] == "not_found" and "{" in path
        return
    assert reply.status_code == 200, reply.text
    validator_of(document, path).validate(reply.json())


def is_problem(reply: Any, status: int, code: str) -> bool:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json()
    assert (found["status"], found["code"]) == (status, code) and found["detail"] and found["title"]
    return True


def test_errors_are_problems(api, visit, filled):
    assert is_problem(api.get(f"{ROOT}/nothing"), 404, "not_found")
    assert is_problem(api.post(f"{ROOT}/jobs"), 405, "method_not_allowed")
    for query in ("range=x", "range=500d", "since=8&until=9", "limit=0", "limit=1001", "limit=1&limit=2",
                  "limit=%D9%A3", "cursor=!", "cursor=WyJ4Il0", "source=moon", "source=lake", "since=2026-13-01T00:00Z",
                  "queues=a%20b"):  # fmt: skip
        path = "/autoscale" if query.startswith("queues") else "/jobs"
        assert is_problem(api.get(f"{ROOT}{path}?{query}"), 400, "bad_request"), query
    assert is_problem(api.get(f"{ROOT}/autoscale"), 400, "bad_request")
    assert is_problem(api.get(f"{ROOT}/errors/none"), 404, "not_found")


def test_only_a_token_opens_it(visit, client):
    for path in [f"{ROOT}{path.format_map(NAMES)}" for path in reads()] + [
        f"{ROOT}/openapi.json",
        "/metrics",
    ]:
        # A session is not enough: a browser sends it by itself.
        cookie = visit(UserRole.ADMIN).get(path)
        assert cookie.status_code == 401
        nobody = visit(None).get(path, headers=TOKEN)
        assert (
            nobody.status_code == 401 and "www-authenticate" in nobody.headers
        ) or path == "/metrics"
    declared = load_pages().declared
    for one in RESOURCES.declared:
        if one.role > READ:
            path = ROOT + one.path.format_map(NAMES)
            reply = visit(UserRole.READ).request(one.method, path, headers=TOKEN, json={})
            assert is_problem(reply, 403, "forbidden")
    assert {
        one.program for one in declared.values() if one.path.startswith(("/api/", "/metrics"))
    } == {True}


def test_pages_of_a_list_hold_each_row_once(api, client):
    queue = Queue("low", client)
    for number in range(7):
        queue.enqueue(encode("j"), mid=f"m{number}")
    messages = queue.dequeue(7).messages
    queue.finish([
        Ending(mid=one.mid, token=one.token, record=attempt_record(f"app.j{n % 5}", 1, 9, 9, 9, 9, "w"))
        for n, one in enumerate(messages)
    ])  # fmt: skip
    for path, count, key in (("/jobs", 5, "job"), ("/history", 7, "mid")):
        rows, cursor = [], ""
        while cursor is not None:
            page = api.get(f"{ROOT}{path}", params={"limit": 2, "cursor": cursor}).json()
            assert len(page["items"]) <= 2
            rows += [row[key] for row in page["items"]]
            cursor = page["next"]
        assert len(rows) == len(set(rows)) == count


def test_hidden_errors_show_their_type(visit, filled):
    shy = visit(UserRole.READ, hide_errors=True)
    text = "".join(
        shy.get(f"{ROOT}{path}", headers=TOKEN).text
        for path in ("/errors", f"/errors/{'ab' * 8}", "/history", "/jobs/app.mail")
    )
    assert "ValueError" in text and "alert" not in text


def test_probes_and_metrics(api, visit, filled, client):
    anyone = visit(None)
    assert anyone.get("/healthz").text == "ok\n" and anyone.get("/readyz").text == "ready\n"
    found = api.get("/metrics")
    assert 'jobq_queue_messages{place="ready",queue="low"}' in found.text
    assert found.headers["content-type"].startswith("text/plain")


def test_a_server_that_is_away(visit, monkeypatch, client):
    from jobq.errors import UnavailableError

    there = visit(UserRole.READ)

    def away(*_: Any, **__: Any) -> Any:
        raise UnavailableError("no reply")

    for name in ("command", "run", "perform", "clock_ms"):
        monkeypatch.setattr(Client, name, away)
    assert is_problem(there.get(f"{ROOT}/jobs", headers=TOKEN), 503, "server_away")
    assert there.get("/readyz").status_code == 503 and there.get("/healthz").status_code == 200


def test_keda_finds_the_slots_where_contrib_says(api, filled):
    text = (CHECKOUT / "contrib" / "keda" / "metrics-api.yaml").read_text()
    [trigger] = list(yaml.safe_load_all(text))[1]["spec"]["triggers"]
    facts = trigger["metadata"]
    reply = api.get(facts["url"].removeprefix("http://jobq-web:8700"))
    # Three ready, one running; a retry that waits is delayed.
    assert reply.status_code == 200 and isinstance(reply.json()[facts["valueLocation"]], int)
    assert facts["authMode"] == "bearer"


def test_figures_equal_those_of_the_commands(api, filled, client):
    low = Queue("low", client).admin.counts()
    row = api.get(f"{ROOT}/queues/low").json()
    assert (row["ready"], row["delayed"], row["running"], row["dead"], row["messages"]) == (
        low.ready, low.delayed, low.locked, low.dead, low.messages,
    )  # fmt: skip
    dead = api.get(f"{ROOT}/dead").json()["items"]
    assert [(one["mid"], one["dead_id"]) for one in dead] == [
        (one.mid, one.dead_id) for one in Queue("low", client).admin.dead()
    ]
    late = api.get(f"{ROOT}/queues/low/messages/later").json()
    assert late["why"][0]["code"] == "delayed" and late["not_before"].endswith("Z")
    assert api.get(f"{ROOT}/queues/low/messages/later/why").json()["reasons"] == late["why"]
    Queue("low", client).cancel("later")
    assert api.get(f"{ROOT}/queues/low/messages/later").json()["state"] == "cancelled"
    assert [one["state"] for one in api.get(f"{ROOT}/workers").json()["items"]] == ["working"]
    assert [one["id"] for one in api.get(f"{ROOT}/audit").json()["items"]] == [
        one.entry_id for one in AuditLog(client).page()
    ]
    assert api.get(f"{ROOT}/schedules").json()["items"][0]["next_at"] is not None
    assert {one["limit"] for one in api.get(f"{ROOT}/limits").json()["items"]} == {"smtp"}


def test_lists_of_messages_go_on_where_the_reply_before_ended(api, client):
    Queue("low", client).enqueue_many([(f"m{n}", encode("app.mail")) for n in range(25)])
    rows, cursor = [], ""
    while cursor is not None:
        page = api.get(
            f"{ROOT}/queues/low/messages", params={"limit": 10, "cursor": cursor, "f": "job:app.*"}
        ).json()
        rows += [one["mid"] for one in page["items"]]
        cursor = page["next"]
    assert sorted(rows) == sorted(f"m{n}" for n in range(25))
    assert is_problem(api.get(f"{ROOT}/messages?f=job:x&cursor=nonsense"), 400, "bad_request")
    assert is_problem(api.get(f"{ROOT}/messages?f=nokey:x"), 400, "bad_request")
    assert is_problem(api.get(f"{ROOT}/queues/none/messages"), 404, "not_found")


def test_queue_says_when_its_pause_ends(api, filled, client):
    ends = Queue("low", client).admin.pause("1h")
    row = api.get(f"{ROOT}/queues/low").json()
    assert (row["paused"], row["pause_ends"]) == (True, in_utc(ends))
