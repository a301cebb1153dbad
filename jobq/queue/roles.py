"""Roles of users with their permissions, which `jobq acl` prints as ACL rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jobq.client.acl import CALLS, CONNECTION, READING, allowed_for, commands, literal, selector
from jobq.client.names import checked_name
from jobq.client.scripts import folder, load
from jobq.errors import ConfigError
from jobq.queue import keys


class Role(NamedTuple):
    """One kind of user, with the scripts, commands and keys that it may use.

    Attributes:
        scripts: Scripts of lua/queue that the user calls.
        queue: Commands that the user sends directly to a queue's keys.
        names, workers: Commands for the list of queues, and for the four hashes about workers.
        orders, answers: Commands for the lists of orders to workers, and for the workers' answers.
        spent: Commands for the records of finished signed calls.
        django: Commands for the records of Django tasks.
        audit: Commands for the audit log.
        operations: Commands for the dashboard's operations.
        logins: Commands for the dashboard's sessions and failed logins.
        flows: Scripts of lua/flow that the user calls.
        flow_names: Commands for the list of flows.
        secrets: Commands for the queues' secrets, which allow users to run steps of flows.
        charts: Commands for chart data.
        verbs: Commands without a key.
        reads: Whether the user only reads, apart from logins.
    """

    scripts: tuple[str, ...]
    queue: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()
    django: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()
    flow_names: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    reads: bool = False


#: Maximum number of digits in the number of a partition that the rules allow.
MAX_DIGITS = 5
_PRODUCER = ("announce", "enqueue", "enqueue_plain", "seal", "set_partitions", "status", "cancel")
_LOOKING = ("content", "counts", "dead", "fsck", "lines", "schedules", "status", "why")
_LOOKING_AT_KEYS = (
    "exists", "getrange", "hexists", "hget", "hrandfield", "hstrlen", "lindex", "llen", "lpos", "pttl", "ttl", "xlen",
    "xinfo|stream", "xrange", "xrevrange",
)  # fmt: skip
_READING_AUDIT = ("xlen", "xrevrange")
_READING_OPERATIONS = ("exists", "hget", "pttl", "zrevrange")
_LOGINS = ("decr", "del", "get", "incr", "pexpire", "pttl", "set")
_RESULTS = ("blmove", "exists", "lindex")
_STARTING_FLOWS = ("add", "create", "look", "put", "read", "reserve", "seal")
_LOOKING_AT_FLOWS = ("look", "page", "read")
_DRAINING = ("apply", "retried", "sent")
_FLOW_NAMES = ("exists", "zrange", "zscore")
#: Commands that check whether a server has written to its disk. CONFIG GET also shows passwords of the server.
_DISK = ("+config|get", "+info")
ROLES = {
    "producer": Role(
        _PRODUCER, _RESULTS, ("sadd",), ("hgetall",), django=("hgetall",), flows=_STARTING_FLOWS, flow_names=("zadd",),
        secrets=("get", "set"),
    ),
    "worker": Role(
        (*_PRODUCER, "checkpoint", "close", "collect", "counts", "dead", "dequeue", "dequeue_plain", "extend", "finish",
         "finish_plain", "flow_drop", "flow_read",
         "progress", "purge", "release", "retention", "revive", "schedule", "schedules", "tick", "tick_partitioned",
         "ticks_sent"),
        (*_RESULTS, "blpop", "hget", "lmpop", "lpop", "xrevrange"), ("sadd", "smembers", "srem"),
        ("hset", "hsetnx", "hdel", "hget", "hkeys", "hgetall", "hlen"), ("lrange", "lrem"), ("set",),
        ("zmscore", "zadd", "zremrangebyscore", "pexpire"), ("hset", "pexpire", "hgetall", "hkeys", "hdel"),
        flows=(*_STARTING_FLOWS, *_DRAINING, "page"), flow_names=(*_FLOW_NAMES, "zadd", "zrem"), secrets=("get", "set"),
        charts=("set", "setrange", "pexpire", "zadd", "zrange", "zremrangebyscore"),
        verbs=("function|list", "client|unblock"),
    ),
    "dashboard": Role(
        _LOOKING,
        _LOOKING_AT_KEYS, ("smembers",), ("hgetall", "hmget"), answers=("get",), audit=_READING_AUDIT,
        operations=_READING_OPERATIONS, logins=_LOGINS, flows=_LOOKING_AT_FLOWS, flow_names=_FLOW_NAMES,
        charts=("get",), reads=True,
    ),
    "operator": Role(
        (*_LOOKING, "announce", "cancel", "clear", "edit", "enqueue", "enqueue_plain", "flow_drop", "flow_read", "hold",
         "pause", "purge", "put_back", "reschedule", "resume", "retention", "revive", "schedule", "seal",
         "set_event_level", "set_limits", "set_partitions", "take_out", "tick", "tick_partitioned", "ticks_sent"),
        (*_LOOKING_AT_KEYS, "unlink"),
        ("sadd", "smembers", "srem"), ("hgetall", "hmget"),
        ("llen", "rpush", "pexpire"), ("get",),
        audit=("fcall", "xadd", *_READING_AUDIT),
        operations=(*_READING_OPERATIONS, "hset", "hmget", "hdel", "pexpire", "set", "get", "del", "zadd",
                    "zremrangebyrank"),
        flows=(*_LOOKING_AT_FLOWS, *_DRAINING, "remove"), flow_names=(*_FLOW_NAMES, "zrem"),
        secrets=("get",), charts=("get",),
    ),
    "metrics": Role(
        ("counts", "schedules"), ("exists", "hget", "hrandfield", "hstrlen"), ("smembers",), ("hgetall",), reads=True
    ),
}  # fmt: skip
DEPLOYER = "deployer"
#: Roles whose calls wait for a durability.
DURABLE_ROLES = ("producer", "worker", "operator")
_ABOUT_WORKERS = (keys.workers, keys.running, keys.jobs, keys.redactions)


def script_commands() -> tuple[str, ...]:
    """Return every command that the scripts in lua/queue send."""
    paths = (folder() / "queue").glob("[!_]*.lua")
    return tuple(sorted(set[str]().union(*(commands(load("queue", path.stem)) for path in paths))))


def rights(
    role: str, namespace: str = "jobq", queues: Sequence[str] = (), *, disk: bool = False
) -> list[str]:
    """Return the ACL rules of a user with this role, without a password.

    Args:
        queues: The queues that the user may use; empty for all queues of the namespace.
        disk: Include the commands for the durability 'disk' if users with this role make durable calls.
    """
    if role == DEPLOYER:
        verbs = (f"+function|{verb}" for verb in ("load", "list", "delete"))
        return ["-@all", *CONNECTION, *verbs]
    if role not in ROLES:
        raise ConfigError(f"unknown role {role!r}; use one of {', '.join((*ROLES, DEPLOYER))}")
    asked = ROLES[role]
    called = (load("queue", name) for name in asked.scripts)
    mark = "%R~" if asked.reads else "~"
    calls = READING if asked.reads else CALLS
    return [
        *(f"{mark}{pattern}" for pattern in _patterns(namespace, queues)),
        "resetchannels", *allowed_for(called, asked.queue, (*calls, *asked.verbs)),
        *selector(mark + literal(keys.queue_names(namespace)), asked.names),
        *selector(" ".join(mark + literal(make_key(namespace)) for make_key in _ABOUT_WORKERS), asked.workers),
        *selector(f"{mark}{literal(keys.orders(namespace, ''))}*", asked.orders),
        *selector(f"{mark}{literal(keys.order(namespace, ''))}*", asked.answers),
        *selector(f"{mark}{literal(keys.flows(namespace))}*", _commands_of_flows(asked)),
        *selector(mark + literal(keys.flow_names(namespace)), asked.flow_names),
        *selector(f"{mark}{literal(keys.charts(namespace, ''))}*", asked.charts),
        *selector(mark + literal(keys.audit_log(namespace)), asked.audit),
        *selector(" ".join(mark + operation for operation in _operations(namespace)), asked.operations),
        *selector(" ".join(f"~{login}" for login in _logins(namespace)), asked.logins),
        *selector(" ".join(mark + pattern for pattern in _beside(keys.spent, namespace, queues)), asked.spent),
        *selector(" ".join(mark + pattern for pattern in _beside(keys.flow_secret, namespace, queues)), asked.secrets),
        *selector(" ".join(mark + record for record in _records(namespace, queues)), asked.django),
        *(_DISK if disk and role in DURABLE_ROLES else ()),
    ]  # fmt: skip


def _commands_of_flows(asked: Role) -> tuple[str, ...]:
    """Return a role's commands on the keys of flows, which don't belong to a queue."""
    scripts = [load("flow", name) for name in asked.flows]
    calls = READING if asked.reads else CALLS
    return (*calls, *sorted(set[str]().union(*map(commands, scripts)))) if scripts else ()


def patterns_of(namespace: str, queue: str) -> list[str]:
    """Return the patterns of the keys of a queue, and of its partitions, such as `low/0` of queue `low`.

    A pattern can't repeat digits, and `[0-9]*` would match `low/2026-orders`, which is another queue.
    """
    own = literal(keys.prefix(namespace, queue))
    numbers = ("[0-9]" * length for length in range(1, MAX_DIGITS + 1))
    return [f"{own}*", *(f"{own[:-2]}/{number}}}:*" for number in numbers)]


def _patterns(namespace: str, queues: Sequence[str]) -> list[str]:
    if queues:
        return [pattern for queue in queues for pattern in patterns_of(namespace, queue)]
    return [f"{literal(checked_name('namespace', namespace))}:{{*"]


def _operations(namespace: str) -> list[str]:
    """Return patterns for the keys of the dashboard's operations, and for the list of operations."""
    each, listed = keys.web_operation(namespace, ""), keys.web_operations(namespace)
    return [f"{literal(each)}*", literal(listed)]


def _logins(namespace: str) -> list[str]:
    """Return patterns of the keys of the dashboard's sessions and failed logins."""
    session, failures = keys.web_session(namespace, ""), keys.web_failures(namespace, "", "")
    return [f"{literal(session)}*", f"{literal(failures.rstrip(':'))}:*"]


def _beside(key: Callable[[str, str], str], namespace: str, queues: Sequence[str]) -> list[str]:
    """Return patterns for one key per queue. Users of the queue need a separate right to write this key."""
    if queues:
        return [literal(key(namespace, queue)) for queue in queues]
    return [literal(key(namespace, "")).removesuffix("}") + "*"]


def _records(namespace: str, queues: Sequence[str]) -> list[str]:
    """Return key patterns for the records of Django tasks."""
    if queues:
        return [
            literal(keys.django_record(keys.prefix(namespace, queue), "")) + "*" for queue in queues
        ]
    return [f"{literal(checked_name('namespace', namespace))}:{{*}}:django:*"]
