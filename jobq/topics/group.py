"""A group of readers shares one position in a topic; each reader of the group moves it."""

from __future__ import annotations

from itertools import islice
from typing import Any

from jobq.client.connection import Client
from jobq.client.names import checked_name
from jobq.client.numbered_calls import Values, moment
from jobq.errors import ConfigError, GroupNotFoundError, OutOfRangeError
from jobq.protocols.kit.facade import AsyncFacade, awaited
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import Lag, Position, TopicMessage, position_of
from jobq.topics.ranges import read

POLICIES = ("earliest", "latest", "error")


class TopicGroup:
    """The group `name` of a topic, to inspect and control it. Takes the topic's name, or the topic itself."""

    def __init__(self, topic: str | TopicCalls, name: str, client: Client | None = None) -> None:
        self.topic = topic if isinstance(topic, TopicCalls) else TopicCalls(topic, client)
        self.name = checked_name("group", name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic.name!r}, {self.name!r})"

    def subscribe(
        self,
        start: Position = "earliest",
        *,
        out_of_range: str = "earliest",
        now: int | None = None,
    ) -> bool:
        """Create the group at a position; return False when it exists already, which leaves its position alone.

        start: 'earliest', 'latest', an index or a datetime. out_of_range: where it goes on when retention
        has dropped its next message, or the topic was lost: 'earliest', 'latest', or 'error' (OutOfRangeError).
        """
        _check_policy(out_of_range)
        reply = self._run(
            "subscribe",
            {
                "now": moment(now),
                "name": self.name,
                "out_of_range": out_of_range,
                **position_of(start),
            },
        )
        self._check_place(reply, start)
        return bool(reply[0] == b"made")

    def unsubscribe(self) -> bool:
        """Delete the group; return False when there was none."""
        return bool(self._run("unsubscribe", {"name": self.name})[0])

    def seek(self, place: Position, *, now: int | None = None) -> int:
        """Move the group; return the next index. Readers can no longer commit what they hold."""
        reply = self._run("seek", {"now": moment(now), **position_of(place)})
        self._check(reply)
        self._check_place(reply, place)
        return int(reply[1]) + 1

    def pause(self) -> None:
        """Hand out no messages until resume."""
        self._check(self._run("steer", {"paused": "1", "out_of_range": ""}))

    def resume(self) -> None:
        """End a pause."""
        self._check(self._run("steer", {"paused": "0", "out_of_range": ""}))

    def set_out_of_range(self, policy: str) -> None:
        """Change the policy that subscribe set."""
        self._check(self._run("steer", {"paused": "", "out_of_range": _check_policy(policy)}))

    def peek(self, count: int = 10) -> list[TopicMessage]:
        """Return new messages that the group gets next, without those of ended leases; nothing moves."""
        lag = self.lag()
        return list(islice(read(self.topic, lag.handed_out + 1, None, "earliest"), count))

    def lag(self, *, exact: bool = False, now: int | None = None) -> Lag:
        """Return how far behind the group is, in messages and in time.

        exact: count the messages that are there, by reading them; else where compaction left holes the
        difference of indexes is an upper bound.
        """
        reply = self._run("lag", {"now": moment(now)})
        self._check(reply)
        settled, handed_out, last, first, held, expired, age_ms, paused, policy, skipped = reply[1:]
        behind = max(0, last - max(settled, first - 1))
        if exact and behind:
            behind = sum(1 for _ in read(self.topic, settled + 1, last, "earliest"))
        return Lag(
            settled, handed_out, last, first, behind, age_ms, held, expired, bool(paused), policy.decode(),
            skipped,
        )  # fmt: skip

    def _run(self, script: str, values: Values) -> Any:
        return self.topic.run(script, values, group=self.name)

    def _check(self, reply: Any) -> None:
        if reply[0] == b"missing":
            raise GroupNotFoundError(
                f"topic {self.topic.name!r} has no group {self.name!r}; subscribe makes it"
            )

    def _check_place(self, reply: Any, place: Position) -> None:
        if reply[0] == b"out-of-range":
            first, last = reply[1:]
            raise OutOfRangeError(
                f"{place!r} is outside topic {self.topic.name!r}, which has {first} to {last}; take one of "
                f"these, {last + 1} for what comes next, 'earliest' or 'latest'",
                place if isinstance(place, int) else 0, first, last,
            )  # fmt: skip


class AsyncTopicGroup(AsyncFacade[TopicGroup]):
    """A TopicGroup whose methods are awaited."""

    subscribe = awaited(TopicGroup.subscribe)
    unsubscribe = awaited(TopicGroup.unsubscribe)
    seek = awaited(TopicGroup.seek)
    pause = awaited(TopicGroup.pause)
    resume = awaited(TopicGroup.resume)
    set_out_of_range = awaited(TopicGroup.set_out_of_range)
    lag = awaited(TopicGroup.lag)
    peek = awaited(TopicGroup.peek)


def _check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise ConfigError(f"out_of_range={policy!r} is unknown; take one of {', '.join(POLICIES)}")
    return policy
