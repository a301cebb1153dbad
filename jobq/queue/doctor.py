"""Ask every node what the diagnosis needs: read-only, about a hundred round trips each, most of them PINGs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import NoScriptError, ResponseError

from jobq.client.connection import exchange
from jobq.client.numbered_calls import PASSING, Argument, refusal
from jobq.client.scripts import Script, load
from jobq.client.topology import Sentinel
from jobq.errors import ScriptError, UnavailableError
from jobq.queue import keys
from jobq.queue.diagnosis import Facts, Finding, judge, judge_all
from jobq.queue.roles import script_commands

if TYPE_CHECKING:
    from jobq.client.connection import Client

PINGS = 100
SETTINGS = (
    "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write", "cluster-require-full-coverage",
)  # fmt: skip
#: Marks of Redis 7.0: functions, and scripts that declare flags.
FLOOR = ("fcall", "evalsha_ro")
BLOCKING = ("blpop", "blmove")
#: A queue that needn't exist: rights are asked for keys of its shape.
PROBE = "doctor"
#: Names tried until one is in a slot of the node asked.
PROBES = 10_000


class Asked(Protocol):
    """What is asked: the client of a deployment, or one node of it."""

    url: str
    namespace: str
    durability: str

    def command(self, *args: Argument) -> Any:
        """One plain command; the raw reply. Raises UnavailableError or ScriptError."""
        ...

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Call a script; the same."""
        ...


class Node:
    """One node, asked itself: what it doesn't serve isn't looked for elsewhere."""

    def __init__(self, client: Client, place: Hashable, *, is_replica: bool = False) -> None:
        self.url, self.namespace, self.is_replica = client.url, client.namespace, is_replica
        self.durability = client.durability
        self._client, self.place = client, place
        self._connection = client.topology.open(place)
        self.name = f"{self._connection.host}:{self._connection.port}"
        if is_replica:
            self.name += " (replica)"

    def command(self, *args: Argument) -> Any:
        """As a client's."""
        try:
            return exchange(self._connection, args)
        except (*PASSING, ResponseError) as error:
            raise refusal(error, args, None) or UnavailableError(str(error)) from error

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """As a client's."""
        words = self._client.words(script, keys, args)
        try:
            return exchange(self._connection, words)
        except NoScriptError:
            self.command("SCRIPT", "LOAD", script.source)
        except (*PASSING, ResponseError):
            pass  # to be asked again is harmless, and makes an error of jobq's
        return self.command(*words)

    def serves(self, key: str) -> bool:
        """Whether the key is in one of its slots."""
        return self._client.topology.locate(key) == self.place

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


def findings(client: Client) -> list[Finding]:
    """What is well and what isn't, for jobq's purposes: of the server, or of every node of a Cluster.

    Of replicas that a Sentinel or a Cluster may promote, what would matter after a failover.
    """
    client.command("PING")  # nobody there, or a wrong password: an error that says so
    if client.is_cluster:
        primaries = [_facts_of(Node(client, place)) for place in client.topology.nodes()]
    elif isinstance(client.topology, Sentinel):
        primaries = [_facts_of(Node(client, client.topology.locate("")))]
    else:
        return judge(facts(client))
    replicas = [
        _facts_of(Node(client, place, is_replica=True))
        for place in dict.fromkeys(place for found in primaries for place in _replicas(found))
    ]
    return judge_all([*primaries, *replicas])


def _facts_of(node: Node) -> Facts:
    """What one node says of itself; that it is away."""
    try:
        found = facts(node)
    except UnavailableError as error:
        found = Facts(url=node.url, namespace=node.namespace, away=str(error))
    finally:
        node.close()
    found.node, found.is_replica = node.name, node.is_replica
    return found


def _replicas(found: Facts) -> Iterator[tuple[str, int]]:
    """Where the replicas are that a primary tells of."""
    for name, line in found.info.items():
        if re.fullmatch(r"slave\d+", name):
            parts = dict(part.split("=", 1) for part in line.split(",") if "=" in part)
            if parts.get("ip") and parts.get("port", "").isdigit():
                yield parts["ip"], int(parts["port"])


def facts(client: Asked) -> Facts:
    """What the server says of itself. A part that it refuses to show is noted as unknown."""
    found = Facts(url=client.url, namespace=client.namespace, durability=client.durability)
    _try(found, "info", lambda: found.info.update(_info(client)))
    _try(found, "settings", lambda: found.settings.update(_settings(client)))
    _try(found, "commands", lambda: found.missing.extend(_missing(client)))
    if not (isinstance(client, Node) and client.is_replica):
        _try(found, "rights", lambda: found.refused.update(_refused(client)))
    _try(found, "user", lambda: setattr(found, "user", _text(client.command("ACL", "WHOAMI"))))
    found.pings_ms = [_timed(client, "PING")[0] for _ in range(PINGS)]
    found.skew_ms = _skew(client)
    return found


def _try(found: Facts, part: str, ask: Callable[[], Any]) -> None:
    try:
        ask()
    except ScriptError as error:
        found.unknown[part] = str(error)


def _info(client: Asked) -> dict[str, str]:
    lines = _text(client.command("INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _settings(client: Asked) -> dict[str, str]:
    reply = [_text(item) for item in client.command("CONFIG", "GET", *SETTINGS)]
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _missing(client: Asked) -> list[str]:
    wanted = (*script_commands(), *BLOCKING, *FLOOR)
    reply = client.command("COMMAND", "INFO", *wanted)
    return [name.upper() for name, known in zip(wanted, reply, strict=True) if not known]


def _refused(client: Asked) -> dict[str, list[str]]:
    """By key, since rights may end at a pattern: one of a queue, and the two outside every slot."""
    space = client.namespace
    serves = client.serves if isinstance(client, Node) else lambda key: True
    probes = (
        keys.key(keys.prefix(space, f"{PROBE}{number or ''}"), "messages")
        for number in range(PROBES)
    )
    asked = {
        next(filter(serves, probes), ""): (*script_commands(), *BLOCKING),
        keys.queue_names(space): ("sadd", "srem", "smembers"),
        keys.workers(space): ("hset", "hdel", "hgetall"),
    }
    return {
        key: _may_not(client, key, commands)
        for key, commands in asked.items()
        if key and serves(key)
    }


def _may_not(client: Asked, key: str, commands: Sequence[str]) -> list[str]:
    reply = client.run(load("shared", "rights"), [key], commands)
    return [_text(name).upper() for name in reply]


def _timed(client: Asked, *command: str) -> tuple[float, Any]:
    began = time.perf_counter()
    reply = client.command(*command)
    return (time.perf_counter() - began) * 1000, reply


def _skew(client: Asked) -> float:
    """Server's clock minus ours, ms, taken at the middle of the quickest of a few round trips."""
    best: tuple[float, float] | None = None
    for _ in range(5):
        took_ms, (seconds, micros) = _timed(client, "TIME")
        skew = int(seconds) * 1000 + int(micros) / 1000 - (time.time() * 1000 - took_ms / 2)
        best = min(best or (took_ms, skew), (took_ms, skew))
    return best[1] if best else 0.0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
