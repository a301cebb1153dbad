"""A flow's own slot: what changes take it where, whatever comes twice, late or from the wrong place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jobq.errors import ScriptError
from jobq.flows.state import Edge, FlowView, When
from jobq.flows.store import FlowStore
from jobq.flows.types import Applied, FlowChange, Reserved, StoredFlow, StoredStep, TodoItem

HOME = "qlow"


def step(
    name: str, *after: str, queue: str = "low", when: When = "done", **more: Any
) -> StoredStep:
    edges = tuple(Edge(one, when) for one in after)
    more = {"kind": "step", "call": b"call of " + name.encode(), **more}
    return StoredStep(name, queue=queue, after=edges, **more)


class Told:
    """A flow, and the little that a test says to it."""

    def __init__(self, client: Any, *steps: StoredStep, **more: Any) -> None:
        self.store = FlowStore(client, "import:7")
        self.record = StoredFlow(steps, "hash", "low", 60_000, **more)
        assert self.store.create(self.record) == "created"

    def tell(
        self,
        kind: str,
        step: str = "",
        number: int = 0,
        detail: bytes | None = None,
        source: str = HOME,
    ) -> Any:
        return self.store.apply(source, [FlowChange(kind, step, number, detail)])

    def begin(self) -> list[str]:
        return self.names(self.tell("begin").todo)

    def send(self) -> list[str]:
        """Take off all that is to be sent; its former value."""
        found = self.tell("look").todo
        self.store.sent(found)
        return self.names(found)

    def names(self, items: tuple[TodoItem, ...]) -> list[str]:
        return [f"{one.todo} {one.step}".strip() for one in items]

    def state(self) -> str:
        facts = self.store.facts()
        return facts.state if facts else ""


@pytest.fixture
def diamond(client: Any) -> Told:
    return Told(
        client, step("a"), step("b", "a"), step("c", "a", queue="high"), step("d", "b", "c")
    )


def test_a_diamond_sends_each_step_once_and_is_kept_for_a_while(diamond: Told, redis: Any):
    assert diamond.begin() == ["send a"]
    assert [one.again for one in diamond.tell("begin").todo] == [True]
    assert diamond.send() == ["send a"]
    for _ in range(2):
        assert diamond.names(diamond.tell("done", "a").todo) == ["send b", "send c"]
    diamond.send()
    assert diamond.send() == []
    diamond.tell("done", "b")
    assert diamond.send() == []
    diamond.tell("done", "c", source="qhigh")
    assert diamond.send() == ["send d"]
    assert diamond.state() == "running"
    assert diamond.tell("done", "d").state == "done"
    lives = {name: redis.pttl(name) for name in redis.keys("jobq:flow:*")}
    assert all(0 < life <= 60_000 for life in lives.values()), lives
    assert diamond.tell("done", "d").state == "done"
    assert diamond.store.create(diamond.record) == "over"


def test_map_whose_producer_adds_members_is_refused_when_it_waits(client: Any, redis: Any):
    with pytest.raises(ScriptError, match="edges of a step must be none"):
        Told(client, step("a"), step("rows", "a", kind="map", source="stream"))
    assert not redis.keys("jobq:flow:*")


def test_nothing_is_taken_from_another_queue_nor_of_a_step_that_was_not_sent(diamond: Told):
    assert diamond.tell("begin", source="qhigh").refused == 1
    assert diamond.state() == "open"
    assert diamond.tell("done", "a").refused == 1
    diamond.begin()
    for kind, name, number, source in (
        ("done", "a", 0, "qhigh"), ("done", "a", 1, HOME), ("done", "b", 0, HOME), ("done", "no", 0, HOME),
        ("dead", "c", 0, "fa:1"), ("cancel", "", 0, "qhigh"), ("signal", "a", 0, HOME), ("done", ">a", 0, HOME),
    ):  # fmt: skip
        assert diamond.tell(kind, name, number, source=source).refused == 1, (kind, name)
    facts = diamond.store.facts()
    assert facts
    assert facts.refused == 10
    assert [one.ended for one in facts.steps] == [0, 0, 0, 0]


def test_a_flow_that_is_gone_stays_gone(diamond: Told, redis: Any):
    diamond.begin()
    redis.flushall()
    for kind in ("begin", "done", "retry", "cancel", "look"):
        assert diamond.tell(kind, "a") == Applied("", 0, (), False)
    assert diamond.store.sent([]).state == ""
    assert diamond.store.reserve("a", 0, 1).outcome == "closed"
    assert diamond.store.seal("a", 0) == "closed"
    assert diamond.store.retried("a", [0]) == 0
    assert diamond.store.put_items("a", "low", 0, [b"x"]) == "closed"
    assert diamond.store.add_steps([step("x")]) == "closed"
    assert diamond.store.facts() is None
    assert redis.keys() == []


def test_a_failed_step_goes_another_way_and_a_retry_goes_on(client: Any):
    flow = Told(
        client,
        step("a"),
        step("b", "a"),
        step("alert", "a", when="failed"),
        step("log", "a", when="ended"),
    )
    flow.begin()
    flow.send()
    flow.tell("dead", "a")
    assert flow.send() == ["send alert", "send log"]
    flow.tell("done", "alert")
    assert flow.tell("done", "log").state == "failed"
    assert flow.store.failures() == {"a:0": "dead"}
    assert flow.names(flow.tell("retry").todo) == ["revive a"]
    assert flow.state() == "running"
    assert flow.store.page("a", "failed").numbers == (0,)
    assert flow.store.retried("a", [0, 5]) == 1
    assert flow.store.retried("a", [0]) == 0
    flow.send()
    assert flow.state() == "running"
    assert flow.tell("dead", "a").state == "failed"
    flow.tell("retry", "a")
    flow.store.retried("a", [0])
    flow.send()
    flow.tell("done", "a")
    assert flow.send() == ["send b"]
    assert flow.tell("done", "b").state == "done"
    assert flow.store.failures() == {}


def test_what_a_person_says_is_taken_once_whatever_came_in_between(diamond: Told):
    """Another drainer may have deleted the entry by then, and nobody would send what a repetition brings."""
    said = [
        FlowChange("begin", entry="5-1"),
        FlowChange("retry", entry="5-2"),
        FlowChange("dead", "a"),
    ]
    assert [one.todo for one in diamond.store.apply(HOME, said[:1]).todo] == ["send"]
    diamond.send()
    for _ in range(2):
        assert diamond.store.apply(HOME, said).state == "failed"
    assert diamond.names(diamond.store.apply(HOME, [FlowChange("retry", entry="6-0")]).todo) == [
        "revive a"
    ]
    assert diamond.store.apply(HOME, [FlowChange("cancel", entry="5-9")]).state == "running"


def test_a_map_is_numbered_by_chunks_and_ends_when_it_is_sealed(client: Any):
    flow = Told(
        client, step("rows", kind="map", source="stream"), step("one"), step("after", "rows")
    )
    flow.begin()
    flow.send()
    store, facts = flow.store, flow.store.facts()
    assert facts is not None
    assert store.reserve("rows", 0, 250) == Reserved("new", 0, 1)
    assert store.reserve("rows", 0, 250) == Reserved("doubt", 0, 1)
    assert store.reserve("rows", 0, 249).outcome == "other"
    assert store.reserve("rows", 2, 250).outcome == "other"
    assert store.reserve("rows", 1, 250).outcome == "new"
    assert store.reserve("rows", 0, 250).outcome == "added"
    for chunk in range(2, 40):
        assert store.reserve("rows", chunk, 250).outcome == "new"
    assert store.reserve("rows", 40, 7) == Reserved("new", 10_000, 41)
    assert store.reserve("rows", 41, 1).outcome == "other"
    flow.tell("done", "one")
    numbers = [*range(0, 10_007, 3), *range(10_007)]
    for at in range(0, len(numbers), 1_000):
        some = numbers[at : at + 1_000]
        assert (
            store.apply(
                HOME, [FlowChange("done", "rows", one) for one in some if one != 9_999]
            ).refused
            == 0
        )
    assert flow.tell("done", "rows", 10_007).refused == 1
    assert store.page("rows", "live") == ((9_999,), -1)
    assert store.seal("rows", 40) == "other"
    assert store.seal("rows", 41) == "ok"
    assert [store.seal("rows", 41), store.seal("rows", 40)] == ["ok", "sealed"]
    assert store.reserve("rows", 41, 1).outcome == "sealed"
    assert flow.send() == []
    flow.tell("done", "rows", 9_999)
    assert flow.send() == ["send after"]


def test_members_of_a_map_count_once_in_whatever_order_and_however_often_they_end(client: Any):
    random_ = random.Random(11)
    told = Told(client, step("rows", kind="map", source="stream"), step("one"))
    for chunk in range(4):
        told.store.reserve("rows", chunk, 250)
    told.tell("begin")
    done, ended, refused = set[int](), set[int](), 0
    for _ in range(60):
        changes = []
        for _ in range(random_.randrange(1, 6)):
            first, kind = random_.randrange(1_010), random_.choice(["done"] * 5 + ["dead"])
            numbers = [*range(first, first + random_.choice((1, 7, 31, 32, 33, 100)))]
            random_.shuffle(numbers) if random_.random() < 0.3 else None
            changes += [FlowChange(kind, "rows", one) for one in numbers]
            known = {one for one in numbers if one < 1_000}
            refused += len(numbers) - len(known)
            ended |= known
            done |= known if kind == "done" else set()
        told.store.apply(HOME, changes)
        facts = told.store.facts()
        assert facts is not None
        [rows] = [one for one in facts.steps if one.name == "rows"]
        assert (rows.done, rows.ended, facts.refused) == (len(done), len(ended), refused)
        assert rows.dead == len(ended - done)
    assert set(told.store.failures()) <= {f"rows:{one}" for one in ended - done}
    failed, cursor = set[int](), 0
    while cursor >= 0:
        page = told.store.page("rows", "failed", cursor)
        failed.update(page.numbers)
        cursor = page.cursor
    assert failed == ended - done


@pytest.mark.parametrize(
    "number",
    [
        "1,",
        ",1",
        "1,x",
        "1,12345678",
        ",".join(["1"] * 2_001),
        "",
        "-1",
        "1-",
        "2-1",
        "1-2-3",
        "1 2",
        "1--2",
        "1,,2",
        "0-2000",
        "0-1999,5",
        "1-12345678",
        "00000001-2",
    ],
)
def test_lists_of_members_are_refused_if_they_are_none(client: Any, number: str):
    told = Told(client, step("rows", kind="map", source="stream"))
    with pytest.raises(ScriptError, match="number must be"):
        told.store.client.ask(
            told.store._call("apply", ("", "", HOME, 1, "done", "rows", number, "", b""), list)
        )


def test_an_empty_map_is_done_at_once_and_all_behind_it_goes_on(client: Any):
    flow = Told(client, step("rows", kind="map", source="stream"), step("after", "rows"))
    flow.begin()
    assert flow.send() == []
    assert flow.store.seal("rows", 0) == "ok"
    assert flow.send() == ["send after"]


def test_pages_of_members_skip_what_is_dull(client: Any):
    flow = Told(client, step("rows", kind="map", source="stream"))
    flow.begin()
    for chunk in range(160):
        flow.store.reserve("rows", chunk, 250)
    dead = [5, 249, 250, 8_191, 33_000, 39_999]
    for at in range(0, 40_000, 1_000):
        flow.store.apply(
            HOME,
            [
                FlowChange("dead" if one in dead else "done", "rows", one)
                for one in range(at, at + 1_000)
                if one != 777
            ],
        )
    found, cursor = [], 0
    while cursor >= 0:
        page = flow.store.page("rows", "failed", cursor, 2)
        assert len(page.numbers) <= 2
        found += page.numbers
        cursor = page.cursor
    assert found == dead
    assert flow.store.page("rows", "live").numbers == (777,)
    assert flow.store.retried("rows", dead) == 6
    assert flow.store.page("rows", "failed").numbers == (5, 249, 250, 8_191)
    assert flow.store.page("rows", "live").numbers == (5, 249, 250, 777, 8_191)


def test_a_drainer_of_an_earlier_retry_notes_nothing(client: Any):
    flow = Told(client, step("a"))
    flow.begin()
    flow.send()
    stamps = []
    for _ in range(2):
        flow.tell("dead", "a")
        [item] = flow.tell("retry").todo
        stamps.append(item.stamp)
        assert flow.store.retried("a", [0], stamp=item.stamp, cursor=0) == 1
        flow.send()
    flow.tell("dead", "a")
    flow.tell("retry")
    for stamp in stamps:
        assert flow.store.retried("a", [0], stamp=stamp, cursor=1) == -1
    facts = flow.store.facts()
    assert facts is not None and (facts.steps[0].revived, facts.steps[0].retried) == (0, 0)
    assert flow.store.page("a", "revive").numbers == (0,)


def test_signal_before_the_begin_gives_its_keys_the_life_of_the_flow(client: Any, redis: Any):
    flow = Told(client, step("a"), step("gate", "a", kind="wait"))
    assert flow.tell("signal", "gate", detail=b"yes").state == "open"
    lives = [redis.pttl(name) for name in redis.keys("jobq:flow:*")]
    assert len(lives) == 6 and min(lives) > 0


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_counts_once_before_or_after_its_wait_opened(client: Any, early: bool):
    flow = Told(client, step("a"), step("gate", "a", kind="wait"), step("b", "gate"))
    flow.begin()
    flow.send()
    if early:
        assert flow.tell("signal", "gate", detail=b"yes").refused == 0
    flow.tell("done", "a")
    if not early:
        assert flow.send() == ["send gate"]
        flow.tell("signal", "gate", detail=b"yes")
        assert flow.tell("signal", "gate", detail=b"no").refused == 0
    assert flow.send() == ["drop gate", "send b"][early:]
    assert flow.tell("done", "gate").refused == 0
    assert flow.store.results(["gate:0", "b:0"]) == {"gate:0": b"yes"}
    assert flow.tell("done", "b").state == "done"


def test_a_wait_that_timed_out_has_failed_and_takes_no_signal_until_it_is_retried(client: Any):
    flow = Told(client, step("gate", kind="wait"), step("b", "gate"))
    assert flow.begin() == ["send gate"]
    assert flow.tell("done", "gate").state == "failed"
    assert flow.store.failures() == {"gate:0": "timeout"}
    assert flow.tell("signal", "gate", detail=b"late").refused == 1
    assert flow.tell("retry").state == "running"
    assert flow.send() == []
    flow.tell("signal", "gate", detail=b"now")
    assert flow.send() == ["drop gate", "send b"]


def test_a_signal_is_refused_when_it_comes_to_a_flow_that_is_over(client: Any):
    """A retry then waits for it again: who signalled was told that the flow is over."""
    flow = Told(client, step("a"), step("gate", "a", kind="wait"), step("b", "gate"))
    flow.begin()
    flow.send()
    assert flow.tell("dead", "a").state == "failed"
    assert flow.tell("signal", "gate", detail=b"yes").refused == 1
    flow.tell("retry")
    flow.store.retried("a", [0])
    flow.send()
    flow.tell("done", "a")
    assert flow.send() == ["send gate"]
    assert flow.store.results(["gate:0"]) == {}
    flow.tell("signal", "gate", detail=b"now")
    assert flow.send() == ["drop gate", "send b"]


def test_a_signal_is_refused_when_its_flow_is_cancelled_and_not_yet_over(client: Any):
    flow = Told(client, step("a"), step("gate", "a", kind="wait"), step("b", "gate"))
    flow.begin()
    flow.send()
    assert flow.tell("cancel").state == "cancelled"
    assert flow.tell("signal", "gate", detail=b"yes").refused == 1
    assert flow.store.results(["gate:0"]) == {}


@pytest.mark.parametrize("retried", [True, False])
@pytest.mark.parametrize("kind", ["step", "map"])
def test_a_reason_is_gone_when_its_member_is_retried_or_done(client: Any, kind: Any, retried: bool):
    """Retried: through the flow. Else a person revived the dead message, of which the flow hears when it is done."""
    flow = Told(client, step("a", kind=kind, source="stream" if kind == "map" else ""))
    flow.begin()
    flow.send()
    if kind == "map":
        flow.store.reserve("a", 0, 3)
        flow.store.seal("a", 1)
        flow.tell("done", "a", 0)
        flow.tell("dead", "a", 2, b"no disk")
    flow.tell("dead", "a", 1 if kind == "map" else 0, b"no disk")
    assert set(flow.store.failures().values()) == {"no disk"}
    if retried:
        flow.tell("retry")
        assert flow.store.retried("a", [0, 1, 2]) == len(flow.store.page("a", "revive").numbers)
        assert flow.store.failures() == {}
        flow.send()
    numbers = range(3 if kind == "map" else 1)
    found = flow.store.apply(HOME, [FlowChange("done", "a", number) for number in numbers])
    assert found.state == "done"
    assert flow.store.failures() == {}


def test_a_cancelled_flow_sends_nothing_more_and_is_over_once_nothing_lives(client: Any):
    flow = Told(
        client,
        step("a"),
        step("gate", kind="wait", call=b""),
        step("rows", kind="map", source="stream"),
        step("b", "a"),
    )
    flow.begin()
    flow.send()
    flow.store.reserve("rows", 0, 3)
    assert flow.tell("cancel").state == "cancelled"
    assert flow.store.reserve("rows", 1, 3).outcome == "closed"
    assert flow.send() == ["cancel a", "cancel rows"]
    flow.tell("done", "a")
    facts = flow.store.facts()
    assert facts and not facts.ended_at
    for number in range(3):
        flow.tell("cancelled", "rows", number)
    facts = flow.store.facts()
    assert facts and facts.ended_at
    assert flow.tell("retry").todo == ()
    assert flow.store.remove() == "removed"


def test_what_failed_before_the_cancel_is_told_apart_from_what_it_ended(client: Any):
    rows = step("rows", kind="map", source="stream")
    waits = [step(name, kind="wait", call=b"x") for name in ("late", "gate")]
    flow = Told(client, step("bad"), step("a"), step("b", "bad"), rows, *waits)
    flow.begin()
    flow.send()
    flow.store.reserve("rows", 0, 5)
    flow.store.seal("rows", 1)
    flow.tell("dead", "bad")
    flow.tell("done", "late")  # its time is up
    flow.tell("dead", "rows", 3)
    flow.tell("cancel")
    for number in (0, 1, 2, 4):
        flow.tell("done" if number == 1 else "cancelled", "rows", number)
    flow.tell("cancelled", "a")
    flow.send()
    facts = flow.store.facts()
    assert facts and facts.ended_at
    counts = {one.name: (one.done, one.dead, one.cancelled) for one in facts.steps}
    assert counts == {
        "bad": (0, 1, 0), "a": (0, 0, 1), "b": (0, 0, 0), "rows": (1, 1, 3), "late": (0, 1, 0), "gate": (0, 0, 1),
    }  # fmt: skip
    assert {one.name: one.state for one in FlowView(facts).steps} == {
        "bad": "failed", "a": "cancelled", "b": "skipped", "rows": "cancelled", "late": "failed", "gate": "cancelled",
    }  # fmt: skip


def test_a_flow_tells_its_parent_how_it_ended(client: Any):
    child = Told(client, step("a"), parent="big:1.r1.part")
    parent = FlowStore(client, "big:1")
    parent.create(
        StoredFlow((StoredStep("part", "flow", "", source="import:7"),), "h", "low", 1_000)
    )
    [item] = parent.apply(HOME, [FlowChange("begin")]).todo
    assert (item.todo, item.source) == ("flow", "import:7")
    child.begin()
    child.send()
    [word] = child.tell("dead", "a").todo
    assert (word.step, word.todo, word.source, word.options) == (
        "",
        "parent",
        "big:1.r1.part",
        b"failed",
    )
    assert parent.apply("qpart", [FlowChange("dead", "part")]).refused == 1
    assert parent.apply("fimport:8", [FlowChange("dead", "part")]).refused == 1
    assert parent.apply("fimport:7", [FlowChange("dead", "part")]).state == "failed"
    assert child.store.sent([word]).todo == ()


def test_steps_can_be_added_while_a_flow_runs(diamond: Told):
    assert diamond.store.add_steps([step("x")]) == "closed"
    diamond.begin()
    diamond.send()
    more = [step("x"), step("y", "x", "a")]
    assert [diamond.store.add_steps(more) for _ in range(2)] == ["added", "added"]
    assert diamond.store.add_steps([step("x", "a")]) == "conflict"
    assert diamond.send() == ["send x"]
    diamond.tell("done", "x")
    diamond.tell("done", "a")
    assert diamond.send() == ["send b", "send c", "send y"]
    with pytest.raises(ScriptError, match="to steps before it"):
        diamond.store.add_steps([step("z", "nobody")])


def test_results_are_kept_with_the_end_and_a_flow_of_too_many_fails(client: Any):
    flow = Told(client, step("rows", kind="map", source="stream"))
    flow.begin()
    for chunk in range(5):
        flow.store.reserve("rows", chunk, 250)
    big = b"x" * 65_536
    for number in range(1_024):
        flow.tell("done", "rows", number, big)
    flow.tell("done", "rows", 7, b"")
    flow.tell("done", "rows", 1_024, b"x")
    assert flow.store.results(["rows:7", "rows:1024"]) == {"rows:7": big}
    assert "over 64 MiB" in flow.store.failures()["rows:1024"]


def test_stored_members_are_given_back_until_they_were_sent(client: Any, redis: Any):
    flow = Told(client, step("a"), step("rows", "a", kind="map", source="items"))
    assert flow.store.put_items("rows", "low", 0, [b"one", b"", b"three"]) == "ok"
    assert flow.store.put_items("rows", "low", 0, [b"other"]) == "ok"
    assert flow.store.put_items("rows", "low", 1, [b"x" * 8_388_608]) == "full"
    flow.begin()
    flow.send()
    flow.tell("done", "a")
    assert flow.store.items("rows", "low", 0) == [b"one", b"", b"three"]
    assert flow.store.items("rows", "low", 1) == []
    flow.store.reserve("rows", 0, 3)
    flow.store.seal("rows", 1)
    assert flow.send() == ["map rows"]
    assert redis.exists("jobq:flow:{import:7}:items") == 0


def test_another_definition_under_an_id_is_noticed(diamond: Told):
    assert diamond.store.create(diamond.record) == "same"
    assert diamond.store.create(diamond.record._replace(definition="other")) == "conflict"
    diamond.begin()
    assert diamond.store.create(diamond.record) == "same"
    assert diamond.store.remove() == "running"


def test_life_is_set_of_a_flow_that_waits_for_the_parent_that_says_so(client: Any, redis: Any):
    record = StoredFlow(
        (step("a"),), "hash", "low", 60_000, parent="big:1.r1.part", life_ms=900_000
    )
    store = FlowStore(client, "import:7")
    assert store.set_life("big:1.r1.part", 5, 1_000) == "other" and not redis.keys("jobq:flow:*")
    store.create(record)

    def life_s() -> int:
        return int(redis.ttl(f"{store.prefix}steps"))

    assert store.set_life("big:2.part", 5, 100_000) == "other" and life_s() > 800
    assert store.set_life("big:1.r1.part", 5, 100_000) == "ok" and 90 < life_s() <= 100
    assert store.set_life("big:1.r1.part", 4, 500_000) == "older" and life_s() <= 100
    assert store.set_life("big:1.r1.part", 5, 500_000) == "ok" and life_s() > 400
    # A parent that was removed and is started again counts its stamps from the start.
    assert store.create(record) == "same" and life_s() > 800
    assert store.set_life("big:1.r1.part", 1, 100_000) == "ok" and life_s() <= 100
    store.apply("qlow", [FlowChange("begin")])
    assert store.set_life("big:1.r1.part", 9, 100_000) == "other" and life_s() == -1


def test_more_than_a_page_of_things_to_send_comes_page_by_page(client: Any):
    flow = Told(client, *(step(f"s{i}") for i in range(700)))
    applied = flow.tell("begin")
    sent = []
    while applied.todo:
        assert applied.more == (len(sent) + len(applied.todo) < 700)
        sent += [one.step for one in applied.todo]
        applied = flow.store.sent(applied.todo)
    assert len(sent) == len(set(sent)) == 700


def test_a_million_members_take_little_memory(client: Any, redis: Any):
    flow = Told(client, step("rows", kind="map", source="stream"), step("after", "rows"))
    flow.begin()
    for chunk in range(4_000):
        flow.store.reserve("rows", chunk, 250)
    flow.store.seal("rows", 4_000)
    flow.tell("done", "rows", 999_999)
    nbytes = {name: redis.memory_usage(name, samples=0) for name in redis.keys("jobq:flow:*")}
    assert sum(nbytes.values()) <= 320_000, nbytes
