"""A TCP proxy that resets, delays and holds connections, delivers parts of requests, and drops single replies.

A client has one unanswered call per connection, so the first bytes after a request with EVALSHA or EVAL are its reply.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Sequence

HOST = "127.0.0.1"
CHUNK, SLICE = 65536, 1024
UP, DOWN = "up", "down"
BOTH = (UP, DOWN)
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections to a server, which is given as (host, port) or as the path of a socket.

    Attributes:
        latency_s: Maximum random delay before each KB.
        bytes_per_s: Limit for each connection and direction, or 0 for no limit.
        lost, torn: How many replies were lost, and how many connections were reset after part of the data.
    """

    def __init__(self, target: tuple[str, int] | str, seed: int = 0) -> None:
        self._target = target
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])
        self._random = random.Random(seed)
        self._open = {way: threading.Event() for way in BOTH}
        self.release()
        self._lock = threading.Lock()
        self._pairs: set[ProxiedConnection] = set()
        self._to_lose = self._to_tear = 0
        self.latency_s = self.bytes_per_s = 0.0
        self.lost = self.torn = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, nth: int) -> None:
        """Make the proxy reset the connection instead of delivering the reply to the `nth` EVALSHA or EVAL from now."""
        with self._lock:
            self._to_lose = nth

    def tear(self, nth: int) -> None:
        """Deliver only part of the `nth` piece of data from now, in either direction. Then reset the connection."""
        with self._lock:
            self._to_tear = nth

    def reset_all(self) -> None:
        """Reset every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.reset()

    def freeze(self) -> None:
        """Stop forwarding on existing connections without closing them. New connections work."""
        with self._lock:
            for pair in self._pairs:
                pair.frozen = True

    def reset_frozen(self) -> None:
        """End `freeze` by resetting the frozen connections that are still open."""
        with self._lock:
            pairs = [pair for pair in self._pairs if pair.frozen]
        for pair in pairs:
            pair.reset()

    def hold(self, ways: Sequence[str] = BOTH) -> None:
        """Hold the traffic in these directions until `release` delivers the data."""
        for way in ways:
            self._open[way].clear()

    def release(self) -> None:
        """Stop holding traffic."""
        for way in BOTH:
            self._open[way].set()

    def close(self) -> None:
        self.release()
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listening.close()
        self.reset_all()

    def _accept(self) -> None:
        while True:
            try:
                outside, _ = self._listening.accept()
            except OSError:
                return
            try:
                inside = self._reach()
            except OSError:
                outside.close()
                continue
            pair = ProxiedConnection(self, outside, inside)
            with self._lock:
                self._pairs.add(pair)
            pair.start()

    def _reach(self) -> socket.socket:
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target, timeout=None)
        inside = socket.socket(socket.AF_UNIX)
        try:
            inside.connect(self._target)
        except OSError:
            inside.close()
            raise
        return inside

    def forward(self, sink: socket.socket, data: bytes, way: str) -> None:
        self._open[way].wait()
        if not (self.latency_s or self.bytes_per_s):
            sink.sendall(data)
            return
        for start in range(0, len(data), SLICE):
            piece = data[start : start + SLICE]
            time.sleep(self._random.uniform(0, self.latency_s))
            if self.bytes_per_s:
                time.sleep(len(piece) / self.bytes_per_s)
            sink.sendall(piece)

    def torn_at(self, size: int) -> int | None:
        """Return how many of `size` bytes to deliver before resetting the connection; None to deliver all."""
        with self._lock:
            if not self._to_tear:
                return None
            self._to_tear -= 1
            self.torn += not self._to_tear
            return None if self._to_tear else self._random.randrange(size)

    def loses(self, request: bytes) -> bool:
        """Return whether the reply to this request must not be delivered."""
        if not self._to_lose or b"EVAL" not in request[:64]:
            return False
        with self._lock:
            self._to_lose = max(0, self._to_lose - 1)
            self.lost += not self._to_lose
            return not self._to_lose

    def remove(self, pair: ProxiedConnection) -> None:
        with self._lock:
            self._pairs.discard(pair)


class ProxiedConnection:
    """A client's connection to the proxy, and the proxy's connection to the server."""

    def __init__(self, proxy: Proxy, outside: socket.socket, inside: socket.socket) -> None:
        self._proxy = proxy
        self._outside, self._inside = outside, inside
        self._losing = self.frozen = False
        self._how = socket.SHUT_RDWR

    def start(self) -> None:
        threading.Thread(target=self._up, daemon=True).start()
        threading.Thread(target=self._down, daemon=True).start()

    def reset(self) -> None:
        self._how = socket.SHUT_RD
        for side in (self._outside, self._inside):
            try:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:
                pass
        self._end()

    def _up(self) -> None:
        self._copy(self._outside, self._inside, UP)

    def _down(self) -> None:
        self._copy(self._inside, self._outside, DOWN)

    def _copy(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(CHUNK):
                if not self._pass(data, sink, way):
                    break
        except OSError:
            pass
        finally:
            self._end()

    def _pass(self, data: bytes, sink: socket.socket, way: str) -> bool:
        if self.frozen:
            return True
        if way == UP:
            self._losing = self._losing or self._proxy.loses(data)
        elif self._losing:
            # The server has run the call, and its reply is lost.
            self.reset()
            return False
        torn_at = self._proxy.torn_at(len(data))
        if torn_at is not None:
            sink.sendall(data[:torn_at])
            self.reset()
            return False
        self._proxy.forward(sink, data, way)
        return True

    def _end(self) -> None:
        # Closing a socket does not wake the thread that reads it.
        self._proxy.remove(self)
        for side in (self._outside, self._inside):
            try:
                side.shutdown(self._how)
            except OSError:
                pass
            side.close()
