"""Take jobs off a Ruby list so that none is lost and none is taken twice, whichever process crashes in between.

A claim moves jobs from the list into a separate list, in one step and in one slot. Their messages are enqueued
as one numbered call whose caller is the claim's id, so repeating it changes nothing. Then the
claim is settled. A claim that isn't settled within its lease is taken over and delivered again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller, Values
from jobq.protocols.kit.scripts import bound
from jobq.protocols.ruby.key_names import RubyQueueName, beside
from jobq.queue.queue import EnqueueOptions, Queue

LEASE_S = 15.0
LIMIT = 100
#: No further job after so much: what is made of a claim travels in one call.
BYTES = 1024 * 1024
_PLAIN: EnqueueOptions = {}
_ORDERED: EnqueueOptions = {"ordered": True}
_CLAIM_ID = re.compile(rb"[\w-]{1,64}")
_LATEST_MS = 253_402_300_799_999


class Claim(NamedTuple):
    """Jobs off one list, oldest first. `claim_id` is the id of the caller that enqueues them."""

    claim_id: str
    jobs: list[bytes]


class OpenClaim(NamedTuple):
    """A claim that isn't settled yet."""

    claim_id: str
    lease_at: int
    njobs: int


class Claims:
    """The claims on one Ruby list; `client` is of the server that holds it."""

    def __init__(self, client: Client, ruby_queue: RubyQueueName, lease_s: float = LEASE_S) -> None:
        self.client, self.ruby_queue, self._lease_ms = client, ruby_queue, round(lease_s * 1000)
        self._claims = self._beside("claims")
        self._caller = Caller()
        self._last_call = self._beside(f"call:{self._caller.id}")

    def take(self, limit: int = LIMIT) -> Claim:
        """Claim up to `limit` jobs of the list, of some MiB together; the claim may be empty."""
        claim_id = secrets.token_urlsafe(12)
        values: Values = {
            "now": "", "claim": claim_id, "number": self._caller.next(), "lease_ms": self._lease_ms,
            "limit": limit, "bytes": BYTES, "side": self.ruby_queue.oldest,
        }  # fmt: skip
        return Claim(claim_id, self._run("claim", values, claim_id))

    def rescue(self) -> Claim | None:
        """Take over a claim whose holder hasn't settled it in time."""
        reply = self._run("rescue", {"now": "", "lease_ms": self._lease_ms})
        if reply is None:
            return None
        claim_id = reply.decode()
        return Claim(claim_id, self.client.command("LRANGE", self._taken(claim_id), 0, -1))

    def deliver(
        self,
        claim: Claim,
        contents: Sequence[tuple[str, bytes] | tuple[str, bytes, str]],
        queue: Queue,
        when_taken: Callable[[int], None],
        ordered: Collection[int] = (),
    ) -> None:
        """Enqueue what was made of a claim's jobs, once, and settle the claim.

        contents: mid and content, and the key if there is one. No live message is replaced: when_taken(index) handles
        the content whose mid is in use already. ordered: indexes of contents with ordered keys, which go in a separate
        call.
        """
        others = [index for index in range(len(contents)) if index not in ordered]
        for chosen, options, end in ((others, _PLAIN, ""), (sorted(ordered), _ORDERED, ".ordered")):
            caller = Caller()
            caller.id = claim.claim_id + end
            rows = [contents[index] for index in chosen]
            done = queue.enqueue_at_once(rows, caller, **options) if rows else []
            for index, one in zip(chosen, done, strict=True):
                if one.action == "exists":
                    when_taken(index)
        self.settle(claim.claim_id)

    def settle(self, claim_id: str) -> None:
        """Forget a claim and the jobs it held."""
        self._run("settle", {"claim": claim_id}, claim_id)

    def waiting(self) -> list[OpenClaim]:
        """Claims that aren't settled, the oldest first. Members that no intake wrote are left out."""
        reply = self.client.command("ZRANGE", self._claims, 0, -1, "WITHSCORES")
        found = []
        for item, at in zip(reply[::2], reply[1::2], strict=True):
            if _CLAIM_ID.fullmatch(item):
                claim_id = item.decode()
                njobs = self.client.command("LLEN", self._taken(claim_id))
                found.append(OpenClaim(claim_id, int(max(0.0, min(float(at), _LATEST_MS))), njobs))
        return found

    def give_back(self, claim_id: str) -> int:
        """Put a claim's jobs back where they came from, the first in line; how many. Only without its holder."""
        values = {"claim": claim_id, "side": self.ruby_queue.oldest}
        return int(self._run("return", values, claim_id))

    def _run(self, script: str, values: Values, claim_id: str = "") -> Any:
        keys = {
            "source": self.ruby_queue.list_key,
            "claims": self._claims,
            "taken": self._taken(claim_id),
            "last_call": self._last_call,
        }
        return self.client.run(*bound("ruby", script, keys.__getitem__, values))

    def _taken(self, claim_id: str) -> str:
        return self._beside(f"taken:{claim_id}")

    def _beside(self, name: str) -> str:
        return beside(self.ruby_queue.list_key, self.client.namespace, name)
