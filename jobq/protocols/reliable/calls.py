"""Calls of the scripts in lua/reliable for one client, each safe to repeat.

Calls that change a queue are numbered: if a reply was lost, the client repeats the call and the script returns its
earlier answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobq.client.connection import Client, default_client
from jobq.client.facade import BlockingFacade, stepwise
from jobq.client.numbered_calls import Callers, CallState, error_code
from jobq.client.scripts import load
from jobq.client.steps import Request, Steps
from jobq.errors import ConfigError, EmptyKeyError, ScriptError
from jobq.protocols.reliable import keys

Argument = str | bytes | int
#: Code of the scripts' error for a queue that doesn't exist.
EMPTY_KEY = "EMPTYKEY"


class ReliableCalls(BlockingFacade):
    """The scripts of one namespace on one client. Several threads may share an instance.

    Methods whose names end in `_steps` return steps; see `client.steps`.
    """

    def __init__(self, client: Client | None, ns: str) -> None:
        self.client = default_client() if client is None else client
        self.ns = keys.checked_space(ns)
        self._callers = Callers()

    def places(self, names: Sequence[str]) -> list[str]:
        """Return the keys of these queues; raise ConfigError if they are in different slots of a Redis Cluster."""
        if self.client.is_cluster and len(names) > 1:
            keys.of_one_slot(names)
        return [place for name in names for place in keys.places(self.ns, name)]

    def tickets(self, names: Sequence[str]) -> list[str]:
        """Return the keys on which a blocking pop waits."""
        return [f"{keys.prefix(self.ns, name)}tickets" for name in names]

    def name_of(self, tickets: bytes) -> str:
        """Return the name of the queue to which the key `tickets` belongs."""
        name = tickets.decode().removeprefix(f"{self.ns}:").removesuffix(":tickets")
        bare = name[1:-1]
        return bare if name == f"{{{bare}}}" else name

    def change_steps(
        self,
        verb: str,
        names: Sequence[str],
        *args: Argument,
        now: int | None = None,
        whole: bool = False,
    ) -> Steps[Any]:
        """Run a script that changes the queues. Its call is safe to repeat. For `whole`, see Request."""
        places = self.places(names)
        caller = self._callers.take()
        places.append(f"{keys.prefix(self.ns, names[0])}call:{caller.id}")
        words = (caller.next(), "" if now is None else now, *args)
        reply = yield from self._run(verb, places, words, whole)
        # Not reached after an error: that call may still arrive, so its caller isn't used again.
        self._callers.give_back(caller)
        return reply

    def ask_steps(self, verb: str, names: Sequence[str], *args: Argument) -> Steps[Any]:
        """Run a script that can be repeated safely."""
        return self._run(verb, self.places(names), args, False)

    change = stepwise(change_steps)
    ask = stepwise(ask_steps)

    def _run(
        self, verb: str, places: list[str], args: tuple[Argument, ...], whole: bool
    ) -> Steps[Any]:
        script, client = load("reliable", verb), self.client
        state = CallState(client, client.words(script, places, args), script)
        try:
            reply = yield Request(places[0], state, whole)
        except ScriptError as error:
            if error_code(error.__cause__) == EMPTY_KEY:
                raise EmptyKeyError from error
            raise
        return reply


def at_least(name: str, value: int, least: int) -> int:
    """Return `value`; raise ConfigError unless it is a whole number of at least this size."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} is not a whole number of {least} or more")
    return value
