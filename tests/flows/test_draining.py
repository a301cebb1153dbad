"""From a queue's outbox to the flows and back, with real queues: whatever is repeated, late, forged or in the way."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from jobq.cli.held_back import waiting_maps
from jobq.client.connection import Client, connect
from jobq.config import CodecSettings
from jobq.errors import ServerFullError, UnavailableError
from jobq.flows import sending
from jobq.flows.announcing import announce
from jobq.flows.draining import BATCH, GIVE_UP_S, PASS_OVER_NS, Drainer
from jobq.flows.listing import purged_members, put_on_list
from jobq.flows.run import FlowRun
from jobq.flows.sending import Sending, StepSender
from jobq.flows.state import FlowView
from jobq.flows.store import FlowStore
from jobq.flows.types import LONG_LIFE_MS, PURGED, FlowChange, StoredFlow, StoredStep
from jobq.jobs.results import encode_result
from jobq.queue.durability import SharedConfirmation
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.flows.flowing import RUN, Flowing, call_of, names, step
from tests.flows.lockstep import TurnTaker, take_turns

F = "import:7"


@pytest.fixture
def flowing(client: Any) -> Flowing:
    return Flowing(client)


def mids(*rest: str, flow: str = F) -> list[str]:
    return [f"~{flow}.r1.{one}" for one in rest]


def test_a_diamond_over_two_queues_runs_each_step_once(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"), step("b", "a"), step("c", "a", queue="high"), step("d", "b", "c"))
    assert names(flowing.work()) == ["a", "b", "c", "d"]
    assert flowing.facts(F).state == "done"
    assert flowing.left() == []
    flowing.say("begin", F)
    flowing.say("retry", F)
    assert flowing.work() == []
    assert flowing.facts(F).state == "done"


def test_a_map_that_waited_is_expanded_from_stored_calls_or_from_a_result(flowing: Flowing):
    rows = step("rows", "a", kind="map", source="items", queue="high")
    more = step("more", "a", kind="map", source="=a", options=b'{"lease": 30}')
    store = flowing.start(F, step("a"), rows, more, step("end", "rows", "more"))
    for chunk in range(2):
        first, count = chunk * 250, 250 - 240 * chunk
        assert (
            store.put_items("rows", "high", chunk, [call_of(f"{first + i}") for i in range(count)])
            == "ok"
        )
    result = encode_result(list(range(300)), "a")
    ran = flowing.work({f"~{F}.r1.a.0": result})
    assert len(ran) == len(set(ran)) == 1 + 260 + 300 + 1
    assert ran[-1] == f"~{F}.r1.end.0"
    assert flowing.facts(F).state == "done"


@pytest.mark.parametrize("returned", ["text", None])
def test_a_map_of_what_is_no_list_has_failed(flowing: Flowing, returned: Any):
    flowing.start(
        F,
        step("a"),
        step("more", "a", kind="map", source="=a"),
        step("alert", "more", when="failed"),
    )
    result = "done" if returned is None else encode_result(returned, "a")
    assert names(flowing.work({f"~{F}.r1.a.0": result})) == ["a", "alert"]
    assert flowing.facts(F).state == "failed"


def test_a_wait_is_opened_by_a_signal_and_its_timer_is_dropped(flowing: Flowing, redis: Any):
    gate = step("gate", kind="wait", options=b'{"delay": 3600}')
    flowing.start(F, step("a"), gate, step("b", "gate", "a"))
    assert names(flowing.work()) == ["a"]
    assert flowing.queues["low"].status(f"~{F}.r1.gate.0").word == "queued-with-backoff"
    assert flowing.facts(F).steps[1].due_at > 0
    flowing.say("signal", F, 'gate\x1f{"by": "ann"}')
    assert names(flowing.work()) == ["b"]
    assert flowing.queues["low"].status(f"~{F}.r1.gate.0").word == "nil"
    assert FlowStore(flowing.client, F).results(["gate:0"]) == {"gate:0": b'{"by": "ann"}'}
    assert flowing.facts(F).state == "done"


def test_a_flow_in_a_flow_is_begun_ended_and_retried_with_it(flowing: Flowing):
    flowing.start("part:1", step("x"), parent=f"{F}.r1.part")
    flowing.start(
        F,
        step("a"),
        StoredStep("part", "flow", "", step("", "a").after, "part:1"),
        step("b", "part"),
    )
    dead = "~part:1.r1.x.0"
    assert flowing.work({dead: "dead"}) == [f"~{F}.r1.a.0", dead]
    assert flowing.facts(F).state == flowing.facts("part:1").state == "failed"
    flowing.say("retry", F)
    assert flowing.work() == [dead, f"~{F}.r1.b.0"]
    assert flowing.facts(F).state == flowing.facts("part:1").state == "done"


@pytest.fixture
def nested(flowing: Flowing) -> Flowing:
    """A flow of `a`, of `part`, which comes behind it, and of `gate`; part:1 has a sub-flow of its own, deep:1."""
    deep, part = (StoredStep(one, "flow", "", (), f"{one}:1") for one in ("deep", "part"))
    flowing.start("deep:1", step("y"), parent="part:1.r1.deep", life_ms=LONG_LIFE_MS)
    flowing.start("part:1", step("x"), deep, parent=f"{F}.r1.part", life_ms=LONG_LIFE_MS)
    behind = part._replace(after=step("", "gate").after)
    flowing.start(F, step("a"), step("gate", "a", kind="wait", call=b""), behind)
    return flowing


def test_a_flow_in_a_flow_is_cancelled_with_it_before_it_begins(nested: Flowing):
    nested.drain()
    nested.say("cancel", F)
    assert nested.work() == []
    assert [nested.facts(one).state for one in (F, "part:1", "deep:1")] == ["cancelled"] * 3
    assert (nested.facts(F).refused, nested.left()) == (0, [])


def test_a_flow_in_a_flow_that_is_skipped_is_kept_while_a_retry_may_come(
    nested: Flowing, redis: Any
):
    def states() -> list[str]:
        return [nested.facts(one).state for one in ("part:1", "deep:1")]

    def days() -> list[int]:
        lives = (redis.ttl(f"jobq:flow:{{{one}}}:meta") for one in ("part:1", "deep:1"))
        return [round(one / 86_400) for one in lives]

    nested.drain()
    assert days() == [366, 366]
    nested.work({f"~{F}.r1.a.0": "dead"})
    assert (states(), days()) == (["open", "open"], [1, 1])
    nested.say("retry", F)
    assert nested.work() == [f"~{F}.r1.a.0"]
    assert (states(), days()) == (["open", "open"], [366, 366])
    nested.say("signal", F, "gate\x1f1")
    assert sorted(nested.work()) == ["~deep:1.r1.y.0", "~part:1.r1.x.0"]
    assert nested.facts(F).state == "done" and states() == ["done", "done"]


def test_a_step_has_failed_when_the_flow_that_it_is_belongs_to_another_run(flowing: Flowing):
    flowing.start("part:1", step("x"), parent=f"{F}.r0.part")
    part = StoredStep("part", "flow", "", (), "part:1")
    flowing.start(F, part, step("b", "part"), step("bad", "part", when="failed"))
    assert names(flowing.work()) == ["bad"]
    flowing.say("retry", F)
    assert flowing.work() == []
    assert (flowing.facts(F).state, flowing.facts("part:1").state) == ("failed", "open")


def test_a_flow_in_a_flow_is_left_alone_when_another_flow_has_stored_it(flowing: Flowing):
    flowing.start("part:1", step("x"), parent="other:1.r1.part")
    part = StoredStep("part", "flow", "", step("", "a").after, "part:1")
    flowing.start(F, step("a"), part)
    flowing.drain()
    flowing.say("cancel", F)
    flowing.work()
    assert (flowing.facts(F).state, flowing.facts("part:1").state) == ("cancelled", "open")


def test_a_flow_that_is_retried_is_not_over_when_the_last_end_of_its_part_is_told_again(
    flowing: Flowing,
):
    part = flowing.start("part:1", step("x"), parent=f"{F}.r1.part")
    store = flowing.start(F, StoredStep("part", "flow", "", (), "part:1"), step("b", "part"))
    flowing.drain()
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    low.finish([Ending(mid=held.mid, token=held.token, outcome="dead", reason="why")])
    # A drainer told it, and died before it noted that.
    [told] = part.apply("qlow", [FlowChange("dead", "x")]).todo
    assert told.todo == "parent"
    store.apply("fpart:1", [FlowChange("dead", "part")])
    flowing.say("retry", F)
    flowing.drain()
    assert (flowing.facts("part:1").state, flowing.facts(F).state) == ("running", "running")
    assert flowing.facts(F).ended_at == 0
    assert flowing.work() == ["~part:1.r1.x.0", f"~{F}.r1.b.0"]
    assert flowing.facts(F).state == flowing.facts("part:1").state == "done"


def test_a_cancel_reaches_what_waits_what_runs_and_the_flows_in_the_flow(flowing: Flowing):
    flowing.start("part:1", step("x", queue="high"), step("y", "x"), parent=f"{F}.r1.part")
    rows = step("rows", kind="map", source="stream")
    part = StoredStep("part", "flow", "", (), "part:1")
    store = flowing.start(F, rows, part, step("gate", kind="wait", call=b""), step("b", "rows"))
    store.reserve("rows", 0, 250)
    low = flowing.queues["low"]
    low.enqueue_members([(f"~{F}.r1.rows.{i}", b"v") for i in range(200)])
    flowing.drain()
    held = low.dequeue(3).messages
    flowing.say("cancel", F)
    assert flowing.work() == []
    facts = flowing.facts(F)
    assert facts.state == flowing.facts("part:1").state == "cancelled"
    assert facts.ended_at
    assert low.finish([]).replies == []
    assert {low.status(one.mid).word for one in held} == {"done-with-backoff"}
    assert flowing.left() == []


def test_a_retry_marks_no_member_as_purged_when_its_queue_can_not_be_read(flowing: Flowing):
    rows = step("rows", kind="map", source="stream", queue="high")
    store = flowing.start(F, rows)
    store.reserve("rows", 0, 2)
    flowing.queues["high"].enqueue_members([(f"~{F}.r1.rows.{i}", b"v") for i in range(2)])
    store.seal("rows", 1)
    flowing.work({f"~{F}.r1.rows.1": "dead"})
    admin = flowing.queues["high"].admin
    admin.purge(*(one.dead_id for one in admin.dead()))
    key = f"{flowing.queues['high'].prefix}messages"
    flowing.client.command("SET", key, "damaged")
    flowing.say("retry", F)
    flowing.drainer.drain("low")
    assert PURGED not in store.failures().values()
    flowing.client.command("DEL", key)
    flowing.work()
    assert store.failures() == {"rows:1": PURGED}


def test_a_retry_revives_the_dead_and_sends_again_what_a_person_purged(flowing: Flowing):
    rows = step("rows", kind="map", source="stream", queue="high")
    store = flowing.start(F, step("a"), rows, step("b", "a", "rows"))
    store.reserve("rows", 0, 9)
    flowing.queues["high"].enqueue_members([(f"~{F}.r1.rows.{i}", b"v") for i in range(9)])
    store.seal("rows", 1)
    bad = {f"~{F}.r1.a.0": "dead", **{f"~{F}.r1.rows.{i}": "dead" for i in (1, 5, 7)}}
    assert len(flowing.work(bad)) == 10
    assert flowing.facts(F).state == "failed"
    for name, mid in (("low", f"~{F}.r1.a.0"), ("high", f"~{F}.r1.rows.7")):
        admin = flowing.queues[name].admin
        admin.purge(*(one.dead_id for one in admin.dead(mid=mid)))
    flowing.say("retry", F)
    assert sorted(names(flowing.work())) == ["a", "rows.1", "rows.5"]
    assert store.failures() == {"rows:7": PURGED}
    assert purged_members(flowing.client, F) == {"rows": 1}
    assert flowing.facts(F).state == "failed"
    assert [(one.done, one.dead) for one in flowing.facts(F).steps] == [(1, 0), (8, 1), (0, 0)]


def test_a_step_that_was_sent_by_a_drainer_that_died_is_not_sent_again(
    flowing: Flowing, redis: Any
):
    """However long ago: the dedupe of its mid has ended, and its end waits in an outbox that was not drained."""
    flowing.start(F, step("a"), step("b", "a", queue="high"))
    high = flowing.queues["high"]
    flowing.drain()
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    low.finish([_done(held)])

    class Dies(Drainer):
        def drain(self, queue: str) -> int:
            [entry] = low.flow_outbox()
            self._take(low, [entry], self._clock())
            return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowStore, "sent", _dying)
        with pytest.raises(ZeroDivisionError):
            Dies(flowing.client).drain("low")
    [sent] = high.dequeue().messages
    high.finish([_done(sent)])
    redis.hdel(f"{high.prefix}messages", sent.mid)
    redis.delete(f"{high.prefix}backoffs", f"{high.prefix}done", f"{high.prefix}due")
    assert Drainer(flowing.client).drain("low") == 1
    assert high.dequeue().messages == []
    flowing.drain()
    assert flowing.facts(F).state == "done"


def test_result_that_cannot_be_read_is_not_a_missing_one(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"))
    flowing.drain()
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    low.finish([Ending(mid=held.mid, token=held.token, result=b'{"ok":1}', result_ttl=60)])
    redis.execute_command("ACL", "SETUSER", "default", "-lindex")
    with pytest.raises(UnavailableError, match=r"results of queue low can't be read: .*lindex"):
        flowing.drain()
    redis.execute_command("ACL", "SETUSER", "default", "+lindex")
    redis.delete("jobq:{low}:flow-claim")
    flowing.drain()
    assert FlowStore(flowing.client, F).results(["a:0"]) == {"a:0": b'{"ok":1}'}


def _dying(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


def _done(message: Any) -> Any:
    return Ending(mid=message.mid, token=message.token)


def test_what_was_read_too_long_ago_is_not_sent_but_read_again(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"))
    now = [0]

    def clock() -> int:
        now[0] += round(GIVE_UP_S * 1e9) + 1
        return now[0]

    assert Drainer(flowing.client, clock).drain("low") == 1
    low = flowing.queues["low"]
    assert low.dequeue().messages == []
    redis.delete(f"{low.prefix}flow-claim")
    assert names(flowing.work()) == ["a"]


def test_forged_and_damaged_entries_change_nothing_and_are_not_kept(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"), step("b", "a", queue="high"))
    flowing.drain()
    outbox = f"{flowing.queues['high'].prefix}flow-outbox"
    records = [
        f"done\x1f~{F}.r1.a.0", f"done\x1f~{F}.r1.b.0", f"cancel\x1f{F}", f"signal\x1f{F}\x1fa\x1fx", "done\x1f~x",
        "done", "",
        f"done\x1f~{F}.r1.a.99999999", "bogus\x1f" + F, "begin\x1fno flow", f"done+\x1f~{F}.r1.b.0",
        f"retry\x1f{F}\x1f\x00",
        "begin\x1fother:1", "dead\x1f~other:1.r1.a.0", f"signal\x1f{F}\x1fa\x1f" + "x" * 70_000,
    ]  # fmt: skip
    redis.xadd(outbox, {"1": "\x1e".join(records)})
    redis.xadd(outbox, {"1": b"\xff\xfe\x1f\x1e\x1f"})
    redis.xadd(outbox, {"bogus": "1", "more": "2"})
    assert flowing.drainer.drain("high") == 3
    facts = flowing.facts(F)
    assert [one.ended for one in facts.steps] == [0, 0]
    assert facts.state == "running"
    assert facts.refused > 0
    assert not redis.keys("jobq:flow:{other:1}:*")
    assert names(flowing.work()) == ["a", "b"]


def test_keys_of_one_flow_that_are_damaged_stop_no_other(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"))
    flowing.start("import:8", step("a"))
    redis.delete(f"jobq:flow:{{{F}}}:meta")
    redis.set(f"jobq:flow:{{{F}}}:meta", "no hash")
    assert flowing.work() == ["~import:8.r1.a.0"]
    assert flowing.left() == []


@pytest.mark.parametrize(
    "options", [b"", b"[]", b'{"delay": "x"}', b'{"lease": -1}', b'{"key": 7}', b'{"at": 1e300}']
)
def test_a_step_with_options_that_nothing_takes_has_failed(flowing: Flowing, options: bytes):
    flowing.start(F, step("a", options=options), step("b", "a", when="failed"))
    assert names(flowing.work()) == ["b"]
    assert flowing.facts(F).state == "failed"


def test_a_step_whose_key_has_no_room_waits_and_keeps_nobody_else_waiting(flowing: Flowing):
    low = flowing.queues["low"]
    low.rules(key_waiting=1)
    low.enqueue(b"v", key="k")
    options = json.dumps({"key": "k"}).encode()
    flowing.start(F, step("a", options=options), step("b"))
    flowing.start("import:8", step("a"))
    assert flowing.drainer.drain("low") >= 2
    assert flowing.left() == [("low", 1)]
    found = low.dequeue(8).messages
    assert {one.mid for one in found} > {f"~{F}.r1.b.0", "~import:8.r1.a.0"}
    low.finish([_done(one) for one in found])
    assert names(flowing.work()) == ["a"]
    assert flowing.facts(F).state == "done"


def test_a_map_of_a_key_is_enqueued_as_its_line_has_room(flowing: Flowing, caplog: Any):
    low, high = flowing.queues["low"], flowing.queues["high"]
    high.rules(key_waiting=62)
    options = json.dumps({"key": "acme"}).encode()
    rows = step("rows", "a", kind="map", source="=a", queue="high", options=options)
    store = flowing.start(F, step("a"), rows, step("end", "rows"))
    flowing.drain()
    [a] = low.dequeue().messages
    result = encode_result(list(range(600)), "a")
    low.finish([Ending(mid=a.mid, token=a.token, result=result, result_ttl=60)])
    flowing.drain()
    assert [(row.key, row.waiting) for row in high.admin.iter_keys()] == [("acme", 62)]
    # Nobody else waits: not other keys, and not other flows.
    high.enqueue(b"v", mid="other", key="bob")
    flowing.start("import:8", step("a"))
    room = "when the line of key acme in queue high has room"

    def waits() -> str:
        [one] = FlowView(flowing.facts(F)).waits_for
        return one.sentence

    assert waits().endswith(f"sends it, {room}")
    put_on_list(flowing.client, F)
    [told] = waiting_maps(flowing.client)
    assert told.value == (f"1 step of flows waiting until a key has room: step rows of {F}, {room}")
    ran = []
    while messages := high.dequeue(40).messages + low.dequeue(40).messages:
        ran += [one.mid for one in messages]
        for queue, own in ((high, [m for m in messages if ".rows." in m.mid or m.mid == "other"]),):
            queue.finish([_done(m) for m in own])
        low.finish([_done(m) for m in messages if m.mid.startswith("~") and ".rows." not in m.mid])
        flowing.drain()
        assert all(row.waiting <= 62 for row in high.admin.iter_keys())
        assert len(ran) > 100 or waits().endswith(f"more are being added {room}")
    assert len(ran) == len(set(ran)) == 603
    assert [m for m in ran if ".rows." in m] == [f"~{F}.r1.rows.{number}" for number in range(600)]
    assert flowing.facts(F).state == "done" and flowing.left() == []
    said = [one for one in caplog.records if "is waiting for room" in one.getMessage()]
    assert [one.levelname for one in said] == ["WARNING"]
    assert store.facts() is not None


def test_two_drainers_do_not_drain_the_same_head(flowing: Flowing, redis: Any):
    flowing.start(F, step("a"))
    low: Queue = flowing.queues["low"]
    redis.set(f"{low.prefix}flow-claim", "another")
    assert flowing.drainer.drain("low") == 0
    assert flowing.drainer.look(F)
    low.flow_outbox_drop([entry.entry_id for entry in low.flow_outbox()])
    announce(flowing.client, "low", "look", F)


def test_flows_whose_node_does_not_answer_keep_no_other_waiting(
    flowing: Flowing, monkeypatch: pytest.MonkeyPatch
):
    """On a Cluster. Their entries stay, and are delivered when their node is back."""
    asked, now = [], [0]
    apply = FlowStore.apply

    def apply_there(self: FlowStore, *args: Any, **more: Any) -> Any:
        if self.flow.startswith("away:") and now[0] < 2 * PASS_OVER_NS:
            asked.append(self.flow)
            raise UnavailableError("its node doesn't answer")
        return apply(self, *args, **more)

    monkeypatch.setattr(FlowStore, "apply", apply_there)
    monkeypatch.setattr(flowing.client, "is_cluster", True)
    flowing.drainer = Drainer(flowing.client, lambda: now[0])
    for number in range(BATCH + 1):
        flowing.start(f"away:{number}", step("a"))
    flowing.start(F, step("a"), step("b", "a"))
    assert names(flowing.work()) == ["a", "b"]
    assert len(asked) == BATCH + 1 == flowing.queues["low"].admin.flow_backlog().entries

    now[0] += PASS_OVER_NS + 1
    assert flowing.work() == []
    assert len(asked) == 2 * (BATCH + 1)
    now[0] += PASS_OVER_NS + 1
    assert len(flowing.work()) == BATCH + 1
    assert flowing.left() == []


def test_a_node_that_does_not_answer_is_the_callers_matter_where_it_is_the_only_one(
    flowing: Flowing, monkeypatch: pytest.MonkeyPatch
):
    flowing.start(F, step("a"))
    with monkeypatch.context() as patched:
        patched.setattr(FlowStore, "apply", _unavailable)
        with pytest.raises(UnavailableError):
            flowing.drainer.drain("low")
    assert names(flowing.work()) == ["a"]


def _unavailable(*_args: Any, **_more: Any) -> Any:
    raise UnavailableError("the server doesn't answer")


def test_what_is_sealed_is_left_to_drainers_with_a_key_and_dropped_after_an_hour(
    flowing: Flowing, client: Client, redis: Any
):
    codec = CodecSettings(keys=(("k", b"s" * 32),), accept_plain=True)
    sealing = connect(settings=replace(client.settings, codec=codec))
    flowing.start("plain:7", step("a"))
    FlowStore(client, F).create(StoredFlow((step("a"),), "hash", "low", 60_000, run_id=RUN))
    announce(sealing, "low", "begin", F)
    assert flowing.work() == ["~plain:7.r1.a.0"]
    assert flowing.facts(F).state == "open"
    assert flowing.queues["low"].admin.flow_backlog().entries == 1

    assert Drainer(sealing).drain("low") == 1
    flowing.drainer = Drainer(client)
    assert flowing.work() == [f"~{F}.r1.a.0"]
    assert flowing.facts(F).state == "done"

    old = f"{client.clock_ms() - 3_600_001}-0"
    [entry] = _said(sealing, redis)
    redis.delete(entry[0])
    redis.xadd(entry[0], entry[1], id=old)
    assert Drainer(client).drain("low") == 1
    sealing.close()


def _said(client: Client, redis: Any) -> list[Any]:
    announce(client, "low", "cancel", F)
    [key] = redis.keys("*flow-outbox")
    return [(key, fields) for _, fields in redis.xrange(key)]


@pytest.fixture
def full(redis: Any) -> Any:
    """full(): afterwards the server is full; full(False): it has again."""

    def set_full(yes: bool = True) -> None:
        redis.config_set("maxmemory", int(yes))

    redis.config_set("maxmemory-policy", "noeviction")
    yield set_full
    set_full(False)


@pytest.mark.one_server
def test_on_a_full_server_ends_are_taken_and_next_steps_wait_for_room(
    flowing: Flowing, full: Any, redis: Any
):
    now = [0]
    flowing.drainer = Drainer(flowing.client, lambda: now[0])
    low = flowing.queues["low"]
    flowing.start(F, step("a"), step("b", "a"))
    flowing.start("last:1", step("a"))
    flowing.drain()
    held = low.dequeue(8).messages
    low.finish([Ending(mid=one.mid, token=one.token, result=b"7", result_ttl=60) for one in held])
    full()
    assert flowing.drainer.drain("low") == 0
    assert flowing.facts("last:1").state == "done"
    assert [one.done for one in flowing.facts(F).steps] == [1, 0]
    assert not redis.keys("jobq:{low}:result:*")
    with pytest.raises(ServerFullError):
        flowing.say("cancel", F)
    full(False)
    now[0] += PASS_OVER_NS + 1
    assert names(flowing.work()) == ["b"]
    assert flowing.facts(F).state == "done"
    assert flowing.left() == []


def test_what_many_calls_reported_is_looked_for_in_as_many_calls_as_it_takes(flowing: Flowing):
    """A producer died amid a chunk, and thousands of members before it ended since."""
    store = flowing.start(F, step("rows", kind="map", source="stream"))
    flowing.drain()
    low, drainer = flowing.queues["low"], flowing.drainer
    sender = StepSender(
        Sending(
            flowing.client, lambda: True, drainer.unapplied, SharedConfirmation(flowing.client)
        ),
        store.run,
    )
    for chunk in range(10):
        rows = [(f"~{F}.r1.rows.{250 * chunk + number}", b"v") for number in range(250)]
        assert sender.add_chunk(low, "rows", chunk, rows, {}).outcome == "new"
    while found := low.dequeue(250).messages:
        low.finish([_done(one) for one in found])
    assert sender.add_chunk(low, "rows", 9, rows, {}).outcome == "doubt"
    assert flowing.facts(F).steps[0].done == 2_500
    assert store.seal("rows", 10) == "ok"
    assert flowing.work() == []
    assert flowing.facts(F).state == "done"


def test_a_retry_of_100_000_members_goes_on_in_bounded_calls_when_drainers_die(
    flowing: Flowing, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    """A thousand of them are dead; ten at once and 200 a call are revived."""
    size, low = 100_000, flowing.queues["low"]
    store = flowing.start(F, step("rows", kind="map", source="stream"))
    flowing.drain()
    store.reserve("rows", 0, 250)
    store.seal("rows", 1)
    dead = range(0, size, 100)
    low.enqueue_members([(f"~{F}.r1.rows.{number}", b"v") for number in dead])
    while found := low.dequeue(250).messages:
        low.finish([Ending(mid=one.mid, token=one.token, outcome="dead") for one in found])
    counts = redis.hget(store.prefix + "meta", "n:rows").decode().split(",")
    redis.hset(
        store.prefix + "meta", "n:rows", f"{size},{size - 1000},{size},1,{','.join(counts[4:])}"
    )
    redis.hset(store.prefix + "meta", mapping={"x:rows": f"0:{size}", "open": 0, "failed": 1})
    redis.set(store.prefix + "ended", b"\xff" * (size // 8))
    bits = bytearray(b"\xff" * (size // 8))
    for number in dead:
        bits[number // 8] &= ~(128 >> number % 8)
    redis.set(store.prefix + "done", bytes(bits))
    flowing.drain()
    assert flowing.facts(F).state == "failed"
    monkeypatch.setattr(sending, "REVIVED_TOGETHER", 10)
    monkeypatch.setattr(sending, "PAGES_PER_CALL", 20)
    FlowRun("import", "7", client=flowing.client).retry()
    facts = flowing.facts(F)
    assert (facts.steps[0].retried, facts.steps[0].revived) == (200, 19_000)
    assert "19,000 of 100,000 so far" in str(FlowView(facts))
    # The next drainer dies before it revives the noted members.
    revive_some = sending.ReviveMembers._revive_some
    with monkeypatch.context() as patch:
        patch.setattr(sending.ReviveMembers, "_revive_some", _killed)
        redis.delete("jobq:{low}:flow-claim")
        with pytest.raises(KeyboardInterrupt):
            flowing.drainer.drain("low")
    assert sending.ReviveMembers._revive_some is revive_some
    calls, before = 0, low.admin.counts().ready
    while flowing.facts(F).steps[0].reviving:
        redis.delete("jobq:{low}:flow-claim")
        Drainer(flowing.client).drain("low", 1)
        calls, now = calls + 1, low.admin.counts().ready
        assert before < now <= before + 200 or now == 1_000
        before = now
    assert calls >= 4
    assert low.admin.counts().ready == 1_000 and not low.admin.dead()
    assert len(flowing.work()) == 1_000
    assert flowing.facts(F).state == "done"


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_step_is_accepted_once_when_a_drainer_waits_between_two_calls_and_its_flow_is_cancelled(
    client: Any,
):
    """Wherever it waits, until another drainer has sent the step, and the cancel has removed its message."""
    take_turns(client)
    for ncalls in count():
        flowing, flow = Flowing(client), f"import:{ncalls}"
        low = flowing.queues["low"]
        store = flowing.start(flow, step("a"))
        entries, waits = low.flow_outbox(), Drainer(client)
        turns = TurnTaker("waits", partial(waits._take, low, entries, waits._clock()))
        for _ in range(ncalls + 1):
            turns.go()
        was_over = turns.is_over
        flowing.drain()
        assert store.facts().steps[0].live == 1
        flowing.say("cancel", flow)
        flowing.drain()
        while not turns.is_over:
            turns.go()
        assert turns.error is None
        assert flowing.work() == []
        assert flowing.facts(flow).state == "cancelled"
        if was_over:
            break
    assert ncalls == 3


def test_timer_of_a_wait_is_gone_when_a_drainer_waits_between_two_calls_and_a_signal_comes(
    client: Any,
):
    """Wherever it waits, whether or not another drainer has enqueued the timer."""
    take_turns(client)
    timed = step("ok", kind="wait", options=b'{"delay": 3600}')
    for ncalls in count():
        flowing, flow = Flowing(client), f"import:{ncalls}"
        low = flowing.queues["low"]
        flowing.start(flow, timed)
        entries, waits = low.flow_outbox(), Drainer(client)
        turns = TurnTaker("waits", partial(waits._take, low, entries, waits._clock()))
        for _ in range(ncalls + 1):
            turns.go()
        was_over = turns.is_over
        flowing.say("signal", flow, "ok\x1fyes")
        flowing.drain()
        while not turns.is_over:
            turns.go()
        flowing.drain()
        assert turns.error is None
        assert flowing.facts(flow).state == "done"
        assert low.status(f"~{flow}.r1.ok.0").word == "nil"
        if was_over:
            break
    assert ncalls == 3


@pytest.mark.parametrize("is_reserved", [False, True], ids=["new", "in doubt"])
@pytest.mark.parametrize("source", ["items", "=a"])
def test_member_runs_once_when_a_drainer_waits_between_two_calls_and_another_goes_on(
    client: Any, source: str, is_reserved: bool
):
    """Wherever it waits, until the members that the other enqueued are done and their messages gone."""
    take_turns(client)
    options = b'{"key": "k"}'
    for ncalls in count():
        flowing, flow = Flowing(client), f"import:{ncalls}"
        low = flowing.queues["low"]
        rows = step("rows", "a", kind="map", source=source, options=options)
        store = flowing.start(flow, step("a"), rows, step("b", "rows"))
        store.put_items("rows", "low", 0, [call_of(str(number)) for number in range(3)])
        flowing.drain()
        if is_reserved:
            # By a drainer that died then.
            store.reserve("rows", 0, 3)
        [first] = low.dequeue().messages
        listed = encode_result([1, 2, 3], "a")
        low.finish([Ending(mid=first.mid, token=first.token, result=listed, result_ttl=60)])
        entries, waits = low.flow_outbox(), Drainer(client)
        turns = TurnTaker("waits", partial(waits._take, low, entries, waits._clock()))
        for _ in range(ncalls + 1):
            turns.go()
        was_over = turns.is_over
        flowing.work()
        low.admin.collect()
        while not turns.is_over:
            turns.go()
        flowing.work()
        assert turns.error is None
        assert flowing.ran == Counter(mids("rows.0", "rows.1", "rows.2", "b.0", flow=flow))
        assert flowing.facts(flow).state == "done"
        if was_over:
            break
    assert ncalls > 8
