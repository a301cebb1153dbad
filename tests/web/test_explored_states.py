"""Every state of a message that the explorer reaches, on the message's page and in the lists of its queue.

The explorer's database is copied to a real server. What must be shown comes from its own record of what happened. Of
states that differ in nothing that these pages name, one is looked at; JOBQ_WEB=soak looks at all that are reached.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.model.actions import Action
from tests.model.drain import Drain
from tests.model.explored import Seen
from tests.model.explorer import Explorer
from tests.model.scopes import SCOPES
from tests.model.world import Record, Scope, World

SOAK = os.environ.get("JOBQ_WEB") == "soak"
pytestmark = pytest.mark.timeout(43_200 if SOAK else 600)
#: Transitions of a scope.
MAX_COUNT = 1_000_000 if SOAK else 500
#: Together they reach every word.
SHORT = tuple(
    one for one in SCOPES
    if one.name in ("dead, revived, cancelled", "debounced", "workers without the job", "a line in order")
)  # fmt: skip
NOT_LISTED = ("failed", "unknown")
WORDS = {
    "queued", "scheduled", "retrying", "running", "running, enqueued again", "retrying, lease ended", "done",
    "done, id rejected", "queued, enqueued again", *NOT_LISTED,
}  # fmt: skip
_STATE = r'<span class="state \w+"><span[^>]*>[^<]*</span>([^<]*)</span>'


class Met(NamedTuple):
    """One state. commands: what makes the database; words: mid -> word; ndead: mid -> how many of it are dead."""

    now: int
    commands: list[tuple[Any, ...]]
    words: dict[str, str]
    ndead: dict[str, int]


class Undrained(Drain):
    """The explorer's own test drains each state."""

    def check(self, world: World, invariants: Any) -> None:
        """Take it for granted."""


class Meeting(Explorer):
    """An explorer that keeps what it met."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.drain = Undrained(self.machine)
        self.met: dict[str, Met] = {}

    def _step(self, world: World, step: Action, seen: Seen) -> Any:
        return super()._step(world, step, seen) if self.result.transitions < MAX_COUNT else None

    def _settle(self, world: World) -> None:
        super()._settle(world)
        met = self._met(world)
        self.met.setdefault(world.text() if SOAK else alike(world, met), met)

    def _met(self, world: World) -> Met:
        stored = dict(self.machine.store.db.items())
        done, dead = (set(members(stored, name)) for name in ("done", "dead"))
        ndead = {mid: sum(one.startswith(f"{mid}#") for one in dead) for mid in world.records}
        words = {
            mid: word_of(world, record, mid in done, ndead[mid] > 0)
            for mid, record in world.records.items()
        }
        return Met(world.clock, list(commands(stored)), words, ndead)


def alike(world: World, met: Met) -> str:
    """What two states have in common that show the same."""
    return repr((world.is_paused, [
        (met.words[mid], bool(met.ndead[mid]), one.fresh, bool(one.attempts), bool(one.crashes), one.key)
        for mid, one in world.records.items()
    ]))  # fmt: skip


def word_of(world: World, record: Record, is_done: bool, is_dead: bool) -> str:
    """What a message's page must call its state."""
    if record.token and record.until > world.now:
        return "running, enqueued again" if record.fresh else "running"
    if record.token:
        return "retrying, lease ended"
    if record.content and not is_done:
        later = record.not_before > world.now and not record.lined
        retried = record.attempts and not record.fresh
        return "retrying" if retried else "scheduled" if later else "queued"
    if record.content:
        return "queued, enqueued again"
    if record.deduped_till > world.now:
        return "done, id rejected"
    return "done" if is_done else "failed" if is_dead else "unknown"


def members(stored: dict[str, Any], name: str) -> dict[str, Any]:
    """Of a hash, a set or a sorted set."""
    return dict(stored[name].m.items()) if name in stored else {}


def packed(state: str) -> bytes:
    """The state of a key, which the model writes in a form of its own, as the server packs it."""
    digits = "".join(f"{ord(one) - 1:02}" for one in state[:-1])
    numbers = (int(digits[at : at + 16]) - 4 * 10**15 for at in range(0, 112, 16))
    return struct.pack("<dddddddB", *numbers, ord(state[-1]))


def commands(stored: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What writes the database; not the records of calls and what else ends by itself."""
    for name, value in stored.items():
        if value.px:
            continue
        held = members(stored, name) if value.m else {}
        if name == "keys":
            held = {key: packed(state) for key, state in held.items()}
        pairs = [part for pair in held.items() for part in pair]
        match value.t:
            case "hash":
                yield ("HSET", name, *pairs)
            case "set":
                yield ("SADD", name, *held)
            case "zset":
                yield ("ZADD", name, *(part for pair in held.items() for part in reversed(pair)))
            case "list":
                yield ("RPUSH", name, *value.a.values())
            case _:
                yield ("SET", name, value.s)


def listed(html: str) -> list[tuple[str, str]]:
    """The mid and the word of each row of a list."""
    rows = re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a></th>(.*?)</tr>', html, re.DOTALL)
    return sorted((mid, re.findall(_STATE, rest)[0]) for mid, rest in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    "scopes", [(one,) for one in SCOPES] if SOAK else [SHORT], ids=lambda scopes: scopes[0].name
)
def test_pages_name_the_state_of_a_message_when_the_explorer_reaches_it(
    queue: Queue, redis: Any, visit: Any, scopes: tuple[Scope, ...]
) -> None:
    words = set().union(*(looked_at(queue, redis, visit(), one) for one in scopes))
    assert words <= WORDS if SOAK else words == WORDS


def looked_at(queue: Queue, redis: Any, page: Any, scope: Scope) -> set[str]:
    """Look at the pages of each state of a scope; the words that they must have shown."""
    explorer, client = Meeting(scope), queue.client
    assert not explorer.run().violation
    try:
        for met in explorer.met.values():
            client.clock = lambda now=met.now: now
            redis.flushall()
            redis.sadd("jobq:queues", queue.name)
            for command, name, *rest in met.commands:
                redis.execute_command(command, keys.key(queue.prefix, name), *rest)
            check(page, queue, met)
    finally:
        client.clock = None
    return {word for met in explorer.met.values() for word in met.words.values()}


def check(page: Any, queue: Queue, met: Met) -> None:
    """Look at the pages of a state."""
    rows = []
    for mid, word in met.words.items():
        reply = page.get(f"/queues/{queue.name}/messages/{mid.replace('~', '~7E')}")
        assert reply.status_code == (404 if word == "unknown" else 200), (reply.text, met)
        assert re.findall(_STATE, reply.text)[0] == word, met
        assert 'data-code="not_ready"' not in reply.text, met
        rows += [(mid, word)] * (word not in NOT_LISTED) + [(mid, "failed")] * met.ndead[mid]
    assert listed(page.get(f"/queues/{queue.name}/messages").text) == sorted(rows), met
