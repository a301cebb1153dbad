"""The effect of each verb on a message in each status: the table behind a test and behind
docs/reference/states.md.

A row is `verb: reply > status after`, grouped by the status before. Columns that a reply doesn't name are
left alone. "expired" is a message whose lock ran out and which nobody recovered yet; its status reads queued.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jobq.queue.admin import tick_values
from jobq.queue.keys import key
from jobq.queue.types import Ending, Message

TABLE = Path(__file__).with_name("states.txt")
T0 = 1_700_000_000_000
LEASE_MS = 60_000
HOUR_MS = 3_600_000
#: When the verb is called, ms after T0.
NOW = T0 + 100_000


class Held(NamedTuple):
    """The message in its status, and the right to it, if somebody has or had one."""

    queue: Any
    message: Message | None

    @property
    def token(self) -> str:
        """'' where nobody ever held it."""
        return self.message.token if self.message else ""

    def end(self, outcome: str, **more: Any) -> str:
        """The word of a finish by the holder."""
        ending = Ending(mid="m", token=self.token or "nobody", outcome=outcome, **more)  # type: ignore[arg-type]
        return str(self.queue.finish([ending], now=NOW).replies[0])


def _enqueued(queue: Any, **options: Any) -> Held:
    queue.enqueue(b"1", mid="m", now=T0, **options)
    return Held(queue, None)


def _locked(queue: Any, at: int = NOW - 1_000) -> Held:
    _enqueued(queue)
    [message] = queue.dequeue(lease=LEASE_MS / 1000, now=at).messages
    return Held(queue, message)


def _requeued(queue: Any) -> Held:
    held = _locked(queue)
    queue.enqueue(b"2", mid="m", on_conflict="requeue", now=NOW - 500)
    return held


def _done(queue: Any, **more: Any) -> Held:
    held = _locked(queue)
    queue.finish([Ending(mid="m", token=held.token, **more)], now=NOW - 10)
    return held


def _done_requeued(queue: Any) -> Held:
    held = _done(queue, backoff=HOUR_MS / 1000)
    queue.enqueue(b"2", mid="m", on_conflict="requeue", now=NOW - 5)
    return held


STATUSES: dict[str, Callable[[Any], Held]] = {
    "nil": lambda queue: Held(queue, None),
    "queued": _enqueued,
    "queued-with-backoff": lambda queue: _enqueued(queue, delay=3_600),
    "locked": _locked,
    "locked-with-requeue": _requeued,
    "expired": lambda queue: _locked(queue, T0),
    "done-awaiting-gc": _done,
    "done-with-backoff": lambda queue: _done(queue, backoff=HOUR_MS / 1000),
    "done-with-requeue": _done_requeued,
    "dead": lambda queue: _done(queue, outcome="dead", reason="no use"),
}


def _enqueue(**options: Any) -> Callable[[Held], str]:
    def call(held: Held) -> str:
        done = held.queue.enqueue(b"3", mid="m", now=NOW, **options)
        return f"{done.action} {done.existing_status}".strip()

    return call


def _dequeue(held: Held) -> str:
    messages = held.queue.dequeue(now=NOW, lease=LEASE_MS / 1000).messages
    return f"handed out, attempt {messages[0].attempt}" if messages else "nothing"


def _yes(kept: list[bool]) -> str:
    return "ok" if kept == [True] else "stale"


def _of_dead(verb: str) -> Callable[[Held], str]:
    def call(held: Held) -> str:
        [dead] = held.queue.admin.dead() or [None]
        answer = getattr(held.queue.admin, verb)(dead.dead_id if dead else "m#none")
        return str(answer[0] if isinstance(answer, list) else answer)

    return call


def _taken_out(held: Held) -> str:
    kept = held.queue.admin.bin("op")
    taken = kept.take_out(("m", "*"), now=NOW)
    return f"{taken[0]}, {kept.put_back('waiting', 'm', now=NOW)[0]}"


def _later(held: Held) -> str:
    """Time goes by until after every lock and backoff, and somebody collects."""
    for turn in range(4):
        held.queue.admin.collect(now=NOW + 2 * HOUR_MS + turn)
    return "-"


def _tick(overlap: str) -> Callable[[Held], str]:
    """The next tick of a schedule whose last run is this message."""

    def call(held: Held) -> str:
        ticks = key(held.queue.prefix, "ticks")
        held.queue.client.command("HSET", ticks, "s", f"{T0},,m")
        told = held.queue.admin.tick(
            tick_values("s", NOW - 1, T0, "s@2", b"4", overlap=overlap, now=NOW)
        )
        return f"{told.outcome} {told.detail}"

    return call


def _silent(verb: str) -> Callable[[Held], str]:
    def call(held: Held) -> str:
        answer = getattr(held.queue.admin, verb)(
            **({} if verb in ("pause", "resume") else {"now": NOW})
        )
        return "-" if answer is None or verb in ("collect", "pause") else str(answer)

    return call


VERBS: dict[str, Callable[[Held], str]] = {
    "enqueue": _enqueue(),
    "enqueue, delayed": _enqueue(delay=60),
    "enqueue, on_conflict=replace": _enqueue(on_conflict="replace"),
    "enqueue, on_conflict=requeue": _enqueue(on_conflict="requeue"),
    "enqueue, until=done": _enqueue(until="done"),
    "enqueue, until=start": _enqueue(until="start"),
    "dequeue": _dequeue,
    "finish done": lambda held: held.end("done"),
    "finish done, dedupe": lambda held: held.end("done", backoff=HOUR_MS / 1000),
    "finish retry, backoff": lambda held: held.end("retry", backoff=HOUR_MS / 1000),
    "finish dead": lambda held: held.end("dead", reason="no use"),
    "finish crashed": lambda held: held.end("crashed", reason="killed"),
    "finish snooze": lambda held: held.end("snooze", backoff=HOUR_MS / 1000),
    "finish unknown": lambda held: held.end("unknown", backoff=HOUR_MS / 1000),
    "extend": lambda held: _yes(held.queue.extend([("m", held.token or "nobody")], now=NOW)),
    "release": lambda held: _yes(held.queue.release([("m", held.token or "nobody")], now=NOW)),
    "cancel": lambda held: str(held.queue.cancel("m", now=NOW)[0]),
    "revive": _of_dead("revive"),
    "purge": _of_dead("purge"),
    "take_out, put_back": _taken_out,
    "edit": lambda held: held.queue.admin.bin("op").edit(("m", "*", b"9"), now=NOW)[0],
    "run_now": lambda held: held.queue.admin.run_now("m", now=NOW)[0].word,
    "reschedule, later": lambda held: (
        held.queue.admin.reschedule([("m", "*", NOW + HOUR_MS)], now=NOW)[0].word
    ),
    "tick, overlap=skip": _tick("skip"),
    "tick, overlap=queue": _tick("queue"),
    "tick, overlap=allow": _tick("allow"),
    "tick, overlap=cancel": _tick("cancel"),
    "pause": _silent("pause"),
    "resume": _silent("resume"),
    "collect": _silent("collect"),
    "two hours pass, collect": _later,
    "clear": _silent("clear"),
}


def observed(queue: Any, status: str, verb: str) -> tuple[str, str]:
    """The reply, and the status after; 'and dead' if a dead message of that mid is also kept."""
    held = STATUSES[status](queue)
    reply = VERBS[verb](held)
    now = NOW + (2 * HOUR_MS + 10 if verb.startswith("two hours") else 0)
    after = queue.status("m", now=now)
    words = after.word
    if after.dead_id and after.word != "dead":
        words += " and dead"
    return reply, words


def rows() -> list[tuple[str, str, str, str]]:
    """Status before, verb, reply, status after."""
    found, status = [], ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            status = line[3:]
        elif line and not line.startswith("#"):
            verb, _, rest = line.partition(": ")
            reply, _, after = rest.partition(" > ")
            found.append((status, verb.strip(), reply, after))
    return found


#: Replies of calls without an effect.
IDLE = ("stale", "nothing", "nil", "nil, nil", "0", "-")


def page() -> str:
    """The table of docs/reference/states.md."""
    idle: dict[str, list[str]] = {}
    parts = []
    ticks = ["\n## Ticks\n", TICKS]
    for status in STATUSES:
        cells: dict[tuple[str, str], list[str]] = {}
        by_overlap = []
        word = "queued" if status == "expired" else status
        for _, verb, reply, after in (row for row in rows() if row[0] == status):
            if verb.startswith("tick"):
                by_overlap.append(reply if after == word else f"{reply} → {after}")
            elif reply in IDLE and after == word:
                verbs = idle.setdefault(reply, [])
                verbs += [verb] if verb not in verbs else []
            else:
                cells.setdefault((reply, after), []).append(verb)
        parts.append(f"\n## {status}\n\n| call | reply | status after |\n|---|---|---|\n")
        parts += [f"| {_code(verbs)} | {r} | {a} |\n" for (r, a), verbs in cells.items()]
        ticks.append(f"| {status} | {' | '.join(by_overlap)} |\n")
    replies = "".join(f"| {_code(verbs)} | {reply} |\n" for reply, verbs in idle.items())
    return f"{OPENING}\n| call | reply without an effect |\n|---|---|\n{replies}{''.join(parts + ticks)}"


def _code(verbs: list[str]) -> str:
    return ", ".join(f"`{verb}`" for verb in verbs)


TICKS = """
This table shows replies to a schedule's tick, by the status of the schedule's latest run. `s@2` is the mid of the next
run; the status after an arrow is the latest run's new status.

| status | `overlap="skip"` | `"queue"` | `"allow"` | `"cancel"` |
|---|---|---|---|---|
"""
OPENING = """# States

This page shows, for each status of a message, the calls that change the message, their replies and the new status.
Tests check these replies on real servers (`tests/queue/states.txt`).

Eight statuses have Carmine's names; jobq adds "expired" and *dead*. A message is "expired" from the end of its
lease until its recovery: `jobq status` shows queued, and the last holder may still finish the message. In the tables,
only the worker with the current or last lease calls finish, extend and release. "and dead" means that the mid has a
dead message in addition to the live message.

A call that isn't in a status's table leaves the message unchanged, and replies:
"""
