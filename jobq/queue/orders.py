"""Orders to running workers: pause, resume, drain, restart the children, or report stacks.

An order stays in its worker's list for a minute. The worker reads its list every few seconds, carries the order out,
and stores an answer. The order contains the worker's process id and start time, so a later worker with the same name
ignores it. Anyone who may write the list can give orders to the worker.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.errors import ConfigError
from jobq.queue import keys
from jobq.queue.presence import WorkerEntry
from jobq.queue.untrusted import decoded, number_in, text_in

#: Order -> description of its effect, for people.
VERBS = {
    "quiet": "stop fetching messages",
    "resume": "fetch messages again",
    "drain": "finish running jobs and exit",
    "restart": "replace the children one by one",
    "dump": "report the stacks of the children",
}
#: How long an order is kept for its worker, and how long an answer is kept for its reader.
KEPT_MS, ANSWER_MS = 60_000, 300_000
#: Maximum number of orders that wait for one worker.
MAX_WAITING = 16
#: A worker reads its orders at least this often.
READ_EVERY_S = 5.0
MAX_BY_LENGTH = 200
MAX_ANSWER_BYTES = 64 << 10
LOOK_EVERY_S = 0.1
_ID = re.compile(r"[0-9a-f]{32}")


class Order(NamedTuple):
    """An order to a worker.

    Attributes:
        by: Name of the sender, for people.
        child: Process id of the child that reports its stacks; 0 for all children.
        raw: The order's bytes in the list.
    """

    order_id: str
    verb: str
    by: str
    child: int
    at: int
    raw: bytes


class ChildStack(NamedTuple):
    """The stacks of a worker's child process, and the messages that it was running, as (queue, mid) pairs."""

    pid: int
    running: tuple[tuple[str, str], ...]
    stack: str


class OrderAnswer(NamedTuple):
    """A worker's answer to an order.

    Attributes:
        outcome: 'done' or 'refused'.
        at: Time of the answer, in epoch ms by the worker's clock.
    """

    worker: str
    verb: str
    outcome: str
    text: str
    at: int = 0
    children: tuple[ChildStack, ...] = ()


# Calls of operators.


def check(client: Client, worker: WorkerEntry) -> int:
    """Raise ConfigError if this worker can't receive commands; otherwise, return the server's time in epoch ms."""
    now_ms = client.clock_ms()
    if worker.damaged:
        raise ConfigError(f"the stored state of worker {worker.name!r} is damaged; check its host")
    if not worker.is_live(now_ms):
        seen_s = max(0, now_ms - worker.seen_at) // 1000
        raise ConfigError(
            f"worker {worker.name!r} is lost: it was last seen {seen_s:,} s ago and ignores commands; check its host"
        )
    if not worker.started_at:
        raise ConfigError(
            f"worker {worker.name!r} is starting and doesn't read commands yet; try again in a moment"
        )
    return now_ms


def send(client: Client, worker: WorkerEntry, verb: str, *, by: str = "", child: int = 0) -> str:
    """Send the order `verb` to a worker; return the order's id. Raises ConfigError if the worker would not read it."""
    if verb not in VERBS:
        raise ConfigError(f"unknown command {verb!r}; use one of {', '.join(VERBS)}")
    now_ms = check(client, worker)
    key, order_id = keys.orders(client.namespace, worker.name), secrets.token_hex(16)
    if client.command("LLEN", key) >= MAX_WAITING:
        raise ConfigError(
            f"worker {worker.name!r} already has {MAX_WAITING} waiting commands, the maximum; try again in a minute"
        )
    facts = {
        "id": order_id, "verb": verb, "by": by[:MAX_BY_LENGTH], "child": child, "at": now_ms,
        "pid": worker.pid, "started_at": worker.started_at,
    }  # fmt: skip
    client.command("RPUSH", key, json.dumps(facts))
    client.command("PEXPIRE", key, KEPT_MS)
    return order_id


def this_user() -> str:
    """Return the user and the host of this process, as the sender of an order."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container's user without an entry
    return f"{user} on {socket.gethostname()}"


def answer(client: Client, order_id: str) -> OrderAnswer | None:
    """Return the answer to an order; None if there is no answer, or if it is unreadable."""
    if not _ID.fullmatch(order_id):
        return None
    raw = client.command("GET", keys.order(client.namespace, order_id))
    return None if raw is None else _answer(decoded(raw))


def answers(
    client: Client, sent: Mapping[str, str], within_s: float
) -> Iterator[tuple[str, OrderAnswer | None]]:
    """Yield pairs (worker, answer) as answers arrive. The answer is None for workers that miss the deadline.

    Args:
        sent: Name of each worker -> id of its command.
    """
    waiting, deadline = dict(sent), time.monotonic() + within_s
    while waiting:
        for worker, order_id in list(waiting.items()):
            reply = answer(client, order_id)
            if reply is not None:
                del waiting[worker]
                yield worker, reply
        if not waiting or time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY_S)
    yield from ((worker, None) for worker in waiting)


def _answer(facts: Any) -> OrderAnswer | None:
    if not isinstance(facts, dict) or not isinstance(facts.get("children"), list):
        return None
    children = [_stack(child) for child in facts["children"]]
    return OrderAnswer(
        worker=text_in(facts.get("worker")),
        verb=text_in(facts.get("verb")),
        outcome=text_in(facts.get("outcome")),
        text=text_in(facts.get("text")),
        at=number_in(facts.get("at")) or 0,
        children=tuple(child for child in children if child is not None),
    )


def _stack(facts: Any) -> ChildStack | None:
    if not isinstance(facts, dict) or not isinstance(facts.get("running"), list):
        return None
    pairs = [pair for pair in facts["running"] if isinstance(pair, list) and len(pair) == 2]
    running = tuple((text_in(queue), text_in(mid)) for queue, mid in pairs)
    return ChildStack(number_in(facts.get("pid")) or 0, running, text_in(facts.get("stack")))


# Calls of workers.


def waiting_for(client: Client, worker: str, pid: int, started_at: int) -> list[Order]:
    """Return orders, such as 'drain', sent to this worker process in the last minute.

    Remove these orders, and all expired or unreadable orders, from the worker's list.
    """
    key = keys.orders(client.namespace, worker)
    reply = client.command("LRANGE", key, 0, MAX_WAITING - 1)
    if not reply:
        return []
    now_ms, orders = client.clock_ms(), []
    for raw in reply:
        facts = decoded(raw)
        order = _order(facts, raw)
        mine = order is not None and (facts.get("pid"), facts.get("started_at")) == (
            pid,
            started_at,
        )
        fresh = order is not None and now_ms - order.at < KEPT_MS
        if mine or not fresh:
            client.command("LREM", key, 1, raw)
        if order is not None and mine and fresh:
            orders.append(order)
    return orders


def _order(facts: Any, raw: bytes) -> Order | None:
    if not isinstance(facts, dict):
        return None
    order_id, verb, by = (text_in(facts.get(field)) for field in ("id", "verb", "by"))
    child, at = number_in(facts.get("child")), number_in(facts.get("at"))
    if not _ID.fullmatch(order_id) or not verb or child is None or at is None:
        return None
    return Order(order_id, verb[:MAX_BY_LENGTH], by[:MAX_BY_LENGTH], child, at, raw)


def put_answer(client: Client, order_id: str, given: OrderAnswer) -> None:
    """Store a worker's answer to an order. If the answer has long stacks, their middle is left out."""
    share = MAX_ANSWER_BYTES // max(1, len(given.children))
    facts = given._asdict() | {
        "children": [
            child._asdict() | {"stack": _cut(child.stack, share)} for child in given.children
        ]
    }
    key = keys.order(client.namespace, order_id)
    client.command("SET", key, json.dumps(facts), "PX", ANSWER_MS)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n({len(text) - 2 * half:,} characters left out)\n{text[-half:]}"
