"""Enqueue dead messages of sealed queues again, in the partitions that accept messages now."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jobq.client.connection import Client
from jobq.client.numbered_calls import moment
from jobq.client.scripts import Argument
from jobq.errors import KeyFullError
from jobq.queue import keys
from jobq.queue.routing import Destination
from jobq.queue.types import text_of

SEALED = "sealed"
#: A dead message: attempts, crashes, its options, the length of the reason, the reason and the content.
_DEAD = re.compile(rb"\d*\x1f\d*\x1f([^\x1f]*)\x1f(\d{1,7})\x1f")
#: Options of a message: minimum lease, when its mid is free again, and for keyed messages 'o' if ordered, and the key.
_OPTIONS = re.compile(r"(\d*),([@<>]?)(\d*)(?:,(o?)-?\d*,(.+))?", re.DOTALL)


class Accepting(Destination, Protocol):
    """The queue methods that `revive_moved` needs."""

    def content(self, mid: str) -> bytes | None:
        """Return the content of a live message."""
        ...


def revive_moved(
    client: Client, prefix: str, base: Accepting, dead_id: str, at_ms: int | None = None
) -> str:
    """Enqueue a dead message in `base`; return an outcome listed in `Admin.revive`.

    After 'revived', purge the dead message. If the purge fails, repeat the call: it doesn't enqueue the message twice,
    and returns 'revived' again.

    Args:
        at_ms: Earliest start in epoch ms.
    """
    stored = client.command("HGET", keys.key(prefix, "dead_messages"), dead_id)
    if stored is None:
        return "nil"
    head = _DEAD.match(stored)
    options = head and _OPTIONS.fullmatch(text_of(head[1]))
    mid = dead_id.rpartition("#")[0]
    if not head or not options or not mid:
        return "damaged"
    content = stored[head.end() + int(head[2]) :]
    row: list[Argument] = [mid, content]
    if options[5]:
        row.append(options[5])
    try:
        [done] = base.send(client.durability, _values(options, mid, at_ms), row, (mid,), None)
    except KeyFullError:
        return "full"
    if done.action == "exists" and base.content(mid) != content:
        return "exists"
    return "revived"


def key_in(options: bytes | None) -> str | None:
    """Return the key in the options of a message."""
    read = _OPTIONS.fullmatch(text_of(options)) if options else None
    return read[5] if read else None


def _values(options: re.Match[str], mid: str, at_ms: int | None) -> dict[str, Argument]:
    lease_ms, kind, dedupe_ms, ordered, key = options.groups()
    if kind == "@":  # when the mid is free again, in epoch ms
        dedupe_ms = f"@{max(0, int(dedupe_ms) - round(time.time() * 1000))}"
    return {
        "now": moment(None), "delay_ms": "", "at": "" if at_ms is None else at_ms, "can_update": 0, "can_requeue": 0,
        "again": "member" if mid.startswith("~") else "", "lock_ms": lease_ms,
        "dedupe_ms": "" if kind in ("<", ">") else dedupe_ms, "at_most_ms": "", "drop_results": "",
        "keyed": "" if not key else "ordered" if ordered else "key",
    }  # fmt: skip


def instead_of(
    word: str, words: list[str], ids: Sequence[str], call: Callable[..., list[str]]
) -> list[str]:
    """Pass the ids whose outcome is `word` to `call`. Return `words`, updated with the outcomes that `call` returns."""
    left = [id_ for id_, told in zip(ids, words, strict=True) if told == word]
    again = iter(call(*left) if left else ())
    return [next(again) if told == word else told for told in words]
