"""Pages of flows on a real server: the list, the drawing, a flow's waits, and links from its messages."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from jobq.flows.identity import member_mid
from jobq.flows.keys import flow_names
from jobq.flows.types import StoredFlow
from jobq.queue.audit_log import AuditLog
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import UserRole
from jobq.web.names import encoded
from tests.flows.flowing import Flowing, step
from tests.hostile import HOSTILE
from tests.web.shop import Shop, flow_step
from tests.web.test_messages import words

pytestmark = pytest.mark.usefixtures("run_ids")
IMPORT = "/flows/import:2026-11-23"


@pytest.fixture
def shop(client: Any) -> Shop:
    made = Shop(client)
    made.flows()
    return made


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row" class="mono long"><a [^>]*>([^<]+)', page)


def test_list_shows_the_newest_first_with_state_and_progress(visit: Any, client: Any) -> None:
    page = visit()
    assert "No flows" in page.get("/flows").text and ">Flows<" not in page.get("/").text
    Shop(client).flows()
    shown = visit().get("/flows").text
    assert names(shown) == ["import:2026-11-23", "onboarding:cust-4711", "invoice:2026-10"]
    said = words(shown)
    assert "2 of 9 steps, 609 of 1,002 members" in said and "3 dead" in said and "✕ failed" in said
    assert ">Flows<" in visit().get("/").text
    assert names(page.get("/flows?q=IMP").text) == ["import:2026-11-23"]
    assert names(page.get("/flows?state=failed").text) == ["invoice:2026-10"]
    assert "No matching flows" in page.get("/flows?q=none").text
    assert page.get("/flows?offset=x").status_code == 400


def test_a_producer_that_stopped_shows(visit: Any, shop: Shop) -> None:
    stored = StoredFlow((
        flow_step("resize", "images", "shop.images.resize", kind="map", source="stream"),
        flow_step("done", "mails", "shop.mail.send_receipt", "resize"),
    ), "1", "images", 60_000)  # fmt: skip
    at = shop.now - 1_500_000
    store = shop.flow("thumbnails:7", stored, at)
    store.reserve("resize", 0, 250, now=at + 1_000)
    store.reserve("resize", 1, 250, now=shop.now - 600_000)
    listed, shown = (
        words(visit().get(path).text) for path in ("/flows?q=thumb", "/flows/thumbnails:7")
    )
    assert re.search("adding, stopped 10 m 0[0-9] s ago", listed)
    assert re.search("the last added 10 m 0[0-9] s ago", shown)


def test_the_first_page_names_flows_that_failed_and_that_nobody_adds_to(
    visit: Any, shop: Shop
) -> None:
    shop.queues["mails"].enqueue(b"x", mid="one")
    stored = StoredFlow((
        flow_step("resize", "images", "shop.images.resize", kind="map", source="stream"),
    ), "1", "images", 60_000)  # fmt: skip
    store = shop.flow("thumbnails:7", stored, shop.now - 1_500_000)
    store.reserve("resize", 0, 250, now=shop.now - 600_000)
    shown = visit().get("/").text
    said = words(unescape(shown.partition("Needs attention")[2].partition("</section>")[0]))
    assert 'href="/flows/thumbnails:7"' in shown and "Step resize is still open" in said
    assert re.search("250 members, the last added 10 m 0[0-9] s ago", said)
    assert "✕ failed invoice:2026-10" in said and "charge failed, 1 member dead" in said
    assert "import:2026" not in said and "onboarding" not in said
    for number in range(10):
        made = shop.flow(f"more:{number}", stored, shop.now - 1_500_000)
        made.reserve("resize", 0, 250, now=shop.now - 900_000)
    assert "5 more flows" in words(visit().get("/").text)


def test_a_page_says_what_members_are_dead_of_and_hides_secrets(
    visit: Any, flowing: Flowing
) -> None:
    low = flowing.queues["low"]
    flowing.start("order:3", step("bad"))
    flowing.drain()
    [message] = low.dequeue(64).messages
    reason = "Refused: token=hunter2hunter2 for <b>\nTraceback"
    low.finish([Ending(mid=message.mid, token=message.token, outcome="dead", reason=reason)])
    flowing.drain()
    shown = visit(UserRole.READ).get("/flows/order:3").text
    said = shown.partition("Errors of dead members")[2]
    assert f'href="/queues/low/messages/{encoded(message.mid)}"' in said
    assert "Refused: token=[hidden] for &lt;b&gt;" in said and "Traceback" not in said
    assert "hunter2" not in shown
    short = words(visit(hide_errors=True).get("/flows/order:3").text)
    assert "Refused low" in short and "token=" not in short
    low.admin.purge(*(one.dead_id for one in low.admin.dead()))
    assert "its reason is no longer kept" in visit().get("/flows/order:3").text
    assert "Errors of dead members" not in visit().get("/flows/order:1").text


def test_flow_shows_what_it_waits_for_its_drawing_and_the_same_as_a_list(
    visit: Any, shop: Shop
) -> None:
    shown = visit().get(IMPORT).text
    said = words(unescape(shown))
    assert "393 of 1,000 members of step rows (queue search)" in said
    steps = ["fetch", "rows", "images", "report", "alert", "approved", "publish", "log", "mail"]
    for name in steps:
        assert f'href="#step-{name}"' in shown and f'id="step-{name}"' in shown
    assert [shown.count(f'class="tip {when}') for when in ("done", "ended", "failed")] == [8, 1, 1]
    assert re.search(r"Critical path fetch 1 m 00 s → rows 1\d m", said)
    assert 'href="/dead?f=queue%3Asearch+mid%3A~import%3A2026-11-23.r1.rows.%2A"' in shown
    fetched = encoded(member_mid("import:2026-11-23.r1", "fetch"))
    assert f'href="/queues/reports/messages/{fetched}"' in shown
    assert "waiting for 1 step" in shown and "607 of 1,000, 3 dead" in said
    failed = words(visit().get("/flows/invoice:2026-10").text)
    assert "can't continue" in failed and "because charge is failed" in failed
    waiting = words(visit().get("/flows/onboarding:cust-4711").text)
    assert "signal, or 2 d 2" in waiting


def test_message_of_a_flow_leads_to_it_and_so_does_the_find_box(
    visit: Any, shop: Shop, client: Any
) -> None:
    Queue("search", client).register()
    mid = member_mid("import:2026-11-23.r1", "publish")
    shown = visit().get(f"/queues/search/messages/{encoded(mid)}")
    assert 'href="/flows/import:2026-11-23"' in shown.text and "See the flow" in shown.text
    found = visit().get("/find?q=import:2026-11-23", follow_redirects=False)
    assert found.headers["location"] == "/flows/import:2026-11-23"


def test_a_wide_flow_is_folded_and_lists_what_needs_a_look_first(visit: Any, shop: Shop) -> None:
    wide = [f"resize-{n}" for n in range(320)]
    stored = StoredFlow((
        flow_step("split", "images", "shop.images.split"),
        *(flow_step(name, "images", "shop.images.resize", "split") for name in wide),
        flow_step("join", "images", "shop.images.join", *wide),
    ), "1", "images", 60_000)  # fmt: skip
    store = shop.flow("wide:1", stored, shop.now - 60_000)
    shop.report(store, "images", shop.now - 50_000, ("done", "split", 0))
    for _ in range(8):
        shop.report(store, "images", shop.now - 50_000, ("look", "", 0))
    shop.report(
        store,
        "images",
        shop.now - 40_000,
        ("dead", "resize-311", 0),
        *(("done", one, 0) for one in wide[:40]),
    )
    shown = visit().get("/flows/wide:1").text
    assert "320 x resize" in shown and "319 steps are drawn together" in words(shown)
    assert "100 of 322 steps" in words(shown) and 'id="step-resize-311"' in shown
    assert shown.index('id="step-resize-311"') < shown.index('id="step-resize-60"')
    assert len(shown) < 200_000


def test_what_anybody_wrote_shows_as_damaged_and_the_rest_is_there(
    visit: Any, shop: Shop, client: Any
) -> None:
    index = flow_names(client.namespace)
    for number, text in enumerate(HOSTILE):
        client.command("ZADD", index, number, text)
    client.command("ZADD", index, 5, "broken:1", 6, "other:1")
    client.command("SET", "jobq:flow:{broken:1}:meta", "x")
    client.command(
        "HSET",
        "jobq:flow:{other:1}:meta",
        "state",
        "<b>",
        "n:a",
        "x,y",
        "home",
        "\x1b[31m",
        routed_by="x",
    )
    client.command(
        "HSET",
        "jobq:flow:{other:1}:steps",
        "*",
        "a,<i>,b",
        "a",
        "step\x1flow\x1f\x1fzzz:done,<i>:x\x1f{",
    )
    page = visit(UserRole.READ)
    shown = page.get("/flows")
    assert (
        shown.status_code == 200 and "import:2026-11-23" in shown.text and "damaged" in shown.text
    )
    assert "<b>" not in shown.text and "\x1b" not in shown.text
    other = page.get("/flows/other:1")
    assert other.status_code == 200 and "<i>" not in other.text
    for path in (
        "/flows/broken:1",
        "/flows/none:1",
        "/flows/x",
        "/flows/%00:1",
        "/flows/" + "a" * 70,
    ):
        assert page.get(path).status_code in (404, 502), path


@pytest.fixture
def flowing(client: Any) -> Flowing:
    """An order that waits for an approval, and one whose first step is dead."""
    made = Flowing(client)
    for queue in made.queues.values():
        queue.register()
    gate = step("approved", "check", kind="wait", call=b"")
    made.start("order:1", step("check"), gate, step("ship", "approved", queue="high"))
    made.start("order:2", step("bad"), step("ship", "bad", queue="high"))
    for name in ("order:1", "order:2"):
        client.command("ZADD", flow_names(client.namespace), 1, name)
    made.work({"~order:2.r1.bad.0": "dead"})
    return made


def test_a_person_signals_and_the_flow_goes_on(visit: Any, flowing: Flowing, client: Any) -> None:
    anna = visit(UserRole.OPERATE)
    shown = anna.get("/flows/order:1").text
    assert "a signal for approved" in words(shown) and ">Signal approved<" in shown
    assert "Signal approved" not in visit(UserRole.READ).get("/flows/order:1").text
    for value in ("{", "nan x"):
        assert (
            anna.post(
                "/flows/order:1/steer", data={"verb": "signal", "step": "approved", "value": value}
            ).status_code
            == 409
        )
    assert (
        anna.post("/flows/order:1/steer", data={"verb": "signal", "step": "ship"}).status_code
        == 409
    )
    assert anna.post("/flows/order:1/steer", data={"verb": "stop"}).status_code == 400
    done = anna.post(
        "/flows/order:1/steer",
        data={"verb": "signal", "step": "approved", "value": '{"by": "anna"}'},
    )
    assert "The signal was sent." in done.text
    assert flowing.work() == ["~order:1.r1.ship.0"]
    newest = next(iter(AuditLog(client).page()))
    assert (newest.who, newest.verb, newest.queue, newest.filter, newest.phase) == (
        "anna", "flow-signal", "low", "flow:order:1 step:approved", "done",
    )  # fmt: skip


def test_the_dead_of_a_flow_run_again(visit: Any, flowing: Flowing) -> None:
    anna = visit(UserRole.OPERATE)
    shown = anna.get("/flows/order:2").text
    assert "Retry failed steps" in shown and "can't continue" in shown
    assert (
        visit(UserRole.READ).post("/flows/order:2/steer", data={"verb": "retry"}).status_code == 403
    )
    assert "The retry was sent" in anna.post("/flows/order:2/steer", data={"verb": "retry"}).text
    assert flowing.work() == ["~order:2.r1.bad.0", "~order:2.r1.ship.0"]
    assert "✓ done" in words(anna.get("/flows/order:2").text)
    assert anna.post("/flows/none:1/steer", data={"verb": "retry"}).status_code == 404


def test_an_admin_cancels_a_flow_by_typing_its_id(
    visit: Any, flowing: Flowing, client: Any
) -> None:
    admin, path = visit(UserRole.ADMIN), "/flows/order:1/cancel"
    assert f'href="{path}"' in admin.get("/flows/order:1").text
    assert f'href="{path}"' not in visit(UserRole.OPERATE).get("/flows/order:1").text
    assert "can't be undone" in unescape(admin.get(path).text)
    assert visit(UserRole.OPERATE).post(path, data={"typed": "order:1"}).status_code == 403
    assert admin.post(path, data={"typed": "order"}).status_code == 409
    assert admin.post(path, data={"typed": "order:1"}).status_code == 200
    flowing.drain()
    assert "– cancelled" in words(admin.get("/flows/order:1").text)
    again = admin.post("/flows/order:1/steer", data={"verb": "signal", "step": "approved"})
    assert again.status_code == 409 and "cancelled" in again.text


def test_programs_steer_flows_the_same(visit: Any, flowing: Flowing, client: Any) -> None:
    operator, admin = visit(UserRole.OPERATE), visit(UserRole.ADMIN)
    for one in (operator, admin):
        one.headers.update({"Authorization": "Bearer x"})
    path = "/api/v1/flows/order:1"
    waits = operator.get(path).json()["waits_for"]
    assert [one["code"] for one in waits] == ["signal"]
    sent = operator.post(f"{path}/signal", json={"step": "approved", "value": {"by": "anna"}})
    assert (sent.status_code, sent.json()) == (202, {"flow": "order:1", "sent": "signal"})
    assert operator.post("/api/v1/flows/order:2/retry", json={}).status_code == 202
    assert sorted(flowing.work()) == [
        "~order:1.r1.ship.0",
        "~order:2.r1.bad.0",
        "~order:2.r1.ship.0",
    ]
    assert operator.get(path).json()["state"] == "done"
    assert operator.post(f"{path}/signal", json={"step": "approved"}).status_code == 409
    assert operator.post(f"{path}/retry", json={"step": 7}).status_code == 400
    assert operator.post(f"{path}/cancel", json={"confirm": "order:1"}).status_code == 403
    assert admin.post(f"{path}/cancel", json={"confirm": "x"}).status_code == 400
    assert operator.post("/api/v1/flows/none:1/retry", json={}).status_code == 404
    done = [one.verb for one in AuditLog(client).page() if one.phase == "done"]
    assert done == ["flow-retry", "flow-signal"]


def test_page_shows_a_flow_whose_failures_name_members_that_no_map_has(
    visit: Any, client: Any, redis: Any
) -> None:
    flowing = Flowing(client, "low")
    store = flowing.start("odd:1", step("a"))
    flowing.work({"~odd:1.r1.a.0": "dead"})
    for number in ("9" * 5_000, "²", ""):
        redis.hset(store.prefix + "failed", f"a:{number}", "dead")
    shown = visit().get("/flows/odd:1")
    assert shown.status_code == 200 and "odd:1" in shown.text
