"""Groups of readers. A group's readers share one position in a topic, which each reader moves when it polls."""

from __future__ import annotations

from typing import Any

from jobq.client.connection import Client
from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise
from jobq.client.names import checked_name
from jobq.client.numbered_calls import Values, moment
from jobq.client.steps import Steps
from jobq.errors import ConfigError, GroupNotFoundError, OutOfRangeError
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import Lag, Position, TopicMessage, extent, position_of, valid_places
from jobq.topics.ranges import RangeReader, messages_of, opened

POLICIES = ("earliest", "latest", "error")


class TopicGroup(BlockingFacade):
    """The group `name` of a topic, for inspection and control. Pass the topic's name, or its TopicCalls."""

    def __init__(self, topic: str | TopicCalls, name: str, client: Client | None = None) -> None:
        self.topic = topic if isinstance(topic, TopicCalls) else TopicCalls(topic, client)
        self.client, self.name = self.topic.client, checked_name("group", name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic.name!r}, {self.name!r})"

    @stepwise
    def subscribe(
        self,
        start: Position = "earliest",
        *,
        out_of_range: str = "earliest",
        now: int | None = None,
    ) -> Steps[bool]:
        """Create the group at a position. Return False if the group already exists, without changing its position.

        Args:
            start: 'earliest', 'latest', an index or a datetime.
            out_of_range: Where the group continues if retention has dropped its next message, or the topic was lost.
                Use 'earliest', 'latest', or 'error' (OutOfRangeError).
        """
        _check_policy(out_of_range)
        reply = yield from self._run(
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

    @stepwise
    def unsubscribe(self) -> Steps[bool]:
        """Delete the group; return False if there was none."""
        reply = yield from self._run("unsubscribe", {"name": self.name})
        return bool(reply[0])

    @stepwise
    def seek(self, place: Position, *, now: int | None = None) -> Steps[int]:
        """Move the group, and return the index of its next message. Readers can no longer commit messages that they
        leased before.
        """
        reply = yield from self._run("seek", {"now": moment(now), **position_of(place)})
        self._check(reply)
        self._check_place(reply, place)
        return int(reply[1]) + 1

    @stepwise
    def pause(self) -> Steps[None]:
        """Stop the delivery of messages to the group until `resume`."""
        self._check((yield from self._run("steer", {"paused": "1", "out_of_range": ""})))

    @stepwise
    def resume(self) -> Steps[None]:
        """End a pause."""
        self._check((yield from self._run("steer", {"paused": "0", "out_of_range": ""})))

    @stepwise
    def set_out_of_range(self, policy: str) -> Steps[None]:
        """Change the policy `out_of_range` of the group; see `subscribe`."""
        self._check(
            (yield from self._run("steer", {"paused": "", "out_of_range": _check_policy(policy)}))
        )

    @stepwise
    def peek(self, count: int = 10) -> Steps[list[TopicMessage]]:
        """Return the group's next new messages without moving its position.

        Delivered messages with expired leases aren't included.
        """
        lag = yield from TopicGroup.lag.steps(self)
        reading = yield from opened(self.topic, lag.handed_out + 1, None, "earliest")
        return (yield from messages_of(reading, count))

    @stepwise
    def lag(self, *, exact: bool = False, now: int | None = None) -> Steps[Lag]:
        """Return the group's lag, in messages and in time.

        Args:
            exact: True to read and count the messages. Otherwise, the number is a difference of indexes, which is too
                high if a compaction removed messages.
        """
        reply = yield from self._run("lag", {"now": moment(now)})
        self._check(reply)
        settled, handed_out, last, first, held, expired, age_ms, paused, policy, skipped = reply[1:]
        behind = max(0, last - max(settled, first - 1))
        if exact and behind:
            reading, behind = RangeReader(self.topic, settled + 1, last, strict=False), 0
            while page := (yield from reading.next()):
                behind += len(page)
        return Lag(
            settled, handed_out, last, first, behind, age_ms, held, expired, bool(paused), policy.decode(),
            skipped,
        )  # fmt: skip

    def _run(self, script: str, values: Values) -> Steps[Any]:
        return self.topic.run_steps(script, values, group=self.name)

    def _check(self, reply: Any) -> None:
        if reply[0] == b"missing":
            raise GroupNotFoundError(
                f"topic {self.topic.name!r} has no group {self.name!r}; create the group with subscribe"
            )

    def _check_place(self, reply: Any, place: Position) -> None:
        if reply[0] == b"out-of-range":
            first, last = reply[1:]
            raise OutOfRangeError(
                f"{place!r} is outside topic {self.topic.name!r}, which {extent(first, last)}; use {last + 1} for new "
                f"messages, {valid_places(first, last)}",
                place if isinstance(place, int) else 0, first, last,
            )  # fmt: skip


class AsyncTopicGroup(AsyncFacade[TopicGroup]):
    """A TopicGroup with awaitable methods."""

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
        raise ConfigError(f"out_of_range={policy!r} is unknown; use one of {', '.join(POLICIES)}")
    return policy
