"""A TCP proxy that does to a connection what networks do: cut it, tear it, delay it, swallow it, lose one reply.

It knows as much of the protocol as that needs: a client has one call in flight on a connection, so what
comes back first after a request that names EVALSHA or EVAL is its reply.
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
    """Listens on a port of its own, before a server at (host, port) or a socket's path.

    `latency_s`: at most so long, by chance, before each KB. `bytes_per_s`: of each connection and direction,
    0 for any. `lost`, `torn`: how many replies, connections.
    """

    def __init__(self, target: tuple[str, int] | str, seed: int = 0) -> None:
        self._target = target
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])
        self._random = random.Random(seed)
        self._open = {way: threading.Event() for way in BOTH}
        self.deliver()
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._to_lose = self._to_tear = 0
        self.latency_s = self.bytes_per_s = 0.0
        self.lost = self.torn = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, nth: int) -> None:
        """The server runs the n-th EVALSHA or EVAL from now; its reply is lost with the connection."""
        with self._lock:
            self._to_lose = nth

    def tear(self, nth: int) -> None:
        """Of the n-th piece from now, request or reply, only some bytes arrive before a reset."""
        with self._lock:
            self._to_tear = nth

    def cut(self) -> None:
        """Reset every connection, wherever its request or reply is."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.reset()

    def forsake(self) -> None:
        """From now on nothing comes through on today's connections, nor are they closed; new ones work."""
        with self._lock:
            for pair in self._pairs:
                pair.forsaken = True

    def disown(self) -> None:
        """End of `forsake`: who still uses one of those is told so by a reset."""
        with self._lock:
            pairs = [pair for pair in self._pairs if pair.forsaken]
        for pair in pairs:
            pair.reset()

    def swallow(self, ways: Sequence[str] = BOTH) -> None:
        """Deliver nothing, until `deliver`; what was sent meanwhile arrives late."""
        for way in ways:
            self._open[way].clear()

    def deliver(self) -> None:
        """End of `swallow`."""
        for way in BOTH:
            self._open[way].set()

    def close(self) -> None:
        """Cut all, listen no more."""
        self.deliver()
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listening.close()
        self.cut()

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
            pair = Pair(self, outside, inside)
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

    def pass_on(self, sink: socket.socket, data: bytes, way: str) -> None:
        """To the other side, as the road is at the moment."""
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
        """How many bytes of this piece arrive, if it is the one to tear."""
        with self._lock:
            if not self._to_tear:
                return None
            self._to_tear -= 1
            self.torn += not self._to_tear
            return None if self._to_tear else self._random.randrange(size)

    def loses(self, request: bytes) -> bool:
        """Whether the reply to this request is the one to lose."""
        if not self._to_lose or b"EVAL" not in request[:64]:
            return False
        with self._lock:
            self._to_lose = max(0, self._to_lose - 1)
            self.lost += not self._to_lose
            return not self._to_lose

    def forget(self, pair: Pair) -> None:
        """It is closed."""
        with self._lock:
            self._pairs.discard(pair)


class Pair:
    """One client's connection and the one to the server behind it."""

    def __init__(self, proxy: Proxy, outside: socket.socket, inside: socket.socket) -> None:
        self._proxy = proxy
        self._outside, self._inside = outside, inside
        self._losing = self.forsaken = False
        self._how = socket.SHUT_RDWR

    def start(self) -> None:
        """Copy both ways until one side closes."""
        threading.Thread(target=self._up, daemon=True).start()
        threading.Thread(target=self._down, daemon=True).start()

    def reset(self) -> None:
        """RST to both: no FIN may go before it."""
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
        """Whether the connection goes on."""
        if self.forsaken:
            return True
        if way == UP:
            self._losing = self._losing or self._proxy.loses(data)
        elif self._losing:
            # The server has run it and answers: nobody hears.
            self.reset()
            return False
        torn_at = self._proxy.torn_at(len(data))
        if torn_at is not None:
            sink.sendall(data[:torn_at])
            self.reset()
            return False
        self._proxy.pass_on(sink, data, way)
        return True

    def _end(self) -> None:
        # A closed socket alone would not wake the thread that reads it.
        self._proxy.forget(self)
        for side in (self._outside, self._inside):
            try:
                side.shutdown(self._how)
            except OSError:
                pass
            side.close()
