"""The supervisor: forks children, keeps their leases, hears signals, buries the dead.

One thread. It never waits for a child, and for its server only briefly: whatever it can't do now it does
in a later round.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from dataclasses import replace
from functools import partial

from jobq.client.connection import connect
from jobq.errors import JobqError, masked
from jobq.queue.queue import Queue
from jobq.worker import exit_codes, logger
from jobq.worker import shared_state as slots
from jobq.worker.child_exit import ChildExit, bury, examined
from jobq.worker.feeder import Feeder, Source
from jobq.worker.heartbeat import Heartbeat, listed
from jobq.worker.holding import ANSWER_S, REDIRECTED_S
from jobq.worker.leases import Leases
from jobq.worker.pool import PoolMember
from jobq.worker.process import PoolPlan
from jobq.worker.queue_client import REFUSED
from jobq.worker.queue_upkeep import QueueUpkeep

PATIENCE_S = 1.0
LEAST_TIMEOUT_S = 0.2
BUSY_POLL_S = 0.05
IDLE_POLL_S = 0.25
#: From telling children to hurry until killing them.
HURRY_S = 2.0
#: Leases that couldn't be renewed are tried again after so many times what that took.
SELDOM = 4


class Supervisor:
    """One pool."""

    def __init__(self, plan: PoolPlan, woken: int, source: Source | None = None) -> None:
        settings = plan.settings
        self.plan, self.settings, self._woken = plan, settings, woken
        given = plan.client.settings
        patience_s = min(PATIENCE_S, settings.lease_ms / 6000)
        # While it waits for an answer nobody ends a job whose time is over.
        timeout_s = min(given.socket_timeout_s, max(LEAST_TIMEOUT_S, settings.lease_ms / 6000))
        if plan.client.is_cluster:
            # The other nodes' leases wait meanwhile.
            patience_s, timeout_s = min(patience_s, REDIRECTED_S), min(timeout_s, ANSWER_S)
        server = replace(
            given, url=plan.client.url, patience_s=patience_s, socket_timeout_s=timeout_s
        )
        self.client = connect(settings=server)
        self.queues = [Queue(name, self.client) for name, _ in settings.queues]
        self.members = [PoolMember(index) for index in range(settings.processes)]
        self.feeder = Feeder(source, settings, self.members)
        self.leases = Leases(settings, self.queues)
        names = [queue.name for queue in self.queues]
        self.presence = Heartbeat(self.client, settings, names)
        self.upkeep = QueueUpkeep(self.queues, settings, plan.standing)
        #: With the queues in which that is still to be done.
        self.unburied: list[tuple[ChildExit, list[int]]] = []
        self.code: int | None = None
        self.stopping = 0
        self.quiet = False
        # Once one child has begun to work, another that can't start is tried again.
        self.booted = False
        self.stop_at = 0.0
        self.restarting: list[tuple[PoolMember, int]] = []
        self._renew_at = self._look_at = 0.0

    def run(self) -> int:
        """Until all children have left; the exit code."""
        gc.freeze()
        born = "1 child" if len(self.members) == 1 else f"{len(self.members)} children"
        logger.info(
            "%s starts %s; queues %s; jobs %s; server %s", self.settings.name, born,
            listed([f"{name}:{weight}" for name, weight in self.settings.queues]),
            listed(self.plan.registry.names()), masked(self.plan.client.url),
        )  # fmt: skip
        while True:
            self.feeder.look_after()
            self._respawn()
            self._listen()
            self._reap()
            self._look_after()
            if self._over():
                break
        self._last_rites()
        self.presence.leave()
        logger.info("%s leaves", self.settings.name)
        return self.code or exit_codes.OK

    def _over(self) -> bool:
        if any(member.pid for member in self.members):
            return False
        if self.stopping:
            self.feeder.stop()
            return not self.feeder.pid
        done = self.feeder.done and all(member.done for member in self.members)
        return done and not self.unburied and not self._ready()

    def _ready(self) -> bool:
        for queue in self.queues:
            try:
                count = queue.admin.counts()
            except REFUSED:
                continue
            except JobqError:
                return True
            if count.ready and not count.paused:
                return True
        return False

    def _respawn(self) -> None:
        if self.stopping:
            return
        # In a burst, who found nothing to do comes back only if all have left and something is there.
        again = self.settings.burst and not any(m.pid for m in self.members) and self._ready()
        for member in self.members:
            if member.pid or time.monotonic() < member.due_at or (member.done and not again):
                continue
            try:
                member.fork(self.plan, slots.QUIET if self.quiet else 0)
            except OSError as error:
                member.died(crashed=True)
                logger.error("no child can be forked: %s", error)
                return
            logger.info("child %d born", member.pid)

    def _listen(self) -> None:
        busy = self.stopping or self.restarting or any(m.slots.busy for m in self.members if m.pid)
        waiting = any(not m.pid for m in self.members)
        poll_s = min(BUSY_POLL_S if busy or waiting else IDLE_POLL_S, self.upkeep.next_s())
        if select.select([self._woken], [], [], poll_s)[0]:
            for number in os.read(self._woken, 4096):
                self._hear(number)

    def _hear(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stop()
        elif number == signal.SIGTSTP:
            self.quiet = True
            self.feeder.quiet(True)
            self._tell(slots.QUIET)
            logger.info("quiet: nothing new is taken")
        elif number == signal.SIGCONT:
            self.quiet = False
            self.feeder.quiet(bool(self.stopping))
            for member in self.members:
                member.untell(slots.QUIET)
        elif number == signal.SIGHUP:
            logger.info("children are replaced one by one")
            self.restarting = [(member, member.pid) for member in self.members]
        elif number == signal.SIGTTIN:
            self.presence.describe(self.members)

    def stop(self, code: int | None = None) -> None:
        """Drain; said again, hurry; said once more, kill."""
        self.stopping += 1
        self.code = self.code if code is None else code
        if self.stopping == 1:
            self.stop_at = time.monotonic() + self.settings.shutdown_timeout_s
            self.feeder.quiet(True)
            self._tell(slots.DRAIN)
            logger.info("draining, for at most %g s", self.settings.shutdown_timeout_s)
        else:
            self._escalate()

    def _escalate(self) -> None:
        running = any(slots.RUNNING in bytes(m.slots.states) for m in self.members if m.pid)
        if running and self.code is None:
            self.code = exit_codes.FORCED
        self.stopping = max(self.stopping, 2)
        if self.stopping == 2:
            self.stop_at = time.monotonic() + HURRY_S
            self._tell(slots.HURRY)
            logger.warning("hurrying: what runs is stopped and given back")
            return
        self.feeder.kill()
        for member in self.members:
            member.kill("shutdown")

    def _tell(self, control: int) -> None:
        for member in self.members:
            member.tell(control)

    def _reap(self) -> None:
        for member in self.members:
            if not member.pid:
                continue
            pid, status, usage = os.wait4(member.pid, os.WNOHANG)
            if pid:
                self._mourn(member, examined(pid, status, usage, member.slots))

    def _mourn(self, member: PoolMember, death: ChildExit) -> None:
        death = death._replace(
            killed_for=member.killed_for or death.killed_for,
            hard_slots=frozenset(member.hard_slots),
        )
        code = os.waitstatus_to_exitcode(death.status)
        clean = code in (exit_codes.OK, exit_codes.RECYCLED)
        member.died(crashed=not clean)
        # Where nothing is left to do, a child that leaves is not replaced.
        member.done = self.settings.burst and code == exit_codes.OK
        if not clean:
            logger.warning("%s; it held %s", death.how, death.had)
        if not clean or death.held:
            self.unburied.append((death, list(range(len(self.queues)))))
            self._bury()
        if code == exit_codes.CHILD_BOOT and not self.stopping and not self.booted:
            self.stop(exit_codes.CHILD_BOOT)

    def _bury(self) -> None:
        for death, left in list(self.unburied):
            try:
                left[:] = [
                    index
                    for index in left
                    if not self.upkeep.ask(index, partial(self._bury_in, death, index))
                ]
            except JobqError as error:
                logger.warning("what child %d held can't be given back yet: %s", death.pid, error)
                return
            if not left:
                self.unburied.remove((death, left))

    def _bury_in(self, death: ChildExit, index: int) -> None:
        settings = self.settings
        for crash in bury(death, index, self.queues[index], settings.crash_limit, settings.name):
            logger.error(
                "%s crashed: %s%s", crash.what, death.how, crash.follows, extra=crash._asdict()
            )

    def _look_after(self) -> None:
        for member in self.members:
            self.booted = self.booted or (bool(member.pid) and not member.booting)
            if member.pid:
                self._take_back(member)
                self.leases.enforce(member)
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + self.settings.lease_ms / 3000
            self._renew()
        if now >= self._look_at:
            self._keep_up(time.monotonic())
        self.upkeep.tell()
        if self.stopping and now >= self.stop_at:
            self.stopping += 1
            self._escalate()
        self._restart()

    def _take_back(self, member: PoolMember) -> None:
        try:
            self.leases.take_back(member, self.upkeep.ask)
        except JobqError as error:
            logger.warning("what waits behind a slow job can't be given back yet: %s", error)

    def _renew(self) -> None:
        began = time.monotonic()
        try:
            self._bury()
            done = self.leases.renew(self.members, self.upkeep.ask)
            self.presence.show(self.members)
        except JobqError as error:
            done = False
            holding = any(member.slots.busy for member in self.members if member.pid)
            what = "leases not renewed" if holding else "waiting for the server"
            logger.warning("%s: %s", what, error)
        if not done:
            self._renew_at = min(self._renew_at, self._soon(began))

    def _soon(self, began: float) -> float:
        now = time.monotonic()
        return now + max(min(0.5, self.settings.lease_ms / 12_000), SELDOM * (now - began))

    def _keep_up(self, began: float) -> None:
        try:
            self.upkeep.look()
        except JobqError:
            # Whoever renews leases tells.
            self._look_at = self._soon(began)

    def _restart(self) -> None:
        while self.restarting and not self.stopping:
            member, old = self.restarting[0]
            if member.pid == old and old:
                if not member.slots.words[slots.CONTROL] & slots.DRAIN:
                    member.tell(slots.DRAIN)
                return
            if not member.pid or member.booting:
                return
            self.restarting.pop(0)

    def _last_rites(self) -> None:
        """Bury whom the server was too slow to bury, as long as its leases last; collect what is done."""
        until = time.monotonic() + min(5.0, self.settings.lease_ms / 1000)
        while self.unburied and time.monotonic() < until:
            self._bury()
            time.sleep(BUSY_POLL_S * bool(self.unburied))
        try:
            self.upkeep.collect()
        except JobqError as error:
            logger.warning("what is done waits to be collected by the next worker: %s", error)
