"""Find current and future problems with a deployment's servers.

`findings` doesn't write to the servers. It queries every node for its Facts, in about a hundred round trips, most of
them PINGs. Pure functions turn Facts into Findings, one function per subject. The level `fail` means that jobq loses
messages or can't work on the server. The level `warn` means that a person should solve the problem.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol

from redis.exceptions import NoScriptError, ResponseError

from jobq.client.connection import Client, exchange
from jobq.client.numbered_calls import PASSING, refusal
from jobq.client.scripts import Argument, Command, Script, load
from jobq.client.topology import Sentinel
from jobq.config import parse_durability
from jobq.errors import ScriptError, UnavailableError
from jobq.queue import keys
from jobq.queue.roles import script_commands

PINGS = 100
SETTINGS = (
    "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write", "cluster-require-full-coverage",
    "hash-max-listpack-entries",
)  # fmt: skip
#: Commands that exist since Redis 7.0, the oldest supported version.
FLOOR = ("fcall", "evalsha_ro")
BLOCKING = ("blpop", "blmove")
#: Name of a queue that needn't exist: rights are checked on its keys.
PROBE = "doctor"
#: Maximum number of names to try to find a key in a slot of the node.
PROBES = 10_000
Level = Literal["ok", "warn", "fail"]
GIB = 1024**3
#: hash-max-listpack-entries of embedded servers: larger hashes aren't searched linearly.
LISTPACK = 8
#: Release line -> its first patch release without CVE-2025-49844, -46817, -46818 and -46819.
FIXED: dict[str, dict[tuple[int, int], int]] = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        remedy: How to solve the problem, or advice if the level is 'ok'; '' if there is nothing to do.
        node: Names of the nodes with this result; '' if all nodes have it.
    """

    check: str
    level: Level
    value: str
    remedy: str = ""
    node: str = ""


@dataclass(kw_only=True)
class Facts:
    """Facts about one server, as the server reported them.

    Attributes:
        durability: The client's durability setting.
        node: Name of the server's node, if the deployment has several.
        away: Why the server didn't answer; '' if it did.
        is_replica: Whether the server is a replica that a failover may promote.
        refused: Key -> commands that the user may not send.
        unknown: Name of each fact that couldn't be read -> the error.
    """

    durability: str = "memory"
    node: str = ""
    away: str = ""
    is_replica: bool = False

    url: str = field(default="", repr=False)
    namespace: str = "jobq"
    user: str = ""
    info: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    pings_ms: list[float] = field(default_factory=list)
    skew_ms: float = 0.0
    unknown: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Return a number from INFO; 0 if INFO doesn't show it."""
        return int(self.info.get(name) or 0)


class Answerer(Protocol):
    """The interface for queries to a deployment or to a single node."""

    url: str
    namespace: str
    durability: str

    def command(self, *args: Argument) -> Any:
        """Send a plain command and return the raw reply. Raises UnavailableError or ScriptError."""
        ...

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Call a script and return the raw reply. Raises UnavailableError or ScriptError."""
        ...


class Node:
    """Queries only one node, even about keys that this node doesn't serve."""

    def __init__(self, client: Client, place: Hashable, *, is_replica: bool = False) -> None:
        self.url, self.namespace, self.is_replica = client.url, client.namespace, is_replica
        self.durability = client.durability
        self._client, self.place = client, place
        self._connection = client.topology.open(place)
        self.name = f"{self._connection.host}:{self._connection.port}"
        if is_replica:
            self.name += " (replica)"

    def command(self, *args: Argument) -> Any:
        """Send a plain command to the node and return the raw reply."""
        return self._exchange(args)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Call a script on the node and return the raw reply."""
        words = self._client.words(script, keys, args)
        try:
            self._connection.connect()
            return exchange(self._connection, words)
        except NoScriptError:
            self.command("SCRIPT", "LOAD", script.source)
        except (*PASSING, ResponseError):
            pass  # repeating the call is harmless, and raises an error of jobq
        return self._exchange(words, script)

    def _exchange(self, words: Command, script: Script | None = None) -> Any:
        try:
            self._connection.connect()
            return exchange(self._connection, words)
        except (*PASSING, ResponseError) as error:
            raise refusal(error, words, script) or UnavailableError(str(error)) from error

    def serves(self, key: str) -> bool:
        """Return whether the key is in one of the node's slots."""
        return self._client.topology.locate(key) == self.place

    def close(self) -> None:
        """Close the connection to the node."""
        self._connection.disconnect()


def findings(client: Client) -> list[Finding]:
    """Check whether the server, or every node of a Cluster, suits jobq.

    Replicas that a Sentinel or a Cluster may promote are checked for settings that matter after a failover.
    """
    client.command("PING")  # raises if no server answers, or if the password is wrong
    if client.is_cluster:
        primaries = [_facts_of(Node(client, place)) for place in client.topology.nodes()]
    elif isinstance(client.topology, Sentinel):
        primaries = [_facts_of(Node(client, client.topology.locate("")))]
    else:
        return diagnose(facts(client))
    replicas = [
        _facts_of(Node(client, place, is_replica=True))
        for place in dict.fromkeys(place for primary in primaries for place in _replicas(primary))
    ]
    return diagnose_all([*primaries, *replicas])


def _facts_of(node: Node) -> Facts:
    try:
        return facts(node, node.name, is_replica=node.is_replica)
    except UnavailableError as error:
        return Facts(
            url=node.url, namespace=node.namespace, away=str(error), node=node.name, is_replica=node.is_replica,
        )  # fmt: skip
    finally:
        node.close()


def _replicas(facts: Facts) -> Iterator[tuple[str, int]]:
    """Yield the addresses of the replicas that a primary reports."""
    for name, line in facts.info.items():
        if re.fullmatch(r"slave\d+", name):
            parts = dict(part.split("=", 1) for part in line.split(",") if "=" in part)
            if parts.get("ip") and parts.get("port", "").isdigit():
                yield parts["ip"], int(parts["port"])


def facts(client: Answerer, node: str = "", *, is_replica: bool = False) -> Facts:
    """Return the facts of a server. Parts that the server doesn't show to this user are recorded as unknown."""
    facts = Facts(
        durability=client.durability,
        node=node,
        is_replica=is_replica,
        url=client.url,
        namespace=client.namespace,
    )
    _try(facts, "info", lambda: facts.info.update(_info(client)))
    _try(facts, "settings", lambda: facts.settings.update(_settings(client)))
    _try(facts, "commands", lambda: facts.missing.extend(_missing(client)))
    if not is_replica:
        _try(facts, "rights", lambda: facts.refused.update(_refused(client)))
    _try(facts, "user", lambda: setattr(facts, "user", _text(client.command("ACL", "WHOAMI"))))
    facts.pings_ms = [_timed(client, "PING")[0] for _ in range(PINGS)]
    facts.skew_ms = _skew(client)
    return facts


def _try(facts: Facts, part: str, ask: Callable[[], Any]) -> None:
    try:
        ask()
    except ScriptError as error:
        facts.unknown[part] = str(error)


def _info(client: Answerer) -> dict[str, str]:
    lines = _text(client.command("INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _settings(client: Answerer) -> dict[str, str]:
    reply = [_text(item) for item in client.command("CONFIG", "GET", *SETTINGS)]
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _missing(client: Answerer) -> list[str]:
    wanted = (*script_commands(), *BLOCKING, *FLOOR)
    reply = client.command("COMMAND", "INFO", *wanted)
    return [name.upper() for name, known in zip(wanted, reply, strict=True) if not known]


def _refused(client: Answerer) -> dict[str, list[str]]:
    """Check the user's rights to the keys of a queue, the list of queues and the workers.

    Return the forbidden commands by key.
    """
    space = client.namespace
    serves = client.serves if isinstance(client, Node) else lambda key: True
    probes = (
        keys.key(keys.prefix(space, f"{PROBE}{number or ''}"), "messages")
        for number in range(PROBES)
    )
    asked = {
        next(filter(serves, probes), ""): (*script_commands(), *BLOCKING),
        keys.queue_names(space): ("sadd", "srem", "smembers"),
        keys.workers(space): ("hset", "hdel", "hgetall", "hlen"),
    }
    return {
        key: _may_not(client, key, commands)
        for key, commands in asked.items()
        if key and serves(key)
    }


def _may_not(client: Answerer, key: str, commands: Sequence[str]) -> list[str]:
    reply = client.run(load("shared", "rights"), [key], commands)
    return [_text(name).upper() for name in reply]


def _timed(client: Answerer, *command: str) -> tuple[float, Any]:
    began = time.perf_counter()
    reply = client.command(*command)
    return (time.perf_counter() - began) * 1000, reply


def _skew(client: Answerer) -> float:
    """Return how many ms the server's clock is ahead of this host's clock, from the fastest of five round trips."""
    best: tuple[float, float] | None = None
    for _ in range(5):
        took_ms, (seconds, micros) = _timed(client, "TIME")
        skew = int(seconds) * 1000 + int(micros) / 1000 - (time.time() * 1000 - took_ms / 2)
        best = min(best or (took_ms, skew), (took_ms, skew))
    return best[1] if best else 0.0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings about one server, important findings first."""
    if facts.away:
        remedy = "start the node, or fail over to a replica; the queues of its slots are blocked"
        if facts.is_replica:
            remedy = "start or remove the replica; a failover to it may lose writes"
        level: Level = "warn" if facts.is_replica else "fail"
        return [Finding("server", level, f"no answer: {facts.away}", remedy)]
    checks = [check for check in CHECKS if not (facts.is_replica and check in OF_PRIMARIES)]
    return [finding for check in checks for finding in check(facts)]


def diagnose_all(nodes: Sequence[Facts]) -> list[Finding]:
    """Return the findings about several nodes, ordered by check.

    A finding has an empty `node` if all checked nodes share it.
    """
    findings: dict[Finding, list[str]] = {}
    for facts in nodes:
        for finding in diagnose(facts):
            findings.setdefault(finding, []).append(facts.node)
    order = {name: place for place, name in enumerate(dict.fromkeys(f.check for f in findings))}
    asked = {
        check: [facts.node for facts in nodes if any(f.check == check for f in diagnose(facts))]
        for check in order
    }
    return [
        finding if named == asked[finding.check] else finding._replace(node=", ".join(named))
        for finding, named in sorted(findings.items(), key=lambda item: order[item[0].check])
    ]


def version(facts: Facts) -> Iterator[Finding]:
    """Check that the server has the commands of Redis 7.0 or Valkey 7.2. Forks use other version numbers."""
    kind = "Valkey" if "valkey_version" in facts.info else "Redis"
    number = (
        facts.info.get("valkey_version") or facts.info.get("redis_version") or "of unknown version"
    )
    if facts.missing:
        remedy = "use Redis 7.0 or Valkey 7.2, or newer"
        yield Finding("server", "fail", f"{kind} {number}: no {', '.join(facts.missing)}", remedy)
    elif "commands" in facts.unknown:
        yield Finding(
            "server",
            "warn",
            f"{kind} {number}; COMMAND INFO: {facts.unknown['commands']}",
            ASK_ADMIN,
        )
    else:
        mode = facts.info.get("redis_mode", "")
        yield Finding("server", "ok", f"{kind} {number}{', ' + mode if mode else ''}")


def patched(facts: Facts) -> Iterator[Finding]:
    """Check for known faults in the server's Lua engine. Users who may run Lua can exploit these faults."""
    kind = "Valkey" if "valkey_version" in facts.info else "Redis"
    number = facts.info.get("valkey_version") or facts.info.get("redis_version") or ""
    parts = [int(part) for part in re.findall(r"\d+", number)[:3]]
    if len(parts) < 3:
        return
    needed = FIXED[kind].get((parts[0], parts[1]))
    if needed is not None and parts[2] < needed:
        line = f"{parts[0]}.{parts[1]}"
        yield Finding(
            "patched", "warn", f"{kind} {number} has known faults in its Lua engine (CVE-2025-49844)",
            f"update to {line}.{needed} or newer; until then let users run functions only (jobq acl)",
        )  # fmt: skip
    elif (parts[0], parts[1]) < min(FIXED[kind]):
        yield Finding(
            "patched", "ok", f"{number} gets fixes from its distribution alone: keep it updated"
        )
    else:
        yield Finding("patched", "ok", "no known fault in its Lua engine")


def eviction(facts: Facts) -> Iterator[Finding]:
    """Check the eviction policy. Any policy except noeviction deletes keys of jobq once there is a memory limit."""
    policy = facts.info.get("maxmemory_policy") or facts.settings.get("maxmemory-policy")
    if not policy:
        yield Finding("eviction", "warn", "unknown: " + _why(facts, "info"), ASK_ADMIN)
    elif policy == "noeviction":
        yield Finding("eviction", "ok", policy)
    else:
        harm = (
            "evicts whole queues" if policy.startswith("allkeys")
            else "evicts results, and the replies that prevent a repeated call from counting twice"
        )  # fmt: skip
        limited = facts.number("maxmemory") > 0
        value = f"{policy} {harm}" + ("" if limited else " once maxmemory is set")
        remedy = (
            "CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration; "
            "give caches a server of their own"
        )
        yield Finding("eviction", "fail" if limited else "warn", value, remedy)


def memory(facts: Facts) -> Iterator[Finding]:
    """Check how much memory is left before the server rejects enqueues, or before the kernel kills the server."""
    used, limit = facts.number("used_memory"), facts.number("maxmemory")
    room = limit or facts.number("total_system_memory")
    if not used or not room:
        return
    share = used / room
    of = "maxmemory" if limit else "the host's memory, no maxmemory set"
    value = f"{used / GIB:.2f} of {room / GIB:.2f} GiB, {share:.0%} of {of}"
    if share < 0.8:
        yield Finding("memory", "ok", value)
    else:
        remedy = "add memory or workers, or clear unneeded queues; at the limit every enqueue is rejected"
        yield Finding("memory", "fail" if limit and share >= 1 else "warn", value, remedy)


def persistence(facts: Facts) -> Iterator[Finding]:
    """Check how much a crash or a restart of the server loses."""
    if "info" in facts.unknown:
        yield Finding("persistence", "warn", "unknown: " + facts.unknown["info"], ASK_ADMIN)
        return
    append = facts.info.get("aof_enabled") == "1"
    saves = facts.settings.get("save")
    if append:
        yield _append_only(facts.settings.get("appendfsync"))
    elif saves:
        yield Finding(
            "persistence", "warn", f"snapshots only (save {saves}): a crash loses all writes since the last snapshot",
            "CONFIG SET appendonly yes, and set it in the server's configuration",
        )  # fmt: skip
    else:
        problem = (
            "none: a restart loses every message" if saves is not None else "no append-only file"
        )
        remedy = "CONFIG SET appendonly yes, unless jobs may be lost"
        yield Finding("persistence", "warn", problem, remedy)
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if facts.info.get(name, "ok") != "ok":
            value = f"{name}: {facts.info[name]}"
            yield Finding("persistence", "fail", value, "check the server's disk and log")


def _append_only(fsync: str | None) -> Finding:
    if fsync == "no":
        value = "append-only file, appendfsync no: a power cut loses what the kernel hadn't written"
        return Finding("persistence", "warn", value, "CONFIG SET appendfsync everysec")
    losses = {
        "always": "no acknowledged write is lost",
        "everysec": "a power cut loses up to 1-2 s",
    }
    rest = f", appendfsync {fsync}: {losses.get(fsync, '')}" if fsync else "; appendfsync unknown"
    return Finding("persistence", "ok", f"append-only file{rest}")


def replicas(facts: Facts) -> Iterator[Finding]:
    """Check that the server is a primary, and that enough replicas are online for the client's durability."""
    if facts.info.get("role") == "slave":
        yield Finding(
            "replicas",
            "fail",
            "this is a replica",
            "point --url at the primary, or use redis+sentinel://",
        )
        return
    followers = [v for k, v in facts.info.items() if re.fullmatch(r"slave\d+", k)]
    yield from _confirming(facts, sum("state=online" in line for line in followers))
    late = [f for f in followers if "state=online" not in f or _lag(f) > 10]
    if late:
        yield Finding(
            "replicas",
            "warn",
            f"{len(late)} of {len(followers)} behind or offline",
            "check that replica",
        )
    elif followers:
        needed = facts.settings.get("min-replicas-to-write", "0")
        rest = (
            f"; writes need {needed}" if needed != "0" else "; a failover may lose the last writes"
        )
        yield Finding("replicas", "ok", f"{len(followers)} online{rest}")
    elif "role" in facts.info:
        yield Finding("replicas", "ok", "none")


def _confirming(facts: Facts, online: int) -> Iterator[Finding]:
    """Check that enqueues with the durability replicas=n are confirmed even while one replica is away."""
    word, needed = parse_durability(facts.durability)
    if word != "replicas" or "role" not in facts.info or online > needed:
        return
    remedy = f"run {needed + 1} replicas, or ask for a lower durability"
    if online < needed:
        value = f"{facts.durability} is never confirmed: {online} online"
        yield Finding("durability", "fail", value, remedy)
    else:
        value = f"{facts.durability} isn't confirmed while a replica is away or after a failover: {online} online"
        yield Finding("durability", "warn", value, remedy)


def _lag(line: str) -> int:
    match = re.search(r"lag=(\d+)", line)
    return int(match[1]) if match else 0


def clock(facts: Facts) -> Iterator[Finding]:
    """Compare the clocks. Scripts use the server's clock; at= and waiting times use the producer's clock."""
    value = f"this host is {abs(facts.skew_ms):,.0f} ms {'behind' if facts.skew_ms > 0 else 'ahead of'} the server"
    if abs(facts.skew_ms) < 1000:
        yield Finding("clock", "ok", value)
    else:
        yield Finding(
            "clock", "warn", value, "run NTP on both; start times (at=) are off by the difference"
        )


def coverage(facts: Facts) -> Iterator[Finding]:
    """Check that the other nodes of a Cluster keep working if a shard fails."""
    setting = facts.settings.get("cluster-require-full-coverage")
    if facts.info.get("cluster_enabled") != "1" or setting is None:
        return
    if setting == "no":
        yield Finding("coverage", "ok", "a lost shard stops only its own queues")
    else:
        yield Finding(
            "coverage", "warn", "a lost shard also stops the queues of all other shards",
            "CONFIG SET cluster-require-full-coverage no on every node, and set it in each configuration",
        )  # fmt: skip


def latency(facts: Facts) -> Iterator[Finding]:
    """Check how long a round trip takes, because every enqueue waits for one."""
    if not facts.pings_ms:
        return
    middle, worst = median(facts.pings_ms), max(facts.pings_ms)
    value = f"{middle:.2f} ms a round trip, at worst {worst:.2f} (of {len(facts.pings_ms)})"
    far = "run workers nearer to the server, and enqueue many per call"
    yield Finding("latency", "ok" if middle < 5 else "warn", value, "" if middle < 5 else far)


def hashes(facts: Facts) -> Iterator[Finding]:
    """Check hash-max-listpack-entries, the maximum number of fields in a hash that the server searches linearly."""
    setting = facts.settings.get("hash-max-listpack-entries", "")
    if not setting.isdecimal():
        return
    value = f"the server searches hashes of up to {int(setting):,} fields linearly"
    advice = (
        f"CONFIG SET hash-max-listpack-entries {LISTPACK} saves up to a quarter of its CPU per job; hashes of other "
        "applications on it then take up to three times the memory"
    )
    yield Finding("hashes", "ok", value, "" if int(setting) <= 2 * LISTPACK else advice)


def rights(facts: Facts) -> Iterator[Finding]:
    """Check that the user may send every command that jobq uses. A script runs with the rights of its caller."""
    user = f"user {facts.user}" if facts.user else "this user"
    grant = f"ACL SETUSER {facts.user or '…'} ~{facts.namespace}:* "
    lacks = {key: names for key, names in facts.refused.items() if names}
    if "rights" in facts.unknown:
        value = f"{user} may not run scripts: {facts.unknown['rights']}"
        yield Finding("rights", "fail", value, grant + "+evalsha +script|load")
    elif lacks:
        rest = "; ".join(f"{', '.join(names)} on {key}" for key, names in lacks.items())
        commands = sorted({f"+{name.lower()}" for names in lacks.values() for name in names})
        yield Finding(
            "rights", "fail", f"{user} has no right to send {rest}", grant + " ".join(commands)
        )
    else:
        yield Finding("rights", "ok", f"{user} may send every command that jobq uses")


def exposure(facts: Facts) -> Iterator[Finding]:
    """Check for TLS and a password. Anyone who can write to the server can make workers run any job."""
    scheme, _, rest = facts.url.partition("://")
    credentials, _, place = rest.partition("/")[0].rpartition("@")
    hosts = [re.sub(r":\d*$", "", part).strip("[]") for part in place.split(",")]
    near = "unix" in scheme or all(
        h in ("", "localhost", "::1") or h.startswith("127.") for h in hosts
    )
    lacks = [] if near else ["TLS"] * ("rediss" not in scheme) + ["a password"] * (not credentials)
    where = "this host only" if near else ", ".join(hosts)
    if lacks:
        yield Finding(
            "exposure",
            "warn",
            f"{where}, without {' or '.join(lacks)}",
            "use rediss://user:password@host",
        )
    else:
        yield Finding("exposure", "ok", where + ("" if near else ", TLS and a password"))


def connections(facts: Facts) -> Iterator[Finding]:
    """Check the number of connections. Each idle child of a worker has one connection, and jobs may open others."""
    now, most = facts.number("connected_clients"), facts.number("maxclients")
    if now and most:
        full = now > 0.8 * most
        yield Finding(
            "clients",
            "warn" if full else "ok",
            f"{now:,} of {most:,}",
            "raise maxclients" if full else "",
        )


def _why(facts: Facts, part: str) -> str:
    return facts.unknown.get(part, "not shown by the server")


ASK_ADMIN = "use the URL of a user with that right: jobq check doctor --url …"
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    version, patched, eviction, memory, persistence, replicas, coverage, connections, clock, latency, hashes, rights,
    exposure,
)  # fmt: skip
#: Checks that don't apply to replicas: replicas don't run scripts, and aren't primaries.
OF_PRIMARIES = (replicas, rights, exposure)
