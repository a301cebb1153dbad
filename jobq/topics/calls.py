"""A topic's name bound to a client: calls its scripts by name, with the keys they bind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jobq.client.names import is_name
from jobq.client.numbered_calls import Caller, Callers
from jobq.client.scripts import Script, load
from jobq.errors import LeaseLostError
from jobq.topics import keys

if TYPE_CHECKING:
    from jobq.client.connection import Client, Exchange

Argument = str | bytes | int
_registered: set[tuple[int, str, str, str]] = set()


class TopicCalls:
    """What a topic and its groups share: keys, scripts, callers. Threads may share it."""

    def __init__(self, name: str, client: Client | None = None) -> None:
        if client is None:
            from jobq.client.connection import default_client

            client = default_client()
        self.name = name
        self.client = client
        self.prefix = keys.base(client.namespace, name)
        self.log_key = keys.key(self.prefix, "log")
        self.callers = Callers()
        self._bound: dict[tuple[str, str], tuple[Script, list[str]]] = {}

    def key(self, name: str, group: str = "") -> str:
        """One key of the topic."""
        return keys.key(self.prefix, name, group)

    def run(self, name: str, *args: Argument, group: str = "") -> Any:
        """Run a script that is harmless to repeat."""
        script, names = self._bound.get((name, group)) or self._bind(name, group)
        return self.client.run(script, names, args)

    def call(
        self,
        name: str,
        caller: Caller,
        *args: Argument,
        group: str = "",
        by: Exchange | None = None,
    ) -> Any:
        """Run a script as the next numbered call of `caller`; a repeated one is answered, not run again."""
        script, names = self._bound.get((name, group)) or self._bind(name, group)
        reply = self.client.run(
            script,
            [*names, f"{self.prefix}call:{caller.id}"],
            [caller.id, caller.next(), *args],
            by,
        )
        if reply[0] == b"closed":
            raise LeaseLostError(
                f"topic {self.name!r} refused a call of {caller.id}: it is an older one"
            )
        return reply

    def once(self, name: str, *args: Argument, by: Exchange | None = None) -> Any:
        """`call` by a spare caller, kept out of use when the outcome is unknown."""
        caller = self.callers.take()
        reply = self.call(name, caller, *args, by=by)
        self.callers.give_back(caller)
        return reply

    def register(self) -> None:
        """Make the topic known to those who list topics: once per process."""
        known = (os.getpid(), self.client.url, self.client.namespace, self.name)
        if known not in _registered:
            self.client.command("SADD", keys.topic_names(self.client.namespace), self.name)
            _registered.add(known)

    def forget(self) -> None:
        """Register with the next append again: the name went when the topic was deleted, here or elsewhere."""
        _registered.discard((os.getpid(), self.client.url, self.client.namespace, self.name))

    def _bind(self, name: str, group: str) -> tuple[Script, list[str]]:
        script = load("topic", name)
        names = [
            keys.key(self.prefix, key, group)
            for key in script.keys
            # Each call has its own, the last.
            if key != "last_call"
        ]
        bound = self._bound[name, group] = (script, names)
        return bound


def topic_names(client: Client) -> list[str]:
    """The names of all topics ever used here, sorted. What can't be a topic's name is left out."""
    return sorted(name.decode() for name in _listed(client) if is_name("topic", name))


def strange_topic_names(client: Client) -> list[bytes]:
    """What somebody put among the names of topics and can't be one, sorted."""
    return sorted(name for name in _listed(client) if not is_name("topic", name))


def forget_topic(client: Client, name: str | bytes) -> None:
    """List `name` no longer; its keys stay."""
    client.command("SREM", keys.topic_names(client.namespace), name)


def _listed(client: Client) -> list[bytes]:
    return list(client.command("SMEMBERS", keys.topic_names(client.namespace)))
