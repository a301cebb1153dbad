"""Stores which signed or encrypted calls have finished, so that users without the key can't replay them.

For each queue, the sorted set `jobq:spent:{low}` maps a digest of each call to the call's expiry time in epoch ms. ACL
users for producers can't write to this set (docs/operating/security.md). The worker adds a call after the server has
accepted the outcome. If the worker is killed between these two steps, the call may run again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import JobqError
from jobq.jobs.signing import Seal, is_sealed
from jobq.queue import keys
from jobq.queue.types import Ending, Message
from jobq.worker import logger

#: Maximum number of digests in memory. Messages that were given back are never looked up again.
MAX_COUNT = 10_000
TIDY_EVERY_S = 30.0


class DoneCalls:
    """Finished calls known to a child."""

    def __init__(self, client: Client, seal: Seal) -> None:
        self._client = client
        self._valid_ms = round(seal.settings.valid_s * 1000)
        self._digests: dict[str, bytes] = {}
        self._done: set[str] = set()
        self._tidied: dict[str, float] = {}
        self._failed = False

    def look(self, queue: str, messages: Sequence[Message]) -> None:
        """Look up which of these messages contain calls that have already finished. This needs one command."""
        sealed = {m.token: _digest(m) for m in messages if is_sealed(m.content)}
        if not sealed:
            return
        try:
            scores = self._client.command("ZMSCORE", self._key(queue), *sealed.values())
        except JobqError as error:
            self._warn(error)
            scores = [None] * len(sealed)
        self._done |= {token for token, score in zip(sealed, scores, strict=True) if score}
        self._digests |= sealed
        for token in list(islice(self._digests, max(0, len(self._digests) - MAX_COUNT))):
            del self._digests[token]
            self._done.discard(token)

    def holds(self, message: Message) -> bool:
        """Return whether the call in this message had already finished when the message was fetched."""
        return message.token in self._done

    def note(self, queue: str, endings: Sequence[Ending], replies: Sequence[str]) -> None:
        """Store which calls the server has accepted as done."""
        self._done.difference_update(ending.token for ending in endings)
        done = [
            digest
            for ending, reply in zip(endings, replies, strict=False)
            if (digest := self._digests.pop(ending.token, None))
            and ending.outcome == "done"
            and reply == "ok"
        ]
        if not done:
            return
        key, now_ms = self._key(queue), time.time_ns() // 1_000_000
        until = now_ms + self._valid_ms
        try:
            self._client.command(
                "ZADD", key, *[word for digest in done for word in (until, digest)]
            )
            if time.monotonic() - self._tidied.get(queue, -TIDY_EVERY_S) >= TIDY_EVERY_S:
                self._tidied[queue] = time.monotonic()
                self._client.command("ZREMRANGEBYSCORE", key, "-inf", now_ms)
                self._client.command("PEXPIRE", key, 2 * self._valid_ms)
            self._failed = False
        except JobqError as error:
            self._warn(error)

    def _key(self, queue: str) -> str:
        return keys.spent(self._client.namespace, base_of(queue))

    def _warn(self, error: JobqError) -> None:
        if not self._failed:
            logger.warning(
                "can't read the list of finished sealed calls, so a replayed call may run again: %s",
                error,
            )
        self._failed = True


def _digest(message: Message) -> bytes:
    return blake2b(b"%b\0%b" % (message.mid.encode(), message.content), digest_size=12).digest()
