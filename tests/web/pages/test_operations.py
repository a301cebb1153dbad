"""The pages of operations and of the audit log, without JavaScript."""

from __future__ import annotations

import re

import pytest

from jobq.queue.audit_log import AuditLog
from jobq.queue.queue import Queue
from jobq.web.access.identity import UserRole
from jobq.web.operations.service import operations_of
from tests.web.operations.conftest import dead

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202e"


@pytest.fixture
def low(client):
    queue = Queue("low", client)
    queue.register()
    queue.enqueue_many([(f"m{n}", b"x") for n in range(5)])
    queue.finish([dead(one) for one in queue.dequeue(5).messages])
    return queue


def posted(visitor, path, **fields):
    """Return the page after a form, once its operation has finished."""
    sent = visitor.post(path, data=fields, follow_redirects=False)
    operations_of(visitor.app.state.site).wait()
    return visitor.get(sent.headers["location"]) if sent.status_code == 303 else sent


def test_incident_is_previewed_applied_spread_over_time_and_undone(visit, low):
    anna = visit(UserRole.OPERATE)
    preview = posted(anna, "/operations", verb="revive", scope="all", f="queue:low error:timeout*")
    assert preview.status_code == 200
    assert "Nothing has been changed yet" in preview.text and "Over 10 minutes" in preview.text
    assert low.admin.counts().dead == 5
    done = posted(anna, f"{preview.url.path}/apply", spread="10m")
    assert "Revived: 5 of 5 messages." in done.text
    assert re.search(r"Undo, \d+ m left", done.text)
    assert (low.admin.counts().ready, low.admin.counts().delayed) == (1, 4)
    assert anna.get("/operations").text.count(preview.url.path) == 1
    undone = posted(anna, f"{preview.url.path}/undo")
    assert "Undone: 5 messages restored." in undone.text
    assert low.admin.counts().dead == 5
    shown = anna.get("/audit")
    assert shown.text.count(f'href="{preview.url.path}"') == 2 and "anna" in shown.text


def test_all_pages_offer_the_undo_of_what_their_user_did_last_until_it_is_hidden(visit, low, redis):
    anna, ben = visit(UserRole.OPERATE), visit(UserRole.READ)
    preview = posted(anna, "/operations", verb="revive", scope="all", f="queue:low")
    path = preview.url.path
    assert "note-of" not in anna.get("/dead").text  # nothing is changed yet
    assert "note-of" not in posted(anna, f"{path}/apply").text  # its own page has the button
    for one in ("/dead", "/queues/low", "/messages", "/queues/low/messages/d0"):
        assert "Revived: 5 of 5 messages" in anna.get(one).text and "m left" in anna.get(one).text
        assert "note-of" not in ben.get(one).text
    live = anna.get("/dead", headers={"X-Jobq-Live": "1"}).text
    assert 'id="note"' in live and f"{path}/undo" in live
    op = path.rpartition("/")[2]
    anna.post("/view", data={"read": op, "next": "/dead"})
    assert "note-of" not in anna.get("/dead").text
    anna.post("/view", data={"read": "<b>"})
    other = posted(anna, "/operations", verb="cancel", scope="all", f="queue:low")
    posted(anna, f"{other.url.path}/apply")
    assert "Cancelled: 5 of 5 messages" in anna.get("/dead").text
    posted(anna, f"{other.url.path}/undo")
    assert "note-of" not in anna.get("/dead").text
    redis.set(f"jobq:web:op:{'a' * 16}", "another type")
    redis.zadd("jobq:web:operations", {"a" * 16: 9e15})
    assert anna.get("/dead").status_code == anna.get("/operations").status_code == 200


def test_what_a_filter_asks_of_arguments_is_shown_to_those_who_may_see_them(visit, low):
    anna, ben = visit(UserRole.OPERATE), visit(UserRole.READ, arguments=False)
    asked = {"scope": "all", "f": 'queue:low arg.to:"anna b",x@y job:seen'}
    preview = posted(anna, "/operations", verb="revive", **asked)
    assert anna.post("/operations", data=asked | {"verb": "purge"}).status_code == 403
    for path in (preview.url.path, "/operations", "/audit", "/api/v1/operations", "/api/v1/audit"):
        headers = {"authorization": "Bearer x"} if "api" in path else {}
        assert "x@y" in anna.get(path, headers=headers).text, path
        shown = ben.get(path, headers=headers).text
        assert "job:seen" in shown and "[hidden]" in shown, path
        assert "x@y" not in shown and "anna b" not in shown, path


def test_ticked_messages_alone_are_purged_and_only_by_an_admin(visit, low, client):
    ids = [one.dead_id for one in low.admin.dead()]
    fields = {"verb": "purge", "id": [f"low {ids[0]}", f"low {ids[2]}"]}
    refused = visit(UserRole.OPERATE).post("/operations", data=fields)
    assert refused.status_code == 403 and "Purge needs the role admin" in refused.text
    assert [one.phase for one in AuditLog(client).page()] == ["refused"]
    admin = visit(UserRole.ADMIN)
    preview = posted(admin, "/operations", **fields)
    assert posted(admin, f"{preview.url.path}/apply").status_code == 200
    assert {one.dead_id for one in low.admin.dead()} == {ids[1], ids[3], ids[4]}


def test_what_cannot_be_undone_is_typed(visit, low):
    low.enqueue(b"x", mid="runs")
    low.dequeue(1)
    admin = visit(UserRole.ADMIN)
    preview = posted(admin, "/operations", verb="cancel-running", scope="all", f="queue:low")
    assert "Type low to confirm" in preview.text
    wrong = posted(admin, f"{preview.url.path}/apply", typed="lo")
    assert wrong.status_code == 409 and low.status("runs").word == "locked"
    done = posted(admin, f"{preview.url.path}/apply", typed="low")
    assert "Cancelled: 1 of 1 message." in done.text and "Undo" not in done.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"verb": "revive"}, "No messages selected"),
        ({"verb": "drop", "scope": "all"}, "is not an operation"),
        ({"verb": "revive", "scope": "all", "f": "place:ready"}, "not a key of this list"),
        ({"verb": "revive", "id": "{x} a"}, "can&#39;t be used"),
        ({"verb": "revive", "scope": "all", "f": "x" * 501}, "500 are allowed"),
    ],
)
def test_bad_form_is_refused_in_words(visit, low, fields, says):
    refused = visit().post("/operations", data=fields)
    assert refused.status_code == 409 and says in refused.text


def test_unknown_operation_is_not_found(visit):
    for op in ("0" * 16, "none", "..%2fx"):
        assert visit().get(f"/operations/{op}").status_code == 404
    assert visit().post(f"/operations/{'0' * 16}/apply").status_code == 409


def test_queue_is_paused_and_resumed_by_those_who_may(visit, low, client):
    anna = visit(UserRole.OPERATE)
    assert 'action="/queues/low/pause"' in anna.get("/queues/low").text
    assert anna.post("/queues/low/pause", follow_redirects=False).status_code == 303
    assert low.admin.counts().paused
    assert anna.post("/queues/low/resume", follow_redirects=False).status_code == 303
    assert not low.admin.counts().paused
    assert anna.post("/queues/nowhere/pause").status_code == 404
    assert [(one.who, one.verb, one.queue, one.phase) for one in AuditLog(client).page()] == [
        ("anna", verb, "low", phase) for verb in ("resume", "pause") for phase in ("done", "intent")
    ]  # fmt: skip
    reader = visit(UserRole.READ)
    assert reader.post("/queues/low/pause").status_code == 403
    [refused, *_] = AuditLog(client).page()
    assert (refused.phase, refused.verb, refused.queue) == ("refused", "pause_queue", "low")
    assert "needs the role operate; you have read" in refused.note
    assert "/queues/low/pause" not in reader.get("/queues/low").text
    assert visit(UserRole.ADMIN, read_only=True).post("/queues/low/pause").status_code == 403


def test_audit_page_filters_pages_and_shows_whatever_is_there(visit, client, redis):
    assert "No entries" in visit().get("/audit").text
    for n in range(130):
        redis.xadd(
            "jobq:audit",
            {"who": "bert", "verb": f"v{n}", "phase": "done", "queue": "low", "op": f"o{n}"},
        )
    redis.xadd(
        "jobq:audit",
        {"who": HOSTILE, "verb": HOSTILE, "phase": HOSTILE, "queue": HOSTILE, "note": HOSTILE},
    )
    redis.xadd("jobq:audit", {b"\xff": b"\xfe"})
    page = visit().get("/audit").text
    assert "<script>alert" not in page and "\x1b" not in page and page.count("damaged") >= 2
    assert "v129" in page and ">v31<" not in page
    older = re.search(r'href="(/audit\?before=[^"]+)"', page)
    assert older and ">v31<" in visit().get(older[1].replace("&amp;", "&")).text
    assert visit().get("/audit?verb=v7").text.count(">v7<") == 1
    assert "No matching entries" in visit().get("/audit?who=nobody").text
    assert visit().get("/audit?before=x").status_code == 409


def test_damaged_keys_of_operations_hide_nothing(visit, redis):
    redis.set("jobq:web:operations", "x")
    redis.set(f"jobq:web:op:{'a' * 16}", "x")
    for path in ("/", "/audit", "/queues"):
        assert visit().get(path).status_code == 200
    assert visit().get("/operations").status_code == 500
    assert "WRONGTYPE" in visit().get(f"/operations/{'a' * 16}").text


def test_lists_of_messages_have_the_buttons_that_their_reader_may_use(visit, low, client):
    """From the dead to a revival without a typed word: the group, all that match, the preview, apply."""
    [one, *_] = low.admin.dead()
    operator, admin, reader = (
        visit(role) for role in (UserRole.OPERATE, UserRole.ADMIN, UserRole.READ)
    )
    text = operator.get("/dead?f=queue:low").text
    assert f'value="low {one.dead_id}"' in text and 'name="f" value="queue:low"' in text
    assert 'value="revive"' in text and 'value="purge"' not in text
    assert 'value="purge"' in admin.get("/queues/low/messages?place=dead").text
    assert 'name="verb"' not in reader.get("/dead?f=queue:low").text
    assert (
        'name="scope"' not in admin.get("/dead").text
    )  # not all the dead of all queues by one button
    low.enqueue(b"x", mid="m", delay=60)
    due = operator.get("/queues/low/messages?place=due").text
    assert 'value="queue:low place:due"' in due and 'value="run-now"' in due
    message = operator.get("/queues/low/messages/m").text
    assert 'value="low m"' in message and 'value="cancel"' in message
    preview = posted(operator, "/operations", verb="revive", scope="all", f="queue:low")
    assert "Revive 5 messages" in preview.text
