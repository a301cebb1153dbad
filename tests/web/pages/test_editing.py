"""Edit a waiting message, undo the edit, enqueue a copy, clear a queue, and show who paused a worker."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.jobs.codec import decode, encode
from jobq.jobs.signing import opened, seal_of
from jobq.queue.audit_log import AuditLog
from jobq.queue.queue import Queue
from jobq.web import UserRole
from jobq.web.pages.editing import merged
from tests.web.test_messages import announce, words
from tests.web.test_search import settings

PATH = "/queues/low/messages/m1"


@pytest.fixture
def low(client: Any) -> Queue:
    queue = Queue("low", client)
    queue.register()
    queue.enqueue(
        encode("shop.pay", [17, {"card": "4111"}], {"token": "t-1", "to": "a@b"}, 5),
        mid="m1",
        delay=600,
    )
    return queue


def form(visitor: Any) -> dict[str, str]:
    """The fields of the form as a browser would send them."""
    page = visitor.get(f"{PATH}/edit").text
    text = re.search(r'<textarea id="call"[^>]*>(.*?)</textarea>', page, re.S)
    digest = re.search(r'name="digest" value="(\w+)"', page)
    assert text and digest
    return {"call": unescape(text[1]), "digest": digest[1]}


def call(queue: Queue, mid: str = "m1") -> Any:
    found = decode(opened(seal_of(queue.client), "low", mid, queue.content(mid) or b""))
    return found.args, found.kwargs


def test_arguments_are_edited_secrets_stay_and_undo_restores_them(
    visit: Any, low: Queue, client: Any
) -> None:
    anna = visit(UserRole.OPERATE)
    assert f'href="{PATH}/edit"' in anna.get(PATH).text
    fields = form(anna)
    assert (
        "4111" not in fields["call"]
        and "t-1" not in fields["call"]
        and "[hidden]" in fields["call"]
    )
    given = json.loads(fields["call"])
    given["args"][0], given["kwargs"]["to"] = 18, "c@d"
    shown = anna.post(f"{PATH}/edit", data=fields | {"call": json.dumps(given)})
    assert "The arguments were changed" in shown.text
    assert call(low) == ([18, {"card": "4111"}], {"token": "t-1", "to": "c@d"})
    assert low.status("m1").word == "queued-with-backoff"
    refused = anna.post(f"{PATH}/edit", data=fields | {"call": json.dumps(given)})
    assert refused.status_code == 409 and "changed since this form was opened" in refused.text
    operation = re.search(r'name="op" value="(\w+)"', shown.text)
    assert operation
    assert anna.post(f"{PATH}/undo-edit", data={"op": operation[1]}).status_code == 200
    assert call(low) == ([17, {"card": "4111"}], {"token": "t-1", "to": "a@b"})
    assert anna.post(f"{PATH}/undo-edit", data={"op": operation[1]}).status_code == 409
    log = [one for one in AuditLog(client).page() if one.phase == "done"]
    assert [(one.verb, one.filter, one.note) for one in log] == [
        ("undo-edit", "mid:m1", ""), ("edit", "mid:m1", "changed args.0, kwargs.to"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "be read as JSON"),
        ('{"args":[]}', 'must be an object with "args" and'),
        ('{"args":{},"kwargs":{}}', "must be a list"),
        ('{"args":[17,{"card":"[hidden] "}],"kwargs":{}}', "contains a hidden value"),
        ('{"args":[99999999999999999999999],"kwargs":{}}', "is an int outside 64 bits"),
    ],
)
def test_what_cannot_be_an_edit_is_refused_in_words(
    visit: Any, low: Queue, text: str, says: str
) -> None:
    anna = visit(UserRole.OPERATE)
    reply = anna.post(f"{PATH}/edit", data=form(anna) | {"call": text})
    assert reply.status_code == 409
    assert says in words(unescape(reply.text))
    assert call(low)[0][0] == 17


def test_only_who_may_see_arguments_edits_and_only_what_waits(visit: Any, low: Queue) -> None:
    for who in (visit(UserRole.READ), visit(UserRole.OPERATE, arguments=False)):
        assert "Edit…" not in who.get(PATH).text
        assert who.get(f"{PATH}/edit").status_code == 403
        assert who.post(f"{PATH}/edit", data={}).status_code == 403
    anna = visit(UserRole.OPERATE)
    low.admin.run_now("m1")
    fields = form(anna)
    low.dequeue(1)
    assert anna.post(f"{PATH}/edit", data=fields).status_code == 409
    assert anna.get(f"{PATH}/edit").status_code == 409
    assert anna.get("/queues/low/messages/none/edit").status_code == 404


def test_again_enqueues_a_copy_with_a_mid_of_its_own(visit: Any, low: Queue) -> None:
    anna = visit(UserRole.OPERATE)
    shown = anna.post(f"{PATH}/again")
    assert "This is a copy of" in shown.text and low.admin.counts().ready == 1
    [copy] = low.dequeue(1).messages
    assert copy.mid != "m1" and call(low, copy.mid) == call(low)
    assert visit(UserRole.READ).post(f"{PATH}/again").status_code == 403
    assert anna.post("/queues/low/messages/none/again").status_code == 404
    assert anna.post("/queues/low/messages/~import:1.r1.load.0/again").status_code == 409


def test_sealed_call_is_sealed_again_and_not_edited_without_keys(
    visit: Any, low: Queue, client: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(client, "settings", replace(client.settings, codec=settings("sign")))
    seal = seal_of(client)
    assert seal is not None
    low.enqueue(seal.close_call("low", "m2", encode("shop.pay", [1], {}, 5)), mid="m2")
    anna = visit(UserRole.OPERATE)
    assert anna.post("/queues/low/messages/m2/again").status_code == 200
    mids = {one.mid for one in low.dequeue(2).messages} - {"m2"}
    assert call(low, mids.pop()) == ([1], {})


def test_merging_keeps_what_is_as_it_was_shown() -> None:
    stored, shown = {"a": [1, "x"], "b": True}, {"a": [1, "[hidden]"], "b": True}
    assert merged({"a": [2, "[hidden]"], "b": 1}, shown, stored) == {"a": [2, "x"], "b": 1}
    assert merged({"b": True, "c": None}, shown, stored) == {"b": True, "c": None}
    with pytest.raises(ConfigError):
        merged({"a": ["[hidden]"]}, shown, stored)


def test_a_queue_is_cleared_by_an_admin_who_types_its_name(
    visit: Any, low: Queue, client: Any
) -> None:
    operator, admin = visit(UserRole.OPERATE), visit(UserRole.ADMIN)
    assert (
        "Clear…" in admin.get("/queues/low").text
        and "Clear…" not in operator.get("/queues/low").text
    )
    assert "every live message of the queue (1)" in admin.get("/queues/low/clear").text
    assert operator.post("/queues/low/clear", data={"typed": "low"}).status_code == 403
    assert admin.post("/queues/low/clear", data={"typed": "lo"}).status_code == 409
    assert low.admin.counts().messages == 1
    assert admin.post("/queues/low/clear", data={"typed": "low"}).status_code == 200
    assert low.admin.counts().messages == 0
    newest = next(iter(AuditLog(client).page()))
    assert (newest.verb, newest.phase, newest.number) == ("queue-purge", "done", 1)
    assert admin.get("/queues/none/clear").status_code == 404


def test_a_quiet_worker_shows_who_asked_for_it(visit: Any, low: Queue, client: Any) -> None:
    announce(client, "web-7:4711")
    anna = visit(UserRole.OPERATE)
    assert anna.post("/workers/web-7:4711/orders", data={"verb": "quiet"}).status_code == 200
    announce(client, "web-7:4711", quiet=True)
    assert (
        "by anna" in anna.get("/workers").text and "by anna" in anna.get("/workers/web-7:4711").text
    )
    anna.post("/workers/web-7:4711/orders", data={"verb": "resume"})
    assert "by anna" not in anna.get("/workers").text
