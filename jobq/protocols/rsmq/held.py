"""The messages a consumer holds: kept hidden by a heartbeat until they are settled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jobq.errors import JobqError
from jobq.protocols.rsmq.consuming import logger
from jobq.protocols.rsmq.messages import RsmqMessage

if TYPE_CHECKING:
    from jobq.protocols.rsmq.client import Rsmq


class VisibilityRenewer:
    """Messages of one queue. A thread renews their invisibility every third of `vt` seconds."""

    def __init__(self, rsmq: Rsmq, qname: str, vt: int) -> None:
        self._rsmq, self._qname, self._vt = rsmq, qname, vt
        self._messages: dict[str, RsmqMessage] = {}
        # VisibilityRenewer during a renewal too: one that arrived after a message was settled would hide it again.
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="jobq-rsmq-heartbeat", daemon=True)

    def __enter__(self) -> VisibilityRenewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: RsmqMessage) -> None:
        """Keep it hidden from now on."""
        with self._lock:
            self._messages[message.id] = message

    def let_go(self, message: RsmqMessage) -> None:
        """Renew it no more; no renewal is under way when this returns."""
        with self._lock:
            self._messages.pop(message.id, None)

    def renew(self) -> None:
        """Hide all of them for another `vt` seconds; forget those that somebody else received meanwhile."""
        with self._lock:
            messages = list(self._messages.values())
            if not messages:
                return
            kept = self._rsmq.change_messages_visibility(self._qname, messages, self._vt)
            for message, ours in zip(messages, kept, strict=True):
                if not ours:
                    del self._messages[message.id]
                    logger.warning(
                        "queue %s: message %s was received or deleted by somebody else while its handler ran",
                        self._qname, message.id,
                    )  # fmt: skip

    def _beat(self) -> None:
        while not self._over.wait(self._vt / 3):
            try:
                self.renew()
            except JobqError as error:
                logger.warning("queue %s: no renewal: %s", self._qname, error)
