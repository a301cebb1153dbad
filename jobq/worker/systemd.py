"""Notifies systemd: READY with the first child, WATCHDOG from the supervisor's loop, and STOPPING before the exit."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from jobq.worker import logger


class Systemd:
    """The notification socket of a systemd unit with Type=notify. Without NOTIFY_SOCKET, all methods do nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        watchdog = environ.get("WATCHDOG_USEC", "")
        # Twice as often as needed, as sd_watchdog_enabled(3) advises.
        self._every_s = int(watchdog) / 2e6 if self._address and watchdog.isdecimal() else 0.0
        self._next = 0.0

    def ready(self, children: int) -> None:
        """Notify systemd that the worker has started, with this number of children."""
        self._send(f"READY=1\nSTATUS=children: {children}")

    def stopping(self) -> None:
        """Notify systemd that the worker is about to exit."""
        self._send("STOPPING=1")

    def looped(self) -> None:
        """Notify systemd's watchdog, if a notification is due, that the supervisor's loop is running."""
        if self._every_s and (now := time.monotonic()) >= self._next:
            self._next = now + self._every_s
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.setblocking(False)
                line.sendto(text.encode(), self._address)
        except OSError as error:
            logger.debug("systemd can't be notified: %s", error)
