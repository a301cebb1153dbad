"""Wait until a message is appended, with XREAD on a separate connection.

The reply's entries are discarded, because the following poll fetches the messages. So a lost or extra wake-up only
costs time.
"""

from __future__ import annotations

import threading

from jobq.client.connection import Client
from jobq.client.steps import Ask, Nap, Steps
from jobq.client.waiter import SHORT_GRACE_S, BlockingConnection
from jobq.errors import ScriptError, UnavailableError

#: The largest second half of an entry's id (a time). With it, a read starts after all entries of an index.
_ANY_TIME = 2**64 - 1
#: Pause after a broken wait.
BROKEN_S = 0.1


class LogWaiter:
    """Waits for new messages of one topic. One thread or coroutine waits, and any thread may end the wait."""

    def __init__(self, client: Client, log_key: str) -> None:
        self._key = log_key
        self._connection = BlockingConnection(client, log_key)
        self._ended = threading.Event()

    def steps(self, after: int, seconds: float) -> Steps[None]:
        """Return when the log has a message after the index `after`, or after `seconds`. The method may also return too
        early.

        Raises UnavailableError when no connection can be opened.
        """
        if self._ended.is_set() or seconds <= 0:
            return
        whole = False
        try:
            yield Ask(self._connection.open, exclusive=True)
            try:
                self._connection.send(
                    ("XREAD", "COUNT", 1, "BLOCK", max(1, round(seconds * 1000)), "STREAMS", self._key,
                     f"{after}-{_ANY_TIME}")
                )  # fmt: skip
                if (yield Nap(seconds + SHORT_GRACE_S, (self._connection.file,))):
                    yield Ask(self._connection.reply, exclusive=True)
                    whole = True
            except (ScriptError, UnavailableError):
                if not self._ended.is_set():
                    yield Nap(min(BROKEN_S, seconds))
        except UnavailableError:
            if not self._ended.is_set():
                raise
        finally:
            if not whole:
                self._connection.close()

    def end(self) -> None:
        """End the current wait and all later waits. Any thread may call this."""
        self._ended.set()
        self._connection.interrupt()

    @property
    def ended(self) -> bool:
        """Whether waits end immediately."""
        return self._ended.is_set()

    def resume(self) -> None:
        """Allow waits again."""
        self._ended.clear()

    def close(self) -> None:
        """Close the connection; the next wait opens another."""
        self._connection.close()
