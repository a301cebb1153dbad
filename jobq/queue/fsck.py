"""Check a queue's invariants while the queue is in use, and repair violations.

Each call checks a limited number of mids. Between two calls, messages can move to other lists or sets. So if a mid
seems to be in two lists or in none, it is checked again before a violation is reported. The client keeps all mids of
the queue in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import BoundScripts
from jobq.queue import keys
from jobq.queue.types import Violation, text_of

#: Mids to check per call, so that a call takes the server well under a millisecond.
LIMIT = 200
PLACES = ("ready", "circle", "due", "lines")
SIDES = (
    "locks", "tokens", "backoffs", "nattempts", "ncrashes", "nunknowns", "generations", "requeue", "options",
    "progress",
)  # fmt: skip
PARTS = (
    "totals", *PLACES, "done", *SIDES, "left_ready", "left_circle", "messages", "keys", "running", "dead",
    "dead_messages", "last_dead", "quarantine",
)  # fmt: skip
#: Maximum number of suspects to check one by one: each check reads whole lists.
MAX_SUSPECTS = 1_000
#: Up to this many suspects are checked one by one, without a walk through the queue first.
FEW = 10
#: Mids per repair call: for each mid, the server walks through ready and the circle.
PER_REPAIR = 10

WRONG_TYPE = "key of another type"
TWICE = "in more than one place"
QUARANTINED = "quarantined: not a mid"
_DEAD_ENTRIES = (
    "dead without content",
    "dead: content of another shape",
    "content without a dead message",
)
_USED_UP = ("events: their ids are used up", "flow_outbox: their ids are used up")
MISCOUNTED = "wrong count of members"
#: Rules whose violations are removed.
_REMOVED = (*_DEAD_ENTRIES, QUARANTINED)
#: Replies of the repair script that are not the name of a place.
_DONE = frozenset(("forgotten", "quarantined"))


class CheckedQueue(Protocol):
    """The queue to check: a Queue or its admin."""

    client: Client
    prefix: str
    scripts: BoundScripts


def fsck(queue: CheckedQueue, *, limit: int = LIMIT) -> list[Violation]:
    """Check all invariants once, and return the violations. This doesn't change anything."""
    return [violation for step in steps(queue, limit=limit) for violation in step]


def steps(queue: CheckedQueue, *, limit: int = LIMIT) -> Iterator[list[Violation]]:
    """Run `fsck` step by step, and yield the violations of each step; for progress bars."""
    types = _checked(queue, "types", 0, limit).violations
    yield types
    if types:
        return  # every script rejects such a queue, including this script
    first_seen: dict[bytes, str] = {}
    copies: dict[str, set[bytes]] = {"ready": set(), "circle": set()}
    suspects: set[bytes] = set()
    notes: dict[str, set[bytes]] = {"ready": set(), "circle": set()}
    for part in PARTS:
        for page in _pages(queue, part, limit):
            violations = list(page.violations)
            if part in PLACES:
                violations += _twice(queue, part, page.mids, first_seen, limit)
                if part in copies:
                    copies[part].update(page.notes)
            elif part == "messages":
                suspects.update(mid for mid in page.mids if mid not in first_seen)
            elif part.startswith("left_"):
                place = part.removeprefix("left_")
                notes[place].update(note for note in page.notes if note not in copies[place])
            yield violations
    yield _confirmed(queue, "at", _unseen(queue, suspects, limit), limit)
    for place, alone in notes.items():
        yield _confirmed(queue, f"note_{place}", alone, limit)
    yield _miscounted(queue, limit)


def unplaced(queue: CheckedQueue, mids: Iterable[str], *, limit: int = LIMIT) -> set[str]:
    """Return the mids of messages that no worker will ever run, because no list or set contains them."""
    suspects = {mid.encode() for mid in mids}
    if len(suspects) > FEW:
        suspects = _unseen(queue, suspects, limit)
    return {violation.mid for violation in _confirmed(queue, "at", suspects, limit)}


def repair(queue: CheckedQueue, violations: Sequence[Violation]) -> Iterator[tuple[Violation, str]]:
    """Repair the violations that a check returned; yield each violation with a description of its repair.

    Quarantined bytes that can't be a mid, and damaged entries of the dead-letter set, are removed. A key of another
    type is renamed to `<prefix>damaged:<name>:<epoch ms>`.
    """
    for violation in violations:
        if done := _set_aside(queue, violation):
            yield violation, done
    if any(violation.rule.startswith(WRONG_TYPE) for violation in violations):
        return  # the next check reports any other damage
    script = queue.scripts["repair"]
    mids = list(dict.fromkeys(v.raw for v in violations if v.raw and v.rule not in _REMOVED))
    words: dict[bytes, str] = {}
    for start in range(0, len(mids), PER_REPAIR):
        batch = mids[start : start + PER_REPAIR]
        words |= zip(batch, map(text_of, script.run({"now": ""}, batch)), strict=True)
    if not mids:
        script.run({"now": ""})  # repairs only the totals
    for violation in violations:
        if violation.raw in words:
            word = words[violation.raw]
            yield violation, word if word in _DONE else f"moved to {word}"
        elif not violation.raw and violation.rule not in _USED_UP:
            yield violation, "counted again"


def _set_aside(queue: CheckedQueue, violation: Violation) -> str:
    """Repair a violation for which the repair script isn't needed; return a description.

    Return '' for any other violation.
    """
    if violation.rule.startswith(WRONG_TYPE) or violation.rule in _USED_UP:
        name = violation.mid or "events"
        aside = f"{queue.prefix}damaged:{name}:{time.time_ns() // 1_000_000}"
        queue.client.command("RENAME", keys.key(queue.prefix, name), aside)
        return f"renamed to {aside}"
    if violation.rule in _DEAD_ENTRIES:
        queue.scripts["purge"].run({}, [violation.raw])
        return "removed"
    if violation.rule == QUARANTINED:
        queue.client.command("HDEL", keys.key(queue.prefix, "quarantine"), violation.raw)
        return "removed"
    return ""


@dataclass
class _Page:
    following: bytes
    mids: list[bytes] = field(default_factory=list)
    notes: list[bytes] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


def _checked(queue: CheckedQueue, part: str, cursor: bytes | int, limit: int) -> _Page:
    values = {"part": part, "cursor": cursor, "limit": limit}
    following, nmids, nnotes, _, *rest = queue.scripts["fsck"].run(values)
    bad: list[Any] = rest[nmids + nnotes :]
    violations = [
        Violation(text_of(rule), text_of(mid), mid)
        for rule, mid in zip(bad[::2], bad[1::2], strict=True)
    ]
    return _Page(following, rest[:nmids], rest[nmids : nmids + nnotes], violations)


def _pages(queue: CheckedQueue, part: str, limit: int) -> Iterator[_Page]:
    cursor: bytes | int = 0
    while True:
        page = _checked(queue, part, cursor, limit)
        yield page
        if page.following == b"0":
            return
        cursor = page.following


def _twice(
    queue: CheckedQueue, part: str, mids: list[bytes], first_seen: dict[bytes, str], limit: int
) -> Iterator[Violation]:
    for mid in mids:
        if first_seen.setdefault(mid, part) == part and mids.count(mid) == 1:
            continue
        if _places(queue, mid, limit) > 1:
            yield Violation(TWICE, text_of(mid), mid)


def _places(queue: CheckedQueue, mid: bytes, limit: int) -> int:
    """Return how often a mid is in the lists and sets of waiting and running messages. Stale copies don't count."""
    pages = (page for part in PLACES for page in _pages(queue, part, limit))
    return sum(page.mids.count(mid) for page in pages)


def _unseen(queue: CheckedQueue, suspects: set[bytes], limit: int) -> set[bytes]:
    """Search all places for these mids; return the mids that are in none of them."""
    if suspects:
        for part in PLACES:
            for page in _pages(queue, part, limit):
                suspects.difference_update(page.mids)
    return suspects


def _members(queue: CheckedQueue, limit: int) -> tuple[int, set[bytes]]:
    """Count the unfinished flow messages in pages. Also return the values that their counter in `meta` had."""
    members, said = set[bytes](), set[bytes]()
    for page in _pages(queue, "members", limit):
        members.update(page.mids)
        said.update(page.notes)
    return len(members), said


def _miscounted(queue: CheckedQueue, limit: int) -> list[Violation]:
    """Return a violation if two checks in a row show that `meta` miscounts the messages of flows.

    A single mismatch may be due to a concurrent change.
    """
    rule = ""
    for _ in range(2):
        number, said = _members(queue, limit)
        if len(said) > 1 or said == {b"%d" % number}:
            return []
        rule = f"{MISCOUNTED}: {said.pop().decode()} of {number}"
    return [Violation(rule, "")]


def _confirmed(
    queue: CheckedQueue, question: str, suspects: Iterable[bytes], limit: int
) -> list[Violation]:
    violations: list[Violation] = []
    for asked, mid in enumerate(sorted(suspects)):
        if asked < MAX_SUSPECTS or not violations:
            violations += _checked(queue, question, mid, limit).violations
        else:
            violations.append(Violation(violations[-1].rule, text_of(mid), mid))
    return violations
