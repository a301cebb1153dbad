"""Reads, carries out and answers operators' orders to a worker, and dumps stacks after SIGTTIN."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jobq.client.connection import Client
from jobq.durations import counted
from jobq.errors import JobqError, ScriptError
from jobq.queue import orders
from jobq.queue.orders import ChildStack, Order, OrderAnswer
from jobq.worker import logger
from jobq.worker.heartbeat import child_entry
from jobq.worker.pool import PoolMember, StackDump

#: After a failed try, the next try waits this many times its duration.
PAUSE_PER_TRY = 4
#: Maximum number of pending dumps, including the current dump.
MAX_DUMPS = 4
#: Carries out a verb and returns the answer; '' if the worker can't, because it is leaving.
Act = Callable[[], str]


class Orders:
    """Runs operators' commands to one worker. `acts` maps each command to its function, except for stack dumps."""

    def __init__(
        self, client: Client, name: str, members: Sequence[PoolMember], queues: Sequence[str],
        acts: Mapping[str, Act],
    ) -> None:  # fmt: skip
        self._client, self._name, self._members, self._queues = client, name, members, queues
        self._acts = acts
        self._read_at = 0.0
        self._may_warn = True
        # Requested dumps: their members, and the function to call with the dump. Only the first dump has begun.
        self._dumps: list[tuple[list[PoolMember], Callable[[StackDump], None]]] = []
        self._dump: StackDump | None = None

    @property
    def is_dumping(self) -> bool:
        return bool(self._dumps)

    def look_after(self, started_at: int, every_s: float) -> bool:
        """Continue stack dumps. Every `every_s`, run new commands; return whether there were any commands."""
        self._finish_dumps()
        began = time.monotonic()
        if began < self._read_at:
            return False
        self._read_at = began + every_s
        try:
            waiting = orders.waiting_for(self._client, self._name, os.getpid(), started_at)
            for order in waiting:
                self._obey(order)
        except JobqError as error:
            self._warn(error)
            now = time.monotonic()
            self._read_at = now + max(every_s, PAUSE_PER_TRY * (now - began))
            return False
        self._may_warn = True
        return bool(waiting)

    def _warn(self, error: JobqError) -> None:
        # While the server is away, the renewal of leases logs it.
        if self._may_warn and isinstance(error, ScriptError):
            logger.warning("can't read this worker's orders: %s", error)
            self._may_warn = False

    def _obey(self, order: Order) -> None:
        logger.info("received order %r from %r", order.verb, order.by or "someone")
        if order.verb == "dump":
            chosen = [
                member for member in self._members if member.pid and order.child in (0, member.pid)
            ]
            if len(self._dumps) >= MAX_DUMPS:
                self._answer(order, "refused", "it is busy with other dumps; try again")
            elif chosen:
                self.dump(chosen, partial(self._answer_dump, order, chosen))
            else:
                which = f"child {order.child}" if order.child else "child"
                self._answer(order, "refused", f"no {which} runs here")
            return
        act = self._acts.get(order.verb)
        if act is None:
            known = ", ".join((*self._acts, "dump"))
            self._answer(
                order, "refused", f"unknown command {order.verb!r}; this worker supports {known}"
            )
            return
        text = act()
        self._answer(order, "done" if text else "refused", text or "the worker is already stopping")

    def _answer(
        self, order: Order, outcome: str, text: str, children: tuple[ChildStack, ...] = ()
    ) -> None:
        at = round(time.time() * 1000)
        given = OrderAnswer(self._name, order.verb, outcome, text, at, children)
        orders.put_answer(self._client, order.order_id, given)

    def describe(self) -> None:
        chosen = [member for member in self._members if member.pid]
        self.dump(chosen, partial(_log, chosen))

    def dump(self, members: list[PoolMember], then: Callable[[StackDump], None]) -> None:
        """Make children write their stacks. In a later turn of the loop, call `then`. Only one dump runs at a time."""
        self._dumps.append((members, then))
        self._finish_dumps()

    def _finish_dumps(self) -> None:
        while self._dumps:
            members, then = self._dumps[0]
            if self._dump is None:
                self._dump = StackDump(members)
            if not self._dump.is_over():
                return
            done, self._dump = self._dump, None
            self._dumps.pop(0)
            try:
                then(done)
            except JobqError as error:
                logger.warning("can't send the stacks of the children: %s", error)

    def _answer_dump(self, order: Order, members: list[PoolMember], dump: StackDump) -> None:
        entries = {
            member.pid: child_entry(member, self._queues) for member in members if member.pid
        }
        children = []
        for pid, stack in dump.texts().items():
            running = entries[pid].running if pid in entries else ()
            children.append(ChildStack(pid, tuple((job.queue, job.mid) for job in running), stack))
        self._answer(order, "done", f"stacks of {counted(len(children), 'child')}", tuple(children))


def _log(members: list[PoolMember], dump: StackDump) -> None:
    by_pid = {member.pid: member for member in members}
    for pid, stack in dump.texts().items():
        if pid in by_pid:
            slots = by_pid[pid].slots
            logger.info(
                "child %d: %d running, %d waiting, %d jobs ended\n%s",
                pid, slots.nrunning, slots.nwaiting, slots.nfinished, stack,
            )  # fmt: skip
