"""Conditions that every call must keep: events, crashes, hand-outs."""

from __future__ import annotations

from tests.model.machine import Machine, Violation
from tests.model.world import Call, Hold, Record, World


def need(holds: object, text: str) -> None:
    if not holds:
        raise Violation(text)


def call(m: Machine, w: World, script: str, caller: str, *args: str | int) -> tuple[object, ...]:
    """The next numbered call of `caller`; messages recovered on the way are noted."""
    number = w.numbers[caller] = w.numbers.get(caller, 0) + 1
    reply = m.run(script, caller, w.clock, caller, number, "", *args)
    if w.scope.calls:
        w.calls[caller] = Call(script, number, args, reply)
    return reply


def word_of(m: Machine, w: World, mid: str) -> str:
    return m.run("status", "", w.clock, mid, "")[0]  # type: ignore[no-any-return]


def events(m: Machine) -> list[tuple[str, str]]:
    text = m.emitted()
    seen = [tuple(line.split("\x1f")[:2]) for line in text.split("\n")] if text else []
    return [event for event in seen if event[0] != "evicted"]


def told_flows(m: Machine, w: World) -> None:
    """M1: the call that ended a member wrote its end for the flow, once; nothing else did."""
    text = m.for_flows()
    told = [tuple(one.split("\x1f")) for one in text.split("\x1e")] if text else []
    ended = [
        (record.ended, mid) for mid, record in w.records.items() if record.ended and mid[0] == "~"
    ]
    need(sorted(told) == sorted(ended), f"M1 flows are told {told}, not {ended}")
    for record in w.records.values():
        record.ended = ""


def recovered(w: World, seen: list[tuple[str, str]]) -> None:
    """Locks that the circle walk found expired."""
    for kind, mid in seen:
        record = w.records[mid]
        need(kind in ("recovered", "dead"), f"unexpected event {kind} of {mid}")
        need(record.token, f"{kind} {mid}, which nobody holds")
        need(
            record.until <= w.now, f"I6 {kind} {mid} {record.until - w.now} ms before its lock ends"
        )
        crashed(w, mid, kind == "dead")


def crashed(w: World, mid: str, dead: bool) -> None:
    record = w.records[mid]
    record.token, record.crashes = "", record.crashes + 1
    need(
        dead == (record.crashes >= w.scope.crash_limit),
        f"I7 {mid} dead={dead} after {record.crashes} crashes",
    )
    if dead:
        buried(record, mid)


def buried(record: Record, mid: str) -> None:
    """The run that just ended is dead; newer content lives on."""
    record.died += 1
    # The content of a run with newer content waiting no longer concerns the world.
    content = "" if record.fresh else record.content
    record.dead += ((f"{mid}#{record.generation}", content, record.key),)
    if not record.fresh:
        record.settle("dead")


ON_DEAD = '{"job":"jobq.on_dead","args":["'


def taken_deaths(m: Machine, w: World) -> None:
    """Each message about a death is of one that happened; another program takes all of them, without a trace."""
    places = [m.command(w.clock, "LRANGE", key, 0, -1) for key in ("ready", "circle")]
    mids = [mid for place in places for mid in map(str, place.values()) if mid not in w.records]
    for mid in mids:
        dead_id = mid.removeprefix("on_dead:")
        record = w.records[dead_id.partition("#")[0]]
        need(record.died, f"{mid} is about no death")
        need(m.command(w.clock, "ZSCORE", "dead", dead_id), f"{mid} names none of the dead")
        record.died -= 1
        call = str(m.command(w.clock, "HGET", "messages", mid))
        need(call == f'{ON_DEAD}{dead_id}"]}}', f"{mid} calls {call}")
        for key in ("messages", "locks", "tokens", "nattempts"):
            m.command(w.clock, "HDEL", key, mid)
        for key in ("ready", "circle"):
            m.command(w.clock, "LREM", key, 1, mid)


def lease_of(w: World, record: Record) -> int:
    """A message's own lock length never shortens the worker's."""
    return max(int(record.lock or 0), w.scope.lease)


def taken_in_turn(w: World, mid: str) -> None:
    """K4: no more of a key run than may; K6: none before another of its key that never left the line; K7: where they
    are ordered, none before another that is neither done nor dead."""
    record, scope = w.records[mid], w.scope
    held = [one for one in w.records.values() if one.token]
    need(not scope.most or len(held) < scope.most, f"K4 {mid} is one more than the queue may run")
    if record.key:
        need(w.now >= w.held_keys.get(record.key, 0), f"{record.key} was handed out while held")
        most = int(scope.rule[0] or 0) if scope.rule else 0
        running = sum(one.key == record.key for one in held)
        need(not most or running < most, f"K4 {mid} of {record.key} handed out while {running} run")
        earlier = [
            one
            for one in w.records.values()
            if one.newer_key == record.key and one.fresh and 0 < one.turn < record.turn
        ]
        need(not earlier, f"K6 {mid} of {record.key} came before one that was enqueued earlier")
        before = [
            one
            for one in w.records.values()
            if 0 < one.order < record.order and record.key in (one.key, one.newer_key)
        ]
        need(not before, f"K7 {mid} of {record.key} came before one that isn't over")
    record.turn, record.lined = 0, False


#: How often another key may go while one waits for its turn: once in each lap, and one more time if that key is new.
LAPS = 2


def no_longer_than_a_lap(w: World, went: str) -> None:
    """K8: a waiting message of a key that may start comes within a lap of the keys, even after a crash."""
    if (w.scope.rule and w.scope.rule[1]) or not any(f.key for f in w.scope.flavours.values()):
        return
    w.passed.pop(went, None)
    for key in w.keys_that_may_go() - {went}:
        others = w.passed.setdefault(key, {})
        others[went] = others.get(went, 0) + 1
        need(others[went] <= LAPS, f"K8 {went!r} went {others[went]} times while {key!r} waits")


def forget_blocked(w: World) -> None:
    """A key that may not go, or that nothing waits in, gathers no credit."""
    if w.passed:
        may_go = w.keys_that_may_go()
        w.passed = {key: others for key, others in w.passed.items() if key in may_go}


def handed(m: Machine, w: World, worker: str, reply: tuple[object, ...]) -> None:
    """Take the dequeued messages; every promise of a hand-out is checked here."""
    poll_after_ms, paused, _fence, *rows = reply
    need(
        not (rows and w.is_paused) and bool(int(str(paused)) % 2) == w.is_paused,
        "handed out while paused",
    )
    if rows and not w.scope.lap:
        late = m.command(w.clock, "ZRANGE", "due", "-inf", w.now, "BYSCORE", "LIMIT", 0, 1)
        need(not list(late), "L2 handed out, and what is due was left where it waits")
    for i in range(0, len(rows), 7):
        mid, content, attempt, ncrashes, generation, lock_expires_at, unknowns = rows[i : i + 7]
        if w.scope.on_dead and str(mid).startswith("on_dead:"):
            continue
        record, token = w.records[str(mid)], f"{worker}.{w.numbers[worker]}.{i // 7}"
        need(not record.token, f"I6 {mid} handed out while {record.token} holds it")
        need(
            content == record.content,
            f"I8 handed out {content}, accepted is {record.content or 'nothing'}",
        )
        need(w.now >= record.not_before, f"I10 handed out {record.not_before - w.now} ms too early")
        if fresh := record.fresh:
            need(generation in ("", token), "I7 new content in an old generation")
            record.generation, record.fresh = token, False
            record.attempts = record.crashes = record.unknowns = 0
            record.lock, record.dedupe = record.newer_options
            record.key = record.newer_key
            record.checkpoint = record.failed = record.report = ""
        if "checkpoint" in w.scope.budget:
            stored = str(m.command(w.clock, "HGET", "progress", mid) or "")
            _, kept, failed = [*stored.split("\x1e"), "", ""][:3]
            need(kept == record.checkpoint, f"checkpoint {kept!r}, not {record.checkpoint!r}")
            need(failed == record.failed, f"traceback {failed!r}, not {record.failed!r}")
        need(
            lock_expires_at == w.now + lease_of(w, record),
            f"I11 lock until now + {int(str(lock_expires_at)) - w.now}",
        )
        need(
            fresh or generation == record.generation,
            f"I7 generation {generation}, not {record.generation}",
        )
        need(attempt == record.attempts + 1, f"I7 attempt {attempt} after {record.attempts}")
        need(ncrashes == record.crashes, f"I7 {ncrashes} crashes, not {record.crashes}")
        need(
            unknowns == record.unknowns,
            f"I7 {unknowns} times at a worker without its job, not {record.unknowns}",
        )
        need(
            not ncrashes or len(rows) == 7,
            "a message with a crash on record was not handed out alone",
        )
        taken_in_turn(w, str(mid))
        no_longer_than_a_lap(w, record.key)
        record.attempts, record.token, record.until = (
            record.attempts + 1,
            token,
            int(str(lock_expires_at)),
        )
        w.holds[worker] += (Hold(str(mid), token, str(content)),)
    forget_blocked(w)
    if w.scope.on_dead:
        taken_deaths(m, w)
    need(rows or isinstance(poll_after_ms, int), "no hand-out and no sleep")
