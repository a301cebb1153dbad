"""Which node serves a key: one server, a Sentinel's master, or a Cluster's slot.

A topology answers `locate(key)` with a node, an opaque hashable value, and opens connections to it.
`forget()` says that the last answer may be out of date. Connections are redis-py's, one command at a
time, without its retries: the caller knows which calls are safe to repeat.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from jobq.config import ServerSettings
from jobq.engine.address import Address, Host, connection_options, parse

if TYPE_CHECKING:
    from redis.connection import Connection


class Topology(Protocol):
    """What a client needs to know of a deployment."""

    def locate(self, key: str) -> Hashable:
        """The node that serves `key`; any node for ''."""
        ...

    def nodes(self) -> list[Hashable]:
        """Every node that serves keys."""
        ...

    def open(self, node: Hashable, *, blocking: bool = False) -> Connection:
        """A connection to `node`, not yet connected; `blocking`: reads on it never time out."""
        ...

    def forget(self) -> None:
        """The node found last may have moved."""


def topology(settings: ServerSettings) -> Topology:
    """The topology that the settings name; the embedded server where they name none."""
    if settings.url is None:
        from jobq.engine.embedded import start_or_join

        return Single(settings, lambda: start_or_join(settings))
    address = parse(settings.url)
    if address.kind == "sentinel":
        return Sentinel(settings, address)
    if address.kind == "cluster":
        return Cluster(settings, address)
    return Single(settings, lambda: address.plain)


class _Opening:
    """Opens connections by the settings' timeouts."""

    def __init__(self, settings: ServerSettings) -> None:
        self.timeout_s = settings.socket_timeout_s

    def _connection(self, plain: str, blocking: bool, host: Host | None = None) -> Connection:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        make, options = connection_options(plain)
        options.setdefault("socket_timeout", self.timeout_s)
        options.setdefault("socket_connect_timeout", self.timeout_s)
        if blocking:
            options["socket_timeout"] = None
        if host is not None:
            options["host"], options["port"] = host
        connection: Connection = make(
            **options, protocol=2, retry=Retry(NoBackoff(), 0), decode_responses=False
        )
        return connection


class Single(_Opening):
    """One server. `find` gives its URL, again after every `forget`."""

    def __init__(self, settings: ServerSettings, find: Callable[[], str]) -> None:
        super().__init__(settings)
        self._find = find
        self._url: str | None = None

    def locate(self, key: str) -> Hashable:
        if self._url is None:
            self._url = self._find()
        return self._url

    def nodes(self) -> list[Hashable]:
        return [self.locate("")]

    def open(self, node: Hashable, *, blocking: bool = False) -> Connection:
        return self._connection(str(node), blocking)

    def forget(self) -> None:
        self._url = None


class Sentinel(_Opening):
    """The master that a quorum of Sentinels names."""

    def __init__(self, settings: ServerSettings, address: Address) -> None:
        super().__init__(settings)
        self._address = address
        self._master: Host | None = None

    def locate(self, key: str) -> Hashable:
        if self._master is None:
            self._master = self._ask()
        return self._master

    def nodes(self) -> list[Hashable]:
        return [self.locate("")]

    def open(self, node: Hashable, *, blocking: bool = False) -> Connection:
        host: Host = node  # type: ignore[assignment]
        return self._connection(self._address.plain, blocking, host)

    def forget(self) -> None:
        self._master = None

    def _ask(self) -> Host:
        from redis.sentinel import Sentinel

        asked = Sentinel(
            self._address.hosts, sentinel_kwargs={"socket_timeout": self.timeout_s, "protocol": 2}
        )
        try:
            host, port = asked.discover_master(self._address.service)
        finally:
            for sentinel in asked.sentinels:
                sentinel.close()
        return str(host), int(port)


class Cluster(_Opening):
    """A Cluster's nodes by slot, as CLUSTER SLOTS gives them; asked again after every `forget`."""

    def __init__(self, settings: ServerSettings, address: Address) -> None:
        super().__init__(settings)
        self._address = address
        self._slots: list[tuple[int, int, Host]] = []
        self._known: list[Host] = list(address.hosts)

    def locate(self, key: str) -> Hashable:
        if not self._slots:
            self._slots = self._ask()
        if not key:
            return random.choice(self._slots)[2]
        from redis.crc import key_slot
        from redis.exceptions import ClusterDownError

        slot = key_slot(key.encode())
        for first, last, host in self._slots:
            if first <= slot <= last:
                return host
        self.forget()
        raise ClusterDownError(f"no node serves slot {slot}")

    def nodes(self) -> list[Hashable]:
        return list(dict.fromkeys(host for _, _, host in self._ask()))

    def open(self, node: Hashable, *, blocking: bool = False) -> Connection:
        host: Host = node  # type: ignore[assignment]
        return self._connection(self._address.plain, blocking, host)

    def forget(self) -> None:
        self._slots = []

    def _ask(self) -> list[tuple[int, int, Host]]:
        from redis.exceptions import ConnectionError, RedisError

        last: Exception | None = None
        for host in dict.fromkeys([*self._known, *self._address.hosts]):
            connection = self.open(host)
            try:
                connection.send_command("CLUSTER", "SLOTS")
                slots = [_stretch(row, host) for row in connection.read_response()]
            except RedisError as error:
                last = error
                continue
            finally:
                connection.disconnect()
            if slots:
                self._known = list({node for _, _, node in slots})
                return slots
        raise ConnectionError(f"no node of the cluster told its slots: {last}")


def _stretch(row: Any, asked: Host) -> tuple[int, int, Host]:
    first, last, (name, port, *_) = row[:3]
    # An empty name means: the host you asked.
    return int(first), int(last), (name.decode() if name else asked[0], int(port))
