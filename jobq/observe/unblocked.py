"""Log streams that don't block if their reader is slow. Lines that can't be written in time are dropped and counted.

A pipe with a blocked reader, a terminal stopped by Ctrl-S and a socket of a hung journal block every process that
writes to them. A blocked supervisor can't renew leases or handle signals.
"""

from __future__ import annotations

import io
import os
import select
import socket
import stat
from collections.abc import Callable
from functools import partial
from typing import TextIO, cast
from weakref import finalize

#: How long a write waits for room, if the previous write found room. So a slow reader loses no lines.
PATIENCE_S = 0.5


class Unblocked(io.TextIOBase):
    """A text stream that drops lines instead of blocking. `send` must raise BlockingIOError if it would block.

    Attributes:
        note: Returns a line that reports how many lines were dropped. The line is written when there is room again.
    """

    def __init__(
        self,
        stream: TextIO,
        file: int,
        send: Callable[[bytes], int],
        close: Callable[[], object] = bool,
    ) -> None:
        self._stream, self._send = stream, send
        finalize(self, close)
        self._room = select.poll()
        self._room.register(file, select.POLLOUT)
        #: The end of a text whose beginning was written, to keep lines whole.
        self._rest = b""
        self.ndropped = 0
        self.note: Callable[[int], str] = _note

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the stream's encoding; utf-8 if it has none."""
        return self._stream.encoding or "utf-8"

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Return True: the stream is writable."""
        return True

    def write(self, text: str) -> int:
        """Write the text, or drop it if there is no room. Raise OSError if the reader has closed the stream."""
        if self._rest:
            self._rest = self._rest[self._sent(self._rest) :]
        data = text.encode(self.encoding, "backslashreplace")
        nsent = 0 if self._rest else self._sent(data)
        if data and not nsent:
            self.ndropped += max(1, text.count("\n"))
        elif nsent < len(data):
            self._rest = data[nsent:]
        elif self.ndropped:
            line, self.ndropped = self.note(self.ndropped).encode(), 0
            self._rest = line[self._sent(line) :]
        return len(text)

    def _sent(self, data: bytes) -> int:
        nsent = 0
        # Once lines were dropped, nobody waits until there is room again.
        wait_ms = 0 if self.ndropped else 1000 * PATIENCE_S
        while nsent < len(data):
            try:
                nsent += self._send(data[nsent:])
            except BlockingIOError:
                if not self._room.poll(wait_ms):
                    break
        return nsent


def unblocked(stream: TextIO) -> TextIO:
    """Return a non-blocking stream to the same file. If no reader can block `stream`, return `stream` itself."""
    try:
        file = stream.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError, AttributeError):
        return stream
    if stat.S_ISSOCK(mode):
        sock = socket.socket(fileno=os.dup(file))
        made = Unblocked(
            stream, file, lambda data: sock.send(data, socket.MSG_DONTWAIT), sock.close
        )
    elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        made = _of_pipe(stream, file)
    else:
        return stream
    return cast("TextIO", made)


def _of_pipe(stream: TextIO, file: int) -> Unblocked:
    try:
        # Open a separate description, because other programs share the old description and expect it to block.
        own = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return Unblocked(stream, file, _sending_when_there_is_room(file))
    return Unblocked(stream, file, partial(os.write, own), partial(os.close, own))


def _sending_when_there_is_room(file: int) -> Callable[[bytes], int]:
    """Return a function that writes to a pipe only if it has room. The function is for pipes that can't be reopened.

    Another process may fill the pipe between the check and the write.
    """
    room = select.poll()
    room.register(file, select.POLLOUT)

    def send(data: bytes) -> int:
        if not room.poll(0):
            raise BlockingIOError
        return os.write(file, data[: select.PIPE_BUF])

    return send


def _note(nlines: int) -> str:
    return f"{told(nlines)}\n"


def told(nlines: int) -> str:
    """Return the text of the log line about dropped lines."""
    return f"{nlines:,} log lines were dropped, because the reader of the log was blocked"
