"""The supervisor forks children, renews their leases, handles signals, and cleans up after dead children.

It has one thread, and never waits for a child. It waits for the server only briefly, and continues unfinished work
later.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import select
import signal
import time
from dataclasses import replace
from functools import partial

from jobq.client.connection import Client, connect
from jobq.client.names import base_of
from jobq.client.scripts import load
from jobq.durations import counted
from jobq.errors import JobqError, masked
from jobq.jobs.crashes import ChildDeath, CrashReport
from jobq.queue.orders import READ_EVERY_S
from jobq.queue.partitioning import Left, left_in
from jobq.queue.partitions import PartitionMap
from jobq.queue.queue import Queue
from jobq.worker import exit_codes, logger
from jobq.worker.async_runner import loop_library
from jobq.worker.cautions import Cautions, OnceAMinute
from jobq.worker.child import PoolPlan, TickSource
from jobq.worker.child_exit import ChildExit, cause_of, end_held, inspect_exit
from jobq.worker.feeder import Feeder, Source
from jobq.worker.heartbeat import Heartbeat, named
from jobq.worker.holdings import Keeping
from jobq.worker.leases import Leases
from jobq.worker.monitor import Monitor
from jobq.worker.orders import Orders
from jobq.worker.partition_watch import map_of
from jobq.worker.pool import PoolMember
from jobq.worker.programs import reap_orphans
from jobq.worker.queue_line import ANSWER_S, REDIRECTED_S, REFUSED
from jobq.worker.queue_upkeep import QueueUpkeep
from jobq.worker.recycle import MemoryKills
from jobq.worker.shared_state import NEVER, Control
from jobq.worker.systemd import Systemd

# glibc's function that gives free memory back to the system.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
PATIENCE_S = 1.0
MIN_TIMEOUT_S = 0.2
BUSY_POLL_S = 0.05
IDLE_POLL_S = 0.25
#: How often a worker removes partitions that were drained long ago.
FORGET_EVERY_S = 600.0
#: How long children have after a request to hurry, before they are killed.
HURRY_S = 2.0
#: After a failed try, the next try waits this many times its duration.
PAUSE_PER_TRY = 4


def _connected(plan: PoolPlan) -> Client:
    """Return the supervisor's own client. Its timeouts are shorter than a lease."""
    given, lease_s = plan.client.settings, plan.settings.lease_s
    patience_s = min(PATIENCE_S, lease_s / 6)
    # While it waits for an answer, timeouts are not enforced.
    timeout_s = min(given.socket_timeout_s, max(MIN_TIMEOUT_S, lease_s / 6))
    if plan.client.is_cluster:
        # The leases of the other nodes wait during this query.
        patience_s, timeout_s = min(patience_s, REDIRECTED_S), min(timeout_s, ANSWER_S)
    url = plan.client.url
    return connect(
        settings=replace(given, url=url, patience_s=patience_s, socket_timeout_s=timeout_s)
    )


class Supervisor:
    """Supervises one pool."""

    def __init__(self, plan: PoolPlan, woken: int, source: Source | None = None) -> None:
        settings, hooks = plan.settings, plan.hooks
        self.plan, self.settings, self._woken = plan, settings, woken
        self.client = _connected(plan)
        self.queues = [Queue(name, self.client) for name, _ in settings.queues]
        self._names = [queue.name for queue in self.queues]
        self.members = [PoolMember(index) for index in range(settings.processes)]
        self.feeder = Feeder(source, settings, self.members)
        self.keeping = (
            Keeping(hooks.keeper, self.client, settings.lease_s) if hooks.keeper else None
        )
        self.cautions = Cautions(settings)
        self.heartbeat = Heartbeat(
            self.client, settings, self._names, plan.registry, self.cautions.answered
        )
        jobs = plan.registry.names()
        self.monitor = Monitor(hooks.listeners, settings, self.members, jobs, self.heartbeat.slots)
        self.counters = self.monitor.counters
        lost = None
        if self.counters is not None:
            lost = partial(self.counters.add, "leases_lost")
            # This is set before the first fork, and each child replaces it with its own counter.
            plan.health.on_failure = partial(self.counters.add, "server_errors")
        self.leases = Leases(settings, self.queues, lost)
        acts = {
            "quiet": self.go_quiet, "resume": self.resume, "drain": self.drain,
            "restart": self.restart_children,
        }  # fmt: skip
        self.orders = Orders(self.client, settings.name, self.members, self._names, acts)
        on_dead = any(job.settings.on_dead is not None for job in plan.registry)
        self.upkeep = QueueUpkeep(self.queues, settings, plan.health, on_dead=on_dead)
        self.ticks = self._new_ticks()
        self.memory_kills, self.systemd = MemoryKills(), Systemd()
        # Exited children, with the queues in which their messages must still be ended.
        self._exits: list[tuple[ChildExit, ChildDeath, list[int]]] = []
        self.code: int | None = None
        self.stopping = 0
        self.quiet = False
        # Once one child has begun to work, a child that can't start is tried again.
        self.booted = False
        self.stop_at = 0.0
        self.restarting: list[tuple[PoolMember, int]] = []
        self._renew_at = self._upkeep_at = 0.0
        self._once = OnceAMinute()
        # Workers are often started together.
        self._forget_at = time.monotonic() + random.uniform(0, FORGET_EVERY_S)
        self._orders_every_s = min(settings.lease_s / 3, READ_EVERY_S)

    def supervise(self) -> int:
        """Run until all children have exited; return the exit code."""
        # Read here, so that all children share the scripts' memory.
        for name in ("dequeue", "dequeue_plain", "finish", "finish_plain"):
            load("queue", name)
        # Garbage from loading the modules would be copied into each child.
        gc.collect()
        _malloc_trim(0)
        gc.freeze()
        children = counted(len(self.members), "child")
        logger.info(
            "%s starts %s; queues %s; jobs %s; server %s", self.settings.name, children,
            named([f"{name}:{weight}" for name, weight in self.settings.queues]),
            named(self.plan.registry.names()), masked(self.plan.client.url),
        )  # fmt: skip
        if any(job.is_async for job in self.plan.registry):
            library = loop_library(self.settings.event_loop)
            logger.info("async jobs run on the event loop of %s", library.__name__)
        self.monitor.start(self.plan.alive_write)
        while True:
            self._report_state()
            self._serve_more(self.feeder.wanted())
            self._serve_partitions()
            self.feeder.look_after()
            self._respawn()
            self._wait()
            self._reap()
            self._look_after()
            if self._over():
                break
        self._final_cleanup()
        self.heartbeat.leave()
        self.monitor.leave()
        logger.info("%s leaves", self.settings.name)
        return self.code or exit_codes.OK

    def _new_ticks(self) -> TickSource | None:
        make = None if self.settings.burst else self.plan.hooks.ticks
        ticks = make(self.queues, self.plan.registry) if make else None
        self.heartbeat.declares(ticks.names() if ticks else {})
        return ticks

    def _serve_partitions(self) -> None:
        """Find the new partitions of sealed queues, and start serving them."""
        sealed, self.upkeep.sealed = self.upkeep.sealed, set()
        if not sealed or self.stopping:
            return
        weights, more, now = dict(self.settings.queues), dict[str, int](), time.monotonic()
        if forgets := now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY_S
        for base in {base_of(name) for name in sealed} & weights.keys():
            if known := self._map_of(base, sealed, forgets):
                more |= dict.fromkeys(known.served(), weights[base])
                self._retire(known)
        room, new = self.plan.health.room, more.keys() - set(self._names)
        self._serve_more(more)
        missing, left = len(new) - room, max(0, room - len(new))
        if missing > 0 and self._once.is_due("missing"):
            logger.error(
                "%s can't be served until this worker restarts; other workers may serve them",
                counted(missing, "partition"),
            )
        elif new and left < len(new):
            logger.warning(
                "restart this worker before the next change of partitions: it has room for %s more",
                counted(left, "partition"),
            )

    def _map_of(self, base: str, sealed: set[str], forgets: bool) -> PartitionMap | None:
        """Return the partition map of this queue. If its node is unreachable, return None and plan another try."""
        answers: list[PartitionMap] = []

        def look() -> None:
            tidies = not self.plan.health.any_trouble
            answers.append(
                map_of(self.client, base, tidies=tidies, forgets=tidies and forgets, sealed=sealed)
            )

        try:
            if not self.upkeep.ask(self._names.index(base), look):
                self.upkeep.sealed.add(base)
        except JobqError as error:
            self.upkeep.sealed.add(base)
            logger.debug("partitions of queues wait for the server: %s", error)
        return answers[0] if answers else None

    def _retire(self, known: PartitionMap) -> None:
        """Stop serving drained partitions. Serve them again if the map no longer marks them as drained."""
        health, gone, back = self.plan.health, list[str](), list[str]()
        served = {known.queue, *known.served()}  # schedules stay in the queue itself
        for index, name in enumerate(self._names):
            over = base_of(name) == known.queue and name not in served
            if over and not health.is_retired(index) and self._is_empty(index):
                gone.append(name)
            elif name in served and health.is_retired(index):
                back.append(name)
            else:
                continue
            health.retire(index, over)
        self.heartbeat.retired = (self.heartbeat.retired | {*gone}) - {*back}
        if gone:
            logger.info("no longer serves %s: drained", named(gone))
        if back:
            logger.info("serves %s again", named(back))
            self.restart_children()  # a waiting child would begin to ask them only after its wait

    def _is_empty(self, index: int) -> bool:
        """Return whether the queue is empty and rejects new messages; False if the server doesn't answer."""
        answers: list[Left] = []
        try:
            self.upkeep.ask(index, lambda: answers.append(left_in(self.client, self._names[index])))
        except JobqError as error:
            logger.debug("drained partitions wait for the server: %s", error)
        return bool(answers) and answers[0].is_drained

    def _serve_more(self, wanted: dict[str, int]) -> None:
        """Start serving these queues, with their weights. Only children that start later serve them."""
        first, health, known = len(self.queues), self.plan.health, set(self._names)
        new = [each for each in wanted.items() if each[0] not in known][: health.room]
        if not new:
            return
        self.settings = replace(self.settings, queues=(*self.settings.queues, *new))
        self.plan = self.plan._replace(settings=self.settings)
        self.feeder.serves(self.settings, {name: first + at for at, (name, _) in enumerate(new)})
        # All code that numbers queues shares these lists. Numbers of running children stay as they are.
        self.queues += [Queue(name, self.client) for name, _ in new]
        self._names += [name for name, _ in new]
        health.grow(len(new))
        self.upkeep.begin(first)
        self.ticks = self._new_ticks()
        self._renew_at = 0.0  # so that others see the change immediately
        logger.info("now also serves %s", named([f"{name}:{weight}" for name, weight in new]))
        self.restart_children()

    def _report_state(self) -> None:
        """Report to the monitor and to systemd that the supervisor's loop still runs."""
        self.monitor.state.looped(self.quiet, bool(self.stopping), self.heartbeat.is_full)
        self.monitor.look_after(self.plan.alive_write)
        self.systemd.looped()

    def _over(self) -> bool:
        if any(member.pid for member in self.members):
            return False
        if self.stopping:
            self.feeder.stop()
            return not self.feeder.pid
        done = self.feeder.done and all(member.done for member in self.members)
        return done and not self._exits and not self._ready()

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
        # In a burst, a child that found nothing to do is replaced only if all have left and there is work again.
        again = self.settings.burst and not any(m.pid for m in self.members) and self._ready()
        for member in self.members:
            if member.pid or time.monotonic() < member.due_at or (member.done and not again):
                continue
            try:
                member.fork(self.plan, Control.QUIET if self.quiet else 0)
            except OSError as error:
                member.exited(crashed=True)
                logger.error("can't fork a child: %s", error)
                return
            logger.info("child %d started", member.pid)

    def _wait(self) -> None:
        busy = (
            self.stopping or self.restarting or self.orders.is_dumping
            or any(m.slots.is_busy for m in self.members if m.pid)
        )  # fmt: skip
        waiting = any(not m.pid for m in self.members)
        poll_s = min(BUSY_POLL_S if busy or waiting else IDLE_POLL_S, self.upkeep.next_s())
        if self.ticks and not self.quiet and not self.stopping:
            poll_s = min(poll_s, self.ticks.next_s())
        if select.select([self._woken], [], [], poll_s)[0]:
            for number in os.read(self._woken, 4096):
                self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            if self.code == exit_codes.RELOAD:
                self.code = None
            self.stop()
        elif number == signal.SIGTSTP:
            self.go_quiet()
        elif number == signal.SIGCONT:
            self.resume()
        elif number == signal.SIGHUP:
            self.restart_children()
        elif number == signal.SIGTTIN:
            self.orders.describe()

    def go_quiet(self) -> str:
        """Stop fetching messages until a call of `resume`. Return a status text for the operator."""
        self.quiet = True
        self.feeder.quiet(True)
        self._ask(Control.QUIET)
        logger.info("quiet: stopped fetching messages")
        return "it stopped fetching messages"

    def resume(self) -> str:
        """Fetch messages again. Return a status text for the operator, or '' if the worker is exiting."""
        self.quiet = False
        self.feeder.quiet(bool(self.stopping))
        for member in self.members:
            member.ask_no_more(Control.QUIET)
        return "" if self.stopping else "it fetches messages"

    def restart_children(self) -> str:
        """Replace the children one by one, each when its jobs have finished.

        Return a status text for the operator, or '' if the worker is exiting.
        """
        if self.stopping:
            return ""
        logger.info("replacing the children one by one")
        self.restarting = [(member, member.pid) for member in self.members]
        return "it replaces its children one by one"

    def drain(self) -> str:
        """Start draining the worker, unless it is already draining. Return a status text for the operator."""
        if not self.stopping:
            self.stop()
        left_s = max(0, round(self.stop_at - time.monotonic()))
        return f"it drains, for at most {left_s} s more"

    def stop(self, code: int | None = None) -> None:
        """On the first call, drain. On the second call, stop running jobs. On the third call, kill the children."""
        self.stopping += 1
        self.code = self.code if code is None else code
        if self.stopping == 1:
            self.stop_at = time.monotonic() + self.settings.shutdown_timeout_s
            self.feeder.quiet(True)
            self._ask(Control.DRAIN)
            self.systemd.stopping()
            logger.info("draining, for at most %g s", self.settings.shutdown_timeout_s)
        else:
            self._escalate()

    def _escalate(self) -> None:
        running = any(m.slots.nrunning for m in self.members if m.pid)
        if running and self.code is None:
            self.code = exit_codes.FORCED
        self.stopping = max(self.stopping, 2)
        if self.stopping == 2:
            self.stop_at = time.monotonic() + HURRY_S
            self._ask(Control.HURRY)
            logger.warning("hurrying: stopping the running jobs and returning their messages")
            return
        self.feeder.kill()
        for member in self.members:
            member.kill("shutdown")

    def _ask(self, control: int) -> None:
        for member in self.members:
            member.ask(control)

    def _reap(self) -> None:
        for member in self.members:
            if not member.has_exited():
                continue
            pid, status, usage = os.wait4(member.pid, 0)
            if self.plan.log is not None:
                self.plan.log.write_rest(member.slots.lines)
            self._on_child_exit(
                member, inspect_exit(pid, status, usage, member.slots, member.counters)
            )
            if self.keeping:
                self.keeping.child_gone(member.holdings)
        reap_orphans({*(member.pid for member in self.members), self.feeder.pid, self.monitor.pid})

    def _on_child_exit(self, member: PoolMember, child: ChildExit) -> None:
        child = child._replace(
            killed_for=member.killed_for or child.killed_for,
            hard_slots=frozenset(member.hard_slots),
        )
        code = os.waitstatus_to_exitcode(child.status)
        clean = code in (exit_codes.OK, exit_codes.RECYCLED)
        member.exited(crashed=not clean)
        # In a burst, a child that leaves because nothing is left to do is not replaced.
        member.done = self.settings.burst and code == exit_codes.OK
        self.monitor.state.set_pid(member.index, 0)
        death = self._death_of(child)
        if not clean:
            logger.warning("%s; it held %s", child.how, child.had)
            if child.killed_for != "shutdown":
                self.monitor.tell(death)
                if self.counters is not None:
                    self.counters.died(death.cause)
        if not clean or child.held:
            self._exits.append((child, death, list(range(len(self.queues)))))
            self._end_held()
        if code == exit_codes.CHILD_BOOT and not self.stopping and not self.booted:
            self.stop(exit_codes.CHILD_BOOT)

    def _death_of(self, child: ChildExit) -> ChildDeath:
        return ChildDeath(
            self.settings.name, child.pid, cause_of(child, self.memory_kills.more()), child.how,
            round(time.time() * 1000), child.rss_kib, child.usage.ru_utime + child.usage.ru_stime,
        )  # fmt: skip

    def _end_held(self) -> None:
        for child, death, left in list(self._exits):
            try:
                left[:] = [
                    index
                    for index in left
                    if not self.upkeep.ask(index, partial(self._end_held_in, child, death, index))
                ]
            except JobqError as error:
                logger.warning("can't return the messages of child %d yet: %s", child.pid, error)
                return
            if not left:
                self._exits.remove((child, death, left))

    def _end_held_in(self, child: ChildExit, death: ChildDeath, index: int) -> None:
        settings = self.settings
        for crash in end_held(
            child, index, self.queues[index], settings.crash_limit, settings.name, self.counters
        ):
            logger.error(
                "%s crashed: %s%s", crash.what, child.how, crash.follows,
                extra={**crash.fields, "outcome": "crashed", "worker": settings.name},
            )  # fmt: skip
            started_at = death.at - crash.ran_us // 1000 if crash.ran_us else 0
            self.monitor.tell(CrashReport(
                crash.job, base_of(crash.queue), crash.mid, crash.attempt, crash.reply == "dead",
                started_at, dict(crash.headers), death,
            ))  # fmt: skip

    def _look_after(self) -> None:
        for member in self.members:
            if not self.booted and member.pid and not member.is_booting:
                self.booted = True
                self.systemd.ready(len(self.members))
            self.monitor.state.set_pid(member.index, member.pid)
            if member.pid:
                self._take_back(member)
                self.leases.enforce(member)
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + self.settings.lease_s / 3
            self._renew()
        if self.orders.look_after(self.heartbeat.started_at, self._orders_every_s):
            # So that others see the result immediately.
            self._renew_at = 0.0
        if now >= self._upkeep_at:
            self._run_upkeep(time.monotonic())
        if self.ticks and not self.stopping and not self.quiet:
            self._run_ticks(self.ticks)
        self.upkeep.log_troubles()
        if not self.stopping and self.plan.hooks.changed is not None and self.plan.hooks.changed():
            logger.info("a source file changed")
            self.stop(exit_codes.RELOAD)
        if self.stopping and now >= self.stop_at:
            self.stopping += 1
            self._escalate()
        self._restart()

    def _take_back(self, member: PoolMember) -> None:
        try:
            self.leases.take_back(member, self.upkeep.ask)
        except JobqError as error:
            logger.warning("can't return the messages behind a slow job yet: %s", error)

    def _renew(self) -> None:
        began = time.monotonic()
        self.cautions.renewing(
            min((member.slots.deadline() for member in self.members if member.pid), default=NEVER)
        )
        try:
            self._end_held()
            done = self.leases.renew(self.members, self.upkeep.ask)
            if self.heartbeat.send(self.members, self.quiet, bool(self.stopping)):
                self.monitor.state.server_answered()
        except JobqError as error:
            done = False
            if self.counters is not None:
                self.counters.add("server_errors")
            holding = any(member.slots.is_busy for member in self.members if member.pid)
            what = "leases not renewed" if holding else "waiting for the server"
            logger.warning("%s: %s", what, error)
        self.cautions.renewed(done)
        if not done:
            self._renew_at = min(self._renew_at, self._soon(began))
        if self.keeping:
            self.keeping.renew(
                [(member.slots, member.holdings) for member in self.members if member.pid]
            )

    def _soon(self, began: float) -> float:
        now = time.monotonic()
        return now + max(min(0.5, self.settings.lease_s / 12), PAUSE_PER_TRY * (now - began))

    def _run_upkeep(self, began: float) -> None:
        try:
            self.upkeep.look_after()
        except JobqError:
            # The renewal of leases logs it.
            self._upkeep_at = self._soon(began)

    def _run_ticks(self, ticks: TickSource) -> None:
        try:
            ticks.enqueue_due(self.upkeep.ask)
        except JobqError as error:
            logger.debug("can't enqueue ticks of schedules yet: %s", error)

    def _restart(self) -> None:
        while self.restarting and not self.stopping:
            if not self.restarting[0][0].slots.asks(Control.DRAIN):
                # The child with the longest-running job is last, so that others don't wait for it.
                self.restarting.sort(key=lambda row: row[0].slots.began_at() or NEVER, reverse=True)
            member, old = self.restarting[0]
            if member.pid == old and old:
                if not member.slots.asks(Control.DRAIN):
                    member.ask(Control.DRAIN)
                return
            if not member.pid or member.is_booting:
                return
            self.restarting.pop(0)

    def _final_cleanup(self) -> None:
        """For up to 5 s, report or return the remaining messages of dead children. Then remove finished messages."""
        until = time.monotonic() + min(5.0, self.settings.lease_s)
        while self._exits and time.monotonic() < until:
            self._end_held()
            time.sleep(BUSY_POLL_S * bool(self._exits))
        if self.keeping:
            self.keeping.leave()
        try:
            self.upkeep.collect()
        except JobqError as error:
            logger.warning(
                "could not collect done messages, which is left to the next worker: %s", error
            )
