"""Messages that an operation withdrew from a queue, kept for a while so that the operation can be undone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Literal

from jobq.client.connection import Client
from jobq.client.numbered_calls import BYTES_PER_CALL, BoundScripts, Caller, moment
from jobq.client.scripts import Argument
from jobq.config import duration_s
from jobq.durations import DAY_MS, Duration
from jobq.errors import ConfigError
from jobq.queue import keys
from jobq.queue.mids import checked_mid
from jobq.queue.remembered import with_result_keys
from jobq.queue.types import PER_CALL, checked_content, text_of

HOUR_S = 3_600.0
#: Of a message that may be in any generation.
ANY = "*"
#: Maximum bytes in one operation's bin of one queue.
MAX_MESSAGES, MAX_BYTES = 10_000, 16 * 1024 * 1024
#: Previous places of messages, or the kinds of changes to them.
Taken = Literal["waiting", "dead", "revived", "edited"]
_OPERATION = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Bin:
    """The bin of one operation in one queue; reached as `queue.admin.bin(operation)`.

    Each call renews how long it is kept. The server holds 10,000 messages or 16 MiB for it at most.
    """

    def __init__(
        self, queue: str, client: Client, operation: str, keep: Duration | None = HOUR_S
    ) -> None:
        if not _OPERATION.fullmatch(operation):
            raise ConfigError(
                f"operation {operation!r:.80} can't be used; use 1-64 letters, digits, dots, hyphens and underscores"
            )
        keep_ms = None if keep is None else round(duration_s(keep) * 1000)
        if keep_ms is not None and not 1 <= keep_ms <= DAY_MS:
            raise ConfigError(
                f"keep={keep!r} is out of range; it must be between a millisecond and a day"
            )
        self.operation, self.client = operation, client
        self.life_ms: Argument = "" if keep_ms is None else keep_ms
        prefix = self._prefix = keys.prefix(client.namespace, queue)
        self.key = keys.bin_of(prefix, operation)
        named = partial(_key, prefix, self.key)
        self._scripts = BoundScripts(client, "queue", prefix, named, f"queue {queue!r}")
        # Not the queue's scripts: each keeps the prefix of its calls, and a bin is used only a few times.
        self._caller = Caller()

    def take_out(
        self, *waiting: tuple[str, str], caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Take waiting messages out, each a mid and a generation: '' until an attempt ended, ANY for whichever.

        Per message 'taken', 'in bin' (taken before), 'nil' (there is none), 'changed' (it runs, is done, or is another)
        or 'full'.
        """
        rows = [(checked_mid(mid), generation) for mid, generation in waiting]
        return self._take("waiting", rows, caller, now)

    def take_out_dead(
        self, *dead_ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Take dead messages out. Per message 'taken', 'in bin', 'nil' or 'full'."""
        rows = [(mid, rest) for mid, _, rest in (id_.rpartition("#") for id_ in dead_ids)]
        return self._take("dead", rows, caller, now)

    def revive(
        self,
        *dead: tuple[str, int | None],
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[str]:
        """Enqueue dead messages again, each by its dead id, with an earliest start in epoch ms; None: immediately.

        Returns the words of `queue.admin.revive`, and 'full'.
        """
        rows: list[tuple[Argument, ...]] = [(one, "" if at is None else at) for one, at in dead]
        return self._each("revive", rows, {"life_ms": self.life_ms}, caller, now)

    def edit(
        self,
        *messages: tuple[str, str, bytes],
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[str]:
        """Replace the content of waiting messages, each a mid, a generation as in `take_out`, and the new content.

        A checkpoint of the former content is dropped. Per message 'edited', 'same' (that is its content), 'in bin'
        (edited before), 'nil', 'changed' or 'full'.
        """
        for mid, _, content in messages:
            checked_content(checked_mid(mid), content)
        longest = max((len(content) for _, _, content in messages), default=0)
        per_call = min(PER_CALL, BYTES_PER_CALL // max(1, longest))
        return self._each("edit", messages, {"life_ms": self.life_ms}, caller, now, per_call)

    def put_back(
        self, taken: Taken, *ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Undo: return messages to their former places, with all their stored data.

        A message whose turn has passed comes first. Returns per message 'restored', 'nil' (not in the bin, or no
        longer), 'exists' (its mid is live again), 'changed' (a revived or edited message was started, changed or
        cancelled since) or 'damaged'.

        Args:
            ids: Mids, or for `dead` and `revived` dead ids, in the order in which they were withdrawn.
        """
        words: list[str] = []
        # In reverse, because messages whose turn has passed are put before the messages in the line.
        for first in reversed(range(0, len(ids), PER_CALL)):
            rows = [(id_,) for id_ in ids[first : first + PER_CALL]]
            words = self._each("put_back", rows, {"place": taken}, caller, now) + words
        return words

    def holds(self, taken: Taken, *ids: str) -> list[bool]:
        """Whether it has each of these: mids, or for `dead` and `revived` dead ids."""
        reply = self.client.command("HMGET", self.key, *(f"{taken[0]}{id_}" for id_ in ids))
        return [one is not None for one in reply]

    def left_s(self) -> float | None:
        """Return how long what is in it can still be put back; None for an empty bin."""
        left_ms: int = self.client.command("PTTL", self.key)
        return left_ms / 1000 if left_ms >= 0 else None

    def _take(
        self,
        place: Taken,
        rows: Sequence[tuple[str, str]],
        caller: Caller | None,
        now: int | None,
    ) -> list[str]:
        values: dict[str, Argument] = {"life_ms": self.life_ms, "place": place}
        return self._each("take_out", rows, values, caller, now)

    def _each(
        self,
        verb: str,
        rows: Sequence[tuple[Argument, ...]],
        values: dict[str, Argument],
        caller: Caller | None,
        now: int | None,
        per_call: int = PER_CALL,
    ) -> list[str]:
        words: list[str] = []
        given = {"now": moment(now), "op": self.operation, **values}
        for first in range(0, len(rows), per_call):
            some = rows[first : first + per_call]
            mids = [str(row[0]) for row in some]
            told = with_result_keys(
                self._prefix, mids, some, partial(self._call, verb, caller, given)
            )
            words += map(text_of, told)
        return words

    def _call(
        self,
        verb: str,
        caller: Caller | None,
        values: dict[str, Argument],
        rows: Sequence[tuple[Argument, ...]],
        extra_keys: Sequence[str],
    ) -> list[bytes]:
        rest = [part for row in rows for part in row]
        script = self._scripts[verb]
        words: list[bytes] = script.call(
            caller or self._caller, values, rest, extra_keys=extra_keys
        )
        return words


def _key(prefix: str, bin_key: str, name: str) -> str:
    return bin_key if name == "bin" else keys.key(prefix, name)
