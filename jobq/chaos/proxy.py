"""A TCP proxy that does to a connection what networks do: cut it, delay it, swallow it, lose one reply.

It knows as much of the protocol as that needs: a client has one call in flight on a connection, so what
comes back first after a request that names EVALSHA is its reply.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

HOST = "127.0.0.1"
SLICE = 65536
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own, before a server at (host, port) or a socket's path."""

    def __init__(self, target: tuple[str, int] | str, seed: int = 0) -> None:
        self._target = target
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])
        self._random = random.Random(seed)
        self._open_road = threading.Event()
        self._open_road.set()
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._to_lose = 0
        self.latency_s = 0.0
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, nth: int) -> None:
        """The server runs the n-th EVALSHA from now; its reply is lost with the connection."""
        with self._lock:
            self._to_lose = nth

    def cut(self) -> None:
        """Reset every connection, wherever its request or reply is."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.reset()

    def swallow(self) -> None:
        """Deliver nothing, until `deliver`; what was sent meanwhile arrives late."""
        self._open_road.clear()

    def deliver(self) -> None:
        """End of `swallow`."""
        self._open_road.set()

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

    def pass_on(self, sink: socket.socket, data: bytes) -> None:
        """To the other side, as the road is at the moment."""
        self._open_road.wait()
        if not self.latency_s:
            sink.sendall(data)
            return
        for start in range(0, len(data), 1024):
            time.sleep(self._random.uniform(0, self.latency_s))
            sink.sendall(data[start : start + 1024])

    def loses(self, request: bytes) -> bool:
        """Whether the reply to this request is the one to lose."""
        if not self._to_lose or b"EVALSHA" not in request[:64]:
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
        self._losing = False
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
        try:
            while data := self._outside.recv(SLICE):
                self._losing = self._losing or self._proxy.loses(data)
                self._proxy.pass_on(self._inside, data)
        except OSError:
            pass
        finally:
            self._end()

    def _down(self) -> None:
        try:
            while data := self._inside.recv(SLICE):
                if self._losing:
                    # The server has run it and answers: nobody hears.
                    self.reset()
                    break
                self._proxy.pass_on(self._outside, data)
        except OSError:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        # A closed socket alone would not wake the thread that reads it.
        self._proxy.forget(self)
        for side in (self._outside, self._inside):
            try:
                side.shutdown(self._how)
            except OSError:
                pass
            side.close()
