"""A limit's name bound to a client: its scripts by name, for threads and for asyncio."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from jobq.client.connection import Client, default_client
from jobq.client.facade import AsyncFacade, BlockingFacade
from jobq.client.numbered_calls import BoundScripts, Callers, CallState, Values
from jobq.client.scripts import Argument
from jobq.client.steps import Request, Steps
from jobq.jobs.admission import Admitted
from jobq.jobs.context import Call
from jobq.jobs.queues import ClientLike
from jobq.limits import keys

#: How often a process says which limits it uses.
LISTED_S = 600.0


class LimitCalls(BlockingFacade):
    """What the calls of one limit share. Threads may share it. said: how the program declares it."""

    def __init__(self, name: str, said: str, client: Client) -> None:
        self.name, self.said, self.client = name, said, client
        prefix = keys.base(client.namespace, name)
        self.scripts = BoundScripts(
            client, "limit", prefix, lambda key: prefix + key, f"limit {name!r}"
        )
        self.aio = AsyncFacade(self)
        self._callers = Callers()
        self._listed: tuple[int, float] = (0, 0.0)

    def run_steps(
        self, name: str, values: Values, rest: Sequence[Argument] = ()
    ) -> Steps[list[Any]]:
        """Run a script that is harmless to repeat."""
        script = self.scripts[name]
        reply: list[Any] = yield Request(script.keys[0], script.state(values, rest))
        return reply

    def once_steps(self, name: str, values: Values) -> Steps[list[Any]]:
        """Run a script as a numbered call: sent twice, it counts once."""
        script, caller = self.scripts[name], self._callers.take()
        request = Request(script.keys[0], script.numbered(caller, values))
        reply: list[Any] = script.served(caller, (yield request))
        # A caller whose call has an unknown outcome stays out of use.
        self._callers.give_back(caller)
        return reply

    def list_steps(self) -> Steps[None]:
        """Add the limit to the list of limits, every ten minutes of a process."""
        pid, until = self._listed
        if pid == os.getpid() and time.monotonic() < until:
            return
        words = (
            "HSET", keys.limit_names(self.client.namespace), self.name, f"{self.said} {time.time():.0f}",
        )  # fmt: skip
        yield Request(words[1], CallState(self.client, words))
        self._listed = (os.getpid(), time.monotonic() + LISTED_S)


class OnServer:
    """Something with a name that limits. client: None is the default client, when it is used."""

    def __init__(self, name: str, client: ClientLike | None) -> None:
        self.name = name
        self._client: Any = client
        self._bound: LimitCalls | None = None

    #: Those of a lower rank are asked first: slots before rates.
    rank = 1

    def admit(self, call: Call, worker: str) -> Admitted:
        """For a job that is about to start."""
        raise NotImplementedError

    async def aadmit(self, call: Call, worker: str) -> Admitted:
        """As admit."""
        raise NotImplementedError

    @property
    def said(self) -> str:
        """How the program declares it, in one word."""
        raise NotImplementedError

    @property
    def calls(self) -> LimitCalls:
        """Its calls on the client that it uses now."""
        client: Client = self._client or default_client()
        bound = self._bound
        if bound is None or bound.client is not client:
            bound = self._bound = LimitCalls(self.name, self.said, client)
        return bound

    def hold_steps(self, seconds: float) -> Steps[float]:
        """Allow nothing for a time; the seconds until the end of the longest hold."""
        values: Values = {"now": "", "hold_ms": round(seconds * 1000)}
        reply = yield from self.calls.run_steps("hold", values)
        return float(reply[1]) / 1000
