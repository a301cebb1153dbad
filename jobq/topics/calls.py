"""Call a topic's scripts by name, with named arguments and with the keys of the topic."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from jobq.client.connection import Client, default_client
from jobq.client.facade import BlockingFacade, stepwise
from jobq.client.names import is_name
from jobq.client.numbered_calls import BoundScripts, Caller, Callers, CallState, Values
from jobq.client.runtime import runtime
from jobq.client.scripts import Argument
from jobq.client.steps import Request, Steps
from jobq.topics import keys

#: Maximum number of topics that a page or a command reads. Each topic needs at least two round trips.
MAX_TOPICS = 1_000


class TopicCalls(BlockingFacade):
    """The keys, scripts and callers of a topic and its groups. Threads may share this object.

    Methods whose names end in `_steps` are called within other steps; see `client.steps`.
    """

    def __init__(self, name: str, client: Client | None = None) -> None:
        self.name = name
        self.client = client = default_client() if client is None else client
        self.prefix = keys.base(client.namespace, name)
        self.log_key = keys.key(self.prefix, "log")
        self.callers = Callers()
        self._of_group: dict[str, BoundScripts] = {}

    def key(self, name: str, group: str = "") -> str:
        """Return the topic's key for a name in the Lua scripts, such as `log`."""
        return keys.key(self.prefix, name, group)

    def scripts(self, group: str = "") -> BoundScripts:
        """Return the topic's scripts, bound to the keys of the topic and of the group."""
        bound = self._of_group.get(group)
        if bound is None:
            key, what = partial(self.key, group=group), f"topic {self.name!r}"
            bound = BoundScripts(self.client, "topic", self.prefix, key, what)
            self._of_group[group] = bound
        return bound

    def run_steps(
        self, name: str, values: Values, *, group: str = "", whole: bool = False
    ) -> Steps[Any]:
        """Run a script that can safely be repeated.

        Args:
            whole: See `Request`.
        """
        script = self.scripts(group)[name]
        reply = yield Request(script.keys[0], script.state(values), whole)
        return reply

    def call_steps(
        self,
        name: str,
        caller: Caller,
        values: Values,
        rest: Sequence[Argument] = (),
        *,
        group: str = "",
        whole: bool = False,
    ) -> Steps[Any]:
        """Run a script as the next numbered call of `caller`. A repeated call returns the reply to the first call."""
        script = self.scripts(group)[name]
        reply = yield Request(script.keys[0], script.numbered(caller, values, rest), whole)
        return script.served(caller, reply)

    def once_steps(self, name: str, values: Values, rest: Sequence[Argument] = ()) -> Steps[Any]:
        """Run a script with a caller that no other call uses. If the outcome is unknown, drop the caller."""
        caller = self.callers.take()
        reply = yield from self.call_steps(name, caller, values, rest)
        self.callers.give_back(caller)
        return reply

    def command_steps(self, *words: Argument) -> Steps[Any]:
        """Run a plain command on a key, which must be the command's first argument."""
        reply = yield Request(str(words[1]), CallState(self.client, words))
        return reply

    def register_steps(self) -> Steps[None]:
        """Add the topic to the list of topics, once per process."""
        if self._known not in runtime.listed_topics:
            yield from self.command_steps(
                "SADD", keys.topic_names(self.client.namespace), self.name
            )
            runtime.listed_topics.add(self._known)

    run = stepwise(run_steps)
    call = stepwise(call_steps)
    once = stepwise(once_steps)
    register = stepwise(register_steps)

    def forget(self) -> None:
        """Make the next append register the topic again. Call this after the topic was deleted."""
        runtime.listed_topics.discard(self._known)

    @property
    def _known(self) -> tuple[int, str, str, str]:
        return os.getpid(), self.client.url, self.client.namespace, self.name


class ListedTopics(NamedTuple):
    """Topics that a page or a command reads.

    Attributes:
        names: Sorted names of topics.
        strange: Invalid names in the list of topics, sorted.
        left_out: Number of further names, which weren't read.
    """

    names: list[str]
    strange: Sequence[bytes] = ()
    left_out: int = 0


def topic_names(client: Client) -> list[str]:
    """Return the names of all topics, sorted. Invalid names in the list of topics are skipped."""
    return sorted(name.decode() for name in _listed(client) if is_name("topic", name))


def listed_topics(client: Client) -> ListedTopics:
    """Return the first MAX_TOPICS topics by name. The list may be long, because every producer may add names."""
    listed = _listed(client)
    names = sorted(name.decode() for name in listed if is_name("topic", name))
    strange = sorted(name for name in listed if not is_name("topic", name))
    return ListedTopics(names[:MAX_TOPICS], strange, max(0, len(names) - MAX_TOPICS))


def strange_topic_names(client: Client) -> list[bytes]:
    """Return the invalid names in the list of topics, sorted."""
    return sorted(name for name in _listed(client) if not is_name("topic", name))


def forget_topic(client: Client, name: str | bytes) -> None:
    """Remove a name from the list of topics, without deleting the topic's keys."""
    client.command("SREM", keys.topic_names(client.namespace), name)


def _listed(client: Client) -> list[bytes]:
    return list(client.command("SMEMBERS", keys.topic_names(client.namespace)))
