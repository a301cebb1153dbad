"""Shows a worker in the dashboards of Resque and Sidekiq, with its heartbeat, running jobs and totals.

Sidekiq's "quiet" and "stop" buttons send the corresponding signals to the supervisor.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import CodecError
from jobq.jobs.codec import decode_any
from jobq.protocols.ruby.job_format import read_back
from jobq.protocols.ruby.key_names import RubyQueueName, System
from jobq.protocols.ruby.retries import RubyJobCounts
from jobq.protocols.ruby.settings import FedWorker
from jobq.records import JsonRecord

#: (queue, mid) -> content, None if it no longer exists.
Content = Callable[[str, str], bytes | None]


logger = logging.getLogger("jobq")
#: After this long without a heartbeat, Sidekiq drops a process. It is longer than several heartbeats.
LIFE_S = 60
STATS_S = 5 * 365 * 86_400
SIGNALS = {b"TSTP": signal.SIGTSTP, b"TERM": signal.SIGTERM, b"TTIN": signal.SIGTTIN}
VERSION = "jobq"
_write = msgspec.json.Encoder().encode


class DashboardEntry:
    """A worker's entry in the dashboards of one namespace. Base class for Sidekiq and Resque.

    If a reply is lost, the jobs since the last heartbeat may be counted twice.
    """

    def __init__(
        self,
        client: Client,
        ruby_queues: Sequence[RubyQueueName],
        fed_worker: FedWorker,
        counts: RubyJobCounts,
    ) -> None:
        self._client, self._ruby_queue, self._fed_worker, self._counts = (
            client,
            ruby_queues[0],
            fed_worker,
            counts,
        )
        self._counted = counts.totals(self._ruby_queue.system)
        self._describe(fed_worker, [ruby_queue.queue for ruby_queue in ruby_queues])

    def _describe(self, fed_worker: FedWorker, names: list[str]) -> None:
        """Set the entry's fields about the worker and its queues. Subclasses override this method."""
        raise NotImplementedError

    def _run_since(self) -> dict[str, int]:
        """Add the number of jobs run since the last heartbeat to Ruby's own statistics. Return the added counts."""
        ran, failed = self._counts.totals(self._ruby_queue.system)
        counts = {"processed": ran - self._counted[0], "failed": failed - self._counted[1]}
        self._counted = ran, failed
        added = {name: count for name, count in counts.items() if count}
        for name, count in added.items():
            self._client.command("INCRBY", self._ruby_queue.key(f"stat:{name}"), count)
        return added


class SidekiqEntry(DashboardEntry):
    """A worker's entry in Sidekiq's `processes`."""

    def _describe(self, fed_worker: FedWorker, names: list[str]) -> None:
        host = socket.gethostname()
        self.identity = f"{host}:{fed_worker.supervisor}:{secrets.token_hex(6)}"
        weights = dict.fromkeys(names, 0)
        self._info = _write(
            {
                "hostname": host, "started_at": time.time(), "pid": fed_worker.supervisor, "tag": fed_worker.name,
                "concurrency": fed_worker.processes, "queues": names, "weights": [weights],
                "capsules": {"default": {"concurrency": fed_worker.processes, "mode": "random", "weights": weights}},
                "labels": ["jobq"], "identity": self.identity, "version": VERSION, "embedded": False,
            }
        )  # fmt: skip
        self._shown: dict[str, set[str]] = {}

    def beat(self, content: Content) -> None:
        """Send a heartbeat to Sidekiq, and carry out commands from its dashboard."""
        command, key = self._client.command, self._ruby_queue.key(self.identity)
        running = self._fed_worker.running()
        asked_at = time.perf_counter()
        command("PING")
        rtt_us = round((time.perf_counter() - asked_at) * 1e6)
        command(
            "HSET", key, "info", self._info, "busy", len(running), "beat", repr(time.time()),
            "rtt_us", rtt_us, "quiet", str(self._fed_worker.quiet()).lower(),
            "rss", memory_kb(self._fed_worker.supervisor),
        )  # fmt: skip
        command("EXPIRE", key, LIFE_S)
        command("SADD", self._ruby_queue.key("processes"), self.identity)
        # Before version 7, running jobs are in a key with another name.
        for name in ("work", "workers"):
            self._show_work(f"{key}:{name}", running, content)
        self._add_stats()
        asked = command("RPOP", f"{key}-signals")
        if asked in SIGNALS:
            logger.info("Sidekiq's dashboard sent %s", asked.decode())
            os.kill(self._fed_worker.supervisor, SIGNALS[asked])

    def leave(self) -> None:
        """Remove the entry."""
        key = self._ruby_queue.key(self.identity)
        self._add_stats()
        self._client.command("SREM", self._ruby_queue.key("processes"), self.identity)
        for name in (key, f"{key}:work", f"{key}:workers"):
            self._client.command("DEL", name)

    def _show_work(
        self, key: str, running: list[tuple[int, str, str, int]], content: Content
    ) -> None:
        fields: list[bytes | str] = []
        names: set[str] = set()
        for process, queue, mid, ran_ms in running:
            ruby_job = read_back(content(queue, mid) or b"")
            job = ruby_job[1] if ruby_job else {"class": "jobq", "args": [], "jid": mid}
            noted = {
                "queue": base_of(queue),
                "payload": _write(job).decode(),
                "run_at": int(time.time() - ran_ms / 1000),
            }
            fields += (f"{process}.{mid}", _write(noted))
            names.add(f"{process}.{mid}")
        # Add new fields before deleting old fields, because a dashboard may read the hash at any time.
        shown = self._shown.get(key, set())
        if fields:
            self._shown[key] = shown | names  # must be removed again, even if the rest fails
            self._client.command("HSET", key, *fields)
            self._client.command("EXPIRE", key, LIFE_S)
        if over := shown - names:
            self._client.command("HDEL", key, *over)
        self._shown[key] = names

    def _add_stats(self) -> None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        for name, count in self._run_since().items():
            daily = self._ruby_queue.key(f"stat:{name}:{today}")
            self._client.command("INCRBY", daily, count)
            self._client.command("EXPIRE", daily, STATS_S)


class ResqueEntry(DashboardEntry):
    """A worker's entry in `resque:workers`."""

    def _describe(self, fed_worker: FedWorker, names: list[str]) -> None:
        queues = ",".join(names)
        # This isn't the name of a Ruby host. A Resque worker starting there would consider a worker without a Ruby
        # process dead, remove it, and list its running jobs as failed.
        self.identity = f"{socket.gethostname()}/jobq:{fed_worker.supervisor}:{queues}"
        self._key = self._ruby_queue.key(f"worker:{self.identity}")
        self._started = time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime())

    def beat(self, content: Content) -> None:
        """Send a heartbeat to Resque, and show the job that has been running longest."""
        command = self._client.command
        seconds = int(command("TIME")[0])
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
        command("HSET", self._ruby_queue.key("workers:heartbeat"), self.identity, now)
        command("SET", f"{self._key}:started", self._started)
        command("SADD", self._ruby_queue.key("workers"), self.identity)
        running = sorted(self._fed_worker.running(), key=lambda job: -job[3])
        if running:
            # The key must expire before Resque prunes a killed worker. Otherwise, Resque would list a job as failed
            # that jobq runs again.
            command("SET", self._key, self._working_on(running[0], content), "EX", LIFE_S)
        else:
            command("DEL", self._key)
        self._add_stats()

    def leave(self) -> None:
        """Remove the entry."""
        self._add_stats()
        self._client.command("SREM", self._ruby_queue.key("workers"), self.identity)
        self._client.command("HDEL", self._ruby_queue.key("workers:heartbeat"), self.identity)
        for name in (self._key, f"{self._key}:started"):
            self._client.command("DEL", name)
        for name in ("processed", "failed"):
            self._client.command("DEL", self._ruby_queue.key(f"stat:{name}:{self.identity}"))

    def _working_on(self, job: tuple[int, str, str, int], content: Content) -> bytes:
        _, queue, mid, ran_ms = job
        ruby_job = read_back(content(queue, mid) or b"")
        fields: dict[str, Any] = ruby_job[1] if ruby_job else {"class": "jobq", "args": [mid]}
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ran_ms / 1000))
        return _write({"queue": base_of(queue), "run_at": began, "payload": fields})

    def _add_stats(self) -> None:
        for name, count in self._run_since().items():
            own = self._ruby_queue.key(f"stat:{name}:{self.identity}")
            self._client.command("INCRBY", own, count)


def memory_kb(supervisor: int) -> int:
    """Return the memory of a process and its children; 0 if unreadable."""
    total = 0
    try:
        with open(f"/proc/{supervisor}/task/{supervisor}/children", encoding="ascii") as listed:
            pids = [str(supervisor), *listed.read().split()]
        for pid in pids:
            with open(f"/proc/{pid}/statm", encoding="ascii") as pages:
                total += int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except (OSError, ValueError):
        pass
    return total


class RubyWorker(JsonRecord):
    """A worker's entry in a dashboard.

    Attributes:
        busy: Number of running jobs.
    """

    system: System
    worker: str
    queues: list[str]
    busy: int


def sidekiq_processes(client: Client, namespace: str = "") -> Iterator[RubyWorker]:
    """Yield Sidekiq's processes that sent a heartbeat within a minute."""
    ruby_queue = RubyQueueName("sidekiq", namespace, "")
    for identity in sorted(client.command("SMEMBERS", ruby_queue.key("processes"))):
        name = identity.decode("utf-8", "backslashreplace")
        info, busy = client.command("HMGET", ruby_queue.key(name), "info", "busy")
        if info is None:
            continue
        try:
            facts = decode_any(info)
            queues = facts.get("queues") or []
            yield RubyWorker("sidekiq", name, [str(queue) for queue in queues], int(busy or 0))
        except (CodecError, AttributeError, TypeError, ValueError):
            # An entry that another program wrote.
            continue


def resque_workers(client: Client, namespace: str = "resque") -> Iterator[RubyWorker]:
    """Yield Resque's registered workers."""
    ruby_queue = RubyQueueName("resque", namespace, "")
    for identity in sorted(client.command("SMEMBERS", ruby_queue.key("workers"))):
        name = identity.decode("utf-8", "backslashreplace")
        queues = name.split(":", 2)[-1].split(",")
        yield RubyWorker(
            "resque", name, queues, client.command("EXISTS", ruby_queue.key(f"worker:{name}"))
        )
