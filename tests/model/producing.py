"""Actions of producers and people."""

from __future__ import annotations

from tests.model.expect import call, need, word_of
from tests.model.machine import Machine
from tests.model.world import ENDLESS, REMEMBER_MS, Flavour, Record, World

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


def expected_action(record: Record, word: str, flavour: Flavour) -> str:
    if flavour.again in ("member", "next"):
        return "added" if word == "nil" else "exists"
    by_update, by_requeue, otherwise = ACCEPTS[word]
    if flavour.again and not flavour.requeue:
        if word == "done-awaiting-gc" or (word == "done-with-backoff" and record.cancelled):
            return by_requeue
        if word == "locked" and flavour.again == "start":
            return by_requeue
    if flavour.update and by_update:
        return by_update
    return (flavour.requeue and by_requeue) or otherwise or "exists"


def following(word: str, action: str, flavour: Flavour) -> str:
    """The status that an accepted enqueue leads to, for the next of the same call."""
    if action == "requeued":
        return word if word.endswith("requeue") else word.partition("-")[0] + "-with-requeue"
    if action == "added" or (word.startswith("queued") and flavour.delay != ""):
        return "queued-with-backoff" if flavour.delay else "queued"
    return word


def enqueue(m: Machine, w: World, mids: str, flavour_name: str) -> None:
    """One call, for one mid or for several."""
    w.left["enqueue"] -= 1
    flavour, batch = w.scope.flavours[flavour_name], mids.split(",")
    before = accepted_before(w, batch, flavour)
    words, items = {mid: word_of(m, w, mid) for mid in batch}, []
    for mid in batch:
        items += [mid, w.next_content()]
    keyed = ("ordered" if flavour.ordered else "key") if flavour.key else ""
    options = (
        flavour.delay, "", flavour.update, flavour.requeue, flavour.again, flavour.lock, flavour.dedupe,
        flavour.at_most, "", keyed,
    )  # fmt: skip
    sent = [part for i in range(0, len(items), 2) for part in (*items[i : i + 2], flavour.key)]
    sent = sent if keyed else items
    reply = call(m, w, "enqueue", "P", *options, *sent)
    for i in range(0, len(items), 2):
        mid, content, action, word = items[i], items[i + 1], str(reply[i]), words[items[i]]
        expected = "exists" if mid in before else expected_action(w.records[mid], word, flavour)
        need(
            mid not in before or reply[i + 1] == "accepted",
            f"M3 {mid} of a map is {reply[i : i + 2]}",
        )
        need(action == expected, f"I15 enqueue of a {word} {mid} answered {action}, not {expected}")
        if action == "exists":
            told = (word, "dead") if flavour.again in ("member", "next") else (word,)
            need(
                mid in before or reply[i + 1] in told,
                f"{mid} exists as {reply[i + 1]}, not as {word}",
            )
        else:
            accepted(w, w.records[mid], action, word, content, flavour)
            words[mid] = following(word, action, flavour)
    need(
        set(reply[::2]) != {"exists"} or m.unchanged(),
        "I9 a refused enqueue wrote something",
    )
    note_accepted(w, batch, flavour, reply)


def accepted_before(w: World, batch: list[str], flavour: Flavour) -> list[str]:
    """Members of a map that were accepted before."""
    return [mid for mid in batch if number_of(mid) <= w.up_to] if flavour.again == "next" else []


def note_accepted(w: World, batch: list[str], flavour: Flavour, reply: tuple[object, ...]) -> None:
    """Record the end of all these members."""
    if flavour.again == "next" and "added" in reply[::2]:
        w.up_to = number_of(batch[-1])


def number_of(mid: str) -> int:
    return int(mid.rpartition(".")[2])


def accepted(
    w: World, record: Record, action: str, word: str, content: str, flavour: Flavour
) -> None:
    not_before = w.now + int(flavour.delay) if flavour.delay != "" else 0
    options = (flavour.lock, dedupe_of(w, action, flavour))
    if flavour.at_most != "":
        not_before = min(not_before, latest_of(w, record, action, word, int(flavour.at_most)))
    elif action != "updated" and not record.fresh:
        record.latest = 0
    if action == "updated" and word.startswith("queued") and record.token:
        # Under an expired lock it waits until somebody recovers that run.
        if not record.fresh and options == ("", ""):
            options = (record.lock, record.dedupe)
        # A message that only waits keeps its key.
        record.newer_key = flavour.key if record.fresh else record.key or flavour.key
        record.accept(content, not_before)
        record.newer_options = options
        return
    if action == "updated" and word.startswith("queued"):
        if flavour.delay != "":
            record.turn = 0
        updated(record, content, options, record.not_before if flavour.delay == "" else not_before)
        return
    if action == "added":
        need(not record.token, "added although somebody holds it")
    if record.deduped_till > w.now and word in ("done-with-backoff", "done-with-requeue"):
        not_before = max(not_before, record.deduped_till)
    record.accept(content, not_before)
    record.newer_options, record.newer_key, record.turn = options, flavour.key, 0
    if action == "added" and not_before <= w.now:
        record.turn = max(one.turn for one in w.records.values()) + 1
        last = max(one.order for one in w.records.values())
        record.order = last + 1 if flavour.ordered else 0


def updated(
    record: Record, content: str, options: tuple[int | str, int | str], not_before: int
) -> None:
    """Replace the waiting content."""
    if options != ("", ""):
        record.newer_options = options
        if not record.fresh:
            record.lock, record.dedupe = options
    record.content, record.not_before, record.checkpoint = content, not_before, ""
    record.failed = record.report = ""


def dedupe_of(w: World, action: str, flavour: Flavour) -> int | str:
    """How long the mid is taken. The window of a call that a cancelled run holds back isn't kept."""
    if not isinstance(flavour.dedupe, str) or not flavour.dedupe:
        return flavour.dedupe
    return "" if action == "requeued" else f"@{w.now + int(flavour.dedupe[1:])}"


def latest_of(w: World, record: Record, action: str, word: str, at_most: int) -> int:
    """U3: the first content of a burst sets the time until which it may be moved; a retry or a run begins a new one."""
    begins = not record.latest or action == "added"
    if word.startswith("queued") and not record.token:
        begins |= record.not_before > max(record.latest, w.now)
    elif not word.endswith("requeue"):
        begins |= not record.fresh
    if begins:
        record.latest = w.now + at_most
    return record.latest


def cancel(m: Machine, w: World, mid: str) -> None:
    w.left["cancel"] -= 1
    word, record = word_of(m, w, mid), w.records[mid]
    attempts = attempts_of(m, w, mid)
    ends = is_remembered(w, mid, word)
    over = word in OVER
    if ends:
        (reply,) = call(m, w, "cancel", "P", "", mid)
        need(reply == "remembers", f"R2 cancel of {word} without the key of its end: {reply}")
        need(m.unchanged(), "R2 a cancel that needs a key wrote something")
    # A caller may say for itself that it is remembered; the longer time counts.
    asked = REMEMBER_MS // 2 if ends else "" if w.scope.remembers else REMEMBER_MS
    (reply,) = call(m, w, f"cancel result:{mid}", "P", asked, mid)
    need(
        reply == ("nil" if word == "dead" else word if over else "cancelled"),
        f"cancel of {word}: {reply}",
    )
    if not w.scope.remembers:
        ends = reply == "cancelled" and word != "done-with-requeue"
    remembered(m, w, mid, attempts if ends else None)
    if not over:
        cancelled(w, record)


OVER = ("nil", "dead", "done-awaiting-gc", "done-with-backoff")


def attempts_of(m: Machine, w: World, mid: str) -> int:
    return int(m.run("status", "", w.clock, mid, "")[1])


def is_remembered(w: World, mid: str, word: str) -> bool:
    """R1: a cancelled end is remembered if its content says so, unless it was over, the content that is cancelled came
    after its end, or it is of a flow."""
    return w.scope.remembers and mid[0] != "~" and word not in (*OVER, "done-with-requeue")


def remembered(m: Machine, w: World, mid: str, attempts: int | None) -> None:
    """R1: what is remembered says how many attempts there were, and for how long; None: nothing is."""
    key = f"result:{mid}"
    stored = [*m.command(w.clock, "LRANGE", key, 0, -1).values()]  # type: ignore[attr-defined]
    text = f'{{"end":"cancelled","attempt":{attempts},"at":{w.clock}}}'
    expected = [] if attempts is None else [text]
    need(stored == expected, f"R1 a cancel of {mid} stores {stored}, not {expected}")
    left_ms = m.command(w.clock, "PTTL", key)
    need(not stored or left_ms == REMEMBER_MS, f"R1 it is remembered for {left_ms} ms")
    m.forget(key)


def cancelled(w: World, record: Record) -> None:
    # Whoever holds it may run until the lock ends, so that the mid is taken as long.
    until = record.until if record.token else 0
    record.cancelled = record.dedupe == ""
    record.settle("cancelled")
    record.token = ""
    if until > w.now:
        record.deduped_till = until


def revive(m: Machine, w: World, mid: str) -> None:
    w.left["revive"] -= 1
    record = w.records[mid]
    dead_id, *_ = record.dead[-1]
    word = word_of(m, w, mid)
    (reply,) = call(m, w, "revive", "P", "", "", dead_id, "")
    need(reply == ("revived" if word == "dead" else "exists"), f"revive of a {word} {mid}: {reply}")
    if reply == "revived":
        revived(m, w, record, mid, 0)


def revived(m: Machine, w: World, record: Record, mid: str, not_before: int) -> str:
    """Revive its latest dead message; the content of that."""
    *others, (_, content, key) = record.dead
    record.dead = tuple(others)
    content = content or str(m.command(w.clock, "HGET", "messages", mid))
    record.accept(content, not_before)
    record.newer_options, record.newer_key = ("", ""), key
    return content


def pause(m: Machine, w: World, for_ms: str = "") -> None:
    w.left["pause"] -= 1
    if w.is_paused:
        w.pause_ends = 0
        m.run("resume", "", w.clock)
        return
    w.pause_ends = w.clock + int(for_ms) if for_ms else ENDLESS
    m.run("pause", "", w.clock, for_ms, "")


def clear(m: Machine, w: World) -> None:
    w.left["clear"] -= 1
    members = sum(bool(record.content) and mid[0] == "~" for mid, record in w.records.items())
    word, count = call(m, w, "clear", "P")
    if members:
        need((word, count) == ("members", members), f"clear of {members} members: {word} {count}")
        need(m.unchanged(), "a clear that was refused wrote something")
        return
    for record in w.records.values():
        record.settle()
        record.token, record.deduped_till = "", 0
