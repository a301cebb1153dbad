"""The scripts of a limit, bound to its name and a client, for threads and for asyncio."""

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

#: A process adds the limits that it uses to the list of limits at this interval.
LISTED_S = 600.0


class LimitCalls(BlockingFacade):
    """The scripts of one limit, and the state that their calls share. Threads may share this object.

    Args:
        name: The name of the limit.
        declaration: The limit as the program declares it, such as `100/m`.
        client: Sends the calls.
    """

    def __init__(self, name: str, declaration: str, client: Client) -> None:
        self.name, self.declaration, self.client = name, declaration, client
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
        """Run a script that can be repeated safely."""
        script = self.scripts[name]
        reply: list[Any] = yield Request(script.keys[0], script.state(values, rest))
        return reply

    def once_steps(self, name: str, values: Values) -> Steps[list[Any]]:
        """Run a script as a numbered call, which takes effect only once even if it is sent twice."""
        script, caller = self.scripts[name], self._callers.take()
        request = Request(script.keys[0], script.numbered(caller, values))
        reply: list[Any] = script.served(caller, (yield request))
        # Not reached if the call's outcome is unknown, so that its caller isn't used again.
        self._callers.give_back(caller)
        return reply

    def list_steps(self) -> Steps[None]:
        """Add the limit to the list of limits, at most every ten minutes per process."""
        pid, until = self._listed
        if pid == os.getpid() and time.monotonic() < until:
            return
        words = (
            "HSET", keys.limit_names(self.client.namespace), self.name, f"{self.declaration} {time.time():.0f}",
        )  # fmt: skip
        yield Request(words[1], CallState(self.client, words))
        self._listed = (os.getpid(), time.monotonic() + LISTED_S)


class SharedLimit:
    """Base class of all limits.

    Args:
        name: The name of the limit.
        client: The client for calls; None for the default client at the time of each call.
    """

    def __init__(self, name: str, client: ClientLike | None) -> None:
        self.name = name
        self._client: Any = client
        self._bound: LimitCalls | None = None

    #: A job acquires limits with a lower rank first: slots before rates.
    rank = 1

    def admit(self, call: Call, worker: str) -> Admitted:
        """Request permission to start a job."""
        raise NotImplementedError

    async def aadmit(self, call: Call, worker: str) -> Admitted:
        """Request permission without blocking the event loop; see `admit`."""
        raise NotImplementedError

    @property
    def declaration(self) -> str:
        """The limit as the program declares it, in one word: `100/m` or `50`."""
        raise NotImplementedError

    @property
    def calls(self) -> LimitCalls:
        """The limit's scripts, bound to its current client."""
        client: Client = self._client or default_client()
        bound = self._bound
        if bound is None or bound.client is not client:
            bound = self._bound = LimitCalls(self.name, self.declaration, client)
        return bound

    def hold_steps(self, seconds: float) -> Steps[float]:
        """Reject all starts for `seconds`; return the seconds until the longest current hold ends."""
        values: Values = {"now": "", "hold_ms": round(seconds * 1000)}
        reply = yield from self.calls.run_steps("hold", values)
        return float(reply[1]) / 1000
