"""What producers and people do."""

from __future__ import annotations

from tests.model.expect import call, need, word_of
from tests.model.machine import Machine
from tests.model.world import Flavour, Record, World

ACCEPTS = {
    # status: (with can_update, with can_requeue, with neither)
    "nil": ("added", "added", "added"),
    "dead": ("added", "added", "added"),
    "queued": ("updated", "", ""),
    "queued-with-backoff": ("updated", "", ""),
    "locked": ("", "requeued", ""),
    "locked-with-requeue": ("updated", "requeued", ""),
    "done-awaiting-gc": ("", "added", ""),
    "done-with-backoff": ("", "requeued", ""),
    "done-with-requeue": ("updated", "requeued", ""),
}


def enqueue(m: Machine, w: World, mid: str, flavour_name: str) -> None:
    w.left["enqueue"] -= 1
    w.ncontents += 1
    flavour, content, word = w.scope.flavours[flavour_name], f"c{w.ncontents}", word_of(m, w, mid)
    before = m.take()
    options = (flavour.delay, "", flavour.update, flavour.requeue, flavour.lock, flavour.dedupe)
    action, reason = call(m, w, "enqueue", "P", *options, mid, content)
    by_update, by_requeue, otherwise = ACCEPTS[word]
    expected = (
        (flavour.update and by_update) or (flavour.requeue and by_requeue) or otherwise or "exists"
    )
    need(action == expected, f"enqueue of a {word} {mid} answered {action}, not {expected}")
    if action == "exists":
        need(reason == word and m.unchanged_since(before), "I9 a refused enqueue wrote something")
    else:
        accepted(w, w.records[mid], str(action), word, content, flavour)
    m.drop(before)


def accepted(
    w: World, record: Record, action: str, word: str, content: str, flavour: Flavour
) -> None:
    delay, lock, dedupe = flavour.delay, flavour.lock, flavour.dedupe
    not_before = w.now + int(delay) if delay != "" else 0
    if action == "updated" and word.startswith("queued"):
        if record.token:  # its last holder lost it for good
            record.token, record.crashes = "", record.crashes + 1
        elif delay == "":
            not_before = record.not_before
        record.content, record.not_before = content, not_before
    else:
        if action == "added":
            need(not record.token, "added although somebody holds it")
        if record.deduped_till > w.now and word in ("done-with-backoff", "done-with-requeue"):
            not_before = max(not_before, record.deduped_till)
        record.accept(content, not_before)
    if lock != "" or dedupe != "" or action != "updated":
        record.lock, record.dedupe = lock, dedupe


def cancel(m: Machine, w: World, mid: str) -> None:
    w.left["cancel"] -= 1
    word, record = word_of(m, w, mid), w.records[mid]
    (reply,) = call(m, w, "cancel", "P", mid)
    over = word in ("nil", "dead", "done-awaiting-gc", "done-with-backoff")
    need(
        reply == ("nil" if word == "dead" else word if over else "cancelled"),
        f"cancel of {word}: {reply}",
    )
    if not over:
        record.settle()
        record.token = ""


def revive(m: Machine, w: World, mid: str) -> None:
    w.left["revive"] -= 1
    record = w.records[mid]
    dead_id, content = record.dead[-1]
    word = word_of(m, w, mid)
    (reply,) = call(m, w, "revive", "P", dead_id)
    need(reply == ("revived" if word == "dead" else "exists"), f"revive of a {word} {mid}: {reply}")
    if reply == "revived":
        record.dead = record.dead[:-1]
        record.accept(content or str(m.command(w.now, "HGET", "messages", mid)), 0)


def pause(m: Machine, w: World) -> None:
    w.left["pause"] -= 1
    w.paused = not w.paused
    m.run("pause" if w.paused else "resume", "", w.now)


def clear(m: Machine, w: World) -> None:
    w.left["clear"] -= 1
    call(m, w, "clear", "P")
    for record in w.records.values():
        record.settle()
        record.token, record.deduped_till = "", 0
