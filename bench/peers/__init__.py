"""Compare jobq with its peers: each in a separate venv, node_modules or Debian package, all on the same private
server.

A peer's module is imported by that venv's Python alone and offers `each` (enqueue one at a time), `many` (as fast
as possible), `later` (in an hour) and `worker` (the commands of a worker with a number of processes). Its docstring
lists the peer's fastest settings, the results of `python -m bench --sweep`, and the settings' costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLIENT = ("redis==8.1.0", "hiredis==3.5.0")


class Peer(NamedTuple):
    """Packages of a peer, the number of no-op jobs for about a second, and values to try in a sweep."""

    requires: tuple[str, ...]
    jobs: int
    registry: str = "PyPI"
    sweep: Mapping[str, tuple[str, ...]] = {}
    #: Enqueued to weigh one: 100,000 where that takes seconds.
    weighed: int = 20_000
    #: Enqueued one at a time to time it.
    singles: int = 3_000
    #: Enqueued in bulk to time it.
    bulk: int = 0
    #: Setting that turns off its log, in words for the page; '' if it doesn't log per job by default.
    quiet: str = ""


_SWIFT = 100_000
#: jobq and the limits run in the venv of this repository: they require nothing.
PEERS = {
    "own": Peer(
        (), 120_000, weighed=_SWIFT, singles=10_000, bulk=150_000, quiet="`--log-level warning`"
    ),
    "scripts": Peer((), 120_000, singles=10_000, bulk=150_000),
    "lists": Peer((), 25_000, weighed=_SWIFT, singles=10_000, bulk=150_000),
    "bare": Peer((), 0),
    "rq": Peer(
        ("rq==2.12.0", *CLIENT), 500, singles=1_000, bulk=5_000, weighed=10_000, quiet="`-q`",
        sweep={"CLASS": ("rq.worker.SimpleWorker", "rq.worker.Worker", "rq.worker.SpawnWorker")},
    ),
    "celery": Peer(
        ("celery==5.7.0", "packaging", *CLIENT), 1_400, singles=1_200, weighed=10_000,
        sweep={"PREFETCH": ("4", "128", "1000"), "POOL": ("prefork", "threads")},
    ),
    "dramatiq": Peer(
        ("dramatiq==2.2.1", *CLIENT), 10_000,
        sweep={"THREADS": ("1", "2", "8", "16"), "PREFETCH": ("16", "128", "1000")},
    ),
    "huey": Peer(
        ("huey==3.5.4", *CLIENT), 12_000, weighed=50_000, quiet="`-q`",
        sweep={"KIND": ("process", "thread")},
    ),
    "arq": Peer(
        ("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"), 4_000,
        quiet="its logger at `WARNING`",
        sweep={"MAX_JOBS": ("10", "100", "500"), "POLL": ("0.5", "0.05", "0.01", "0.001")},
    ),
    "saq": Peer(
        ("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop==0.23.0"), 4_000, quiet="`--quiet`",
        sweep={"CONCURRENCY": ("5", "10", "30", "100", "300")},
    ),
    "taskiq": Peer(
        ("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0", *CLIENT), 6_000,
        quiet="`--log-level WARNING`",
        sweep={"TASKS": ("10", "100", "1000"), "PREFETCH": ("0", "100", "1000")},
    ),
    "bullmq": Peer(
        ("bullmq@5.81.5",), 20_000, registry="npm", bulk=40_000, weighed=100_000,
        sweep={"CONCURRENCY": ("10", "50", "100", "300", "1000")},
    ),
    "sidekiq": Peer(
        ("ruby-sidekiq", "ruby-redis", "ruby-hiredis"), 20_000, registry="Debian", bulk=100_000,
        weighed=100_000, quiet="its logger at `WARN`, no job logger",
        sweep={
            "CONCURRENCY": ("1", "2", "5", "10", "25"),
            "DRIVER": ("hiredis", "ruby"),
            "JIT": ("--yjit", "--yjit --yjit-exec-mem-size=32", "-W1"),
        },
    ),
}  # fmt: skip
#: How the table names them.
NAMES = {
    "own": "jobq",
    "scripts": "limit: bare loop over jobq's scripts",
    "lists": "limit: LPUSH, LMOVE, LREM",
    "bare": "limit: two bare processes",
}
LIMITS = ("scripts", "lists", "bare")
QUEUES = tuple(name for name in PEERS if name not in LIMITS)
