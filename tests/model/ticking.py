"""Actions of schedulers: any number of them, each of which may ask for any tick at any moment.

C1  a tick is enqueued at most once
C2  the last tick only grows
C3  none is enqueued before its time
C4  no two runs of a schedule live, unless "allow"
C5  each tick up to the last one is in the log, or counted there as missed
C6  a definition with other times starts now, and another one changes no tick
"""

from __future__ import annotations

from tests.model.expect import need, word_of
from tests.model.machine import Machine
from tests.model.producing import (
    accepted,
    attempts_of,
    cancelled,
    expected_action,
    remembered,
)
from tests.model.world import Flavour, World


def schedule(m: Machine, w: World, which: str) -> None:
    """One call for one tick, by a scheduler that knows the last tick, and one by a scheduler that doesn't."""
    index = int(which)
    times = w.tick_times()
    tick_ms, before = times[index], last_tick(m, w)
    missed = sum(w.last_tick < other < tick_ms for other in times)
    content = w.next_content()
    words = {mid: word_of(m, w, mid) for mid in w.records}
    if before >= 0:
        stale = ask(m, w, tick_ms, before - 1, missed, index, content)
        need(stale == ("exists", str(before)), f"C1 asked behind an older tick: {stale}")
        need(m.unchanged(), "C1 a tick behind an older one changed something")
    line = int(str(m.command(w.clock, "HLEN", "lines")))
    former = w.last_run
    attempts = attempts_of(m, w, former) if former else 0
    outcome, mid = ask(m, w, tick_ms, max(0, before), missed, index, content)
    ends = w.scope.remembers and former != "" and words[former] != "done-with-requeue"
    if outcome == "remembers":
        need(ends and w.scope.overlap == "cancel", f"R2 a tick remembers {former}")
        need(mid == former, f"R2 a tick remembers {mid}, which is not the run before")
        need(m.unchanged(), "R2 a tick that needs a key wrote something")
        others = [f"result:{other}" for other in w.records if other != mid]
        for key in (*others, f"result:{mid}"):
            told = ask(m, w, tick_ms, max(0, before), missed, index, content, key)
            need(told[0] == "remembers" or key == f"result:{mid}", f"R2 {key} is another's key")
        outcome, mid = told
    elif outcome == "replaced":
        need(not ends, "R2 a run was cancelled without the key of its end")
    if former:
        remembered(m, w, former, attempts if outcome == "replaced" and ends else None)
    last = last_tick(m, w)
    need(last >= before, f"C2 the last tick went from {before} to {last}")
    if outcome == "new":
        need(w.last_tick < 0, "C2 a schedule that is known starts anew")
        w.last_tick = last
        return
    if outcome in ("exists", "early"):
        need(m.unchanged(), f"C1 a tick that {outcome} changed something")
        need((tick_ms <= w.last_tick) == (outcome == "exists"), f"C1 {which} {outcome}")
        return
    need(w.now >= tick_ms, f"C3 {outcome} {tick_ms - w.now} ms early")
    need(index not in w.ticked, f"C1 tick {which} is {outcome} again")
    is_full = bool(w.scope.rule) and line >= int(w.scope.rule[4])
    if outcome == "full":
        need(is_full, f"a line of {line} is full")
        w.ticked += (index,)
    else:
        need(not is_full, f"{outcome} in a line of {line}")
        took(w, outcome, mid, words, content, index)
    w.last_tick = tick_ms
    need(last == tick_ms, "C2 the last tick isn't the one that was enqueued")
    logged(m, w, index, missed, outcome)


def define(m: Machine, w: World, times: str) -> None:
    """Somebody adds the schedule, or edits it, with these times or others."""
    w.left["define"] -= 1
    before, former = last_tick(m, w), m.command(w.clock, "HGET", "schedules", "s")
    definition = f'{{"cron": "{times}"}}'
    word, *_ = m.run("schedule", "", w.clock, "", "add", "s", definition)
    last = last_tick(m, w)
    edited = bool(former) and former != f"a{definition}"
    expected = max(before, w.clock) if edited or before < 0 else before
    need(last == expected, f"C6 {word}: the last tick is {last}, not {expected}")
    w.last_tick = last


def took(w: World, outcome: str, mid: str, words: dict[str, str], content: str, index: int) -> None:
    """Record the outcome of the tick."""
    live = w.last_run and is_live(words[w.last_run])
    expected = {"skip": "skipped", "queue": "waits", "cancel": "replaced", "allow": "enqueued"}
    need(
        outcome == (expected[w.scope.overlap] if live else "enqueued"),
        f"C4 {outcome}, and the run before is {words.get(w.last_run, 'none')}",
    )
    w.ticked += (index,)
    if outcome == "skipped":
        return
    word, again = words[mid], Flavour(delay=0, update=1, requeue=1, key=w.scope.tick_key)
    if outcome == "replaced":
        cancelled(w, w.records[w.last_run])
        word = "nil" if word.startswith("queued") else "done-with-backoff"
        if w.records[mid].deduped_till <= w.now:
            word = "done-awaiting-gc" if word != "nil" else "nil"
    action = "added" if word == "nil" else expected_action(w.records[mid], word, again)
    accepted(w, w.records[mid], action, word, content, again)
    if w.scope.overlap != "allow":
        others = [other for name, other in w.records.items() if name != mid]
        need(
            not any(other.content or other.token or other.deduped_till > w.now for other in others),
            "C4 two runs of a schedule live",
        )
    w.last_run = mid


def is_live(word: str) -> bool:
    return word.startswith(("queued", "locked")) or word == "done-with-requeue"


def ask(
    m: Machine, w: World, tick_ms: int, after: int, missed: int, index: int, content: str, more: str = ""
) -> tuple[str, str]:  # fmt: skip
    mid, key = w.scope.mids[index], w.scope.tick_key
    reply = m.run(
        f"tick {more}", "", w.clock, "", "s", tick_ms, after, tick_ms, w.scope.overlap, missed, mid, content, "", "",
        "key" if key else "", key,
    )  # fmt: skip
    return str(reply[0]), str(reply[1])


def last_tick(m: Machine, w: World) -> int:
    """Judge by the stored message; -1 for none."""
    text = m.command(w.clock, "HGET", "ticks", "s")
    return int(str(text).partition(",")[0]) if text else -1


def logged(m: Machine, w: World, index: int, missed: int, outcome: str) -> None:
    newest = str(m.command(w.clock, "LINDEX", "tick_log", 0)).split("\x1f")
    told = [newest[0], int(newest[1]), newest[3], int(newest[4])]
    need(
        told == ["s", w.tick_times()[index], outcome, missed],
        f"C5 the log says {told} of {outcome} with {missed} missed",
    )
