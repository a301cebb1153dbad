"""Implements the methods of receipts, for threads and for event loops; see `jobq.client.steps`.

A program that uses only the mids of receipts never loads this module.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from jobq.client.names import is_partition
from jobq.client.numbered_calls import CallState
from jobq.client.scripts import Argument
from jobq.client.steps import Ask, ItemAt, Nap, Request, Steps, call_on, drive
from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import (
    CodecError,
    JobFailedError,
    ResultNotStoredError,
    ResultTimeoutError,
    ScriptError,
)
from jobq.jobs.codec import decode_any
from jobq.jobs.options import JobSettings
from jobq.jobs.progress import read_progress
from jobq.jobs.queues import queue_of
from jobq.jobs.results import CANCELLED, Receipt, opened_end
from jobq.jobs.signing import seal_of
from jobq.jobs.states import State, ended_state, is_over, live_state, moment
from jobq.queue.mids import checked_mid, is_mid
from jobq.queue.remembered import REMEMBERS
from jobq.queue.types import Status

T = TypeVar("T")
#: How long one blocking wait lasts before the message's status is checked, because a message lost with its host doesn't
#: leave a result.
CHECK_EVERY_S = 10.0
#: How often a program polls for changes that the server doesn't announce.
POLL_S = 0.5
_GONE = frozenset(("nil", "done-awaiting-gc", "done-with-backoff"))


class ResultWaits:
    """Hooks for programs that wait for results.

    Attributes:
        on_wait: Called with the receipt after each blocking wait.
        advice: Advice in the error if no result arrives; {mid} is replaced by the message's id.
    """

    on_wait: Callable[[Receipt[Any]], object] | None = None
    advice = "run `jobq why {mid}` for the reason"

    def late(self, receipt: Receipt[Any], since: str) -> ResultTimeoutError:
        """Return the error for a result that didn't arrive in time."""
        advice = self.advice.format(mid=receipt.mid)
        return ResultTimeoutError(f"no result of {receipt.job} {receipt.mid}{since}; {advice}")


result_waits = ResultWaits()


def perform(client: Any, steps: Steps[T]) -> T:
    """Run the steps in this thread."""
    return drive(steps, partial(call_on, client))


async def aperform(client: Any, steps: Steps[T]) -> T:
    """Run the steps on the running event loop, with the loop's own connections."""
    from jobq.client.aio import async_client
    from jobq.client.steps_async import acall_on, run_async

    return await run_async(steps, partial(acall_on, async_client(client)), set())


def status(receipt: Receipt[Any]) -> Steps[Status]:
    """Return the message's status, with readable progress."""
    known = yield from _status(receipt)
    return known._replace(progress=receipt.shown("progress", known.progress))


def _status(receipt: Receipt[Any]) -> Steps[Status]:
    if not is_mid(receipt.mid):
        # Such a mid can't exist, but web programs read mids from URLs.
        return Status("nil")
    known: Status = yield receipt.bound_queue.status_call(receipt.mid)
    if known.word == "nil" and (yield from _is_elsewhere(receipt)):
        known = yield receipt.bound_queue.status_call(receipt.mid)
    return known


def _is_elsewhere(receipt: Receipt[Any]) -> Steps[bool]:
    """Find the message's partition, and bind the receipt to that partition. Return whether the receipt changed.

    For example, a receipt that was made from a mid doesn't know the partition.
    """
    queue = receipt.bound_queue
    if is_partition(queue.name):
        return False
    place = yield Ask(partial(queue.place_of, receipt.mid))
    if place is not None:
        receipt.bound_queue = place
    return place is not None


def state(receipt: Receipt[Any]) -> Steps[State]:
    """Return the message's public state.

    A live message's state comes from its status. An ended message's state comes from its stored outcome or its dead
    message, whichever is newer.
    """
    known = yield from _status(receipt)
    return (yield from _state(receipt, known))


def follow(receipt: Receipt[Any]) -> Iterator[State]:
    """Yield each change of the state."""
    last = None
    while last is None or not last.ended:
        if last is not None:
            time.sleep(POLL_S)
        current = receipt.state()
        if current != last:
            yield current
        last = current


async def afollow(receipt: Receipt[Any]) -> AsyncIterator[State]:
    """Yield each change of the state, on the event loop."""
    from asyncio import sleep

    last = None
    while last is None or not last.ended:
        if last is not None:
            await sleep(POLL_S)
        current = await receipt.astate()
        if current != last:
            yield current
        last = current


def state_in(queue: Any, mid: str, known: Status) -> State:
    """Return the public state of a message from its status, or `unknown` if the stored result is unreadable."""
    receipt: Receipt[Any] = Receipt(mid, "exists", "", "the job", queue, JobSettings())
    try:
        return perform(queue.client, _state(receipt, known))
    except (CodecError, ScriptError) as error:
        return State("unknown", error=str(error))


def _state(receipt: Receipt[Any], known: Status, is_again: bool = False) -> Steps[State]:
    if not is_over(known):
        traceback = receipt.shown("reason", known.traceback).strip()
        progress = read_progress(receipt.opened("progress", known.progress))
        return live_state(known, progress, traceback)
    if receipt.action in ("written", "buffered") and known.word == "nil":
        # The message waits in the outbox of a database or in the outage buffer, unless it is over already.
        end = ended_state((yield from _remembered(receipt)))
        return State("queued") if end.word == "unknown" else end
    record = yield from _remembered(receipt)
    end = ended_state(record)
    if known.word != "dead":
        return end
    dead = yield receipt.bound_queue.admin.dead_call(receipt.mid)
    if not dead and end.word == "unknown" and not is_again:
        # The message was revived, or removed, after its status was read.
        known = yield from _status(receipt)
        return (yield from _state(receipt, known, is_again=True))
    if not dead:
        return end
    error, _, traceback = receipt.shown("reason", dead[0].reason).partition("\n")
    ended_ms = 0 if end.ended_at is None else round(end.ended_at.timestamp() * 1000)
    if ended_ms > dead[0].died_at and (end.attempt, end.error) != (dead[0].attempts, error):
        return end
    return State(
        "failed", dead[0].attempts, error=error, ended_at=moment(dead[0].died_at), traceback=traceback.strip()
    )  # fmt: skip


def _remembered(receipt: Receipt[Any]) -> Steps[Any]:
    """Return the stored result or failure of the message, or None. Raises CodecError if it is unreadable."""
    key = receipt.bound_queue.result_key(receipt.mid)
    content: bytes | None = yield _plain(receipt, "LINDEX", key, 0)
    if content is None:
        return None
    return decode_any(opened_end(seal_of(receipt.client), receipt.queue, receipt.mid, content))


def cancel(receipt: Receipt[Any]) -> Steps[bool]:
    """Cancel the message; return whether it was cancelled."""
    if not is_mid(receipt.mid):
        return False
    for_ms, rest = receipt.settings.remember_ms, (checked_mid(receipt.mid),)
    values: dict[str, Argument] = {"now": "", "remember_ms": for_ms or ""}
    own_key = [receipt.bound_queue.result_key(receipt.mid)]
    [word] = yield from _numbered(receipt, "cancel", values, rest, own_key if for_ms else ())
    if word == REMEMBERS:
        [word] = yield from _numbered(receipt, "cancel", values, rest, own_key)
    if word == b"nil" and (yield from _is_elsewhere(receipt)):
        return (yield from cancel(receipt))
    return bool(word == b"cancelled")


def revive(receipt: Receipt[Any]) -> Steps[bool]:
    """Revive the latest dead message of this mid; return whether it was revived."""
    if not is_mid(receipt.mid):
        return False
    dead = yield receipt.bound_queue.admin.dead_call(receipt.mid)
    if not dead:
        return (yield from revive(receipt)) if (yield from _is_elsewhere(receipt)) else False
    values: dict[str, Argument] = {"now": "", "op": "", "life_ms": ""}
    [word] = yield from _numbered(receipt, "revive", values, (dead[0].dead_id, ""))
    if word == b"sealed":  # the revived message goes to a current partition
        receipt.bound_queue = queue_of(receipt.queue, receipt.client)
        words = yield Ask(partial(receipt.bound_queue.admin.revive, dead[0].dead_id))
        return bool(words == ["revived"])
    return bool(word == b"revived")


def _numbered(
    receipt: Receipt[Any],
    name: str,
    values: dict[str, Argument],
    rest: Sequence[Argument],
    extra_keys: Sequence[str] = (),
) -> Steps[Any]:
    """Call a script of the queue so that the call can be repeated safely.

    If the call is interrupted, its caller id isn't used again, because the call may still arrive.
    """
    queue = receipt.bound_queue
    script, caller = queue.scripts[name], queue.callers.take()
    reply = yield Request(script.keys[0], script.numbered(caller, values, rest, extra_keys))
    reply = script.served(caller, reply)
    queue.callers.give_back(caller)
    return reply


def result(receipt: Receipt[Any], timeout: Duration | None) -> Steps[bytes]:
    """Wait for the stored result, and return it still encoded."""
    if not receipt.settings.stores_result:
        raise ResultNotStoredError(
            f"{receipt.job} doesn't store results; declare it with @job(result_ttl=…)"
        )
    timeout_s = None if timeout is None else duration_s(timeout)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    queue, key = receipt.bound_queue, receipt.bound_queue.result_key(receipt.mid)
    content: bytes | None = yield _plain(receipt, "LINDEX", key, 0)
    waited = False
    while content is None or (yield from _of_earlier_life(receipt, content)):
        yield from _check_alive(receipt)
        if receipt.bound_queue is not queue:
            queue, key = receipt.bound_queue, receipt.bound_queue.result_key(receipt.mid)
            content = yield _plain(receipt, "LINDEX", key, 0)
            continue
        on_wait = result_waits.on_wait
        if waited and on_wait is not None:
            yield Ask(partial(on_wait, receipt))
        waited = True
        left_s = CHECK_EVERY_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise result_waits.late(receipt, f" within {timeout_s:g} s")
        if content is None:
            content = yield ItemAt(key, min(left_s, CHECK_EVERY_S))
        else:
            yield Nap(min(left_s, POLL_S))
            content = yield _plain(receipt, "LINDEX", key, 0)
    return content


def _of_earlier_life(receipt: Receipt[Any], content: bytes) -> Steps[bool]:
    """Return whether a stored outcome is from before a revival, or belongs to an earlier message with the same mid.

    Only outcomes of cancelled and failed messages can be that old.
    """
    if not content.startswith((CANCELLED, b'{"error"')):
        return False
    return not is_over((yield from status(receipt)))


def _plain(receipt: Receipt[Any], name: str, key: str, *rest: Argument) -> Request:
    client: Any = receipt.client
    return Request(key, CallState(client, (name, key, *rest)))


def _check_alive(receipt: Receipt[Any]) -> Steps[None]:
    known = yield from status(receipt)
    if known.word == "dead":
        died = yield receipt.bound_queue.admin.dead_call(receipt.mid)
        why = receipt.shown("reason", died[0].reason) if died else "its reason was purged"
        why = why.partition("\n")[0]
        raise JobFailedError(f"{receipt.job} {receipt.mid} is dead: {why}")
    if receipt.action == "written" and known.word == "nil":
        return  # the relay hasn't sent it yet, or the transaction was rolled back
    # The script that ends the attempt also stores the result, so no result will come later.
    key = receipt.bound_queue.result_key(receipt.mid)
    if known.word in _GONE and (yield _plain(receipt, "EXISTS", key)) == 0:
        raise ResultNotStoredError(
            f"{receipt.job} {receipt.mid} ended without a stored result: it was cancelled, or its result expired"
        )
