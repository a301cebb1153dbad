"""The calls of receipts, as steps for threads and for event loops: see `jobq.client.steps`.

A program loads this when it first uses a receipt for more than its mid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from jobq.client.numbered_calls import CallState
from jobq.client.scripts import Argument
from jobq.client.steps import Ask, ItemAt, Request, Steps, call_on, drive
from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import JobFailedError, ResultNotStoredError, ResultTimeoutError
from jobq.jobs.results import Receipt
from jobq.queue.mids import checked_mid
from jobq.queue.types import Status

T = TypeVar("T")
#: How long one blocking wait lasts before the message's status is checked: a message that died with its
#: whole host leaves no result behind.
CHECK_EVERY_S = 10.0
_GONE = frozenset(("nil", "done-awaiting-gc", "done-with-backoff"))


class ResultWaits:
    """What happens while a program waits for results. on_wait: called with the receipt after each blocking wait."""

    on_wait: Callable[[Receipt[Any]], object] | None = None


result_waits = ResultWaits()


def perform(client: Any, steps: Steps[T]) -> T:
    """Do the steps in this thread."""
    return drive(steps, partial(call_on, client))


async def aperform(client: Any, steps: Steps[T]) -> T:
    """Do the steps on the running loop, on its own connections."""
    from jobq.client.aio import async_client
    from jobq.client.steps_async import acall_on, run_async

    return await run_async(steps, partial(acall_on, async_client(client)), set())


def status(receipt: Receipt[Any]) -> Steps[Status]:
    """Where the message is now."""
    known: Status = yield receipt.bound_queue.status_call(receipt.mid)
    return known._replace(progress=receipt.shown("progress", known.progress))


def cancel(receipt: Receipt[Any]) -> Steps[bool]:
    """Cancel the message."""
    [word] = yield from _numbered(receipt, "cancel", {"now": ""}, (checked_mid(receipt.mid),))
    return bool(word == b"cancelled")


def revive(receipt: Receipt[Any]) -> Steps[bool]:
    """Revive the newest dead message of this mid."""
    dead = yield receipt.bound_queue.admin.dead_call(receipt.mid)
    if not dead:
        return False
    values: dict[str, Argument] = {"now": "", "op": "", "life_ms": ""}
    [word] = yield from _numbered(receipt, "revive", values, (dead[0].dead_id, ""))
    return bool(word == b"revived")


def _numbered(
    receipt: Receipt[Any], name: str, values: dict[str, Argument], rest: Sequence[Argument]
) -> Steps[Any]:
    """Make a numbered call of the queue. Cut short, its caller stays out of use, since the call may still arrive."""
    queue = receipt.bound_queue
    script, caller = queue.scripts[name], queue.callers.take()
    reply = yield Request(script.keys[0], script.numbered(caller, values, rest))
    reply = script.served(caller, reply)
    queue.callers.give_back(caller)
    return reply


def result(receipt: Receipt[Any], timeout: Duration | None) -> Steps[bytes]:
    """Wait for the stored result."""
    if not receipt.stores_result:
        raise ResultNotStoredError(
            f"{receipt.job} stores no results; declare it with @job(result_ttl=…)"
        )
    timeout_s = None if timeout is None else duration_s(timeout)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    key = receipt.bound_queue.result_key(receipt.mid)
    content: bytes | None = yield _plain(receipt, "LINDEX", key, 0)
    waited = False
    while content is None:
        yield from _check_alive(receipt, key)
        on_wait = result_waits.on_wait
        if waited and on_wait is not None:
            yield Ask(partial(on_wait, receipt))
        waited = True
        left_s = CHECK_EVERY_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise ResultTimeoutError(
                f"no result of {receipt.job} {receipt.mid} within {timeout_s:g} s"
            )
        content = yield ItemAt(key, min(left_s, CHECK_EVERY_S))
    return content


def _plain(receipt: Receipt[Any], name: str, key: str, *rest: Argument) -> Request:
    client: Any = receipt.client
    return Request(key, CallState(client, (name, key, *rest)))


def _check_alive(receipt: Receipt[Any], key: str) -> Steps[None]:
    known = yield from status(receipt)
    if known.word == "dead":
        died = yield receipt.bound_queue.admin.dead_call(receipt.mid)
        why = receipt.shown("reason", died[0].reason) if died else "its reason was purged"
        why = why.partition("\n")[0]
        raise JobFailedError(f"{receipt.job} {receipt.mid} is dead: {why}")
    if receipt.action == "written" and known.word == "nil":
        return  # the relay hasn't sent it yet, or the transaction was rolled back
    # The script that ends the attempt stores the result too: none will come later.
    if known.word in _GONE and (yield _plain(receipt, "EXISTS", key)) == 0:
        raise ResultNotStoredError(
            f"{receipt.job} {receipt.mid} is over, and no result is kept (cancelled, or expired)"
        )
