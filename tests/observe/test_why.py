"""Why a message waits: the reasons, and the facts that they are made of."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.errors import ScriptError
from jobq.events import Event
from jobq.flows.flow import Flow
from jobq.flows.identity import Member
from jobq.flows.state import Edge, FlowFacts, FlowView, StepFacts
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.limits.rate_limit import RateLimit
from jobq.observe.facts import MAX_EVENTS, Collector, starts_per_s
from jobq.observe.why import GatheredOn, MessageFacts, RunningOn, ServerFacts, why
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, GatheringCall, RunningJob, WorkerEntry
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Ending, Status
from tests.hostile import HOSTILE

NOW = 1_800_000_000_000
BUSY = WorkerEntry("w", queues=("low",), slots=2, running=2, lease_ms=15_000, seen_at=NOW)
IDLE = BUSY._replace(name="idle", running=0)
STRICT = IDLE._replace(name="strict", queues=("high", "low"), strict=True)
WAITING = MessageFacts("low", "m", NOW, Status("queued"), job="a.b", ahead=0, workers=(IDLE,))
FAILED = Event("retry", "m", NOW - 5_000, attempt=2, worker="w", error="Timeout 30 s")
LIMITED = Event("snoozed", "m", NOW - 2_000, error="limit stripe")


def facts(word: str = "queued", **more: Any) -> MessageFacts:
    status = {name: more.pop(name) for name in list(more) if name in Status._fields}
    return replace(WAITING, status=Status(word, **status), **more)


@pytest.mark.parametrize(
    ("known", "codes", "says"),
    [
        (facts(), ["next"], "next in line"),
        (facts(ahead=None), ["not_ready"], "other messages or limits of its key may block it"),
        (facts(server=ServerFacts(200 << 20, 100 << 20)), ["server_full", "next"], "it rejects enqueues"),
        (facts(server=ServerFacts(200 << 20, 100 << 20, evicts=True)), ["next"], "next in line"),
        (facts(server=ServerFacts(disk_error="its disk is full"), paused=True), ["server_read_only", "paused"],
         "waiting: the server rejects writes, so messages can't start: its disk is full"),
        (facts(paused=True, workers=()), ["paused", "no_worker"], "the queue is paused"),
        (facts(not_before=NOW + 60_000), ["delayed"], "due in 1 m 00 s: it was enqueued with a delay"),
        (facts(not_before=NOW + 8_000, attempts=2, history=(FAILED,)), ["retrying"],
         "next attempt in 8 s; attempt 2 failed: Timeout 30 s"),
        (facts(not_before=NOW + 8_000, attempts=1), ["retrying"], "after 1 attempt"),
        (facts(not_before=NOW + 8_000, unknowns=3), ["unknown_backoff"], "does not know its job (3 times)"),
        (facts(not_before=NOW + 8_000, history=(LIMITED,)), ["limited"],
         "due in 8 s: limit stripe rejected a start 2 s ago"),
        (facts(not_before=NOW + 8_000, history=(Event("snoozed", "m", NOW),)), ["snoozed"], "asked to run later"),
        (facts("nil", history=(Event("expired", "m", NOW - 5_000, worker="w"),)), ["expired"], "expired 5 s ago by w"),
        (facts(not_before=NOW - 9_000), ["upkeep_late"], "it was due 9 s ago"),
        (facts(lock_expires_at=NOW - 4_000), ["lease"], "lease ended 4 s ago"),
        (facts(workers=(BUSY._replace(seen_at=NOW - 600_000),)), ["worker_lost"],
         "worker w, which is lost: no heartbeat for 10 m 00 s; no other worker serves it"),
        (facts(workers=(IDLE._replace(quiet=True),), ahead=5), ["all_quiet"], "are quiet or stopping: idle"),
        (facts(knows={"idle": False}), ["unknown_job"], "no worker of queue low knows the job a.b (idle)"),
        (facts(workers=(IDLE, BUSY), knows={"idle": False, "w": True}), ["unknown_job_partly"], "1 of 2 workers"),
        (facts(workers=(IDLE, BUSY), knows={"idle": False}), ["unknown_job_partly"], "1 of 2 workers"),
        (facts(job="", knows={"idle": False}), ["next"], ""),
        (facts(workers=(BUSY,)), ["busy"], "it comes next; 2 of 2 slots are busy"),
        (facts(workers=(BUSY,), starts_per_s=0.0), ["busy", "pool_full"], "2 of 2 slots are busy"),
        (facts(ahead=412, workers=(BUSY,), starts_per_s=824.0), ["busy"],
         "412 messages of the queue come before it; 2 of 2 slots are busy; 824.0 starts/s: about 250 ms to 1 s"),
        (facts(workers=(STRICT, STRICT._replace(name="x", running=2)), first={"high": 8_000}), ["starved"],
         "use --strict, so ready messages of other queues run first: 8,000 in high"),
        (facts(workers=(STRICT, IDLE), first={"high": 8_000}), ["next"], ""),
        (facts(workers=(STRICT,), first={"high": 0}), ["next"], ""),
        (facts(ahead=10_000, starts_per_s=0.0), ["busy"], "over 10,000 messages"),
        (facts("queued-with-backoff", not_before=NOW + 1_000, paused=True), ["paused", "delayed"], "paused"),
        (facts("locked", attempts=2, lock_expires_at=NOW + 9_000, run=RunningOn("w", 7, NOW - 3_000)), ["running"],
         "has run for 3 s in w, child 7, attempt 2; the lease ends in 9 s"),
        (facts("locked", attempts=1, lock_expires_at=NOW + 9_000, gathered=GatheredOn("w", 7, NOW + 4_000)),
         ["gathering"], "waits in w, child 7 for more calls of its batch, which starts in 4 s or when full"),
        (facts("locked-with-requeue", attempts=1, lock_expires_at=NOW), ["handed_out", "requeued"],
         "but not reported as running yet"),
        (facts("done-with-backoff", not_before=NOW + 60_000), ["deduped"], "rejected for another 1 m 00 s"),
        (facts("done-with-backoff", not_before=NOW + 60_000, history=(Event("done", "m", NOW),)), ["deduped"],
         "rejected for another 1 m 00 s, because it was enqueued with until"),
        (facts("done-awaiting-gc"), ["done"], "done"),
        (facts("nil", history=(Event("cancelled", "m", NOW - 60_000),)), ["cancelled"], "cancelled 1 m 00 s ago"),
        (facts("nil"), ["not_found"], "queue low does not have this message"),
        (facts("dead", dead=DeadMessage("m#1", "m", NOW - 60_000, 3, 0, "ValueError: x\n\nTrace", b"")), ["dead"],
         "dead for 1 m 00 s after 3 attempts: ValueError: x"),
        (facts("dead"), ["dead"], "dead"),
    ],
)  # fmt: skip
def test_reason_that_decides_comes_first(known: MessageFacts, codes: list[str], says: str):
    reasons = why(known)
    assert [reason.code for reason in reasons] == codes
    assert says in reasons[0].sentence


def test_cancelled_run_is_called_cancelled_while_its_lease_lasts(queue: Queue):
    queue.enqueue(b"{}", mid="m")
    queue.dequeue(lease=60)
    queue.cancel("m")
    assert queue.status("m").word == "done-with-backoff"
    [reason] = why(Collector(queue).collect("m"))
    assert reason.code == "cancelled"
    assert re.fullmatch(
        r"cancelled .* ago; its id is rejected for another .*, until the lease of its run ends",
        reason.sentence,
    )


def test_all_reasons_that_hold_are_listed():
    known = facts(
        "queued-with-backoff", paused=True, not_before=NOW + 1_000, workers=(), ahead=None
    )
    assert [reason.code for reason in why(known)] == ["paused", "delayed", "no_worker"]


def announce(client: Client, name: str, **more: Any) -> None:
    presence.put_worker(client, name, {
        "seen_at": client.clock_ms(), "lease_ms": 15_000, "queues": ["low"], "slots": 1, "version": "1.2",
        "jobs": presence.digest_of(["a.b"]), **more,
    })  # fmt: skip


def test_facts_of_a_message_from_enqueue_to_end(queue: Queue, client: Client):
    def codes() -> list[str]:
        collector = Collector(queue)
        found = [reason.code for reason in why(collector.collect("m"))]
        assert collector.unread == {}
        return found

    assert codes() == ["not_found"]
    queue.enqueue(b"{}", mid="first")
    queue.enqueue(b'{"job":"a.c"}', mid="m")
    queue.admin.pause()
    assert codes() == ["paused", "no_worker"]
    queue.admin.resume()
    announce(client, "w")
    presence.put_jobs(client, ["a.b"])
    assert codes() == ["unknown_job", "busy"]
    presence.put_jobs(client, ["a.b", "a.c"])
    announce(client, "w", jobs=presence.digest_of(["a.b", "a.c"]), running=1)
    assert codes() == ["busy"]
    _, message = queue.dequeue(2).messages
    assert codes() == ["handed_out"]
    now_ms = client.clock_ms()
    call = GatheringCall("low", "m", now_ms + 9_000)
    presence.put_running(client, "w", [ChildEntry(7, "working", 0, 0, (), (call,))])
    assert codes() == ["gathering"]
    job = RunningJob("low", "m", now_ms - 1_000)
    presence.put_running(client, "w", [ChildEntry(7, "working", 0, 0, (job,))])
    assert codes() == ["running"]
    record = "a.c\x1f1\x1f\x1f10\x1f1\x1f1\x1fw\x1fTimeout"
    [reply] = queue.finish(
        [Ending(mid="m", token=message.token, outcome="retry", backoff=60, record=record)]
    ).replies
    assert reply == "ok"
    known = Collector(queue).collect("m")
    assert "attempt 1 failed: Timeout" in why(known)[0].sentence
    assert known.starts_per_s == pytest.approx(1 / 60)
    queue.cancel("m")
    queue.enqueue(b"{}", mid="m", delay=60)
    assert codes() == ["delayed"]


def test_queue_behind_another_one_of_strict_workers_is_starved(queue: Queue, client: Client):
    def told() -> list[tuple[str, str]]:
        return [(one.code, one.sentence) for one in why(Collector(queue).collect("m"))]

    high = Queue("high", client)
    queue.enqueue(b"{}", mid="m")
    announce(client, "w", queues=["high", "", "x" * 999, "low"], strict=True)
    assert [code for code, _ in told()] == ["next"]
    high.enqueue_many([b"{}"] * 3)
    [(code, sentence)] = told()
    assert code == "starved" and sentence.endswith("run first: 3 in high")
    high.admin.pause()
    assert [code for code, _ in told()] == ["next"]


def test_collected_member_of_a_running_flow_is_not_called_deleted(queue: Queue, client: Client):
    @job(name="step", queue="low", registry=Registry())
    def step() -> None: ...

    flow = Flow("import", id="1", client=client)
    flow.step(step, name="second", after=flow.step(step, name="first"))
    flow.start()
    [message] = queue.dequeue(1).messages
    queue.finish([Ending(mid=message.mid, token=message.token)])
    queue.admin.collect(100, now=client.clock_ms() + 7_200_000)
    assert queue.status(message.mid).word == "nil"

    reasons = why(Collector(queue).collect(message.mid))

    assert not {"flow_gone", "not_found"} & {reason.code for reason in reasons}
    assert "import:1" in "".join(reason.sentence for reason in reasons)
    client.command("DEL", f"{queue.prefix}events")
    assert [reason.code for reason in why(Collector(queue).collect(message.mid))] == [
        "flow_running"
    ]


def test_flow_that_cannot_be_read_is_not_called_deleted(queue: Queue, redis: Any, client: Client):
    redis.set("jobq:flow:{import:1}:meta", "of another type")
    collector = Collector(queue)

    reasons = why(collector.collect("~import:1.r1.first.0"))

    assert "flow" in collector.unread
    assert [reason.code for reason in reasons] == ["not_found"]


def test_full_server_is_a_reason_beside_others(queue: Queue, redis: Any):
    queue.enqueue(b"{}", mid="m")
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    try:
        reasons = why(Collector(queue).collect("m"))
    finally:
        redis.config_set("maxmemory", 0)
    assert [reason.code for reason in reasons] == ["server_full", "no_worker"]
    assert "of 0 MB), so it rejects enqueues" in reasons[0].sentence


def test_history_is_found_among_the_newest_events_alone(queue: Queue, redis: Any):
    assert starts_per_s(queue) is None
    events = f"{queue.prefix}events"
    redis.xadd(events, {"1": "done\x1fold\x1f5\x1fa.b"}, id="1-1")
    pipe = redis.pipeline()
    for n in range(MAX_EVENTS):
        pipe.xadd(
            events, {"1": f"done\x1fm\x1f5\x1fa.b\x1f{n}" if n % 1_000 == 0 else "done\x1fn\x1f5"}
        )
    pipe.execute()
    collector = Collector(queue)
    found = collector.collect("m").history
    assert [event.attempt for event in found] == [0, 1_000, 2_000, 3_000, 4_000]
    assert collector.collect("old").history == ()
    # Over the whole minute there are a twelfth of the newest events per second.
    assert (starts_per_s(queue) or 0) > MAX_EVENTS / 60


@pytest.mark.parametrize("name", ["messages", "ready", "events", "meta", "dead", "locks"])
def test_key_of_another_type_leaves_the_other_facts(queue: Queue, redis: Any, name: str):
    queue.enqueue(b'{"job":"a.b"}', mid="m")
    redis.delete(queue.prefix + name)
    redis.set(queue.prefix + name, "another type")
    collector = Collector(queue)
    if name in ("messages", "meta", "locks"):  # without its status nothing can be said
        with pytest.raises(ScriptError):
            collector.collect("m")
        return
    assert why(collector.collect("m")) and collector.unread


def test_hostile_bytes_in_any_hash_break_no_reason(queue: Queue, client: Client, redis: Any):
    queue.enqueue(b'{"job":"a.b"}', mid="m")
    queue.enqueue(b'{"job":"a.b"}', mid="run")
    now = client.clock_ms()
    good = {
        "seen_at": now,
        "lease_ms": 15_000,
        "queues": ["low"],
        "jobs": "d",
        "running": 1,
        "slots": 1,
    }
    odd = [
        b'{"seen_at":%d,"lease_ms":1,"queues":["low"],"jobs":"\\ud800\\u001b","slots":-1}' % now,
        b"[" * 9_000,
    ]
    for raw in [*HOSTILE, *odd]:
        redis.hset("jobq:workers", mapping={"w": json.dumps(good), b"\xff": raw, "x": raw})
        redis.hset("jobq:running", mapping={"w": raw, "x": raw})
        redis.hset("jobq:jobs", mapping={"d": raw})
        redis.hset(f"{queue.prefix}messages", "m", raw)
        redis.xadd(f"{queue.prefix}events", {raw or "f": raw})
        redis.xadd(f"{queue.prefix}events", {"1": b"retry\x1fm\x1f" + str(raw).encode()})
        for mid in ("m", "run", "none"):
            for reason in why(Collector(queue).collect(mid)):
                reason.sentence.encode()


def test_message_that_a_limit_refused_names_the_limit(queue: Queue, client: Client):
    registry, limit = Registry(), RateLimit("stripe", "1/m", client=client)
    charge = job(name="charge", queue="low", registry=registry, limits=[limit])(lambda: None)
    assert limit.try_acquire()
    charge.options(client=client, mid="m").enqueue()
    announce(client, "w")
    [message] = queue.dequeue().messages
    executor = Executor(registry, worker="w")
    call = executor.resolve("low", message)
    assert isinstance(call, Call)
    queue.finish([executor.run(call)])
    [reason] = why(Collector(queue).collect("m"))
    assert reason.code == "limited" and ": limit stripe rejected a start" in reason.sentence


def test_message_behind_a_key_says_what_holds_the_key_up(queue: Queue, client: Client):
    def told() -> list[tuple[str, str]]:
        collector = Collector(queue)
        found = [(one.code, one.sentence) for one in why(collector.collect("m"))]
        assert collector.unread == {}
        return found

    announce(client, "w")
    queue.enqueue_many([("a", b"{}"), ("b", b"{}"), ("m", b"{}")], key="acme")
    assert told() == [("line", "waiting: place 3 in the line of key acme")]
    queue.rule("acme", max=1)
    [first] = queue.dequeue(1).messages
    assert told() == [("key_max", "waiting: place 2 in the line of key acme; 1 of 1 run: a")]
    queue.rules(max=1)
    assert [code for code, _ in told()] == ["queue_max", "key_max"]
    assert told()[0][1] == "waiting: the queue runs 1 of 1 messages"
    queue.rules(max=None)
    queue.rule("acme", max=None, rate="1/h")
    queue.hold("acme", 300)
    held = dict(told())
    assert held["key_held"].startswith("waiting: key acme is on hold for ")
    queue.hold("acme", 0)
    queue.finish([Ending(mid="a", token=first.token)])
    queue.dequeue(1)
    assert "(1/h used up)" in dict(told())["key_rate"]


FLOW = FlowView(
    FlowFacts(
        name="import", id="1", now_ms=NOW, state="running", steps=(
            StepFacts(name="rows", kind="map", queue="low", size=5, done=3, ended=4, dead=1, sent=True),
            StepFacts(name="stats", queue="low", after=(Edge("rows"),)),
            StepFacts(name="gate", kind="wait", todo=True),
            StepFacts(name="bad", queue="low", done=0, ended=1, dead=1, sent=True),
            StepFacts(name="after", queue="low", after=(Edge("bad"), Edge("rows"))),
        ),
    )
)  # fmt: skip


def member(step: str, number: int = 0, word: str = "nil", **more: Any) -> MessageFacts:
    return facts(word, member=Member("import:1", step, number), flow=FLOW, **more)


@pytest.mark.parametrize(
    ("known", "codes", "says"),
    [
        (member("rows", word="queued"), ["next", "flow"],
         "it is member 0 of step rows of flow import:1; the flow waits for this message: 2 of 5 steps, 5 of 7 members"),
        (member("bad", word="dead"), ["dead", "flow"], "a retry of the flow revives the message"),
        (member("stats"), ["flow_waiting"], "waits for 1 of 1 step of flow import:1: rows"),
        (member("after"), ["flow_skipped"], "skipped, because bad is failed"),
        (member("gate"), ["flow_ready"], "step gate of flow import:1 is ready"),
        (member("rows", 9), ["flow_member_unknown"], "has 5 members, but no member 9"),
        (member("rows", 1), ["flow_running"], "the message has ended or is not enqueued yet"),
        (member("bad"), ["flow_failed"], "step bad of flow import:1 is failed"),
        (member("none"), ["flow_step_unknown"], "flow import:1 has no step none"),
        (member("rows", history=(Event("done", "m", NOW - 5_000, worker="w"),)), ["done", "flow"],
         "it was member 0 of step rows of flow import:1, which hasn't ended: 2 of 5 steps"),
        (replace(member("rows"), flow=None), ["flow_gone"], "or it ended and was deleted"),
        (member("rows", history=(Event("done", "m", NOW - 5_000, worker="w"),)), ["done", "flow"], "5 s ago by w"),
    ],
)  # fmt: skip
def test_members_of_flows_say_what_their_flow_waits_for(known, codes, says):
    reasons = why(known)
    assert [reason.code for reason in reasons] == codes
    assert says in "\n".join(reason.sentence for reason in reasons)
