"""Actions of operators, and their undo: take messages out and put them back, let them run at another time."""

from __future__ import annotations

from tests.model.expect import call, events, need, word_of
from tests.model.machine import Machine
from tests.model.producing import attempts_of, is_remembered, remembered, revived
from tests.model.world import START, World

OPERATION, LIFE_MS = "op", 1_000_000
#: When a message is put off to.
LATER = START + 9


def waits(w: World, mid: str, word: str) -> bool:
    """Whether it is in ready or due, and nobody held it last."""
    return word.startswith("queued") and not w.records[mid].token


def take_out(m: Machine, w: World, mid: str, generation: str) -> None:
    """One that waits, of whichever generation, or only before its first attempt ended."""
    w.left["take"] -= 1
    record, word = w.records[mid], word_of(m, w, mid)
    asked = (OPERATION, LIFE_MS, "waiting", mid, "*" if generation == "any" else "")
    attempts = attempts_of(m, w, mid)
    (reply,) = call(m, w, "take_out", "P", *asked)
    ends = reply == "remembers"
    if ends:
        need(is_remembered(w, mid, word), f"R2 take_out of a {word} {mid} remembers it")
        need(m.unchanged(), "R2 a take_out that needs a key wrote something")
        (reply,) = call(m, w, f"take_out result:{mid}", "P", *asked)
    else:
        need(
            reply != "taken" or not is_remembered(w, mid, word),
            "R2 taken without the key of its end",
        )
    expected = "taken"
    if mid in w.binned:
        expected = "in bin"
    elif word in ("nil", "dead"):
        expected = "nil"
    elif not waits(w, mid, word) or (generation == "first" and not record.fresh):
        expected = "changed"
    need(reply == expected, f"take_out of a {word} {mid}: {reply}, not {expected}")
    if reply != "taken":
        need(m.unchanged(), "I9 a refused take_out wrote something")
        return
    need(events(m) == [("cancelled", mid)], f"take_out wrote {events(m)}")
    remembered(m, w, mid, attempts if ends else None)
    w.binned[mid] = record.copy()
    record.settle("cancelled")


def put_back(m: Machine, w: World, mid: str) -> None:
    w.left["put"] -= 1
    record, word = w.records[mid], word_of(m, w, mid)
    (reply,) = call(m, w, "put_back", "P", OPERATION, "waiting", mid)
    expected = "restored" if word in ("nil", "dead") else "exists"
    need(reply == expected, f"put_back of a {word} {mid}: {reply}, not {expected}")
    if reply == "exists":
        need(m.unchanged(), "I9 a refused put_back wrote something")
        return
    need(events(m) == [("revived", mid)], f"put_back wrote {events(m)}")
    need(
        not m.command(w.clock, "HEXISTS", "bin", f"w{mid}"), f"{mid} is in the bin and in the queue"
    )
    again = w.binned.pop(mid).copy()  # the world before this step has it too
    again.dead, again.died, again.turn, again.order = record.dead, record.died, 0, 0
    w.records[mid] = again


def take_dead(m: Machine, w: World, mid: str) -> None:
    w.left["take"] -= 1
    dead_id, content, key = w.records[mid].dead[-1]
    generation = dead_id.rpartition("#")[2]
    newest = m.command(w.clock, "HGET", "last_dead", mid) == dead_id
    (reply,) = call(m, w, "take_out", "P", OPERATION, LIFE_MS, "dead", mid, generation)
    need(reply == "taken", f"take_out of the dead {mid}: {reply}")
    w.records[mid].dead = w.records[mid].dead[:-1]
    w.binned_dead[dead_id] = ("dead", content, key, newest)


def revive_undoably(m: Machine, w: World, mid: str) -> None:
    """Move the message to a later time."""
    w.left["take"] -= 1
    record = w.records[mid]
    dead_id, _, key = record.dead[-1]
    word, newest = word_of(m, w, mid), m.command(w.clock, "HGET", "last_dead", mid) == dead_id
    (reply,) = call(m, w, "revive", "P", OPERATION, LIFE_MS, dead_id, w.now + 2)
    need(
        reply == ("revived" if word in ("nil", "dead") else "exists"),
        f"revive of a {word} {mid}: {reply}",
    )
    if reply == "revived":
        content = revived(m, w, record, mid, w.now + 2)
        w.binned_dead[dead_id] = ("revived", content, key, newest)


def put_dead_back(m: Machine, w: World, dead_id: str) -> None:
    w.left["put"] -= 1
    place, content, key, newest = w.binned_dead[dead_id]
    mid = dead_id.partition("#")[0]
    record, word = w.records[mid], word_of(m, w, mid)
    (reply,) = call(m, w, "put_back", "P", OPERATION, place, dead_id)
    expected = "restored"
    if place == "revived":
        same = waits(w, mid, word) and record.fresh and record.content == content
        expected = "restored" if same else "changed"
    need(reply == expected, f"put_back of the {place} {dead_id}, {word} now: {reply}")
    if reply == "changed":
        need(m.unchanged(), "I9 a refused put_back wrote something")
        return
    kept = [m.command(w.clock, "HEXISTS", "bin", f"{letter}{dead_id}") for letter in "dr"]
    need(not any(kept), f"{dead_id} is in the bin and among the dead")
    known = m.command(w.clock, "HGET", "last_dead", mid)
    need(known or not newest, f"nothing says that {mid} is dead")
    del w.binned_dead[dead_id]
    if place == "revived":
        record.settle("dead")
    record.dead += ((dead_id, content, key),)


def edit(m: Machine, w: World, mid: str) -> None:
    """Other content, and while nothing has happened to it the former again."""
    w.left["edit"] -= 1
    record, word = w.records[mid], word_of(m, w, mid)
    content = w.next_content()
    (reply,) = call(m, w, "edit", "P", OPERATION, LIFE_MS, mid, "*", content)
    expected = "edited" if waits(w, mid, word) else "changed"
    if mid in w.edited:
        expected = "in bin"
    elif word in ("nil", "dead"):
        expected = "nil"
    need(reply == expected, f"edit of a {word} {mid}: {reply}, not {expected}")
    if reply != "edited":
        need(m.unchanged(), "I9 a refused edit wrote something")
        return
    w.edited[mid] = (record.copy(), content)
    record.content, record.checkpoint, record.failed, record.report = content, "", "", ""


def edit_back(m: Machine, w: World, mid: str) -> None:
    before, content = w.edited[mid]
    record, word = w.records[mid], word_of(m, w, mid)
    reported = m.command(w.clock, "HEXISTS", "progress", mid)
    (reply,) = call(m, w, "put_back", "P", OPERATION, "edited", mid)
    same = not reported and waits(w, mid, word) and record.content == content
    same = same and (record.fresh, record.attempts) == (before.fresh, before.attempts)
    expected = "restored" if same else "changed"
    need(reply == expected, f"put_back of the edited {mid}, {word} now: {reply}, not {expected}")
    if reply == "changed":
        need(m.unchanged(), "I9 a refused put_back wrote something")
        return
    del w.edited[mid]
    record.content, record.checkpoint = before.content, before.checkpoint
    record.failed, record.report = before.failed, before.report


def reschedule(m: Machine, w: World, mid: str, when: str) -> None:
    """Undo immediately, or later."""
    w.left["move"] -= 1
    record, word = w.records[mid], word_of(m, w, mid)
    waiting_for = max(0, record.not_before) if word == "queued-with-backoff" else 0
    is_due = bool(m.command(w.clock, "HEXISTS", "backoffs", mid))
    reply = call(m, w, "reschedule", "P", mid, "*", LATER if when == "later" else "")
    if word in ("nil", "dead"):
        expected: tuple[object, ...] = ("nil", "")
    elif not waits(w, mid, word):
        expected = ("changed", "")
    elif when == "now" and not is_due:
        expected = ("same", "")
    else:
        expected = ("moved", str(record.not_before) if is_due else "")
    need(reply == expected, f"reschedule of a {word} {mid}: {reply}, not {expected}")
    need(not waiting_for or is_due, f"{mid} waits for {waiting_for} outside due")
    if reply[0] != "moved":
        need(m.unchanged(), "I9 a refused reschedule wrote something")
        return
    record.not_before, record.turn, record.lined = (LATER if when == "later" else 0), 0, False
