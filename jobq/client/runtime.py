"""The state of this process that all clients share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from jobq.config import ServerSettings
from jobq.errors import ConfigError


class Runtime:
    """The process-wide state. Tests reset it with `renew`.

    Attributes:
        start_server: Starts a server for settings without a URL, and returns the server's URL. `jobq/__init__.py` sets
            this function.
        flows_of: Returns the worker's hook for a client's flows; see `worker.flow_drains`. `jobq/__init__.py` sets this
            function.
        clients: All clients, so that a forked child can close its parent's connections.
        default: The default client.
        may_buffer: Whether clients may have an outage buffer. It is False in workers.
        listed: For each queue, the time (time.monotonic) when this process next adds it to the list of queues.
    """

    def __init__(self) -> None:
        self.start_server: Callable[[ServerSettings], str] = _no_server
        self.flows_of: Callable[[Any], Any] = _no_flows
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self.default: Any = None
        self.lock = threading.Lock()
        self.may_buffer = True
        #: By connection: True if the server answers only after fsync, False if its WAITAOF can be trusted.
        self.after_fsync: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        #: Whether a server's WAITAOF can be trusted, by the server's run id. A restarted server is probed again.
        self.honest_servers: dict[str, bool] = {}
        #: All outage buffers, which the process flushes when it ends.
        self.buffers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Announces the start of the embedded server. If it is None, jobq logs one warning instead.
        self.announce: Callable[[str], object] | None = None
        self.warned_of_embedded = False
        #: Known facts about nodes, which all clients share, by URL of the deployment.
        self.deployments: dict[str, Any] = {}
        #: Topics that this process has added to the list of topics.
        self.listed_topics: set[tuple[int, str, str, str]] = set()
        self.listed: dict[tuple[int, str, str, str], float] = {}
        #: Queues in use, and the expiry of this cache (time.monotonic), by client. Used if the list of queues is too
        #: long.
        self.used_queues: weakref.WeakKeyDictionary[Any, tuple[float, list[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def renew(self) -> None:
        """Reset the state as in a new process, but keep `start_server` and `flows_of`."""
        kept = {"start_server": self.start_server, "flows_of": self.flows_of}
        vars(self).update(vars(Runtime()) | kept)

    def forked(self) -> None:
        """Prepare the state for a forked child.

        Replace the lock, which another thread of the parent may have held, and close the parent's connections.
        """
        self.lock = threading.Lock()
        for client in list(self.clients):
            client.abandon()


def _no_server(settings: ServerSettings) -> str:
    raise ConfigError("no JOBQ_URL or REDIS_URL is set; set JOBQ_URL=redis://…")


def _no_flows(client: object) -> Any:
    raise ConfigError("messages of flows need jobq.flows, which is missing; reinstall jobq")


runtime = Runtime()
