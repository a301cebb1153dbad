"""Actions of workers, their supervisors and the clock."""

from __future__ import annotations

from tests.model.expect import buried, call, crashed, events, handed, lease_of, need, recovered
from tests.model.machine import Machine, Violation
from tests.model.world import Call, Hold, World

LAP = 100
"""So many mids at most a dequeue's upkeep looks at, unless the scope says fewer."""


TRIES = 4
"""So often a worker asks again at once: a call may find only places in lines whose messages have left."""


def ndue(m: Machine, w: World) -> int:
    return int(str(m.command(w.clock, "ZCARD", "due")))


def promoted(m: Machine, w: World, before: int, most: int) -> None:
    """I18: no call does more than its share of waiting work."""
    gone = before - ndue(m, w)
    need(gone <= most, f"I18 {gone} promoted at once, at most {most} are to be")


def dequeue(m: Machine, w: World, worker: str, woken: str = "") -> None:
    if woken:
        m.command(w.clock, "LPOP", "wake")
    held = w.holds[worker]
    for _ in range(TRIES):
        dequeue_once(m, w, worker)
        # While callers rest, or if a lap looks at few mids, a later call takes the remaining messages.
        if w.holds[worker] != held or w.is_paused or w.scope.idle or w.scope.lap:
            return
        may_go = w.keys_that_may_go()
        if not may_go:
            return
    raise Violation(f"K9 nothing was handed out {TRIES} times while {may_go} may go")


def dequeue_once(m: Machine, w: World, worker: str) -> None:
    waiting = ndue(m, w)
    limit = min(w.scope.limit, w.scope.hold_cap - len(w.holds[worker]))
    word, *reply = call(m, w, "dequeue", worker, w.scope.lease, w.scope.crash_limit, limit)
    need(word == "handed", f"dequeue answered {word}")
    recovered(w, events(m))
    promoted(m, w, waiting, w.scope.lap or LAP)
    handed(m, w, worker, tuple(reply))


DETAILS: dict[str, str | int] = {"again": 0, "hold briefly": 1, "dead": "why", "crashed": "why"}
SENT = {"again": "retry", "hold briefly": "hold"}


def finish(m: Machine, w: World, worker: str, which: str, outcome: str, more: str = "") -> None:
    """The held messages at the indices `which` end, and another is asked for when `more`."""
    if outcome != "done":
        w.left["fail"] -= 1
    holds = [w.holds[worker][int(i)] for i in which]
    w.holds[worker] = tuple(h for h in w.holds[worker] if h not in holds)
    detail = (
        w.scope.backoff if outcome in ("retry", "unknown", "hold") else DETAILS.get(outcome, "")
    )
    sent = SENT.get(outcome, outcome)
    traced = sent == "retry" and w.scope.tracebacks
    told = f"{detail}\x1ferror of {which}" if traced else detail
    endings = [item for h in holds for item in (h.mid, h.token, sent, told, 0, "")]
    settings = (w.scope.lease, w.scope.crash_limit, 1 if more else 0, len(holds))
    reply = call(m, w, "finish", worker, *settings, *endings)
    seen, words = events(m), reply[: len(holds)]
    for hold, word in zip(holds, words, strict=True):
        need(
            (word != "stale") == (w.records[hold.mid].token == hold.token),
            f"I5 finish of {hold.token}: {word}",
        )
        if word != "stale":
            ended(w, hold, sent, detail, str(word), None if sent == "release" else seen.pop(0))
            if traced and not w.records[hold.mid].fresh:
                w.records[hold.mid].failed = f"{w.records[hold.mid].attempts}\x1ferror of {which}"
    need(
        more or set(words) != {"stale"} or m.unchanged(),
        "I5 a stale finish changed something",
    )
    recovered(w, seen)
    if more:
        handed(m, w, worker, reply[len(holds) :])


def ended(
    w: World, hold: Hold, outcome: str, detail: str | int, word: str, event: tuple[str, str] | None
) -> None:
    record = w.records[hold.mid]
    fresh = record.fresh
    kind = (
        {"snooze": "snoozed", "unknown": "snoozed", "hold": "snoozed"}.get(outcome, outcome)
        if word == "ok"
        else "dead"
    )
    need(event in (None, (kind, hold.mid)), f"finish {outcome} wrote the event {event}")
    need(fresh or record.content == hold.content, "I8 the run that ended was of other content")
    if outcome == "crashed":
        crashed(w, hold.mid, word == "dead")
        return
    need(word == "ok", f"finish {outcome} answered {word}")
    record.token = ""
    ordered = any(one.ordered for one in w.scope.flavours.values())
    if (
        record.key
        and detail
        and (outcome == "hold" or (ordered and not fresh and outcome in ("retry", "unknown")))
    ):
        w.held_keys[record.key] = max(w.held_keys.get(record.key, 0), w.now + int(detail))
    if outcome == "dead":
        buried(record, hold.mid)
    elif outcome == "done" and not fresh:
        record.deduped_till, record.cancelled = deduped_till(w.now, record.dedupe), False
        record.settle("done")
    elif outcome == "expired" and not fresh:
        record.settle("cancelled")
    elif not fresh:
        record.attempts -= outcome in ("snooze", "release", "unknown", "hold")
        if outcome == "unknown":
            record.unknowns += 1
        elif outcome != "release":
            record.unknowns = 0
        record.not_before = w.now + int(detail or 0)
        record.lined = bool(record.key) and (outcome == "hold" or ordered)


def deduped_till(now: int, dedupe: int | str) -> int:
    if isinstance(dedupe, str):
        return int(dedupe[1:]) if dedupe and int(dedupe[1:]) > now else 0
    return now + dedupe


def release(m: Machine, w: World, worker: str) -> None:
    holds = w.holds[worker]
    words = call(
        m, w, "release", worker, *[item for hold in holds for item in (hold.mid, hold.token)]
    )
    for hold, word in zip(holds, words, strict=True):
        record = w.records[hold.mid]
        need((word == "ok") == (record.token == hold.token), f"I5 release of {hold.token}: {word}")
        if word == "ok":
            record.token = ""
            record.attempts -= 0 if record.fresh else 1
    need("ok" in words or m.unchanged(), "I5 a stale release changed something")
    w.holds[worker] = ()


def extend(m: Machine, w: World, worker: str) -> None:
    holds = w.holds[worker]
    items = [item for hold in holds for item in (hold.mid, hold.token)]
    words = m.run("extend", worker, w.clock, "", w.scope.lease, *items)
    for hold, word in zip(holds, words, strict=True):
        record = w.records[hold.mid]
        need((word == "ok") == (record.token == hold.token), f"I5 extend of {hold.token}: {word}")
        if word == "ok":
            record.until = w.now + lease_of(w, record)
    need("ok" in words or m.unchanged(), "I5 a stale extend changed something")


def checkpoint(m: Machine, w: World, worker: str) -> None:
    """The running job keeps how far it is, and reports progress, which must not touch that."""
    w.left["checkpoint"] -= 1
    [hold, *_] = w.holds[worker]
    record, value = w.records[hold.mid], f"after {hold.content}"
    reply = m.run("checkpoint", worker, w.clock, hold.mid, hold.token, value)
    good = record.token == hold.token
    need(
        reply == (("ok", value) if good else ("stale",)), f"I5 checkpoint of {hold.token}: {reply}"
    )
    need(good or m.unchanged(), "I5 a stale checkpoint changed something")
    if good:
        if not record.fresh:
            record.checkpoint = value
        m.run("progress", worker, w.clock, hold.mid, hold.token, "half")
        record.report = "half"
        read = m.run("checkpoint", worker, w.clock, hold.mid, hold.token, "")
        need(read == ("ok", value), f"a checkpoint reads as {read}")


def report(m: Machine, w: World, worker: str) -> None:
    """The running job reports progress, with a byte that separates the parts of what is stored."""
    w.left["report"] -= 1
    [hold, *_] = w.holds[worker]
    record = w.records[hold.mid]
    (word,) = m.run("progress", worker, w.clock, hold.mid, hold.token, f"{hold.content}\x1ehalf")
    good = record.token == hold.token
    need(word == ("ok" if good else "stale"), f"I5 report of {hold.token}: {word}")
    need(good or m.unchanged(), "I5 a stale report changed something")
    if good:
        record.report = f"{hold.content} half"


def claim(m: Machine, w: World, worker: str, how: str) -> None:
    """A worker claims a name, or beats under the one that it has; a server without room takes both from the script."""
    w.left["claim"] -= 1
    verb = "HSET" if w.named == worker else "HSETNX"
    text = f"{worker} {w.left['claim']}"
    if how == "full":
        (is_new,) = m.run("put_entry", "", w.clock, verb, "name", text)
    else:
        is_new = m.command(w.clock, verb, "entries", "name", text)
    need(is_new == (not w.named), f"N1 {worker} claims the name of {w.named or 'nobody'}: {is_new}")
    if w.named in ("", worker):
        w.named, w.beat = worker, text
    else:
        need(m.unchanged(), "N1 a claim that was refused wrote something")
    need(m.command(w.clock, "HGET", "entries", "name") == w.beat, "N2 the newest entry isn't kept")


def sign_off(m: Machine, w: World) -> None:
    w.left["sign_off"] -= 1
    m.command(w.clock, "HDEL", "entries", "name")
    w.named = w.beat = ""


def forget(m: Machine, w: World, worker: str) -> None:
    """The worker dies, or never sees the reply: nobody knows what it holds until the lock ends."""
    w.left["forget"] -= 1
    w.holds[worker] = ()


def close(m: Machine, w: World, worker: str) -> None:
    """A supervisor buries a child: its later calls are rejected, and its last hand-out is reported."""
    w.left["close"] -= 1
    told = m.run("close", worker, w.clock, worker)
    held = dict(zip(told[::2], told[1::2], strict=True))
    last = f"{worker}.{w.numbers.get(worker, 0)}."
    expected = {mid: r.token for mid, r in w.records.items() if r.token.startswith(last)}
    need(held == expected, f"close told {held}, not {expected}")
    for number in (w.numbers.get(worker, 0), w.numbers.get(worker, 0) + 1):
        late = m.run("dequeue", worker, w.clock, worker, number, "", w.scope.lease, 2, 1)
        need(
            late == ("closed",) and m.writes() == 0,
            f"a dequeue that came after the close got {late}",
        )
    need(m.run("close", worker, w.clock, worker) == told, "I17 closing twice answers differently")
    known = {hold.token for hold in w.holds[worker]}
    found = [
        Hold(mid, token, w.records[mid].content)
        for mid, token in held.items()
        if token not in known
    ]
    w.holds[worker] += tuple(found)
    m.forget(f"call:{worker}")
    w.numbers[worker] = w.numbers.get(worker, 0) + 1
    w.calls.pop(worker, None)


def collect(m: Machine, w: World) -> None:
    limit, waiting = w.scope.lap or 10, ndue(m, w)
    m.run("collect", "", w.clock, "", w.scope.crash_limit, limit)
    recovered(w, events(m))
    promoted(m, w, waiting, limit)


def tick(m: Machine, w: World) -> None:
    w.now, w.behind = next_moment(m, w), 0


def next_moment(m: Machine, w: World) -> int:
    """When something may change by itself; 0 for never."""
    moments = [m.next_time(w.now, w.scope.margin), *w.tick_times()]
    return min((moment for moment in moments if moment > w.now), default=0)


def step_back(m: Machine, w: World) -> None:
    """The server's clock is set back a little: scripts use the last moment at which a script wrote."""
    w.left["step_back"] -= 1
    floor = m.command(w.clock, "HGET", "meta", "floor")
    w.now, w.behind = (int(floor), 2) if floor else (w.now, 0)


def again(m: Machine, w: World, caller: str) -> None:
    """A call is delivered a second time, and its predecessor even later: nothing changes."""
    last = w.calls[caller]
    reply = m.run(last.script, caller, w.clock, caller, last.number, "", *last.args)
    need(
        reply == replayed_reply(w, caller, last) and m.writes() == 0,
        f"I17 {last.script} again: {reply}",
    )
    reply = m.run(last.script, caller, w.clock, caller, last.number - 1, "", *last.args)
    need(
        reply == ("closed",) and m.writes() == 0, f"I17 an older {last.script} was answered {reply}"
    )


def replayed_reply(w: World, caller: str, last: Call) -> tuple[object, ...]:
    """The recorded answer, without messages that are no longer held under those tokens."""
    if last.script not in ("dequeue", "finish"):
        return last.reply
    # before the rows: a word, or one per ending, then poll_after_ms, paused, fence
    start = 4 if last.script == "dequeue" else int(last.args[3]) + 3
    reply = list(last.reply)
    for i in range(start, len(reply), 7):
        token = f"{caller}.{last.number}.{(i - start) // 7}"
        if w.records[str(reply[i])].token != token:
            reply[i] = reply[i + 1] = ""
    return tuple(reply)
