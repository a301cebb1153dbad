"""Claims jobs from a Ruby list. Each job is claimed exactly once, even if a process crashes.

A claim moves jobs from the Ruby list into a separate list, in one step and in one slot. The worker enqueues the claimed
jobs in one call, and then deletes the claim. The claim's id identifies the call, so a repeated call doesn't enqueue
jobs twice. If a claim still exists when its lease ends, another worker takes over the claim and repeats the call.

If a key has too many waiting messages, the queue rejects the call. Then the worker enqueues each job alone. The claim
marks the enqueued jobs, and keeps the other jobs.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from jobq.client.bound_scripts import bound
from jobq.client.clock import Reminder
from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller, Values
from jobq.client.pipelining import Read, commands
from jobq.errors import ConfigError, KeyFullError
from jobq.protocols.ruby.key_names import RubyQueueName, beside
from jobq.queue.queue import EnqueueOptions, Queue
from jobq.queue.routing import PartlyAcceptedError

logger = logging.getLogger("jobq")
LEASE_S = 15.0
LIMIT = 100
#: Approximate maximum size of a claim, because all its messages are sent in one call.
BYTES = 1024 * 1024
#: Temporary errors that reject the calls of some keys.
_REFUSED = (KeyFullError, ConfigError)
_CLAIM_ID = re.compile(rb"[\w-]{1,64}")
_LATEST_MS = 253_402_300_799_999


class Claim(NamedTuple):
    """Jobs claimed from one list, oldest first. `claim_id` is the id of the caller that enqueues them.

    After a job is enqueued, the claim's id replaces the job in the list `jobs`.
    """

    claim_id: str
    jobs: list[bytes]

    @property
    def delivered(self) -> bytes:
        """The marker that replaces a job in the claim once the job is enqueued."""
        return self.claim_id.encode()


class ClaimedMessage(NamedTuple):
    """The message for one job of a claim.

    Attributes:
        key: The message's key; '' without a key.
    """

    place: int
    mid: str
    content: bytes
    key: str = ""
    ordered: bool = False


class OpenClaim(NamedTuple):
    """A claim that isn't deleted yet."""

    claim_id: str
    lease_at: int
    njobs: int


class Claims:
    """The claims on one Ruby list. `client` connects to the server that has the list."""

    def __init__(self, client: Client, ruby_queue: RubyQueueName, lease_s: float = LEASE_S) -> None:
        self.client, self.ruby_queue, self._lease_ms = client, ruby_queue, round(lease_s * 1000)
        self._claims = self._beside("claims")
        self._reminder = Reminder()
        self._caller = Caller()
        self._last_call = self._beside(f"call:{self._caller.id}")

    def take(self, limit: int = LIMIT) -> Claim:
        """Claim up to `limit` jobs, but no more than about 1 MiB in total. The claim may be empty."""
        claim_id = secrets.token_urlsafe(12)
        values: Values = {
            "now": "", "claim": claim_id, "number": self._caller.next(), "lease_ms": self._lease_ms,
            "limit": limit, "bytes": BYTES, "side": self.ruby_queue.oldest,
        }  # fmt: skip
        return Claim(claim_id, self._run("claim", values, claim_id))

    def rescue(self) -> Claim | None:
        """Take over a claim whose lease has expired; return None if no claim has expired."""
        reply = self._run("rescue", {"now": "", "lease_ms": self._lease_ms})
        if reply is None:
            return None
        claim_id = reply.decode()
        return Claim(claim_id, self.client.command("LRANGE", self._taken(claim_id), 0, -1))

    def reread(self, claim_id: str) -> Claim:
        """Renew a claim's lease and return the claim, without jobs if another worker has deleted it."""
        until = self.client.clock_ms(self._claims) + self._lease_ms
        self.client.command("ZADD", self._claims, "XX", until, claim_id)
        return Claim(claim_id, self.client.command("LRANGE", self._taken(claim_id), 0, -1))

    def deliver(
        self,
        claim: Claim,
        messages: Sequence[ClaimedMessage],
        queue: Queue,
        when_taken: Callable[[ClaimedMessage], None],
        stopped: set[str] | None = None,
    ) -> list[ClaimedMessage]:
        """Enqueue the messages of a claim's jobs once. Return the messages that the queue can't accept yet.

        If the queue accepts all messages, delete the claim. Existing messages are never replaced.

        Args:
            when_taken: Handles a message whose mid is already in use.
            stopped: Keys of messages waiting in claims; this call adds the keys of rejected messages.
        """
        stopped = set() if stopped is None else stopped
        left: list[ClaimedMessage] = []
        alone = partial(self._alone, claim, queue, when_taken, stopped)
        for ordered in (False, True):
            some = [message for message in messages if message.ordered == ordered]
            unsent, full = self._together(claim, some, queue, when_taken, stopped)
            if unsent:
                places = {message.place for message in (*unsent, *full)}
                self._mark(claim, [each.place for each in some if each.place not in places])
            left += [*full, *(message for message in unsent if not alone(message))]
        if left:
            kept = {message.place for message in left}
            self._mark(claim, [place for place in range(len(claim.jobs)) if place not in kept])
        else:
            self.settle(claim.claim_id)
        return left

    def _together(
        self,
        claim: Claim,
        messages: Sequence[ClaimedMessage],
        queue: Queue,
        when_taken: Callable[[ClaimedMessage], None],
        stopped: set[str],
    ) -> tuple[Sequence[ClaimedMessage], list[ClaimedMessage]]:
        """Enqueue a claim's messages in one call. The messages are either all ordered or all unordered.

        Return two lists: messages to enqueue one by one, and messages with duplicate mids that the queue can't accept
        yet.
        """
        if not messages or claim.delivered in claim.jobs or not stopped.isdisjoint(
            message.key for message in messages
        ):  # fmt: skip
            return messages, []
        ordered = messages[0].ordered
        caller = Caller(caller_id=claim.claim_id + ".ordered" * ordered)
        rows = [
            (message.mid, message.content, message.key)
            if message.key
            else (message.mid, message.content)
            for message in messages
        ]
        unsent: Sequence[ClaimedMessage] = ()
        try:
            done = queue.enqueue_in_one_call(rows, caller, ordered=ordered)
        except _REFUSED:
            return messages, []
        except PartlyAcceptedError as error:
            if not isinstance(error.refusal, _REFUSED):
                raise
            unsent = [message for message in messages if message.mid in error.mids]
            done = error.accepted
        full = []
        by_mid = {message.mid: message for message in messages}
        for reply in done:
            if reply.action == "exists":
                try:
                    when_taken(by_mid[reply.mid])
                except _REFUSED:
                    full.append(by_mid[reply.mid])
        return unsent, full

    def _alone(
        self,
        claim: Claim,
        queue: Queue,
        when_taken: Callable[[ClaimedMessage], None],
        stopped: set[str],
        message: ClaimedMessage,
    ) -> bool:
        """Enqueue one message unless earlier messages with its key wait; return whether the queue accepted it."""
        if message.key in stopped:
            return False
        caller = Caller(caller_id=f"{claim.claim_id}.{message.place}.alone")
        options: EnqueueOptions = {}
        if message.key:
            options = {"key": message.key, "ordered": message.ordered}
        try:
            reply = queue.enqueue(message.content, mid=message.mid, caller=caller, **options)
            if reply.action == "exists":
                when_taken(message)
        except _REFUSED as error:
            if self._reminder.is_due(message.key):
                logger.warning(
                    "%s: jobs with key %r are waiting in claims: %s",
                    self.ruby_queue,
                    message.key,
                    error,
                )
            stopped.add(message.key)
            return False
        return True

    def _mark(self, claim: Claim, places: Sequence[int]) -> None:
        """Mark the jobs at these places in the claim as enqueued."""
        taken = self._taken(claim.claim_id)
        marks = [
            ("LSET", taken, place, claim.delivered)
            for place in places
            if claim.jobs[place] != claim.delivered
        ]
        if marks:
            # If another intake has settled the claim, its list is gone.
            commands(self.client, taken, marks, keep_errors=True)
        elif claim.delivered not in claim.jobs:
            self.client.command("RPUSHX", taken, claim.delivered)

    def settle(self, claim_id: str) -> None:
        """Delete a claim and its jobs."""
        self._run("settle", {"claim": claim_id}, claim_id)

    def waiting(self) -> list[OpenClaim]:
        """Return unsettled claims, oldest first."""
        claims = []
        for claim_id, lease_at in self.read_listed(self.client.command(*self.listed_call(0).words)):
            taken = self._taken(claim_id)
            njobs = self.client.command("LLEN", taken)
            njobs -= len(self.client.command("LPOS", taken, claim_id, "COUNT", 0))
            claims.append(OpenClaim(claim_id, lease_at, njobs))
        return claims

    def listed_call(self, most: int) -> Read:
        """Return a command that reads the first `most` claims; 0 means all claims. `read_listed` parses the reply."""
        return Read(self._claims, ("ZRANGE", self._claims, 0, most - 1, "WITHSCORES"))

    def read_listed(self, reply: Sequence[bytes]) -> list[tuple[str, int]]:
        """Parse the ids of claims and the ends of their leases. Other members of the set are skipped."""
        return [
            (item.decode(), int(max(0.0, min(float(at), _LATEST_MS))))
            for item, at in zip(reply[::2], reply[1::2], strict=True)
            if _CLAIM_ID.fullmatch(item)
        ]

    def taken_call(self, claim_id: str, most: int) -> Read:
        """Return a command that reads up to `most` jobs of a claim."""
        return Read(self._claims, ("LRANGE", self._taken(claim_id), 0, most - 1))

    def give_back(self, claim_id: str) -> int:
        """Put a claim's jobs back at the front of their Ruby list; return their number."""
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
