"""Pages of limits and keys: the figures of the commands, and changes that take effect."""

from __future__ import annotations

import re
from typing import Any

from jobq.limits.concurrency_limit import ConcurrencyLimit
from jobq.limits.directory import limit_facts
from jobq.limits.rate_limit import RateLimit
from jobq.queue.audit_log import AuditLog
from jobq.queue.queue import Queue
from jobq.web import UserRole
from tests.hostile import HOSTILE


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"[^>]*>(?:<a [^>]*>)?([^<]+)', page)


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_limits_are_listed_the_fullest_first(visit: Any, client: Any) -> None:
    page = visit()
    assert "No limits" in page.get("/limits").text and ">Limits<" not in page.get("/").text
    RateLimit("stripe", "100/m", client=client).try_acquire()
    RateLimit("held", "5/s", client=client).try_acquire()
    RateLimit("held", "5/s", client=client).hold(60)
    with ConcurrencyLimit("erp", 2, client=client).slot():
        shown = visit().get("/limits").text
        one = words(page.get("/limits/erp").text)
        [facts, *_] = limit_facts(client)
    assert names(shown) == ["held", "erp", "stripe"] and ">Limits<" in shown
    assert "1 / 100" in words(shown) and "1 / 2" in words(shown) and "2 slots" in words(shown)
    assert "Lease ends in" in one and facts.holders[0].who in one
    assert page.get("/limits/none").status_code == 404


def test_limit_is_set_held_and_unset(visit: Any, client: Any) -> None:
    RateLimit("stripe", "100/m", client=client).try_acquire()
    page = visit(UserRole.OPERATE)

    def change(verb: str, value: str = "") -> Any:
        reply = page.post("/limits/stripe/change", data={"verb": verb, "value": value})
        [facts] = limit_facts(client)
        return reply, facts

    reply, facts = change("set", "200/m")
    assert (facts.rule, facts.set_here) == ("200/m", True) and "in code: 100/m" in reply.text
    reply, facts = change("hold", "10m")
    assert 500_000 < facts.held_ms <= 600_000 and "Release" in reply.text
    assert change("hold", "0")[1].held_ms == 0
    assert change("unset")[1].rule == "100/m"
    for verb, value, code in (
        ("set", "50", 409),
        ("set", "x", 409),
        ("hold", "x", 409),
        ("x", "", 400),
    ):
        assert change(verb, value)[0].status_code == code
    assert limit_facts(client)[0].rule == "100/m"
    unknown = page.post("/limits/none/change", data={"verb": "set", "value": "5/s"})
    assert unknown.status_code == 404 and len(limit_facts(client)) == 1
    phases = [(one.verb, one.filter, one.phase) for one in AuditLog(client).page(limit=500)]
    assert ("limit-set", "limit:stripe rule:200/m", "done") in phases
    assert ("limit-set", "limit:stripe rule:50", "refused") in phases
    reader = visit(UserRole.READ)
    assert "Set on the server" not in reader.get("/limits/stripe").text


def test_keys_with_most_waiting_come_first_and_are_held_and_limited(
    visit: Any, client: Any
) -> None:
    page = visit(UserRole.OPERATE)
    assert "No keys" in page.get("/keys").text and ">Keys<" not in page.get("/").text
    queue = Queue("low", client)
    queue.register()
    for number in range(5):
        queue.enqueue(b"{}", mid=f"m{number}", key="acme" if number else "<b>x")
    shown = visit().get("/keys").text
    assert names(shown) == ["acme", "&lt;b&gt;x"] and ">Keys<" in shown and "m1" in shown
    assert names(page.get("/keys?q=ACM").text) == ["acme"]
    held = page.post(
        "/keys/change", data={"verb": "hold", "queue": "low", "key": "acme", "value": "10m"}
    )
    assert "Release" in held.text and "held" in held.text
    data = {"verb": "set", "queue": "low", "key": "acme", "max": "2", "weight": "3", "rate": "none"}
    assert page.post("/keys/change", data=data).status_code == 200
    [row] = [row for row in queue.admin.iter_keys() if row.key == "acme"]
    assert (row.max, row.weight) == (2, 3) and row.held_until > client.clock_ms()
    for wrong, code in (
        ({"max": "x"}, 409), ({"rate": "x"}, 409), ({"queue": "none"}, 404), ({"verb": "x"}, 400), ({"key": ""}, 409),
    ):  # fmt: skip
        assert page.post("/keys/change", data={**data, **wrong}).status_code == code, wrong
    assert page.get("/keys?queue=none").status_code == 404
    newest = AuditLog(client).page(limit=500)
    assert ("key-hold", "low", "key:acme for:10m") in [(e.verb, e.queue, e.filter) for e in newest]


def test_damaged_limits_and_keys_spoil_nothing_else(visit: Any, client: Any, redis: Any) -> None:
    RateLimit("good", "100/m", client=client).try_acquire()
    queue, page = Queue("low", client), visit()
    queue.enqueue(b"{}", mid="m", key="acme")
    for number, raw in enumerate(HOSTILE):
        redis.hset("jobq:limits", mapping={f"<b>bad{number}": raw, b"\xff%d" % number: raw})
        redis.hset("jobq:limit:{<b>bad1}:state", f"f{number}", raw)
        redis.hset(f"{queue.prefix}keys", f"<b>bad{number}", raw)
    redis.set("jobq:limit:{<b>bad0}:ring", "x")
    shown = page.get("/limits")
    assert shown.status_code == 200 and "damaged" in shown.text and "<b>bad" not in shown.text
    assert "1 / 100" in words(shown.text)
    for path in ("/limits/%3Cb%3Ebad0", "/limits/%3Cb%3Ebad1", "/limits/good"):
        assert page.get(path).status_code == 200
    keys = page.get("/keys")
    assert keys.status_code in (200, 500) and "<b>bad" not in keys.text
