"""The state of this process that belongs to no single client."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from jobq.config import ServerSettings
from jobq.errors import ConfigError


class Runtime:
    """Holds process-wide state. Tests `renew` it.

    Attributes:
        start_server: Returns the URL of a server, for settings without a URL. The package jobq sets it.
        flows_of: Returns the worker's hook for the flows of a client (see `worker.flow_drains`); the package jobq sets
            it.
        clients: Every client, so that a forked child can close the sockets of its parent.
        default: The default client.
        may_buffer: False in workers, which don't keep messages in memory.
        listed: Deadline (time.monotonic) until which the queues of this process count as listed.
    """

    def __init__(self) -> None:
        self.start_server: Callable[[ServerSettings], str] = _no_server
        self.flows_of: Callable[[Any], Any] = _no_flows
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self.default: Any = None
        self.lock = threading.Lock()
        self.may_buffer = True
        #: Connections whose server answers after fsync (True), or whose WAITAOF can be believed (False).
        self.after_fsync: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        #: By run id of the server: whether its WAITAOF can be believed. A restart is asked again.
        self.honest_servers: dict[str, bool] = {}
        #: The outage buffers, so that the process empties them when it ends.
        self.buffers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Announces the start of the embedded server; None: a warning does, once.
        self.announce: Callable[[str], object] | None = None
        self.warned_of_embedded = False
        #: Known facts about the nodes of a deployment, by its URL. All clients share them.
        self.deployments: dict[str, Any] = {}
        #: The topics that this process added to the list of topics.
        self.listed_topics: set[tuple[int, str, str, str]] = set()
        self.listed: dict[tuple[int, str, str, str], float] = {}
        #: Client -> deadline (time.monotonic) until which these names count as the queues in use, for a list that is
        #: too long.
        self.used_queues: weakref.WeakKeyDictionary[Any, tuple[float, list[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def renew(self) -> None:
        """Reset to the state of a new process; keep the hooks that the package jobq sets."""
        kept = {"start_server": self.start_server, "flows_of": self.flows_of}
        vars(self).update(vars(Runtime()) | kept)

    def forked(self) -> None:
        """Replace the lock in a forked child, since another thread of the parent may have held it."""
        self.lock = threading.Lock()
        for client in list(self.clients):
            client.abandon()


def _no_server(settings: ServerSettings) -> str:
    raise ConfigError("no JOBQ_URL or REDIS_URL is set; set JOBQ_URL=redis://…")


def _no_flows(client: object) -> Any:
    raise ConfigError("messages of flows need jobq.flows, which is missing; reinstall jobq")


runtime = Runtime()
