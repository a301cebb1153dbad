"""The state of this process that belongs to no single client."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from jobq.config import ServerSettings
from jobq.errors import ConfigError


class Runtime:
    """Process-wide state. Tests `renew` it.

    start_server: returns the URL of a server for settings without one; the package jobq sets it. flows_of: returns what
    a worker calls for the flows of a client (see `worker.flow_drains`); the package jobq sets it, too.
    clients: every client, so that a forked child can close the sockets of its parent. default: the client that
    everything without a client of its own uses. may_buffer: False in workers, which keep no messages in memory.
    listed: until when (time.monotonic) the queues count as listed that this process enqueues to.
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
        #: What all clients know about the nodes of a deployment, by its URL.
        self.deployments: dict[str, Any] = {}
        #: The topics that this process added to the list of topics.
        self.listed_topics: set[tuple[int, str, str, str]] = set()
        self.listed: dict[tuple[int, str, str, str], float] = {}
        #: Client -> until when (time.monotonic) these names count as the queues in use, of a list that is too long.
        self.used_queues: weakref.WeakKeyDictionary[Any, tuple[float, list[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def renew(self) -> None:
        """Forget everything, as a new process; keep what the package jobq sets."""
        kept = {"start_server": self.start_server, "flows_of": self.flows_of}
        vars(self).update(vars(Runtime()) | kept)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self.lock = threading.Lock()
        for client in list(self.clients):
            client.abandon()


def _no_server(settings: ServerSettings) -> str:
    raise ConfigError("no JOBQ_URL or REDIS_URL is set; set JOBQ_URL=redis://…")


def _no_flows(client: object) -> Any:
    raise ConfigError(
        "a message of a flow needs jobq.flows, which is not here; install all of jobq"
    )


runtime = Runtime()
