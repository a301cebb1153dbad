"""Find the node that serves a key: the only server, a Sentinel's master, or the owner of a Cluster's slot.

A topology's `locate(key)` returns a node, an opaque hashable value, and `open(node)` returns a connection to it. After
`forget()`, the topology queries the deployment again. All clients of a process share the known nodes of a Sentinel or a
Cluster: when one client finds that a master was replaced, all stop using the old master. Connections come from
redis-py. Its retries are off, because `numbered_calls` decides which calls are safe to repeat.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from redis import __version__ as redis_version
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    RedisError,
)
from redis.retry import Retry

from jobq.client.address import (
    Address,
    Host,
    connection_options,
    parse,
    refuse_outside_tests,
    sentinel_login,
)
from jobq.client.runtime import runtime
from jobq.config import ServerSettings

SILENT_S = 30.0
_DENIED = (AuthenticationError, NoPermissionError)
#: Facts about redis-py that connections report to the server. Without them, redis-py 7 and later would read its version
#: from the installed package's files for each connection.
_DRIVER: dict[str, Any] = {}
try:
    from redis.driver_info import DriverInfo

    _DRIVER["driver_info"] = DriverInfo(lib_version=redis_version)
except ImportError:
    pass


class KnownNodes:
    """Cached facts about the nodes of one deployment, until a client invalidates them. Threads share them.

    Attributes:
        node: The node that serves every key, while it is known.
        slots: The slots of a Cluster with their nodes, while they are known.
        last: The last known slots, kept after `forget`.
        hosts: Nodes of a Cluster to query for the slots.
        silent: Nodes that didn't answer. Until the given time (time.monotonic), each is queried after all other nodes.
    """

    def __init__(self) -> None:
        self.node: Hashable | None = None
        self.slots: list[tuple[int, int, Host]] = []
        self.last: list[tuple[int, int, Host]] = []
        self.hosts: list[Host] = []
        self.silent: dict[Hashable, float] = {}


class Topology(Protocol):
    """The interface through which clients find the nodes of a deployment and connect to them."""

    nodes_known: KnownNodes

    def locate(self, key: str) -> Hashable:
        """Return the node that serves `key`. For '', return any node."""
        ...

    def nodes(self) -> list[Hashable]:
        """Return every node that serves keys."""
        ...

    def known(self, key: str) -> Hashable | None:
        """Return the node that serves `key` if it is known; None if `locate` would query the deployment."""
        ...

    def last_home(self, key: str) -> Hashable | None:
        """Return the last known node for `key` without querying the deployment; None if no node is known."""
        ...

    def open(self, node: Hashable) -> Connection:
        """Return a connection to `node`, not yet connected."""
        ...

    def forget(self, silent: Hashable | None = None) -> None:
        """Forget which nodes serve keys, so that the next `locate` queries the deployment again.

        Args:
            silent: A node that didn't answer.
        """


def topology(settings: ServerSettings) -> Topology:
    """Return the topology for the URL in the settings, or for the embedded server if they have no URL."""
    if settings.url is None:
        return Single(settings, lambda: _embedded(settings))
    address = parse(settings.url)
    connection_options(address.plain)  # raises ConfigError for a wrong option
    if address.kind == "sentinel":
        return Sentinel(settings, address)
    if address.kind == "cluster":
        return Cluster(settings, address)
    return Single(settings, lambda: address.plain)


def _embedded(settings: ServerSettings) -> str:
    refuse_outside_tests(None)
    return runtime.start_server(settings)


class _Opening:
    """Base class of topologies. It opens connections with the timeouts of the settings."""

    def __init__(self, settings: ServerSettings) -> None:
        self.timeout_s = settings.socket_timeout_s
        url = settings.url
        # The facts about a single server aren't shared: its address is always that of its URL.
        if url is None or parse(url).kind == "single":
            self.nodes_known = KnownNodes()
        else:
            self.nodes_known = runtime.deployments.setdefault(url, KnownNodes())

    def open(self, node: Hashable) -> Connection:
        url = self._url(node)
        refuse_outside_tests(url)
        make, options = connection_options(url)
        connection: Connection = make(**self._options(options, node), retry=Retry(NoBackoff(), 0))
        return connection

    def _options(self, options: dict[str, Any], node: Hashable) -> dict[str, Any]:
        usual = {"socket_timeout": self.timeout_s, "socket_connect_timeout": self.timeout_s}
        host = {"host": node[0], "port": node[1]} if isinstance(node, tuple) else {}
        named = {"lib_name", "lib_version"} & options.keys()
        driver = {} if named else _DRIVER
        return {**usual, **driver, **options, **host, "protocol": 2, "decode_responses": False}

    def _url(self, node: Hashable) -> str:
        raise NotImplementedError


class _OneNode(_Opening):
    """Base class of topologies with a single node. The node is looked up at first use and after each `forget`."""

    def _find(self) -> Hashable:
        raise NotImplementedError

    def locate(self, key: str) -> Hashable:
        node = self.nodes_known.node
        if node is None:
            node = self.nodes_known.node = self._find()
        return node

    def nodes(self) -> list[Hashable]:
        return [self.locate("")]

    def known(self, key: str) -> Hashable | None:
        return self.nodes_known.node

    def last_home(self, key: str) -> Hashable | None:
        return ""

    def forget(self, silent: Hashable | None = None) -> None:
        self.nodes_known.node = None


class Single(_OneNode):
    """A deployment with a single server; `url` returns the server's URL."""

    def __init__(self, settings: ServerSettings, url: Callable[[], str]) -> None:
        super().__init__(settings)
        self._server_url = url

    def _find(self) -> str:
        return self._server_url()

    def _url(self, node: Hashable) -> str:
        return str(node)


class Sentinel(_OneNode):
    """A deployment with Sentinels. The first Sentinel that answers and considers the master up determines the node."""

    def __init__(self, settings: ServerSettings, address: Address) -> None:
        super().__init__(settings)
        self._address = address
        self._login = sentinel_login(settings.url or "")
        #: The Sentinels to ask, in this order: the Sentinel that named the master last comes first.
        self._sentinels = list(address.hosts)

    def _url(self, node: Hashable) -> str:
        return self._address.plain

    def _find(self) -> Host:
        failures: dict[Host, Exception] = {}
        for host in self._sentinels:
            try:
                facts = self._asked(host)
            except (RedisError, OSError) as error:
                failures[host] = error
                continue
            flags = facts[b"flags"].split(b",")
            if b"master" in flags and b"s_down" not in flags and b"o_down" not in flags:
                self._sentinels = [host, *(other for other in self._sentinels if other != host)]
                return facts[b"ip"].decode(), int(facts[b"port"])
            failures[host] = ConnectionError(f"its flags are {facts[b'flags'].decode()}")
        told = ", ".join(f"{host}:{port}: {error}" for (host, port), error in failures.items())
        if all(isinstance(error, _DENIED) for error in failures.values()):
            raise AuthenticationError(
                f"every Sentinel answered NOAUTH; set their user and password with the URL's options "
                f"sentinel_username and sentinel_password: {told}"
            )
        raise ConnectionError(f"no Sentinel knows the master of {self._address.service}: {told}")

    def _asked(self, host: Host) -> dict[bytes, bytes]:
        """Return facts about the master, as reported by the Sentinel at `host`."""
        _, options = connection_options("redis://sentinel")
        connection = Connection(
            **self._options({**options, **self._login}, host), retry=Retry(NoBackoff(), 0)
        )
        try:
            connection.send_command("SENTINEL", "MASTER", self._address.service)
            reply = connection.read_response()
        finally:
            connection.disconnect()
        return dict(zip(reply[::2], reply[1::2], strict=True))


class Cluster(_Opening):
    """A Cluster. At first use and after each `forget`, CLUSTER SLOTS shows the node of each slot."""

    def __init__(self, settings: ServerSettings, address: Address) -> None:
        super().__init__(settings)
        self._address = address

    def locate(self, key: str) -> Hashable:
        known = self.nodes_known
        # The slots are kept in a variable, because another thread may forget them during this call.
        slots = known.slots
        if not slots:
            slots = known.slots = known.last = self._ask()
        if not key:
            hosts = [host for _, _, host in slots]
            return random.choice([host for host in hosts if not self._is_silent(host)] or hosts)
        host = _home(key, slots)
        if host is None:
            self.forget()
            raise ClusterDownError(f"no node serves the slot of {key}")
        return host

    def last_home(self, key: str) -> Hashable | None:
        return _home(key, self.nodes_known.slots or self.nodes_known.last)

    def nodes(self) -> list[Hashable]:
        return list(dict.fromkeys(host for _, _, host in self._ask()))

    def known(self, key: str) -> Hashable | None:
        slots = self.nodes_known.slots
        return _home(key, slots) if key and slots else None

    def _url(self, node: Hashable) -> str:
        return self._address.plain

    def forget(self, silent: Hashable | None = None) -> None:
        self.nodes_known.slots = []
        if silent is not None:
            self.nodes_known.silent[silent] = time.monotonic() + SILENT_S

    def _is_silent(self, host: Hashable) -> bool:
        return self.nodes_known.silent.get(host, 0.0) > time.monotonic()

    def _ask(self) -> list[tuple[int, int, Host]]:
        last: Exception | None = None
        known = dict.fromkeys([*self.nodes_known.hosts, *self._address.hosts])
        for host in sorted(known, key=self._is_silent):
            connection = self.open(host)
            try:
                connection.send_command("CLUSTER", "SLOTS")
                slots = [_slot_range(row, host) for row in connection.read_response()]
            except (RedisError, OSError) as error:
                last = error
                self.nodes_known.silent[host] = time.monotonic() + SILENT_S
                continue
            finally:
                connection.disconnect()
            self.nodes_known.silent.pop(host, None)
            if slots:
                self.nodes_known.hosts = list({node for _, _, node in slots})
                return slots
        raise ConnectionError(f"no node of the cluster answered CLUSTER SLOTS: {last}")


def _home(key: str, slots: list[tuple[int, int, Host]]) -> Host | None:
    slot = key_slot(key.encode())
    return next((host for first, last, host in slots if first <= slot <= last), None)


def _slot_range(row: Any, asked: Host) -> tuple[int, int, Host]:
    first, last, (name, port, *_) = row[:3]
    # An empty name means the host that answered.
    return int(first), int(last), (name.decode() if name else asked[0], int(port))
