"""Bins keep the messages that an operation took out of a queue, so that the operation can be undone."""

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
#: Stands for any generation of a message.
ANY = "*"
#: Maximum number of messages and bytes in a bin.
MAX_MESSAGES, MAX_BYTES = 10_000, 16 * 1024 * 1024
#: Previous places of messages, or the kinds of changes to them.
Taken = Literal["waiting", "dead", "revived", "edited"]
_OPERATION = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Bin:
    """The bin of one operation in one queue; get it from `queue.admin.bin(operation)`.

    A bin holds at most 10,000 messages and 16 MiB. Each call that adds messages extends the bin's lifetime.
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
        # The scripts of a Queue cache the prefixes of calls, which isn't worth it for the few calls of a bin.
        self._caller = Caller()

    def take_out(
        self, *waiting: tuple[str, str], caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Move waiting messages from the queue to the bin. Pass each message as a mid and a generation.

        The generation is '' until an attempt has ended; ANY matches any generation. Return an outcome for each message:

        - `taken`.
        - `in bin`: the message is already in the bin.
        - `nil`: there is no such message.
        - `changed`: the message is running or done, or another message has its mid.
        - `full`: the bin is full.
        """
        rows = [(checked_mid(mid), generation) for mid, generation in waiting]
        return self._take("waiting", rows, caller, now)

    def take_out_dead(
        self, *dead_ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Move dead messages from the dead-letter set to the bin; return the outcomes, see `take_out`."""
        rows = [(mid, rest) for mid, _, rest in (id_.rpartition("#") for id_ in dead_ids)]
        return self._take("dead", rows, caller, now)

    def revive(
        self,
        *dead: tuple[str, int | None],
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[str]:
        """Enqueue dead messages again. Pass each as its dead id and its earliest start in epoch ms; None means now.

        Return the outcomes; see `Admin.revive`. The outcome 'full' can also mean that the bin is full.
        """
        rows: list[tuple[Argument, ...]] = [(id_, "" if at is None else at) for id_, at in dead]
        return self._each("revive", rows, {"life_ms": self.life_ms}, caller, now)

    def edit(
        self,
        *messages: tuple[str, str, bytes],
        caller: Caller | None = None,
        now: int | None = None,
    ) -> list[str]:
        """Replace the content of waiting messages. Pass each as a mid, a generation (see `take_out`) and new content.

        This drops the checkpoint of an edited message. Return an outcome for each message: 'edited', 'same' (with
        equal content), 'in bin' (already edited by this operation), 'nil', 'changed' or 'full'; see `take_out`.
        """
        for mid, _, content in messages:
            checked_content(checked_mid(mid), content)
        longest = max((len(content) for _, _, content in messages), default=0)
        per_call = min(PER_CALL, BYTES_PER_CALL // max(1, longest))
        return self._each("edit", messages, {"life_ms": self.life_ms}, caller, now, per_call)

    def put_back(
        self, taken: Taken, *ids: str, caller: Caller | None = None, now: int | None = None
    ) -> list[str]:
        """Undo the operation: put messages back into their former places, with all their stored data.

        A message whose turn has passed becomes the queue's next message. Return an outcome for each message:

        - `restored` or `damaged`.
        - `nil`: it isn't in the bin.
        - `exists`: its mid is in use again.
        - `changed`: a revived or edited message was started, changed or cancelled since.
        - `sealed`: the queue is sealed.

        Args:
            ids: Mids, or dead ids for 'dead' and 'revived', in the order in which the messages were taken out.
        """
        words: list[str] = []
        # In reverse, because each message whose turn has passed is put before all others.
        for first in reversed(range(0, len(ids), PER_CALL)):
            rows = [(id_,) for id_ in ids[first : first + PER_CALL]]
            words = self._each("put_back", rows, {"place": taken}, caller, now) + words
        return words

    def holds(self, taken: Taken, *ids: str) -> list[bool]:
        """For each id, return whether the bin contains it. Pass mids, or dead ids if `taken` is 'dead' or 'revived'."""
        reply = self.client.command("HMGET", self.key, *(f"{taken[0]}{id_}" for id_ in ids))
        return [field is not None for field in reply]

    def left_s(self) -> float | None:
        """Return how many seconds remain to put the messages back; None if the bin is empty."""
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
