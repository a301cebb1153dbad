"""Section 11.12: pages read as the server's user `dashboard`, and only operations use the user of --url-operate."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobq.cli import main
from jobq.client.connection import Client, connect
from jobq.client.functions import load_library
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.metrics.serving import Endpoint
from jobq.web import Identity, UserRole, create_app
from jobq.web.access.settings import AccessSettings
from jobq.web.access.users import add_user, new_user
from jobq.web.routes import load_pages
from tests.web.access.test_routes import path_of
from tests.web.shop import Shop

SAME = {"sec-fetch-site": "same-origin"}
#: Pages of protocols whose keys are not jobq's: the user `operator` may not read them.
FOREIGN = ("/rsmq", "/reliable", "/ruby", "/api/v1/rsmq", "/api/v1/reliable", "/api/v1/ruby")
#: Keys that the sidebar queries, to leave out the pages of those protocols.
OF_OTHERS = ("scan", "queues", "rsmq:QUEUES", "resque:queues", "sidekiq:queues")
#: Pages that only send permitted commands. Other pages show the permitted parts.
WITHIN = {
    "overview", "queues", "queue", "queue_messages", "messages", "message", "queue_events", "find", "workers", "worker",
    "schedules", "schedule", "topics", "topic", "jobs", "job", "errors", "error", "metrics",
}  # fmt: skip


@pytest.fixture
def users(
    server: Any, redis: Any, client: Client, capsys: Any
) -> Iterator[Callable[[str], Client]]:
    """users("dashboard"): a client of the user that `jobq acl` prints."""
    load_library(client)
    made: list[Client] = []

    def login(role: str) -> Client:
        assert main(["acl", role]) == 0
        redis.execute_command(*shlex.split(capsys.readouterr().out), ">x")
        url = server.url.replace("unix://", f"unix://jobq_{role}:x@")
        made.append(connect(settings=ServerSettings(url=url, functions=True, patience_s=10)))
        return made[-1]

    yield login
    for one in made:
        one.close()
    for role in ("dashboard", "operator"):
        redis.execute_command("ACL", "DELUSER", f"jobq_{role}")
    redis.function_flush()


def refused(redis: Any) -> list[tuple[str, str]]:
    """Return rejected commands of users, by (user, command or key)."""
    found = [
        {str(name, "ascii"): value for name, value in zip(one[::2], one[1::2])}
        if isinstance(one, list) else {str(name, "ascii"): value for name, value in one.items()}
        for one in redis.execute_command("ACL", "LOG")
    ]  # fmt: skip
    return [(one["username"].decode(), one["object"].decode()) for one in found]


def walked(client: Client, redis: Any) -> dict[str, tuple[int, list[tuple[str, str]]]]:
    """Request all pages of jobq; return pages that fail, or that send forbidden commands."""
    app = create_app(client, identify=lambda _: Identity("anna", UserRole.ADMIN, arguments=True))
    app.state.site.guard.rate.take = lambda user: True
    page = TestClient(app, base_url="http://127.0.0.1", headers=SAME, follow_redirects=False)
    redis.execute_command("ACL", "LOG", "RESET")
    wrong = {}
    for route in load_pages().declared.values():
        if route.method != "GET":
            continue
        headers = {"authorization": "Bearer x"} if route.program else {}
        status = page.get(path_of(route), headers=headers).status_code
        denied = [one for one in refused(redis) if one[1] not in OF_OTHERS]
        redis.execute_command("ACL", "LOG", "RESET")
        if status >= 500 or (denied and route.name in WITHIN):
            wrong[route.name] = (status, denied)
    app.state.site.close()
    return wrong


@pytest.mark.parametrize("role", ["dashboard", "operator"])
def test_every_page_of_jobq_reads_as_that_user(users, redis, client, role):
    Shop(client).fill()
    wrong = walked(users(role), redis)
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def test_the_user_dashboard_writes_logins_and_nothing_else(users, redis, tmp_path):
    reader = users("dashboard")
    path = tmp_path / "users.json"
    add_user(path, "anna", new_user("admin", True, "correct horse battery"))
    access = AccessSettings(bind=Endpoint("127.0.0.1", 8700), users=path)
    app = create_app(reader, access=access)
    page = TestClient(app, base_url="http://127.0.0.1:8700", headers=SAME, follow_redirects=False)
    redis.execute_command("ACL", "LOG", "RESET")
    wrong = {"name": "anna", "password": "wrong password"}
    assert [page.post("/login", data=wrong).status_code for _ in range(6)] == [403] * 5 + [429]
    redis.delete(*redis.keys("jobq:web:login:*"))
    right = {"name": "anna", "password": "correct horse battery"}
    assert page.post("/login", data=right).status_code == 303
    assert page.get("/queues").status_code == 200
    page.post("/logout")
    denied = {what for _, what in refused(redis)}
    # Nor an entry of the audit log, which is a call of a function that writes.
    assert denied <= {"fcall", *OF_OTHERS}
    for command in (
        ("SET", "jobq:web:op:x", "1"), ("SET", "jobq:web:other", "1"), ("DEL", "jobq:{low}:ready"),
        ("GET", "jobq:web:sessions"), ("SET", "other:web:session:x", "1"), ("XADD", "jobq:audit", "*", "a", "b"),
    ):  # fmt: skip
        with pytest.raises(JobqError, match=r"permission|No permissions"):
            reader.command(*command, routed_by=command[1])
    app.state.site.close()


def test_the_user_dashboard_sees_the_queues_of_other_protocols(users, redis, client):
    Shop(client).fill()
    reader = users("dashboard")
    app = create_app(reader, identify=lambda _: Identity("anna", UserRole.ADMIN, arguments=True))
    page = TestClient(app, base_url="http://127.0.0.1", headers=SAME, follow_redirects=False)
    for path, says in (
        ("/rsmq", "sms"), ("/rsmq/sms", "Content"), ("/reliable/invoices", "Content"),
        ("/reliable", "refuses to list keys"), ("/ruby", "default"), ("/ruby/sidekiq/default", "as Ruby wrote it"),
    ):  # fmt: skip
        reply = page.get(path)
        assert (reply.status_code, says in reply.text) == (200, True), (path, reply.text)
    bearer = {"authorization": "Bearer x"}
    found = page.get("/api/v1/rsmq", headers=bearer).json()
    assert "sms" in [one["queue"] for one in found["items"]]
    assert page.get("/api/v1/reliable", headers=bearer).json()["complete"] is False
    moved = page.post("/rsmq/sms/move", data={"to": "sms-dead", "limit": "1"})
    assert moved.status_code == 403 and "jobq acl" in moved.text
    for key in ("rsmq:sms", "queue:default"):
        with pytest.raises(JobqError, match=r"permission|No permissions"):
            reader.command("DEL", key, routed_by=key)
    app.state.site.close()


def test_only_actions_use_the_user_who_may_change(users, redis, client):
    Shop(client).fill()
    app = create_app(
        users("dashboard"), operate=users("operator"),
        identify=lambda _: Identity("anna", UserRole.ADMIN, arguments=True),
    )  # fmt: skip
    site = app.state.site
    assert "jobq_dashboard" in site.client.url and "jobq_operator" in site.operate.url
    page = TestClient(app, base_url="http://127.0.0.1", headers=SAME, follow_redirects=False)
    redis.execute_command("ACL", "LOG", "RESET")
    asked = {}
    for route in load_pages().declared.values():
        if (
            route.method == "POST"
            and route.role > UserRole.READ
            and not route.path.startswith(FOREIGN)
        ):
            reply = page.post(path_of(route))
            asked[route.name] = reply.status_code
    assert asked and all(status < 500 for status in asked.values()), asked
    # What is refused is refused to the user who reads, and means that an action wrote as that user.
    assert not [
        one for one in refused(redis) if one[0] == "jobq_dashboard" and one[1] not in OF_OTHERS
    ]
    site.close()
