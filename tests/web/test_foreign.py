"""Pages of topics, RSMQ, RELIABLEQ, Sidekiq and Resque: foreign content is shown as text, damage stays in its row."""

from __future__ import annotations

import pytest

from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.ruby.queues import ResqueQueue, SidekiqQueue
from jobq.queue.audit_log import AuditLog
from jobq.topics import keys
from jobq.topics.topic import Topic
from jobq.web import UserRole

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e\x1b[31m"
SECRET = b'{"user": {"password": "hunter2", "name": "anna"}}'
PAGES = {
    "/topics": "orders", "/topics/orders": "billing", "/rsmq": "sms", "/rsmq/sms": "Content", "/reliable": "invoices",
    "/reliable/invoices": "Content", "/ruby": "default", "/ruby/sidekiq/default": "HardWorker",
    "/ruby/resque/low": "Archive",
}  # fmt: skip


@pytest.fixture
def filled(client, redis):
    """One of everything, with hostile and secret contents."""
    for content in (HOSTILE.encode(), b"\xff\x00", SECRET):
        Topic("orders", client).append(content, key=HOSTILE)
        ReliableQueue(client).push("invoices", content)
    Topic("orders", client).group("billing").subscribe("earliest")
    rsmq = Rsmq(client)
    rsmq.create_queue("sms")
    rsmq.create_queue("sms-dead")
    for content in (HOSTILE.encode(), SECRET):
        rsmq.send_message("sms", content)
    SidekiqQueue("default", client).push("HardWorker", [HOSTILE, {"token": "hunter2"}])
    ResqueQueue("low", client).push("Archive", [7])


@pytest.mark.parametrize("path", PAGES)
def test_contents_of_others_are_text_and_secrets_are_hidden(visit, filled, path):
    reply = visit(UserRole.ADMIN).get(path)
    assert reply.status_code == 200 and PAGES[path] in reply.text
    assert "<img" not in reply.text and "\u202e" not in reply.text and "\x1b" not in reply.text
    assert "hunter2" not in reply.text
    blind = visit(UserRole.READ, arguments=False).get(path)
    assert (
        blind.status_code == 200
        and "onerror" not in blind.text
        and "anna" not in blind.text.replace('">anna<', "").replace("<strong>anna<", "")
    )
    assert '<form method="post" action="/topics' not in blind.text


def test_pages_of_an_installation_without_them_say_what_would_be_there(visit):
    visitor = visit(UserRole.READ)
    for path, command in (("/topics", "jobq topic append"), ("/rsmq", "jobq rsmq queue create"),
                          ("/reliable", "jobq reliable push"), ("/ruby", "jobq ruby push")):  # fmt: skip
        text = visitor.get(path).text
        assert command in text
        assert f'href="{path}"' not in text.partition("<main")[0], "the rail has no link to it"
    for path in (
        "/topics/none",
        "/rsmq/none",
        "/reliable/none",
        "/ruby/celery/x",
        "/reliable/a%20b",
    ):
        assert visitor.get(path).status_code == 404, path
    for path in ("/topics?offset=x", "/rsmq?offset=-1", "/topics?offset=99999999999"):
        assert visitor.get(path).status_code == 400, path


def test_damage_is_named_and_the_rest_is_shown(visit, filled, redis, client):
    redis.sadd(keys.topic_names("jobq"), "broken")
    redis.set("jobq:{broken}:topic:log", "x")
    redis.set("reliable:{broken}:meta", "x")
    redis.sadd("rsmq:QUEUES", "broken")
    redis.set("rsmq:broken", "x")
    redis.sadd("queues", "broken")
    redis.set("queue:broken", "x")
    visitor = visit(UserRole.READ)
    for path, whole in (
        ("/topics", "orders"),
        ("/rsmq", "sms"),
        ("/reliable", "invoices"),
        ("/ruby", "default"),
    ):
        text = visitor.get(path).text
        assert "broken" in text and "be read" in text and f">{whole}<" in text, path


def test_actions_need_a_role_and_are_in_the_audit_log(visit, filled, client, redis):
    reader, operator, admin = visit(UserRole.READ), visit(UserRole.OPERATE), visit(UserRole.ADMIN)
    group = Topic("orders", client).group("billing")
    pause = "/topics/orders/groups/billing/pause"
    assert reader.post(pause).status_code == 403 and not group.lag().paused
    assert operator.post(pause, follow_redirects=False).headers["location"] == "/topics/orders"
    assert group.lag().paused
    operator.post("/topics/orders/groups/billing/resume")
    assert not group.lag().paused
    seek = "/topics/orders/groups/billing/seek"
    assert operator.post(seek, data={"to": "3", "name": "billing"}).status_code == 403
    assert admin.post(seek, data={"to": "3", "name": "wrong"}).status_code == 400
    assert admin.post(seek, data={"to": "moon", "name": "billing"}).status_code == 400
    admin.post(seek, data={"to": "3", "name": "billing"})
    assert group.lag().settled == 2
    operator.post("/rsmq/sms/move", data={"to": "sms-dead", "limit": "1"})
    assert Rsmq(client).get_queue_attributes("sms-dead").msgs == 1
    assert operator.post("/rsmq/sms/move", data={"to": "sms-dead", "limit": "x"}).status_code == 400
    queue = ReliableQueue(client)
    queue.configure("invoices", max_deliveries=1)
    [first] = queue.pop(1, 0, "invoices") or ()
    queue.nack("invoices", first.id)
    assert len(queue.dead("invoices")) == 1
    operator.post("/reliable/invoices/revive", data={"id": first.id})
    assert queue.dead("invoices") == []
    done = [(one.who, one.verb, one.queue, one.filter, one.number) for one in AuditLog(client).page()
            if one.phase == "done"]  # fmt: skip
    assert done == [
        ("anna", "reliable-revive", "invoices", "1 chosen", 1), ("anna", "rsmq-redrive", "sms", "to:sms-dead", 1),
        ("anna", "topic-seek", "orders", "group:billing to:3", None),
        ("anna", "topic-resume", "orders", "group:billing", None),
        ("anna", "topic-pause", "orders", "group:billing", None),
    ]  # fmt: skip


def test_messages_from_an_index_on(visit, filled):
    rows = visit(UserRole.READ).get("/topics/orders?from=2").text
    assert "Messages from 2" in rows and rows.count('scope="row" class="n">') == 2


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/topics/none/groups/billing/pause", {}),
        ("/topics/orders/groups/none/resume", {}),
        ("/topics/none/groups/billing/seek", {"name": "billing", "to": "latest"}),
        ("/rsmq/none/move", {"to": "sms", "limit": "1"}),
        ("/rsmq/sms/move", {"to": "none", "limit": "1"}),
        ("/reliable/none/revive", {"id": "1-0"}),
    ],
)
def test_an_action_is_not_found_when_its_target_does_not_exist(visit, filled, path, form):
    reply = visit(UserRole.ADMIN).post(path, data=form)
    assert reply.status_code == 404
