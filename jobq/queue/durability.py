"""Make one enqueue, or many calls together, durable on a disk or on replicas before returning.

- `memory`: The script's reply confirms that the server has the data.
- `disk`: With appendfsync always, the server answers only after fsync. With everysec, WAITAOF reports the fsync. The
  WAITAOF of Valkey 8.1 answers too early (Redis fixed that in 7.4.3), so a probe decides whether to trust it.
- `replicas=n`: WAIT reports the replicas.

WAIT and WAITAOF refer to the last write of their connection. So they are sent on the script's connection, after the
script and an additional write: a script that only repeats an earlier reply doesn't write.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions as redis_errors
from redis.connection import Connection

from jobq.client.connection import (
    Client,
    Exchange,
    answered,
    ensure_open,
    exchange,
    longest_s,
    waiting_longer,
)
from jobq.client.names import checked_name
from jobq.client.numbered_calls import PASSING, CallState
from jobq.client.runtime import runtime
from jobq.client.scripts import Command, wire
from jobq.config import parse_durability
from jobq.errors import ConfigError, NotDurableError

#: Lifetime of the additional write that WAIT refers to.
MARK_MS = 1_000
#: Lifetime of the mark that stands for earlier calls until they are confirmed. Calls that take longer are repeated.
SHARED_MARK_MS = 60_000
#: With everysec, two fsyncs are a second apart. A server that confirms sooner didn't wait for an fsync.
HONEST_S = 0.5
PROBES = 3
PROBE_MS = 3_000


class UnconfirmableError(ConfigError):
    """The server can't confirm that writes are durable, because of its settings or the user's rights."""


class Confirmation:
    """Makes one enqueue durable. `exchange` sends the command and waits until the write is durable."""

    def __init__(self, level: str, client: Client, call_key: str) -> None:
        self._level = level
        self._word, _ = parse_durability(level)
        self._within_s = client.settings.durable_within_s
        self._namespace = client.namespace
        self._call_key = call_key
        self._client = client
        self._missing = ""

    def exchange(self, connection: Connection, command: Command, asking: bool = False) -> Any:
        """Send the command, wait until its write is durable, and return the reply."""
        if self._word == "memory":
            return exchange(connection, command, asking)
        waits = self._word == "replicas" or not _answers_after_fsync(connection, self._namespace)
        reply = exchange(connection, command, asking)
        if waits:
            self._wait(connection, asking)
        return reply

    @property
    def missing(self) -> str:
        """Why the last enqueue may not be durable; '' if it is durable."""
        return self._missing

    def check(self, mids: Sequence[str]) -> None:
        """Raise NotDurableError if the last enqueue may not be durable.

        Args:
            mids: The accepted messages.
        """
        if self._missing and mids:
            self._client.look_again()
            named, again = (
                (mids[0], "it again with the same mid")
                if len(mids) == 1
                else (f"{mids[0]} and {len(mids) - 1} more", "them again with the same mids")
            )
            raise NotDurableError(
                f"{named}: accepted, but not durable with durability={self._level!r}: "
                f"{self._missing}; enqueue {again}",
                mids,
            )

    def _wait(self, connection: Connection, asking: bool) -> None:
        written = _each(asking, ("SET", f"{self._call_key}~", "", "PX", MARK_MS))
        _, self._missing = _waited(connection, self._level, self._within_s, written)


class SharedConfirmation:
    """Makes the writes of many calls durable, on one or more nodes. Threads must not share this object.

    Send each call with the function that `by` returns. Then `missing` waits once per node. After each call, the
    function also writes a key, the mark. A node that has the last mark also has all earlier writes. A promoted or
    restarted node may lack the mark.
    """

    def __init__(self, client: Client, level: str | None = None) -> None:
        self._client, self._level = client, level or client.durability
        self._word, _ = parse_durability(self._level)
        #: Node -> key and value of the last mark that was written there.
        self._marks: dict[tuple[Any, ...], tuple[str, str]] = {}

    def by(self, mark: str) -> Exchange | None:
        """Return a function that sends a call and then writes `mark`; None if no confirmation is needed.

        Args:
            mark: A key in the slot of the call's keys. Only this confirmation uses it.
        """
        if self._word == "memory":
            return None

        def marked(connection: Connection, command: Command, asking: bool = False) -> Any:
            value = secrets.token_urlsafe(12)
            commands = _each(asking, command, ("SET", mark, value, "PX", SHARED_MARK_MS))
            replies = _exchange_all(connection, commands)
            self._marks[_node(connection)] = mark, value
            return replies[int(asking)]

        return marked

    def missing(self) -> str:
        """Wait until all writes since the last wait are durable; return '', or the reason why they aren't durable.

        Raises ConfigError if the server can't confirm durable writes, and UnavailableError if it doesn't answer.
        """
        marks, self._marks = self._marks, {}
        reasons = [self._missing_at(mark, value) for mark, value in marks.values()]
        return "; ".join(filter(None, reasons))

    def check(self, what: str) -> None:
        """Raise NotDurableError unless all writes since the last wait are durable.

        Args:
            what: Beginning of the error's message.
        """
        if missing := self.missing():
            self._client.look_again()
            raise NotDurableError(
                f"{what}, but the write isn't durable with durability={self._level!r}: {missing}; repeat the call"
            )

    def missing_at(self, key: str) -> str:
        """Wait until writes of other calls on the node of `key` are durable; return '', or why they aren't durable."""
        if self._word == "memory":
            return ""
        self._client.command("SET", key, "", "PX", SHARED_MARK_MS)
        return self._missing_at(key, "")

    def _missing_at(self, mark: str, value: str) -> str:
        why = ""

        def waited(connection: Connection, _: Command, asking: bool = False) -> Any:
            nonlocal why
            # If the mark exists, PEXPIRE changes it, so that WAIT has a write of this connection to refer to.
            commands = _each(asking, ("GET", mark), ("PEXPIRE", mark, MARK_MS))
            if self._word == "disk" and _answers_after_fsync(connection, self._client.namespace):
                replies = _exchange_all(connection, commands)
            else:
                within_s = self._client.settings.durable_within_s
                replies, why = _waited(connection, self._level, within_s, commands)
            return replies[int(asking)] if replies else None

        reply = self._client.perform(mark, CallState(self._client, ("GET", mark)), waited)
        if why or reply == value.encode():
            return why
        return "the data is now served by another server, or by a server without the latest writes"


def _each(asking: bool, *commands: Command) -> list[Command]:
    """Put ASKING before each command if `asking` is true. A Cluster node that is importing a slot requires ASKING."""
    return [
        part for command in commands for part in ([("ASKING",), command] if asking else [command])
    ]


def _node(connection: Connection) -> tuple[Any, ...]:
    return tuple(getattr(connection, name, "") for name in ("host", "port", "path"))


def _waited(
    connection: Connection, level: str, within_s: float, written: Sequence[Command]
) -> tuple[list[Any], str]:
    """Send the commands, and wait until their writes are durable.

    Return the replies, and '' or the reason why the writes aren't durable.
    """
    word, replicas = parse_durability(level)
    within_s = min(within_s, 0.8 * (longest_s(connection) or math.inf))
    within_ms = max(1, round(within_s * 1000))
    verb, needed = ("WAIT", (replicas,)) if word == "replicas" else ("WAITAOF", (1, 0))
    try:
        *replies, reply = _exchange_all(connection, [*written, (verb, *needed, within_ms)])
    except redis_errors.ResponseError as error:
        if isinstance(error, PASSING):
            # The script took effect, but this error would mean that it didn't. So report a lost connection instead.
            connection.disconnect()
            raise redis_errors.ConnectionError(f"the server refused {verb}: {error}") from error
        return [], f"the server refused {verb}: {error}"
    if word == "replicas" and reply < replicas:
        return replies, (
            f"{reply} of {replicas} replicas confirmed it within {within_s:g} s "
            f"(run {replicas + 1} replicas to tolerate a failure)"
        )
    if word == "disk" and reply[0] < 1:
        return replies, f"no fsync within {within_s:g} s"
    return replies, ""


def _exchange_all(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """Send several commands in one round trip, and return the replies.

    Raise the first error, but only after all replies are read.
    """
    replies: list[Any] = []
    try:
        ensure_open(connection)
        connection.send_packed_command([wire(command) for command in commands])
        with waiting_longer(connection):
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis_errors.ResponseError as error:
                    replies.append(error)
        answered(connection)
    except BaseException:
        connection.disconnect()
        raise
    for reply in replies:
        if isinstance(reply, redis_errors.ResponseError):
            raise reply
    return replies


def _answers_after_fsync(connection: Connection, namespace: str) -> bool:
    """Return whether the server replies only after fsync; False means that WAITAOF reports the fsync.

    Raises ConfigError if neither method is reliable on this server.
    """
    known = runtime.after_fsync.get(connection)
    if known is None:
        try:
            known = runtime.after_fsync[connection] = _looked_up(connection, namespace)
        except (ConfigError, redis_errors.ResponseError):
            connection.disconnect()
            raise
    return known


def _looked_up(connection: Connection, namespace: str) -> bool:
    appendonly, appendfsync = (
        _setting(connection, "appendonly"),
        _setting(connection, "appendfsync"),
    )
    if appendonly != "yes":
        raise UnconfirmableError(
            f"durability='disk' needs an append-only file, but the server has appendonly {appendonly}; run "
            "CONFIG SET appendonly yes appendfsync always, or choose another durability (memory, replicas=n)"
        )
    if appendfsync == "always":
        return True
    if appendfsync == "everysec" and _is_waitaof_honest(connection, namespace):
        return False
    raise UnconfirmableError(
        f"durability='disk' needs appendfsync always: with {appendfsync}, the server replies before writing data, and "
        "its WAITAOF is missing or doesn't wait; run CONFIG SET appendfsync always, or choose memory or replicas=n"
    )


def _setting(connection: Connection, name: str) -> str:
    reply = _asked(connection, "CONFIG", "GET", name)
    return str(reply[1].decode()) if reply else "unknown"


def _asked(connection: Connection, *words: str) -> Any:
    try:
        return exchange(connection, words)
    except redis_errors.ResponseError as error:
        if isinstance(error, PASSING):
            raise
        raise UnconfirmableError(
            f"jobq verifies durability='disk' with {' '.join(words)}, but the server rejected this command ({error}); "
            "grant +config|get and +info (see jobq acl --disk), or choose another durability (memory, replicas=n)"
        ) from error


def _is_waitaof_honest(connection: Connection, namespace: str) -> bool:
    info = _asked(connection, "INFO", "server").decode()
    [run_id] = [line[7:] for line in info.splitlines() if line.startswith("run_id:")]
    if run_id not in runtime.honest_servers:
        runtime.honest_servers[run_id] = _probed(connection, namespace)
    return runtime.honest_servers[run_id]


def _probed(connection: Connection, namespace: str) -> bool:
    """Test whether WAITAOF works: every call after the first must wait until the next fsync."""
    probe = f"{checked_name('namespace', namespace)}:probe:{secrets.token_urlsafe(12)}"
    within_ms = min(PROBE_MS, round(800 * (longest_s(connection) or math.inf)))
    for number in range(PROBES):
        started = time.monotonic()
        try:
            reply = _exchange_all(
                connection,
                [("SET", probe, number, "PX", 60_000), ("WAITAOF", 1, 0, within_ms)],
            )[-1]
        except redis_errors.ResponseError as error:
            if isinstance(error, PASSING):
                raise
            return False
        if reply[0] < 1 or (number and time.monotonic() - started < HONEST_S):
            return False
    return True
