"""Dead messages get into the lake once each, with their contents, and stay away once they have expired."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from jobq.errors import CodecError
from jobq.jobs.codec import decode, encode, read_refusal
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import dead_messages, inspection, upkeep
from jobq.pipeline.lake.ingest import Ingest, one_round
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.pipeline.lake.conftest import DAY, rows


def test_dead_messages_are_kept_with_their_content_once(lake, valkey_client, valkey_queue):
    for name in ("a", "b"):
        valkey_queue.enqueue(name.encode(), mid=name)
    _bury(valkey_queue, 2)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    valkey_queue.enqueue(b"c", mid="c")
    _bury(valkey_queue, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low", "empty"]) == 1
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    found = {row["mid"]: (row["content"], row["reason"]) for row in rows(lake, "dead")}
    assert found == {"a": (b"a", "tried"), "b": (b"b", "tried"), "c": (b"c", "tried")}
    assert len(rows(lake, "dead")) == 3


class Counted(Engine):
    """Notes how many units there were."""

    def __init__(self) -> None:
        super().__init__("local")
        self.units: list[list[tuple[str, int, int]]] = []

    def run_units(self, function, units, rows):
        for unit in units:
            assert pickle.loads(pickle.dumps(unit)) == unit
            self.units.append([(one.name, one.since, one.upto) for one in unit.spans])
        return super().run_units(function, units, rows)


def test_dead_messages_are_units_of_work_when_there_are_many(lake, valkey_client, monkeypatch):
    monkeypatch.setattr(dead_messages, "UNIT_ROWS", 4)
    engine = Counted()
    for name, deaths in (("big", 10), ("few", 2), ("more", 2)):
        queue = Queue(name, valkey_client)
        for number in range(deaths):
            queue.enqueue(b"x", mid=f"{name}{number}", now=DAY)
            _bury(queue, 1, DAY + number // 2)
    names = ["big", "few", "more"]
    assert dead_messages.keep_dead(lake, valkey_client, names, engine=engine) == 14
    assert len({row["mid"] for row in rows(lake, "dead")}) == 14
    assert engine.units == [
        [("big", 0, DAY + 1)],
        [("big", DAY + 2, DAY + 3)],
        [("big", DAY + 4, DAY + 4), ("few", 0, DAY)],
        [("more", 0, DAY)],
    ]
    assert dead_messages.keep_dead(lake, valkey_client, names, engine=engine) == 0
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


class Divided(Engine):
    """Treats large work as the work of executors."""

    def chosen(self, rows):
        return "spark" if rows > 20 else "local"

    def run_units(self, function, units, rows):
        return map(function, units)


def test_round_says_which_engine_did_each_part_when_they_differ(
    lake, valkey_client, valkey_queue, write
):
    write("high", 19)
    valkey_queue.enqueue(b"x", mid="a", now=DAY)
    _bury(valkey_queue, 1, DAY)
    work = Ingest(lake, valkey_client, Divided())
    found = one_round(work, lambda batch: None, lambda: False)
    assert (found.events, found.dead) == (20, 1)
    assert found.engines == {"events": "local", "dead": "local"} and found.engine == "local"
    write("high", 21, first=30)
    valkey_queue.enqueue(b"x", mid="b", now=DAY)
    _bury(valkey_queue, 1, DAY)
    found = one_round(work, lambda batch: None, lambda: False)
    assert found.engines == {"events": "spark", "dead": "local"} and found.engine == "spark"


def test_dead_that_expired_are_not_kept_again(lake, valkey_client, valkey_queue):
    valkey_queue.enqueue_many([b"a", b"b"])
    _bury(valkey_queue, 2)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    later = datetime.now(UTC) + timedelta(days=2)
    assert upkeep.expire(lake, 0, ["dead"], now=later)[0].rows == 2
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    valkey_queue.enqueue(b"c")
    # A death on a day that has expired can only be an old one: the clock is two days behind.
    _bury(valkey_queue, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


def test_dead_of_days_ago_are_known_without_the_days_since(lake, valkey_client, monkeypatch):
    old, new, days = Queue("old", valkey_client), Queue("new", valkey_client), []
    for queue, at in ((old, DAY - 30 * 86_400_000), (new, DAY)):
        queue.enqueue(b"x", now=at)
        _bury(queue, 1, at + 7_200_000)
    assert dead_messages.keep_dead(lake, valkey_client, ["old", "new"]) == 2
    plain = dead_messages.rows_of_files

    def noted(store, files, columns):
        days.append([file.dt for file in files])
        return plain(store, files, columns)

    monkeypatch.setattr(dead_messages, "rows_of_files", noted)
    assert dead_messages.keep_dead(lake, valkey_client, ["old", "new"]) == 0
    assert days == [["2026-10-22"], ["2026-11-21"]]


def test_places_of_the_dead_go_forward_when_the_newest_is_revived(lake, valkey_client):
    first, second = Queue("low", valkey_client), Queue("high", valkey_client)
    for number, mid in enumerate("ab"):
        first.enqueue(b"x", mid=mid, now=DAY)
        _bury(first, 1, DAY + 1000 * number)
    dead_messages.keep_dead(lake, valkey_client, ["low"])
    [newest] = [row["dead_id"] for row in rows(lake, "dead") if row["mid"] == "b"]
    assert first.admin.revive(newest) == ["revived"]
    second.enqueue(b"c")
    _bury(second, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low", "high"]) == 1
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


@pytest.mark.parametrize("score", [253_402_300_799_999, 1e17, float("inf")])
def test_dead_are_kept_when_one_before_them_claims_to_have_died_in_the_far_future(
    lake, valkey_client, valkey_queue, valkey_redis, score
):
    valkey_queue.enqueue_many([b"v"] * 5)
    _bury(valkey_queue, 2)
    valkey_redis.zadd("jobq:{low}:dead", {"m#1": score})
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    _bury(valkey_queue, 3)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 3


def _bury(queue: Queue, count: int, now: int | None = None) -> None:
    for message in queue.dequeue(count, now=now).messages:
        dead = Ending(mid=message.mid, token=message.token, outcome="dead", reason="tried")
        queue.finish([dead], now=now)


def test_what_a_job_hides_is_hidden_in_the_lake_and_cannot_run(lake, valkey_client, valkey_queue):
    presence.put_redactions(
        valkey_client, {"shop.pay": ("card", "0"), "shop.all": ("*",)}, may_replace=True
    )
    calls = {
        "pay": encode("shop.pay", ("Ann Example", 7), {"card": {"number": "4111-1111"}, "sum": 12}),
        "all": encode("shop.all", ("top secret",)), "open": encode("shop.open", ("Ann Example",)),
        "none": encode("shop.pay"), "broken": b'{"job":"shop.pay","args":"Ann Example"}',
    }  # fmt: skip
    for mid, call in calls.items():
        valkey_queue.enqueue(call, mid=mid)
        [message] = valkey_queue.dequeue(1).messages
        why = "ValueError: Ann Example has no 4111-1111, card=4111-1111, top secret"
        valkey_queue.finish([Ending(mid=mid, token=message.token, outcome="dead", reason=why)])
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 5
    found = {row["mid"]: row for row in rows(lake, "dead")}

    for mid, left in (
        ("pay", [["[hidden]", 7], {"card": "[hidden]", "sum": 12}]),
        ("all", [["[hidden]"], {}]),
    ):
        refused = read_refusal(found[mid]["content"])
        assert refused is not None and json.loads(refused.raw) == left
        assert "redact=" in refused.why
        with pytest.raises(CodecError, match="redact="):
            decode(found[mid]["content"])
    assert (
        found["pay"]["reason"] == "ValueError: [hidden] has no [hidden], card=[hidden], top secret"
    )
    assert "top secret" not in found["all"]["reason"]
    assert (found["open"]["content"], found["none"]["content"]) == (calls["open"], calls["none"])
    assert b"Ann" not in found["broken"]["content"] and "Ann" not in found["broken"]["reason"]
    assert found["broken"]["job"] == "shop.pay"
