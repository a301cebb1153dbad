"""The page of settings: findings of the doctor, how the dashboard is set up, levels of events; no secret."""

from __future__ import annotations

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue.queue import Queue
from jobq.web import Identity, UserRole, create_app
from tests.web.conftest import TestClient


def test_findings_and_levels_are_shown(visit, client, redis):
    Queue("low", client).admin.events_level("all")
    Queue("low", client).admin.events_maxlen(5_000)
    Queue("low", client).enqueue(b"x", mid="m")
    Queue("high", client).enqueue(b"x", mid="m")
    redis.hset("jobq:{high}:meta", mapping={"events": "<b>", "maxlen": "x"})
    redis.sadd("jobq:queues", "bad")
    redis.set("jobq:{bad}:meta", "x")
    text = (
        visit(UserRole.READ, read_only=True, lake="/lake")
        .get("/settings")
        .text.partition("<main")[2]
    )
    assert (
        "persistence" in text
        and "read-only" in text
        and "/lake" in text
        and "/api/v1/openapi.json" in text
    )
    assert ">all<" in text and "5,000" in text and "&lt;b&gt;" in text
    assert "<strong>bad</strong> can" in text


def test_passwords_of_servers_are_not_shown(client, server):
    settings = ServerSettings(url=client.url.replace("unix://", "unix://anna:hunter2@", 1))
    hidden = connect(settings=settings)
    try:
        app = create_app(
            client, operate=hidden, identify=lambda request: Identity("anna", UserRole.READ)
        )
        text = TestClient(app, base_url="http://127.0.0.1").get("/settings").text
        assert "Server for actions" in text and "hunter2" not in text
        app.state.site.close()
    finally:
        hidden.close()
